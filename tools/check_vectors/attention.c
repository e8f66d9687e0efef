/* Attention and rotary positions. */
#include "cases.h"

static const tsh_layout replicated = TSH_REPLICATED_INIT, batch = TSH_SHARD_INIT(0), tokens = TSH_SHARD_INIT(1),
                        heads = TSH_SHARD_INIT(2);

/* --- attention ---------------------------------------------------------------------------------------------------- */

static void run_attention(cv_run *run, const void *layout) {
    const tshi_vector *causal = cv_vector(run, "causal", 0);
    tsh_layout l = *(const tsh_layout *)layout, of_lengths = l.dim == 0 ? l : TSH_REPLICATED;
    tsh_tensor *q = cv_tensor(run, "q", 4, TSH_REPLICATED, l, true);
    tsh_tensor *k = cv_tensor(run, "k", 4, TSH_REPLICATED, l, true);
    tsh_tensor *v = cv_tensor(run, "v", 4, TSH_REPLICATED, l, true);
    tsh_tensor *lengths = cv_tensor(run, "length", 1, TSH_REPLICATED, of_lengths, false);
    if (!causal || !q || !k || !v || !lengths) return;
    tsh_attention_config config = {.causal = causal->integers[0], .scale = cv_scalar(run, "scale"), .lengths = lengths};
    tsh_tensor *y = tsh_attention(run->tape, q, k, v, &config);
    cv_compare(run, "y", y);
    cv_backward(run, y, "dy");
    cv_compare_grad(run, "dq", q);
    cv_compare_grad(run, "dk", k);
    cv_compare_grad(run, "dv", v);
}

/* A file without lengths, in which q, k and v stand side by side: [B, T, 3 H D]. */
static void run_causal(cv_run *run, const void *layout) {
    tsh_layout l = *(const tsh_layout *)layout;
    const tshi_vector *count = cv_vector(run, "n_head", 0);
    tsh_tensor *qkv = cv_tensor(run, "qkv", 3, TSH_REPLICATED, l, true), *part[3] = {NULL, NULL, NULL};
    if (!count || !qkv) return;
    const int64_t *shape = tsh_tensor_shape(qkv);
    int64_t width = shape[2] / 3, split[4] = {shape[0], shape[1], count->integers[0], width / count->integers[0]};
    for (int i = 0; i < 3; i++) {
        part[i] = tsh_reshape(run->tape, tsh_slice(run->tape, qkv, 2, i * width, width), 4, split);
    }
    tsh_tensor *y = tsh_attention(run->tape, part[0], part[1], part[2], &(tsh_attention_config){.causal = true});
    y = tsh_reshape(run->tape, y, 3, (int64_t[]){shape[0], shape[1], width});
    cv_compare(run, "y", y);
    cv_backward(run, y, "dy");
    cv_compare_grad(run, "dqkv", qkv);
}

const cv_sharding cv_attention[] = {{"replicated", run_attention, &replicated, NULL, 1},
                                    {"batch split", run_attention, &batch, NULL, 1},
                                    {"tokens split", run_attention, &tokens, NULL, 1},
                                    {"heads split", run_attention, &heads, NULL, 1},
                                    {0}};
const cv_sharding cv_causal_attention[] = {
    {"replicated", run_causal, &replicated, NULL, 1}, {"batch split", run_causal, &batch, NULL, 1}, {0}};

/* --- rotary positions --------------------------------------------------------------------------------------------- */

static void run_rotary(cv_run *run, const tsh_layout *layout, tsh_rotary_order order) {
    tsh_tensor *x = cv_tensor(run, "x", 4, TSH_REPLICATED, *layout, true);
    tsh_tensor *positions = cv_tensor(run, "position", 1, TSH_REPLICATED, TSH_REPLICATED, false);
    if (!x || !positions) return;
    tsh_rotary_config config = {.theta = cv_scalar(run, "theta"), .order = order};
    tsh_tensor *y = tsh_rotary(run->tape, x, positions, &config);
    cv_compare(run, "y", y);
    cv_backward(run, y, "dy");
    cv_compare_grad(run, "dx", x);
}

static void run_half(cv_run *run, const void *layout) {
    run_rotary(run, layout, TSH_ROTARY_HALF);
}

static void run_pairs(cv_run *run, const void *layout) {
    run_rotary(run, layout, TSH_ROTARY_PAIRS);
}

const cv_sharding cv_rotary_half[] = {{"replicated", run_half, &replicated, NULL, 1},
                                      {"batch split", run_half, &batch, NULL, 1},
                                      {"tokens split", run_half, &tokens, NULL, 1},
                                      {"heads split", run_half, &heads, NULL, 1},
                                      {0}};
const cv_sharding cv_rotary_pairs[] = {{"replicated", run_pairs, &replicated, NULL, 1},
                                       {"batch split", run_pairs, &batch, NULL, 1},
                                       {"tokens split", run_pairs, &tokens, NULL, 1},
                                       {"heads split", run_pairs, &heads, NULL, 1},
                                       {0}};
