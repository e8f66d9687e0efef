/* Muon against plain loops in double, in every layout, with the exchanges that it needs. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { STEPS = 3, MATRICES = 4, PARAMETERS = MATRICES + 2, MOST = 40 };

static const struct {
    const char *name;
    int rows, cols; /* cols 0: a vector */
} shapes[PARAMETERS] = {{"wide", 3, 7},   {"tall", 8, 5},  {"square", 4, 4},
                        {"column", 6, 1}, {"table", 5, 3}, {"vector", 9, 0}};

static int64_t size_of(int i) {
    return shapes[i].cols ? (int64_t)shapes[i].rows * shapes[i].cols : shapes[i].rows;
}

/* --- the formula -------------------------------------------------------------------------------------------------- */

/* c [m, n] = a [m, k] b [k, n] */
static void product(int m, int n, int k, const double *a, const double *b, double *c) {
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++) sum += a[i * k + l] * b[l * n + j];
            c[i * n + j] = sum;
        }
    }
}

/* The iteration as published, for a matrix with at most as many rows as columns: others are transposed first. */
static void newton_schulz(int rows, int cols, double *x) {
    double t[MOST], gram[MOST * 2], square[MOST * 2], mixed[MOST];
    double norm = 0;
    for (int i = 0; i < rows * cols; i++) norm += x[i] * x[i];
    for (int i = 0; i < rows * cols; i++) x[i] /= sqrt(norm) + 1e-7;
    for (int step = 0; step < 5; step++) {
        for (int i = 0; i < rows * cols; i++) t[i % cols * rows + i / cols] = x[i];
        product(rows, rows, cols, x, t, gram);
        product(rows, rows, rows, gram, gram, square);
        for (int i = 0; i < rows * rows; i++) gram[i] = -4.7750 * gram[i] + 2.0315 * square[i];
        product(rows, cols, rows, gram, x, mixed);
        for (int i = 0; i < rows * cols; i++) x[i] = 3.4445 * x[i] + mixed[i];
    }
}

static void orthogonalized(int rows, int cols, const double *u, double *out) {
    double t[MOST];
    memcpy(out, u, sizeof *u * (size_t)(rows * cols));
    if (rows <= cols) {
        newton_schulz(rows, cols, out);
        return;
    }
    for (int i = 0; i < rows * cols; i++) t[i % cols * rows + i / cols] = u[i];
    newton_schulz(cols, rows, t);
    for (int i = 0; i < rows * cols; i++) out[i] = t[i % cols * rows + i / cols];
}

static void matrix_step(const tsh_muon_config *c, int i, const double *g, double *buffer, double *p) {
    int rows = shapes[i].rows, cols = shapes[i].cols;
    double u[MOST], way[MOST], scale = rows > cols ? sqrt((double)rows / cols) : 1;
    for (int j = 0; j < rows * cols; j++) {
        buffer[j] = c->momentum * buffer[j] + g[j];
        u[j] = g[j] + c->momentum * buffer[j];
    }
    orthogonalized(rows, cols, u, way);
    for (int j = 0; j < rows * cols; j++) p[j] -= c->lr * c->weight_decay * p[j] + c->lr * scale * way[j];
}

static void adamw_step(const tsh_muon_config *c, int i, int step, const double *g, double *m, double *v, double *p) {
    double lr = c->lr * c->adamw_lr_factor;
    for (int j = 0; j < size_of(i); j++) {
        m[j] = c->beta1 * m[j] + (1 - c->beta1) * g[j];
        v[j] = c->beta2 * v[j] + (1 - c->beta2) * g[j] * g[j];
        double mean = m[j] / (1 - pow(c->beta1, step)), square = v[j] / (1 - pow(c->beta2, step));
        p[j] -= lr * c->weight_decay * p[j] + lr * mean / (sqrt(square) + c->eps);
    }
}

/* --- the optimizer ------------------------------------------------------------------------------------------------ */

static const char *const others[] = {"table", NULL};
static const tsh_muon_config config = {.lr = 0.1,
                                       .momentum = 0.75,
                                       .weight_decay = 0.125,
                                       .adamw = others,
                                       .adamw_lr_factor = 0.5,
                                       .beta1 = 0.5,
                                       .beta2 = 0.875,
                                       .eps = 1e-3};

typedef struct model {
    tsh_tape *tape;
    tsh_parameters *list;
    tsh_optimizer *optimizer;
    tsh_tensor *p[PARAMETERS];
    double value[PARAMETERS][MOST], first[PARAMETERS][MOST], second[PARAMETERS][MOST]; /* by the formula */
} model;

static void make_model(tshi_rank *r, tsh_layout layout, tsh_dtype dtype, tsh_low_bits low_bits, model *m) {
    tsh_muon_config c = config;
    *m = (model){.tape = NULL};
    c.low_bits = low_bits;
    tshi_check_ok(r, tsh_tape_create(r->world, &m->tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &m->list));
    for (int i = 0; i < PARAMETERS; i++) {
        bool vector = shapes[i].cols == 0;
        tsh_tensor_config t = {dtype, vector ? 1 : 2, {shapes[i].rows, shapes[i].cols}, {layout}};
        if (vector) t.layout[0] = TSH_REPLICATED;
        tshi_test_integers(i, size_of(i), m->value[i]);
        m->p[i] = tshi_test_leaf(r, tsh_world_mesh(r->world), &t, m->value[i]);
        tshi_check_ok(r, tsh_parameters_add(m->list, shapes[i].name, m->p[i]));
    }
    tshi_check_ok(r, tsh_muon_create(m->list, &c, &m->optimizer));
}

static void free_model(model *m) {
    tsh_optimizer_destroy(m->optimizer);
    for (int i = 0; i < PARAMETERS; i++) tsh_tensor_release(m->p[i]);
    tsh_parameters_destroy(m->list);
    tsh_tape_destroy(m->tape);
}

/* In the second step, `square` has no gradient: it is left alone. */
static void one_step(tshi_rank *r, model *m, int step, double tolerance) {
    double g[MOST];
    tsh_optimizer_zero_grad(m->optimizer);
    for (int i = 0; i < PARAMETERS; i++) {
        if (step == 2 && i == 2) continue;
        for (int j = 0; j < size_of(i); j++) g[j] = sin(1 + j + 7 * i + 3 * step) + (j % 5 == 0);
        tshi_test_set_grad(r, m->tape, m->p[i], g);
        if (i < MATRICES)
            matrix_step(&config, i, g, m->first[i], m->value[i]);
        else
            adamw_step(&config, i, step, g, m->first[i], m->second[i], m->value[i]);
    }
    tshi_check_ok(r, tsh_optimizer_step(m->optimizer));
    for (int i = 0; i < PARAMETERS; i++) tshi_test_same(r, shapes[i].name, m->p[i], m->value[i], tolerance);
}

static void follows(tshi_rank *r, void *arg) {
    const tsh_layout layouts[] = {TSH_REPLICATED, TSH_SHARD(0), TSH_SHARD(1)};
    (void)arg;
    for (int l = 0; l < 3 && !r->failed; l++) {
        model m;
        tsh_group *group = tsh_world_group(r->world);
        make_model(r, layouts[l], TSH_FLOAT64, TSH_LOSE_LOW_BITS, &m);
        for (int step = 1; step <= STEPS && !r->failed; step++) {
            int matrices = step == 2 ? MATRICES - 1 : MATRICES, exchanges = tsh_group_size(group) == 1 ? 0 : l ? 2 : 1;
            uint64_t before = tsh_group_stats(group).calls[TSH_COLLECTIVE_ALL_TO_ALL];
            one_step(r, &m, step, 1e-9);
            uint64_t calls = tsh_group_stats(group).calls[TSH_COLLECTIVE_ALL_TO_ALL] - before;
            /* A matrix of one column is whole where SHARD(1) has put it, which may be at its owner. */
            tshi_check(r, l == 2 ? calls <= (uint64_t)(2 * matrices) : calls == (uint64_t)(exchanges * matrices),
                       "layout %d, step %d: %d exchanges", l, step, (int)calls);
        }
        free_model(&m);
    }
}

Test(muon, follows_its_formula_in_every_layout, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, follows, NULL));
}

/* bfloat16 parameters with float32 master weights: the masters follow the formula as float32 does. */
static void follows_in_bfloat16(tshi_rank *r, void *arg) {
    model m;
    (void)arg;
    make_model(r, TSH_SHARD(0), TSH_BFLOAT16, TSH_MASTER_WEIGHTS, &m);
    for (int step = 1; step <= STEPS && !r->failed; step++) one_step(r, &m, step, 0.03);
    free_model(&m);
}

Test(muon, rounds_bfloat16_from_master_weights, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(2, 3, follows_in_bfloat16, NULL));
}

static void wrong_use(tshi_rank *r, void *arg) {
    const tsh_muon_config wrong[] = {{.lr = -1},
                                     {.lr = 1, .momentum = 1},
                                     {.lr = 1, .iterations = -1},
                                     {.lr = 1, .adamw_lr_factor = -2},
                                     {.lr = 1, .beta2 = NAN},
                                     {.lr = 1, .eps = INFINITY}};
    const tsh_tensor_config three = {.dtype = TSH_INT64, .ndim = 1, .shape = {3}};
    tsh_tensor *ids = tshi_test_tensor(r, tsh_world_mesh(r->world), &three, (double[]){1, 2, 2});
    model m;
    (void)arg;
    make_model(r, TSH_SHARD(0), TSH_FLOAT32, TSH_LOSE_LOW_BITS, &m);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        tsh_optimizer *optimizer = (tsh_optimizer *)m.list;
        tshi_check_status(r, tsh_muon_create(m.list, &wrong[i], &optimizer), TSH_ERR_ARGUMENT, "muon_create");
        tshi_check(r, !optimizer, "*out after failure");
    }
    tshi_check_status(r, tsh_optimizer_step_in_backward(m.optimizer, m.p[0]), TSH_ERR_STATE, "whole matrix");
    tshi_check_ok(r, tsh_optimizer_step_in_backward(m.optimizer, m.p[4]));
    tshi_check_ok(r, tsh_tensor_set_sparse_grad(m.p[1]));
    tsh_tensor *rows = tsh_lookup(m.tape, m.p[1], ids, -1);
    tshi_check_ok(r, tsh_backward(m.tape, tsh_sum(m.tape, rows, TSH_ALL_DIMS)));
    tsh_status status = tsh_optimizer_step(m.optimizer);
    tshi_check(r, status == TSH_ERR_STATE && strstr(tsh_error_message(), "'tall' has sparse gradients"), "%s",
               tsh_error_message());
    tsh_tensor_release(ids);
    free_model(&m);
}

Test(muon, refuses_wrong_settings_and_sparse_matrices, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, wrong_use, NULL));
}
