/* Cut points of dims: ascending offsets, kept once each and found by a number, the fingerprint of the offsets, so that
 * equal cut points have the same number on every rank. */
#ifndef TSHI_CUTS_H
#define TSHI_CUTS_H

#include "base/base.h"

#include <stdint.h>

typedef struct tshi_cuts {
    uint64_t number;             /* never 0 */
    int64_t references, created; /* all; those that tshi_cuts_add has given */
    int parts;
    int64_t at[]; /* [parts + 1] */
} tshi_cuts;

/* Zeros: a table without cut points. */
typedef struct tshi_cut_table {
    tshi_cuts **items; /* in ascending order of their numbers */
    int count, room;
} tshi_cut_table;

/* *number is that of these cut points, which get one more reference. TSH_ERR_MEMORY. */
tsh_status tshi_cuts_add(tshi_cut_table *table, const tsh_allocator *allocator, int parts, const int64_t *at,
                         uint64_t *number);
/* NULL for a number that the table does not have. */
const tshi_cuts *tshi_cuts_find(const tshi_cut_table *table, uint64_t number);
/* Take one reference more, or one less: without references, cut points are freed. Both ignore unknown numbers. */
void tshi_cuts_retain(tshi_cut_table *table, uint64_t number);
void tshi_cuts_release(tshi_cut_table *table, const tsh_allocator *allocator, uint64_t number);
/* Releases a reference that tshi_cuts_add has given, if one is left. */
void tshi_cuts_remove(tshi_cut_table *table, const tsh_allocator *allocator, uint64_t number);
/* Frees all cut points. */
void tshi_cuts_clear(tshi_cut_table *table, const tsh_allocator *allocator);

#endif
