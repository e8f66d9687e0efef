/* Segments: recorded calls whose results are not kept, but made again when backward reaches them. */
#ifndef TSHI_SEGMENT_H
#define TSHI_SEGMENT_H

#include "autograd/tape.h"

/* Backward is about to run a call in the segment with this number (0: in none): what the segments around the call have
 * dropped is made again, the outermost first. */
tsh_status tshi_segment_enter(tsh_tape *tape, int number);
/* Backward has passed the call: segments that begin with it drop again what a later backward may need. */
void tshi_segment_leave(tsh_tape *tape, int index);
/* The tensor, for use by a call after the segment that has dropped it: it is made again if so, and stays. NULL on
 * failure. */
tsh_tensor *tshi_segment_take(tsh_tape *tape, tsh_tensor *t);

#endif
