/* Chrome's trace events, which Perfetto opens too: a process for a rank, a thread for its functions and one for each
 * row of its communication, arrows between the events of a call, and a counter of memory. */
#include "tool.h"

#include <string.h>

#define HOST_THREAD 0

void print_string(FILE *to, const char *text) {
    fputc('"', to);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(to, "\\%c", *c);
        else if (*c < 0x20 || *c == '<' || *c >= 0x7f) /* a page has it within <script>; names may be of any coding */
            fprintf(to, "\\u%04x", *c);
        else
            fputc(*c, to);
    }
    fputc('"', to);
}

static const char *category(const event *e) {
    static const char *const names[TSHI_TRACE_KIND_COUNT] = {
        [TSHI_TRACE_FUNCTION] = "function",  [TSHI_TRACE_PRODUCT] = "product",
        [TSHI_TRACE_KERNEL] = "kernel",      [TSHI_TRACE_COLLECTIVE] = "communication",
        [TSHI_TRACE_SEND] = "communication", [TSHI_TRACE_RECV] = "communication",
        [TSHI_TRACE_WAIT] = "wait",          [TSHI_TRACE_STEP] = "step",
        [TSHI_TRACE_RESET] = "step",         [TSHI_TRACE_RANGE] = "range"};
    return names[e->raw->kind] ? names[e->raw->kind] : "other";
}

static void name_thread(FILE *to, int rank, int thread, const char *name) {
    fprintf(to, ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, \"tid\": %d, \"args\": {\"name\": ", rank,
            thread);
    print_string(to, name);
    fprintf(to,
            "}},\n{\"ph\": \"M\", \"name\": \"thread_sort_index\", \"pid\": %d, \"tid\": %d, \"args\": "
            "{\"sort_index\": %d}}",
            rank, thread, thread);
}

static void name_rank(FILE *to, const rank_trace *r, bool first) {
    char text[96];
    int rank = r->header.rank;
    fprintf(to, "%s{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, \"args\": {\"name\": \"rank %d\"}},\n",
            first ? "" : ",\n", rank, rank);
    fprintf(to, "{\"ph\": \"M\", \"name\": \"process_sort_index\", \"pid\": %d, \"args\": {\"sort_index\": %d}}", rank,
            rank);
    name_thread(to, rank, HOST_THREAD, "functions");
    for (int lane = 0; lane < r->lanes; lane++) {
        name_thread(to, rank, HOST_THREAD + 1 + lane, lane_name(r, lane, text, sizeof text));
    }
}

static int thread_of(const event *e) {
    return e->lane >= 0 ? HOST_THREAD + 1 + e->lane : HOST_THREAD;
}

static void print_arguments(FILE *to, const rank_trace *r, const event *e) {
    const tshi_trace_event *raw = e->raw;
    const trace_group *g = group_of(r, e);
    if (raw->kind == TSHI_TRACE_FUNCTION) {
        fprintf(to, "\"tensors\": ");
        print_string(to, text_of(r, raw->detail));
        fprintf(to, ", \"peak\": %lld", (long long)raw->b);
    } else if (raw->kind == TSHI_TRACE_PRODUCT) {
        fprintf(to, "\"m\": %lld, \"n\": %lld, \"k\": %lld", (long long)raw->a, (long long)raw->b, (long long)raw->c);
    } else if (raw->kind == TSHI_TRACE_KERNEL) {
        fprintf(to, "\"bytes\": %lld", (long long)raw->a);
    } else if (g) {
        fprintf(to, "\"axis\": ");
        print_string(to, g->axis);
        fprintf(to, ", \"ranks\": %d, \"number\": %lld", g->size, (long long)raw->b);
        if (raw->kind != TSHI_TRACE_WAIT) fprintf(to, ", \"bytes\": %lld", (long long)raw->a);
        if (e->for_rank >= 0) fprintf(to, ", \"waits_us\": %.3f, \"for_rank\": %d", e->waits, e->for_rank);
    }
}

static void print_event(FILE *to, const rank_trace *r, const event *e) {
    char name[128];
    fprintf(to, ",\n{\"ph\": \"X\", \"cat\": \"%s\", \"name\": ", category(e));
    print_string(to, event_name(r, e, name, sizeof name));
    fprintf(to, ", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, \"args\": {", r->header.rank, thread_of(e),
            e->begin, e->end - e->begin);
    print_arguments(to, r, e);
    fprintf(to, "}}");
    if (e->raw->kind != TSHI_TRACE_FUNCTION || e->unended) return;
    fprintf(to,
            ",\n{\"ph\": \"C\", \"name\": \"memory\", \"pid\": %d, \"ts\": %.3f, \"args\": {\"bytes in use\": %lld}}",
            r->header.rank, e->end, (long long)e->raw->a);
}

static const event *event_of(const traces *run, const member *m) {
    return &run->rank[m->rank].events[m->event];
}

static void print_arrow(FILE *to, const traces *run, const member *from, const member *at, int number) {
    const event *a = event_of(run, from), *b = event_of(run, at);
    fprintf(
        to,
        ",\n{\"ph\": \"s\", \"cat\": \"call\", \"name\": \"call\", \"id\": %d, \"pid\": %d, \"tid\": %d, \"ts\": %.3f}",
        number, run->rank[from->rank].header.rank, thread_of(a), a->begin);
    fprintf(to,
            ",\n{\"ph\": \"f\", \"bp\": \"e\", \"cat\": \"call\", \"name\": \"call\", \"id\": %d, \"pid\": %d, "
            "\"tid\": %d, "
            "\"ts\": %.3f}",
            number, run->rank[at->rank].header.rank, thread_of(b), b->end > a->begin ? b->end : a->begin);
}

/* Arrows: from a send to its receive, and from a collective's last rank to each of its peers. */
static void print_arrows(FILE *to, const traces *run, const call *c, int *number) {
    const member *from = NULL;
    for (int i = 0; i < c->members; i++) {
        const member *m = &run->members[c->first + i];
        int rank = run->rank[m->rank].header.rank;
        if (rank == (c->kind == 2 ? c->from : c->late)) from = m;
    }
    for (int i = 0; from && i < c->members; i++) {
        const member *m = &run->members[c->first + i];
        if (m != from) print_arrow(to, run, from, m, ++*number);
    }
}

void write_json(const traces *run, FILE *to) {
    int arrows = 0;
    fprintf(to, "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n");
    for (int i = 0; i < run->ranks; i++) name_rank(to, &run->rank[i], i == 0);
    for (int i = 0; i < run->ranks; i++) {
        const rank_trace *r = &run->rank[i];
        for (int k = 0; k < r->count; k++) print_event(to, r, &r->events[k]);
    }
    for (int i = 0; i < run->calls_count; i++) print_arrows(to, run, &run->calls[i], &arrows);
    fprintf(to, "\n]}\n");
}
