/* Reads a rank's boxes from the boxes in a checkpoint's files. */
#include "io/checkpoint_load.h"
#include "io/reader.h"
#include "layers/layers.h"

/* A tensor that is read, and the share of it of which this rank computes the checksum. */
typedef struct restored {
    tshi_reader *reader;
    const tshi_stored_tensor *stored;
    tsh_box share;
    bool shares;
    uint64_t *sum;
} restored;

static tsh_status restore_piece(void *user, const tsh_box *piece, void *values) {
    const restored *r = user;
    tsh_box part;
    tsh_status status = tshi_reader_read(r->reader, r->stored, piece, values);
    if (status == TSH_OK && r->shares && tshi_box_intersect(r->stored->ndim, piece, &r->share, &part))
        *r->sum += tshi_checksum_part(r->stored, &part, values, piece);
    return status;
}

static tsh_status read_tensor(tshi_reader *reader, const tshi_stored_tensor *stored, tsh_tensor *tensor,
                              uint64_t *sum) {
    restored r = {.reader = reader, .stored = stored, .share = tsh_tensor_box(tensor), .sum = sum};
    r.shares = tshi_box_share(tensor->mesh, tensor->layout, stored->ndim, &r.share);
    return tshi_tensor_write_pieces(tensor, restore_piece, &r);
}

tsh_status tshi_checkpoint_read(const char *folder, const tshi_checkpoint_index *index, const tsh_parameters *tensors,
                                uint64_t *sums) {
    tshi_reader reader;
    tsh_status status = tshi_reader_open(&reader, folder, index, &tensors->world->allocator);
    for (int i = 0; i < tensors->count && status == TSH_OK; i++) {
        const tshi_parameter *p = &tensors->items[i];
        status = read_tensor(&reader, tshi_checkpoint_index_find(index, p->name, i), p->tensor, &sums[i]);
    }
    tshi_reader_close(&reader);
    return status;
}
