/* A call whose inputs have their layouts: it makes its output, runs forward and goes on the tape. */
#include "autograd/run/call.h"
#include "autograd/run/invoke.h"
#include "autograd/run/observe.h"
#include "device/record.h"
#include "device/trace.h"

#include <string.h>

uint64_t tshi_call_versions(const tsh_call *call) {
    uint16_t rest = 0;
    for (int i = 2; i < call->inputs; i++) rest += tshi_tensor_version(call->in[i]);
    uint64_t second = call->inputs > 1 ? tshi_tensor_version(call->in[1]) : 0;
    return tshi_tensor_version(call->in[0]) | second << 16 | (uint64_t)rest << 32 |
           (uint64_t)tshi_tensor_version(call->out) << 48;
}

/* The versions of what is read: by backward, or by forward, which runs again. */
static uint64_t versions_read(const tsh_call *call, bool backward) {
    const uint64_t one = 0xffff;
    uint64_t read = backward && call->op->reads_output ? one << 48 : 0;
    bool numbers = !backward || !call->op->reads_no_input;
    for (int k = 0; k < 3 && k < call->inputs; k++) {
        if (numbers || !tshi_differentiable(call->in[k])) read |= one << 16 * k; /* backward always reads ids */
    }
    return read;
}

tsh_status tshi_call_check_unchanged(const tsh_call *call, bool backward) {
    static const char *const places[] = {"input 0", "input 1", "an input after the first two", "the output"};
    char text[160];
    uint64_t changed = tshi_call_versions(call) ^ call->versions;
    if (changed) changed &= versions_read(call, backward);
    if (!changed) return TSH_OK;
    int k = 0;
    while (!(changed >> 16 * k & 0xffff)) k++;
    const tsh_tensor *t = k < 2 ? call->in[k] : k == 3 ? call->out : NULL;
    return tshi_fail(TSH_ERR_STATE,
                     "%s%s%s%s%s was written to after the call, and backward needs the values from before: write, or "
                     "step, after backward, or to a clone",
                     places[k], t && t->name ? " '" : "", t && t->name ? t->name : "", t && t->name ? "', " : ", ",
                     t ? tsh_tensor_describe(t, text, sizeof text) : "");
}

/* Functions take the output in a wider dtype than it is stored in (tshi_cast_as): its gradient is not rounded on its
 * way to one that is as wide. */
static bool has_wide_gradient(const tsh_call *call) {
    const tsh_tensor *x = call->in[0];
    bool as_stored = call->op->rules && x->dtype == call->out->dtype;
    return as_stored && x->dtype != tshi_gradient_dtype(x) && tshi_gradient_computed_in(x) == tshi_gradient_dtype(x);
}

/* Backward finds the call again; without recording its saved tensors are dropped at once. */
static tsh_status record(tsh_call *call) {
    tsh_tape *tape = call->tape;
    size_t params_size = call->op->params_size;
    if (!tshi_call_records(call)) return TSH_OK;
    call->versions = tshi_call_versions(call);
    tsh_status status = tshi_grow(&tape->world->allocator, (void **)&tape->nodes, &tape->node_capacity,
                                  tape->node_count + 1, sizeof *tape->nodes);
    tsh_tensor **in = status == TSH_OK ? tshi_tape_copy(tape, call->in, (size_t)call->inputs, sizeof *in) : NULL;
    void *params = in && params_size ? tshi_tape_copy(tape, call->params, 1, params_size) : NULL;
    tshi_gradient *gradient = in ? tshi_gradient_of(call->out) : NULL;
    if (!gradient || (params_size && !params)) return TSH_ERR_MEMORY;
    gradient->required = true;
    gradient->wide = has_wide_gradient(call);
    gradient->generation = tape->generation;
    gradient->node = tape->node_count;
    call->out->computed = true;
    tsh_call *node = &tape->nodes[tape->node_count++];
    *node = *call;
    node->in = in;
    node->params = params;
    for (int i = 0; i < node->inputs; i++) tshi_tensor_retain(node->in[i]);
    tshi_tensor_retain(node->out);
    memset(call->saved, 0, sizeof call->saved); /* the node has them now */
    return TSH_OK;
}

static tsh_status make_output(tsh_call *call, const tshi_plan_step *step, const tsh_tensor *share) {
    tsh_status status = share ? tshi_tensor_view(share, &step->shape, step->layout, 0, &call->out)
                              : tshi_tensor_new(step->mesh, step->dtype, &step->shape, step->layout, &call->out);
    if (status == TSH_OK) call->out->form = step->form;
    if (status == TSH_OK) status = tshi_tape_own(call->tape, call->out);
    bool fits = !share || status != TSH_OK || call->out->numel == share->numel;
    return fits ? status : tshi_fail(TSH_ERR_LAYOUT, "this rank's part would change its size");
}

/* The name of a parameter, or of the one that casts and transitions have made the tensor from. */
static const char *parameter_name_of(const tsh_tensor *x) {
    while (!x->name && x->gradient && x->gradient->moved_from) x = x->gradient->moved_from;
    return x->name;
}

tsh_memory_purpose tshi_call_enter(const tsh_call *call, bool backward) {
    tsh_device *device = tshi_device_of(call->in[0]);
    device->place.function = device->place.last = call->op->name;
    device->place.backward = backward;
    if (tshi_is_noted(device)) tshi_observe_enter(call);
    for (int i = 0; i < call->inputs; i++) {
        const char *name = parameter_name_of(call->in[i]);
        if (name) device->place.layer = name;
    }
    return tshi_device_purpose(device, TSH_MEMORY_ACTIVATIONS);
}

void tshi_call_leave(const tsh_call *call, tsh_memory_purpose before) {
    tsh_device *device = call->tape->world->device;
    if (device->trace) tshi_observe_leave(call);
    device->place.function = NULL;
    device->purpose = before;
}

/* The tensor has memory of its own, or backward has freed it. */
static inline bool is_there(const tsh_tensor *t) {
    return !t->storage || (t->storage->data && !t->storage->source);
}

static tsh_status use_input(const tsh_call *call, const tsh_tensor *t) {
    tsh_tape *tape = call->tape;
    if (t->storage->source) return t->storage->source->materialize(t->storage->source, tape->generation, tape->uses);
    return tshi_fail(TSH_ERR_STATE, "a parameter's values are gone with the tsh_data_parallel that has gathered them");
}

tsh_status tshi_call_use(const tsh_call *call, bool backward) {
    tsh_status status = TSH_OK;
    bool inputs = !backward || !call->op->reads_no_input;
    call->tape->uses++;
    for (int i = 0; inputs && i < call->inputs && status == TSH_OK; i++) {
        if (!is_there(call->in[i])) status = use_input(call, call->in[i]);
    }
    for (int i = 0; backward && i < TSH_CALL_SLOTS && status == TSH_OK; i++) {
        if (call->saved[i] && !is_there(call->saved[i])) status = use_input(call, call->saved[i]);
    }
    return status;
}

tsh_status tshi_call_forward(tsh_call *call) {
    bool runs = tshi_call_runs(call) && call->op->forward;
    uint16_t version = call->out->storage->version;
    tsh_status status = runs || !call->flags.shares ? tshi_call_use(call, false) : TSH_OK;
    if (status != TSH_OK || !runs) return status;
    status = tshi_invoke(call, call->op->forward, "forward");
    call->out->storage->version = version; /* its collectives have written what the call makes, perhaps once more */
    return status;
}

tsh_tensor *tshi_call_run(tsh_call *call, const tshi_plan_step *step, const tsh_tensor *share) {
    tsh_memory_purpose before = tshi_call_enter(call, false);
    call->flags.shares = share != NULL;
    tsh_status status = make_output(call, step, share);
    if (status == TSH_OK) status = tshi_call_forward(call);
    tshi_call_leave(call, before);
    if (status == TSH_OK) status = record(call);
    for (int i = 0; i < TSH_CALL_SLOTS; i++) tshi_tensor_release(call->saved[i]);
    return status == TSH_OK ? call->out : tshi_tape_fail_as(call->tape, status, call->op->name);
}
