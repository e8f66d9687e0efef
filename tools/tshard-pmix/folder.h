/* A folder that goes with its helper. It is locked as long as the helper lives: an unlocked one is left over from a
 * helper that was killed with the whole job of its machine. */
#ifndef HELPER_FOLDER_H
#define HELPER_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

/* A new folder; those that dead helpers have left are removed. */
bool helper_folder_make(char *out, size_t size);
void helper_folder_remove(const char *path);

#endif
