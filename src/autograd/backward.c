/* Backward: nodes in reverse, gradients into their inputs. */
#include "autograd/tape.h"

/* --- gradients of inputs ------------------------------------------------------------------------------------------ */

bool tshi_wants_grad(const tshi_node *call, int i) {
    return i < call->inputs && call->in[i]->requires_grad;
}

static tsh_status gradient_new(const tsh_tensor *x, tsh_tensor **out) {
    tsh_layout layout[TSH_MAX_AXES];
    tshi_gradient_layout(x, layout);
    return tshi_tensor_new(x->mesh, x->dtype, &x->shape, layout, out);
}

/* In the memory of another tensor, which stays as it is: it is shared. */
static tsh_status gradient_view(const tsh_tensor *x, const tsh_tensor *values, tsh_tensor **out) {
    tsh_layout layout[TSH_MAX_AXES];
    tshi_gradient_layout(x, layout);
    return tshi_tensor_view(values, &x->shape, layout, 0, out);
}

/* Gradient memory that may be written: shared memory (an adopted gradient) is left to the others, with or without its
 * values. */
static tsh_status make_writable(tsh_tensor *x) {
    tsh_tensor *old = x->grad, *fresh = NULL;
    if (old && old->storage->references == 1) return TSH_OK;
    tsh_status status = gradient_new(x, &fresh);
    if (status != TSH_OK) return status;
    bool keep_values = old && !x->grad_stale;
    if (keep_values)
        x->mesh->device->ops->copy.within(x->mesh->device, tsh_tensor_local_nbytes(fresh), tshi_data(old),
                                          tshi_data(fresh));
    tsh_tensor_release(old);
    x->grad = fresh;
    x->grad_stale = !keep_values;
    return TSH_OK;
}

/* Where the schedule sums it; the gradient of a copy to be kept is one of its own first. */
static bool gradient_has_place(const tsh_tensor *x) {
    return x->schedule && (x->node < 0 || !x->retain_grad);
}

static tsh_tensor *gradient_in_place(tsh_tensor *x, double *beta) {
    bool term = x->node >= 0;
    tsh_tensor *grad = x->schedule->ops->gradient(x->schedule, x->place, term, beta);
    if (grad && term && x->grad != grad) {
        tsh_tensor_release(x->grad);
        x->grad = tsh_tensor_retain(grad);
    }
    if (term) x->grad_stale = false;
    return grad;
}

tsh_tensor *tshi_grad_beta(const tshi_node *call, int i, double *beta) {
    tsh_tensor *x = call->in[i];
    if (gradient_has_place(x)) return gradient_in_place(x, beta);
    if (make_writable(x) != TSH_OK) return NULL;
    *beta = x->grad_stale ? 0 : 1;
    x->grad_stale = false;
    return x->grad;
}

tsh_tensor *tshi_grad(const tshi_node *call, int i) {
    double beta;
    tsh_tensor *grad = tshi_grad_beta(call, i, &beta);
    if (grad && beta == 0)
        grad->mesh->device->ops->copy.zero(grad->mesh->device, tsh_tensor_local_nbytes(grad), tshi_data(grad));
    return grad;
}

tsh_status tshi_grad_adopt(const tshi_node *call, int i, tsh_tensor *gradient) {
    tsh_tensor *x = call->in[i];
    tsh_device *device = x->mesh->device;
    bool first = !x->grad || x->grad_stale;
    /* A leaf's gradient outlives the step, in memory of its own that stays where it is. */
    bool stays = x->node < 0 || gradient_has_place(x);
    if (first && !stays) {
        tsh_tensor *view;
        tsh_status status = gradient_view(x, gradient, &view);
        if (status != TSH_OK) return status;
        tsh_tensor_release(x->grad);
        x->grad = view;
        x->grad_stale = false;
        return TSH_OK;
    }
    double beta;
    tsh_tensor *grad = tshi_grad_beta(call, i, &beta);
    if (!grad) return TSH_ERR_MEMORY;
    device->ops->elementwise.axpby(device, x->dtype, x->numel, 1, tshi_data(gradient), beta, tshi_data(grad),
                                   tshi_data(grad));
    return TSH_OK;
}

static void mark(tsh_tape *tape, const void *data) {
    if (tape->marked == data) return;
    tape->marked = data;
    tshi_world_mark(tape->world, data);
}

void tshi_grad_complete(const tshi_node *call, int i) {
    tsh_tape *tape = call->tape;
    const tsh_tensor *x = call->in[i];
    if (!tape->world->upper || x->node < 0 || gradient_has_place(x)) return;
    for (int k = 0; k < call->inputs; k++) {
        if (k != i && call->in[k] == x) return;
    }
    tape->marked = NULL; /* this place is another, even if the memory is the same */
    mark(tape, tshi_data(x->grad));
}

/* --- the engine --------------------------------------------------------------------------------------------------- */

static void grad_release(tsh_tensor *x) {
    tsh_tensor_release(x->grad);
    x->grad = NULL;
}

/* Move the gradient of an intermediate tensor to the sum over the step's backwards: the next one must find none in its
 * place. */
static tsh_status keep_grad(tsh_tape *tape, tsh_tensor *x) {
    tsh_device *device = x->mesh->device;
    bool first = !x->kept_grad;
    if (first && tshi_tensor_sole_owner(x->grad)) {
        x->kept_grad = x->grad;
        x->grad = NULL;
        return TSH_OK;
    }
    tsh_status status = first ? gradient_new(x, &x->kept_grad) : TSH_OK;
    if (status != TSH_OK) {
        tshi_tape_fail_as(tape, status, "backward: a retained gradient");
        return status;
    }
    const void *before = first ? NULL : tshi_data(x->kept_grad);
    device->ops->elementwise.axpby(device, x->dtype, x->numel, 1, tshi_data(x->grad), first ? 0 : 1, before,
                                   tshi_data(x->kept_grad));
    return TSH_OK;
}

/* Backward frees an output's memory unless the caller or an unused node holds the tensor, that is beside the tape and
 * this node; `holders` counts those two. */
static void drop_output(tsh_tensor *out, int holders, const tsh_tensor *loss) {
    if (out->references == holders && out != loss) tshi_tensor_drop_storage(out);
}

/* The node is done: release its tensors. */
static void node_free(tshi_node *node, const tsh_tensor *loss) {
    tsh_tensor *out = node->out;
    for (int i = 0; i < node->inputs; i++) tsh_tensor_release(node->in[i]);
    for (int i = 0; i < TSHI_MAX_SAVED; i++) tsh_tensor_release(node->saved[i]);
    *node = (tshi_node){.used = true};
    tsh_tensor_release(out);
    drop_output(out, 1, loss);
}

static tsh_status pass(tsh_tape *tape, const tshi_node *node) {
    tsh_status status = tape->schedule ? tape->schedule->ops->passed(tape->schedule, node) : TSH_OK;
    if (status != TSH_OK) tshi_tape_fail_as(tape, status, "backward");
    return status;
}

static tsh_status node_backward(tsh_tape *tape, tshi_node *node, bool retain_graph, const tsh_tensor *loss) {
    tsh_tensor *out = node->out;
    /* Another node may add to what was complete. */
    if (tape->marked != tshi_data(out->grad)) mark(tape, NULL);
    const void *before = tape->marked;
    if (!retain_graph && !node->op->reads_output) drop_output(out, 2, loss);
    tsh_status status = node->op->backward(node);
    if (tape->marked == before) mark(tape, NULL);
    if (status != TSH_OK) {
        tshi_tape_fail(tape, status, "backward of %s: %s", node->op->name, tsh_error_message());
        return status;
    }
    status = out->retain_grad ? keep_grad(tape, out) : TSH_OK;
    grad_release(out);
    if (status == TSH_OK) status = pass(tape, node);
    if (!retain_graph) node_free(node, loss);
    return status;
}

/* The gradient that a caller hands over has memory, and dtype, shape and layouts of the loss's own gradient. */
static bool is_gradient_of(const tsh_tensor *gradient, const tsh_tensor *loss) {
    tsh_layout layout[TSH_MAX_AXES];
    tshi_gradient_layout(loss, layout);
    bool fits = gradient->dtype == loss->dtype && gradient->shape.ndim == loss->shape.ndim && gradient->storage &&
                gradient->mesh == loss->mesh;
    for (int d = 0; fits && d < loss->shape.ndim; d++) fits = gradient->shape.global[d] == loss->shape.global[d];
    for (int a = 0; fits && a < loss->mesh->axes; a++) fits = tshi_layout_equal(gradient->layout[a], layout[a]);
    return fits;
}

static tsh_status seed(tsh_tape *tape, tsh_tensor *loss, const tsh_tensor *gradient) {
    tsh_device *device = loss->mesh->device;
    char a[160], b[160];
    if (gradient && !is_gradient_of(gradient, loss)) {
        tshi_tape_fail(tape, TSH_ERR_SHAPE,
                       "backward: the gradient is %s, the loss %s: the same shape and layouts wanted (REPLICATED for "
                       "PARTIAL)",
                       tsh_tensor_describe(gradient, a, sizeof a), tsh_tensor_describe(loss, b, sizeof b));
        return tape->status;
    }
    grad_release(loss);
    double weight = tape->schedule ? tape->schedule->weight : 1;
    bool shares = gradient && weight == 1 && !loss->retain_grad;
    tsh_status status = shares ? gradient_view(loss, gradient, &loss->grad) : gradient_new(loss, &loss->grad);
    if (status != TSH_OK) {
        tshi_tape_fail_as(tape, status, "backward");
        return status;
    }
    loss->grad_stale = false;
    if (shares) return TSH_OK;
    if (gradient) {
        device->ops->elementwise.axpby(device, loss->dtype, loss->numel, weight, tshi_data(gradient), 0, NULL,
                                       tshi_data(loss->grad));
    } else {
        device->ops->copy.fill(device, loss->dtype, loss->numel, weight, tshi_data(loss->grad));
    }
    return TSH_OK;
}

static tsh_status check_loss(tsh_tape *tape, tsh_tensor *loss) {
    char text[160];
    if (tape->status != TSH_OK) return tape->status;
    int node = loss ? tshi_tape_node(tape, loss) : -1;
    if (node < 0) {
        tshi_tape_fail(tape, TSH_ERR_STATE,
                       "backward: the tape recorded nothing that leads from a leaf with a gradient to %s",
                       tsh_tensor_describe(loss, text, sizeof text));
    } else if (tape->nodes[node].used) {
        tshi_tape_fail(tape, TSH_ERR_STATE,
                       "backward: a second time over the same step (tsh_backward_config.retain_graph keeps it)");
    }
    return tape->status;
}

/* A node below the loss that an earlier backward has freed: its gradients would be lost in silence. So would the sum of
 * a leaf's gradient that another tape's schedule makes. */
static tsh_status check_inputs(tsh_tape *tape, const tshi_node *node) {
    for (int i = 0; i < node->inputs; i++) {
        const tshi_schedule *schedule = node->in[i]->schedule;
        if (schedule && schedule != tape->schedule) {
            tshi_tape_fail(tape, TSH_ERR_STATE,
                           "backward: %s takes a parameter whose gradients are summed by a "
                           "tsh_data_parallel of another tape",
                           node->op->name);
            return tape->status;
        }
        int k = tshi_tape_node(tape, node->in[i]);
        if (k < 0 || !tape->nodes[k].used) continue;
        tshi_tape_fail(tape, TSH_ERR_STATE,
                       "backward: %s stands on a part of the step that an earlier backward has freed", node->op->name);
        return tape->status;
    }
    return TSH_OK;
}

static tsh_status run_nodes(tsh_tape *tape, const tsh_tensor *loss, bool retain) {
    tsh_status status = TSH_OK;
    for (int i = loss->node; i >= 0 && status == TSH_OK; i--) {
        tshi_node *node = &tape->nodes[i];
        if (node->used) continue;
        if (!node->out->grad || node->out->grad_stale) { /* not on a way from the loss */
            status = pass(tape, node);
            continue;
        }
        status = check_inputs(tape, node);
        if (status == TSH_OK) status = node_backward(tape, node, retain, loss);
    }
    return status;
}

static tsh_status run_scheduled(tsh_tape *tape, const tsh_tensor *loss, bool retain) {
    tshi_schedule *schedule = tape->schedule;
    tsh_status status = schedule->ops->begin(schedule, loss);
    if (status != TSH_OK) {
        tshi_tape_fail_as(tape, status, "backward");
        return status;
    }
    tsh_status ran = run_nodes(tape, loss, retain);
    status = schedule->ops->end(schedule, ran);
    if (ran == TSH_OK && status != TSH_OK) tshi_tape_fail_as(tape, status, "backward");
    return status;
}

/* What a GPU's kernels have found by now; of those that still run the next step hears. */
static tsh_status check_device(tsh_tape *tape, tsh_device *device) {
    tsh_status status = device->ops->check(device);
    if (status != TSH_OK) tshi_tape_fail_as(tape, status, "backward");
    return status;
}

tsh_status tsh_backward_with(tsh_tape *tape, tsh_tensor *loss, const tsh_backward_config *config) {
    if (!tape) return tshi_tape_missing("backward");
    bool retain = config && config->retain_graph;
    tsh_status status = check_loss(tape, loss);
    tape->keeps_graph = retain;
    if (status == TSH_OK) status = seed(tape, loss, config ? config->gradient : NULL);
    if (status != TSH_OK) return status;
    status = tape->schedule ? run_scheduled(tape, loss, retain) : run_nodes(tape, loss, retain);
    if (status == TSH_OK) status = check_device(tape, loss->mesh->device);
    return status;
}

tsh_status tsh_backward(tsh_tape *tape, tsh_tensor *loss) {
    char text[160];
    if (tape && tape->status == TSH_OK && loss && tshi_shape_numel(&loss->shape) != 1) {
        tshi_tape_fail(tape, TSH_ERR_SHAPE, "backward: the loss is %s, one element is wanted",
                       tsh_tensor_describe(loss, text, sizeof text));
        return tape->status;
    }
    return tsh_backward_with(tape, loss, NULL);
}

tsh_status tsh_tensor_retain_grad(tsh_tensor *tensor) {
    if (!tensor || !tensor->requires_grad) {
        return tshi_fail(TSH_ERR_STATE, "tensor_retain_grad: a tensor that leads to a gradient is wanted");
    }
    tensor->retain_grad = true;
    return TSH_OK;
}
