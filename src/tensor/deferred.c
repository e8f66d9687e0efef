/* Deferred tensors get memory at their first use. Their initial values depend on the global index only, so that
 * sharding may replace a deferred tensor by a slice of it before it has memory. */
#include "base/hash.h"
#include "tensor/tensor.h"

#include <string.h>

typedef struct deferred {
    tshi_value_source source; /* first, for casts */
    tsh_tensor tensor;        /* a copy of the deferred tensor, without references of its own */
    tshi_initial initial;
} deferred;

static void free_deferred(tshi_value_source *source) {
    deferred *d = (deferred *)source;
    tshi_free(&d->tensor.mesh->device->allocator, d);
}

static tsh_status materialize_deferred(tshi_value_source *source, uint64_t step, uint64_t call) {
    deferred *d = (deferred *)source;
    tshi_storage *storage = d->tensor.storage;
    (void)step;
    (void)call;
    tsh_status status = tshi_tensor_load(&d->tensor, tsh_tensor_local_nbytes(&d->tensor), TSH_MEMORY_PARAMETERS);
    if (status != TSH_OK) return status;
    uint16_t version = storage->version; /* initial values are no change of the tensor */
    tshi_tensor_start(&d->tensor, &d->initial);
    storage->version = version;
    storage->source = NULL;
    free_deferred(source);
    return TSH_OK;
}

tsh_status tshi_tensor_defer(const tsh_mesh *mesh, const tsh_tensor_config *config, tsh_tensor **out) {
    tsh_layout layout[TSH_MAX_AXES];
    tsh_shape shape;
    *out = NULL;
    tsh_status status = tshi_tensor_resolve(mesh, config, &shape, layout);
    deferred *d = status == TSH_OK ? tshi_calloc(&mesh->device->allocator, 1, sizeof *d) : NULL;
    if (!d) return status == TSH_OK ? TSH_ERR_MEMORY : status;
    status = tshi_tensor_new_unloaded(mesh, config->dtype, &shape, layout, out);
    if (status != TSH_OK) {
        tshi_free(&mesh->device->allocator, d);
        return status;
    }
    d->source = (tshi_value_source){.materialize = materialize_deferred, .free = free_deferred};
    d->tensor = **out;
    (*out)->storage->source = &d->source;
    return TSH_OK;
}

static deferred *deferred_of(const tsh_tensor *tensor) {
    tshi_value_source *source = tensor->storage ? tensor->storage->source : NULL;
    return source && source->materialize == materialize_deferred ? (deferred *)source : NULL;
}

tshi_initial *tshi_tensor_initial(const tsh_tensor *tensor) {
    deferred *d = deferred_of(tensor);
    if (!d || tensor->offset || tensor->dtype != d->tensor.dtype ||
        memcmp(&tensor->shape, &d->tensor.shape, sizeof tensor->shape) ||
        !tshi_layouts_equal(tensor->mesh->axes, tensor->layout, d->tensor.layout))
        return NULL;
    return &d->initial;
}

static uint64_t add_double(uint64_t fingerprint, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return tshi_fingerprint_add(fingerprint, bits);
}

uint64_t tshi_tensor_initial_fingerprint(const tsh_tensor *tensor, uint64_t fingerprint) {
    const tshi_initial *initial = tshi_tensor_initial(tensor);
    if (!initial) return tshi_fingerprint_add(fingerprint, 0);
    fingerprint = tshi_fingerprint_add(fingerprint, 1 + (uint64_t)initial->kind);
    fingerprint = add_double(add_double(fingerprint, initial->a), initial->b);
    fingerprint = tshi_fingerprint_add(tshi_fingerprint_add(fingerprint, initial->seed), initial->stream);
    return tshi_fingerprint_add(fingerprint, initial->has_zero_row ? 1 + (uint64_t)initial->zero_row : 0);
}

tsh_status tshi_tensor_materialize(const tsh_tensor *tensor) {
    if (tensor->device && tensor->device->ended)
        return tshi_fail(TSH_ERR_STATE, "the tensor cannot be used: its world has been destroyed");
    const tshi_storage *storage = tensor->storage;
    tshi_value_source *source = storage ? storage->source : NULL;
    if (source && source->free) return source->materialize(source, 0, 0);
    bool stale = source && source->stale && source->stale(source);
    if (!storage || (storage->data && !stale)) return TSH_OK;
    return tshi_fail(TSH_ERR_STATE,
                     "the tensor is a view of a sharded parameter, whose values are in memory only during a tape's "
                     "calls: tsh_full copies them");
}

tsh_status tshi_tensor_materialize_to_write(const tsh_tensor *tensor) {
    if (!tshi_tensor_is_transient(tensor)) return tshi_tensor_materialize(tensor);
    return tshi_fail(TSH_ERR_STATE, "the tensor is a view of values that were gathered from slices: the parameter "
                                    "itself, this rank's slice, can be written to");
}
