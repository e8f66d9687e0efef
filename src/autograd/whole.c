/* Determinism: calls that every rank makes on whole tensors. Values move between layouts without sums of more than one
 * term that is not zero: what has been computed whole is sliced, or is the first rank's term of a sum. */
#include "autograd/whole.h"
#include "autograd/call.h"
#include "autograd/transition.h"

#include <string.h>

static bool any_local(const tsh_call *call, int axis) {
    for (int i = 0; i < call->inputs; i++) {
        if (call->in[i]->layout[axis].kind == TSH_KIND_LOCAL) return true;
    }
    return false;
}

/* The gradient of an input that is used whole beside parts is a sum over ranks. */
static bool sums_gradients(const tsh_rule *row) {
    for (int k = 0; k < 4 && row->in[k] != TSH_ROW_END; k++) {
        if (row->in[k] == TSH_AS_L || row->in[k] == TSH_AS_COPY) return true;
    }
    return false;
}

/* The gradient of an input that is repeated is a sum, whose bits depend on the sizes of a rank's part. */
static bool sums_repeats(const tsh_call *call) {
    bool repeats = false;
    for (int i = 0; i < call->inputs; i++) {
        const tsh_shape *x = &call->in[i]->shape;
        for (int k = 0; k < call->inputs && tshi_requires_grad(call->in[i]); k++) {
            const tsh_shape *y = &call->in[k]->shape;
            for (int d = 0; x->ndim == y->ndim && d < x->ndim; d++) repeats = repeats || x->global[d] < y->global[d];
        }
    }
    return repeats && tshi_call_records(call);
}

bool tshi_whole_wanted(const tsh_call *call, const tshi_rule_rows *rows) {
    const tsh_mesh *mesh = call->in[0]->mesh;
    bool wanted = !call->op->by_element || sums_repeats(call);
    for (int a = 0; a < mesh->axes && !wanted; a++) wanted = sums_gradients(rows->row[a]) && !any_local(call, a);
    return wanted;
}

/* --- copies of inputs --------------------------------------------------------------------------------------------- */

static const tshi_engine_op copy_engine = {.moves = true};

static const tsh_op copy_op = {
    .name = "whole", .backward = tshi_pass_gradient, .views = true, .reads_no_input = true, .engine = &copy_engine};

/* Input i, as a tensor that no other call has, in these layouts. */
static tsh_tensor *whole_input(const tsh_call *call, int i, const tsh_layout need[TSH_MAX_AXES]) {
    tsh_tensor *x = call->in[i];
    tsh_call copy = {.tape = call->tape, .op = &copy_op, .inputs = 1, .in = &x};
    if (tshi_call_records(&copy)) x = tshi_call_run(&copy, x->dtype, &x->shape, x->layout, x);
    if (x && x->computed && x != call->in[i]) {
        x->gradient->wide = call->in[i]->gradient->wide;
        x->gradient->arithmetic = call->in[i]->gradient->arithmetic;
    }
    return x ? tshi_to_layouts(call->tape, call->op->name, x, need, false) : NULL;
}

tsh_tensor *tshi_whole_run(tsh_call *call, tsh_dtype dtype, const tsh_shape *shape, const tshi_rule_rows *rows,
                           const tsh_layout out[TSH_MAX_AXES]) {
    const tsh_mesh *mesh = call->in[0]->mesh;
    tsh_shape whole = *shape;
    tsh_layout layout[TSH_MAX_AXES], need[TSH_MAX_AXES];
    bool local[TSH_MAX_AXES] = {false};
    memcpy(layout, rows->out, sizeof layout);
    for (int a = 0; a < mesh->axes; a++) {
        local[a] = any_local(call, a);
        if (!local[a]) layout[a] = TSH_REPLICATED;
    }
    tsh_status status = tshi_shape_resolve(mesh, &whole, layout);
    for (int i = call->inputs - 1; i >= 0 && status == TSH_OK; i--) {
        tsh_shape part = call->in[i]->shape;
        status = tshi_rules_need(call, rows, i, need);
        for (int a = 0; a < mesh->axes; a++) {
            if (!local[a]) need[a] = TSH_REPLICATED;
        }
        if (status == TSH_OK) status = tshi_shape_resolve(mesh, &part, need);
        if (status != TSH_OK) break;
        call->in[i] = whole_input(call, i, need);
        if (!call->in[i]) return NULL;
    }
    if (status != TSH_OK) return tshi_tape_fail_as(call->tape, status, call->op->name);
    tsh_tensor *y = tshi_call_run(call, dtype, &whole, layout, call->op->views ? call->in[0] : NULL);
    return y ? tshi_to_layouts(call->tape, call->op->name, y, out, true) : NULL;
}
