/* Rules, shapes and checks that functions share. */
#include "functional/functional.h"

const tsh_rule tshi_linear_rules[] = {
    {{TSH_AS_R}, TSH_AS_R}, {{TSH_AS_ANY}, TSH_AS_ANY},   {{TSH_AS_P}, TSH_AS_P},
    {{TSH_AS_L}, TSH_AS_L}, {{TSH_ROW_END}, TSH_ROW_END},
};

const tsh_rule tshi_element_rules[] = {
    {{TSH_AS_R}, TSH_AS_R}, {{TSH_AS_ANY}, TSH_AS_ANY}, {{TSH_AS_L}, TSH_AS_L}, {{TSH_ROW_END}, TSH_ROW_END}};

tsh_status tshi_same_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    *out = call->in[0]->shape;
    return tshi_check_floats(call, dtype);
}

tsh_status tshi_check_floats(const tsh_call *call, tsh_dtype *dtype) {
    *dtype = call->in[0]->dtype;
    for (int i = 0; i < call->inputs; i++) {
        if (call->in[i]->dtype == *dtype) continue;
        return tshi_fail(TSH_ERR_DTYPE, "input %d is %s, input 0 %s: all of one float dtype wanted", i,
                         tsh_dtype_name(call->in[i]->dtype), tsh_dtype_name(*dtype));
    }
    return tshi_check_computes(call->in[0]->mesh->device, *dtype, "input 0");
}

tsh_status tshi_check_fails(const tsh_tensor *a, const tsh_tensor *b, const char *wanted) {
    return tshi_fail(TSH_ERR_SHAPE, "%s and %s: %s", TSHI_TENSOR_TEXT(a), TSHI_TENSOR_TEXT(b), wanted);
}
