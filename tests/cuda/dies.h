/* What the stand-ins refuse ends the program with a message. */
#ifndef TSHARD_DIES_H
#define TSHARD_DIES_H

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs work in a process of its own. *words: what that writes to stderr, to be freed. Returns the process' status. */
static inline int run_apart(void (*work)(void), char **words) {
    int ends[2], status = 0;
    size_t used = 0, room = 1 << 16;
    cr_assert_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        work();
        _exit(0);
    }
    close(ends[1]);
    *words = (char *)calloc(1, room);
    for (ssize_t got; used + 1 < room && (got = read(ends[0], *words + used, room - used - 1)) > 0;)
        used += (size_t)got;
    close(ends[0]);
    cr_assert_eq(waitpid(child, &status, 0), child);
    return status;
}

/* work: ends the program with these words, or (NULL) returns. */
static inline void expect_end(const char *what, void (*work)(void), const char *words) {
    char *said;
    int status = run_apart(work, &said);
    if (words) {
        cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "%s is not refused: status %d", what, status);
        cr_expect_not_null(strstr(said, words), "%s: '%s' is not in '%s'", what, words, said);
    } else {
        cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s is refused: status %d, %s", what, status, said);
    }
    free(said);
}

#endif
