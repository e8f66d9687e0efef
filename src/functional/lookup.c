/* Embedding lookup. */
#include "functional/functional.h"

static const tshi_rule lookup_rules[] = {
    {{TSHI_R, TSHI_R}, TSHI_R},     {{TSHI_S0, TSHI_R}, TSHI_P}, /* vocabulary: ids of other ranks' rows give zeros */
    {{TSHI_S1, TSHI_R}, TSHI_LAST},                              /* features */
    {{TSHI_L, TSHI_ANY}, TSHI_ANY}, {{TSHI_L, TSHI_L}, TSHI_L},  {{TSHI_END}, TSHI_END},
};

typedef struct lookup_params {
    int64_t padding; /* row without a gradient, or -1 */
} lookup_params;

static tsh_status lookup_shape(const tshi_node *call, tsh_dtype *dtype, tshi_shape *out) {
    const tsh_tensor *table = call->in[0], *ids = call->in[1];
    int64_t padding = ((const lookup_params *)call->params)->padding;
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

static tsh_status lookup_backward(tshi_node *call) {
    const lookup_params *p = call->params;
    tsh_tensor *dtable = tshi_grad(call, 0);
    if (!dtable) return TSH_ERR_MEMORY;
    const tsh_tensor *dy = tshi_grad_out(call), *ids = call->in[1];
    tsh_device *device = tshi_device_of(dy);
    device->ops->embedding[dy->dtype].backward(device, ids->numel, tshi_data(ids), first_row(call->in[0]),
                                               tshi_rows(dtable), tshi_cols(dtable), p->padding, tshi_data(dy),
                                               tshi_data(dtable));
    return TSH_OK;
}

static const tshi_op lookup_op = {"lookup",       lookup_rules,    lookup_shape,
                                  lookup_forward, lookup_backward, .params_size = sizeof(lookup_params)};
static const tshi_op embedding_op = {"embedding_forward", lookup_rules,    lookup_shape,
                                     lookup_forward,      lookup_backward, .params_size = sizeof(lookup_params)};

tsh_tensor *tsh_lookup(tsh_tape *tape, tsh_tensor *table, tsh_tensor *ids, int64_t padding) {
    return tshi_apply(tape, &lookup_op, 2, (tsh_tensor *[]){table, ids}, &(lookup_params){padding});
}

tsh_tensor *tshi_embedding(tsh_tape *tape, tsh_tensor *table, tsh_tensor *ids, int64_t padding, const tshi_want *want) {
    return tshi_tape_apply(tape, &(tshi_node){.op = &embedding_op,
                                              .inputs = 2,
                                              .in = (tsh_tensor *[]){table, ids},
                                              .params = &(lookup_params){padding},
                                              .want = want});
}
