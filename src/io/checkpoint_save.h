/* Saving a checkpoint, in steps that need no collective: the world's thread or a background thread runs them. */
#ifndef TSHI_CHECKPOINT_SAVE_H
#define TSHI_CHECKPOINT_SAVE_H

#include "io/checkpoint_state.h"
#include "io/safetensors.h"
#include "io/step_folder.h"

#include <stdatomic.h>

/* A save on one rank. */
typedef struct tshi_checkpoint_save {
    tsh_world *world;
    int rank, size, keep;
    int64_t step;
    char path[TSHI_PATH], folder[TSHI_PATH]; /* the caller's folder, and the hidden one in it */
    double timeout;                          /* for the peers' parts */
    atomic_bool awaited;                     /* the world's thread waits for this save, which must not pause */
    atomic_bool cancelled;                   /* parts that are still missing will not come */

    tshi_checkpoint_index part;    /* this rank's tensors and boxes */
    int entries;                   /* tensors of which this rank has a box, in its file */
    tshi_safetensors_entry *entry; /* [entries] */
    const tsh_tensor **tensor;     /* [entries]; NULL in a save with a copy */
    char *header;                  /* of the file */
    size_t header_bytes;
    uint64_t file_bytes;
    char *copy; /* the elements of all entries, in file order; NULL: the tensors are read */
    char *buffer;
    struct tshi_background_save *background; /* of a save in the background (checkpoint_background.h) */
} tshi_checkpoint_save;

/* Prepares this rank's part; `copy`: copies the tensors' elements. */
tsh_status tshi_checkpoint_save_prepare(tshi_checkpoint_save *save, const tsh_checkpoint *what,
                                        const tsh_parameters *tensors, bool copy);
/* Writes this rank's part; the folder must exist. */
tsh_status tshi_checkpoint_save_write(tshi_checkpoint_save *save);
/* On rank 0: waits for the parts of all ranks, writes the index, renames the folder and removes old ones. */
tsh_status tshi_checkpoint_save_commit(tshi_checkpoint_save *save);
void tshi_checkpoint_save_clear(tshi_checkpoint_save *save);

#endif
