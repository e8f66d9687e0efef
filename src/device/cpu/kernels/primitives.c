/* Products by oneDNN primitives, which are generated for the sizes and kept with the device.
 *
 * float32: dnnl_sgemm takes longer for a transposed W: with few rows of x, up to twice as long as a primitive, and it
 * has no bias. For large products it is as fast, and tiny ones would not repay the 0.3 ms that generating a primitive
 * takes. bfloat16: the CPU's own products of bfloat16 are twice as fast as those of float32, or more. */
#include "device/cpu/kernels/primitives.h"

#ifdef TSHARD_HAVE_ONEDNN
#include <dnnl.h>

/* A primitive is used for m n k in the first range and for m, the rows of x, in the second; that of bfloat16 has no
 * upper limits. */
#define FEWEST_PRODUCTS ((double)(1 << 17))
#define MAX_PRODUCTS    ((double)(1 << 29))
/* A batch's primitive takes half to nine tenths of the time of as many calls of dnnl_sgemm up to this m n k, and past
 * it as long or longer. */
#define MAX_BATCH_PRODUCTS ((double)(1 << 21))
#define FEWEST_ROWS        17
#define MAX_ROWS           4096

/* The table is emptied at MAX_PRIMITIVES primitives, which only programs with ever new sizes reach. A free place always
 * ends a search. */
enum { PLACES = 256, MAX_PRIMITIVES = 192 };

/* c = a b (+ bias) (+ c): a [m, k] and b [k, n], or their transposes, of float32 or bfloat16 (narrow); c [m, n] and the
 * bias of float32. All are packed: there are no generated kernels for others. */
typedef struct product {
    int64_t count;   /* of the matrices of a batch, packed too */
    int64_t m, n, k; /* m = 0: the place is free */
    bool transpose_a, transpose_b, has_bias, narrow, accumulate;
} product;

typedef struct product_primitive {
    product of;
    dnnl_primitive_t primitive;  /* NULL: oneDNN has only plain kernels for this CPU */
    dnnl_memory_t a, b, bias, c; /* without memory of their own: each call sets the pointers */
} product_primitive;

typedef struct tshi_primitives {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    product_primitive place[PLACES];
    int count;
} tshi_primitives;

/* --- oneDNN 2 and 3 ----------------------------------------------------------------------------------------------- */

typedef dnnl_memory_desc_t matrix;

/* Dims and strides of `count` packed matrices, rows by cols, which are stored transposed or not; one has two dims. */
typedef struct extent {
    int ndim;
    dnnl_dims_t dims, strides;
} extent;

static extent extent_of(int64_t count, int64_t rows, int64_t cols, bool transposed) {
    const int64_t row_stride = transposed ? 1 : cols, col_stride = transposed ? rows : 1;
    if (count == 1) return (extent){2, {rows, cols}, {row_stride, col_stride}};
    return (extent){3, {count, rows, cols}, {rows * cols, row_stride, col_stride}};
}

#if DNNL_VERSION_MAJOR >= 3

static bool describe(matrix *out, dnnl_data_type_t type, extent e) {
    return dnnl_memory_desc_create_with_strides(out, e.ndim, e.dims, type, e.strides) == dnnl_success;
}

static void forget(matrix *m) {
    dnnl_memory_desc_destroy(*m);
}

static bool lend(dnnl_memory_t *out, const matrix *m, dnnl_engine_t engine) {
    return dnnl_memory_create(out, *m, engine, DNNL_MEMORY_NONE) == dnnl_success;
}

static bool choose(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const matrix *a, const matrix *b,
                   const matrix *bias, const matrix *c, const_dnnl_primitive_attr_t attr) {
    return dnnl_matmul_primitive_desc_create(out, engine, *a, *b, bias ? *bias : NULL, *c, attr) == dnnl_success;
}

static bool append_sum(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1, 0, dnnl_data_type_undef) == dnnl_success;
}
#else
static bool describe(matrix *out, dnnl_data_type_t type, extent e) {
    return dnnl_memory_desc_init_by_strides(out, e.ndim, e.dims, type, e.strides) == dnnl_success;
}

static void forget(matrix *m) {
    (void)m;
}

static bool lend(dnnl_memory_t *out, const matrix *m, dnnl_engine_t engine) {
    return dnnl_memory_create(out, m, engine, DNNL_MEMORY_NONE) == dnnl_success;
}

static bool choose(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const matrix *a, const matrix *b,
                   const matrix *bias, const matrix *c, const_dnnl_primitive_attr_t attr) {
    dnnl_matmul_desc_t wanted;
    return dnnl_matmul_desc_init(&wanted, a, b, bias, c) == dnnl_success &&
           dnnl_primitive_desc_create(out, &wanted, attr, engine, NULL) == dnnl_success;
}

static bool append_sum(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1) == dnnl_success;
}
#endif

/* --- making and keeping ------------------------------------------------------------------------------------------- */

static void primitive_free(product_primitive *p) {
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    if (p->a) dnnl_memory_destroy(p->a);
    if (p->b) dnnl_memory_destroy(p->b);
    if (p->bias) dnnl_memory_destroy(p->bias);
    if (p->c) dnnl_memory_destroy(p->c);
    *p = (product_primitive){.of = {.m = 0}};
}

/* True for brgemm kernels, which are generated for the sizes; the other implementations call sgemm. */
static bool is_generated(const_dnnl_primitive_desc_t chosen) {
    const char *name = NULL;
    return dnnl_primitive_desc_query(chosen, dnnl_query_impl_info_str, 0, (void *)&name) == dnnl_success && name &&
           strncmp(name, "brg", 3) == 0;
}

/* The attribute that adds the product to c; NULL on failure. */
static dnnl_primitive_attr_t make_accumulation(void) {
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    bool good = dnnl_primitive_attr_create(&attr) == dnnl_success && dnnl_post_ops_create(&ops) == dnnl_success &&
                append_sum(ops) && dnnl_primitive_attr_set_post_ops(attr, ops) == dnnl_success;
    if (ops) dnnl_post_ops_destroy(ops);
    if (good) return attr;
    if (attr) dnnl_primitive_attr_destroy(attr);
    return NULL;
}

/* On failure, and without a brgemm kernel, p->primitive stays NULL. */
static void primitive_make(dnnl_engine_t engine, product_primitive *p) {
    const product *of = &p->of;
    const dnnl_data_type_t type = of->narrow ? dnnl_bf16 : dnnl_f32;
    matrix a, b, bias, c;
    dnnl_primitive_desc_t chosen = NULL;
    dnnl_primitive_t made = NULL;
    dnnl_primitive_attr_t attr = of->accumulate ? make_accumulation() : NULL;
    if (of->accumulate && !attr) return;
    if (!describe(&a, type, extent_of(of->count, of->m, of->k, of->transpose_a))) goto no_a;
    if (!describe(&b, type, extent_of(of->count, of->k, of->n, of->transpose_b))) goto no_b;
    if (!describe(&bias, dnnl_f32, extent_of(1, 1, of->n, false))) goto no_bias;
    if (!describe(&c, dnnl_f32, extent_of(of->count, of->m, of->n, false))) goto no_c;
    bool good = choose(&chosen, engine, &a, &b, of->has_bias ? &bias : NULL, &c, attr) && is_generated(chosen) &&
                lend(&p->a, &a, engine) && lend(&p->b, &b, engine) && lend(&p->bias, &bias, engine) &&
                lend(&p->c, &c, engine);
    if (good && dnnl_primitive_create(&made, chosen) == dnnl_success) p->primitive = made;
    if (chosen) dnnl_primitive_desc_destroy(chosen);
    forget(&c);
no_c:
    forget(&bias);
no_bias:
    forget(&b);
no_b:
    forget(&a);
no_a:
    if (attr) dnnl_primitive_attr_destroy(attr);
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

static bool is_same(const product *x, const product *y) {
    return x->count == y->count && x->m == y->m && x->n == y->n && x->k == y->k && x->transpose_a == y->transpose_a &&
           x->transpose_b == y->transpose_b && x->has_bias == y->has_bias && x->narrow == y->narrow &&
           x->accumulate == y->accumulate;
}

/* The place of these sizes, which may be free. */
static product_primitive *find_place(tshi_primitives *all, const product *of) {
    uint64_t hash = (((uint64_t)of->m * 31 + (uint64_t)of->n) * 31 + (uint64_t)of->k) * 2 + of->accumulate;
    hash = hash * 31 + (uint64_t)of->count;
    for (hash = hash * 0x9e3779b97f4a7c15u >> 32;; hash++) {
        product_primitive *p = &all->place[hash % PLACES];
        if (p->of.m == 0 || is_same(&p->of, of)) return p;
    }
}

static product_primitive *find_primitive(tshi_cpu_device *cpu, const product *of) {
    tshi_primitives *all = primitives_of(cpu);
    if (!all) return NULL;
    product_primitive *p = find_place(all, of);
    if (p->of.m) return p;
    if (all->count == MAX_PRIMITIVES) {
        forget_all(all);
        p = find_place(all, of);
    }
    *p = (product_primitive){.of = *of};
    all->count++;
    primitive_make(all->engine, p);
    return p;
}

static bool run(tshi_cpu_device *cpu, const product *of, const void *a, const void *b, const float *bias, float *c) {
    product_primitive *p = find_primitive(cpu, of);
    if (!p || !p->primitive) return false;
    bool good = dnnl_memory_set_data_handle(p->a, (void *)(uintptr_t)a) == dnnl_success &&
                dnnl_memory_set_data_handle(p->b, (void *)(uintptr_t)b) == dnnl_success &&
                dnnl_memory_set_data_handle(p->bias, (void *)(uintptr_t)bias) == dnnl_success &&
                dnnl_memory_set_data_handle(p->c, c) == dnnl_success;
    const dnnl_exec_arg_t arguments[] = {
        {DNNL_ARG_SRC, p->a}, {DNNL_ARG_WEIGHTS, p->b}, {DNNL_ARG_DST, p->c}, {DNNL_ARG_BIAS, p->bias}};
    return good &&
           dnnl_primitive_execute(p->primitive, cpu->primitives->stream, bias ? 4 : 3, arguments) == dnnl_success;
}

bool tshi_cpu_primitive_affine(tshi_cpu_device *cpu, int64_t m, int64_t n, int64_t k, const float *x, const float *w,
                               const float *b, float *y) {
    const product of = {.count = 1, .m = m, .n = n, .k = k, .transpose_b = true, .has_bias = b != NULL};
    double products = (double)m * (double)n * (double)k;
    bool pays = cpu->base.threads == 1 && m >= FEWEST_ROWS && m <= MAX_ROWS && products >= FEWEST_PRODUCTS &&
                products <= MAX_PRODUCTS;
    return pays && run(cpu, &of, x, w, b, y);
}

bool tshi_cpu_multiplies_narrow(const tsh_device *device, tsh_dtype dtype) {
    const tshi_cpu_device *cpu = (const tshi_cpu_device *)device;
    return dtype == TSH_BFLOAT16 && cpu->isa->multiplies_bfloat16 && cpu->products != TSHI_PRODUCTS_BLAS;
}

bool tshi_cpu_primitive_narrow(tshi_cpu_device *cpu, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                               int64_t k, const uint16_t *a, const uint16_t *b, bool accumulate, float *c) {
    const product of = {1, m, n, k, transpose_a, transpose_b, .narrow = true, .accumulate = accumulate};
    return (double)m * (double)n * (double)k >= FEWEST_PRODUCTS && run(cpu, &of, a, b, NULL, c);
}

bool tshi_cpu_primitive_batch(tshi_cpu_device *cpu, int64_t count, bool transpose_a, bool transpose_b, int64_t m,
                              int64_t n, int64_t k, const float *a, const float *b, bool accumulate, float *c) {
    const product of = {count, m, n, k, transpose_a, transpose_b, .accumulate = accumulate};
    const double products = (double)m * (double)n * (double)k;
    const bool pays = products <= MAX_BATCH_PRODUCTS && (double)count * products >= FEWEST_PRODUCTS;
    return pays && count > 1 && cpu->products != TSHI_PRODUCTS_BLAS && run(cpu, &of, a, b, NULL, c);
}

#else

bool tshi_cpu_primitive_affine(tshi_cpu_device *cpu, int64_t m, int64_t n, int64_t k, const float *x, const float *w,
                               const float *b, float *y) {
    return false;
}

bool tshi_cpu_multiplies_narrow(const tsh_device *device, tsh_dtype dtype) {
    return false;
}

bool tshi_cpu_primitive_narrow(tshi_cpu_device *cpu, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                               int64_t k, const uint16_t *a, const uint16_t *b, bool accumulate, float *c) {
    return false;
}

bool tshi_cpu_primitive_batch(tshi_cpu_device *cpu, int64_t count, bool transpose_a, bool transpose_b, int64_t m,
                              int64_t n, int64_t k, const float *a, const float *b, bool accumulate, float *c) {
    return false;
}

void tshi_cpu_primitives_free(tshi_cpu_device *cpu) {}

#endif
