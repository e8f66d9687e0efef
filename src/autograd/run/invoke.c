/* Calls operations' functions, and checks what they return, because they may be a program's. */
#include "autograd/run/invoke.h"

tsh_status tshi_invoke_failed(const tsh_call *call, const char *part, uint64_t before, tsh_status status) {
    if ((unsigned)status >= TSH_STATUS_COUNT) {
        return tshi_fail(TSH_ERR_STATE, "the %s of %s returned %d, which is not a status", part, call->op->name,
                         (int)status);
    }
    if (tshi_failures() != before) return status;
    return tshi_fail(status, "the %s of %s failed with %s and gave no reason (tsh_call_fail gives one)", part,
                     call->op->name, tsh_status_name(status));
}

/* --- shapes ------------------------------------------------------------------------------------------------------- */

static tsh_status check_shape(const tsh_call *call, tsh_dtype dtype, const tsh_shape *shape) {
    int64_t numel;
    if ((unsigned)dtype >= TSH_DTYPE_COUNT) {
        return tshi_fail(TSH_ERR_DTYPE, "the shape rule of %s gave dtype %d, which does not exist", call->op->name,
                         (int)dtype);
    }
    if (shape->ndim < 0 || shape->ndim > TSH_MAX_DIMS) {
        return tshi_fail(TSH_ERR_SHAPE, "the shape rule of %s gave %d dims; 0 to %d are possible", call->op->name,
                         shape->ndim, TSH_MAX_DIMS);
    }
    if (tshi_dims_product(shape->ndim, shape->global, &numel) == TSH_OK) return TSH_OK;
    return tshi_fail(TSH_ERR_SHAPE, "the shape rule of %s gave %s, which is not a shape", call->op->name,
                     TSHI_DIMS_TEXT(shape->ndim, shape->global));
}

tsh_status tshi_invoke_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    uint64_t before = tshi_failures();
    *dtype = call->in[0]->dtype;
    if (!call->op->shape) {
        *out = call->in[0]->shape;
        return TSH_OK;
    }
    call->tape->inside = call->op;
    tsh_status status = call->op->shape(call, dtype, out);
    call->tape->inside = NULL;
    return status == TSH_OK ? check_shape(call, *dtype, out) : tshi_invoke_failed(call, "shape rule", before, status);
}
