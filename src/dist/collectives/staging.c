/* Tensors of a GPU in groups whose backend works on the host, or whose ranks do not reach each other's GPUs: each call
 * gets buffers of world->host in their place. Messages always do. */
#include "dist/collectives/collectives.h"

bool tshi_call_is_staged(const tsh_group *group, const tshi_comm_call *call) {
    return call->on_device && group->ops->stages && group->ops->stages(group, call);
}

/* A buffer on the host, or NULL with the call marked failed. */
static void *take(const tsh_group *group, tshi_comm_call *call, size_t bytes) {
    tsh_device *host = group->world->host;
    void *buffer = host->ops->memory.alloc(host, bytes);
    if (!buffer) call->failed = TSH_ERR_MEMORY;
    return buffer;
}

void tshi_stage_open(tsh_group *group, tshi_comm_call *call, tshi_staging *stage) {
    tsh_device *device = group->world->device;
    *stage = (tshi_staging){0};
    call->on_device = false;
    if (call->failed != TSH_OK) return;
    size_t size = tsh_dtype_size(call->dtype), in_bytes = call->in ? (size_t)tshi_elements_in(group, call) * size : 0;
    /* One buffer for both where they begin at one address, whichever is longer. */
    bool one = call->in && call->in == call->out;
    if (call->out) {
        stage->to = call->out;
        stage->bytes = (size_t)tshi_elements_out(group, call) * size;
        stage->out = take(group, call, one && in_bytes > stage->bytes ? in_bytes : stage->bytes);
    }
    if (call->in && !one && call->failed == TSH_OK) stage->in = take(group, call, in_bytes);
    void *in = one ? stage->out : stage->in;
    if (in_bytes && call->failed == TSH_OK) device->ops->copy.to_host(device, in_bytes, call->in, in);
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

tsh_status tshi_staged_run(tsh_group *group, const tshi_comm_call *call) {
    tshi_comm_call staged = *call;
    tshi_staging stage;
    tshi_stage_open(group, &staged, &stage);
    tsh_status status = group->ops->run(group, &staged);
    tshi_stage_close(group, &stage, status);
    return status;
}
