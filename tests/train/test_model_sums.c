/* A schedule whose sums reach along the model's axis, too: those of norms where tokens are split, and those of key and
 * value projections that ranks share. Gradients are those of the whole block, and the sums are counted. */
#include "support/tensors.h"
#include "train/bucket.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(model_sums, .timeout = 600);

enum { BATCH = 6, TIME = 3, TOKENS = BATCH * TIME, EMBED = 12 };

#define VALUES                                                                                                         \
    { .kind = TSH_INIT_NORMAL, .b = 0.4 }

static const tsh_sharding_rule dense[] = {{"*", "dense"}, {NULL, NULL}};

typedef struct family {
    const char *name;
    int64_t shared_by; /* ranks of the model's axis beyond this number share KV heads; 0: never */
    tsh_block_config config;
} family;

static const family families[] = {
    {"7 heads, biases",
     0,
     {.norm = {.bias = true},
      .attention = {.heads = 7, .head_dim = 2, .causal = true, .bias = true, .out_bias = true},
      .mlp = {.hidden = 9, .activation = TSH_ACTIVATION_GELU_TANH, .bias = true}}},
    {"6 heads of 2 KV heads",
     2,
     {.norm = {.kind = TSH_RMS_NORM},
      .attention = {.heads = 6, .kv_heads = 2, .causal = true, .bias = true},
      .mlp = {.hidden = 11, .gated = true, .activation = TSH_ACTIVATION_SILU}}},
    {"4 heads of 1 KV head",
     1,
     {.post_norm = true,
      .norm = {.kind = TSH_RMS_NORM},
      .attention = {.heads = 4, .kv_heads = 1, .causal = true},
      .mlp = {.hidden = 5, .activation = TSH_ACTIVATION_GELU}}}};

enum { FAMILIES = sizeof families / sizeof families[0] };

typedef struct run {
    tsh_tape *tape;
    tsh_block *block;
    tsh_parameters *list;
    tsh_tensor *x, *dy;
} run;

typedef struct variant {
    const char *axes;
    bool sequence;
    tsh_zero_level level;
} variant;

static bool make(tshi_rank *r, tsh_group *model, const family *f, const variant *v, run *out) {
    double x[TOKENS * EMBED], dy[TOKENS * EMBED];
    const tsh_mesh *mesh = tsh_group_mesh(model);
    tsh_tensor_config shape = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {TOKENS, EMBED}};
    tsh_block_config config = f->config;
    config.embed = EMBED;
    config.dtype = TSH_FLOAT64;
    config.sequence_parallel = v && v->sequence;
    config.table = v ? NULL : dense;
    config.attention.weight_init = config.attention.out_init = config.attention.bias_init = (tsh_init)VALUES;
    for (int a = 0; v && a < mesh->axes; a++) {
        if (!strcmp(mesh->axis[a].name, "data")) shape.layout[a] = TSH_SHARD_UNITS(0, BATCH, 0);
        if (!strcmp(mesh->axis[a].name, "model") && v->sequence) shape.layout[a] = TSH_SHARD(0);
        shape.layout[a].order = mesh->axis[a].name[0] == 'm'; /* whole sequences first */
    }
    tsh_world_seed(r->world, 3);
    tshi_test_integers(1, TOKENS * EMBED, x);
    tshi_test_integers(2, TOKENS * EMBED, dy);
    for (int64_t i = 0; i < TOKENS * EMBED; i++) x[i] /= 4;
    *out = (run){.x = tshi_test_leaf(r, mesh, &shape, x), .dy = tshi_test_tensor(r, mesh, &shape, dy)};
    tshi_check_ok(r, tsh_tape_create(r->world, &out->tape));
    tshi_check_ok(r, tsh_block_create(model, &config, &out->block));
    tshi_check_ok(r, tsh_parameters_create(r->world, &out->list));
    tshi_check_ok(r, tsh_block_register(out->block, out->list, "h.0"));
    return !r->failed;
}

static void destroy(run *w) {
    tsh_parameters_destroy(w->list);
    tsh_block_destroy(w->block);
    tsh_tensor_release(w->x);
    tsh_tensor_release(w->dy);
    tsh_tape_destroy(w->tape);
}

static void step(tshi_rank *r, run *w) {
    const tsh_sequences rows = {.batch = BATCH};
    if (r->failed) return;
    tsh_tensor *y = tsh_block_forward(w->tape, w->block, w->x, &rows);
    tshi_check_ok(r, tsh_backward_with(w->tape, y, &(tsh_backward_config){.gradient = w->dy}));
    tshi_check_ok(r, tsh_tape_reset(w->tape));
}

/* A sum for all norms, one for all that ranks share; along the model's axis nothing but the block's own exchanges. */
static void check_counts(tshi_rank *r, const char *name, const family *f, const variant *v, tsh_group *model,
                         const tsh_data_parallel *dp) {
    int size = tsh_group_size(model), copies = tsh_group_size(dp->parent);
    bool shares = f->shared_by && size > f->shared_by && !(v->level && copies > 1 && !f->config.attention.bias);
    bool matrices = v->level && copies > 1; /* these keep their own sums */
    tsh_group *all = dp->scopes[TSHI_REDUCE_MODEL], *sharers = dp->scopes[TSHI_REDUCE_SHARERS];
    tsh_communication_stats moved = tsh_group_stats(model);
    unsigned long long reduced = tsh_group_stats(all).calls[TSH_COLLECTIVE_ALL_REDUCE],
                       shared = tsh_group_stats(sharers).calls[TSH_COLLECTIVE_ALL_REDUCE],
                       along = moved.calls[TSH_COLLECTIVE_ALL_REDUCE], across = moved.calls[TSH_COLLECTIVE_ALL_TO_ALL];
    unsigned long long projections = matrices && f->shared_by && size > f->shared_by ? 2 : 0;
    tshi_check(r, reduced == (all && tsh_group_size(all) > 1), "%s: %llu sums of norms", name, reduced);
    tshi_check(r, !all == !v->sequence, "%s: sums along the model's axis", name);
    tshi_check(r, shared == (sharers && tsh_group_size(sharers) > 1), "%s: %llu sums of shared units", name, shared);
    tshi_check(r, !sharers == !shares, "%s: sums of shared units", name);
    tshi_check(r, along == (v->sequence || size == 1 ? 0 : 4), "%s: %llu all-reduces along the axis", name, along);
    tshi_check(r, across == projections, "%s: %llu exchanges along the axis", name, across);
}

static void compare(tshi_rank *r, const char *name, const run *w, const run *whole) {
    char what[160];
    for (int i = 0; i < tsh_parameters_count(w->list) && !r->failed; i++) {
        const tsh_tensor *p = tsh_parameters_tensor(w->list, i), *q = tsh_parameters_tensor(whole->list, i);
        snprintf(what, sizeof what, "%s: %s", name, tsh_parameters_name(w->list, i));
        tshi_test_same_grad(r, what, p, tsh_tensor_data(tsh_tensor_grad(q)), 1e-10);
    }
}

/* Two steps add their gradients up: the second begins with sums. */
static void check_family(tshi_rank *r, const family *f, const variant *v, tsh_mesh *mesh) {
    char name[128];
    run whole, w;
    tsh_group *model = tsh_mesh_group(mesh, "model"), *data = tsh_mesh_group(mesh, "data");
    tsh_data_parallel *dp = NULL;
    const tsh_data_parallel_config config = {.model = model, .sequence_parallel = v->sequence, .level = v->level};
    snprintf(name, sizeof name, "%s, %s, sequence %d, level %d", v->axes, f->name, v->sequence, (int)v->level);
    if (!make(r, model, f, NULL, &whole) || !make(r, model, f, v, &w)) return;
    if (!tshi_check_ok(r, tsh_data_parallel_create(w.tape, w.list, data, &config, &dp))) return;
    for (int i = 0; i < 2 && !r->failed; i++) {
        for (tshi_reduce_scope scope = 0; scope < TSHI_REDUCE_SCOPES; scope++) tsh_group_reset_stats(dp->scopes[scope]);
        step(r, &whole);
        tsh_group_reset_stats(model);
        step(r, &w);
        if (!r->failed) check_counts(r, name, f, v, model, dp);
    }
    compare(r, name, &w, &whole);
    tsh_data_parallel_destroy(dp);
    destroy(&whole);
    destroy(&w);
}

static void check_axes(tshi_rank *r, void *axes) {
    tsh_mesh *mesh = NULL;
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, axes, &mesh))) return;
    int levels = tsh_group_size(tsh_mesh_group(mesh, "data")) > 1 ? TSH_ZERO_PARAMETERS : TSH_ZERO_NOTHING;
    for (int i = 0; i < FAMILIES * 2 * (levels + 1) && !r->failed; i++) {
        const variant v = {axes, i % 2, (tsh_zero_level)(i / 2 % (levels + 1))};
        check_family(r, &families[i / 2 / (levels + 1)], &v, mesh);
    }
    tsh_mesh_destroy(mesh);
}

/* One copy of the model on 1 to 7 ranks, then several copies at every level. */
Test(model_sums, are_one_a_step) {
    static struct {
        int ranks;
        char axes[32];
    } meshes[] = {{1, "data=1,model=1"}, {2, "data=1,model=2"}, {3, "data=1,model=3"},         {4, "model=4,data=1"},
                  {5, "data=1,model=5"}, {6, "data=1,model=6"}, {7, "data=1,model=7"},         {2, "data=2,model=1"},
                  {4, "data=2,model=2"}, {4, "model=2,data=2"}, {4, "stage=2,data=1,model=2"}, {6, "data=2,model=3"},
                  {6, "model=3,data=2"}, {6, "data=3,model=2"}};
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        const char *words = tshi_test_run(meshes[i].ranks, check_axes, meshes[i].axes);
        cr_assert_str_empty(words, "%s: %s", meshes[i].axes, words);
    }
}

/* --- wrong use ---------------------------------------------------------------------------------------------------- */

static void refuse(tshi_rank *r, void *arg) {
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    tsh_parameters *list = NULL;
    tsh_data_parallel *dp = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=1,model=2", &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tsh_group *data = tsh_mesh_group(mesh, "data");
    const tsh_data_parallel_config wrong[] = {
        {.sequence_parallel = true}, {.model = data}, {.model = tsh_world_group(r->world)}};
    const char *const words[] = {"`model`, which is NULL", "must be another axis", "must be another axis"};
    for (int i = 0; i < 3 && !r->failed; i++) {
        tsh_status status = tsh_data_parallel_create(tape, list, data, &wrong[i], &dp);
        tshi_check(r, status == TSH_ERR_ARGUMENT && !dp && strstr(tsh_error_message(), words[i]), "%d: %d, %s", i,
                   (int)status, tsh_error_message());
    }
    tsh_parameters_destroy(list);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(model_sums, refuse_what_is_no_other_axis) {
    cr_assert_str_empty(tshi_test_run(2, refuse, NULL));
}
