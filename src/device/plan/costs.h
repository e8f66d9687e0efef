/* What the costs in device/kernels.def are made of, for the kernels of the dry run and of the trace. */
#ifndef TSHI_COSTS_H
#define TSHI_COSTS_H

#include "device/each_kernel.h"

/* The bytes of n elements of the dtype, and of n statistics. */
#define EACH(n) ((uint64_t)(n)*tsh_dtype_size(dtype))
#define SUMS(n) ((uint64_t)(n)*tsh_dtype_size(tshi_dtype_sum(dtype)))

static inline int64_t broadcast_size(const tshi_broadcast *o) {
    int64_t n = 1;
    for (int i = 0; i < o->runs; i++) n *= o->n[i];
    return n;
}

static inline uint64_t permuted_bytes(const tshi_permutation *p) {
    uint64_t bytes = p->piece;
    for (int d = 0; d < p->ndim; d++) bytes *= (uint64_t)p->size[d];
    return bytes;
}

/* Bytes of gradients, parameters, master weights and, for each element, of so many reads and writes of states. */
static inline uint64_t update_bytes(tsh_dtype dtype, int count, const tshi_update *updates, int64_t states) {
    uint64_t bytes = 0;
    for (int i = 0; i < count; i++) {
        const tshi_update *u = &updates[i];
        bytes += u->wide_grad ? SUMS(u->n) : EACH(u->n);
        bytes += u->master ? EACH(u->n) + SUMS(2 * u->n) : EACH(2 * u->n);
        bytes += SUMS(states * u->n);
    }
    return bytes;
}

#endif
