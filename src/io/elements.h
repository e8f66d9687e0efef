/* Boxes of row-major arrays in files. A box lies within its array. */
#ifndef TSHI_ELEMENTS_H
#define TSHI_ELEMENTS_H

#include "layout/box.h"

/* An array in an open file: its elements, of `size` bytes each, begin at `offset`. */
typedef struct tshi_elements {
    int fd;
    const char *path;
    uint64_t offset;
    size_t size;
    int ndim;
    const int64_t *shape;
} tshi_elements;

/* Reads a box, row-major, and adds the bytes that were read to *bytes_read. Short gaps between runs are read too, where
 * that costs less than a system call. Uses at most 256 KiB of memory. */
tsh_status tshi_elements_read(const tshi_elements *elements, const tsh_allocator *allocator, const tsh_box *box,
                              void *out, uint64_t *bytes_read);
/* Writes a box. Ranks may write boxes that do not overlap at the same time. */
tsh_status tshi_elements_write(const tshi_elements *elements, const tsh_box *box, const void *in);

#endif
