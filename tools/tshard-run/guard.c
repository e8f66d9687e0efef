/* The guard: the user's signals and terminal, and the last one to leave. */
#define _GNU_SOURCE
#include "base/settings.h"
#include "common/sweep.h"
#include "dist/rendezvous/rendezvous.h"
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct guard_state {
    pid_t supervisor;
    int signal_fd;
    int input; /* writing end of rank 0's stdin, when the guard passes a terminal on; else -1 */
    size_t pending_from, pending_past;
    char pending[4096]; /* typed, but not yet taken */
    int asked_to_end;   /* times */
    double deadline;    /* of the supervisor, once asked twice; else 0 */
} guard_state;

/* How long a supervisor that has been asked to end twice may take: after that it hangs, or is stopped. */
static const double last_seconds = 5.0;

/* --- the terminal ------------------------------------------------------------------------------------------------- */

/* Ranks have process groups of their own, and a terminal lets only its foreground group read: so the guard reads for
 * rank 0, when it is in the foreground itself. Files and pipes go to rank 0 as they are. */
static bool in_foreground(void) {
    return tcgetpgrp(STDIN_FILENO) == getpgrp();
}

static void close_input(guard_state *guard) {
    close(guard->input);
    guard->input = -1;
}

static void read_terminal(guard_state *guard) {
    ssize_t n = read(STDIN_FILENO, guard->pending, sizeof guard->pending);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n < 0) run_say("cannot read the terminal: %s", strerror(errno));
    if (n <= 0) {
        close_input(guard);
        return;
    }
    guard->pending_from = 0;
    guard->pending_past = (size_t)n;
}

static void write_input(guard_state *guard) {
    ssize_t n = write(guard->input, guard->pending + guard->pending_from, guard->pending_past - guard->pending_from);
    if (n > 0)
        guard->pending_from += (size_t)n;
    else if (n < 0 && errno != EINTR && errno != EAGAIN)
        close_input(guard); /* rank 0 reads no more */
}

/* --- signals ------------------------------------------------------------------------------------------------------ */

static void take_signal(guard_state *guard, int number) {
    if (number == SIGCHLD) return;
    kill(guard->supervisor, number);
    if (number == SIGTSTP) raise(SIGSTOP);
    if (!run_asks_to_end(number)) return;
    kill(guard->supervisor, SIGCONT); /* if it is stopped, it would not hear of it */
    if (++guard->asked_to_end == 2) guard->deadline = tshi_clock() + last_seconds;
}

/* A rank that was killed while it led a rendezvous could not take its record out of the file. */
void run_sweep(void) {
    if (!sweep_descendants()) run_say("a process that the job has left behind does not end, although it was killed");
    tshi_rendezvous_tidy(tshi_setting_value(TSHI_SETTING_INIT));
}

/* SIGKILL is ours alone to notice: the supervisor's other ends are exits. */
static int outcome(int status) {
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    run_sweep();
    run_say("the supervisor of the ranks was killed by signal %d (%s); all ranks were stopped", WTERMSIG(status),
            strsignal(WTERMSIG(status)));
    return 128 + WTERMSIG(status);
}

/* Milliseconds until the guard has to look again; -1: a descriptor becomes readable then. */
static int patience(const guard_state *guard, bool background) {
    double left = guard->deadline - tshi_clock();
    if (guard->deadline > 0) return left > 0 ? (int)(1e3 * left) + 1 : 100;
    return background ? 500 : -1;
}

static int attend(guard_state *guard) {
    for (int status;;) {
        bool pending = guard->pending_from < guard->pending_past;
        bool listen = guard->input >= 0 && !pending && in_foreground();
        struct pollfd fds[3] = {{.fd = guard->signal_fd, .events = POLLIN},
                                {.fd = listen ? STDIN_FILENO : -1, .events = POLLIN},
                                {.fd = guard->input, .events = pending ? POLLOUT : 0}};
        poll(fds, 3, patience(guard, guard->input >= 0 && !pending && !listen));
        struct signalfd_siginfo info;
        while (read(guard->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
            take_signal(guard, (int)info.ssi_signo);
        }
        if (waitpid(guard->supervisor, &status, WNOHANG) == guard->supervisor) return outcome(status);
        if (guard->deadline > 0 && tshi_clock() > guard->deadline) kill(guard->supervisor, SIGKILL);
        if (fds[1].revents) read_terminal(guard);
        if (guard->input >= 0 && fds[2].revents & POLLOUT)
            write_input(guard);
        else if (guard->input >= 0 && fds[2].revents)
            close_input(guard);
    }
}

/* --- start -------------------------------------------------------------------------------------------------------- */

/* So that no descriptor that is made here lands on 0, 1 or 2. */
static bool open_standard_descriptors(void) {
    int fd;
    do {
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (fd >= 0 && fd <= 2) fcntl(fd, F_SETFD, 0);
    } while (fd >= 0 && fd <= 2);
    if (fd > 2) close(fd);
    return fd > 2;
}

/* Rank 0's stdin: link->input to read from, guard->input to write to when the guard has to pass a terminal on. */
static bool open_input(guard_state *guard, run_link *link) {
    int fds[2];
    guard->input = -1;
    if (!isatty(STDIN_FILENO)) {
        link->input = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
        return link->input >= 0;
    }
    if (pipe2(fds, O_CLOEXEC) != 0) return false;
    link->input = fds[0];
    guard->input = fds[1];
    return fcntl(fds[1], F_SETFL, O_NONBLOCK) == 0;
}

static int supervise(run_options *options, run_link *link, const guard_state *guard, int life) {
    close(life);
    if (guard->input >= 0) close(guard->input);
    close(guard->signal_fd);
    /* So that the guard's death is noticed even by a supervisor that is stopped: it goes on, and finds link->life. */
    prctl(PR_SET_PDEATHSIG, SIGCONT);
    setpgid(0, 0);            /* the terminal's signals reach the guard alone, which passes them on */
    signal(SIGTTOU, SIG_IGN); /* and what we print is not a reason to be stopped */
    prctl(PR_SET_CHILD_SUBREAPER, 1L);
    return run_job(options, link);
}

int run_guard(run_options *options, run_signals *signals) {
    guard_state guard = {0};
    run_link link = {.signals = signals};
    int life[2] = {-1, -1}, keeper[2] = {-1, -1};
    run_signals_block(signals);
    getrlimit(RLIMIT_NOFILE, &link.descriptors);
    prctl(PR_SET_CHILD_SUBREAPER, 1L);
    bool ready = open_standard_descriptors() && open_input(&guard, &link) && pipe2(life, O_CLOEXEC) == 0 &&
                 pipe2(keeper, O_CLOEXEC) == 0 && fcntl(keeper[1], F_SETFL, O_NONBLOCK) == 0;
    link.life = life[0];
    link.keeper = keeper[1];
    guard.signal_fd = signalfd(-1, &signals->taken, SFD_CLOEXEC | SFD_NONBLOCK);
    guard.supervisor = ready && guard.signal_fd >= 0 ? fork() : -1;
    if (guard.supervisor < 0) {
        run_say("cannot start: %s", strerror(errno));
        return 1;
    }
    if (guard.supervisor == 0) {
        close(keeper[0]);
        _exit(supervise(options, &link, &guard, life[1]));
    }
    const int closed[] = {link.input, link.life, life[1], guard.signal_fd, link.keeper, guard.input, -1};
    pid_t keeping = run_keeper_start(keeper[0], guard.supervisor, closed);
    close(keeper[0]);
    close(link.input);
    close(link.life);
    int code = attend(&guard);
    run_keeper_end(keeping);
    return code;
}
