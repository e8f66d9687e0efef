/* Operations of a program's own, as it writes them with the public headers alone: gradients under all layouts, uneven
 * and empty parts, two axes; together with segments, slices of parameters, 16 bits, determinism and plans; and what is
 * wrong with one, in words on all ranks. */
#include "support/ranks.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(custom, .timeout = 300);

/* --- y = x / (1 + sum of x^2 over the row), x [rows, cols] of float64 or bfloat16 --------------------------------- */

typedef struct shrink_params {
    int fails; /* the rank whose forward fails; -1: none */
    bool backward_fails, saves_nothing, calls_back, without_words;
} shrink_params;

static const tsh_rule shrink_rules[] = {{{TSH_AS_R}, TSH_AS_R},
                                        {{TSH_AS_BATCH}, TSH_AS_BATCH},
                                        {{TSH_AS_LAST}, TSH_AS_LAST},
                                        {{TSH_AS_L}, TSH_AS_L},
                                        {{TSH_ROW_END}, TSH_ROW_END}};

static tsh_tape *the_tape; /* for a forward that calls functions, which it must not */

static float read_bfloat16(const void *from, int64_t i) {
    uint32_t bits = (uint32_t)((const uint16_t *)from)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double get(const tsh_tensor *t, int64_t i) {
    const void *from = tsh_tensor_data(t);
    return tsh_tensor_dtype(t) == TSH_FLOAT64 ? ((const double *)from)[i] : (double)read_bfloat16(from, i);
}

/* Truncates: the test's values are such that it does not matter. */
static void set(tsh_tensor *t, int64_t i, double value) {
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    if (tsh_tensor_dtype(t) == TSH_FLOAT64)
        ((double *)tsh_tensor_data(t))[i] = value;
    else
        ((uint16_t *)tsh_tensor_data(t))[i] = (uint16_t)(bits >> 16);
}

static tsh_status same_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_tensor *x = tsh_call_input(call, 0);
    *dtype = tsh_tensor_dtype(x);
    out->ndim = tsh_tensor_ndim(x);
    memcpy(out->global, tsh_tensor_shape(x), sizeof *out->global * (size_t)out->ndim);
    return TSH_OK;
}

/* sums[i] = sum of a b over row i. */
static tsh_status dot_rows(tsh_call *call, const tsh_tensor *a, const tsh_tensor *b, tsh_tensor *sums) {
    const int64_t *n = tsh_tensor_local_shape(a);
    double *sum = tsh_tensor_data(sums);
    if (tsh_call_computes(call, 2 * (double)(n[0] * n[1]), 16 * (double)(n[0] * n[1]))) {
        for (int64_t i = 0; i < n[0]; i++) {
            sum[i] = 0;
            for (int64_t j = i * n[1]; j < (i + 1) * n[1]; j++) sum[i] += get(a, j) * get(b, j);
        }
    }
    return tsh_call_reduce(call, a, 1, sums, TSH_REDUCE_SUM);
}

static tsh_status shrink_forward(tsh_call *call) {
    const shrink_params *p = tsh_call_params(call);
    const tsh_tensor *x = tsh_call_input(call, 0);
    const int64_t *n = tsh_tensor_local_shape(x);
    int rank = tsh_world_rank(tsh_mesh_world(tsh_tensor_mesh(x)));
    if (p->without_words && p->fails == rank) return TSH_ERR_RANGE;
    if (p->fails == rank) return tsh_call_fail(call, TSH_ERR_RANGE, "rank %d cannot shrink", rank);
    if (p->calls_back) tsh_scale(the_tape, tsh_call_input(call, 0), 2);
    tsh_tensor *sums =
        p->saves_nothing ? tsh_call_scratch(call, TSH_FLOAT64, n[0]) : tsh_call_save(call, 0, TSH_FLOAT64, n[0]);
    tsh_status status = sums ? dot_rows(call, x, x, sums) : TSH_ERR_MEMORY;
    if (status != TSH_OK || !tsh_call_computes(call, (double)(n[0] * n[1]), 8)) return status;
    for (int64_t i = 0; i < n[0] * n[1]; i++) set(tsh_call_output(call), i, get(x, i) / (1 + get(sums, i / n[1])));
    return TSH_OK;
}

/* With s = 1 + |x|^2: dx = dy / s - 2 x (x . dy) / s^2. */
static tsh_status shrink_backward(tsh_call *call) {
    const shrink_params *p = tsh_call_params(call);
    const tsh_tensor *x = tsh_call_input(call, 0), *dy = tsh_call_grad_out(call), *sums = tsh_call_saved(call, 0);
    const int64_t *n = tsh_tensor_local_shape(x);
    if (!sums) return TSH_ERR_STATE;
    if (p->backward_fails) return tsh_call_fail(call, TSH_ERR_RANGE, "no gradient today");
    tsh_tensor *dots = tsh_call_scratch(call, TSH_FLOAT64, n[0]), *dx = tsh_call_grad(call, 0);
    if (!dots || !dx) return TSH_ERR_MEMORY;
    tsh_status status = dot_rows(call, x, dy, dots);
    if (status != TSH_OK || !tsh_call_computes(call, (double)(n[0] * n[1]), 8)) return status;
    for (int64_t i = 0; i < n[0] * n[1]; i++) {
        double s = 1 + get(sums, i / n[1]);
        set(dx, i, get(dx, i) + get(dy, i) / s - 2 * get(x, i) * get(dots, i / n[1]) / (s * s));
    }
    return TSH_OK;
}

static const tsh_op shrink_op = {.name = "shrink",
                                 .rules = shrink_rules,
                                 .shape = same_shape,
                                 .forward = shrink_forward,
                                 .backward = shrink_backward,
                                 .params_size = sizeof(shrink_params),
                                 .inputs = 1,
                                 .dtypes = 1u << TSH_FLOAT64 | 1u << TSH_BFLOAT16};

static const shrink_params well = {.fails = -1};

static tsh_tensor *shrink(tsh_tape *tape, tsh_tensor *x) {
    return tsh_apply(tape, &shrink_op, 1, &x, &well);
}

/* --- y = x + b, b [cols] a parameter: two inputs, a gradient that is summed over the ranks ------------------------ */

static const tsh_rule shift_rules[] = {{{TSH_AS_R, TSH_AS_R}, TSH_AS_R},
                                       {{TSH_AS_BATCH, TSH_AS_L}, TSH_AS_BATCH},
                                       {{TSH_AS_LAST, TSH_AS_S0}, TSH_AS_LAST},
                                       {{TSH_ROW_END}, TSH_ROW_END}};

static tsh_status shift_forward(tsh_call *call) {
    const tsh_tensor *x = tsh_call_input(call, 0);
    int64_t cols = tsh_tensor_local_shape(x)[1];
    if (!tsh_call_computes(call, 1, 1)) return TSH_OK;
    for (int64_t i = 0; i < tsh_tensor_local_numel(x); i++)
        set(tsh_call_output(call), i, get(x, i) + get(tsh_call_input(call, 1), i % cols));
    return TSH_OK;
}

static tsh_status shift_backward(tsh_call *call) {
    const tsh_tensor *dy = tsh_call_grad_out(call);
    tsh_tensor *db = tsh_call_wants_grad(call, 1) ? tsh_call_grad(call, 1) : NULL;
    int64_t cols = tsh_tensor_local_shape(dy)[1];
    if (tsh_call_wants_grad(call, 0)) {
        tsh_status status = tsh_call_grad_adopt(call, 0, tsh_call_grad_out(call));
        if (status != TSH_OK) return status;
    }
    if (!db) return tsh_call_wants_grad(call, 1) ? TSH_ERR_MEMORY : TSH_OK;
    if (!tsh_call_computes(call, 1, 1)) return TSH_OK;
    for (int64_t i = 0; i < tsh_tensor_local_numel(dy); i++) set(db, i % cols, get(db, i % cols) + get(dy, i));
    return TSH_OK;
}

static const tsh_op shift_op = {"shift",       shift_rules,    same_shape,
                                shift_forward, shift_backward, .reads_no_input = true};

static tsh_tensor *shift(tsh_tape *tape, tsh_tensor *x, tsh_tensor *b) {
    return tsh_apply(tape, &shift_op, 2, (tsh_tensor *[]){x, b}, NULL);
}

/* --- gradients ---------------------------------------------------------------------------------------------------- */

static tsh_tensor *make(tshi_rank *r, const tsh_mesh *mesh, tsh_tensor_config config) {
    tsh_tensor *x = NULL;
    tshi_check_ok(r, tsh_tensor_create_arange(mesh, &config, -1, 0.25, &x));
    if (config.dtype != TSH_INT64) tshi_check_ok(r, tsh_tensor_require_grad(x, true));
    return x;
}

static tsh_tensor *objective(tsh_tape *tape, tsh_tensor *const *in, void *user) {
    tsh_mark start = tsh_tape_mark(tape);
    tsh_tensor *y = shift(tape, shrink(tape, in[0]), in[1]);
    if (user) y = tsh_tape_recompute_since(tape, start, y);
    y = shrink(tape, y);
    return tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS);
}

static void check_gradients(tshi_rank *r, const tsh_mesh *mesh, int64_t rows, int64_t cols, const tsh_layout *layout) {
    double worst = 1;
    int again = 1;
    tsh_tape *tape = NULL;
    tsh_tensor *in[2] = {make(r, mesh, (tsh_tensor_config){TSH_FLOAT64, 2, {rows, cols}, {layout[0], layout[1]}}),
                         make(r, mesh, (tsh_tensor_config){TSH_FLOAT64, 1, {cols}, {TSH_REPLICATED}})};
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int k = 0; k < 2; k++) {
        tshi_check_ok(r, tsh_gradient_check(tape, objective, in, 2, 0, k ? &again : NULL, &worst));
        tshi_check(r, worst < 1e-8, "[%lld,%lld] layouts %d, %d: off by %g", (long long)rows, (long long)cols,
                   (int)layout[0].kind, (int)layout[1].kind, worst);
    }
    tsh_tape_destroy(tape);
    tsh_tensor_release(in[0]);
    tsh_tensor_release(in[1]);
}

static void gradients(tshi_rank *r, void *arg) {
    const tsh_layout layouts[][2] = {{TSH_REPLICATED}, {TSH_SHARD(0)}, {TSH_SHARD(1)}, {TSH_PARTIAL}};
    (void)arg;
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        check_gradients(r, tsh_world_mesh(r->world), 5, 3, layouts[l]);
        check_gradients(r, tsh_world_mesh(r->world), 1, 2, layouts[l]);
        check_gradients(r, tsh_world_mesh(r->world), 0, 2, layouts[l]);
    }
}

Test(custom, gradients_are_central_differences_under_each_layout_and_with_segments) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, gradients, NULL));
}

static void on_two_axes(tshi_rank *r, void *arg) {
    const tsh_layout layouts[][2] = {
        {TSH_SHARD(0), TSH_SHARD(1)}, {TSH_SHARD(1), TSH_SHARD(1)}, {TSH_SHARD(0), TSH_SHARD(0)}};
    tsh_mesh *mesh = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, "a=2,b=2", &mesh));
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) check_gradients(r, mesh, 5, 3, layouts[l]);
    tsh_mesh_destroy(mesh);
}

Test(custom, gradients_on_a_mesh_of_two_axes) {
    cr_assert_str_empty(tshi_test_run(4, on_two_axes, NULL));
}

/* --- together with the rest of the library ------------------------------------------------------------------------ */

/* Ten steps; what is left of the parameter on all ranks is that of one rank. */
static void train(tshi_rank *r, tsh_zero_level level, tsh_dtype dtype, double wanted[2], double tolerance) {
    tsh_tape *tape = NULL;
    tsh_parameters *list = NULL;
    tsh_optimizer *optimizer = NULL;
    tsh_data_parallel *dp = NULL;
    double got[2];
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_tensor *x = make(r, mesh, (tsh_tensor_config){dtype, 2, {5, 2}, {TSH_SHARD(0)}});
    tsh_tensor *b = make(r, mesh, (tsh_tensor_config){dtype, 1, {2}, {TSH_REPLICATED}});
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_parameters_add(list, "layer.b", b));
    if (level != TSH_ZERO_NOTHING)
        tshi_check_ok(r, tsh_data_parallel_create(tape, list, tsh_world_group(r->world),
                                                  &(tsh_data_parallel_config){.level = level}, &dp));
    tshi_check_ok(r, tsh_sgd_create(list, &(tsh_sgd_config){.lr = 0.5}, &optimizer));
    for (int step = 0; step < 10; step++) {
        tsh_tensor *y = shrink(tape, shift(tape, x, b));
        tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS)));
        tshi_check_ok(r, tsh_optimizer_step(optimizer));
        tsh_optimizer_zero_grad(optimizer);
        tshi_check_ok(r, tsh_tape_reset(tape));
    }
    tsh_tensor *whole = tsh_cast(tape, tsh_full(tape, b), TSH_FLOAT64);
    tshi_check_ok(r, tsh_tensor_read(whole, got, 2));
    if (r->size == 1 && level == TSH_ZERO_NOTHING && dtype == TSH_FLOAT64) memcpy(wanted, got, sizeof got);
    for (int i = 0; i < 2; i++)
        tshi_check(r, fabs(got[i] - wanted[i]) <= tolerance, "level %d, %s: %.17g, wanted %.17g", (int)level,
                   tsh_dtype_name(dtype), got[i], wanted[i]);
    tsh_optimizer_destroy(optimizer);
    tsh_data_parallel_destroy(dp);
    tsh_parameters_destroy(list);
    tsh_tape_destroy(tape);
    tsh_tensor_release(b);
    tsh_tensor_release(x);
}

static void trains(tshi_rank *r, void *wanted) {
    train(r, TSH_ZERO_NOTHING, TSH_FLOAT64, wanted, 1e-14);
    for (int level = TSH_ZERO_OPTIMIZER; level <= TSH_ZERO_PARAMETERS; level++)
        train(r, (tsh_zero_level)level, TSH_FLOAT64, wanted, 1e-14);
    train(r, TSH_ZERO_NOTHING, TSH_BFLOAT16, wanted, 0.1);
}

Test(custom, trains_alike_with_any_part_of_a_parameter_and_in_16_bits) {
    double *wanted = tshi_test_shared(2 * sizeof *wanted);
    cr_assert_str_empty(tshi_test_run_each(1, 4, trains, wanted));
    cr_assert(wanted[0] != -1 && isfinite(wanted[0]));
}

/* In evaluation nothing is saved, and an operation without a backward will do. */
static void evaluates(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    tsh_op once = shrink_op;
    (void)arg;
    once.backward = NULL;
    tsh_tensor *x = make(r, tsh_world_mesh(r->world), (tsh_tensor_config){TSH_FLOAT64, 2, {3, 2}, {TSH_SHARD(1)}});
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *y = tsh_apply(tape, &once, 1, &x, &well);
    tshi_check(r, !y && strstr(tsh_tape_message(tape), "no backward, and an input wants a gradient"), "%s",
               tsh_tape_message(tape));
    tsh_tape_reset(tape);
    size_t before = tsh_device_stats(tsh_world_device(r->world)).bytes_in_use;
    tsh_tape_set_recording(tape, false);
    y = tsh_apply(tape, &once, 1, &x, &well);
    tshi_check(r, y != NULL, "%s", tsh_tape_message(tape));
    size_t bytes = tsh_device_stats(tsh_world_device(r->world)).bytes_in_use - before;
    tshi_check(r, bytes <= 64, "%zu bytes beside the output", bytes - 64);
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
}

Test(custom, evaluation_saves_nothing) {
    cr_assert_str_empty(tshi_test_run(2, evaluates, NULL));
}

/* The loss in a deterministic world has the bits of one rank. */
static void is_deterministic(tshi_rank *r, void *first) {
    tsh_tape *tape = NULL;
    tsh_tensor *x = make(r, tsh_world_mesh(r->world), (tsh_tensor_config){TSH_FLOAT64, 2, {7, 5}, {TSH_SHARD(1)}});
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    double loss = tsh_tensor_item(tsh_full(tape, tsh_sum(tape, tsh_exp(tape, shrink(tape, x)), TSH_ALL_DIMS)));
    if (r->size == 1) *(double *)first = loss;
    tshi_check(r, loss == *(double *)first, "%.17g, one rank had %.17g", loss, *(double *)first);
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
}

Test(custom, deterministic_worlds_run_it_whole) {
    double *first = tshi_test_shared(sizeof *first);
    setenv("TSHARD_DETERMINISTIC", "1", 1);
    cr_assert_str_empty(tshi_test_run_each(1, 4, is_deterministic, first));
}

/* A plan runs no loop of the operation, counts its memory and what it declares; the collective is counted as it is. */
Test(custom, a_plan_counts_what_it_declares) {
    tsh_world *world = NULL;
    tsh_tape *tape = NULL;
    tsh_tensor *x = NULL;
    const int64_t rows = (int64_t)1 << 20, cols = (int64_t)1 << 20; /* 4 TB a rank */
    setenv("TSHARD_BACKEND", "plan", 1);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "2", 1);
    cr_assert_eq(tsh_world_init(NULL, &world), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tsh_tape_create(world, &tape), TSH_OK);
    const tsh_tensor_config config = {TSH_FLOAT64, 2, {rows, cols}, {TSH_SHARD(1)}};
    cr_assert_eq(tsh_tensor_create(tsh_world_mesh(world), &config, &x), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tsh_tensor_require_grad(x, true), TSH_OK);
    tsh_group_reset_stats(tsh_world_group(world));
    cr_assert_eq(tsh_backward(tape, tsh_sum(tape, shrink(tape, x), TSH_ALL_DIMS)), TSH_OK, "%s",
                 tsh_tape_message(tape));
    cr_expect_eq(tsh_group_stats(tsh_world_group(world)).bytes[TSH_COLLECTIVE_ALL_REDUCE] / 8, (uint64_t)(2 * rows));
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
    tsh_world_destroy(world);
}

/* --- what is wrong with one --------------------------------------------------------------------------------------- */

static void expect(tshi_rank *r, tsh_tape *tape, const tsh_tensor *y, const char *words) {
    tshi_check(r, !y && strstr(tsh_tape_message(tape), words), "'%s', wanted '%s'", tsh_tape_message(tape), words);
    tsh_tape_reset(tape);
}

/* A table without an end, as long as it looks like one. */
static const tsh_rule endless[] = {{{TSH_AS_R}, TSH_AS_R}, {{(tsh_pattern)12345}, (tsh_pattern)678}};
static const tsh_rule only_whole[] = {{{TSH_AS_R}, TSH_AS_R}, {{TSH_ROW_END}, TSH_ROW_END}};

static tsh_status many_dims(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    (void)call, (void)dtype;
    out->ndim = 99;
    return TSH_OK;
}

static tsh_status negative(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    same_shape(call, dtype, out);
    out->global[0] = -3;
    return TSH_OK;
}

static tsh_status huge(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    same_shape(call, dtype, out);
    out->global[0] = out->global[1] = INT64_MAX;
    return TSH_OK;
}

static tsh_status no_dtype(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    same_shape(call, dtype, out);
    *dtype = (tsh_dtype)-2;
    return TSH_OK;
}

static tsh_status no_status(tsh_call *call) {
    (void)call;
    return (tsh_status)4711;
}

static void wrong(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    (void)arg;
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_tensor *x = make(r, mesh, (tsh_tensor_config){TSH_FLOAT64, 2, {5, 3}, {TSH_SHARD(0)}});
    tsh_tensor *ids = make(r, mesh, (tsh_tensor_config){.dtype = TSH_FLOAT32, .ndim = 2, .shape = {5, 3}});
    tsh_tensor *in[2] = {x, x};
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    the_tape = tape;
    tsh_op op;
    op = shrink_op;
    op.name = NULL;
    expect(r, tape, tsh_apply(tape, &op, 1, in, &well), "the operation has no name");
    op = shrink_op;
    op.rules = NULL;
    expect(r, tape, tsh_apply(tape, &op, 1, in, &well), "shrink: the operation has no rows of layouts");
    op = shrink_op;
    op.rules = endless;
    expect(r, tape, tsh_apply(tape, &op, 1, in, &well), "row 1 of the layouts is not a row");
    op = shrink_op;
    op.shape = NULL; /* that of the input */
    tsh_tensor *y = tsh_apply(tape, &op, 1, in, &well);
    tshi_check(r, y && tsh_tensor_shape(y)[0] == tsh_tensor_shape(x)[0] && tsh_tensor_dtype(y) == tsh_tensor_dtype(x),
               "without a shape rule: %s", tsh_tape_message(tape));
    tshi_check_ok(r, tsh_tape_reset(tape));
    op = shrink_op;
    op.forward = NULL;
    expect(r, tape, tsh_apply(tape, &op, 1, in, &well), "no forward");
    op = shrink_op;
    op.backward = NULL;
    expect(r, tape, tsh_apply(tape, &op, 1, in, &well), "no backward");
    op = shrink_op;
    op.shape = many_dims;
    expect(r, tape, tsh_apply(tape, &op, 1, in, &well), "gave 99 dims");
    op = shrink_op;
    op.shape = negative;
    expect(r, tape, tsh_apply(tape, &op, 1, in, &well), "gave [-3,3], which is not a shape");
    op = shrink_op;
    op.shape = huge;
    expect(r, tape, tsh_apply(tape, &op, 1, in, &well), "which is not a shape");
    op = shrink_op;
    op.shape = no_dtype;
    expect(r, tape, tsh_apply(tape, &op, 1, in, &well), "gave dtype -2, which does not exist");
    op = shrink_op;
    op.forward = no_status;
    expect(r, tape, tsh_apply(tape, &op, 1, in, &well), "returned 4711, which is not a status");
    op = shrink_op;
    op.views = true;
    op.shape = huge;
    expect(r, tape, tsh_apply(tape, &op, 1, in, &well), "not a shape");
    expect(r, tape, tsh_apply(tape, &shrink_op, 2, in, &well), "shrink: 2 inputs, 1 wanted");
    expect(r, tape, tsh_apply(tape, &shrink_op, 1, in, NULL), "shrink: params is NULL");
    expect(r, tape, tsh_apply(tape, &shrink_op, 1, &ids, &well),
           "shrink: input 0 is float32, which the operation does not take");
    expect(r, tape, tsh_apply(tape, &shrink_op, 1, in, &(shrink_params){.fails = -1, .calls_back = true}),
           "scale: called inside shrink");
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
    tsh_tensor_release(ids);
}

Test(custom, what_is_wrong_with_an_operation_is_said_in_words) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, wrong, NULL));
}

/* A split input is gathered where no row takes it split. */
static void gathers(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    tsh_op op = shrink_op;
    (void)arg;
    op.rules = only_whole;
    tsh_tensor *x = make(r, tsh_world_mesh(r->world), (tsh_tensor_config){TSH_FLOAT64, 2, {5, 3}, {TSH_SHARD(0)}});
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *y = tsh_apply(tape, &op, 1, &x, &well);
    tshi_check(r, tsh_tensor_local_numel(y) == 15, "%lld elements", (long long)tsh_tensor_local_numel(y));
    tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, y, TSH_ALL_DIMS)));
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
}

Test(custom, inputs_are_gathered_for_a_row_that_is_whole) {
    cr_assert_str_empty(tshi_test_run(3, gathers, NULL));
}

/* The step fails on all ranks with the words of the one whose function has failed, and the next step is well. */
static void fails_on_one(tshi_rank *r, void *without_words) {
    shrink_params p = {.fails = 1, .without_words = without_words != NULL};
    tsh_tape *tape = NULL;
    tsh_tensor *x = make(r, tsh_world_mesh(r->world), (tsh_tensor_config){TSH_FLOAT64, 2, {5, 3}, {TSH_SHARD(1)}});
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *y = tsh_apply(tape, &shrink_op, 1, &x, &p);
    tsh_status status = tsh_backward(tape, tsh_sum(tape, y, TSH_ALL_DIMS));
    const char *words = without_words
                            ? "rank 1: shrink: the forward of shrink failed with TSH_ERR_RANGE and gave no reason"
                            : "rank 1: shrink: rank 1 cannot shrink";
    tshi_check(r, status == (r->rank == 1 ? TSH_ERR_RANGE : TSH_ERR_PEER), "%s", tsh_status_name(status));
    tshi_check(r, strstr(tsh_tape_message(tape), words), "'%s'", tsh_tape_message(tape));
    tshi_check_ok(r, tsh_tape_reset(tape));
    tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, shrink(tape, x), TSH_ALL_DIMS)));
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
}

Test(custom, a_forward_that_fails_on_one_rank_ends_the_step_on_all) {
    cr_assert_str_empty(tshi_test_run_each(2, 3, fails_on_one, NULL));
    cr_assert_str_empty(tshi_test_run(2, fails_on_one, "without words"));
}

static void fails_in_backward(tshi_rank *r, void *arg) {
    const shrink_params none = {.fails = -1, .saves_nothing = true}, broken = {.fails = -1, .backward_fails = true};
    const char *words[] = {"backward of shrink: forward has saved nothing in slot 0",
                           "backward of shrink: no gradient today"};
    tsh_tape *tape = NULL;
    (void)arg;
    tsh_tensor *x = make(r, tsh_world_mesh(r->world), (tsh_tensor_config){TSH_FLOAT64, 2, {5, 3}, {TSH_SHARD(1)}});
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int k = 0; k < 2; k++) {
        tsh_tensor *y = tsh_apply(tape, &shrink_op, 1, &x, k ? &broken : &none);
        tsh_status status = tsh_backward(tape, tsh_sum(tape, y, TSH_ALL_DIMS));
        tshi_check(r, status != TSH_OK && strstr(tsh_tape_message(tape), words[k]), "'%s'", tsh_tape_message(tape));
        tshi_check_ok(r, tsh_tape_reset(tape));
    }
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
}

Test(custom, a_backward_that_fails_says_why) {
    cr_assert_str_empty(tshi_test_run(2, fails_in_backward, NULL));
}

/* The struct and the parameters are of a function that has returned. */
static tsh_tensor *apply_and_forget(tsh_tape *tape, tsh_tensor *x) {
    tsh_op *op = malloc(sizeof *op);
    shrink_params *p = malloc(sizeof *p);
    if (!op || !p) abort();
    *op = shrink_op;
    *p = well;
    tsh_tensor *y = tsh_apply(tape, op, 1, &x, p);
    memset(op, 0xee, sizeof *op);
    memset(p, 0xee, sizeof *p);
    free(op);
    free(p);
    return y;
}

static void out_of_scope(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    (void)arg;
    tsh_tensor *x = make(r, tsh_world_mesh(r->world), (tsh_tensor_config){TSH_FLOAT64, 2, {5, 3}, {TSH_SHARD(1)}});
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_mark start = tsh_tape_mark(tape);
    tsh_tensor *y = tsh_tape_recompute_since(tape, start, shrink(tape, apply_and_forget(tape, x)));
    tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, y, TSH_ALL_DIMS)));
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
}

Test(custom, an_operation_may_go_after_the_call) {
    cr_assert_str_empty(tshi_test_run(2, out_of_scope, NULL));
}

/* --- without memory ----------------------------------------------------------------------------------------------- */

/* Requests of a world's memory until one fails; 0: none will. */
static void *alloc_until(void *due, size_t size) {
    int64_t *left = due;
    return *left && --*left == 0 ? NULL : malloc(size);
}

static void release_one(void *due, void *pointer) {
    (void)due;
    free(pointer);
}

/* After a first step, which fills the world's pools, the requests are those of a new tape: enough calls that each kind
 * of its memory is refused once. */
static void without_memory(tshi_rank *r, void *arg) {
    enum { CALLS = 64 };
    int64_t left = 0;
    (void)arg;
    tsh_world *world = NULL;
    tsh_world_config config = {.rank = 0,
                               .world_size = 1,
                               .heap_bytes = (size_t)8 << 20,
                               .blas_threads = 1,
                               .allocator = {.alloc = alloc_until, .release = release_one, .user = &left}};
    if (!tshi_check_ok(r, tsh_world_init(&config, &world))) return;
    tsh_tensor *x = make(r, tsh_world_mesh(world), (tsh_tensor_config){TSH_FLOAT64, 2, {2, 3}, {TSH_REPLICATED}});
    tsh_status status = TSH_ERR_MEMORY;
    int64_t due = 0;
    for (; (due == 1 || status != TSH_OK) && !r->failed; due++) {
        tsh_tape *tape = NULL;
        tshi_check_ok(r, tsh_tape_create(world, &tape));
        left = due;
        tsh_tensor *y = x;
        for (int i = 0; i < CALLS; i++) y = shrink(tape, y);
        status = tsh_backward(tape, tsh_sum(tape, y, TSH_ALL_DIMS));
        bool refused = due > 0 && left == 0;
        left = 0;
        tshi_check(r, refused ? status == TSH_ERR_MEMORY : status == TSH_OK, "request %lld: %s", (long long)due,
                   tsh_tape_message(tape));
        tsh_tensor_zero_grad(x);
        tshi_check_ok(r, tsh_tape_reset(tape));
        tsh_tape_destroy(tape);
    }
    tshi_check(r, due > 8, "only %lld requests", (long long)due);
    tsh_tensor_release(x);
    tsh_world_destroy(world);
}

Test(custom, every_request_of_a_step_may_be_refused) {
    tshi_test_options options = {.ranks = 1, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, without_memory, NULL, NULL, NULL));
}
