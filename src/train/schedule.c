/* What a backward does with the schedule: gradients into buckets, sums started as buckets fill. */
#include "train/data_parallel.h"

static tsh_data_parallel *of(tshi_schedule *schedule) {
    return (tsh_data_parallel *)schedule;
}

static tsh_status check_loss(const tsh_data_parallel *dp, const tsh_tensor *loss) {
    char text[160];
    const char *axis = dp->mesh->axis[dp->schedule.axis].name;
    if (!dp->average) return TSH_OK;
    if (loss->mesh == dp->mesh && loss->layout[dp->schedule.axis].kind == TSH_KIND_LOCAL) return TSH_OK;
    return tshi_fail(TSH_ERR_LAYOUT,
                     "gradients averaged over axis %s want a LOCAL loss on each of its ranks, this one is %s (without "
                     "tsh_data_parallel_config.average gradients are sums)",
                     axis, tsh_tensor_describe(loss, text, sizeof text));
}

static tshi_place *place_of(tsh_data_parallel *dp, const tsh_tensor *x) {
    return x->schedule == &dp->schedule && x->node < 0 ? &dp->places[x->place] : NULL;
}

/* How many nodes of this backward may add to each gradient: those that nobody can reach are complete from the start. */
static void count_uses(tsh_data_parallel *dp, int last) {
    for (int i = 0; i < dp->count; i++) dp->places[i].uses = 0;
    for (int b = 0; b < dp->bucket_count; b++) dp->buckets[b].left = 0;
    for (int n = 0; n <= last; n++) {
        const tshi_node *node = &dp->tape->nodes[n];
        for (int i = 0; i < node->inputs && !node->used; i++) {
            tshi_place *place = place_of(dp, node->in[i]);
            if (place && place->uses++ == 0) dp->buckets[place->bucket].left++;
        }
    }
}

static tsh_status begin(tshi_schedule *schedule, const tsh_tensor *loss) {
    tsh_data_parallel *dp = of(schedule);
    tsh_status status = check_loss(dp, loss);
    if (dp->stage == TSHI_BROKEN) tshi_buckets_forget(dp);
    if (status == TSH_OK && dp->stage == TSHI_UNDER_WAY) status = schedule->settle(schedule);
    if (status != TSH_OK) return status;
    count_uses(dp, loss->node);
    dp->stage = TSHI_BACKWARD;
    dp->started = dp->tested = 0;
    return TSH_OK;
}

/* A gradient that is the same on all ranks is in the sum once. */
static tsh_tensor *surplus(tshi_place *place, double *beta) {
    const tsh_tensor *p = place->parameter;
    *beta = place->surplus ? 1 : 0;
    if (!place->surplus) tshi_tensor_new(p->mesh, p->dtype, &p->shape, p->layout, &place->surplus);
    return place->surplus;
}

static tsh_tensor *gradient(tshi_schedule *schedule, int index, bool term, double *beta) {
    tsh_data_parallel *dp = of(schedule);
    tshi_place *place = &dp->places[index];
    tshi_place_open(dp, place);
    if (!term && dp->group->rank != 0) return surplus(place, beta);
    *beta = place->parameter->grad_stale ? 0 : 1;
    place->parameter->grad_stale = false;
    return term ? place->term : place->whole;
}

/* In one order on all ranks, whatever is complete first. */
static tsh_status start_complete(tsh_data_parallel *dp) {
    tsh_status status = TSH_OK;
    while (status == TSH_OK && dp->started < dp->bucket_count && dp->buckets[dp->started].left == 0) {
        status = tshi_bucket_start(dp, &dp->buckets[dp->started++]);
    }
    return status;
}

/* Calls that do not wait go on inside calls of the library: this one, between two nodes. */
static tsh_status push_on(tsh_data_parallel *dp) {
    bool done = true;
    tsh_status status = TSH_OK;
    while (status == TSH_OK && done && dp->tested < dp->started) {
        tsh_work *work = dp->buckets[dp->tested].work;
        if (work) status = tsh_work_test(work, &done);
        if (done) dp->tested++;
    }
    return status;
}

static tsh_status passed(tshi_schedule *schedule, const tshi_node *node) {
    tsh_data_parallel *dp = of(schedule);
    for (int i = 0; i < node->inputs; i++) {
        tshi_place *place = place_of(dp, node->in[i]);
        if (place && --place->uses == 0) dp->buckets[place->bucket].left--;
    }
    if (!dp->sync) return TSH_OK;
    tsh_status status = start_complete(dp);
    return status == TSH_OK ? push_on(dp) : status;
}

static tsh_status end(tshi_schedule *schedule, tsh_status status) {
    tsh_data_parallel *dp = of(schedule);
    if (status == TSH_OK && dp->sync) status = start_complete(dp);
    dp->stage = status != TSH_OK ? TSHI_BROKEN : dp->sync ? TSHI_UNDER_WAY : TSHI_NO_SUMS;
    return status;
}

static void forget(tshi_schedule *schedule) {
    tshi_buckets_forget(of(schedule));
    of(schedule)->stage = TSHI_NO_SUMS;
}

static void detach(tshi_schedule *schedule) {
    of(schedule)->tape = NULL;
}

const tshi_schedule_ops tshi_data_parallel_ops = {begin, gradient, passed, end, forget, detach};
