/* Calls that follow started calls, and chains of waits: the messages about a rank that is dead, stopped or late. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/control/wait_graph.h"
#include "dist/world.h"
#include "support/children.h"
#include "support/clock.h"
#include "support/collectives.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Ranks that are ready make their calls in less, however busy the machine is. The stories run beside each other. */
#define DEADLINE 5.0

/* --- a blocking call behind a started one ------------------------------------------------------------------------- */

/* The last rank dies before it starts the call that precedes the barrier of its peers. */
static void dies_behind(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 5000);
    tsh_work *first = NULL, *second = NULL;
    if (r->rank == r->size - 1) kill(getpid(), SIGKILL);
    tshi_check_ok(r, tsh_all_reduce_async(group, x, TSH_REDUCE_SUM, &first));
    tshi_check_ok(r, tsh_barrier_async(group, &second));
    tshi_check_status(r, tsh_barrier(group), TSH_ERR_PEER, "died");
    tshi_check_status(r, tsh_work_wait(first), TSH_ERR_PEER, "died");
    tshi_check_status(r, tsh_work_wait(second), TSH_ERR_PEER, "died");
    tsh_work_release(first);
    tsh_work_release(second);
    tsh_tensor_release(x);
}

Test(waits, a_rank_dies_behind_a_started_call, .timeout = 120) {
    for (int ranks = 2; ranks <= 4; ranks++) {
        for (int round = 0; round < 4; round++) {
            tshi_outcome outcomes[4];
            tshi_test_options options = {.ranks = ranks};
            tshi_test_run_with(&options, dies_behind, NULL, outcomes, NULL);
            for (int i = 0; i < ranks - 1; i++)
                cr_assert_str_empty(outcomes[i].words, "of %d: %s", ranks, outcomes[i].words);
        }
    }
}

/* --- the rank that a chain of waits ends at ----------------------------------------------------------------------- */

/* Written by the ranks; the parent made it. */
typedef struct shared {
    _Atomic int process;  /* of the rank that stands still */
    _Atomic int ready;    /* peers that have seen it stand still */
    _Atomic int finished; /* peers that are through */
} shared;

typedef enum way { CALLS, STARTED, MESSAGES, WAYS } way;

typedef struct story {
    shared *shared;
    int victim;
    way way;
    int calls;    /* that the victim makes before */
    bool inside;  /* it is stopped while it waits itself */
    bool asleep;  /* true: the victim is not stopped, but busy with something else */
    bool blocked; /* a blocking call follows the started one */
} story;

static tsh_status call_axis(tshi_rank *r, const story *s, tsh_group *group, tsh_tensor *x) {
    tsh_work *work = NULL;
    if (s->way == CALLS) return tsh_all_reduce(group, x, TSH_REDUCE_SUM);
    tsh_status status = tsh_all_reduce_async(group, x, TSH_REDUCE_SUM, &work);
    if (status == TSH_OK && s->blocked) status = tsh_barrier(group);
    if (status == TSH_OK) status = tsh_work_wait(work);
    tsh_work_release(work);
    (void)r;
    return status;
}

/* A message to the next rank of the world, and one from the rank before; also receives from every rank, which never
 * end. */
static tsh_status pass_on(tshi_rank *r, tsh_tensor *x, tsh_tensor *y) {
    tsh_group *world = tsh_world_group(r->world);
    tsh_work *sending = NULL;
    tsh_status status = tsh_send_async(world, x, (r->rank + 1) % r->size, &sending);
    if (status == TSH_OK) status = tsh_recv(world, y, (r->rank + r->size - 1) % r->size, NULL);
    if (status == TSH_OK) status = tsh_work_wait(sending);
    tsh_work_release(sending);
    return status;
}

static void stop_later(double seconds) {
    pid_t me = getpid();
    if (fork() != 0) return;
    tshi_nap(seconds);
    kill(me, SIGSTOP);
    _exit(0);
}

/* Makes the call only when the victim makes none any more, and all others are here: their deadlines begin now. */
static void await_victim(tshi_rank *r, const story *s) {
    double guard = tshi_now() + 60;
    while (!s->asleep && !tshi_process_stopped(atomic_load(&s->shared->process)) && tshi_now() < guard) tshi_nap(0.001);
    atomic_fetch_add(&s->shared->ready, 1);
    tshi_test_await(r, &s->shared->ready, r->size - 1);
    r->world->timeout = DEADLINE;
}

static tsh_status call_until(tshi_rank *r, const story *s, tsh_mesh *mesh) {
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3000), *y = tshi_test_vector(r, TSH_FLOAT32, 3000);
    tsh_status status = TSH_OK;
    bool victim = r->rank == s->victim;
    for (int i = 0; status == TSH_OK; i++) {
        if (!victim && i == s->calls) await_victim(r, s);
        if (victim && i == s->calls && s->inside) stop_later(0.002);
        if (victim && i == s->calls && s->asleep) break;
        if (victim && i == s->calls && !s->inside) raise(SIGSTOP);
        status = s->way == MESSAGES ? pass_on(r, x, y) : call_axis(r, s, tsh_mesh_axis_group(mesh, i % 2), x);
    }
    tsh_tensor_release(x);
    tsh_tensor_release(y);
    return status;
}

/* The message names the victim alone. */
static void check_blame(tshi_rank *r, const story *s, tsh_status status) {
    const char *words = tsh_error_message(), *end = strstr(words, " did not come within"), *blamed = words;
    char wanted[32];
    snprintf(wanted, sizeof wanted, ": rank %d did not come within", s->victim);
    for (const char *at = words; end && (at = strstr(at, ": rank ")) && at < end; at++) blamed = at;
    tshi_check(r, status == TSH_ERR_TIMEOUT || status == TSH_ERR_PEER, "%s: %s", tsh_status_name(status), words);
    tshi_check(r, !strncmp(blamed, wanted, strlen(wanted)), "\"%s\" does not blame rank %d alone", words, s->victim);
    if (!s->asleep) tshi_check(r, strstr(words, "is stopped"), "\"%s\" does not say that it is stopped", words);
}

static void keeps_others(tshi_rank *r, void *arg) {
    const story *s = arg;
    tsh_mesh *mesh = NULL;
    if (r->rank == s->victim) atomic_store(&s->shared->process, getpid());
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, r->size % 2 ? "a=1,b=-1" : "a=2,b=-1", &mesh))) return;
    tsh_status status = call_until(r, s, mesh);
    if (r->rank != s->victim) {
        check_blame(r, s, status);
        if (atomic_fetch_add(&s->shared->finished, 1) + 2 == r->size && !s->asleep) kill(s->shared->process, SIGKILL);
    } else {
        while (atomic_load(&s->shared->finished) + 1 < r->size) tshi_nap(0.01);
    }
    tsh_mesh_destroy(mesh);
}

typedef struct telling {
    story story;
    int ranks;
    pid_t process;
    char *words; /* [TSHI_TEST_WORDS + 64] of a rank that has seen something else; the parent made it */
} telling;

static void tell(telling *t) {
    tshi_outcome outcomes[6];
    tshi_test_options options = {.ranks = t->ranks};
    t->story.shared = tshi_test_shared(sizeof *t->story.shared);
    tshi_test_run_with(&options, keeps_others, &t->story, outcomes, NULL);
    for (int i = 0; i < t->ranks; i++) {
        bool killed = i == t->story.victim && !t->story.asleep;
        if (outcomes[i].words[0] && !killed) memcpy(t->words, outcomes[i].words, sizeof outcomes[i].words);
    }
}

/* Each story in a process of its own. */
static void expect_blame(telling *all, int count) {
    char ended[128];
    for (int i = 0; i < count; i++) {
        all[i].words = tshi_test_shared(sizeof((tshi_outcome *)NULL)->words);
        all[i].process = tshi_test_fork();
        if (all[i].process != 0) continue;
        tell(&all[i]);
        _exit(0);
    }
    for (int i = 0; i < count; i++) {
        const story *s = &all[i].story;
        tshi_test_reap(all[i].process, ended, sizeof ended);
        cr_expect(!*ended && !*all[i].words, "%d ranks, way %d, %d calls, %s: %s%s", all[i].ranks, (int)s->way,
                  s->calls, s->inside ? "inside" : "before", ended, all[i].words);
    }
}

/* On two axes a rank may wait for one that waits for the stopped rank, in any order of the deadlines. */
Test(waits, all_messages_name_a_stopped_rank, .timeout = 120) {
    telling all[2 * WAYS + 3] = {
        {.story = {.victim = 2, .way = CALLS, .calls = 1}, .ranks = 6},
        {.story = {.victim = 0, .way = MESSAGES, .calls = 1}, .ranks = 6},
        {.story = {.victim = 1, .way = STARTED, .calls = 2, .blocked = true}, .ranks = 3},
    };
    for (int k = 0; k < 2 * WAYS; k++) {
        const story s = {
            .victim = k % 4, .way = (way)(k % WAYS), .calls = 3 + k, .inside = k % 2, .blocked = k % 3 == 1};
        all[3 + k] = (telling){.story = s, .ranks = 4};
    }
    expect_blame(all, 2 * WAYS + 3);
}

Test(waits, all_messages_name_a_late_rank, .timeout = 120) {
    telling all[WAYS];
    for (int k = 0; k < WAYS; k++) {
        const story s = {.victim = k, .way = (way)k, .calls = 2 + k, .asleep = true, .blocked = true};
        all[k] = (telling){.story = s, .ranks = 4};
    }
    expect_blame(all, WAYS);
}

/* --- warnings ----------------------------------------------------------------------------------------------------- */

enum { IN_A_CALL, IN_A_STARTED_CALL, IN_A_MESSAGE, IN_A_RECOVERY, PLACES };

typedef struct patience {
    int place;
    _Atomic int *warned; /* in the parent's memory */
} patience;

/* Counts a warning of a wait for the last of three ranks. */
static void count_warning(void *user, tsh_log_level level, const char *line) {
    const patience *p = user;
    if (level == TSH_LOG_WARNING && strstr(line, " has waited ") && strstr(line, " s for rank 2")) {
        atomic_fetch_add(p->warned, 1);
    }
}

static tsh_status wait_in(tshi_rank *r, int place, tsh_tensor *x) {
    tsh_group *world = tsh_world_group(r->world);
    tsh_work *work = NULL;
    tsh_status status = TSH_OK;
    switch (place) {
    case IN_A_CALL: return tsh_all_reduce(world, x, TSH_REDUCE_SUM);
    case IN_A_MESSAGE: return tsh_recv(world, x, 2, NULL);
    case IN_A_RECOVERY: return tsh_world_recover(r->world);
    default: break;
    }
    status = tsh_all_reduce_async(world, x, TSH_REDUCE_SUM, &work);
    if (status == TSH_OK) status = tsh_work_wait(work);
    tsh_work_release(work);
    return status;
}

/* The last rank makes its call when both peers have warned that they wait for it. */
static void waits_long(tshi_rank *r, void *arg) {
    const patience *p = arg;
    tsh_world_config config = {.heap_bytes = (size_t)16 << 20, .log = {count_warning, arg}};
    setenv("TSHARD_WARN", "0.05", 1);
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3000);
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    atomic_store(p->warned, 0);
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    while (r->rank == 2 && atomic_load(p->warned) < 2) tshi_nap(0.01);
    if (r->rank == 2 && p->place == IN_A_MESSAGE) {
        tshi_check_ok(r, tsh_send(tsh_world_group(r->world), x, 0));
        tshi_check_ok(r, tsh_send(tsh_world_group(r->world), x, 1));
    } else {
        tshi_check_ok(r, wait_in(r, p->place, x));
    }
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    tsh_tensor_release(x);
    tsh_world_destroy(r->world);
    r->world = NULL;
}

Test(waits, a_long_wait_warns, .timeout = 60) {
    patience p = {.warned = mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    cr_assert(p.warned != MAP_FAILED);
    for (p.place = 0; p.place < PLACES; p.place++) {
        tshi_test_options options = {.ranks = 3, .bare = true, .world_timeout = "40", .timeout = 40};
        cr_assert_str_empty(tshi_test_run_with(&options, waits_long, &p, NULL, NULL), "place %d", p.place);
    }
    munmap(p.warned, 64);
}

/* Without a log sink of the program's own, warnings go to stderr. */
static void waits_without_a_sink(tshi_rank *r, void *arg) {
    _Atomic int *seen = arg;
    char text[4096] = "";
    FILE *file = tmpfile();
    if (r->rank == 0) dup2(fileno(file), STDERR_FILENO);
    setenv("TSHARD_WARN", "0.05", 1);
    if (!tshi_check_ok(r, tsh_world_init(NULL, &r->world))) return;
    pid_t looker = r->rank == 0 ? fork() : -1;
    if (looker == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; looker == 0 && i < 3000 && !atomic_load(seen); i++) {
        ssize_t n = pread(fileno(file), text, sizeof text - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        if (strstr(text, "tshard warning: barrier #") && strstr(text, " s for rank 1")) atomic_store(seen, 1);
        tshi_nap(0.01);
    }
    if (looker == 0) _exit(0);
    while (r->rank == 1 && !atomic_load(seen)) tshi_nap(0.01);
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    tsh_world_destroy(r->world);
    r->world = NULL;
}

Test(waits, a_long_wait_warns_on_stderr, .timeout = 60) {
    _Atomic int *seen = mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    tshi_test_options options = {.ranks = 2, .bare = true, .world_timeout = "40", .timeout = 40};
    cr_assert(seen != MAP_FAILED);
    cr_assert_str_empty(tshi_test_run_with(&options, waits_without_a_sink, seen, NULL, NULL));
    munmap(seen, 64);
}

/* --- waits for each other --------------------------------------------------------------------------------------- */

/* Rank 0 prints a tensor of the mesh, which is a call of all ranks, and its peer trains. */
static void print_alone(tshi_rank *r, void *arg) {
    tsh_mesh *mesh = NULL;
    tsh_tensor *t = NULL, *x = tshi_test_vector(r, TSH_FLOAT32, 4);
    char words[TSHI_TEST_WORDS];
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=2", &mesh));
    tshi_check_ok(r, tsh_tensor_create(mesh, &(tsh_tensor_config){.ndim = 1, .shape = {3}}, &t));
    for (int i = 0; i < 2; i++) {
        double begun = tshi_now();
        tsh_status status = r->rank == 0 ? tsh_tensor_print(t, stderr, NULL)
                                         : tsh_all_reduce(tsh_mesh_group(mesh, "data"), x, TSH_REDUCE_SUM);
        snprintf(words, sizeof words, "%s", tsh_error_message());
        tshi_check(r, status == TSH_ERR_MISMATCH || status == TSH_ERR_PEER, "%s: %s", tsh_status_name(status), words);
        tshi_check(r,
                   strstr(words, "ranks wait for each other: rank 0 in tensor_print") &&
                       strstr(words, "rank 1 in all_reduce float32 [4] sum #"),
                   "%s", words);
        tshi_check(r, tshi_now() - begun < TSHI_SOON, "after %g s", tshi_now() - begun);
        tshi_check_ok(r, tsh_world_recover(r->world));
        tshi_check_ok(r, tsh_all_reduce(tsh_mesh_group(mesh, "data"), x, TSH_REDUCE_SUM));
    }
    tsh_tensor_release(t);
    tsh_tensor_release(x);
    tsh_mesh_destroy(mesh);
}

Test(waits, a_cycle_of_two_ends_at_once_with_both_calls, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, print_alone, NULL));
    cr_assert_str_empty(tshi_test_run_threads(2, print_alone, NULL));
}

/* Each rank is in a group with the next one, and waits for it there. */
static void wait_in_a_circle(tshi_rank *r, void *arg) {
    tsh_group *pairs[4] = {NULL};
    char wanted[64];
    (void)arg;
    for (int i = 0; i < r->size; i++) {
        int ranks[] = {i, (i + 1) % r->size};
        tshi_check_ok(r, tsh_group_create(r->world, ranks, 2, &pairs[i]));
    }
    for (int round = 0; round < 2; round++) {
        double begun = tshi_now();
        tsh_status status = tsh_barrier(pairs[r->rank]);
        const char *words = tsh_error_message(), *at = strstr(words, "ranks wait for each other: rank 0 in barrier #");
        tshi_check(r, status == TSH_ERR_MISMATCH || status == TSH_ERR_PEER, "%s: %s", tsh_status_name(status), words);
        for (int i = 1; at && i < r->size; i++) {
            snprintf(wanted, sizeof wanted, ", rank %d in barrier #", i);
            at = strstr(at, wanted);
        }
        tshi_check(r, at, "\"%s\"", words);
        tshi_check(r, tshi_now() - begun < TSHI_SOON, "after %g s", tshi_now() - begun);
        tshi_check_ok(r, tsh_world_recover(r->world));
        for (int i = 0; i < r->size; i++) tshi_check_ok(r, pairs[i] ? tsh_barrier(pairs[i]) : TSH_OK);
    }
    for (int i = 0; i < r->size; i++) tsh_group_destroy(pairs[i]);
}

Test(waits, a_circle_of_waits_ends_at_once_with_all_calls, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(3, 4, wait_in_a_circle, NULL));
    cr_assert_str_empty(tshi_test_run_threads(3, wait_in_a_circle, NULL));
}
