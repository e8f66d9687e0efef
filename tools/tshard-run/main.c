/* tshard-run: starts the ranks of a program that belong on this machine. */
#define _GNU_SOURCE
#include "common/output.h"
#include "run.h"

#include <limits.h>

/* Becomes the tshard-plan beside this program. Returns when it cannot, with the exit code. */
static int become_plan(run_options *options, const run_signals *signals) {
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof "tshard-plan");
    if (length < 0) length = 0;
    path[length] = '\0';
    char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    memcpy(name, "tshard-plan", sizeof "tshard-plan");
    run_signals_restore(signals);
    execv(path, options->plan);
    int error = errno;
    dprintf(STDERR_FILENO, "tshard-run: cannot run '%s': %s\n", path, strerror(error));
    return error == ENOENT ? RUN_NOT_FOUND_EXIT : RUN_NOT_USABLE_EXIT;
}

int main(int argc, char **argv) {
    static run_options options; /* too large for the stack of a small system */
    run_signals signals;
    output_begin();
    run_signals_open(&signals);
    int code = run_options_parse(argc, argv, &options);
    if (code >= 0) return code;
    return options.planned ? become_plan(&options, &signals) : run_guard(&options, &signals);
}
