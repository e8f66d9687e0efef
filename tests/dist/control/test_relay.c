/* What happens to a rank of one machine is on the pages of all. The machines are processes of this one, connected over
 * loopback. Waits are for events; how long they took is printed. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/control/news.h"
#include "support/clock.h"
#include "support/machines.h"

#include <criterion/criterion.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Every machine's page gets that state of a rank, but that of the machine `but`. */
static double await_everywhere(const tshi_test_machines *m, int but, int of, uint32_t state) {
    double longest = 0;
    for (int i = 0; i < m->machines; i++) {
        if (i == but) continue;
        double seconds = tshi_test_await_state(m, i, of, state);
        cr_assert(seconds >= 0, "machine %d does not know that rank %d is in state %u (but %u: %s)", i, of, state,
                  tshi_page_state(m->page[i], of), m->page[i]->record[of].reason);
        if (seconds > longest) longest = seconds;
    }
    return longest;
}

static void check_words(const tshi_test_machines *m, int machine, int of, const char *words) {
    const char *reason = m->page[machine]->record[of].reason;
    cr_assert(strstr(reason, words), "machine %d says of rank %d: '%s', not '%s'", machine, of, reason, words);
}

static void await_value(const _Atomic uint32_t *value, uint32_t wanted, const char *what) {
    double end = tshi_now() + 60;
    while (atomic_load(value) != wanted) {
        cr_assert(tshi_now() < end, "%s is %u, not %u", what, atomic_load(value), wanted);
        tshi_nap(200e-6);
    }
}

static void await_step(const tshi_test_machines *m, int of, uint32_t step) {
    for (int i = 0; i < m->machines; i++) await_value(&m->page[i]->record[of].recover, step, "the step of recovering");
}

/* No page says that a rank is anything but alive. */
static void check_peace(const tshi_test_machines *m) {
    for (int i = 0; i < m->machines * m->machines * m->ranks; i++) {
        int machine = i % m->machines, rank = i / m->machines;
        cr_assert_eq(tshi_page_state(m->page[machine], rank), TSHI_ALIVE, "machine %d: rank %d: %s", machine, rank,
                     m->page[machine]->record[rank].reason);
        cr_assert_eq(m->page[machine]->failures, 0);
    }
}

static void leave_all(tshi_test_machines *m) {
    for (int i = 0; i < m->machines * m->ranks; i++) atomic_store(&m->member[i].order, TSHI_ORDER_LEAVE);
    for (int i = 0; i < m->machines * m->ranks; i++) {
        int end = tshi_test_machines_reap(m, i);
        cr_assert_eq(end, 0, "rank %d ended with %d", i, end);
    }
}

/* --- failures, recovering, leaving -------------------------------------------------------------------------------- */

static void recover_all(tshi_test_machines *m) {
    int size = m->machines * m->ranks;
    for (int step = 1; step <= 3; step++) {
        for (int i = 0; i < size; i++) tshi_test_order_do(m, i, TSHI_ORDER_RECOVER, step);
        for (int i = 0; i < size; i++) await_step(m, i, (uint32_t)step);
    }
}

static void fail_and_recover(int machines, int fan_out) {
    tshi_test_machines m = {.machines = machines, .ranks = 2, .raw = -1, .fan_out = fan_out};
    tshi_test_machines_begin(&m);
    for (int rank = 0; rank < machines * m.ranks; rank++) {
        tshi_test_order_do(&m, rank, TSHI_ORDER_FAIL, 0);
        double seconds = await_everywhere(&m, -1, rank, TSHI_FAILED);
        for (int i = 0; i < machines; i++) {
            char words[64];
            snprintf(words, sizeof words, "rank %d cannot go on", rank);
            check_words(&m, i, rank, words);
            cr_assert_eq(m.page[i]->record[rank].step.number, 7);
            cr_assert_eq(m.page[i]->record[rank].step.tape, 1);
            cr_assert_eq(m.page[i]->failures, rank + 1);
        }
        printf("%d machines: the failure of rank %d was everywhere after %.1f ms\n", machines, rank, seconds * 1e3);
    }
    recover_all(&m);
    check_peace(&m);
    leave_all(&m);
    for (int i = 0; i < machines; i++) {
        /* A machine that has left first does not hear of the others. */
        for (int r = i * 2; r < i * 2 + 2; r++) cr_assert_eq(m.page[i]->record[r].left, 1);
    }
    check_peace(&m);
    for (int i = 0; i < machines * m.ranks; i++) printf("rank %d left in %.1f ms\n", i, m.member[i].left_in * 1e3);
    tshi_test_machines_end(&m);
}

Test(relay, failures_and_recovery_on_two_machines, .timeout = 120) {
    fail_and_recover(2, 0);
}

Test(relay, failures_and_recovery_on_three_machines, .timeout = 120) {
    fail_and_recover(3, 0);
}

Test(relay, failures_and_recovery_on_five_machines, .timeout = 120) {
    fail_and_recover(5, 0);
}

Test(relay, failures_and_recovery_in_deep_trees, .timeout = 120) {
    fail_and_recover(4, 1);
    fail_and_recover(7, 2);
}

/* A rank that leaves is known to have left, and its end is no death; the relay of its machine goes on. */
static void leave_early(int fan_out) {
    tshi_test_machines m = {.machines = 3, .ranks = 2, .raw = -1, .fan_out = fan_out};
    tshi_test_machines_begin(&m);
    tshi_test_order_do(&m, 3, TSHI_ORDER_LEAVE, 0);
    cr_assert_eq(tshi_test_machines_reap(&m, 3), 0);
    for (int i = 0; i < 3; i++) await_value(&m.page[i]->record[3].left, 1, "left");
    tshi_test_order_do(&m, 2, TSHI_ORDER_FAIL, 0);
    await_everywhere(&m, -1, 2, TSHI_FAILED);
    cr_assert_eq(tshi_page_state(m.page[0], 3), TSHI_ALIVE);
    cr_assert_eq(m.page[0]->failures, 1);
    tshi_test_machines_end(&m);
}

Test(relay, a_rank_leaves_before_the_others, .timeout = 120) {
    leave_early(0);
    leave_early(1);
}

/* In a chain the last machine leaves, then the one before it, and so on: each is known to have left, and takes no
 * time. */
Test(relay, machines_of_a_chain_leave_one_by_one, .timeout = 120) {
    tshi_test_machines m = {.machines = 4, .ranks = 1, .raw = -1, .fan_out = 1};
    tshi_test_machines_begin(&m);
    for (int rank = 3; rank >= 0; rank--) {
        tshi_test_order_do(&m, rank, TSHI_ORDER_LEAVE, 0);
        cr_assert_eq(tshi_test_machines_reap(&m, rank), 0);
        for (int i = 0; i < rank; i++) await_value(&m.page[i]->record[rank].left, 1, "left");
        printf("machine %d of a chain left in %.1f ms\n", rank, m.member[rank].left_in * 1e3);
    }
    check_peace(&m);
    tshi_test_machines_end(&m);
}

/* The machine of the hub may leave first, too: it takes its time, and nothing looks like a death. */
Test(relay, the_first_machine_leaves_before_the_others, .timeout = 120) {
    tshi_test_machines m = {.machines = 3, .ranks = 1, .raw = -1};
    tshi_test_machines_begin(&m);
    tshi_test_order_do(&m, 0, TSHI_ORDER_LEAVE, 0);
    cr_assert_eq(tshi_test_machines_reap(&m, 0), 0);
    printf("the hub left in %.1f ms\n", m.member[0].left_in * 1e3);
    for (int i = 0; i < 3; i++) await_value(&m.page[i]->record[0].left, 1, "left");
    tshi_nap(0.1); /* what would be wrong is on the pages by now, most often */
    check_peace(&m);
    leave_all(&(tshi_test_machines){.machines = 1, .ranks = 2, .pid = m.pid + 1, .member = m.member + 1});
    m.pid[1] = m.pid[2] = 0;
    check_peace(&m);
    tshi_test_machines_end(&m);
}

/* --- deaths ------------------------------------------------------------------------------------------------------- */

/* Each rank of each machine dies in a run of its own. */
static void die(int machines, int fan_out, int rank) {
    tshi_test_machines m = {.machines = machines, .ranks = 2, .raw = -1, .fan_out = fan_out};
    int machine = rank / m.ranks;
    bool relay = rank % m.ranks == 0;
    tshi_test_machines_begin(&m);
    tshi_test_machines_kill(&m, rank);
    double seconds = await_everywhere(&m, relay ? machine : -1, rank, TSHI_DEAD);
    printf("%d machines: the death of rank %d was everywhere after %.1f ms\n", machines, rank, seconds * 1e3);
    for (int i = 0; i < machines; i++) {
        if (i == machine) continue;
        if (!relay) {
            cr_assert_str_empty(m.page[i]->record[rank].reason);
            cr_assert_eq(m.page[i]->failures, 1);
            continue;
        }
        char words[96];
        snprintf(words, sizeof words, "machine %c (ranks %d, %d) cannot be reached: its connection ended",
                 'a' + machine, rank, rank + 1);
        tshi_test_await_state(&m, i, rank + 1, TSHI_DEAD);
        check_words(&m, i, rank, words);
        check_words(&m, i, rank + 1, words);
        cr_assert_eq(m.page[i]->cause, rank + 1);
    }
    /* Behind a hub that has died are the other machines. */
    if (rank == 0 && machines > 2 && fan_out == 0) {
        cr_assert(tshi_test_await_state(&m, 1, 4, TSHI_DEAD) >= 0);
        check_words(&m, 1, 4, "machine c is reached over machine a (ranks 0, 1), which cannot be reached: its conn");
    }
    tshi_test_machines_end(&m);
}

Test(relay, deaths_on_two_machines, .timeout = 240) {
    for (int rank = 0; rank < 4; rank++) die(2, 0, rank);
}

Test(relay, deaths_on_three_machines, .timeout = 240) {
    for (int rank = 0; rank < 6; rank++) die(3, 0, rank);
}

Test(relay, deaths_on_five_machines, .timeout = 240) {
    for (int rank = 0; rank < 10; rank += 3) die(5, 0, rank);
}

/* Of a leaf, of a machine in the middle and of the root, a rank with the relay and one without. */
Test(relay, deaths_in_deep_trees, .timeout = 240) {
    static const int chain[] = {0, 1, 4, 5, 8, 9}, tree[] = {0, 2, 3, 12, 13};
    for (int i = 0; i < 6; i++) die(5, 1, chain[i]);
    for (int i = 0; i < 5; i++) die(7, 2, tree[i]);
}

/* What a rank has failed with stays the reason when it dies. */
Test(relay, a_death_after_a_failure, .timeout = 120) {
    tshi_test_machines m = {.machines = 2, .ranks = 2, .raw = -1};
    tshi_test_machines_begin(&m);
    tshi_test_order_do(&m, 2, TSHI_ORDER_FAIL, 0);
    await_everywhere(&m, -1, 2, TSHI_FAILED);
    tshi_test_machines_kill(&m, 2);
    tshi_test_await_state(&m, 0, 2, TSHI_DEAD);
    check_words(&m, 0, 2, "rank 2 cannot go on");
    tshi_test_machines_end(&m);
}

/* A child that outlives its rank, a relay's or another, hides no death. */
Test(relay, a_child_outlives_its_rank, .timeout = 120) {
    for (int rank = 0; rank < 4; rank++) {
        tshi_test_machines m = {.machines = 2, .ranks = 2, .raw = -1};
        tshi_test_machines_begin(&m);
        tshi_test_order_do(&m, rank, TSHI_ORDER_FORK, 0);
        tshi_test_machines_kill(&m, rank);
        await_everywhere(&m, rank % 2 == 0 ? rank / 2 : -1, rank, TSHI_DEAD);
        cr_assert_eq(kill(m.member[rank].child, 0), 0, "the child has ended");
        tshi_test_machines_end(&m);
    }
}

/* A program that closes all descriptors loses nothing: news still comes and goes, deaths are seen, leaving is clean. */
Test(relay, a_program_closes_every_descriptor, .timeout = 120) {
    tshi_test_machines m = {.machines = 3, .ranks = 2, .raw = -1};
    tshi_test_machines_begin(&m);
    for (int i = 0; i < 6; i++) tshi_test_order_do(&m, i, TSHI_ORDER_CLOSE, 0);
    for (int i = 0; i < 6; i++) {
        tshi_test_order_do(&m, i, TSHI_ORDER_FAIL, 0);
        await_everywhere(&m, -1, i, TSHI_FAILED);
    }
    recover_all(&m);
    check_peace(&m);
    tshi_test_machines_kill(&m, 5);
    await_everywhere(&m, -1, 5, TSHI_DEAD);
    tshi_test_machines_kill(&m, 2);
    await_everywhere(&m, 1, 3, TSHI_DEAD);
    tshi_test_order_do(&m, 4, TSHI_ORDER_LEAVE, 0);
    cr_assert_eq(tshi_test_machines_reap(&m, 4), 0);
    await_value(&m.page[0]->record[4].left, 1, "left");
    cr_assert_eq(tshi_page_state(m.page[0], 4), TSHI_ALIVE);
    tshi_test_machines_end(&m);
}

/* A stopped machine is given up after the deadline by the others, and they by it when it goes on. */
static void check_given_up(tshi_test_machines *m, int machine, double start) {
    int first = machine * 2, other = machine == 0 ? 1 : 0;
    char words[96];
    await_everywhere(m, machine, first, TSHI_STUCK);
    await_everywhere(m, machine, first + 1, TSHI_STUCK);
    printf("machine %d was given up after %.2f s\n", machine, tshi_now() - start);
    cr_assert(tshi_now() - start > 3.5, "a machine is given up too early");
    snprintf(words, sizeof words, "machine %c (ranks %d, %d) cannot be reached: nothing has come from it for 5 s",
             'a' + machine, first, first + 1);
    for (int i = 0; i < 3; i++) {
        if (i != machine) check_words(m, i, first + 1, words);
    }
    for (int i = 0; i < 2; i++) kill(m->pid[first + i], SIGCONT);
    cr_assert(tshi_test_await_state(m, machine, other * 2, TSHI_DEAD) >= 0);
    snprintf(words, sizeof words, "machine %c (ranks %d, %d) cannot be reached: its connection ended", 'a' + other,
             other * 2, other * 2 + 1);
    check_words(m, machine, other * 2, words);
    tshi_test_machines_end(m);
}

/* The hub of one job and another machine of a second one, so that the two wait at once. */
Test(relay, stopped_machines_are_given_up, .timeout = 120) {
    tshi_test_machines m[2];
    for (int i = 0; i < 2; i++) {
        m[i] = (tshi_test_machines){.machines = 3, .ranks = 2, .raw = -1, .timeout = 0.5};
        tshi_test_machines_begin(&m[i]);
    }
    double start = tshi_now();
    for (int i = 0; i < 4; i++) kill(m[i / 2].pid[i], SIGSTOP);
    for (int i = 0; i < 2; i++) check_given_up(&m[i], i, start);
}

/* One that goes on before the deadline has lost nothing, and gives up no other. */
Test(relay, a_machine_is_stopped_for_a_while, .timeout = 120) {
    tshi_test_machines m = {.machines = 2, .ranks = 1, .raw = -1, .timeout = 60};
    tshi_test_machines_begin(&m);
    kill(m.pid[1], SIGSTOP);
    cr_assert_eq(waitpid(m.pid[1], NULL, WUNTRACED), m.pid[1]); /* until all of its threads have stopped */
    tshi_test_order_do(&m, 0, TSHI_ORDER_FAIL, 0);
    tshi_nap(0.2);
    cr_assert_eq(tshi_page_state(m.page[1], 0), TSHI_ALIVE);
    kill(m.pid[1], SIGCONT);
    await_everywhere(&m, -1, 0, TSHI_FAILED);
    cr_assert_eq(m.page[0]->failures, 1);
    cr_assert_eq(m.page[1]->failures, 1);
    tshi_test_machines_end(&m);
}

/* --- bytes of no relay -------------------------------------------------------------------------------------------- */

enum { NONSENSE = 12 };

/* What a machine sends that is not `node`'s: its size. */
static size_t nonsense(int way, int node, unsigned char *out) {
    tshi_news news = {.kind = TSHI_NEWS_RANK, .rank = {.rank = node * 2, .state = TSHI_FAILED, .recover = 9}};
    switch (way) {
    case 0: memset(out, 'x', 4000); return 4000;
    case 1: return (size_t)snprintf((char *)out, 100, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    case 2: news.rank.rank = -1; break;
    case 3: news.rank.rank = 6; break;
    case 4: news.rank.rank = node == 0 ? 2 : 0; break; /* a rank of the machine that it is sent to */
    case 5: news.kind = TSHI_NEWS_BEAT, news.machine = -1; break;
    case 6: news.kind = TSHI_NEWS_BEAT, news.machine = 3; break;
    case 7: news.kind = TSHI_NEWS_BEAT, news.machine = node == 0 ? 1 : 0; break;
    case 8: news.rank.state = TSHI_DEAD + 1; break;
    case 9: news.rank.left = 2; break;
    case 10: break; /* another version */
    default: break; /* a length of 4 GiB */
    }
    size_t size = tshi_news_write(&news, out);
    if (way == 10) out[4]++;
    if (way == 11) memset(out + 8, 0xff, 4);
    return size;
}

/* A machine whose messages are none is lost to the others, and the others go on. */
static void hear_nonsense(int node, int way) {
    tshi_test_machines m = {.machines = 3, .ranks = 2, .raw = node};
    int first = node * 2, witness = node == 1 ? 2 : 1;
    tshi_test_machines_begin(&m);
    m.member[first].size = nonsense(way, node, m.member[first].bytes);
    tshi_test_order_do(&m, first, TSHI_ORDER_BYTES, 0);
    cr_assert(tshi_test_await_state(&m, witness, first, TSHI_DEAD) >= 0, "way %d", way);
    check_words(&m, witness, first, "it sent an invalid message");
    if (node != 0) {
        cr_assert_eq(tshi_page_state(m.page[0], 0), TSHI_ALIVE);
        tshi_test_order_do(&m, witness * 2, TSHI_ORDER_FAIL, 0);
        cr_assert(tshi_test_await_state(&m, 0, witness * 2, TSHI_FAILED) >= 0);
    }
    tshi_test_machines_end(&m);
}

Test(relay, nonsense_to_the_hub, .timeout = 240) {
    for (int way = 0; way < NONSENSE; way++) hear_nonsense(1 + way % 2, way);
}

Test(relay, nonsense_of_the_hub, .timeout = 240) {
    for (int way = 0; way < NONSENSE; way++) hear_nonsense(0, way);
}

/* A connection from this machine to a port where a rank will listen, or -1 where it does not within a minute. */
static int connect_to(int port, double patience) {
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    double end = tshi_now() + patience;
    do {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (const void *)&to, sizeof to) == 0) return fd;
        close(fd);
        tshi_nap(1e-3);
    } while (tshi_now() < end);
    return -1;
}

/* Other programs that connect while the machines do are refused, what they say and whether they stay or go; later there
 * is nothing to connect to. The rendezvous of the ranks has warned, so that this one prints nothing. */
Test(relay, other_programs_are_no_machines, .timeout = 120) {
    tshi_test_machines m = {.machines = 2, .ranks = 1, .raw = -1};
    unsigned char bytes[4096];
    int other[NONSENSE], printed = tshi_memory_file("printed", 0), terminal = dup(STDERR_FILENO);
    tshi_test_machines_prepare(&m);
    dup2(printed, STDERR_FILENO);
    tshi_test_machines_fork(&m, 0);
    dup2(terminal, STDERR_FILENO);
    for (int way = 0; way < NONSENSE; way++) {
        other[way] = connect_to(m.port, 60);
        cr_assert(other[way] >= 0, "the hub does not listen");
        send(other[way], bytes, nonsense(way, 1, bytes), MSG_NOSIGNAL);
        if (way % 3 == 0) close(other[way]);
    }
    tshi_test_machines_fork(&m, 1);
    for (int i = 0; i < 2; i++) tshi_test_order_do(&m, i, TSHI_ORDER_NONE, 0);
    tshi_test_order_do(&m, 1, TSHI_ORDER_FAIL, 0);
    await_everywhere(&m, -1, 1, TSHI_FAILED);
    cr_assert_eq(m.page[0]->failures, 1);
    cr_assert_eq(connect_to(m.port, 0), -1, "somebody still listens");
    for (int way = 0; way < NONSENSE; way++) {
        if (way % 3 != 0) close(other[way]);
    }
    cr_assert_eq(lseek(printed, 0, SEEK_END), 0, "a line is printed");
    tshi_test_machines_end(&m);
}

/* Good messages byte by byte are read as well, and half of one waits for the rest. */
Test(relay, messages_in_parts, .timeout = 120) {
    tshi_test_machines m = {.machines = 3, .ranks = 2, .raw = 1};
    unsigned char bytes[2 * TSHI_NEWS_MOST];
    tshi_news news = {.kind = TSHI_NEWS_BEAT, .machine = 1};
    tshi_test_machines_begin(&m);
    size_t size = tshi_news_write(&news, bytes);
    news = (tshi_news){.kind = TSHI_NEWS_RANK, .rank = {.rank = 3, .state = TSHI_FAILED, .reason = "by\nparts"}};
    size += tshi_news_write(&news, bytes + size);
    m.member[2].size = 1;
    for (size_t i = 0; i < size; i++) {
        cr_assert_eq(tshi_page_state(m.page[0], 3), TSHI_ALIVE);
        m.member[2].bytes[0] = bytes[i];
        tshi_test_order_do(&m, 2, TSHI_ORDER_BYTES, 0);
    }
    cr_assert(tshi_test_await_state(&m, 2, 3, TSHI_FAILED) >= 0);
    check_words(&m, 2, 3, "by?parts");
    tshi_test_machines_end(&m);
}
