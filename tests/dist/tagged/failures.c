/* Scenarios that fail, and the calls after them. */
#include "dist/tagged/ranks.h"
#include "support/collectives.h"
#include "support/steps.h"
#include "tshard/tshard.h"

#include "dist/tagged/tagged.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Bad arguments on one rank, and calls that differ: an error on all ranks, and the group stays usable. */
void scenario_misuse(tshi_rank *r) {
    tsh_group *group = tsh_world_group(r->world), *other = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 8), *y = tshi_test_vector(r, TSH_FLOAT32, r->rank ? 8 : 9);
    if (r->size == 1 || !x || !y) return;
    if (r->rank == 1)
        tshi_check_status(r, tsh_all_reduce(group, NULL, TSH_REDUCE_SUM), TSH_ERR_ARGUMENT, "tensor is NULL");
    else
        tshi_check_status(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM), TSH_ERR_PEER,
                          "rank 1: all_reduce: tensor is NULL");
    tshi_try_all_reduce(r, group, TSH_FLOAT32, TSH_REDUCE_SUM, 100);
    tshi_check_status(r, tsh_all_reduce(group, y, TSH_REDUCE_SUM), TSH_ERR_MISMATCH,
                      "rank 0: all_reduce float32 [9] sum");
    tshi_check_status(r, tsh_broadcast(group, x, r->rank == 0), TSH_ERR_MISMATCH, "root 1");
    tsh_status status = r->rank ? tsh_barrier(group) : tsh_all_reduce(group, x, TSH_REDUCE_MAX);
    tshi_check(r, status == TSH_ERR_MISMATCH && strstr(tsh_error_message(), "barrier"), "%s", tsh_error_message());
    int64_t in_counts[64] = {0}, out_counts[64] = {0};
    in_counts[0] = 8;
    if (r->rank == 0) out_counts[0] = 8;
    tshi_check_status(r, tsh_all_reduce(group, NULL, TSH_REDUCE_SUM), TSH_ERR_ARGUMENT,
                      "tensor is NULL"); /* on all ranks */
    tsh_tensor *out = tshi_test_vector(r, TSH_FLOAT32, r->rank ? 0 : 8);
    tshi_check_status(r, tsh_all_to_all(group, x, in_counts, out, out_counts), TSH_ERR_MISMATCH, "expects");
    int ranks[] = {0, r->rank ? 1 : 0};
    tshi_check_status(r, tsh_group_create(r->world, ranks, r->rank ? 2 : 1, &other), TSH_ERR_MISMATCH, "group_create");
    tsh_work *work = NULL;
    tshi_check_ok(r, tsh_all_reduce_async(group, y, TSH_REDUCE_SUM, &work));
    tshi_check_status(r, tsh_work_wait(work), TSH_ERR_MISMATCH, "all_reduce");
    tsh_work_release(work);
    tsh_tensor_release(out);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
    tshi_try_all(r, group, TSH_FLOAT32, 20);
}

/* One rank makes the blocking call, the other starts it: they match. */
static void mixed(tshi_rank *r, tsh_group *group) {
    tsh_work *work = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_INT32, 1000);
    for (int i = 0; i < 1000; i++) ((int32_t *)tsh_tensor_data(x))[i] = i;
    if (r->rank % 2)
        tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
    else
        tshi_check_ok(r, tsh_all_reduce_async(group, x, TSH_REDUCE_SUM, &work));
    tsh_work_release(work);
    tshi_check(r, ((int32_t *)tsh_tensor_data(x))[999] == 999 * r->size, "a mixed all_reduce");
    tsh_tensor_release(x);
}

/* A call that is started and given up, its work reused for another call: recovering ends it without the caller's
 * buffers. All ranks have started it, but the last rank makes no call in which it would progress. */
static void given_up(tshi_rank *r, tsh_group *group) {
    enum { PART = 300000, CHUNK = 100000 };
    tshi_tagged *tagged = tshi_tagged_of(r->world);
    int last = r->size - 1;
    int64_t counts[64] = {5}, others[64] = {0}, n = 5 + PART * last, chunk = tagged->longest;
    for (int i = 1; i < r->size; i++) counts[i] = PART;
    others[last] = n;
    tsh_tensor *all = tshi_test_vector(r, TSH_FLOAT32, n), *mine = tshi_test_vector(r, TSH_FLOAT32, counts[r->rank]);
    tsh_tensor *other = tshi_test_vector(r, TSH_FLOAT32, others[r->rank]);
    tsh_work *work = NULL, *next = NULL;
    tagged->longest = CHUNK;
    tshi_check_ok(r, tsh_all_gather_into_tensor_async(group, mine, all, counts, &work));
    if (r->rank == last) {
        pause_for(0.1);
        tsh_world_fail(r->world, "out of luck");
        pause_for(0.6);
    } else {
        tsh_status status = tsh_work_wait(work);
        tsh_work_release(work);
        /* The call may have ended, where the last rank has made it progress after all. */
        tshi_check(r, status == TSH_ERR_PEER || status == TSH_OK, "given up: %s", tsh_error_message());
        status = tsh_all_gather_into_tensor_async(group, other, all, others, &next);
        if (status == TSH_OK) status = tsh_work_wait(next);
        tshi_check(r, status == TSH_ERR_PEER, "after it: %s", tsh_error_message());
        tsh_work_release(next);
        work = NULL;
    }
    tshi_check_ok(r, tsh_world_recover(r->world));
    tsh_work_release(work);
    tsh_tensor_release(all);
    tsh_tensor_release(mine);
    tsh_tensor_release(other);
    tagged->longest = chunk;
    tshi_try_all(r, group, TSH_FLOAT32, 50);
}

/* A blocking call whose data is under way when the last rank fails, which makes no call in which its part would go on:
 * the memory is the caller's again when the call returns, and a call that returns TSH_OK is right. */
static void keeps_off(tshi_rank *r, tsh_group *group) {
    enum { PART = 200000, CHUNK = 1000 };
    tshi_tagged *tagged = tshi_tagged_of(r->world);
    int64_t n = (int64_t)PART * r->size, chunk = tagged->longest;
    int last = r->size - 1, wrong = 0;
    tsh_tensor *all = tshi_test_vector(r, TSH_INT32, n), *mine = tshi_test_vector(r, TSH_INT32, PART);
    int32_t *got = tsh_tensor_data(all), *own = tsh_tensor_data(mine);
    tsh_work *work = NULL;
    tagged->longest = CHUNK;
    for (int i = 0; i < PART; i++) own[i] = 1 + r->rank;
    tshi_check_ok(r, tsh_barrier(group));
    if (r->rank == last) {
        tshi_check_ok(r, tsh_all_gather_into_tensor_async(group, mine, all, NULL, &work));
        tsh_world_fail(r->world, "out of luck");
        pause_for(3 * TSHI_GRACE); /* as long as a peer that is not careful would wait */
    } else {
        tsh_status status = tsh_all_gather_into_tensor(group, mine, all, NULL);
        tshi_check(r, status == TSH_OK || status == TSH_ERR_PEER, "%s", tsh_error_message());
        for (int64_t i = 0; i < n && status == TSH_OK; i++) wrong += got[i] != 1 + i / PART;
        tshi_check(r, wrong == 0, "%d elements of a call that has returned TSH_OK are wrong", wrong);
        for (int64_t i = 0; i < n; i++) got[i] = -1;
        for (int i = 0; i < PART; i++) own[i] = -1;
    }
    tshi_check_ok(r, tsh_world_recover(r->world));
    for (int64_t i = 0; i < n && r->rank != last; i++) wrong += got[i] != -1;
    tshi_check(r, wrong == 0, "%d elements were written to after the call had returned", wrong);
    tsh_work_release(work);
    tsh_tensor_release(all);
    tsh_tensor_release(mine);
    tagged->longest = chunk;
}

/* The last rank fails while a large message goes from rank 0 to rank 1: both keep to it, or neither gets it. In the
 * last round rank 1 does not run from before the message is sent until long after the failure. */
static void under_way(tshi_rank *r, tsh_group *group) {
    enum { N = 4000000, ROUNDS = 5 };
    int last = r->size - 1, wrong = 0;
    bool moves = r->rank < 2;
    tsh_tensor *x = tshi_test_vector(r, TSH_INT32, moves ? N : 1);
    int32_t *own = tsh_tensor_data(x);
    for (int round = 0; round < ROUNDS && !r->failed; round++) {
        bool stops = round == ROUNDS - 1;
        for (int i = 0; i < N && moves; i++) own[i] = r->rank ? -1 : i;
        tshi_check_ok(r, tsh_barrier(group));
        if (stops && r->rank == 1) signal_later(SIGSTOP, 0.1);
        if (stops && r->rank == 1) signal_later(SIGCONT, 0.7);
        if (stops && r->rank != 1) pause_for(r->rank == last ? 0.3 : 0.2);
        tsh_status status = TSH_ERR_PEER;
        if (r->rank == last) tsh_world_fail(r->world, "out of luck");
        if (moves) status = r->rank ? tsh_recv(group, x, 0, NULL) : tsh_send(group, x, 1);
        tshi_check(r, status == TSH_OK || status == TSH_ERR_PEER, "%s", tsh_error_message());
        for (int i = 0; i < N && r->rank == 1 && status == TSH_OK; i++) wrong += own[i] != i;
        for (int i = 0; i < N && moves; i++) own[i] = -2;
        tshi_check_ok(r, tsh_world_recover(r->world));
        for (int i = 0; i < N && moves; i++) wrong += own[i] != -2;
        tshi_check(r, wrong == 0, "round %d: %d elements are wrong", round, wrong);
    }
    tsh_tensor_release(x);
}

/* A message that no rank has received before the recovery is not received after it. */
static void forgotten(tshi_rank *r, tsh_group *group) {
    enum { N = 1024, NUMBERS = 16384 };
    int last = r->size - 1;
    tsh_tensor *x = tshi_test_vector(r, TSH_INT32, N);
    int32_t *own = tsh_tensor_data(x);
    tsh_work *work = NULL;
    own[0] = -1;
    if (r->rank == last) {
        tshi_check_ok(r, tsh_send_async(group, x, 0, &work));
        tsh_world_fail(r->world, "out of luck");
    } else {
        tshi_check_status(r, tsh_barrier(group), TSH_ERR_PEER, "out of luck");
    }
    tshi_check_ok(r, tsh_world_recover(r->world));
    tsh_work_release(work);
    /* As if so many messages had been sent meanwhile: the next number is that of the forgotten one, to the tags. */
    if (r->rank == last) tshi_tagged_group_of(group)->sent[0] += NUMBERS - 1;
    for (int i = 0; i < 3 && !r->failed && (r->rank == 0 || r->rank == last); i++) {
        if (r->rank == last) own[0] = i;
        tshi_check_ok(r, r->rank ? tsh_send(group, x, 0) : tsh_recv(group, x, last, NULL));
        tshi_check(r, own[0] == i, "message %d is %d", i, own[0]);
    }
    tsh_tensor_release(x);
}

/* The last rank fails while its peers wait for it or for each other, in blocking and in started calls. */
void scenario_recover(tshi_rank *r) {
    tsh_group *group = tsh_world_group(r->world), *others = NULL, *here = NULL;
    int ranks[64], last = r->size - 1;
    if (r->size == 1) return;
    tshi_check_ok(r, tsh_group_split(group, r->world->machine.node[r->rank], r->rank, &here));
    for (int i = 0; i < last; i++) ranks[i] = i;
    tshi_check_ok(r, tsh_group_create(r->world, ranks, last, &others));
    tshi_check_ok(r, tsh_barrier(group)); /* no rank fails while its peers still open a group */
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 100000);
    for (int round = 0; round < 12 && !r->failed; round++) {
        tsh_work *work = NULL;
        double since = tshi_clock();
        if (round % 3 == 1) tshi_check_ok(r, tsh_all_reduce_async(group, x, TSH_REDUCE_SUM, &work));
        if (r->rank == last) {
            pause_for(0.02 * (round % 4));
            tsh_world_fail(r->world, "out of luck");
            tshi_check_status(r, tsh_barrier(group), TSH_ERR_STATE, "tsh_world_recover");
        } else {
            tsh_status status = TSH_OK;
            while (status == TSH_OK)
                status = round % 3 == 2 && last > 1 ? tsh_all_reduce(others, x, TSH_REDUCE_SUM) : tsh_barrier(group);
            tshi_check(r, status == TSH_ERR_PEER && strstr(tsh_error_message(), "out of luck"), "round %d: %s", round,
                       tsh_error_message());
            tshi_check(r, tshi_clock() - since < TSHI_SOON, "round %d: an error after %.1f s", round,
                       tshi_clock() - since);
        }
        tshi_check_ok(r, tsh_world_recover(r->world));
        tsh_work_release(work);
        tshi_try_all(r, group, TSH_FLOAT32, 50);
        if (others) tshi_try_all(r, others, TSH_INT32, 50);
        if (here) tshi_try_all(r, here, TSH_FLOAT32, 50);
        mixed(r, group);
    }
    if (!r->failed) given_up(r, group);
    if (!r->failed) keeps_off(r, group);
    if (!r->failed) forgotten(r, group);
    if (!r->failed && r->size > 2) under_way(r, group);
    tsh_tensor_release(x);
    tsh_group_destroy(others);
    tsh_group_destroy(here);
}

/* The last rank makes its call after the deadline of its peers (TEST_DEADLINE=1). */
void scenario_late(tshi_rank *r) {
    tsh_group *group = tsh_world_group(r->world);
    if (r->rank == r->size - 1) {
        for (int i = 0; i < r->size - 1; i++) await_rank(i);
        tshi_check_status(r, tsh_barrier(group), TSH_ERR_PEER, "did not come");
        rank_arrives(r->rank);
        return;
    }
    tsh_status status = tsh_barrier(group);
    bool told = status == TSH_ERR_TIMEOUT || status == TSH_ERR_PEER;
    tshi_check(r, told && strstr(tsh_error_message(), "did not come within 1 s"), "%s", tsh_error_message());
    if (r->rank == 0) {
        printf("told: %s\n", tsh_error_message());
        fflush(stdout);
    }
    tshi_check(r, tsh_barrier(group) == status, "the second call: %s", tsh_error_message());
    tshi_check(r, tsh_world_recover(r->world) == status, "recover: %s", tsh_error_message());
    rank_arrives(r->rank);
    await_rank(r->size - 1); /* the launcher ends all ranks when one exits without MPI_Finalize */
}

/* The last rank destroys its world while its peers still wait for it. */
void scenario_leave(tshi_rank *r) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 10);
    tshi_try_all_reduce(r, group, TSH_FLOAT32, TSH_REDUCE_SUM, 10);
    if (r->rank == r->size - 1) {
        tsh_tensor_release(x);
        return;
    }
    double since = tshi_clock();
    tshi_check_status(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM), TSH_ERR_PEER, "has left");
    tshi_check(r, tshi_clock() - since < TSHI_SOON, "an error after %.1f s", tshi_clock() - since);
    tshi_check_status(r, tsh_recv(group, x, r->size - 1, NULL), TSH_ERR_PEER, "has left");
    tsh_tensor_release(x);
}

/* The last rank exits, with TEST_CODE, and has not destroyed its world; "killed": it fails and is killed. Its peers are
 * in a collective, or with TEST_RECOVER in a recovery (TEST_DEADLINE=10). */
void scenario_exits(tshi_rank *r) {
    const char *code = getenv("TEST_CODE");
    bool recovers = getenv("TEST_RECOVER") != NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 1000);
    tshi_try_all_reduce(r, tsh_world_group(r->world), TSH_FLOAT32, TSH_REDUCE_SUM, 10);
    if (r->rank == r->size - 1 && code && !strcmp(code, "killed")) {
        tsh_world_fail(r->world, "not enough");
        raise(SIGKILL);
    }
    if (r->rank == r->size - 1) exit(code ? (int)strtol(code, NULL, 10) : 0);
    double since = tshi_clock();
    if (recovers) tsh_world_fail(r->world, "out of luck");
    tsh_status status =
        recovers ? tsh_world_recover(r->world) : tsh_all_reduce(tsh_world_group(r->world), x, TSH_REDUCE_SUM);
    bool told = status == TSH_ERR_PEER && tshi_clock() - since < TSHI_SOON;
    tshi_check(r, told, "after %.1f s: %s", tshi_clock() - since, tsh_error_message());
    if (told) printf("told: %s\n", tsh_error_message());
    fflush(stdout);
    tsh_tensor_release(x);
    rank_arrives(r->rank);
    for (int i = 0; i < r->size - 1; i++) await_rank(i); /* the launcher may end all ranks when one ends */
}

/* The last rank is killed. TEST_WHEN: its peers are in a "collective" with it; "between" calls with it, in those of a
 * group of their own; or "computing", and know of it before their first call. */
void scenario_vanishes(tshi_rank *r) {
    const char *when = getenv("TEST_WHEN");
    bool apart = when && !strcmp(when, "between"), computing = when && !strcmp(when, "computing");
    tsh_group *all = tsh_world_group(r->world), *others = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 1000);
    int ranks[64];
    for (int i = 0; i < r->size; i++) ranks[i] = i;
    tsh_status status = tsh_group_create(r->world, ranks, r->size - 1, &others);
    tshi_check_ok(r, status);
    tshi_try_all_reduce(r, all, TSH_FLOAT32, TSH_REDUCE_SUM, 10);
    if (r->rank == r->size - 1) raise(SIGKILL);
    double since = tshi_clock(), end = since + TSHI_SOON;
    while (computing && !tshi_world_has_failed(r->world, (tshi_tape_step){0}) && tshi_clock() < end) pause_for(1e-3);
    do status = tsh_all_reduce(apart ? others : all, x, TSH_REDUCE_SUM);
    while (status == TSH_OK && tshi_clock() < end);
    bool told = status == TSH_ERR_PEER && tshi_clock() < end;
    tshi_check(r, told, "after %.1f s: %s", tshi_clock() - since, tsh_error_message());
    if (told) printf("told: %.3f s, %s\n", tshi_clock() - since, tsh_error_message());
    fflush(stdout);
    tsh_group_destroy(others);
    tsh_tensor_release(x);
    rank_arrives(r->rank);
    for (int i = 0; i < r->size - 1; i++) await_rank(i); /* the launcher may end all ranks when one ends */
}

/* The last rank's child uses the world that it has inherited, and exits. */
void scenario_forks(tshi_rank *r) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 1000);
    pid_t child = r->rank == r->size - 1 ? fork() : 1;
    if (child == 0) {
        tsh_status status = tsh_all_reduce(group, x, TSH_REDUCE_SUM);
        exit(status == TSH_ERR_STATE && strstr(tsh_error_message(), "this process was forked") ? 0 : 1);
    }
    int how = 0;
    pid_t ended = child;
    double guard = tshi_clock() + 60;
    while (r->rank == r->size - 1 && (ended = waitpid(child, &how, WNOHANG)) == 0 && tshi_clock() < guard) {
        tshi_nap(0.001);
    }
    if (ended == 0) kill(child, SIGKILL);
    tshi_check(r, ended == child && how == 0, "the child %s", ended == child ? "failed" : "does not end");
    tshi_try_all_reduce(r, group, TSH_FLOAT32, TSH_REDUCE_SUM, 10);
    tsh_tensor_release(x);
}

/* tsh_log_sink.fn: the wait for the third message has been warned of. */
static void hear_wait(void *user, tsh_log_level level, const char *line) {
    bool *heard = user;
    (void)level;
    if (*heard || !strstr(line, "recv #3: rank 0 has waited ")) return;
    *heard = true;
    rank_arrives(0);
}

/* Rank 0 waits for the last rank's third message, which comes after a warning has named it. */
void scenario_named(tshi_rank *r) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 10);
    const int last = r->size - 1;
    tsh_work *work[3] = {NULL};
    bool heard = r->rank != 0;
    if (r->rank == 0) r->world->log = (tsh_log_sink){.fn = hear_wait, .user = &heard};
    r->world->warn_every = 0.05;
    for (int i = 0; i < 3 && r->rank == 0; i++) tshi_check_ok(r, tsh_recv_async(group, x, last, &work[i]));
    if (r->rank == 0) tshi_check_ok(r, tsh_send(group, x, last)); /* the newest message is not the one waited for */
    if (r->rank == last) tshi_check_ok(r, tsh_recv(group, x, 0, NULL));
    for (int i = 0; i < 3 && r->rank == last; i++) {
        if (i == 2) await_rank(0);
        tshi_check_ok(r, tsh_send(group, x, 0));
    }
    for (int i = 0; i < 3 && r->rank == 0; i++) tshi_check_ok(r, tsh_work_wait(work[i]));
    for (int i = 0; i < 3; i++) tsh_work_release(work[i]);
    tshi_check(r, heard, "no warning named the message");
    tsh_tensor_release(x);
}

/* The last rank is stopped for good, every second time inside a wait of its own (TEST_DEADLINE=1). */
void scenario_stopped(tshi_rank *r) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_status status = TSH_OK;
    if (r->rank == r->size - 1) raise(SIGSTOP);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 1000);
    double since = tshi_clock();
    while (status == TSH_OK) status = tsh_all_reduce(group, x, TSH_REDUCE_SUM);
    tshi_check(r, tshi_clock() - since < TSHI_SOON, "an error after %.1f s", tshi_clock() - since);
    tshi_check(r, strstr(tsh_error_message(), "did not come within 1 s"), "%s", tsh_error_message());
    if (r->rank == 0) {
        printf("told: %s\n", tsh_error_message());
        fflush(stdout);
    }
    tsh_tensor_release(x);
    rank_arrives(r->rank);
    for (int i = 0; i < r->size - 1; i++)
        await_rank(i); /* the launcher ends all ranks when one exits without MPI_Finalize */
}

void scenario_killed(tshi_rank *r) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 1000);
    for (int i = 0; i < 100; i++) tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
    if (r->rank == r->size - 1) {
        printf("killing myself\n");
        fflush(stdout);
        raise(SIGKILL);
    }
    while (tsh_all_reduce(group, x, TSH_REDUCE_SUM) == TSH_OK) {
    }
    tsh_tensor_release(x);
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

/* Several loops of steps; in each one rank fails in another way. */
void scenario_steps(tshi_rank *r) {
    const tsh_tensor_config config = {.dtype = TSH_UINT8, .ndim = 1, .shape = {(int64_t)sizeof(tshi_course)}};
    tsh_tensor_config both = config;
    tsh_tensor *mine = NULL, *all = NULL;
    both.shape[0] *= r->size;
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &mine));
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &both, &all));
    for (int when = 0; when < TSHI_MOMENTS && !r->failed; when++) {
        tshi_story s = {(tshi_moment)when, when % r->size};
        tshi_run_steps(r, &s, tsh_tensor_data(mine));
        if (r->failed || !tshi_check_ok(r, tsh_all_gather_into_tensor(tsh_world_group(r->world), mine, all, NULL)))
            break;
        const char *words = tshi_check_courses(tsh_tensor_data(all), r->size, &s);
        tshi_check(r, !words[0], "rank %d fails %s: %s", s.victim, tshi_moment_name(s.when), words);
    }
    tsh_tensor_release(mine);
    tsh_tensor_release(all);
}
