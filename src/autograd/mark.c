/* For evaluation: frees tensors before their step ends. */
#include "autograd/tape.h"

tsh_mark tsh_tape_mark(const tsh_tape *tape) {
    return tape ? (tsh_mark){tape->generation, tape->owned_count, tape->node_count} : (tsh_mark){0};
}

tsh_tensor *tsh_tape_free_since(tsh_tape *tape, tsh_mark mark, tsh_tensor *keep) {
    if (!tshi_tape_ready(tape, "tape_free_since", 1, &keep)) return NULL;
    if (mark.step != tape->generation || mark.made < 0)
        return tshi_tape_fail(tape, TSH_ERR_STATE, "tape_free_since: the mark is of another step or another tape");
    int kept = mark.made;
    for (int i = mark.made; i < tape->owned_count && !tape->recording; i++) {
        tsh_tensor *t = tape->owned[i];
        if (t == keep || t->computed) {
            tape->owned[kept++] = t;
        } else {
            tshi_gradient_end_step(t);
            tshi_tensor_release(t);
        }
    }
    if (!tape->recording && kept < tape->owned_count) tape->owned_count = kept;
    return keep;
}
