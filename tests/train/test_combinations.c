/* What training has, together: 16-bit parameters, a loss scale, recomputation, Lion and checkpoints at each level of
 * what data parallelism shares out. */
#include "support/files.h"
#include "support/tensors.h"
#include "train/bucket.h"
#include "train/optimizer.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(combinations, .timeout = 240);

enum { VOCABULARY = 11, EMBED = 6, HEADS = 3, HIDDEN = 7, BATCH = 5, TIME = 2, STEPS = 6, MOST = 2048 };

typedef struct plan {
    const char *axes;
    tsh_zero_level level;
    tsh_low_bits low_bits;
    tsh_dtype reduction;
    bool lion, scaled, recompute, offload;
    bool stored_float32; /* parameters are float32 and functions compute in bfloat16, else both are bfloat16 */
    double dropout;
    double max_norm;  /* 0: gradients are not clipped */
    double tolerance; /* against level 0: 0 for the same bits */
} plan;

/* Losses, and wholes of parameters, master weights and states one after another. */
typedef struct outcome {
    float losses[STEPS], values[MOST];
    int64_t count;
    tsh_loss_scale scale;
} outcome;

/* A table that is the head, too, one that wants a sparse gradient, which sums over ranks make dense, a block of which
 * a factor is float32, a float32 norm and a scalar. */
typedef struct kit {
    tsh_mesh *mesh;
    tsh_tape *tape;
    tsh_embedding *table, *beside;
    tsh_block *block;
    tsh_norm *norm;
    tsh_tensor *scalar, *gain, *ids, *targets, *noise;
    tsh_parameters *list;
    tsh_data_parallel *dp;
    tsh_optimizer *optimizer;
    tsh_loss_scale scale;
    bool recompute, offload;
} kit;

static tsh_dtype storage_of(const plan *p) {
    return p->stored_float32 ? TSH_FLOAT32 : TSH_BFLOAT16;
}

static void make_layers(tshi_rank *r, const plan *p, kit *k) {
    tsh_group *g = tsh_mesh_group(k->mesh, "model");
    const tsh_embedding_config table = {.num_embeddings = VOCABULARY,
                                        .embedding_dim = EMBED,
                                        .shard = TSH_ROW,
                                        .dtype = storage_of(p),
                                        .init = {.kind = TSH_INIT_NORMAL, .b = 0.5}};
    const tsh_block_config block = {.embed = EMBED,
                                    .dropout = p->dropout,
                                    .recompute = p->recompute,
                                    .offload = p->offload,
                                    .dtype = storage_of(p),
                                    .attention = {.heads = HEADS, .kv_heads = 1, .causal = true, .bias = true},
                                    .mlp = {.hidden = HIDDEN, .activation = TSH_ACTIVATION_GELU, .bias = true}};
    tshi_check_ok(r, tsh_embedding_create(g, &table, &k->table));
    tshi_check_ok(r, tsh_embedding_create(g, &table, &k->beside));
    tshi_check_ok(r, tsh_tensor_set_sparse_grad(tsh_embedding_weight(k->beside)));
    tshi_check_ok(r, tsh_block_create(g, &block, &k->block));
    tshi_check_ok(r, tsh_norm_create(g, &(tsh_norm_config){.features = EMBED, .dtype = TSH_FLOAT32}, &k->norm));
    k->scalar = tshi_test_leaf(r, k->mesh, &(tsh_tensor_config){.dtype = storage_of(p)}, (double[]){1.5});
    const tsh_tensor_config row = {.ndim = 1, .shape = {EMBED}};
    k->gain = tshi_test_leaf(r, k->mesh, &row, (double[EMBED]){0.5, 1, 1.5, 2, 2.5, 3});
}

static void make_batch(tshi_rank *r, kit *k) {
    double ids[BATCH * TIME], targets[BATCH * TIME], noise[BATCH * TIME * EMBED] = {0};
    tsh_tensor_config rows = {TSH_INT64, 1, {BATCH * TIME, EMBED}, {TSH_REPLICATED}};
    rows.layout[tshi_mesh_axis(k->mesh, tsh_mesh_group(k->mesh, "data"))] = TSH_SHARD_UNITS(0, BATCH, 0);
    for (int i = 0; i < BATCH * TIME; i++) {
        ids[i] = (i * 7 + 3) % VOCABULARY;
        targets[i] = (i * 5 + 2) % VOCABULARY;
    }
    k->ids = tshi_test_tensor(r, k->mesh, &rows, ids);
    k->targets = tshi_test_tensor(r, k->mesh, &rows, targets);
    rows.dtype = TSH_BFLOAT16;
    rows.ndim = 2;
    k->noise = tshi_test_tensor(r, k->mesh, &rows, noise);
}

static void make_optimizer(tshi_rank *r, const plan *p, kit *k) {
    /* A large eps: elements whose gradient is zero but for rounding do not move by a whole step. */
    const tsh_adamw_config adamw = {.lr = 0.01, .eps = 1e-3, .weight_decay = 0.1, .low_bits = p->low_bits};
    const tsh_lion_config lion = {.lr = 0.001, .weight_decay = 0.1, .low_bits = p->low_bits};
    tshi_check_ok(r, p->lion ? tsh_lion_create(k->list, &lion, &k->optimizer)
                             : tsh_adamw_create(k->list, &adamw, &k->optimizer));
}

static bool make_kit(tshi_rank *r, const plan *p, kit *k) {
    const tsh_data_parallel_config config = {.level = p->level, .bucket_bytes = 300, .first_bucket_bytes = 300};
    *k = (kit){.recompute = p->recompute, .offload = p->offload, .scale = {.interval = 2}};
    tsh_world_seed(r->world, 3);
    tshi_check_ok(r, tsh_mesh_create(r->world, p->axes, &k->mesh));
    make_layers(r, p, k);
    make_batch(r, k);
    if (r->failed) return false;
    tshi_check_ok(r, tsh_tape_create(r->world, &k->tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &k->list));
    tshi_check_ok(r, tsh_embedding_register(k->table, k->list, "table"));
    tshi_check_ok(r, tsh_embedding_register(k->beside, k->list, "beside"));
    tshi_check_ok(r, tsh_block_register(k->block, k->list, "layers.0"));
    tshi_check_ok(r, tsh_parameters_add(k->list, "layers.0.gain", k->gain));
    tshi_check_ok(r, tsh_norm_register(k->norm, k->list, "norm"));
    tshi_check_ok(r, tsh_parameters_add(k->list, "scalar", k->scalar));
    static const char *const kept[] = {"layers.0", "norm", NULL};
    const tsh_precision precision = {.storage = storage_of(p),
                                     .reduction = p->reduction,
                                     .float32_layers = kept,
                                     .arithmetic =
                                         p->stored_float32 ? TSH_ARITHMETIC_BFLOAT16 : TSH_ARITHMETIC_AS_STORED};
    tshi_check_ok(r, tsh_parameters_set_precision(k->list, &precision));
    tshi_check_ok(r, tsh_data_parallel_create(k->tape, k->list, tsh_mesh_group(k->mesh, "data"), &config, &k->dp));
    make_optimizer(r, p, k);
    return !r->failed;
}

static void free_kit(kit *k) {
    tsh_optimizer_destroy(k->optimizer);
    tsh_data_parallel_destroy(k->dp);
    tsh_parameters_destroy(k->list);
    tsh_tape_destroy(k->tape);
    tsh_tensor_release(k->ids);
    tsh_tensor_release(k->targets);
    tsh_tensor_release(k->noise);
    tsh_tensor_release(k->scalar);
    tsh_tensor_release(k->gain);
    tsh_norm_destroy(k->norm);
    tsh_block_destroy(k->block);
    tsh_embedding_destroy(k->beside);
    tsh_embedding_destroy(k->table);
    tsh_mesh_destroy(k->mesh);
}

static tsh_tensor *segment(const kit *k, tsh_mark start, tsh_tensor *x) {
    const tsh_recompute_config config = {.offload = k->offload};
    return k->recompute ? tsh_tape_recompute_since_with(k->tape, start, x, &config) : x;
}

/* The block's segment lies in another one; the head, which is the table again, is one of its own. */
static tsh_tensor *loss_of(kit *k) {
    const tsh_sequences sequences = {.batch = BATCH};
    tsh_tensor *x = tsh_add(k->tape, tsh_embedding_forward(k->tape, k->table, k->ids), k->noise);
    x = tsh_add(k->tape, x, tsh_embedding_forward(k->tape, k->beside, k->ids));
    tsh_mark start = tsh_tape_mark(k->tape);
    x = tsh_block_forward(k->tape, k->block, x, &sequences);
    x = tsh_mul(k->tape, x, tsh_cast(k->tape, k->gain, TSH_BFLOAT16));
    x = segment(k, start, tsh_mul(k->tape, tsh_norm_forward(k->tape, k->norm, x), k->scalar));
    start = tsh_tape_mark(k->tape);
    x = segment(k, start, tsh_embedding_project(k->tape, k->table, x));
    return tsh_cross_entropy(k->tape, x, k->targets, NULL);
}

/* With `twice` the graph stays for another backward. */
static bool backward(tshi_rank *r, const plan *p, kit *k, bool twice, float *loss) {
    tsh_tensor *mean = tsh_tensor_retain(loss_of(k));
    tsh_tensor *scaled = p->scaled ? tsh_loss_scale_apply(k->tape, &k->scale, mean) : mean;
    if (twice) tshi_check_ok(r, tsh_backward_with(k->tape, scaled, &(tsh_backward_config){.retain_graph = true}));
    tshi_check(r, tsh_backward(k->tape, scaled) == TSH_OK, "%s", tsh_tape_message(k->tape));
    if (loss && mean) *loss = (float)tsh_tensor_item(mean);
    tsh_tensor_release(mean);
    return !r->failed && tshi_check_ok(r, tsh_tape_reset(k->tape));
}

static void update(tshi_rank *r, const plan *p, kit *k) {
    bool finite = true;
    if (p->scaled) {
        tshi_check_ok(r, tsh_loss_scale_unscale(&k->scale, k->list, p->max_norm, NULL, &finite));
        tshi_check_ok(r, tsh_loss_scale_update(&k->scale, finite));
        tshi_check(r, finite, "an infinity");
    } else if (p->max_norm > 0) {
        tshi_check_ok(r, tsh_clip_grad_norm(k->list, p->max_norm, NULL));
    }
    tshi_check_ok(r, tsh_optimizer_step(k->optimizer));
    tsh_optimizer_zero_grad(k->optimizer);
}

/* The second step gathers two backwards without sums; where order may change, the third one has two of one forward. */
static void step(tshi_rank *r, const plan *p, kit *k, int number, outcome *out) {
    if (number == 1) {
        tsh_data_parallel_set_sync(k->dp, false);
        if (!backward(r, p, k, false, NULL)) return;
        tsh_data_parallel_set_sync(k->dp, true);
    }
    if (backward(r, p, k, number == 2 && p->tolerance > 0, &out->losses[number])) update(r, p, k);
}

static void read_whole(tshi_rank *r, const tsh_tensor *t, outcome *out) {
    float whole[MOST];
    uint16_t half[MOST];
    bool wide = t && t->dtype == TSH_FLOAT32;
    int64_t n = t ? tshi_shape_numel(&t->shape) : 0;
    if (!t || !tshi_check(r, out->count + n <= MOST, "%lld values", (long long)(out->count + n))) return;
    tshi_check_ok(r, tsh_tensor_read_whole(t, wide ? (void *)whole : half));
    for (int64_t i = 0; i < n && !wide; i++) {
        uint32_t bits = (uint32_t)half[i] << 16;
        memcpy(&whole[i], &bits, sizeof bits);
    }
    memcpy(out->values + out->count, whole, (size_t)n * sizeof *whole);
    out->count += n;
}

static void read_all(tshi_rank *r, const kit *k, outcome *out) {
    out->count = 0;
    out->scale = k->scale;
    for (int i = 0; i < k->optimizer->count && !r->failed; i++) {
        const tshi_optimizer_slot *slot = &k->optimizer->slots[i];
        read_whole(r, slot->parameter, out);
        read_whole(r, slot->master, out);
        for (int s = 0; s < TSHI_MAX_STATES; s++) read_whole(r, slot->state[s], out);
    }
}

static void run(tshi_rank *r, const plan *p, outcome *out) {
    kit k;
    if (make_kit(r, p, &k)) {
        for (int i = 0; i < STEPS && !r->failed; i++) step(r, p, &k, i, out);
        if (!r->failed) read_all(r, &k, out);
    }
    free_kit(&k);
}

static void near(tshi_rank *r, const plan *p, const char *what, int64_t i, float got, float wanted) {
    bool same = p->tolerance > 0 ? fabs((double)got - (double)wanted) <= p->tolerance : got == wanted;
    tshi_check(r, same, "%s, level %d%s: %s %lld is %.9g, wanted %.9g", p->axes, p->level,
               p->recompute ? ", run again" : "", what, (long long)i, got, wanted);
}

static void compare(tshi_rank *r, const plan *p, const outcome *got, const outcome *wanted, int first) {
    for (int i = first; i < STEPS; i++) near(r, p, "loss", i, got->losses[i], wanted->losses[i]);
    tshi_check(r, got->count == wanted->count, "%lld values, not %lld", (long long)got->count,
               (long long)wanted->count);
    tshi_check(r, got->scale.scale == wanted->scale.scale && got->scale.good_steps == wanted->scale.good_steps,
               "the scale is %g", got->scale.scale);
    for (int64_t i = 0; i < wanted->count && !r->failed; i++) near(r, p, "value", i, got->values[i], wanted->values[i]);
}

/* --- levels ------------------------------------------------------------------------------------------------------- */

static void levels(tshi_rank *r, void *arg) {
    plan p = *(const plan *)arg;
    outcome wanted = {0}, got = {0};
    run(r, &p, &wanted);
    tshi_check(r, wanted.losses[STEPS - 1] < wanted.losses[0], "nothing is learnt");
    for (int c = 1; c < 8 && !r->failed; c++) {
        p.level = (tsh_zero_level)(c / 2);
        p.recompute = c % 2;
        p.offload = c % 2 && p.level > 0;
        run(r, &p, &got);
        compare(r, &p, &got, &wanted, 0);
    }
}

static const struct {
    int ranks;
    const char *axes;
} meshes[] = {{2, "data=2,model=1"}, {4, "data=2,model=2"}, {3, "data=3,model=1"}, {4, "model=2,data=2"}};

enum { MESHES = sizeof meshes / sizeof *meshes };

/* Sums of two terms have the same bits in any order; of clipped gradients the norm has another order of additions. */
static void every_mesh(plan p) {
    p.dropout = 0.1;
    for (int m = 0; m < MESHES; m++) {
        p.axes = meshes[m].axes;
        p.tolerance = p.max_norm > 0 || meshes[m].ranks == 3 ? 1e-2 : 0;
        const char *words = tshi_test_run(meshes[m].ranks, levels, &p);
        cr_expect_str_empty(words, "%s: %s", p.axes, words);
    }
}

Test(combinations, master_weights_are_the_same_at_each_level) {
    every_mesh((plan){.low_bits = TSH_MASTER_WEIGHTS});
    every_mesh((plan){.low_bits = TSH_MASTER_WEIGHTS, .max_norm = 0.4});
}

Test(combinations, stochastic_rounding_is_the_same_at_each_level) {
    every_mesh((plan){.low_bits = TSH_STOCHASTIC_ROUNDING});
}

Test(combinations, sixteen_bit_sums_are_the_same_at_each_level) {
    every_mesh((plan){.low_bits = TSH_MASTER_WEIGHTS, .reduction = TSH_BFLOAT16});
    every_mesh((plan){.low_bits = TSH_STOCHASTIC_ROUNDING, .reduction = TSH_BFLOAT16, .lion = true});
}

Test(combinations, sixteen_bit_arithmetic_on_float32_parameters_is_the_same_at_each_level) {
    every_mesh((plan){.stored_float32 = true});
    every_mesh((plan){.stored_float32 = true, .scaled = true, .max_norm = 0.4});
}

Test(combinations, a_scaled_lion_is_the_same_at_each_level) {
    every_mesh((plan){.low_bits = TSH_MASTER_WEIGHTS, .lion = true, .scaled = true});
    every_mesh((plan){.low_bits = TSH_MASTER_WEIGHTS, .scaled = true, .max_norm = 0.4});
}

/* --- steps that are left out -------------------------------------------------------------------------------------- */

enum { ROOM = 1 << 15 };

static size_t put(tshi_rank *r, char *to, size_t used, const tsh_tensor *t) {
    size_t bytes = t ? tsh_tensor_local_nbytes(t) : 0;
    if (!bytes || !tshi_check(r, used + bytes <= ROOM, "%zu bytes", used + bytes)) return used;
    memcpy(to + used, tshi_data(t), bytes);
    return used + bytes;
}

/* What this rank has of all that a step changes, and of the gradients. */
static size_t snapshot(tshi_rank *r, const kit *k, char *to) {
    size_t used = 0;
    memset(to, 0, ROOM);
    for (int i = 0; i < k->optimizer->count; i++) {
        const tshi_optimizer_slot *slot = &k->optimizer->slots[i];
        const tsh_tensor *all[] = {slot->parameter, tsh_tensor_grad(slot->parameter), slot->master, slot->state[0],
                                   slot->state[1]};
        for (int t = 0; t < 5; t++) used = put(r, to, used, all[t]);
        to[used++] = (char)slot->steps;
    }
    return used;
}

/* One element of this rank's part of a gradient. */
static void spoil_gradient(const kit *k, int which) {
    for (int i = 0; i < k->optimizer->count; i++) {
        const tsh_tensor *p = k->optimizer->slots[(which + i) % k->optimizer->count].parameter;
        const tsh_tensor *g = tsh_tensor_grad(p);
        if (!g || g->numel == 0) continue;
        ((float *)tshi_data(g))[g->numel - 1] = NAN;
        return;
    }
}

/* Rank `number` % size has a NaN: in its part of the batch, or in what it has of the summed gradients. */
static void left_out(tshi_rank *r, const plan *p, kit *k, int number) {
    static char before[ROOM], after[ROOM];
    bool mine = number % r->size == r->rank, finite = true, sums = number % 2;
    double norm = 0, scale = k->scale.scale;
    uint16_t nan16 = 0x7fc0, zero16 = 0;
    if (mine && !sums) memcpy(tshi_data(k->noise), &nan16, sizeof nan16);
    if (!backward(r, p, k, false, NULL)) return;
    if (mine && !sums) memcpy(tshi_data(k->noise), &zero16, sizeof zero16);
    if (mine && sums) spoil_gradient(k, number);
    size_t bytes = snapshot(r, k, before);
    tshi_check_ok(r, tsh_loss_scale_unscale(&k->scale, k->list, number % 3 ? 1 : 0, &norm, &finite));
    tshi_check(r, !finite && isnan(norm), "step %d: a NaN of rank %d is not found", number, number % r->size);
    tshi_check(r, snapshot(r, k, after) == bytes && memcmp(before, after, bytes) == 0, "something has changed");
    tsh_loss_scale backed = k->scale;
    tshi_check_ok(r, tsh_loss_scale_update(&backed, finite));
    tshi_check(r, scale == 0 || backed.scale == scale / 2, "the scale becomes %g", backed.scale);
    tsh_optimizer_zero_grad(k->optimizer);
}

/* Steps that are left out between the others change nothing of what these make. */
static void nans(tshi_rank *r, void *arg) {
    plan p = *(const plan *)arg;
    outcome wanted = {0}, got = {0};
    for (int c = 0; c < 8 && !r->failed; c++) {
        kit k;
        p.level = (tsh_zero_level)(c / 2);
        p.recompute = c % 2;
        run(r, &p, &wanted);
        if (r->failed || !make_kit(r, &p, &k)) return;
        for (int i = 0; i < STEPS && !r->failed; i++) {
            left_out(r, &p, &k, i);
            step(r, &p, &k, i, &got);
        }
        if (!r->failed) read_all(r, &k, &got);
        if (!r->failed) compare(r, &p, &got, &wanted, 0);
        free_kit(&k);
    }
}

Test(combinations, one_ranks_nan_leaves_a_step_out_at_each_level) {
    plan p = {.low_bits = TSH_MASTER_WEIGHTS, .scaled = true};
    for (int m = 0; m < MESHES; m++) {
        p.axes = meshes[m].axes;
        const char *words = tshi_test_run(meshes[m].ranks, nans, &p);
        cr_expect_str_empty(words, "%s: %s", p.axes, words);
        p.lion = !p.lion;
    }
}

/* --- checkpoints -------------------------------------------------------------------------------------------------- */

enum { SAVED = 3 };

typedef struct leg {
    plan plan;
    const char *folder;
    const outcome *saved, *wanted; /* of a leg that resumes */
} leg;

static tsh_checkpoint checkpoint_of(kit *k, tsh_value values[2]) {
    values[0] = (tsh_value){.name = "scale", .kind = TSH_VALUE_DOUBLE, .data = &k->scale.scale};
    values[1] = (tsh_value){.name = "good_steps", .data = &k->scale.good_steps};
    return (tsh_checkpoint){.parameters = k->list, .optimizer = k->optimizer, .values = values, .value_count = 2};
}

/* result[0]: at the checkpoint; result[1]: at the end. */
static void saves(tshi_rank *r, void *arg) {
    const leg *l = arg;
    outcome *out = r->result;
    tsh_value values[2];
    kit k;
    if (!make_kit(r, &l->plan, &k)) return;
    for (int i = 0; i < STEPS && !r->failed; i++) {
        tsh_checkpoint c = checkpoint_of(&k, values);
        c.step = i;
        if (i == SAVED) tshi_check_ok(r, tsh_checkpoint_save(l->folder, &c));
        if (i == SAVED) read_all(r, &k, &out[0]);
        step(r, &l->plan, &k, i, &out[1]);
    }
    if (!r->failed) read_all(r, &k, &out[1]);
    free_kit(&k);
}

static void resumes(tshi_rank *r, void *arg) {
    const leg *l = arg;
    plan exact = l->plan;
    outcome got = {0};
    tsh_value values[2];
    kit k;
    if (!make_kit(r, &l->plan, &k)) return;
    tsh_checkpoint c = checkpoint_of(&k, values);
    tshi_check_ok(r, tsh_checkpoint_load(l->folder, &c));
    tshi_check(r, c.step == SAVED, "step %lld", (long long)c.step);
    read_all(r, &k, &got);
    exact.tolerance = 0;
    compare(r, &exact, &got, l->saved, STEPS);
    for (int i = SAVED; i < STEPS && !r->failed; i++) step(r, &l->plan, &k, i, &got);
    if (!r->failed) read_all(r, &k, &got);
    if (!r->failed) compare(r, &l->plan, &got, l->wanted, SAVED);
    free_kit(&k);
}

Test(combinations, master_weights_states_and_the_scale_are_resumed_at_another_level) {
    const struct {
        int ranks[2];
        const char *axes[2];
        tsh_zero_level level[2];
        double tolerance;
    } cases[] = {
        {{4, 3}, {"data=4,model=1", "data=3,model=1"}, {TSH_ZERO_OPTIMIZER, TSH_ZERO_PARAMETERS}, 1e-2},
        {{2, 2}, {"data=2,model=1", "data=2,model=1"}, {TSH_ZERO_OPTIMIZER, TSH_ZERO_PARAMETERS}, 0},
        {{3, 4}, {"data=3,model=1", "data=2,model=2"}, {TSH_ZERO_PARAMETERS, TSH_ZERO_GRADIENTS}, 1e-2},
        {{4, 1}, {"data=2,model=2", "data=1,model=1"}, {TSH_ZERO_PARAMETERS, TSH_ZERO_NOTHING}, 1e-2},
    };
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        static outcome results[4][2];
        const char *folder = tshi_test_folder(0);
        int c = (int)i / 2;
        leg l = {.folder = folder};
        l.plan = (plan){.axes = cases[c].axes[0],
                        .level = cases[c].level[0],
                        .low_bits = TSH_MASTER_WEIGHTS,
                        .lion = i % 2,
                        .scaled = true,
                        .dropout = 0.1};
        tshi_test_options options = {.ranks = cases[c].ranks[0], .result_bytes = sizeof *results};
        cr_assert_str_empty(tshi_test_run_with(&options, saves, &l, NULL, results));
        l.saved = &results[0][0];
        l.wanted = &results[0][1];
        l.plan.axes = cases[c].axes[1];
        l.plan.level = cases[c].level[1];
        l.plan.recompute = l.plan.offload = true;
        l.plan.tolerance = cases[c].tolerance;
        const char *words = tshi_test_run(cases[c].ranks[1], resumes, &l);
        cr_expect_str_empty(words, "%s, then %s", cases[c].axes[0], words);
        tshi_test_remove(folder);
    }
}
