#include "autograd/run/cast.h"
#include "autograd/run/call.h"

const tshi_want tshi_as_stored = {.as_stored = true, .axis = -1};

static bool is_real(tsh_dtype dtype) {
    return (int)dtype >= 0 && dtype < TSH_DTYPE_COUNT && !tshi_dtype_is_complex(dtype);
}

static tsh_status cast_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_tensor *x = call->in[0];
    *dtype = ((const tshi_cast_params *)call->params)->dtype;
    *out = x->shape;
    if (is_real(*dtype) && is_real(x->dtype)) return TSH_OK;
    return tshi_fail(TSH_ERR_DTYPE, "%s cannot become %s: real dtypes are cast", tsh_dtype_name(x->dtype),
                     tsh_dtype_name(*dtype));
}

static tsh_status cast_forward(tsh_call *call) {
    const tsh_tensor *from = call->in[0], *to = call->out;
    tsh_device *device = tshi_device_of(from);
    device->ops->copy.convert(device, from->numel, from->dtype, tshi_data(from), to->dtype, tshi_data(to));
    return TSH_OK;
}

static const tsh_rule cast_rules[] = {
    {{TSH_AS_R}, TSH_AS_R}, {{TSH_AS_ANY}, TSH_AS_ANY}, {{TSH_AS_L}, TSH_AS_L}, {{TSH_ROW_END}, TSH_ROW_END}};

const tsh_op tshi_cast_op = {"cast",
                             cast_rules,
                             cast_shape,
                             cast_forward,
                             tshi_pass_gradient,
                             .params_size = sizeof(tshi_cast_params),
                             .reads_no_input = true,
                             .repeats = true,
                             .by_element = true};

/* Gives a leaf's cast a gradient with the dtype of the leaf's, if matrix products can write that. */
static void widen_cast_gradient(const tsh_tensor *x, const tsh_tensor *cast) {
    bool wide = tshi_dtype_sum(cast->dtype) == tshi_gradient_dtype(x);
    if (cast->computed && !x->computed) cast->gradient->wide = wide && cast->dtype != tshi_gradient_dtype(x);
}

tsh_tensor *tshi_cast_run(tsh_tape *tape, tsh_tensor *x, const tshi_plan_step *step) {
    tshi_cast_params params = {step->dtype};
    tsh_call call = {.tape = tape, .op = &tshi_cast_op, .inputs = 1, .in = &x, .params = &params};
    tsh_tensor *cast = tshi_call_run(&call, step, NULL);
    if (cast) widen_cast_gradient(x, cast);
    return cast;
}
