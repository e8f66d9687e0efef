/* Reading the boxes of a rank from those that a checkpoint's files hold. */
#include "io/checkpoint_load.h"
#include "io/reader.h"
#include "layers/layers.h"

/* Bytes that go to a GPU at once. */
#define STAGE ((size_t)16 << 20)

/* `stage` is memory for what goes to a GPU, else NULL. */
static tsh_status read_tensor(tshi_reader *r, const tshi_stored_tensor *t, tsh_tensor *tensor, char *stage,
                              uint64_t *sum) {
    tsh_device *device = tshi_device_of(tensor);
    size_t size = tsh_dtype_size(t->dtype);
    bool staged = stage != NULL;
    char *data = tshi_data_to_write(tensor);
    int64_t most = staged ? (int64_t)(STAGE / size) : tensor->numel;
    tsh_box box = tsh_tensor_box(tensor), share = box, slab, part;
    bool shares = tshi_box_share(tensor->mesh, tensor->layout, t->ndim, &share);
    tsh_status status = TSH_OK;
    for (int64_t done = 0, n; status == TSH_OK && done < tensor->numel; done += n) {
        char *to = data + (size_t)done * size, *memory = staged ? stage : to;
        slab = tshi_box_cut(t->ndim, &box, done, most);
        n = tshi_box_numel(t->ndim, &slab);
        status = tshi_reader_read(r, t, &slab, memory);
        if (status != TSH_OK) break;
        if (shares && tshi_box_intersect(t->ndim, &slab, &share, &part))
            *sum += tshi_checksum_part(t, &part, memory, &slab);
        if (staged) device->ops->copy.from_host(device, (size_t)n * size, memory, to);
    }
    return status;
}

tsh_status tshi_checkpoint_read(const char *folder, const tshi_index *index, const tsh_parameters *tensors,
                                uint64_t *sums) {
    const tsh_allocator *allocator = &tensors->world->allocator;
    bool staged = tsh_world_device(tensors->world)->ops->kind != TSH_CPU;
    tshi_reader r;
    char *stage = staged ? tshi_calloc(allocator, STAGE, 1) : NULL;
    tsh_status status = tshi_reader_open(&r, folder, index, allocator);
    if (staged && !stage) status = TSH_ERR_MEMORY;
    for (int i = 0; i < tensors->count && status == TSH_OK; i++) {
        const tshi_stored_tensor *t = tshi_index_find(index, tensors->items[i].name, i);
        if (tensors->items[i].tensor->numel > 0 && !tensors->items[i].tensor->storage) {
            status = tshi_fail(TSH_ERR_STATE, "checkpoint_load: '%.100s' has no memory", t->name);
        } else {
            status = tshi_tensor_bring(tensors->items[i].tensor);
            if (status == TSH_OK) status = read_tensor(&r, t, tensors->items[i].tensor, stage, &sums[i]);
        }
    }
    tshi_reader_close(&r);
    tshi_free(allocator, stage);
    return status;
}
