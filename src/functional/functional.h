/* Differentiable functions from the inside. */
#ifndef TSHI_FUNCTIONAL_H
#define TSHI_FUNCTIONAL_H

#include "autograd/apply.h"
#include "autograd/redistribute.h"
#include "tshard/functional.h"

/* --- what layers call, with the layouts that they want ------------------------------------------------------------ */

/* y = f(x W^T + b) in one pass where the device can. Without a function f is TSHI_IDENTITY, as it has to be for a
 * weight that is SHARD(1): f of a sum over ranks is not the sum of f. Inputs x, weight and, if there are three,
 * bias; `want` names the last two as parameters. */
tsh_tensor *tshi_linear(tsh_tape *tape, int inputs, tsh_tensor **in, tshi_unary f, const tshi_want *want);
typedef struct tshi_lookup {
    int64_t padding;         /* row without a gradient, or -1 */
    bool scale_grad_by_freq; /* the gradient of a row is divided by the number of its ids on all ranks */
    double max_norm;         /* rows whose norm_type-norm is above it are scaled in place before; 0: none */
    double norm_type;        /* above 0, where there is a max_norm */
} tshi_lookup;

/* y[i..., :] = table[ids[i...], :]: tsh_lookup in the name of a layer, where `want` names the table as a parameter. */
tsh_tensor *tshi_embedding(tsh_tape *tape, tsh_tensor *table, tsh_tensor *ids, const tshi_lookup *lookup,
                           const tshi_want *want);
/* y, which is made of x's elements as they are, in the arithmetic of x, which it has from now on. NULL on failure, and
 * for a y that is NULL. */
tsh_tensor *tshi_cast_as(tsh_tape *tape, tsh_tensor *y, const tsh_tensor *x);
/* y = f(x) */
tsh_tensor *tshi_activate(tsh_tape *tape, tsh_tensor *x, tshi_unary f);

/* Operations with rows of every kind, for tests of plans. */
extern const tsh_op tshi_linear_op, tshi_matmul_op, tshi_embedding_op, tshi_add_op, tshi_softmax_op,
    tshi_cross_entropy_op, tshi_layer_norm_op;

/* --- what functions share ---------------------------------------------------------------------------------------- */

/* Rules of one input: for f(x + y) = f(x) + f(y), and for any function of each element. */
extern const tsh_rule tshi_linear_rules[], tshi_element_rules[];
/* The output has the shape of input 0, all inputs are floats. */
tsh_status tshi_same_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out);
/* All inputs are of one float dtype that the device computes with. */
tsh_status tshi_check_floats(const tsh_call *call, tsh_dtype *dtype);
/* TSH_ERR_SHAPE: "A and B: WANTED". */
tsh_status tshi_check_fails(const tsh_tensor *a, const tsh_tensor *b, const char *wanted);

/* --- statistics of rows where ranks hold parts of a row ----------------------------------------------------------- */

/* tsh_call_scratch and tsh_call_save for n statistics of x, which are of the dtype of sums of x. */
tsh_tensor *tshi_statistics_scratch(tsh_call *call, const tsh_tensor *x, int64_t n);
tsh_tensor *tshi_statistics_save(tsh_call *call, int slot, const tsh_tensor *x, int64_t n);
/* Bit a: axis a, of several ranks, shards dim of x; dim -1: any dim. */
unsigned tshi_axes_splitting(const tsh_tensor *x, int dim);
/* Reduce the statistics in place over the ranks of each of these axes. Collective over them. */
tsh_status tshi_statistics_reduce(unsigned axes, tsh_tensor *statistics, tsh_reduce_op op);

/* --- tensors around a dim ----------------------------------------------------------------------------------------- */

/* This rank's part as outer x n x inner elements, n along the dim. Where the part has no row along the dim, outer is 0,
 * so that nothing loops over an n that may be huge. */
typedef struct tshi_around {
    int64_t outer, n, inner;
} tshi_around;

static inline tshi_around tshi_around_dim(const tsh_tensor *x, int dim) {
    tshi_around a = {tshi_outer(x, dim), x->shape.local[dim], tshi_inner(x, dim)};
    if (a.inner == 0) a.outer = 0;
    return a;
}

/* The `most` largest elements of x along dim, as tshi_candidate [outer, most, inner] in memory of the device: the same
 * on all ranks that share a column. Along axes that shard the dim each rank contributes as many, and they are gathered.
 * Collective over these axes. */
tsh_status tshi_top_candidates(const tsh_tensor *x, int dim, int64_t most, tsh_tensor **out);

/* --- tensors of different shapes ---------------------------------------------------------------------------------- */

/* x with dims of size 1 before its own, so that it has ndim of them; NULL where x has more. */
tsh_tensor *tshi_align(tsh_tape *tape, tsh_tensor *x, int ndim);
/* row_holds for two aligned inputs that are broadcast to the output: a split dim splits the inputs that have its size;
 * an input of size 1 there is used whole. */
bool tshi_overlay_row_holds(const tsh_call *call, const tsh_rule *row, int dim);
/* Inputs x and y broadcast to this rank's part of the output: their local sizes are the output's or 1. */
tshi_overlay tshi_overlay_of(const tsh_shape *out, const tsh_shape *x, const tsh_shape *y);

#endif
