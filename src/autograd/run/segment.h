/* Segments: recorded calls whose results are freed, and recomputed when backward reaches them. */
#ifndef TSHI_SEGMENT_H
#define TSHI_SEGMENT_H

#include "autograd/tape.h"

/* Called before backward runs a call in segment `number` (0: none): recomputes what the segments around the call have
 * dropped, the outermost first. */
tsh_status tshi_segment_enter(tsh_tape *tape, int number);
/* Called after backward has run the call: segments that begin with it drop their results again, which a later backward
 * may recompute. */
tsh_status tshi_segment_leave(tsh_tape *tape, int index);
/* Returns the tensor for a call after the segment that has dropped it: recomputes it if necessary, and keeps it. NULL
 * on failure. */
tsh_tensor *tshi_segment_take(tsh_tape *tape, tsh_tensor *t);

#endif
