/* What the ranks' collectives cost: a latency and a bandwidth for each kind, fitted to several sizes. */
#include "calibrate.h"
#include "calls.h"
#include "common/step_time.h"

#include <math.h>
#include <string.h>

enum { SIZES = 5 };

static const int64_t sizes[SIZES] = {1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 23};

typedef struct repeated {
    const bench_collective *collective;
    bench_trial trial;
} repeated;

static int run_calls(void *context, int calls) {
    repeated *r = context;
    tsh_status status = TSH_OK;
    for (int i = 0; i < calls && status == TSH_OK; i++) status = r->collective->call(&r->trial);
    return (int)status;
}

static tsh_status measure_size(calibration *c, repeated *r, int64_t bytes, double *moved, double *seconds) {
    tsh_group *group = tsh_world_group(c->world);
    bench_trial *trial = &r->trial;
    *trial = (bench_trial){.group = group, .rank = tsh_group_rank(group), .ranks = tsh_group_size(group)};
    trial->count = bench_trial_count(r->collective, group, trial->dtype, bytes);
    *moved = (double)trial->count * (double)tsh_dtype_size(trial->dtype);
    tsh_status status = bench_trial_create(r->collective, trial);
    if (status == TSH_OK && trial->in) status = tsh_tensor_fill(trial->in, 0);
    if (status == TSH_OK) status = calibrate_measure(c, run_calls, r, seconds);
    bench_trial_release(trial);
    return status;
}

/* seconds = latency + slope bytes, with the least sum of squares of the errors over the seconds. */
static void fit(const double *bytes, const double *seconds, double *latency, double *slope) {
    double w = 0, x = 0, y = 0, xx = 0, xy = 0;
    for (int i = 0; i < SIZES; i++) {
        double weight = 1 / (seconds[i] * seconds[i]);
        w += weight;
        x += weight * bytes[i];
        y += weight * seconds[i];
        xx += weight * bytes[i] * bytes[i];
        xy += weight * bytes[i] * seconds[i];
    }
    double spread = w * xx - x * x;
    *slope = spread > 0 ? (w * xy - x * y) / spread : 0;
    *latency = fmax(0, (y - *slope * x) / w);
    if (*slope <= 0) *slope = xy / xx; /* noise: all of it is bandwidth */
}

static tsh_status measure_kind(calibration *c, const bench_collective *collective) {
    repeated r = {.collective = collective};
    double bytes[SIZES], seconds[SIZES], latency = 0, slope = 0;
    tsh_status status = TSH_OK;
    int ranks = tsh_world_size(c->world), used = collective->sizeless ? 1 : SIZES;
    for (int i = 0; i < used && status == TSH_OK; i++) {
        status = measure_size(c, &r, sizes[i], &bytes[i], &seconds[i]);
    }
    machine_network *n = status == TSH_OK ? machine_add_network(c->m) : NULL;
    if (!n) return status == TSH_OK ? TSH_ERR_MEMORY : status;
    if (used == SIZES)
        fit(bytes, seconds, &latency, &slope);
    else
        latency = seconds[0];
    snprintf(n->kind, sizeof n->kind, "%s", collective->name);
    n->ranks = ranks;
    n->latency_us = 1e6 * latency / step_rounds(collective->name, ranks);
    n->bus_gb_per_s = slope > 0 ? 1e-9 * step_bus_factor(collective->name, ranks) / slope : 1;
    n->overlaps = tsh_device_kind_of(c->device) != TSH_CPU; /* the ranks' own cores move the data of CPUs */
    return TSH_OK;
}

tsh_status calibrate_networks(calibration *c) {
    tsh_status status = TSH_OK;
    c->waits = true;
    for (int i = 0; i < BENCH_CALLS && status == TSH_OK && tsh_world_size(c->world) > 1; i++) {
        status = measure_kind(c, &bench_calls[i]);
    }
    return status;
}
