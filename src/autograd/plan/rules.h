/* Layout rules: from the layouts of a call's inputs to a row of its operation's rules for each axis. */
#ifndef TSHI_RULES_H
#define TSHI_RULES_H

#include "autograd/op.h"

/* A row for each axis; `bound` is the dim that the row's BATCH, ANY or OTHER stands for, and the units in which it
 * splits. */
typedef struct tshi_rule_rows {
    const tsh_rule *row[TSH_MAX_AXES];
    tsh_layout bound[TSH_MAX_AXES];
    tsh_layout out[TSH_MAX_AXES]; /* the output's layouts */
    bool stay;                    /* every input is REPLICATED along every axis, as the rows want it */
    bool ordered;                 /* the axes split dims in the order `sequence`, not in their own */
    int sequence[TSH_MAX_AXES];
} tshi_rule_rows;

/* What a plan is made for: the output as the shape rule of the call's operation describes it, and the circumstances. */
typedef struct tshi_goal {
    tsh_dtype dtype;
    const tsh_shape *shape;
    const tshi_want *want; /* of a layer, or NULL */
    bool deterministic;    /* the output and the gradients are to have one rank's bits */
    bool recording;        /* calls are recorded where an input wants a gradient */
} tshi_goal;

/* Chooses a row for each axis. Tensors that are split stay split: where inputs are SHARD along an axis, rows
 * that take one of them as it is come first, then rows that split the work otherwise, and last rows that gather all of
 * them, which would repeat the same arithmetic on every rank. Among those the row wins whose transitions send the
 * fewest bytes, forward and backward, a sum that is left open counting as its all-reduce; the first on ties.
 * TSH_ERR_LAYOUT, naming all layouts, where an axis has no row. */
tsh_status tshi_rules_choose(const tsh_call *call, const tshi_goal *goal, tshi_rule_rows *rows);
/* The layouts that the rows want of input i. TSH_ERR_LAYOUT where one axis would cut the units of another. */
tsh_status tshi_rules_need(const tsh_call *call, const tshi_rule_rows *rows, int i, tsh_layout need[TSH_MAX_AXES]);

#endif
