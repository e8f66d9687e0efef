/* y = x W^T + b by oneDNN primitives, which are generated for the sizes and kept with the device.
 *
 * dnnl_sgemm takes longer for a transposed W: with few rows of x, up to twice as long as a primitive, and it has no
 * bias. For large products it is as fast, and tiny ones would not repay the 0.3 ms that generating a primitive takes. */
#include "device/cpu/kernels/primitives.h"

#ifdef TSHARD_HAVE_ONEDNN
#include <dnnl.h>

/* A primitive is used for m n k in the first range and for m, the rows of x, in the second. */
#define FEWEST_PRODUCTS ((double)(1 << 17))
#define MOST_PRODUCTS   ((double)(1 << 29))
#define FEWEST_ROWS     17
#define MOST_ROWS       4096

/* The table is emptied at MOST primitives, which only programs with ever new sizes reach. A free place always ends a
 * search. */
enum { PLACES = 256, MOST = 192 };

typedef struct affine_primitive {
    int64_t m, n, k; /* m = 0: the place is free */
    bool has_bias;
    dnnl_primitive_t primitive; /* NULL: oneDNN has only sgemm for this CPU */
    dnnl_memory_t x, w, b, y;   /* without memory of their own: each call sets the pointers */
} affine_primitive;

typedef struct tshi_primitives {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    affine_primitive place[PLACES];
    int count;
} tshi_primitives;

/* --- oneDNN 2 and 3 ----------------------------------------------------------------------------------------------- */

typedef dnnl_memory_desc_t matrix;

#if DNNL_VERSION_MAJOR >= 3

static bool describe(matrix *out, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
    return dnnl_memory_desc_create_with_strides(out, 2, (dnnl_dims_t){rows, cols}, dnnl_f32,
                                                (dnnl_dims_t){row_stride, col_stride}) == dnnl_success;
}

static void forget(matrix *m) {
    dnnl_memory_desc_destroy(*m);
}

static bool lend(dnnl_memory_t *out, const matrix *m, dnnl_engine_t engine) {
    return dnnl_memory_create(out, *m, engine, DNNL_MEMORY_NONE) == dnnl_success;
}

static bool choose(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const matrix *x, const matrix *w, const matrix *b,
                   const matrix *y) {
    return dnnl_matmul_primitive_desc_create(out, engine, *x, *w, b ? *b : NULL, *y, NULL) == dnnl_success;
}
#else
static bool describe(matrix *out, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
    return dnnl_memory_desc_init_by_strides(out, 2, (dnnl_dims_t){rows, cols}, dnnl_f32,
                                            (dnnl_dims_t){row_stride, col_stride}) == dnnl_success;
}

static void forget(matrix *m) {
    (void)m;
}

static bool lend(dnnl_memory_t *out, const matrix *m, dnnl_engine_t engine) {
    return dnnl_memory_create(out, m, engine, DNNL_MEMORY_NONE) == dnnl_success;
}

static bool choose(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const matrix *x, const matrix *w, const matrix *b,
                   const matrix *y) {
    dnnl_matmul_desc_t wanted;
    return dnnl_matmul_desc_init(&wanted, x, w, b, y) == dnnl_success &&
           dnnl_primitive_desc_create(out, &wanted, NULL, engine, NULL) == dnnl_success;
}
#endif

/* --- making and keeping ------------------------------------------------------------------------------------------- */

static void primitive_free(affine_primitive *p) {
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    if (p->x) dnnl_memory_destroy(p->x);
    if (p->w) dnnl_memory_destroy(p->w);
    if (p->b) dnnl_memory_destroy(p->b);
    if (p->y) dnnl_memory_destroy(p->y);
    *p = (affine_primitive){.m = 0};
}

/* True for brgemm kernels, which are generated for the sizes; the other implementations call sgemm. */
static bool is_generated(const_dnnl_primitive_desc_t chosen) {
    const char *name = NULL;
    return dnnl_primitive_desc_query(chosen, dnnl_query_impl_info_str, 0, (void *)&name) == dnnl_success && name &&
           strncmp(name, "brg", 3) == 0;
}

/* On failure, and without a brgemm kernel, p->primitive stays NULL. */
static void primitive_make(dnnl_engine_t engine, affine_primitive *p) {
    matrix x, w, b, y;
    dnnl_primitive_desc_t chosen = NULL;
    dnnl_primitive_t made = NULL;
    if (!describe(&x, p->m, p->k, p->k, 1)) return;
    if (!describe(&w, p->k, p->n, 1, p->k)) goto no_w;
    if (!describe(&b, 1, p->n, p->n, 1)) goto no_b;
    if (!describe(&y, p->m, p->n, p->n, 1)) goto no_y;
    bool good = choose(&chosen, engine, &x, &w, p->has_bias ? &b : NULL, &y) && is_generated(chosen) &&
                lend(&p->x, &x, engine) && lend(&p->w, &w, engine) && lend(&p->b, &b, engine) &&
                lend(&p->y, &y, engine);
    if (good && dnnl_primitive_create(&made, chosen) == dnnl_success) p->primitive = made;
    if (chosen) dnnl_primitive_desc_destroy(chosen);
    forget(&y);
no_y:
    forget(&b);
no_b:
    forget(&w);
no_w:
    forget(&x);
}

static tshi_primitives *primitives_of(tshi_cpu_device *cpu) {
    if (cpu->primitives) return cpu->primitives;
    tshi_primitives *made = tshi_calloc(&cpu->base.allocator, 1, sizeof *made);
    bool good = made && dnnl_engine_create(&made->engine, dnnl_cpu, 0) == dnnl_success &&
                dnnl_stream_create(&made->stream, made->engine, dnnl_stream_default_flags) == dnnl_success;
    cpu->primitives = made;
    if (!good) tshi_cpu_primitives_free(cpu);
    return cpu->primitives;
}

static void forget_all(tshi_primitives *all) {
    for (int i = 0; i < PLACES; i++) primitive_free(&all->place[i]);
    all->count = 0;
}

void tshi_cpu_primitives_free(tshi_cpu_device *cpu) {
    tshi_primitives *all = cpu->primitives;
    if (!all) return;
    forget_all(all);
    if (all->stream) dnnl_stream_destroy(all->stream);
    if (all->engine) dnnl_engine_destroy(all->engine);
    tshi_free(&cpu->base.allocator, all);
    cpu->primitives = NULL;
}

/* The place of these sizes, which may be free. */
static affine_primitive *find_place(tshi_primitives *all, int64_t m, int64_t n, int64_t k, bool has_bias) {
    uint64_t hash = ((uint64_t)m * 31 + (uint64_t)n) * 31 + (uint64_t)k;
    for (hash = hash * 0x9e3779b97f4a7c15u >> 32;; hash++) {
        affine_primitive *p = &all->place[hash % PLACES];
        if (p->m == 0 || (p->m == m && p->n == n && p->k == k && p->has_bias == has_bias)) return p;
    }
}

static affine_primitive *find_primitive(tshi_primitives *all, int64_t m, int64_t n, int64_t k, bool has_bias) {
    affine_primitive *p = find_place(all, m, n, k, has_bias);
    if (p->m) return p;
    if (all->count == MOST) {
        forget_all(all);
        p = find_place(all, m, n, k, has_bias);
    }
    *p = (affine_primitive){.m = m, .n = n, .k = k, .has_bias = has_bias};
    all->count++;
    primitive_make(all->engine, p);
    return p;
}

static bool pays(const tshi_cpu_device *cpu, int64_t m, int64_t n, int64_t k) {
    double products = (double)m * (double)n * (double)k;
    return cpu->base.threads == 1 && m >= FEWEST_ROWS && m <= MOST_ROWS && products >= FEWEST_PRODUCTS &&
           products <= MOST_PRODUCTS;
}

bool tshi_cpu_primitive_affine(tshi_cpu_device *cpu, int64_t m, int64_t n, int64_t k, const float *x, const float *w,
                               const float *b, float *y) {
    tshi_primitives *all = pays(cpu, m, n, k) ? primitives_of(cpu) : NULL;
    affine_primitive *p = all ? find_primitive(all, m, n, k, b != NULL) : NULL;
    if (!p || !p->primitive) return false;
    bool good = dnnl_memory_set_data_handle(p->x, (void *)(uintptr_t)x) == dnnl_success &&
                dnnl_memory_set_data_handle(p->w, (void *)(uintptr_t)w) == dnnl_success &&
                dnnl_memory_set_data_handle(p->b, (void *)(uintptr_t)b) == dnnl_success &&
                dnnl_memory_set_data_handle(p->y, y) == dnnl_success;
    const dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_SRC, p->x}, {DNNL_ARG_WEIGHTS, p->w}, {DNNL_ARG_DST, p->y}, {DNNL_ARG_BIAS, p->b}};
    return good && dnnl_primitive_execute(p->primitive, all->stream, b ? 4 : 3, arguments) == dnnl_success;
}

#else

bool tshi_cpu_primitive_affine(tshi_cpu_device *cpu, int64_t m, int64_t n, int64_t k, const float *x, const float *w,
                               const float *b, float *y) {
    return false;
}

void tshi_cpu_primitives_free(tshi_cpu_device *cpu) {}

#endif
