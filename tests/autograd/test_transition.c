/* The transition table, row by row: what moves forward, what backward, how many calls and bytes that costs. */
#include "support/ranks.h"
#include "support/tensors.h"
#include "tshard/autograd.h"
#include "tshard/functional.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define ROWS 7
#define COLS 5

typedef struct table_row {
    tsh_layout from, to;
    tsh_collective forward, backward; /* TSH_COLLECTIVE_COUNT: none */
} table_row;

#define NONE TSH_COLLECTIVE_COUNT

static const table_row rows[] = {
    {TSH_REPLICATED_INIT, TSH_LOCAL_INIT, NONE, TSH_COLLECTIVE_ALL_REDUCE},
    {TSH_PARTIAL_INIT, TSH_REPLICATED_INIT, TSH_COLLECTIVE_ALL_REDUCE, NONE},
    {TSH_LOCAL_INIT, TSH_REPLICATED_INIT, TSH_COLLECTIVE_ALL_REDUCE, NONE},
    {TSH_REPLICATED_INIT, TSH_SHARD_INIT(0), NONE, TSH_COLLECTIVE_ALL_GATHER},
    {TSH_REPLICATED_INIT, TSH_SHARD_INIT(1), NONE, TSH_COLLECTIVE_ALL_GATHER},
    {TSH_SHARD_INIT(0), TSH_REPLICATED_INIT, TSH_COLLECTIVE_ALL_GATHER, NONE},
    {TSH_SHARD_INIT(1), TSH_REPLICATED_INIT, TSH_COLLECTIVE_ALL_GATHER, NONE},
    {TSH_SHARD_INIT(0), TSH_LOCAL_INIT, TSH_COLLECTIVE_ALL_GATHER, TSH_COLLECTIVE_REDUCE_SCATTER},
    {TSH_SHARD_INIT(1), TSH_LOCAL_INIT, TSH_COLLECTIVE_ALL_GATHER, TSH_COLLECTIVE_REDUCE_SCATTER},
    {TSH_PARTIAL_INIT, TSH_SHARD_INIT(0), TSH_COLLECTIVE_REDUCE_SCATTER, TSH_COLLECTIVE_ALL_GATHER},
    {TSH_PARTIAL_INIT, TSH_SHARD_INIT(1), TSH_COLLECTIVE_REDUCE_SCATTER, TSH_COLLECTIVE_ALL_GATHER},
    {TSH_PARTIAL_INIT, TSH_LOCAL_INIT, TSH_COLLECTIVE_ALL_REDUCE, TSH_COLLECTIVE_ALL_REDUCE},
    {TSH_SHARD_INIT(0), TSH_SHARD_INIT(1), TSH_COLLECTIVE_ALL_TO_ALL, TSH_COLLECTIVE_ALL_TO_ALL},
    {TSH_SHARD_INIT(1), TSH_SHARD_INIT(0), TSH_COLLECTIVE_ALL_TO_ALL, TSH_COLLECTIVE_ALL_TO_ALL},
    {TSH_SHARD_INIT(0), TSH_PARTIAL_INIT, NONE, NONE},
    {TSH_SHARD_INIT(1), TSH_PARTIAL_INIT, NONE, NONE},
    {TSH_REPLICATED_INIT, TSH_PARTIAL_INIT, NONE, NONE},
};

/* What rank r of p holds of the matrix whose element (i, j) is 10 i + j, or of terms whose sum it is. */
static double held(tsh_layout layout, int r, int p, int64_t i, int64_t j) {
    double whole = (double)(10 * i + j);
    bool term = layout.kind == TSH_KIND_PARTIAL;
    if (term) return r == 0 ? whole - 3.0 * (p - 1) : 3;
    return whole;
}

static tsh_tensor *make(tshi_rank *r, tsh_layout layout) {
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {ROWS, COLS}, .layout = {layout}};
    tsh_tensor *t = NULL;
    double whole[ROWS * COLS];
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &t));
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < COLS; j++) whole[i * COLS + j] = held(layout, r->rank, r->size, i, j);
    }
    bool sharded = layout.kind == TSH_KIND_SHARD;
    tshi_check_ok(r, sharded ? tsh_tensor_write_whole(t, whole) : tsh_tensor_write(t, whole, ROWS * COLS));
    tshi_check_ok(r, tsh_tensor_require_grad(t, true));
    return t;
}

/* Element (i, j) of the local part is expected(user, global i, global j). */
static void check_values(tshi_rank *r, const char *what, const tsh_tensor *t, tsh_layout layout,
                         double (*expected)(const tshi_rank *r, const table_row *row, int64_t i, int64_t j),
                         const table_row *row) {
    int64_t start[2] = {0, 0}, n[2] = {ROWS, COLS};
    if (layout.kind == TSH_KIND_SHARD) tsh_split(n[layout.dim], r->size, r->rank, &start[layout.dim], &n[layout.dim]);
    const int64_t *shape = tsh_tensor_local_shape(t);
    if (!tshi_check(r, shape[0] == n[0] && shape[1] == n[1], "%s: the shape is wrong", what)) return;
    const double *data = tsh_tensor_data(t);
    for (int64_t i = 0; i < n[0]; i++) {
        for (int64_t j = 0; j < n[1]; j++) {
            double wanted = expected(r, row, start[0] + i, start[1] + j), got = data[i * n[1] + j];
            tshi_check(r, got == wanted, "%s: element (%d,%d) is %g, not %g", what, (int)(start[0] + i),
                       (int)(start[1] + j), got, wanted);
        }
    }
}

static double forward_value(const tshi_rank *r, const table_row *row, int64_t i, int64_t j) {
    double whole = (double)(10 * i + j);
    if (row->from.kind == TSH_KIND_LOCAL) return r->size * whole; /* the sum of equal values */
    if (row->to.kind != TSH_KIND_PARTIAL) return whole;
    if (row->from.kind == TSH_KIND_REPLICATED) return r->rank == 0 ? whole : 0;
    int64_t start, n, at = row->from.dim ? j : i;
    tsh_split(row->from.dim ? COLS : ROWS, r->size, r->rank, &start, &n);
    return at >= start && at < start + n ? whole : 0;
}

/* Upstream: i - j where ranks share it, on LOCAL outputs (rank + 1) times that. */
static double upstream(tsh_layout to, int rank, int64_t i, int64_t j) {
    return (double)(i - j) * (to.kind == TSH_KIND_LOCAL ? rank + 1 : 1);
}

static double backward_value(const tshi_rank *r, const table_row *row, int64_t i, int64_t j) {
    double one = (double)(i - j);
    return row->to.kind == TSH_KIND_LOCAL ? one * r->size * (r->size + 1) / 2 : one;
}

/* All terms of a PARTIAL value have one gradient. */
static tsh_tensor *make_upstream(tshi_rank *r, tsh_layout to) {
    tsh_layout layout = to.kind == TSH_KIND_PARTIAL ? TSH_REPLICATED : to;
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {ROWS, COLS}, .layout = {layout}};
    tsh_tensor *t = NULL;
    double whole[ROWS * COLS];
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &t));
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < COLS; j++) whole[i * COLS + j] = upstream(to, r->rank, i, j);
    }
    bool sharded = to.kind == TSH_KIND_SHARD;
    tshi_check_ok(r, sharded ? tsh_tensor_write_whole(t, whole) : tsh_tensor_write(t, whole, ROWS * COLS));
    return t;
}

static uint64_t ring_bytes(tsh_collective op, uint64_t p) {
    uint64_t whole = ROWS * COLS * sizeof(double);
    if (op == TSH_COLLECTIVE_ALL_REDUCE) return 2 * (whole * (p - 1) / p);
    return whole * (p - 1) / p;
}

/* Exactly one call of `op` (none for NONE) since the last look, with the ring's bytes. */
static void check_cost(tshi_rank *r, const char *what, tsh_collective op) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_communication_stats stats = tsh_group_stats(group);
    for (int k = 0; k < TSH_COLLECTIVE_COUNT; k++) {
        uint64_t wanted = k == (int)op && r->size > 1 ? 1 : 0;
        tshi_check(r, stats.calls[k] == wanted, "%s: %d calls of %s, %d wanted", what, (int)stats.calls[k],
                   tsh_collective_name((tsh_collective)k), (int)wanted);
        if (!wanted || op == TSH_COLLECTIVE_ALL_TO_ALL) continue; /* uneven: what this rank happens to send */
        tshi_check(r, stats.bytes[k] == ring_bytes(op, (uint64_t)r->size), "%s: %d bytes", what, (int)stats.bytes[k]);
    }
    tsh_group_reset_stats(group);
}

static void each_row(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tape *tape = NULL;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (size_t k = 0; k < sizeof rows / sizeof rows[0] && !r->failed; k++) {
        char what[32];
        snprintf(what, sizeof what, "row %zu", k);
        tsh_tensor *x = make(r, rows[k].from), *dy = make_upstream(r, rows[k].to);
        tsh_group_reset_stats(group);
        tsh_tensor *y = tsh_redistribute_along(tape, x, group, rows[k].to);
        if (!tshi_check(r, y != NULL, "%s: %s", what, tsh_tape_message(tape))) return;
        check_cost(r, what, rows[k].forward);
        check_values(r, what, y, rows[k].to, forward_value, &rows[k]);
        tsh_backward_config config = {.gradient = dy};
        tshi_check_ok(r, tsh_backward_with(tape, y, &config));
        check_cost(r, what, rows[k].backward);
        check_values(r, "its gradient", tsh_tensor_grad(x), rows[k].from, backward_value, &rows[k]);
        /* The upstream gradient belongs to the caller. */
        tsh_tensor *again = make_upstream(r, rows[k].to);
        tshi_check(r, memcmp(tsh_tensor_data(dy), tsh_tensor_data(again), tsh_tensor_local_nbytes(dy)) == 0,
                   "%s wrote to dy", what);
        tshi_check_ok(r, tsh_tape_reset(tape));
        tsh_tensor_release(x);
        tsh_tensor_release(dy);
        tsh_tensor_release(again);
    }
    tsh_tape_destroy(tape);
}

Test(transition, each_row_at_1_to_4_and_8_ranks, .timeout = 120) {
    static const int ranks[] = {1, 2, 3, 4, 8};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++)
        cr_assert_str_empty(tshi_test_run(ranks[i], each_row, NULL));
}

Test(transition, each_row_as_threads, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_threads(3, each_row, NULL));
}

/* --- known answers ------------------------------------------------------------------------------------------------ */

static tsh_tensor *local_ones(tshi_rank *r, const tsh_mesh *mesh, int64_t n, double value) {
    tsh_tensor *t = NULL;
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {n}};
    for (int a = 0; a < TSH_MAX_AXES; a++) config.layout[a] = TSH_LOCAL;
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, &t));
    tshi_check_ok(r, tsh_tensor_fill(t, value));
    return t;
}

/* What a tape has made has no layouts to claim, with or without recording, until its step has ended. */
static void claims_of_a_tape(tshi_rank *r, void *arg) {
    const tsh_layout whole = TSH_REPLICATED;
    tsh_tape *tape = NULL;
    tsh_tensor *x = local_ones(r, tsh_world_mesh(r->world), 4, 1), *global = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tensor_require_grad(x, true));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int recording = 0; recording < 2; recording++) {
        tsh_tape_set_recording(tape, recording);
        tsh_tensor *y = tsh_tensor_retain(tsh_scale(tape, x, 2));
        tshi_check_status(r, tsh_from_local(y, &whole, (int64_t[]){4}, &global), TSH_ERR_STATE, "made by a tape");
        tshi_check_ok(r, tsh_tape_reset(tape));
        tshi_check_ok(r, tsh_from_local(y, &whole, (int64_t[]){4}, &global));
        tsh_tensor_release(global);
        tsh_tensor_release(y);
    }
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
}

Test(transition, a_tapes_tensors_are_not_claimed, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run(1, claims_of_a_tape, NULL));
}

/* gather of r * ones(8): 0, 1, 2, 3 blocks. */
static void gather_blocks(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tape *tape = NULL;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *x = local_ones(r, tsh_world_mesh(r->world), 8, r->rank);
    tshi_check(r, tsh_gather(tape, x, group, 0) == NULL, "a LOCAL tensor was gathered");
    tshi_check(r, strstr(tsh_tape_message(tape), "tsh_from_local"), "no hint: %s", tsh_tape_message(tape));
    tshi_check_ok(r, tsh_tape_reset(tape));
    tsh_tensor *parts = NULL;
    tshi_check_ok(r, tsh_from_local(x, (tsh_layout[]){TSH_SHARD(0)}, NULL, &parts));
    tsh_tensor *y = tsh_gather(tape, parts, group, -1);
    if (!tshi_check(r, y && tsh_tensor_local_numel(y) == 32, "%s", tsh_tape_message(tape))) return;
    for (int i = 0; i < 32; i++) tshi_check(r, ((double *)tsh_tensor_data(y))[i] == i / 8, "element %d", i);
    tsh_tensor_release(parts);
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
}

Test(transition, gather_known_answer, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, gather_blocks, NULL));
}

/* 8 ranks, groups {0-3} and {4-7}: copy's backward and reduce's forward of [rank] are 6 and 22. */
static void two_groups(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=2,model=4", &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_group *model = tsh_mesh_group(mesh, "model");
    double wanted = r->rank < 4 ? 6 : 22;
    tsh_tensor *x = local_ones(r, mesh, 1, r->rank), *dy = local_ones(r, mesh, 1, r->rank);
    tsh_tensor *y = tsh_reduce(tape, x, model);
    tshi_check(r, y && tsh_tensor_item(y) == wanted, "reduce returns %g", tsh_tensor_item(y));
    tsh_tensor *shared = NULL;
    tshi_check_ok(r, tsh_from_local(x, (tsh_layout[]){TSH_LOCAL, TSH_REPLICATED}, NULL, &shared));
    tshi_check_ok(r, tsh_tensor_require_grad(shared, true));
    tsh_backward_config config = {.gradient = dy};
    tshi_check_ok(r, tsh_backward_with(tape, tsh_copy(tape, shared, model), &config));
    tshi_check(r, tsh_tensor_item(tsh_tensor_grad(shared)) == wanted, "copy's gradient is %g",
               tsh_tensor_item(tsh_tensor_grad(shared)));
    tsh_tensor_release(shared);
    tsh_tensor_release(x);
    tsh_tensor_release(dy);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(transition, groups_of_a_mesh_known_answer, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(8, two_groups, NULL));
}

/* x SHARD(0) + y SHARD(1): y moves, the sum is SHARD(0). */
static void sum_of_shards(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tape *tape = NULL;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *x = make(r, TSH_SHARD(0)), *y = make(r, TSH_SHARD(1));
    tsh_group_reset_stats(group);
    tsh_tensor *z = tsh_add(tape, x, y);
    if (!tshi_check(r, z != NULL, "%s", tsh_tape_message(tape))) return;
    tsh_layout layout = tsh_tensor_layout(z, group);
    tshi_check(r, layout.kind == TSH_KIND_SHARD && layout.dim == 0, "layout %d(%d)", (int)layout.kind, layout.dim);
    check_cost(r, "x + y", TSH_COLLECTIVE_ALL_TO_ALL);
    int64_t start, n;
    tsh_split(ROWS, r->size, r->rank, &start, &n);
    for (int64_t i = 0; i < n * COLS; i++) {
        double wanted = 2.0 * (double)(10 * (start + i / COLS) + i % COLS);
        tshi_check(r, ((double *)tsh_tensor_data(z))[i] == wanted, "element %d", (int)i);
    }
    tsh_tensor_release(x);
    tsh_tensor_release(y);
    tsh_tape_destroy(tape);
}

Test(transition, sum_of_shards_known_answer, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, sum_of_shards, NULL));
    cr_assert_str_empty(tshi_test_run(4, sum_of_shards, NULL));
}

/* --- once a step, two axes, wrong use ----------------------------------------------------------------------------- */

/* Three uses of one tensor share one copy, hence one all-reduce backward. */
static void three_copies(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tape *tape = NULL;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *x = make(r, TSH_REPLICATED);
    for (int step = 0; step < 2; step++) {
        tsh_tensor_zero_grad(x);
        tsh_group_reset_stats(group);
        tsh_tensor *a = tsh_copy(tape, x, group), *b = tsh_copy(tape, x, group), *c = tsh_copy(tape, x, group);
        tshi_check(r, a == b && b == c, "a copy was made twice");
        tsh_tensor *loss = tsh_sum(tape, tsh_add(tape, tsh_add(tape, a, b), c), TSH_ALL_DIMS);
        tshi_check_ok(r, tsh_backward(tape, loss));
        check_cost(r, "three copies", TSH_COLLECTIVE_ALL_REDUCE);
        tshi_check(r, ((double *)tsh_tensor_data(tsh_tensor_grad(x)))[3] == 3.0 * r->size, "gradient");
        tshi_check_ok(r, tsh_tape_reset(tape));
    }
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
}

Test(transition, made_once_a_step, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, three_copies, NULL));
}

/* All of 3 x on each rank, in the arithmetic of x: an element of it. */
static double tripled(tshi_rank *r, tsh_tape *tape, tsh_tensor *x) {
    tsh_tensor *y = tsh_scale(tape, tsh_gather(tape, x, tsh_world_group(r->world), 0), 3);
    y = y ? tsh_cast(tape, y, TSH_FLOAT64) : NULL;
    return tshi_check(r, y != NULL, "%s", tsh_tape_message(tape)) ? tshi_test_element(y, ROWS - 1) : 0;
}

/* A leaf that is written to between two calls of one step: each takes what it is then. Both lead to its gradient. */
static void written_between(tshi_rank *r, void *arg) {
    const tsh_dtype arithmetic = *(const tsh_dtype *)arg;
    tsh_tape *tape = NULL;
    double whole[ROWS];
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {ROWS}, .layout = {TSH_SHARD(0)}};
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < ROWS; i++) whole[i] = 1;
    tsh_tensor *x = tshi_test_leaf(r, tsh_world_mesh(r->world), &config, whole);
    x->gradient->arithmetic = (uint8_t)(1 + arithmetic);
    for (int step = 0; step < 2; step++) {
        for (int k = 1; k <= 5; k += 4) {
            for (int i = 0; i < ROWS; i++) whole[i] = k;
            tshi_check_ok(r, tsh_tensor_write_whole(x, whole));
            for (int again = 0; again < 2; again++) {
                double got = tripled(r, tape, x);
                tshi_check(r, got == 3 * k, "3 times %d is %g", k, got);
            }
        }
        tshi_check_ok(r, tsh_tape_reset(tape));
    }
    tsh_tensor *first = tsh_gather(tape, x, tsh_world_group(r->world), 0);
    tshi_check_ok(r, tsh_tensor_write_whole(x, whole));
    tsh_tensor *second = tsh_gather(tape, x, tsh_world_group(r->world), 0);
    tshi_check(r, first != second, "the transition was not made anew");
    tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, tsh_add(tape, first, second), 0)));
    for (int i = 0; i < ROWS; i++) whole[i] = 2;
    tshi_test_same_grad(r, "the gradient", x, whole, 0);
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
}

Test(transition, made_anew_after_a_write, .timeout = 60) {
    for (int i = 0; i < 2; i++)
        cr_assert_str_empty(tshi_test_run(2, written_between, &(tsh_dtype){i ? TSH_FLOAT32 : TSH_FLOAT64}));
}

/* A dim over two axes comes apart from the last axis on; where an earlier one is asked to go, the later one is gathered
 * and split again. */
static void two_axes(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    tsh_tensor *x = NULL;
    double whole[ROWS * COLS];
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=2,model=2", &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor_config config = {
        .dtype = TSH_FLOAT64, .ndim = 2, .shape = {ROWS, COLS}, .layout = {TSH_SHARD(0), TSH_SHARD(0)}};
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, &x));
    for (int i = 0; i < ROWS * COLS; i++) whole[i] = i;
    tshi_check_ok(r, tsh_tensor_write_whole(x, whole));
    tsh_group *data = tsh_mesh_group(mesh, "data"), *model = tsh_mesh_group(mesh, "model");
    tsh_tensor *inner = tsh_gather(tape, x, data, 0);
    if (tshi_check(r, inner != NULL, "gathered along the first axis: %s", tsh_tape_message(tape))) {
        tshi_test_same(r, "split along the second axis alone", inner, whole, 0);
    }
    tsh_tensor *swapped =
        tsh_redistribute_along(tape, tsh_redistribute_along(tape, inner, model, TSH_SHARD(1)), data, TSH_SHARD(0));
    tsh_tensor *again =
        tsh_redistribute_along(tape, tsh_redistribute_along(tape, swapped, data, TSH_SHARD(1)), model, TSH_SHARD(0));
    if (tshi_check(r, again != NULL, "two axes change places: %s", tsh_tape_message(tape))) {
        tshi_test_same(r, "two axes that have changed places", again, whole, 0);
    }
    tsh_tensor *y = tsh_gather(tape, tsh_gather(tape, x, model, 0), data, 0);
    tshi_check(r, y && memcmp(tsh_tensor_data(y), whole, sizeof whole) == 0, "gathered: %s", tsh_tape_message(tape));
    /* The sum of all wants no dim split: the rules take both axes away, in order. */
    tsh_tensor *sum = tsh_redistribute_along(
        tape, tsh_redistribute_along(tape, tsh_sum(tape, x, TSH_ALL_DIMS), model, TSH_REPLICATED), data,
        TSH_REPLICATED);
    tshi_check(r, sum && tsh_tensor_item(sum) == 34 * 35 / 2, "sum: %s", tsh_tape_message(tape));
    tsh_tensor *columns = tsh_softmax(tape, x, 0);
    tshi_check(r, columns != NULL, "softmax over a dim of two axes: %s", tsh_tape_message(tape));
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(transition, two_axes_on_one_dim, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, two_axes, NULL));
}

static void wrong_use(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tape *tape = NULL;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *whole = make(r, TSH_REPLICATED), *part = make(r, TSH_SHARD(0)), *local = make(r, TSH_LOCAL);
    struct {
        tsh_tensor *got;
        tsh_status status;
    } tries[8];
    int n = 0;
#define TRY(call)                                                                                                      \
    (tries[n].got = (call), tries[n++].status = tsh_tape_status(tape), tshi_check_ok(r, tsh_tape_reset(tape)))
    TRY(tsh_gather(tape, whole, group, 0));
    TRY(tsh_gather(tape, part, group, 1));
    TRY(tsh_reduce(tape, whole, group));
    TRY(tsh_copy(tape, local, group));
    TRY(tsh_scatter(tape, part, group, 0));
    TRY(tsh_redistribute_along(tape, local, group, TSH_SHARD(0)));
#undef TRY
    for (int i = 0; i < n; i++) {
        tshi_check(r, !tries[i].got && tries[i].status == TSH_ERR_LAYOUT, "try %d: %s", i,
                   tsh_status_name(tries[i].status));
    }
    tshi_check(r, !tsh_scatter(tape, whole, group, 2) && tsh_tape_status(tape) == TSH_ERR_SHAPE, "dim 2 of 2");
    tshi_check_ok(r, tsh_tape_reset(tape));
    tshi_check(r, !tsh_scatter(tape, whole, NULL, 0) && tsh_tape_status(tape) == TSH_ERR_ARGUMENT, "no group");
    tshi_check(r, !tsh_copy(tape, whole, group), "a failed tape went on");
    tshi_check_ok(r, tsh_tape_reset(tape));
    tshi_check(r, tsh_copy(tape, whole, group) != NULL, "%s", tsh_tape_message(tape));
    tsh_tensor_release(whole);
    tsh_tensor_release(part);
    tsh_tensor_release(local);
    tsh_tape_destroy(tape);
}

Test(transition, wrong_use_has_a_message, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, wrong_use, NULL));
    cr_assert_str_empty(tshi_test_run(3, wrong_use, NULL));
}

/* --- LOCAL sizes that differ -------------------------------------------------------------------------------------- */

/* Beside y of one row x is split along axis a, and beside y of two rows repeated. */
static void sizes_that_differ(tshi_rank *r, void *arg) {
    const double zero = 0;
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    tsh_tensor *y = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, "a=2,b=2", &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *x = tshi_test_leaf(r, mesh, &(tsh_tensor_config){.ndim = 1, .shape = {1}}, &zero);
    int own = 1 + tsh_group_rank(tsh_mesh_group(mesh, "b"));
    const tsh_tensor_config config = {.ndim = 1, .shape = {own}, .layout = {TSH_SHARD(0), TSH_LOCAL}};
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, &y));
    tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, tsh_sub(tape, x, y), TSH_ALL_DIMS)));
    tsh_tensor *dx = tsh_tensor_grad(x);
    tshi_check(r, dx && tsh_tensor_item(dx) == 3, "%g for 3: %s", dx ? tsh_tensor_item(dx) : 0, tsh_tape_message(tape));
    tshi_check_ok(r, tsh_tape_reset(tape));
    tsh_tensor_release(y);
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(transition, what_is_repeated_beside_local_sizes_that_differ, .timeout = 60) {
    const tshi_test_options options = {.ranks = 4, .world_timeout = "5"};
    cr_assert_str_empty(tshi_test_run_with(&options, sizes_that_differ, NULL, NULL, NULL));
}
