/* autograd: the tape, backward, and changes of layout (transitions), whose backward is the conjugate change.
 *
 * Differentiable functions take a tape first and return a tensor that the tape owns until tsh_tape_reset, or NULL.
 * Given a NULL they return NULL: the first failure of a step stays in the tape, so that a model is written as
 * expressions and checked once a step.
 *
 * Thread safety: everything here is for the world's thread. */
#ifndef TSHARD_AUTOGRAD_H
#define TSHARD_AUTOGRAD_H

#include "tshard/dist.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Records the calls of a step, and runs them backward. */
typedef struct tsh_tape tsh_tape;

/* A tape for tensors on meshes of this world; it records. The caller destroys it. Not collective, but every rank makes
 * its tapes in the same order, by which a recovery knows them. */
TSH_API tsh_status tsh_tape_create(tsh_world *world, tsh_tape **out);
TSH_API void tsh_tape_destroy(tsh_tape *tape);

/* The first failure since the last reset, and its message: rank, operation, shapes, layouts. */
TSH_API tsh_status tsh_tape_status(const tsh_tape *tape);
TSH_API const char *tsh_tape_message(const tsh_tape *tape);

/* How tsh_tape_dump writes a step. */
typedef enum tsh_dump_format {
    TSH_DUMP_TEXT = 0, /* a line for each call: function, tensors with shapes and layouts, bytes of the result here */
    TSH_DUMP_GRAPHVIZ  /* the same as a graph, for `dot -Tsvg` */
} tsh_dump_format;

/* Write the calls that the step has recorded to the file `path`: changes of layout come with their collective and the
 * bytes that the rank sends. Before tsh_backward, which frees what it has passed. Not collective: each rank names a
 * file of its own. TSH_ERR_SYSTEM, TSH_ERR_ARGUMENT. */
TSH_API tsh_status tsh_tape_dump(const tsh_tape *tape, const char *path, tsh_dump_format format);

/* Free what the step made (retained tensors live on, as leaves) and start a new step; buffers are reused. This one call
 * ends a step on every rank, whichever rank has failed. Steps that succeed on all ranks need no communication for it.
 * When a step has failed, on this rank or on one whose failure has reached it, the call is collective over the world,
 * waits for all ranks (tsh_world_recover) and returns the status of the recovery. The gradients of a failed step are
 * undefined: zero them. docs/failures.md says in which step a rank learns of a peer's failure, and where it
 * continues. */
TSH_API tsh_status tsh_tape_reset(tsh_tape *tape);

/* While recording is off (evaluation), nothing is saved for backward. Returns the value before the call. */
TSH_API bool tsh_tape_set_recording(tsh_tape *tape, bool recording);
TSH_API tsh_world *tsh_tape_world(const tsh_tape *tape);

/* A point in a step, between two calls. */
typedef struct tsh_mark {
    uint64_t step;
    int made;  /* tensors that the step had made by then */
    int calls; /* calls that it had recorded by then */
} tsh_mark;
/* Evaluation that holds a tensor no longer than it is needed: while recording is off, free_since frees what the step
 * has made since the mark, but for `keep`, and returns `keep`. A model calls it after each of its parts, with a mark
 * from before the first one, and needs as much memory as the part that needs most:
 *     tsh_mark start = tsh_tape_mark(tape);
 *     for (int i = 0; i < blocks; i++) x = tsh_tape_free_since(tape, start, block_forward(tape, block[i], x));
 * A tensor that the program has retained lives on, as a leaf. While recording is on, and for tensors that lead to a
 * gradient, nothing is freed. A mark is for the step in which it was taken (TSH_ERR_STATE). */
TSH_API tsh_mark tsh_tape_mark(const tsh_tape *tape);
TSH_API tsh_tensor *tsh_tape_free_since(tsh_tape *tape, tsh_mark mark, tsh_tensor *keep);

/* Training that holds a part's tensors no longer than it is needed: a segment. recompute_since frees what the step has
 * made since the mark, but for `keep`, and returns `keep`; backward runs these calls again when it comes to them, with
 * the same random numbers, as far as it reads what they make, and frees it as it goes. Transitions that run again
 * communicate again. A model calls it after each of its parts, with a mark from before that part, and needs as much
 * memory as all results of parts and the inside of one:
 *     for (int i = 0; i < blocks; i++) {
 *         tsh_mark start = tsh_tape_mark(tape);
 *         x = tsh_tape_recompute_since(tape, start, block_forward(tape, block[i], x));
 *     }
 * A segment may have segments inside, which have ended before it; backward runs those again when it comes to them, once
 * more. Gradients are those without segments, bit for bit. A tensor that the program has retained when the segment ends
 * keeps its memory; other tensors from the inside have none from then on. Every rank makes the same segments. What the
 * calls read must not change before backward. While recording is off, as tsh_tape_free_since. TSH_ERR_STATE for a mark
 * of another step, or inside of a segment that has ended. */
TSH_API tsh_tensor *tsh_tape_recompute_since(tsh_tape *tape, tsh_mark mark, tsh_tensor *keep);

/* Add the gradients of `loss` (one element) to those of every leaf that requires one. When the call returns, every
 * gradient collective that the layouts require has run, or has been started by a tsh_data_parallel. Backward frees
 * tensors as soon as it has used them: tsh_tensor_data of an intermediate tensor is NULL afterwards, unless it was
 * retained; `loss` stays. Collective over every group that the step's transitions use. Returns the first failure of the
 * whole step, or that of an optimizer's step, a clipping or a loss scale before it for whose message the program has
 * not asked (tsh_error_message). TSH_ERR_STATE for a second backward over freed tensors, or for a loss that the tape
 * has not recorded. */
TSH_API tsh_status tsh_backward(tsh_tape *tape, tsh_tensor *loss);

/* What tsh_backward_with does otherwise than tsh_backward. */
typedef struct tsh_backward_config {
    bool retain_graph;          /* free nothing, so that another backward can follow */
    const tsh_tensor *gradient; /* d objective / d loss, with the shape and layouts of loss's gradient; NULL: ones */
} tsh_backward_config;
/* Backward from a tensor of any shape; otherwise as tsh_backward. */
TSH_API tsh_status tsh_backward_with(tsh_tape *tape, tsh_tensor *loss, const tsh_backward_config *config);

/* --- transitions -------------------------------------------------------------------------------------------------- */

/* The transitions between layouts along one axis of a mesh, see docs/layouts.md:
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
 *   SHARED -> SHARED_OWN            nothing          exchange         sums over the ranks that share a unit
 *
 * The tape inserts transitions where the layout rules of functions need them. A transition that is requested twice of
 * one tensor within a step is made once, so that three layers on one input share one backward all-reduce; it is made
 * anew where the tensor has been written to meanwhile, which then all ranks do. Collective where the table names a
 * collective, forward or backward. */

/* x with `layout` along the axis of `group`, and its other layouts; x itself when it has that layout. The input does
 * not change. */
TSH_API tsh_tensor *tsh_redistribute_along(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, tsh_layout layout);
/* x on `mesh` (NULL: its own) in these layouts, one for each axis of the mesh (NULL: REPLICATED along all); x itself
 * where it is that already. Layouts of all axes change at once, in transitions or in one exchange of boxes: each value
 * is sent to the ranks that want it by one of those that have it, terms of a PARTIAL x are added. Between two meshes,
 * which may share ranks or not, neither side may have LOCAL layouts; the result is empty on ranks outside `mesh`.
 * Backward: the reverse redistribution of the gradient, PARTIAL counting as REPLICATED on both sides. Collective over
 * the ranks of both meshes; between meshes of which neither has all ranks of the other, a rank does not wait for those
 * that it sends to. */
TSH_API tsh_tensor *tsh_redistribute(tsh_tape *tape, tsh_tensor *x, const tsh_mesh *mesh, const tsh_layout *layouts);
/* All of x on every rank of its mesh. */
TSH_API tsh_tensor *tsh_full(tsh_tape *tape, tsh_tensor *x);
/* This rank's part of x, LOCAL along every axis, in x's memory; empty on a rank outside the mesh. layouts: what the
 * ranks' gradients of it are together, the gradient of x after a redistribution; NULL: PARTIAL where x is REPLICATED,
 * REPLICATED where x is PARTIAL, SHARED_OWN where x is SHARED, else x's layouts. No communication forward. */
TSH_API tsh_tensor *tsh_to_local(tsh_tape *tape, tsh_tensor *x, const tsh_layout *layouts);
/* This rank's slice along dim of a REPLICATED x. */
TSH_API tsh_tensor *tsh_scatter(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, int dim);
/* All of a SHARD(dim) x, on every rank. */
TSH_API tsh_tensor *tsh_gather(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, int dim);
/* The sum over ranks of a PARTIAL or LOCAL x. */
TSH_API tsh_tensor *tsh_reduce(tsh_tape *tape, tsh_tensor *x, const tsh_group *group);
/* A REPLICATED x for use that differs by rank: its gradient is the sum over the group. */
TSH_API tsh_tensor *tsh_copy(tsh_tape *tape, tsh_tensor *x, const tsh_group *group);

/* --- gradient check ----------------------------------------------------------------------------------------------- */

/* Computes a one-element objective from `inputs` on the tape; NULL on failure. */
typedef tsh_tensor *tsh_objective_fn(tsh_tape *tape, tsh_tensor *const *inputs, void *user);

/* Compare the gradients of `objective` with central differences (f(x + h) - f(x - h)) / 2h at every element of every
 * rank's part of each input (float64 leaves). *worst = the largest |analytic - numeric| / max(1, |numeric|) over all
 * ranks. h = 0 takes 1e-6. A PARTIAL or LOCAL objective is summed over its axes. The inputs' gradients are zeroed first
 * and are the analytic ones afterwards. Resets the tape. Collective over the inputs' mesh. */
TSH_API tsh_status tsh_gradient_check(tsh_tape *tape, tsh_objective_fn *objective, tsh_tensor *const *inputs, int count,
                                      double h, void *user, double *worst);

#ifdef __cplusplus
}
#endif

#endif
