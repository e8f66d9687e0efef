/* A linear layer with a low-rank adapter: y = x W^T + scale (drop(x) A^T) B^T + b. */
#include "functional/functional.h"

typedef struct adapted_params {
    double scale;
    tshi_dropout dropout;
} adapted_params;

enum { X, WEIGHT, A, B, BIAS };

/* Saved: DOWN, drop(x) A^T; DDOWN, its gradient scale dy B, which backward computes for dx and dA. */
enum { DOWN, DDOWN };

/* The factor that is whole beside split weights is used as a LOCAL one: its gradient is summed over the axis. */
static const tsh_rule adapted_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_BATCH, TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_BATCH},
    {{TSH_AS_L, TSH_AS_S0, TSH_AS_L, TSH_AS_S0, TSH_AS_S0}, TSH_AS_LAST}, /* column */
    {{TSH_AS_LAST, TSH_AS_S1, TSH_AS_S1, TSH_AS_L, TSH_AS_P}, TSH_AS_P},  /* row: a term of the sum */
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};

/* A tensor's elements as a row-major matrix. */
typedef struct matrix {
    const tsh_tensor *tensor;
    int64_t rows, cols;
} matrix;

static matrix matrix_of(const tsh_tensor *t) {
    return (matrix){t, tshi_rows(t), tshi_cols(t)};
}

/* The rank r of the adapter. */
static int64_t rank_of(const tsh_call *call) {
    return call->in[A]->shape.global[0];
}

/* c = alpha op(a) op(b) + beta c */
static tsh_status matrix_product(double alpha, matrix a, bool transpose_a, matrix b, bool transpose_b, double beta,
                                 matrix c) {
    tsh_device *device = tshi_device_of(a.tensor);
    return device->ops->product.gemm(device, a.tensor->dtype, transpose_a, transpose_b, c.rows, c.cols,
                                     transpose_a ? a.rows : a.cols, alpha, tshi_data(a.tensor), a.cols,
                                     tshi_data(b.tensor), b.cols, beta, tshi_data(c.tensor), c.cols);
}

/* *out = the adapter's input: x, or drop(x), which backward makes again, in scratch. */
static tsh_status adapter_input(tsh_call *call, matrix *out) {
    const adapted_params *p = call->params;
    const tsh_tensor *x = call->in[X];
    *out = matrix_of(x);
    if (p->dropout.p == 0) return TSH_OK;
    tsh_tensor *dropped = tsh_call_scratch(call, x->dtype, x->numel);
    if (!dropped) return TSH_ERR_MEMORY;
    out->tensor = dropped;
    return tshi_drop_out(&p->dropout, x, x, 0, dropped);
}

/* The base is computed as it is without an adapter, so that a B of zeros adds nothing to its bits. */
static tsh_status adapted_forward(tsh_call *call) {
    const adapted_params *p = call->params;
    const tsh_tensor *x = call->in[X], *y = call->out, *bias = call->inputs > BIAS ? call->in[BIAS] : NULL;
    tsh_device *device = tshi_device_of(x);
    int64_t rows = tshi_rows(x), count = rows * rank_of(call);
    bool saves = tshi_call_records(call) && tsh_call_wants_grad(call, B);
    matrix down = {saves ? tsh_call_save(call, DOWN, x->dtype, count) : tsh_call_scratch(call, x->dtype, count), rows,
                   rank_of(call)};
    matrix input;
    if (!down.tensor) return TSH_ERR_MEMORY;
    tsh_status status =
        device->ops->product.affine(device, x->dtype, rows, tshi_cols(y), tshi_cols(x), tshi_data(x),
                                    tshi_data(call->in[WEIGHT]), tshi_data(bias), TSHI_IDENTITY, NULL, tshi_data(y));
    if (status == TSH_OK) status = adapter_input(call, &input);
    if (status == TSH_OK) status = matrix_product(1, input, false, matrix_of(call->in[A]), true, 0, down);
    if (status != TSH_OK) return status;
    return matrix_product(p->scale, down, false, matrix_of(call->in[B]), true, 1, matrix_of(y));
}

/* Computes d(drop(x) A^T) = scale dy B, unless it is there. */
static tsh_status down_gradient(tsh_call *call, matrix *out) {
    const adapted_params *p = call->params;
    matrix dy = matrix_of(tsh_call_grad_out(call));
    bool there = call->saved[DDOWN] != NULL;
    const tsh_tensor *ddown =
        there ? call->saved[DDOWN] : tsh_call_save(call, DDOWN, dy.tensor->dtype, dy.rows * rank_of(call));
    *out = (matrix){ddown, dy.rows, rank_of(call)};
    if (!ddown) return TSH_ERR_MEMORY;
    return there ? TSH_OK : matrix_product(p->scale, dy, false, matrix_of(call->in[B]), false, 0, *out);
}

/* dx += drop(ddown A) */
static tsh_status add_input_gradient(tsh_call *call, matrix ddown, tsh_tensor *dx) {
    const adapted_params *p = call->params;
    matrix a = matrix_of(call->in[A]), to = matrix_of(dx);
    if (p->dropout.p == 0) return matrix_product(1, ddown, false, a, false, 1, to);
    tsh_tensor *dropped = tsh_call_scratch(call, dx->dtype, dx->numel);
    if (!dropped) return TSH_ERR_MEMORY;
    tsh_status status = matrix_product(1, ddown, false, a, false, 0, (matrix){dropped, to.rows, to.cols});
    return status == TSH_OK ? tshi_drop_out(&p->dropout, call->in[X], dropped, 1, dx) : status;
}

/* dx = dy W + drop(d(drop(x) A^T) A). A second backward of a retained graph has another dy. */
static tsh_status adapted_backward(tsh_call *call) {
    double beta;
    matrix ddown, dy = matrix_of(tsh_call_grad_out(call));
    tshi_tensor_release(call->saved[DDOWN]);
    call->saved[DDOWN] = NULL;
    if (!tsh_call_wants_grad(call, X)) return TSH_OK;
    tsh_status status = down_gradient(call, &ddown);
    tsh_tensor *dx = status == TSH_OK ? tshi_grad_beta(call, X, &beta) : NULL;
    if (!dx) return TSH_ERR_MEMORY;
    status = matrix_product(1, dy, false, matrix_of(call->in[WEIGHT]), false, beta, matrix_of(dx));
    if (status != TSH_OK) return status;
    return add_input_gradient(call, ddown, dx);
}

/* Input i's gradient += alpha a^T b, if it wants one. */
static tsh_status add_product(const tsh_call *call, int i, double alpha, matrix a, matrix b) {
    double beta;
    if (!tsh_call_wants_grad(call, i)) return TSH_OK;
    tsh_tensor *gradient = tshi_grad_beta(call, i, &beta);
    return gradient ? matrix_product(alpha, a, true, b, false, beta, matrix_of(gradient)) : TSH_ERR_MEMORY;
}

/* dA = d(drop(x) A^T)^T drop(x) */
static tsh_status add_a_gradient(tsh_call *call) {
    matrix ddown, input;
    if (!tsh_call_wants_grad(call, A)) return TSH_OK;
    tsh_status status = down_gradient(call, &ddown);
    if (status == TSH_OK) status = adapter_input(call, &input);
    return status == TSH_OK ? add_product(call, A, 1, ddown, input) : status;
}

/* dB = scale dy^T (drop(x) A^T); dW and db where the base is not frozen. */
static tsh_status adapted_backward_rest(tsh_call *call) {
    const adapted_params *p = call->params;
    const tsh_tensor *gradient = tsh_call_grad_out(call);
    tsh_device *device = tshi_device_of(gradient);
    matrix dy = matrix_of(gradient), x = matrix_of(call->in[X]);
    tsh_status status = add_a_gradient(call);
    if (status == TSH_OK)
        status = add_product(call, B, p->scale, dy, (matrix){call->saved[DOWN], dy.rows, rank_of(call)});
    if (status == TSH_OK) status = add_product(call, WEIGHT, 1, dy, x);
    if (status != TSH_OK || !tsh_call_wants_grad(call, BIAS)) return status;
    tsh_tensor *db = tsh_call_grad(call, BIAS);
    if (!db) return TSH_ERR_MEMORY;
    device->ops->sum[dy.tensor->dtype].bias_backward(device, dy.rows, dy.cols, tshi_data(gradient), tshi_data(db));
    return TSH_OK;
}

static const tsh_op adapted_op = {"linear_forward",
                                  adapted_rules,
                                  tshi_linear_shape,
                                  adapted_forward,
                                  adapted_backward,
                                  .backward_rest = adapted_backward_rest,
                                  .params_size = sizeof(adapted_params)};

tsh_tensor *tshi_adapted_linear(tsh_tape *tape, int inputs, tsh_tensor **in, double scale, double dropout,
                                const tshi_want *want) {
    adapted_params params = {.scale = scale};
    if (!tshi_tape_ready(tape, adapted_op.name, inputs, in)) return NULL;
    params.dropout = tshi_dropout_begin(tape, dropout);
    return tshi_apply_as(tape, &adapted_op, inputs, in, &params, want);
}
