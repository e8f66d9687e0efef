/* Reads any box of an index's tensors from the boxes in its files. */
#ifndef TSHI_READER_H
#define TSHI_READER_H

#include "io/checkpoint_index.h"
#include "io/safetensors.h"

/* Reads and checks a folder's index. TSH_ERR_IO also if boxes do not cover each element once, or a file is missing or
 * has another size. */
TSHI_TOOLS tsh_status tshi_checkpoint_index_read_whole(const char *folder, tshi_checkpoint_index *index);

typedef struct tshi_reader {
    const char *folder;
    const tshi_checkpoint_index *index;
    const tsh_allocator *allocator;
    tshi_safetensors **file; /* [index->files]; NULL: not open */
    int open;
    char *chunk;
} tshi_reader;

/* The caller closes the reader, also after an error. */
TSHI_TOOLS tsh_status tshi_reader_open(tshi_reader *r, const char *folder, const tshi_checkpoint_index *index,
                                       const tsh_allocator *allocator);
TSHI_TOOLS void tshi_reader_close(tshi_reader *r);
/* Reads a box of a tensor, row-major. */
TSHI_TOOLS tsh_status tshi_reader_read(tshi_reader *r, const tshi_stored_tensor *t, const tsh_box *box, void *memory);
/* The checksum of `part`, which is not empty, in memory that holds `box`. */
TSHI_TOOLS uint64_t tshi_checksum_part(const tshi_stored_tensor *t, const tsh_box *part, const char *memory,
                                       const tsh_box *box);

#endif
