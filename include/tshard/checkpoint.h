/* checkpoint: the state of a training run in a folder of files; a checkpoint loads at any number of ranks. See
 * docs/checkpoints.md.
 *
 * Thread safety: the world's thread; any thread may call tsh_checkpoint_latest. */
#ifndef TSHARD_CHECKPOINT_H
#define TSHARD_CHECKPOINT_H

#include "tshard/train.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The type of a value in a checkpoint. */
typedef enum tsh_value_kind {
    TSH_VALUE_INT64 = 0, /* data is an int64_t * */
    TSH_VALUE_DOUBLE,    /* data is a double * */
    TSH_VALUE_STRING,    /* data is a char *, 0-terminated UTF-8; a load writes at most `size` bytes */
    TSH_VALUE_BYTES      /* data is `size` bytes; the checkpoint must have as many */
} tsh_value_kind;

/* A value of the program, saved and loaded under its name: an epoch, a position in the data, a tokenizer. */
typedef struct tsh_value {
    const char *name;
    tsh_value_kind kind;
    void *data;  /* saved from here, and loaded to it */
    size_t size; /* STRING (load) and BYTES */
} tsh_value;

/* The contents of a checkpoint. Tensors are REPLICATED or SHARD; replicas hold the same values. */
typedef struct tsh_checkpoint {
    tsh_parameters *parameters; /* the same list on every rank */
    tsh_optimizer *optimizer;   /* of these parameters, for its states, step counts and learning rate; or NULL */
    int64_t step;               /* >= 0, names the folder; a load sets it */
    tsh_value *values;          /* rank 0's are saved; a load sets those of every rank */
    int value_count;            /* entries of values */
    int keep;                   /* save: removes the oldest steps' folders until so many are left; 0: removes none */
    /* load: the optimizer's parameters may differ from the checkpoint's, because some have been frozen since, or are
     * trained for the first time, or are in other groups. A state that the checkpoint lacks, wholly or in part, starts
     * at zero; a state whose parameter the optimizer does not have is ignored. The log names the parameters of both
     * kinds (TSH_LOG_INFO), and the fields below count them. */
    bool other_states;
    int new_states, ignored_states; /* load with other_states: the number of parameters, set */
    bool background; /* save: return once the values are copied; a thread writes them while training goes on */
} tsh_checkpoint;

/* Save into the folder path/step-00001200 (for step 1200), replacing a folder of that name; `path` is created, its
 * parent must exist, and all ranks must see it. The world's seed and random stream are saved too. Each rank writes the
 * boxes that it holds; ranks with the same box write a part of it each. A folder with that name is always complete: it
 * is written under another name, synced and renamed. After an error, no folder of this save is left. With `background`,
 * at most one save is in flight: the next save, load or tsh_checkpoint_wait waits for it, and if it has failed, returns
 * its failure and does nothing else. Collective over the parameters' world; waits. TSH_ERR_ARGUMENT, _LAYOUT, _MEMORY;
 * TSH_ERR_IO names the path and the cause, and peers get TSH_ERR_PEER with the same text. */
TSH_API tsh_status tsh_checkpoint_save(const char *path, const tsh_checkpoint *what);
/* Load from one step's folder, or from the newest complete one in `path`, at any number of ranks and in any layouts;
 * each rank reads only its boxes. The checkpoint must have the same tensors, shapes, dtypes and values, except that
 * other_states allows other optimizer states: otherwise one error lists all that are missing, unexpected or different,
 * and nothing changes. After a failed read or a wrong checksum (TSH_ERR_IO on every rank) the tensors' elements are
 * undefined; everything else is unchanged. Collective over the parameters' world; waits. */
TSH_API tsh_status tsh_checkpoint_load(const char *path, tsh_checkpoint *what);
/* Wait for a background save of this world; returns its status, or TSH_OK if no save is in flight. Collective over the
 * world. tsh_world_destroy waits too, and drops a save whose ranks have died. */
TSH_API tsh_status tsh_checkpoint_wait(tsh_world *world);
/* The step of the newest complete checkpoint in the folder `path`, or -1 if the folder has no complete checkpoint. Not
 * collective. TSH_ERR_IO for a folder that cannot be read. */
TSH_API tsh_status tsh_checkpoint_latest(const char *path, int64_t *step);

#ifdef __cplusplus
}
#endif

#endif
