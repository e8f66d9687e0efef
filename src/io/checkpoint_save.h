/* Saving a checkpoint, in steps that need no collective: the world's thread or a background thread runs them. */
#ifndef TSHI_CHECKPOINT_SAVE_H
#define TSHI_CHECKPOINT_SAVE_H

#include "io/checkpoint_files.h"
#include "io/checkpoint_state.h"
#include "io/step_folder.h"

#include <stdatomic.h>

/* What a rank writes of a tensor. */
typedef struct tshi_saved_share {
    const tsh_tensor *tensor; /* NULL: nothing */
    int entry;                /* of the file */
    tsh_box box;
    const char *copy; /* the box's elements; NULL: they are the tensor's */
} tshi_saved_share;

/* A save on one rank. */
typedef struct tshi_checkpoint_save {
    tsh_world *world;
    int keep;
    int64_t step;
    char path[TSHI_PATH], folder[TSHI_PATH]; /* the caller's folder, and the hidden one in it */
    atomic_bool awaited;                     /* the world's thread waits for this save, which must not pause */
    atomic_bool cancelled;                   /* sums that are still missing will not come */

    int tensors;
    tshi_stored_tensor *tensor;    /* [tensors]; names are copies, sums those of this rank's shares */
    tshi_saved_share *share;       /* [tensors] */
    int entries;                   /* of this rank's file: the tensors of which it has a share */
    tshi_safetensors_entry *entry; /* [entries] */
    uint64_t *sums;                /* [tensors]: on their way to rank 0 */
    char *header;                  /* the file's first bytes */
    size_t header_bytes;
    uint64_t file_bytes;
    json_t *state; /* on rank 0: what is beside the tensors */
    char *copy;    /* the shares' elements, of a save in the background; else NULL */
    char *buffer;
    struct tshi_background_save *background; /* of a save in the background (checkpoint_background.h) */
} tshi_checkpoint_save;

/* Prepares what this rank writes of the tensors; in the background their elements are copied. */
tsh_status tshi_checkpoint_save_prepare(tshi_checkpoint_save *save, const tsh_checkpoint *what,
                                        const tsh_parameters *tensors);
/* Writes this rank's file. The folder exists. */
tsh_status tshi_checkpoint_save_write(tshi_checkpoint_save *save);
/* On rank 0: waits for the files of all ranks, describes the checkpoint, gives the folder its name and removes old
 * ones. */
tsh_status tshi_checkpoint_save_commit(tshi_checkpoint_save *save);
void tshi_checkpoint_save_clear(tshi_checkpoint_save *save);

#endif
