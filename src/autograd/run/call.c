/* Running a call whose inputs have their final layouts: the output, forward, the record on the tape. */
#include "autograd/run/call.h"
#include "autograd/run/finite.h"
#include "autograd/run/invoke.h"
#include "autograd/run/observe.h"
#include "device/record.h"
#include "device/trace.h"

#include <string.h>

/* The versions of the first input, the second input, all further inputs together and the output, 16 bits each. */
static inline uint64_t call_versions(const tsh_call *call) {
    uint16_t rest = 0;
    for (int i = 2; i < call->inputs; i++) rest += tshi_tensor_version(call->in[i]);
    uint64_t second = call->inputs > 1 ? tshi_tensor_version(call->in[1]) : 0;
    return tshi_tensor_version(call->in[0]) | second << 16 | (uint64_t)rest << 32 |
           (uint64_t)tshi_tensor_version(call->out) << 48;
}

/* The versions of the tensors that backward, or a recomputed forward, reads. */
static uint64_t versions_read(const tsh_call *call, bool backward) {
    const uint64_t one = 0xffff;
    uint64_t read = backward && call->op->reads_output ? one << 48 : 0;
    bool numbers = !backward || !call->op->reads_no_input;
    for (int k = 0; k < 3 && k < call->inputs; k++) {
        if (numbers || !tshi_differentiable(call->in[k])) read |= one << 16 * k; /* backward always reads ids */
    }
    return read;
}

/* TSH_ERR_STATE if a tensor that backward, or a recomputed forward, reads has been written since the call was
 * recorded. */
static tsh_status check_unchanged(const tsh_call *call, bool backward) {
    static const char *const places[] = {"input 0", "input 1", "an input after the first two", "the output"};
    uint64_t changed = call_versions(call) ^ call->versions;
    if (changed) changed &= versions_read(call, backward);
    if (!changed) return TSH_OK;
    int k = 0;
    while (!(changed >> 16 * k & 0xffff)) k++;
    const tsh_tensor *t = k < 2 ? call->in[k] : k == 3 ? call->out : NULL;
    return tshi_fail(TSH_ERR_STATE,
                     "%s%s%s%s%s was written to after the call, and backward needs the values from before: write, or "
                     "step, after backward, or to a clone",
                     places[k], t && t->name ? " '" : "", t && t->name ? t->name : "", t && t->name ? "', " : ", ",
                     t ? TSHI_TENSOR_TEXT(t) : "");
}

/* True when functions take the output in a wider dtype than its own (tshi_cast_as): its gradient is then as wide, and
 * not rounded. */
static bool has_wide_gradient(const tsh_call *call) {
    const tsh_tensor *x = call->in[0];
    bool as_stored = call->op->rules && x->dtype == call->out->dtype;
    return as_stored && x->dtype != tshi_gradient_dtype(x) && tshi_gradient_computed_in(x) == tshi_gradient_dtype(x);
}

/* Gives the node memory in the step's arena for its inputs, and a copy of its params. */
static bool keep_arguments(tsh_tape *tape, const tsh_call *call, tsh_call *node) {
    size_t inputs = (size_t)call->inputs * sizeof *call->in, params = (call->op->params_size + 15) & ~(size_t)15;
    char *copy = tshi_region_take(&tape->memory, &tape->world->allocator, params + inputs, 1);
    if (!copy) return false;
    node->params = params ? copy : NULL;
    node->in = (tsh_tensor **)(void *)(copy + params);
    if (params) memcpy(node->params, call->params, call->op->params_size);
    return true;
}

/* Puts the call on the tape if it may need a gradient; the node then owns the saved tensors. */
static inline tsh_status record_call(tsh_call *call) {
    tsh_tape *tape = call->tape;
    if (!tshi_call_records(call)) return TSH_OK;
    tsh_status status = tshi_grow(&tape->world->allocator, (void **)&tape->nodes, &tape->node_capacity,
                                  tape->node_count + 1, sizeof *tape->nodes);
    tshi_gradient *gradient = status == TSH_OK ? tshi_gradient_of(call->out) : NULL;
    if (!gradient) return TSH_ERR_MEMORY;
    tsh_call *node = &tape->nodes[tape->node_count];
    *node = *call;
    if (!keep_arguments(tape, call, node)) return TSH_ERR_MEMORY;
    node->versions = call_versions(call);
    gradient->required = true;
    gradient->wide = has_wide_gradient(call);
    gradient->generation = tape->generation;
    gradient->node = tape->node_count++;
    call->out->computed = true;
    for (int i = 0; i < node->inputs; i++) node->in[i] = tshi_tensor_retain(call->in[i]);
    tshi_tensor_retain(node->out);
    memset(call->saved, 0, sizeof call->saved);
    return TSH_OK;
}

static tsh_status make_output(tsh_call *call, const tshi_plan_step *step, const tsh_tensor *share) {
    tsh_status status = TSH_OK;
    if (share)
        status = tshi_tensor_view(share, &step->shape, step->layout, 0, &call->out);
    else if (step->form)
        status = tshi_tensor_new_counted(step->mesh, step->dtype, &step->shape, step->numel, step->layout, &call->out);
    else
        status = tshi_tensor_new(step->mesh, step->dtype, &step->shape, step->layout, &call->out);
    if (status == TSH_OK) call->out->form = step->form;
    if (status == TSH_OK) status = tshi_tape_own(call->tape, call->out);
    bool fits = !share || status != TSH_OK || call->out->numel == share->numel;
    return fits ? status : tshi_fail(TSH_ERR_LAYOUT, "this rank's part would change its size");
}

/* Returns the name of the parameter x, or of the parameter from which x was cast or moved. */
static inline const char *parameter_name_of(const tsh_tensor *x) {
    const tsh_tensor *from;
    while (!x->name && (from = tshi_gradient_origin(x))) x = from;
    return x->name;
}

/* Counts memory as activations, and notes the program's place in the device, until leave_call gets the returned
 * purpose. */
static inline tsh_memory_purpose enter_call(const tsh_call *call) {
    tsh_device *device = tshi_device_of(call->in[0]);
    device->place.function = device->place.last = call->op->name;
    if (tshi_is_observed(device)) tshi_observe_enter(call);
    for (int i = 0; i < call->inputs; i++) {
        const char *name = parameter_name_of(call->in[i]);
        if (name) device->place.layer = name;
    }
    return tshi_device_purpose(device, TSH_MEMORY_ACTIVATIONS);
}

static void leave_call(const tsh_call *call, tsh_memory_purpose before) {
    tsh_device *device = call->tape->world->device;
    if (device->trace) tshi_observe_leave(call);
    device->place.function = NULL;
    device->purpose = before;
}

/* True when the tensor has memory, or backward has freed it. */
static inline bool is_there(const tsh_tensor *t) {
    return !t->storage || (t->storage->data && !t->storage->source);
}

static tsh_status materialize_tensor(const tsh_call *call, const tsh_tensor *t) {
    tsh_tape *tape = call->tape;
    if (t->storage->source) return t->storage->source->materialize(t->storage->source, tape->generation, tape->uses);
    return tshi_fail(TSH_ERR_STATE, "a parameter's values are gone with the tsh_data_parallel that has gathered them");
}

/* Materializes the tensors that the call's forward, or backward, reads. */
static inline tsh_status materialize_read(const tsh_call *call, bool backward) {
    tsh_status status = TSH_OK;
    bool inputs = !backward || !call->op->reads_no_input;
    call->tape->uses++;
    for (int i = 0; inputs && i < call->inputs && status == TSH_OK; i++) {
        if (!is_there(call->in[i])) status = materialize_tensor(call, call->in[i]);
    }
    for (int i = 0; backward && tshi_call_saves(call) && i < TSH_CALL_SLOTS && status == TSH_OK; i++) {
        if (call->saved[i] && !is_there(call->saved[i])) status = materialize_tensor(call, call->saved[i]);
    }
    if (backward && call->op->reads_output && status == TSH_OK && !is_there(call->out))
        status = materialize_tensor(call, call->out);
    return status;
}

/* --- the two ways to run ------------------------------------------------------------------------------------------ */

static inline tsh_status run_forward(tsh_call *call) {
    bool runs = tshi_call_runs(call) && call->op->forward;
    uint16_t version = call->out->storage->version;
    tsh_status status = runs || !call->flags.shares ? materialize_read(call, false) : TSH_OK;
    if (status != TSH_OK || !runs) return status;
    status = tshi_invoke(call, call->op->forward, "forward");
    call->out->storage->version =
        version; /* collectives in forward count writes of the result, which is not a change */
    return status == TSH_OK && call->tape->world->checks_nan ? tshi_call_check_result(call) : status;
}

tsh_tensor *tshi_call_run(tsh_call *call, const tshi_plan_step *step, const tsh_tensor *share) {
    tsh_memory_purpose before = enter_call(call);
    call->flags.shares = share != NULL;
    tsh_status status = make_output(call, step, share);
    if (status == TSH_OK) status = run_forward(call);
    leave_call(call, before);
    if (status == TSH_OK) status = record_call(call);
    for (int i = 0; i < TSH_CALL_SLOTS; i++) tshi_tensor_release(call->saved[i]);
    return tshi_tape_check(call->tape, status, call->op->name) == TSH_OK ? call->out : NULL;
}

tsh_status tshi_call_run_again(tsh_call *node) {
    tsh_memory_purpose before = enter_call(node);
    tsh_status status = TSH_OK;
    if (!node->out->storage) status = tshi_tensor_renew_storage(node->out, node->flags.shares ? node->in[0] : NULL);
    if (status == TSH_OK) status = check_unchanged(node, false);
    if (status == TSH_OK && !is_there(node->out)) status = materialize_tensor(node, node->out);
    if (status == TSH_OK) status = run_forward(node);
    leave_call(node, before);
    if (status != TSH_OK) tshi_tape_fail(node->tape, status, "%s, run again: %s", node->op->name, tsh_error_message());
    return status;
}

/* True when some input after the first wants a gradient. */
static bool has_rest(const tsh_call *node) {
    for (int i = 1; i < node->inputs && node->op->backward_rest; i++) {
        if (tshi_requires_grad(node->in[i])) return true;
    }
    return false;
}

/* Backward on a rank outside the mesh: gradients are empty, but exist for earlier calls. */
static tsh_status backward_elsewhere(const tsh_call *node) {
    for (int i = 0; i < node->inputs; i++) {
        if (tshi_requires_grad(node->in[i]) && !tsh_call_grad(node, i)) return TSH_ERR_MEMORY;
    }
    return TSH_OK;
}

static tsh_status run_backward(tsh_call *node, tsh_status (*between)(tsh_call *node)) {
    if (!tshi_call_runs(node)) return tshi_grad_settle(node, backward_elsewhere(node));
    bool rest = has_rest(node);
    tsh_status status = materialize_read(node, true);
    if (status == TSH_OK) status = check_unchanged(node, true);
    if (status == TSH_OK) status = tshi_grad_settle(node, tshi_invoke(node, node->op->backward, "backward"));
    if (status != TSH_OK || !rest) return status;
    status = between(node);
    if (status != TSH_OK) return status;
    return tshi_grad_settle(node, tshi_invoke(node, node->op->backward_rest, "backward"));
}

tsh_status tshi_call_backward(tsh_call *node, tsh_status (*between)(tsh_call *node)) {
    tsh_memory_purpose before = enter_call(node);
    tsh_status status = run_backward(node, between);
    if (status == TSH_OK && node->tape->world->checks_nan) status = tshi_call_check_gradients(node);
    leave_call(node, before);
    if (status != TSH_OK) tshi_tape_fail(node->tape, status, "backward of %s: %s", node->op->name, tsh_error_message());
    return status;
}
