/* The team of threads is that of the OpenMP runtime which oneDNN has loaded: products and other kernels take turns on
 * the same threads, and each thread that is a rank has a team of its own. */
#include "device/cpu/parallel.h"
#include "base/owner.h"

/* ThreadSanitizer does not see how OpenMP's runtimes synchronise, and would report every region as a race. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1 /* as GCC defines it */
#endif
#endif
#ifdef __SANITIZE_THREAD__
static const bool may_start = false;
#else
static const bool may_start = true;
#endif

/* GOMP_parallel is what compilers call for a parallel region. Weak, because a build without oneDNN may have no OpenMP
 * runtime. */
extern void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags) __attribute__((weak));
extern int omp_get_thread_num(void) __attribute__((weak));
extern int omp_get_num_threads(void) __attribute__((weak));
extern int omp_in_parallel(void) __attribute__((weak));

/* A forked process has none of the threads that its runtime still counts on. */
static bool is_forked(const tsh_device *device) {
    return device->owner && device->owner->process && !*device->owner->process;
}

static bool can_start(const tsh_device *device) {
    return may_start && GOMP_parallel && omp_get_thread_num && omp_get_num_threads && omp_in_parallel &&
           !omp_in_parallel() && !is_forked(device);
}

typedef struct region {
    int64_t n, step;
    int ranges;
    tshi_range_fn *work;
    const void *call;
} region;

/* A thread's share of the ranges: the runtime may have given fewer threads than were asked for. */
static void region_body(void *data) {
    const region *r = data;
    const int64_t blocks = r->n / r->step;
    for (int i = omp_get_thread_num(); i < r->ranges; i += omp_get_num_threads()) {
        int64_t from = blocks * i / r->ranges * r->step, end = blocks * (i + 1) / r->ranges * r->step;
        r->work(r->call, i, from, i + 1 < r->ranges ? end : r->n);
    }
}

int tshi_ranges(const tsh_device *device, int64_t n, int64_t step, double cost) {
    int64_t most = device->threads;
    if (most < 2 || n < 2 * step) return 1;
    double worth = (double)n * cost / TSHI_LEAST_COST;
    if (worth < (double)most) most = (int64_t)worth;
    if (n / step < most) most = n / step;
    return most > 1 ? (int)most : 1;
}

/* A team always has all threads of the rank: a runtime ends the threads that a smaller team leaves over. */
void tshi_parallel(const tsh_device *device, int64_t n, int64_t step, double cost, tshi_range_fn *work,
                   const void *call) {
    region r = {n, step, tshi_ranges(device, n, step, cost), work, call};
    if (r.ranges > 1 && can_start(device))
        GOMP_parallel(region_body, &r, (unsigned)device->threads, 0);
    else
        work(call, 0, 0, n);
}
