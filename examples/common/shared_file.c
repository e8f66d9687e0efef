#include "shared_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_BYTES = 65536, CHUNK_NUMBERS = 1 + CHUNK_BYTES / sizeof(int64_t) };

/* A part of the file: a count of 0 ends it, and a negative one is an errno. */
typedef struct chunk {
    int64_t count;
    char bytes[CHUNK_BYTES];
} chunk;

static void read_chunk(const char *path, FILE **file, chunk *c) {
    errno = 0;
    c->count = 0;
    if (!*file) *file = fopen(path, "rb");
    if (*file) c->count = (int64_t)fread(c->bytes, 1, sizeof c->bytes, *file);
    if (!*file || ferror(*file)) c->count = -(errno ? errno : EIO);
}

/* Every rank gets rank 0's chunk. */
static tsh_status share(const tsh_world *world, tsh_tensor *t, chunk *c, bool planned) {
    tsh_status status = tsh_tensor_write(t, c, CHUNK_NUMBERS);
    if (status == TSH_OK) status = tsh_broadcast(tsh_world_group(world), t, 0);
    return status == TSH_OK && !planned ? tsh_tensor_read(t, c, CHUNK_NUMBERS) : status;
}

/* Room for the chunk and a NUL. The capacity doubles, so that a large file is not copied for each chunk. */
static const char *append(shared_file *f, const chunk *c, size_t *room) {
    if (c->count < 0) return strerror((int)-c->count);
    if (f->length + c->count > SHARED_FILE_BYTES) return strerror(EFBIG);
    size_t wanted = (size_t)(f->length + c->count) + 1, grown = *room;
    while (grown < wanted) grown = grown ? 2 * grown : CHUNK_BYTES;
    char *bytes = grown > *room ? realloc(f->bytes, grown) : f->bytes;
    if (!bytes) return strerror(ENOMEM);
    f->bytes = bytes;
    *room = grown;
    memcpy(f->bytes + f->length, c->bytes, (size_t)c->count);
    f->length += c->count;
    f->bytes[f->length] = '\0';
    return NULL;
}

/* NULL, or what has failed. Chunks are broadcast in `t`; NULL: only this rank reads. In a dry run nothing is sent: the
 * one rank reads the file itself, and makes the same collective calls, which are counted. */
static const char *read_chunks(tsh_world *world, const char *path, tsh_tensor *t, chunk *c, shared_file *out) {
    bool planned = t && strcmp(tsh_group_backend(tsh_world_group(world)), "plan") == 0;
    bool reads = !t || planned || tsh_world_rank(world) == 0;
    FILE *file = NULL;
    const char *wrong = NULL;
    size_t room = out->bytes ? (size_t)out->length + 1 : 0;
    do {
        if (reads) read_chunk(path, &file, c);
        if (t && share(world, t, c, planned) != TSH_OK) wrong = tsh_error_message();
        if (!wrong) wrong = append(out, c, &room);
    } while (!wrong && c->count > 0);
    if (file) fclose(file);
    return wrong;
}

bool shared_file_read(tsh_world *world, const char *path, shared_file *out, char *why, size_t size) {
    const tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {CHUNK_NUMBERS}};
    tsh_tensor *t = NULL;
    chunk *c = calloc(1, sizeof *c);
    const char *wrong = c ? NULL : strerror(ENOMEM);
    if (c && world && tsh_tensor_create(tsh_world_mesh(world), &config, &t) != TSH_OK) wrong = tsh_error_message();
    if (!wrong) wrong = read_chunks(world, path, t, c, out);
    if (wrong) snprintf(why, size, "%s", wrong);
    tsh_tensor_release(t);
    free(c);
    return !wrong;
}
