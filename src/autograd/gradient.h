/* Gradients: what autograd keeps for a tensor, the memory that backward adds to, and sinks, which sum gradients of
 * leaves over ranks in their own time. */
#ifndef TSHI_GRADIENT_H
#define TSHI_GRADIENT_H

#include "autograd/op.h"

typedef struct tshi_gradient_sink tshi_gradient_sink;
typedef struct tshi_sparse_gradient tshi_sparse_gradient;
typedef struct tshi_gradient_taker tshi_gradient_taker;

/* What autograd keeps for a tensor: made when a gradient is asked of it, a call that made it is recorded, or it takes a
 * transition; freed with the tensor. */
typedef struct tshi_gradient {
    bool required;      /* the tensor is, or comes from, a leaf that wants a gradient */
    bool retained;      /* of an intermediate tensor: kept past backward */
    bool stale;         /* `value` is memory to reuse, its elements are not to be read */
    bool wide;          /* of a leaf, and of transitions made of it: `value` is of the dtype of sums, tshi_dtype_sum */
    bool parameter;     /* of a leaf: a layer has it, or a list */
    bool stepped;       /* of a leaf: an optimizer has it */
    uint8_t arithmetic; /* 1 + the dtype that functions compute in which take the tensor; 0: its own */
    tsh_tensor *value;
    tsh_tensor *kept; /* with `retained`: the sum over the backwards of this step, each of which starts `value` anew */
    tsh_tensor *term; /* what the running call has added beside `value`: where that is wide, of the tensor's own dtype,
                       * and in a deterministic world */
    tshi_gradient_taker *taker; /* of a leaf: takes its gradient in place of `value` where that is possible, or NULL */
    tshi_sparse_gradient *sparse; /* of a leaf whose gradient may have some rows alone; or NULL */
    int uses;                     /* calls of the running backward that may still add to `value` */
    tshi_gradient_sink *sink;     /* sums the gradient of this leaf, or of the leaf that this tensor is a copy of */
    int slot;                     /* the leaf's number in the sink */
    unsigned sums;                /* the axes, a bit each, along which the sink sums the leaf's gradient */
    uint64_t generation;          /* the tape's step that the fields below belong to */
    int node;                     /* index of the call that made the tensor, where tsh_tensor.computed */
    tsh_tensor *moved;            /* first of the transitions made of the tensor in this step */
    tsh_tensor *next_moved;       /* next in the list that this tensor is in */
    tsh_tensor *moved_from;       /* the tensor whose list that is, or NULL */
    uint64_t moved_version;       /* of that tensor (tshi_tensor_version), when this one was made of it */
} tshi_gradient;

/* The tensor's, made if there is none; NULL with the message set. */
tshi_gradient *tshi_gradient_of(tsh_tensor *tensor);
static inline bool tshi_requires_grad(const tsh_tensor *tensor) {
    return tensor->gradient && tensor->gradient->required;
}
/* Leaves the list of transitions that the tensor is in, and empties its own. */
void tshi_gradient_leave_lists(tsh_tensor *tensor);
/* The step is over: a tensor that outlives it becomes a leaf. */
void tshi_gradient_end_step(tsh_tensor *tensor);

/* --- for the backward of operations ------------------------------------------------------------------------------- */

/* Beside those of tshard/custom.h. What tsh_call_grad returns is of the input's dtype: where the gradient is wide, what the
 * call writes is added to it afterwards. The memory of tsh_call_grad_out is passed on or overwritten only through
 * tshi_grad_adopt. */

/* tsh_call_grad_adopt without its checks. */
tsh_status tshi_grad_adopt(const tsh_call *call, int i, tsh_tensor *gradient);
/* Input i's gradient for kernels that can start a sum: *beta is 0 the first time (the memory is not zeroed), then 1. */
tsh_tensor *tshi_grad_beta(const tsh_call *call, int i, double *beta);
/* tshi_grad_beta for kernels that write the dtype of sums, too: the gradient itself, of tshi_gradient_dtype. */
tsh_tensor *tshi_grad_sum(const tsh_call *call, int i, double *beta);

/* The call that made input i, where this call alone adds to the input's gradient in this backward, has not added to it
 * yet, and nothing but the maker's backward reads it: this call may do a part of that backward. Otherwise NULL. To be
 * called before the gradient's memory is taken. */
tsh_call *tshi_grad_maker(const tsh_call *call, int i);

/* --- gradients that are used up as they are made ------------------------------------------------------------------ */

/* Takes the gradient of a leaf [rows, cols], some rows at a time, each row once in a backward. */
struct tshi_gradient_taker {
    void (*begin)(tshi_gradient_taker *taker);
    /* Rows [first, first + count) of this rank's part, of the leaf's dtype, in the device's memory. */
    void (*take)(tshi_gradient_taker *taker, int64_t first, int64_t count, const void *values);
};

/* The taker of input i, a leaf, where this call alone makes all of its gradient in this backward, and where nothing sums it
 * over ranks and no other backward reads its values; else NULL. */
tshi_gradient_taker *tshi_grad_taker(const tsh_call *call, int i);

/* --- for the engine ----------------------------------------------------------------------------------------------- */

/* The call's backward has returned `status`: what it has written beside wide gradients is added to them. */
tsh_status tshi_gradient_settle(const tsh_call *call, tsh_status status);
/* The dtype of x's gradient: x's, or that of sums. */
tsh_dtype tshi_gradient_dtype(const tsh_tensor *x);
/* The dtype that functions compute in which take x. */
static inline tsh_dtype tshi_gradient_computed_in(const tsh_tensor *x) {
    int arithmetic = x->gradient ? x->gradient->arithmetic : 0;
    return arithmetic ? (tsh_dtype)(arithmetic - 1) : x->dtype;
}
/* Gradients of the leaf are of the dtype of sums, or of its own, from now on; one that it has is gone. TSH_ERR_STATE
 * where a sink has it. */
tsh_status tshi_gradient_set_wide(tsh_tensor *leaf, bool wide);
/* A gradient of x: memory of its own, not zeroed. */
tsh_status tshi_gradient_new(const tsh_tensor *x, tsh_tensor **out);
/* The mesh, the shape and the layouts of the tensor are those of a gradient of x. */
bool tshi_gradient_fits(const tsh_tensor *x, const tsh_tensor *tensor);
/* A gradient of x in the memory of `values`. */
tsh_status tshi_gradient_view(const tsh_tensor *x, const tsh_tensor *values, tsh_tensor **out);
/* tshi_gradient_new of another dtype. */
tsh_status tshi_gradient_new_as(const tsh_tensor *x, tsh_dtype dtype, tsh_tensor **out);
void tshi_gradient_release_value(tshi_gradient *gradient);

/* --- sinks -------------------------------------------------------------------------------------------------------- */

/* A tape has one sink at most. Leaves whose values ranks have in common along one or more axes, and use with data that
 * differs along them, may have a slot in the sink each; their gradients and those of their copies for this rank's own use
 * go to memory of the sink, which sums them along these axes while backward goes on, or later. */
typedef struct tshi_gradient_sink_ops {
    /* Called before the first call of a backward from `loss`. The gradients that this backward may add to are those of
     * the slots whose leaf has uses > 0. */
    tsh_status (*begin)(tshi_gradient_sink *sink, const tsh_tensor *loss);
    /* Returns the memory to add the gradient of x to, the slot's leaf or a copy of it, with *beta as tshi_grad_beta has
     * it; NULL with the message set. Along an axis for which x is this rank's own (tshi_layout_is_own) what is added
     * is a term of the sum; along another one it is the same on all ranks. */
    tsh_tensor *(*memory)(tshi_gradient_sink *sink, int slot, const tsh_tensor *x, double *beta);
    /* No call of this backward adds to the gradient of the slot's leaf any more. */
    void (*complete)(tshi_gradient_sink *sink, int slot);
    /* Called after each call of the backward: starts the sums that are complete and moves those under way on. */
    tsh_status (*advance)(tshi_gradient_sink *sink);
    /* Called after the last call of a backward that returned `status`; what it returns is the backward's status. */
    tsh_status (*end)(tshi_gradient_sink *sink, tsh_status status);
    /* Waits until the gradient of the slot's leaf is summed. Not TSH_OK: the sum has failed, or was not started. */
    tsh_status (*wait)(tshi_gradient_sink *sink, int slot);
    /* The step has failed and is over: the gradients of all slots become stale. */
    void (*drop)(tshi_gradient_sink *sink);
    /* What functions take in place of the leaf: the leaf, or a whole of which it is this rank's slice, whose values a
     * lender brings. NULL: always the leaf. */
    tsh_tensor *(*stand_in)(tshi_gradient_sink *sink, tsh_tensor *leaf);
    /* The tape is destroyed; the sink lives on. */
    void (*detach)(tshi_gradient_sink *sink);
} tshi_gradient_sink_ops;

struct tshi_gradient_sink {
    const tshi_gradient_sink_ops *ops;
    int axis;      /* of the leaves' mesh: that of the copies of the model */
    double weight; /* of a loss in the objective: what its gradient starts with */
};

/* What functions take in place of x. */
static inline tsh_tensor *tshi_gradient_stand_in(tsh_tensor *x) {
    tshi_gradient_sink *sink = x->gradient && !x->computed ? x->gradient->sink : NULL;
    return sink && sink->ops->stand_in ? sink->ops->stand_in(sink, x) : x;
}
/* Waits until the leaf's gradient, if it has one, is summed by its sink. */
tsh_status tshi_gradient_wait(const tsh_tensor *leaf);
/* The tensor, or the leaf of which it is a cast (cast.h). */
static inline const tsh_tensor *tshi_gradient_cast_leaf(const tsh_tensor *tensor) {
    const tsh_tensor *from = tensor->computed ? tensor->gradient->moved_from : NULL;
    return from && !from->computed && from->dtype != tensor->dtype ? from : tensor;
}
/* The axes along which a sink sums the gradient of this leaf, or of the leaf that the tensor is a copy or a cast of. */
static inline unsigned tshi_gradient_sink_axes(const tsh_tensor *tensor) {
    const tshi_gradient *g = tshi_gradient_cast_leaf(tensor)->gradient;
    return g && g->sink ? g->sums : 0;
}
/* The transition makes values that ranks have in common each rank's own. */
static inline bool tshi_gradient_divides(tsh_layout from, tsh_layout to) {
    if (to.kind == TSH_KIND_LOCAL) return from.kind == TSH_KIND_REPLICATED;
    if (to.sharing != TSH_SHARED_OWN || from.sharing != TSH_SHARED) return false;
    to.sharing = TSH_SHARED;
    return tshi_layout_alike(from, to);
}

#endif
