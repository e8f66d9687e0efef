/* The safetensors format: a u64 little-endian length, a header of JSON, then the elements of all tensors, row-major and
 * little-endian, without holes. A rank reads only its boxes of a file; several ranks may write one file box by box.
 * Nothing here is collective. Messages begin with the path. */
#ifndef TSHI_SAFETENSORS_H
#define TSHI_SAFETENSORS_H

#include "layout/box.h"
#include "tshard/device.h"

/* What the format allows a header, and what comes before it. */
#define TSHI_SAFETENSORS_HEADER_MOST 100000000
#define TSHI_SAFETENSORS_PREFIX      8

/* A tensor of a file. */
typedef struct tshi_safetensors_entry {
    const char *name;
    const char *type; /* the format's word: "F32" */
    tsh_dtype dtype;  /* TSH_DTYPE_COUNT: a type of the format that tshard lacks */
    int ndim;
    int64_t shape[TSH_MAX_DIMS];
    uint64_t offset, bytes; /* its elements' place in the file, from the file's first byte */
} tshi_safetensors_entry;

typedef struct tshi_safetensors {
    tsh_allocator allocator;
    char *path;
    int fd;
    uint64_t file_bytes;
    uint64_t header_bytes; /* without the length in front */
    uint64_t fingerprint;  /* of the header */
    int count;
    tshi_safetensors_entry *entries; /* in the order of their names */
    void *json;                      /* has the names, and the metadata */
    uint64_t bytes_read;             /* so far, the header's included */
} tshi_safetensors;

/* The format's word for a dtype, NULL where it has none (complex128), and the dtype of a word: TSH_UINT8 for "BOOL",
 * TSH_DTYPE_COUNT for a type that tshard lacks. */
const char *tshi_safetensors_type_name(tsh_dtype dtype);

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Opens a file and checks its whole header: TSH_ERR_IO for anything that the format forbids, for types that it does not
 * know, for more than TSH_MAX_DIMS dims, and for a file whose size is not what the header says. */
TSHI_TOOLS tsh_status tshi_safetensors_open(const tsh_allocator *allocator, const char *path, tshi_safetensors **out);
TSHI_TOOLS void tshi_safetensors_close(tshi_safetensors *file);
/* The tensor of that name, or NULL. */
const tshi_safetensors_entry *tshi_safetensors_find(const tshi_safetensors *file, const char *name);
/* The text under `key` in __metadata__, or NULL. */
const char *tshi_safetensors_metadata(const tshi_safetensors *file, const char *key);
/* Reads a box of a tensor, row-major, in the file's element type. Reads the box's bytes, and short
 * gaps between runs, where copying them costs less than a system call. Uses at most 256 KiB of memory. */
tsh_status tshi_safetensors_read_box(tshi_safetensors *file, const tshi_safetensors_entry *entry, const tsh_box *box,
                                     void *out);

/* What tshi_safetensors_open does with the bytes of a header: fills json, entries and count of a file whose path,
 * allocator and sizes are set. */
tsh_status tshi_safetensors_parse(tshi_safetensors *file, const char *header);

/* A fingerprint of a header's text. */
uint64_t tshi_safetensors_fingerprint(const char *header, size_t length);

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* Makes the first bytes of a file of these tensors (name, dtype, ndim and shape are set; type, offset and bytes are set
 * here, aligned as the format's own writers do), and tells how long the file is. metadata: keys and values in turns,
 * then NULL; or NULL. *bytes is memory of the allocator, for the caller to free. The same on every rank for the same
 * arguments. TSH_ERR_ARGUMENT for a name that is there twice or is not UTF-8, TSH_ERR_DTYPE for complex128,
 * TSH_ERR_OVERFLOW. */
TSHI_TOOLS tsh_status tshi_safetensors_header(const tsh_allocator *allocator, tshi_safetensors_entry *entries,
                                              int count, const char *const *metadata, char **bytes, size_t *size,
                                              uint64_t *file_bytes);
/* Writes a box of a tensor at its place. Boxes that do not overlap may be written by several ranks at once. */
TSHI_TOOLS tsh_status tshi_safetensors_write_box(int fd, const char *path, const tshi_safetensors_entry *entry,
                                                 const tsh_box *box, const void *in);

#endif
