/* Axes with weights and layouts with cut points: moves between them, and products whose sums are split by them. */
#include "dist/tagged/ranks.h"
#include "tshard/tshard.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 13, COLS = 6, MOST = 64 };

typedef struct bench {
    tsh_mesh *mesh;
    tsh_tape *tape;
} bench;

/* "a=3:1:2:0", or with the ranks without a weight first. */
static void make_bench(tshi_rank *r, bool last_first, bench *b) {
    static const int weights[] = {3, 1, 2, 0};
    char axes[16 * MOST] = "a=";
    int used = 2;
    for (int i = 0; i < r->size; i++) {
        int weight = weights[(last_first ? r->size - 1 - i : i) % 4];
        used += snprintf(axes + used, sizeof axes - (size_t)used, "%s%d", i ? ":" : "", weight);
    }
    *b = (bench){0};
    tshi_check_ok(r, tsh_mesh_create(r->world, axes, &b->mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &b->tape));
}

static tsh_tensor *make_rows(tshi_rank *r, const bench *b, tsh_layout layout) {
    const tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {ROWS, COLS}, .layout = {layout}};
    tsh_tensor *t = NULL;
    tshi_check_ok(r, tsh_tensor_create_arange(b->mesh, &config, 0, 1, &t));
    return t;
}

static void holds_part(tshi_rank *r, const tsh_tensor *t, const char *what) {
    if (!tshi_check(r, t != NULL, "%s: NULL", what)) return;
    const double *values = tsh_tensor_data(t);
    tsh_box box = tsh_tensor_box(t);
    for (int64_t i = 0; i < box.length[0] * box.length[1] && !r->failed; i++) {
        int64_t row = box.start[0] + i / box.length[1], col = box.start[1] + i % box.length[1];
        tshi_check(r, values[i] == (double)(row * COLS + col), "%s: [%d,%d] is %g", what, (int)row, (int)col,
                   values[i]);
    }
}

/* The whole, by weight, evenly, at cut points, by columns, and by weight again. */
static void moves(tshi_rank *r, const bench *b) {
    const tsh_layout rows[] = {TSH_SHARD(0)}, cols[] = {TSH_SHARD(1)};
    int64_t at[MOST + 1] = {0};
    uint64_t cuts = 0;
    tsh_tensor *x = make_rows(r, b, rows[0]);
    for (int i = 1; i <= r->size; i++) at[i] = i < r->size ? at[i - 1] + (at[i - 1] + i < ROWS ? i % 3 : 0) : ROWS;
    tshi_check_ok(r, tsh_cuts_create(b->mesh, r->size, at, &cuts));
    tshi_check_ok(r, tsh_tensor_require_grad(x, true));
    holds_part(r, x, "by weight");
    tsh_tensor *even = tsh_redistribute(b->tape, x, tsh_world_mesh(r->world), rows);
    holds_part(r, even, "evenly");
    tsh_tensor *cut = tsh_redistribute(b->tape, even, b->mesh, (const tsh_layout[]){TSH_SHARD_CUTS(0, cuts)});
    holds_part(r, cut, "at cut points");
    tsh_tensor *turned = tsh_redistribute(b->tape, cut, NULL, cols),
               *back = tsh_redistribute(b->tape, turned, NULL, rows);
    holds_part(r, turned, "by columns");
    holds_part(r, back, "by weight again");
    tshi_check_ok(r, tsh_backward(b->tape, tsh_sum(b->tape, tsh_mul(b->tape, back, back), TSH_ALL_DIMS)));
    const double *dx = tsh_tensor_data(tsh_tensor_grad(x)), *values = tsh_tensor_data(x);
    for (int64_t i = 0; i < tsh_tensor_local_numel(x) && !r->failed; i++)
        tshi_check(r, dx && dx[i] == 2 * values[i], "the gradient of element %d", (int)i);
    tshi_check_ok(r, tsh_tape_reset(b->tape));
    tsh_cuts_release(b->mesh, cuts);
    tsh_tensor_release(x);
}

/* Y = (X W^T) W with W [13,6] by rows, whose sum is scattered to the rows of Y: as with a whole W. */
static void products(tshi_rank *r, const bench *b) {
    double whole[2][ROWS * COLS];
    for (int split = 0; split < 2; split++) {
        tsh_tensor *w = make_rows(r, b, split ? TSH_SHARD(0) : TSH_REPLICATED), *x = make_rows(r, b, TSH_REPLICATED);
        tshi_check_ok(r, tsh_tensor_require_grad(x, true));
        tsh_tensor *y = tsh_matmul(b->tape, tsh_affine(b->tape, x, w, NULL), w);
        y = tsh_redistribute_along(b->tape, y, tsh_mesh_axis_group(b->mesh, 0), TSH_SHARD(0));
        tshi_check_ok(r, tsh_backward(b->tape, tsh_sum(b->tape, y, TSH_ALL_DIMS)));
        tsh_tensor *dx = tsh_tensor_grad(x);
        if (tshi_check(r, dx != NULL, "no gradient")) tshi_check_ok(r, tsh_tensor_read_whole(dx, whole[split]));
        tshi_check_ok(r, tsh_tape_reset(b->tape));
        tsh_tensor_release(w);
        tsh_tensor_release(x);
    }
    for (int i = 0; i < ROWS * COLS && !r->failed; i++)
        tshi_check(r, whole[0][i] == whole[1][i], "dx %d is %g, not %g", i, whole[1][i], whole[0][i]);
}

void scenario_weights(tshi_rank *r) {
    for (int turn = 0; turn < 2 && !r->failed; turn++) {
        bench b;
        make_bench(r, turn, &b);
        for (int again = 0; again < 2 && !r->failed; again++) moves(r, &b);
        products(r, &b);
        tsh_tape_destroy(b.tape);
        tsh_mesh_destroy(b.mesh);
    }
}
