/* Programs: parameters, values, places. */
#include "differential/program.h"
#include "layout/layout.h"
#include "support/values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const tshi_verb_info tshi_verbs[CALL_COUNT] = {
    [CALL_LEAF] = {"leaf", 0, 0},
    [CALL_IDS] = {"ids", 0, 0},
    [CALL_MATMUL] = {"matmul", 2, 2},
    [CALL_AFFINE] = {"affine", 2, 3},
    [CALL_ADD] = {"add", 2, 2},
    [CALL_SUB] = {"sub", 2, 2},
    [CALL_MUL] = {"mul", 2, 2},
    [CALL_SCALE] = {"scale", 1, 1},
    [CALL_BIAS] = {"bias", 2, 2},
    [CALL_GELU] = {"gelu", 1, 1},
    [CALL_GELU_TANH] = {"gelu_tanh", 1, 1},
    [CALL_RELU] = {"relu", 1, 1},
    [CALL_SILU] = {"silu", 1, 1},
    [CALL_DROPOUT] = {"dropout", 1, 1},
    [CALL_RESHAPE] = {"reshape", 1, 1},
    [CALL_SLICE] = {"slice", 1, 1},
    [CALL_CONCAT] = {"concat", 1, MAX_IN},
    [CALL_SUM] = {"sum", 1, 1},
    [CALL_MEAN] = {"mean", 1, 1},
    [CALL_SOFTMAX] = {"softmax", 1, 1},
    [CALL_LOG_SOFTMAX] = {"log_softmax", 1, 1},
    [CALL_LOOKUP] = {"lookup", 2, 2},
    [CALL_LAYER_NORM] = {"layer_norm", 1, 3},
    [CALL_RMS_NORM] = {"rms_norm", 1, 2},
    [CALL_ATTENTION] = {"attention", 3, 5},
    [CALL_ROTARY] = {"rotary", 2, 2},
    [CALL_REDISTRIBUTE] = {"redistribute", 1, 1},
    [CALL_MOVE_ALL] = {"redistribute_all", 1, 1},
    [CALL_SCATTER] = {"scatter", 1, 1},
    [CALL_GATHER] = {"gather", 1, 1},
    [CALL_REDUCE] = {"reduce", 1, 1},
    [CALL_COPY] = {"copy", 1, 1},
    [CALL_PREPARE] = {"prepare", 1, 1},
    [CALL_LINEAR] = {"linear", 1, 2},
    [CALL_EMBEDDING] = {"embedding", 1, 2},
    [CALL_PROJECT] = {"project", 2, 2},
    [CALL_NORM] = {"norm", 1, 1},
    [CALL_MLP] = {"mlp", 1, 1},
    [CALL_SELF_ATTENTION] = {"self_attention", 1, 3},
    [CALL_BLOCK] = {"block", 1, 3},
    [CALL_CROSS_ENTROPY] = {"cross_entropy", 2, 3},
    [CALL_DIV] = {"div", 2, 2},
    [CALL_EXP] = {"exp", 1, 1},
    [CALL_LOG] = {"log", 1, 1},
    [CALL_TANH] = {"tanh", 1, 1},
    [CALL_SQRT] = {"sqrt", 1, 1},
    [CALL_SIGMOID] = {"sigmoid", 1, 1},
    [CALL_POW] = {"pow", 1, 1},
    [CALL_CLAMP] = {"clamp", 1, 1},
    [CALL_MASKED_FILL] = {"masked_fill", 2, 2},
    [CALL_CAST] = {"cast", 1, 1},
    [CALL_PERMUTE] = {"permute", 1, 1},
    [CALL_TRANSPOSE] = {"transpose", 1, 1},
    [CALL_SPLIT_PARTS] = {"split_parts", 1, 1},
    [CALL_TOPK] = {"topk", 1, 1},
    [CALL_ARGMAX] = {"argmax", 1, 1},
    [CALL_CUMSUM] = {"cumsum", 1, 1},
    [CALL_MSE_LOSS] = {"mse_loss", 2, 2},
    [CALL_BCE_LOSS] = {"bce_loss", 2, 3},
    [CALL_ABS] = {"abs", 1, 1},
    [CALL_SCALE_SHIFT] = {"scale_shift", 1, 1},
    [CALL_MAXIMUM] = {"maximum", 2, 2},
    [CALL_MINIMUM] = {"minimum", 2, 2},
    [CALL_WHERE] = {"where", 2, 2},
    [CALL_MAX] = {"max", 1, 1},
    [CALL_MIN] = {"min", 1, 1},
    [CALL_L1_LOSS] = {"l1_loss", 2, 2},
    [CALL_SMOOTH_L1_LOSS] = {"smooth_l1_loss", 2, 2},
    [CALL_INDEX_SELECT] = {"index_select", 2, 2},
    [CALL_TAKE_ALONG] = {"take_along", 2, 2},
    [CALL_INDEX_ADD] = {"index_add", 3, 3},
    [CALL_ADD_ALONG] = {"add_along", 3, 3},
    [CALL_ONE_HOT] = {"one_hot", 1, 1},
    [CALL_SWIGLU] = {"swiglu", 2, 2},
};

tshi_parts tshi_program_parts(const tshi_program *p, int axis) {
    return (tshi_parts){.count = p->size[axis], .weights = tshi_axis_has_weights(p, axis) ? p->weight[axis] : NULL};
}

static int64_t weight_of(tshi_parts parts, int index) {
    return parts.weights ? parts.weights[index] : 1;
}

static int64_t sum_of(tshi_parts parts) {
    int64_t sum = 0;
    for (int i = 0; i < parts.count; i++) sum += weight_of(parts, i);
    return sum;
}

double tshi_program_share(const tshi_program *p, int axis, int index) {
    tshi_parts parts = tshi_program_parts(p, axis);
    return (double)weight_of(parts, index) / (double)sum_of(parts);
}

bool tshi_axis_has_weights(const tshi_program *p, int axis) {
    int64_t most = 0;
    for (int i = 0; i < p->size[axis]; i++) most = p->weight[axis][i] > most ? p->weight[axis][i] : most;
    return most > 0 && p->size[axis] > 1;
}

int tshi_program_ranks(const tshi_program *p) {
    int ranks = 1;
    for (int a = 0; a < p->axes; a++) ranks *= p->size[a];
    return ranks;
}

void tshi_program_order(const tshi_program *p, int ranks[MAX_RANKS]) {
    uint64_t random = (uint64_t)p->order;
    int n = tshi_program_ranks(p);
    for (int i = 0; i < n; i++) ranks[i] = i;
    for (int i = n - 1; i > 0 && p->order; i--) {
        int j = tshi_random_below(&random, i + 1), rank = ranks[i];
        ranks[i] = ranks[j];
        ranks[j] = rank;
    }
}

bool tshi_verb_moves(tshi_verb call) {
    return call >= CALL_REDISTRIBUTE && call <= CALL_PREPARE;
}

bool tshi_verb_has_layer(tshi_verb call) {
    return call >= CALL_LINEAR && call <= CALL_BLOCK;
}

bool tshi_input_is_layer(const tshi_step *s, int i) {
    return i == 1 && (s->call == CALL_LINEAR || s->call == CALL_EMBEDDING || s->call == CALL_PROJECT);
}

int64_t tshi_dims_numel(const tshi_dims *d) {
    int64_t n = 1;
    for (int i = 0; i < d->ndim; i++) n *= d->dim[i];
    return n;
}

/* --- parameters --------------------------------------------------------------------------------------------------- */

int tshi_transformer_parameters(const tshi_step *s) {
    int64_t flags = s->n[LAYER_FLAGS];
    bool bias = flags & FLAG_BIAS, rms = flags & FLAG_RMS;
    int norm = 1 + (bias && !rms), mlp = (flags & FLAG_GATED ? 3 : 2) * (1 + bias), attention = 4 * (1 + bias);
    switch (s->call) {
    case CALL_NORM: return flags & FLAG_WEIGHT ? norm : 0;
    case CALL_MLP: return mlp;
    case CALL_SELF_ATTENTION: return attention;
    case CALL_BLOCK: return 2 * norm + attention + mlp;
    default: return 0;
    }
}

int tshi_program_parameters(const tshi_program *p, tshi_owned out[MAX_PARAMETERS]) {
    int count = 0;
    for (int k = 0; k < p->steps; k++) {
        const tshi_step *s = &p->step[k];
        bool layer = (s->call == CALL_LINEAR || s->call == CALL_EMBEDDING) && s->inputs == 1;
        if (s->call == CALL_LEAF && s->grad) out[count++] = (tshi_owned){k, OWNED_LEAF, 0};
        if (layer) out[count++] = (tshi_owned){k, OWNED_WEIGHT, 0};
        if (layer && s->call == CALL_LINEAR && s->n[LAYER_FLAGS] & FLAG_BIAS) {
            out[count++] = (tshi_owned){k, OWNED_BIAS, 0};
        }
        for (int i = 0; i < tshi_transformer_parameters(s); i++) out[count++] = (tshi_owned){k, OWNED_NTH, i};
    }
    return count;
}

bool tshi_parameter_shows_gradient(const tshi_program *p, const tsh_tensor *parameter) {
    return !p->fused || tsh_tensor_ndim(parameter) != 2;
}

bool tshi_parameter_steps(const tshi_program *p, const tshi_owned *o) {
    const tshi_step *s = &p->step[o->step];
    for (int a = 0; o->part == OWNED_LEAF && a < p->axes; a++) {
        if (s->layout[a].kind == TSH_KIND_PARTIAL) return false;
    }
    return true;
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static uint64_t bits_of(const tshi_program *p, uint64_t salt, int copy, int64_t i) {
    return tshi_mix(tshi_mix(tshi_mix(p->seed ^ salt) + (uint64_t)copy) + (uint64_t)i);
}

double tshi_salted_value(const tshi_program *p, uint64_t salt, int copy, int64_t i) {
    uint64_t bits = bits_of(p, salt, copy, i);
    if (p->exact) return (double)(int)(bits % 17) - 8;
    return ((double)(int)(bits % 4001) - 2000) / 1024;
}

bool tshi_rewritten_alike(const tshi_program *p, const tshi_owned *o) {
    return p->seed % 5 >= 3 && tshi_parameter_steps(p, o);
}

double tshi_rewritten_value(const tshi_program *p, const tshi_owned *o, int copy, int64_t i) {
    if (tshi_rewritten_alike(p, o)) copy = 0, i = 0;
    return tshi_salted_value(p, p->step[o->step].salt + 31 + 16 * (uint64_t)o->part + 64 * (uint64_t)o->nth, copy, i);
}

static double id_value(const tshi_program *p, const tshi_step *s, int copy, int64_t i) {
    uint64_t bits = bits_of(p, s->salt, copy, i);
    /* The first of the targets counts, so that a mean is over something. */
    bool ignored = s->n[IDS_FLAGS] & FLAG_TARGET && i > 0 && bits % 4 == 0;
    int64_t limit = s->n[IDS_LIMIT] > 0 ? s->n[IDS_LIMIT] : 1;
    return (double)(ignored ? s->n[IDS_IGNORE] : (int64_t)(bits / 4 % (uint64_t)limit));
}

double tshi_leaf_value(const tshi_program *p, const tshi_step *s, int copy, int64_t i) {
    if (s->call == CALL_IDS) return id_value(p, s, copy, i);
    double value = tshi_salted_value(p, s->salt, copy, i);
    return s->n[LEAF_FLAGS] & FLAG_POSITIVE ? fabs(value) + 0.125 : value;
}

double tshi_leaf_term(const tshi_program *p, const tshi_step *s, int copy, int place, int64_t i) {
    return (double)(int)(bits_of(p, s->salt + 1, copy * MAX_RANKS + place, i) % 17) - 8;
}

int tshi_leaf_flags(const tshi_step *s) {
    return (int)s->n[s->call == CALL_IDS ? IDS_FLAGS : LEAF_FLAGS];
}

tshi_dims tshi_leaf_dims(const tshi_program *p, const tshi_step *s, int rank) {
    tshi_dims dims = s->shape;
    if (tshi_leaf_flags(s) & FLAG_RAGGED) dims.dim[0] += tshi_rank_index(p, rank, p->ragged);
    return dims;
}

/* --- places ------------------------------------------------------------------------------------------------------- */

int tshi_rank_index(const tshi_program *p, int rank, int axis) {
    for (int a = p->axes - 1; a > axis; a--) rank /= p->size[a];
    return rank % p->size[axis];
}

int tshi_rank_number(const tshi_program *p, const tsh_layout *layout, tsh_layout_kind kind, int rank) {
    int number = 0;
    for (int a = 0; a < p->axes; a++) {
        if (layout[a].kind == kind) number = number * p->size[a] + tshi_rank_index(p, rank, a);
    }
    return number;
}

int tshi_rank_count(const tshi_program *p, const tsh_layout *layout, tsh_layout_kind kind) {
    int count = 1;
    for (int a = 0; a < p->axes; a++) {
        if (layout[a].kind == kind) count *= p->size[a];
    }
    return count;
}

void tshi_split_order(const tshi_program *p, const tsh_layout *layout, int sequence[TSH_MAX_AXES]) {
    for (int a = 0; a < p->axes; a++) {
        int at = a;
        for (; at > 0 && layout[sequence[at - 1]].order > layout[a].order; at--) sequence[at] = sequence[at - 1];
        sequence[at] = a;
    }
}

const tshi_program_cuts *tshi_layout_cuts(const tshi_program *p, tsh_layout layout) {
    for (int i = 0; layout.kind == TSH_KIND_SHARD && i < p->cuts; i++) {
        if (layout.cuts && p->cut[i].number == layout.cuts) return &p->cut[i];
    }
    return NULL;
}

bool tshi_layouts_fit(const tshi_program *p, const tsh_layout *layout, const tshi_dims *whole) {
    tsh_mesh mesh = {.axes = p->axes, .member = -1};
    tsh_shape shape = {.ndim = whole->ndim};
    tsh_layout resolved[TSH_MAX_AXES];
    tshi_cut_table cuts = {0};
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    for (int i = 0; i < p->cuts; i++) {
        uint64_t number;
        if (tshi_cuts_add(&cuts, &allocator, p->cut[i].parts, p->cut[i].at, &number) != TSH_OK) abort();
    }
    for (int a = 0; a < p->axes; a++) {
        mesh.axis[a].size = p->size[a];
        mesh.axis[a].weights = tshi_program_parts(p, a).weights;
        mesh.axis[a].cuts = &cuts;
    }
    memcpy(shape.global, whole->dim, sizeof shape.global);
    memcpy(resolved, layout, sizeof resolved);
    bool fit = tshi_shape_resolve(&mesh, &shape, resolved) == TSH_OK;
    tshi_cuts_clear(&cuts, &allocator);
    return fit;
}

bool tshi_layouts_have_units(const tshi_program *p, const tsh_layout *layout) {
    for (int a = 0; a < p->axes; a++) {
        if (layout[a].units || layout[a].sharing || layout[a].cuts) return true;
    }
    return false;
}

/* n by weight: what is left goes one each to those with the largest remainders, of equal ones to the first. */
static void split_plainly(int64_t n, tshi_parts parts, int index, int64_t *start, int64_t *length) {
    int64_t sum = sum_of(parts), left = n, held[MAX_RANKS], remainder[MAX_RANKS];
    for (int i = 0; i < parts.count; i++) {
        held[i] = n * weight_of(parts, i) / sum;
        remainder[i] = n * weight_of(parts, i) % sum;
        left -= held[i];
    }
    for (; left > 0; left--) {
        int most = 0;
        for (int i = 1; i < parts.count; i++) most = remainder[i] > remainder[most] ? i : most;
        held[most]++;
        remainder[most] = -1;
    }
    *start = 0;
    *length = held[index];
    for (int i = 0; i < index; i++) *start += held[i];
}

static int holders_from(tshi_parts parts, int first) {
    int count = 0;
    for (int i = first; i < parts.count; i++) count += weight_of(parts, i) > 0;
    return count;
}

/* The unit that a rank shares: parts and index become those among the ranks that share it. Each unit in turn takes
 * ranks until it has its part of the weights that are left, and leaves one for each unit after it. */
static int64_t shared_unit(int64_t units, tshi_parts *parts, int *index) {
    int64_t left = sum_of(*parts);
    int first = 0, end = 0;
    for (int64_t unit = 0;; unit++, first = end) {
        int64_t taken = 0;
        while (!taken || (taken * (units - unit) < left && holders_from(*parts, end) >= units - unit))
            taken += weight_of(*parts, end++);
        left -= taken;
        if (*index >= end) continue;
        parts->weights = parts->weights ? parts->weights + first : NULL;
        parts->count = end - first;
        *index -= first;
        return unit;
    }
}

tshi_held tshi_held_of(const tshi_program *p, const tsh_layout *layout, int rank, const tshi_dims *whole) {
    tshi_held box = {.start = {.ndim = whole->ndim}, .shape = *whole};
    int sequence[TSH_MAX_AXES];
    tshi_split_order(p, layout, sequence);
    for (int i = 0; i < p->axes; i++) {
        int a = sequence[i];
        if (layout[a].kind != TSH_KIND_SHARD || p->size[a] == 1) continue;
        int64_t start, *length = &box.shape.dim[layout[a].dim], n = whole->dim[layout[a].dim];
        const tshi_program_cuts *cuts = tshi_layout_cuts(p, layout[a]);
        if (cuts && cuts->parts == p->size[a]) { /* the axis splits first */
            int part = tshi_rank_index(p, rank, a);
            box.start.dim[layout[a].dim] = cuts->at[part];
            *length = cuts->at[part + 1] - cuts->at[part];
            continue;
        }
        int64_t unit = layout[a].units ? n / layout[a].units : 1, item = unit;
        int index = tshi_rank_index(p, rank, a);
        tshi_parts parts = tshi_program_parts(p, a);
        bool shares = layout[a].blocks || layout[a].sharing;
        shares = shares && weight_of(parts, index) > 0;
        if (shares && unit && *length > 0 && *length / unit < holders_from(parts, 0)) {
            box.start.dim[layout[a].dim] += unit * shared_unit(*length / unit, &parts, &index);
            *length = unit;
            if (layout[a].sharing == TSH_SHARED_NEXT) { /* and its part of the next dim */
                int next = layout[a].dim + 1;
                split_plainly(box.shape.dim[next], parts, index, &start, &box.shape.dim[next]);
                box.start.dim[next] += start;
            }
            if (layout[a].sharing) continue; /* all of it */
            item = n / layout[a].blocks;
        }
        split_plainly(item ? *length / item : 0, parts, index, &start, length);
        box.start.dim[layout[a].dim] += start * item;
        *length *= item;
    }
    return box;
}

int64_t tshi_held_index(const tshi_held *box, const tshi_dims *whole, int64_t i) {
    int64_t index = 0, stride = 1;
    for (int d = whole->ndim - 1; d >= 0; d--) {
        index += (box->start.dim[d] + i % box->shape.dim[d]) * stride;
        i /= box->shape.dim[d];
        stride *= whole->dim[d];
    }
    return index;
}
