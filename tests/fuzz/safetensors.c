/* Any bytes, read as the header of a safetensors file: no byte beyond the end is read, nothing leaks, and of an
 * accepted header the tensors follow each other from the header's end to the file's, can be found, and are equal after
 * they are written and read again. The first three bytes are the number of bytes behind the header. */
#include "io/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static tshi_safetensors file_of(size_t header_bytes, uint64_t data_bytes) {
    tshi_safetensors file = {.allocator = tshi_allocator_resolve(NULL), .path = (char *)"fuzzed", .fd = -1};
    file.header_bytes = header_bytes;
    file.file_bytes = TSHI_SAFETENSORS_PREFIX + header_bytes + data_bytes;
    return file;
}

static void drop(tshi_safetensors *file) {
    json_decref(file->json);
    tshi_free(&file->allocator, file->entries);
}

static void check_entries(const tshi_safetensors *file) {
    uint64_t bytes = 0;
    for (int i = 0; i < file->count; i++) {
        const tshi_safetensors_entry *e = &file->entries[i];
        require(i == 0 || strcmp(file->entries[i - 1].name, e->name) < 0);
        require(tshi_safetensors_find(file, e->name) == e);
        require(e->offset >= TSHI_SAFETENSORS_PREFIX + file->header_bytes && e->bytes <= file->file_bytes);
        require(e->offset <= file->file_bytes - e->bytes && e->ndim >= 0 && e->ndim <= TSH_MAX_DIMS);
        bytes += e->bytes;
    }
    require(bytes == file->file_bytes - file->header_bytes - TSHI_SAFETENSORS_PREFIX);
}

/* Writes the tensors' header, where all have dtypes, and reads it. */
static void write_again(const tshi_safetensors *file) {
    size_t size = 0;
    uint64_t file_bytes = 0;
    char *header = NULL;
    tshi_safetensors_entry *entries = calloc((size_t)file->count + 1, sizeof *entries);
    require(entries != NULL);
    for (int i = 0; i < file->count; i++) {
        entries[i] = file->entries[i];
        if (entries[i].dtype == TSH_DTYPE_COUNT) {
            free(entries);
            return;
        }
    }
    require(tshi_safetensors_header(&file->allocator, entries, file->count, NULL, &header, &size, &file_bytes) ==
            TSH_OK);
    size -= TSHI_SAFETENSORS_PREFIX;
    tshi_safetensors again = file_of(size, file_bytes - size - TSHI_SAFETENSORS_PREFIX);
    require(tshi_safetensors_parse(&again, header + TSHI_SAFETENSORS_PREFIX) == TSH_OK && again.count == file->count);
    for (int i = 0; i < again.count; i++) {
        const tshi_safetensors_entry *a = &file->entries[i], *b = &again.entries[i];
        require(!strcmp(a->name, b->name) && a->dtype == b->dtype && a->bytes == b->bytes && a->ndim == b->ndim);
        require(!memcmp(a->shape, b->shape, sizeof a->shape) && b->offset == entries[i].offset);
    }
    drop(&again);
    tshi_free(&file->allocator, header);
    free(entries);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3) return 0;
    uint64_t data_bytes = data[0] | (uint64_t)data[1] << 8 | (uint64_t)data[2] << 16;
    size_t length = size - 3;
    /* Memory of exactly this size, so that a read of one byte more is noticed. */
    char *header = malloc(length ? length : 1);
    require(header != NULL);
    memcpy(header, data + 3, length);
    tshi_safetensors file = file_of(length, data_bytes);
    if (tshi_safetensors_parse(&file, header) == TSH_OK) {
        check_entries(&file);
        write_again(&file);
        tshi_safetensors_metadata(&file, "format");
    }
    drop(&file);
    free(header);
    return 0;
}
