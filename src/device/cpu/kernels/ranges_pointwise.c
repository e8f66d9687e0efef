/* Elementwise kernels, sums and softmax in ranges. */
#include "device/cpu/kernels/ranges.h"

/* --- elementwise -------------------------------------------------------------------------------------------------- */

/* The arguments of a kernel, under the names that kernels.def gives them. */
typedef struct elementwise {
    const tshi_elementwise_ops *ops;
    size_t size;
    int f;
    const double *p;
    double a, b, beta;
    const tshi_broadcast *o;
    const uint8_t *mask;
    bool kept;
    int64_t cols;
    const void *x, *y;
    void *z;
} elementwise;

#define ELEMENTWISE .ops = &isa_of(device)->elementwise[dtype], .size = tsh_dtype_size(dtype)

static void unary_range(const void *call, int range, int64_t from, int64_t end) {
    const elementwise *c = call;
    c->ops->unary(NULL, (tshi_unary)c->f, c->p, end - from, at(c->x, from, c->size), into(c->z, from, c->size));
}

void tshi_cpu_elementwise_unary(tsh_device *device, tsh_dtype dtype, tshi_unary f, const double *p, int64_t n,
                                const void *x, void *y) {
    const elementwise c = {ELEMENTWISE, .f = (int)f, .p = p, .x = x, .z = y};
    tshi_parallel(device, n, STEP, COST_EXP, unary_range, &c);
}

static void unary_backward_range(const void *call, int range, int64_t from, int64_t end) {
    const elementwise *c = call;
    c->ops->unary_backward(NULL, (tshi_unary)c->f, c->p, end - from, at(c->x, from, c->size), at(c->y, from, c->size),
                           c->beta, into(c->z, from, c->size));
}

void tshi_cpu_elementwise_unary_backward(tsh_device *device, tsh_dtype dtype, tshi_unary f, const double *p, int64_t n,
                                         const void *x, const void *dy, double beta, void *dx) {
    const elementwise c = {ELEMENTWISE, .f = (int)f, .p = p, .x = x, .y = dy, .beta = beta, .z = dx};
    tshi_parallel(device, n, STEP, COST_EXP, unary_backward_range, &c);
}

typedef struct gated {
    const tshi_elementwise_ops *ops;
    size_t size;
    const void *g, *u, *dy;
    double beta_g, beta_u;
    void *dg, *du;
} gated;

/* The result is dg. */
static void swiglu_range(const void *call, int range, int64_t from, int64_t end) {
    const gated *c = call;
    c->ops->swiglu(NULL, end - from, at(c->g, from, c->size), at(c->u, from, c->size), into(c->dg, from, c->size));
}

void tshi_cpu_elementwise_swiglu(tsh_device *device, tsh_dtype dtype, int64_t n, const void *g, const void *u,
                                 void *y) {
    const gated c = {ELEMENTWISE, .g = g, .u = u, .dg = y};
    tshi_parallel(device, n, STEP, COST_EXP, swiglu_range, &c);
}

static void swiglu_backward_range(const void *call, int range, int64_t from, int64_t end) {
    const gated *c = call;
    c->ops->swiglu_backward(NULL, end - from, at(c->g, from, c->size), at(c->u, from, c->size),
                            at(c->dy, from, c->size), c->beta_g, into(c->dg, from, c->size), c->beta_u,
                            into(c->du, from, c->size));
}

void tshi_cpu_elementwise_swiglu_backward(tsh_device *device, tsh_dtype dtype, int64_t n, const void *g, const void *u,
                                          const void *dy, double beta_g, void *dg, double beta_u, void *du) {
    const gated c = {ELEMENTWISE, .g = g, .u = u, .dy = dy, .beta_g = beta_g, .beta_u = beta_u, .dg = dg, .du = du};
    tshi_parallel(device, n, STEP, COST_EXP, swiglu_backward_range, &c);
}

static void axpby_range(const void *call, int range, int64_t from, int64_t end) {
    const elementwise *c = call;
    c->ops->axpby(NULL, end - from, c->a, at(c->x, from, c->size), c->b, at(c->y, from, c->size),
                  into(c->z, from, c->size));
}

void tshi_cpu_elementwise_axpby(tsh_device *device, tsh_dtype dtype, int64_t n, double a, const void *x, double b,
                                const void *y, void *z) {
    const elementwise c = {ELEMENTWISE, .a = a, .x = x, .b = b, .y = y, .z = z};
    tshi_parallel(device, n, STEP, 1, axpby_range, &c);
}

static void mul_range(const void *call, int range, int64_t from, int64_t end) {
    const elementwise *c = call;
    c->ops->mul(NULL, end - from, at(c->x, from, c->size), at(c->y, from, c->size), c->beta, into(c->z, from, c->size));
}

void tshi_cpu_elementwise_mul(tsh_device *device, tsh_dtype dtype, int64_t n, const void *x, const void *y, double beta,
                              void *z) {
    const elementwise c = {ELEMENTWISE, .x = x, .y = y, .beta = beta, .z = z};
    tshi_parallel(device, n, STEP, 1, mul_range, &c);
}

/* Broadcasts are split along their outermost dim: n units of `inner` elements. */
static int64_t broadcast_units(const tshi_broadcast *o, int64_t *inner) {
    *inner = 1;
    for (int k = 0; k + 1 < o->runs; k++) *inner *= o->n[k];
    return o->n[o->runs - 1];
}

static void broadcast_parallel(const tsh_device *device, tshi_range_fn *work, const elementwise *c) {
    int64_t inner, n = broadcast_units(c->o, &inner);
    tshi_parallel(device, n, c->o->runs > 1 ? 1 : STEP, (double)inner, work, c);
}

/* The part of a broadcast, and the offsets of its operands in elements. */
static tshi_broadcast broadcast_part(const tshi_broadcast *o, int64_t from, int64_t end, int64_t offset[3]) {
    tshi_broadcast part = *o;
    const int last = o->runs - 1;
    broadcast_units(o, &offset[2]);
    part.n[last] = end - from;
    offset[0] = from * o->x[last];
    offset[1] = from * o->y[last];
    offset[2] *= from;
    return part;
}

static void binary_range(const void *call, int range, int64_t from, int64_t end) {
    const elementwise *c = call;
    int64_t offset[3];
    const tshi_broadcast part = broadcast_part(c->o, from, end, offset);
    c->ops->binary(NULL, (tshi_binary)c->f, &part, at(c->x, offset[0], c->size), at(c->y, offset[1], c->size),
                   into(c->z, offset[2], c->size));
}

void tshi_cpu_elementwise_binary(tsh_device *device, tsh_dtype dtype, tshi_binary f, const tshi_broadcast *o,
                                 const void *x, const void *y, void *z) {
    const elementwise c = {ELEMENTWISE, .f = (int)f, .o = o, .x = x, .y = y, .z = z};
    broadcast_parallel(device, binary_range, &c);
}

static void mask_range(const void *call, int range, int64_t from, int64_t end) {
    const elementwise *c = call;
    int64_t offset[3];
    const tshi_broadcast part = broadcast_part(c->o, from, end, offset);
    c->ops->mask(NULL, &part, at(c->x, offset[0], c->size), c->mask + offset[1], c->kept, c->a, c->beta,
                 into(c->z, offset[2], c->size));
}

void tshi_cpu_elementwise_mask(tsh_device *device, tsh_dtype dtype, const tshi_broadcast *o, const void *x,
                               const uint8_t *mask, bool kept, double value, double beta, void *z) {
    const elementwise c = {ELEMENTWISE, .o = o, .x = x, .mask = mask, .kept = kept, .a = value, .beta = beta, .z = z};
    broadcast_parallel(device, mask_range, &c);
}

static void bias_range(const void *call, int range, int64_t from, int64_t end) {
    const elementwise *c = call;
    c->ops->bias(NULL, end - from, c->cols, at(c->x, from * c->cols, c->size), c->y,
                 into(c->z, from * c->cols, c->size));
}

void tshi_cpu_elementwise_bias(tsh_device *device, tsh_dtype dtype, int64_t rows, int64_t cols, const void *x,
                               const void *b, void *y) {
    const elementwise c = {ELEMENTWISE, .cols = cols, .x = x, .y = b, .z = y};
    tshi_parallel(device, rows, 1, (double)cols, bias_range, &c);
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

typedef struct sums {
    const tshi_isa_sum *ops;
    size_t size;
    int64_t outer, n, inner;
    double scale; /* of a cumulative sum: beta */
    bool add, reverse;
    const void *x;
    void *y;
} sums;

#define SUMS_OF .ops = &isa_of(device)->sum[dtype], .size = tsh_dtype_size(dtype)

static void over_dim_range(const void *call, int range, int64_t from, int64_t end) {
    const sums *c = call;
    c->ops->over_dim(NULL, end - from, c->n, c->inner, c->scale, at(c->x, from * c->n * c->inner, c->size),
                     into(c->y, from * c->inner, c->size));
}

static void columns_range(const void *call, int range, int64_t from, int64_t end) {
    const sums *c = call;
    for (int64_t o = 0; o < c->outer; o++) {
        c->ops->columns(c->n, c->inner, from, end, c->scale, at(c->x, o * c->n * c->inner, c->size), c->add,
                        into(c->y, o * c->inner, c->size));
    }
}

void tshi_cpu_sum_over_dim(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, double scale,
                           const void *x, void *y) {
    const sums c = {SUMS_OF, .outer = outer, .n = n, .inner = inner, .scale = scale, .x = x, .y = y};
    if (inner == 1 || outer >= device->threads)
        tshi_parallel(device, outer, 1, (double)n * (double)inner, over_dim_range, &c);
    else
        tshi_parallel(device, inner, COLUMNS, (double)outer * (double)n, columns_range, &c);
}

static void over_dim_backward_range(const void *call, int range, int64_t from, int64_t end) {
    const sums *c = call;
    c->ops->over_dim_backward(NULL, end - from, c->n, c->inner, c->scale, at(c->x, from * c->inner, c->size),
                              into(c->y, from * c->n * c->inner, c->size));
}

/* Rows [from, end) of each of the few outer parts. */
static void few_backward_range(const void *call, int range, int64_t from, int64_t end) {
    const sums *c = call;
    for (int64_t o = 0; o < c->outer; o++) {
        c->ops->over_dim_backward(NULL, 1, end - from, c->inner, c->scale, at(c->x, o * c->inner, c->size),
                                  into(c->y, (o * c->n + from) * c->inner, c->size));
    }
}

void tshi_cpu_sum_over_dim_backward(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                                    double scale, const void *dy, void *dx) {
    const sums c = {SUMS_OF, .outer = outer, .n = n, .inner = inner, .scale = scale, .x = dy, .y = dx};
    if (outer >= device->threads)
        tshi_parallel(device, outer, 1, (double)n * (double)inner, over_dim_backward_range, &c);
    else
        tshi_parallel(device, n, inner == 1 ? STEP : 1, (double)outer * (double)inner, few_backward_range, &c);
}

static void cumulative_range(const void *call, int range, int64_t from, int64_t end) {
    const sums *c = call;
    for (int64_t o = from; o < end; o++) {
        int64_t first = o * c->n * c->inner;
        c->ops->cumulative(c->reverse, c->n, c->inner, 0, c->inner, at(c->x, first, c->size), c->scale,
                           into(c->y, first, c->size));
    }
}

static void cumulative_columns_range(const void *call, int range, int64_t from, int64_t end) {
    const sums *c = call;
    for (int64_t o = 0; o < c->outer; o++) {
        int64_t first = o * c->n * c->inner;
        c->ops->cumulative(c->reverse, c->n, c->inner, from, end, at(c->x, first, c->size), c->scale,
                           into(c->y, first, c->size));
    }
}

void tshi_cpu_sum_cumulative(tsh_device *device, tsh_dtype dtype, bool reverse, int64_t outer, int64_t n, int64_t inner,
                             const void *x, double beta, void *y) {
    const sums c = {SUMS_OF, .outer = outer, .n = n, .inner = inner, .scale = beta, .reverse = reverse, .x = x, .y = y};
    if (inner == 1 || outer >= device->threads)
        tshi_parallel(device, outer, 1, (double)n * (double)inner, cumulative_range, &c);
    else
        tshi_parallel(device, inner, COLUMNS, (double)outer * (double)n, cumulative_columns_range, &c);
}

void tshi_cpu_sum_bias_backward(tsh_device *device, tsh_dtype dtype, int64_t rows, int64_t cols, const void *dy,
                                void *db) {
    const sums c = {SUMS_OF, .outer = 1, .n = rows, .inner = cols, .scale = 1, .add = true, .x = dy, .y = db};
    tshi_parallel(device, cols, COLUMNS, (double)rows, columns_range, &c);
}

static void columns_wide_range(const void *call, int range, int64_t from, int64_t end) {
    const sums *c = call;
    c->ops->columns_wide(c->n, c->inner, from, end, c->x, c->y);
}

void tshi_cpu_sum_bias_backward_wide(tsh_device *device, tsh_dtype dtype, int64_t rows, int64_t cols, const void *dy,
                                     void *db) {
    const sums c = {SUMS_OF, .n = rows, .inner = cols, .x = dy, .y = db};
    tshi_parallel(device, cols, COLUMNS, (double)rows, columns_wide_range, &c);
}

/* Squares are summed in blocks of BLOCK elements, MAX_BLOCKS of them at a time. */
enum { BLOCK = 1 << 16, MAX_BLOCKS = 256 };

static void squares_range(const void *call, int range, int64_t from, int64_t end) {
    const sums *c = call;
    double *of_block = c->y;
    for (int64_t i = from; i < end; i++) {
        int64_t first = i * BLOCK, count = c->n - first < BLOCK ? c->n - first : BLOCK;
        of_block[i] = 0;
        c->ops->squares(NULL, count, at(c->x, first, c->size), &of_block[i]);
    }
}

void tshi_cpu_sum_squares(tsh_device *device, tsh_dtype dtype, int64_t n, const void *x, double *sum) {
    const size_t size = tsh_dtype_size(dtype);
    double of_block[MAX_BLOCKS];
    for (int64_t first = 0; first < n; first += (int64_t)BLOCK * MAX_BLOCKS) {
        const sums c = {SUMS_OF, .n = n - first, .x = at(x, first, size), .y = of_block};
        int64_t blocks = (n - first + BLOCK - 1) / BLOCK;
        if (blocks > MAX_BLOCKS) blocks = MAX_BLOCKS;
        tshi_parallel(device, blocks, 1, BLOCK, squares_range, &c);
        for (int64_t i = 0; i < blocks; i++) *sum += of_block[i];
    }
}

/* --- softmax ------------------------------------------------------------------------------------------------------ */

/* s, t: statistics that are read. */
typedef struct softmax {
    const tshi_softmax_ops *ops;
    size_t size, sum_size;
    bool log;
    int64_t n, inner;
    const void *x, *y, *s, *t;
    void *to;
} softmax;

#define SOFTMAX                                                                                                        \
    .ops = &isa_of(device)->softmax[dtype], .size = tsh_dtype_size(dtype), .sum_size = sum_size(dtype), .n = n,        \
    .inner = inner

static void softmax_parallel(const tsh_device *device, int64_t outer, tshi_range_fn *work, const softmax *c) {
    tshi_parallel(device, outer, 1, COST_EXP * (double)c->n * (double)c->inner, work, c);
}

/* Offsets of a range's elements and statistics, in bytes. */
static size_t element_offset(const softmax *c, int64_t from) {
    return (size_t)(from * c->n * c->inner) * c->size;
}

static size_t statistic_offset(const softmax *c, int64_t from) {
    return (size_t)(from * c->inner) * c->sum_size;
}

static void max_range(const void *call, int range, int64_t from, int64_t end) {
    const softmax *c = call;
    c->ops->max(NULL, end - from, c->n, c->inner, (const char *)c->x + element_offset(c, from),
                (char *)c->to + statistic_offset(c, from));
}

void tshi_cpu_softmax_max(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, const void *x,
                          void *max) {
    const softmax c = {SOFTMAX, .x = x, .to = max};
    softmax_parallel(device, outer, max_range, &c);
}

static void sum_range(const void *call, int range, int64_t from, int64_t end) {
    const softmax *c = call;
    const size_t s = statistic_offset(c, from);
    c->ops->sum(NULL, end - from, c->n, c->inner, (const char *)c->x + element_offset(c, from), (const char *)c->s + s,
                (char *)c->to + s);
}

void tshi_cpu_softmax_sum(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, const void *x,
                          const void *max, void *sum) {
    const softmax c = {SOFTMAX, .x = x, .s = max, .to = sum};
    softmax_parallel(device, outer, sum_range, &c);
}

static void forward_range(const void *call, int range, int64_t from, int64_t end) {
    const softmax *c = call;
    const size_t e = element_offset(c, from), s = statistic_offset(c, from);
    c->ops->forward(NULL, c->log, end - from, c->n, c->inner, (const char *)c->x + e, (const char *)c->s + s,
                    (const char *)c->t + s, (char *)c->to + e);
}

void tshi_cpu_softmax_forward(tsh_device *device, tsh_dtype dtype, bool log, int64_t outer, int64_t n, int64_t inner,
                              const void *x, const void *max, const void *sum, void *y) {
    const softmax c = {SOFTMAX, .log = log, .x = x, .s = max, .t = sum, .to = y};
    softmax_parallel(device, outer, forward_range, &c);
}

static void dot_range(const void *call, int range, int64_t from, int64_t end) {
    const softmax *c = call;
    const size_t e = element_offset(c, from);
    c->ops->dot(NULL, c->log, end - from, c->n, c->inner, (const char *)c->x + e, (const char *)c->y + e,
                (char *)c->to + statistic_offset(c, from));
}

void tshi_cpu_softmax_dot(tsh_device *device, tsh_dtype dtype, bool log, int64_t outer, int64_t n, int64_t inner,
                          const void *y, const void *dy, void *dot) {
    const softmax c = {SOFTMAX, .log = log, .x = y, .y = dy, .to = dot};
    softmax_parallel(device, outer, dot_range, &c);
}

static void backward_range(const void *call, int range, int64_t from, int64_t end) {
    const softmax *c = call;
    const size_t e = element_offset(c, from);
    c->ops->backward(NULL, c->log, end - from, c->n, c->inner, (const char *)c->x + e, (const char *)c->y + e,
                     (const char *)c->s + statistic_offset(c, from), (char *)c->to + e);
}

void tshi_cpu_softmax_backward(tsh_device *device, tsh_dtype dtype, bool log, int64_t outer, int64_t n, int64_t inner,
                               const void *y, const void *dy, const void *dot, void *dx) {
    const softmax c = {SOFTMAX, .log = log, .x = y, .y = dy, .s = dot, .to = dx};
    softmax_parallel(device, outer, backward_range, &c);
}
