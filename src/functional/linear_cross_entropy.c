/* Cross entropy of the logits x W^T, which exist only for one chunk of rows at a time. Five numbers a row are kept,
 * with which backward recomputes the logits; or forward computes the gradients too. */
#include "functional/functional.h"

#include <math.h>

/* x, weight, target, class weights. The weight is never moved. */
static const tsh_rule head_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_L, TSH_AS_S0, TSH_AS_R, TSH_AS_S0}, TSH_AS_R}, /* vocabulary-parallel */
    {{TSH_AS_BATCH, TSH_AS_L, TSH_AS_ANY, TSH_AS_L}, TSH_AS_R},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};
static const tsh_rule head_row_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_L, TSH_AS_S0, TSH_AS_R, TSH_AS_S0}, TSH_AS_R},
    {{TSH_AS_BATCH, TSH_AS_L, TSH_AS_ANY, TSH_AS_L}, TSH_AS_ANY},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};

typedef struct head_params {
    int64_t ignore_index, chunk;
    double smoothing, z_loss;
    tsh_reduction reduction;
    tsh_linear_loss_memory memory;
} head_params;

/* Saved tensors. HEAD_STATISTICS: the rows' maxima, four sums a row (kernels.h), and the sum of the class weights of
 * this slice, then of all. HEAD_TOTALS: numerator and denominator of the cross entropy, then of the z-loss. HEAD_KEPT:
 * the gradients of x and of the weight for an upstream gradient of 1, before the division by the denominator. */
enum { HEAD_STATISTICS, HEAD_TOTALS, HEAD_KEPT };
enum { HEAD_ENTROPY, HEAD_ENTROPY_DIVISOR, HEAD_Z, HEAD_Z_DIVISOR, HEAD_TOTALS_COUNT };

static void *head_element(const tsh_tensor *t, int64_t index) {
    return (char *)tshi_data(t) + (size_t)index * tsh_dtype_size(t->dtype);
}

static int64_t head_rows(const tsh_call *call) {
    return call->in[2]->numel;
}

static int64_t statistics_count(const tsh_call *call) {
    return 5 * head_rows(call) + 1;
}

static const tsh_tensor *head_weights(const tsh_call *call) {
    return call->inputs == 4 ? call->in[3] : NULL;
}

static bool sums_head_weights(const tsh_call *call) {
    const head_params *p = call->params;
    return head_weights(call) && p->smoothing != 0;
}

/* The kernels' view of all rows; HEAD_STATISTICS must have memory. */
static tshi_classes head_classes(const tsh_call *call) {
    const head_params *p = call->params;
    const tsh_tensor *w = call->in[1], *statistics = call->saved[HEAD_STATISTICS];
    return (tshi_classes){.rows = head_rows(call),
                          .n = w->shape.local[0],
                          .start = tshi_shape_start(w->mesh, &w->shape, w->layout, 0),
                          .classes = w->shape.global[0],
                          .ignore_index = p->ignore_index,
                          .smoothing = p->smoothing,
                          .weight = tshi_data(head_weights(call)),
                          .weight_sum = sums_head_weights(call) ? head_element(statistics, 5 * head_rows(call)) : NULL,
                          .z_loss = p->z_loss,
                          .max = tshi_data(statistics)};
}

/* --- shape -------------------------------------------------------------------------------------------------------- */

static tsh_status check_head_params(const head_params *p) {
    tsh_status status = tshi_entropy_check_params(p->smoothing, p->reduction);
    if (status != TSH_OK) return status;
    if (!(p->z_loss >= 0 && isfinite(p->z_loss)))
        return tshi_fail(TSH_ERR_ARGUMENT, "z_loss %g is outside [0, inf)", p->z_loss);
    if (p->chunk < 0 || (unsigned)p->memory > TSH_LINEAR_LOSS_KEEP)
        return tshi_fail(TSH_ERR_ARGUMENT, "chunk %lld is below 0, or memory %d is unknown", (long long)p->chunk,
                         (int)p->memory);
    return TSH_OK;
}

static tsh_status head_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const head_params *p = call->params;
    const tsh_tensor *x = call->in[0], *w = call->in[1], *target = call->in[2];
    int last = x->shape.ndim - 1;
    tsh_status status = check_head_params(p);
    if (status != TSH_OK) return status;
    if (last < 0 || w->shape.ndim != 2 || x->shape.global[last] != w->shape.global[1])
        return tshi_check_fails(x, w, "x [..., features] and weight [classes, features] wanted");
    if (x->dtype != w->dtype)
        return tshi_fail(TSH_ERR_DTYPE, "x is %s, the weight %s", TSHI_TENSOR_TEXT(x), tsh_dtype_name(w->dtype));
    status = tshi_check_computes(x->mesh->device, x->dtype, "x's dtype");
    if (status == TSH_OK) status = tshi_entropy_check_target(x, target, "x [..., features] and target [...] wanted");
    if (status == TSH_OK) status = tshi_entropy_check_weight(head_weights(call), w->shape.global[0], x->dtype);
    *dtype = tshi_dtype_sum(x->dtype);
    out->ndim = 0;
    if (p->reduction == TSH_REDUCTION_NONE) *out = target->shape;
    return status;
}

/* --- chunks ------------------------------------------------------------------------------------------------------- */

/* A chunk's rows. By default, its logits and their gradient are a sixteenth of what all of them would be, unless that
 * is little. The result depends on metadata only, in a deterministic world not even on the setting: sums over chunks
 * then have the same bits. */
static int64_t chunk_rows(const tsh_call *call) {
    enum { LEAST = 32, STEP = 16, FEW_BYTES = 4 << 20 };
    const head_params *p = call->params;
    const tsh_tensor *w = call->in[1];
    int64_t rows = head_rows(call), part = (rows + LEAST - 1) / LEAST;
    bool fixed = w->mesh->world->deterministic;
    double bytes = (double)rows * (double)w->shape.local[0] * (double)tsh_dtype_size(w->dtype);
    if (p->chunk > 0 && !fixed) return p->chunk < rows ? p->chunk : rows;
    if (rows <= LEAST || (bytes <= FEW_BYTES && !fixed)) return rows;
    return part < LEAST ? LEAST : (part + STEP - 1) / STEP * STEP;
}

/* Memory for a chunk, and which rows it has. */
typedef struct chunk {
    tsh_call *call;
    tshi_classes c; /* of its rows */
    int64_t first, most;
    const tsh_tensor *logits, *gradient;
} chunk;

static tsh_status begin_chunks(tsh_call *call, bool gradient, chunk *k) {
    const tsh_tensor *x = call->in[0];
    int64_t most = chunk_rows(call), n = call->in[1]->shape.local[0];
    *k = (chunk){.call = call, .most = most};
    k->logits = tsh_call_scratch(call, x->dtype, most * n);
    if (k->logits && gradient) k->gradient = tsh_call_scratch(call, x->dtype, most * n);
    return k->logits && (!gradient || k->gradient) ? TSH_OK : TSH_ERR_MEMORY;
}

/* Sets k->c to the chunk that begins at row k->first; false when no rows are left. */
static bool next_chunk(chunk *k) {
    k->c = head_classes(k->call);
    if (k->first >= k->c.rows) return false;
    int64_t left = k->c.rows - k->first;
    k->c.rows = left < k->most ? left : k->most;
    k->c.max = head_element(k->call->saved[HEAD_STATISTICS], k->first);
    return true;
}

/* The chunk's first row in t, which has `columns` elements a row. */
static void *chunk_at_row(const chunk *k, const tsh_tensor *t, int64_t columns) {
    return head_element(t, k->first * columns);
}

static void *chunk_sums(const chunk *k) {
    return head_element(k->call->saved[HEAD_STATISTICS], head_rows(k->call) + 4 * k->first);
}

static tsh_status make_logits(const chunk *k) {
    const tsh_tensor *x = k->call->in[0], *w = k->call->in[1];
    int64_t d = w->shape.local[1];
    return tshi_device_of(x)->ops->product.affine(tshi_device_of(x), x->dtype, k->c.rows, k->c.n, d,
                                                  chunk_at_row(k, x, d), tshi_data(w), NULL, TSHI_IDENTITY, NULL,
                                                  tshi_data(k->logits));
}

/* k->gradient = that of the chunk's logits. */
static void chunk_logits_gradient(const chunk *k, const void *upstream, int64_t stride, const void *divisor) {
    const tsh_tensor *x = k->call->in[0];
    tsh_device *device = tshi_device_of(x);
    const char *from = upstream;
    device->ops->cross_entropy[x->dtype].backward(
        device, &k->c, tshi_data(k->logits), chunk_at_row(k, k->call->in[2], 1), k->c.max, chunk_sums(k),
        from + (size_t)(stride * k->first) * tsh_dtype_size(tshi_dtype_sum(x->dtype)), stride, divisor, 0,
        tshi_data(k->gradient));
}

/* dx = beta dx + dl W, of the chunk's rows. */
static tsh_status chunk_input_gradient(const chunk *k, double beta, void *dx) {
    const tsh_tensor *w = k->call->in[1];
    tsh_device *device = tshi_device_of(w);
    int64_t d = w->shape.local[1], n = k->c.n;
    return device->ops->product.gemm(device, w->dtype, false, false, k->c.rows, d, n, 1, tshi_data(k->gradient), n,
                                     tshi_data(w), d, beta, dx, d);
}

/* dW = beta dW + dl^T x, of the chunk's rows; dW has the dtype `to`. */
static tsh_status chunk_weight_gradient(const chunk *k, double beta, tsh_dtype to, void *dw) {
    const tsh_tensor *x = k->call->in[0];
    tsh_device *device = tshi_device_of(x);
    int64_t d = k->call->in[1]->shape.local[1];
    return device->ops->product.affine_backward(device, x->dtype, k->c.rows, k->c.n, d, chunk_at_row(k, x, d),
                                                tshi_data(k->gradient), to, beta, dw, 0, NULL);
}

/* --- gradients in forward ----------------------------------------------------------------------------------------- */

/* True when forward makes the gradients too, and backward only scales them: one product fewer, for memory as large as
 * the weight. It needs the whole sums of a chunk's rows, and one upstream gradient for all rows. */
static bool keeps_gradients(const tsh_call *call) {
    enum { SMALL = 8 };
    const head_params *p = call->params;
    const tsh_tensor *x = call->in[0], *w = call->in[1];
    bool can = tshi_call_records(call) && p->reduction != TSH_REDUCTION_NONE && !tshi_axes_splitting(w, 0) &&
               tshi_dtype_sum(x->dtype) == x->dtype && !(p->z_loss > 0 && head_weights(call)) &&
               !w->mesh->world->deterministic;
    if (!can || p->memory != TSH_LINEAR_LOSS_DEFAULT) return can && p->memory == TSH_LINEAR_LOSS_KEEP;
    return w->shape.local[1] * SMALL <= head_rows(call);
}

static int64_t kept_inputs(const tsh_call *call) {
    return tsh_call_wants_grad(call, 0) ? call->in[0]->numel : 0;
}

static tsh_status keep_gradients(const chunk *k, const tsh_tensor *one) {
    const tsh_tensor *kept = k->call->saved[HEAD_KEPT];
    int64_t d = k->call->in[1]->shape.local[1];
    tsh_status status = TSH_OK;
    chunk_logits_gradient(k, tshi_data(one), 0, NULL);
    if (tsh_call_wants_grad(k->call, 0)) status = chunk_input_gradient(k, 0, chunk_at_row(k, kept, d));
    if (status == TSH_OK && tsh_call_wants_grad(k->call, 1))
        status = chunk_weight_gradient(k, k->first > 0 ? 1 : 0, kept->dtype, head_element(kept, kept_inputs(k->call)));
    return status;
}

static tsh_status save_kept(tsh_call *call, const tsh_tensor **one) {
    tsh_device *device = tshi_device_of(call->in[0]);
    int64_t count = kept_inputs(call) + (tsh_call_wants_grad(call, 1) ? call->in[1]->numel : 0);
    tsh_tensor *kept = tsh_call_save(call, HEAD_KEPT, call->in[0]->dtype, count);
    *one = kept ? tshi_statistics_scratch(call, call->in[0], 1) : NULL;
    if (!*one) return TSH_ERR_MEMORY;
    device->ops->copy.fill(device, (*one)->dtype, 1, 1, tshi_data(*one));
    if (head_rows(call) == 0) device->ops->copy.zero(device, tsh_tensor_local_nbytes(kept), tshi_data(kept));
    return TSH_OK;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* The sum of this slice's class weights, which gradients of kept rows need, too. */
static tsh_status sum_class_weights(tsh_call *call) {
    const tsh_tensor *w = call->in[1], *statistics = call->saved[HEAD_STATISTICS];
    tsh_device *device = tshi_device_of(w);
    void *sum = head_element(statistics, 5 * head_rows(call));
    if (sums_head_weights(call)) return tshi_entropy_sum_weights(call, head_weights(call), sum);
    device->ops->copy.fill(device, statistics->dtype, 1, (double)w->shape.local[0], sum);
    return TSH_OK;
}

static tsh_status make_head_statistics(tsh_call *call) {
    const tsh_tensor *one = NULL;
    chunk k;
    bool keeps = keeps_gradients(call);
    tsh_device *device = tshi_device_of(call->in[0]);
    tsh_status status = begin_chunks(call, keeps, &k);
    if (status == TSH_OK && keeps) status = save_kept(call, &one);
    for (; status == TSH_OK && next_chunk(&k); k.first += k.most) {
        status = make_logits(&k);
        if (status != TSH_OK) return status;
        device->ops->cross_entropy[call->in[0]->dtype].sums(
            device, &k.c, tshi_data(k.logits), chunk_at_row(&k, call->in[2], 1),
            chunk_at_row(&k, call->saved[HEAD_STATISTICS], 1), chunk_sums(&k));
        if (keeps) status = keep_gradients(&k, one);
    }
    return status;
}

/* Joins the statistics of all ranks along an axis that splits the classes: gathers them, brings the sums to the largest
 * maximum, and adds them in the order of the ranks. */
static tsh_status join_axis(tsh_call *call, const tshi_classes *c, int axis) {
    const tsh_tensor *x = call->in[0];
    tsh_tensor *own = call->saved[HEAD_STATISTICS];
    tsh_group *group = own->mesh->axis[axis].group;
    tsh_device *device = tshi_device_of(own);
    int64_t ranks = own->mesh->axis[axis].size, width = own->numel, rows = c->rows;
    tsh_tensor *all = tsh_call_scratch(call, own->dtype, ranks * width);
    const tsh_tensor *most = all ? tsh_call_scratch(call, own->dtype, width) : NULL;
    if (!most) return TSH_ERR_MEMORY;
    tsh_status status = tsh_all_gather_into_tensor(group, own, all, NULL);
    if (status != TSH_OK) return status;
    device->ops->softmax[own->dtype].max(device, 1, ranks, width, tshi_data(all), tshi_data(most));
    for (int64_t r = 0; r < ranks; r++) {
        tshi_classes of = *c;
        of.weight_sum = head_element(all, r * width + 5 * rows);
        device->ops->cross_entropy[x->dtype].shift(device, &of, head_element(all, r * width), tshi_data(most),
                                                   head_element(all, r * width + rows));
    }
    device->ops->sum[own->dtype].over_dim(device, 1, ranks, width, 1, tshi_data(all), tshi_data(own));
    device->ops->copy.within(device, (size_t)rows * tsh_dtype_size(own->dtype), tshi_data(most), tshi_data(own));
    return TSH_OK;
}

static tsh_status join_axes(tsh_call *call) {
    const tshi_classes c = head_classes(call);
    const tsh_tensor *w = call->in[1];
    unsigned axes = tshi_axes_splitting(w, 0);
    tsh_status status = TSH_OK;
    for (int a = 0; a < w->mesh->axes && status == TSH_OK; a++) {
        if (axes >> a & 1u) status = join_axis(call, &c, a);
    }
    return status;
}

/* Adds up a part of the losses to *to. */
static void add_losses(const tsh_call *call, const tshi_classes *c, const tsh_tensor *losses, void *to) {
    const tsh_tensor *x = call->in[0];
    tsh_device *device = tshi_device_of(x);
    device->ops->cross_entropy[x->dtype].loss(device, c, tshi_data(call->in[2]),
                                              head_element(call->saved[HEAD_STATISTICS], head_rows(call)),
                                              tshi_data(losses));
    device->ops->sum[losses->dtype].over_dim(device, 1, c->rows, 1, 1, tshi_data(losses), to);
}

/* Numerators and denominators over all ranks that hold rows. */
static tsh_status make_head_totals(tsh_call *call) {
    tshi_classes c = head_classes(call);
    const tsh_tensor *x = call->in[0], *statistics = call->saved[HEAD_STATISTICS];
    tsh_device *device = tshi_device_of(x);
    unsigned axes = tshi_axes_splitting(x, -1);
    const tsh_tensor *losses = tshi_statistics_scratch(call, x, c.rows);
    const tsh_tensor *sums = losses ? tshi_statistics_scratch(call, x, 4) : NULL;
    tsh_tensor *totals = sums ? tshi_statistics_save(call, HEAD_TOTALS, x, HEAD_TOTALS_COUNT) : NULL;
    if (!totals) return TSH_ERR_MEMORY;
    size_t size = tsh_dtype_size(totals->dtype);
    device->ops->sum[totals->dtype].over_dim(device, 1, c.rows, 4, 1, head_element(statistics, c.rows),
                                             tshi_data(sums));
    device->ops->copy.within(device, size, head_element(sums, 2),
                             head_element(totals, HEAD_ENTROPY_DIVISOR)); /* the sum of w_t */
    c.z_loss = 0;
    add_losses(call, &c, losses, head_element(totals, HEAD_ENTROPY));
    c = head_classes(call);
    c.part = TSHI_LOSS_OF_Z;
    add_losses(call, &c, losses, head_element(totals, HEAD_Z));
    c.part = TSHI_LOSS_COUNT;
    add_losses(call, &c, losses, head_element(totals, HEAD_Z_DIVISOR));
    return tshi_statistics_reduce(axes, totals, TSH_REDUCE_SUM);
}

static void combine_scalars(const tsh_call *call, tshi_binary f, const void *a, const void *b, void *to) {
    tsh_device *device = tshi_device_of(call->out);
    device->ops->elementwise[call->out->dtype].binary(device, f, &(tshi_broadcast){1, {1}, {1}, {1}}, a, b, to);
}

static tsh_status reduce_head(tsh_call *call) {
    const head_params *p = call->params;
    tsh_status status = make_head_totals(call);
    if (status != TSH_OK) return status;
    const tsh_tensor *totals = call->saved[HEAD_TOTALS], *parts = tshi_statistics_scratch(call, call->in[0], 2);
    const void *entropy = head_element(totals, HEAD_ENTROPY), *z = head_element(totals, HEAD_Z);
    if (!parts) return TSH_ERR_MEMORY;
    if (p->reduction == TSH_REDUCTION_MEAN) {
        combine_scalars(call, TSHI_DIV, entropy, head_element(totals, HEAD_ENTROPY_DIVISOR), head_element(parts, 0));
        combine_scalars(call, TSHI_DIV, z, head_element(totals, HEAD_Z_DIVISOR), head_element(parts, 1));
        entropy = head_element(parts, 0);
        z = p->z_loss > 0 ? head_element(parts, 1) : z; /* 0 without a z-loss, also where there are no rows */
    }
    combine_scalars(call, TSHI_ADD, entropy, z, tshi_data(call->out));
    return TSH_OK;
}

static tsh_status head_forward(tsh_call *call) {
    const head_params *p = call->params;
    const tsh_tensor *x = call->in[0];
    if (!tshi_statistics_save(call, HEAD_STATISTICS, x, statistics_count(call))) return TSH_ERR_MEMORY;
    tshi_classes c = head_classes(call);
    tsh_status status = tshi_entropy_check_range(call->in[2], &c);
    if (status == TSH_OK) status = sum_class_weights(call);
    if (status == TSH_OK) status = make_head_statistics(call);
    if (status == TSH_OK) status = join_axes(call);
    if (status != TSH_OK || p->reduction != TSH_REDUCTION_NONE) return status == TSH_OK ? reduce_head(call) : status;
    tsh_device *device = tshi_device_of(x);
    device->ops->cross_entropy[x->dtype].loss(device, &c, tshi_data(call->in[2]),
                                              head_element(call->saved[HEAD_STATISTICS], c.rows), tshi_data(call->out));
    return TSH_OK;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* Scales the kept gradients by the upstream gradient over the divisor, and adds them. */
static tsh_status use_kept(tsh_call *call) {
    const head_params *p = call->params;
    const tsh_tensor *x = call->in[0];
    tsh_tensor *kept = call->saved[HEAD_KEPT], *part = NULL;
    tsh_device *device = tshi_device_of(x);
    const tsh_tensor *factor = tshi_statistics_scratch(call, x, 1);
    tsh_tensor *scaled = call->tape->keeps_graph ? tsh_call_scratch(call, kept->dtype, kept->numel) : kept;
    if (!factor || !scaled) return TSH_ERR_MEMORY;
    const void *upstream = tshi_data(tsh_call_grad_out(call));
    if (p->reduction == TSH_REDUCTION_MEAN) {
        combine_scalars(call, TSHI_DIV, upstream, head_element(call->saved[HEAD_TOTALS], HEAD_ENTROPY_DIVISOR),
                        tshi_data(factor));
        upstream = tshi_data(factor);
    }
    device->ops->elementwise[kept->dtype].binary(device, TSHI_MUL, &(tshi_broadcast){1, {kept->numel}, {1}, {0}},
                                                 tshi_data(kept), upstream, tshi_data(scaled));
    tsh_status status = TSH_OK;
    for (int i = 0; i < 2 && status == TSH_OK; i++) {
        tsh_layout layout[TSH_MAX_AXES];
        if (!tsh_call_wants_grad(call, i)) continue;
        size_t offset = i ? (size_t)kept_inputs(call) * tsh_dtype_size(kept->dtype) : 0;
        tshi_gradient_layout(call->in[i], layout);
        status = tshi_tensor_view(scaled, &call->in[i]->shape, layout, offset, &part);
        if (status == TSH_OK) status = tshi_grad_adopt(call, i, part);
        tshi_tensor_release(part);
        part = NULL;
    }
    return status;
}

/* Makes each chunk's logits again. */
static tsh_status recompute_logits(tsh_call *call) {
    const head_params *p = call->params;
    const tsh_tensor *totals = call->saved[HEAD_TOTALS];
    bool mean = p->reduction == TSH_REDUCTION_MEAN;
    int64_t stride = p->reduction == TSH_REDUCTION_NONE ? 1 : 0, d = call->in[1]->shape.local[1];
    double beta_x = 0, beta_w = 0;
    chunk k;
    tsh_tensor *dx = tsh_call_wants_grad(call, 0) ? tshi_grad_beta(call, 0, &beta_x) : NULL;
    tsh_tensor *dw = tsh_call_wants_grad(call, 1) ? tshi_grad_sum(call, 1, &beta_w) : NULL;
    if ((tsh_call_wants_grad(call, 0) && !dx) || (tsh_call_wants_grad(call, 1) && !dw)) return TSH_ERR_MEMORY;
    if (dw && head_rows(call) == 0 && beta_w == 0)
        tshi_device_of(dw)->ops->copy.zero(tshi_device_of(dw), tsh_tensor_local_nbytes(dw), tshi_data(dw));
    tsh_status status = begin_chunks(call, true, &k);
    for (; status == TSH_OK && next_chunk(&k); k.first += k.most) {
        k.c.z_divisor = mean ? head_element(totals, HEAD_Z_DIVISOR) : NULL;
        status = make_logits(&k);
        if (status == TSH_OK)
            chunk_logits_gradient(&k, tshi_data(tsh_call_grad_out(call)), stride,
                                  mean ? head_element(totals, HEAD_ENTROPY_DIVISOR) : NULL);
        if (status == TSH_OK && dx) status = chunk_input_gradient(&k, beta_x, chunk_at_row(&k, dx, d));
        if (status == TSH_OK && dw)
            status = chunk_weight_gradient(&k, k.first > 0 ? 1 : beta_w, dw->dtype, tshi_data(dw));
    }
    return status;
}

static tsh_status head_backward(tsh_call *call) {
    if (!tsh_call_wants_grad(call, 0) && !tsh_call_wants_grad(call, 1)) return TSH_OK;
    return call->saved[HEAD_KEPT] ? use_kept(call) : recompute_logits(call);
}

static const tsh_op head_op = {"linear_cross_entropy", head_rules,    head_shape,
                               head_forward,           head_backward, .params_size = sizeof(head_params)};
static const tsh_op head_rows_op = {"linear_cross_entropy", head_row_rules, head_shape,
                                    head_forward,           head_backward,  .params_size = sizeof(head_params)};

tsh_tensor *tsh_linear_cross_entropy(tsh_tape *tape, tsh_tensor *x, tsh_tensor *weight, tsh_tensor *target,
                                     const tsh_linear_cross_entropy_config *config) {
    static const tsh_linear_cross_entropy_config defaults = {0};
    static const tshi_want want = {.parameters = 1u << 1, .axis = -1};
    const tsh_linear_cross_entropy_config *c = config ? config : &defaults;
    const tsh_op *op = c->loss.reduction == TSH_REDUCTION_NONE ? &head_rows_op : &head_op;
    return tshi_apply_as(tape, op, c->loss.weight ? 4 : 3, (tsh_tensor *[]){x, weight, target, c->loss.weight},
                         &(head_params){.ignore_index = c->loss.has_ignore_index ? c->loss.ignore_index : -100,
                                        .chunk = c->chunk,
                                        .smoothing = c->loss.label_smoothing,
                                        .z_loss = c->z_loss,
                                        .reduction = c->loss.reduction,
                                        .memory = c->memory},
                         &want);
}
