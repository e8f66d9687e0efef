/* Sparse gradients: of a leaf [rows, cols], only the rows to which calls have added. */
#ifndef TSHI_SPARSE_GRADIENT_H
#define TSHI_SPARSE_GRADIENT_H

#include "autograd/grad/state.h"

/* True for a sparse gradient that is not empty: the state's `value` is [count, cols]. */
bool tshi_gradient_is_sparse(const tsh_tensor *leaf);
/* The elements of a leaf's gradient, dense or sparse, for functions that treat all elements alike. NULL as
 * tsh_tensor_grad. */
tsh_tensor *tshi_gradient_elements(const tsh_tensor *leaf);
/* Makes a sparse gradient of x dense. */
tsh_status tshi_sparse_gradient_spread(const tsh_tensor *x);

#endif
