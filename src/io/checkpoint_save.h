/* Saving a checkpoint, in steps that do not wait for other ranks: what the world's thread or a thread beside it
 * runs. */
#ifndef TSHI_CHECKPOINT_SAVE_H
#define TSHI_CHECKPOINT_SAVE_H

#include "io/checkpoint_state.h"
#include "io/safetensors.h"
#include "io/step_folder.h"

#include <stdatomic.h>

/* One save, as one rank has it. */
typedef struct tshi_checkpoint_save {
    tsh_world *world;
    int rank, size, keep;
    int64_t step;
    char path[TSHI_PATH], folder[TSHI_PATH]; /* the caller's, and the hidden one in it */
    double timeout;                          /* for the peers' parts */
    atomic_bool awaited;                     /* the world's thread waits for this save: it is written at once */
    atomic_bool cancelled;                   /* parts that are still missing will not come */

    tshi_checkpoint_index part;    /* this rank's tensors, with its box of each */
    int entries;                   /* of this rank's file: the tensors of which it has a box */
    tshi_safetensors_entry *entry; /* [entries] */
    const tsh_tensor **tensor;     /* [entries]; NULL in a save with a copy */
    char *header;                  /* the file's first bytes */
    size_t header_bytes;
    uint64_t file_bytes;
    char *copy; /* the elements of all entries, in the file's order; NULL: they are read from the tensors */
    char *buffer;
    struct tshi_background_save *background; /* of a save in the background (checkpoint_background.h) */
} tshi_checkpoint_save;

/* Prepares what this rank writes of the tensors; with `copy` their elements are copied. */
tsh_status tshi_checkpoint_save_prepare(tshi_checkpoint_save *save, const tsh_checkpoint *what,
                                        const tsh_parameters *tensors, bool copy);
/* Writes this rank's part. The folder exists. */
tsh_status tshi_checkpoint_save_write(tshi_checkpoint_save *save);
/* On rank 0: waits for the parts of all ranks, writes the index, gives the folder its name and removes old ones. */
tsh_status tshi_checkpoint_save_commit(tshi_checkpoint_save *save);
void tshi_checkpoint_save_clear(tshi_checkpoint_save *save);

#endif
