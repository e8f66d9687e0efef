/* Adapters of embeddings, of the lookup and of the tied head, against plain loops and against one rank in every
 * sharding. */
#include "support/layouts.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(lora_embedding, .timeout = 240);

typedef struct variant {
    const char *name;
    tsh_sharding shard;
    tsh_layout ids, y;
    bool gather, sequence;
} variant;

enum { DENSE, DENSE_BATCH, ROW, ROW_SEQUENCE, COLUMN, COLUMN_GATHER, VARIANTS };

static const variant variants[VARIANTS] = {[DENSE] = {"dense", TSH_DENSE, R, R, false, false},
                                           [DENSE_BATCH] = {"dense, ids split", TSH_DENSE, S0, S0, false, false},
                                           [ROW] = {"row", TSH_ROW, R, R, false, false},
                                           [ROW_SEQUENCE] = {"row to a split sequence", TSH_ROW, R, S0, false, true},
                                           [COLUMN] = {"column", TSH_COLUMN, R, S1, false, false},
                                           [COLUMN_GATHER] = {"column, gathered", TSH_COLUMN, R, R, true, false}};

/* Rows, features, ids, rank. The second leaves ranks empty at 3 and 4. */
typedef struct sizes {
    int64_t rows, cols, n, rank;
} sizes;

static const sizes all_sizes[] = {{13, 5, 7, 2}, {2, 2, 3, 3}};

#define MOST    80
#define PADDING 1

/* The adapter's scale: whole numbers stay exact. */
static const double scale = 2;

typedef struct truth {
    double table[MOST], ids[MOST], a[MOST], b[MOST], dy[MOST], y[MOST], da[MOST], db[MOST];
} truth;

static void find_truth(sizes s, truth *t) {
    memset(t, 0, sizeof *t);
    tshi_test_integers(1, s.rows * s.cols, t->table);
    tshi_test_integers(2, s.n * s.cols, t->dy);
    tshi_test_integers(3, s.rows * s.rank, t->a);
    tshi_test_integers(4, s.cols * s.rank, t->b);
    for (int64_t i = 0; i < s.n; i++) {
        int64_t id = (i * i + 1) % s.rows; /* with repetitions; the padding row is among them */
        t->ids[i] = (double)id;
        for (int64_t c = 0; c < s.cols; c++) {
            double dy = t->dy[i * s.cols + c], *y = &t->y[i * s.cols + c];
            *y = t->table[id * s.cols + c];
            for (int64_t j = 0; j < s.rank; j++) {
                double a = t->a[id * s.rank + j], b = t->b[c * s.rank + j];
                *y += scale * a * b;
                t->db[c * s.rank + j] += scale * dy * a;
                if (id != PADDING) t->da[id * s.rank + j] += scale * dy * b;
            }
        }
    }
}

static void write_whole(tshi_rank *r, tsh_tensor *t, const double *whole) {
    float single[MOST];
    for (int i = 0; i < MOST; i++) single[i] = (float)whole[i];
    bool wide = t && tsh_tensor_dtype(t) == TSH_FLOAT64;
    tshi_check_ok(r, tsh_tensor_write_whole(t, wide ? (const void *)whole : single));
}

static tsh_embedding *make_adapted(tshi_rank *r, const variant *v, sizes s, tsh_dtype dtype, const truth *t,
                                   tsh_embedding_use use) {
    tsh_embedding *layer = NULL;
    const tsh_embedding_config config = {.num_embeddings = s.rows,
                                         .embedding_dim = s.cols,
                                         .shard = v->shard,
                                         .has_padding = true,
                                         .padding = PADDING,
                                         .gather_output = v->gather,
                                         .sequence_parallel = v->sequence,
                                         .dtype = dtype};
    const tsh_lora_config lora = {.rank = s.rank, .alpha = scale * (double)s.rank};
    bool lookup = use == TSH_EMBEDDING_LOOKUP; /* a head's factors have the sizes of the other's */
    tshi_check_ok(r, tsh_embedding_create(tsh_world_group(r->world), &config, &layer));
    if (!layer || !tshi_check_ok(r, tsh_embedding_adapt(layer, use, &lora, NULL, NULL))) return layer;
    write_whole(r, tsh_embedding_weight(layer), t->table);
    write_whole(r, tsh_embedding_lora_a(layer, use), lookup ? t->a : t->b);
    write_whole(r, tsh_embedding_lora_b(layer, use), lookup ? t->b : t->a);
    return layer;
}

/* Forward costs what the table costs. */
static void expect(int which, bool backward, const tsh_group *g, sizes s, size_t size, tsh_communication_stats *out) {
    *out = (tsh_communication_stats){0};
    int64_t y = s.n * s.cols;
    if (!backward && which == ROW) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_REDUCE, y, size);
    if (!backward && which == ROW_SEQUENCE) tshi_test_expect(out, g, TSH_COLLECTIVE_REDUCE_SCATTER, y, size);
    if (!backward && which == COLUMN_GATHER) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_GATHER, y, size);
    if (!backward) return;
    if (which == ROW_SEQUENCE) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_GATHER, y, size);
    if (which == DENSE_BATCH) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_REDUCE, s.rows * s.rank, size);
    if (which == DENSE_BATCH || which == ROW || which == ROW_SEQUENCE)
        tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_REDUCE, s.cols * s.rank, size);
    if (which == COLUMN || which == COLUMN_GATHER)
        tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_REDUCE, s.n * s.rank, size);
}

static void check_one(tshi_rank *r, tsh_tape *tape, int which, sizes s, tsh_dtype dtype) {
    const variant *v = &variants[which];
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_group *g = tsh_world_group(r->world);
    truth t;
    tsh_communication_stats wanted;
    find_truth(s, &t);
    tsh_embedding *layer = make_adapted(r, v, s, dtype, &t, TSH_EMBEDDING_LOOKUP);
    tsh_tensor *ids = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_INT64, 1, {s.n}, {v->ids}}, t.ids);
    tsh_tensor *dy = tshi_test_tensor(r, mesh, &(tsh_tensor_config){dtype, 2, {s.n, s.cols}, {v->y}}, t.dy);
    tsh_group_reset_stats(g);
    tsh_tensor *y = r->failed ? NULL : tsh_embedding_forward(tape, layer, ids);
    if (tshi_check(r, y, "%s: %s", v->name, tsh_tape_message(tape))) {
        expect(which, false, g, s, tsh_dtype_size(dtype), &wanted);
        tshi_test_calls(r, v->name, g, &wanted);
        tsh_layout got = tsh_tensor_layout(y, g);
        tshi_check(r, got.kind == v->y.kind && got.dim == v->y.dim, "%s: y has another layout", v->name);
        tshi_test_same(r, v->name, y, t.y, 0);
        tshi_check_ok(r, tsh_backward_with(tape, y, &(tsh_backward_config){.gradient = dy}));
        expect(which, true, g, s, tsh_dtype_size(dtype), &wanted);
        tshi_test_calls(r, v->name, g, &wanted);
        tshi_test_same_grad(r, v->name, tsh_embedding_lora_a(layer, TSH_EMBEDDING_LOOKUP), t.da, 0);
        tshi_test_same_grad(r, v->name, tsh_embedding_lora_b(layer, TSH_EMBEDDING_LOOKUP), t.db, 0);
        tshi_check(r, !tsh_tensor_grad(tsh_embedding_weight(layer)), "%s: the table is not frozen", v->name);
    }
    tsh_tape_reset(tape);
    tsh_tensor_release(ids);
    tsh_tensor_release(dy);
    tsh_embedding_destroy(layer);
}

static void all_variants(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (size_t s = 0; s < sizeof all_sizes / sizeof all_sizes[0] && !r->failed; s++) {
        for (int v = 0; v < VARIANTS && !r->failed; v++) {
            check_one(r, tape, v, all_sizes[s], TSH_FLOAT32);
            check_one(r, tape, v, all_sizes[s], TSH_FLOAT64);
        }
    }
    tsh_tape_destroy(tape);
}

/* Values, gradients, layouts, and the number and bytes of collectives of every sharding. */
Test(lora_embedding, equals_plain_loops_in_every_sharding) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, all_variants, NULL));
}

/* --- gradient check ----------------------------------------------------------------------------------------------- */

/* A table that is looked up and projects to logits, one of both with an adapter. */
typedef struct network {
    tsh_embedding *layer;
    tsh_tensor *ids;
} network;

static tsh_tensor *objective(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    const network *n = user;
    (void)inputs;
    tsh_tensor *h = tsh_gelu(tape, tsh_embedding_forward(tape, n->layer, n->ids));
    tsh_tensor *y = tsh_embedding_project(tape, n->layer, h);
    return tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS);
}

/* The factors' gradients, and the table's where it is trained too. */
static void check_gradients(tshi_rank *r, void *arg) {
    const sizes s = {5, 4, 3, 2};
    tsh_tape *tape = NULL;
    truth t;
    double worst = 1;
    (void)arg;
    find_truth(s, &t);
    for (int64_t i = 0; i < s.n; i++) t.ids[i] = t.ids[i] == PADDING ? 2 : t.ids[i]; /* that row gets no gradient */
    for (int i = 0; i < MOST; i++) {
        t.table[i] /= 8;
        t.a[i] /= 8;
        t.b[i] /= 8;
    }
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int way = 0; way < 4; way++) {
        const tsh_embedding_use use = way & 1 ? TSH_EMBEDDING_HEAD : TSH_EMBEDDING_LOOKUP;
        for (int v = 0; v < VARIANTS && !r->failed; v++) {
            network n = {make_adapted(r, &variants[v], s, TSH_FLOAT64, &t, use), NULL};
            n.ids = tshi_test_tensor(r, tsh_world_mesh(r->world),
                                     &(tsh_tensor_config){TSH_INT64, 1, {s.n}, {variants[v].ids}}, t.ids);
            tsh_tensor *inputs[] = {tsh_embedding_lora_a(n.layer, use), tsh_embedding_lora_b(n.layer, use),
                                    tsh_embedding_weight(n.layer)};
            if (way & 2) tshi_check_ok(r, tsh_tensor_require_grad(inputs[2], true));
            tshi_check_ok(r, tsh_gradient_check(tape, objective, inputs, way & 2 ? 3 : 2, 0, &n, &worst));
            tshi_check(r, worst < 1e-7, "%s, way %d: worst %g", variants[v].name, way, worst);
            tsh_tensor_release(n.ids);
            tsh_embedding_destroy(n.layer);
        }
    }
    tsh_tape_destroy(tape);
}

Test(lora_embedding, passes_the_gradient_check) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, check_gradients, NULL));
}

/* --- training ----------------------------------------------------------------------------------------------------- */

enum { STEPS = 3, ROWS = 13, COLS = 5, IDS = 6, RANK = 2, A_SIZE = ROWS * RANK, B_SIZE = COLS * RANK };

/* The factors of lookup and head after some steps, whole, and the gradients' bucket sums on the way. */
static void train(tshi_rank *r, const char *axes, tsh_sharding shard, bool schedule, double *out) {
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    tsh_parameters *list = NULL;
    tsh_embedding *layer = NULL;
    tsh_data_parallel *dp = NULL;
    tsh_optimizer *optimizer = NULL;
    const tsh_embedding_config config = {
        .num_embeddings = ROWS, .embedding_dim = COLS, .shard = shard, .dtype = TSH_FLOAT64};
    const tsh_lora_config lora = {.rank = RANK, .b_init = {.kind = TSH_INIT_NORMAL, .b = 0.5}};
    static const double ids[IDS] = {3, 0, 12, 3, 7, 5};
    const tsh_tensor_config numbers = {.dtype = TSH_INT64, .ndim = 1, .shape = {IDS}, .layout = {TSH_SHARD(0)}};
    tsh_world_seed(r->world, 7);
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, axes, &mesh))) return;
    tsh_group *model = tsh_mesh_group(mesh, "model");
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_embedding_create(model, &config, &layer));
    tshi_check_ok(r, tsh_embedding_adapt(layer, TSH_EMBEDDING_LOOKUP, &lora, list, "wte"));
    tshi_check_ok(r, tsh_embedding_adapt(layer, TSH_EMBEDDING_HEAD, &lora, list, "lm_head"));
    const tsh_data_parallel_config sums = {.model = model};
    if (schedule) tshi_check_ok(r, tsh_data_parallel_create(tape, list, tsh_mesh_group(mesh, "data"), &sums, &dp));
    tshi_check_ok(r, tsh_sgd_create(list, &(tsh_sgd_config){.lr = 0.05}, &optimizer));
    tsh_tensor *words = tshi_test_tensor(r, mesh, &numbers, ids);
    for (int step = 0; step < STEPS && !r->failed; step++) {
        tsh_tensor *h = tsh_embedding_forward(tape, layer, words);
        tsh_tensor *loss = tsh_cross_entropy(tape, tsh_embedding_project(tape, layer, h), words, NULL);
        tshi_check(r, tsh_backward(tape, loss) == TSH_OK, "%s", tsh_tape_message(tape));
        tshi_check_ok(r, tsh_optimizer_step(optimizer));
        tshi_check_ok(r, tsh_tape_reset(tape));
        tsh_parameters_zero_grad(list);
    }
    for (int i = 0, at = 0; i < 4 && !r->failed; i++) {
        tshi_check_ok(r, tsh_tensor_read_whole(tsh_parameters_tensor(list, i), out + at));
        at += i == 0 || i == 3 ? A_SIZE : B_SIZE;
    }
    tsh_tensor_release(words);
    tsh_optimizer_destroy(optimizer);
    tsh_data_parallel_destroy(dp);
    tsh_embedding_destroy(layer);
    tsh_parameters_destroy(list);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

enum { TRAINED = 2 * (A_SIZE + B_SIZE) };

static void one_rank(tshi_rank *r, void *arg) {
    train(r, "data=1,model=1", TSH_DENSE, false, arg);
}

static const double *single_rank;

static void same_training(tshi_rank *r, void *arg) {
    double got[TRAINED];
    for (int way = 0; way < 4 && !r->failed; way++) {
        train(r, arg, way & 1 ? TSH_COLUMN : TSH_ROW, way >> 1, got);
        for (int i = 0; i < TRAINED && !r->failed; i++) {
            double difference = got[i] - single_rank[i];
            tshi_check(r, difference < 1e-12 && difference > -1e-12, "way %d: element %d is %.17g, on one rank %.17g",
                       way, i, got[i], single_rank[i]);
        }
    }
}

/* Both uses have adapters, by row and by column, with and without a schedule of sums. */
Test(lora_embedding, trains_as_one_rank) {
    double *one = tshi_test_shared(TRAINED * sizeof *one);
    cr_assert_str_empty(tshi_test_run(1, one_rank, one));
    cr_assert(one[0] != 0 && one[A_SIZE] != 0, "the adapters have not been trained");
    single_rank = one;
    cr_assert_str_empty(tshi_test_run_meshes(same_training));
}

/* --- names, wrong use --------------------------------------------------------------------------------------------- */

/* Of new adapters: the output's bits are those of the table, and the head's those of a head without an adapter. */
static void adds_nothing(tshi_rank *r, void *arg) {
    const sizes s = all_sizes[0];
    static const char *const names[] = {"wte.weight", "wte.lora_embedding_A", "wte.lora_embedding_B"};
    const tsh_lora_config lora = {.rank = 2};
    tsh_embedding *layer = NULL;
    tsh_parameters *list = NULL;
    tsh_tape *tape = NULL;
    truth t;
    (void)arg;
    find_truth(s, &t);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_embedding_create(tsh_world_group(r->world),
                                          &(tsh_embedding_config){.num_embeddings = s.rows, .embedding_dim = s.cols},
                                          &layer));
    tsh_tensor *ids =
        tshi_test_tensor(r, tsh_world_mesh(r->world), &(tsh_tensor_config){TSH_INT64, 1, {s.n}, {R}}, t.ids);
    tsh_tensor *before = tsh_embedding_forward(tape, layer, ids);
    tshi_check_status(r, tsh_embedding_adapt(layer, TSH_EMBEDDING_USES, &lora, list, "wte"), TSH_ERR_ARGUMENT, "a use");
    tshi_check(r, !tsh_embedding_lora_a(layer, TSH_EMBEDDING_LOOKUP), "a failed call has left an adapter");
    tshi_check_ok(r, tsh_embedding_adapt(layer, TSH_EMBEDDING_LOOKUP, &lora, NULL, NULL));
    tshi_check_status(r, tsh_embedding_adapt(layer, TSH_EMBEDDING_LOOKUP, &lora, list, "wte"), TSH_ERR_STATE,
                      "has an adapter already");
    tsh_tensor *after = tsh_embedding_forward(tape, layer, ids);
    if (tshi_check(r, before && after, "%s", tsh_tape_message(tape)))
        tshi_check(r, !memcmp(tsh_tensor_data(before), tsh_tensor_data(after), tsh_tensor_local_nbytes(before)),
                   "other bits with an A of zeros");
    tshi_check(r, !tsh_embedding_lora_b(layer, TSH_EMBEDDING_HEAD), "the head has an adapter");
    tshi_check_ok(r, tsh_embedding_register(layer, list, "wte"));
    tshi_check(r, tsh_parameters_count(list) == 3, "%d parameters", tsh_parameters_count(list));
    for (int i = 0; i < 3 && !r->failed; i++)
        tshi_check(r, !strcmp(tsh_parameters_name(list, i), names[i]), "%s", tsh_parameters_name(list, i));
    tsh_tensor_release(ids);
    tsh_embedding_destroy(layer);
    tsh_parameters_destroy(list);
    tsh_tape_destroy(tape);
}

Test(lora_embedding, an_a_of_zeros_leaves_the_output_bit_for_bit) {
    cr_assert_str_empty(tshi_test_run(1, adds_nothing, NULL));
}
