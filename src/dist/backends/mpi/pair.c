/* The data of a collective between two ranks: each sends what the other lacks, in messages of MPI's. That takes no
 * longer than MPI's own collectives, a reduce_scatter much less, and no rank is inside a call that blocks. */
#include "dist/backends/mpi/mpi.h"

/* A sum is taken of blocks that stay in a cache, one while the next is under way. */
#define FOLD_BYTES ((size_t)128 << 10)

/* MPI's own all_reduce is faster than a trade of everything. */
bool tshi_pair_takes(const tsh_group *group) {
    return group->size == 2 && tshi_mpi_group_of(group)->op.call.op != TSH_COLLECTIVE_ALL_REDUCE;
}

/* A rank that only contributes to a reduction goes by the blocks of the one that reduces. */
static bool reduces(tsh_collective op) {
    return tshi_collectives[op].reduces;
}

/* What a reduction contributes to this rank itself is reduced with what comes. */
static tshi_trade trade_of(const tsh_group *group, const tshi_call *call) {
    size_t size = tsh_dtype_size(call->dtype);
    int me = group->rank;
    tshi_span out = tshi_span_to(group, call, !me), in = tshi_span_from(group, call, !me);
    tshi_span own = tshi_span_to(group, call, me), own_to = tshi_span_from(group, call, me);
    return (tshi_trade){.from = tshi_at(call->in, out.start, size),
                        .sends = out.count,
                        .to = tshi_at(call->out, in.start, size),
                        .receives = in.count,
                        .own = tshi_at(call->in, own.start, size),
                        .own_to = tshi_at(call->out, own_to.start, size),
                        .owns = reduces(call->op) ? 0 : own.count,
                        .folds = reduces(call->op) && in.count > 0};
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

tsh_status tshi_pair_prepare(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    if (!reduces(mg->op.call.op) || mg->fold) return TSH_OK;
    mg->fold = tshi_calloc(&group->world->allocator, 2, FOLD_BYTES);
    return mg->fold ? TSH_OK : TSH_ERR_MEMORY;
}

void tshi_pair_begin(tsh_group *group) {
    tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    tshi_trade *t = &op->trade;
    *t = trade_of(group, &op->call);
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
    void *out = tshi_at(t->to, step * t->block, t->size);
    in[group->rank] = tshi_at(t->own, step * t->block, t->size);
    in[!group->rank] = fold_at(mg, step);
    tsh_device *host = group->world->host;
    host->ops->reduce(host, mg->op.call.dtype, (tshi_reduction)mg->op.call.reduce, in_block(t, t->receives, step), 2,
                      in, 1, &out);
}

int tshi_pair_step(tsh_group *group, int64_t step) {
    tshi_mpi_group *mg = group->state;
    const tshi_trade *t = &mg->op.trade;
    int receive = in_block(t, t->receives, step), send = in_block(t, t->sends, step), other = !group->rank;
    void *to = t->folds ? fold_at(mg, step) : tshi_at(t->to, step * t->block, t->size);
    int error = tshi_mpi_exchange(group, tshi_at(t->from, step * t->block, t->size), send, other, to, receive, other);
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
