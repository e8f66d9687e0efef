/* The environment's variables, and the rendezvous of ranks on one machine. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/rendezvous/sockets.h"
#include "support/clock.h"
#include "support/collectives.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* --- variables ---------------------------------------------------------------------------------------------------- */

static const char *const variables[] = {
    "RANK",           "WORLD_SIZE",     "LOCAL_RANK",           "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",    "MASTER_PORT",    "TSHARD_TOKEN",         "TSHARD_RESTART",
    "TSHARD_TIMEOUT", "TSHARD_DEVICE",  "TSHARD_HEAP",          "TSHARD_BLAS_THREADS",
    "TSHARD_SEED",    "TSHARD_WARN",    "TSHARD_SIGUSR1",       "TSHARD_LOG",
    "TSHARD_CHECK",   "TSHARD_BACKEND", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",       "PMI_SIZE",       "SLURM_PROCID",         "SLURM_NTASKS"};

static void clear_environment(void) {
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
    setenv("TSHARD_HEAP", "64M", 1);
}

/* Sets the variables of "A=1 B=2". */
static void set_variables(const char *settings) {
    char text[512], *next = NULL;
    clear_environment();
    snprintf(text, sizeof text, "%s", settings);
    for (char *word = strtok_r(text, " ", &next); word; word = strtok_r(NULL, " ", &next)) {
        char *equals = strchr(word, '=');
        *equals = '\0';
        setenv(word, equals + 1, 1);
    }
}

static void expect_error(const char *settings, const tsh_world_config *config, tsh_status wanted, const char *words) {
    tsh_world *world = (tsh_world *)(void *)&wanted;
    set_variables(settings);
    double start = tshi_now();
    tsh_status status = tsh_world_init(config, &world);
    cr_assert_eq(status, wanted, "%s: %s \"%s\"", settings, tsh_status_name(status), tsh_error_message());
    cr_assert(strstr(tsh_error_message(), words), "%s: \"%s\" has no \"%s\"", settings, tsh_error_message(), words);
    cr_assert_null(world);
    cr_assert_lt(tshi_now() - start, TSHI_SOON, "%s: an error that could be seen at once took %g s", settings,
                 tshi_now() - start);
}

Test(rendezvous, malformed_variables, .timeout = 120) {
    static const struct {
        const char *settings, *words;
    } cases[] = {
        {"RANK=0", "RANK is set, but WORLD_SIZE is not"},
        {"WORLD_SIZE=2", "WORLD_SIZE is set, but RANK is not"},
        {"RANK=x WORLD_SIZE=2", "RANK is \"x\""},
        {"RANK=1x WORLD_SIZE=2", "RANK is \"1x\""},
        {"RANK=-1 WORLD_SIZE=2", "RANK is \"-1\""},
        {"RANK=+1 WORLD_SIZE=2", "RANK is \"+1\""},
        {"RANK=0 WORLD_SIZE=0", "WORLD_SIZE is \"0\""},
        {"RANK=2 WORLD_SIZE=2", "RANK is 2, but WORLD_SIZE is 2"},
        {"RANK=0 WORLD_SIZE=99999999999999999999", "WORLD_SIZE is \"99999999999999999999\""},
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", "LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2"},
        {"RANK=0 WORLD_SIZE=2 MASTER_PORT=0", "MASTER_PORT is \"0\""},
        {"RANK=0 WORLD_SIZE=2 MASTER_PORT=65536", "MASTER_PORT is \"65536\""},
        {"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK is 3"},
        {"SLURM_PROCID=y SLURM_NTASKS=2", "SLURM_PROCID is \"y\""},
        {"TSHARD_TIMEOUT=0", "TSHARD_TIMEOUT is \"0\""},
        {"TSHARD_TIMEOUT=soon", "TSHARD_TIMEOUT is \"soon\""},
        {"TSHARD_TIMEOUT=nan", "TSHARD_TIMEOUT is \"nan\""},
        {"TSHARD_TIMEOUT=-3", "TSHARD_TIMEOUT is \"-3\""},
        {"TSHARD_HEAP=0", "TSHARD_HEAP is \"0\""},
        {"TSHARD_HEAP=4Q", "TSHARD_HEAP is \"4Q\""},
        {"TSHARD_HEAP=99999999999T", "TSHARD_HEAP is \"99999999999T\""},
        {"TSHARD_BLAS_THREADS=0", "TSHARD_BLAS_THREADS is \"0\""},
        {"TSHARD_SEED=-1", "TSHARD_SEED is \"-1\""},
        {"TSHARD_SEED=18446744073709551616", "TSHARD_SEED is \"18446744073709551616\""},
        {"TSHARD_TIMEOUT=1e9", "TSHARD_TIMEOUT is \"1e9\"; it must be a positive number of seconds"},
        {"TSHARD_TIMEOUT=0x10", "TSHARD_TIMEOUT is \"0x10\""},
        {"TSHARD_TIMEOUT=+5", "TSHARD_TIMEOUT is \"+5\""},
        {"TSHARD_WARN=0", "TSHARD_WARN is \"0\"; it must be a positive number of seconds"},
        {"TSHARD_LOG=loud", "TSHARD_LOG is \"loud\"; it must be error, warning, info or debug"},
        {"TSHARD_SIGUSR1=2", "TSHARD_SIGUSR1 is \"2\"; it must be 0 or 1 (off or on, no or yes, false or true)"},
        {"TSHARD_CHECK=please", "TSHARD_CHECK is \"please\"; it must be 0, 1 or nan"},
        {"TSHARD_BACKEND=lokal", "TSHARD_BACKEND is \"lokal\"; it must be local, mpi, nccl, plan or ucx"},
        {"RANK=1 WORLD_SIZE=2147483647", "WORLD_SIZE is \"2147483647\"; it must be a whole number from 1 to 1048576"},
        {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1048577", "OMPI_COMM_WORLD_SIZE is \"1048577\""},
        {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=9",
         "LOCAL_WORLD_SIZE is 9, but WORLD_SIZE is 2: a machine cannot have more ranks than the world"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=2", "LOCAL_RANK is 2, but WORLD_SIZE is 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_error(cases[i].settings, NULL, TSH_ERR_ARGUMENT, cases[i].words);
    }
}

Test(rendezvous, contradictions, .timeout = 120) {
    tsh_world_config config = {.rank = 2, .world_size = 2};
    expect_error("", &config, TSH_ERR_ARGUMENT, "rank is 2");
    expect_error("RANK=0 WORLD_SIZE=2", &config, TSH_ERR_ARGUMENT, "rank is 2");
    config = (tsh_world_config){.rank = 2};
    expect_error("", &config, TSH_ERR_ARGUMENT, "rank 2 of world_size 0");
    config = (tsh_world_config){.rank = 1, .world_size = INT32_MAX};
    expect_error("", &config, TSH_ERR_ARGUMENT, "world_size is 2147483647; a world has at most 1048576 ranks");
    config = (tsh_world_config){.timeout = -1};
    expect_error("", &config, TSH_ERR_ARGUMENT, "the timeout is -1 seconds");
    config = (tsh_world_config){.device = (tsh_device_kind)9};
    expect_error("", &config, TSH_ERR_ARGUMENT, "9 is not a kind of device");
    expect_error("TSHARD_DEVICE=gpu", NULL, TSH_ERR_ARGUMENT, "TSHARD_DEVICE is \"gpu\"; it must be cpu or cuda");
    expect_error("RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", NULL, TSH_ERR_UNSUPPORTED, "2 of 4 ranks");
    expect_error("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 MASTER_ADDR=198.51.100.7", NULL,
                 TSH_ERR_UNSUPPORTED, "MASTER_ADDR=198.51.100.7 is not this machine");
    expect_error("RANK=0 WORLD_SIZE=2 MASTER_ADDR=198.51.100.7", NULL, TSH_ERR_SYSTEM,
                 "rank 0 cannot listen at 198.51.100.7:29500 (198.51.100.7:29500: Cannot assign requested address)");
    cr_assert_eq(tsh_world_init(NULL, NULL), TSH_ERR_ARGUMENT);
}

Test(rendezvous, a_world_of_one, .timeout = 120) {
    static const char *const settings[] = {"", "RANK=0 WORLD_SIZE=1", "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1",
                                           "SLURM_PROCID=0 SLURM_NTASKS=1", "PMI_RANK=0 PMI_SIZE=1"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        tsh_world *world = NULL;
        set_variables(settings[i]);
        cr_assert_eq(tsh_world_init(NULL, &world), TSH_OK, "%s: %s", settings[i], tsh_error_message());
        cr_assert_eq(tsh_world_size(world), 1);
        cr_assert_eq(tsh_world_rank(world), 0);
        cr_assert_str_eq(tsh_group_backend(tsh_world_group(world)), "self");
        cr_assert_eq(tsh_barrier(tsh_world_group(world)), TSH_OK);
        tsh_world_destroy(world);
    }
    tsh_world_destroy(NULL);
}

static void on_usr1(int number) {
    (void)number;
}

static void *usr1_handler(void) {
    struct sigaction now;
    return sigaction(SIGUSR1, NULL, &now) ? NULL : (void *)(uintptr_t)now.sa_handler;
}

/* The signal's handler while worlds live, where the program had `before`, and when the last world has ended. */
static void handlers(const char *setting, void (*before)(int), bool replaced) {
    tsh_world *worlds[2] = {NULL, NULL};
    set_variables(setting);
    signal(SIGUSR1, before);
    void *own = usr1_handler();
    for (int i = 0; i < 2; i++) cr_assert_eq(tsh_world_init(NULL, &worlds[i]), TSH_OK);
    tsh_world_destroy(worlds[0]);
    cr_assert((usr1_handler() != own) == replaced, "%s", setting);
    tsh_world_destroy(worlds[1]);
    cr_assert(usr1_handler() == own, "%s", setting);
}

Test(rendezvous, sigusr1_is_taken_where_the_program_says_nothing_and_given_back, .timeout = 120) {
    handlers("", SIG_DFL, true);
    handlers("TSHARD_SIGUSR1=0", SIG_DFL, false);
    handlers("", SIG_IGN, false);
    handlers("", on_usr1, false);
}

static void count_line(void *user, tsh_log_level level, const char *line) {
    (void)level;
    *(int *)user += strstr(line, "TSHARD_TIMEUOT") != NULL;
}

/* The line that a variable which is no setting brings, a warning, reaches the sink at these levels. */
Test(rendezvous, the_log_has_the_lines_of_its_level, .timeout = 120) {
    static const struct {
        const char *setting;
        int lines;
    } cases[] = {{"", 1}, {"TSHARD_LOG=error", 0}, {"TSHARD_LOG=warning", 1}, {"TSHARD_LOG=debug", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tsh_world *world = NULL;
        int lines = 0;
        const tsh_world_config config = {.log = {count_line, &lines}};
        set_variables(cases[i].setting);
        setenv("TSHARD_TIMEUOT", "3", 1);
        cr_assert_eq(tsh_world_init(&config, &world), TSH_OK);
        unsetenv("TSHARD_TIMEUOT");
        tsh_world_destroy(world);
        cr_assert_eq(lines, cases[i].lines, "%s", cases[i].setting);
    }
}

/* SIGUSR1 does not end a process whose world has a handler for it; without the handler it would. */
Test(rendezvous, a_switch_is_on_in_every_spelling, .timeout = 120) {
    static const char *const settings[] = {"TSHARD_SIGUSR1=1", "TSHARD_SIGUSR1=on", "TSHARD_SIGUSR1=yes",
                                           "TSHARD_SIGUSR1=True"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        tsh_world *world = NULL;
        set_variables(settings[i]);
        signal(SIGUSR1, SIG_DFL);
        cr_assert_eq(tsh_world_init(NULL, &world), TSH_OK, "%s: %s", settings[i], tsh_error_message());
        raise(SIGUSR1);
        tsh_world_destroy(world);
    }
}

/* Two ranks, described by the variables of each launcher. */
static void by_other_names(tshi_rank *r, void *arg) {
    static const char *const families[][4] = {
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
        {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "UNUSED"}};
    char rank[16], size[16], token[128];
    (void)arg;
    snprintf(rank, sizeof rank, "%d", r->rank);
    snprintf(size, sizeof size, "%d", r->size);
    snprintf(token, sizeof token, "%s", getenv("TSHARD_TOKEN"));
    for (int i = 0; i < 3; i++) {
        clear_environment();
        setenv("TSHARD_TOKEN", token, 1);
        for (int k = 0; k < 4; k++) setenv(families[i][k], k % 2 ? size : rank, 1);
        if (!tshi_check_ok(r, tsh_world_init(NULL, &r->world))) return;
        tshi_check(r, tsh_world_rank(r->world) == r->rank && tsh_world_local_rank(r->world) == r->rank, "rank");
        tshi_try_all_reduce(r, tsh_world_group(r->world), TSH_FLOAT32, TSH_REDUCE_SUM, 100);
        tsh_world_destroy(r->world);
        for (int k = 0; k < 4; k++) unsetenv(families[i][k]);
    }
}

Test(rendezvous, every_launchers_variables, .timeout = 120) {
    tshi_test_options options = {.ranks = 2, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, by_other_names, NULL, NULL, NULL));
}

/* --- rendezvous --------------------------------------------------------------------------------------------------- */

static void wrong_size(tshi_rank *r, void *arg) {
    (void)arg;
    if (r->rank == 1) setenv("WORLD_SIZE", "4", 1);
    if (r->rank == 1) setenv("LOCAL_WORLD_SIZE", "4", 1);
    if (r->rank == 2) tshi_nap(0.2);
    tsh_world *world = NULL;
    double start = tshi_now();
    tshi_check_status(r, tsh_world_init(NULL, &world), TSH_ERR_ARGUMENT,
                      "rank 0 says WORLD_SIZE=3, rank 1 says WORLD_SIZE=4");
    tshi_check(r, tshi_now() - start < TSHI_SOON, "it took %g s", tshi_now() - start);
}

Test(rendezvous, world_sizes_differ, .timeout = 120) {
    tshi_test_options options = {.ranks = 3, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, wrong_size, NULL, NULL, NULL));
}

static void one_is_missing(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_world *world = NULL;
    if (r->rank == 2) return;
    double start = tshi_now();
    tshi_check_status(r, tsh_world_init(NULL, &world), TSH_ERR_TIMEOUT, "2/3 joined, missing rank 2");
    tshi_check(r, tshi_now() - start < TSHI_SOON, "it took %g s", tshi_now() - start);
}

Test(rendezvous, a_rank_is_missing, .timeout = 120) {
    tshi_test_options options = {.ranks = 3, .bare = true, .world_timeout = "1"};
    cr_assert_str_empty(tshi_test_run_with(&options, one_is_missing, NULL, NULL, NULL));
}

static void rank_0_is_missing(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_world *world = NULL;
    if (r->rank == 0) return;
    tshi_check_status(r, tsh_world_init(NULL, &world), TSH_ERR_TIMEOUT, "found no rank 0 at 127.0.0.1:");
}

Test(rendezvous, rank_0_is_missing, .timeout = 120) {
    tshi_test_options options = {.ranks = 2, .bare = true, .world_timeout = "1"};
    cr_assert_str_empty(tshi_test_run_with(&options, rank_0_is_missing, NULL, NULL, NULL));
}

static void two_are_rank_1(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_world *world = NULL;
    if (r->rank == 2) {
        setenv("RANK", "1", 1);
        setenv("LOCAL_RANK", "1", 1);
        tshi_nap(0.3);
        tshi_check_status(r, tsh_world_init(NULL, &world), TSH_ERR_ARGUMENT, "rank 1 has joined already");
        /* Then the right rank comes. */
        setenv("RANK", "2", 1);
        setenv("LOCAL_RANK", "2", 1);
    }
    if (!tshi_check_ok(r, tsh_world_init(NULL, &r->world))) return;
    tshi_try_all_reduce(r, tsh_world_group(r->world), TSH_FLOAT32, TSH_REDUCE_SUM, 10);
    tsh_world_destroy(r->world);
}

Test(rendezvous, two_claim_one_rank, .timeout = 120) {
    tshi_test_options options = {.ranks = 3, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, two_are_rank_1, NULL, NULL, NULL));
}

/* Waits until rank 0 listens at the job's socket, whose name follows from the key; false when it never does. */
static bool find_socket(tshi_endpoint *endpoint) {
    static const tsh_world_config config;
    tshi_settings settings;
    if (tshi_settings_read(&config, &settings) != TSH_OK) return false;
    tshi_unix_endpoint(&settings, endpoint);
    for (int tries = 0; tries < 300; tries++) {
        int fd = tshi_socket_connect(endpoint, tshi_clock() + 1);
        if (fd >= 0) close(fd);
        if (fd >= 0) return true;
        tshi_nap(0.01);
    }
    return false;
}

/* The name does not show that it is a rendezvous, of which user, or at which port: without the key it looks random. */
Test(rendezvous, the_socket_has_a_name_that_tells_nothing, .timeout = 120) {
    static const char *const jobs[] = {"RANK=0 WORLD_SIZE=2", "RANK=0 WORLD_SIZE=2 MASTER_PORT=29501",
                                       "RANK=0 WORLD_SIZE=2 TSHARD_TOKEN=x"};
    static const tsh_world_config config;
    char names[3][64] = {""};
    for (int i = 0; i < 3; i++) {
        tshi_settings settings;
        tshi_endpoint endpoint;
        struct sockaddr_un address;
        set_variables(jobs[i]);
        cr_assert_eq(tshi_settings_read(&config, &settings), TSH_OK);
        tshi_unix_endpoint(&settings, &endpoint);
        memcpy(&address, &endpoint.address, sizeof address);
        size_t size = endpoint.length - offsetof(struct sockaddr_un, sun_path) - 1;
        cr_assert(address.sun_path[0] == '\0' && size >= 32 && size < sizeof names[i]);
        memcpy(names[i], address.sun_path + 1, size);
        cr_assert_eq(strspn(names[i], "0123456789abcdef"), size, "%s", names[i]);
        for (int k = 0; k < i; k++) cr_assert_str_neq(names[k], names[i]);
    }
}

/* Rank 2 first connects and sends nothing, garbage, or half a greeting, or closes the connection. */
static void unknown_connections(tshi_rank *r, void *arg) {
    (void)arg;
    if (r->rank == 2) {
        tshi_endpoint endpoint;
        int fds[40];
        char noise[600];
        memset(noise, 'x', sizeof noise);
        if (!tshi_check(r, find_socket(&endpoint), "rank 0 does not listen")) return;
        /* More connections than the listener keeps at a time. */
        for (int i = 0; i < 40; i++) {
            fds[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
            bool in = connect(fds[i], (struct sockaddr *)&endpoint.address, endpoint.length) == 0;
            tshi_check(r, in, "a connection is refused");
            if (i % 3 == 1) tshi_check(r, send(fds[i], noise, sizeof noise, MSG_NOSIGNAL) > 0, "send");
            if (i % 3 == 2) close(fds[i]);
        }
        tshi_nap(0.1);
    }
    if (!tshi_check_ok(r, tsh_world_init(NULL, &r->world))) return;
    tshi_try_all_reduce(r, tsh_world_group(r->world), TSH_FLOAT32, TSH_REDUCE_SUM, 10);
    tsh_world_destroy(r->world);
}

Test(rendezvous, unknown_connections_do_no_harm, .timeout = 120) {
    tshi_test_options options = {.ranks = 3, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, unknown_connections, NULL, NULL, NULL));
}

/* A rank with another token does not find its peers, and does not disturb them. */
static void wrong_token(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_world *world = NULL;
    if (r->rank == 1) {
        char token[128];
        snprintf(token, sizeof token, "%s", getenv("TSHARD_TOKEN"));
        setenv("TSHARD_TOKEN", "another token", 1);
        setenv("TSHARD_TIMEOUT", "0.5", 1);
        tshi_check_status(r, tsh_world_init(NULL, &world), TSH_ERR_TIMEOUT, "found no rank 0");
        setenv("TSHARD_TOKEN", token, 1);
        setenv("TSHARD_TIMEOUT", "60", 1);
    }
    if (!tshi_check_ok(r, tsh_world_init(NULL, &r->world))) return;
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    tsh_world_destroy(r->world);
}

Test(rendezvous, wrong_token, .timeout = 120) {
    tshi_test_options options = {.ranks = 2, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, wrong_token, NULL, NULL, NULL));
}

/* Rank 2 comes once rank 0 has warned that it is missing. */
static void take_warning(void *user, tsh_log_level level, const char *line) {
    atomic_int *warned = user;
    if (level == TSH_LOG_WARNING && !strcmp(line, "rendezvous: 2/3 joined, missing rank 2")) atomic_store(warned, 1);
}

static void warns(tshi_rank *r, void *arg) {
    atomic_int *warned = arg;
    tsh_world_config config = {.heap_bytes = (size_t)16 << 20, .log = {take_warning, warned}};
    while (r->rank == 2 && !atomic_load(warned)) tshi_nap(0.01);
    tshi_check_ok(r, tsh_world_init(&config, &r->world));
    tsh_world_destroy(r->world);
}

Test(rendezvous, warns_of_the_missing_ranks, .timeout = 120) {
    atomic_int *warned = mmap(NULL, sizeof *warned, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(warned, MAP_FAILED);
    setenv("TSHARD_WARN", "0.2", 1);
    tshi_test_options options = {.ranks = 3, .bare = true, .world_timeout = "25", .timeout = 30};
    cr_assert_str_empty(tshi_test_run_with(&options, warns, warned, NULL, NULL));
    munmap(warned, sizeof *warned);
}

/* Several worlds, one after another at one address, without a pause. */
static void again_and_again(tshi_rank *r, void *arg) {
    (void)arg;
    for (int i = 0; i < 10; i++) {
        if (!tshi_check_ok(r, tsh_world_init(NULL, &r->world))) return;
        tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
        tsh_world_destroy(r->world);
    }
}

Test(rendezvous, again_and_again, .timeout = 120) {
    tshi_test_options options = {.ranks = 3, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, again_and_again, NULL, NULL, NULL));
}

/* More ranks than fit into one message of descriptors. */
static void many_ranks(tshi_rank *r, void *arg) {
    (void)arg;
    tshi_try_all_reduce(r, tsh_world_group(r->world), TSH_INT64, TSH_REDUCE_SUM, 100);
}

Test(rendezvous, forty_ranks, .timeout = 120) {
    tshi_test_options options = {.ranks = 40, .heap_bytes = (size_t)8 << 20};
    cr_assert_str_empty(tshi_test_run_with(&options, many_ranks, NULL, NULL, NULL));
}

/* --- threads ------------------------------------------------------------------------------------------------------ */

Test(rendezvous, threads, .timeout = 120) {
    tsh_thread_rendezvous *threads = (tsh_thread_rendezvous *)(void *)variables;
    cr_assert_eq(tsh_thread_rendezvous_create(0, &threads), TSH_ERR_ARGUMENT);
    cr_assert_null(threads);
    cr_assert_eq(tsh_thread_rendezvous_create(1, NULL), TSH_ERR_ARGUMENT);
    cr_assert_eq(tsh_thread_rendezvous_create(INT32_MAX, &threads), TSH_ERR_ARGUMENT);
    tsh_thread_rendezvous_destroy(NULL);
    cr_assert_eq(tsh_thread_rendezvous_create(2, &threads), TSH_OK);
    tsh_world *world = NULL;
    tsh_world_config config = {.threads = threads, .rank = 2};
    cr_assert_eq(tsh_world_init(&config, &world), TSH_ERR_ARGUMENT);
    config = (tsh_world_config){.threads = threads, .world_size = 3};
    cr_assert_eq(tsh_world_init(&config, &world), TSH_ERR_ARGUMENT);
    config = (tsh_world_config){.threads = threads, .timeout = 0.3, .heap_bytes = (size_t)16 << 20};
    cr_assert_eq(tsh_world_init(&config, &world), TSH_ERR_TIMEOUT, "%s", tsh_error_message());
    cr_assert(strstr(tsh_error_message(), "rank 1 did not come"), "%s", tsh_error_message());
    cr_assert_eq(tsh_world_init(&config, &world), TSH_ERR_STATE, "%s", tsh_error_message());
    tsh_thread_rendezvous_destroy(threads);
}
