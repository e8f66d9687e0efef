/* Casts to another dtype. */
#include "autograd/run/cast.h"
#include "functional/functional.h"

/* Casts to other dtypes have no gradient, and are not recorded. */
tsh_tensor *tsh_cast(tsh_tape *tape, tsh_tensor *x, tsh_dtype dtype) {
    if (!tshi_tape_ready(tape, "cast", 1, &x)) return NULL;
    if (x->dtype == dtype) return x;
    bool recording = tape->recording;
    tape->recording = recording && tshi_device_computes(x->mesh->device, dtype);
    tsh_tensor *y = tshi_apply_as(tape, &tshi_cast_op, 1, &x, &(tshi_cast_params){dtype}, &tshi_as_stored);
    tape->recording = recording;
    return y;
}

tsh_tensor *tshi_cast_as(tsh_tape *tape, tsh_tensor *y, const tsh_tensor *x) {
    if (!y || !x->gradient || !x->gradient->arithmetic) return y;
    y = tsh_cast(tape, y, tshi_gradient_computed_in(x));
    tshi_gradient *g = y ? tshi_gradient_of(y) : NULL;
    if (g) g->arithmetic = x->gradient->arithmetic;
    if (y && !g) tshi_tape_check(tape, TSH_ERR_MEMORY, "cast");
    return g ? y : NULL;
}
