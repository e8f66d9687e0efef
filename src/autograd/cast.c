/* Casts to another dtype: those that programs ask for, and those of the inputs of functions that compute in another dtype
 * than their parameters have. */
#include "autograd/cast.h"
#include "autograd/apply.h"
#include "autograd/segment.h"
#include "autograd/transition.h"

const tshi_engine_op tshi_as_stored = {.as_stored = true};

typedef struct cast_params {
    tsh_dtype dtype;
} cast_params;

static bool is_real(tsh_dtype dtype) {
    return (int)dtype >= 0 && dtype < TSH_DTYPE_COUNT && !tshi_dtype_is_complex(dtype);
}

static tsh_status cast_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_tensor *x = call->in[0];
    *dtype = ((const cast_params *)call->params)->dtype;
    *out = x->shape;
    if (is_real(*dtype) && is_real(x->dtype)) return TSH_OK;
    return tshi_fail(TSH_ERR_DTYPE, "%s cannot become %s: real dtypes are cast", tsh_dtype_name(x->dtype),
                     tsh_dtype_name(*dtype));
}

/* Elements of `from` as those of `to`. */
static void convert(const tsh_tensor *from, tsh_tensor *to) {
    tsh_device *device = tshi_device_of(from);
    device->ops->copy.convert(device, from->numel, from->dtype, tshi_data(from), to->dtype, tshi_data(to));
}

static tsh_status cast_forward(tsh_call *call) {
    convert(call->in[0], call->out);
    return TSH_OK;
}

static const tsh_rule cast_rules[] = {
    {{TSH_AS_R}, TSH_AS_R}, {{TSH_AS_ANY}, TSH_AS_ANY}, {{TSH_AS_L}, TSH_AS_L}, {{TSH_ROW_END}, TSH_ROW_END}};

static const tsh_op cast_op = {"cast",
                               cast_rules,
                               cast_shape,
                               cast_forward,
                               tshi_pass_gradient,
                               .params_size = sizeof(cast_params),
                               .reads_no_input = true,
                               .repeats = true,
                               .by_element = true,
                               .engine = &tshi_as_stored};

/* A result without gradients is not recorded. */
tsh_tensor *tshi_cast(tsh_tape *tape, tsh_tensor *x, tsh_dtype dtype) {
    if (!tshi_tape_ready(tape, "cast", 1, &x)) return NULL;
    if (x->dtype == dtype) return x;
    bool recording = tape->recording;
    tape->recording = recording && tshi_device_computes(x->mesh->device, dtype);
    tsh_tensor *y = tshi_apply(tape, &cast_op, 1, &x, &(cast_params){dtype});
    tape->recording = recording;
    return y;
}

/* --- inputs of functions ------------------------------------------------------------------------------------------ */

/* The gradient of a leaf's cast is of the dtype of the leaf's where products can write that. */
static void widen(const tsh_tensor *x, const tsh_tensor *cast) {
    bool wide = tshi_dtype_sum(cast->dtype) == tshi_gradient_dtype(x);
    if (cast->computed && !x->computed) cast->gradient->wide = wide && cast->dtype != tshi_gradient_dtype(x);
}

/* x as `dtype`, made once in a step. */
static tsh_tensor *cast_once(tsh_tape *tape, tsh_tensor *x, tsh_dtype dtype) {
    if (x->dtype == dtype) return x;
    tsh_tensor *cast = tshi_made_before(tape, x, dtype, x->mesh, x->layout);
    if (cast) return tshi_segment_take(tape, cast);
    cast = tshi_cast(tape, x, dtype);
    if (!cast) return NULL;
    widen(x, cast);
    tsh_status status = tshi_remember(tape, x, cast);
    return status == TSH_OK ? cast : tshi_tape_fail_as(tape, status, "cast");
}

tsh_status tshi_cast_inputs(tsh_call *call) {
    tsh_dtype dtype = TSH_UINT8;
    if (call->op->engine && call->op->engine->as_stored) return TSH_OK;
    for (int i = 0; i < call->inputs; i++) {
        const tsh_tensor *x = call->in[i];
        tsh_dtype computed = tshi_gradient_computed_in(x);
        if (x->gradient && x->gradient->arithmetic && tsh_dtype_size(computed) > tsh_dtype_size(dtype))
            dtype = computed;
    }
    for (int i = 0; i < call->inputs; i++) {
        if (!tshi_differentiable(call->in[i])) continue;
        call->in[i] = cast_once(call->tape, call->in[i], dtype);
        if (!call->in[i]) return tsh_tape_status(call->tape);
    }
    return TSH_OK;
}

tsh_tensor *tshi_cast_as(tsh_tape *tape, tsh_tensor *y, const tsh_tensor *x) {
    if (!y || !x->gradient || !x->gradient->arithmetic) return y;
    y = tshi_cast(tape, y, tshi_gradient_computed_in(x));
    tshi_gradient *g = y ? tshi_gradient_of(y) : NULL;
    if (g) g->arithmetic = x->gradient->arithmetic;
    return !y || g ? y : tshi_tape_fail_as(tape, TSH_ERR_MEMORY, "cast");
}
