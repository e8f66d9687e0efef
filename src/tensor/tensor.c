/* Tensor lifetime: memory, views, references. */
#include "tensor/tensor.h"
#include "base/owner.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

tsh_status tshi_tensor_count(const tsh_mesh *mesh, const tsh_shape *shape, int64_t *numel) {
    *numel = 0;
    return tshi_mesh_has_me(mesh) ? tshi_dims_product(shape->ndim, shape->local, numel) : TSH_OK;
}

/* With TSHARD_CHECK=1 handles are never reused, so that a use after release cannot hit another tensor. */
static inline tsh_tensor *handle_new(tsh_device *device) {
    if (!device->checked) {
        void *used = tshi_pool_take_used(&device->tensors, &device->allocator, sizeof(tsh_tensor));
        return used ? memset(used, 0, offsetof(tsh_tensor, shape)) : NULL;
    }
    const tsh_allocator plain = tshi_allocator_resolve(NULL);
    tsh_tensor *tensor = tshi_calloc(&plain, 1, sizeof *tensor);
    if (!tensor) return NULL;
    tensor->next = device->tensors.free;
    device->tensors.free = tensor;
    return tensor;
}

static inline tsh_tensor *tensor_shell(const tsh_mesh *mesh, tsh_dtype dtype, const tsh_shape *shape, int64_t numel,
                                       const tsh_layout layout[TSH_MAX_AXES]) {
    tsh_device *device = mesh->device;
    tsh_tensor *tensor = handle_new(device);
    if (!tensor) return NULL;
    tensor->references = 1;
    tensor->device = device;
    tensor->dtype = dtype;
    tensor->shape = *shape;
    tensor->numel = numel;
    tensor->mesh = mesh;
    bool cut = false;
    for (int a = 0; a < mesh->axes; a++) {
        tensor->layout[a] = layout[a];
        cut = cut || layout[a].cuts;
    }
    if (cut) tshi_tensor_retain_cuts(tensor);
    tensor->older = device->newest;
    if (device->newest) device->newest->newer = tensor;
    device->newest = tensor;
    return tensor;
}

/* Takes the tensor off the list of live tensors. */
static void unlink_tensor(tsh_tensor *tensor) {
    if (tensor->newer)
        tensor->newer->older = tensor->older;
    else
        tensor->device->newest = tensor->older;
    if (tensor->older) tensor->older->newer = tensor->newer;
    tensor->newer = tensor->older = NULL;
}

/* A storage without memory. */
static tshi_storage *storage_new(tsh_device *device) {
    tshi_storage *storage = tshi_pool_take(&device->storages, &device->allocator, sizeof *storage);
    if (!storage) return NULL;
    storage->device = device;
    storage->references = 1;
    return storage;
}

static inline tshi_storage *storage_create(tsh_device *device, size_t bytes) {
    tshi_storage *storage = storage_new(device);
    if (!storage) return NULL;
    storage->data = device->ops->memory.alloc(device, bytes);
    if (storage->data) return storage;
    tshi_pool_give(&device->storages, storage);
    return NULL;
}

static void storage_release(tshi_storage *storage) {
    if (!storage || --storage->references > 0) return;
    tsh_device *device = storage->device;
    if (storage->source && storage->source->free) storage->source->free(storage->source);
    if (storage->whole)
        storage_release(storage->whole);
    else
        device->ops->memory.release(device, storage->data);
    tshi_pool_give(&device->storages, storage);
}

static inline tsh_status tensor_new_counted(const tsh_mesh *mesh, tsh_dtype dtype, const tsh_shape *shape,
                                            int64_t numel, const tsh_layout layout[TSH_MAX_AXES], bool loaded,
                                            tsh_tensor **out) {
    size_t bytes;
    *out = NULL;
    tsh_status status = tshi_size_mul((size_t)numel, tsh_dtype_size(dtype), &bytes);
    if (status != TSH_OK) return status;
    tsh_tensor *tensor = tensor_shell(mesh, dtype, shape, numel, layout);
    if (!tensor) return TSH_ERR_MEMORY;
    tensor->storage = loaded ? storage_create(mesh->device, bytes) : storage_new(mesh->device);
    if (!tensor->storage) {
        tshi_tensor_release(tensor);
        return TSH_ERR_MEMORY;
    }
    *out = tensor;
    return TSH_OK;
}

tsh_status tshi_tensor_new_counted(const tsh_mesh *mesh, tsh_dtype dtype, const tsh_shape *shape, int64_t numel,
                                   const tsh_layout layout[TSH_MAX_AXES], tsh_tensor **out) {
    return tensor_new_counted(mesh, dtype, shape, numel, layout, true, out);
}

static tsh_status tensor_new(const tsh_mesh *mesh, tsh_dtype dtype, const tsh_shape *shape,
                             const tsh_layout layout[TSH_MAX_AXES], bool loaded, tsh_tensor **out) {
    int64_t numel;
    *out = NULL;
    tsh_status status = tshi_tensor_count(mesh, shape, &numel);
    return status == TSH_OK ? tensor_new_counted(mesh, dtype, shape, numel, layout, loaded, out) : status;
}

tsh_status tshi_tensor_new(const tsh_mesh *mesh, tsh_dtype dtype, const tsh_shape *shape,
                           const tsh_layout layout[TSH_MAX_AXES], tsh_tensor **out) {
    return tensor_new(mesh, dtype, shape, layout, true, out);
}

tsh_status tshi_tensor_new_unloaded(const tsh_mesh *mesh, tsh_dtype dtype, const tsh_shape *shape,
                                    const tsh_layout layout[TSH_MAX_AXES], tsh_tensor **out) {
    return tensor_new(mesh, dtype, shape, layout, false, out);
}

static tsh_status scratch_new(const tsh_mesh *mesh, tsh_dtype dtype, int64_t n, bool loaded, tsh_tensor **out) {
    tsh_shape shape = {.ndim = 1, .local = {n}, .global = {n}};
    return tensor_new(mesh, dtype, &shape, tshi_all_local, loaded, out);
}

tsh_status tshi_tensor_scratch(const tsh_mesh *mesh, tsh_dtype dtype, int64_t n, tsh_tensor **out) {
    return scratch_new(mesh, dtype, n, true, out);
}

tsh_status tshi_tensor_scratch_unloaded(const tsh_mesh *mesh, tsh_dtype dtype, int64_t n, tsh_tensor **out) {
    return scratch_new(mesh, dtype, n, false, out);
}

tsh_status tshi_tensor_buffer(const tsh_mesh *mesh, tsh_dtype dtype, int64_t n, tsh_tensor **out) {
    tsh_memory_purpose before = tshi_device_purpose(mesh->device, TSH_MEMORY_COMMUNICATION);
    tsh_status status = scratch_new(mesh, dtype, n, true, out);
    mesh->device->purpose = before;
    return status;
}

tsh_status tshi_tensor_view(const tsh_tensor *x, const tsh_shape *shape, const tsh_layout layout[TSH_MAX_AXES],
                            size_t offset, tsh_tensor **out) {
    int64_t numel;
    *out = NULL;
    tsh_status status = tshi_tensor_count(x->mesh, shape, &numel);
    if (status != TSH_OK) return status;
    *out = tensor_shell(x->mesh, x->dtype, shape, numel, layout);
    if (!*out) return TSH_ERR_MEMORY;
    (*out)->storage = x->storage;
    (*out)->offset = x->offset + offset;
    x->storage->references++;
    return TSH_OK;
}

tsh_status tshi_tensor_part(const tsh_tensor *x, const tsh_shape *shape, const tsh_layout layout[TSH_MAX_AXES],
                            size_t offset, tsh_tensor **out) {
    tshi_storage *part = storage_new(x->mesh->device);
    tsh_status status = part ? tshi_tensor_view(x, shape, layout, offset, out) : TSH_ERR_MEMORY;
    if (status != TSH_OK) {
        tshi_pool_give(&x->mesh->device->storages, part);
        return status;
    }
    part->data = x->storage->data;
    part->whole = x->storage; /* takes the view's reference */
    (*out)->storage = part;
    return TSH_OK;
}

void tshi_tensor_drop_storage(tsh_tensor *tensor) {
    storage_release(tensor->storage);
    tensor->storage = NULL;
}

tsh_status tshi_tensor_renew_storage(tsh_tensor *tensor, const tsh_tensor *share) {
    if (share) share->storage->references++;
    tensor->offset = share ? share->offset : 0;
    tensor->storage = share ? share->storage : storage_create(tensor->mesh->device, tsh_tensor_local_nbytes(tensor));
    return tensor->storage ? TSH_OK : TSH_ERR_MEMORY;
}

void tshi_tensor_become(tsh_tensor *tensor, const tsh_tensor *view) {
    view->storage->references++;
    storage_release(tensor->storage);
    tensor->storage = view->storage;
    tensor->offset = view->offset;
    tensor->shape = view->shape;
    tensor->numel = view->numel;
    tensor->form = 0;
    tshi_tensor_release_cuts(tensor);
    memcpy(tensor->layout, view->layout, sizeof tensor->layout);
    tshi_tensor_retain_cuts(tensor);
}

void tshi_tensor_unload(const tsh_tensor *tensor) {
    tshi_storage *storage = tensor->storage;
    storage->device->ops->memory.release(storage->device, storage->data);
    storage->data = NULL;
}

tsh_status tshi_tensor_load(const tsh_tensor *tensor, size_t bytes, tsh_memory_purpose purpose) {
    tshi_storage *storage = tensor->storage;
    tsh_memory_purpose before = tshi_device_purpose(storage->device, purpose);
    storage->data = storage->device->ops->memory.alloc(storage->device, bytes);
    storage->device->purpose = before;
    return storage->data ? TSH_OK : TSH_ERR_MEMORY;
}

bool tshi_tensor_sole_owner(const tsh_tensor *tensor) {
    return tensor->references == 1 && tensor->storage && tensor->storage->references == 1;
}

/* --- references --------------------------------------------------------------------------------------------------- */

/* Returns why a tensor has no memory. */
static const char *fate_of(const tsh_tensor *tensor) {
    if (!tensor->device || tensor->device->ended) return "its world has been destroyed";
    return tensor->ended ? "its step has ended, and the tape has released it (tsh_tensor_retain keeps a tensor)"
                         : "it has been released";
}

tsh_status tshi_tensor_check(const tsh_tensor *tensor, const char *what, const char *which) {
    if (!tensor) return tshi_fail(TSH_ERR_ARGUMENT, "%s: %s is NULL", what, which);
    bool ended = tensor->device && tensor->device->ended;
    if (tensor->storage && !ended) return TSH_OK;
    if (tshi_tensor_is_free(tensor) || ended)
        return tshi_fail(TSH_ERR_STATE, "%s: %s cannot be used: %s", what, which, fate_of(tensor));
    return tshi_fail(TSH_ERR_STATE,
                     "%s: the memory of %s was freed by backward, or by a segment that runs again (tsh_tensor_retain "
                     "keeps it)",
                     what, which);
}

/* Logs a misuse by the program in a function that returns no status. */
static void log_misuse(const tsh_tensor *tensor, const char *what, const char *done) {
    const char *name = tshi_tensor_is_free(tensor) || !tensor->name ? NULL : tensor->name;
    tshi_fail(TSH_ERR_STATE, "%s: %s%s%s%s cannot be %s: %s", what, name ? "'" : "", name ? name : "",
              name ? "', " : "", TSHI_TENSOR_TEXT(tensor), done,
              tshi_tensor_is_free(tensor)
                  ? fate_of(tensor)
                  : "it belongs to a tape, a layer, a leaf or an optimizer, and the program has no reference to it (a "
                    "program releases only what it creates, clones or retains)");
    tshi_log(tensor->device ? tensor->device->log : NULL, TSH_LOG_ERROR, "%s", tsh_error_message());
}

tsh_tensor *tsh_tensor_retain(tsh_tensor *tensor) {
    if (!tensor) return NULL;
    if (tshi_tensor_is_free(tensor)) {
        log_misuse(tensor, "tensor_retain", "retained");
        return NULL;
    }
    tensor->program_refs++;
    return tshi_tensor_retain(tensor);
}

/* Puts a free handle on a mesh without ranks, so that queries of it are safe. */
static void empty_handle(tsh_tensor *tensor) {
    static const tsh_mesh nowhere = {.member = -1};
    tensor->mesh = &nowhere;
    tensor->gradient = NULL;
    tensor->storage = NULL;
    tensor->computed = tensor->taped = false;
    tensor->program_refs = 0;
}

void tshi_tensor_free(tsh_tensor *tensor) {
    if (tensor->references < 0) {
        tensor->references = 0; /* the program has released it once too often: ignored */
        return;
    }
    tsh_device *device = tensor->device;
    unlink_tensor(tensor);
    if (tensor->gradient) tensor->gradient_free(tensor);
    if (tensor->cut_axes) tshi_tensor_release_cuts(tensor);
    storage_release(tensor->storage);
    empty_handle(tensor);
    if (!device->checked) tshi_pool_give(&device->tensors, tensor);
}

void tsh_tensor_release(tsh_tensor *tensor) {
    if (!tensor) return;
    if (tensor->program_refs <= 0) {
        log_misuse(tensor, "tensor_release", "released");
        return;
    }
    tensor->program_refs--;
    tshi_tensor_release(tensor);
}

/* Handles of destroyed worlds, kept to the end of the process, where a leak checker finds them. */
static _Atomic(tsh_tensor *) former;

char *tshi_tensors_alive(const tsh_device *device, char *text, size_t size) {
    enum { MOST = 3 };
    int count = 0, listed = 0;
    char list[TSHI_LINE * 2] = "";
    text[0] = '\0';
    for (const tsh_tensor *t = device->newest; t; t = t->older) {
        count++;
        if (!t->name || listed++ >= MOST) continue;
        tshi_append(list, sizeof list, "%s'%s'", list[0] ? ", " : "", t->name);
    }
    for (const tsh_tensor *t = device->newest; t && listed < MOST; t = t->older) {
        if (t->name || t->program_refs == 0) continue;
        tshi_append(list, sizeof list, "%s%s", listed++ ? ", " : "", TSHI_TENSOR_TEXT(t));
    }
    if (count)
        snprintf(text, size, "%d tensor%s (%s%s)", count, count > 1 ? "s" : "", list, count > MOST ? ", ..." : "");
    return text;
}

void tshi_tensors_end(tsh_device *device) {
    device->ended = true;
    for (tsh_tensor *t = device->newest; t; t = t->older) {
        if (t->storage) t->storage->data = NULL;
    }
    tsh_tensor *t = device->checked ? device->tensors.free : NULL;
    device->tensors.free = device->checked ? NULL : device->tensors.free;
    while (t) {
        tsh_tensor *next = t->next;
        if (tshi_tensor_is_free(t)) t->device = NULL;
        tsh_tensor *head = atomic_load(&former);
        do t->next = head;
        while (!atomic_compare_exchange_weak(&former, &head, t));
        t = next;
    }
}

static tsh_status check_tensor_config(const tsh_mesh *mesh, const tsh_tensor_config *config) {
    if (!mesh || !config) return tshi_fail(TSH_ERR_ARGUMENT, "tensor_create: mesh and config are required");
    if (mesh->device && mesh->device->ended)
        return tshi_fail(TSH_ERR_STATE, "tensor_create: the mesh's world has been destroyed");
    if (tsh_dtype_size(config->dtype) == 0) {
        return tshi_fail(TSH_ERR_DTYPE, "tensor_create: unknown dtype %d", (int)config->dtype);
    }
    if (config->ndim < 0 || config->ndim > TSH_MAX_DIMS) {
        return tshi_fail(TSH_ERR_SHAPE, "tensor_create: %d dims, 0 to %d are possible", config->ndim, TSH_MAX_DIMS);
    }
    if (config->ndim == 0 && config->shape[0] != 0) {
        return tshi_fail(TSH_ERR_SHAPE,
                         "tensor_create: ndim is 0, which means a scalar, but shape[0] is %lld: set ndim",
                         (long long)config->shape[0]);
    }
    int64_t numel;
    tsh_status status = tshi_owner_check(mesh->device->owner, "tensor_create");
    return status == TSH_OK ? tshi_dims_product(config->ndim, config->shape, &numel) : status;
}

tsh_status tshi_tensor_resolve(const tsh_mesh *mesh, const tsh_tensor_config *config, tsh_shape *shape,
                               tsh_layout layout[TSH_MAX_AXES]) {
    tsh_status status = check_tensor_config(mesh, config);
    if (status != TSH_OK) return status;
    *shape = (tsh_shape){.ndim = config->ndim};
    memcpy(shape->global, config->shape, sizeof(int64_t) * (size_t)config->ndim);
    memcpy(layout, config->layout, sizeof config->layout);
    return tshi_shape_resolve(mesh, shape, layout);
}

tsh_status tshi_tensor_create(const tsh_mesh *mesh, const tsh_tensor_config *config, tsh_tensor **out) {
    tsh_layout layout[TSH_MAX_AXES];
    tsh_shape shape;
    *out = NULL;
    tsh_status status = tshi_tensor_resolve(mesh, config, &shape, layout);
    if (status == TSH_OK) status = tshi_tensor_new(mesh, config->dtype, &shape, layout, out);
    if (status == TSH_OK) mesh->device->ops->copy.zero(mesh->device, tsh_tensor_local_nbytes(*out), tshi_data(*out));
    return status;
}
