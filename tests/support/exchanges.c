/* Random exchanges: small whole numbers, so that sums are exact in every dtype. */
#include "support/exchanges.h"
#include "support/values.h"

#include <stdio.h>

enum { MOST = 8 };

static int below(uint32_t *state, int n) {
    *state = *state * 1664525u + 1013904223u;
    return (int)((*state >> 8) % (uint32_t)n);
}

static void shuffle(uint32_t *state, int n, int *items) {
    for (int i = n - 1; i > 0; i--) {
        int j = below(state, i + 1), item = items[i];
        items[i] = items[j];
        items[j] = item;
    }
}

void tshi_random_placement(uint32_t *state, int world, int ndim, tshi_placement *p, int *ranks) {
    *p = (tshi_placement){.axes = 1 + below(state, 3), .ranks = ranks};
    for (int a = 0, left = world; a < p->axes; a++) {
        p->size[a] = 1 + below(state, left < 4 ? left : 4);
        left /= p->size[a];
        int kind = below(state, ndim ? 4 : 2);
        p->layout[a] = kind == 0 ? TSH_REPLICATED : kind == 1 ? TSH_PARTIAL : TSH_SHARD(below(state, ndim));
    }
    for (int a = 0; a < p->axes; a++) p->layout[a].order = below(state, 3);
    for (int r = 0; r < world; r++) ranks[r] = r;
    shuffle(state, world, ranks);
}

/* A member's coordinates along the axes of one kind as one number, and how many of those there are. */
static int along(const tshi_placement *p, tsh_layout_kind kind, int member, int *count) {
    int index = 0;
    *count = 1;
    for (int a = p->axes - 1; a >= 0; a--) {
        if (p->layout[a].kind == kind) {
            index += member % p->size[a] * *count;
            *count *= p->size[a];
        }
        member /= p->size[a];
    }
    return index;
}

/* Term k of element g of the whole; the value is the sum of all terms. */
static tshi_number term_of(int64_t g, int k) {
    double v = (double)((g * 7 + k * 5 + 3) % 9);
    return (tshi_number){v, 2 * v};
}

/* Where element i of a box is in the whole. */
static int64_t global_of(const tshi_exchange *e, const tsh_box *box, int64_t i) {
    int64_t g = 0, stride = 1;
    for (int d = e->ndim - 1; d >= 0; d--) {
        g += (box->start[d] + i % box->length[d]) * stride;
        i /= box->length[d];
        stride *= e->shape[d];
    }
    return g;
}

static double read_small(tsh_dtype dtype, const void *data, int64_t i) {
    double v = 0;
    while (v < 256 && !tshi_is(dtype, data, i, (tshi_number){v, 2 * v})) v++;
    return v;
}

typedef struct trial {
    tshi_exchange e;
    int from_ranks[64], to_ranks[64];
    int64_t from_weights[TSH_MAX_AXES][4], to_weights[TSH_MAX_AXES][4];
    tsh_dtype dtype;
    int64_t numel; /* of the whole */
} trial;

/* Weights of every other axis, zeros among them. */
static void draw_weights(uint32_t *state, tshi_placement *p, int64_t weights[TSH_MAX_AXES][4]) {
    for (int a = 0; a < p->axes; a++) {
        if (below(state, 2)) continue;
        for (int i = 0; i < p->size[a]; i++) weights[a][i] = below(state, 5);
        weights[a][below(state, p->size[a])] += 1;
        p->weights[a] = tshi_weights_simplify(weights[a], p->size[a]);
    }
}

static void draw(uint32_t seed, int world, trial *t) {
    uint32_t state = seed * 2654435761u + 1;
    *t = (trial){.dtype = (tsh_dtype)below(&state, TSH_DTYPE_COUNT), .numel = 1};
    t->e.ndim = below(&state, 4);
    for (int d = 0; d < t->e.ndim; d++) t->numel *= t->e.shape[d] = below(&state, MOST + 1);
    tshi_random_placement(&state, world, t->e.ndim, &t->e.from, t->from_ranks);
    tshi_random_placement(&state, world, t->e.ndim, &t->e.to, t->to_ranks);
    draw_weights(&state, &t->e.from, t->from_weights);
    draw_weights(&state, &t->e.to, t->to_weights);
}

/* A part of n elements behind some others; *all keeps the memory. */
static tsh_tensor *part(tshi_rank *r, tsh_dtype dtype, int64_t n, tsh_tensor **all) {
    const tsh_shape shape = {.ndim = 1, .local = {n}, .global = {n}};
    tsh_tensor *view = NULL;
    *all = tshi_test_vector(r, dtype, n + 3);
    if (*all) tshi_check_ok(r, tshi_tensor_view(*all, &shape, tshi_all_local, 3 * tsh_dtype_size(dtype), &view));
    return view;
}

static tsh_box box_of(const trial *t, const tshi_placement *p, int rank, int *member) {
    *member = tshi_placement_member(p, rank);
    if (*member < 0) return (tsh_box){0};
    return tshi_placement_box(p, t->e.ndim, t->e.shape, *member);
}

static int64_t count_of(const trial *t, const tsh_box *box, int member) {
    return member < 0 ? 0 : tshi_box_numel(t->e.ndim, box);
}

/* Adds up what the ranks hold of each replica of the whole, and compares. */
static void check_values(tshi_rank *r, uint32_t seed, const trial *t, const tsh_tensor *out, const tsh_box *box,
                         int member) {
    int replicas, replica = along(&t->e.to, TSH_KIND_REPLICATED, member < 0 ? 0 : member, &replicas), terms;
    tsh_tensor *sums = tshi_test_vector(r, TSH_INT64, replicas * t->numel);
    int64_t *sum = tsh_tensor_data(sums);
    for (int64_t i = 0; i < replicas * t->numel; i++) sum[i] = 0;
    for (int64_t i = 0; i < count_of(t, box, member); i++) {
        sum[replica * t->numel + global_of(&t->e, box, i)] += (int64_t)read_small(t->dtype, tshi_data(out), i);
    }
    tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), sums, TSH_REDUCE_SUM));
    along(&t->e.from, TSH_KIND_PARTIAL, 0, &terms);
    for (int64_t i = 0; i < replicas * t->numel && !r->failed; i++) {
        double wanted = 0;
        for (int k = 0; k < terms; k++) wanted += term_of(i % t->numel, k).re;
        tshi_check(r, (double)sum[i] == wanted, "seed %u: element %lld of %s is %lld, not %g", seed, (long long)i,
                   tsh_dtype_name(t->dtype), (long long)sum[i], wanted);
    }
    tsh_tensor_release(sums);
}

/* Elements that must come to this rank from others. */
static int64_t missing(const trial *t, int rank) {
    int to, from;
    tsh_box wanted = box_of(t, &t->e.to, rank, &to), held = box_of(t, &t->e.from, rank, &from), both;
    if (to < 0) return 0;
    bool any = from >= 0 && tshi_box_intersect(t->e.ndim, &wanted, &held, &both);
    return tshi_box_numel(t->e.ndim, &wanted) - (any ? tshi_box_numel(t->e.ndim, &both) : 0);
}

static bool has(const tshi_placement *p, tsh_layout_kind kind) {
    int count;
    along(p, kind, 0, &count);
    return count > 1;
}

static void check_counts(tshi_rank *r, uint32_t seed, const trial *t, const tsh_communication_stats *before) {
    const tsh_communication_stats now = tsh_group_stats(tsh_world_group(r->world));
    int op = TSH_COLLECTIVE_ALL_TO_ALL;
    uint64_t calls = now.calls[op] - before->calls[op], most = 0;
    int64_t needed = 0;
    for (int i = 0; i < r->size; i++) needed += missing(t, i);
    tshi_placement middle;
    most = tshi_exchange_reduces_first(&t->e, &middle) ? 2 : tshi_exchange_moves(&t->e) ? 1 : 0;
    tshi_check(r, calls <= most, "seed %u: %d calls, not %d", seed, (int)calls, (int)most);
    tsh_tensor *sent = tshi_test_vector(r, TSH_INT64, 1);
    *(int64_t *)tsh_tensor_data(sent) = (int64_t)(now.bytes[op] - before->bytes[op]);
    tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), sent, TSH_REDUCE_SUM));
    bool exact = !has(&t->e.from, TSH_KIND_PARTIAL) && !has(&t->e.to, TSH_KIND_PARTIAL);
    int64_t bytes = *(int64_t *)tsh_tensor_data(sent), wanted = needed * (int64_t)tsh_dtype_size(t->dtype);
    tshi_check(r, !exact || bytes == wanted, "seed %u: %lld bytes moved, %lld must", seed, (long long)bytes,
               (long long)wanted);
    tsh_tensor_release(sent);
}

bool tshi_try_exchange(tshi_rank *r, uint32_t seed, bool messages) {
    trial t;
    int from, to, terms;
    draw(seed, r->size, &t);
    t.e.from.ranks = t.from_ranks;
    t.e.to.ranks = t.to_ranks;
    tsh_box held = box_of(&t, &t.e.from, r->rank, &from), wanted = box_of(&t, &t.e.to, r->rank, &to);
    tsh_tensor *all_in, *all_out;
    tsh_tensor *in = part(r, t.dtype, count_of(&t, &held, from), &all_in);
    tsh_tensor *out = part(r, t.dtype, count_of(&t, &wanted, to), &all_out);
    if (!in || !out) return false;
    for (int64_t i = 0; i < in->numel; i++) {
        int term = along(&t.e.from, TSH_KIND_PARTIAL, from, &terms);
        tshi_put(t.dtype, tshi_data(in), i, term_of(global_of(&t.e, &held, i), term));
    }
    for (int64_t i = 0; i < out->numel; i++) tshi_put(t.dtype, tshi_data(out), i, (tshi_number){77, 77});
    const tsh_communication_stats before = tsh_group_stats(tsh_world_group(r->world));
    bool member = from >= 0 || to >= 0;
    if (!messages || member) {
        const tsh_tensor *given = from < 0 && seed % 2 ? NULL : in;
        tshi_check_ok(r, tshi_exchange_run(messages ? NULL : tsh_world_group(r->world), &t.e, given, out));
    }
    if (!messages && !r->failed) check_counts(r, seed, &t, &before);
    if (!r->failed) check_values(r, seed, &t, out, &wanted, to);
    tshi_tensor_release(in);
    tshi_tensor_release(out);
    tsh_tensor_release(all_in);
    tsh_tensor_release(all_out);
    return !r->failed;
}
