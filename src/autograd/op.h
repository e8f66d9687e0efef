/* What a differentiable operation is, and one call of it. Plain data: every other header of this room stands on it. */
#ifndef TSHI_OP_H
#define TSHI_OP_H

#include "dist/world.h"
#include "tensor/tensor.h"
#include "tshard/custom.h"

/* What the engine alone does with an operation, beside the public struct. */
typedef struct tshi_engine_op {
    /* The gradient of the output is complete: starts the collective of `backward`, which then waits for it, and sets
     * call->work; leaves that NULL where there is nothing to start. NULL: backward has no collective. */
    tsh_status (*backward_start)(tsh_call *call);
    bool crosses;   /* input and output may be on different meshes: it runs on the ranks of either */
    bool custom;    /* its functions are the program's */
    bool as_stored; /* inputs are taken in their own dtype, whatever their arithmetic is (cast.h) */
    bool moves;     /* values are moved, between layouts or to another name: backward rounds nothing */
} tshi_engine_op;

/* What a call of a layer wants beside what the rules allow. */
typedef struct tshi_want {
    /* Bit i: input i is a parameter, whose values stay where they are. Rules may use it as it is, and where it is
     * REPLICATED as LOCAL, so that its gradient is summed, or as PARTIAL, so that a sum over ranks has it once. */
    unsigned parameters;
    int axis; /* along which the output is brought to `out`; -1: none */
    tsh_layout out;
} tshi_want;

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
    tsh_work *work;    /* the collective that backward_start has started */
    tsh_tensor *early; /* the result of that collective */
    bool used;         /* a backward has passed this call and released its tensors */
    bool moved_on;     /* this backward has passed on what calls have added to the output's gradient so far */
    bool shares;       /* the output is a view of the first input */

    /* Segments (segment.h) have numbers from 1 on; 0: none. */
    int segment;       /* the innermost one that the call is in */
    int dropped_by;    /* the one that frees the output's memory */
    uint64_t versions; /* when forward had run: tshi_call_versions */
    bool saves;        /* forward saves tensors, which the innermost segment frees */
    bool again;        /* the segment that runs again needs this call */
    int holders;       /* references to the output that are not the program's */
};

static inline bool tshi_op_crosses(const tsh_op *op) {
    return op->engine && op->engine->crosses;
}

static inline bool tshi_op_is_custom(const tsh_op *op) {
    return op->engine && op->engine->custom;
}

/* Forward and backward run on this rank: on one outside the mesh a call is recorded, and does nothing. */
static inline bool tshi_call_runs(const tsh_call *call) {
    return tshi_mesh_has_me(call->in[0]->mesh) || tshi_op_crosses(call->op);
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
