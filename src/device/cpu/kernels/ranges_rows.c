/* Losses, norms, embeddings, attention, random numbers, optimizers and conversions in ranges. */
#include "device/cpu/kernels/ranges.h"

/* --- cross entropy ------------------------------------------------------------------------------------------------ */

typedef struct cross_entropy {
    const tshi_cross_entropy_ops *ops;
    size_t size, sum_size;
    const tshi_classes *classes;
    const void *logits;
    const int64_t *target;
    const void *dloss, *divisor;
    int64_t dloss_stride;
    double beta;
    const void *max, *sums; /* backward reads them; forward writes the next two */
    void *to_max, *to_sums, *dlogits;
} cross_entropy;

#define CROSS_ENTROPY                                                                                                  \
    .ops = &isa_of(device)->cross_entropy[dtype], .size = tsh_dtype_size(dtype), .sum_size = sum_size(dtype),          \
    .classes = c, .logits = logits, .target = target

static tshi_classes classes_part(const cross_entropy *c, int64_t from, int64_t end) {
    tshi_classes part = *c->classes;
    part.rows = end - from;
    part.max = at(part.max, from, c->sum_size);
    return part;
}

static void sums_range(const void *call, int range, int64_t from, int64_t end) {
    const cross_entropy *c = call;
    const tshi_classes part = classes_part(c, from, end);
    c->ops->sums(NULL, &part, at(c->logits, from * part.n, c->size), c->target + from,
                 into(c->to_max, from, c->sum_size), into(c->to_sums, 4 * from, c->sum_size));
}

void tshi_cpu_cross_entropy_sums(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const void *logits,
                                 const int64_t *target, void *max, void *sums) {
    const cross_entropy call = {CROSS_ENTROPY, .to_max = max, .to_sums = sums};
    tshi_parallel(device, c->rows, 1, COST_EXP * (double)c->n, sums_range, &call);
}

static void entropy_backward_range(const void *call, int range, int64_t from, int64_t end) {
    const cross_entropy *c = call;
    const tshi_classes part = classes_part(c, from, end);
    c->ops->backward(NULL, &part, at(c->logits, from * part.n, c->size), c->target + from,
                     at(c->max, from, c->sum_size), at(c->sums, 4 * from, c->sum_size),
                     at(c->dloss, from * c->dloss_stride, c->sum_size), c->dloss_stride, c->divisor, c->beta,
                     into(c->dlogits, from * part.n, c->size));
}

void tshi_cpu_cross_entropy_backward(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const void *logits,
                                     const int64_t *target, const void *max, const void *sums, const void *dloss,
                                     int64_t dloss_stride, const void *divisor, double beta, void *dlogits) {
    const cross_entropy call = {
        CROSS_ENTROPY,      .max = max,   .sums = sums,      .dloss = dloss, .dloss_stride = dloss_stride,
        .divisor = divisor, .beta = beta, .dlogits = dlogits};
    tshi_parallel(device, c->rows, 1, COST_EXP * (double)c->n, entropy_backward_range, &call);
}

/* --- losses of elements ------------------------------------------------------------------------------------------- */

typedef struct losses {
    const tshi_loss_ops *ops;
    size_t size, sum_size;
    const tshi_loss_inputs *in;
    bool of_target;
    const void *dloss;
    int64_t stride;
    double scale, beta;
    void *to;
} losses;

#define LOSS .ops = &isa_of(device)->loss[dtype], .size = tsh_dtype_size(dtype), .sum_size = sum_size(dtype), .in = in

/* A range begins with the first weight. */
static int64_t loss_step(const tshi_loss_inputs *in) {
    return in->weight ? STEP * in->weights : STEP;
}

static tshi_loss_inputs loss_part(const losses *c, int64_t from, int64_t end) {
    tshi_loss_inputs part = *c->in;
    part.n = end - from;
    part.x = at(part.x, from, c->size);
    part.target = at(part.target, from, c->size);
    return part;
}

static void loss_forward_range(const void *call, int range, int64_t from, int64_t end) {
    const losses *c = call;
    const tshi_loss_inputs part = loss_part(c, from, end);
    c->ops->forward(NULL, &part, into(c->to, from, c->sum_size));
}

void tshi_cpu_loss_forward(tsh_device *device, tsh_dtype dtype, const tshi_loss_inputs *in, void *loss) {
    const losses c = {LOSS, .to = loss};
    tshi_parallel(device, in->n, loss_step(in), COST_EXP, loss_forward_range, &c);
}

static void loss_backward_range(const void *call, int range, int64_t from, int64_t end) {
    const losses *c = call;
    const tshi_loss_inputs part = loss_part(c, from, end);
    c->ops->backward(NULL, &part, c->of_target, at(c->dloss, from * c->stride, c->sum_size), c->stride, c->scale,
                     c->beta, into(c->to, from, c->size));
}

void tshi_cpu_loss_backward(tsh_device *device, tsh_dtype dtype, const tshi_loss_inputs *in, bool of_target,
                            const void *dloss, int64_t stride, double scale, double beta, void *to) {
    const losses c = {LOSS,           .of_target = of_target, .dloss = dloss, .stride = stride,
                      .scale = scale, .beta = beta,           .to = to};
    tshi_parallel(device, in->n, loss_step(in), COST_EXP, loss_backward_range, &c);
}

/* --- norms -------------------------------------------------------------------------------------------------------- */

typedef struct norm {
    const tshi_isa_norm *ops;
    size_t size, sum_size;
    bool rms;
    int64_t rows, cols;
    double eps, add;
    const void *x, *gamma, *beta, *dy;
    const void *mean, *rstd;   /* of backward */
    void *y, *means, *rstds;   /* of forward */
    void *dx, *dgamma, *dbeta; /* of backward */
} norm;

#define NORM                                                                                                           \
    .ops = &isa_of(device)->norm[dtype], .size = tsh_dtype_size(dtype), .sum_size = sum_size(dtype), .rms = rms,       \
    .rows = rows, .cols = cols, .x = x, .gamma = gamma

static void norm_range(const void *call, int range, int64_t from, int64_t end) {
    const norm *c = call;
    c->ops->forward(NULL, c->rms, end - from, c->cols, c->eps, at(c->x, from * c->cols, c->size), c->gamma, c->beta,
                    into(c->y, from * c->cols, c->size), into(c->means, from, c->sum_size),
                    into(c->rstds, from, c->sum_size));
}

void tshi_cpu_norm_forward(tsh_device *device, tsh_dtype dtype, bool rms, int64_t rows, int64_t cols, double eps,
                           const void *x, const void *gamma, const void *beta, void *y, void *mean, void *rstd) {
    const norm c = {NORM, .eps = eps, .beta = beta, .y = y, .means = mean, .rstds = rstd};
    tshi_parallel(device, rows, 1, 2 * (double)cols, norm_range, &c);
}

static void norm_backward_range(const void *call, int range, int64_t from, int64_t end) {
    const norm *c = call;
    c->ops->backward(NULL, c->rms, end - from, c->cols, at(c->x, from * c->cols, c->size), c->gamma,
                     at(c->mean, from, c->sum_size), at(c->rstd, from, c->sum_size), at(c->dy, from * c->cols, c->size),
                     c->add, into(c->dx, from * c->cols, c->size), NULL, NULL);
}

static void parameters_range(const void *call, int range, int64_t from, int64_t end) {
    const norm *c = call;
    c->ops->parameters(c->rms, c->rows, c->cols, from, end, c->x, c->mean, c->rstd, c->dy, c->dgamma, c->dbeta);
}

/* dx by rows, then the gradients of the parameters by columns; without threads, both while a row is in the cache. */
void tshi_cpu_norm_backward(tsh_device *device, tsh_dtype dtype, bool rms, int64_t rows, int64_t cols, const void *x,
                            const void *gamma, const void *mean, const void *rstd, const void *dy, double beta,
                            void *dx, void *dgamma, void *dbeta) {
    const norm c = {NORM,        .dy = dy, .mean = mean,     .rstd = rstd,
                    .add = beta, .dx = dx, .dgamma = dgamma, .dbeta = dbeta};
    const double cost = 2 * (double)cols;
    if (tshi_ranges(device, rows, 1, cost) == 1) {
        c.ops->backward(NULL, rms, rows, cols, x, gamma, mean, rstd, dy, beta, dx, dgamma, dbeta);
        return;
    }
    if (dx) tshi_parallel(device, rows, 1, cost, norm_backward_range, &c);
    if (dgamma || dbeta) tshi_parallel(device, cols, COLUMNS, 2 * (double)rows, parameters_range, &c);
}

/* --- embedding ---------------------------------------------------------------------------------------------------- */

typedef struct embedding {
    const tshi_isa_embedding *ops;
    size_t size;
    int64_t n, start, rows, cols, padding;
    const int64_t *ids;
    const void *table, *dy;
    void *y, *dtable;
} embedding;

#define EMBEDDING                                                                                                      \
    .ops = &isa_of(device)->embedding[dtype], .size = tsh_dtype_size(dtype), .n = n, .start = start, .rows = rows,     \
    .cols = cols, .ids = ids

static void embedding_range(const void *call, int range, int64_t from, int64_t end) {
    const embedding *c = call;
    c->ops->forward(NULL, end - from, c->ids + from, c->start, c->rows, c->cols, c->table,
                    into(c->y, from * c->cols, c->size));
}

void tshi_cpu_embedding_forward(tsh_device *device, tsh_dtype dtype, int64_t n, const int64_t *ids, int64_t start,
                                int64_t rows, int64_t cols, const void *table, void *y) {
    const embedding c = {EMBEDDING, .table = table, .y = y};
    tshi_parallel(device, n, 1, (double)cols, embedding_range, &c);
}

static void embedding_backward_range(const void *call, int range, int64_t from, int64_t end) {
    const embedding *c = call;
    const tshi_embedding_part part = {c->start, c->rows, c->cols, c->padding, from, end};
    c->ops->backward(&part, c->n, c->ids, c->dy, c->dtable);
}

void tshi_cpu_embedding_backward(tsh_device *device, tsh_dtype dtype, int64_t n, const int64_t *ids, int64_t start,
                                 int64_t rows, int64_t cols, int64_t padding, const void *dy, void *dtable) {
    const embedding c = {EMBEDDING, .padding = padding, .dy = dy, .dtable = dtable};
    tshi_parallel(device, cols, COLUMNS, (double)n, embedding_backward_range, &c);
}

/* --- rotary positions and attention ------------------------------------------------------------------------------- */

typedef struct rotation {
    const tshi_isa_attention *ops;
    size_t size;
    const tshi_rotary *r;
    bool back;
    double beta;
    const void *x;
    void *y;
} rotation;

/* Units are batches, or the tokens of one batch. */
static void rotary_range(const void *call, int range, int64_t from, int64_t end) {
    const rotation *c = call;
    tshi_rotary part = *c->r;
    const bool tokens = part.batch == 1;
    int64_t first = tokens ? from : from * part.tokens, each = part.heads * part.dim;
    if (tokens || part.batched) part.positions += first;
    *(tokens ? &part.tokens : &part.batch) = end - from;
    c->ops->rotary(NULL, &part, c->back, at(c->x, first * each, c->size), c->beta, into(c->y, first * each, c->size));
}

void tshi_cpu_attention_rotary(tsh_device *device, tsh_dtype dtype, const tshi_rotary *r, bool back, const void *x,
                               double beta, void *y) {
    const rotation c = {&isa_of(device)->attention[dtype], tsh_dtype_size(dtype), r, back, beta, x, y};
    double cost = 2 * (double)(r->heads * r->dim);
    if (r->batch == 1)
        tshi_parallel(device, r->tokens, 1, cost, rotary_range, &c);
    else
        tshi_parallel(device, r->batch, 1, cost * (double)r->tokens, rotary_range, &c);
}

typedef struct attention {
    const tshi_isa_attention *ops;
    const tshi_attention *a;
    const void *q, *k, *v;
    void *y, *log_sums;                /* of forward */
    const void *out, *saved, *dy;      /* of backward */
    const tshi_attention_grads *grads; /* of backward */
    char *scratch;
    size_t scratch_bytes; /* of a range */
} attention;

/* Eight multiplications and additions of a part cost as much as an element that is read and written. */
static double attention_cost(const tshi_attention *a) {
    double heads = (double)a->heads / (double)(a->kv_heads > 0 ? a->kv_heads : 1);
    return heads * (double)a->queries * (double)a->keys * (double)a->dim / 8;
}

int64_t tshi_cpu_attention_scratch(tsh_device *device, const tshi_attention *a, bool backward) {
    int ranges = tshi_ranges(device, a->batch * a->kv_heads, 1, attention_cost(a));
    return ranges * isa_of(device)->attention[TSH_FLOAT32].scratch(a, backward);
}

/* Sets what forward and backward have in common. */
static void attention_begin(attention *c, const tsh_device *device, tsh_dtype dtype, const tshi_attention *a,
                            const void *q, const void *k, const void *v, bool backward, void *scratch) {
    c->ops = &isa_of(device)->attention[dtype];
    c->a = a;
    c->q = q;
    c->k = k;
    c->v = v;
    c->scratch = scratch;
    c->scratch_bytes = (size_t)c->ops->scratch(a, backward) * sum_size(dtype);
}

static void attention_range(const void *call, int range, int64_t from, int64_t end) {
    const attention *c = call;
    c->ops->forward(c->a, from, end, c->q, c->k, c->v, c->y, c->log_sums,
                    c->scratch + (size_t)range * c->scratch_bytes);
}

void tshi_cpu_attention_forward(tsh_device *device, tsh_dtype dtype, const tshi_attention *a, const void *q,
                                const void *k, const void *v, void *y, void *log_sums, void *scratch) {
    attention c = {.y = y, .log_sums = log_sums};
    attention_begin(&c, device, dtype, a, q, k, v, false, scratch);
    tshi_parallel(device, a->batch * a->kv_heads, 1, attention_cost(a), attention_range, &c);
}

static void attention_backward_range(const void *call, int range, int64_t from, int64_t end) {
    const attention *c = call;
    c->ops->backward(c->a, from, end, c->q, c->k, c->v, c->out, c->saved, c->dy, c->grads,
                     c->scratch + (size_t)range * c->scratch_bytes);
}

void tshi_cpu_attention_backward(tsh_device *device, tsh_dtype dtype, const tshi_attention *a, const void *q,
                                 const void *k, const void *v, const void *y, const void *log_sums, const void *dy,
                                 const tshi_attention_grads *grads, void *scratch) {
    attention c = {.out = y, .saved = log_sums, .dy = dy, .grads = grads};
    attention_begin(&c, device, dtype, a, q, k, v, true, scratch);
    tshi_parallel(device, a->batch * a->kv_heads, 1, attention_cost(a), attention_backward_range, &c);
}

/* --- random numbers ----------------------------------------------------------------------------------------------- */

typedef struct randoms {
    const tshi_random_ops *ops;
    tshi_uniform_fn *draw; /* uniform or normal, which have one type */
    size_t size;
    const tshi_block *block;
    uint64_t seed, stream;
    double a, b;
    const void *x;
    void *to;
} randoms;

#define RANDOM                                                                                                         \
    .ops = &isa_of(device)->random[dtype], .size = tsh_dtype_size(dtype), .block = block, .seed = seed, .stream = stream

/* Units are outer parts, or the n of one. */
static void random_parallel(const tsh_device *device, tshi_range_fn *work, const randoms *c) {
    const tshi_block *b = c->block;
    double each = COST_EXP * (double)b->inner;
    if (b->outer == 1)
        tshi_parallel(device, b->n, 1, each, work, c);
    else
        tshi_parallel(device, b->outer, 1, each * (double)b->n, work, c);
}

/* The offset of the part in elements. */
static int64_t block_part(tshi_block *b, int64_t from, int64_t end) {
    int64_t offset = from * b->inner;
    if (b->outer == 1) {
        b->start += from;
        b->n = end - from;
        return offset;
    }
    b->outer_start += from;
    b->outer = end - from;
    return offset * b->n;
}

static void dropout_range(const void *call, int range, int64_t from, int64_t end) {
    const randoms *c = call;
    tshi_block part = *c->block;
    int64_t offset = block_part(&part, from, end);
    c->ops->dropout(NULL, &part, c->seed, c->stream, c->a, at(c->x, offset, c->size), c->b,
                    into(c->to, offset, c->size));
}

void tshi_cpu_random_dropout(tsh_device *device, tsh_dtype dtype, const tshi_block *block, uint64_t seed,
                             uint64_t stream, double p, const void *x, double beta, void *y) {
    const randoms c = {RANDOM, .a = p, .b = beta, .x = x, .to = y};
    random_parallel(device, dropout_range, &c);
}

static void draw_range(const void *call, int range, int64_t from, int64_t end) {
    const randoms *c = call;
    tshi_block part = *c->block;
    int64_t offset = block_part(&part, from, end);
    c->draw(NULL, &part, c->seed, c->stream, c->a, c->b, into(c->to, offset, c->size));
}

void tshi_cpu_random_uniform(tsh_device *device, tsh_dtype dtype, const tshi_block *block, uint64_t seed,
                             uint64_t stream, double low, double high, void *to) {
    const randoms c = {RANDOM, .draw = isa_of(device)->random[dtype].uniform, .a = low, .b = high, .to = to};
    random_parallel(device, draw_range, &c);
}

void tshi_cpu_random_normal(tsh_device *device, tsh_dtype dtype, const tshi_block *block, uint64_t seed,
                            uint64_t stream, double mean, double std, void *to) {
    const randoms c = {RANDOM, .draw = isa_of(device)->random[dtype].normal, .a = mean, .b = std, .to = to};
    random_parallel(device, draw_range, &c);
}

/* --- optimizers --------------------------------------------------------------------------------------------------- */

typedef struct optimizer {
    const tshi_optimizer_ops *ops;
    size_t size, sum_size;
    const tshi_sgd *sgd; /* one of the three */
    const tshi_adamw *adamw;
    const tshi_lion *lion;
    int count;
    const tshi_update *updates;
    const double *squares; /* the next four: of clip */
    double scale, max_norm;
    void *x;
} optimizer;

#define OPTIMIZER .ops = &isa_of(device)->optimizer[dtype], .size = tsh_dtype_size(dtype), .sum_size = sum_size(dtype)
#define UPDATES   .count = count, .updates = updates

/* Steps elements [from, end) of an update. With `rounding`, they lie in one run, or begin with one. */
static void step_part(const optimizer *c, const tshi_update *u, int64_t from, int64_t end) {
    tshi_update part = *u;
    tshi_rounding rounding;
    part.n = end - from;
    part.grad = at(u->grad, from, u->wide_grad ? c->sum_size : c->size);
    for (int i = 0; i < 2; i++) part.state[i] = into(u->state[i], from, c->sum_size);
    part.p = into(u->p, from, c->size);
    part.master = into(u->master, from, c->sum_size);
    if (u->rounding) {
        rounding = *u->rounding;
        rounding.first += from / rounding.run * rounding.stride + from % rounding.run;
        part.rounding = &rounding;
    }
    if (c->sgd) c->ops->sgd(NULL, c->sgd, 1, &part);
    if (c->adamw) c->ops->adamw(NULL, c->adamw, 1, &part);
    if (c->lion) c->ops->lion(NULL, c->lion, 1, &part);
}

/* Units are the steps of all updates, one after another; an update's last step may be short. */
static int64_t steps_of(const tshi_update *u) {
    return (u->n + STEP - 1) / STEP;
}

static void step_range(const void *call, int range, int64_t from, int64_t end) {
    const optimizer *c = call;
    int64_t first = 0;
    for (int i = 0; i < c->count; first += steps_of(&c->updates[i++])) {
        const tshi_update *u = &c->updates[i];
        int64_t begin = (from > first ? from - first : 0) * STEP, stop = (end - first) * STEP;
        if (stop > u->n) stop = u->n;
        while (begin < stop) {
            int64_t left = u->rounding ? u->rounding->run - begin % u->rounding->run : stop;
            int64_t next = u->rounding && begin % u->rounding->run != 0 && left < stop - begin ? begin + left : stop;
            step_part(c, u, begin, next);
            begin = next;
        }
    }
}

static void optimizer_parallel(const tsh_device *device, const optimizer *c) {
    int64_t steps = 0;
    for (int i = 0; i < c->count; i++) steps += steps_of(&c->updates[i]);
    tshi_parallel(device, steps, 1, 4 * STEP, step_range, c);
}

void tshi_cpu_optimizer_sgd(tsh_device *device, tsh_dtype dtype, const tshi_sgd *s, int count,
                            const tshi_update *updates) {
    const optimizer c = {OPTIMIZER, UPDATES, .sgd = s};
    optimizer_parallel(device, &c);
}

void tshi_cpu_optimizer_adamw(tsh_device *device, tsh_dtype dtype, const tshi_adamw *a, int count,
                              const tshi_update *updates) {
    const optimizer c = {OPTIMIZER, UPDATES, .adamw = a};
    optimizer_parallel(device, &c);
}

void tshi_cpu_optimizer_lion(tsh_device *device, tsh_dtype dtype, const tshi_lion *l, int count,
                             const tshi_update *updates) {
    const optimizer c = {OPTIMIZER, UPDATES, .lion = l};
    optimizer_parallel(device, &c);
}

static void clip_range(const void *call, int range, int64_t from, int64_t end) {
    const optimizer *c = call;
    c->ops->clip(NULL, end - from, c->squares, c->scale, c->max_norm, into(c->x, from, c->size));
}

void tshi_cpu_optimizer_clip(tsh_device *device, tsh_dtype dtype, int64_t n, const double *squares, double scale,
                             double max_norm, void *x) {
    const optimizer c = {OPTIMIZER, .squares = squares, .scale = scale, .max_norm = max_norm, .x = x};
    tshi_parallel(device, n, STEP, 1, clip_range, &c);
}

/* --- all dtypes --------------------------------------------------------------------------------------------------- */

typedef struct conversion {
    const tshi_isa *isa;
    tsh_dtype from_dtype, to_dtype;
    const void *from;
    void *to;
} conversion;

static void convert_range(const void *call, int range, int64_t from, int64_t end) {
    const conversion *c = call;
    c->isa->convert(NULL, end - from, c->from_dtype, at(c->from, from, tsh_dtype_size(c->from_dtype)), c->to_dtype,
                    into(c->to, from, tsh_dtype_size(c->to_dtype)));
}

void tshi_cpu_convert_all(tsh_device *device, int64_t n, tsh_dtype from_dtype, const void *from, tsh_dtype to_dtype,
                          void *to) {
    const conversion c = {isa_of(device), from_dtype, to_dtype, from, to};
    tshi_parallel(device, n, STEP, 1, convert_range, &c);
}

typedef struct top {
    const tshi_top_ops *ops;
    tsh_dtype dtype;
    int64_t n, inner, kept, start;
    const void *x;
    tshi_candidate *top;
} top;

static void top_range(const void *call, int range, int64_t from, int64_t end) {
    const top *c = call;
    c->ops->find(NULL, c->dtype, end - from, c->n, c->inner, c->kept, c->start,
                 at(c->x, from * c->n * c->inner, tsh_dtype_size(c->dtype)), c->top + from * c->kept * c->inner);
}

void tshi_cpu_top_find(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, int64_t kept,
                       int64_t start, const void *x, tshi_candidate *candidates) {
    const top c = {isa_of(device)->top, dtype, n, inner, kept, start, x, candidates};
    tshi_parallel(device, outer, 1, COST_EXP * (double)n * (double)inner, top_range, &c);
}
