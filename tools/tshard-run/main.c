/* tshard-run: starts the ranks of a program that belong on this machine. */
#include "run.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

void run_say(const char *format, ...) {
    char line[1024] = "tshard-run: ";
    int used = 12;
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(line + used, sizeof line - 13, format, arguments);
    va_end(arguments);
    if (written > (int)sizeof line - 14) written = (int)sizeof line - 14;
    if (written > 0) used += written;
    line[used++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)used);
    (void)ignored; /* there is nowhere else to say it */
}

double run_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv) {
    static run_options options; /* too large for the stack of a small system */
    int code = run_options_parse(argc, argv, &options);
    return code >= 0 ? code : run_guard(&options);
}
