/* The keeper: kills what ranks have started when guard and supervisor are both gone, which sweep otherwise. */
#define _GNU_SOURCE
#include "run.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void wake(int number) {
    (void)number;
}

/* The guard's death interrupts what this process waits in. */
static void hear_of_death(void) {
    struct sigaction action = {.sa_handler = wake};
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGCONT);
    sigaction(SIGCONT, &action, NULL);
    sigprocmask(SIG_UNBLOCK, &one, NULL);
    prctl(PR_SET_PDEATHSIG, SIGCONT);
}

/* Reads the ranks' numbers until no process has the writing end. A rank is a zombie until the job has been swept, so
 * the number of its group belongs to no other. A supervisor that was stopped before it could ask for the news of the
 * guard's death goes on, and finds the guard gone. */
static void keep(int fd, pid_t guard, pid_t supervisor) {
    static pid_t ranks[RUN_MAX_RANKS];
    int n = 0;
    pid_t pid;
    ssize_t got;
    if (getppid() != guard) kill(supervisor, SIGCONT);
    while ((got = read(fd, &pid, sizeof pid)) == (ssize_t)sizeof pid || (got < 0 && errno == EINTR)) {
        if (got < 0 && getppid() != guard) kill(supervisor, SIGCONT);
        if (got < 0) continue;
        if (pid == 0) n = 0;
        if (pid > 0 && n < RUN_MAX_RANKS) ranks[n++] = pid;
    }
    for (int i = 0; i < n; i++) kill(-ranks[i], SIGKILL);
}

pid_t run_keeper_start(int fd, pid_t supervisor, const int *closed) {
    pid_t guard = getpid(), pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_NAME, "tshard-keeper");
    setpgid(0, 0);
    for (int standard = 0; standard < 3; standard++) close(standard); /* their readers wait for the job alone */
    while (*closed >= 0) close(*closed++);
    hear_of_death();
    keep(fd, guard, supervisor);
    _exit(0);
}

void run_tell_keeper(const run_link *link, pid_t rank) {
    ssize_t ignored = write(link->keeper, &rank, sizeof rank);
    (void)ignored;
}

void run_keeper_end(pid_t keeper) {
    if (keeper < 0) return;
    kill(keeper, SIGKILL);
    while (waitpid(keeper, NULL, 0) < 0 && errno == EINTR) {
    }
}
