/* One block of each family with its input, split as a test wants it, and its comparison with the whole block. */
#ifndef TSHI_TEST_BLOCK_RUNS_H
#define TSHI_TEST_BLOCK_RUNS_H

#include "support/layouts.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, TIME = 5, TOKENS = BATCH * TIME, EMBED = 14, MOST_TOKENS = 24 };

#define VALUES                                                                                                         \
    { .kind = TSH_INIT_NORMAL, .b = 0.4 }

static const tsh_sharding_rule dense[] = {{"*", "dense"}, {NULL, NULL}};

typedef struct family {
    const char *name;
    bool lengths;
    tsh_block_config config;
} family;

static const family families[] = {
    {"GPT-2, 7 heads",
     false,
     {.norm = {.bias = true},
      .attention = {.heads = 7, .causal = true, .bias = true, .out_bias = true, .bias_init = VALUES},
      .mlp = {.hidden = 9, .activation = TSH_ACTIVATION_GELU_TANH, .bias = true}}},
    {"Llama, 6 heads of 2 KV heads",
     false,
     {.norm = {.kind = TSH_RMS_NORM, .eps = 1e-6},
      .attention = {.heads = 6, .kv_heads = 2, .head_dim = 4, .causal = true, .rotary = true},
      .mlp = {.hidden = 11, .gated = true, .activation = TSH_ACTIVATION_SILU}}},
    {"Qwen2, 4 heads of 1 KV head",
     false,
     {.norm = {.kind = TSH_RMS_NORM},
      .attention = {.heads = 4, .kv_heads = 1, .head_dim = 2, .causal = true, .rotary = true, .bias = true},
      .mlp = {.hidden = 5, .gated = true, .activation = TSH_ACTIVATION_SILU}}},
    {"BERT, 2 heads",
     true,
     {.post_norm = true,
      .norm = {.bias = true, .eps = 1e-12},
      .attention = {.heads = 2, .bias = true, .out_bias = true},
      .mlp = {.hidden = 8, .activation = TSH_ACTIVATION_GELU, .bias = true}}}};

enum { FAMILIES = sizeof families / sizeof families[0] };

/* One block with its input and what came of it. */
typedef struct run {
    tsh_block *block;
    tsh_parameters *list;
    tsh_tensor *x, *dy, *positions, *lengths, *y;
    tsh_sequences rows;
} run;

static inline tsh_tensor *numbers(tshi_rank *r, const tsh_mesh *mesh, int64_t batch, const double *from) {
    return tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_INT64, 1, {batch}, {R}}, from);
}

/* layouts: of x and dy. Values depend on the family and the number of tokens alone. */
static inline bool make(tshi_rank *r, tsh_group *group, const family *f, bool sequence, const tsh_sharding_rule *table,
                        int64_t batch, const tsh_layout *layouts, run *out) {
    static const double places[] = {3, 4, 5, 6, 7, 8}, lengths[] = {5, 2, 3};
    double x[MOST_TOKENS * EMBED], dy[MOST_TOKENS * EMBED];
    const tsh_mesh *mesh = tsh_group_mesh(group);
    int64_t tokens = batch * TIME < MOST_TOKENS ? batch * TIME : MOST_TOKENS;
    tsh_block_config config = f->config;
    tsh_tensor_config shape = {TSH_FLOAT64, 2, {tokens, EMBED}, {R}};
    config.embed = EMBED;
    config.dtype = TSH_FLOAT64;
    config.sequence_parallel = sequence;
    config.table = table;
    config.attention.weight_init = config.attention.out_init = (tsh_init)VALUES;
    memcpy(shape.layout, layouts, sizeof *layouts * (size_t)tsh_mesh_axes(mesh));
    tsh_world_seed(r->world, 3);
    tshi_test_integers(1, tokens * EMBED, x);
    tshi_test_integers(2, tokens * EMBED, dy);
    for (int64_t i = 0; i < tokens * EMBED; i++) x[i] /= 4;
    *out = (run){.x = tshi_test_leaf(r, mesh, &shape, x), .dy = tshi_test_tensor(r, mesh, &shape, dy)};
    out->positions = numbers(r, mesh, TIME, places);
    if (f->lengths) out->lengths = numbers(r, mesh, batch, lengths);
    out->rows = (tsh_sequences){.batch = batch, .positions = out->positions, .lengths = out->lengths};
    tshi_check_ok(r, tsh_block_create(group, &config, &out->block));
    tshi_check_ok(r, tsh_parameters_create(r->world, &out->list));
    tshi_check_ok(r, tsh_block_register(out->block, out->list, "h"));
    return !r->failed;
}

static inline void destroy(run *w) {
    tsh_parameters_destroy(w->list);
    tsh_block_destroy(w->block);
    tsh_tensor_release(w->x);
    tsh_tensor_release(w->dy);
    tsh_tensor_release(w->positions);
    tsh_tensor_release(w->lengths);
}

static inline bool forward(tshi_rank *r, tsh_tape *tape, run *w) {
    w->y = tsh_block_forward(tape, w->block, w->x, &w->rows);
    return tshi_check(r, w->y, "%s", tsh_tape_message(tape));
}

static inline void backward(tshi_rank *r, tsh_tape *tape, run *w) {
    tshi_check_ok(r, tsh_backward_with(tape, w->y, &(tsh_backward_config){.gradient = w->dy, .retain_graph = true}));
}

/* The parts of w are those of `whole`, which every rank has all of: bit for bit in a deterministic world. */
static inline void compare(tshi_rank *r, const char *name, const run *w, const run *whole) {
    const double off = getenv("TSHARD_DETERMINISTIC") ? 0 : 1e-11;
    char what[128];
    if (r->failed) return;
    tshi_test_same(r, name, w->y, tsh_tensor_data(whole->y), off);
    snprintf(what, sizeof what, "%s: dx", name);
    tshi_test_same_grad(r, what, w->x, tsh_tensor_data(tsh_tensor_grad(whole->x)), off);
    for (int i = 0; i < tsh_parameters_count(w->list) && !r->failed; i++) {
        tsh_tensor *p = tsh_parameters_tensor(w->list, i), *q = tsh_parameters_tensor(whole->list, i);
        snprintf(what, sizeof what, "%s: %s", name, tsh_parameters_name(w->list, i));
        tshi_test_same(r, what, p, tsh_tensor_data(q), 0);
        tshi_test_same_grad(r, what, p, tsh_tensor_data(tsh_tensor_grad(q)), 10 * off);
    }
}

#endif
