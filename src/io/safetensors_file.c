/* Safetensors files: opening one, and reading and writing boxes of its tensors. */
#include "io/safetensors.h"

#include "io/elements.h"
#include "io/file.h"

#include <jansson.h>
#include <string.h>

/* --- files -------------------------------------------------------------------------------------------------------- */

static tsh_status read_length(tshi_safetensors *file) {
    unsigned char bytes[TSHI_SAFETENSORS_PREFIX];
    uint64_t length = 0;
    if (file->file_bytes < sizeof bytes) {
        return tshi_fail(TSH_ERR_IO, "%.220s: is not a safetensors file: it has only %llu bytes", file->path,
                         (unsigned long long)file->file_bytes);
    }
    tsh_status status = tshi_file_read(file->fd, file->path, bytes, sizeof bytes, 0);
    if (status != TSH_OK) return status;
    for (int i = 0; i < TSHI_SAFETENSORS_PREFIX; i++) length |= (uint64_t)bytes[i] << (8 * i);
    if (length > TSHI_SAFETENSORS_MAX_HEADER) {
        return tshi_fail(TSH_ERR_IO,
                         "%.220s: is not a safetensors file: its header would have %llu bytes, at most %d are allowed",
                         file->path, (unsigned long long)length, TSHI_SAFETENSORS_MAX_HEADER);
    }
    if (length > file->file_bytes - sizeof bytes) {
        return tshi_fail(TSH_ERR_IO, "%.220s: is truncated: a header of %llu bytes in a file of %llu", file->path,
                         (unsigned long long)length, (unsigned long long)file->file_bytes);
    }
    file->header_bytes = length;
    return TSH_OK;
}

static tsh_status read_header(tshi_safetensors *file) {
    tsh_status status = tshi_file_open(file->path, &file->fd, &file->file_bytes);
    if (status == TSH_OK) status = read_length(file);
    if (status != TSH_OK) return status;
    char *header = tshi_calloc(&file->allocator, (size_t)file->header_bytes, 1);
    if (!header) return TSH_ERR_MEMORY;
    status = tshi_file_read(file->fd, file->path, header, (size_t)file->header_bytes, TSHI_SAFETENSORS_PREFIX);
    if (status == TSH_OK) status = tshi_safetensors_parse(file, header);
    file->bytes_read = TSHI_SAFETENSORS_PREFIX + file->header_bytes;
    tshi_free(&file->allocator, header);
    return status;
}

tsh_status tshi_safetensors_open(const tsh_allocator *allocator, const char *path, tshi_safetensors **out) {
    *out = NULL;
    tshi_safetensors *file = tshi_calloc(allocator, 1, sizeof *file);
    if (!file) return TSH_ERR_MEMORY;
    file->allocator = *allocator;
    file->fd = -1;
    file->path = tshi_copy_text(allocator, path);
    tsh_status status = file->path ? read_header(file) : TSH_ERR_MEMORY;
    if (status == TSH_OK)
        *out = file;
    else
        tshi_safetensors_close(file);
    return status;
}

void tshi_safetensors_close(tshi_safetensors *file) {
    if (!file) return;
    tsh_allocator allocator = file->allocator;
    tshi_file_close(&file->fd);
    json_decref(file->json);
    tshi_free(&allocator, file->entries);
    tshi_free(&allocator, file->path);
    tshi_free(&allocator, file);
}

/* --- boxes -------------------------------------------------------------------------------------------------------- */

tsh_status tshi_safetensors_check_box(const char *path, const tshi_safetensors_entry *entry, const tsh_box *box) {
    if (entry->dtype == TSH_DTYPE_COUNT) {
        return tshi_fail(TSH_ERR_DTYPE, "%.220s: '%.100s' is %s, which is not a dtype of tshard", path, entry->name,
                         entry->type);
    }
    for (int d = 0; d < entry->ndim; d++) {
        if (box->start[d] >= 0 && box->length[d] >= 0 && box->start[d] <= entry->shape[d] - box->length[d]) continue;
        return tshi_fail(TSH_ERR_RANGE, "%.220s: '%.100s': a box of %lld from %lld on in dim %d of %lld", path,
                         entry->name, (long long)box->length[d], (long long)box->start[d], d,
                         (long long)entry->shape[d]);
    }
    return TSH_OK;
}

static tshi_elements elements_of(int fd, const char *path, const tshi_safetensors_entry *e) {
    return (tshi_elements){.fd = fd,
                           .path = path,
                           .offset = e->offset,
                           .size = tsh_dtype_size(e->dtype),
                           .ndim = e->ndim,
                           .shape = e->shape};
}

tsh_status tshi_safetensors_read_box(tshi_safetensors *file, const tshi_safetensors_entry *entry, const tsh_box *box,
                                     void *out) {
    tsh_status status = tshi_safetensors_check_box(file->path, entry, box);
    if (status != TSH_OK) return status;
    const tshi_elements elements = elements_of(file->fd, file->path, entry);
    return tshi_elements_read(&elements, &file->allocator, box, out, &file->bytes_read);
}

tsh_status tshi_safetensors_write_box(int fd, const char *path, const tshi_safetensors_entry *entry, const tsh_box *box,
                                      const void *in) {
    tsh_status status = tshi_safetensors_check_box(path, entry, box);
    if (status != TSH_OK) return status;
    const tshi_elements elements = elements_of(fd, path, entry);
    return tshi_elements_write(&elements, box, in);
}
