/* One collective or message as the backends see it: memory and counts that have been checked on this rank. */
#ifndef TSHI_CALL_H
#define TSHI_CALL_H

#include "tensor/tensor.h"
#include "tshard/dist.h"

typedef struct tshi_comm_call {
    tsh_collective op;
    tsh_dtype dtype;
    /* send and recv: TSH_REDUCE_SUM, or TSH_REDUCE_MAX for the description before a tensor's elements, which no plain
     * receive takes */
    tsh_reduce_op reduce;
    int root; /* send and recv: the other rank, or TSH_ANY_RANK */
    const void *in;
    void *out;
    int64_t count; /* elements of the whole: all_reduce and broadcast the buffer; all_gather `out`; reduce_scatter
                    * `in`; 0 for all_to_all and barrier */
    const int64_t *counts;    /* all_gather, reduce_scatter: elements of each rank (never NULL) */
    const int64_t *in_counts; /* all_to_all, never NULL */
    const int64_t *out_counts;
    bool on_device;    /* in and out are memory of the world's device, not the host's: a call on tensors of a GPU */
    tsh_status failed; /* not TSH_OK: this rank's arguments are bad, tsh_error_message() says why; the backend only
                        * reports this to the peers */
} tshi_comm_call;

#endif
