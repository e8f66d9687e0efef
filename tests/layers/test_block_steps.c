/* Transformer blocks in use: evaluation with a cache, memory of steady steps, dropout, tables, wrong inputs. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "layers/block_runs.h"

#include <criterion/criterion.h>

TestSuite(block_steps, .timeout = 600);

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

Test(block_steps, with_a_cache_gives_the_rows_of_the_whole_sequence) {
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

Test(block_steps, keeps_nothing_but_its_output_in_evaluation) {
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

Test(block_steps, steady_steps_take_no_new_memory) {
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

Test(block_steps, drops_the_same_elements_at_any_number_of_ranks) {
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

Test(block_steps, has_the_same_values_as_any_table_splits_it) {
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

Test(block_steps, refuses_inputs_that_are_no_sequences) {
    cr_assert_str_empty(tshi_test_run(2, wrong_inputs, NULL));
}
