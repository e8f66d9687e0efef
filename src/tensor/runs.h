/* A box's elements as runs that are contiguous in two row-major arrays, each of which holds a box around it. Runs are
 * as long as possible, with constant strides between them. */
#ifndef TSHI_RUNS_H
#define TSHI_RUNS_H

#include "device/device.h"
#include "layout/box.h"

/* Counts and strides in elements. Level 0 is within a run; from[l] and to[l] are the strides of level l in the source
 * and the target. */
typedef struct tshi_runs {
    int levels; /* at least 1 */
    int64_t count[TSH_MAX_DIMS], from[TSH_MAX_DIMS], to[TSH_MAX_DIMS];
    int64_t from_start, to_start; /* offsets of the first element; 0 for an empty box */
    int64_t numel;
} tshi_runs;

tshi_runs tshi_runs_of(int ndim, const tsh_box *box, const tsh_box *from, const tsh_box *to);
/* The offsets of element `index`, counted over `level` and the levels above it, the lower levels fastest. */
void tshi_runs_at(const tshi_runs *r, int level, int64_t index, int64_t *from, int64_t *to);
/* Copies the elements, of `size` bytes each, within the device's memory; from and to hold the boxes, and do not
 * overlap. */
void tshi_runs_copy(tsh_device *device, size_t size, const tshi_runs *r, const void *from, void *to);

#endif
