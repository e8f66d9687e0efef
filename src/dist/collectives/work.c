/* Asynchronous calls. Each group has a queue of collectives, the first of which is in flight, and a list of messages,
 * which are all in flight. There is no progress thread: a wait for one call advances all of them. */
#include "base/cpu.h"
#include "dist/collectives/collectives.h"
#include "dist/collectives/instrument.h"

#include <stdio.h>
#include <string.h>

/* Polls of a work without a pause between them. */
#define EAGER_POLLS 64

/* --- lifetime ----------------------------------------------------------------------------------------------------- */

static tsh_tensor *hold(const tsh_tensor *tensor) {
    return tensor ? tshi_tensor_retain((tsh_tensor *)(uintptr_t)tensor) : NULL;
}

void tshi_work_set(tsh_work *work, tsh_group *group, const tshi_comm_call *call) {
    work->group = group;
    work->backward = group->world->device->place.backward;
    work->call = *call;
    work->sender = TSH_ANY_RANK;
    work->message[0] = '\0';
    if (group->world->device->trace) work->number = tshi_traced_number(group, call);
    if (call->failed != TSH_OK) snprintf(work->message, sizeof work->message, "%s", tsh_error_message());
}

tsh_work *tshi_work_new(tsh_group *group, const tshi_comm_call *call, const tsh_tensor *in, const tsh_tensor *out) {
    size_t n = (size_t)group->size, counts = n * sizeof(int64_t);
    tsh_work *work = tshi_pool_take(&group->works, &group->world->allocator, sizeof(tsh_work) + 2 * counts);
    if (!work) return NULL;
    tshi_work_set(work, group, call);
    work->counts = (int64_t *)(void *)(work + 1);
    const int64_t *first = call->counts ? call->counts : call->in_counts;
    if (call->failed == TSH_OK && first) memcpy(work->counts, first, counts);
    if (call->failed == TSH_OK && call->out_counts) memcpy(work->counts + n, call->out_counts, counts);
    work->call.counts = call->counts ? work->counts : NULL;
    work->call.in_counts = call->in_counts ? work->counts : NULL;
    work->call.out_counts = call->out_counts ? work->counts + n : NULL;
    work->in = call->failed == TSH_OK ? hold(in) : NULL;
    work->out = call->failed == TSH_OK ? hold(out) : NULL;
    return work;
}

static void work_free(tsh_work *work) {
    tshi_tensor_release(work->in);
    tshi_tensor_release(work->out);
    tshi_pool_give(&work->group->works, work);
}

/* --- parts -------------------------------------------------------------------------------------------------------- */

void tshi_parts_copy(const tsh_group *group, const tsh_tensor *whole, tsh_tensor *const *parts, bool to_parts) {
    tsh_device *device = group->world->device;
    char *at = whole->storage == parts[0]->storage ? NULL : tshi_data(whole);
    for (int i = 0; at && i < group->size; i++) {
        size_t bytes = tsh_tensor_local_nbytes(parts[i]);
        char *part = to_parts ? tshi_data_to_write(parts[i]) : tshi_data(parts[i]);
        if (bytes) device->ops->copy.within(device, bytes, to_parts ? at : part, to_parts ? part : at);
        at += bytes;
    }
}

void tshi_parts_release(const tsh_group *group, tsh_tensor **parts) {
    for (int i = 0; parts && i < group->size; i++) tshi_tensor_release(parts[i]);
    tshi_free(&group->world->allocator, parts);
}

void tshi_work_spread(tsh_work *work) {
    if (!work->parts) return;
    if (work->status == TSH_OK) tshi_parts_copy(work->group, work->out, work->parts, true);
    tshi_parts_release(work->group, work->parts);
    work->parts = NULL;
}

/* --- moving on ---------------------------------------------------------------------------------------------------- */

void tshi_work_end(tsh_work *work, tsh_status status) {
    work->done = true;
    work->status = status;
    if (status != TSH_OK) snprintf(work->message, sizeof work->message, "%s", tsh_error_message());
}

/* A blocking message has no counts of its own. */
static void begin_event(tsh_work *work) {
    work->event = tshi_traced_call(work->group, &work->call, work->number, !work->counts);
}

static void start(tsh_work *work) {
    tsh_group *group = work->group;
    const tshi_group_ops *ops = group->ops;
    work->started = true;
    if (group->world->device->trace && !work->event) begin_event(work);
    if (work->call.failed != TSH_OK) tshi_fail(work->call.failed, "%s", work->message);
    if (tshi_call_is_staged(group, &work->call)) tshi_stage_open(group, &work->call, &work->stage);
    tsh_status status = ops->start ? ops->start(work) : ops->run(group, &work->call);
    if (!ops->start || status != TSH_OK) tshi_work_end(work, status);
}

/* Lets the backend do what it can. The lists of works are being walked: a backend that waits in there advances none. */
static void step(tsh_work *work) {
    tsh_world *world = work->group->world;
    tsh_memory_purpose before = tshi_device_purpose(world->host, TSH_MEMORY_COMMUNICATION);
    bool moving = world->moving;
    world->moving = true;
    if (!work->started) start(work);
    if (!work->done) work->group->ops->progress(work);
    world->moving = moving;
    world->host->purpose = before;
}

/* Starts a work that no list has yet, so that a backend which waits in there, for a communicator or for room in its
 * queue, advances all works before it. */
static void start_in_order(tsh_work *work) {
    tsh_device *host = work->group->world->host;
    tsh_memory_purpose before = tshi_device_purpose(host, TSH_MEMORY_COMMUNICATION);
    start(work);
    host->purpose = before;
}

/* The record counts a call where it was made (forward or backward), not where it ended. A blocking message
 * has no counts of its own. */
static void count(const tsh_work *work) {
    tshi_place *place = &work->group->world->device->place;
    bool now = place->backward;
    place->backward = work->backward;
    tshi_group_count(work->group, &work->call, work->counts != NULL);
    place->backward = now;
}

/* Ends a work that has left the group's queue or list. No work progresses meanwhile, not even while a device waits for
 * a copy: a caller may be walking the list. */
static void retire(tsh_work *work) {
    tsh_world *world = work->group->world;
    bool moving = world->moving;
    world->moving = true;
    work->linked = false;
    work->next = NULL;
    world->pending--;
    if (work->state && work->group->ops->drop) work->group->ops->drop(work);
    if (work->stage.in || work->stage.out) tshi_stage_close(work->group, &work->stage, work->status);
    tshi_work_spread(work);
    world->moving = moving;
    if (work->event) tshi_traced_end(work);
    if (work->status == TSH_OK) count(work);
    if (work->orphan) work_free(work);
}

static void move_queue(tsh_group *group) {
    tsh_work *work;
    while ((work = group->queue) != NULL) {
        if (!work->done) step(work);
        if (!work->done) return;
        group->queue = work->next;
        if (!group->queue) group->queue_end = NULL;
        retire(work);
    }
}

/* Progress of one receive may complete other receives, so that works which are done leave the list afterwards. */
static void move_messages(tsh_group *group) {
    bool any = false;
    for (tsh_work *work = group->messages; work; work = work->next) {
        if (!work->done) step(work);
        any = any || work->done;
    }
    if (!any) return;
    tsh_work **link = &group->messages;
    while (*link) {
        tsh_work *work = *link;
        if (!work->done) {
            link = &work->next;
            continue;
        }
        *link = work->next;
        retire(work);
    }
}

static void move_group(tsh_group *group) {
    if (group->queue) move_queue(group);
    if (group->messages) move_messages(group);
}

void tshi_world_progress(tsh_world *world) {
    if (world->moving) return;
    for (tsh_group *g = world->groups; g && world->pending > 0; g = g->next) move_group(g);
}

static void link_last(tsh_work **link, tsh_work *work) {
    while (*link) link = &(*link)->next;
    *link = work;
}

void tshi_work_enqueue(tsh_work *work) {
    tsh_group *group = work->group;
    work->linked = true;
    work->next = NULL;
    group->world->pending++;
    if (tshi_is_message(work->call.op)) {
        link_last(&group->messages, work);
        move_messages(group);
        return;
    }
    if (group->ops->in_order) start_in_order(work);
    if (group->queue_end)
        group->queue_end->next = work;
    else
        group->queue = work;
    group->queue_end = work;
    move_queue(group);
}

bool tshi_work_quick(tsh_work *work) {
    tsh_group *group = work->group;
    tsh_device *host = group->world->host;
    if (!group->ops->quick || group->world->pending || tshi_call_is_staged(group, &work->call)) return false;
    tsh_memory_purpose before = tshi_device_purpose(host, TSH_MEMORY_COMMUNICATION);
    if (group->world->device->trace) begin_event(work);
    bool ran = group->ops->quick(work);
    host->purpose = before;
    if (!ran) return false;
    if (work->event) tshi_traced_end(work);
    if (work->status == TSH_OK) tshi_group_count(group, &work->call, false);
    return true;
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

/* The GPU waits in place of the host for works that only the GPU has still to finish, and for those queued before. */
static void join(tsh_work *work) {
    tsh_group *group = work->group;
    for (tsh_work *w = tshi_is_message(work->call.op) ? work : group->queue; w; w = w == work ? NULL : w->next) {
        if (!w->done) group->ops->join(w);
    }
    if (work->done) move_group(group);
}

/* The work, or for NULL one of the group's queue, is still to be waited for. */
static inline bool is_awaited(const tsh_group *group, const tsh_work *work) {
    return work ? work->linked : group->queue != NULL;
}

/* Sleeps, and fails what is waited for when the backend says so; the backend fails everything else by itself. What is
 * waited for may have ended in the backend's hands. */
static void nap(tsh_group *group, tsh_work *work, double since) {
    tsh_status status = group->ops->nap ? group->ops->nap(group, work, since) : TSH_OK;
    if (status == TSH_OK || !is_awaited(group, work)) return;
    tsh_work *first = work ? work : group->queue;
    if (!first->done) tshi_work_end(first, status);
}

void tshi_world_submit(tsh_world *world) {
    if (world->data->submit) world->data->submit(world, NULL);
}

/* Waits until the work, which is linked, is done, or for NULL until the group's queue is empty. joins: see
 * tshi_work_join. */
static void wait_while(tsh_group *group, tsh_work *work, bool joins) {
    tsh_world *world = group->world;
    double since = 0;
    if (work && group->ops->submit) group->ops->submit(world, work);
    for (int polls = 0; is_awaited(group, work); polls++) {
        if (world->pending == 1)
            move_group(group);
        else
            tshi_world_progress(world);
        if (joins && work->linked && group->ops->join) join(work);
        if (!is_awaited(group, work)) break;
        if (polls < world->spins) {
            if (polls > EAGER_POLLS) tshi_cpu_pause();
            continue;
        }
        if (since == 0) since = tshi_clock();
        nap(group, work, since);
    }
    if (since != 0 && group->ops->awake) group->ops->awake(group);
}

tsh_status tshi_work_finish(tsh_work *work) {
    if (work->linked) wait_while(work->group, work, false);
    return work->status == TSH_OK ? TSH_OK : tshi_fail(work->status, "%s", work->message);
}

tsh_status tshi_work_join(tsh_work *work) {
    if (work->linked) wait_while(work->group, work, true);
    return tshi_work_finish(work);
}

void tshi_message_cancel(tsh_work *work, const char *why) {
    if (!work) return;
    if (work->linked) {
        tsh_work **link = &work->group->messages;
        while (*link != work) link = &(*link)->next;
        *link = work->next;
        if (!work->done) tshi_work_end(work, tshi_fail(TSH_ERR_STATE, "%s", why));
        retire(work);
    }
    work_free(work);
}

void tshi_group_drain(tsh_group *group, tsh_status failed) {
    tshi_failure before;
    if (!group->queue) return;
    tshi_failure_keep(&before, failed);
    wait_while(group, NULL, false);
    tshi_failure_report(&before);
}

tsh_status tshi_group_run(tsh_group *group, const tshi_comm_call *call) {
    bool staged = tshi_call_is_staged(group, call);
    if (!group->ops->in_order) tshi_group_drain(group, call->failed);
    return staged ? tshi_staged_run(group, call) : group->ops->run(group, call);
}

static void forget(tsh_work *first, const char *why) {
    while (first) {
        tsh_work *work = first;
        first = work->next;
        if (!work->done) {
            tshi_work_end(work, tshi_fail(TSH_ERR_STATE, "%s: %s", tsh_collective_name(work->call.op), why));
        }
        retire(work);
    }
}

void tshi_group_forget(tsh_group *group, const char *why) {
    tsh_work *queue = group->queue, *messages = group->messages;
    group->queue = group->queue_end = group->messages = NULL;
    forget(queue, why);
    forget(messages, why);
}

/* --- the calls ---------------------------------------------------------------------------------------------------- */

tsh_status tsh_work_test(tsh_work *work, bool *done) {
    if (!work || !done) return tshi_fail(TSH_ERR_ARGUMENT, "work_test: work and done are required");
    tsh_world *world = work->group->world;
    tsh_status status = tshi_owner_enter(&world->owner, "work_test");
    if (status != TSH_OK) return status;
    uint64_t start = tshi_ticks();
    if (work->linked && work->group->ops->submit) work->group->ops->submit(world, work);
    if (work->linked) tshi_world_progress(world);
    work->group->ticks += tshi_ticks() - start;
    *done = !work->linked;
    tshi_owner_leave(&world->owner);
    return *done ? tshi_work_finish(work) : TSH_OK;
}

static tsh_status wait_for(tsh_work *work, bool joins) {
    tsh_world *world = work->group->world;
    tsh_status status = tshi_owner_enter(&world->owner, "work_wait");
    if (status != TSH_OK) return status;
    uint64_t start = tshi_ticks();
    tshi_trace_event *wait = world->device->trace ? tshi_traced_wait(work) : NULL;
    status = joins ? tshi_work_join(work) : tshi_work_finish(work);
    if (wait) tshi_traced_waited(work, wait);
    work->group->ticks += tshi_ticks() - start;
    tshi_owner_leave(&world->owner);
    return status;
}

tsh_status tsh_work_wait(tsh_work *work) {
    if (!work) return tshi_fail(TSH_ERR_ARGUMENT, "work_wait: work is NULL");
    return wait_for(work, false);
}

tsh_status tshi_work_wait_queued(tsh_work *work) {
    return wait_for(work, true);
}

void tsh_work_release(tsh_work *work) {
    if (!work || tshi_owner_refuses(&work->group->world->owner, "work_release")) return;
    if (work->linked) tsh_work_wait(work);
    work_free(work);
}

int tsh_work_sender(const tsh_work *work) {
    return work && !work->linked && work->status == TSH_OK ? work->sender : TSH_ANY_RANK;
}
