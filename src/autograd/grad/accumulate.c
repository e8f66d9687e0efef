/* Adding to gradients in backward: to memory, by adoption, by rows. */
#include "autograd/grad/retained.h"
#include "autograd/grad/sparse.h"
#include "autograd/tape.h"

/* An adopted gradient shares memory with another tensor, or is that tensor: before a write, x's gradient gets its own
 * memory, with its elements unless they are stale. A leaf's gradient is never adopted: further references to it are the
 * program's. */
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

/* A retained gradient of a copy is first summed separately. */
static bool goes_to_schedule(const tsh_tensor *x) {
    return tshi_gradient_schedule_of(x) && !tshi_gradient_is_retained(x->gradient);
}

static tsh_tensor *summed_memory(const tsh_tensor *x, double *beta) {
    tshi_gradient *g = x->gradient;
    tsh_tensor *memory = g->target->ops->memory(g->target, x, beta);
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

/* True when there is no gradient yet. */
static bool is_first(const tshi_gradient *g) {
    return !g->value || g->stale;
}

tshi_gradient_target *tshi_grad_takes_rows(const tsh_call *call, int i) {
    const tsh_tensor *x = call->in[i];
    const tshi_gradient *g = x->gradient;
    bool alone = !x->computed && !g->wide && g->uses == 1 && is_first(g) && !call->tape->keeps_graph;
    tshi_gradient_target *target = alone ? g->target : NULL;
    while (target && !target->ops->take_rows) target = target->ops->memory ? NULL : target->under;
    return target;
}

tshi_gradient_target *tshi_grad_adds_rows(const tsh_call *call, int i) {
    const tsh_tensor *x = call->in[i];
    tshi_gradient_target *target = x->computed ? NULL : x->gradient->target;
    while (target && !target->ops->add_rows) target = target->ops->memory ? NULL : target->under;
    return target && (is_first(x->gradient) || target->ops->has_rows(target)) ? target : NULL;
}

tsh_status tshi_grad_add_rows(const tsh_call *call, int i, const tsh_tensor *ids, int64_t start, int64_t padding,
                              const tsh_tensor *values) {
    tshi_gradient_target *target = tshi_grad_adds_rows(call, i);
    return target->ops->add_rows(target, call->in[i], ids, start, padding, values, tshi_tensor_sole_owner(values));
}

/* The memory of the gradient itself. */
static tsh_tensor *sum_memory(const tsh_tensor *x, double *beta) {
    tshi_gradient *g = x->gradient;
    if (goes_to_schedule(x)) return summed_memory(x, beta);
    if (tshi_sparse_gradient_spread(x) != TSH_OK || make_writable(x) != TSH_OK) return NULL;
    *beta = g->stale ? 0 : 1;
    g->stale = false;
    return g->value;
}

/* The running call's separate term of input i's gradient; NULL with the message set. */
static tsh_tensor **call_term(const tsh_call *call, int i) {
    tsh_tape *tape = call->tape;
    int first = 0;
    tsh_status status = tshi_grow(&tape->world->allocator, (void **)&tape->terms, &tape->term_capacity, call->inputs,
                                  sizeof *tape->terms);
    if (status != TSH_OK) return NULL;
    while (call->in[first] != call->in[i]) first++; /* a tensor that is input twice has one term */
    return &tape->terms[first];
}

static tsh_status settle_term(const tsh_call *call, int i, tsh_status status) {
    tsh_tensor **term = &call->tape->terms[i];
    if (!*term) return status;
    if (status == TSH_OK) status = tshi_grad_adopt(call, i, *term);
    tshi_tensor_release(*term);
    *term = NULL;
    return status;
}

static tsh_tensor *term_memory(const tsh_call *call, int i, tsh_dtype dtype, double *beta) {
    tsh_tensor **term = call_term(call, i);
    if (!term) return NULL;
    if (*term && (*term)->dtype != dtype && settle_term(call, (int)(term - call->tape->terms), TSH_OK) != TSH_OK)
        return NULL;
    *beta = *term ? 1 : 0;
    if (!*term) tshi_gradient_new_as(call->in[i], dtype, term);
    return *term;
}

static bool has_term(const tsh_call *call, int i) {
    for (int k = 0; k < call->inputs && k < call->tape->term_capacity; k++) {
        if (call->tape->terms[k] && call->in[k] == call->in[i]) return true;
    }
    return false;
}

/* In a deterministic world each call's term of a gradient is rounded before it is added: a kernel that continues the
 * sum rounds differently, and which calls share memory depends on the layouts. */
static bool adds_apart(const tsh_call *call, int i) {
    const tsh_tensor *x = call->in[i];
    return x->mesh->world->deterministic && (!is_first(x->gradient) || goes_to_schedule(x) || has_term(call, i));
}

tsh_tensor *tshi_grad_sum(const tsh_call *call, int i, double *beta) {
    const tsh_tensor *x = call->in[i];
    return adds_apart(call, i) ? term_memory(call, i, tshi_gradient_dtype(x), beta) : sum_memory(x, beta);
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
    bool alone = maker >= 0 && g->uses == 1 && is_first(g);
    return alone && !tshi_gradient_is_retained(g) && !tape->keeps_graph ? &tape->nodes[maker] : NULL;
}

/* True when input i wants a gradient and backward is running. */
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

/* to = beta to + gradient, which may have another dtype. */
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
    /* A leaf's gradient outlives the step, so it needs its own memory. */
    if (is_first(g) && x->computed && !goes_to_schedule(x) && gradient->dtype == tshi_gradient_dtype(x)) {
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

tsh_status tshi_grad_settle(const tsh_call *call, tsh_status status) {
    for (int i = 0; i < call->inputs && i < call->tape->term_capacity; i++) status = settle_term(call, i, status);
    return status;
}

tsh_status tshi_grad_leave_to_schedule(const tsh_call *call) {
    double beta;
    const tsh_tensor *dy = tsh_call_grad_out(call);
    tshi_gradient_target *target = tshi_gradient_summing(call->out);
    tsh_tensor *dx = target->ops->memory(target, call->out, &beta);
    if (!dx || dx == dy) return dx ? TSH_OK : TSH_ERR_MEMORY;
    return add_gradient(dy, beta, dx);
}

tsh_status tshi_pass_gradient(tsh_call *call) {
    return tshi_grad_adopt(call, 0, tsh_call_grad_out(call));
}
