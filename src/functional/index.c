/* Functions that take slices of a tensor by their indices along a dim, or add to them. They view the tensor as a table
 * whose rows are the slices, or single elements, so that the kernels of embeddings can be used. */
#include "functional/functional.h"

/* Inputs are x, ids, y. Ids are [k], or have x's dims in the functions on single elements ("along"). Indices of slices
 * on other ranks give zeros, or add nothing. */
static const tsh_rule select_rules[] = {
    {{TSH_HAS_P, TSH_AS_R}, TSH_AS_P},  {{TSH_AS_R, TSH_AS_R}, TSH_AS_R},    {{TSH_AS_OTHER, TSH_AS_R}, TSH_AS_OTHER},
    {{TSH_AS_DIM, TSH_AS_R}, TSH_AS_P}, {{TSH_AS_L, TSH_AS_S0}, TSH_AS_DIM}, {{TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};
static const tsh_rule along_rules[] = {
    {{TSH_HAS_P, TSH_AS_R}, TSH_AS_P},
    {{TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_OTHER, TSH_AS_OTHER}, TSH_AS_OTHER},
    {{TSH_AS_DIM, TSH_AS_R}, TSH_AS_P},
    {{TSH_AS_L, TSH_AS_DIM}, TSH_AS_DIM},
    {{TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};
static const tsh_rule select_add_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},        {{TSH_AS_OTHER, TSH_AS_R, TSH_AS_OTHER}, TSH_AS_OTHER},
    {{TSH_AS_DIM, TSH_AS_R, TSH_AS_COPY}, TSH_AS_DIM}, {{TSH_AS_P, TSH_AS_R, TSH_AS_P}, TSH_AS_P},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},        {{TSH_ROW_END}, TSH_ROW_END},
};
static const tsh_rule along_add_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},        {{TSH_AS_OTHER, TSH_AS_OTHER, TSH_AS_OTHER}, TSH_AS_OTHER},
    {{TSH_AS_DIM, TSH_AS_R, TSH_AS_COPY}, TSH_AS_DIM}, {{TSH_AS_P, TSH_AS_R, TSH_AS_P}, TSH_AS_P},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},        {{TSH_ROW_END}, TSH_ROW_END},
};

typedef struct index_params {
    int dim;
    int along; /* or 0 */
} index_params;

/* --- shapes ------------------------------------------------------------------------------------------------------- */

/* The shape of the slices that are taken from x. */
static tsh_status taken_shape(const tsh_call *call, tsh_shape *out) {
    const index_params *p = call->params;
    const tsh_tensor *x = call->in[0], *ids = call->in[1];
    bool fits = p->along ? ids->shape.ndim == x->shape.ndim : ids->shape.ndim == 1;
    if (ids->dtype != TSH_INT64) return tshi_fail(TSH_ERR_DTYPE, "ids %s: int64 wanted", tsh_dtype_name(ids->dtype));
    *out = x->shape;
    if (fits) out->global[p->dim] = ids->shape.global[p->along ? p->dim : 0];
    if (fits && (!p->along || tshi_shapes_equal(out, &ids->shape))) return TSH_OK;
    return tshi_check_fails(x, ids, p->along ? "ids with x's sizes except along dim wanted" : "ids [k] wanted");
}

static tsh_status index_take_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    *dtype = call->in[0]->dtype;
    tsh_status status = tshi_check_computes(call->in[0]->mesh->device, *dtype, "x");
    return status == TSH_OK ? taken_shape(call, out) : status;
}

static tsh_status index_add_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_tensor *x = call->in[0], *y = call->in[2];
    tsh_status status = index_take_shape(call, dtype, out);
    if (status != TSH_OK) return status;
    if (y->dtype != x->dtype || !tshi_shapes_equal(out, &y->shape))
        return tshi_fail(TSH_ERR_SHAPE, "y is %s: x's dtype and %s wanted", TSHI_TENSOR_TEXT(y),
                         TSHI_DIMS_TEXT(out->ndim, out->global));
    *out = x->shape;
    return TSH_OK;
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

/* This rank's part of x as a table, and the rows that the ids name. */
typedef struct indexed {
    const tsh_tensor *numbers; /* [count], -1 for a row of another rank */
    int64_t count, rows, cols;
} indexed;

static tsh_status rows_of(tsh_call *call, indexed *out) {
    const index_params *p = call->params;
    const tsh_tensor *x = call->in[0], *ids = call->in[1];
    tsh_device *device = tshi_device_of(x);
    const tshi_around a = {tshi_outer(x, p->dim), x->shape.local[p->dim], tshi_inner(x, p->dim)};
    const int64_t each = p->along ? a.inner : 1, kept = ids->shape.local[p->along ? p->dim : 0];
    tsh_status status = tshi_check_ids(ids, "the dim", x->shape.global[p->dim]);
    if (status != TSH_OK) return status;
    const tsh_tensor *numbers = tsh_call_scratch(call, TSH_INT64, a.outer * kept * each);
    if (!numbers) return TSH_ERR_MEMORY;
    device->ops->row_numbers(device, p->along, a.outer, kept, each, a.n,
                             tshi_shape_start(x->mesh, &x->shape, x->layout, p->dim), tshi_data(ids),
                             tshi_data(numbers));
    *out = (indexed){numbers, a.outer * kept * each, a.outer * a.n * each, p->along ? 1 : a.inner};
    return TSH_OK;
}

/* to = the rows of a table like x. */
static void take(const indexed *i, const tsh_tensor *table, const tsh_tensor *to) {
    tsh_device *device = tshi_device_of(table);
    device->ops->embedding[table->dtype].forward(device, i->count, tshi_data(i->numbers), 0, i->rows, i->cols,
                                                 tshi_data(table), tshi_data(to));
}

/* Adds to the rows of a table like x. */
static void add(const indexed *i, const tsh_tensor *from, const tsh_tensor *table) {
    tsh_device *device = tshi_device_of(table);
    device->ops->embedding[table->dtype].backward(device, i->count, tshi_data(i->numbers), 0, i->rows, i->cols, -1,
                                                  tshi_data(from), tshi_data(table));
}

/* --- the operations ----------------------------------------------------------------------------------------------- */

static tsh_status index_take_forward(tsh_call *call) {
    indexed i;
    tsh_status status = rows_of(call, &i);
    if (status == TSH_OK) take(&i, call->in[0], call->out);
    return status;
}

static tsh_status index_take_backward(tsh_call *call) {
    indexed i;
    const tsh_tensor *dx = tsh_call_grad(call, 0);
    tsh_status status = dx ? rows_of(call, &i) : TSH_ERR_MEMORY;
    if (status == TSH_OK) add(&i, tsh_call_grad_out(call), dx);
    return status;
}

static tsh_status index_add_forward(tsh_call *call) {
    const tsh_tensor *x = call->in[0];
    tsh_device *device = tshi_device_of(x);
    indexed i;
    tsh_status status = rows_of(call, &i);
    if (status != TSH_OK) return status;
    device->ops->copy.within(device, tsh_tensor_local_nbytes(x), tshi_data(x), tshi_data(call->out));
    add(&i, call->in[2], call->out);
    return TSH_OK;
}

static tsh_status index_add_backward(tsh_call *call) {
    tsh_tensor *dz = tsh_call_grad_out(call);
    tsh_status status = TSH_OK;
    if (tsh_call_wants_grad(call, 2)) {
        indexed i;
        tsh_tensor *dy = tsh_call_scratch(call, dz->dtype, call->in[2]->numel);
        status = dy ? rows_of(call, &i) : TSH_ERR_MEMORY;
        if (status != TSH_OK) return status;
        take(&i, dz, dy);
        status = tshi_grad_adopt(call, 2, dy);
    }
    return status == TSH_OK && tsh_call_wants_grad(call, 0) ? tshi_grad_adopt(call, 0, dz) : status;
}

#define INDEX_OP(name, rules, f)                                                                                       \
    { name, rules, f##_shape, f##_forward, f##_backward, .params_size = sizeof(index_params), .has_dim = true }
static const tsh_op index_select_op = INDEX_OP("index_select", select_rules, index_take),
                    take_along_op = INDEX_OP("take_along", along_rules, index_take),
                    index_add_op = INDEX_OP("index_add", select_add_rules, index_add),
                    add_along_op = INDEX_OP("add_along", along_add_rules, index_add);

tsh_tensor *tsh_index_select(tsh_tape *tape, tsh_tensor *x, int dim, tsh_tensor *ids) {
    return tshi_apply(tape, &index_select_op, 2, (tsh_tensor *[]){x, ids}, &(index_params){dim, false});
}

tsh_tensor *tsh_take_along(tsh_tape *tape, tsh_tensor *x, int dim, tsh_tensor *ids) {
    return tshi_apply(tape, &take_along_op, 2, (tsh_tensor *[]){x, ids}, &(index_params){dim, true});
}

tsh_tensor *tsh_index_add(tsh_tape *tape, tsh_tensor *x, int dim, tsh_tensor *ids, tsh_tensor *y) {
    return tshi_apply(tape, &index_add_op, 3, (tsh_tensor *[]){x, ids, y}, &(index_params){dim, false});
}

tsh_tensor *tsh_add_along(tsh_tape *tape, tsh_tensor *x, int dim, tsh_tensor *ids, tsh_tensor *y) {
    return tshi_apply(tape, &add_along_op, 3, (tsh_tensor *[]){x, ids, y}, &(index_params){dim, true});
}

/* --- one-hot ------------------------------------------------------------------------------------------------------ */

typedef struct one_hot_params {
    int64_t classes, dtype;
} one_hot_params;

static tsh_status one_hot_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const one_hot_params *p = call->params;
    const tsh_tensor *ids = call->in[0];
    *dtype = (tsh_dtype)p->dtype;
    *out = ids->shape;
    if (ids->dtype != TSH_INT64) return tshi_fail(TSH_ERR_DTYPE, "ids %s: int64 wanted", tsh_dtype_name(ids->dtype));
    if (p->classes < 0 || out->ndim == TSH_MAX_DIMS)
        return tshi_fail(TSH_ERR_SHAPE, "%lld classes of %s: at least 0 classes and at most %d dims are allowed",
                         (long long)p->classes, TSHI_TENSOR_TEXT(ids), TSH_MAX_DIMS - 1);
    out->global[out->ndim++] = p->classes;
    return tshi_check_computes(ids->mesh->device, *dtype, "the result");
}

static tsh_status one_hot_forward(tsh_call *call) {
    const one_hot_params *p = call->params;
    const tsh_tensor *ids = call->in[0], *y = call->out, *ones = tsh_call_scratch(call, y->dtype, ids->numel);
    tsh_device *device = tshi_device_of(y);
    tsh_status status = ones ? tshi_check_ids(ids, "the classes", p->classes) : TSH_ERR_MEMORY;
    if (status != TSH_OK) return status;
    device->ops->copy.fill(device, y->dtype, ids->numel, 1, tshi_data(ones));
    device->ops->copy.zero(device, tsh_tensor_local_nbytes(y), tshi_data(y));
    device->ops->top.backward(device, y->dtype, ids->numel, p->classes, 1, 1, 0, tshi_data(ids), tshi_data(ones),
                              tshi_data(y));
    return TSH_OK;
}

static const tsh_op one_hot_op = {
    "one_hot",         tshi_element_rules, one_hot_shape, one_hot_forward, .params_size = sizeof(one_hot_params),
    .by_element = true};

tsh_tensor *tsh_one_hot(tsh_tape *tape, tsh_tensor *ids, int64_t classes, tsh_dtype dtype) {
    return tshi_apply(tape, &one_hot_op, 1, &ids, &(one_hot_params){classes, (int64_t)dtype});
}
