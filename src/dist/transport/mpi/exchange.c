/* Exchanges: the members of a group move the data of a call as messages among themselves.
 *
 * In step k a rank sends block k of its span for each peer, and receives block k of each peer's span for it. A
 * reduction receives into buffers of the group, and reduces a received block in the order of the ranks. An all_reduce
 * is a reduce-scatter in the first half of its steps, and an all-gather in the second. Up to op->window steps are in
 * flight at once, so that the link is busy while the host computes.
 *
 * Invariant: a step reuses the requests and buffers of step - window only after that step has ended, and a step of the
 * all-gather is posted only after this rank has reduced its block (may_post). */
#include "dist/transport/mpi/mpi.h"

#define TAG_EXCHANGE 1

/* A reduction that ranks wait for: blocks that stay in cache, one received while another is reduced. */
#define WAITED_BYTES  ((size_t)128 << 10)
#define WAITED_WINDOW 2
/* A started call between machines, while the host computes: blocks that MPI sends eagerly, as a handshake needs several
 * calls of MPI on both sides, and enough of them to fill a socket's buffers, which the kernel empties meanwhile. */
#define STARTED_BYTES  ((size_t)60 << 10)
#define STARTED_BLOCKS 64

/* An all_reduce of more than two ranks is a reduce-scatter, then an all-gather. Two ranks send the same number of bytes
 * without halves, and then no step waits for another. */
static bool in_halves(const tsh_group *group, const tshi_mpi_op *op) {
    return op->call.op == TSH_COLLECTIVE_ALL_REDUCE && group->size > 2;
}

static bool gathers(const tsh_group *group, const tshi_mpi_op *op, int64_t step) {
    return in_halves(group, op) && step >= op->steps / 2;
}

/* The part of an all_reduce that `rank` reduces. */
static tshi_span part_of(const tsh_group *group, const tshi_comm_call *call, int rank) {
    int64_t each = call->count / group->size, rest = call->count % group->size;
    return (tshi_span){each * rank + (rank < rest ? rank : rest), each + (rank < rest)};
}

static tshi_span span_to(const tsh_group *group, const tshi_mpi_op *op, int64_t step, int to) {
    if (!in_halves(group, op)) return tshi_span_to(group, &op->call, to);
    return part_of(group, &op->call, gathers(group, op, step) ? group->rank : to);
}

static tshi_span span_from(const tsh_group *group, const tshi_mpi_op *op, int64_t step, int from) {
    if (!in_halves(group, op)) return tshi_span_from(group, &op->call, from);
    return part_of(group, &op->call, gathers(group, op, step) ? from : group->rank);
}

static bool reduces(const tsh_group *group, const tshi_mpi_op *op, int64_t step) {
    return tshi_collectives[op->call.op].reduces && !gathers(group, op, step);
}

/* The block of a span in that step. */
static tshi_span block_of(const tsh_group *group, const tshi_mpi_op *op, int64_t step, tshi_span span) {
    int64_t before = (gathers(group, op, step) ? step - op->steps / 2 : step) * op->block;
    if (before >= span.count) return (tshi_span){span.start, 0};
    return (tshi_span){span.start + before, span.count - before < op->block ? span.count - before : op->block};
}

static void *at(const tshi_mpi_op *op, const void *base, int64_t elements) {
    return (void *)((uintptr_t)base + (size_t)elements * tsh_dtype_size(op->call.dtype));
}

/* --- one step ----------------------------------------------------------------------------------------------------- */

/* The 2 (p - 1) requests of a step: a receive and a send for each peer, by distance. */
static MPI_Request *requests_of(const tsh_group *group, int64_t step) {
    const tshi_mpi_group *mg = group->state;
    return mg->request + (size_t)(step % mg->op.window) * 2 * (size_t)(group->size - 1);
}

/* The buffer for the block of the peer at that distance, to be reduced. */
static void *fold_at(const tsh_group *group, int64_t step, int distance) {
    const tshi_mpi_group *mg = group->state;
    return at(&mg->op, mg->fold, ((step % mg->op.window) * (group->size - 1) + distance - 1) * mg->op.block);
}

/* Copies this rank's own part to its place in `out`. */
static void copy_own(const tsh_group *group, const tshi_mpi_op *op) {
    tshi_span own = tshi_span_to(group, &op->call, group->rank), to = tshi_span_from(group, &op->call, group->rank);
    const void *from = at(op, op->call.in, own.start);
    void *out = at(op, op->call.out, to.start);
    size_t bytes = (size_t)own.count * tsh_dtype_size(op->call.dtype);
    if (bytes && from != out) group->world->host->ops->copy.within(group->world->host, bytes, from, out);
}

static int post(tsh_group *group, int64_t step) {
    tshi_mpi_group *mg = group->state;
    const tshi_mpi_op *op = &mg->op;
    MPI_Request *request = requests_of(group, step);
    MPI_Datatype type = tshi_mpi_type(op->call.dtype);
    const void *source = gathers(group, op, step) ? op->call.out : op->call.in;
    int p = group->size, error = MPI_SUCCESS;
    for (int i = 0; i < 2 * (p - 1); i++) request[i] = MPI_REQUEST_NULL;
    for (int d = 1; d < p && error == MPI_SUCCESS; d++, request += 2) {
        int to = (group->rank + d) % p, from = (group->rank + p - d) % p;
        tshi_span in = block_of(group, op, step, span_from(group, op, step, from));
        tshi_span out = block_of(group, op, step, span_to(group, op, step, to));
        void *target = reduces(group, op, step) ? fold_at(group, step, d) : at(op, op->call.out, in.start);
        if (in.count) error = MPI_Irecv(target, (int)in.count, type, from, TAG_EXCHANGE, mg->comm, &request[0]);
        if (out.count && error == MPI_SUCCESS)
            error = MPI_Isend(at(op, source, out.start), (int)out.count, type, to, TAG_EXCHANGE, mg->comm, &request[1]);
    }
    if (step == 0 && !reduces(group, op, step)) copy_own(group, op);
    return error;
}

/* Reduces the blocks received in that step with this rank's own, in the order of the ranks. */
static void fold(const tsh_group *group, int64_t step) {
    const tshi_mpi_group *mg = group->state;
    const tshi_mpi_op *op = &mg->op;
    int p = group->size, me = group->rank;
    tshi_span own = block_of(group, op, step, span_to(group, op, step, me));
    tshi_span to = block_of(group, op, step, span_from(group, op, step, me));
    void *out = at(op, op->call.out, to.start);
    if (!to.count) return;
    for (int d = 1; d < p; d++) mg->terms[(me + p - d) % p] = fold_at(group, step, d);
    mg->terms[me] = at(op, op->call.in, own.start);
    tsh_device *host = group->world->host;
    host->ops->reduce(host, op->call.dtype, (tshi_reduction)op->call.reduce, to.count, p, mg->terms, 1, &out);
}

/* --- the call -------------------------------------------------------------------------------------------------- */

/* Not for all_reduce: MPI's own is faster if both ranks wait for it. */
bool tshi_exchange_is_pair(const tsh_group *group) {
    return group->size == 2 && tshi_mpi_group_of(group)->op.call.op != TSH_COLLECTIVE_ALL_REDUCE;
}

static int64_t blocks(const tshi_mpi_op *op, int64_t n) {
    return n / op->block + (n % op->block != 0);
}

/* The most elements that this rank exchanges with one peer. */
static int64_t longest_span(const tsh_group *group, const tshi_mpi_op *op) {
    int64_t most = 0;
    if (in_halves(group, op)) return part_of(group, &op->call, 0).count;
    for (int i = 0; i < group->size; i++) {
        tshi_span to = tshi_span_to(group, &op->call, i), from = tshi_span_from(group, &op->call, i);
        if (i != group->rank && to.count > most) most = to.count;
        if (i != group->rank && from.count > most) most = from.count;
    }
    return most;
}

/* Grows *memory, of *room bytes, to at least `bytes`. Its contents are lost. */
static bool reserve(const tsh_group *group, size_t bytes, void **memory, size_t *room) {
    const tsh_allocator *allocator = &group->world->allocator;
    if (bytes <= *room) return true;
    tshi_free(allocator, *memory);
    *memory = tshi_calloc(allocator, 1, bytes);
    *room = *memory ? bytes : 0;
    return *memory != NULL;
}

tsh_status tshi_exchange_begin(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    tshi_mpi_op *op = &mg->op;
    const tshi_comm_call *call = &op->call;
    bool reduction = tshi_collectives[call->op].reduces;
    size_t bytes = reduction ? WAITED_BYTES : SIZE_MAX, element = tsh_dtype_size(call->dtype),
           peers = (size_t)group->size - 1;
    int64_t most = longest_span(group, op);
    op->step = op->done = 0;
    op->window = WAITED_WINDOW;
    op->block = tshi_mpi_of(group->world)->chunk;
    if (op->async && !mg->block) {
        bytes = STARTED_BYTES;
        if (op->window < STARTED_BLOCKS / (group->size - 1)) op->window = STARTED_BLOCKS / (group->size - 1);
    }
    if ((size_t)op->block > bytes / element) op->block = (int64_t)(bytes / element);
    if (op->block > most && most > 0) op->block = most;
    op->steps = most ? blocks(op, most) : tshi_span_to(group, call, group->rank).count > 0;
    if (in_halves(group, op)) op->steps = 2 * blocks(op, most);
    size_t in_flight = (size_t)op->window * peers;
    bool good = reserve(group, 2 * in_flight * sizeof *mg->request, (void **)&mg->request, &mg->request_room);
    good = good && reserve(group, (peers + 1) * sizeof *mg->terms, (void **)&mg->terms, &mg->terms_room);
    if (reduction) good = good && reserve(group, in_flight * (size_t)op->block * element, &mg->fold, &mg->fold_room);
    return good ? TSH_OK : TSH_ERR_MEMORY;
}

/* A step of the all-gather sends this rank's reduced block, and receives over blocks that earlier steps have sent. */
static bool may_post(const tsh_group *group, const tshi_mpi_op *op) {
    if (op->step >= op->steps || op->step - op->done >= op->window) return false;
    return !gathers(group, op, op->step) || op->done > op->step - op->steps / 2;
}

int tshi_exchange_advance(tsh_group *group) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    int done = 1, error = MPI_SUCCESS;
    while (error == MPI_SUCCESS && done && op->done < op->steps) {
        while (error == MPI_SUCCESS && may_post(group, op)) error = post(group, op->step++);
        if (error != MPI_SUCCESS) break;
        error = MPI_Testall(2 * (group->size - 1), requests_of(group, op->done), &done, MPI_STATUSES_IGNORE);
        if (error != MPI_SUCCESS || !done) break;
        if (reduces(group, op, op->done)) fold(group, op->done);
        op->done++;
    }
    return error;
}

void tshi_exchange_abandon(tsh_group *group) {
    const tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    double deadline = tshi_clock() + TSHI_GRACE;
    for (int64_t step = op->done; step < op->step; step++) {
        MPI_Request *request = requests_of(group, step);
        for (int i = 0; i < 2 * (group->size - 1) && !reduces(group, op, step); i += 2) {
            tshi_mpi_end_receive(&request[i], deadline);
        }
    }
}
