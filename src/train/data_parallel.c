/* Data parallelism: creating and destroying a schedule. */
#include "train/bucket.h"

#include "autograd/grad/sparse.h"
#include "base/hash.h"
#include "dist/world.h"

#include <stdio.h>

bool tsh_data_parallel_set_sync(tsh_data_parallel *dp, bool sync) {
    bool before = !dp || dp->sync;
    if (dp) dp->sync = sync;
    return before;
}

int tsh_data_parallel_buckets(const tsh_data_parallel *dp) {
    return dp ? dp->bucket_count : 0;
}

tsh_group *tsh_data_parallel_group(const tsh_data_parallel *dp) {
    return dp ? dp->group : NULL;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

/* Checks that some parameter is on the group's mesh, and that none of these has a schedule. */
static tsh_status check_parameters(const tsh_tape *tape, const tsh_parameters *list, const tsh_mesh *mesh) {
    int found = 0;
    for (int i = 0; i < list->count; i++) {
        const tshi_parameter *p = &list->items[i];
        if (p->tensor->mesh != mesh) continue;
        found++;
        const tshi_gradient_schedule *schedule = tshi_gradient_schedule_of(p->tensor);
        if (!schedule || schedule == tape->schedule) continue;
        return tshi_fail(TSH_ERR_STATE, "data_parallel_create: '%s' has another tsh_data_parallel", p->name);
    }
    if (found || list->count == 0) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "data_parallel_create: the group is no axis of the mesh of '%s'",
                     list->items[0].name);
}

static tsh_status check_model(const tsh_group *group, const tsh_data_parallel_config *config) {
    if (!config->model && config->sequence_parallel)
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "data_parallel_create: sequence_parallel is for sums along `model`, which is NULL");
    if (!config->model) return TSH_OK;
    if (config->model == group || tshi_mesh_axis(tsh_group_mesh(group), config->model) < 0)
        return tshi_fail(TSH_ERR_ARGUMENT, "data_parallel_create: `model` must be another axis of the group's mesh");
    return TSH_OK;
}

static tsh_status check_data_parallel(const tsh_tape *tape, const tsh_parameters *list, const tsh_group *group,
                                      const tsh_data_parallel_config *config) {
    if (!tape || !list || !group) {
        return tape && list ? tshi_group_missing("data_parallel_create")
                            : tshi_fail(TSH_ERR_ARGUMENT, "data_parallel_create: a tape and parameters are required");
    }
    if (tape->world != list->world || tape->world != tsh_group_world(group)) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "data_parallel_create: tape, parameters and group belong to different worlds");
    }
    if (tape->schedule && tsh_group_rank(group) >= 0)
        return tshi_fail(TSH_ERR_STATE, "data_parallel_create: the tape has a tsh_data_parallel already");
    if (config && (unsigned)config->level > TSH_ZERO_PARAMETERS)
        return tshi_fail(TSH_ERR_ARGUMENT, "data_parallel_create: unknown level %d", (int)config->level);
    tsh_status status = config ? check_model(group, config) : TSH_OK;
    if (status != TSH_OK) return status;
    return check_parameters(tape, list, tsh_group_mesh(group));
}

static void configure(tsh_data_parallel *dp, const tsh_data_parallel_config *config) {
    const tsh_data_parallel_config c = config ? *config : (tsh_data_parallel_config){0};
    dp->average = c.average;
    dp->bucket_bytes = c.bucket_bytes;
    dp->first_bucket_bytes = c.first_bucket_bytes;
    dp->model = c.model ? tshi_mesh_axis(dp->mesh, c.model) : -1;
    dp->splits_tokens = c.sequence_parallel;
    if (tsh_group_size(dp->parent) > 1) dp->level = c.level; /* one rank has nothing to shard */
    /* In a deterministic world every rank computes the same gradients of the whole batch. */
    if (tsh_group_size(dp->parent) == 1 || dp->mesh->world->deterministic) dp->added = TSHI_ADDED_TERMS;
    dp->schedule.weight = c.average ? tshi_parts_share(tshi_group_parts(dp->parent), tsh_group_rank(dp->parent)) : 1;
}

/* True when the parameter's gradients are summed along this axis of the mesh. */
static bool is_summed_along(const tsh_tensor *p, const tsh_mesh *mesh, int axis) {
    return p->mesh == mesh && p->layout[axis].kind == TSH_KIND_REPLICATED;
}

/* In reverse order, as backward reaches them. A tensor that is in the list twice has one slot. */
static void take_parameters(tsh_data_parallel *dp, const tsh_parameters *list) {
    for (int i = list->count - 1; i >= 0; i--) {
        tsh_tensor *p = list->items[i].tensor;
        if (!is_summed_along(p, dp->mesh, dp->schedule.axis) || !tshi_requires_grad(p) || tshi_gradient_schedule_of(p))
            continue;
        tshi_bucket_slot *slot = &dp->slots[dp->count];
        slot->name = list->items[i].name;
        slot->parameter = tshi_tensor_retain(p);
        slot->scope = tshi_reduce_scope_of(dp, p);
        if (slot->scope == TSHI_REDUCE_SHARERS) dp->shared = p->layout[dp->model];
        slot->dp = dp;
        slot->target = (tshi_gradient_target){.ops = &tshi_bucket_target,
                                              .schedule = &dp->schedule,
                                              .sums = 1u << dp->schedule.axis | (slot->scope ? 1u << dp->model : 0)};
        tshi_gradient_attach(p, &slot->target);
        dp->count++;
    }
}

/* Moves the gradients and their elements into the buckets. Cannot fail. */
static void move_gradients(tsh_data_parallel *dp) {
    for (int i = 0; i < dp->count; i++) {
        const tshi_bucket_slot *slot = &dp->slots[i];
        tsh_tensor *to = slot->gradient_slice ? slot->gradient_slice : slot->whole;
        tsh_device *device = dp->mesh->device;
        tshi_gradient *g = slot->parameter->gradient;
        int64_t start = 0, length;
        if (slot->gradient_slice) tshi_slice_range(dp, slot, tsh_group_rank(dp->parent), &start, &length);
        g->stale = !g->value || g->stale;
        if (!g->stale)
            device->ops->copy.within(device, tsh_tensor_local_nbytes(to),
                                     (char *)tshi_data(g->value) + (size_t)start * tsh_dtype_size(to->dtype),
                                     tshi_data(to));
        tshi_tensor_release(g->value);
        g->value = tshi_tensor_retain(to);
    }
}

/* Parameters that all ranks defer alike need no broadcast; otherwise every parameter gets memory now. */
static tsh_status agree_on_deferred(const tsh_parameters *list, tsh_group *group, int axis) {
    uint64_t fingerprint = TSHI_FINGERPRINT;
    char text[96];
    for (int i = 0; i < list->count; i++) {
        const tsh_tensor *p = list->items[i].tensor;
        if (is_summed_along(p, tsh_group_mesh(group), axis))
            fingerprint = tshi_tensor_initial_fingerprint(p, fingerprint);
    }
    snprintf(text, sizeof text, "data_parallel_create: initial values %016llx", (unsigned long long)fingerprint);
    tsh_status status = tshi_group_agree(group, text, TSH_OK);
    if (status != TSH_ERR_MISMATCH) return status;
    status = TSH_OK;
    for (int i = 0; i < list->count && status == TSH_OK; i++) {
        const tsh_tensor *p = list->items[i].tensor;
        if (is_summed_along(p, tsh_group_mesh(group), axis)) status = tshi_tensor_materialize(p);
    }
    return tshi_group_agree(group, "data_parallel_create: memory", status);
}

static tsh_status take_over_values(const tsh_parameters *list, tsh_group *group, int axis) {
    tsh_status status = agree_on_deferred(list, group, axis);
    if (status != TSH_OK) return status;
    for (int i = 0; i < list->count && status == TSH_OK; i++) {
        tsh_tensor *p = list->items[i].tensor;
        if (is_summed_along(p, tsh_group_mesh(group), axis) && !tshi_tensor_initial(p))
            status = tsh_broadcast(group, p, 0);
    }
    /* Keeps a rank from going on, and perhaps failing, before all have the values. */
    return tshi_group_agree(group, "data_parallel_create: values", status);
}

/* Checks that all ranks have the same parameters, and that none has failed. */
static tsh_status agree_on_status(const tsh_data_parallel *dp, tsh_group *group, tsh_status status) {
    char text[160];
    int64_t elements = 0;
    for (int b = 0; b < dp->bucket_count; b++) elements += dp->buckets[b].gradients;
    snprintf(text, sizeof text,
             "data_parallel_create of %d parameters, %lld elements with padding, in %d buckets, level %d%s%s",
             dp->count, (long long)elements, dp->bucket_count, (int)dp->level, dp->model < 0 ? "" : ", and along ",
             dp->model < 0 ? "" : dp->mesh->axis[dp->model].name);
    return tshi_group_agree(group, text, status);
}

/* Takes part in the agreements that peers wait for, on a rank that cannot begin. */
static tsh_status report_creation(tsh_group *group, const tsh_data_parallel_config *config, tsh_status status) {
    if (!group) return status;
    status = tshi_group_agree(group, "data_parallel_create", status);
    bool meshes = config && config->model && tsh_group_rank(group) >= 0;
    return meshes ? tshi_group_agree(tsh_group_mesh(group)->group, "data_parallel_create", status) : status;
}

/* The sums need their own group, because ranks whose steps differ start them between different calls in other
 * groups. */
static tsh_status open_group(tsh_data_parallel *dp, tsh_group *group) {
    int size = tsh_group_size(group),
        *ranks = tshi_calloc(tshi_data_parallel_allocator(dp), (size_t)size, sizeof *ranks);
    for (int i = 0; ranks && i < size; i++) ranks[i] = i;
    tsh_status status = agree_on_status(dp, group, ranks ? TSH_OK : TSH_ERR_MEMORY);
    if (status == TSH_OK) status = tsh_group_create_in(group, ranks, size, &dp->group);
    if (status == TSH_OK && dp->level) status = tsh_group_create_in(group, ranks, size, &dp->gathers);
    dp->scopes[TSHI_REDUCE_COPIES] = dp->group;
    tshi_free(tshi_data_parallel_allocator(dp), ranks);
    return status;
}

static tsh_status make_buckets(tsh_data_parallel *dp, tsh_group *group) {
    tsh_status status = tshi_buckets_create(dp);
    if (status == TSH_OK) status = tshi_values_create(dp);
    return status == TSH_OK ? open_group(dp, group) : agree_on_status(dp, group, status);
}

static tsh_status fill_slots(tsh_data_parallel *dp, const tsh_parameters *list) {
    size_t count = list->count > 0 ? (size_t)list->count : 1;
    dp->slots = tshi_calloc(tshi_data_parallel_allocator(dp), count, sizeof *dp->slots);
    if (!dp->slots) return TSH_ERR_MEMORY;
    dp->buckets = tshi_calloc(tshi_data_parallel_allocator(dp), count, sizeof *dp->buckets);
    if (!dp->buckets) return TSH_ERR_MEMORY;
    take_parameters(dp, list);
    tshi_buckets_assign(dp);
    return TSH_OK;
}

/* A rank outside the mesh has nothing to sum; no other rank waits for it. */
static tsh_status stay_outside(tsh_data_parallel *dp, const tsh_parameters *list, tsh_data_parallel **out) {
    dp->group = dp->parent;
    tsh_status status = dp->level ? fill_slots(dp, list) : TSH_OK;
    dp->bucket_count = 0;
    if (status == TSH_OK) status = tshi_values_outside(dp);
    if (status == TSH_OK)
        *out = dp;
    else
        tsh_data_parallel_destroy(dp);
    return status;
}

tsh_status tsh_data_parallel_create(tsh_tape *tape, tsh_parameters *list, tsh_group *group,
                                    const tsh_data_parallel_config *config, tsh_data_parallel **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "data_parallel_create: out is NULL");
    *out = NULL;
    tsh_status status = check_data_parallel(tape, list, group, config);
    tsh_data_parallel *dp =
        status == TSH_OK ? tshi_calloc(&tsh_world_device(list->world)->allocator, 1, sizeof *dp) : NULL;
    if (!dp) return report_creation(group, config, status == TSH_OK ? TSH_ERR_MEMORY : status);
    dp->mesh = tsh_group_mesh(group);
    dp->parent = group;
    dp->sync = true;
    dp->schedule.ops = &tshi_data_parallel_schedule;
    dp->schedule.axis = tshi_mesh_axis(dp->mesh, group);
    configure(dp, config);
    if (tsh_group_rank(group) < 0) return stay_outside(dp, list, out);
    status = fill_slots(dp, list);
    for (int i = 0; i < dp->count && status == TSH_OK; i++)
        status = tshi_sparse_gradient_spread(dp->slots[i].parameter);
    status = status == TSH_OK ? make_buckets(dp, group) : agree_on_status(dp, group, status);
    if (dp->model >= 0) status = tshi_group_agree(dp->mesh->group, "data_parallel_create: buckets", status);
    if (status == TSH_OK && dp->model >= 0) status = tshi_reduce_scopes_open(dp);
    if (status == TSH_OK && !(config && config->keep_values)) {
        status = take_over_values(list, group, dp->schedule.axis);
    }
    if (status != TSH_OK) {
        tsh_data_parallel_destroy(dp);
        return status;
    }
    move_gradients(dp);
    tshi_values_take_over(dp);
    dp->tape = tape;
    tape->schedule = &dp->schedule;
    *out = dp;
    return TSH_OK;
}

void tsh_data_parallel_destroy(tsh_data_parallel *dp) {
    if (!dp) return;
    const tsh_allocator *allocator = tshi_data_parallel_allocator(dp);
    if (dp->tape) tshi_tape_forget_schedule(dp->tape);
    for (int i = 0; i < dp->count; i++) {
        tshi_bucket_slot *slot = &dp->slots[i];
        tshi_gradient_detach(slot->parameter, &slot->target);
        if (slot->unsummed) slot->parameter->gradient->stale = true;
    }
    tshi_values_destroy(dp);
    if (dp->buckets) tshi_buckets_destroy(dp);
    for (int i = 0; i < dp->count; i++) tshi_tensor_release(dp->slots[i].parameter);
    if (dp->group != dp->parent) tsh_group_destroy(dp->group);
    tsh_group_destroy(dp->scopes[TSHI_REDUCE_MODEL]);
    tsh_group_destroy(dp->scopes[TSHI_REDUCE_SHARERS]);
    tsh_group_destroy(dp->gathers);
    tshi_free(allocator, dp->buckets);
    tshi_free(allocator, dp->slots);
    tshi_free(allocator, dp);
}
