/* Free memory, by size: for allocators that do not move what they have allocated.
 *
 * Free ranges are in lists by size class (16 a power of two), each in order of address: which one is found depends on
 * the ranges in the lists alone, not on the order in which they were added. Not thread-safe. */
#ifndef TSHI_FREE_LIST_H
#define TSHI_FREE_LIST_H

#include "base/base.h"

#define TSHI_RANGE_UNIT   ((size_t)64) /* sizes are multiples of it */
#define TSHI_FREE_LEVELS  58           /* powers of two of a size in units */
#define TSHI_FREE_CLASSES 16

/* What a block starts with, free or in use: its memory. */
typedef struct tshi_range {
    char *data;
    size_t size;
    struct tshi_range *next, *previous; /* in the list of its class, while it is free */
    bool is_free;
} tshi_range;

/* All zero: empty. */
typedef struct tshi_free_list {
    uint64_t levels; /* bit l: some class of level l has a range */
    uint16_t classes[TSHI_FREE_LEVELS];
    tshi_range *first[TSHI_FREE_LEVELS][TSHI_FREE_CLASSES];
} tshi_free_list;

void tshi_free_list_add(tshi_free_list *list, tshi_range *range);
void tshi_free_list_remove(tshi_free_list *list, tshi_range *range);
/* A range of the list shrinks, or grows over memory that is in no other range. */
void tshi_free_list_change(tshi_free_list *list, tshi_range *range, char *data, size_t size);
/* A range of at least `size`, which stays in its list, or NULL. */
tshi_range *tshi_free_list_find(const tshi_free_list *list, size_t size);
/* The size of the largest, 0 for an empty list. */
size_t tshi_free_list_largest(const tshi_free_list *list);

#endif
