/* Data parallelism: the schedule's life, and waiting for it. */
#include "train/data_parallel.h"

#include <stdio.h>

#define BUCKET_BYTES       ((size_t)25 << 20)
#define FIRST_BUCKET_BYTES ((size_t)1 << 20)

/* --- waiting ------------------------------------------------------------------------------------------------------ */

static bool gathers(const tsh_data_parallel *dp) {
    for (int i = 0; i < dp->count; i++) {
        if (dp->places[i].parameter->grad_unsummed) return true;
    }
    return false;
}

static tsh_status settle(tshi_schedule *schedule) {
    tsh_data_parallel *dp = (tsh_data_parallel *)schedule;
    if (dp->stage == TSHI_UNDER_WAY) {
        tsh_status status = tshi_buckets_wait(dp);
        dp->stage = status == TSH_OK ? TSHI_NO_SUMS : TSHI_BROKEN;
        /* Here alone, perhaps: the tape's reset tells the other ranks. */
        return status != TSH_OK && dp->tape ? tshi_tape_spoil(dp->tape, status, "data_parallel") : status;
    }
    if (dp->stage == TSHI_BROKEN) {
        return tshi_fail(TSH_ERR_STATE, "data_parallel: the sums of gradients have failed; there are none");
    }
    if (!gathers(dp)) return TSH_OK;
    return tshi_fail(TSH_ERR_STATE, "data_parallel: gradients are not summed over ranks yet: the last backward was one "
                                    "without sync (tsh_data_parallel_set_sync)");
}

tsh_status tsh_data_parallel_wait(tsh_data_parallel *dp) {
    return dp ? settle(&dp->schedule) : tshi_fail(TSH_ERR_ARGUMENT, "data_parallel_wait: a schedule is required");
}

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

static tsh_status check_parameter(const tsh_tape *tape, const tsh_mesh *mesh, const tshi_parameter *p) {
    if (p->tensor->mesh != mesh) {
        return tshi_fail(TSH_ERR_ARGUMENT, "data_parallel_create: the group is no axis of the mesh of '%s'", p->name);
    }
    if (!p->tensor->schedule || p->tensor->schedule == tape->schedule) return TSH_OK;
    return tshi_fail(TSH_ERR_STATE, "data_parallel_create: '%s' has another schedule", p->name);
}

static tsh_status check(const tsh_tape *tape, const tsh_parameters *list, const tsh_group *group) {
    if (!tape || !list || !group) {
        return tshi_fail(TSH_ERR_ARGUMENT, "data_parallel_create: a tape, parameters and a group are required");
    }
    if (tape->world != list->world || tape->world != group->world) {
        return tshi_fail(TSH_ERR_ARGUMENT, "data_parallel_create: tape, parameters and group are of several worlds");
    }
    if (tape->schedule) return tshi_fail(TSH_ERR_STATE, "data_parallel_create: the tape has a schedule already");
    tsh_status status = TSH_OK;
    for (int i = 0; i < list->count && status == TSH_OK; i++) {
        status = check_parameter(tape, tsh_group_mesh(group), &list->items[i]);
    }
    return status;
}

static void configure(tsh_data_parallel *dp, const tsh_data_parallel_config *config) {
    const tsh_data_parallel_config c = config ? *config : (tsh_data_parallel_config){0};
    dp->average = c.average;
    dp->bucket_bytes = c.bucket_bytes ? c.bucket_bytes : BUCKET_BYTES;
    dp->first_bucket_bytes = c.first_bucket_bytes ? c.first_bucket_bytes : FIRST_BUCKET_BYTES;
    if (!c.first_bucket_bytes && dp->first_bucket_bytes > dp->bucket_bytes) dp->first_bucket_bytes = dp->bucket_bytes;
    dp->schedule.weight = c.average ? 1.0 / dp->parent->size : 1;
}

/* The last first: backward comes to them first. A tensor that is in the list twice has one place. */
static void take_parameters(tsh_data_parallel *dp, const tsh_parameters *list) {
    for (int i = list->count - 1; i >= 0; i--) {
        tsh_tensor *p = list->items[i].tensor;
        bool replicated = p->layout[dp->schedule.axis].kind == TSH_KIND_REPLICATED;
        if (!p->requires_grad || !replicated || p->schedule) continue;
        p->schedule = &dp->schedule;
        p->place = dp->count;
        dp->places[dp->count++].parameter = tsh_tensor_retain(p);
    }
}

/* Nothing fails from here on. */
static void move_gradients(tsh_data_parallel *dp) {
    for (int i = 0; i < dp->count; i++) {
        tshi_place *place = &dp->places[i];
        tsh_tensor *p = place->parameter, *old = p->grad;
        if (old && !p->grad_stale) {
            p->mesh->device->ops->copy.within(p->mesh->device, tsh_tensor_local_nbytes(old), tshi_data(old),
                                              tshi_data(place->whole));
        } else {
            p->grad_stale = true;
        }
        p->grad = tsh_tensor_retain(place->whole);
        tsh_tensor_release(old);
    }
}

static tsh_status take_over_values(const tsh_parameters *list, tsh_group *group, int axis) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < list->count && status == TSH_OK; i++) {
        tsh_tensor *p = list->items[i].tensor;
        if (p->layout[axis].kind == TSH_KIND_REPLICATED) status = tsh_broadcast(group, p, 0);
    }
    /* Nobody goes on, perhaps to fail, before all have them. */
    return group->ops->agree(group, "data_parallel_create: values", status);
}

/* All ranks have come this far, with the same parameters. */
static tsh_status agree(const tsh_data_parallel *dp, tsh_group *group, tsh_status status) {
    char text[160];
    int64_t elements = 0;
    for (int b = 0; b < dp->bucket_count; b++) elements += dp->buckets[b].gradients;
    snprintf(text, sizeof text, "data_parallel_create of %d parameters, %lld elements with padding, in %d buckets",
             dp->count, (long long)elements, dp->bucket_count);
    return group->ops->agree(group, text, status);
}

/* A rank that cannot even begin: the others wait for it to agree. */
static tsh_status tell(tsh_group *group, tsh_status status) {
    return group ? group->ops->agree(group, "data_parallel_create", status) : status;
}

/* The sums run in a group of their own: ranks whose steps differ start them in between different other calls. */
static tsh_status open_group(tsh_data_parallel *dp, tsh_group *group) {
    int *ranks = tshi_calloc(&dp->world->allocator, (size_t)group->size, sizeof *ranks);
    for (int i = 0; ranks && i < group->size; i++) ranks[i] = i;
    tsh_status status = agree(dp, group, ranks ? TSH_OK : TSH_ERR_MEMORY);
    if (status == TSH_OK) status = tsh_group_create_in(group, ranks, group->size, &dp->group);
    tshi_free(&dp->world->allocator, ranks);
    return status;
}

static tsh_status make_buckets(tsh_data_parallel *dp, tsh_group *group) {
    tsh_status status = tshi_buckets_place(dp);
    if (status != TSH_OK) return status; /* all know */
    status = tshi_buckets_create(dp);
    return status == TSH_OK ? open_group(dp, group) : agree(dp, group, status);
}

static tsh_status fill(tsh_data_parallel *dp, const tsh_parameters *list) {
    size_t count = list->count > 0 ? (size_t)list->count : 1;
    dp->places = tshi_calloc(&dp->world->allocator, count, sizeof *dp->places);
    if (!dp->places) return TSH_ERR_MEMORY;
    dp->buckets = tshi_calloc(&dp->world->allocator, count, sizeof *dp->buckets);
    if (!dp->buckets) return TSH_ERR_MEMORY;
    take_parameters(dp, list);
    tshi_buckets_share_out(dp);
    return TSH_OK;
}

tsh_status tsh_data_parallel_create(tsh_tape *tape, tsh_parameters *list, tsh_group *group,
                                    const tsh_data_parallel_config *config, tsh_data_parallel **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "data_parallel_create: out is NULL");
    *out = NULL;
    tsh_status status = check(tape, list, group);
    tsh_data_parallel *dp = status == TSH_OK ? tshi_calloc(&list->world->allocator, 1, sizeof *dp) : NULL;
    if (!dp) return tell(group, status == TSH_OK ? TSH_ERR_MEMORY : status);
    dp->world = list->world;
    dp->mesh = tsh_group_mesh(group);
    dp->parent = group;
    dp->sync = true;
    dp->schedule.ops = &tshi_data_parallel_ops;
    dp->schedule.settle = settle;
    dp->schedule.axis = tshi_mesh_axis(dp->mesh, group);
    configure(dp, config);
    status = fill(dp, list);
    status = status == TSH_OK ? make_buckets(dp, group) : agree(dp, group, status);
    if (status == TSH_OK && !(config && config->keep_values)) {
        status = take_over_values(list, group, dp->schedule.axis);
    }
    if (status != TSH_OK) {
        tsh_data_parallel_destroy(dp);
        return status;
    }
    move_gradients(dp);
    dp->tape = tape;
    tape->schedule = &dp->schedule;
    *out = dp;
    return TSH_OK;
}

/* Copies of parameters on the tape know the schedule too. */
static void leave_tape(tsh_data_parallel *dp) {
    if (!dp->tape) return;
    dp->tape->schedule = NULL;
    for (int i = 0; i < dp->tape->owned_count; i++) dp->tape->owned[i]->schedule = NULL;
}

void tsh_data_parallel_destroy(tsh_data_parallel *dp) {
    if (!dp) return;
    const tsh_allocator *allocator = &dp->world->allocator;
    bool bad = settle(&dp->schedule) != TSH_OK;
    leave_tape(dp);
    for (int i = 0; i < dp->count; i++) {
        tsh_tensor *p = dp->places[i].parameter;
        p->schedule = NULL;
        if (bad && p->grad_unsummed) p->grad_stale = true;
        p->grad_unsummed = false;
    }
    if (dp->buckets) tshi_buckets_destroy(dp);
    for (int i = 0; i < dp->count; i++) tsh_tensor_release(dp->places[i].parameter);
    if (dp->group != dp->parent) tsh_group_destroy(dp->group);
    tshi_free(allocator, dp->buckets);
    tshi_free(allocator, dp->places);
    tshi_free(allocator, dp);
}
