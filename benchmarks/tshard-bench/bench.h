/* Functions that the sub-commands of tshard-bench share. Each command is a row of the table in main.c, and a file. */
#ifndef BENCH_H
#define BENCH_H

#include "tshard/dist.h"

#include <stdio.h>

/* --- commands ----------------------------------------------------------------------------------------------------- */

typedef struct bench_command {
    const char *name;
    const char *help; /* one line */
    /* argv[0] is the command's name. Returns the exit code: 0, 1 after a failure, 2 after a usage error. */
    int (*run)(int argc, char **argv);
} bench_command;

int bench_attention(int argc, char **argv);
int bench_calibrate(int argc, char **argv);
int bench_checkpoint(int argc, char **argv);
int bench_collectives(int argc, char **argv);
int bench_data_parallel(int argc, char **argv);
int bench_dispatch(int argc, char **argv);
int bench_gpt(int argc, char **argv);
int bench_kernels(int argc, char **argv);
int bench_linear(int argc, char **argv);
int bench_mlp(int argc, char **argv);
int bench_redistribute(int argc, char **argv);
int bench_support(int argc, char **argv);

/* True when the launcher's environment says that this is rank 0; for use before there is a world. */
bool bench_is_first_rank(void);
/* Prints "tshard-bench: ..." to stderr on the first rank alone, for messages that are the same on every rank. */
void bench_say(const char *format, ...) TSH_PRINTF(1, 2);
/* The last library error to stderr, from this rank. Returns the exit code 1. */
int bench_failed(const tsh_world *world, const char *what);

/* --- options.c ---------------------------------------------------------------------------------------------------- */

typedef enum bench_option_kind {
    BENCH_SIZE,    /* int64_t: bytes, 4, 16K, 64M, 1G (powers of 1024) */
    BENCH_COUNT,   /* int64_t: a whole number, 1 to 1000000 */
    BENCH_SECONDS, /* double */
    BENCH_CHOICE,  /* int: index into choices */
    BENCH_FLAG,    /* bool: given or not */
    BENCH_TEXT     /* const char * */
} bench_option_kind;

typedef struct bench_option {
    const char *name; /* without the dashes */
    bench_option_kind kind;
    const char *fallback; /* as a user would write it; NULL: *out does not change */
    const char *help;
    void *out;
    const char *const *choices; /* ends with NULL */
} bench_option;

/* Options of every command. */
typedef struct bench_common {
    bool json;
    const char *plot; /* file to draw into, or NULL */
    double seconds;   /* time to spend on one measurement */
} bench_common;

/* Read the command line into the options' `out` and into common. Returns -1 when the command may run, or the exit code
 * (after --help or a usage error). */
int bench_options_parse(const char *command, const char *purpose, const bench_option *options, int n,
                        bench_common *common, int argc, char **argv);
/* TSH_FLOAT32 ..., in the order of tsh_dtype, ended by NULL: for BENCH_CHOICE. */
const char *const *bench_dtype_names(void);

/* --- measure.c ---------------------------------------------------------------------------------------------------- */

double bench_now(void); /* seconds, monotonic */

/* Times work that all ranks of a world do together. */
typedef struct bench_meter bench_meter;
tsh_status bench_meter_create(tsh_world *world, double seconds, bench_meter **out);
void bench_meter_destroy(bench_meter *meter);

/* `calls` times the thing to be measured; returns a tsh_status. Collective, the same on every rank. */
typedef int bench_work(void *context, int calls);

/* Seconds of one call, by timing.h's method: the median over repetitions of the slowest rank's time. The same result
 * on every rank. */
tsh_status bench_measure(bench_meter *meter, bench_work *work, void *context, double *seconds);

#define BENCH_MAX_SAMPLES 1024
/* The building block, for commands that take their own times: of n samples (same n everywhere, at most
 * BENCH_MAX_SAMPLES) the median of the slowest rank's. Collective. Overwrites samples with the slowest rank's. */
tsh_status bench_slowest_median(bench_meter *meter, double *samples, int n, double *median);
/* The sum of a number over all ranks. Collective. */
tsh_status bench_sum(bench_meter *meter, double value, double *sum);
tsh_status bench_max(bench_meter *meter, double value, double *max);

/* dispatch.c: seconds of a node, forward and backward, in a chain of sums of so many elements. Collective. */
tsh_status bench_node_seconds(tsh_world *world, double seconds, int64_t nodes, int64_t elements, double *node);

/* --- report.c ----------------------------------------------------------------------------------------------------- */

typedef enum bench_field_kind { BENCH_FIELD_TEXT, BENCH_FIELD_COUNT, BENCH_FIELD_REAL } bench_field_kind;

typedef struct bench_field {
    const char *name;
    bench_field_kind kind;
    const char *text;
    int64_t count;
    double real;
} bench_field;

#define BENCH_TEXT_FIELD(name, value)  ((bench_field){(name), BENCH_FIELD_TEXT, (value), 0, 0.0})
#define BENCH_COUNT_FIELD(name, value) ((bench_field){(name), BENCH_FIELD_COUNT, NULL, (value), 0.0})
#define BENCH_REAL_FIELD(name, value)  ((bench_field){(name), BENCH_FIELD_REAL, NULL, 0, (value)})

/* Rows as they come: an aligned table, or one JSON object a line. Silent on all ranks but the first. Zero it, and set
 * json and silent. */
typedef struct bench_report {
    bool json, silent;
    bool headed; /* the table has its heading */
} bench_report;

void bench_report_row(bench_report *report, const bench_field *fields, int n);
/* About four digits that count, without exponents. */
void bench_print_real(int width, double value);

/* --- plot.c ------------------------------------------------------------------------------------------------------- */

typedef struct bench_series {
    const char *name;
    int n;
    const double *x, *y;
} bench_series;

typedef struct bench_plot {
    const char *title, *x_label, *y_label;
    bool bytes_x; /* x are bytes, on a logarithmic axis */
    bool log_y;
} bench_plot;

/* To be asked before measuring. False, having said why. */
bool bench_plot_can_write(const char *path);
/* An SVG by gnuplot. False, having said why, when that does not work. */
bool bench_plot_write(const char *path, const bench_plot *plot, const bench_series *series, int n);

/* Groups of bars, as many in each (at most 8). Titles may have several lines. */
typedef struct bench_bars {
    const char *title, *y_label;
    int groups;
    const char *const *group; /* [groups] */
    int bars;
    const char *const *bar; /* [bars] */
    const bool *stacked;    /* [bars]: it stands on the bar before it */
    const double *value;    /* [groups][bars] */
} bench_bars;
bool bench_bars_write(const char *path, const bench_bars *bars);

#endif
