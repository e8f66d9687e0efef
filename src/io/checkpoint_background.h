/* A background save, which a thread finishes while the world's thread goes on. A world has at most one. */
#ifndef TSHI_CHECKPOINT_BACKGROUND_H
#define TSHI_CHECKPOINT_BACKGROUND_H

#include "io/checkpoint_save.h"

/* The state of a background save, for save->background; NULL with the message set. */
struct tshi_background_save *tshi_background_save_new(const tsh_world *world);
/* Starts a thread that writes and commits the save, which has a copy of the elements. Takes ownership of the save, also
 * on failure. */
void tshi_background_save_start(tshi_checkpoint_save *save);
/* Waits for the world's background save, and returns its status on every rank; TSH_OK if there is none. Collective over
 * the world. */
tsh_status tshi_background_save_finish(tsh_world *world);

#endif
