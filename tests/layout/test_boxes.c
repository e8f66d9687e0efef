/* Redistributions with known answers, carried out in one process: the planner's transfers are applied to arrays. */
#include "support/box_cases.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(boxes, .timeout = 120);

enum { RANKS = TSHI_CASE_RANKS, ELEMENTS = TSHI_CASE_ELEMENTS, NAME = 128 };

typedef tshi_case_parts parts;

/* --- moving ------------------------------------------------------------------------------------------------------- */

/* Place of element `i` of `part` in `box`, both row-major. */
static int64_t place_in(int ndim, const tsh_box *part, const tsh_box *box, int64_t i) {
    int64_t place = 0, stride = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        place += (part->start[d] - box->start[d] + i % part->length[d]) * stride;
        i /= part->length[d];
        stride *= box->length[d];
    }
    return place;
}

static tsh_box box_of(const tshi_exchange *e, const tshi_placement *p, int rank) {
    return tshi_placement_box(p, e->ndim, e->shape, tshi_placement_member(p, rank));
}

/* The same transfer among what its sender sends. */
static bool is_sent(const tshi_exchange *e, const tshi_transfer *t) {
    tshi_transfer sent[RANKS * RANKS];
    int n = tshi_exchange_sends(e, t->from, sent, RANKS * RANKS);
    for (int i = 0; i < n; i++)
        if (sent[i].to == t->to && sent[i].term == t->term && !memcmp(&sent[i].box, &t->box, sizeof t->box))
            return true;
    return false;
}

/* Returns the bytes that change rank; the transfers that are sent are those that are received. */
static long carry_out(const tshi_exchange *e, int world, const parts *in, parts *out, const char *name) {
    long bytes = 0;
    int sent = 0, received = 0;
    tshi_case_parts_clear(out);
    for (int r = 0; r < world; r++) {
        tshi_transfer t[RANKS * RANKS];
        int n = tshi_exchange_receives(e, r, t, RANKS * RANKS);
        sent += tshi_exchange_sends(e, r, NULL, 0);
        received += n;
        if (tshi_placement_member(&e->to, r) < 0) continue;
        tsh_box mine = box_of(e, &e->to, r);
        out->count[r] = (int)tshi_box_numel(e->ndim, &mine);
        memset(out->value[r], 0, (size_t)out->count[r] * sizeof(double));
        for (int i = 0; i < n; i++) {
            tsh_box held = box_of(e, &e->from, t[i].from);
            int64_t count = tshi_box_numel(e->ndim, &t[i].box);
            cr_assert(is_sent(e, &t[i]), "%s: rank %d does not send what rank %d waits for", name, t[i].from, r);
            if (t[i].from != r) bytes += count * (long)sizeof(double);
            for (int64_t j = 0; j < count; j++) {
                out->value[r][place_in(e->ndim, &t[i].box, &mine, j)] +=
                    in->value[t[i].from][place_in(e->ndim, &t[i].box, &held, j)];
            }
        }
    }
    cr_assert_eq(sent, received, "%s: %d transfers are sent and %d received", name, sent, received);
    return bytes;
}

static long redistribute(const tshi_exchange *e, int world, const parts *in, parts *out, const char *name) {
    static parts between;
    tshi_exchange first = *e, second = *e;
    if (!tshi_exchange_reduces_first(e, &first.to)) return carry_out(e, world, in, out, name);
    second.from = first.to;
    return carry_out(&first, world, in, &between, name) + carry_out(&second, world, &between, out, name);
}

static void expect_known(const char *path, int cases_wanted) {
    static tshi_box_case c;
    static parts got;
    char words[TSHI_CASE_WORDS];
    tshi_box_cases cases;
    int count = 0;
    cr_assert(tshi_box_cases_open(&cases, path), "%s", cases.error);
    for (; tshi_box_cases_next(&cases, &c); count++) {
        long bytes = redistribute(&c.e, c.world, &c.in, &got, c.name);
        cr_assert(tshi_box_case_out(&c, &got, words), "%s: %s", c.name, words);
        cr_assert(c.bytes < 0 || bytes <= c.bytes, "%s: %ld bytes change rank, %ld must", c.name, bytes, c.bytes);
        tshi_exchange back;
        tshi_exchange_reverse(&c.e, &back);
        redistribute(&back, c.world, &c.dout, &got, c.name);
        cr_assert(tshi_box_case_din(&c, &got, words), "%s: %s", c.name, words);
    }
    cr_assert_str_empty(cases.error);
    cr_assert_eq(count, cases_wanted);
    tshi_box_cases_close(&cases);
}

Test(boxes, known_redistributions) {
    expect_known(TSHARD_TEST_DATA "/boxes/redistribute.txt", 187);
}

Test(boxes, known_redistributions_by_weight) {
    expect_known(TSHARD_TEST_DATA "/boxes/redistribute_weighted.txt", 69);
}

/* --- random placements -------------------------------------------------------------------------------------------- */

static uint32_t state;

static int below(int n) {
    state = state * 1664525u + 1013904223u;
    return (int)((state >> 8) % (uint32_t)n);
}

static void shuffle(int n, int *items) {
    for (int i = n - 1; i > 0; i--) {
        int j = below(i + 1), item = items[i];
        items[i] = items[j];
        items[j] = item;
    }
}

static int divisor(int n) {
    int d = 1 + below(n);
    while (n % d) d--;
    return d;
}

/* Units, blocks, ranks that share units, the receivers' for own use too, or that split the next dim of one, where no
 * axis cuts the units of another. */
static void random_units(const tshi_exchange *e, tshi_placement *p) {
    tsh_mesh mesh = {.axes = p->axes};
    tsh_shape shape = {.ndim = e->ndim};
    tsh_layout with[TSH_MAX_AXES];
    memcpy(with, p->layout, sizeof with);
    memcpy(shape.global, e->shape, sizeof shape.global);
    for (int a = 0; a < p->axes; a++) {
        int n = with[a].kind == TSH_KIND_SHARD ? (int)e->shape[with[a].dim] : 0, kind = below(5);
        mesh.axis[a].size = p->size[a];
        mesh.axis[a].weights = p->weights[a];
        if (n == 0 || kind == 0) continue;
        with[a].units = divisor(n);
        if (kind == 1) with[a].blocks = with[a].units * divisor(n / (int)with[a].units);
        if (kind == 2) with[a].sharing = p == &e->to && below(2) ? TSH_SHARED_OWN : TSH_SHARED;
        if (kind == 4) with[a].sharing = TSH_SHARED_NEXT;
    }
    if (tshi_shape_resolve(&mesh, &shape, with) == TSH_OK) memcpy(p->layout, with, sizeof with);
}

typedef int64_t weights[TSH_MAX_AXES][4];

/* Weights of some axes, zeros among them. */
static void random_weights(tshi_placement *p, weights w) {
    for (int a = 0; a < p->axes; a++) {
        if (below(2)) continue;
        for (int i = 0; i < p->size[a]; i++) w[a][i] = below(5);
        w[a][below(p->size[a])] += 1;
        p->weights[a] = tshi_weights_simplify(w[a], p->size[a]);
    }
}

/* Up to three axes over ranks in any order, in any layouts. */
static void random_placement(int world, const tshi_exchange *e, tshi_placement *p, int *ranks, weights w) {
    *p = (tshi_placement){.axes = 1 + below(3), .ranks = ranks};
    for (int a = 0, left = world; a < p->axes; a++) {
        p->size[a] = 1 + below(left < 4 ? left : 4);
        left /= p->size[a];
        int kind = below(e->ndim ? 4 : 2);
        p->layout[a] = kind == 0 ? TSH_REPLICATED : kind == 1 ? TSH_PARTIAL : TSH_SHARD(below(e->ndim));
    }
    for (int a = 0; a < p->axes; a++) p->layout[a].order = below(3);
    random_weights(p, w);
    random_units(e, p);
    for (int r = 0; r < world; r++) ranks[r] = r;
    shuffle(world, ranks);
}

static double whole_value(const tshi_exchange *e, const tsh_box *box, int64_t i) {
    const tsh_box all = {.length = {e->shape[0], e->shape[1], e->shape[2]}};
    return 1 + (double)place_in(e->ndim, box, &all, i);
}

/* The number of a member's term among those of its sum: along PARTIAL axes, and among ranks that share units for their
 * own use. */
static int term_of(const tshi_placement *p, int member, int *terms) {
    int term = 0;
    *terms = 1;
    for (int a = p->axes - 1; a >= 0; a--) {
        int at = member % p->size[a], first = 0, count = 1;
        member /= p->size[a];
        if (p->layout[a].sharing == TSH_SHARED_OWN)
            count = tshi_layout_sharers(&p->layout[a], tshi_placement_parts(p, a), at, &first);
        if (p->layout[a].kind == TSH_KIND_PARTIAL) count = p->size[a];
        for (int i = first; count > 1 && i < at; i++)
            term +=
                p->layout[a].kind == TSH_KIND_PARTIAL || tshi_parts_weight(tshi_placement_parts(p, a), i) ? *terms : 0;
        *terms *= count;
    }
    return term;
}

/* Terms that add up to the whole: the first holds the value less what the others hold, which is their number each. */
static void fill_parts(const tshi_exchange *e, const tshi_placement *p, int world, parts *out) {
    for (int r = 0; r < world; r++) {
        int member = tshi_placement_member(p, r), terms;
        out->count[r] = -1;
        if (member < 0) continue;
        tsh_box box = box_of(e, p, r);
        int term = term_of(p, member, &terms);
        out->count[r] = (int)tshi_box_numel(e->ndim, &box);
        for (int i = 0; i < out->count[r]; i++) {
            out->value[r][i] = term ? term : whole_value(e, &box, i) - terms * (terms - 1) / 2;
        }
    }
}

/* Members that differ along REPLICATED axes alone, or that share units, hold the same, zeros and terms too. */
static void expect_replicas(const tshi_exchange *e, const parts *got, const char *name) {
    const tshi_placement *p = &e->to;
    for (int m = 0; m < tshi_placement_members(p); m++) {
        int first = 0, rank = tshi_placement_rank(p, m); /* the replica of m with the least coordinates */
        for (int a = p->axes - 1, x = m, stride = 1; a >= 0; stride *= p->size[a], x /= p->size[a], a--) {
            int at = 0;
            if (p->layout[a].kind != TSH_KIND_REPLICATED)
                tshi_layout_sharers(&p->layout[a], tshi_placement_parts(p, a), x % p->size[a], &at);
            first += at * stride;
        }
        first = tshi_placement_rank(p, first);
        cr_assert_eq(got->count[rank], got->count[first]);
        for (int i = 0; i < got->count[rank]; i++) {
            cr_assert_eq(got->value[rank][i], got->value[first][i], "%s: ranks %d and %d at %d", name, rank, first, i);
        }
    }
}

/* Replicas hold the same, and the terms of each value add up to it. */
static void expect_whole(const tshi_exchange *e, int world, const parts *got, const char *name) {
    static double total[ELEMENTS];
    const tshi_placement *p = &e->to;
    for (int m = 0; m < tshi_placement_members(p); m++) {
        tsh_box box = tshi_placement_box(p, e->ndim, e->shape, m);
        int64_t n = tshi_box_numel(e->ndim, &box);
        memset(total, 0, sizeof total);
        for (int o = 0; o < tshi_placement_members(p); o++) {
            bool alike = true; /* m and o differ along PARTIAL axes alone */
            for (int a = p->axes - 1, x = m, y = o; a >= 0; x /= p->size[a], y /= p->size[a], a--)
                if (p->layout[a].kind != TSH_KIND_PARTIAL && x % p->size[a] != y % p->size[a]) alike = false;
            if (!alike) continue;
            int rank = tshi_placement_rank(p, o);
            cr_assert(rank < world && got->count[rank] == n);
            for (int64_t i = 0; i < n; i++) total[i] += got->value[rank][i];
        }
        for (int64_t i = 0; i < n; i++) {
            cr_assert_eq(total[i], whole_value(e, &box, i), "%s: member %d at %lld", name, m, (long long)i);
        }
    }
}

static void move_and_check(const tshi_exchange *e, int world, const char *name) {
    static parts in, out;
    fill_parts(e, &e->from, world, &in);
    redistribute(e, world, &in, &out, name);
    expect_whole(e, world, &out, name);
    expect_replicas(e, &out, name);
}

/* There as values, and back as gradients. */
Test(boxes, random_redistributions_keep_the_whole) {
    for (int k = 0; k < 3000; k++) {
        int from_ranks[RANKS], to_ranks[RANKS];
        weights from_weights, to_weights;
        char name[NAME];
        state = (uint32_t)k * 2654435761u + 1;
        snprintf(name, sizeof name, "seed %d", k);
        int world = 1 + below(8);
        tshi_exchange e = {.ndim = below(4)};
        for (int d = 0; d < e.ndim; d++) e.shape[d] = below(8);
        random_placement(world, &e, &e.from, from_ranks, from_weights);
        random_placement(world, &e, &e.to, to_ranks, to_weights);
        move_and_check(&e, world, name);
        tshi_exchange back;
        tshi_exchange_reverse(&e, &back);
        move_and_check(&back, world, name);
    }
}
