/* The trace file: growing it, texts, groups, clocks. */
#include "device/trace.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK_BYTES ((size_t)TSHI_TRACE_CHUNK * sizeof(tshi_trace_event))

/* --- chunks --------------------------------------------------------------------------------------------------------
 * */

/* posix_fallocate takes the disk blocks at once: a full disk is an error here, where a write to the mapping would
 * raise SIGBUS. */
static tsh_status add_chunk(tshi_trace_file *t) {
    off_t at = (off_t)((size_t)t->chunks * CHUNK_BYTES);
    if (t->chunks == TSHI_TRACE_MAX_CHUNKS) {
        return tshi_fail(TSH_ERR_OVERFLOW, "the trace %s has reached its limit of %d chunks of %zu bytes", t->path,
                         TSHI_TRACE_MAX_CHUNKS, CHUNK_BYTES);
    }
    int error = tshi_file_fits((size_t)at + CHUNK_BYTES) ? posix_fallocate(t->file, at, (off_t)CHUNK_BYTES) : EFBIG;
    if (error) return tshi_fail_errno(error, "the trace %s cannot grow", t->path);
    void *chunk = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, t->file, at);
    if (chunk == MAP_FAILED) return tshi_fail_errno(errno, "the trace %s cannot be mapped", t->path);
    t->chunk[t->chunks++] = chunk;
    t->used = 0;
    return TSH_OK;
}

/* `count` consecutive events, or NULL. */
static tshi_trace_event *take_events(tshi_trace_file *t, int count) {
    if (!t->full && t->used + count > TSHI_TRACE_CHUNK) {
        for (int i = t->used; i < TSHI_TRACE_CHUNK; i++) t->chunk[t->chunks - 1][i].kind = TSHI_TRACE_PAD;
        t->full = count > TSHI_TRACE_CHUNK || add_chunk(t) != TSH_OK;
        if (t->full) tshi_log(t->log, TSH_LOG_WARNING, "tracing ends: %s", tsh_error_message());
    }
    if (t->full) return NULL;
    t->used += count;
    return &t->chunk[t->chunks - 1][t->used - count];
}

tshi_trace_event *tshi_trace_open(tshi_trace_file *trace, tshi_trace_kind kind) {
    tshi_trace_event *event = take_events(trace, 1);
    if (!event) event = &trace->nowhere;
    event->begin = tshi_ticks();
    event->kind = kind;
    return event;
}

/* An event followed by its bytes. */
static tshi_trace_event *add_with(tshi_trace_file *t, tshi_trace_kind kind, const void *data, size_t bytes) {
    size_t events = 1 + (bytes + sizeof(tshi_trace_event) - 1) / sizeof(tshi_trace_event);
    tshi_trace_event *event = events < TSHI_TRACE_CHUNK ? take_events(t, (int)events) : NULL;
    if (!event) return NULL;
    memcpy(event + 1, data, bytes);
    event->kind = kind;
    return event;
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

static tsh_status open_file(tshi_trace_file *t, const char *folder) {
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        return tshi_fail_errno(errno, "the trace folder %s cannot be created", folder);
    }
    int length = snprintf(t->path, sizeof t->path, "%s/" TSHI_TRACE_FILE ".%d", folder, t->header.rank);
    if (length < 0 || (size_t)length >= sizeof t->path) {
        return tshi_fail(TSH_ERR_ARGUMENT, "the name of the trace folder has more than 1000 characters");
    }
    unlink(t->path); /* a process of an earlier run may still map the old file */
    t->file = open(t->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (t->file < 0) return tshi_fail_errno(errno, "the trace %s cannot be created", t->path);
    return add_chunk(t);
}

tsh_status tshi_trace_create(const tsh_allocator *allocator, const tsh_log_sink *log, const char *folder,
                             const tshi_trace_header *header, tshi_trace_file **out) {
    *out = NULL;
    tshi_trace_file *t = tshi_calloc(allocator, 1, sizeof *t);
    if (!t) return TSH_ERR_MEMORY;
    t->allocator = *allocator;
    t->log = log;
    t->file = -1;
    t->header = *header;
    snprintf(t->header.magic, sizeof t->header.magic, "%s", TSHI_TRACE_MAGIC);
    t->header.event_bytes = sizeof(tshi_trace_event);
    t->header.order = 0x01020304;
    tsh_status status = open_file(t, folder);
    if (status != TSH_OK) {
        tshi_trace_destroy(t);
        return status;
    }
    memcpy(take_events(t, 1), &t->header, sizeof t->header);
    *out = t;
    return TSH_OK;
}

void tshi_trace_destroy(tshi_trace_file *trace) {
    if (!trace) return;
    tsh_allocator allocator = trace->allocator;
    size_t events = trace->chunks ? (size_t)(trace->chunks - 1) * TSHI_TRACE_CHUNK + (size_t)trace->used : 0;
    for (int i = 0; i < trace->chunks; i++) munmap(trace->chunk[i], CHUNK_BYTES);
    if (trace->file >= 0 && ftruncate(trace->file, (off_t)(events * sizeof(tshi_trace_event))) != 0) {
        tshi_log(trace->log, TSH_LOG_WARNING, "the trace %s keeps zeros at its end: %s", trace->path, strerror(errno));
    }
    if (trace->file >= 0) close(trace->file);
    for (int i = 0; i < trace->groups_count; i++) tshi_free(&allocator, trace->groups[i].messages);
    tshi_free(&allocator, trace->groups);
    tshi_free(&allocator, trace->texts);
    tshi_free(&allocator, trace);
}

void tshi_trace_clock(tshi_trace_file *trace) {
    tshi_trace_event *event = tshi_trace_open(trace, TSHI_TRACE_CLOCK);
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        uint64_t before = tshi_ticks();
        double now = tshi_clock();
        uint64_t took = tshi_ticks() - before;
        if (took >= least) continue; /* the process may have been descheduled between the two reads of ticks */
        least = took;
        event->begin = before + took / 2;
        event->end = (uint64_t)(now * 1e9);
    }
}

/* --- texts -------------------------------------------------------------------------------------------------------- */

static tshi_trace_text *place_of(const tshi_trace_file *t, uint64_t key) {
    uint32_t mask = t->texts_size - 1;
    uint32_t at = (uint32_t)(key ^ key >> 32) & mask;
    while (t->texts[at].number && t->texts[at].key != key) at = (at + 1) & mask;
    return &t->texts[at];
}

/* The table is at most half full. */
static bool grow_texts(tshi_trace_file *t) {
    if (2 * (t->texts_count + 1) <= t->texts_size) return true;
    tshi_trace_text *before = t->texts;
    uint32_t size = t->texts_size;
    tshi_trace_text *after = tshi_calloc(&t->allocator, size ? 2 * (size_t)size : 256, sizeof *after);
    if (!after) return false;
    t->texts = after;
    t->texts_size = size ? 2 * size : 256;
    for (uint32_t i = 0; i < size; i++) {
        if (before[i].number) *place_of(t, before[i].key) = before[i];
    }
    tshi_free(&t->allocator, before);
    return true;
}

uint32_t tshi_trace_known(const tshi_trace_file *trace, uint64_t key) {
    return trace->texts_size ? place_of(trace, key)->number : 0;
}

uint32_t tshi_trace_define(tshi_trace_file *trace, uint64_t key, const char *text) {
    size_t length = strlen(text);
    if (!grow_texts(trace)) return 0;
    tshi_trace_event *event = add_with(trace, TSHI_TRACE_TEXT, text, length);
    if (!event) return 0;
    event->name = ++trace->texts_count;
    event->a = (int64_t)length;
    *place_of(trace, key) = (tshi_trace_text){key, event->name};
    return event->name;
}

uint32_t tshi_trace_name(tshi_trace_file *trace, const char *text) {
    uint64_t key = TSHI_FINGERPRINT;
    for (const char *at = text; *at; at++) key = tshi_fingerprint_add(key, (unsigned char)*at);
    uint32_t number = tshi_trace_known(trace, key);
    return number ? number : tshi_trace_define(trace, key, text);
}

/* --- groups ------------------------------------------------------------------------------------------------------- */

uint32_t tshi_trace_add_group(tshi_trace_file *trace, const char *axis, const int *ranks, int n) {
    uint32_t name = tshi_trace_name(trace, axis);
    tsh_status status = tshi_grow(&trace->allocator, (void **)&trace->groups, &trace->groups_room,
                                  trace->groups_count + 1, sizeof *trace->groups);
    int64_t *messages = status == TSH_OK ? tshi_calloc(&trace->allocator, 2 * (size_t)n, sizeof *messages) : NULL;
    if (!messages) return 0;
    _Static_assert(sizeof *ranks == sizeof(int32_t), "ranks are written as they are");
    tshi_trace_event *event = add_with(trace, TSHI_TRACE_GROUP, ranks, (size_t)n * sizeof *ranks);
    trace->groups[trace->groups_count++] = (tshi_trace_group){.messages = messages};
    if (!event) return (uint32_t)trace->groups_count;
    event->group = (uint32_t)trace->groups_count;
    event->name = name;
    event->a = n;
    return event->group;
}

/* --- functions and ranges ----------------------------------------------------------------------------------------- */

static void push(const tshi_trace_file *trace, const char *name) {
    if (trace->profiler) trace->profiler->push(name);
}

static void pop(const tshi_trace_file *trace) {
    if (trace->profiler) trace->profiler->pop();
}

void tshi_trace_function_begin(tshi_trace_file *trace, const tsh_device *device, const char *name) {
    uint32_t number = tshi_trace_name(trace, name);
    push(trace, name);
    tshi_trace_event *event = tshi_trace_open(trace, TSHI_TRACE_FUNCTION);
    event->name = number;
    event->flags = device->place.backward ? TSHI_TRACE_BACKWARD : 0;
    if (trace->functions < TSHI_TRACE_DEPTH) trace->function[trace->functions] = event;
    trace->functions++;
}

void tshi_trace_function_end(tshi_trace_file *trace, const tsh_device *device, uint32_t detail) {
    if (trace->functions == 0) return;
    pop(trace);
    if (--trace->functions >= TSHI_TRACE_DEPTH) return;
    tshi_trace_event *event = trace->function[trace->functions];
    event->detail = detail;
    event->a = (int64_t)device->stats.bytes_in_use;
    event->b = (int64_t)device->stats.bytes_peak;
    tshi_trace_close(event);
}

void tshi_trace_range_begin(tshi_trace_file *trace, const char *name) {
    uint32_t number = tshi_trace_name(trace, name);
    push(trace, name);
    tshi_trace_event *event = tshi_trace_open(trace, TSHI_TRACE_RANGE);
    event->name = number;
    if (trace->ranges < TSHI_TRACE_DEPTH) trace->range[trace->ranges] = event;
    trace->ranges++;
}

void tshi_trace_range_end(tshi_trace_file *trace) {
    if (trace->ranges == 0) return;
    pop(trace);
    if (--trace->ranges >= TSHI_TRACE_DEPTH) return;
    tshi_trace_close(trace->range[trace->ranges]);
}
