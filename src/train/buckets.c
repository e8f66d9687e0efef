/* Buckets of gradients: their memory, and their sums over the ranks. */
#include "train/data_parallel.h"

#include <stdio.h>
#include <string.h>

/* Bytes: each gradient starts at a multiple, for vector loads. */
#define ALIGNMENT            64

#define BUCKET_BYTES         ((size_t)25 << 20)
#define FIRST_BUCKET_BYTES   ((size_t)1 << 20)
#define SHARDED_BUCKET_BYTES ((size_t)64 << 10) /* at least: smaller ones take longer to agree on than to move */
#define SHARDED_BUCKETS      8

/* --- memory ------------------------------------------------------------------------------------------------------- */

static int64_t padded(const tsh_tensor *parameter) {
    int64_t unit = ALIGNMENT / (int64_t)tsh_dtype_size(tshi_gradient_dtype(parameter));
    return (parameter->numel + unit - 1) / unit * unit;
}

static bool same_unit(const tshi_bucket_slot *a, const tshi_bucket_slot *b) {
    size_t length = tshi_unit_name(a->name);
    return length == tshi_unit_name(b->name) && !strncmp(a->name, b->name, length);
}

/* The last bucket of the dtypes and level if it has room, that of the layer where parameters are sharded, or a new one.
 * The first of all is the small one. */
static int bucket_for(tsh_data_parallel *dp, const tshi_bucket_slot *slot) {
    const tsh_tensor *parameter = slot->parameter;
    bool shared_out = parameter->shape.ndim > 0 && slot->over == TSHI_SUMMANDS_COPIES;
    tsh_sharding_level level = shared_out ? dp->level : TSH_SHARD_NOTHING;
    tsh_dtype dtype = tshi_gradient_dtype(parameter);
    size_t bytes = (size_t)padded(parameter) * tsh_dtype_size(dtype);
    for (int b = dp->bucket_count - 1; b >= 0; b--) {
        const tshi_bucket *bucket = &dp->buckets[b];
        if (bucket->dtype != dtype || bucket->level != level || bucket->over != slot->over) continue;
        const tsh_tensor *first = bucket->first->parameter; /* values move together, too */
        bool alike = first->dtype == parameter->dtype &&
                     tshi_gradient_computed_in(first) == tshi_gradient_computed_in(parameter);
        if (level && !alike) continue;
        if (level >= TSH_SHARD_PARAMETERS) {
            if (same_unit(bucket->first, slot)) return b;
            continue;
        }
        size_t limit = b == 0 ? dp->first_bucket_bytes : dp->bucket_bytes;
        size_t used = (size_t)bucket->gradients * tsh_dtype_size(bucket->dtype);
        if (used <= limit && bytes <= limit - used) return b;
        break;
    }
    dp->buckets[dp->bucket_count].dtype = dtype;
    dp->buckets[dp->bucket_count].level = level;
    dp->buckets[dp->bucket_count].over = slot->over;
    return dp->bucket_count++;
}

static void add(tsh_data_parallel *dp, tshi_bucket_slot *slot) {
    slot->bucket = bucket_for(dp, slot);
    tshi_bucket *bucket = &dp->buckets[slot->bucket];
    slot->start = bucket->gradients;
    bucket->gradients += padded(slot->parameter);
    bucket->count++;
    if (bucket->last) bucket->last->next = slot;
    if (!bucket->first) bucket->first = slot;
    bucket->last = slot;
}

/* The slot's views of its bucket. */
static tsh_status make_views(const tsh_data_parallel *dp, tshi_bucket_slot *slot) {
    tsh_tensor *p = slot->parameter, *memory = dp->buckets[slot->bucket].memory;
    size_t offset = (size_t)slot->start * tsh_dtype_size(memory->dtype);
    tsh_layout whole[TSH_MAX_AXES], local[TSH_MAX_AXES];
    tshi_gradient_layout(p, whole);
    memcpy(local, whole, sizeof local);
    local[dp->sink.axis] = TSH_LOCAL;
    if (slot->over == TSHI_SUMMANDS_ALL) local[dp->model] = TSH_LOCAL;
    if (slot->over == TSHI_SUMMANDS_SHARERS) local[dp->model].sharing = TSH_SHARED_OWN;
    tsh_status status = tshi_tensor_view(memory, &p->shape, whole, offset, &slot->whole);
    if (status == TSH_OK) status = tshi_tensor_view(memory, &p->shape, local, offset, &slot->term);
    return status;
}

static void release_memory(const tsh_data_parallel *dp) {
    for (int b = 0; b < dp->bucket_count; b++) {
        tshi_tensor_release(dp->buckets[b].memory);
        dp->buckets[b].memory = NULL;
    }
}

tsh_status tshi_buckets_make_symmetric(tsh_data_parallel *dp) {
    tsh_group *group = dp->parent;
    uint64_t offsets = 0;
    char text[96];
    if (!tshi_group_symmetric(group)) return TSH_OK;
    for (int b = 0; b < dp->bucket_count; b++) {
        tshi_bucket *bucket = &dp->buckets[b];
        size_t offset = 0;
        if (bucket->level || bucket->over != TSHI_SUMMANDS_COPIES) continue;
        bucket->memory = tshi_tensor_symmetric(dp->mesh, bucket->dtype, bucket->gradients + bucket->count, &offset);
        offsets = (offsets ^ (bucket->memory ? offset : SIZE_MAX)) * UINT64_C(0x9e3779b97f4a7c15);
        offsets ^= offsets >> 29;
    }
    snprintf(text, sizeof text, "data_parallel_create: symmetric memory, offsets %016llx", (unsigned long long)offsets);
    tsh_status status = tshi_group_agree(group, text, TSH_OK);
    if (status == TSH_ERR_MISMATCH) release_memory(dp);
    return status == TSH_ERR_MISMATCH ? TSH_OK : status;
}

static tsh_status make_memory(const tsh_data_parallel *dp, tshi_bucket *bucket) {
    const tsh_layout local[TSH_MAX_AXES] = {TSH_LOCAL, TSH_LOCAL, TSH_LOCAL, TSH_LOCAL};
    tsh_shape flags = {.ndim = 1, .local = {bucket->count}, .global = {bucket->count}};
    size_t offset = (size_t)bucket->gradients * tsh_dtype_size(bucket->dtype);
    tsh_status status = TSH_OK;
    int64_t n = bucket->gradients + bucket->count;
    if (bucket->level >= TSH_SHARD_GRADIENTS)
        status = tshi_tensor_scratch_unloaded(dp->mesh, bucket->dtype, n, &bucket->memory);
    else if (!bucket->memory)
        status = tshi_tensor_scratch(dp->mesh, bucket->dtype, n, &bucket->memory);
    if (status != TSH_OK || bucket->level) return status;
    status = tsh_tensor_fill(bucket->memory, 0); /* padding is summed too */
    if (status == TSH_OK) status = tshi_tensor_view(bucket->memory, &flags, local, offset, &bucket->flags);
    return status;
}

/* What the program leaves open. A sharded bucket is there a second time while it is summed, and values are gathered by
 * the bucket: a bucket of most gradients would take what sharding saves. */
static void choose_sizes(tsh_data_parallel *dp) {
    size_t all = 0, most = BUCKET_BYTES;
    for (int i = 0; i < dp->count; i++) {
        const tsh_tensor *p = dp->slots[i].parameter;
        all += (size_t)padded(p) * tsh_dtype_size(tshi_gradient_dtype(p));
    }
    if (dp->level && all / SHARDED_BUCKETS < most) most = all / SHARDED_BUCKETS;
    if (most < SHARDED_BUCKET_BYTES) most = SHARDED_BUCKET_BYTES;
    if (!dp->bucket_bytes) dp->bucket_bytes = most;
    if (dp->first_bucket_bytes) return;
    dp->first_bucket_bytes = dp->bucket_bytes < FIRST_BUCKET_BYTES ? dp->bucket_bytes : FIRST_BUCKET_BYTES;
}

void tshi_buckets_assign(tsh_data_parallel *dp) {
    choose_sizes(dp);
    for (tshi_summands over = 0; over < TSHI_SUMMANDS; over++) {
        for (int i = 0; i < dp->count; i++) {
            if (dp->slots[i].over == over) add(dp, &dp->slots[i]);
        }
    }
}

tsh_status tshi_buckets_create(tsh_data_parallel *dp) {
    int most = 1;
    tsh_status status = TSH_OK;
    tsh_memory_purpose before = tshi_device_purpose(dp->mesh->device, TSH_MEMORY_GRADIENTS);
    for (int b = 0; b < dp->bucket_count && status == TSH_OK; b++) {
        status = make_memory(dp, &dp->buckets[b]);
        if (dp->buckets[b].count > most) most = dp->buckets[b].count;
    }
    tshi_device_purpose(dp->mesh->device, before);
    for (int i = 0; i < dp->count && status == TSH_OK; i++) status = make_views(dp, &dp->slots[i]);
    if (status == TSH_OK) status = tshi_shards_create(dp);
    if (status != TSH_OK) return status;
    dp->flags = tshi_calloc(tshi_data_parallel_allocator(dp), (size_t)most, sizeof(double));
    return dp->flags ? TSH_OK : TSH_ERR_MEMORY;
}

static void release_works(tsh_data_parallel *dp) {
    for (int b = 0; b < dp->bucket_count; b++) {
        tsh_work_release(dp->buckets[b].work);
        dp->buckets[b].work = NULL;
    }
}

void tshi_buckets_destroy(tsh_data_parallel *dp) {
    release_works(dp);
    tshi_shards_destroy(dp);
    for (int b = 0; b < dp->bucket_count; b++) tshi_tensor_release(dp->buckets[b].flags);
    release_memory(dp);
    for (int i = 0; i < dp->count; i++) {
        tshi_tensor_release(dp->slots[i].whole);
        tshi_tensor_release(dp->slots[i].term);
        tshi_tensor_release(dp->slots[i].surplus);
    }
    tshi_free(tshi_data_parallel_allocator(dp), dp->flags);
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

tsh_status tshi_slot_open(tsh_data_parallel *dp, tshi_bucket_slot *slot) {
    if (slot->unsummed) return TSH_OK;
    tsh_status status = dp->buckets[slot->bucket].level ? tshi_shards_open(dp, slot) : TSH_OK;
    if (status != TSH_OK) return status;
    slot->unsummed = true;
    slot->added = TSHI_ADDED_NOTHING;
    if (!dp->buckets[slot->bucket].level && tsh_group_rank(dp->sums[slot->over]) != 0)
        slot->parameter->gradient->stale = true;
    return TSH_OK;
}

/* Writes zeros where this rank has no gradient, and the flags. A gradient that becomes stale from here on has been
 * dropped. */
static void complete(tsh_data_parallel *dp, tshi_bucket *bucket) {
    tsh_device *device = dp->mesh->device;
    size_t size = tsh_dtype_size(bucket->dtype);
    char *flag = tshi_data(bucket->flags);
    bucket->absent = 0;
    device->ops->copy.fill(device, bucket->dtype, bucket->count, 1, flag);
    for (tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next, flag += size) {
        tshi_slot_open(dp, slot);
        if (!slot->parameter->gradient->stale) continue;
        bucket->absent++;
        device->ops->copy.zero(device, tsh_tensor_local_nbytes(slot->term), tshi_data(slot->term));
        device->ops->copy.zero(device, size, flag);
        slot->parameter->gradient->stale = false;
    }
}

tsh_status tshi_bucket_start(tsh_data_parallel *dp, tshi_bucket *bucket) {
    if (bucket->level) return tshi_shards_start(dp, bucket);
    complete(dp, bucket);
    tsh_group *group = dp->sums[bucket->over];
    if (tsh_group_size(group) == 1) return TSH_OK;
    return tsh_all_reduce_async(group, bucket->memory, TSH_SUM, &bucket->work);
}

/* Some rank has a gradient for slot i of the bucket. */
static bool is_present(const tsh_data_parallel *dp, const tshi_bucket *bucket, int i) {
    if (bucket->absent == 0) return true;
    /* A sum of zeros and ones in any float dtype is zero only where no bit is set. */
    size_t size = tsh_dtype_size(bucket->dtype);
    static const char zeros[sizeof(double)];
    return memcmp((const char *)dp->flags + (size_t)i * size, zeros, size) != 0;
}

static tsh_status finish(tsh_data_parallel *dp, tshi_bucket *bucket) {
    int i = 0;
    tsh_status status = bucket->work ? tshi_work_wait_queued(bucket->work) : TSH_OK;
    if (status != TSH_OK) return status;
    tsh_work_release(bucket->work);
    bucket->work = NULL;
    /* Where this rank has every gradient the sum has, too, and reading the flags would wait for nothing. */
    if (bucket->absent) status = tsh_tensor_read(bucket->flags, dp->flags, bucket->count);
    for (tshi_bucket_slot *slot = bucket->first; slot && status == TSH_OK; slot = slot->next) {
        slot->unsummed = false;
        if (!is_present(dp, bucket, i++)) slot->parameter->gradient->stale = true;
        tshi_tensor_release(slot->surplus);
        slot->surplus = NULL;
    }
    if (status == TSH_OK && bucket->level) tshi_shards_finish(dp, bucket);
    return status;
}

tsh_status tshi_buckets_finish(tsh_data_parallel *dp, int end) {
    tsh_status status = TSH_OK;
    while (dp->finished < end && status == TSH_OK) status = finish(dp, &dp->buckets[dp->finished++]);
    return status;
}

void tshi_buckets_drop(tsh_data_parallel *dp) {
    release_works(dp);
    for (int b = 0; b < dp->bucket_count; b++) tshi_shards_drop(&dp->buckets[b]);
    for (int i = 0; i < dp->count; i++) {
        tshi_bucket_slot *slot = &dp->slots[i];
        slot->parameter->gradient->stale = true;
        slot->unsummed = false;
        tshi_tensor_release(slot->surplus);
        slot->surplus = NULL;
    }
}
