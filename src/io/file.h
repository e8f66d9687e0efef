/* Files: reads and writes that are complete or fail, and new files that appear complete or not at all. Every failure is
 * TSH_ERR_IO (TSH_ERR_MEMORY without memory) with the path, the offset, and errno's words. No function here is
 * collective or waits for other ranks. */
#ifndef TSHI_FILE_H
#define TSHI_FILE_H

#include "base/base.h"

/* Records "PATH: what: errno's words (errno N)". */
TSHI_TOOLS tsh_status tshi_file_fail(int error, const char *path, const char *format, ...) TSH_PRINTF(3, 4);

/* Opens a regular file for reading; *bytes is its size. */
tsh_status tshi_file_open(const char *path, int *fd, uint64_t *bytes);
/* Opens an existing file of `bytes` bytes for writing. */
tsh_status tshi_file_open_for_writing(const char *path, uint64_t bytes, int *fd);
/* Creates or replaces a file of `bytes` zeros, with space reserved on the disk if the file system can. */
TSHI_TOOLS tsh_status tshi_file_create(const char *path, uint64_t bytes, int *fd);
/* Closes a descriptor unless it is -1, and sets it to -1. */
TSHI_TOOLS void tshi_file_close(int *fd);

/* Reads or writes all `bytes` at `offset`. A file that ends earlier is an error. */
tsh_status tshi_file_read(int fd, const char *path, void *to, size_t bytes, uint64_t offset);
TSHI_TOOLS tsh_status tshi_file_write(int fd, const char *path, const void *from, size_t bytes, uint64_t offset);
/* Reads a whole file of at most `most` bytes into memory of the allocator, which the caller frees; `kind` names the
 * kind of file in messages. */
tsh_status tshi_file_load(const tsh_allocator *allocator, const char *path, const char *kind, uint64_t most,
                          char **text, size_t *bytes);
/* Creates or replaces a file with these bytes, and waits until it is on the disk. Until then its name is
 * PATH.partial. */
TSHI_TOOLS tsh_status tshi_file_save(const char *path, const void *from, size_t bytes);
/* Waits until the file's bytes are on the disk. */
TSHI_TOOLS tsh_status tshi_file_sync(int fd, const char *path);

/* Renames within a folder, and waits until the folder's new entry is on the disk. */
TSHI_TOOLS tsh_status tshi_file_rename(const char *from, const char *to);
/* Waits until the entries of `path`'s folder are on the disk. */
tsh_status tshi_file_sync_folder(const char *path);

#endif
