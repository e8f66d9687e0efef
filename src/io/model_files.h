/* The files of a save: a name map makes tensors of parameters, in one file or several. The same on every rank. */
#ifndef TSHI_MODEL_FILES_H
#define TSHI_MODEL_FILES_H

#include "io/names.h"
#include "io/safetensors.h"
#include "io/step_folder.h"

/* A file: its entries [first, first + count) and header. */
typedef struct tshi_model_file {
    char path[TSHI_PATH], partial[TSHI_PATH]; /* the final path, and the path while it is written */
    int first, count;
    char *header;
    size_t header_bytes;
    uint64_t bytes;
} tshi_model_file;

typedef struct tshi_model_files {
    tsh_allocator allocator;
    tshi_links links;
    int *entry_of; /* index of each link's entry */
    tshi_safetensors_entry *entries;
    int count;
    tshi_model_file *files;
    int files_count;
    char folder[TSHI_PATH]; /* "" where the path is a file */
} tshi_model_files;

/* TSH_ERR_ARGUMENT if the map leaves gaps in a tensor or the path is too long; TSH_ERR_DTYPE, _OVERFLOW, _MEMORY. */
tsh_status tshi_model_files_make(const tsh_parameters *list, const char *path, const tsh_save_options *options,
                                 tshi_model_files *model);
void tshi_model_files_free(tshi_model_files *model);
/* The index of several files, as text for the caller to free(); NULL without memory. */
char *tshi_model_files_index(const tshi_model_files *model);

#endif
