/* Nothing is left running: kill and reap all descendants. */
#define _GNU_SOURCE
#include "run.h"

#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What ends with its ranks by itself, as tshard-pmix does, tidies up meanwhile. */
#define MOMENT 0.5

/* Whatever loses its parent becomes our child, because we are a subreaper: so children are enough, again and again. */
static void kill_children(void) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *file = fopen(path, "re");
    if (!file) return;
    int pid;
    while (fscanf(file, "%d", &pid) == 1) kill((pid_t)pid, SIGKILL);
    fclose(file);
}

void run_sweep(void) {
    const struct timespec pause = {.tv_nsec = 1000000};
    double since = run_now();
    for (double now = since; now < since + 5.0; now = run_now()) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);
        if (pid < 0 && errno != EINTR) return;
        if (pid > 0) continue;
        if (now > since + MOMENT) kill_children();
        nanosleep(&pause, NULL);
    }
}
