/* Sparse gradients: that of a leaf [rows, cols] as the rows that calls have added to, and no others. */
#ifndef TSHI_SPARSE_GRADIENT_H
#define TSHI_SPARSE_GRADIENT_H

#include "autograd/grad/state.h"

/* The leaf's gradient is sparse and not empty: `value` of its state is [count, cols]. */
bool tshi_gradient_is_sparse(const tsh_tensor *leaf);
/* The elements of a leaf's gradient, all rows' or those of the rows that it has: for what treats each element alike.
 * NULL as tsh_tensor_grad (leaf.c). */
tsh_tensor *tshi_gradient_elements(const tsh_tensor *leaf);
/* A sparse gradient of x becomes one of all rows. */
tsh_status tshi_sparse_gradient_spread(const tsh_tensor *x);

#endif
