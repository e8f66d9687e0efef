/* What is kept of calls: the counters of their group, the record of a run, and the events of a trace. */
#include "dist/collectives/instrument.h"
#include "device/record.h"
#include "dist/collectives/collectives.h"

#include <stdio.h>
#include <string.h>

static const char *axis_in(const tsh_mesh *mesh, const tsh_group *group) {
    for (int a = 0; mesh && a < mesh->axes; a++) {
        if (mesh->axis[a].group == group) return mesh->axis[a].name;
    }
    return NULL;
}

const char *tshi_group_axis(const tsh_group *group) {
    size_t bytes = (size_t)group->size * sizeof *group->ranks;
    const tsh_group *other = group->mesh == &group->own_mesh ? group->world->groups : NULL;
    for (; other; other = other->next) {
        bool same = other->mesh != &other->own_mesh && other->size == group->size;
        if (same && axis_in(other->mesh, other) && !memcmp(other->ranks, group->ranks, bytes)) {
            return axis_in(other->mesh, other);
        }
    }
    const char *own = axis_in(group->mesh, group);
    return own ? own : "group";
}

/* --- counters and the record of a run ----------------------------------------------------------------------------- */

static uint64_t ring_bytes(const tsh_group *group, const tshi_comm_call *call) {
    uint64_t p = (uint64_t)group->size, bytes = (uint64_t)call->count * tsh_dtype_size(call->dtype);
    return tshi_collectives[call->op].ring * (bytes - bytes / p - (bytes % p != 0));
}

static uint64_t sent_bytes(const tsh_group *group, const tshi_comm_call *call) {
    int64_t sent = call->op == TSH_COLLECTIVE_SEND ? call->count : 0;
    if (call->in_counts) sent = tshi_sum(call->in_counts, group->size) - call->in_counts[group->rank];
    return (uint64_t)sent * tsh_dtype_size(call->dtype);
}

static void record_call(const tsh_group *group, const tshi_comm_call *call, uint64_t bytes, bool early) {
    const tsh_device *device = group->world->device;
    tshi_record_call entry = {.kind = TSHI_RECORD_COLLECTIVE,
                              .dtype = call->dtype,
                              .backward = device->place.backward,
                              .early = early,
                              .size = {group->size, call->count * (int64_t)tsh_dtype_size(call->dtype)}};
    snprintf(entry.name, sizeof entry.name, "%s", tsh_collective_name(call->op));
    snprintf(entry.axis, sizeof entry.axis, "%s", tshi_group_axis(group));
    tshi_record_add(device->record, &entry, 0, bytes);
}

void tshi_group_count_bytes(tsh_group *group, const tshi_comm_call *call, uint64_t bytes, bool early) {
    group->stats.calls[call->op]++;
    group->stats.bytes[call->op] += bytes;
    if (group->world->device->record && group->size > 1) record_call(group, call, bytes, early);
}

void tshi_group_count(tsh_group *group, const tshi_comm_call *call, bool early) {
    bool ring = tshi_collectives[call->op].ring != 0;
    uint64_t bytes = 0;
    if (!ring)
        bytes = sent_bytes(group, call);
    else if (call->count)
        bytes = ring_bytes(group, call);
    tshi_group_count_bytes(group, call, bytes, early);
}

/* --- events of a trace -------------------------------------------------------------------------------------------- */

/* The group's entry in the trace, made if there is none; NULL without memory. */
static tshi_trace_group *group_of(tsh_group *group) {
    tshi_trace_file *trace = group->world->device->trace;
    if (!group->traced) {
        group->traced = tshi_trace_add_group(trace, tshi_group_axis(group), group->ranks, group->size);
    }
    return group->traced ? &trace->groups[group->traced - 1] : NULL;
}

static bool is_traced(const tsh_group *group) {
    return group->size > 1 && group->rank >= 0;
}

int64_t tshi_traced_number(tsh_group *group, const tshi_comm_call *call) {
    tshi_trace_group *g = is_traced(group) ? group_of(group) : NULL;
    if (!g || call->op == TSH_COLLECTIVE_RECV) return 0;
    if (call->op != TSH_COLLECTIVE_SEND) return ++g->collectives;
    return call->root >= 0 && call->root < group->size ? ++g->messages[call->root] : 0;
}

static tshi_trace_event *open_call(tsh_group *group, tshi_trace_kind kind, const char *name) {
    const tsh_device *device = group->world->device;
    uint32_t number = tshi_trace_name(device->trace, name);
    tshi_trace_event *event = tshi_trace_open(device->trace, kind);
    event->name = number;
    event->group = group->traced;
    event->flags = device->place.backward ? TSHI_TRACE_BACKWARD : 0;
    return event;
}

static int64_t bytes_of(const tsh_group *group, const tshi_comm_call *call) {
    int64_t count = call->in_counts ? tshi_sum(call->in_counts, group->size) : call->count;
    return count * (int64_t)tsh_dtype_size(call->dtype);
}

tshi_trace_event *tshi_traced_call(tsh_group *group, const tshi_comm_call *call, int64_t number, bool blocks) {
    tshi_trace_kind kind = call->op == TSH_COLLECTIVE_SEND   ? TSHI_TRACE_SEND
                           : call->op == TSH_COLLECTIVE_RECV ? TSHI_TRACE_RECV
                                                             : TSHI_TRACE_COLLECTIVE;
    if (!is_traced(group) || !group_of(group)) return NULL;
    tshi_trace_event *event = open_call(group, kind, tsh_collective_name(call->op));
    event->flags |= blocks ? TSHI_TRACE_BLOCKS : 0;
    event->peer = call->root;
    event->a = call->failed == TSH_OK ? bytes_of(group, call) : 0;
    event->b = number;
    return event;
}

void tshi_traced_end(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_trace_event *event = work->event;
    tshi_trace_close(event);
    if (work->call.op != TSH_COLLECTIVE_RECV || work->sender < 0 || work->sender >= group->size) return;
    tshi_trace_group *g = group_of(group);
    event->peer = work->sender;
    if (g) event->b = ++g->messages[group->size + work->sender];
}

tshi_trace_event *tshi_traced_wait(const tsh_work *work) {
    return work->linked ? open_call(work->group, TSHI_TRACE_WAIT, tsh_collective_name(work->call.op)) : NULL;
}

void tshi_traced_waited(const tsh_work *work, tshi_trace_event *wait) {
    tshi_trace_close(wait);
    wait->b = work->event ? work->event->b : work->number;
    wait->peer = work->event ? work->event->peer : work->call.root;
}

tshi_trace_event *tshi_traced_agree(tsh_group *group) {
    tshi_trace_group *g = group->size > 1 && group->rank >= 0 ? group_of(group) : NULL;
    if (!g) return NULL;
    tshi_trace_event *event = open_call(group, TSHI_TRACE_COLLECTIVE, "agree");
    event->flags |= TSHI_TRACE_BLOCKS | TSHI_TRACE_AGREES;
    event->peer = -1;
    event->b = ++g->agreements;
    return event;
}
