/* Timing that is the same on every rank: the method of timing.h on a world. */
#include "bench.h"
#include "timing.h"

struct bench_meter {
    tsh_group *group;
    double seconds;
    timing_ranks ranks;
    tsh_tensor *one, *many; /* shared by the ranks: a number; BENCH_MAX_SAMPLES numbers */
};

double bench_now(void) {
    return timing_now();
}

/* --- what timing.h asks of the ranks ------------------------------------------------------------------------------ */

static int meet(void *user) {
    bench_meter *meter = user;
    return (int)tsh_barrier(meter->group);
}

static int slowest(void *user, double *samples, int n) {
    bench_meter *meter = user;
    tsh_tensor *tensor = n == 1 ? meter->one : meter->many;
    int64_t length = tsh_tensor_local_numel(tensor);
    double shared[BENCH_MAX_SAMPLES] = {0};
    memcpy(shared, samples, (size_t)n * sizeof *samples);
    tsh_status status = tsh_tensor_write(tensor, shared, length);
    if (status == TSH_OK) status = tsh_all_reduce(meter->group, tensor, TSH_REDUCE_MAX);
    if (status == TSH_OK) status = tsh_tensor_read(tensor, shared, length);
    if (status == TSH_OK) memcpy(samples, shared, (size_t)n * sizeof *samples);
    return (int)status;
}

/* --- the meter ---------------------------------------------------------------------------------------------------- */

static tsh_status create_shared(tsh_world *world, int64_t n, tsh_tensor **out) {
    const tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {n}, .layout = {TSH_LOCAL}};
    return tsh_tensor_create(tsh_world_mesh(world), &config, out);
}

tsh_status bench_meter_create(tsh_world *world, double seconds, bench_meter **out) {
    *out = NULL;
    bench_meter *meter = calloc(1, sizeof *meter);
    if (!meter) return TSH_ERR_MEMORY;
    meter->group = tsh_world_group(world);
    meter->seconds = seconds;
    meter->ranks = (timing_ranks){meet, slowest, meter};
    tsh_status status = create_shared(world, 1, &meter->one);
    if (status == TSH_OK) status = create_shared(world, BENCH_MAX_SAMPLES, &meter->many);
    if (status != TSH_OK) {
        bench_meter_destroy(meter);
        return status;
    }
    *out = meter;
    return TSH_OK;
}

void bench_meter_destroy(bench_meter *meter) {
    if (!meter) return;
    tsh_tensor_release(meter->one);
    tsh_tensor_release(meter->many);
    free(meter);
}

tsh_status bench_measure(bench_meter *meter, bench_work *work, void *context, double *seconds) {
    return (tsh_status)timing_measure(&meter->ranks, work, context, meter->seconds, seconds);
}

tsh_status bench_slowest_median(bench_meter *meter, double *samples, int n, double *median) {
    tsh_status status = (tsh_status)slowest(meter, samples, n);
    if (status == TSH_OK) *median = timing_median(samples, n);
    return status;
}

static tsh_status reduce_one(bench_meter *meter, double value, tsh_reduce_op op, double *out) {
    tsh_status status = tsh_tensor_write(meter->one, &value, 1);
    if (status == TSH_OK) status = tsh_all_reduce(meter->group, meter->one, op);
    return status == TSH_OK ? tsh_tensor_read(meter->one, out, 1) : status;
}

tsh_status bench_sum(bench_meter *meter, double value, double *sum) {
    return reduce_one(meter, value, TSH_REDUCE_SUM, sum);
}

tsh_status bench_max(bench_meter *meter, double value, double *max) {
    return reduce_one(meter, value, TSH_REDUCE_MAX, max);
}
