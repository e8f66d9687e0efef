/* Runs the exchange of boxes of a redistribution: as one collective on a group, or as messages between two meshes. The
 * plans are kept in the world, so that a step that repeats its redistributions plans and allocates nothing. */
#ifndef TSHI_REDISTRIBUTE_H
#define TSHI_REDISTRIBUTE_H

#include "base/base.h"

#include "dist/collectives/collectives.h"
#include "tensor/runs.h"

#include <string.h>

/* `out`, what this rank holds of e->to, gets the values of `in`, what the ranks hold of e->from; NULL or without
 * elements where a rank holds nothing, but not both NULL. They do not overlap.
 *
 * group: its ranks include all members of both placements. Collective over it, waits; one call, counted as an
 * all_to_all, two where a sum is reduced first, none where no value changes rank. A rank outside it returns at once.
 * NULL: messages in the world's group, one for each pair of ranks; ranks in neither placement need not call. Waits for
 * the values that this rank receives, not for those that it sends. */
tsh_status tshi_exchange_run(tsh_group *group, const tshi_exchange *e, const tsh_tensor *in, tsh_tensor *out);
/* The exchange between a tensor and `held`, what this rank holds of the same elements placed otherwise: `writes` into
 * the tensor, else out of it. */
tsh_status tshi_exchange_tensor(tsh_group *group, const tsh_tensor *tensor, const tshi_placement *other,
                                tsh_tensor *held, bool writes);
/* Waits for the sends in flight; the first failure of one since the last flush. */
tsh_status tshi_exchange_flush(tsh_world *world);
/* Waits for them too, and frees the plans. */
void tshi_exchanges_free(tsh_world *world);

/* --- redistribute_plan.c ------------------------------------------------------------------------------------------ */

/* What a rank receives and sends in an exchange. At most one transfer goes from one rank to another. */
typedef struct tshi_exchange_plan {
    uint64_t fingerprint; /* of the exchange, the same on every rank */
    uint64_t used;        /* number of the lookup that found it last */
    tshi_exchange e;      /* its ranks are copies */
    tshi_placement middle;
    bool reduces_first; /* from -> middle -> to; nothing below is set */
    bool moves;         /* some value changes rank; the same on every rank */
    bool sums;          /* the values are terms of a sum */
    bool zeros;         /* some of what this rank holds of e->to gets no value */
    int receives, sends;
    tshi_transfer *receive; /* the terms of one box one after another, ascending */
    tshi_transfer *send;
    tsh_box *source;          /* [receives] what their senders hold */
    struct tshi_piece *piece; /* [receives] scratch: where their values are */
    tsh_work **work;          /* [receives] scratch: messages under way */
    int64_t numel;            /* of the whole */
    int64_t sent;             /* elements that this rank sends to other ranks */
    tsh_box held, wanted;     /* what this rank holds of e->from and of e->to */
    void *memory;             /* of all arrays */
} tshi_exchange_plan;

/* The values of a received box in memory of this rank's device that holds a box around it, row-major; data NULL: they
 * are where they belong. */
typedef struct tshi_piece {
    void *data;
    const tsh_box *box;
} tshi_piece;

/* True for two received boxes of one plan that are one box: terms of a sum. Other boxes are disjoint. */
static inline bool tshi_transfers_alike(const tshi_transfer *a, const tshi_transfer *b) {
    return !memcmp(a->box.start, b->box.start, sizeof a->box.start);
}

/* The member of the group that is this rank of the world. */
static inline int tshi_group_member(const tsh_group *group, int rank) {
    bool same = rank < group->size && group->ranks[rank] == rank;
    return same ? rank : tsh_group_rank_of(group, rank);
}

/* The plan from the world's table, or a new one in it, valid until the next call. NULL without memory. */
TSHI_TOOLS tshi_exchange_plan *tshi_exchange_plan_find(tsh_world *world, const tshi_exchange *e);
/* Frees the world's table. */
void tshi_exchange_plans_free(tsh_world *world);
/* Some value changes rank; the same on every rank. */
bool tshi_exchange_moves(const tshi_exchange *e);
/* Copies and adds the values of the plan's pieces into `out`, memory that holds plan->wanted. */
void tshi_exchange_fill(const tshi_exchange_plan *plan, tsh_device *device, tsh_dtype dtype, void *out);

#endif
