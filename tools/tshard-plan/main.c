/* tshard-plan: the command line. */
#include "base/number.h"
#include "common/output.h"
#include "search.h"
#include "tshard/base.h"
#include "weights.h"

#include <getopt.h>
#include <signal.h>
#include <stdarg.h>

enum { MOST_RANKS = 65536, USAGE_EXIT = 2 };

static const char help[] =
    "usage: tshard-plan -n N [options] PROGRAM [ARGS...]\n"
    "\n"
    "Predicts what a run of PROGRAM on N ranks will take. It runs a few of the ranks without allocating, computing or\n"
    "communicating, and prints the memory, arithmetic and collectives of each kind of rank (docs/planning.md).\n"
    "\n"
    "  -n, --ranks N           number of ranks, 1 to 65536 (also --plan, as in tshard-run)\n"
    "      --json              print JSON\n"
    "      --machine FILE      also predict the time of a step, on the machine that tshard-bench calibrate measured\n"
    "      --search NAME=A,B,...\n"
    "                          plan PROGRAM with --NAME=A, with --NAME=B, ..., and list the best first; several\n"
    "                          searches plan every combination. The value on is a bare --NAME, off leaves it out\n"
    "      --search weights    find weights for --model-parallel (--search NAME=weights: for --NAME) that follow\n"
    "                          --speed, and with which every rank's peak fits --memory-limit\n"
    "      --speed A,B,...     speeds of the ranks along that axis, as tsh_group_measure returns them (equal)\n"
    "      --memory-limit BYTES\n"
    "                          with --search: list only plans in which no rank needs more, such as 80G; with\n"
    "                          --search weights one limit, or one for each rank along the axis, such as 8G,4G\n"
    "  -h, --help              this text\n"
    "  -V, --version           version\n"
    "\n"
    "Exit code: 0 if there is a plan, and with --search if a combination fits; 127 if PROGRAM is not found, 126 if it\n"
    "cannot be run, 2 for a usage error; otherwise that of the first rank that failed, or 128 + the signal that\n"
    "killed it or stopped tshard-plan.\n";

typedef struct plan_options {
    int ranks;
    bool json;
    const char *machine; /* a file, or NULL */
    search search;
    weights_search weights;
    char **command; /* ends with NULL */
} plan_options;

static int usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int usage_error(const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    plan_say("%s (tshard-plan --help says more)", text);
    return USAGE_EXIT;
}

static int take_search(plan_options *out) {
    char text[256], *values = strchr(optarg, '=');
    snprintf(text, sizeof text, "%s", optarg);
    if (!strcmp(optarg, "weights")) {
        out->weights.option = "model-parallel";
        return -1;
    }
    if (values && !strcmp(values, "=weights")) {
        *values = '\0';
        out->weights.option = optarg + strspn(optarg, "-");
        return -1;
    }
    const char *wanted = search_add(&out->search, optarg);
    return wanted ? usage_error("--search wants %s, not '%s'", wanted, text) : -1;
}

/* One option; -1 to go on, or the exit code. `word` is how the user wrote it. */
static int take_option(int option, const char *word, plan_options *out) {
    char text[256];
    const char *wrong;
    if (optarg && !*optarg) return usage_error("%s wants a value that is not empty", word);
    switch (option) {
    case 'n':
        if (tshi_parse_int(optarg, 1, MOST_RANKS, &out->ranks)) return -1;
        return usage_error("%s wants a number of ranks from 1 to %d, not '%s'", word, MOST_RANKS, optarg);
    case 'j': out->json = true; return -1;
    case 'm': out->machine = optarg; return -1;
    case 's': return take_search(out);
    case 'b':
        snprintf(text, sizeof text, "%s", optarg);
        wrong = weights_add_limits(&out->weights, optarg);
        return wrong ? usage_error("--memory-limit wants %s not '%s'", wrong, text) : -1;
    case 'v':
        snprintf(text, sizeof text, "%s", optarg);
        wrong = weights_add_speeds(&out->weights, optarg);
        return wrong ? usage_error("--speed wants %s, not '%s'", wrong, text) : -1;
    case 'h': fputs(help, stdout); return 0;
    case 'V': printf("tshard-plan %s\n", tsh_version()); return 0;
    case ':': return usage_error("%s wants a value", word);
    default: return usage_error("unknown option '%s'", word);
    }
}

/* -1 to go on, or the exit code. */
static int parse(int argc, char **argv, plan_options *options) {
    static const struct option names[] = {{"ranks", required_argument, NULL, 'n'},
                                          {"plan", required_argument, NULL, 'n'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"machine", required_argument, NULL, 'm'},
                                          {"search", required_argument, NULL, 's'},
                                          {"speed", required_argument, NULL, 'v'},
                                          {"memory-limit", required_argument, NULL, 'b'},
                                          {"help", no_argument, NULL, 'h'},
                                          {"version", no_argument, NULL, 'V'},
                                          {NULL, 0, NULL, 0}};
    opterr = 0;
    for (;;) {
        int word = optind ? optind : 1;
        int option = getopt_long(argc, argv, "+:n:hV", names, NULL);
        if (option == -1) break;
        int code = take_option(option, argv[word], options);
        if (code >= 0) return code;
    }
    if (options->ranks == 0) return usage_error("-n N, the number of ranks, is missing");
    const weights_search *weights = &options->weights;
    if (weights->limits && !options->search.options && !weights->option)
        return usage_error("--memory-limit needs --search");
    if (weights->speeds && !weights->option) return usage_error("--speed needs --search weights");
    if (weights->option && (options->search.options || options->machine))
        return usage_error("--search weights excludes --machine and another --search");
    if (weights->limits > 1 && !weights->option)
        return usage_error("--memory-limit wants one number of bytes, except with --search weights");
    options->search.memory_limit = weights->limits ? weights->limit[0] : 0;
    if (optind >= argc) return usage_error("the PROGRAM to plan is missing");
    options->command = argv + optind;
    return -1;
}

static int plan_once(const plan_options *options, const machine *m) {
    static plan_result result;
    int code = plan_run(options->ranks, options->command, &result);
    if (code == 0 && options->json) plan_print_json(&result, m);
    if (code == 0 && !options->json) plan_print(&result, m);
    plan_free(&result);
    return code;
}

static int plan(const plan_options *options) {
    char why[768];
    machine m;
    if (options->weights.option) return weights_run(&options->weights, options->ranks, options->json, options->command);
    const machine *known = options->machine ? &m : NULL;
    if (known && !machine_read(options->machine, &m, why, sizeof why)) {
        plan_say("--machine: %s", why);
        return USAGE_EXIT;
    }
    int code = options->search.options
                   ? search_run(&options->search, options->ranks, known, options->json, options->command)
                   : plan_once(options, known);
    if (known) machine_free(&m);
    return code;
}

int main(int argc, char **argv) {
    static plan_options options; /* too large for the stack of a small system */
    output_begin();
    signal(SIGCHLD, SIG_DFL); /* ignored, it would take the ranks' exit codes away */
    int code = parse(argc, argv, &options);
    return output_end("tshard-plan", code >= 0 ? code : plan(&options));
}
