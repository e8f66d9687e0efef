/* tshard-bench collectives: its rows are what they claim to be, whatever the op, the ranks and the dtype. */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BENCH "'" TSHARD_BIN_DIR "/tshard-bench'"

/* Output of a shell command, and its exit code. stderr is part of it. */
static int output_of(const char *command, char *text, size_t size) {
    char line[1024];
    snprintf(line, sizeof line, "exec 2>&1; %s", command);
    FILE *out = popen(line, "r");
    cr_assert_not_null(out);
    size_t n = fread(text, 1, size - 1, out);
    text[n] = '\0';
    int status = pclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void need_bench(void) {
    if (access(TSHARD_BIN_DIR "/tshard-bench", X_OK) != 0) cr_skip_test("built without tshard-bench");
}

typedef struct bench_row {
    char op[32], backend[32], dtype[32];
    int ranks;
    long bytes, wrong;
    double time_us, algbw, busbw;
} bench_row;

/* The whole line in the form that is promised, or failure. */
static bench_row parse_row(const char *line) {
    bench_row row;
    int used = -1;
    sscanf(line,
           "{\"bench\": \"collectives\", \"op\": \"%31[a-z_]\", \"backend\": \"%31[a-z]\", \"ranks\": %d, \"dtype\": "
           "\"%31[a-z0-9]\", \"bytes\": %ld, \"time_us\": %lf, \"algbw_gbps\": %lf, \"busbw_gbps\": %lf, \"wrong\": "
           "%ld}%n",
           row.op, row.backend, &row.ranks, row.dtype, &row.bytes, &row.time_us, &row.algbw, &row.busbw, &row.wrong,
           &used);
    cr_assert_eq(used, (int)strlen(line), "'%s'", line);
    return row;
}

static double bus_factor(const char *op, int ranks) {
    double others = (ranks - 1.0) / ranks;
    return strcmp(op, "broadcast") == 0 ? 1.0 : strcmp(op, "all_reduce") == 0 ? 2 * others : others;
}

static void check_row(const bench_row *row, int ranks, const char *dtype) {
    cr_assert_eq(row->ranks, ranks);
    cr_assert_str_eq(row->dtype, dtype);
    cr_assert_str_eq(row->backend, ranks == 1 ? "self" : "local");
    cr_assert_eq(row->wrong, 0);
    cr_assert_gt(row->time_us, 0.0);
    double algbw = (double)row->bytes / row->time_us * 1e-3;
    cr_assert_lt(fabs(row->algbw - algbw), 1e-4 * algbw);
    cr_assert_leq(fabs(row->busbw - algbw * bus_factor(row->op, ranks)), 1e-4 * algbw);
}

/* All ops over three sizes, odd ones among them. */
static void check_all(int ranks, const char *dtype) {
    static char text[65536];
    char command[512], *rest = text;
    snprintf(command, sizeof command,
             "'" TSHARD_BIN_DIR "/tshard-run' -n %d --no-prefix " BENCH
             " collectives --op all --min-bytes 16 --max-bytes 20000 --factor 33 --dtype %s --seconds 0.001 --json",
             ranks, dtype);
    cr_assert_eq(output_of(command, text, sizeof text), 0, "%s", text);
    const char *const ops[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"};
    int n = 0;
    for (char *line; (line = strsep(&rest, "\n")) && *line; n++) {
        bench_row row = parse_row(line);
        check_row(&row, ranks, dtype);
        cr_assert(n < 15 && strcmp(row.op, ops[n / 3]) == 0, "row %d is %s", n, row.op);
    }
    cr_assert_eq(n, 15);
}

Test(bench, rows_of_one_rank, .timeout = 60, .init = need_bench) {
    check_all(1, "float32");
}

Test(bench, rows_of_two_ranks, .timeout = 60, .init = need_bench) {
    check_all(2, "float32");
    check_all(2, "complex64");
}

Test(bench, rows_of_more_ranks_than_divide_anything, .timeout = 60, .init = need_bench) {
    check_all(3, "bfloat16");
    check_all(3, "float16");
    check_all(4, "uint8");
}

Test(bench, table_has_one_heading, .timeout = 20, .init = need_bench) {
    char text[4096];
    const char *command = BENCH " collectives --min-bytes 4 --max-bytes 64 --seconds 0.001";
    cr_assert_eq(output_of(command, text, sizeof text), 0);
    cr_assert_eq(strncmp(text, "bench ", 6), 0, "%s", text);
    size_t width = strcspn(text, "\n");
    int lines = 0;
    for (char *line = text; *line; line += width + 1, lines++) cr_assert_eq(strcspn(line, "\n"), width, "%s", text);
    cr_assert_eq(lines, 4);
}

Test(bench, wrong_use, .timeout = 20, .init = need_bench) {
    const struct {
        const char *command, *words;
    } cases[] = {
        {BENCH " what", "unknown command 'what'"},
        {BENCH " collectives --op gather", "--op wants one of all_reduce|all_gather|"},
        {BENCH " collectives --min-bytes 4X", "--min-bytes wants bytes, like 4, 16K or 64M, not '4X'"},
        {BENCH " collectives --max-bytes 99999999999G", "--max-bytes wants bytes"},
        {BENCH " collectives --factor 1", "--factor must be 2 or more"},
        {BENCH " collectives --seconds 0", "--seconds wants seconds, more than 0, not '0'"},
        {BENCH " collectives --dtype", "--dtype wants a value"},
        {BENCH " collectives all", "collectives takes options alone, not 'all'"},
        {BENCH " collectives --plot /nowhere/x.svg", "--plot: cannot write '/nowhere/x.svg': No such file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[4096];
        cr_expect_eq(output_of(cases[i].command, text, sizeof text), 2, "%s", cases[i].command);
        cr_expect(strstr(text, cases[i].words), "%s: %s", cases[i].command, text);
    }
}
