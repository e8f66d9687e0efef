/* Box exchanges as an operation, whose backward is the reverse exchange of the gradient. */
#include "autograd/run/exchange.h"
#include "autograd/run/call.h"
#include "dist/collectives/redistribute.h"

#include <string.h>

typedef struct exchange_params {
    tsh_group *group; /* of all ranks of both meshes, or NULL */
    tshi_exchange forward, backward;
} exchange_params;

/* The first of the ranks that share a SHARED_OWN unit keeps the gradient; the others get zeros. */
static void keep_first(const tsh_tensor *x, tsh_tensor *dx) {
    for (int a = 0; a < x->mesh->axes; a++) {
        const tshi_axis *axis = &x->mesh->axis[a];
        int first = axis->index;
        if (x->layout[a].sharing == TSH_SHARED_OWN)
            tshi_layout_sharers(&x->layout[a], tshi_axis_parts(axis), axis->index, &first);
        if (first == axis->index) continue;
        tshi_device_of(dx)->ops->copy.zero(tshi_device_of(dx), tsh_tensor_local_nbytes(dx), tshi_data(dx));
    }
}

static tsh_status exchange_forward(tsh_call *call) {
    const exchange_params *p = call->params;
    return tshi_exchange_run(p->group, &p->forward, call->in[0], call->out);
}

static tsh_status exchange_backward(tsh_call *call) {
    const exchange_params *p = call->params;
    tsh_tensor *dx;
    tsh_status status = tshi_gradient_new_as(call->in[0], tsh_call_grad_out(call)->dtype, &dx);
    if (status != TSH_OK) return status;
    status = tshi_exchange_run(p->group, &p->backward, tsh_call_grad_out(call), dx);
    keep_first(call->in[0], dx);
    if (status == TSH_OK) status = tshi_grad_adopt(call, 0, dx);
    tshi_tensor_release(dx);
    return status;
}

static const tsh_op exchange_op = {.name = "redistribute",
                                   .forward = exchange_forward,
                                   .backward = exchange_backward,
                                   .params_size = sizeof(exchange_params),
                                   .repeats = true,
                                   .reads_no_input = true};

/* True when every rank of b is in a. */
static bool has_ranks_of(const tsh_mesh *a, const tsh_mesh *b) {
    for (int i = 0; i < b->members; i++) {
        if (tsh_group_rank_of(a->group, b->ranks[i]) < 0) return false;
    }
    return true;
}

static tsh_group *common_group(const tsh_mesh *from, const tsh_mesh *to) {
    if (from == to || has_ranks_of(from, to)) return from->group;
    return has_ranks_of(to, from) ? to->group : NULL;
}

tsh_tensor *tshi_exchange_apply(tsh_tape *tape, tsh_tensor *x, const tshi_plan_step *step) {
    exchange_params params = {.group = common_group(x->mesh, step->mesh),
                              .forward = {.ndim = step->shape.ndim,
                                          .from = tshi_tensor_placement(x),
                                          .to = tshi_mesh_placement(step->mesh, step->layout)}};
    memcpy(params.forward.shape, step->shape.global, sizeof params.forward.shape);
    tshi_exchange_reverse(&params.forward, &params.backward);
    for (int a = 0; a < x->mesh->axes;
         a++) { /* one copy of a shared value is sent, even where each rank uses its own */
        tsh_layout *l = &params.forward.from.layout[a];
        if (l->sharing == TSH_SHARED_OWN) l->sharing = TSH_SHARED;
    }
    tsh_call call = {.tape = tape, .op = &exchange_op, .inputs = 1, .in = &x, .params = &params};
    return tshi_call_run(&call, step, NULL);
}
