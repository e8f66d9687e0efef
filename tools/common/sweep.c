#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "common/sweep.h"
#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* What ends with its ranks by itself tidies up meanwhile. */
#define MOMENT 0.5
/* After SIGKILL: only what waits for a broken disk takes longer. */
#define LONGEST 10.0
/* Past the highest process number of Linux. */
#define PAST_PIDS (1 << 22)

/* False: the kernel has no list of them, or there is no /proc. */
static bool kill_listed_children(void) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *file = fopen(path, "re");
    if (!file) return false;
    int pid;
    while (fscanf(file, "%d", &pid) == 1) kill((pid_t)pid, SIGKILL);
    fclose(file);
    return true;
}

/* True when there is none. */
static bool reap(void) {
    pid_t pid;
    do pid = waitpid(-1, NULL, WNOHANG);
    while (pid > 0 || (pid < 0 && errno == EINTR));
    return pid < 0;
}

/* waitid knows a child from any other number, so all numbers are asked for: some tenths of a second, and mostly less,
 * for those that come after this process' own are the likely ones. */
static void kill_found_children(void) {
    const pid_t first = getpid();
    for (pid_t i = 1; i < PAST_PIDS; i++) {
        pid_t pid = (first + i) % PAST_PIDS;
        siginfo_t info;
        if (pid == 0 || waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0) continue;
        kill(pid, SIGKILL);
        for (int tries = 0; tries < 50 && waitpid(pid, NULL, WNOHANG) == 0; tries++) tshi_sleep(1e-3);
        if (reap()) return;
    }
}

/* Whatever loses its parent becomes our child, because we are a subreaper: so children are enough, again and again. */
bool sweep_descendants(void) {
    const double since = tshi_clock();
    while (!reap()) {
        double past = tshi_clock() - since;
        if (past > LONGEST) return false;
        if (past > MOMENT && !kill_listed_children()) kill_found_children();
        tshi_sleep(1e-3);
    }
    return true;
}
