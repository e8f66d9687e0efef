/* The data of a collective, by MPI's own calls. MPI counts elements in ints: larger calls go in several steps, each of
 * them a chunk of the whole, of one owner's part, or of what two ranks exchange. */
#include "dist/backends/mpi/mpi.h"

#define TAG_MOVE 1

static int64_t chunks(const tshi_mpi *mpi, int64_t n) {
    return n / mpi->chunk + (n % mpi->chunk != 0);
}

static bool all_equal(const int64_t *counts, int n) {
    for (int i = 1; i < n; i++) {
        if (counts[i] != counts[0]) return false;
    }
    return true;
}

/* Elements that pass through one rank of an all_to_all, at most: the same number on all ranks. */
static int64_t most_exchanged(const tsh_group *group) {
    const tshi_mpi_group *mg = group->state;
    int p = group->size;
    if (mg->op.regular) return mg->op.call.in_counts[0] > INT64_MAX / p ? INT64_MAX : mg->op.call.in_counts[0] * p;
    int64_t most = 0;
    for (int i = 0; i < 2 * p; i++) {
        int64_t sum = tshi_sum(mg->matrix + (size_t)i * (size_t)p, p);
        if (sum > most) most = sum;
    }
    return most;
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

/* Chunk `step` of a reduce_scatter, one owner's part after another. */
typedef struct piece {
    int owner;
    int64_t start;  /* in the whole */
    int64_t before; /* in the part */
    int n;
} piece;

static piece piece_of(const tsh_group *group, int64_t step) {
    const tshi_mpi *mpi = tshi_mpi_of(group->world);
    const int64_t *counts = tshi_mpi_group_of(group)->op.call.counts;
    piece p = {0};
    for (; step >= chunks(mpi, counts[p.owner]); p.owner++) {
        step -= chunks(mpi, counts[p.owner]);
        p.start += counts[p.owner];
    }
    p.before = step * mpi->chunk;
    int64_t rest = counts[p.owner] - p.before;
    p.start += p.before;
    p.n = (int)(rest < mpi->chunk ? rest : mpi->chunk);
    return p;
}

/* Steps of an exchange with the rank `distance` further on and the one as far back. */
static int64_t steps_at(const tsh_group *group, int distance) {
    const tshi_mpi *mpi = tshi_mpi_of(group->world);
    const tshi_call *call = &tshi_mpi_group_of(group)->op.call;
    int p = group->size;
    int64_t sends = chunks(mpi, tshi_span_to(group, call, (group->rank + distance) % p).count);
    int64_t receives = chunks(mpi, tshi_span_from(group, call, (group->rank + p - distance) % p).count);
    return sends > receives ? sends : receives;
}

/* Sets whole and steps. */
static void count_steps(const tsh_group *group, tshi_mpi_op *op) {
    const tshi_mpi *mpi = tshi_mpi_of(group->world);
    const tshi_call *call = &op->call;
    op->whole = call->count;
    if (call->op == TSH_COLLECTIVE_ALL_TO_ALL)
        op->whole = most_exchanged(group);
    else if (call->counts)
        op->whole = tshi_sum(call->counts, group->size);
    op->steps = op->whole != 0;
    if (op->whole <= mpi->chunk) return;
    op->steps = 0;
    if (call->op == TSH_COLLECTIVE_REDUCE_SCATTER)
        for (int i = 0; i < group->size; i++) op->steps += chunks(mpi, call->counts[i]);
    else if (call->counts || call->in_counts)
        for (int d = 1; d < group->size; d++) op->steps += steps_at(group, d);
    else
        op->steps = chunks(mpi, call->count);
}

/* --- one step ----------------------------------------------------------------------------------------------------- */

static void to_ints(const int64_t *counts, int n, int *out, int *starts) {
    int start = 0;
    for (int i = 0; i < n; i++) {
        out[i] = (int)counts[i];
        starts[i] = start;
        start += out[i];
    }
}

static int reduce_to(tsh_group *group, const void *in, void *out, int n, int root, bool wait) {
    tshi_mpi_group *mg = group->state;
    MPI_Datatype type = tshi_mpi_type(mg->op.call.dtype);
    MPI_Op op = tshi_mpi_reduction(tshi_mpi_of(group->world), mg->op.call.dtype, mg->op.call.reduce);
    if (root == group->rank && in == out) in = MPI_IN_PLACE;
    if (wait) return MPI_Reduce(in, out, n, type, op, root, mg->comm);
    return MPI_Ireduce(in, out, n, type, op, root, mg->comm, mg->op.request);
}

/* A chunk of a call on whole buffers. */
static int step_whole(tsh_group *group, int64_t step, bool wait) {
    tshi_mpi_group *mg = group->state;
    const tshi_mpi *mpi = tshi_mpi_of(group->world);
    const tshi_call *call = &mg->op.call;
    int64_t start = step * mpi->chunk, rest = call->count - start;
    int n = (int)(rest < mpi->chunk ? rest : mpi->chunk);
    size_t size = tsh_dtype_size(call->dtype);
    void *out = tshi_at(call->out, start, size);
    MPI_Datatype type = tshi_mpi_type(call->dtype);
    if (call->op == TSH_COLLECTIVE_BROADCAST) {
        if (wait) return MPI_Bcast(out, n, type, call->root, mg->comm);
        return MPI_Ibcast(out, n, type, call->root, mg->comm, mg->op.request);
    }
    const void *in = mg->op.scratch ? mg->op.scratch : call->in;
    if (call->op == TSH_COLLECTIVE_REDUCE) return reduce_to(group, tshi_at(in, start, size), out, n, call->root, wait);
    MPI_Op op = tshi_mpi_reduction(mpi, call->dtype, call->reduce);
    if (wait) return MPI_Allreduce(MPI_IN_PLACE, out, n, type, op, mg->comm);
    return MPI_Iallreduce(MPI_IN_PLACE, out, n, type, op, mg->comm, mg->op.request);
}

static int all_gather(tsh_group *group, bool wait) {
    tshi_mpi_group *mg = group->state;
    const tshi_call *call = &mg->op.call;
    int p = group->size, *counts = mg->counts, *starts = counts + p, n = (int)call->counts[group->rank];
    MPI_Datatype type = tshi_mpi_type(call->dtype);
    int64_t start = tshi_sum(call->counts, group->rank);
    const void *in = call->in == tshi_at(call->out, start, tsh_dtype_size(call->dtype)) ? MPI_IN_PLACE : call->in;
    if (mg->op.regular && wait) return MPI_Allgather(in, n, type, call->out, n, type, mg->comm);
    if (mg->op.regular) return MPI_Iallgather(in, n, type, call->out, n, type, mg->comm, mg->op.request);
    to_ints(call->counts, p, counts, starts);
    if (wait) return MPI_Allgatherv(in, n, type, call->out, counts, starts, type, mg->comm);
    return MPI_Iallgatherv(in, n, type, call->out, counts, starts, type, mg->comm, mg->op.request);
}

static int reduce_scatter(tsh_group *group, bool wait) {
    tshi_mpi_group *mg = group->state;
    const tshi_call *call = &mg->op.call;
    int p = group->size, n = (int)call->counts[0];
    MPI_Datatype type = tshi_mpi_type(call->dtype);
    MPI_Op op = tshi_mpi_reduction(tshi_mpi_of(group->world), call->dtype, call->reduce);
    if (mg->op.regular && wait) return MPI_Reduce_scatter_block(call->in, mg->op.out, n, type, op, mg->comm);
    if (mg->op.regular) {
        return MPI_Ireduce_scatter_block(call->in, mg->op.out, n, type, op, mg->comm, mg->op.request);
    }
    to_ints(call->counts, p, mg->counts, mg->counts + p);
    if (wait) return MPI_Reduce_scatter(call->in, mg->op.out, mg->counts, type, op, mg->comm);
    return MPI_Ireduce_scatter(call->in, mg->op.out, mg->counts, type, op, mg->comm, mg->op.request);
}

static int all_to_all(tsh_group *group, bool wait) {
    tshi_mpi_group *mg = group->state;
    const tshi_call *call = &mg->op.call;
    int p = group->size, n = (int)call->in_counts[0];
    int *ins = mg->counts, *in_starts = ins + p, *outs = ins + 2 * p, *out_starts = ins + 3 * p;
    MPI_Datatype type = tshi_mpi_type(call->dtype);
    if (mg->op.regular && wait) return MPI_Alltoall(call->in, n, type, call->out, n, type, mg->comm);
    if (mg->op.regular) return MPI_Ialltoall(call->in, n, type, call->out, n, type, mg->comm, mg->op.request);
    to_ints(call->in_counts, p, ins, in_starts);
    to_ints(call->out_counts, p, outs, out_starts);
    if (wait) return MPI_Alltoallv(call->in, ins, in_starts, type, call->out, outs, out_starts, type, mg->comm);
    return MPI_Ialltoallv(call->in, ins, in_starts, type, call->out, outs, out_starts, type, mg->comm, mg->op.request);
}

/* The parts of gather and scatter for MPI. Whether this rank's part lies where it belongs in the root's whole. */
static bool place_parts(const tsh_group *group, const void *whole, const void *part) {
    const tshi_mpi_group *mg = group->state;
    const tshi_call *call = &mg->op.call;
    to_ints(call->counts, group->size, mg->counts, mg->counts + group->size);
    int64_t before = tshi_sum(call->counts, group->rank);
    return group->rank == call->root && part == tshi_at(whole, before, tsh_dtype_size(call->dtype));
}

static int gather(tsh_group *group, bool wait) {
    tshi_mpi_group *mg = group->state;
    const tshi_call *call = &mg->op.call;
    int *counts = mg->counts, *starts = counts + group->size, n = (int)call->counts[group->rank], root = call->root;
    MPI_Datatype type = tshi_mpi_type(call->dtype);
    const void *in = place_parts(group, call->out, call->in) ? MPI_IN_PLACE : call->in;
    if (wait) return MPI_Gatherv(in, n, type, call->out, counts, starts, type, root, mg->comm);
    return MPI_Igatherv(in, n, type, call->out, counts, starts, type, root, mg->comm, mg->op.request);
}

static int scatter(tsh_group *group, bool wait) {
    tshi_mpi_group *mg = group->state;
    const tshi_call *call = &mg->op.call;
    int *counts = mg->counts, *starts = counts + group->size, n = (int)call->counts[group->rank], root = call->root;
    MPI_Datatype type = tshi_mpi_type(call->dtype);
    void *out = place_parts(group, call->in, call->out) ? MPI_IN_PLACE : call->out;
    if (wait) return MPI_Scatterv(call->in, counts, starts, type, out, n, type, root, mg->comm);
    return MPI_Iscatterv(call->in, counts, starts, type, out, n, type, root, mg->comm, mg->op.request);
}

/* --- steps of calls that are too large ---------------------------------------------------------------------------- */

int tshi_mpi_exchange(tsh_group *group, const void *from, int send, int to_rank, void *to, int receive, int from_rank) {
    tshi_mpi_group *mg = group->state;
    tshi_mpi_op *op = &mg->op;
    MPI_Datatype type = tshi_mpi_type(op->call.dtype);
    int error = MPI_SUCCESS;
    op->requests = 0;
    if (receive) error = MPI_Irecv(to, receive, type, from_rank, TAG_MOVE, mg->comm, &op->request[op->requests++]);
    if (send && error == MPI_SUCCESS) {
        error = MPI_Isend(from, send, type, to_rank, TAG_MOVE, mg->comm, &op->request[op->requests++]);
    }
    return error;
}

/* Elements of a chunk that begins `before` elements into a part of n. */
static int in_chunk(const tshi_mpi *mpi, int64_t n, int64_t before) {
    int64_t rest = n - before;
    return (int)(rest < 0 ? 0 : rest < mpi->chunk ? rest : mpi->chunk);
}

static int step_exchange(tsh_group *group, int64_t step, bool wait) {
    const tshi_mpi *mpi = tshi_mpi_of(group->world);
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    const tshi_call *call = &op->call;
    int p = group->size, d = 1;
    for (; step >= steps_at(group, d); d++) step -= steps_at(group, d);
    int to = (group->rank + d) % p, from = (group->rank + p - d) % p;
    tshi_span out = tshi_span_to(group, call, to), in = tshi_span_from(group, call, from);
    int64_t before = step * mpi->chunk;
    size_t size = tsh_dtype_size(call->dtype);
    int error =
        tshi_mpi_exchange(group, tshi_at(call->in, out.start + before, size), in_chunk(mpi, out.count, before), to,
                          tshi_at(call->out, in.start + before, size), in_chunk(mpi, in.count, before), from);
    if (!wait || error != MPI_SUCCESS) return error;
    return MPI_Waitall(op->requests, op->request, MPI_STATUSES_IGNORE);
}

static int step_piece(tsh_group *group, int64_t step, bool wait) {
    const tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    size_t size = tsh_dtype_size(op->call.dtype);
    piece p = piece_of(group, step);
    void *out = group->rank == p.owner ? tshi_at(op->out, p.before, size) : NULL;
    return reduce_to(group, tshi_at(op->call.in, p.start, size), out, p.n, p.owner, wait);
}

/* How the data of each collective moves: in one step where MPI's ints allow it, else in many. */
typedef struct transport {
    int (*at_once)(tsh_group *group, bool wait);
    int (*step)(tsh_group *group, int64_t step, bool wait);
} transport;

static const transport transports[TSH_COLLECTIVE_COUNT] = {
    [TSH_COLLECTIVE_ALL_REDUCE] = {NULL, step_whole},
    [TSH_COLLECTIVE_ALL_GATHER] = {all_gather, step_exchange},
    [TSH_COLLECTIVE_REDUCE_SCATTER] = {reduce_scatter, step_piece},
    [TSH_COLLECTIVE_BROADCAST] = {NULL, step_whole},
    [TSH_COLLECTIVE_ALL_TO_ALL] = {all_to_all, step_exchange},
    [TSH_COLLECTIVE_REDUCE] = {NULL, step_whole},
    [TSH_COLLECTIVE_GATHER] = {gather, step_exchange},
    [TSH_COLLECTIVE_SCATTER] = {scatter, step_exchange},
};

static bool is_one_step(const tsh_group *group) {
    return tshi_mpi_group_of(group)->op.whole <= tshi_mpi_of(group->world)->chunk;
}

int tshi_move_step(tsh_group *group, int64_t step, bool wait) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    if (tshi_pair_takes(group)) return tshi_pair_step(group, step);
    const transport *t = &transports[op->call.op];
    op->requests = wait ? 0 : 1;
    return t->at_once && is_one_step(group) ? t->at_once(group, wait) : t->step(group, step, wait);
}

/* --- before and after --------------------------------------------------------------------------------------------- */

static void copy_own(const tsh_group *group, const void *from, void *to, int64_t n) {
    size_t bytes = (size_t)n * tsh_dtype_size(tshi_mpi_group_of(group)->op.call.dtype);
    if (bytes && from != to) group->world->host->ops->copy.within(group->world->host, bytes, from, to);
}

void tshi_move_begin(tsh_group *group) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    const tshi_call *call = &op->call;
    if (call->counts) op->regular = all_equal(call->counts, group->size);
    count_steps(group, op);
    if (call->op == TSH_COLLECTIVE_REDUCE && op->scratch) copy_own(group, call->in, op->scratch, call->count);
    if (is_one_step(group) || transports[call->op].step != step_exchange) return;
    /* Steps exchange with other ranks alone. */
    size_t size = tsh_dtype_size(call->dtype);
    tshi_span own = tshi_span_to(group, call, group->rank), to = tshi_span_from(group, call, group->rank);
    copy_own(group, tshi_at(call->in, own.start, size), tshi_at(call->out, to.start, size), own.count);
}

void tshi_move_end(tsh_group *group) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    const tshi_call *call = &op->call;
    if (tshi_pair_takes(group)) {
        tshi_pair_end(group);
        return;
    }
    bool scattered = call->op == TSH_COLLECTIVE_REDUCE_SCATTER;
    int64_t n = scattered ? call->counts[group->rank] : call->count;
    bool here = scattered || call->op == TSH_COLLECTIVE_ALL_REDUCE ||
                (call->op == TSH_COLLECTIVE_REDUCE && call->root == group->rank);
    if (here && call->reduce == TSH_AVG) tshi_mpi_divide(group->world->host, call->dtype, n, group->size, op->out);
    if (scattered && op->scratch) copy_own(group, op->scratch, call->out, n);
}
