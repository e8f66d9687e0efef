/* Scaled dot-product attention, by heads. saved: the logarithms of the rows' sums of exponentials. */
#include "functional/attention.h"

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
    tshi_attention a = tshi_attention_of(call);
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
    tshi_attention a = tshi_attention_of(call);
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

static const tsh_op attention_op = {"attention",          attention_rules,
                                    tshi_attention_shape, attention_forward,
                                    attention_backward,   .params_size = sizeof(tshi_attention_params),
                                    .reads_output = true};
static const tsh_op token_op = {"attention",         token_rules,        tshi_attention_shape,
                                attention_forward,   attention_backward, .params_size = sizeof(tshi_attention_params),
                                .reads_output = true};
static const tsh_op shared_token_op = {"attention",          shared_token_rules,
                                       tshi_attention_shape, attention_forward,
                                       attention_backward,   .params_size = sizeof(tshi_attention_params),
                                       .reads_output = true};

/* Which of the kinds of inputs the call has, TSHI_ATTENTION_*. */
static int inputs_kind(const tshi_attention_params *p, const tsh_tensor *tokens) {
    if (!p->positions && !p->documents) return TSHI_ATTENTION_PLAIN;
    return tokens->shape.ndim == 1 ? TSHI_ATTENTION_SHARED : TSHI_ATTENTION_TOKENS;
}

/* Keys go round the ring where one axis splits the tokens, and the mask depends on neither indices nor lengths. */
static bool goes_round(const tsh_attention_config *c, const tshi_attention_params *p, tsh_tensor *const qkv[3]) {
    int axes = 0;
    const tsh_tensor *q = qkv[0];
    for (int a = 0; c->ring && q && a < q->mesh->axes; a++) {
        bool split = false;
        for (int i = 0; i < 3; i++) split = split || (qkv[i] && tshi_layout_splits(qkv[i]->layout[a], 1));
        axes += split && q->mesh->axis[a].size > 1;
    }
    bool masks = !p->causal || p->positions;
    return c->ring && axes == 1 && masks && !c->lengths && !c->keys && p->dropout == 0;
}

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
    tshi_attention_params params = {.causal = c.causal, .scale = c.scale, .dropout = c.dropout, .keys = c.keys};
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
    static const tsh_op *const ops[] = {[TSHI_ATTENTION_PLAIN] = &attention_op,
                                        [TSHI_ATTENTION_TOKENS] = &token_op,
                                        [TSHI_ATTENTION_SHARED] = &shared_token_op};
    int rows = tape ? inputs_kind(&params, in[3]) : TSHI_ATTENTION_PLAIN;
    bool ring = tape && !tape->world->deterministic && goes_round(&c, &params, in);
    return tshi_apply(tape, ring ? &tshi_ring_attention_ops[rows] : ops[rows], inputs, in, &params);
}
