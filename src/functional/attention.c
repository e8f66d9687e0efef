/* Scaled dot-product attention, by heads. saved: the logarithms of the rows' sums of exponentials. */
#include "functional/functional.h"

#include <math.h>

/* q, k, v, lengths. In the third row, by heads, units are KV heads: ranks that share a unit hold the whole KV head and
 * some of its query heads. In the fourth, by tokens, each rank has some queries and all keys. */
static const tsh_rule attention_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_S0, TSH_AS_S0, TSH_AS_S0, TSH_AS_S0}, TSH_AS_S0},
    {{TSH_AS_S2, TSH_AS_S2_WHOLE, TSH_AS_S2_WHOLE, TSH_AS_R}, TSH_AS_S2},
    {{TSH_AS_S1, TSH_AS_L, TSH_AS_L, TSH_AS_R}, TSH_AS_S1},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};
/* q, k, v, then positions or documents, or both, in pairs of queries' and keys'; [B, T], below [T]. */
static const tsh_rule token_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_S0, TSH_AS_S0, TSH_AS_S0, TSH_AS_S0, TSH_AS_S0, TSH_AS_S0, TSH_AS_S0}, TSH_AS_S0},
    {{TSH_AS_S2, TSH_AS_S2_WHOLE, TSH_AS_S2_WHOLE, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_S2},
    {{TSH_AS_S1, TSH_AS_L, TSH_AS_L, TSH_AS_S1, TSH_AS_L, TSH_AS_S1, TSH_AS_L}, TSH_AS_S1},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};
static const tsh_rule shared_token_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_S0, TSH_AS_S0, TSH_AS_S0, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_S0},
    {{TSH_AS_S2, TSH_AS_S2_WHOLE, TSH_AS_S2_WHOLE, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_S2},
    {{TSH_AS_S1, TSH_AS_L, TSH_AS_L, TSH_AS_S0, TSH_AS_L, TSH_AS_S0, TSH_AS_L}, TSH_AS_S1},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};

typedef struct attention_params {
    int64_t causal;               /* or 0 */
    int64_t positions, documents; /* the input with the queries', before the keys'; 0: none */
    int64_t keys;                 /* the number of keys in use of those that k and v have room for; 0: all */
    double scale, dropout;
    uint64_t seed, stream;
} attention_params;

static tsh_status check_shapes(const tsh_call *call) {
    const tsh_shape *q = &call->in[0]->shape, *k = &call->in[1]->shape, *v = &call->in[2]->shape;
    bool good = q->ndim == 4 && k->ndim == 4 && q->global[0] == k->global[0] && q->global[3] == k->global[3];
    if (!good) return tshi_check_fails(call->in[0], call->in[1], "q [B, Tq, H, D], k [B, Tk, Hkv, D] wanted");
    good = v->ndim == 4;
    for (int d = 0; good && d < 4; d++) good = v->global[d] == k->global[d];
    if (!good) return tshi_check_fails(call->in[1], call->in[2], "k and v of one shape [B, Tk, Hkv, D] wanted");
    int64_t heads = q->global[2], kv_heads = k->global[2];
    if (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0) {
        return tshi_check_fails(call->in[0], call->in[1], "the heads of q a multiple of those of k wanted");
    }
    return TSH_OK;
}

static int64_t keys_of(const tsh_call *call) {
    int64_t keys = ((const attention_params *)call->params)->keys;
    return keys ? keys : call->in[1]->shape.global[1];
}

/* With `keys` set, k's gradient would cover only the keys in use. */
static tsh_status check_keys(const tsh_call *call) {
    int64_t keys = keys_of(call), room = call->in[1]->shape.global[1];
    if (keys < 0 || keys > room) {
        return tshi_fail(TSH_ERR_SHAPE, "keys is %lld, k has %lld positions", (long long)keys, (long long)room);
    }
    if (keys == room || !tshi_call_records(call)) return TSH_OK;
    return tshi_fail(TSH_ERR_STATE, "keys is %lld of %lld positions: using fewer is possible only in evaluation",
                     (long long)keys, (long long)room);
}

/* Checks the numbers of queries and of keys, inputs i and i + 1. */
static tsh_status check_tokens(const tsh_call *call, int i) {
    for (int side = 0; i > 0 && side < 2; side++) {
        const tsh_tensor *numbers = call->in[i + side], *tokens = call->in[side];
        const tsh_shape *s = &numbers->shape;
        if (numbers->dtype != TSH_INT64) {
            return tshi_fail(TSH_ERR_DTYPE, "positions or documents are %s: int64 wanted",
                             tsh_dtype_name(numbers->dtype));
        }
        bool good = s->ndim == call->in[3]->shape.ndim && (s->ndim == 1 || s->ndim == 2) &&
                    s->global[s->ndim - 1] == tokens->shape.global[1] &&
                    (s->ndim == 1 || s->global[0] == tokens->shape.global[0]);
        if (!good) {
            return tshi_check_fails(tokens, numbers,
                                    "[B, T, H, D] and positions and documents [T], or all [B, T], wanted");
        }
    }
    return TSH_OK;
}

static tsh_status check_lengths_shape(const tsh_tensor *q, const tsh_tensor *lengths) {
    if (lengths->dtype != TSH_INT64) {
        return tshi_fail(TSH_ERR_DTYPE, "lengths are %s: int64 wanted", tsh_dtype_name(lengths->dtype));
    }
    bool good = lengths->shape.ndim == 1 && lengths->shape.global[0] == q->shape.global[0];
    return good ? TSH_OK : tshi_check_fails(q, lengths, "q [B, Tq, H, D], lengths [B] wanted");
}

/* The input of lengths, or NULL. */
static const tsh_tensor *lengths_of(const tsh_call *call) {
    const attention_params *p = call->params;
    return call->inputs > 3 && !p->positions && !p->documents ? call->in[3] : NULL;
}

static tsh_status attention_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const attention_params *p = call->params;
    const tsh_tensor *q = call->in[0];
    *out = q->shape;
    *dtype = q->dtype;
    tsh_status status = tshi_check_computes(q->mesh->device, q->dtype, "q");
    if (status == TSH_OK) status = check_shapes(call);
    if (status == TSH_OK) status = check_keys(call);
    if (status != TSH_OK) return status;
    for (int i = 1; i < 3; i++) {
        if (call->in[i]->dtype == q->dtype) continue;
        return tshi_fail(TSH_ERR_DTYPE, "q is %s, %c is %s", tsh_dtype_name(q->dtype), "qkv"[i],
                         tsh_dtype_name(call->in[i]->dtype));
    }
    if (!isfinite(p->scale)) return tshi_fail(TSH_ERR_ARGUMENT, "scale is %g, must be finite", p->scale);
    if (!(p->dropout >= 0 && p->dropout < 1)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "dropout is %g, must be in [0, 1)", p->dropout);
    }
    if (lengths_of(call)) return check_lengths_shape(q, lengths_of(call));
    status = check_tokens(call, (int)p->positions);
    return status == TSH_OK ? check_tokens(call, (int)p->documents) : status;
}

/* True when other ranks compute the same, or the world is deterministic. */
static bool shares_query_heads(const tsh_tensor *q) {
    const tsh_mesh *mesh = q->mesh;
    for (int a = 0; a < mesh->axes; a++)
        if (mesh->axis[a].size > 1 && q->layout[a].kind == TSH_KIND_REPLICATED) return true;
    return mesh->world->deterministic;
}

static tshi_tokens tokens_of(const tsh_call *call) {
    const attention_params *p = call->params;
    tshi_tokens t = {.batched = call->inputs > 3 && call->in[3]->shape.ndim == 2};
    if (p->positions) {
        t.query_position = tshi_data(call->in[p->positions]);
        t.key_position = tshi_data(call->in[p->positions + 1]);
    }
    if (p->documents) {
        t.query_document = tshi_data(call->in[p->documents]);
        t.key_document = tshi_data(call->in[p->documents + 1]);
    }
    return t;
}

static tshi_attention attention_of(const tsh_call *call) {
    const attention_params *p = call->params;
    const tsh_tensor *q = call->in[0], *k = call->in[1];
    int64_t head = tshi_shape_start(q->mesh, &q->shape, q->layout, 2);
    int64_t kv_head = tshi_shape_start(k->mesh, &k->shape, k->layout, 2);
    int64_t sharers = k->shape.global[2] > 0 ? q->shape.global[2] / k->shape.global[2] : 1;
    int64_t before = tshi_shape_start(q->mesh, &q->shape, q->layout, 1);
    return (tshi_attention){.batch = q->shape.local[0],
                            .queries = q->shape.local[1],
                            .queries_before = before,
                            .queries_after = q->shape.global[1] - before - q->shape.local[1],
                            .keys = keys_of(call),
                            .capacity = k->shape.local[1],
                            .heads = q->shape.local[2],
                            .kv_heads = k->shape.local[2],
                            .dim = q->shape.local[3],
                            .sharers = sharers,
                            .shift = head - kv_head * sharers,
                            .causal = p->causal,
                            .tokens = tokens_of(call),
                            .repeats = shares_query_heads(q),
                            .scale = p->scale,
                            .lengths = tshi_data(lengths_of(call)),
                            .dropout = p->dropout,
                            .seed = p->seed,
                            .stream = p->stream,
                            .batch_start = tshi_shape_start(q->mesh, &q->shape, q->layout, 0),
                            .head_start = head,
                            .heads_whole = q->shape.global[2]};
}

static tsh_status check_lengths(const tsh_call *call, const tshi_attention *a) {
    tsh_device *device = tshi_device_of(call->in[0]);
    if (!a->lengths) return TSH_OK;
    int64_t bad = device->ops->ids_check(device, a->batch, a->lengths, a->keys + 1);
    if (bad < 0) return TSH_OK;
    return tshi_fail(TSH_ERR_RANGE, "length %lld of batch %lld, there are %lld keys", (long long)a->lengths[bad],
                     (long long)(a->batch_start + bad), (long long)a->keys);
}

static tsh_status attention_forward(tsh_call *call) {
    const tsh_tensor *q = call->in[0];
    tsh_device *device = tshi_device_of(q);
    const tshi_attention_ops *ops = &device->ops->attention[q->dtype];
    tshi_attention a = attention_of(call);
    bool saves = tshi_call_records(call);
    tsh_status status = check_lengths(call, &a);
    if (status != TSH_OK) return status;
    const tsh_tensor *scratch = tshi_statistics_scratch(call, q, ops->scratch(device, &a, false));
    const tsh_tensor *sums = saves ? tshi_statistics_save(call, 0, q, a.batch * a.heads * a.queries) : NULL;
    if (!scratch || (saves && !sums)) return TSH_ERR_MEMORY;
    ops->forward(device, &a, tshi_data(q), tshi_data(call->in[1]), tshi_data(call->in[2]), tshi_data(call->out),
                 tshi_data(sums), tshi_data(scratch));
    return TSH_OK;
}

/* Input i's gradient, or NULL where it wants none. Where one tensor is several inputs, the kernel adds all their
 * gradients to one, in an order of its own. */
static tsh_status gradient_of(const tsh_call *call, int i, void **to, double *beta) {
    bool shared = call->in[0] == call->in[1] || call->in[0] == call->in[2] || call->in[1] == call->in[2];
    *beta = 1;
    if (!tsh_call_wants_grad(call, i)) return TSH_OK;
    tsh_tensor *gradient = shared ? tsh_call_grad(call, i) : tshi_grad_beta(call, i, beta);
    *to = tshi_data(gradient);
    return gradient ? TSH_OK : TSH_ERR_MEMORY;
}

static tsh_status attention_backward(tsh_call *call) {
    const tsh_tensor *q = call->in[0];
    tsh_device *device = tshi_device_of(q);
    const tshi_attention_ops *ops = &device->ops->attention[q->dtype];
    tshi_attention a = attention_of(call);
    tshi_attention_grads grads = {NULL, NULL, NULL, 0, 0, 0};
    tsh_status status = gradient_of(call, 0, &grads.dq, &grads.beta_q);
    if (status == TSH_OK) status = gradient_of(call, 1, &grads.dk, &grads.beta_k);
    if (status == TSH_OK) status = gradient_of(call, 2, &grads.dv, &grads.beta_v);
    if (status != TSH_OK) return status;
    const tsh_tensor *scratch = tshi_statistics_scratch(call, q, ops->scratch(device, &a, true));
    if (!scratch) return TSH_ERR_MEMORY;
    ops->backward(device, &a, tshi_data(q), tshi_data(call->in[1]), tshi_data(call->in[2]), tshi_data(call->out),
                  tshi_data(call->saved[0]), tshi_data(tsh_call_grad_out(call)), &grads, tshi_data(scratch));
    return TSH_OK;
}

static const tsh_op attention_op = {"attention",         attention_rules,    attention_shape,
                                    attention_forward,   attention_backward, .params_size = sizeof(attention_params),
                                    .reads_output = true};
static const tsh_op token_op = {"attention",         token_rules,        attention_shape,
                                attention_forward,   attention_backward, .params_size = sizeof(attention_params),
                                .reads_output = true};
static const tsh_op shared_token_op = {"attention",         shared_token_rules, attention_shape,
                                       attention_forward,   attention_backward, .params_size = sizeof(attention_params),
                                       .reads_output = true};

/* Positions and documents come in pairs, and neither with lengths nor with a part of the keys. */
static bool tokens_fit(tsh_tape *tape, const tsh_attention_config *c) {
    const char *why = NULL;
    if (!c->query_positions != !c->key_positions) why = "positions of both queries and keys are required";
    if (!c->query_documents != !c->key_documents) why = "documents of both queries and keys are required";
    bool tokens = c->query_positions || c->query_documents;
    if (tokens && (c->lengths || c->keys))
        why = "lengths or keys, as of a cache, do not go with positions or documents";
    if (why) tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "attention: %s", why);
    return !why;
}

tsh_tensor *tsh_attention(tsh_tape *tape, tsh_tensor *q, tsh_tensor *k, tsh_tensor *v,
                          const tsh_attention_config *config) {
    /* Without a tape the call fails, whatever its configuration is. */
    tsh_attention_config c = config && tape ? *config : (tsh_attention_config){0};
    tsh_tensor *in[TSH_ROW_INPUTS] = {q, k, v, c.lengths};
    int inputs = c.lengths ? 4 : 3;
    attention_params params = {.causal = c.causal, .scale = c.scale, .dropout = c.dropout, .keys = c.keys};
    if (tape && !tokens_fit(tape, &c)) return NULL;
    if (c.query_positions) {
        params.positions = inputs;
        in[inputs++] = c.query_positions;
        in[inputs++] = c.key_positions;
    }
    if (c.query_documents) {
        params.documents = inputs;
        in[inputs++] = c.query_documents;
        in[inputs++] = c.key_documents;
    }
    if (c.scale == 0 && q && q->shape.ndim > 0) params.scale = 1 / sqrt((double)q->shape.global[q->shape.ndim - 1]);
    if (q && q->numel == 0 && !isfinite(params.scale)) params.scale = 1;
    if (tape && !tape->recording) params.dropout = 0;
    if (params.dropout != 0 && tshi_tape_ready(tape, "attention", 1, &q)) {
        params.seed = tape->world->seed;
        params.stream = tshi_world_stream(tape->world);
    }
    const tsh_op *op = !params.positions && !params.documents ? &attention_op
                       : in[3]->shape.ndim == 1               ? &shared_token_op
                                                              : &token_op;
    return tshi_apply(tape, op, inputs, in, &params);
}
