/* Dense maths on this rank's parts of tensors: shapes and dtypes are checked here, device kernels do the work. No
 * gradients and no communication; layouts are not looked at. Outputs are given, with memory. All tensors have one
 * dtype, one that the device computes with, where not said otherwise; row statistics have that of its sums
 * (tshi_dtype_sum). "Added" outputs are summed into. TSH_ERR_SHAPE and TSH_ERR_DTYPE. */
#ifndef TSHI_OPS_H
#define TSHI_OPS_H

#include "tensor/tensor.h"

/* c = op(a) op(b) + beta c, each seen as a matrix [all dims but the last, the last]; op transposes where asked. */
tsh_status tshi_op_matmul(const tsh_tensor *a, bool transpose_a, const tsh_tensor *b, bool transpose_b, double beta,
                          tsh_tensor *c);
/* y = f(x w^T + b), each seen as above, w [out, in]; b may be NULL. f TSHI_UNARY_COUNT: none; pre takes f's argument,
 * or NULL. dw = beta dw + dy^T x; db = beta_b db + column sums of dy, unless NULL; beta_b 0 or 1. */
tsh_status tshi_op_affine(const tsh_tensor *x, const tsh_tensor *w, const tsh_tensor *b, tshi_unary f, tsh_tensor *pre,
                          tsh_tensor *y);
tsh_status tshi_op_affine_backward(const tsh_tensor *x, const tsh_tensor *dy, double beta, tsh_tensor *dw,
                                   double beta_b, tsh_tensor *db);
/* y[..., c] = x[..., c] + b[c]; x NULL: y = b in every row. db is added. */
tsh_status tshi_op_bias(const tsh_tensor *x, const tsh_tensor *b, tsh_tensor *y);
tsh_status tshi_op_bias_backward(const tsh_tensor *dy, tsh_tensor *db);

tsh_status tshi_op_unary(tshi_unary f, const tsh_tensor *x, tsh_tensor *y);
/* dx = beta dx + f'(x) dy, beta 0 or 1. */
tsh_status tshi_op_unary_backward(tshi_unary f, const tsh_tensor *x, const tsh_tensor *dy, double beta, tsh_tensor *dx);
/* z = a x + b y; y NULL with b = 0. */
tsh_status tshi_op_axpby(double a, const tsh_tensor *x, double b, const tsh_tensor *y, tsh_tensor *z);
/* z = beta z + x y, beta 0 or 1. */
tsh_status tshi_op_mul(const tsh_tensor *x, const tsh_tensor *y, double beta, tsh_tensor *z);

/* y = scale * sum of x over dim (TSH_ALL_DIMS as -100: all); dx is added. */
tsh_status tshi_op_sum(const tsh_tensor *x, int dim, double scale, tsh_tensor *y);
tsh_status tshi_op_sum_backward(const tsh_tensor *dy, int dim, double scale, tsh_tensor *dx);

/* part = whole[start, start + part's length) along dim, or the other way round; any dtype. */
tsh_status tshi_op_slice(const tsh_tensor *whole, int dim, int64_t start, tsh_tensor *part);
tsh_status tshi_op_insert(const tsh_tensor *part, int dim, int64_t start, tsh_tensor *whole);
/* whole's slice += part. Through scratch memory of part's size unless dim is the first. */
tsh_status tshi_op_insert_add(const tsh_tensor *part, int dim, int64_t start, tsh_tensor *whole);

/* Softmax along dim in steps, between which a collective may stand; max, sum and dot hold one element a row: x's shape
 * without dim. See device.h for the formulas. */
tsh_status tshi_op_softmax_max(const tsh_tensor *x, int dim, tsh_tensor *max);
tsh_status tshi_op_softmax_sum(const tsh_tensor *x, int dim, const tsh_tensor *max, tsh_tensor *sum);
tsh_status tshi_op_softmax(bool log, const tsh_tensor *x, int dim, const tsh_tensor *max, const tsh_tensor *sum,
                           tsh_tensor *y);
tsh_status tshi_op_softmax_dot(bool log, const tsh_tensor *y, int dim, const tsh_tensor *dy, tsh_tensor *dot);
tsh_status tshi_op_softmax_backward(bool log, const tsh_tensor *y, int dim, const tsh_tensor *dy, const tsh_tensor *dot,
                                    tsh_tensor *dx);

/* y[i, :] = table[ids[i] - start, :], zeros outside the slice [start, start + rows); ids int64. TSH_ERR_RANGE names the
 * first id outside [0, vocabulary). padding -1: none. */
tsh_status tshi_op_lookup(const tsh_tensor *table, const tsh_tensor *ids, int64_t start, int64_t vocabulary,
                          tsh_tensor *y);
tsh_status tshi_op_lookup_backward(const tsh_tensor *dy, const tsh_tensor *ids, int64_t start, int64_t padding,
                                   tsh_tensor *dtable);

/* Over the last dim; gamma, beta, dx, dgamma, dbeta may be NULL. mean and rstd: one element a row.
 * The backward adds to `before` (0 or 1) times what dx holds. */
tsh_status tshi_op_norm(bool rms, const tsh_tensor *x, const tsh_tensor *gamma, const tsh_tensor *beta, double eps,
                        tsh_tensor *y, tsh_tensor *mean, tsh_tensor *rstd);
tsh_status tshi_op_norm_backward(bool rms, const tsh_tensor *x, const tsh_tensor *gamma, const tsh_tensor *mean,
                                 const tsh_tensor *rstd, const tsh_tensor *dy, double before, tsh_tensor *dx,
                                 tsh_tensor *dgamma, tsh_tensor *dbeta);

/* y = beta y + x keep / (1 - p), keep drawn by global element index. */
tsh_status tshi_op_dropout(const tsh_tensor *x, uint64_t seed, uint64_t stream, double p, double beta, tsh_tensor *y);

#endif
