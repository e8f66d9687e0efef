/* checkpoint: a training run's state in a folder of files, saved at one number of ranks and loaded at any.
 * See docs/checkpoints.md.
 *
 * Thread safety: the world's thread; any thread may call tsh_checkpoint_latest. */
#ifndef TSHARD_CHECKPOINT_H
#define TSHARD_CHECKPOINT_H

#include "tshard/train.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a value of a checkpoint is. */
typedef enum tsh_value_kind {
    TSH_VALUE_INT64 = 0, /* data is an int64_t * */
    TSH_VALUE_DOUBLE,    /* data is a double * */
    TSH_VALUE_STRING,    /* data is a char *, UTF-8 that ends with 0; a load writes at most `size` bytes */
    TSH_VALUE_BYTES      /* data is `size` bytes; a load wants as many */
} tsh_value_kind;

/* A value of the caller's own, saved and loaded under its name: an epoch, a position in the data, a tokenizer. */
typedef struct tsh_value {
    const char *name;
    tsh_value_kind kind;
    void *data;  /* saved from here, and loaded to it */
    size_t size; /* STRING (load) and BYTES */
} tsh_value;

/* What a checkpoint has. Layouts of the tensors are REPLICATED or SHARD; replicas hold the same values. */
typedef struct tsh_checkpoint {
    tsh_parameters *parameters; /* the same list on every rank */
    tsh_optimizer *optimizer;   /* of these parameters: its state tensors, step counts and learning rate; or NULL */
    int64_t step;               /* >= 0, names the folder; a load sets it */
    tsh_value *values;          /* rank 0's are saved; a load sets those of every rank */
    int value_count;            /* entries of values */
    int keep;                   /* save: older steps' folders are removed until so many are left; 0: none is removed */
    bool background; /* save: return when the values have been copied; a thread writes them while training goes on */
} tsh_checkpoint;

/* Save into the folder path/step-00001200 (with step 1200), which takes the place of one of that name; `path` is
 * created, the folder above it must exist, and all ranks must see it. Beside `what` it has the world's seed and random
 * stream. Each rank writes the boxes that it holds, ranks with the same box a part of it each. A folder under that name
 * is whole: it is written under another one, synced and renamed. After an error no folder of this save is left. With
 * `background` at most one save is under way: the next save, load or tsh_checkpoint_wait waits for it, and returns its
 * failure instead of doing anything. Collective over the parameters' world; waits. TSH_ERR_ARGUMENT, _LAYOUT, _MEMORY;
 * TSH_ERR_IO names the path and the cause, and peers get TSH_ERR_PEER with its words. */
TSH_API tsh_status tsh_checkpoint_save(const char *path, const tsh_checkpoint *what);
/* Load from one step's folder, or from the newest whole one in `path`, at any number of ranks and in any layouts; each
 * rank reads its boxes alone. The tensors, shapes and dtypes and the values must be those of the checkpoint: one error
 * names all that are missing, unexpected or different, and nothing has changed. After a failed read or a checksum that
 * does not fit (TSH_ERR_IO on every rank) the tensors' elements are undefined, all else is unchanged. Collective over
 * the parameters' world; waits. */
TSH_API tsh_status tsh_checkpoint_load(const char *path, tsh_checkpoint *what);
/* Wait for a background save of this world; TSH_OK where there is none, else its outcome. Collective over the world.
 * tsh_world_destroy waits too, and drops a save whose ranks have died. */
TSH_API tsh_status tsh_checkpoint_wait(tsh_world *world);
/* The step of the newest whole checkpoint in the folder `path`, -1 where there is none. Not collective. TSH_ERR_IO
 * for a folder that cannot be read. */
TSH_API tsh_status tsh_checkpoint_latest(const char *path, int64_t *step);

#ifdef __cplusplus
}
#endif

#endif
