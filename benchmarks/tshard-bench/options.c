/* Options from a table: parsing, and the help that follows from it. */
#include "bench.h"

#include "base/number.h"

#include <getopt.h>
#include <string.h>

enum { MAX_OPTIONS = 32, FIRST_OPTION = 256 };

/* Three of them multiplied, and eight bytes for each, are still a number. */
static const int64_t most_bytes = (int64_t)1 << 50, most_count = 1000000;
static const double least_seconds = 1e-9, most_seconds = 1e6;

static bool parse_choice(const char *text, const char *const *choices, int *out) {
    for (int i = 0; choices[i]; i++) {
        if (strcmp(text, choices[i]) != 0) continue;
        *out = i;
        return true;
    }
    return false;
}

static bool parse_value(const bench_option *option, const char *text) {
    switch (option->kind) {
    case BENCH_SIZE: return tshi_parse_bytes(text, 1, most_bytes, option->out);
    case BENCH_COUNT: return tshi_parse_int64(text, 1, most_count, option->out);
    case BENCH_SECONDS: return tshi_parse_real(text, least_seconds, most_seconds, option->out);
    case BENCH_CHOICE: return parse_choice(text, option->choices, option->out);
    case BENCH_FLAG: *(bool *)option->out = true; return true;
    case BENCH_TEXT: *(const char **)option->out = text; return text[0] != '\0';
    }
    return false;
}

/* "column|row|dense", or what else is expected, into text. */
static const char *describe_value(const bench_option *option, char *text, size_t size) {
    const char *const words[] = {"BYTES", "N", "SECONDS", "", "", "FILE"};
    snprintf(text, size, "%s", words[option->kind]);
    for (int i = 0; option->kind == BENCH_CHOICE && option->choices[i]; i++) {
        size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s", i ? "|" : "", option->choices[i]);
    }
    return text;
}

static void print_help(const char *command, const char *purpose, const bench_option *options, int n) {
    printf("usage: tshard-bench %s [options]\n\n%s\n\n", command, purpose);
    for (int i = 0; i < n; i++) {
        char value[256], left[320];
        snprintf(left, sizeof left, "--%s %s", options[i].name, describe_value(&options[i], value, sizeof value));
        if (strlen(left) > 24)
            printf("  %s\n  %-24s  %s", left, "", options[i].help);
        else
            printf("  %-24s  %s", left, options[i].help);
        if (options[i].fallback) printf(" (default: %s)", options[i].fallback);
        putchar('\n');
    }
    printf("  %-24s  this text\n\nBYTES are like 4, 16K, 64M, 1G (K is 1024).\n", "--help");
}

static int usage_error(const char *command, const bench_option *option, const char *given) {
    char value[256];
    const char *const wanted[] = {"bytes, like 4, 16K or 64M, at most 1024T",
                                  "a whole number from 1 to 1000000",
                                  "seconds, more than 0 and at most 1000000",
                                  "one of",
                                  "nothing",
                                  "a file name"};
    bool choice = option->kind == BENCH_CHOICE;
    bench_say("%s: --%s wants %s%s%s, not '%s'", command, option->name, wanted[option->kind], choice ? " " : "",
              choice ? describe_value(option, value, sizeof value) : "", given);
    return 2;
}

/* Takes one word of the command line; -1 when parsing continues, else the exit code. */
static int take(const char *command, const bench_option *options, int n, int code, const char *word) {
    if (code >= FIRST_OPTION && code < FIRST_OPTION + n) {
        const bench_option *option = &options[code - FIRST_OPTION];
        return parse_value(option, optarg) ? -1 : usage_error(command, option, optarg);
    }
    bench_say(code == ':' ? "%s: %s wants a value" : "%s: unknown option '%s'; --help lists them", command, word);
    return 2;
}

static int parse(const char *command, const char *purpose, const bench_option *options, int n, int argc, char **argv) {
    struct option table[MAX_OPTIONS + 2] = {{0}};
    for (int i = 0; i < n; i++) {
        int argument = options[i].kind == BENCH_FLAG ? no_argument : required_argument;
        table[i] = (struct option){options[i].name, argument, NULL, FIRST_OPTION + i};
    }
    table[n] = (struct option){"help", no_argument, NULL, 'h'};
    opterr = 0;
    optind = 1;
    for (int code, word = 1; (code = getopt_long(argc, argv, "+:h", table, NULL)) != -1; word = optind) {
        if (code == 'h') {
            if (bench_is_first_rank()) print_help(command, purpose, options, n);
            return 0;
        }
        int result = take(command, options, n, code, argv[word]);
        if (result >= 0) return result;
    }
    if (optind == argc) return -1;
    bench_say("%s takes only options, not '%s'", command, argv[optind]);
    return 2;
}

int bench_options_parse(const char *command, const char *purpose, const bench_option *options, int n,
                        bench_common *common, int argc, char **argv) {
    const bench_option last[] = {
        {"seconds", BENCH_SECONDS, "0.25", "time to spend on each measurement", &common->seconds, NULL},
        {"json", BENCH_FLAG, NULL, "print one JSON object per line instead of a table", &common->json, NULL},
        {"plot", BENCH_TEXT, NULL, "also draw the result as an SVG file, with gnuplot", (void *)&common->plot, NULL},
    };
    const int last_count = (int)(sizeof last / sizeof *last);
    bench_option all[MAX_OPTIONS];
    if (n + last_count > MAX_OPTIONS) return 2;
    *common = (bench_common){0};
    for (int i = 0; i < n; i++) all[i] = options[i];
    for (int i = 0; i < last_count; i++) all[n + i] = last[i];
    n += last_count;
    for (int i = 0; i < n; i++) {
        if (all[i].fallback && !parse_value(&all[i], all[i].fallback)) {
            return usage_error(command, &all[i], all[i].fallback);
        }
    }
    int code = parse(command, purpose, all, n, argc, argv);
    return code < 0 && common->plot && !bench_plot_can_write(common->plot) ? 2 : code;
}

const char *const *bench_dtype_names(void) {
    static const char *const names[] = {"float32", "float64", "bfloat16",  "float16",    "int32",
                                        "int64",   "uint8",   "complex64", "complex128", NULL};
    return names;
}
