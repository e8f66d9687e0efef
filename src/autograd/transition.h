/* Transitions: calls that change a tensor's layout, and whose backward is the conjugate change. */
#ifndef TSHI_TRANSITION_H
#define TSHI_TRANSITION_H

#include "autograd/tape.h"

/* x in these layouts, which are normalized: x itself, a tensor made from it earlier in this step, or a new one.
 * TSH_ERR_LAYOUT, in the name of `what`, where no plan exists. consume: x is an intermediate that nothing uses after
 * this call, and its memory may be used in place. */
tsh_tensor *tshi_to_layouts(tsh_tape *tape, const char *what, tsh_tensor *x, const tsh_layout to[TSH_MAX_AXES],
                            bool consume);
/* A tensor of these dtype, mesh and layouts that was made from x earlier in this step, and since x was last written to,
 * or NULL; one that leads to a gradient only where this call is recorded, and one that does not only where it is not. */
tsh_tensor *tshi_made_before(const tsh_tape *tape, const tsh_tensor *x, tsh_dtype dtype, const tsh_mesh *mesh,
                             const tsh_layout *to);
/* tshi_made_before finds `moved` for x until the step ends. */
tsh_status tshi_remember(const tsh_tape *tape, tsh_tensor *x, tsh_tensor *moved);
/* x with the layout `to` along one axis, by any transition of the table. */
tsh_tensor *tshi_transit(tsh_tape *tape, tsh_tensor *x, int axis, tsh_layout to, bool consume);

#endif
