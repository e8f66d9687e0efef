/* Traces of a world: comparing clocks, starting, ending, and the events of calls. */
#include "dist/trace.h"
#include "base/hash.h"
#include "base/settings.h"
#include "device/plan/plan.h"
#include "dist/collectives/collectives.h"
#include "tshard/trace.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static tshi_trace_file *trace_of(const tsh_world *world) {
    return world->device ? world->device->trace : NULL;
}

/* --- clocks ------------------------------------------------------------------------------------------------------- */

/* Rounds of comparing, the best bounds of which count; the last round only shares them. */
#define ROUNDS 9

typedef struct reading {
    int64_t begins;       /* nanoseconds of this rank's clock before the round */
    int64_t ended_before; /* and after the round before it */
    int64_t low, high;    /* bounds so far of what this clock is ahead of rank 0's */
    uint64_t run, machine;
} reading;

static int64_t nanoseconds(void) {
    return (int64_t)(tshi_clock() * 1e9);
}

/* Processes with one clock: those of one machine, since its boot, and one time namespace. */
static uint64_t machine_number(void) {
    char text[64] = "";
    struct stat s = {0};
    uint64_t number = TSHI_FINGERPRINT;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    size_t n = file ? fread(text, 1, sizeof text, file) : 0;
    if (file) fclose(file);
    if (stat("/proc/self/ns/time", &s) != 0) s.st_ino = 0;
    if (n == 0) return (uint64_t)getpid() << 32 ^ (uint64_t)nanoseconds();
    for (size_t i = 0; i < n; i++) number = tshi_fingerprint_add(number, (unsigned char)text[i]);
    return tshi_fingerprint_add(number, s.st_ino);
}

/* A rank leaves a round after rank 0 has entered it, and rank 0 after that rank has: that bounds, from both sides, what
 * its clock is ahead of rank 0's, in every round. Ranks of one machine have the best bounds of all of them. */
static tsh_status compare_clocks(tsh_world *world, tshi_trace_header *header, bool *common, int64_t *offset,
                                 int64_t *error) {
    int64_t low = INT64_MIN, high = INT64_MAX, before = 0, ended = 0;
    tsh_device *host = world->host;
    *common = true;
    for (int round = 0; round <= ROUNDS; round++) {
        const reading mine = {nanoseconds(), ended, low, high, header->run, header->machine};
        tsh_status status = TSH_OK;
        reading *all = tshi_group_gather(world->group, "trace", &mine, sizeof mine, &status);
        if (status != TSH_OK) return status;
        ended = nanoseconds();
        /* The previous round's begin on this rank, and its end on rank 0. */
        if (round > 0 && round < ROUNDS && before - all[0].ended_before > low) low = before - all[0].ended_before;
        if (round < ROUNDS && ended - all[0].begins < high) high = ended - all[0].begins;
        before = mine.begins;
        header->run = all[0].run;
        for (int i = 0; i < world->size; i++) {
            bool here = all[i].machine == header->machine;
            *common = *common && here;
            if (here && all[i].low > low) low = all[i].low;
            if (here && all[i].high < high) high = all[i].high;
        }
        if (all[0].machine == header->machine) low = high = 0;
        host->ops->memory.release(host, all);
    }
    *offset = low + (high - low) / 2;
    *error = (high - low) / 2;
    return TSH_OK;
}

static void write_clocks(tshi_trace_file *trace, int64_t offset, int64_t error) {
    tshi_trace_clock(trace);
    tshi_trace_event *event = tshi_trace_open(trace, TSHI_TRACE_OFFSET);
    event->a = offset;
    event->b = error;
}

/* --- starting and ending ------------------------------------------------------------------------------------------ */

static tsh_status start(tsh_world *world, const char *folder) {
    tshi_trace_header header = {.rank = world->rank,
                                .size = world->size,
                                .run = (uint64_t)nanoseconds() ^ (uint64_t)getpid() << 40,
                                .machine = machine_number()};
    tshi_trace_file *trace = NULL;
    bool common;
    int64_t offset, error;
    tsh_status status = compare_clocks(world, &header, &common, &offset, &error);
    if (status != TSH_OK) return status;
    status = tshi_trace_create(&world->allocator, &world->log, folder, &header, &trace);
    status = tshi_group_agree(world->group, "trace_start", status);
    if (status == TSH_OK) status = tshi_trace_attach(world->device, trace);
    if (status != TSH_OK) {
        tshi_trace_destroy(trace);
        return status;
    }
    trace->common_clock = common;
    write_clocks(trace, offset, error);
    return TSH_OK;
}

tsh_status tsh_trace_start(tsh_world *world, const char *folder) {
    if (!world || !folder) return tshi_fail(TSH_ERR_ARGUMENT, "trace_start: world and folder are required");
    if (trace_of(world)) return tshi_fail(TSH_ERR_STATE, "trace_start: the world is traced already");
    if (world->device->record && world->device->record->planned) {
        return tshi_fail(TSH_ERR_STATE, "trace_start: a planned run has no times");
    }
    return start(world, folder);
}

tsh_status tshi_trace_from_environment(tsh_world *world) {
    const char *folder = tshi_setting_value(TSHI_SETTING_TRACE);
    bool planned = world->device->record && world->device->record->planned;
    return folder && !planned ? start(world, folder) : TSH_OK;
}

static void forget_events(tsh_work *first) {
    for (tsh_work *work = first; work; work = work->next) work->event = NULL;
}

static void end(tsh_world *world) {
    tshi_trace_file *trace = trace_of(world);
    for (tsh_group *g = world->groups; g; g = g->next) {
        g->traced = 0;
        forget_events(g->queue);
        forget_events(g->messages);
    }
    tshi_trace_detach(world->device);
    tshi_trace_destroy(trace);
}

/* Clocks of several machines have drifted. */
static tsh_status compare_again(tsh_world *world) {
    tshi_trace_file *trace = trace_of(world);
    int64_t offset = 0, error = 0;
    bool common = trace->common_clock;
    tsh_status status = TSH_OK;
    if (!common) status = compare_clocks(world, &trace->header, &common, &offset, &error);
    if (common || status != TSH_OK)
        tshi_trace_clock(trace);
    else
        write_clocks(trace, offset, error);
    return status;
}

tsh_status tsh_trace_stop(tsh_world *world) {
    if (!world) return tshi_fail(TSH_ERR_ARGUMENT, "trace_stop: a world is required");
    if (!trace_of(world)) return TSH_OK;
    tsh_status status = compare_again(world);
    end(world);
    return status;
}

void tshi_trace_leave(tsh_world *world) {
    tshi_trace_file *trace = trace_of(world);
    if (!trace) return;
    if (trace->common_clock || tshi_world_troubled(world, (tshi_tape_step){0}))
        tshi_trace_clock(trace);
    else if (compare_again(world) != TSH_OK)
        tshi_log(&world->log, TSH_LOG_WARNING, "trace: %s", tsh_error_message());
    end(world);
}

void tsh_trace_begin(tsh_world *world, const char *name) {
    if (world && name && trace_of(world)) tshi_trace_range_begin(trace_of(world), name);
}

void tsh_trace_end(tsh_world *world) {
    if (world && trace_of(world)) tshi_trace_range_end(trace_of(world));
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

/* NULL without memory. */
static tshi_trace_group *group_of(tsh_group *group) {
    tshi_trace_file *trace = trace_of(group->world);
    if (!group->traced) {
        group->traced = tshi_trace_add_group(trace, tshi_group_axis(group), group->ranks, group->size);
    }
    return group->traced ? &trace->groups[group->traced - 1] : NULL;
}

static bool is_traced(const tsh_group *group, const tshi_call *call) {
    return group->size > 1 && group->rank >= 0 && !call->ticket;
}

int64_t tshi_traced_number(tsh_group *group, const tshi_call *call) {
    tshi_trace_group *g = is_traced(group, call) ? group_of(group) : NULL;
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

static int64_t bytes_of(const tsh_group *group, const tshi_call *call) {
    int64_t count = call->in_counts ? tshi_sum(call->in_counts, group->size) : call->count;
    return count * (int64_t)tsh_dtype_size(call->dtype);
}

tshi_trace_event *tshi_traced_call(tsh_group *group, const tshi_call *call, int64_t number, bool blocks) {
    tshi_trace_kind kind = call->op == TSH_COLLECTIVE_SEND   ? TSHI_TRACE_SEND
                           : call->op == TSH_COLLECTIVE_RECV ? TSHI_TRACE_RECV
                                                             : TSHI_TRACE_COLLECTIVE;
    if (!is_traced(group, call) || !group_of(group)) return NULL;
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
