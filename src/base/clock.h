/* Time: a monotonic clock, a cheaper counter, sleeping, and when a wait warns. */
#ifndef TSHI_CLOCK_H
#define TSHI_CLOCK_H

#include "base/base.h"

#include <stdbool.h>
#include <stdint.h>

/* Seconds on the monotonic clock. */
TSHI_TOOLS double tshi_clock(void);

/* Sleeps; a signal ends it early. */
TSHI_TOOLS void tshi_sleep(double seconds);

/* A cheap counter with a constant rate: that of the time stamp counter or of the generic timer, or nanoseconds. */
static inline uint64_t tshi_ticks(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return (uint64_t)(tshi_clock() * 1e9);
#endif
}

/* True when the time *next has come, for a wait to warn; *next is then `every` seconds from now. */
static inline bool tshi_warning_due(double *next, double every) {
    double now = tshi_clock();
    if (now < *next) return false;
    *next = now + every;
    return true;
}

#endif
