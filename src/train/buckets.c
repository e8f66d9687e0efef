/* Buckets of gradients: their memory, and their sums over the ranks. */
#include "train/bucket.h"

#include <string.h>

/* --- life --------------------------------------------------------------------------------------------------------- */

/* The slot's views of its bucket's memory. */
static tsh_status make_slot_views(const tsh_data_parallel *dp, tshi_bucket_slot *slot) {
    const tsh_tensor *p = slot->parameter, *memory = dp->buckets[slot->bucket].memory;
    size_t offset = (size_t)slot->start * tsh_dtype_size(memory->dtype);
    tsh_layout whole[TSH_MAX_AXES], local[TSH_MAX_AXES];
    tshi_gradient_layout(p, whole);
    memcpy(local, whole, sizeof local);
    local[dp->schedule.axis] = TSH_LOCAL;
    if (slot->scope == TSHI_REDUCE_MODEL) local[dp->model] = TSH_LOCAL;
    if (slot->scope == TSHI_REDUCE_SHARERS) local[dp->model].sharing = TSH_SHARED_OWN;
    tsh_status status = tshi_tensor_view(memory, &p->shape, whole, offset, &slot->whole);
    if (status == TSH_OK) status = tshi_tensor_view(memory, &p->shape, local, offset, &slot->term);
    return status;
}

static tsh_status create_bucket(tsh_data_parallel *dp, tshi_bucket *bucket) {
    tsh_status status = bucket->kind->create(dp, bucket);
    for (tshi_bucket_slot *slot = bucket->first; slot && status == TSH_OK; slot = slot->next)
        status = make_slot_views(dp, slot);
    if (status != TSH_OK || bucket->kind != &tshi_sharded_bucket) return status;
    return tshi_sharded_create_slices(dp, bucket);
}

tsh_status tshi_buckets_create(tsh_data_parallel *dp) {
    int most = 1;
    tsh_status status = TSH_OK;
    tsh_memory_purpose before = tshi_device_purpose(dp->mesh->device, TSH_MEMORY_GRADIENTS);
    for (int b = 0; b < dp->bucket_count && status == TSH_OK; b++) {
        status = create_bucket(dp, &dp->buckets[b]);
        if (dp->buckets[b].count > most) most = dp->buckets[b].count;
    }
    tshi_device_purpose(dp->mesh->device, before);
    if (status != TSH_OK) return status;
    dp->flags = tshi_calloc(tshi_data_parallel_allocator(dp), (size_t)most, sizeof(double));
    return dp->flags ? TSH_OK : TSH_ERR_MEMORY;
}

static void release_works(const tsh_data_parallel *dp) {
    for (int b = 0; b < dp->bucket_count; b++) {
        tsh_work_release(dp->buckets[b].work);
        dp->buckets[b].work = NULL;
    }
}

void tshi_buckets_destroy(tsh_data_parallel *dp) {
    release_works(dp);
    for (int b = 0; b < dp->bucket_count; b++) {
        tshi_sharded_destroy(dp, &dp->buckets[b]);
        tshi_tensor_release(dp->buckets[b].flags);
        tshi_tensor_release(dp->buckets[b].memory);
        dp->buckets[b].memory = NULL;
    }
    for (int i = 0; i < dp->count; i++) {
        tshi_tensor_release(dp->slots[i].whole);
        tshi_tensor_release(dp->slots[i].term);
        tshi_tensor_release(dp->slots[i].discarded);
        tshi_tensor_release(dp->slots[i].gradient_slice);
    }
    tshi_free(tshi_data_parallel_allocator(dp), dp->flags);
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

tsh_status tshi_bucket_slot_open(tsh_data_parallel *dp, tshi_bucket_slot *slot) {
    if (slot->unsummed) return TSH_OK;
    tsh_status status = dp->buckets[slot->bucket].kind->open(dp, slot);
    slot->unsummed = status == TSH_OK;
    slot->added = TSHI_ADDED_NOTHING;
    return status;
}

tsh_status tshi_bucket_start(tsh_data_parallel *dp, tshi_bucket *bucket) {
    tsh_status status = bucket->kind->start(dp, bucket);
    for (tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next) slot->unsummed = true;
    return status;
}

static void close_bucket(tshi_bucket *bucket) {
    for (tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next) {
        slot->unsummed = false;
        tshi_tensor_release(slot->discarded);
        slot->discarded = NULL;
    }
    if (bucket->kind->close) bucket->kind->close(bucket);
}

/* True when some rank has a gradient for slot i of the bucket. */
static bool is_present(const tsh_data_parallel *dp, const tshi_bucket *bucket, int i) {
    if (bucket->absent == 0) return true;
    /* In any float dtype, a sum of zeros and ones is zero only if no bit is set. */
    size_t size = tsh_dtype_size(bucket->dtype);
    static const char zeros[sizeof(double)];
    return memcmp((const char *)dp->flags + (size_t)i * size, zeros, size) != 0;
}

static tsh_status finish_bucket(tsh_data_parallel *dp, tshi_bucket *bucket) {
    int i = 0;
    tsh_status status = bucket->work ? tshi_work_wait_queued(bucket->work) : TSH_OK;
    if (status != TSH_OK) return status;
    tsh_work_release(bucket->work);
    bucket->work = NULL;
    /* If this rank has every gradient, so has the sum, and the flags need not be read, which would wait. */
    if (bucket->absent) status = tsh_tensor_read(bucket->flags, dp->flags, bucket->count);
    if (status != TSH_OK) return status;
    for (tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next) {
        if (is_present(dp, bucket, i++))
            tshi_gradient_revise_all(slot->parameter);
        else
            slot->parameter->gradient->stale = true;
    }
    close_bucket(bucket);
    return TSH_OK;
}

tsh_status tshi_buckets_finish(tsh_data_parallel *dp, int end) {
    tsh_status status = TSH_OK;
    while (dp->finished < end && status == TSH_OK) status = finish_bucket(dp, &dp->buckets[dp->finished++]);
    return status;
}

void tshi_buckets_drop(tsh_data_parallel *dp) {
    release_works(dp);
    for (int b = 0; b < dp->bucket_count; b++) close_bucket(&dp->buckets[b]);
    for (int i = 0; i < dp->count; i++) dp->slots[i].parameter->gradient->stale = true;
}
