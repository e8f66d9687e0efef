/* Where the members of a group meet before each call. */
#include "dist/mpi.h"

#include <stdio.h>

/* The fields of `arrivals`: members there, those whose call does not wait, those with parts of their own, and the sum
 * of the call's hashes, which is what it should be when all are alike. The last to come reads them all at once, puts
 * them back to zero, and says what it has found in `verdict`. */
#define COUNT_BITS 12
#define COUNT_MASK ((UINT64_C(1) << COUNT_BITS) - 1)
#define HASH_SHIFT (3 * COUNT_BITS)
#define HASH_MASK  ((UINT64_C(1) << (64 - HASH_SHIFT)) - 1)
#define CODE_BITS  8

static int flags_of(const tshi_mpi_op *op) {
    return (op->async ? TSHI_GATE_ASYNC : 0) | (op->regular ? 0 : TSHI_GATE_IRREGULAR);
}

/* Decide my gate, once: the verdict that stands. The one before is known: to ask for it would cost as much as to write.
 */
static uint64_t decide(const tshi_mpi_group *mg, int code) {
    uint64_t old = mg->verdict, mine = mg->gate << CODE_BITS | (uint64_t)code;
    while (old >> CODE_BITS != mg->gate) {
        if (atomic_compare_exchange_weak(&mg->block->verdict, &old, mine)) return mine;
    }
    return old;
}

static void arrive_here(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    tshi_gate_block *block = mg->block;
    uint64_t hash = mg->op.identity & HASH_MASK, size = (uint64_t)group->size;
    uint64_t add = 1 | hash << HASH_SHIFT;
    if (mg->op.async) add |= UINT64_C(1) << COUNT_BITS;
    if (!mg->op.regular) add |= UINT64_C(1) << 2 * COUNT_BITS;
    atomic_store_explicit(&block->member[group->rank].number, mg->gate, memory_order_relaxed);
    uint64_t sum = atomic_fetch_add_explicit(&block->arrivals, add, memory_order_acq_rel) + add;
    if ((sum & COUNT_MASK) != size) return;
    int code = TSHI_GATE_PASSED;
    if (sum >> COUNT_BITS & COUNT_MASK) code |= TSHI_GATE_ASYNC;
    if (sum >> 2 * COUNT_BITS & COUNT_MASK) code |= TSHI_GATE_IRREGULAR;
    if (sum >> HASH_SHIFT != (hash * size & HASH_MASK)) code |= TSHI_GATE_DIFFER;
    atomic_store_explicit(&block->arrivals, 0, memory_order_relaxed);
    decide(mg, code);
}

int tshi_gate_arrive(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    tshi_mpi_op *op = &mg->op;
    mg->gate++;
    op->phase = TSHI_AT_GATE;
    if (mg->block) {
        arrive_here(group);
        return MPI_SUCCESS;
    }
    op->mine[0] = op->identity;
    op->mine[1] = ~op->identity;
    op->mine[2] = (uint64_t)flags_of(op);
    op->requests = 1;
    return MPI_Iallreduce(op->mine, op->all, 3, MPI_UINT64_T, MPI_BOR, mg->comm, op->request);
}

int tshi_gate_poll(tsh_group *group, int *error) {
    tshi_mpi_group *mg = group->state;
    tshi_mpi_op *op = &mg->op;
    if (mg->block) {
        uint64_t verdict = atomic_load_explicit(&mg->block->verdict, memory_order_acquire);
        if (verdict >> CODE_BITS == mg->gate) mg->verdict = verdict;
        return verdict >> CODE_BITS == mg->gate ? (int)(verdict & ((1 << CODE_BITS) - 1)) : 0;
    }
    int done = 0;
    *error = MPI_Test(op->request, &done, MPI_STATUS_IGNORE);
    if (*error != MPI_SUCCESS || !done) return 0;
    op->requests = 0;
    return TSHI_GATE_PASSED | (int)op->all[2] | (op->all[0] & op->all[1] ? TSHI_GATE_DIFFER : 0);
}

bool tshi_gate_withdraw(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    tshi_mpi_op *op = &mg->op;
    if (op->phase == TSHI_AT_GATE && mg->block) {
        return decide(mg, TSHI_GATE_STOPPED) & TSHI_GATE_STOPPED;
    }
    /* Without shared memory nobody can take back that it has come. When a failure is known for so long and the gate has
     * not been passed, then somebody has heard of it before it came, and never will come. Behind the gate, a rank that
     * has failed since has mostly done its part. */
    double now = tshi_clock();
    if (op->trouble_seen == 0) op->trouble_seen = now;
    return now - op->trouble_seen >= TSHI_GRACE;
}

const char *tshi_gate_missing(const tsh_group *group, char *text, size_t size) {
    const tshi_mpi_group *mg = group->state;
    size_t used = 0;
    snprintf(text, size, "one of the others");
    for (int i = 0; mg->block && i < group->size && used + 16 < size; i++) {
        if (atomic_load(&mg->block->member[i].number) >= mg->gate) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%d", used ? ", " : "rank ", group->ranks[i]);
    }
    return text;
}
