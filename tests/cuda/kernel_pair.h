/* For the suites of the GPU's kernels: the same numbers for a kernel of the GPU and for the CPU's, side by side.
 * bfloat16 and float16 are compared with the CPU's float32 on the same rounded inputs. The kernels run on the stand-in,
 * or, in the program gpu_kernels, on a GPU (kernel_gpu.h). */
#ifndef TSHARD_KERNEL_PAIR_H
#define TSHARD_KERNEL_PAIR_H

#include "device/cuda/cuda.h"
#include "device/cuda/kernels/kernels.h"
#include "device/kernel_test.h"

static const tsh_dtype gpu_dtypes[4] = {TSH_FLOAT32, TSH_FLOAT64, TSH_BFLOAT16, TSH_FLOAT16};

#ifdef TSHARD_CUDA_STANDIN
/* --- a device that has memory, and nothing else ------------------------------------------------------------------- */

static int scratch_in_use;

static void *scratch_alloc(tsh_device *device, size_t size) {
    (void)device;
    unsigned char *memory = NULL;
    if (posix_memalign((void **)&memory, 64, size + 64) != 0) return NULL;
    memset(memory, 0xFF, size + 64); /* NaNs, so that a kernel that expects zeros fails */
    scratch_in_use++;
    return memory;
}

static void scratch_release(tsh_device *device, void *memory) {
    (void)device;
    if (memory) scratch_in_use--;
    free(memory);
}

/* Three multiprocessors: grids are smaller than the work. */
static inline tsh_device *gpu(void) {
    static const tshi_device_ops ops = {.memory = {.alloc = scratch_alloc, .release = scratch_release}};
    static tshi_cuda_report report;
    static tshi_cuda_device device = {.base = {.ops = &ops}, .processors = 3, .report = &report};
    cr_assert_eq(device.failed, TSH_OK, "%s", device.message);
    cr_assert_eq(scratch_in_use, 0, "scratch memory is not given back");
    return &device.base;
}

static inline void gpu_waits(bool waits) {
    (void)waits; /* it never does: kernels run as they are called */
}
#else
#include "cuda/kernel_gpu.h"
#endif

/* --- pairs -------------------------------------------------------------------------------------------------------- */

/* gpu: of dtype, `skew` elements behind a 64-byte boundary, guarded; cpu: the same values, of the dtype of sums. */
typedef struct pair {
    tsh_dtype dtype;
    int64_t n;
    unsigned char *memory;
    void *gpu;
    buffer cpu;
} pair;

static inline size_t pair_bytes(const pair *p) {
    return (size_t)p->n * tsh_dtype_size(p->dtype);
}

static inline pair pair_make(tsh_dtype dtype, int64_t n, int skew) {
    pair p = {.dtype = dtype, .n = n, .cpu = buffer_make(tshi_dtype_sum(dtype), n)};
    size_t offset = 64 + (size_t)skew * tsh_dtype_size(dtype), all = offset + pair_bytes(&p) + GUARD;
    cr_assert_eq(posix_memalign((void **)&p.memory, 64, all), 0);
    memset(p.memory, 0xA5, all);
    p.gpu = p.memory + offset;
    memset(p.gpu, 0, pair_bytes(&p));
    return p;
}

/* Rounds cpu's values to dtype, on both sides. */
static inline void pair_round(pair *p) {
    kernels()->copy.convert(kernel_device(), p->n, p->cpu.dtype, p->cpu.data, p->dtype, p->gpu);
    kernels()->copy.convert(kernel_device(), p->n, p->dtype, p->gpu, p->cpu.dtype, p->cpu.data);
}

static inline pair pair_random(tsh_dtype dtype, int64_t n, int skew, double low, double high) {
    pair p = pair_make(dtype, n, skew);
    buffer_fill_random(&p.cpu, low, high);
    pair_round(&p);
    return p;
}

static inline pair pair_integers(tsh_dtype dtype, int64_t n, int skew) {
    pair p = pair_make(dtype, n, skew);
    buffer_fill_integers(&p.cpu);
    pair_round(&p);
    return p;
}

static inline void pair_free(pair *p) {
    for (unsigned char *g = p->memory; g < (unsigned char *)p->gpu; g++)
        cr_assert_eq(*g, 0xA5, "written before the start");
    for (int i = 0; i < GUARD; i++)
        cr_assert_eq(((unsigned char *)p->gpu + pair_bytes(p))[i], 0xA5, "written past the end");
    free(p->memory);
    buffer_free(&p->cpu);
}

/* The GPU's values, widened. */
static inline buffer pair_values(const pair *p) {
    buffer b = buffer_make(p->cpu.dtype, p->n);
    kernels()->copy.convert(kernel_device(), p->n, p->dtype, p->gpu, b.dtype, b.data);
    return b;
}

/* Half an ulp of dtype at `value`. */
static inline double half_step(tsh_dtype dtype, double value) {
    if (dtype == TSH_BFLOAT16) return fabs(value) * 0x1p-8;
    if (dtype == TSH_FLOAT16) return fmax(fabs(value) * 0x1p-11, 0x1p-25);
    return fabs(value) * (dtype == TSH_FLOAT32 ? 0x1p-24 : 0x1p-53);
}

/* The GPU's values are the CPU's but for rounding to dtype, and `units` of the rounding error of what they are computed
 * in, relative to `scale`. */
static inline void expect_pair(const pair *p, const char *name, double scale, double units) {
    buffer got = pair_values(p);
    double slack = units * scale * (p->cpu.dtype == TSH_FLOAT32 ? 0x1p-24 : 0x1p-53);
    for (int64_t i = 0; i < p->n; i++) {
        double g = get(&got, i), w = get(&p->cpu, i);
        cr_assert(fabs(g - w) <= slack + 1.001 * half_step(p->dtype, w) || g == w || (isnan(g) && isnan(w)),
                  "%s: %s element %lld of %lld: %.17g, not %.17g", name, tsh_dtype_name(p->dtype), (long long)i,
                  (long long)p->n, g, w);
    }
    buffer_free(&got);
}

static inline void expect_same(const pair *p, const char *name) {
    expect_pair(p, name, 0, 0);
}

/* The data, or NULL. */
static inline void *gpu_or_null(const pair *p, bool there) {
    return there ? p->gpu : NULL;
}

static inline void *cpu_or_null(const pair *p, bool there) {
    return there ? p->cpu.data : NULL;
}

#endif
