/* Signals as they were at the start, which a rank gets, and as this program handles them. */
#define _GNU_SOURCE
#include "run.h"

/* Passed on to the supervisor, and from there to the ranks. */
static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};
/* What this program handles otherwise than its ranks do. */
static const int changed[] = {SIGCHLD, SIGPIPE, SIGXFSZ, SIGALRM, SIGTTOU};

static void wake(int number) {
    (void)number; /* a write that waits comes back */
}

static bool is_ignored(int number) {
    struct sigaction found;
    return sigaction(number, NULL, &found) == 0 && found.sa_handler == SIG_IGN;
}

void run_signals_open(run_signals *signals) {
    const struct sigaction waking = {.sa_handler = wake}; /* without SA_RESTART */
    sigset_t alarm;
    sigemptyset(&signals->ignored_at_start);
    for (int number = 1; number < NSIG; number++) {
        if (is_ignored(number)) sigaddset(&signals->ignored_at_start, number);
    }
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    sigprocmask(SIG_UNBLOCK, &alarm, &signals->mask_found);
    sigaction(SIGALRM, &waking, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* past a limit of the size of files a write fails, and that is said */
    signal(SIGCHLD, SIG_DFL); /* ignored, it would take the children's exit codes away */
}

/* A signal that is blocked is queued even where it is ignored, so those that are (nohup) must not be blocked. */
void run_signals_block(run_signals *signals) {
    sigemptyset(&signals->taken);
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++) {
        if (!sigismember(&signals->ignored_at_start, forwarded[i])) sigaddset(&signals->taken, forwarded[i]);
    }
    sigaddset(&signals->taken, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals->taken, NULL);
}

bool run_asks_to_end(int number) {
    return number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
}

void run_signals_restore(const run_signals *signals) {
    for (size_t i = 0; i < sizeof changed / sizeof *changed; i++) {
        signal(changed[i], sigismember(&signals->ignored_at_start, changed[i]) ? SIG_IGN : SIG_DFL);
    }
    sigprocmask(SIG_SETMASK, &signals->mask_found, NULL);
}
