/* Mixed precision: float32 gradients beside 16-bit parameters, and policies by name. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(precision, .timeout = 240);

/* --- gradients ---------------------------------------------------------------------------------------------------- */

enum { BATCH = 37, IN = 5, OUT = 7, VOCABULARY = 3, ALL = OUT * IN };

/* Sums of up to BATCH products of numbers in [-8, 8]: too long for 8 bits, exact in float32. */
typedef struct wanted_gradients {
    double up[ALL], up_bias[OUT], down[ALL], table[VOCABULARY * IN], twice[IN];
} wanted_gradients;

typedef struct numbers {
    double x[BATCH * IN], up_t[BATCH * OUT], down_t[BATCH * OUT], table_t[BATCH * IN], ids[BATCH];
} numbers;

static void make_numbers(numbers *n, wanted_gradients *w) {
    tshi_test_integers(1, BATCH * IN, n->x);
    tshi_test_integers(2, BATCH * OUT, n->up_t);
    tshi_test_integers(3, BATCH * OUT, n->down_t);
    tshi_test_integers(4, BATCH * IN, n->table_t);
    memset(w, 0, sizeof *w);
    for (int b = 0; b < BATCH; b++) {
        n->ids[b] = b % VOCABULARY;
        for (int o = 0; o < OUT; o++) {
            w->up_bias[o] += n->up_t[b * OUT + o];
            for (int i = 0; i < IN; i++) {
                w->up[o * IN + i] += n->up_t[b * OUT + o] * n->x[b * IN + i];
                w->down[o * IN + i] += n->down_t[b * OUT + o] * n->x[b * IN + i];
            }
        }
        for (int i = 0; i < IN; i++) w->table[b % VOCABULARY * IN + i] += n->table_t[b * IN + i];
    }
    for (int i = 0; i < IN; i++) w->twice[i] = 257;
}

typedef struct model {
    tsh_mesh *mesh;
    tsh_linear *up, *down;
    tsh_embedding *embedding;
    tsh_tensor *twice;
    tsh_parameters *list;
    tsh_tape *tape;
    tsh_data_parallel *dp;
} model;

/* Where parameters are stored, what is computed in (the dtype of all that functions make), and what x has. */
typedef struct test_dtypes {
    tsh_dtype storage, computed, x;
    tsh_arithmetic arithmetic;
} test_dtypes;

static void make_model(tshi_rank *r, const char *axes, const test_dtypes *d, model *m) {
    const tsh_dtype dtype = d->storage;
    tsh_linear_config linear = {
        .in_features = IN, .out_features = OUT, .shard = TSH_COLUMN, .bias = true, .dtype = dtype};
    tshi_check_ok(r, tsh_mesh_create(r->world, axes, &m->mesh));
    tsh_group *group = tsh_mesh_group(m->mesh, "model");
    tshi_check_ok(r, tsh_linear_create(group, &linear, &m->up));
    linear.shard = TSH_ROW;
    linear.bias = false;
    tshi_check_ok(r, tsh_linear_create(group, &linear, &m->down));
    tsh_embedding_config table = {.num_embeddings = VOCABULARY, .embedding_dim = IN, .shard = TSH_ROW, .dtype = dtype};
    tshi_check_ok(r, tsh_embedding_create(group, &table, &m->embedding));
    const double ones[IN] = {1, 1, 1, 1, 1};
    m->twice = tshi_test_leaf(r, m->mesh, &(tsh_tensor_config){.dtype = dtype, .ndim = 1, .shape = {IN}}, ones);
    tshi_check_ok(r, tsh_tape_create(r->world, &m->tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &m->list));
    tshi_check_ok(r, tsh_linear_register(m->up, m->list, "up"));
    tshi_check_ok(r, tsh_linear_register(m->down, m->list, "down"));
    tshi_check_ok(r, tsh_embedding_register(m->embedding, m->list, "embedding"));
    tshi_check_ok(r, tsh_parameters_add(m->list, "twice", m->twice));
    const tsh_precision precision = {.storage = dtype, .arithmetic = d->arithmetic};
    tshi_check_ok(r, tsh_parameters_set_precision(m->list, &precision));
}

static void free_model(model *m) {
    tsh_data_parallel_destroy(m->dp);
    tsh_parameters_destroy(m->list);
    tsh_linear_destroy(m->up);
    tsh_linear_destroy(m->down);
    tsh_embedding_destroy(m->embedding);
    tsh_tensor_release(m->twice);
    tsh_tape_destroy(m->tape);
    tsh_mesh_destroy(m->mesh);
}

static tsh_tensor *batch_of(tshi_rank *r, model *m, tsh_dtype dtype, int64_t cols, const double *values) {
    tsh_tensor_config config = {.dtype = dtype, .ndim = cols ? 2 : 1, .shape = {BATCH, cols}, .layout = {TSH_SHARD(0)}};
    return tshi_test_tensor(r, m->mesh, &config, values);
}

static tsh_tensor *add_part(tsh_tape *tape, tsh_tensor *y, tsh_tensor *t, tsh_tensor *loss) {
    tsh_tensor *part = tsh_cast(tape, tsh_sum(tape, tsh_mul(tape, y, t), TSH_ALL_DIMS), TSH_FLOAT32);
    return loss ? tsh_add(tape, loss, part) : part;
}

static void backward(tshi_rank *r, model *m, const numbers *n, const test_dtypes *d) {
    const tsh_dtype dtype = d->computed;
    tsh_tensor *x = batch_of(r, m, d->x, IN, n->x), *ids = batch_of(r, m, TSH_INT64, 0, n->ids);
    tsh_tensor *t[3] = {batch_of(r, m, dtype, OUT, n->up_t), batch_of(r, m, dtype, OUT, n->down_t),
                        batch_of(r, m, dtype, IN, n->table_t)};
    const double many[IN] = {256, 256, 256, 256, 256};
    tsh_tensor_config row = {.dtype = dtype, .ndim = 1, .shape = {IN}};
    tsh_tensor *factor = tshi_test_tensor(r, m->mesh, &row, many);
    tsh_tensor *loss = add_part(m->tape, tsh_linear_forward(m->tape, m->up, x), t[0], NULL);
    loss = add_part(m->tape, tsh_linear_forward(m->tape, m->down, x), t[1], loss);
    loss = add_part(m->tape, tsh_embedding_forward(m->tape, m->embedding, ids), t[2], loss);
    loss = add_part(m->tape, m->twice, factor, loss);
    tsh_tensor *y = tsh_linear_forward(m->tape, m->up, x);
    tshi_check(r, y && tsh_tensor_dtype(y) == dtype, "the output is %s", y ? tsh_dtype_name(tsh_tensor_dtype(y)) : "?");
    tsh_tensor *twice = tsh_cast(m->tape, tsh_sum(m->tape, m->twice, TSH_ALL_DIMS), TSH_FLOAT32);
    tshi_check_ok(r, tsh_backward(m->tape, tsh_add(m->tape, loss, twice)));
    tshi_check_ok(r, tsh_tape_reset(m->tape));
    for (int i = 0; i < 3; i++) tsh_tensor_release(t[i]);
    tsh_tensor_release(factor);
    tsh_tensor_release(ids);
    tsh_tensor_release(x);
}

static void check_gradients(tshi_rank *r, const model *m, const wanted_gradients *w, double times) {
    struct {
        const char *name;
        tsh_tensor *parameter;
        const double *wanted;
        int count;
    } all[] = {{"up.weight", tsh_linear_weight(m->up), w->up, ALL},
               {"up.bias", tsh_linear_bias(m->up), w->up_bias, OUT},
               {"down.weight", tsh_linear_weight(m->down), w->down, ALL},
               {"table", tsh_embedding_weight(m->embedding), w->table, VOCABULARY * IN},
               {"twice", m->twice, w->twice, IN}};
    for (int p = 0; p < 5 && !r->failed; p++) {
        double whole[ALL];
        tsh_tensor *grad = tsh_tensor_grad(all[p].parameter);
        for (int i = 0; i < all[p].count; i++) whole[i] = times * all[p].wanted[i];
        if (!tshi_check(r, grad && tsh_tensor_dtype(grad) == TSH_FLOAT32, "%s: no float32", all[p].name)) return;
        tshi_test_same(r, all[p].name, grad, whole, 0);
    }
}

/* Without a schedule, with one, and accumulated over backwards: each gradient and each sum over ranks is float32,
 * whatever the functions compute in. */
static void gradients(tshi_rank *r, void *axes) {
    static const test_dtypes all[] = {
        {TSH_BFLOAT16, TSH_BFLOAT16, TSH_BFLOAT16, TSH_ARITHMETIC_AS_STORED},
        {TSH_FLOAT16, TSH_FLOAT16, TSH_FLOAT16, TSH_ARITHMETIC_AS_STORED},
        {TSH_FLOAT32, TSH_BFLOAT16, TSH_FLOAT32, TSH_ARITHMETIC_BFLOAT16},
        {TSH_FLOAT32, TSH_FLOAT16, TSH_FLOAT16, TSH_ARITHMETIC_FLOAT16},
        {TSH_BFLOAT16, TSH_FLOAT32, TSH_BFLOAT16, TSH_ARITHMETIC_FLOAT32},
    };
    enum { ALL_DTYPES = sizeof all / sizeof all[0] };
    numbers n;
    wanted_gradients w;
    make_numbers(&n, &w);
    for (int c = 0; c < 2 * ALL_DTYPES && !r->failed; c++) {
        model m = {0};
        const test_dtypes *d = &all[c % ALL_DTYPES];
        make_model(r, axes, d, &m);
        tsh_data_parallel_config config = {.bucket_bytes = 200};
        if (c >= ALL_DTYPES)
            tshi_check_ok(r, tsh_data_parallel_create(m.tape, m.list, tsh_mesh_group(m.mesh, "data"), &config, &m.dp));
        for (int times = 1; times <= 2; times++) {
            backward(r, &m, &n, d);
            check_gradients(r, &m, &w, times);
        }
        free_model(&m);
    }
}

Test(precision, gradients_of_16_bit_functions_are_float32_and_exact_where_these_are) {
    cr_assert_str_empty(tshi_test_run_meshes(gradients));
}

static void read_values(tshi_rank *r, tsh_tape *tape, tsh_tensor *y, float *out) {
    tsh_tensor *whole = tsh_cast(tape, y, TSH_FLOAT32);
    if (tshi_check(r, whole != NULL, "%s", tsh_tape_message(tape))) tshi_check_ok(r, tsh_tensor_read_whole(whole, out));
}

/* Casts by hand, of values that 8 bits do not hold. */
static void casts(tshi_rank *r, void *axes) {
    const test_dtypes d = {TSH_FLOAT32, TSH_BFLOAT16, TSH_FLOAT32, TSH_ARITHMETIC_BFLOAT16};
    float got[BATCH * OUT], wanted[BATCH * OUT];
    double values[BATCH * IN];
    model m = {0};
    make_model(r, axes, &d, &m);
    for (int i = 0; i < BATCH * IN; i++) values[i] = (i % 11 - 5) / 7.0;
    tsh_tensor *x = batch_of(r, &m, TSH_FLOAT32, IN, values);
    tsh_tensor *in[2] = {x, tsh_linear_weight(m.down)};
    for (int i = 0; i < 2; i++) in[i] = tsh_cast(m.tape, in[i], TSH_BFLOAT16);
    read_values(r, m.tape, tsh_linear_forward(m.tape, m.down, x), got);
    read_values(r, m.tape, tsh_affine(m.tape, in[0], in[1], NULL), wanted);
    tshi_check(r, !memcmp(got, wanted, sizeof got), "a layer's output differs from that of casts by hand");
    tshi_check_ok(r, tsh_tape_reset(m.tape));
    tsh_tensor_release(x);
    free_model(&m);
}

Test(precision, a_layer_computes_what_casts_by_hand_do) {
    cr_assert_str_empty(tshi_test_run_meshes(casts));
}

static tsh_tensor *mask_x(tsh_tape *tape, tsh_tensor *x, tsh_tensor *row) {
    return tsh_mul(tape, tsh_masked_fill(tape, x, tsh_cast(tape, tsh_cast(tape, row, TSH_FLOAT32), TSH_UINT8), 2), row);
}

/* A parameter of fewer dims is repeated: x is cast for it as for any other. */
static void repeats(tshi_rank *r, void *axes) {
    static const struct {
        const char *name;
        tsh_tensor *(*call)(tsh_tape *tape, tsh_tensor *x, tsh_tensor *row);
    } all[] = {{"add", tsh_add}, {"sub", tsh_sub},   {"mul", tsh_mul},
               {"div", tsh_div}, {"bias", tsh_bias}, {"masked_fill", mask_x}};
    const test_dtypes d = {TSH_FLOAT32, TSH_BFLOAT16, TSH_FLOAT32, TSH_ARITHMETIC_BFLOAT16};
    float got[BATCH * IN], wanted[BATCH * IN];
    double values[BATCH * IN];
    model m = {0};
    make_model(r, axes, &d, &m);
    for (int i = 0; i < BATCH * IN; i++) values[i] = (i % 11 - 5) / 7.0;
    tsh_tensor *x = batch_of(r, &m, TSH_FLOAT32, IN, values);
    for (int i = 0; i < 2 * (int)(sizeof all / sizeof *all) && !r->failed; i++) {
        tsh_tensor *in[] = {x, m.twice}, *cast[2];
        bool swap = i % 2 && i / 2 < 4; /* the row comes first */
        for (int k = 0; k < 2; k++) cast[k] = tsh_cast(m.tape, in[k], TSH_BFLOAT16);
        tsh_tensor *y = all[i / 2].call(m.tape, in[swap], in[!swap]);
        tshi_check(r, y && tsh_tensor_dtype(y) == TSH_BFLOAT16, "%s: %s", all[i / 2].name, tsh_tape_message(m.tape));
        read_values(r, m.tape, y, got);
        read_values(r, m.tape, all[i / 2].call(m.tape, cast[swap], cast[!swap]), wanted);
        tshi_check(r, !memcmp(got, wanted, sizeof got), "%s differs from that of casts by hand", all[i / 2].name);
        tshi_check_ok(r, tsh_tape_reset(m.tape));
    }
    tsh_tensor_release(x);
    free_model(&m);
}

Test(precision, repeated_parameters_are_computed_with_as_any_other) {
    cr_assert_str_empty(tshi_test_run_meshes(repeats));
}

/* Sums of gradients over `data` are made in the schedule's buckets, and products over `model` have their own sums. */
static void arithmetic_collectives(tshi_rank *r, void *axes) {
    const test_dtypes both[] = {{TSH_BFLOAT16, TSH_BFLOAT16, TSH_BFLOAT16, TSH_ARITHMETIC_AS_STORED},
                                {TSH_FLOAT32, TSH_BFLOAT16, TSH_FLOAT32, TSH_ARITHMETIC_BFLOAT16}};
    tsh_communication_stats sums[2], data[2], parts[2];
    wanted_gradients w;
    numbers n;
    make_numbers(&n, &w);
    for (int c = 0; c < 2; c++) {
        model m = {0};
        make_model(r, axes, &both[c], &m);
        tsh_group *group = tsh_mesh_group(m.mesh, "data");
        tshi_check_ok(r, tsh_data_parallel_create(m.tape, m.list, group, NULL, &m.dp));
        tsh_group_reset_stats(group);
        tsh_group_reset_stats(tsh_mesh_group(m.mesh, "model"));
        backward(r, &m, &n, &both[c]);
        sums[c] = tsh_group_stats(tsh_data_parallel_group(m.dp));
        data[c] = tsh_group_stats(group);
        parts[c] = tsh_group_stats(tsh_mesh_group(m.mesh, "model"));
        free_model(&m);
    }
    for (int k = 0; k < TSH_COLLECTIVE_COUNT; k++) {
        tshi_check(r, sums[0].calls[k] == sums[1].calls[k] && sums[0].bytes[k] == sums[1].bytes[k],
                   "collective %d: %llu sums of %llu bytes, without casts %llu of %llu", k,
                   (unsigned long long)sums[1].calls[k], (unsigned long long)sums[1].bytes[k],
                   (unsigned long long)sums[0].calls[k], (unsigned long long)sums[0].bytes[k]);
        tshi_check(r, data[0].calls[k] == data[1].calls[k], "collective %d over data: %llu calls, without casts %llu",
                   k, (unsigned long long)data[1].calls[k], (unsigned long long)data[0].calls[k]);
        tshi_check(r, parts[0].calls[k] == parts[1].calls[k],
                   "collective %d over model: %llu calls, without casts %llu", k, (unsigned long long)parts[1].calls[k],
                   (unsigned long long)parts[0].calls[k]);
    }
}

Test(precision, arithmetic_in_another_dtype_adds_no_collectives) {
    cr_assert_str_empty(tshi_test_run_meshes(arithmetic_collectives));
}

/* --- policies ----------------------------------------------------------------------------------------------------- */

static void policy(tshi_rank *r, void *arg) {
    static const char *const float32[] = {"layers.*.norm", "head", NULL};
    static const tsh_precision p = {.storage = TSH_BFLOAT16, .float32_layers = float32};
    const struct {
        const char *layer, *name;
        bool kept;
    } all[] = {{"layers.0.norm", "layers.0.norm.weight", true},
               {"layers.0.up", "layers.0.up.weight", false},
               {"head", "head.weight", true},
               {"headless", "headless.w", false}};
    const double two = 2;
    tsh_parameters *list = NULL;
    tsh_tensor *w[4];
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    for (int i = 0; i < 4; i++) {
        tsh_tensor_config config = {.dtype = tsh_precision_dtype(&p, all[i].layer)};
        tshi_check(r, config.dtype == (all[i].kept ? TSH_FLOAT32 : TSH_BFLOAT16), "%s", all[i].layer);
        w[i] = tshi_test_leaf(r, tsh_world_mesh(r->world), &config, &two);
        tshi_check_ok(r, tsh_parameters_add(list, all[i].name, w[i]));
    }
    for (int wide = 0; wide < 2; wide++) {
        tsh_precision now = {
            .storage = TSH_BFLOAT16, .reduction = wide ? TSH_FLOAT32 : TSH_BFLOAT16, .float32_layers = float32};
        tshi_check_ok(r, tsh_parameters_set_precision(list, &now));
        tshi_check(r, !tsh_tensor_grad(w[1]), "a gradient of another dtype is left");
        for (int i = 0; i < 4; i++) {
            tshi_check_ok(r, tsh_backward_with(tape, tsh_mul(tape, w[i], w[i]), NULL));
            tshi_check_ok(r, tsh_tape_reset(tape));
            tsh_dtype wanted = wide || all[i].kept ? TSH_FLOAT32 : TSH_BFLOAT16;
            tshi_check(r, tsh_tensor_dtype(tsh_tensor_grad(w[i])) == wanted, "gradient of %s", all[i].name);
        }
    }
    tshi_check_status(r, tsh_parameters_set_precision(list, &(tsh_precision){.storage = TSH_INT64}), TSH_ERR_DTYPE, "");
    tshi_check_status(
        r, tsh_parameters_set_precision(list, &(tsh_precision){.storage = TSH_BFLOAT16, .reduction = TSH_FLOAT16}),
        TSH_ERR_DTYPE, "gradients of bfloat16");
    tshi_check_status(r, tsh_parameters_set_precision(list, &(tsh_precision){.storage = TSH_BFLOAT16}), TSH_ERR_DTYPE,
                      "'layers.0.norm.weight' is float32, but the precision wants bfloat16");
    tshi_check(r, tsh_precision_dtype(NULL, "a") == TSH_FLOAT32 && tsh_precision_dtype(&p, NULL) == TSH_FLOAT32,
               "nothing is float32");
    tsh_parameters_destroy(list);
    for (int i = 0; i < 4; i++) tsh_tensor_release(w[i]);
    tsh_tape_destroy(tape);
}

Test(precision, a_policy_names_the_layers_that_stay_float32) {
    cr_assert_str_empty(tshi_test_run(1, policy, NULL));
}

/* A norm of float32 parameters computes in float32 and keeps the dtype of x. */
static void norm(tshi_rank *r, void *arg) {
    tsh_norm *layer = NULL;
    tsh_tape *tape = NULL;
    const double values[4] = {1, 2, 3, 250};
    const tsh_group *group = tsh_world_group(r->world);
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_norm_create((tsh_group *)group, &(tsh_norm_config){.features = 4}, &layer));
    tsh_tensor_config shape = {.dtype = TSH_BFLOAT16, .ndim = 2, .shape = {1, 4}};
    tsh_tensor *x = tshi_test_leaf(r, tsh_world_mesh(r->world), &shape, values);
    tsh_tensor *y = tsh_norm_forward(tape, layer, x);
    if (tshi_check(r, y && tsh_tensor_dtype(y) == TSH_BFLOAT16, "%s", tsh_tape_message(tape))) {
        tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS)));
        tshi_check(r, tsh_tensor_dtype(tsh_tensor_grad(x)) == TSH_BFLOAT16, "gradient of x");
        tshi_check(r, tsh_tensor_dtype(tsh_tensor_grad(tsh_norm_weight(layer))) == TSH_FLOAT32, "gradient of gamma");
    }
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
    tsh_norm_destroy(layer);
}

Test(precision, a_float32_norm_takes_16_bit_rows) {
    cr_assert_str_empty(tshi_test_run(1, norm, NULL));
}
