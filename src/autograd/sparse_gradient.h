/* Sparse gradients: that of a leaf [rows, cols] as the rows that calls have added to, and no others. */
#ifndef TSHI_SPARSE_GRADIENT_H
#define TSHI_SPARSE_GRADIENT_H

#include "autograd/gradient.h"

/* In the host's memory. While `active`, the leaf's gradient is `value` of its state [count, cols], row i of which is
 * that of row[i] of this rank's part. */
struct tshi_sparse_gradient {
    bool active;
    int64_t count, capacity;
    int64_t *row;    /* [capacity], each row once */
    int32_t *place;  /* [rows of this rank's part] 1 + index in `row`, 0 for a row that is not there */
    int64_t *target; /* [targets] room for a call's ids */
    int64_t targets;
};

/* in[i] is a leaf whose gradient is sparse, or is to be and is none yet, and nothing sums it over ranks. */
bool tshi_grad_takes_rows(const tsh_call *call, int i);
/* Adds row i of `values` to row ids[i] - start of the gradient of in[i]; ids of other rows, and those that are `padding`
 * (-1: none), are left out. `values`, scratch of the call or the output's gradient, is of the gradient's dtype; its memory
 * becomes the gradient's where nothing else refers to it. */
tsh_status tshi_grad_add_rows(const tsh_call *call, int i, const tsh_tensor *ids, int64_t start, int64_t padding,
                              tsh_tensor *values);
/* A sparse gradient of x becomes one of all rows. */
tsh_status tshi_sparse_gradient_spread(const tsh_tensor *x);
/* No row is in it any more. */
void tshi_sparse_gradient_clear(tshi_gradient *gradient);
void tshi_sparse_gradient_free(tsh_tensor *tensor);
static inline bool tshi_gradient_is_sparse(const tsh_tensor *tensor) {
    return tensor->gradient && tensor->gradient->sparse && tensor->gradient->sparse->active;
}
/* The elements of a leaf's gradient, all rows' or those of the rows that it has: for what treats each element alike. NULL
 * as tsh_tensor_grad. */
tsh_tensor *tshi_gradient_elements(const tsh_tensor *leaf);

#endif
