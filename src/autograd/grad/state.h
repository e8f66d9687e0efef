/* The state of a tensor's gradient, and targets: where the gradient of a leaf goes. */
#ifndef TSHI_GRADIENT_STATE_H
#define TSHI_GRADIENT_STATE_H

#include "tensor/tensor.h"

typedef struct tshi_gradient_target tshi_gradient_target;

/* The memo of a tensor from which transitions or casts were made in this step, or that was made by one; in the memory
 * of the step. */
typedef struct tshi_memo {
    tsh_tensor *tensor;
    struct tshi_memo *made;   /* first of those made of the tensor */
    struct tshi_memo *next;   /* made of the same tensor */
    struct tshi_memo *origin; /* of the tensor from which this one was made; NULL: of none, or of one that is freed */
    uint16_t origin_version;  /* of that tensor (tshi_tensor_version), when this one was made of it */
} tshi_memo;

/* Autograd's state of a tensor: created when the tensor requires a gradient, its call is recorded, or a transition is
 * made of it; freed with the tensor. */
typedef struct tshi_gradient {
    bool required;      /* the tensor is, or comes from, a leaf that wants a gradient */
    bool stale;         /* `value` is only memory to reuse */
    bool wide;          /* of a leaf and its transitions: `value` has the dtype of sums, tshi_dtype_sum */
    uint8_t arithmetic; /* 1 + the dtype in which functions of the tensor compute; 0: its own */
    int uses;           /* calls of the running backward that may still add to `value` */
    tsh_tensor *value;
    tshi_gradient_target *target; /* of a leaf, a copy of it that a schedule sums, or a retained gradient; or NULL */
    uint64_t generation;          /* the tape's step that the fields below belong to */
    int node;                     /* index of the call that made the tensor, where tsh_tensor.computed */
    tshi_memo *memo;              /* or NULL */
} tshi_gradient;

/* --- targets ------------------------------------------------------------------------------------------------------ */

/* The destination of a leaf's gradient, if it is not simply accumulated in `value`. A NULL function defers to the
 * target under this one, and under the last one to `value`. */
typedef struct tshi_target_ops {
    /* Returns the memory to which the gradient of x, the leaf or a copy of it, is added, with *beta as in
     * tshi_grad_beta; NULL with the message set. Along axes where x is this rank's own (tshi_layout_is_own), the
     * addition is a term of the sum; along other axes it is the same on all ranks. Targets under this one are not
     * called. */
    tsh_tensor *(*memory)(tshi_gradient_target *target, const tsh_tensor *x, double *beta);
    /* Adds row i of `values` to row ids[i] - start of the leaf's gradient; skips ids of other rows, and `padding` (-1:
     * none). `values` has the gradient's dtype; `sole`: its memory may become the gradient's. */
    tsh_status (*add_rows)(tshi_gradient_target *target, const tsh_tensor *leaf, const tsh_tensor *ids, int64_t start,
                           int64_t padding, const tsh_tensor *values, bool sole);
    /* True while the gradient of a leaf [rows, cols] has only added rows. */
    bool (*has_rows)(const tshi_gradient_target *target);
    /* Changes n elements of the leaf's gradient, which is complete and summed over ranks, before a step uses them. Each
     * backward passes each element once. */
    void (*revise)(tshi_gradient_target *target, tsh_dtype dtype, int64_t n, void *elements);
    /* Takes rows [first, first + count) of the gradient of this rank's part of a leaf [rows, cols], in the leaf's dtype
     * and device memory; they are revised before. One backward passes all rows, from row 0 on. */
    void (*take_rows)(tshi_gradient_target *target, int64_t first, int64_t count, const void *values);
    /* Called when no further call of this backward adds to the leaf's gradient. */
    void (*complete)(tshi_gradient_target *target);
    /* Fails if the leaf's gradient is not summed: no backward has summed it, or one has failed. */
    tsh_status (*check)(const tshi_gradient_target *target);
    /* Called when the gradient is cleared. NULL: only `value` is kept. */
    void (*clear)(tshi_gradient_target *target, tshi_gradient *gradient);
    /* Called when the leaf is freed. NULL: the leaf does not own the target. */
    void (*free)(tshi_gradient_target *target);
    bool steps; /* an optimizer's: its steps use the gradient */
} tshi_target_ops;

/* Sums gradients of leaves over ranks asynchronously, for one tape. */
typedef struct tshi_gradient_schedule tshi_gradient_schedule;

struct tshi_gradient_target {
    const tshi_target_ops *ops;
    tshi_gradient_target *under;      /* or NULL */
    tshi_gradient_schedule *schedule; /* of a target with `memory`; else NULL */
    unsigned sums;                    /* bits of the axes along which the schedule sums the gradient */
    tsh_tensor *whole; /* the whole parameter, for functions, if the leaf is this rank's slice of it; or NULL */
};

typedef struct tshi_schedule_ops {
    /* Called before backward from `loss` runs its first call. It may add to the gradients of leaves, or of whole
     * parameters in their place, with uses > 0. */
    tsh_status (*begin)(tshi_gradient_schedule *schedule, const tsh_tensor *loss);
    /* Called after each call of backward: starts sums whose gradients are complete, and progresses those in flight. */
    tsh_status (*advance)(tshi_gradient_schedule *schedule);
    /* Called after the last call of a backward with its status; returns the final status. */
    tsh_status (*end)(tshi_gradient_schedule *schedule, tsh_status status);
    /* Called when a failed step ends: all leaves' gradients become stale. */
    void (*drop)(tshi_gradient_schedule *schedule);
    /* Called when the tape is destroyed; the schedule lives on. */
    void (*detach)(tshi_gradient_schedule *schedule);
} tshi_schedule_ops;

struct tshi_gradient_schedule {
    const tshi_schedule_ops *ops;
    int axis;      /* the mesh axis of data parallelism */
    double weight; /* of a loss in the objective: its initial gradient */
};

/* Attaches a target to the leaf: above all others if it has `memory`, else below those that have. */
void tshi_gradient_attach(tsh_tensor *leaf, tshi_gradient_target *target);
void tshi_gradient_detach(tsh_tensor *leaf, tshi_gradient_target *target);

/* Called when n elements of the leaf's gradient are complete, and summed over ranks: calls the targets' revise. */
void tshi_gradient_revise(const tsh_tensor *leaf, tsh_dtype dtype, int64_t n, void *elements);
/* Called when all of the leaf's gradient, dense or sparse, is. */
void tshi_gradient_revise_all(const tsh_tensor *leaf);

/* Clears the gradient; its memory may stay. */
void tshi_gradient_clear(tshi_gradient *gradient);

/* The target whose schedule sums the gradient of this leaf, or of the leaf that x is a copy of; or NULL. */
static inline tshi_gradient_target *tshi_gradient_summing(const tsh_tensor *x) {
    tshi_gradient_target *target = x->gradient ? x->gradient->target : NULL;
    while (target && !target->schedule) target = target->under;
    return target;
}
/* Its schedule, or NULL. */
static inline tshi_gradient_schedule *tshi_gradient_schedule_of(const tsh_tensor *x) {
    const tshi_gradient_target *target = tshi_gradient_summing(x);
    return target ? target->schedule : NULL;
}
/* Removes that target from x, a copy of a leaf. */
void tshi_gradient_leave_schedule(const tsh_tensor *x);
/* True when an optimizer steps the leaf. */
bool tshi_gradient_steps(const tsh_tensor *leaf);
/* The tensor that functions take in place of x: the whole parameter if x is a slice. */
static inline tsh_tensor *tshi_gradient_whole(tsh_tensor *x) {
    const tshi_gradient_target *target = x->gradient && !x->computed ? x->gradient->target : NULL;
    return target && target->whole ? target->whole : x;
}

/* --- the state ---------------------------------------------------------------------------------------------------- */

/* The tensor's gradient state, created by the first call; NULL with the message set without memory. */
tshi_gradient *tshi_gradient_make(tsh_tensor *tensor);
static inline tshi_gradient *tshi_gradient_of(tsh_tensor *tensor) {
    return tensor->gradient ? tensor->gradient : tshi_gradient_make(tensor);
}
static inline bool tshi_requires_grad(const tsh_tensor *tensor) {
    return tensor->gradient && tensor->gradient->required;
}
/* True for a leaf that the program has frozen (tsh_tensor_require_grad), other than one that never had a gradient. */
static inline bool tshi_gradient_is_frozen(const tsh_tensor *tensor) {
    return tensor->gradient && !tensor->gradient->required && !tensor->computed;
}
/* Freezes a layer's parameter that is in no list, an input of `what` on a tape with a schedule: no optimizer steps
 * it. */
void tshi_gradient_leave_out(const tsh_tensor *parameter, const char *what);
/* Removes the tensor's memo, and the tensor from all others. */
void tshi_gradient_forget_memo(const tsh_tensor *tensor);
/* Called at the end of the step: a tensor that outlives it becomes a leaf. */
void tshi_gradient_end_step(tsh_tensor *tensor);
/* The dtype of x's gradient: x's, or that of sums. */
tsh_dtype tshi_gradient_dtype(const tsh_tensor *x);
/* The dtype in which functions of x compute. */
static inline tsh_dtype tshi_gradient_computed_in(const tsh_tensor *x) {
    int arithmetic = x->gradient ? x->gradient->arithmetic : 0;
    return arithmetic ? (tsh_dtype)(arithmetic - 1) : x->dtype;
}
/* Gives `copy`, a copy of x that may need a gradient, the dtype of x's gradient and x's arithmetic. */
static inline void tshi_gradient_go_on(const tsh_tensor *x, const tsh_tensor *copy) {
    if (!copy->computed) return;
    copy->gradient->wide = x->gradient->wide;
    copy->gradient->arithmetic = x->gradient->arithmetic;
}
/* Sets the dtype of the leaf's gradients, that of sums or its own, and drops a present one. TSH_ERR_STATE if a schedule
 * sums it. */
tsh_status tshi_gradient_set_wide(tsh_tensor *leaf, bool wide);
/* A new gradient tensor for x, not zeroed. */
tsh_status tshi_gradient_new(const tsh_tensor *x, tsh_tensor **out);
/* tshi_gradient_new in another dtype. */
tsh_status tshi_gradient_new_as(const tsh_tensor *x, tsh_dtype dtype, tsh_tensor **out);
/* True when the tensor has the mesh, shape and layouts of x's gradient. */
bool tshi_gradient_fits(const tsh_tensor *x, const tsh_tensor *tensor);
/* A gradient of x in the memory of `values`. */
tsh_status tshi_gradient_view(const tsh_tensor *x, const tsh_tensor *values, tsh_tensor **out);
void tshi_gradient_release_value(tshi_gradient *gradient);
/* Fails if the leaf has a gradient that is not summed. */
tsh_status tshi_gradient_check(const tsh_tensor *leaf);

/* --- copies of leaves --------------------------------------------------------------------------------------------- */

/* The tensor from which this one was cast or moved in this step, or NULL. */
static inline const tsh_tensor *tshi_gradient_origin(const tsh_tensor *tensor) {
    const tshi_memo *memo = tensor->gradient ? tensor->gradient->memo : NULL;
    return memo && memo->origin ? memo->origin->tensor : NULL;
}
/* The leaf from which the tensor was cast (cast.h), or the tensor itself. */
static inline const tsh_tensor *tshi_gradient_cast_leaf(const tsh_tensor *tensor) {
    const tsh_tensor *from = tensor->computed ? tshi_gradient_origin(tensor) : NULL;
    return from && !from->computed && from->dtype != tensor->dtype ? from : tensor;
}
/* The axes along which a schedule sums the gradient of this leaf, or of the leaf that the tensor is a copy or a cast
 * of. */
static inline unsigned tshi_gradient_summed_axes(const tsh_tensor *tensor) {
    const tshi_gradient *g = tensor->gradient ? tshi_gradient_cast_leaf(tensor)->gradient : NULL;
    const tshi_gradient_target *target = g ? g->target : NULL;
    while (target && !target->sums) target = target->under;
    return target ? target->sums : 0;
}
/* True for transitions from a value that ranks share to each rank's own. */
static inline bool tshi_gradient_divides(tsh_layout from, tsh_layout to) {
    if (to.kind == TSH_KIND_LOCAL) return from.kind == TSH_KIND_REPLICATED;
    if (to.sharing != TSH_SHARED_OWN || from.sharing != TSH_SHARED) return false;
    to.sharing = TSH_SHARED;
    return tshi_layout_alike(from, to);
}

#endif
