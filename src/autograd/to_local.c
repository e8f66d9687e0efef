/* tsh_to_local: a rank's part of a global tensor as a LOCAL tensor. */
#include "autograd/redistribute.h"
#include "autograd/run/call.h"

#include <string.h>

typedef struct to_local_params {
    tsh_layout gradient[TSH_MAX_AXES]; /* PARTIAL: ranks' gradients are terms; else parts or replicas */
} to_local_params;

static tsh_status to_local_backward(tsh_call *call) {
    const to_local_params *p = call->params;
    const tsh_tensor *x = call->in[0], *dy = tsh_call_grad_out(call);
    tsh_tensor *dx;
    tsh_status status = tshi_gradient_new_as(x, dy->dtype, &dx);
    if (status != TSH_OK) return status;
    tsh_device *device = tshi_device_of(x);
    device->ops->copy.within(device, tsh_tensor_local_nbytes(dx), tshi_data(dy), tshi_data(dx));
    for (int a = 0; status == TSH_OK && a < x->mesh->axes; a++) {
        if (p->gradient[a].kind == TSH_KIND_PARTIAL)
            status = tsh_all_reduce(x->mesh->axis[a].group, dx, TSH_REDUCE_SUM);
    }
    if (status == TSH_OK) status = tshi_grad_adopt(call, 0, dx);
    tshi_tensor_release(dx);
    return status;
}

static const tsh_op to_local_op = {.name = "to_local",
                                   .backward = to_local_backward,
                                   .params_size = sizeof(to_local_params),
                                   .views = true,
                                   .reads_no_input = true};

/* The gradient of the local part is a term or a replica along axes that do not split the tensor, and split as the
 * tensor along others. `gradient`: the program's layouts, or the tensor's. */
static tsh_status choose_gradient(const tsh_tensor *x, bool named, tsh_layout gradient[TSH_MAX_AXES]) {
    tsh_shape shape = x->shape;
    tsh_status status = tshi_shape_resolve(x->mesh, &shape, gradient);
    for (int a = 0; status == TSH_OK && a < x->mesh->axes; a++) {
        tsh_layout have = x->layout[a];
        if (have.kind == TSH_KIND_SHARD || have.kind == TSH_KIND_LOCAL) {
            if (tshi_layout_equal(gradient[a], have)) continue;
        } else {
            bool whole = have.kind == TSH_KIND_REPLICATED;
            if (!named) gradient[a] = whole ? TSH_PARTIAL : TSH_REPLICATED;
            if (gradient[a].kind == TSH_KIND_PARTIAL || gradient[a].kind == TSH_KIND_REPLICATED) continue;
        }
        status =
            tshi_fail(TSH_ERR_LAYOUT, "the gradient of a local part of %s cannot be %s along axis %s",
                      TSHI_TENSOR_TEXT(x), TSHI_LAYOUT_TEXT(gradient[a], &x->mesh->axis[a]), x->mesh->axis[a].name);
    }
    return status;
}

tsh_tensor *tsh_to_local(tsh_tape *tape, tsh_tensor *x, const tsh_layout *layouts) {
    to_local_params params = {{{0}}};
    if (!tshi_tape_ready(tape, "to_local", 1, &x)) return NULL;
    x = tshi_gradient_whole(x);
    /* ranks that share a unit each use it in their own way */
    for (int a = 0; x && !layouts && a < x->mesh->axes; a++) {
        tsh_layout own = x->layout[a];
        if (own.sharing == TSH_SHARED) own.sharing = TSH_SHARED_OWN;
        x = tshi_transit(tape, "redistribute", x, a, own);
    }
    if (!x) return NULL;
    memcpy(params.gradient, layouts ? layouts : x->layout, sizeof *layouts * (size_t)x->mesh->axes);
    tsh_status status = choose_gradient(x, layouts != NULL, params.gradient);
    if (tshi_tape_check(tape, status, "to_local") != TSH_OK) return NULL;
    tshi_plan_step step = tshi_plan_start(x, 0);
    memcpy(step.shape.global, step.shape.local, sizeof step.shape.global);
    memcpy(step.layout, tshi_all_local, sizeof step.layout);
    tsh_call call = {.tape = tape, .op = &to_local_op, .inputs = 1, .in = &x, .params = &params};
    return tshi_call_run(&call, &step, x);
}
