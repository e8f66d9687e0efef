/* tshard-bench collectives: time, bandwidth and correctness, as nccl-tests define them. */
#include "bench.h"
#include "calls.h"
#include "values.h"

#include <stdlib.h>
#include <string.h>

static const char *const op_names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all",
                                       "reduce",     "gather",     "scatter",        "barrier",   "send_recv",
                                       "all",        NULL};

/* --- one size of one collective ----------------------------------------------------------------------------------- */

static int64_t elements(const tsh_tensor *tensor) {
    return tensor ? tsh_tensor_local_numel(tensor) : 0;
}

static void fill(const bench_trial *trial) {
    tsh_dtype component = values_component(trial->dtype);
    int64_t n = elements(trial->in) * values_components(trial->dtype);
    void *data = n ? tsh_tensor_data(trial->in) : NULL;
    for (int64_t i = 0; i < n; i++) values_store(component, data, i, values_at(trial->rank, trial->ranks, i));
}

/* Wrong elements on all ranks. */
static tsh_status check(const bench_collective *collective, bench_trial *trial, bench_meter *meter, int64_t *wrong) {
    tsh_dtype component = values_component(trial->dtype);
    int components = values_components(trial->dtype);
    double all = 0.0;
    fill(trial);
    tsh_status status = collective->call(trial);
    if (status != TSH_OK) return status;
    int64_t n = elements(trial->out), here = 0;
    const void *data = n ? tsh_tensor_data(trial->out) : NULL;
    for (int64_t i = 0; i < n; i++) {
        bool right = true;
        for (int64_t j = components * i; j < components * (i + 1); j++) {
            right = right && values_equal(component, data, j, collective->expected(trial, j));
        }
        here += !right;
    }
    status = bench_sum(meter, (double)here, &all);
    *wrong = (int64_t)all;
    return status;
}

typedef struct repeated {
    const bench_collective *collective;
    bench_trial *trial;
} repeated;

static int repeat(void *context, int calls) {
    repeated *work = context;
    for (int i = 0; i < calls; i++) {
        tsh_status status = work->collective->call(work->trial);
        if (status != TSH_OK) return (int)status;
    }
    return (int)TSH_OK;
}

/* In-place sums of zeros stay zeros in every repetition. */
static tsh_status measure(const bench_collective *collective, bench_trial *trial, bench_meter *meter, double *seconds) {
    repeated work = {collective, trial};
    tsh_status status = trial->in ? tsh_tensor_fill(trial->in, 0.0) : TSH_OK;
    return status == TSH_OK ? bench_measure(meter, repeat, &work, seconds) : status;
}

/* --- all sizes ---------------------------------------------------------------------------------------------------- */

typedef struct bench_sweep {
    int64_t min_bytes, max_bytes, factor, members;
    int op, dtype;
    tsh_group *group;
    bench_meter *meter;
    bench_report report;
    int64_t wrong; /* in all */
    int points;
    double x[64], y[64]; /* the rows of the present collective, for the plot */
} bench_sweep;

static void report(bench_sweep *sweep, const bench_collective *collective, const bench_trial *trial, double seconds,
                   int64_t wrong) {
    int64_t bytes = trial->count * (int64_t)tsh_dtype_size(trial->dtype);
    double algbw = (double)bytes / seconds * 1e-9, busbw = algbw * collective->bus_factor(trial->ranks);
    const bench_field fields[] = {
        BENCH_TEXT_FIELD("bench", "collectives"),
        BENCH_TEXT_FIELD("op", collective->name),
        BENCH_TEXT_FIELD("backend", tsh_group_backend(trial->group)),
        BENCH_COUNT_FIELD("ranks", trial->ranks),
        BENCH_TEXT_FIELD("dtype", tsh_dtype_name(trial->dtype)),
        BENCH_COUNT_FIELD("bytes", bytes),
        BENCH_REAL_FIELD("time_us", 1e6 * seconds),
        BENCH_REAL_FIELD("algbw_gbps", algbw),
        BENCH_REAL_FIELD("busbw_gbps", busbw),
        BENCH_COUNT_FIELD("wrong", wrong),
    };
    bench_report_row(&sweep->report, fields, (int)(sizeof fields / sizeof *fields));
    sweep->wrong += wrong;
    sweep->x[sweep->points] = (double)bytes;
    sweep->y[sweep->points++] = algbw;
}

static tsh_status run_size(bench_sweep *sweep, const bench_collective *collective, int64_t count) {
    bench_trial trial = {.group = sweep->group,
                         .rank = tsh_group_rank(sweep->group),
                         .ranks = tsh_group_size(sweep->group),
                         .dtype = (tsh_dtype)sweep->dtype,
                         .count = count};
    int64_t wrong = 0;
    double seconds = 0.0;
    tsh_status status = bench_trial_create(collective, &trial);
    if (status == TSH_OK) status = check(collective, &trial, sweep->meter, &wrong);
    if (status == TSH_OK) status = measure(collective, &trial, sweep->meter, &seconds);
    if (status == TSH_OK) report(sweep, collective, &trial, seconds, wrong);
    bench_trial_release(&trial);
    return status;
}

static tsh_status run_sizes(bench_sweep *sweep, const bench_collective *collective) {
    int64_t before = -1;
    tsh_status status = TSH_OK;
    sweep->points = 0;
    for (int64_t bytes = sweep->min_bytes; bytes <= sweep->max_bytes && status == TSH_OK; bytes *= sweep->factor) {
        int64_t count = bench_trial_count(collective, sweep->group, (tsh_dtype)sweep->dtype, bytes);
        if (count != before) status = run_size(sweep, collective, count);
        before = count;
        if (bytes > INT64_MAX / sweep->factor) break;
    }
    return status;
}

/* --- the command -------------------------------------------------------------------------------------------------- */

static bool draw(const bench_sweep *sweep, const char *path, const double (*x)[64], const double (*y)[64],
                 const int *points, int n, const int *chosen) {
    char title[128];
    bench_series series[BENCH_CALLS];
    for (int i = 0; i < n; i++) {
        series[i] = (bench_series){bench_calls[chosen[i]].name, points[i], x[chosen[i]], y[chosen[i]]};
    }
    snprintf(title, sizeof title, "Collectives, %s, %d ranks (%s)", tsh_dtype_name((tsh_dtype)sweep->dtype),
             tsh_group_size(sweep->group), tsh_group_backend(sweep->group));
    const bench_plot plot = {title, "size", "algorithm bandwidth (size / time), GB/s", true, true};
    return bench_plot_write(path, &plot, series, n);
}

/* Every chosen collective, then the picture. */
static int run_all(bench_sweep *sweep, const char *plot) {
    double x[BENCH_CALLS][64], y[BENCH_CALLS][64];
    int points[BENCH_CALLS], chosen[BENCH_CALLS], n = 0, ranks = tsh_group_size(sweep->group);
    for (int i = 0; i < BENCH_CALLS; i++) {
        if (sweep->op != i && (sweep->op != BENCH_CALLS || bench_calls[i].least_ranks > ranks)) continue;
        if (run_sizes(sweep, &bench_calls[i]) != TSH_OK) {
            return bench_failed(tsh_group_world(sweep->group), bench_calls[i].name);
        }
        if (bench_calls[i].sizeless) continue; /* no curve */
        memcpy(x[i], sweep->x, sizeof sweep->x);
        memcpy(y[i], sweep->y, sizeof sweep->y);
        points[n] = sweep->points;
        chosen[n++] = i;
    }
    bool drawn = sweep->report.silent || !plot ||
                 draw(sweep, plot, (const double(*)[64])x, (const double(*)[64])y, points, n, chosen);
    return drawn && sweep->wrong == 0 ? 0 : 1;
}

int bench_collectives(int argc, char **argv) {
    bench_sweep sweep = {0};
    bench_common common;
    const bench_option options[] = {
        {"op", BENCH_CHOICE, "all_reduce", "what to measure", &sweep.op, op_names},
        {"min-bytes", BENCH_SIZE, "4", "first size", &sweep.min_bytes, NULL},
        {"max-bytes", BENCH_SIZE, "64M", "last size", &sweep.max_bytes, NULL},
        {"factor", BENCH_COUNT, "4", "each size over the one before, 2 or more", &sweep.factor, NULL},
        {"dtype", BENCH_CHOICE, "float32", "dtype of the elements", &sweep.dtype, bench_dtype_names()},
        {"members", BENCH_COUNT, "1", "ranks in each group of neighbours; 1: one group of all ranks", &sweep.members,
         NULL},
    };
    int code = bench_options_parse("collectives",
                                   "Measures collectives over the ranks. Sizes and bandwidths are defined as in\n"
                                   "nccl-tests: the size is that of the larger buffer of a rank, algbw is size /\n"
                                   "time, and busbw is what each rank's link would have to carry; a GB is 10^9\n"
                                   "bytes. send_recv is a round trip between ranks 0 and 1, with the busbw of one\n"
                                   "way. The time is the median over repetitions of the slowest rank's time. wrong\n"
                                   "counts the elements with wrong values; if there are any, the exit code is 1.",
                                   options, (int)(sizeof options / sizeof *options), &common, argc, argv);
    if (code >= 0) return code;
    if (sweep.factor < 2 || sweep.min_bytes > sweep.max_bytes) {
        bench_say("collectives: --factor must be 2 or more, and --min-bytes no more than --max-bytes");
        return 2;
    }
    tsh_world *world = NULL;
    if (tsh_world_init(NULL, &world) != TSH_OK) return bench_failed(NULL, "world_init");
    tsh_mesh *mesh = NULL;
    char axes[64];
    snprintf(axes, sizeof axes, "others=%d,members=%d", tsh_world_size(world) / (int)sweep.members, (int)sweep.members);
    if (sweep.members > 1 && tsh_mesh_create(world, axes, &mesh) != TSH_OK) return bench_failed(world, "mesh_create");
    sweep.group = mesh ? tsh_mesh_group(mesh, "members") : tsh_world_group(world);
    if (sweep.op < BENCH_CALLS && bench_calls[sweep.op].least_ranks > tsh_world_size(world)) {
        bench_say("collectives: %s wants %d ranks or more", op_names[sweep.op], bench_calls[sweep.op].least_ranks);
        tsh_world_destroy(world);
        return 2;
    }
    sweep.report = (bench_report){.json = common.json, .silent = tsh_world_rank(world) != 0};
    if (bench_meter_create(world, common.seconds, &sweep.meter) == TSH_OK)
        code = run_all(&sweep, common.plot);
    else
        code = bench_failed(world, "meter");
    bench_meter_destroy(sweep.meter);
    tsh_mesh_destroy(mesh);
    tsh_world_destroy(world);
    return code;
}
