/* A random program from a seed. A step is proposed, what it makes is inferred, and one that would make nothing sensible
 * is taken back: sizes and bounds are kept small. */
#include "differential/functions.h"
#include "differential/maker.h"
#include "support/values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- steps of several kinds --------------------------------------------------------------------------------------- */

static int add_product(tshi_maker *m, tshi_verb call, int x) {
    int64_t in = tshi_maker_last(m, x), out = tshi_maker_size(m);
    if (m->p->step[x].shape.ndim == 0) return -1;
    const int64_t dims[2] = {call == CALL_MATMUL ? in : out, call == CALL_MATMUL ? out : in};
    tshi_step s = {.call = call, .inputs = 2, .in = {x, tshi_maker_value_of(m, 2, dims)}};
    if (call == CALL_AFFINE && tshi_maker_chance(m, 60)) s.in[s.inputs++] = tshi_maker_value_of(m, 1, &out);
    for (int i = 0; i < s.inputs; i++) {
        if (s.in[i] < 0) return -1;
    }
    return tshi_maker_add(m, &s);
}

/* The shape of what is repeated to x's now and then: without its first dims, or with sizes of 1. */
tshi_dims tshi_repeated_shape(tshi_maker *m, int x) {
    tshi_dims shape = m->p->step[x].shape;
    if (!tshi_maker_chance(m, 30)) return shape;
    int drop = tshi_maker_below(m, shape.ndim + 1);
    shape.ndim -= drop;
    memmove(shape.dim, shape.dim + drop, sizeof *shape.dim * (size_t)shape.ndim);
    for (int d = 0; d < shape.ndim; d++) shape.dim[d] = tshi_maker_chance(m, 25) ? 1 : shape.dim[d];
    return shape;
}

int tshi_add_two(tshi_maker *m, tshi_verb call, int x) {
    const tshi_dims shape = tshi_repeated_shape(m, x);
    int y = tshi_maker_chance(m, 8) ? x : tshi_maker_value_of(m, shape.ndim, shape.dim);
    if (y >= 0 && tshi_maker_chance(m, 30))
        return tshi_maker_add(m, &(tshi_step){.call = call, .inputs = 2, .in = {y, x}});
    return y < 0 ? -1 : tshi_maker_add(m, &(tshi_step){.call = call, .inputs = 2, .in = {x, y}});
}

static int add_vector(tshi_maker *m, tshi_verb call, int x, int vectors) {
    int64_t n = tshi_maker_last(m, x);
    if (m->p->step[x].shape.ndim == 0) return -1;
    tshi_step s = {.call = call, .inputs = 1, .in = {x}, .f = tshi_maker_chance(m, 50) ? 1e-2 : 0.1};
    for (int i = 0; i < vectors; i++) {
        int v = tshi_maker_value_of(m, 1, &n);
        if (v < 0) return -1;
        s.in[s.inputs++] = v;
    }
    return tshi_maker_add(m, &s);
}

static int add_scale(tshi_maker *m, int x) {
    static const double factors[] = {2, -1, 0.5, -3, 0, 1};
    double factor = m->p->exact ? factors[tshi_maker_below(m, 6)] : -1.5 + 0.1 * tshi_maker_below(m, 30);
    return tshi_maker_add(m, &(tshi_step){.call = CALL_SCALE, .inputs = 1, .in = {x}, .f = factor});
}

static int add_dropout(tshi_maker *m, int x) {
    static const double chances[] = {0.5, 0, 0.3, 0.9};
    double p = chances[tshi_maker_below(m, m->p->exact ? 2 : 4)];
    return tshi_maker_add(m, &(tshi_step){.call = CALL_DROPOUT, .inputs = 1, .in = {x}, .f = p});
}

static int add_reshape(tshi_maker *m, int x) {
    static const int64_t factors[] = {2, 3, 1, 4};
    tshi_step s = {.call = CALL_RESHAPE, .inputs = 1, .in = {x}};
    s.n[0] = tshi_maker_below(m, FORM_COUNT);
    s.n[1] = tshi_maker_dim(m, x);
    s.n[2] = factors[tshi_maker_below(m, 4)];
    s.n[3] = tshi_maker_chance(m, 30);
    return tshi_maker_add(m, &s);
}

static int add_slice(tshi_maker *m, int x) {
    int dim = tshi_maker_dim(m, x);
    if (m->p->step[x].shape.ndim == 0) return -1;
    int64_t n = m->p->step[x].shape.dim[dim], start = tshi_maker_below(m, (int)n + 1);
    return tshi_maker_add1(m, CALL_SLICE, x, dim, start,
                           tshi_maker_chance(m, 90) ? 1 + tshi_maker_below(m, (int)n + 1) : 0);
}

static int add_concat(tshi_maker *m, int x) {
    int dim = tshi_maker_dim(m, x),
        count = tshi_maker_chance(m, 10) ? 1 + tshi_maker_below(m, 8) : 1 + tshi_maker_below(m, 3);
    tshi_dims shape = m->p->step[x].shape;
    if (shape.ndim == 0) return -1;
    tshi_step s = {.call = CALL_CONCAT, .inputs = count, .in = {x}, .n = {dim}};
    for (int i = 1; i < count; i++) {
        if (tshi_maker_chance(m, 30)) shape.dim[dim] = tshi_maker_size(m);
        s.in[i] = tshi_maker_chance(m, 20) ? x : tshi_maker_value_of(m, shape.ndim, shape.dim);
        if (s.in[i] < 0) return -1;
    }
    return tshi_maker_add(m, &s);
}

static int add_reduction(tshi_maker *m, tshi_verb call, int x) {
    bool all = m->p->step[x].shape.ndim == 0 || tshi_maker_chance(m, 25);
    return tshi_maker_add1(m, call, x, all ? TSH_ALL_DIMS : tshi_maker_dim(m, x), 0, 0);
}

static tsh_layout random_target(tshi_maker *m, int x) {
    int ndim = m->p->step[x].shape.ndim, pick = tshi_maker_below(m, 100);
    if (pick < 8 && m->local) return TSH_LOCAL;
    if (pick < 20) return TSH_PARTIAL;
    return pick < 70 && ndim > 0 ? tshi_maker_shard(m, ndim) : TSH_REPLICATED;
}

static int add_move_of_all(tshi_maker *m, int x) {
    tshi_step s = {.call = CALL_MOVE_ALL, .inputs = 1, .in = {x}};
    for (int a = 0; a < m->p->axes; a++) {
        s.layout[a] = random_target(m, x);
        if (s.layout[a].kind == TSH_KIND_LOCAL) s.layout[a] = TSH_PARTIAL;
    }
    if (!m->p->step[x].local) tshi_maker_units(m, &m->p->step[x].shape, s.layout);
    return tshi_maker_add(m, &s);
}

static int add_move(tshi_maker *m, int x) {
    static const tshi_verb calls[] = {CALL_REDISTRIBUTE, CALL_REDISTRIBUTE, CALL_REDISTRIBUTE, CALL_SCATTER,
                                      CALL_GATHER,       CALL_REDUCE,       CALL_COPY};
    if (tshi_maker_chance(m, 35)) return add_move_of_all(m, x);
    tshi_step s = {.call = calls[tshi_maker_below(m, m->local ? 7 : 6)], .inputs = 1, .in = {x}};
    s.n[0] = tshi_maker_below(m, m->p->axes);
    s.n[1] = s.call == CALL_SCATTER ? tshi_maker_dim(m, x) : 0;
    if (s.call == CALL_REDISTRIBUTE) s.layout[0] = random_target(m, x);
    if (s.call == CALL_REDISTRIBUTE && m->p->step[x].local == 0) tshi_maker_units(m, &m->p->step[x].shape, s.layout);
    return tshi_maker_add(m, &s);
}

/* Ids as they are or moved and shaped on their way. */
int tshi_add_ids(tshi_maker *m, const tshi_dims *shape, int64_t limit, int no_local) {
    int ids = tshi_maker_ids(m, shape, limit, false, no_local);
    if (ids >= 0 && tshi_maker_chance(m, 15)) ids = add_reshape(m, ids);
    if (ids >= 0 && tshi_maker_chance(m, 15)) ids = add_slice(m, ids);
    return ids;
}

static tshi_dims ids_shape(tshi_maker *m) {
    tshi_dims shape = {.ndim = tshi_maker_below(m, 3)};
    for (int d = 0; d < shape.ndim; d++) shape.dim[d] = tshi_maker_size(m);
    return shape;
}

/* A late value of integers that some function has made, or -1. */
int tshi_any_indices(tshi_maker *m) {
    for (int k = m->p->steps - 1; k >= 0; k--) {
        tshi_verb call = m->p->step[k].call;
        if (m->p->step[k].integer && (call == CALL_ARGMAX || call == CALL_TOPK) && tshi_maker_chance(m, 70)) return k;
    }
    return -1;
}

static int add_lookup(tshi_maker *m) {
    int indices = tshi_maker_chance(m, 20) ? tshi_any_indices(m) : -1;
    const int64_t rows = indices >= 0 ? (int64_t)m->p->step[indices].bound : 1 + tshi_maker_below(m, 7);
    const int64_t dims[2] = {rows, tshi_maker_size(m)};
    int table = tshi_maker_value_of(m, 2, dims);
    if (table < 0) return -1;
    tshi_dims shape = ids_shape(m);
    int ids = indices >= 0 ? indices : tshi_add_ids(m, &shape, dims[0], -1);
    if (ids < 0) return -1;
    return tshi_maker_add(m, &(tshi_step){.call = CALL_LOOKUP,
                                          .inputs = 2,
                                          .in = {table, ids},
                                          .n = {tshi_maker_chance(m, 40) ? tshi_maker_below(m, (int)dims[0]) : -1}});
}

/* Two tables whose rows are added: the gradient of the sum is that of both. */
static int add_two_lookups(tshi_maker *m) {
    int a = add_lookup(m);
    if (a < 0 || !tshi_maker_chance(m, 30)) return a;
    const tshi_step first = m->p->step[a];
    const tshi_dims table = m->p->step[first.in[0]].shape;
    tshi_step second = first;
    second.in[0] = tshi_maker_leaf(m, 2, table.dim, true);
    int b = second.in[0] < 0 ? -1 : tshi_maker_add(m, &second);
    return b < 0 ? a : tshi_maker_add(m, &(tshi_step){.call = CALL_ADD, .inputs = 2, .in = {a, b}});
}

static void choose_layer(tshi_maker *m, tshi_step *s) {
    s->n[LAYER_AXIS] = tshi_maker_below(m, m->p->axes);
    s->n[LAYER_SHARDING] = tshi_maker_below(m, 3);
    int64_t flags = m->p->exact || tshi_maker_chance(m, 30) ? FLAG_LOAD : 0;
    if (tshi_maker_chance(m, 60) && s->call == CALL_LINEAR) flags |= FLAG_BIAS;
    if (s->n[LAYER_SHARDING] == TSH_COLUMN && tshi_maker_chance(m, 40)) flags |= FLAG_GATHER;
    if (s->n[LAYER_SHARDING] == TSH_ROW && tshi_maker_chance(m, 40)) flags |= FLAG_SEQUENCE;
    s->n[LAYER_FLAGS] = flags;
}

/* An earlier step whose layer may be used again, or -1. */
int tshi_layer_to_share(tshi_maker *m, tshi_verb call) {
    if (!tshi_maker_chance(m, m->p->fused ? 70 : 20)) return -1;
    for (int k = 0; k < m->p->steps; k++) {
        if (m->p->step[k].call == call && m->p->step[k].inputs == 1) return k;
    }
    return -1;
}

/* The layer with what it takes of x before it: the step's, or that of an earlier one. */
static int add_layer(tshi_maker *m, const tshi_step *own, int x, int shared) {
    tshi_step s = shared >= 0 ? m->p->step[shared] : *own;
    tshi_step before = {.call = CALL_PREPARE, .inputs = 1, .in = {x}};
    before.n[LAYER_AXIS] = s.n[LAYER_AXIS];
    before.n[LAYER_SHARDING] = s.n[LAYER_SHARDING];
    s.in[0] = tshi_maker_add(m, &before);
    s.inputs = 1;
    if (shared >= 0) s.in[s.inputs++] = shared;
    return s.in[0] < 0 ? -1 : tshi_maker_add(m, &s);
}

static int add_linear(tshi_maker *m, int x) {
    tshi_step s = {.call = CALL_LINEAR};
    if (tshi_maker_last(m, x) < 1) return -1;
    choose_layer(m, &s);
    s.n[LAYER_OUT] = 1 + tshi_maker_below(m, 6);
    s.n[LAYER_ACTIVATION] = m->p->exact ? (tshi_maker_chance(m, 30) ? TSH_ACTIVATION_RELU : 0) : tshi_maker_below(m, 5);
    s.n[LAYER_INIT] = tshi_maker_below(m, 8);
    int made = add_layer(m, &s, x, tshi_layer_to_share(m, s.call));
    return made >= 0 ? made : add_layer(m, &s, x, -1);
}

int tshi_add_embedding(tshi_maker *m) {
    tshi_step s = {.call = CALL_EMBEDDING};
    choose_layer(m, &s);
    s.n[LAYER_OUT] = 1 + tshi_maker_below(m, 6);
    s.n[EMBEDDING_ROWS] = 1 + tshi_maker_below(m, 7);
    s.n[EMBEDDING_PADDING] = tshi_maker_below(m, (int)s.n[EMBEDDING_ROWS]);
    if (tshi_maker_chance(m, 40)) s.n[LAYER_FLAGS] |= FLAG_PADDING;
    tshi_dims shape = ids_shape(m);
    int shared = tshi_layer_to_share(m, s.call);
    const tshi_step *layer = shared >= 0 ? &m->p->step[shared] : &s;
    int ids = tshi_add_ids(m, &shape, layer->n[EMBEDDING_ROWS], (int)layer->n[LAYER_AXIS]);
    return ids < 0 ? -1 : add_layer(m, &s, ids, shared);
}

static int add_cross_entropy(tshi_maker *m, int x) {
    tshi_dims rows = m->p->step[x].shape;
    int64_t classes = tshi_maker_last(m, x);
    if (rows.ndim-- == 0 || classes < 1) return -1;
    int target = tshi_maker_ids(m, &rows, classes, true, -1);
    if (target < 0) return -1;
    tshi_step s = {.call = CALL_CROSS_ENTROPY, .inputs = 2, .in = {x, target}, .n = {tshi_maker_below(m, 3)}};
    if (tshi_maker_chance(m, 40)) s.f = 0.1 * tshi_maker_below(m, 11);
    if (tshi_maker_chance(m, 35)) {
        tshi_step w = {.call = CALL_LEAF, .shape = {1, {classes}}, .n = {FLAG_POSITIVE}};
        for (int a = 0; a < m->p->axes; a++) w.layout[a] = tshi_maker_chance(m, 60) ? TSH_REPLICATED : TSH_SHARD(0);
        s.in[s.inputs++] = tshi_maker_add(m, &w);
        if (s.in[2] < 0) return -1;
    }
    return tshi_maker_add(m, &s);
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

static int add_random(tshi_maker *m) {
    int x = tshi_maker_value(m);
    if (x < 0) return -1;
    if (m->p->fused && tshi_maker_chance(m, 30)) return add_linear(m, x);
    if (tshi_maker_chance(m, 35)) return tshi_add_function(m, x);
    tshi_verb call = exact_calls[tshi_maker_below(m, EXACT_CALLS)];
    if (!m->p->exact && tshi_maker_chance(m, 40)) call = float_calls[tshi_maker_below(m, FLOAT_CALLS)];
    switch (call) {
    case CALL_LEAF: return tshi_maker_random_leaf(m);
    case CALL_MATMUL:
    case CALL_AFFINE: return add_product(m, call, x);
    case CALL_ADD:
    case CALL_SUB:
    case CALL_MUL: return tshi_add_two(m, call, x);
    case CALL_SCALE: return add_scale(m, x);
    case CALL_BIAS: return add_vector(m, call, x, 1);
    case CALL_LAYER_NORM: return add_vector(m, call, x, tshi_maker_below(m, 3));
    case CALL_RMS_NORM: return add_vector(m, call, x, tshi_maker_below(m, 2));
    case CALL_DROPOUT: return add_dropout(m, x);
    case CALL_RESHAPE: return add_reshape(m, x);
    case CALL_SLICE: return add_slice(m, x);
    case CALL_CONCAT: return add_concat(m, x);
    case CALL_SUM:
    case CALL_MEAN: return add_reduction(m, call, x);
    case CALL_SOFTMAX:
    case CALL_LOG_SOFTMAX: return tshi_maker_add1(m, call, x, tshi_maker_dim(m, x), 0, 0);
    case CALL_LOOKUP: return add_two_lookups(m);
    case CALL_ATTENTION: return tshi_add_attention(m);
    case CALL_ROTARY: return tshi_add_rotary(m);
    case CALL_LINEAR: return add_linear(m, x);
    case CALL_EMBEDDING: return tshi_add_embedding(m);
    case CALL_PROJECT: return tshi_add_project(m);
    case CALL_NORM: return tshi_add_norm(m, x);
    case CALL_MLP:
    case CALL_SELF_ATTENTION:
    case CALL_BLOCK: return tshi_add_transformer(m, call);
    case CALL_CROSS_ENTROPY: return add_cross_entropy(m, x);
    case CALL_REDISTRIBUTE: return add_move(m, x);
    default: return tshi_maker_add1(m, call, x, 0, 0, 0); /* activations */
    }
}

static void choose_mesh(tshi_maker *m, int ranks) {
    static const int meshes[][TSH_MAX_AXES] = {
        {1}, {1, 1}, {2},    {2},    {1, 2},    {2, 1},    {3},       {3},       {1, 3},       {3, 1},
        {4}, {2, 2}, {2, 2}, {1, 4}, {2, 1, 2}, {1, 2, 2}, {2, 2, 1}, {4, 1, 1}, {2, 1, 1, 2}, {1, 2, 2, 1},
        {6}, {2, 3}, {3, 2}, {8},    {4, 2},    {2, 2, 2}, {5},       {1, 5},    {7}};
    do {
        const int *mesh = meshes[tshi_maker_below(m, sizeof meshes / sizeof meshes[0])];
        m->p->axes = 0;
        for (int a = 0; a < TSH_MAX_AXES && mesh[a]; a++) m->p->size[m->p->axes++] = mesh[a];
    } while (tshi_program_ranks(m->p) > ranks);
    m->p->order = tshi_maker_chance(m, 40) ? 1 + tshi_maker_below(m, 3) : 0;
}

/* Weights of some axes, which the other choices do not depend on. In an exact program gradients are not averaged by
 * them: the shares would not be exact. */
static void choose_weights(tshi_program *p) {
    static const int64_t patterns[][MAX_RANKS] = {
        {3, 1, 1, 2, 1, 1, 2, 1}, {0, 1, 1, 0, 2, 1, 1, 1}, {1, 0, 2, 1, 0, 0, 3, 1}, {1, 2, 1, 1, 3, 0, 1, 2}};
    uint64_t random = tshi_mix(p->seed ^ 0x77656967687473);
    for (int a = 0; a < p->axes; a++) {
        int pattern = tshi_random_below(&random, 8);
        if (pattern >= 4 || p->size[a] == 1 || (p->exact && p->dp_average && a == p->dp_axis)) continue;
        memcpy(p->weight[a], patterns[pattern], sizeof *p->weight[a] * (size_t)p->size[a]);
    }
}

/* The number of random cut points of a dim of n items over `parts` ranks, which the program then has; 0 when it has too
 * many. */
static uint64_t new_cuts(tshi_program *p, uint64_t *random, int parts, int64_t n) {
    if (p->cuts == MAX_CUTS) return 0;
    tshi_program_cuts *cuts = &p->cut[p->cuts];
    tshi_cut_table table = {0};
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    cuts->parts = parts;
    cuts->at[0] = 0;
    cuts->at[parts] = n;
    for (int i = 1; i < parts; i++) {
        int64_t at = tshi_random_below(random, (int)n + 1);
        int place = i;
        for (; at < cuts->at[place - 1]; place--) cuts->at[place] = cuts->at[place - 1];
        cuts->at[place] = at;
    }
    if (tshi_cuts_add(&table, &allocator, parts, cuts->at, &cuts->number) != TSH_OK) abort();
    tshi_cuts_clear(&table, &allocator);
    p->cuts++;
    return cuts->number;
}

/* Cuts some SHARD layouts of leaves and moves at random points, where the program stays one. The other choices do not
 * depend on it. */
static void choose_cuts(tshi_program *p) {
    uint64_t random = tshi_mix(p->seed ^ 0x63757473);
    for (int k = 0; k < p->steps; k++) {
        tshi_step *s = &p->step[k];
        bool along = s->call == CALL_REDISTRIBUTE;
        if (s->call != CALL_LEAF && s->call != CALL_IDS && s->call != CALL_MOVE_ALL && !along) continue;
        for (int a = 0; a < (along ? 1 : p->axes); a++) {
            tsh_layout before = s->layout[a];
            int cuts = p->cuts, size = p->size[along ? s->n[0] : a];
            if (tshi_random_below(&random, 4) || before.kind != TSH_KIND_SHARD || size == 1) continue;
            s->layout[a] = TSH_SHARD_ORDER(before.dim, before.order);
            s->layout[a].cuts = new_cuts(p, &random, size, s->shape.dim[before.dim]);
            if (tshi_program_infer(p)) continue;
            s->layout[a] = before;
            p->cuts = cuts;
        }
    }
}

/* A gradient that all ranks average wants an objective of each. */
static int localised(tshi_maker *m, int x) {
    tshi_step s = {.call = CALL_REDISTRIBUTE, .inputs = 1, .in = {x}, .n = {m->p->dp_axis}, .layout = {TSH_LOCAL}};
    return tshi_maker_add(m, &s);
}

static void choose_objectives(tshi_maker *m) {
    tshi_program *p = m->p;
    int wanted = tshi_maker_chance(m, 70) ? 1 : 2 + tshi_maker_below(m, MAX_OBJECTIVES - 1);
    for (int tries = 0; tries < 20 && p->objectives < wanted; tries++) {
        int x = tshi_maker_value(m);
        if (x < 0 || !p->step[x].wants_grad) continue;
        if (p->dp_axis >= 0 && p->dp_average) x = localised(m, x);
        if (x < 0 || !p->step[x].wants_grad) continue;
        int made = x;
        while (tshi_verb_moves(p->step[made].call)) made = p->step[made].in[0];
        if (p->step[made].call == CALL_LEAF) continue;
        p->objective[p->objectives++] = (tshi_objective){
            .value = x, .given = tshi_maker_chance(m, 40), .sync = true, .salt = tshi_random_next(&m->random)};
    }
    for (int i = 0; i + 1 < p->objectives; i++) {
        p->objective[i].retain_graph = true;
        p->objective[i].sync = tshi_maker_chance(m, 60);
    }
}

static void choose_training(tshi_maker *m) {
    tshi_program *p = m->p;
    static const int64_t buckets[] = {0, 8, 8, 100};
    p->rounds = tshi_maker_chance(m, 60) || p->dtype == TSH_FLOAT32 ? 1 : 2 + tshi_maker_below(m, MAX_ROUNDS - 1);
    p->evaluate = tshi_maker_chance(m, 30);
    p->rewrite = p->evaluate && tshi_maker_chance(m, 50);
    p->tapes = tshi_maker_chance(m, 5) ? MAX_TAPES : 0;
    p->zero = (tshi_zero)tshi_maker_below(m, 3);
    if (tshi_maker_chance(m, 45)) p->stepper = p->exact || tshi_maker_chance(m, 50) ? STEPPER_SGD : STEPPER_ADAMW;
    p->lr = p->exact ? 0.5 : 0.05;
    if (tshi_maker_chance(m, 40)) p->momentum = 0.5;
    p->nesterov = p->momentum > 0 && tshi_maker_chance(m, 40);
    if (!p->exact && tshi_maker_chance(m, 40)) p->weight_decay = 0.1;
    if (!p->exact && tshi_maker_chance(m, 25)) p->clip = tshi_maker_chance(m, 50) ? 0.5 : 100;
    p->fused = p->stepper != STEPPER_NONE && p->clip == 0 && p->zero != ZERO_NOT && tshi_maker_chance(m, 40);
    p->dp_axis = tshi_maker_chance(m, 35) ? tshi_maker_below(m, p->axes) : -1;
    if (p->dp_axis < 0) return;
    int ranks = p->size[p->dp_axis];
    p->dp_average = tshi_maker_chance(m, 30) && !p->deterministic && (!p->exact || (ranks & (ranks - 1)) == 0);
    p->dp_keep = tshi_maker_chance(m, 30);
    p->dp_bucket = buckets[tshi_maker_below(m, 4)];
    p->dp_level = tshi_maker_chance(m, 60) ? 1 + tshi_maker_below(m, 3) : 0;
    if (p->dp_level) p->fused = false;
}

/* A parameter that is the same everywhere beside a value that is split along an axis other than the schedule's: its
 * gradient is a sum along the other axis alone, and one rank along the schedule's contributes it. */
static void add_beside_schedule(tshi_maker *m) {
    int other = (m->p->dp_axis + 1) % m->p->axes;
    int64_t n = 1 + tshi_maker_below(m, 6);
    tshi_step x = {.call = CALL_LEAF, .shape = {2, {tshi_maker_size(m), n}}};
    tshi_step w = {.call = CALL_LEAF, .shape = {1, {n}}, .grad = true};
    if (other != m->p->dp_axis) x.layout[other] = TSH_SHARD(0);
    int a = tshi_maker_add(m, &x), b = tshi_maker_add(m, &w);
    if (a < 0 || b < 0) return;
    static const tshi_verb calls[] = {CALL_MUL, CALL_BIAS, CALL_ADD};
    tshi_maker_add(m, &(tshi_step){.call = calls[tshi_maker_below(m, 3)], .inputs = 2, .in = {a, b}});
}

static bool adds_two_lookups(const tshi_program *p) {
    for (int k = 0; k < p->steps; k++) {
        const tshi_step *s = &p->step[k];
        bool two = s->call == CALL_ADD && s->in[0] != s->in[1];
        if (two && p->step[s->in[0]].call == CALL_LOOKUP && p->step[s->in[1]].call == CALL_LOOKUP) return true;
    }
    return false;
}

/* A step of clipped gradients that may be sparse, which shows one that is clipped twice. */
static void clip_tables(tshi_program *p) {
    p->stepper = STEPPER_SGD;
    p->momentum = p->weight_decay = 0;
    p->nesterov = false;
    p->clip = 0.5;
}

/* A view of a parameter, whose values are gathered for calls alone, not for who reads it between them. */
static bool shows_a_parameter(const tshi_program *p) {
    for (int k = 0; k < p->steps; k++) {
        tshi_verb call = p->step[k].call;
        if (call == CALL_RESHAPE || call == CALL_PERMUTE || call == CALL_TRANSPOSE || call == CALL_SPLIT_PARTS)
            return true;
    }
    return false;
}

/* A parameter, or a value that is no leaf: often an objective, which no later call reads. */
static void choose_spoilt(tshi_maker *m) {
    tshi_program *p = m->p;
    int k = p->objectives && tshi_maker_chance(m, 50) ? p->objective[0].value : tshi_maker_below(m, p->steps);
    bool made = p->step[k].call > CALL_IDS && tshi_maker_chance(m, 70);
    p->spoil = made ? SPOIL_VALUE + k : tshi_maker_below(m, 4);
}

/* A step that fails finds and leaves no gradients, and steps in backward have been made by then. */
static void choose_ends(tshi_maker *m) {
    tshi_program *p = m->p;
    if (p->spoil < 0 && tshi_maker_chance(m, 12)) {
        p->fail_round = p->zero == ZERO_PARAMETERS ? 1 + tshi_maker_below(m, p->rounds) : 1;
        p->fail_at = tshi_maker_below(m, p->steps + p->objectives + 1);
        p->fail_rank = tshi_maker_below(m, MAX_RANKS + 3);
    }
    p->fused = p->fused && p->clip == 0 && !p->fail_round && p->spoil < 0;
}

void tshi_program_generate(uint64_t seed, int ranks, tshi_program *out) {
    tshi_maker m = {.p = out, .random = tshi_mix(seed)};
    memset(out, 0, sizeof *out);
    out->seed = seed;
    out->ragged = out->spoil = -1;
    choose_mesh(&m, ranks);
    out->exact = tshi_maker_chance(&m, 50);
    out->dtype = out->exact && tshi_maker_chance(&m, 20) ? TSH_FLOAT32 : TSH_FLOAT64;
    if (out->exact && out->dtype == TSH_FLOAT64 && tshi_maker_chance(&m, 25)) {
        out->policy = (tshi_policy)(1 + tshi_maker_below(&m, 3));
        out->narrow = tshi_maker_chance(&m, 50) ? TSH_FLOAT16 : TSH_BFLOAT16;
    }
    out->deterministic = tshi_maker_chance(&m, out->exact ? 10 : 25);
    m.local = !out->deterministic && tshi_maker_chance(&m, 45);
    m.partial = !out->policy && !out->deterministic && tshi_maker_chance(&m, 60); /* terms are larger than their sum */
    out->ragged = m.local && tshi_maker_chance(&m, 25) ? tshi_maker_below(&m, out->axes) : -1;
    m.detached = tshi_maker_chance(&m, 15) ? 25 : 0;
    for (int i = 0; i < 4; i++) m.size[i] = tshi_maker_chance(&m, 4) ? 0 : 1 + tshi_maker_below(&m, 7);
    choose_training(&m);
    choose_weights(out);
    if (out->dp_level && tshi_maker_chance(&m, 40)) add_beside_schedule(&m);
    int leaves = 1 + tshi_maker_below(&m, 3), wanted = 2 + tshi_maker_below(&m, tshi_maker_chance(&m, 15) ? 20 : 8);
    for (int i = 0; i < leaves; i++) tshi_maker_random_leaf(&m);
    if (out->steps == 0) tshi_maker_leaf(&m, 0, m.size, true);
    for (int tries = 0, made = 0; made < wanted && tries < 60; tries++) made += add_random(&m) >= 0;
    choose_objectives(&m);
    if (out->dp_axis >= 0 && out->dp_level && shows_a_parameter(out)) out->rewrite = false;
    if (!out->exact && !out->policy && adds_two_lookups(out)) clip_tables(out);
    bool same_steps = out->stepper == STEPPER_NONE || (out->stepper == STEPPER_SGD && out->momentum == 0);
    int often = adds_two_lookups(out) ? 80 : 40;
    out->sparse = same_steps && out->weight_decay == 0 && tshi_maker_chance(&m, often);
    if (out->stepper == STEPPER_NONE && out->rounds == 1 && !out->deterministic && tshi_maker_chance(&m, 20))
        choose_spoilt(&m);
    choose_ends(&m);
    choose_cuts(out);
    if (!tshi_program_infer(out)) abort();
}
