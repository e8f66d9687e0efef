/* Sparse gradients: the rows of a table that a step has used. */
#include "autograd/grad/sparse.h"
#include "autograd/grad/state.h"
#include "tshard/autograd.h"

static int64_t cols_of(const tsh_tensor *x) {
    return x->shape.local[1];
}

/* The target of a sparse gradient. While `active`, the state's `value` [count, cols] is the leaf's gradient: row i of
 * it is the gradient of row[i] of this rank's part. */
typedef struct sparse_gradient {
    tshi_gradient_target target; /* first */
    const tsh_allocator *allocator;
    bool active;
    int64_t count, capacity;
    int64_t *row;   /* [capacity], each row once */
    int32_t *place; /* [rows of this rank's part] 1 + index in `row`; 0: not in it */
    int64_t *ids;   /* [id_capacity] a call's ids, then their places */
    int64_t id_capacity;
} sparse_gradient;

static const tshi_target_ops sparse_ops;

static sparse_gradient *sparse_of(const tsh_tensor *leaf) {
    tshi_gradient_target *target = leaf->gradient && !leaf->computed ? leaf->gradient->target : NULL;
    while (target && target->ops != &sparse_ops) target = target->under;
    return (sparse_gradient *)target;
}

static sparse_gradient *active_of(const tsh_tensor *leaf) {
    sparse_gradient *s = sparse_of(leaf);
    return s && s->active ? s : NULL;
}

bool tshi_gradient_is_sparse(const tsh_tensor *leaf) {
    return active_of(leaf) != NULL;
}

static bool has_rows(const tshi_gradient_target *target) {
    return ((const sparse_gradient *)target)->active;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static void clear_sparse(tshi_gradient_target *target, tshi_gradient *gradient) {
    sparse_gradient *s = (sparse_gradient *)target;
    for (int64_t i = 0; i < s->count; i++) s->place[s->row[i]] = 0;
    s->count = 0;
    if (s->active) tshi_gradient_release_value(gradient);
    s->active = false;
}

static void free_sparse(tshi_gradient_target *target) {
    sparse_gradient *s = (sparse_gradient *)target;
    tshi_free(s->allocator, s->row);
    tshi_free(s->allocator, s->place);
    tshi_free(s->allocator, s->ids);
    tshi_free(s->allocator, s);
}

tsh_status tsh_tensor_set_sparse_grad(tsh_tensor *leaf) {
    if (!leaf || leaf->computed || !tshi_requires_grad(leaf) || leaf->shape.ndim != 2) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "tensor_set_sparse_grad: %s, a leaf of two dims that requires a gradient is wanted",
                         TSHI_TENSOR_TEXT(leaf));
    }
    if (leaf->shape.local[0] >= INT32_MAX) {
        return tshi_fail(TSH_ERR_OVERFLOW,
                         "tensor_set_sparse_grad: a rank has %lld rows; at most 2^31 - 2 are possible",
                         (long long)leaf->shape.local[0]);
    }
    if (sparse_of(leaf)) return TSH_OK;
    const tsh_allocator *allocator = &leaf->mesh->device->allocator;
    sparse_gradient *s = tshi_calloc(allocator, 1, sizeof *s);
    if (!s) return TSH_ERR_MEMORY;
    *s = (sparse_gradient){.target = {.ops = &sparse_ops}, .allocator = allocator};
    s->place = tshi_calloc(allocator, (size_t)leaf->shape.local[0] + 1, sizeof *s->place);
    if (s->place) {
        tshi_gradient_attach(leaf, &s->target);
        return TSH_OK;
    }
    free_sparse(&s->target);
    return TSH_ERR_MEMORY;
}

/* --- adding rows -------------------------------------------------------------------------------------------------- */

/* Grows *array, which has room for *capacity elements, to hold count + n. */
static bool reserve_ids(const tsh_allocator *allocator, int64_t **array, int64_t count, int64_t n, int64_t *capacity) {
    if (count + n <= *capacity) return true;
    int64_t wanted = count + n > 2 * *capacity ? count + n : 2 * *capacity;
    int64_t *grown = tshi_calloc(allocator, (size_t)wanted, sizeof *grown);
    if (!grown) return false;
    for (int64_t i = 0; i < count; i++) grown[i] = (*array)[i];
    tshi_free(allocator, *array);
    *array = grown;
    *capacity = wanted;
    return true;
}

/* Replaces the ids in s->ids by their places in the list of rows, to which new ones are added; -1 for skipped ids. True
 * when each id got a new place, in order. */
static bool place_ids(sparse_gradient *s, int64_t n, int64_t start, int64_t rows, int64_t padding) {
    bool plain = s->count == 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t id = s->ids[i], row = id - start;
        s->ids[i] = -1;
        if (row < 0 || row >= rows || id == padding) continue;
        if (s->place[row] == 0) {
            s->row[s->count++] = row;
            s->place[row] = (int32_t)s->count;
        }
        s->ids[i] = s->place[row] - 1;
        plain = plain && s->ids[i] == i;
    }
    return plain && s->count == n;
}

/* to[places[i], :] += values[i, :]; places are in host memory. */
static tsh_status add_at(const tsh_tensor *values, int64_t n, const int64_t *places, int64_t rows, int64_t cols,
                         const tsh_tensor *to) {
    tsh_device *device = to->mesh->device;
    tsh_tensor *at = NULL;
    tsh_status status = tshi_tensor_scratch(to->mesh, TSH_INT64, n, &at);
    if (status != TSH_OK) return status;
    device->ops->copy.from_host(device, (size_t)n * sizeof *places, places, tshi_data(at));
    device->ops->embedding[to->dtype].backward(device, n, tshi_data(at), 0, rows, cols, -1, tshi_data(values),
                                               tshi_data(to));
    tshi_tensor_release(at);
    return TSH_OK;
}

/* Moves the gradient to new memory: its `before` rows, plus the rows of `values` at the places s->ids. */
static tsh_status add_row_values(const tsh_tensor *leaf, const sparse_gradient *s, int64_t before, int64_t n,
                                 const tsh_tensor *values) {
    tshi_gradient *g = leaf->gradient;
    tsh_device *device = leaf->mesh->device;
    int64_t cols = cols_of(leaf);
    size_t row = (size_t)cols * tsh_dtype_size(values->dtype), old = (size_t)before * row;
    tsh_tensor *sum = NULL;
    tsh_status status = tshi_tensor_scratch(leaf->mesh, values->dtype, s->count * cols, &sum);
    if (status != TSH_OK) return status;
    if (before > 0) device->ops->copy.within(device, old, tshi_data(g->value), tshi_data(sum));
    device->ops->copy.zero(device, (size_t)(s->count - before) * row, (char *)tshi_data(sum) + old);
    status = add_at(values, n, s->ids, s->count, cols, sum);
    if (status != TSH_OK) {
        tshi_tensor_release(sum);
        return status;
    }
    tshi_tensor_release(g->value);
    g->value = sum;
    return TSH_OK;
}

static tsh_status add_rows(tshi_gradient_target *target, const tsh_tensor *leaf, const tsh_tensor *ids, int64_t start,
                           int64_t padding, const tsh_tensor *values, bool sole) {
    sparse_gradient *s = (sparse_gradient *)target;
    tshi_gradient *g = leaf->gradient;
    tsh_device *device = leaf->mesh->device;
    int64_t n = ids->numel;
    if (!s->active || g->stale) clear_sparse(target, g);
    int64_t before = s->count;
    if (!reserve_ids(s->allocator, &s->row, s->count, n, &s->capacity) ||
        !reserve_ids(s->allocator, &s->ids, 0, n, &s->id_capacity))
        return TSH_ERR_MEMORY;
    device->ops->copy.to_host(device, (size_t)n * sizeof *s->ids, tshi_data(ids), s->ids);
    tsh_memory_purpose purpose = tshi_device_purpose(device, TSH_MEMORY_GRADIENTS);
    tsh_status status;
    bool plain = place_ids(s, n, start, leaf->shape.local[0], padding);
    if (plain && sole) {
        const tsh_shape flat = {.ndim = 1, .local = {n * cols_of(leaf)}, .global = {n * cols_of(leaf)}};
        tshi_gradient_release_value(g);
        status = tshi_tensor_view(values, &flat, tshi_all_local, 0, &g->value);
    } else {
        status = add_row_values(leaf, s, before, n, values);
    }
    tshi_device_purpose(device, purpose);
    s->active = status == TSH_OK;
    g->stale = status != TSH_OK;
    return status;
}

static const tshi_target_ops sparse_ops = {
    .add_rows = add_rows, .has_rows = has_rows, .clear = clear_sparse, .free = free_sparse};

/* --- other uses --------------------------------------------------------------------------------------------------- */

tsh_status tshi_sparse_gradient_spread(const tsh_tensor *x) {
    tshi_gradient *g = x->gradient;
    sparse_gradient *s = active_of(x);
    tsh_tensor *dense = NULL;
    if (!s) return TSH_OK;
    bool stale = g->stale;
    tsh_status status = stale ? TSH_OK : tshi_gradient_new(x, &dense);
    if (!stale && status == TSH_OK) {
        x->mesh->device->ops->copy.zero(x->mesh->device, tsh_tensor_local_nbytes(dense), tshi_data(dense));
        status = add_at(g->value, s->count, s->row, x->shape.local[0], cols_of(x), dense);
    }
    if (status != TSH_OK) {
        tshi_tensor_release(dense);
        return status;
    }
    clear_sparse(&s->target, g);
    g->value = dense;
    g->stale = stale;
    return TSH_OK;
}

tsh_tensor *tsh_tensor_sparse_grad(const tsh_tensor *tensor, int64_t *count, const int64_t **rows) {
    const sparse_gradient *s = tensor ? active_of(tensor) : NULL;
    bool there = s && !tensor->gradient->stale;
    if (count) *count = there ? s->count : 0;
    if (rows) *rows = there ? s->row : NULL;
    return there ? tensor->gradient->value : NULL;
}
