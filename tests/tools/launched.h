/* tshard-run started as its users start it, for tests that look at it from outside. */
#ifndef TSHARD_TEST_LAUNCHED_H
#define TSHARD_TEST_LAUNCHED_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/clock.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define LAUNCHER TSHARD_BIN_DIR "/tshard-run"

enum { TEXT_SIZE = 1 << 21 };

/* --- running it --------------------------------------------------------------------------------------------------- */

typedef struct launched {
    pid_t pid;
    FILE *out, *err;
    int terminal; /* the other side of its terminal, or -1 */
} launched;

/* Every process that comes from this test carries it in its environment. */
static inline const char *mark(void) {
    static char text[64];
    snprintf(text, sizeof text, "TSHARD_TEST_MARK=%d", (int)getpid());
    return text;
}

static inline void child_begins(void) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    const int reset[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGCHLD, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < sizeof reset / sizeof *reset; i++) signal(reset[i], SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* How it is started; zero: with stdout and stderr in files, and no signal ignored. */
typedef struct launch {
    int out, err;        /* descriptors, or 0 */
    int ignored[4];      /* signals, ended by 0 */
    const char *program; /* NULL: tshard-run */
    rlim_t largest_file; /* or 0: no limit */
} launch;

static inline void become_launcher(const launch *how, const launched *job, char *const argv[]) {
    int null = open("/dev/null", O_RDONLY);
    child_begins();
    for (int i = 0; i < 4 && how->ignored[i]; i++) signal(how->ignored[i], SIG_IGN);
    if (how->largest_file) setrlimit(RLIMIT_FSIZE, &(struct rlimit){how->largest_file, how->largest_file});
    dup2(null, 0);
    dup2(how->out ? how->out : fileno(job->out), 1);
    dup2(how->err ? how->err : fileno(job->err), 2);
    execvp(how->program ? how->program : LAUNCHER, argv);
    _exit(99);
}

/* argv ends with NULL. stdin is /dev/null. */
static inline launched start_as(const launch *how, char *const argv[]) {
    char *marked = strdup(mark());
    launched job = {.out = tmpfile(), .err = tmpfile(), .terminal = -1};
    cr_assert(job.out && job.err && marked);
    job.pid = fork();
    cr_assert_geq(job.pid, 0);
    if (job.pid == 0) {
        putenv(marked);
        become_launcher(how, &job, argv);
    }
    free(marked);
    return job;
}

static inline launched start(char *const argv[]) {
    return start_as(&(launch){0}, argv);
}

/* Starts the launcher on a terminal of its own. */
static inline launched start_on_terminal(char *const argv[]) {
    launched job = {.terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)};
    cr_assert(job.terminal >= 0 && grantpt(job.terminal) == 0 && unlockpt(job.terminal) == 0);
    char *name = strdup(ptsname(job.terminal)), *marked = strdup(mark());
    job.pid = fork();
    cr_assert_geq(job.pid, 0);
    if (job.pid == 0) {
        child_begins();
        putenv(marked);
        setsid();
        int terminal = open(name, O_RDWR);
        ioctl(terminal, TIOCSCTTY, 0);
        for (int fd = 0; fd < 3; fd++) dup2(terminal, fd);
        execv(LAUNCHER, argv);
        _exit(99);
    }
    free(name);
    free(marked);
    return job;
}

/* Its exit code, or -signal. */
static inline int finish(launched *job) {
    int status = 0;
    cr_assert_eq(waitpid(job->pid, &status, 0), job->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* What is in the file so far; the caller frees it. */
static inline char *contents(FILE *file) {
    char *text = calloc(1, TEXT_SIZE);
    cr_assert_not_null(text);
    ssize_t n = pread(fileno(file), text, TEXT_SIZE - 1, 0);
    cr_assert_geq(n, 0);
    return text;
}

static inline void wait_for_text(FILE *file, const char *wanted, int times) {
    for (double end = tshi_now() + 60;; tshi_nap(0.005)) {
        char *text = contents(file);
        int found = 0;
        for (char *at = text; (at = strstr(at, wanted)); at++) found++;
        bool enough = found >= times;
        cr_assert(enough || tshi_now() < end, "waited for %d x '%s', got '%s'", times, wanted, text);
        free(text);
        if (enough) return;
    }
}

static inline void read_terminal_until(int terminal, const char *wanted, char *text, size_t size) {
    size_t used = strlen(text);
    while (!strstr(text, wanted)) {
        cr_assert_lt(used + 1, size);
        ssize_t n = read(terminal, text + used, size - used - 1);
        cr_assert_gt(n, 0, "the terminal shows '%s', and not '%s'", text, wanted);
        used += (size_t)n;
        text[used] = '\0';
    }
}

/* --- what is left ------------------------------------------------------------------------------------------------- */

static inline bool carries_mark(const char *path) {
    char text[65536];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text) : -1;
    if (fd >= 0) close(fd);
    return n > 0 && memmem(text, (size_t)n, mark(), strlen(mark()) + 1);
}

/* Processes of this test, of any parent. A zombie has no environment, and so does not count. */
static inline int processes_left(void) {
    glob_t found;
    int count = 0;
    cr_assert_eq(glob("/proc/[0-9]*/environ", GLOB_NOSORT, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) count += carries_mark(found.gl_pathv[i]);
    globfree(&found);
    return count;
}

static inline void assert_nothing_left(double within) {
    double end = tshi_now() + within;
    int left;
    while ((left = processes_left()) > 0 && tshi_now() < end) tshi_nap(0.01);
    cr_assert_eq(left, 0, "%d processes are left", left);
}

static inline char *last_line(char *text) {
    size_t length = strlen(text);
    if (length && text[length - 1] == '\n') text[--length] = '\0';
    char *newline = strrchr(text, '\n');
    return newline ? newline + 1 : text;
}

/* 0: it has none. */
static inline pid_t first_child(pid_t parent) {
    char path[64];
    int child = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%d", &child) != 1) child = 0;
    if (file) fclose(file);
    return (pid_t)child;
}

/* The only one of a process. */
static inline pid_t child_of(pid_t parent) {
    pid_t child = first_child(parent);
    cr_assert(child);
    return child;
}

/* A rank's process: the supervisor's children come in the order of their ranks. */
static inline pid_t rank_of(const launched *job, int rank) {
    char path[64];
    int supervisor = (int)child_of(job->pid), child = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", supervisor, supervisor);
    FILE *file = fopen(path, "r");
    cr_assert(file);
    for (int i = 0; i <= rank; i++) cr_assert_eq(fscanf(file, "%d", &child), 1);
    fclose(file);
    return (pid_t)child;
}

#define ARGUMENTS(...) ((char *[]){"tshard-run", __VA_ARGS__, NULL})

/* Run to the end: the exit code, and the last line of stderr into `line`. Nothing may be left. */
static inline int run_to_end(char *const argv[], char line[256]) {
    launched job = start(argv);
    int code = finish(&job);
    char *err = contents(job.err);
    snprintf(line, 256, "%s", last_line(err));
    free(err);
    assert_nothing_left(0.0);
    return code;
}

#endif
