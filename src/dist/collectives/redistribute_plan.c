/* Plans of exchanges: made from metadata, found again by it. */
#include "dist/collectives/redistribute.h"

#include <stdlib.h>

#define PLANS 64

struct tshi_exchange_plans {
    uint64_t lookups;
    tshi_exchange_plan plan[PLANS]; /* memory NULL: unused */
};

/* --- comparing ---------------------------------------------------------------------------------------------------- */

static uint64_t add_placement(uint64_t h, const tshi_placement *p) {
    h = tshi_fingerprint_add(h, (uint64_t)p->axes);
    for (int a = 0; a < p->axes; a++) {
        tsh_layout l = p->layout[a];
        h = tshi_fingerprint_add(h, (uint64_t)p->size[a] << 32 | (uint32_t)l.kind);
        if (l.kind == TSH_KIND_SHARD) h = tshi_fingerprint_add(h, (uint64_t)l.dim << 32 | (uint32_t)l.order);
        for (int i = 0; p->weights[a] && i < p->size[a]; i++) h = tshi_fingerprint_add(h, (uint64_t)p->weights[a][i]);
        if (l.cuts) h = tshi_fingerprint_add(h, l.cuts);
        if (l.units) {
            h = tshi_fingerprint_add(h, (uint64_t)l.units << 2 | (uint32_t)l.sharing);
            h = tshi_fingerprint_add(h, (uint64_t)l.blocks);
        }
    }
    for (int i = 0, n = tshi_placement_members(p); i < n; i++) {
        h = tshi_fingerprint_add(h, (uint64_t)tshi_placement_rank(p, i));
        for (int d = 0; p->boxes && d < TSH_MAX_DIMS; d++) {
            h = tshi_fingerprint_add(h, (uint64_t)p->boxes[i].start[d]);
            h = tshi_fingerprint_add(h, (uint64_t)p->boxes[i].length[d]);
        }
    }
    return h;
}

static uint64_t fingerprint(const tshi_exchange *e) {
    uint64_t h = tshi_fingerprint_add(TSHI_FINGERPRINT, (uint64_t)e->ndim);
    for (int d = 0; d < e->ndim; d++) h = tshi_fingerprint_add(h, (uint64_t)e->shape[d]);
    return add_placement(add_placement(h, &e->from), &e->to);
}

static bool placements_equal(const tshi_placement *a, const tshi_placement *b) {
    if (a->axes != b->axes) return false;
    for (int i = 0; i < a->axes; i++) {
        if (!tshi_parts_equal(tshi_placement_parts(a, i), tshi_placement_parts(b, i))) return false;
        if (!tshi_layout_equal(a->layout[i], b->layout[i])) return false;
    }
    if (!a->boxes != !b->boxes) return false;
    for (int i = 0, n = tshi_placement_members(a); i < n; i++) {
        if (tshi_placement_rank(a, i) != tshi_placement_rank(b, i)) return false;
        if (a->boxes && memcmp(&a->boxes[i], &b->boxes[i], sizeof *a->boxes) != 0) return false;
    }
    return true;
}

static bool exchanges_equal(const tshi_exchange *a, const tshi_exchange *b) {
    return a->ndim == b->ndim && !memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)a->ndim) &&
           placements_equal(&a->from, &b->from) && placements_equal(&a->to, &b->to);
}

/* --- making ------------------------------------------------------------------------------------------------------- */

bool tshi_exchange_moves(const tshi_exchange *e) {
    for (int i = 0, n = tshi_placement_members(&e->to); i < n; i++) {
        tshi_transfer t;
        int rank = tshi_placement_rank(&e->to, i), count = tshi_exchange_receives(e, rank, &t, 1);
        if (count > 1 || (count == 1 && t.from != rank)) return true;
    }
    return false;
}

/* By the start of the box, since two boxes are equal or disjoint, then by term. */
static int compare_receives(const void *left, const void *right) {
    const tshi_transfer *a = left, *b = right;
    for (int d = 0; d < TSH_MAX_DIMS; d++) {
        if (a->box.start[d] != b->box.start[d]) return a->box.start[d] < b->box.start[d] ? -1 : 1;
    }
    return a->term - b->term;
}

static tsh_box box_of(const tshi_exchange *e, const tshi_placement *p, int rank) {
    int member = tshi_placement_member(p, rank);
    return member < 0 ? (tsh_box){0} : tshi_placement_box(p, e->ndim, e->shape, member);
}

static void plan_finish(tshi_exchange_plan *p, int rank) {
    const tshi_exchange *e = &p->e;
    int64_t filled = 0;
    p->held = box_of(e, &e->from, rank);
    p->wanted = box_of(e, &e->to, rank);
    for (int i = 0; i < p->receives; i++) {
        p->source[i] = box_of(e, &e->from, p->receive[i].from);
        if (i && tshi_transfers_alike(&p->receive[i], &p->receive[i - 1])) continue;
        filled += tshi_box_numel(e->ndim, &p->receive[i].box);
    }
    for (int i = 0; i < p->sends; i++) {
        if (p->send[i].to != rank) p->sent += tshi_box_numel(e->ndim, &p->send[i].box);
    }
    p->zeros = tshi_placement_member(&e->to, rank) >= 0 && filled < tshi_box_numel(e->ndim, &p->wanted);
    for (int a = 0; a < e->from.axes; a++) {
        bool terms = e->from.layout[a].kind == TSH_KIND_PARTIAL || e->from.layout[a].sharing == TSH_SHARED_OWN;
        if (terms && e->from.size[a] > 1) p->sums = true;
    }
}

/* Room for `count` elements of `size` bytes behind *used bytes of the memory; memory NULL: only counts the bytes. */
static void *carve(void *memory, size_t *used, int count, size_t size) {
    void *at = memory ? (char *)memory + *used : NULL;
    *used += ((size_t)count * size + 15) / 16 * 16;
    return at;
}

/* Copies of the arrays of a placement. */
typedef struct copied {
    int *ranks;
    int64_t *weights[TSH_MAX_AXES];
    tsh_box *boxes;
} copied;

static copied carve_members(void *memory, size_t *used, const tshi_placement *p) {
    int n = tshi_placement_members(p);
    copied out = {.ranks = carve(memory, used, n, sizeof *out.ranks)};
    for (int a = 0; a < p->axes; a++) {
        if (p->weights[a]) out.weights[a] = carve(memory, used, p->size[a], sizeof **out.weights);
    }
    if (p->boxes) out.boxes = carve(memory, used, n, sizeof *out.boxes);
    return out;
}

static size_t plan_arrays(tshi_exchange_plan *p, copied *from, copied *to) {
    size_t used = 0;
    p->receive = carve(p->memory, &used, p->receives, sizeof *p->receive);
    p->send = carve(p->memory, &used, p->sends, sizeof *p->send);
    p->source = carve(p->memory, &used, p->receives, sizeof *p->source);
    p->piece = carve(p->memory, &used, p->receives, sizeof *p->piece);
    p->work = carve(p->memory, &used, p->receives, sizeof *p->work);
    *from = carve_members(p->memory, &used, &p->e.from);
    *to = carve_members(p->memory, &used, &p->e.to);
    return used + 1;
}

static void copy_members(tshi_placement *p, copied to) {
    for (int i = 0, n = tshi_placement_members(p); i < n; i++) {
        to.ranks[i] = tshi_placement_rank(p, i);
        if (p->boxes) to.boxes[i] = p->boxes[i];
    }
    for (int a = 0; a < p->axes; a++) {
        if (p->weights[a]) memcpy(to.weights[a], p->weights[a], sizeof *to.weights[a] * (size_t)p->size[a]);
        p->weights[a] = to.weights[a];
    }
    p->ranks = to.ranks;
    p->boxes = to.boxes;
}

static bool plan_make(tsh_world *world, const tshi_exchange *e, tshi_exchange_plan *p) {
    int rank = world->rank;
    copied from, to;
    p->e = *e;
    p->reduces_first = tshi_exchange_reduces_first(e, &p->middle);
    p->receives = p->reduces_first ? 0 : tshi_exchange_receives(e, rank, NULL, 0);
    p->sends = p->reduces_first ? 0 : tshi_exchange_sends(e, rank, NULL, 0);
    p->memory = tshi_calloc(&world->allocator, plan_arrays(p, &from, &to), 1);
    if (!p->memory) return false;
    plan_arrays(p, &from, &to);
    copy_members(&p->e.from, from);
    copy_members(&p->e.to, to);
    p->middle.ranks = from.ranks;
    memcpy(p->middle.weights, p->e.from.weights, sizeof p->middle.weights);
    p->numel = 1;
    for (int d = 0; d < e->ndim; d++) p->numel *= e->shape[d];
    if (p->reduces_first) return true;
    tshi_exchange_receives(e, rank, p->receive, p->receives);
    tshi_exchange_sends(e, rank, p->send, p->sends);
    qsort(p->receive, (size_t)p->receives, sizeof *p->receive, compare_receives);
    p->moves = tshi_exchange_moves(e);
    plan_finish(p, rank);
    return true;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

tshi_exchange_plan *tshi_exchange_plan_find(tsh_world *world, const tshi_exchange *e) {
    uint64_t h = fingerprint(e);
    if (!world->plans) world->plans = tshi_calloc(&world->allocator, 1, sizeof *world->plans);
    if (!world->plans) return NULL;
    tshi_exchange_plan *oldest = world->plans->plan;
    for (tshi_exchange_plan *p = oldest; p < world->plans->plan + PLANS; p++) {
        if (p->used < oldest->used) oldest = p;
        if (p->fingerprint != h || !p->memory || !exchanges_equal(&p->e, e)) continue;
        p->used = ++world->plans->lookups;
        return p;
    }
    tshi_exchange_plan made = {.fingerprint = h};
    if (!plan_make(world, e, &made)) return NULL;
    tshi_free(&world->allocator, oldest->memory);
    *oldest = made;
    oldest->used = ++world->plans->lookups;
    return oldest;
}

void tshi_exchange_plans_free(tsh_world *world) {
    for (int i = 0; world->plans && i < PLANS; i++) tshi_free(&world->allocator, world->plans->plan[i].memory);
    tshi_free(&world->allocator, world->plans);
    world->plans = NULL;
}
