/* Free memory, by size: for allocators that keep to what lies where.
 *
 * Holes hang in lists by size class (16 a power of two), each in order of address: which one is found depends on those
 * there are alone, not on the order in which they came. Not thread-safe. */
#ifndef TSHI_HOLES_H
#define TSHI_HOLES_H

#include "base/base.h"

#define TSHI_HOLE_UNIT    ((size_t)64) /* sizes are multiples of it */
#define TSHI_HOLE_LEVELS  58           /* powers of two of a size in units */
#define TSHI_HOLE_CLASSES 16

/* What an allocator's block starts with; free or not, data and size are the block's own. */
typedef struct tshi_hole {
    char *data;
    size_t size;
    struct tshi_hole *next, *previous; /* in the list of its class, while it is free */
    bool is_free;
} tshi_hole;

/* All zero: none. */
typedef struct tshi_holes {
    uint64_t levels; /* bit l: some class of level l has a hole */
    uint16_t classes[TSHI_HOLE_LEVELS];
    tshi_hole *first[TSHI_HOLE_LEVELS][TSHI_HOLE_CLASSES];
} tshi_holes;

void tshi_holes_add(tshi_holes *holes, tshi_hole *hole);
void tshi_holes_remove(tshi_holes *holes, tshi_hole *hole);
/* One of at least `size`, which stays in its list, or NULL. */
tshi_hole *tshi_holes_find(const tshi_holes *holes, size_t size);
/* The size of the largest, 0 for none. */
size_t tshi_holes_largest(const tshi_holes *holes);

#endif
