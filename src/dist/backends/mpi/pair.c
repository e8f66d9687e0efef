/* The data of a collective between two ranks: each sends what the other lacks, in messages of MPI's. That takes no
 * longer than MPI's own collectives, a reduce_scatter much less, and leaves nobody inside a call that blocks. */
#include "dist/backends/mpi/mpi.h"

#define TAG_MOVE 1

/* A sum is taken of blocks that stay in a cache, one while the next is under way. */
#define FOLD_BYTES ((size_t)128 << 10)

/* MPI's own all_reduce is faster than a trade of everything. */
bool tshi_pair_takes(const tsh_group *group) {
    return group->size == 2 && tshi_mpi_group_of(group)->op.call.op != TSH_COLLECTIVE_ALL_REDUCE;
}

static int64_t before(const int64_t *counts, int rank) {
    return rank ? counts[0] : 0;
}

static char *at(const void *base, int64_t elements, size_t size) {
    return (char *)(uintptr_t)base + (size_t)elements * size;
}

/* From one to the other. */
static tshi_trade whole(const tshi_call *call, bool sends, bool folds) {
    if (sends) return (tshi_trade){.from = call->in, .sends = call->count};
    return (tshi_trade){.mine = call->in, .to = call->out, .receives = call->count, .folds = folds};
}

static tshi_trade reduce_scatter(const tshi_call *call, int me, size_t size) {
    return (tshi_trade){.from = at(call->in, before(call->counts, !me), size),
                        .sends = call->counts[!me],
                        .mine = at(call->in, before(call->counts, me), size),
                        .to = call->out,
                        .receives = call->counts[me],
                        .folds = true};
}

/* From the parts of both to the whole, which only ranks that `take` have. */
static tshi_trade gather(const tshi_call *call, int me, size_t size, bool send, bool take) {
    tshi_trade t = {.from = call->in};
    if (send) t.sends = call->counts[me];
    if (!take) return t;
    t.to = at(call->out, before(call->counts, !me), size);
    t.receives = call->counts[!me];
    t.own = call->in;
    t.own_to = at(call->out, before(call->counts, me), size);
    t.owns = call->counts[me];
    return t;
}

static tshi_trade scatter(const tshi_call *call, int me, size_t size) {
    if (call->root != me) return (tshi_trade){.to = call->out, .receives = call->counts[me]};
    return (tshi_trade){.from = at(call->in, before(call->counts, !me), size),
                        .sends = call->counts[!me],
                        .own = at(call->in, before(call->counts, me), size),
                        .own_to = call->out,
                        .owns = call->counts[me]};
}

static tshi_trade all_to_all(const tshi_call *call, int me, size_t size) {
    return (tshi_trade){.from = at(call->in, before(call->in_counts, !me), size),
                        .sends = call->in_counts[!me],
                        .to = at(call->out, before(call->out_counts, !me), size),
                        .receives = call->out_counts[!me],
                        .own = at(call->in, before(call->in_counts, me), size),
                        .own_to = at(call->out, before(call->out_counts, me), size),
                        .owns = call->in_counts[me]};
}

static tshi_trade trade_of(const tshi_call *call, int me) {
    size_t size = tsh_dtype_size(call->dtype);
    bool root = call->root == me;
    switch (call->op) {
    case TSH_COLLECTIVE_REDUCE: return whole(call, !root, true);
    case TSH_COLLECTIVE_BROADCAST: return whole(call, root, false);
    case TSH_COLLECTIVE_REDUCE_SCATTER: return reduce_scatter(call, me, size);
    case TSH_COLLECTIVE_ALL_GATHER: return gather(call, me, size, true, true);
    case TSH_COLLECTIVE_GATHER: return gather(call, me, size, !root, root);
    case TSH_COLLECTIVE_SCATTER: return scatter(call, me, size);
    case TSH_COLLECTIVE_ALL_TO_ALL: return all_to_all(call, me, size);
    default: return (tshi_trade){0};
    }
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

/* Then both go by its blocks, also one that only sends. */
static bool reduces(tsh_collective op) {
    return op == TSH_COLLECTIVE_REDUCE || op == TSH_COLLECTIVE_REDUCE_SCATTER;
}

tsh_status tshi_pair_prepare(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    if (!reduces(mg->op.call.op) || mg->fold) return TSH_OK;
    mg->fold = tshi_calloc(&group->world->allocator, 2, FOLD_BYTES);
    return mg->fold ? TSH_OK : TSH_ERR_MEMORY;
}

void tshi_pair_begin(tsh_group *group) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    tshi_trade *t = &op->trade;
    *t = trade_of(&op->call, group->rank);
    t->type = tshi_mpi_type(op->call.dtype);
    t->size = tsh_dtype_size(op->call.dtype);
    t->block = tshi_mpi_of(group->world)->chunk;
    if (reduces(op->call.op) && t->block > (int64_t)(FOLD_BYTES / t->size)) t->block = (int64_t)(FOLD_BYTES / t->size);
    int64_t most = t->sends > t->receives ? t->sends : t->receives;
    op->steps = most <= t->block ? most > 0 || t->owns > 0 : most / t->block + (most % t->block != 0);
}

static int in_block(const tshi_trade *t, int64_t n, int64_t step) {
    n -= step * t->block;
    return (int)(n < 0 ? 0 : n < t->block ? n : t->block);
}

static char *fold_at(const tshi_mpi_group *mg, int64_t step) {
    return mg->fold + (size_t)(step & 1) * FOLD_BYTES;
}

/* In the order of the ranks, so that both have the same sum. */
static void fold(const tsh_group *group, int64_t step) {
    const tshi_mpi_group *mg = group->state;
    const tshi_trade *t = &mg->op.trade;
    const void *in[2];
    void *out = at(t->to, step * t->block, t->size);
    in[group->rank] = at(t->mine, step * t->block, t->size);
    in[!group->rank] = fold_at(mg, step);
    tsh_device *host = group->world->host;
    host->ops->reduce(host, mg->op.call.dtype, (tshi_reduction)mg->op.call.reduce, in_block(t, t->receives, step), 2,
                      in, 1, &out);
}

int tshi_pair_step(tsh_group *group, int64_t step) {
    tshi_mpi_group *mg = group->state;
    tshi_mpi_op *op = &mg->op;
    const tshi_trade *t = &op->trade;
    int receive = in_block(t, t->receives, step), send = in_block(t, t->sends, step), other = !group->rank;
    int error = MPI_SUCCESS;
    op->requests = 0;
    if (receive) {
        void *to = t->folds ? fold_at(mg, step) : at(t->to, step * t->block, t->size);
        error = MPI_Irecv(to, receive, t->type, other, TAG_MOVE, mg->comm, &op->request[op->requests++]);
    }
    if (send && error == MPI_SUCCESS) {
        const void *from = at(t->from, step * t->block, t->size);
        error = MPI_Isend(from, send, t->type, other, TAG_MOVE, mg->comm, &op->request[op->requests++]);
    }
    /* While it is under way. */
    tsh_device *host = group->world->host;
    if (step == 0 && t->owns && t->own != t->own_to) {
        host->ops->copy.within(host, (size_t)t->owns * t->size, t->own, t->own_to);
    }
    if (step > 0 && t->folds) fold(group, step - 1);
    return error;
}

void tshi_pair_end(tsh_group *group) {
    const tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    if (op->trade.folds && op->steps) fold(group, op->steps - 1);
}

void tshi_pair_abandon(tsh_group *group) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    const tshi_trade *t = &op->trade;
    if (op->requests && !t->folds && in_block(t, t->receives, op->step - 1)) MPI_Cancel(&op->request[0]);
}
