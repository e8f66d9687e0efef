/* A kernel's work on the threads of a rank. */
#ifndef TSHI_CPU_PARALLEL_H
#define TSHI_CPU_PARALLEL_H

#include "device/device.h"

/* Does units [from, end) of a call's work; `range` numbers the ranges of a call from 0. */
typedef void tshi_range_fn(const void *call, int range, int64_t from, int64_t end);

/* The least cost of a range: it takes 4 us or more, starting threads that wait for work 1 to 2 us. */
#define TSHI_LEAST_COST 65536

/* How many ranges a call of n units has: at most device->threads, and so few that each is worth a thread. `cost` is
 * that of a unit, where 1 is an element that is read and written. Depends on nothing else. */
int tshi_ranges(const tsh_device *device, int64_t n, int64_t step, double cost);

/* Calls `work` for ranges that cover [0, n), each on a thread of its own, and waits for them. All but the first begin
 * at a multiple of `step`: a loop over vectors then computes every element as it does without threads. One range has
 * all units without an OpenMP runtime, inside one of its parallel regions, and in a process that was forked from the
 * device's. */
void tshi_parallel(const tsh_device *device, int64_t n, int64_t step, double cost, tshi_range_fn *work,
                   const void *call);

#endif
