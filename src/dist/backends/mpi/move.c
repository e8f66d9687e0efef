/* The data of a collective. MPI counts elements in ints, so that larger calls go in several steps: blocks of the whole,
 * of one owner's part, or of what two ranks exchange.
 *
 * Two ranks exchange their data with messages of MPI's: that takes no longer than its own collectives, a reduce_scatter
 * much less, and no rank is inside a call that blocks. Only MPI's all_reduce is faster. */
#include "dist/backends/mpi/mpi.h"

#define TAG_MOVE 1

/* A pair reduces blocks that stay in a cache, one while the next is under way. */
#define FOLD_BYTES ((size_t)128 << 10)

bool tshi_move_is_pair(const tsh_group *group) {
    return group->size == 2 && tshi_mpi_group_of(group)->op.call.op != TSH_COLLECTIVE_ALL_REDUCE;
}

/* So many elements behind base, which may be NULL. */
static void *at(const void *base, int64_t elements, size_t size) {
    return (void *)((uintptr_t)base + (size_t)elements * size);
}

static int64_t blocks(const tshi_mpi_op *op, int64_t n) {
    return n / op->block + (n % op->block != 0);
}

/* Elements of block `step` of n. */
static int in_block(const tshi_mpi_op *op, int64_t n, int64_t step) {
    int64_t rest = n - step * op->block;
    return (int)(rest < 0 ? 0 : rest < op->block ? rest : op->block);
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

/* --- in one step -------------------------------------------------------------------------------------------------- */

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

static int all_gather(tsh_group *group, bool wait) {
    tshi_mpi_group *mg = group->state;
    const tshi_call *call = &mg->op.call;
    int p = group->size, *counts = mg->counts, *starts = counts + p, n = (int)call->counts[group->rank];
    MPI_Datatype type = tshi_mpi_type(call->dtype);
    int64_t start = tshi_sum(call->counts, group->rank);
    const void *in = call->in == at(call->out, start, tsh_dtype_size(call->dtype)) ? MPI_IN_PLACE : call->in;
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

/* Fills in the parts of gather and scatter for MPI. True where this rank's part lies in its own span of the whole. */
static bool fill_parts(const tsh_group *group, const void *whole, const void *part) {
    const tshi_mpi_group *mg = group->state;
    const tshi_call *call = &mg->op.call;
    to_ints(call->counts, group->size, mg->counts, mg->counts + group->size);
    int64_t before = tshi_sum(call->counts, group->rank);
    return group->rank == call->root && part == at(whole, before, tsh_dtype_size(call->dtype));
}

static int gather(tsh_group *group, bool wait) {
    tshi_mpi_group *mg = group->state;
    const tshi_call *call = &mg->op.call;
    int *counts = mg->counts, *starts = counts + group->size, n = (int)call->counts[group->rank], root = call->root;
    MPI_Datatype type = tshi_mpi_type(call->dtype);
    const void *in = fill_parts(group, call->out, call->in) ? MPI_IN_PLACE : call->in;
    if (wait) return MPI_Gatherv(in, n, type, call->out, counts, starts, type, root, mg->comm);
    return MPI_Igatherv(in, n, type, call->out, counts, starts, type, root, mg->comm, mg->op.request);
}

static int scatter(tsh_group *group, bool wait) {
    tshi_mpi_group *mg = group->state;
    const tshi_call *call = &mg->op.call;
    int *counts = mg->counts, *starts = counts + group->size, n = (int)call->counts[group->rank], root = call->root;
    MPI_Datatype type = tshi_mpi_type(call->dtype);
    void *out = fill_parts(group, call->in, call->out) ? MPI_IN_PLACE : call->out;
    if (wait) return MPI_Scatterv(call->in, counts, starts, type, out, n, type, root, mg->comm);
    return MPI_Iscatterv(call->in, counts, starts, type, out, n, type, root, mg->comm, mg->op.request);
}

/* --- in many steps ------------------------------------------------------------------------------------------------ */

/* A block of a call on whole buffers. */
static int step_whole(tsh_group *group, int64_t step, bool wait) {
    tshi_mpi_group *mg = group->state;
    const tshi_call *call = &mg->op.call;
    int n = in_block(&mg->op, call->count, step);
    int64_t start = step * mg->op.block;
    size_t size = tsh_dtype_size(call->dtype);
    void *out = at(call->out, start, size);
    MPI_Datatype type = tshi_mpi_type(call->dtype);
    if (call->op == TSH_COLLECTIVE_BROADCAST) {
        if (wait) return MPI_Bcast(out, n, type, call->root, mg->comm);
        return MPI_Ibcast(out, n, type, call->root, mg->comm, mg->op.request);
    }
    const void *in = mg->op.scratch ? mg->op.scratch : call->in;
    if (call->op == TSH_COLLECTIVE_REDUCE) return reduce_to(group, at(in, start, size), out, n, call->root, wait);
    MPI_Op op = tshi_mpi_reduction(tshi_mpi_of(group->world), call->dtype, call->reduce);
    if (wait) return MPI_Allreduce(MPI_IN_PLACE, out, n, type, op, mg->comm);
    return MPI_Iallreduce(MPI_IN_PLACE, out, n, type, op, mg->comm, mg->op.request);
}

/* A block of a reduce_scatter, one owner's part after another. */
static int step_part(tsh_group *group, int64_t step, bool wait) {
    const tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    const int64_t *counts = op->call.counts;
    size_t size = tsh_dtype_size(op->call.dtype);
    int owner = 0;
    for (; step >= blocks(op, counts[owner]); owner++) step -= blocks(op, counts[owner]);
    void *out = group->rank == owner ? at(op->out, step * op->block, size) : NULL;
    const void *in = at(op->call.in, tshi_sum(counts, owner) + step * op->block, size);
    return reduce_to(group, in, out, in_block(op, counts[owner], step), owner, wait);
}

/* Steps of the exchange with the rank `distance` further on and the one as far back. */
static int64_t steps_at(const tsh_group *group, int distance) {
    const tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    int p = group->size;
    int64_t sends = tshi_span_to(group, &op->call, (group->rank + distance) % p).count;
    int64_t receives = tshi_span_from(group, &op->call, (group->rank + p - distance) % p).count;
    return blocks(op, sends > receives ? sends : receives);
}

static void *fold_at(const tsh_group *group, int64_t step) {
    return tshi_mpi_group_of(group)->fold + (size_t)(step & 1) * FOLD_BYTES;
}

/* Reduces the block that has come with this rank's own, in the order of the ranks. */
static void fold(const tsh_group *group, int64_t step) {
    const tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    const tshi_call *call = &op->call;
    int me = group->rank;
    size_t size = tsh_dtype_size(call->dtype);
    tshi_span own = tshi_span_to(group, call, me), in = tshi_span_from(group, call, !me);
    int64_t before = step * op->block;
    void *out = at(call->out, in.start + before, size);
    const void *terms[2];
    terms[me] = at(call->in, own.start + before, size);
    terms[!me] = fold_at(group, step);
    tsh_device *host = group->world->host;
    host->ops->reduce(host, call->dtype, (tshi_reduction)call->reduce, in_block(op, in.count, step), 2, terms, 1, &out);
}

static void copy_own(const tsh_group *group, const void *from, void *to, int64_t n) {
    size_t bytes = (size_t)n * tsh_dtype_size(tshi_mpi_group_of(group)->op.call.dtype);
    if (bytes && from != to) group->world->host->ops->copy.within(group->world->host, bytes, from, to);
}

/* What this rank contributes to itself, while messages are under way. */
static void move_own(const tsh_group *group, const tshi_mpi_op *op, int64_t step) {
    const tshi_call *call = &op->call;
    size_t size = tsh_dtype_size(call->dtype);
    if (op->folds && step > 0) fold(group, step - 1);
    if (step > 0 || tshi_collectives[call->op].reduces) return;
    tshi_span own = tshi_span_to(group, call, group->rank), to = tshi_span_from(group, call, group->rank);
    copy_own(group, at(call->in, own.start, size), at(call->out, to.start, size), own.count);
}

/* A block that this rank sends to the rank d further on, and one that it receives from the rank as far back. */
static int step_exchange(tsh_group *group, int64_t step, bool wait) {
    tshi_mpi_group *mg = group->state;
    tshi_mpi_op *op = &mg->op;
    const tshi_call *call = &op->call;
    int p = group->size, d = 1, error = MPI_SUCCESS;
    int64_t k = step;
    for (; d < p && k >= steps_at(group, d); d++) k -= steps_at(group, d);
    int to = (group->rank + d) % p, from = (group->rank + p - d) % p;
    tshi_span out = tshi_span_to(group, call, to), in = tshi_span_from(group, call, from);
    /* A rank that exchanges nothing has one step, in which it moves its own part. */
    int sends = d < p ? in_block(op, out.count, k) : 0, receives = d < p ? in_block(op, in.count, k) : 0;
    size_t size = tsh_dtype_size(call->dtype);
    MPI_Datatype type = tshi_mpi_type(call->dtype);
    op->requests = 0;
    op->receives = receives > 0;
    if (receives) {
        void *at_me = op->folds ? fold_at(group, k) : at(call->out, in.start + k * op->block, size);
        error = MPI_Irecv(at_me, receives, type, from, TAG_MOVE, mg->comm, &op->request[op->requests++]);
    }
    if (sends && error == MPI_SUCCESS) {
        const void *data = at(call->in, out.start + k * op->block, size);
        error = MPI_Isend(data, sends, type, to, TAG_MOVE, mg->comm, &op->request[op->requests++]);
    }
    move_own(group, op, step);
    if (!wait || error != MPI_SUCCESS) return error;
    return MPI_Waitall(op->requests, op->request, MPI_STATUSES_IGNORE);
}

static int64_t exchange_steps(const tsh_group *group) {
    int64_t steps = 0;
    for (int d = 1; d < group->size; d++) steps += steps_at(group, d);
    bool own = tshi_span_to(group, &tshi_mpi_group_of(group)->op.call, group->rank).count > 0;
    return steps == 0 && own ? 1 : steps;
}

/* How the data of each collective moves: in one step where MPI's ints allow it, else in many. */
typedef struct transport {
    int (*at_once)(tsh_group *group, bool wait);
    int (*step)(tsh_group *group, int64_t step, bool wait);
} transport;

static const transport transports[TSH_COLLECTIVE_COUNT] = {
    [TSH_COLLECTIVE_ALL_REDUCE] = {NULL, step_whole},
    [TSH_COLLECTIVE_ALL_GATHER] = {all_gather, step_exchange},
    [TSH_COLLECTIVE_REDUCE_SCATTER] = {reduce_scatter, step_part},
    [TSH_COLLECTIVE_BROADCAST] = {NULL, step_whole},
    [TSH_COLLECTIVE_ALL_TO_ALL] = {all_to_all, step_exchange},
    [TSH_COLLECTIVE_REDUCE] = {NULL, step_whole},
    [TSH_COLLECTIVE_GATHER] = {gather, step_exchange},
    [TSH_COLLECTIVE_SCATTER] = {scatter, step_exchange},
};

/* Elements that one call of MPI would have to do with. */
static int64_t whole_of(const tsh_group *group, const tshi_call *call) {
    if (call->in_counts) return most_exchanged(group);
    return call->counts ? tshi_sum(call->counts, group->size) : call->count;
}

static int64_t count_steps(const tsh_group *group, const tshi_mpi_op *op) {
    const tshi_call *call = &op->call;
    int64_t steps = 0;
    if (op->at_once) return 1;
    if (transports[call->op].step == step_exchange) return exchange_steps(group);
    if (!call->counts) return blocks(op, call->count);
    for (int i = 0; i < group->size; i++) steps += blocks(op, call->counts[i]);
    return steps;
}

int tshi_move_step(tsh_group *group, int64_t step, bool wait) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    if (tshi_move_is_pair(group)) return step_exchange(group, step, false);
    const transport *t = &transports[op->call.op];
    op->requests = wait ? 0 : 1;
    return op->at_once ? t->at_once(group, wait) : t->step(group, step, wait);
}

/* --- before and after --------------------------------------------------------------------------------------------- */

/* MPICH 4.0 crashes in MPI_Reduce in place with another root than 0. */
static bool shuns_in_place(const tsh_group *group, const tshi_call *call) {
#ifdef MPICH_VERSION
    return call->op == TSH_COLLECTIVE_REDUCE && group->rank == call->root && call->root != 0;
#else
    (void)group;
    (void)call;
    return false;
#endif
}

static tsh_status allocate(const tsh_group *group, int64_t count, void **out) {
    tsh_device *host = group->world->host;
    *out = host->ops->memory.alloc(host, (size_t)count * tsh_dtype_size(tshi_mpi_group_of(group)->op.call.dtype));
    return *out ? TSH_OK : TSH_ERR_MEMORY;
}

tsh_status tshi_move_prepare(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    tshi_mpi_op *op = &mg->op;
    const tshi_call *call = &op->call;
    op->out = call->out;
    if (tshi_move_is_pair(group)) {
        if (!tshi_collectives[call->op].reduces || mg->fold) return TSH_OK;
        mg->fold = tshi_calloc(&group->world->allocator, 2, FOLD_BYTES);
        return mg->fold ? TSH_OK : TSH_ERR_MEMORY;
    }
    if (shuns_in_place(group, call)) return allocate(group, call->count, &op->scratch);
    if (call->op != TSH_COLLECTIVE_REDUCE_SCATTER) return TSH_OK;
    /* MPI wants a result of its own where the contract has it lie inside the input, even one of no elements. */
    int64_t part = call->counts[group->rank];
    size_t size = tsh_dtype_size(call->dtype);
    const char *in = call->in, *out = call->out;
    if (!part) op->out = mg->kept;
    if (!part || out + (size_t)part * size <= in || in + (size_t)call->count * size <= out) return TSH_OK;
    tsh_status status = allocate(group, part, &op->scratch);
    op->out = op->scratch;
    return status;
}

void tshi_move_begin(tsh_group *group) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    const tshi_call *call = &op->call;
    op->block = tshi_mpi_of(group->world)->chunk;
    op->folds = false;
    if (tshi_move_is_pair(group)) {
        int64_t most =
            tshi_collectives[call->op].reduces ? (int64_t)(FOLD_BYTES / tsh_dtype_size(call->dtype)) : INT64_MAX;
        if (op->block > most) op->block = most;
        op->folds = tshi_collectives[call->op].reduces && tshi_span_from(group, call, !group->rank).count > 0;
        op->steps = exchange_steps(group);
        return;
    }
    if (call->counts) op->regular = all_equal(call->counts, group->size);
    int64_t whole = whole_of(group, call);
    op->at_once = transports[call->op].at_once && whole <= op->block;
    op->steps = whole ? count_steps(group, op) : 0;
    if (call->op == TSH_COLLECTIVE_REDUCE && op->scratch) copy_own(group, call->in, op->scratch, call->count);
}

void tshi_move_end(tsh_group *group) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    const tshi_call *call = &op->call;
    if (tshi_move_is_pair(group)) {
        if (op->folds) fold(group, op->steps - 1);
        return;
    }
    if (!tshi_collectives[call->op].reduces) return;
    int64_t n = tshi_elements_out(group, call);
    if (call->reduce == TSH_AVG) tshi_mpi_divide(group->world->host, call->dtype, n, group->size, op->out);
    if (op->out == op->scratch) copy_own(group, op->scratch, call->out, n);
}

void tshi_move_abandon(tsh_group *group) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    if (op->requests && op->receives && !op->folds) MPI_Cancel(&op->request[0]);
}
