/* The measuring method, apart from what it measures: tshard-bench and the peer programs beside it share it, so that
 * their figures can be compared. */
#ifndef TIMING_H
#define TIMING_H

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TIMING_MAX_SAMPLES = 1024, TIMING_FEWEST = 5, TIMING_MOST_CALLS = 10000 };

static const double timing_repetition_seconds = 100e-6; /* the clock's own cost vanishes in it */
static const double timing_warm_up_share = 0.2;         /* of the time to spend */

/* The ranks that measure together. All functions return 0, or an error that ends the measurement. */
typedef struct timing_ranks {
    int (*barrier)(void *user);
    int (*slowest)(void *user, double *samples, int n); /* each becomes the largest of all ranks */
    void *user;
} timing_ranks;

/* `calls` times the thing to be measured. */
typedef int timing_work(void *context, int calls);

static inline double timing_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline int timing_compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static inline double timing_median(const double *samples, int n) {
    double sorted[TIMING_MAX_SAMPLES];
    memcpy(sorted, samples, (size_t)n * sizeof *samples);
    qsort(sorted, (size_t)n, sizeof *sorted, timing_compare);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static inline int timing_clamp(double value, int low, int high) {
    return value < low ? low : value > high ? high : (int)value;
}

static inline int timing_calls(const timing_ranks *ranks, timing_work *work, void *context, int calls, double *took) {
    int error = ranks->barrier(ranks->user);
    if (error) return error;
    double begin = timing_now();
    error = work(context, calls);
    *took = timing_now() - begin;
    return error;
}

/* More and more calls, until they have taken the warm-up's time; the last round tells the time of one. All ranks go by
 * the slowest one's clock, so that they make the same number of calls. */
static inline int timing_warm_up(const timing_ranks *ranks, timing_work *work, void *context, double seconds,
                                 double *one_call) {
    double spent = 0.0;
    for (int calls = 1;; calls = calls < TIMING_MOST_CALLS / 2 ? 2 * calls : TIMING_MOST_CALLS) {
        double took = 0.0;
        int error = timing_calls(ranks, work, context, calls, &took);
        if (!error) error = ranks->slowest(ranks->user, &took, 1);
        if (error) return error;
        spent += took;
        *one_call = took / calls;
        if (spent >= timing_warm_up_share * seconds && calls > 1) return 0;
    }
}

/* Seconds of one call into *median: after a warm-up, repetitions of as many calls as take some 100 us, each after a
 * barrier; of every repetition the slowest rank's time; of these the median. The same result on every rank. */
static inline int timing_measure(const timing_ranks *ranks, timing_work *work, void *context, double seconds,
                                 double *median) {
    double one_call = 0.0, samples[TIMING_MAX_SAMPLES];
    int error = timing_warm_up(ranks, work, context, seconds, &one_call);
    if (error) return error;
    int calls = timing_clamp(timing_repetition_seconds / one_call + 1.0, 1, TIMING_MOST_CALLS);
    int repetitions = timing_clamp(seconds / (calls * one_call), TIMING_FEWEST, TIMING_MAX_SAMPLES);
    for (int i = 0; i < repetitions && !error; i++) {
        error = timing_calls(ranks, work, context, calls, &samples[i]);
        samples[i] /= calls;
    }
    if (!error) error = ranks->slowest(ranks->user, samples, repetitions);
    if (!error) *median = timing_median(samples, repetitions);
    return error;
}

#endif
