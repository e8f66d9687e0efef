/* The gradients of tensors: their state, their memory, and the public calls about them. */
#include "autograd/sparse_gradient.h"
#include "autograd/tape.h"

/* --- the state of a tensor ---------------------------------------------------------------------------------------- */

void tshi_gradient_leave_lists(tsh_tensor *tensor) {
    tshi_gradient *g = tensor->gradient;
    if (g->moved_from) {
        tsh_tensor **at = &g->moved_from->gradient->moved;
        while (*at && *at != tensor) at = &(*at)->gradient->next_moved;
        if (*at) *at = g->next_moved;
    }
    for (tsh_tensor *t = g->moved; t; t = t->gradient->next_moved) t->gradient->moved_from = NULL;
    g->moved = g->next_moved = g->moved_from = NULL;
}

static void gradient_free(tsh_tensor *tensor) {
    tshi_gradient_leave_lists(tensor);
    tshi_tensor_release(tensor->gradient->value);
    tshi_tensor_release(tensor->gradient->kept);
    tshi_tensor_release(tensor->gradient->term);
    tshi_sparse_gradient_free(tensor);
    tshi_pool_give(&tensor->mesh->device->gradients, tensor->gradient);
    tensor->gradient = NULL;
}

tshi_gradient *tshi_gradient_of(tsh_tensor *tensor) {
    tsh_device *device = tensor->mesh->device;
    if (tensor->gradient) return tensor->gradient;
    tensor->gradient = tshi_pool_take(&device->gradients, &device->allocator, sizeof *tensor->gradient);
    if (tensor->gradient) tensor->gradient_free = gradient_free;
    return tensor->gradient;
}

void tshi_gradient_release_value(tshi_gradient *gradient) {
    tshi_tensor_release(gradient->value);
    gradient->value = NULL;
}

void tshi_gradient_end_step(tsh_tensor *tensor) {
    tshi_gradient *g = tensor->gradient;
    tensor->computed = tensor->taped = false;
    tensor->ended = true;
    if (!g) return;
    tshi_gradient_leave_lists(tensor);
    g->sink = NULL;
    if (!g->kept) return;
    tshi_tensor_release(g->value);
    g->value = g->kept;
    g->stale = false;
    g->kept = NULL;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

tsh_dtype tshi_gradient_dtype(const tsh_tensor *x) {
    return x->gradient && x->gradient->wide ? tshi_dtype_sum(x->dtype) : x->dtype;
}

tsh_status tshi_gradient_set_wide(tsh_tensor *leaf, bool wide) {
    char text[160];
    tshi_gradient *g = tshi_gradient_of(leaf);
    if (!g) return TSH_ERR_MEMORY;
    if (g->wide == wide) return TSH_OK;
    if (leaf->computed || g->sink) {
        return tshi_fail(TSH_ERR_STATE, "the dtype of gradients of %s is fixed: %s",
                         tsh_tensor_describe(leaf, text, sizeof text),
                         g->sink ? "it has a tsh_data_parallel" : "a tape made it");
    }
    g->wide = wide;
    tshi_gradient_release_value(g);
    tsh_tensor_zero_grad(leaf);
    return TSH_OK;
}

tsh_status tshi_gradient_new_as(const tsh_tensor *x, tsh_dtype dtype, tsh_tensor **out) {
    tsh_layout layout[TSH_MAX_AXES];
    tshi_gradient_layout(x, layout);
    tsh_memory_purpose purpose = x->computed ? TSH_MEMORY_ACTIVATIONS : TSH_MEMORY_GRADIENTS;
    tsh_memory_purpose before = tshi_device_purpose(x->mesh->device, purpose);
    tsh_status status = tshi_tensor_new(x->mesh, dtype, &x->shape, layout, out);
    x->mesh->device->purpose = before;
    return status;
}

tsh_status tshi_gradient_new(const tsh_tensor *x, tsh_tensor **out) {
    return tshi_gradient_new_as(x, tshi_gradient_dtype(x), out);
}

bool tshi_gradient_fits(const tsh_tensor *x, const tsh_tensor *tensor) {
    bool fits = tensor->mesh == x->mesh && tshi_shapes_equal(&tensor->shape, &x->shape);
    for (int a = 0; fits && a < x->mesh->axes; a++) {
        const tsh_layout *l = &x->layout[a];
        fits = tshi_layout_equal(tensor->layout[a], l->kind == TSH_KIND_PARTIAL ? TSH_REPLICATED : *l);
    }
    return fits;
}

tsh_status tshi_gradient_view(const tsh_tensor *x, const tsh_tensor *values, tsh_tensor **out) {
    tsh_layout layout[TSH_MAX_AXES];
    tshi_gradient_layout(x, layout);
    return tshi_tensor_view(values, &x->shape, layout, 0, out);
}

/* An adopted gradient shares its memory, or is the same tensor: before it is written, x's gradient moves to memory of its
 * own, with its elements unless they are stale. A leaf's is never adopted: other references to it are the program's. */
static tsh_status make_writable(const tsh_tensor *x) {
    tshi_gradient *g = x->gradient;
    tsh_tensor *old = g->value, *fresh = NULL;
    tsh_device *device = x->mesh->device;
    if (old && old->storage->references == 1 && (!x->computed || old->references == 1)) return TSH_OK;
    tsh_status status = tshi_gradient_new(x, &fresh);
    if (status != TSH_OK) return status;
    g->stale = !old || g->stale;
    if (!g->stale) device->ops->copy.within(device, tsh_tensor_local_nbytes(fresh), tshi_data(old), tshi_data(fresh));
    tshi_tensor_release(old);
    g->value = fresh;
    return TSH_OK;
}

/* A retained gradient of a copy is summed apart first. */
static bool goes_to_sink(const tsh_tensor *x) {
    const tshi_gradient *g = x->gradient;
    return g->sink && !(x->computed && g->retained);
}

static tsh_tensor *sink_memory(const tsh_tensor *x, double *beta) {
    tshi_gradient *g = x->gradient;
    tsh_tensor *memory = g->sink->ops->memory(g->sink, g->slot, x, beta);
    if (!x->computed) return memory;
    if (memory && g->value != memory) {
        tshi_tensor_release(g->value);
        g->value = tshi_tensor_retain(memory);
    }
    g->stale = false;
    return memory;
}

/* --- for the backward of operations ------------------------------------------------------------------------------- */

bool tsh_call_wants_grad(const tsh_call *call, int i) {
    return call && (unsigned)i < (unsigned)call->inputs && tshi_requires_grad(call->in[i]);
}

tsh_tensor *tsh_call_grad_out(const tsh_call *call) {
    return call && call->out && call->out->gradient ? call->out->gradient->value : NULL;
}

tshi_gradient_taker *tshi_grad_taker(const tsh_call *call, int i) {
    const tsh_tensor *x = call->in[i];
    const tshi_gradient *g = x->gradient;
    bool alone = !x->computed && !g->sink && !g->wide && g->uses == 1 && (!g->value || g->stale);
    return alone && !call->tape->keeps_graph ? g->taker : NULL;
}

/* The memory of the gradient itself. */
static tsh_tensor *sum_memory(const tsh_tensor *x, double *beta) {
    tshi_gradient *g = x->gradient;
    if (goes_to_sink(x)) return sink_memory(x, beta);
    if (tshi_sparse_gradient_spread(x) != TSH_OK || make_writable(x) != TSH_OK) return NULL;
    *beta = g->stale ? 0 : 1;
    g->stale = false;
    return g->value;
}

/* What the call has added by itself becomes part of the gradient. */
static tsh_status settle(const tsh_call *call, int i, tsh_status status) {
    tshi_gradient *g = call->in[i]->gradient;
    if (!g || !g->term) return status;
    if (status == TSH_OK) status = tshi_grad_adopt(call, i, g->term);
    tshi_tensor_release(g->term);
    g->term = NULL;
    return status;
}

static tsh_tensor *term_memory(const tsh_call *call, int i, tsh_dtype dtype, double *beta) {
    const tsh_tensor *x = call->in[i];
    tshi_gradient *g = x->gradient;
    if (g->term && g->term->dtype != dtype && settle(call, i, TSH_OK) != TSH_OK) return NULL;
    *beta = g->term ? 1 : 0;
    if (!g->term) tshi_gradient_new_as(x, dtype, &g->term);
    return g->term;
}

/* In a deterministic world each call's part of a gradient is rounded before it is added. A kernel that goes on from the
 * sum rounds otherwise, and which calls meet in one memory depends on the layouts. */
static bool adds_apart(const tsh_tensor *x) {
    const tshi_gradient *g = x->gradient;
    return x->mesh->world->deterministic && (g->term || goes_to_sink(x) || (g->value && !g->stale));
}

tsh_tensor *tshi_grad_sum(const tsh_call *call, int i, double *beta) {
    const tsh_tensor *x = call->in[i];
    return adds_apart(x) ? term_memory(call, i, tshi_gradient_dtype(x), beta) : sum_memory(x, beta);
}

tsh_tensor *tshi_grad_beta(const tsh_call *call, int i, double *beta) {
    const tsh_tensor *x = call->in[i];
    bool own = tshi_gradient_dtype(x) == x->dtype;
    return own ? tshi_grad_sum(call, i, beta) : term_memory(call, i, x->dtype, beta);
}

tsh_call *tshi_grad_maker(const tsh_call *call, int i) {
    tsh_tape *tape = call->tape;
    const tshi_gradient *g = call->in[i]->gradient;
    int maker = tshi_tape_node(tape, call->in[i]);
    bool alone = maker >= 0 && g->uses == 1 && (!g->value || g->stale);
    return alone && !g->retained && !tape->keeps_graph ? &tape->nodes[maker] : NULL;
}

/* Input i wants a gradient, and backward runs. */
static bool can_add(const tsh_call *call, int i, const char *what) {
    if (tsh_call_wants_grad(call, i) && tsh_call_grad_out(call)) return true;
    tshi_fail(call ? TSH_ERR_STATE : TSH_ERR_ARGUMENT, "%s: input %d wants no gradient here", what, i);
    return false;
}

tsh_tensor *tsh_call_grad(const tsh_call *call, int i) {
    double beta;
    if (!can_add(call, i, "call_grad")) return NULL;
    tsh_tensor *grad = tshi_grad_beta(call, i, &beta);
    if (grad && beta == 0)
        grad->mesh->device->ops->copy.zero(grad->mesh->device, tsh_tensor_local_nbytes(grad), tshi_data(grad));
    return grad;
}

/* to = beta to + gradient, which may be of another dtype. */
static tsh_status add_gradient(const tsh_tensor *gradient, double beta, tsh_tensor *to) {
    tsh_device *device = tshi_device_of(to);
    const void *from = tshi_data(gradient);
    tsh_tensor *converted = NULL;
    if (gradient->dtype != to->dtype) {
        tsh_status status = beta == 0 ? TSH_OK : tshi_tensor_scratch(to->mesh, to->dtype, to->numel, &converted);
        if (status != TSH_OK) return status;
        void *there = tshi_data(converted ? converted : to);
        device->ops->copy.convert(device, to->numel, gradient->dtype, from, to->dtype, there);
        if (beta == 0) return TSH_OK;
        from = there;
    }
    device->ops->elementwise[to->dtype].axpby(device, to->numel, 1, from, beta, tshi_data(to), tshi_data(to));
    tshi_tensor_release(converted);
    return TSH_OK;
}

tsh_status tshi_grad_adopt(const tsh_call *call, int i, tsh_tensor *gradient) {
    const tsh_tensor *x = call->in[i];
    tshi_gradient *g = x->gradient;
    bool first = !g->value || g->stale;
    /* A leaf's gradient outlives the step, in memory of its own. */
    if (first && x->computed && !goes_to_sink(x) && gradient->dtype == tshi_gradient_dtype(x)) {
        bool passed_on = gradient == tsh_call_grad_out(call) && tshi_gradient_fits(x, gradient);
        tsh_tensor *adopted = passed_on ? tshi_tensor_retain(gradient) : NULL;
        tsh_status status = passed_on ? TSH_OK : tshi_gradient_view(x, gradient, &adopted);
        if (status != TSH_OK) return status;
        tshi_tensor_release(g->value);
        g->value = adopted;
        g->stale = false;
        return TSH_OK;
    }
    double beta;
    tsh_tensor *grad = sum_memory(x, &beta);
    return grad ? add_gradient(gradient, beta, grad) : TSH_ERR_MEMORY;
}

tsh_status tsh_call_grad_adopt(const tsh_call *call, int i, tsh_tensor *gradient) {
    if (!can_add(call, i, "call_grad_adopt")) return TSH_ERR_STATE;
    bool fits = gradient && gradient->storage && gradient->numel == call->in[i]->numel && tshi_differentiable(gradient);
    if (fits) return tshi_grad_adopt(call, i, gradient);
    return tshi_fail(TSH_ERR_ARGUMENT, "call_grad_adopt: a tensor of floats of the size of input %d is wanted", i);
}

tsh_status tshi_gradient_settle(const tsh_call *call, tsh_status status) {
    for (int i = 0; i < call->inputs; i++) status = settle(call, i, status);
    return status;
}

/* --- the public calls --------------------------------------------------------------------------------------------- */

tsh_status tsh_tensor_require_grad(tsh_tensor *tensor) {
    char text[160];
    if (!tensor || tshi_tensor_is_free(tensor)) return tshi_tensor_check(tensor, "tensor_require_grad", "tensor");
    if (tensor->computed) {
        return tshi_fail(TSH_ERR_STATE, "tensor_require_grad: %s was made by a tape; a leaf is wanted",
                         tsh_tensor_describe(tensor, text, sizeof text));
    }
    tsh_status status = tshi_check_computes(tensor->mesh->device, tensor->dtype, "tensor_require_grad: the tensor");
    if (status != TSH_OK) return status;
    tshi_gradient *g = tshi_gradient_of(tensor);
    if (!g) return TSH_ERR_MEMORY;
    g->required = true;
    if (tshi_tensor_is_loaded(tensor))
        tshi_device_repurpose(tensor->mesh->device, tensor->storage->data, TSH_MEMORY_PARAMETERS);
    return TSH_OK;
}

tsh_status tsh_tensor_retain_grad(tsh_tensor *tensor) {
    if (!tensor || !tshi_requires_grad(tensor)) {
        return tshi_fail(TSH_ERR_STATE, "tensor_retain_grad: a tensor that leads to a gradient is wanted");
    }
    tensor->gradient->retained = true;
    return TSH_OK;
}

tsh_status tshi_gradient_wait(const tsh_tensor *leaf) {
    const tshi_gradient *g = leaf->gradient;
    if (!g || !g->sink || leaf->computed || !g->value || g->stale) return TSH_OK;
    return g->sink->ops->wait(g->sink, g->slot);
}

tsh_tensor *tsh_tensor_grad(const tsh_tensor *tensor) {
    const tshi_gradient *g = tensor ? tensor->gradient : NULL;
    if (g && g->kept) return g->kept;
    if (g && !g->stale && tshi_gradient_is_sparse(tensor)) {
        tshi_fail(TSH_ERR_STATE, "tensor_grad: the gradient is sparse (tsh_tensor_sparse_grad)");
        return NULL;
    }
    if (!g || !g->value || g->stale || tshi_gradient_wait(tensor) != TSH_OK) return NULL;
    return g->stale ? NULL : g->value;
}

void tsh_tensor_zero_grad(tsh_tensor *tensor) {
    tshi_gradient *g = tensor ? tensor->gradient : NULL;
    if (!g) return;
    tshi_sparse_gradient_clear(g);
    g->stale = true;
    tshi_tensor_release(g->kept);
    g->kept = NULL;
}

tsh_status tshi_pass_gradient(tsh_call *call) {
    return tshi_grad_adopt(call, 0, tsh_call_grad_out(call));
}
