/* The cases of tests/functional, one line of code a case. Sizes divide by neither 2, 3 nor 4, or are smaller. */
#include "support/function_cases.h"
#include "functional/functional.h"

#include <math.h>

/* All parts in reverse order and once more the first, or without `all` the one in the middle alone. */
static tsh_tensor *split_and_join(tsh_tape *t, tsh_tensor *x, int dim, int count, const int64_t *sizes, bool all) {
    tsh_tensor *part[5];
    if (tsh_split_parts(t, x, dim, count, sizes, part) != TSH_OK) return NULL;
    if (!all) return tsh_relu(t, part[count / 2]);
    for (int i = 0; i < count / 2; i++) {
        tsh_tensor *first = part[i];
        part[i] = part[count - 1 - i];
        part[count - 1 - i] = first;
    }
    part[count] = tsh_scale(t, part[count - 1], 3);
    return tsh_concat(t, part, count + 1, dim);
}

/* x filled where the mask is large, plus the mask, which so has a gradient. */
static tsh_tensor *fill(tsh_tape *t, tsh_tensor *x, tsh_tensor *mask) {
    tsh_tensor *large = tsh_cast(t, tsh_clamp(t, tsh_scale(t, mask, 1.1), 0, 2), TSH_UINT8);
    return tsh_add(t, tsh_masked_fill(t, x, large, -2.5), mask);
}

/* x where it is larger than y, else y, and three times x where y is small; both are repeated where the other is
 * larger. */
static tsh_tensor *choose(tsh_tape *t, tsh_tensor *x, tsh_tensor *y) {
    tsh_tensor *z = tsh_where(t, tsh_compare(t, tsh_scale(t, x, 1.13), TSH_GREATER, y), x, y);
    return tsh_where(t, tsh_compare_scalar(t, y, TSH_LESS_EQUAL, 0.45), tsh_scale(t, x, 3), z);
}

static tsh_tensor *with_indices(tsh_tape *t, tsh_tensor *x, int dim) {
    tsh_tensor *indices = NULL, *y = tsh_min(t, x, dim, &indices);
    return tsh_add(t, y, tsh_cast(t, indices, tsh_tensor_dtype(y)));
}

#define CASE(name, expression)                                                                                         \
    static tsh_tensor *build_##name(tsh_tape *t, tsh_tensor *const *in) {                                              \
        return expression;                                                                                             \
    }
CASE(matmul, tsh_matmul(t, in[0], in[1]))
CASE(matmul_stack, tsh_matmul(t, in[0], in[1]))
CASE(affine, tsh_affine(t, in[0], in[1], in[2]))
CASE(affine_3d, tsh_affine(t, in[0], in[1], NULL))
CASE(add, tsh_add(t, in[0], in[1]))
CASE(add_self, tsh_add(t, in[0], in[0]))
CASE(sub, tsh_sub(t, in[0], in[1]))
CASE(mul, tsh_mul(t, in[0], in[1]))
CASE(mul_self, tsh_mul(t, in[0], in[0]))
CASE(add_inner, tsh_add(t, in[0], in[1]))
CASE(add_outer, tsh_add(t, in[0], in[1]))
CASE(sub_both, tsh_sub(t, in[0], in[1]))
CASE(mul_inner, tsh_mul(t, in[0], in[1]))
CASE(mul_both, tsh_mul(t, in[0], in[1]))
CASE(div, tsh_div(t, in[0], in[1]))
CASE(div_self, tsh_div(t, tsh_mul(t, in[0], in[0]), in[0]))
CASE(div_inner, tsh_div(t, in[0], in[1]))
CASE(div_outer, tsh_div(t, in[0], in[1]))
CASE(div_both, tsh_div(t, in[0], in[1]))
CASE(add_middle, tsh_add(t, in[0], in[1]))
CASE(index_select_0, tsh_index_select(t, in[0], 0, in[1]))
CASE(index_select_1, tsh_index_select(t, in[0], -2, in[1]))
CASE(take_along_last, tsh_take_along(t, in[0], 1, in[1]))
CASE(take_along_0, tsh_take_along(t, in[0], 0, in[1]))
CASE(index_add_0, tsh_index_add(t, in[0], 0, in[2], in[1]))
CASE(index_add_1, tsh_index_add(t, in[0], 1, in[2], in[1]))
CASE(add_along_last, tsh_add_along(t, in[0], 1, in[2], in[1]))
CASE(add_along_0, tsh_add_along(t, in[0], 0, in[2], in[1]))
CASE(one_hot, tsh_mul(t, in[0], tsh_one_hot(t, in[1], 7, tsh_tensor_dtype(in[0]))))
CASE(scale, tsh_scale(t, in[0], -2.5))
CASE(scale_shift, tsh_scale_shift(t, in[0], -2.5, 0.75))
CASE(maximum, tsh_maximum(t, in[0], in[1]))
CASE(maximum_self, tsh_maximum(t, in[0], in[0]))
CASE(maximum_outer, tsh_maximum(t, in[0], in[1]))
CASE(minimum, tsh_minimum(t, in[0], in[1]))
CASE(minimum_both, tsh_minimum(t, in[0], in[1]))
CASE(where, choose(t, in[0], in[1]))
CASE(where_both, choose(t, in[0], in[1]))
CASE(where_outer, choose(t, in[0], in[1]))
CASE(abs, tsh_abs(t, in[0]))
CASE(max_0, tsh_max(t, in[0], 0, NULL))
CASE(max_all, tsh_max(t, in[0], TSH_ALL_DIMS, NULL))
CASE(min_last, with_indices(t, in[0], -1))
CASE(min_middle, tsh_min(t, in[0], 1, NULL))
CASE(l1_mean, tsh_l1_loss(t, in[0], in[1], TSH_REDUCTION_MEAN))
CASE(l1_none, tsh_l1_loss(t, in[0], in[1], TSH_REDUCTION_NONE))
CASE(smooth_l1_sum, tsh_smooth_l1_loss(t, in[0], in[1], 0.6, TSH_REDUCTION_SUM))
CASE(bias, tsh_bias(t, in[0], in[1]))
CASE(gelu, tsh_gelu(t, in[0]))
CASE(gelu_tanh, tsh_gelu_tanh(t, in[0]))
CASE(relu, tsh_relu(t, in[0]))
CASE(silu, tsh_silu(t, in[0]))
CASE(swiglu, tsh_swiglu(t, in[0], in[1]))
CASE(swiglu_self, tsh_swiglu(t, in[0], in[0]))
CASE(exp, tsh_exp(t, in[0]))
CASE(log, tsh_log(t, tsh_mul(t, in[0], in[0])))
CASE(tanh, tsh_tanh(t, in[0]))
CASE(sqrt, tsh_sqrt(t, tsh_exp(t, in[0])))
CASE(sigmoid, tsh_sigmoid(t, in[0]))
CASE(pow, tsh_pow(t, in[0], 3))
CASE(pow_broken, tsh_pow(t, tsh_exp(t, in[0]), -1.3))
CASE(clamp, tsh_clamp(t, in[0], -0.7, HUGE_VAL))
CASE(masked_fill, fill(t, in[0], in[1]))
CASE(masked_fill_inner, fill(t, in[0], in[1]))
CASE(masked_fill_outer, fill(t, in[0], in[1]))
CASE(cast, tsh_cast(t, tsh_cast(t, in[0], TSH_FLOAT32), TSH_FLOAT64))
CASE(mse_mean, tsh_mse_loss(t, in[0], in[1], TSH_REDUCTION_MEAN))
CASE(mse_sum, tsh_mse_loss(t, in[0], in[1], TSH_REDUCTION_SUM))
CASE(mse_none, tsh_mse_loss(t, in[0], in[1], TSH_REDUCTION_NONE))
CASE(mse_self, tsh_mse_loss(t, in[0], in[0], TSH_REDUCTION_MEAN))
CASE(bce_mean, tsh_bce_loss(t, in[0], in[1], NULL))
CASE(bce_sum, tsh_bce_loss(t, in[0], in[1], &(tsh_bce_loss_config){.reduction = TSH_REDUCTION_SUM}))
CASE(bce_none, tsh_bce_loss(t, in[0], in[1], &(tsh_bce_loss_config){.reduction = TSH_REDUCTION_NONE}))
CASE(dropout, tsh_dropout(t, in[0], 0.4))
CASE(merge, tsh_reshape(t, in[0], 2, (int64_t[]){-1, 3}))
CASE(split, tsh_reshape(t, in[0], 3, (int64_t[]){5, 2, -1}))
CASE(grow, tsh_reshape(t, in[0], 3, (int64_t[]){1, 5, 6}))
CASE(flatten, tsh_reshape(t, in[0], 1, (int64_t[]){-1}))
CASE(permute_3, tsh_permute(t, in[0], (int[]){2, 0, -2}))
CASE(permute_last, tsh_permute(t, in[0], (int[]){1, 0, 2}))
CASE(permute_ones, tsh_permute(t, in[0], (int[]){1, 2, 0}))
CASE(transpose, tsh_transpose(t, in[0], 0, -1))
CASE(slice_0, tsh_slice(t, in[0], 0, 2, 3))
CASE(slice_last, tsh_slice(t, in[0], -1, 1, 2))
CASE(slice_none, tsh_slice(t, in[0], 1, 6, 0))
CASE(slice_twice, tsh_add(t, tsh_slice(t, in[0], 1, 0, 4), tsh_slice(t, in[0], 1, 3, 4)))
CASE(split_all, split_and_join(t, in[0], 0, 3, (int64_t[]){2, 0, 3}, true))
CASE(split_last, split_and_join(t, in[0], -1, 4, NULL, true))
CASE(split_some, split_and_join(t, in[0], 1, 3, (int64_t[]){1, 4, 2}, false))
CASE(concat_0, tsh_concat(t, in, 3, 0))
CASE(concat_last, tsh_concat(t, in, 2, -1))
CASE(concat_many, tsh_concat(t, (tsh_tensor *[]){in[0], in[1], in[0], in[0], in[1], in[1], in[0], in[1], in[0], in[1],
                                                 in[0], in[1], in[0], in[0], in[1], in[1], in[0], in[1], in[0], in[1]},
                             20, 0))
CASE(sum_0, tsh_sum(t, in[0], 0))
CASE(sum_1, tsh_sum(t, in[0], 1))
CASE(sum_all, tsh_sum(t, in[0], TSH_ALL_DIMS))
CASE(mean_last, tsh_mean(t, in[0], -1))
CASE(mean_all, tsh_mean(t, in[0], TSH_ALL_DIMS))
CASE(cumsum_0, tsh_cumsum(t, in[0], 0))
CASE(cumsum_1, tsh_cumsum(t, in[0], 1))
CASE(cumsum_last, tsh_add(t, in[0], tsh_cumsum(t, in[0], -1)))
CASE(topk_0, tsh_topk(t, in[0], 3, 0, NULL))
CASE(topk_last, tsh_topk(t, in[0], 7, -1, NULL))
CASE(topk_middle, tsh_topk(t, in[0], 1, 1, NULL))
CASE(softmax_0, tsh_softmax(t, in[0], 0))
CASE(softmax_last, tsh_softmax(t, in[0], -1))
CASE(log_softmax_1, tsh_log_softmax(t, in[0], 1))
CASE(lookup, tsh_lookup(t, in[0], in[1], -1))
CASE(lookup_padding, tsh_lookup(t, in[0], in[1], 2))
CASE(layer_norm, tsh_layer_norm(t, in[0], in[1], in[2], 1e-5))
CASE(layer_norm_plain, tsh_layer_norm(t, in[0], NULL, NULL, 1e-5))
CASE(rms_norm, tsh_rms_norm(t, in[0], in[1], 1e-6))
CASE(attention, tsh_attention(t, in[0], in[1], in[2], &(tsh_attention_config){.causal = true, .scale = 0.7}))
CASE(attention_self, tsh_attention(t, in[0], in[0], in[0], NULL))
CASE(attention_lengths, tsh_attention(t, in[0], in[1], in[1], &(tsh_attention_config){.lengths = in[2]}))
CASE(attention_dropout, tsh_attention(t, in[0], in[1], in[1], &(tsh_attention_config){.causal = true, .dropout = 0.3}))
CASE(attention_positions,
     tsh_attention(t, in[0], in[1], in[1], &(tsh_attention_config){.query_positions = in[2], .key_positions = in[2]}))
CASE(attention_documents,
     tsh_attention(t, in[0], in[1], in[1],
                   &(tsh_attention_config){.causal = true, .query_documents = in[2], .key_documents = in[2]}))
CASE(rotary_half, tsh_rotary(t, in[0], in[1], NULL))
CASE(rotary_pairs, tsh_rotary(t, in[0], in[1], &(tsh_rotary_config){.theta = 50, .order = TSH_ROTARY_PAIRS, .dims = 4}))
CASE(rotary_scaled,
     tsh_rotary(t, in[0], in[1],
                &(tsh_rotary_config){
                    .theta = 50,
                    .scaling = {.factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_positions = 16}}))
CASE(residual, tsh_add(t, in[0], tsh_gelu(t, tsh_affine(t, in[0], in[1], NULL))))
#undef CASE

#define A                                                                                                              \
    (function_input) {                                                                                                 \
        0, 2, {                                                                                                        \
            5, 7                                                                                                       \
        }                                                                                                              \
    }
#define B                                                                                                              \
    (function_input) {                                                                                                 \
        0, 3, {                                                                                                        \
            5, 2, 3                                                                                                    \
        }                                                                                                              \
    }
#define V                                                                                                              \
    (function_input) {                                                                                                 \
        0, 1, {                                                                                                        \
            7                                                                                                          \
        }                                                                                                              \
    }
#define ONE(name, a)                                                                                                   \
    { #name, 1, {a }, build_##name, false }
#define TWO(name, a, b)                                                                                                \
    { #name, 2, {a, b }, build_##name, false }
#define THREE(name, a, b, c)                                                                                           \
    { #name, 3, {a, b, c }, build_##name, false }
const function_case function_cases[] = {
    TWO(matmul, A, ((function_input){0, 2, {7, 3}})),
    TWO(matmul_stack, ((function_input){0, 3, {3, 5, 2}}), ((function_input){0, 3, {3, 2, 5}})),
    THREE(affine, A, ((function_input){0, 2, {3, 7}}), ((function_input){0, 1, {3}})),
    TWO(affine_3d, B, ((function_input){0, 2, {2, 3}})),
    TWO(add, A, A),
    ONE(add_self, A),
    TWO(sub, A, A),
    TWO(mul, A, A),
    ONE(mul_self, A),
    TWO(add_inner, B, ((function_input){0, 2, {2, 1}})),
    TWO(add_outer, V, A),
    TWO(sub_both, ((function_input){0, 2, {5, 1}}), ((function_input){0, 2, {1, 7}})),
    TWO(mul_inner, B, ((function_input){0, 3, {5, 1, 3}})),
    TWO(mul_both, ((function_input){0, 3, {5, 1, 3}}), ((function_input){0, 2, {2, 1}})),
    TWO(div, A, A),
    ONE(div_self, A),
    TWO(div_inner, B, ((function_input){0, 2, {2, 1}})),
    TWO(div_outer, V, A),
    TWO(div_both, ((function_input){0, 3, {5, 1, 3}}), ((function_input){0, 2, {2, 1}})),
    TWO(add_middle, ((function_input){0, 4, {2, 3, 1, 5}}), ((function_input){0, 4, {1, 3, 2, 1}})),
    ONE(scale, A),
    TWO(index_select_0, A, ((function_input){5, 1, {8}})),
    TWO(index_select_1, B, ((function_input){2, 1, {3}})),
    TWO(take_along_last, A, ((function_input){7, 2, {5, 3}})),
    TWO(take_along_0, B, ((function_input){5, 3, {4, 2, 3}})),
    THREE(index_add_0, A, ((function_input){0, 2, {8, 7}}), ((function_input){5, 1, {8}})),
    THREE(index_add_1, B, ((function_input){0, 3, {5, 3, 3}}), ((function_input){2, 1, {3}})),
    THREE(add_along_last, A, ((function_input){0, 2, {5, 3}}), ((function_input){7, 2, {5, 3}})),
    THREE(add_along_0, B, ((function_input){0, 3, {4, 2, 3}}), ((function_input){5, 3, {4, 2, 3}})),
    TWO(one_hot, A, ((function_input){7, 1, {5}})),
    ONE(scale_shift, A),
    TWO(maximum, A, A),
    ONE(maximum_self, A),
    TWO(maximum_outer, V, A),
    TWO(minimum, B, B),
    TWO(minimum_both, ((function_input){0, 2, {5, 1}}), ((function_input){0, 2, {1, 7}})),
    TWO(where, A, A),
    TWO(where_both, ((function_input){0, 3, {5, 1, 3}}), ((function_input){0, 2, {2, 1}})),
    TWO(where_outer, V, A),
    ONE(abs, A),
    ONE(max_0, A),
    ONE(max_all, B),
    ONE(min_last, A),
    ONE(min_middle, B),
    TWO(l1_mean, A, A),
    TWO(l1_none, V, V),
    TWO(smooth_l1_sum, B, B),
    TWO(bias, A, V),
    ONE(gelu, A),
    ONE(gelu_tanh, A),
    ONE(relu, A),
    ONE(silu, A),
    TWO(swiglu, A, A),
    ONE(swiglu_self, A),
    ONE(dropout, A),
    TWO(masked_fill, A, A),
    TWO(masked_fill_inner, B, ((function_input){0, 2, {2, 1}})),
    TWO(masked_fill_outer, A, ((function_input){0, 2, {1, 7}})),
    {"cast", 1, {A}, build_cast, true},
    TWO(mse_mean, A, A),
    TWO(mse_sum, B, B),
    TWO(mse_none, V, V),
    ONE(mse_self, A),
    TWO(bce_mean, A, A),
    TWO(bce_sum, V, V),
    TWO(bce_none, B, B),
    ONE(exp, A),
    ONE(log, A),
    ONE(tanh, A),
    ONE(sqrt, A),
    ONE(sigmoid, B),
    ONE(pow, B),
    ONE(pow_broken, A),
    ONE(clamp, A),
    ONE(merge, B),
    ONE(split, ((function_input){0, 2, {5, 6}})),
    ONE(grow, ((function_input){0, 2, {5, 6}})),
    ONE(flatten, B),
    ONE(permute_3, B),
    ONE(permute_last, B),
    ONE(permute_ones, ((function_input){0, 3, {1, 5, 3}})),
    ONE(transpose, A),
    ONE(slice_0, A),
    ONE(slice_last, B),
    ONE(slice_none, A),
    ONE(slice_twice, A),
    ONE(split_all, A),
    ONE(split_last, A),
    ONE(split_some, A),
    THREE(concat_0, A, A, A),
    TWO(concat_last, A, A),
    TWO(concat_many, ((function_input){0, 1, {5}}), ((function_input){0, 1, {5}})),
    ONE(sum_0, A),
    ONE(sum_1, B),
    ONE(sum_all, B),
    ONE(mean_last, B),
    ONE(mean_all, A),
    ONE(cumsum_0, A),
    ONE(cumsum_1, B),
    ONE(cumsum_last, B),
    ONE(topk_0, A),
    ONE(topk_last, A),
    ONE(topk_middle, B),
    ONE(softmax_0, A),
    ONE(softmax_last, B),
    ONE(log_softmax_1, A),
    TWO(lookup, ((function_input){0, 2, {6, 3}}), ((function_input){6, 1, {9}})),
    {"lookup_padding", 2, {{0, 2, {6, 3}}, {6, 2, {3, 2}}}, build_lookup_padding, true},
    THREE(layer_norm, A, V, V),
    ONE(layer_norm_plain, A),
    TWO(rms_norm, A, V),
    THREE(attention, ((function_input){0, 4, {1, 2, 4, 2}}), ((function_input){0, 4, {1, 3, 2, 2}}),
          ((function_input){0, 4, {1, 3, 2, 2}})),
    ONE(attention_self, ((function_input){0, 4, {3, 2, 3, 2}})),
    THREE(attention_lengths, ((function_input){0, 4, {3, 1, 2, 2}}), ((function_input){0, 4, {3, 2, 1, 2}}),
          ((function_input){3, 1, {3}})),
    TWO(attention_dropout, ((function_input){0, 4, {1, 5, 3, 2}}), ((function_input){0, 4, {1, 4, 1, 2}})),
    THREE(attention_positions, ((function_input){0, 4, {2, 5, 2, 2}}), ((function_input){0, 4, {2, 5, 1, 2}}),
          ((function_input){9, 1, {5}})),
    THREE(attention_documents, ((function_input){0, 4, {2, 4, 2, 2}}), ((function_input){0, 4, {2, 4, 1, 2}}),
          ((function_input){2, 2, {2, 4}})),
    TWO(rotary_half, ((function_input){0, 4, {3, 2, 3, 6}}), ((function_input){40, 1, {2}})),
    TWO(rotary_pairs, ((function_input){0, 4, {3, 2, 3, 5}}), ((function_input){40, 2, {3, 2}})),
    TWO(rotary_scaled, ((function_input){0, 4, {3, 2, 1, 6}}), ((function_input){40, 1, {2}})),
    TWO(residual, A, ((function_input){0, 2, {7, 7}})),
};
#undef A
#undef B
#undef V
#undef ONE
#undef TWO
#undef THREE
const int function_case_count = sizeof function_cases / sizeof function_cases[0];
