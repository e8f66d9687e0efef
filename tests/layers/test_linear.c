/* Linear in every sharding against plain loops, its collectives, its messages. */
#include "linear_variants.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

typedef struct sizes {
    int64_t n, in, out;
} sizes;

/* The second leaves ranks empty at 3 and 4; in the third the weight is so small beside x that to gather it would move
 * the fewest bytes, which a layer never does. */
static const sizes all_sizes[] = {{5, 7, 9}, {1, 2, 2}, {20, 3, 4}};

#define MOST 81

/* By plain loops. */
typedef struct truth {
    double x[MOST], w[MOST], b[MOST], dy[MOST], y[MOST], dx[MOST], dw[MOST], db[MOST];
} truth;

static void find_truth(sizes s, truth *t) {
    memset(t, 0, sizeof *t);
    tshi_test_integers(1, s.n * s.in, t->x);
    tshi_test_integers(2, s.out * s.in, t->w);
    tshi_test_integers(3, s.out, t->b);
    tshi_test_integers(4, s.n * s.out, t->dy);
    for (int64_t i = 0; i < s.n; i++) {
        for (int64_t o = 0; o < s.out; o++) {
            double dy = t->dy[i * s.out + o];
            t->y[i * s.out + o] = t->b[o];
            t->db[o] += dy;
            for (int64_t k = 0; k < s.in; k++) {
                t->y[i * s.out + o] += t->x[i * s.in + k] * t->w[o * s.in + k];
                t->dx[i * s.in + k] += dy * t->w[o * s.in + k];
                t->dw[o * s.in + k] += dy * t->x[i * s.in + k];
            }
        }
    }
}

static void load(tshi_rank *r, tsh_linear *layer, const truth *t, tsh_dtype dtype) {
    float w[MOST], b[MOST];
    for (int i = 0; i < MOST; i++) {
        w[i] = (float)t->w[i];
        b[i] = (float)t->b[i];
    }
    const void *weight = dtype == TSH_FLOAT32 ? (const void *)w : t->w,
               *bias = dtype == TSH_FLOAT32 ? (const void *)b : t->b;
    tshi_check_ok(r, tsh_linear_load(layer, weight, bias));
}

/* SPEC's table: what each costs forward and backward. */
static void expect(int which, bool backward, const tsh_group *g, sizes s, size_t size, tsh_communication_stats *out) {
    *out = (tsh_communication_stats){0};
    int64_t x = s.n * s.in, y = s.n * s.out;
    if (!backward) {
        if (which == COLUMN_GATHER) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_GATHER, y, size);
        if (which == COLUMN_SEQUENCE) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_GATHER, x, size);
        if (which == ROW || which == ROW_WHOLE) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_REDUCE, y, size);
        if (which == ROW_SEQUENCE) tshi_test_expect(out, g, TSH_COLLECTIVE_REDUCE_SCATTER, y, size);
        return;
    }
    if (which == COLUMN || which == COLUMN_GATHER) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_REDUCE, x, size);
    if (which == COLUMN_SEQUENCE) tshi_test_expect(out, g, TSH_COLLECTIVE_REDUCE_SCATTER, x, size);
    if (which == ROW_WHOLE) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_GATHER, x, size); /* of the slice */
    if (which == ROW_SEQUENCE) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_GATHER, y, size);
    if (which == DENSE_BATCH) {
        tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_REDUCE, s.in * s.out, size);
        tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_REDUCE, s.out, size);
    }
}

static void check_one(tshi_rank *r, tsh_tape *tape, int which, sizes s, tsh_dtype dtype) {
    const variant *v = &variants[which];
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_group *g = tsh_world_group(r->world);
    size_t size = tsh_dtype_size(dtype);
    truth t;
    tsh_communication_stats wanted;
    find_truth(s, &t);
    tsh_linear *layer = make_linear(r, v, s.in, s.out, dtype);
    if (!layer) return;
    load(r, layer, &t, dtype);
    tsh_tensor *x = tshi_test_leaf(r, mesh, &(tsh_tensor_config){dtype, 2, {s.n, s.in}, {v->x}}, t.x);
    tsh_tensor *dy = tshi_test_tensor(r, mesh, &(tsh_tensor_config){dtype, 2, {s.n, s.out}, {v->y}}, t.dy);

    tsh_group_reset_stats(g);
    tsh_tensor *y = tsh_linear_forward(tape, layer, x);
    if (tshi_check(r, y, "%s: %s", v->name, tsh_tape_message(tape))) {
        expect(which, false, g, s, size, &wanted);
        tshi_test_calls(r, v->name, g, &wanted);
        tsh_layout got = tsh_tensor_layout(y, g);
        tshi_check(r, got.kind == v->y.kind && got.dim == v->y.dim, "%s: y has another layout", v->name);
        tshi_test_same(r, v->name, y, t.y, 0);
        tsh_backward_config config = {.gradient = dy};
        tshi_check_ok(r, tsh_backward_with(tape, y, &config));
        expect(which, true, g, s, size, &wanted);
        tshi_test_calls(r, v->name, g, &wanted);
        tshi_test_same_grad(r, v->name, x, t.dx, 0);
        tshi_test_same_grad(r, v->name, tsh_linear_weight(layer), t.dw, 0);
        tshi_test_same_grad(r, v->name, tsh_linear_bias(layer), t.db, 0);
    }
    tsh_tape_reset(tape);
    tsh_tensor_release(x);
    tsh_tensor_release(dy);
    tsh_linear_destroy(layer);
}

static void all_variants(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (size_t s = 0; s < sizeof all_sizes / sizeof all_sizes[0]; s++) {
        for (int v = 0; v < VARIANTS; v++) {
            check_one(r, tape, v, all_sizes[s], TSH_FLOAT32);
            check_one(r, tape, v, all_sizes[s], TSH_FLOAT64);
        }
    }
    tsh_tape_destroy(tape);
}

/* Values, gradients, layouts, and the number and bytes of collectives of every sharding. */
Test(linear, equals_plain_loops_in_every_sharding, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, all_variants, NULL));
}

/* --- gradient check ----------------------------------------------------------------------------------------------- */

/* inputs: x, weight, bias; the layer in `user` holds the last two. */
static tsh_tensor *objective(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    tsh_tensor *y = tsh_gelu(tape, tsh_linear_forward(tape, user, inputs[0]));
    return tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS);
}

static void check_gradients(tshi_rank *r, void *arg) {
    const sizes s = {3, 5, 2};
    tsh_tape *tape = NULL;
    double values[15], worst = 1;
    (void)arg;
    for (int i = 0; i < 15; i++) values[i] = tshi_test_integer(9, i) / 8;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int v = 0; v < VARIANTS && !r->failed; v++) {
        tsh_linear *layer = make_linear(r, &variants[v], s.in, s.out, TSH_FLOAT64);
        tsh_tensor *x = tshi_test_leaf(r, tsh_world_mesh(r->world),
                                       &(tsh_tensor_config){TSH_FLOAT64, 2, {s.n, s.in}, {variants[v].x}}, values);
        tsh_tensor *inputs[] = {x, tsh_linear_weight(layer), tsh_linear_bias(layer)};
        tshi_check_ok(r, tsh_gradient_check(tape, objective, inputs, 3, 0, layer, &worst));
        tshi_check(r, worst < 1e-7, "%s: worst %g", variants[v].name, worst);
        tsh_tensor_release(x);
        tsh_linear_destroy(layer);
    }
    tsh_tape_destroy(tape);
}

Test(linear, passes_the_gradient_check, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, check_gradients, NULL));
}

/* --- known cases -------------------------------------------------------------------------------------------------- */

static void projections(tshi_rank *r, void *arg) {
    const sizes s = {3, 4, 5};
    tsh_group *g = tsh_world_group(r->world);
    tsh_tape *tape = NULL;
    truth t;
    double three[MOST];
    tsh_communication_stats wanted = {0};
    (void)arg;
    find_truth(s, &t);
    for (int i = 0; i < MOST; i++) three[i] = 3 * t.dx[i];
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *x = tshi_test_leaf(r, tsh_world_mesh(r->world), &(tsh_tensor_config){TSH_FLOAT32, 2, {3, 4}, {R}}, t.x);
    tsh_tensor *dy =
        tshi_test_tensor(r, tsh_world_mesh(r->world), &(tsh_tensor_config){TSH_FLOAT32, 2, {3, 5}, {S1}}, t.dy);
    tsh_linear *layer[3];
    tsh_tensor *sum = NULL;
    for (int i = 0; i < 3; i++) {
        layer[i] = make_linear(r, &variants[COLUMN], s.in, s.out, TSH_FLOAT32);
        load(r, layer[i], &t, TSH_FLOAT32);
        tsh_tensor *y = tsh_linear_forward(tape, layer[i], x);
        sum = sum ? tsh_add(tape, sum, y) : y;
    }
    tsh_group_reset_stats(g);
    tsh_backward_config config = {.gradient = dy};
    tshi_check_ok(r, tsh_backward_with(tape, sum, &config));
    tshi_test_expect(&wanted, g, TSH_COLLECTIVE_ALL_REDUCE, 12, 4);
    tshi_test_calls(r, "three column layers on one input", g, &wanted);
    tshi_test_same_grad(r, "dx", x, three, 0);
    for (int i = 0; i < 3; i++) tsh_linear_destroy(layer[i]);
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
    tsh_tensor_release(dy);
}

Test(linear, three_column_layers_on_one_input_cost_one_backward_all_reduce, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, projections, NULL));
}

/* X = I(8), W = ones, b = 0, gathered and summed: Y = 1, dX = 8. */
static void identity(tshi_rank *r, void *arg) {
    double x[64] = {0}, ones[64], eights[64];
    tsh_tape *tape = NULL;
    (void)arg;
    for (int i = 0; i < 64; i++) {
        ones[i] = 1;
        eights[i] = 8;
    }
    for (int i = 0; i < 8; i++) x[9 * i] = 1;
    tsh_linear *layer = NULL;
    tsh_linear_create(tsh_world_group(r->world),
                      &(tsh_linear_config){.in_features = 8,
                                           .out_features = 8,
                                           .shard = TSH_COLUMN,
                                           .bias = true,
                                           .gather_output = true,
                                           .dtype = TSH_FLOAT64,
                                           .weight_init = {TSH_INIT_CONSTANT, 0, 1, 0},
                                           .bias_init = {TSH_INIT_CONSTANT, 0, 0, 0}},
                      &layer);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *t = tshi_test_leaf(r, tsh_world_mesh(r->world), &(tsh_tensor_config){TSH_FLOAT64, 2, {8, 8}, {R}}, x);
    tsh_tensor *y = tsh_linear_forward(tape, layer, t);
    tshi_test_same(r, "Y", y, ones, 0);
    tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, y, TSH_ALL_DIMS)));
    tshi_test_same_grad(r, "dX", t, eights, 0);
    tsh_tape_destroy(tape);
    tsh_tensor_release(t);
    tsh_linear_destroy(layer);
}

Test(linear, column_of_the_identity, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, identity, NULL));
}

/* Each rank holds its balanced slice of the weight and not a byte more. */
static void weight_bytes(tshi_rank *r, void *arg) {
    const sizes s = {1, 13, 10};
    int64_t rows, cols;
    (void)arg;
    tsh_split(s.out, r->size, r->rank, NULL, &rows);
    tsh_split(s.in, r->size, r->rank, NULL, &cols);
    tsh_memory_stats before = tsh_device_stats(tsh_world_device(r->world));
    tsh_linear *column = make_linear(r, &variants[COLUMN], s.in, s.out, TSH_FLOAT32);
    tsh_memory_stats after = tsh_device_stats(tsh_world_device(r->world));
    tshi_check(r, tsh_tensor_local_nbytes(tsh_linear_weight(column)) == (size_t)(rows * s.in) * 4, "column weight");
    tshi_check(r, tsh_tensor_local_nbytes(tsh_linear_bias(column)) == (size_t)rows * 4, "column bias");
    size_t held = ((size_t)(rows * s.in) * 4 + 63) / 64 * 64 + ((size_t)rows * 4 + 63) / 64 * 64;
    tshi_check(r, after.bytes_peak - before.bytes_in_use <= held, "making the layer took %zu bytes, it holds %zu",
               after.bytes_peak - before.bytes_in_use, held);
    tsh_linear *row = make_linear(r, &variants[ROW], s.in, s.out, TSH_FLOAT32);
    tshi_check(r, tsh_tensor_local_nbytes(tsh_linear_weight(row)) == (size_t)(cols * s.out) * 4, "row weight");
    tshi_check(r, tsh_tensor_local_nbytes(tsh_linear_bias(row)) == (size_t)s.out * 4, "row bias");
    tsh_linear_destroy(column);
    tsh_linear_destroy(row);
}

Test(linear, holds_its_balanced_slice_alone, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, weight_bytes, NULL));
}

/* --- wrong use ---------------------------------------------------------------------------------------------------- */

static void fails_with(tshi_rank *r, tsh_tape *tape, tsh_linear *layer, const tsh_tensor_config *config,
                       tsh_status status, const char *words) {
    char wanted[256];
    tsh_tensor *x = NULL;
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), config, &x));
    snprintf(wanted, sizeof wanted, "rank %d: linear_forward: %s", r->rank, words);
    tshi_check(r, !tsh_linear_forward(tape, layer, x), "took a wrong x (%s)", words);
    tshi_check(r, tsh_tape_status(tape) == status && strstr(tsh_tape_message(tape), wanted), "%s \"%s\", wanted \"%s\"",
               tsh_status_name(tsh_tape_status(tape)), tsh_tape_message(tape), wanted);
    tshi_check_ok(r, tsh_tape_reset(tape));
    tsh_tensor_release(x);
}

static void wrong_inputs(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_linear *column = make_linear(r, &variants[COLUMN], 128, 4, TSH_FLOAT32);
    tsh_linear *row = make_linear(r, &variants[ROW], 128, 4, TSH_FLOAT32);
    fails_with(r, tape, column, &(tsh_tensor_config){TSH_FLOAT32, 2, {8, 100}, {R}}, TSH_ERR_SHAPE,
               "x is [8,100], layer wants in_features=128");
    fails_with(r, tape, row, &(tsh_tensor_config){TSH_FLOAT32, 2, {8, 100}, {S1}}, TSH_ERR_SHAPE,
               "x is [8,100], layer wants in_features=128");
    fails_with(r, tape, column, &(tsh_tensor_config){TSH_FLOAT32, 0, {0}, {R}}, TSH_ERR_SHAPE,
               "x is [], layer wants in_features=128");
    fails_with(r, tape, column, &(tsh_tensor_config){TSH_FLOAT64, 2, {8, 128}, {R}}, TSH_ERR_DTYPE, "x is float64");
    fails_with(r, tape, column, &(tsh_tensor_config){TSH_FLOAT32, 2, {8, 128}, {S1}}, TSH_ERR_LAYOUT,
               "x is float32 [8,");
    tsh_tensor *x = NULL;
    tshi_check_ok(r,
                  tsh_tensor_create(tsh_world_mesh(r->world), &(tsh_tensor_config){TSH_FLOAT32, 2, {8, 128}, {R}}, &x));
    tshi_check(r, tsh_linear_forward(tape, column, x), "not usable after failures: %s", tsh_tape_message(tape));
    tshi_check(r, !tsh_linear_forward(tape, NULL, x) && tsh_tape_status(tape) == TSH_ERR_ARGUMENT, "took no layer");
    tshi_check_ok(r, tsh_tape_reset(tape));
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
    tsh_linear_destroy(column);
    tsh_linear_destroy(row);
}

Test(linear, names_what_is_wrong_with_x_and_stays_usable, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, wrong_inputs, NULL));
}

static void wrong_configurations(tshi_rank *r, void *arg) {
    const struct {
        tsh_linear_config config;
        const char *words;
    } wrong[] = {{{.in_features = 0, .out_features = 4}, "in_features=0 and out_features=4"},
                 {{.in_features = 4, .out_features = -1}, "out_features=-1"},
                 {{.in_features = 4, .out_features = 4, .shard = (tsh_sharding)7}, "unknown sharding 7"},
                 {{.in_features = 4, .out_features = 4, .shard = TSH_ROW, .gather_output = true},
                  "gather_output is only for TSH_COLUMN"},
                 {{.in_features = 4, .out_features = 4, .shard = TSH_COLUMN, .sequence_parallel = true},
                  "sequence_parallel is only for TSH_ROW"},
                 {{.in_features = 4, .out_features = 4, .dtype = TSH_INT64}, "dtype is int64; the "},
                 {{.in_features = 4, .out_features = 4, .activation = (tsh_activation)5}, "unknown activation 5"},
                 {{.in_features = 4, .out_features = 4, .activation = (tsh_activation)-1}, "unknown activation -1"},
                 {{.in_features = INT64_MAX / 2, .out_features = INT64_MAX / 2}, ""},
                 {{.in_features = 4, .out_features = 4, .weight_init = {TSH_INIT_UNIFORM, 0, 2, 1}}, "range 2, 1"}};
    tsh_group *g = tsh_world_group(r->world);
    tsh_linear *plain = NULL;
    (void)arg;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        tshi_check(r, tsh_linear_create(g, &wrong[i].config, &plain) != TSH_OK && !plain, "took configuration %zu", i);
        tshi_check(r, strstr(tsh_error_message(), wrong[i].words), "%zu: \"%s\"", i, tsh_error_message());
    }
    tshi_check_status(r, tsh_linear_create(NULL, &wrong[9].config, &plain), TSH_ERR_ARGUMENT, "group");
    tsh_mesh *mesh = NULL;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=1,model=-1", &mesh));
    tshi_check_status(r, tsh_linear_create(tsh_mesh_group(mesh, "modle"), &wrong[9].config, &plain), TSH_ERR_ARGUMENT,
                      "no axis \"modle\"; there are data, model");
    tsh_mesh_destroy(mesh);
    tshi_check_status(r, tsh_linear_create(g, NULL, &plain), TSH_ERR_ARGUMENT, "configuration");
    tsh_linear_create(g, &(tsh_linear_config){.in_features = 1, .out_features = 1}, &plain);
    float one = 1;
    tshi_check_status(r, tsh_linear_load(plain, &one, &one), TSH_ERR_ARGUMENT, "no bias");
    tshi_check(r, !tsh_linear_bias(plain), "a bias that was not requested");
    tsh_linear_destroy(plain);
    tsh_linear_destroy(NULL);
}

Test(linear, refuses_wrong_configurations, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, wrong_configurations, NULL));
}
