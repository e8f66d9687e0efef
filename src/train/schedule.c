/* Data parallelism during backward: adds gradients to buckets, and starts their sums as they fill. */
#include "train/bucket.h"
#include "train/optimizer.h"

static bool any_unsummed(const tsh_data_parallel *dp) {
    for (int i = 0; i < dp->count; i++) {
        if (dp->slots[i].unsummed) return true;
    }
    return false;
}

static tsh_status check_sums(const tsh_data_parallel *dp) {
    if (dp->failed) {
        return tshi_fail(TSH_ERR_STATE,
                         "data_parallel: the sums of gradients have failed, so that there are no gradients");
    }
    if (!any_unsummed(dp)) return TSH_OK;
    return tshi_fail(TSH_ERR_STATE, "data_parallel: gradients are not summed over ranks yet: the last backward ran "
                                    "without sync (tsh_data_parallel_set_sync)");
}

/* --- a slot ------------------------------------------------------------------------------------------------------- */

/* True when x, the parameter or a copy of it, is this rank's own along an axis of the sum. */
static bool is_term(const tshi_bucket_slot *slot, const tsh_tensor *x) {
    for (int a = 0; a < x->mesh->axes; a++) {
        if (slot->target.sums >> a & 1u && tshi_layout_is_own(x->layout[a])) return true;
    }
    return false;
}

/* Notes that a gradient of x, the parameter or a copy of it, is added. */
static void note_addition(tsh_data_parallel *dp, const tsh_tensor *x) {
    if (tshi_layout_is_own(x->layout[dp->schedule.axis]))
        dp->added = TSHI_ADDED_TERMS;
    else if (dp->added == TSHI_ADDED_NOTHING)
        dp->added = TSHI_ADDED_THE_SAME;
}

/* Warns of a REPLICATED batch, which counts as the first rank's, whatever other ranks have written to it. */
static void warn_of_common_batch(tsh_data_parallel *dp) {
    const char *axis = dp->mesh->axis[dp->schedule.axis].name;
    if (dp->added != TSHI_ADDED_THE_SAME) return;
    dp->added = TSHI_ADDED_TERMS;
    if (dp->mesh->member != 0) return;
    tshi_log(
        &dp->mesh->world->log, TSH_LOG_WARNING,
        "backward: no gradient is a sum over axis %s, along which a tsh_data_parallel adds gradients: its %d ranks "
        "have computed the same. Are the inputs REPLICATED along %s, where each rank has a batch of its own "
        "(SHARD(0), or LOCAL)?",
        axis, dp->mesh->axis[dp->schedule.axis].size, axis);
}

/* True when this rank contributes the gradient of x: it is the first along each axis on whose ranks x is the same. */
static bool is_own_term(const tshi_bucket_slot *slot, const tsh_tensor *x) {
    for (int a = 0; a < x->mesh->axes; a++) {
        int first = 0, index = x->mesh->axis[a].index;
        if (!(slot->target.sums >> a & 1u) || tshi_layout_is_own(x->layout[a])) continue;
        if (x->layout[a].sharing) tshi_layout_sharers(&x->layout[a], tshi_axis_parts(&x->mesh->axis[a]), index, &first);
        if (index != first) return false;
    }
    return true;
}

static tsh_tensor *slot_memory(tshi_gradient_target *target, const tsh_tensor *x, double *beta) {
    tshi_bucket_slot *slot = (tshi_bucket_slot *)target;
    tsh_data_parallel *dp = slot->dp;
    if (tsh_group_rank(dp->group) < 0) { /* outside the mesh gradients are empty, but exist for later calls */
        slot->parameter->gradient->stale = false;
        *beta = 1;
        return slot->gradient_slice;
    }
    note_addition(dp, x);
    const tsh_tensor *p = slot->parameter, *w = slot->whole;
    bool term = is_term(slot, x);
    if (tshi_bucket_slot_open(dp, slot) != TSH_OK) return NULL;
    /* Gradients that are the same on all ranks are added to each rank's slice call by call, so that sums are rounded as
     * on one rank. */
    bool keeps = slot->gradient_slice && !term && slot->added != TSHI_ADDED_TERMS;
    if (slot->added == TSHI_ADDED_THE_SAME && !keeps && slot->gradient_slice) tshi_sharded_keep_own(dp, slot);
    if (slot->gradient_slice) slot->added = keeps ? TSHI_ADDED_THE_SAME : TSHI_ADDED_TERMS;
    if (!keeps && !is_own_term(slot, x)) {
        *beta = slot->discarded ? 1 : 0;
        if (!slot->discarded) tshi_tensor_new(p->mesh, w->dtype, &w->shape, w->layout, &slot->discarded);
        return slot->discarded;
    }
    *beta = p->gradient->stale ? 0 : 1;
    p->gradient->stale = false;
    return term ? slot->term : slot->whole;
}

static void slot_complete(tshi_gradient_target *target) {
    const tshi_bucket_slot *slot = (const tshi_bucket_slot *)target;
    slot->dp->buckets[slot->bucket].incomplete--;
}

/* A failed step leaves no gradients, not even those whose sums were already done. */
static tsh_status check_slot(const tshi_gradient_target *target) {
    const tshi_bucket_slot *slot = (const tshi_bucket_slot *)target;
    return slot->unsummed || slot->dp->failed ? check_sums(slot->dp) : TSH_OK;
}

const tshi_target_ops tshi_bucket_target = {.memory = slot_memory, .complete = slot_complete, .check = check_slot};

/* --- a backward --------------------------------------------------------------------------------------------------- */

static tsh_data_parallel *data_parallel_of(tshi_gradient_schedule *schedule) {
    return (tsh_data_parallel *)schedule;
}

static tsh_status check_loss_axis(const tsh_data_parallel *dp, const tsh_tensor *loss) {
    if (!dp->average) return TSH_OK;
    if (loss->mesh == dp->mesh && loss->layout[dp->schedule.axis].kind == TSH_KIND_LOCAL) return TSH_OK;
    return tshi_fail(TSH_ERR_LAYOUT,
                     "to average gradients over axis %s, the loss must be LOCAL on each of its ranks; it is %s "
                     "(without tsh_data_parallel_config.average gradients are summed)",
                     dp->mesh->axis[dp->schedule.axis].name, TSHI_TENSOR_TEXT(loss));
}

/* Counts each bucket's gradients that calls of this backward will add to; the others are complete. */
static void count_incomplete(tsh_data_parallel *dp) {
    for (int b = 0; b < dp->bucket_count; b++) dp->buckets[b].incomplete = 0;
    for (int i = 0; i < dp->count; i++) {
        tshi_bucket_slot *slot = &dp->slots[i];
        int *incomplete = &dp->buckets[slot->bucket].incomplete;
        *incomplete += slot->parameter->gradient->uses > 0;
        if (slot->target.whole) *incomplete += slot->target.whole->gradient->uses > 0;
    }
}

static tsh_status schedule_begin(tshi_gradient_schedule *schedule, const tsh_tensor *loss) {
    tsh_data_parallel *dp = data_parallel_of(schedule);
    tsh_status status = check_loss_axis(dp, loss);
    if (dp->failed) tshi_buckets_drop(dp);
    if (status != TSH_OK) return status;
    if (dp->sync) status = tshi_compare_inputs(dp, loss);
    if (status == TSH_OK) status = tshi_values_begin_backward(dp);
    if (status != TSH_OK) return status;
    count_incomplete(dp);
    dp->failed = false;
    dp->started = dp->tested = dp->finished = 0;
    return TSH_OK;
}

/* Starts sums in the same order on all ranks, whichever bucket is complete first; at most one of sharded buckets at a
 * time, because it takes memory. */
static tsh_status start_complete(tsh_data_parallel *dp) {
    tsh_status status = TSH_OK;
    while (status == TSH_OK && dp->started < dp->bucket_count && dp->buckets[dp->started].incomplete == 0) {
        if (dp->level) status = tshi_buckets_finish(dp, dp->started);
        if (status == TSH_OK) status = tshi_bucket_start(dp, &dp->buckets[dp->started++]);
    }
    return status;
}

/* Asynchronous calls progress only inside library calls: tsh_work_test is one. */
static tsh_status schedule_advance(tshi_gradient_schedule *schedule) {
    tsh_data_parallel *dp = data_parallel_of(schedule);
    bool done = true;
    if (!dp->sync) return TSH_OK;
    tsh_status status = start_complete(dp);
    while (status == TSH_OK && done && dp->tested < dp->started) {
        tsh_work *work = dp->buckets[dp->tested].work;
        if (work) status = tsh_work_test(work, &done);
        if (done) dp->tested++;
    }
    return status;
}

static tsh_status schedule_end(tshi_gradient_schedule *schedule, tsh_status status) {
    tsh_data_parallel *dp = data_parallel_of(schedule);
    if (status == TSH_OK && dp->sync) status = start_complete(dp);
    if (status == TSH_OK) warn_of_common_batch(dp);
    tshi_values_end_backward(dp);
    /* If the wait fails, only this rank may have failed: tsh_tape_reset reports it to the others. */
    if (status == TSH_OK && dp->sync) status = tshi_buckets_finish(dp, dp->bucket_count);
    dp->failed = status != TSH_OK;
    return status;
}

static void schedule_drop(tshi_gradient_schedule *schedule) {
    tshi_values_drop(data_parallel_of(schedule));
    tshi_buckets_drop(data_parallel_of(schedule));
    data_parallel_of(schedule)->failed = false;
}

static void schedule_detach(tshi_gradient_schedule *schedule) {
    data_parallel_of(schedule)->tape = NULL;
}

const tshi_schedule_ops tshi_data_parallel_schedule = {.begin = schedule_begin,
                                                       .advance = schedule_advance,
                                                       .end = schedule_end,
                                                       .drop = schedule_drop,
                                                       .detach = schedule_detach};
