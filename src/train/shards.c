/* Sharded buckets: slices of gradients and values, reduce-scatters and all-gathers of whole buckets. */
#include "train/data_parallel.h"

#include <string.h>

#define ALIGNMENT 64 /* bytes, of each slice in a block */

/* --- slices ------------------------------------------------------------------------------------------------------- */

void tshi_shards_piece(const tsh_data_parallel *dp, const tshi_bucket_slot *slot, int r, int64_t *start,
                       int64_t *length) {
    int64_t rows = slot->whole->shape.local[0], row = rows ? slot->whole->numel / rows : 0;
    tsh_split(rows, tsh_group_size(dp->parent), r, start, length);
    *start *= row;
    *length *= row;
}

int64_t tshi_shards_padded(const tshi_bucket *bucket, int64_t n) {
    size_t gradient = tsh_dtype_size(bucket->dtype), value = tsh_dtype_size(bucket->first->parameter->dtype);
    int64_t unit = ALIGNMENT / (int64_t)(gradient < value ? gradient : value);
    return (n + unit - 1) / unit * unit;
}

static int64_t block_start(const int64_t *counts, int rank) {
    int64_t start = 0;
    for (int r = 0; r < rank; r++) start += counts[r];
    return start;
}

tsh_status tshi_shards_shape(const tsh_tensor *p, int axis, tsh_shape *shape, tsh_layout layout[TSH_MAX_AXES]) {
    int sequence[TSH_MAX_AXES], order = 0;
    *shape = p->shape;
    tshi_split_sequence(p->mesh->axes, layout, sequence);
    for (int i = 0; i < p->mesh->axes; i++) {
        if (tshi_layout_splits(layout[sequence[i]], 0)) layout[sequence[i]].order = order++;
    }
    layout[axis] = TSH_SHARD_ORDER(0, order);
    return tshi_shape_resolve(p->mesh, shape, layout);
}

static tsh_status count_blocks(const tsh_data_parallel *dp, tshi_bucket *bucket) {
    int size = tsh_group_size(dp->parent);
    bucket->counts = tshi_calloc(tshi_data_parallel_allocator(dp), 2 * (size_t)size, sizeof *bucket->counts);
    if (!bucket->counts) return TSH_ERR_MEMORY;
    bucket->value_counts = bucket->counts + size;
    for (int r = 0; r < size; r++) {
        for (const tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next) {
            int64_t start, length;
            tshi_shards_piece(dp, slot, r, &start, &length);
            bucket->value_counts[r] += tshi_shards_padded(bucket, length);
        }
        bucket->counts[r] = bucket->value_counts[r] + tshi_shards_padded(bucket, bucket->count);
    }
    return TSH_OK;
}

/* `at`: elements into this rank's block. */
static tsh_status slice_slot(const tsh_data_parallel *dp, const tshi_bucket *bucket, tshi_bucket_slot *slot,
                             int64_t at) {
    tsh_tensor *p = slot->parameter;
    const tsh_tensor *memory = bucket->slices ? bucket->slices : bucket->memory;
    tsh_layout layout[TSH_MAX_AXES];
    tsh_shape shape;
    int64_t start, length;
    tshi_shards_piece(dp, slot, tsh_group_rank(dp->parent), &start, &length);
    if (!bucket->slices) at = slot->start + start;
    tshi_gradient_layout(p, layout);
    tsh_status status = tshi_shards_shape(p, dp->sink.axis, &shape, layout);
    if (status == TSH_OK && !bucket->held) status = tshi_tensor_bring(p);
    if (status == TSH_OK)
        status = tshi_tensor_view(memory, &shape, layout, (size_t)at * tsh_dtype_size(memory->dtype), &slot->slice);
    if (status == TSH_OK && bucket->held)
        status = tshi_tensor_view(bucket->memory, &shape, layout,
                                  (size_t)(slot->start + start) * tsh_dtype_size(bucket->dtype), &slot->part);
    memcpy(layout, p->layout, sizeof layout);
    if (status == TSH_OK) status = tshi_shards_shape(p, dp->sink.axis, &shape, layout);
    if (status == TSH_OK)
        status = tshi_tensor_view(p, &shape, layout, (size_t)start * tsh_dtype_size(p->dtype), &slot->values);
    if (status == TSH_OK && bucket->held)
        status = tshi_tensor_part(bucket->held, &shape, layout, (size_t)at * tsh_dtype_size(p->dtype), &slot->held);
    return status;
}

/* n elements of the block of memory, from `at` on. */
static tsh_status flat_view(const tsh_tensor *memory, tsh_dtype dtype, int64_t at, int64_t n, tsh_tensor **out) {
    const tsh_layout local[TSH_MAX_AXES] = {TSH_LOCAL, TSH_LOCAL, TSH_LOCAL, TSH_LOCAL};
    const tsh_shape shape = {.ndim = 1, .local = {n}, .global = {n}};
    tsh_status status = tshi_tensor_view(memory, &shape, local, (size_t)at * tsh_dtype_size(dtype), out);
    if (status == TSH_OK) (*out)->dtype = dtype;
    return status;
}

static tsh_status make_slices(const tsh_data_parallel *dp, tshi_bucket *bucket) {
    int me = tsh_group_rank(dp->parent);
    int64_t at = 0, start, length;
    tsh_status status = TSH_OK;
    if (bucket->level >= TSH_SHARD_GRADIENTS) {
        tsh_memory_purpose before = tshi_device_purpose(dp->mesh->device, TSH_MEMORY_GRADIENTS);
        status = tshi_tensor_scratch(dp->mesh, bucket->dtype, bucket->counts[me], &bucket->slices);
        tshi_device_purpose(dp->mesh->device, before);
    }
    for (tshi_bucket_slot *slot = bucket->first; slot && status == TSH_OK; slot = slot->next) {
        status = slice_slot(dp, bucket, slot, at);
        tshi_shards_piece(dp, slot, me, &start, &length);
        at += tshi_shards_padded(bucket, length);
    }
    return status;
}

static tsh_dtype value_dtype(const tshi_bucket *bucket) {
    return bucket->first->parameter->dtype;
}

/* Buckets take turns in two memories, which exist during a step alone: one is gathered while another is copied out. */
static tsh_status make_rooms(tsh_data_parallel *dp) {
    int size = tsh_group_size(dp->parent), me = tsh_group_rank(dp->parent), i = 0;
    tsh_status status = tshi_tensor_scratch_unloaded(dp->mesh, TSH_FLOAT32, 0, &dp->room[0]);
    if (status == TSH_OK) status = tshi_tensor_scratch_unloaded(dp->mesh, TSH_FLOAT32, 0, &dp->room[1]);
    for (int b = 0; b < dp->bucket_count && status == TSH_OK; b++) {
        tshi_bucket *bucket = &dp->buckets[b];
        if (!bucket->level || bucket->held) continue;
        int64_t all = block_start(bucket->value_counts, size), before = block_start(bucket->value_counts, me);
        tsh_dtype dtype = value_dtype(bucket);
        size_t bytes = (size_t)all * tsh_dtype_size(dtype);
        if (bytes > dp->room_bytes[i]) dp->room_bytes[i] = bytes;
        bucket->room = dp->room[i];
        status = flat_view(bucket->room, dtype, 0, all, &bucket->gathered);
        if (status == TSH_OK) status = flat_view(bucket->room, dtype, before, bucket->value_counts[me], &bucket->own);
        i = 1 - i;
    }
    return status;
}

tsh_status tshi_shards_create(tsh_data_parallel *dp) {
    tsh_status status = TSH_OK;
    for (int b = 0; b < dp->bucket_count && status == TSH_OK; b++) {
        if (!dp->buckets[b].level) continue;
        status = count_blocks(dp, &dp->buckets[b]);
    }
    if (status == TSH_OK) status = tshi_units_create(dp);
    for (int b = 0; b < dp->bucket_count && status == TSH_OK; b++) {
        if (dp->buckets[b].level) status = make_slices(dp, &dp->buckets[b]);
    }
    return status == TSH_OK && dp->level ? make_rooms(dp) : status;
}

void tshi_shards_destroy(tsh_data_parallel *dp) {
    tshi_units_destroy(dp);
    for (int b = 0; b < dp->bucket_count; b++) {
        tshi_bucket *bucket = &dp->buckets[b];
        tshi_tensor_release(bucket->gathered);
        tshi_tensor_release(bucket->own);
        tshi_tensor_release(bucket->slices);
        tshi_shards_drop(bucket);
        tshi_free(tshi_data_parallel_allocator(dp), bucket->counts);
    }
    for (int i = 0; i < dp->count; i++) {
        tshi_tensor_release(dp->slots[i].slice);
        tshi_tensor_release(dp->slots[i].part);
        tshi_tensor_release(dp->slots[i].values);
    }
    for (int i = 0; i < 2; i++) tshi_tensor_release(dp->room[i]);
}

/* --- packing ------------------------------------------------------------------------------------------------------ */

/* One past the last of the ranks from r on that have as long pieces of every slot as r; this rank is alone. */
static int alike(const tsh_data_parallel *dp, const tshi_bucket *bucket, int r) {
    int size = tsh_group_size(dp->parent), me = tsh_group_rank(dp->parent), end = r < me ? me : r == me ? r + 1 : size;
    for (const tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next) {
        int longer = (int)(slot->whole->shape.local[0] % size);
        if (r < longer && longer < end) end = longer;
    }
    return end;
}

/* Zeros, `bytes` of them in each of n blocks. */
static void put_zeros(tsh_device *device, int n, size_t bytes, char *to, size_t block) {
    device->ops->copy.zero(device, bytes, to);
    device->ops->copy.strided(device, n - 1, bytes, to, 0, to + block, block);
}

/* The slot's part of the blocks of n ranks from r on: its term's, or, of a gradient that no call has added to since its
 * sum, this rank's slice. */
static void put_pieces(const tsh_data_parallel *dp, const tshi_bucket *bucket, const tshi_bucket_slot *slot, int r,
                       int n, char *to) {
    tsh_device *device = dp->mesh->device;
    size_t size = tsh_dtype_size(bucket->dtype), block = (size_t)bucket->counts[r] * size;
    const char *from = NULL;
    int64_t start, length;
    tshi_shards_piece(dp, slot, r, &start, &length);
    size_t bytes = (size_t)length * size, rest = (size_t)tshi_shards_padded(bucket, length) * size - bytes;
    bool stale = slot->parameter->gradient->stale, mine = r == tsh_group_rank(dp->parent);
    if (!stale && slot->unsummed && (mine || slot->added != TSHI_ADDED_THE_SAME))
        from = (char *)tshi_data(slot->term) + (size_t)start * size;
    else if (!stale && mine)
        from = tshi_data(slot->slice);
    if (from)
        device->ops->copy.strided(device, n, bytes, from, bytes, to, block);
    else
        put_zeros(device, n, bytes, to, block);
    if (rest) put_zeros(device, n, rest, to + bytes, block);
}

/* The flags of one block, and of those of n - 1 ranks after it. */
static void put_flags(const tsh_data_parallel *dp, const tshi_bucket *bucket, int r, int n, char *to) {
    tsh_device *device = dp->mesh->device;
    size_t size = tsh_dtype_size(bucket->dtype), block = (size_t)bucket->counts[r] * size;
    size_t bytes = (size_t)tshi_shards_padded(bucket, bucket->count) * size, used = (size_t)bucket->count * size;
    char *flag = to;
    device->ops->copy.fill(device, bucket->dtype, bucket->count, 1, to);
    device->ops->copy.zero(device, bytes - used, to + used);
    for (const tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next, flag += size) {
        if (slot->parameter->gradient->stale) device->ops->copy.zero(device, size, flag);
    }
    device->ops->copy.strided(device, n - 1, bytes, to, 0, to + block, block);
}

static void pack(const tsh_data_parallel *dp, tshi_bucket *bucket) {
    size_t size = tsh_dtype_size(bucket->dtype);
    char *to = tshi_data(bucket->packed);
    int64_t start, length;
    for (int r = 0, end; r < tsh_group_size(dp->parent); r = end) {
        char *at = to;
        end = alike(dp, bucket, r);
        for (const tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next) {
            put_pieces(dp, bucket, slot, r, end - r, at);
            tshi_shards_piece(dp, slot, r, &start, &length);
            at += (size_t)tshi_shards_padded(bucket, length) * size;
        }
        put_flags(dp, bucket, r, end - r, at);
        to += (size_t)(end - r) * (size_t)bucket->counts[r] * size;
    }
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

static tsh_status load(const tshi_bucket *bucket) {
    if (tshi_tensor_is_loaded(bucket->memory)) return TSH_OK;
    return tshi_tensor_load(bucket->memory, tsh_tensor_local_nbytes(bucket->memory), TSH_MEMORY_GRADIENTS);
}

void tshi_shards_keep_own(const tsh_data_parallel *dp, const tshi_bucket_slot *slot) {
    tsh_device *device = dp->mesh->device;
    size_t size = tsh_dtype_size(slot->whole->dtype);
    int64_t start, length;
    tshi_shards_piece(dp, slot, tsh_group_rank(dp->parent), &start, &length);
    char *whole = tshi_data(slot->whole), *end = whole + (size_t)(start + length) * size;
    device->ops->copy.zero(device, (size_t)start * size, whole);
    device->ops->copy.zero(device, tsh_tensor_local_nbytes(slot->whole) - (size_t)(end - whole), end);
}

tsh_status tshi_shards_open(const tsh_data_parallel *dp, tshi_bucket_slot *slot) {
    const tshi_bucket *bucket = &dp->buckets[slot->bucket];
    tsh_device *device = dp->mesh->device;
    size_t size = tsh_dtype_size(bucket->dtype);
    int64_t start, length;
    tsh_status status = load(bucket);
    if (status != TSH_OK || slot->parameter->gradient->stale) return status;
    tshi_shards_piece(dp, slot, tsh_group_rank(dp->parent), &start, &length);
    char *part = (char *)tshi_data(slot->whole) + (size_t)start * size;
    if (bucket->slices) device->ops->copy.within(device, (size_t)length * size, tshi_data(slot->slice), part);
    tshi_shards_keep_own(dp, slot);
    return TSH_OK;
}

tsh_tensor *tshi_shards_part(tsh_data_parallel *dp, tshi_bucket_slot *slot, double *beta) {
    tshi_gradient *g = slot->parameter->gradient;
    if (tshi_slot_open(dp, slot) != TSH_OK) return NULL;
    if (g->stale) { /* there is a gradient, if no term of one */
        tsh_device *device = dp->mesh->device;
        device->ops->copy.zero(device, tsh_tensor_local_nbytes(slot->term), tshi_data(slot->term));
        g->stale = false;
    }
    *beta = 1;
    return slot->part;
}

/* The memory of the blocks, and views of this rank's. */
static tsh_status make_blocks(const tsh_data_parallel *dp, tshi_bucket *bucket) {
    int size = tsh_group_size(dp->parent), me = tsh_group_rank(dp->parent);
    int64_t all = block_start(bucket->counts, size), before = block_start(bucket->counts, me);
    int64_t mine = bucket->counts[me], values = bucket->value_counts[me];
    tsh_status status = tshi_tensor_buffer(dp->mesh, bucket->dtype, all, &bucket->packed);
    if (status != TSH_OK) return status;
    status = bucket->slices ? flat_view(bucket->slices, bucket->dtype, 0, mine, &bucket->result)
                            : flat_view(bucket->packed, bucket->dtype, before, mine, &bucket->result);
    return status == TSH_OK ? flat_view(bucket->result, bucket->dtype, values, bucket->count, &bucket->flags) : status;
}

tsh_status tshi_shards_start(const tsh_data_parallel *dp, tshi_bucket *bucket) {
    tsh_status status = make_blocks(dp, bucket);
    if (status != TSH_OK) return status;
    pack(dp, bucket);
    bucket->absent = 0;
    for (tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next) {
        bucket->absent += slot->parameter->gradient->stale;
        slot->parameter->gradient->stale = false;
        slot->unsummed = true;
    }
    if (bucket->slices) tshi_tensor_unload(bucket->memory);
    return tsh_reduce_scatter_tensor_async(dp->group, bucket->result, bucket->packed, TSH_SUM, bucket->counts,
                                           &bucket->work);
}

void tshi_shards_finish(const tsh_data_parallel *dp, tshi_bucket *bucket) {
    tsh_device *device = dp->mesh->device;
    size_t size = tsh_dtype_size(bucket->dtype);
    const char *from = tshi_data(bucket->result);
    int64_t start, length;
    for (const tshi_bucket_slot *slot = bucket->first; slot && !bucket->slices; slot = slot->next) {
        tshi_shards_piece(dp, slot, tsh_group_rank(dp->parent), &start, &length);
        device->ops->copy.within(device, (size_t)length * size, from, tshi_data(slot->slice));
        from += (size_t)tshi_shards_padded(bucket, length) * size;
    }
    tshi_shards_drop(bucket);
}

void tshi_shards_drop(tshi_bucket *bucket) {
    if (!bucket->level) return;
    if (bucket->level >= TSH_SHARD_GRADIENTS && bucket->memory) tshi_tensor_unload(bucket->memory);
    tshi_tensor_release(bucket->flags);
    tshi_tensor_release(bucket->result);
    tshi_tensor_release(bucket->packed);
    bucket->flags = bucket->result = bucket->packed = NULL;
}

size_t tshi_shards_before(const tsh_data_parallel *dp, const tshi_bucket_slot *slot) {
    int64_t start = 0, length;
    if (slot->slice) tshi_shards_piece(dp, slot, tsh_group_rank(dp->parent), &start, &length);
    return (size_t)start;
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static const tshi_bucket_slot *slot_of(const tsh_data_parallel *dp, const tsh_tensor *parameter) {
    return &dp->slots[parameter->gradient->slot % dp->count];
}

tsh_tensor *tshi_shards_values(tsh_tensor *parameter) {
    const tsh_data_parallel *dp = tshi_data_parallel_of(parameter);
    tsh_tensor *values = dp ? slot_of(dp, parameter)->values : NULL;
    return values ? values : parameter;
}

void tshi_shards_mark(const tsh_tensor *parameter) {
    const tsh_data_parallel *dp = tshi_data_parallel_of(parameter);
    tshi_bucket *bucket = dp ? &dp->buckets[slot_of(dp, parameter)->bucket] : NULL;
    if (bucket && bucket->level) bucket->changed = true;
}

static bool any_changed(const tsh_data_parallel *dp) {
    for (int b = 0; b < dp->bucket_count; b++) {
        if (dp->buckets[b].changed) return true;
    }
    return false;
}

/* What gathering takes: once slices have changed it does not fail on one rank alone. */
static tsh_status load_rooms(const tsh_data_parallel *dp) {
    tsh_status status = tshi_works_reserve(dp->gathers, 2) ? TSH_OK : TSH_ERR_MEMORY;
    for (int i = 0; i < 2 && status == TSH_OK; i++)
        status = tshi_tensor_load(dp->room[i], dp->room_bytes[i], TSH_MEMORY_COMMUNICATION);
    return status;
}

/* The values of this step are gathered, or are not going to be. */
static void end_gathers(tsh_data_parallel *dp) {
    for (int b = 0; b < dp->bucket_count; b++) {
        tshi_bucket *bucket = &dp->buckets[b];
        bucket->changed = false;
        if (bucket->held) continue;
        tsh_work_release(bucket->gather);
        bucket->gather = NULL;
    }
    for (int i = 0; i < 2; i++) tshi_tensor_unload(dp->room[i]);
}

tsh_status tshi_shards_reserve(tsh_data_parallel *dp) {
    if (!dp->level || dp->level >= TSH_SHARD_PARAMETERS || !any_changed(dp) || tshi_tensor_is_loaded(dp->room[0]))
        return TSH_OK;
    tsh_status status = tshi_group_agree(dp->gathers, "optimizer_step: memory", load_rooms(dp));
    if (status != TSH_OK) end_gathers(dp);
    return status;
}

int tshi_shards_move_values(const tsh_data_parallel *dp, const tshi_bucket *bucket, int r, bool out) {
    tsh_device *device = dp->mesh->device;
    size_t size = tsh_dtype_size(bucket->gathered->dtype), block = (size_t)bucket->value_counts[r] * size;
    int end = alike(dp, bucket, r);
    char *at = (char *)tshi_data(bucket->gathered) + (size_t)block_start(bucket->value_counts, r) * size;
    for (const tshi_bucket_slot *slot = bucket->first; slot; slot = slot->next) {
        int64_t start, length;
        tshi_shards_piece(dp, slot, r, &start, &length);
        size_t bytes = (size_t)length * size;
        char *value = (char *)tshi_data(slot->stand_in ? slot->stand_in : slot->parameter) + (size_t)start * size;
        if (out)
            device->ops->copy.strided(device, end - r, bytes, at, block, value, bytes);
        else
            device->ops->copy.strided(device, end - r, bytes, value, bytes, at, block);
        at += (size_t)tshi_shards_padded(bucket, length) * size;
    }
    return end;
}

static tsh_status start_gather(const tsh_data_parallel *dp, tshi_bucket *bucket) {
    tshi_shards_move_values(dp, bucket, tsh_group_rank(dp->parent), false);
    return tsh_all_gather_into_tensor_async(dp->gathers, bucket->gathered, bucket->own, bucket->value_counts,
                                            &bucket->gather);
}

static tsh_status finish_gather(const tsh_data_parallel *dp, tshi_bucket *bucket) {
    tsh_status status = bucket->gather ? tshi_work_wait_queued(bucket->gather) : TSH_OK;
    tsh_work_release(bucket->gather);
    bucket->gather = NULL;
    int me = tsh_group_rank(dp->parent);
    for (int r = 0; r < tsh_group_size(dp->parent) && status == TSH_OK;)
        r = r == me ? r + 1 : tshi_shards_move_values(dp, bucket, r, true);
    return status;
}

tsh_status tshi_shards_gather(tsh_data_parallel *dp) {
    tsh_status status = TSH_OK;
    tshi_bucket *last = NULL; /* on its way */
    tshi_units_drop(dp);      /* their values are those before the step */
    if (!dp->room[0] || !tshi_tensor_is_loaded(dp->room[0])) return TSH_OK;
    for (int b = 0; b < dp->bucket_count && status == TSH_OK; b++) {
        tshi_bucket *bucket = &dp->buckets[b];
        if (!bucket->changed) continue;
        if (last && last->room == bucket->room) { /* a bucket between them has not changed */
            status = finish_gather(dp, last);
            last = NULL;
        }
        if (status == TSH_OK) status = start_gather(dp, bucket);
        if (status == TSH_OK && last) status = finish_gather(dp, last);
        last = bucket;
    }
    if (status == TSH_OK && last) status = finish_gather(dp, last);
    end_gathers(dp);
    return status;
}
