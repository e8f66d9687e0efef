/* The slices of a sharded bucket; metadata only: each rank's part of a parameter, and its offset in a block. */
#include "train/bucket.h"

#define ALIGNMENT 64 /* bytes, of each slice in a block */

/* How the ranks of the parent split a parameter: rows; of a stack of matrices, whole ones or rows of one, so that few
 * matrices leave no rank without a slice. */
static tsh_layout slices_of(const tsh_shape *shape) {
    return shape->ndim < 3 ? TSH_SHARD(0) : TSH_SHARD_NEXT(0);
}

void tshi_slice_range(const tsh_data_parallel *dp, const tshi_bucket_slot *slot, int r, int64_t *start,
                      int64_t *length) {
    const tsh_shape *shape = &slot->whole->shape;
    const tsh_layout layout = slices_of(shape);
    tsh_box box = {0};
    for (int d = 0; d < shape->ndim; d++) box.length[d] = shape->local[d];
    if (shape->ndim > 0) tshi_layout_narrow(&layout, shape->local, tshi_group_parts(dp->parent), r, &box);
    *start = 0;
    *length = shape->ndim > 0 ? 1 : 0;
    for (int d = 0; d < shape->ndim; d++) {
        *start = *start * shape->local[d] + box.start[d];
        *length *= box.length[d];
    }
}

int64_t tshi_slice_padded(const tshi_bucket *bucket, int64_t n) {
    size_t gradient = tsh_dtype_size(bucket->dtype), value = tsh_dtype_size(bucket->first->parameter->dtype);
    int64_t multiple = ALIGNMENT / (int64_t)(gradient < value ? gradient : value);
    return (n + multiple - 1) / multiple * multiple;
}

int64_t tshi_slice_block_start(const int64_t *counts, int r) {
    int64_t start = 0;
    for (int i = 0; i < r; i++) start += counts[i];
    return start;
}

void tshi_slice_count(const tsh_data_parallel *dp, tshi_bucket *bucket) {
    for (int r = 0; r < tsh_group_size(dp->parent); r++) {
        for (const tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next) {
            int64_t start, length;
            tshi_slice_range(dp, slot, r, &start, &length);
            bucket->value_counts[r] += tshi_slice_padded(bucket, length);
        }
        bucket->counts[r] = bucket->value_counts[r] + tshi_slice_padded(bucket, bucket->count);
    }
}

int tshi_slice_alike(const tsh_data_parallel *dp, const tshi_bucket *bucket, int r) {
    int size = tsh_group_size(dp->parent), me = tsh_group_rank(dp->parent), end = r < me ? me : r == me ? r + 1 : size;
    int64_t start, length, first;
    for (const tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next) {
        tshi_slice_range(dp, slot, r, &start, &first);
        for (int i = r + 1; i < end; i++) {
            tshi_slice_range(dp, slot, i, &start, &length);
            if (length != first) end = i;
        }
    }
    return end;
}

tsh_status tshi_slice_shape(const tsh_tensor *p, int axis, tsh_shape *shape, tsh_layout layout[TSH_MAX_AXES]) {
    int sequence[TSH_MAX_AXES];
    tsh_layout slices = slices_of(&p->shape);
    *shape = p->shape;
    tshi_split_sequence(p->mesh->axes, layout, sequence);
    for (int i = 0; i < p->mesh->axes; i++) layout[sequence[i]].order = i;
    slices.order = p->mesh->axes;
    layout[axis] = slices;
    return tshi_shape_resolve(p->mesh, shape, layout);
}
