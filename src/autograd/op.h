/* A differentiable operation, and a call of it. Plain data: all other headers of src/autograd build on it. */
#ifndef TSHI_OP_H
#define TSHI_OP_H

#include "dist/world.h"
#include "tensor/tensor.h"
#include "tshard/custom.h"

/* What a layer wants of a call. */
typedef struct tshi_want {
    /* Bit i: input i is a parameter, whose values are not moved. Rules may use it in its own layouts; if it is
     * REPLICATED, also as LOCAL, so that its gradient is summed, or as PARTIAL, so that a sum over ranks contains it
     * once. */
    unsigned parameters;
    bool as_stored; /* inputs are not cast to their arithmetic (cast.h) */
    bool asks;      /* each call runs the shape rule, which may read more than metadata */
    int axis;       /* along which the output is brought to `out`; -1: none */
    tsh_layout out;
} tshi_want;

/* A collective of a call's backward that is in flight, and the tensor that it fills; both are NULL without one. */
typedef struct tshi_started {
    tsh_work *work;
    tsh_tensor *result;
} tshi_started;

typedef struct tshi_call_flags {
    bool used : 1;     /* a backward has run this call and released its tensors */
    bool moved_on : 1; /* this backward has passed on the terms of the output's gradient so far */
    bool shares : 1;   /* the output is a view of the first input */
    bool saves : 1;    /* forward saves tensors, which the innermost segment frees */
} tshi_call_flags;

/* One call of an operation: on the stack during forward, then on the tape if it may need a gradient. A recorded call
 * holds a reference to every tensor in it; `in` and `params` live in the tape's arena of the step. */
struct tsh_call {
    tsh_tape *tape;
    const tsh_op *op;
    int inputs;
    tsh_tensor **in;
    tsh_tensor *out;
    tsh_tensor *saved[TSH_CALL_SLOTS]; /* saved by forward for backward */
    void *params;
    tshi_started started; /* before backward reaches the call */
    tshi_call_flags flags;
    uint64_t versions; /* of its tensors, after forward (call.c) */

    /* Numbers of segments (segment.h), from 1 on; 0: none. */
    int segment;  /* the innermost segment that contains the call */
    int freed_by; /* the segment that frees the output's memory */
};

/* True for operations without rows, which only move values between layouts: their backward does not round. */
static inline bool tshi_op_moves(const tsh_op *op) {
    return !op->rules && op->repeats;
}

/* True when forward and backward run on this rank: outside the meshes of input and output, a call is only recorded. */
static inline bool tshi_call_runs(const tsh_call *call) {
    return tshi_mesh_has_me(call->in[0]->mesh) || tshi_mesh_has_me(call->out->mesh);
}

/* Forward has saved a tensor. */
static inline bool tshi_call_saves(const tsh_call *call) {
    return ((uintptr_t)call->saved[0] | (uintptr_t)call->saved[1] | (uintptr_t)call->saved[2]) != 0;
}

/* The dim in the call's params; -1 if the operation has none. */
static inline int tshi_call_dim(const tsh_call *call) {
    return call->op->has_dim ? *(const int *)call->params : -1;
}

/* True for dtypes that have gradients. Costs of transitions of such tensors include the backward's, whether or not the
 * call is recorded, so that a program uses the same rows in training and in evaluation. */
static inline bool tshi_differentiable(const tsh_tensor *x) {
    return tshi_device_computes(x->mesh->device, x->dtype);
}

/* Backward of the identity: dx = dy. */
tsh_status tshi_pass_gradient(tsh_call *call);

#endif
