/* Parameters of layers have no memory until their first use, and may become slices before: the values are those that
 * they would have had from the start. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 7, COLS = 5, PADDING = 4, WIDTH = 256, LAYERS = 13 };

static size_t parameter_bytes(const tsh_world *world) {
    return tsh_device_memory(tsh_world_device(world)).live[TSH_MEMORY_PARAMETERS];
}

/* What the table below starts with. */
static void expected(tshi_rank *r, uint64_t seed, double *whole) {
    tsh_tensor *t = NULL;
    const tsh_tensor_config config = {TSH_FLOAT64, 2, {ROWS, COLS}, {{0}}};
    tsh_world_seed(r->world, seed);
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &t));
    tshi_check_ok(r, tsh_tensor_init(t, &(tsh_init){.kind = TSH_INIT_NORMAL, .b = 1}));
    tshi_check_ok(r, tsh_tensor_read(t, whole, ROWS * COLS));
    memset(whole + PADDING * COLS, 0, COLS * sizeof *whole);
    tsh_tensor_release(t);
    tsh_world_seed(r->world, seed);
}

static tsh_embedding *make_table(tshi_rank *r) {
    const tsh_embedding_config config = {
        .num_embeddings = ROWS, .embedding_dim = COLS, .dtype = TSH_FLOAT64, .has_padding = true, .padding = PADDING};
    tsh_embedding *table = NULL;
    size_t before = parameter_bytes(r->world);
    tshi_check_ok(r, tsh_embedding_create(tsh_world_group(r->world), &config, &table));
    tshi_check(r, parameter_bytes(r->world) == before, "the table has memory already");
    return table;
}

static void same(tshi_rank *r, const char *what, const double *got, const double *wanted) {
    tshi_check(r, memcmp(got, wanted, ROWS * COLS * sizeof *got) == 0, "%s: other values", what);
}

/* --- the first use ------------------------------------------------------------------------------------------------ */

static tsh_status look_up(tshi_rank *r, tsh_embedding *table) {
    int64_t rows[ROWS] = {0, 1, 2, 3, 4, 5, 6};
    double got[ROWS * COLS], wanted[ROWS * COLS];
    tsh_tape *tape = NULL;
    tsh_tensor *ids = NULL;
    expected(r, 3, wanted);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r,
                  tsh_tensor_create(tsh_world_mesh(r->world), &(tsh_tensor_config){TSH_INT64, 1, {ROWS}, {{0}}}, &ids));
    tshi_check_ok(r, tsh_tensor_write(ids, rows, ROWS));
    tsh_tensor *y = tsh_embedding_forward(tape, table, ids);
    tsh_status status = tsh_tensor_read(y, got, ROWS * COLS);
    if (status == TSH_OK) same(r, "a function", got, wanted);
    tsh_tape_destroy(tape);
    tsh_tensor_release(ids);
    return status;
}

static tsh_status clone(tsh_tensor *weight, double *got) {
    tsh_tensor *copy = NULL;
    tsh_status status = tsh_tensor_clone(weight, &copy);
    if (status == TSH_OK) status = tsh_tensor_read(copy, got, ROWS * COLS);
    tsh_tensor_release(copy);
    return status;
}

static void first_uses(tshi_rank *r, void *arg) {
    double wanted[ROWS * COLS];
    (void)arg;
    for (int use = 0; use < 5 && !r->failed; use++) {
        double got[ROWS * COLS] = {0};
        expected(r, 3, wanted);
        size_t before = parameter_bytes(r->world);
        tsh_embedding *table = make_table(r);
        tsh_tensor *weight = tsh_embedding_weight(table);
        if (use == 0) tshi_check_ok(r, look_up(r, table));
        if (use == 1) tshi_check_ok(r, clone(weight, got));
        if (use == 2) tshi_check_ok(r, tsh_tensor_read_whole(weight, got));
        if (use == 3) tshi_check_ok(r, tsh_broadcast(tsh_world_group(r->world), weight, 0));
        if (use == 4) memcpy(got, tsh_tensor_data(weight), sizeof got);
        if (use == 0 || use == 3) tshi_check_ok(r, tsh_tensor_read(weight, got, ROWS * COLS));
        same(r, "the weight", got, wanted);
        tshi_check(r, parameter_bytes(r->world) > before, "use %d: no memory is a parameter's", use);
        tsh_embedding_destroy(table);
        tshi_check(r, parameter_bytes(r->world) == before, "use %d: memory is left", use);
    }
}

Test(deferred, the_first_use_brings_the_values, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, first_uses, NULL));
    cr_assert_str_empty(tshi_test_run_threads(2, first_uses, NULL));
}

static void initialised_again(tshi_rank *r, void *arg) {
    double got[ROWS * COLS];
    (void)arg;
    tsh_embedding *table = make_table(r);
    tsh_tensor *weight = tsh_embedding_weight(table);
    size_t before = parameter_bytes(r->world);
    tshi_check_ok(r, tsh_tensor_init(weight, &(tsh_init){.kind = TSH_INIT_CONSTANT, .a = 1.5}));
    tshi_check(r, parameter_bytes(r->world) == before, "the initialiser takes memory");
    tshi_check_status(r, tsh_tensor_init(weight, &(tsh_init){.kind = TSH_INIT_UNIFORM, .a = 2, .b = 1}),
                      TSH_ERR_ARGUMENT, "not a distribution");
    tshi_check_ok(r, tsh_tensor_read(weight, got, ROWS * COLS));
    for (int i = 0; i < ROWS * COLS; i++) tshi_check(r, got[i] == 1.5, "element %d is %g", i, got[i]);
    tsh_embedding_destroy(table);
}

Test(deferred, the_last_initialiser_counts, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, initialised_again, NULL));
}

/* --- copies of a model -------------------------------------------------------------------------------------------- */

typedef enum values { SAME_SEEDS, OTHER_SEEDS, FIRST_IS_LOADED, OTHERS_ARE_LOADED } values;

typedef struct start {
    values values;
    tsh_zero_level level;
} start;

/* The copies have the values of rank 0. */
static void copies_agree(tshi_rank *r, void *arg) {
    const start *s = arg;
    double wanted[ROWS * COLS], got[ROWS * COLS];
    tsh_tape *tape = NULL;
    tsh_parameters *list = NULL;
    tsh_data_parallel *dp = NULL;
    expected(r, s->values == OTHER_SEEDS && r->rank == 0 ? 5 : 3, wanted);
    tsh_embedding *table = make_table(r);
    bool loads = s->values == FIRST_IS_LOADED ? r->rank == 0 : s->values == OTHERS_ARE_LOADED && r->rank != 0;
    if (loads) tshi_check_ok(r, tsh_tensor_fill(tsh_embedding_weight(table), 0.25));
    if (s->values == OTHER_SEEDS) expected(r, 5, wanted);
    for (int i = 0; s->values == FIRST_IS_LOADED && i < ROWS * COLS; i++) wanted[i] = 0.25;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_embedding_register(table, list, "table"));
    tshi_check_ok(r, tsh_data_parallel_create(tape, list, tsh_world_group(r->world),
                                              &(tsh_data_parallel_config){.level = s->level}, &dp));
    tshi_check_ok(r, tsh_tensor_read_whole(tsh_embedding_weight(table), got));
    same(r, "a copy", got, wanted);
    tsh_data_parallel_destroy(dp);
    tsh_parameters_destroy(list);
    tsh_tape_destroy(tape);
    tsh_embedding_destroy(table);
}

Test(deferred, copies_start_with_the_values_of_the_first, .timeout = 120) {
    for (int level = 0; level <= TSH_ZERO_PARAMETERS; level++) {
        for (int v = SAME_SEEDS; v <= OTHERS_ARE_LOADED; v++) {
            start s = {(values)v, (tsh_zero_level)level};
            const char *words = tshi_test_run(3, copies_agree, &s);
            cr_assert_str_empty(words, "level %d, values %d: %s", level, v, words);
        }
    }
}

/* --- what a model takes ------------------------------------------------------------------------------------------- */

typedef struct model {
    tsh_mesh *mesh;
    tsh_tape *tape;
    tsh_block *blocks[LAYERS];
    tsh_parameters *list;
    tsh_data_parallel *dp;
    tsh_optimizer *optimizer;
} model;

static void make_model(tshi_rank *r, model *m) {
    const tsh_block_config block = {
        .embed = WIDTH, .attention = {.heads = 4}, .mlp = {.hidden = 4 * WIDTH, .activation = TSH_ACTIVATION_GELU}};
    const tsh_data_parallel_config config = {.level = TSH_ZERO_PARAMETERS};
    *m = (model){0};
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=-1,model=1", &m->mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &m->tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &m->list));
    for (int i = 0; i < LAYERS && !r->failed; i++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%d", i);
        tshi_check_ok(r, tsh_block_create(tsh_mesh_group(m->mesh, "model"), &block, &m->blocks[i]));
        tshi_check_ok(r, tsh_block_register(m->blocks[i], m->list, name));
    }
    tshi_check_ok(r, tsh_data_parallel_create(m->tape, m->list, tsh_mesh_group(m->mesh, "data"), &config, &m->dp));
    tshi_check_ok(r, tsh_adamw_create(m->list, &(tsh_adamw_config){.lr = 1e-3}, &m->optimizer));
}

static void free_model(model *m) {
    tsh_optimizer_destroy(m->optimizer);
    tsh_data_parallel_destroy(m->dp);
    tsh_parameters_destroy(m->list);
    for (int i = 0; i < LAYERS; i++) tsh_block_destroy(m->blocks[i]);
    tsh_tape_destroy(m->tape);
    tsh_mesh_destroy(m->mesh);
}

static double elements(const model *m) {
    double n = 0;
    for (int i = 0; i < tsh_parameters_count(m->list); i++) {
        const int64_t *shape = tsh_tensor_shape(tsh_parameters_tensor(m->list, i));
        n += (double)(tsh_tensor_ndim(tsh_parameters_tensor(m->list, i)) > 1 ? shape[0] * shape[1] : shape[0]);
    }
    return n;
}

static void train(tshi_rank *r, model *m, tsh_tensor *x) {
    const tsh_sequences sequences = {.batch = tsh_world_size(r->world)};
    tsh_tensor *y = x;
    for (int i = 0; i < LAYERS; i++) y = tsh_block_forward(m->tape, m->blocks[i], y, &sequences);
    tsh_tensor *loss = tsh_sum(m->tape, tsh_mul(m->tape, y, y), TSH_ALL_DIMS);
    tshi_check(r, tsh_backward(m->tape, loss) == TSH_OK, "%s", tsh_tape_message(m->tape));
    tshi_check_ok(r, tsh_tape_reset(m->tape));
    tshi_check_ok(r, tsh_optimizer_step(m->optimizer));
}

/* Slices of 16 bytes an element from the first layer to the last step; beside them, in the step, one layer in use, one
 * that is gathered, and the gradients of two, one of them packed. Layers of three ranks are padded. */
static void slices_alone(tshi_rank *r, void *arg) {
    int ranks = tsh_world_size(r->world);
    const tsh_tensor_config rows = {.ndim = 2, .shape = {ranks, WIDTH}, .layout = {TSH_SHARD(0)}};
    tsh_device *device = tsh_world_device(r->world);
    tsh_tensor *x = NULL;
    model m;
    (void)arg;
    size_t before = tsh_device_stats(device).bytes_in_use;
    tsh_device_reset_peak(device);
    make_model(r, &m);
    if (r->failed) return;
    double n = elements(&m), slices = 16 * n / ranks, layer = 4 * n / LAYERS;
    double peak = (double)(tsh_device_stats(device).bytes_peak - before);
    tshi_check(r, n > 10e6 && fabs(peak - slices) <= 0.02 * slices, "set up with %g bytes, wanted %g", peak, slices);
    tshi_check_ok(r, tsh_tensor_create(m.mesh, &rows, &x));
    tshi_check_ok(r, tsh_tensor_fill(x, 0.5));
    for (int i = 0; i < 2; i++) train(r, &m, x);
    peak = (double)(tsh_device_stats(device).bytes_peak - before);
    tshi_check(r, peak <= 1.02 * (slices + 5 * layer), "trains with %g bytes, wanted %g and 5 layers of %g", peak,
               slices, layer);
    tsh_tensor_release(x);
    free_model(&m);
}

Test(deferred, a_sharded_model_is_never_whole, .timeout = 240) {
    const tshi_test_options options = {.heap_bytes = (size_t)1 << 30};
    for (int ranks = 2; ranks <= 3; ranks++) {
        tshi_test_options o = options;
        tshi_outcome outcomes[3];
        o.ranks = ranks;
        cr_assert_str_empty(tshi_test_run_with(&o, slices_alone, NULL, outcomes, NULL));
    }
}
