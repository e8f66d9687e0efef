/* Several worlds in one process at once, each used by threads of its own, and the calls that any thread may make; for a
 * build with ThreadSanitizer. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/collectives.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 12, RANKS = 2, WORLDS = 2 };

/* --- two worlds of threads that do not know of each other --------------------------------------------------------- */

typedef struct member {
    tsh_thread_rendezvous *threads;
    tshi_rank rank;
    int world;
} member;

static bool join(member *m, tsh_world **out) {
    const tsh_world_config config = {
        .threads = m->threads, .rank = m->rank.rank, .heap_bytes = (size_t)32 << 20, .blas_threads = 1, .timeout = 30};
    return tshi_check_ok(&m->rank, tsh_world_init(&config, out));
}

/* World 0 has a failure now and then, which must never reach world 1. */
static void round_of(member *m, int round) {
    tshi_rank *r = &m->rank;
    tsh_group *group = tsh_world_group(r->world);
    char reason[32], words[48];
    tshi_try_started(round % 2);
    tshi_try_all(r, group, round % 2 ? TSH_FLOAT32 : TSH_INT64, 100 * round);
    tshi_try_started(false);
    if (m->world == 0 && round % 3 == 0) {
        snprintf(reason, sizeof reason, "round %d", round);
        snprintf(words, sizeof words, "rank 1: %s", reason);
        if (r->rank == 1) tsh_world_fail(r->world, reason);
        tsh_status status = tsh_barrier(group);
        if (r->rank == 0) tshi_check_status(r, status, TSH_ERR_PEER, words);
        tshi_check_ok(r, tsh_world_recover(r->world));
    }
    /* The message of a failure belongs to the calling thread. */
    snprintf(words, sizeof words, "root %d in a group", 1000 * m->world + round + 2);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 4);
    tsh_status wanted = r->rank == 0 ? TSH_ERR_RANGE : TSH_ERR_PEER;
    tsh_status status = tsh_broadcast(group, x, r->rank == 0 ? 1000 * m->world + round + 2 : 0);
    tshi_check_status(r, status, wanted, words);
    tsh_tensor_release(x);
}

static void *live(void *arg) {
    member *m = arg;
    for (int i = 0; i < ROUNDS && !m->rank.failed; i++) {
        if (i == ROUNDS / 2) { /* leave and come again, as another world of one */
            tsh_world *alone = NULL;
            const tsh_world_config config = {.rank = 0, .world_size = 1, .heap_bytes = (size_t)8 << 20};
            tshi_check_ok(&m->rank, tsh_world_init(&config, &alone));
            if (alone) tshi_check_ok(&m->rank, tsh_barrier(tsh_world_group(alone)));
            tsh_world_destroy(alone);
        }
        round_of(m, i);
    }
    return NULL;
}

static void *live_in_own(void *arg) {
    member *m = arg;
    if (join(m, &m->rank.world)) live(m);
    tsh_world_destroy(m->rank.world);
    return NULL;
}

static int report(const char *name, const tshi_rank *r) {
    if (r->failed) printf("%s: rank %d: %s\n", name, r->rank, r->words);
    return r->failed;
}

static int apart(void) {
    member members[WORLDS * RANKS] = {0};
    pthread_t threads[WORLDS * RANKS];
    tsh_thread_rendezvous *meets[WORLDS];
    int failed = 0;
    for (int w = 0; w < WORLDS; w++) {
        if (tsh_thread_rendezvous_create(RANKS, &meets[w]) != TSH_OK) abort();
    }
    for (int i = 0; i < WORLDS * RANKS; i++) {
        members[i] = (member){meets[i / RANKS], {.rank = i % RANKS, .size = RANKS}, i / RANKS};
        if (pthread_create(&threads[i], NULL, live_in_own, &members[i]) != 0) abort();
    }
    for (int i = 0; i < WORLDS * RANKS; i++) {
        pthread_join(threads[i], NULL);
        failed += report("apart", &members[i].rank);
    }
    for (int w = 0; w < WORLDS; w++) tsh_thread_rendezvous_destroy(meets[w]);
    return failed;
}

/* --- two worlds in one thread, and any thread's questions --------------------------------------------------------- */

typedef struct asked {
    const tsh_world *world; /* of a rank that is busy */
    const tsh_tensor *tensor;
    tsh_mesh *mesh;
    _Atomic bool stop;
    _Atomic long answers;
    bool wrong;
} asked;

/* What base.h, device.h, tensor.h and dist.h allow to any thread. */
static bool ask(const asked *a, long i) {
    const tsh_group *group = tsh_world_group(a->world), *half = tsh_mesh_group(a->mesh, "half");
    int64_t start, length;
    tsh_split(13, 4, (int)(i % 4), &start, &length);
    bool good = length == (i % 4 ? 3 : 4) && !strcmp(tsh_status_name(TSH_OK), "TSH_OK") && tsh_version()[0] != '\0';
    good = good && tsh_dtype_size(TSH_FLOAT32) == 4 && !strcmp(tsh_dtype_name(TSH_INT64), "int64");
    good = good && !strcmp(tsh_collective_name(TSH_COLLECTIVE_REDUCE), "reduce");
    good = good && tsh_backend_supports("local", TSH_CPU, TSH_COLLECTIVE_SEND, TSH_FLOAT32, TSH_REDUCE_SUM);
    good = good && tsh_world_rank(a->world) == tsh_group_rank(group) && tsh_world_size(a->world) == RANKS;
    good = good && tsh_world_local_rank(a->world) == tsh_world_rank(a->world) && tsh_world_node_count(a->world) == 1;
    good = good && !tsh_world_uses_rdma(a->world) && tsh_device_kind_of(tsh_world_device(a->world)) == TSH_CPU;
    good = good && tsh_group_size(group) == RANKS && tsh_group_world_rank(group, 1) == 1;
    good = good && tsh_group_rank_of(group, 1) == 1 && tsh_group_world(group) == a->world;
    good = good && !strcmp(tsh_group_backend(group), "local") && tsh_group_mesh(group) == tsh_world_mesh(a->world);
    good = good && tsh_group_supports(group, TSH_COLLECTIVE_ALL_REDUCE, TSH_UINT8, TSH_REDUCE_BXOR);
    good = good && tsh_mesh_axes(a->mesh) == 1 && tsh_mesh_axis_group(a->mesh, 0) == half;
    good = good && !strcmp(tsh_mesh_axis_name(a->mesh, 0), "half") && tsh_mesh_world(a->mesh) == a->world;
    good = good && tsh_tensor_local_numel(a->tensor) == 3000 && tsh_tensor_local_nbytes(a->tensor) == 12000;
    good = good && tsh_tensor_dtype(a->tensor) == TSH_FLOAT32 && tsh_tensor_ndim(a->tensor) == 1;
    good =
        good && tsh_tensor_local_shape(a->tensor)[0] == 3000 && tsh_tensor_mesh(a->tensor) == tsh_world_mesh(a->world);
    /* A failure here sets this thread's message alone. */
    good = good && !tsh_mesh_group(a->mesh, "quarter") && strstr(tsh_error_message(), "quarter");
    return good;
}

static void *ask_on(void *arg) {
    asked *a = arg;
    while (!atomic_load(&a->stop)) {
        long i = atomic_fetch_add(&a->answers, 1);
        if (!ask(a, i)) a->wrong = true;
        nanosleep(&(const struct timespec){.tv_nsec = 20000}, NULL);
    }
    return NULL;
}

/* Calls of both worlds under way at once, waited for crosswise, by the thread that started them. */
static void cross(member *m, tsh_world *other) {
    tshi_rank *r = &m->rank;
    tsh_world *worlds[WORLDS] = {r->world, other};
    tsh_tensor *x[WORLDS] = {NULL, NULL};
    tsh_work *works[WORLDS] = {NULL, NULL};
    bool done = false;
    for (int w = 0; w < WORLDS; w++) {
        const tsh_tensor_config config = {.dtype = TSH_FLOAT32, .ndim = 1, .shape = {3000}};
        tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(worlds[w]), &config, &x[w]));
        tshi_check_ok(r, tsh_tensor_fill(x[w], w + 1));
        tshi_check_ok(r, tsh_all_reduce_async(tsh_world_group(worlds[w]), x[w], TSH_REDUCE_SUM, &works[w]));
    }
    tshi_check_ok(r, tsh_work_test(works[0], &done));
    for (int w = WORLDS - 1; w >= 0; w--) {
        tshi_check_ok(r, tsh_work_wait(works[w]));
        float got = ((const float *)tsh_tensor_data(x[w]))[2999];
        tshi_check(r, got == (float)((w + 1) * RANKS), "%g in world %d", (double)got, w);
        tsh_work_release(works[w]);
        tsh_tensor_release(x[w]);
    }
}

static void *live_in_both(void *arg) {
    member *m = arg;
    tshi_rank *r = &m->rank;
    tsh_world *other = NULL;
    asked a = {0};
    tsh_tensor *x = NULL;
    pthread_t asker;
    member second = {m[RANKS].threads, {.rank = r->rank, .size = RANKS}, 1};
    if (!join(m, &r->world) || !join(&second, &other)) abort();
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, "half=2", &a.mesh))) abort();
    x = tshi_test_vector(r, TSH_FLOAT32, 3000);
    a.world = r->world;
    a.tensor = x;
    if (pthread_create(&asker, NULL, ask_on, &a) != 0) abort();
    for (int i = 0; i < ROUNDS && !r->failed; i++) {
        cross(m, other);
        tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), x, TSH_REDUCE_SUM));
        round_of(m, i);
    }
    while (atomic_load(&a.answers) < 100) nanosleep(&(const struct timespec){.tv_nsec = 1000000}, NULL);
    atomic_store(&a.stop, true);
    pthread_join(asker, NULL);
    tshi_check(r, !a.wrong, "another thread got a wrong answer");
    tsh_tensor_release(x);
    tsh_mesh_destroy(a.mesh);
    tsh_world_destroy(other);
    tsh_world_destroy(r->world);
    return NULL;
}

static int crosswise(void) {
    member members[WORLDS * RANKS] = {0}; /* the first world's object; the second world's address */
    pthread_t threads[RANKS];
    tsh_thread_rendezvous *meets[WORLDS];
    int failed = 0;
    for (int w = 0; w < WORLDS; w++) {
        if (tsh_thread_rendezvous_create(RANKS, &meets[w]) != TSH_OK) abort();
    }
    for (int i = 0; i < WORLDS * RANKS; i++) {
        members[i] = (member){meets[i / RANKS], {.rank = i % RANKS, .size = RANKS}, 0};
    }
    for (int i = 0; i < RANKS; i++) {
        if (pthread_create(&threads[i], NULL, live_in_both, &members[i]) != 0) abort();
    }
    for (int i = 0; i < RANKS; i++) {
        pthread_join(threads[i], NULL);
        failed += report("crosswise", &members[i].rank);
    }
    for (int w = 0; w < WORLDS; w++) tsh_thread_rendezvous_destroy(meets[w]);
    return failed;
}

int main(void) {
    int failed = apart() + crosswise();
    printf("several worlds: %s\n", failed ? "failed" : "passed");
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
