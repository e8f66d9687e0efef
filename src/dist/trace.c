/* Traces of a world: comparing clocks, starting, ending. */
#include "device/trace.h"
#include "base/hash.h"
#include "base/settings.h"
#include "device/plan/plan.h"
#include "dist/world.h"
#include "tshard/trace.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static tshi_trace_file *trace_of(const tsh_world *world) {
    return world->device ? world->device->trace : NULL;
}

/* --- clocks ------------------------------------------------------------------------------------------------------- */

/* Rounds of comparing: the best bounds of all rounds count, and the last round only shares them. */
#define ROUNDS 9

typedef struct reading {
    int64_t begins;       /* nanoseconds of this rank's clock before the round */
    int64_t ended_before; /* and after the round before it */
    int64_t low, high;    /* bounds so far on how far this clock is ahead of rank 0's */
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
        return tshi_fail(TSH_ERR_STATE, "trace_start: a dry run has no times");
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

/* The clocks of several machines have drifted since the trace started. */
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
    if (trace->common_clock || tshi_world_has_failed(world, (tshi_tape_step){0}))
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
