/* The tape: the calls of a step, the tensors that they made, and the first failure. */
#ifndef TSHI_TAPE_H
#define TSHI_TAPE_H

#include "autograd/grad/accumulate.h"

/* A segment: recorded calls whose results are freed, and recomputed when backward reaches them. */
typedef struct tshi_segment {
    int first, end;                  /* the calls [first, end) of the step */
    int parent;                      /* the innermost segment that contains this one; 0: none */
    bool dropped;                    /* its calls' results have no memory */
    bool offloads;                   /* its inputs are in host memory while it is dropped */
    struct tshi_segment_call *calls; /* [end - first] */
} tshi_segment;

struct tsh_tape {
    tsh_world *world;
    tshi_gradient_schedule *schedule; /* or NULL */
    bool recording;
    uint64_t generation; /* of this step; unique over the tape's life */
    tshi_steps steps;    /* the tape's progress */
    uint64_t uses;       /* number of calls that have used memory of value sources (tensor.h) */
    bool skips;          /* this step fails at its first call: other ranks are ahead */
    uint64_t recoveries; /* the world's recoveries when the step failed */
    tsh_status status;
    char message[TSHI_MESSAGE_SIZE];
    tsh_call *nodes;
    int node_count, node_capacity;
    tshi_segment *segments; /* of the step; inner segments come before outer ones */
    int segment_count, segment_capacity;
    tshi_region memory;       /* of the step, for its nodes' arrays */
    struct tshi_plans *plans; /* of its calls */
    const tsh_op *inside;     /* the program's operation whose function is running; or NULL */
    tsh_tensor **scratch;     /* its scratch */
    int scratch_count, scratch_capacity;
    tsh_tensor **terms; /* terms of gradients that the running backward of a call has in separate memory */
    int term_capacity;
    bool keeps_graph;   /* in a backward with retain_graph: saved tensors are kept */
    tsh_tensor **owned; /* every tensor made in this step */
    int owned_count, owned_capacity;
    int usual_count; /* owned_count in the first backward */
    bool warned;     /* has warned that steps do not end */
    bool told_nan;   /* has warned of a NaN loss */
};

/* --- calls -------------------------------------------------------------------------------------------------------- */

/* A copy in the step's arena; NULL with the message set. */
void *tshi_tape_copy(tsh_tape *tape, const void *from, size_t count, size_t size);
/* The tape takes over the caller's reference, which is released on failure. */
tsh_status tshi_tape_own(tsh_tape *tape, tsh_tensor *tensor);
/* Index of the call of this step that made the tensor, -1 for a leaf. */
static inline int tshi_tape_node(const tsh_tape *tape, const tsh_tensor *t) {
    return t->computed && t->gradient->generation == tape->generation ? t->gradient->node : -1;
}
/* True when an ended segment frees the tensor's memory. The answer is the same on all ranks: it holds even where the
 * program has retained the tensor, and with it the memory. */
static inline bool tshi_tape_dropped(const tsh_tape *tape, const tsh_tensor *t) {
    int k = tshi_tape_node(tape, t);
    return k >= 0 && !tape->nodes[k].flags.used && tape->nodes[k].freed_by > 0;
}
/* True when an input wants a gradient. */
static inline bool tshi_call_wants(const tsh_call *call) {
    int i = 0;
    while (i < call->inputs && !tshi_requires_grad(call->in[i])) i++;
    return i < call->inputs;
}
/* True when the call goes on the tape, because it may need a gradient. */
static inline bool tshi_call_records(const tsh_call *call) {
    return call->tape->recording && tshi_call_wants(call);
}
/* Releases the call's tensors, after waiting for a collective that it has started. */
void tshi_node_clear(tsh_call *node);
/* Called before the schedule is freed: removes it from all tensors of this step. */
void tshi_tape_forget_schedule(tsh_tape *tape);

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* Records the first failure of the step with its message, and reports it to the peers. Returns NULL, for functions that
 * return a tensor. */
TSHI_RARE tsh_tensor *tshi_tape_fail(tsh_tape *tape, tsh_status status, const char *format, ...) TSH_PRINTF(3, 4);
/* Returns the status. For a failure, first calls tshi_tape_fail with "what: " (unless NULL) and tsh_error_message(). */
static inline tsh_status tshi_tape_check(tsh_tape *tape, tsh_status status, const char *what) {
    if (status != TSH_OK)
        tshi_tape_fail(tape, status, "%s%s%s", what ? what : "", what ? ": " : "", tsh_error_message());
    return status;
}
/* TSH_ERR_ARGUMENT with the message: a tape is required. */
TSHI_RARE tsh_status tshi_tape_missing(const char *what);
/* True, and the step fails, when a function of a program's operation is running, which must not call functions of a
 * tape. */
bool tshi_tape_is_inside(tsh_tape *tape, const char *what);
/* True when a call may run: the tape is not NULL, the step has not failed, and no tensor is NULL or without memory. */
bool tshi_tape_ready(tsh_tape *tape, const char *what, int count, tsh_tensor *const *tensors);

#endif
