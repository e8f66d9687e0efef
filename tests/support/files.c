#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/files.h"
#include "device/cpu/isa/kernels.h"
#include "io/file.h"

#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- folders ------------------------------------------------------------------------------------------------------ */

const char *tshi_test_folder(int mebibytes) {
    static char path[64];
    char size[32];
    snprintf(path, sizeof path, "/tmp/tshard-test-XXXXXX");
    if (!mkdtemp(path)) abort();
    snprintf(size, sizeof size, "size=%dm", mebibytes);
    if (mebibytes == 0 || mount("tmpfs", path, "tmpfs", 0, size) == 0) return path;
    rmdir(path);
    return NULL;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info, (void)kind, (void)where;
    remove(path);
    return 0;
}

void tshi_test_remove(const char *folder) {
    if (!folder) return;
    umount2(folder, MNT_DETACH);
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* --- files in one of them ----------------------------------------------------------------------------------------- */

static const char *folder;

static void require(bool fine, const char *what) {
    if (fine) return;
    fprintf(stderr, "%s: %s\n", what, tsh_error_message());
    abort();
}

void tshi_test_enter(void) {
    folder = tshi_test_folder(0);
}

void tshi_test_leave(void) {
    tshi_test_remove(folder);
}

const char *tshi_test_path(const char *name) {
    static char paths[4][256];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

double tshi_test_content_value(tsh_dtype dtype, int seed, int64_t i) {
    double value = tshi_test_integer(seed, i);
    return dtype == TSH_UINT8 ? fabs(value) : value;
}

static int64_t numel_of(const tshi_test_content *c) {
    int64_t n = 1;
    for (int d = 0; d < c->ndim; d++) n *= c->shape[d];
    return n;
}

void tshi_test_content_values(const tshi_test_content *content, double *out) {
    for (int64_t i = 0; i < numel_of(content); i++) out[i] = tshi_test_content_value(content->dtype, content->seed, i);
}

void tshi_test_write(const char *name, const tshi_test_content *contents, int count) {
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_safetensors_entry *entries = calloc((size_t)count + 1, sizeof *entries);
    const char *path = tshi_test_path(name);
    uint64_t file_bytes;
    size_t size;
    char *header;
    int fd;
    require(entries, "no memory");
    for (int i = 0; i < count; i++) {
        entries[i] =
            (tshi_safetensors_entry){.name = contents[i].name, .dtype = contents[i].dtype, .ndim = contents[i].ndim};
        memcpy(entries[i].shape, contents[i].shape, sizeof contents[i].shape);
    }
    require(tshi_safetensors_header(&allocator, entries, count, NULL, &header, &size, &file_bytes) == TSH_OK, name);
    require(tshi_file_create(path, file_bytes, &fd) == TSH_OK, name);
    require(tshi_file_write(fd, path, header, size, 0) == TSH_OK, name);
    for (int i = 0; i < count; i++) {
        int64_t n = numel_of(&contents[i]);
        double *values = malloc((size_t)n * sizeof *values + 1);
        char *elements = malloc((size_t)n * 8 + 1);
        require(values && elements, "no memory");
        tshi_test_content_values(&contents[i], values);
        tshi_cpu_convert_base(NULL, n, TSH_FLOAT64, values, contents[i].dtype, elements);
        require(tshi_file_write(fd, path, elements, (size_t)entries[i].bytes, entries[i].offset) == TSH_OK, name);
        free(values);
        free(elements);
    }
    tshi_file_close(&fd);
    tshi_free(&allocator, header);
    free(entries);
}

void tshi_test_write_text(const char *name, const char *text) {
    FILE *f = fopen(tshi_test_path(name), "w");
    require(f && fputs(text, f) >= 0 && fclose(f) == 0, name);
}
