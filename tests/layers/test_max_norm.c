/* Embeddings whose rows have a bounded norm, against torch.nn.Embedding (tests/data/functions): in every sharding, with
 * ids whole, split and local, in all dtypes; of the table with three rows of two some ranks hold nothing. */
#include "support/layouts.h"
#include "support/tensors.h"
#include "support/vectors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MOST 65 /* elements of a table */

TestSuite(max_norm, .timeout = 120);

typedef struct variant {
    const char *name;
    tsh_sharding shard;
    tsh_layout ids;
    int reduces, gathers; /* of the forward, at several ranks */
} variant;

static const variant variants[] = {{"dense", TSH_DENSE, R, 0, 0},   {"dense, ids split", TSH_DENSE, S0, 0, 1},
                                   {"row", TSH_ROW, R, 1, 0},       {"row, ids split", TSH_ROW, S0, 1, 1},
                                   {"column", TSH_COLUMN, R, 1, 1}, {"column, ids split", TSH_COLUMN, S0, 1, 2}};

typedef struct table {
    const char *name;
    int64_t rows, cols, ids;
} table;

static const table tables[] = {{"many", 13, 5, 9}, {"few", 3, 2, 3}};
static const double types[] = {1, 0, 2, 3, INFINITY};
static const tsh_dtype dtypes[] = {TSH_FLOAT64, TSH_FLOAT32, TSH_BFLOAT16, TSH_FLOAT16};
static const double tolerances[] = {1e-13, 1e-6, 0.03, 0.03};

static const double *values(tshi_rank *r, const tshi_vectors *v, const char *of, const char *what, double norm_type) {
    static const double none[MOST];
    char name[40];
    if (norm_type < 0)
        snprintf(name, sizeof name, "%s.%s", of, what);
    else
        snprintf(name, sizeof name, "%s.%s.%g", of, what, norm_type == 0 ? 2 : norm_type);
    const tshi_vector *found = tshi_vectors_find(v, name);
    return tshi_check(r, found, "there is no %s", name) ? found->values : none;
}

static bool read_vectors(tshi_rank *r, tshi_vectors *v) {
    char error[200];
    return tshi_check(r, tshi_vectors_read(TSHARD_TEST_DATA "/functions/max_norm.txt", v, error, sizeof error), "%s",
                      error);
}

/* This rank's part takes the whole's values. */
static void fill(tshi_rank *r, tsh_tensor *weight, const double *whole) {
    const tsh_mesh *mesh = weight->mesh;
    tsh_tensor_config config = {weight->dtype, 2, {weight->shape.global[0], weight->shape.global[1]}, {R}};
    memcpy(config.layout, weight->layout, sizeof config.layout);
    tsh_tensor *from = tshi_test_tensor(r, mesh, &config, whole);
    char bytes[MOST * sizeof(double)];
    tshi_check_ok(r, tsh_tensor_read(from, bytes, tsh_tensor_local_numel(from)));
    tshi_check_ok(r, tsh_tensor_write(weight, bytes, tsh_tensor_local_numel(weight)));
    tsh_tensor_release(from);
}

static tsh_embedding *layer_of(tshi_rank *r, tsh_group *group, const table *t, tsh_sharding shard, tsh_dtype dtype,
                               double norm_type, const tshi_vectors *v) {
    tsh_embedding *layer = NULL;
    tshi_check_ok(r, tsh_embedding_create(group,
                                          &(tsh_embedding_config){.num_embeddings = t->rows,
                                                                  .embedding_dim = t->cols,
                                                                  .shard = shard,
                                                                  .max_norm = 1.5,
                                                                  .norm_type = norm_type,
                                                                  .gather_output = shard == TSH_COLUMN,
                                                                  .dtype = dtype},
                                          &layer));
    fill(r, tsh_embedding_weight(layer), values(r, v, t->name, "table", -1));
    return layer;
}

/* All ranks hold the same bits. */
static void check_replicas(tshi_rank *r, const char *name, const tsh_tensor *weight) {
    tsh_tensor *first = NULL;
    char own[MOST * sizeof(double)], bytes[MOST * sizeof(double)];
    tshi_check_ok(r, tshi_tensor_scratch(weight->mesh, weight->dtype, weight->numel, &first));
    tshi_check_ok(r, tsh_tensor_read(weight, own, weight->numel));
    tshi_check_ok(r, tsh_tensor_write(first, own, weight->numel));
    tshi_check_ok(r, tsh_broadcast(tsh_world_group(r->world), first, 0));
    tshi_check_ok(r, tsh_tensor_read(first, bytes, weight->numel));
    tshi_check(r, !memcmp(own, bytes, tsh_tensor_local_nbytes(weight)), "%s: the table differs from rank 0's", name);
    tshi_tensor_release(first);
}

static void check_calls(tshi_rank *r, const variant *w) {
    tsh_communication_stats stats = tsh_group_stats(tsh_world_group(r->world));
    int reduces = (int)stats.calls[TSH_COLLECTIVE_ALL_REDUCE], gathers = (int)stats.calls[TSH_COLLECTIVE_ALL_GATHER];
    bool several = r->size > 1;
    tshi_check(r, reduces == (several ? w->reduces : 0) && gathers == (several ? w->gathers : 0),
               "%s: %d all-reduces and %d all-gathers", w->name, reduces, gathers);
}

static void check_variant(tshi_rank *r, const variant *w, const table *t, int d, double norm_type,
                          const tshi_vectors *v) {
    tsh_tape *tape = NULL;
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_group *group = tsh_world_group(r->world);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_embedding *layer = layer_of(r, group, t, w->shard, dtypes[d], norm_type, v);
    tsh_tensor *weight = tsh_embedding_weight(layer);
    tsh_layout split = w->shard == TSH_DENSE ? w->ids : TSH_REPLICATED;
    tsh_tensor_config of_ids = {TSH_INT64, 1, {t->ids}, {w->ids}}, of_dy = {dtypes[d], 2, {t->ids, t->cols}, {split}};
    tsh_tensor *ids = tshi_test_tensor(r, mesh, &of_ids, values(r, v, t->name, "ids", -1));
    tsh_tensor *dy = tshi_test_tensor(r, mesh, &of_dy, values(r, v, t->name, "dy", -1));
    tsh_group_reset_stats(group);
    tsh_tensor *y = tsh_embedding_forward(tape, layer, ids);
    check_calls(r, w);
    tshi_test_same(r, w->name, weight, values(r, v, t->name, "bounded", norm_type), tolerances[d]);
    if (w->shard == TSH_DENSE) check_replicas(r, w->name, weight);
    tshi_check_ok(r, tsh_backward_with(tape, tsh_mul(tape, y, y), &(tsh_backward_config){.gradient = dy}));
    tshi_test_same_grad(r, w->name, weight, values(r, v, t->name, "dtable", norm_type), tolerances[d] * 3);
    tsh_tape_destroy(tape);
    tsh_tensor_release(ids);
    tsh_tensor_release(dy);
    tsh_embedding_destroy(layer);
}

static void as_pytorch(tshi_rank *r, void *arg) {
    tshi_vectors v;
    (void)arg;
    if (!read_vectors(r, &v)) return;
    for (int d = 0; d < 4; d++)
        for (int n = 0; n < 5; n++)
            for (int t = 0; t < 2; t++)
                for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
                    check_variant(r, &variants[i], &tables[t], d, types[n], &v);
    tshi_vectors_free(&v);
}

Test(max_norm, tables_and_gradients_are_pytorchs_at_any_number_of_ranks) {
    for (int ranks = 1; ranks <= 4; ranks++) cr_assert_str_empty(tshi_test_run(ranks, as_pytorch, NULL));
}

/* Rows that one of `count` ids names are bounded, the rest are as they were. */
static void expect(tshi_rank *r, const tshi_vectors *v, const double *ids, int count, double *whole) {
    const double *before = values(r, v, "many", "table", -1), *after = values(r, v, "many", "bounded", 2);
    for (int i = 0; i < 65; i++) {
        bool used = false;
        for (int k = 0; k < count; k++) used = used || (int)ids[k] == i / 5;
        whole[i] = used ? after[i] : before[i];
    }
}

/* Each rank looks up two ids of its own, without recording, or one rank an id that does not exist. */
static void local_ids(tshi_rank *r, void *arg) {
    bool wrong = *(bool *)arg;
    tshi_vectors v;
    double whole[MOST];
    tsh_tape *tape = NULL;
    if (!read_vectors(r, &v)) return;
    const double *all = values(r, &v, "many", "ids", -1);
    int64_t own[2] = {(int64_t)all[2 * r->rank], (int64_t)all[2 * r->rank + 1]};
    if (wrong && r->rank == r->size - 1) own[1] = 13;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tape_set_recording(tape, false);
    tsh_embedding *layer = layer_of(r, tsh_world_group(r->world), &tables[0], TSH_DENSE, TSH_FLOAT64, 2, &v);
    tsh_tensor *ids = NULL;
    tsh_tensor_config of_ids = {TSH_INT64, 1, {2}, {L}};
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &of_ids, &ids));
    tshi_check_ok(r, tsh_tensor_write(ids, own, 2));
    const tsh_tensor *y = tsh_embedding_forward(tape, layer, ids);
    tshi_check(r, wrong == !y, "%s", tsh_tape_message(tape));
    if (wrong) tshi_check(r, tsh_tape_status(tape) == TSH_ERR_RANGE, "%s", tsh_tape_message(tape));
    expect(r, &v, all, wrong ? 0 : 2 * r->size, whole);
    tshi_test_same(r, "local ids", tsh_embedding_weight(layer), whole, wrong ? 0 : 1e-13);
    if (!wrong) check_replicas(r, "local ids", tsh_embedding_weight(layer));
    tsh_tape_destroy(tape);
    tsh_tensor_release(ids);
    tsh_embedding_destroy(layer);
    tshi_vectors_free(&v);
}

Test(max_norm, local_ids_of_all_ranks_count_without_recording) {
    bool wrong = false;
    for (int ranks = 1; ranks <= 4; ranks++) cr_assert_str_empty(tshi_test_run(ranks, local_ids, &wrong));
}

Test(max_norm, an_id_out_of_range_changes_no_row_of_any_rank) {
    bool wrong = true;
    for (int ranks = 1; ranks <= 4; ranks++) cr_assert_str_empty(tshi_test_run(ranks, local_ids, &wrong));
}

/* Ids are split over the data axis, the table over the other one. */
static void two_axes(tshi_rank *r, void *arg) {
    const tsh_sharding shards[] = {TSH_ROW, TSH_COLUMN};
    tshi_vectors v;
    tsh_mesh *mesh = NULL;
    (void)arg;
    if (!read_vectors(r, &v)) return;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=2,model=2", &mesh));
    for (int i = 0; i < 2; i++) {
        tsh_tape *tape = NULL;
        tshi_check_ok(r, tsh_tape_create(r->world, &tape));
        tsh_embedding *layer =
            layer_of(r, tsh_mesh_group(mesh, "model"), &tables[0], shards[i], TSH_FLOAT64, INFINITY, &v);
        tsh_tensor_config of_ids = {TSH_INT64, 1, {9}, {S0, R}}, of_dy = {TSH_FLOAT64, 2, {9, 5}, {S0, R}};
        tsh_tensor *ids = tshi_test_tensor(r, mesh, &of_ids, values(r, &v, "many", "ids", -1));
        tsh_tensor *dy = tshi_test_tensor(r, mesh, &of_dy, values(r, &v, "many", "dy", -1));
        tsh_tensor *y = tsh_embedding_forward(tape, layer, ids), *weight = tsh_embedding_weight(layer);
        tshi_test_same(r, "two axes", weight, values(r, &v, "many", "bounded", INFINITY), 1e-13);
        tshi_check_ok(r, tsh_backward_with(tape, tsh_mul(tape, y, y), &(tsh_backward_config){.gradient = dy}));
        tshi_test_same_grad(r, "two axes", weight, values(r, &v, "many", "dtable", INFINITY), 1e-13);
        tsh_tape_destroy(tape);
        tsh_tensor_release(ids);
        tsh_tensor_release(dy);
        tsh_embedding_destroy(layer);
    }
    tsh_mesh_destroy(mesh);
    tshi_vectors_free(&v);
}

Test(max_norm, ids_of_a_data_axis_scale_the_parts_of_its_replicas_alike) {
    cr_assert_str_empty(tshi_test_run(4, two_axes, NULL));
}
