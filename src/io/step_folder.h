/* The folders of checkpoints: PATH/step-00001200 is complete, PATH/.step-... is being written or removed. */
#ifndef TSHI_STEP_FOLDER_H
#define TSHI_STEP_FOLDER_H

#include "base/base.h"

#define TSHI_PATH      4096
#define TSHI_STEP_NAME 48

/* PATH/NAME; TSH_ERR_ARGUMENT when it does not fit. */
TSHI_TOOLS tsh_status tshi_path_join(char out[TSHI_PATH], const char *path, const char *name);
/* "step-00001200". */
TSHI_TOOLS void tshi_step_name(int64_t step, char out[TSHI_STEP_NAME]);
/* The steps with a folder in `path`, complete or not, newest first; the caller calls free() on the list. */
TSHI_TOOLS tsh_status tshi_step_list(const char *path, int64_t **steps, int *count);
/* Creates a hidden folder in `path`, which is created too, and removes leftovers of earlier saves. The name contains
 * `token`. */
TSHI_TOOLS tsh_status tshi_step_begin(const char *path, int64_t step, uint64_t token, char folder[TSHI_PATH]);
/* The path of that hidden folder. */
tsh_status tshi_step_hidden(const char *path, int64_t step, uint64_t token, char folder[TSHI_PATH]);
/* Renames the hidden folder to its final name, replacing a folder with that name. */
TSHI_TOOLS tsh_status tshi_step_rename(const char *path, int64_t step, const char *folder);
/* Removes steps, oldest first, until `keep` are left, but never `step`. Ignores failures. */
void tshi_step_prune(const char *path, int64_t step, int keep);
/* Removes a folder and its files; ignores failures. */
TSHI_TOOLS void tshi_folder_remove(const char *folder);

#endif
