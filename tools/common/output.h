/* The beginning and the end of a program that prints: what it has printed has arrived, or it says so and fails. */
#ifndef TOOLS_OUTPUT_H
#define TOOLS_OUTPUT_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* To be called first. A descriptor that was closed at the start would become that of the next file or socket, which
 * would then get what is printed: here it becomes one that cannot be read or written. */
static inline void output_begin(void) {
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
    }
}

/* Prints "PROGRAM: " and the format with the one word that it takes, then the help; returns 2, the exit code of wrong
 * use. */
static inline int output_usage_error(const char *program, const char *help, const char *format, const char *word) {
    fprintf(stderr, "%s: ", program);
    fprintf(stderr, format, word);
    fprintf(stderr, "\n%s", help);
    return 2;
}

/* Returns `code`, or 1 when it was 0 and not all that was printed has arrived. To be called last. */
static inline int output_end(const char *program, int code) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    fprintf(stderr, "%s: cannot write all of the output: %s\n", program, strerror(errno ? errno : EIO));
    return code ? code : 1;
}

#endif
