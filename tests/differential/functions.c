#include "differential/functions.h"

#include <math.h>
#include <string.h>

const double tshi_clamps[CLAMPS][2] = {{-4, 1},        {-1.5, 5.5},   {0, INFINITY}, {-INFINITY, 3},  {-2, 2},
                                       {-0.71, 0.933}, {-1.37, 0.31}, {0.213, 1.17}, {0.25, INFINITY}};

static const tshi_step *input(const tshi_program *p, const tshi_step *s, int i) {
    return &p->step[s->in[i]];
}

static bool same_dims(const tshi_dims *a, const tshi_dims *b) {
    return a->ndim == b->ndim && !memcmp(a->dim, b->dim, sizeof *a->dim * (size_t)a->ndim);
}

void tshi_permute_order(const tshi_step *s, int ndim, int order[TSH_MAX_DIMS]) {
    uint64_t random = (uint64_t)s->n[0];
    for (int d = 0; d < ndim; d++) {
        int at = tshi_random_below(&random, d + 1);
        order[d] = order[at];
        order[at] = d;
    }
}

/* Of a size along a dim, in as many parts as a step makes. */
static void part_sizes(const tshi_step *s, int64_t n, int64_t *sizes) {
    int count = (int)s->n[1];
    int64_t start, left = n;
    for (int i = 0; i < count; i++) {
        int64_t wanted = i == count - 1 ? left : (int64_t)(s->salt >> (2 * i) & 3);
        sizes[i] = wanted < left ? wanted : left;
        left -= sizes[i];
        if (!s->n[3]) tsh_split(n, count, i, &start, &sizes[i]);
    }
}

/* --- shapes and bounds -------------------------------------------------------------------------------------------- */

static bool infer_pow(tshi_step *s, double least) {
    bool whole = s->f >= 0 && s->f == floor(s->f);
    s->bound = fmax(1, pow(s->bound, s->f));
    if (!whole) s->bound = fmax(s->bound, pow(least, s->f));
    return whole || least >= least_divisor;
}

static bool infer_clamp(const tshi_program *p, tshi_step *s) {
    int64_t at = s->n[0];
    if (at < 0 || at >= (p->exact ? EXACT_CLAMPS : CLAMPS)) return false;
    for (int i = 0; i < 2; i++) {
        if (isfinite(tshi_clamps[at][i])) s->bound = fmax(s->bound, fabs(tshi_clamps[at][i]));
    }
    if (p->exact && s->bits == 0) s->bits = 1;
    s->least = fmax(s->least, tshi_clamps[at][0]);
    return true;
}

/* A mask has the shape of x, or sizes of 1 in it, or fewer dims; where ranks have sizes of their own, the shape of x:
 * whether it is repeated would differ from rank to rank. */
static bool infer_mask(const tshi_program *p, tshi_step *s) {
    const tshi_dims *m = &input(p, s, 1)->shape;
    if (p->ragged >= 0 && !same_dims(m, &s->shape)) return false;
    int first = s->shape.ndim - m->ndim;
    for (int d = 0; d < m->ndim; d++) {
        if (first < 0 || (m->dim[d] != 1 && m->dim[d] != s->shape.dim[first + d])) return false;
    }
    s->bound = fmax(s->bound, fabs(s->f));
    s->least = fmin(s->least, s->f);
    return true;
}

/* Rounding in a cast, which differs from number to number, is none of whole numbers. */
static bool infer_cast(const tshi_program *p, tshi_step *s) {
    bool from_integer = s->integer;
    s->integer = !from_integer && s->n[0];
    if (from_integer || s->integer) s->bits = 0;
    s->least = 0;
    return from_integer || p->exact;
}

static bool infer_part(tshi_step *s) {
    int d = (int)s->n[0], part = (int)s->n[2];
    int64_t sizes[MAX_PARTS];
    if (d >= s->shape.ndim || s->n[1] < 1 || s->n[1] > MAX_PARTS || part >= s->n[1]) return false;
    part_sizes(s, s->shape.dim[d], sizes);
    if (part >= 0) s->shape.dim[d] = sizes[part];
    return true;
}

static bool infer_largest(tshi_step *s) {
    int d = (int)s->n[0], ndim = s->shape.ndim;
    if (d >= ndim) return false;
    int64_t size = s->shape.dim[d];
    if (s->n[1] < 1 || s->n[1] > size) return false;
    s->integer = tshi_function_is_constant(s);
    s->least = 0;
    if (s->integer) s->bound = (double)size;
    if (s->integer) s->bits = 0;
    s->shape.dim[d] = s->n[1];
    if (s->call == CALL_TOPK) return true;
    memmove(&s->shape.dim[d], &s->shape.dim[d + 1], sizeof *s->shape.dim * (size_t)(ndim - d - 1));
    s->shape.ndim--;
    return true;
}

static bool infer_loss(const tshi_program *p, tshi_step *s) {
    const tshi_step *x = input(p, s, 0), *target = input(p, s, 1);
    int64_t n = tshi_dims_numel(&x->shape);
    int exponent = 0;
    if (!same_dims(&x->shape, &target->shape)) return false;
    bool mean = s->n[0] == TSH_REDUCTION_MEAN, exact_mean = frexp((double)n, &exponent) == 0.5;
    if (mean && (n == 0 || (p->exact && !exact_mean))) return false;
    double sum = x->bound + target->bound;
    s->bound = s->call == CALL_MSE_LOSS ? sum * sum : s->call == CALL_BCE_LOSS ? 3 * (x->bound + 1) : sum;
    s->bits = 2 * (x->bits > target->bits ? x->bits : target->bits) + (mean ? exponent - 1 : 0);
    if (s->call == CALL_SMOOTH_L1_LOSS) s->bits += 2;
    s->least = 0;
    if (s->n[0] != TSH_REDUCTION_NONE) s->shape = (tshi_dims){0};
    if (s->n[0] == TSH_REDUCTION_SUM) s->bound *= fmax(1, (double)n);
    if (s->call != CALL_BCE_LOSS) return s->call == CALL_MSE_LOSS || p->exact;
    if (target->least <= 0 || target->bound > 1) return false;
    if (s->inputs == 2) return true;
    const tshi_step *weight = input(p, s, 2);
    return weight->call == CALL_LEAF && weight->shape.ndim == 1 && x->shape.ndim > 0 &&
           weight->shape.dim[0] == x->shape.dim[x->shape.ndim - 1];
}

/* Of two that are compared; rounding chooses among numbers that are nearly equal. */
static bool infer_chosen(const tshi_program *p, tshi_step *s) {
    const tshi_step *x = input(p, s, 0), *y = input(p, s, 1);
    s->bound = fmax(x->bound, y->bound);
    s->bits = x->bits > y->bits ? x->bits : y->bits;
    return p->exact && tshi_repeated_dims(&x->shape, &y->shape, &s->shape);
}

static bool is_along(tshi_verb call) {
    return call == CALL_TAKE_ALONG || call == CALL_ADD_ALONG;
}

static bool infer_index(const tshi_program *p, tshi_step *s) {
    const tshi_step *ids = input(p, s, 1), *y = s->inputs == 3 ? input(p, s, 2) : NULL;
    tshi_dims taken = s->shape;
    int64_t d = s->n[0];
    bool along = is_along(s->call);
    if (d >= taken.ndim || ids->shape.ndim != (along ? taken.ndim : 1)) return false;
    if (tshi_dims_numel(&ids->shape) > 0 && ids->bound > (double)taken.dim[d]) return false;
    taken.dim[d] = ids->shape.dim[along ? d : 0];
    if (along && !same_dims(&taken, &ids->shape)) return false;
    if (!y) s->shape = taken;
    if (!y) return true;
    s->bound += (double)taken.dim[d] * y->bound;
    s->bits = s->bits > y->bits ? s->bits : y->bits;
    return same_dims(&taken, &y->shape);
}

static bool infer_one_hot(const tshi_program *p, tshi_step *s) {
    double limit = s->bound;
    s->integer = false;
    s->bound = 1;
    s->bits = 0;
    s->shape.dim[s->shape.ndim++] = s->n[0];
    return tshi_dims_numel(&input(p, s, 0)->shape) == 0 || limit <= (double)s->n[0];
}

static bool infer_permute(tshi_step *s) {
    int order[TSH_MAX_DIMS];
    const tshi_dims x = s->shape;
    tshi_permute_order(s, x.ndim, order);
    for (int d = 0; d < x.ndim; d++) s->shape.dim[d] = x.dim[order[d]];
    return true;
}

static bool infer_transpose(tshi_step *s) {
    int a = (int)s->n[0], b = (int)s->n[1];
    if (a >= s->shape.ndim || b >= s->shape.ndim) return false;
    int64_t size = s->shape.dim[a];
    s->shape.dim[a] = s->shape.dim[b];
    s->shape.dim[b] = size;
    return true;
}

bool tshi_function_infer(const tshi_program *p, tshi_step *s) {
    double bound = s->bound, least = input(p, s, 0)->least;
    bool same = s->call >= CALL_PERMUTE && s->call <= CALL_ARGMAX;
    s->least = s->call == CALL_CLAMP || s->call == CALL_MASKED_FILL || same ? least : 0;
    switch (s->call) {
    case CALL_DIV:
        s->bound /= input(p, s, 1)->least;
        return input(p, s, 1)->least >= least_divisor &&
               tshi_repeated_dims(&input(p, s, 0)->shape, &input(p, s, 1)->shape, &s->shape);
    case CALL_EXP:
        s->bound = exp(bound);
        s->least = exp(-bound);
        return true;
    case CALL_LOG: s->bound = fmax(fabs(log(least)), fabs(log(bound))); return least >= least_divisor;
    case CALL_TANH: s->bound = 1; return true;
    case CALL_SQRT: s->bound = fmax(1, sqrt(bound)); return least >= least_divisor;
    case CALL_SIGMOID:
        s->bound = 1;
        s->least = 1 / (1 + exp(bound));
        return true;
    case CALL_POW: return infer_pow(s, least);
    case CALL_CLAMP: return infer_clamp(p, s);
    case CALL_MASKED_FILL: return infer_mask(p, s);
    case CALL_CAST: return infer_cast(p, s);
    case CALL_PERMUTE: return infer_permute(s);
    case CALL_TRANSPOSE: return infer_transpose(s);
    case CALL_SPLIT_PARTS: return infer_part(s);
    case CALL_TOPK:
    case CALL_ARGMAX: return infer_largest(s);
    case CALL_CUMSUM:
        if (s->n[0] >= s->shape.ndim) return false;
        s->bound *= fmax(1, (double)s->shape.dim[s->n[0]]);
        return true;
    case CALL_MAX:
    case CALL_MIN: return p->exact && infer_largest(s);
    case CALL_INDEX_SELECT:
    case CALL_TAKE_ALONG:
    case CALL_INDEX_ADD:
    case CALL_ADD_ALONG: return infer_index(p, s);
    case CALL_ONE_HOT: return infer_one_hot(p, s);
    case CALL_ABS: return p->exact;
    case CALL_SWIGLU:
        s->bound *= input(p, s, 1)->bound;
        return same_dims(&input(p, s, 0)->shape, &input(p, s, 1)->shape);
    case CALL_SCALE_SHIFT: s->bound = s->bound * fabs(s->f) + fabs((double)s->n[0]); return true;
    case CALL_MAXIMUM:
    case CALL_MINIMUM:
    case CALL_WHERE: return infer_chosen(p, s);
    case CALL_MSE_LOSS:
    case CALL_L1_LOSS:
    case CALL_SMOOTH_L1_LOSS:
    case CALL_BCE_LOSS: return infer_loss(p, s);
    default: return true;
    }
}

bool tshi_function_is_constant(const tshi_step *s) {
    return s->call == CALL_ARGMAX || (s->call == CALL_TOPK && s->n[2]) || (s->call == CALL_CAST && s->n[0]);
}

bool tshi_function_is_rough(const tshi_step *s) {
    return s->call == CALL_CAST ||
           (s->call >= CALL_ABS && s->call <= CALL_SMOOTH_L1_LOSS && s->call != CALL_SCALE_SHIFT);
}

/* --- corners ------------------------------------------------------------------------------------------------------ */

/* The smallest difference between one of the k largest elements of a line and another element. */
static double line_margin(const double *x, int64_t n, int64_t stride, int64_t k) {
    double margin = INFINITY;
    for (int64_t i = 0; i < n; i++) {
        int64_t larger = 0;
        double nearest = INFINITY;
        for (int64_t j = 0; j < n; j++) {
            larger += x[j * stride] > x[i * stride];
            if (j != i) nearest = fmin(nearest, fabs(x[j * stride] - x[i * stride]));
        }
        if (larger < k) margin = fmin(margin, nearest);
    }
    return margin;
}

double tshi_function_margin(const tshi_step *s, const tsh_tensor *x) {
    double margin = INFINITY;
    if (tsh_tensor_dtype(x) != TSH_FLOAT64) return margin;
    const double *data = tsh_tensor_data(x);
    int64_t count = tsh_tensor_local_numel(x), inner = 1;
    for (int64_t i = 0; s->call == CALL_CLAMP && i < count; i++) {
        const double *limits = tshi_clamps[s->n[0]];
        margin = fmin(margin, fmin(fabs(data[i] - limits[0]), fabs(data[i] - limits[1])));
    }
    if (s->call != CALL_TOPK && s->call != CALL_ARGMAX) return margin;
    for (int d = (int)s->n[0] + 1; d < tsh_tensor_ndim(x); d++) inner *= tsh_tensor_local_shape(x)[d];
    int64_t n = tsh_tensor_local_shape(x)[s->n[0]];
    for (int64_t i = 0; n > 0 && i < count / n; i++) {
        margin = fmin(margin, line_margin(data + i / inner * inner * n + i % inner, n, inner, s->n[1]));
    }
    return margin;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

/* There and back through the other float dtype; to integers; from integers. */
static tsh_tensor *cast(const tshi_bench *b, const tshi_step *s, tsh_tensor *x) {
    tsh_dtype own = tshi_bench_dtype(b, false), other = own == TSH_FLOAT64 ? TSH_FLOAT32 : TSH_FLOAT64;
    if (tsh_tensor_dtype(x) == TSH_INT64) return tsh_cast(b->tape, x, own);
    return s->n[0] ? tsh_cast(b->tape, x, TSH_INT64) : tsh_cast(b->tape, tsh_cast(b->tape, x, other), own);
}

/* A loss of 16 bits is float32. */
static tsh_tensor *as_others(const tshi_bench *b, tsh_tensor *loss) {
    return b->p->policy && !b->whole ? tsh_cast(b->tape, loss, tshi_bench_dtype(b, false)) : loss;
}

static tsh_tensor *permute(const tshi_bench *b, const tshi_step *s, tsh_tensor *x) {
    int order[TSH_MAX_DIMS] = {0}, ndim = tsh_tensor_ndim(x);
    tshi_permute_order(s, ndim, order);
    for (int d = 0; d < ndim; d++) order[d] -= s->salt % 3 == 0 ? ndim : 0;
    return tsh_permute(b->tape, x, order);
}

/* One part, or all of them in reverse. */
static tsh_tensor *parts(const tshi_bench *b, const tshi_step *s, tsh_tensor *x) {
    int64_t sizes[MAX_PARTS];
    tsh_tensor *part[MAX_PARTS], *reversed[MAX_PARTS];
    int dim = (int)s->n[0], count = (int)s->n[1];
    part_sizes(s, tsh_tensor_shape(x)[dim], sizes);
    if (tsh_split_parts(b->tape, x, dim, count, s->n[3] ? sizes : NULL, part) != TSH_OK) return NULL;
    if (s->n[2] >= 0) return part[s->n[2]];
    for (int i = 0; i < count; i++) reversed[i] = part[count - 1 - i];
    return tsh_concat(b->tape, reversed, count, dim);
}

static tsh_tensor *topk(const tshi_bench *b, const tshi_step *s, tsh_tensor *x, int dim) {
    tsh_tensor *indices = NULL;
    bool wanted = s->n[2] || s->salt % 2;
    tsh_tensor *y = tsh_topk(b->tape, x, s->n[1], dim, wanted ? &indices : NULL);
    return y && s->n[2] ? indices : y;
}

static tsh_tensor *where(const tshi_bench *b, const tshi_step *s, tsh_tensor *x, tsh_tensor *y) {
    tsh_comparison comparison = (tsh_comparison)(s->salt / 2 % 6);
    if (s->salt % 2) return tsh_where(b->tape, tsh_compare(b->tape, x, comparison, y), x, y);
    return tsh_where(b->tape, tsh_compare_scalar(b->tape, x, comparison, 1), y, x);
}

tsh_tensor *tshi_function_call(const tshi_bench *b, int k, tsh_tensor *const *in) {
    const tshi_step *s = &b->p->step[k];
    tsh_tape *tape = b->tape;
    tsh_tensor *indices = NULL;
    int back = s->salt % 3 == 0 ? tsh_tensor_ndim(in[0]) : 0, dim = (int)s->n[0] - back;
    tsh_reduction reduction = (tsh_reduction)s->n[0];
    switch (s->call) {
    case CALL_DIV: return tsh_div(tape, in[0], in[1]);
    case CALL_EXP: return tsh_exp(tape, in[0]);
    case CALL_LOG: return tsh_log(tape, in[0]);
    case CALL_TANH: return tsh_tanh(tape, in[0]);
    case CALL_SQRT: return tsh_sqrt(tape, in[0]);
    case CALL_SIGMOID: return tsh_sigmoid(tape, in[0]);
    case CALL_POW: return tsh_pow(tape, in[0], s->f);
    case CALL_CLAMP: return tsh_clamp(tape, in[0], tshi_clamps[s->n[0]][0], tshi_clamps[s->n[0]][1]);
    case CALL_MASKED_FILL: return tsh_masked_fill(tape, in[0], tsh_cast(tape, in[1], TSH_UINT8), s->f);
    case CALL_CAST: return cast(b, s, in[0]);
    case CALL_PERMUTE: return permute(b, s, in[0]);
    case CALL_TRANSPOSE: return tsh_transpose(tape, in[0], dim, (int)s->n[1]);
    case CALL_SPLIT_PARTS: return parts(b, s, in[0]);
    case CALL_TOPK: return topk(b, s, in[0], dim);
    case CALL_ARGMAX: return tsh_argmax(tape, in[0], dim);
    case CALL_CUMSUM: return tsh_cumsum(tape, in[0], dim);
    case CALL_INDEX_SELECT: return tsh_index_select(tape, in[0], dim, in[1]);
    case CALL_TAKE_ALONG: return tsh_take_along(tape, in[0], dim, in[1]);
    case CALL_INDEX_ADD: return tsh_index_add(tape, in[0], dim, in[1], in[2]);
    case CALL_ADD_ALONG: return tsh_add_along(tape, in[0], dim, in[1], in[2]);
    case CALL_ONE_HOT: return tsh_one_hot(tape, in[0], s->n[0], tshi_bench_dtype(b, false));
    case CALL_ABS: return tsh_abs(tape, in[0]);
    case CALL_SWIGLU: return tsh_swiglu(tape, in[0], in[1]);
    case CALL_SCALE_SHIFT: return tsh_scale_shift(tape, in[0], s->f, (double)s->n[0]);
    case CALL_MAXIMUM: return tsh_maximum(tape, in[0], in[1]);
    case CALL_MINIMUM: return tsh_minimum(tape, in[0], in[1]);
    case CALL_WHERE: return where(b, s, in[0], in[1]);
    case CALL_MAX: return tsh_max(tape, in[0], dim, s->salt % 2 ? &indices : NULL);
    case CALL_MIN: return tsh_min(tape, in[0], dim, s->salt % 2 ? &indices : NULL);
    case CALL_L1_LOSS: return as_others(b, tsh_l1_loss(tape, in[0], in[1], reduction));
    case CALL_SMOOTH_L1_LOSS: return as_others(b, tsh_smooth_l1_loss(tape, in[0], in[1], 2, reduction));
    case CALL_MSE_LOSS: return as_others(b, tsh_mse_loss(tape, in[0], in[1], reduction));
    case CALL_BCE_LOSS: {
        const tsh_bce_loss_config config = {.pos_weight = s->inputs == 3 ? in[2] : NULL, .reduction = reduction};
        bool plain = s->inputs == 2 && reduction == TSH_REDUCTION_MEAN;
        return tsh_bce_loss(tape, in[0], in[1], plain ? NULL : &config);
    }
    default: return NULL;
    }
}

void tshi_function_print(const tshi_step *s, FILE *to) {
    int order[TSH_MAX_DIMS] = {0};
    long long n[4];
    for (int i = 0; i < 4; i++) n[i] = (long long)s->n[i];
    switch (s->call) {
    case CALL_POW: fprintf(to, " to %g", s->f); break;
    case CALL_CLAMP: fprintf(to, " to [%g, %g]", tshi_clamps[n[0]][0], tshi_clamps[n[0]][1]); break;
    case CALL_MASKED_FILL: fprintf(to, " with %g", s->f); break;
    case CALL_CAST: fprintf(to, s->integer ? " to integers" : " and back"); break;
    case CALL_PERMUTE:
        tshi_permute_order(s, s->shape.ndim, order);
        for (int d = 0; d < s->shape.ndim; d++) fprintf(to, "%s%d", d ? "," : " to ", order[d]);
        break;
    case CALL_TRANSPOSE: fprintf(to, " dims %lld, %lld", n[0], n[1]); break;
    case CALL_SPLIT_PARTS:
        fprintf(to, " dim %lld in %lld%s parts, ", n[0], n[1], n[3] ? "" : " balanced");
        fprintf(to, n[2] < 0 ? "reversed" : "part %lld", n[2]);
        break;
    case CALL_TOPK: fprintf(to, " dim %lld, %lld%s", n[0], n[1], n[2] ? ", indices" : ""); break;
    case CALL_ARGMAX:
    case CALL_CUMSUM:
    case CALL_MAX:
    case CALL_INDEX_SELECT:
    case CALL_TAKE_ALONG:
    case CALL_INDEX_ADD:
    case CALL_ADD_ALONG:
    case CALL_MIN: fprintf(to, " dim %lld", n[0]); break;
    case CALL_SCALE_SHIFT: fprintf(to, " by %g + %lld", s->f, n[0]); break;
    case CALL_L1_LOSS:
    case CALL_SMOOTH_L1_LOSS:
    case CALL_MSE_LOSS:
    case CALL_BCE_LOSS: fprintf(to, " reduction %lld", n[0]); break;
    default: break;
    }
}
