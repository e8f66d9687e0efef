#include "autograd/run/memo.h"

tsh_tensor *tshi_memo_find(const tsh_tape *tape, const tsh_tensor *x, tsh_dtype dtype, const tsh_mesh *mesh,
                           const tsh_layout *layout) {
    bool recorded = tape->recording && tshi_requires_grad(x);
    if (!x->gradient || x->gradient->generation != tape->generation) return NULL;
    for (tsh_tensor *t = x->gradient->moved; t; t = t->gradient->next_moved) {
        bool same = t->dtype == dtype && t->mesh == mesh && tshi_layouts_equal(mesh->axes, t->layout, layout);
        same = same && t->gradient->moved_version == tshi_tensor_version(x);
        if (!same || tshi_requires_grad(t) != recorded) continue;
        if (t->storage || tshi_tape_dropped(tape, t)) return t;
    }
    return NULL;
}

tsh_status tshi_memo_add(const tsh_tape *tape, tsh_tensor *x, tsh_tensor *made) {
    tshi_gradient *from = tshi_gradient_of(x), *to = from ? tshi_gradient_of(made) : NULL;
    if (!to) return TSH_ERR_MEMORY;
    if (from->generation != tape->generation) {
        tshi_gradient_leave_lists(x);
        from->generation = tape->generation;
    }
    to->next_moved = from->moved;
    to->moved_from = x;
    to->moved_version = tshi_tensor_version(x);
    to->arithmetic = from->arithmetic;
    from->moved = made;
    return TSH_OK;
}
