/* One call of an operation, from its inputs as they come to a recorded output. */
#include "autograd/apply.h"
#include "autograd/cast.h"
#include "autograd/rules.h"
#include "autograd/run/invoke.h"
#include "autograd/transition.h"
#include "autograd/whole.h"

#include <string.h>

/* The axes along which some input is LOCAL, a bit each. */
static unsigned local_axes(const tsh_call *call) {
    unsigned axes = 0;
    for (int i = 0; i < call->inputs; i++) {
        const tsh_tensor *x = call->in[i];
        for (int a = 0; a < x->mesh->axes; a++) {
            if (x->layout[a].kind == TSH_KIND_LOCAL) axes |= 1u << a;
        }
    }
    return axes;
}

/* Brings an input to the layouts that the rows want. A leaf goes first along the axes of its target, which belongs to
 * the copies alone that differ from the leaf along no other axis. So does an input beside a LOCAL one, along that one's
 * axes: sizes there may differ between ranks, and with them what the rows want along other axes, so the ranks of such
 * an axis have nothing in common but the input as it came. */
static tsh_tensor *bring(tsh_tape *tape, const char *what, tsh_tensor *x, const tsh_layout need[TSH_MAX_AXES],
                         unsigned local) {
    if (tshi_layouts_equal(x->mesh->axes, x->layout, need)) return x;
    unsigned sums = tshi_gradient_summed_axes(x);
    for (int a = 0; x && (sums | local) >> a; a++) {
        bool divides = sums >> a & 1u && tshi_gradient_divides(x->layout[a], need[a]);
        bool becomes_local = local >> a & 1u && need[a].kind == TSH_KIND_LOCAL && x->layout[a].kind != TSH_KIND_LOCAL;
        if (divides || becomes_local) x = tshi_transit(tape, x, a, need[a], false);
    }
    return x ? tshi_to_layouts(tape, what, x, need, false) : NULL;
}

/* Resolves a negative dim of the call. */
static tsh_status resolve_dim(tsh_call *call) {
    const tsh_tensor *x = call->in[0];
    int *dim = call->params, d = *dim < 0 ? *dim + x->shape.ndim : *dim;
    char text[160];
    if (d < 0 || d >= x->shape.ndim) {
        return tshi_fail(TSH_ERR_SHAPE, "dim %d of %s does not exist", *dim, tsh_tensor_describe(x, text, sizeof text));
    }
    *dim = d;
    return TSH_OK;
}

/* The call wants an output in other layouts than its rows give it. */
static bool wants_output(const tsh_call *call) {
    return call->want && call->want->axis >= 0;
}

/* The layouts of the rows' output, as the call wants it. */
static tsh_status wanted_output(const tsh_call *call, const tsh_shape *shape, const tshi_rule_rows *rows,
                                tsh_layout layout[TSH_MAX_AXES]) {
    tsh_shape wanted = *shape;
    memcpy(layout, rows->out, sizeof rows->out);
    layout[call->want->axis] = call->want->out;
    return tshi_shape_settle(call->in[0]->mesh, call->want->axis, &wanted, layout);
}

/* The call with inputs in the layouts of the rows, then its output, which nothing uses yet, in the layouts `out`. */
static tsh_tensor *run(tsh_call *call, tsh_dtype dtype, const tsh_shape *shape, const tshi_rule_rows *rows,
                       const tsh_layout out[TSH_MAX_AXES]) {
    unsigned local = rows->stay ? 0 : local_axes(call);
    for (int i = 0; !rows->stay && i < call->inputs; i++) {
        tsh_layout need[TSH_MAX_AXES];
        tsh_status status = tshi_rules_need(call, rows, i, need);
        if (status != TSH_OK) return tshi_tape_fail_as(call->tape, status, call->op->name);
        call->in[i] = bring(call->tape, call->op->name, call->in[i], need, local);
        if (!call->in[i]) return NULL;
    }
    tsh_tensor *y = tshi_call_run(call, dtype, shape, rows->out, call->op->views ? call->in[0] : NULL);
    return y && wants_output(call) ? tshi_to_layouts(call->tape, call->op->name, y, out, true) : y;
}

tsh_tensor *tshi_tape_apply(tsh_tape *tape, const tsh_call *proto) {
    tsh_call call = *proto;
    tsh_dtype dtype = TSH_FLOAT32;
    tsh_shape shape = {0};
    tshi_rule_rows rows;
    tsh_layout wanted[TSH_MAX_AXES];
    const tsh_layout *out = rows.out;
    if (!tshi_tape_ready(tape, call.op->name, call.inputs, call.in)) return NULL;
    call.tape = tape;
    call.in = tshi_tape_copy(tape, proto->in, (size_t)call.inputs, sizeof *call.in);
    call.in_step = true;
    bool casts = false;
    for (int i = 0; call.in && i < call.inputs; i++) {
        call.in[i] = tshi_gradient_whole(call.in[i]);
        casts = casts || (call.in[i]->gradient && call.in[i]->gradient->arithmetic);
    }
    tsh_status status = !call.in ? TSH_ERR_MEMORY : casts ? tshi_cast_inputs(&call) : TSH_OK;
    if (status == TSH_OK && call.op->has_dim) status = resolve_dim(&call);
    if (status == TSH_OK) status = tshi_invoke_shape(&call, &dtype, &shape);
    if (status == TSH_OK) status = tshi_rules_choose(&call, &(tshi_output){dtype, &shape}, &rows);
    if (status == TSH_OK) status = tshi_shape_resolve(call.in[0]->mesh, &shape, rows.out);
    if (status == TSH_OK && wants_output(&call)) {
        status = wanted_output(&call, &shape, &rows, wanted);
        out = wanted;
    }
    if (status != TSH_OK) return tshi_tape_fail_as(tape, status, call.op->name);
    return tape->world->deterministic && tshi_whole_wanted(&call, &rows)
               ? tshi_whole_run(&call, dtype, &shape, &rows, out)
               : run(&call, dtype, &shape, &rows, out);
}
