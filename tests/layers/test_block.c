/* Transformer blocks of several families, split by heads, against the whole block: values, gradients, collectives,
 * memory. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/layouts.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(block, .timeout = 600);

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

static tsh_tensor *numbers(tshi_rank *r, const tsh_mesh *mesh, int64_t batch, const double *from) {
    return tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_INT64, 1, {batch}, {R}}, from);
}

/* layouts: of x and dy. Values depend on the family and the number of tokens alone. */
static bool make(tshi_rank *r, tsh_group *group, const family *f, bool sequence, const tsh_sharding_rule *table,
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

static void destroy(run *w) {
    tsh_parameters_destroy(w->list);
    tsh_block_destroy(w->block);
    tsh_tensor_release(w->x);
    tsh_tensor_release(w->dy);
    tsh_tensor_release(w->positions);
    tsh_tensor_release(w->lengths);
}

static bool forward(tshi_rank *r, tsh_tape *tape, run *w) {
    w->y = tsh_block_forward(tape, w->block, w->x, &w->rows);
    return tshi_check(r, w->y, "%s", tsh_tape_message(tape));
}

static void backward(tshi_rank *r, tsh_tape *tape, run *w) {
    tshi_check_ok(r, tsh_backward_with(tape, w->y, &(tsh_backward_config){.gradient = w->dy, .retain_graph = true}));
}

/* The parts of w are those of `whole`, which every rank has all of: bit for bit in a deterministic world. */
static void compare(tshi_rank *r, const char *name, const run *w, const run *whole) {
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

/* --- one axis ----------------------------------------------------------------------------------------------------- */

/* Two halves; with sequence parallelism gradients of the norms' parameters are summed; the ranks that share a KV head
 * sum the gradients of its projections, in an exchange for each of them whose bytes differ by rank. */
static void expect(const family *f, bool sequence, bool back, const tsh_group *g, tsh_communication_stats *out) {
    *out = (tsh_communication_stats){0};
    for (int half = 0; half < 2; half++) {
        if (!sequence) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_REDUCE, TOKENS * EMBED, sizeof(double));
        if (sequence) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_GATHER, TOKENS * EMBED, sizeof(double));
        if (sequence) tshi_test_expect(out, g, TSH_COLLECTIVE_REDUCE_SCATTER, TOKENS * EMBED, sizeof(double));
        for (int i = 0; sequence && back && i < 1 + f->config.norm.bias; i++) {
            tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_REDUCE, EMBED, sizeof(double));
        }
    }
    const tsh_self_attention_config *a = &f->config.attention;
    bool shared = a->kv_heads && a->kv_heads < a->heads && tsh_group_size(g) > a->kv_heads;
    if (!shared || !back) return;
    out->calls[TSH_COLLECTIVE_ALL_TO_ALL] = a->bias ? 4 : 2;
    out->bytes[TSH_COLLECTIVE_ALL_TO_ALL] = tsh_group_stats(g).bytes[TSH_COLLECTIVE_ALL_TO_ALL];
}

static void check_one(tshi_rank *r, tsh_tape *tape, const family *f, bool sequence) {
    char name[96];
    run whole, w;
    tsh_communication_stats wanted;
    tsh_group *g = tsh_world_group(r->world);
    tsh_layout layout = sequence ? TSH_SHARD(0) : TSH_REPLICATED, replicated = TSH_REPLICATED;
    snprintf(name, sizeof name, "%s%s", f->name, sequence ? ", sequence parallel" : "");
    if (!make(r, g, f, false, dense, BATCH, &replicated, &whole)) return;
    if (!make(r, g, f, sequence, NULL, BATCH, &layout, &w)) return;
    if (forward(r, tape, &whole)) backward(r, tape, &whole);
    tsh_group_reset_stats(g);
    if (!r->failed && forward(r, tape, &w)) {
        expect(f, sequence, false, g, &wanted);
        tshi_test_calls(r, name, g, &wanted);
        backward(r, tape, &w);
        expect(f, sequence, true, g, &wanted);
        tshi_test_calls(r, name, g, &wanted);
        compare(r, name, &w, &whole);
    }
    tsh_tape_reset(tape);
    destroy(&whole);
    destroy(&w);
}

static void all_families(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < FAMILIES && !r->failed; i++) {
        check_one(r, tape, &families[i], false);
        if (!r->failed) check_one(r, tape, &families[i], true);
    }
    tsh_tape_destroy(tape);
}

/* 7 ranks leave some without a head, a hidden feature or a token. */
Test(block, equals_the_whole_block_with_two_collectives_each_way) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, all_families, NULL));
    cr_assert_str_empty(tshi_test_run(7, all_families, NULL));
}

/* A schedule sums the norms' gradients, and those of the row layers' biases, in one bucket with a flag for each. */
static void in_one_sum(tshi_rank *r, void *arg) {
    const tsh_layout layout = TSH_SHARD(0), replicated = TSH_REPLICATED;
    tsh_group *g = tsh_world_group(r->world);
    tsh_tape *tape = NULL, *scheduled = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_tape_create(r->world, &scheduled));
    for (int i = 0; i < FAMILIES && !r->failed; i++) {
        const family *f = &families[i];
        tsh_data_parallel *sums = NULL;
        tsh_communication_stats wanted;
        run whole, w;
        if (!make(r, g, f, false, dense, BATCH, &replicated, &whole)) break;
        if (!make(r, g, f, true, NULL, BATCH, &layout, &w)) break;
        if (forward(r, tape, &whole)) backward(r, tape, &whole);
        if (!tshi_check_ok(r, tsh_data_parallel_create(scheduled, w.list, g, NULL, &sums))) break;
        if (!forward(r, scheduled, &w)) break;
        tsh_group_reset_stats(g);
        backward(r, scheduled, &w);
        if (!r->failed) tshi_check_ok(r, tsh_data_parallel_wait(sums));
        expect(f, true, true, g, &wanted);
        wanted.calls[TSH_COLLECTIVE_ALL_REDUCE] = wanted.bytes[TSH_COLLECTIVE_ALL_REDUCE] = 0;
        tshi_test_calls(r, f->name, g, &wanted);
        uint64_t made = tsh_group_stats(tsh_data_parallel_group(sums)).calls[TSH_COLLECTIVE_ALL_REDUCE];
        tshi_check(r, made == (tsh_group_size(g) > 1), "%s: %llu sums of gradients", f->name, (unsigned long long)made);
        compare(r, f->name, &w, &whole);
        tsh_data_parallel_destroy(sums);
        tsh_tape_reset(scheduled);
        tsh_tape_reset(tape);
        destroy(&whole);
        destroy(&w);
    }
    tsh_tape_destroy(scheduled);
    tsh_tape_destroy(tape);
}

Test(block, sums_the_gradients_of_sequence_parallelism_at_once_with_a_schedule) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, in_one_sum, NULL));
    cr_assert_str_empty(tshi_test_run(7, in_one_sum, NULL));
}

/* --- a data axis beside the heads --------------------------------------------------------------------------------- */

/* Three sequences over two ranks: a rank has whole sequences. */
static void on_mesh(tshi_rank *r, void *axes) {
    enum { SEQUENCES = 3 };
    const tsh_layout replicated[2] = {TSH_REPLICATED, TSH_REPLICATED};
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, axes, &mesh))) return;
    tsh_group *model = tsh_mesh_group(mesh, "model");
    for (int i = 0; i < 2 * FAMILIES && !r->failed; i++) {
        const family *f = &families[i / 2];
        bool sequence = i % 2;
        tsh_layout split[2] = {TSH_SHARD_UNITS(0, SEQUENCES, 0), sequence ? TSH_SHARD(0) : TSH_REPLICATED};
        run whole, w;
        if (!make(r, model, f, false, dense, SEQUENCES, replicated, &whole)) break;
        if (!make(r, model, f, sequence, NULL, SEQUENCES, split, &w)) break;
        if (forward(r, tape, &whole)) backward(r, tape, &whole);
        if (!r->failed && forward(r, tape, &w)) backward(r, tape, &w);
        compare(r, f->name, &w, &whole);
        tsh_tape_reset(tape);
        destroy(&whole);
        destroy(&w);
    }
    tsh_tape_destroy(tape);
    if (!r->failed) tsh_barrier(tsh_world_group(r->world));
    tsh_mesh_destroy(mesh);
}

Test(block, splits_sequences_over_a_data_axis_beside_the_heads) {
    cr_assert_str_empty(tshi_test_run(2, on_mesh, "data=2,model=1"));
    cr_assert_str_empty(tshi_test_run(4, on_mesh, "data=2,model=2"));
    cr_assert_str_empty(tshi_test_run(6, on_mesh, "data=2,model=3"));
}

/* --- tokens, positions and lengths split in any way --------------------------------------------------------------- */

typedef struct split {
    const char *axes;
    bool sequence;
    int64_t batch;
    tsh_layout x[2], positions[2], lengths[2];
} split;

static const split splits[] = {
    /* Beside sequence parallelism a later axis splits tokens too, inside sequences or by sequences. */
    {"model=2,data=2", true, 1, {TSH_SHARD(0), TSH_SHARD(0)}, {R}, {R}},
    {"model=2,data=2", true, 2, {TSH_SHARD(0), TSH_SHARD(0)}, {R}, {R}},
    {"model=2,data=2", true, 3, {TSH_SHARD(0), TSH_SHARD(0)}, {R}, {R}},
    {"model=2,data=2", false, 3, {TSH_SHARD(0), TSH_SHARD(0)}, {R}, {R}},
    /* What says where tokens are is split where they are not, by heads too. */
    {"data=2,model=2", false, 2, {R, R}, {R, TSH_SHARD(0)}, {R, TSH_SHARD(0)}},
    {"data=2,model=2", false, 2, {R, R}, {TSH_SHARD(0), R}, {TSH_SHARD(0), R}},
    {"data=2,model=2", true, 3, {TSH_SHARD(0), TSH_SHARD(0)}, {TSH_SHARD(0), TSH_SHARD(0)}, {R, TSH_SHARD(0)}},
    {"data=2,model=2", false, 3, {TSH_SHARD(0), R}, {TSH_SHARD(0), R}, {TSH_SHARD(0), TSH_SHARD(0)}},
};

static tsh_tensor *split_numbers(tshi_rank *r, const tsh_mesh *mesh, tsh_tensor *whole, const tsh_layout *layouts) {
    tsh_tensor_config config = {TSH_INT64, 1, {tsh_tensor_shape(whole)[0]}, {R}};
    tsh_tensor *out = NULL;
    memcpy(config.layout, layouts, 2 * sizeof *layouts);
    if (tshi_check_ok(r, tsh_tensor_create(mesh, &config, &out)))
        tshi_check_ok(r, tsh_tensor_write_whole(out, tsh_tensor_data(whole)));
    tsh_tensor_release(whole);
    return out;
}

static void split_anyhow(tshi_rank *r, void *arg) {
    const tsh_layout replicated[2] = {R, R};
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (size_t i = 0; i < sizeof splits / sizeof *splits * FAMILIES && !r->failed; i++) {
        const split *how = &splits[i / FAMILIES];
        const family *f = &families[i % FAMILIES];
        char name[96];
        tsh_mesh *mesh = NULL;
        run whole, w;
        snprintf(name, sizeof name, "%s, split %zu", f->name, i / FAMILIES);
        if (!tshi_check_ok(r, tsh_mesh_create(r->world, how->axes, &mesh))) break;
        tsh_group *model = tsh_mesh_group(mesh, "model");
        if (!make(r, model, f, false, dense, how->batch, replicated, &whole)) break;
        if (!make(r, model, f, how->sequence, NULL, how->batch, how->x, &w)) break;
        w.rows.positions = w.positions = split_numbers(r, mesh, w.positions, how->positions);
        if (w.lengths) w.rows.lengths = w.lengths = split_numbers(r, mesh, w.lengths, how->lengths);
        if (!r->failed && forward(r, tape, &whole)) backward(r, tape, &whole);
        if (!r->failed && forward(r, tape, &w)) backward(r, tape, &w);
        compare(r, name, &w, &whole);
        tsh_tape_reset(tape);
        destroy(&whole);
        destroy(&w);
        if (!r->failed) tsh_barrier(tsh_world_group(r->world));
        tsh_mesh_destroy(mesh);
    }
    tsh_tape_destroy(tape);
}

Test(block, takes_tokens_positions_and_lengths_split_in_any_way) {
    cr_assert_str_empty(tshi_test_run(4, split_anyhow, NULL));
}

/* --- determinism -------------------------------------------------------------------------------------------------- */

Test(block, in_a_deterministic_world_has_the_bits_of_the_whole_block) {
    setenv("TSHARD_DETERMINISTIC", "1", 1);
    cr_assert_str_empty(tshi_test_run(2, on_mesh, "data=1,model=2"));
    cr_assert_str_empty(tshi_test_run(3, on_mesh, "data=1,model=3"));
    cr_assert_str_empty(tshi_test_run(3, on_mesh, "data=3,model=1"));
    cr_assert_str_empty(tshi_test_run(4, on_mesh, "data=2,model=2"));
}

/* --- recomputation ------------------------------------------------------------------------------------------------ */

static void same_bits(tshi_rank *r, const char *name, const tsh_tensor *got, const tsh_tensor *wanted) {
    tsh_tensor *a = tsh_tensor_grad(got), *b = tsh_tensor_grad(wanted);
    size_t bytes = tsh_tensor_local_nbytes(got);
    bool same = a && b && memcmp(tsh_tensor_data(a), tsh_tensor_data(b), bytes) == 0;
    tshi_check(r, same, "%s: a gradient has other bits when the block runs again", name);
}

/* Two backwards over a block that runs again, and over one that keeps all; dropout draws alike. */
static void run_again(tshi_rank *r, tsh_tape *tape, tsh_group *model, const family *f, bool sequence) {
    const tsh_layout layouts[2] = {TSH_SHARD_UNITS(0, 3, 0), sequence ? TSH_SHARD(0) : TSH_REPLICATED};
    family again = *f;
    run kept, w;
    again.config.dropout = again.config.attention.dropout = 0.25;
    if (!make(r, model, &again, sequence, NULL, 3, layouts, &kept)) return;
    again.config.recompute = true;
    if (!make(r, model, &again, sequence, NULL, 3, layouts, &w)) return;
    for (int i = 0; i < 2; i++) {
        tsh_world_seed(r->world, 4);
        run *one = i ? &w : &kept;
        if (!forward(r, tape, one)) return;
        backward(r, tape, one);
        backward(r, tape, one);
        tsh_tape_reset(tape);
    }
    same_bits(r, f->name, w.x, kept.x);
    for (int i = 0; i < tsh_parameters_count(w.list) && !r->failed; i++) {
        same_bits(r, f->name, tsh_parameters_tensor(w.list, i), tsh_parameters_tensor(kept.list, i));
    }
    destroy(&kept);
    destroy(&w);
}

static void recomputes(tshi_rank *r, void *axes) {
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, axes, &mesh))) return;
    for (int i = 0; i < 2 * FAMILIES && !r->failed; i++) {
        run_again(r, tape, tsh_mesh_group(mesh, "model"), &families[i / 2], i % 2);
    }
    tsh_tape_destroy(tape);
    if (!r->failed) tsh_barrier(tsh_world_group(r->world));
    tsh_mesh_destroy(mesh);
}

Test(block, that_runs_again_has_the_gradients_of_one_that_keeps_all) {
    cr_assert_str_empty(tshi_test_run(1, recomputes, "data=1,model=1"));
    cr_assert_str_empty(tshi_test_run(2, recomputes, "data=1,model=2"));
    cr_assert_str_empty(tshi_test_run(3, recomputes, "data=1,model=3"));
    cr_assert_str_empty(tshi_test_run(4, recomputes, "data=2,model=2"));
}

/* --- gradient check ----------------------------------------------------------------------------------------------- */

static tsh_tensor *objective(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    run *w = user;
    tsh_tensor *y = tsh_block_forward(tape, w->block, inputs[0], &w->rows);
    return tsh_sum(tape, tsh_mul(tape, y, w->dy), TSH_ALL_DIMS);
}

static void check_gradients(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    double worst = 1;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 1; i < FAMILIES && !r->failed; i += 2) {
        run w;
        tsh_layout layout = i == 1 ? TSH_SHARD(0) : TSH_REPLICATED;
        if (!make(r, tsh_world_group(r->world), &families[i], i == 1, NULL, BATCH, &layout, &w)) break;
        tsh_tensor *key = tsh_linear_weight(tsh_self_attention_linear(tsh_block_attention(w.block), TSH_KEY));
        tsh_tensor *norm = tsh_norm_weight(tsh_block_norm(w.block, TSH_BLOCK_ATTENTION_NORM));
        tsh_tensor *inputs[] = {w.x, key, norm};
        tshi_check_ok(r, tsh_gradient_check(tape, objective, inputs, 3, 0, &w, &worst));
        tshi_check(r, worst < 1e-5, "%s: worst %g", families[i].name, worst);
        destroy(&w);
    }
    tsh_tape_destroy(tape);
}

Test(block, passes_the_gradient_check) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, check_gradients, NULL));
}

/* --- evaluation --------------------------------------------------------------------------------------------------- */

/* The tokens [from, to) of one sequence through a block with a cache, as those of a whole sequence. */
static tsh_tensor *some_tokens(tshi_rank *r, tsh_tape *tape, run *w, int64_t from, int64_t to) {
    double places[MOST_TOKENS];
    for (int64_t i = from; i < to; i++) places[i - from] = (double)(3 + i);
    tsh_tensor_config config = {TSH_INT64, 1, {to - from}, {R}};
    tsh_tensor *positions = tshi_test_tensor(r, tsh_tensor_mesh(w->x), &config, places);
    tsh_sequences rows = {.batch = 1, .positions = positions, .cache = w->rows.cache};
    tsh_tensor *x = tsh_slice(tape, w->x, 0, from, to - from);
    tsh_tensor *y = tsh_block_forward(tape, w->block, x, &rows);
    tsh_tensor_release(positions);
    return y;
}

static void generates(tshi_rank *r, void *arg) {
    enum { PROMPT = 2 };
    const tsh_layout replicated = TSH_REPLICATED;
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < 3 && !r->failed; i++) {
        run w;
        if (!make(r, tsh_world_group(r->world), &families[i], false, NULL, 1, &replicated, &w)) break;
        tsh_kv_cache_config config = tsh_self_attention_cache(tsh_block_attention(w.block), 1, TIME);
        tsh_tape_set_recording(tape, false);
        if (!forward(r, tape, &w)) break;
        if (!tshi_check_ok(r, tsh_kv_cache_create(tsh_world_mesh(r->world), &config, &w.rows.cache))) break;
        for (int64_t from = 0; from < TIME && !r->failed; from = from ? from + 1 : PROMPT) {
            int64_t to = from ? from + 1 : PROMPT;
            tsh_tensor *y = some_tokens(r, tape, &w, from, to);
            if (!tshi_check(r, y, "%s", tsh_tape_message(tape))) break;
            tshi_test_same(r, families[i].name, y, (const double *)tsh_tensor_data(w.y) + from * EMBED, 1e-11);
        }
        tshi_check(r, !some_tokens(r, tape, &w, 0, 1) && strstr(tsh_tape_message(tape), "the cache is full"), "%s",
                   tsh_tape_message(tape));
        tsh_tape_reset(tape);
        tsh_kv_cache_destroy(w.rows.cache);
        destroy(&w);
    }
    tsh_tape_destroy(tape);
}

Test(block, with_a_cache_gives_the_rows_of_the_whole_sequence) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, generates, NULL));
}

/* While nothing is recorded a deep stack needs the memory of a shallow one, and the outputs of its further blocks. */
static void memory(tshi_rank *r, void *arg) {
    const tsh_layout replicated = TSH_REPLICATED;
    tsh_device *device = tsh_world_device(r->world);
    size_t peak[2];
    tsh_tape *tape = NULL;
    run w;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tape_set_recording(tape, false);
    if (!make(r, tsh_world_group(r->world), &families[1], false, NULL, BATCH, &replicated, &w)) return;
    for (int deep = 0; deep < 2; deep++) {
        size_t before = tsh_device_stats(device).bytes_in_use;
        tsh_tensor *x = w.x;
        tsh_device_reset_peak(device);
        for (int i = 0; i < (deep ? 9 : 2); i++) x = tsh_block_forward(tape, w.block, x, &w.rows);
        tshi_check(r, x, "%s", tsh_tape_message(tape));
        peak[deep] = tsh_device_stats(device).bytes_peak - before;
        tshi_check_ok(r, tsh_tape_reset(tape));
    }
    size_t output = TOKENS * EMBED * sizeof(double) + 63;
    tshi_check(r, peak[1] <= peak[0] + 7 * output, "2 blocks need %zu bytes, 9 need %zu", peak[0], peak[1]);
    destroy(&w);
    tsh_tape_destroy(tape);
}

Test(block, keeps_nothing_but_its_output_in_evaluation) {
    cr_assert_str_empty(tshi_test_run(2, memory, NULL));
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

static void steady(tshi_rank *r, void *arg) {
    const tsh_layout layouts[] = {TSH_REPLICATED, TSH_SHARD(0)};
    tsh_device *device = tsh_world_device(r->world);
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < 2 * FAMILIES && !r->failed; i++) {
        run w;
        uint64_t allocations = 0;
        if (!make(r, tsh_world_group(r->world), &families[i / 2], i % 2, NULL, BATCH, &layouts[i % 2], &w)) break;
        for (int step = 0; step < 5 && forward(r, tape, &w); step++) {
            tshi_check_ok(r, tsh_backward_with(tape, w.y, &(tsh_backward_config){.gradient = w.dy}));
            tshi_check_ok(r, tsh_tape_reset(tape));
            tsh_parameters_zero_grad(w.list);
            tsh_tensor_zero_grad(w.x);
            uint64_t now = tsh_device_stats(device).allocations;
            tshi_check(r, step < 3 || now == allocations, "%s: step %d takes new memory", families[i / 2].name, step);
            allocations = now;
        }
        destroy(&w);
    }
    tsh_tape_destroy(tape);
}

Test(block, steady_steps_take_no_new_memory) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, steady, NULL));
}

/* The draw of each element is the same at any number of ranks. */
static void drops(tshi_rank *r, void *arg) {
    const tsh_layout replicated = TSH_REPLICATED;
    tsh_tape *tape = NULL;
    family f = families[1];
    run whole, w;
    (void)arg;
    f.config.dropout = 0.3;
    f.config.attention.dropout = 0.4;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    bool good = make(r, tsh_world_group(r->world), &f, false, dense, BATCH, &replicated, &whole) &&
                forward(r, tape, &whole) &&
                make(r, tsh_world_group(r->world), &f, false, NULL, BATCH, &replicated, &w) && forward(r, tape, &w);
    if (good) {
        backward(r, tape, &whole);
        backward(r, tape, &w);
        compare(r, "dropout", &w, &whole);
        tsh_tape_reset(tape);
        destroy(&whole);
        destroy(&w);
    }
    tsh_tape_destroy(tape);
}

Test(block, drops_the_same_elements_at_any_number_of_ranks) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, drops, NULL));
}

/* --- tables and wrong inputs -------------------------------------------------------------------------------------- */

/* Tables that split a block in other ways have the same values. */
static void by_tables(tshi_rank *r, void *arg) {
    static const tsh_sharding_rule tables[][5] = {
        {{"self_attn.*", "dense"}, {"mlp.down_proj", "rowwise"}, {"mlp.*", "colwise"}, {NULL, NULL}},
        {{"*.q_proj", "colwise_rep"}, {"*.k_proj", "colwise_rep"}, {"*.o_proj", "row"}, {NULL, NULL}},
        {{"*.q_proj", "column"}, {"*.o_proj", "row"}, {NULL, NULL}},
        {{"*.v_proj", "row"}, {"*.o_proj", "column_gather"}, {NULL, NULL}}};
    const tsh_layout replicated = TSH_REPLICATED;
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < 8 && !r->failed; i++) {
        run whole, w;
        const family *f = &families[i / 4];
        if (!make(r, tsh_world_group(r->world), f, false, dense, BATCH, &replicated, &whole)) break;
        if (!make(r, tsh_world_group(r->world), f, false, tables[i % 4], BATCH, &replicated, &w)) break;
        if (forward(r, tape, &whole)) backward(r, tape, &whole);
        if (!r->failed && forward(r, tape, &w)) backward(r, tape, &w);
        char name[32];
        snprintf(name, sizeof name, "table %d", i % 4);
        compare(r, name, &w, &whole);
        tsh_tape_reset(tape);
        destroy(&whole);
        destroy(&w);
    }
    tsh_tape_destroy(tape);
}

Test(block, has_the_same_values_as_any_table_splits_it) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, by_tables, NULL));
}

static void wrong_inputs(tshi_rank *r, void *arg) {
    const tsh_layout replicated = TSH_REPLICATED;
    tsh_tape *tape = NULL;
    run w;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    if (!make(r, tsh_world_group(r->world), &families[1], false, NULL, BATCH, &replicated, &w)) return;
    const struct {
        tsh_sequences rows;
        const char *words;
    } wrong[] = {{{.batch = 0}, "the number of sequences is required"},
                 {{.batch = 3, .positions = w.positions}, "with the same number of tokens for each of 3 sequences"},
                 {{.batch = 2}, "positions are required by a rotary layer"},
                 {{.batch = 1, .positions = w.positions}, "rotary"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        tshi_check(r, !tsh_block_forward(tape, w.block, w.x, &wrong[i].rows), "took %zu", i);
        tshi_check(r, strstr(tsh_tape_message(tape), wrong[i].words), "%zu: %s", i, tsh_tape_message(tape));
        tshi_check_ok(r, tsh_tape_reset(tape));
    }
    destroy(&w);
    tsh_tape_destroy(tape);
}

Test(block, refuses_inputs_that_are_no_sequences) {
    cr_assert_str_empty(tshi_test_run(2, wrong_inputs, NULL));
}
