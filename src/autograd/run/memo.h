/* The memo of casts, transitions and exchanges: each is made once of a tensor in a step. */
#ifndef TSHI_MEMO_H
#define TSHI_MEMO_H

#include "autograd/tape.h"

/* The tensor with this dtype, mesh and layouts that was made of x in this step since x was last written; NULL if there
 * is none. It is recorded exactly if this call would be. A segment may have dropped its memory. */
tsh_tensor *tshi_memo_find(const tsh_tape *tape, const tsh_tensor *x, tsh_dtype dtype, const tsh_mesh *mesh,
                           const tsh_layout *layout);
/* Adds `made` to x's memo, until the step ends. */
tsh_status tshi_memo_add(tsh_tape *tape, tsh_tensor *x, tsh_tensor *made);

#endif
