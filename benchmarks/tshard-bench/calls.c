/* Every collective that is measured; those with a root have it at rank 0. */
#include "calls.h"
#include "values.h"

/* --- the calls ---------------------------------------------------------------------------------------------------- */

static tsh_status call_all_reduce(bench_trial *trial) {
    return tsh_all_reduce(trial->group, trial->out, TSH_REDUCE_SUM);
}

static tsh_status call_all_gather(bench_trial *trial) {
    return tsh_all_gather_into_tensor(trial->group, trial->in, trial->out, NULL);
}

static tsh_status call_reduce_scatter(bench_trial *trial) {
    return tsh_reduce_scatter_tensor(trial->group, trial->in, trial->out, NULL, TSH_REDUCE_SUM);
}

static tsh_status call_broadcast(bench_trial *trial) {
    return tsh_broadcast(trial->group, trial->out, 0);
}

static tsh_status call_all_to_all(bench_trial *trial) {
    return tsh_all_to_all(trial->group, trial->in, NULL, trial->out, NULL);
}

static tsh_status call_reduce(bench_trial *trial) {
    return tsh_reduce_to_root(trial->group, trial->out, TSH_REDUCE_SUM, 0);
}

static tsh_status call_gather(bench_trial *trial) {
    return tsh_gather_to_root(trial->group, trial->in, trial->out, NULL, 0);
}

static tsh_status call_scatter(bench_trial *trial) {
    return tsh_scatter_from_root(trial->group, trial->in, trial->out, NULL, 0);
}

static tsh_status call_barrier(bench_trial *trial) {
    return tsh_barrier(trial->group);
}

/* There and back between ranks 0 and 1. */
static tsh_status call_send_recv(bench_trial *trial) {
    tsh_status status;
    if (trial->rank > 1) return TSH_OK;
    if (trial->rank == 0) {
        status = tsh_send(trial->group, trial->in, 1);
        return status == TSH_OK ? tsh_recv(trial->group, trial->out, 1, NULL) : status;
    }
    status = tsh_recv(trial->group, trial->out, 0, NULL);
    return status == TSH_OK ? tsh_send(trial->group, trial->out, 0) : status;
}

/* --- what comes out ----------------------------------------------------------------------------------------------- */

static int64_t part_start(const bench_trial *trial, int rank) {
    int64_t start;
    tsh_split(trial->count, trial->ranks, rank, &start, NULL);
    return start * values_components(trial->dtype);
}

static int expect_sum(const bench_trial *trial, int64_t i) {
    return values_sum(trial->ranks, i);
}

static int expect_gathered(const bench_trial *trial, int64_t i) {
    int owner = trial->ranks - 1;
    while (part_start(trial, owner) > i) owner--;
    return values_at(owner, trial->ranks, i - part_start(trial, owner));
}

static int expect_part_of_sum(const bench_trial *trial, int64_t i) {
    return values_sum(trial->ranks, part_start(trial, trial->rank) + i);
}

static int expect_root(const bench_trial *trial, int64_t i) {
    return values_at(0, trial->ranks, i);
}

static int expect_exchanged(const bench_trial *trial, int64_t i) {
    int64_t part = trial->count / trial->ranks * values_components(trial->dtype);
    return values_at((int)(i / part), trial->ranks, trial->rank * part + i % part);
}

static int expect_sum_at_root(const bench_trial *trial, int64_t i) {
    return trial->rank == 0 ? values_sum(trial->ranks, i) : values_at(trial->rank, trial->ranks, i);
}

static int expect_part_of_root(const bench_trial *trial, int64_t i) {
    return values_at(0, trial->ranks, part_start(trial, trial->rank) + i);
}

/* --- bandwidths --------------------------------------------------------------------------------------------------- */

static double one(double ranks) {
    (void)ranks;
    return 1.0;
}

static double others(double ranks) {
    return (ranks - 1) / ranks;
}

static double twice_others(double ranks) {
    return 2 * (ranks - 1) / ranks;
}

/* A round trip carries its message twice, one way after the other. */
static double two(double ranks) {
    (void)ranks;
    return 2.0;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

const bench_collective bench_calls[BENCH_CALLS] = {
    {.name = "all_reduce",
     .in_place = true,
     .call = call_all_reduce,
     .expected = expect_sum,
     .bus_factor = twice_others},
    {.name = "all_gather",
     .in = BENCH_PART,
     .call = call_all_gather,
     .expected = expect_gathered,
     .bus_factor = others},
    {.name = "reduce_scatter",
     .out = BENCH_PART,
     .call = call_reduce_scatter,
     .expected = expect_part_of_sum,
     .bus_factor = others},
    {.name = "broadcast", .in_place = true, .call = call_broadcast, .expected = expect_root, .bus_factor = one},
    {.name = "all_to_all",
     .whole_parts = true,
     .call = call_all_to_all,
     .expected = expect_exchanged,
     .bus_factor = others},
    {.name = "reduce", .in_place = true, .call = call_reduce, .expected = expect_sum_at_root, .bus_factor = one},
    {.name = "gather",
     .in = BENCH_PART,
     .out = BENCH_WHOLE_AT_ROOT,
     .whole_parts = true,
     .call = call_gather,
     .expected = expect_gathered,
     .bus_factor = others},
    {.name = "scatter",
     .in = BENCH_WHOLE_AT_ROOT,
     .out = BENCH_PART,
     .whole_parts = true,
     .call = call_scatter,
     .expected = expect_part_of_root,
     .bus_factor = others},
    {.name = "barrier", .sizeless = true, .call = call_barrier, .expected = expect_root, .bus_factor = one},
    {.name = "send_recv",
     .in = BENCH_WHOLE_IN_PAIR,
     .out = BENCH_WHOLE_IN_PAIR,
     .least_ranks = 2,
     .call = call_send_recv,
     .expected = expect_root,
     .bus_factor = two},
};

/* --- buffers ------------------------------------------------------------------------------------------------------ */

static tsh_status create_buffer(const bench_trial *trial, bench_extent extent, tsh_tensor **out) {
    tsh_tensor_config config = {.dtype = trial->dtype, .ndim = 1, .shape = {trial->count}, .layout = {TSH_LOCAL}};
    if (extent == BENCH_WHOLE_AT_ROOT && trial->rank > 0) return TSH_OK;
    if (extent == BENCH_WHOLE_IN_PAIR && trial->rank > 1) config.shape[0] = 0;
    if (extent == BENCH_PART) tsh_split(trial->count, trial->ranks, trial->rank, NULL, &config.shape[0]);
    return tsh_tensor_create(tsh_group_mesh(trial->group), &config, out);
}

void bench_trial_release(bench_trial *trial) {
    tsh_tensor_release(trial->in);
    tsh_tensor_release(trial->out);
    trial->in = trial->out = NULL;
}

tsh_status bench_trial_create(const bench_collective *collective, bench_trial *trial) {
    tsh_status status = create_buffer(trial, collective->out, &trial->out);
    if (status != TSH_OK) return status;
    if (!collective->in_place) return create_buffer(trial, collective->in, &trial->in);
    trial->in = tsh_tensor_retain(trial->out);
    return TSH_OK;
}

int64_t bench_trial_count(const bench_collective *collective, const tsh_group *group, tsh_dtype dtype, int64_t bytes) {
    int64_t count = bytes / (int64_t)tsh_dtype_size(dtype), ranks = tsh_group_size(group);
    if (collective->sizeless) return 0;
    if (collective->whole_parts) count = count / ranks * ranks;
    int64_t least = collective->whole_parts ? ranks : 1;
    return count > least ? count : least;
}
