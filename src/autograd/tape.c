/* The tape: running calls, recording them, keeping the first failure. */
#include "autograd/tape.h"
#include "autograd/custom.h"
#include "autograd/observe.h"
#include "device/record.h"
#include "device/trace.h"
#include "dist/core/redistribute.h"
#include "dist/core/signal.h"

#include <stdio.h>
#include <string.h>

tsh_status tsh_tape_create(tsh_world *world, tsh_tape **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "tape_create: out is NULL");
    *out = NULL;
    if (!world) return tshi_fail(TSH_ERR_ARGUMENT, "tape_create: a world is required");
    tsh_tape *tape = tshi_calloc(&world->allocator, 1, sizeof *tape);
    if (!tape) return TSH_ERR_MEMORY;
    tape->world = world;
    tape->recording = true;
    tape->generation = ++world->tape_steps;
    tape->number = ++world->tapes;
    world->steps[tape->number % TSHI_STEPPING] = (tshi_steps){.tape = tape->number};
    *out = tape;
    return TSH_OK;
}

tsh_status tshi_tape_missing(const char *what) {
    return tshi_fail(TSH_ERR_ARGUMENT, "%s: tape is NULL", what);
}

/* The message without "rank 3: ", which the peers put before it. */
static const char *bare_message(const tsh_tape *tape) {
    const char *colon = strchr(tape->message, ':');
    return colon ? colon + 2 : "a step failed";
}

static tshi_steps *steps_of(const tsh_tape *tape) {
    tshi_steps *steps = &tape->world->steps[tape->number % TSHI_STEPPING];
    return steps->tape == tape->number ? steps : NULL;
}

/* The step under way. */
static tshi_tape_step step_of(const tsh_tape *tape) {
    const tshi_steps *steps = steps_of(tape);
    return steps ? (tshi_tape_step){steps->tape, steps->ended + 1} : (tshi_tape_step){0};
}

void tshi_node_clear(tsh_call *node) {
    tsh_work_release(node->work);
    tshi_tensor_release(node->early);
    for (int i = 0; i < node->inputs; i++) tshi_tensor_release(node->in[i]);
    for (int i = 0; i < TSH_CALL_SLOTS; i++) tshi_tensor_release(node->saved[i]);
    tshi_tensor_release(node->out);
    memset(node, 0, sizeof *node);
}

static void free_step(tsh_tape *tape) {
    for (int i = 0; i < tape->node_count; i++) tshi_node_clear(&tape->nodes[i]);
    tape->node_count = tape->segment_count = 0;
    for (int i = 0; i < tape->owned_count; i++) {
        tshi_gradient_end_step(tape->owned[i]);
        tape->owned[i]->ended = true;
        tshi_tensor_release(tape->owned[i]);
    }
    tape->owned_count = 0;
    tshi_region_reset(&tape->memory);
    tape->generation = ++tape->world->tape_steps;
}

void tshi_tape_forget_sink(tsh_tape *tape) {
    tape->sink = NULL;
    for (int i = 0; i < tape->owned_count; i++) {
        if (tape->owned[i]->gradient) tape->owned[i]->gradient->sink = NULL;
    }
}

void tsh_tape_destroy(tsh_tape *tape) {
    if (!tape) return;
    bool untold = tape->status == TSH_ERR_LAYOUT && tape->recoveries == tape->world->recoveries;
    if (untold) tshi_world_fail_in(tape->world, bare_message(tape), step_of(tape));
    free_step(tape);
    if (tape->sink) tape->sink->ops->detach(tape->sink);
    if (steps_of(tape)) *steps_of(tape) = (tshi_steps){0};
    tshi_free(&tape->world->allocator, tape->nodes);
    tshi_free(&tape->world->allocator, tape->segments);
    tshi_free(&tape->world->allocator, tape->owned);
    tshi_free(&tape->world->allocator, tape->scratch);
    tshi_region_clear(&tape->memory, &tape->world->allocator);
    tshi_free(&tape->world->allocator, tape);
}

static void note_reset(const tsh_device *device) {
    tshi_record_reset(device->record);
    if (!device->trace) return;
    tshi_trace_close(tshi_trace_open(device->trace, TSHI_TRACE_RESET));
    tshi_trace_clock(device->trace);
}

static void end_step(tsh_tape *tape) {
    tshi_steps *steps = steps_of(tape);
    if (tshi_is_noted(tape->world->device)) note_reset(tape->world->device);
    free_step(tape);
    tape->status = TSH_OK;
    tape->message[0] = '\0';
    tape->skips = false;
    if (!steps) return;
    steps->ended++;
    steps->open = false;
    if (steps->behind) steps->behind--;
}

tsh_status tsh_tape_reset(tsh_tape *tape) {
    if (!tape) return tshi_tape_missing("tape_reset");
    if (tshi_tape_is_inside(tape, "tape_reset")) return tape->status;
    tsh_world *world = tape->world;
    tshi_signal_look(world);
    tsh_status sent = tshi_exchange_flush(world);
    if (sent != TSH_OK) tshi_tape_fail_as(tape, sent, "tape_reset");
    bool failed = tape->status != TSH_OK, troubled = tshi_world_troubled(world, step_of(tape));
    /* A world that the caller has recovered since needs no recovery, nor does a step that is skipped. */
    bool recover = troubled || (failed && !tape->skips && tape->recoveries == world->recoveries);
    /* After a failure inside one group, such as a mismatch, the ranks of other groups would wait for this one. */
    if (recover && !troubled) tshi_world_fail_in(world, bare_message(tape), step_of(tape));
    end_step(tape);
    if ((failed || recover) && tape->sink) tape->sink->ops->drop(tape->sink);
    return recover ? tsh_world_recover(world) : TSH_OK;
}

tsh_status tsh_tape_status(const tsh_tape *tape) {
    return tape ? tape->status : tshi_tape_missing("tape_status");
}

const char *tsh_tape_message(const tsh_tape *tape) {
    return tape ? tape->message : "";
}

bool tsh_tape_set_recording(tsh_tape *tape, bool recording) {
    bool before = tape && tape->recording;
    if (tape) tape->recording = recording;
    return before;
}

tsh_world *tsh_tape_world(const tsh_tape *tape) {
    return tape ? tape->world : NULL;
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

tsh_tensor *tshi_tape_fail(tsh_tape *tape, tsh_status status, const char *format, ...) {
    va_list arguments;
    if (tape->status != TSH_OK) return NULL;
    tape->status = status;
    tape->recoveries = tape->world->recoveries;
    int used = snprintf(tape->message, sizeof tape->message, "rank %d: ", tape->world->rank);
    va_start(arguments, format);
    vsnprintf(tape->message + used, sizeof tape->message - (size_t)used, format, arguments);
    va_end(arguments);
    tshi_fail(status, "%s", tape->message);
    /* The peers have seen these failures themselves, or come to the same refusal: a collective before it, in which some
     * still are, ends well. The end of the step tells those that do not. */
    bool known =
        status == TSH_ERR_PEER || status == TSH_ERR_MISMATCH || status == TSH_ERR_TIMEOUT || status == TSH_ERR_LAYOUT;
    if (!known) tshi_world_fail_in(tape->world, bare_message(tape), step_of(tape));
    return NULL;
}

bool tshi_tape_goes_on(tsh_tape *tape) {
    tshi_steps *steps = steps_of(tape);
    if (steps) steps->open = true;
    if (tape->status != TSH_OK || !steps || !steps->behind) return tape->status == TSH_OK;
    tape->skips = true;
    tshi_tape_fail(tape, TSH_ERR_PEER, "this step is skipped: other ranks were past it when a rank failed");
    return false;
}

bool tshi_tape_is_inside(tsh_tape *tape, const char *what) {
    if (!tape->inside) return false;
    tshi_tape_fail(tape, TSH_ERR_STATE, "%s: called inside of %s, whose functions call no function of a tape", what,
                   tape->inside->name);
    return true;
}

tsh_tensor *tshi_tape_fail_as(tsh_tape *tape, tsh_status status, const char *what) {
    char text[TSHI_MESSAGE_SIZE];
    snprintf(text, sizeof text, "%s", tsh_error_message());
    return tshi_tape_fail(tape, status, "%s: %s", what, text);
}

tsh_tensor *tshi_tape_fail_with(tsh_tape *tape, tsh_status status) {
    char text[TSHI_MESSAGE_SIZE];
    snprintf(text, sizeof text, "%s", tsh_error_message());
    return tshi_tape_fail(tape, status, "%s", text);
}

tsh_status tshi_tape_spoil(tsh_tape *tape, tsh_status status, const char *what) {
    char text[TSHI_MESSAGE_SIZE];
    snprintf(text, sizeof text, "%s", tsh_error_message());
    tshi_tape_fail_as(tape, status, what);
    return tshi_fail(status, "%s", text);
}

bool tshi_tape_ready(tsh_tape *tape, const char *what, int count, tsh_tensor *const *tensors) {
    if (!tape) tshi_tape_missing(what);
    if (!tape || !tshi_tape_goes_on(tape) || tshi_tape_is_inside(tape, what)) return false;
    tsh_status thread = tshi_world_check_thread(tape->world, what);
    if (thread != TSH_OK) tshi_tape_fail_with(tape, thread);
    for (int i = 0; i < count && tape->status == TSH_OK; i++) {
        if (!tensors[i] || !tensors[i]->storage) {
            char which[32];
            snprintf(which, sizeof which, "input %d", i);
            tshi_tape_fail_with(tape, tshi_tensor_check(tensors[i], what, which));
        } else if (tensors[i]->computed && tshi_tape_node(tape, tensors[i]) < 0) {
            tshi_tape_fail(tape, TSH_ERR_STATE, "%s: input %d belongs to a step of another tape", what, i);
        } else if (tensors[i]->mesh != tensors[0]->mesh) {
            char a[TSHI_LINE], b[TSHI_LINE];
            tshi_tape_fail(tape, TSH_ERR_ARGUMENT,
                           "%s: input 0 is on mesh %s, input %d on mesh %s (tsh_redistribute moves a tensor to another "
                           "mesh)",
                           what, tshi_mesh_name(tensors[0]->mesh, a, sizeof a), i,
                           tshi_mesh_name(tensors[i]->mesh, b, sizeof b));
        } else if (tensors[i]->mesh->world != tape->world) {
            tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "%s: input %d belongs to another world than the tape", what, i);
        }
    }
    return tape->status == TSH_OK;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

tsh_status tshi_tape_own(tsh_tape *tape, tsh_tensor *tensor) {
    tsh_status status = tshi_grow(&tape->world->allocator, (void **)&tape->owned, &tape->owned_capacity,
                                  tape->owned_count + 1, sizeof *tape->owned);
    if (status != TSH_OK) {
        tshi_tensor_release(tensor);
        return status;
    }
    tensor->held--;
    tape->owned[tape->owned_count++] = tensor;
    return TSH_OK;
}

bool tshi_tape_records(const tsh_call *call) {
    for (int i = 0; call->tape->recording && i < call->inputs; i++) {
        if (tshi_requires_grad(call->in[i])) return true;
    }
    return false;
}

void *tshi_tape_copy(tsh_tape *tape, const void *from, size_t count, size_t size) {
    void *copy = tshi_region_take(&tape->memory, &tape->world->allocator, count, size);
    if (copy) memcpy(copy, from, count * size);
    return copy;
}

static uint64_t version_of(const tsh_tensor *t) {
    return t->storage && !t->storage->lender ? t->storage->version : 0;
}

uint64_t tshi_call_versions(const tsh_call *call) {
    uint64_t versions = 0;
    for (int i = 0; !call->op->reads_no_input && i < call->inputs; i++) {
        versions += version_of(call->in[i]) << 16 * (i < 2 ? i : 2);
    }
    return call->op->reads_output ? versions + (version_of(call->out) << 48) : versions;
}

/* Backward finds the call again; without recording its saved tensors are dropped at once. */
static tsh_status record(tsh_call *call) {
    tsh_tape *tape = call->tape;
    size_t params_size = call->op->params_size;
    if (!tshi_tape_records(call)) return TSH_OK;
    tsh_status status = tshi_grow(&tape->world->allocator, (void **)&tape->nodes, &tape->node_capacity,
                                  tape->node_count + 1, sizeof *tape->nodes);
    tsh_tensor **in = status == TSH_OK ? tshi_tape_copy(tape, call->in, (size_t)call->inputs, sizeof *in) : NULL;
    void *params = in && params_size ? tshi_tape_copy(tape, call->params, 1, params_size) : NULL;
    if (in && tshi_op_is_custom(call->op)) call->op = tshi_tape_copy(tape, call->op, 1, sizeof *call->op);
    tshi_gradient *gradient = in ? tshi_gradient_of(call->out) : NULL;
    if (!gradient || !call->op || (params_size && !params)) return TSH_ERR_MEMORY;
    gradient->required = true;
    gradient->generation = tape->generation;
    gradient->node = tape->node_count;
    call->out->computed = true;
    tsh_call *node = &tape->nodes[tape->node_count++];
    *node = *call;
    node->in = in;
    node->params = params;
    node->want = NULL;
    node->versions = tshi_call_versions(call);
    for (int i = 0; i < node->inputs; i++) tshi_tensor_retain(node->in[i]);
    tshi_tensor_retain(node->out);
    memset(call->saved, 0, sizeof call->saved); /* the node has them now */
    return TSH_OK;
}

static tsh_status make_output(tsh_call *call, tsh_dtype dtype, const tsh_shape *shape,
                              const tsh_layout layout[TSH_MAX_AXES], const tsh_tensor *share) {
    tsh_status status =
        share ? tshi_tensor_view(share, shape, layout, 0, &call->out)
              : tshi_tensor_new(call->mesh ? call->mesh : call->in[0]->mesh, dtype, shape, layout, &call->out);
    if (status == TSH_OK) status = tshi_tape_own(call->tape, call->out);
    bool fits = !share || status != TSH_OK || tsh_tensor_local_nbytes(call->out) == tsh_tensor_local_nbytes(share);
    return fits ? status : tshi_fail(TSH_ERR_LAYOUT, "this rank's part would change its size");
}

/* The name of a parameter, or of the one that a transition has made the tensor from. */
static const char *name_of(const tsh_tensor *x) {
    const tsh_tensor *from = x->gradient ? x->gradient->moved_from : NULL;
    return x->name || !from ? x->name : from->name;
}

tsh_memory_purpose tshi_call_enter(const tsh_call *call, bool backward) {
    tsh_device *device = tshi_device_of(call->in[0]);
    device->place.function = device->place.last = call->op->name;
    device->place.backward = backward;
    if (tshi_is_noted(device)) tshi_observe_enter(call);
    for (int i = 0; i < call->inputs; i++) {
        const char *name = name_of(call->in[i]);
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

static tsh_status use(const tsh_call *call, const tsh_tensor *t) {
    tsh_tape *tape = call->tape;
    if (!t || !t->storage || (t->storage->data && !t->storage->lender)) return TSH_OK;
    if (t->storage->lender) return t->storage->lender->use(t->storage->lender, tape->generation, tape->uses);
    return tshi_fail(TSH_ERR_STATE, "a parameter's values are gone with the tsh_data_parallel that has gathered them");
}

tsh_status tshi_call_use(const tsh_call *call, bool backward) {
    tsh_status status = TSH_OK;
    bool inputs = !backward || !call->op->reads_no_input;
    call->tape->uses++;
    for (int i = 0; inputs && i < call->inputs && status == TSH_OK; i++) status = use(call, call->in[i]);
    for (int i = 0; backward && i < TSH_CALL_SLOTS && status == TSH_OK; i++) status = use(call, call->saved[i]);
    return status;
}

tsh_status tshi_call_forward(tsh_call *call) {
    if (!tshi_call_runs(call) || !call->op->forward) return TSH_OK;
    return tshi_op_is_custom(call->op) ? tshi_custom_run(call, call->op->forward) : call->op->forward(call);
}

tsh_tensor *tshi_tape_run(tsh_call *call, tsh_dtype dtype, const tsh_shape *shape,
                          const tsh_layout layout[TSH_MAX_AXES], const tsh_tensor *share) {
    tsh_memory_purpose before = tshi_call_enter(call, false);
    call->shares = share != NULL;
    tsh_status status = make_output(call, dtype, shape, layout, share);
    if (status == TSH_OK && !share) status = tshi_call_use(call, false);
    if (status == TSH_OK) status = tshi_call_forward(call);
    tshi_call_leave(call, before);
    if (status == TSH_OK) status = record(call);
    for (int i = 0; i < TSH_CALL_SLOTS; i++) tshi_tensor_release(call->saved[i]);
    return status == TSH_OK ? call->out : tshi_tape_fail_as(call->tape, status, call->op->name);
}
