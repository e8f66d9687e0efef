/* The folders of checkpoints: PATH/step-00001200 is whole, PATH/.step-... is one that is being written or removed. */
#ifndef TSHI_STEP_FOLDER_H
#define TSHI_STEP_FOLDER_H

#include "base/base.h"

#define TSHI_PATH      4096
#define TSHI_STEP_NAME 48

/* PATH/NAME; TSH_ERR_ARGUMENT when it does not fit. */
TSHI_TOOLS tsh_status tshi_path_join(char out[TSHI_PATH], const char *path, const char *name);
/* "step-00001200". */
TSHI_TOOLS void tshi_step_name(int64_t step, char out[TSHI_STEP_NAME]);
/* The steps that have a folder in `path`, whole or not, the newest first: the caller frees the list with free(). */
TSHI_TOOLS tsh_status tshi_step_list(const char *path, int64_t **steps, int *count);
/* A new folder under a hidden name, in `path`, which is created with it; what earlier saves have left behind is
 * removed. `token` makes the name. */
TSHI_TOOLS tsh_status tshi_step_begin(const char *path, int64_t step, uint64_t token, char folder[TSHI_PATH]);
/* The hidden folder's name on every rank. */
tsh_status tshi_step_hidden(const char *path, int64_t step, uint64_t token, char folder[TSHI_PATH]);
/* The hidden folder gets its name, in place of one that has it. */
TSHI_TOOLS tsh_status tshi_step_rename(const char *path, int64_t step, const char *folder);
/* Removes steps, oldest first, until `keep` are left; `step` stays. What cannot be removed stays. */
void tshi_step_prune(const char *path, int64_t step, int keep);
/* Removes a folder and the files in it, as far as that is possible. */
TSHI_TOOLS void tshi_folder_remove(const char *folder);

#endif
