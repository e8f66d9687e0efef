/* Clipping: sharded and replicated parameters together, each element of the model counted once. */
#include "support/layouts.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 3, COLS = 5, COUNT = ROWS * COLS, PARAMETERS = 4 };

/* Along data and model. */
static const tsh_layout layouts[PARAMETERS][2] = {{R, R}, {R, S0}, {R, S1}, {S0, S1}};

typedef struct model {
    tsh_parameters *list;
    tsh_tensor *p[PARAMETERS];
    double whole[PARAMETERS][COUNT]; /* gradients */
    double norm;
} model;

static void make_model(tshi_rank *r, tsh_tape *tape, const tsh_mesh *mesh, tsh_dtype dtype, model *m) {
    static const char *const names[] = {"a", "b", "c", "d"};
    double squares = 0;
    tshi_check_ok(r, tsh_parameters_create(r->world, &m->list));
    for (int i = 0; i < PARAMETERS; i++) {
        tsh_tensor_config config = {dtype, 2, {ROWS, COLS}, {layouts[i][0], layouts[i][1]}};
        tshi_test_integers(i + 1, COUNT, m->whole[i]);
        for (int k = 0; k < COUNT; k++) squares += m->whole[i][k] * m->whole[i][k];
        m->p[i] = tshi_test_leaf(r, mesh, &config, m->whole[i]);
        tsh_tensor *g = tshi_test_tensor(r, mesh, &config, m->whole[i]);
        tshi_check_ok(r, tsh_backward_with(tape, tsh_mul(tape, m->p[i], g), NULL));
        tshi_check_ok(r, tsh_tape_reset(tape));
        tsh_tensor_release(g);
        tshi_check_ok(r, tsh_parameters_add(m->list, names[i], m->p[i]));
    }
    m->norm = sqrt(squares);
}

static void free_model(model *m) {
    tsh_parameters_destroy(m->list);
    for (int i = 0; i < PARAMETERS; i++) tsh_tensor_release(m->p[i]);
}

/* Clip to max_norm: the norm reported, the gradients afterwards, one all-reduce of 8 bytes over each axis. */
static void check_clip(tshi_rank *r, tsh_tape *tape, const tsh_mesh *mesh, tsh_dtype dtype, double share) {
    model m;
    double norm = -1, scaled[COUNT];
    make_model(r, tape, mesh, dtype, &m);
    double limit = share * m.norm, factor = share < 1 ? limit / (m.norm + 1e-6) : 1;
    for (int a = 0; a < 2; a++) tsh_group_reset_stats(tsh_mesh_axis_group(mesh, a));
    tshi_check_ok(r, tsh_clip_grad_norm(m.list, limit, &norm));
    for (int a = 0; a < 2; a++) {
        tsh_communication_stats wanted = {0};
        tshi_test_expect(&wanted, tsh_mesh_axis_group(mesh, a), TSH_COLLECTIVE_ALL_REDUCE, 1, 8);
        tshi_test_calls(r, "clip", tsh_mesh_axis_group(mesh, a), &wanted);
    }
    tshi_check(r, fabs(norm - m.norm) < 1e-13 * m.norm, "norm %.17g, wanted %.17g", norm, m.norm);
    for (int i = 0; i < PARAMETERS; i++) {
        for (int k = 0; k < COUNT; k++) scaled[k] = factor * m.whole[i][k];
        tshi_test_same_grad(r, "gradient", m.p[i], scaled, share < 1 ? (dtype == TSH_FLOAT64 ? 1e-13 : 1e-6) : 0);
    }
    free_model(&m);
}

static void clip_on(tshi_rank *r, tsh_mesh *mesh, void *tape) {
    check_clip(r, tape, mesh, TSH_FLOAT64, 0.25);
    check_clip(r, tape, mesh, TSH_FLOAT32, 0.25);
    check_clip(r, tape, mesh, TSH_FLOAT64, 1.5); /* below the limit: nothing changes */
}

static void on_every_mesh(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_test_each_mesh(r, clip_on, tape);
    tsh_tape_destroy(tape);
}

Test(clip, counts_each_element_of_the_model_once, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, on_every_mesh, NULL));
}

/* Both terms of a sum have one gradient, perhaps one memory: each is scaled once. */
static void shared_gradient(tshi_rank *r, void *arg) {
    double ones[4] = {1, 1, 1, 1}, wanted[4], norm = 0;
    tsh_tape *tape = NULL;
    tsh_parameters *list = NULL;
    (void)arg;
    for (int i = 0; i < 4; i++) wanted[i] = 0.5 / (sqrt(8) + 1e-6);
    tsh_tensor_config config = {TSH_FLOAT64, 1, {4}, {R}};
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tsh_tensor *a = tshi_test_leaf(r, tsh_world_mesh(r->world), &config, ones);
    tsh_tensor *b = tshi_test_leaf(r, tsh_world_mesh(r->world), &config, ones);
    tshi_check_ok(r, tsh_parameters_add(list, "a", a));
    tshi_check_ok(r, tsh_parameters_add(list, "b", b));
    tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, tsh_add(tape, a, b), TSH_ALL_DIMS)));
    tshi_check_ok(r, tsh_clip_grad_norm(list, 0.5, &norm));
    tshi_check(r, fabs(norm - sqrt(8)) < 1e-14, "norm %g", norm);
    tshi_test_same_grad(r, "a", a, wanted, 1e-14);
    tshi_test_same_grad(r, "b", b, wanted, 1e-14);
    tsh_parameters_destroy(list);
    tsh_tape_destroy(tape);
    tsh_tensor_release(a);
    tsh_tensor_release(b);
}

Test(clip, scales_a_shared_gradient_once, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, shared_gradient, NULL));
}

/* Each stage of a pipeline has a tensor on its own mesh, with a gradient of ones: 9 elements and 7. */
static void stages(tshi_rank *r, void *arg) {
    const int sizes[2] = {9, 7};
    double ones[9], half[9], norm = 0;
    tsh_tape *tape = NULL;
    tsh_mesh *whole = NULL, *stage[2];
    tsh_parameters *list = NULL;
    tsh_tensor *p[2];
    (void)arg;
    for (int i = 0; i < 9; i++) {
        ones[i] = 1;
        half[i] = 2 / (4 + 1e-6);
    }
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_mesh_create(r->world, "stage=2,model=-1", &whole));
    for (int s = 0; s < 2; s++) {
        tsh_tensor_config config = {TSH_FLOAT64, 1, {sizes[s]}, {s ? TSH_SHARD(0) : TSH_REPLICATED}};
        tshi_check_ok(r, tsh_mesh_fix(whole, "stage", s, &stage[s]));
        p[s] = tshi_test_leaf(r, stage[s], &config, ones);
        tshi_check_ok(r, tsh_parameters_add(list, s ? "second" : "first", p[s]));
        tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, p[s], TSH_ALL_DIMS)));
    }
    tsh_group_reset_stats(tsh_world_group(r->world));
    tshi_check_ok(r, tsh_clip_grad_norm(list, 2, &norm));
    tsh_communication_stats wanted = {0};
    tshi_test_expect(&wanted, tsh_world_group(r->world), TSH_COLLECTIVE_ALL_REDUCE, 1, 8);
    tshi_test_calls(r, "clip", tsh_world_group(r->world), &wanted);
    tshi_check(r, norm == 4, "rank %d: norm %g", r->rank, norm);
    for (int s = 0; s < 2; s++) {
        tshi_test_same_grad(r, "gradient", p[s], half, 1e-15);
        tsh_tensor_release(p[s]);
    }
    tsh_parameters_destroy(list);
    tsh_tape_destroy(tape);
    for (int s = 0; s < 2; s++) tsh_mesh_destroy(stage[s]);
    tsh_mesh_destroy(whole);
}

Test(clip, has_one_norm_over_the_meshes_of_all_stages, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, stages, NULL));
    cr_assert_str_empty(tshi_test_run(4, stages, NULL));
}

static void edges(tshi_rank *r, void *arg) {
    double norm = -1;
    tsh_tape *tape = NULL;
    tsh_mesh *mesh = NULL;
    tsh_parameters *empty = NULL;
    model m;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=1,model=-1", &mesh));
    tshi_check_ok(r, tsh_parameters_create(r->world, &empty));
    tshi_check_ok(r, tsh_clip_grad_norm(empty, 1, &norm));
    tshi_check(r, norm == 0, "norm of nothing %g", norm);
    make_model(r, tape, mesh, TSH_FLOAT64, &m);
    tshi_check_status(r, tsh_clip_grad_norm(m.list, 0, &norm), TSH_ERR_ARGUMENT, "max_norm is 0");
    tshi_check_status(r, tsh_clip_grad_norm(m.list, NAN, NULL), TSH_ERR_ARGUMENT, "max_norm is nan");
    tshi_check_status(r, tsh_clip_grad_norm(NULL, 1, NULL), TSH_ERR_ARGUMENT, "");

    /* A norm that is not finite on one rank is reported on all, and scales nothing. */
    tsh_tensor *split = tsh_tensor_grad(m.p[1]);
    if (r->rank == 0) ((double *)tsh_tensor_data(split))[0] = m.whole[1][0] = INFINITY;
    tshi_check_ok(r, tsh_clip_grad_norm(m.list, 1, &norm));
    tshi_check(r, isinf(norm), "norm %g", norm);
    tshi_test_same_grad(r, "a", m.p[0], m.whole[0], 0);

    /* Without any gradient there is a norm, and it is 0. */
    tsh_parameters_zero_grad(m.list);
    tshi_check_ok(r, tsh_clip_grad_norm(m.list, 1, &norm));
    tshi_check(r, norm == 0, "norm %g", norm);

    free_model(&m);
    tsh_parameters_destroy(empty);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(clip, edges_and_wrong_use, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, edges, NULL));
}
