/* The stand-in for NCCL: ranks are threads of one process, whose collectives run when each is at the head of its
 * stream. Communicators are non-blocking: calls are in progress for a few queries, and on their streams with the last
 * of them, or, with TSHARD_TEST_SEED, any time before. As with CUDA (standin.h), calls are counted and made to fail,
 * and every communicator has to be destroyed. */
#ifndef STANDIN_NCCL_H
#define STANDIN_NCCL_H

#include "dist/transport/nccl/header.h"

#include <stdbool.h>
#include <stdint.h>

/* An asynchronous error of the communicators of rank `rank`, those that live now and are its own world's or groups'. */
void standin_nccl_error(int rank, ncclResult_t error);
/* The version that the library says it is; that of its header until then. */
void standin_nccl_version(int version);

#endif
