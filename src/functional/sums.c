/* Sum and mean. */
#include "functional/functional.h"

static const tshi_rule sum_rules[] = {
    {{TSHI_R}, TSHI_R}, {{TSHI_OTHER}, TSHI_OTHER}, {{TSHI_DIM}, TSHI_P},
    {{TSHI_P}, TSHI_P}, {{TSHI_L}, TSHI_L},         {{TSHI_END}, TSHI_END},
};
static const tshi_rule sum_all_rules[] = {
    {{TSHI_R}, TSHI_R}, {{TSHI_ANY}, TSHI_P}, {{TSHI_P}, TSHI_P}, {{TSHI_L}, TSHI_L}, {{TSHI_END}, TSHI_END},
};

/* Dims after the one that goes away move up. */
static int sum_map_dim(const tshi_node *call, int axis, int d) {
    (void)axis;
    return d > call->attr.dim ? d - 1 : d;
}

static tsh_status sum_shape(const tshi_node *call, tsh_dtype *dtype, tshi_shape *out) {
    const tshi_shape *x = &call->in[0]->shape;
    for (int d = 0; d < x->ndim; d++) {
        if (d != call->attr.dim) out->global[out->ndim++] = x->global[d];
    }
    return tshi_check_floats(call, dtype);
}

static tsh_status sum_all_shape(const tshi_node *call, tsh_dtype *dtype, tshi_shape *out) {
    out->ndim = 0;
    return tshi_check_floats(call, dtype);
}

static tsh_status sum_forward(tsh_tape *tape, tshi_node *call) {
    (void)tape;
    return tshi_op_sum(call->in[0], call->attr.dim, call->attr.f[0], call->out);
}

static tsh_status sum_backward(tsh_tape *tape, tshi_node *call) {
    (void)tape;
    tsh_tensor *dx = tshi_grad(call, 0);
    return dx ? tshi_op_sum_backward(tshi_grad_out(call), call->attr.dim, call->attr.f[0], dx) : TSH_ERR_MEMORY;
}

static const tshi_op sum_op = {"sum", sum_rules, sum_map_dim, sum_shape, sum_forward, sum_backward, false};
static const tshi_op sum_all_op = {"sum", sum_all_rules, NULL, sum_all_shape, sum_forward, sum_backward, false};

/* Elements that one sum is over, of the whole. */
static double items(const tsh_tensor *x, int dim) {
    double n = 1;
    for (int d = 0; d < x->shape.ndim; d++) {
        if (dim < 0 || d == dim) n *= (double)x->shape.global[d];
    }
    return n;
}

static tsh_tensor *sum(tsh_tape *tape, tsh_tensor *x, int dim, bool mean) {
    bool all = dim == TSH_ALL_DIMS;
    tshi_node call = {
        .op = all ? &sum_all_op : &sum_op, .inputs = 1, .in = (tsh_tensor *[]){x}, .attr = {.dim = all ? -1 : dim}};
    if (!tshi_tape_ready(tape, call.op->name, 1, &x)) return NULL;
    tsh_status status = all ? TSH_OK : tshi_check_dim(x, &call.attr.dim);
    if (status != TSH_OK) return tshi_tape_fail_as(tape, status, call.op->name);
    call.attr.f[0] = mean ? 1 / items(x, call.attr.dim) : 1;
    return tshi_apply(tape, &call);
}

tsh_tensor *tsh_sum(tsh_tape *tape, tsh_tensor *x, int dim) {
    return sum(tape, x, dim, false);
}

tsh_tensor *tsh_mean(tsh_tape *tape, tsh_tensor *x, int dim) {
    return sum(tape, x, dim, true);
}
