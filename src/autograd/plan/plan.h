/* The plan of a call: all that is done with its inputs, by its operation and with its output, as steps whose shapes and
 * layouts are settled. A plan follows only from metadata, so every rank makes the same one. */
#ifndef TSHI_CALL_PLAN_H
#define TSHI_CALL_PLAN_H

#include "autograd/plan/rules.h"

typedef enum tshi_plan_step_kind {
    TSHI_STEP_CAST,       /* to another dtype */
    TSHI_STEP_COPY,       /* a tensor of this call's own, to whose gradient no other call adds */
    TSHI_STEP_TRANSITION, /* along one axis */
    TSHI_STEP_EXCHANGE,   /* of boxes, over all axes or to another mesh */
    TSHI_STEP_KERNEL      /* the operation itself: all steps before are of inputs, those after it of the output */
} tshi_plan_step_kind;

/* What a step makes. */
typedef struct tshi_plan_step {
    tshi_plan_step_kind kind;
    int input; /* of the call; -1: the output */
    int axis;  /* of a transition */
    tsh_dtype dtype;
    const tsh_mesh *mesh;
    tsh_shape shape;
    tsh_layout layout[TSH_MAX_AXES];
    uint64_t form; /* of what it makes (tshi_tensor_form); 0: that gets one when it is used */
} tshi_plan_step;

typedef struct tshi_plan {
    const tsh_allocator *allocator; /* for more steps than there is room for */
    tshi_plan_step *step;
    int count, capacity;
} tshi_plan;

/* How tensor x enters a plan as input `input` of its call. */
tshi_plan_step tshi_plan_start(const tsh_tensor *x, int input);
/* Adds the steps that bring what is as `now` says to these layouts of its mesh; *now is what the last one makes.
 * TSH_ERR_LAYOUT where no route goes there. */
tsh_status tshi_plan_route(tshi_plan *plan, tshi_plan_step *now, const tsh_layout to[TSH_MAX_AXES]);
/* Makes the call's plan. call->in: the program's tensors, `given`, or where they are to be cast copies of them without
 * memory, of the dtype that the operation takes; their layouts may change. */
tsh_status tshi_plan_make(const tsh_call *call, tsh_tensor *const *given, const tshi_goal *goal, tshi_plan *plan);

/* --- kept plans --------------------------------------------------------------------------------------------------- */

/* The plans of a tape's calls, by key: all metadata that a plan follows from. A step that makes the calls of the one
 * before finds each plan at the number of its call. */
typedef struct tshi_plans tshi_plans;

/* NULL with the message set. */
tshi_plans *tshi_plans_new(const tsh_allocator *allocator);
void tshi_plans_free(tshi_plans *plans);
/* The step has ended: the next call is the first. */
void tshi_plans_end_step(tshi_plans *plans);
/* Room for pointers to twice as many tensors as a call has inputs, and for copies of its inputs; valid until the next
 * call asks for room. NULL with the message set. */
tsh_tensor **tshi_plans_inputs(tshi_plans *plans, int inputs);
tsh_tensor *tshi_plans_copies(tshi_plans *plans, int inputs);
/* *plan: that of the call with this number in the step before, where it was the same call: of the same operation, with
 * the same params and want, and with inputs of the same forms and gradients. Otherwise NULL: tshi_plans_get, called
 * next, compares all metadata. */
tsh_status tshi_plans_usual(tshi_plans *plans, const tsh_call *call, const tshi_want *want, bool recording,
                            const tshi_plan **plan);
/* tshi_plan_make, or the plan that was made for the same metadata, valid until the next one is asked for. */
tsh_status tshi_plans_get(tshi_plans *plans, const tsh_call *call, tsh_tensor *const *given, const tshi_goal *goal,
                          const tshi_plan **plan);
/* The plan that only brings x to the layouts, as tshi_plan_route makes it, or the one that was made before. */
tsh_status tshi_plans_route(tshi_plans *plans, const tsh_tensor *x, const tsh_layout to[TSH_MAX_AXES],
                            const tshi_plan **plan);
/* How many plans have been made: a step like those before it makes none. */
uint64_t tshi_plans_made(const tshi_plans *plans);

#endif
