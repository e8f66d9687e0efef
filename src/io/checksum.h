/* The checksum of a tensor: the sum, modulo 2^64, over its elements of value(i) weight(i), where i is the element's
 * index in the whole tensor, value(i) its bits as a number and weight(i) = (h ^ h >> 32) | 1 with h = i
 * 0x9e3779b97f4a7c15. An element of 16 bytes is two of 8 with the indices 2i and 2i + 1.
 *
 * Parts of a tensor may be summed anywhere and in any order, so the checksum depends neither on layouts nor on the
 * number of ranks. Weights are odd, so that a change of any single element changes the sum; several changes cancel only
 * by chance. */
#ifndef TSHI_CHECKSUM_H
#define TSHI_CHECKSUM_H

#include "layout/box.h"

/* The sum over the elements of `part`, at least one, of a tensor of that shape with elements of `size` bytes (1, 2, 4,
 * 8 or 16), in memory that holds `box`. */
TSHI_TOOLS uint64_t tshi_checksum_box(size_t size, int ndim, const int64_t *shape, const tsh_box *part,
                                      const void *memory, const tsh_box *box);

#endif
