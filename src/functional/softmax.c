/* Softmax and log-softmax, also along a sharded dim: there the rows' maxima and sums are reduced over the ranks. */
#include "functional/functional.h"

static const tshi_rule softmax_rules[] = {
    {{TSHI_R}, TSHI_R}, {{TSHI_OTHER}, TSHI_OTHER}, {{TSHI_DIM}, TSHI_DIM}, {{TSHI_L}, TSHI_L}, {{TSHI_END}, TSHI_END},
};

static tsh_status softmax_shape(const tshi_node *call, tsh_dtype *dtype, tshi_shape *out) {
    *out = call->in[0]->shape;
    return tshi_check_floats(call, dtype);
}

/* A row statistic over the axes that shard dim. */
static tsh_status reduce_rows(const tsh_tensor *x, int dim, tsh_tensor *stat, tsh_reduce_op op) {
    tsh_status status = TSH_OK;
    for (int a = 0; a < x->mesh->axes && status == TSH_OK; a++) {
        bool sharded = x->layout[a].kind == TSH_KIND_SHARD && x->layout[a].dim == dim;
        if (sharded && x->mesh->axis[a].size > 1) status = tsh_all_reduce(x->mesh->axis[a].group, stat, op);
    }
    return status;
}

static int64_t row_count(const tsh_tensor *x, int dim) {
    return tshi_outer(x, dim) * tshi_inner(x, dim);
}

static tsh_status softmax_forward(tsh_tape *tape, tshi_node *call) {
    (void)tape;
    tsh_tensor *x = call->in[0], *max = NULL, *sum = NULL;
    int dim = call->attr.dim;
    bool log = call->attr.i[0] != 0;
    tsh_status status = tshi_tensor_scratch(x->mesh, tshi_dtype_sum(x->dtype), row_count(x, dim), &max);
    if (status == TSH_OK) status = tshi_tensor_scratch(x->mesh, tshi_dtype_sum(x->dtype), row_count(x, dim), &sum);
    if (status == TSH_OK) status = tshi_op_softmax_max(x, dim, max);
    if (status == TSH_OK) status = reduce_rows(x, dim, max, TSH_MAX);
    if (status == TSH_OK) status = tshi_op_softmax_sum(x, dim, max, sum);
    if (status == TSH_OK) status = reduce_rows(x, dim, sum, TSH_SUM);
    if (status == TSH_OK) status = tshi_op_softmax(log, x, dim, max, sum, call->out);
    tsh_tensor_release(max);
    tsh_tensor_release(sum);
    return status;
}

static tsh_status softmax_backward(tsh_tape *tape, tshi_node *call) {
    (void)tape;
    tsh_tensor *y = call->out, *dy = tshi_grad_out(call), *dot = NULL;
    int dim = call->attr.dim;
    bool log = call->attr.i[0] != 0;
    tsh_status status = tshi_tensor_scratch(y->mesh, tshi_dtype_sum(y->dtype), row_count(y, dim), &dot);
    if (status == TSH_OK) status = tshi_op_softmax_dot(log, y, dim, dy, dot);
    if (status == TSH_OK) status = reduce_rows(y, dim, dot, TSH_SUM);
    tsh_tensor *dx = status == TSH_OK ? tshi_grad(call, 0) : NULL;
    if (status == TSH_OK) status = dx ? tshi_op_softmax_backward(log, y, dim, dy, dot, dx) : TSH_ERR_MEMORY;
    tsh_tensor_release(dot);
    return status;
}

static const tshi_op softmax_op = {"softmax",       softmax_rules,    NULL, softmax_shape,
                                   softmax_forward, softmax_backward, false};
static const tshi_op log_softmax_op = {"log_softmax",   softmax_rules,    NULL, softmax_shape,
                                       softmax_forward, softmax_backward, false};

static tsh_tensor *softmax(tsh_tape *tape, tsh_tensor *x, int dim, bool log) {
    tshi_node call = {.op = log ? &log_softmax_op : &softmax_op, .inputs = 1, .in = (tsh_tensor *[]){x}};
    call.attr.dim = dim;
    call.attr.i[0] = log;
    if (!tshi_tape_ready(tape, call.op->name, 1, &x)) return NULL;
    tsh_status status = tshi_check_dim(x, &call.attr.dim);
    return status == TSH_OK ? tshi_apply(tape, &call) : tshi_tape_fail_as(tape, status, call.op->name);
}

tsh_tensor *tsh_softmax(tsh_tape *tape, tsh_tensor *x, int dim) {
    return softmax(tape, x, dim, false);
}

tsh_tensor *tsh_log_softmax(tsh_tape *tape, tsh_tensor *x, int dim) {
    return softmax(tape, x, dim, true);
}
