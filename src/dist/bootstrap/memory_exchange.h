/* How the ranks of one machine come to share memory: over an abstract Unix socket that rank 0 listens on. */
#ifndef TSHI_RENDEZVOUS_H
#define TSHI_RENDEZVOUS_H

#include "dist/bootstrap/environment.h"

#include <sys/types.h>

/* What rank 0 knows of all ranks once they are there. */
typedef struct tshi_meeting {
    int size;
    size_t *heap_bytes; /* [size] */
    pid_t *process;     /* [size] */
    /* Makes what all share of it: a descriptor, or minus the status of a failure, with the message set. */
    int (*make)(const struct tshi_meeting *meeting);
    const void *user; /* make's */
} tshi_meeting;

/* Every rank gets the descriptor that rank 0 makes, the caller's. Waits for all ranks until the deadline (tshi_clock's)
 * and says at INFO every 5 s whom for. */
tsh_status tshi_rendezvous(const tshi_settings *settings, const tsh_log *log, const tsh_allocator *allocator,
                           double deadline, int (*make)(const tshi_meeting *meeting), const void *user, int *memory);

#endif
