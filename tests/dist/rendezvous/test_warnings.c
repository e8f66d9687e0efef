/* Warnings of a rendezvous: which ranks are missing, and why. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/ports.h"
#include "support/ranks.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HEAP ((size_t)8 << 20)

/* --- warnings ----------------------------------------------------------------------------------------------------- */

/* In memory that all ranks share: the last rank comes when both its peers have warned. */
typedef struct wait_case {
    char method[128];
    const char *to_rank_0, *to_rank_1; /* NULL: any rank may lead, and each logs one of the two lines */
    atomic_int said;
} wait_case;

typedef struct listener {
    wait_case *c;
    const char *wanted;
    bool warned;
} listener;

static void take_line(void *user, tsh_log_level level, const char *line) {
    listener *l = user;
    bool joined = !strcmp(line, "rendezvous: 2/3 joined") && level == TSH_LOG_WARNING;
    bool said = l->wanted ? strstr(line, l->wanted) != NULL : joined || strstr(line, "waits for all 3 ranks to join");
    if (!said || l->warned) return;
    l->warned = true;
    atomic_fetch_add(&l->c->said, 1);
}

static void last_is_late(tshi_rank *r, wait_case *c) {
    const struct timespec nap = {.tv_nsec = 10000000};
    listener l = {c, r->rank == 0 ? c->to_rank_0 : c->to_rank_1, false};
    tsh_world_config config = {.init_method = c->method, .heap_bytes = HEAP, .log = {take_line, &l}};
    unsetenv("LOCAL_WORLD_SIZE");
    if (!c->to_rank_1) unsetenv("RANK");
    while (r->rank == 2 && atomic_load(&c->said) < 2) nanosleep(&nap, NULL);
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    tsh_world_destroy(r->world);
    r->world = NULL;
}

static void waiting(tshi_rank *r, void *arg) {
    wait_case *cases = arg;
    char rank[16];
    int which = r->rank / 3;
    r->rank %= 3;
    snprintf(rank, sizeof rank, "%d", r->rank);
    setenv("RANK", rank, 1);
    setenv("WORLD_SIZE", "3", 1);
    unsetenv("LOCAL_RANK");
    last_is_late(r, &cases[which]);
}

Test(warnings, which_ranks_are_missing, .timeout = 120) {
    wait_case *cases = mmap(NULL, 3 * sizeof *cases, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(cases, MAP_FAILED);
    cases[0].to_rank_0 = "rendezvous: 2/3 joined, missing rank 2";
    cases[0].to_rank_1 = "rank 1 waits for all 3 ranks to join";
    snprintf(cases[0].method, sizeof cases[0].method, "tcp://127.0.0.1:%d", tshi_test_port());
    snprintf(cases[1].method, sizeof cases[1].method, "file:///tmp/tshard-test-words-%d", (int)getpid());
    snprintf(cases[2].method, sizeof cases[2].method, "tcp://239.255.17.8:%d", tshi_test_port());
    setenv("TSHARD_WARN", "0.2", 1);
    tshi_test_options options = {.ranks = 9, .bare = true, .world_timeout = "40", .timeout = 45};
    cr_assert_str_empty(tshi_test_run_with(&options, waiting, cases, NULL, NULL));
    munmap(cases, 3 * sizeof *cases);
}

/* Rank 0 is missing: every other rank warns of that, on the default log too. */
static void without_rank_0(tshi_rank *r, void *arg) {
    tsh_world_config config = {.init_method = arg, .heap_bytes = HEAP};
    char words[64], printed[4096] = "";
    FILE *log = tmpfile();
    if (r->rank == 0 || !tshi_check(r, log && dup2(fileno(log), STDERR_FILENO) >= 0, "no file for stderr")) return;
    tsh_status status = tsh_world_init(&config, &r->world);
    tshi_check(r, status == TSH_ERR_TIMEOUT, "%s: %s", tsh_status_name(status), tsh_error_message());
    rewind(log);
    printed[fread(printed, 1, sizeof printed - 1, log)] = '\0';
    fclose(log);
    snprintf(words, sizeof words, "tshard warning: rendezvous: rank %d waits for rank 0 at ", r->rank);
    tshi_check(r, strstr(printed, words) != NULL, "stderr has: %.300s", printed);
}

Test(warnings, rank_0_is_missing, .timeout = 120) {
    char tcp[64];
    snprintf(tcp, sizeof tcp, "tcp://127.0.0.1:%d", tshi_test_port());
    char *const methods[] = {"env://", tcp};
    setenv("TSHARD_WARN", "0.2", 1);
    for (int i = 0; i < 2; i++) {
        tshi_test_options options = {.ranks = 2, .bare = true, .world_timeout = "1"};
        cr_assert_str_empty(tshi_test_run_with(&options, without_rank_0, methods[i], NULL, NULL));
    }
}

/* --- tokens ------------------------------------------------------------------------------------------------------- */

typedef struct token_case {
    char method[64];
    const char *token, *words; /* NULL: no warning */
} token_case;

static void keep_token_line(void *user, tsh_log_level level, const char *line) {
    char *kept = user;
    (void)level;
    if (strstr(line, "TSHARD_TOKEN")) snprintf(kept, 256, "%s", line);
}

static void with_token(tshi_rank *r, void *arg) {
    const token_case *c = arg;
    char said[256] = "";
    tsh_world_config config = {.init_method = c->method, .heap_bytes = HEAP, .log = {keep_token_line, said}};
    setenv("TSHARD_TOKEN", c->token, 1);
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    tsh_world_destroy(r->world);
    r->world = NULL;
    bool as_wanted = r->rank == 0 && c->words ? strstr(said, c->words) != NULL : said[0] == '\0';
    tshi_check(r, as_wanted, "%s: \"%s\"", c->token, said);
}

Test(warnings, a_token_that_can_be_guessed, .timeout = 60) {
    static token_case cases[] = {
        {"", "hush", "TSHARD_TOKEN has 4 characters, which any program that connects can guess"},
        {"", "0123456789abcde", "TSHARD_TOKEN has 15 characters"},
        {"", "0123456789abcdef", NULL},
        {"", "", NULL}};
    for (int i = 0; i < 4; i++) {
        snprintf(cases[i].method, sizeof cases[i].method, "tcp://127.0.0.1:%d", tshi_test_port());
        tshi_test_options options = {.ranks = 2, .bare = true};
        cr_assert_str_empty(tshi_test_run_with(&options, with_token, &cases[i], NULL, NULL));
    }
}

/* --- descriptors -------------------------------------------------------------------------------------------------- */

/* Rank 0 may have its listener and three connections, of five. */
static void few_descriptors(tshi_rank *r, void *arg) {
    const char *method = arg;
    tsh_world_config config = {.init_method = method, .heap_bytes = HEAP};
    struct rlimit limit;
    int next = fcntl(0, F_DUPFD, 0);
    close(next);
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = (rlim_t)next + 4;
    if (r->rank == 0) tshi_check(r, setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
    tsh_status status = tsh_world_init(&config, &r->world);
    tshi_check(r, status == TSH_ERR_TIMEOUT, "%s: %s", tsh_status_name(status), tsh_error_message());
    const char *words = "no descriptor left for them (ulimit -n)";
    if (r->rank == 0) {
        tshi_check(r, strstr(tsh_error_message(), "/6 joined") && strstr(tsh_error_message(), words), "%s",
                   tsh_error_message());
    }
}

Test(warnings, too_few_descriptors, .timeout = 120) {
    char tcp[64];
    snprintf(tcp, sizeof tcp, "tcp://127.0.0.1:%d", tshi_test_port());
    char *const methods[] = {"env://", tcp};
    for (int i = 0; i < 2; i++) {
        tshi_test_options options = {.ranks = 6, .bare = true, .world_timeout = "2"};
        const char *words = tshi_test_run_with(&options, few_descriptors, methods[i], NULL, NULL);
        cr_assert_str_empty(words, "%s: %s", methods[i], words);
    }
}

/* --- a rank that comes and goes ----------------------------------------------------------------------------------- */

static void count_losses(void *user, tsh_log_level level, const char *line) {
    (void)level;
    if (strstr(line, "rank 1 of") && strstr(line, "came and went")) atomic_fetch_add((atomic_int *)user, 1);
}

typedef struct coming {
    char method[64];
    atomic_int over, said;
} coming;

/* Rank 1 comes several times, and goes each time, before rank 2 comes. */
static void comes_and_goes_again(tshi_rank *r, void *arg) {
    coming *c = arg;
    tsh_world_config config = {.init_method = c->method, .heap_bytes = HEAP, .log = {count_losses, &c->said}};
    for (int i = 0; r->rank == 1 && i < 3; i++) {
        pid_t child = fork();
        config.timeout = 0.1;
        if (child == 0) {
            tsh_world_init(&config, &r->world);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    if (r->rank == 1) atomic_store(&c->over, 1);
    if (r->rank == 2) tshi_test_await(r, &c->over, 1);
    config.timeout = 60;
    if (tshi_check_ok(r, tsh_world_init(&config, &r->world))) tsh_world_destroy(r->world);
    tshi_check(r, atomic_load(&c->said) <= 1, "%d warnings", atomic_load(&c->said));
}

Test(warnings, comes_and_goes, .timeout = 120) {
    coming *c = tshi_test_shared(sizeof *c);
    setenv("TSHARD_WARN", "60", 1);
    snprintf(c->method, sizeof c->method, "tcp://127.0.0.1:%d", tshi_test_port());
    tshi_test_options options = {.ranks = 3, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, comes_and_goes_again, c, NULL, NULL));
}

/* --- sizes of files ----------------------------------------------------------------------------------------------- */

static void ignore_line(void *user, tsh_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}

/* A rendezvous while files are limited to so many bytes; stderr may be such a file. */
static tsh_status init_limited(tshi_rank *r, tsh_world_config config, rlim_t bytes) {
    struct rlimit before, limit;
    tshi_check(r, getrlimit(RLIMIT_FSIZE, &before) == 0, "getrlimit");
    limit = (struct rlimit){bytes, before.rlim_max};
    tshi_check(r, setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
    config.heap_bytes = HEAP;
    config.log.fn = ignore_line;
    tsh_status status = tsh_world_init(&config, &r->world);
    setrlimit(RLIMIT_FSIZE, &before);
    return status;
}

/* Rank 0 may not make a file as large as the memory of all ranks: an error, not the system's SIGXFSZ. */
static void small_files(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_status status = init_limited(r, (tsh_world_config){.rank = 0}, r->rank == 0 ? 1 << 20 : RLIM_INFINITY);
    tshi_check_status(r, status, TSH_ERR_MEMORY,
                      "bytes is more than this process may make, see ulimit -f (TSHARD_HEAP makes it smaller)");
}

Test(warnings, files_are_limited, .timeout = 120) {
    tshi_test_options options = {.ranks = 2, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, small_files, NULL, NULL, NULL));
}

static void no_files(tshi_rank *r, void *arg) {
    unsetenv("RANK");
    unsetenv("LOCAL_RANK");
    unsetenv("LOCAL_WORLD_SIZE");
    tsh_status status = init_limited(r, (tsh_world_config){.init_method = arg}, 0);
    tshi_check_status(r, status, TSH_ERR_SYSTEM, "File too large");
    tshi_check(r, access((const char *)arg + strlen("file://"), F_OK) != 0, "an empty file is left");
}

Test(warnings, no_file_may_be_written, .timeout = 120) {
    char text[96];
    snprintf(text, sizeof text, "file:///tmp/tshard-test-limit-%d", (int)getpid());
    tshi_test_options options = {.ranks = 2, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, no_files, text, NULL, NULL));
}

/* --- sizes of worlds ---------------------------------------------------------------------------------------------- */

#define MOST_MEMORY 400000 /* KiB */

/* A wrong, large world size costs the deadline, not the machine's memory. */
static void large_world(tshi_rank *r, void *arg) {
    tsh_world_config config = {.init_method = arg, .heap_bytes = HEAP};
    struct rusage usage;
    setenv("WORLD_SIZE", "1048576", 1);
    unsetenv("LOCAL_RANK");
    unsetenv("LOCAL_WORLD_SIZE");
    tshi_check_status(r, tsh_world_init(&config, &r->world), TSH_ERR_TIMEOUT, "rendezvous: ");
    getrusage(RUSAGE_SELF, &usage);
    tshi_check(r, usage.ru_maxrss < MOST_MEMORY, "%s took %ld KiB", config.init_method, usage.ru_maxrss);
}

Test(warnings, a_large_world_takes_little_memory, .timeout = 120) {
    char tcp[64], file[96], many[64];
    snprintf(tcp, sizeof tcp, "tcp://127.0.0.1:%d", tshi_test_port());
    snprintf(file, sizeof file, "file:///tmp/tshard-test-large-%d", (int)getpid());
    snprintf(many, sizeof many, "tcp://239.255.17.8:%d", tshi_test_port());
    char *const methods[] = {"env://", tcp, file, many};
    for (int i = 0; i < 4; i++) {
        tshi_test_options options = {.ranks = 2, .bare = true, .world_timeout = "0.5"};
        cr_assert_str_empty(tshi_test_run_with(&options, large_world, methods[i], NULL, NULL));
    }
}
