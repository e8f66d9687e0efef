/* Groups, meshes, and what they count. */
#include "support/collectives.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* True when an all-reduce of the world ranks over the group has the wanted sum. */
static bool sums_to(tshi_rank *r, tsh_group *group, int64_t wanted) {
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 1);
    if (!x) return false;
    int64_t *value = tsh_tensor_data(x);
    *value = r->rank;
    bool good = tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM)) &&
                tshi_check(r, *value == wanted, "the sum is %lld, not %lld", (long long)*value, (long long)wanted);
    tsh_tensor_release(x);
    return good;
}

static void square(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_mesh *mesh = NULL;
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, "data=2,model=2", &mesh))) return;
    tsh_group *data = tsh_mesh_group(mesh, "data"), *model = tsh_mesh_group(mesh, "model");
    int block = r->rank / 2, column = r->rank % 2;
    tshi_check(r, tsh_mesh_axes(mesh) == 2 && tsh_mesh_world(mesh) == r->world, "axes or world");
    tshi_check(r, !strcmp(tsh_mesh_axis_name(mesh, 1), "model") && !tsh_mesh_axis_name(mesh, 2), "names");
    tshi_check(r, tsh_mesh_axis_group(mesh, 0) == data && !tsh_mesh_axis_group(mesh, -1), "groups by number");
    tshi_check(r, tsh_group_rank(model) == column && tsh_group_rank(data) == block, "group ranks");
    tshi_check(r, tsh_group_world_rank(model, 1) == 2 * block + 1, "model groups are contiguous");
    tshi_check(r, tsh_group_world_rank(data, 1) == 2 + column, "data groups are strided");
    tshi_check(r, tsh_group_world_rank(data, 2) == -1 && tsh_group_world_rank(data, -1) == -1, "ranks outside");
    tshi_check(r, tsh_group_mesh(model) == mesh && tsh_group_world(model) == r->world, "where it belongs");
    tshi_check(r, !strcmp(tsh_group_backend(model), "local"), "backend %s", tsh_group_backend(model));
    sums_to(r, model, 4 * block + 1);
    sums_to(r, data, 2 + 2 * column);
    tshi_check(r, !tsh_mesh_group(mesh, "pipe") && strstr(tsh_error_message(), "data, model"), "message \"%s\"",
               tsh_error_message());
    for (int i = 0; i < 20 && !r->failed; i++) {
        tshi_try_all(r, model, TSH_FLOAT32, 100 * i);
        tshi_try_all(r, data, TSH_FLOAT64, 70 * i);
    }
    tsh_mesh_destroy(mesh);
}

Test(groups, two_by_two, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, square, NULL));
    cr_assert_str_empty(tshi_test_run_threads(4, square, NULL));
}

static void no_launcher(tshi_rank *r, void *arg) {
    (void)arg;
    tshi_check_status(r, tsh_mesh_create(r->world, "data=2", &(tsh_mesh *){NULL}), TSH_ERR_ARGUMENT,
                      "of 2 ranks, the world has 1; tshard-run -n 2 PROGRAM starts as many");
}

Test(groups, a_world_of_one_names_the_launcher, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, no_launcher, NULL));
}

static void cube(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_mesh *mesh = NULL;
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, "a=2,b=-1,c=2", &mesh))) return;
    int a = r->rank / 4, b = r->rank / 2 % 2, c = r->rank % 2;
    sums_to(r, tsh_mesh_group(mesh, "a"), 4 + 2 * (2 * b + c));
    sums_to(r, tsh_mesh_group(mesh, "b"), 2 + 2 * (4 * a + c));
    sums_to(r, tsh_mesh_group(mesh, "c"), 1 + 2 * (4 * a + 2 * b));
    tsh_mesh_destroy(mesh);
}

Test(groups, two_by_two_by_two, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(8, cube, NULL));
}

static void ones(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_mesh *mesh = NULL;
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, "x=1,y=-1,z=1", &mesh))) return;
    tsh_group *z = tsh_mesh_group(mesh, "z");
    tshi_check(r, tsh_group_size(tsh_mesh_group(mesh, "y")) == r->size, "-1 is what is left");
    tshi_check(r, !strcmp(tsh_group_backend(z), "self"), "backend %s", tsh_group_backend(z));
    tshi_try_all(r, z, TSH_FLOAT32, 100);
    tsh_mesh_destroy(mesh);
}

Test(groups, axes_of_one, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, ones, NULL));
    cr_assert_str_empty(tshi_test_run(3, ones, NULL));
}

static void bad_meshes(tshi_rank *r, void *arg) {
    (void)arg;
    static const struct {
        const char *axes, *words;
    } cases[] = {
        {"data=2,model=2", "mesh of 4 ranks, the world has 3"},
        {"data=2,model=-1", "a multiple of 2 ranks, the world has 3"},
        {"data:3", "NAME=SIZE,... is expected, like \"data=2,model=2\""},
        {"a=-1,b=-1", "more than one size open"},
        {"a=3,a=1", "axis a twice"},
        {"a=0", "positive number"},
        {"a=-3", "positive number"},
        {"a=3x", "positive number"},
        {"a=3,", "ends in a comma"},
        {"=3", "this is not: \"=3\""},
        {"a", "this is not: \"a\""},
        {"", "no axes"},
        {NULL, "no axes"},
        {"an_axis_with_a_long_name=3", "up to 15 letters"},
        {"a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=3", "more than 8 axes"},
        {"a=99999999999999999999", "positive number"},
        {"a=2000000000,b=2000000000,c=2000000000", "the world has 3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsh_mesh *mesh = (tsh_mesh *)(void *)r;
        tshi_check_status(r, tsh_mesh_create(r->world, cases[i].axes, &mesh), TSH_ERR_ARGUMENT, cases[i].words);
        tshi_check(r, !mesh, "out is not NULL after an error");
    }
    tshi_check_status(r, tsh_mesh_create(NULL, "a=3", &(tsh_mesh *){NULL}), TSH_ERR_ARGUMENT, "required");
    sums_to(r, tsh_world_group(r->world), 3);
}

Test(groups, bad_meshes, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(3, bad_meshes, NULL));
}

static void different_meshes(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_mesh *mesh = NULL;
    tsh_status status = tsh_mesh_create(r->world, r->rank == 1 ? "model=2" : "data=2", &mesh);
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 0: mesh_create data=2");
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 1: mesh_create model=2");
    status = tsh_mesh_create(r->world, r->rank == 1 ? "data=5" : "data=2", &mesh);
    if (r->rank == 1) tshi_check_status(r, status, TSH_ERR_ARGUMENT, "mesh of 5 ranks");
    if (r->rank == 0) tshi_check_status(r, status, TSH_ERR_PEER, "rank 1: mesh_create: \"data=5\"");
    sums_to(r, tsh_world_group(r->world), 1);
}

Test(groups, different_meshes, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, different_meshes, NULL));
}

static void groups_of_some(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *backwards = NULL, *alone = NULL, *late = NULL;
    tshi_check_ok(r, tsh_group_create(r->world, (int[]){3, 1, 0}, 3, &backwards));
    tshi_check_ok(r, tsh_group_create(r->world, (int[]){2}, 1, &alone));
    tshi_check(r, (backwards != NULL) == (r->rank != 2), "group of 3, 1, 0");
    tshi_check(r, (alone != NULL) == (r->rank == 2), "group of 2");
    if (backwards) {
        tshi_check(r, tsh_group_world_rank(backwards, 0) == 3, "the list's order is the group's");
        sums_to(r, backwards, 4);
        tshi_try_all(r, backwards, TSH_FLOAT32, 1000);
    }
    if (alone) sums_to(r, alone, 2);
    /* Members destroy the group at different times; its memory is not used again before the last of them. */
    for (int i = 0; i < 50 && !r->failed; i++) {
        tshi_check_ok(r, tsh_group_create(r->world, (int[]){1, 2, 3}, 3, &late));
        if (late) sums_to(r, late, 6);
        tsh_group_destroy(late);
    }
    tsh_group_destroy(backwards);
    tsh_group_destroy(alone);
    tsh_group_destroy(NULL);
    tsh_group_destroy(tsh_world_group(r->world));
    sums_to(r, tsh_world_group(r->world), 6);
}

Test(groups, of_some_ranks, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, groups_of_some, NULL));
    cr_assert_str_empty(tshi_test_run_threads(4, groups_of_some, NULL));
}

static void groups_free_their_memory(tshi_rank *r, void *arg) {
    (void)arg;
    size_t before = tsh_device_stats(tsh_world_device(r->world)).bytes_in_use;
    for (int i = 0; i < 30; i++) {
        tsh_mesh *mesh = NULL;
        tshi_check_ok(r, tsh_mesh_create(r->world, "a=3", &mesh));
        tshi_check_ok(r, tsh_barrier(tsh_mesh_group(mesh, "a")));
        tsh_mesh_destroy(mesh);
    }
    /* All ranks have destroyed their group; retired memory is freed with the next group. */
    tsh_group *group = NULL;
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    tshi_check_ok(r, tsh_group_create(r->world, (int[]){0, 1}, 2, &group));
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    size_t after = tsh_device_stats(tsh_world_device(r->world)).bytes_in_use;
    tshi_check(r, after <= before + 200000, "%zu bytes before, %zu after", before, after);
    tsh_group_destroy(group);
}

Test(groups, free_their_memory, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(3, groups_free_their_memory, NULL));
}

static void different_lists(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = NULL;
    tsh_status status = tsh_group_create(r->world, (int[]){0, r->rank == 2 ? 2 : 1}, 2, &group);
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 0: group_create 0,1 #");
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 2: group_create 0,2 #");
    status = tsh_group_create(r->world, (int[]){0, 1, 2}, r->rank == 1 ? 2 : 3, &group);
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "group_create 0,1 #");
    tshi_check(r, !group, "out is not NULL after an error");
    static const struct {
        int ranks[3], n;
        tsh_status status;
        const char *words;
    } cases[] = {{{0, 3}, 2, TSH_ERR_RANGE, "rank 3 in a world of 3"},
                 {{0, -1}, 2, TSH_ERR_RANGE, "rank -1"},
                 {{1, 1}, 2, TSH_ERR_ARGUMENT, "twice"},
                 {{0}, 0, TSH_ERR_ARGUMENT, "0 ranks"},
                 {{0}, 4, TSH_ERR_ARGUMENT, "4 ranks"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool bad = r->rank == 1;
        status = tsh_group_create(r->world, bad ? cases[i].ranks : (int[]){0, 1}, bad ? cases[i].n : 2, &group);
        tshi_check_status(r, status, bad ? cases[i].status : TSH_ERR_PEER, cases[i].words);
    }
    sums_to(r, tsh_world_group(r->world), 3);
}

Test(groups, different_lists, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(3, different_lists, NULL));
}

/* --- counting ----------------------------------------------------------------------------------------------------- */

static void counts(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    uint64_t p = (uint64_t)r->size, n = 12 * p, bytes = 4 * n;
    tsh_tensor *whole = tshi_test_vector(r, TSH_FLOAT32, (int64_t)n), *part = tshi_test_vector(r, TSH_FLOAT32, 12);
    tsh_tensor *other = tshi_test_vector(r, TSH_FLOAT32, (int64_t)n);
    for (int i = 0; i < 3; i++) {
        tshi_check_ok(r, tsh_all_reduce(group, whole, TSH_REDUCE_SUM));
        tshi_check_ok(r, tsh_all_gather_into_tensor(group, part, whole, NULL));
        tshi_check_ok(r, tsh_reduce_scatter_tensor(group, whole, part, NULL, TSH_REDUCE_SUM));
        tshi_check_ok(r, tsh_broadcast(group, whole, 0));
        tshi_check_ok(r, tsh_all_to_all(group, whole, NULL, other, NULL));
        tshi_check_ok(r, tsh_barrier(group));
    }
    /* A call that fails is not counted. */
    tshi_check_status(r, tsh_broadcast(group, whole, -1), TSH_ERR_RANGE, "");
    tsh_communication_stats stats = tsh_group_stats(group);
    uint64_t sent = bytes / p * (p - 1);
    const uint64_t wanted[TSH_COLLECTIVE_COUNT] = {2 * sent, sent, sent, sent, sent, 0};
    for (int op = 0; op <= TSH_COLLECTIVE_BARRIER; op++) {
        const char *name = tsh_collective_name((tsh_collective)op);
        tshi_check(r, stats.calls[op] == 3, "%s: %llu calls", name, (unsigned long long)stats.calls[op]);
        tshi_check(r, stats.bytes[op] == 3 * wanted[op], "%s: %llu bytes", name, (unsigned long long)stats.bytes[op]);
    }
    tshi_check(r, stats.seconds > 0 && stats.seconds < 10, "%g seconds", stats.seconds);
    tsh_group_reset_stats(group);
    stats = tsh_group_stats(group);
    tshi_check(r, stats.calls[0] == 0 && stats.bytes[0] == 0 && stats.seconds == 0, "reset");
    tsh_tensor_release(whole);
    tsh_tensor_release(part);
    tsh_tensor_release(other);
}

Test(groups, count_calls_and_bytes, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, counts, NULL));
    cr_assert_str_empty(tshi_test_run(2, counts, NULL));
    cr_assert_str_empty(tshi_test_run(3, counts, NULL));
}

static void no_allocation(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 5000);
    uint64_t before = tsh_device_stats(tsh_world_device(r->world)).requests;
    for (int i = 0; i < 10; i++) tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), x, TSH_REDUCE_SUM));
    uint64_t after = tsh_device_stats(tsh_world_device(r->world)).requests;
    tshi_check(r, before == after, "%llu buffers were asked for", (unsigned long long)(after - before));
    tsh_tensor_release(x);
}

Test(groups, collectives_ask_for_no_memory, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, no_allocation, NULL));
}

/* The queries answer true exactly where the calls succeed. */
static void supports(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    const char *backend = tsh_group_backend(group);
    for (int k = 0; k < TSH_DTYPE_COUNT * TSH_REDUCE_OP_COUNT && !r->failed; k++) {
        tsh_dtype dtype = (tsh_dtype)(k / TSH_REDUCE_OP_COUNT);
        tsh_reduce_op reduce = (tsh_reduce_op)(k % TSH_REDUCE_OP_COUNT);
        tsh_tensor *x = tshi_test_vector(r, dtype, 4);
        tsh_status status = tsh_all_reduce(group, x, reduce);
        bool able = status == TSH_OK;
        tshi_check(r, able || status == TSH_ERR_DTYPE, "%s: %s", tsh_dtype_name(dtype), tsh_status_name(status));
        tshi_check(r, tsh_reduce_to_root(group, x, reduce, 0) == status, "reduce and all_reduce differ");
        const tsh_collective ops[] = {TSH_COLLECTIVE_ALL_REDUCE, TSH_COLLECTIVE_REDUCE_SCATTER, TSH_COLLECTIVE_REDUCE};
        for (int i = 0; i < 3; i++) {
            tshi_check(r, tsh_group_supports(group, ops[i], dtype, reduce) == able, "%s, reduction %d, of the group",
                       tsh_dtype_name(dtype), (int)reduce);
            tshi_check(r, tsh_backend_supports(backend, TSH_CPU, ops[i], dtype, reduce) == able,
                       "%s, reduction %d, of the backend", tsh_dtype_name(dtype), (int)reduce);
        }
        tshi_check(r, tsh_group_supports(group, TSH_COLLECTIVE_ALL_GATHER, dtype, reduce), "gather of %s",
                   tsh_dtype_name(dtype));
        tshi_check(r, tsh_group_supports(group, TSH_COLLECTIVE_SEND, dtype, reduce) == (r->size > 1), "send of %s",
                   tsh_dtype_name(dtype));
        tsh_tensor_release(x);
    }
    tshi_check(r, !tsh_group_supports(group, TSH_COLLECTIVE_BROADCAST, TSH_DTYPE_COUNT, TSH_REDUCE_SUM), "no dtype");
    tshi_check(r, !tsh_group_supports(group, TSH_COLLECTIVE_ALL_REDUCE, TSH_FLOAT32, TSH_REDUCE_OP_COUNT),
               "no reduction");
    tshi_check(r, !tsh_group_supports(group, TSH_COLLECTIVE_COUNT, TSH_FLOAT32, TSH_REDUCE_SUM), "no op");
    tshi_check(r, !tsh_group_supports(NULL, TSH_COLLECTIVE_BARRIER, TSH_FLOAT32, TSH_REDUCE_SUM), "no group");
    tshi_check(r, !tsh_backend_supports("none", TSH_CPU, TSH_COLLECTIVE_BARRIER, TSH_FLOAT32, TSH_REDUCE_SUM),
               "no backend");
    tshi_check(r, !tsh_backend_supports(NULL, TSH_CPU, TSH_COLLECTIVE_BARRIER, TSH_FLOAT32, TSH_REDUCE_SUM), "NULL");
}

Test(groups, supports, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, supports, NULL));
    cr_assert_str_empty(tshi_test_run(2, supports, NULL));
}
