/* Files: positioned reads and writes that are whole or an error, and new files that appear whole or not at all. Every
 * failure is TSH_ERR_IO (TSH_ERR_MEMORY for want of memory) with the path, the place in the file, and the system's
 * words. No function here is collective or waits for other ranks. */
#ifndef TSHI_FILE_H
#define TSHI_FILE_H

#include "base/base.h"

/* Records "PATH: what: the system's words (errno N)". */
TSHI_TOOLS tsh_status tshi_file_fail(int error, const char *path, const char *format, ...) TSH_PRINTF(3, 4);

/* Opens a regular file for reading; *bytes is its size. */
tsh_status tshi_file_open(const char *path, int *fd, uint64_t *bytes);
/* Opens a file that exists for writing. */
tsh_status tshi_file_open_for_writing(const char *path, int *fd);
/* Creates a file of `bytes` zeros, in place of one that is there, with room on the disk where the file system can
 * promise it. */
TSHI_TOOLS tsh_status tshi_file_create(const char *path, uint64_t bytes, int *fd);
/* Closes a descriptor, unless it is -1, and makes it -1. */
TSHI_TOOLS void tshi_file_close(int *fd);

/* Reads or writes all `bytes` at `offset`. A file that ends earlier is an error. */
tsh_status tshi_file_read(int fd, const char *path, void *to, size_t bytes, uint64_t offset);
TSHI_TOOLS tsh_status tshi_file_write(int fd, const char *path, const void *from, size_t bytes, uint64_t offset);
/* Reads a whole file of at most `most` bytes into memory of the allocator, which the caller frees; `kind` is what the
 * file is, for the message. */
tsh_status tshi_file_load(const tsh_allocator *allocator, const char *path, const char *kind, uint64_t most,
                          char **text, size_t *bytes);
/* Makes a file of this text, in place of one that is there, and waits until it is on the disk. */
TSHI_TOOLS tsh_status tshi_file_save(const char *path, const char *text);
/* Waits until the file's bytes are on the disk. */
TSHI_TOOLS tsh_status tshi_file_sync(int fd, const char *path);

/* Renames, and waits until the folder's new entry is on the disk; both paths are in one folder. */
TSHI_TOOLS tsh_status tshi_file_rename(const char *from, const char *to);
/* Waits until the entries of the folder in which `path` lies are on the disk. */
TSHI_TOOLS tsh_status tshi_file_sync_folder(const char *path);

#endif
