/* The page: page.html, with the run's events in place of its mark. */
#include "tool.h"

#include <stdlib.h>
#include <string.h>

/* Made of page.html. */
extern const char page_html[];

/* Texts of all ranks, each once. */
typedef struct names {
    char **text;
    int count, room;
    int *table; /* [size] their numbers plus 1, by hash */
    int size;
    bool lost;
} names;

static unsigned hash_of(const char *text) {
    unsigned h = 2166136261u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 16777619u;
    return h;
}

static int *place_of(const names *n, const char *text) {
    unsigned at = hash_of(text) & (unsigned)(n->size - 1);
    while (n->table[at] && strcmp(n->text[n->table[at] - 1], text) != 0) at = (at + 1) & (unsigned)(n->size - 1);
    return &n->table[at];
}

static bool grow(names *n) {
    int size = n->size ? 2 * n->size : 1024;
    char **text = realloc(n->text, (size_t)size / 2 * sizeof *text);
    int *places = calloc((size_t)size, sizeof *places);
    if (text) n->text = text;
    if (!text || !places) {
        free(places);
        return false;
    }
    free(n->table);
    n->table = places;
    n->size = size;
    for (int i = 0; i < n->count; i++) *place_of(n, n->text[i]) = i + 1;
    return true;
}

/* The text's number; that of the first text where there is no memory. */
static int number_of(names *n, const char *text) {
    if (2 * (n->count + 1) > n->size && !grow(n)) n->lost = true;
    int *place = n->size ? place_of(n, text) : NULL;
    if (place && *place) return *place - 1;
    char *copy = n->lost ? NULL : strdup(text);
    if (!copy) {
        n->lost = true;
        return 0;
    }
    n->text[n->count++] = copy;
    *place = n->count;
    return n->count - 1;
}

static const char *detail_of(const rank_trace *r, const event *e, char *text, size_t size) {
    const tshi_trace_event *raw = e->raw;
    const trace_group *g = group_of(r, e);
    text[0] = '\0';
    if (raw->kind == TSHI_TRACE_FUNCTION) return text_of(r, raw->detail);
    if (raw->kind == TSHI_TRACE_PRODUCT) {
        snprintf(text, size, "%lld x %lld x %lld", (long long)raw->a, (long long)raw->b, (long long)raw->c);
    } else if (raw->kind == TSHI_TRACE_KERNEL) {
        snprintf(text, size, "%lld bytes", (long long)raw->a);
    } else if (g && is_call(raw)) {
        snprintf(text, size, "%s, %d ranks, %lld bytes", g->axis, g->size, (long long)raw->a);
    }
    return text;
}

/* [begin, duration, kind, name, detail, row of communication or -1, call, waits, for which rank, bytes in use] */
static void print_event(FILE *to, names *n, const rank_trace *r, const event *e) {
    char name[160], detail[256];
    int first = number_of(n, event_name(r, e, name, sizeof name));
    int second = number_of(n, detail_of(r, e, detail, sizeof detail));
    fprintf(to, "[%.3f,%.3f,%d,%d,%d,%d,%d", e->begin, e->end - e->begin, (int)e->raw->kind - TSHI_TRACE_FUNCTION,
            first, second, e->lane, e->call);
    if (e->raw->kind == TSHI_TRACE_FUNCTION || e->waits > 0) {
        fprintf(to, ",%.3f,%d,%lld", e->waits, e->for_rank,
                e->raw->kind == TSHI_TRACE_FUNCTION ? (long long)e->raw->a : 0LL);
    }
    fprintf(to, "]");
}

static void print_rank(FILE *to, names *n, const rank_trace *r) {
    char text[96];
    fprintf(to, "{\"rank\": %d, \"lanes\": [", r->header.rank);
    for (int lane = 0; lane < r->lanes; lane++) {
        fprintf(to, "%s", lane ? ", " : "");
        print_string(to, lane_name(r, lane, text, sizeof text));
    }
    fprintf(to, "], \"events\": [");
    for (int i = 0; i < r->count; i++) {
        fprintf(to, "%s\n", i ? "," : "");
        print_event(to, n, r, &r->events[i]);
    }
    fprintf(to, "]}");
}

static void print_data(const traces *run, const table *t, FILE *to) {
    names n = {0};
    const rank_trace *r = &run->rank[0];
    number_of(&n, "");
    fprintf(to, "{\"ranks\": [");
    for (int i = 0; i < run->ranks; i++) {
        fprintf(to, "%s\n", i ? "," : "");
        print_rank(to, &n, &run->rank[i]);
    }
    fprintf(to, "],\n\"names\": [");
    for (int i = 0; i < n.count; i++) {
        fprintf(to, "%s", i ? ",\n" : "");
        print_string(to, n.text[i]);
        free(n.text[i]);
    }
    free(n.text);
    free(n.table);
    /* The step that is shown first: one in the middle. */
    int middle = r->steps_count / 2;
    double last = r->count ? r->events[r->count - 1].end : 1;
    fprintf(to, "],\n\"step\": [%.3f, %.3f],\n\"table\": ", r->steps[middle],
            r->steps_count ? r->steps[middle + 1] : last);
    table_json(run, t, to);
    fprintf(to, "}");
}

void write_html(const traces *run, const table *t, FILE *to) {
    static const char mark[] = "/*DATA*/";
    const char *at = strstr(page_html, mark);
    if (!at) return;
    fwrite(page_html, 1, (size_t)(at - page_html), to);
    print_data(run, t, to);
    fputs(at + sizeof mark - 1, to);
}
