/* Scenarios that succeed. */
#include "support/collectives.h"
#include "dist/tagged/ranks.h"
#include "support/exchanges.h"
#include "tshard/tshard.h"

#include "dist/tagged/tagged.h"

#include <stdlib.h>
#include <string.h>

static void all_dtypes(tshi_rank *r, tsh_group *group, const int64_t *sizes, int n) {
    for (int started = 0; started < 2; started++) {
        tshi_try_started(started);
        for (int dtype = 0; dtype < TSH_DTYPE_COUNT; dtype++) {
            for (int i = 0; i < n && !r->failed; i++) tshi_try_all(r, group, (tsh_dtype)dtype, sizes[i]);
        }
    }
    tshi_try_started(false);
}

void scenario_matrix(tshi_rank *r) {
    const int64_t sizes[] = {0, 1, 5, 12, 333, 4099};
    all_dtypes(r, tsh_world_group(r->world), sizes, 6);
}

void scenario_short(tshi_rank *r) {
    const tsh_dtype dtypes[] = {TSH_FLOAT32, TSH_BFLOAT16, TSH_INT64};
    for (int i = 0; i < 12 && !r->failed; i++) {
        tshi_try_started(i % 2);
        tshi_try_all(r, tsh_world_group(r->world), dtypes[i / 4], i / 2 % 2 ? 5 : 3333);
    }
    tshi_try_started(false);
}

/* A rank whose count differs: all members have the error, with both sides, and the group works afterwards. */
static void mismatch(tshi_rank *r, tsh_group *group) {
    tsh_tensor *t = tshi_test_vector(r, TSH_FLOAT32, r->rank == r->size - 1 ? 50000 : 50001);
    tsh_status status = tsh_all_reduce(group, t, TSH_REDUCE_SUM);
    const char *words = tsh_error_message();
    tshi_check(r, status == TSH_ERR_MISMATCH, "status %d: %s", (int)status, words);
    tshi_check(r, strstr(words, "all_reduce float32 [50000]") && strstr(words, "all_reduce float32 [50001]"), "%s",
               words);
    tsh_tensor_release(t);
    t = tshi_test_vector(r, TSH_FLOAT32, 50000);
    status = tsh_broadcast(group, t, r->rank == 1 ? 99 : 0);
    tshi_check(r, status == (r->rank == 1 ? TSH_ERR_RANGE : TSH_ERR_PEER), "broadcast: status %d: %s", (int)status,
               tsh_error_message());
    tsh_tensor_release(t);
}

void scenario_levels(tshi_rank *r) {
    tsh_group *group = tsh_world_group(r->world);
    int machines = tsh_world_node_count(r->world);
    bool even = machines > 1 && r->size % machines == 0 && r->size / machines > 1;
    tshi_check(r, (group->far != NULL) == even, "%d ranks on %d machines: two levels: %d", r->size, machines,
               group->far != NULL);
    for (int dtype = 0; dtype < TSH_DTYPE_COUNT; dtype++) tshi_try_all(r, group, (tsh_dtype)dtype, 140001);
    mismatch(r, group);
    tshi_try_all(r, group, TSH_FLOAT32, 8192);
    if (r->rank == 0) tsh_world_fail(r->world, "rank 0 has had enough");
    tsh_tensor *t = tshi_test_vector(r, TSH_FLOAT32, 50000);
    tsh_status status = tsh_all_reduce(group, t, TSH_REDUCE_SUM);
    tshi_check(r, status == TSH_ERR_PEER || r->rank == 0, "status %d", (int)status);
    tsh_tensor_release(t);
    if (tshi_check_ok(r, tsh_world_recover(r->world))) tshi_try_all(r, group, TSH_FLOAT32, 50000);
}

void scenario_chunks(tshi_rank *r) {
    const int64_t sizes[] = {1, 12, 50};
    if (r->size > 1) tshi_tagged_of(r->world)->longest = 7;
    all_dtypes(r, tsh_world_group(r->world), sizes, 3);
    tshi_try_started(true);
    tshi_try_all(r, tsh_world_group(r->world), TSH_FLOAT32, 1500); /* more steps of an exchange than are under way */
    tshi_try_started(false);
}

/* --- known answers ------------------------------------------------------------------------------------------------ */

static tsh_tensor *with(tshi_rank *r, int64_t n, const float *values) {
    tsh_tensor *t = tshi_test_vector(r, TSH_FLOAT32, n);
    if (t) memcpy(tsh_tensor_data(t), values, (size_t)n * sizeof *values);
    return t;
}

static void expect(tshi_rank *r, const char *what, tsh_tensor *t, const float *wanted) {
    const float *got = t ? tsh_tensor_data(t) : NULL;
    for (int64_t i = 0; got && i < tsh_tensor_local_numel(t); i++) {
        tshi_check(r, got[i] == wanted[i], "%s: element %lld is %g, not %g", what, (long long)i, (double)got[i],
                   (double)wanted[i]);
    }
    tsh_tensor_release(t);
}

static void cases_of_two(tshi_rank *r, tsh_group *group) {
    float f = (float)r->rank;
    tsh_tensor *t = with(r, 4, (float[]){1 + f, 2 + f, 3 + f, 4 + f});
    tshi_check_ok(r, tsh_all_reduce(group, t, TSH_REDUCE_SUM));
    expect(r, "all_reduce", t, (float[]){3, 5, 7, 9});
    t = with(r, 4, r->rank ? (float[]){4, 5, 6, 7} : (float[]){1, 2, 3, 4});
    tshi_check_ok(r, tsh_reduce_to_root(group, t, TSH_REDUCE_SUM, 0));
    expect(r, "reduce", t, r->rank ? (float[]){4, 5, 6, 7} : (float[]){5, 7, 9, 11});
    float values[12], twice[12];
    for (int i = 0; i < 12; i++) twice[i] = 2 * (values[i] = (float)(i + 1));
    tsh_tensor *in = with(r, 6, values + 6 * r->rank), *out = tshi_test_vector(r, TSH_FLOAT32, 12);
    tshi_check_ok(r, tsh_all_gather_into_tensor(group, in, out, NULL));
    expect(r, "all_gather", out, values);
    tsh_tensor_release(in);
    in = with(r, 12, values);
    out = tshi_test_vector(r, TSH_FLOAT32, 6);
    tshi_check_ok(r, tsh_reduce_scatter_tensor(group, in, out, NULL, TSH_REDUCE_SUM));
    expect(r, "reduce_scatter", out, twice + 6 * r->rank);
    tsh_tensor_release(in);
    tshi_try_all(r, group, TSH_FLOAT32, 100003); /* several blocks of a sum */
}

static void cases_of_four(tshi_rank *r, tsh_group *group) {
    static const int64_t splits[4][4] = {{2, 2, 1, 1}, {3, 2, 2, 2}, {2, 1, 1, 1}, {2, 2, 2, 1}};
    static const float firsts[4] = {0, 10, 20, 30};
    static const float wanted[4][9] = {{0, 1, 10, 11, 12, 20, 21, 30, 31},
                                       {2, 3, 13, 14, 22, 32, 33, 0, 0},
                                       {4, 15, 16, 23, 34, 35, 0, 0, 0},
                                       {5, 17, 18, 24, 36, 0, 0, 0, 0}};
    float values[9], f = (float)r->rank;
    int64_t outs[4], n = 0, m = 0;
    for (int i = 0; i < 4; i++) {
        n += splits[r->rank][i];
        m += outs[i] = splits[i][r->rank];
    }
    for (int i = 0; i < n; i++) values[i] = firsts[r->rank] + (float)i;
    tsh_tensor *in = with(r, n, values), *out = tshi_test_vector(r, TSH_FLOAT32, m);
    tshi_check_ok(r, tsh_all_to_all(group, in, splits[r->rank], out, outs));
    expect(r, "all_to_all", out, wanted[r->rank]);
    tsh_tensor_release(in);
    float list[16];
    for (int i = 0; i < 16; i++) list[i] = (float)(5 + i % 4 + i / 4);
    in = r->rank == 1 ? with(r, 16, list) : NULL;
    out = tshi_test_vector(r, TSH_FLOAT32, 4);
    tshi_check_ok(r, tsh_scatter_from_root(group, in, out, NULL, 1));
    expect(r, "scatter", out, (float[]){5 + f, 6 + f, 7 + f, 8 + f});
    tsh_tensor_release(in);
    for (int i = 0; i < 16; i++) list[i] = (float)(1 + i % 4 + i / 4 + r->rank);
    in = with(r, 16, list);
    out = tshi_test_vector(r, TSH_FLOAT32, 4);
    tshi_check_ok(r, tsh_reduce_scatter_tensor(group, in, out, NULL, TSH_REDUCE_SUM));
    expect(r, "reduce_scatter of four", out,
           (float[]){4 * (1 + f) + 6, 4 * (2 + f) + 6, 4 * (3 + f) + 6, 4 * (4 + f) + 6});
    tsh_tensor_release(in);
}

/* Items are maps x -> a x + b, one after the other; they do not commute. */
static void compose(void *user, tsh_dtype dtype, int64_t count, const void *from, void *into) {
    const float *after = from;
    float *map = into;
    (void)user, (void)dtype;
    for (int64_t i = 0; i < count; i += 2) {
        map[i + 1] = after[i] * map[i + 1] + after[i + 1];
        map[i] *= after[i];
    }
}

static void own_reduction(tshi_rank *r, tsh_group *group) {
    float f = (float)r->rank, a = 1, b = 0;
    tsh_tensor *t = with(r, 6, (float[]){2, f, 2, f, 2, f});
    for (int i = 0; i < r->size; i++) {
        a *= 2;
        b = 2 * b + (float)i;
    }
    tshi_check_ok(r, tsh_all_reduce_with(group, t, 2, compose, NULL));
    expect(r, "all_reduce_with", t, (float[]){a, b, a, b, a, b});
}

void scenario_cases(tshi_rank *r) {
    tsh_group *group = tsh_world_group(r->world);
    own_reduction(r, group);
    float ones[8], all[64];
    for (int i = 0; i < 8; i++) ones[i] = (float)r->rank;
    for (int i = 0; i < 8 * r->size; i++) all[i] = (float)(i / 8);
    tsh_tensor *in = with(r, 8, ones), *out = tshi_test_vector(r, TSH_FLOAT32, 8 * r->size);
    tshi_check_ok(r, tsh_all_gather_into_tensor(group, in, out, NULL));
    expect(r, "gather", out, all);
    tsh_tensor_release(in);
    if (r->size == 2) cases_of_two(r, group);
    if (r->size == 4) cases_of_four(r, group);
}

/* --- large -------------------------------------------------------------------------------------------------------- */

/* Bytes past 2^31 of them: a sum, and parts of which the last begins behind that. By hand, for it takes 8 GiB and
 * minutes: TSHARD_INIT=mpi:// TSHARD_HEAP=6G mpirun -n 2 BUILD/tests/tagged/ranks large */
void scenario_large(tshi_rank *r) {
    const int64_t n = ((int64_t)1 << 31) + 12345;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_UINT8, n);
    if (!x) return;
    unsigned char *bytes = tsh_tensor_data(x);
    for (int64_t i = 0; i < n; i++) bytes[i] = (unsigned char)(i % 7 + r->rank);
    tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++) wrong += bytes[i] != i % 7 * r->size + r->size * (r->size - 1) / 2;
    tshi_check(r, wrong == 0, "all_reduce: %lld wrong elements", (long long)wrong);
    int64_t counts[64] = {n - 1000 * (r->size - 1)}, start = 0;
    for (int i = 1; i < r->size; i++) counts[i] = 1000;
    for (int i = 0; i < r->rank; i++) start += counts[i];
    memset(bytes, 0, (size_t)n);
    memset(bytes + start, r->rank + 1, (size_t)counts[r->rank]);
    tsh_tensor *part = tshi_test_vector(r, TSH_UINT8, counts[r->rank]);
    if (part) {
        memset(tsh_tensor_data(part), r->rank + 1, (size_t)counts[r->rank]);
        tshi_check_ok(r, tsh_all_gather_into_tensor(group, part, x, counts));
        for (int64_t i = 0; i < n; i++) {
            int64_t owner = i < counts[0] ? 0 : 1 + (i - counts[0]) / 1000;
            wrong += bytes[i] != owner + 1;
        }
        tshi_check(r, wrong == 0, "all_gather: %lld wrong elements", (long long)wrong);
    }
    tsh_tensor_release(part);
    tsh_tensor_release(x);
}

/* --- groups ------------------------------------------------------------------------------------------------------- */

/* Creating groups does not disturb calls that are under way in another group. */
static void groups_behind_a_call(tshi_rank *r, const int *ranks) {
    enum { N = 70000 };
    tsh_group *group = NULL, *half = NULL;
    tsh_work *work = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_INT32, N);
    for (int i = 0; i < N; i++) ((int32_t *)tsh_tensor_data(x))[i] = i + r->rank;
    tshi_check_ok(r, tsh_all_reduce_async(tsh_world_group(r->world), x, TSH_REDUCE_SUM, &work));
    tshi_check_ok(r, tsh_group_create(r->world, ranks, r->size, &group));
    tshi_check_ok(r, tsh_group_split(tsh_world_group(r->world), r->rank % 2, 0, &half));
    if (work) tshi_check_ok(r, tsh_work_wait(work));
    for (int i = 0, p = r->size; i < N; i++) {
        int32_t sum = ((int32_t *)tsh_tensor_data(x))[i];
        tshi_check(r, sum == p * i + p * (p - 1) / 2, "element %d is %d", i, (int)sum);
    }
    tsh_work_release(work);
    tsh_tensor_release(x);
    tsh_group_destroy(half);
    tsh_group_destroy(group);
}

/* A group takes memory for the size of its calls: none for a small one, a window of short blocks for a longer one. */
static void takes_little(tshi_rank *r, tsh_group *group) {
    enum { SMALL = 64, N = 1000, BLOCKS = 64 };
    const tshi_schedule *call = &tshi_tagged_group_of(group)->call;
    tsh_work *work = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, SMALL), *y = tshi_test_vector(r, TSH_FLOAT32, N);
    tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
    tshi_check(r, call->fold_room == 0, "a small call takes %zu bytes", call->fold_room);
    tshi_check_ok(r, tsh_all_reduce_async(group, y, TSH_REDUCE_SUM, &work));
    tsh_work_release(work);
    tshi_check(r, call->fold_room <= BLOCKS * N * sizeof(float), "%d elements take %zu bytes", N, call->fold_room);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

void scenario_groups(tshi_rank *r) {
    tsh_mesh *mesh = NULL, *inner = NULL;
    tsh_group *turned = NULL, *half = NULL, *nested = NULL, *many[20] = {NULL};
    int ranks[64];
    for (int i = 0; i < r->size; i++) ranks[i] = r->size - 1 - i;
    tshi_check_ok(r, tsh_group_create(r->world, ranks, r->size, &turned));
    tshi_check_ok(r, tsh_group_split(tsh_world_group(r->world), r->rank % 2, -r->rank, &half));
    if (r->size > 1 && !r->failed) takes_little(r, turned);
    groups_behind_a_call(r, ranks);
    if (r->failed) return;
    tshi_check(r, tsh_group_rank(turned) == r->size - 1 - r->rank, "rank %d when turned", tsh_group_rank(turned));
    tshi_try_all(r, turned, TSH_FLOAT32, 23);
    tshi_try_all(r, half, TSH_INT64, 23);
    int last[] = {tsh_group_size(half) - 1, 0};
    tshi_check_ok(r, tsh_group_create_in(half, last, tsh_group_size(half) > 1 ? 2 : 1, &nested));
    if (nested) tshi_try_all(r, nested, TSH_FLOAT64, 9);
    tshi_check_ok(r, tsh_mesh_create(r->world, r->size % 2 ? "a=1,b=-1" : "a=2,b=-1", &mesh));
    if (!mesh) return;
    tshi_try_all(r, tsh_mesh_group(mesh, "a"), TSH_FLOAT32, 31);
    tshi_try_all(r, tsh_mesh_group(mesh, "b"), TSH_BFLOAT16, 31);
    tshi_check_ok(r, tsh_mesh_create_in(tsh_mesh_group(mesh, "b"), "c=-1,d=1", &inner));
    if (inner) tshi_try_all(r, tsh_mesh_group(inner, "c"), TSH_FLOAT32, 31);
    for (int i = 0; i < 20; i++) tshi_check_ok(r, tsh_group_create(r->world, ranks, r->size, &many[i]));
    for (int i = 19; i >= 0 && !r->failed; i--) tshi_try_all_reduce(r, many[i], TSH_FLOAT32, TSH_REDUCE_SUM, 100);
    for (int i = 0; i < 20; i++) tsh_group_destroy(many[i]);
    tsh_mesh_destroy(inner);
    tsh_mesh_destroy(mesh);
    tsh_group_destroy(nested);
    tsh_group_destroy(half);
    tsh_group_destroy(turned);
}

/* --- groups of two ------------------------------------------------------------------------------------------------ */

enum { PAIRS = 3 };

/* This rank's calls under way in a group of two. */
typedef struct flight {
    tsh_group *group;
    int which;
    tsh_tensor *mine, *both, *sum, *part;
    tsh_work *gathered, *summed, *scattered;
} flight;

static int32_t element(const flight *f, int member, int64_t i) {
    return (int32_t)(1000 * tsh_group_world_rank(f->group, member) + 100 * f->which + i % 97);
}

static tsh_tensor *elements(tshi_rank *r, const flight *f, int64_t n) {
    tsh_tensor *t = tshi_test_vector(r, TSH_INT32, n);
    int rank = tsh_group_rank(f->group);
    for (int64_t i = 0; t && i < n; i++) ((int32_t *)tsh_tensor_data(t))[i] = element(f, rank, i);
    return t;
}

/* Three calls in order: parts of which one is empty, a sum, and halves of the first call's result. */
static void take_off(tshi_rank *r, flight *f, int64_t n, int root) {
    int rank = tsh_group_rank(f->group);
    const int64_t all_of_root[] = {root ? 0 : n, root ? n : 0};
    f->mine = elements(r, f, rank == root ? n : 0);
    f->both = tshi_test_vector(r, TSH_INT32, n);
    f->sum = elements(r, f, n);
    f->part = tshi_test_vector(r, TSH_INT32, n / 2);
    if (r->failed) return;
    tshi_check_ok(r, tsh_all_gather_into_tensor_async(f->group, f->mine, f->both, all_of_root, &f->gathered));
    tshi_check_ok(r, tsh_reduce_to_root_async(f->group, f->sum, TSH_REDUCE_SUM, root, &f->summed));
    tsh_tensor *whole = rank == root ? f->both : NULL;
    tshi_check_ok(r, tsh_scatter_from_root_async(f->group, whole, f->part, NULL, root, &f->scattered));
}

/* Some works are waited for in reverse order, the rest only released. */
static void land(tshi_rank *r, flight *f, int64_t n, int root) {
    int rank = tsh_group_rank(f->group);
    if (!r->failed) tshi_check_ok(r, tsh_work_wait(f->scattered));
    tsh_work_release(f->scattered);
    tsh_work_release(f->summed);
    tsh_work_release(f->gathered);
    for (int64_t i = 0; i < n && !r->failed; i++) {
        int32_t both = ((int32_t *)tsh_tensor_data(f->both))[i], sum = ((int32_t *)tsh_tensor_data(f->sum))[i];
        int32_t wanted = element(f, rank, i) + (rank == root ? element(f, !rank, i) : 0);
        tshi_check(r, both == element(f, root, i), "gathered: element %lld is %d", (long long)i, both);
        tshi_check(r, sum == wanted, "reduced: element %lld is %d, not %d", (long long)i, sum, wanted);
    }
    for (int64_t i = 0; i < n / 2 && !r->failed; i++) {
        int32_t part = ((int32_t *)tsh_tensor_data(f->part))[i];
        tshi_check(r, part == element(f, root, rank * (n / 2) + i), "scattered: element %lld is %d", (long long)i,
                   part);
    }
    tsh_tensor_release(f->mine);
    tsh_tensor_release(f->both);
    tsh_tensor_release(f->sum);
    tsh_tensor_release(f->part);
}

/* Rows and columns of a square of ranks, and the rows once more the other way round: every rank is in three groups of
 * two, whose calls are under way at the same time, and beside them some that wait. */
void scenario_pairs(tshi_rank *r) {
    tsh_mesh *mesh = NULL;
    tsh_group *world = tsh_world_group(r->world), *turned = NULL;
    tshi_check_ok(r, tsh_mesh_create(r->world, "a=2,b=2", &mesh));
    tshi_check_ok(r, tsh_group_split(world, r->rank / 2, -r->rank, &turned));
    if (r->failed) return;
    tsh_group *pairs[PAIRS] = {tsh_mesh_group(mesh, "b"), turned, tsh_mesh_group(mesh, "a")};
    const int64_t sizes[] = {2, 1000, 70002}; /* the last: several blocks of a sum */
    for (int i = 0; i < 6 && !r->failed; i++) {
        flight flights[PAIRS] = {{0}};
        for (int k = 0; k < PAIRS; k++) {
            flights[k].group = pairs[k];
            flights[k].which = k;
            take_off(r, &flights[k], sizes[i / 2], i % 2);
        }
        tshi_try_all_reduce(r, world, TSH_FLOAT32, TSH_REDUCE_SUM, 100);
        tshi_try_reduce_scatter(r, pairs[i % PAIRS], TSH_FLOAT64, TSH_REDUCE_MAX, 101, TSHI_UNEVEN, true);
        for (int k = PAIRS - 1; k >= 0; k--) land(r, &flights[k], sizes[i / 2], i % 2);
    }
    /* One member starts the call, the other makes the blocking call. */
    for (int k = 0; k < PAIRS && !r->failed; k++) {
        tshi_try_started(tsh_group_rank(pairs[k]) == 1);
        tshi_try_all(r, pairs[k], TSH_FLOAT32, 333);
        tshi_try_started(false);
    }
    tsh_mesh_destroy(mesh);
    tsh_group_destroy(turned);
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

enum { MOST_MESSAGES = 12 };

/* A message to the next rank and one from the rank before, in an order of its own on each rank. */
static void ring(tshi_rank *r, tsh_group *group, int64_t n) {
    int p = r->size, next = (r->rank + 1) % p, before = (r->rank + p - 1) % p;
    tsh_tensor *in[MOST_MESSAGES] = {NULL}, *out[MOST_MESSAGES] = {NULL};
    tsh_work *works[2 * MOST_MESSAGES] = {NULL};
    for (int i = 0; i < MOST_MESSAGES && !r->failed; i++) {
        in[i] = tshi_test_vector(r, TSH_INT32, n + i);
        out[i] = tshi_test_vector(r, TSH_INT32, n + i);
        if (r->failed) break;
        for (int64_t k = 0; k < n + i; k++) ((int32_t *)tsh_tensor_data(in[i]))[k] = (int32_t)(1000 * r->rank + i + k);
        if (i % 2) tshi_check_ok(r, tsh_recv_async(group, out[i], before, &works[i]));
        tshi_check_ok(r, tsh_send_async(group, in[i], next, &works[MOST_MESSAGES + i]));
        if (i % 2 == 0) tshi_check_ok(r, tsh_recv_async(group, out[i], before, &works[i]));
    }
    for (int i = 2 * MOST_MESSAGES - 1; i >= 0 && !r->failed; i--) tshi_check_ok(r, tsh_work_wait(works[i]));
    for (int i = 0; i < MOST_MESSAGES && !r->failed; i++) {
        tshi_check(r, tsh_work_sender(works[i]) == before, "sender %d", tsh_work_sender(works[i]));
        for (int64_t k = 0; k < n + i; k++) {
            int32_t got = ((int32_t *)tsh_tensor_data(out[i]))[k];
            tshi_check(r, got == 1000 * before + i + k, "message %d: element %lld is %d", i, (long long)k, got);
        }
    }
    for (int i = 0; i < 2 * MOST_MESSAGES; i++) tsh_work_release(works[i]);
    for (int i = 0; i < MOST_MESSAGES; i++) {
        tsh_tensor_release(in[i]);
        tsh_tensor_release(out[i]);
    }
}

/* Rank 0 receives from any rank; every other rank sends two messages. */
static void any_source(tshi_rank *r, tsh_group *group) {
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT64, 3);
    double *values = tsh_tensor_data(x), last[64] = {0};
    if (r->rank != 0) {
        for (int i = 1; i <= 2; i++) {
            values[0] = values[1] = values[2] = r->rank * 10 + i;
            tshi_check_ok(r, tsh_send(group, x, 0));
        }
    }
    for (int i = 0; r->rank == 0 && i < 2 * (r->size - 1) && !r->failed; i++) {
        int from = -1;
        if (!tshi_check_ok(r, tsh_recv(group, x, TSH_ANY_RANK, &from))) break;
        tshi_check(r, from > 0 && values[2] == from * 10 + ++last[from], "%g from %d", values[2], from);
    }
    tsh_tensor_release(x);
}

static void new_tensor(tshi_rank *r, tsh_group *group) {
    tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 2, .shape = {2, 3}, .layout = {TSH_LOCAL}};
    tsh_tensor *x = NULL;
    int from = -1;
    if (r->rank == r->size - 1) {
        tshi_check_ok(r, tsh_tensor_create(tsh_group_mesh(group), &config, &x));
        if (x) ((int64_t *)tsh_tensor_data(x))[5] = 77;
        tshi_check_ok(r, tsh_send_new(group, x, 0));
    } else if (r->rank == 0) {
        tshi_check_ok(r, tsh_recv_new(group, tsh_group_mesh(group), TSH_ANY_RANK, &from, &x));
        tshi_check(r, x && tsh_tensor_local_numel(x) == 6 && ((int64_t *)tsh_tensor_data(x))[5] == 77,
                   "not what was sent");
    }
    tsh_tensor_release(x);
}

/* A message that does not fit is an error on both sides, and the next message arrives. */
static void unlike(tshi_rank *r, tsh_group *group, int64_t n) {
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, r->rank ? n : n + 1);
    if (r->rank == 0) {
        tshi_check_status(r, tsh_send(group, x, 1), TSH_ERR_MISMATCH, "rank 1: recv float32");
        tshi_check_ok(r, tsh_recv(group, x, 1, NULL));
    } else if (r->rank == 1) {
        tshi_check_status(r, tsh_recv(group, x, 0, NULL), TSH_ERR_MISMATCH, "rank 0: send float32");
        tsh_tensor *y = tshi_test_vector(r, TSH_FLOAT32, n + 1);
        tshi_check_ok(r, tsh_send(group, y, 0));
        tsh_tensor_release(y);
    }
    tsh_tensor_release(x);
}

void scenario_exchanges(tshi_rank *r) {
    for (uint32_t seed = 0; seed < 400 && tshi_try_exchange(r, seed, seed % 2); seed++) continue;
    tshi_check_ok(r, tshi_exchange_flush(r->world));
}

void scenario_messages(tshi_rank *r) {
    tsh_group *group = tsh_world_group(r->world);
    const int64_t sizes[] = {0, 1, 100, 30000, 400000};
    if (r->size == 1) return;
    for (int i = 0; i < 5 && !r->failed; i++) ring(r, group, sizes[i]);
    tshi_tagged_of(r->world)->longest = 1000;
    ring(r, group, 4500);
    any_source(r, group);
    tshi_check_ok(r, tsh_barrier(group)); /* otherwise it would be received from any source */
    new_tensor(r, group);
    unlike(r, group, 10);
    unlike(r, group, 50000);
    tshi_try_all_reduce(r, group, TSH_FLOAT32, TSH_REDUCE_SUM, 100);
}
