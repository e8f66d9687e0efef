/* Dynamic loss scale: overflow is found on every rank, and a step that is left out changes nothing. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <string.h>

TestSuite(loss_scale, .timeout = 240);

enum { ROWS = 7, COLS = 5, SIZE = ROWS * COLS };

typedef struct kit {
    tsh_mesh *mesh;
    tsh_tape *tape;
    tsh_parameters *list;
    tsh_tensor *split, *whole;
    tsh_optimizer *optimizer;
} kit;

static void make_kit(tshi_rank *r, const char *axes, tsh_dtype dtype, kit *k) {
    double values[SIZE];
    tshi_test_integers(1, SIZE, values);
    tshi_check_ok(r, tsh_mesh_create(r->world, axes, &k->mesh));
    tsh_tensor_config config = {dtype, 2, {ROWS, COLS}, {TSH_REPLICATED, TSH_SHARD(0)}};
    k->split = tshi_test_leaf(r, k->mesh, &config, values);
    config.layout[1] = (tsh_layout)TSH_REPLICATED;
    k->whole = tshi_test_leaf(r, k->mesh, &config, values);
    tshi_check_ok(r, tsh_tape_create(r->world, &k->tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &k->list));
    tshi_check_ok(r, tsh_parameters_add(k->list, "split.w", k->split));
    tshi_check_ok(r, tsh_parameters_add(k->list, "whole.w", k->whole));
    tshi_check_ok(r, tsh_parameters_set_precision(k->list, &(tsh_precision){.storage = dtype}));
    tsh_adamw_config adamw = {.lr = 0.01, .weight_decay = 0.1, .low_bits = TSH_MASTER_WEIGHTS};
    tshi_check_ok(r, tsh_adamw_create(k->list, &adamw, &k->optimizer));
}

static void free_kit(kit *k) {
    tsh_optimizer_destroy(k->optimizer);
    tsh_parameters_destroy(k->list);
    tsh_tensor_release(k->split);
    tsh_tensor_release(k->whole);
    tsh_tape_destroy(k->tape);
    tsh_mesh_destroy(k->mesh);
}

/* Gradients of whole numbers, times the scale; with `spoil` an element of this rank's gradient of p is that. */
static void backward(tshi_rank *r, kit *k, const tsh_loss_scale *scale, tsh_tensor *p, double spoil) {
    double g[SIZE];
    tsh_optimizer_zero_grad(k->optimizer);
    tsh_tensor *all[2] = {k->split, k->whole};
    for (int i = 0; i < 2; i++) {
        tsh_tensor_config config = {TSH_FLOAT32, 2, {ROWS, COLS}, {{0}}};
        tshi_test_integers(3 + i, SIZE, g);
        memcpy(config.layout, all[i]->layout, sizeof config.layout);
        tsh_tensor *factor = tshi_test_tensor(r, k->mesh, &config, g);
        tsh_tensor *wide = tsh_cast(k->tape, all[i], TSH_FLOAT32);
        tsh_tensor *loss = tsh_sum(k->tape, tsh_mul(k->tape, wide, factor), TSH_ALL_DIMS);
        tshi_check_ok(r, tsh_backward(k->tape, tsh_loss_scale_apply(k->tape, scale, loss)));
        tshi_check_ok(r, tsh_tape_reset(k->tape));
        tsh_tensor_release(factor);
    }
    if (!p || p->numel == 0) return;
    float *grad = tshi_data(tsh_tensor_grad(p));
    grad[p->numel - 1] = (float)spoil;
}

static void check_gradient(tshi_rank *r, const char *what, const tsh_tensor *p, int seed, double factor) {
    double g[SIZE];
    tshi_test_integers(seed, SIZE, g);
    for (int i = 0; i < SIZE; i++) g[i] *= factor;
    tshi_test_same(r, what, tsh_tensor_grad(p), g, 1e-6);
}

static void clips(tshi_rank *r, void *axes) {
    const tsh_loss_scale scale = {.scale = 1024};
    const double limits[] = {0, INFINITY, 1e6, 2};
    double g[SIZE], squares = 0;
    kit k = {0};
    make_kit(r, axes, TSH_FLOAT16, &k);
    for (int s = 3; s < 5; s++) {
        tshi_test_integers(s, SIZE, g);
        for (int i = 0; i < SIZE; i++) squares += g[i] * g[i];
    }
    for (int l = 0; l < 4 && !r->failed; l++) {
        double norm = 0, factor = l == 3 ? 2 / (sqrt(squares) + 1e-6) : 1;
        bool finite = false;
        backward(r, &k, &scale, NULL, 0);
        tshi_check_ok(r, tsh_loss_scale_unscale(&scale, k.list, limits[l], l ? &norm : NULL, &finite));
        tshi_check(r, finite, "whole numbers overflow");
        tshi_check(r, !l || fabs(norm - sqrt(squares)) < 1e-9 * norm, "norm %g, not %g", norm, sqrt(squares));
        check_gradient(r, "split", k.split, 3, factor);
        check_gradient(r, "whole", k.whole, 4, factor);
    }
    free_kit(&k);
}

/* The elements of all that a step changes. */
static size_t snapshot(const kit *k, char *to) {
    size_t used = 0;
    const tsh_tensor *p[2] = {k->split, k->whole};
    for (int i = 0; i < 2; i++) {
        memcpy(to + used, tshi_data(p[i]), tsh_tensor_local_nbytes(p[i]));
        used += tsh_tensor_local_nbytes(p[i]);
        memcpy(to + used, tshi_data(tsh_tensor_grad(p[i])), tsh_tensor_local_nbytes(tsh_tensor_grad(p[i])));
        used += tsh_tensor_local_nbytes(tsh_tensor_grad(p[i]));
    }
    return used;
}

static bool holds_nothing(const tsh_tensor *t, int rank) {
    tshi_placement p = tshi_tensor_placement(t);
    tsh_box box = tshi_placement_box(&p, t->shape.ndim, t->shape.global, rank);
    return tshi_box_numel(t->shape.ndim, &box) == 0;
}

/* A NaN or an infinity in one rank's part, of a sharded or a replicated parameter: every rank leaves the step out. */
static void skips(tshi_rank *r, void *axes) {
    const double bad[] = {NAN, INFINITY, -INFINITY};
    static char before[8 * SIZE * 4], after[8 * SIZE * 4];
    kit k = {0}, twin = {0};
    tsh_loss_scale scale = {0};
    make_kit(r, axes, TSH_BFLOAT16, &k);
    make_kit(r, axes, TSH_BFLOAT16, &twin);
    for (int step = 0; step < 4 * r->size && !r->failed; step++) {
        bool finite = false, spoils = step % 2, mine = step / 4 == r->rank;
        double norm, now = scale.scale;
        tsh_tensor *p = !spoils || !mine ? NULL : step % 4 == 1 ? k.whole : k.split;
        bool empty = step % 4 == 3 && holds_nothing(k.split, step / 4);
        backward(r, &k, &scale, p, bad[step % 3]);
        memset(before, 0, sizeof before);
        size_t bytes = snapshot(&k, before);
        tshi_check_ok(r, tsh_loss_scale_unscale(&scale, k.list, 1, &norm, &finite));
        tshi_check(r, empty || finite == !spoils, "step %d: finite is %d", step, finite);
        if (finite) {
            tsh_loss_scale one = {.scale = 1};
            tshi_check_ok(r, tsh_optimizer_step(k.optimizer));
            backward(r, &twin, &one, NULL, 0);
            tshi_check_ok(r, tsh_loss_scale_unscale(&one, twin.list, 1, NULL, &finite));
            tshi_check_ok(r, tsh_optimizer_step(twin.optimizer));
            tshi_check(r, memcmp(tshi_data(k.whole), tshi_data(twin.whole), SIZE * 2) == 0, "step %d: another", step);
        } else {
            snapshot(&k, after);
            tshi_check(r, isnan(norm) && memcmp(before, after, bytes) == 0, "step %d changes something", step);
        }
        tshi_check_ok(r, tsh_loss_scale_update(&scale, finite));
        tshi_check(r, scale.scale == (finite && now != 0 ? now : finite ? 65536 : now / 2), "scale %g", scale.scale);
    }
    free_kit(&k);
    free_kit(&twin);
}

Test(loss_scale, divides_and_clips_in_one_pass) {
    cr_assert_str_empty(tshi_test_run_meshes(clips));
}

Test(loss_scale, one_ranks_overflow_leaves_the_step_out_everywhere) {
    cr_assert_str_empty(tshi_test_run_meshes(skips));
}

Test(loss_scale, grows_and_backs_off) {
    tsh_loss_scale s = {.interval = 3};
    const bool finite[] = {true, true, true, true, false, true, true, true, false, false};
    const double wanted[] = {65536, 65536, 131072, 131072, 65536, 65536, 65536, 131072, 65536, 32768};
    for (int i = 0; i < 10; i++) {
        cr_assert_eq(tsh_loss_scale_update(&s, finite[i]), TSH_OK);
        cr_assert_eq(s.scale, wanted[i], "step %d: %g", i, s.scale);
    }
    s = (tsh_loss_scale){0};
    for (int i = 0; i < 2000; i++) cr_assert_eq(tsh_loss_scale_update(&s, true), TSH_OK);
    cr_assert(s.scale == 131072 && s.good_steps == 0);
    s = (tsh_loss_scale){.scale = DBL_MAX, .growth = 16, .interval = 1};
    cr_assert_eq(tsh_loss_scale_update(&s, true), TSH_OK);
    cr_assert_eq(s.scale, DBL_MAX, "the scale stays finite");
    s = (tsh_loss_scale){.backoff = 1};
    cr_assert_eq(tsh_loss_scale_update(&s, true), TSH_ERR_ARGUMENT);
}
