/* Agreement among the ranks of a group, over the channel (channel.h): on the text of what they are about to do, on a
 * call, and on facts that each needs of all others.
 *
 * The members form a binomial tree: the parent of member m is m without its lowest bit. A vote goes up the tree, and
 * the verdict comes down: 2 (p - 1) messages. Facts travel in the same messages, so that they cost none of their own:
 *
 *            up, from a member to its parent     down, to a member            bytes in all
 *   gather   the facts of its subtree            the facts of all members     O(p^2), down
 *   fetch    the parts of its subtree            what its subtree fetches     O(p log p)
 *   reduce   one fact, combined                  the same                     O(p)
 *
 * Invariant: all members reach the same verdict, that of member 0. A member that returns TSH_OK has it from a verdict
 * to which every member has contributed. */
#ifndef TSHI_AGREE_H
#define TSHI_AGREE_H

#include "dist/world.h"

/* Every rank of the group passes the same `text`, or a status `failed` with its message set. TSH_ERR_MISMATCH with both
 * texts, or TSH_ERR_PEER with the message of the first rank that failed; a rank that failed returns `failed`.
 * Collective; waits. */
tsh_status tshi_control_agree(tsh_group *group, const char *text, tsh_status failed);
/* Agrees, and gathers the `bytes` bytes at `mine` of every member, in the order of the group's ranks, in `all`. A rank
 * that failed passes the same `bytes`; its `mine` and `all` are not used. */
tsh_status tshi_control_gather(tsh_group *group, const char *text, tsh_status failed, const void *mine, size_t bytes,
                               void *all);
/* Agrees, and replaces part k of the `n` parts of `bytes` bytes each at `parts` by part k of member from[k]. Every rank
 * passes the same `n` and `bytes`. After a failure the parts are as they were. */
tsh_status tshi_control_fetch(tsh_group *group, const char *text, tsh_status failed, const int32_t *from, int n,
                              void *parts, size_t bytes);
/* Combines the facts of another member with those at `mine`. Both are aligned as memory of malloc is. */
typedef void tshi_control_combine(void *mine, const void *theirs, size_t bytes);
/* Agrees, and combines the `bytes` bytes at `mine` of all members, in any order; every rank gets the result there.
 * After a failure they are undefined. */
tsh_status tshi_control_reduce(tsh_group *group, const char *text, tsh_status failed, void *mine, size_t bytes,
                               tshi_control_combine *combine);
/* Compares a call of the group's ranks before it is made. */
tsh_status tshi_control_compare(tsh_group *group, const tshi_comm_call *call);
/* The id of a group that members of `parent` open now, after an agreement. `place` tells groups apart that are opened
 * together, unless they have no rank in common. */
uint64_t tshi_control_group_id(const tsh_group *parent, int place);

#endif
