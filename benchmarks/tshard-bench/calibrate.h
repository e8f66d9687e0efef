/* tshard-bench calibrate, inside: what its measurements share. */
#ifndef CALIBRATE_H
#define CALIBRATE_H

#include "bench.h"
#include "common/machine.h"
#include "device/device.h"

typedef struct calibration {
    tsh_world *world;
    tsh_device *device;
    bench_meter *meter;
    double seconds;  /* for one measurement */
    bool waits;      /* ranks wait for each other in what is measured now */
    int64_t largest; /* of the sizes that are measured */
    tsh_tensor *pool;
    size_t working_set;  /* bytes of the pool that small calls walk through */
    size_t cursor, used; /* bytes of the pool: where the next call's buffers lie; what calls may have written */
    machine *m;
} calibration;

/* The pool's bytes. */
#define CALIBRATE_POOL ((size_t)128 << 20)

/* Says where `n` buffers of these bytes lie for the next call. */
void calibrate_place(calibration *c, int n, const size_t *bytes, void **out);

/* Seconds of one call: each rank's lower quartile over repetitions that all ranks begin together, then the slowest
 * rank's. A machine that does other things too has its share in the upper ones. Collective. */
tsh_status calibrate_measure(calibration *c, bench_work *work, void *context, double *seconds);

/* The dtypes that are measured, ended by -1. */
extern const int calibrate_dtypes[];

/* How many of n ascending sizes are measured, at least one. */
int calibrate_points(const calibration *c, const int64_t *sizes, int n);

tsh_status calibrate_products(calibration *c);
tsh_status calibrate_attention(calibration *c);
tsh_status calibrate_kernels(calibration *c);
tsh_status calibrate_networks(calibration *c);

#endif
