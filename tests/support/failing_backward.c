#include "support/failing_backward.h"
#include "autograd/op.h"
#include "autograd/tape.h"
#include "dist/world.h"

#include <string.h>

static tsh_status forward(tsh_call *call) {
    const tsh_tensor *x = tsh_call_input(call, 0);
    tsh_tensor *y = tsh_call_output(call);
    if (tsh_tensor_local_nbytes(y)) memcpy(tsh_tensor_data(y), tsh_tensor_data(x), tsh_tensor_local_nbytes(y));
    return TSH_OK;
}

/* The second input is x once more: in a deterministic world its term of x's gradient has memory of its own. */
static tsh_status backward(tsh_call *call) {
    const int *rank = tsh_call_params(call);
    tsh_status status = tsh_call_grad_adopt(call, 0, tsh_call_grad_out(call));
    tsh_tensor *term = status == TSH_OK ? tsh_call_grad(call, 1) : NULL;
    if (!term) return status == TSH_OK ? TSH_ERR_MEMORY : status;
    if (*rank >= 0 && *rank != call->tape->world->rank) return TSH_OK;
    if (tsh_tensor_local_nbytes(term)) memset(tsh_tensor_data(term), 0x41, tsh_tensor_local_nbytes(term));
    return tsh_call_fail(call, TSH_ERR_STATE, "it was asked to");
}

static const tsh_rule rules[] = {
    {{TSH_AS_R, TSH_AS_R}, TSH_AS_R}, {{TSH_AS_ANY, TSH_AS_ANY}, TSH_AS_ANY}, {{TSH_AS_P, TSH_AS_P}, TSH_AS_P},
    {{TSH_AS_L, TSH_AS_L}, TSH_AS_L}, {{TSH_ROW_END}, TSH_ROW_END},
};

static const tsh_op op = {.name = "fails_in_backward",
                          .rules = rules,
                          .forward = forward,
                          .backward = backward,
                          .params_size = sizeof(int),
                          .by_element = true,
                          .inputs = 2};

tsh_tensor *tshi_test_fail_in_backward(tsh_tape *tape, tsh_tensor *x, int rank) {
    tsh_tensor *in[] = {x, x};
    return tsh_apply(tape, &op, 2, in, &rank);
}
