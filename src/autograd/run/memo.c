#include "autograd/run/memo.h"

tsh_tensor *tshi_memo_find(const tsh_tape *tape, const tsh_tensor *x, tsh_dtype dtype, const tsh_mesh *mesh,
                           const tsh_layout *layout) {
    bool recorded = tape->recording && tshi_requires_grad(x);
    if (!x->gradient || x->gradient->generation != tape->generation) return NULL;
    for (const tshi_memo *m = x->gradient->memo ? x->gradient->memo->made : NULL; m; m = m->next) {
        tsh_tensor *t = m->tensor;
        bool same = t->dtype == dtype && t->mesh == mesh && tshi_layouts_equal(mesh->axes, t->layout, layout);
        same = same && m->origin_version == tshi_tensor_version(x);
        if (!same || tshi_requires_grad(t) != recorded) continue;
        if (t->storage || tshi_tape_dropped(tape, t)) return t;
    }
    return NULL;
}

static tshi_memo *memo_of(tsh_tape *tape, tsh_tensor *tensor) {
    tshi_gradient *g = tshi_gradient_of(tensor);
    if (!g) return NULL;
    if (g->generation != tape->generation) tshi_gradient_forget_memo(tensor);
    g->generation = tape->generation;
    if (g->memo) return g->memo;
    const tshi_memo memo = {.tensor = tensor};
    g->memo = tshi_tape_copy(tape, &memo, 1, sizeof memo);
    return g->memo;
}

tsh_status tshi_memo_add(tsh_tape *tape, tsh_tensor *x, tsh_tensor *made) {
    /* A failure leaves no memo without others in that of x, which may outlive the step. */
    tshi_memo *to = memo_of(tape, made), *from = to ? memo_of(tape, x) : NULL;
    if (!from) return TSH_ERR_MEMORY;
    to->next = from->made;
    to->origin = from;
    to->origin_version = tshi_tensor_version(x);
    made->gradient->arithmetic = x->gradient->arithmetic;
    from->made = to;
    return TSH_OK;
}
