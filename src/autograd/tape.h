/* The tape: the calls of a step, the tensors that they made, and the first failure. */
#ifndef TSHI_TAPE_H
#define TSHI_TAPE_H

#include "autograd/grad/accumulate.h"

/* Calls that have been recorded, and whose results are not kept, but made again when backward reaches them. */
typedef struct tshi_segment {
    int first, end;                  /* the calls [first, end) of the step */
    int parent;                      /* the number of the innermost segment around this one; 0: none */
    bool dropped;                    /* what its calls have made has no memory */
    struct tshi_segment_call *calls; /* [end - first] */
} tshi_segment;

struct tsh_tape {
    tsh_world *world;
    tshi_gradient_schedule *schedule; /* or NULL */
    bool recording;
    uint64_t generation; /* of this step; unique over the tape's life */
    tshi_steps steps;    /* how far it is */
    uint64_t uses;       /* calls that have used memory of value sources (tensor.h) */
    bool skips;          /* this step fails with its first call: other ranks are ahead */
    uint64_t recoveries; /* of the world when the step failed */
    tsh_status status;
    char message[TSHI_MESSAGE_SIZE];
    tsh_call *nodes;
    int node_count, node_capacity;
    tshi_segment *segments; /* of the step; those inside of another come before it */
    int segment_count, segment_capacity;
    tshi_region memory;       /* of the step, for its nodes' arrays */
    struct tshi_plans *plans; /* of its calls */
    const tsh_op *inside;     /* a program's own operation, whose function runs; or NULL */
    tsh_tensor **scratch;     /* what that has asked for */
    int scratch_count, scratch_capacity;
    tsh_tensor **terms; /* what the running call of a backward has added beside the gradients of its inputs */
    int term_capacity;
    bool keeps_graph;   /* in a backward: another may follow over the same calls, which need what they have saved */
    tsh_tensor **owned; /* every tensor made in this step */
    int owned_count, owned_capacity;
    int usual_count; /* what owned_count was in the first backward */
    bool warned;     /* the warning that steps do not end has been logged */
    bool told_nan;   /* so has that of a loss that is NaN */
};

/* --- calls -------------------------------------------------------------------------------------------------------- */

/* A copy in memory of the step; NULL with the message set. */
void *tshi_tape_copy(tsh_tape *tape, const void *from, size_t count, size_t size);
/* The tape takes the caller's reference; on failure it is released. */
tsh_status tshi_tape_own(tsh_tape *tape, tsh_tensor *tensor);
/* Index of the call of this step that made the tensor, -1 for a leaf. */
static inline int tshi_tape_node(const tsh_tape *tape, const tsh_tensor *t) {
    return t->computed && t->gradient->generation == tape->generation ? t->gradient->node : -1;
}
/* A segment that has ended is what freed the tensor's memory. Alike on all ranks, also on one where the program has
 * retained the tensor. */
static inline bool tshi_tape_dropped(const tsh_tape *tape, const tsh_tensor *t) {
    int k = tshi_tape_node(tape, t);
    return k >= 0 && !tape->nodes[k].flags.used && tape->nodes[k].dropped_by > 0;
}
/* The call goes on the tape: a gradient may be asked of it. */
static inline bool tshi_call_records(const tsh_call *call) {
    int i = 0;
    if (!call->tape->recording) return false;
    while (i < call->inputs && !tshi_requires_grad(call->in[i])) i++;
    return i < call->inputs;
}
/* Releases what the call holds; a collective that it has started is waited for. */
void tshi_node_clear(tsh_call *node);
/* The schedule is about to be freed: no tensor of this step knows it any more. */
void tshi_tape_forget_schedule(tsh_tape *tape);

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* Keeps the first failure of the step with its message and reports it to the peers. Returns NULL, so that a function
 * may end with it. */
TSHI_RARE tsh_tensor *tshi_tape_fail(tsh_tape *tape, tsh_status status, const char *format, ...) TSH_PRINTF(3, 4);
/* Returns the status. Where that is a failure, tshi_tape_fail with tsh_error_message(), after "what: " unless that is
 * NULL. */
static inline tsh_status tshi_tape_check(tsh_tape *tape, tsh_status status, const char *what) {
    if (status != TSH_OK)
        tshi_tape_fail(tape, status, "%s%s%s", what ? what : "", what ? ": " : "", tsh_error_message());
    return status;
}
/* TSH_ERR_ARGUMENT with the message: a tape is required. */
TSHI_RARE tsh_status tshi_tape_missing(const char *what);
/* A function of a program's own operation runs, which makes no calls of tapes: the step fails. */
bool tshi_tape_is_inside(tsh_tape *tape, const char *what);
/* A call may run: there is a tape, the step has not failed, and no tensor is NULL or without memory. */
bool tshi_tape_ready(tsh_tape *tape, const char *what, int count, tsh_tensor *const *tensors);

#endif
