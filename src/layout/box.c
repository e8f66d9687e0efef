/* Boxes, and box exchanges. */
#include "layout/box.h"

int64_t tshi_box_numel(int ndim, const tsh_box *box) {
    int64_t n = 1;
    for (int d = 0; d < ndim; d++) n *= box->length[d];
    return n;
}

bool tshi_box_intersect(int ndim, const tsh_box *a, const tsh_box *b, tsh_box *out) {
    bool any = true;
    *out = (tsh_box){0};
    for (int d = 0; d < ndim; d++) {
        int64_t start = a->start[d] > b->start[d] ? a->start[d] : b->start[d];
        int64_t a_end = a->start[d] + a->length[d], b_end = b->start[d] + b->length[d];
        int64_t length = (a_end < b_end ? a_end : b_end) - start;
        if (length <= 0) any = false;
        out->start[d] = start;
        out->length[d] = length > 0 ? length : 0;
    }
    return any;
}

tshi_placement tshi_mesh_placement(const tsh_mesh *mesh, const tsh_layout layout[TSH_MAX_AXES]) {
    tshi_placement p = {.axes = mesh->axes, .ranks = mesh->ranks};
    for (int a = 0; a < mesh->axes; a++) {
        p.size[a] = mesh->axis[a].size;
        p.weights[a] = mesh->axis[a].weights;
        p.cuts = mesh->axis[a].cuts;
        p.layout[a] = layout[a];
    }
    return p;
}

tsh_box tshi_box_cut(int ndim, const tsh_box *box, int64_t offset, int64_t most) {
    tsh_box piece = *box;
    int d = ndim;
    int64_t inner = 1;
    while (d > 0 && box->length[d - 1] <= most / inner) inner *= box->length[--d];
    int64_t row = offset / inner, rows = most / inner; /* dim d - 1 is cut, the dims before it have one index each */
    for (int e = d - 1; e >= 0; e--) {
        int64_t index = row % box->length[e], left = box->length[e] - index;
        row /= box->length[e];
        piece.start[e] += index;
        piece.length[e] = e < d - 1 ? 1 : left < rows ? left : rows;
    }
    return piece;
}

static int longest_dim(int ndim, const tsh_box *box) {
    int longest = 0;
    for (int d = 1; d < ndim; d++) {
        if (box->length[d] > box->length[longest]) longest = d;
    }
    return longest;
}

bool tshi_box_split(int ndim, tsh_box *box, int parts, int i) {
    int d = longest_dim(ndim, box);
    int64_t start;
    if (ndim == 0) return i == 0;
    tsh_split(box->length[d], parts, i, &start, &box->length[d]);
    box->start[d] += start;
    return tshi_box_numel(ndim, box) > 0;
}

/* The number of ranks with a weight among [first, index). */
static int place_from(tshi_parts parts, int first, int index) {
    int place = 0;
    for (int i = first; i < index; i++) place += tshi_parts_weight(parts, i) > 0;
    return place;
}

bool tshi_box_share(const tsh_mesh *mesh, const tsh_layout *layout, int ndim, tsh_box *box) {
    int replicas = 1, replica = 0;
    for (int a = 0; a < mesh->axes; a++) {
        const tshi_axis *axis = &mesh->axis[a];
        int first = 0, alike = axis->size, place = axis->index;
        if (layout[a].kind != TSH_KIND_REPLICATED) {
            alike = tshi_layout_sharers(&layout[a], tshi_axis_parts(axis), axis->index, &first);
            place = place_from(tshi_axis_parts(axis), first, axis->index);
        }
        replicas *= alike;
        replica = replica * alike + place;
    }
    return tshi_mesh_has_me(mesh) && tshi_box_split(ndim, box, replicas, replica);
}

/* --- members ------------------------------------------------------------------------------------------------------ */

int tshi_placement_members(const tshi_placement *p) {
    int n = 1;
    for (int a = 0; a < p->axes; a++) n *= p->size[a];
    return n;
}

int tshi_placement_rank(const tshi_placement *p, int member) {
    return p->ranks[member];
}

int tshi_placement_member(const tshi_placement *p, int rank) {
    int n = tshi_placement_members(p);
    int guess = rank - p->ranks[0]; /* right for consecutive ranks */
    if (guess >= 0 && guess < n && p->ranks[guess] == rank) return guess;
    for (int i = 0; i < n; i++) {
        if (p->ranks[i] == rank) return i;
    }
    return -1;
}

static void coordinates(const tshi_placement *p, int member, int at[TSH_MAX_AXES]) {
    for (int a = p->axes - 1; a >= 0; a--) {
        at[a] = member % p->size[a];
        member /= p->size[a];
    }
}

static int member_at(const tshi_placement *p, const int at[TSH_MAX_AXES]) {
    int member = 0;
    for (int a = 0; a < p->axes; a++) member = member * p->size[a] + at[a];
    return member;
}

tsh_box tshi_placement_box(const tshi_placement *p, int ndim, const int64_t *shape, int member) {
    tsh_box box = {0};
    int at[TSH_MAX_AXES], sequence[TSH_MAX_AXES];
    if (p->boxes) return p->boxes[member];
    coordinates(p, member, at);
    tshi_split_sequence(p->axes, p->layout, sequence);
    for (int d = 0; d < ndim; d++) box.length[d] = shape[d];
    for (int i = 0; i < p->axes; i++) {
        int a = sequence[i];
        if (p->layout[a].kind != TSH_KIND_SHARD) continue;
        tshi_layout_narrow(&p->layout[a], shape, tshi_placement_parts(p, a), at[a], &box);
    }
    return box;
}

/* --- combinations along the axes of some kinds -------------------------------------------------------------------- */

/* Number of combinations of indices along the axes whose layout kind is in `kinds` (bits 1 << kind). */
static int count_along(const tshi_placement *p, unsigned kinds) {
    int n = 1;
    for (int a = 0; a < p->axes; a++) {
        if (kinds >> p->layout[a].kind & 1) n *= p->size[a];
    }
    return n;
}

/* Sets the coordinates along these axes to those of combination `index`, the last axis fastest. */
static void set_along(const tshi_placement *p, unsigned kinds, int index, int at[TSH_MAX_AXES]) {
    for (int a = p->axes - 1; a >= 0; a--) {
        if (!(kinds >> p->layout[a].kind & 1)) continue;
        at[a] = index % p->size[a];
        index /= p->size[a];
    }
}

#define REPLICAS (1u << TSH_KIND_REPLICATED)
#define TERMS    (1u << TSH_KIND_PARTIAL)
#define PARTS    (1u << TSH_KIND_SHARD)

/* The number of indices along axis a that hold the same unit as index i, and the first; 1 on a REPLICATED axis. */
static int alike_along(const tshi_placement *p, int a, int i, int *first) {
    *first = i;
    return p->layout[a].sharing == TSH_SHARED ? tshi_layout_sharers(&p->layout[a], tshi_placement_parts(p, a), i, first)
                                              : 1;
}

/* The member on `rank` if it is a replica of member `at`, else -1. */
static int replica_of_rank(const tshi_placement *p, const int at[TSH_MAX_AXES], int rank) {
    int member = tshi_placement_member(p, rank), own[TSH_MAX_AXES];
    if (member < 0) return -1;
    coordinates(p, member, own);
    for (int a = 0; a < p->axes; a++) {
        int first, own_first;
        if (p->layout[a].kind == TSH_KIND_REPLICATED || own[a] == at[a]) continue;
        alike_along(p, a, at[a], &first);
        alike_along(p, a, own[a], &own_first);
        if (first != own_first) return -1;
    }
    return member;
}

/* The replica of `at` that sends to a target: replicas take turns over the targets. */
static void choose_replica(const tshi_placement *p, int target, int at[TSH_MAX_AXES]) {
    set_along(p, REPLICAS, target % count_along(p, REPLICAS), at);
    for (int a = 0; a < p->axes; a++) {
        int first, count = alike_along(p, a, at[a], &first);
        int turn = target % count;
        for (at[a] = first; turn > 0; turn -= tshi_parts_weight(tshi_placement_parts(p, a), at[a]) > 0) at[a]++;
    }
}

/* The index of the term of a sum that a member holds; SHARED_OWN ranks also hold terms. */
static int term_of(const tshi_placement *p, const int at[TSH_MAX_AXES]) {
    int index = 0;
    for (int a = 0; a < p->axes; a++) {
        bool term = TERMS >> p->layout[a].kind & 1 || p->layout[a].sharing == TSH_SHARED_OWN;
        if (term) index = index * p->size[a] + at[a];
    }
    return index;
}

/* --- routes ------------------------------------------------------------------------------------------------------- */

/* The term of `target` that gets a value of `source`: the first whose rank already holds the value, judged for the
 * target's first replica and the first rank that shares its unit. All of these use that term, so that their sums have
 * the same terms. */
static int holding_term(const tshi_exchange *e, const int source[TSH_MAX_AXES], const int target[TSH_MAX_AXES]) {
    int terms = count_along(&e->to, TERMS), at[TSH_MAX_AXES] = {0};
    if (terms == 1) return 0;
    for (int a = 0; a < e->to.axes; a++)
        tshi_layout_sharers(&e->to.layout[a], tshi_placement_parts(&e->to, a), target[a], &at[a]);
    set_along(&e->to, REPLICAS, 0, at);
    for (int i = 0; i < terms; i++) {
        set_along(&e->to, TERMS, i, at);
        if (replica_of_rank(&e->from, source, tshi_placement_rank(&e->to, member_at(&e->to, at))) >= 0) return i;
    }
    return 0;
}

/* Chooses the sender and the receiver of a value: one of the replicas of `source` sends to one of the terms of
 * `target`. */
static void route(const tshi_exchange *e, const int source[TSH_MAX_AXES], const int target[TSH_MAX_AXES], int *from,
                  int *to) {
    int at[TSH_MAX_AXES];
    for (int a = 0; a < TSH_MAX_AXES; a++) at[a] = target[a];
    set_along(&e->to, TERMS, holding_term(e, source, target), at);
    int member = member_at(&e->to, at);
    *from = *to = tshi_placement_rank(&e->to, member);
    if (replica_of_rank(&e->from, source, *to) >= 0) return;
    for (int a = 0; a < TSH_MAX_AXES; a++) at[a] = source[a];
    choose_replica(&e->from, member, at);
    *from = tshi_placement_rank(&e->from, member_at(&e->from, at));
}

/* A search for the parts and terms of `from` that overlap the box that a rank wants: axis after axis in split order,
 * pruned where an index has no overlap. */
typedef struct search {
    const tshi_exchange *e;
    int rank;
    tsh_box wanted;
    int sequence[TSH_MAX_AXES], source[TSH_MAX_AXES], target[TSH_MAX_AXES];
    tshi_transfer *out;
    int room, n;
} search;

static void search_found(search *s, const tsh_box *held) {
    tshi_transfer t;
    if (!tshi_box_intersect(s->e->ndim, held, &s->wanted, &t.box)) return;
    route(s->e, s->source, s->target, &t.from, &t.to);
    if (t.to != s->rank) return;
    t.term = term_of(&s->e->from, s->source);
    if (s->n < s->room) s->out[s->n] = t;
    s->n++;
}

static void search_axis(search *s, int step, tsh_box held) {
    const tshi_placement *p = &s->e->from;
    if (step == p->axes) {
        search_found(s, &held);
        return;
    }
    for (int i = 0; p->boxes && i < p->size[0]; i++) {
        s->source[0] = i;
        search_found(s, &p->boxes[i]);
    }
    if (p->boxes) return;
    int a = s->sequence[step];
    tsh_layout layout = p->layout[a];
    int d = layout.kind == TSH_KIND_SHARD ? layout.dim : 0;
    int64_t end = s->wanted.start[d] + s->wanted.length[d];
    const tsh_box all = held;
    for (int i = 0, n = layout.kind == TSH_KIND_REPLICATED ? 1 : p->size[a]; i < n; i++) {
        int first;
        alike_along(p, a, i, &first);
        if (first != i) continue; /* the same values as index `first` */
        s->source[a] = i;
        if (layout.kind == TSH_KIND_SHARD) {
            held = all;
            tshi_layout_narrow(&layout, s->e->shape, tshi_placement_parts(p, a), i, &held);
            if (held.start[d] >= end || held.start[d] + held.length[d] <= s->wanted.start[d]) continue;
        }
        search_axis(s, step + 1, held);
    }
}

int tshi_exchange_receives(const tshi_exchange *e, int rank, tshi_transfer *out, int room) {
    search s = {.e = e, .rank = rank, .out = out, .room = room};
    tsh_box whole = {0};
    int member = tshi_placement_member(&e->to, rank);
    if (member < 0) return 0;
    s.wanted = tshi_placement_box(&e->to, e->ndim, e->shape, member);
    coordinates(&e->to, member, s.target);
    tshi_split_sequence(e->from.axes, e->from.layout, s.sequence);
    for (int d = 0; d < e->ndim; d++) whole.length[d] = e->shape[d];
    search_axis(&s, 0, whole);
    return s.n;
}

static int walk_sends(const tshi_exchange *e, int rank, tshi_transfer *out, int room, int64_t *sent) {
    int member = tshi_placement_member(&e->from, rank), n = 0, source[TSH_MAX_AXES] = {0}, target[TSH_MAX_AXES] = {0};
    if (member < 0) return 0;
    tsh_box held = tshi_placement_box(&e->from, e->ndim, e->shape, member);
    coordinates(&e->from, member, source);
    for (int i = 0; i < count_along(&e->to, PARTS | REPLICAS); i++) {
        tshi_transfer t;
        set_along(&e->to, PARTS | REPLICAS, i, target);
        tsh_box wanted = tshi_placement_box(&e->to, e->ndim, e->shape, member_at(&e->to, target));
        if (!tshi_box_intersect(e->ndim, &held, &wanted, &t.box)) continue;
        route(e, source, target, &t.from, &t.to);
        if (t.from != rank) continue;
        t.term = term_of(&e->from, source);
        if (t.to != rank) *sent += tshi_box_numel(e->ndim, &t.box);
        if (n < room) out[n] = t;
        n++;
    }
    return n;
}

int tshi_exchange_sends(const tshi_exchange *e, int rank, tshi_transfer *out, int room) {
    int64_t sent = 0;
    return walk_sends(e, rank, out, room, &sent);
}

int64_t tshi_exchange_sent(const tshi_exchange *e, int rank) {
    int64_t sent = 0;
    walk_sends(e, rank, NULL, 0, &sent);
    return sent;
}

/* --- stages ------------------------------------------------------------------------------------------------------- */

/* The number of elements that all members hold; terms along a PARTIAL axis count once. */
static double elements(const tshi_placement *p, int ndim, const int64_t *shape) {
    double n = count_along(p, REPLICAS);
    for (int d = 0; d < ndim; d++) n *= (double)shape[d];
    return n;
}

bool tshi_exchange_reduces_first(const tshi_exchange *e, tshi_placement *middle) {
    *middle = e->from;
    if (e->ndim == 0 || count_along(&e->from, TERMS) == 1 || count_along(&e->to, REPLICAS) == 1) return false;
    tsh_box box = tshi_placement_box(&e->from, e->ndim, e->shape, 0);
    int sequence[TSH_MAX_AXES];
    tshi_split_sequence(e->from.axes, e->from.layout, sequence);
    for (int i = 0; i < e->from.axes; i++) middle->layout[sequence[i]].order = i;
    for (int a = 0; a < e->from.axes; a++) { /* the PARTIAL axes split last, so that the boxes of the SHARD axes stay */
        if (e->from.layout[a].kind != TSH_KIND_PARTIAL) continue;
        int d = longest_dim(e->ndim, &box);
        middle->layout[a] = TSH_SHARD_ORDER(d, TSH_MAX_AXES + a);
        tshi_parts_split(tshi_placement_parts(&e->from, a), box.length[d], 0, NULL, &box.length[d]);
    }
    tshi_layouts_normalize(middle->axes, middle->layout);
    return elements(&e->to, e->ndim, e->shape) > elements(middle, e->ndim, e->shape);
}

static void sum_as_value(tshi_placement *p) {
    for (int a = 0; a < p->axes; a++) {
        if (p->layout[a].kind == TSH_KIND_PARTIAL) p->layout[a] = TSH_REPLICATED;
    }
}

void tshi_exchange_reverse(const tshi_exchange *e, tshi_exchange *out) {
    *out = *e;
    out->from = e->to;
    out->to = e->from;
    sum_as_value(&out->from);
    sum_as_value(&out->to);
}
