/* What a program's values are: shapes, gradients, bounds. */
#include "differential/functions.h"

#include <math.h>
#include <string.h>

static const tshi_step *input(const tshi_program *p, const tshi_step *s, int i) {
    return &p->step[s->in[i]];
}

static bool same_dims(const tshi_dims *a, const tshi_dims *b) {
    return a->ndim == b->ndim && !memcmp(a->dim, b->dim, sizeof *a->dim * (size_t)a->ndim);
}

static int64_t last_of(const tshi_dims *d) {
    return d->ndim > 0 ? d->dim[d->ndim - 1] : -1;
}

static bool is_vector(const tshi_step *s, int64_t n) {
    return s->shape.ndim == 1 && s->shape.dim[0] == n;
}

static void drop_dim(tshi_dims *d, int at) {
    memmove(&d->dim[at], &d->dim[at + 1], sizeof *d->dim * (size_t)(d->ndim - at - 1));
    d->ndim--;
}

static void insert_dim(tshi_dims *d, int at, int64_t n) {
    memmove(&d->dim[at + 1], &d->dim[at], sizeof *d->dim * (size_t)(d->ndim - at));
    d->dim[at] = n;
    d->ndim++;
}

/* --- shapes ------------------------------------------------------------------------------------------------------- */

tshi_dims tshi_reshape_dims(const tshi_step *s, const tshi_dims *x) {
    tshi_dims y = *x;
    int d = x->ndim > 0 ? (int)(s->n[1] % x->ndim) : 0;
    int64_t factor = s->n[2] > 0 ? s->n[2] : 1;
    switch (s->n[0]) {
    case FORM_MERGE:
        if (d + 1 >= x->ndim) break;
        y.dim[d + 1] *= y.dim[d];
        drop_dim(&y, d);
        break;
    case FORM_SPLIT:
        if (x->ndim == 0 || x->ndim == TSH_MAX_DIMS || y.dim[d] % factor) break;
        y.dim[d] /= factor;
        insert_dim(&y, d + 1, factor);
        break;
    case FORM_FLATTEN: y = (tshi_dims){1, {tshi_dims_numel(x)}}; break;
    case FORM_INSERT:
        if (x->ndim < TSH_MAX_DIMS) insert_dim(&y, d, 1);
        break;
    case FORM_SWAP:
        if (d + 1 >= x->ndim) break;
        y.dim[d] = x->dim[d + 1];
        y.dim[d + 1] = x->dim[d];
        break;
    default: break;
    }
    return y;
}

/* y = x W^T or x W; `in` and `out` are the dims of the weight. */
static bool infer_product(const tshi_program *p, tshi_step *s, int in, int out) {
    const tshi_step *x = input(p, s, 0), *w = input(p, s, 1);
    if (x->shape.ndim < 1 || w->shape.ndim != 2 || last_of(&x->shape) != w->shape.dim[in]) return false;
    if (s->inputs == 3 && !is_vector(input(p, s, 2), w->shape.dim[out])) return false;
    s->shape = x->shape;
    s->shape.dim[x->shape.ndim - 1] = w->shape.dim[out];
    s->bound = x->bound * w->bound * fmax(1, (double)w->shape.dim[in]);
    s->bits = x->bits + w->bits;
    if (s->inputs == 3) s->bound += input(p, s, 2)->bound;
    if (s->inputs == 3 && input(p, s, 2)->bits > s->bits) s->bits = input(p, s, 2)->bits;
    return true;
}

bool tshi_repeated_dims(const tshi_dims *x, const tshi_dims *y, tshi_dims *out) {
    const tshi_dims *longer = x->ndim >= y->ndim ? x : y, *other = longer == x ? y : x;
    int more = longer->ndim - other->ndim;
    *out = *longer;
    for (int d = more; d < longer->ndim; d++) {
        int64_t a = longer->dim[d], b = other->dim[d - more];
        if (a != b && a != 1 && b != 1) return false;
        if (a == 1) out->dim[d] = b;
    }
    return true;
}

static bool infer_two(const tshi_program *p, tshi_step *s) {
    const tshi_step *x = input(p, s, 0), *y = input(p, s, 1);
    bool product = s->call == CALL_MUL;
    s->bound = product ? x->bound * y->bound : x->bound + y->bound;
    s->bits = product ? x->bits + y->bits : x->bits > y->bits ? x->bits : y->bits;
    return tshi_repeated_dims(&x->shape, &y->shape, &s->shape);
}

static bool infer_concat(const tshi_program *p, tshi_step *s) {
    int d = (int)s->n[0];
    for (int i = 0; i < s->inputs; i++) {
        const tshi_step *x = input(p, s, i);
        if (i == 0) s->shape = x->shape;
        if (d < 0 || d >= x->shape.ndim || x->shape.ndim != s->shape.ndim) return false;
        for (int e = 0; e < x->shape.ndim; e++) {
            if (e != d && x->shape.dim[e] != s->shape.dim[e]) return false;
        }
        if (i > 0) s->shape.dim[d] += x->shape.dim[d];
        s->bound = fmax(s->bound, x->bound);
        s->bits = s->bits > x->bits ? s->bits : x->bits;
        if (x->integer != s->integer) return false;
    }
    return true;
}

/* Halvings in a division by n; -1 when it is not exact. */
static int halvings(double n) {
    int exponent;
    return frexp(n, &exponent) == 0.5 ? exponent - 1 : -1;
}

static bool infer_sum(const tshi_program *p, tshi_step *s) {
    const tshi_step *x = input(p, s, 0);
    int d = (int)s->n[0];
    bool all = d == TSH_ALL_DIMS;
    if (!all && (d < 0 || d >= x->shape.ndim)) return false;
    double items = all ? (double)tshi_dims_numel(&x->shape) : (double)x->shape.dim[d];
    if (all) {
        s->shape = (tshi_dims){0};
    } else {
        drop_dim(&s->shape, d);
    }
    if (s->call == CALL_SUM) s->bound *= fmax(1, items);
    if (s->call == CALL_SUM) return true;
    if (p->exact) s->bits += halvings(items);
    return items > 0 && (!p->exact || halvings(items) >= 0);
}

static bool infer_lookup(const tshi_program *p, tshi_step *s) {
    const tshi_step *table = input(p, s, 0), *ids = input(p, s, 1);
    if (table->shape.ndim != 2 || ids->shape.ndim >= TSH_MAX_DIMS) return false;
    if (tshi_dims_numel(&ids->shape) > 0 && ids->bound > (double)table->shape.dim[0]) return false;
    s->shape = ids->shape;
    s->shape.dim[s->shape.ndim++] = table->shape.dim[1];
    s->integer = false;
    return s->n[0] < table->shape.dim[0];
}

static bool infer_norm(const tshi_program *p, tshi_step *s) {
    const tshi_step *x = input(p, s, 0);
    int64_t n = last_of(&x->shape);
    if (x->shape.ndim < 1) return false;
    s->bound = sqrt((double)n) + 1;
    for (int i = 1; i < s->inputs; i++) {
        if (!is_vector(input(p, s, i), n)) return false;
        s->bound = i == 1 ? s->bound * input(p, s, i)->bound : s->bound + input(p, s, i)->bound;
    }
    return true;
}

/* A shared layer is configured as its owner. */
static bool shares(const tshi_program *p, const tshi_step *s) {
    if (s->inputs == 1) return true;
    const tshi_step *owner = input(p, s, 1);
    return owner->call == s->call && owner->inputs == 1 && !memcmp(owner->n, s->n, sizeof s->n);
}

static bool infer_linear(const tshi_program *p, tshi_step *s) {
    const tshi_step *x = input(p, s, 0);
    int64_t in = last_of(&x->shape);
    if (in < 1 || s->n[LAYER_OUT] < 1 || !shares(p, s) || s->n[LAYER_AXIS] >= p->axes) return false;
    if (s->inputs == 2 && last_of(&input(p, input(p, s, 1), 0)->shape) != in) return false;
    double weight = p->exact ? 8 : 2;
    s->shape.dim[s->shape.ndim - 1] = s->n[LAYER_OUT];
    s->bound = x->bound * weight * (double)in + weight;
    return true;
}

static bool infer_embedding(const tshi_program *p, tshi_step *s) {
    const tshi_step *ids = input(p, s, 0);
    if (!shares(p, s) || s->n[LAYER_AXIS] >= p->axes || s->n[EMBEDDING_ROWS] < 1 || s->n[LAYER_OUT] < 1) return false;
    if (ids->bound > (double)s->n[EMBEDDING_ROWS] || ids->shape.ndim >= TSH_MAX_DIMS) return false;
    if (s->n[EMBEDDING_PADDING] >= s->n[EMBEDDING_ROWS]) return false;
    if (s->n[LAYER_SHARDING] != TSH_DENSE && ids->local >> s->n[LAYER_AXIS] & 1u) return false;
    s->shape.dim[s->shape.ndim++] = s->n[LAYER_OUT];
    s->integer = false;
    s->bound = 8;
    s->bits = 0;
    return true;
}

static bool infer_cross_entropy(const tshi_program *p, tshi_step *s) {
    const tshi_step *x = input(p, s, 0), *target = input(p, s, 1);
    int64_t classes = last_of(&x->shape), rows = tshi_dims_numel(&target->shape);
    tshi_dims dims = x->shape;
    if (dims.ndim-- < 1 || !same_dims(&dims, &target->shape) || classes < 1) return false;
    if (rows > 0 && target->bound > (double)classes) return false;
    if (s->n[0] == TSH_REDUCTION_MEAN && rows == 0) return false;
    /* Class weights are positive. */
    if (s->inputs == 3 && (!is_vector(input(p, s, 2), classes) || input(p, s, 2)->call != CALL_LEAF)) return false;
    s->shape = s->n[0] == TSH_REDUCTION_NONE ? dims : (tshi_dims){0};
    s->bound = 2 * (2 * x->bound + log((double)classes)) * (s->n[0] == TSH_REDUCTION_SUM ? fmax(1, (double)rows) : 1);
    s->integer = false;
    return true;
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

/* Numbers of queries and of keys: [T], or both [B, T]. */
static bool numbers_fit(const tshi_program *p, const tshi_step *s) {
    for (int i = 3; i < 5; i++) {
        const tshi_dims *numbers = &input(p, s, i)->shape, *tokens = &input(p, s, i > 3)->shape;
        if (numbers->ndim != input(p, s, 3)->shape.ndim || numbers->ndim < 1 || numbers->ndim > 2) return false;
        if (last_of(numbers) != tokens->dim[1]) return false;
        if (numbers->ndim == 2 && numbers->dim[0] != tokens->dim[0]) return false;
    }
    return true;
}

static bool infer_attention(const tshi_program *p, tshi_step *s) {
    const tshi_dims *q = &s->shape, *k = &input(p, s, 1)->shape, *v = &input(p, s, 2)->shape;
    if (q->ndim != 4 || k->ndim != 4 || !same_dims(k, v) || q->dim[0] != k->dim[0] || q->dim[3] != k->dim[3])
        return false;
    if (k->dim[2] == 0 ? q->dim[2] != 0 : q->dim[2] % k->dim[2] != 0) return false;
    if ((s->inputs == 5) != (s->n[2] != 0) || (s->inputs == 5 && !numbers_fit(p, s))) return false;
    if (s->inputs == 4) {
        const tshi_step *lengths = input(p, s, 3);
        if (!is_vector(lengths, q->dim[0]) || lengths->bound > (double)k->dim[1] + 1) return false;
    }
    s->bound = input(p, s, 2)->bound / (1 - s->f);
    s->dropped = s->dropped || (s->f > 0 && !s->detached);
    return true;
}

static bool infer_rotary(const tshi_program *p, tshi_step *s) {
    const tshi_dims *x = &s->shape, *at = &input(p, s, 1)->shape;
    if (x->ndim != 4 || at->ndim < 1 || at->ndim > 2 || last_of(at) != x->dim[1]) return false;
    if (at->ndim == 2 && at->dim[0] != x->dim[0]) return false;
    int64_t dims = s->n[1] ? s->n[1] : x->dim[3];
    s->bound *= 2;
    return dims % 2 == 0 && dims <= x->dim[3];
}

/* --- layers of a transformer -------------------------------------------------------------------------------------- */

static bool infer_project(const tshi_program *p, tshi_step *s) {
    const tshi_step *owner = input(p, s, 1);
    if (owner->call != CALL_EMBEDDING || owner->inputs != 1 || s->shape.ndim < 1) return false;
    bool same = s->n[LAYER_AXIS] == owner->n[LAYER_AXIS] && s->n[LAYER_SHARDING] == owner->n[LAYER_SHARDING];
    if (!same || last_of(&s->shape) != owner->n[LAYER_OUT]) return false;
    s->bound *= 8 * (double)owner->n[LAYER_OUT];
    s->shape.dim[s->shape.ndim - 1] = owner->n[EMBEDDING_ROWS];
    return true;
}

/* Positions and lengths of sequences, which are not LOCAL along the layer's axis. */
static bool sequences_fit(const tshi_program *p, const tshi_step *s) {
    int64_t flags = s->n[LAYER_FLAGS], batch = s->n[ATTENTION_BATCH];
    int lengths = flags & FLAG_ROTARY ? 2 : 1;
    if (batch < 1 || s->shape.dim[0] % batch) return false;
    int64_t time = s->shape.dim[0] / batch;
    if (flags & FLAG_ROTARY) {
        const tshi_dims *at = &input(p, s, 1)->shape;
        if (s->n[ATTENTION_HEAD_DIM] % 2 || at->ndim < 1 || at->ndim > 2 || last_of(at) != time) return false;
        if (at->ndim == 2 && at->dim[0] != batch) return false;
    }
    if (!(flags & FLAG_LENGTHS)) return true;
    return is_vector(input(p, s, lengths), batch) && input(p, s, lengths)->bound <= (double)time + 1;
}

/* Weights and biases are in [-1/sqrt(in), 1/sqrt(in)]. */
static double bound_of_linear(double x, int64_t in) {
    return x * sqrt((double)in) + 1;
}

static bool infer_transformer(const tshi_program *p, tshi_step *s) {
    int64_t flags = s->n[LAYER_FLAGS], embed = last_of(&s->shape);
    double norm = bound_of_linear(1, embed), x = s->call == CALL_BLOCK && !(flags & FLAG_POST) ? norm : s->bound;
    if (embed < 1 || s->n[LAYER_AXIS] >= p->axes) return false;
    if (s->call == CALL_NORM) {
        s->bound = norm;
        return s->inputs == 1;
    }
    if (s->shape.ndim != 2 || s->local >> s->n[LAYER_AXIS] & 1u) return false;
    bool attends = s->call != CALL_MLP;
    /* Of one token dims of size 1 are alike: a reshape may take tokens for the heads that ranks share. */
    if (attends && s->shape.dim[0] == 1) return false;
    int64_t heads = s->n[ATTENTION_HEADS], kv_heads = s->n[ATTENTION_KV_HEADS], features = s->n[ATTENTION_HEAD_DIM];
    if (s->inputs != 1 + (attends && flags & FLAG_ROTARY) + (attends && flags & FLAG_LENGTHS)) return false;
    if (attends && (kv_heads < 1 || heads < 1 || features < 1 || heads % kv_heads || !sequences_fit(p, s)))
        return false;
    if (s->call != CALL_SELF_ATTENTION && s->n[LAYER_OUT] < 1) return false;
    /* Tokens are split by whole sequences along other axes first. */
    if (attends && flags & FLAG_SEQUENCE && s->n[LAYER_AXIS] != p->axes - 1) return false;
    double in = bound_of_linear(x, embed), hidden = flags & FLAG_GATED ? in * in : in;
    double attention = attends ? bound_of_linear(in, heads * features) / (1 - s->f) : 0;
    double mlp = bound_of_linear(hidden, s->n[LAYER_OUT]) / (1 - s->f);
    s->dropped = s->dropped || (s->f > 0 && attends && !s->detached);
    s->bound = s->call == CALL_MLP ? mlp : attends && s->call != CALL_BLOCK ? attention : s->bound + attention + mlp;
    if (s->call == CALL_BLOCK && flags & FLAG_POST) s->bound = norm;
    return !attends || in * in * (double)features <= 300;
}

/* --- moves -------------------------------------------------------------------------------------------------------- */

/* A LOCAL value that becomes REPLICATED is summed. */
static void move_local(const tshi_program *p, tshi_step *s, int axis) {
    bool row = s->call == CALL_PREPARE && !s->integer &&
               (s->n[LAYER_SHARDING] == TSH_ROW || s->n[LAYER_SHARDING] == PREPARE_WHOLE);
    tsh_layout_kind to = s->layout[0].kind;
    unsigned bit = 1u << axis;
    if (s->call == CALL_COPY || (s->call == CALL_REDISTRIBUTE && to == TSH_KIND_LOCAL)) s->local |= bit;
    bool sums = s->call == CALL_REDUCE || row || (s->call == CALL_REDISTRIBUTE && to == TSH_KIND_REPLICATED);
    if (!sums || !(s->local & bit)) return;
    s->bound *= p->size[axis];
    s->local &= ~bit;
}

static bool splits_what_is(const tshi_program *p, const tshi_step *s) {
    for (int a = 0; a < p->axes; a++) {
        if (s->layout[a].kind == TSH_KIND_SHARD && s->layout[a].dim >= s->shape.ndim) return false;
    }
    return true;
}

static bool infer_move(const tshi_program *p, tshi_step *s) {
    bool units = tshi_layouts_have_units(p, s->layout);
    if (s->call == CALL_MOVE_ALL)
        return splits_what_is(p, s) && (!units || (!s->local && tshi_layouts_fit(p, s->layout, &s->shape)));
    int axis = (int)s->n[s->call == CALL_PREPARE ? LAYER_AXIS : 0];
    if (axis < p->axes) move_local(p, s, axis);
    int dim = s->call == CALL_SCATTER ? (int)s->n[1] : s->layout[0].dim;
    bool splits = s->call == CALL_SCATTER || (s->call == CALL_REDISTRIBUTE && s->layout[0].kind == TSH_KIND_SHARD);
    int64_t n = splits && dim < s->shape.ndim ? s->shape.dim[dim] : 0;
    if (s->call == CALL_REDISTRIBUTE && s->layout[0].cuts) {
        const tshi_program_cuts *cuts = tshi_layout_cuts(p, s->layout[0]);
        if (!cuts || s->local || axis >= p->axes || cuts->parts != p->size[axis] || cuts->at[cuts->parts] != n)
            return false;
    } else if (units && (s->layout[0].units < 1 || s->local || n % s->layout[0].units)) {
        return false;
    }
    return axis < p->axes && (!splits || dim < s->shape.ndim);
}

static bool infer_leaf(const tshi_program *p, tshi_step *s) {
    if (!splits_what_is(p, s)) return false;
    for (int d = s->shape.ndim; d < TSH_MAX_DIMS; d++) s->shape.dim[d] = 0;
    s->integer = s->call == CALL_IDS;
    s->bound = s->integer ? (double)s->n[IDS_LIMIT] : p->exact ? 8 : 2;
    s->bits = 0;
    s->least = 0;
    s->wants_grad = s->grad;
    s->local = 0;
    for (int a = 0; a < p->axes; a++) {
        if (s->layout[a].kind == TSH_KIND_LOCAL) s->local |= 1u << a;
    }
    bool ragged = tshi_leaf_flags(s) & FLAG_RAGGED;
    if (tshi_layouts_have_units(p, s->layout) && (ragged || !tshi_layouts_fit(p, s->layout, &s->shape))) return false;
    if (ragged && (p->ragged < 0 || s->shape.ndim < 1 || s->layout[p->ragged].kind != TSH_KIND_LOCAL)) return false;
    return !s->integer || s->n[IDS_LIMIT] > 0 || tshi_dims_numel(&s->shape) == 0;
}

static bool infer_call(const tshi_program *p, tshi_step *s) {
    int d = (int)s->n[0], ndim = s->shape.ndim;
    switch (s->call) {
    case CALL_MATMUL: return infer_product(p, s, 0, 1);
    case CALL_AFFINE: return infer_product(p, s, 1, 0);
    case CALL_ADD:
    case CALL_SUB:
    case CALL_MUL: return infer_two(p, s);
    case CALL_SCALE:
        s->bound *= fmax(fabs(s->f), 0x1p-10);
        if (fabs(s->f) < 1) s->bits++;
        return true;
    case CALL_BIAS: s->bound += input(p, s, 1)->bound; return ndim > 0 && is_vector(input(p, s, 1), last_of(&s->shape));
    case CALL_DROPOUT:
        s->bound /= 1 - s->f;
        s->dropped = s->dropped || !s->detached;
        return true;
    case CALL_RESHAPE: s->shape = tshi_reshape_dims(s, &s->shape); return true;
    case CALL_SLICE:
        if (d >= ndim) return false;
        if (s->n[1] > s->shape.dim[d]) s->n[1] = s->shape.dim[d];
        if (s->n[2] > s->shape.dim[d] - s->n[1]) s->n[2] = s->shape.dim[d] - s->n[1];
        s->shape.dim[d] = s->n[2];
        return true;
    case CALL_CONCAT: return infer_concat(p, s);
    case CALL_SUM:
    case CALL_MEAN: return infer_sum(p, s);
    case CALL_SOFTMAX: s->bound = 1; return d < ndim;
    case CALL_LOG_SOFTMAX: s->bound = 2 * s->bound + 8; return d < ndim;
    case CALL_LOOKUP: return infer_lookup(p, s);
    case CALL_LAYER_NORM:
    case CALL_RMS_NORM: return infer_norm(p, s);
    case CALL_ATTENTION: return infer_attention(p, s);
    case CALL_ROTARY: return infer_rotary(p, s);
    case CALL_LINEAR: return infer_linear(p, s);
    case CALL_EMBEDDING: return infer_embedding(p, s);
    case CALL_PROJECT: return infer_project(p, s);
    case CALL_NORM:
    case CALL_MLP:
    case CALL_SELF_ATTENTION:
    case CALL_BLOCK: return infer_transformer(p, s);
    case CALL_CROSS_ENTROPY: return infer_cross_entropy(p, s);
    default: return tshi_verb_moves(s->call) ? infer_move(p, s) : tshi_function_infer(p, s);
    }
}

/* --- programs ----------------------------------------------------------------------------------------------------- */

/* Integers may be moved and shaped; all else is of floats, but for the ids of what takes them. */
static bool takes_integers(const tshi_step *s) {
    return s->call == CALL_RESHAPE || s->call == CALL_SLICE || s->call == CALL_CONCAT || s->call == CALL_CAST ||
           tshi_verb_moves(s->call);
}

static bool wants_ids(const tshi_step *s, int i) {
    if (s->call == CALL_EMBEDDING || s->call == CALL_ONE_HOT) return i == 0;
    if (s->call >= CALL_INDEX_SELECT && s->call <= CALL_ADD_ALONG) return i == 1;
    if (s->call == CALL_ATTENTION) return i >= 3;
    if (s->call == CALL_ROTARY) return i == 1;
    if (s->call == CALL_SELF_ATTENTION || s->call == CALL_BLOCK) return i > 0;
    return i == 1 && (s->call == CALL_LOOKUP || s->call == CALL_CROSS_ENTROPY || s->call == CALL_MASKED_FILL);
}

static bool is_target(const tshi_step *s) {
    return s->call == CALL_IDS && s->n[IDS_FLAGS] & FLAG_TARGET;
}

/* Each element of the result is one of the input. */
static bool keeps_elements(const tshi_step *s) {
    return s->call == CALL_RESHAPE || s->call == CALL_SLICE || s->call == CALL_REDISTRIBUTE || s->call == CALL_GATHER ||
           s->call == CALL_SCATTER || s->call == CALL_MOVE_ALL || s->call == CALL_PREPARE || s->call == CALL_COPY;
}

static bool check_inputs(const tshi_program *p, int k, const tshi_step *s) {
    if (s->inputs < tshi_verbs[s->call].least || s->inputs > tshi_verbs[s->call].most) return false;
    for (int i = 0; i < s->inputs; i++) {
        if (s->in[i] < 0 || s->in[i] >= k) return false;
        const tshi_step *x = input(p, s, i);
        if (!tshi_input_is_layer(s, i) && x->integer != wants_ids(s, i) && !(takes_integers(s) && x->integer))
            return false;
        if (is_target(x) && (s->call != CALL_CROSS_ENTROPY || i != 1)) return false;
    }
    return true;
}

bool tshi_step_infer(const tshi_program *p, int k, tshi_step *s) {
    if (s->call == CALL_LEAF || s->call == CALL_IDS) return infer_leaf(p, s);
    if (!check_inputs(p, k, s)) return false;
    const tshi_step *x = input(p, s, 0);
    s->shape = x->shape;
    s->integer = x->integer;
    s->bound = x->bound;
    s->bits = x->bits;
    s->least = keeps_elements(s) ? x->least : 0;
    s->dropped = false;
    s->local = 0;
    s->wants_grad = s->call == CALL_LINEAR || s->call == CALL_EMBEDDING || tshi_transformer_parameters(s) > 0;
    for (int i = 0; i < s->inputs; i++) {
        bool weights = (s->call == CALL_CROSS_ENTROPY || s->call == CALL_BCE_LOSS) && i == 2;
        s->wants_grad = s->wants_grad || (input(p, s, i)->wants_grad && !weights);
        s->dropped = s->dropped || input(p, s, i)->dropped;
        if (!tshi_input_is_layer(s, i)) s->local |= input(p, s, i)->local;
    }
    if (s->detached || s->integer || tshi_function_is_constant(s)) s->wants_grad = false;
    if (!s->wants_grad) s->retain = false;
    return infer_call(p, s) && s->shape.ndim <= TSH_MAX_DIMS;
}

/* --- ragged programs ---------------------------------------------------------------------------------------------- */

/* Two operands of which either may be repeated. */
static bool is_pair(tshi_verb call) {
    return call == CALL_ADD || call == CALL_SUB || call == CALL_MUL || call == CALL_DIV || call == CALL_MAXIMUM ||
           call == CALL_MINIMUM || call == CALL_WHERE;
}

/* Operands of which one may be ragged beside another that is. */
static bool goes_beside(const tshi_program *p, const tshi_step *s, int i) {
    if (s->call == CALL_LOOKUP) return i == 1;
    if (s->call >= CALL_INDEX_SELECT && s->call <= CALL_ONE_HOT) return false;
    if (s->call == CALL_RESHAPE) return p->axes == 1; /* what stays split along other axes depends on the sizes */
    if (s->call == CALL_CROSS_ENTROPY) return i < 2;
    if (s->call == CALL_ATTENTION || s->call == CALL_ROTARY) return true;
    if (s->call == CALL_SELF_ATTENTION || s->call == CALL_BLOCK) return true;
    if (is_pair(s->call) || s->call == CALL_CONCAT || s->call == CALL_MASKED_FILL || s->call == CALL_SWIGLU)
        return true;
    if (s->call == CALL_MSE_LOSS || s->call == CALL_L1_LOSS || s->call == CALL_SMOOTH_L1_LOSS) return true;
    if (s->call == CALL_BCE_LOSS) return i < 2;
    return i == 0;
}

/* A weight that is split over ranks whose rows are not the same would make a tensor that is none. */
static bool weight_is_whole(const tshi_program *p, const tshi_step *s) {
    if (s->call >= CALL_MLP && s->call <= CALL_BLOCK) return s->n[LAYER_AXIS] != p->ragged;
    if (s->call == CALL_LINEAR || s->call == CALL_PROJECT)
        return s->n[LAYER_SHARDING] == TSH_DENSE || s->n[LAYER_AXIS] != p->ragged;
    if (s->call != CALL_MATMUL && s->call != CALL_AFFINE) return true;
    const tshi_step *w = input(p, s, 1);
    return w->call == CALL_LEAF &&
           (w->layout[p->ragged].kind == TSH_KIND_REPLICATED || w->layout[p->ragged].kind == TSH_KIND_LOCAL);
}

/* Along the ragged axis what is split beside a LOCAL input would be so where that is repeated, and gathered
 * elsewhere. */
static bool repeats_beside(const tshi_program *p, const tshi_program *q, const tshi_step *s) {
    bool equal = same_dims(&input(p, s, 0)->shape, &input(p, s, 1)->shape) &&
                 same_dims(&input(q, s, 0)->shape, &input(q, s, 1)->shape);
    for (int i = 0; i < 2 && !equal; i++) {
        const tshi_step *x = input(p, s, i);
        bool whole = x->call == CALL_LEAF && x->layout[p->ragged].kind == TSH_KIND_REPLICATED;
        if (!(x->local >> p->ragged & 1u) && !whole) return false;
    }
    return true;
}

/* q is p as it is at another index along the ragged axis. */
static bool ragged_step_fits(const tshi_program *p, const tshi_program *q, int k) {
    const tshi_step *s = &p->step[k];
    bool layer = tshi_verb_has_layer(s->call) && s->call != CALL_EMBEDDING, differs = false;
    if (s->shape.ndim != q->step[k].shape.ndim) return false;
    for (int i = 0; i < s->inputs && !tshi_input_is_layer(s, i); i++) {
        bool ragged = !same_dims(&input(p, s, i)->shape, &input(q, s, i)->shape);
        if (ragged && !goes_beside(p, s, i)) return false;
        differs = differs || ragged;
    }
    if (!differs) return true;
    if (is_pair(s->call) && !repeats_beside(p, q, s)) return false;
    /* A sum over the axis is one of equal shapes. */
    bool was_local = input(p, s, 0)->local >> p->ragged & 1u, is_local = s->local >> p->ragged & 1u;
    if (was_local && !is_local) return false;
    bool same_features = !layer || last_of(&input(p, s, 0)->shape) == last_of(&input(q, s, 0)->shape);
    return same_features && weight_is_whole(p, s);
}

bool tshi_program_ragged_fits(const tshi_program *p) {
    bool fits = true;
    if (p->ragged < 0) return true;
    for (int index = 1; index < p->size[p->ragged] && fits; index++) {
        tshi_program q = *p;
        for (int k = 0; k < p->steps && fits; k++) {
            tshi_step *s = &q.step[k];
            bool leaf = s->call == CALL_LEAF || s->call == CALL_IDS;
            if (leaf && tshi_leaf_flags(s) & FLAG_RAGGED) s->shape.dim[0] += index;
            fits = tshi_step_infer(&q, k, s) && ragged_step_fits(p, &q, k);
        }
    }
    return fits;
}

/* A leaf, or perhaps one: moves may do nothing. */
static bool may_be_leaf(const tshi_program *p, int k) {
    while (tshi_verb_moves(p->step[k].call)) k = p->step[k].in[0];
    return p->step[k].call <= CALL_IDS;
}

bool tshi_program_infer(tshi_program *p) {
    for (int k = 0; k < p->steps; k++) {
        if (!tshi_step_infer(p, k, &p->step[k])) return false;
    }
    for (int i = 0; i < p->objectives; i++) {
        int k = p->objective[i].value;
        if (k >= p->steps || !p->step[k].wants_grad || may_be_leaf(p, k)) return false;
    }
    if (p->dp_axis >= p->axes || p->ragged >= p->axes || p->steps == 0 || !tshi_program_ragged_fits(p)) return false;
    bool averages = p->dp_axis >= 0 && p->dp_average;
    return !averages || !p->exact || halvings(p->size[p->dp_axis]) >= 0;
}
