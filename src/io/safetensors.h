/* The safetensors format: a u64 little-endian length, a header of JSON, then the elements of all tensors, row-major and
 * little-endian, without holes. A rank reads only its boxes of a file; several ranks may write one file box by box.
 * Nothing here is collective. Messages begin with the path. */
#ifndef TSHI_SAFETENSORS_H
#define TSHI_SAFETENSORS_H

#include "layout/box.h"
#include "tshard/device.h"

/* The format's limit for a header, and the bytes before it. */
#define TSHI_SAFETENSORS_MAX_HEADER 100000000
#define TSHI_SAFETENSORS_PREFIX     8

/* A tensor of a file. */
typedef struct tshi_safetensors_entry {
    const char *name;
    const char *type; /* the format's word: "F32" */
    tsh_dtype dtype;  /* TSH_DTYPE_COUNT: not a dtype of tshard */
    int ndim;
    int64_t shape[TSH_MAX_DIMS];
    uint64_t offset, bytes; /* of the elements in the file */
} tshi_safetensors_entry;

typedef struct tshi_safetensors {
    tsh_allocator allocator;
    char *path;
    int fd;
    uint64_t file_bytes;
    uint64_t header_bytes; /* without the length before it */
    uint64_t fingerprint;  /* of the header */
    int count;
    tshi_safetensors_entry *entries; /* sorted by name */
    void *json;                      /* owns the names and the metadata */
    uint64_t bytes_read;             /* so far, including the header */
} tshi_safetensors;

/* The format's name for a dtype, NULL for complex128, which it lacks. */
const char *tshi_safetensors_type_name(tsh_dtype dtype);

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Opens a file and checks its whole header: TSH_ERR_IO for anything that the format forbids, unknown types, more than
 * TSH_MAX_DIMS dims, and a file size that contradicts the header. */
TSHI_TOOLS tsh_status tshi_safetensors_open(const tsh_allocator *allocator, const char *path, tshi_safetensors **out);
TSHI_TOOLS void tshi_safetensors_close(tshi_safetensors *file);
/* The tensor with that name, or NULL. */
const tshi_safetensors_entry *tshi_safetensors_find(const tshi_safetensors *file, const char *name);
/* The text under `key` in __metadata__, or NULL. */
const char *tshi_safetensors_metadata(const tshi_safetensors *file, const char *key);
/* TSH_ERR_RANGE for a box that is not in the tensor, _DTYPE for elements that are not of a dtype. */
tsh_status tshi_safetensors_check_box(const char *path, const tshi_safetensors_entry *entry, const tsh_box *box);
/* Reads a box of a tensor, row-major, in the file's element type. Short gaps between runs are read too, where that
 * costs less than a system call. Uses at most 256 KiB of memory. */
TSHI_TOOLS tsh_status tshi_safetensors_read_box(tshi_safetensors *file, const tshi_safetensors_entry *entry,
                                                const tsh_box *box, void *out);

/* Parses a header: sets json, entries and count of a file whose path, allocator and sizes are set. */
tsh_status tshi_safetensors_parse(tshi_safetensors *file, const char *header);

/* A fingerprint of a header's text. */
uint64_t tshi_safetensors_fingerprint(const char *header, size_t length);

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* Makes the header of a file of these tensors, whose name, dtype, ndim and shape are set: sets their type, offset and
 * bytes, aligned as by the format's own writers, and the file's size. metadata: key, value, ..., NULL; or NULL. *bytes
 * is memory of the allocator, for the caller to free. The same on every rank for the same arguments. TSH_ERR_ARGUMENT
 * for a name that occurs twice or is not UTF-8, TSH_ERR_DTYPE for complex128, TSH_ERR_OVERFLOW. */
TSHI_TOOLS tsh_status tshi_safetensors_header(const tsh_allocator *allocator, tshi_safetensors_entry *entries,
                                              int count, const char *const *metadata, char **bytes, size_t *size,
                                              uint64_t *file_bytes);
/* Writes a box of a tensor. Ranks may write boxes that do not overlap at the same time. */
TSHI_TOOLS tsh_status tshi_safetensors_write_box(int fd, const char *path, const tshi_safetensors_entry *entry,
                                                 const tsh_box *box, const void *in);

#endif
