/* Whole tensors in host memory, and global tensors made of parts. */
#include "support/tensors.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 16 * 128 }; /* bytes of the largest whole */

static const struct {
    tsh_dtype dtype;
    int ndim;
    int64_t dims[3];
} shapes[] = {{TSH_FLOAT32, 2, {7, 10}}, {TSH_INT64, 1, {5}},        {TSH_COMPLEX128, 3, {2, 3, 4}},
              {TSH_BFLOAT16, 2, {3, 8}}, {TSH_FLOAT64, 2, {0, 3}},   {TSH_FLOAT64, 0, {0}},
              {TSH_UINT8, 2, {9, 1}},    {TSH_FLOAT64, 3, {5, 1, 4}}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Layout `number` of a tensor with so many dims: REPLICATED, PARTIAL, SHARD of each dim, and the same splitting
 * last. */
static tsh_layout layout_of(int number, int ndim) {
    if (number < 2) return number ? TSH_PARTIAL : TSH_REPLICATED;
    return number < 2 + ndim ? TSH_SHARD(number - 2) : TSH_SHARD_ORDER(number - 2 - ndim, 1);
}

/* The bytes of the whole that counts from `start`. */
static void count_from(tshi_rank *r, const tsh_mesh *mesh, tsh_tensor_config config, double start, char *whole) {
    tsh_tensor *t = NULL;
    memset(config.layout, 0, sizeof config.layout);
    tshi_check_ok(r, tsh_tensor_create_arange(mesh, &config, start, 1, &t));
    if (t && tshi_mesh_has_me(mesh)) tshi_check_ok(r, tsh_tensor_read(t, whole, tsh_tensor_local_numel(t)));
    tsh_tensor_release(t);
}

static void check_bytes(tshi_rank *r, const tsh_tensor *t, const char *what, const char *got, const char *wanted,
                        size_t bytes) {
    char text[160];
    tshi_check(r, !memcmp(got, wanted, bytes), "%s: %s", what, tsh_tensor_describe(t, text, sizeof text));
}

static size_t whole_bytes(const tsh_tensor *t) {
    return (size_t)tshi_shape_numel(&t->shape) * tsh_dtype_size(t->dtype);
}

/* Counting tensors come to every rank and to one, and from one, at any layout; the later terms of a sum are ones. */
static void moves_of(tshi_rank *r, tsh_mesh *mesh, const tsh_tensor_config *config) {
    char wanted[MOST], got[MOST] = {0}, zeros[MOST] = {0};
    tsh_tensor *t = NULL, *back = NULL;
    int terms = 1, root = (r->rank + 1) % 2;
    for (int a = 0; a < mesh->axes; a++) terms *= config->layout[a].kind == TSH_KIND_PARTIAL ? mesh->axis[a].size : 1;
    count_from(r, mesh, *config, terms - 1, wanted);
    tshi_check_ok(r, tsh_tensor_create_arange(mesh, config, 0, 1, &t));
    tshi_check_ok(r, tsh_tensor_create(mesh, config, &back));
    if (!t || !back) return;
    if (!tshi_tensor_is_first_term(t)) tshi_check_ok(r, tsh_tensor_fill(t, 1));
    tshi_check_ok(r, tsh_tensor_read_whole(t, got));
    check_bytes(r, t, "read", got, wanted, whole_bytes(t));
    for (root = 0; root < mesh->members; root += 2) {
        bool mine = mesh->member == root;
        memset(got, 0, sizeof got);
        tshi_check_ok(r, tsh_tensor_gather_whole(t, root, mine ? got : NULL));
        check_bytes(r, t, "gathered", got, mine ? wanted : zeros, whole_bytes(t));
        tshi_check_ok(r, tsh_tensor_scatter_whole(back, root, mine ? wanted : NULL));
        tshi_check_ok(r, tsh_tensor_read_whole(back, got));
        check_bytes(r, t, "scattered and read", got, wanted, whole_bytes(t));
        if (!mine || terms > 1) continue;
        tshi_check_ok(r, tsh_tensor_write_whole(t, wanted));
        check_bytes(r, t, "scattered", tsh_tensor_data(back), tsh_tensor_data(t), tsh_tensor_local_nbytes(t));
    }
    tsh_tensor_release(t);
    tsh_tensor_release(back);
}

static void moves_on(tshi_rank *r, tsh_mesh *mesh, void *arg) {
    (void)arg;
    for (int s = 0; s < SHAPES; s++) {
        tsh_tensor_config config = {.dtype = shapes[s].dtype, .ndim = shapes[s].ndim};
        int kinds = 2 + 2 * config.ndim;
        memcpy(config.shape, shapes[s].dims, sizeof shapes->dims);
        for (int number = 0; number < kinds * kinds && !r->failed; number++) {
            config.layout[0] = layout_of(number % kinds, config.ndim);
            config.layout[1] = layout_of(number / kinds, config.ndim);
            moves_of(r, mesh, &config);
        }
    }
}

static void moves(tshi_rank *r, void *arg) {
    tshi_test_each_mesh(r, moves_on, arg);
}

Test(whole, comes_from_any_layout_and_goes_to_it, .timeout = 600) {
    cr_assert_str_empty(tshi_test_run_each(1, 6, moves, NULL));
    cr_assert_str_empty(tshi_test_run(8, moves, NULL));
}

/* One call moves a whole, and what changes rank once. */
static void counts(tshi_rank *r, void *arg) {
    tsh_tensor *t = NULL;
    double whole[12];
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {12}, .layout = {TSH_SHARD(0)}};
    (void)arg;
    tshi_check_ok(r, tsh_tensor_create_arange(tsh_world_mesh(r->world), &config, 0, 1, &t));
    tsh_group_reset_stats(group);
    tshi_check_ok(r, tsh_tensor_gather_whole(t, 1, whole));
    tsh_communication_stats stats = tsh_group_stats(group);
    uint64_t bytes = stats.bytes[TSH_COLLECTIVE_ALL_TO_ALL];
    tshi_check(r, stats.calls[TSH_COLLECTIVE_ALL_TO_ALL] == 1, "calls");
    tshi_check(r, bytes == (r->rank == 1 ? 0 : tsh_tensor_local_nbytes(t)), "%d bytes", (int)bytes);
    tsh_tensor_release(t);
}

Test(whole, is_gathered_in_one_call, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(2, 4, counts, NULL));
}

/* A mesh of ranks 2 and 0: the rank between them gets nothing, and waits for nothing. */
static void elsewhere(tshi_rank *r, void *arg) {
    tsh_mesh *mesh = NULL;
    tsh_tensor *t = NULL, *global = NULL, *local = NULL;
    double whole[5] = {-1, -1, -1, -1, -1};
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create_on(r->world, (int[]){2, 0}, 2, "x=2", &mesh));
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {5}, .layout = {TSH_SHARD(0)}};
    tsh_tensor_config part = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {r->rank == 2 ? 3 : 2}, .layout = {TSH_LOCAL}};
    tshi_check_ok(r, tsh_tensor_create_arange(mesh, &config, 0, 1, &t));
    if (r->rank != 1) tshi_check_ok(r, tsh_tensor_read_whole(t, whole));
    if (r->rank == 1) tshi_check_ok(r, tsh_tensor_scatter_whole(t, 0, NULL));
    tshi_check(r, whole[4] == (r->rank == 1 ? -1 : 4), "%g", whole[4]);
    tshi_check_ok(r, tsh_tensor_create_full(mesh, &part, 1, &local));
    if (r->rank == 1)
        tshi_check_status(r, tsh_from_local(local, config.layout, NULL, &global), TSH_ERR_ARGUMENT, "outside");
    tshi_check_ok(r, tsh_from_local(local, config.layout, config.shape, &global));
    tshi_check(r, global && tsh_tensor_shape(global)[0] == 5, "shape");
    tshi_check(r, tsh_tensor_local_numel(global) == (r->rank == 1 ? 0 : part.shape[0]), "part");
    tsh_tensor_release(global);
    tsh_tensor_release(local);
    tsh_tensor_release(t);
    if (r->rank != 1) tshi_check_ok(r, tsh_barrier(tsh_mesh_members(mesh)));
    tsh_mesh_destroy(mesh);
}

Test(whole, a_rank_outside_the_mesh_has_nothing_to_do, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(3, elsewhere, NULL));
}

static void wrong(tshi_rank *r, void *arg) {
    tsh_tensor *t = NULL, *local = NULL;
    double whole[5];
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {5}, .layout = {TSH_SHARD(0)}};
    (void)arg;
    tshi_check_ok(r, tsh_tensor_create_arange(tsh_world_mesh(r->world), &config, 0, 1, &t));
    config.layout[0] = TSH_LOCAL;
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &local));
    tshi_check_status(r, tsh_tensor_gather_whole(t, 1, NULL), r->rank == 1 ? TSH_ERR_ARGUMENT : TSH_ERR_PEER,
                      "whole is NULL");
    tshi_check_status(r, tsh_tensor_gather_whole(t, r->rank, whole), TSH_ERR_MISMATCH, "tensor_gather_whole");
    tshi_check_status(r, tsh_tensor_gather_whole(t, r->size, whole), TSH_ERR_RANGE, "root 3 of a mesh of 3");
    tshi_check_status(r, tsh_tensor_scatter_whole(t, -1, whole), TSH_ERR_RANGE, "root -1");
    tshi_check_status(r, tsh_tensor_read_whole(local, whole), TSH_ERR_LAYOUT, "LOCAL");
    tshi_check_ok(r, tsh_tensor_read_whole(t, whole));
    tshi_check(r, whole[4] == 4, "nothing has changed");
    tsh_tensor_release(t);
    tsh_tensor_release(local);
}

Test(whole, wrong_use_is_an_error_on_every_rank, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(3, wrong, NULL));
}

/* The root has no room for a whole that it sends, and reads one into memory of the caller's. On a GPU, whose memory the
 * size of a heap does not bound, it has. */
static void oversubscribed(tshi_rank *r, void *arg) {
    enum { NUMEL = 12 << 20 };
    tsh_tensor *t = NULL;
    tsh_tensor_config config = {.dtype = TSH_FLOAT32, .ndim = 1, .shape = {NUMEL}, .layout = {TSH_SHARD(0)}};
    float *whole = calloc(NUMEL, sizeof *whole);
    (void)arg;
    tshi_check_ok(r, tsh_tensor_create_arange(tsh_world_mesh(r->world), &config, 0, 1, &t));
    if (tshi_test_device() == TSH_CPU)
        tshi_check_status(r, tsh_tensor_scatter_whole(t, 1, whole), r->rank == 1 ? TSH_ERR_MEMORY : TSH_ERR_PEER, "");
    tshi_check_ok(r, tsh_tensor_gather_whole(t, 1, whole));
    tshi_check(r, !whole || whole[NUMEL - 1] == (r->rank == 1 ? NUMEL - 1 : 0), "the last element");
    if (tshi_test_device() != TSH_CPU) tshi_check_ok(r, tsh_tensor_scatter_whole(t, 1, whole));
    tsh_tensor_release(t);
    free(whole);
}

Test(whole, a_root_without_memory_is_an_error_on_every_rank, .timeout = 120) {
    const tshi_test_options options = {.ranks = 4, .heap_bytes = (size_t)32 << 20};
    cr_assert_str_empty(tshi_test_run_with(&options, oversubscribed, NULL, NULL, NULL));
}

/* --- from parts --------------------------------------------------------------------------------------------------- */

/* The parts of a tensor that has been created, as LOCAL tensors, make that tensor again. */
static void joins_of(tshi_rank *r, tsh_mesh *mesh, const tsh_tensor_config *config, bool given) {
    tsh_tensor *t = NULL, *local = NULL, *global = NULL;
    tsh_tensor_config part = {.dtype = config->dtype, .ndim = config->ndim, .layout = {TSH_LOCAL, TSH_LOCAL}};
    tshi_check_ok(r, tsh_tensor_create_arange(mesh, config, 0, 1, &t));
    if (!t) return;
    memcpy(part.shape, tsh_tensor_local_shape(t), sizeof *part.shape * (size_t)part.ndim);
    tshi_check_ok(r, tsh_tensor_create(mesh, &part, &local));
    tshi_check_ok(r, tsh_from_local(local, config->layout, given ? config->shape : NULL, &global));
    if (!global) return;
    tshi_check_ok(r, tsh_tensor_write(local, tsh_tensor_data(t), tsh_tensor_local_numel(t)));
    tshi_check(r, tsh_tensor_data(global) == tsh_tensor_data(local), "the memory is shared");
    tshi_check(r, !memcmp(tsh_tensor_shape(global), config->shape, sizeof *config->shape * (size_t)part.ndim), "shape");
    tsh_box box = tsh_tensor_box(global), wanted = tsh_tensor_box(t);
    tshi_check(r, !memcmp(&box, &wanted, sizeof box), "box");
    tsh_tensor_release(local);
    check_bytes(r, t, "joined", tsh_tensor_data(global), tsh_tensor_data(t), tsh_tensor_local_nbytes(t));
    tsh_tensor_release(global);
    tsh_tensor_release(t);
}

static void joins_on(tshi_rank *r, tsh_mesh *mesh, void *arg) {
    (void)arg;
    for (int s = 0; s < SHAPES; s++) {
        tsh_tensor_config config = {.dtype = shapes[s].dtype, .ndim = shapes[s].ndim};
        int kinds = 2 + 2 * config.ndim;
        memcpy(config.shape, shapes[s].dims, sizeof shapes->dims);
        for (int number = 0; number < kinds * kinds && !r->failed; number++) {
            config.layout[0] = layout_of(number % kinds, config.ndim);
            config.layout[1] = layout_of(number / kinds, config.ndim);
            joins_of(r, mesh, &config, number % 2);
        }
    }
}

static void joins(tshi_rank *r, void *arg) {
    tshi_test_each_mesh(r, joins_on, arg);
}

Test(whole, joins_the_parts_at_any_layout, .timeout = 600) {
    cr_assert_str_empty(tshi_test_run_each(1, 6, joins, NULL));
    cr_assert_str_empty(tshi_test_run(8, joins, NULL));
}

/* What one rank may do wrong: its part is [2,4], that of rank 0 [3,4]. */
static const struct {
    const char *name;
    int rank;
    tsh_tensor_config local;
    tsh_layout layout;
    int64_t shape[2]; /* 0: summed */
    tsh_status status;
    const char *words;
} mistakes[] = {
    {"a part too long",
     2,
     {.dtype = TSH_FLOAT32, .ndim = 2, .shape = {4, 4}},
     TSH_SHARD_INIT(0),
     {0},
     TSH_ERR_SHAPE,
     "rank 1 has float32 [2,4] world=SHARD(0), its part of [9,4], the sum of all parts, is [3,4]"},
    {"a part too long of what is given",
     2,
     {.dtype = TSH_FLOAT32, .ndim = 2, .shape = {4, 4}},
     TSH_SHARD_INIT(0),
     {7, 4},
     TSH_ERR_SHAPE,
     "rank 2 has float32 [4,4] of [7,4] world=SHARD(0), its part of [7,4] is [2,4]"},
    {"another dim",
     1,
     {.dtype = TSH_FLOAT32, .ndim = 2, .shape = {2, 5}},
     TSH_SHARD_INIT(0),
     {0},
     TSH_ERR_SHAPE,
     "rank 1 has float32 [2,5] world=SHARD(0), its part of [7,4], the sum of all parts, is [2,4]"},
    {"another dtype",
     1,
     {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {2, 4}},
     TSH_SHARD_INIT(0),
     {0},
     TSH_ERR_DTYPE,
     "rank 0 has float32 [3,4] world=SHARD(0), rank 1 has float64 [2,4]"},
    {"fewer dims",
     2,
     {.dtype = TSH_FLOAT32, .ndim = 1, .shape = {2}},
     TSH_SHARD_INIT(0),
     {0},
     TSH_ERR_SHAPE,
     "rank 2 has float32 [2] world"},
    {"another layout",
     2,
     {.dtype = TSH_FLOAT32, .ndim = 2, .shape = {2, 4}},
     TSH_SHARD_INIT(1),
     {0},
     TSH_ERR_SHAPE,
     "world=SHARD(1)"},
    {"another whole",
     2,
     {.dtype = TSH_FLOAT32, .ndim = 2, .shape = {2, 4}},
     TSH_SHARD_INIT(0),
     {8, 4},
     TSH_ERR_SHAPE,
     "[2,4] of [8,4]"},
    {"no layout",
     2,
     {.dtype = TSH_FLOAT32, .ndim = 2, .shape = {2, 4}},
     TSH_SHARD_INIT(5),
     {0},
     TSH_ERR_PEER,
     "SHARD(5)"},
    {"another layout",
     1,
     {.dtype = TSH_FLOAT32, .ndim = 2, .shape = {2, 4}},
     TSH_LOCAL_INIT,
     {0},
     TSH_ERR_SHAPE,
     "world=LOCAL"},
    {"parts of the next dim",
     2,
     {.dtype = TSH_FLOAT32, .ndim = 2, .shape = {2, 4}},
     {.kind = TSH_KIND_SHARD, .sharing = TSH_SHARED_NEXT},
     {0},
     TSH_ERR_PEER,
     "the global shape is wanted"},
    {"a negative size",
     1,
     {.dtype = TSH_FLOAT32, .ndim = 2, .shape = {2, 4}},
     TSH_SHARD_INIT(0),
     {-7, 4},
     TSH_ERR_PEER,
     "-7"},
};

static void mistaken(tshi_rank *r, void *arg) {
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    (void)arg;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        bool mine = r->rank == mistakes[i].rank;
        tsh_tensor_config config = {TSH_FLOAT32, 2, {r->rank ? 2 : 3, 4}, {TSH_LOCAL}};
        tsh_layout layout = mine ? mistakes[i].layout : TSH_SHARD(0);
        bool given = mistakes[i].shape[0] && (mine || mistakes[i].shape[0] == 7);
        tsh_tensor *local = NULL, *global = NULL;
        if (mine) config = mistakes[i].local;
        config.layout[0] = TSH_LOCAL;
        tshi_check_ok(r, tsh_tensor_create(mesh, &config, &local));
        tsh_status status = tsh_from_local(local, &layout, given ? mistakes[i].shape : NULL, &global);
        bool own = mine && mistakes[i].status == TSH_ERR_PEER; /* an error of the rank itself */
        tshi_check(r, own ? status != TSH_OK && status != TSH_ERR_PEER : status == mistakes[i].status, "%s: %s",
                   mistakes[i].name, tsh_status_name(status));
        tshi_check(r, strstr(tsh_error_message(), mistakes[i].words), "%s: \"%s\"", mistakes[i].name,
                   tsh_error_message());
        tshi_check(r, !global, "%s: there is a tensor", mistakes[i].name);
        tsh_tensor_release(local);
    }
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
}

Test(whole, a_wrong_part_is_an_error_on_every_rank, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(3, mistaken, NULL));
}

/* Along an axis that stays LOCAL the ranks' wholes differ in size. */
static void wholes_of_their_own(tshi_rank *r, void *arg) {
    const tsh_layout layouts[] = {TSH_LOCAL, TSH_SHARD(0)};
    tsh_mesh *mesh = NULL;
    tsh_tensor *part = NULL, *joined = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=2,model=2", &mesh));
    int64_t rows = r->rank / 2 ? 5 : 2, whole[] = {2 * rows, 3};
    for (int given = 0; given < 2; given++) {
        tsh_tensor_config config = {TSH_FLOAT32, 2, {rows, 3}, {TSH_LOCAL, TSH_LOCAL}};
        tshi_check_ok(r, tsh_tensor_create(mesh, &config, &part));
        tshi_check_ok(r, tsh_from_local(part, layouts, given ? whole : NULL, &joined));
        tshi_check(
            r, joined && tsh_tensor_shape(joined)[0] == 2 * rows && tsh_tensor_data(joined) == tsh_tensor_data(part),
            "%s", tsh_error_message());
        tsh_tensor_release(joined);
        tsh_tensor_release(part);
    }
    whole[0] += r->rank / 2;
    tshi_check_ok(
        r, tsh_tensor_create(mesh, &(tsh_tensor_config){TSH_FLOAT32, 2, {rows, 3}, {TSH_LOCAL, TSH_LOCAL}}, &part));
    tshi_check_status(r, tsh_from_local(part, layouts, whole, &joined), TSH_ERR_SHAPE, "rank 2 has");
    tsh_tensor_release(part);
    tsh_mesh_destroy(mesh);
}

Test(whole, parts_of_a_local_axis) {
    cr_assert_str_empty(tshi_test_run(4, wholes_of_their_own, NULL));
}
