/* How the processes of one machine find each other: over an abstract Unix socket that rank 0 listens on. */
#ifndef TSHI_RENDEZVOUS_H
#define TSHI_RENDEZVOUS_H

#include "dist/environment.h"

/* What every rank holds afterwards. The caller closes the descriptors (tshi_meeting_close). */
typedef struct tshi_meeting {
    int size;
    int control;        /* memory that rank 0 made */
    int *heap;          /* [size] memory of each rank, mine included */
    size_t *heap_bytes; /* [size] */
    int *process;       /* [size] pidfds, -1 where the kernel has none */
} tshi_meeting;

/* Give my heap, and on rank 0 the control memory (elsewhere -1), to all; both stay the caller's. Waits for all ranks
 * up to min(120 s, the timeout) and says at INFO every 5 s whom for. */
tsh_status tshi_rendezvous(const tshi_settings *settings, const tsh_log *log, const tsh_allocator *allocator, int heap,
                           int control, tshi_meeting *out);
void tshi_meeting_close(tshi_meeting *meeting, const tsh_allocator *allocator);

#endif
