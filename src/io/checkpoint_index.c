/* The index of a checkpoint, in memory. */
#include "io/checkpoint_index.h"
#include "base/base.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void tshi_checkpoint_index_clear(tshi_checkpoint_index *index) {
    for (int i = 0; i < index->files; i++) free(index->file[i].name);
    for (int i = 0; i < index->tensors; i++) {
        free(index->tensor[i].name);
        free(index->tensor[i].boxes);
    }
    free(index->file);
    free(index->tensor);
    json_decref(index->state);
    *index = (tshi_checkpoint_index){0};
}

tsh_status tshi_checkpoint_index_add_file(tshi_checkpoint_index *index, const char *name, uint64_t bytes) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tsh_status status =
        tshi_grow(&allocator, (void **)&index->file, &index->file_capacity, index->files + 1, sizeof *index->file);
    if (status != TSH_OK) return status;
    char *copy = tshi_copy_text(&allocator, name);
    if (!copy) return TSH_ERR_MEMORY;
    index->file[index->files++] = (tshi_stored_file){copy, bytes};
    return TSH_OK;
}

tshi_stored_tensor *tshi_checkpoint_index_add_tensor(tshi_checkpoint_index *index, const char *name, tsh_dtype dtype,
                                                     int ndim, const int64_t *shape) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    if (tshi_grow(&allocator, (void **)&index->tensor, &index->tensor_capacity, index->tensors + 1,
                  sizeof *index->tensor) != TSH_OK) {
        return NULL;
    }
    tshi_stored_tensor *tensor = &index->tensor[index->tensors];
    *tensor = (tshi_stored_tensor){.name = tshi_copy_text(&allocator, name), .dtype = dtype, .ndim = ndim};
    if (!tensor->name) return NULL;
    for (int d = 0; d < ndim; d++) tensor->shape[d] = shape[d];
    index->tensors++;
    return tensor;
}

tsh_status tshi_stored_tensor_add(tshi_stored_tensor *tensor, int file, const tsh_box *box) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tsh_status status =
        tshi_grow(&allocator, (void **)&tensor->boxes, &tensor->capacity, tensor->count + 1, sizeof *tensor->boxes);
    if (status == TSH_OK) tensor->boxes[tensor->count++] = (tshi_stored_box){file, *box};
    return status;
}

tshi_stored_tensor *tshi_checkpoint_index_find(const tshi_checkpoint_index *index, const char *name, int hint) {
    if (hint >= 0 && hint < index->tensors && !strcmp(index->tensor[hint].name, name)) return &index->tensor[hint];
    for (int i = 0; i < index->tensors; i++) {
        if (!strcmp(index->tensor[i].name, name)) return &index->tensor[i];
    }
    return NULL;
}

static bool alike(const tshi_stored_tensor *a, const tshi_stored_tensor *b) {
    return a->dtype == b->dtype && a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof a->shape);
}

tsh_status tshi_checkpoint_index_merge(tshi_checkpoint_index *index, const tshi_checkpoint_index *part) {
    int first = index->files;
    tsh_status status = TSH_OK;
    if (part->step != index->step) {
        return tshi_fail(TSH_ERR_IO, "a rank has saved step %" PRId64 " instead of %" PRId64, part->step, index->step);
    }
    for (int i = 0; i < part->files && status == TSH_OK; i++) {
        status = tshi_checkpoint_index_add_file(index, part->file[i].name, part->file[i].bytes);
    }
    for (int i = 0; i < part->tensors && status == TSH_OK; i++) {
        const tshi_stored_tensor *from = &part->tensor[i];
        tshi_stored_tensor *to = tshi_checkpoint_index_find(index, from->name, i);
        if (!to) to = tshi_checkpoint_index_add_tensor(index, from->name, from->dtype, from->ndim, from->shape);
        if (!to) return TSH_ERR_MEMORY;
        if (!alike(from, to)) return tshi_fail(TSH_ERR_IO, "'%.200s' differs from rank to rank", from->name);
        to->sum += from->sum;
        for (int b = 0; b < from->count && status == TSH_OK; b++) {
            status = tshi_stored_tensor_add(to, first + from->boxes[b].file, &from->boxes[b].box);
        }
    }
    if (status == TSH_OK && part->state) index->state = json_incref(part->state);
    return status;
}

static bool box_is_inside(const tshi_stored_tensor *t, const tsh_box *box) {
    for (int d = 0; d < t->ndim; d++) {
        if (box->start[d] < 0 || box->length[d] < 1 || box->start[d] > t->shape[d] - box->length[d]) return false;
    }
    return true;
}

tsh_status tshi_checkpoint_index_check(const tshi_checkpoint_index *index, const char *path) {
    for (int i = 0; i < index->tensors; i++) {
        const tshi_stored_tensor *t = &index->tensor[i];
        int64_t whole, stored = 0;
        tsh_status status = tshi_dims_product(t->ndim, t->shape, &whole);
        if (status == TSH_OK && whole > INT64_MAX / 16) status = TSH_ERR_OVERFLOW;
        for (int b = 0; b < t->count && status == TSH_OK; b++) {
            bool good = t->boxes[b].file >= 0 && t->boxes[b].file < index->files && box_is_inside(t, &t->boxes[b].box);
            if (good) stored += tshi_box_numel(t->ndim, &t->boxes[b].box);
            if (!good || stored > whole) stored = -1;
            if (stored < 0) break;
        }
        if (status == TSH_OK && stored == whole) continue;
        return tshi_fail(TSH_ERR_IO, "%.220s: the boxes of '%.120s' do not cover each element once", path, t->name);
    }
    return TSH_OK;
}
