/* Permute and transpose. */
#include "functional/functional.h"

#include <string.h>

/* Dim d of the output is dim order[d] of the input. */
typedef struct permute_params {
    int order[TSH_MAX_DIMS];
} permute_params;

static int permute_map_dim(const tsh_call *call, int axis, int d) {
    (void)axis;
    const permute_params *p = call->params;
    for (int e = 0; e < call->in[0]->shape.ndim; e++) {
        if (p->order[e] == d) return e;
    }
    return -1;
}

static tsh_status permute_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const permute_params *p = call->params;
    *dtype = call->in[0]->dtype;
    out->ndim = call->in[0]->shape.ndim;
    for (int d = 0; d < out->ndim; d++) out->global[d] = call->in[0]->shape.global[p->order[d]];
    return TSH_OK;
}

/* The permutation in as few dims as possible: drops dims of size 1, merges dims that stay neighbours, and makes dims
 * that stay last part of a piece. */
static tshi_permutation permutation_of(const tsh_tensor *x, const int *order) {
    tshi_permutation p = {.piece = tsh_dtype_size(x->dtype)};
    int64_t stride[TSH_MAX_DIMS], inner = 1;
    for (int d = x->shape.ndim - 1; d >= 0; d--) {
        stride[d] = inner;
        inner *= x->shape.local[d];
    }
    for (int d = 0; d < x->shape.ndim; d++) {
        int64_t size = x->shape.local[order[d]], step = stride[order[d]];
        if (size == 1) continue;
        if (p.ndim > 0 && p.stride[p.ndim - 1] == size * step)
            p.ndim--;
        else
            p.size[p.ndim] = 1;
        p.size[p.ndim] *= size;
        p.stride[p.ndim++] = step;
    }
    if (p.ndim == 0 || p.stride[p.ndim - 1] != 1) return p;
    int64_t run = p.size[--p.ndim];
    p.piece *= (size_t)run;
    for (int d = 0; d < p.ndim; d++) p.stride[d] /= run;
    return p;
}

static void permute_dims(const tsh_tensor *x, const int *order, tsh_tensor *y) {
    if (x->numel == 0) return;
    tshi_permutation p = permutation_of(x, order);
    tshi_device_of(x)->ops->copy.permute(tshi_device_of(x), &p, tshi_data(x), tshi_data(y));
}

static tsh_status permute_forward(tsh_call *call) {
    permute_dims(call->in[0], ((const permute_params *)call->params)->order, call->out);
    return TSH_OK;
}

static tsh_status permute_backward(tsh_call *call) {
    const permute_params *p = call->params;
    const tsh_tensor *x = call->in[0], *dy = tsh_call_grad_out(call);
    int back[TSH_MAX_DIMS];
    tsh_tensor *dx = NULL;
    for (int d = 0; d < x->shape.ndim; d++) back[p->order[d]] = d;
    tsh_status status = tshi_gradient_new_as(x, dy->dtype, &dx);
    if (status != TSH_OK) return status;
    permute_dims(dy, back, dx);
    status = tshi_grad_adopt(call, 0, dx);
    tshi_tensor_release(dx);
    return status;
}

static const tsh_op permute_op = {.name = "permute",
                                  .rules = tshi_linear_rules,
                                  .shape = permute_shape,
                                  .forward = permute_forward,
                                  .backward = permute_backward,
                                  .params_size = sizeof(permute_params),
                                  .map_dim = permute_map_dim,
                                  .reads_no_input = true,
                                  .by_element = true};

/* --- where only dims of size 1 move ------------------------------------------------------------------------------- */

static const tsh_op in_place_op = {.name = "permute",
                                   .rules = tshi_linear_rules,
                                   .shape = permute_shape,
                                   .backward = tshi_pass_gradient,
                                   .params_size = sizeof(permute_params),
                                   .map_dim = permute_map_dim,
                                   .views = true,
                                   .reads_no_input = true,
                                   .by_element = true};

static bool keeps_elements(const tsh_tensor *x, const int *order) {
    int last = -1;
    for (int d = 0; d < x->shape.ndim; d++) {
        if (x->shape.global[order[d]] == 1) continue;
        if (order[d] < last) return false;
        last = order[d];
    }
    return true;
}

/* --- public ------------------------------------------------------------------------------------------------------- */

/* Resolves negative dims in `order`; false if it is not a permutation of x's dims. */
static bool resolve_order(const tsh_tensor *x, int *order) {
    unsigned seen = 0;
    int ndim = x->shape.ndim;
    for (int d = 0; d < ndim; d++) {
        if (order[d] < -ndim || order[d] >= ndim) return false;
        if (order[d] < 0) order[d] += ndim;
        seen |= 1u << order[d];
    }
    return seen == (1u << ndim) - 1;
}

static tsh_tensor *apply_permute(tsh_tape *tape, tsh_tensor *x, permute_params *p) {
    return tshi_apply(tape, keeps_elements(x, p->order) ? &in_place_op : &permute_op, 1, &x, p);
}

tsh_tensor *tsh_permute(tsh_tape *tape, tsh_tensor *x, const int *order) {
    permute_params p;
    int64_t wanted[TSH_MAX_DIMS];
    if (!tshi_tape_ready(tape, "permute", 1, &x)) return NULL;
    if (!order) return tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "permute: order is NULL");
    memcpy(p.order, order, sizeof *order * (size_t)x->shape.ndim);
    for (int d = 0; d < x->shape.ndim; d++) wanted[d] = order[d];
    if (resolve_order(x, p.order)) return apply_permute(tape, x, &p);
    return tshi_tape_fail(tape, TSH_ERR_SHAPE, "permute: %s: the order %s is not a permutation of its %d dims",
                          TSHI_TENSOR_TEXT(x), TSHI_DIMS_TEXT(x->shape.ndim, wanted), x->shape.ndim);
}

tsh_tensor *tsh_transpose(tsh_tape *tape, tsh_tensor *x, int a, int b) {
    permute_params p;
    if (!tshi_tape_ready(tape, "transpose", 1, &x)) return NULL;
    int ndim = x->shape.ndim;
    if (a < -ndim || a >= ndim || b < -ndim || b >= ndim) {
        return tshi_tape_fail(tape, TSH_ERR_SHAPE, "transpose: dims %d and %d of %s", a, b, TSHI_TENSOR_TEXT(x));
    }
    for (int d = 0; d < ndim; d++) p.order[d] = d;
    if (a < 0) a += ndim;
    if (b < 0) b += ndim;
    p.order[a] = b;
    p.order[b] = a;
    return apply_permute(tape, x, &p);
}
