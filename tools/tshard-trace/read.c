/* Files of events: reading them, texts and groups, and one clock for all. */
#include "tool.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool complain(const char *path, const char *why) {
    fprintf(stderr, "tshard-trace: %s: %s\n", path, why);
    return false;
}

static bool grow(void *items, int *room, int needed, size_t size) {
    if (needed <= *room) return true;
    int wanted = *room ? 2 * *room : 64;
    while (wanted < needed) wanted *= 2;
    void *more = realloc(*(void **)items, (size_t)wanted * size);
    if (!more) return false;
    *(void **)items = more;
    *room = wanted;
    return true;
}

/* --- one file ----------------------------------------------------------------------------------------------------- */

static bool read_all(const char *path, rank_trace *r) {
    struct stat s;
    FILE *file = fopen(path, "re");
    if (!file) return complain(path, strerror(errno));
    bool good = fstat(fileno(file), &s) == 0 && S_ISREG(s.st_mode);
    if (!good || (size_t)s.st_size < sizeof r->header || fread(&r->header, sizeof r->header, 1, file) != 1 ||
        memcmp(r->header.magic, TSHI_TRACE_MAGIC, sizeof TSHI_TRACE_MAGIC) != 0) {
        fclose(file);
        return complain(path, "this is no trace of tshard");
    }
    if (r->header.order != 0x01020304 || r->header.event_bytes != sizeof(tshi_trace_event) || r->header.size < 1 ||
        r->header.rank < 0 || r->header.rank >= r->header.size) {
        fclose(file);
        return complain(path, "the trace is of another kind of machine or another version of tshard");
    }
    size_t events = (size_t)s.st_size / sizeof(tshi_trace_event) - 1;
    r->raw = calloc(events + 1, sizeof *r->raw); /* an event of kind NONE stands at the end */
    if (r->raw) r->raws = fread(r->raw, sizeof *r->raw, events, file);
    fclose(file);
    return r->raw ? true : complain(path, "there is no memory for it");
}

static bool add_text(rank_trace *r, const tshi_trace_event *raw) {
    if (raw->name == 0 || raw->name > r->raws || !grow(&r->texts, &r->texts_room, (int)raw->name, sizeof *r->texts)) {
        return false;
    }
    while (r->texts_count < (int)raw->name) r->texts[r->texts_count++] = NULL;
    char *text = strndup((const char *)(raw + 1), (size_t)raw->a);
    free(r->texts[raw->name - 1]);
    r->texts[raw->name - 1] = text;
    return text != NULL;
}

static bool add_group(rank_trace *r, const tshi_trace_event *raw) {
    if (raw->group != (uint32_t)r->groups_count + 1 ||
        !grow(&r->groups, &r->groups_room, r->groups_count + 1, sizeof *r->groups)) {
        return false;
    }
    const int32_t *ranks = (const int32_t *)(const void *)(raw + 1);
    trace_group *g = &r->groups[r->groups_count];
    *g = (trace_group){.axis = text_of(r, raw->name), .size = (int)raw->a, .ranks = ranks};
    for (int i = 0; i < g->size; i++) {
        if (ranks[i] < 0 || ranks[i] >= r->header.size) return false;
    }
    for (int i = 0; i < r->groups_count; i++) {
        const trace_group *other = &r->groups[i];
        g->same += other->size == g->size && !memcmp(other->ranks, ranks, (size_t)g->size * sizeof *ranks);
    }
    r->groups_count++;
    return true;
}

static bool add_event(rank_trace *r, const tshi_trace_event *raw) {
    if (!grow(&r->events, &r->room, r->count + 1, sizeof *r->events)) return false;
    if ((is_call(raw) || raw->kind == TSHI_TRACE_WAIT) && raw->group > (uint32_t)r->groups_count) return false;
    r->events[r->count++] = (event){.raw = raw, .for_rank = -1, .call = -1, .lane = -1};
    return true;
}

/* Events that follow the one at `at` and hold its bytes; -1 where the file ends before them. */
static int64_t extra(const rank_trace *r, size_t at) {
    const tshi_trace_event *raw = &r->raw[at];
    uint64_t bytes = raw->kind == TSHI_TRACE_TEXT    ? (uint64_t)raw->a
                     : raw->kind == TSHI_TRACE_GROUP ? (uint64_t)raw->a * sizeof(int32_t)
                                                     : 0;
    uint64_t events = (bytes + sizeof *raw - 1) / sizeof *raw;
    return raw->a < 0 && bytes ? -1 : bytes > r->raws * sizeof *raw || at + events >= r->raws ? -1 : (int64_t)events;
}

/* What is not understood ends the trace: all before it counts. */
static void parse(rank_trace *r, const char *path) {
    size_t at = 0;
    for (; at < r->raws && r->raw[at].kind != TSHI_TRACE_NONE; at++) {
        const tshi_trace_event *raw = &r->raw[at];
        int64_t more = raw->kind < TSHI_TRACE_KIND_COUNT ? extra(r, at) : -1;
        bool good = more >= 0;
        if (good && raw->kind == TSHI_TRACE_TEXT)
            good = add_text(r, raw);
        else if (good && raw->kind == TSHI_TRACE_GROUP)
            good = add_group(r, raw);
        else if (good && raw->kind >= TSHI_TRACE_FUNCTION)
            good = add_event(r, raw);
        if (!good) {
            complain(path, "the file is damaged; what comes before counts");
            break;
        }
        at += (size_t)more;
    }
    /* A file that has been ended has its exact length. */
    r->cut = at < r->raws;
    r->raws = at;
}

const char *text_of(const rank_trace *r, uint32_t number) {
    const char *text = number && number <= (uint32_t)r->texts_count ? r->texts[number - 1] : NULL;
    return text ? text : "";
}

const trace_group *group_of(const rank_trace *r, const event *e) {
    return e->raw->group && e->raw->group <= (uint32_t)r->groups_count ? &r->groups[e->raw->group - 1] : NULL;
}

/* --- one clock ---------------------------------------------------------------------------------------------------- */

/* Ticks to nanoseconds of rank 0's clock: lines between pairs of both clocks, and between two offsets. */
typedef struct clocks {
    const tshi_trace_event **pair;
    int pairs;
    const tshi_trace_event *first, *last; /* offsets */
    double rate;                          /* nanoseconds a tick, over all */
} clocks;

static bool clocks_of(const rank_trace *r, clocks *c) {
    *c = (clocks){.pair = calloc(r->raws + 1, sizeof *c->pair)};
    if (!c->pair) return false;
    for (size_t at = 0; at < r->raws; at++) {
        const tshi_trace_event *raw = &r->raw[at];
        if (raw->kind == TSHI_TRACE_CLOCK && raw->end && (c->pairs == 0 || raw->begin > c->pair[c->pairs - 1]->begin)) {
            c->pair[c->pairs++] = raw;
        }
        if (raw->kind == TSHI_TRACE_OFFSET) {
            if (!c->first) c->first = raw;
            c->last = raw;
        }
        at += (size_t)extra(r, at);
    }
    if (c->pairs >= 2) {
        const tshi_trace_event *a = c->pair[0], *b = c->pair[c->pairs - 1];
        c->rate = (double)(b->end - a->end) / (double)(b->begin - a->begin);
    }
    return true;
}

static double between(double x, double x0, double x1, double y0, double y1) {
    return x1 > x0 ? y0 + (x - x0) / (x1 - x0) * (y1 - y0) : y0;
}

static double nanoseconds(const clocks *c, uint64_t ticks, double rate) {
    int low = 0, high = c->pairs - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (c->pair[middle]->begin <= ticks)
            low = middle;
        else
            high = middle - 1;
    }
    const tshi_trace_event *pair = c->pair[low], *next = low + 1 < c->pairs ? c->pair[low + 1] : NULL;
    if (next && ticks >= pair->begin) {
        rate = (double)(next->end - pair->end) / (double)(next->begin - pair->begin);
    }
    double away = ticks >= pair->begin ? (double)(ticks - pair->begin) : -(double)(pair->begin - ticks);
    double offset = 0;
    if (c->first) {
        offset = between((double)ticks, (double)c->first->begin, (double)c->last->begin, (double)c->first->a,
                         (double)c->last->a);
    }
    return (double)pair->end + away * rate - offset;
}

/* The events get times; what has not ended ends with the rank's last event. A rank that was killed early takes the rate
 * of another one of its machine. */
static void set_times(rank_trace *r, const clocks *c, double rate) {
    double last = 0;
    for (int i = 0; i < r->count; i++) {
        event *e = &r->events[i];
        e->begin = nanoseconds(c, e->raw->begin, rate) / 1000;
        e->unended = e->raw->end == 0 && e->raw->kind != TSHI_TRACE_RESET;
        e->end = e->raw->end ? nanoseconds(c, e->raw->end, rate) / 1000 : e->begin;
        if (e->end > last) last = e->end;
    }
    for (int i = 0; i < r->count; i++) {
        if (r->events[i].unended) r->events[i].end = last;
    }
}

static bool align(traces *run) {
    clocks *c = calloc((size_t)run->ranks, sizeof *c);
    double first = 0;
    bool any = false, good = c != NULL;
    for (int i = 0; good && i < run->ranks; i++) good = clocks_of(&run->rank[i], &c[i]);
    for (int i = 0; good && i < run->ranks; i++) {
        double rate = c[i].rate;
        for (int j = 0; rate == 0 && j < run->ranks; j++) {
            if (run->rank[j].header.machine == run->rank[i].header.machine) rate = c[j].rate;
        }
        if (c[i].pairs == 0) run->rank[i].count = 0;
        set_times(&run->rank[i], &c[i], rate > 0 ? rate : 1);
        for (int k = 0; k < run->rank[i].count; k++) {
            if (!any || run->rank[i].events[k].begin < first) first = run->rank[i].events[k].begin;
            any = true;
        }
    }
    for (int i = 0; good && i < run->ranks; i++) {
        for (int k = 0; k < run->rank[i].count; k++) {
            run->rank[i].events[k].begin -= first;
            run->rank[i].events[k].end -= first;
        }
    }
    for (int i = 0; c && i < run->ranks; i++) free(c[i].pair);
    free(c);
    return good;
}

/* --- a folder ----------------------------------------------------------------------------------------------------- */

static int by_rank(const void *left, const void *right) {
    const rank_trace *a = left, *b = right;
    return (a->header.rank > b->header.rank) - (a->header.rank < b->header.rank);
}

/* A file of another run than the first file's has been left there by it. */
static bool belongs(const traces *run, const rank_trace *r, const char *path) {
    if (run->ranks == 0 || run->rank[0].header.run == r->header.run) return true;
    return complain(path, "it is of another run, and is left out");
}

static bool read_folder(DIR *folder, traces *out) {
    int room = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char path[sizeof out->folder + 256];
        if (strncmp(entry->d_name, TSHI_TRACE_FILE ".", sizeof TSHI_TRACE_FILE) != 0) continue;
        snprintf(path, sizeof path, "%s/%s", out->folder, entry->d_name);
        if (!grow(&out->rank, &room, out->ranks + 1, sizeof *out->rank)) return complain(path, "there is no memory");
        rank_trace *r = &out->rank[out->ranks];
        *r = (rank_trace){0};
        if (!read_all(path, r)) continue;
        if (!belongs(out, r, path)) {
            free(r->raw);
            continue;
        }
        parse(r, path);
        out->ranks++;
    }
    return true;
}

bool run_read(const char *name, traces *out) {
    *out = (traces){0};
    if (strlen(name) >= sizeof out->folder) return complain(name, "the name is too long");
    snprintf(out->folder, sizeof out->folder, "%s", name);
    DIR *folder = opendir(name);
    if (!folder) return complain(name, strerror(errno));
    bool good = read_folder(folder, out);
    closedir(folder);
    if (!good) return false;
    if (out->ranks == 0) return complain(name, "there is no trace of a rank (rank.0, ...) in this folder");
    out->size = out->rank[0].header.size;
    qsort(out->rank, (size_t)out->ranks, sizeof *out->rank, by_rank);
    for (int i = 0; i < out->ranks; i++) {
        if (!out->rank[i].cut) continue;
        fprintf(stderr, "tshard-trace: rank %d ended before its trace did\n", out->rank[i].header.rank);
    }
    if (out->ranks < out->size) {
        fprintf(stderr, "tshard-trace: there are traces of %d of %d ranks\n", out->ranks, out->size);
    }
    return align(out) || complain(name, "there is no memory");
}
