/* Time, for tests that wait or say how long something may take. */
#ifndef TSHI_TEST_CLOCK_H
#define TSHI_TEST_CLOCK_H

#include <time.h>

/* Seconds that what happens at once may take on a machine that is busy with other things: a guard, well before the
 * deadline of 60 s that tests have, which says that it was no deadline that ended a wait. */
#define TSHI_SOON 30.0

/* Seconds of a clock that only goes forward. */
static inline double tshi_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void tshi_nap(double seconds) {
    struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

#endif
