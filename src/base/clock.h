/* A clock in seconds, and a cheap counter. */
#ifndef TSHI_CLOCK_H
#define TSHI_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

/* Seconds of a clock that only goes forward. */
double tshi_clock(void);

/* The time `next` of a warning has come; it moves to `every` seconds from now. */
static inline bool tshi_warning_due(double *next, double every) {
    double now = tshi_clock();
    if (now < *next) return false;
    *next = now + every;
    return true;
}

/* A cheap counter that goes forward at a constant rate: cycles of the time stamp counter, else nanoseconds. */
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

#endif
