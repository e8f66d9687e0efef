#include "differential/maker.h"

/* --- attention ---------------------------------------------------------------------------------------------------- */

static int64_t small_size(tshi_maker *m, int most) {
    return tshi_maker_chance(m, 97) ? 1 + tshi_maker_below(m, most) : tshi_maker_size(m);
}

/* A leaf [B, T, H, D] whose heads most axes split, in units at times. */
static int leaf_by_heads(tshi_maker *m, const int64_t *dims) {
    tshi_step s = {.call = CALL_LEAF, .shape = {.ndim = 4, .dim = {dims[0], dims[1], dims[2], dims[3]}}, .grad = true};
    for (int a = 0; a < m->p->axes; a++)
        s.layout[a] = tshi_maker_chance(m, 70) ? TSH_SHARD_ORDER(tshi_maker_chance(m, 80) ? 2 : 0,
                                                                 tshi_maker_chance(m, 30) ? tshi_maker_below(m, 3) : 0)
                                               : TSH_REPLICATED;
    for (int tries = 0; tries < 3 && !tshi_layouts_have_units(m->p, s.layout); tries++)
        tshi_maker_units(m, &s.shape, s.layout);
    return tshi_maker_add(m, &s);
}

static int heads_of(tshi_maker *m, const int64_t *dims) {
    return tshi_maker_chance(m, 40) ? leaf_by_heads(m, dims) : tshi_maker_value_of(m, 4, dims);
}

/* A value [B, T, H, D], or a new one. */
static int by_heads(tshi_maker *m) {
    const int64_t dims[4] = {small_size(m, 3), small_size(m, 4), small_size(m, 6), small_size(m, 4)};
    for (int tries = 0; tries < 6; tries++) {
        int k = tshi_maker_value(m);
        if (k >= 0 && m->p->step[k].shape.ndim == 4) return k;
    }
    return heads_of(m, dims);
}

int tshi_add_rotary(tshi_maker *m) {
    int x = by_heads(m);
    if (x < 0) return -1;
    const tshi_dims dims = m->p->step[x].shape;
    tshi_dims at = {1, {dims.dim[1]}};
    if (tshi_maker_chance(m, 40)) at = (tshi_dims){2, {dims.dim[0], dims.dim[1]}};
    int positions = tshi_add_ids(m, &at, 1 + tshi_maker_below(m, 12), -1);
    int64_t most = dims.dim[3] / 2,
            turned = most > 0 && tshi_maker_chance(m, 60) ? 2 * (1 + tshi_maker_below(m, (int)most)) : 0;
    if (positions < 0) return -1;
    return tshi_maker_add(m, &(tshi_step){.call = CALL_ROTARY,
                                          .inputs = 2,
                                          .in = {x, positions},
                                          .n = {tshi_maker_below(m, 2), turned, tshi_maker_chance(m, 30)}});
}

/* Scores are kept so small that their rounding errors are. */
static bool has_small_scores(const tshi_program *p, int q, int k) {
    return p->step[q].bound * p->step[k].bound * (double)p->step[q].shape.dim[3] <= 300;
}

int tshi_add_attention(tshi_maker *m) {
    int q = by_heads(m);
    if (q < 0) return -1;
    tshi_dims dims = m->p->step[q].shape;
    int64_t heads = dims.dim[2], sharers = 1 + tshi_maker_below(m, 3);
    dims.dim[1] = tshi_maker_chance(m, 50) ? dims.dim[1] : small_size(m, 5);
    if (heads % sharers == 0) dims.dim[2] = heads / sharers;
    int k = heads_of(m, dims.dim), v = tshi_maker_chance(m, 10) ? k : heads_of(m, dims.dim);
    if (k < 0 || v < 0 || !has_small_scores(m->p, q, k)) return -1;
    tshi_step s = {.call = CALL_ATTENTION,
                   .inputs = 3,
                   .in = {q, k, v},
                   .n = {tshi_maker_chance(m, 50), tshi_maker_chance(m, 30)}};
    if (tshi_maker_chance(m, 25)) s.f = 0.3;
    if (tshi_maker_chance(m, 40)) {
        const bool batched = tshi_maker_chance(m, 50);
        const int64_t tokens[2] = {m->p->step[q].shape.dim[1], dims.dim[1]};
        s.n[2] = 1 + tshi_maker_below(m, 2);
        for (int i = 0; i < 2; i++) {
            tshi_dims of = {batched ? 2 : 1, {batched ? dims.dim[0] : tokens[i], tokens[i]}};
            s.in[s.inputs++] = tshi_add_ids(m, &of, s.n[2] == 1 ? 9 : 3, -1);
            if (s.in[3 + i] < 0) return -1;
        }
    } else if (tshi_maker_chance(m, 40)) {
        s.in[s.inputs++] = tshi_add_ids(m, &(tshi_dims){1, {dims.dim[0]}}, dims.dim[1] + 1, -1);
        if (s.in[3] < 0) return -1;
    }
    return tshi_maker_add(m, &s);
}

/* --- layers of a transformer -------------------------------------------------------------------------------------- */

int tshi_add_project(tshi_maker *m) {
    int owner = tshi_layer_to_share(m, CALL_EMBEDDING);
    if (owner < 0) owner = tshi_add_embedding(m);
    if (owner >= 0 && m->p->step[owner].inputs == 2) owner = m->p->step[owner].in[1];
    if (owner < 0) return -1;
    const tshi_step table = m->p->step[owner];
    int x =
        tshi_maker_chance(m, 50) ? owner : tshi_maker_value_of(m, 2, (int64_t[]){small_size(m, 4), table.n[LAYER_OUT]});
    if (x < 0) return -1;
    int64_t sharding = table.n[LAYER_SHARDING];
    tshi_step before = {.call = CALL_PREPARE, .inputs = 1, .in = {x}};
    tshi_step s = {.call = CALL_PROJECT, .inputs = 2};
    s.n[LAYER_AXIS] = before.n[LAYER_AXIS] = table.n[LAYER_AXIS];
    s.n[LAYER_SHARDING] = sharding;
    before.n[LAYER_SHARDING] = sharding == TSH_DENSE ? TSH_DENSE : sharding == TSH_ROW ? TSH_COLUMN : TSH_ROW;
    s.in[0] = tshi_maker_add(m, &before);
    s.in[1] = owner;
    return s.in[0] < 0 ? -1 : tshi_maker_add(m, &s);
}

static int64_t random_flags(tshi_maker *m, int64_t of) {
    int64_t flags = 0;
    for (int64_t flag = 1; flag <= of; flag *= 2) {
        if (of & flag && tshi_maker_chance(m, 40)) flags |= flag;
    }
    return flags;
}

int tshi_add_norm(tshi_maker *m, int x) {
    tshi_step s = {.call = CALL_NORM, .inputs = 1, .in = {x}};
    s.n[LAYER_AXIS] = tshi_maker_below(m, m->p->axes);
    s.n[LAYER_FLAGS] = random_flags(m, FLAG_BIAS | FLAG_RMS) | (tshi_maker_chance(m, 80) ? FLAG_WEIGHT : 0);
    return tshi_maker_add(m, &s);
}

/* Positions and lengths of the sequences, as the flags want them. */
static bool add_sequences(tshi_maker *m, tshi_step *s, int64_t tokens) {
    int64_t batch = s->n[ATTENTION_BATCH], time = tokens / batch;
    int axis = (int)s->n[LAYER_AXIS];
    tshi_dims positions = {1, {time}}, lengths = {1, {batch}};
    if (tshi_maker_chance(m, 50)) positions = (tshi_dims){2, {batch, time}};
    if (s->n[LAYER_FLAGS] & FLAG_ROTARY) s->in[s->inputs++] = tshi_maker_ids(m, &positions, 9, false, axis);
    if (s->n[LAYER_FLAGS] & FLAG_LENGTHS) s->in[s->inputs++] = tshi_maker_ids(m, &lengths, time + 1, false, axis);
    for (int i = 1; i < s->inputs; i++) {
        if (s->in[i] < 0) return false;
    }
    return true;
}

int tshi_add_transformer(tshi_maker *m, tshi_verb call) {
    const int64_t batch = 1 + tshi_maker_below(m, 3), dims[2] = {batch * small_size(m, 4), 1 + tshi_maker_below(m, 5)};
    int x = tshi_maker_value_of(m, 2, dims);
    tshi_step s = {.call = call, .inputs = 1}, before = {.call = CALL_PREPARE, .inputs = 1, .in = {x}};
    s.n[LAYER_AXIS] = before.n[LAYER_AXIS] = tshi_maker_below(m, m->p->axes);
    before.n[LAYER_SHARDING] = PREPARE_WHOLE;
    s.n[LAYER_FLAGS] = random_flags(m, FLAG_BIAS | FLAG_SEQUENCE | FLAG_GATED | FLAG_POST | FLAG_RMS);
    s.n[LAYER_OUT] = 1 + tshi_maker_below(m, 6);
    s.n[LAYER_ACTIVATION] = tshi_maker_below(m, 4);
    s.in[0] = x < 0 ? -1 : tshi_maker_add(m, &before);
    if (s.in[0] < 0) return -1;
    if (call == CALL_MLP) return tshi_maker_add(m, &s);
    s.n[LAYER_FLAGS] |= random_flags(m, FLAG_CAUSAL | FLAG_ROTARY | FLAG_LENGTHS);
    s.n[ATTENTION_BATCH] = batch;
    s.n[ATTENTION_KV_HEADS] = 1 + tshi_maker_below(m, 3);
    s.n[ATTENTION_HEADS] = s.n[ATTENTION_KV_HEADS] * (1 + tshi_maker_below(m, 3));
    s.n[ATTENTION_HEAD_DIM] =
        s.n[LAYER_FLAGS] & FLAG_ROTARY ? 2 + 2 * tshi_maker_below(m, 2) : 1 + tshi_maker_below(m, 3);
    if (tshi_maker_chance(m, 20)) s.f = 0.3;
    return add_sequences(m, &s, dims[0]) ? tshi_maker_add(m, &s) : -1;
}
