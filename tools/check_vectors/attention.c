/* Attention and rotary positions. */
#include "cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* --- positions and documents -------------------------------------------------------------------------------------- */

/* A tensor of a case in a file of several. */
static tsh_tensor *case_tensor(cv_run *run, const char *of, const char *name, int ndim, tsh_layout layout) {
    char full[TSHI_VECTOR_NAME + 16];
    snprintf(full, sizeof full, "%s.%s", of, name);
    return cv_tensor(run, full, ndim, TSH_REPLICATED, layout, ndim == 4);
}

static void compare_case(cv_run *run, const char *of, const char *name, const tsh_tensor *got, bool grad) {
    char full[TSHI_VECTOR_NAME + 16];
    snprintf(full, sizeof full, "%s.%s", of, name);
    (grad ? cv_compare_grad : cv_compare)(run, full, got);
}

/* A case whose numbers of tokens have so many dims, with `layout` of q, k and v. */
static void run_tokens(cv_run *run, const char *of, int dims, tsh_layout layout, tsh_attention_config *config) {
    static const char *const names[] = {"q_position", "k_position", "q_document", "k_document"};
    tsh_tensor **to[] = {&config->query_positions, &config->key_positions, &config->query_documents,
                         &config->key_documents};
    tsh_layout l = TSH_REPLICATED;
    char dy[TSHI_VECTOR_NAME + 16];
    if (layout.kind == TSH_KIND_SHARD && layout.dim == 1) l = TSH_SHARD(dims - 1);
    if (layout.kind == TSH_KIND_SHARD && layout.dim == 0 && dims == 2) l = TSH_SHARD(0);
    for (int i = 0; i < (dims == 2 ? 4 : 2); i++) *to[i] = case_tensor(run, of, names[i], dims, l);
    tsh_tensor *q = case_tensor(run, of, "q", 4, layout), *k = case_tensor(run, of, "k", 4, layout),
               *v = case_tensor(run, of, "v", 4, layout);
    if (!q || !k || !v) return;
    tsh_tensor *y = tsh_attention(run->tape, q, k, v, config);
    compare_case(run, of, "y", y, false);
    snprintf(dy, sizeof dy, "%s.dy", of);
    cv_backward(run, y, dy);
    compare_case(run, of, "dq", q, true);
    compare_case(run, of, "dk", k, true);
    compare_case(run, of, "dv", v, true);
    tshi_check_ok(run->rank, tsh_tape_reset(run->tape));
}

/* Copies the name of the case of a tensor "CASE.name"; false for other names. */
static bool case_of(const tshi_vector *v, const char *name, char *of) {
    size_t length = strcspn(v->name, ".");
    snprintf(of, TSHI_VECTOR_NAME, "%.*s", (int)length, v->name);
    return v->name[length] && strcmp(v->name + length + 1, name) == 0;
}

static void run_positions(cv_run *run, const void *layout) {
    char of[TSHI_VECTOR_NAME], scale[TSHI_VECTOR_NAME + 16];
    for (int i = 0; i < run->vectors->count && !run->rank->failed; i++) {
        if (!case_of(&run->vectors->items[i], "scale", of)) continue;
        snprintf(scale, sizeof scale, "%s.scale", of);
        tsh_attention_config config = {.scale = cv_scalar(run, scale)};
        run_tokens(run, of, 2, *(const tsh_layout *)layout, &config);
    }
}

/* A copy of a tensor [B, T, ...], its tokens in another order; of a permutation itself under another name. */
static tshi_vector permuted(const tshi_vector *v, const tshi_vector *order, const char *name) {
    tshi_vector copy = *v;
    int64_t n = order->count, inner = v->count / (v->shape[0] * n);
    if (name) snprintf(strchr(copy.name, '.'), 16, ".%s", name);
    if (name || v->ndim != 4) return copy;
    copy.values = calloc((size_t)v->count + 1, sizeof *copy.values);
    for (int64_t i = 0; copy.values && i < v->count; i++) {
        int64_t sequence = i / inner / n, from = order->integers[i / inner % n];
        copy.values[i] = v->values[(sequence * n + from) * inner + i % inner];
    }
    return copy;
}

static void run_permuted_case(cv_run *run, const tshi_vector *order, tsh_layout layout) {
    char of[TSHI_VECTOR_NAME], other[TSHI_VECTOR_NAME];
    const tshi_vectors *whole = run->vectors;
    tshi_vectors part = {calloc((size_t)whole->count + 2, sizeof(tshi_vector)), 0};
    int copied = 0;
    case_of(order, "permutation", of);
    for (int i = 0; part.items && i < whole->count; i++) {
        case_of(&whole->items[i], "", other);
        if (strcmp(of, other) == 0 && whole->items[i].ndim == 4)
            part.items[part.count++] = permuted(&whole->items[i], order, NULL);
    }
    copied = part.count;
    part.items[part.count++] = permuted(order, order, "q_position");
    part.items[part.count++] = permuted(order, order, "k_position");
    run->vectors = &part;
    run_tokens(run, of, 1, layout, &(tsh_attention_config){.causal = true});
    run->vectors = whole;
    for (int i = 0; i < copied; i++) free(part.items[i].values);
    free(part.items);
}

static void run_permuted(cv_run *run, const void *layout) {
    for (int i = 0; i < run->vectors->count && !run->rank->failed; i++) {
        char of[TSHI_VECTOR_NAME];
        const tshi_vector *v = &run->vectors->items[i];
        if (case_of(v, "permutation", of)) run_permuted_case(run, v, *(const tsh_layout *)layout);
    }
}

const cv_sharding cv_attention_positions[] = {{"replicated", run_positions, &replicated, NULL, 1},
                                              {"batch split", run_positions, &batch, NULL, 1},
                                              {"tokens split", run_positions, &tokens, NULL, 1},
                                              {"heads split", run_positions, &heads, NULL, 1},
                                              {0}};
const cv_sharding cv_attention_permuted[] = {{"replicated", run_permuted, &replicated, NULL, 1},
                                             {"batch split", run_permuted, &batch, NULL, 1},
                                             {"tokens split", run_permuted, &tokens, NULL, 1},
                                             {"heads split", run_permuted, &heads, NULL, 1},
                                             {0}};

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
