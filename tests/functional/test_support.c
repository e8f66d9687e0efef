/* What a device says that it computes is what it does: every function of the header, on tensors of every dtype. */
#include "support/headers.h"
#include "support/ranks.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* What a function is called with: x and y [2, 2] and by_heads [2, 1, 2, 1] of one dtype, ids [2] below 2. */
typedef struct inputs {
    tsh_tensor *x, *y, *by_heads, *ids, *mask;
} inputs;

typedef struct support_case {
    const char *name;
    tsh_tensor *(*call)(tsh_tape *t, const inputs *in);
} support_case;

/* [2, 2] */
static tsh_tensor *four_ids(tsh_tape *t, tsh_tensor *ids) {
    tsh_tensor *row = tsh_reshape(t, ids, 2, (int64_t[]){1, 2});
    return tsh_concat(t, (tsh_tensor *[]){row, row}, 2, 0);
}

static const tsh_router_config one_expert = {.top_k = 1, .aux_loss = 1};

static tsh_tensor *first_part(tsh_tape *t, tsh_tensor *x) {
    tsh_tensor *parts[2];
    return tsh_split_parts(t, x, 0, 2, NULL, parts) == TSH_OK ? parts[0] : NULL;
}

#define CASE(name, expression)                                                                                         \
    static tsh_tensor *call_##name(tsh_tape *t, const inputs *in) {                                                    \
        return expression;                                                                                             \
    }
#define CASES                                                                                                          \
    WITH(matmul, tsh_matmul(t, in->x, in->y))                                                                          \
    WITH(affine, tsh_affine(t, in->x, in->y, NULL))                                                                    \
    WITH(add, tsh_add(t, in->x, in->y))                                                                                \
    WITH(sub, tsh_sub(t, in->x, in->y))                                                                                \
    WITH(mul, tsh_mul(t, in->x, in->y))                                                                                \
    WITH(div, tsh_div(t, in->x, in->y))                                                                                \
    WITH(maximum, tsh_maximum(t, in->x, in->y))                                                                        \
    WITH(minimum, tsh_minimum(t, in->x, in->y))                                                                        \
    WITH(compare, tsh_compare(t, in->x, TSH_LESS, in->y))                                                              \
    WITH(compare_scalar, tsh_compare_scalar(t, in->x, TSH_LESS, 2))                                                    \
    WITH(where, tsh_where(t, in->mask, in->x, in->y))                                                                  \
    WITH(scale, tsh_scale(t, in->x, 2))                                                                                \
    WITH(scale_shift, tsh_scale_shift(t, in->x, 2, 1))                                                                 \
    WITH(abs, tsh_abs(t, in->x))                                                                                       \
    WITH(max, tsh_max(t, in->x, 0, NULL))                                                                              \
    WITH(min, tsh_min(t, in->x, 0, NULL))                                                                              \
    WITH(l1_loss, tsh_l1_loss(t, in->x, in->y, TSH_REDUCTION_MEAN))                                                    \
    WITH(smooth_l1_loss, tsh_smooth_l1_loss(t, in->x, in->y, 1, TSH_REDUCTION_MEAN))                                   \
    WITH(bias, tsh_bias(t, in->x, tsh_reshape(t, tsh_slice(t, in->y, 0, 0, 1), 1, (int64_t[]){2})))                    \
    WITH(gelu, tsh_gelu(t, in->x))                                                                                     \
    WITH(gelu_tanh, tsh_gelu_tanh(t, in->x))                                                                           \
    WITH(relu, tsh_relu(t, in->x))                                                                                     \
    WITH(silu, tsh_silu(t, in->x))                                                                                     \
    WITH(swiglu, tsh_swiglu(t, in->x, in->y))                                                                          \
    WITH(exp, tsh_exp(t, in->x))                                                                                       \
    WITH(log, tsh_log(t, in->x))                                                                                       \
    WITH(tanh, tsh_tanh(t, in->x))                                                                                     \
    WITH(sqrt, tsh_sqrt(t, in->x))                                                                                     \
    WITH(sigmoid, tsh_sigmoid(t, in->x))                                                                               \
    WITH(pow, tsh_pow(t, in->x, 3))                                                                                    \
    WITH(clamp, tsh_clamp(t, in->x, 0, 1))                                                                             \
    WITH(masked_fill, tsh_masked_fill(t, in->x, in->mask, 1))                                                          \
    WITH(cast, tsh_cast(t, in->x, TSH_FLOAT32))                                                                        \
    WITH(dropout, tsh_dropout(t, in->x, 0.5))                                                                          \
    WITH(reshape, tsh_reshape(t, in->x, 1, (int64_t[]){4}))                                                            \
    WITH(permute, tsh_permute(t, in->x, (int[]){1, 0}))                                                                \
    WITH(transpose, tsh_transpose(t, in->x, 0, 1))                                                                     \
    WITH(slice, tsh_slice(t, in->x, 0, 0, 1))                                                                          \
    WITH(split_parts, first_part(t, in->x))                                                                            \
    WITH(concat, tsh_concat(t, (tsh_tensor *[]){in->x, in->y}, 2, 0))                                                  \
    WITH(sum, tsh_sum(t, in->x, 0))                                                                                    \
    WITH(mean, tsh_mean(t, in->x, 0))                                                                                  \
    WITH(cumsum, tsh_cumsum(t, in->x, 0))                                                                              \
    WITH(topk, tsh_topk(t, in->x, 1, 0, NULL))                                                                         \
    WITH(argmax, tsh_argmax(t, in->x, 0))                                                                              \
    WITH(softmax, tsh_softmax(t, in->x, 0))                                                                            \
    WITH(log_softmax, tsh_log_softmax(t, in->x, 0))                                                                    \
    WITH(lookup, tsh_lookup(t, in->x, in->ids, -1))                                                                    \
    WITH(take_rows, tsh_take_rows(t, in->x, in->ids))                                                                  \
    WITH(index_select, tsh_index_select(t, in->x, 0, in->ids))                                                         \
    WITH(take_along, tsh_take_along(t, in->x, 0, four_ids(t, in->ids)))                                                \
    WITH(index_add, tsh_index_add(t, in->x, 0, in->ids, in->y))                                                        \
    WITH(add_along, tsh_add_along(t, in->x, 0, four_ids(t, in->ids), in->y))                                           \
    WITH(one_hot, tsh_mul(t, in->x, tsh_one_hot(t, in->ids, 2, tsh_tensor_dtype(in->x))))                              \
    WITH(sample_classes, tsh_sample_classes(t, in->x, in->ids, 1, NULL))                                               \
    WITH(route, tsh_route(t, in->x, &one_expert, NULL))                                                                \
    WITH(route_loss, tsh_route_loss(t, in->x, &one_expert, tsh_reshape(t, in->ids, 2, (int64_t[]){2, 1})))             \
    WITH(expert_mlp, tsh_expert_mlp(t, in->x, tsh_slice(t, in->y, 1, 0, 1),                                            \
                                    tsh_reshape(t, in->ids, 2, (int64_t[]){2, 1}), in->y, in->y, in->y, 2))            \
    WITH(layer_norm, tsh_layer_norm(t, in->x, NULL, NULL, 1e-5))                                                       \
    WITH(rms_norm, tsh_rms_norm(t, in->x, NULL, 1e-5))                                                                 \
    WITH(attention, tsh_attention(t, in->by_heads, in->by_heads, in->by_heads, NULL))                                  \
    WITH(rotary, tsh_rotary(t, tsh_permute(t, in->by_heads, (int[]){3, 0, 1, 2}), in->ids, NULL))                      \
    WITH(cross_entropy, tsh_cross_entropy(t, in->x, in->ids, NULL))                                                    \
    WITH(linear_cross_entropy, tsh_linear_cross_entropy(t, in->x, in->y, in->ids, NULL))                               \
    WITH(mse_loss, tsh_mse_loss(t, in->x, in->y, TSH_REDUCTION_MEAN))                                                  \
    WITH(bce_loss, tsh_bce_loss(t, in->x, in->y, NULL))

#define WITH(name, expression) CASE(name, expression)
CASES
#undef WITH
#define WITH(name, expression) {#name, call_##name},
static const support_case cases[] = {CASES};
#undef WITH

static tsh_tensor *ones(tshi_rank *r, tsh_dtype dtype, int ndim, const int64_t *shape) {
    tsh_tensor_config config = {.dtype = dtype, .ndim = ndim};
    tsh_tensor *out = NULL;
    memcpy(config.shape, shape, (size_t)ndim * sizeof *shape);
    tshi_check_ok(r, tsh_tensor_create_full(tsh_world_mesh(r->world), &config, 1, &out));
    return out;
}

static void check_dtype(tshi_rank *r, tsh_tape *t, tsh_dtype dtype) {
    const int64_t matrix[] = {2, 2}, heads[] = {2, 1, 2, 1}, two[] = {2};
    const inputs in = {ones(r, dtype, 2, matrix), ones(r, dtype, 2, matrix), ones(r, dtype, 4, heads),
                       ones(r, TSH_INT64, 1, two), ones(r, TSH_UINT8, 2, matrix)};
    const tsh_device *device = tsh_world_device(r->world);
    bool differentiable = tsh_function_supports(device, "add", dtype);
    if (differentiable) {
        tshi_check_ok(r, tsh_tensor_require_grad(in.x, true));
        tshi_check_ok(r, tsh_tensor_require_grad(in.by_heads, true));
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases && !r->failed; i++) {
        bool told = tsh_function_supports(device, cases[i].name, dtype);
        tsh_tensor *y = cases[i].call(t, &in);
        tsh_status status = tsh_tape_status(t);
        tshi_check(r, told ? y != NULL : !y && status == TSH_ERR_DTYPE, "%s of %s %s, but it is told to %s: %s",
                   cases[i].name, tsh_dtype_name(dtype), y ? "works" : "fails", told ? "work" : "fail",
                   tsh_tape_message(t));
        bool back = y && differentiable && tsh_tensor_dtype(y) != TSH_INT64 && tsh_tensor_dtype(y) != TSH_UINT8;
        if (back) tshi_check_ok(r, tsh_backward(t, tsh_sum(t, y, TSH_ALL_DIMS)));
        tshi_check_ok(r, tsh_tape_reset(t));
    }
    tsh_tensor_release(in.x);
    tsh_tensor_release(in.y);
    tsh_tensor_release(in.by_heads);
    tsh_tensor_release(in.ids);
    tsh_tensor_release(in.mask);
}

static void all_dtypes(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int dtype = 0; dtype < TSH_DTYPE_COUNT && !r->failed; dtype++) check_dtype(r, tape, (tsh_dtype)dtype);
    const tsh_device *device = tsh_world_device(r->world);
    tshi_check(r, tsh_function_supports(device, "attention", TSH_BFLOAT16), "attention");
    tshi_check(r, !tsh_function_supports(device, "attention", TSH_INT64), "attention of int64");
    tshi_check(r, !tsh_function_supports(device, "tsh_attention", TSH_FLOAT32), "a name with tsh_");
    tsh_tape_destroy(tape);
}

Test(support, is_told_as_functions_do, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, all_dtypes, NULL));
    cr_assert_str_empty(tshi_test_run(2, all_dtypes, NULL));
}

static bool has_case(const char *name) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(cases[i].name, name + strlen("tsh_")) == 0) return true;
    }
    return strcmp(name, "tsh_function_supports") == 0;
}

Test(support, is_asked_of_every_function) {
    char words[4096];
    int count = tshi_test_functions_of("functional.h", has_case, words, sizeof words);
    cr_assert_str_empty(words);
    cr_assert_eq(count, (int)(sizeof cases / sizeof *cases) + 1);
}
