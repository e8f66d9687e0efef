/* Chooses which ranks of a dry run are run, and runs them. */
#define _GNU_SOURCE
#include "plan.h"
#include "common/sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* processes at a time */
#define AT_ONCE         2
#define NOT_FOUND_EXIT  127
#define NOT_USABLE_EXIT 126

/* A rank that is run. Its files are memfds: nothing is left of them, however this process ends. */
typedef struct planned_rank {
    int rank, record, output; /* descriptors of its files */
    pid_t pid;
    int status;
    bool ended;
} planned_rank;

typedef struct planning {
    int size;
    char **command;
    pid_t parent;
    sigset_t taken, mask_found;      /* signals that wait_for_ranks receives; the mask before it */
    int ranks[PLAN_MAX_RUNS], count; /* to be run, or run */
    plan_result *result;
} planning;

void plan_say(const char *format, ...) {
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "tshard-plan: %s\n", text);
}

/* --- one rank ----------------------------------------------------------------------------------------------------- */

static void set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void set_environment(const planning *p, const planned_rank *r) {
    char record[16];
    snprintf(record, sizeof record, "fd:%d", r->record);
    setenv("TSHARD_BACKEND", "plan", 1);
    setenv("TSHARD_RECORD", record, 1);
    setenv("OMP_NUM_THREADS", "1", 0);
    setenv("OPENBLAS_NUM_THREADS", "1", 0);
    unsetenv("TSHARD_INIT");
    set_number("RANK", r->rank);
    set_number("WORLD_SIZE", p->size);
    set_number("LOCAL_RANK", 0);
    set_number("LOCAL_WORLD_SIZE", 1);
}

/* Never returns. The program's output goes to a file, because values that it prints mean nothing. */
static void become_rank(const planning *p, const planned_rank *r) {
    int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    sigprocmask(SIG_SETMASK, &p->mask_found, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != p->parent || input < 0 || fcntl(r->record, F_SETFD, 0) < 0) _exit(NOT_USABLE_EXIT);
    set_environment(p, r);
    dup2(input, STDIN_FILENO);
    dup2(r->output, STDOUT_FILENO);
    dup2(r->output, STDERR_FILENO);
    execvp(p->command[0], p->command);
    int error = errno;
    dprintf(STDERR_FILENO, "cannot run '%s': %s\n", p->command[0], strerror(error));
    _exit(error == ENOENT ? NOT_FOUND_EXIT : NOT_USABLE_EXIT);
}

/* Copies the end of a rank's output to stderr. */
static void show_output(const planned_rank *r) {
    char text[2048];
    off_t length = lseek(r->output, 0, SEEK_END), room = (off_t)sizeof text - 1;
    ssize_t n = pread(r->output, text, sizeof text - 1, length > room ? length - room : 0);
    if (n <= 0) return;
    text[n] = '\0';
    fprintf(stderr, "%s%s", text, text[n - 1] == '\n' ? "" : "\n");
}

static int rank_failed(const planned_rank *r) {
    show_output(r);
    if (WIFSIGNALED(r->status)) {
        plan_say("rank %d of the plan was killed by signal %d (%s)", r->rank, WTERMSIG(r->status),
                 strsignal(WTERMSIG(r->status)));
        return 128 + WTERMSIG(r->status);
    }
    plan_say("rank %d of the plan exited with code %d", r->rank, WEXITSTATUS(r->status));
    return WEXITSTATUS(r->status);
}

/* Equal within a thousandth, so that uneven slices of a small dim do not make another kind of rank. */
static bool near(double a, double b) {
    double larger = a > b ? a : b;
    return larger - (a > b ? b : a) <= larger / 1000;
}

/* Adds up the arithmetic of the step, and the number and bytes of its collectives, whose order may differ between
 * ranks. */
static void add_up(const tshi_record *r, double *flops, double *bytes, uint64_t *calls) {
    *flops = *bytes = 0;
    *calls = 0;
    for (int i = 0; i < r->count; i++) {
        const tshi_record_entry *e = &r->entries[i];
        *flops += e->flops * (double)e->calls;
        if (e->call.kind != TSHI_RECORD_COLLECTIVE) continue;
        *bytes += (double)e->bytes * (double)e->calls;
        *calls += e->calls;
    }
}

static bool alike(const tshi_record *a, const tshi_record *b) {
    double flops[2], bytes[2];
    uint64_t calls[2];
    add_up(a, &flops[0], &bytes[0], &calls[0]);
    add_up(b, &flops[1], &bytes[1], &calls[1]);
    return near((double)a->peak, (double)b->peak) && near(flops[0], flops[1]) && near(bytes[0], bytes[1]) &&
           calls[0] == calls[1];
}

static void add_record(planning *p, int rank, tshi_record *record) {
    plan_result *r = p->result;
    int k = 0;
    while (k < r->count && !alike(r->kinds[k].record, record)) k++;
    if (k == r->count)
        r->kinds[r->count++].record = record;
    else
        tshi_record_destroy(record);
    r->kinds[k].ranks[r->kinds[k].count++] = rank;
}

static int take_record(planning *p, planned_rank *r) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_record *record = NULL;
    FILE *file = lseek(r->record, 0, SEEK_END) > 0 ? fdopen(r->record, "r") : NULL;
    if (!file) {
        show_output(r);
        plan_say(
            "'%s' has left no record of a plan: it is no program of tshard, makes no world, or does not destroy it",
            p->command[0]);
        return 1;
    }
    rewind(file);
    tsh_status status = tshi_record_read(&allocator, file, &record);
    fclose(file);
    r->record = -1;
    if (status != TSH_OK) {
        plan_say("rank %d: %s", r->rank, tsh_error_message());
        return 1;
    }
    if (!record->planned || record->size != p->size) {
        plan_say("'%s' made a world of %d rank%s of its own: a plan needs one that takes RANK and WORLD_SIZE, %d",
                 p->command[0], record->size, record->size == 1 ? "" : "s", p->size);
        tshi_record_destroy(record);
        return 1;
    }
    add_record(p, r->rank, record);
    return 0;
}

/* Waits until all ranks have ended, or kills them after a signal: returns its number, or 0. */
static int wait_for_ranks(const planning *p, planned_rank *ranks, int n) {
    int left = n, ending = 0;
    while (left > 0) {
        int number = sigwaitinfo(&p->taken, NULL);
        if (number > 0 && number != SIGCHLD) ending = number;
        for (int i = 0; i < n; i++) {
            planned_rank *r = &ranks[i];
            if (r->ended) continue;
            if (ending) kill(r->pid, SIGKILL);
            r->ended = waitpid(r->pid, &r->status, ending ? 0 : WNOHANG) == r->pid;
            left -= r->ended;
        }
    }
    return ending;
}

static int start_rank(const planning *p, planned_rank *r) {
    r->record = memfd_create("tshard-record", MFD_CLOEXEC);
    r->output = memfd_create("tshard-output", MFD_CLOEXEC);
    r->pid = r->record >= 0 && r->output >= 0 ? fork() : -1;
    if (r->pid == 0) become_rank(p, r);
    if (r->pid > 0) return 0;
    plan_say("cannot start rank %d of the plan: %s", r->rank, strerror(errno));
    return 1;
}

static void close_files(const planned_rank *r) {
    if (r->record >= 0) close(r->record);
    if (r->output >= 0) close(r->output);
}

/* Runs n ranks at the same time; their records are read in this order. */
static int run_some(planning *p, const int *ranks, int n) {
    planned_rank r[AT_ONCE];
    int code = 0, started = 0;
    fflush(stdout);
    for (int i = 0; i < n; i++) {
        r[i] = (planned_rank){.rank = ranks[i], .record = -1, .output = -1};
        if (code == 0) code = start_rank(p, &r[i]);
        started += code == 0;
    }
    int ending = wait_for_ranks(p, r, started);
    if (ending) code = 128 + ending;
    for (int i = 0; i < started && code == 0; i++) {
        code = r[i].status != 0 ? rank_failed(&r[i]) : take_record(p, &r[i]);
    }
    for (int i = 0; i < n; i++) close_files(&r[i]);
    return code;
}

static int run_ranks(planning *p, const int *ranks, int n) {
    int code = 0;
    for (int first = 0; code == 0 && first < n; first += AT_ONCE) {
        code = run_some(p, ranks + first, n - first < AT_ONCE ? n - first : AT_ONCE);
    }
    return code;
}

/* --- which ranks -------------------------------------------------------------------------------------------------- */

static void add_rank(planning *p, int rank) {
    for (int i = 0; i < p->count; i++) {
        if (p->ranks[i] == rank) return;
    }
    if (p->count < PLAN_MAX_RUNS) p->ranks[p->count++] = rank;
}

/* Adds, along each axis, the ranks in the middle and at the end, with index 0 on all other axes, or every rank along
 * an axis of pipeline stages or with weights. Without a mesh, the rank in the middle. */
static void add_others(planning *p, const tshi_record *r) {
    int stride = 1;
    if (r->axes == 0) add_rank(p, r->size / 2);
    for (int a = r->axes - 1; a >= 0; a--) {
        const tshi_record_axis *axis = &r->axis[a];
        bool every = axis->weights[0] || !strncmp(axis->name, "stage", 5) || !strncmp(axis->name, "pipe", 4);
        for (int i = 1; i < axis->size; i++) {
            if (every || i == axis->size / 2 || i == axis->size - 1) add_rank(p, i * stride);
        }
        stride *= axis->size;
    }
}

static int run_kinds(planning *p) {
    add_rank(p, 0);
    add_rank(p, p->size - 1);
    int done = p->count, code = run_ranks(p, p->ranks, done);
    p->result->uniform = p->result->count == 1;
    if (code != 0 || p->result->uniform) return code;
    add_others(p, p->result->kinds[0].record);
    return run_ranks(p, p->ranks + done, p->count - done);
}

/* Blocks the signals that end a program, except ignored ones: wait_for_ranks receives them. */
static void block_signals(planning *p) {
    const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    sigemptyset(&p->taken);
    sigaddset(&p->taken, SIGCHLD);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct sigaction found;
        if (sigaction(ends[i], NULL, &found) == 0 && found.sa_handler != SIG_IGN) sigaddset(&p->taken, ends[i]);
    }
    sigprocmask(SIG_BLOCK, &p->taken, &p->mask_found);
}

int plan_run(int size, char **command, plan_result *out) {
    planning p = {.size = size, .command = command, .parent = getpid()};
    *out = (plan_result){.size = size};
    p.result = out;
    block_signals(&p);
    prctl(PR_SET_CHILD_SUBREAPER, 1L);
    int code = run_kinds(&p);
    if (!sweep_descendants()) plan_say("a process that the plan has left behind does not end, although it was killed");
    sigprocmask(SIG_SETMASK, &p.mask_found,
                NULL); /* a signal that arrived since the last wait ends this process here */
    return code;
}

void plan_free(plan_result *result) {
    for (int i = 0; i < result->count; i++) tshi_record_destroy(result->kinds[i].record);
    result->count = 0;
}
