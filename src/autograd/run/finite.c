/* Looks for functions whose results have a NaN or an infinity. */
#include "autograd/run/finite.h"

/* Fails where x has one: "WHICH float64 [5,7] has a NaN; ...". */
static tsh_status fail_if(tshi_strange strange, const tsh_tensor *x, const char *which) {
    bool found = false;
    const char *layer = tshi_device_of(x)->place.layer;
    tsh_status status = tshi_tensor_look_for(strange, x, &found);
    if (status != TSH_OK || !found) return status;
    return tshi_fail(TSH_ERR_RANGE, "%s, %s, has %s; the parameter used last is %s", which, TSHI_TENSOR_TEXT(x),
                     strange == TSHI_NAN ? "a NaN" : "an infinity or a NaN", layer ? layer : "none");
}

tsh_status tshi_call_check_result(const tsh_call *call) {
    return fail_if(TSHI_NAN, call->out, "the result");
}

tsh_status tshi_call_check_gradients(const tsh_call *call) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < call->inputs && status == TSH_OK; i++) {
        const tshi_gradient *g = call->in[i]->gradient;
        if (g && g->required && g->value && !g->stale) status = fail_if(TSHI_NAN, g->value, "a gradient of an input");
    }
    return status;
}

/* --- a whole step ------------------------------------------------------------------------------------------------- */

static tsh_status check_call(const tsh_call *call) {
    const char *name = NULL;
    bool found = false;
    for (int i = 0; i < call->inputs; i++) {
        const tsh_tensor *x = call->in[i];
        if (x->name) name = x->name;
        tsh_status status = x->computed ? TSH_OK : tshi_tensor_look_for(TSHI_NOT_FINITE, x, &found);
        if (status != TSH_OK) return status;
        if (found)
            return tshi_fail(TSH_ERR_RANGE, "check_finite: input %d of %s, %s%s%s, has an infinity or a NaN", i,
                             call->op->name, name ? name : "", name ? ", " : "", TSHI_TENSOR_TEXT(x));
    }
    tsh_status status = tshi_tensor_look_for(TSHI_NOT_FINITE, call->out, &found);
    if (status != TSH_OK || !found) return status;
    return tshi_fail(TSH_ERR_RANGE, "check_finite: the result of %s%s%s, %s, has an infinity or a NaN", call->op->name,
                     name ? " with " : "", name ? name : "", TSHI_TENSOR_TEXT(call->out));
}

tsh_status tsh_tape_check_finite(const tsh_tape *tape) {
    tsh_status status = tape ? TSH_OK : tshi_fail(TSH_ERR_ARGUMENT, "check_finite: a tape is required");
    for (int i = 0; status == TSH_OK && i < tape->node_count; i++) {
        if (!tape->nodes[i].flags.used) status = check_call(&tape->nodes[i]);
    }
    return status;
}
