/* Ranks join a job that runs. */
#include "base/clock.h"
#include "dist/control/joining.h"
#include "dist/registry.h"
#include "dist/rendezvous/connector.h"
#include "support/ranks.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* The first ranks of a run are the job, the others join it. */
static int members;

static bool joins(const tshi_rank *r) {
    return r->rank >= members;
}

/* The environment of a member, or of a rank that joins. */
static void set_environment(const tshi_rank *r) {
    char text[64];
    setenv("TSHARD_BLAS_THREADS", "1", 1);
    snprintf(text, sizeof text, "%d", members);
    setenv("WORLD_SIZE", text, 1);
    setenv("LOCAL_WORLD_SIZE", text, 1);
    if (!joins(r)) return;
    snprintf(text, sizeof text, "127.0.0.1:%d", tshi_test_master_port());
    setenv("TSHARD_JOIN", text, 1);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}

static bool enter(tshi_rank *r) {
    set_environment(r);
    return tshi_check_ok(r, tsh_world_init(NULL, &r->world));
}

static void replace_world(tshi_rank *r, tsh_world *next) {
    tsh_world_destroy(r->world);
    r->world = next;
}

/* The sum over the ranks of their numbers. */
static void check_sum(tshi_rank *r, int size) {
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {1000}};
    tsh_tensor *t = NULL;
    tshi_check(r, tsh_world_size(r->world) == size, "%d ranks, not %d", tsh_world_size(r->world), size);
    if (!tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &t))) return;
    tsh_tensor_fill(t, tsh_world_rank(r->world) + 1);
    tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), t, TSH_REDUCE_SUM));
    double sum = r->failed ? 0 : ((const double *)tsh_tensor_data(t))[999];
    tshi_check(r, sum == size * (size + 1) / 2, "the sum is %g", sum);
    tsh_tensor_release(t);
}

/* Until the world has so many ranks. Deaths in the meantime are gone on from. */
static void grow_to(tshi_rank *r, int size) {
    while (!r->failed && tsh_world_size(r->world) < size) {
        tsh_world *next = NULL;
        int count = 0;
        tsh_status status = tsh_world_joiners(r->world, &count);
        if (status == TSH_OK && count == 0) {
            usleep(2000);
            continue;
        }
        if (status != TSH_ERR_PEER && !tshi_check_ok(r, status)) return;
        if (tshi_check_ok(r, tsh_world_continue(r->world, NULL, &next, NULL))) replace_world(r, next);
    }
}

static tshi_rank_fn *body;

static void run_and_leave(tshi_rank *r, void *arg) {
    body(r, arg);
    tsh_world_destroy(r->world);
}

static const char *run(int job, int all, tshi_rank_fn *fn, void *arg, tshi_outcome *outcomes) {
    const tshi_test_options options = {.ranks = all, .bare = true, .timeout = 100};
    members = job;
    body = fn;
    return tshi_test_run_with(&options, run_and_leave, arg, outcomes, NULL);
}

/* --- ranks that join ---------------------------------------------------------------------------------------------- */

static void grows(tshi_rank *r, void *arg) {
    (void)arg;
    if (!enter(r)) return;
    tshi_check(r, tsh_world_has_joined(r->world) == joins(r), "has joined");
    tshi_check(r, !joins(r) || tsh_world_rank(r->world) >= members, "rank %d", tsh_world_rank(r->world));
    grow_to(r, r->size);
    check_sum(r, r->size);
    replace_world(r, NULL);
}

Test(joiners, one_rank_grows, .timeout = 120) {
    cr_assert_str_empty(run(1, 2, grows, NULL, NULL));
    cr_assert_str_empty(run(1, 3, grows, NULL, NULL));
}

Test(joiners, several_grow, .timeout = 120) {
    cr_assert_str_empty(run(2, 3, grows, NULL, NULL));
    cr_assert_str_empty(run(3, 5, grows, NULL, NULL));
}

/* Numbers, the seed, and what the call says. */
static void says_who_has_joined(tshi_rank *r, void *arg) {
    (void)arg;
    if (!enter(r)) return;
    if (!joins(r)) {
        tsh_world *next = NULL;
        tsh_continued what = {0};
        tsh_continue_config config = {.step = 7};
        int count = 0, rank = tsh_world_rank(r->world);
        tshi_check(r, tsh_world_continue(r->world, NULL, &next, NULL) == TSH_ERR_STATE, "nobody waits");
        while (count < 2 && tshi_check_ok(r, tsh_world_joiners(r->world, &count))) usleep(1000);
        tshi_check_ok(r, tsh_world_continue(r->world, &config, &next, &what));
        tshi_check(r, what.joined == 2 && what.former_rank == rank && what.former_size == 2 && what.last_step == 7,
                   "%d joined, rank %d", what.joined, what.former_rank);
        if (!r->failed) replace_world(r, next);
        tshi_check(r, tsh_world_rank(r->world) == rank, "the number of a rank does not change");
    }
    check_sum(r, 4);
}

Test(joiners, two_at_once, .timeout = 120) {
    cr_assert_str_empty(run(2, 4, says_who_has_joined, NULL, NULL));
}

/* --- deaths ------------------------------------------------------------------------------------------------------- */

static void die_soon(long microseconds) {
    const struct itimerval when = {.it_value = {.tv_usec = microseconds + 1}};
    signal(SIGALRM, SIG_DFL);
    setitimer(ITIMER_REAL, &when, NULL);
}

/* What a rank that joins does in the meantime. */
typedef enum end { TAKES_ITS_PLACE_AND_DIES, DIES_BEFORE_ITS_PLACE, IS_STOPPED } end;

typedef struct ends {
    end how;
    atomic_int stopped; /* the process */
} ends;

/* Up to its place, by hand. */
static void takes_a_place(tshi_rank *r, ends *e) {
    tshi_settings settings;
    tshi_joining j;
    tshi_join_place place;
    const tsh_world_config config = {.world_size = 0};
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_check_ok(r, tshi_settings_read(&config, &settings));
    tshi_check_ok(r, tshi_joining_open(&settings, &config.log, &allocator, &j));
    if (e->how == DIES_BEFORE_ITS_PLACE) {
        die_soon(30000);
        while (true) tshi_joining_wait(&j, &place);
    }
    tshi_check_ok(r, tshi_joining_wait(&j, &place));
    if (e->how == TAKES_ITS_PLACE_AND_DIES) raise(SIGKILL);
    atomic_store(&e->stopped, getpid());
    raise(SIGSTOP);
    _exit(0);
}

/* Rank 2 of 4 joins and ends; rank 3 joins and goes on. */
static void one_of_two_ends(tshi_rank *r, void *arg) {
    ends *e = arg;
    set_environment(r);
    if (r->rank == 2) takes_a_place(r, e);
    if (!enter(r)) return;
    grow_to(r, 3);
    check_sum(r, 3);
    int process = atomic_load(&e->stopped);
    if (process && r->rank == 0) kill(process, SIGKILL);
}

static void check_ends(end how) {
    ends *e = tshi_test_shared(sizeof *e);
    tshi_outcome outcomes[4];
    e->how = how;
    run(2, 4, one_of_two_ends, e, outcomes);
    for (int i = 0; i < 4; i++) {
        if (i != 2) cr_assert(outcomes[i].code == 0, "rank %d: %s", i, outcomes[i].words);
    }
}

Test(joiners, one_takes_its_place_and_dies, .timeout = 120) {
    check_ends(TAKES_ITS_PLACE_AND_DIES);
}

Test(joiners, one_dies_before_it_has_a_place, .timeout = 120) {
    check_ends(DIES_BEFORE_ITS_PLACE);
}

Test(joiners, one_is_stopped_in_its_place, .timeout = 120) {
    check_ends(IS_STOPPED);
}

/* A member dies when all know that a rank waits. Without rank 0 the next one opens the entrance. */
static void one_dies_when_one_joins(tshi_rank *r, void *arg) {
    const int victim = *(const int *)arg;
    int count = 0;
    tsh_world *next = NULL;
    if (!enter(r)) return;
    while (!joins(r) && count == 0 && tshi_check_ok(r, tsh_world_joiners(r->world, &count))) usleep(1000);
    if (r->rank == victim) raise(SIGKILL);
    if (!joins(r) && tshi_check_ok(r, tsh_world_continue(r->world, NULL, &next, NULL))) replace_world(r, next);
    grow_to(r, 3);
    check_sum(r, 3);
}

Test(joiners, a_member_dies_meanwhile, .timeout = 120) {
    for (int victim = 0; victim < 3; victim++) {
        tshi_outcome outcomes[4];
        run(3, 4, one_dies_when_one_joins, &victim, outcomes);
        for (int i = 0; i < 4; i++)
            cr_assert(i == victim || outcomes[i].code == 0, "without %d: rank %d: %s", victim, i, outcomes[i].words);
    }
}

/* --- ranks that cannot join --------------------------------------------------------------------------------------- */

static void expect(tshi_rank *r, tsh_status wanted, const char *words) {
    tsh_status status = tsh_world_init(NULL, &r->world);
    tshi_check(r, status == wanted && strstr(tsh_error_message(), words), "%s: %s", tsh_status_name(status),
               tsh_error_message());
}

static void finds_no_job(tshi_rank *r, void *arg) {
    (void)arg;
    set_environment(r);
    setenv("TSHARD_TIMEOUT", "0.3", 1);
    expect(r, TSH_ERR_TIMEOUT, "no job takes this rank in");
    setenv("TSHARD_JOIN", "nowhere", 1);
    expect(r, TSH_ERR_ARGUMENT, "TSHARD_JOIN is \"nowhere\"; it must be HOST:PORT");
}

Test(joiners, there_is_no_job, .timeout = 120) {
    cr_assert_str_empty(run(0, 1, finds_no_job, NULL, NULL));
}

/* Rank 0 is the job until rank 1 has been refused. */
static void has_another_token(tshi_rank *r, void *arg) {
    atomic_int *refused = arg;
    set_environment(r);
    if (joins(r)) {
        setenv("TSHARD_TOKEN", "a token that was guessed", 1);
        setenv("TSHARD_TIMEOUT", "1", 1);
        expect(r, TSH_ERR_TIMEOUT, "its token or its group_name is not ours");
        atomic_store(refused, 1);
        return;
    }
    int count = 0;
    if (!enter(r)) return;
    while (!atomic_load(refused) && tshi_check_ok(r, tsh_world_joiners(r->world, &count)) && count == 0) usleep(1000);
    tshi_check(r, count == 0, "%d wait", count);
}

Test(joiners, the_token_is_another, .timeout = 120) {
    cr_assert_str_empty(run(1, 2, has_another_token, tshi_test_shared(sizeof(atomic_int)), NULL));
}

/* Rank 0 sees that one waits, and ends. */
static void ends_meanwhile(tshi_rank *r, void *arg) {
    int count = 0;
    (void)arg;
    set_environment(r);
    if (joins(r)) {
        expect(r, TSH_ERR_PEER, "the job has ended");
        return;
    }
    if (!enter(r)) return;
    while (count == 0 && tshi_check_ok(r, tsh_world_joiners(r->world, &count))) usleep(1000);
    replace_world(r, NULL);
}

Test(joiners, the_job_ends_meanwhile, .timeout = 120) {
    cr_assert_str_empty(run(1, 2, ends_meanwhile, NULL, NULL));
}

/* --- ranks that call other things ----------------------------------------------------------------------------- */

/* Ranks that learn of the error from another one have its words too. */
static void expect_both(tshi_rank *r, tsh_status status, const char *first, const char *second) {
    const char *said = tsh_error_message();
    tshi_check(r, (status == TSH_ERR_MISMATCH || status == TSH_ERR_PEER) && strstr(said, first) && strstr(said, second),
               "status %d: %s", status, said);
}

/* One rank asks for joiners in a step in which the others do not. */
static void asks_alone(tshi_rank *r, void *arg) {
    const int *asker = arg;
    tsh_tensor *t = NULL;
    tsh_tensor_config config = {.dtype = TSH_FLOAT32, .ndim = 1, .shape = {100}};
    int count = 0;
    if (!enter(r) || !tshi_check_ok(r, tsh_world_joiners(r->world, &count))) return;
    if (!tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &t))) return;
    tsh_status status = tsh_world_rank(r->world) == *asker
                            ? tsh_world_joiners(r->world, &count)
                            : tsh_all_reduce(tsh_world_group(r->world), t, TSH_REDUCE_SUM);
    expect_both(r, status, "world_joiners #", "all_reduce");
    tsh_tensor_release(t);
}

Test(joiners, one_rank_asks_alone, .timeout = 120) {
    setenv("TSHARD_TIMEOUT", "80", 1);
    for (int asker = 0; asker < 2; asker++) cr_assert_str_empty(run(2, 2, asks_alone, &asker, NULL));
}

Test(joiners, one_rank_asks_alone_over_ucx, .timeout = 120) {
    if (!tshi_backend_find("ucx")) cr_skip_test("no UCX");
    setenv("TSHARD_TIMEOUT", "80", 1);
    setenv("TSHARD_BACKEND", "ucx", 1);
    for (int asker = 0; asker < 2; asker++) cr_assert_str_empty(run(2, 2, asks_alone, &asker, NULL));
}

/* --- what comes in pieces ----------------------------------------------------------------------------------------- */

enum { FLOOD = 1 << 20 };

/* A connection to the entrance, and the HELLO for its challenge. */
static int greet_by_hand(tshi_rank *r, const tshi_joining *j, unsigned char hello[TSHI_WIRE_MOST], size_t *size) {
    unsigned char bytes[TSHI_WIRE_MOST], nonce[TSHI_NONCE_SIZE];
    tshi_frame challenge;
    int fd = -1, pair[2];
    for (int k = 0; fd < 0 && k < 1000; k++, usleep(10000)) fd = tshi_socket_connect(&j->at[0], tshi_clock() + 2);
    size_t n = fd < 0 ? 0 : tshi_connector_receive(fd, TSHI_CHALLENGE, bytes, tshi_clock() + 10);
    if (!tshi_check(r, n && tshi_wire_read(TSHI_CHALLENGE, bytes, n, NULL, &challenge), "no challenge")) return fd;
    tshi_check(r, socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "no pair");
    tshi_check(r, tshi_connector_hello(&j->r, pair[0], &challenge, nonce), "no hello");
    ssize_t read = recv(pair[1], hello, TSHI_WIRE_MOST, 0);
    *size = read > 0 ? (size_t)read : 0;
    close(pair[0]);
    close(pair[1]);
    return fd;
}

static void send_piece(tshi_rank *r, int fd, const unsigned char *bytes, size_t size) {
    tshi_check(r, tshi_socket_write(fd, bytes, size, tshi_clock() + 5), "a piece of %zu bytes is not sent", size);
    usleep(50000);
}

/* Rank 1 greets with more bytes than a frame has, then with a frame in pieces: its head, a byte, and the rest. */
static void greets_in_pieces(tshi_rank *r, void *arg) {
    const tsh_world_config config = {.world_size = 0};
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    static unsigned char hello[FLOOD];
    tshi_settings settings;
    tshi_joining j;
    atomic_int *seen = arg;
    size_t size = 0;
    int count = 0;
    set_environment(r);
    if (!joins(r)) {
        double until = tshi_clock() + 30;
        if (!enter(r)) return;
        while (count == 0 && tshi_clock() < until && tshi_check_ok(r, tsh_world_joiners(r->world, &count)))
            usleep(1000);
        tshi_check(r, count == 1, "%d wait", count);
        atomic_store(seen, 1);
        return;
    }
    tshi_check_ok(r, tshi_settings_read(&config, &settings));
    tshi_check_ok(r, tshi_joining_open(&settings, &config.log, &allocator, &j));
    int flood = greet_by_hand(r, &j, hello, &size);
    if (!r->failed) send_piece(r, flood, hello, TSHI_WIRE_HEAD + 1);
    if (!r->failed) tshi_socket_write(flood, hello, sizeof hello, tshi_clock() + 1); /* it may be dropped meanwhile */
    int fd = greet_by_hand(r, &j, hello, &size);
    if (!r->failed) send_piece(r, fd, hello, TSHI_WIRE_HEAD);
    if (!r->failed) send_piece(r, fd, hello + TSHI_WIRE_HEAD, 1);
    if (!r->failed) send_piece(r, fd, hello + TSHI_WIRE_HEAD + 1, size - TSHI_WIRE_HEAD - 1);
    for (int k = 0; k < 3000 && !r->failed && !atomic_load(seen); k++) usleep(10000);
    tshi_socket_close(&flood, 1);
    tshi_socket_close(&fd, 1);
    tshi_joining_close(&j);
}

Test(joiners, one_greets_in_pieces, .timeout = 120) {
    cr_assert_str_empty(run(1, 2, greets_in_pieces, tshi_test_shared(sizeof(atomic_int)), NULL));
}
