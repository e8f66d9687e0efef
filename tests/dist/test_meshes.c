/* Meshes of any ranks in any order, also on the ranks outside them, and the split order of layouts. */
#include "support/ranks.h"
#include "tensor/tensor.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(meshes, .timeout = 120);

static void some_ranks(tshi_rank *r, void *arg) {
    static const int ranks[] = {3, 0};
    tsh_mesh *mesh = NULL;
    tsh_tensor *t = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create_on(r->world, ranks, 2, "model=2", &mesh));
    bool member = r->rank == 3 || r->rank == 0;
    tsh_group *model = tsh_mesh_group(mesh, "model");
    tshi_check(r, tsh_mesh_is_member(mesh) == member, "membership");
    tshi_check(r, tsh_group_size(model) == 2, "the axis has %d ranks", tsh_group_size(model));
    tshi_check(r, tsh_group_rank(model) == (r->rank == 3 ? 0 : r->rank == 0 ? 1 : -1), "rank along the axis");
    tsh_tensor_config config = {.ndim = 2, .shape = {5, 3}, .layout = {TSH_SHARD(0)}};
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, &t));
    int64_t rows = r->rank == 3 ? 3 : r->rank == 0 ? 2 : 0;
    tsh_box box = tsh_tensor_box(t);
    tshi_check(r, tsh_tensor_local_numel(t) == rows * 3, "%d elements", (int)tsh_tensor_local_numel(t));
    tshi_check(r, box.length[0] == rows && box.length[1] == (member ? 3 : 0), "box");
    tshi_check(r, tsh_tensor_shape(t)[0] == 5, "the global shape is known on every rank");
    tshi_check_ok(r, tsh_tensor_fill(t, 1));
    tsh_tensor_release(t);
    config = (tsh_tensor_config){.ndim = 0};
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, &t));
    tshi_check(r, tsh_tensor_local_numel(t) == (member ? 1 : 0), "a scalar has %d elements",
               (int)tsh_tensor_local_numel(t));
    tshi_check_ok(r, tsh_tensor_fill(t, r->rank + 1));
    tshi_check_ok(r, tsh_all_reduce(model, t, TSH_REDUCE_SUM));
    tshi_check(r, !member || tsh_tensor_item(t) == 5, "sum %g", tsh_tensor_item(t));
    tsh_tensor_release(t);
    tsh_mesh_destroy(mesh);
}

Test(meshes, of_some_ranks_in_any_order) {
    cr_assert_str_empty(tshi_test_run(4, some_ranks, NULL));
}

static void overlapping(tshi_rank *r, void *arg) {
    tsh_mesh *whole = NULL, *stage[2] = {NULL}, *pair = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, "stage=2,model=2", &whole));
    for (int s = 0; s < 2; s++) {
        tshi_check_ok(r, tsh_mesh_fix(whole, "stage", s, &stage[s]));
        tshi_check(r, tsh_mesh_is_member(stage[s]) == (r->rank / 2 == s), "stage %d", s);
        tshi_check(r, tsh_mesh_axes(stage[s]) == 1 && !strcmp(tsh_mesh_axis_name(stage[s], 0), "model"), "axes");
        tsh_group *members = tsh_mesh_members(stage[s]);
        for (int i = 0; i < 2; i++) tshi_check(r, tsh_group_world_rank(members, i) == 2 * s + i, "member %d", i);
    }
    tshi_check_ok(r, tsh_mesh_create_on(r->world, (const int[]){1, 2}, 2, "across=2", &pair));
    tshi_check_ok(r, tsh_barrier(tsh_mesh_members(pair)));
    tshi_check_ok(r, tsh_barrier(tsh_mesh_group(stage[0], "model")));
    tshi_check_ok(r, tsh_barrier(tsh_mesh_group(stage[1], "model")));
    tsh_mesh_destroy(pair);
    tsh_mesh_destroy(stage[0]);
    tsh_mesh_destroy(stage[1]);
    tsh_mesh_destroy(whole);
}

Test(meshes, overlap_and_are_parts_of_others) {
    cr_assert_str_empty(tshi_test_run(4, overlapping, NULL));
}

static void wrong(tshi_rank *r, void *arg) {
    tsh_mesh *mesh = NULL;
    const int own[] = {r->rank, (r->rank + 1) % r->size};
    (void)arg;
    tshi_check(r, tsh_mesh_create_on(r->world, own, 2, "a=2", &mesh) == TSH_ERR_MISMATCH && !mesh, "lists differ");
    tsh_status status = tsh_mesh_create_on(r->world, (const int[]){0, 1}, 2, "a=3", &mesh);
    tshi_check(r, status == TSH_ERR_ARGUMENT && !mesh, "two ranks are no mesh of three: %s", tsh_error_message());
}

Test(meshes, refuse_ranks_that_differ_and_sizes_that_do_not_fit) {
    cr_assert_str_empty(tshi_test_run(3, wrong, NULL));
}

/* 7 rows, split by the second axis first: 4 and 3 rows, then 2 and 2, 2 and 1. */
static void split_order(tshi_rank *r, void *arg) {
    static const int64_t start[] = {0, 4, 2, 6}, length[] = {2, 2, 2, 1};
    tsh_mesh *mesh = NULL;
    tsh_tensor *t = NULL, *part = NULL, *joined = NULL;
    char text[160];
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=2,model=2", &mesh));
    tsh_tensor_config config = {.ndim = 1, .shape = {7}, .layout = {TSH_SHARD_ORDER(0, 1), TSH_SHARD(0)}};
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, &t));
    tsh_box box = tsh_tensor_box(t);
    tshi_check(r, box.start[0] == start[r->rank] && box.length[0] == length[r->rank], "box %d+%d", (int)box.start[0],
               (int)box.length[0]);
    tsh_tensor_describe(t, text, sizeof text);
    tshi_check(r, strstr(text, "data=SHARD(0,1) model=SHARD(0)") != NULL, "%s", text);
    tsh_tensor_release(t);
    config.layout[0] = TSH_SHARD_ORDER(0, 3); /* the numbers' order alone counts */
    config.layout[1] = TSH_SHARD_ORDER(0, 2);
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, &t));
    box = tsh_tensor_box(t);
    tshi_check(r, box.start[0] == start[r->rank], "box of the same split order");
    config = (tsh_tensor_config){.ndim = 1, .shape = {length[r->rank]}, .layout = {TSH_LOCAL, TSH_LOCAL}};
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, &part));
    const tsh_layout layouts[] = {TSH_SHARD(0), TSH_SHARD_ORDER(0, -1)};
    tshi_check_ok(r, tsh_from_local(part, layouts, NULL, &joined));
    tshi_check(r, tshi_layouts_equal(2, joined->layout, t->layout), "the parts have the layouts of the tensor");
    tshi_check(r, tsh_tensor_shape(joined)[0] == 7, "%d items", (int)tsh_tensor_shape(joined)[0]);
    tsh_tensor_release(part);
    tsh_tensor_release(joined);
    tsh_tensor_release(t);
    tsh_mesh_destroy(mesh);
}

Test(meshes, axes_split_a_dim_in_the_order_of_the_layouts) {
    cr_assert_str_empty(tshi_test_run(4, split_order, NULL));
}

/* A mesh uses the group that it was made of, also when the group's owner, here another mesh, has given it up. */
static void outlives(tshi_rank *r, void *arg) {
    tsh_mesh *outer = NULL, *inner = NULL, *last = NULL;
    tsh_group *group = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=2,model=2", &outer));
    tshi_check_ok(r, tsh_mesh_create_in(tsh_mesh_group(outer, "model"), "x=2", &inner));
    tsh_mesh_destroy(outer);
    tshi_check_ok(r, tsh_barrier(tsh_mesh_members(inner)));
    tsh_mesh_destroy(inner);
    tshi_check_ok(r, tsh_group_create(r->world, (const int[]){0, 1, 2, 3}, 4, &group));
    tshi_check_ok(r, tsh_mesh_create_in(group, "x=4", &inner));
    tshi_check_ok(r, tsh_mesh_create_in(group, "x=2,y=2", &last));
    tsh_group_destroy(group);
    tsh_mesh_destroy(inner);
    tshi_check(r, tsh_group_size(tsh_mesh_members(last)) == 4, "size");
    tshi_check_ok(r, tsh_barrier(tsh_mesh_members(last)));
    tsh_mesh_destroy(last);
}

Test(meshes, outlive_the_owner_of_their_group) {
    cr_assert_str_empty(tshi_test_run(4, outlives, NULL));
}
