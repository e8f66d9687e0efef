/* What a differentiable operation is, and one call of it. Plain data: every other header of this room stands on it. */
#ifndef TSHI_OP_H
#define TSHI_OP_H

#include "dist/world.h"
#include "tensor/tensor.h"
#include "tshard/autograd.h"

#define TSHI_MAX_SAVED 3

typedef struct tshi_node tshi_node;

/* --- layout rules: rows of patterns ------------------------------------------------------------------------------- */

/* The layout that a row of layout rules wants of one input along one axis, or names for the output. BATCH, STACK,
 * ANY and OTHER stand for SHARD(d) with one d for the whole row: the dim along which an input with that pattern is split.
 * All SHARD patterns of a row split in the same units, those of an input that is split so. In a row with S2_WHOLE these
 * are the items of that input's dim, and blocks those of the S2 input's, where no input says otherwise. */
typedef enum tshi_pattern {
    TSHI_END = 0, /* closes a row's inputs, and a table */
    TSHI_R,
    TSHI_P,
    TSHI_L,
    TSHI_S0,       /* SHARD(0) */
    TSHI_S1,       /* SHARD(1) */
    TSHI_S2,       /* SHARD(2) */
    TSHI_S2_WHOLE, /* SHARD(2); ranks that share a unit of the row have all of it, each for its own use */
    TSHI_HAS_S0,   /* SHARD(0), and the tensor has that layout before the call */
    TSHI_HAS_S1,   /* SHARD(1), and the tensor has that layout before the call */
    TSHI_HAS_LAST, /* SHARD of the last dim, and the tensor has that layout before the call */
    TSHI_HAS_P,    /* PARTIAL, and the tensor has that layout before the call */
    TSHI_COPY,     /* LOCAL, and the tensor is REPLICATED: each rank uses the value in a term of its own */
    TSHI_LAST,     /* SHARD of the tensor's last dim */
    TSHI_DIM,      /* SHARD of the call's dim */
    TSHI_ROWS,     /* SHARD of the tensor's last dim but one */
    TSHI_BATCH,    /* SHARD(d), d not the last dim */
    TSHI_STACK,    /* SHARD(d), d before the last two dims */
    TSHI_ANY,      /* SHARD(d), any d */
    TSHI_OTHER     /* SHARD(d), d not the call's dim */
} tshi_pattern;

/* One legal combination of layouts along one axis. A call with more inputs than the row names (concat) repeats the last
 * pattern. */
typedef struct tshi_rule {
    tshi_pattern in[4];
    tshi_pattern out;
} tshi_rule;

/* --- operations and their calls ----------------------------------------------------------------------------------- */

/* An operation: a const struct for each function. */
typedef struct tshi_op {
    const char *name;
    const tshi_rule *rules;
    /* Writes the output's dtype and global shape; the inputs have their global shapes. */
    tsh_status (*shape)(const tshi_node *call, tsh_dtype *dtype, tshi_shape *out);
    /* Fills call->out, whose memory is not zeroed; the inputs have the layouts of the chosen rows. */
    tsh_status (*forward)(tshi_node *call);
    /* Adds to the gradient of every input that wants one, or of the first input alone where backward_rest is set. */
    tsh_status (*backward)(tshi_node *call);
    /* Adds to the gradients of the inputs after the first, of which one at least wants a gradient, while the first
     * one's collective may be under way. NULL: `backward` does all. */
    tsh_status (*backward_rest)(tshi_node *call);
    /* The gradient of the output is complete: starts the collective of `backward`, which then waits for it, and sets
     * call->work; leaves that NULL where there is nothing to start. NULL: backward has no collective. */
    tsh_status (*backward_start)(tshi_node *call);
    /* Size of the operation's own struct of parameters, which call->params points to; 0 without one. With has_dim the
     * struct begins with an int, a dim of the first input; a negative one is resolved in place before `shape`. */
    size_t params_size;
    bool has_dim;
    /* Returns the output dim that input dim d becomes along this axis, or -1 where the row does not hold. NULL: d stays
     * d. */
    int (*map_dim)(const tshi_node *call, int axis, int d);
    /* map_dim for an operation that changes units, too: makes the input's SHARD layout that of the output, or returns
     * false. */
    bool (*map_split)(const tshi_node *call, int axis, tsh_layout *split);
    /* False where a row does not hold with d as the dim that it binds. NULL: all rows do. */
    bool (*row_holds)(const tshi_node *call, const tshi_rule *row, int d);
    bool views;        /* the output is a view of the first input: forward finds its values there already */
    bool reads_output; /* backward reads the output's values, not just its gradient */
    /* An element of the output, or of a gradient, has the same bits whichever part of it a rank has, where no row sums
     * gradients over ranks: parts are moved, or elements computed by additions and products alone. */
    bool by_element;
    bool reads_no_input; /* backward reads no values of inputs that have gradients */
    bool repeats;        /* backward needs the output's gradient alone: each loss of a step may run it */
    bool crosses;        /* input and output may be on different meshes: it runs on the ranks of either */
} tshi_op;

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
struct tshi_node {
    tsh_tape *tape;
    const tshi_op *op;
    int inputs;
    tsh_tensor **in;
    tsh_tensor *out;
    const tsh_mesh *mesh;              /* the output's; NULL: that of the inputs */
    tsh_tensor *saved[TSHI_MAX_SAVED]; /* what forward keeps for backward */
    void *params;
    const tshi_want *want; /* borrowed until the call is recorded; or NULL */
    tsh_work *work;        /* the collective that backward_start has started */
    tsh_tensor *early;     /* the result of that collective */
    bool used;             /* a backward has passed this call and released its tensors */
    bool shares;           /* the output is a view of the first input */

    /* Segments (segment.h) have numbers from 1 on; 0: none. */
    int segment;    /* the innermost one that the call is in */
    int dropped_by; /* the one that frees the output's memory */
    bool saves;     /* forward saves tensors, which the innermost segment frees */
    bool again;     /* the segment that runs again needs this call */
    int holders;    /* references to the output that are not the program's */
};

/* Forward and backward run on this rank: on one outside the mesh a call is recorded, and does nothing. */
static inline bool tshi_call_runs(const tshi_node *call) {
    return call->op->crosses || tshi_mesh_has_me(call->in[0]->mesh);
}

/* The dim of the call's params, -1 where its operation has none. */
static inline int tshi_call_dim(const tshi_node *call) {
    return call->op->has_dim ? *(const int *)call->params : -1;
}

/* The tensor's element type has gradients: its transitions cost their backward too, whether or not a gradient is asked
 * for, so that a program takes the same rows with and without recording. */
static inline bool tshi_differentiable(const tsh_tensor *x) {
    return tshi_device_computes(x->mesh->device, x->dtype);
}

/* --- checks that shape rules share -------------------------------------------------------------------------------- */

/* All inputs are of one float dtype that the device computes with. */
tsh_status tshi_check_floats(const tshi_node *call, tsh_dtype *dtype);
/* TSH_ERR_SHAPE: "A and B: WANTED". */
tsh_status tshi_check_fails(const tsh_tensor *a, const tsh_tensor *b, const char *wanted);
/* Resolves a negative dim of the call; TSH_ERR_SHAPE where the dim does not exist, TSH_OK where the call has none. */
tsh_status tshi_check_dim(tshi_node *call);

#endif
