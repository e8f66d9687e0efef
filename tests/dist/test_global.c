/* Global tensors: random values at any layout. */
#include "support/tensors.h"

#include <criterion/criterion.h>
#include <string.h>

enum { ROWS = 7, COLS = 10, NUMEL = ROWS * COLS, STREAMS = 3 };

/* The values of the one-rank run: float64, of STREAMS tensors. */
static double (*truth)[NUMEL];

static tsh_layout layout_of(int number) {
    const tsh_layout layouts[] = {TSH_REPLICATED, TSH_SHARD(0), TSH_SHARD(1), TSH_PARTIAL, TSH_LOCAL};
    return layouts[number];
}

static tsh_tensor *draw(tshi_rank *r, const tsh_mesh *mesh, const tsh_tensor_config *config, int stream) {
    tsh_tensor *t = NULL;
    tshi_check_ok(r, stream == 1 ? tsh_tensor_create_normal(mesh, config, 3, 0.5, &t)
                                 : tsh_tensor_create_uniform(mesh, config, -2, 2, &t));
    return t;
}

static void note_truth(tshi_rank *r, void *arg) {
    const tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {ROWS, COLS}};
    (void)arg;
    for (int s = 0; s < STREAMS; s++) {
        tsh_tensor *t = draw(r, tsh_world_mesh(r->world), &config, s);
        if (t) tshi_check_ok(r, tsh_tensor_read(t, truth[s], NUMEL));
        tsh_tensor_release(t);
    }
}

static void check_drawn(tshi_rank *r, const tsh_tensor *t, int stream) {
    char text[160];
    bool zeros = false;
    for (int a = 0; t && a < t->mesh->axes; a++) {
        zeros |= t->layout[a].kind == TSH_KIND_PARTIAL && t->mesh->axis[a].index > 0;
    }
    for (int64_t i = 0; t && i < tsh_tensor_local_numel(t); i++) {
        double got = tshi_test_element(t, i), wanted = zeros ? 0 : truth[stream][tshi_test_place(t, i)];
        if (!tshi_check(r, memcmp(&got, &wanted, sizeof got) == 0, "%s, stream %d: element %d is %.17g, wanted %.17g",
                        tsh_tensor_describe(t, text, sizeof text), stream, (int)i, got, wanted)) {
            return;
        }
    }
}

static void draws_on(tshi_rank *r, tsh_mesh *mesh, void *arg) {
    (void)arg;
    for (int layouts = 0; layouts < 25; layouts++) {
        tsh_tensor_config config = {.dtype = TSH_FLOAT64,
                                    .ndim = 2,
                                    .shape = {ROWS, COLS},
                                    .layout = {layout_of(layouts / 5), layout_of(layouts % 5)}};
        tsh_world_seed(r->world, 0);
        for (int s = 0; s < STREAMS; s++) {
            tsh_tensor *t = draw(r, mesh, &config, s);
            check_drawn(r, t, s);
            tsh_tensor_release(t);
        }
    }
}

static void draws(tshi_rank *r, void *arg) {
    tshi_test_each_mesh(r, draws_on, arg);
}

Test(global, random_values_are_those_of_one_rank, .timeout = 300) {
    truth = tshi_test_shared(STREAMS * sizeof *truth);
    cr_assert_str_empty(tshi_test_run(1, note_truth, NULL));
    cr_assert(truth[0][0] != truth[2][0], "each call has a stream of its own");
    cr_assert_str_empty(tshi_test_run_each(1, 8, draws, NULL));
}

/* The stream after one that a tensor of other ranks has taken is the same on every rank. */
static void elsewhere(tshi_rank *r, void *arg) {
    tsh_mesh *mesh = NULL;
    tsh_tensor *there = NULL, *t = NULL;
    const tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {ROWS, COLS}};
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create_on(r->world, (int[]){2, 0}, 2, "x=2", &mesh));
    tshi_check_ok(r, tsh_tensor_create_uniform(mesh, &config, -2, 2, &there));
    tshi_check(r, tsh_tensor_local_numel(there) == (r->rank == 1 ? 0 : NUMEL), "elements");
    check_drawn(r, there, 0);
    t = draw(r, tsh_world_mesh(r->world), &config, 1);
    check_drawn(r, t, 1);
    tsh_tensor_release(there);
    tsh_tensor_release(t);
    tsh_mesh_destroy(mesh);
}

Test(global, a_rank_outside_the_mesh_takes_the_stream_too, .timeout = 120) {
    truth = tshi_test_shared(STREAMS * sizeof *truth);
    cr_assert_str_empty(tshi_test_run(1, note_truth, NULL));
    cr_assert_str_empty(tshi_test_run(3, elsewhere, NULL));
}
