#include "autograd/run/offload.h"

/* A storage's values in host memory. The storage has memory again once a copy back has begun. */
typedef struct offloaded {
    tshi_value_source source; /* first, for casts */
    tshi_storage *storage;
    size_t bytes;
    tshi_host_buffer *host;
} offloaded;

static void free_offloaded(tshi_value_source *source) {
    offloaded *o = (offloaded *)source;
    tsh_device *device = o->storage->device;
    const tshi_offload_ops *ops = device->ops->offload;
    if (o->storage->data && ops->join) ops->join(device);
    ops->release(device, o->host);
    tshi_pool_give(&device->offloads, o);
}

static tsh_status begin_return(offloaded *o) {
    tshi_storage *storage = o->storage;
    tsh_device *device = storage->device;
    if (storage->data) return TSH_OK;
    tsh_memory_purpose before = tshi_device_purpose(device, TSH_MEMORY_ACTIVATIONS);
    storage->data = device->ops->memory.alloc(device, o->bytes);
    device->purpose = before;
    if (!storage->data) return TSH_ERR_MEMORY;
    tsh_status status = device->ops->offload->from_host(device, o->bytes, o->host, storage->data);
    if (status == TSH_OK) return TSH_OK;
    device->ops->memory.release(device, storage->data);
    storage->data = NULL;
    return status;
}

static tsh_status bring_back(tshi_value_source *source, uint64_t step, uint64_t call) {
    offloaded *o = (offloaded *)source;
    (void)step;
    (void)call;
    tsh_status status = begin_return(o);
    if (status != TSH_OK) return status;
    o->storage->source = NULL;
    free_offloaded(source);
    return TSH_OK;
}

static offloaded *offloaded_of(const tsh_tensor *x) {
    tshi_value_source *source = x->storage ? x->storage->source : NULL;
    return source && source->materialize == bring_back ? (offloaded *)source : NULL;
}

/* True when a call before the segment has computed the elements. Views of a leaf are not computed. */
static bool is_computed_before(const tsh_tape *tape, const tshi_segment *s, const tsh_tensor *x) {
    int k = tshi_tape_node(tape, x);
    if (k >= s->first) return false;
    while (k >= 0 && tape->nodes[k].flags.shares) k = tshi_tape_node(tape, tape->nodes[k].in[0]);
    return k >= 0 && !tape->nodes[k].flags.used;
}

static tsh_status move_to_host(const tsh_tensor *x) {
    tshi_storage *storage = x->storage;
    tsh_device *device = storage->device;
    offloaded *o = tshi_pool_take(&device->offloads, &device->allocator, sizeof *o);
    if (!o) return TSH_ERR_MEMORY;
    *o = (offloaded){.source = {.materialize = bring_back, .free = free_offloaded},
                     .storage = storage,
                     .bytes = device->ops->memory.find(device, storage->data)->wanted};
    tsh_status status = device->ops->offload->to_host(device, o->bytes, storage->data, &o->host);
    if (status != TSH_OK) {
        tshi_pool_give(&device->offloads, o);
        return status;
    }
    storage->data = NULL;
    storage->source = &o->source;
    return TSH_OK;
}

tsh_status tshi_offload_inputs(const tsh_tape *tape, const tshi_segment *s) {
    tsh_device *device = tape->world->device;
    tsh_status status = TSH_OK;
    if (device->ops->offload->join) device->ops->offload->join(device); /* frees what left before this segment */
    for (int n = s->first; n < s->end; n++) {
        const tsh_call *node = &tape->nodes[n];
        for (int i = 0; i < node->inputs && status == TSH_OK; i++) {
            const tsh_tensor *x = node->in[i];
            bool moves = x->numel > 0 && x->program_refs == 0 && tshi_tensor_is_loaded(x) && !x->storage->source &&
                         !x->storage->whole;
            if (moves && is_computed_before(tape, s, x)) status = move_to_host(x);
        }
    }
    return status;
}

tsh_status tshi_offload_return(const tsh_tape *tape, const tshi_segment *s) {
    tsh_status status = TSH_OK;
    for (int n = s->first; n < s->end; n++) {
        const tsh_call *node = &tape->nodes[n];
        for (int i = 0; i < node->inputs && status == TSH_OK; i++) {
            offloaded *o = offloaded_of(node->in[i]);
            if (o) status = bring_back(&o->source, 0, 0);
        }
    }
    return status;
}

void tshi_offload_prefetch(const tsh_tape *tape, const tshi_segment *s) {
    for (int n = s->first; n < s->end && tape->world->device->ops->offload->join; n++) {
        const tsh_call *node = &tape->nodes[n];
        for (int i = 0; i < node->inputs; i++) {
            offloaded *o = offloaded_of(node->in[i]);
            if (o) begin_return(o);
        }
    }
}
