/* Embedding in every sharding against plain loops, its collectives, its messages. */
#include "support/layouts.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

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

/* Rows, features, ids. The second leaves ranks empty at 3 and 4. */
typedef struct sizes {
    int64_t rows, cols, n;
} sizes;

static const sizes all_sizes[] = {{13, 5, 7}, {2, 2, 3}};

#define MOST    80
#define PADDING 1

typedef struct truth {
    double table[MOST], ids[MOST], dy[MOST], y[MOST], dtable[MOST];
} truth;

static void find_truth(sizes s, truth *t) {
    memset(t, 0, sizeof *t);
    tshi_test_integers(1, s.rows * s.cols, t->table);
    tshi_test_integers(2, s.n * s.cols, t->dy);
    for (int64_t i = 0; i < s.n; i++) {
        int64_t id = (i * i + 1) % s.rows; /* with repetitions; the padding row is among them */
        t->ids[i] = (double)id;
        for (int64_t c = 0; c < s.cols; c++) {
            t->y[i * s.cols + c] = t->table[id * s.cols + c];
            if (id != PADDING) t->dtable[id * s.cols + c] += t->dy[i * s.cols + c];
        }
    }
}

static tsh_embedding *make_layer(tshi_rank *r, const variant *v, sizes s, tsh_dtype dtype) {
    tsh_embedding *layer = NULL;
    tsh_embedding_create(tsh_world_group(r->world),
                         &(tsh_embedding_config){.num_embeddings = s.rows,
                                                 .embedding_dim = s.cols,
                                                 .shard = v->shard,
                                                 .has_padding = true,
                                                 .padding = PADDING,
                                                 .gather_output = v->gather,
                                                 .sequence_parallel = v->sequence,
                                                 .dtype = dtype},
                         &layer);
    tshi_check(r, layer, "%s: %s", v->name, tsh_error_message());
    return layer;
}

static void load(tshi_rank *r, tsh_embedding *layer, const truth *t, tsh_dtype dtype) {
    float table[MOST];
    for (int i = 0; i < MOST; i++) table[i] = (float)t->table[i];
    tshi_check_ok(r, tsh_embedding_load(layer, dtype == TSH_FLOAT32 ? (const void *)table : t->table));
}

static void expect(int which, bool backward, const tsh_group *g, sizes s, size_t size, tsh_communication_stats *out) {
    *out = (tsh_communication_stats){0};
    int64_t y = s.n * s.cols;
    if (!backward && which == ROW) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_REDUCE, y, size);
    if (!backward && which == ROW_SEQUENCE) tshi_test_expect(out, g, TSH_COLLECTIVE_REDUCE_SCATTER, y, size);
    if (!backward && which == COLUMN_GATHER) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_GATHER, y, size);
    if (backward && which == ROW_SEQUENCE) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_GATHER, y, size);
    if (backward && which == DENSE_BATCH) tshi_test_expect(out, g, TSH_COLLECTIVE_ALL_REDUCE, s.rows * s.cols, size);
}

static void check_one(tshi_rank *r, tsh_tape *tape, int which, sizes s, tsh_dtype dtype) {
    const variant *v = &variants[which];
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_group *g = tsh_world_group(r->world);
    truth t;
    tsh_communication_stats wanted;
    find_truth(s, &t);
    tsh_embedding *layer = make_layer(r, v, s, dtype);
    if (!layer) return;
    load(r, layer, &t, dtype);
    tsh_tensor *ids = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_INT64, 1, {s.n}, {v->ids}}, t.ids);
    tsh_tensor *dy = tshi_test_tensor(r, mesh, &(tsh_tensor_config){dtype, 2, {s.n, s.cols}, {v->y}}, t.dy);
    tsh_group_reset_stats(g);
    tsh_tensor *y = tsh_embedding_forward(tape, layer, ids);
    if (tshi_check(r, y, "%s: %s", v->name, tsh_tape_message(tape))) {
        expect(which, false, g, s, tsh_dtype_size(dtype), &wanted);
        tshi_test_calls(r, v->name, g, &wanted);
        tsh_layout got = tsh_tensor_layout(y, g);
        tshi_check(r, got.kind == v->y.kind && got.dim == v->y.dim, "%s: y has another layout", v->name);
        tshi_test_same(r, v->name, y, t.y, 0);
        tsh_backward_config config = {.gradient = dy};
        tshi_check_ok(r, tsh_backward_with(tape, y, &config));
        expect(which, true, g, s, tsh_dtype_size(dtype), &wanted);
        tshi_test_calls(r, v->name, g, &wanted);
        tshi_test_same_grad(r, v->name, tsh_embedding_weight(layer), t.dtable, 0);
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
    for (size_t s = 0; s < sizeof all_sizes / sizeof all_sizes[0]; s++) {
        for (int v = 0; v < VARIANTS; v++) {
            check_one(r, tape, v, all_sizes[s], TSH_FLOAT32);
            check_one(r, tape, v, all_sizes[s], TSH_FLOAT64);
        }
    }
    tsh_tape_destroy(tape);
}

Test(embedding, equals_plain_loops_in_every_sharding, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, all_variants, NULL));
}

/* --- gradient check ----------------------------------------------------------------------------------------------- */

typedef struct network {
    tsh_embedding *layer;
    tsh_tensor *ids;
} network;

static tsh_tensor *objective(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    const network *n = user;
    (void)inputs;
    tsh_tensor *y = tsh_gelu(tape, tsh_embedding_forward(tape, n->layer, n->ids));
    return tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS);
}

static void check_gradients(tshi_rank *r, void *arg) {
    const double ids[] = {4, 0, 4, 2}; /* never the padding: its row has a numeric difference but no gradient */
    tsh_tape *tape = NULL;
    double worst = 1;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int v = 0; v < VARIANTS && !r->failed; v++) {
        network n = {make_layer(r, &variants[v], (sizes){5, 3, 4}, TSH_FLOAT64), NULL};
        n.ids = tshi_test_tensor(r, tsh_world_mesh(r->world),
                                 &(tsh_tensor_config){TSH_INT64, 2, {2, 2}, {variants[v].ids}}, ids);
        tsh_tensor *table = tsh_embedding_weight(n.layer);
        tshi_check_ok(r, tsh_gradient_check(tape, objective, &table, 1, 0, &n, &worst));
        tshi_check(r, worst < 1e-7, "%s: worst %g", variants[v].name, worst);
        tsh_tensor_release(n.ids);
        tsh_embedding_destroy(n.layer);
    }
    tsh_tape_destroy(tape);
}

Test(embedding, passes_the_gradient_check, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, check_gradients, NULL));
}

/* --- sizes, padding, wrong use ------------------------------------------------------------------------------------ */

static void slices(tshi_rank *r, void *arg) {
    const sizes s = {13, 6, 1};
    int64_t rows, cols;
    (void)arg;
    tsh_split(s.rows, r->size, r->rank, NULL, &rows);
    tsh_split(s.cols, r->size, r->rank, NULL, &cols);
    const int kinds[] = {DENSE, ROW, COLUMN};
    const int64_t wanted[] = {s.rows * s.cols, rows * s.cols, s.rows * cols};
    for (int i = 0; i < 3; i++) {
        tsh_embedding *layer = make_layer(r, &variants[kinds[i]], s, TSH_FLOAT64);
        tsh_tensor *table = tsh_embedding_weight(layer);
        tshi_check(r, tsh_tensor_local_nbytes(table) == (size_t)wanted[i] * 8, "%s: %zu bytes", variants[kinds[i]].name,
                   tsh_tensor_local_nbytes(table));
        for (int64_t e = 0; e < tsh_tensor_local_numel(table); e++) {
            bool zero = tshi_test_element(table, e) == 0;
            bool padding = tshi_test_place(table, e) / s.cols == PADDING;
            tshi_check(r, zero == padding, "%s: element %lld", variants[kinds[i]].name, (long long)e);
        }
        tsh_embedding_destroy(layer);
    }
}

Test(embedding, holds_its_slice_alone_and_zeros_at_the_padding, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, slices, NULL));
}

static void range(tshi_rank *r, void *arg) {
    const double outside[] = {0, 12, 13}, inside[] = {0, 12, 5};
    char text[64];
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor_config config = {TSH_INT64, 1, {3}, {R}};
    tsh_tensor *bad = tshi_test_tensor(r, tsh_world_mesh(r->world), &config, outside);
    tsh_tensor *good = tshi_test_tensor(r, tsh_world_mesh(r->world), &config, inside);
    for (int v = 0; v < VARIANTS; v++) {
        if (v == DENSE_BATCH) continue; /* there only the rank that holds the id sees it first */
        tsh_embedding *layer = make_layer(r, &variants[v], (sizes){13, 2, 3}, TSH_FLOAT32);
        tshi_check(r, !tsh_embedding_forward(tape, layer, bad), "took id 13 of 13");
        tshi_check(r, tsh_tape_status(tape) == TSH_ERR_RANGE, "status %s", tsh_status_name(tsh_tape_status(tape)));
        snprintf(text, sizeof text, "rank %d: ", r->rank);
        tshi_check(r, strstr(tsh_tape_message(tape), text) && strstr(tsh_tape_message(tape), "id 13 at index 2"), "%s",
                   tsh_tape_message(tape));
        tshi_check_ok(r, tsh_tape_reset(tape));
        tshi_check(r, tsh_embedding_forward(tape, layer, good), "not usable: %s", tsh_tape_message(tape));
        tshi_check_ok(r, tsh_tape_reset(tape));
        tsh_embedding_destroy(layer);
    }
    tsh_tensor_release(bad);
    tsh_tensor_release(good);
    tsh_tape_destroy(tape);
}

/* An id outside the whole vocabulary is an error at any number of ranks. */
Test(embedding, refuses_ids_outside_the_whole_vocabulary, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, range, NULL));
}

static void local_ids(tshi_rank *r, void *arg) {
    const int kinds[] = {ROW, COLUMN};
    tsh_tape *tape = NULL;
    tsh_tensor *ids = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor_config config = {TSH_INT64, 1, {3}, {TSH_LOCAL_INIT}};
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &ids));
    for (int i = 0; i < 2; i++) {
        tsh_embedding *layer = make_layer(r, &variants[kinds[i]], (sizes){13, 2, 3}, TSH_FLOAT32);
        tshi_check(r, !tsh_embedding_forward(tape, layer, ids), "took ids that differ by rank");
        tshi_check(r, tsh_tape_status(tape) == TSH_ERR_LAYOUT && strstr(tsh_tape_message(tape), "LOCAL"), "%s",
                   tsh_tape_message(tape));
        tshi_check_ok(r, tsh_tape_reset(tape));
        tsh_embedding_destroy(layer);
    }
    tsh_tape_destroy(tape);
    tsh_tensor_release(ids);
}

Test(embedding, a_split_table_refuses_ids_that_differ_by_rank, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, local_ids, NULL));
}

static void wrong_configurations(tshi_rank *r, void *arg) {
    const struct {
        tsh_embedding_config config;
        const char *words;
    } wrong[] = {
        {{.num_embeddings = 0, .embedding_dim = 4}, "num_embeddings=0"},
        {{.num_embeddings = 4, .embedding_dim = 4, .has_padding = true, .padding = 4}, "padding=4 is outside [0, 4)"},
        {{.num_embeddings = 4, .embedding_dim = 4, .has_padding = true, .padding = -1}, "padding=-1"},
        {{.num_embeddings = 4, .embedding_dim = 4, .shard = TSH_ROW, .gather_output = true}, "gather_output"},
        {{.num_embeddings = 4, .embedding_dim = 4, .sequence_parallel = true}, "sequence_parallel"},
        {{.num_embeddings = 4, .embedding_dim = 4, .dtype = TSH_INT32}, "int32"}};
    tsh_embedding *layer = NULL;
    (void)arg;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        tsh_status status = tsh_embedding_create(tsh_world_group(r->world), &wrong[i].config, &layer);
        tshi_check(r, status != TSH_OK && !layer, "took configuration %zu", i);
        tshi_check(r, strstr(tsh_error_message(), wrong[i].words), "%zu: \"%s\"", i, tsh_error_message());
    }
}

Test(embedding, refuses_wrong_configurations, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, wrong_configurations, NULL));
}
