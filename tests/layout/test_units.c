/* Dims split by units: heads over ranks, known answers and plain counting. */
#include "layout/box.h"
#include "support/mesh_view.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(units, .timeout = 120);

enum { RANKS = 7, HEAD = 4 };

typedef struct split {
    int ranks;
    int64_t start[RANKS], length[RANKS]; /* heads of each rank */
} split;

static void check_split(tsh_layout layout, int64_t items, const split *wanted, const char *what) {
    for (int r = 0; r < wanted->ranks; r++) {
        int64_t start = 0, length = items * HEAD;
        tshi_layout_split(&layout, items * HEAD, (tshi_parts){.count = wanted->ranks}, r, &start, &length);
        cr_assert_eq(length, wanted->length[r] * HEAD, "%s over %d ranks: rank %d has %lld", what, wanted->ranks, r,
                     (long long)length);
        cr_assert(length == 0 || start == wanted->start[r] * HEAD, "%s over %d ranks: rank %d starts at %lld", what,
                  wanted->ranks, r, (long long)start);
    }
}

Test(units, seven_heads) {
    static const split cases[] = {{1, {0}, {7}},
                                  {2, {0, 4}, {4, 3}},
                                  {3, {0, 3, 5}, {3, 2, 2}},
                                  {4, {0, 2, 4, 6}, {2, 2, 2, 1}},
                                  {7, {0, 1, 2, 3, 4, 5, 6}, {1, 1, 1, 1, 1, 1, 1}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_split(TSH_SHARD_UNITS(0, 7, 0), 7, &cases[i], "7 units");
        check_split(TSH_SHARD_UNITS(0, 7, 7), 7, &cases[i], "7 units of 7 blocks");
    }
}

/* 6 query heads read 2 KV heads. */
Test(units, two_kv_heads_and_six_heads) {
    static const split queries[] = {{1, {0}, {6}},
                                    {2, {0, 3}, {3, 3}},
                                    {3, {0, 2, 3}, {2, 1, 3}},
                                    {4, {0, 2, 3, 5}, {2, 1, 2, 1}},
                                    {5, {0, 1, 2, 3, 5}, {1, 1, 1, 2, 1}},
                                    {6, {0, 1, 2, 3, 4, 5}, {1, 1, 1, 1, 1, 1}},
                                    {7, {0, 1, 2, 0, 3, 4, 5}, {1, 1, 1, 0, 1, 1, 1}}};
    static const split keys[] = {{1, {0}, {2}},
                                 {2, {0, 1}, {1, 1}},
                                 {3, {0, 0, 1}, {1, 1, 1}},
                                 {4, {0, 0, 1, 1}, {1, 1, 1, 1}},
                                 {5, {0, 0, 0, 1, 1}, {1, 1, 1, 1, 1}},
                                 {6, {0, 0, 0, 1, 1, 1}, {1, 1, 1, 1, 1, 1}},
                                 {7, {0, 0, 0, 0, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1}}};
    static const split whole[] = {{3, {0, 3}, {3, 3, 0}}, {7, {0, 3}, {3, 3, 0, 0, 0, 0, 0}}};
    for (size_t i = 0; i < RANKS; i++) {
        check_split(TSH_SHARD_UNITS(0, 2, 6), 6, &queries[i], "2 units of 6 blocks");
        check_split(TSH_SHARD_SHARED(0, 2), 2, &keys[i], "2 units, shared,");
    }
    for (size_t i = 0; i < 2; i++) check_split(TSH_SHARD_UNITS(0, 2, 0), 6, &whole[i], "2 units that are not cut");
}

Test(units, sharers) {
    static const int firsts[] = {0, 0, 0, 0, 4, 4, 4};
    tsh_layout shared = TSH_SHARD_SHARED(0, 2), parts = TSH_SHARD_UNITS(0, 2, 6);
    for (int i = 0; i < RANKS; i++) {
        int first;
        cr_assert_eq(tshi_layout_sharers(&shared, (tshi_parts){.count = RANKS}, i, &first), firsts[i] ? 3 : 4);
        cr_assert_eq(first, firsts[i]);
        cr_assert_eq(tshi_layout_sharers(&parts, (tshi_parts){.count = RANKS}, i, &first), 1);
        cr_assert_eq(first, i);
    }
}

/* --- shapes ------------------------------------------------------------------------------------------------------- */

static tsh_status resolve(const int *sizes, int axes, int rank, int64_t n, tsh_layout layout[TSH_MAX_AXES],
                          tsh_box *box) {
    int index[TSH_MAX_AXES];
    for (int a = axes - 1, rest = rank; a >= 0; a--) {
        index[a] = rest % sizes[a];
        rest /= sizes[a];
    }
    tshi_mesh_view view = tshi_mesh_view_make(axes, sizes, index);
    tsh_shape shape = {.ndim = 1, .global = {n}};
    tsh_status status = tshi_shape_resolve(&view.mesh, &shape, layout);
    box->length[0] = shape.local[0];
    box->start[0] = status == TSH_OK ? tshi_shape_start(&view.mesh, &shape, layout, 0) : 0;
    tshi_mesh_view_free(&view);
    return status;
}

/* Whatever a layout becomes when it is resolved, each rank keeps its box. */
static void check_resolved(tsh_layout layout, int64_t n, int ranks) {
    for (int r = 0; r < ranks; r++) {
        tsh_layout resolved[TSH_MAX_AXES] = {layout};
        tsh_box got = {{0}, {0}};
        tshi_placement p = {.axes = 1, .size = {ranks}, .layout = {layout}};
        tsh_box wanted = tshi_placement_box(&p, 1, &n, r);
        cr_assert_eq(resolve(&ranks, 1, r, n, resolved, &got), TSH_OK);
        bool same = got.length[0] == wanted.length[0] && (!got.length[0] || got.start[0] == wanted.start[0]);
        cr_assert(same, "n %lld, units %lld, blocks %lld, sharing %d, rank %d of %d", (long long)n,
                  (long long)layout.units, (long long)layout.blocks, (int)layout.sharing, r, ranks);
    }
}

Test(units, boxes_stay_when_layouts_are_resolved) {
    for (int64_t n = 0; n <= 12; n++) {
        for (int ranks = 1; ranks <= RANKS; ranks++) {
            for (int64_t units = 1; units <= n; units++) {
                if (n % units) continue;
                check_resolved(TSH_SHARD_UNITS(0, units, 0), n, ranks);
                check_resolved(TSH_SHARD_SHARED(0, units), n, ranks);
                for (int64_t k = 1; k <= n / units; k++) {
                    if (n / units % k == 0) check_resolved(TSH_SHARD_UNITS(0, units, units * k), n, ranks);
                }
            }
        }
    }
}

static tsh_layout resolved(tsh_layout layout, int64_t n, int ranks) {
    tsh_layout all[TSH_MAX_AXES] = {layout};
    tsh_box box;
    cr_assert_eq(resolve(&ranks, 1, 0, n, all, &box), TSH_OK);
    return all[0];
}

static void becomes(tsh_layout layout, int64_t n, int ranks, tsh_layout wanted) {
    char a[TSHI_LAYOUT_NAME], b[TSHI_LAYOUT_NAME];
    tsh_layout got = resolved(layout, n, ranks);
    cr_assert(tshi_layout_equal(got, wanted), "%s over %d ranks became %s",
              tshi_layout_name(layout, (tshi_parts){0}, a, sizeof a), ranks,
              tshi_layout_name(got, (tshi_parts){0}, b, sizeof b));
}

Test(units, equal_boxes_are_equal_layouts) {
    const tsh_layout plain = TSH_SHARD(0);
    becomes(TSH_SHARD_UNITS(0, 8, 0), 8, 3, plain);
    becomes(TSH_SHARD_UNITS(0, 4, 0), 8, 2, plain);
    becomes(TSH_SHARD_UNITS(0, 2, 6), 24, 6, plain);
    becomes(TSH_SHARD_SHARED(0, 4), 8, 4, plain);
    becomes(TSH_SHARD_SHARED(0, 4), 8, 1, plain);
    becomes(TSH_SHARD_SHARED(0, 0), 4, 4, plain);
    becomes(TSH_SHARD_UNITS(0, 4, 8), 8, 3, TSH_SHARD_UNITS(0, 4, 0));
    becomes(TSH_SHARD_SHARED(0, 4), 8, 3, TSH_SHARD_UNITS(0, 4, 0));
    becomes(TSH_SHARD_SHARED(0, 4), 8, 5, TSH_SHARD_SHARED(0, 4));
    becomes(TSH_SHARD_UNITS(0, 2, 6), 24, 4, TSH_SHARD_UNITS(0, 2, 6));
    becomes(TSH_SHARD_UNITS(0, 2, 0), 0, 2, TSH_SHARD_UNITS(0, 2, 0)); /* of nothing: the size may still change */
}

/* data=2 splits 3 sequences of 4 tokens as 2 and 1; model=3 splits each part's tokens. */
Test(units, a_split_of_parts_that_are_whole_units) {
    static const int64_t starts[] = {0, 3, 6, 8, 10, 11}, lengths[] = {3, 3, 2, 2, 1, 1};
    for (int r = 0; r < 6; r++) {
        tsh_layout layout[TSH_MAX_AXES] = {TSH_SHARD_UNITS(0, 3, 0), TSH_SHARD(0)};
        tsh_box box;
        cr_assert_eq(resolve((int[]){2, 3}, 2, r, 12, layout, &box), TSH_OK);
        cr_assert_eq(box.start[0], starts[r]);
        cr_assert_eq(box.length[0], lengths[r]);
    }
}

/* Both axes split 6 units of 2: 3 units each, then 2 and 1. */
Test(units, two_axes_that_split_by_units) {
    static const int64_t starts[] = {0, 4, 6, 10}, lengths[] = {4, 2, 4, 2};
    for (int r = 0; r < 4; r++) {
        tsh_layout layout[TSH_MAX_AXES] = {TSH_SHARD_UNITS(0, 6, 0), TSH_SHARD_UNITS(0, 6, 0)};
        tsh_box box;
        cr_assert_eq(resolve((int[]){2, 2}, 2, r, 12, layout, &box), TSH_OK);
        cr_assert(layout[0].units == 0 && layout[1].units == 6, "halves need no units, thirds do");
        cr_assert_eq(box.start[0], starts[r]);
        cr_assert_eq(box.length[0], lengths[r]);
    }
}

/* --- wrong layouts ------------------------------------------------------------------------------------------------ */

static void refused(int64_t n, tsh_layout first, tsh_layout second, const char *words) {
    tsh_layout layout[TSH_MAX_AXES] = {first, second};
    tsh_status wanted = first.kind == TSH_KIND_SHARD ? TSH_ERR_LAYOUT : TSH_ERR_SHAPE;
    tsh_box box;
    cr_assert_eq(resolve((int[]){2, 4}, 2, 0, n, layout, &box), wanted);
    cr_assert(strstr(tsh_error_message(), words), "%s", tsh_error_message());
}

Test(units, that_fit_no_dim_are_refused) {
    const tsh_layout whole = TSH_REPLICATED;
    tsh_layout both = TSH_SHARD_SHARED(0, 2), strange = TSH_SHARD_UNITS(0, 2, 0), late = TSH_SHARD_ORDER(0, 1);
    both.blocks = 4;
    strange.sharing = (tsh_sharing)4;
    refused(8, whole, TSH_SHARD_UNITS(0, 3, 0), "SHARD(0, 3 units) along axis");
    refused(8, whole, TSH_SHARD_UNITS(0, -2, 0), "SHARD(0, -2 units) along axis");
    refused(8, whole, TSH_SHARD_UNITS(0, 2, 3), "SHARD(0, 2 units of 3 blocks)");
    refused(8, whole, TSH_SHARD_UNITS(0, 2, 16), "must divide the dim's 8 items");
    refused(8, whole, TSH_SHARD_UNITS(0, 0, 4), "SHARD(0 of 4 blocks)");
    refused(8, whole, both, "SHARD(0, 2 units of 4 blocks, shared)");
    refused(8, whole, strange, "must divide the dim's 8 items");
    refused(8, whole, TSH_SHARD_NEXT(0), "the tensor has 1 dims, and ranks split the next one");
    refused(12, TSH_SHARD(0), TSH_SHARD_UNITS(0, 3, 0), "another axis splits the dim first");
    refused(12, TSH_SHARD(0), TSH_SHARD_SHARED(0, 2), "another axis splits the dim first");
    tsh_layout layout[TSH_MAX_AXES] = {late, TSH_SHARD_UNITS(0, 3, 0)};
    tsh_box box;
    cr_assert_eq(resolve((int[]){2, 4}, 2, 0, 12, layout, &box), TSH_OK, "the units split first");
}

/* 2 matrices of 3 rows: ranks 0 and 2 of four have two rows, ranks 1 and 3 one. */
Test(units, ranks_that_outnumber_matrices_split_their_rows) {
    static const int64_t starts[] = {0, 2, 0, 2}, lengths[] = {2, 1, 2, 1}, shape[] = {2, 3, 5};
    tsh_layout next = TSH_SHARD_NEXT(0);
    next.units = 2;
    for (int i = 0; i < 4; i++) {
        tsh_box box = {{0}, {2, 3, 5}};
        tshi_layout_narrow(&next, shape, (tshi_parts){.count = 4}, i, &box);
        cr_assert(box.start[0] == i / 2 && box.length[0] == 1, "rank %d", i);
        cr_assert(box.start[1] == starts[i] && box.length[1] == lengths[i], "rank %d", i);
        cr_assert(box.start[2] == 0 && box.length[2] == 5, "rank %d", i);
    }
}

/* SHARD_NEXT(0) meets SHARD(0) and SHARD(1), which do not meet each other. */
Test(units, a_normal_layout_splits_in_the_order_that_was_given) {
    enum { AXES = 4 };
    const tsh_layout kinds[] = {TSH_SHARD(0),      TSH_SHARD(1),      TSH_SHARD(2),
                                TSH_SHARD_NEXT(0), TSH_SHARD_NEXT(1), TSH_REPLICATED};
    srand(5);
    for (int i = 0; i < 20000; i++) {
        tsh_layout given[TSH_MAX_AXES] = {{0}}, normal[TSH_MAX_AXES], again[TSH_MAX_AXES];
        for (int a = 0; a < AXES; a++) {
            given[a] = kinds[rand() % 6];
            if (given[a].kind == TSH_KIND_SHARD) given[a].order = rand() % AXES;
        }
        memcpy(normal, given, sizeof normal);
        tshi_layouts_normalize(AXES, normal);
        memcpy(again, normal, sizeof again);
        tshi_layouts_normalize(AXES, again);
        for (int a = 0; a < AXES; a++) {
            cr_assert_eq(again[a].order, normal[a].order, "%d: axis %d", i, a);
            for (int b = 0; b < a; b++) {
                if (!tshi_layouts_meet(given[a], given[b])) continue;
                cr_assert_eq(tshi_splits_before(normal, a, b), tshi_splits_before(given, a, b), "%d: axes %d, %d", i, a,
                             b);
            }
        }
    }
}

Test(units, names) {
    char text[TSHI_LAYOUT_NAME];
    tsh_layout own = TSH_SHARD_SHARED(1, 2), late = TSH_SHARD_UNITS(0, 2, 6);
    own.sharing = TSH_SHARED_OWN;
    late.order = 1;
    cr_assert_str_eq(tshi_layout_name(TSH_SHARD_UNITS(0, 2, 0), (tshi_parts){0}, text, sizeof text),
                     "SHARD(0, 2 units)");
    cr_assert_str_eq(tshi_layout_name(late, (tshi_parts){0}, text, sizeof text), "SHARD(0,1, 2 units of 6 blocks)");
    cr_assert_str_eq(tshi_layout_name(TSH_SHARD_SHARED(1, 2), (tshi_parts){0}, text, sizeof text),
                     "SHARD(1, 2 units, shared)");
    cr_assert_str_eq(tshi_layout_name(own, (tshi_parts){0}, text, sizeof text),
                     "SHARD(1, 2 units, shared for own use)");
}
