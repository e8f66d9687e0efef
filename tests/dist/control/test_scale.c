/* The control plane with up to 1,024 ranks in one process: what it sends, whom it connects, the memory that it takes.
 *
 * Agreements run in worlds whose ranks are threads. Relays have no threads here: the test calls the turns of all relays
 * in a circle until none has anything to send, with a clock of its own, so that the counts depend on nothing else. Each
 * simulated machine has one rank, a page of its own, and socket pairs to its neighbours. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/clock.h"
#include "dist/control/relay_turn.h"
#include "dist/world.h"
#include "support/ranks.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- agreements --------------------------------------------------------------------------------------------------- */

static _Atomic uint64_t messages, bytes;

/* Without rows in the wait graph, as in a world of several machines: 1,024 ranks of one would search it again and
 * again. */
static void create_mesh(tshi_rank *r, void *axes) {
    const tshi_channel *channel = &r->world->machine.channel;
    void *rows = (void *)r->world->machine.waits.rows;
    r->world->machine.waits.rows = NULL;
    const uint64_t sent = channel->sent, sent_bytes = channel->sent_bytes;
    tsh_mesh *mesh = NULL;
    tshi_check_ok(r, tsh_mesh_create(r->world, axes, &mesh));
    atomic_fetch_add(&messages, channel->sent - sent);
    atomic_fetch_add(&bytes, channel->sent_bytes - sent_bytes);
    tsh_mesh_destroy(mesh);
    r->world->machine.waits.rows = rows;
}

/* Two agreements, in which every member but one sends a vote and gets a verdict. */
static void check_mesh(int ranks, char *axes) {
    const tshi_test_options options = {.ranks = ranks, .threads = true, .heap_bytes = 16 << 20};
    messages = bytes = 0;
    cr_assert_str_empty(tshi_test_run_with(&options, create_mesh, axes, NULL, NULL));
    printf("mesh of %d ranks: %llu messages, %llu bytes\n", ranks, (unsigned long long)messages,
           (unsigned long long)bytes);
    cr_assert_eq(messages, 4 * ((uint64_t)ranks - 1), "%llu messages", (unsigned long long)messages);
    /* The parts of a fetch pass each level of the tree: 10 of 1,024 ranks. 24 bytes up and 16 down, of 32 or less. */
    cr_assert_leq(bytes, messages * 400 + (uint64_t)ranks * 10 * 40, "%llu bytes", (unsigned long long)bytes);
}

Test(scale, a_mesh_takes_two_agreements, .timeout = 240) {
    check_mesh(32, "data=4,model=8");
    check_mesh(128, "data=16,model=8");
    check_mesh(1024, "data=128,model=8");
}

/* --- simulated machines ------------------------------------------------------------------------------------------- */

typedef struct simulation {
    int machines, hub, fan_out;
    double now;
    tsh_allocator allocator;
    tshi_roster roster;
    tshi_page **page;           /* [machines] */
    tshi_packet_queue **queues; /* [machines] */
    tshi_relay **relay;         /* [machines]; NULL: it has ended */
} simulation;

static const int sizes[] = {2, 32, 128, 1024};

/* Memory that only takes what is touched. */
static void *untouched(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    cr_assert_neq(memory, MAP_FAILED);
    return memory;
}

static size_t touched(void *memory, size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (size + page - 1) / page, n = 0;
    unsigned char *in_core = malloc(pages);
    cr_assert_eq(mincore(memory, size, in_core), 0);
    for (size_t i = 0; i < pages; i++) n += in_core[i] & 1;
    free(in_core);
    return n * page;
}

static void begin(simulation *s) {
    const struct rlimit many = {4096, 4096};
    const size_t n = (size_t)s->machines;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &many), 0);
    s->page = calloc(n, sizeof *s->page);
    s->queues = calloc(n, sizeof *s->queues);
    s->relay = calloc(n, sizeof *s->relay);
    s->now = tshi_clock();
    s->allocator = tshi_allocator_resolve(NULL);
    cr_assert_eq(tshi_roster_init(&s->roster, s->machines, s->machines, &s->allocator), TSH_OK);
    tshi_machine_links *links = calloc(n, sizeof *links);
    for (int i = 0; i < s->machines; i++) {
        s->roster.node[i] = i;
        snprintf(s->roster.host[i], sizeof s->roster.host[i], "m%d", i);
        s->page[i] = untouched(tshi_page_bytes(s->machines));
        s->page[i]->size = s->machines;
        s->queues[i] = untouched(tshi_packet_queues_bytes(s->machines));
        links[i] = (tshi_machine_links){.node = i, .nodes = s->machines, .hub = s->hub, .fan_out = s->fan_out};
        links[i].connection = malloc(n * sizeof *links[i].connection);
        for (int k = 0; k < s->machines; k++) links[i].connection[k] = -1;
    }
    for (int i = 0; i < s->machines; i++) {
        int pair[2], parent = tshi_links_toward(&links[i], s->hub);
        if (i == s->hub) continue;
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        links[i].connection[parent] = pair[0];
        links[parent].connection[i] = pair[1];
    }
    for (int i = 0; i < s->machines; i++) {
        s->roster.rank = i;
        tshi_relay_plan plan = {s->page[i], s->roster, -1, 60, &s->allocator, s->queues[i]};
        cr_assert_eq(tshi_relay_new(&plan, &links[i], &s->relay[i]), TSH_OK);
        free(links[i].connection);
    }
    free(links);
}

static void end_relay(simulation *s, int i) {
    tshi_relay_close_links(s->relay[i]);
    tshi_relay_free(s->relay[i]);
    s->relay[i] = NULL;
}

static void end(simulation *s) {
    for (int i = 0; i < s->machines; i++) {
        if (s->relay[i]) end_relay(s, i);
        munmap(s->page[i], tshi_page_bytes(s->machines));
        munmap(s->queues[i], tshi_packet_queues_bytes(s->machines));
    }
    tshi_roster_free(&s->roster, &s->allocator);
    free(s->page);
    free(s->queues);
    free(s->relay);
}

/* What relays have written in some turns. */
typedef struct tally {
    uint64_t kind[TSHI_NEWS_KINDS], bytes;
} tally;

static uint64_t all_of(const tally *t) {
    return t->kind[TSHI_NEWS_RANK] + t->kind[TSHI_NEWS_FAREWELL] + t->kind[TSHI_NEWS_PACKET];
}

static void turn_once(simulation *s, int i, tally *t) {
    if (!s->relay[i]) return;
    const tshi_relay *r = s->relay[i];
    tally before = {.bytes = r->written_bytes};
    memcpy(before.kind, r->written, sizeof before.kind);
    bool goes_on = tshi_relay_turn(s->relay[i], s->now, 0);
    for (int k = 0; k < TSHI_NEWS_KINDS; k++) t->kind[k] += r->written[k] - before.kind[k];
    t->bytes += r->written_bytes - before.bytes;
    if (!goes_on) end_relay(s, i);
}

/* Turns until nothing is sent any more, nor has just been, nor closed. */
static tally settle(simulation *s) {
    tally t = {0};
    for (int quiet = 0; quiet < 3; quiet++) {
        uint64_t before = t.bytes;
        for (int i = 0; i < s->machines; i++) turn_once(s, i, &t);
        if (t.bytes != before) quiet = -1;
    }
    return t;
}

/* For some seconds, in steps shorter than any time that a relay waits. */
static tally pass_time(simulation *s, double seconds) {
    tally all = {0};
    for (double until = s->now + seconds; s->now < until; s->now += 0.05) {
        tally t = settle(s);
        for (int k = 0; k < TSHI_NEWS_KINDS; k++) all.kind[k] += t.kind[k];
        all.bytes += t.bytes;
    }
    return all;
}

/* A relay to which all others have said farewell has ended before. */
static void leave(simulation *s, int rank) {
    tshi_page_leave(s->page[rank], rank);
    if (s->relay[rank]) atomic_store(&s->relay[rank]->leaving, true);
}

static void check_states(const simulation *s, int machine, uint32_t state, int but) {
    for (int i = 0; i < s->machines; i++) {
        uint32_t now = tshi_page_state(s->page[machine], i);
        if (i != but) cr_assert_eq(now, state, "machine %d: rank %d is in state %u", machine, i, now);
    }
}

/* --- leaving ------------------------------------------------------------------------------------------------------ */

/* How many ranks leave between two rounds of turns. */
static void check_leaving(int machines, int fan_out, int at_a_time) {
    simulation s = {.machines = machines, .fan_out = fan_out, .hub = machines / 3};
    tally t = {0};
    begin(&s);
    settle(&s);
    for (int i = 0; i < machines; i++) {
        int rank = (i * 7 + 5) % machines; /* no order of the tree; 7 divides no size */
        leave(&s, rank);
        if (i % at_a_time == at_a_time - 1) {
            tally some = settle(&s);
            for (int k = 0; k < TSHI_NEWS_KINDS; k++) t.kind[k] += some.kind[k];
        }
    }
    tally rest = settle(&s);
    for (int k = 0; k < TSHI_NEWS_KINDS; k++) t.kind[k] += rest.kind[k];
    for (int i = 0; i < machines; i++) {
        cr_assert_null(s.relay[i], "the relay of machine %d goes on", i);
        check_states(&s, i, TSHI_ALIVE, -1);
    }
    printf("%d machines, fan-out %d: leaving took %llu messages\n", machines, fan_out, (unsigned long long)all_of(&t));
    cr_assert_eq(t.kind[TSHI_NEWS_RANK], 0);
    cr_assert_leq(all_of(&t), 2 * ((uint64_t)machines - 1), "%llu messages", (unsigned long long)all_of(&t));
    end(&s);
}

Test(scale, leaving_is_a_wave_up_and_at_most_one_down, .timeout = 240) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        check_leaving(sizes[i], TSHI_FAN_OUT, sizes[i]);
        check_leaving(sizes[i], TSHI_FAN_OUT, sizes[i] / 16 + 1);
        check_leaving(sizes[i], 2, sizes[i] / 16 + 1);
    }
}

/* One rank leaves while the others compute: soon every page says that it has left, and none that it has died. The news
 * pass each other link once. */
static void check_early(int machines, int fan_out, int rank) {
    simulation s = {.machines = machines, .fan_out = fan_out, .hub = 0};
    begin(&s);
    settle(&s);
    leave(&s, rank);
    tally t = pass_time(&s, 0.6);
    for (int i = 0; i < machines; i++) {
        cr_assert_eq(s.page[i]->record[rank].left, 1, "machine %d does not know that rank %d has left", i, rank);
        check_states(&s, i, TSHI_ALIVE, -1);
    }
    cr_assert_leq(all_of(&t), (uint64_t)machines, "%llu messages", (unsigned long long)all_of(&t));
    end(&s);
}

Test(scale, a_rank_that_leaves_early_is_known_to_have_left, .timeout = 240) {
    check_early(32, TSHI_FAN_OUT, 31);
    check_early(128, TSHI_FAN_OUT, 127);
    check_early(128, TSHI_FAN_OUT, 1);
    check_early(128, 8, 0);
    check_early(1024, TSHI_FAN_OUT, 1023);
}

/* --- failures, deaths, packets ------------------------------------------------------------------------------------ */

static void check_failure(int machines, int fan_out, int rank) {
    simulation s = {.machines = machines, .fan_out = fan_out, .hub = 0};
    begin(&s);
    settle(&s);
    tshi_page_set_state(s.page[rank], rank, TSHI_ALIVE, TSHI_FAILED);
    tally t = settle(&s);
    for (int i = 0; i < machines; i++) {
        cr_assert_eq(tshi_page_state(s.page[i], rank), TSHI_FAILED);
        cr_assert_eq(s.page[i]->failures, 1);
    }
    printf("%d machines: the failure of a rank took %llu messages\n", machines, (unsigned long long)all_of(&t));
    /* Each link passes one of each rank: that it has failed, or that it is in no call. */
    cr_assert_leq(all_of(&t), (uint64_t)machines * ((uint64_t)machines - 1));
    end(&s);
}

Test(scale, a_failure_is_known_everywhere, .timeout = 240) {
    check_failure(32, TSHI_FAN_OUT, 31);
    check_failure(128, TSHI_FAN_OUT, 127);
    check_failure(128, 2, 0);
}

/* A machine in the middle dies: to those above it and beside it, it and all behind it are dead; those below lose all
 * machines but those that they still reach. */
Test(scale, a_machine_in_the_middle_dies, .timeout = 240) {
    simulation s = {.machines = 7, .fan_out = 2, .hub = 0}; /* 1 has the children 3 and 4; 2 has 5 and 6 */
    begin(&s);
    settle(&s);
    end_relay(&s, 1);
    settle(&s);
    for (int i = 0; i < 7; i++) {
        bool below = i == 3 || i == 4;
        for (int rank = 0; i != 1 && rank < 7; rank++) {
            bool dead = below ? rank != i : rank == 1 || rank == 3 || rank == 4;
            cr_assert_eq(tshi_page_state(s.page[i], rank), dead ? TSHI_DEAD : TSHI_ALIVE, "machine %d: rank %d: %s", i,
                         rank, s.page[i]->record[rank].reason);
        }
        if (i != 1) cr_assert_eq(s.page[i]->cause, 1 + 1, "machine %d: the cause is %u", i, s.page[i]->cause);
    }
    const char *reason = s.page[6]->record[4].reason;
    cr_assert(strstr(reason, "machine m4 is reached over machine m1 (rank 1), which cannot be reached: its conn"), "%s",
              reason);
    end(&s);
}

/* A packet passes as many links as lie between its ends. */
static uint64_t links_between(simulation *s, int from, int to) {
    tshi_packet packet = {.from = from, .to = to, .total = 5, .length = 5, .data = "hello"};
    cr_assert(tshi_packet_add(&s->queues[from][s->machines], &packet));
    tally t = settle(s);
    memset(&packet, 0, sizeof packet);
    cr_assert(tshi_packet_take(&s->queues[to][to], &packet), "nothing comes from %d to %d", from, to);
    cr_assert_eq(packet.from, from);
    cr_assert_str_eq((char *)packet.data, "hello");
    return t.kind[TSHI_NEWS_PACKET];
}

Test(scale, packets_take_the_shortest_way, .timeout = 240) {
    simulation s = {.machines = 1024, .fan_out = TSHI_FAN_OUT, .hub = 0};
    begin(&s);
    settle(&s);
    cr_assert_eq(links_between(&s, 0, 1), 1);
    cr_assert_eq(links_between(&s, 33, 0), 2);
    cr_assert_eq(links_between(&s, 33, 34), 2);
    cr_assert_eq(links_between(&s, 33, 1023), 4);
    end(&s);
}

/* --- connections and memory --------------------------------------------------------------------------------------- */

Test(scale, connections_and_memory_of_1024_ranks, .timeout = 240) {
    simulation s = {.machines = 1024, .fan_out = TSHI_FAN_OUT, .hub = 0};
    const size_t link = sizeof(tshi_relay_link) + (size_t)s.machines * sizeof(tshi_told);
    int most = 0;
    begin(&s);
    for (int i = 0; i < s.machines; i++) most = s.relay[i]->n > most ? s.relay[i]->n : most;
    settle(&s);
    links_between(&s, 0, 1023);
    size_t relay = (size_t)s.relay[0]->n * link;
    for (int i = 0; i < s.machines; i++) leave(&s, i);
    settle(&s);
    /* The hub has heard of every rank, and a packet has passed its queue. */
    size_t page = touched(s.page[0], tshi_page_bytes(s.machines));
    size_t queues = touched(s.queues[0], tshi_packet_queues_bytes(s.machines));
    printf("1024 machines: at most %d connections; at the hub %zu bytes of page, %zu of queues, %zu of the relay's\n",
           most, page, queues, relay);
    cr_assert_leq(most, TSHI_FAN_OUT + 1);
    cr_assert_lt(page + queues + relay, 2 << 20);
    end(&s);
}
