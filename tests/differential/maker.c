#include "differential/maker.h"
#include "support/values.h"

#include <math.h>
#include <string.h>

uint64_t tshi_random_next(uint64_t *state) {
    return tshi_mix(++*state);
}

int tshi_random_below(uint64_t *state, int n) {
    return (int)(tshi_random_next(state) >> 33) % n;
}

int tshi_maker_below(tshi_maker *m, int n) {
    return tshi_random_below(&m->random, n);
}

bool tshi_maker_chance(tshi_maker *m, int percent) {
    return tshi_maker_below(m, 100) < percent;
}

/* --- adding steps ------------------------------------------------------------------------------------------------- */

static bool is_sensible(const tshi_program *p, const tshi_step *s) {
    if (s->shape.ndim > 5 || tshi_dims_numel(&s->shape) > 700) return false;
    if (s->integer) return true;
    if (!p->exact) return s->bound <= 1e3;
    if (p->policy) return s->bits <= 2 && s->bound * exp2(s->bits) <= 0x1p8;
    return s->bits <= 5 && s->bound * exp2(s->bits) <= (p->dtype == TSH_FLOAT64 ? 0x1p22 : 0x1p11);
}

/* What returns its own input now and then returns one that leads to gradients, whether or not the tape records. */
static bool may_detach(tshi_verb call) {
    return call > CALL_IDS && call != CALL_DROPOUT && call != CALL_CAST && !tshi_verb_moves(call);
}

/* The number of the new value, or -1. */
int tshi_maker_add(tshi_maker *m, const tshi_step *step) {
    tshi_program *p = m->p;
    if (p->steps == MAX_STEPS) return -1;
    tshi_step *s = &p->step[p->steps];
    *s = *step;
    s->salt = tshi_random_next(&m->random);
    s->detached = may_detach(s->call) && tshi_maker_chance(m, m->detached);
    if (!tshi_step_infer(p, p->steps, s) || !is_sensible(p, s)) return -1;
    p->steps++;
    bool fits = tshi_program_ragged_fits(p);
    p->steps--;
    if (!fits) return -1;
    s->retain = s->call > CALL_IDS && s->wants_grad && tshi_maker_chance(m, 15);
    return p->steps++;
}

int tshi_maker_add1(tshi_maker *m, tshi_verb call, int x, int64_t n0, int64_t n1, int64_t n2) {
    return tshi_maker_add(m, &(tshi_step){.call = call, .inputs = 1, .in = {x}, .n = {n0, n1, n2}});
}

/* --- leaves ------------------------------------------------------------------------------------------------------- */

int64_t tshi_maker_size(tshi_maker *m) {
    if (tshi_maker_chance(m, 80)) return m->size[tshi_maker_below(m, 4)];
    return tshi_maker_chance(m, 15) ? 0 : 1 + tshi_maker_below(m, 7);
}

/* Often by a dim that another axis splits too, in any split order. */
tsh_layout tshi_maker_shard(tshi_maker *m, int ndim) {
    return TSH_SHARD_ORDER(tshi_maker_chance(m, 40) ? ndim - 1 : tshi_maker_below(m, ndim),
                           tshi_maker_chance(m, 60) ? tshi_maker_below(m, 3) : 0);
}

static int64_t divisor(tshi_maker *m, int64_t n) {
    int64_t d = 1 + tshi_maker_below(m, (int)n);
    while (n % d) d--;
    return d;
}

void tshi_maker_units(tshi_maker *m, const tshi_dims *dims, tsh_layout layout[TSH_MAX_AXES]) {
    tsh_layout with[TSH_MAX_AXES];
    if (!tshi_maker_chance(m, 30)) return;
    memcpy(with, layout, sizeof with);
    for (int a = 0; a < m->p->axes; a++) {
        int64_t n = with[a].kind == TSH_KIND_SHARD ? dims->dim[with[a].dim] : 0;
        int kind = tshi_maker_below(m, 4);
        if (n < 1 || kind == 0) continue;
        with[a].units = divisor(m, n);
        if (kind == 1) with[a].blocks = with[a].units * divisor(m, n / with[a].units);
        if (kind == 2) with[a].sharing = TSH_SHARED;
        if (kind == 3 && with[a].units == n && with[a].dim + 1 < dims->ndim) with[a].sharing = TSH_SHARED_NEXT;
    }
    if (tshi_layouts_fit(m->p, with, dims)) memcpy(layout, with, sizeof with);
}

static tsh_layout random_layout(tshi_maker *m, int ndim) {
    int pick = tshi_maker_below(m, 100);
    if (pick < (m->p->ragged >= 0 ? 20 : 10) && m->local) return TSH_LOCAL;
    if (pick < 30 && m->partial) return TSH_PARTIAL;
    if (pick < 65 && ndim > 0) return tshi_maker_shard(m, ndim);
    return TSH_REPLICATED;
}

static bool splits_two_dims(const tshi_program *p, const tshi_step *s) {
    int dim = -1;
    for (int a = 0; a < p->axes; a++) {
        if (s->layout[a].kind != TSH_KIND_SHARD) continue;
        if (dim >= 0 && s->layout[a].dim != dim) return true;
        dim = s->layout[a].dim;
    }
    return false;
}

static bool all_of_a_whole(const tshi_program *p, const tshi_step *s) {
    for (int a = 0; a < p->axes; a++) {
        if (s->layout[a].kind == TSH_KIND_PARTIAL || s->layout[a].kind == TSH_KIND_LOCAL) return false;
    }
    return true;
}

/* Values are drawn for tensors with one split dim. */
static void choose_flags(tshi_maker *m, tshi_step *s) {
    if (tshi_maker_chance(m, 20)) s->n[LEAF_FLAGS] |= FLAG_FROM_PARTS;
    for (int a = 0; s->n[LEAF_FLAGS] & FLAG_FROM_PARTS && a < m->p->axes; a++) s->layout[a].order = 0;
    if (s->n[LEAF_FLAGS] & FLAG_FROM_PARTS && tshi_layouts_have_units(m->p, s->layout)) s->n[LEAF_FLAGS] = 0;
    bool drawn = !m->p->exact && all_of_a_whole(m->p, s) && !splits_two_dims(m->p, s);
    if (drawn && tshi_maker_chance(m, 20)) s->n[LEAF_FLAGS] |= FLAG_INIT;
}

/* A leaf that is LOCAL along the ragged axis most often is ragged. */
static int add_ragged(tshi_maker *m, tshi_step *s) {
    int axis = m->p->ragged;
    bool can = axis >= 0 && s->layout[axis].kind == TSH_KIND_LOCAL && s->shape.ndim > 0;
    if (can && tshi_maker_chance(m, 75)) s->n[s->call == CALL_IDS ? IDS_FLAGS : LEAF_FLAGS] |= FLAG_RAGGED;
    return tshi_maker_add(m, s);
}

int tshi_maker_leaf(tshi_maker *m, int ndim, const int64_t *dims, bool grad) {
    tshi_step s = {.call = CALL_LEAF, .shape = {.ndim = ndim}, .grad = grad};
    memcpy(s.shape.dim, dims, sizeof *dims * (size_t)ndim);
    for (int a = 0; a < m->p->axes; a++) s.layout[a] = random_layout(m, ndim);
    tshi_maker_units(m, &s.shape, s.layout);
    choose_flags(m, &s);
    return add_ragged(m, &s);
}

int tshi_maker_random_leaf(tshi_maker *m) {
    int64_t dims[4];
    int ndim = 1 + tshi_maker_below(m, 3) + (tshi_maker_chance(m, 10) ? 1 : 0);
    if (tshi_maker_chance(m, 4)) ndim = 0;
    for (int d = 0; d < ndim; d++) dims[d] = tshi_maker_size(m);
    return tshi_maker_leaf(m, ndim, dims, tshi_maker_chance(m, 75));
}

/* Along one axis ids may be sums; LOCAL where the table may be. */
int tshi_maker_ids(tshi_maker *m, const tshi_dims *shape, int64_t limit, bool target, int no_local) {
    static const int64_t ignored[] = {-100, -100, 0, -7};
    tshi_step s = {.call = CALL_IDS, .shape = *shape};
    for (int a = 0; a < m->p->axes; a++) {
        s.layout[a] = random_layout(m, shape->ndim);
        if (s.layout[a].kind == TSH_KIND_LOCAL && a == no_local) s.layout[a] = TSH_REPLICATED;
        if (s.layout[a].kind == TSH_KIND_PARTIAL && target) s.layout[a] = TSH_REPLICATED;
    }
    tshi_maker_units(m, shape, s.layout);
    s.n[IDS_LIMIT] = limit;
    s.n[IDS_FLAGS] = target ? FLAG_TARGET : 0;
    s.n[IDS_IGNORE] = ignored[tshi_maker_below(m, 4)];
    /* With an ignored class among the targets a mean could be over no rows. */
    if (s.n[IDS_IGNORE] == 0) s.n[IDS_IGNORE] = limit + 3;
    return add_ragged(m, &s);
}

/* --- inputs ------------------------------------------------------------------------------------------------------- */

/* A value of floats, mostly a late one. */
int tshi_maker_value(tshi_maker *m) {
    for (int tries = 0; tries < 12; tries++) {
        int k = tshi_maker_chance(m, 60) ? m->p->steps - 1 - tshi_maker_below(m, m->p->steps < 4 ? m->p->steps : 4)
                                         : tshi_maker_below(m, m->p->steps);
        if (!m->p->step[k].integer) return k;
    }
    return tshi_maker_random_leaf(m);
}

int tshi_maker_value_of(tshi_maker *m, int ndim, const int64_t *dims) {
    for (int tries = 0; tries < 6; tries++) {
        int k = tshi_maker_below(m, m->p->steps);
        const tshi_step *s = &m->p->step[k];
        bool fits = s->shape.ndim == ndim && !memcmp(s->shape.dim, dims, sizeof *dims * (size_t)ndim);
        if (fits && !s->integer && !(s->n[LEAF_FLAGS] & FLAG_POSITIVE && s->call == CALL_LEAF)) return k;
    }
    return tshi_maker_leaf(m, ndim, dims, tshi_maker_chance(m, 70));
}

int64_t tshi_maker_last(const tshi_maker *m, int x) {
    const tshi_dims *d = &m->p->step[x].shape;
    return d->ndim > 0 ? d->dim[d->ndim - 1] : 0;
}

int tshi_maker_dim(tshi_maker *m, int x) {
    int ndim = m->p->step[x].shape.ndim;
    return ndim > 0 ? tshi_maker_below(m, ndim) : 0;
}
