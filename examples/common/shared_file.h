/* Files whose bytes all ranks want: a pipe can be read once, stdin is rank 0's, and other machines need not have the
 * file. */
#ifndef EXAMPLES_SHARED_FILE_H
#define EXAMPLES_SHARED_FILE_H

#include "tshard/tshard.h"

/* The most that is read: more than any text or ids that models of this size can learn from or answer. An endless file
 * must not fill the memory. */
enum { SHARED_FILE_BYTES = 256 << 20 };

typedef struct shared_file {
    char *bytes; /* with a NUL behind them; the caller frees them, after a failure too */
    int64_t length;
} shared_file;

/* Appends the file's bytes, which rank 0 reads for all ranks. Collective over the world; NULL: this rank alone reads.
 * False, with the reason in `why`, where the file cannot be read or the length would be more than
 * SHARED_FILE_BYTES. */
bool shared_file_read(tsh_world *world, const char *path, shared_file *out, char *why, size_t size);

#endif
