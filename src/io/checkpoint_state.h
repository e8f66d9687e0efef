/* The contents of a checkpoint: tensors by name, and everything else as JSON. */
#ifndef TSHI_CHECKPOINT_STATE_H
#define TSHI_CHECKPOINT_STATE_H

#include "io/checkpoint_files.h"
#include "tshard/checkpoint.h"

/* Checks the struct's fields: TSH_ERR_ARGUMENT. `call` names the public function. */
tsh_status tshi_checkpoint_check(const char *call, const char *path, const tsh_checkpoint *what);
/* The parameters, then the optimizer's state tensors as "optimizer.PARAMETER.STATE". The caller destroys the list. With
 * what->other_states it lists only states that `files` has completely; `files` is NULL when saving. TSH_ERR_LAYOUT for
 * a PARTIAL or LOCAL tensor. */
tsh_status tshi_checkpoint_tensors(const tsh_checkpoint *what, const tshi_checkpoint_files *files,
                                   tsh_parameters **out);
/* Counts and logs the differences that what->other_states allows. */
void tshi_checkpoint_report_states(const tshi_checkpoint_files *files, tsh_checkpoint *what);
/* Random streams, the optimizer's numbers, and the program's values. NULL with the message set. */
json_t *tshi_checkpoint_pack(const tsh_checkpoint *what);
/* TSH_ERR_IO, listing all differences, unless the checkpoint fits what is loaded. `folder` is for the message. */
tsh_status tshi_checkpoint_compare(const tshi_checkpoint_files *files, const tsh_checkpoint *what,
                                   const tsh_parameters *tensors, const char *folder);
/* Restores the state of tshi_checkpoint_pack, after tshi_checkpoint_compare has checked it; with what->other_states
 * also starts states anew that the checkpoint does not have. */
tsh_status tshi_checkpoint_unpack(const tshi_checkpoint_files *files, tsh_checkpoint *what);

#endif
