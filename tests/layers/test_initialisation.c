/* Initial values by global index, and lists of parameters. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { OUT = 13, IN = 7, COUNT = OUT * IN };

/* Each layer's whole weight as seen by the ranks' parts: result[kind][element], NaN where a rank holds nothing. */
static void initial_values(tshi_rank *r, void *arg) {
    const tsh_sharding kinds[] = {TSH_DENSE, TSH_ROW, TSH_COLUMN};
    float *result = r->result;
    (void)arg;
    for (int i = 0; i < 6 * COUNT; i++) result[i] = NAN;
    for (int k = 0; k < 3; k++, result += 2 * COUNT) {
        tsh_world_seed(r->world, 11);
        tsh_linear *linear = NULL;
        tsh_linear_create(tsh_world_group(r->world),
                          &(tsh_linear_config){.in_features = IN, .out_features = OUT, .shard = kinds[k]}, &linear);
        tsh_embedding *embedding = NULL;
        tsh_embedding_create(tsh_world_group(r->world),
                             &(tsh_embedding_config){.num_embeddings = OUT, .embedding_dim = IN, .shard = kinds[k]},
                             &embedding);
        if (!tshi_check(r, linear && embedding, "%s", tsh_error_message())) return;
        tsh_tensor *weights[] = {tsh_linear_weight(linear), tsh_embedding_weight(embedding)};
        for (int w = 0; w < 2; w++) {
            for (int64_t i = 0; i < tsh_tensor_local_numel(weights[w]); i++) {
                result[w * COUNT + tshi_test_place(weights[w], i)] = (float)tshi_test_element(weights[w], i);
            }
        }
        tsh_linear_destroy(linear);
        tsh_embedding_destroy(embedding);
    }
}

/* The values of one rank; with any number of ranks each part has the same bits. */
Test(initialisation, has_the_same_bits_at_any_number_of_ranks, .timeout = 120) {
    static float one[6 * COUNT], many[4][6 * COUNT];
    tshi_test_options options = {.ranks = 1, .result_bytes = sizeof one};
    cr_assert_str_empty(tshi_test_run_with(&options, initial_values, NULL, NULL, one));
    for (int i = 0; i < 2 * COUNT; i++) {
        cr_assert(!isnan(one[i]) && one[i] == one[2 * COUNT + i] && one[i] == one[4 * COUNT + i]);
    }
    for (int p = 2; p <= 4; p++) {
        options.ranks = p;
        cr_assert_str_empty(tshi_test_run_with(&options, initial_values, NULL, NULL, many));
        for (int i = 0; i < 6 * COUNT; i++) {
            int holders = 0;
            for (int rank = 0; rank < p; rank++) {
                if (isnan(many[rank][i])) continue;
                holders++;
                cr_assert_eq(memcmp(&many[rank][i], &one[i], sizeof(float)), 0, "%d ranks: rank %d, %d", p, rank, i);
            }
            cr_assert_eq(holders, i < 2 * COUNT ? p : 1);
        }
    }
}

static void fill(tshi_rank *r, tsh_init init, double *mean, double *deviation, double *most) {
    tsh_tensor *t = NULL;
    double sum = 0, squares = 0;
    *most = 0;
    tsh_tensor_config config = {TSH_FLOAT64, 2, {300, 100}, {{0}}};
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &t));
    tshi_check_ok(r, tsh_tensor_init(t, &init));
    for (int64_t i = 0; i < 30000; i++) {
        double v = tshi_test_element(t, i);
        sum += v;
        squares += v * v;
        *most = fmax(*most, fabs(v));
    }
    *mean = sum / 30000;
    *deviation = sqrt(squares / 30000 - *mean * *mean);
    tsh_tensor_release(t);
}

/* 30000 draws: the deviation of a mean is 0.6 % of the deviation, that of a deviation 0.4 %. */
static void distributions(tshi_rank *r, void *arg) {
    const struct {
        tsh_init init;
        double mean, deviation, most; /* most 0: unbounded */
    } wanted[] = {{{TSH_INIT_KAIMING_UNIFORM, 0, 0, 0}, 0, sqrt(1.0 / 100), sqrt(3.0 / 100)},
                  {{TSH_INIT_KAIMING_UNIFORM, 2, 0, 0}, 0, 2 * sqrt(1.0 / 100), 2 * sqrt(3.0 / 100)},
                  {{TSH_INIT_KAIMING_NORMAL, 0, 0, 0}, 0, 0.1, 0},
                  {{TSH_INIT_XAVIER_UNIFORM, 0, 0, 0}, 0, sqrt(2.0 / 400), sqrt(6.0 / 400)},
                  {{TSH_INIT_XAVIER_NORMAL, 3, 0, 0}, 0, 3 * sqrt(2.0 / 400), 0},
                  {{TSH_INIT_UNIFORM, 0, 1, 3}, 2, 2 / sqrt(12), 3},
                  {{TSH_INIT_NORMAL, 0, 5, 2}, 5, 2, 0},
                  {{TSH_INIT_CONSTANT, 0, 4, 0}, 4, 0, 4}};
    (void)arg;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        double mean, deviation, most;
        fill(r, wanted[i].init, &mean, &deviation, &most);
        double scale = fmax(wanted[i].deviation, 1e-12);
        tshi_check(r, fabs(mean - wanted[i].mean) < 0.03 * scale, "%zu: mean %g", i, mean);
        tshi_check(r, fabs(deviation - wanted[i].deviation) < 0.03 * scale, "%zu: deviation %g", i, deviation);
        bool bounded = most <= wanted[i].most && most > 0.99 * wanted[i].most;
        tshi_check(r, wanted[i].most == 0 ? most > 3 * wanted[i].deviation : bounded, "%zu: largest %g", i, most);
    }
}

Test(initialisation, follows_the_formulas, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, distributions, NULL));
}

/* The default initialisations: U(-1/sqrt(in_features), 1/sqrt(in_features)) and N(0, 1); each call draws new
 * numbers. */
static void defaults(tshi_rank *r, void *arg) {
    double most[2] = {0, 0}, squares = 0;
    (void)arg;
    tsh_linear *a = NULL;
    tsh_linear_create(tsh_world_group(r->world),
                      &(tsh_linear_config){.in_features = 100, .out_features = 50, .bias = true}, &a);
    tsh_linear *b = NULL;
    tsh_linear_create(tsh_world_group(r->world), &(tsh_linear_config){.in_features = 100, .out_features = 50}, &b);
    tsh_embedding *e = NULL;
    tsh_embedding_create(tsh_world_group(r->world), &(tsh_embedding_config){.num_embeddings = 50, .embedding_dim = 100},
                         &e);
    int equal = 0;
    for (int64_t i = 0; i < 5000; i++) {
        most[0] = fmax(most[0], fabs(tshi_test_element(tsh_linear_weight(a), i)));
        if (i < 50) most[1] = fmax(most[1], fabs(tshi_test_element(tsh_linear_bias(a), i)));
        equal += tshi_test_element(tsh_linear_weight(a), i) == tshi_test_element(tsh_linear_weight(b), i);
        squares += pow(tshi_test_element(tsh_embedding_weight(e), i), 2);
    }
    tshi_check(r, most[0] <= 0.1 && most[0] > 0.099 && most[1] <= 0.1 && most[1] > 0.08, "%g %g", most[0], most[1]);
    tshi_check(r, equal < 50, "two layers share %d of 5000 values", equal);
    tshi_check(r, fabs(squares / 5000 - 1) < 0.1, "variance %g", squares / 5000);
    tsh_linear_destroy(a);
    tsh_linear_destroy(b);
    tsh_embedding_destroy(e);
}

Test(initialisation, of_layers, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, defaults, NULL));
}

static void wrong_use(tshi_rank *r, void *arg) {
    tsh_tensor *t = NULL, *ids = NULL, *local = NULL;
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    (void)arg;
    tshi_check_ok(r, tsh_tensor_create(mesh, &(tsh_tensor_config){TSH_FLOAT32, 1, {4}, {{0}}}, &t));
    tshi_check_ok(r, tsh_tensor_create(mesh, &(tsh_tensor_config){TSH_INT64, 1, {4}, {{0}}}, &ids));
    tshi_check_ok(r, tsh_tensor_create(mesh, &(tsh_tensor_config){TSH_FLOAT32, 1, {4}, {TSH_LOCAL_INIT}}, &local));
    tsh_init normal = {TSH_INIT_NORMAL, 0, 0, 1};
    tshi_check_status(r, tsh_tensor_init(t, &(tsh_init){TSH_INIT_DEFAULT, 0, 0, 0}), TSH_ERR_ARGUMENT, "initialiser");
    tshi_check_status(r, tsh_tensor_init(t, &(tsh_init){TSH_INIT_NORMAL, 0, 0, -1}), TSH_ERR_ARGUMENT, "0, -1");
    tshi_check_status(r, tsh_tensor_init(t, &(tsh_init){TSH_INIT_UNIFORM, 0, NAN, 1}), TSH_ERR_ARGUMENT, "nan");
    tshi_check_status(r, tsh_tensor_init(ids, &normal), TSH_ERR_DTYPE, "int64");
    tshi_check_status(r, tsh_tensor_init(local, &normal), TSH_ERR_LAYOUT, "LOCAL");
    tshi_check_status(r, tsh_tensor_init(NULL, &normal), TSH_ERR_ARGUMENT, "");
    tsh_tensor_release(t);
    tsh_tensor_release(ids);
    tsh_tensor_release(local);
}

Test(initialisation, refuses_bad_distributions_and_layouts, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, wrong_use, NULL));
}

static void lists(tshi_rank *r, void *arg) {
    char name[] = "layer";
    tsh_parameters *list = NULL;
    (void)arg;
    tsh_linear *linear = NULL;
    tsh_linear_create(tsh_world_group(r->world),
                      &(tsh_linear_config){.in_features = 2, .out_features = 2, .bias = true}, &linear);
    tsh_linear *plain = NULL;
    tsh_linear_create(tsh_world_group(r->world), &(tsh_linear_config){.in_features = 2, .out_features = 2}, &plain);
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_linear_register(linear, list, name));
    memset(name, 'x', 3); /* names are copied */
    tshi_check_ok(r, tsh_linear_register(plain, list, "plain"));
    tshi_check(r, tsh_parameters_count(list) == 3, "%d parameters", tsh_parameters_count(list));
    tshi_check(r, strcmp(tsh_parameters_name(list, 1), "layer.bias") == 0, "%s", tsh_parameters_name(list, 1));
    tshi_check(r, strcmp(tsh_parameters_name(list, 2), "plain.weight") == 0, "%s", tsh_parameters_name(list, 2));
    tshi_check(r, tsh_parameters_tensor(list, 2) == tsh_linear_weight(plain), "another tensor");
    tshi_check(r, !tsh_parameters_tensor(list, 3) && !tsh_parameters_name(list, -1), "something outside the list");
    tshi_check_status(r, tsh_linear_register(plain, list, "plain"), TSH_ERR_ARGUMENT, "'plain.weight' already");
    tshi_check(r, tsh_parameters_count(list) == 3, "a failed call added something");
    tsh_linear_destroy(linear); /* the list keeps the tensors */
    tsh_linear_destroy(plain);
    tshi_check(r, tsh_tensor_local_numel(tsh_parameters_tensor(list, 0)) == 4, "the list lost its tensor");
    tsh_parameters_destroy(list);
    tsh_parameters_destroy(NULL);
}

Test(parameters, keep_names_and_tensors, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, lists, NULL));
}
