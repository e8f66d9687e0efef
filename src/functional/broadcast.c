/* Operands broadcast to the output, as NumPy does: dims are aligned at the end, and a size of 1 is repeated. */
#include "functional/functional.h"

tsh_tensor *tshi_align(tsh_tape *tape, tsh_tensor *x, int ndim) {
    int64_t shape[TSH_MAX_DIMS];
    int more = ndim - x->shape.ndim;
    if (more <= 0) return more == 0 ? x : NULL;
    for (int d = 0; d < ndim; d++) shape[d] = d < more ? 1 : x->shape.global[d - more];
    return tshi_cast_as(tape, tsh_reshape(tape, x, ndim, shape), x);
}

bool tshi_broadcast_row_holds(const tsh_call *call, const tsh_rule *row, int dim) {
    int64_t wide = 1;
    bool holds = true;
    for (int i = 0; i < call->inputs; i++) {
        if (call->in[i]->shape.global[dim] != 1) wide = call->in[i]->shape.global[dim];
    }
    for (int i = 0; i < call->inputs; i++)
        holds = holds && (row->in[i] == TSH_AS_ANY) == (call->in[i]->shape.global[dim] == wide);
    return holds;
}

/* True when the next outer dim, with these strides, continues the last run. */
static bool goes_on(const tshi_broadcast *o, int64_t x, int64_t y) {
    int last = o->runs - 1;
    return o->runs > 0 && x == o->n[last] * o->x[last] && y == o->n[last] * o->y[last];
}

tshi_broadcast tshi_broadcast_of(const tsh_shape *out, const tsh_shape *x, const tsh_shape *y) {
    _Static_assert(TSHI_BROADCAST_RUNS == TSH_MAX_DIMS, "a dim is a run at most");
    tshi_broadcast o = {0};
    int64_t step_x = 1, step_y = 1;
    for (int d = out->ndim - 1; d >= 0; d--) {
        int64_t stride_x = x->local[d] == 1 ? 0 : step_x, stride_y = y->local[d] == 1 ? 0 : step_y;
        step_x *= x->local[d];
        step_y *= y->local[d];
        if (out->local[d] == 1) continue;
        if (goes_on(&o, stride_x, stride_y)) {
            o.n[o.runs - 1] *= out->local[d];
            continue;
        }
        o.n[o.runs] = out->local[d];
        o.x[o.runs] = stride_x;
        o.y[o.runs] = stride_y;
        o.runs++;
    }
    return o.runs > 0 ? o : (tshi_broadcast){1, {1}, {1}, {1}};
}
