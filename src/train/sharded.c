/* Sharded buckets: each rank has slices of the gradients, summed by a reduce-scatter of packed blocks. */
#include "train/bucket.h"

static size_t size_of(const tshi_bucket *bucket) {
    return tsh_dtype_size(bucket->dtype);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static tsh_status sharded_create(tsh_data_parallel *dp, tshi_bucket *bucket) {
    size_t ranks = (size_t)tsh_group_size(dp->parent);
    bucket->dp = dp;
    bucket->counts = tshi_calloc(tshi_data_parallel_allocator(dp), 2 * ranks, sizeof *bucket->counts);
    if (!bucket->counts) return TSH_ERR_MEMORY;
    bucket->value_counts = bucket->counts + ranks;
    return tshi_tensor_scratch_unloaded(dp->mesh, bucket->dtype, bucket->gradients, &bucket->memory);
}

/* `at`: the offset in this rank's block, in elements. */
static tsh_status make_slice(const tsh_data_parallel *dp, const tshi_bucket *bucket, tshi_bucket_slot *slot,
                             int64_t at) {
    tsh_layout layout[TSH_MAX_AXES];
    tsh_shape shape;
    tshi_gradient_layout(slot->parameter, layout);
    tsh_status status = tshi_slice_shape(slot->parameter, dp->schedule.axis, &shape, layout);
    if (status != TSH_OK) return status;
    return tshi_tensor_view(bucket->gradient_slices, &shape, layout, (size_t)at * size_of(bucket),
                            &slot->gradient_slice);
}

tsh_status tshi_sharded_create_slices(tsh_data_parallel *dp, tshi_bucket *bucket) {
    const tsh_shape flags = {.ndim = 1, .local = {bucket->count}, .global = {bucket->count}};
    int me = tsh_group_rank(dp->parent);
    int64_t at = 0, start, length;
    tshi_slice_count(dp, bucket);
    tsh_status status = tshi_tensor_scratch(dp->mesh, bucket->dtype, bucket->counts[me], &bucket->gradient_slices);
    for (tshi_bucket_slot *slot = bucket->first; slot && status == TSH_OK; slot = slot->next) {
        status = make_slice(dp, bucket, slot, at);
        tshi_slice_range(dp, slot, me, &start, &length);
        at += tshi_slice_padded(bucket, length);
    }
    if (status != TSH_OK) return status;
    return tshi_tensor_view(bucket->gradient_slices, &flags, tshi_all_local, (size_t)at * size_of(bucket),
                            &bucket->flags);
}

void tshi_sharded_destroy(const tsh_data_parallel *dp, tshi_bucket *bucket) {
    tshi_tensor_release(bucket->packed);
    tshi_tensor_release(bucket->gradient_slices);
    tshi_free(tshi_data_parallel_allocator(dp), bucket->counts);
}

/* --- packing ------------------------------------------------------------------------------------------------------ */

/* Zeros `bytes` bytes in each of n blocks. */
static void put_zeros(tsh_device *device, int n, size_t bytes, char *to, size_t block) {
    device->ops->copy.zero(device, bytes, to);
    device->ops->copy.strided(device, n - 1, bytes, to, 0, to + block, block);
}

/* Writes the slot's part of the blocks of n ranks from r on: slices of its term, or, if no call has added to the
 * gradient since its sum, this rank's slice. */
static void put_pieces(const tsh_data_parallel *dp, const tshi_bucket *bucket, const tshi_bucket_slot *slot, int r,
                       int n, char *to) {
    tsh_device *device = dp->mesh->device;
    size_t size = size_of(bucket), block = (size_t)bucket->counts[r] * size;
    const char *from = NULL;
    int64_t start, length;
    tshi_slice_range(dp, slot, r, &start, &length);
    size_t bytes = (size_t)length * size, rest = (size_t)tshi_slice_padded(bucket, length) * size - bytes;
    bool stale = slot->parameter->gradient->stale, mine = r == tsh_group_rank(dp->parent);
    if (!stale && slot->unsummed && (mine || slot->added != TSHI_ADDED_THE_SAME))
        from = (char *)tshi_data(slot->term) + (size_t)start * size;
    else if (!stale && mine)
        from = tshi_data(slot->gradient_slice);
    if (from)
        device->ops->copy.strided(device, n, bytes, from, bytes, to, block);
    else
        put_zeros(device, n, bytes, to, block);
    if (rest) put_zeros(device, n, rest, to + bytes, block);
}

/* Writes the flags of n blocks. */
static void put_flags(const tsh_data_parallel *dp, const tshi_bucket *bucket, int r, int n, char *to) {
    tsh_device *device = dp->mesh->device;
    size_t size = size_of(bucket), block = (size_t)bucket->counts[r] * size;
    size_t bytes = (size_t)tshi_slice_padded(bucket, bucket->count) * size, used = (size_t)bucket->count * size;
    char *flag = to;
    device->ops->copy.fill(device, bucket->dtype, bucket->count, 1, to);
    device->ops->copy.zero(device, bytes - used, to + used);
    for (const tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next, flag += size) {
        if (slot->parameter->gradient->stale) device->ops->copy.zero(device, size, flag);
    }
    device->ops->copy.strided(device, n - 1, bytes, to, 0, to + block, block);
}

static void pack_slices(const tsh_data_parallel *dp, const tshi_bucket *bucket) {
    char *to = tshi_data(bucket->packed);
    int64_t start, length;
    for (int r = 0, end; r < tsh_group_size(dp->parent); r = end) {
        char *at = to;
        end = tshi_slice_alike(dp, bucket, r);
        for (const tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next) {
            put_pieces(dp, bucket, slot, r, end - r, at);
            tshi_slice_range(dp, slot, r, &start, &length);
            at += (size_t)tshi_slice_padded(bucket, length) * size_of(bucket);
        }
        put_flags(dp, bucket, r, end - r, at);
        to += (size_t)(end - r) * (size_t)bucket->counts[r] * size_of(bucket);
    }
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

void tshi_sharded_keep_own(const tsh_data_parallel *dp, const tshi_bucket_slot *slot) {
    tsh_device *device = dp->mesh->device;
    size_t size = tsh_dtype_size(slot->whole->dtype);
    int64_t start, length;
    tshi_slice_range(dp, slot, tsh_group_rank(dp->parent), &start, &length);
    char *whole = tshi_data(slot->whole), *end = whole + (size_t)(start + length) * size;
    device->ops->copy.zero(device, (size_t)start * size, whole);
    device->ops->copy.zero(device, tsh_tensor_local_nbytes(slot->whole) - (size_t)(end - whole), end);
}

/* Each rank keeps its slice of the existing sum. */
static tsh_status sharded_open_slot(tsh_data_parallel *dp, tshi_bucket_slot *slot) {
    const tsh_tensor *memory = dp->buckets[slot->bucket].memory;
    tsh_device *device = dp->mesh->device;
    int64_t start, length;
    tsh_status status = tshi_tensor_is_loaded(memory)
                            ? TSH_OK
                            : tshi_tensor_load(memory, tsh_tensor_local_nbytes(memory), TSH_MEMORY_GRADIENTS);
    if (status != TSH_OK || slot->parameter->gradient->stale) return status;
    size_t size = tsh_dtype_size(memory->dtype);
    tshi_slice_range(dp, slot, tsh_group_rank(dp->parent), &start, &length);
    device->ops->copy.within(device, (size_t)length * size, tshi_data(slot->gradient_slice),
                             (char *)tshi_data(slot->whole) + (size_t)start * size);
    tshi_sharded_keep_own(dp, slot);
    return TSH_OK;
}

static tsh_status sharded_start(tsh_data_parallel *dp, tshi_bucket *bucket) {
    int64_t all = tshi_slice_block_start(bucket->counts, tsh_group_size(dp->parent));
    tsh_status status = tshi_tensor_buffer(dp->mesh, bucket->dtype, all, &bucket->packed);
    if (status != TSH_OK) return status;
    pack_slices(dp, bucket);
    bucket->absent = 0;
    for (tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next) {
        bucket->absent += slot->parameter->gradient->stale;
        slot->parameter->gradient->stale = false;
    }
    tshi_tensor_unload(bucket->memory);
    return tsh_reduce_scatter_tensor_async(dp->group, bucket->packed, bucket->gradient_slices, bucket->counts,
                                           TSH_REDUCE_SUM, &bucket->work);
}

static void close_sum(tshi_bucket *bucket) {
    tshi_tensor_unload(bucket->memory);
    tshi_tensor_release(bucket->packed);
    bucket->packed = NULL;
}

const tshi_bucket_kind tshi_sharded_bucket = {
    .create = sharded_create, .open = sharded_open_slot, .start = sharded_start, .close = close_sum};
