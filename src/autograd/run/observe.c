#include "autograd/run/observe.h"
#include "autograd/tape.h"
#include "base/hash.h"
#include "device/record.h"
#include "device/trace.h"

#include <string.h>

void tshi_observe_enter(const tsh_call *call) {
    const tsh_device *device = call->tape->world->device;
    if (!device->place.backward) tshi_record_forward(device->record);
    if (device->trace) tshi_trace_function_begin(device->trace, device, call->op->name);
}

static uint64_t add_tensor(uint64_t key, const tsh_tensor *x) {
    if (!x) return tshi_fingerprint_add(key, 0);
    for (int d = 0; d < x->shape.ndim; d++) key = tshi_fingerprint_add(key, (uint64_t)x->shape.global[d]);
    for (int a = 0; a < x->mesh->axes; a++) {
        key = tshi_fingerprint_add(key, (uint64_t)x->layout[a].kind << 32 | (uint32_t)x->layout[a].dim);
    }
    key = tshi_fingerprint_add(key, (uint64_t)(uintptr_t)x->mesh);
    key = tshi_fingerprint_add(key, (uint64_t)(uintptr_t)x->name);
    return tshi_fingerprint_add(key, (uint64_t)x->dtype << 8 | (uint64_t)x->shape.ndim);
}

/* Appends "weight float32 [8,16] data=SHARD(0)" to the text. */
static void say_tensor(char *text, size_t size, const char *before, const tsh_tensor *x) {
    char what[160] = "";
    if (x) tshi_tensor_describe_whole(x, what, sizeof what);
    tshi_append(text, size, "%s%s%s%s", before, x && x->name ? x->name : "", x && x->name ? " " : "", what);
}

/* The number of the text of a call's tensors: "float32 [8,16], up.weight float32 [32,16] -> float32 [8,32]". */
static uint32_t detail_of(tshi_trace_file *trace, const tsh_call *call) {
    uint64_t key = TSHI_FINGERPRINT;
    char text[1024] = "";
    for (int i = 0; i < call->inputs; i++) key = add_tensor(key, call->in[i]);
    key = add_tensor(key, call->out);
    uint32_t known = tshi_trace_known(trace, key);
    if (known) return known;
    for (int i = 0; i < call->inputs; i++) say_tensor(text, sizeof text, i ? ", " : "", call->in[i]);
    say_tensor(text, sizeof text, " -> ", call->out);
    return tshi_trace_define(trace, key, text);
}

void tshi_observe_leave(const tsh_call *call) {
    const tsh_device *device = call->tape->world->device;
    if (device->trace) tshi_trace_function_end(device->trace, device, detail_of(device->trace, call));
}
