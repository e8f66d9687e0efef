/* autograd: the tape, backward, and changes of layout (transitions), whose backward is the conjugate change.
 *
 * Differentiable functions take a tape first and return a tensor that the tape owns until tsh_tape_reset, or NULL.
 * Given a NULL they return NULL: the first failure of a step stays in the tape, so a model is written as expressions
 * and checked once a step.
 *
 * Thread safety: everything here is for the world's own thread. */
#ifndef TSHARD_AUTOGRAD_H
#define TSHARD_AUTOGRAD_H

#include "tshard/dist.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsh_tape tsh_tape;

/* A tape for tensors on meshes of this world, recording. Not collective. */
TSH_API tsh_status tsh_tape_create(tsh_world *world, tsh_tape **out);
TSH_API void tsh_tape_destroy(tsh_tape *tape);

/* First failure since the last reset, and its words: rank, operation, shapes, layouts. */
TSH_API tsh_status tsh_tape_status(const tsh_tape *tape);
TSH_API const char *tsh_tape_message(const tsh_tape *tape);

/* Free what the step made (tensors that were retained live on, as leaves) and start anew; buffers are reused. This one
 * call ends a step on every rank, whichever rank has failed. Steps that go well on all ranks need no communication.
 * When one has failed, here or on a rank that this one has heard of by now, the call is collective over the world: it
 * waits for the other ranks to come to it (tsh_world_recover), and its status is that of the recovery. A rank hears
 * of a failure in the step in which it happened, in the one before (if it is still in that), or, when its own part had
 * gone well, in a later one, which fails with TSH_ERR_PEER. Afterwards all ranks go on behind the furthest of these
 * steps: on a rank that is not so far, each step in between fails with its first call (TSH_ERR_PEER, "skipped") and
 * without communication, so that loops stay together. What a rank has done in a step that went well stays done:
 * where the failure came after an optimizer's step of other ranks, REPLICATED parameters may differ from then on. The
 * gradients of a step that failed are worth nothing: zero them. */
TSH_API tsh_status tsh_tape_reset(tsh_tape *tape);

/* While off, nothing is saved for a backward (evaluation). Returns what it was. */
TSH_API bool tsh_tape_set_recording(tsh_tape *tape, bool recording);
TSH_API tsh_world *tsh_tape_world(const tsh_tape *tape);

/* Gradients of `loss` (one element) for every leaf that requires one, added to what they hold. Every gradient
 * collective that the layouts call for has run when it returns, or has been started by a tsh_data_parallel. Frees what
 * it has used as it goes: an intermediate tensor's memory is gone afterwards (tsh_tensor_data is NULL) unless it was
 * retained; `loss` stays. Collective in as far as the step was. Returns the first failure of the whole step.
 * TSH_ERR_STATE for a second backward over what is freed, or a loss that the tape did not record. */
TSH_API tsh_status tsh_backward(tsh_tape *tape, tsh_tensor *loss);

typedef struct tsh_backward_config {
    bool retain_graph;          /* keep everything for another backward */
    const tsh_tensor *gradient; /* d objective / d loss, shaped and laid out as loss's gradient; NULL: ones */
} tsh_backward_config;
/* As tsh_backward, for a tensor of any shape. */
TSH_API tsh_status tsh_backward_with(tsh_tape *tape, tsh_tensor *loss, const tsh_backward_config *config);

/* Keep the gradient of an intermediate tensor for tsh_tensor_grad after backward. Several backwards over the step add
 * to it, as to a leaf's. */
TSH_API tsh_status tsh_tensor_retain_grad(tsh_tensor *tensor);

/* --- transitions -------------------------------------------------------------------------------------------------- */

/* One table (layouts along the axis of `group`):
 *
 *   from -> to                      forward          backward         named
 *   REPLICATED -> LOCAL             nothing          all-reduce       tsh_copy
 *   PARTIAL, LOCAL -> REPLICATED    all-reduce       nothing          tsh_reduce
 *   REPLICATED -> SHARD(d)          slice            all-gather       tsh_scatter
 *   SHARD(d) -> REPLICATED          all-gather       slice            tsh_gather
 *   SHARD(d) -> LOCAL               all-gather       reduce-scatter
 *   PARTIAL -> SHARD(d)             reduce-scatter   all-gather
 *   PARTIAL -> LOCAL                all-reduce       all-reduce
 *   SHARD(i) -> SHARD(j)            all-to-all       all-to-all
 *   SHARD(d) -> PARTIAL             zero-pad         slice
 *   REPLICATED -> PARTIAL           rank 0 keeps     nothing
 *
 * Functions insert them where their layout rules want; a transition asked for twice of one tensor within a step is made
 * once, so that three layers on one input share one backward all-reduce. Collective where a collective is named,
 * forward or backward. */

/* x with `layout` along the axis of `group`; x itself when it has that already. The input is never changed. Where a later
 * axis shards a dim that this one leaves or enters, the later axis is gathered and split again around the change. */
TSH_API tsh_tensor *tsh_redistribute(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, tsh_layout layout);
/* My slice of a REPLICATED x along dim. */
TSH_API tsh_tensor *tsh_scatter(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, int dim);
/* The whole of a SHARD(dim) x, on every rank. */
TSH_API tsh_tensor *tsh_gather(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, int dim);
/* The sum over ranks of a PARTIAL or LOCAL x. */
TSH_API tsh_tensor *tsh_reduce(tsh_tape *tape, tsh_tensor *x, const tsh_group *group);
/* A REPLICATED x for use that differs by rank: its gradient is summed over the group. */
TSH_API tsh_tensor *tsh_copy(tsh_tape *tape, tsh_tensor *x, const tsh_group *group);

/* --- gradient check ----------------------------------------------------------------------------------------------- */

/* Build a one-element objective from `inputs` on the tape. */
typedef tsh_tensor *tsh_objective_fn(tsh_tape *tape, tsh_tensor *const *inputs, void *user);

/* Compare the gradients of `objective` with central differences (f(x + h) - f(x - h)) / 2h at every element of every
 * rank's part of each input (float64, leaves). *worst: the largest |analytic - numeric| / max(1, |numeric|) over all
 * ranks. h 0: 1e-6. A PARTIAL or LOCAL objective is summed over its axes. Inputs' gradients are zeroed before and hold
 * the analytic ones after. Collective over the inputs' mesh. Resets the tape. */
TSH_API tsh_status tsh_gradient_check(tsh_tape *tape, tsh_objective_fn *objective, tsh_tensor *const *inputs, int count,
                                      double h, void *user, double *worst);

#ifdef __cplusplus
}
#endif

#endif
