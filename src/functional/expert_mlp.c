/* The gated MLPs of experts, each on the tokens that chose it: the tokens' rows are gathered in the order of the
 * experts, multiplied expert by expert, and scattered back. Tokens that are split over the ranks of the experts are
 * first sent to these ranks. */
#include "autograd/run/cast.h"
#include "device/record.h"
#include "functional/expert_exchange.h"
#include "functional/functional.h"

#include <string.h>

enum { EXPERT_X, EXPERT_WEIGHTS, EXPERT_IDS, EXPERT_GATE, EXPERT_UP, EXPERT_DOWN, EXPERT_INPUTS };

/* In the third rule, tokens are sent to the ranks with rows of their experts, and the results back. In the fourth to
 * sixth, each rank computes with its rows of the weights on all tokens: whole experts, or in the sixth some hidden
 * features of each. All give a rank its term of the sum over experts and hidden features. */
static const tsh_rule expert_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_S0, TSH_AS_S0, TSH_AS_S0, TSH_AS_L, TSH_AS_L}, TSH_AS_S0},
    {{TSH_HAS_S0, TSH_AS_S0, TSH_AS_S0, TSH_HAS_OWN_S0, TSH_HAS_OWN_S0}, TSH_AS_S0},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_R, TSH_HAS_OWN_S0, TSH_HAS_OWN_S0}, TSH_AS_P},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_R, TSH_AS_S0, TSH_AS_S0}, TSH_AS_P},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_R, TSH_AS_ROWS, TSH_AS_ROWS}, TSH_AS_P},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};

typedef struct expert_params {
    int64_t experts;
    tshi_expert_exchange *exchange; /* made by the first forward, if tokens are exchanged */
} expert_params;

/* The tokens that this rank computes with: its own, or those that it was sent. */
typedef struct expert_tokens {
    int64_t count, top_k;
    const int64_t *experts;        /* [count, top_k], in host memory */
    const tsh_tensor *x, *weights; /* [count, embed], [count, top_k] */
} expert_tokens;

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

/* Stacks are [experts, hidden, embed], or [experts hidden, embed]; a rank's part of the latter is rows, so that ranks
 * that shared one of these would hold a part of the embedding. */
static bool is_stack(const tsh_tensor *t, const tsh_tensor *gate, int64_t count, int64_t embed) {
    const tsh_shape *s = &t->shape;
    bool fits = s->ndim == gate->shape.ndim && s->global[s->ndim - 1] == embed && count >= 1;
    if (s->ndim == 3) return fits && s->global[0] == count && s->global[1] == gate->shape.global[1];
    for (int a = 0; a < t->mesh->axes; a++) fits = fits && t->layout[a].sharing != TSH_SHARED_NEXT;
    return fits && s->ndim == 2 && s->global[0] == gate->shape.global[0] && s->global[0] % count == 0;
}

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
        if (is_stack(in[i], in[EXPERT_GATE], count, x->global[1])) continue;
        return tshi_check_fails(in[EXPERT_X], in[i],
                                "x [tokens, embed] and weights [experts, hidden, embed], or [experts hidden, embed] "
                                "with rows split, wanted");
    }
    for (int i = 0; i < EXPERT_INPUTS; i++) {
        if (i == EXPERT_IDS || in[i]->dtype == *dtype) continue;
        return tshi_check_fails(in[EXPERT_X], in[i], "the same dtype wanted");
    }
    return tshi_check_computes(in[EXPERT_X]->mesh->device, *dtype, "x");
}

/* --- the dispatch ------------------------------------------------------------------------------------------------- */

/* The parts of rows of a matrix [experts hidden, embed], which may begin and end within an expert. */
static void parts_of_matrix(const tsh_tensor *gate, int64_t features, dispatch *d) {
    int64_t start = tshi_shape_start(gate->mesh, &gate->shape, gate->layout, 0), rows = gate->shape.local[0];
    for (int64_t row = 0; row < rows;) {
        int64_t expert = (start + row) / features, end = (expert + 1) * features - start;
        if (end > rows) end = rows;
        d->parts[d->count++] = (expert_part){.expert = expert, .row = row, .features = end - row};
        row = end;
    }
}

/* The parts of a stack [experts, hidden, embed]: of each of its experts this rank has the same hidden features. */
static void parts_of_stack(const tsh_tensor *gate, dispatch *d) {
    int64_t first = tshi_shape_start(gate->mesh, &gate->shape, gate->layout, 0), features = gate->shape.local[1];
    for (int64_t i = 0; features > 0 && i < gate->shape.local[0]; i++)
        d->parts[d->count++] = (expert_part){.expert = first + i, .row = i * features, .features = features};
}

/* The parts of this rank's rows of the weights. */
static tsh_status find_parts(const tsh_call *call, dispatch *d) {
    const tsh_tensor *gate = call->in[EXPERT_GATE];
    bool stack = gate->shape.ndim == 3;
    int64_t features = stack ? 0 : gate->shape.global[0] / ((const expert_params *)call->params)->experts;
    size_t room = stack ? (size_t)gate->shape.local[0] + 1 : 1;
    if (features > 0) room = (size_t)(gate->shape.local[0] / features) + 2;
    *d = (dispatch){.count = 0};
    d->parts = tshi_region_take(&call->tape->memory, &tshi_device_of(gate)->allocator, room, sizeof *d->parts);
    if (!d->parts) return TSH_ERR_MEMORY;
    if (stack)
        parts_of_stack(gate, d);
    else
        parts_of_matrix(gate, features, d);
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
        if (id[i] >= -1 && id[i] < experts) continue;
        return tshi_fail(TSH_ERR_RANGE, "expert %lld at index %lld is outside [-1, %lld)", (long long)id[i],
                         (long long)i, (long long)experts);
    }
    return TSH_OK;
}

/* Sets the sizes of the parts, which follow each other. */
static void count_tokens(const expert_tokens *t, dispatch *d) {
    int64_t first = d->count ? d->parts[0].expert : 0;
    for (int64_t i = 0; i < t->count * t->top_k; i++) {
        int64_t part = t->experts[i] - first;
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
static void list_tokens(const expert_tokens *t, const dispatch *d, int64_t *token, int64_t *slot) {
    int64_t first = d->count ? d->parts[0].expert : 0;
    for (int64_t i = 0; i < t->count * t->top_k; i++) {
        int64_t part = t->experts[i] - first;
        if (part < 0 || part >= d->count) continue;
        int64_t at = d->parts[part].first + d->parts[part].tokens++;
        token[at] = i / t->top_k;
        slot[at] = i;
    }
}

/* Forward and backward of a call make equal dispatches, since they read equal experts. */
static tsh_status make_dispatch(tsh_call *call, const expert_tokens *t, dispatch *d) {
    tsh_device *device = tshi_device_of(call->in[EXPERT_X]);
    tsh_status status = find_parts(call, d);
    if (status != TSH_OK) return status;
    count_tokens(t, d);
    size_t bytes = (size_t)d->rows * sizeof *t->experts;
    int64_t *list = tshi_region_take(&call->tape->memory, &device->allocator, 2 * (size_t)d->rows + 1, sizeof *list);
    d->tokens = tsh_call_scratch(call, TSH_INT64, d->rows);
    d->slots = d->tokens ? tsh_call_scratch(call, TSH_INT64, d->rows) : NULL;
    if (!list || !d->slots) return TSH_ERR_MEMORY;
    list_tokens(t, d, list, list + d->rows);
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
    expert_tokens tokens;
    const tshi_expert_exchange *exchange; /* of tokens; or NULL */
    const tsh_tensor *sent;               /* its rows */
    dispatch d;
    void *x, *dy;    /* [rows, embed], gathered */
    void *y;         /* [rows, embed]: outputs, or in backward the gradients of x */
    void *weights;   /* [rows], gathered */
    void *dweights;  /* [rows] */
    void *gate, *up; /* hidden features before the activation */
    void *room[3];   /* for the hidden features of one part */
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

/* What forward keeps for backward: the hidden features before the activation; if tokens are exchanged, the received
 * rows of x and of the routing weights. */
enum { KEPT_HIDDEN, KEPT_X, KEPT_WEIGHTS };

/* Memory that backward reads, if there may be one. */
static tsh_tensor *take_kept(tsh_call *call, int slot, tsh_dtype dtype, int64_t n) {
    return tshi_call_records(call) ? tsh_call_save(call, slot, dtype, n) : tsh_call_scratch(call, dtype, n);
}

/* Rows of all ranks' `from` for the experts of this rank. */
static tsh_status receive_rows(tsh_call *call, const expert_run *run, int64_t cols, const tsh_tensor *from,
                               tsh_tensor *to) {
    return to ? tshi_expert_exchange_send(call, run->exchange, run->sent, cols, from, to) : TSH_ERR_MEMORY;
}

static tsh_status receive_tokens(tsh_call *call, expert_run *run) {
    expert_params *p = call->params;
    tsh_tensor **in = call->in;
    int axis = tshi_expert_exchange_axis(in[EXPERT_X], in[EXPERT_GATE]);
    if (!p->exchange) {
        tsh_status status = tshi_expert_exchange_make(call, axis, in[EXPERT_GATE], p->experts, run->tokens.experts,
                                                      run->tokens.top_k, &p->exchange);
        if (status != TSH_OK) return status;
    }
    run->exchange = p->exchange;
    run->sent = tshi_expert_exchange_rows(call, run->exchange);
    if (!run->sent) return TSH_ERR_MEMORY;
    run->tokens.count = run->exchange->received;
    run->tokens.experts = run->exchange->experts;
    return TSH_OK;
}

static tsh_status receive_inputs(tsh_call *call, expert_run *run) {
    int64_t n = run->tokens.count;
    tsh_tensor *x = take_kept(call, KEPT_X, run->dtype, n * run->embed);
    tsh_tensor *weights = take_kept(call, KEPT_WEIGHTS, run->dtype, n * run->tokens.top_k);
    run->tokens.x = x;
    run->tokens.weights = weights;
    tsh_status status = receive_rows(call, run, run->embed, call->in[EXPERT_X], x);
    if (status != TSH_OK) return status;
    return receive_rows(call, run, run->tokens.top_k, call->in[EXPERT_WEIGHTS], weights);
}

/* What forward and backward have in common: the tokens with their rows and weights, and the dispatch. */
static tsh_status begin_run(tsh_call *call, bool backward, expert_run *run) {
    const tsh_tensor *x = call->in[EXPERT_X], *w = call->in[EXPERT_WEIGHTS];
    *run = (expert_run){
        .device = tshi_device_of(x), .dtype = x->dtype, .size = tsh_dtype_size(x->dtype), .embed = x->shape.global[1]};
    run->tokens = (expert_tokens){.count = x->shape.local[0], .top_k = w->shape.global[1], .x = x, .weights = w};
    tsh_status status = TSH_OK;
    if (!((expert_params *)call->params)->exchange) status = read_experts(call, &run->tokens.experts);
    if (status == TSH_OK && tshi_expert_exchange_axis(x, call->in[EXPERT_GATE]) >= 0) {
        status = receive_tokens(call, run);
        if (status == TSH_OK && !backward) status = receive_inputs(call, run);
        if (backward) run->tokens.x = tsh_call_saved(call, KEPT_X);
        if (backward) run->tokens.weights = tsh_call_saved(call, KEPT_WEIGHTS);
        if (status == TSH_OK && (!run->tokens.x || !run->tokens.weights)) status = TSH_ERR_STATE;
    }
    const expert_tokens *t = &run->tokens;
    if (status == TSH_OK) status = make_dispatch(call, t, &run->d);
    if (status == TSH_OK) status = gather_rows(call, run, run->d.tokens, t->x, t->count, run->embed, &run->x);
    if (status == TSH_OK)
        status = gather_rows(call, run, run->d.slots, t->weights, t->count * t->top_k, 1, &run->weights);
    if (status == TSH_OK) status = take_scratch(call, run, run->d.rows * run->embed, &run->y);
    return status;
}

/* Adds rows of the dispatch, listed by `index`, to those of `to`, which has as many elements for each token of this
 * rank. Of exchanged tokens, the sums go to the ranks that have sent them. */
static tsh_status add_to_tokens(tsh_call *call, const expert_run *run, const tsh_tensor *index, int64_t cols,
                                const void *rows, int64_t each, const tsh_tensor *to) {
    if (cols == 0) return TSH_OK; /* on all ranks */
    if (!run->exchange) {
        scatter_rows(run, index, rows, to->numel / cols, cols, to);
        return TSH_OK;
    }
    const tsh_tensor *sums = tsh_call_scratch(call, run->dtype, run->tokens.count * each);
    if (!sums) return TSH_ERR_MEMORY;
    run->device->ops->copy.zero(run->device, tsh_tensor_local_nbytes(sums), tshi_data(sums));
    scatter_rows(run, index, rows, sums->numel / cols, cols, sums);
    return tshi_expert_exchange_return(call, run->exchange, run->sent, each, sums, to);
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* How many of a part's tokens backward's elementwise functions take at once: as many as a CPU's second cache holds the hidden
 * features of, from one function to the next, and on a GPU all. */
static int64_t tokens_at_once(const expert_run *run, const expert_part *p) {
    int threads = run->device->threads;
    int64_t elements = threads > 1 ? (int64_t)threads << 16 : 1 << 14, tokens = elements / p->features;
    if (threads < 1 || tokens > p->tokens) return p->tokens;
    return tokens > 0 ? tokens : 1;
}

static tsh_status compute_part(const tsh_call *call, const expert_run *run, const expert_part *p) {
    int64_t m = p->tokens, f = p->features, d = run->embed;
    void *x = expert_element(run, run->x, p->first * d), *y = expert_element(run, run->y, p->first * d);
    void *a = run->room[0];
    void *gate = expert_element(run, run->gate, p->hidden), *up = expert_element(run, run->up, p->hidden);
    tsh_status status =
        multiply(run, true, m, f, d, x, expert_element(run, tshi_data(call->in[EXPERT_GATE]), p->row * d), 0, gate);
    if (status == TSH_OK)
        status =
            multiply(run, true, m, f, d, x, expert_element(run, tshi_data(call->in[EXPERT_UP]), p->row * d), 0, up);
    if (status != TSH_OK || m == 0) return status;
    run->device->ops->elementwise[run->dtype].swiglu(run->device, m * f, gate, up, a);
    status = multiply(run, false, m, d, f, a, expert_element(run, tshi_data(call->in[EXPERT_DOWN]), p->row * d), 0, y);
    scale_rows(run, m, d, y, expert_element(run, run->weights, p->first), y);
    return status;
}

static tsh_status expert_forward(tsh_call *call) {
    const tsh_tensor *y = call->out;
    expert_run run;
    tsh_status status = begin_run(call, false, &run);
    if (status == TSH_OK) status = take_scratch(call, &run, run.d.most, &run.room[0]);
    if (status != TSH_OK) return status;
    const tsh_tensor *both = take_kept(call, KEPT_HIDDEN, run.dtype, 2 * run.d.hidden);
    if (!both) return TSH_ERR_MEMORY;
    run.gate = tshi_data(both);
    run.up = expert_element(&run, run.gate, run.d.hidden);
    run.device->ops->copy.zero(run.device, tsh_tensor_local_nbytes(y), tshi_data(y));
    for (int64_t i = 0; i < run.d.count && status == TSH_OK; i++) status = compute_part(call, &run, &run.d.parts[i]);
    if (status != TSH_OK) return status;
    return add_to_tokens(call, &run, run.d.tokens, run.embed, run.y, run.embed, y);
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

/* What the rooms hold in backward: a = silu(G) U; dU; dy D^T, then dG. */
enum { ROOM_A, ROOM_DUP, ROOM_DGATE, ROOMS };

/* Gradients of w, U and G of the tokens [from, from + m) of a part, whose output is y = w a D. */
static void hidden_gradients(const expert_run *run, const expert_part *p, int64_t from, int64_t m) {
    const tshi_elementwise_ops *ops = &run->device->ops->elementwise[run->dtype];
    int64_t f = p->features, n = m * f;
    void *gate = expert_element(run, run->gate, p->hidden + from * f);
    void *up = expert_element(run, run->up, p->hidden + from * f), *room[ROOMS];
    for (int i = 0; i < ROOMS; i++) room[i] = expert_element(run, run->room[i], from * f);
    ops->swiglu(run->device, n, gate, up, room[ROOM_A]);
    ops->mul(run->device, n, room[ROOM_A], room[ROOM_DGATE], 0, room[ROOM_DUP]);
    run->device->ops->sum[run->dtype].over_dim(run->device, m, f, 1, 1, room[ROOM_DUP],
                                               expert_element(run, run->dweights, p->first + from));
    scale_rows(run, m, f, room[ROOM_DGATE], expert_element(run, run->weights, p->first + from), room[ROOM_DGATE]);
    ops->swiglu_backward(run->device, n, gate, up, room[ROOM_DGATE], 0, room[ROOM_DGATE], 0, room[ROOM_DUP]);
}

/* Gradients of w, D, U and G of a part; multiplies its dy by w. */
static tsh_status part_hidden_gradients(const tsh_call *call, const expert_run *run, const expert_gradients *g,
                                        const expert_part *p) {
    int64_t m = p->tokens, d = run->embed, step = tokens_at_once(run, p);
    void *dy = expert_element(run, run->dy, p->first * d);
    tsh_status status =
        multiply(run, true, m, p->features, d, dy, expert_element(run, tshi_data(call->in[EXPERT_DOWN]), p->row * d), 0,
                 run->room[ROOM_DGATE]);
    if (status != TSH_OK) return status;
    for (int64_t from = 0; from < m; from += step) hidden_gradients(run, p, from, m - from < step ? m - from : step);
    scale_rows(run, m, d, dy, expert_element(run, run->weights, p->first), dy);
    return add_weight_gradient(run, g, EXPERT_DOWN, p, run->room[ROOM_A], dy);
}

static tsh_status part_gradients(const tsh_call *call, const expert_run *run, const expert_gradients *g,
                                 const expert_part *p) {
    int64_t m = p->tokens, f = p->features, d = run->embed;
    void *x = expert_element(run, run->x, p->first * d), *dx = expert_element(run, run->y, p->first * d);
    void *du = run->room[ROOM_DUP], *dg = run->room[ROOM_DGATE];
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
    tsh_status status = begin_run(call, true, run);
    if (status == TSH_OK && run->exchange) {
        tsh_tensor *received = tsh_call_scratch(call, run->dtype, run->tokens.count * run->embed);
        status = receive_rows(call, run, run->embed, dy, received);
        dy = received;
    }
    if (status == TSH_OK) status = gather_rows(call, run, run->d.tokens, dy, run->tokens.count, run->embed, &run->dy);
    if (status == TSH_OK) status = take_scratch(call, run, run->d.rows, &run->dweights);
    for (int i = 0; i < ROOMS && status == TSH_OK; i++) status = take_scratch(call, run, run->d.most, &run->room[i]);
    if (status != TSH_OK) return status;
    const tsh_tensor *both = tsh_call_saved(call, KEPT_HIDDEN);
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
    expert_run run;
    expert_gradients g;
    tsh_status status = begin_gradients(call, &run, &g);
    for (int64_t i = 0; i < run.d.count && status == TSH_OK; i++)
        status = part_gradients(call, &run, &g, &run.d.parts[i]);
    if (status != TSH_OK) return status;
    if (tsh_call_wants_grad(call, EXPERT_X)) {
        const tsh_tensor *dx = tsh_call_grad(call, EXPERT_X);
        if (!dx) return TSH_ERR_MEMORY;
        status = add_to_tokens(call, &run, run.d.tokens, run.embed, run.y, run.embed, dx);
        if (status != TSH_OK) return status;
    }
    if (tsh_call_wants_grad(call, EXPERT_WEIGHTS)) {
        const tsh_tensor *dw = tsh_call_grad(call, EXPERT_WEIGHTS);
        if (!dw) return TSH_ERR_MEMORY;
        status = add_to_tokens(call, &run, run.d.slots, 1, run.dweights, run.tokens.top_k, dw);
    }
    return status;
}

static const tsh_op expert_op = {"expert_mlp",   expert_rules,    expert_shape,
                                 expert_forward, expert_backward, .params_size = sizeof(expert_params)};

/* Where gate's experts are split, a rank's experts and rows of all three weights are the same ones: gate's, and each
 * on one rank. Along axes that do not split gate, weights stay as they are. */
static bool split_as_gate(tsh_tape *tape, tsh_tensor **in) {
    const tsh_tensor *gate = tshi_gradient_whole(in[EXPERT_GATE]);
    tsh_layout gates[TSH_MAX_AXES], wanted[TSH_MAX_AXES];
    bool split = false;
    memcpy(gates, gate->layout, sizeof gates);
    for (int a = 0; a < gate->mesh->axes; a++) {
        split = split || tshi_layout_splits(gates[a], 0);
        if (gates[a].sharing == TSH_SHARED || gates[a].sharing == TSH_SHARED_OWN)
            gates[a] = TSH_SHARD_ORDER(gates[a].dim, gates[a].order);
    }
    for (int i = EXPERT_GATE; split && i <= EXPERT_DOWN; i++) {
        const tsh_tensor *have = tshi_gradient_whole(in[i]);
        bool alike = true;
        if (have->mesh != gate->mesh || have->shape.ndim != gate->shape.ndim) continue;
        for (int a = 0; a < gate->mesh->axes; a++) {
            wanted[a] = gates[a].kind == TSH_KIND_SHARD ? gates[a] : have->layout[a];
            alike = alike && tshi_layout_alike(have->layout[a], wanted[a]);
        }
        if (alike) continue;
        in[i] = tshi_to_layouts(tape, "expert_mlp", in[i], wanted);
        if (!in[i]) return false;
    }
    return true;
}

/* Tokens are exchanged along one axis: where others split tokens and experts too, tokens are gathered. */
static bool gather_along_other_axes(tsh_tape *tape, tsh_tensor **in) {
    const tsh_tensor *gate = tshi_gradient_whole(in[EXPERT_GATE]);
    int axis = tshi_expert_exchange_axis(in[EXPERT_X], gate);
    for (int a = gate->mesh->axes - 1; a >= 0; a--) {
        bool both = tshi_layout_splits(in[EXPERT_X]->layout[a], 0) && tshi_layout_splits(gate->layout[a], 0);
        for (int i = EXPERT_X; both && a != axis && i <= EXPERT_IDS; i++) {
            in[i] = tshi_transit(tape, "expert_mlp", in[i], a, i == EXPERT_IDS ? TSH_REPLICATED : TSH_LOCAL);
            if (!in[i]) return false;
        }
    }
    return true;
}

tsh_tensor *tshi_expert_mlp(tsh_tape *tape, tsh_tensor **in, int64_t experts, const tshi_want *want) {
    if (!tshi_tape_ready(tape, "expert_mlp", EXPERT_INPUTS, in)) return NULL;
    bool exchanges = in[EXPERT_X]->mesh == in[EXPERT_GATE]->mesh && !tape->world->deterministic;
    if (!split_as_gate(tape, in) || (exchanges && !gather_along_other_axes(tape, in))) return NULL;
    return tshi_apply_as(tape, &expert_op, EXPERT_INPUTS, in, &(expert_params){experts, NULL}, want);
}

tsh_tensor *tsh_expert_mlp(tsh_tape *tape, tsh_tensor *x, tsh_tensor *weights, tsh_tensor *experts, tsh_tensor *gate,
                           tsh_tensor *up, tsh_tensor *down, int64_t count) {
    tsh_tensor *in[] = {x, weights, experts, gate, up, down};
    return tshi_expert_mlp(tape, in, count, NULL);
}
