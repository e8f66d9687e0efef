/* Dense buckets: every rank has the whole gradients, which an all-reduce sums. */
#include "train/bucket.h"

static tsh_status dense_create(tsh_data_parallel *dp, tshi_bucket *bucket) {
    const tsh_shape flags = {.ndim = 1, .local = {bucket->count}, .global = {bucket->count}};
    size_t offset = (size_t)bucket->gradients * tsh_dtype_size(bucket->dtype);
    tsh_status status =
        tshi_tensor_scratch(dp->mesh, bucket->dtype, bucket->gradients + bucket->count, &bucket->memory);
    if (status == TSH_OK) status = tsh_tensor_fill(bucket->memory, 0); /* padding is summed too */
    if (status == TSH_OK) status = tshi_tensor_view(bucket->memory, &flags, tshi_all_local, offset, &bucket->flags);
    return status;
}

/* The first rank keeps its gradient. */
static tsh_status dense_open_slot(tsh_data_parallel *dp, tshi_bucket_slot *slot) {
    if (tsh_group_rank(dp->scopes[slot->scope]) != 0) slot->parameter->gradient->stale = true;
    return TSH_OK;
}

/* Zeros gradients that this rank does not have, and sets the flags. A gradient that later becomes stale has been
 * dropped. */
static void write_flags(tsh_data_parallel *dp, tshi_bucket *bucket) {
    tsh_device *device = dp->mesh->device;
    size_t size = tsh_dtype_size(bucket->dtype);
    char *flag = tshi_data(bucket->flags);
    bucket->absent = 0;
    device->ops->copy.fill(device, bucket->dtype, bucket->count, 1, flag);
    for (tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next, flag += size) {
        if (!slot->unsummed) dense_open_slot(dp, slot);
        if (!slot->parameter->gradient->stale) continue;
        bucket->absent++;
        device->ops->copy.zero(device, tsh_tensor_local_nbytes(slot->term), tshi_data(slot->term));
        device->ops->copy.zero(device, size, flag);
        slot->parameter->gradient->stale = false;
    }
}

static tsh_status dense_start(tsh_data_parallel *dp, tshi_bucket *bucket) {
    write_flags(dp, bucket);
    tsh_group *group = dp->scopes[bucket->scope];
    if (tsh_group_size(group) == 1) return TSH_OK;
    return tsh_all_reduce_async(group, bucket->memory, TSH_REDUCE_SUM, &bucket->work);
}

const tshi_bucket_kind tshi_dense_bucket = {.create = dense_create, .open = dense_open_slot, .start = dense_start};
