/* The tensors of a model: those of one safetensors file, or of several that an index names. Not collective. */
#ifndef TSHI_WEIGHTS_H
#define TSHI_WEIGHTS_H

#include "io/safetensors.h"

/* What Hugging Face calls the file of a model, and the index of several. */
#define TSHI_WEIGHTS_FILE  "model.safetensors"
#define TSHI_WEIGHTS_INDEX "model.safetensors.index.json"

typedef struct tshi_weight {
    const tshi_safetensors_entry *entry;
    tshi_safetensors *file;
} tshi_weight;

typedef struct tshi_weights {
    tsh_allocator allocator;
    tshi_safetensors **files;
    int files_count, files_capacity;
    tshi_weight *items; /* in the order of their names */
    int count;
} tshi_weights;

/* Opens a file, or a folder: its model.safetensors, or else its index and all files that this names. TSH_ERR_IO as
 * tshi_safetensors_open, and for an index that names a file outside the folder, or a tensor that its file lacks. */
tsh_status tshi_weights_open(const tsh_allocator *allocator, const char *path, tshi_weights **out);
void tshi_weights_close(tshi_weights *weights);
/* The tensor of that name, or NULL. */
const tshi_weight *tshi_weights_find(const tshi_weights *weights, const char *name);

/* Reads an index: *json (a json_t, for the caller to release) has its "weight_map", an object of plain file names. */
tsh_status tshi_weights_parse(const char *path, const char *text, size_t length, void **json);

#endif
