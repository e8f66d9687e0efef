/* Loading, and functions shared with saving. */
#ifndef TSHI_LOAD_H
#define TSHI_LOAD_H

#include "io/names.h"
#include "io/safetensors.h"

/* tsh_load; *bytes_read (may be NULL) counts the bytes that this rank has read. */
tsh_status tshi_load(tsh_parameters *list, const char *path, const tsh_load_options *options, uint64_t *bytes_read);

/* Checks that a parameter is REPLICATED or SHARD and has memory; `what` begins the message. */
tsh_status tshi_check_parameter(const char *what, const char *name, const tsh_tensor *tensor);
/* The size of buffers in elements: that of the largest piece of this rank's parts. */
size_t tshi_io_elements(const tsh_parameters *list);
/* to[c][r] = from[r][c] for elements of `size` bytes: 1, 2, 4 or 8. Rows of `to` are to_stride elements apart. */
void tshi_transpose(size_t size, int64_t rows, int64_t cols, const void *from, void *to, int64_t to_stride);
/* Adds a list's metadata, which must be the same on all ranks, to a fingerprint. */
uint64_t tshi_parameters_fingerprint(const tsh_parameters *list, uint64_t fingerprint);

#endif
