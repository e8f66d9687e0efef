/* The supervisor: from the first rank's start to the last one's end. */
#define _GNU_SOURCE
#include "launchers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* How long the peers of a failed rank have to notice it and to print what they were doing. */
static const double notice_seconds = 1.0;
/* A reader that takes nothing for so long is not waited for any more once the job is ending. */
static const double reader_seconds = 1.0;
/* An unfinished line on a terminal is shown when nothing more has come for so long. */
static const int show_ms = 60;

typedef enum job_phase {
    RUNNING,
    NOTICING, /* a rank has failed, its peers may end by themselves */
    ENDING,   /* asked to end */
    KILLING
} job_phase;

typedef struct job_state {
    const run_options *options;
    run_rank *ranks;
    run_stream *streams; /* stdout and stderr of each rank */
    int running, open_streams;
    int lost; /* ranks that have failed without ending the job */
    job_phase phase;
    double deadline; /* of NOTICING and ENDING */
    int first_failed, stop_signal;
    run_launchers *launchers;
    bool stopped_others, guard_gone;
    int control, output; /* epolls: signals, guard and deaths; and the streams */
    int signal_fd, life;
    run_screen screens[2];
    run_sink sinks[2];
} job_state;

/* --- control: signals, deaths, deadlines -------------------------------------------------------------------------- */

/* A rank that has ended is a zombie still, so its number is its own, and its group may hold what it left behind. */
static void signal_groups(const job_state *job, int number) {
    for (int i = 0; i < job->options->ranks; i++) {
        if (job->ranks[i].pid > 0) kill(-job->ranks[i].pid, number);
    }
}

/* The process has a handler for the signal, or has blocked it to wait for it: the signal does not end it. */
static bool takes_signal(pid_t pid, int number) {
    char path[64], line[256];
    uint64_t taken = 0, mask;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "SigCgt: %" SCNx64, &mask) == 1 || sscanf(line, "SigBlk: %" SCNx64, &mask) == 1) taken |= mask;
    }
    if (file) fclose(file);
    return taken >> (number - 1) & 1;
}

static bool is_of_a_rank(const job_state *job, pid_t group) {
    int i = 0;
    while (i < job->options->ranks && (job->ranks[i].ended || job->ranks[i].pid != group)) i++;
    return i < job->options->ranks;
}

/* To the ranks, and to what a script of a rank has started: those that take it. Others, such as a shell or a program
 * without a world yet, would end. */
static void signal_ranks(const job_state *job, int number) {
    DIR *all = opendir("/proc");
    for (const struct dirent *entry; all && (entry = readdir(all));) {
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid > 0 && is_of_a_rank(job, getpgid(pid)) && takes_signal(pid, number)) kill(pid, number);
    }
    if (all) closedir(all);
}

static void enter(job_state *job, job_phase phase) {
    if (phase <= job->phase) return;
    job->phase = phase;
    if (phase == NOTICING) {
        job->deadline = tshi_clock() + notice_seconds;
        return;
    }
    if (phase == ENDING) job->deadline = tshi_clock() + job->options->grace;
    job->stopped_others = job->stopped_others || job->running > 0;
    signal_groups(job, phase == KILLING ? SIGKILL : job->stop_signal ? job->stop_signal : SIGTERM);
    signal_groups(job, SIGCONT); /* one that is stopped would not hear of it */
}

/* "was killed by signal 9 (Killed)" */
static void add_end(const run_rank *rank, char *out, size_t size) {
    if (rank->wait_code == CLD_EXITED)
        tshi_append(out, size, "exited with code %d", rank->wait_status);
    else
        tshi_append(out, size, "was killed by signal %d (%s%s)", rank->wait_status, strsignal(rank->wait_status),
                    rank->wait_code == CLD_DUMPED ? ", core dumped" : "");
}

/* A rank has failed, and the job goes on with the others: on several nodes, and where ranks join a job, this one does
 * while it has a rank, and the ranks count themselves (TSHARD_MIN_RANKS). */
static bool goes_on_without(job_state *job, int index) {
    const run_options *o = job->options;
    const bool part = o->nnodes > 1 || o->join; /* others of the job's ranks are elsewhere */
    const int left = o->ranks - job->lost - 1, least = part ? 1 : o->min_ranks;
    char text[256] = "";
    if ((o->min_ranks == 0 && !o->join) || job->phase != RUNNING || left < least) return false;
    job->lost++;
    add_end(&job->ranks[index], text, sizeof text);
    run_say("rank %d (pid %d) %s; the job goes on with %d rank%s%s", o->first_rank + index, (int)job->ranks[index].pid,
            text, left, left > 1 ? "s" : "", part ? " on this node" : "");
    return true;
}

static bool is_stopped(pid_t pid) {
    char path[64], state = '?';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = '?';
    fclose(file);
    return state == 'T';
}

/* With --min-ranks: when only stopped ranks are left, the job has gone on without them, and ends. */
static void kill_stopped(const job_state *job) {
    bool all = (job->options->min_ranks > 0 || job->options->join) && job->phase == RUNNING;
    for (int i = 0; i < job->options->ranks && all; i++) all = job->ranks[i].ended || is_stopped(job->ranks[i].pid);
    for (int i = 0; i < job->options->ranks && all; i++) {
        if (!job->ranks[i].ended) kill(-job->ranks[i].pid, SIGKILL);
    }
}

static void check_rank(job_state *job, int index) {
    run_rank *rank = &job->ranks[index];
    siginfo_t info = {0};
    if (rank->ended || waitid(P_PID, (id_t)rank->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0) return;
    if (info.si_pid != rank->pid) return;
    rank->ended = true;
    rank->wait_code = info.si_code;
    rank->wait_status = info.si_status;
    if (rank->pidfd >= 0) close(rank->pidfd);
    rank->pidfd = -1;
    job->running--;
    bool good = info.si_code == CLD_EXITED && info.si_status == 0;
    if (good) kill_stopped(job);
    if (good || goes_on_without(job, index)) return;
    if (job->first_failed < 0) {
        job->first_failed = index;
        run_launchers_failed(job->launchers);
    }
    enter(job, NOTICING);
}

static void take_signal(job_state *job, int number) {
    switch (number) {
    case SIGCHLD: /* ranks without a pidfd */
        for (int i = 0; i < job->options->ranks; i++) {
            if (job->ranks[i].pidfd < 0) check_rank(job, i);
        }
        break;
    case SIGUSR1:
    case SIGUSR2: signal_ranks(job, number); break;
    case SIGTSTP: signal_groups(job, SIGSTOP); break;
    case SIGCONT: signal_groups(job, SIGCONT); break;
    default:
        if (!job->stop_signal) job->stop_signal = number;
        enter(job, run_launchers_signal(job->launchers, number) ? KILLING : ENDING);
    }
}

/* What the launchers of all nodes have agreed on. */
static void obey_launchers(job_state *job) {
    static const job_phase phases[] = {
        [RUN_GO_ON] = RUNNING, [RUN_FAIL] = NOTICING, [RUN_STOP_BY_SIGNAL] = ENDING, [RUN_KILL] = KILLING};
    int number;
    const run_order order = run_launchers_serve(job->launchers, &number);
    if (!job->stop_signal) job->stop_signal = number;
    enter(job, phases[order]);
}

enum { EVENT_SIGNAL = -1, EVENT_GUARD = -2, EVENT_LAUNCHERS = -3 };

/* The kernel lists events in the order in which they came, so the rank that died first is the first one noted. */
static void handle_control(job_state *job) {
    struct epoll_event events[64];
    int n = epoll_wait(job->control, events, 64, 0);
    for (int i = 0; i < n; i++) {
        int what = (int)events[i].data.u64;
        struct signalfd_siginfo info;
        if (what >= 0) {
            check_rank(job, what);
        } else if (what == EVENT_SIGNAL) {
            while (read(job->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
                take_signal(job, (int)info.ssi_signo);
            }
        } else if (what == EVENT_GUARD && !job->guard_gone) {
            epoll_ctl(job->control, EPOLL_CTL_DEL, job->life, NULL);
            job->guard_gone = true;
            run_launchers_leave(job->launchers);
            enter(job, KILLING);
        }
    }
}

static void handle_deadline(job_state *job) {
    obey_launchers(job);
    bool timed = job->phase == NOTICING || job->phase == ENDING;
    if (timed && tshi_clock() >= job->deadline) enter(job, job->phase == NOTICING ? ENDING : KILLING);
}

/* Milliseconds, at most `limit` (-1: none). */
static int sooner(double seconds, int limit) {
    double left = 1e3 * seconds + 1.0;
    int ms = left < 1.0 ? 1 : left > 1e9 ? 1000000000 : (int)left;
    return limit >= 0 && limit < ms ? limit : ms;
}

/* Milliseconds until the next deadline, at most `limit` (-1: none). */
static int timeout_ms(const job_state *job, int limit) {
    double patience = run_launchers_patience(job->launchers);
    if (patience >= 0) limit = sooner(patience, limit);
    if (job->phase != NOTICING && job->phase != ENDING) return limit;
    return sooner(job->deadline - tshi_clock(), limit);
}

/* Seconds that are left to a reader that has taken nothing since then. A job that goes on, or has ended well, waits for
 * its reader as any program does; one that is ending does not. */
static double reader_patience(const job_state *job, double since) {
    if (job->phase == KILLING) return 0;
    return job->phase == RUNNING ? 1e6 : since + reader_seconds - tshi_clock();
}

/* run_sink::wait_writable. */
static bool wait_writable(void *user, int fd) {
    job_state *job = user;
    for (const double since = tshi_clock();;) {
        struct pollfd fds[2] = {{.fd = fd, .events = POLLOUT}, {.fd = job->control, .events = POLLIN}};
        double left = reader_patience(job, since);
        int n = poll(fds, 2, left > 0 ? timeout_ms(job, (int)(1e3 * left) + 1) : 0);
        if (n < 0 && errno != EINTR) return true; /* let write say what is wrong */
        if (n > 0 && fds[0].revents) return true;
        if (left <= 0) return false;
        if (n > 0 && fds[1].revents) handle_control(job);
        handle_deadline(job);
    }
}

/* --- output ------------------------------------------------------------------------------------------------------- */

static void read_stream(job_state *job, run_stream *stream) {
    int fd = stream->fd;
    if (fd < 0) return;
    run_stream_read(stream); /* closing takes it out of the epoll: no other process has this end */
    if (stream->fd < 0) job->open_streams--;
}

static void handle_output(job_state *job) {
    struct epoll_event events[64];
    int n = epoll_wait(job->output, events, 64, 0);
    for (int i = 0; i < n; i++) read_stream(job, &job->streams[events[i].data.u64]);
}

/* The last output of ranks that have all ended. Their descendants are dead too, so nothing can add to it. */
static void drain_output(job_state *job) {
    for (int i = 0; i < 2 * job->options->ranks; i++) {
        run_stream *stream = &job->streams[i];
        if (stream->fd >= 0) fcntl(stream->fd, F_SETFL, O_NONBLOCK);
        for (struct pollfd fd = {.fd = stream->fd, .events = POLLIN}; fd.fd >= 0 && poll(&fd, 1, 0) > 0;) {
            read_stream(job, stream);
            fd.fd = stream->fd;
        }
        run_stream_close(stream);
    }
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

static bool anything_to_show(const job_state *job) {
    bool found = false;
    for (int i = 0; i < 2 * job->options->ranks && !found; i++) {
        const run_stream *stream = &job->streams[i];
        found = stream->fd >= 0 && stream->used > 0 && stream->sink->terminal;
    }
    return found;
}

static void show_unfinished(job_state *job) {
    for (int i = 0; i < 2 * job->options->ranks; i++) {
        if (job->streams[i].fd >= 0 && job->streams[i].sink->terminal) run_stream_show(&job->streams[i]);
    }
}

static void supervise(job_state *job) {
    while (job->running > 0) {
        struct pollfd fds[2] = {{.fd = job->control, .events = POLLIN}, {.fd = job->output, .events = POLLIN}};
        if (job->open_streams == 0) fds[1].fd = -1;
        int n = poll(fds, 2, timeout_ms(job, anything_to_show(job) ? show_ms : -1));
        if (fds[0].revents) handle_control(job);
        handle_deadline(job);
        if (fds[1].revents) handle_output(job);
        if (n == 0) show_unfinished(job);
    }
}

static bool watch(int epoll, int fd, int what) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)(int64_t)what};
    if (fd < 0) return false;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0) return true;
    run_say("cannot watch a rank: %s", strerror(errno));
    return false;
}

static void open_sink(job_state *job, int index, int fd) {
    run_sink *sink = &job->sinks[index];
    sink->fd = fd;
    sink->name = index == 0 ? "stdout" : "stderr";
    sink->terminal = isatty(fd) == 1;
    sink->prefix = job->options->prefix;
    sink->wait_writable = wait_writable;
    sink->user = job;
    sink->screen = &job->screens[sink->terminal ? 0 : index];
}

/* LOG_DIR/attempt_0/node_0/rank_3/stdout.log; stream 0: stdout, 1: stderr. */
static void log_path(const job_state *job, int index, int stream, char *path, size_t size) {
    const run_options *o = job->options;
    snprintf(path, size, "%s/attempt_%d/node_%d/rank_%d/%s.log", o->log_dir, o->attempt, o->node_rank,
             o->first_rank + index, stream == 0 ? "stdout" : "stderr");
}

/* -1: none is wanted; -2: it cannot be made, which has been said. */
static int open_log(const job_state *job, int index, int stream) {
    char path[4096];
    if (!job->options->log_dir) return -1;
    log_path(job, index, stream, path, sizeof path);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0777); /* a failure shows when the file is opened */
        *slash = '/';
    }
    /* Opening a FIFO without a reader is an error at once. */
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
    if (fd < 0) run_say("cannot write %s: %s", path, strerror(errno));
    return fd < 0 ? -2 : fd;
}

static bool adopt(job_state *job, const run_link *link, int index) {
    const run_rank *rank = &job->ranks[index];
    run_tell_keeper(link, rank->pid);
    const int fds[2] = {rank->stdout_fd, rank->stderr_fd};
    for (int i = 0; i < 2; i++) {
        run_stream *stream = &job->streams[2 * index + i];
        *stream = (run_stream){.fd = fds[i], .rank = job->options->first_rank + index, .sink = &job->sinks[i]};
        stream->log = open_log(job, index, i);
        if (stream->log == -2) return false;
        stream->quiet = job->options->redirects & (i == 0 ? RUN_STDOUT_TO_FILE : RUN_STDERR_TO_FILE);
        job->open_streams++;
        if (!watch(job->output, fds[i], 2 * index + i)) return false;
    }
    job->running++;
    return rank->pidfd < 0 || watch(job->control, rank->pidfd, index);
}

/* The cores of the next rank. 0, or the code to exit with. */
static int choose_cores(run_plan *plan, int index) {
    const run_options *o = plan->options;
    if (!plan->cores) return 0;
    plan->chosen_count = run_cores_choose(o, plan->cores, plan->core_count, index, plan->chosen);
    if (plan->chosen_count == 0) {
        run_say("--bind %s: rank %d may use none of these cores", o->bind_list, o->first_rank + index);
        return RUN_USAGE_EXIT;
    }
    if (o->report_bindings) run_cores_say(o->first_rank + index, plan->cores, plan->core_count, plan->chosen);
    return 0;
}

/* 0, or the code to exit with. */
static int start_ranks(job_state *job, const run_link *link, int null_input) {
    run_plan plan = {.options = job->options, .link = link, .null_input = null_input, .supervisor = getpid()};
    const run_options *o = job->options;
    int code = 1;
    run_core *cores = NULL;
    if (o->bind != RUN_BIND_NONE && (o->bind != RUN_BIND_AUTO || o->ranks > 1)) {
        cores = run_cores_allowed(&plan.core_count);
        plan.chosen = calloc((size_t)plan.core_count + 1, sizeof *plan.chosen);
        if (plan.chosen && (o->bind != RUN_BIND_AUTO || plan.core_count >= o->ranks)) plan.cores = cores;
    }
    if (run_plan_prepare(&plan)) code = 0;
    for (int i = 0; i < o->ranks && code == 0; i++) {
        code = choose_cores(&plan, i);
        if (code == 0) code = run_spawn(&plan, i, &job->ranks[i]);
        if (code == 0 && !adopt(job, link, i)) code = 1;
    }
    free(plan.chosen);
    free(cores);
    return code;
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

/* Does stderr show the stream's newest line near its end? */
static bool is_in_sight(const run_stream *stream) {
    enum { IN_SIGHT = 10 };
    return stream->sink->fd == STDERR_FILENO && stream->shown > 0 && stream->sink->lines - stream->shown < IN_SIGHT;
}

/* What it said last, on stderr or, when it said nothing there, on stdout, and in which file. True: the screen shows all
 * of it. */
static bool add_last_words(const job_state *job, char *out, size_t size) {
    char text[RUN_TAIL + 1], path[4096] = "";
    int index = job->first_failed, stream = job->streams[2 * index + 1].total > 0;
    if (run_stream_tail(&job->streams[2 * index + stream], text) == 0) return true;
    if (job->options->log_dir) log_path(job, index, stream, path, sizeof path);
    tshi_append(out, size, "the last that rank %d wrote to %s%s%.400s:\n", job->options->first_rank + index,
                stream ? "stderr" : "stdout", path[0] ? ", " : "", path);
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));) tshi_append(out, size, "tshard-run:   %s\n", line);
    tshi_append(out, size, "tshard-run: ");
    return !job->options->log_dir && is_in_sight(&job->streams[2 * index + stream]);
}

/* Written in one piece, so that a reader that has stopped is waited for only once. The rank's last output is included
 * for the screens that do not show it yet, such as those of the other nodes. */
static void describe_failure(const job_state *job, run_outcome *out) {
    const run_rank *rank = &job->ranks[job->first_failed];
    const int number = job->options->first_rank + job->first_failed;
    char host[RUN_NAME_SIZE] = "";
    gethostname(host, sizeof host - 1);
    const bool in_sight = add_last_words(job, out->text, sizeof out->text - 1024);
    if (in_sight) out->shown = strlen(out->text);
    tshi_append(out->text, sizeof out->text, "rank %d (pid %d on %s) ", number, (int)rank->pid, host);
    add_end(rank, out->text, sizeof out->text);
}

/* The ranks have ended well, perhaps without all of their output in its place. */
static int verdict_on_output(const job_state *job) {
    bool lost = job->sinks[0].lost || job->sinks[1].lost;
    for (int i = 0; i < 2 * job->options->ranks; i++) lost = lost || job->streams[i].log_error;
    if (!lost) return 0;
    run_say("some of the ranks' output is lost");
    return job->stop_signal ? 128 + job->stop_signal : 1;
}

static void verdict(const job_state *job, run_outcome *out) {
    out->failed = job->first_failed >= 0;
    out->stopped_others = job->stopped_others;
    if (!out->failed) {
        out->code = verdict_on_output(job);
        return;
    }
    const run_rank *rank = &job->ranks[job->first_failed];
    out->code = rank->wait_code == CLD_EXITED ? rank->wait_status : 128 + rank->wait_status;
    describe_failure(job, out);
}

/* The ranks could not be started. This node's screen shows why. */
static void give_up(const job_state *job, run_outcome *out) {
    char host[RUN_NAME_SIZE] = "";
    gethostname(host, sizeof host - 1);
    out->unusable = true;
    tshi_append(out->text, sizeof out->text, "tshard-run on %s (node %d) could not start its ranks, and says why", host,
                job->options->node_rank);
    out->shown = strlen(out->text);
    run_launchers_failed(job->launchers);
}

/* Three descriptors a rank, and one a node: the usual soft limit of 1024 ends at some 330 ranks. */
static void raise_descriptor_limit(struct rlimit wanted) {
    rlim_t need = 3 * RUN_MAX_RANKS + RUN_MAX_NODES + 64;
    if (wanted.rlim_cur >= need) return;
    wanted.rlim_cur = wanted.rlim_max < need ? wanted.rlim_max : need;
    setrlimit(RLIMIT_NOFILE, &wanted);
}

static bool open_job(job_state *job, const run_link *link) {
    size_t n = (size_t)job->options->ranks;
    job->ranks = calloc(n, sizeof *job->ranks);
    job->streams = calloc(2 * n, sizeof *job->streams);
    job->control = epoll_create1(EPOLL_CLOEXEC);
    job->output = epoll_create1(EPOLL_CLOEXEC);
    job->signal_fd = signalfd(-1, &link->signals->taken, SFD_CLOEXEC | SFD_NONBLOCK);
    for (size_t i = 0; job->streams && i < 2 * n; i++) job->streams[i].fd = job->streams[i].log = -1;
    for (size_t i = 0; job->ranks && i < n; i++) job->ranks[i] = (run_rank){.pid = -1, .pidfd = -1, .ended = true};
    if (!job->ranks || !job->streams || job->control < 0 || job->output < 0 || job->signal_fd < 0) {
        run_say("cannot start: %s", strerror(errno));
        return false;
    }
    const int others = run_launchers_fd(job->launchers);
    return watch(job->control, job->signal_fd, EVENT_SIGNAL) && watch(job->control, link->life, EVENT_GUARD) &&
           (others < 0 || watch(job->control, others, EVENT_LAUNCHERS));
}

static void close_job(job_state *job) {
    int fds[3] = {job->control, job->output, job->signal_fd};
    for (int i = 0; i < 3; i++) {
        if (fds[i] >= 0) close(fds[i]);
    }
    free(job->ranks);
    free(job->streams);
}

/* One attempt, from start to end. */
static void run_once(const run_options *options, const run_link *link, int null_input, run_launchers *launchers,
                     run_outcome *out) {
    job_state job = {.options = options,
                     .launchers = launchers,
                     .first_failed = -1,
                     .life = link->life,
                     .control = -1,
                     .output = -1,
                     .signal_fd = -1};
    *out = (run_outcome){.code = 1};
    open_sink(&job, 0, STDOUT_FILENO);
    open_sink(&job, 1, STDERR_FILENO);
    if (open_job(&job, link)) {
        out->code = start_ranks(&job, link, null_input);
        if (out->code == 0) supervise(&job);
        signal_groups(&job, SIGKILL);
        run_sweep();
        run_tell_keeper(link, 0);
        drain_output(&job);
    }
    if (out->code == 0)
        verdict(&job, out);
    else
        give_up(&job, out);
    close_job(&job);
}

int run_job(run_options *options, const run_link *link) {
    int code = 1, null_input = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_input < 0) {
        run_say("cannot open /dev/null: %s", strerror(errno));
        return 1;
    }
    raise_descriptor_limit(link->descriptors);
    run_launchers *launchers = run_launchers_open(options, link, &code);
    if (!launchers) return code;
    run_outcome outcome;
    do {
        run_once(options, link, null_input, launchers, &outcome);
    } while (run_launchers_again(launchers, &outcome, &code));
    run_launchers_close(launchers);
    return code;
}
