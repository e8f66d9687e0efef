/* Transformer blocks of several families, split by heads, against the whole block: values, gradients, collectives. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "layers/block_runs.h"

#include <criterion/criterion.h>

TestSuite(block, .timeout = 600);

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
        tsh_tensor *key = tsh_linear_weight(tsh_self_attention_linear(tsh_block_attention(w.block), TSH_ATTENTION_KEY));
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
