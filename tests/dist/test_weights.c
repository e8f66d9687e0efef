/* Meshes whose axes have weights: texts, parts, moves between weights, and measured weights. */
#include "layout/box.h"
#include "support/ranks.h"
#include "tensor/tensor.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(weights, .timeout = 120);

static tsh_tensor *make_rows(tshi_rank *r, const tsh_mesh *mesh, int64_t rows) {
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {rows, 2}, .layout = {TSH_SHARD(0)}};
    tsh_tensor *t = NULL;
    tshi_check_ok(r, tsh_tensor_create_arange(mesh, &config, 0, 1, &t));
    return t;
}

static void parts(tshi_rank *r, void *arg) {
    static const int64_t start[] = {0, 7, 10}, length[] = {7, 3, 3};
    tsh_mesh *mesh = NULL;
    char text[160];
    int64_t at, count;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, "model=2:1:1", &mesh));
    tsh_tensor *t = make_rows(r, mesh, 13);
    tsh_box box = tsh_tensor_box(t);
    tshi_check(r, box.start[0] == start[r->rank] && box.length[0] == length[r->rank], "rows %d+%d", (int)box.start[0],
               (int)box.length[0]);
    tsh_tensor_describe(t, text, sizeof text);
    tshi_check(r, strstr(text, "model=SHARD(0) 2:1:1") != NULL, "%s", text);
    const tsh_group *model = tsh_mesh_group(mesh, "model");
    tsh_group_part(model, 13, r->rank, &at, &count);
    tshi_check(r, at == start[r->rank] && count == length[r->rank], "group_part");
    tsh_group_part(tsh_world_group(r->world), 13, r->rank, &at, &count);
    tshi_check(r, count == (r->rank ? 4 : 5), "the world's group has no weights");
    tsh_tensor_release(t);
    tsh_mesh_destroy(mesh);
}

Test(weights, parts_of_a_dim) {
    cr_assert_str_empty(tshi_test_run(3, parts, NULL));
}

/* A mesh within a mesh, a part of a mesh, and a tensor made of parts keep the weights. */
static void kept(tshi_rank *r, void *arg) {
    static const int64_t rows[] = {5, 2};
    tsh_mesh *whole = NULL, *part = NULL;
    tsh_tensor *local = NULL, *joined = NULL;
    int64_t count;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=0:1,model=6:2", &whole));
    tshi_check_ok(r, tsh_mesh_fix(whole, "data", 1, &part));
    tsh_group_part(tsh_mesh_group(part, "model"), 7, r->rank % 2, NULL, &count);
    tshi_check(r, count == rows[r->rank % 2], "%d of 7 rows", (int)count);
    tsh_tensor_config config = {
        .ndim = 1, .shape = {r->rank < 2 ? 0 : rows[r->rank % 2]}, .layout = {TSH_LOCAL, TSH_LOCAL}};
    tshi_check_ok(r, tsh_tensor_create(whole, &config, &local));
    tshi_check_ok(r, tsh_from_local(local, (const tsh_layout[]){TSH_SHARD(0), TSH_SHARD(0)}, NULL, &joined));
    tshi_check(r, joined && tsh_tensor_shape(joined)[0] == 7, "the whole has 7 items");
    tsh_tensor_release(joined);
    tsh_tensor_release(local);
    tsh_mesh_destroy(part);
    tsh_mesh_destroy(whole);
}

Test(weights, are_kept) {
    cr_assert_str_empty(tshi_test_run(4, kept, NULL));
}

static void refused(tshi_rank *r, void *arg) {
    static const char *const wrong[] = {"a=0:0",  "a=3:",  "a=3:1:",   "a=:1",    "a=3:-1",          "a=2147483648:1",
                                        "a=3:1x", "a=3;1", "a=auto:1", "a=autos", "a=1,b=auto,c=-1", "a=auto,b=auto"};
    tsh_mesh *mesh = NULL;
    (void)arg;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tsh_status status = tsh_mesh_create(r->world, wrong[i], &mesh);
        tshi_check(r, status == TSH_ERR_ARGUMENT && !mesh, "%s: %s", wrong[i], tsh_error_message());
    }
    tshi_check_status(r, tsh_mesh_create(r->world, "a=3:1:1", &mesh), TSH_ERR_ARGUMENT, "is a mesh of 3 ranks");
    const char *axes = r->rank ? "a=3:1" : "a=3:2";
    tshi_check_status(r, tsh_mesh_create(r->world, axes, &mesh), TSH_ERR_MISMATCH, "a=3:");
    tsh_status status = tsh_mesh_create_on(r->world, (const int[]){1, 0}, 2, "a=auto", &mesh);
    tshi_check(r, status == TSH_ERR_ARGUMENT && strstr(tsh_error_message(), "weights of a must be given"), "%s",
               tsh_error_message());
}

Test(weights, wrong_texts_are_refused) {
    cr_assert_str_empty(tshi_test_run(2, refused, NULL));
}

/* From 3:1 to equal parts a quarter of the elements moves, in one message. */
static void moves(tshi_rank *r, void *arg) {
    enum { ROWS = 8 };
    tsh_mesh *from = NULL, *to = NULL;
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, "a=3:1", &from));
    tshi_check_ok(r, tsh_mesh_create(r->world, "a=2", &to));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *x = make_rows(r, from, ROWS);
    tsh_communication_stats before = tsh_group_stats(tsh_mesh_members(from));
    const tsh_tensor *y = tsh_redistribute(tape, x, to, (const tsh_layout[]){TSH_SHARD(0)});
    tsh_communication_stats after = tsh_group_stats(tsh_mesh_members(from));
    int64_t bytes = 0, calls = 0;
    for (int op = 0; op < TSH_COLLECTIVE_COUNT; op++) {
        bytes += (int64_t)(after.bytes[op] - before.bytes[op]);
        calls += (int64_t)(after.calls[op] - before.calls[op]);
    }
    tshi_check(r, y && tsh_tensor_shape(y)[0] == ROWS && tsh_tensor_local_shape(y)[0] == ROWS / 2, "rows");
    tshi_check(r, calls == 1 && bytes == (r->rank ? 0 : ROWS / 4 * 2 * 8), "%d bytes in %d calls", (int)bytes,
               (int)calls);
    const double *values = y ? tsh_tensor_data(y) : NULL;
    for (int i = 0; values && i < ROWS; i++) tshi_check(r, values[i] == i + r->rank * ROWS, "element %d", i);
    tshi_route_step step = {.axis = -1, .to = {TSH_SHARD(0)}};
    tshi_cost cost = tshi_route_step_cost(from, to, &x->shape, x->layout, &step);
    tshi_check(r, cost.elements == (r->rank ? 0 : ROWS / 4 * 2), "the cost is %g elements", cost.elements);
    tshi_check(r, cost.backward_elements == (r->rank ? ROWS / 4 * 2 : 0), "back: %g", cost.backward_elements);
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
    tsh_mesh_destroy(from);
    tsh_mesh_destroy(to);
}

Test(weights, only_what_must_moves) {
    cr_assert_str_empty(tshi_test_run(2, moves, NULL));
}

/* A plan is kept beyond the mesh for which it was made; a mesh of other weights in its place has another. */
static void replaced(tshi_rank *r, void *arg) {
    static const char *const axes[] = {"a=3:1", "a=1:3", "a=2", "a=1:0", "a=3:1"};
    static const int64_t rows[][2] = {{6, 2}, {2, 6}, {4, 4}, {8, 0}, {6, 2}};
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < 5; i++) {
        tsh_mesh *mesh = NULL;
        tshi_check_ok(r, tsh_mesh_create(r->world, axes[i], &mesh));
        tsh_tensor *x = make_rows(r, mesh, 8);
        tshi_check(r, tsh_tensor_local_shape(x)[0] == rows[i][r->rank], "%s: rows", axes[i]);
        const tsh_tensor *y = tsh_redistribute(tape, x, tsh_world_mesh(r->world), (const tsh_layout[]){TSH_SHARD(0)});
        const double *values = y ? tsh_tensor_data(y) : NULL;
        for (int k = 0; tshi_check(r, y != NULL, "%s", tsh_tape_message(tape)) && k < 8; k++)
            tshi_check(r, values[k] == k + r->rank * 8, "%s: element %d", axes[i], k);
        tshi_check_ok(r, tsh_tape_reset(tape));
        tsh_tensor_release(x);
        tsh_mesh_destroy(mesh);
    }
    tsh_tape_destroy(tape);
}

Test(weights, of_a_mesh_that_has_gone_are_forgotten) {
    cr_assert_str_empty(tshi_test_run(2, replaced, NULL));
}

/* --- measured ----------------------------------------------------------------------------------------------------- */

/* Every rank gets the same numbers, from 1 to 20, and 20 of them. */
static void measured(tshi_rank *r, void *arg) {
    int64_t weights[3], sums[3], most = 0, count;
    tsh_mesh *mesh = NULL;
    tsh_tensor *t = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_group_measure(tsh_world_group(r->world), weights));
    tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {3}};
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &t));
    tshi_check_ok(r, tsh_tensor_write(t, weights, 3));
    tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), t, TSH_REDUCE_SUM));
    tshi_check_ok(r, tsh_tensor_read(t, sums, 3));
    for (int i = 0; i < 3; i++) {
        most = weights[i] > most ? weights[i] : most;
        tshi_check(r, weights[i] >= 1 && sums[i] == 3 * weights[i], "weight %d: %d", i, (int)weights[i]);
    }
    tshi_check(r, most == 20, "the largest weight is %d", (int)most);
    tsh_tensor_release(t);
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=1,model=auto", &mesh));
    tshi_check(r, tsh_group_size(tsh_mesh_group(mesh, "model")) == 3, "size");
    t = make_rows(r, mesh, 1000);
    tsh_group_part(tsh_mesh_group(mesh, "data"), 10, 0, NULL, &count);
    tshi_check(r, count == 10, "an axis of one rank");
    tsh_tensor_release(t);
    tsh_mesh_destroy(mesh);
}

Test(weights, measured_are_the_same_on_every_rank) {
    cr_assert_str_empty(tshi_test_run(3, measured, NULL));
}
