/* The tape: steps, owned tensors, and the first failure. */
#include "autograd/tape.h"
#include "autograd/grad/retained.h"
#include "autograd/plan/plan.h"
#include "device/record.h"
#include "device/trace.h"
#include "dist/collectives/redistribute.h"

#include <stdio.h>
#include <string.h>

tsh_status tsh_tape_create(tsh_world *world, tsh_tape **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "tape_create: out is NULL");
    *out = NULL;
    if (!world) return tshi_fail(TSH_ERR_ARGUMENT, "tape_create: a world is required");
    tsh_tape *tape = tshi_calloc(&world->allocator, 1, sizeof *tape);
    if (!tape) return TSH_ERR_MEMORY;
    tape->plans = tshi_plans_new(&world->allocator);
    if (!tape->plans) {
        tshi_free(&world->allocator, tape);
        return TSH_ERR_MEMORY;
    }
    tape->world = world;
    tape->recording = true;
    world->live_tapes++;
    tape->generation = ++world->tape_steps;
    tape->steps = (tshi_steps){.tape = ++world->tapes, .next = world->steps};
    world->steps = &tape->steps;
    *out = tape;
    return TSH_OK;
}

tsh_status tshi_tape_missing(const char *what) {
    return tshi_fail(TSH_ERR_ARGUMENT, "%s: tape is NULL", what);
}

/* The message without "rank 3: ", which peers add. */
static const char *bare_message(const tsh_tape *tape) {
    const char *colon = strchr(tape->message, ':');
    return colon ? colon + 2 : "a step failed";
}

/* The current step. */
static tshi_tape_step step_of(const tsh_tape *tape) {
    return (tshi_tape_step){tape->steps.tape, tape->steps.ended + 1};
}

void tshi_node_clear(tsh_call *node) {
    tsh_work_release(node->started.work);
    tshi_tensor_release(node->started.result);
    for (int i = 0; i < node->inputs; i++) tshi_tensor_release(node->in[i]);
    for (int i = 0; i < TSH_CALL_SLOTS; i++) tshi_tensor_release(node->saved[i]);
    tshi_tensor_release(node->out);
    memset(node, 0, sizeof *node);
}

/* Calls that a backward has used are already cleared. */
static void free_step(tsh_tape *tape) {
    for (int i = 0; i < tape->node_count; i++) {
        if (!tape->nodes[i].flags.used) tshi_node_clear(&tape->nodes[i]);
    }
    tape->node_count = tape->segment_count = 0;
    for (int i = 0; i < tape->owned_count; i++) {
        if (tape->owned[i]->gradient) tshi_retained_end_step(tape->owned[i]->gradient);
        tshi_gradient_end_step(tape->owned[i]);
        tshi_tensor_release(tape->owned[i]);
    }
    tape->owned_count = 0;
    tshi_region_reset(&tape->memory);
    tshi_plans_end_step(tape->plans);
    tape->generation = ++tape->world->tape_steps;
}

void tshi_tape_forget_schedule(tsh_tape *tape) {
    tape->schedule = NULL;
    for (int i = 0; i < tape->owned_count; i++) {
        if (tape->owned[i]->gradient) tshi_gradient_leave_schedule(tape->owned[i]);
    }
}

void tsh_tape_destroy(tsh_tape *tape) {
    if (!tape) return;
    tape->world->live_tapes--;
    bool untold = tape->status == TSH_ERR_LAYOUT && tape->recoveries == tape->world->recoveries;
    if (untold) tshi_world_fail_in(tape->world, bare_message(tape), step_of(tape));
    free_step(tape);
    if (tape->schedule) tape->schedule->ops->detach(tape->schedule);
    tshi_steps **link = &tape->world->steps;
    while (*link != &tape->steps) link = &(*link)->next;
    *link = tape->steps.next;
    tshi_free(&tape->world->allocator, tape->nodes);
    tshi_free(&tape->world->allocator, tape->segments);
    tshi_free(&tape->world->allocator, tape->owned);
    tshi_free(&tape->world->allocator, tape->scratch);
    tshi_free(&tape->world->allocator, tape->terms);
    tshi_region_clear(&tape->memory, &tape->world->allocator);
    tshi_plans_free(tape->plans);
    tshi_free(&tape->world->allocator, tape);
}

static void note_reset(const tsh_device *device) {
    tshi_record_reset(device->record);
    if (!device->trace) return;
    tshi_trace_close(tshi_trace_open(device->trace, TSHI_TRACE_RESET));
    tshi_trace_clock(device->trace);
}

static void end_step(tsh_tape *tape) {
    tshi_steps *steps = &tape->steps;
    if (tshi_is_observed(tape->world->device)) note_reset(tape->world->device);
    free_step(tape);
    tape->status = TSH_OK;
    tape->message[0] = '\0';
    tape->skips = false;
    steps->ended++;
    steps->open = false;
    if (steps->behind) steps->behind--;
}

tsh_status tsh_tape_reset(tsh_tape *tape) {
    if (!tape) return tshi_tape_missing("tape_reset");
    if (tshi_tape_is_inside(tape, "tape_reset")) return tape->status;
    tsh_world *world = tape->world;
    if (world->ended) return tshi_fail(TSH_ERR_STATE, "tape_reset: the tape's world has been destroyed");
    tsh_status own = tshi_owner_check(&world->owner, "tape_reset");
    if (own != TSH_OK) return own;
    tshi_signal_poll(world);
    tshi_tape_check(tape, tshi_exchange_flush(world), "tape_reset");
    bool failed = tape->status != TSH_OK, troubled = tshi_world_has_failed(world, step_of(tape));
    /* A skipped step needs no recovery, nor does a step since whose failure the program has recovered the world. */
    bool recover = troubled || (failed && !tape->skips && tape->recoveries == world->recoveries);
    /* After a failure inside one group, such as a mismatch, the ranks of other groups would wait for this one. */
    if (recover && !troubled) tshi_world_fail_in(world, bare_message(tape), step_of(tape));
    end_step(tape);
    if ((failed || recover) && tape->schedule) tape->schedule->ops->drop(tape->schedule);
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
    /* Peers notice these failures themselves, or fail in the same way. Some peers may still be in an earlier
     * collective, which can succeed if it is not ended. tsh_tape_reset informs ranks that have noticed nothing. */
    bool known =
        status == TSH_ERR_PEER || status == TSH_ERR_MISMATCH || status == TSH_ERR_TIMEOUT || status == TSH_ERR_LAYOUT;
    if (!known) tshi_world_fail_in(tape->world, bare_message(tape), step_of(tape));
    return NULL;
}

/* False when the step has failed. A step that other ranks have already ended, or failed in, fails here at its first
 * call. */
static bool step_goes_on(tsh_tape *tape) {
    tape->steps.open = true;
    if (tape->status != TSH_OK || !tape->steps.behind) return tape->status == TSH_OK;
    tape->skips = true;
    tshi_tape_fail(tape, TSH_ERR_PEER, "this step is skipped: other ranks were past it when a rank failed");
    return false;
}

bool tshi_tape_is_inside(tsh_tape *tape, const char *what) {
    if (!tape->inside) return false;
    tshi_tape_fail(tape, TSH_ERR_STATE, "%s: called inside %s, whose functions must not call functions of a tape", what,
                   tape->inside->name);
    return true;
}

static bool is_of_other_step(const tsh_tape *tape, const tsh_tensor *t) {
    return t->computed && tshi_tape_node(tape, t) < 0;
}

/* Fails if input i cannot be used; earlier inputs are valid. */
static void check_input(tsh_tape *tape, const char *what, int i, tsh_tensor *const *tensors) {
    const tsh_tensor *t = tensors[i];
    if (!t || !t->storage) {
        char which[32];
        snprintf(which, sizeof which, "input %d", i);
        tshi_tape_check(tape, tshi_tensor_check(t, what, which), NULL);
    } else if (is_of_other_step(tape, t)) {
        tshi_tape_fail(tape, TSH_ERR_STATE, "%s: input %d belongs to a step of another tape", what, i);
    } else if (t->mesh != tensors[0]->mesh) {
        tshi_tape_fail(tape, TSH_ERR_ARGUMENT,
                       "%s: input 0 is on mesh %s, input %d on mesh %s (tsh_redistribute moves a tensor to another "
                       "mesh)",
                       what, TSHI_MESH_TEXT(tensors[0]->mesh), i, TSHI_MESH_TEXT(t->mesh));
    } else if (t->mesh->world != tape->world) {
        tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "%s: input %d belongs to another world than the tape", what, i);
    }
}

bool tshi_tape_ready(tsh_tape *tape, const char *what, int count, tsh_tensor *const *tensors) {
    if (!tape) tshi_tape_missing(what);
    if (!tape || !step_goes_on(tape) || tshi_tape_is_inside(tape, what)) return false;
    tshi_tape_check(tape, tshi_owner_check(&tape->world->owner, what), NULL);
    for (int i = 0; i < count && tape->status == TSH_OK; i++) {
        const tsh_tensor *t = tensors[i];
        bool fits = t && t->storage && t->mesh == tensors[0]->mesh && t->mesh->world == tape->world;
        if (!fits || is_of_other_step(tape, t)) check_input(tape, what, i, tensors);
    }
    return tape->status == TSH_OK;
}

/* --- memory of the step ------------------------------------------------------------------------------------------ */

tsh_status tshi_tape_own(tsh_tape *tape, tsh_tensor *tensor) {
    tsh_status status = tshi_grow(&tape->world->allocator, (void **)&tape->owned, &tape->owned_capacity,
                                  tape->owned_count + 1, sizeof *tape->owned);
    if (status != TSH_OK) {
        tshi_tensor_release(tensor);
        return status;
    }
    tensor->taped = true;
    tape->owned[tape->owned_count++] = tensor;
    return TSH_OK;
}

void *tshi_tape_copy(tsh_tape *tape, const void *from, size_t count, size_t size) {
    void *copy = tshi_region_take(&tape->memory, &tape->world->allocator, count, size);
    if (copy) memcpy(copy, from, count * size);
    return copy;
}
