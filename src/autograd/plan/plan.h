/* The plan of a call: all steps before, in and after its operation, with final shapes and layouts. A plan depends only
 * on metadata, so that every rank makes the same one. */
#ifndef TSHI_CALL_PLAN_H
#define TSHI_CALL_PLAN_H

#include "autograd/plan/rules.h"

typedef enum tshi_plan_step_kind {
    TSHI_STEP_CAST,       /* to another dtype */
    TSHI_STEP_COPY,       /* a copy for this call only, to whose gradient no other call adds */
    TSHI_STEP_TRANSITION, /* along one axis */
    TSHI_STEP_EXCHANGE,   /* of boxes, over all axes or to another mesh */
    TSHI_STEP_KERNEL      /* the operation itself: earlier steps are of inputs, later ones of the output */
} tshi_plan_step_kind;

/* A step, and the metadata of its result. */
typedef struct tshi_plan_step {
    tshi_plan_step_kind kind;
    int input; /* index of the call's input; -1: the output */
    int axis;  /* of a transition */
    tsh_dtype dtype;
    const tsh_mesh *mesh;
    tsh_shape shape;
    tsh_layout layout[TSH_MAX_AXES];
    /* In a kept plan; else 0: */
    uint64_t form; /* form of the result (tshi_tensor_form) */
    int64_t numel; /* elements of this rank's part of the result */
} tshi_plan_step;

typedef struct tshi_plan {
    const tsh_allocator *allocator; /* for more steps than there is room for */
    tshi_plan_step *step;
    int count, capacity;
} tshi_plan;

/* The start of a plan for tensor x as input `input`. */
tshi_plan_step tshi_plan_start(const tsh_tensor *x, int input);
/* Adds the steps from *now to these layouts of its mesh; *now becomes the last step's result. TSH_ERR_LAYOUT without a
 * route. */
tsh_status tshi_plan_route(tshi_plan *plan, tshi_plan_step *now, const tsh_layout to[TSH_MAX_AXES]);
/* Makes the call's plan. call->in: the program's tensors, `given`, or for those to be cast, copies without memory in
 * the operation's dtype; their layouts may change. */
tsh_status tshi_plan_make(const tsh_call *call, tsh_tensor *const *given, const tshi_goal *goal, tshi_plan *plan);

/* --- kept plans --------------------------------------------------------------------------------------------------- */

/* The plans of a tape's calls, by key: all metadata on which a plan depends. A step that repeats the calls of the
 * previous one finds each plan by the call's number. */
typedef struct tshi_plans tshi_plans;

/* NULL with the message set. */
tshi_plans *tshi_plans_new(const tsh_allocator *allocator);
void tshi_plans_free(tshi_plans *plans);
/* Called at the end of a step: the next call is number 0. */
void tshi_plans_end_step(tshi_plans *plans);
/* An array for twice as many tensors as a call has inputs, and for copies of its inputs; valid until the next call.
 * NULL with the message set. */
tsh_tensor **tshi_plans_inputs(tshi_plans *plans, int inputs);
tsh_tensor *tshi_plans_copies(tshi_plans *plans, int inputs);
/* *plan = the plan of the call with this number in the previous step, if it was the same call: the same operation,
 * params and want, and inputs with the same forms and gradients. Otherwise NULL: call tshi_plans_get next, which
 * compares all metadata. */
tsh_status tshi_plans_usual(tshi_plans *plans, const tsh_call *call, const tshi_want *want, bool recording,
                            const tshi_plan **plan);
/* The plan made for the same metadata, or a new one by tshi_plan_make; valid until the next call. */
tsh_status tshi_plans_get(tshi_plans *plans, const tsh_call *call, tsh_tensor *const *given, const tshi_goal *goal,
                          const tshi_plan **plan);
/* The plan that only brings x to the layouts, kept or made by tshi_plan_route. */
tsh_status tshi_plans_route(tshi_plans *plans, const tsh_tensor *x, const tsh_layout to[TSH_MAX_AXES],
                            const tshi_plan **plan);
/* The number of plans made so far: a steady step makes none. */
uint64_t tshi_plans_made(const tshi_plans *plans);

#endif
