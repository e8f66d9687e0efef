/* The exchange of tokens with the ranks that hold their experts, along an axis that splits both. */
#ifndef TSHI_EXPERT_EXCHANGE_H
#define TSHI_EXPERT_EXCHANGE_H

#include "autograd/op.h"

/* The tokens that this rank sends and receives, in memory of the step. A token is sent once to each rank with rows of
 * one of its experts, this rank included: tokens are ordered by the rank that gets them, or that sends them, and then
 * as in that rank's x. */
typedef struct tshi_expert_exchange {
    tsh_group *group;
    int64_t *sends, *receives; /* [ranks of the group] */
    int64_t sent, received;    /* their sums */
    int64_t *list;             /* [sent]: rows of this rank's x */
    int64_t *experts;          /* [received, top_k]: what the received tokens chose */
} tshi_expert_exchange;

/* The axis along which tokens are exchanged: the tokens x and the weights are both split along it. -1: none. */
int tshi_expert_exchange_axis(const tsh_tensor *x, const tsh_tensor *weights);
/* Tells the ranks along the axis how many tokens they get, and which experts these tokens chose. experts [tokens,
 * top_k] are those of this rank's tokens, in host memory; the weights are stacks of `count` experts. Collective over
 * the axis' group, waits. */
tsh_status tshi_expert_exchange_make(tsh_call *call, int axis, const tsh_tensor *weights, int64_t count,
                                     const int64_t *experts, int64_t top_k, tshi_expert_exchange **out);
/* The list in the device's memory, until the function returns; NULL without memory. */
tsh_tensor *tshi_expert_exchange_rows(tsh_call *call, const tshi_expert_exchange *e);
/* to [received, cols] = rows of all ranks' tokens, this rank's being `from` [tokens, cols]. `rows` is the result of
 * tshi_expert_exchange_rows. Collective over the group. */
tsh_status tshi_expert_exchange_send(tsh_call *call, const tshi_expert_exchange *e, const tsh_tensor *rows,
                                     int64_t cols, const tsh_tensor *from, tsh_tensor *to);
/* The conjugate: `to` [tokens, cols] += rows from all ranks, this rank's being `from` [received, cols]. */
tsh_status tshi_expert_exchange_return(tsh_call *call, const tshi_expert_exchange *e, const tsh_tensor *rows,
                                       int64_t cols, const tsh_tensor *from, const tsh_tensor *to);

#endif
