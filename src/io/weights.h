/* The tensors of a model in one safetensors or GGUF file, or in several that an index lists. Not collective. */
#ifndef TSHI_WEIGHTS_H
#define TSHI_WEIGHTS_H

#include "io/gguf/gguf.h"

/* Hugging Face's names for a model's file, and for the index of several. */
#define TSHI_WEIGHTS_FILE  "model.safetensors"
#define TSHI_WEIGHTS_INDEX "model.safetensors.index.json"

typedef struct tshi_weight {
    const tshi_safetensors_entry *entry;
    tshi_safetensors *file;         /* NULL: it is in the GGUF file */
    const tshi_gguf_tensor *tensor; /* of the GGUF file */
} tshi_weight;

typedef struct tshi_weights {
    tsh_allocator allocator;
    tshi_safetensors **files;
    int files_count, files_capacity;
    tshi_gguf *gguf;    /* NULL: safetensors */
    tshi_weight *items; /* sorted by name */
    int count;
} tshi_weights;

/* Opens a file, or a folder: its model.safetensors, else the files that its index lists. TSH_ERR_IO as
 * tshi_safetensors_open, and for an index with a file outside the folder or a tensor that its file lacks. A GGUF file
 * is one that begins as such; errors as tshi_gguf_open. */
TSHI_TOOLS tsh_status tshi_weights_open(const tsh_allocator *allocator, const char *path, tshi_weights **out);
TSHI_TOOLS void tshi_weights_close(tshi_weights *weights);
/* The tensor with that name, or NULL. */
const tshi_weight *tshi_weights_find(const tshi_weights *weights, const char *name);
/* Reads a box of a tensor, row-major, as elements of the entry's dtype. */
TSHI_TOOLS tsh_status tshi_weights_read_box(tshi_weights *weights, const tshi_weight *weight, const tsh_box *box,
                                            void *out);
/* The bytes read so far, and a fingerprint of the files' headers. */
uint64_t tshi_weights_bytes_read(const tshi_weights *weights);
uint64_t tshi_weights_fingerprint(const tshi_weights *weights);

/* Reads an index: *json (a json_t, for the caller to release) has its "weight_map", an object of plain file names. */
tsh_status tshi_weights_parse(const char *path, const char *text, size_t length, void **json);

#endif
