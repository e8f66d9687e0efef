/* Ranks in namespaces of their own, as the containers of one pod: they share memory, but not process numbers or
 * times. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/world.h"
#include "support/clock.h"
#include "support/collectives.h"
#include "support/lines.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

static bool write_line(const char *path, const char *line) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool written = fd >= 0 && write(fd, line, strlen(line)) == (ssize_t)strlen(line);
    if (fd >= 0) close(fd);
    return written;
}

/* Runs the rank in a child, which is the first process in a namespace. False without the right to make one. */
static bool run_inside(tshi_rank *r, int kind, tshi_rank_fn *fn, void *arg) {
    if (unshare(kind) != 0) return false;
    if (kind == CLONE_NEWTIME && !write_line("/proc/self/timens_offsets", "boottime 1000 500000000\n")) return false;
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        fn(r, arg);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    return true;
}

static bool have_namespaces(int kind) {
    pid_t child = fork();
    int how = 1;
    if (child == 0) _exit(unshare(kind) != 0);
    waitpid(child, &how, 0);
    return how == 0;
}

/* --- process numbers ---------------------------------------------------------------------------------------------- */

static void dies_there(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_world_config config = {.heap_bytes = (size_t)16 << 20};
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    tsh_group *group = tsh_world_group(r->world);
    if (r->rank == 2) tshi_nap(0.2); /* its peers look for deaths meanwhile */
    if (!tshi_check_ok(r, tsh_barrier(group))) return;
    if (r->rank == 1) _exit(3);
    double start = tshi_now();
    tshi_check_status(r, tsh_barrier(group), TSH_ERR_PEER, "rank 1 died");
    tshi_check(r, tshi_now() - start < TSHI_SOON, "the error took %g s", tshi_now() - start);
    tsh_world_destroy(r->world);
}

static void in_containers(tshi_rank *r, void *arg) {
    tshi_check(r, run_inside(r, CLONE_NEWPID, dies_there, arg), "no namespace");
}

Test(namespaces, processes, .timeout = 120) {
#ifdef __SANITIZE_ADDRESS__
    cr_skip_test("LeakSanitizer reads /proc, which has other numbers than the namespace");
#endif
    if (!have_namespaces(CLONE_NEWPID)) cr_skip_test("no right to make a process namespace");
    tshi_test_options options = {.ranks = 3, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, in_containers, NULL, NULL, NULL));
}

/* --- times -------------------------------------------------------------------------------------------------------- */

static void joins(tshi_rank *r, void *arg) {
    tshi_lines log = {""};
    tsh_world_config config = {.init_method = arg, .heap_bytes = (size_t)16 << 20, .log = {tshi_keep_line, &log}};
    setenv("TSHARD_BACKEND", "local", 1);
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    tshi_check(r, !strstr(log.text, "came and went"), "the log says %s", log.text);
    tsh_world_destroy(r->world);
}

static void in_another_time(tshi_rank *r, void *arg) {
    if (r->rank == 0)
        joins(r, arg);
    else
        tshi_check(r, run_inside(r, CLONE_NEWTIME, joins, arg), "no namespace");
}

Test(namespaces, times, .timeout = 120) {
    if (!have_namespaces(CLONE_NEWTIME)) cr_skip_test("no right to make a time namespace");
    tshi_test_options options = {.ranks = 2, .bare = true, .timeout = 10};
    cr_assert_str_empty(tshi_test_run_with(&options, in_another_time, NULL, NULL, NULL));
}
