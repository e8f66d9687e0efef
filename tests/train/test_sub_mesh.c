/* A model on a mesh of some ranks, whose program all ranks of the world run: outside the mesh functions do nothing, and
 * what comes out is what one rank makes. */
#include "support/tensors.h"
#include "train/optimizer.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(sub_mesh, .timeout = 120);

enum { STEPS = 3, BATCH = 5, IN = 6, HIDDEN = 7, OUT = 3 };

typedef struct model {
    tsh_linear *up, *down;
    tsh_parameters *list;
    tsh_optimizer *optimizer;
    tsh_tape *tape;
    tsh_data_parallel *copies[2]; /* of the meshes, or NULL */
    tsh_tensor *x, *target;
} model;

/* Where a model is: `up` on the first mesh, the rest on the second, which may be the same. */
typedef struct place {
    const tsh_mesh *mesh[2];
    bool shares; /* the meshes' axis "data" has copies of the model */
    tsh_zero_level level;
} place;

/* What every rank sees of a run. */
typedef struct course {
    double loss[STEPS], up[HIDDEN * IN], down[OUT * HIDDEN], random;
} course;

static tsh_group *model_group(const tsh_mesh *mesh) {
    return tsh_mesh_axis_group(mesh, tsh_mesh_axes(mesh) - 1);
}

static void share_out(tshi_rank *r, const place *at, model *m) {
    const tsh_data_parallel_config config = {.level = at->level, .bucket_bytes = 100};
    for (int i = 0; i < (at->mesh[1] == at->mesh[0] ? 1 : 2) && at->shares; i++) {
        tsh_group *data = tsh_mesh_group(at->mesh[i], "data");
        tshi_check_ok(r, tsh_data_parallel_create(m->tape, m->list, data, &config, &m->copies[i]));
    }
}

static void open_model(tshi_rank *r, const place *at, model *m) {
    double whole[BATCH * IN], classes[BATCH] = {0, 2, 1, 1, 0};
    tsh_layout rows = at->shares ? TSH_SHARD(0) : TSH_REPLICATED;
    tsh_linear_config config = {
        .in_features = IN, .out_features = HIDDEN, .shard = TSH_COLUMN, .bias = true, .dtype = TSH_FLOAT64};
    tshi_check_ok(r, tsh_linear_create(model_group(at->mesh[0]), &config, &m->up));
    config = (tsh_linear_config){
        .in_features = HIDDEN, .out_features = OUT, .shard = TSH_ROW, .bias = true, .dtype = TSH_FLOAT64};
    tshi_check_ok(r, tsh_linear_create(model_group(at->mesh[1]), &config, &m->down));
    tshi_check_ok(r, tsh_parameters_create(r->world, &m->list));
    tshi_check_ok(r, tsh_linear_register(m->up, m->list, "up"));
    tshi_check_ok(r, tsh_linear_register(m->down, m->list, "down"));
    tshi_check_ok(r, tsh_tape_create(r->world, &m->tape));
    share_out(r, at, m);
    tshi_check_ok(r, tsh_adamw_create(m->list, &(tsh_adamw_config){.lr = 0.05}, &m->optimizer));
    tsh_tensor_config input = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {BATCH, IN}, .layout = {rows}};
    tshi_test_integers(3, BATCH * IN, whole);
    m->x = tshi_test_tensor(r, at->mesh[0], &input, whole);
    input = (tsh_tensor_config){.dtype = TSH_INT64, .ndim = 1, .shape = {BATCH}, .layout = {rows}};
    m->target = tshi_test_tensor(r, at->mesh[1], &input, classes);
}

static void close_model(model *m) {
    tsh_tensor_release(m->x);
    tsh_tensor_release(m->target);
    tsh_optimizer_destroy(m->optimizer);
    for (int i = 0; i < 2; i++) tsh_data_parallel_destroy(m->copies[i]);
    tsh_tape_destroy(m->tape);
    tsh_parameters_destroy(m->list);
    tsh_linear_destroy(m->up);
    tsh_linear_destroy(m->down);
}

/* All of t, on every rank of the world. */
static void read_everywhere(tshi_rank *r, const model *m, tsh_tensor *t, double *to) {
    tsh_tensor *whole = tsh_redistribute(m->tape, t, tsh_world_mesh(r->world), NULL);
    if (!tshi_check(r, whole, "%s", tsh_tape_message(m->tape))) return;
    tshi_check_ok(r, tsh_tensor_read(whole, to, tsh_tensor_local_numel(whole)));
}

static void step(tshi_rank *r, const place *at, const model *m, course *c, int number) {
    tsh_optimizer_zero_grad(m->optimizer);
    tsh_tensor *h = tsh_gelu(m->tape, tsh_linear_forward(m->tape, m->up, tsh_scale(m->tape, m->x, 0.2)));
    h = tsh_dropout(m->tape, h, 0.25);
    if (at->mesh[1] != at->mesh[0])
        h = tsh_redistribute(m->tape, h, at->mesh[1], (tsh_layout[TSH_MAX_AXES]){TSH_SHARD(0)});
    tsh_tensor *y = tsh_linear_forward(m->tape, m->down, h);
    tsh_tensor *loss = tsh_cross_entropy(m->tape, y, m->target, NULL);
    if (!tshi_check(r, loss, "step %d: %s", number, tsh_tape_message(m->tape))) return;
    read_everywhere(r, m, loss, &c->loss[number]);
    tshi_check_ok(r, tsh_backward(m->tape, loss));
    tshi_check_ok(r, tsh_clip_grad_norm(m->list, 0.5, NULL));
    tshi_check_ok(r, tsh_optimizer_step(m->optimizer));
    tshi_check_ok(r, tsh_tape_reset(m->tape));
}

/* The world's random numbers go on alike on every rank, whether it is in the mesh or not. */
static double next_random(tshi_rank *r) {
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {1}};
    tsh_tensor *t = NULL;
    tshi_check_ok(r, tsh_tensor_create_uniform(tsh_world_mesh(r->world), &config, 0, 1, &t));
    double value = tsh_tensor_item(t);
    tsh_tensor_release(t);
    return value;
}

static void train(tshi_rank *r, const place *at, course *c) {
    model m = {0};
    tsh_world_seed(r->world, 5);
    open_model(r, at, &m);
    if (!r->failed) {
        for (int i = 0; i < STEPS && !r->failed; i++) step(r, at, &m, c, i);
        read_everywhere(r, &m, tsh_linear_weight(m.up), c->up);
        read_everywhere(r, &m, tsh_linear_weight(m.down), c->down);
        c->random = next_random(r);
        tshi_check_ok(r, tsh_tape_reset(m.tape));
        for (int i = 0; i < m.optimizer->count; i++) /* which a checkpoint has from one rank, in the mesh or not */
            tshi_check(r, m.optimizer->slots[i].steps == STEPS, "%lld steps", (long long)m.optimizer->slots[i].steps);
    }
    close_model(&m);
}

static void compare(tshi_rank *r, const char *what, const course *got, const course *wanted) {
    const double *a = got->loss, *b = wanted->loss;
    for (size_t i = 0; i < sizeof *got / sizeof *a; i++) {
        bool close = fabs(a[i] - b[i]) <= 1e-12 * fmax(1, fabs(b[i]));
        tshi_check(r, close, "%s: number %zu is %.17g, on rank 0 alone %.17g", what, i, a[i], b[i]);
    }
}

static void on_some_ranks(tshi_rank *r, void *arg) {
    static const struct {
        const char *axes;
        int n, ranks[4];
    } meshes[] = {{"model=1", 1, {0}},          {"model=1", 1, {3}},           {"model=2", 2, {2, 1}},
                  {"model=3", 3, {3, 0, 2}},    {"data=1,model=2", 2, {0, 3}}, {"model=4", 4, {1, 3, 0, 2}},
                  {"data=2,model=1", 2, {1, 0}}};
    course alone;
    (void)arg;
    memset(&alone, 0, sizeof alone);
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes && !r->failed; i++) {
        tsh_mesh *mesh = NULL;
        course got;
        memset(&got, 0, sizeof got);
        tshi_check_ok(r, tsh_mesh_create_on(r->world, meshes[i].ranks, meshes[i].n, meshes[i].axes, &mesh));
        size_t bytes = tsh_device_stats(tsh_world_device(r->world)).bytes_in_use;
        train(r, &(place){.mesh = {mesh, mesh}}, &got);
        if (!i) alone = got;
        compare(r, meshes[i].axes, &got, &alone);
        tshi_check(r, i || (got.loss[0] > 0.5 && got.loss[2] != got.loss[0]), "the loss is %g, then %g", got.loss[0],
                   got.loss[2]);
        size_t after = tsh_device_stats(tsh_world_device(r->world)).bytes_in_use;
        tshi_check(r, i == 0 || tsh_mesh_is_member(mesh) || after == bytes, "%s: %zu bytes in use, %zu before",
                   meshes[i].axes, after, bytes);
        if (!r->failed) tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
        tsh_mesh_destroy(mesh);
    }
}

Test(sub_mesh, trains_as_one_rank_does) {
    cr_assert_str_empty(tshi_test_run(4, on_some_ranks, NULL));
}

Test(sub_mesh, trains_as_one_rank_does_on_threads) {
    cr_assert_str_empty(tshi_test_run_threads(4, on_some_ranks, NULL));
}

/* With TSHARD_CHECK=1 members compare, and ranks outside of the mesh do not. */
Test(sub_mesh, trains_with_checks) {
    setenv("TSHARD_CHECK", "1", 1);
    cr_assert_str_empty(tshi_test_run(4, on_some_ranks, NULL));
}

/* Copies of the model, or of its stages, on parts of the world: every rank creates all schedules. */
static void copies_on_some_ranks(tshi_rank *r, void *arg) {
    static const struct {
        const char *axes[2];
        int n[2], ranks[2][4]; /* the second mesh has no ranks: it is the first */
    } places[] = {{{"data=2,model=1"}, {2}, {{3, 1}}},
                  {{"data=3,model=1"}, {3}, {{2, 0, 1}}},
                  {{"model=2,data=2"}, {4}, {{1, 3, 0, 2}}},
                  {{"data=2,model=1", "data=2,model=1"}, {2, 2}, {{0, 1}, {2, 3}}},
                  {{"data=3,model=1", "data=1,model=1"}, {3, 1}, {{1, 2, 3}, {0}}},
                  {{"data=1,model=1", "data=2,model=1"}, {1, 2}, {{2}, {1, 3}}}};
    course alone = {0};
    tsh_mesh *one = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create_on(r->world, (int[]){0}, 1, "model=1", &one));
    train(r, &(place){.mesh = {one, one}}, &alone);
    tsh_mesh_destroy(one);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        for (int level = TSH_ZERO_NOTHING; level <= TSH_ZERO_PARAMETERS && !r->failed; level++) {
            tsh_mesh *mesh[2] = {0};
            course got = {0};
            char what[96];
            for (int k = 0; k < 2 && places[i].n[k]; k++)
                tshi_check_ok(
                    r, tsh_mesh_create_on(r->world, places[i].ranks[k], places[i].n[k], places[i].axes[k], &mesh[k]));
            if (r->failed) return;
            train(r, &(place){{mesh[0], mesh[1] ? mesh[1] : mesh[0]}, true, (tsh_zero_level)level}, &got);
            snprintf(what, sizeof what, "place %zu, level %d", i, level);
            compare(r, what, &got, &alone);
            if (!r->failed) tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
            for (int k = 0; k < 2; k++) tsh_mesh_destroy(mesh[k]);
        }
    }
}

Test(sub_mesh, copies_share_out_what_they_have) {
    cr_assert_str_empty(tshi_test_run(4, copies_on_some_ranks, NULL));
}

Test(sub_mesh, copies_share_out_with_checks) {
    setenv("TSHARD_CHECK", "1", 1);
    cr_assert_str_empty(tshi_test_run(4, copies_on_some_ranks, NULL));
}
