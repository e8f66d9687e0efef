/* A checkpoint's folder: checkpoint.json has the step, the state and the tensors' metadata; rank-00000.safetensors, ...
 * have boxes of the tensors under their names, and the start of each box as metadata. Nothing here is collective. */
#ifndef TSHI_CHECKPOINT_FILES_H
#define TSHI_CHECKPOINT_FILES_H

#include "io/safetensors.h"

#include <jansson.h>

#define TSHI_CHECKPOINT_JSON "checkpoint.json"
#define TSHI_RANK_FILE       32

/* The metadata of a tensor. */
typedef struct tshi_stored_tensor {
    const char *name;
    tsh_dtype dtype;
    int ndim;
    int64_t shape[TSH_MAX_DIMS];
    uint64_t sum; /* checksum.h */
} tshi_stored_tensor;

/* A file, open only while it is read. */
typedef struct tshi_stored_file {
    tshi_safetensors *file;
    json_t *boxes; /* the start of each box, by name; NULL: all tensors are whole */
} tshi_stored_file;

/* A folder that is being read. */
typedef struct tshi_checkpoint_files {
    tsh_allocator allocator;
    int64_t step;
    json_t *json, *state; /* checkpoint.json, and the state in it (checkpoint_state.h) */
    int tensors, tensor_capacity, count, capacity;
    tshi_stored_tensor *tensor;
    tshi_stored_file *file; /* [count] */
    char *chunk;
} tshi_checkpoint_files;

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Opens a folder. TSH_ERR_IO also for missing or incomplete files, and for boxes that do not fit the tensors. The
 * caller closes the files, also after a failure. */
TSHI_TOOLS tsh_status tshi_checkpoint_open(const tsh_allocator *allocator, const char *folder,
                                           tshi_checkpoint_files *out);
TSHI_TOOLS void tshi_checkpoint_close(tshi_checkpoint_files *files);
/* Add a file of boxes, and a tensor (NULL without memory), whose name must outlive it. */
TSHI_TOOLS tsh_status tshi_checkpoint_add_file(tshi_checkpoint_files *files, const char *path);
TSHI_TOOLS tshi_stored_tensor *tshi_checkpoint_add_tensor(tshi_checkpoint_files *files, const char *name);
/* The tensor with that name, or NULL; `hint` is its probable index. */
TSHI_TOOLS const tshi_stored_tensor *tshi_checkpoint_find(const tshi_checkpoint_files *files, const char *name,
                                                          int hint);
/* The box of a tensor in file number i; false if it has none. */
TSHI_TOOLS bool tshi_checkpoint_box(const tshi_checkpoint_files *files, const tshi_stored_tensor *t, int i,
                                    tsh_box *box);
/* Reads a box of a tensor, row-major. */
TSHI_TOOLS tsh_status tshi_checkpoint_read(tshi_checkpoint_files *files, const tshi_stored_tensor *t,
                                           const tsh_box *box, void *memory);

/* --- writing ------------------------------------------------------------------------------------------------------ */

TSHI_TOOLS const char *tshi_rank_file_name(int rank, char name[TSHI_RANK_FILE]);
/* Adds a box to a file's metadata "boxes". */
TSHI_TOOLS void tshi_checkpoint_describe_box(json_t *boxes, const tshi_stored_tensor *t, const tsh_box *box);
/* Writes checkpoint.json, and waits until it is on the disk. Takes the reference of the state. */
TSHI_TOOLS tsh_status tshi_checkpoint_write_json(const char *folder, int64_t step, json_t *state, int files,
                                                 int tensors, const tshi_stored_tensor *tensor);

#endif
