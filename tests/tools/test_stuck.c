/* tshard-run among readers that have stopped, full disks, signals that are ignored, and without /proc. Nothing here may
 * wait for good: what does fails by the test's time limit. */
#include "tools/launched.h"

#include <poll.h>
#include <sched.h>
#include <sys/stat.h>

/* --- readers that have stopped ------------------------------------------------------------------------------------ */

typedef struct full_pipe {
    int ends[2];
} full_pipe;

/* Takes not one byte more. */
static full_pipe make_full_pipe(void) {
    static const char zeros[4096];
    full_pipe p;
    cr_assert_eq(pipe2(p.ends, O_CLOEXEC), 0);
    fcntl(p.ends[1], F_SETFL, O_NONBLOCK);
    while (write(p.ends[1], zeros, sizeof zeros) > 0) continue;
    while (write(p.ends[1], zeros, 1) > 0) continue;
    fcntl(p.ends[1], F_SETFL, 0);
    return p;
}

static void close_pipe(full_pipe *p) {
    close(p->ends[0]);
    close(p->ends[1]);
}

typedef char folder[64];

static void make_folder(folder path) {
    snprintf(path, sizeof(folder), "/tmp/tshard-stuck-XXXXXX");
    cr_assert(mkdtemp(path));
}

static void remove_folder(const folder path) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    cr_assert_eq(system(command), 0);
}

/* Waits until as many ranks have left a file there: output is no way to tell it. */
static void wait_for_files(const folder path, int count) {
    char pattern[128];
    snprintf(pattern, sizeof pattern, "%s/*", path);
    for (int found = 0; found < count; tshi_nap(0.005)) {
        glob_t g;
        found = glob(pattern, GLOB_NOSORT, NULL, &g) == 0 ? (int)g.gl_pathc : 0;
        if (found) globfree(&g);
    }
}

typedef enum ending { BY_TERM, BY_TWO_TERMS, BY_RANK, BY_KILL, ENDINGS } ending;

static const int wanted_codes[ENDINGS] = {128 + SIGTERM, 128 + SIGTERM, 128 + SIGKILL, -SIGKILL};

/* Two ranks that write without end into a pipe without a reader. */
static launched start_stuck(const full_pipe *p, bool out, ending how, folder path) {
    char script[256];
    launch l = {.out = out ? p->ends[1] : 0, .err = p->ends[1]};
    make_folder(path);
    snprintf(script, sizeof script, "trap '' TERM; yes & touch %s/$RANK; yes >&2", path);
    launched job =
        start_as(&l, ARGUMENTS("-n", "2", "--grace", how == BY_TWO_TERMS ? "1000" : "0.2", "sh", "-c", script));
    wait_for_files(path, 2);
    return job;
}

static void begin_end(const launched *job, ending how) {
    if (how == BY_TERM || how == BY_TWO_TERMS) kill(job->pid, SIGTERM);
    if (how == BY_TWO_TERMS) kill(job->pid, SIGTERM);
    if (how == BY_RANK) kill(rank_of(job, 1), SIGKILL);
    if (how == BY_KILL) kill(job->pid, SIGKILL);
}

/* A job for each ending, all at once. */
static void stuck_jobs_end(bool out) {
    full_pipe p = make_full_pipe();
    launched jobs[ENDINGS];
    folder folders[ENDINGS];
    for (int i = 0; i < ENDINGS; i++) jobs[i] = start_stuck(&p, out, (ending)i, folders[i]);
    for (int i = 0; i < ENDINGS; i++) begin_end(&jobs[i], (ending)i);
    for (int i = 0; i < ENDINGS; i++) cr_expect_eq(finish(&jobs[i]), wanted_codes[i], "ending %d", i);
    assert_nothing_left(15);
    close_pipe(&p);
    for (int i = 0; i < ENDINGS; i++) remove_folder(folders[i]);
}

Test(stuck, stderr_does_not_keep_the_job, .timeout = 60) {
    stuck_jobs_end(false);
}

Test(stuck, both_outputs_do_not_keep_the_job, .timeout = 60) {
    stuck_jobs_end(true);
}

Test(stuck, usage_errors_and_failed_starts_do_not_wait, .timeout = 60) {
    full_pipe p = make_full_pipe();
    const launch l = {.err = p.ends[1]};
    launched wrong = start_as(&l, ARGUMENTS("-n", "0", "true"));
    launched failing = start_as(&l, ARGUMENTS("-n", "2", "--max-restarts", "1", "false"));
    launched missing = start_as(&l, ARGUMENTS("-n", "2", "/nowhere/program"));
    cr_assert_eq(finish(&wrong), 2);
    cr_assert_eq(finish(&missing), 127);
    cr_assert_eq(finish(&failing), 1);
    close_pipe(&p);
}

/* Output to a terminal waits for ever when its user has stopped it. */
Test(stuck, terminal_does_not_keep_the_job, .timeout = 120) {
    launched job = start_on_terminal(ARGUMENTS("-n", "2", "--grace", "0.2", "yes", "no end of it"));
    struct pollfd p = {.fd = job.terminal, .events = POLLIN};
    cr_assert_eq(poll(&p, 1, -1), 1);
    tshi_nap(0.2);
    kill(job.pid, SIGTERM);
    cr_assert_eq(finish(&job), 128 + SIGTERM);
    assert_nothing_left(60);
}

/* A reader that is slow, and one that has stopped for a while, lose nothing of a job that ends well. */
Test(stuck, slow_reader_gets_everything, .timeout = 120) {
    enum { BYTES = 150000 };
    char text[4096];
    int ends[2], got = 0;
    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    launched job =
        start_as(&(launch){.out = ends[1]}, ARGUMENTS("-n", "1", "--no-prefix", "sh", "-c", "yes | head -c 150000"));
    close(ends[1]);
    struct pollfd some = {.fd = ends[0], .events = POLLIN};
    cr_assert_eq(poll(&some, 1, -1), 1);
    tshi_nap(1.5); /* the rank ends meanwhile; more than its output fits nowhere else */
    for (ssize_t n; (n = read(ends[0], text, sizeof text)) > 0;) got += (int)n;
    cr_assert_eq(finish(&job), 0);
    cr_assert_eq(got, BYTES);
    close(ends[0]);
}

/* --- processes that are stopped ----------------------------------------------------------------------------------- */

static void stop_supervisor_then(int number, int wanted) {
    launched job = start(ARGUMENTS("-n", "2", "sh", "-c", "echo ready; exec sleep 1000"));
    wait_for_text(job.out, "ready", 2);
    kill(child_of(job.pid), SIGSTOP);
    kill(job.pid, number);
    cr_assert_eq(finish(&job), wanted);
    assert_nothing_left(60);
}

Test(stuck, stopped_supervisor_ends, .timeout = 120) {
    stop_supervisor_then(SIGTERM, 128 + SIGTERM);
    stop_supervisor_then(SIGKILL, -SIGKILL);
}

Test(stuck, stopped_ranks_end, .timeout = 120) {
    launched job = start(ARGUMENTS("-n", "2", "--grace", "0.2", "sh", "-c", "echo ready; kill -STOP $$"));
    wait_for_text(job.out, "ready", 2);
    kill(job.pid, SIGTERM);
    int code = finish(&job);
    cr_assert(code == 128 + SIGTERM || code == 0, "%d", code); /* 0: TERM came before a rank had stopped itself */
    assert_nothing_left(60);
}

/* A rank's process that is stopped before it has become the program, at whatever point that is. */
Test(stuck, rank_stopped_at_its_start_goes_on, .timeout = 60) {
    for (int i = 0; i < 20; i++) {
        launched job = start(ARGUMENTS("-n", "4", "true"));
        pid_t supervisor = 0, rank = 0;
        siginfo_t ended = {0};
        while (!rank && waitid(P_PID, (id_t)job.pid, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && !ended.si_pid) {
            supervisor = supervisor ? supervisor : first_child(job.pid);
            rank = supervisor ? first_child(supervisor) : 0;
        }
        if (rank) kill(rank, SIGSTOP);
        tshi_nap(0.02);
        kill(job.pid, SIGTERM); /* for a rank that was stopped as the program */
        int code = finish(&job);
        cr_assert(code == 0 || code == 128 + SIGTERM, "%d", code);
    }
    assert_nothing_left(15);
}

/* --- signals that are ignored ------------------------------------------------------------------------------------- */

/* A signal of a lower number is taken first: had HUP, INT or QUIT counted, the job had been killed before USR1. */
Test(stuck, ignored_signals_stay_ignored, .timeout = 120) {
    launched job = start_as(&(launch){.ignored = {SIGHUP, SIGINT, SIGQUIT}},
                            ARGUMENTS("-n", "2", "--grace", "0", "sh", "-c",
                                      "grep ^SigIgn /proc/self/status; trap 'echo one; exit 0' USR1; echo ready; "
                                      "while :; do sleep 0.05; done"));
    wait_for_text(job.out, "ready", 2);
    kill(job.pid, SIGHUP);
    kill(job.pid, SIGINT);
    kill(job.pid, SIGQUIT);
    kill(job.pid, SIGUSR1);
    cr_assert_eq(finish(&job), 0);
    char *text = contents(job.out);
    cr_assert(strstr(text, "[0] one\n") && strstr(text, "[1] one\n"), "%s", text);
    cr_assert(strstr(text, "[0] SigIgn:\t0000000000000007\n"), "a rank finds them ignored too: %s", text);
    free(text);
}

Test(stuck, nohup_outlives_a_hangup, .timeout = 120) {
    launched job = start_as(&(launch){.program = "nohup"},
                            (char *[]){"nohup", LAUNCHER, "-n", "1", "--grace", "0", "sh", "-c",
                                       "trap 'echo one; exit 0' USR1; echo ready; while :; do sleep 0.05; done", NULL});
    wait_for_text(job.out, "ready", 1);
    kill(job.pid, SIGHUP);
    kill(job.pid, SIGUSR1);
    cr_assert_eq(finish(&job), 0);
}

Test(stuck, other_ignored_signals_reach_the_ranks_as_they_are, .timeout = 120) {
    launched job = start_as(&(launch){.ignored = {SIGPIPE, SIGXFSZ, SIGCHLD, SIGALRM}},
                            ARGUMENTS("-n", "1", "grep", "^SigIgn", "/proc/self/status"));
    cr_assert_eq(finish(&job), 0);
    char *text = contents(job.out);
    cr_assert_str_eq(text, "[0] SigIgn:\t0000000001013000\n");
    free(text);
}

/* --- files that cannot be written --------------------------------------------------------------------------------- */

static void assert_says(launched *job, const char *words) {
    char *err = contents(job->err);
    cr_expect(strstr(err, words), "wanted '%s', got '%s'", words, err);
    cr_expect_null(strstr(err, "Broken pipe"), "%s", err);
    free(err);
}

Test(stuck, full_disk_is_said, .timeout = 120) {
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    launched job = start_as(&(launch){.out = full}, ARGUMENTS("-n", "2", "sh", "-c", "echo one; echo two $RANK >&2"));
    cr_assert_eq(finish(&job), 1);
    assert_says(&job, "cannot write the ranks' output to stdout: No space left on device\n");
    assert_says(&job, "[1] two 1\n");
    job = start_as(&(launch){.out = full}, ARGUMENTS("-n", "2", "sh", "-c", "echo one; exit 7"));
    cr_assert_eq(finish(&job), 7, "a rank's own code comes first");
    job = start_as(&(launch){.out = full}, ARGUMENTS("--help"));
    cr_assert_eq(finish(&job), 1);
    assert_says(&job, "cannot write to stdout: No space left on device\n");
    job = start_as(&(launch){.out = full}, ARGUMENTS("--version"));
    cr_assert_eq(finish(&job), 1);
    close(full);
}

/* SIGXFSZ would end the launcher, and leave its ranks. */
Test(stuck, limit_of_file_sizes_is_said, .timeout = 120) {
    launched job = start_as(&(launch){.largest_file = 5000},
                            ARGUMENTS("-n", "1", "sh", "-c", "head -c 8000 /dev/zero | tr '\\0' '\\n'"));
    cr_assert_eq(finish(&job), 1);
    assert_says(&job, "cannot write the ranks' output to stdout: File too large\n");
}

static void with_log(const char *command, const char *words) {
    char line[512];
    folder path;
    make_folder(path);
    snprintf(line, sizeof line, "mkdir -p %1$s/attempt_0/node_0/rank_0 && cd %1$s/attempt_0/node_0/rank_0 && %2$s",
             path, command);
    cr_assert_eq(system(line), 0);
    launched job = start(ARGUMENTS("-n", "1", "--log-dir", path, "echo", "words"));
    cr_expect_eq(finish(&job), 1);
    assert_says(&job, words);
    remove_folder(path);
}

Test(stuck, logs_that_cannot_be_written_are_said, .timeout = 120) {
    with_log("ln -s /dev/full stdout.log", "tshard-run: cannot write rank 0's log: No space left on device\n");
    with_log("mkfifo stdout.log", "rank_0/stdout.log: No such device or address\n");
    with_log("mkdir stdout.log", "rank_0/stdout.log: Is a directory\n");
}

/* --- without /proc ------------------------------------------------------------------------------------------------ */

/* Two ranks under tshard-run in a mount namespace of its own, where /proc is empty. Each starts a process in a session
 * of its own, which starts another one, and then runs the last command. */
static launched start_without_proc(const char *last) {
    char script[160];
    snprintf(script, sizeof script, "setsid sh -c 'sleep 1000 & echo ready; sleep 1000' & echo ready; %s", last);
    char *const command[] = {"unshare", "--mount", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"",
                             "sh",      LAUNCHER,  "-n", "2",  "sh",
                             "-c",      script,    NULL};
    return start_as(&(launch){.program = "unshare"}, command);
}

Test(stuck, grandchildren_end_without_proc, .timeout = 120) {
#ifdef __SANITIZE_ADDRESS__
    cr_skip_test("AddressSanitizer reads /proc itself");
#endif
    char *const probe[] = {"unshare", "--mount", "mount", "-t", "tmpfs", "none", "/proc", NULL};
    launched job = start_as(&(launch){.program = "unshare"}, probe);
    if (finish(&job) != 0) cr_skip_test("mount namespaces are not allowed here");
    job = start_without_proc("sleep 0.2");
    cr_assert_eq(finish(&job), 0);
    assert_nothing_left(0);
    job = start_without_proc("wait");
    wait_for_text(job.out, "ready", 4);
    kill(job.pid, SIGKILL);
    cr_assert_eq(finish(&job), -SIGKILL);
    assert_nothing_left(60);
}
