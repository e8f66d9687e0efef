/* Attention whose keys and values go round a ring of ranks: in each step a rank computes with one block of them while
 * the next one is on its way. saved: the logarithms of the rows' sums of exponentials. */
#include "functional/attention.h"

static const tsh_rule plain_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_S0, TSH_AS_S0, TSH_AS_S0}, TSH_AS_S0},
    {{TSH_AS_S2, TSH_AS_S2_WHOLE, TSH_AS_S2_WHOLE}, TSH_AS_S2},
    {{TSH_AS_S1, TSH_AS_S1, TSH_AS_S1}, TSH_AS_S1},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};
/* q, k, v, then positions or documents, or both, in pairs of queries' and keys'; [B, T], below [T]. Those of the keys
 * are gathered: they are few bytes, and say which blocks a query sees. */
static const tsh_rule ring_token_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_S0, TSH_AS_S0, TSH_AS_S0, TSH_AS_S0, TSH_AS_S0, TSH_AS_S0, TSH_AS_S0}, TSH_AS_S0},
    {{TSH_AS_S2, TSH_AS_S2_WHOLE, TSH_AS_S2_WHOLE, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_S2},
    {{TSH_AS_S1, TSH_AS_S1, TSH_AS_S1, TSH_AS_S1, TSH_AS_L, TSH_AS_S1, TSH_AS_L}, TSH_AS_S1},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};
static const tsh_rule ring_shared_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_S0, TSH_AS_S0, TSH_AS_S0, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_S0},
    {{TSH_AS_S2, TSH_AS_S2_WHOLE, TSH_AS_S2_WHOLE, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_S2},
    {{TSH_AS_S1, TSH_AS_S1, TSH_AS_S1, TSH_AS_S0, TSH_AS_L, TSH_AS_S0, TSH_AS_L}, TSH_AS_S1},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};

/* Messages in flight, and the views that they use. */
typedef struct mail {
    tsh_work *work[4];
    tsh_tensor *view[4];
    int count;
} mail;

/* A call's ring. Keys and values, and their gradients, are pairs. */
typedef struct ring {
    tsh_call *call;
    tsh_device *device;
    const tshi_axis *axis; /* NULL: one rank has all keys */
    int ranks, rank;
    tsh_dtype dtype;      /* of the arithmetic: what blocks add up in is not rounded to 16 bits */
    tshi_attention whole; /* this rank's queries with all keys */
    int64_t row;          /* elements of a key with its batch: B Hkv D */
    const tsh_tensor *q;  /* in the dtype of the arithmetic */
    tsh_tensor *narrow[2][2], *wide[2], *numbers[2], *scratch;
} ring;

/* The keys of a rank: *start and the number of them. */
static int64_t keys_held_by(const ring *r, int rank, int64_t *start) {
    const tsh_tensor *k = r->call->in[1];
    int64_t length = k->shape.global[1];
    *start = 0;
    if (r->axis) {
        const tsh_layout *layout = &k->layout[r->axis - k->mesh->axis];
        tshi_layout_split(layout, length, tshi_axis_parts(r->axis), rank, start, &length);
    }
    return length;
}

static int64_t longest_block(const ring *r) {
    int64_t most = 0, start;
    for (int i = 0; i < r->ranks; i++) {
        int64_t keys = keys_held_by(r, i, &start);
        most = keys > most ? keys : most;
    }
    return most;
}

/* The rank whose keys this rank has in a step. */
static int owner_in(const ring *r, int step) {
    return (r->rank - step % r->ranks + r->ranks) % r->ranks;
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

static tsh_status start_message(const ring *r, mail *m, const tsh_tensor *room, int64_t keys, int peer, bool send) {
    tsh_shape shape = {.ndim = 1, .global = {keys * r->row}, .local = {keys * r->row}};
    tsh_tensor **view = &m->view[m->count];
    tsh_work **work = &m->work[m->count];
    if (shape.local[0] == 0) return TSH_OK;
    tsh_status status = tshi_tensor_view(room, &shape, tshi_all_local, 0, view);
    if (status != TSH_OK) return status;
    m->count++;
    return send ? tsh_send_async(r->axis->group, *view, peer, work) : tsh_recv_async(r->axis->group, *view, peer, work);
}

/* Sends the pair that this rank has in this step on, and receives that of the next step. */
static tsh_status pass_on(const ring *r, int step, tsh_tensor *const from[2], tsh_tensor *const to[2], mail *m) {
    int64_t start, sent = keys_held_by(r, owner_in(r, step), &start),
                   received = keys_held_by(r, owner_in(r, step + 1), &start);
    int next = (r->rank + 1) % r->ranks, last = (r->rank + r->ranks - 1) % r->ranks;
    tsh_status status = TSH_OK;
    for (int i = 0; i < 2 && status == TSH_OK; i++) {
        status = start_message(r, m, from[i], sent, next, true);
        if (status == TSH_OK) status = start_message(r, m, to[i], received, last, false);
    }
    return status;
}

/* Waits for all messages, also after a failure, and returns the first one. */
static tsh_status finish(mail *m, tsh_status status) {
    for (int i = 0; i < m->count; i++) {
        tsh_status ended = m->work[i] ? tsh_work_wait(m->work[i]) : TSH_OK;
        if (status == TSH_OK) status = ended;
        tsh_work_release(m->work[i]);
        tshi_tensor_release(m->view[i]);
    }
    *m = (mail){.count = 0};
    return status;
}

/* --- blocks ------------------------------------------------------------------------------------------------------- */

/* x in the dtype of the arithmetic: itself, or a copy in `room`. */
static const tsh_tensor *widen(const ring *r, const tsh_tensor *x, int64_t n, tsh_tensor *room) {
    if (x->dtype == r->dtype) return x;
    r->device->ops->copy.convert(r->device, n, x->dtype, tshi_data(x), r->dtype, tshi_data(room));
    return room;
}

/* Positions or documents of a block: of [B, Tk] a copy. */
static const int64_t *numbers_of(const ring *r, const int64_t *all, int64_t start, int64_t keys, tsh_tensor *room) {
    const size_t size = sizeof *all;
    if (!all || !r->whole.tokens.batched) return all ? all + start : NULL;
    r->device->ops->copy.strided(r->device, r->whole.batch, (size_t)keys * size, all + start,
                                 (size_t)r->whole.keys * size, tshi_data(room), (size_t)keys * size);
    return tshi_data(room);
}

/* The attention of this rank's queries to the keys of one rank. */
static tshi_attention block_of(const ring *r, int owner) {
    tshi_attention a = r->whole;
    int64_t start, keys = keys_held_by(r, owner, &start);
    a.keys = a.capacity = keys;
    a.tokens.key_position = numbers_of(r, a.tokens.key_position, start, keys, r->numbers[0]);
    a.tokens.key_document = numbers_of(r, a.tokens.key_document, start, keys, r->numbers[1]);
    return a;
}

static tsh_status open_rooms(ring *r, bool backward) {
    const tshi_attention_ops *ops = &r->device->ops->attention[r->dtype];
    const tsh_tensor *q = r->call->in[0], *k = r->call->in[1];
    int64_t most = longest_block(r), size = 0;
    bool narrow = q->dtype != r->dtype, batched = r->whole.tokens.batched;
    for (int i = 0; i < r->ranks; i++) {
        tshi_attention a = r->whole;
        int64_t start;
        a.keys = a.capacity = keys_held_by(r, i, &start);
        int64_t wanted = ops->scratch(r->device, &a, backward);
        size = wanted > size ? wanted : size;
    }
    r->scratch = tsh_call_scratch(r->call, r->dtype, size);
    r->q = narrow ? tsh_call_scratch(r->call, r->dtype, q->numel) : q;
    bool good = r->scratch && r->q;
    for (int i = 0; i < 2 && good; i++) {
        r->wide[i] = tsh_call_scratch(r->call, r->dtype, narrow ? most * r->row : 0);
        r->numbers[i] = tsh_call_scratch(r->call, TSH_INT64, batched ? most * r->whole.batch : 0);
        good = r->wide[i] && r->numbers[i];
        for (int j = 0; j < 2 && good; j++) {
            r->narrow[i][j] = tsh_call_scratch(r->call, k->dtype, r->ranks > 1 ? most * r->row : 0);
            good = r->narrow[i][j] != NULL;
        }
    }
    if (!good) return TSH_ERR_MEMORY;
    if (narrow) widen(r, q, q->numel, (tsh_tensor *)(uintptr_t)r->q);
    return TSH_OK;
}

static tsh_status open_ring(tsh_call *call, bool backward, ring *r) {
    const tsh_tensor *q = call->in[0], *k = call->in[1];
    *r = (ring){.call = call, .device = tshi_device_of(q), .ranks = 1, .dtype = tshi_dtype_sum(q->dtype)};
    r->whole = tshi_attention_of(call);
    r->row = k->shape.local[0] * k->shape.local[2] * k->shape.local[3];
    for (int a = 0; a < k->mesh->axes; a++) {
        const tshi_axis *axis = &k->mesh->axis[a];
        if (axis->size == 1 || !tshi_layout_splits(k->layout[a], 1)) continue;
        if (r->axis) return tshi_fail(TSH_ERR_UNSUPPORTED, "keys go round only one axis, but two split the tokens");
        r->axis = axis;
        r->ranks = axis->size;
        r->rank = axis->index;
    }
    return open_rooms(r, backward);
}

/* The pair that this rank computes with in a step. */
static void pair_in(ring *r, int step, tsh_tensor *pair[2]) {
    for (int i = 0; i < 2; i++) pair[i] = step ? r->narrow[step & 1][i] : r->call->in[1 + i];
}

/* --- merging ------------------------------------------------------------------------------------------------------ */

/* Stands for the logarithm of 0: the difference of two of them is a number, and adding a logarithm changes nothing. */
#define LOWEST 0x1p96

/* Output and sums of the blocks so far, and of a block. */
typedef struct rows {
    void *y, *sums;
} rows;

static void combine(const ring *r, tshi_binary f, int64_t n, const void *x, const void *y, void *z) {
    const tshi_broadcast flat = {1, {n}, {1}, {1}};
    r->device->ops->elementwise[r->dtype].binary(r->device, f, &flat, x, y, z);
}

static void apply(const ring *r, tshi_unary f, double a, double b, int64_t n, const void *x, void *y) {
    r->device->ops->elementwise[r->dtype].unary(r->device, f, (double[2]){a, b}, n, x, y);
}

static int64_t rows_here(const ring *r) {
    return r->whole.batch * r->whole.heads * r->whole.queries;
}

/* Infinity, which a query without keys has, becomes -LOWEST: clamped, minus 2 LOWEST where sums - sums is no number. */
static void hide_infinities(const ring *r, void *sums, void *spare) {
    const int64_t n = rows_here(r);
    combine(r, TSHI_SUB, n, sums, sums, spare);
    combine(r, TSHI_EQ, n, spare, spare, spare);
    apply(r, TSHI_SCALE_SHIFT, 2 * LOWEST, -2 * LOWEST, n, spare, spare);
    apply(r, TSHI_CLAMP, -LOWEST, LOWEST, n, sums, sums);
    combine(r, TSHI_ADD, n, sums, spare, sums);
}

/* The other way: minus log(1 + clamped / LOWEST), which is -infinity for -LOWEST and 0 for other sums. */
static void show_infinities(const ring *r, void *sums, void *spare) {
    const int64_t n = rows_here(r);
    apply(r, TSHI_CLAMP, -LOWEST, 0, n, sums, spare);
    apply(r, TSHI_SCALE_SHIFT, 1 / LOWEST, 1, n, spare, spare);
    apply(r, TSHI_LOG, 0, 0, n, spare, spare);
    combine(r, TSHI_SUB, n, sums, spare, sums);
}

/* y += w (block.y - y), w = sigmoid(d), d = block.sums - sums: the block's part of all weights so far. The new sums are
 * log(e^sums + e^block.sums) = the larger one - log sigmoid |d|. */
static void merge(const ring *r, const rows *block, const rows *all, void *spare) {
    const tshi_attention *a = &r->whole;
    const int64_t n = rows_here(r);
    const tshi_broadcast weights = {4,
                                    {a->dim, a->heads, a->queries, a->batch},
                                    {1, a->dim, a->heads * a->dim, a->queries * a->heads * a->dim},
                                    {0, a->queries, 1, a->heads * a->queries}};
    combine(r, TSHI_SUB, n, block->sums, all->sums, spare);
    combine(r, TSHI_MAXIMUM, n, block->sums, all->sums, all->sums);
    apply(r, TSHI_SIGMOID, 0, 0, n, spare, block->sums);
    combine(r, TSHI_SUB, n * a->dim, block->y, all->y, block->y);
    r->device->ops->elementwise[r->dtype].binary(r->device, TSHI_MUL, &weights, block->y, block->sums, block->y);
    combine(r, TSHI_ADD, n * a->dim, all->y, block->y, all->y);
    apply(r, TSHI_ABS, 0, 0, n, spare, spare);
    apply(r, TSHI_SIGMOID, 0, 0, n, spare, spare);
    apply(r, TSHI_LOG, 0, 0, n, spare, spare);
    combine(r, TSHI_SUB, n, all->sums, spare, all->sums);
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* Computes one block and merges it into `all`. Step 0 writes `all` itself, also where this rank has no keys; later
 * blocks without keys are skipped. */
static void attend_block(ring *r, int step, tsh_tensor *const pair[2], rows *block, const rows *all, void *spare) {
    const tshi_attention a = block_of(r, owner_in(r, step));
    const tshi_attention_ops *ops = &r->device->ops->attention[r->dtype];
    const rows *to = step ? block : all;
    if (rows_here(r) == 0 || (step && a.keys == 0)) return;
    const tsh_tensor *k = widen(r, pair[0], a.keys * r->row, r->wide[0]),
                     *v = widen(r, pair[1], a.keys * r->row, r->wide[1]);
    ops->forward(r->device, &a, tshi_data(r->q), tshi_data(k), tshi_data(v), to->y, to->sums, tshi_data(r->scratch));
    hide_infinities(r, to->sums, spare);
    if (step) merge(r, block, all, spare);
}

static tsh_status go_round(ring *r, rows *block, const rows *all, void *spare) {
    tsh_status status = TSH_OK;
    for (int step = 0; step < r->ranks && status == TSH_OK; step++) {
        tsh_tensor *pair[2];
        mail m = {.count = 0};
        pair_in(r, step, pair);
        if (step + 1 < r->ranks) status = pass_on(r, step, pair, r->narrow[(step + 1) & 1], &m);
        if (status == TSH_OK) attend_block(r, step, pair, block, all, spare);
        status = finish(&m, status);
    }
    if (status == TSH_OK && rows_here(r)) show_infinities(r, all->sums, spare);
    return status;
}

static tsh_status ring_forward(tsh_call *call) {
    const tsh_tensor *out = call->out;
    ring r;
    tsh_status status = open_ring(call, false, &r);
    if (status != TSH_OK) return status;
    const int64_t n = rows_here(&r);
    const tsh_tensor *y = out->dtype == r.dtype ? out : tsh_call_scratch(call, r.dtype, out->numel),
                     *sums = tshi_call_records(call) ? tsh_call_save(call, 0, r.dtype, n)
                                                     : tsh_call_scratch(call, r.dtype, n),
                     *block_y = tsh_call_scratch(call, r.dtype, r.ranks > 1 ? out->numel : 0),
                     *block_sums = tsh_call_scratch(call, r.dtype, n), *spare = tsh_call_scratch(call, r.dtype, n);
    if (!y || !sums || !block_y || !block_sums || !spare) return TSH_ERR_MEMORY;
    rows block = {tshi_data(block_y), tshi_data(block_sums)};
    const rows all = {tshi_data(y), tshi_data(sums)};
    status = go_round(&r, &block, &all, tshi_data(spare));
    if (status == TSH_OK && y != out)
        r.device->ops->copy.convert(r.device, out->numel, r.dtype, all.y, out->dtype, tshi_data(out));
    return status;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* dq, and the gradients of the keys and values that this rank has: `own` terms of two steps, and those of the ranks
 * that had them before. NULL: none wanted. */
typedef struct terms {
    tsh_tensor *dq, *own[2][2], *before[2];
    const tsh_tensor *y, *dy;
} terms;

static bool wants_keys(const tsh_call *call) {
    return tsh_call_wants_grad(call, 1) || tsh_call_wants_grad(call, 2);
}

static tsh_status open_terms(ring *r, terms *t) {
    tsh_call *call = r->call;
    const tsh_tensor *out = call->out, *dy = tsh_call_grad_out(call);
    const bool narrow = out->dtype != r->dtype;
    const int64_t n = longest_block(r) * r->row;
    *t = (terms){.y = out, .dy = dy};
    if (narrow) {
        tsh_tensor *y = tsh_call_scratch(call, r->dtype, out->numel),
                   *wide = tsh_call_scratch(call, r->dtype, dy->numel);
        if (!y || !wide) return TSH_ERR_MEMORY;
        t->y = widen(r, out, out->numel, y);
        t->dy = widen(r, dy, dy->numel, wide);
    }
    bool good = true;
    if (tsh_call_wants_grad(call, 0)) good = (t->dq = tsh_call_scratch(call, r->dtype, out->numel)) != NULL;
    for (int i = 0; i < 2 && good && wants_keys(call); i++) {
        t->before[i] = tsh_call_scratch(call, r->dtype, n);
        for (int j = 0; j < 2; j++) t->own[j][i] = tsh_call_scratch(call, r->dtype, n);
        good = t->before[i] && t->own[0][i] && t->own[1][i];
    }
    return good ? TSH_OK : TSH_ERR_MEMORY;
}

/* Adds the block's terms to dq, and writes those of its keys and values. */
static void block_gradients(ring *r, int step, tsh_tensor *const pair[2], const terms *t) {
    const tshi_attention a = block_of(r, owner_in(r, step));
    const int64_t n = a.keys * r->row;
    tsh_tensor *const *own = t->own[step & 1];
    const tshi_attention_grads grads = {tshi_data(t->dq), tshi_data(own[0]), tshi_data(own[1]), step ? 1 : 0, 0, 0};
    if (step && n == 0) return;
    if (rows_here(r) == 0) {
        for (int i = 0; i < 2 && own[i]; i++)
            r->device->ops->copy.zero(r->device, (size_t)n * tsh_dtype_size(r->dtype), tshi_data(own[i]));
        return;
    }
    const tsh_tensor *k = widen(r, pair[0], n, r->wide[0]), *v = widen(r, pair[1], n, r->wide[1]);
    r->device->ops->attention[r->dtype].backward(r->device, &a, tshi_data(r->q), tshi_data(k), tshi_data(v),
                                                 tshi_data(t->y), tshi_data(r->call->saved[0]), tshi_data(t->dy),
                                                 &grads, tshi_data(r->scratch));
}

/* Adds the terms of the ranks before, which `m` has brought, and sends the sums after the keys. */
static tsh_status send_terms(const ring *r, int step, const terms *t, mail *m) {
    int64_t start, n = keys_held_by(r, owner_in(r, step), &start) * r->row;
    tsh_tensor *const *own = t->own[step & 1];
    tsh_status status = finish(m, TSH_OK);
    for (int i = 0; status == TSH_OK && step > 0 && n > 0 && i < 2; i++)
        combine(r, TSHI_ADD, n, tshi_data(own[i]), tshi_data(t->before[i]), tshi_data(own[i]));
    return status == TSH_OK ? pass_on(r, step, own, t->before, m) : status;
}

/* After the last step the terms go one rank further, to the rank that has the keys. */
static tsh_status go_round_backward(ring *r, const terms *t) {
    tsh_status status = TSH_OK;
    mail keys = {.count = 0}, sums = {.count = 0};
    for (int step = 0; step < r->ranks && status == TSH_OK; step++) {
        tsh_tensor *pair[2];
        pair_in(r, step, pair);
        if (step + 1 < r->ranks) status = pass_on(r, step, pair, r->narrow[(step + 1) & 1], &keys);
        if (status == TSH_OK) block_gradients(r, step, pair, t);
        if (status == TSH_OK && t->before[0] && r->ranks > 1) status = send_terms(r, step, t, &sums);
        status = finish(&keys, status);
    }
    return finish(&sums, status);
}

/* Adds `sum` to input i's gradient, if it wants one. */
static tsh_status give(const ring *r, int i, const tsh_tensor *sum) {
    double beta;
    if (!tsh_call_wants_grad(r->call, i)) return TSH_OK;
    tsh_tensor *gradient = tshi_grad_beta(r->call, i, &beta);
    if (!gradient) return TSH_ERR_MEMORY;
    const int64_t n = gradient->numel;
    const tsh_tensor *to = beta == 0 ? gradient : tsh_call_scratch(r->call, gradient->dtype, n);
    if (!to) return TSH_ERR_MEMORY;
    r->device->ops->copy.convert(r->device, n, r->dtype, tshi_data(sum), to->dtype, tshi_data(to));
    if (to == gradient) return TSH_OK;
    const tshi_broadcast flat = {1, {n}, {1}, {1}};
    r->device->ops->elementwise[to->dtype].binary(r->device, TSHI_ADD, &flat, tshi_data(gradient), tshi_data(to),
                                                  tshi_data(gradient));
    return TSH_OK;
}

static tsh_status ring_backward(tsh_call *call) {
    ring r;
    terms t;
    tsh_status status = open_ring(call, true, &r);
    if (status == TSH_OK) status = open_terms(&r, &t);
    if (status == TSH_OK) status = go_round_backward(&r, &t);
    if (status == TSH_OK) status = give(&r, 0, t.dq);
    for (int i = 0; i < 2 && status == TSH_OK; i++) status = give(&r, 1 + i, r.ranks > 1 ? t.before[i] : t.own[0][i]);
    return status;
}

#define RING_OP(rules)                                                                                                 \
    {                                                                                                                  \
        "attention", rules, tshi_attention_shape, ring_forward, ring_backward,                                         \
            .params_size = sizeof(tshi_attention_params), .reads_output = true                                         \
    }

const tsh_op tshi_ring_attention_ops[TSHI_ATTENTION_KINDS] = {[TSHI_ATTENTION_PLAIN] = RING_OP(plain_rules),
                                                              [TSHI_ATTENTION_TOKENS] = RING_OP(ring_token_rules),
                                                              [TSHI_ATTENTION_SHARED] = RING_OP(ring_shared_rules)};
