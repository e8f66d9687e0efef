/* Files that rank 0 reads for all ranks: a pipe can be read only once, stdin is rank 0's, and other machines may not
 * have the file. */
#ifndef EXAMPLES_SHARED_FILE_H
#define EXAMPLES_SHARED_FILE_H

#include "tshard/tshard.h"

/* The most bytes that are read, so that an endless file does not fill the memory. */
enum { SHARED_FILE_BYTES = 256 << 20 };

typedef struct shared_file {
    char *bytes; /* with a NUL behind them; the caller frees them, after a failure too */
    int64_t length;
} shared_file;

/* Appends the file's bytes, which rank 0 reads for all ranks. Collective over the world; NULL: only this rank reads.
 * False, with the reason in `why`, if the file cannot be read or the length would be more than SHARED_FILE_BYTES. */
bool shared_file_read(tsh_world *world, const char *path, shared_file *out, char *why, size_t size);

#endif
