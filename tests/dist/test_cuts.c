/* Layouts with cut points of their own: parts, moves, sums, whole tensors, lifetime, and what is refused. */
#include "device/device.h"
#include "support/ranks.h"
#include "tensor/tensor.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(cuts, .timeout = 120);

enum { RANKS = 3 };

static uint64_t make_cuts(tshi_rank *r, const tsh_mesh *mesh, const int64_t *at) {
    uint64_t cuts = 0;
    tshi_check_ok(r, tsh_cuts_create(mesh, RANKS, at, &cuts));
    return cuts;
}

static tsh_tensor *make_rows(tshi_rank *r, const tsh_mesh *mesh, int64_t rows, tsh_layout layout) {
    const tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {rows, 2}, .layout = {layout}};
    tsh_tensor *t = NULL;
    tshi_check_ok(r, tsh_tensor_create_arange(mesh, &config, 0, 1, &t));
    return t;
}

/* The rank holds rows [start, start + length) of an arange of rows of 2. */
static void holds_rows(tshi_rank *r, const tsh_tensor *t, int64_t start, int64_t length, const char *what) {
    if (!tshi_check(r, t != NULL, "%s: NULL", what)) return;
    tsh_box box = tsh_tensor_box(t);
    const double *values = tsh_tensor_data(t);
    tshi_check(r, box.start[0] == start && box.length[0] == length, "%s: rows %d+%d", what, (int)box.start[0],
               (int)box.length[0]);
    for (int64_t i = 0; i < tsh_tensor_local_numel(t) && !r->failed; i++)
        tshi_check(r, values[i] == (double)(2 * start + i), "%s: element %d is %g", what, (int)i, values[i]);
}

static void parts(tshi_rank *r, void *arg) {
    static const int64_t at[] = {0, 5, 5, 9}, balanced[] = {0, 3, 6, 9};
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    const tsh_group *group = tsh_world_group(r->world);
    char text[200];
    (void)arg;
    uint64_t cuts = make_cuts(r, mesh, at), even = make_cuts(r, mesh, balanced);
    tsh_tensor *t = make_rows(r, mesh, 9, TSH_SHARD_CUTS(0, cuts));
    tsh_tensor *plain = make_rows(r, mesh, 9, TSH_SHARD_CUTS(-2, even));
    holds_rows(r, t, at[r->rank], at[r->rank + 1] - at[r->rank], "cut");
    holds_rows(r, plain, 3 * r->rank, 3, "cut where a balanced split does");
    tshi_check(r, tsh_tensor_layout(t, group).cuts == cuts && tsh_tensor_layout(plain, group).cuts == 0, "layouts");
    tsh_tensor_describe(t, text, sizeof text);
    tshi_check(r, strstr(text, "=SHARD(0, cut at 0,5,5,9)") != NULL, "%s", text);
    tsh_tensor_release(plain);
    tsh_tensor_release(t);
    tsh_cuts_release(mesh, even);
    tsh_cuts_release(mesh, cuts);
}

Test(cuts, part_a_dim) {
    cr_assert_str_empty(tshi_test_run(RANKS, parts, NULL));
}

/* --- moves -------------------------------------------------------------------------------------------------------- */

/* Tokens go to the ranks of their experts and back, by other counts in each step: values and gradients are those of one
 * rank, only what must moves, and cut points are freed with the tensors of the step. */
static void experts(tshi_rank *r, void *arg) {
    enum { TOKENS = 11, STEPS = 40 };
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    const tsh_layout rows[] = {TSH_SHARD(0)};
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *x = make_rows(r, mesh, TOKENS, TSH_SHARD(0));
    tshi_check_ok(r, tsh_tensor_require_grad(x, true));
    for (int step = 0; step < STEPS && !r->failed; step++) {
        int64_t at[] = {0, step % 12, step % 12 + (7 * step) % (12 - step % 12), TOKENS};
        uint64_t cuts = make_cuts(r, mesh, at);
        tsh_tensor *sent = tsh_redistribute(tape, x, NULL, (const tsh_layout[]){TSH_SHARD_CUTS(0, cuts)});
        tsh_cuts_release(mesh, cuts);
        holds_rows(r, sent, at[r->rank], at[r->rank + 1] - at[r->rank], "sent");
        tsh_tensor *back = tsh_redistribute(tape, tsh_mul(tape, sent, sent), NULL, rows);
        tsh_tensor *loss = tsh_sum(tape, back, TSH_ALL_DIMS);
        tshi_check_ok(r, tsh_backward(tape, loss));
        const double *values = tsh_tensor_data(x), *dx = tsh_tensor_data(tsh_tensor_grad(x));
        for (int64_t i = 0; i < tsh_tensor_local_numel(x); i++)
            tshi_check(r, dx && dx[i] == 2 * values[i], "step %d: gradient %d", step, (int)i);
        tsh_tensor_zero_grad(x);
        tshi_check_ok(r, tsh_tape_reset(tape));
        tshi_check(r, mesh->device->cuts.count == 0, "step %d leaves %d cut points", step, mesh->device->cuts.count);
    }
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
}

Test(cuts, follow_the_counts_of_each_step) {
    cr_assert_str_empty(tshi_test_run(RANKS, experts, NULL));
}

/* Between cut points that differ in one row, one row moves. */
static void one_row(tshi_rank *r, void *arg) {
    static const int64_t from[] = {0, 4, 4, 9}, to[] = {0, 5, 5, 9};
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    uint64_t first = make_cuts(r, mesh, from), second = make_cuts(r, mesh, to);
    tsh_tensor *x = make_rows(r, mesh, 9, TSH_SHARD_CUTS(0, first));
    tsh_communication_stats before = tsh_group_stats(tsh_mesh_members(mesh));
    tsh_tensor *y = tsh_redistribute_along(tape, x, tsh_world_group(r->world), TSH_SHARD_CUTS(0, second));
    tsh_communication_stats after = tsh_group_stats(tsh_mesh_members(mesh));
    int64_t bytes = 0;
    for (int op = 0; op < TSH_COLLECTIVE_COUNT; op++) bytes += (int64_t)(after.bytes[op] - before.bytes[op]);
    tshi_check(r, bytes == (r->rank == 2 ? 16 : 0), "%d bytes", (int)bytes);
    holds_rows(r, y, to[r->rank], to[r->rank + 1] - to[r->rank], "moved");
    holds_rows(r, tsh_full(tape, y), 0, 9, "gathered");
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
    tsh_cuts_release(mesh, first);
    tsh_cuts_release(mesh, second);
}

Test(cuts, move_only_what_must) {
    cr_assert_str_empty(tshi_test_run(RANKS, one_row, NULL));
}

/* A column and a row product whose features are cut alike, a reshape, and a sum: those of one rank. */
static void products(tshi_rank *r, void *arg) {
    static const int64_t at[] = {0, 0, 4, 6};
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_tape *tape = NULL;
    double got[2], wanted[2];
    (void)arg;
    uint64_t cuts = make_cuts(r, mesh, at);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int cut = 0; cut < 2; cut++) {
        tsh_layout split = cut ? TSH_SHARD_CUTS(0, cuts) : TSH_REPLICATED;
        tsh_tensor *up = make_rows(r, mesh, 6, split), *x = make_rows(r, mesh, 5, TSH_REPLICATED);
        tshi_check_ok(r, tsh_tensor_require_grad(up, true));
        tsh_tensor *h = tsh_affine(tape, x, up, NULL); /* [5,6] SHARD(1) */
        tsh_tensor *same = tsh_reshape(tape, h, 3, (const int64_t[]){5, 2, 3});
        tsh_tensor *y = tsh_matmul(tape, tsh_reshape(tape, same, 2, (const int64_t[]){5, 6}), up);
        tsh_tensor *sum = tsh_full(tape, tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS));
        double *into = cut ? got : wanted;
        into[0] = sum ? tsh_tensor_item(sum) : -1;
        tshi_check_ok(r, tsh_backward(tape, sum));
        sum = tsh_full(tape, tsh_sum(tape, tsh_mul(tape, tsh_tensor_grad(up), tsh_tensor_grad(up)), TSH_ALL_DIMS));
        into[1] = sum ? tsh_tensor_item(sum) : -1;
        tshi_check(r, tsh_tape_status(tape) == TSH_OK, "%s", tsh_tape_message(tape));
        tshi_check_ok(r, tsh_tape_reset(tape));
        tsh_tensor_release(up);
        tsh_tensor_release(x);
    }
    tshi_check(r, got[0] == wanted[0] && got[1] == wanted[1], "%g and %g, on one rank %g and %g", got[0], got[1],
               wanted[0], wanted[1]);
    tsh_cuts_release(mesh, cuts);
    tsh_tape_destroy(tape);
}

Test(cuts, of_features) {
    cr_assert_str_empty(tshi_test_run(RANKS, products, NULL));
}

/* --- whole tensors ------------------------------------------------------------------------------------------------ */

static void wholes(tshi_rank *r, void *arg) {
    static const int64_t at[] = {0, 1, 8, 9};
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    double whole[18], read[18] = {0};
    tsh_tensor *joined = NULL;
    (void)arg;
    uint64_t cuts = make_cuts(r, mesh, at);
    const tsh_layout layouts[] = {TSH_SHARD_CUTS(0, cuts)};
    for (int i = 0; i < 18; i++) whole[i] = i;
    tsh_tensor *t = make_rows(r, mesh, 9, TSH_SHARD_CUTS(0, cuts));
    tshi_check_ok(r, tsh_tensor_fill(t, -1));
    tshi_check_ok(r, tsh_tensor_scatter_whole(t, 1, whole));
    holds_rows(r, t, at[r->rank], at[r->rank + 1] - at[r->rank], "scattered");
    tshi_check_ok(r, tsh_tensor_read_whole(t, read));
    tshi_check(r, memcmp(whole, read, sizeof whole) == 0, "read_whole");
    tsh_box third = {.start = {3 * r->rank, 0}, .length = {3, 2}};
    tshi_check_ok(r, tsh_tensor_read_parts(t, tsh_world_group(r->world), &third, read));
    tshi_check(r, memcmp(whole + 6 * r->rank, read, sizeof whole / 3) == 0, "read_parts");
    const tsh_tensor_config config = {
        .dtype = TSH_FLOAT64, .ndim = 2, .shape = {at[r->rank + 1] - at[r->rank], 2}, .layout = {TSH_LOCAL}};
    tsh_tensor *local = NULL;
    tshi_check_ok(r, tsh_tensor_create_full(mesh, &config, r->rank, &local));
    tshi_check_ok(r, tsh_from_local(local, layouts, NULL, &joined));
    tshi_check(r, joined && tsh_tensor_shape(joined)[0] == 9, "from_local");
    tsh_tensor_release(joined);
    tsh_cuts_release(mesh, cuts);
    tshi_check_status(r, tsh_from_local(local, (const tsh_layout[]){TSH_SHARD(0)}, NULL, &joined), TSH_ERR_SHAPE,
                      "its part of [9,2], the sum of all parts, is [3,2]");
    tsh_tensor_release(local);
    tsh_tensor_release(t);
}

Test(cuts, of_whole_tensors) {
    cr_assert_str_empty(tshi_test_run(RANKS, wholes, NULL));
}

/* --- refused ------------------------------------------------------------------------------------------------------ */

static void refuses(tshi_rank *r, const tsh_mesh *mesh, const tsh_layout *layout, tsh_status status,
                    const char *words) {
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {9}};
    tsh_tensor *t = NULL;
    for (int a = 0; a < tsh_mesh_axes(mesh); a++) config.layout[a] = layout[a];
    tsh_status got = tsh_tensor_create(mesh, &config, &t);
    if (status == TSH_OK)
        tshi_check_ok(r, got);
    else
        tshi_check_status(r, got, status, words);
    tsh_tensor_release(t);
}

static void wrong(tshi_rank *r, void *arg) {
    static const int64_t at[] = {0, 5, 5, 9};
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_mesh *two = NULL;
    uint64_t cuts, shorter, fewer;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=1,model=-1", &two));
    tshi_check_ok(r, tsh_cuts_create(mesh, RANKS, at, &cuts));
    tshi_check_ok(r, tsh_cuts_create(mesh, RANKS, (const int64_t[]){0, 1, 2, 8}, &shorter));
    tshi_check_ok(r, tsh_cuts_create(mesh, 2, (const int64_t[]){0, 1, 9}, &fewer));
    refuses(r, mesh, &TSH_SHARD_CUTS(0, shorter), TSH_ERR_SHAPE, "make 3 parts of 8 items; the axis has 3 ranks, the");
    refuses(r, mesh, &TSH_SHARD_CUTS(0, fewer), TSH_ERR_SHAPE, "SHARD(0, cut at 0,1,9) along axis");
    refuses(r, mesh, &TSH_SHARD_CUTS(0, 12345), TSH_ERR_ARGUMENT, "the world has no cut points 3039");
    tsh_layout units = TSH_SHARD_CUTS(0, cuts);
    units.units = 3;
    refuses(r, mesh, &units, TSH_ERR_LAYOUT, "units or cut points, not both");
    tsh_layout late[] = {TSH_SHARD(0), TSH_SHARD_CUTS(0, cuts)};
    refuses(r, two, late, TSH_ERR_LAYOUT, "axis data splits the dim first");
    late[0].order = 1;
    refuses(r, two, late, TSH_OK, "");
    tsh_cuts_release(mesh, cuts);
    tsh_cuts_release(mesh, cuts);
    refuses(r, mesh, &TSH_SHARD_CUTS(0, cuts), TSH_ERR_ARGUMENT, "have released them");
    tshi_check_status(r, tsh_cuts_create(mesh, 0, at, &cuts), TSH_ERR_ARGUMENT, "0 parts");
    tshi_check_status(r, tsh_cuts_create(mesh, 2, (const int64_t[]){0, 3, 2}, &cuts), TSH_ERR_ARGUMENT,
                      "offsets[2] is 2");
    tshi_check_status(r, tsh_cuts_create(mesh, 1, (const int64_t[]){1, 3}, &cuts), TSH_ERR_ARGUMENT, "offsets[0] is 1");
    tsh_cuts_release(mesh, fewer);
    tsh_cuts_release(mesh, shorter);
    tsh_mesh_destroy(two);
}

Test(cuts, wrong_ones_are_refused) {
    cr_assert_str_empty(tshi_test_run(RANKS, wrong, NULL));
}
