/* Steps within backward against those after it. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of so many features 32 rows are a piece of the gradient. */
enum { FEATURES = 4096, CLASSES = 131, BATCH = 6, STEPS = 3 };

typedef struct step_case {
    bool adamw, bias, twice;
} step_case;

typedef struct state {
    tsh_tape *tape;
    tsh_linear *layer;
    tsh_parameters *list;
    tsh_optimizer *optimizer;
} state;

static void set_up(tshi_rank *r, const step_case *c, tsh_group *group, bool in_backward, state *m) {
    const tsh_linear_config layer = {
        .in_features = FEATURES, .out_features = CLASSES, .shard = TSH_COLUMN, .bias = c->bias, .dtype = TSH_FLOAT64};
    tsh_world_seed(r->world, 3);
    tshi_check_ok(r, tsh_tape_create(r->world, &m->tape));
    tshi_check_ok(r, tsh_linear_create(group, &layer, &m->layer));
    tshi_check_ok(r, tsh_parameters_create(r->world, &m->list));
    tshi_check_ok(r, tsh_linear_register(m->layer, m->list, "classifier"));
    if (c->adamw) {
        const tsh_adamw_config a = {.lr = 0.01, .weight_decay = 0.1, .decay_matrices = true};
        tshi_check_ok(r, tsh_adamw_create(m->list, &a, &m->optimizer));
    } else {
        const tsh_sgd_config s = {.lr = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.1};
        tshi_check_ok(r, tsh_sgd_create(m->list, &s, &m->optimizer));
    }
    if (!in_backward) return;
    tshi_check_ok(r, tsh_optimizer_step_in_backward(m->optimizer, tsh_linear_weight(m->layer)));
    tshi_check_ok(r, tsh_optimizer_step_in_backward(m->optimizer, tsh_linear_weight(m->layer)));
}

static void tear_down(state *m) {
    tsh_optimizer_destroy(m->optimizer);
    tsh_parameters_destroy(m->list);
    tsh_linear_destroy(m->layer);
    tsh_tape_destroy(m->tape);
}

/* A step; *dx becomes the gradient of x. */
static void step(tshi_rank *r, const step_case *c, state *m, tsh_tensor *x, tsh_tensor *target, bool expect,
                 double *dx) {
    tsh_tensor *y = tsh_linear_forward(m->tape, m->layer, x);
    if (c->twice) y = tsh_add(m->tape, y, tsh_linear_forward(m->tape, m->layer, tsh_scale(m->tape, x, 0.5)));
    tshi_check_ok(r, tsh_backward(m->tape, tsh_cross_entropy(m->tape, y, target, NULL)));
    tshi_check(r, !tsh_tensor_grad(tsh_linear_weight(m->layer)) == (expect && !c->twice), "a gradient, or none");
    memcpy(dx, tsh_tensor_data(tsh_tensor_grad(x)), tsh_tensor_local_nbytes(x));
    tshi_check_ok(r, tsh_optimizer_step(m->optimizer));
    tsh_optimizer_zero_grad(m->optimizer);
    tsh_tensor_zero_grad(x);
    tshi_check_ok(r, tsh_tape_reset(m->tape));
}

static void compare(tshi_rank *r, const char *what, const double *a, const double *b, int64_t n) {
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(a[i] - b[i]));
    tshi_check(r, largest < 1e-12, "%s differs by %g", what, largest);
}

static void steps(tshi_rank *r, void *arg) {
    static double dx[2][BATCH * FEATURES];
    const step_case *c = arg;
    state m[2] = {{0}};
    tsh_mesh *mesh = NULL;
    tsh_tensor *x = NULL, *target = NULL;
    const tsh_tensor_config data = {
        .dtype = TSH_FLOAT64, .ndim = 2, .shape = {BATCH, FEATURES}, .layout = {TSH_SHARD(0)}};
    const tsh_tensor_config labels = {.dtype = TSH_INT64, .ndim = 1, .shape = {BATCH}};
    static const int64_t label[BATCH] = {0, 130, 64, 7, 7, 99};
    tshi_check_ok(r, tsh_mesh_create(r->world, "ranks=-1", &mesh));
    tshi_check_ok(r, tsh_tensor_create(mesh, &data, &x));
    tshi_check_ok(r, tsh_tensor_init(x, &(tsh_init){.kind = TSH_INIT_NORMAL, .b = 1}));
    tshi_check_ok(r, tsh_tensor_require_grad(x, true));
    tshi_check_ok(r, tsh_tensor_create(mesh, &labels, &target));
    tshi_check_ok(r, tsh_tensor_write_whole(target, label));
    for (int i = 0; i < 2; i++) set_up(r, c, tsh_mesh_group(mesh, "ranks"), i == 1, &m[i]);
    tsh_tensor *weight[2] = {tsh_linear_weight(m[0].layer), tsh_linear_weight(m[1].layer)};
    for (int s = 0; s < STEPS && !r->failed; s++) {
        for (int i = 0; i < 2; i++) step(r, c, &m[i], x, target, i == 1, dx[i]);
        compare(r, "dx", dx[0], dx[1], tsh_tensor_local_numel(x));
        compare(r, "the weight", tsh_tensor_data(weight[0]), tsh_tensor_data(weight[1]),
                tsh_tensor_local_numel(weight[0]));
        if (!c->bias) continue;
        const tsh_tensor *bias[2] = {tsh_linear_bias(m[0].layer), tsh_linear_bias(m[1].layer)};
        compare(r, "the bias", tsh_tensor_data(bias[0]), tsh_tensor_data(bias[1]), tsh_tensor_local_numel(bias[0]));
    }
    for (int i = 0; i < 2; i++) tear_down(&m[i]);
    tsh_tensor_release(target);
    tsh_tensor_release(x);
    tsh_mesh_destroy(mesh);
}

Test(step_in_backward, is_the_step_after_it, .timeout = 120) {
    for (int i = 0; i < 8; i++) {
        step_case c = {.adamw = i & 1, .bias = i & 2, .twice = i & 4};
        cr_assert_str_empty(tshi_test_run_each(1, 4, steps, &c));
    }
}

/* No gradient is ever there: a step has the weight, its states and less than half a gradient beside. */
static void saves(tshi_rank *r, void *arg) {
    static double dx[BATCH * FEATURES];
    const step_case c = {.adamw = true};
    (void)arg;
    state m = {0};
    tsh_tensor *x = NULL, *target = NULL;
    const tsh_tensor_config data = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {BATCH, FEATURES}};
    const tsh_tensor_config labels = {.dtype = TSH_INT64, .ndim = 1, .shape = {BATCH}};
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tshi_check_ok(r, tsh_tensor_create(mesh, &data, &x));
    tshi_check_ok(r, tsh_tensor_fill(x, 0.01));
    tshi_check_ok(r, tsh_tensor_require_grad(x, true));
    tshi_check_ok(r, tsh_tensor_create(mesh, &labels, &target));
    tshi_check_ok(r, tsh_tensor_fill(target, 1));
    set_up(r, &c, tsh_world_group(r->world), true, &m);
    size_t weight = tsh_tensor_local_nbytes(tsh_linear_weight(m.layer));
    for (int s = 0; s < 2; s++) step(r, &c, &m, x, target, true, dx);
    size_t peak = tsh_device_stats(tsh_world_device(r->world)).bytes_peak;
    tshi_check(r, peak > 3 * weight && peak < 3 * weight + weight / 2 + 4 * sizeof dx, "%zu bytes, a weight has %zu",
               peak, weight);
    tshi_check_status(r, tsh_optimizer_step_in_backward(m.optimizer, x), TSH_ERR_ARGUMENT,
                      "a parameter of the optimizer");
    tsh_optimizer *other = NULL;
    tshi_check_ok(r, tsh_sgd_create(m.list, &(tsh_sgd_config){.lr = 1}, &other));
    tshi_check_status(r, tsh_optimizer_step_in_backward(other, tsh_linear_weight(m.layer)), TSH_ERR_STATE,
                      "is already stepped in backward by another optimizer");
    tsh_optimizer_destroy(other);
    tear_down(&m);
    tsh_tensor_release(target);
    tsh_tensor_release(x);
}

Test(step_in_backward, keeps_no_gradient, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run(1, saves, NULL));
}
