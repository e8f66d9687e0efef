/* Elementwise reductions across buffers, on which the speed of collectives depends. */
#include "device/cpu/isa/kernels.h"
#include "device/cpu/isa/loops.h"

#define T         float
#define WIDE      float
#define IS_NAN(x) ((x) != (x))
#define NAME(f)   f##_f32
#include "device/cpu/isa/reduce.inc"

#define T         double
#define WIDE      double
#define IS_NAN(x) ((x) != (x))
#define NAME(f)   f##_f64
#include "device/cpu/isa/reduce.inc"

#define T         int32_t
#define WIDE      uint32_t
#define IS_NAN(x) false
#define NAME(f)   f##_i32
#define INTEGER
#include "device/cpu/isa/reduce.inc"

#define T         int64_t
#define WIDE      uint64_t
#define IS_NAN(x) false
#define NAME(f)   f##_i64
#define INTEGER
#include "device/cpu/isa/reduce.inc"

#define T         uint8_t
#define WIDE      uint32_t
#define IS_NAN(x) false
#define NAME(f)   f##_u8
#define INTEGER
#include "device/cpu/isa/reduce.inc"

#define COMPLEX_PRODUCT(name, real)                                                                                    \
    static void name##_two(int64_t n, const void *left, const void *right, void *out, void *second) {                  \
        const real *a = left, *b = right;                                                                              \
        real *o = out, *p = second;                                                                                    \
        TSHI_INDEPENDENT                                                                                               \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            real re = a[2 * i] * b[2 * i] - a[2 * i + 1] * b[2 * i + 1];                                               \
            real im = a[2 * i] * b[2 * i + 1] + a[2 * i + 1] * b[2 * i];                                               \
            o[2 * i] = re;                                                                                             \
            o[2 * i + 1] = im;                                                                                         \
            p[2 * i] = re;                                                                                             \
            p[2 * i + 1] = im;                                                                                         \
        }                                                                                                              \
    }                                                                                                                  \
    static void name##_one(int64_t n, const void *left, const void *right, void *out) {                                \
        name##_two(n, left, right, out, out);                                                                          \
    }

COMPLEX_PRODUCT(prod_c64, float)
COMPLEX_PRODUCT(prod_c128, double)

typedef struct pair_loops {
    void (*one)(int64_t n, const void *left, const void *right, void *out);
    void (*two)(int64_t n, const void *left, const void *right, void *out, void *second);
} pair_loops;

#define PAIR(op, type)                                                                                                 \
    { op##_one_##type, op##_two_##type }
#define ROW(type)                                                                                                      \
    [TSHI_SUM] = PAIR(sum, type), [TSHI_PROD] = PAIR(prod, type), [TSHI_MIN] = PAIR(min, type),                        \
    [TSHI_MAX] = PAIR(max, type)
#define INTEGER_ROW(type)                                                                                              \
    ROW(type), [TSHI_BAND] = PAIR(band, type), [TSHI_BOR] = PAIR(bor, type), [TSHI_BXOR] = PAIR(bxor, type)

static const pair_loops loops[TSH_DTYPE_COUNT][TSHI_REDUCTION_COUNT] = {
    [TSH_FLOAT32] = {ROW(f32)},
    [TSH_FLOAT64] = {ROW(f64)},
    [TSH_INT32] = {INTEGER_ROW(i32)},
    [TSH_INT64] = {INTEGER_ROW(i64)},
    [TSH_UINT8] = {INTEGER_ROW(u8)},
    [TSH_COMPLEX64] = {[TSHI_PROD] = {prod_c64_one, prod_c64_two}},
    [TSH_COMPLEX128] = {[TSHI_PROD] = {prod_c128_one, prod_c128_two}},
};

#define TILE_BYTES 8192 /* a tile and its inputs fit L1 */

/* Reduces one tile at byte offset `at`: in[0] op in[1] op ... into out[0..outs). An input that may be the same
 * buffer as an output is read before that output is written, or in the same iteration. */
static void reduce_tile(const pair_loops *f, int64_t n, size_t size, size_t at, int count, const void *const *in,
                        int outs, void *const *out) {
    _Alignas(64) char tile[TILE_BYTES];
    const void *left = (const char *)in[0] + at;
    for (int k = 1; k < count - 1; k++) {
        f->one(n, left, (const char *)in[k] + at, tile);
        left = tile;
    }
    char *first = (char *)out[0] + at;
    const void *right = (const char *)in[count - 1] + at;
    if (outs == 1)
        f->one(n, left, right, first);
    else
        f->two(n, left, right, first, (char *)out[1] + at);
    for (int k = 2; k < outs; k++) tshi_cpu_copy(NULL, (size_t)n * size, first, (char *)out[k] + at);
}

static void reduce_tiles(const pair_loops *f, int64_t n, size_t size, int count, const void *const *in, int outs,
                         void *const *out) {
    bool fused = count == 2 && outs <= 2;
    int64_t step = fused ? n : (int64_t)(TILE_BYTES / size);
    for (int64_t i = 0; i < n; i += step) {
        int64_t some = n - i < step ? n - i : step;
        reduce_tile(f, some, size, (size_t)i * size, count, in, outs, out);
    }
}

/* The average: a sum that is divided once, while its tile is in the cache. */
static void average(tsh_dtype dtype, int64_t n, int count, const void *const *in, int outs, void *const *out) {
    size_t size = tsh_dtype_size(dtype);
    int64_t step = (int64_t)(TILE_BYTES / size);
    for (int64_t i = 0; i < n; i += step) {
        int64_t some = n - i < step ? n - i : step;
        size_t at = (size_t)i * size;
        char *sum = (char *)out[0] + at;
        reduce_tile(&loops[dtype][TSHI_SUM], some, size, at, count, in, 1, out);
        if (dtype == TSH_FLOAT32)
            divide_f32(some, count, sum);
        else
            divide_f64(some, count, sum);
        for (int k = 1; k < outs; k++) tshi_cpu_copy(NULL, (size_t)some * size, sum, (char *)out[k] + at);
    }
}

#define NARROW_TILE 1024

static void reduce_narrow(tsh_dtype dtype, tshi_reduction op, int64_t n, int count, const void *const *in, int outs,
                          void *const *out) {
    const pair_loops *f = &loops[TSH_FLOAT32][op == TSHI_AVG ? TSHI_SUM : op];
    float sum[NARROW_TILE], term[NARROW_TILE];
    uint16_t rounded[NARROW_TILE];
    for (int64_t i = 0; i < n; i += NARROW_TILE) {
        int64_t some = n - i < NARROW_TILE ? n - i : NARROW_TILE;
        TSHI_ISA(tshi_cpu_widen)(dtype, some, (const uint16_t *)in[0] + i, sum);
        for (int k = 1; k < count; k++) {
            TSHI_ISA(tshi_cpu_widen)(dtype, some, (const uint16_t *)in[k] + i, term);
            f->one(some, sum, term, sum);
        }
        if (op == TSHI_AVG) divide_f32(some, count, sum);
        TSHI_ISA(tshi_cpu_narrow)(dtype, some, sum, rounded);
        for (int k = 0; k < outs; k++) {
            tshi_cpu_copy(NULL, (size_t)some * sizeof(uint16_t), rounded, (uint16_t *)out[k] + i);
        }
    }
}

void TSHI_ISA(tshi_cpu_reduce)(tsh_device *device, tsh_dtype dtype, tshi_reduction op, int64_t n, int count,
                               const void *const *in, int outs, void *const *out) {
    if (n <= 0 || count < 1 || outs < 1) return;
    if (count == 1) {
        size_t bytes = (size_t)n * tsh_dtype_size(dtype);
        for (int k = 0; k < outs; k++) tshi_cpu_copy(device, bytes, in[0], out[k]);
        return;
    }
    if (dtype == TSH_BFLOAT16 || dtype == TSH_FLOAT16) {
        reduce_narrow(dtype, op, n, count, in, outs, out);
        return;
    }
    if ((op == TSHI_SUM || op == TSHI_AVG) && tshi_dtype_is_complex(dtype)) {
        dtype = dtype == TSH_COMPLEX64 ? TSH_FLOAT32 : TSH_FLOAT64;
        n *= 2;
    }
    if (op == TSHI_AVG) {
        if (dtype == TSH_FLOAT32 || dtype == TSH_FLOAT64) average(dtype, n, count, in, outs, out);
        return;
    }
    const pair_loops *f = &loops[dtype][op];
    if (f->one) reduce_tiles(f, n, tsh_dtype_size(dtype), count, in, outs, out);
}
