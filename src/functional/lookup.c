/* Embedding lookup. */
#include "functional/functional.h"

static const tshi_rule lookup_rules[] = {
    {{TSHI_R, TSHI_R}, TSHI_R},     {{TSHI_S0, TSHI_R}, TSHI_P}, /* vocabulary: ids of other ranks' rows give zeros */
    {{TSHI_S1, TSHI_R}, TSHI_LAST},                              /* features */
    {{TSHI_L, TSHI_ANY}, TSHI_ANY}, {{TSHI_L, TSHI_L}, TSHI_L},  {{TSHI_END}, TSHI_END},
};

static tsh_status lookup_shape(const tshi_node *call, tsh_dtype *dtype, tshi_shape *out) {
    const tsh_tensor *table = call->in[0], *ids = call->in[1];
    int64_t padding = ((const tshi_lookup *)call->params)->padding;
    char text[160];
    *dtype = table->dtype;
    tsh_status status = tshi_check_computes(table->mesh->device, table->dtype, "the table");
    if (status != TSH_OK) return status;
    if (ids->dtype != TSH_INT64) {
        return tshi_fail(TSH_ERR_DTYPE, "ids %s: int64 wanted", tsh_dtype_name(ids->dtype));
    }
    if (table->shape.ndim != 2 || ids->shape.ndim >= TSH_MAX_DIMS) {
        return tshi_fail(TSH_ERR_SHAPE, "table is %s, [rows, cols] wanted; ids may have %d dims at most",
                         tsh_tensor_describe(table, text, sizeof text), TSH_MAX_DIMS - 1);
    }
    if (padding < -1 || padding >= table->shape.global[0]) {
        return tshi_fail(TSH_ERR_RANGE, "padding is row %lld of a table of %lld; -1 means none", (long long)padding,
                         (long long)table->shape.global[0]);
    }
    *out = ids->shape;
    out->global[out->ndim++] = table->shape.global[1];
    return TSH_OK;
}

static int64_t first_row(const tsh_tensor *table) {
    return tshi_shape_start(table->mesh, &table->shape, table->layout, 0);
}

static tsh_status lookup_forward(tshi_node *call) {
    const tsh_tensor *table = call->in[0], *ids = call->in[1];
    tsh_device *device = tshi_device_of(table);
    const int64_t *id = tshi_data(ids);
    int64_t vocabulary = table->shape.global[0], bad = device->ops->ids_check(device, ids->numel, id, vocabulary);
    if (bad >= 0) {
        return tshi_fail(TSH_ERR_RANGE, "id %lld at index %lld, the vocabulary is [0, %lld)", (long long)id[bad],
                         (long long)bad, (long long)vocabulary);
    }
    device->ops->embedding[table->dtype].forward(device, ids->numel, id, first_row(table), tshi_rows(table),
                                                 tshi_cols(table), tshi_data(table), tshi_data(call->out));
    return TSH_OK;
}

/* A rank's slice of the table has rows [start, start + rows) of `cols` elements. */
typedef struct slice {
    int64_t start, rows, cols;
} slice;

static slice slice_of(const tsh_tensor *table) {
    return (slice){first_row(table), tshi_rows(table), tshi_cols(table)};
}

/* *out = the number of ids on all ranks that are equal to each of this rank's ids; 0 where the slice lacks the row. Of
 * the dtype of sums. The counts of the rows are looked up as a table of one column. */
static tsh_status count_ids(const tsh_tensor *table, const tsh_tensor *ids, tsh_tensor **out) {
    tsh_device *device = tshi_device_of(table);
    const tsh_dtype dtype = tshi_dtype_sum(table->dtype);
    const tshi_embedding_ops *ops = &device->ops->embedding[dtype];
    slice s = slice_of(table);
    tsh_tensor *counts = NULL;
    tsh_status status = tshi_statistics_new(table, ids->numel, out);
    if (status == TSH_OK) status = tshi_statistics_new(table, s.rows, &counts);
    if (status == TSH_OK) {
        device->ops->copy.fill(device, dtype, ids->numel, 1, tshi_data(*out));
        device->ops->copy.zero(device, tsh_tensor_local_nbytes(counts), tshi_data(counts));
        ops->backward(device, ids->numel, tshi_data(ids), s.start, s.rows, 1, -1, tshi_data(*out), tshi_data(counts));
        status = tshi_statistics_reduce(tshi_sharding_axes(ids, -1), counts, TSH_SUM);
    }
    if (status == TSH_OK)
        ops->forward(device, ids->numel, tshi_data(ids), s.start, s.rows, 1, tshi_data(counts), tshi_data(*out));
    tsh_tensor_release(counts);
    return status;
}

/* *out = dy with each row divided by the count of its id, in the dtype of sums; rows of ids of other slices, which no
 * gradient takes, are not finite. */
static tsh_status divide_by_counts(const tsh_tensor *table, const tsh_tensor *ids, const tsh_tensor *dy,
                                   tsh_tensor **out) {
    tsh_device *device = tshi_device_of(dy);
    int64_t cols = tshi_cols(table);
    const tshi_overlay o = {2, {cols, ids->numel}, {1, cols}, {0, 1}};
    tsh_tensor *counts = NULL;
    tsh_status status = count_ids(table, ids, &counts);
    if (status == TSH_OK) status = tshi_statistics_new(dy, dy->numel, out);
    if (status == TSH_OK) {
        device->ops->copy.convert(device, dy->numel, dy->dtype, tshi_data(dy), (*out)->dtype, tshi_data(*out));
        device->ops->elementwise[(*out)->dtype].binary(device, TSHI_DIV, &o, tshi_data(*out), tshi_data(counts),
                                                       tshi_data(*out));
    }
    tsh_tensor_release(counts);
    return status;
}

/* The gradients of rows that are divided by counts, rounded to the table's dtype. */
static tsh_status scaled_gradient(const tshi_node *call, tsh_tensor **out) {
    const tsh_tensor *dy = tshi_grad_out(call);
    tsh_device *device = tshi_device_of(dy);
    tsh_tensor *wide = NULL;
    *out = NULL;
    tsh_status status = divide_by_counts(call->in[0], call->in[1], dy, &wide);
    if (status == TSH_OK) status = tshi_tensor_scratch(dy->mesh, dy->dtype, dy->numel, out);
    if (status == TSH_OK)
        device->ops->copy.convert(device, dy->numel, wide->dtype, tshi_data(wide), dy->dtype, tshi_data(*out));
    tsh_tensor_release(wide);
    return status;
}

static tsh_status lookup_backward(tshi_node *call) {
    const tshi_lookup *p = call->params;
    tsh_tensor *dtable = tshi_grad(call, 0), *scaled = NULL;
    if (!dtable) return TSH_ERR_MEMORY;
    const tsh_tensor *dy = tshi_grad_out(call), *ids = call->in[1];
    tsh_device *device = tshi_device_of(dy);
    tsh_status status = p->scale_grad_by_freq ? scaled_gradient(call, &scaled) : TSH_OK;
    slice s = slice_of(call->in[0]);
    if (status == TSH_OK)
        device->ops->embedding[dy->dtype].backward(device, ids->numel, tshi_data(ids), s.start, s.rows, s.cols,
                                                   p->padding, tshi_data(scaled ? scaled : dy), tshi_data(dtable));
    tsh_tensor_release(scaled);
    return status;
}

static const tshi_op lookup_op = {"lookup",       lookup_rules,    lookup_shape,
                                  lookup_forward, lookup_backward, .params_size = sizeof(tshi_lookup)};
static const tshi_op embedding_op = {"embedding_forward", lookup_rules,    lookup_shape,
                                     lookup_forward,      lookup_backward, .params_size = sizeof(tshi_lookup)};

tsh_tensor *tsh_lookup(tsh_tape *tape, tsh_tensor *table, tsh_tensor *ids, int64_t padding) {
    return tshi_apply(tape, &lookup_op, 2, (tsh_tensor *[]){table, ids}, &(tshi_lookup){.padding = padding});
}

tsh_tensor *tshi_embedding(tsh_tape *tape, tsh_tensor *table, tsh_tensor *ids, const tshi_lookup *lookup,
                           const tshi_want *want) {
    return tshi_tape_apply(tape, &(tshi_node){.op = &embedding_op,
                                              .inputs = 2,
                                              .in = (tsh_tensor *[]){table, ids},
                                              .params = (void *)(uintptr_t)lookup,
                                              .want = want});
}
