/* Every function in every combination of its inputs' layouts, at 1 to 4 ranks: whatever rule and transitions the tape
 * takes, values and gradients are those of one rank, whose gradients agree with central differences. In float32 and 16
 * bits they are those of float64, within the rounding of a few results. */
#include "autograd/grad/accumulate.h"
#include "device/cpu/isa/kernels.h"
#include "functional/functional.h"
#include "support/function_cases.h"
#include "support/ranks.h"
#include "tshard/train.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MOST              128 /* elements of a tensor */
#define CASES             160
#define DIFFERENCES_EVERY 6    /* combinations: differences take long */
#define STRANGE           1.25 /* the factor of the PARTIAL terms of all ranks but 0 */

typedef struct answer {
    int64_t count;
    double y[MOST];
    double grad[3][MOST];
} answer;

typedef struct input_set {
    tsh_tensor *in[3];
} input_set;

static double value(int64_t element, int input) {
    int64_t k = (element * 37 + input * 11 + 5) % 23 - 11;
    return (double)(k ? k : 12) / 8; /* never 0: relu has no gradient there */
}

/* This rank's part of input k under the layout. A PARTIAL one is made of unequal terms that add up exactly. */
static tsh_tensor *make_input(tshi_rank *r, const function_case *c, int k, tsh_layout layout, tsh_dtype dtype) {
    const function_input *spec = &c->input[k];
    bool ids = spec->vocabulary > 0;
    tsh_tensor_config config = {.dtype = ids ? TSH_INT64 : dtype, .ndim = spec->ndim, .layout = {layout}};
    double term = layout.kind != TSH_KIND_PARTIAL ? 1 : r->rank == 0 ? 1 - STRANGE * (r->size - 1) : STRANGE;
    double whole[MOST], elements[MOST];
    int64_t whole_ids[MOST], numel = 1;
    for (int d = 0; d < spec->ndim; d++) numel *= config.shape[d] = spec->shape[d];
    if (!tshi_check(r, numel <= MOST, "%s: input %d has more than %d elements", c->name, k, MOST)) return NULL;
    for (int64_t i = 0; i < numel; i++) {
        whole[i] = term * value(i, k);
        whole_ids[i] = ids ? (i * 5 + 1) % spec->vocabulary : 0;
    }
    tshi_cpu_convert_base(NULL, numel, TSH_FLOAT64, whole, dtype, elements);
    tsh_tensor *t = NULL;
    if (!tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &t))) return NULL;
    bool part = layout.kind == TSH_KIND_REPLICATED || layout.kind == TSH_KIND_SHARD;
    const void *from = ids ? (void *)whole_ids : (void *)elements;
    tshi_check_ok(r, part ? tsh_tensor_write_whole(t, from) : tsh_tensor_write(t, from, numel));
    if (!ids) tshi_check_ok(r, tsh_tensor_require_grad(t, true));
    return t;
}

/* sum of y * coefficient, the coefficients the same for equal shapes. */
static tsh_tensor *objective_of(tsh_tape *tape, tsh_tensor *y) {
    if (!y) return NULL;
    tsh_tensor_config config = {.dtype = tsh_tensor_dtype(y), .ndim = tsh_tensor_ndim(y)};
    double whole[MOST], elements[MOST];
    int64_t numel = 1;
    for (int d = 0; d < config.ndim; d++) numel *= config.shape[d] = tsh_tensor_shape(y)[d];
    if (numel > MOST) return NULL;
    for (int64_t i = 0; i < numel; i++) whole[i] = value(i, 7);
    tsh_tensor *coefficients = NULL;
    if (tsh_tensor_create(tsh_tensor_mesh(y), &config, &coefficients) != TSH_OK) return NULL;
    tshi_cpu_convert_base(NULL, numel, TSH_FLOAT64, whole, config.dtype, elements);
    tsh_tensor_write_whole(coefficients, elements);
    tsh_tensor *loss = tsh_sum(tape, tsh_mul(tape, y, coefficients), TSH_ALL_DIMS);
    tsh_tensor_release(coefficients); /* the tape keeps what it needs */
    return loss;
}

static tsh_tensor *objective(tsh_tape *tape, tsh_tensor *const *in, void *user) {
    return objective_of(tape, ((const function_case *)user)->build(tape, in));
}

/* The whole of t on every rank; of a LOCAL one the sum, if asked for, else what it is. */
static int64_t read_whole(tshi_rank *r, tsh_tape *tape, tsh_tensor *t, bool sum_local, double *to) {
    tsh_group *group = tsh_world_group(r->world);
    bool recording = tsh_tape_set_recording(tape, false);
    tsh_layout_kind kind = tsh_tensor_layout(t, group).kind;
    if (kind != TSH_KIND_LOCAL || sum_local) t = tsh_redistribute_along(tape, t, group, TSH_REPLICATED);
    tsh_tape_set_recording(tape, recording);
    if (!tshi_check(r, t != NULL, "%s", tsh_tape_message(tape))) return 0;
    if (!tshi_check(r, tsh_tensor_local_numel(t) <= MOST, "more than %d elements", MOST)) return 0;
    double elements[MOST];
    tshi_check_ok(r, tsh_tensor_read(t, elements, tsh_tensor_local_numel(t)));
    tshi_cpu_convert_base(NULL, tsh_tensor_local_numel(t), tsh_tensor_dtype(t), elements, TSH_FLOAT64, to);
    return tsh_tensor_local_numel(t);
}

/* Run the case once. TSH_ERR_LAYOUT where no rule exists; *local: the output makes no claim. */
static tsh_status run_case(tshi_rank *r, const function_case *c, const tsh_layout *layouts, tsh_dtype dtype,
                           answer *out, bool *local) {
    tsh_tape *tape = NULL;
    input_set s = {{NULL}};
    memset(out, 0, sizeof *out);
    tsh_world_seed(r->world, 7);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int k = 0; k < c->inputs; k++) s.in[k] = make_input(r, c, k, layouts[k], dtype);
    tsh_tensor *y = c->build(tape, s.in), *loss = objective_of(tape, y);
    if (y) {
        *local = tsh_tensor_layout(y, tsh_world_group(r->world)).kind == TSH_KIND_LOCAL;
        out->count = read_whole(r, tape, y, false, out->y);
    }
    tsh_status status = loss ? tsh_backward(tape, loss) : tsh_tape_status(tape);
    for (int k = 0; k < c->inputs && status == TSH_OK; k++) {
        tsh_tensor *grad = tsh_tensor_grad(s.in[k]);
        if (c->input[k].vocabulary) continue;
        if (tshi_check(r, grad != NULL, "%s: no gradient of input %d", c->name, k))
            read_whole(r, tape, grad, true, out->grad[k]);
    }
    for (int k = 0; k < c->inputs; k++) tsh_tensor_release(s.in[k]);
    tsh_status reset = tsh_tape_reset(tape);
    tshi_check(r, reset == TSH_OK, "%s: reset: %s", c->name, tsh_error_message());
    tsh_tape_destroy(tape);
    return status;
}

/* Gradients against central differences, under any layouts. */
static void check_differences(tshi_rank *r, const function_case *c, const tsh_layout *layouts) {
    tsh_tape *tape = NULL;
    tsh_tensor *in[3] = {NULL, NULL, NULL};
    int count = 0; /* ids are not differentiated; they stand behind the floats in every case */
    double worst = 0;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int k = 0; k < c->inputs; k++) {
        in[k] = make_input(r, c, k, layouts[k], TSH_FLOAT64);
        if (!c->input[k].vocabulary) count++;
    }
    tsh_world_seed(r->world, 7);
    tshi_check_ok(r, tsh_gradient_check(tape, objective, in, count, 0, (void *)(uintptr_t)c, &worst));
    tshi_check(r, c->not_derivative || worst < 1e-7, "%s: gradients are off by %g", c->name, worst);
    for (int k = 0; k < c->inputs; k++) tsh_tensor_release(in[k]);
    tsh_tape_destroy(tape);
}

/* --- one rank: the reference, itself checked by central differences ----------------------------------------------- */

static void reference(tshi_rank *r, void *arg) {
    const bool *differences = arg;
    answer *answers = r->result;
    for (int i = 0; i < function_case_count; i++) {
        const function_case *c = &function_cases[i];
        const tsh_layout replicated[3] = {{0}};
        bool local;
        if (!tshi_check_ok(r, run_case(r, c, replicated, TSH_FLOAT64, &answers[i], &local))) return;
        if (*differences) check_differences(r, c, replicated);
    }
    tshi_check(r, tsh_device_stats(tsh_world_device(r->world)).bytes_in_use == 0, "memory is left");
}

/* --- several ranks ------------------------------------------------------------------------------------------------ */

/* Layout number n of an input: REPLICATED, LOCAL, SHARD(0).., PARTIAL (floats). */
static int layout_count(const function_input *in) {
    return in->ndim + (in->vocabulary ? 2 : 3);
}

static tsh_layout layout_number(const function_input *in, int n) {
    if (n == 0) return TSH_REPLICATED;
    if (n == 1) return TSH_LOCAL;
    return n - 2 < in->ndim ? TSH_SHARD(n - 2) : TSH_PARTIAL;
}

/* Relative to an element; in less than float64 to the largest one, since sums in a step round as well. */
static void compare(tshi_rank *r, const char *what, tsh_dtype dtype, const double *got, const double *wanted, int64_t n,
                    double factor) {
    const double tolerance[] = {
        [TSH_FLOAT32] = 2e-6, [TSH_FLOAT64] = 1e-12, [TSH_BFLOAT16] = 4e-2, [TSH_FLOAT16] = 5e-3};
    double largest = 1;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(factor * wanted[i]));
    for (int64_t i = 0; i < n; i++) {
        double scale = dtype == TSH_FLOAT64 ? fmax(1, fabs(wanted[i])) : largest;
        double error = fabs(got[i] - factor * wanted[i]) / scale;
        if (!tshi_check(r, error < tolerance[dtype], "%s %s element %d is %.17g, one rank has %.17g in float64",
                        tsh_dtype_name(dtype), what, (int)i, got[i], factor * wanted[i])) {
            return;
        }
    }
}

static void check_combination(tshi_rank *r, const function_case *c, const answer *wanted, const tsh_layout *layouts,
                              tsh_dtype dtype, bool differences) {
    static const char *const kinds[] = {"R", "S", "P", "L"};
    char what[160];
    answer got;
    bool any_local = false, local = false;
    int used = snprintf(what, sizeof what, "%s of", c->name);
    for (int k = 0; k < c->inputs; k++) {
        any_local = any_local || layouts[k].kind == TSH_KIND_LOCAL;
        used += snprintf(what + used, sizeof what - (size_t)used, " %s%d", kinds[layouts[k].kind], layouts[k].dim);
    }
    tsh_status status = run_case(r, c, layouts, dtype, &got, &local);
    if (any_local && status == TSH_ERR_LAYOUT) return; /* what is LOCAL is not taken for anything else */
    if (!tshi_check(r, status == TSH_OK, "%s: %s", what, tsh_error_message())) return;
    tshi_check(r, any_local || !local, "%s: the output is LOCAL, no input was", what);
    compare(r, what, dtype, got.y, wanted->y, wanted->count, 1);
    /* LOCAL objectives, one a rank, add up. */
    for (int k = 0; k < c->inputs; k++) {
        int64_t n = 1;
        for (int d = 0; d < c->input[k].ndim; d++) n *= c->input[k].shape[d];
        if (!c->input[k].vocabulary) compare(r, what, dtype, got.grad[k], wanted->grad[k], n, local ? r->size : 1);
    }
    if (differences) check_differences(r, c, layouts);
}

typedef struct expectation {
    tsh_dtype dtype;
    const answer *answers;
} expectation;

static void all_combinations(tshi_rank *r, void *arg) {
    const expectation *expected = arg;
    for (int i = 0; i < function_case_count && !r->failed; i++) {
        const function_case *c = &function_cases[i];
        int total = 1;
        for (int k = 0; k < c->inputs; k++) total *= layout_count(&c->input[k]);
        for (int n = 0; n < total && !r->failed; n++) {
            tsh_layout layouts[3];
            for (int k = 0, rest = n; k < c->inputs; k++) {
                layouts[k] = layout_number(&c->input[k], rest % layout_count(&c->input[k]));
                rest /= layout_count(&c->input[k]);
            }
            /* One rank's gradients are judged by differences on every device. */
            bool differences = expected->dtype == TSH_FLOAT64 && n % DIFFERENCES_EVERY == 0 && r->size == 2 &&
                               tshi_test_device() == TSH_CPU;
            check_combination(r, c, &expected->answers[i], layouts, expected->dtype, differences);
        }
    }
    tshi_check(r, tsh_device_stats(tsh_world_device(r->world)).bytes_in_use == 0, "memory is left");
}

static void make_reference(answer answers[CASES], bool differences) {
    cr_assert_leq(function_case_count, CASES);
    tshi_test_options one = {.ranks = 1, .timeout = 60, .result_bytes = CASES * sizeof *answers};
    cr_assert_str_empty(tshi_test_run_with(&one, reference, &differences, NULL, answers));
}

static void against_one_rank(int ranks, tsh_dtype dtype) {
    static answer answers[CASES];
    make_reference(answers, false);
    tshi_test_options several = {.ranks = ranks, .timeout = 700};
    expectation expected = {dtype, answers};
    cr_assert_str_empty(tshi_test_run_with(&several, all_combinations, &expected, NULL, NULL));
}

Test(functions, one_rank_as_central_differences, .timeout = 120) {
    static answer answers[CASES];
    make_reference(answers, true);
}

Test(functions, two_ranks_as_one, .timeout = 760) {
    against_one_rank(2, TSH_FLOAT64);
}

Test(functions, three_ranks_as_one, .timeout = 760) {
    against_one_rank(3, TSH_FLOAT64);
}

Test(functions, four_ranks_as_one, .timeout = 760) {
    against_one_rank(4, TSH_FLOAT64);
}

Test(functions, one_and_three_ranks_in_float32, .timeout = 760) {
    against_one_rank(1, TSH_FLOAT32);
    against_one_rank(3, TSH_FLOAT32);
}

Test(functions, one_and_three_ranks_in_bfloat16, .timeout = 850) {
    against_one_rank(1, TSH_BFLOAT16);
    against_one_rank(3, TSH_BFLOAT16);
}

Test(functions, one_and_two_ranks_in_float16, .timeout = 850) {
    against_one_rank(1, TSH_FLOAT16);
    against_one_rank(2, TSH_FLOAT16);
}

/* --- float32 gradients beside functions in 16 bits ---------------------------------------------------------------- */

/* How a leaf's gradients come to be float32: the leaf is 16 bits and they are wide, or functions cast it to 16 bits. */
typedef enum leaf_kind { WIDE_GRADIENTS, ARITHMETIC } leaf_kind;

/* Two backwards, the second on top of the first one's gradients. */
static void two_backwards(tshi_rank *r, tsh_tape *tape, const function_case *c, tsh_tensor *const *in,
                          const answer *wanted) {
    for (int pass = 1; pass <= 2 && !r->failed; pass++) {
        tsh_world_seed(r->world, 7);
        tsh_tensor *loss = objective_of(tape, c->build(tape, in));
        if (!tshi_check(r, loss != NULL, "%s: %s", c->name, tsh_tape_message(tape))) return;
        tshi_check_ok(r, tsh_backward(tape, loss));
        for (int k = 0; k < c->inputs && !r->failed; k++) {
            double got[MOST];
            tsh_tensor *grad = tsh_tensor_grad(in[k]);
            if (c->input[k].vocabulary) continue;
            tshi_check(r, grad && tsh_tensor_dtype(grad) == TSH_FLOAT32, "%s: no float32 gradient of input %d", c->name,
                       k);
            if (grad)
                compare(r, c->name, TSH_BFLOAT16, got, wanted->grad[k], read_whole(r, tape, grad, true, got), pass);
        }
        tshi_check_ok(r, tsh_tape_reset(tape));
    }
}

static void float32_gradients(tshi_rank *r, void *arg) {
    const answer *answers = arg;
    for (int i = 0; i < 2 * function_case_count && !r->failed; i++) {
        const function_case *c = &function_cases[i / 2];
        const leaf_kind kind = i % 2 ? ARITHMETIC : WIDE_GRADIENTS;
        tsh_tensor *in[3] = {NULL};
        tsh_tape *tape = NULL;
        if (!strcmp(c->name, "cast")) continue; /* its output is float64 */
        tshi_check_ok(r, tsh_tape_create(r->world, &tape));
        for (int k = 0; k < c->inputs; k++) {
            in[k] = make_input(r, c, k, TSH_REPLICATED, kind == ARITHMETIC ? TSH_FLOAT32 : TSH_BFLOAT16);
            if (c->input[k].vocabulary) continue;
            if (kind == ARITHMETIC) in[k]->gradient->arithmetic = 1 + TSH_BFLOAT16;
            if (kind == WIDE_GRADIENTS) tshi_check_ok(r, tshi_gradient_set_wide(in[k], true));
        }
        two_backwards(r, tape, c, in, &answers[i / 2]);
        for (int k = 0; k < c->inputs; k++) tsh_tensor_release(in[k]);
        tsh_tape_destroy(tape);
    }
}

Test(functions, float32_gradients_beside_bfloat16, .timeout = 120) {
    static answer answers[CASES];
    make_reference(answers, false);
    tshi_test_options one = {.ranks = 1, .timeout = 60};
    cr_assert_str_empty(tshi_test_run_with(&one, float32_gradients, answers, NULL, NULL));
}
