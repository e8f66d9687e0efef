/* What stands in for NCCL: ranks are threads of one process, whose collectives meet when each has come to the head of
 * its stream. Communicators are non-blocking: calls are in progress for a look or two. As with CUDA (standin.h), calls
 * are counted and made to fail, and every communicator has to be given back. */
#ifndef STANDIN_NCCL_H
#define STANDIN_NCCL_H

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

/* An asynchronous error of the communicators of rank `rank`, those that live now and are its own world's or groups'. */
void standin_nccl_error(int rank, ncclResult_t error);
/* Whether registering memory gives a window, as it is between GPUs that reach each other's memory. */
void standin_nccl_windows(bool on);
/* Collectives so far whose buffers lay in windows, at the same place on all ranks. */
uint64_t standin_nccl_in_windows(void);

#endif
