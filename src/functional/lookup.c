/* Embedding lookup, and the max_norm of looked-up rows. */
#include "autograd/grad/sparse.h"
#include "autograd/run/cast.h"
#include "functional/functional.h"

#include <math.h>
#include <string.h>

/* In the second row, vocabulary-parallel, ids of other ranks' rows give zeros. */
static const tsh_rule lookup_rules[] = {
    {{TSH_AS_R, TSH_AS_R}, TSH_AS_R},     {{TSH_AS_S0, TSH_AS_R}, TSH_AS_P},
    {{TSH_AS_S1, TSH_AS_R}, TSH_AS_LAST}, /* features */
    {{TSH_AS_L, TSH_AS_ANY}, TSH_AS_ANY}, {{TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};

/* For a table that stands for elements of `dtype`. */
static tsh_status check_lookup(const tsh_tensor *table, const tsh_tensor *ids, tsh_dtype dtype) {
    tsh_status status = tshi_check_computes(table->mesh->device, dtype, "the table");
    if (status != TSH_OK) return status;
    if (ids->dtype != TSH_INT64) {
        return tshi_fail(TSH_ERR_DTYPE, "ids %s: int64 wanted", tsh_dtype_name(ids->dtype));
    }
    if (table->shape.ndim == 2 && ids->shape.ndim < TSH_MAX_DIMS) return TSH_OK;
    return tshi_fail(TSH_ERR_SHAPE, "table is %s, [rows, cols] wanted; ids may have %d dims at most",
                     TSHI_TENSOR_TEXT(table), TSH_MAX_DIMS - 1);
}

static tsh_status lookup_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_tensor *table = call->in[0], *ids = call->in[1];
    int64_t padding = ((const tshi_lookup *)call->params)->padding;
    *dtype = table->dtype;
    tsh_status status = check_lookup(table, ids, table->dtype);
    if (status != TSH_OK) return status;
    if (padding < -1 || padding >= table->shape.global[0]) {
        return tshi_fail(TSH_ERR_RANGE, "padding is row %lld, but the table has %lld rows; -1 means none",
                         (long long)padding, (long long)table->shape.global[0]);
    }
    *out = ids->shape;
    out->global[out->ndim++] = table->shape.global[1];
    return TSH_OK;
}

/* A rank's slice of the table: rows [start, start + rows) of `cols` elements. */
typedef struct table_rows {
    int64_t start, rows, cols;
} table_rows;

static table_rows table_slice(const tsh_tensor *table) {
    int64_t start = tshi_shape_start(table->mesh, &table->shape, table->layout, 0);
    return (table_rows){start, tshi_rows(table), tshi_cols(table)};
}

tsh_status tshi_check_ids(const tsh_tensor *ids, const char *what, int64_t end) {
    tsh_device *device = tshi_device_of(ids);
    const int64_t *id = tshi_data(ids);
    int64_t bad = device->ops->ids_check(device, ids->numel, id, end);
    if (bad < 0) return TSH_OK;
    return tshi_fail(TSH_ERR_RANGE, "id %lld at index %lld, %s is [0, %lld)", (long long)id[bad], (long long)bad, what,
                     (long long)end);
}

/* rows[i, :] = table[ids[i], :] */
static tsh_status look_up_rows(const tsh_tensor *table, const tsh_tensor *ids, const tsh_tensor *rows) {
    tsh_device *device = tshi_device_of(table);
    const int64_t *id = tshi_data(ids);
    tsh_status status = tshi_check_ids(ids, "the vocabulary", table->shape.global[0]);
    if (status != TSH_OK) return status;
    table_rows s = table_slice(table);
    device->ops->embedding[table->dtype].forward(device, ids->numel, id, s.start, s.rows, s.cols, tshi_data(table),
                                                 tshi_data(rows));
    return TSH_OK;
}

static tsh_status lookup_forward(tsh_call *call) {
    return look_up_rows(call->in[0], call->in[1], call->out);
}

/* *out = for each id of this rank, the number of equal ids on all ranks, in the dtype of sums; 0 for rows of other
 * slices. The counts form a table of one column, in which the ids are looked up. */
static tsh_status count_ids(tsh_call *call, const tsh_tensor *table, const tsh_tensor *ids, tsh_tensor **out) {
    tsh_device *device = tshi_device_of(table);
    const tsh_dtype dtype = tshi_dtype_sum(table->dtype);
    const tshi_embedding_ops *ops = &device->ops->embedding[dtype];
    table_rows s = table_slice(table);
    *out = tshi_statistics_scratch(call, table, ids->numel);
    tsh_tensor *counts = *out ? tshi_statistics_scratch(call, table, s.rows) : NULL;
    if (!counts) return TSH_ERR_MEMORY;
    device->ops->copy.fill(device, dtype, ids->numel, 1, tshi_data(*out));
    device->ops->copy.zero(device, tsh_tensor_local_nbytes(counts), tshi_data(counts));
    ops->backward(device, ids->numel, tshi_data(ids), s.start, s.rows, 1, -1, tshi_data(*out), tshi_data(counts));
    tsh_status status = tshi_statistics_reduce(tshi_axes_splitting(ids, -1), counts, TSH_REDUCE_SUM);
    if (status != TSH_OK) return status;
    ops->forward(device, ids->numel, tshi_data(ids), s.start, s.rows, 1, tshi_data(counts), tshi_data(*out));
    return TSH_OK;
}

/* *out = dy with each row divided by the count of its id, in the dtype of sums. Rows of other slices are not finite,
 * and are not used. */
static tsh_status divide_by_counts(tsh_call *call, const tsh_tensor *dy, tsh_tensor **out) {
    const tsh_tensor *table = call->in[0], *ids = call->in[1];
    tsh_device *device = tshi_device_of(dy);
    int64_t cols = tshi_cols(table);
    const tshi_broadcast o = {2, {cols, ids->numel}, {1, cols}, {0, 1}};
    tsh_tensor *counts = NULL;
    tsh_status status = count_ids(call, table, ids, &counts);
    if (status != TSH_OK) return status;
    *out = tshi_statistics_scratch(call, dy, dy->numel);
    if (!*out) return TSH_ERR_MEMORY;
    device->ops->copy.convert(device, dy->numel, dy->dtype, tshi_data(dy), (*out)->dtype, tshi_data(*out));
    device->ops->elementwise[(*out)->dtype].binary(device, TSHI_DIV, &o, tshi_data(*out), tshi_data(counts),
                                                   tshi_data(*out));
    return TSH_OK;
}

/* The rows' gradients, divided by counts if the layer wants that, in the dtype of the table's gradient. */
static tsh_status rows_gradient(tsh_call *call, tsh_dtype dtype, tsh_tensor **out) {
    const tshi_lookup *p = call->params;
    tsh_tensor *from = tsh_call_grad_out(call);
    tsh_device *device = tshi_device_of(from);
    tsh_status status = p->scale_grad_by_freq ? divide_by_counts(call, from, &from) : TSH_OK;
    *out = from;
    if (status != TSH_OK || from->dtype == dtype) return status;
    *out = tsh_call_scratch(call, dtype, from->numel);
    if (!*out) return TSH_ERR_MEMORY;
    device->ops->copy.convert(device, from->numel, from->dtype, tshi_data(from), dtype, tshi_data(*out));
    return TSH_OK;
}

/* Adds the output's gradient, row by row, to the rows of the table's gradient in this slice. */
static tsh_status add_table_rows(tsh_call *call, table_rows s) {
    const tshi_lookup *p = call->params;
    const tsh_tensor *ids = call->in[1];
    tsh_device *device = tshi_device_of(ids);
    tsh_tensor *dy = NULL;
    if (tshi_grad_adds_rows(call, 0)) {
        tsh_status status = rows_gradient(call, tshi_gradient_dtype(call->in[0]), &dy);
        return status == TSH_OK ? tshi_grad_add_rows(call, 0, ids, s.start, p->padding, dy) : status;
    }
    double beta;
    tsh_tensor *dtable = tshi_grad_sum(call, 0, &beta);
    if (!dtable) return TSH_ERR_MEMORY;
    tsh_status status = rows_gradient(call, dtable->dtype, &dy);
    if (beta == 0) device->ops->copy.zero(device, tsh_tensor_local_nbytes(dtable), tshi_data(dtable));
    if (status == TSH_OK)
        device->ops->embedding[dy->dtype].backward(device, ids->numel, tshi_data(ids), s.start, s.rows, s.cols,
                                                   p->padding, tshi_data(dy), tshi_data(dtable));
    return status;
}

static tsh_status lookup_backward(tsh_call *call) {
    return add_table_rows(call, table_slice(call->in[0]));
}

static const tsh_op lookup_op = {"lookup",
                                 lookup_rules,
                                 lookup_shape,
                                 lookup_forward,
                                 lookup_backward,
                                 .params_size = sizeof(tshi_lookup),
                                 .reads_no_input = true};
const tsh_op tshi_embedding_op = {"embedding_forward",   lookup_rules,    lookup_shape,
                                  lookup_forward,        lookup_backward, .params_size = sizeof(tshi_lookup),
                                  .reads_no_input = true};

tsh_tensor *tsh_lookup(tsh_tape *tape, tsh_tensor *table, tsh_tensor *ids, int64_t padding) {
    tsh_tensor *in[] = {table, ids};
    return tshi_cast_as(
        tape, tshi_apply_as(tape, &lookup_op, 2, in, &(tshi_lookup){.padding = padding}, &tshi_as_stored), table);
}

/* --- rows of this rank's part ------------------------------------------------------------------------------------- */

/* Row numbers of a sharded table must not move to other ranks, where they would mean other rows. */
static const tsh_rule take_rules[] = {
    {{TSH_AS_R, TSH_AS_R}, TSH_AS_R},   {{TSH_HAS_S0, TSH_HAS_S0}, TSH_AS_S0}, {{TSH_AS_S1, TSH_AS_R}, TSH_AS_S1},
    {{TSH_AS_L, TSH_AS_S0}, TSH_AS_S0}, {{TSH_AS_L, TSH_AS_L}, TSH_AS_L},      {{TSH_ROW_END}, TSH_ROW_END},
};

static tsh_status take_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_tensor *table = call->in[0], *ids = call->in[1];
    if (ids->shape.ndim != 1) return tshi_check_fails(table, ids, "a table [rows, cols] and ids [n] wanted");
    if (call->tape->world->deterministic && tshi_axes_splitting(table, 0))
        return tshi_fail(TSH_ERR_STATE, "not possible with a SHARD(0) table in a deterministic world");
    return lookup_shape(call, dtype, out);
}

static table_rows own_rows(const tsh_tensor *table) {
    return (table_rows){0, tshi_rows(table), tshi_cols(table)};
}

static tsh_status take_forward(tsh_call *call) {
    const tsh_tensor *table = call->in[0], *ids = call->in[1];
    tsh_device *device = tshi_device_of(table);
    table_rows s = own_rows(table);
    tsh_status status = tshi_check_ids(ids, "this rank's part", s.rows);
    if (status != TSH_OK) return status;
    device->ops->embedding[table->dtype].forward(device, ids->numel, tshi_data(ids), 0, s.rows, s.cols,
                                                 tshi_data(table), tshi_data(call->out));
    return TSH_OK;
}

static tsh_status take_backward(tsh_call *call) {
    return add_table_rows(call, own_rows(call->in[0]));
}

static const tsh_op take_op = {"take_rows",  take_rules,    take_shape,
                               take_forward, take_backward, .params_size = sizeof(tshi_lookup)};

tsh_tensor *tsh_take_rows(tsh_tape *tape, tsh_tensor *table, tsh_tensor *rows) {
    tsh_tensor *in[] = {table, rows};
    return tshi_cast_as(tape, tshi_apply_as(tape, &take_op, 2, in, &(tshi_lookup){.padding = -1}, &tshi_as_stored),
                        table);
}

/* --- max_norm ----------------------------------------------------------------------------------------------------- */

/* Gathers the ids of all ranks along LOCAL axes, equally many each, in one dim. */
static tsh_status gather_ids(tsh_call *call, const tsh_tensor **out) {
    const tsh_tensor *ids = *out = call->in[1];
    tsh_status status = TSH_OK;
    for (int a = 0; a < ids->mesh->axes && status == TSH_OK; a++) {
        const tshi_axis *axis = &ids->mesh->axis[a];
        if (ids->layout[a].kind != TSH_KIND_LOCAL || axis->size == 1) continue;
        tsh_tensor *all = tsh_call_scratch(call, TSH_INT64, axis->size * (*out)->numel);
        status = all ? tsh_all_gather_into_tensor(axis->group, *out, all, NULL) : TSH_ERR_MEMORY;
        *out = all;
    }
    return status;
}

/* norms[i] = the p-norm of the global row i, of which `rows` has this rank's part; `powers` is scratch for its
 * elements. Both are float64, so that powers of narrower dtypes do not overflow. */
static tsh_status reduce_rows(const tsh_tensor *table, double p, const tsh_tensor *rows, const tsh_tensor *powers,
                              tsh_tensor *norms) {
    tsh_device *device = tshi_device_of(table);
    const tshi_elementwise_ops *ops = &device->ops->elementwise[TSH_FLOAT64];
    void *x = tshi_data(powers), *norm = tshi_data(norms);
    int64_t cols = tshi_cols(table);
    bool largest = isinf(p);
    device->ops->copy.convert(device, rows->numel, rows->dtype, tshi_data(rows), TSH_FLOAT64, x);
    ops->mul(device, rows->numel, x, x, 0, x);
    if (largest) {
        device->ops->softmax[TSH_FLOAT64].max(device, norms->numel, cols, 1, x, norm);
    } else {
        if (p != 2) ops->unary(device, TSHI_POW, (double[2]){p / 2}, rows->numel, x, x);
        device->ops->sum[TSH_FLOAT64].over_dim(device, norms->numel, cols, 1, 1, x, norm);
    }
    tsh_status status =
        tshi_statistics_reduce(tshi_axes_splitting(table, 1), norms, largest ? TSH_REDUCE_MAX : TSH_REDUCE_SUM);
    if (status == TSH_OK) ops->unary(device, TSHI_POW, (double[2]){largest ? 0.5 : 1 / p}, norms->numel, norm, norm);
    return status;
}

/* Scales the rows from a copy, so that a row with several ids is scaled once. */
static tsh_status bound_rows(tsh_call *call, const tsh_tensor *ids) {
    const tshi_lookup *lookup = call->params;
    const tsh_tensor *table = call->in[0];
    tsh_device *device = tshi_device_of(table);
    table_rows s = table_slice(table);
    const tsh_tensor *rows = tsh_call_scratch(call, table->dtype, ids->numel * s.cols);
    const tsh_tensor *powers = rows ? tsh_call_scratch(call, TSH_FLOAT64, rows->numel) : NULL;
    tsh_tensor *norms = powers ? tsh_call_scratch(call, TSH_FLOAT64, ids->numel) : NULL;
    if (!norms) return TSH_ERR_MEMORY;
    tsh_status status = look_up_rows(table, ids, rows);
    if (status == TSH_OK) status = reduce_rows(table, lookup->norm_type, rows, powers, norms);
    if (status != TSH_OK) return status;
    device->ops->embedding[table->dtype].bound(device, ids->numel, tshi_data(ids), s.start, s.rows, s.cols,
                                               tshi_data(norms), lookup->max_norm, tshi_data(rows), tshi_data(table));
    return TSH_OK;
}

/* Every rank that holds a row uses the ids of all ranks. */
static const tsh_rule bound_rules[] = {
    {{TSH_AS_R, TSH_AS_R}, TSH_AS_R}, {{TSH_AS_S0, TSH_AS_R}, TSH_AS_S0}, {{TSH_AS_S1, TSH_AS_R}, TSH_AS_S1},
    {{TSH_AS_L, TSH_AS_L}, TSH_AS_L}, {{TSH_ROW_END}, TSH_ROW_END},
};

static tsh_status bound_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    tsh_status status = lookup_shape(call, dtype, out);
    *out = call->in[0]->shape;
    return status;
}

static tsh_status bound_forward(tsh_call *call) {
    const tsh_tensor *ids;
    tsh_status status = gather_ids(call, &ids);
    return status == TSH_OK ? bound_rows(call, ids) : status;
}

/* The output is the table, with the looked-up rows scaled; never recorded. */
static const tsh_op bound_op = {.name = "embedding_forward",
                                .rules = bound_rules,
                                .shape = bound_shape,
                                .forward = bound_forward,
                                .params_size = sizeof(tshi_lookup),
                                .views = true,
                                .by_element = true};

/* The table; in a deterministic world, with whole rows, for their norms. For a table that data parallelism shards, this
 * rank's slice, in the same memory. */
static tsh_tensor *bounded_table(tsh_tape *tape, tsh_tensor *table) {
    unsigned axes = tape->world->deterministic ? tshi_axes_splitting(table, 1) : 0;
    tsh_tensor *x = table;
    tsh_layout layout[TSH_MAX_AXES];
    if (tshi_gradient_whole(table) != table) {
        tsh_status status = tshi_tensor_view(table, &table->shape, table->layout, 0, &x);
        if (status == TSH_OK) status = tshi_tape_own(tape, x);
        if (tshi_tape_check(tape, status, "embedding_forward") != TSH_OK) return NULL;
    }
    if (!axes) return x;
    memcpy(layout, x->layout, sizeof layout);
    for (int a = 0; a < x->mesh->axes; a++) {
        if (axes >> a & 1u) layout[a] = TSH_REPLICATED;
    }
    return tshi_to_layouts(tape, "embedding_forward", x, layout);
}

/* Copies this rank's part of `scaled`, the whole scaled table, to the table, unless `scaled` is in the table's
 * memory. */
static void keep_part(tsh_tensor *table, const tsh_tensor *scaled) {
    void *to = tshi_data_to_write(table); /* on every rank, so that all gather the values again */
    if (scaled->storage == table->storage || table->numel == 0) return;
    tsh_device *device = tshi_device_of(table);
    size_t size = tsh_dtype_size(table->dtype), from_row = (size_t)tshi_cols(scaled) * size;
    int64_t before[2];
    for (int d = 0; d < 2; d++)
        before[d] = tshi_shape_start(table->mesh, &table->shape, table->layout, d) -
                    tshi_shape_start(scaled->mesh, &scaled->shape, scaled->layout, d);
    const char *from = (const char *)tshi_data(scaled) + (size_t)before[0] * from_row + (size_t)before[1] * size;
    device->ops->copy.strided(device, tshi_rows(table), (size_t)tshi_cols(table) * size, from, from_row, to,
                              (size_t)tshi_cols(table) * size);
}

/* --- embedding ---------------------------------------------------------------------------------------------------- */

/* Scales rows in place; never recorded. */
static bool bound_table(tsh_tape *tape, tsh_tensor *table, tsh_tensor *ids, void *lookup, const tshi_want *want) {
    const tshi_want in_place = {.parameters = want->parameters, .as_stored = true, .axis = -1};
    bool recording = tsh_tape_set_recording(tape, false);
    tsh_tensor *scaled = bounded_table(tape, table);
    bool done = scaled && tshi_apply_as(tape, &bound_op, 2, (tsh_tensor *[]){scaled, ids}, lookup, &in_place);
    tsh_tape_set_recording(tape, recording);
    if (done) keep_part(table, scaled);
    return done;
}

tsh_tensor *tshi_embedding(tsh_tape *tape, tsh_tensor *table, tsh_tensor *ids, const tshi_lookup *lookup,
                           const tshi_want *want) {
    tsh_tensor *in[] = {table, ids};
    void *params = (void *)(uintptr_t)lookup;
    if (!tshi_tape_ready(tape, tshi_embedding_op.name, 2, in)) return NULL;
    if (lookup->max_norm > 0 && !bound_table(tape, table, ids, params, want)) return NULL;
    return tshi_cast_as(tape, tshi_apply_as(tape, &tshi_embedding_op, 2, in, params, want), table);
}

/* --- quantized tables --------------------------------------------------------------------------------------------- */

static tsh_status quantized_lookup_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tshi_quantized_lookup *p = call->params;
    tsh_status status = check_lookup(call->in[0], call->in[1], p->dtype);
    if (status != TSH_OK) return status;
    *dtype = p->dtype;
    *out = call->in[1]->shape;
    out->global[out->ndim++] = p->embedding_dim;
    return TSH_OK;
}

/* Only the rows that are looked up are dequantized. Groups have an even number of bytes, and their rows are looked up
 * as rows of 16-bit elements; zeros, for rows of other slices, are groups of zeros. */
static tsh_status quantized_lookup_forward(tsh_call *call) {
    const tshi_quantized_lookup *p = call->params;
    const tsh_tensor *table = call->in[0], *ids = call->in[1], *y = call->out;
    tsh_device *device = tshi_device_of(table);
    const table_rows s = table_slice(table);
    const bool wide = y->dtype == TSH_FLOAT32;
    tsh_status status = tshi_check_ids(ids, "the vocabulary", table->shape.global[0]);
    if (status != TSH_OK) return status;
    tsh_tensor *groups = tsh_call_scratch(call, TSH_UINT8, ids->numel * s.cols);
    tsh_tensor *floats = wide ? NULL : tsh_call_scratch(call, TSH_FLOAT32, y->numel);
    if (!groups || !(wide || floats)) return TSH_ERR_MEMORY;
    float *values = tshi_data(wide ? y : floats);
    device->ops->embedding[TSH_FLOAT16].forward(device, ids->numel, tshi_data(ids), s.start, s.rows, s.cols / 2,
                                                tshi_data(table), tshi_data(groups));
    device->ops->quantized.dequantize(device, p->format, ids->numel, tshi_cols(y), tshi_data(groups), values);
    if (!wide) device->ops->copy.convert(device, y->numel, TSH_FLOAT32, values, y->dtype, tshi_data(y));
    return TSH_OK;
}

static const tsh_op quantized_lookup_op = {"embedding_forward", lookup_rules, quantized_lookup_shape,
                                           quantized_lookup_forward, .params_size = sizeof(tshi_quantized_lookup)};

tsh_tensor *tshi_embedding_quantized(tsh_tape *tape, tsh_tensor *table, tsh_tensor *ids,
                                     const tshi_quantized_lookup *params, const tshi_want *want) {
    tshi_quantized_lookup p = *params;
    tsh_tensor *in[] = {table, ids};
    if (!tshi_tape_ready(tape, quantized_lookup_op.name, 2, in)) return NULL;
    return tshi_cast_as(tape, tshi_apply_as(tape, &quantized_lookup_op, 2, in, &p, want), table);
}

/* --- with a low-rank adapter -------------------------------------------------------------------------------------- */

typedef struct adapted_lookup_params {
    tshi_lookup lookup; /* first, as in the params of all lookups */
    double scale;
} adapted_lookup_params;

/* Table, ids, the looked-up rows of A, B. */
enum { ADAPTED_TABLE, ADAPTED_IDS, ADAPTED_DOWN, ADAPTED_UP };

/* The table, which is never moved, selects the row. */
static const tsh_rule adapted_lookup_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_S0, TSH_AS_R, TSH_AS_P, TSH_AS_L}, TSH_AS_P},
    {{TSH_AS_S1, TSH_AS_R, TSH_AS_L, TSH_AS_S0}, TSH_AS_LAST},
    {{TSH_AS_L, TSH_AS_ANY, TSH_AS_ANY, TSH_AS_L}, TSH_AS_ANY},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};

/* c = alpha op(a) op(b) + beta c, each seen as a matrix [all dims but the last, the last]. */
static tsh_status add_matrix_product(double alpha, const tsh_tensor *a, bool transpose_a, const tsh_tensor *b,
                                     bool transpose_b, double beta, tsh_tensor *c) {
    tsh_device *device = tshi_device_of(a);
    return device->ops->product.gemm(device, a->dtype, transpose_a, transpose_b, tshi_rows(c), tshi_cols(c),
                                     transpose_a ? tshi_rows(a) : tshi_cols(a), alpha, tshi_data(a), tshi_cols(a),
                                     tshi_data(b), tshi_cols(b), beta, tshi_data(c), tshi_cols(c));
}

static tsh_status adapted_lookup_forward(tsh_call *call) {
    const adapted_lookup_params *p = call->params;
    tsh_status status = lookup_forward(call);
    return status == TSH_OK
               ? add_matrix_product(p->scale, call->in[ADAPTED_DOWN], false, call->in[ADAPTED_UP], true, 1, call->out)
               : status;
}

/* d(A[ids]) = scale dy B, dB = scale dy^T A[ids]; the table's rows where it is not frozen. */
static tsh_status adapted_lookup_backward(tsh_call *call) {
    const adapted_lookup_params *p = call->params;
    const tsh_tensor *dy = tsh_call_grad_out(call);
    const tsh_tensor *factor[] = {[ADAPTED_DOWN] = call->in[ADAPTED_UP], [ADAPTED_UP] = call->in[ADAPTED_DOWN]};
    tsh_status status = tsh_call_wants_grad(call, ADAPTED_TABLE) ? lookup_backward(call) : TSH_OK;
    for (int i = ADAPTED_DOWN; i <= ADAPTED_UP && status == TSH_OK; i++) {
        double beta;
        if (!tsh_call_wants_grad(call, i)) continue;
        tsh_tensor *gradient = tshi_grad_beta(call, i, &beta);
        if (!gradient) return TSH_ERR_MEMORY;
        status = add_matrix_product(p->scale, dy, i == ADAPTED_UP, factor[i], false, beta, gradient);
    }
    return status;
}

static const tsh_op adapted_lookup_op = {
    "embedding_forward",    adapted_lookup_rules,    lookup_shape,
    adapted_lookup_forward, adapted_lookup_backward, .params_size = sizeof(adapted_lookup_params)};

/* Values are used as they are stored: a cast of the whole table would cost more than a product in its dtype. */
tsh_tensor *tshi_adapted_embedding(tsh_tape *tape, tsh_tensor **in, const tshi_lookup *lookup, double scale,
                                   const tshi_want *want) {
    tsh_tensor *table = in[ADAPTED_TABLE], *ids = in[ADAPTED_IDS], *a = in[ADAPTED_DOWN];
    const tshi_want stays = {.parameters = 1u << 0, .as_stored = true, .axis = -1};
    adapted_lookup_params params = {*lookup, scale};
    tshi_want both = *want;
    both.parameters = 1u << ADAPTED_TABLE | 1u << ADAPTED_UP;
    if (!tshi_tape_ready(tape, adapted_lookup_op.name, 4, in)) return NULL;
    for (int i = ADAPTED_TABLE; lookup->max_norm > 0 && i <= ADAPTED_DOWN; i += ADAPTED_DOWN)
        if (!bound_table(tape, in[i], ids, &params.lookup, &stays)) return NULL;
    tsh_tensor *down = tshi_apply_as(tape, &tshi_embedding_op, 2, (tsh_tensor *[]){a, ids}, &params.lookup, &stays);
    /* The factors may be gathered in another dtype than the table is stored in. */
    const tsh_dtype dtype = tshi_gradient_whole(table)->dtype;
    tsh_tensor *up = in[ADAPTED_UP];
    if (down && down->dtype != dtype) down = tsh_cast(tape, down, dtype);
    if (tshi_gradient_whole(up)->dtype != dtype) up = tsh_cast(tape, up, dtype);
    tsh_tensor *used[] = {table, ids, down, up};
    return tshi_cast_as(tape, tshi_apply_as(tape, &adapted_lookup_op, 4, used, &params, &both), table);
}
