/* Norm layers: values and gradients of the functions, with rows split or not, and wrong configurations. */
#include "support/layouts.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(norm, .timeout = 120);

enum { ROWS = 5, FEATURES = 7, MOST = ROWS * FEATURES };

static const tsh_norm_config configs[] = {
    {.features = FEATURES, .dtype = TSH_FLOAT64, .bias = true},
    {.features = FEATURES, .dtype = TSH_FLOAT64, .eps = 0.5},
    {.features = FEATURES, .dtype = TSH_FLOAT64, .no_weight = true},
    {.features = FEATURES, .dtype = TSH_FLOAT64, .kind = TSH_RMS_NORM},
    {.features = FEATURES, .dtype = TSH_FLOAT64, .kind = TSH_RMS_NORM, .eps = 1e-6}};

enum { CONFIGS = sizeof configs / sizeof configs[0] };

typedef struct values {
    double x[MOST], dy[MOST], gamma[FEATURES], beta[FEATURES];
} values;

static void draw(values *v) {
    tshi_test_integers(1, MOST, v->x);
    tshi_test_integers(2, MOST, v->dy);
    tshi_test_integers(3, FEATURES, v->gamma);
    tshi_test_integers(4, FEATURES, v->beta);
}

/* One way to y, with gradients. */
typedef struct way {
    tsh_tensor *x, *gamma, *beta, *y;
} way;

static tsh_tensor *leaf(tshi_rank *r, int ndim, int64_t rows, tsh_layout layout, const double *from) {
    tsh_tensor_config config = {TSH_FLOAT64, ndim, {rows, FEATURES}, {layout}};
    return tshi_test_leaf(r, tsh_world_mesh(r->world), &config, from);
}

static void by_function(tshi_rank *r, tsh_tape *tape, const tsh_norm_config *c, const values *v, way *w) {
    double eps = c->eps == 0 ? 1e-5 : c->eps;
    w->x = leaf(r, 2, ROWS, TSH_REPLICATED, v->x);
    if (!c->no_weight) w->gamma = leaf(r, 1, FEATURES, TSH_REPLICATED, v->gamma);
    if (c->bias) w->beta = leaf(r, 1, FEATURES, TSH_REPLICATED, v->beta);
    w->y = c->kind == TSH_RMS_NORM ? tsh_rms_norm(tape, w->x, w->gamma, eps)
                                   : tsh_layer_norm(tape, w->x, w->gamma, w->beta, eps);
}

static void by_layer(tshi_rank *r, tsh_tape *tape, tsh_norm *layer, tsh_layout layout, const values *v, way *w) {
    w->x = leaf(r, 2, ROWS, layout, v->x);
    w->gamma = tsh_norm_weight(layer);
    w->beta = tsh_norm_bias(layer);
    if (w->gamma) tshi_check_ok(r, tsh_tensor_write_whole(w->gamma, v->gamma));
    if (w->beta) tshi_check_ok(r, tsh_tensor_write_whole(w->beta, v->beta));
    w->y = tsh_norm_forward(tape, layer, w->x);
}

static void backward(tshi_rank *r, tsh_tape *tape, const way *w, const values *v) {
    tsh_tensor_config config = {TSH_FLOAT64, 2, {ROWS, FEATURES}, {R}};
    if (!tshi_check(r, w->y, "%s", tsh_tape_message(tape))) return;
    config.layout[0] = tsh_tensor_layout(w->y, tsh_world_group(r->world));
    tsh_tensor *dy = tshi_test_tensor(r, tsh_world_mesh(r->world), &config, v->dy);
    tshi_check_ok(r, tsh_backward_with(tape, w->y, &(tsh_backward_config){.gradient = dy, .retain_graph = true}));
    tsh_tensor_release(dy);
}

/* The parts of `got` are those of `wanted`, which is whole. */
static void compare(tshi_rank *r, const char *what, const tsh_tensor *got, const tsh_tensor *wanted) {
    if (!tshi_check(r, !got == !wanted, "%s is there in one of two ways", what) || !got) return;
    tshi_test_same(r, what, got, tsh_tensor_data(wanted), 1e-12);
}

static void check_one(tshi_rank *r, tsh_tape *tape, const tsh_norm_config *c, tsh_layout layout) {
    values v;
    way function = {0}, layered = {0};
    tsh_norm *layer = NULL;
    tsh_communication_stats wanted = {0};
    tsh_group *g = tsh_world_group(r->world);
    draw(&v);
    if (!tshi_check_ok(r, tsh_norm_create(g, c, &layer))) return;
    by_function(r, tape, c, &v, &function);
    backward(r, tape, &function, &v);
    tsh_group_reset_stats(g);
    by_layer(r, tape, layer, layout, &v, &layered);
    tshi_test_calls(r, "forward", g, &wanted);
    backward(r, tape, &layered, &v);
    for (int i = 0; layout.kind == TSH_KIND_SHARD && i < !c->no_weight + c->bias; i++) {
        tshi_test_expect(&wanted, g, TSH_COLLECTIVE_ALL_REDUCE, FEATURES, sizeof(double));
    }
    tshi_test_calls(r, "backward", g, &wanted);
    if (!r->failed) {
        tsh_layout got = tsh_tensor_layout(layered.y, g);
        tshi_check(r, got.kind == layout.kind && got.dim == layout.dim, "y has another layout than x");
        compare(r, "y", layered.y, function.y);
        compare(r, "dx", tsh_tensor_grad(layered.x), tsh_tensor_grad(function.x));
        compare(r, "dgamma", tsh_tensor_grad(layered.gamma), tsh_tensor_grad(function.gamma));
        compare(r, "dbeta", tsh_tensor_grad(layered.beta), tsh_tensor_grad(function.beta));
    }
    tsh_tape_reset(tape);
    tsh_tensor_release(function.x);
    tsh_tensor_release(function.gamma);
    tsh_tensor_release(function.beta);
    tsh_tensor_release(layered.x);
    tsh_norm_destroy(layer);
}

static void all_configs(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < CONFIGS && !r->failed; i++) {
        check_one(r, tape, &configs[i], TSH_REPLICATED);
        check_one(r, tape, &configs[i], TSH_SHARD(0));
    }
    tsh_tape_destroy(tape);
}

/* 7 ranks leave two without rows. */
Test(norm, has_the_values_and_gradients_of_the_function_with_rows_split_or_not) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, all_configs, NULL));
    cr_assert_str_empty(tshi_test_run(7, all_configs, NULL));
}

static void names(tshi_rank *r, void *arg) {
    tsh_parameters *list = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    for (int i = 0; i < 3; i++) {
        static const char *const layers[] = {"ln", "plain", "bare"};
        tsh_norm *layer = NULL;
        tshi_check_ok(r, tsh_norm_create(tsh_world_group(r->world), &configs[i], &layer));
        tshi_check_ok(r, tsh_norm_register(layer, list, layers[i]));
        tsh_norm_destroy(layer);
    }
    static const char *const wanted[] = {"ln.weight", "ln.bias", "plain.weight"};
    if (tshi_check(r, tsh_parameters_count(list) == 3, "%d parameters", tsh_parameters_count(list))) {
        for (int i = 0; i < 3; i++) {
            const char *name = tsh_parameters_name(list, i);
            double value = tshi_test_element(tsh_parameters_tensor(list, i), 0);
            tshi_check(r, !strcmp(name, wanted[i]), "parameter %d is '%s'", i, name);
            tshi_check(r, value == (i == 1 ? 0 : 1), "'%s' begins as %g", name, value);
        }
    }
    tsh_parameters_destroy(list);
}

Test(norm, registers_gamma_of_ones_and_beta_of_zeros) {
    cr_assert_str_empty(tshi_test_run(1, names, NULL));
}

static void wrong_use(tshi_rank *r, void *arg) {
    static const struct {
        tsh_norm_config config;
        const char *words;
    } wrong[] = {{{.features = 0}, "features=0"},
                 {{.features = 2, .kind = (tsh_norm_kind)7}, "unknown kind 7"},
                 {{.features = 2, .eps = -1}, "eps=-1"},
                 {{.features = 2, .bias = true, .no_weight = true}, "bias is only for"},
                 {{.features = 2, .bias = true, .kind = TSH_RMS_NORM}, "bias is only for"},
                 {{.features = 2, .dtype = TSH_INT32}, "int32"}};
    tsh_norm *layer = NULL;
    tsh_tape *tape = NULL;
    (void)arg;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        tsh_status status = tsh_norm_create(tsh_world_group(r->world), &wrong[i].config, &layer);
        tshi_check(r, status != TSH_OK && !layer, "took configuration %zu", i);
        tshi_check(r, strstr(tsh_error_message(), wrong[i].words), "%zu: \"%s\"", i, tsh_error_message());
    }
    values v;
    draw(&v);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_norm_create(tsh_world_group(r->world), &(tsh_norm_config){.features = 4}, &layer));
    tsh_tensor *x = leaf(r, 2, ROWS, TSH_REPLICATED, v.x);
    tshi_check(r, !tsh_norm_forward(tape, layer, x), "took 7 features for 4");
    tshi_check(r, strstr(tsh_tape_message(tape), "norm_forward: x is [5,7], layer wants features=4"), "%s",
               tsh_tape_message(tape));
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
    tsh_norm_destroy(layer);
}

Test(norm, refuses_wrong_configurations_and_inputs) {
    cr_assert_str_empty(tshi_test_run(1, wrong_use, NULL));
}
