#include "device/record.h"
#include "base/hash.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define FIRST_LINE "tshard plan 1"

tshi_record *tshi_record_create(const tsh_allocator *allocator) {
    tshi_record *record = tshi_calloc(allocator, 1, sizeof *record);
    if (record) record->allocator = *allocator;
    return record;
}

void tshi_record_destroy(tshi_record *record) {
    if (!record) return;
    tsh_allocator allocator = record->allocator;
    tshi_free(&allocator, record->entries);
    tshi_free(&allocator, record->table);
    tshi_free(&allocator, record);
}

/* --- entries by hash ---------------------------------------------------------------------------------------------- */

static uint64_t hash_of(const tshi_record_call *call) {
    uint64_t words[sizeof *call / sizeof(uint64_t)], h = TSHI_FINGERPRINT;
    _Static_assert(sizeof *call % sizeof(uint64_t) == 0, "a call is made of whole words");
    memcpy(words, call, sizeof words);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) h = tshi_fingerprint_add(h, words[i]);
    return h;
}

static int *record_place(const tshi_record *record, uint64_t hash, const tshi_record_call *call) {
    uint64_t mask = (uint64_t)record->table_size - 1;
    for (uint64_t at = hash & mask;; at = (at + 1) & mask) {
        int *place = &record->table[at];
        if (*place < 0) return place;
        const tshi_record_entry *e = &record->entries[*place];
        if (e->hash == hash && !memcmp(&e->call, call, sizeof *call)) return place;
    }
}

/* The table is at most half full. */
static tsh_status grow_table(tshi_record *record) {
    if (2 * (record->count + 1) <= record->table_size) return TSH_OK;
    int size = record->table_size ? 2 * record->table_size : 512;
    int *table = tshi_calloc(&record->allocator, (size_t)size, sizeof *table);
    if (!table) return TSH_ERR_MEMORY;
    tshi_free(&record->allocator, record->table);
    record->table = table;
    record->table_size = size;
    memset(table, 0xff, (size_t)size * sizeof *table);
    for (int i = 0; i < record->count; i++) {
        *record_place(record, record->entries[i].hash, &record->entries[i].call) = i;
    }
    return TSH_OK;
}

static tshi_record_entry *entry_of(tshi_record *record, const tshi_record_call *call) {
    uint64_t hash = hash_of(call);
    tsh_status status = grow_table(record);
    if (status != TSH_OK) return NULL;
    int *place = record_place(record, hash, call);
    if (*place >= 0) return &record->entries[*place];
    status = tshi_grow(&record->allocator, (void **)&record->entries, &record->capacity, record->count + 1,
                       sizeof *record->entries);
    if (status != TSH_OK) return NULL;
    tshi_record_entry *entry = &record->entries[record->count];
    *entry = (tshi_record_entry){.call = *call, .hash = hash};
    *place = record->count++;
    return entry;
}

void tshi_record_add(tshi_record *record, const tshi_record_call *call, double flops, uint64_t bytes) {
    tshi_record_entry *entry = record ? entry_of(record, call) : NULL;
    if (!entry) {
        if (record) record->lost = true;
        return;
    }
    entry->flops = flops;
    entry->bytes = bytes;
    entry->segment++;
    entry->run_calls++;
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

/* Counters of an entry. segment: calls since the last reset; pending: calls of the step under way, up to that reset;
 * trained: calls of the last segment that had a backward; whole: calls of the last whole step. */
static void end_segment(tshi_record *record, bool counts) {
    for (int i = 0; i < record->count; i++) {
        tshi_record_entry *e = &record->entries[i];
        if (counts) {
            e->trained = e->segment;
            e->pending += e->segment;
        }
        e->calls = e->segment;
        e->segment = 0;
    }
    record->backward = false;
}

static void end_record_step(tshi_record *record) {
    end_segment(record, true);
    for (int i = 0; i < record->count; i++) {
        tshi_record_entry *e = &record->entries[i];
        e->whole = e->pending;
        e->pending = 0;
    }
    record->stepped = false;
    record->steps++;
}

void tshi_record_forward(tshi_record *record) {
    if (record && record->stepped) end_record_step(record);
}

void tshi_record_backward(tshi_record *record) {
    if (record) record->backward = true;
}

void tshi_record_step(tshi_record *record) {
    if (record) record->stepped = true;
}

/* A reset with no calls before it ends no segment. */
static bool has_calls(const tshi_record *record) {
    for (int i = 0; i < record->count; i++) {
        if (record->entries[i].segment) return true;
    }
    return false;
}

void tshi_record_reset(tshi_record *record) {
    if (!record || record->stepped || !has_calls(record)) return;
    end_segment(record, record->backward);
}

void tshi_record_end(tshi_record *record) {
    bool trained = false;
    if (!record) return;
    if (record->stepped) end_record_step(record);
    tshi_record_reset(record);
    for (int i = 0; i < record->count; i++) trained = trained || record->entries[i].trained;
    for (int i = 0; i < record->count; i++) {
        tshi_record_entry *e = &record->entries[i];
        if (trained) e->calls = record->steps ? e->whole : e->trained;
    }
}

/* --- text --------------------------------------------------------------------------------------------------------- */

static const char *or_dash(const char *text) {
    return text[0] ? text : "-";
}

tsh_status tshi_record_write(const tshi_record *r, FILE *to) {
    errno = 0;
    fprintf(to, "%s\nrank %d %d\nplanned %d\nsteps %" PRIu64 "\npeak %zu\n", FIRST_LINE, r->rank, r->size, r->planned,
            r->steps, r->peak);
    for (int a = 0; a < r->axes; a++)
        fprintf(to, "axis %s %d %s\n", r->axis[a].name, r->axis[a].size, or_dash(r->axis[a].weights));
    for (int p = 0; p < TSH_MEMORY_PURPOSE_COUNT; p++) {
        fprintf(to, "memory %s %zu\n", tsh_memory_purpose_name((tsh_memory_purpose)p), r->memory.at_peak[p]);
    }
    fprintf(to, "function %s\nlayer %s\nbackward %d\nreads %d %s\n", or_dash(r->memory.function),
            or_dash(r->memory.layer), r->memory.backward, r->reads, or_dash(r->read_in));
    for (int i = 0; i < r->count; i++) {
        const tshi_record_entry *e = &r->entries[i];
        const tshi_record_call *c = &e->call;
        fprintf(to, "call %d %d %d %d %s %s", c->kind, c->dtype, c->backward, c->early, or_dash(c->name),
                or_dash(c->axis));
        for (int s = 0; s < TSHI_RECORD_SIZES; s++) fprintf(to, " %" PRId64, c->size[s]);
        fprintf(to, " %.17g %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", e->flops, e->bytes, e->calls, e->run_calls);
    }
    fprintf(to, "end\n");
    if (fflush(to) == 0 && !ferror(to)) return TSH_OK;
    return tshi_fail(TSH_ERR_IO, "the record cannot be written: %s", errno ? strerror(errno) : "the file has an error");
}

static void no_dash(char *text) {
    if (!strcmp(text, "-")) text[0] = '\0';
}

static bool read_call(tshi_record *r, const char *line) {
    tshi_record_call c = {0};
    int kind, dtype, backward, early;
    double flops;
    uint64_t bytes, calls, run_calls;
    int read = sscanf(line,
                      "call %d %d %d %d %23s %23s %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64
                      " %lg %" SCNu64 " %" SCNu64 " %" SCNu64,
                      &kind, &dtype, &backward, &early, c.name, c.axis, &c.size[0], &c.size[1], &c.size[2], &c.size[3],
                      &c.size[4], &c.size[5], &flops, &bytes, &calls, &run_calls);
    if (read != 16 || kind < 0 || kind >= TSHI_RECORD_KIND_COUNT || dtype < 0 || dtype >= TSH_DTYPE_COUNT) return false;
    c.kind = (tshi_record_kind)kind;
    c.dtype = (tsh_dtype)dtype;
    c.backward = backward;
    c.early = early;
    no_dash(c.name);
    no_dash(c.axis);
    tshi_record_entry *e = entry_of(r, &c);
    if (!e) return false;
    e->flops = flops;
    e->bytes = bytes;
    e->calls = calls;
    e->run_calls = run_calls;
    return true;
}

static bool read_memory(tshi_record *r, const char *line) {
    char name[24];
    size_t bytes;
    if (sscanf(line, "memory %23s %zu", name, &bytes) != 2) return false;
    for (int p = 0; p < TSH_MEMORY_PURPOSE_COUNT; p++) {
        if (!strcmp(name, tsh_memory_purpose_name((tsh_memory_purpose)p))) r->memory.at_peak[p] = bytes;
    }
    return true;
}

/* A name may contain blanks. */
static bool read_name(const char *line, const char *what, char *out, size_t size) {
    size_t length = strlen(what);
    if (strncmp(line, what, length) != 0 || line[length] != ' ') return false;
    snprintf(out, size, "%.*s", (int)strcspn(line + length + 1, "\n"), line + length + 1);
    no_dash(out);
    return true;
}

static bool read_line(tshi_record *r, const char *line) {
    int number, flag;
    if (!strncmp(line, "call ", 5)) return read_call(r, line);
    if (!strncmp(line, "memory ", 7)) return read_memory(r, line);
    if (!strncmp(line, "axis ", 5)) {
        tshi_record_axis *axis = &r->axis[r->axes];
        if (r->axes == TSHI_RECORD_AXES) return false;
        if (sscanf(line, "axis %23s %d %63s", axis->name, &axis->size, axis->weights) != 3) return false;
        no_dash(axis->weights);
        r->axes++;
        return true;
    }
    if (sscanf(line, "backward %d", &number) == 1) {
        r->memory.backward = number;
        return true;
    }
    if (sscanf(line, "planned %d", &number) == 1) {
        r->planned = number;
        return true;
    }
    if (sscanf(line, "reads %d %47s", &flag, r->read_in) == 2) {
        r->reads = flag;
        no_dash(r->read_in);
        return true;
    }
    return sscanf(line, "rank %d %d", &r->rank, &r->size) == 2 || sscanf(line, "steps %" SCNu64, &r->steps) == 1 ||
           sscanf(line, "peak %zu", &r->peak) == 1 ||
           read_name(line, "function", r->memory.function, sizeof r->memory.function) ||
           read_name(line, "layer", r->memory.layer, sizeof r->memory.layer);
}

tsh_status tshi_record_read(const tsh_allocator *allocator, FILE *from, tshi_record **out) {
    char line[512];
    bool ends = false;
    *out = NULL;
    tshi_record *r = tshi_record_create(allocator);
    if (!r) return TSH_ERR_MEMORY;
    bool good = fgets(line, sizeof line, from) && !strcmp(line, FIRST_LINE "\n");
    while (good && !ends && fgets(line, sizeof line, from)) {
        ends = !strcmp(line, "end\n");
        good = ends || read_line(r, line);
    }
    if (good && ends) {
        *out = r;
        return TSH_OK;
    }
    tshi_record_destroy(r);
    return tshi_fail(TSH_ERR_IO, "the file is not the record of a run, or is truncated");
}
