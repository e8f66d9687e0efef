/* Cross entropy against the formula in plain loops, in every layout; its collectives, its known cases, its messages. */
#include "support/layouts.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST   40
#define IGNORE (-7)

typedef struct setting {
    int64_t rows, classes;
    bool weighted;
    double smoothing;
    tsh_reduction reduction;
} setting;

typedef struct truth {
    double logits[MOST], target[MOST], weight[MOST], dloss[MOST]; /* given */
    double loss[MOST], dlogits[MOST];
} truth;

static double log_sum(const double *row, int64_t n) {
    double sum = 0;
    for (int64_t j = 0; j < n; j++) sum += exp(row[j]);
    return log(sum);
}

/* L of a row, and its derivative by each logit. */
static double row_loss(const setting *s, const truth *t, int64_t i, double *d) {
    const double *x = t->logits + i * s->classes;
    double z = log_sum(x, s->classes), loss = 0;
    for (int64_t j = 0; j < s->classes; j++) d[j] = 0;
    if (t->target[i] == IGNORE) return 0;
    for (int64_t j = 0; j < s->classes; j++) {
        bool hit = j == (int64_t)t->target[i];
        double c = t->weight[j] * ((hit ? 1 - s->smoothing : 0) + s->smoothing / (double)s->classes);
        loss -= c * (x[j] - z);
        for (int64_t k = 0; k < s->classes; k++) d[k] -= c * ((j == k) - exp(x[k] - z));
    }
    return loss;
}

static void find_truth(const setting *s, truth *t) {
    memset(t, 0, sizeof *t);
    double numerator = 0, denominator = 0;
    for (int64_t i = 0; i < s->rows * s->classes; i++) t->logits[i] = tshi_test_integer(1, i) / 3;
    for (int64_t j = 0; j < s->classes; j++) t->weight[j] = s->weighted ? 0.5 + (double)(j % 3) : 1;
    for (int64_t i = 0; i < s->rows; i++) {
        t->target[i] = i == 1 ? IGNORE : (double)((5 * i + 2) % s->classes);
        t->dloss[i] = 0.5 + (double)i;
        t->loss[i] = row_loss(s, t, i, t->dlogits + i * s->classes);
        numerator += t->loss[i];
        if (t->target[i] != IGNORE) denominator += t->weight[(int64_t)t->target[i]];
    }
    if (s->reduction == TSH_REDUCTION_SUM) denominator = 1;
    for (int64_t i = 0; i < s->rows * s->classes; i++) {
        bool none = s->reduction == TSH_REDUCTION_NONE;
        t->dlogits[i] *= none ? t->dloss[i / s->classes] : t->dloss[0] / denominator;
    }
    if (s->reduction != TSH_REDUCTION_NONE) t->loss[0] = numerator / denominator;
}

/* Along the axes data and model. */
typedef struct layouts {
    const char *name;
    tsh_layout logits[2], target[2], weight[2];
} layouts;

static const layouts all_layouts[] = {{"replicated", {R, R}, {R, R}, {R, R}},
                                      {"vocabulary", {R, S1}, {R, R}, {R, R}},
                                      {"vocabulary, weights split", {R, S1}, {R, R}, {R, S0}},
                                      {"batch", {S0, R}, {S0, R}, {R, R}},
                                      {"both", {S0, S1}, {S0, R}, {R, R}},
                                      {"both, weights split", {S0, S1}, {S0, R}, {R, S0}}};

static bool sharded(tsh_layout l) {
    return l.kind == TSH_KIND_SHARD;
}

/* Vocabulary: an all-reduce of the rows' maxima and one of their four sums. Batch: one of two numbers. */
static void expect(const setting *s, const layouts *l, const tsh_mesh *mesh, tsh_dtype dtype,
                   tsh_communication_stats out[2]) {
    tsh_group *data = tsh_mesh_group(mesh, "data"), *model = tsh_mesh_group(mesh, "model");
    size_t size = tsh_dtype_size(dtype);
    int64_t rows = s->rows;
    memset(out, 0, 2 * sizeof *out);
    if (sharded(l->logits[0])) {
        tsh_group_part(data, s->rows, tsh_group_rank(data), NULL, &rows);
        if (s->reduction != TSH_REDUCTION_NONE) tshi_test_expect(&out[0], data, TSH_COLLECTIVE_ALL_REDUCE, 2, size);
    }
    if (!sharded(l->logits[1])) return;
    bool extra = s->weighted && s->smoothing > 0;
    tshi_test_expect(&out[1], model, TSH_COLLECTIVE_ALL_REDUCE, rows, size);
    tshi_test_expect(&out[1], model, TSH_COLLECTIVE_ALL_REDUCE, 4 * rows + (extra ? 1 : 0), size);
}

static void check_calls(tshi_rank *r, const char *what, const tsh_mesh *mesh, const tsh_communication_stats wanted[2]) {
    tshi_test_calls(r, what, tsh_mesh_group(mesh, "data"), &wanted[0]);
    tshi_test_calls(r, what, tsh_mesh_group(mesh, "model"), &wanted[1]);
}

static void check_one(tshi_rank *r, tsh_tape *tape, const tsh_mesh *mesh, const setting *s, const layouts *l,
                      tsh_dtype dtype) {
    static const tsh_communication_stats none[2];
    char what[128];
    truth t;
    tsh_communication_stats wanted[2];
    double tolerance = dtype == TSH_FLOAT64 ? 1e-13 : 3e-6;
    bool rows = s->reduction == TSH_REDUCTION_NONE;
    snprintf(what, sizeof what, "%s, V=%lld, smoothing %g, weights %d, reduction %d", l->name, (long long)s->classes,
             s->smoothing, s->weighted, (int)s->reduction);
    find_truth(s, &t);
    tsh_tensor_config logits_config = {dtype, 2, {s->rows, s->classes}, {l->logits[0], l->logits[1]}};
    tsh_tensor *logits = tshi_test_leaf(r, mesh, &logits_config, t.logits);
    tsh_tensor *target = tshi_test_tensor(
        r, mesh, &(tsh_tensor_config){TSH_INT64, 1, {s->rows}, {l->target[0], l->target[1]}}, t.target);
    tsh_tensor *weight =
        tshi_test_tensor(r, mesh, &(tsh_tensor_config){dtype, 1, {s->classes}, {l->weight[0], l->weight[1]}}, t.weight);
    tsh_tensor_config dloss_config = {
        dtype, rows ? 1 : 0, {rows ? s->rows : 0}, {rows ? l->target[0] : TSH_REPLICATED}};
    tsh_tensor *dloss = tshi_test_tensor(r, mesh, &dloss_config, t.dloss);
    tsh_cross_entropy_config config = {.weight = s->weighted ? weight : NULL,
                                       .has_ignore_index = true,
                                       .ignore_index = IGNORE,
                                       .label_smoothing = s->smoothing,
                                       .reduction = s->reduction};
    expect(s, l, mesh, dtype, wanted);
    check_calls(r, what, mesh, none);
    tsh_tensor *loss = tsh_cross_entropy(tape, logits, target, &config);
    if (tshi_check(r, loss, "%s: %s", what, tsh_tape_message(tape))) {
        check_calls(r, what, mesh, wanted);
        tshi_test_same(r, what, loss, t.loss, tolerance);
        tsh_backward_config backward = {.gradient = dloss};
        tshi_check_ok(r, tsh_backward_with(tape, loss, &backward));
        check_calls(r, what, mesh, none);
        tshi_test_same_grad(r, what, logits, t.dlogits, tolerance);
    }
    tsh_tape_reset(tape);
    tsh_tensor_release(logits);
    tsh_tensor_release(target);
    tsh_tensor_release(weight);
    tsh_tensor_release(dloss);
}

static void all_settings(tshi_rank *r, tsh_tape *tape, const tsh_mesh *mesh, const layouts *l) {
    const int64_t sizes[][2] = {{3, 13}, {5, 2}, {1, 5}};
    for (int i = 0; i < 3 * 2 * 2 * 3 * 2; i++) {
        const int64_t *size = sizes[i / 24];
        setting s = {size[0], size[1], i % 2 != 0, i / 2 % 2 ? 0.1 : 0, (tsh_reduction)(i / 4 % 3)};
        check_one(r, tape, mesh, &s, l, i / 12 % 2 ? TSH_FLOAT32 : TSH_FLOAT64);
    }
}

static void all_layouts_on(tshi_rank *r, tsh_mesh *mesh, void *tape) {
    for (size_t l = 0; l < sizeof all_layouts / sizeof all_layouts[0]; l++) {
        all_settings(r, tape, mesh, &all_layouts[l]);
    }
}

static void everything(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_test_each_mesh(r, all_layouts_on, tape);
    tsh_tape_destroy(tape);
}

/* Values, gradients, and 2 all-reduces forward for a split vocabulary, 1 for a split batch, 0 backward: 13 and 2 and 5
 * classes, 3 and 5 and 1 rows over 1 to 4 ranks, so that parts are uneven and empty. */
Test(cross_entropy, equals_the_formula_in_every_layout, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, everything, NULL));
}

/* --- known answers ------------------------------------------------------------------------------------------------ */

static void known(tshi_rank *r, void *arg) {
    const double x[] = {1, 2, 3, 4}, two = 2, loss[] = {1.4401897};
    const double dx[] = {.0320586, .0871443, -.7631172, .6439143};
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_tensor *logits = tshi_test_leaf(r, mesh, &(tsh_tensor_config){TSH_FLOAT64, 1, {4}, {S0}}, x);
    tsh_tensor *target = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_INT64, 0, {0}, {R}}, &two);
    tsh_tensor *l = tsh_cross_entropy(tape, logits, target, NULL);
    tshi_test_same(r, "loss", l, loss, 1e-7);
    tshi_check_ok(r, tsh_backward(tape, l));
    tshi_test_same_grad(r, "gradient", logits, dx, 1e-7);
    tsh_tape_destroy(tape);
    tsh_tensor_release(logits);
    tsh_tensor_release(target);
}

Test(cross_entropy, of_1_2_3_4_at_target_2, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, known, NULL));
}

/* Local logits 0..7 tiled to (16, 32), V = 128, targets 0, 2, .., 30. */
static void tiled(tshi_rank *r, void *arg) {
    enum { ROWS = 16, V = 128 };
    static double x[ROWS * V], targets[ROWS], wanted[ROWS];
    const double cycle[] = {10.230928, 8.230928, 6.230928, 4.230928};
    tsh_tape *tape = NULL;
    (void)arg;
    for (int i = 0; i < ROWS * V; i++) x[i] = i % 8;
    for (int i = 0; i < ROWS; i++) {
        targets[i] = 2 * i;
        wanted[i] = cycle[i % 4];
    }
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_tensor *logits = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_FLOAT32, 2, {ROWS, V}, {S1}}, x);
    tsh_tensor *target = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_INT64, 1, {ROWS}, {R}}, targets);
    tsh_cross_entropy_config config = {.reduction = TSH_REDUCTION_NONE};
    tshi_test_same(r, "losses", tsh_cross_entropy(tape, logits, target, &config), wanted, 1e-6);
    tsh_tape_destroy(tape);
    tsh_tensor_release(logits);
    tsh_tensor_release(target);
}

Test(cross_entropy, of_tiled_logits_over_four_ranks, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, tiled, NULL));
}

/* All targets ignored: the mean over no rows is NaN, as in PyTorch; the sum and the gradients are 0. */
static void ignored(tshi_rank *r, void *arg) {
    const double targets[] = {-100, -100, -100}, zeros[6] = {0};
    double x[6];
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_test_integers(1, 6, x);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_tensor *logits = tshi_test_leaf(r, mesh, &(tsh_tensor_config){TSH_FLOAT64, 2, {3, 2}, {S1}}, x);
    tsh_tensor *target = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_INT64, 1, {3}, {R}}, targets);
    tsh_tensor *mean = tsh_cross_entropy(tape, logits, target, NULL);
    tshi_check(r, mean && isnan(tsh_tensor_item(mean)), "the mean is no NaN");
    tsh_tensor *sum =
        tsh_cross_entropy(tape, logits, target, &(tsh_cross_entropy_config){.reduction = TSH_REDUCTION_SUM});
    tshi_check(r, sum && tsh_tensor_item(sum) == 0, "the sum is not 0");
    tshi_check_ok(r, tsh_backward(tape, mean));
    tshi_test_same_grad(r, "gradient", logits, zeros, 0);
    tsh_tape_destroy(tape);
    tsh_tensor_release(logits);
    tsh_tensor_release(target);
}

Test(cross_entropy, of_nothing_but_ignored_targets, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, ignored, NULL));
}

/* Large logits overflow nothing, and three dims split along the middle one equal two. */
static void shapes(tshi_rank *r, void *arg) {
    double x[30], flat[1], targets[] = {4, 0, 1, 2, 3, 4};
    tsh_tape *tape = NULL;
    (void)arg;
    for (int i = 0; i < 30; i++) x[i] = 1000 * tshi_test_integer(4, i);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_tensor *rows = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_FLOAT64, 2, {6, 5}, {R}}, x);
    tsh_tensor *row_target = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_INT64, 1, {6}, {R}}, targets);
    tsh_tensor *cube = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_FLOAT64, 3, {2, 3, 5}, {S1}}, x);
    tsh_tensor *cube_target = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_INT64, 2, {2, 3}, {S1}}, targets);
    tsh_tensor *loss = tsh_cross_entropy(tape, rows, row_target, NULL);
    flat[0] = loss ? tsh_tensor_item(loss) : NAN;
    tshi_check(r, isfinite(flat[0]), "loss %g", flat[0]);
    tshi_test_same(r, "three dims", tsh_cross_entropy(tape, cube, cube_target, NULL), flat, 1e-14);
    tsh_tape_destroy(tape);
    tsh_tensor_release(rows);
    tsh_tensor_release(row_target);
    tsh_tensor_release(cube);
    tsh_tensor_release(cube_target);
}

Test(cross_entropy, takes_more_dims_and_large_logits, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, shapes, NULL));
}

/* A LOCAL loss: each rank its own. */
static void local(tshi_rank *r, void *arg) {
    const double x[] = {1, 2, 3, 4};
    tsh_tape *tape = NULL;
    tsh_tensor *logits = NULL, *target = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_group *g = tsh_world_group(r->world);
    tshi_check_ok(r, tsh_tensor_create(mesh, &(tsh_tensor_config){TSH_FLOAT64, 1, {4}, {TSH_LOCAL_INIT}}, &logits));
    tshi_check_ok(r, tsh_tensor_create(mesh, &(tsh_tensor_config){TSH_INT64, 0, {0}, {TSH_LOCAL_INIT}}, &target));
    int64_t mine = r->rank;
    tshi_check_ok(r, tsh_tensor_write(logits, x, 4));
    tshi_check_ok(r, tsh_tensor_write(target, &mine, 1));
    tsh_group_reset_stats(g);
    tsh_tensor *loss = tsh_cross_entropy(tape, logits, target, NULL);
    double wanted = log_sum(x, 4) - x[r->rank];
    tshi_check(r, loss && tsh_tensor_layout(loss, g).kind == TSH_KIND_LOCAL, "no LOCAL loss");
    tshi_check(r, fabs(tsh_tensor_item(loss) - wanted) < 1e-14, "%g, wanted %g", tsh_tensor_item(loss), wanted);
    tshi_test_calls(r, "a LOCAL loss", g, &(tsh_communication_stats){0});
    tsh_tape_destroy(tape);
    tsh_tensor_release(logits);
    tsh_tensor_release(target);
}

Test(cross_entropy, of_local_logits_is_local, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(3, local, NULL));
}

/* --- gradient check ----------------------------------------------------------------------------------------------- */

typedef struct network {
    tsh_tensor *target;
    tsh_cross_entropy_config config;
} network;

static tsh_tensor *objective(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    const network *n = user;
    tsh_tensor *loss = tsh_cross_entropy(tape, inputs[0], n->target, &n->config);
    return tsh_sum(tape, tsh_mul(tape, loss, loss), TSH_ALL_DIMS);
}

static void check_gradients(tshi_rank *r, void *arg) {
    const struct { tsh_layout logits, target, weight; } l[] = {{R, R, R}, {S1, R, R}, {S1, R, S0}, {S0, S0, R}};
    tsh_tape *tape = NULL;
    double x[15], weight[] = {1, 2, .5, 1, 3}, targets[] = {4, -100, 1}, worst = 1;
    (void)arg;
    for (int i = 0; i < 15; i++) x[i] = tshi_test_integer(5, i) / 4;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    for (int i = 0; i < 12 && !r->failed; i++) {
        network n = {.config = {.label_smoothing = 0.2, .reduction = (tsh_reduction)(i / 4)}};
        tsh_tensor *logits =
            tshi_test_leaf(r, mesh, &(tsh_tensor_config){TSH_FLOAT64, 2, {3, 5}, {l[i % 4].logits}}, x);
        n.target = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_INT64, 1, {3}, {l[i % 4].target}}, targets);
        n.config.weight =
            tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_FLOAT64, 1, {5}, {l[i % 4].weight}}, weight);
        tshi_check_ok(r, tsh_gradient_check(tape, objective, &logits, 1, 0, &n, &worst));
        tshi_check(r, worst < 1e-7, "layout %d, reduction %d: worst %g", i % 4, i / 4, worst);
        tsh_tensor_release(logits);
        tsh_tensor_release(n.target);
        tsh_tensor_release(n.config.weight);
    }
    tsh_tape_destroy(tape);
}

Test(cross_entropy, passes_the_gradient_check, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, check_gradients, NULL));
}

/* --- wrong use ---------------------------------------------------------------------------------------------------- */

static void fails(tshi_rank *r, tsh_tape *tape, tsh_tensor *logits, tsh_tensor *target,
                  const tsh_cross_entropy_config *config, tsh_status status, const char *words) {
    tshi_check(r, !tsh_cross_entropy(tape, logits, target, config), "took what should give \"%s\"", words);
    tshi_check(r, tsh_tape_status(tape) == status && strstr(tsh_tape_message(tape), words), "%s \"%s\", wanted \"%s\"",
               tsh_status_name(tsh_tape_status(tape)), tsh_tape_message(tape), words);
    tshi_check_ok(r, tsh_tape_reset(tape));
}

static void wrong_use(tshi_rank *r, void *arg) {
    const double x[12] = {0}, outside[] = {0, 3, 4}, inside[] = {0, 3, 1}, negative[] = {0, -1, 1};
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_tensor_config ids = {TSH_INT64, 1, {3}, {R}}, vector = {TSH_FLOAT32, 1, {3}, {R}};
    tsh_tensor *logits = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_FLOAT32, 2, {3, 4}, {S1}}, x);
    tsh_tensor *good = tshi_test_tensor(r, mesh, &ids, inside), *high = tshi_test_tensor(r, mesh, &ids, outside);
    tsh_tensor *low = tshi_test_tensor(r, mesh, &ids, negative), *floats = tshi_test_tensor(r, mesh, &vector, x);
    fails(r, tape, logits, high, NULL, TSH_ERR_RANGE, "target 4 at index 2 is outside [0, 4)");
    fails(r, tape, logits, low, NULL, TSH_ERR_RANGE, "target -1 at index 1");
    fails(r, tape, logits, floats, NULL, TSH_ERR_DTYPE, "target is float32");
    fails(r, tape, logits, logits, NULL, TSH_ERR_SHAPE, "[..., classes] and [...] wanted");
    fails(r, tape, good, good, NULL, TSH_ERR_DTYPE, "dtype is int64; the ");
    fails(r, tape, logits, good, &(tsh_cross_entropy_config){.weight = floats}, TSH_ERR_SHAPE, "float32 [4] wanted");
    fails(r, tape, logits, good, &(tsh_cross_entropy_config){.label_smoothing = 1.5}, TSH_ERR_ARGUMENT, "1.5");
    fails(r, tape, logits, good, &(tsh_cross_entropy_config){.label_smoothing = NAN}, TSH_ERR_ARGUMENT, "nan");
    fails(r, tape, logits, good, &(tsh_cross_entropy_config){.reduction = (tsh_reduction)9}, TSH_ERR_ARGUMENT, "9");
    fails(r, tape, NULL, good, NULL, TSH_ERR_ARGUMENT, "input 0 is NULL");
    tsh_cross_entropy_config config = {.has_ignore_index = true, .ignore_index = -1};
    tshi_check(r, tsh_cross_entropy(tape, logits, low, &config), "not usable: %s", tsh_tape_message(tape));
    tsh_tape_destroy(tape);
    tsh_tensor *all[] = {logits, good, high, low, floats};
    for (int i = 0; i < 5; i++) tsh_tensor_release(all[i]);
}

Test(cross_entropy, names_what_is_wrong_and_stays_usable, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, wrong_use, NULL));
}

/* In a split batch only one rank has the bad target: its peers get the error, and all ranks continue. */
static void one_bad_rank(tshi_rank *r, void *arg) {
    const double x[8] = {0}, targets[] = {0, 9};
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_tensor *logits = tshi_test_leaf(r, mesh, &(tsh_tensor_config){TSH_FLOAT32, 2, {2, 4}, {S0}}, x);
    tsh_tensor *target = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_INT64, 1, {2}, {S0}}, targets);
    tshi_check(r, !tsh_cross_entropy(tape, logits, target, NULL), "took target 9 of 4");
    tsh_status wanted = r->rank == 1 ? TSH_ERR_RANGE : TSH_ERR_PEER;
    tshi_check(r, tsh_tape_status(tape) == wanted && strstr(tsh_tape_message(tape), "target 9 at index 0"), "%s \"%s\"",
               tsh_status_name(tsh_tape_status(tape)), tsh_tape_message(tape));
    tshi_check_ok(r, tsh_tape_reset(tape));
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    tsh_tape_destroy(tape);
    tsh_tensor_release(logits);
    tsh_tensor_release(target);
}

Test(cross_entropy, tells_the_peers_of_a_bad_target, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, one_bad_rank, NULL));
}
