/* Steps of 16-bit parameters: master weights, stochastic rounding, and bits that are lost. */
#include "support/philox.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(low_bits, .timeout = 240);

/* --- steps -------------------------------------------------------------------------------------------------------- */

enum { ROWS = 7, COLS = 11, SIZE = ROWS * COLS, STEPS = 5 };

/* A matrix that both axes split, the second along its other dim or the same. */
static tsh_tensor *make_matrix(tshi_rank *r, const tsh_mesh *mesh, int kind, tsh_dtype dtype, const double *values) {
    const tsh_layout layouts[][2] = {{TSH_REPLICATED, TSH_REPLICATED},
                                     {TSH_REPLICATED, TSH_SHARD(0)},
                                     {TSH_SHARD(0), TSH_SHARD(1)},
                                     {TSH_SHARD(1), TSH_SHARD(1)}};
    tsh_tensor_config config = {dtype, 2, {ROWS, COLS}, {layouts[kind][0], layouts[kind][1]}};
    return tshi_test_leaf(r, mesh, &config, values);
}

static float narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* AdamW with master weights is AdamW in float32; the parameter is what that rounds to. */
static void master_weights(tshi_rank *r, void *axes) {
    const tsh_adamw_config config = {.lr = 0.001, .weight_decay = 0.1, .low_bits = TSH_MASTER_WEIGHTS};
    double start[SIZE], g[SIZE];
    float p[SIZE], m[SIZE] = {0}, v[SIZE] = {0};
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    tshi_check_ok(r, tsh_mesh_create(r->world, axes, &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int kind = 0; kind < 4 && !r->failed; kind++) {
        tsh_parameters *list = NULL;
        tsh_optimizer *optimizer = NULL;
        tshi_test_integers(1, SIZE, start);
        tsh_tensor *w = make_matrix(r, mesh, kind, TSH_BFLOAT16, start);
        tshi_check_ok(r, tsh_parameters_create(r->world, &list));
        tshi_check_ok(r, tsh_parameters_add(list, "w", w));
        if (kind % 2) tshi_check_ok(r, tsh_parameters_set_precision(list, &(tsh_precision){.storage = TSH_BFLOAT16}));
        tshi_check_ok(r, tsh_adamw_create(list, &config, &optimizer));
        for (int i = 0; i < SIZE; i++) p[i] = (float)start[i], m[i] = v[i] = 0;
        for (int s = 1; s <= STEPS && !r->failed; s++) {
            double rounded[SIZE];
            tshi_test_integers(10 + s, SIZE, g);
            tsh_optimizer_zero_grad(optimizer);
            tshi_test_set_grad(r, tape, w, g);
            tshi_check_ok(r, tsh_optimizer_step(optimizer));
            for (int i = 0; i < SIZE; i++) {
                m[i] = 0.9f * m[i] + 0.1f * (float)g[i];
                v[i] = 0.999f * v[i] + 0.001f * (float)(g[i] * g[i]);
                double hat = v[i] / (1 - pow(0.999, s));
                p[i] = (float)(p[i] * (1 - 0.001 * 0.1) - 0.001 * m[i] / (1 - pow(0.9, s)) / (sqrt(hat) + 1e-8));
                rounded[i] = narrow(p[i]);
            }
            /* At a tie a float32's last bit decides: one unit of bfloat16. */
            tshi_test_same(r, "w", w, rounded, 0x1p-8);
            for (int64_t i = 0; i < w->numel; i++) {
                int64_t place = tshi_test_place(w, i);
                uint16_t bits;
                memcpy(&bits, (char *)tshi_data(w) + 2 * i, sizeof bits);
                float now = tshi_test_element(w, i) == rounded[place] ? p[place] : NAN;
                tshi_check(r, !isnan(now) || fabs(tshi_test_element(w, i) - p[place]) <= fabsf(p[place]) * 0x1.01p-8f,
                           "element %d is %g, rounded from %g", (int)place, tshi_test_element(w, i), p[place]);
            }
        }
        tsh_optimizer_destroy(optimizer);
        tsh_parameters_destroy(list);
        tsh_tensor_release(w);
    }
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(low_bits, master_weights_step_as_float32_does_and_round_the_parameter_from_it) {
    cr_assert_str_empty(tshi_test_run_meshes(master_weights));
}

static uint64_t stream_of(const char *name) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; *name; name++) {
        hash = (hash ^ (unsigned char)*name) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return (hash | UINT64_C(1) << 63) & ~(uint64_t)UINT32_MAX;
}

/* Steps of 2^-10 g are exact in float32. */
static void stochastic(tshi_rank *r, void *axes) {
    const tsh_sgd_config config = {.lr = 0x1p-10, .low_bits = TSH_STOCHASTIC_ROUNDING};
    double start[SIZE], g[SIZE], p[SIZE];
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    tshi_check_ok(r, tsh_mesh_create(r->world, axes, &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int kind = 0; kind < 4 && !r->failed; kind++) {
        tsh_parameters *list = NULL;
        tsh_optimizer *optimizer = NULL;
        tshi_test_integers(1, SIZE, start);
        tsh_tensor *w = make_matrix(r, mesh, kind, TSH_BFLOAT16, start);
        tshi_check_ok(r, tsh_parameters_create(r->world, &list));
        tshi_check_ok(r, tsh_parameters_add(list, "layer.w", w));
        tshi_check_ok(r, tsh_sgd_create(list, &config, &optimizer));
        memcpy(p, start, sizeof p);
        for (int s = 1; s <= STEPS && !r->failed; s++) {
            tshi_test_integers(10 + s, SIZE, g);
            tsh_optimizer_zero_grad(optimizer);
            tshi_test_set_grad(r, tape, w, g);
            tshi_check_ok(r, tsh_optimizer_step(optimizer));
            for (uint64_t i = 0; i < SIZE; i++) {
                uint32_t word[4], bits;
                float stepped = (float)(p[i] - 0x1p-10 * g[i]);
                tshi_philox_block(r->world->seed, stream_of("layer.w") + (unsigned)s, i / 4, word);
                memcpy(&bits, &stepped, sizeof bits);
                bits = (bits + (word[i % 4] >> 16)) & 0xffff0000u;
                memcpy(&stepped, &bits, sizeof bits);
                p[i] = stepped;
            }
            tshi_test_same(r, "w", w, p, 0);
        }
        tsh_optimizer_destroy(optimizer);
        tsh_parameters_destroy(list);
        tsh_tensor_release(w);
    }
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(low_bits, stochastic_rounding_depends_on_global_elements_and_steps_alone) {
    cr_assert_str_empty(tshi_test_run_meshes(stochastic));
}

/* 400 steps of 2^-12 from 1, whose neighbours in bfloat16 are 2^-8 and 2^-7 away. */
static void means(tshi_rank *r, void *arg) {
    enum { MANY = 4000, TIMES = 400 };
    const tsh_low_bits kinds[] = {TSH_LOSE_LOW_BITS, TSH_MASTER_WEIGHTS, TSH_STOCHASTIC_ROUNDING};
    const double wanted = 1 - TIMES * 0x1p-12;
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    double *ones = malloc(MANY * sizeof *ones);
    for (int i = 0; i < MANY; i++) ones[i] = 1;
    for (int k = 0; k < 3; k++) {
        tsh_parameters *list = NULL;
        tsh_optimizer *optimizer = NULL;
        tsh_tensor_config config = {TSH_BFLOAT16, 1, {MANY}, {{0}}};
        tsh_tensor *w = tshi_test_leaf(r, tsh_world_mesh(r->world), &config, ones);
        tshi_check_ok(r, tsh_parameters_create(r->world, &list));
        tshi_check_ok(r, tsh_parameters_add(list, "w", w));
        tshi_check_ok(r, tsh_sgd_create(list, &(tsh_sgd_config){.lr = 0x1p-12, .low_bits = kinds[k]}, &optimizer));
        tshi_test_set_grad(r, tape, w, ones);
        for (int s = 0; s < TIMES; s++) tshi_check_ok(r, tsh_optimizer_step(optimizer));
        double mean = 0;
        for (int i = 0; i < MANY; i++) mean += tshi_test_element(w, i) / MANY;
        double expected = k == 0 ? 1 : wanted;
        tshi_check(r, fabs(mean - expected) < (k == 2 ? 0x1p-11 : 0x1p-9), "kind %d: %g, not %g", k, mean, expected);
        tsh_optimizer_destroy(optimizer);
        tsh_parameters_destroy(list);
        tsh_tensor_release(w);
    }
    free(ones);
    tsh_tape_destroy(tape);
}

Test(low_bits, small_steps_are_lost_kept_or_kept_in_the_mean) {
    cr_assert_str_empty(tshi_test_run(1, means, NULL));
}

/* --- the warning -------------------------------------------------------------------------------------------------- */

static int warnings;

static void count_warning(void *user, tsh_log_level level, const char *line) {
    (void)user;
    if (level == TSH_LOG_WARNING && strstr(line, "are lost (low_bits")) warnings++;
}

static void warns(tshi_rank *r, void *arg) {
    const tsh_dtype dtypes[] = {TSH_FLOAT32, TSH_BFLOAT16, TSH_FLOAT16};
    tsh_world *world = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_world_init(&(tsh_world_config){.log = {count_warning, NULL}}, &world));
    for (int d = 0; d < 3 && !r->failed; d++) {
        for (int k = 0; k < 3; k++) {
            tsh_parameters *list = NULL;
            tsh_optimizer *optimizer = NULL;
            tsh_tensor *w[2] = {NULL, NULL};
            bool refused = dtypes[d] == TSH_FLOAT16 && k == TSH_STOCHASTIC_ROUNDING;
            const tsh_adamw_config config = {.lr = 1, .low_bits = (tsh_low_bits)k};
            tshi_check_ok(r, tsh_parameters_create(world, &list));
            for (int i = 0; i < 2; i++) {
                tsh_tensor_config shape = {.dtype = dtypes[d], .ndim = 1, .shape = {3}};
                tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(world), &shape, &w[i]));
                tshi_check_ok(r, tsh_parameters_add(list, i ? "a" : "b", w[i]));
            }
            warnings = 0;
            tshi_check_status(r, tsh_adamw_create(list, &config, &optimizer), refused ? TSH_ERR_DTYPE : TSH_OK, "");
            tshi_check(r, warnings == (d > 0 && k == 0), "dtype %d, kind %d: %d warnings", d, k, warnings);
            tsh_optimizer_destroy(optimizer);
            tsh_parameters_destroy(list);
            for (int i = 0; i < 2; i++) tsh_tensor_release(w[i]);
        }
    }
    tsh_parameters *list = NULL;
    tsh_optimizer *optimizer = NULL;
    tshi_check_ok(r, tsh_parameters_create(world, &list));
    tshi_check_status(r, tsh_sgd_create(list, &(tsh_sgd_config){.low_bits = (tsh_low_bits)3}, &optimizer),
                      TSH_ERR_ARGUMENT, "low_bits");
    tsh_parameters_destroy(list);
    tsh_world_destroy(world);
}

Test(low_bits, an_optimizer_that_loses_low_bits_says_so_once) {
    tshi_test_options options = {.ranks = 1, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, warns, NULL, NULL, NULL));
}
