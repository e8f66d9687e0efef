/* The gated MLPs of experts, each on the tokens that chose it: the tokens' rows are gathered in the order of the
 * experts, multiplied expert by expert, and scattered back. */
#include "autograd/run/cast.h"
#include "device/record.h"
#include "functional/functional.h"

#include <string.h>

enum { EXPERT_X, EXPERT_WEIGHTS, EXPERT_IDS, EXPERT_GATE, EXPERT_UP, EXPERT_DOWN, EXPERT_INPUTS };

/* In the rule before the last, each rank computes with its rows of the weights on all tokens, which gives its term of
 * the sum over experts and hidden features. */
static const tsh_rule expert_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_S0, TSH_AS_S0, TSH_AS_S0, TSH_AS_L, TSH_AS_L}, TSH_AS_S0},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_R, TSH_AS_S0, TSH_AS_S0}, TSH_AS_P},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};

typedef struct expert_params {
    int64_t experts;
} expert_params;

/* Consecutive rows of this rank's weights that belong to one expert, and the tokens of this expert. */
typedef struct expert_part {
    int64_t expert, row, features; /* `features` rows from `row` on */
    int64_t first, tokens;         /* in the order of the dispatch */
    int64_t hidden;                /* the first element of its hidden features, tokens x features */
} expert_part;

/* The tokens of this rank's experts, expert by expert. */
typedef struct dispatch {
    expert_part *parts;
    int64_t count;        /* of parts */
    int64_t rows, hidden; /* in all: tokens of parts, and elements of hidden features */
    int64_t most;         /* of hidden features of one part */
    tsh_tensor *tokens;   /* int64 [rows]: rows of x */
    tsh_tensor *slots;    /* int64 [rows]: elements of the routing weights */
} dispatch;

static tsh_status expert_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    tsh_tensor **in = call->in;
    int64_t count = ((const expert_params *)call->params)->experts;
    const tsh_shape *x = &in[EXPERT_X]->shape, *w = &in[EXPERT_WEIGHTS]->shape, *ids = &in[EXPERT_IDS]->shape;
    *dtype = in[EXPERT_X]->dtype;
    *out = *x;
    if (x->ndim != 2 || w->ndim != 2 || w->global[0] != x->global[0] || !tshi_shapes_equal(w, ids)) {
        return tshi_check_fails(in[EXPERT_X], in[EXPERT_IDS],
                                "x [tokens, embed], weights and experts [tokens, top_k] wanted");
    }
    if (ids->global[1] < 1 || in[EXPERT_IDS]->dtype != TSH_INT64)
        return tshi_fail(TSH_ERR_DTYPE, "experts are %s, int64 [tokens, top_k] wanted",
                         TSHI_TENSOR_TEXT(in[EXPERT_IDS]));
    for (int i = EXPERT_GATE; i < EXPERT_INPUTS; i++) {
        const tsh_shape *s = &in[i]->shape;
        bool fits = s->ndim == 2 && s->global[1] == x->global[1] && s->global[0] == in[EXPERT_GATE]->shape.global[0] &&
                    count >= 1 && s->global[0] % count == 0;
        if (!fits)
            return tshi_check_fails(in[EXPERT_X], in[i],
                                    "x [tokens, embed] and weights [experts hidden, embed] wanted");
    }
    for (int i = 0; i < EXPERT_INPUTS; i++) {
        if (i == EXPERT_IDS || in[i]->dtype == *dtype) continue;
        return tshi_check_fails(in[EXPERT_X], in[i], "the same dtype wanted");
    }
    return tshi_check_computes(in[EXPERT_X]->mesh->device, *dtype, "x");
}

/* --- the dispatch ------------------------------------------------------------------------------------------------- */

/* The parts of this rank's rows of the weights. */
static tsh_status find_parts(const tsh_call *call, dispatch *d) {
    const tsh_tensor *gate = call->in[EXPERT_GATE];
    int64_t features = gate->shape.global[0] / ((const expert_params *)call->params)->experts;
    int64_t start = tshi_shape_start(gate->mesh, &gate->shape, gate->layout, 0), rows = gate->shape.local[0];
    *d = (dispatch){.count = 0};
    size_t room = rows > 0 ? (size_t)((start + rows - 1) / features - start / features + 1) : 1;
    d->parts = tshi_region_take(&call->tape->memory, &tshi_device_of(gate)->allocator, room, sizeof *d->parts);
    if (!d->parts) return TSH_ERR_MEMORY;
    for (int64_t row = 0; row < rows;) {
        int64_t expert = (start + row) / features, end = (expert + 1) * features - start;
        if (end > rows) end = rows;
        d->parts[d->count++] = (expert_part){.expert = expert, .row = row, .features = end - row};
        row = end;
    }
    return TSH_OK;
}

/* The experts of this rank's tokens, in host memory. A dry run, which has no values, counts with balanced experts. */
static tsh_status read_experts(const tsh_call *call, const int64_t **out) {
    const tsh_tensor *ids = call->in[EXPERT_IDS];
    tsh_device *device = tshi_device_of(ids);
    int64_t experts = ((const expert_params *)call->params)->experts;
    int64_t *id = tshi_region_take(&call->tape->memory, &device->allocator, (size_t)ids->numel + 1, sizeof *id);
    *out = id;
    if (!id) return TSH_ERR_MEMORY;
    if (device->record && device->record->planned) {
        for (int64_t i = 0; i < ids->numel; i++) id[i] = i % experts;
        return TSH_OK;
    }
    device->ops->copy.to_host(device, (size_t)ids->numel * sizeof *id, tshi_data(ids), id);
    for (int64_t i = 0; i < ids->numel; i++) {
        if (id[i] >= 0 && id[i] < experts) continue;
        return tshi_fail(TSH_ERR_RANGE, "expert %lld at index %lld is outside [0, %lld)", (long long)id[i],
                         (long long)i, (long long)experts);
    }
    return TSH_OK;
}

/* Sets the sizes of the parts, which follow each other. */
static void count_tokens(const tsh_call *call, const int64_t *id, dispatch *d) {
    int64_t first = d->count ? d->parts[0].expert : 0;
    for (int64_t i = 0; i < call->in[EXPERT_IDS]->numel; i++) {
        int64_t part = id[i] - first;
        if (part >= 0 && part < d->count) d->parts[part].tokens++;
    }
    for (int64_t i = 0; i < d->count; i++) {
        expert_part *p = &d->parts[i];
        int64_t hidden = p->tokens * p->features;
        p->first = d->rows;
        p->hidden = d->hidden;
        d->rows += p->tokens;
        d->hidden += hidden;
        if (hidden > d->most) d->most = hidden;
        p->tokens = 0;
    }
}

/* Lists the tokens, and the elements of the routing weights, of each part; counts them again. */
static void list_tokens(const tsh_call *call, const int64_t *id, const dispatch *d, int64_t *token, int64_t *slot) {
    int64_t first = d->count ? d->parts[0].expert : 0, top_k = call->in[EXPERT_IDS]->shape.global[1];
    for (int64_t i = 0; i < call->in[EXPERT_IDS]->numel; i++) {
        int64_t part = id[i] - first;
        if (part < 0 || part >= d->count) continue;
        int64_t at = d->parts[part].first + d->parts[part].tokens++;
        token[at] = i / top_k;
        slot[at] = i;
    }
}

/* Forward and backward of a call make equal dispatches, since they read equal experts. */
static tsh_status make_dispatch(tsh_call *call, dispatch *d) {
    tsh_device *device = tshi_device_of(call->in[EXPERT_X]);
    const int64_t *id;
    tsh_status status = find_parts(call, d);
    if (status == TSH_OK) status = read_experts(call, &id);
    if (status != TSH_OK) return status;
    count_tokens(call, id, d);
    size_t bytes = (size_t)d->rows * sizeof *id;
    int64_t *list = tshi_region_take(&call->tape->memory, &device->allocator, 2 * (size_t)d->rows + 1, sizeof *list);
    d->tokens = tsh_call_scratch(call, TSH_INT64, d->rows);
    d->slots = d->tokens ? tsh_call_scratch(call, TSH_INT64, d->rows) : NULL;
    if (!list || !d->slots) return TSH_ERR_MEMORY;
    list_tokens(call, id, d, list, list + d->rows);
    device->ops->copy.from_host(device, bytes, list, tshi_data(d->tokens));
    device->ops->copy.from_host(device, bytes, list + d->rows, tshi_data(d->slots));
    return TSH_OK;
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* The memory of a call's products, of one dtype. */
typedef struct expert_run {
    tsh_device *device;
    tsh_dtype dtype;
    size_t size; /* of an element */
    int64_t embed;
    dispatch d;
    void *x, *dy;    /* [rows, embed], gathered */
    void *y;         /* [rows, embed]: outputs, or in backward the gradients of x */
    void *weights;   /* [rows], gathered */
    void *dweights;  /* [rows] */
    void *gate, *up; /* hidden features before the activation */
    void *room[4];   /* for the hidden features of one part */
} expert_run;

static void *expert_element(const expert_run *run, void *base, int64_t i) {
    return base ? (char *)base + (size_t)i * run->size : NULL;
}

/* c = op(a) op(b) + beta c, row-major and dense. */
static tsh_status multiply(const expert_run *run, bool transpose_b, int64_t m, int64_t n, int64_t k, const void *a,
                           const void *b, double beta, void *c) {
    if (m == 0 || n == 0) return TSH_OK;
    return run->device->ops->product.gemm(run->device, run->dtype, false, transpose_b, m, n, k, 1, a, k, b,
                                          transpose_b ? k : n, beta, c, n);
}

/* y[r, c] = w[r] x[r, c]; y may alias x. */
static void scale_rows(const expert_run *run, int64_t rows, int64_t cols, const void *x, const void *w, void *y) {
    const tshi_broadcast o = {2, {cols, rows}, {1, cols}, {0, 1}};
    if (rows > 0 && cols > 0) run->device->ops->elementwise[run->dtype].binary(run->device, TSHI_MUL, &o, x, w, y);
}

static tsh_status take_scratch(tsh_call *call, const expert_run *run, int64_t n, void **out) {
    const tsh_tensor *t = tsh_call_scratch(call, run->dtype, n);
    *out = tshi_data(t);
    return t ? TSH_OK : TSH_ERR_MEMORY;
}

/* Gathers rows of `from`, which has m of them. */
static tsh_status gather_rows(tsh_call *call, const expert_run *run, const tsh_tensor *index, const tsh_tensor *from,
                              int64_t m, int64_t cols, void **out) {
    tsh_status status = take_scratch(call, run, run->d.rows * cols, out);
    if (status == TSH_OK)
        run->device->ops->embedding[run->dtype].forward(run->device, run->d.rows, tshi_data(index), 0, m, cols,
                                                        tshi_data(from), *out);
    return status;
}

/* Adds rows to those of `to`, which has m of them. */
static void scatter_rows(const expert_run *run, const tsh_tensor *index, const void *rows, int64_t m, int64_t cols,
                         const tsh_tensor *to) {
    run->device->ops->embedding[run->dtype].backward(run->device, run->d.rows, tshi_data(index), 0, m, cols, -1, rows,
                                                     tshi_data(to));
}

/* What forward and backward have in common: the dispatch, the tokens' rows and their weights. */
static tsh_status begin_run(tsh_call *call, expert_run *run) {
    const tsh_tensor *x = call->in[EXPERT_X], *w = call->in[EXPERT_WEIGHTS];
    *run = (expert_run){
        .device = tshi_device_of(x), .dtype = x->dtype, .size = tsh_dtype_size(x->dtype), .embed = x->shape.global[1]};
    tsh_status status = make_dispatch(call, &run->d);
    if (status == TSH_OK) status = gather_rows(call, run, run->d.tokens, x, x->shape.local[0], run->embed, &run->x);
    if (status == TSH_OK) status = gather_rows(call, run, run->d.slots, w, w->numel, 1, &run->weights);
    if (status == TSH_OK) status = take_scratch(call, run, run->d.rows * run->embed, &run->y);
    return status;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

static tsh_status compute_part(const tsh_call *call, const expert_run *run, const expert_part *p) {
    int64_t m = p->tokens, f = p->features, d = run->embed;
    const tshi_elementwise_ops *ops = &run->device->ops->elementwise[run->dtype];
    void *x = expert_element(run, run->x, p->first * d), *a = run->room[0];
    void *gate = expert_element(run, run->gate, p->hidden), *up = expert_element(run, run->up, p->hidden);
    tsh_status status =
        multiply(run, true, m, f, d, x, expert_element(run, tshi_data(call->in[EXPERT_GATE]), p->row * d), 0, gate);
    if (status == TSH_OK)
        status =
            multiply(run, true, m, f, d, x, expert_element(run, tshi_data(call->in[EXPERT_UP]), p->row * d), 0, up);
    if (status != TSH_OK || m == 0) return status;
    ops->unary(run->device, TSHI_SILU, NULL, m * f, gate, a);
    ops->mul(run->device, m * f, a, up, 0, a);
    scale_rows(run, m, f, a, expert_element(run, run->weights, p->first), a);
    return multiply(run, false, m, d, f, a, expert_element(run, tshi_data(call->in[EXPERT_DOWN]), p->row * d), 0,
                    expert_element(run, run->y, p->first * d));
}

static tsh_status expert_forward(tsh_call *call) {
    const tsh_tensor *y = call->out;
    expert_run run;
    tsh_status status = begin_run(call, &run);
    if (status == TSH_OK) status = take_scratch(call, &run, run.d.most, &run.room[0]);
    if (status != TSH_OK) return status;
    int64_t hidden = 2 * run.d.hidden;
    const tsh_tensor *both =
        tshi_call_records(call) ? tsh_call_save(call, 0, run.dtype, hidden) : tsh_call_scratch(call, run.dtype, hidden);
    if (!both) return TSH_ERR_MEMORY;
    run.gate = tshi_data(both);
    run.up = expert_element(&run, run.gate, run.d.hidden);
    run.device->ops->copy.zero(run.device, tsh_tensor_local_nbytes(y), tshi_data(y));
    for (int64_t i = 0; i < run.d.count && status == TSH_OK; i++) status = compute_part(call, &run, &run.d.parts[i]);
    if (status == TSH_OK) scatter_rows(&run, run.d.tokens, run.y, y->shape.local[0], run.embed, y);
    return status;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* The gradients of the three weights, those that are wanted, and whether they hold a sum already. */
typedef struct expert_gradients {
    tsh_tensor *of[EXPERT_INPUTS];
    double beta[EXPERT_INPUTS];
} expert_gradients;

/* Rows of a weight's gradient: beta dW + left^T right, left [tokens, features], right [tokens, embed]. Without a token
 * they become zeros if beta is 0, and otherwise do not change. */
static tsh_status add_weight_gradient(const expert_run *run, const expert_gradients *g, int i, const expert_part *p,
                                      const void *left, const void *right) {
    const tsh_tensor *dw = g->of[i];
    if (!dw) return TSH_OK;
    size_t row = (size_t)run->embed * tsh_dtype_size(dw->dtype), bytes = (size_t)p->features * row;
    void *to = tshi_data(dw) ? (char *)tshi_data(dw) + (size_t)p->row * row : NULL;
    if (p->tokens == 0 && g->beta[i] == 0) run->device->ops->copy.zero(run->device, bytes, to);
    if (p->tokens == 0) return TSH_OK;
    return run->device->ops->product.affine_backward(run->device, run->dtype, p->tokens, p->features, run->embed, right,
                                                     left, dw->dtype, g->beta[i], to, 0, NULL);
}

/* With the part's output y = w a D, a = silu(G) U: the gradient of w, and those of D, U and G. room: silu(G), then a,
 * dU; dy D^T, then da, dG. */
static tsh_status part_hidden_gradients(const tsh_call *call, const expert_run *run, const expert_gradients *g,
                                        const expert_part *p) {
    int64_t m = p->tokens, f = p->features, d = run->embed;
    const tshi_elementwise_ops *ops = &run->device->ops->elementwise[run->dtype];
    void *const *room = run->room, *dy = expert_element(run, run->dy, p->first * d);
    void *gate = expert_element(run, run->gate, p->hidden), *up = expert_element(run, run->up, p->hidden);
    void *w = expert_element(run, run->weights, p->first);
    tsh_status status =
        multiply(run, true, m, f, d, dy, expert_element(run, tshi_data(call->in[EXPERT_DOWN]), p->row * d), 0, room[2]);
    if (status != TSH_OK) return status;
    ops->unary(run->device, TSHI_SILU, NULL, m * f, gate, room[0]);
    ops->mul(run->device, m * f, room[0], up, 0, room[1]);
    ops->mul(run->device, m * f, room[1], room[2], 0, room[3]);
    run->device->ops->sum[run->dtype].over_dim(run->device, m, f, 1, 1, room[3],
                                               expert_element(run, run->dweights, p->first));
    scale_rows(run, m, f, room[1], w, room[1]);
    status = add_weight_gradient(run, g, EXPERT_DOWN, p, room[1], dy);
    scale_rows(run, m, f, room[2], w, room[2]);
    ops->mul(run->device, m * f, room[2], room[0], 0, room[1]);
    ops->mul(run->device, m * f, room[2], up, 0, room[2]);
    ops->unary_backward(run->device, TSHI_SILU, NULL, m * f, gate, room[2], 0, room[2]);
    return status;
}

static tsh_status part_gradients(const tsh_call *call, const expert_run *run, const expert_gradients *g,
                                 const expert_part *p) {
    int64_t m = p->tokens, f = p->features, d = run->embed;
    void *x = expert_element(run, run->x, p->first * d), *dx = expert_element(run, run->y, p->first * d);
    void *du = run->room[1], *dg = run->room[2];
    tsh_status status =
        m > 0 ? part_hidden_gradients(call, run, g, p) : add_weight_gradient(run, g, EXPERT_DOWN, p, NULL, NULL);
    if (status == TSH_OK) status = add_weight_gradient(run, g, EXPERT_GATE, p, dg, x);
    if (status == TSH_OK) status = add_weight_gradient(run, g, EXPERT_UP, p, du, x);
    if (status != TSH_OK || !tsh_call_wants_grad(call, EXPERT_X)) return status;
    status =
        multiply(run, false, m, d, f, dg, expert_element(run, tshi_data(call->in[EXPERT_GATE]), p->row * d), 0, dx);
    if (status != TSH_OK) return status;
    return multiply(run, false, m, d, f, du, expert_element(run, tshi_data(call->in[EXPERT_UP]), p->row * d), 1, dx);
}

static tsh_status begin_gradients(tsh_call *call, expert_run *run, expert_gradients *g) {
    const tsh_tensor *dy = tsh_call_grad_out(call);
    tsh_status status = begin_run(call, run);
    if (status == TSH_OK) status = gather_rows(call, run, run->d.tokens, dy, dy->shape.local[0], run->embed, &run->dy);
    if (status == TSH_OK) status = take_scratch(call, run, run->d.rows, &run->dweights);
    for (int i = 0; i < 4 && status == TSH_OK; i++) status = take_scratch(call, run, run->d.most, &run->room[i]);
    if (status != TSH_OK) return status;
    const tsh_tensor *both = tsh_call_saved(call, 0);
    if (!both) return TSH_ERR_STATE;
    run->gate = tshi_data(both);
    run->up = expert_element(run, run->gate, run->d.hidden);
    *g = (expert_gradients){0};
    /* In the order in which each part adds to them: of a tensor that is several weights, the first term is stored. */
    static const int order[] = {EXPERT_DOWN, EXPERT_GATE, EXPERT_UP};
    for (int k = 0; k < 3; k++) {
        int i = order[k];
        if (!tsh_call_wants_grad(call, i)) continue;
        g->of[i] = tshi_grad_sum(call, i, &g->beta[i]);
        if (!g->of[i]) return TSH_ERR_MEMORY;
    }
    return TSH_OK;
}

static tsh_status expert_backward(tsh_call *call) {
    const tsh_tensor *x = call->in[EXPERT_X], *w = call->in[EXPERT_WEIGHTS];
    expert_run run;
    expert_gradients g;
    tsh_status status = begin_gradients(call, &run, &g);
    for (int64_t i = 0; i < run.d.count && status == TSH_OK; i++)
        status = part_gradients(call, &run, &g, &run.d.parts[i]);
    if (status != TSH_OK) return status;
    if (tsh_call_wants_grad(call, EXPERT_X)) {
        const tsh_tensor *dx = tsh_call_grad(call, EXPERT_X);
        if (!dx) return TSH_ERR_MEMORY;
        scatter_rows(&run, run.d.tokens, run.y, x->shape.local[0], run.embed, dx);
    }
    if (tsh_call_wants_grad(call, EXPERT_WEIGHTS)) {
        const tsh_tensor *dw = tsh_call_grad(call, EXPERT_WEIGHTS);
        if (!dw) return TSH_ERR_MEMORY;
        scatter_rows(&run, run.d.slots, run.dweights, w->numel, 1, dw);
    }
    return TSH_OK;
}

static const tsh_op expert_op = {"expert_mlp",   expert_rules,    expert_shape,
                                 expert_forward, expert_backward, .params_size = sizeof(expert_params)};

tsh_tensor *tshi_expert_mlp(tsh_tape *tape, tsh_tensor **in, int64_t experts, const tshi_want *want) {
    return tshi_apply_as(tape, &expert_op, EXPERT_INPUTS, in, &(expert_params){experts}, want);
}

tsh_tensor *tsh_expert_mlp(tsh_tape *tape, tsh_tensor *x, tsh_tensor *weights, tsh_tensor *experts, tsh_tensor *gate,
                           tsh_tensor *up, tsh_tensor *down, int64_t count) {
    tsh_tensor *in[] = {x, weights, experts, gate, up, down};
    return tshi_expert_mlp(tape, in, count, NULL);
}
