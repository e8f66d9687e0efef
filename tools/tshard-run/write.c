/* Writing to descriptors whose readers may have stopped. */
#define _GNU_SOURCE
#include "run.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

/* How long stderr may take for a line. */
static const double line_seconds = 1.0;

/* A descriptor that can be written may take less than `size` bytes, and what it is shared with may fill it first: then
 * the write waits. SIGALRM interrupts it. */
ssize_t run_write(int fd, const char *text, size_t size) {
    const struct itimerval soon = {.it_value.tv_usec = 50000, .it_interval.tv_usec = 50000}, never = {0};
    struct pollfd can = {.fd = fd, .events = POLLOUT};
    if (poll(&can, 1, 0) == 0) return 0;
    setitimer(ITIMER_REAL, &soon, NULL);
    ssize_t n = write(fd, text, size);
    int error = errno;
    setitimer(ITIMER_REAL, &never, NULL);
    errno = error;
    return n < 0 && (error == EINTR || error == EAGAIN) ? 0 : n;
}

static void write_soon(int fd, const char *text, size_t size) {
    const double deadline = tshi_clock() + line_seconds;
    for (double left = line_seconds; size > 0 && left > 0; left = deadline - tshi_clock()) {
        struct pollfd can = {.fd = fd, .events = POLLOUT};
        poll(&can, 1, (int)(1e3 * left) + 1);
        ssize_t n = run_write(fd, text, size);
        if (n < 0) return; /* there is nowhere else to say it */
        text += n;
        size -= (size_t)n;
    }
}

void run_say(const char *format, ...) {
    char text[4096] = "tshard-run: ";
    const size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text + used, sizeof text - used - 1, format, arguments);
    va_end(arguments);
    if (length < 0) return;
    size_t size = used + (size_t)length;
    if (size > sizeof text - 2) size = sizeof text - 2;
    text[size++] = '\n';
    write_soon(STDERR_FILENO, text, size);
}

int run_flush_stdout(void) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return 0; /* a text longer than the buffer fails before */
    run_say("cannot write to stdout: %s", strerror(errno));
    return 1;
}
