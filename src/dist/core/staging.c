/* Tensors of a GPU in groups whose backend works on the host, or whose ranks do not reach each other's GPUs: each call
 * gets buffers of world->host in their place. Messages do in any case. */
#include "dist/world.h"

bool tshi_call_is_staged(const tsh_group *group, const tshi_call *call) {
    const tsh_world *world = group->world;
    bool message = call->op == TSH_COLLECTIVE_SEND || call->op == TSH_COLLECTIVE_RECV;
    return group->ops->on_host && !group->owner && world->device != world->host && (message || !world->direct);
}

static int64_t sum(const tsh_group *group, const int64_t *counts) {
    int64_t n = 0;
    for (int i = 0; i < group->size; i++) n += counts[i];
    return n;
}

/* Elements that this rank gives. */
static int64_t elements_in(const tsh_group *group, const tshi_call *call) {
    switch (call->op) {
    case TSH_COLLECTIVE_ALL_GATHER:
    case TSH_COLLECTIVE_GATHER: return call->counts[group->rank];
    case TSH_COLLECTIVE_ALL_TO_ALL: return sum(group, call->in_counts);
    case TSH_COLLECTIVE_BROADCAST: return call->root == group->rank ? call->count : 0;
    default: return call->count;
    }
}

/* Elements that this rank gets. */
static int64_t elements_out(const tsh_group *group, const tshi_call *call) {
    switch (call->op) {
    case TSH_COLLECTIVE_REDUCE_SCATTER:
    case TSH_COLLECTIVE_SCATTER: return call->counts[group->rank];
    case TSH_COLLECTIVE_ALL_TO_ALL: return sum(group, call->out_counts);
    default: return call->count;
    }
}

/* A buffer on the host, or NULL with the call marked failed. */
static void *take(const tsh_group *group, tshi_call *call, size_t bytes) {
    tsh_device *host = group->world->host;
    void *buffer = host->ops->memory.alloc(host, bytes);
    if (!buffer) call->failed = TSH_ERR_MEMORY;
    return buffer;
}

void tshi_stage_open(tsh_group *group, tshi_call *call, tshi_staging *stage) {
    tsh_device *device = group->world->device;
    *stage = (tshi_staging){0};
    call->on_device = false;
    if (call->failed != TSH_OK) return;
    size_t size = tsh_dtype_size(call->dtype), given = call->in ? (size_t)elements_in(group, call) * size : 0;
    /* One buffer for both where the parts begin alike, whichever is longer. */
    bool one = call->in && call->in == call->out;
    if (call->out) {
        stage->to = call->out;
        stage->bytes = (size_t)elements_out(group, call) * size;
        stage->out = take(group, call, one && given > stage->bytes ? given : stage->bytes);
    }
    if (call->in && !one && call->failed == TSH_OK) stage->in = take(group, call, given);
    void *in = one ? stage->out : stage->in;
    if (given && call->failed == TSH_OK) device->ops->copy.to_host(device, given, call->in, in);
    call->in = in;
    call->out = stage->out;
}

void tshi_stage_close(tsh_group *group, tshi_staging *stage, tsh_status status) {
    tsh_device *host = group->world->host, *device = group->world->device;
    if (status == TSH_OK && stage->out && stage->bytes) {
        device->ops->copy.from_host(device, stage->bytes, stage->out, stage->to);
    }
    host->ops->memory.release(host, stage->in);
    host->ops->memory.release(host, stage->out);
    *stage = (tshi_staging){0};
}

tsh_status tshi_staged_run(tsh_group *group, const tshi_call *call) {
    tshi_call staged = *call;
    tshi_staging stage;
    tshi_stage_open(group, &staged, &stage);
    tsh_status status = group->ops->run(group, &staged);
    tshi_stage_close(group, &stage, status);
    return status;
}
