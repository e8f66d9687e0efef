/* Elementwise functions. */
#include "functional/functional.h"

static tsh_status equal_shapes(const tshi_node *call, tsh_dtype *dtype, tshi_shape *out) {
    char a[160], b[160];
    *out = call->in[0]->shape;
    for (int i = 1; i < call->inputs; i++) {
        const tshi_shape *s = &call->in[i]->shape;
        bool equal = s->ndim == out->ndim;
        for (int d = 0; equal && d < s->ndim; d++) equal = s->global[d] == out->global[d];
        if (equal) continue;
        return tshi_fail(TSH_ERR_SHAPE, "%s and %s: equal shapes wanted", tsh_tensor_describe(call->in[0], a, sizeof a),
                         tsh_tensor_describe(call->in[i], b, sizeof b));
    }
    return tshi_check_floats(call, dtype);
}

/* --- add, sub: z = x + sign y ------------------------------------------------------------------------------------- */

static const tshi_rule add_rules[] = {
    {{TSHI_R, TSHI_R}, TSHI_R}, {{TSHI_ANY, TSHI_ANY}, TSHI_ANY}, {{TSHI_P, TSHI_P}, TSHI_P},
    {{TSHI_L, TSHI_L}, TSHI_L}, {{TSHI_END}, TSHI_END},
};

static tsh_status add_forward(tsh_tape *tape, tshi_node *call) {
    (void)tape;
    return tshi_op_axpby(1, call->in[0], call->attr.f[0], call->in[1], call->out);
}

static tsh_status add_backward(tsh_tape *tape, tshi_node *call) {
    (void)tape;
    tsh_status status = TSH_OK;
    for (int i = 0; i < 2 && status == TSH_OK; i++) {
        if (!tshi_wants_grad(call, i)) continue;
        if (i == 0 || call->attr.f[0] == 1) {
            status = tshi_grad_adopt(call, i, tshi_grad_out(call));
            continue;
        }
        double beta;
        tsh_tensor *dy = tshi_grad_beta(call, i, &beta);
        status = dy ? tshi_op_axpby(call->attr.f[0], tshi_grad_out(call), beta, dy, dy) : TSH_ERR_MEMORY;
    }
    return status;
}

static const tshi_op add_op = {"add", add_rules, NULL, equal_shapes, add_forward, add_backward, false};
static const tshi_op sub_op = {"sub", add_rules, NULL, equal_shapes, add_forward, add_backward, false};

tsh_tensor *tsh_add(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y) {
    return tshi_apply(tape, &(tshi_node){.op = &add_op, .inputs = 2, .in = (tsh_tensor *[]){x, y}, .attr.f = {1}});
}

tsh_tensor *tsh_sub(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y) {
    return tshi_apply(tape, &(tshi_node){.op = &sub_op, .inputs = 2, .in = (tsh_tensor *[]){x, y}, .attr.f = {-1}});
}

/* --- mul ---------------------------------------------------------------------------------------------------------- */

static const tshi_rule mul_rules[] = {
    {{TSHI_HAS_P, TSHI_COPY}, TSHI_P}, {{TSHI_COPY, TSHI_HAS_P}, TSHI_P}, {{TSHI_R, TSHI_R}, TSHI_R},
    {{TSHI_ANY, TSHI_ANY}, TSHI_ANY},  {{TSHI_L, TSHI_L}, TSHI_L},        {{TSHI_END}, TSHI_END},
};

static tsh_status mul_forward(tsh_tape *tape, tshi_node *call) {
    (void)tape;
    return tshi_op_mul(call->in[0], call->in[1], 0, call->out);
}

static tsh_status mul_backward(tsh_tape *tape, tshi_node *call) {
    (void)tape;
    for (int i = 0; i < 2; i++) {
        if (!tshi_wants_grad(call, i)) continue;
        double beta;
        tsh_tensor *dx = tshi_grad_beta(call, i, &beta);
        if (!dx) return TSH_ERR_MEMORY;
        tsh_status status = tshi_op_mul(call->in[1 - i], tshi_grad_out(call), beta, dx);
        if (status != TSH_OK) return status;
    }
    return TSH_OK;
}

static const tshi_op mul_op = {"mul", mul_rules, NULL, equal_shapes, mul_forward, mul_backward, false};

tsh_tensor *tsh_mul(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y) {
    return tshi_apply(tape, &(tshi_node){.op = &mul_op, .inputs = 2, .in = (tsh_tensor *[]){x, y}});
}

/* --- scale -------------------------------------------------------------------------------------------------------- */

static const tshi_rule scale_rules[] = {
    {{TSHI_R}, TSHI_R}, {{TSHI_ANY}, TSHI_ANY}, {{TSHI_P}, TSHI_P}, {{TSHI_L}, TSHI_L}, {{TSHI_END}, TSHI_END},
};

static tsh_status scale_forward(tsh_tape *tape, tshi_node *call) {
    (void)tape;
    return tshi_op_axpby(call->attr.f[0], call->in[0], 0, NULL, call->out);
}

static tsh_status scale_backward(tsh_tape *tape, tshi_node *call) {
    (void)tape;
    double beta;
    tsh_tensor *dx = tshi_grad_beta(call, 0, &beta);
    return dx ? tshi_op_axpby(call->attr.f[0], tshi_grad_out(call), beta, dx, dx) : TSH_ERR_MEMORY;
}

static const tshi_op scale_op = {"scale", scale_rules, NULL, equal_shapes, scale_forward, scale_backward, false};

tsh_tensor *tsh_scale(tsh_tape *tape, tsh_tensor *x, double factor) {
    return tshi_apply(tape, &(tshi_node){.op = &scale_op, .inputs = 1, .in = (tsh_tensor *[]){x}, .attr.f = {factor}});
}

/* --- bias --------------------------------------------------------------------------------------------------------- */

static const tshi_rule bias_rules[] = {
    {{TSHI_R, TSHI_R}, TSHI_R}, {{TSHI_LAST, TSHI_S0}, TSHI_LAST}, {{TSHI_BATCH, TSHI_L}, TSHI_BATCH},
    {{TSHI_P, TSHI_P}, TSHI_P}, {{TSHI_L, TSHI_L}, TSHI_L},        {{TSHI_END}, TSHI_END},
};

static tsh_status bias_shape(const tshi_node *call, tsh_dtype *dtype, tshi_shape *out) {
    const tshi_shape *x = &call->in[0]->shape, *b = &call->in[1]->shape;
    char text[2][160];
    *out = *x;
    if (x->ndim < 1 || b->ndim != 1 || x->global[x->ndim - 1] != b->global[0]) {
        return tshi_fail(TSH_ERR_SHAPE, "%s and %s: x [..., n] and b [n] wanted",
                         tsh_tensor_describe(call->in[0], text[0], sizeof text[0]),
                         tsh_tensor_describe(call->in[1], text[1], sizeof text[1]));
    }
    return tshi_check_floats(call, dtype);
}

static tsh_status bias_forward(tsh_tape *tape, tshi_node *call) {
    (void)tape;
    return tshi_op_bias(call->in[0], call->in[1], call->out);
}

static tsh_status bias_backward(tsh_tape *tape, tshi_node *call) {
    (void)tape;
    tsh_status status = TSH_OK;
    if (tshi_wants_grad(call, 1)) {
        tsh_tensor *db = tshi_grad(call, 1);
        status = db ? tshi_op_bias_backward(tshi_grad_out(call), db) : TSH_ERR_MEMORY;
    }
    if (status == TSH_OK && tshi_wants_grad(call, 0)) status = tshi_grad_adopt(call, 0, tshi_grad_out(call));
    return status;
}

static const tshi_op bias_op = {"bias", bias_rules, NULL, bias_shape, bias_forward, bias_backward, false};

tsh_tensor *tsh_bias(tsh_tape *tape, tsh_tensor *x, tsh_tensor *b) {
    return tshi_apply(tape, &(tshi_node){.op = &bias_op, .inputs = 2, .in = (tsh_tensor *[]){x, b}});
}

/* --- activations -------------------------------------------------------------------------------------------------- */

static const tshi_rule pointwise_rules[] = {
    {{TSHI_R}, TSHI_R},
    {{TSHI_ANY}, TSHI_ANY},
    {{TSHI_L}, TSHI_L},
    {{TSHI_END}, TSHI_END},
};

static tsh_status unary_forward(tsh_tape *tape, tshi_node *call) {
    tshi_unary f = (tshi_unary)call->attr.i[0];
    return call->attr.i[1] ? tshi_affine_late(tape, f, call->in[0], call->out)
                           : tshi_op_unary(f, call->in[0], call->out);
}

static tsh_status unary_backward(tsh_tape *tape, tshi_node *call) {
    (void)tape;
    double beta;
    tsh_tensor *dx = tshi_grad_beta(call, 0, &beta);
    return dx ? tshi_op_unary_backward((tshi_unary)call->attr.i[0], call->in[0], tshi_grad_out(call), beta, dx)
              : TSH_ERR_MEMORY;
}

static const tshi_op unary_ops[TSHI_UNARY_COUNT] = {
    [TSHI_GELU_ERF] = {"gelu", pointwise_rules, NULL, equal_shapes, unary_forward, unary_backward, false},
    [TSHI_GELU_TANH] = {"gelu_tanh", pointwise_rules, NULL, equal_shapes, unary_forward, unary_backward, false},
    [TSHI_RELU] = {"relu", pointwise_rules, NULL, equal_shapes, unary_forward, unary_backward, false},
    [TSHI_SILU] = {"silu", pointwise_rules, NULL, equal_shapes, unary_forward, unary_backward, false},
};

tsh_tensor *tshi_activate(tsh_tape *tape, tsh_tensor *x, tshi_unary f, bool with_product) {
    if (f == TSHI_UNARY_COUNT) return x;
    return tshi_apply(
        tape, &(tshi_node){.op = &unary_ops[f], .inputs = 1, .in = (tsh_tensor *[]){x}, .attr.i = {f, with_product}});
}

tsh_tensor *tsh_gelu(tsh_tape *tape, tsh_tensor *x) {
    return tshi_activate(tape, x, TSHI_GELU_ERF, false);
}

tsh_tensor *tsh_gelu_tanh(tsh_tape *tape, tsh_tensor *x) {
    return tshi_activate(tape, x, TSHI_GELU_TANH, false);
}

tsh_tensor *tsh_relu(tsh_tape *tape, tsh_tensor *x) {
    return tshi_activate(tape, x, TSHI_RELU, false);
}

tsh_tensor *tsh_silu(tsh_tape *tape, tsh_tensor *x) {
    return tshi_activate(tape, x, TSHI_SILU, false);
}

/* --- dropout ------------------------------------------------------------------------------------------------------ */

static tsh_status dropout_shape(const tshi_node *call, tsh_dtype *dtype, tshi_shape *out) {
    double p = call->attr.f[0];
    if (!(p >= 0 && p < 1)) return tshi_fail(TSH_ERR_ARGUMENT, "p is %g, wanted in [0, 1)", p);
    return equal_shapes(call, dtype, out);
}

static tsh_status dropout_forward(tsh_tape *tape, tshi_node *call) {
    (void)tape;
    return tshi_op_dropout(call->in[0], call->attr.seed, call->attr.stream, call->attr.f[0], 0, call->out);
}

static tsh_status dropout_backward(tsh_tape *tape, tshi_node *call) {
    (void)tape;
    double beta;
    tsh_tensor *dx = tshi_grad_beta(call, 0, &beta);
    if (!dx) return TSH_ERR_MEMORY;
    return tshi_op_dropout(tshi_grad_out(call), call->attr.seed, call->attr.stream, call->attr.f[0], beta, dx);
}

/* The mask of an element is the same on every rank: what it leaves of a term is a term of what it leaves of the sum. */
static const tshi_op dropout_op = {"dropout",       scale_rules,      NULL, dropout_shape,
                                   dropout_forward, dropout_backward, false};

tsh_tensor *tsh_dropout(tsh_tape *tape, tsh_tensor *x, double p) {
    if (tape && !tape->recording) return x;
    tshi_node call = {.op = &dropout_op, .inputs = 1, .in = (tsh_tensor *[]){x}, .attr.f = {p}};
    /* A step that is over draws no more, however far the program goes on with it: see tsh_tape_reset. */
    if (tape && tshi_tape_goes_on(tape)) {
        call.attr.seed = tape->world->seed;
        call.attr.stream = tshi_world_stream(tape->world);
    }
    return tshi_apply(tape, &call);
}
