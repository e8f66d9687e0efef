/* tshard-checkpoint: looks at checkpoints, checks them, and writes them as other files.
 *
 *   main.c    the command line
 *   source.c  what is read: a checkpoint, or a model as Hugging Face has it, as one
 *   show.c    list, show, verify
 *   write.c   merge, split */
#ifndef TOOL_H
#define TOOL_H

#include "io/checkpoint_files.h"
#include "io/checksum.h"
#include "io/step_folder.h"

#include <stdio.h>

/* Tensors and the files that hold them. */
typedef struct source {
    char folder[TSHI_PATH];
    tshi_checkpoint_files files;
    bool summed; /* the tensors have checksums: they are a checkpoint's */
} source;

/* Opens a step's folder, a folder of steps (the newest whole one), or with `models` also a safetensors file or a folder
 * with model.safetensors or its index. */
tsh_status source_open(const char *path, bool models, source *out);
void source_close(source *s);

/* Each returns the exit code, after saying on stderr why it is not 0. */
int tool_list(const char *path);
int tool_show(const char *path);
int tool_verify(const char *path);
/* One folder as Hugging Face has it, in files of at most so many bytes of elements (0: one file). */
int tool_merge(const char *path, const char *folder, int64_t file_bytes, bool optimizer);
/* A checkpoint of so many files, as that many ranks would write it. step -1: that of the source. */
int tool_split(const char *path, const char *folder, int files, int64_t step);

/* Prints the library's last message; returns 1. */
int tool_failed(void);
/* "1.5 GiB" */
const char *tool_size(double bytes, char text[32]);
/* Bytes of a tensor's elements. */
double tool_bytes(const tshi_stored_tensor *t);
bool tool_is_state(const char *name);

#endif
