/* Loading the elements of a checkpoint's tensors, without waiting for other ranks. */
#ifndef TSHI_CHECKPOINT_LOAD_H
#define TSHI_CHECKPOINT_LOAD_H

#include "io/checkpoint_state.h"

/* Reads this rank's box of every tensor. sums[i] = the checksum of this rank's share of tensor i. */
tsh_status tshi_checkpoint_read(const char *folder, const tshi_checkpoint_index *index, const tsh_parameters *tensors,
                                uint64_t *sums);

#endif
