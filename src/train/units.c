/* Sharded parameters: a unit is the bucket of a layer's parameters, whose values are gathered just before their use, in
 * the order of the step before one unit ahead, and freed when another unit is used. */
#include "train/data_parallel.h"

#include <string.h>

enum { ORDERS = 4 }; /* uses of each unit in a forward or a backward that are remembered */

/* Values are gathered in the dtype that functions compute in, which is most often narrower than what a rank holds. In a
 * deterministic world they are cast behind the gathering, so that gradients of casts are summed as they are on one rank:
 * those of each backward first. */
static tsh_dtype dtype_of(const tsh_tensor *parameter) {
    return parameter->mesh->world->deterministic ? parameter->dtype : tshi_gradient_computed_in(parameter);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

size_t tshi_unit_name(const char *name) {
    size_t end = strlen(name);
    const char *last = strrchr(name, '.');
    for (const char *at = name; *at;) {
        size_t length = strcspn(at, ".");
        if (length > 0 && strspn(at, "0123456789") == length) return (size_t)(at - name) + length;
        at += length + (at[length] == '.');
    }
    return last ? (size_t)(last - name) : end;
}

/* The slot's stand-in, a whole tensor, becomes a leaf. */
static tsh_status make_leaf(tsh_data_parallel *dp, const tshi_bucket_slot *slot) {
    const tsh_tensor *p = slot->parameter;
    tshi_gradient *g = tshi_gradient_of(slot->stand_in);
    if (!g) return TSH_ERR_MEMORY;
    slot->stand_in->name = p->name;
    g->required = true;
    g->wide = slot->stand_in->dtype != tshi_gradient_dtype(p);
    g->arithmetic = p->gradient->arithmetic;
    g->sink = &dp->sink;
    g->slot = p->gradient->slot;
    g->sums = p->gradient->sums;
    return TSH_OK;
}

/* The slot's stand-in: a whole leaf in the unit's memory. */
static tsh_status make_stand_in(tsh_data_parallel *dp, const tshi_bucket *unit, tshi_bucket_slot *slot) {
    const tsh_tensor *p = slot->parameter;
    size_t offset = (size_t)slot->start * tsh_dtype_size(dtype_of(p));
    tsh_status status = tshi_tensor_view(unit->unit, &p->shape, p->layout, offset, &slot->stand_in);
    return status == TSH_OK ? make_leaf(dp, slot) : status;
}

static tsh_status make_unit(tsh_data_parallel *dp, tshi_bucket *unit, tshi_lender *lender) {
    int size = tsh_group_size(dp->parent), me = tsh_group_rank(dp->parent);
    tsh_dtype stored = unit->first->parameter->dtype, dtype = dtype_of(unit->first->parameter);
    const tsh_layout local[TSH_MAX_AXES] = {TSH_LOCAL, TSH_LOCAL, TSH_LOCAL, TSH_LOCAL};
    int64_t all = 0, before = 0;
    for (int r = 0; r < size; r++) {
        if (r == me) before = all;
        all += unit->value_counts[r];
    }
    tsh_memory_purpose purpose = tshi_device_purpose(dp->mesh->device, TSH_MEMORY_PARAMETERS);
    tsh_status status = tshi_tensor_scratch(dp->mesh, stored, unit->value_counts[me], &unit->held);
    if (status == TSH_OK) status = tshi_tensor_scratch_unloaded(dp->mesh, dtype, unit->gradients, &unit->unit);
    if (status == TSH_OK) status = tshi_tensor_scratch_unloaded(dp->mesh, dtype, all, &unit->gathered);
    if (status == TSH_OK && dtype != stored)
        status = tshi_tensor_view(unit->gathered, &unit->held->shape, local, (size_t)before * tsh_dtype_size(dtype),
                                  &unit->own);
    tshi_device_purpose(dp->mesh->device, purpose);
    if (status != TSH_OK) return status;
    unit->unit->storage->lender = lender;
    for (tshi_bucket_slot *slot = unit->first; slot && status == TSH_OK; slot = slot->next)
        status = make_stand_in(dp, unit, slot);
    return status;
}

static tsh_status use(tshi_lender *lender, uint64_t step, uint64_t call);

/* A whole in the unit's memory changes with this rank's slice of it. */
static uint16_t version_of(const tshi_lender *lender, const tsh_tensor *tensor) {
    const tshi_bucket_slot *slot = ((const tshi_bucket *)lender)->first;
    size_t size = tsh_dtype_size(tensor->dtype);
    while (slot->next && (size_t)slot->next->start * size <= tensor->offset) slot = slot->next;
    return tshi_tensor_version(slot->parameter);
}

/* It differs where that of any slice does. */
static uint16_t versions_of(const tshi_bucket *unit) {
    uint16_t sum = 0;
    for (const tshi_bucket_slot *slot = unit->first; slot; slot = slot->next)
        sum += tshi_tensor_version(slot->parameter);
    return sum;
}

tsh_status tshi_units_create(tsh_data_parallel *dp) {
    tsh_status status = TSH_OK;
    if (dp->level < TSH_SHARD_PARAMETERS) return TSH_OK;
    for (int b = 0; b < dp->bucket_count && status == TSH_OK; b++) {
        tshi_bucket *unit = &dp->buckets[b];
        if (!unit->level) continue;
        unit->lender = (tshi_lender){.use = use, .version = version_of};
        unit->schedule = dp;
        status = make_unit(dp, unit, &unit->lender);
    }
    dp->order_room = ORDERS * dp->bucket_count;
    for (int i = 0; i < 2 && status == TSH_OK; i++) {
        dp->order[i] = tshi_calloc(tshi_data_parallel_allocator(dp), (size_t)dp->order_room + 1, sizeof *dp->order[i]);
        if (!dp->order[i]) status = TSH_ERR_MEMORY;
    }
    return status;
}

/* A deferred whole has never been there: the slice starts as its part. */
static void become_slice(tsh_tensor *parameter, const tsh_tensor *values, tsh_tensor *held) {
    tsh_device *device = tshi_device_of(held);
    const tshi_initial *initial = tshi_tensor_initial(parameter);
    if (initial)
        tshi_tensor_start(held, initial);
    else
        device->ops->copy.within(device, tsh_tensor_local_nbytes(held), tshi_data(values), tshi_data(held));
    tshi_tensor_become(parameter, held);
}

void tshi_units_take_over(tsh_data_parallel *dp) {
    for (int i = 0; i < dp->count; i++) {
        tshi_bucket_slot *slot = &dp->slots[i];
        if (!slot->stand_in) continue;
        become_slice(slot->parameter, slot->values, slot->held);
        tshi_tensor_release(slot->values);
        slot->values = tshi_tensor_retain(slot->parameter);
        slot->parameter->gradient->slot = i + dp->count; /* what is added to the slice itself */
    }
}

/* Empty tensors: the slices of the parameter and of its gradient, and the whole that stands in for it. */
static tsh_status make_elsewhere(tsh_data_parallel *dp, tshi_bucket_slot *slot) {
    const tsh_tensor *p = slot->parameter;
    tsh_layout layout[TSH_MAX_AXES];
    tsh_shape shape;
    memcpy(layout, p->layout, sizeof layout);
    tsh_status status = tshi_shards_shape(p, dp->sink.axis, &shape, layout);
    if (status == TSH_OK) status = tshi_tensor_new(p->mesh, p->dtype, &shape, layout, &slot->held);
    tshi_gradient_layout(p, layout);
    if (status == TSH_OK) status = tshi_shards_shape(p, dp->sink.axis, &shape, layout);
    if (status == TSH_OK) status = tshi_tensor_new(p->mesh, tshi_gradient_dtype(p), &shape, layout, &slot->slice);
    if (status == TSH_OK) status = tshi_tensor_new(p->mesh, dtype_of(p), &p->shape, p->layout, &slot->stand_in);
    return status == TSH_OK ? make_leaf(dp, slot) : status;
}

tsh_status tshi_units_elsewhere(tsh_data_parallel *dp) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < dp->count && status == TSH_OK; i++) {
        const tshi_bucket_slot *slot = &dp->slots[i];
        bool shared_out = slot->parameter->shape.ndim > 0 && slot->over == TSHI_SUMMANDS_COPIES;
        if (shared_out) status = make_elsewhere(dp, &dp->slots[i]);
    }
    for (int i = 0; i < dp->count && status == TSH_OK; i++) {
        const tshi_bucket_slot *slot = &dp->slots[i];
        tshi_gradient *g = slot->parameter->gradient;
        if (!slot->stand_in) {
            g->sink = NULL;
            continue;
        }
        tshi_tensor_become(slot->parameter, slot->held);
        tshi_gradient_release_value(g);
        g->value = tshi_tensor_retain(slot->slice);
        g->stale = true;
    }
    return status;
}

void tshi_units_destroy(tsh_data_parallel *dp) {
    tshi_units_drop(dp);
    for (int i = 0; i < dp->count; i++) {
        tshi_bucket_slot *slot = &dp->slots[i];
        if (slot->stand_in && slot->stand_in->gradient) slot->stand_in->gradient->sink = NULL;
        tshi_tensor_release(slot->stand_in);
        tshi_tensor_release(slot->held);
    }
    for (int b = 0; b < dp->bucket_count; b++) {
        tshi_bucket *unit = &dp->buckets[b];
        if (unit->unit) unit->unit->storage->lender = NULL;
        tshi_tensor_release(unit->unit);
        tshi_tensor_release(unit->held);
    }
    for (int i = 0; i < 2; i++) tshi_free(tshi_data_parallel_allocator(dp), dp->order[i]);
}

tsh_tensor *tshi_units_stand_in(const tsh_data_parallel *dp, tsh_tensor *leaf) {
    const tshi_bucket_slot *slot = &dp->slots[leaf->gradient->slot % dp->count];
    return slot->stand_in && leaf == slot->parameter ? slot->stand_in : leaf;
}

/* --- gathering ---------------------------------------------------------------------------------------------------- */

static void free_unit(tshi_bucket *unit) {
    if (unit->unit) tshi_tensor_unload(unit->unit);
}

static void free_gathered(tshi_bucket *unit) {
    tsh_work_release(unit->gather);
    unit->gather = NULL;
    if (unit->gathered && unit->unit) tshi_tensor_unload(unit->gathered);
}

void tshi_units_drop(tsh_data_parallel *dp) {
    if (dp->level < TSH_SHARD_PARAMETERS) return;
    for (int b = 0; b < dp->bucket_count; b++) {
        free_gathered(&dp->buckets[b]);
        free_unit(&dp->buckets[b]);
    }
}

static tsh_status start(const tsh_data_parallel *dp, tshi_bucket *unit) {
    tsh_status status =
        tshi_tensor_load(unit->gathered, tsh_tensor_local_nbytes(unit->gathered), TSH_MEMORY_COMMUNICATION);
    if (status != TSH_OK) return status;
    unit->version = versions_of(unit);
    const tsh_tensor *from = unit->held, *own = unit->own;
    tsh_device *device = dp->mesh->device;
    if (own) device->ops->copy.convert(device, own->numel, from->dtype, tshi_data(from), own->dtype, tshi_data(own));
    return tsh_all_gather_into_tensor_async(dp->gathers, unit->gathered, own ? own : from, unit->value_counts,
                                            &unit->gather);
}

/* Every rank's slices to their places in the unit's memory. */
static tsh_status unpack(const tsh_data_parallel *dp, const tshi_bucket *unit) {
    tsh_status status = tshi_tensor_load(unit->unit, tsh_tensor_local_nbytes(unit->unit), TSH_MEMORY_PARAMETERS);
    for (int r = 0; r < tsh_group_size(dp->parent) && status == TSH_OK;) r = tshi_shards_move_values(dp, unit, r, true);
    return status;
}

static tsh_status fetch(const tsh_data_parallel *dp, tshi_bucket *unit) {
    tsh_status status = unit->gather ? TSH_OK : start(dp, unit);
    if (status == TSH_OK && unit->gather) status = tshi_work_wait_queued(unit->gather);
    if (status == TSH_OK) status = unpack(dp, unit);
    free_gathered(unit);
    return status;
}

/* --- order -------------------------------------------------------------------------------------------------------- */

/* Starts to gather the unit that came next the last time. */
static tsh_status start_next(const tsh_data_parallel *dp) {
    if (dp->position >= dp->order_length[dp->backward]) return TSH_OK;
    tshi_bucket *next = &dp->buckets[dp->order[dp->backward][dp->position]];
    bool there = next->gather || tshi_tensor_is_loaded(next->unit);
    return there ? TSH_OK : start(dp, next);
}

void tshi_units_begin(tsh_data_parallel *dp, bool backward) {
    uint64_t recoveries = dp->mesh->world->recoveries;
    /* Ranks that have come to different places of a failed step remember different orders. */
    if (dp->recoveries != recoveries) dp->order_length[0] = dp->order_length[1] = 0;
    dp->recoveries = recoveries;
    dp->backward = backward;
    dp->position = 0;
}

tsh_status tshi_units_begin_backward(tsh_data_parallel *dp) {
    tshi_units_begin(dp, true);
    return start_next(dp);
}

/* Notes the use, and gathers ahead. */
static tsh_status look_ahead(tsh_data_parallel *dp, const tshi_bucket *unit) {
    int *length = &dp->order_length[dp->backward];
    if (dp->position >= dp->order_room) return TSH_OK;
    dp->order[dp->backward][dp->position++] = (int)(unit - dp->buckets);
    if (dp->position > *length) *length = dp->position;
    return start_next(dp);
}

/* Other units go, but for those that the running call has used. */
static void free_others(tsh_data_parallel *dp, uint64_t call) {
    for (int b = 0; b < dp->bucket_count; b++) {
        if (dp->buckets[b].used_in != call) free_unit(&dp->buckets[b]);
    }
}

static tsh_status use(tshi_lender *lender, uint64_t step, uint64_t call) {
    tshi_bucket *unit = (tshi_bucket *)lender;
    tsh_data_parallel *dp = unit->schedule;
    if (dp->step != step) { /* the values may have changed */
        tshi_units_drop(dp);
        tshi_units_begin(dp, false);
        dp->step = step;
    }
    unit->used_in = call;
    if (unit->version != versions_of(unit)) { /* slices have been written since */
        free_gathered(unit);
        free_unit(unit);
    }
    if (tshi_tensor_is_loaded(unit->unit)) return TSH_OK;
    free_others(dp, call);
    tsh_status status = fetch(dp, unit);
    return status == TSH_OK ? look_ahead(dp, unit) : status;
}
