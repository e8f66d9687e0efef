/* What the ways of attention share: the checks of a call, and what the device computes for it. */
#include "functional/attention.h"

#include <math.h>

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
    int64_t keys = ((const tshi_attention_params *)call->params)->keys;
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
    const tshi_attention_params *p = call->params;
    return call->inputs > 3 && !p->positions && !p->documents ? call->in[3] : NULL;
}

tsh_status tshi_attention_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tshi_attention_params *p = call->params;
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
    const tshi_attention_params *p = call->params;
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

tshi_attention tshi_attention_of(const tsh_call *call) {
    const tshi_attention_params *p = call->params;
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
