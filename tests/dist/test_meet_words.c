/* What ranks are told while they wait for others, and why they wait. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/ranks.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define HEAP ((size_t)8 << 20)

static int port_of(int number) {
    return 10000 + (int)(((unsigned)getpid() * 19u + (unsigned)number * 5u) % 20000u);
}

typedef struct lines {
    char text[4096];
    size_t used;
} lines;

static void take_line(void *user, tsh_log_level level, const char *line) {
    lines *l = user;
    (void)level;
    if (l->used < sizeof l->text) {
        l->used += (size_t)snprintf(l->text + l->used, sizeof l->text - l->used, "%s\n", line);
    }
}

/* --- every five seconds ------------------------------------------------------------------------------------------- */

typedef struct wait_case {
    char method[128];
    const char *to_rank_0, *to_rank_1; /* NULL: nobody knows who leads, and either is told one or the other */
} wait_case;

static void last_is_late(tshi_rank *r, void *arg) {
    const wait_case *c = arg;
    const struct timespec late = {.tv_sec = 5, .tv_nsec = 600000000};
    lines log = {.used = 0};
    tsh_world_config config = {.init_method = c->method, .heap_bytes = HEAP, .log = {take_line, &log}};
    unsetenv("LOCAL_WORLD_SIZE");
    if (!c->to_rank_1) unsetenv("RANK");
    if (r->rank == 2) nanosleep(&late, NULL);
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    tsh_world_destroy(r->world);
    r->world = NULL;
    if (r->rank == 2) return;
    bool either = strstr(log.text, "rendezvous: 2/3 joined\n") || strstr(log.text, "waits for all 3 ranks to come\n");
    const char *wanted = r->rank == 0 ? c->to_rank_0 : c->to_rank_1;
    tshi_check(r, wanted ? strstr(log.text, wanted) != NULL : either, "%s: %s", c->method, log.text);
}

/* The three at once: each takes five seconds. */
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

Test(words, who_is_missing, .timeout = 40) {
    wait_case cases[3] = {
        {.to_rank_0 = "rendezvous: 2/3 joined, missing rank 2\n",
         .to_rank_1 = "rank 1 waits for all 3 ranks to come\n"},
    };
    snprintf(cases[0].method, sizeof cases[0].method, "tcp://127.0.0.1:%d", port_of(0));
    snprintf(cases[1].method, sizeof cases[1].method, "file:///tmp/tshard-test-words-%d", (int)getpid());
    snprintf(cases[2].method, sizeof cases[2].method, "tcp://239.255.17.8:%d", port_of(1));
    tshi_test_options options = {.ranks = 9, .bare = true, .world_timeout = "20", .timeout = 30};
    cr_assert_str_empty(tshi_test_run_with(&options, waiting, cases, NULL, NULL));
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

Test(words, too_few_descriptors, .timeout = 30) {
    char tcp[64];
    snprintf(tcp, sizeof tcp, "tcp://127.0.0.1:%d", port_of(2));
    char *const methods[] = {"env://", tcp};
    for (int i = 0; i < 2; i++) {
        tshi_test_options options = {.ranks = 6, .bare = true, .world_timeout = "2"};
        const char *words = tshi_test_run_with(&options, few_descriptors, methods[i], NULL, NULL);
        cr_assert_str_empty(words, "%s: %s", methods[i], words);
    }
}
