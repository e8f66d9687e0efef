/* The data of a collective, by MPI's own calls. Those take ints: what does not fit goes in several steps, where need be
 * one owner of a part after another. */
#include "dist/backends/mpi/mpi.h"

#include <string.h>

#define TAG_MOVE 1

static int64_t chunks(const tshi_mpi *mpi, int64_t n) {
    return n / mpi->chunk + (n % mpi->chunk != 0);
}

static int64_t sum_of(const int64_t *counts, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += counts[i];
    return sum;
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
        int64_t sum = sum_of(mg->matrix + (size_t)i * (size_t)p, p);
        if (sum > most) most = sum;
    }
    return most;
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

/* Chunk `step` of one owner's part after another. */
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

/* With the rank `distance` further on and the one as far back. */
static int64_t steps_at(const tsh_group *group, int distance) {
    const tshi_mpi *mpi = tshi_mpi_of(group->world);
    const tshi_call *call = &tshi_mpi_group_of(group)->op.call;
    int64_t sends = chunks(mpi, call->in_counts[(group->rank + distance) % group->size]);
    int64_t receives = chunks(mpi, call->out_counts[(group->rank + group->size - distance) % group->size]);
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
        op->whole = sum_of(call->counts, group->size);
    op->steps = op->whole != 0;
    if (op->whole <= mpi->chunk) return;
    op->steps = 0;
    if (call->op == TSH_COLLECTIVE_ALL_TO_ALL)
        for (int d = 1; d < group->size; d++) op->steps += steps_at(group, d);
    else if (call->counts)
        for (int i = 0; i < group->size; i++) op->steps += chunks(mpi, call->counts[i]);
    else
        op->steps = chunks(mpi, call->count);
}

/* --- one step ----------------------------------------------------------------------------------------------------- */

static char *at(const void *base, int64_t elements, size_t size) {
    return (char *)(uintptr_t)base + (size_t)elements * size;
}

static void to_ints(const int64_t *counts, int n, int *out, int *places) {
    int place = 0;
    for (int i = 0; i < n; i++) {
        out[i] = (int)counts[i];
        places[i] = place;
        place += out[i];
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

static int broadcast(tsh_group *group, void *data, int n, int root, bool wait) {
    tshi_mpi_group *mg = group->state;
    MPI_Datatype type = tshi_mpi_type(mg->op.call.dtype);
    if (wait) return MPI_Bcast(data, n, type, root, mg->comm);
    return MPI_Ibcast(data, n, type, root, mg->comm, mg->op.request);
}

/* A chunk of a call on whole buffers. */
static int step_whole(tsh_group *group, int64_t step, bool wait) {
    tshi_mpi_group *mg = group->state;
    const tshi_mpi *mpi = tshi_mpi_of(group->world);
    const tshi_call *call = &mg->op.call;
    int64_t start = step * mpi->chunk, rest = call->count - start;
    int n = (int)(rest < mpi->chunk ? rest : mpi->chunk);
    size_t size = tsh_dtype_size(call->dtype);
    void *out = call->out ? at(call->out, start, size) : NULL;
    if (call->op == TSH_COLLECTIVE_BROADCAST) return broadcast(group, out, n, call->root, wait);
    const void *in = mg->op.scratch ? mg->op.scratch : call->in;
    if (call->op == TSH_COLLECTIVE_REDUCE) return reduce_to(group, at(in, start, size), out, n, call->root, wait);
    MPI_Datatype type = tshi_mpi_type(call->dtype);
    MPI_Op op = tshi_mpi_reduction(mpi, call->dtype, call->reduce);
    if (wait) return MPI_Allreduce(MPI_IN_PLACE, out, n, type, op, mg->comm);
    return MPI_Iallreduce(MPI_IN_PLACE, out, n, type, op, mg->comm, mg->op.request);
}

static int step_all_gather(tsh_group *group, bool wait) {
    tshi_mpi_group *mg = group->state;
    const tshi_call *call = &mg->op.call;
    int p = group->size, *counts = mg->counts, *places = counts + p, n = (int)call->counts[group->rank];
    MPI_Datatype type = tshi_mpi_type(call->dtype);
    int64_t start = sum_of(call->counts, group->rank);
    const void *in = call->in == at(call->out, start, tsh_dtype_size(call->dtype)) ? MPI_IN_PLACE : call->in;
    if (mg->op.regular && wait) return MPI_Allgather(in, n, type, call->out, n, type, mg->comm);
    if (mg->op.regular) return MPI_Iallgather(in, n, type, call->out, n, type, mg->comm, mg->op.request);
    to_ints(call->counts, p, counts, places);
    if (wait) return MPI_Allgatherv(in, n, type, call->out, counts, places, type, mg->comm);
    return MPI_Iallgatherv(in, n, type, call->out, counts, places, type, mg->comm, mg->op.request);
}

static int step_reduce_scatter(tsh_group *group, bool wait) {
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

static int step_all_to_all(tsh_group *group, bool wait) {
    tshi_mpi_group *mg = group->state;
    const tshi_call *call = &mg->op.call;
    int p = group->size, n = (int)call->in_counts[0];
    int *ins = mg->counts, *in_places = ins + p, *outs = ins + 2 * p, *out_places = ins + 3 * p;
    MPI_Datatype type = tshi_mpi_type(call->dtype);
    if (mg->op.regular && wait) return MPI_Alltoall(call->in, n, type, call->out, n, type, mg->comm);
    if (mg->op.regular) return MPI_Ialltoall(call->in, n, type, call->out, n, type, mg->comm, mg->op.request);
    to_ints(call->in_counts, p, ins, in_places);
    to_ints(call->out_counts, p, outs, out_places);
    if (wait) return MPI_Alltoallv(call->in, ins, in_places, type, call->out, outs, out_places, type, mg->comm);
    return MPI_Ialltoallv(call->in, ins, in_places, type, call->out, outs, out_places, type, mg->comm, mg->op.request);
}

static int step_rooted(tsh_group *group, bool wait) {
    tshi_mpi_group *mg = group->state;
    const tshi_call *call = &mg->op.call;
    int p = group->size, *counts = mg->counts, *places = counts + p, n = (int)call->counts[group->rank];
    int root = call->root;
    MPI_Datatype type = tshi_mpi_type(call->dtype);
    size_t before = (size_t)sum_of(call->counts, group->rank) * tsh_dtype_size(call->dtype);
    bool gather = call->op == TSH_COLLECTIVE_GATHER, mine = group->rank == root;
    const char *whole = gather ? call->out : call->in, *part = gather ? call->in : call->out;
    bool in_place = mine && part == whole + before;
    to_ints(call->counts, p, counts, places);
    if (gather) {
        const void *in = in_place ? MPI_IN_PLACE : call->in;
        if (wait) return MPI_Gatherv(in, n, type, call->out, counts, places, type, root, mg->comm);
        return MPI_Igatherv(in, n, type, call->out, counts, places, type, root, mg->comm, mg->op.request);
    }
    void *out = in_place ? MPI_IN_PLACE : call->out;
    if (wait) return MPI_Scatterv(call->in, counts, places, type, out, n, type, root, mg->comm);
    return MPI_Iscatterv(call->in, counts, places, type, out, n, type, root, mg->comm, mg->op.request);
}

/* --- steps of calls that are too large ---------------------------------------------------------------------------- */

static int exchange(tsh_group *group, void *to, int receive, int from_rank, const void *from, int send, int to_rank,
                    bool wait) {
    tshi_mpi_group *mg = group->state;
    tshi_mpi_op *op = &mg->op;
    MPI_Datatype type = tshi_mpi_type(op->call.dtype);
    int error = MPI_SUCCESS;
    op->requests = 0;
    if (receive) error = MPI_Irecv(to, receive, type, from_rank, TAG_MOVE, mg->comm, &op->request[op->requests++]);
    if (send && error == MPI_SUCCESS) {
        error = MPI_Isend(from, send, type, to_rank, TAG_MOVE, mg->comm, &op->request[op->requests++]);
    }
    if (!wait || error != MPI_SUCCESS) return error;
    return MPI_Waitall(op->requests, op->request, MPI_STATUSES_IGNORE);
}

static int step_pair(tsh_group *group, int64_t step, bool wait) {
    const tshi_mpi *mpi = tshi_mpi_of(group->world);
    const tshi_call *call = &tshi_mpi_group_of(group)->op.call;
    int p = group->size, d = 1;
    for (; step >= steps_at(group, d); d++) step -= steps_at(group, d);
    int to = (group->rank + d) % p, from = (group->rank + p - d) % p;
    int64_t before = step * mpi->chunk, sends = call->in_counts[to] - before,
            receives = call->out_counts[from] - before;
    size_t size = tsh_dtype_size(call->dtype);
    if (sends > mpi->chunk) sends = mpi->chunk;
    if (receives > mpi->chunk) receives = mpi->chunk;
    return exchange(group, at(call->out, sum_of(call->out_counts, from) + before, size),
                    receives > 0 ? (int)receives : 0, from, at(call->in, sum_of(call->in_counts, to) + before, size),
                    sends > 0 ? (int)sends : 0, to, wait);
}

static int step_piece(tsh_group *group, int64_t step, bool wait) {
    tshi_mpi_group *mg = group->state;
    const tshi_call *call = &mg->op.call;
    size_t size = tsh_dtype_size(call->dtype);
    piece p = piece_of(group, step);
    bool root = group->rank == call->root, owner = group->rank == p.owner;
    switch (call->op) {
    case TSH_COLLECTIVE_ALL_GATHER: return broadcast(group, at(call->out, p.start, size), p.n, p.owner, wait);
    case TSH_COLLECTIVE_REDUCE_SCATTER:
        return reduce_to(group, at(call->in, p.start, size), owner ? at(mg->op.out, p.before, size) : NULL, p.n,
                         p.owner, wait);
    case TSH_COLLECTIVE_GATHER:
        if (root == owner) return exchange(group, NULL, 0, 0, NULL, 0, 0, wait);
        if (root) return exchange(group, at(call->out, p.start, size), p.n, p.owner, NULL, 0, 0, wait);
        return exchange(group, NULL, 0, 0, at(call->in, p.before, size), p.n, call->root, wait);
    default:
        if (root == owner) return exchange(group, NULL, 0, 0, NULL, 0, 0, wait);
        if (root) return exchange(group, NULL, 0, 0, at(call->in, p.start, size), p.n, p.owner, wait);
        return exchange(group, at(call->out, p.before, size), p.n, call->root, NULL, 0, 0, wait);
    }
}

int tshi_move_step(tsh_group *group, int64_t step, bool wait) {
    tshi_mpi_group *mg = group->state;
    if (tshi_pair_takes(group)) return tshi_pair_step(group, step);
    bool one = mg->op.whole <= tshi_mpi_of(group->world)->chunk;
    mg->op.requests = wait ? 0 : 1;
    switch (mg->op.call.op) {
    case TSH_COLLECTIVE_ALL_TO_ALL: return one ? step_all_to_all(group, wait) : step_pair(group, step, wait);
    case TSH_COLLECTIVE_ALL_GATHER: return one ? step_all_gather(group, wait) : step_piece(group, step, wait);
    case TSH_COLLECTIVE_REDUCE_SCATTER: return one ? step_reduce_scatter(group, wait) : step_piece(group, step, wait);
    case TSH_COLLECTIVE_GATHER:
    case TSH_COLLECTIVE_SCATTER: return one ? step_rooted(group, wait) : step_piece(group, step, wait);
    default: return step_whole(group, step, wait);
    }
}

/* --- before and after --------------------------------------------------------------------------------------------- */

static void copy_own(const tsh_group *group, const void *from, void *to, int64_t n) {
    size_t bytes = (size_t)n * tsh_dtype_size(tshi_mpi_group_of(group)->op.call.dtype);
    if (bytes && from != to) group->world->host->ops->copy.within(group->world->host, bytes, from, to);
}

/* What a rank gives to itself when the pieces go to others alone. */
void tshi_move_begin(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    const tshi_call *call = &mg->op.call;
    int rank = group->rank;
    if (call->counts) mg->op.regular = all_equal(call->counts, group->size);
    count_steps(group, &mg->op);
    if (call->op == TSH_COLLECTIVE_REDUCE && mg->op.scratch) copy_own(group, call->in, mg->op.scratch, call->count);
    if (mg->op.whole <= tshi_mpi_of(group->world)->chunk) return;
    if (call->op == TSH_COLLECTIVE_ALL_TO_ALL) {
        size_t size = tsh_dtype_size(call->dtype);
        copy_own(group, at(call->in, sum_of(call->in_counts, rank), size),
                 at(call->out, sum_of(call->out_counts, rank), size), call->in_counts[rank]);
        return;
    }
    if (!call->counts) return;
    size_t before = (size_t)sum_of(call->counts, rank) * tsh_dtype_size(call->dtype);
    bool root = call->root == rank;
    if (call->op == TSH_COLLECTIVE_ALL_GATHER || (call->op == TSH_COLLECTIVE_GATHER && root)) {
        copy_own(group, call->in, (char *)call->out + before, call->counts[rank]);
    } else if (call->op == TSH_COLLECTIVE_SCATTER && root) {
        copy_own(group, (const char *)call->in + before, call->out, call->counts[rank]);
    }
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
