/* What casts, transitions and exchanges have made of a tensor in this step: each is made once. */
#ifndef TSHI_MEMO_H
#define TSHI_MEMO_H

#include "autograd/tape.h"

/* A tensor of these dtype, mesh and layouts that was made from x earlier in this step, and since x was last written to,
 * or NULL; one that leads to a gradient only where this call is recorded, and one that does not only where it is not. A
 * segment may have dropped its memory. */
tsh_tensor *tshi_memo_find(const tsh_tape *tape, const tsh_tensor *x, tsh_dtype dtype, const tsh_mesh *mesh,
                           const tsh_layout *layout);
/* tshi_memo_find finds `made` for x until the step ends. */
tsh_status tshi_memo_add(const tsh_tape *tape, tsh_tensor *x, tsh_tensor *made);

#endif
