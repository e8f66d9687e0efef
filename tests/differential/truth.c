/* A program on one rank. A value has one tensor, to which all ranks' entries point, unless it is LOCAL: then each rank
 * that has a value of its own has a tensor. Each objective is differentiated alone, over a forward of its own, so that
 * the truth does not depend on the code that keeps several backwards apart. */
#include "differential/functions.h"
#include "differential/rank.h"
#include "dist/world.h"
#include "layout/layout.h"
#include "support/values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A value, by rank; equal pointers where the ranks share it. */
typedef struct copies {
    tsh_tensor *of[MAX_RANKS];
} copies;

typedef struct truth {
    const tshi_program *p;
    int ranks;
    tshi_bench bench;
    const tshi_trace *seen; /* of rank 0: layouts and aliases */
    tshi_trace *traces;
    tshi_verdict *v;
    copies leaf[MAX_STEPS], value[MAX_STEPS];
    int owned_count;
    tshi_owned owned[MAX_PARAMETERS];
    copies parameter[MAX_PARAMETERS];
    int pass;
    bool corner;                /* a function was near a corner of its graph */
    uint64_t stream;            /* at the start of the pass */
    tshi_trace sums[MAX_RANKS]; /* retained gradients so far in the pass, an entry for each value */
    tsh_status status;
} truth;

static bool failed(truth *t, const char *what) {
    bool tape = t->bench.tape && tsh_tape_status(t->bench.tape) != TSH_OK;
    if (t->v->kind != VERDICT_FAILED) {
        tshi_verdict_fail(t->v, "one rank: %s: %s", what, tape ? tsh_tape_message(t->bench.tape) : tsh_error_message());
    }
    return false;
}

/* --- leaves ------------------------------------------------------------------------------------------------------- */

static tsh_tensor *make_leaf(truth *t, int k, int copy, int rank) {
    const tshi_step *s = &t->p->step[k];
    bool integer = s->call == CALL_IDS;
    tsh_tensor_config config = {.dtype = integer ? TSH_INT64 : t->p->dtype, .ndim = s->shape.ndim};
    tsh_tensor *out;
    tshi_dims dims = tshi_leaf_dims(t->p, s, rank);
    memcpy(config.shape, dims.dim, sizeof *config.shape * (size_t)config.ndim);
    if (tsh_tensor_create(t->bench.mesh, &config, &out) != TSH_OK) return NULL;
    for (int64_t i = 0; i < tsh_tensor_local_numel(out); i++) {
        double value = tshi_leaf_value(t->p, s, copy, i);
        void *data = tsh_tensor_data(out);
        if (integer) {
            ((int64_t *)data)[i] = (int64_t)value;
        } else if (t->p->dtype == TSH_FLOAT32) {
            ((float *)data)[i] = (float)value;
        } else {
            ((double *)data)[i] = value;
        }
    }
    if (!integer && s->n[LEAF_FLAGS] & FLAG_INIT) {
        tsh_tensor_init(out, &(tsh_init){.kind = TSH_INIT_UNIFORM, .a = -1, .b = 1});
    }
    if (s->grad) tsh_tensor_require_grad(out, true);
    return out;
}

static bool make_leaves(truth *t, int k) {
    const tshi_step *s = &t->p->step[k];
    tsh_tensor *made[MAX_RANKS] = {NULL};
    for (int r = 0; r < t->ranks; r++) {
        int copy = tshi_rank_number(t->p, s->layout, TSH_KIND_LOCAL, r);
        if (!made[copy]) made[copy] = make_leaf(t, k, copy, r);
        if (!made[copy]) return failed(t, "leaf");
        t->leaf[k].of[r] = made[copy];
    }
    return true;
}

/* Each tensor once: whether rank r is the first with it. */
static bool is_first(const copies *c, int r) {
    for (int q = 0; q < r; q++) {
        if (c->of[q] == c->of[r]) return false;
    }
    return true;
}

static bool set_up(truth *t) {
    if (tshi_bench_open(&t->bench) != TSH_OK) return failed(t, "bench");
    for (int k = 0; k < t->p->steps; k++) {
        tshi_verb call = t->p->step[k].call;
        bool leaf = call == CALL_LEAF || call == CALL_IDS;
        if (leaf ? !make_leaves(t, k) : tshi_bench_layer(&t->bench, k) != TSH_OK) return failed(t, "set-up");
    }
    t->owned_count = tshi_program_parameters(t->p, t->owned);
    for (int i = 0; i < t->owned_count; i++) {
        const tshi_owned *o = &t->owned[i];
        for (int r = 0; r < t->ranks; r++) {
            t->parameter[i].of[r] = o->part == OWNED_LEAF ? t->leaf[o->step].of[r] : tshi_bench_parameter(&t->bench, o);
            if (!is_first(&t->parameter[i], r)) continue;
            if (tshi_bench_add(&t->bench, o, r, t->parameter[i].of[r]) != TSH_OK) return failed(t, "parameters");
        }
    }
    return (tshi_bench_precision(&t->bench) == TSH_OK && tshi_bench_optimizer(&t->bench) == TSH_OK) ||
           failed(t, "optimizer");
}

/* --- moves -------------------------------------------------------------------------------------------------------- */

static int along(const truth *t, int r, int axis, int index) {
    int stride = 1;
    for (int a = t->p->axes - 1; a > axis; a--) stride *= t->p->size[a];
    return r + (index - tshi_rank_index(t->p, r, axis)) * stride;
}

/* True when the ranks along an axis from r have the tensors of those from q. */
static bool same_along(const truth *t, const copies *c, int axis, int r, int q) {
    bool same = true;
    for (int i = 0; i < t->p->size[axis]; i++) {
        same = same && c->of[along(t, r, axis, i)] == c->of[along(t, q, axis, i)];
    }
    return same;
}

/* The sum over the ranks of an axis, one tensor for all that have the same terms. */
static void sum_along(truth *t, int axis, copies *c) {
    copies in = *c;
    for (int r = 0; r < t->ranks; r++) {
        int q = 0;
        while (q < r && !same_along(t, &in, axis, r, q)) q++;
        c->of[r] = q < r ? c->of[q] : in.of[along(t, r, axis, 0)];
        for (int i = 1; i < t->p->size[axis] && q == r; i++) {
            c->of[r] = tsh_add(t->bench.tape, c->of[r], in.of[along(t, r, axis, i)]);
        }
    }
}

/* Values stay what they are but where LOCAL ones are summed; what becomes LOCAL becomes a tensor for each rank. */
static void move(truth *t, const tshi_entry *from, const tshi_entry *to, const copies *in, copies *out) {
    copies c = *in;
    tsh_layout fresh[TSH_MAX_AXES] = {{0}};
    for (int a = 0; a < t->p->axes; a++) {
        bool was = from->layout[a].kind == TSH_KIND_LOCAL, is = to->layout[a].kind == TSH_KIND_LOCAL;
        if (was && !is) sum_along(t, a, &c);
        if (is && !was) fresh[a] = TSH_LOCAL;
    }
    for (int r = 0; r < t->ranks; r++) {
        int number = tshi_rank_number(t->p, fresh, TSH_KIND_LOCAL, r), q = 0;
        while (q < r && (c.of[q] != c.of[r] || tshi_rank_number(t->p, fresh, TSH_KIND_LOCAL, q) != number)) q++;
        bool integer = tsh_tensor_dtype(c.of[r]) == TSH_INT64;
        out->of[r] = q < r ? out->of[q] : integer ? c.of[r] : tsh_scale(t->bench.tape, c.of[r], 1);
    }
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static bool same_box(const tshi_held *a, const tshi_held *b) {
    return !memcmp(a->start.dim, b->start.dim, sizeof a->start.dim) &&
           !memcmp(a->shape.dim, b->shape.dim, sizeof a->shape.dim);
}

static tshi_dims whole_dims(const tsh_tensor *x) {
    tshi_dims whole = {.ndim = tsh_tensor_ndim(x)};
    memcpy(whole.dim, tsh_tensor_local_shape(x), sizeof *whole.dim * (size_t)whole.ndim);
    return whole;
}

/* The rank's part of its result; one tensor for ranks that have the same part of the same. */
static void cut(truth *t, const tsh_layout *layout, const copies *c, int r, copies *out) {
    tsh_tensor *x = c->of[r];
    tshi_dims whole = whole_dims(x);
    tshi_held box = tshi_held_of(t->p, layout, r, &whole);
    for (int q = 0; q < r; q++) {
        tshi_held other = tshi_held_of(t->p, layout, q, &whole);
        if (c->of[q] != x || !same_box(&box, &other)) continue;
        out->of[r] = out->of[q];
        return;
    }
    for (int d = 0; d < whole.ndim; d++) {
        if (box.shape.dim[d] != whole.dim[d]) x = tsh_slice(t->bench.tape, x, d, box.start.dim[d], box.shape.dim[d]);
    }
    out->of[r] = x;
}

/* Of ranks that share a unit the first has the part. */
static void join_along(truth *t, int axis, const tsh_layout *layout, copies *c) {
    copies in = *c;
    for (int r = 0; r < t->ranks; r++) {
        tsh_tensor *parts[MAX_RANKS];
        int q = 0, count = 0;
        while (q < r && !same_along(t, &in, axis, r, q)) q++;
        for (int i = 0; i < t->p->size[axis]; i++) {
            int first;
            tshi_layout_sharers(layout, tshi_program_parts(t->p, axis), i, &first);
            if (first == i) parts[count++] = in.of[along(t, r, axis, i)];
        }
        c->of[r] = q < r ? c->of[q] : tsh_concat(t->bench.tape, parts, count, layout->dim);
    }
}

static bool differs_along(const truth *t, const copies *c, int axis) {
    for (int r = 0; r < t->ranks; r++) {
        if (c->of[r] != c->of[along(t, r, axis, 0)]) return true;
    }
    return false;
}

/* Results that differ by rank along an axis where the value is split: each rank holds a part of its own result. */
static bool join(truth *t, const tsh_layout *layout, copies *c) {
    bool needed = false;
    for (int a = 0; a < t->p->axes; a++) {
        if (layout[a].kind == TSH_KIND_LOCAL || !differs_along(t, c, a)) continue;
        needed = true;
        if (layout[a].kind == TSH_KIND_SHARD) continue;
        tshi_verdict_fail(t->v, "a value made of LOCAL ones is not LOCAL along axis %d, nor split", a);
        return false;
    }
    if (!needed) return true;
    copies piece;
    int sequence[TSH_MAX_AXES];
    tshi_split_order(t->p, layout, sequence);
    for (int r = 0; r < t->ranks; r++) cut(t, layout, c, r, &piece);
    for (int i = t->p->axes - 1; i >= 0; i--) {
        int a = sequence[i];
        if (layout[a].kind == TSH_KIND_SHARD) join_along(t, a, &layout[a], &piece);
    }
    *c = piece;
    return true;
}

/* A column layer gathers the outputs that its ranks have computed. */
static bool join_parts(truth *t, const tshi_step *s, const tsh_layout *layout, copies *c) {
    tsh_layout made[TSH_MAX_AXES];
    memcpy(made, layout, sizeof made);
    bool gathers = s->call == CALL_LINEAR && s->n[LAYER_SHARDING] == TSH_COLUMN && s->n[LAYER_FLAGS] & FLAG_GATHER;
    if (gathers) made[s->n[LAYER_AXIS]] = TSH_SHARD(s->shape.ndim - 1);
    return join(t, made, c);
}

/* Near a corner of its graph a function may have either of two gradients. */
static void look_for_corner(truth *t, const tsh_tensor *x, bool before) {
    if (tsh_tensor_dtype(x) != TSH_FLOAT64) return;
    const double *data = tsh_tensor_data(x);
    for (int64_t i = 0; i < tsh_tensor_local_numel(x); i++) {
        t->corner = t->corner || fabs(data[i]) < 1e-2;
        if (t->p->exact) continue;
        bool near = fabs(data[i]) < 1e-7 && (before || data[i] != 0);
        if (near && t->v->kind == VERDICT_SAME) t->v->kind = VERDICT_UNJUDGED;
    }
}

static bool has_corner(const tshi_step *s) {
    return s->call == CALL_RELU || (s->call == CALL_LINEAR && s->n[LAYER_ACTIVATION] == TSH_ACTIVATION_RELU);
}

/* As above, of other functions. */
static void look_for_corners(truth *t, const tshi_step *s, const tsh_tensor *x) {
    double margin = tshi_function_margin(s, x);
    t->corner = t->corner || margin < 1e-2;
    if (margin < 1e-7 && !t->p->exact && t->v->kind == VERDICT_SAME) t->v->kind = VERDICT_UNJUDGED;
}

/* Tensors among a step's inputs: not the step of a shared layer. */
static int tensors_of(const tshi_step *s) {
    return s->inputs > 1 && tshi_input_is_layer(s, 1) ? 1 : s->inputs;
}

/* All copies draw the same numbers. */
static bool call(truth *t, int k, copies *out) {
    const tshi_step *s = &t->p->step[k];
    uint64_t stream = t->bench.world->next_stream;
    for (int r = 0; r < t->ranks; r++) {
        int q = 0;
        for (; q < r; q++) {
            bool same = true;
            for (int i = 0; i < tensors_of(s); i++) {
                same = same && t->value[s->in[i]].of[q] == t->value[s->in[i]].of[r];
            }
            if (same) break;
        }
        tsh_tensor *in[MAX_IN];
        for (int i = 0; i < s->inputs; i++) in[i] = t->value[s->in[i]].of[r];
        if (q == r) t->bench.world->next_stream = stream;
        out->of[r] = q < r ? out->of[q] : tshi_bench_call(&t->bench, k, in);
        if (!out->of[r]) return failed(t, tshi_verbs[s->call].name);
        bool before = s->call == CALL_RELU;
        if (q == r) look_for_corners(t, s, in[0]);
        if (q == r && has_corner(s)) look_for_corner(t, before ? in[0] : out->of[r], before);
    }
    return true;
}

static bool same_numbers(const tsh_tensor *a, const tsh_tensor *b) {
    size_t bytes = tsh_tensor_local_nbytes(a);
    return bytes == tsh_tensor_local_nbytes(b) &&
           (bytes == 0 || !memcmp(tsh_tensor_data(a), tsh_tensor_data(b), bytes));
}

/* What the ranks saw as one tensor under two numbers is one here, if it has the values of both. */
static bool forward_step(truth *t, int k) {
    const tshi_step *s = &t->p->step[k];
    const tshi_entry *e = tshi_trace_value(t->seen, t->pass, k);
    copies *out = &t->value[k];
    if (s->call == CALL_LEAF || s->call == CALL_IDS) {
        *out = t->leaf[k];
        return true;
    }
    if (tshi_verb_moves(s->call)) {
        move(t, tshi_trace_value(t->seen, t->pass, s->in[0]), e, &t->value[s->in[0]], out);
        if (tsh_tape_status(t->bench.tape) != TSH_OK) return failed(t, "move");
    } else if (!call(t, k, out) || !join_parts(t, s, e->layout, out)) {
        return false;
    }
    for (int r = 0; r < t->ranks && e->alias >= 0; r++) {
        if (!same_numbers(out->of[r], t->value[e->alias].of[r])) {
            tshi_verdict_fail(t->v, "value %d is the tensor of value %d, which has other values", k, e->alias);
            return false;
        }
        out->of[r] = t->value[e->alias].of[r];
    }
    return true;
}

static bool forward(truth *t, bool recording) {
    bool ok = true;
    t->bench.world->next_stream = t->stream;
    for (int k = 0; k < t->p->steps && ok; k++) {
        tsh_tape_set_recording(t->bench.tape, recording && !t->p->step[k].detached);
        ok = forward_step(t, k);
    }
    tsh_tape_set_recording(t->bench.tape, true);
    return ok;
}

static void trace(truth *t, const tshi_entry *what, const copies *c, bool gradient) {
    for (int r = 0; r < t->ranks; r++) {
        tshi_trace_tensor(&t->traces[r], what, gradient ? tsh_tensor_grad(c->of[r]) : c->of[r]);
    }
}

static void trace_values(truth *t) {
    for (int k = 0; k < t->p->steps; k++) {
        trace(t, &(tshi_entry){.kind = ENTRY_VALUE, .index = k, .pass = t->pass, .alias = -1}, &t->value[k], false);
    }
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

static double weight_of(const truth *t, int r) {
    if (t->p->dp_axis < 0 || !t->p->dp_average) return 1;
    return tshi_program_share(t->p, t->p->dp_axis, tshi_rank_index(t->p, r, t->p->dp_axis));
}

/* sum(weight g x) of one copy. */
static tsh_tensor *copy_objective(truth *t, const tshi_objective *o, const tsh_layout *layout, int r) {
    tsh_tensor *x = t->value[o->value].of[r], *g = NULL;
    tsh_tape *tape = t->bench.tape;
    int copy = tshi_rank_number(t->p, layout, TSH_KIND_LOCAL, r);
    if (tsh_tensor_clone(x, &g) != TSH_OK) return NULL;
    for (int64_t i = 0; i < tsh_tensor_local_numel(g); i++) {
        double value = (o->given ? tshi_salted_value(t->p, o->salt, copy, i) : 1) * weight_of(t, r);
        if (t->p->dtype == TSH_FLOAT32) {
            ((float *)tsh_tensor_data(g))[i] = (float)value;
        } else {
            ((double *)tsh_tensor_data(g))[i] = value;
        }
    }
    tsh_tensor *out = tsh_sum(tape, tsh_mul(tape, x, g), TSH_ALL_DIMS);
    tsh_tensor_release(g);
    return out;
}

static tsh_tensor *whole_objective(truth *t, const tshi_objective *o) {
    const tshi_entry *e = tshi_trace_value(t->seen, t->pass, o->value);
    const copies *c = &t->value[o->value];
    tsh_tensor *sum = NULL;
    for (int r = 0; r < t->ranks; r++) {
        if (!is_first(c, r)) continue;
        tsh_tensor *one = copy_objective(t, o, e->layout, r);
        sum = sum ? tsh_add(t->bench.tape, sum, one) : one;
    }
    return sum;
}

static bool is_retained(const truth *t, int k) {
    const tshi_step *s = &t->p->step[k];
    return s->retain && !tshi_verb_moves(s->call) && tshi_trace_value(t->seen, t->pass, k)->alias < 0;
}

/* What this backward adds to a retained gradient. */
static void add_retained(truth *t, int k, int r, const tsh_tensor *gradient) {
    tshi_trace now = {0}, *sums = &t->sums[r];
    if (!gradient) return;
    tshi_entry *e = NULL, *more = tshi_trace_tensor(&now, &(tshi_entry){.index = k}, gradient);
    for (int i = 0; i < sums->count; i++) {
        if (sums->entries[i].index == k) e = &sums->entries[i];
    }
    if (!e) tshi_trace_tensor(sums, &(tshi_entry){.index = k}, gradient);
    for (int64_t i = 0; e && i < e->count; i++) {
        sums->numbers[e->at + (size_t)i] += now.numbers[more->at + (size_t)i];
    }
    tshi_trace_free(&now);
}

static void trace_sum(truth *t, int k, int r, int objective) {
    const tshi_trace *sums = &t->sums[r];
    tshi_entry what = {.kind = ENTRY_RETAINED, .index = k, .pass = t->pass, .objective = objective, .alias = -1};
    for (int i = 0; i < sums->count; i++) {
        if (sums->entries[i].index != k) continue;
        tshi_trace_copy(&t->traces[r], &what, sums, &sums->entries[i]);
        return;
    }
    tshi_trace_tensor(&t->traces[r], &what, NULL);
}

static bool backward(truth *t, int i) {
    const tshi_objective *o = &t->p->objective[i];
    for (int k = 0; k < t->p->steps; k++) {
        for (int r = 0; r < t->ranks && is_retained(t, k); r++) tsh_tensor_retain_grad(t->value[k].of[r]);
    }
    tsh_tensor *sum = whole_objective(t, o);
    if (!sum || tsh_backward(t->bench.tape, sum) != TSH_OK) return failed(t, "backward");
    for (int k = 0; k < t->p->steps; k++) {
        for (int r = 0; r < t->ranks && is_retained(t, k); r++)
            add_retained(t, k, r, tsh_tensor_grad(t->value[k].of[r]));
    }
    if (t->p->dp_axis >= 0 && !o->sync) return true;
    for (int k = 0; k < t->owned_count; k++) {
        if (!tshi_parameter_shows_gradient(t->p, t->parameter[k].of[0])) continue;
        trace(t, &(tshi_entry){.kind = ENTRY_GRADIENT, .index = k, .pass = t->pass, .objective = i, .alias = -1},
              &t->parameter[k], true);
    }
    for (int k = 0; k < t->p->steps; k++) {
        for (int r = 0; r < t->ranks && is_retained(t, k); r++) trace_sum(t, k, r, i);
    }
    return true;
}

/* --- slopes: gradients that do not come from a backward ----------------------------------------------------------- */

/* True when the objective is a smooth function of the parameters alone, and gives them all of their gradient. */
static bool is_smooth(const truth *t) {
    const tshi_program *p = t->p;
    bool smooth = p->dtype == TSH_FLOAT64 && p->objectives > 0 && t->owned_count > 0;
    for (int k = 0; k < p->steps; k++) {
        const tshi_step *s = &p->step[k];
        bool padded =
            (s->call == CALL_LOOKUP && s->n[0] >= 0) || (s->call == CALL_EMBEDDING && s->n[LAYER_FLAGS] & FLAG_PADDING);
        bool bent = s->call == CALL_LINEAR && s->n[LAYER_ACTIVATION] == TSH_ACTIVATION_RELU;
        smooth = smooth && !s->detached && !padded && !bent && !tshi_function_is_rough(s);
    }
    return smooth && p->seed % 4 == 0;
}

/* Which way an element goes. */
static double direction(const truth *t, int k, int r, int64_t i) {
    return (double)(int)(tshi_mix(t->p->seed + 977 * (uint64_t)(k * MAX_RANKS + r) + (uint64_t)i) % 17) / 8 - 1;
}

/* Move every parameter by so much of the direction; the sum of gradient times direction. */
static double go(truth *t, double by) {
    double slope = 0;
    for (int k = 0; k < t->owned_count; k++) {
        for (int r = 0; r < t->ranks; r++) {
            tsh_tensor *x = t->parameter[k].of[r], *g = tsh_tensor_grad(x);
            double *data = tsh_tensor_data(x);
            for (int64_t i = 0; is_first(&t->parameter[k], r) && i < tsh_tensor_local_numel(x); i++) {
                if (g) slope += direction(t, k, r, i) * ((double *)tsh_tensor_data(g))[i];
                data[i] += by * direction(t, k, r, i);
            }
        }
    }
    return slope;
}

static bool value_there(truth *t, double by, double *value) {
    go(t, by);
    bool ok = forward(t, true);
    tsh_tensor *sum = ok ? whole_objective(t, &t->p->objective[0]) : NULL;
    *value = sum ? tsh_tensor_item(sum) : NAN;
    go(t, -by);
    return sum && tsh_tape_reset(t->bench.tape) == TSH_OK;
}

/* The gradients of the first backward are the slope of the objective. Parameters end as they were but for rounding. */
static bool check_slope(truth *t, double slope) {
    double measured = NAN;
    for (double h = 0x1p-13; h >= 0x1p-21; h /= 16) { /* whole numbers come back exactly */
        double high, low;
        if (!value_there(t, h, &high) || !value_there(t, -h, &low)) return failed(t, "slope");
        measured = (high - low) / (2 * h);
        bool smooth = isfinite(measured) && !t->corner;
        if (!smooth || fabs(measured - slope) <= 1e-3 * fmax(1, fabs(slope))) return true;
    }
    tshi_verdict_fail(t->v, "slope of the objective by gradients %.12g, by differences %.12g", slope, measured);
    return false;
}

static bool train(truth *t) {
    double norm = 0;
    t->stream = t->bench.world->next_stream;
    for (int r = 0; r < t->ranks; r++) tshi_trace_clear(&t->sums[r]);
    double slope = 0;
    for (int i = 0; i < t->p->objectives || i == 0; i++) {
        if (!forward(t, true)) return false;
        if (i == 0) trace_values(t);
        if (i < t->p->objectives && !backward(t, i)) return false;
        if (i == 0) slope = go(t, 0);
        tsh_tape_reset(t->bench.tape);
    }
    uint64_t stream = t->bench.world->next_stream;
    if (t->pass == 1 && t->p->rounds == 1 && is_smooth(t) && !check_slope(t, slope)) return false;
    t->bench.world->next_stream = stream;
    if (tshi_bench_step(&t->bench, &norm) != TSH_OK) return failed(t, "step");
    for (int r = 0; r < t->ranks && t->p->clip > 0; r++) {
        tshi_trace_number(&t->traces[r], &(tshi_entry){.kind = ENTRY_NORM, .pass = t->pass, .alias = -1}, norm);
    }
    return true;
}

static void rewrite(truth *t, int k) {
    const tshi_owned *o = &t->owned[k];
    bool local = false, terms = false;
    for (int a = 0; o->part == OWNED_LEAF && a < t->p->axes; a++) {
        local = local || t->p->step[o->step].layout[a].kind == TSH_KIND_LOCAL;
        terms = terms || t->p->step[o->step].layout[a].kind == TSH_KIND_PARTIAL;
    }
    for (int r = 0; r < t->ranks && !(local && terms); r++) {
        tsh_tensor *x = t->parameter[k].of[r];
        int copy = local ? tshi_rank_number(t->p, t->p->step[o->step].layout, TSH_KIND_LOCAL, r) : 0;
        for (int64_t i = 0; i < tsh_tensor_local_numel(x); i++) {
            double value = tshi_rewritten_value(t->p, o, copy, i);
            if (t->p->dtype == TSH_FLOAT32)
                ((float *)tsh_tensor_data(x))[i] = (float)value;
            else
                ((double *)tsh_tensor_data(x))[i] = value;
        }
    }
}

static bool evaluate(truth *t) {
    t->stream = t->bench.world->next_stream;
    bool ok = forward(t, false);
    if (ok) trace_values(t);
    if (ok && t->p->rewrite) {
        t->pass = -1;
        t->stream = t->bench.world->next_stream;
        for (int k = 0; k < t->owned_count; k++) rewrite(t, k);
        ok = forward(t, false);
        if (ok) trace_values(t);
    }
    tsh_tape_reset(t->bench.tape);
    return ok;
}

static bool run_all(truth *t) {
    if (!set_up(t) || (t->p->evaluate && !evaluate(t))) return false;
    for (t->pass = 1; t->pass <= t->p->rounds; t->pass++) {
        if (!train(t)) return false;
    }
    if (t->p->spoil >= 0 && t->p->spoil < t->owned_count) rewrite(t, t->p->spoil);
    for (int k = 0; k < t->owned_count && t->p->spoil < SPOIL_VALUE; k++) {
        trace(t, &(tshi_entry){.kind = ENTRY_PARAMETER, .index = k, .pass = t->pass, .alias = -1}, &t->parameter[k],
              false);
    }
    return true;
}

void tshi_truth_run(const tshi_program *p, tsh_world *world, const tsh_mesh *mesh, const tshi_trace *ranks,
                    tshi_trace *truths, tshi_verdict *v) {
    truth *t = calloc(1, sizeof *t);
    if (!t) abort();
    *t = (truth){.p = p, .ranks = tshi_program_ranks(p), .seen = ranks, .traces = truths, .v = v};
    t->bench = (tshi_bench){.p = p, .world = world, .mesh = mesh, .whole = true};
    for (int r = 0; r < t->ranks; r++) tshi_trace_clear(&truths[r]);
    run_all(t);
    tsh_tape_reset(t->bench.tape);
    tshi_bench_close(&t->bench);
    for (int r = 0; r < t->ranks; r++) tshi_trace_free(&t->sums[r]);
    for (int k = 0; k < p->steps; k++) {
        for (int r = 0; r < t->ranks; r++) {
            if (t->leaf[k].of[r] && is_first(&t->leaf[k], r)) tsh_tensor_release(t->leaf[k].of[r]);
        }
    }
    free(t);
}
