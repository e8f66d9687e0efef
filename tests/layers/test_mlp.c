/* MLPs, plain and gated, whole and split, against the functions that they are made of. */
#include "support/layouts.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(mlp, .timeout = 240);

enum { TOKENS = 5, EMBED = 6, HIDDEN = 9 };

static const tsh_sharding_rule dense[] = {{"*", "dense"}, {NULL, NULL}};

typedef struct variant {
    bool gated, bias, sequence;
    tsh_activation activation;
} variant;

static const variant variants[] = {{false, true, false, TSH_ACTIVATION_GELU_TANH},
                                   {false, false, true, TSH_ACTIVATION_RELU},
                                   {true, false, false, TSH_ACTIVATION_SILU},
                                   {true, true, true, TSH_ACTIVATION_SILU},
                                   {false, false, false, TSH_ACTIVATION_NONE}};

enum { VARIANTS = sizeof variants / sizeof variants[0] };

/* With the same values at any sharding. */
static tsh_mlp *make(tshi_rank *r, const variant *v, const tsh_sharding_rule *table) {
    tsh_mlp *layer = NULL;
    tsh_world_seed(r->world, 3);
    tsh_mlp_config config = {.embed = EMBED,
                             .hidden = HIDDEN,
                             .gated = v->gated,
                             .activation = v->activation,
                             .bias = v->bias,
                             .sequence_parallel = v->sequence,
                             .dtype = TSH_FLOAT64,
                             .table = table};
    tshi_check_ok(r, tsh_mlp_create(tsh_world_group(r->world), &config, &layer));
    return layer;
}

static tsh_tensor *activate(tsh_tape *tape, tsh_activation f, tsh_tensor *x) {
    switch (f) {
    case TSH_ACTIVATION_GELU_TANH: return tsh_gelu_tanh(tape, x);
    case TSH_ACTIVATION_RELU: return tsh_relu(tape, x);
    case TSH_ACTIVATION_SILU: return tsh_silu(tape, x);
    default: return x;
    }
}

static tsh_tensor *affine(tsh_tape *tape, const tsh_mlp *layer, tsh_mlp_part part, tsh_tensor *x) {
    const tsh_linear *linear = tsh_mlp_linear(layer, part);
    return tsh_affine(tape, x, tsh_linear_weight(linear), tsh_linear_bias(linear));
}

static tsh_tensor *by_functions(tsh_tape *tape, const tsh_mlp *layer, const variant *v, tsh_tensor *x) {
    tsh_tensor *h = affine(tape, layer, TSH_MLP_UP, x);
    if (v->gated) {
        h = tsh_mul(tape, activate(tape, v->activation, affine(tape, layer, TSH_MLP_GATE, x)), h);
    } else {
        h = activate(tape, v->activation, h);
    }
    return affine(tape, layer, TSH_MLP_DOWN, h);
}

static tsh_tensor *tensor(tshi_rank *r, int seed, tsh_layout layout) {
    double values[TOKENS * EMBED];
    tshi_test_integers(seed, TOKENS * EMBED, values);
    for (int i = 0; i < TOKENS * EMBED; i++) values[i] /= 8;
    tsh_tensor_config config = {TSH_FLOAT64, 2, {TOKENS, EMBED}, {layout}};
    return tshi_test_leaf(r, tsh_world_mesh(r->world), &config, values);
}

static void backward(tshi_rank *r, tsh_tape *tape, tsh_tensor *y, tsh_tensor *dy) {
    if (!tshi_check(r, y, "%s", tsh_tape_message(tape))) return;
    tshi_check_ok(r, tsh_backward_with(tape, y, &(tsh_backward_config){.gradient = dy, .retain_graph = true}));
}

/* The calls of forward, and those of backward: x and y are of one size. */
static void expect(const variant *v, const tsh_group *g, tsh_communication_stats *out) {
    *out = (tsh_communication_stats){0};
    if (!v->sequence) {
        tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_REDUCE, TOKENS * EMBED, sizeof(double));
        return;
    }
    tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_GATHER, TOKENS * EMBED, sizeof(double));
    tshi_test_expect(out, g, TSH_COLLECTIVE_REDUCE_SCATTER, TOKENS * EMBED, sizeof(double));
}

static void compare_parameters(tshi_rank *r, const tsh_mlp *got, const tsh_mlp *wanted) {
    for (tsh_mlp_part i = TSH_MLP_GATE; i < TSH_MLP_PARTS; i++) {
        const tsh_linear *a = tsh_mlp_linear(got, i), *b = tsh_mlp_linear(wanted, i);
        if (!a) continue;
        tshi_test_same(r, "weight", tsh_linear_weight(a), tsh_tensor_data(tsh_linear_weight(b)), 0);
        tshi_test_same_grad(r, "dW", tsh_linear_weight(a), tsh_tensor_data(tsh_tensor_grad(tsh_linear_weight(b))),
                            1e-11);
        if (!tsh_linear_bias(a)) continue;
        tshi_test_same_grad(r, "db", tsh_linear_bias(a), tsh_tensor_data(tsh_tensor_grad(tsh_linear_bias(b))), 1e-11);
    }
}

static void check_one(tshi_rank *r, tsh_tape *tape, const variant *v) {
    tsh_communication_stats wanted;
    tsh_group *g = tsh_world_group(r->world);
    tsh_layout layout = v->sequence ? TSH_SHARD(0) : TSH_REPLICATED;
    tsh_mlp *layer = make(r, v, NULL), *whole = make(r, v, dense);
    tsh_tensor *x = tensor(r, 1, layout), *dy = tensor(r, 2, layout);
    tsh_tensor *whole_x = tensor(r, 1, TSH_REPLICATED), *whole_dy = tensor(r, 2, TSH_REPLICATED);
    if (r->failed) return;
    tsh_tensor *y = by_functions(tape, whole, v, whole_x);
    backward(r, tape, y, whole_dy);
    tsh_group_reset_stats(g);
    tsh_tensor *got = tsh_mlp_forward(tape, layer, x);
    expect(v, g, &wanted);
    tshi_test_calls(r, "forward", g, &wanted);
    backward(r, tape, got, dy);
    expect(v, g, &wanted);
    tshi_test_calls(r, "backward", g, &wanted);
    if (!r->failed) {
        tshi_test_same(r, "y", got, tsh_tensor_data(y), 1e-11);
        tshi_test_same_grad(r, "dx", x, tsh_tensor_data(tsh_tensor_grad(whole_x)), 1e-11);
        compare_parameters(r, layer, whole);
    }
    tsh_tape_reset(tape);
    tsh_tensor_release(x);
    tsh_tensor_release(dy);
    tsh_tensor_release(whole_x);
    tsh_tensor_release(whole_dy);
    tsh_mlp_destroy(layer);
    tsh_mlp_destroy(whole);
}

static void all_variants(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < VARIANTS && !r->failed; i++) check_one(r, tape, &variants[i]);
    tsh_tape_destroy(tape);
}

/* 7 ranks hold one or two of 9 hidden features, and two of them no token. */
Test(mlp, equals_its_functions_on_one_rank_with_the_collectives_of_its_halves) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, all_variants, NULL));
    cr_assert_str_empty(tshi_test_run(7, all_variants, NULL));
}

/* --- gradient check ----------------------------------------------------------------------------------------------- */

static tsh_tensor *objective(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    tsh_tensor *y = tsh_mlp_forward(tape, user, inputs[0]);
    return tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS);
}

static void check_gradients(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    double worst = 1;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 2; i < 4 && !r->failed; i++) {
        tsh_mlp *layer = make(r, &variants[i], NULL);
        tsh_tensor *inputs[] = {tensor(r, 1, variants[i].sequence ? TSH_SHARD(0) : TSH_REPLICATED),
                                tsh_linear_weight(tsh_mlp_linear(layer, TSH_MLP_GATE)),
                                tsh_linear_weight(tsh_mlp_linear(layer, TSH_MLP_UP)),
                                tsh_linear_weight(tsh_mlp_linear(layer, TSH_MLP_DOWN))};
        tshi_check_ok(r, tsh_gradient_check(tape, objective, inputs, 4, 0, layer, &worst));
        tshi_check(r, worst < 1e-6, "variant %d: worst %g", i, worst);
        tsh_tensor_release(inputs[0]);
        tsh_mlp_destroy(layer);
    }
    tsh_tape_destroy(tape);
}

Test(mlp, passes_the_gradient_check) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, check_gradients, NULL));
}

/* --- what is kept for backward ------------------------------------------------------------------------------------ */

/* The bytes that a gated MLP keeps for backward. */
static size_t kept_bytes(tshi_rank *r, tsh_tape *tape, tsh_activation activation, tsh_dtype dtype) {
    const tsh_device *device = tsh_world_device(r->world);
    tsh_mlp_config config = {.embed = 8, .hidden = 64, .gated = true, .activation = activation, .dtype = dtype};
    tsh_mlp *layer = NULL;
    tsh_tensor *x = NULL;
    tshi_check_ok(r, tsh_mlp_create(tsh_world_group(r->world), &config, &layer));
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &(tsh_tensor_config){dtype, 2, {32, 8}, {{0}}}, &x));
    tshi_check(r, tsh_mlp_forward(tape, layer, x), "%s", tsh_tape_message(tape));
    size_t bytes = tsh_device_memory(device).live[TSH_MEMORY_ACTIVATIONS];
    tsh_tape_reset(tape);
    tsh_tensor_release(x);
    tsh_mlp_destroy(layer);
    return bytes;
}

/* gelu keeps what silu does, and the activated gate besides. */
static void keeps_one_activation_less(tshi_rank *r, void *arg) {
    static const tsh_dtype dtypes[] = {TSH_FLOAT32, TSH_FLOAT64, TSH_BFLOAT16, TSH_FLOAT16};
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < 4 && !r->failed; i++) {
        size_t size = tsh_dtype_size(dtypes[i]), hidden = (size_t)(32 * 64 / r->size) * size, out = 32 * 8 * size;
        size_t with = kept_bytes(r, tape, TSH_ACTIVATION_SILU, dtypes[i]);
        size_t without = kept_bytes(r, tape, TSH_ACTIVATION_GELU, dtypes[i]);
        tshi_check(r, without - with == hidden, "%s: %zu and %zu bytes", tsh_dtype_name(dtypes[i]), with, without);
        tshi_check(r, with >= 3 * hidden + out && with < 4 * hidden, "%s: %zu bytes", tsh_dtype_name(dtypes[i]), with);
    }
    tsh_tape_destroy(tape);
}

Test(mlp, a_gate_with_silu_keeps_one_activation_less) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, keeps_one_activation_less, NULL));
}

/* --- names and wrong configurations ------------------------------------------------------------------------------- */

static void names(tshi_rank *r, void *arg) {
    static const char *const wanted[] = {"h.mlp.c_fc.weight", "h.mlp.c_fc.bias", "h.mlp.down_proj.weight",
                                         "h.mlp.down_proj.bias"};
    tsh_mlp_config config = {.embed = 2, .hidden = 3, .bias = true, .names = {NULL, "mlp.c_fc", "mlp.down_proj"}};
    tsh_mlp *layer = NULL;
    tsh_parameters *list = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_mlp_create(tsh_world_group(r->world), &config, &layer));
    tshi_check_ok(r, tsh_mlp_register(layer, list, "h"));
    for (int i = 0; i < 4; i++) {
        const char *name = tsh_parameters_name(list, i);
        tshi_check(r, name && !strcmp(name, wanted[i]), "parameter %d is '%s'", i, name ? name : "none");
    }
    tshi_check(r, !tsh_mlp_linear(layer, TSH_MLP_GATE), "an MLP without a gate has one");
    tsh_parameters_destroy(list);
    tsh_mlp_destroy(layer);
}

Test(mlp, registers_its_parts_under_names_of_the_callers_choice) {
    cr_assert_str_empty(tshi_test_run(1, names, NULL));
}

static void wrong_configurations(tshi_rank *r, void *arg) {
    static const tsh_sharding_rule wrong_table[] = {{"*", "diagonal"}, {NULL, NULL}};
    char long_name[400];
    memset(long_name, 'n', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    const struct {
        tsh_mlp_config config;
        const char *words;
    } wrong[] = {{{.embed = 0, .hidden = 2}, "embed=0"},
                 {{.embed = 2, .hidden = -2}, "hidden=-2"},
                 {{.embed = 2, .hidden = 2, .activation = (tsh_activation)99}, "unknown activation 99"},
                 {{.embed = 2, .hidden = 2, .dtype = TSH_INT64}, "int64"},
                 {{.embed = 2, .hidden = 2, .table = wrong_table}, "'diagonal' of '*' is not a sharding"},
                 {{.embed = 2, .hidden = 2, .names = {NULL, long_name}}, "has more than 255 characters"}};
    tsh_mlp *layer = NULL;
    (void)arg;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        tsh_status status = tsh_mlp_create(tsh_world_group(r->world), &wrong[i].config, &layer);
        tshi_check(r, status != TSH_OK && !layer, "took configuration %zu", i);
        tshi_check(r, strstr(tsh_error_message(), wrong[i].words), "%zu: \"%s\"", i, tsh_error_message());
    }
}

Test(mlp, refuses_wrong_configurations) {
    cr_assert_str_empty(tshi_test_run(1, wrong_configurations, NULL));
}
