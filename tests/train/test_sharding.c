/* Data parallelism that shares out states, gradients and parameters: the values of one rank on the whole batch, with
 * one reduce-scatter and one all-gather a bucket. */
#include "support/files.h"
#include "support/tensors.h"
#include "train/bucket.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { VOCABULARY = 11, EMBED = 6, HEADS = 3, HIDDEN = 7, BATCH = 5, TIME = 2, STEPS = 4, MOST = 1024 };

/* What a run leaves: losses and norms of its steps, parameters as wholes one after another. */
typedef struct outcome {
    double losses[STEPS], norms[STEPS], values[MOST];
    int64_t count;
} outcome;

enum { ADAMW, SGD, MUON };

typedef struct plan {
    const char *axes;
    tsh_dtype dtype;
    tsh_zero_level level;
    int optimizer;
    size_t bucket_bytes;
    const outcome *wanted;
    double max_norm; /* of the table's rows; gradients are not clipped then */
} plan;

/* A table that is the head, too, a block of key and value heads that three ranks share, a norm, a scalar, and a frozen
 * vector. */
typedef struct kit {
    tsh_mesh *mesh;
    tsh_tape *tape;
    tsh_embedding *table;
    tsh_block *block;
    tsh_norm *norm;
    tsh_tensor *scalar, *frozen, *ids, *targets;
    tsh_parameters *list;
    tsh_data_parallel *dp;
    tsh_optimizer *optimizer;
    double clip;
} kit;

static void make_layers(tshi_rank *r, const plan *p, kit *k) {
    tsh_group *g = tsh_mesh_group(k->mesh, "model");
    const tsh_block_config block = {.embed = EMBED,
                                    .dtype = p->dtype,
                                    .attention = {.heads = HEADS, .kv_heads = 1, .causal = true, .bias = true},
                                    .mlp = {.hidden = HIDDEN, .activation = TSH_ACTIVATION_GELU, .bias = true}};
    tsh_embedding_create(g,
                         &(tsh_embedding_config){.num_embeddings = VOCABULARY,
                                                 .embedding_dim = EMBED,
                                                 .shard = TSH_ROW,
                                                 .dtype = p->dtype,
                                                 .max_norm = p->max_norm,
                                                 .init = {.kind = TSH_INIT_NORMAL, .b = 0.5}},
                         &k->table);
    tsh_block_create(g, &block, &k->block);
    tsh_norm_create(g, &(tsh_norm_config){.features = EMBED, .dtype = p->dtype}, &k->norm);
    tsh_tensor_create(k->mesh, &(tsh_tensor_config){.dtype = p->dtype}, &k->scalar);
    tsh_tensor_create(k->mesh, &(tsh_tensor_config){.dtype = p->dtype, .ndim = 1, .shape = {EMBED}}, &k->frozen);
    if (!tshi_check(r, k->table && k->block && k->norm && k->frozen, "%s", tsh_error_message())) return;
    tshi_check_ok(r, tsh_tensor_fill(k->scalar, 1.5));
    tshi_check_ok(r, tsh_tensor_fill(k->frozen, 0.25));
    tshi_check_ok(r, tsh_tensor_require_grad(k->scalar, true));
}

static void make_batch(tshi_rank *r, kit *k) {
    double ids[BATCH * TIME], targets[BATCH * TIME];
    for (int i = 0; i < BATCH * TIME; i++) {
        ids[i] = (i * 7 + 3) % VOCABULARY;
        targets[i] = (i * 5 + 2) % VOCABULARY;
    }
    tsh_tensor_config rows = {TSH_INT64, 1, {BATCH * TIME}, {TSH_REPLICATED}};
    rows.layout[tshi_mesh_axis(k->mesh, tsh_mesh_group(k->mesh, "data"))] = TSH_SHARD_UNITS(0, BATCH, 0);
    k->ids = tshi_test_tensor(r, k->mesh, &rows, ids);
    k->targets = tshi_test_tensor(r, k->mesh, &rows, targets);
}

static bool make_kit(tshi_rank *r, const plan *p, kit *k) {
    const tsh_data_parallel_config config = {
        .level = p->level, .bucket_bytes = p->bucket_bytes, .first_bucket_bytes = p->bucket_bytes};
    *k = (kit){.clip = p->max_norm > 0 ? 1e9 : 0.4};
    tsh_world_seed(r->world, 3);
    tshi_check_ok(r, tsh_mesh_create(r->world, p->axes, &k->mesh));
    make_layers(r, p, k);
    make_batch(r, k);
    if (r->failed) return false;
    tshi_check_ok(r, tsh_tape_create(r->world, &k->tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &k->list));
    tshi_check_ok(r, tsh_embedding_register(k->table, k->list, "table"));
    tshi_check_ok(r, tsh_block_register(k->block, k->list, "layers.0"));
    tshi_check_ok(r, tsh_norm_register(k->norm, k->list, "norm"));
    tshi_check_ok(r, tsh_parameters_add(k->list, "scalar", k->scalar));
    tshi_check_ok(r, tsh_parameters_add(k->list, "frozen", k->frozen));
    tshi_check_ok(r, tsh_data_parallel_create(k->tape, k->list, tsh_mesh_group(k->mesh, "data"), &config, &k->dp));
    const tsh_sgd_config sgd = {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true};
    /* A large eps: elements whose gradient is zero but for rounding do not move by a whole step. */
    const tsh_adamw_config adamw = {.lr = 0.01, .eps = 1e-3, .weight_decay = 0.1, .decay_matrices = true};
    static const char *const table[] = {"table.*", NULL};
    const tsh_muon_config muon = {.lr = 0.02, .weight_decay = 0.1, .adamw = table, .adamw_lr_factor = 0.5, .eps = 1e-3};
    tshi_check_ok(r, p->optimizer == SGD    ? tsh_sgd_create(k->list, &sgd, &k->optimizer)
                     : p->optimizer == MUON ? tsh_muon_create(k->list, &muon, &k->optimizer)
                                            : tsh_adamw_create(k->list, &adamw, &k->optimizer));
    return !r->failed;
}

static void free_kit(kit *k) {
    tsh_optimizer_destroy(k->optimizer);
    tsh_data_parallel_destroy(k->dp);
    tsh_parameters_destroy(k->list);
    tsh_tape_destroy(k->tape);
    tsh_tensor_release(k->ids);
    tsh_tensor_release(k->targets);
    tsh_tensor_release(k->scalar);
    tsh_tensor_release(k->frozen);
    tsh_norm_destroy(k->norm);
    tsh_block_destroy(k->block);
    tsh_embedding_destroy(k->table);
    tsh_mesh_destroy(k->mesh);
}

static tsh_tensor *loss_of(kit *k) {
    const tsh_sequences sequences = {.batch = BATCH};
    tsh_tensor *x = tsh_embedding_forward(k->tape, k->table, k->ids);
    x = tsh_block_forward(k->tape, k->block, tsh_add(k->tape, x, k->frozen), &sequences);
    x = tsh_mul(k->tape, tsh_norm_forward(k->tape, k->norm, x), k->scalar);
    return tsh_cross_entropy(k->tape, tsh_embedding_project(k->tape, k->table, x), k->targets, NULL);
}

static bool backward(tshi_rank *r, kit *k, double *loss) {
    tsh_tensor *mean = loss_of(k);
    if (!tshi_check(r, tsh_backward(k->tape, mean) == TSH_OK, "%s", tsh_tape_message(k->tape))) return false;
    if (loss) *loss = tsh_tensor_item(mean);
    return tshi_check_ok(r, tsh_tape_reset(k->tape));
}

/* The second step gathers two backwards. */
static void step(tshi_rank *r, kit *k, int number, outcome *out) {
    if (number == 1) {
        tsh_data_parallel_set_sync(k->dp, false);
        backward(r, k, NULL);
        tsh_data_parallel_set_sync(k->dp, true);
    }
    if (!backward(r, k, &out->losses[number])) return;
    if (number == 2) backward(r, k, NULL); /* beside gradients that are summed already */
    tshi_check_ok(r, tsh_clip_grad_norm(k->list, k->clip, &out->norms[number]));
    tshi_check_ok(r, tsh_optimizer_step(k->optimizer));
    tsh_optimizer_zero_grad(k->optimizer);
}

static double element(const void *whole, tsh_dtype dtype, int64_t i) {
    return dtype == TSH_FLOAT64 ? ((const double *)whole)[i] : (double)((const float *)whole)[i];
}

static void read_values(tshi_rank *r, const kit *k, outcome *out) {
    double whole[MOST];
    out->count = 0;
    for (int i = 0; i < tsh_parameters_count(k->list); i++) {
        const tsh_tensor *p = tsh_parameters_tensor(k->list, i);
        int64_t n = tshi_shape_numel(&p->shape);
        if (!tshi_check(r, out->count + n <= MOST, "%lld values", (long long)(out->count + n))) return;
        tshi_check_ok(r, tsh_tensor_read_whole(p, whole));
        for (int64_t j = 0; j < n; j++) out->values[out->count++] = element(whole, p->dtype, j);
    }
}

static void run(tshi_rank *r, const plan *p, outcome *out) {
    kit k;
    if (make_kit(r, p, &k)) {
        for (int i = 0; i < STEPS && !r->failed; i++) step(r, &k, i, out);
        if (!r->failed) read_values(r, &k, out);
    }
    free_kit(&k);
}

static void close_to(tshi_rank *r, const char *what, int64_t i, double got, double wanted, double tolerance) {
    double size = fabs(wanted) > 1 ? fabs(wanted) : 1;
    tshi_check(r, fabs(got - wanted) <= tolerance * size, "%s %lld: %.17g, wanted %.17g", what, (long long)i, got,
               wanted);
}

static void alone(tshi_rank *r, void *arg) {
    run(r, arg, r->result);
}

static void matches(tshi_rank *r, void *arg) {
    const plan *p = arg;
    const outcome *w = p->wanted;
    outcome got = {0};
    /* Muon's iterations multiply small singular values, and their rounding, by hundreds. */
    double tolerance = p->dtype == TSH_FLOAT64 ? (p->optimizer == MUON ? 1e-10 : 1e-12) : 2e-5;
    run(r, p, &got);
    for (int i = 0; i < STEPS; i++) {
        close_to(r, "loss", i, got.losses[i], w->losses[i], tolerance);
        close_to(r, "norm", i, got.norms[i], w->norms[i], tolerance);
    }
    for (int64_t i = 0; i < w->count && !r->failed; i++)
        close_to(r, "value", i, got.values[i], w->values[i], tolerance);
}

static const struct {
    int ranks;
    const char *axes;
} meshes[] = {{1, "data=1,model=1"}, {2, "data=2,model=1"}, {2, "data=1,model=2"}, {4, "data=2,model=2"},
              {4, "data=4,model=1"}, {6, "data=3,model=2"}, {4, "model=2,data=2"}};

static void every_mesh(tsh_zero_level level, tsh_dtype dtype, int optimizer) {
    outcome one = {0};
    plan p = {"data=1,model=1", dtype, TSH_ZERO_NOTHING, optimizer, 0, NULL, 0};
    tshi_test_options options = {.ranks = 1, .result_bytes = sizeof one};
    cr_assert_str_empty(tshi_test_run_with(&options, alone, &p, NULL, &one));
    cr_assert_gt(one.count, 200);
    cr_assert_neq(one.losses[0], one.losses[STEPS - 1]);
    p.wanted = &one;
    p.level = level;
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        p.axes = meshes[i].axes;
        p.bucket_bytes = i % 2 ? 0 : 300;
        const char *words = tshi_test_run(meshes[i].ranks, matches, &p);
        cr_assert_str_empty(words, "%s, buckets of %zu: %s", p.axes, p.bucket_bytes, words);
    }
}

Test(sharding, nothing_is_plain_data_parallelism, .timeout = 120) {
    every_mesh(TSH_ZERO_NOTHING, TSH_FLOAT64, ADAMW);
}

Test(sharding, states_are_slices, .timeout = 120) {
    every_mesh(TSH_ZERO_OPTIMIZER, TSH_FLOAT64, ADAMW);
    every_mesh(TSH_ZERO_OPTIMIZER, TSH_FLOAT64, SGD);
    every_mesh(TSH_ZERO_OPTIMIZER, TSH_FLOAT32, ADAMW);
}

Test(sharding, gradients_are_slices, .timeout = 120) {
    every_mesh(TSH_ZERO_GRADIENTS, TSH_FLOAT64, ADAMW);
    every_mesh(TSH_ZERO_GRADIENTS, TSH_FLOAT64, SGD);
    every_mesh(TSH_ZERO_GRADIENTS, TSH_FLOAT32, SGD);
}

Test(sharding, parameters_are_slices, .timeout = 120) {
    every_mesh(TSH_ZERO_PARAMETERS, TSH_FLOAT64, ADAMW);
    every_mesh(TSH_ZERO_PARAMETERS, TSH_FLOAT64, SGD);
    every_mesh(TSH_ZERO_PARAMETERS, TSH_FLOAT32, ADAMW);
}

/* The values of copies that have all rows, which are scaled in place. */
static void bounds_rows(tshi_rank *r, void *arg) {
    plan p = *(const plan *)arg;
    outcome plain = {0}, got = {0}, unbounded = {0};
    run(r, &p, &plain);
    for (int level = TSH_ZERO_OPTIMIZER; level <= TSH_ZERO_PARAMETERS && !r->failed; level++) {
        p.level = (tsh_zero_level)level;
        run(r, &p, &got);
        for (int64_t i = 0; i < plain.count && !r->failed; i++)
            close_to(r, "value", i, got.values[i], plain.values[i], 1e-12);
        for (int i = 0; i < STEPS; i++) close_to(r, "loss", i, got.losses[i], plain.losses[i], 1e-12);
    }
    p.max_norm = 1e9;
    run(r, &p, &unbounded);
    tshi_check(r, fabs(unbounded.losses[0] - plain.losses[0]) > 1e-3, "no row is scaled");
}

Test(sharding, rows_of_a_sharded_table_are_bounded, .timeout = 120) {
    plan p = {"data=2,model=2", TSH_FLOAT64, TSH_ZERO_NOTHING, .max_norm = 0.7};
    cr_assert_str_empty(tshi_test_run(4, bounds_rows, &p));
    p.axes = "model=1,data=2";
    cr_assert_str_empty(tshi_test_run(2, bounds_rows, &p));
}

/* --- what is communicated ----------------------------------------------------------------------------------------- */

/* One reduce-scatter a bucket, and one all-gather; at the last level one in forward and one in backward, of layers that
 * are used once: the table is there for the head when backward begins, and was gathered for the ids. */
static void expect(const tsh_data_parallel *dp, tsh_communication_stats *sums, tsh_communication_stats *gathers) {
    *sums = *gathers = (tsh_communication_stats){0};
    for (int b = 0; b < dp->bucket_count; b++) {
        const tshi_bucket *bucket = &dp->buckets[b];
        if (bucket->kind == &tshi_sharded_bucket) {
            int64_t all = tsh_tensor_local_numel(bucket->gathered), flags = bucket->counts[0] - bucket->value_counts[0];
            tshi_test_expect(sums, dp->group, TSH_COLLECTIVE_REDUCE_SCATTER, all + flags * tsh_group_size(dp->group),
                             8);
            tshi_test_expect(gathers, dp->group, TSH_COLLECTIVE_ALL_GATHER, all, 8);
            if (dp->level == TSH_ZERO_PARAMETERS)
                tshi_test_expect(gathers, dp->group, TSH_COLLECTIVE_ALL_GATHER, all, 8);
        } else {
            tshi_test_expect(sums, dp->group, TSH_COLLECTIVE_ALL_REDUCE, bucket->gradients + bucket->count, 8);
        }
    }
}

/* The values that functions take, or whole gradients, are in memory. */
static bool wholes_are_left(const tsh_data_parallel *dp) {
    for (int b = 0; b < dp->bucket_count; b++) {
        const tshi_bucket *bucket = &dp->buckets[b];
        if (bucket->kind != &tshi_sharded_bucket) continue;
        if (tshi_tensor_is_loaded(bucket->values) || tshi_tensor_is_loaded(bucket->memory)) return true;
    }
    return false;
}

static void counts(tshi_rank *r, void *arg) {
    const plan *p = arg;
    const tsh_communication_stats none = {0};
    tsh_communication_stats sums, gathers;
    kit k;
    if (!make_kit(r, p, &k)) return;
    expect(k.dp, &sums, &gathers);
    tshi_check(r, sums.calls[TSH_COLLECTIVE_REDUCE_SCATTER] > 1, "one bucket only");
    if (p->level == TSH_ZERO_PARAMETERS)
        tshi_check(r, tsh_data_parallel_buckets(k.dp) == 4, "%d buckets", tsh_data_parallel_buckets(k.dp));
    for (int i = 0; i < 3; i++) { /* the first step does not know what comes next */
        tsh_group_reset_stats(k.dp->group);
        tsh_group_reset_stats(k.dp->gathers);
        backward(r, &k, NULL);
        tshi_test_calls(r, "step", k.dp->group, &sums);
        tshi_test_calls(r, "step", k.dp->gathers, &gathers);
        tshi_check_ok(r, tsh_optimizer_step(k.optimizer));
        tshi_test_calls(r, "update", k.dp->gathers, &none);
        tshi_check(r, !wholes_are_left(k.dp), "step %d: wholes are left after the update", i);
    }
    free_kit(&k);
}

Test(sharding, a_bucket_is_one_reduce_scatter_and_one_all_gather, .timeout = 120) {
    plan p = {"data=2,model=2", TSH_FLOAT64, TSH_ZERO_OPTIMIZER, .bucket_bytes = 300};
    cr_assert_str_empty(tshi_test_run(4, counts, &p));
    p.level = TSH_ZERO_GRADIENTS;
    cr_assert_str_empty(tshi_test_run(4, counts, &p));
}

Test(sharding, a_layer_is_gathered_once_for_each_use, .timeout = 120) {
    plan p = {"data=2,model=2", TSH_FLOAT64, TSH_ZERO_PARAMETERS, .bucket_bytes = 300};
    cr_assert_str_empty(tshi_test_run(4, counts, &p));
}

/* Before TSH_ZERO_PARAMETERS values that have been gathered serve several forwards, and a backward without sync, until
 * the slices change. */
static void gathers_once(tshi_rank *r, void *arg) {
    const plan *p = arg;
    const tsh_communication_stats none = {0};
    tsh_communication_stats sums, gathers;
    kit k;
    if (!make_kit(r, p, &k)) return;
    expect(k.dp, &sums, &gathers);
    tsh_group_reset_stats(k.dp->gathers);
    for (int i = 0; i < 2; i++) {
        tshi_check(r, loss_of(&k) != NULL, "%s", tsh_tape_message(k.tape));
        tshi_check_ok(r, tsh_tape_reset(k.tape));
    }
    tsh_data_parallel_set_sync(k.dp, false);
    backward(r, &k, NULL);
    tsh_data_parallel_set_sync(k.dp, true);
    tshi_check(r, loss_of(&k) != NULL, "%s", tsh_tape_message(k.tape));
    tshi_check_ok(r, tsh_tape_reset(k.tape));
    tshi_test_calls(r, "two forwards and a micro-batch", k.dp->gathers, &gathers);
    backward(r, &k, NULL);
    tshi_test_calls(r, "a backward with sync", k.dp->gathers, &none);
    for (int i = 0; i < 2; i++) {
        tshi_check(r, loss_of(&k) != NULL, "%s", tsh_tape_message(k.tape));
        tshi_check_ok(r, tsh_tape_reset(k.tape));
        tshi_test_calls(r, i ? "after the update" : "before the update", k.dp->gathers, &gathers);
        if (!i) tshi_check_ok(r, tsh_optimizer_step(k.optimizer));
    }
    free_kit(&k);
}

Test(sharding, gathered_values_serve_until_they_change, .timeout = 120) {
    plan p = {"data=2,model=2", TSH_FLOAT64, TSH_ZERO_GRADIENTS, .bucket_bytes = 300};
    cr_assert_str_empty(tshi_test_run(4, gathers_once, &p));
}

/* --- checkpoints -------------------------------------------------------------------------------------------------- */

typedef struct leg {
    plan plan;
    int first, end; /* steps */
    const char *folder;
} leg;

/* Goes on from the checkpoint, if it is not the first leg, and saves one. */
static void go(tshi_rank *r, void *arg) {
    const leg *l = arg;
    outcome out = {0};
    kit k;
    if (!make_kit(r, &l->plan, &k)) return;
    tsh_checkpoint c = {.parameters = k.list, .optimizer = k.optimizer};
    if (l->first) tshi_check_ok(r, tsh_checkpoint_load(l->folder, &c));
    tshi_check(r, c.step == l->first, "step %lld", (long long)c.step);
    for (int i = l->first; i < l->end && !r->failed; i++) step(r, &k, i, &out);
    c.step = l->end;
    tshi_check_ok(r, tsh_checkpoint_save(l->folder, &c));
    if (l->end == STEPS) read_values(r, &k, &out);
    for (int64_t i = 0; l->end == STEPS && i < out.count; i++)
        close_to(r, "value", i, out.values[i], l->plan.wanted->values[i], 1e-10);
    free_kit(&k);
}

static void from_level_to_level(int optimizer) {
    outcome one = {0};
    plan p = {"data=1,model=1", TSH_FLOAT64, .optimizer = optimizer, .bucket_bytes = 300};
    tshi_test_options options = {.ranks = 1, .result_bytes = sizeof one};
    cr_assert_str_empty(tshi_test_run_with(&options, alone, &p, NULL, &one));
    const char *folder = tshi_test_folder(0);
    leg legs[] = {{{"data=4,model=1", TSH_FLOAT64, .level = TSH_ZERO_OPTIMIZER}, 0, 1, folder},
                  {{"data=3,model=1", TSH_FLOAT64, .level = TSH_ZERO_PARAMETERS}, 1, 2, folder},
                  {{"data=2,model=2", TSH_FLOAT64, .level = TSH_ZERO_GRADIENTS}, 2, 3, folder},
                  {{"data=1,model=2", TSH_FLOAT64, .level = TSH_ZERO_NOTHING}, 3, 4, folder}};
    const int ranks[] = {4, 3, 4, 2};
    for (int i = 0; i < 4; i++) {
        legs[i].plan.wanted = &one;
        legs[i].plan.optimizer = optimizer;
        const char *words = tshi_test_run(ranks[i], go, &legs[i]);
        cr_expect_str_empty(words, "%s: %s", legs[i].plan.axes, words);
    }
    tshi_test_remove(folder);
}

Test(sharding, checkpoints_go_from_level_to_level, .timeout = 120) {
    from_level_to_level(ADAMW);
}

Test(sharding, muon_steps_whole_matrices_at_every_level, .timeout = 120) {
    every_mesh(TSH_ZERO_NOTHING, TSH_FLOAT64, MUON);
    every_mesh(TSH_ZERO_PARAMETERS, TSH_FLOAT64, MUON);
    from_level_to_level(MUON);
}

/* --- parameters as they are --------------------------------------------------------------------------------------- */

/* sum(full(p) t) + sum(p t): the gradient of a parameter that is a slice has what its transition adds and what its
 * function adds, once each, for t is the same on all ranks. */
static void both_ways(tshi_rank *r, void *arg) {
    enum { ROWS = 5, COLS = 2 };
    double values[ROWS * COLS], t[ROWS * COLS], twice[ROWS * COLS];
    const tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {ROWS, COLS}};
    tsh_tape *tape = NULL;
    tsh_parameters *list = NULL;
    tsh_data_parallel *dp = NULL;
    (void)arg;
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tshi_test_integers(1, ROWS * COLS, values);
    tshi_test_integers(2, ROWS * COLS, t);
    for (int i = 0; i < ROWS * COLS; i++) twice[i] = 2 * t[i];
    tsh_tensor *p = tshi_test_leaf(r, mesh, &config, values), *c = tshi_test_tensor(r, mesh, &config, t);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_parameters_add(list, "p", p));
    const tsh_data_parallel_config level = {.level = TSH_ZERO_PARAMETERS};
    tshi_check_ok(r, tsh_data_parallel_create(tape, list, tsh_world_group(r->world), &level, &dp));
    for (int i = 0; i < 2 && !r->failed; i++) {
        tshi_test_same(r, "values", p, values, 0);
        tsh_tensor *a = tsh_sum(tape, tsh_mul(tape, tsh_full(tape, p), c), TSH_ALL_DIMS);
        tsh_tensor *b = i ? tsh_sum(tape, tsh_mul(tape, p, c), TSH_ALL_DIMS) : NULL;
        tshi_check(r, tsh_backward(tape, b ? tsh_add(tape, a, b) : a) == TSH_OK, "%s", tsh_tape_message(tape));
        tshi_test_same_grad(r, "gradient", p, i ? twice : t, 0);
        tshi_check_ok(r, tsh_tape_reset(tape));
        tsh_tensor_zero_grad(p);
    }
    /* Two backwards of one step; the second gathers again. */
    tsh_tensor *loss = tsh_sum(tape, tsh_mul(tape, p, c), TSH_ALL_DIMS);
    tshi_check_ok(r, tsh_backward_with(tape, loss, &(tsh_backward_config){.retain_graph = true}));
    tshi_check_ok(r, tsh_backward(tape, loss));
    tshi_test_same_grad(r, "gradient", p, twice, 0);
    tshi_check_ok(r, tsh_tape_reset(tape));
    tsh_data_parallel_destroy(dp);
    tshi_test_same(r, "without a schedule", p, values, 0);
    tsh_parameters_destroy(list);
    tsh_tensor_release(c);
    tsh_tensor_release(p);
    tsh_tape_destroy(tape);
}

Test(sharding, a_sharded_parameter_may_be_redistributed, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, both_ways, NULL));
    cr_assert_str_empty(tshi_test_run_threads(2, both_ways, NULL));
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

static tsh_status try_backward(kit *k) {
    tsh_tensor *mean = loss_of(k);
    tsh_status status = mean ? tsh_backward(k->tape, mean) : tsh_tape_status(k->tape);
    return status == TSH_OK ? tsh_tape_reset(k->tape) : status;
}

/* The peers may still be in the first backward when the rank dies after its own. */
static void dies(tshi_rank *r, void *arg) {
    const plan *p = arg;
    kit k;
    if (!make_kit(r, p, &k)) return;
    tsh_status status = try_backward(&k);
    if (r->rank == 1) raise(SIGKILL);
    if (status == TSH_OK) status = try_backward(&k);
    if (status == TSH_OK) status = tsh_optimizer_step(k.optimizer);
    tshi_check(r, status == TSH_ERR_PEER, "%s: %s", tsh_status_name(status), tsh_error_message());
    free_kit(&k);
}

Test(sharding, a_killed_rank_is_an_error_of_its_peers, .timeout = 120) {
    for (int level = 1; level <= TSH_ZERO_PARAMETERS; level++) {
        plan p = {"data=3,model=1", TSH_FLOAT64, (tsh_zero_level)level, .bucket_bytes = 300};
        tshi_outcome outcomes[3];
        tshi_test_options options = {.ranks = 3};
        tshi_test_run_with(&options, dies, &p, outcomes, NULL);
        cr_assert_eq(outcomes[1].signal, SIGKILL);
        cr_assert_str_empty(outcomes[0].words, "level %d: %s", level, outcomes[0].words);
        cr_assert_str_empty(outcomes[2].words, "level %d: %s", level, outcomes[2].words);
    }
}

/* Rank 1 fails in front of the block, which rank 0 may have reached or not. */
static void forgets(tshi_rank *r, void *arg) {
    kit k;
    if (!make_kit(r, arg, &k)) return;
    if (backward(r, &k, NULL)) tshi_check(r, k.dp->order_length[0] > 1, "no order of gathers is remembered");
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world))); /* rank 0 has ended the step before */
    if (r->rank == 1) tsh_reshape(k.tape, k.frozen, 1, (int64_t[]){EMBED + 1});
    tshi_check(r, try_backward(&k) != TSH_OK, "the step has not failed");
    tshi_check_ok(r, tsh_tape_reset(k.tape));
    tsh_embedding_forward(k.tape, k.table, k.ids);
    tshi_check(r, k.dp->order_length[0] == 1 && k.dp->order_length[1] == 0, "an order of before the failure is left");
    tshi_check_ok(r, tsh_tape_reset(k.tape));
    backward(r, &k, NULL);
    free_kit(&k);
}

Test(sharding, gathers_ahead_forget_a_failed_step, .timeout = 120) {
    plan p = {"data=2,model=1", TSH_FLOAT64, TSH_ZERO_PARAMETERS, .bucket_bytes = 300};
    cr_assert_str_empty(tshi_test_run(2, forgets, &p));
}

/* --- wrong use ---------------------------------------------------------------------------------------------------- */

static void late(tshi_rank *r, void *arg) {
    plan p = *(plan *)arg;
    tsh_optimizer *early = NULL;
    tsh_data_parallel *other = NULL;
    kit k;
    p.level = TSH_ZERO_NOTHING;
    if (!make_kit(r, &p, &k)) return;
    early = k.optimizer;
    tsh_data_parallel_destroy(k.dp);
    const tsh_data_parallel_config config = {.level = TSH_ZERO_OPTIMIZER}, wrong = {.level = (tsh_zero_level)9};
    tsh_group *data = tsh_mesh_group(k.mesh, "data");
    tshi_check_status(r, tsh_data_parallel_create(k.tape, k.list, data, &wrong, &other), TSH_ERR_ARGUMENT,
                      "unknown level");
    tshi_check_ok(r, tsh_data_parallel_create(k.tape, k.list, data, &config, &k.dp));
    backward(r, &k, NULL);
    tshi_check_status(r, tsh_optimizer_step(early), TSH_ERR_STATE, "before the optimizer");
    free_kit(&k);
}

Test(sharding, an_optimizer_is_younger_than_its_schedule, .timeout = 120) {
    plan p = {"data=2,model=1", TSH_FLOAT64, .bucket_bytes = 300};
    cr_assert_str_empty(tshi_test_run(2, late, &p));
}
