/* Redistribution for the library's functions and layers. */
#ifndef TSHI_AUTOGRAD_REDISTRIBUTE_H
#define TSHI_AUTOGRAD_REDISTRIBUTE_H

#include "autograd/tape.h"

/* x in these layouts, which are normalized: x itself, a tensor made from it earlier in this step, or a new one.
 * TSH_ERR_LAYOUT when no route exists; `what` begins the message. */
tsh_tensor *tshi_to_layouts(tsh_tape *tape, const char *what, tsh_tensor *x, const tsh_layout to[TSH_MAX_AXES]);
/* x with the layout `to` along one axis, by any transition of the table. */
tsh_tensor *tshi_transit(tsh_tape *tape, const char *what, tsh_tensor *x, int axis, tsh_layout to);

#endif
