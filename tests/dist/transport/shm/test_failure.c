/* Ranks that fail, die, stop or leave: the calls of their peers fail soon, and the message names the rank. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/world.h"
#include "support/clock.h"
#include "support/collectives.h"
#include "support/lines.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* --- failing and recovering --------------------------------------------------------------------------------------- */

static void fails(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    for (int round = 0; round < 3 && !r->failed; round++) {
        if (!tshi_try_all(r, group, TSH_FLOAT32, 400 + round)) return;
        if (r->rank == 2) {
            tshi_nap(round == 1 ? 0.2 : 0); /* peers are asleep by then, or have not called yet */
            tsh_world_fail(r->world, "linear_forward: x is [8,100]");
            tsh_world_fail(r->world, "something that follows from it");
            tshi_check_status(r, tsh_barrier(group), TSH_ERR_STATE, "tsh_world_recover is due");
        } else {
            double start = tshi_now();
            tshi_check_status(r, tsh_barrier(group), TSH_ERR_PEER, "rank 2: linear_forward: x is [8,100]");
            tshi_check(r, tshi_now() - start < TSHI_SOON, "the error took %g s", tshi_now() - start);
            tshi_check_status(r, tsh_barrier(group), TSH_ERR_PEER, "rank 2: linear_forward: x is [8,100]");
        }
        tshi_nap(0.01 * r->rank);
        tshi_check_ok(r, tsh_world_recover(r->world));
    }
    tshi_try_all(r, group, TSH_FLOAT64, 1000);
}

Test(failure, fail_and_recover, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(3, fails, NULL));
    cr_assert_str_empty(tshi_test_run(4, fails, NULL));
    cr_assert_str_empty(tshi_test_run_threads(3, fails, NULL));
}

/* Ranks stop at different calls, in groups of their own; afterwards all groups work. */
static void fails_between_groups(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_mesh *mesh = NULL;
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, "data=2,model=2", &mesh))) return;
    tsh_group *data = tsh_mesh_group(mesh, "data"), *model = tsh_mesh_group(mesh, "model");
    for (int round = 0; round < 4 && !r->failed; round++) {
        tsh_status status = TSH_OK;
        for (int i = 0; i < 10 && status == TSH_OK; i++) {
            if (r->rank == round && i == 5) {
                tsh_world_fail(r->world, "enough");
                break;
            }
            status = tsh_barrier(i % 2 ? data : model);
            if (status == TSH_OK && i % 3 == 0) status = tsh_barrier(tsh_world_group(r->world));
        }
        if (r->rank != round) tshi_check_status(r, status, TSH_ERR_PEER, "enough");
        tshi_check_ok(r, tsh_world_recover(r->world));
        tshi_try_all(r, data, TSH_FLOAT32, 300);
        tshi_try_all(r, model, TSH_FLOAT32, 3000);
        tshi_try_all(r, tsh_world_group(r->world), TSH_INT32, 30);
    }
    tsh_mesh_destroy(mesh);
}

Test(failure, fail_between_groups, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, fails_between_groups, NULL));
    cr_assert_str_empty(tshi_test_run_threads(4, fails_between_groups, NULL));
}

static void several_fail(tshi_rank *r, void *arg) {
    (void)arg;
    char reason[32];
    snprintf(reason, sizeof reason, "reason %d", r->rank);
    if (r->rank != 0) tsh_world_fail(r->world, reason);
    if (r->rank == 0) tshi_check_status(r, tsh_barrier(tsh_world_group(r->world)), TSH_ERR_PEER, ": reason ");
    tshi_check_ok(r, tsh_world_recover(r->world));
    tshi_check_ok(r, tsh_world_recover(r->world));
    tshi_try_all(r, tsh_world_group(r->world), TSH_FLOAT32, 100);
}

Test(failure, several_at_once, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, several_fail, NULL));
}

/* --- deaths ------------------------------------------------------------------------------------------------------- */

typedef enum moment { BEFORE, INSIDE, AFTER } moment;

/* Rank 1 kills itself before its first call, has itself killed while it waits, or dies after some calls. Its peers make
 * calls until one fails. */
static void dies(tshi_rank *r, void *arg) {
    moment when = *(const moment *)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3000);
    if (r->rank == 1) {
        if (when == AFTER) {
            for (int i = 0; i < 5; i++) tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
        }
        if (when == INSIDE) {
            pid_t parent = getpid();
            if (fork() == 0) {
                tshi_nap(0.2);
                kill(parent, SIGKILL);
                _exit(0);
            }
            tsh_all_reduce(group, x, TSH_REDUCE_SUM);
        }
        kill(getpid(), SIGKILL);
    }
    /* One rank makes no call while rank 1 waits inside one. */
    if (when == INSIDE && r->rank == 0) tshi_nap(0.4);
    double start = tshi_now();
    tsh_status status = TSH_OK;
    while (status == TSH_OK && tshi_now() - start < TSHI_SOON) status = tsh_all_reduce(group, x, TSH_REDUCE_SUM);
    tshi_check_status(r, status, TSH_ERR_PEER, "rank 1 died");
    tshi_check(r, tshi_now() - start < TSHI_SOON, "the error took %g s", tshi_now() - start);
    start = tshi_now();
    tshi_check_status(r, tsh_barrier(group), TSH_ERR_PEER, "rank 1 died");
    tshi_check_status(r, tsh_world_recover(r->world), TSH_ERR_PEER, "rank 1 died");
    tshi_check(r, tshi_now() - start < TSHI_SOON, "later calls took %g s", tshi_now() - start);
    tsh_tensor_release(x);
}

static void expect_deaths(moment when, int ranks) {
    tshi_outcome outcomes[8];
    tshi_test_options options = {.ranks = ranks};
    tshi_test_run_with(&options, dies, &when, outcomes, NULL);
    for (int i = 0; i < ranks; i++) {
        if (i == 1) {
            cr_assert_eq(outcomes[i].signal, SIGKILL);
        } else {
            cr_assert_str_empty(outcomes[i].words);
            cr_assert_eq(outcomes[i].code, 0);
        }
    }
}

Test(failure, dies_before_a_call, .timeout = 120) {
    expect_deaths(BEFORE, 2);
    expect_deaths(BEFORE, 4);
}
Test(failure, dies_inside_a_call, .timeout = 120) {
    expect_deaths(INSIDE, 2);
    expect_deaths(INSIDE, 4);
}
Test(failure, dies_after_calls, .timeout = 120) {
    expect_deaths(AFTER, 2);
    expect_deaths(AFTER, 4);
}

/* Rank 1 closes every descriptor, as a daemon does, and opens others of the same numbers: it lives for its peers, hears
 * of the death of rank 2, whose child lives on, and its files stay its own. */
static void closes_descriptors(tshi_rank *r, void *arg) {
    atomic_int *stage = arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_world *world = r->world;
    tshi_lines log = {""};
    world->log = (tsh_log_sink){tshi_keep_line, &log};
    int fds[16];
    tshi_check_ok(r, tsh_barrier(group));
    if (r->rank == 1) {
        for (int fd = 3; fd < 1024; fd++) close(fd);
        for (int i = 0; i < 16; i++) fds[i] = open("/dev/null", O_RDONLY);
        tshi_check_ok(r, world->control->check_peers(group, true, false));
        tshi_check(r, strstr(log.text, "has closed the descriptor"), "the log says \"%s\"", log.text);
        atomic_fetch_add(stage, 1);
    }
    tshi_test_await(r, stage, 1);
    tshi_check_ok(r, world->control->check_peers(group, true, false));
    tshi_try_all(r, group, TSH_FLOAT32, 5000);
    double guard = tshi_now() + 60;
    if (r->rank == 2) {
        if (fork() != 0) raise(SIGKILL);
        while (atomic_load(stage) < 3 && tshi_now() < guard) tshi_nap(0.001);
        _exit(0);
    }
    while (tsh_barrier(group) == TSH_OK && tshi_now() < guard) continue;
    tshi_check_status(r, tsh_barrier(group), TSH_ERR_PEER, "rank 2 died");
    atomic_fetch_add(stage, 1);
    tsh_world_destroy(r->world);
    r->world = NULL;
    for (int i = 0; r->rank == 1 && i < 16; i++) tshi_check(r, close(fds[i]) == 0, "a file of the program is closed");
}

Test(failure, closes_descriptors, .timeout = 120) {
    tshi_outcome outcomes[3];
    tshi_test_options options = {.ranks = 3};
    tshi_test_run_with(&options, closes_descriptors, tshi_test_shared(sizeof(atomic_int)), outcomes, NULL);
    for (int i = 0; i < 2; i++) cr_assert_str_empty(outcomes[i].words);
}

/* Rank 3 dies while ranks 0 and 1 wait only for each other: their next call that has to wait fails. */
static void dies_elsewhere(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_mesh *mesh = NULL;
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, "data=2,model=2", &mesh))) return;
    if (r->rank == 3) kill(getpid(), SIGKILL);
    tsh_status status = TSH_OK;
    double start = tshi_now();
    if (r->rank == 0) tshi_nap(0.3);
    while (status == TSH_OK && tshi_now() - start < TSHI_SOON) status = tsh_barrier(tsh_mesh_group(mesh, "model"));
    tshi_check_status(r, status, TSH_ERR_PEER, "rank 3 died");
    tshi_check(r, tshi_now() - start < TSHI_SOON, "the error took %g s", tshi_now() - start);
    tsh_mesh_destroy(mesh);
}

Test(failure, dies_in_another_group, .timeout = 120) {
    tshi_outcome outcomes[4];
    tshi_test_options options = {.ranks = 4};
    tshi_test_run_with(&options, dies_elsewhere, NULL, outcomes, NULL);
    for (int i = 0; i < 3; i++) cr_assert_str_empty(outcomes[i].words);
}

/* Its peers learn the reason, whether they see the failure or the death. */
static void says_why_and_dies(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    if (r->rank == 2) {
        tsh_world_fail(r->world, "linear_forward: x is [8,100]");
        raise(SIGKILL);
    }
    double guard = tshi_now() + 60;
    do tshi_check_status(r, tsh_barrier(group), TSH_ERR_PEER, "rank 2: linear_forward: x is [8,100]");
    while (r->world->control->check_peers(group, true, false) && !strstr(tsh_error_message(), "died") &&
           tshi_now() < guard && !r->failed);
    tshi_check_status(r, tsh_barrier(group), TSH_ERR_PEER, "rank 2: linear_forward: x is [8,100]; then it died");
    tshi_check_status(r, tsh_world_recover(r->world), TSH_ERR_PEER, "rank 2: linear_forward: x is [8,100]");
}

Test(failure, a_dead_rank_has_said_why, .timeout = 120) {
    tshi_outcome outcomes[3];
    tshi_test_options options = {.ranks = 3};
    tshi_test_run_with(&options, says_why_and_dies, NULL, outcomes, NULL);
    for (int i = 0; i < 2; i++) cr_assert_str_empty(outcomes[i].words);
}

/* --- leaving ------------------------------------------------------------------------------------------------------ */

static void leaves(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tshi_check_ok(r, tsh_barrier(group));
    if (r->rank == 1) return; /* its world is destroyed on the way out */
    double start = tshi_now();
    tshi_check_status(r, tsh_barrier(group), TSH_ERR_PEER, "rank 1 has left the world; barrier #");
    tshi_check(r, tshi_now() - start < TSHI_SOON, "the error took %g s", tshi_now() - start);
}

Test(failure, a_peer_leaves, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, leaves, NULL));
    cr_assert_str_empty(tshi_test_run(3, leaves, NULL));
    cr_assert_str_empty(tshi_test_run_threads(3, leaves, NULL));
}

/* A rank that has no part in the later calls of its peers may leave and exit. */
static void leaves_early(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *pair = NULL;
    tshi_check_ok(r, tsh_group_create(r->world, (int[]){0, 1}, 2, &pair));
    if (r->rank == 2) return;
    for (int i = 0; i < 3; i++) {
        if (r->rank == 0) tshi_nap(0.1); /* rank 1 checks for failures meanwhile */
        if (!tshi_check_ok(r, tsh_barrier(pair))) break;
    }
    tsh_group_destroy(pair);
}

Test(failure, leaves_early, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(3, leaves_early, NULL));
}

/* --- while peers recover ------------------------------------------------------------------------------------------ */

typedef enum recovery_end { KILLED_THEN, EXITS_THEN, LEAVES_THEN } recovery_end;

typedef struct recovery {
    recovery_end how;
    bool failed; /* by a rank that recovers; else rank 1 fails before it goes */
    atomic_int recovering;
} recovery;

static void goes_in_a_recovery(tshi_rank *r, void *arg) {
    recovery *c = arg;
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    if (r->rank == (c->failed ? 2 : 1)) tsh_world_fail(r->world, "enough");
    if (r->rank == 1) {
        /* Both are inside the recovery, or about to be. */
        tshi_test_await(r, &c->recovering, 2);
        if (c->how == KILLED_THEN) raise(SIGKILL);
        if (c->how == EXITS_THEN) _exit(0);
        return;
    }
    atomic_fetch_add(&c->recovering, 1);
    double start = tshi_now();
    const char *words = c->failed ? "rank 1 died" : "rank 1: enough; then it died";
    if (c->how == LEAVES_THEN) words = "rank 1 has left the world";
    tshi_check_status(r, tsh_world_recover(r->world), TSH_ERR_PEER, words);
    tshi_check(r, tshi_now() - start < TSHI_SOON, "the error took %g s", tshi_now() - start);
    tshi_check_status(r, tsh_barrier(tsh_world_group(r->world)), TSH_ERR_PEER, words);
}

static void expect_end_of_recovery(recovery_end how, bool failed) {
    tshi_outcome outcomes[3];
    recovery *c = tshi_test_shared(sizeof *c);
    c->how = how;
    c->failed = failed;
    tshi_test_options options = {.ranks = 3};
    tshi_test_run_with(&options, goes_in_a_recovery, c, outcomes, NULL);
    cr_expect_str_empty(outcomes[0].words);
    cr_expect_str_empty(outcomes[2].words);
}

Test(failure, goes_while_peers_recover, .timeout = 120) {
    for (int how = KILLED_THEN; how <= LEAVES_THEN; how++) {
        expect_end_of_recovery((recovery_end)how, true);
        expect_end_of_recovery((recovery_end)how, false);
    }
}

/* --- deadlines ---------------------------------------------------------------------------------------------------- */

/* Rank 1 stops making calls, as a process that is stopped by SIGSTOP; its process lives. */
static void stops(tshi_rank *r, void *arg) {
    (void)arg;
    tshi_lines log = {""};
    tsh_world_config config = {.heap_bytes = (size_t)64 << 20, .log = {tshi_keep_line, &log}};
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    tsh_group *group = tsh_world_group(r->world);
    tshi_check_ok(r, tsh_barrier(group));
    r->world->timeout = 0.3;
    if (r->rank == 1) {
        raise(SIGSTOP);
        return;
    }
    double start = tshi_now();
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 10);
    tsh_status status = tsh_all_reduce(group, x, TSH_REDUCE_SUM);
    double took = tshi_now() - start;
    tshi_check_status(r, status, r->rank == 0 ? TSH_ERR_TIMEOUT : status, "rank 1 did not come within 0.3 s");
    tshi_check(r, status == TSH_ERR_TIMEOUT || status == TSH_ERR_PEER, "%s", tsh_status_name(status));
    tshi_check(r, took > 0.2 && took < TSHI_SOON, "it took %g s", took);
    if (status == TSH_ERR_TIMEOUT) {
        tshi_check(r, strstr(log.text, "last calls, newest first: #"), "the log says %s", log.text);
        tshi_check(r, strstr(log.text, "rank 1's last call: barrier #"), "the log says %s", log.text);
    }
    tshi_check(r, tsh_barrier(group) == status, "a later call returns another error");
    tsh_tensor_release(x);
    tsh_world_destroy(r->world);
}

Test(failure, a_peer_stops, .timeout = 120) {
    tshi_outcome outcomes[2];
    tshi_test_options options = {.ranks = 2, .bare = true};
    tshi_test_run_with(&options, stops, NULL, outcomes, NULL);
    cr_assert_str_empty(outcomes[0].words);
    cr_assert_eq(outcomes[1].signal, SIGKILL, "a stopped rank is killed when no other is left");
}

/* Rank 1 has failed before: that is no reason to end the wait otherwise than by its deadline. */
static void never_recovers(tshi_rank *r, void *arg) {
    atomic_int *stage = arg;
    if (r->rank == 1) {
        tsh_world_fail(r->world, "first");
        atomic_fetch_add(stage, 1);
        tshi_test_await(r, stage, 2);
        return;
    }
    tshi_test_await(r, stage, 1);
    r->world->timeout = 0.3;
    tsh_world_fail(r->world, "alone");
    tshi_check_status(r, tsh_world_recover(r->world), TSH_ERR_TIMEOUT, "rank 1 did not come within 0.3 s");
    tshi_check_status(r, tsh_barrier(tsh_world_group(r->world)), TSH_ERR_TIMEOUT, "rank 1 did not come");
    atomic_fetch_add(stage, 1);
}

Test(failure, only_one_rank_recovers, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, never_recovers, tshi_test_shared(sizeof(atomic_int))));
}

/* --- nothing left over -------------------------------------------------------------------------------------------- */

static int count_descriptors(void) {
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder)) n++;
    if (folder) closedir(folder);
    return n;
}

static int count_mappings(const char *name) {
    int n = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) n += strstr(line, name) != NULL;
    if (maps) fclose(maps);
    return n;
}

static void comes_and_goes(tshi_rank *r, void *arg) {
    (void)arg;
    int descriptors = count_descriptors();
    for (int i = 0; i < 5; i++) {
        tsh_world_config config = {.heap_bytes = (size_t)16 << 20};
        if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
        tshi_check(r, count_mappings("memfd:tshard") > 0, "the heaps are not where this test looks");
        tshi_try_all(r, tsh_world_group(r->world), TSH_FLOAT32, 2000);
        tsh_world_destroy(r->world);
    }
    tshi_check(r, count_descriptors() == descriptors, "%d descriptors became %d", descriptors, count_descriptors());
    tshi_check(r, count_mappings("memfd:tshard") == 0, "memory is still mapped");
}

Test(failure, nothing_is_left_over, .timeout = 120) {
    tshi_test_options options = {.ranks = 3, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, comes_and_goes, NULL, NULL, NULL));
}
