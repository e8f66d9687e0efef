/* Matrix products. */
#include "functional/functional.h"

/* c = op(a) op(b) + beta c, each seen as a matrix [all dims but the last, the last]. */
static tsh_status multiply_matrices(const tsh_tensor *a, bool transpose_a, const tsh_tensor *b, bool transpose_b,
                                    double beta, tsh_tensor *c) {
    tsh_device *device = tshi_device_of(a);
    int64_t k = transpose_a ? tshi_rows(a) : tshi_cols(a);
    return device->ops->product.gemm(device, a->dtype, transpose_a, transpose_b, tshi_rows(c), tshi_cols(c), k, 1,
                                     tshi_data(a), tshi_cols(a), tshi_data(b), tshi_cols(b), beta, tshi_data(c),
                                     tshi_cols(c));
}

/* --- y = a b ------------------------------------------------------------------------------------------------------ */

static const tsh_rule matmul_rules[] = {
    {{TSH_HAS_P, TSH_AS_COPY}, TSH_AS_P},  {{TSH_AS_COPY, TSH_HAS_P}, TSH_AS_P},
    {{TSH_AS_R, TSH_AS_R}, TSH_AS_R},      {{TSH_AS_BATCH, TSH_AS_L}, TSH_AS_BATCH},
    {{TSH_AS_L, TSH_HAS_S1}, TSH_AS_LAST}, {{TSH_AS_LAST, TSH_AS_S0}, TSH_AS_P},
    {{TSH_AS_L, TSH_AS_L}, TSH_AS_L},      {{TSH_ROW_END}, TSH_ROW_END},
};
static const tsh_rule stack_rules[] = {
    {{TSH_HAS_P, TSH_AS_COPY}, TSH_AS_P},   {{TSH_AS_COPY, TSH_HAS_P}, TSH_AS_P},
    {{TSH_AS_R, TSH_AS_R}, TSH_AS_R},       {{TSH_AS_STACK, TSH_AS_STACK}, TSH_AS_STACK},
    {{TSH_AS_ROWS, TSH_AS_L}, TSH_AS_ROWS}, {{TSH_AS_L, TSH_HAS_LAST}, TSH_AS_LAST},
    {{TSH_AS_LAST, TSH_AS_ROWS}, TSH_AS_P}, {{TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};

static tsh_status matmul_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_shape *a = &call->in[0]->shape, *b = &call->in[1]->shape;
    if (a->ndim < 1 || b->ndim != 2 || a->global[a->ndim - 1] != b->global[0]) {
        return tshi_check_fails(call->in[0], call->in[1], "[..., k] and [k, n] wanted");
    }
    *out = *a;
    out->global[a->ndim - 1] = b->global[1];
    return tshi_check_floats(call, dtype);
}

static tsh_status stack_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_shape *a = &call->in[0]->shape, *b = &call->in[1]->shape;
    int n = a->ndim;
    bool fits = n == b->ndim && a->global[n - 1] == b->global[n - 2];
    for (int d = 0; fits && d < n - 2; d++) fits = a->global[d] == b->global[d];
    if (!fits) return tshi_check_fails(call->in[0], call->in[1], "[stack..., m, k] and [stack..., k, n] wanted");
    *out = *a;
    out->global[n - 1] = b->global[n - 1];
    return tshi_check_floats(call, dtype);
}

/* c = op(a) op(b) + beta c for each matrix of a stack, or with all dims but the last as the rows of one matrix. */
static tsh_status multiply_all(const tsh_call *call, const tsh_tensor *a, bool transpose_a, const tsh_tensor *b,
                               bool transpose_b, double beta, tsh_tensor *c) {
    int n = call->in[1]->shape.ndim;
    if (n == 2) return multiply_matrices(a, transpose_a, b, transpose_b, beta, c);
    tsh_device *device = tshi_device_of(a);
    const int64_t *as = a->shape.local + n - 2, *bs = b->shape.local + n - 2, *cs = c->shape.local + n - 2;
    return device->ops->product.gemm_batch(device, a->dtype, tshi_dims_between(c->shape.local, 0, n - 2), transpose_a,
                                           transpose_b, cs[0], cs[1], transpose_a ? as[0] : as[1], 1, tshi_data(a),
                                           as[1], as[0] * as[1], tshi_data(b), bs[1], bs[0] * bs[1], beta, tshi_data(c),
                                           cs[1], cs[0] * cs[1]);
}

static tsh_status matmul_forward(tsh_call *call) {
    return multiply_all(call, call->in[0], false, call->in[1], false, 0, call->out);
}

static tsh_status matmul_backward(tsh_call *call) {
    double beta;
    if (!tsh_call_wants_grad(call, 0)) return TSH_OK;
    tsh_tensor *da = tshi_grad_beta(call, 0, &beta);
    return da ? multiply_all(call, tsh_call_grad_out(call), false, call->in[1], true, beta, da) : TSH_ERR_MEMORY;
}

static tsh_status matmul_backward_rest(tsh_call *call) {
    double beta;
    tsh_tensor *db = tshi_grad_beta(call, 1, &beta);
    return db ? multiply_all(call, call->in[0], true, tsh_call_grad_out(call), false, beta, db) : TSH_ERR_MEMORY;
}

const tsh_op tshi_matmul_op = {"matmul",       matmul_rules,    matmul_shape,
                               matmul_forward, matmul_backward, .backward_rest = matmul_backward_rest};
static const tsh_op stack_op = {"matmul",       stack_rules,     stack_shape,
                                matmul_forward, matmul_backward, .backward_rest = matmul_backward_rest};

tsh_tensor *tsh_matmul(tsh_tape *tape, tsh_tensor *a, tsh_tensor *b) {
    const tsh_op *op = b && b->shape.ndim > 2 ? &stack_op : &tshi_matmul_op;
    return tshi_apply(tape, op, 2, (tsh_tensor *[]){a, b}, NULL);
}

/* --- y = f(x W^T + b) --------------------------------------------------------------------------------------------- */

typedef struct affine_params {
    tshi_unary f;
} affine_params;

/* Saved: PRE, f's argument z; DZ, dz, where backward must not overwrite z; MADE, dz where the call that uses f's result
 * has computed it. */
enum { PRE, DZ, MADE };

static const tsh_rule affine_rules[] = {
    {{TSH_HAS_P, TSH_AS_COPY, TSH_AS_P}, TSH_AS_P},   {{TSH_AS_COPY, TSH_HAS_P, TSH_AS_P}, TSH_AS_P},
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},       {{TSH_AS_BATCH, TSH_AS_L, TSH_AS_L}, TSH_AS_BATCH},
    {{TSH_AS_L, TSH_HAS_S0, TSH_AS_S0}, TSH_AS_LAST}, /* column; a LOCAL x by itself does not select it */
    {{TSH_AS_LAST, TSH_AS_S1, TSH_AS_P}, TSH_AS_P},   /* row: the bias is a term of the sum */
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},       {{TSH_ROW_END}, TSH_ROW_END},
};

static tsh_status affine_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_shape *x = &call->in[0]->shape, *w = &call->in[1]->shape;
    if (x->ndim < 1 || w->ndim != 2 || x->global[x->ndim - 1] != w->global[1]) {
        return tshi_check_fails(call->in[0], call->in[1], "x [..., in] and weight [out, in] wanted");
    }
    if (call->inputs == 3 && (call->in[2]->shape.ndim != 1 || call->in[2]->shape.global[0] != w->global[0])) {
        return tshi_check_fails(call->in[1], call->in[2], "weight [out, in] and bias [out] wanted");
    }
    *out = *x;
    out->global[x->ndim - 1] = w->global[0];
    return tshi_check_floats(call, dtype);
}

/* Only backward needs f's argument. */
static tsh_status affine_forward(tsh_call *call) {
    const affine_params *p = call->params;
    const tsh_tensor *x = call->in[0], *bias = call->inputs == 3 ? call->in[2] : NULL, *y = call->out;
    tsh_device *device = tshi_device_of(x);
    tsh_status status = TSH_OK;
    if (p->f != TSHI_IDENTITY && tshi_call_records(call)) {
        status = tshi_tensor_new(y->mesh, y->dtype, &y->shape, y->layout, &call->saved[PRE]);
    }
    if (status != TSH_OK) return status;
    return device->ops->product.affine(device, x->dtype, tshi_rows(x), tshi_cols(y), tshi_cols(x), tshi_data(x),
                                       tshi_data(call->in[1]), tshi_data(bias), p->f, tshi_data(call->saved[PRE]),
                                       tshi_data(y));
}

/* dz of z = x W^T + b: dy, or f'(z) dy, in place of z unless another backward reads z. */
static tsh_status product_gradient(tsh_call *call) {
    const affine_params *p = call->params;
    const tsh_tensor *dy = tsh_call_grad_out(call), *z = call->saved[PRE];
    tsh_tensor **dz = &call->saved[DZ];
    tsh_device *device = tshi_device_of(dy);
    tsh_status status = TSH_OK;
    if (!z || call->saved[MADE]) return TSH_OK;
    if (call->tape->keeps_graph && !*dz) status = tshi_tensor_new(z->mesh, z->dtype, &z->shape, z->layout, dz);
    if (status != TSH_OK) return status;
    device->ops->elementwise[z->dtype].unary_backward(device, p->f, NULL, z->numel, tshi_data(z), tshi_data(dy), 0,
                                                      tshi_data(*dz ? *dz : z));
    return TSH_OK;
}

static const tsh_tensor *dz_of(const tsh_call *call) {
    for (int i = MADE; i >= PRE; i--)
        if (call->saved[i]) return call->saved[i];
    return tsh_call_grad_out(call);
}

/* The call that made x = f(z), if it is a product with a fused activation and only this call adds to x's gradient: this
 * call then computes its dz instead of dx. */
static tsh_call *activated_by(const tsh_call *call) {
    tsh_call *maker = tshi_grad_maker(call, 0);
    return maker && maker->op->forward == affine_forward && maker->saved[PRE] ? maker : NULL;
}

/* dx = dz W */
static tsh_status affine_backward(tsh_call *call) {
    double beta;
    tsh_status status = product_gradient(call);
    if (status != TSH_OK || !tsh_call_wants_grad(call, 0)) return status;
    tsh_call *maker = activated_by(call);
    tsh_tensor *dx = tshi_grad_beta(call, 0, &beta);
    if (!dx) return TSH_ERR_MEMORY;
    if (!maker) return multiply_matrices(dz_of(call), false, call->in[1], false, beta, dx);
    const tsh_tensor *dz = dz_of(call);
    tsh_device *device = tshi_device_of(dx);
    maker->saved[MADE] = tshi_tensor_retain(dx);
    return device->ops->product.gemm_unary_backward(
        device, dx->dtype, tshi_rows(dx), tshi_cols(dx), tshi_cols(dz), tshi_data(dz), tshi_data(call->in[1]),
        ((const affine_params *)maker->params)->f, tshi_data(maker->saved[PRE]), tshi_data(dx));
}

static tsh_status bias_gradient(const tsh_call *call, const tsh_tensor *dz) {
    tsh_device *device = tshi_device_of(dz);
    tsh_tensor *db = tsh_call_grad(call, 2);
    if (!db) return TSH_ERR_MEMORY;
    device->ops->sum[dz->dtype].bias_backward(device, tshi_rows(dz), tshi_cols(dz), tshi_data(dz), tshi_data(db));
    return TSH_OK;
}

/* dW in pieces of whole rows that fit the cache; the target takes each piece before the next is computed. */
static tsh_status weight_gradient_in_pieces(const tsh_call *call, const tsh_tensor *dz, tshi_gradient_target *target) {
    static const size_t piece_bytes = (size_t)512 << 10;
    tsh_device *device = tshi_device_of(dz);
    const tsh_tensor *x = call->in[0];
    int64_t rows = tshi_cols(dz), cols = tshi_cols(x), first = 0;
    size_t size = tsh_dtype_size(dz->dtype);
    int64_t most = (int64_t)(piece_bytes / size) / (cols > 0 ? cols : 1) / 16 * 16 + 16;
    tsh_tensor *piece = NULL;
    tsh_status status = tshi_tensor_scratch(dz->mesh, dz->dtype, (most < rows ? most : rows) * cols, &piece);
    while (status == TSH_OK) {
        int64_t count = rows - first < most ? rows - first : most;
        if (count > 0)
            status = device->ops->product.gemm(device, dz->dtype, true, false, count, cols, tshi_rows(dz), 1,
                                               (const char *)tshi_data(dz) + (size_t)first * size, rows, tshi_data(x),
                                               cols, 0, tshi_data(piece), cols);
        if (status == TSH_OK) {
            tshi_gradient_revise(call->in[1], dz->dtype, count * cols, tshi_data(piece));
            target->ops->take_rows(target, first, count, tshi_data(piece));
        }
        first += count;
        if (first == rows) break;
    }
    tshi_tensor_release(piece);
    return status;
}

/* dW = dz^T x, db = column sums of dz. */
static tsh_status affine_backward_rest(tsh_call *call) {
    const tsh_tensor *dz = dz_of(call);
    bool weight = tsh_call_wants_grad(call, 1), bias = tsh_call_wants_grad(call, 2);
    tsh_device *device = tshi_device_of(dz);
    double beta, beta_b = 0;
    tsh_status status = TSH_OK;
    tshi_gradient_target *target = weight ? tshi_grad_takes_rows(call, 1) : NULL;
    if (target && (status = weight_gradient_in_pieces(call, dz, target)) != TSH_OK) return status;
    if (!weight || target) return bias ? bias_gradient(call, dz) : TSH_OK;
    bool alike = !bias || tshi_gradient_dtype(call->in[1]) == tshi_gradient_dtype(call->in[2]);
    tsh_tensor *(*gradient)(const tsh_call *, int, double *) = alike ? tshi_grad_sum : tshi_grad_beta;
    tsh_tensor *db = bias ? gradient(call, 2, &beta_b) : NULL, *dw = gradient(call, 1, &beta);
    if ((bias && !db) || !dw) return TSH_ERR_MEMORY;
    return device->ops->product.affine_backward(device, dz->dtype, tshi_rows(dz), tshi_cols(dz), tshi_cols(dw),
                                                tshi_data(call->in[0]), tshi_data(dz), dw->dtype, beta, tshi_data(dw),
                                                beta_b, tshi_data(db));
}

static const tsh_op affine_op = {"affine",
                                 affine_rules,
                                 affine_shape,
                                 affine_forward,
                                 affine_backward,
                                 .backward_rest = affine_backward_rest,
                                 .params_size = sizeof(affine_params)};

tsh_tensor *tsh_affine(tsh_tape *tape, tsh_tensor *x, tsh_tensor *weight, tsh_tensor *bias) {
    return tshi_apply(tape, &affine_op, bias ? 3 : 2, (tsh_tensor *[]){x, weight, bias},
                      &(affine_params){TSHI_IDENTITY});
}

/* --- linear layers ------------------------------------------------------------------------------------------------ */

/* A layer's weight is never redistributed: the row entry is for SHARD(1) weights, the column entry for SHARD(0). */
static const tsh_rule linear_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},      {{TSH_AS_BATCH, TSH_AS_L, TSH_AS_L}, TSH_AS_BATCH},
    {{TSH_AS_L, TSH_AS_S0, TSH_AS_S0}, TSH_AS_LAST}, /* column */
    {{TSH_AS_LAST, TSH_AS_S1, TSH_AS_P}, TSH_AS_P},  /* row */
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},      {{TSH_ROW_END}, TSH_ROW_END},
};

tsh_status tshi_linear_check_features(const tsh_tensor *x, const tsh_tensor *weight, int64_t in_features) {
    int last = x->shape.ndim - 1;
    const char *kind = "dense";
    for (int a = 0; a < x->mesh->axes; a++) {
        if (weight->layout[a].kind == TSH_KIND_SHARD) kind = weight->layout[a].dim == 0 ? "column" : "row";
    }
    for (int a = 0; a < x->mesh->axes; a++) {
        if (!tshi_layout_splits(x->layout[a], last) || tshi_layout_splits(weight->layout[a], 1)) continue;
        return tshi_fail(TSH_ERR_LAYOUT,
                         "x is %s, whose features are split along axis %s; this %s layer wants all in_features=%lld "
                         "(use tsh_gather, or a row layer over that axis)",
                         TSHI_TENSOR_TEXT(x), x->mesh->axis[a].name, kind, (long long)in_features);
    }
    return TSH_OK;
}

tsh_status tshi_linear_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_tensor *x = call->in[0], *weight = call->in[1];
    int last = x->shape.ndim - 1;
    if (last < 0 || x->shape.global[last] != weight->shape.global[1]) {
        return tshi_fail(TSH_ERR_SHAPE, "x is %s, layer wants in_features=%lld",
                         TSHI_DIMS_TEXT(x->shape.ndim, x->shape.global), (long long)weight->shape.global[1]);
    }
    if (x->dtype != weight->dtype) {
        return tshi_fail(TSH_ERR_DTYPE, "x is %s, the layer %s", TSHI_TENSOR_TEXT(x), tsh_dtype_name(weight->dtype));
    }
    tsh_status status = tshi_linear_check_features(x, weight, weight->shape.global[1]);
    return status == TSH_OK ? affine_shape(call, dtype, out) : status;
}

const tsh_op tshi_linear_op = {"linear_forward",
                               linear_rules,
                               tshi_linear_shape,
                               affine_forward,
                               affine_backward,
                               .backward_rest = affine_backward_rest,
                               .params_size = sizeof(affine_params)};

tsh_tensor *tshi_linear(tsh_tape *tape, int inputs, tsh_tensor **in, tshi_unary f, const tshi_want *want) {
    return tshi_apply_as(tape, &tshi_linear_op, inputs, in, &(affine_params){f}, want);
}
