/* The table: where a step's time goes, and which rank its peers wait for. */
#include "tool.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

/* --- a rank's steps ----------------------------------------------------------------------------------------------- */

/* The run's first step sets things up, and is left out where there are more. */
static int steps_skipped(const traces *run, const rank_trace *r) {
    return r->steps_count > 1 && !run->first_step ? 1 : 0;
}

/* The steps that count. */
static void window(const traces *run, const rank_trace *r, double *from, double *to, int *steps) {
    int skip = steps_skipped(run, r);
    *steps = r->steps_count - skip;
    *from = r->steps[skip];
    *to = r->steps[r->steps_count];
    if (r->steps_count > 0) return;
    *steps = 1;
    *to = *from;
    for (int i = 0; i < r->count; i++) {
        if (r->events[i].end > *to) *to = r->events[i].end;
    }
}

/* The host stands still until the call is done. */
static bool is_exposed(const event *e) {
    return e->raw->kind == TSHI_TRACE_WAIT || (is_call(e->raw) && e->raw->flags & TSHI_TRACE_BLOCKS);
}

static bool counts(const event *e, double from, double to) {
    return e->begin >= from && e->begin < to;
}

static void add_share(const rank_trace *r, share *s, double from, double to) {
    for (int i = 0; i < r->count; i++) {
        const event *e = &r->events[i];
        double took = e->end - e->begin;
        if (!counts(e, from, to)) continue;
        if (is_call(e->raw) && !is_exposed(e)) s->hidden += took;
        if (e->raw->kind == TSHI_TRACE_WAIT) s->hidden -= took;
        if (e->inside) continue;
        if (e->raw->kind == TSHI_TRACE_PRODUCT) s->products += took;
        if (e->raw->kind == TSHI_TRACE_KERNEL) *(is_attention(r, e) ? &s->attention : &s->kernels) += took;
        if (!is_exposed(e)) continue;
        s->moving += took - e->waits;
        s->waiting += e->waits;
    }
}

static void divide(share *s, double from, double to, int steps) {
    s->step = (to - from) / steps;
    s->products /= steps;
    s->attention /= steps;
    s->kernels /= steps;
    s->moving /= steps;
    s->waiting /= steps;
    s->hidden = s->hidden > 0 ? s->hidden / steps : 0;
    s->rest = s->step - s->products - s->attention - s->kernels - s->moving - s->waiting;
    if (s->rest < 0) s->rest = 0;
}

/* --- the rank that its peers wait for ----------------------------------------------------------------------------- */

static const rank_trace *trace_of(const traces *run, int rank) {
    for (int i = 0; i < run->ranks; i++) {
        if (run->rank[i].header.rank == rank) return &run->rank[i];
    }
    return NULL;
}

/* The first event of the rank that begins at that time or later. */
static int first_at(const rank_trace *r, double time) {
    int low = 0, high = r->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (r->events[middle].begin < time)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* How far before a time an event may begin that still lasts then, in events. */
#define LOOK_BACK 64

/* A rank waits for `rank` from one time to another: where that one waited for a third meanwhile, the third gets it. */
static void blame(const traces *run, double *waits, int rank, double from, double to, int depth) {
    const rank_trace *r = trace_of(run, rank);
    int i = r && depth > 0 ? first_at(r, from) : 0;
    for (i = i > LOOK_BACK ? i - LOOK_BACK : 0; r && depth > 0 && i < r->count && r->events[i].begin < to; i++) {
        const event *e = &r->events[i];
        double since = e->begin > from ? e->begin : from, until = e->begin + e->waits;
        if (until > to) until = to;
        if (e->inside || !is_exposed(e) || e->for_rank < 0 || until <= since) continue;
        waits[rank] += since - from;
        blame(run, waits, e->for_rank, since, until, depth - 1);
        from = until;
    }
    waits[rank] += to - from;
}

static bool add_waits(const traces *run, const rank_trace *r, share *s, double from, double to, int steps) {
    s->waits = calloc((size_t)run->size, sizeof *s->waits);
    if (!s->waits) return false;
    for (int i = 0; i < r->count; i++) {
        const event *e = &r->events[i];
        if (!counts(e, from, to) || e->inside || !is_exposed(e) || e->for_rank < 0) continue;
        blame(run, s->waits, e->for_rank, e->begin, e->begin + e->waits, run->size);
    }
    for (int i = 0; i < run->size; i++) s->waits[i] /= steps;
    return true;
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

typedef struct rows {
    row *row;
    uint64_t *key;
    int count, room;
} rows;

static uint64_t add_text(uint64_t key, const char *text) {
    for (; *text; text++) key = tshi_fingerprint_add(key, (unsigned char)*text);
    return tshi_fingerprint_add(key, 0);
}

static row *row_of(rows *all, uint64_t key) {
    for (int i = 0; i < all->count; i++) {
        if (all->key[i] == key) return &all->row[i];
    }
    if (all->count == all->room) {
        int room = all->room ? 2 * all->room : 64;
        row *more = realloc(all->row, (size_t)room * sizeof *more);
        uint64_t *keys = realloc(all->key, (size_t)room * sizeof *keys);
        if (more) all->row = more;
        if (keys) all->key = keys;
        if (!more || !keys) return NULL;
        all->room = room;
    }
    all->key[all->count] = key;
    all->row[all->count] = (row){.what = ""};
    return &all->row[all->count++];
}

static bool add_row(rows *all, const rank_trace *r, const event *e, int steps) {
    const tshi_trace_event *raw = e->raw;
    const char *name = text_of(r, raw->name), *axis = "";
    bool product = raw->kind == TSHI_TRACE_PRODUCT, talks = is_call(raw);
    char shape[96];
    const trace_group *g = talks ? group_of(r, e) : NULL;
    if (g) axis = g->axis;
    if (product) {
        snprintf(shape, sizeof shape, "%lld x %lld x %lld", (long long)raw->a, (long long)raw->b, (long long)raw->c);
        name = shape;
    }
    uint64_t key = add_text(add_text(tshi_fingerprint_add(TSHI_FINGERPRINT, talks), name), axis);
    row *to = row_of(all, key);
    if (!to) return false;
    if (!to->what[0]) {
        to->what = product ? "product" : talks ? "communication" : is_attention(r, e) ? "attention" : "kernel";
        to->name = product ? strdup(shape) : name;
        to->axis = axis;
        if (!to->name) return false;
    }
    double waits = talks ? e->waits : 0;
    to->calls += 1.0 / steps;
    to->time += (e->end - e->begin - waits) / steps;
    to->waits += waits / steps;
    to->bytes += (double)(product ? 0 : raw->a) / steps;
    return true;
}

static int by_time(const void *left, const void *right) {
    const row *a = left, *b = right;
    double x = a->time + a->waits, y = b->time + b->waits;
    return (x < y) - (x > y);
}

/* --- all ---------------------------------------------------------------------------------------------------------- */

static int by_size(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median_step(const traces *run) {
    size_t count = 0, n = 0;
    for (int i = 0; i < run->ranks; i++) count += (size_t)run->rank[i].steps_count;
    double *all = calloc(count + 1, sizeof *all), median = 0;
    for (int i = 0; all && i < run->ranks; i++) {
        const rank_trace *r = &run->rank[i];
        for (int k = steps_skipped(run, r); k < r->steps_count; k++) all[n++] = r->steps[k + 1] - r->steps[k];
    }
    if (all && n) {
        qsort(all, n, sizeof *all, by_size);
        median = all[n / 2];
    }
    free(all);
    return median;
}

#define PARTS 5

static void parts_of(const share *s, double parts[PARTS]) {
    const double all[PARTS] = {s->products, s->attention, s->kernels, s->moving, s->rest};
    memcpy(parts, all, sizeof all);
}

/* The part of a step in which the worst rank is slowest, compared with the mean of its peers. */
static void explain_worst(const traces *run, table *t) {
    static const char *const names[PARTS] = {"matrix products", "attention", "other kernels", "communication",
                                             "its own work between the calls"};
    double own[PARTS] = {0}, sum[PARTS] = {0}, parts[PARTS];
    bool found = false;
    for (int i = 0; i < run->ranks; i++) {
        bool worst = t->share[i].rank == t->worst;
        parts_of(&t->share[i], worst ? own : parts);
        for (int p = 0; p < PARTS && !worst; p++) sum[p] += parts[p];
        found = found || worst;
    }
    for (int p = 0; p < PARTS && found && run->ranks > 1; p++) {
        double extra = own[p] - sum[p] / (run->ranks - 1);
        if (extra <= t->worst_extra) continue;
        t->worst_extra = extra;
        t->worst_more = names[p];
    }
}

/* The calls in which the worst rank comes last, and those of them in which its peers wait longest. */
static void find_where(const traces *run, table *t) {
    rows in = {0};
    for (int i = 0; i < run->ranks; i++) {
        const rank_trace *r = &run->rank[i];
        for (int k = 0; k < r->count; k++) {
            const event *e = &r->events[k];
            const trace_group *g = e->for_rank == t->worst ? group_of(r, e) : NULL;
            if (!g || e->inside || !is_exposed(e)) continue;
            const char *name = text_of(r, e->raw->name);
            row *to = row_of(&in, add_text(add_text(TSHI_FINGERPRINT, name), g->axis));
            if (!to) continue;
            to->name = name;
            to->axis = g->axis;
            to->waits += e->waits;
        }
    }
    const row *most = NULL;
    for (int i = 0; i < in.count; i++) {
        if (!most || in.row[i].waits > most->waits) most = &in.row[i];
    }
    if (most) {
        t->worst_in = most->name;
        t->worst_axis = most->axis;
    }
    free(in.row);
    free(in.key);
}

/* A hundredth of a step is no worth a word. */
static void find_worst(const traces *run, table *t) {
    double most = 0, all = 0;
    for (int rank = 0; rank < run->size; rank++) {
        double waits = 0;
        for (int i = 0; i < run->ranks; i++) waits += t->share[i].rank != rank ? t->share[i].waits[rank] : 0;
        if (waits <= most) continue;
        most = waits;
        t->worst = rank;
    }
    for (int i = 0; i < run->ranks; i++) all += t->share[i].step;
    t->worst_waits = most;
    if (most < 0.01 * all) t->worst = -1;
    if (t->worst < 0) return;
    find_where(run, t);
    explain_worst(run, t);
}

bool table_make(const traces *run, table *out) {
    rows all = {0};
    *out = (table){.worst = -1};
    out->share = calloc((size_t)run->ranks, sizeof *out->share);
    if (!out->share) return false;
    for (int i = 0; i < run->ranks; i++) {
        const rank_trace *r = &run->rank[i];
        share *s = &out->share[i];
        double from, to;
        int steps;
        window(run, r, &from, &to, &steps);
        s->rank = r->header.rank;
        add_share(r, s, from, to);
        divide(s, from, to, steps);
        if (!add_waits(run, r, s, from, to, steps)) return false;
        for (int k = 0; k < r->count; k++) {
            const event *e = &r->events[k];
            bool computes = e->raw->kind == TSHI_TRACE_PRODUCT || e->raw->kind == TSHI_TRACE_KERNEL;
            bool in = counts(e, from, to) && (is_call(e->raw) || (computes && !e->inside));
            if (in && !add_row(&all, r, e, steps)) return false;
        }
        if (i == 0 || steps < out->steps) out->steps = steps;
        out->left_out = steps_skipped(run, r) > 0;
    }
    out->rows = all.row;
    out->rows_count = all.count;
    if (all.count) qsort(all.row, (size_t)all.count, sizeof *all.row, by_time);
    free(all.key);
    out->median = median_step(run);
    find_worst(run, out);
    return true;
}

/* --- as text ------------------------------------------------------------------------------------------------------ */

#define MOST_ROWS 20

static double ms(double microseconds) {
    return microseconds / 1000;
}

static void print_worst(const table *t, FILE *to) {
    if (t->worst < 0) {
        fprintf(to, "\nNo rank keeps the others waiting for more than a hundredth of a step.\n");
        return;
    }
    fprintf(to,
            "\nRank %d is the one that the others wait for: %.2f ms of a step, all together, most of it in %s (%s).\n",
            t->worst, ms(t->worst_waits), t->worst_in ? t->worst_in : "", t->worst_axis ? t->worst_axis : "");
    if (t->worst_more) {
        fprintf(to, "It takes %.2f ms more than the others on average for %s.\n", ms(t->worst_extra), t->worst_more);
    }
}

/* "rank 2, 12.10 ms". */
static void print_waited(const traces *run, const share *s, FILE *to) {
    int most = 0;
    for (int i = 1; i < run->size; i++) {
        if (s->waits[i] > s->waits[most]) most = i;
    }
    if (s->waits[most] > 0)
        fprintf(to, "  rank %d, %.2f ms\n", most, ms(s->waits[most]));
    else
        fprintf(to, "  -\n");
}

void table_print(const traces *run, const table *t, FILE *to) {
    fprintf(to, "%d rank%s, %d step%s each%s, median %.2f ms\n\n", run->ranks, run->ranks == 1 ? "" : "s", t->steps,
            t->steps == 1 ? "" : "s", t->left_out ? " (without the first)" : "", ms(t->median));
    fprintf(to, "milliseconds of a step, on average\n");
    fprintf(to,
            "rank      step  products attention   kernels    moving   waiting      rest    hidden  waits most for\n");
    for (int i = 0; i < run->ranks; i++) {
        const share *s = &t->share[i];
        fprintf(to, "%4d %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f", s->rank, ms(s->step), ms(s->products),
                ms(s->attention), ms(s->kernels), ms(s->moving), ms(s->waiting), ms(s->rest), ms(s->hidden));
        print_waited(run, s, to);
    }
    fprintf(to, "\nproducts: matrix products; attention: kernels of attention, whose products are within them; "
                "kernels: all others;\n"
                "moving, waiting: communication that the rank stands still for, and of it the wait for other ranks;\n"
                "rest: between the calls; hidden: communication beside other work, which takes no time of the step\n");
    print_worst(t, to);
    fprintf(to, "\nof a step, all ranks together\n");
    fprintf(to, "%-14s %-36s %9s %10s %10s %10s\n", "what", "name", "calls", "ms", "waits ms", "MB");
    for (int i = 0; i < t->rows_count && i < MOST_ROWS; i++) {
        const row *r = &t->rows[i];
        char name[128];
        snprintf(name, sizeof name, "%s%s%s%s", r->name, r->axis[0] ? " (" : "", r->axis, r->axis[0] ? ")" : "");
        fprintf(to, "%-14s %-36s %9.1f %10.3f %10.3f %10.3f\n", r->what, name, r->calls, ms(r->time), ms(r->waits),
                r->bytes / 1e6);
    }
}

void table_json(const traces *run, const table *t, FILE *to) {
    fprintf(to, "{\"ranks\": %d, \"world\": %d, \"steps\": %d, \"median_ms\": %.6g, \"worst\": ", run->ranks, run->size,
            t->steps, ms(t->median));
    if (t->worst >= 0) {
        fprintf(to, "{\"rank\": %d, \"waits_ms\": %.6g, \"in\": ", t->worst, ms(t->worst_waits));
        print_string(to, t->worst_in ? t->worst_in : "");
        fprintf(to, ", \"axis\": ");
        print_string(to, t->worst_axis ? t->worst_axis : "");
        fprintf(to, ", \"takes_longer_for\": ");
        print_string(to, t->worst_more ? t->worst_more : "");
        fprintf(to, ", \"by_ms\": %.6g},\n", ms(t->worst_extra));
    } else {
        fprintf(to, "null,\n");
    }
    fprintf(to, " \"ms\": [");
    for (int i = 0; i < run->ranks; i++) {
        const share *s = &t->share[i];
        fprintf(to,
                "%s\n  {\"rank\": %d, \"step\": %.6g, \"products\": %.6g, \"attention\": %.6g, \"kernels\": %.6g, "
                "\"moving\": %.6g, "
                "\"waiting\": %.6g, \"rest\": %.6g, \"hidden\": %.6g, \"waits_for\": [",
                i ? "," : "", s->rank, ms(s->step), ms(s->products), ms(s->attention), ms(s->kernels), ms(s->moving),
                ms(s->waiting), ms(s->rest), ms(s->hidden));
        for (int k = 0; k < run->size; k++) fprintf(to, "%s%.6g", k ? ", " : "", ms(s->waits[k]));
        fprintf(to, "]}");
    }
    fprintf(to, "],\n \"rows\": [");
    for (int i = 0; i < t->rows_count; i++) {
        const row *r = &t->rows[i];
        fprintf(to, "%s\n  {\"what\": \"%s\", \"name\": ", i ? "," : "", r->what);
        print_string(to, r->name);
        fprintf(to, ", \"axis\": ");
        print_string(to, r->axis);
        fprintf(to, ", \"calls\": %.6g, \"ms\": %.6g, \"waits_ms\": %.6g, \"bytes\": %.10g}", r->calls, ms(r->time),
                ms(r->waits), r->bytes);
    }
    fprintf(to, "]}\n");
}
