/* Transitions: calls that change a tensor's layout, and whose backward is the conjugate change. */
#ifndef TSHI_TRANSITION_H
#define TSHI_TRANSITION_H

#include "autograd/tape.h"

/* x in these layouts, which are normalized: x itself, a tensor made from it earlier in this step, or a new one.
 * TSH_ERR_LAYOUT, in the name of `what`, where no plan exists. consume: x is an intermediate that nothing uses after
 * this call, and its memory may be used in place. */
tsh_tensor *tshi_bring(tsh_tape *tape, const char *what, tsh_tensor *x, const tsh_layout to[TSH_MAX_AXES],
                       bool consume);
/* x with the layout `to` along one axis, by any transition of the table. */
tsh_tensor *tshi_transit(tsh_tape *tape, tsh_tensor *x, int axis, tsh_layout to, bool consume);

#endif
