/* Backward: runs the nodes in reverse, and adds to the gradients of their inputs. */
#include "autograd/grad/retained.h"
#include "autograd/run/call.h"
#include "autograd/run/invoke.h"
#include "autograd/run/segment.h"
#include "autograd/run/transition.h"
#include "device/record.h"
#include "device/trace.h"

#include <math.h>

/* --- one call ----------------------------------------------------------------------------------------------------- */

static bool has_gradient(const tsh_tensor *x) {
    return x->gradient->value && !x->gradient->stale;
}

/* Called when x's gradient is complete: if a transition made x, starts the collective of its backward now, before other
 * calls run. */
static tsh_status start_early(tsh_tape *tape, const tsh_tensor *x) {
    int k = tshi_tape_node(tape, x);
    if (k < 0 || !has_gradient(x)) return TSH_OK;
    tsh_call *node = &tape->nodes[k];
    if (!tshi_is_transition(node) || node->started.work || !tshi_call_runs(node)) return TSH_OK;
    tsh_status status = tshi_invoke(node, tshi_transition_backward_start, "backward");
    if (status != TSH_OK) tshi_tape_fail(tape, status, "backward of %s: %s", node->op->name, tsh_error_message());
    return status;
}

static tsh_status advance_sums(tsh_tape *tape) {
    return tshi_tape_check(tape, tape->schedule->ops->advance(tape->schedule), "backward");
}

/* Called when the first input's gradient is computed: starts its collective, to overlap with the rest of the call. */
static tsh_status start_beside(tsh_call *node) {
    tsh_tape *tape = node->tape;
    const tsh_tensor *x = node->in[0];
    tsh_status status = tshi_requires_grad(x) && x->gradient->uses == 1 ? start_early(tape, x) : TSH_OK;
    return status == TSH_OK && tape->schedule ? advance_sums(tape) : status;
}

/* The gradient of input i is complete, and no optimizer will use it, though optimizers make steps here. */
static void warn_of_unstepped(const tsh_tape *tape, const tsh_call *node, int i) {
    const tsh_tensor *p = node->in[i];
    tape->world->told_unstepped = true;
    tshi_log(
        &tape->world->log, TSH_LOG_WARNING,
        "backward: %s%s%s%s, an input of %s, has a gradient and is a parameter of no optimizer: is its layer in no "
        "list, or in one that was registered after the optimizer was created?",
        p->name ? "'" : "", p->name ? p->name : "", p->name ? "', " : "", TSHI_TENSOR_TEXT(p), node->op->name);
}

static void complete_leaf(const tsh_tape *tape, const tsh_tensor *leaf) {
    tshi_gradient_target *sum = tshi_gradient_summing(leaf);
    if (!sum)
        tshi_gradient_revise_all(leaf);
    else if (sum->schedule == tape->schedule)
        sum->ops->complete(sum);
}

/* Called when the call is done in this backward: gradients to which it was the last to add are complete. */
static tsh_status complete_inputs(tsh_tape *tape, int index) {
    const tsh_call *node = &tape->nodes[index];
    tsh_status status = TSH_OK;
    for (int i = 0; i < node->inputs && status == TSH_OK; i++) {
        tshi_gradient *g = node->in[i]->gradient;
        if (!tshi_requires_grad(node->in[i]) || --g->uses > 0) continue;
        if (node->in[i]->computed && g->node < index - 1)
            status = start_early(tape, node->in[i]);
        else if (!node->in[i]->computed)
            complete_leaf(tape, node->in[i]);
        if (node->in[i]->parameter && tape->world->optimizes && !tape->world->told_unstepped &&
            !tshi_gradient_steps(node->in[i]))
            warn_of_unstepped(tape, node, i);
    }
    return status == TSH_OK && tape->schedule ? advance_sums(tape) : status;
}

/* Frees the output's memory unless the program or a later call has a reference; the tape and this call have
 * `references`. */
static void drop_output(tsh_tensor *out, int references, const tsh_tensor *loss) {
    if (out->references == references && out != loss) tshi_tensor_drop_storage(out);
}

static void node_free(tsh_call *node, const tsh_tensor *loss) {
    tsh_tensor *out = node->out;
    int segment = node->segment;
    node->out = NULL;
    tshi_node_clear(node);
    node->flags.used = true;
    node->segment = segment;
    tshi_tensor_release(out);
    drop_output(out, 1, loss);
}

/* True for a transition of a leaf, which is made once in a step: calls that lead to other losses may share it, so
 * backward keeps the call. An exchange between meshes always stays, because the losses of a pipeline's stages come in
 * different orders, and all stages must find it in the same state. */
static bool other_losses_share(const tsh_tape *tape, const tsh_call *node) {
    if (node->out->references == 2 && node->out->mesh == node->in[0]->mesh) return false;
    while (!node->flags.used && node->op->repeats) {
        int k = tshi_tape_node(tape, node->in[0]);
        if (k < 0) return true;
        node = &tape->nodes[k];
    }
    return false;
}

/* Fails for a call that an earlier backward has freed, and for a leaf whose gradient another tape's schedule sums:
 * gradients would be lost silently. */
static tsh_status check_inputs(tsh_tape *tape, const tsh_call *node) {
    for (int i = 0; i < node->inputs; i++) {
        const tshi_gradient_schedule *schedule = tshi_gradient_schedule_of(node->in[i]);
        if (schedule && schedule != tape->schedule && tshi_call_runs(node)) {
            tshi_tape_fail(tape, TSH_ERR_STATE,
                           "backward: %s takes a parameter whose gradients are summed by a "
                           "tsh_data_parallel of another tape",
                           node->op->name);
            return tape->status;
        }
        int k = tshi_tape_node(tape, node->in[i]);
        if (k < 0 || !tape->nodes[k].flags.used) continue;
        tshi_tape_fail(tape, TSH_ERR_STATE,
                       "backward: %s depends on calls of this step that an earlier backward has freed", node->op->name);
        return tape->status;
    }
    return TSH_OK;
}

/* Computes the gradients of the call's inputs from its output's, which is complete or a transition's first term. */
static tsh_status go_back(tsh_tape *tape, tsh_call *node) {
    tshi_gradient *g = node->out->gradient;
    tsh_status status = tshi_call_backward(node, start_beside);
    if (status != TSH_OK) return status;
    if (tshi_gradient_is_retained(g))
        status = tshi_tape_check(tape, tshi_retained_add(node->out), "backward: a retained gradient");
    tshi_gradient_release_value(g);
    return status;
}

/* In a deterministic world, passes what a call has added to a copy of x on to x at once: summing it in the copy first
 * would give other bits, and which calls share a copy depends on the layouts. Not across the stages of a pipeline,
 * which exchange whole gradients, nor for a retained gradient. */
static tsh_status pass_term_on(tsh_tape *tape, const tsh_tensor *copy) {
    tsh_status status = TSH_OK;
    int k = tshi_tape_node(tape, copy);
    while (status == TSH_OK && k >= 0 && has_gradient(copy) && !tshi_gradient_schedule_of(copy) &&
           !tshi_gradient_is_retained(copy->gradient)) {
        tsh_call *node = &tape->nodes[k];
        const tsh_tensor *x = node->in[0];
        if (!tshi_op_moves(node->op) || x->mesh != copy->mesh) break;
        status = check_inputs(tape, node);
        if (status == TSH_OK) status = go_back(tape, node);
        node->flags.moved_on = true;
        copy = x;
        k = tshi_tape_node(tape, x);
    }
    return status;
}

static tsh_status node_backward(tsh_tape *tape, int index, const tsh_tensor *loss) {
    tsh_call *node = &tape->nodes[index];
    bool keeps = tape->keeps_graph || other_losses_share(tape, node);
    if (!keeps && !node->op->reads_output) drop_output(node->out, 2, loss);
    tsh_status status = has_gradient(node->out) ? go_back(tape, node) : TSH_OK;
    for (int i = 0; tape->world->deterministic && i < node->inputs && status == TSH_OK; i++)
        status = pass_term_on(tape, node->in[i]);
    if (status != TSH_OK) return status;
    node->flags.moved_on = false;
    status = complete_inputs(tape, index);
    if (!keeps) node_free(node, loss);
    return status;
}

/* --- the engine --------------------------------------------------------------------------------------------------- */

static tsh_status seed_loss(tsh_tape *tape, tsh_tensor *loss, const tsh_tensor *gradient) {
    tsh_device *device = loss->mesh->device;
    bool fits =
        !gradient || (gradient->storage && gradient->dtype == loss->dtype && tshi_gradient_fits(loss, gradient));
    if (!fits) {
        tshi_tape_fail(tape, TSH_ERR_SHAPE,
                       "backward: the gradient is %s, the loss %s: the same shape and layouts wanted (REPLICATED for "
                       "PARTIAL)",
                       TSHI_TENSOR_TEXT(gradient), TSHI_TENSOR_TEXT(loss));
        return tape->status;
    }
    tshi_gradient *g = loss->gradient;
    tshi_gradient_release_value(g);
    g->wide = false;
    double weight = tape->schedule ? tape->schedule->weight : 1;
    bool shares = gradient && weight == 1 && !tshi_gradient_is_retained(g);
    tsh_status status = shares ? tshi_gradient_view(loss, gradient, &g->value) : tshi_gradient_new(loss, &g->value);
    if (status != TSH_OK) return tshi_tape_check(tape, status, "backward");
    g->stale = false;
    if (shares) return TSH_OK;
    void *to = tshi_data(g->value);
    if (gradient) {
        device->ops->elementwise[loss->dtype].axpby(device, loss->numel, weight, tshi_data(gradient), 0, NULL, to);
    } else {
        device->ops->copy.fill(device, loss->dtype, loss->numel, weight, to);
    }
    return TSH_OK;
}

static tsh_status check_backward_loss(tsh_tape *tape, tsh_tensor *loss) {
    if (tshi_tape_is_inside(tape, "backward") || tape->status != TSH_OK) return tape->status;
    int node = loss ? tshi_tape_node(tape, loss) : -1;
    if (!loss) {
        tshi_tape_fail(tape, TSH_ERR_STATE, "backward: the loss is NULL, and no call of this step has failed");
    } else if (tshi_tensor_is_free(loss)) {
        tshi_tape_check(tape, tshi_tensor_check(loss, "backward", "the loss"), NULL);
    } else if (node < 0 && !tape->recording) {
        tshi_tape_fail(tape, TSH_ERR_STATE, "backward: recording is off (tsh_tape_set_recording)");
    } else if (node < 0) {
        tshi_tape_fail(tape, TSH_ERR_STATE,
                       "backward: no input of %s requires a gradient, or recording was off (tsh_tape_set_recording)",
                       TSHI_TENSOR_TEXT(loss));
    } else if (tape->nodes[node].flags.used) {
        tshi_tape_fail(tape, TSH_ERR_STATE,
                       "backward: a second time over the same step (tsh_backward_config.retain_graph keeps it)");
    }
    return tape->status;
}

/* Counts, for each gradient, the calls up to the loss's that may add to it; or resets the counts to 0, as after a
 * successful backward. */
static void count_uses(tsh_tape *tape, int last, bool count) {
    for (int n = 0; n <= last; n++) {
        const tsh_call *node = &tape->nodes[n];
        for (int i = 0; i < node->inputs; i++) {
            tshi_gradient *g = node->in[i]->gradient;
            if (tshi_requires_grad(node->in[i])) g->uses = count ? g->uses + 1 : 0;
        }
    }
}

static tsh_status run_node(tsh_tape *tape, int index, const tsh_tensor *loss) {
    const tsh_call *node = &tape->nodes[index];
    if (node->flags.used) return TSH_OK;
    if ((!has_gradient(node->out) && !node->flags.moved_on) || !tshi_call_wants(node))
        return complete_inputs(tape, index); /* the loss does not depend on this call, or its inputs are frozen */
    tsh_status status = check_inputs(tape, node);
    if (status == TSH_OK) status = tshi_segment_enter(tape, node->segment);
    return status == TSH_OK ? node_backward(tape, index, loss) : status;
}

static tsh_status run_nodes(tsh_tape *tape, const tsh_tensor *loss) {
    tsh_status status = TSH_OK;
    for (int i = loss->gradient->node; i >= 0 && status == TSH_OK; i--) {
        status = run_node(tape, i, loss);
        if (status == TSH_OK) status = tshi_segment_leave(tape, i);
    }
    return status;
}

static tsh_status run_with_schedule(tsh_tape *tape, const tsh_tensor *loss) {
    tshi_gradient_schedule *schedule = tape->schedule;
    tsh_status status = schedule->ops->begin(schedule, loss);
    if (status != TSH_OK) return tshi_tape_check(tape, status, "backward");
    tsh_status ran = run_nodes(tape, loss);
    status = schedule->ops->end(schedule, ran);
    return ran == TSH_OK ? tshi_tape_check(tape, status, "backward") : status;
}

static tsh_status backward_from(tsh_tape *tape, tsh_tensor *loss, const tsh_backward_config *config) {
    tape->keeps_graph = config && config->retain_graph;
    tsh_status status = check_backward_loss(tape, loss);
    if (status == TSH_OK) status = seed_loss(tape, loss, config ? config->gradient : NULL);
    if (status != TSH_OK) return status;
    int last = loss->gradient->node;
    count_uses(tape, last, true);
    status = tape->schedule ? run_with_schedule(tape, loss) : run_nodes(tape, loss);
    if (status != TSH_OK) {
        count_uses(tape, last, false); /* leaves outlive the step */
        return status;
    }
    /* Errors that GPU kernels have reported so far; the next step finds later ones. */
    tsh_device *device = loss->mesh->device;
    return tshi_tape_check(tape, device->ops->check(device), "backward");
}

/* True when a range of a trace has begun. */
static bool note_backward(const tsh_device *device) {
    tshi_record_backward(device->record);
    if (device->trace) tshi_trace_range_begin(device->trace, "backward");
    return device->trace != NULL;
}

/* Warns when tensors pile up because a program does not reset its tape, by comparison with the first backward. */
static void warn_of_endless_step(tsh_tape *tape) {
    const int times = 100;
    if (!tape->usual_count) tape->usual_count = tape->owned_count;
    if (tape->warned || tape->owned_count / times < tape->usual_count || !tape->usual_count) return;
    tape->warned = true;
    tshi_log(&tape->world->log, TSH_LOG_WARNING,
             "backward: the tape holds %d tensors, %d times those of its first step: is tsh_tape_reset missing at the "
             "end of a step?",
             tape->owned_count, times);
}

/* On a GPU only with TSHARD_CHECK=1, because reading the loss waits for it. */
static void warn_of_nan(tsh_tape *tape, const tsh_tensor *loss) {
    const tsh_device *device = loss->mesh->device;
    bool looks = device->ops->kind == TSH_CPU || (tape->world->checked && !device->captures);
    if (tape->told_nan || !looks || loss->numel != 1 || !tshi_data(loss) || !isnan(tshi_tensor_element(loss))) return;
    tape->told_nan = true;
    tshi_log(&tape->world->log, TSH_LOG_WARNING, "backward: the loss, %s, is NaN, and so will be the gradients",
             TSHI_TENSOR_TEXT(loss));
}

/* Fails when the program has ignored the status of a failed optimizer's step, which would leave the parameters
 * unchanged forever. */
static tsh_status check_dropped(tsh_tape *tape) {
    tshi_failure dropped;
    if (tshi_failure_dropped(&dropped) == TSH_OK) return TSH_OK;
    tshi_log(&tape->world->log, TSH_LOG_ERROR, "a failure that the program has not looked at: %s", dropped.words);
    tshi_tape_fail(tape, dropped.status,
                   "backward: since the last one a call has failed, and its status was dropped: %s", dropped.words);
    return dropped.status;
}

tsh_status tsh_backward_with(tsh_tape *tape, tsh_tensor *loss, const tsh_backward_config *config) {
    if (!tape) return tshi_tape_missing("backward");
    tsh_status own = tshi_owner_check(&tape->world->owner, "backward");
    if (own != TSH_OK) return own;
    if (check_dropped(tape) != TSH_OK) return tape->status;
    tsh_device *device = tape->world->device;
    tsh_memory_purpose before = tshi_device_purpose(device, TSH_MEMORY_ACTIVATIONS);
    device->place.backward = true;
    bool traced = tshi_is_observed(device) && note_backward(device);
    warn_of_endless_step(tape);
    tsh_status status = backward_from(tape, loss, config);
    if (status == TSH_OK) warn_of_nan(tape, loss);
    if (traced && device->trace) tshi_trace_range_end(device->trace);
    device->place.backward = false;
    device->purpose = before;
    return status;
}

tsh_status tsh_backward(tsh_tape *tape, tsh_tensor *loss) {
    if (tape && tape->status == TSH_OK && loss && tshi_shape_numel(&loss->shape) != 1) {
        tshi_tape_fail(tape, TSH_ERR_SHAPE, "backward: the loss is %s, one element is wanted", TSHI_TENSOR_TEXT(loss));
        return tape->status;
    }
    return tsh_backward_with(tape, loss, NULL);
}
