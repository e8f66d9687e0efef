/* What ranks hold, put together and compared with the whole. */
#include "differential/trace.h"
#include "layout/layout.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

void tshi_verdict_fail(tshi_verdict *v, const char *format, ...) {
    va_list arguments;
    v->kind = VERDICT_FAILED;
    va_start(arguments, format);
    vsnprintf(v->words, sizeof v->words, format, arguments);
    va_end(arguments);
}

/* --- ends --------------------------------------------------------------------------------------------------------- */

/* "rank 2: " is another number on every rank, and its part of a tensor another shape. */
static void without_rank(const char *words, char *out, size_t size) {
    size_t used = 0;
    while (*words && used + 1 < size) {
        if (!strncmp(words, "rank ", 5)) {
            words += 5 + strspn(words + 5, "0123456789");
            continue;
        }
        if (*words == '[') words += strcspn(words, "]");
        if (*words) out[used++] = *words++;
    }
    out[used] = '\0';
}

static bool ended_alike(const tshi_trace *a, const tshi_trace *b) {
    char x[sizeof a->words], y[sizeof b->words];
    without_rank(a->words, x, sizeof x);
    without_rank(b->words, y, sizeof y);
    return a->status == b->status && a->pass == b->pass && a->step == b->step && !strcmp(x, y);
}

static void describe_end(const tshi_trace *t, int rank, char *text, size_t size) {
    snprintf(text, size, "rank %d: %s in pass %d, step %d: %.800s", rank, tsh_status_name(t->status), t->pass, t->step,
             t->words);
}

bool tshi_judge_ends(const tshi_program *p, const tshi_trace *ranks, tshi_verdict *v) {
    int count = tshi_program_ranks(p), worst = -1;
    char a[900], b[900];
    for (int r = 0; r < count; r++) {
        if (ranks[r].status != TSH_OK && (worst < 0 || ranks[worst].status == TSH_ERR_PEER)) worst = r;
    }
    if (worst < 0) return true;
    if (p->spoil >= 0 &&
        strstr(ranks[worst].words, "was written to after the call")) { /* backward is no step by step */
        v->kind = VERDICT_UNJUDGED;
        return false;
    }
    describe_end(&ranks[worst], worst, a, sizeof a);
    for (int r = 0; r < count; r++) {
        if (ended_alike(&ranks[r], &ranks[worst])) continue;
        describe_end(&ranks[r], r, b, sizeof b);
        tshi_verdict_fail(v, "ranks end differently:\n  %s\n  %s", a, b);
        return false;
    }
    tshi_verdict_fail(v, "%s", a);
    if (ranks[worst].status == TSH_ERR_LAYOUT) v->kind = VERDICT_REFUSED;
    return false;
}

/* --- entries ------------------------------------------------------------------------------------------------------ */

typedef struct comparison {
    const tshi_program *p;
    const tshi_trace *ranks, *truths;
    tshi_verdict *v;
    double largest, tolerance; /* of all of the truth's numbers; 0: exact */
} comparison;

static bool differ(comparison *c, const tshi_entry *e, int rank, const char *format, ...) TSH_PRINTF(4, 5);

static bool differ(comparison *c, const tshi_entry *e, int rank, const char *format, ...) {
    static const char *const names[] = {"value", "gradient of parameter", "retained gradient of value", "parameter",
                                        "gradient norm"};
    char words[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    tshi_verdict_fail(c->v, "pass %d, objective %d, rank %d: %s %d%s: %s", e->pass, e->objective, rank, names[e->kind],
                      e->index, e->kind == ENTRY_GRADIENT || e->kind == ENTRY_PARAMETER ? " (in the list below)" : "",
                      words);
    return false;
}

static bool layouts_equal(const tshi_program *p, const tsh_layout *a, const tsh_layout *b) {
    for (int i = 0; i < p->axes; i++) {
        if (a[i].kind != b[i].kind || a[i].order != b[i].order) return false;
        bool alike =
            a[i].dim == b[i].dim && a[i].units == b[i].units && a[i].blocks == b[i].blocks && a[i].cuts == b[i].cuts;
        if (a[i].kind == TSH_KIND_SHARD && (!alike || a[i].sharing != b[i].sharing)) return false;
    }
    return true;
}

static bool dims_equal(const tshi_dims *a, const tshi_dims *b) {
    return a->ndim == b->ndim && !memcmp(a->dim, b->dim, sizeof *a->dim * (size_t)a->ndim);
}

/* Ranks at two indices along an axis hold terms of one sum: along a PARTIAL axis, and of a gradient where they share a
 * unit for their own use. */
static bool are_terms(const comparison *c, const tshi_entry *e, int axis, int i, int j) {
    const tsh_layout *layout = &e->layout[axis];
    bool gradient = e->kind == ENTRY_GRADIENT || e->kind == ENTRY_RETAINED;
    if (layout->kind == TSH_KIND_PARTIAL || i == j) return true;
    if (!gradient || layout->sharing != TSH_SHARED_OWN) return false;
    int first, other;
    tshi_layout_sharers(layout, tshi_program_parts(c->p, axis), i, &first);
    tshi_layout_sharers(layout, tshi_program_parts(c->p, axis), j, &other);
    return first == other;
}

/* The sum of element i over the ranks that hold terms of it beside rank. */
static double summed(const comparison *c, int k, int rank, int64_t i) {
    const tshi_entry *e = &c->ranks[rank].entries[k];
    int ranks = tshi_program_ranks(c->p);
    double sum = 0;
    for (int r = 0; r < ranks; r++) {
        bool term = true;
        for (int a = 0; a < c->p->axes; a++)
            term = term && are_terms(c, e, a, tshi_rank_index(c->p, rank, a), tshi_rank_index(c->p, r, a));
        if (term) sum += c->ranks[r].numbers[c->ranks[r].entries[k].at + (size_t)i];
    }
    return sum;
}

/* Ranks that differ along REPLICATED axes alone, or that share units, hold the same terms of sums. */
static bool is_replica(const comparison *c, const tshi_entry *e, int rank, int other) {
    for (int a = 0; a < c->p->axes; a++) {
        int i = tshi_rank_index(c->p, rank, a), j = tshi_rank_index(c->p, other, a), first = i, same = j;
        if (e->layout[a].sharing == TSH_SHARED) {
            tshi_layout_sharers(&e->layout[a], tshi_program_parts(c->p, a), i, &first);
            tshi_layout_sharers(&e->layout[a], tshi_program_parts(c->p, a), j, &same);
        }
        bool alike = e->layout[a].kind == TSH_KIND_REPLICATED || first == same;
        if (!alike) return false;
    }
    return true;
}

static bool same_number(const comparison *c, double got, double wanted) {
    if (c->tolerance == 0) return got == wanted || (isnan(got) && isnan(wanted));
    return fabs(got - wanted) <= c->tolerance; /* false of NaNs */
}

static bool compare_replicas(comparison *c, int k, int rank) {
    const tshi_entry *e = &c->ranks[rank].entries[k];
    for (int r = 0; r < rank; r++) {
        const tshi_entry *other = &c->ranks[r].entries[k];
        if (!is_replica(c, e, rank, r) || other->count != e->count) continue;
        for (int64_t i = 0; i < e->count; i++) {
            double a = c->ranks[rank].numbers[e->at + (size_t)i], b = c->ranks[r].numbers[other->at + (size_t)i];
            if (!same_number(c, a, b))
                return differ(c, e, rank, "element %lld here is %.17g, on rank %d, which holds the same, %.17g",
                              (long long)i, a, r, b);
        }
        return true;
    }
    return true;
}

static bool compare_numbers(comparison *c, int k, int rank) {
    const tshi_entry *e = &c->ranks[rank].entries[k], *whole = &c->truths[rank].entries[k];
    tshi_held box = tshi_held_of(c->p, e->layout, rank, &whole->shape);
    if (!dims_equal(&e->shape, &box.shape) || !dims_equal(&e->whole, &whole->shape)) {
        return differ(c, e, rank, "its shape or global shape is wrong");
    }
    if (!compare_replicas(c, k, rank)) return false;
    if (tshi_rank_number(c->p, e->layout, TSH_KIND_PARTIAL, rank) > 0) return true;
    for (int64_t i = 0; i < e->count; i++) {
        int64_t at = tshi_held_index(&box, &whole->shape, i);
        double got = summed(c, k, rank, i), wanted = c->truths[rank].numbers[whole->at + (size_t)at];
        if (!same_number(c, got, wanted)) {
            return differ(c, e, rank, "element %lld of the whole is %.17g, on one rank %.17g", (long long)at, got,
                          wanted);
        }
    }
    c->v->compared += e->count;
    return true;
}

/* The first rank that must have the layouts of this one: where LOCAL tensors differ in size along an axis, so may what
 * is cheapest for those that share them. */
static int layout_peer(const tshi_program *p, int rank) {
    int peer = 0;
    while (p->ragged >= 0 && tshi_rank_index(p, peer, p->ragged) != tshi_rank_index(p, rank, p->ragged)) peer++;
    return peer;
}

static bool compare_entry(comparison *c, int k) {
    const tshi_entry *first = &c->ranks[0].entries[k];
    int ranks = tshi_program_ranks(c->p);
    bool all = true;
    for (int r = 0; r < ranks; r++) {
        const tshi_entry *e = &c->ranks[r].entries[k], *w = &c->truths[r].entries[k];
        bool same = e->kind == w->kind && e->index == w->index && e->pass == w->pass && e->objective == w->objective;
        if (!same) return differ(c, e, r, "is not what one rank has here (entry %d)", k);
        const tshi_entry *like = &c->ranks[layout_peer(c->p, r)].entries[k];
        /* A view of a sharded parameter may be there: with it are its bucket's others, which differ by rank. */
        bool view = c->p->dp_level && e->kind == ENTRY_VALUE && !(e->present && like->present);
        bool alike = (e->present == like->present || view) && e->alias == like->alias;
        all = all && e->present;
        if (!alike || !layouts_equal(c->p, e->layout, like->layout))
            return differ(c, e, r, "its layout or presence is not that of rank %d", layout_peer(c->p, r));
        if (e->present != w->present && !view)
            return differ(c, e, r, "there is %s, on one rank %s", e->present ? "one" : "none",
                          w->present ? "one" : "none");
    }
    for (int r = 0; r < ranks && all; r++) {
        bool same = first->kind == ENTRY_NORM ? same_number(c, c->ranks[r].numbers[c->ranks[r].entries[k].at],
                                                            c->truths[r].numbers[c->truths[r].entries[k].at])
                                              : compare_numbers(c, k, r);
        if (!same && c->v->kind != VERDICT_FAILED) differ(c, first, r, "the norm differs");
        if (!same) return false;
    }
    return true;
}

/* A gradient is laid out as its tensor, with REPLICATED for PARTIAL; a parameter's may be a slice. */
static bool compare_layouts(comparison *c, int k) {
    const tshi_entry *e = &c->ranks[0].entries[k];
    if (!e->present || (e->kind != ENTRY_RETAINED && e->kind != ENTRY_GRADIENT)) return true;
    if (e->kind == ENTRY_GRADIENT && c->p->dp_level) return true;
    const tshi_entry *value = e->kind == ENTRY_RETAINED ? tshi_trace_value(&c->ranks[0], e->pass, e->index) : NULL;
    for (int i = 0; i < c->ranks[0].count && e->kind == ENTRY_GRADIENT; i++) {
        const tshi_entry *other = &c->ranks[0].entries[i];
        if (other->kind == ENTRY_PARAMETER && other->index == e->index) value = other;
    }
    if (!value) return true;
    tsh_layout wanted[TSH_MAX_AXES];
    for (int a = 0; a < c->p->axes; a++) {
        wanted[a] = value->layout[a].kind == TSH_KIND_PARTIAL ? TSH_REPLICATED : value->layout[a];
    }
    return layouts_equal(c->p, e->layout, wanted) || differ(c, e, 0, "it is not laid out as its tensor");
}

/* Evaluation chooses the layouts that training does. */
static bool compare_passes(comparison *c, int k) {
    const tshi_entry *e = &c->ranks[0].entries[k];
    if (e->kind != ENTRY_VALUE || e->pass > 0 || c->p->step[e->index].dropped) return true;
    const tshi_entry *later = tshi_trace_value(&c->ranks[0], 1, e->index);
    return !later || layouts_equal(c->p, e->layout, later->layout) ||
           differ(c, e, 0, "its layout is another one when the tape records");
}

static bool find_scale(comparison *c) {
    double limit = !c->p->exact ? 1e7 : c->p->dtype == TSH_FLOAT64 ? 0x1p38 : 0x1p12;
    int ranks = tshi_program_ranks(c->p);
    for (int r = 0; r < ranks; r++) {
        for (size_t i = 0; i < c->truths[r].used; i++) {
            double size = fabs(c->truths[r].numbers[i]);
            if (!(size <= limit)) return false;
            bool narrow = size <= 64 && 4 * size == floor(4 * size);
            if (c->p->policy && !narrow) return false;
            c->largest = fmax(c->largest, size);
        }
    }
    c->tolerance = c->p->exact ? 0 : 1e-9 * fmax(1, c->largest);
    return true;
}

void tshi_compare(const tshi_program *p, const tshi_trace *ranks, const tshi_trace *truths, tshi_verdict *v) {
    comparison c = {.p = p, .ranks = ranks, .truths = truths, .v = v};
    int count = ranks[0].count, all = tshi_program_ranks(p);
    if (v->kind != VERDICT_SAME) return;
    if (!find_scale(&c)) {
        v->kind = VERDICT_UNJUDGED;
        return;
    }
    for (int r = 0; r < all; r++) {
        if (ranks[r].count == count && truths[r].count == count) continue;
        tshi_verdict_fail(v, "rank %d has %d entries, rank 0 %d, the truth %d", r, ranks[r].count, count,
                          truths[r].count);
        return;
    }
    for (int k = 0; k < count; k++) {
        if (!compare_entry(&c, k) || !compare_layouts(&c, k) || !compare_passes(&c, k)) return;
    }
}

void tshi_compare_bits(const tshi_program *p, const tshi_trace *ranks, const tshi_trace *one, tshi_verdict *v) {
    tshi_trace truths[MAX_RANKS];
    comparison c = {.p = p, .ranks = ranks, .truths = truths, .v = v};
    int all = tshi_program_ranks(p);
    for (int r = 0; r < all; r++) truths[r] = *one;
    for (int r = 0; r < all && v->kind == VERDICT_SAME; r++) {
        if (ranks[r].count != one->count)
            tshi_verdict_fail(v, "rank %d has %d entries, one rank has %d", r, ranks[r].count, one->count);
    }
    for (int k = 0; k < one->count && v->kind == VERDICT_SAME; k++) compare_entry(&c, k);
    if (v->kind != VERDICT_FAILED) return;
    size_t used = strlen(v->words);
    snprintf(v->words + used, sizeof v->words - used, " (in a deterministic world)");
}
