/* A random program from a seed. A step is proposed, what it makes is inferred, and one that would make nothing sensible
 * is taken back: sizes and bounds are kept small. */
#include "differential/functions.h"
#include "support/values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t tshi_random_next(uint64_t *state) {
    return tshi_mix(++*state);
}

int tshi_random_below(uint64_t *state, int n) {
    return (int)(tshi_random_next(state) >> 33) % n;
}

typedef struct maker {
    tshi_program *p;
    uint64_t random;
    int detached;        /* steps that are detached, of a hundred */
    bool local, partial; /* leaves may be LOCAL, PARTIAL */
    int64_t size[4];     /* of dims, mostly */
} maker;

static int below(maker *m, int n) {
    return tshi_random_below(&m->random, n);
}

static bool chance(maker *m, int percent) {
    return below(m, 100) < percent;
}

/* --- adding steps ------------------------------------------------------------------------------------------------- */

static bool is_sensible(const tshi_program *p, const tshi_step *s) {
    if (s->shape.ndim > 5 || tshi_dims_numel(&s->shape) > 700) return false;
    if (s->integer) return true;
    if (!p->exact) return s->bound <= 1e3;
    return s->bits <= 5 && s->bound * exp2(s->bits) <= (p->dtype == TSH_FLOAT64 ? 0x1p22 : 0x1p11);
}

/* What returns its own input now and then returns one that leads to gradients, whether or not the tape records. */
static bool may_detach(tshi_verb call) {
    return call > CALL_IDS && call != CALL_DROPOUT && call != CALL_CAST && !tshi_verb_moves(call);
}

/* The number of the new value, or -1. */
static int add(maker *m, const tshi_step *step) {
    tshi_program *p = m->p;
    if (p->steps == MAX_STEPS) return -1;
    tshi_step *s = &p->step[p->steps];
    *s = *step;
    s->salt = tshi_random_next(&m->random);
    s->detached = may_detach(s->call) && chance(m, m->detached);
    if (!tshi_step_infer(p, p->steps, s) || !is_sensible(p, s)) return -1;
    p->steps++;
    bool fits = tshi_program_ragged_fits(p);
    p->steps--;
    if (!fits) return -1;
    s->retain = s->call > CALL_IDS && s->wants_grad && chance(m, 15);
    return p->steps++;
}

static int add1(maker *m, tshi_verb call, int x, int64_t n0, int64_t n1, int64_t n2) {
    return add(m, &(tshi_step){.call = call, .inputs = 1, .in = {x}, .n = {n0, n1, n2}});
}

/* --- leaves ------------------------------------------------------------------------------------------------------- */

static int64_t random_size(maker *m) {
    if (chance(m, 80)) return m->size[below(m, 4)];
    return chance(m, 15) ? 0 : 1 + below(m, 7);
}

/* Often by a dim that another axis splits too, in any split order. */
static tsh_layout random_shard(maker *m, int ndim) {
    return TSH_SHARD_ORDER(chance(m, 40) ? ndim - 1 : below(m, ndim), chance(m, 60) ? below(m, 3) : 0);
}

static tsh_layout random_layout(maker *m, int ndim) {
    int pick = below(m, 100);
    if (pick < (m->p->ragged >= 0 ? 20 : 10) && m->local) return TSH_LOCAL;
    if (pick < 30 && m->partial) return TSH_PARTIAL;
    if (pick < 65 && ndim > 0) return random_shard(m, ndim);
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
static void choose_flags(maker *m, tshi_step *s) {
    if (chance(m, 20)) s->n[LEAF_FLAGS] |= FLAG_CLAIM;
    for (int a = 0; s->n[LEAF_FLAGS] & FLAG_CLAIM && a < m->p->axes; a++) s->layout[a].order = 0;
    bool drawn = !m->p->exact && all_of_a_whole(m->p, s) && !splits_two_dims(m->p, s);
    if (drawn && chance(m, 20)) s->n[LEAF_FLAGS] |= FLAG_INIT;
}

/* A leaf that is LOCAL along the ragged axis most often is ragged. */
static int add_ragged(maker *m, tshi_step *s) {
    int axis = m->p->ragged;
    bool can = axis >= 0 && s->layout[axis].kind == TSH_KIND_LOCAL && s->shape.ndim > 0;
    if (can && chance(m, 75)) s->n[s->call == CALL_IDS ? IDS_FLAGS : LEAF_FLAGS] |= FLAG_RAGGED;
    return add(m, s);
}

static int new_leaf(maker *m, int ndim, const int64_t *dims, bool grad) {
    tshi_step s = {.call = CALL_LEAF, .shape = {.ndim = ndim}, .grad = grad};
    memcpy(s.shape.dim, dims, sizeof *dims * (size_t)ndim);
    for (int a = 0; a < m->p->axes; a++) s.layout[a] = random_layout(m, ndim);
    choose_flags(m, &s);
    return add_ragged(m, &s);
}

static int random_leaf(maker *m) {
    int64_t dims[4];
    int ndim = 1 + below(m, 3) + (chance(m, 10) ? 1 : 0);
    if (chance(m, 4)) ndim = 0;
    for (int d = 0; d < ndim; d++) dims[d] = random_size(m);
    return new_leaf(m, ndim, dims, chance(m, 75));
}

/* Along one axis ids may be sums; LOCAL where the table may be. */
static int new_ids(maker *m, const tshi_dims *shape, int64_t limit, bool target, int no_local) {
    static const int64_t ignored[] = {-100, -100, 0, -7};
    tshi_step s = {.call = CALL_IDS, .shape = *shape};
    for (int a = 0; a < m->p->axes; a++) {
        s.layout[a] = random_layout(m, shape->ndim);
        if (s.layout[a].kind == TSH_KIND_LOCAL && a == no_local) s.layout[a] = TSH_REPLICATED;
        if (s.layout[a].kind == TSH_KIND_PARTIAL && target) s.layout[a] = TSH_REPLICATED;
    }
    s.n[IDS_LIMIT] = limit;
    s.n[IDS_FLAGS] = target ? FLAG_TARGET : 0;
    s.n[IDS_IGNORE] = ignored[below(m, 4)];
    /* With an ignored class among the targets a mean could be over no rows. */
    if (s.n[IDS_IGNORE] == 0) s.n[IDS_IGNORE] = limit + 3;
    return add_ragged(m, &s);
}

/* --- inputs ------------------------------------------------------------------------------------------------------- */

/* A value of floats, mostly a late one. */
static int any_value(maker *m) {
    for (int tries = 0; tries < 12; tries++) {
        int k = chance(m, 60) ? m->p->steps - 1 - below(m, m->p->steps < 4 ? m->p->steps : 4) : below(m, m->p->steps);
        if (!m->p->step[k].integer) return k;
    }
    return random_leaf(m);
}

static int value_of_shape(maker *m, int ndim, const int64_t *dims) {
    for (int tries = 0; tries < 6; tries++) {
        int k = below(m, m->p->steps);
        const tshi_step *s = &m->p->step[k];
        bool fits = s->shape.ndim == ndim && !memcmp(s->shape.dim, dims, sizeof *dims * (size_t)ndim);
        if (fits && !s->integer && !(s->n[LEAF_FLAGS] & FLAG_POSITIVE && s->call == CALL_LEAF)) return k;
    }
    return new_leaf(m, ndim, dims, chance(m, 70));
}

static int64_t last_of(const maker *m, int x) {
    const tshi_dims *d = &m->p->step[x].shape;
    return d->ndim > 0 ? d->dim[d->ndim - 1] : 0;
}

static int random_dim(maker *m, int x) {
    int ndim = m->p->step[x].shape.ndim;
    return ndim > 0 ? below(m, ndim) : 0;
}

/* --- steps of several kinds --------------------------------------------------------------------------------------- */

static int add_product(maker *m, tshi_verb call, int x) {
    int64_t in = last_of(m, x), out = random_size(m);
    if (m->p->step[x].shape.ndim == 0) return -1;
    const int64_t dims[2] = {call == CALL_MATMUL ? in : out, call == CALL_MATMUL ? out : in};
    tshi_step s = {.call = call, .inputs = 2, .in = {x, value_of_shape(m, 2, dims)}};
    if (call == CALL_AFFINE && chance(m, 60)) s.in[s.inputs++] = value_of_shape(m, 1, &out);
    for (int i = 0; i < s.inputs; i++) {
        if (s.in[i] < 0) return -1;
    }
    return add(m, &s);
}

static int add_two(maker *m, tshi_verb call, int x) {
    const tshi_dims shape = m->p->step[x].shape;
    int y = chance(m, 8) ? x : value_of_shape(m, shape.ndim, shape.dim);
    return y < 0 ? -1 : add(m, &(tshi_step){.call = call, .inputs = 2, .in = {x, y}});
}

static int add_vector(maker *m, tshi_verb call, int x, int vectors) {
    int64_t n = last_of(m, x);
    if (m->p->step[x].shape.ndim == 0) return -1;
    tshi_step s = {.call = call, .inputs = 1, .in = {x}, .f = chance(m, 50) ? 1e-2 : 0.1};
    for (int i = 0; i < vectors; i++) {
        int v = value_of_shape(m, 1, &n);
        if (v < 0) return -1;
        s.in[s.inputs++] = v;
    }
    return add(m, &s);
}

static int add_scale(maker *m, int x) {
    static const double factors[] = {2, -1, 0.5, -3, 0, 1};
    double factor = m->p->exact ? factors[below(m, 6)] : -1.5 + 0.1 * below(m, 30);
    return add(m, &(tshi_step){.call = CALL_SCALE, .inputs = 1, .in = {x}, .f = factor});
}

static int add_dropout(maker *m, int x) {
    static const double chances[] = {0.5, 0, 0.3, 0.9};
    double p = chances[below(m, m->p->exact ? 2 : 4)];
    return add(m, &(tshi_step){.call = CALL_DROPOUT, .inputs = 1, .in = {x}, .f = p});
}

static int add_reshape(maker *m, int x) {
    static const int64_t factors[] = {2, 3, 1, 4};
    tshi_step s = {.call = CALL_RESHAPE, .inputs = 1, .in = {x}};
    s.n[0] = below(m, FORM_COUNT);
    s.n[1] = random_dim(m, x);
    s.n[2] = factors[below(m, 4)];
    s.n[3] = chance(m, 30);
    return add(m, &s);
}

static int add_slice(maker *m, int x) {
    int dim = random_dim(m, x);
    if (m->p->step[x].shape.ndim == 0) return -1;
    int64_t n = m->p->step[x].shape.dim[dim], start = below(m, (int)n + 1);
    return add1(m, CALL_SLICE, x, dim, start, chance(m, 90) ? 1 + below(m, (int)n + 1) : 0);
}

static int add_concat(maker *m, int x) {
    int dim = random_dim(m, x), count = chance(m, 10) ? 1 + below(m, 8) : 1 + below(m, 3);
    tshi_dims shape = m->p->step[x].shape;
    if (shape.ndim == 0) return -1;
    tshi_step s = {.call = CALL_CONCAT, .inputs = count, .in = {x}, .n = {dim}};
    for (int i = 1; i < count; i++) {
        if (chance(m, 30)) shape.dim[dim] = random_size(m);
        s.in[i] = chance(m, 20) ? x : value_of_shape(m, shape.ndim, shape.dim);
        if (s.in[i] < 0) return -1;
    }
    return add(m, &s);
}

static int add_reduction(maker *m, tshi_verb call, int x) {
    bool all = m->p->step[x].shape.ndim == 0 || chance(m, 25);
    return add1(m, call, x, all ? TSH_ALL_DIMS : random_dim(m, x), 0, 0);
}

static tsh_layout random_target(maker *m, int x) {
    int ndim = m->p->step[x].shape.ndim, pick = below(m, 100);
    if (pick < 8 && m->local) return TSH_LOCAL;
    if (pick < 20) return TSH_PARTIAL;
    return pick < 70 && ndim > 0 ? random_shard(m, ndim) : TSH_REPLICATED;
}

static int add_move_of_all(maker *m, int x) {
    tshi_step s = {.call = CALL_MOVE_ALL, .inputs = 1, .in = {x}};
    for (int a = 0; a < m->p->axes; a++) {
        s.layout[a] = random_target(m, x);
        if (s.layout[a].kind == TSH_KIND_LOCAL) s.layout[a] = TSH_PARTIAL;
    }
    return add(m, &s);
}

static int add_move(maker *m, int x) {
    static const tshi_verb calls[] = {CALL_REDISTRIBUTE, CALL_REDISTRIBUTE, CALL_REDISTRIBUTE, CALL_SCATTER,
                                      CALL_GATHER,       CALL_REDUCE,       CALL_COPY};
    if (chance(m, 35)) return add_move_of_all(m, x);
    tshi_step s = {.call = calls[below(m, m->local ? 7 : 6)], .inputs = 1, .in = {x}};
    s.n[0] = below(m, m->p->axes);
    s.n[1] = s.call == CALL_SCATTER ? random_dim(m, x) : 0;
    if (s.call == CALL_REDISTRIBUTE) s.layout[0] = random_target(m, x);
    return add(m, &s);
}

/* Ids as they are or moved and shaped on their way. */
static int add_ids(maker *m, const tshi_dims *shape, int64_t limit, int no_local) {
    int ids = new_ids(m, shape, limit, false, no_local);
    if (ids >= 0 && chance(m, 15)) ids = add_reshape(m, ids);
    if (ids >= 0 && chance(m, 15)) ids = add_slice(m, ids);
    return ids;
}

static tshi_dims ids_shape(maker *m) {
    tshi_dims shape = {.ndim = below(m, 3)};
    for (int d = 0; d < shape.ndim; d++) shape.dim[d] = random_size(m);
    return shape;
}

/* A late value of integers that some function has made, or -1. */
static int any_indices(maker *m) {
    for (int k = m->p->steps - 1; k >= 0; k--) {
        tshi_verb call = m->p->step[k].call;
        if (m->p->step[k].integer && (call == CALL_ARGMAX || call == CALL_TOPK) && chance(m, 70)) return k;
    }
    return -1;
}

static int add_lookup(maker *m) {
    int indices = chance(m, 20) ? any_indices(m) : -1;
    const int64_t rows = indices >= 0 ? (int64_t)m->p->step[indices].bound : 1 + below(m, 7);
    const int64_t dims[2] = {rows, random_size(m)};
    int table = value_of_shape(m, 2, dims);
    if (table < 0) return -1;
    tshi_dims shape = ids_shape(m);
    int ids = indices >= 0 ? indices : add_ids(m, &shape, dims[0], -1);
    if (ids < 0) return -1;
    return add(m, &(tshi_step){.call = CALL_LOOKUP,
                               .inputs = 2,
                               .in = {table, ids},
                               .n = {chance(m, 40) ? below(m, (int)dims[0]) : -1}});
}

static void choose_layer(maker *m, tshi_step *s) {
    s->n[LAYER_AXIS] = below(m, m->p->axes);
    s->n[LAYER_SHARDING] = below(m, 3);
    int64_t flags = m->p->exact || chance(m, 30) ? FLAG_LOAD : 0;
    if (chance(m, 60) && s->call == CALL_LINEAR) flags |= FLAG_BIAS;
    if (s->n[LAYER_SHARDING] == TSH_COLUMN && chance(m, 40)) flags |= FLAG_GATHER;
    if (s->n[LAYER_SHARDING] == TSH_ROW && chance(m, 40)) flags |= FLAG_SEQUENCE;
    s->n[LAYER_FLAGS] = flags;
}

/* An earlier step whose layer may be used again, or -1. */
static int layer_to_share(maker *m, tshi_verb call) {
    if (!chance(m, 20)) return -1;
    for (int k = 0; k < m->p->steps; k++) {
        if (m->p->step[k].call == call && m->p->step[k].inputs == 1) return k;
    }
    return -1;
}

/* The layer with what it takes of x before it: the step's, or that of an earlier one. */
static int add_layer(maker *m, const tshi_step *own, int x, int shared) {
    tshi_step s = shared >= 0 ? m->p->step[shared] : *own;
    tshi_step before = {.call = CALL_PREPARE, .inputs = 1, .in = {x}};
    before.n[LAYER_AXIS] = s.n[LAYER_AXIS];
    before.n[LAYER_SHARDING] = s.n[LAYER_SHARDING];
    s.in[0] = add(m, &before);
    s.inputs = 1;
    if (shared >= 0) s.in[s.inputs++] = shared;
    return s.in[0] < 0 ? -1 : add(m, &s);
}

static int add_linear(maker *m, int x) {
    tshi_step s = {.call = CALL_LINEAR};
    if (last_of(m, x) < 1) return -1;
    choose_layer(m, &s);
    s.n[LAYER_OUT] = 1 + below(m, 6);
    s.n[LAYER_ACTIVATION] = m->p->exact ? (chance(m, 30) ? TSH_ACTIVATION_RELU : 0) : below(m, 5);
    s.n[LAYER_INIT] = below(m, 8);
    int made = add_layer(m, &s, x, layer_to_share(m, s.call));
    return made >= 0 ? made : add_layer(m, &s, x, -1);
}

static int add_embedding(maker *m) {
    tshi_step s = {.call = CALL_EMBEDDING};
    choose_layer(m, &s);
    s.n[LAYER_OUT] = 1 + below(m, 6);
    s.n[EMBEDDING_ROWS] = 1 + below(m, 7);
    s.n[EMBEDDING_PADDING] = below(m, (int)s.n[EMBEDDING_ROWS]);
    if (chance(m, 40)) s.n[LAYER_FLAGS] |= FLAG_PADDING;
    tshi_dims shape = ids_shape(m);
    int shared = layer_to_share(m, s.call);
    const tshi_step *layer = shared >= 0 ? &m->p->step[shared] : &s;
    int ids = add_ids(m, &shape, layer->n[EMBEDDING_ROWS], (int)layer->n[LAYER_AXIS]);
    return ids < 0 ? -1 : add_layer(m, &s, ids, shared);
}

static int add_cross_entropy(maker *m, int x) {
    tshi_dims rows = m->p->step[x].shape;
    int64_t classes = last_of(m, x);
    if (rows.ndim-- == 0 || classes < 1) return -1;
    int target = new_ids(m, &rows, classes, true, -1);
    if (target < 0) return -1;
    tshi_step s = {.call = CALL_CROSS_ENTROPY, .inputs = 2, .in = {x, target}, .n = {below(m, 3)}};
    if (chance(m, 40)) s.f = 0.1 * below(m, 11);
    if (chance(m, 35)) {
        tshi_step w = {.call = CALL_LEAF, .shape = {1, {classes}}, .n = {FLAG_POSITIVE}};
        for (int a = 0; a < m->p->axes; a++) w.layout[a] = chance(m, 60) ? TSH_REPLICATED : TSH_SHARD(0);
        s.in[s.inputs++] = add(m, &w);
        if (s.in[2] < 0) return -1;
    }
    return add(m, &s);
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

static int64_t small_size(maker *m, int most) {
    return chance(m, 97) ? 1 + below(m, most) : random_size(m);
}

/* A value [B, T, H, D], or a new one. */
static int by_heads(maker *m) {
    const int64_t dims[4] = {small_size(m, 3), small_size(m, 4), small_size(m, 6), small_size(m, 4)};
    for (int tries = 0; tries < 6; tries++) {
        int k = any_value(m);
        if (k >= 0 && m->p->step[k].shape.ndim == 4) return k;
    }
    return value_of_shape(m, 4, dims);
}

static int add_rotary(maker *m) {
    int x = by_heads(m);
    if (x < 0) return -1;
    const tshi_dims dims = m->p->step[x].shape;
    tshi_dims at = {1, {dims.dim[1]}};
    if (chance(m, 40)) at = (tshi_dims){2, {dims.dim[0], dims.dim[1]}};
    int positions = add_ids(m, &at, 1 + below(m, 12), -1);
    int64_t most = dims.dim[3] / 2, turned = most > 0 && chance(m, 60) ? 2 * (1 + below(m, (int)most)) : 0;
    if (positions < 0) return -1;
    return add(m,
               &(tshi_step){
                   .call = CALL_ROTARY, .inputs = 2, .in = {x, positions}, .n = {below(m, 2), turned, chance(m, 30)}});
}

/* Scores are kept so small that their rounding errors are. */
static bool has_small_scores(const tshi_program *p, int q, int k) {
    return p->step[q].bound * p->step[k].bound * (double)p->step[q].shape.dim[3] <= 300;
}

static int add_attention(maker *m) {
    int q = by_heads(m);
    if (q < 0) return -1;
    tshi_dims dims = m->p->step[q].shape;
    int64_t heads = dims.dim[2], sharers = 1 + below(m, 3);
    dims.dim[1] = chance(m, 50) ? dims.dim[1] : small_size(m, 5);
    if (heads % sharers == 0) dims.dim[2] = heads / sharers;
    int k = value_of_shape(m, 4, dims.dim), v = chance(m, 10) ? k : value_of_shape(m, 4, dims.dim);
    if (k < 0 || v < 0 || !has_small_scores(m->p, q, k)) return -1;
    tshi_step s = {.call = CALL_ATTENTION, .inputs = 3, .in = {q, k, v}, .n = {chance(m, 50), chance(m, 30)}};
    if (chance(m, 25)) s.f = 0.3;
    if (chance(m, 40)) {
        s.in[s.inputs++] = add_ids(m, &(tshi_dims){1, {dims.dim[0]}}, dims.dim[1] + 1, -1);
        if (s.in[3] < 0) return -1;
    }
    return add(m, &s);
}

/* --- functions of functions.c ------------------------------------------------------------------------------------- */

/* A value of x's shape whose elements are positive, none of them near 0. */
static int add_positive(maker *m, int x) {
    if (x < 0 || m->p->step[x].least >= least_divisor) return x;
    if (chance(m, 25)) return add1(m, CALL_CLAMP, x, POSITIVE_CLAMP, 0, 0);
    if (m->p->step[x].bound > 2) x = add1(m, CALL_TANH, x, 0, 0, 0);
    return x < 0 ? -1 : add1(m, chance(m, 50) ? CALL_EXP : CALL_SIGMOID, x, 0, 0, 0);
}

static int add_of_positive(maker *m, tshi_verb call, int x) {
    x = add_positive(m, x);
    return x < 0 ? -1 : add1(m, call, x, 0, 0, 0);
}

static int add_quotient(maker *m, int x) {
    const tshi_dims shape = m->p->step[x].shape;
    int y = add_positive(m, value_of_shape(m, shape.ndim, shape.dim));
    return y < 0 ? -1 : add(m, &(tshi_step){.call = CALL_DIV, .inputs = 2, .in = {x, y}});
}

static int add_pow(maker *m, int x) {
    static const double exponents[] = {2, 3, 1, 0, 0.5, -1, 1.7, -0.5};
    double exponent = exponents[below(m, 8)];
    if (exponent < 0 || exponent > floor(exponent)) x = add_positive(m, x);
    return x < 0 ? -1 : add(m, &(tshi_step){.call = CALL_POW, .inputs = 1, .in = {x}, .f = exponent});
}

static int add_mask(maker *m, int x) {
    static const double values[] = {0, -3, 2};
    tshi_dims shape = m->p->step[x].shape;
    for (int drop = chance(m, 30) ? below(m, shape.ndim + 1) : 0; drop > 0; drop--) {
        memmove(shape.dim, shape.dim + 1, sizeof *shape.dim * (size_t)(--shape.ndim));
    }
    for (int d = 0; d < shape.ndim; d++) shape.dim[d] = chance(m, 25) ? 1 : shape.dim[d];
    int mask = new_ids(m, &shape, 2, false, -1);
    if (mask < 0) return -1;
    return add(m, &(tshi_step){.call = CALL_MASKED_FILL, .inputs = 2, .in = {x, mask}, .f = values[below(m, 3)]});
}

static int add_cast(maker *m, int x) {
    int indices = any_indices(m);
    if (indices >= 0 && (!m->p->exact || chance(m, 50))) x = indices;
    int made = add1(m, CALL_CAST, x, !m->p->step[x].integer && chance(m, 25), 0, 0);
    return made >= 0 && m->p->step[made].integer ? add1(m, CALL_CAST, made, 0, 0, 0) : made;
}

static int add_parts(maker *m, int x) {
    if (m->p->step[x].shape.ndim == 0) return -1;
    int count = 1 + below(m, MAX_PARTS);
    return add(m, &(tshi_step){.call = CALL_SPLIT_PARTS,
                               .inputs = 1,
                               .in = {x},
                               .n = {random_dim(m, x), count, below(m, count + 1) - 1, below(m, 2)}});
}

static int add_largest(maker *m, tshi_verb call, int x) {
    int dim = random_dim(m, x);
    if (m->p->step[x].shape.ndim == 0) return -1;
    int size = (int)m->p->step[x].shape.dim[dim];
    bool indices = call == CALL_TOPK && chance(m, 25);
    return add1(m, call, x, dim, call == CALL_TOPK && size > 0 ? 1 + below(m, size) : 1, indices);
}

static int add_loss(maker *m, tshi_verb call, int x) {
    const tshi_dims shape = m->p->step[x].shape;
    int target = value_of_shape(m, shape.ndim, shape.dim);
    if (target >= 0 && call == CALL_BCE_LOSS) target = add1(m, CALL_SIGMOID, target, 0, 0, 0);
    tshi_step s = {.call = call, .inputs = 2, .in = {x, target}, .n = {below(m, 3)}};
    if (target < 0) return -1;
    if (call == CALL_BCE_LOSS && shape.ndim > 0 && chance(m, 40)) {
        tshi_step w = {.call = CALL_LEAF, .shape = {1, {last_of(m, x)}}, .n = {FLAG_POSITIVE}};
        for (int a = 0; a < m->p->axes; a++) w.layout[a] = chance(m, 60) ? TSH_REPLICATED : TSH_SHARD(0);
        s.in[s.inputs++] = add(m, &w);
        if (s.in[2] < 0) return -1;
    }
    return add(m, &s);
}

static const tshi_verb exact_functions[] = {CALL_CLAMP,   CALL_MASKED_FILL, CALL_CAST,
                                            CALL_PERMUTE, CALL_TRANSPOSE,   CALL_SPLIT_PARTS,
                                            CALL_TOPK,    CALL_ARGMAX,      CALL_MSE_LOSS};
static const tshi_verb float_functions[] = {CALL_DIV,     CALL_EXP, CALL_LOG,   CALL_TANH,    CALL_SQRT,
                                            CALL_SIGMOID, CALL_POW, CALL_CLAMP, CALL_BCE_LOSS};

static int add_function(maker *m, int x) {
    tshi_verb call = exact_functions[below(m, sizeof exact_functions / sizeof exact_functions[0])];
    if (!m->p->exact && chance(m, 60))
        call = float_functions[below(m, sizeof float_functions / sizeof float_functions[0])];
    switch (call) {
    case CALL_DIV: return add_quotient(m, x);
    case CALL_LOG:
    case CALL_SQRT: return add_of_positive(m, call, x);
    case CALL_POW: return add_pow(m, x);
    case CALL_CLAMP: return add1(m, call, x, below(m, m->p->exact ? EXACT_CLAMPS : CLAMPS), 0, 0);
    case CALL_MASKED_FILL: return add_mask(m, x);
    case CALL_CAST: return add_cast(m, x);
    case CALL_PERMUTE: return add1(m, call, x, below(m, 1000), 0, 0);
    case CALL_TRANSPOSE: return add1(m, call, x, random_dim(m, x), random_dim(m, x), 0);
    case CALL_SPLIT_PARTS: return add_parts(m, x);
    case CALL_TOPK:
    case CALL_ARGMAX: return add_largest(m, call, x);
    case CALL_MSE_LOSS:
    case CALL_BCE_LOSS: return add_loss(m, call, x);
    default: return add1(m, call, x, 0, 0, 0);
    }
}

/* --- layers of a transformer -------------------------------------------------------------------------------------- */

static int add_project(maker *m) {
    int owner = layer_to_share(m, CALL_EMBEDDING);
    if (owner < 0) owner = add_embedding(m);
    if (owner >= 0 && m->p->step[owner].inputs == 2) owner = m->p->step[owner].in[1];
    if (owner < 0) return -1;
    const tshi_step table = m->p->step[owner];
    int x = chance(m, 50) ? owner : value_of_shape(m, 2, (int64_t[]){small_size(m, 4), table.n[LAYER_OUT]});
    if (x < 0) return -1;
    int64_t sharding = table.n[LAYER_SHARDING];
    tshi_step before = {.call = CALL_PREPARE, .inputs = 1, .in = {x}};
    tshi_step s = {.call = CALL_PROJECT, .inputs = 2};
    s.n[LAYER_AXIS] = before.n[LAYER_AXIS] = table.n[LAYER_AXIS];
    s.n[LAYER_SHARDING] = sharding;
    before.n[LAYER_SHARDING] = sharding == TSH_DENSE ? TSH_DENSE : sharding == TSH_ROW ? TSH_COLUMN : TSH_ROW;
    s.in[0] = add(m, &before);
    s.in[1] = owner;
    return s.in[0] < 0 ? -1 : add(m, &s);
}

static int64_t random_flags(maker *m, int64_t of) {
    int64_t flags = 0;
    for (int64_t flag = 1; flag <= of; flag *= 2) {
        if (of & flag && chance(m, 40)) flags |= flag;
    }
    return flags;
}

static int add_norm(maker *m, int x) {
    tshi_step s = {.call = CALL_NORM, .inputs = 1, .in = {x}};
    s.n[LAYER_AXIS] = below(m, m->p->axes);
    s.n[LAYER_FLAGS] = random_flags(m, FLAG_BIAS | FLAG_RMS) | (chance(m, 80) ? FLAG_WEIGHT : 0);
    return add(m, &s);
}

/* Ids that no axis splits, not LOCAL along one axis. */
static int add_whole_ids(maker *m, const tshi_dims *shape, int64_t limit, int no_local) {
    int ids = new_ids(m, shape, limit, false, no_local);
    if (ids < 0) return -1;
    for (int a = 0; a < m->p->axes; a++) {
        if (m->p->step[ids].layout[a].kind == TSH_KIND_SHARD) m->p->step[ids].layout[a] = TSH_REPLICATED;
    }
    return ids;
}

/* Positions and lengths of the sequences, as the flags want them. */
static bool add_sequences(maker *m, tshi_step *s, int64_t tokens) {
    int64_t batch = s->n[ATTENTION_BATCH], time = tokens / batch;
    int axis = (int)s->n[LAYER_AXIS];
    tshi_dims positions = {1, {time}}, lengths = {1, {batch}};
    if (chance(m, 50)) positions = (tshi_dims){2, {batch, time}};
    if (s->n[LAYER_FLAGS] & FLAG_ROTARY) s->in[s->inputs++] = add_whole_ids(m, &positions, 9, axis);
    if (s->n[LAYER_FLAGS] & FLAG_LENGTHS) s->in[s->inputs++] = add_whole_ids(m, &lengths, time + 1, axis);
    for (int i = 1; i < s->inputs; i++) {
        if (s->in[i] < 0) return false;
    }
    return true;
}

static int add_transformer(maker *m, tshi_verb call) {
    const int64_t batch = 1 + below(m, 3), dims[2] = {batch * small_size(m, 4), 1 + below(m, 5)};
    int x = value_of_shape(m, 2, dims);
    tshi_step s = {.call = call, .inputs = 1}, before = {.call = CALL_PREPARE, .inputs = 1, .in = {x}};
    s.n[LAYER_AXIS] = before.n[LAYER_AXIS] = below(m, m->p->axes);
    before.n[LAYER_SHARDING] = PREPARE_WHOLE;
    s.n[LAYER_FLAGS] = random_flags(m, FLAG_BIAS | FLAG_SEQUENCE | FLAG_GATED | FLAG_POST | FLAG_RMS);
    s.n[LAYER_OUT] = 1 + below(m, 6);
    s.n[LAYER_ACTIVATION] = below(m, 4);
    s.in[0] = x < 0 ? -1 : add(m, &before);
    if (s.in[0] < 0) return -1;
    if (call == CALL_MLP) return add(m, &s);
    s.n[LAYER_FLAGS] |= random_flags(m, FLAG_CAUSAL | FLAG_ROTARY | FLAG_LENGTHS);
    s.n[ATTENTION_BATCH] = batch;
    s.n[ATTENTION_KV_HEADS] = 1 + below(m, 3);
    s.n[ATTENTION_HEADS] = s.n[ATTENTION_KV_HEADS] * (1 + below(m, 3));
    s.n[ATTENTION_HEAD_DIM] = s.n[LAYER_FLAGS] & FLAG_ROTARY ? 2 + 2 * below(m, 2) : 1 + below(m, 3);
    if (chance(m, 20)) s.f = 0.3;
    return add_sequences(m, &s, dims[0]) ? add(m, &s) : -1;
}

/* --- programs ----------------------------------------------------------------------------------------------------- */

static const tshi_verb exact_calls[] = {
    CALL_MATMUL, CALL_AFFINE,  CALL_ADD,       CALL_SUB,          CALL_MUL,          CALL_SCALE, CALL_BIAS,
    CALL_RELU,   CALL_DROPOUT, CALL_RESHAPE,   CALL_SLICE,        CALL_CONCAT,       CALL_SUM,   CALL_MEAN,
    CALL_LOOKUP, CALL_LINEAR,  CALL_EMBEDDING, CALL_REDISTRIBUTE, CALL_REDISTRIBUTE, CALL_LEAF,  CALL_PROJECT};
enum { EXACT_CALLS = sizeof exact_calls / sizeof exact_calls[0] };
static const tshi_verb float_calls[] = {CALL_GELU,        CALL_GELU_TANH,      CALL_SILU,     CALL_SOFTMAX,
                                        CALL_LOG_SOFTMAX, CALL_LAYER_NORM,     CALL_RMS_NORM, CALL_CROSS_ENTROPY,
                                        CALL_ATTENTION,   CALL_ATTENTION,      CALL_ROTARY,   CALL_NORM,
                                        CALL_MLP,         CALL_SELF_ATTENTION, CALL_BLOCK};
enum { FLOAT_CALLS = sizeof float_calls / sizeof float_calls[0] };

static int add_random(maker *m) {
    int x = any_value(m);
    if (x < 0) return -1;
    if (chance(m, 35)) return add_function(m, x);
    tshi_verb call = exact_calls[below(m, EXACT_CALLS)];
    if (!m->p->exact && chance(m, 40)) call = float_calls[below(m, FLOAT_CALLS)];
    switch (call) {
    case CALL_LEAF: return random_leaf(m);
    case CALL_MATMUL:
    case CALL_AFFINE: return add_product(m, call, x);
    case CALL_ADD:
    case CALL_SUB:
    case CALL_MUL: return add_two(m, call, x);
    case CALL_SCALE: return add_scale(m, x);
    case CALL_BIAS: return add_vector(m, call, x, 1);
    case CALL_LAYER_NORM: return add_vector(m, call, x, below(m, 3));
    case CALL_RMS_NORM: return add_vector(m, call, x, below(m, 2));
    case CALL_DROPOUT: return add_dropout(m, x);
    case CALL_RESHAPE: return add_reshape(m, x);
    case CALL_SLICE: return add_slice(m, x);
    case CALL_CONCAT: return add_concat(m, x);
    case CALL_SUM:
    case CALL_MEAN: return add_reduction(m, call, x);
    case CALL_SOFTMAX:
    case CALL_LOG_SOFTMAX: return add1(m, call, x, random_dim(m, x), 0, 0);
    case CALL_LOOKUP: return add_lookup(m);
    case CALL_ATTENTION: return add_attention(m);
    case CALL_ROTARY: return add_rotary(m);
    case CALL_LINEAR: return add_linear(m, x);
    case CALL_EMBEDDING: return add_embedding(m);
    case CALL_PROJECT: return add_project(m);
    case CALL_NORM: return add_norm(m, x);
    case CALL_MLP:
    case CALL_SELF_ATTENTION:
    case CALL_BLOCK: return add_transformer(m, call);
    case CALL_CROSS_ENTROPY: return add_cross_entropy(m, x);
    case CALL_REDISTRIBUTE: return add_move(m, x);
    default: return add1(m, call, x, 0, 0, 0); /* activations */
    }
}

static void choose_mesh(maker *m, int ranks) {
    static const int meshes[][TSH_MAX_AXES] = {
        {1},          {1, 1},       {2},    {2},    {1, 2}, {2, 1},    {3},       {3},       {1, 3},
        {3, 1},       {4},          {2, 2}, {2, 2}, {1, 4}, {2, 1, 2}, {1, 2, 2}, {2, 2, 1}, {4, 1, 1},
        {2, 1, 1, 2}, {1, 2, 2, 1}, {6},    {2, 3}, {3, 2}, {8},       {4, 2},    {2, 2, 2}};
    do {
        const int *mesh = meshes[below(m, sizeof meshes / sizeof meshes[0])];
        m->p->axes = 0;
        for (int a = 0; a < TSH_MAX_AXES && mesh[a]; a++) m->p->size[m->p->axes++] = mesh[a];
    } while (tshi_program_ranks(m->p) > ranks);
    m->p->order = chance(m, 40) ? 1 + below(m, 3) : 0;
}

/* A gradient that all ranks average wants an objective of each. */
static int localised(maker *m, int x) {
    tshi_step s = {.call = CALL_REDISTRIBUTE, .inputs = 1, .in = {x}, .n = {m->p->dp_axis}, .layout = {TSH_LOCAL}};
    return add(m, &s);
}

static void choose_objectives(maker *m) {
    tshi_program *p = m->p;
    int wanted = chance(m, 70) ? 1 : 2 + below(m, MAX_OBJECTIVES - 1);
    for (int tries = 0; tries < 20 && p->objectives < wanted; tries++) {
        int x = any_value(m);
        if (x < 0 || !p->step[x].wants_grad) continue;
        if (p->dp_axis >= 0 && p->dp_average) x = localised(m, x);
        if (x < 0 || !p->step[x].wants_grad) continue;
        int made = x;
        while (tshi_verb_moves(p->step[made].call)) made = p->step[made].in[0];
        if (p->step[made].call == CALL_LEAF) continue;
        p->objective[p->objectives++] =
            (tshi_objective){.value = x, .given = chance(m, 40), .sync = true, .salt = tshi_random_next(&m->random)};
    }
    for (int i = 0; i + 1 < p->objectives; i++) {
        p->objective[i].retain_graph = true;
        p->objective[i].sync = chance(m, 60);
    }
}

static void choose_training(maker *m) {
    tshi_program *p = m->p;
    static const int64_t buckets[] = {0, 8, 100, 1000};
    p->rounds = chance(m, 60) || p->dtype == TSH_FLOAT32 ? 1 : 2 + below(m, MAX_ROUNDS - 1);
    p->evaluate = chance(m, 30);
    p->zero = (tshi_zero)below(m, 3);
    if (chance(m, 45)) p->stepper = p->exact || chance(m, 50) ? STEPPER_SGD : STEPPER_ADAMW;
    p->lr = p->exact ? 0.5 : 0.05;
    if (chance(m, 40)) p->momentum = 0.5;
    p->nesterov = p->momentum > 0 && chance(m, 40);
    if (!p->exact && chance(m, 40)) p->weight_decay = 0.1;
    if (!p->exact && chance(m, 25)) p->clip = chance(m, 50) ? 0.5 : 100;
    p->dp_axis = chance(m, 35) ? below(m, p->axes) : -1;
    if (p->dp_axis < 0) return;
    int ranks = p->size[p->dp_axis];
    p->dp_average = chance(m, 30) && (!p->exact || (ranks & (ranks - 1)) == 0);
    p->dp_keep = chance(m, 30);
    p->dp_bucket = buckets[below(m, 4)];
}

void tshi_program_generate(uint64_t seed, int ranks, tshi_program *out) {
    maker m = {.p = out, .random = tshi_mix(seed)};
    memset(out, 0, sizeof *out);
    out->seed = seed;
    out->ragged = -1;
    choose_mesh(&m, ranks);
    out->exact = chance(&m, 50);
    out->dtype = out->exact && chance(&m, 20) ? TSH_FLOAT32 : TSH_FLOAT64;
    m.local = chance(&m, 45);
    m.partial = chance(&m, 60);
    out->ragged = m.local && chance(&m, 25) ? below(&m, out->axes) : -1;
    m.detached = chance(&m, 15) ? 25 : 0;
    for (int i = 0; i < 4; i++) m.size[i] = chance(&m, 4) ? 0 : 1 + below(&m, 7);
    choose_training(&m);
    int leaves = 1 + below(&m, 3), wanted = 2 + below(&m, chance(&m, 15) ? 20 : 8);
    for (int i = 0; i < leaves; i++) random_leaf(&m);
    if (out->steps == 0) new_leaf(&m, 0, m.size, true);
    for (int tries = 0, made = 0; made < wanted && tries < 60; tries++) made += add_random(&m) >= 0;
    choose_objectives(&m);
    if (!tshi_program_infer(out)) abort();
}
