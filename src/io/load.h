/* Loading, and what it has in common with saving. */
#ifndef TSHI_LOAD_H
#define TSHI_LOAD_H

#include "io/names.h"
#include "io/safetensors.h"

/* tsh_load; *bytes_read (may be NULL) is what this rank has read. */
tsh_status tshi_load(tsh_parameters *list, const char *path, const tsh_load_options *options, uint64_t *bytes_read);

/* TSH_OK for a parameter that is a part of a whole and has memory; `what` begins the message. */
tsh_status tshi_check_parameter(const char *what, const char *name, const tsh_tensor *tensor);
/* The elements that buffers have room for: those of the largest piece of this rank's parts. */
size_t tshi_io_elements(const tsh_parameters *list);
/* to[c][r] = from[r][c] for elements of `size` bytes: 1, 2, 4 or 8. A row of `to` begins to_stride elements after the
 * one before it. */
void tshi_transpose(size_t size, int64_t rows, int64_t cols, const void *from, void *to, int64_t to_stride);
/* Adds what makes a list of parameters the same on all ranks to a fingerprint. */
uint64_t tshi_parameters_fingerprint(const tsh_parameters *list, uint64_t fingerprint);

#endif
