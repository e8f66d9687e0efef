/* Groups inside groups, by color, many alive at once; collectives on lists, against known answers. */
#include "support/collectives.h"
#include "tensor/tensor.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(nested, .timeout = 120);

static tsh_tensor *numbers(tshi_rank *r, int n, int first) {
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, n);
    for (int i = 0; x && i < n; i++) ((int64_t *)tshi_data(x))[i] = first + i;
    return x;
}

static void expect(tshi_rank *r, const tsh_tensor *x, int n, const int64_t *wanted) {
    const int64_t *data = tshi_data(x);
    for (int i = 0; i < n; i++) {
        tshi_check(r, data[i] == wanted[i], "element %d is %lld, not %lld", i, (long long)data[i],
                   (long long)wanted[i]);
    }
}

/* A group of the odd ranks in descending order, and within it a group of its last two. */
static void inside(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *odd = NULL, *pair = NULL;
    bool member = r->rank % 2 == 1;
    tshi_check_ok(r, tsh_group_create(r->world, (int[]){5, 3, 1}, 3, &odd));
    tshi_check(r, (odd != NULL) == member, "membership");
    if (odd) {
        tshi_check(r, tsh_group_rank_of(odd, 3) == 1 && tsh_group_rank_of(odd, 2) == -1, "rank_of");
        tshi_check_ok(r, tsh_group_create_in(odd, (int[]){2, 1}, 2, &pair));
        tshi_check(r, (pair != NULL) == (r->rank != 5), "membership of the pair");
        tshi_try_all(r, odd, TSH_FLOAT32, 1500);
    }
    if (pair) {
        tshi_check(r, tsh_group_world_rank(pair, 0) == 1 && tsh_group_world_rank(pair, 1) == 3, "ranks");
        tshi_check(r, tsh_group_rank(pair) == (r->rank == 3), "rank %d", tsh_group_rank(pair));
        tshi_try_all(r, pair, TSH_INT32, 77);
    }
    tsh_group_destroy(pair);
    if (odd) {
        /* Arguments that are wrong on one rank, or differ on two; the parent stays usable. */
        tsh_status status = tsh_group_create_in(odd, (int[]){0, r->rank == 1 ? 3 : 1}, 2, &pair);
        tshi_check_status(r, status, r->rank == 1 ? TSH_ERR_RANGE : TSH_ERR_PEER, "rank 3 in a group of 3");
        status = tsh_group_create_in(odd, (int[]){0, r->rank == 1 ? 1 : 2}, 2, &pair);
        tshi_check_status(r, status, TSH_ERR_MISMATCH, "group_create_in 0,2");
        status = r->rank == 1 ? tsh_group_split(odd, 0, 0, &pair) : tsh_group_create_in(odd, (int[]){0, 2}, 2, &pair);
        tshi_check_status(r, status, TSH_ERR_MISMATCH, "group_split");
        tshi_check(r, !pair, "out is not NULL after an error");
        tshi_check_status(r, tsh_group_create_in(odd, (int[]){1, 1}, 2, &pair), TSH_ERR_ARGUMENT, "twice");
        tshi_try_all_reduce(r, odd, TSH_FLOAT32, TSH_REDUCE_SUM, 10);
    }
    tsh_group_destroy(odd);
}

Test(nested, groups_in_groups) {
    cr_assert_str_empty(tshi_test_run(6, inside, NULL));
}

/* Colors 0, 1 and none; keys reverse the order. */
static void split(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = NULL, *again = NULL;
    int color = r->rank == 4 ? -1 : r->rank % 2;
    tshi_check_ok(r, tsh_group_split(tsh_world_group(r->world), color, -r->rank, &group));
    tshi_check(r, (group != NULL) == (color >= 0), "membership");
    if (group) {
        tshi_check(r, tsh_group_size(group) == (color ? 3 : 2), "%d ranks", tsh_group_size(group));
        tshi_check(r, tsh_group_world_rank(group, 0) == (color ? 5 : 2), "first %d", tsh_group_world_rank(group, 0));
        tshi_try_all(r, group, TSH_FLOAT64, 300);
        tshi_check_ok(r, tsh_group_split(group, 7, 0, &again));
        tshi_check(r, again && tsh_group_rank(again) == tsh_group_rank(group), "the same order");
        tshi_try_all_reduce(r, again, TSH_INT64, TSH_REDUCE_SUM, 100);
    }
    tsh_group_destroy(again);
    tsh_group_destroy(group);
}

Test(nested, by_colour) {
    cr_assert_str_empty(tshi_test_run(6, split, NULL));
}

static void sub_mesh(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *half = NULL;
    tsh_mesh *mesh = NULL, *deep = NULL;
    tshi_check_ok(r, tsh_group_split(tsh_world_group(r->world), r->rank / 4, 0, &half));
    if (r->failed) return;
    tshi_check_ok(r, tsh_mesh_create_in(half, "a=2,b=-1", &mesh));
    if (r->failed) return;
    tsh_group *a = tsh_mesh_group(mesh, "a"), *b = tsh_mesh_group(mesh, "b");
    tshi_check(r, tsh_group_world_rank(a, 1) - tsh_group_world_rank(a, 0) == 2, "stride of a");
    tshi_check(r, tsh_group_world_rank(b, 1) - tsh_group_world_rank(b, 0) == 1, "stride of b");
    tshi_check_ok(r, tsh_mesh_create_in(a, "c=2", &deep));
    tshi_try_all(r, a, TSH_FLOAT32, 90);
    tshi_try_all(r, b, TSH_FLOAT32, 2000);
    if (deep) tshi_try_all(r, tsh_mesh_group(deep, "c"), TSH_FLOAT32, 10);
    tsh_mesh_destroy(deep);
    deep = NULL;
    tshi_check_status(r, tsh_mesh_create_in(half, "a=3", &deep), TSH_ERR_ARGUMENT, "the group has 4");
    tsh_mesh_destroy(mesh);
    tsh_group_destroy(half);
}

Test(nested, meshes_in_groups) {
    cr_assert_str_empty(tshi_test_run(8, sub_mesh, NULL));
}

#define ALIVE 60

static void many_alive(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *groups[ALIVE];
    for (int i = 0; i < ALIVE; i++) {
        int ranks[] = {i % 3, (i + 1) % 3};
        tshi_check_ok(r, tsh_group_create(r->world, ranks, 2, &groups[i]));
    }
    for (int i = ALIVE - 1; i >= 0 && !r->failed; i--) {
        if (groups[i]) tshi_try_all_reduce(r, groups[i], TSH_INT64, TSH_REDUCE_SUM, 10 * i);
    }
    for (int i = 0; i < ALIVE; i++) tsh_group_destroy(groups[i * 7 % ALIVE]);
}

Test(nested, many_groups_alive) {
    cr_assert_str_empty(tshi_test_run(3, many_alive, NULL));
}

/* --- known answers ------------------------------------------------------------------------------------------------ */

static void four_ranks(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    int me = r->rank;
    tsh_tensor *ins[4], *outs[4], *x = numbers(r, 4, 0);
    for (int i = 0; i < 4; i++) ins[i] = numbers(r, 4, 1 + me + i);
    tshi_check_ok(r, tsh_reduce_scatter_list(group, (const tsh_tensor *const *)ins, x, TSH_REDUCE_SUM));
    expect(r, x, 4, (int64_t[]){4 * (1 + me) + 6, 4 * (2 + me) + 6, 4 * (3 + me) + 6, 4 * (4 + me) + 6});
    for (int i = 0; i < 4; i++) tsh_tensor_release(ins[i]);

    for (int i = 0; i < 4; i++) ins[i] = numbers(r, 2, 2 * i + 8 * me);
    for (int i = 0; i < 4; i++) outs[i] = numbers(r, 2, 99);
    tshi_check_ok(r, tsh_all_to_all_list(group, (const tsh_tensor *const *)ins, outs));
    for (int i = 0; i < 4; i++) expect(r, outs[i], 2, (int64_t[]){2 * me + 8 * i, 1 + 2 * me + 8 * i});
    tshi_check_ok(r, tsh_all_gather_list(group, ins[0], outs));
    for (int i = 0; i < 4; i++) expect(r, outs[i], 2, (int64_t[]){8 * i, 8 * i + 1});
    /* A list that lacks a tensor on one rank. */
    tsh_tensor *kept = outs[2];
    if (me == 1) outs[2] = NULL;
    tsh_status status = tsh_all_gather_list(group, ins[0], outs);
    tshi_check_status(r, status, me == 1 ? TSH_ERR_ARGUMENT : TSH_ERR_PEER, "all_gather: outs is NULL");
    tsh_work *work = NULL;
    status = tsh_all_gather_list_async(group, ins[0], outs, &work);
    if (status == TSH_OK) status = tsh_work_wait(work);
    tshi_check_status(r, status, me == 1 ? TSH_ERR_ARGUMENT : TSH_ERR_PEER, "all_gather: outs is NULL");
    tsh_work_release(work);
    outs[2] = kept;
    /* The caller may free its lists and release its tensors while the call is under way: the work holds its own. */
    tsh_tensor *fresh[4], *lost[4];
    for (int i = 0; i < 4; i++) lost[i] = tsh_tensor_retain(fresh[i] = numbers(r, 2, 99));
    tshi_check_ok(r, tsh_all_gather_list_async(group, ins[1], lost, &work));
    for (int i = 0; i < 4; i++) tsh_tensor_release(lost[i]);
    memset(lost, 0, sizeof lost);
    tshi_check_ok(r, tsh_work_wait(work));
    tsh_work_release(work);
    for (int i = 0; i < 4; i++) {
        expect(r, fresh[i], 2, (int64_t[]){2 + 8 * i, 3 + 8 * i});
        tsh_tensor_release(fresh[i]);
    }

    tsh_tensor *whole = NULL;
    if (me == 1) {
        whole = numbers(r, 16, 0);
        for (int i = 0; i < 16; i++) ((int64_t *)tshi_data(whole))[i] = 5 + i % 4 + i / 4;
    }
    tshi_check_ok(r, tsh_scatter_from_root(group, whole, x, NULL, 1));
    expect(r, x, 4, (int64_t[]){5 + me, 6 + me, 7 + me, 8 + me});
    /* The root has nothing to scatter. */
    status = tsh_scatter_from_root(group, NULL, x, NULL, 1);
    tshi_check_status(r, status, me == 1 ? TSH_ERR_ARGUMENT : TSH_ERR_PEER, "scatter: in is NULL");
    for (int i = 0; i < 4; i++) tsh_tensor_release(ins[i]);
    for (int i = 0; i < 4; i++) tsh_tensor_release(outs[i]);
    tsh_tensor_release(whole);
    tsh_tensor_release(x);
}

static void uneven_all_to_all(tshi_rank *r, void *arg) {
    (void)arg;
    static const int64_t first[] = {0, 10, 20, 30};
    static const int64_t sends[4][4] = {{2, 2, 1, 1}, {3, 2, 2, 2}, {2, 1, 1, 1}, {2, 2, 2, 1}};
    static const int64_t answers[4][9] = {
        {0, 1, 10, 11, 12, 20, 21, 30, 31}, {2, 3, 13, 14, 22, 32, 33}, {4, 15, 16, 23, 34, 35}, {5, 17, 18, 24, 36}};
    static const int sizes[] = {9, 7, 6, 5}, lengths[] = {6, 9, 5, 7};
    int64_t takes[4];
    for (int i = 0; i < 4; i++) takes[i] = sends[i][r->rank];
    tsh_tensor *in = numbers(r, lengths[r->rank], (int)first[r->rank]), *out = numbers(r, sizes[r->rank], 0);
    tshi_check_ok(r, tsh_all_to_all(tsh_world_group(r->world), in, sends[r->rank], out, takes));
    expect(r, out, sizes[r->rank], answers[r->rank]);
    tsh_tensor_release(in);
    tsh_tensor_release(out);
}

static void reduce_to_first(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tensor *x = numbers(r, 4, r->rank ? 4 : 1);
    tshi_check_ok(r, tsh_reduce_to_root(tsh_world_group(r->world), x, TSH_REDUCE_SUM, 0));
    expect(r, x, 4, r->rank ? (int64_t[]){4, 5, 6, 7} : (int64_t[]){5, 7, 9, 11});
    tsh_tensor_release(x);
}

Test(nested, known_answers) {
    cr_assert_str_empty(tshi_test_run(4, four_ranks, NULL));
    cr_assert_str_empty(tshi_test_run(4, uneven_all_to_all, NULL));
    cr_assert_str_empty(tshi_test_run(2, reduce_to_first, NULL));
}

/* --- SIGUSR1 ------------------------------------------------------------------------------------------------------ */

static void remember(void *user, tsh_log_level level, const char *line) {
    (void)level;
    if (strstr(line, "last calls")) strncpy(user, line, 255);
}

static void asked(tshi_rank *r, void *arg) {
    (void)arg;
    char line[256] = "";
    setenv("TSHARD_SIGUSR1", "1", 1);
    const tsh_world_config config = {.log = {remember, line}};
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 12);
    tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
    if (r->rank) usleep(300000);
    if (!r->rank) raise(SIGUSR1);
    tshi_check_ok(r, tsh_barrier(group));
    if (!r->rank) tshi_check(r, strstr(line, "all_reduce float32 [12]") != NULL, "the log says \"%s\"", line);
    tsh_tensor_release(x);
    tsh_world_destroy(r->world);
    r->world = NULL;
}

Test(nested, sigusr1_asks_for_the_last_calls) {
    tshi_test_options options = {.ranks = 2, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, asked, NULL, NULL, NULL));
}
