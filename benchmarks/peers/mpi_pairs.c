/* tshard's collectives over MPI and the same calls of MPI, by turns, in one process and on the same memory:
 *   TSHARD_INIT=mpi:// mpirun -n 2 mpi_pairs OP [MIN_BYTES [MAX_BYTES [FACTOR [SECONDS]]]]
 * As mpi_collectives, whose defaults hold; a line has the times of both, and the medians over neighbouring repetitions
 * of MPI's time to tshard's and of what tshard takes longer. */
#include "mpi_calls.h"

#include "tshard/tshard.h"

typedef struct pair {
    tsh_group *group;
    tsh_tensor *in, *out;
} pair;

static int call_tshard(const trial *t) {
    const pair *p = t->user;
    switch (t->op) {
    case ALL_REDUCE: return (int)tsh_all_reduce(p->group, p->out, TSH_REDUCE_SUM);
    case ALL_GATHER: return (int)tsh_all_gather_into_tensor(p->group, p->in, p->out, NULL);
    case REDUCE_SCATTER: return (int)tsh_reduce_scatter_tensor(p->group, p->in, p->out, NULL, TSH_REDUCE_SUM);
    case BROADCAST: return (int)tsh_broadcast(p->group, p->out, 0);
    default: return (int)tsh_all_to_all(p->group, p->in, NULL, p->out, NULL);
    }
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static tsh_status create(const pair *p, int64_t n, tsh_tensor **out) {
    const tsh_tensor_config config = {.dtype = TSH_FLOAT32, .ndim = 1, .shape = {n}, .layout = {TSH_LOCAL}};
    return tsh_tensor_create(tsh_group_mesh(p->group), &config, out);
}

static void release(pair *p) {
    tsh_tensor_release(p->in);
    tsh_tensor_release(p->out);
    p->in = p->out = NULL;
}

static tsh_status prepare(trial *t, pair *p) {
    tsh_status status = create(p, in_count(t), &p->in);
    if (status == TSH_OK) status = create(p, out_count(t), &p->out);
    if (status != TSH_OK) return status;
    t->in = tsh_tensor_data(p->in);
    t->out = tsh_tensor_data(p->out);
    return TSH_OK;
}

/* --- measuring ---------------------------------------------------------------------------------------------------- */

enum { TSHARD, MPI, SIDES };

typedef struct times {
    int n;
    double sample[SIDES][TIMING_MAX_SAMPLES];
} times;

/* By turns, so that other work of the machine disturbs both equally; the order changes each round. */
static int measure(trial *t, int (*const call[SIDES])(const trial *t), double seconds, times *out) {
    const timing_ranks ranks = {meet, slowest, NULL};
    double one_call[SIDES] = {0};
    for (int side = 0; side < SIDES; side++) {
        t->call = call[side];
        int error = timing_warm_up(&ranks, repeat, t, seconds, &one_call[side]);
        if (error) return error;
    }
    double longer = one_call[one_call[MPI] > one_call[TSHARD]];
    int calls = timing_clamp(timing_repetition_seconds / longer + 1.0, 1, TIMING_MOST_CALLS);
    out->n = timing_clamp(seconds / (calls * longer), TIMING_FEWEST, TIMING_MAX_SAMPLES);
    for (int i = 0; i < 2 * out->n; i++) {
        int side = (i + i / 2) % 2;
        double *sample = &out->sample[side][i / 2];
        t->call = call[side];
        int error = timing_calls(&ranks, repeat, t, calls, sample);
        if (error) return error;
        *sample /= calls;
    }
    int error = slowest(NULL, out->sample[TSHARD], out->n);
    return error ? error : slowest(NULL, out->sample[MPI], out->n);
}

static int run_size(trial *t, double seconds) {
    static times all;
    int (*const call[SIDES])(const trial *t) = {call_tshard, call_mpi};
    double ratio[TIMING_MAX_SAMPLES], more[TIMING_MAX_SAMPLES];
    long wrong = 0;
    for (int side = 0; side < SIDES; side++) {
        t->call = call[side];
        wrong += check(t);
    }
    clear(t);
    int error = measure(t, call, seconds, &all);
    if (error || t->rank != 0) return error;
    for (int i = 0; i < all.n; i++) {
        ratio[i] = all.sample[MPI][i] / all.sample[TSHARD][i];
        more[i] = all.sample[TSHARD][i] - all.sample[MPI][i];
    }
    printf("{\"bench\": \"pairs\", \"op\": \"%s\", \"ranks\": %d, \"dtype\": \"float32\", \"bytes\": %.0f, "
           "\"tshard_us\": %.6g, \"mpi_us\": %.6g, \"ratio\": %.6g, \"more_us\": %.6g, \"wrong\": %ld}\n",
           names[t->op], t->ranks, (double)t->count * sizeof(float), 1e6 * timing_median(all.sample[TSHARD], all.n),
           1e6 * timing_median(all.sample[MPI], all.n), timing_median(ratio, all.n), 1e6 * timing_median(more, all.n),
           wrong);
    fflush(stdout);
    return 0;
}

static int run_op(trial *t, const long *numbers, double seconds) {
    int code = 0;
    for (long bytes = numbers[0]; bytes <= numbers[1] && code == 0; bytes *= numbers[2]) {
        t->count = count_of(t, bytes);
        code = (int)prepare(t, t->user);
        if (code == 0) code = run_size(t, seconds);
        release(t->user);
    }
    if (code) fprintf(stderr, "mpi_pairs: %d: %s\n", code, tsh_error_message());
    return code;
}

static int run(int argc, char **argv) {
    long numbers[3];
    double seconds;
    int op = read_arguments(argc, argv, numbers, &seconds);
    tsh_world *world = NULL;
    if (op < 0 || (op >= SEND_RECV && op < OPS)) {
        fputs("usage: mpi_pairs OP [MIN_BYTES [MAX_BYTES [FACTOR [SECONDS]]]]\n", stderr);
        return 2;
    }
    if (tsh_world_init(NULL, &world) != TSH_OK) {
        fprintf(stderr, "mpi_pairs: %s\n", tsh_error_message());
        return 1;
    }
    pair p = {.group = tsh_world_group(world)};
    trial t = {.rank = tsh_world_rank(world), .ranks = tsh_world_size(world), .user = &p};
    int code = strcmp(tsh_group_backend(p.group), "mpi") != 0;
    if (code) fputs("mpi_pairs: this is for the mpi backend: TSHARD_INIT=mpi://\n", stderr);
    for (t.op = 0; t.op < SEND_RECV && code == 0; t.op++) {
        if (op == OPS || op == t.op) code = run_op(&t, numbers, seconds);
    }
    tsh_world_destroy(world);
    return code != 0;
}

int main(int argc, char **argv) {
    output_begin();
    return output_end("mpi_pairs", run(argc, argv));
}
