/* Matches the events of all ranks: which of them are one call, which rank each wait is for, and where steps begin. */
#include "tool.h"

#include <stdlib.h>
#include <string.h>

/* --- groups ------------------------------------------------------------------------------------------------------- */

static bool same_group(const trace_group *a, const trace_group *b) {
    return a->same == b->same && a->size == b->size && !memcmp(a->ranks, b->ranks, (size_t)a->size * sizeof *a->ranks);
}

/* Gives a number to each group of the run: equal on two ranks where both used the group as their n-th of those
 * ranks. */
static void number_groups(traces *run) {
    int next = 0;
    for (int i = 0; i < run->ranks; i++) {
        for (int g = 0; g < run->rank[i].groups_count; g++) {
            trace_group *group = &run->rank[i].groups[g];
            group->id = -1;
            for (int j = 0; j < i && group->id < 0; j++) {
                for (int k = 0; k < run->rank[j].groups_count && group->id < 0; k++) {
                    if (same_group(group, &run->rank[j].groups[k])) group->id = run->rank[j].groups[k].id;
                }
            }
            if (group->id < 0) group->id = next++;
        }
    }
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

typedef struct key {
    call call;
    member at;
    bool waits; /* an event that waits for the call, and is none of its own */
} key;

static bool key_of(const traces *run, int rank, int index, key *out) {
    const rank_trace *r = &run->rank[rank];
    const event *e = &r->events[index];
    const tshi_trace_event *raw = e->raw;
    const trace_group *g = group_of(r, e);
    const char *name = text_of(r, raw->name);
    if ((!is_call(raw) && raw->kind != TSHI_TRACE_WAIT) || !g || raw->b <= 0) return false;
    *out = (key){.call = {.group = g->id, .number = raw->b, .from = -1, .to = -1},
                 .at = {rank, index},
                 .waits = raw->kind == TSHI_TRACE_WAIT};
    bool sends = !strcmp(name, "send"), receives = !strcmp(name, "recv");
    if (!sends && !receives) {
        out->call.kind = raw->flags & TSHI_TRACE_AGREES ? 1 : 0;
        return true;
    }
    if (raw->peer < 0 || raw->peer >= g->size) return false;
    out->call.kind = 2;
    out->call.from = sends ? r->header.rank : g->ranks[raw->peer];
    out->call.to = sends ? g->ranks[raw->peer] : r->header.rank;
    return true;
}

static int compare_calls(const call *a, const call *b) {
    if (a->group != b->group) return a->group < b->group ? -1 : 1;
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    if (a->from != b->from) return a->from < b->from ? -1 : 1;
    if (a->to != b->to) return a->to < b->to ? -1 : 1;
    return (a->number > b->number) - (a->number < b->number);
}

static int by_call(const void *left, const void *right) {
    const key *a = left, *b = right;
    int order = compare_calls(&a->call, &b->call);
    if (order) return order;
    if (a->waits != b->waits) return a->waits ? 1 : -1;
    if (a->at.rank != b->at.rank) return a->at.rank < b->at.rank ? -1 : 1;
    return (a->at.event > b->at.event) - (a->at.event < b->at.event);
}

static event *event_at(const traces *run, const member *m) {
    return &run->rank[m->rank].events[m->event];
}

/* The calls in which one rank has what all others wait for. */
static bool comes_from_root(const char *name) {
    return !strcmp(name, "broadcast") || !strcmp(name, "scatter");
}

/* A rank of the group that has no part in the call: it never came there. */
static int missing_rank(const traces *run, const call *c, const trace_group *g) {
    if (c->members >= g->size) return -1;
    for (int i = 0; i < g->size; i++) {
        bool there = false, traced = false;
        for (int m = 0; m < c->members; m++) {
            there = there || run->rank[run->members[c->first + m].rank].header.rank == g->ranks[i];
        }
        for (int k = 0; k < run->ranks; k++) traced = traced || run->rank[k].header.rank == g->ranks[i];
        if (!there && traced) return g->ranks[i];
    }
    return -1;
}

/* Sets `late` and `ready`. */
static void find_late(const traces *run, call *c) {
    const event *first = event_at(run, &run->members[c->first]);
    const rank_trace *r = &run->rank[run->members[c->first].rank];
    const trace_group *g = group_of(r, first);
    bool rooted = c->kind == 0 && comes_from_root(text_of(r, first->raw->name));
    int root = rooted && first->raw->peer >= 0 && first->raw->peer < g->size ? g->ranks[first->raw->peer] : -1;
    c->late = -1;
    for (int i = 0; i < c->members; i++) {
        const member *m = &run->members[c->first + i];
        const event *e = event_at(run, m);
        int rank = run->rank[m->rank].header.rank;
        if (root >= 0 && rank != root) continue;
        if (c->late >= 0 && e->begin <= c->ready) continue;
        c->late = rank;
        c->ready = e->begin;
    }
    int missing = c->kind == 2 ? -1 : missing_rank(run, c, g);
    if (missing < 0 || (root >= 0 && missing != root)) return;
    c->late = missing;
    c->ready = first->end;
    for (int i = 0; i < c->members; i++) {
        const event *e = event_at(run, &run->members[c->first + i]);
        if (e->end > c->ready) c->ready = e->end;
    }
}

/* An event that ends before the last rank comes has not waited for it: what it sends lies ready. */
static void set_waits(const traces *run, const call *c, const member *m) {
    event *e = event_at(run, m);
    if (c->late < 0 || c->late == run->rank[m->rank].header.rank || e->end < c->ready || e->begin >= c->ready) return;
    e->waits = c->ready - e->begin;
    e->for_rank = c->late;
}

static int count_keys(const traces *run) {
    int count = 0;
    key k;
    for (int i = 0; i < run->ranks; i++) {
        for (int e = 0; e < run->rank[i].count; e++) count += key_of(run, i, e, &k);
    }
    return count;
}

/* The keys [from, to) are of one call. */
static void add_call(traces *run, const key *keys, int from, int to) {
    call *c = &run->calls[run->calls_count];
    *c = keys[from].call;
    c->first = run->members_count;
    for (int i = from; i < to && !keys[i].waits; i++) run->members[run->members_count++] = keys[i].at;
    c->members = run->members_count - c->first;
    if (c->members == 0) return;
    find_late(run, c);
    for (int i = from; i < to; i++) {
        event_at(run, &keys[i].at)->call = run->calls_count;
        set_waits(run, c, &keys[i].at);
    }
    run->calls_count++;
}

static bool match_calls(traces *run) {
    int count = count_keys(run), n = 0;
    key *keys = calloc((size_t)count + 1, sizeof *keys);
    run->calls = calloc((size_t)count + 1, sizeof *run->calls);
    run->members = calloc((size_t)count + 1, sizeof *run->members);
    bool good = keys && run->calls && run->members;
    for (int i = 0; good && i < run->ranks; i++) {
        for (int e = 0; e < run->rank[i].count; e++) n += key_of(run, i, e, &keys[n]);
    }
    if (good) qsort(keys, (size_t)count, sizeof *keys, by_call);
    for (int from = 0, to; good && from < count; from = to) {
        for (to = from + 1; to < count && !compare_calls(&keys[from].call, &keys[to].call);) to++;
        add_call(run, keys, from, to);
    }
    free(keys);
    return good;
}

/* --- rows of one rank --------------------------------------------------------------------------------------------- */

static bool computes(const tshi_trace_event *raw) {
    return raw->kind == TSHI_TRACE_PRODUCT || raw->kind == TSHI_TRACE_KERNEL;
}

/* The host does one thing at a time: kernels within a call that it waits for are a part of that. */
static void find_inside(rank_trace *r) {
    double until = -1;
    for (int i = 0; i < r->count; i++) {
        event *e = &r->events[i];
        bool waits = e->raw->kind == TSHI_TRACE_WAIT || (is_call(e->raw) && e->raw->flags & TSHI_TRACE_BLOCKS);
        if (!computes(e->raw) && !waits) continue;
        e->inside = e->begin < until;
        if (!e->inside) until = e->end;
    }
}

#define LANES 64

/* Each call takes the first row of its group, messages apart, that is free. */
static void set_lanes(rank_trace *r) {
    double busy[LANES] = {0};
    uint32_t of[LANES];
    for (int i = 0; i < r->count; i++) {
        event *e = &r->events[i];
        if (!is_call(e->raw)) continue;
        uint32_t owner = 2 * e->raw->group + (e->raw->kind != TSHI_TRACE_COLLECTIVE);
        int lane = 0;
        while (lane < r->lanes && (of[lane] != owner || busy[lane] > e->begin)) lane++;
        if (lane == LANES) lane = LANES - 1;
        if (lane == r->lanes) of[r->lanes++] = owner;
        busy[lane] = e->end;
        e->lane = lane;
    }
}

const char *lane_name(const rank_trace *r, int lane, char *text, size_t size) {
    snprintf(text, size, "communication");
    for (int i = 0; i < r->count; i++) {
        const event *e = &r->events[i];
        if (e->lane != lane) continue;
        const trace_group *g = group_of(r, e);
        snprintf(text, size, "%s %s", e->raw->kind == TSHI_TRACE_COLLECTIVE ? "collectives" : "messages",
                 g ? g->axis : "");
        break;
    }
    return text;
}

const char *event_name(const rank_trace *r, const event *e, char *text, size_t size) {
    const char *name = text_of(r, e->raw->name);
    bool back = e->raw->kind == TSHI_TRACE_FUNCTION && e->raw->flags & TSHI_TRACE_BACKWARD;
    if (e->raw->kind == TSHI_TRACE_STEP) name = "optimizer step";
    if (e->raw->kind == TSHI_TRACE_RESET) name = "tape reset";
    snprintf(text, size, "%s%s%s%s", e->raw->kind == TSHI_TRACE_WAIT ? "wait for " : "", name, back ? " backward" : "",
             e->unended ? " (not ended)" : "");
    return text;
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

/* A step ends with the last of these events before the next function. */
static bool find_steps(rank_trace *r, uint32_t kind) {
    bool ended = false;
    r->steps = calloc((size_t)r->count + 2, sizeof *r->steps);
    r->steps_count = 0;
    if (!r->steps) return false;
    if (r->count) r->steps[0] = r->events[0].begin;
    for (int i = 0; i < r->count; i++) {
        const event *e = &r->events[i];
        if (e->raw->kind == TSHI_TRACE_FUNCTION) ended = false;
        if (e->raw->kind != kind || e->unended) continue;
        if (!ended) r->steps_count++;
        ended = true;
        r->steps[r->steps_count] = e->end > e->begin ? e->end : e->begin;
    }
    return true;
}

static bool find_all_steps(traces *run) {
    for (int i = 0; i < run->ranks; i++) {
        if (!find_steps(&run->rank[i], TSHI_TRACE_STEP)) return false;
        run->by_steps = run->by_steps || run->rank[i].steps_count > 0;
    }
    for (int i = 0; i < run->ranks && !run->by_steps; i++) {
        free(run->rank[i].steps);
        if (!find_steps(&run->rank[i], TSHI_TRACE_RESET)) return false;
    }
    return true;
}

/* Leaves the events of the steps that are shown. A step has the same calls on all ranks. */
static bool choose_steps(traces *run) {
    for (int i = 0; i < run->ranks && run->first_step; i++) {
        rank_trace *r = &run->rank[i];
        int first = run->first_step - 1, last = run->last_step < r->steps_count ? run->last_step : r->steps_count,
            n = 0;
        if (first >= last) {
            fprintf(stderr, "tshard-trace: rank %d has %d steps, and none from %d to %d\n", r->header.rank,
                    r->steps_count, run->first_step, run->last_step);
            return false;
        }
        for (int k = 0; k < r->count; k++) {
            const event *e = &r->events[k];
            if (e->begin >= r->steps[first] && e->begin < r->steps[last]) r->events[n++] = *e;
        }
        r->count = n;
        r->steps_count = last - first;
        memmove(r->steps, r->steps + first, (size_t)(r->steps_count + 1) * sizeof *r->steps);
    }
    return true;
}

bool run_match(traces *run) {
    number_groups(run);
    bool good = find_all_steps(run);
    if (good && !choose_steps(run)) return false;
    if (!good || !match_calls(run)) {
        fprintf(stderr, "tshard-trace: %s: there is no memory\n", run->folder);
        return false;
    }
    for (int i = 0; i < run->ranks; i++) {
        find_inside(&run->rank[i]);
        set_lanes(&run->rank[i]);
    }
    return true;
}
