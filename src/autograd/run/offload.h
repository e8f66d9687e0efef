/* Inputs of segments in host memory until backward reaches the segment. */
#ifndef TSHI_AUTOGRAD_OFFLOAD_H
#define TSHI_AUTOGRAD_OFFLOAD_H

#include "autograd/tape.h"

/* Moves the segment's inputs to host memory: what earlier calls of the step have computed, unless the program has
 * retained it. Any later use brings a tensor back. On failure, which is not recorded in the tape, some have moved. */
tsh_status tshi_offload_inputs(const tsh_tape *tape, const tshi_segment *s);
/* Brings the segment's inputs back. */
tsh_status tshi_offload_return(const tsh_tape *tape, const tshi_segment *s);
/* Begins to bring the segment's inputs back, on devices whose copies run beside other work. What has no memory yet is
 * left to tshi_offload_return. */
void tshi_offload_prefetch(const tsh_tape *tape, const tshi_segment *s);

#endif
