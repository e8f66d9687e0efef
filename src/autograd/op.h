/* What a differentiable operation is, and one call of it. Plain data: every other header of this room stands on it. */
#ifndef TSHI_OP_H
#define TSHI_OP_H

#include "dist/world.h"
#include "tensor/tensor.h"
#include "tshard/custom.h"

/* What a call wants beside what the rules allow. */
typedef struct tshi_want {
    /* Bit i: input i is a parameter, whose values stay where they are. Rules may use it as it is, and where it is
     * REPLICATED as LOCAL, so that its gradient is summed, or as PARTIAL, so that a sum over ranks has it once. */
    unsigned parameters;
    bool as_stored; /* inputs are taken in their own dtype, whatever their arithmetic is (cast.h) */
    bool asks;      /* the shape rule, which may read anything, is asked in each call */
    int axis;       /* along which the output is brought to `out`; -1: none */
    tsh_layout out;
} tshi_want;

/* A collective of a call's backward, under way, and the tensor that it fills; or NULL. */
typedef struct tshi_started {
    tsh_work *work;
    tsh_tensor *result;
} tshi_started;

typedef struct tshi_call_flags {
    bool used : 1;     /* a backward has passed this call and released its tensors */
    bool moved_on : 1; /* this backward has passed on what calls have added to the output's gradient so far */
    bool shares : 1;   /* the output is a view of the first input */
    bool saves : 1;    /* forward saves tensors, which the innermost segment frees */
} tshi_call_flags;

/* One call of an operation: on the stack during forward, then on the tape if a gradient may be asked of it. A recorded
 * call holds a reference to every tensor in it; `in` and `params` are in the tape's memory of the step. */
struct tsh_call {
    tsh_tape *tape;
    const tsh_op *op;
    int inputs;
    tsh_tensor **in;
    tsh_tensor *out;
    tsh_tensor *saved[TSH_CALL_SLOTS]; /* what forward keeps for backward */
    void *params;
    tshi_started started; /* before backward comes to the call */
    tshi_call_flags flags;
    uint64_t versions; /* when forward had run: tshi_call_versions */

    /* Segments (segment.h) have numbers from 1 on; 0: none. */
    int segment;    /* the innermost one that the call is in */
    int dropped_by; /* the one that frees the output's memory */
};

/* The operation moves values, between layouts or to another name, and has no rows of its own: backward rounds nothing. */
static inline bool tshi_op_moves(const tsh_op *op) {
    return !op->rules && op->repeats;
}

/* Forward and backward run on this rank: on one outside the meshes of input and output a call is recorded, and does
 * nothing. */
static inline bool tshi_call_runs(const tsh_call *call) {
    return tshi_mesh_has_me(call->in[0]->mesh) || tshi_mesh_has_me(call->out->mesh);
}

/* The dim of the call's params, -1 where its operation has none. */
static inline int tshi_call_dim(const tsh_call *call) {
    return call->op->has_dim ? *(const int *)call->params : -1;
}

/* The tensor's element type has gradients: its transitions cost their backward too, whether or not a gradient is asked
 * for, so that a program takes the same rows with and without recording. */
static inline bool tshi_differentiable(const tsh_tensor *x) {
    return tshi_device_computes(x->mesh->device, x->dtype);
}

/* The backward dx = dy. */
tsh_status tshi_pass_gradient(tsh_call *call);

#endif
