/* A deterministic world: gradients and parameters have the bits that they have at one rank. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(deterministic, .timeout = 120);

enum { MOST = 4096 };

/* What a run leaves: bits of all that it makes, one after another. */
typedef struct outcome_bits {
    int64_t bytes;
    unsigned char all[MOST];
} outcome_bits;

static void keep(tshi_rank *r, tsh_tensor *t) {
    outcome_bits *b = r->result;
    if (!tshi_check(r, t != NULL, "no tensor: %s", tsh_error_message())) return;
    int64_t n = (int64_t)tsh_dtype_size(tsh_tensor_dtype(t));
    for (int d = 0; d < tsh_tensor_ndim(t); d++) n *= tsh_tensor_shape(t)[d];
    if (!tshi_check(r, b->bytes + n <= MOST, "more than %d bytes", MOST)) return;
    tshi_check_ok(r, tsh_tensor_read_whole(t, b->all + b->bytes));
    b->bytes += n;
}

/* fn at one rank, and at others with the same bits on each. */
static void has_the_bits_of_one_rank(tshi_rank_fn *fn, int first, int last, void *arg) {
    outcome_bits *one = calloc(1, sizeof *one), *all = calloc((size_t)last, sizeof *all);
    setenv("TSHARD_DETERMINISTIC", "1", 1);
    tshi_test_options options = {.ranks = 1, .result_bytes = sizeof *one};
    cr_assert_str_empty(tshi_test_run_with(&options, fn, arg, NULL, one));
    cr_assert_gt(one->bytes, 0);
    for (options.ranks = first; options.ranks <= last; options.ranks++) {
        memset(all, 0, (size_t)last * sizeof *all);
        cr_assert_str_empty(tshi_test_run_with(&options, fn, arg, NULL, all));
        for (int k = 0; k < options.ranks; k++) {
            cr_assert_eq(all[k].bytes, one->bytes);
            int64_t at = 0;
            while (at < one->bytes && all[k].all[at] == one->all[at]) at++;
            cr_assert_eq(at, one->bytes, "%d ranks: rank %d has other bits from byte %lld on", options.ranks, k,
                         (long long)at);
        }
    }
    unsetenv("TSHARD_DETERMINISTIC");
    free(all);
    free(one);
}

/* Numbers in (-1, 1) whose sums are rounded. */
static void numbers(double *out, int n, int seed) {
    for (int i = 0; i < n; i++) out[i] = (double)((i * 7919 + seed * 104729) % 2003 - 1001) / 1003;
}

/* --- repeated inputs ---------------------------------------------------------------------------------------------- */

enum { TALL = 37, WIDE = 5 };

static void repeats(tshi_rank *r, void *arg) {
    double wide[TALL * WIDE], row[WIDE], column[TALL];
    tsh_tensor *(*const functions[])(tsh_tape *, tsh_tensor *, tsh_tensor *) = {tsh_add, tsh_sub, tsh_mul, tsh_div};
    tsh_tape *tape = NULL;
    tsh_mesh *mesh = NULL;
    (void)arg;
    numbers(wide, TALL * WIDE, 1);
    numbers(row, WIDE, 2);
    numbers(column, TALL, 3);
    tshi_check_ok(r, tsh_mesh_create(r->world, "ranks=-1", &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int d = 0; d < 2; d++) {
        tsh_tensor *x = tshi_test_leaf(
            r, mesh,
            &(tsh_tensor_config){.dtype = TSH_FLOAT64, .ndim = 2, .shape = {TALL, WIDE}, .layout = {TSH_SHARD(d)}},
            wide);
        tsh_tensor *b = tshi_test_leaf(
            r, mesh,
            &(tsh_tensor_config){
                .dtype = TSH_FLOAT64, .ndim = 2, .shape = {1, WIDE}, .layout = {d ? TSH_SHARD(1) : TSH_REPLICATED}},
            row);
        tsh_tensor *c = tshi_test_leaf(
            r, mesh,
            &(tsh_tensor_config){
                .dtype = TSH_FLOAT64, .ndim = 2, .shape = {TALL, 1}, .layout = {d ? TSH_REPLICATED : TSH_SHARD(0)}},
            column);
        for (int f = 0; f < 4; f++) {
            tsh_tensor *y = functions[f](tape, functions[f](tape, x, b), c);
            tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, tsh_mul(tape, y, x), TSH_ALL_DIMS)));
            tshi_check_ok(r, tsh_tape_reset(tape));
            keep(r, tsh_tensor_grad(b));
            keep(r, tsh_tensor_grad(c));
        }
        tsh_tensor_release(x);
        tsh_tensor_release(b);
        tsh_tensor_release(c);
    }
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(deterministic, gradients_of_inputs_that_functions_repeat) {
    has_the_bits_of_one_rank(repeats, 2, 4, NULL);
}

/* --- data parallelism --------------------------------------------------------------------------------------------- */

enum { ROWS = 11, COLS = 3, BATCH = 8 };

/* Two micro-batches, of which only the second sums, or both; a table that is used twice in each. */
static void tied(tshi_rank *r, void *arg) {
    static const double ids[BATCH] = {0, 3, 3, 10, 7, 0, 1, 3};
    double values[ROWS * COLS];
    const int level = *(const int *)arg;
    for (int sync = 0; sync < 2; sync++) {
        tsh_tape *tape = NULL;
        tsh_mesh *mesh = NULL;
        tsh_parameters *list = NULL;
        tsh_data_parallel *dp = NULL;
        tshi_check_ok(r, tsh_mesh_create(r->world, "data=-1", &mesh));
        tshi_check_ok(r, tsh_tape_create(r->world, &tape));
        numbers(values, ROWS * COLS, 5);
        tsh_tensor *table = tshi_test_leaf(r, mesh, &(tsh_tensor_config){.ndim = 2, .shape = {ROWS, COLS}}, values);
        tshi_check_ok(r, tsh_parameters_create(r->world, &list));
        tshi_check_ok(r, tsh_parameters_add(list, "table", table));
        const tsh_data_parallel_config config = {.level = (tsh_zero_level)level};
        tshi_check_ok(r, tsh_data_parallel_create(tape, list, tsh_mesh_group(mesh, "data"), &config, &dp));
        for (int micro = 0; micro < 2; micro++) {
            tsh_tensor_config batch = {.dtype = TSH_INT64, .ndim = 1, .shape = {BATCH}, .layout = {TSH_SHARD(0)}};
            tsh_tensor *id = tshi_test_tensor(r, mesh, &batch, ids);
            numbers(values, BATCH * COLS, 6 + micro);
            tsh_tensor *t = tshi_test_tensor(
                r, mesh, &(tsh_tensor_config){.ndim = 2, .shape = {BATCH, COLS}, .layout = {TSH_SHARD(0)}}, values);
            tsh_tensor *x = tsh_mul(tape, tsh_lookup(tape, table, id, -1), t);
            tsh_tensor *logits = tsh_affine(tape, x, table, NULL);
            tsh_data_parallel_set_sync(dp, sync || micro == 1);
            tshi_check_ok(r, tsh_backward(tape, tsh_cross_entropy(tape, logits, id, NULL)));
            tshi_check_ok(r, tsh_tape_reset(tape));
            tsh_tensor_release(t);
            tsh_tensor_release(id);
        }
        keep(r, tsh_tensor_grad(table));
        tsh_data_parallel_destroy(dp);
        tsh_parameters_destroy(list);
        tsh_tensor_release(table);
        tsh_tape_destroy(tape);
        tsh_mesh_destroy(mesh);
    }
}

Test(deterministic, a_tied_parameter_of_two_micro_batches) {
    for (int level = 0; level <= 3; level++) has_the_bits_of_one_rank(tied, 2, 3, &level);
}

typedef struct wide_case {
    tsh_zero_level level;
    bool copied; /* functions take what the program has made of the table in its layout: at a level, a copy */
} wide_case;

/* A table stored in bfloat16, whose functions compute in float32. */
static void wide_arithmetic(tshi_rank *r, void *arg) {
    const wide_case *how = arg;
    static const double ids[BATCH] = {0, 3, 3, 10, 7, 0, 1, 3};
    double values[ROWS * COLS];
    tsh_tape *tape = NULL;
    tsh_mesh *mesh = NULL;
    tsh_parameters *list = NULL;
    tsh_data_parallel *dp = NULL;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=-1", &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    numbers(values, ROWS * COLS, 5);
    tsh_tensor *table =
        tshi_test_leaf(r, mesh, &(tsh_tensor_config){.dtype = TSH_BFLOAT16, .ndim = 2, .shape = {ROWS, COLS}}, values);
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_parameters_add(list, "table", table));
    const tsh_precision precision = {.storage = TSH_BFLOAT16, .arithmetic = TSH_ARITHMETIC_FLOAT32};
    tshi_check_ok(r, tsh_parameters_set_precision(list, &precision));
    const tsh_data_parallel_config config = {.level = how->level};
    tshi_check_ok(r, tsh_data_parallel_create(tape, list, tsh_mesh_group(mesh, "data"), &config, &dp));
    tsh_tensor_config batch = {.dtype = TSH_INT64, .ndim = 1, .shape = {BATCH}, .layout = {TSH_SHARD(0)}};
    tsh_tensor *id = tshi_test_tensor(r, mesh, &batch, ids);
    numbers(values, BATCH * COLS, 6);
    tsh_tensor *t = tshi_test_tensor(
        r, mesh, &(tsh_tensor_config){.ndim = 2, .shape = {BATCH, COLS}, .layout = {TSH_SHARD(0)}}, values);
    tsh_tensor *rows = tsh_lookup(tape, how->copied ? tsh_full(tape, table) : table, id, -1);
    tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, tsh_mul(tape, rows, t), TSH_ALL_DIMS)));
    tshi_check_ok(r, tsh_tape_reset(tape));
    keep(r, tsh_tensor_grad(table));
    /* The row of an id that comes once has the bits of its t. */
    float whole[ROWS * COLS];
    tshi_check_ok(r, tsh_tensor_read_whole(tsh_tensor_grad(table), whole));
    for (int c = 0; c < COLS; c++)
        tshi_check(r, whole[7 * COLS + c] == (float)values[4 * COLS + c], "%.9g for %.9g", (double)whole[7 * COLS + c],
                   values[4 * COLS + c]);
    tsh_tensor_release(t);
    tsh_tensor_release(id);
    tsh_data_parallel_destroy(dp);
    tsh_parameters_destroy(list);
    tsh_tensor_release(table);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(deterministic, lookups_of_a_table_whose_functions_compute_in_float32) {
    for (int i = 0; i < 8; i++)
        has_the_bits_of_one_rank(wide_arithmetic, 2, 3, &(wide_case){(tsh_zero_level)(i / 2), i % 2});
}

/* Two losses stand on what the program has made of a parameter in its layout: at a level, a copy. */
static void copied(tshi_rank *r, void *arg) {
    double values[ROWS * COLS];
    tsh_tape *tape = NULL;
    tsh_mesh *mesh = NULL;
    tsh_parameters *list = NULL;
    tsh_data_parallel *dp = NULL;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=-1", &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    numbers(values, ROWS * COLS, 7);
    tsh_tensor *x =
        tshi_test_leaf(r, mesh, &(tsh_tensor_config){.dtype = TSH_FLOAT64, .ndim = 2, .shape = {ROWS, COLS}}, values);
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_parameters_add(list, "x", x));
    const tsh_data_parallel_config config = {.level = *(const tsh_zero_level *)arg};
    tshi_check_ok(r, tsh_data_parallel_create(tape, list, tsh_mesh_group(mesh, "data"), &config, &dp));
    tsh_tensor *copy = tsh_full(tape, x), *y = tsh_mul(tape, tsh_exp(tape, copy), tsh_tanh(tape, copy));
    tsh_tensor *first = tsh_sum(tape, y, TSH_ALL_DIMS), *second = tsh_sum(tape, tsh_exp(tape, y), TSH_ALL_DIMS);
    tshi_check_ok(r, tsh_backward_with(tape, first, &(tsh_backward_config){.retain_graph = true}));
    tshi_check_ok(r, tsh_backward(tape, second));
    tshi_check_ok(r, tsh_tape_reset(tape));
    keep(r, tsh_tensor_grad(x));
    tsh_data_parallel_destroy(dp);
    tsh_parameters_destroy(list);
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(deterministic, two_losses_over_a_parameter_that_the_program_copies) {
    for (tsh_zero_level level = 0; level <= TSH_ZERO_PARAMETERS; level++)
        has_the_bits_of_one_rank(copied, 2, 3, &level);
}

/* --- bounded norms ------------------------------------------------------------------------------------------------ */

enum { FEATURES = 13 };

static void bounded_rows(tshi_rank *r, void *arg) {
    static const double ids[4] = {0, 3, 3, 10};
    double values[ROWS * FEATURES];
    const tsh_zero_level level = *(const tsh_zero_level *)arg;
    const tsh_embedding_config config = {
        .num_embeddings = ROWS, .embedding_dim = FEATURES, .shard = TSH_COLUMN, .max_norm = 0.5, .dtype = TSH_FLOAT64};
    tsh_tape *tape = NULL;
    tsh_mesh *mesh = NULL;
    tsh_embedding *layer = NULL;
    tsh_parameters *list = NULL;
    tsh_data_parallel *dp = NULL;
    char axes[64];
    snprintf(axes, sizeof axes, "data=%d,model=%d", r->size == 4 ? 2 : 1, r->size == 4 ? 2 : r->size);
    tshi_check_ok(r, tsh_mesh_create(r->world, axes, &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_embedding_create(tsh_mesh_group(mesh, "model"), &config, &layer));
    numbers(values, ROWS * FEATURES, 9);
    tsh_tensor *table = tsh_embedding_weight(layer);
    tshi_check_ok(r, tsh_tensor_write_whole(table, values));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_embedding_register(layer, list, "table"));
    const tsh_data_parallel_config shards = {.level = level};
    tshi_check_ok(r, tsh_data_parallel_create(tape, list, tsh_mesh_group(mesh, "data"), &shards, &dp));
    tsh_tensor *id = tshi_test_tensor(r, mesh, &(tsh_tensor_config){.dtype = TSH_INT64, .ndim = 1, .shape = {4}}, ids);
    tsh_tensor *y = tsh_embedding_forward(tape, layer, id);
    tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS)));
    keep(r, table);
    keep(r, tsh_tensor_grad(table));
    tshi_check_ok(r, tsh_tape_reset(tape));
    tsh_tensor_release(id);
    tsh_data_parallel_destroy(dp);
    tsh_parameters_destroy(list);
    tsh_embedding_destroy(layer);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(deterministic, a_column_embedding_whose_rows_are_bounded) {
    for (tsh_zero_level level = 0; level <= TSH_ZERO_PARAMETERS; level++)
        has_the_bits_of_one_rank(bounded_rows, 2, 4, &level);
}

/* --- copies of parameters ----------------------------------------------------------------------------------------- */

/* A product takes x in the units of c, of which the first rank has the only one; two losses stand on it. */
static void moved(tshi_rank *r, void *arg) {
    double values[TALL * WIDE];
    tsh_tape *tape = NULL;
    tsh_mesh *mesh = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, "ranks=-1", &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor_config config = {
        .dtype = TSH_FLOAT64, .ndim = 2, .shape = {TALL, WIDE}, .layout = {TSH_SHARD_UNITS(1, 1, 1)}};
    numbers(values, TALL * WIDE, 1);
    tsh_tensor *c = tshi_test_tensor(r, mesh, &config, values);
    config.layout[0] = TSH_SHARD(1);
    numbers(values, TALL * WIDE, 2);
    tsh_tensor *x = tshi_test_leaf(r, mesh, &config, values), *y = tsh_mul(tape, c, x);
    tsh_tensor *first = tsh_sum(tape, tsh_exp(tape, y), TSH_ALL_DIMS);
    tsh_tensor *second = tsh_sum(tape, tsh_tanh(tape, y), TSH_ALL_DIMS);
    tshi_check_ok(r, tsh_backward_with(tape, first, &(tsh_backward_config){.retain_graph = true}));
    tshi_check_ok(r, tsh_backward(tape, second));
    tshi_check_ok(r, tsh_tape_reset(tape));
    keep(r, tsh_tensor_grad(x));
    tsh_tensor_release(x);
    tsh_tensor_release(c);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(deterministic, two_losses_over_a_parameter_that_a_product_moves) {
    has_the_bits_of_one_rank(moved, 2, 4, NULL);
}

/* Two products take a copy that the program has gathered, the concatenation x itself: gathered in one exchange where
 * both axes have ranks, and where they have none in the steps that have made the program's copy. */
static void shared_copy(tshi_rank *r, void *arg) {
    double values[TALL * WIDE];
    tsh_tape *tape = NULL;
    tsh_mesh *mesh = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, r->size == 4 ? "a=2,b=2" : "a=1,b=1", &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor_config config = {
        .dtype = TSH_FLOAT64, .ndim = 2, .shape = {TALL, WIDE}, .layout = {TSH_SHARD(1), TSH_SHARD(1)}};
    numbers(values, TALL * WIDE, 3);
    tsh_tensor *x = tshi_test_leaf(r, mesh, &config, values), *terms[3];
    numbers(values, WIDE * WIDE, 4);
    tsh_tensor *w =
        tshi_test_tensor(r, mesh, &(tsh_tensor_config){.dtype = TSH_FLOAT64, .ndim = 2, .shape = {WIDE, WIDE}}, values);
    tsh_tensor *copy =
        tsh_gather(tape, tsh_gather(tape, x, tsh_mesh_group(mesh, "b"), 1), tsh_mesh_group(mesh, "a"), 1);
    terms[0] = tsh_affine(tape, copy, w, NULL);
    terms[1] = tsh_affine(tape, tsh_tanh(tape, copy), w, NULL);
    terms[2] = x;
    tsh_tensor *y = tsh_exp(tape, tsh_concat(tape, terms, 3, 1));
    tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, y, TSH_ALL_DIMS)));
    tshi_check_ok(r, tsh_tape_reset(tape));
    keep(r, tsh_tensor_grad(x));
    tsh_tensor_release(x);
    tsh_tensor_release(w);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(deterministic, calls_that_share_a_copy_on_one_rank_only) {
    has_the_bits_of_one_rank(shared_copy, 4, 4, NULL);
}
