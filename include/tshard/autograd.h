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

/* A tape for tensors on meshes of this world, with recording on. The caller destroys it. Not collective, but every rank
 * creates its tapes in the same order: tsh_world_recover matches them by it. */
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

/* Write the calls that the step has recorded to the file `path`; a transition is shown with its collective and the
 * bytes that this rank sends. Call it before tsh_backward, which frees the calls that it has run. Not collective: each
 * rank names its own file. TSH_ERR_SYSTEM, TSH_ERR_ARGUMENT. */
TSH_API tsh_status tsh_tape_dump(const tsh_tape *tape, const char *path, tsh_dump_format format);

/* TSH_OK if, on this rank, no result of the step's recorded functions and no leaf that they use has an infinity or a
 * NaN; else TSH_ERR_RANGE, and the message names the first function whose result or leaf has one, and the parameter.
 * Results whose memory has been freed are not checked: call this before tsh_backward. The call does not make the tape
 * fail; it waits for a GPU. Not collective. With TSHARD_CHECK=nan instead, each result, and in backward each gradient,
 * is checked as soon as it is computed, and the step fails at the first NaN. TSH_ERR_ARGUMENT, TSH_ERR_MEMORY. */
TSH_API tsh_status tsh_tape_check_finite(const tsh_tape *tape);

/* Free what the step made (retained tensors live on, as leaves) and start a new step; buffers are reused. This call
 * ends the step on every rank, whichever rank has failed. Steps that succeed on all ranks need no communication for it.
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
    int made;  /* number of tensors that the step had made */
    int calls; /* number of calls that it had recorded */
} tsh_mark;
/* For evaluation: while recording is off, free_since frees the tensors that the step has made since the mark, except
 * `keep`, and returns `keep`. A model that calls it after each of its parts, with a mark taken before the first part,
 * needs only as much memory as its largest part:
 *     tsh_mark start = tsh_tape_mark(tape);
 *     for (int i = 0; i < blocks; i++) x = tsh_tape_free_since(tape, start, block_forward(tape, block[i], x));
 * A tensor that the program has retained lives on, as a leaf. While recording is on, and for tensors that lead to a
 * gradient, nothing is freed. A mark is for the step in which it was taken (TSH_ERR_STATE). */
TSH_API tsh_mark tsh_tape_mark(const tsh_tape *tape);
TSH_API tsh_tensor *tsh_tape_free_since(tsh_tape *tape, tsh_mark mark, tsh_tensor *keep);

/* Activation checkpointing: the calls since the mark become a segment. recompute_since frees the tensors that the step
 * has made since the mark, except `keep`, and returns `keep`. Backward runs those calls of the segment again whose
 * results it reads, with the same random numbers, and frees the results as it goes. Transitions that run again
 * communicate again. A model that calls it after each of its parts, with a mark taken before that part, needs memory
 * for the results of all parts and for the inside of one:
 *     for (int i = 0; i < blocks; i++) {
 *         tsh_mark start = tsh_tape_mark(tape);
 *         x = tsh_tape_recompute_since(tape, start, block_forward(tape, block[i], x));
 *     }
 * Segments may be nested: backward then runs the calls of an inner segment once more. Gradients have the same bits as
 * without segments. A tensor that the program has retained when the segment ends keeps its memory; the other tensors
 * inside lose theirs. Every rank makes the same segments. The inputs of the calls must not change before backward.
 * While recording is off, it does what tsh_tape_free_since does. TSH_ERR_STATE for a mark of another step, or one
 * inside a segment that has ended. */
TSH_API tsh_tensor *tsh_tape_recompute_since(tsh_tape *tape, tsh_mark mark, tsh_tensor *keep);

/* How tsh_tape_recompute_since_with differs from tsh_tape_recompute_since. */
typedef struct tsh_recompute_config {
    /* The segment's inputs wait in host memory until backward reaches it: results of earlier calls, except tensors that
     * the program has retained. The device's memory then does not grow with the number of parts. On a GPU the copies
     * run beside kernels, and backward prefetches the inputs of the segment that it reaches next. The host's memory is
     * pinned there, and on a CPU outside of the heap of tensors. A later use of such a tensor, by a call or the
     * program, copies it back, and invalidates no result; a pointer from an earlier tsh_tensor_data is invalid. */
    bool offload;
} tsh_recompute_config;
/* tsh_tape_recompute_since with a configuration (NULL: zeros). With `offload` also TSH_ERR_MEMORY without host memory,
 * and TSH_ERR_STATE while a graph is captured. */
TSH_API tsh_tensor *tsh_tape_recompute_since_with(tsh_tape *tape, tsh_mark mark, tsh_tensor *keep,
                                                  const tsh_recompute_config *config);

/* Add the gradients of `loss` (one element) to those of every leaf that requires one. When the call returns, every
 * gradient collective that the layouts require has run (on a GPU, is queued), those of a tsh_data_parallel too unless
 * its sync is off. Backward frees tensors as soon as it has used them: tsh_tensor_data of an intermediate tensor is
 * NULL afterwards, unless the program has retained it; `loss` keeps its memory. Collective over every group that the
 * step's transitions use. Returns the first failure of the whole step, or an earlier failure of an optimizer's step, a
 * clipping or a loss scale whose message the program has not read (tsh_error_message). TSH_ERR_STATE for a second
 * backward over freed tensors, or for a loss that the tape has not recorded. */
TSH_API tsh_status tsh_backward(tsh_tape *tape, tsh_tensor *loss);

/* How tsh_backward_with differs from tsh_backward. */
typedef struct tsh_backward_config {
    bool retain_graph;          /* free nothing, so that another backward can follow */
    const tsh_tensor *gradient; /* d objective / d loss, with the shape and layouts of loss's gradient; NULL: ones */
} tsh_backward_config;
/* tsh_backward from a tensor of any shape. */
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
 * The tape inserts transitions where the layout rules of functions need them. A tensor's transition is made once in a
 * step, so that three layers on one input share one backward all-reduce. It is made again where the tensor has been
 * written to in between; all ranks must then write it. Collective where the table names a collective, forward or
 * backward. */

/* x with `layout` along the axis of `group`; its other layouts stay. Returns x itself when it already has that
 * layout. */
TSH_API tsh_tensor *tsh_redistribute_along(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, tsh_layout layout);
/* x on `mesh` (NULL: its own) in these layouts, one for each axis of the mesh (NULL: REPLICATED along all); returns x
 * itself when it already has them. The layouts of all axes change at once, by transitions or by one box exchange: one
 * holder of each value sends it to the ranks that want it, and the terms of a PARTIAL x are added. Two meshes may or
 * may not share ranks; between them, neither side may have LOCAL layouts. The result is empty on ranks outside `mesh`.
 * Backward: the reverse redistribution of the gradient, where PARTIAL counts as REPLICATED on both sides. Collective
 * over the ranks of both meshes; unless one mesh contains the other, a rank does not wait for the ranks that it sends
 * to. */
TSH_API tsh_tensor *tsh_redistribute(tsh_tape *tape, tsh_tensor *x, const tsh_mesh *mesh, const tsh_layout *layouts);
/* The whole of x on every rank of its mesh. */
TSH_API tsh_tensor *tsh_full(tsh_tape *tape, tsh_tensor *x);
/* This rank's part of x, LOCAL along every axis, in x's memory; empty on a rank outside the mesh. layouts: those that
 * the ranks' gradients of the result form together; the gradient of x is redistributed from them. NULL: PARTIAL where x
 * is REPLICATED, REPLICATED where x is PARTIAL, SHARED_OWN where x is SHARED, else x's layouts. No communication
 * forward. */
TSH_API tsh_tensor *tsh_to_local(tsh_tape *tape, tsh_tensor *x, const tsh_layout *layouts);
/* This rank's slice along dim of a REPLICATED x. */
TSH_API tsh_tensor *tsh_scatter(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, int dim);
/* All of a SHARD(dim) x, on every rank. */
TSH_API tsh_tensor *tsh_gather(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, int dim);
/* The sum over ranks of a PARTIAL or LOCAL x. */
TSH_API tsh_tensor *tsh_reduce(tsh_tape *tape, tsh_tensor *x, const tsh_group *group);
/* A REPLICATED x that each rank uses in its own way: its gradient is summed over the group. */
TSH_API tsh_tensor *tsh_copy(tsh_tape *tape, tsh_tensor *x, const tsh_group *group);

/* x as a constant: the same values, in x's memory and layouts, through which no gradient flows. Owned by the tape. No
 * communication. */
TSH_API tsh_tensor *tsh_detach(tsh_tape *tape, tsh_tensor *x);

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
