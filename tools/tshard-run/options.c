/* The command line. */
#include "run.h"
#include "tshard/base.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "usage: tshard-run -n N [options] PROGRAM [ARGS...]\n"
    "\n"
    "Starts N ranks of PROGRAM on this machine, passes their output on, and ends with them.\n"
    "\n"
    "  -n, --ranks N           number of ranks, 1 to 1024\n"
    "      --bind cores|none   pin each rank to its share of the cores allowed (default: cores, when there are at\n"
    "                          least as many cores as ranks; else none)\n"
    "      --grace SECONDS     time between asking ranks to end (TERM) and killing them (default: 3)\n"
    "      --no-prefix         pass output on without \"[rank] \" before each line\n"
    "      --master-port PORT  MASTER_PORT, 1 to 65535 (default: one that is free)\n"
    "  -h, --help              this text\n"
    "  -V, --version           version\n"
    "\n"
    "Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT and the\n"
    "others that torchrun sets, and TSHARD_TOKEN, the job's random secret. With several ranks OMP_NUM_THREADS and\n"
    "TSHARD_BLAS_THREADS become a rank's share of the cores, unless they are set already.\n"
    "stdin goes to rank 0, the others read /dev/null. Lines are passed on whole (up to 1 MiB, longer ones in pieces).\n"
    "\n"
    "INT, TERM, HUP and QUIT go to all ranks; what has not ended after the grace period is killed, and a second one\n"
    "of them kills at once. USR1 and USR2 go to all ranks and change nothing else. When a rank fails, the others have\n"
    "one second to notice, then get TERM, then KILL.\n"
    "\n"
    "Exit code: 0 when all ranks exit with 0; else that of the rank that failed first, 128 + the signal when one\n"
    "killed it (the last line names the rank); 128 + the signal when tshard-run was told to stop and a rank did not\n"
    "exit with 0; 127 when PROGRAM is not found, 126 when it cannot be run; 2 for a usage error.\n";

static int usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int usage_error(const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    run_say("%s (tshard-run --help says more)", text);
    return RUN_USAGE_EXIT;
}

static bool parse_int(const char *text, long low, long high, int *out) {
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < low || value > high) return false;
    *out = (int)value;
    return true;
}

static bool parse_seconds(const char *text, double *out) {
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value < 0 || value > 1e6) return false;
    *out = value;
    return true;
}

static bool parse_bind(const char *text, run_bind *out) {
    *out = strcmp(text, "none") == 0 ? RUN_BIND_NONE : RUN_BIND_CORES;
    return strcmp(text, "cores") == 0 || strcmp(text, "none") == 0;
}

enum { OPTION_BIND = 256, OPTION_GRACE, OPTION_NO_PREFIX, OPTION_PORT };

static const struct option long_options[] = {{"ranks", required_argument, NULL, 'n'},
                                             {"bind", required_argument, NULL, OPTION_BIND},
                                             {"grace", required_argument, NULL, OPTION_GRACE},
                                             {"no-prefix", no_argument, NULL, OPTION_NO_PREFIX},
                                             {"master-port", required_argument, NULL, OPTION_PORT},
                                             {"help", no_argument, NULL, 'h'},
                                             {"version", no_argument, NULL, 'V'},
                                             {NULL, 0, NULL, 0}};

/* One option; -1 to go on, or the exit code. `word` is how the user wrote it. */
static int take_option(int option, const char *word, run_options *out) {
    switch (option) {
    case 'n':
        if (parse_int(optarg, 1, RUN_MAX_RANKS, &out->ranks)) return -1;
        return usage_error("-n wants a number of ranks from 1 to %d, not '%s'", RUN_MAX_RANKS, optarg);
    case OPTION_BIND:
        if (parse_bind(optarg, &out->bind)) return -1;
        return usage_error("--bind wants cores or none, not '%s'", optarg);
    case OPTION_GRACE:
        if (parse_seconds(optarg, &out->grace)) return -1;
        return usage_error("--grace wants seconds, 0 or more, not '%s'", optarg);
    case OPTION_PORT:
        if (parse_int(optarg, 1, 65535, &out->port)) return -1;
        return usage_error("--master-port wants a port from 1 to 65535, not '%s'", optarg);
    case OPTION_NO_PREFIX: out->prefix = false; return -1;
    case 'h': fputs(help, stdout); return fflush(stdout) == 0 ? 0 : 1;
    case 'V': printf("tshard-run %s\n", tsh_version()); return fflush(stdout) == 0 ? 0 : 1;
    case ':': return usage_error("%s wants a value", word);
    default: return usage_error("unknown option '%s'", word);
    }
}

int run_options_parse(int argc, char **argv, run_options *options) {
    *options = (run_options){.grace = 3.0, .prefix = true};
    opterr = 0;
    for (;;) {
        int word = optind ? optind : 1;
        int option = getopt_long(argc, argv, "+:n:hV", long_options, NULL);
        if (option == -1) break;
        int code = take_option(option, word < argc ? argv[word] : "", options);
        if (code >= 0) return code;
    }
    if (options->ranks == 0) return usage_error("-n N, the number of ranks, is missing");
    if (optind >= argc) return usage_error("the PROGRAM to run is missing");
    options->command = argv + optind;
    return -1;
}
