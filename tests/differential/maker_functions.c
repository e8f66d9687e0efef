/* Makes steps of functions.c. */
#include "differential/functions.h"
#include "differential/maker.h"

#include <math.h>
#include <string.h>

/* A value of x's shape whose elements are positive, none of them near 0. */
static int add_positive(tshi_maker *m, int x) {
    if (x < 0 || m->p->step[x].least >= least_divisor) return x;
    if (tshi_maker_chance(m, 25)) return tshi_maker_add1(m, CALL_CLAMP, x, POSITIVE_CLAMP, 0, 0);
    if (m->p->step[x].bound > 2) x = tshi_maker_add1(m, CALL_TANH, x, 0, 0, 0);
    return x < 0 ? -1 : tshi_maker_add1(m, tshi_maker_chance(m, 50) ? CALL_EXP : CALL_SIGMOID, x, 0, 0, 0);
}

static int add_of_positive(tshi_maker *m, tshi_verb call, int x) {
    x = add_positive(m, x);
    return x < 0 ? -1 : tshi_maker_add1(m, call, x, 0, 0, 0);
}

static int add_quotient(tshi_maker *m, int x) {
    const tshi_dims shape = tshi_repeated_shape(m, x);
    int y = add_positive(m, tshi_maker_value_of(m, shape.ndim, shape.dim));
    return y < 0 ? -1 : tshi_maker_add(m, &(tshi_step){.call = CALL_DIV, .inputs = 2, .in = {x, y}});
}

static int add_pow(tshi_maker *m, int x) {
    static const double exponents[] = {2, 3, 1, 0, 0.5, -1, 1.7, -0.5};
    double exponent = exponents[tshi_maker_below(m, 8)];
    if (exponent < 0 || exponent > floor(exponent)) x = add_positive(m, x);
    return x < 0 ? -1 : tshi_maker_add(m, &(tshi_step){.call = CALL_POW, .inputs = 1, .in = {x}, .f = exponent});
}

static int add_scale_shift(tshi_maker *m, int x) {
    static const double factors[] = {-1, 2, 0};
    tshi_step s = {.call = CALL_SCALE_SHIFT, .inputs = 1, .in = {x}, .f = factors[tshi_maker_below(m, 3)]};
    s.n[0] = tshi_maker_below(m, 4) - 1;
    return tshi_maker_add(m, &s);
}

static int add_index(tshi_maker *m, tshi_verb call, int x) {
    tshi_dims taken = m->p->step[x].shape;
    int dim = tshi_maker_dim(m, x);
    if (taken.ndim == 0 || taken.dim[dim] == 0) return -1;
    const int64_t limit = taken.dim[dim], k = taken.dim[dim] = 1 + tshi_maker_below(m, 5);
    const bool along = call == CALL_TAKE_ALONG || call == CALL_ADD_ALONG;
    tshi_step s = {.call = call, .inputs = 2, .in = {x}, .n = {dim}};
    s.in[1] = tshi_maker_ids(m, along ? &taken : &(tshi_dims){1, {k}}, limit, false, -1);
    if (s.in[1] < 0) return -1;
    if (call == CALL_INDEX_ADD || call == CALL_ADD_ALONG)
        s.in[s.inputs++] = tshi_maker_value_of(m, taken.ndim, taken.dim);
    return s.in[s.inputs - 1] < 0 ? -1 : tshi_maker_add(m, &s);
}

static int add_one_hot(tshi_maker *m, int x) {
    const tshi_dims shape = m->p->step[x].shape;
    const int64_t classes = 1 + tshi_maker_below(m, 5);
    int ids = tshi_maker_ids(m, &shape, classes, false, -1);
    return ids < 0 ? -1 : tshi_maker_add1(m, CALL_ONE_HOT, ids, classes, 0, 0);
}

static int add_mask(tshi_maker *m, int x) {
    static const double values[] = {0, -3, 2};
    tshi_dims shape = m->p->step[x].shape;
    for (int drop = tshi_maker_chance(m, 30) ? tshi_maker_below(m, shape.ndim + 1) : 0; drop > 0; drop--) {
        memmove(shape.dim, shape.dim + 1, sizeof *shape.dim * (size_t)(--shape.ndim));
    }
    for (int d = 0; d < shape.ndim; d++) shape.dim[d] = tshi_maker_chance(m, 25) ? 1 : shape.dim[d];
    int mask = tshi_maker_ids(m, &shape, 2, false, -1);
    if (mask < 0) return -1;
    return tshi_maker_add(
        m, &(tshi_step){.call = CALL_MASKED_FILL, .inputs = 2, .in = {x, mask}, .f = values[tshi_maker_below(m, 3)]});
}

static int add_cast(tshi_maker *m, int x) {
    int indices = tshi_any_indices(m);
    if (indices >= 0 && (!m->p->exact || tshi_maker_chance(m, 50))) x = indices;
    int made = tshi_maker_add1(m, CALL_CAST, x, !m->p->step[x].integer && tshi_maker_chance(m, 25), 0, 0);
    return made >= 0 && m->p->step[made].integer ? tshi_maker_add1(m, CALL_CAST, made, 0, 0, 0) : made;
}

static int add_parts(tshi_maker *m, int x) {
    if (m->p->step[x].shape.ndim == 0) return -1;
    int count = 1 + tshi_maker_below(m, MAX_PARTS);
    return tshi_maker_add(m, &(tshi_step){.call = CALL_SPLIT_PARTS,
                                          .inputs = 1,
                                          .in = {x},
                                          .n = {tshi_maker_dim(m, x), count, tshi_maker_below(m, count + 1) - 1,
                                                tshi_maker_below(m, 2)}});
}

static int add_gated(tshi_maker *m, int x) {
    const tshi_dims shape = m->p->step[x].shape;
    int up = tshi_maker_value_of(m, shape.ndim, shape.dim);
    return up < 0 ? -1 : tshi_maker_add(m, &(tshi_step){.call = CALL_SWIGLU, .inputs = 2, .in = {x, up}});
}

static int add_largest(tshi_maker *m, tshi_verb call, int x) {
    int dim = tshi_maker_dim(m, x);
    if (m->p->step[x].shape.ndim == 0) return -1;
    int size = (int)m->p->step[x].shape.dim[dim];
    bool indices = call == CALL_TOPK && tshi_maker_chance(m, 25);
    return tshi_maker_add1(m, call, x, dim, call == CALL_TOPK && size > 0 ? 1 + tshi_maker_below(m, size) : 1, indices);
}

static int add_loss(tshi_maker *m, tshi_verb call, int x) {
    const tshi_dims shape = m->p->step[x].shape;
    int target = tshi_maker_value_of(m, shape.ndim, shape.dim);
    if (target >= 0 && call == CALL_BCE_LOSS) target = tshi_maker_add1(m, CALL_SIGMOID, target, 0, 0, 0);
    tshi_step s = {.call = call, .inputs = 2, .in = {x, target}, .n = {tshi_maker_below(m, 3)}};
    if (target < 0) return -1;
    if (call == CALL_BCE_LOSS && shape.ndim > 0 && tshi_maker_chance(m, 40)) {
        tshi_step w = {.call = CALL_LEAF, .shape = {1, {tshi_maker_last(m, x)}}, .n = {FLAG_POSITIVE}};
        for (int a = 0; a < m->p->axes; a++) w.layout[a] = tshi_maker_chance(m, 60) ? TSH_REPLICATED : TSH_SHARD(0);
        s.in[s.inputs++] = tshi_maker_add(m, &w);
        if (s.in[2] < 0) return -1;
    }
    return tshi_maker_add(m, &s);
}

static const tshi_verb exact_functions[] = {
    CALL_CLAMP,        CALL_MASKED_FILL, CALL_CAST,      CALL_PERMUTE,   CALL_TRANSPOSE,   CALL_SPLIT_PARTS,
    CALL_TOPK,         CALL_ARGMAX,      CALL_MSE_LOSS,  CALL_ABS,       CALL_SCALE_SHIFT, CALL_MAXIMUM,
    CALL_MINIMUM,      CALL_WHERE,       CALL_MAX,       CALL_MIN,       CALL_L1_LOSS,     CALL_SMOOTH_L1_LOSS,
    CALL_INDEX_SELECT, CALL_TAKE_ALONG,  CALL_INDEX_ADD, CALL_ADD_ALONG, CALL_ONE_HOT,     CALL_CUMSUM};
static const tshi_verb float_functions[] = {CALL_DIV,     CALL_EXP, CALL_LOG,   CALL_TANH,     CALL_SQRT,
                                            CALL_SIGMOID, CALL_POW, CALL_CLAMP, CALL_BCE_LOSS, CALL_SWIGLU};

int tshi_add_function(tshi_maker *m, int x) {
    tshi_verb call = exact_functions[tshi_maker_below(m, sizeof exact_functions / sizeof exact_functions[0])];
    if (!m->p->exact && tshi_maker_chance(m, 60))
        call = float_functions[tshi_maker_below(m, sizeof float_functions / sizeof float_functions[0])];
    switch (call) {
    case CALL_DIV: return add_quotient(m, x);
    case CALL_LOG:
    case CALL_SQRT: return add_of_positive(m, call, x);
    case CALL_POW: return add_pow(m, x);
    case CALL_CLAMP: return tshi_maker_add1(m, call, x, tshi_maker_below(m, m->p->exact ? EXACT_CLAMPS : CLAMPS), 0, 0);
    case CALL_MASKED_FILL: return add_mask(m, x);
    case CALL_CAST: return add_cast(m, x);
    case CALL_PERMUTE: return tshi_maker_add1(m, call, x, tshi_maker_below(m, 1000), 0, 0);
    case CALL_TRANSPOSE: return tshi_maker_add1(m, call, x, tshi_maker_dim(m, x), tshi_maker_dim(m, x), 0);
    case CALL_SPLIT_PARTS: return add_parts(m, x);
    case CALL_INDEX_SELECT:
    case CALL_TAKE_ALONG:
    case CALL_INDEX_ADD:
    case CALL_ADD_ALONG: return add_index(m, call, x);
    case CALL_ONE_HOT: return add_one_hot(m, x);
    case CALL_SWIGLU: return add_gated(m, x);
    case CALL_CUMSUM: return tshi_maker_add1(m, call, x, tshi_maker_dim(m, x), 0, 0);
    case CALL_SCALE_SHIFT: return add_scale_shift(m, x);
    case CALL_MAXIMUM:
    case CALL_MINIMUM:
    case CALL_WHERE: return tshi_add_two(m, call, x);
    case CALL_TOPK:
    case CALL_ARGMAX:
    case CALL_MAX:
    case CALL_MIN: return add_largest(m, call, x);
    case CALL_MSE_LOSS:
    case CALL_L1_LOSS:
    case CALL_SMOOTH_L1_LOSS:
    case CALL_BCE_LOSS: return add_loss(m, call, x);
    default: return tshi_maker_add1(m, call, x, 0, 0, 0);
    }
}
