/* What the probes share: a clock, a GPU with a stream that can be held, and checks as processes of their own. */
#ifndef GPU_PROBE_H
#define GPU_PROBE_H

#include "hold.h"

#include <stdbool.h>

/* A check has this many seconds. */
enum { PROBE_LIMIT = 20 };

typedef struct probe_check {
    const char *name;
    void (*run)(void);
    bool endless; /* it is known not to end: that is no failure */
} probe_check;

double probe_now(void); /* seconds */
void probe_nap(double seconds);
/* End this check, with words, unless the call was good. */
void probe_need(cudaError_t error, const char *call);

/* Of the check that runs: two streams, the flag that gpu_hold waits for, 256 MiB of device memory. */
typedef struct probe_bed {
    cudaStream_t stream, other;
    volatile int *flag;
    int *data;
} probe_bed;

extern probe_bed bed;
/* CUDA starts here. */
void probe_open(void);
void probe_hold(void);
/* The flag is set so many seconds from now. */
void probe_release_in(double seconds);
/* The flag is set at once; waits for both streams. */
void probe_release(void);

/* Runs the checks that `words` names, or all, each in a process with PROBE_LIMIT seconds. The first one decides: where
 * it ends with 77 nothing else is tried. The exit code: 77 then, 1 where a check failed or did not end, or 0. */
int probe_run(const probe_check *checks, char **words);

#endif
