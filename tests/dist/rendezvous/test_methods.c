/* The methods of rendezvous, at each small number of ranks, alone and beside other jobs. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/rendezvous/rendezvous.h"
#include "support/clock.h"
#include "support/collectives.h"
#include "support/ports.h"

#include <criterion/criterion.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HEAP ((size_t)8 << 20)

#if defined(__SANITIZE_ADDRESS__)
#define MANY 48
#else
#define MANY 512
#endif

static void file_name(char text[64]) {
    static int used;
    snprintf(text, 64, "/tmp/tshard-test-%d-%d", (int)getpid(), used++);
}

static bool can_bind(int family, int type, const void *address, socklen_t size) {
    int fd = socket(family, type, 0);
    bool can = fd >= 0 && bind(fd, address, size) == 0;
    if (fd >= 0) close(fd);
    return can;
}

static bool have_ipv6(void) {
    struct sockaddr_in6 here = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    return can_bind(AF_INET6, SOCK_STREAM, &here, sizeof here);
}

/* --- the methods -------------------------------------------------------------------------------------------------- */

typedef struct method {
    const char *format; /* with %d for a port or %s for a file */
    bool automatic, ipv6;
} method;

static const method methods[] = {
    {"env://", false, false},        {"tcp://127.0.0.1:%d", false, false},   {"tcp://localhost:%d", false, false},
    {"tcp://[::1]:%d", false, true}, {"tcp://239.255.17.4:%d", true, false}, {"tcp://[ff15::7473]:%d", true, true},
    {"file://%s", true, false},
};

#define METHODS (sizeof methods / sizeof *methods)

static void write_method(const method *m, char out[128]) {
    char path[64];
    if (strstr(m->format, "%s")) {
        file_name(path);
        snprintf(out, 128, "file://%s", path);
    } else if (strstr(m->format, "%d")) {
        char host[64];
        snprintf(host, sizeof host, "%.*s", (int)strcspn(m->format, "%"), m->format);
        snprintf(out, 128, "%s%d", host, tshi_test_port());
    } else {
        snprintf(out, 128, "%s", m->format);
    }
}

/* The variables of a rank without a launcher: the method, and its rank unless the method assigns ranks. */
static tsh_status init(tshi_rank *r, const char *text, bool automatic) {
    tsh_world_config config = {.init_method = text, .heap_bytes = HEAP};
    if (automatic) unsetenv("RANK");
    unsetenv("LOCAL_WORLD_SIZE");
    unsetenv("LOCAL_RANK");
    return tsh_world_init(&config, &r->world);
}

static void check_world(tshi_rank *r, int size) {
    tshi_check(r, tsh_world_size(r->world) == size, "size %d", tsh_world_size(r->world));
    tshi_check(r, tsh_world_local_rank(r->world) == tsh_world_rank(r->world), "local rank");
    tshi_check(r, tsh_world_node_count(r->world) == 1 && !tsh_world_uses_rdma(r->world), "nodes");
    /* Every rank adds a bit of its own: the sum shows that each rank is there once. */
    tsh_tensor *bits = tshi_test_vector(r, TSH_INT64, 1);
    if (!bits) return;
    int64_t *bit = tsh_tensor_data(bits);
    *bit = INT64_C(1) << tsh_world_rank(r->world);
    tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), bits, TSH_REDUCE_SUM));
    tshi_check(r, *bit == (INT64_C(1) << size) - 1, "the ranks that are there: %llx", (unsigned long long)*bit);
    tsh_tensor_release(bits);
}

static void by_method(tshi_rank *r, void *arg) {
    const char *text = arg;
    bool automatic = strstr(text, "file") || strstr(text, "239.") || strstr(text, "[ff15:");
    /* Two rendezvous, one after the other, at one address or file. */
    for (int i = 0; i < 2; i++) {
        if (!tshi_check_ok(r, init(r, text, automatic))) return;
        check_world(r, r->size);
        if (!automatic) tshi_check(r, tsh_world_rank(r->world) == r->rank, "rank %d", tsh_world_rank(r->world));
        tsh_world_destroy(r->world);
    }
}

/* The methods with IPv6 addresses, or those without, on one to four ranks. */
static void run_methods(bool ipv6) {
    for (size_t i = 0; i < METHODS; i++) {
        if (methods[i].ipv6 != ipv6) continue;
        for (int ranks = 1; ranks <= 4; ranks++) {
            char text[128];
            write_method(&methods[i], text);
            tshi_test_options options = {.ranks = ranks, .bare = true};
            const char *words = tshi_test_run_with(&options, by_method, text, NULL, NULL);
            cr_assert_str_empty(words, "%s, %d ranks: %s", text, ranks, words);
            if (strstr(text, "file://")) cr_assert_neq(access(text + 7, F_OK), 0, "%s is left", text);
        }
    }
}

Test(methods, every_method, .timeout = 120) {
    run_methods(false);
}

Test(methods, every_method_of_ipv6, .timeout = 120) {
    if (!have_ipv6()) cr_skip_test("there is no IPv6");
    run_methods(true);
}

/* Two jobs at one address or file, which differ by their names alone. */
static void of_two_jobs(tshi_rank *r, void *arg) {
    const char *text = arg;
    bool automatic = strstr(text, "file") || strstr(text, "239.");
    char rank[16];
    tsh_world_config config = {.init_method = text, .group_name = r->rank < 2 ? "first" : "second", .heap_bytes = HEAP};
    unsetenv("LOCAL_WORLD_SIZE");
    unsetenv("LOCAL_RANK");
    setenv("WORLD_SIZE", "2", 1);
    snprintf(rank, sizeof rank, "%d", r->rank % 2);
    if (automatic)
        unsetenv("RANK");
    else
        setenv("RANK", rank, 1);
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    check_world(r, 2);
    int64_t *job = r->result;
    tsh_tensor *names = tshi_test_vector(r, TSH_INT64, 1);
    if (names) *(int64_t *)tsh_tensor_data(names) = r->rank < 2 ? 1 : 100;
    if (names) tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), names, TSH_REDUCE_SUM));
    if (names) *job = *(int64_t *)tsh_tensor_data(names);
    tshi_check(r, *job == (r->rank < 2 ? 2 : 200), "the jobs have mixed");
    tsh_tensor_release(names);
    tsh_world_destroy(r->world);
}

Test(methods, two_jobs_at_one_address, .timeout = 120) {
    for (size_t i = 0; i < METHODS; i++) {
        char text[128];
        if (methods[i].ipv6) continue;
        write_method(&methods[i], text);
        tshi_test_options options = {.ranks = 4, .bare = true, .result_bytes = 8};
        const char *words = tshi_test_run_with(&options, of_two_jobs, text, NULL, NULL);
        cr_assert_str_empty(words, "%s: %s", text, words);
    }
}

/* One process asks for rank 1; the other processes get the remaining ranks, in the order in which they were started. */
static void one_wants_rank_1(tshi_rank *r, void *arg) {
    tsh_world_config config = {.init_method = arg, .heap_bytes = HEAP, .world_size = 4, .rank = r->rank == 3 ? 1 : -1};
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    if (r->rank == 0) tshi_nap(0.3);
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    static const int wanted[] = {0, 2, 3, 1};
    tshi_check(r, tsh_world_rank(r->world) == wanted[r->rank], "started as %d: rank %d", r->rank,
               tsh_world_rank(r->world));
    tsh_world_destroy(r->world);
}

Test(methods, ranks_are_assigned_in_order, .timeout = 120) {
    char text[128];
    for (size_t i = 0; i < METHODS; i++) {
        if (!methods[i].automatic || methods[i].ipv6) continue;
        write_method(&methods[i], text);
        tshi_test_options options = {.ranks = 4, .bare = true};
        cr_assert_str_empty(tshi_test_run_with(&options, one_wants_rank_1, text, NULL, NULL), "%s", text);
    }
}

/* --- files -------------------------------------------------------------------------------------------------------- */

/* A rank that waits for a second one, as a process of its own. */
static pid_t start_waiting(const char *text) {
    pid_t pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    tsh_world *world = NULL;
    tsh_world_config config = {.init_method = text, .world_size = 2, .heap_bytes = HEAP};
    tsh_world_init(&config, &world);
    _exit(0);
}

static void wait_for_size(const char *path, bool there) {
    struct stat s;
    for (int i = 0; i < 500 && (stat(path, &s) != 0 || s.st_size == 0) == there; i++) tshi_nap(0.01);
    cr_assert_eq(stat(path, &s) == 0, there);
}

Test(methods, file_of_a_dead_job, .timeout = 120) {
    char path[64], text[128];
    file_name(path);
    snprintf(text, sizeof text, "file://%s", path);
    setenv("TSHARD_TOKEN", "dead", 1);
    pid_t pid = start_waiting(text);
    wait_for_size(path, true);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    cr_assert_eq(access(path, F_OK), 0);
    double start = tshi_now();
    for (int i = 0; i < 2; i++) {
        if (i == 1) { /* and a record that breaks off */
            FILE *file = fopen(path, "w");
            fputs("tSHm\1", file);
            fclose(file);
        }
        tshi_test_options options = {.ranks = 3, .bare = true};
        cr_assert_str_empty(tshi_test_run_with(&options, by_method, text, NULL, NULL));
        cr_assert_neq(access(path, F_OK), 0, "it is left behind");
    }
    cr_assert_lt(tshi_now() - start, TSHI_SOON);
}

/* As a launcher does: records of dead processes are removed; those of living ones, and files of others, stay. */
Test(methods, file_is_tidied, .timeout = 120) {
    char path[64], text[128];
    file_name(path);
    snprintf(text, sizeof text, "file://%s", path);
    setenv("TSHARD_TOKEN", "a token of the job that lives", 1);
    pid_t living = start_waiting(text);
    wait_for_size(path, true);
    setenv("TSHARD_TOKEN", "a token of the job that dies", 1);
    struct stat before, after;
    cr_assert_eq(stat(path, &before), 0);
    pid_t dying = start_waiting(text);
    for (int i = 0; i < 500 && (stat(path, &after) != 0 || after.st_size == before.st_size); i++) tshi_nap(0.01);
    cr_assert_gt(after.st_size, before.st_size);
    kill(dying, SIGKILL);
    waitpid(dying, NULL, 0);
    tshi_rendezvous_tidy(text);
    cr_assert(stat(path, &after) == 0 && after.st_size == before.st_size, "one record of two stays");
    kill(living, SIGKILL);
    waitpid(living, NULL, 0);
    tshi_rendezvous_tidy(text);
    cr_assert_neq(access(path, F_OK), 0, "a file without records stays");
    tshi_rendezvous_tidy(NULL);
    tshi_rendezvous_tidy("env://");
    tshi_rendezvous_tidy("file://relative");
    FILE *file = fopen(path, "w");
    fputs("notes of another program", file);
    fclose(file);
    tshi_rendezvous_tidy(text);
    cr_assert_eq(unlink(path), 0, "a file that is no rendezvous is removed");
}

Test(methods, file_of_another_program_is_left_alone, .timeout = 120) {
    char path[64], text[128], read_back[32] = "";
    tsh_world *world = NULL;
    file_name(path);
    snprintf(text, sizeof text, "file://%s", path);
    FILE *file = fopen(path, "w");
    fputs("notes of another program", file);
    fclose(file);
    tsh_world_config config = {.init_method = text, .world_size = 2, .heap_bytes = HEAP};
    cr_assert_eq(tsh_world_init(&config, &world), TSH_ERR_IO, "%s", tsh_error_message());
    cr_assert(strstr(tsh_error_message(), "is the file of another program"));
    file = fopen(path, "r");
    cr_assert(fgets(read_back, sizeof read_back, file));
    fclose(file);
    unlink(path);
    cr_assert_str_eq(read_back, "notes of another program");
    snprintf(text, sizeof text, "file:///nowhere/%d", (int)getpid());
    cr_assert_eq(tsh_world_init(&config, &world), TSH_ERR_SYSTEM);
    cr_assert(strstr(tsh_error_message(), "opening /nowhere/"), "%s", tsh_error_message());
}

static void file_vanishes(tshi_rank *r, void *arg) {
    const char *text = arg;
    if (r->rank == 1) {
        tshi_nap(0.3);
        tshi_check(r, unlink(text + 7) == 0, "unlink");
        tshi_nap(0.05);
    }
    if (!tshi_check_ok(r, init(r, text, true))) return;
    check_world(r, 2);
    tsh_world_destroy(r->world);
}

Test(methods, file_that_is_removed, .timeout = 120) {
    char path[64], text[128];
    file_name(path);
    snprintf(text, sizeof text, "file://%s", path);
    tshi_test_options options = {.ranks = 2, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, file_vanishes, text, NULL, NULL));
    cr_assert_neq(access(path, F_OK), 0);
}

/* --- what goes wrong ---------------------------------------------------------------------------------------------- */

static void expect_error(const char *text, int rank, int size, tsh_status wanted, const char *words) {
    tsh_world *world = NULL;
    tsh_world_config config = {.init_method = text, .rank = rank, .world_size = size, .heap_bytes = HEAP};
    tsh_status status = tsh_world_init(&config, &world);
    cr_assert_eq(status, wanted, "%s: %s \"%s\"", text, tsh_status_name(status), tsh_error_message());
    cr_assert(strstr(tsh_error_message(), words), "%s: \"%s\" has no \"%s\"", text, tsh_error_message(), words);
    cr_assert_null(world);
}

Test(methods, malformed_methods, .timeout = 120) {
    static const char *const texts[] = {"tcp:",
                                        "tcp://",
                                        "tcp://host",
                                        "tcp://host:",
                                        "tcp://host:0",
                                        "tcp://host:65536",
                                        "tcp://host:1x",
                                        "tcp://:29500",
                                        "tcp://::1:2950",
                                        "tcp://[::1]",
                                        "tcp://[::1:29500",
                                        "tcp://host:29500/x",
                                        "file://",
                                        "file:///",
                                        "file://a/b",
                                        "http://x:1",
                                        "env",
                                        "env://x",
                                        "mpi:",
                                        "tcp://a b:29500",
                                        "tcp://[]:29500"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        expect_error(texts[i], 0, 2, TSH_ERR_ARGUMENT, "it must be env://, tcp://HOST:PORT, file:///PATH or mpi://");
    }
    expect_error("tcp://127.0.0.1:29500", 0, 0, TSH_ERR_ARGUMENT, "tcp:// needs rank and world_size");
    expect_error("tcp://239.1.1.1:29500", 0, 0, TSH_ERR_ARGUMENT, "tcp:// needs world_size");
    expect_error("file:///tmp/tshard-never", 0, 0, TSH_ERR_ARGUMENT, "file:// needs world_size");
    expect_error("tcp://127.0.0.1:29500", -1, 2, TSH_ERR_ARGUMENT, "rank -1 of world_size 2");
    expect_error("tcp://198.51.100.7:29500", 0, 2, TSH_ERR_SYSTEM,
                 "cannot listen at 198.51.100.7:29500 (198.51.100.7:29500: ");
    expect_error("tcp://no.such.host.invalid:29500", 1, 2, TSH_ERR_SYSTEM, "no address for no.such.host.invalid");
}

Test(methods, the_configuration_wins_over_the_environment, .timeout = 120) {
    tshi_settings settings;
    setenv("TSHARD_INIT", "tcp://127.0.0.1:4711", 1);
    setenv("TSHARD_GROUP", "a", 1);
    tsh_world_config config = {.group_name = "b", .init_method = "tcp://127.0.0.2:4712", .world_size = 2};
    cr_assert_eq(tshi_settings_read(&config, &settings), TSH_OK, "%s", tsh_error_message());
    cr_assert(!strcmp(settings.group_name, "b") && settings.port == 4712 && !strcmp(settings.address, "127.0.0.2"));
}

static void one_is_missing(tshi_rank *r, void *arg) {
    const char *text = arg;
    bool automatic = strstr(text, "239.") != NULL;
    if (r->rank == 2) return;
    double start = tshi_now();
    tsh_status status = init(r, text, automatic);
    tshi_check_status(r, status, TSH_ERR_TIMEOUT, automatic ? "2/3 joined" : "2/3 joined, missing rank 2");
    tshi_check(r, tshi_now() - start < TSHI_SOON, "it took %g s", tshi_now() - start);
}

static void rank_0_is_missing(tshi_rank *r, void *arg) {
    const char *text = arg;
    if (r->rank == 0) return;
    tshi_check_status(r, init(r, text, false), TSH_ERR_TIMEOUT, "Connection refused");
    tshi_check(r, strstr(tsh_error_message(), "found no rank 0 at "), "%s", tsh_error_message());
}

Test(methods, a_rank_is_missing, .timeout = 120) {
    for (size_t i = 0; i < METHODS; i++) {
        char text[128];
        if (methods[i].ipv6) continue;
        write_method(&methods[i], text);
        tshi_test_options options = {.ranks = 3, .bare = true, .world_timeout = "1"};
        const char *words = tshi_test_run_with(&options, one_is_missing, text, NULL, NULL);
        cr_assert_str_empty(words, "%s: %s", text, words);
        if (strstr(text, "file://")) cr_assert_neq(access(text + 7, F_OK), 0, "%s is left", text);
        if (!strstr(text, "tcp") || methods[i].automatic) continue;
        words = tshi_test_run_with(&options, rank_0_is_missing, text, NULL, NULL);
        cr_assert_str_empty(words, "%s: %s", text, words);
    }
}

static void sizes_differ(tshi_rank *r, const char *text) {
    bool automatic = strstr(text, "file") || strstr(text, "239.") || strstr(text, "[ff15:");
    double start = tshi_now();
    setenv("WORLD_SIZE", r->rank == 1 ? "3" : "2", 1);
    tsh_status status = init(r, text, automatic);
    tshi_check(r, status == TSH_ERR_ARGUMENT, "%s: %s", tsh_status_name(status), tsh_error_message());
    tshi_check(r, tshi_now() - start < TSHI_SOON, "it took %g s", tshi_now() - start);
    tshi_check(r, strstr(tsh_error_message(), "WORLD_SIZE=2") && strstr(tsh_error_message(), "WORLD_SIZE=3"), "%s",
               tsh_error_message());
}

typedef struct method_texts {
    char text[METHODS][128];
} method_texts;

/* Two ranks by each method, all at once: rank 0 stays a moment for ranks that come late. */
static void sizes_differ_by_every_method(tshi_rank *r, void *arg) {
    const method_texts *t = arg;
    int which = r->rank / 2;
    r->rank %= 2;
    setenv("RANK", r->rank ? "1" : "0", 1);
    setenv("LOCAL_RANK", r->rank ? "1" : "0", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    sizes_differ(r, t->text[which]);
}

Test(methods, world_sizes_differ, .timeout = 120) {
    method_texts t;
    int n = 0;
    for (size_t i = 0; i < METHODS; i++) {
        if (!methods[i].ipv6 || have_ipv6()) write_method(&methods[i], t.text[n++]);
    }
    tshi_test_options options = {.ranks = 2 * n, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, sizes_differ_by_every_method, &t, NULL, NULL));
}

typedef struct port_case {
    char text[128];
    bool never;
    atomic_int bound, over; /* the port is taken; rank 0 has given up */
} port_case;

/* The port is that of a connection, and nothing listens there: it becomes free soon, or never. */
static void port_in_use(tshi_rank *r, void *arg) {
    port_case *c = arg;
    if (r->rank == 1) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof at;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        tshi_check(r, bind(fd, (const void *)&at, sizeof at) == 0 && getsockname(fd, (void *)&at, &size) == 0, "bind");
        snprintf(c->text, sizeof c->text, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
        atomic_fetch_add(&c->bound, 1);
        if (c->never) tshi_test_await(r, &c->over, 1);
        if (!c->never) tshi_nap(0.3);
        close(fd);
        if (c->never) return;
    }
    tshi_test_await(r, &c->bound, 1);
    tsh_status status = init(r, c->text, false);
    atomic_fetch_add(&c->over, 1);
    if (c->never) {
        tshi_check_status(r, status, TSH_ERR_SYSTEM, "Address already in use)");
    } else if (tshi_check_ok(r, status)) {
        check_world(r, 2);
        tsh_world_destroy(r->world);
    }
}

Test(methods, port_that_is_in_use, .timeout = 120) {
    static const char *const patience[] = {"60", "0.5"};
    for (int i = 0; i < 2; i++) {
        port_case *c = tshi_test_shared(sizeof *c);
        c->never = i == 1;
        tshi_test_options options = {.ranks = 2, .bare = true, .world_timeout = patience[i]};
        cr_assert_str_empty(tshi_test_run_with(&options, port_in_use, c, NULL, NULL));
    }
}

/* The variable whose value rank 1 has wrong at first: it finds no rank 0 then, and does not disturb it. */
static const char *wrong;

static void wrong_at_first(tshi_rank *r, void *arg) {
    if (r->rank == 1) {
        char value[128];
        snprintf(value, sizeof value, "%s", getenv(wrong));
        setenv(wrong, "12345", 1);
        setenv("TSHARD_TIMEOUT", "0.5", 1);
        tshi_check_status(r, init(r, arg, false), TSH_ERR_TIMEOUT,
                          "another job is there: its token, its group_name or its number of restarts is not ours");
        setenv(wrong, value, 1);
        setenv("TSHARD_TIMEOUT", "60", 1);
    }
    if (!tshi_check_ok(r, init(r, arg, false))) return;
    check_world(r, 2);
    tsh_world_destroy(r->world);
}

static void wrong_variable(const char *name) {
    char text[128];
    write_method(&methods[1], text);
    tshi_test_options options = {.ranks = 2, .bare = true};
    wrong = name;
    cr_assert_str_empty(tshi_test_run_with(&options, wrong_at_first, text, NULL, NULL));
}

Test(methods, wrong_token, .timeout = 120) {
    wrong_variable("TSHARD_TOKEN");
}

/* A rank of an earlier start of the job. */
Test(methods, wrong_restart, .timeout = 120) {
    setenv("TSHARD_RESTART", "1", 1);
    wrong_variable("TSHARD_RESTART");
}

static void second_rank_0(tshi_rank *r, void *arg) {
    if (r->rank == 2) {
        tshi_nap(0.3);
        setenv("RANK", "0", 1);
        tshi_check_status(r, init(r, arg, false), TSH_ERR_SYSTEM, "a rank 0 of this job listens there already");
        setenv("RANK", "1", 1);
        tshi_nap(0.2);
        tshi_check_status(r, init(r, arg, false), TSH_ERR_ARGUMENT, "rank 1 has joined already");
        setenv("RANK", "2", 1);
    }
    if (!tshi_check_ok(r, init(r, arg, false))) return;
    check_world(r, 3);
    tsh_world_destroy(r->world);
}

Test(methods, two_claim_one_rank, .timeout = 120) {
    char text[128];
    write_method(&methods[1], text);
    tshi_test_options options = {.ranks = 3, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, second_rank_0, text, NULL, NULL));
}

/* A host name of its own makes a rank look like one on another machine. */
static void on_two_machines(tshi_rank *r, void *arg) {
    if (r->rank == 1 && (unshare(CLONE_NEWUTS) != 0 || sethostname("elsewhere", 9) != 0)) {
        *(int *)r->result = 1;
        setenv("TSHARD_TIMEOUT", "1", 1);
        return;
    }
    setenv("TSHARD_BACKEND", "local", 1); /* where MPI is not started next */
    tsh_status status = init(r, arg, false);
    if (status == TSH_ERR_TIMEOUT) return;
    tshi_check(r, status == TSH_ERR_ARGUMENT, "%s: %s", tsh_status_name(status), tsh_error_message());
    tshi_check(r, strstr(tsh_error_message(), "2 machines") && strstr(tsh_error_message(), "elsewhere: rank 1"), "%s",
               tsh_error_message());
}

Test(methods, two_machines, .timeout = 120) {
    char text[128];
    int results[2] = {0};
    write_method(&methods[1], text);
    tshi_test_options options = {.ranks = 2, .bare = true, .world_timeout = "3", .result_bytes = sizeof(int)};
    const char *words = tshi_test_run_with(&options, on_two_machines, text, NULL, results);
    if (results[1]) cr_skip_test("no right to change a process's host name");
    cr_assert_str_empty(words);
}

/* --- many --------------------------------------------------------------------------------------------------------- */

static void of_many(tshi_rank *r, void *arg) {
    tsh_world_config config = {.init_method = arg, .heap_bytes = (size_t)1 << 20};
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    tsh_world_destroy(r->world);
}

Test(methods, many_ranks, .timeout = 240) {
    char tcp[128];
    write_method(&methods[1], tcp);
    char many[128];
    write_method(&methods[4], many);
    const char *const texts[] = {"env://", tcp, many};
    for (int i = 0; i < 3; i++) {
        /* With multicast every rank gets every message: on a busy machine a quarter of the ranks is enough. */
        int ranks = i == 2 ? MANY / 4 : MANY;
        tshi_test_options options = {.ranks = ranks, .bare = true};
        cr_assert_str_empty(tshi_test_run_with(&options, of_many, (void *)(uintptr_t)texts[i], NULL, NULL));
    }
}
