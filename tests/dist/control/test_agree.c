/* Agreements and gathers over the channel: on one machine, as processes and as threads, and on several machines, whose
 * relays are real and whose worlds have only what the channel uses. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/control/agree.h"
#include "dist/control/control.h"
#include "dist/registry.h"
#include "support/clock.h"
#include "support/machines.h"
#include "support/ranks.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- what every rank does, on a group of any kind ----------------------------------------------------------------- */

#define MOST_FACTS 65536

static void fill(unsigned char *to, size_t bytes, int rank, int round) {
    for (size_t i = 0; i < bytes; i++) to[i] = (unsigned char)(i * 7 + (size_t)rank * 31 + (size_t)round);
}

/* The words of what went wrong, or "". */
static const char *gathers(tsh_group *group, size_t bytes, int round) {
    static _Thread_local char words[TSHI_MESSAGE_SIZE + 64];
    unsigned char *mine = malloc(bytes), *all = malloc(bytes * (size_t)group->size), *wanted = malloc(bytes);
    words[0] = '\0';
    fill(mine, bytes, group->rank, round);
    if (tshi_control_gather(group, "facts", TSH_OK, mine, bytes, all) != TSH_OK)
        snprintf(words, sizeof words, "gather: %s", tsh_error_message());
    for (int i = 0; i < group->size && !words[0]; i++) {
        fill(wanted, bytes, i, round);
        if (memcmp(wanted, all + (size_t)i * bytes, bytes) != 0)
            snprintf(words, sizeof words, "the %zu bytes of member %d in round %d", bytes, i, round);
    }
    free(mine);
    free(all);
    free(wanted);
    return words;
}

/* Each member fetches a part of the next one, a part of member 0 and a part of the last. */
static const char *fetches(tsh_group *group, size_t bytes, int round) {
    static _Thread_local char words[TSHI_MESSAGE_SIZE + 64];
    const int32_t from[3] = {(group->rank + 1) % group->size, 0, group->size - 1};
    unsigned char *parts = malloc(3 * bytes), *wanted = malloc(bytes);
    words[0] = '\0';
    for (int k = 0; k < 3; k++) fill(parts + (size_t)k * bytes, bytes, group->rank, round + k);
    if (tshi_control_fetch(group, "parts", TSH_OK, from, 3, parts, bytes) != TSH_OK)
        snprintf(words, sizeof words, "fetch: %s", tsh_error_message());
    for (int k = 0; k < 3 && !words[0]; k++) {
        fill(wanted, bytes, from[k], round + k);
        if (memcmp(wanted, parts + (size_t)k * bytes, bytes) != 0)
            snprintf(words, sizeof words, "the %zu bytes of part %d, of member %d, in round %d", bytes, k, from[k],
                     round);
    }
    free(parts);
    free(wanted);
    return words;
}

static void add_up(void *mine, const void *theirs, size_t bytes) {
    uint64_t *sum = mine;
    const uint64_t *more = theirs;
    for (size_t i = 0; i < bytes / sizeof *sum; i++) sum[i] += more[i];
}

/* The sum of what all members pass. */
static const char *reduces(tsh_group *group, size_t bytes, int round) {
    static _Thread_local char words[TSHI_MESSAGE_SIZE + 64];
    const uint64_t size = (uint64_t)group->size;
    const size_t n = bytes / sizeof(uint64_t) + 1;
    uint64_t *sum = malloc(n * sizeof *sum);
    words[0] = '\0';
    for (size_t i = 0; i < n; i++) sum[i] = i + (uint64_t)(group->rank + round);
    if (tshi_control_reduce(group, "sums", TSH_OK, sum, n * sizeof *sum, add_up) != TSH_OK)
        snprintf(words, sizeof words, "reduce: %s", tsh_error_message());
    for (size_t i = 0; i < n && !words[0]; i++) {
        if (sum[i] != size * (i + (uint64_t)round) + size * (size - 1) / 2)
            snprintf(words, sizeof words, "sum %zu of %zu in round %d is %llu", i, n, round,
                     (unsigned long long)sum[i]);
    }
    free(sum);
    return words;
}

/* All agree but one member, which has another text, or has failed. */
static const char *differs(tsh_group *group, int other, bool fails) {
    static _Thread_local char words[2 * TSHI_MESSAGE_SIZE + 64];
    bool me = group->rank == other;
    char wanted[128];
    tsh_status failed = me && fails ? tshi_fail(TSH_ERR_SYSTEM, "no disk") : TSH_OK;
    tsh_status status = tshi_control_agree(group, me ? "left" : "right", failed);
    tsh_status expected = !fails ? TSH_ERR_MISMATCH : me ? TSH_ERR_SYSTEM : TSH_ERR_PEER;
    unsigned number = (unsigned)group->calls;
    if (fails)
        snprintf(wanted, sizeof wanted, me ? "no disk" : "rank %d: no disk", group->ranks[other]);
    else if (other == 0)
        snprintf(wanted, sizeof wanted, "rank %d: left #%u, rank %d: right #%u", group->ranks[0], number,
                 group->ranks[1], number);
    else
        snprintf(wanted, sizeof wanted, "rank %d: right #%u, rank %d: left #%u", group->ranks[0], number,
                 group->ranks[other], number);
    words[0] = '\0';
    if (status != expected || strcmp(tsh_error_message(), wanted) != 0)
        snprintf(words, sizeof words, "status %d, '%s' instead of '%s'", status, tsh_error_message(), wanted);
    return words;
}

/* Member `other` passes another number of bytes: no data is mixed up, and the next call works. */
static const char *other_bytes(tsh_group *group, int other) {
    unsigned char mine[3000] = {0};
    const size_t bytes = group->rank == other ? 2000 : 3000;
    unsigned char *all = malloc(3000 * (size_t)group->size);
    tsh_status status = tshi_control_gather(group, "facts", TSH_OK, mine, bytes, all);
    free(all);
    return status == TSH_ERR_MISMATCH ? "" : "gathers of different sizes did not fail";
}

/* A rank fails as soon as it has come out of an agreement: the others still come out of that one, and fail in the
 * next. */
static const char *fails_after(tsh_group *group, int round) {
    static _Thread_local char words[TSHI_MESSAGE_SIZE + 64];
    tsh_world *world = group->world;
    const char *call = "the agreement before the failure";
    tsh_status status = tshi_control_agree(group, "go on", TSH_OK), wanted = TSH_OK;
    if (status == TSH_OK && group->rank == round % group->size) {
        tshi_control_fail(world, "out of paper", (tshi_tape_step){0});
    } else if (status == TSH_OK) {
        call = "the agreement after the failure";
        status = tshi_control_agree(group, "go on", TSH_OK);
        wanted = TSH_ERR_PEER;
    }
    snprintf(words, sizeof words, "round %d: %s: status %d, %s", round, call, status, tsh_error_message());
    if (status != wanted || (wanted != TSH_OK && !strstr(words, "out of paper"))) return words;
    status = tshi_recover_groups(world);
    snprintf(words, sizeof words, "round %d: recover: %s", round, tsh_error_message());
    return status == TSH_OK ? "" : words;
}

static const char *everything(tsh_group *group) {
    const size_t bytes[] = {1, 8, TSHI_PACKET_BYTES, TSHI_PACKET_BYTES + 1, 5000, MOST_FACTS};
    const char *words = "";
    for (int i = 0; i < 6 && !words[0]; i++) words = gathers(group, bytes[i], i);
    for (int i = 0; i < 6 && !words[0]; i++) words = fetches(group, bytes[i], i);
    for (int i = 0; i < 6 && !words[0]; i++) words = reduces(group, bytes[i], i);
    for (int i = 0; i < group->size && !words[0]; i++) {
        words = differs(group, i, false);
        if (!words[0]) words = differs(group, i, true);
        if (!words[0]) words = other_bytes(group, i);
        if (!words[0]) words = gathers(group, 100, i);
    }
    return words;
}

/* --- one machine -------------------------------------------------------------------------------------------------- */

static void one_machine(tshi_rank *r, void *arg) {
    (void)arg;
    const char *words = everything(tsh_world_group(r->world));
    tshi_check(r, !words[0], "%s", words);
}

Test(agree, gathers_and_verdicts_on_one_machine, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(2, 6, one_machine, NULL));
    cr_assert_str_empty(tshi_test_run_threads(3, one_machine, NULL));
}

/* The sum of the messages that all ranks have sent so far. */
static uint64_t count_messages(tshi_rank *r) {
    uint64_t mine = r->world->machine.channel.sent, all[8] = {0}, sum = 0;
    tshi_check_ok(r, tshi_control_gather(tsh_world_group(r->world), "count", TSH_OK, &mine, sizeof mine, all));
    for (int i = 0; i < r->size; i++) sum += all[i];
    return sum;
}

static void counts(tshi_rank *r, void *arg) {
    tsh_mesh *mesh = NULL;
    (void)arg;
    const uint64_t one = 2 * ((uint64_t)r->size - 1), before = count_messages(r);
    for (int i = 0; i < 5; i++) tshi_check_ok(r, tshi_group_agree(tsh_world_group(r->world), "again", TSH_OK));
    uint64_t after = count_messages(r), agreements = after - before - one;
    tshi_check(r, agreements == 5 * one, "%llu messages", (unsigned long long)agreements);
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=-1,model=1", &mesh));
    agreements = count_messages(r) - after - one;
    tshi_check(r, agreements == 2 * one, "%llu messages for a mesh", (unsigned long long)agreements);
    tsh_mesh_destroy(mesh);
}

/* Facts travel with the votes. */
Test(agree, an_agreement_takes_two_messages_for_each_peer, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run_each(1, 6, counts, NULL));
}

/* Groups of all sizes and orders, whose agreements overlap: no group receives a message of another. */
static void many_groups(tshi_rank *r, void *arg) {
    enum { GROUPS = 12 };
    tsh_group *group[GROUPS] = {0};
    (void)arg;
    for (int i = 0; i < GROUPS; i++) {
        int ranks[4], n = 2 + i % 3;
        for (int k = 0; k < n; k++) ranks[k] = (i + 4 - k) % 4;
        tshi_check_ok(r, tsh_group_create(r->world, ranks, n, &group[i]));
    }
    for (int round = 0; round < 200 && !r->failed; round++) {
        for (int i = 0; i < GROUPS && !r->failed; i++) {
            const char *words = group[i] ? gathers(group[i], 24 + (size_t)i, round) : "";
            tshi_check(r, !words[0], "group %d: %s", i, words);
        }
    }
    for (int i = 0; i < GROUPS; i++) tsh_group_destroy(group[i]);
}

Test(agree, many_groups_at_a_time, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, many_groups, NULL));
    cr_assert_str_empty(tshi_test_run_threads(4, many_groups, NULL));
}

/* A rank that fails in words ends an agreement that waits for it; after a recovery its late messages are no one's. */
static void recovers(tshi_rank *r, void *arg) {
    tsh_group *group = tsh_world_group(r->world);
    (void)arg;
    for (int round = 0; round < 5; round++) {
        if (r->rank == round % r->size)
            tsh_world_fail(r->world, "out of paper");
        else
            tshi_check_status(r, tshi_group_agree(group, "go on", TSH_OK), TSH_ERR_PEER, "out of paper");
        tshi_check_ok(r, tsh_world_recover(r->world));
        const char *words = gathers(group, 40, round);
        tshi_check(r, !words[0], "%s", words);
    }
}

Test(agree, a_recovery_forgets_the_messages_of_before, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(2, 5, recovers, NULL));
    cr_assert_str_empty(tshi_test_run_threads(4, recovers, NULL));
}

static void fails_often(tshi_rank *r, void *arg) {
    const char *words = "";
    (void)arg;
    for (int round = 0; round < 100 && !words[0]; round++) words = fails_after(tsh_world_group(r->world), round);
    tshi_check(r, !words[0], "%s", words);
}

Test(agree, a_failure_after_an_agreement_does_not_change_it, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(2, 6, fails_often, NULL));
    cr_assert_str_empty(tshi_test_run_threads(5, fails_often, NULL));
}

static void stop_member(const tsh_world *world, int rank) {
    const tshi_machine *m = &world->machine;
    /* Two votes of world_init, and the member's. */
    while (atomic_load(&m->channel.queue[0].added) < 3) tshi_nap(1e-4);
    kill(m->page->record[rank].process, SIGSTOP);
}

/* Member 1 stops member 2 between its vote and the verdict, and votes last. Member 0 reaches the verdict, and fails.
 * Member 3, which receives the verdict from member 2, waits until member 2 goes on. */
static void waits_on(tshi_rank *r, void *arg) {
    tsh_group *group = tsh_world_group(r->world);
    const tshi_page *page = r->world->machine.page;
    (void)arg;
    if (r->rank == 1) stop_member(r->world, 2);
    tshi_check_ok(r, tshi_control_agree(group, "go on", TSH_OK));
    if (r->rank == 0) tsh_world_fail(r->world, "out of paper");
    if (r->rank == 1) {
        while (!atomic_load(&page->failures)) tshi_nap(1e-4);
        tshi_nap(0.2); /* so that member 3 has seen the failure, most often */
        kill(page->record[2].process, SIGCONT);
    }
    tshi_check_ok(r, tsh_world_recover(r->world));
}

Test(agree, a_member_between_waits_for_the_verdict_after_a_failure, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run(4, waits_on, NULL));
}

/* Rank 0 agrees with its peers, who are in a collective: the wait graph finds it at once, and names both calls. */
static void agrees_alone(tshi_rank *r, void *arg) {
    tsh_mesh *mesh = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 8);
    const char *axes = r->size == 2 ? "data=2" : "data=3";
    char wanted[64];
    (void)arg;
    double begun = tshi_now();
    tsh_status status = r->rank == 0 ? tsh_mesh_create(r->world, axes, &mesh)
                                     : tsh_all_reduce(tsh_world_group(r->world), x, TSH_REDUCE_SUM);
    snprintf(wanted, sizeof wanted, "rank 0 in mesh_create %s #", axes);
    tshi_check(r, status == TSH_ERR_MISMATCH || status == TSH_ERR_PEER, "%s", tsh_error_message());
    tshi_check(r, strstr(tsh_error_message(), wanted), "%s", tsh_error_message());
    tshi_check(r, strstr(tsh_error_message(), "in all_reduce float32 [8] sum #"), "%s", tsh_error_message());
    tshi_check(r, tshi_now() - begun < 20, "after %g s", tshi_now() - begun);
    tshi_check_ok(r, tsh_world_recover(r->world));
    tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), x, TSH_REDUCE_SUM));
    tsh_tensor_release(x);
}

Test(agree, an_agreement_and_a_collective_wait_for_each_other, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run_each(2, 3, agrees_alone, NULL));
    cr_assert_str_empty(tshi_test_run_threads(2, agrees_alone, NULL));
}

/* --- several machines --------------------------------------------------------------------------------------------- */

/* A world that has what the channel uses; it lives as long as its process. */
typedef struct part_of_world {
    tsh_world world;
    tsh_group group;
} part_of_world;

static part_of_world mine;

static void make_world(const tshi_test_machines *m, int rank) {
    static tsh_device device;
    static int ranks[TSHI_TEST_MACHINES * 8], node[TSHI_TEST_MACHINES * 8];
    tsh_world *world = &mine.world;
    tshi_machine *machine = &world->machine;
    if (world->size) return;
    world->allocator = tshi_allocator_resolve(NULL);
    world->rank = rank;
    world->size = m->machines * m->ranks;
    world->timeout = 5;
    world->warn_every = 60;
    world->host = world->device = &device;
    world->control = tshi_backend_of_machine();
    for (int i = 0; i < world->size; i++) {
        ranks[i] = i;
        node[i] = i / m->ranks;
    }
    *machine = (tshi_machine){.page = m->page[node[rank]],
                              .nodes = m->machines,
                              .node = node,
                              .ranks = ranks + node[rank] * m->ranks,
                              .count = m->ranks,
                              .deaths = {.file = -1},
                              .channel = {.queue = m->queues[node[rank]]}};
    if (tshi_waits_open(world, &machine->waits, NULL) != TSH_OK) abort();
    mine.group = (tsh_group){.world = world, .size = world->size, .rank = rank, .ranks = ranks};
}

/* What a rank is ordered to do. Its words go to the test. */
enum { EVERYTHING, AGREE, AGREE_SOON, LATENCY, FAIL_AFTER, DIE };

static void act(tshi_test_machines *m, int rank, int argument) {
    char *words = (char *)m->member[rank].bytes;
    make_world(m, rank);
    words[0] = '\0';
    if (argument == DIE) _exit(3);
    if (argument == EVERYTHING) snprintf(words, 1024, "%s", everything(&mine.group));
    if (argument == AGREE_SOON) mine.world.timeout = 1;
    if ((argument == AGREE || argument == AGREE_SOON) && tshi_control_agree(&mine.group, "go on", TSH_OK) != TSH_OK)
        snprintf(words, 1024, "%s", tsh_error_message());
    for (int i = 0; argument == FAIL_AFTER && i < 50 && !words[0]; i++)
        snprintf(words, 1024, "%s", fails_after(&mine.group, i));
    double start = tshi_now();
    for (int i = 0; argument == LATENCY && i < 200; i++) tshi_control_agree(&mine.group, "go on", TSH_OK);
    m->member[rank].seconds = (tshi_now() - start) / 200;
}

static void order(tshi_test_machines *m, int rank, int argument) {
    m->member[rank].argument = argument;
    atomic_store(&m->member[rank].order, TSHI_ORDER_ACT);
}

static void await(tshi_test_machines *m, int rank) {
    double end = tshi_now() + 60;
    while (atomic_load(&m->member[rank].obeyed) != TSHI_ORDER_ACT) {
        cr_assert(tshi_now() < end, "rank %d does not come back", rank);
        tshi_nap(200e-6);
    }
    tshi_test_order_do(m, rank, TSHI_ORDER_NONE, 0);
}

static void all_do(tshi_test_machines *m, int argument) {
    int size = m->machines * m->ranks;
    for (int i = 0; i < size; i++) order(m, i, argument);
    for (int i = 0; i < size; i++) await(m, i);
}

static void all_do_well(tshi_test_machines *m, int argument) {
    all_do(m, argument);
    for (int i = 0; i < m->machines * m->ranks; i++) {
        cr_assert_str_empty((const char *)m->member[i].bytes, "rank %d: %s", i, (const char *)m->member[i].bytes);
    }
}

static void several_machines(int machines, int ranks, int fan_out) {
    tshi_test_machines m = {.machines = machines, .ranks = ranks, .raw = -1, .fan_out = fan_out, .act = act};
    tshi_test_machines_begin(&m);
    all_do_well(&m, EVERYTHING);
    all_do_well(&m, LATENCY);
    printf("%d machines of %d ranks: an agreement takes %.0f us\n", machines, ranks, m.member[0].seconds * 1e6);
    tshi_test_machines_end(&m);
}

Test(agree, gathers_and_verdicts_on_two_machines, .timeout = 120) {
    several_machines(2, 1, 0);
    several_machines(2, 3, 0);
}

Test(agree, gathers_and_verdicts_on_three_machines, .timeout = 120) {
    several_machines(3, 2, 0);
}

Test(agree, gathers_and_verdicts_in_deep_trees_of_machines, .timeout = 120) {
    several_machines(4, 1, 1);
    several_machines(7, 1, 2);
}

Test(agree, a_failure_after_an_agreement_of_several_machines_does_not_change_it, .timeout = 120) {
    for (int machines = 2; machines <= 4; machines++) {
        tshi_test_machines m = {.machines = machines, .ranks = 2, .raw = -1, .act = act};
        m.fan_out = machines == 4; /* a chain */
        tshi_test_machines_begin(&m);
        all_do_well(&m, FAIL_AFTER);
        tshi_test_machines_end(&m);
    }
}

static void check_words(const tshi_test_machines *m, int but, const char *words) {
    for (int i = 0; i < m->machines * m->ranks; i++) {
        const char *said = (const char *)m->member[i].bytes;
        if (i != but) cr_assert(strstr(said, words), "rank %d says '%s', not '%s'", i, said, words);
    }
}

/* Rank `rank` leaves, or dies, while the others wait in an agreement. */
static void one_goes(int machines, int rank, bool dies) {
    tshi_test_machines m = {.machines = machines, .ranks = 2, .raw = -1, .act = act};
    char words[64];
    m.fan_out = machines > 2; /* a chain */
    tshi_test_machines_begin(&m);
    for (int i = 0; i < 2 * machines; i++) {
        if (i != rank) order(&m, i, AGREE);
    }
    if (dies)
        tshi_test_machines_kill(&m, rank);
    else
        tshi_test_order_do(&m, rank, TSHI_ORDER_LEAVE, 0);
    for (int i = 0; i < 2 * machines; i++) {
        if (i != rank) await(&m, i);
    }
    snprintf(words, sizeof words, dies ? "rank %d died" : "rank %d has left the world", rank);
    check_words(&m, rank, words);
    tshi_test_machines_end(&m);
}

/* Rank 3 waits for rank 2, of whose end it would hear from the hub. */
Test(agree, no_rank_waits_for_another_behind_a_hub_that_has_left, .timeout = 120) {
    tshi_test_machines m = {.machines = 4, .ranks = 1, .raw = -1, .act = act};
    tshi_test_machines_begin(&m);
    tshi_test_order_do(&m, 0, TSHI_ORDER_LEAVE, 0);
    cr_assert_eq(tshi_test_machines_reap(&m, 0), 0);
    for (int i = 1; i < 4; i++) order(&m, i, AGREE);
    for (int i = 1; i < 4; i++) {
        await(&m, i);
        const char *said = (const char *)m.member[i].bytes;
        cr_assert(strstr(said, i < 3 ? "rank 0 has left the world" : "rank 2 cannot be reached"), "%d: '%s'", i, said);
    }
    tshi_test_machines_end(&m);
}

/* In the tree of votes rank 4 waits for rank 5, and rank 0 for rank 4. */
Test(agree, a_deadline_names_the_rank_that_all_machines_wait_for, .timeout = 120) {
    tshi_test_machines m = {.machines = 4, .ranks = 2, .raw = -1, .fan_out = 1, .act = act};
    tshi_test_machines_begin(&m);
    for (int i = 0; i < 8; i++) {
        if (i != 5) order(&m, i, AGREE_SOON);
    }
    for (int i = 0; i < 8; i++) {
        if (i != 5) await(&m, i);
    }
    check_words(&m, 5, "go on #1: rank 5 did not come within 1 s");
    tshi_test_machines_end(&m);
}

Test(agree, a_rank_dies_in_an_agreement_of_two_machines, .timeout = 120) {
    one_goes(2, 1, true);
    one_goes(2, 3, true);
}

Test(agree, a_rank_leaves_before_an_agreement_of_two_machines, .timeout = 120) {
    one_goes(2, 1, false);
    one_goes(2, 3, false);
}

Test(agree, a_rank_leaves_or_dies_before_an_agreement_of_a_chain_of_machines, .timeout = 120) {
    one_goes(4, 7, false);
    one_goes(4, 1, false);
    one_goes(4, 7, true);
    one_goes(4, 3, true);
}
