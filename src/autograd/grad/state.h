/* The state of a tensor's gradient, and targets: where the gradient of a leaf goes. */
#ifndef TSHI_GRADIENT_STATE_H
#define TSHI_GRADIENT_STATE_H

#include "tensor/tensor.h"

typedef struct tshi_gradient_target tshi_gradient_target;

/* What stands behind a leaf: the more it is, the more is expected of its gradient. */
typedef enum tshi_gradient_role {
    TSHI_GRADIENT_OF_TENSOR,
    TSHI_GRADIENT_OF_PARAMETER, /* a layer has the leaf, or a list */
    TSHI_GRADIENT_OF_STEPPED    /* so has an optimizer */
} tshi_gradient_role;

/* What autograd keeps for a tensor: made when a gradient is asked of it, a call that made it is recorded, or it takes a
 * transition; freed with the tensor. */
typedef struct tshi_gradient {
    bool required;      /* the tensor is, or comes from, a leaf that wants a gradient */
    bool retained;      /* of an intermediate tensor: kept past backward */
    bool stale;         /* `value` is memory to reuse, its elements are not to be read */
    bool wide;          /* of a leaf, and of transitions made of it: `value` is of the dtype of sums, tshi_dtype_sum */
    uint8_t role;       /* of a leaf: tshi_gradient_role */
    uint8_t arithmetic; /* 1 + the dtype that functions compute in which take the tensor; 0: its own */
    int uses;           /* calls of the running backward that may still add to `value` */
    tsh_tensor *value;
    tsh_tensor
        *kept; /* with `retained`: the sum of `value` over the backwards of this step; each backward starts it anew */
    tshi_gradient_target *target; /* of a leaf, and of a copy of it that a schedule sums; NULL: `value` */
    uint64_t generation;          /* the tape's step that the fields below belong to */
    int node;                     /* index of the call that made the tensor, where tsh_tensor.computed */
    tsh_tensor *moved;            /* first of the transitions made of the tensor in this step */
    tsh_tensor *next_moved;       /* next in the list that this tensor is in */
    tsh_tensor *moved_from;       /* the tensor whose list that is, or NULL */
    uint64_t moved_version;       /* of that tensor (tshi_tensor_version), when this one was made of it */
} tshi_gradient;

/* --- targets ------------------------------------------------------------------------------------------------------ */

/* What becomes of the gradient of a leaf, where that is not simply added up in `value`. A slot that is NULL leaves that
 * to the target under this one, and under the last one to `value`. */
typedef struct tshi_target_ops {
    /* Returns the memory to add the gradient of x to, the leaf or a copy of it, with *beta as tshi_grad_beta has it;
     * NULL with the message set. Along an axis of the target for which x is this rank's own (tshi_layout_is_own) what
     * is added is a term of the sum; along another one it is the same on all ranks. The targets under it are never
     * asked. */
    tsh_tensor *(*memory)(tshi_gradient_target *target, const tsh_tensor *x, double *beta);
    /* Adds row i of `values` to row ids[i] - start of the leaf's gradient; ids of other rows, and those that are
     * `padding` (-1: none), are left out. `values` is of the gradient's dtype; `sole`: its memory may become the
     * gradient's. */
    tsh_status (*add_rows)(tshi_gradient_target *target, const tsh_tensor *leaf, const tsh_tensor *ids, int64_t start,
                           int64_t padding, const tsh_tensor *values, bool sole);
    /* Rows of the gradient of a leaf [rows, cols] are added one by one so far, and there is no other sum. */
    bool (*has_rows)(const tshi_gradient_target *target);
    /* Uses up rows [first, first + count) of this rank's part of a leaf [rows, cols], of the leaf's dtype, in the
     * device's memory: a backward's whole gradient, from row 0 on. */
    void (*take_rows)(tshi_gradient_target *target, int64_t first, int64_t count, const void *values);
    /* No call of this backward adds to the leaf's gradient any more. */
    void (*complete)(tshi_gradient_target *target);
    /* Waits until the leaf's gradient is summed. Not TSH_OK: the sum has failed, or was not started. */
    tsh_status (*wait)(tshi_gradient_target *target);
    /* The gradient is to be empty, or the leaf's. NULL: nothing is kept beside `value`. */
    void (*clear)(tshi_gradient_target *target, tshi_gradient *gradient);
    /* The leaf is freed. NULL: the target is not the leaf's own. */
    void (*free)(tshi_gradient_target *target);
} tshi_target_ops;

/* Sums gradients of leaves over ranks in its own time, for one tape. */
typedef struct tshi_gradient_schedule tshi_gradient_schedule;

struct tshi_gradient_target {
    const tshi_target_ops *ops;
    tshi_gradient_target *under;      /* or NULL */
    tshi_gradient_schedule *schedule; /* of a target with `memory`; else NULL */
    unsigned sums;                    /* the axes, a bit each, along which the schedule sums the gradient */
    tsh_tensor *whole; /* what functions take in place of the leaf, which is this rank's slice of it; or NULL */
};

typedef struct tshi_schedule_ops {
    /* Called before the first call of a backward from `loss`. The gradients that this backward may add to are those of
     * the leaves, and of what functions take in their place, that have uses > 0. */
    tsh_status (*begin)(tshi_gradient_schedule *schedule, const tsh_tensor *loss);
    /* Called after each call of the backward: starts the sums that are complete and moves those under way on. */
    tsh_status (*advance)(tshi_gradient_schedule *schedule);
    /* Called after the last call of a backward that returned `status`; what it returns is the backward's status. */
    tsh_status (*end)(tshi_gradient_schedule *schedule, tsh_status status);
    /* The step has failed and is over: the gradients of all leaves become stale. */
    void (*drop)(tshi_gradient_schedule *schedule);
    /* The tape is destroyed; the schedule lives on. */
    void (*detach)(tshi_gradient_schedule *schedule);
} tshi_schedule_ops;

struct tshi_gradient_schedule {
    const tshi_schedule_ops *ops;
    int axis;      /* of the leaves' mesh: that of the copies of the model */
    double weight; /* of a loss in the objective: what its gradient starts with */
};

/* The leaf's gradient goes to the target from now on: over all others where that has memory, else below those that
 * do. */
void tshi_gradient_attach(tsh_tensor *leaf, tshi_gradient_target *target);
void tshi_gradient_detach(tsh_tensor *leaf, tshi_gradient_target *target);

/* There is no gradient; memory for one may be left. */
void tshi_gradient_clear(tshi_gradient *gradient);

/* What sums the gradient of this leaf, or of the leaf that the tensor is a copy of; or NULL. */
static inline tshi_gradient_schedule *tshi_gradient_schedule_of(const tsh_tensor *x) {
    return x->gradient && x->gradient->target ? x->gradient->target->schedule : NULL;
}
/* What functions take in place of x. */
static inline tsh_tensor *tshi_gradient_whole(tsh_tensor *x) {
    const tshi_gradient_target *target = x->gradient && !x->computed ? x->gradient->target : NULL;
    return target && target->whole ? target->whole : x;
}

/* --- the state ---------------------------------------------------------------------------------------------------- */

/* The tensor's gradient state, made at the first call; NULL with the message set where there is no memory. */
tshi_gradient *tshi_gradient_make(tsh_tensor *tensor);
static inline tshi_gradient *tshi_gradient_of(tsh_tensor *tensor) {
    return tensor->gradient ? tensor->gradient : tshi_gradient_make(tensor);
}
static inline bool tshi_requires_grad(const tsh_tensor *tensor) {
    return tensor->gradient && tensor->gradient->required;
}
/* Leaves the list of transitions that the tensor is in, and empties its own. */
void tshi_gradient_leave_lists(tsh_tensor *tensor);
/* The step is over: a tensor that outlives it becomes a leaf. */
void tshi_gradient_end_step(tsh_tensor *tensor);
/* The dtype of x's gradient: x's, or that of sums. */
tsh_dtype tshi_gradient_dtype(const tsh_tensor *x);
/* The dtype that functions compute in which take x. */
static inline tsh_dtype tshi_gradient_computed_in(const tsh_tensor *x) {
    int arithmetic = x->gradient ? x->gradient->arithmetic : 0;
    return arithmetic ? (tsh_dtype)(arithmetic - 1) : x->dtype;
}
/* `copy`, of which a gradient may be asked, is x under another name: its gradient is of the dtype of x's, and functions
 * compute with it as with x. */
static inline void tshi_gradient_go_on(const tsh_tensor *x, const tsh_tensor *copy) {
    if (!copy->computed) return;
    copy->gradient->wide = x->gradient->wide;
    copy->gradient->arithmetic = x->gradient->arithmetic;
}
/* Gradients of the leaf are of the dtype of sums, or of its own, from now on; one that it has is gone. TSH_ERR_STATE
 * where a schedule sums it. */
tsh_status tshi_gradient_set_wide(tsh_tensor *leaf, bool wide);
/* A gradient of x: memory of its own, not zeroed. */
tsh_status tshi_gradient_new(const tsh_tensor *x, tsh_tensor **out);
/* tshi_gradient_new of another dtype. */
tsh_status tshi_gradient_new_as(const tsh_tensor *x, tsh_dtype dtype, tsh_tensor **out);
/* The mesh, the shape and the layouts of the tensor are those of a gradient of x. */
bool tshi_gradient_fits(const tsh_tensor *x, const tsh_tensor *tensor);
/* A gradient of x in the memory of `values`. */
tsh_status tshi_gradient_view(const tsh_tensor *x, const tsh_tensor *values, tsh_tensor **out);
void tshi_gradient_release_value(tshi_gradient *gradient);
/* Waits until the leaf's gradient, if it has one, is summed. */
tsh_status tshi_gradient_wait(const tsh_tensor *leaf);

/* --- copies of leaves --------------------------------------------------------------------------------------------- */

/* The leaf that the tensor was cast from (cast.h), or the tensor itself if it is no cast. */
static inline const tsh_tensor *tshi_gradient_cast_leaf(const tsh_tensor *tensor) {
    const tsh_tensor *from = tensor->computed ? tensor->gradient->moved_from : NULL;
    return from && !from->computed && from->dtype != tensor->dtype ? from : tensor;
}
/* The axes along which a schedule sums the gradient of this leaf, or of the leaf that the tensor is a copy or a cast
 * of. */
static inline unsigned tshi_gradient_summed_axes(const tsh_tensor *tensor) {
    const tshi_gradient *g = tshi_gradient_cast_leaf(tensor)->gradient;
    return g && g->target ? g->target->sums : 0;
}
/* The transition makes values that ranks have in common each rank's own. */
static inline bool tshi_gradient_divides(tsh_layout from, tsh_layout to) {
    if (to.kind == TSH_KIND_LOCAL) return from.kind == TSH_KIND_REPLICATED;
    if (to.sharing != TSH_SHARED_OWN || from.sharing != TSH_SHARED) return false;
    to.sharing = TSH_SHARED;
    return tshi_layout_alike(from, to);
}

#endif
