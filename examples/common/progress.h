/* The progress of a training program: a line now and then on stdout and, on a terminal, a status line on stderr. */
#ifndef EXAMPLES_PROGRESS_H
#define EXAMPLES_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    const char *unit;        /* of what a step trains on, as "tokens" */
    int64_t per_step, steps; /* units of a step; steps of the whole training */
    int ranks;
    bool json, speaks; /* one rank speaks */
    /* the rest is private to the functions below */
    bool terminal;
    double start, line, fresh; /* times: of the beginning, the last line, the last status line */
    int64_t first_step, line_step;
    double loss_sum; /* since the last line */
} progress;

/* Seconds since a fixed time in the past. */
double seconds_now(void);

/* The median of times, in seconds, without the first `skipped` ones if there are more than twice as many, because first
 * steps allocate and plan. Sorts the times; 0 if there are none. */
double median_seconds(double *times, int64_t count, int64_t skipped);

/* Before the step with index first_step. */
void progress_begin(progress *p, int64_t first_step);
/* After a step: `done` steps have been made, including those before first_step. With json every step is a line {"step",
 * "loss", "UNIT_per_s", "ranks"}; otherwise about 20 lines in all show the progress. */
void progress_step(progress *p, int64_t done, double loss);
/* Erases the status line, before something else is printed. */
void progress_clear(const progress *p);

#endif
