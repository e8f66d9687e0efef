/* Optimizers against golden vectors and plain loops, in every layout. */
#include "support/tensors.h"
#include "support/vectors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- golden vectors ----------------------------------------------------------------------------------------------- */

typedef struct golden {
    tshi_vectors vectors;
    bool adam;
} golden;

static double scalar(const golden *g, const char *name) {
    const tshi_vector *v = tshi_vectors_find(&g->vectors, name);
    return v ? v->values[0] : NAN;
}

static void make_optimizer(tshi_rank *r, const golden *g, tsh_parameters *list, tsh_optimizer **out) {
    if (g->adam) {
        tsh_adamw_config config = {.lr = scalar(g, "lr"),
                                   .beta1 = scalar(g, "beta1"),
                                   .beta2 = scalar(g, "beta2"),
                                   .eps = scalar(g, "eps"),
                                   .weight_decay = scalar(g, "weight_decay")};
        tshi_check_ok(r, tsh_adamw_create(list, &config, out));
    } else {
        tsh_sgd_config config = {.lr = scalar(g, "lr"),
                                 .momentum = scalar(g, "momentum"),
                                 .nesterov = scalar(g, "nesterov") != 0,
                                 .weight_decay = scalar(g, "weight_decay")};
        tshi_check_ok(r, tsh_sgd_create(list, &config, out));
    }
}

static void golden_steps(tshi_rank *r, void *arg) {
    const golden *g = arg;
    const tsh_layout layouts[] = {TSH_REPLICATED, TSH_SHARD(0), TSH_SHARD(1)};
    const tshi_vector *p0 = tshi_vectors_find(&g->vectors, "p0"), *grads = tshi_vectors_find(&g->vectors, "grads");
    const tshi_vector *params = tshi_vectors_find(&g->vectors, "params");
    tsh_tape *tape = NULL;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int l = 0; l < 3; l++) {
        tsh_parameters *list = NULL;
        tsh_optimizer *optimizer = NULL;
        tsh_tensor_config config = {TSH_FLOAT64, 2, {p0->shape[0], p0->shape[1]}, {layouts[l]}};
        tsh_tensor *p = tshi_test_leaf(r, tsh_world_mesh(r->world), &config, p0->values);
        tshi_check_ok(r, tsh_parameters_create(r->world, &list));
        tshi_check_ok(r, tsh_parameters_add(list, "p", p));
        make_optimizer(r, g, list, &optimizer);
        tsh_group_reset_stats(tsh_world_group(r->world));
        for (int64_t s = 0; s < grads->shape[0] && !r->failed; s++) {
            tsh_optimizer_zero_grad(optimizer);
            tshi_test_set_grad(r, tape, p, grads->values + s * p0->count);
            tshi_check_ok(r, tsh_optimizer_step(optimizer));
            tshi_test_same(r, "p", p, params->values + s * p0->count, 1e-13);
        }
        tshi_test_calls(r, "an optimizer", tsh_world_group(r->world), &(tsh_communication_stats){0});
        tsh_optimizer_destroy(optimizer);
        tsh_parameters_destroy(list);
        tsh_tensor_release(p);
    }
    tsh_tape_destroy(tape);
}

static void run_golden(const char *file, bool adam) {
    char path[512], error[512];
    golden g = {.adam = adam};
    snprintf(path, sizeof path, "%s/vectors/%s.txt", TSHARD_TEST_DATA, file);
    cr_assert(tshi_vectors_read(path, &g.vectors, error, sizeof error), "%s", error);
    cr_assert_str_empty(tshi_test_run_each(1, 4, golden_steps, &g));
    tshi_vectors_free(&g.vectors);
}

Test(sgd, follows_the_golden_vectors_and_communicates_nothing, .timeout = 120) {
    run_golden("sgd", false);
}

Test(adamw, follows_the_golden_vectors_and_communicates_nothing, .timeout = 120) {
    run_golden("adamw", true);
}

/* --- settings that the vectors leave out -------------------------------------------------------------------------- */

/* One element under the gradients 1, 2, 3 from p = 5, by the formula. */
static void sgd_formula(const tsh_sgd_config *c, double out[3]) {
    double p = 5, buffer = 0;
    for (int s = 0; s < 3; s++) {
        double g = s + 1 + c->weight_decay * p;
        buffer = s == 0 ? g : c->momentum * buffer + (1 - c->dampening) * g;
        if (c->momentum == 0) buffer = g;
        p -= c->lr * (c->nesterov ? g + c->momentum * buffer : buffer);
        out[s] = p;
    }
}

static void sgd_settings(tshi_rank *r, void *arg) {
    const tsh_sgd_config settings[] = {{.lr = 0.5},
                                       {.lr = 0.5, .weight_decay = 0.25},
                                       {.lr = 0.5, .momentum = 0.75},
                                       {.lr = 0.5, .momentum = 0.75, .dampening = 0.5},
                                       {.lr = 0.5, .momentum = 0.75, .weight_decay = 0.125, .nesterov = true}};
    const double five = 5;
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        double wanted[3];
        tsh_parameters *list = NULL;
        tsh_optimizer *optimizer = NULL;
        tsh_tensor *p = tshi_test_leaf(r, tsh_world_mesh(r->world), &(tsh_tensor_config){.dtype = TSH_FLOAT64}, &five);
        tshi_check_ok(r, tsh_parameters_create(r->world, &list));
        tshi_check_ok(r, tsh_parameters_add(list, "p", p));
        tshi_check_ok(r, tsh_sgd_create(list, &settings[i], &optimizer));
        sgd_formula(&settings[i], wanted);
        for (int s = 0; s < 3; s++) {
            double g = s + 1;
            tsh_optimizer_zero_grad(optimizer);
            tshi_test_set_grad(r, tape, p, &g);
            tshi_check_ok(r, tsh_optimizer_step(optimizer));
            tshi_check(r, fabs(tsh_tensor_item(p) - wanted[s]) < 1e-13, "setting %zu, step %d: %g, wanted %g", i, s,
                       tsh_tensor_item(p), wanted[s]);
        }
        tsh_optimizer_destroy(optimizer);
        tsh_parameters_destroy(list);
        tsh_tensor_release(p);
    }
    tsh_tape_destroy(tape);
}

Test(sgd, follows_its_formula_in_every_setting, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, sgd_settings, NULL));
}

/* With decay_matrices a matrix decays between two vectors that do not. Adam's first step is lr whatever the
 * gradient. */
static void matrices_alone(tshi_rank *r, void *arg) {
    const double five = 5, one = 1;
    const tsh_adamw_config config = {.lr = 0.1, .weight_decay = 0.5, .decay_matrices = true};
    tsh_tape *tape = NULL;
    tsh_parameters *list = NULL;
    tsh_optimizer *optimizer = NULL;
    tsh_tensor *p[3];
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    for (int i = 0; i < 3; i++) {
        const tsh_tensor_config shape = {.dtype = TSH_FLOAT64, .ndim = i == 1 ? 2 : i / 2, .shape = {i > 0, i == 1}};
        p[i] = tshi_test_leaf(r, tsh_world_mesh(r->world), &shape, &five);
        tshi_check_ok(r, tsh_parameters_add(list, (const char *[]){"scalar", "matrix", "vector"}[i], p[i]));
        tshi_test_set_grad(r, tape, p[i], &one);
    }
    tshi_check_ok(r, tsh_adamw_create(list, &config, &optimizer));
    tshi_check_ok(r, tsh_optimizer_step(optimizer));
    for (int i = 0; i < 3; i++) {
        double wanted = 5 - 0.1 - (i == 1 ? 0.1 * 0.5 * 5 : 0);
        tshi_check(r, fabs(tsh_tensor_item(p[i]) - wanted) < 1e-7, "parameter %d is %g, wanted %g", i,
                   tsh_tensor_item(p[i]), wanted);
        tsh_tensor_release(p[i]);
    }
    tsh_optimizer_destroy(optimizer);
    tsh_parameters_destroy(list);
    tsh_tape_destroy(tape);
}

Test(adamw, decays_matrices_alone_where_it_is_asked_to, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, matrices_alone, NULL));
}

/* A parameter without a gradient stays as it is, also under weight decay, and its count of steps does; lr may change.
 */
static void no_gradient(tshi_rank *r, void *arg) {
    const double start[2] = {5, 5}, one = 1;
    tsh_tape *tape = NULL;
    tsh_parameters *list = NULL;
    tsh_optimizer *optimizer = NULL;
    tsh_tensor *p[2];
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    for (int i = 0; i < 2; i++) {
        p[i] = tshi_test_leaf(r, tsh_world_mesh(r->world), &(tsh_tensor_config){.dtype = TSH_FLOAT64}, start);
        tshi_check_ok(r, tsh_parameters_add(list, i ? "b" : "a", p[i]));
    }
    tshi_check_ok(r, tsh_adamw_create(list, &(tsh_adamw_config){.lr = 0.1, .weight_decay = 0.5}, &optimizer));
    tshi_test_set_grad(r, tape, p[0], &one);
    tshi_check_ok(r, tsh_optimizer_step(optimizer));
    tshi_check(r, tsh_tensor_item(p[1]) == 5, "b moved to %g", tsh_tensor_item(p[1]));
    /* Adam's first step is lr whatever the gradient; decay takes lr 0.5 of p before. */
    double first = 5 - 0.1 * 0.5 * 5 - 0.1;
    tshi_check(r, fabs(tsh_tensor_item(p[0]) - first) < 1e-7, "a is %g, wanted %g", tsh_tensor_item(p[0]), first);
    tsh_optimizer_zero_grad(optimizer);
    tshi_test_set_grad(r, tape, p[1], &one);
    tshi_check_status(r, tsh_optimizer_set_lr(optimizer, NAN), TSH_ERR_ARGUMENT, "lr nan");
    tshi_check_status(r, tsh_optimizer_set_lr(optimizer, -1), TSH_ERR_ARGUMENT, "lr -1");
    tshi_check_ok(r, tsh_optimizer_set_lr(optimizer, 0.2));
    tshi_check_ok(r, tsh_optimizer_step(optimizer));
    double later = 5 - 0.2 * 0.5 * 5 - 0.2;
    tshi_check(r, fabs(tsh_tensor_item(p[1]) - later) < 1e-7, "b is %g, wanted %g", tsh_tensor_item(p[1]), later);
    tshi_check(r, fabs(tsh_tensor_item(p[0]) - first) < 1e-7, "a moved to %g", tsh_tensor_item(p[0]));
    tsh_optimizer_destroy(optimizer);
    tsh_parameters_destroy(list);
    tsh_tensor_release(p[0]);
    tsh_tensor_release(p[1]);
    tsh_tape_destroy(tape);
}

Test(adamw, leaves_parameters_without_a_gradient_alone, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, no_gradient, NULL));
}

/* Lion by its paper's formula, in every layout. */
static void lion_steps(tshi_rank *r, void *arg) {
    enum { ROWS = 5, COLS = 7, SIZE = ROWS * COLS, STEPS = 6 };
    const tsh_layout layouts[] = {TSH_REPLICATED, TSH_SHARD(0), TSH_SHARD(1)};
    const tsh_lion_config settings[] = {{.lr = 0.125},
                                        {.lr = 0.125, .beta1 = 0.5, .beta2 = 0.75, .weight_decay = 0.25}};
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int l = 0; l < 6 && !r->failed; l++) {
        const tsh_lion_config *c = &settings[l / 3];
        double beta1 = l < 3 ? 0.9 : c->beta1, beta2 = l < 3 ? 0.99 : c->beta2, p[SIZE], m[SIZE] = {0}, g[SIZE];
        tsh_parameters *list = NULL;
        tsh_optimizer *optimizer = NULL;
        tshi_test_integers(1, SIZE, p);
        tsh_tensor_config config = {TSH_FLOAT64, 2, {ROWS, COLS}, {layouts[l % 3]}};
        tsh_tensor *w = tshi_test_leaf(r, tsh_world_mesh(r->world), &config, p);
        tshi_check_ok(r, tsh_parameters_create(r->world, &list));
        tshi_check_ok(r, tsh_parameters_add(list, "w", w));
        tshi_check_ok(r, tsh_lion_create(list, c, &optimizer));
        for (int s = 0; s < STEPS; s++) {
            tshi_test_integers(2 + s, SIZE, g);
            if (s == 0) g[3] = 0; /* of a zero average: no sign */
            tsh_optimizer_zero_grad(optimizer);
            tshi_test_set_grad(r, tape, w, g);
            tshi_check_ok(r, tsh_optimizer_step(optimizer));
            for (int i = 0; i < SIZE; i++) {
                double way = beta1 * m[i] + (1 - beta1) * g[i];
                p[i] -= c->lr * (c->weight_decay * p[i] + (way > 0) - (way < 0));
                m[i] = beta2 * m[i] + (1 - beta2) * g[i];
            }
            tshi_test_same(r, "w", w, p, 1e-12);
        }
        tsh_optimizer_destroy(optimizer);
        tsh_parameters_destroy(list);
        tsh_tensor_release(w);
    }
    tsh_tape_destroy(tape);
}

Test(lion, follows_its_formula_in_every_layout, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, lion_steps, NULL));
}

static void wrong_settings(tshi_rank *r, void *arg) {
    const tsh_sgd_config sgd[] = {{.lr = -1},
                                  {.lr = NAN},
                                  {.lr = 1, .weight_decay = -1},
                                  {.lr = 1, .momentum = 1},
                                  {.lr = 1, .momentum = 0.5, .dampening = 2},
                                  {.lr = 1, .nesterov = true},
                                  {.lr = 1, .momentum = 0.5, .dampening = 0.5, .nesterov = true}};
    const tsh_adamw_config adamw[] = {{.lr = -1},           {.lr = 1, .beta1 = 1}, {.lr = 1, .beta2 = -0.5},
                                      {.lr = 1, .eps = -1}, {.lr = INFINITY},      {.lr = 1, .weight_decay = NAN}};
    tsh_parameters *list = NULL;
    tsh_tensor *ids = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    for (size_t i = 0; i < sizeof sgd / sizeof sgd[0]; i++) {
        tsh_optimizer *optimizer = (tsh_optimizer *)list;
        tshi_check_status(r, tsh_sgd_create(list, &sgd[i], &optimizer), TSH_ERR_ARGUMENT, "sgd_create");
        tshi_check(r, !optimizer, "*out after failure");
    }
    for (size_t i = 0; i < sizeof adamw / sizeof adamw[0]; i++) {
        tsh_optimizer *optimizer = (tsh_optimizer *)list;
        tshi_check_status(r, tsh_adamw_create(list, &adamw[i], &optimizer), TSH_ERR_ARGUMENT, "adamw_create");
        tshi_check(r, !optimizer, "*out after failure");
    }
    tsh_optimizer *optimizer = NULL;
    tshi_check_status(r, tsh_sgd_create(NULL, &sgd[0], &optimizer), TSH_ERR_ARGUMENT, "");
    tshi_check_status(r, tsh_adamw_create(list, NULL, &optimizer), TSH_ERR_ARGUMENT, "");
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &(tsh_tensor_config){TSH_INT64, 1, {2}, {{0}}}, &ids));
    tshi_check_ok(r, tsh_parameters_add(list, "ids", ids));
    tshi_check_status(r, tsh_sgd_create(list, &(tsh_sgd_config){.lr = 1}, &optimizer), TSH_ERR_DTYPE, "int64");
    tsh_optimizer_destroy(NULL);
    tsh_parameters_destroy(list);
    tsh_tensor_release(ids);
}

Test(optimizers, refuse_wrong_settings, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, wrong_settings, NULL));
}
