/* tshard-bench: its rows are what they claim to be, whatever the op, the sharding, the ranks and the dtype. */
#define _GNU_SOURCE
#include "support/files.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BENCH "'" TSHARD_BIN_DIR "/tshard-bench'"

/* Output of a shell command, and its exit code (128 + n for signal n). stderr is part of it. */
static int output_of(const char *command, char *text, size_t size) {
    char line[1024];
    snprintf(line, sizeof line, "exec 2>&1; %s", command);
    FILE *out = popen(line, "r");
    cr_assert_not_null(out);
    size_t n = fread(text, 1, size - 1, out);
    text[n] = '\0';
    cr_assert(fgetc(out) == EOF, "more than %zu bytes", size);
    int status = pclose(out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
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
    if (strcmp(op, "send_recv") == 0) return 2.0;
    if (strcmp(op, "broadcast") == 0 || strcmp(op, "reduce") == 0) return 1.0;
    return strcmp(op, "all_reduce") == 0 ? 2 * others : others;
}

static void check_row(const bench_row *row, int ranks, const char *dtype) {
    cr_assert_eq(row->ranks, ranks);
    cr_assert_str_eq(row->dtype, dtype);
    cr_assert_str_eq(row->backend, ranks == 1 ? "self" : "local");
    cr_assert_eq(row->wrong, 0);
    cr_assert_gt(row->time_us, 0.0);
    double algbw = (double)row->bytes / row->time_us * 1e-3;
    cr_assert_leq(fabs(row->algbw - algbw), 1e-4 * algbw);
    cr_assert_eq(row->bytes == 0, strcmp(row->op, "barrier") == 0);
    cr_assert_leq(fabs(row->busbw - algbw * bus_factor(row->op, ranks)), 1e-4 * algbw);
}

/* All ops over three sizes, odd ones among them; a barrier has none, and a round trip takes two. */
static void check_all(int ranks, const char *dtype) {
    static char text[65536];
    char command[512], *rest = text;
    snprintf(command, sizeof command,
             "'" TSHARD_BIN_DIR "/tshard-run' -n %d --no-prefix " BENCH
             " collectives --op all --min-bytes 16 --max-bytes 20000 --factor 33 --dtype %s --seconds 0.001 --json",
             ranks, dtype);
    cr_assert_eq(output_of(command, text, sizeof text), 0, "%s", text);
    const char *const ops[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all",
                               "reduce",     "gather",     "scatter",        "barrier",   "send_recv"};
    int rows = 0;
    for (int i = 0; i < (ranks > 1 ? 10 : 9); i++) {
        for (int k = 0; k < (i == 8 ? 1 : 3); k++, rows++) {
            char *line = strsep(&rest, "\n");
            cr_assert(line && *line, "after %d rows", rows);
            bench_row row = parse_row(line);
            check_row(&row, ranks, dtype);
            cr_assert_str_eq(row.op, ops[i], "row %d", rows);
        }
    }
    cr_assert_str_eq(rest, "");
}

Test(bench, rows_of_one_rank, .timeout = 120, .init = need_bench) {
    check_all(1, "float32");
}

Test(bench, rows_of_two_ranks, .timeout = 120, .init = need_bench) {
    check_all(2, "float32");
    check_all(2, "complex64");
}

Test(bench, rows_of_more_ranks_than_divide_anything, .timeout = 120, .init = need_bench) {
    check_all(3, "bfloat16");
    check_all(3, "float16");
    check_all(4, "uint8");
}

Test(bench, table_has_one_heading, .timeout = 120, .init = need_bench) {
    char text[4096];
    const char *command = BENCH " collectives --min-bytes 4 --max-bytes 64 --seconds 0.001";
    cr_assert_eq(output_of(command, text, sizeof text), 0, "%s", text);
    cr_assert_eq(strncmp(text, "bench ", 6), 0, "%s", text);
    size_t width = strcspn(text, "\n");
    int lines = 0;
    for (char *line = text; *line; line += width + 1, lines++) cr_assert_eq(strcspn(line, "\n"), width, "%s", text);
    cr_assert_eq(lines, 4);
}

/* --- linear and mlp ----------------------------------------------------------------------------------------------- */

/* The value behind "name": in a line of JSON; a text with its quotes. Failure when there is none. */
static const char *field(const char *line, const char *name) {
    char key[64];
    int length = snprintf(key, sizeof key, "\"%s\": ", name);
    const char *at = strstr(line, key);
    cr_assert_not_null(at, "no %s in '%s'", name, line);
    return at + length;
}

static double number(const char *line, const char *name) {
    const char *text = field(line, name);
    char *end = NULL;
    double value = strtod(text, &end);
    cr_assert(end != text && (*end == ',' || *end == '}') && isfinite(value), "%s in '%s'", name, line);
    return value;
}

static void expect_text(const char *line, const char *name, const char *value) {
    const char *text = field(line, name);
    size_t n = strlen(value);
    cr_expect(text[0] == '"' && strncmp(text + 1, value, n) == 0 && text[n + 1] == '"', "%s is not %s in '%s'", name,
              value, line);
}

static double balanced(double n, int ranks) {
    return floor((n + ranks - 1) / ranks);
}

/* What holds for every row: figures that follow from others, and steps that take no memory. */
static void check_layers_row(const char *line, int ranks, double flops) {
    cr_assert(line[0] == '{' && line[strlen(line) - 1] == '}', "'%s'", line);
    double forward = number(line, "forward_ms"), backward = number(line, "backward_ms"), both = forward + backward;
    double products = number(line, "gemm_only_ms");
    cr_expect(forward > 0 && backward > 0 && products > 0, "'%s'", line);
    cr_expect_lt(fabs(number(line, "efficiency") - products / both), 1e-4 * products / both, "'%s'", line);
    cr_expect_lt(fabs(number(line, "gflops_per_rank") - flops / both * 1e-6), 1e-4 * flops / both * 1e-6, "'%s'", line);
    cr_expect_geq(number(line, "steps"), 5);
    cr_expect_eq(number(line, "ranks"), ranks);
    cr_expect_eq(number(line, "allocations"), 0, "'%s'", line);
    bool alone = ranks == 1;
    expect_text(line, "backend", alone ? "self" : "local");
    cr_expect_geq(number(line, "comm_ms"), 0);
    cr_expect_geq(number(line, "step_ms"), 0.5 * both);
    cr_expect_gt(number(line, "peak_bytes_per_rank"), 2 * number(line, "weight_bytes_per_rank"), "and its gradient");
}

static int run_layers(const char *arguments, int ranks, char *text, size_t size) {
    char command[512];
    snprintf(command, sizeof command, "'" TSHARD_BIN_DIR "/tshard-run' -n %d --no-prefix " BENCH " %s --seconds 0.001",
             ranks, arguments);
    return output_of(command, text, size);
}

/* 13 outputs or inputs over several ranks: each rank holds its part of the balanced split, all together one weight. */
static void check_linear(int ranks, const char *dtype, int element) {
    enum { BATCH = 5, IN = 7, OUT = 13 };
    const char *const shards[] = {"column", "row", "dense"};
    const double parts[3][2] = {{balanced(OUT, ranks), IN}, {OUT, balanced(IN, ranks)}, {OUT, IN}};
    /* An all-reduce sends 2 T (p - 1) / p: of dx for column, of y for row. */
    const double elements[3] = {BATCH * IN, BATCH * OUT, 0};
    char text[8192], arguments[256], *rest = text;
    snprintf(arguments, sizeof arguments, "linear --batch 5 --in 7 --out 13 --shard all --dtype %s --json", dtype);
    cr_assert_eq(run_layers(arguments, ranks, text, sizeof text), 0, "%s", text);
    int n = 0;
    for (char *line; (line = strsep(&rest, "\n")) && *line; n++) {
        cr_assert_lt(n, 3, "'%s'", line);
        expect_text(line, "bench", "linear");
        expect_text(line, "shard", shards[n]);
        expect_text(line, "dtype", dtype);
        cr_expect(number(line, "batch") == BATCH && number(line, "in") == IN && number(line, "out") == OUT);
        check_layers_row(line, ranks, 6 * BATCH * parts[n][0] * parts[n][1]);
        cr_expect_eq(number(line, "weight_bytes_per_rank"), element * parts[n][0] * parts[n][1], "'%s'", line);
        cr_expect_eq(number(line, "weight_bytes_total"), element * OUT * IN * (n == 2 ? ranks : 1), "'%s'", line);
        double sent = 2.0 * element * elements[n] * (ranks - 1) / ranks;
        cr_expect_leq(fabs(number(line, "comm_bytes") - sent), 1, "%g bytes wanted in '%s'", sent, line);
    }
    cr_assert_eq(n, 3);
}

Test(bench, linear_of_one_rank, .timeout = 120, .init = need_bench) {
    check_linear(1, "float32", 4);
}

Test(bench, linear_of_more_ranks_than_divide_anything, .timeout = 120, .init = need_bench) {
    check_linear(2, "float64", 8);
    check_linear(4, "float32", 4);
}

Test(bench, mlp_rows, .timeout = 120, .init = need_bench) {
    for (int ranks = 1; ranks <= 4; ranks += 3) {
        char text[8192];
        const char *arguments = "mlp --batch 6 --hidden 10 --ffn 13 --json";
        double ffn = balanced(13, ranks);
        cr_assert_eq(run_layers(arguments, ranks, text, sizeof text), 0, "%s", text);
        text[strcspn(text, "\n")] = '\0';
        expect_text(text, "bench", "mlp");
        expect_text(text, "shard", "column, row");
        cr_expect(number(text, "batch") == 6 && number(text, "hidden") == 10 && number(text, "ffn") == 13);
        check_layers_row(text, ranks, 2 * 6 * 6 * 10 * ffn);
        cr_expect_eq(number(text, "weight_bytes_per_rank"), 2 * 4 * 10 * ffn, "'%s'", text);
        cr_expect_eq(number(text, "weight_bytes_total"), 2 * 4 * 10 * 13, "'%s'", text);
        double sent = 2 * 2.0 * 4 * 6 * 10 * (ranks - 1) / ranks; /* one all-reduce forward, one backward */
        cr_expect_leq(fabs(number(text, "comm_bytes") - sent), 2, "%g bytes wanted in '%s'", sent, text);
    }
}

/* A sum for each of 3 weights and 3 biases, one for all, and as many as there are buckets. */
Test(bench, data_parallel_rows, .timeout = 120, .init = need_bench) {
    const char *const sums[] = {"none", "one by one in backward", "one, after backward", "beside backward"};
    const double calls[] = {0, 6, 1, 3};
    char text[8192], *rest = text;
    /* A bucket holds a weight and a bias; so does the first, which is no larger than the rest. */
    const char *arguments = "data_parallel --batch 6 --width 10 --layers 3 --bucket 600 --json";
    cr_assert_eq(run_layers(arguments, 2, text, sizeof text), 0, "%s", text);
    for (int i = 0; i < 4; i++) {
        const char *line = strsep(&rest, "\n");
        cr_assert_not_null(line);
        expect_text(line, "sums", sums[i]);
        cr_expect_eq(number(line, "calls"), calls[i], "'%s'", line);
        cr_expect_eq(number(line, "bucket_bytes"), i == 3 ? 600 : 0, "'%s'", line);
        cr_expect(number(line, "step_ms") > 0 && number(line, "over_none") > 0, "'%s'", line);
    }
    cr_expect_str_empty(rest);
}

/* Two lines of heading say what it is and where; every row is as wide as the columns' names. */
Test(bench, redistribute_rows, .timeout = 120, .init = need_bench) {
    const char *const changes[] = {"S0 -> S1", "S0 -> R", "(S0,S1) -> (S1,S0)"};
    for (int ranks = 2; ranks <= 4; ranks++) {
        char text[8192], *rest = text;
        cr_assert_eq(run_layers("redistribute --bytes 96K --json", ranks, text, sizeof text), 0, "%s", text);
        for (int i = 0; i < (ranks % 2 ? 2 : 3); i++) {
            const char *line = strsep(&rest, "\n");
            cr_assert_not_null(line);
            expect_text(line, "change", changes[i]);
            cr_expect(number(line, "wrong") == 0 && number(line, "ranks") == ranks, "'%s'", line);
            cr_expect(number(line, "bytes") == 98304 && fabs(number(line, "moved_by_must") - 1) < 1e-3, "'%s'", line);
            cr_expect(number(line, "time_ms") > 0 && number(line, "memcpy_ms") > 0, "'%s'", line);
        }
        cr_expect(strstr(rest, "\"plan\": \"8x8x16 (S0,S0,S0) -> (R,R,R)\"}"), "'%s'", rest);
    }
}

Test(bench, layers_for_people, .timeout = 120, .init = need_bench) {
    char text[8192], *rest = text;
    cr_assert_eq(run_layers("linear --batch 4 --in 8 --out 8", 2, text, sizeof text), 0, "%s", text);
    cr_expect(strstr(text, "linear: y = x W^T + b, batch 4, in 8, out 8, float32\n2 ranks (local), "), "%s", text);
    const char *const wanted[] = {"", "sharding", "column", "row", "dense"};
    char *line = strstr(text, "\n\n");
    cr_assert_not_null(line);
    rest = line + 2;
    size_t width = strcspn(rest, "\n");
    for (int i = 0; i < 5; i++) {
        line = strsep(&rest, "\n");
        cr_assert_not_null(line);
        cr_expect(strncmp(line, wanted[i], strlen(wanted[i])) == 0, "'%s'", line);
        cr_expect_eq(strlen(line), width, "'%s'", line);
    }
    cr_expect_str_empty(rest);
}

Test(bench, pictures, .timeout = 120, .init = need_bench) {
    if (system("command -v gnuplot >/dev/null") != 0) cr_skip_test("gnuplot is not installed");
    const char *const commands[] = {"linear --batch 4 --in 8 --out 8", "mlp --batch 4 --hidden 8 --ffn 8",
                                    "collectives --max-bytes 64", "data_parallel --batch 4 --width 8"};
    const char *const words[] = {"efficiency", "matrix products alone", "all_reduce", "beside backward"};
    for (int i = 0; i < 4; i++) {
        char path[] = "/tmp/tshard-bench-XXXXXX", text[8192], arguments[256];
        static char svg[1 << 18];
        int fd = mkstemp(path);
        cr_assert_geq(fd, 0);
        close(fd);
        snprintf(arguments, sizeof arguments, "%s --plot %s", commands[i], path);
        cr_expect_eq(run_layers(arguments, 2, text, sizeof text), 0, "%s", text);
        FILE *file = fopen(path, "r");
        cr_assert_not_null(file);
        size_t n = fread(svg, 1, sizeof svg - 1, file);
        svg[n] = '\0';
        fclose(file);
        unlink(path);
        cr_expect(strstr(svg, "<svg") && strstr(svg, words[i]) && strstr(svg, "</svg>"), "%s: %s", commands[i], text);
    }
}

Test(bench, wrong_use, .timeout = 120, .init = need_bench) {
    const struct {
        const char *command, *words;
    } cases[] = {
        {BENCH " what", "unknown command 'what'"},
        {BENCH " checkpoint --rounds 101", "--rounds wants at most 100"},
        {BENCH " collectives --op swap", "--op wants one of all_reduce|all_gather|"},
        {BENCH " collectives --op send_recv", "send_recv wants 2 ranks or more"},
        {BENCH " collectives --min-bytes 4X", "--min-bytes wants bytes, like 4, 16K or 64M, at most 1024T, not '4X'"},
        {BENCH " collectives --max-bytes 99999999999G", "--max-bytes wants bytes"},
        {BENCH " collectives --factor 1", "--factor must be 2 or more"},
        {BENCH " collectives --seconds 0", "--seconds wants seconds, more than 0 and at most 1000000, not '0'"},
        {BENCH " collectives --dtype", "--dtype wants a value"},
        {BENCH " collectives all", "collectives takes only options, not 'all'"},
        {BENCH " data_parallel --layers 65", "--layers wants at most 64"},
        {BENCH " linear --shard both", "--shard wants one of column|row|dense|all, not 'both'"},
        {BENCH " linear --dtype int32", "--dtype wants one of float32|float64|bfloat16|float16, not 'int32'"},
        {BENCH " mlp --ffn 0", "--ffn wants a whole number from 1 to 1000000, not '0'"},
        {BENCH " collectives --plot /nowhere/x.svg", "--plot: cannot write '/nowhere/x.svg': No such file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[4096];
        cr_expect_eq(output_of(cases[i].command, text, sizeof text), 2, "%s: %s", cases[i].command, text);
        cr_expect(strstr(text, cases[i].words), "%s: %s", cases[i].command, text);
    }
}

Test(bench, kernels, .timeout = 120) {
    static const char *const names[] = {"copy",          "gelu",          "bias_grad", "layer_norm", "layer_norm_bwd",
                                        "cross_entropy", "cross_ent_bwd", "adamw",     "embedding",  "embedding_grad"};
    char text[8192], *rest = text;
    int n = 0;
    cr_assert_eq(
        run_layers("kernels --rows 64 --cols 48 --tokens 31 --classes 100 --vocabulary 9 --seconds 0.01 --json", 1,
                   text, sizeof text),
        0, "%s", text);
    for (char *line; (line = strsep(&rest, "\n")) && *line; n++) {
        cr_assert_lt(n, 10, "'%s'", line);
        expect_text(line, "kernel", names[n]);
        cr_expect(number(line, "ms") > 0 && number(line, "gb_per_s") > 0, "'%s'", line);
        /* 31 draws of 9 ids have all of them: 31 rows are read, 9 are read and written. */
        if (n == 9) cr_expect_eq(number(line, "bytes"), (31 + 2 * 9) * 48 * 4, "'%s'", line);
    }
    cr_assert_eq(n, 10);
}

Test(bench, checkpoint, .timeout = 120) {
    static const char *const names[] = {
        "cp", "save", "load", "load: bytes read", "step", "step beside a save", "save in the background: copy"};
    char text[8192], *rest = text;
    int n = 0;
    cr_assert_eq(run_layers("checkpoint --bytes 8M --rounds 2 --batch 2 --folder /tmp --json", 2, text, sizeof text), 0,
                 "%s", text);
    for (char *line; (line = strsep(&rest, "\n")) && *line; n++) {
        cr_assert_lt(n, 7, "'%s'", line);
        expect_text(line, "what", names[n]);
        cr_expect_gt(number(line, "ms"), 0, "'%s'", line);
        if (n == 1 || n == 2) cr_expect_lt(number(line, "memory_mib"), 128, "'%s'", line);
        if (n == 3) cr_expect(number(line, "ratio") >= 1 && number(line, "ratio") < 1.05, "'%s'", line);
    }
    cr_assert_eq(n, 7);
}

/* The file has rates of everything, which the launcher's plan reads; the first rank alone writes it. */
Test(bench, calibrate_writes_a_machine_file, .timeout = 300, .init = tshi_test_enter, .fini = tshi_test_leave) {
    static char text[262144], complaints[65536];
    const char *const words[] = {"\"format\": \"tshard machine\"",
                                 "\"ranks\": 2",
                                 "\"call_us\": ",
                                 "\"products\": [\n    {\"form\"",
                                 "\"dtype\": \"bfloat16\"",
                                 "\"attention\": [\n    {\"form\"",
                                 "{\"kind\": \"all_reduce\", \"ranks\": 2, "};
    need_bench();
    char command[512];
    snprintf(command, sizeof command,
             "'" TSHARD_BIN_DIR "/tshard-run' -n 2 --no-prefix " BENCH " calibrate --largest 32 --seconds 0.001 2> %s",
             tshi_test_path("stderr"));
    int code = output_of(command, text, sizeof text);
    snprintf(command, sizeof command, "cat %s", tshi_test_path("stderr"));
    output_of(command, complaints, sizeof complaints);
    cr_assert_eq(code, 0, "code %d, stderr:\n%s\nstdout:\n%s", code, complaints, text);
    cr_assert_eq(text[0], '{');
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        cr_assert_not_null(strstr(text, words[i]), "%s", words[i]);
}
