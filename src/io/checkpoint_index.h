/* checkpoint.json: the tensors of a checkpoint, and the file of each of their boxes. A rank's part, which names only
 * its own file, has the same form; the index is merged from the parts.
 *
 * Memory is from malloc, as Jansson's, because the thread of a background save uses it too. */
#ifndef TSHI_CHECKPOINT_INDEX_H
#define TSHI_CHECKPOINT_INDEX_H

#include "layout/box.h"
#include "tshard/device.h"

#include <jansson.h>

#define TSHI_CHECKPOINT_INDEX "checkpoint.json"

/* A box of a tensor, which is the tensor with the same name in a safetensors file. */
typedef struct tshi_stored_box {
    int file;
    tsh_box box;
} tshi_stored_box;

typedef struct tshi_stored_tensor {
    char *name;
    tsh_dtype dtype;
    int ndim;
    int64_t shape[TSH_MAX_DIMS];
    uint64_t sum; /* checksum.h; in a part, over its boxes */
    int count, capacity;
    tshi_stored_box *boxes;
} tshi_stored_tensor;

typedef struct tshi_stored_file {
    char *name;
    uint64_t bytes;
} tshi_stored_file;

typedef struct tshi_checkpoint_index {
    int64_t step;
    int files, file_capacity, tensors, tensor_capacity;
    tshi_stored_file *file;
    tshi_stored_tensor *tensor;
    json_t *state; /* an object, everything but tensors; only in rank 0's part, else NULL */
} tshi_checkpoint_index;

TSHI_TOOLS void tshi_checkpoint_index_clear(tshi_checkpoint_index *index);
/* Add a file, a tensor without boxes (NULL without memory), and a box. Names are copied. */
TSHI_TOOLS tsh_status tshi_checkpoint_index_add_file(tshi_checkpoint_index *index, const char *name, uint64_t bytes);
TSHI_TOOLS tshi_stored_tensor *tshi_checkpoint_index_add_tensor(tshi_checkpoint_index *index, const char *name,
                                                                tsh_dtype dtype, int ndim, const int64_t *shape);
TSHI_TOOLS tsh_status tshi_stored_tensor_add(tshi_stored_tensor *tensor, int file, const tsh_box *box);
/* The tensor with that name, or NULL; `hint` is its probable index. */
TSHI_TOOLS tshi_stored_tensor *tshi_checkpoint_index_find(const tshi_checkpoint_index *index, const char *name,
                                                          int hint);
/* Adds a part's files, boxes, sums and state. */
tsh_status tshi_checkpoint_index_merge(tshi_checkpoint_index *index, const tshi_checkpoint_index *part);
/* TSH_ERR_IO unless the boxes of each tensor cover each of its elements once. `path` is for the message. */
TSHI_TOOLS tsh_status tshi_checkpoint_index_check(const tshi_checkpoint_index *index, const char *path);

/* Writes a file, and waits until it is on the disk. */
TSHI_TOOLS tsh_status tshi_checkpoint_index_write(const tshi_checkpoint_index *index, const char *path);
/* TSH_ERR_IO for a file that cannot be read or is not an index; *index is then empty. */
tsh_status tshi_checkpoint_index_read(const char *path, tshi_checkpoint_index *index);

#endif
