/* Tensors: creation, sharing, claims, access, wrong use. */
#include "support/mesh_view.h"
#include "tshard/autograd.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static tshi_mesh_view mesh_view;
static const tsh_layout replicated[TSH_MAX_AXES];

static void set_up(void) {
    mesh_view = tshi_mesh_view_make(2, (int[]){2, 3}, (int[]){1, 2});
}

static void tear_down(void) {
    cr_assert_eq(tsh_device_stats(mesh_view.device).bytes_in_use, 0, "every buffer was given back");
    tshi_mesh_view_free(&mesh_view);
}

TestSuite(tensor, .init = set_up, .fini = tear_down, .timeout = 120);

static void expect_words(const char *words) {
    cr_assert(strstr(tsh_error_message(), words), "\"%s\" is not in \"%s\"", words, tsh_error_message());
}

Test(tensor, is_zeroed_and_described) {
    tsh_tensor *t;
    tsh_tensor_config config = {
        .dtype = TSH_COMPLEX128, .ndim = 2, .shape = {5, 8}, .layout = {TSH_SHARD(0), TSH_PARTIAL}};
    char text[160];
    cr_assert_eq(tsh_tensor_create(&mesh_view.mesh, &config, &t), TSH_OK);
    cr_assert_str_eq(tsh_tensor_describe(t, text, sizeof text),
                     "complex128 [2,8] of [5,8] axis0=SHARD(0) axis1=PARTIAL");
    cr_assert_eq(tsh_tensor_shape(t)[0], 5);
    cr_assert_eq(tsh_tensor_local_nbytes(t), 2 * 8 * 16);
    const double *x = tsh_tensor_data(t);
    for (int i = 0; i < 32; i++) cr_assert_eq(x[i], 0);
    tsh_tensor_release(t);
}

Test(tensor, is_described_with_its_split_order) {
    tsh_tensor *t;
    tsh_tensor_config config = {.ndim = 2, .shape = {12, 3}, .layout = {TSH_SHARD_ORDER(0, 1), TSH_SHARD(-2)}};
    char text[160];
    cr_assert_eq(tsh_tensor_create(&mesh_view.mesh, &config, &t), TSH_OK);
    cr_assert_str_eq(tsh_tensor_describe(t, text, sizeof text),
                     "float32 [2,3] of [12,3] axis0=SHARD(0,1) axis1=SHARD(0)");
    cr_assert_str_eq(tshi_tensor_describe_whole(t, text, sizeof text),
                     "float32 [12,3] axis0=SHARD(0,1) axis1=SHARD(0)");
    cr_assert_str_eq(tsh_tensor_describe(t, text, 17), "float32 [2,3]...");
    tsh_tensor_release(t);
}

Test(tensor, empty_slices_and_scalars_are_tensors) {
    tsh_tensor *empty = tshi_mesh_view_tensor(&mesh_view, TSH_FLOAT32, 2, (int64_t[]){2, 4},
                                              (tsh_layout[]){TSH_REPLICATED, TSH_SHARD(0)});
    cr_assert_eq(tsh_tensor_local_numel(empty), 0);
    cr_assert(tsh_tensor_data(empty) != NULL);
    tsh_tensor *scalar = tshi_mesh_view_tensor(&mesh_view, TSH_FLOAT32, 0, NULL, replicated);
    cr_assert_eq(tsh_tensor_local_numel(scalar), 1);
    cr_assert_eq(tsh_tensor_fill(scalar, 2.5), TSH_OK);
    cr_assert_eq(tsh_tensor_item(scalar), 2.5);
    cr_assert(isnan(tsh_tensor_item(empty)));
    expect_words("one real element");
    tsh_tensor_release(empty);
    tsh_tensor_release(scalar);
}

Test(tensor, a_shape_wants_its_number_of_dims) {
    tsh_tensor *t;
    cr_expect_eq(tsh_tensor_create(&mesh_view.mesh, &(tsh_tensor_config){.shape = {6, 8}}, &t), TSH_ERR_SHAPE);
    expect_words("ndim is 0");
}

/* Neither a term of a sum nor a slice is the value of the tensor. */
Test(tensor, has_an_item_where_a_rank_holds_it_all) {
    const tsh_layout partial[] = {TSH_PARTIAL, TSH_REPLICATED}, first[] = {TSH_SHARD(0), TSH_REPLICATED};
    tsh_tensor *term = tshi_mesh_view_tensor(&mesh_view, TSH_FLOAT32, 0, NULL, partial);
    tsh_tensor *slice =
        tshi_mesh_view_tensor(&mesh_view, TSH_FLOAT32, 1, (int64_t[]){mesh_view.mesh.axis[0].size}, first);
    cr_assert_eq(tsh_tensor_local_numel(slice), 1);
    cr_expect(isnan(tsh_tensor_item(term)));
    expect_words("a sum over the ranks of axis axis0");
    cr_expect(isnan(tsh_tensor_item(slice)));
    expect_words("one real element");
    tsh_tensor_release(term);
    tsh_tensor_release(slice);
}

Test(tensor, views_share_memory_until_the_last) {
    tsh_tensor *t = tshi_mesh_view_tensor(&mesh_view, TSH_FLOAT64, 2, (int64_t[]){3, 4}, replicated), *view, *clone;
    tsh_shape row = {.ndim = 1, .local = {4}, .global = {4}};
    cr_assert_eq(tshi_tensor_view(t, &row, replicated, 4 * sizeof(double), &view), TSH_OK);
    cr_assert_eq(tsh_tensor_clone(view, &clone), TSH_OK);
    cr_assert(!tshi_tensor_sole_owner(t));
    tsh_tensor_release(t);
    cr_assert(tshi_tensor_sole_owner(view));
    ((double *)tsh_tensor_data(view))[0] = -1;
    cr_assert_eq(((double *)tsh_tensor_data(clone))[0], 4, "a clone has its own");
    cr_assert_eq(((double *)tsh_tensor_data(view))[3], 7);
    tshi_tensor_release(view);
    tsh_tensor_release(clone);
    tsh_tensor_release(NULL);
}

Test(tensor, read_and_write_want_the_own_number) {
    tsh_tensor *t =
        tshi_mesh_view_tensor(&mesh_view, TSH_FLOAT32, 1, (int64_t[]){5}, (tsh_layout[]){TSH_SHARD(0), TSH_REPLICATED});
    float in[2] = {8, 9}, out[2];
    cr_assert_eq(tsh_tensor_write(t, in, 2), TSH_OK);
    cr_assert_eq(tsh_tensor_read(t, out, 2), TSH_OK);
    cr_assert_eq(out[1], 9);
    cr_assert_eq(tsh_tensor_write(t, in, 5), TSH_ERR_SHAPE);
    expect_words("5 elements given, this rank holds 2");
    cr_assert_eq(tsh_tensor_read(t, NULL, 2), TSH_ERR_ARGUMENT);
    tsh_tensor_release(t);
}

Test(tensor, wrong_creations_say_why_and_leave_null) {
    static const struct {
        tsh_tensor_config config;
        tsh_status status;
        const char *words;
    } cases[] = {
        {{.dtype = (tsh_dtype)77, .ndim = 0}, TSH_ERR_DTYPE, "unknown dtype"},
        {{.ndim = 9}, TSH_ERR_SHAPE, "9 dims"},
        {{.ndim = -1}, TSH_ERR_SHAPE, "-1 dims"},
        {{.ndim = 1, .shape = {-3}}, TSH_ERR_ARGUMENT, "-3"},
        {{.ndim = 2, .shape = {INT64_MAX, 2}}, TSH_ERR_OVERFLOW, ""},
        {{.ndim = 1, .shape = {INT64_MAX / 2}, .dtype = TSH_COMPLEX128}, TSH_ERR_OVERFLOW, ""},
        {{.ndim = 1, .shape = {INT64_MAX / 64}}, TSH_ERR_MEMORY, ""},
        {{.ndim = 1, .shape = {4}, .layout = {TSH_SHARD(1)}}, TSH_ERR_SHAPE, "SHARD(1)"},
        {{.ndim = 1, .shape = {4}, .layout = {TSH_SHARD(-2)}}, TSH_ERR_SHAPE, "SHARD(-2)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tsh_tensor *t = (tsh_tensor *)&mesh_view;
        cr_assert_eq(tsh_tensor_create(&mesh_view.mesh, &cases[i].config, &t), cases[i].status, "case %zu: %s", i,
                     tsh_error_message());
        cr_assert(t == NULL);
        expect_words(cases[i].words);
    }
    tsh_tensor *t;
    cr_assert_eq(tsh_tensor_create(NULL, &cases[0].config, &t), TSH_ERR_ARGUMENT);
}

Test(tensor, a_layout_of_no_kind_is_refused) {
    const tsh_layout none[] = {
        {.kind = (tsh_layout_kind)7}, {.kind = (tsh_layout_kind)-1}, {.kind = (tsh_layout_kind)4}};
    for (int i = 0; i < 3; i++) {
        tsh_tensor_config config = {.ndim = 1, .shape = {4}, .layout = {TSH_REPLICATED, none[i]}};
        tsh_tensor *created = NULL;
        cr_assert_eq(tsh_tensor_create(&mesh_view.mesh, &config, &created), TSH_ERR_ARGUMENT);
        expect_words("unknown layout kind");
    }
}

Test(tensor, gradients_are_for_floats) {
    tsh_tensor *t;
    tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {3}};
    cr_assert_eq(tsh_tensor_create(&mesh_view.mesh, &config, &t), TSH_OK);
    cr_assert_eq(tsh_tensor_require_grad(t, true), TSH_ERR_DTYPE);
    cr_assert(tsh_tensor_grad(t) == NULL);
    tsh_tensor_zero_grad(t);
    tsh_tensor_zero_grad(NULL);
    tsh_tensor_release(t);
}
