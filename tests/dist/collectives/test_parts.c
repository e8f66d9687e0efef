/* Tensors that are written and read by the boxes of a decomposition of the program's own. */
#include "dist/world.h"
#include "support/tensors.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 7, COLUMNS = 10, MOST = ROWS * COLUMNS };

/* Boxes of a kind for each rank: uneven columns, the last with the rest; blocks in reverse order; everything on one
 * rank; rows in strips of none and two, the last with the rest. */
enum { COLUMNS_FIRST, REVERSED, ONE_HAS_ALL, STRIPS, KINDS };

static tsh_box box_of(int kind, int rank, int size) {
    tsh_box box = {.length = {ROWS, COLUMNS}};
    int last = rank == size - 1;
    if (kind == COLUMNS_FIRST) {
        box.start[1] = rank * (COLUMNS / size);
        box.length[1] = last ? COLUMNS - box.start[1] : COLUMNS / size;
    } else if (kind == REVERSED) {
        tsh_split(ROWS, size, size - 1 - rank, &box.start[0], &box.length[0]);
    } else if (kind == ONE_HAS_ALL) {
        box.length[0] = last ? ROWS : 0;
    } else {
        box.start[0] = rank / 2 * 2;
        box.length[0] = last ? ROWS - box.start[0] : rank % 2 ? 2 : 0;
    }
    return box;
}

static void fill(const tsh_box *box, double factor, double *values) {
    for (int64_t i = 0; i < box->length[0]; i++) {
        for (int64_t k = 0; k < box->length[1]; k++) {
            *values++ = factor * (double)((box->start[0] + i) * COLUMNS + box->start[1] + k);
        }
    }
}

/* What the rank's box has after the call is the whole's elements. */
static void check_read(tshi_rank *r, const tsh_tensor *t, const tsh_box *box, double factor) {
    double got[MOST] = {0}, wanted[MOST] = {0};
    char text[160];
    fill(box, factor, wanted);
    tshi_check_ok(r, tsh_tensor_read_parts(t, tsh_world_group(r->world), box, got));
    tshi_check(r, !memcmp(got, wanted, sizeof got), "%s, box at %d,%d", tsh_tensor_describe(t, text, sizeof text),
               (int)box->start[0], (int)box->start[1]);
}

/* A tensor on the mesh is written by boxes of each kind, read whole, and read by boxes of the other kinds and by ones
 * that overlap. */
static void moves_on(tshi_rank *r, tsh_mesh *mesh, tsh_layout a, tsh_layout b) {
    tsh_tensor *t = NULL;
    const tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {ROWS, COLUMNS}, .layout = {a, b}};
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, &t));
    for (int kind = 0; t && kind < KINDS; kind++) {
        double values[MOST], whole[MOST] = {0}, factor = kind + 1;
        tsh_box box = box_of(kind, r->rank, r->size), all = {.length = {ROWS, COLUMNS}}, halo = all;
        fill(&box, factor, values);
        tshi_check_ok(r, tsh_tensor_write_parts(t, tsh_world_group(r->world), &box, values));
        tshi_check_ok(r, tsh_tensor_read_whole(t, whole));
        fill(&all, factor, values);
        tshi_check(r, !tshi_mesh_has_me(mesh) || !memcmp(whole, values, sizeof whole), "kind %d, whole", kind);
        halo.start[0] = r->rank % 3;
        halo.length[0] = ROWS - halo.start[0] - 1;
        for (int other = 0; other < KINDS; other++) {
            box = box_of(other, r->rank, r->size);
            check_read(r, t, &box, factor);
        }
        check_read(r, t, &halo, factor);
    }
    tsh_tensor_release(t);
}

static void moves(tshi_rank *r, void *arg) {
    const tsh_layout layouts[] = {TSH_REPLICATED, TSH_SHARD(0), TSH_SHARD(1), TSH_PARTIAL};
    const char *axes[] = {"a=1,b=1", "a=1,b=2", "a=2,b=1", "a=2,b=2"};
    int ranks[4] = {r->size - 1, 0, r->size > 2 ? 1 : 0, r->size > 3 ? 2 : 0};
    (void)arg;
    for (int m = 0; m < 4; m++) {
        tsh_mesh *mesh = NULL;
        int members = (m & 1 ? 2 : 1) * (m & 2 ? 2 : 1);
        if (members > r->size) continue;
        if (!tshi_check_ok(r, tsh_mesh_create_on(r->world, ranks, members, axes[m], &mesh))) return;
        for (int i = 0; i < 16 && !r->failed; i++) moves_on(r, mesh, layouts[i / 4], layouts[i % 4]);
        tsh_mesh_destroy(mesh);
    }
}

Test(parts, any_boxes_go_to_any_layout_and_back, .timeout = 600) {
    cr_assert_str_empty(tshi_test_run_each(1, 5, moves, NULL));
}

/* The second call of a kind gathers the boxes and moves the values: two calls, and what leaves a rank is counted. */
static void counts(tshi_rank *r, void *arg) {
    tsh_tensor *t = NULL;
    double values[MOST] = {0};
    tsh_group *group = tsh_world_group(r->world);
    tsh_box box = box_of(ONE_HAS_ALL, r->rank, r->size);
    const tsh_tensor_config config = {
        .dtype = TSH_FLOAT64, .ndim = 2, .shape = {ROWS, COLUMNS}, .layout = {TSH_SHARD(1)}};
    (void)arg;
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &t));
    for (int i = 0; i < 2; i++) {
        tsh_group_reset_stats(group);
        tshi_check_ok(r, tsh_tensor_write_parts(t, group, &box, values));
    }
    tsh_communication_stats stats = tsh_group_stats(group);
    uint64_t sent = stats.bytes[TSH_COLLECTIVE_ALL_TO_ALL];
    uint64_t wanted = r->rank == r->size - 1 ? sizeof values - tsh_tensor_local_nbytes(t) : 0;
    tshi_check(r, stats.calls[TSH_COLLECTIVE_ALL_TO_ALL] == 1, "%d calls", (int)stats.calls[TSH_COLLECTIVE_ALL_TO_ALL]);
    tshi_check(r, sent == wanted, "%d bytes, not %d", (int)sent, (int)wanted);
    tsh_tensor_release(t);
}

Test(parts, a_call_sends_what_changes_rank, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(2, 4, counts, NULL));
}

/* An error of one rank is one of all ranks, and the next call works. */
static void refuses(tshi_rank *r, void *arg) {
    tsh_tensor *t = NULL, *other = NULL;
    double values[MOST] = {0};
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {ROWS, COLUMNS}, .layout = {TSH_SHARD(0)}};
    (void)arg;
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &t));
    config.layout[0] = r->rank ? TSH_SHARD(1) : TSH_SHARD(0);
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &other));
    tsh_box box = box_of(REVERSED, r->rank, r->size);
    box.length[0] -= r->rank == 1;
    tshi_check_status(r, tsh_tensor_write_parts(t, group, &box, values), TSH_ERR_SHAPE,
                      "the boxes of all ranks have 60 of 70 elements");
    tshi_check_ok(r, tsh_tensor_read_parts(t, group, &box, values));
    box = box_of(REVERSED, r->rank, r->size);
    if (r->rank == 0) box = box_of(REVERSED, 1, r->size);
    tshi_check_status(r, tsh_tensor_write_parts(t, group, &box, values), TSH_ERR_SHAPE,
                      "the boxes of ranks 0 and 1 overlap");
    box = box_of(REVERSED, r->rank, r->size);
    box.length[1] += r->rank == 1;
    tshi_check_status(r, tsh_tensor_write_parts(t, group, &box, values), r->rank == 1 ? TSH_ERR_RANGE : TSH_ERR_PEER,
                      "the box is [0, +11) along dim 1, whose size is 10");
    box = box_of(REVERSED, r->rank, r->size);
    tshi_check_status(r, tsh_tensor_write_parts(t, group, &box, r->rank == 1 ? NULL : values),
                      r->rank == 1 ? TSH_ERR_ARGUMENT : TSH_ERR_PEER, "values is NULL");
    tshi_check_status(r, tsh_tensor_read_parts(other, group, &box, values), TSH_ERR_MISMATCH,
                      "ranks 0 and 1 have tensors of different shapes or layouts");
    tshi_check_ok(r, tsh_tensor_write_parts(t, group, &box, values));
    tsh_tensor_release(other);
    tsh_tensor_release(t);
}

Test(parts, errors_are_those_of_all_ranks, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(3, refuses, NULL));
}
