/* Layout algebra against plain counting. */
#include "support/mesh_view.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

Test(layout, split_known_answers, .timeout = 120) {
    static const struct {
        int64_t n;
        int parts;
        int64_t lengths[4];
    } cases[] = {
        {13, 4, {4, 3, 3, 3}}, {5, 4, {2, 1, 1, 1}}, {2, 4, {1, 1, 0, 0}}, {0, 4, {0, 0, 0, 0}}, {8, 2, {4, 4}}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int64_t at = 0;
        for (int i = 0; i < cases[c].parts; i++) {
            int64_t start, length;
            tsh_split(cases[c].n, cases[c].parts, i, &start, &length);
            cr_assert_eq(length, cases[c].lengths[i]);
            cr_assert_eq(start, at);
            at += length;
        }
        cr_assert_eq(at, cases[c].n);
    }
}

/* arange(25) as (5,5), SHARD(0) x SHARD(1) on a 2x2 mesh. */
Test(layout, two_axes_known_answer, .timeout = 120) {
    static const double expected[4][9] = {
        {0, 1, 2, 5, 6, 7, 10, 11, 12}, {3, 4, 8, 9, 13, 14}, {15, 16, 17, 20, 21, 22}, {18, 19, 23, 24}};
    for (int rank = 0; rank < 4; rank++) {
        tshi_mesh_view view = tshi_mesh_view_make(2, (int[]){2, 2}, (int[]){rank / 2, rank % 2});
        tsh_tensor *t = tshi_mesh_view_tensor(&view, TSH_FLOAT64, 2, (int64_t[]){5, 5},
                                              (tsh_layout[]){TSH_SHARD(0), TSH_SHARD(-1)});
        int64_t n = (rank < 2 ? 3 : 2) * (rank % 2 ? 2 : 3);
        cr_assert_eq(tsh_tensor_local_numel(t), n);
        cr_assert(memcmp(tsh_tensor_data(t), expected[rank], (size_t)n * sizeof(double)) == 0, "rank %d", rank);
        tsh_tensor_release(t);
        tshi_mesh_view_free(&view);
    }
}

/* Two axes on one dim: the parts are disjoint, in order, and make the whole; the first axis splits first. */
Test(layout, one_dim_over_two_axes, .timeout = 120) {
    for (int64_t n = 0; n < 14; n++) {
        int64_t next = 0;
        for (int rank = 0; rank < 6; rank++) {
            tshi_mesh_view view = tshi_mesh_view_make(2, (int[]){2, 3}, (int[]){rank / 3, rank % 3});
            tsh_shape shape = {.ndim = 1, .global = {n}};
            tsh_layout layout[TSH_MAX_AXES] = {TSH_SHARD(0), TSH_SHARD(0)};
            cr_assert_eq(tshi_shape_resolve(&view.mesh, &shape, layout), TSH_OK);
            int64_t half;
            tsh_split(n, 2, rank / 3, NULL, &half);
            tsh_split(half, 3, rank % 3, NULL, &half);
            cr_assert_eq(shape.local[0], half);
            cr_assert_eq(tshi_shape_start(&view.mesh, &shape, layout, 0), next);
            next += half;
            tshi_mesh_view_free(&view);
        }
        cr_assert_eq(next, n);
    }
}

Test(layout, names, .timeout = 120) {
    char text[24];
    cr_assert_str_eq(tshi_layout_name(TSH_SHARD(3), (tshi_parts){0}, text, sizeof text), "SHARD(3)");
    cr_assert_str_eq(tshi_layout_name(TSH_PARTIAL, (tshi_parts){0}, text, sizeof text), "PARTIAL");
    cr_assert_str_eq(tshi_dims_name(3, (int64_t[]){8, 100, 2}, text, sizeof text), "[8,100,2]");
    cr_assert_str_eq(tshi_dims_name(0, NULL, text, sizeof text), "[]");
    cr_assert_str_eq(tshi_dims_name(2, (int64_t[]){123456, 7}, text, 6), "[1...", "cut, visibly, and terminated");
}
