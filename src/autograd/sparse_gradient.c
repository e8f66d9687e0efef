/* Sparse gradients: the rows of a table that a step has used. */
#include "autograd/sparse_gradient.h"

static const tsh_layout local[TSH_MAX_AXES] = {TSH_LOCAL_INIT, TSH_LOCAL_INIT, TSH_LOCAL_INIT, TSH_LOCAL_INIT};

static int64_t cols_of(const tsh_tensor *x) {
    return x->shape.local[1];
}

/* --- life --------------------------------------------------------------------------------------------------------- */

void tshi_sparse_gradient_clear(tshi_gradient *gradient) {
    tshi_sparse_gradient *s = gradient->sparse;
    if (!s) return;
    for (int64_t i = 0; i < s->count; i++) s->place[s->row[i]] = 0;
    s->count = 0;
    if (s->active) tshi_gradient_release_value(gradient);
    s->active = false;
}

void tshi_sparse_gradient_free(tsh_tensor *tensor) {
    tshi_sparse_gradient *s = tensor->gradient->sparse;
    const tsh_allocator *allocator = &tensor->mesh->device->allocator;
    if (!s) return;
    tshi_free(allocator, s->row);
    tshi_free(allocator, s->place);
    tshi_free(allocator, s->target);
    tshi_free(allocator, s);
    tensor->gradient->sparse = NULL;
}

tsh_status tsh_tensor_set_sparse_grad(tsh_tensor *leaf) {
    char text[160];
    if (!leaf || leaf->computed || !tshi_requires_grad(leaf) || leaf->shape.ndim != 2) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "tensor_set_sparse_grad: %s, a leaf of two dims that requires a gradient is wanted",
                         tsh_tensor_describe(leaf, text, sizeof text));
    }
    if (leaf->shape.local[0] >= INT32_MAX) {
        return tshi_fail(TSH_ERR_OVERFLOW,
                         "tensor_set_sparse_grad: a rank has %lld rows, 2^31 - 2 at most are possible",
                         (long long)leaf->shape.local[0]);
    }
    if (leaf->gradient->sparse) return TSH_OK;
    const tsh_allocator *allocator = &leaf->mesh->device->allocator;
    tshi_sparse_gradient *s = tshi_calloc(allocator, 1, sizeof *s);
    if (!s) return TSH_ERR_MEMORY;
    leaf->gradient->sparse = s;
    s->place = tshi_calloc(allocator, (size_t)leaf->shape.local[0] + 1, sizeof *s->place);
    if (s->place) return TSH_OK;
    tshi_sparse_gradient_free(leaf);
    return TSH_ERR_MEMORY;
}

/* --- adding rows -------------------------------------------------------------------------------------------------- */

/* Room for n elements more than `count`, of which *array has *capacity. */
static bool reserve(const tsh_allocator *allocator, int64_t **array, int64_t count, int64_t n, int64_t *capacity) {
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

/* The ids in s->target become places in the list of rows, which takes those that it lacks; -1 for what is left out.
 * Returns whether each id got a place of its own, in their order. */
static bool place_ids(tshi_sparse_gradient *s, int64_t n, int64_t start, int64_t rows, int64_t padding) {
    bool plain = s->count == 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t id = s->target[i], row = id - start;
        s->target[i] = -1;
        if (row < 0 || row >= rows || id == padding) continue;
        if (s->place[row] == 0) {
            s->row[s->count++] = row;
            s->place[row] = (int32_t)s->count;
        }
        s->target[i] = s->place[row] - 1;
        plain = plain && s->target[i] == i;
    }
    return plain && s->count == n;
}

/* to[places[i], :] += values[i, :], the places in the host's memory. */
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

/* The rows before, `before` of them, and those of `values` at the places of s->target, in new memory. */
static tsh_status add_values(const tsh_tensor *x, int64_t before, int64_t n, const tsh_tensor *values) {
    tshi_gradient *g = x->gradient;
    tsh_device *device = x->mesh->device;
    int64_t cols = cols_of(x);
    size_t row = (size_t)cols * tsh_dtype_size(values->dtype), old = (size_t)before * row;
    tsh_tensor *sum = NULL;
    tsh_status status = tshi_tensor_scratch(x->mesh, values->dtype, g->sparse->count * cols, &sum);
    if (status != TSH_OK) return status;
    if (before > 0) device->ops->copy.within(device, old, tshi_data(g->value), tshi_data(sum));
    device->ops->copy.zero(device, (size_t)(g->sparse->count - before) * row, (char *)tshi_data(sum) + old);
    status = add_at(values, n, g->sparse->target, g->sparse->count, cols, sum);
    if (status != TSH_OK) {
        tshi_tensor_release(sum);
        return status;
    }
    tshi_tensor_release(g->value);
    g->value = sum;
    return TSH_OK;
}

bool tshi_grad_takes_rows(const tsh_call *call, int i) {
    const tsh_tensor *x = call->in[i];
    const tshi_gradient *g = x->gradient;
    return g->sparse && !x->computed && !g->sink && (g->sparse->active || !g->value || g->stale);
}

tsh_status tshi_grad_add_rows(const tsh_call *call, int i, const tsh_tensor *ids, int64_t start, int64_t padding,
                              tsh_tensor *values) {
    const tsh_tensor *x = call->in[i];
    tshi_gradient *g = x->gradient;
    tshi_sparse_gradient *s = g->sparse;
    tsh_device *device = x->mesh->device;
    int64_t n = ids->numel;
    if (!s->active || g->stale) tshi_sparse_gradient_clear(g);
    int64_t before = s->count;
    if (!reserve(&device->allocator, &s->row, s->count, n, &s->capacity) ||
        !reserve(&device->allocator, &s->target, 0, n, &s->targets))
        return TSH_ERR_MEMORY;
    device->ops->copy.to_host(device, (size_t)n * sizeof *s->target, tshi_data(ids), s->target);
    tsh_memory_purpose purpose = tshi_device_purpose(device, TSH_MEMORY_GRADIENTS);
    tsh_status status;
    bool plain = place_ids(s, n, start, x->shape.local[0], padding);
    if (plain && tshi_tensor_sole_owner(values)) {
        const tsh_shape flat = {.ndim = 1, .local = {n * cols_of(x)}, .global = {n * cols_of(x)}};
        tshi_gradient_release_value(g);
        status = tshi_tensor_view(values, &flat, local, 0, &g->value);
    } else {
        status = add_values(x, before, n, values);
    }
    tshi_device_purpose(device, purpose);
    s->active = status == TSH_OK;
    g->stale = status != TSH_OK;
    return status;
}

/* --- other uses --------------------------------------------------------------------------------------------------- */

tsh_status tshi_sparse_gradient_spread(const tsh_tensor *x) {
    tshi_gradient *g = x->gradient;
    tsh_tensor *dense = NULL;
    if (!tshi_gradient_is_sparse(x)) return TSH_OK;
    bool stale = g->stale;
    tsh_status status = stale ? TSH_OK : tshi_gradient_new(x, &dense);
    if (!stale && status == TSH_OK) {
        x->mesh->device->ops->copy.zero(x->mesh->device, tsh_tensor_local_nbytes(dense), tshi_data(dense));
        status = add_at(g->value, g->sparse->count, g->sparse->row, x->shape.local[0], cols_of(x), dense);
    }
    if (status != TSH_OK) {
        tshi_tensor_release(dense);
        return status;
    }
    tshi_sparse_gradient_clear(g);
    g->value = dense;
    g->stale = stale;
    return TSH_OK;
}

tsh_tensor *tshi_gradient_elements(const tsh_tensor *leaf) {
    if (!tshi_gradient_is_sparse(leaf)) return tsh_tensor_grad(leaf);
    return leaf->gradient->stale ? NULL : leaf->gradient->value;
}

tsh_tensor *tsh_tensor_sparse_grad(const tsh_tensor *tensor, int64_t *count, const int64_t **rows) {
    bool there = tensor && tshi_gradient_is_sparse(tensor) && !tensor->gradient->stale;
    if (count) *count = there ? tensor->gradient->sparse->count : 0;
    if (rows) *rows = there ? tensor->gradient->sparse->row : NULL;
    return there ? tensor->gradient->value : NULL;
}
