/* The slices of a sharded bucket; metadata only: each rank's part of a parameter, and its offset in a block. */
#include "train/bucket.h"

#define ALIGNMENT 64 /* bytes, of each slice in a block */

void tshi_slice_range(const tsh_data_parallel *dp, const tshi_bucket_slot *slot, int r, int64_t *start,
                      int64_t *length) {
    int64_t rows = slot->whole->shape.local[0], row = rows ? slot->whole->numel / rows : 0;
    tshi_parts_split(tshi_group_parts(dp->parent), rows, r, start, length);
    *start *= row;
    *length *= row;
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
    int sequence[TSH_MAX_AXES], order = 0;
    *shape = p->shape;
    tshi_split_sequence(p->mesh->axes, layout, sequence);
    for (int i = 0; i < p->mesh->axes; i++) {
        if (tshi_layout_splits(layout[sequence[i]], 0)) layout[sequence[i]].order = order++;
    }
    layout[axis] = TSH_SHARD_ORDER(0, order);
    return tshi_shape_resolve(p->mesh, shape, layout);
}
