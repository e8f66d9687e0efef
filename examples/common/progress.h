/* What a training program says while it trains: a line now and then on stdout, and on a terminal a last line on stderr
 * that is always fresh. */
#ifndef EXAMPLES_PROGRESS_H
#define EXAMPLES_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    const char *unit;        /* of what a step trains on, as "tokens" */
    int64_t per_step, steps; /* units of a step; steps of the whole training */
    int ranks;
    bool json, speaks; /* one rank speaks */
    /* from here on: the functions' own */
    bool terminal;
    double start, line, fresh; /* when: the beginning, the last line, the last fresh one */
    int64_t first_step, line_step;
    double loss_sum; /* since the last line */
} progress;

/* Seconds since some moment of the past. */
double seconds_now(void);

/* The median of times, in seconds, without the first `skipped` ones where there are more than twice as many, for these
 * take memory and find the fastest code. Sorts them; 0 without any. */
double median_seconds(double *times, int64_t count, int64_t skipped);

/* Before the step with index first_step. */
void progress_begin(progress *p, int64_t first_step);
/* After a step: `done` steps are over, with those before first_step. With json every step is a line
 * {"step", "loss", "UNIT_per_s", "ranks"}, else about 20 lines say how far it is. */
void progress_step(progress *p, int64_t done, double loss);
/* Takes the fresh line away, before something else is printed. */
void progress_clear(const progress *p);

#endif
