/* Buckets of gradients: their memory, and their sums over the ranks. */
#include "train/data_parallel.h"

#include <stdio.h>
#include <string.h>

/* Gradients start where vector registers like it. */
#define ALIGNMENT 64

/* --- memory ------------------------------------------------------------------------------------------------------- */

static int64_t padded(const tsh_tensor *parameter) {
    int64_t unit = ALIGNMENT / (int64_t)tsh_dtype_size(parameter->dtype);
    return (parameter->numel + unit - 1) / unit * unit;
}

/* The last bucket of the dtype if there is room, or a new one. The first of all is the small one. */
static int bucket_for(tsh_data_parallel *dp, const tsh_tensor *parameter) {
    size_t bytes = (size_t)padded(parameter) * tsh_dtype_size(parameter->dtype);
    for (int b = dp->bucket_count - 1; b >= 0; b--) {
        const tshi_bucket *bucket = &dp->buckets[b];
        if (bucket->dtype != parameter->dtype) continue;
        size_t limit = b == 0 ? dp->first_bucket_bytes : dp->bucket_bytes;
        size_t used = (size_t)bucket->gradients * tsh_dtype_size(bucket->dtype);
        if (used <= limit && bytes <= limit - used) return b;
        break;
    }
    dp->buckets[dp->bucket_count].dtype = parameter->dtype;
    return dp->bucket_count++;
}

static void add(tsh_data_parallel *dp, tshi_place *place) {
    place->bucket = bucket_for(dp, place->parameter);
    tshi_bucket *bucket = &dp->buckets[place->bucket];
    place->start = bucket->gradients;
    bucket->gradients += padded(place->parameter);
    bucket->count++;
    if (bucket->last) bucket->last->next = place;
    if (!bucket->first) bucket->first = place;
    bucket->last = place;
}

/* The parameter's gradient moves in. */
static tsh_status make_views(const tsh_data_parallel *dp, tshi_place *place) {
    tsh_tensor *p = place->parameter, *memory = dp->buckets[place->bucket].memory;
    size_t offset = (size_t)place->start * tsh_dtype_size(p->dtype);
    tsh_layout whole[TSH_MAX_AXES], local[TSH_MAX_AXES];
    tshi_gradient_layout(p, whole);
    memcpy(local, whole, sizeof local);
    local[dp->schedule.axis] = TSH_LOCAL;
    tsh_status status = tshi_tensor_view(memory, &p->shape, whole, offset, &place->whole);
    if (status == TSH_OK) status = tshi_tensor_view(memory, &p->shape, local, offset, &place->term);
    return status;
}

static void release_memory(const tsh_data_parallel *dp) {
    for (int b = 0; b < dp->bucket_count; b++) {
        tsh_tensor_release(dp->buckets[b].memory);
        dp->buckets[b].memory = NULL;
    }
}

tsh_status tshi_buckets_place(tsh_data_parallel *dp) {
    tsh_group *group = dp->parent;
    uint64_t places = 0;
    char text[96];
    if (!group->ops->symmetric || !group->ops->symmetric(group)) return TSH_OK;
    for (int b = 0; b < dp->bucket_count; b++) {
        tshi_bucket *bucket = &dp->buckets[b];
        size_t offset = 0;
        bucket->memory = tshi_tensor_symmetric(dp->mesh, bucket->dtype, bucket->gradients + bucket->count, &offset);
        places = (places ^ (bucket->memory ? offset : SIZE_MAX)) * UINT64_C(0x9e3779b97f4a7c15);
        places ^= places >> 29;
    }
    snprintf(text, sizeof text, "data_parallel_create: symmetric memory, places %016llx", (unsigned long long)places);
    tsh_status status = group->ops->agree(group, text, TSH_OK);
    if (status == TSH_ERR_MISMATCH) release_memory(dp);
    return status == TSH_ERR_MISMATCH ? TSH_OK : status;
}

static tsh_status make_memory(const tsh_data_parallel *dp, tshi_bucket *bucket) {
    const tsh_layout local[TSH_MAX_AXES] = {TSH_LOCAL, TSH_LOCAL, TSH_LOCAL, TSH_LOCAL};
    tshi_shape marks = {.ndim = 1, .local = {bucket->count}, .global = {bucket->count}};
    size_t offset = (size_t)bucket->gradients * tsh_dtype_size(bucket->dtype);
    tsh_status status = TSH_OK;
    if (!bucket->memory) {
        status = tshi_tensor_scratch(dp->mesh, bucket->dtype, bucket->gradients + bucket->count, &bucket->memory);
    }
    if (status == TSH_OK) status = tsh_tensor_fill(bucket->memory, 0); /* padding is summed too */
    if (status == TSH_OK) status = tshi_tensor_view(bucket->memory, &marks, local, offset, &bucket->marks);
    return status;
}

void tshi_buckets_share_out(tsh_data_parallel *dp) {
    for (int i = 0; i < dp->count; i++) add(dp, &dp->places[i]);
}

tsh_status tshi_buckets_create(tsh_data_parallel *dp) {
    int most = 1;
    tsh_status status = TSH_OK;
    for (int b = 0; b < dp->bucket_count && status == TSH_OK; b++) {
        status = make_memory(dp, &dp->buckets[b]);
        if (dp->buckets[b].count > most) most = dp->buckets[b].count;
    }
    for (int i = 0; i < dp->count && status == TSH_OK; i++) status = make_views(dp, &dp->places[i]);
    if (status != TSH_OK) return status;
    dp->marks = tshi_calloc(&dp->world->allocator, (size_t)most, sizeof(double));
    return dp->marks ? TSH_OK : TSH_ERR_MEMORY;
}

static void release_works(tsh_data_parallel *dp) {
    for (int b = 0; b < dp->bucket_count; b++) {
        tsh_work_release(dp->buckets[b].work);
        dp->buckets[b].work = NULL;
    }
}

void tshi_buckets_destroy(tsh_data_parallel *dp) {
    release_works(dp);
    for (int b = 0; b < dp->bucket_count; b++) tsh_tensor_release(dp->buckets[b].marks);
    release_memory(dp);
    for (int i = 0; i < dp->count; i++) {
        tsh_tensor_release(dp->places[i].whole);
        tsh_tensor_release(dp->places[i].term);
        tsh_tensor_release(dp->places[i].surplus);
    }
    tshi_free(&dp->world->allocator, dp->marks);
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

void tshi_place_open(const tsh_data_parallel *dp, tshi_place *place) {
    if (place->parameter->grad_unsummed) return;
    place->parameter->grad_unsummed = true;
    if (dp->group->rank != 0) place->parameter->grad_stale = true;
}

/* Zeros where there is no gradient, and the marks. From here on a gradient that is stale is one that was dropped. */
static void complete(const tsh_data_parallel *dp, tshi_bucket *bucket) {
    tsh_device *device = dp->mesh->device;
    size_t size = tsh_dtype_size(bucket->dtype);
    char *mark = tshi_data(bucket->marks);
    bucket->absent = 0;
    for (tshi_place *place = bucket->first; place; place = place->next, mark += size) {
        tshi_place_open(dp, place);
        bool absent = place->parameter->grad_stale;
        bucket->absent += absent;
        if (absent) device->ops->copy.zero(device, tsh_tensor_local_nbytes(place->term), tshi_data(place->term));
        device->ops->copy.fill(device, bucket->dtype, 1, absent ? 0 : 1, mark);
        place->parameter->grad_stale = false;
    }
}

tsh_status tshi_bucket_start(tsh_data_parallel *dp, tshi_bucket *bucket) {
    complete(dp, bucket);
    if (dp->group->size == 1) return TSH_OK;
    return tsh_all_reduce_async(dp->group, bucket->memory, TSH_SUM, &bucket->work);
}

static bool marked(const tsh_data_parallel *dp, const tshi_bucket *bucket, int i) {
    if (bucket->absent == 0) return true;
    /* A sum of zeros and ones in any float dtype: no bit set, or some. */
    size_t size = tsh_dtype_size(bucket->dtype);
    static const char zeros[sizeof(double)];
    return memcmp((const char *)dp->marks + (size_t)i * size, zeros, size) != 0;
}

static tsh_status hand_out(tsh_data_parallel *dp, const tshi_bucket *bucket) {
    int i = 0;
    /* Where this rank has every gradient, so has the sum: nothing to wait for. */
    tsh_status status = TSH_OK;
    if (bucket->absent) status = tsh_tensor_read(bucket->marks, dp->marks, bucket->count);
    for (tshi_place *place = bucket->first; place && status == TSH_OK; place = place->next) {
        place->parameter->grad_unsummed = false;
        if (!marked(dp, bucket, i++)) place->parameter->grad_stale = true;
        tsh_tensor_release(place->surplus);
        place->surplus = NULL;
    }
    return status;
}

tsh_status tshi_buckets_wait(tsh_data_parallel *dp) {
    tsh_status status = TSH_OK;
    for (int b = 0; b < dp->bucket_count && status == TSH_OK; b++) {
        if (dp->buckets[b].work) status = tshi_work_join(dp->buckets[b].work);
    }
    if (status != TSH_OK) return status;
    release_works(dp);
    for (int b = 0; b < dp->bucket_count && status == TSH_OK; b++) status = hand_out(dp, &dp->buckets[b]);
    return status;
}

void tshi_buckets_forget(tsh_data_parallel *dp) {
    release_works(dp);
    for (int i = 0; i < dp->count; i++) {
        tshi_place *place = &dp->places[i];
        place->parameter->grad_stale = true;
        place->parameter->grad_unsummed = false;
        tsh_tensor_release(place->surplus);
        place->surplus = NULL;
    }
}
