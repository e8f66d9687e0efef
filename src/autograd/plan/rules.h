/* Layout rules: from the layouts of a call's inputs to a row of its operation's rules for each axis. */
#ifndef TSHI_RULES_H
#define TSHI_RULES_H

#include "autograd/op.h"

/* A row for each axis; `bound` is the SHARD layout that the row's BATCH, STACK, ANY or OTHER stands for. */
typedef struct tshi_rule_rows {
    const tsh_rule *row[TSH_MAX_AXES];
    tsh_layout bound[TSH_MAX_AXES];
    tsh_layout out[TSH_MAX_AXES]; /* the output's layouts */
    bool stay;                    /* every input is REPLICATED along every axis, and the rows want that */
    bool ordered;                 /* the split order is `sequence`, not the order of the axes */
    int sequence[TSH_MAX_AXES];
} tshi_rule_rows;

/* The goal of a plan: the output's metadata by the shape rule, and the settings. */
typedef struct tshi_goal {
    tsh_dtype dtype;
    const tsh_shape *shape;
    const tshi_want *want; /* a layer's, or NULL */
    bool deterministic;    /* output and gradients must have one rank's bits */
    bool recording;        /* calls are recorded where an input wants a gradient */
} tshi_goal;

/* Chooses a row for each axis. Sharded tensors stay sharded: if inputs are SHARD along an axis, rows that use one of
 * them in its layout come first, then rows that split the work in another way, and last rows that gather all inputs, so
 * that every rank repeats the same work. Among equals, the row wins whose transitions send the fewest bytes, forward
 * and backward, where a sum left open counts as its all-reduce; ties go to the first row. TSH_ERR_LAYOUT, naming all
 * layouts, if an axis has no row. */
tsh_status tshi_rules_choose(const tsh_call *call, const tshi_goal *goal, tshi_rule_rows *rows);
/* The layouts that the rows want of input i. TSH_ERR_LAYOUT if one axis would cut the units of another. */
tsh_status tshi_rules_need(const tsh_call *call, const tshi_rule_rows *rows, int i, tsh_layout need[TSH_MAX_AXES]);

#endif
