/* Split along a dim, in two operations: the first brings the tensor to layouts in which each rank can cut it, and costs
 * nothing otherwise; the second takes one part. Parts do not overlap, so that each part's gradient is copied, not
 * added: the gradient of a split is a concat. */
#include "autograd/run/moves.h"
#include "functional/functional.h"

static const tsh_rule split_rules[] = {
    {{TSH_AS_R}, TSH_AS_R}, {{TSH_AS_OTHER}, TSH_AS_OTHER}, {{TSH_AS_P}, TSH_AS_P},
    {{TSH_AS_L}, TSH_AS_L}, {{TSH_ROW_END}, TSH_ROW_END},
};

typedef struct split_params {
    int dim;
    int part, count, padding; /* padding: named, so that initializers clear it */
    int64_t start, length;
} split_params;

static tsh_status whole_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    *dtype = call->in[0]->dtype;
    *out = call->in[0]->shape;
    return TSH_OK;
}

static const tsh_op whole_op = {.name = "split",
                                .rules = split_rules,
                                .shape = whole_shape,
                                .backward = tshi_pass_gradient,
                                .params_size = sizeof(split_params),
                                .has_dim = true,
                                .views = true,
                                .repeats = true,
                                .reads_no_input = true,
                                .by_element = true};

static tsh_status part_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const split_params *p = call->params;
    *dtype = call->in[0]->dtype;
    *out = call->in[0]->shape;
    out->global[p->dim] = p->length;
    return TSH_OK;
}

static tsh_status part_forward(tsh_call *call) {
    const split_params *p = call->params;
    tshi_part_copy(call->in[0], p->dim, p->start, p->length, tshi_data(call->out), true);
    return TSH_OK;
}

/* The parts' calls are consecutive on the tape, and backward runs them from last to first. True for the last part if
 * all parts have their gradients. In a deterministic world each is added separately. */
static bool all_parts_follow(const tsh_call *call) {
    const split_params *p = call->params;
    const tsh_call *first = &call->tape->nodes[call->out->gradient->node - p->part];
    if (p->part != p->count - 1 || call->tape->world->deterministic) return false;
    for (int i = 0; i < p->part; i++) {
        const tsh_tensor *out = first[i].out;
        if (!out || first[i].in[0] != call->in[0] || !out->gradient->value || out->gradient->stale) return false;
    }
    return true;
}

static tsh_status part_backward(tsh_call *call) {
    const split_params *p = call->params;
    double beta;
    const tsh_tensor *dx = tshi_grad_beta(call, 0, &beta);
    if (!dx) return TSH_ERR_MEMORY;
    if (beta == 0 && !all_parts_follow(call))
        tshi_device_of(dx)->ops->copy.zero(tshi_device_of(dx), tsh_tensor_local_nbytes(dx), tshi_data(dx));
    tshi_part_copy(dx, p->dim, p->start, p->length, tshi_data(tsh_call_grad_out(call)), false);
    return TSH_OK;
}

static const tsh_op part_op = {.name = "split",
                               .rules = split_rules,
                               .shape = part_shape,
                               .forward = part_forward,
                               .backward = part_backward,
                               .params_size = sizeof(split_params),
                               .has_dim = true,
                               .reads_no_input = true,
                               .by_element = true};

/* --- public ------------------------------------------------------------------------------------------------------- */

/* Checks that the sizes (NULL: balanced) sum to the size of the dim. */
static tsh_status check_sizes(const tsh_tensor *x, int dim, int count, const int64_t *sizes) {
    int64_t n = x->shape.global[dim], sum = 0;
    for (int i = 0; sizes && i < count; i++) {
        if (sizes[i] < 0 || __builtin_add_overflow(sum, sizes[i], &sum))
            return tshi_fail(TSH_ERR_SHAPE, "part %d of size %lld", i, (long long)sizes[i]);
    }
    if (!sizes || sum == n) return TSH_OK;
    return tshi_fail(TSH_ERR_SHAPE, "the sizes of %d parts add up to %lld; dim %d of %s has %lld", count,
                     (long long)sum, dim, TSHI_TENSOR_TEXT(x), (long long)n);
}

static tsh_status check_split(const tsh_tensor *x, int dim, int count, const int64_t *sizes, tsh_tensor *const *out) {
    int ndim = x->shape.ndim, positive = dim < 0 ? dim + ndim : dim;
    if (count < 1 || !out)
        return tshi_fail(TSH_ERR_ARGUMENT, "%d parts%s; at least one is required", count,
                         out ? "" : " in an array that is NULL");
    if (dim < -ndim || dim >= ndim) return tshi_fail(TSH_ERR_SHAPE, "dim %d of %s", dim, TSHI_TENSOR_TEXT(x));
    return check_sizes(x, positive, count, sizes);
}

tsh_status tsh_split_parts(tsh_tape *tape, tsh_tensor *x, int dim, int count, const int64_t *sizes, tsh_tensor **out) {
    for (int i = 0; out && i < count; i++) out[i] = NULL;
    if (!tshi_tape_ready(tape, "split", 1, &x)) return tape ? tsh_tape_status(tape) : TSH_ERR_ARGUMENT;
    tsh_status status = check_split(x, dim, count, sizes, out);
    if (status != TSH_OK) return tshi_tape_check(tape, status, "split");
    split_params p = {.dim = dim < 0 ? dim + x->shape.ndim : dim, .count = count};
    int64_t n = x->shape.global[p.dim];
    tsh_tensor *whole = tshi_apply(tape, &whole_op, 1, &x, &p);
    for (p.part = 0; p.part < count && whole; p.part++) {
        if (sizes)
            p.length = sizes[p.part];
        else
            tsh_split(n, count, p.part, &p.start, &p.length);
        out[p.part] = tshi_apply(tape, &part_op, 1, &whole, &p);
        p.start += p.length;
    }
    for (int i = 0; tape->status != TSH_OK && i < count; i++) out[i] = NULL;
    return tape->status;
}
