/* The values of sharded parameters: a bucket's values are gathered before their use, and prefetched one bucket ahead in
 * the order of the previous step. TSH_ZERO_PARAMETERS frees them when another bucket is used, in forward and in
 * backward; lower levels keep them until a backward with sync has ended, or until the slices change. */
#include "train/bucket.h"

#include <stdio.h>
#include <string.h>

enum { ORDERS = 4 }; /* remembered uses of each bucket in a forward or a backward */

static bool keeps_values(const tsh_data_parallel *dp) {
    return dp->level < TSH_ZERO_PARAMETERS;
}

/* Values are gathered in the dtype that functions compute in, usually narrower than that of the slices. In a
 * deterministic world they are cast after gathering, so that gradients of casts are summed as on one rank: first within
 * each backward. */
static tsh_dtype dtype_of(const tsh_tensor *parameter) {
    return parameter->mesh->world->deterministic ? parameter->dtype : tshi_gradient_computed_in(parameter);
}

/* --- versions ----------------------------------------------------------------------------------------------------- */

/* All values of a parameter change together with this rank's slice. */
static uint16_t version_of(const tshi_value_source *source, const tsh_tensor *tensor) {
    const tshi_bucket_slot *slot = ((const tshi_bucket *)source)->first;
    size_t size = tsh_dtype_size(tensor->dtype);
    while (slot->next && (size_t)slot->next->start * size <= tensor->offset) slot = slot->next;
    return tshi_tensor_version(slot->parameter);
}

/* The sum of the slices' versions, which changes when any of them does. */
static uint16_t slice_versions(const tshi_bucket *bucket) {
    uint16_t sum = 0;
    for (const tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next)
        sum += tshi_tensor_version(slot->parameter);
    return sum;
}

static bool is_stale(const tshi_value_source *source) {
    const tshi_bucket *bucket = (const tshi_bucket *)source;
    return bucket->version != slice_versions(bucket);
}

/* --- gathering ---------------------------------------------------------------------------------------------------- */

static void free_values(const tshi_bucket *bucket) {
    if (bucket->values) tshi_tensor_unload(bucket->values);
}

static void free_gathered(tshi_bucket *bucket) {
    tsh_work_release(bucket->gather);
    bucket->gather = NULL;
    if (bucket->gathered) tshi_tensor_unload(bucket->gathered);
}

void tshi_values_drop(tsh_data_parallel *dp) {
    for (int b = 0; b < dp->bucket_count; b++) {
        free_gathered(&dp->buckets[b]);
        free_values(&dp->buckets[b]);
    }
}

static tsh_status start_gather(const tsh_data_parallel *dp, tshi_bucket *bucket) {
    tsh_status status =
        tshi_tensor_load(bucket->gathered, tsh_tensor_local_nbytes(bucket->gathered), TSH_MEMORY_COMMUNICATION);
    if (status != TSH_OK) return status;
    bucket->version = slice_versions(bucket);
    const tsh_tensor *from = bucket->value_slices, *to = bucket->converted;
    tsh_device *device = dp->mesh->device;
    if (to) device->ops->copy.convert(device, to->numel, from->dtype, tshi_data(from), to->dtype, tshi_data(to));
    return tsh_all_gather_into_tensor_async(dp->gathers, to ? to : from, bucket->gathered, bucket->value_counts,
                                            &bucket->gather);
}

/* Copies the slices of rank r, and of the ranks after it with equal blocks, to their places; returns the next rank. */
static int unpack_blocks(const tsh_data_parallel *dp, const tshi_bucket *bucket, int r) {
    tsh_device *device = dp->mesh->device;
    size_t size = tsh_dtype_size(bucket->gathered->dtype), block = (size_t)bucket->value_counts[r] * size;
    int end = tshi_slice_alike(dp, bucket, r);
    const char *at =
        (char *)tshi_data(bucket->gathered) + (size_t)tshi_slice_block_start(bucket->value_counts, r) * size;
    for (const tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next) {
        int64_t start, length;
        tshi_slice_range(dp, slot, r, &start, &length);
        size_t bytes = (size_t)length * size;
        device->ops->copy.strided(device, end - r, bytes, at, block,
                                  (char *)tshi_data(slot->target.whole) + (size_t)start * size, bytes);
        at += (size_t)tshi_slice_padded(bucket, length) * size;
    }
    return end;
}

static tsh_status unpack_values(const tsh_data_parallel *dp, const tshi_bucket *bucket) {
    tsh_status status =
        tshi_tensor_load(bucket->values, tsh_tensor_local_nbytes(bucket->values), TSH_MEMORY_PARAMETERS);
    for (int r = 0; r < tsh_group_size(dp->parent) && status == TSH_OK;) r = unpack_blocks(dp, bucket, r);
    return status;
}

static tsh_status gather_values(const tsh_data_parallel *dp, tshi_bucket *bucket) {
    tsh_status status = bucket->gather ? TSH_OK : start_gather(dp, bucket);
    if (status == TSH_OK && bucket->gather) status = tshi_work_wait_queued(bucket->gather);
    if (status == TSH_OK) status = unpack_values(dp, bucket);
    free_gathered(bucket);
    return status;
}

/* --- order -------------------------------------------------------------------------------------------------------- */

/* Starts to gather the bucket that came next in the last step. */
static tsh_status gather_next(const tsh_data_parallel *dp) {
    if (dp->position >= dp->order_length[dp->backward]) return TSH_OK;
    tshi_bucket *next = &dp->buckets[dp->order[dp->backward][dp->position]];
    bool there = next->gather || tshi_tensor_is_loaded(next->values);
    return there ? TSH_OK : start_gather(dp, next);
}

/* Called when a forward or a backward begins. */
static void begin_order(tsh_data_parallel *dp, bool backward) {
    dp->backward = backward;
    dp->position = 0;
    if (dp->recoveries == dp->mesh->world->recoveries) return;
    /* Ranks that stopped at different places of a failed step remember different orders. */
    dp->recoveries = dp->mesh->world->recoveries;
    dp->order_length[0] = dp->order_length[1] = 0;
    tshi_values_drop(dp);
}

tsh_status tshi_values_begin_backward(tsh_data_parallel *dp) {
    begin_order(dp, true);
    return gather_next(dp);
}

void tshi_values_end_backward(tsh_data_parallel *dp) {
    if (dp->sync || !keeps_values(dp)) tshi_values_drop(dp);
    begin_order(dp, false);
}

/* Notes the use of a bucket, and prefetches the next. */
static tsh_status look_ahead(tsh_data_parallel *dp, const tshi_bucket *bucket) {
    int *length = &dp->order_length[dp->backward];
    if (dp->position >= dp->order_room) return TSH_OK;
    dp->order[dp->backward][dp->position++] = (int)(bucket - dp->buckets);
    if (dp->position > *length) *length = dp->position;
    return gather_next(dp);
}

/* Frees other buckets' values, except those that the current call uses. */
static void free_others(const tsh_data_parallel *dp, uint64_t call) {
    for (int b = 0; b < dp->bucket_count; b++) {
        if (dp->buckets[b].used_in != call) free_values(&dp->buckets[b]);
    }
}

/* Slices have been written since they were gathered. Each rank knows of its own only, and all gather again, or none. */
static tsh_status drop_written(const tsh_data_parallel *dp, tshi_bucket *bucket) {
    char text[TSHI_LINE];
    const char *name = bucket->first->parameter->name;
    bool there = bucket->gather || tshi_tensor_is_loaded(bucket->values);
    free_gathered(bucket);
    free_values(bucket);
    if (!there) return TSH_OK;
    snprintf(text, sizeof text, "'%.24s' was written to between two calls of a step: all ranks write to it, or none",
             name ? name : "");
    return tshi_group_agree(dp->gathers, text, TSH_OK);
}

static tsh_status materialize_values(tshi_value_source *source, uint64_t step, uint64_t call) {
    tshi_bucket *bucket = (tshi_bucket *)source;
    tsh_data_parallel *dp = bucket->dp;
    if (dp->step != step) {
        if (!keeps_values(dp)) tshi_values_drop(dp); /* values may have changed */
        begin_order(dp, false);
        dp->step = step;
    }
    bucket->used_in = call;
    tsh_status status = is_stale(source) ? drop_written(dp, bucket) : TSH_OK;
    if (status != TSH_OK || tshi_tensor_is_loaded(bucket->values)) return status;
    if (!keeps_values(dp)) free_others(dp, call);
    status = gather_values(dp, bucket);
    return status == TSH_OK ? look_ahead(dp, bucket) : status;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

/* Makes the whole parameter, which functions take in place of the slice, a leaf. */
static tsh_status make_leaf(tshi_bucket_slot *slot) {
    const tsh_tensor *p = slot->parameter;
    tshi_gradient *g = tshi_gradient_of(slot->target.whole);
    if (!g) return TSH_ERR_MEMORY;
    slot->target.whole->name = p->name;
    g->required = true;
    g->wide = slot->target.whole->dtype != tshi_gradient_dtype(p);
    g->arithmetic = p->gradient->arithmetic;
    g->target = &slot->target;
    return TSH_OK;
}

/* Creates the slot's views of the slices, from element `at` on, and of the values. */
static tsh_status make_value_views(tsh_data_parallel *dp, const tshi_bucket *bucket, tshi_bucket_slot *slot,
                                   int64_t at) {
    const tsh_tensor *p = slot->parameter;
    tsh_layout layout[TSH_MAX_AXES];
    tsh_shape shape;
    memcpy(layout, p->layout, sizeof layout);
    tsh_status status = tshi_tensor_initial(p) ? TSH_OK : tshi_tensor_materialize(p);
    if (status == TSH_OK) status = tshi_slice_shape(p, dp->schedule.axis, &shape, layout);
    if (status == TSH_OK)
        status = tshi_tensor_part(bucket->value_slices, &shape, layout, (size_t)at * tsh_dtype_size(p->dtype),
                                  &slot->value_slice);
    if (status == TSH_OK)
        status = tshi_tensor_view(bucket->values, &p->shape, p->layout,
                                  (size_t)slot->start * tsh_dtype_size(dtype_of(p)), &slot->target.whole);
    return status == TSH_OK ? make_leaf(slot) : status;
}

static tsh_status make_memory(const tsh_data_parallel *dp, tshi_bucket *bucket) {
    int me = tsh_group_rank(dp->parent);
    tsh_dtype stored = bucket->first->parameter->dtype, dtype = dtype_of(bucket->first->parameter);
    int64_t all = tshi_slice_block_start(bucket->value_counts, tsh_group_size(dp->parent));
    size_t before = (size_t)tshi_slice_block_start(bucket->value_counts, me) * tsh_dtype_size(dtype);
    tsh_status status = tshi_tensor_scratch(dp->mesh, stored, bucket->value_counts[me], &bucket->value_slices);
    if (status == TSH_OK) status = tshi_tensor_scratch_unloaded(dp->mesh, dtype, bucket->gradients, &bucket->values);
    if (status == TSH_OK) status = tshi_tensor_scratch_unloaded(dp->mesh, dtype, all, &bucket->gathered);
    if (status == TSH_OK && dtype != stored)
        status = tshi_tensor_view(bucket->gathered, &bucket->value_slices->shape, tshi_all_local, before,
                                  &bucket->converted);
    if (status == TSH_OK) bucket->values->storage->source = &bucket->source;
    return status;
}

static tsh_status create_values(tsh_data_parallel *dp, tshi_bucket *bucket) {
    int64_t at = 0, start, length;
    bucket->source = (tshi_value_source){.materialize = materialize_values, .version = version_of, .stale = is_stale};
    tsh_memory_purpose purpose = tshi_device_purpose(dp->mesh->device, TSH_MEMORY_PARAMETERS);
    tsh_status status = make_memory(dp, bucket);
    for (tshi_bucket_slot *slot = bucket->first; slot && status == TSH_OK; slot = slot->next) {
        status = make_value_views(dp, bucket, slot, at);
        tshi_slice_range(dp, slot, tsh_group_rank(dp->parent), &start, &length);
        at += tshi_slice_padded(bucket, length);
    }
    tshi_device_purpose(dp->mesh->device, purpose);
    return status;
}

tsh_status tshi_values_create(tsh_data_parallel *dp) {
    tsh_status status = TSH_OK;
    if (!dp->level) return TSH_OK;
    for (int b = 0; b < dp->bucket_count && status == TSH_OK; b++) {
        if (dp->buckets[b].kind == &tshi_sharded_bucket) status = create_values(dp, &dp->buckets[b]);
    }
    dp->order_room = ORDERS * dp->bucket_count;
    for (int i = 0; i < 2 && status == TSH_OK; i++) {
        dp->order[i] = tshi_calloc(tshi_data_parallel_allocator(dp), (size_t)dp->order_room + 1, sizeof *dp->order[i]);
        if (!dp->order[i]) status = TSH_ERR_MEMORY;
    }
    return status;
}

/* A deferred parameter has no memory yet: the slice starts with the initial values of its part. */
static void become_slice(const tsh_data_parallel *dp, tshi_bucket_slot *slot) {
    tsh_tensor *p = slot->parameter, *slice = slot->value_slice;
    tsh_device *device = dp->mesh->device;
    const tshi_initial *initial = tshi_tensor_initial(p);
    int64_t start, length;
    tshi_slice_range(dp, slot, tsh_group_rank(dp->parent), &start, &length);
    if (initial)
        tshi_tensor_start(slice, initial);
    else
        device->ops->copy.within(device, tsh_tensor_local_nbytes(slice),
                                 (char *)tshi_data(p) + (size_t)start * tsh_dtype_size(p->dtype), tshi_data(slice));
    tshi_tensor_become(p, slice);
    tshi_tensor_release(slice);
    slot->value_slice = NULL;
}

void tshi_values_take_over(tsh_data_parallel *dp) {
    for (int i = 0; i < dp->count; i++) {
        if (dp->slots[i].value_slice) become_slice(dp, &dp->slots[i]);
    }
}

/* Creates empty tensors: the slices of the parameter and its gradient, and the whole parameter for functions. */
static tsh_status make_outside(tsh_data_parallel *dp, tshi_bucket_slot *slot) {
    const tsh_tensor *p = slot->parameter;
    tsh_layout layout[TSH_MAX_AXES];
    tsh_shape shape;
    memcpy(layout, p->layout, sizeof layout);
    tsh_status status = tshi_slice_shape(p, dp->schedule.axis, &shape, layout);
    if (status == TSH_OK) status = tshi_tensor_new(p->mesh, p->dtype, &shape, layout, &slot->value_slice);
    tshi_gradient_layout(p, layout);
    if (status == TSH_OK) status = tshi_slice_shape(p, dp->schedule.axis, &shape, layout);
    if (status == TSH_OK)
        status = tshi_tensor_new(p->mesh, tshi_gradient_dtype(p), &shape, layout, &slot->gradient_slice);
    if (status == TSH_OK) status = tshi_tensor_new(p->mesh, dtype_of(p), &p->shape, p->layout, &slot->target.whole);
    return status == TSH_OK ? make_leaf(slot) : status;
}

tsh_status tshi_values_outside(tsh_data_parallel *dp) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < dp->count && status == TSH_OK; i++) {
        if (tshi_bucket_slot_shards(dp, &dp->slots[i])) status = make_outside(dp, &dp->slots[i]);
    }
    for (int i = 0; i < dp->count && status == TSH_OK; i++) {
        tshi_bucket_slot *slot = &dp->slots[i];
        tshi_gradient *g = slot->parameter->gradient;
        if (!slot->target.whole) {
            tshi_gradient_detach(slot->parameter, &slot->target);
            continue;
        }
        tshi_tensor_become(slot->parameter, slot->value_slice);
        tshi_gradient_release_value(g);
        g->value = tshi_tensor_retain(slot->gradient_slice);
        g->stale = true;
    }
    return status;
}

void tshi_values_destroy(tsh_data_parallel *dp) {
    for (int b = 0; b < dp->bucket_count; b++) {
        tshi_bucket *bucket = &dp->buckets[b];
        free_gathered(bucket);
        free_values(bucket);
        if (bucket->values) bucket->values->storage->source = NULL;
        tshi_tensor_release(bucket->values);
        tshi_tensor_release(bucket->gathered);
        tshi_tensor_release(bucket->converted);
        tshi_tensor_release(bucket->value_slices);
    }
    for (int i = 0; i < dp->count; i++) {
        tshi_bucket_slot *slot = &dp->slots[i];
        if (slot->target.whole && slot->target.whole->gradient) slot->target.whole->gradient->target = NULL;
        tshi_tensor_release(slot->target.whole);
        tshi_tensor_release(slot->value_slice);
    }
    for (int i = 0; i < 2; i++) tshi_free(tshi_data_parallel_allocator(dp), dp->order[i]);
}
