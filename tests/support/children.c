#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/children.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

pid_t tshi_test_fork(void) {
    fflush(NULL);
    pid_t parent = getpid(), child = fork();
    if (child < 0) abort();
    if (child > 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    return 0;
}

void tshi_test_reap(pid_t child, char *words, size_t size) {
    int end, signal;
    while (waitpid(child, &end, 0) < 0 && errno == EINTR) continue;
    signal = WIFSIGNALED(end) ? WTERMSIG(end) : 0;
    words[0] = '\0';
    if (signal)
        snprintf(words, size, "signal %d (%s)", signal, signal == SIGALRM ? "it hangs" : strsignal(signal));
    else if (WEXITSTATUS(end))
        snprintf(words, size, "the process left with %d", WEXITSTATUS(end));
}
