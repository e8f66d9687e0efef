/* Embeddings whose gradients are scaled by the frequency of ids, against torch.nn.Embedding (tests/data/functions): in
 * every sharding, with ids whole and split, in float64 and 16 bits. */
#include "support/layouts.h"
#include "support/tensors.h"
#include "support/vectors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>

typedef struct variant {
    const char *name;
    tsh_sharding shard;
    tsh_layout ids;
    bool gather;
} variant;

static const variant variants[] = {{"dense", TSH_DENSE, R, false},
                                   {"dense, ids split", TSH_DENSE, S0, false},
                                   {"row", TSH_ROW, R, false},
                                   {"column", TSH_COLUMN, R, true}};

static const double *values(tshi_rank *r, const tshi_vectors *v, const char *name) {
    static const double none[65];
    const tshi_vector *found = tshi_vectors_find(v, name);
    return tshi_check(r, found, "there is no %s", name) ? found->values : none;
}

static void check_variant(tshi_rank *r, const variant *w, tsh_dtype dtype, const tshi_vectors *v) {
    tsh_tape *tape = NULL;
    tsh_embedding *layer = NULL;
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    double tolerance = dtype == TSH_FLOAT64 ? 1e-15 : 0.02;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_embedding_create(tsh_world_group(r->world),
                                          &(tsh_embedding_config){.num_embeddings = 13,
                                                                  .embedding_dim = 5,
                                                                  .shard = w->shard,
                                                                  .has_padding = true,
                                                                  .padding = 1,
                                                                  .scale_grad_by_freq = true,
                                                                  .gather_output = w->gather,
                                                                  .dtype = dtype},
                                          &layer));
    tsh_tensor_config of_ids = {TSH_INT64, 1, {9}, {w->ids}}, of_dy = {dtype, 2, {9, 5}, {w->ids}};
    tsh_tensor *ids = tshi_test_tensor(r, mesh, &of_ids, values(r, v, "ids"));
    tsh_tensor *dy = tshi_test_tensor(r, mesh, &of_dy, values(r, v, "dy"));
    tsh_tensor *y = tsh_embedding_forward(tape, layer, ids);
    tsh_group_reset_stats(tsh_world_group(r->world));
    tshi_check_ok(r, tsh_backward_with(tape, y, &(tsh_backward_config){.gradient = dy}));
    uint64_t calls = tsh_group_stats(tsh_world_group(r->world)).calls[TSH_COLLECTIVE_ALL_REDUCE];
    uint64_t wanted = r->size > 1 && w->ids.kind == TSH_KIND_SHARD ? 2 : 0; /* of the counts, and of the gradient */
    tshi_check(r, calls == wanted, "%s: %d all-reduces", w->name, (int)calls);
    tshi_test_same_grad(r, w->name, tsh_embedding_weight(layer), values(r, v, "dtable"), tolerance);
    tsh_tape_destroy(tape);
    tsh_tensor_release(ids);
    tsh_tensor_release(dy);
    tsh_embedding_destroy(layer);
}

static void as_pytorch(tshi_rank *r, void *arg) {
    const tsh_dtype dtypes[] = {TSH_FLOAT64, TSH_BFLOAT16};
    (void)arg;
    char error[200];
    tshi_vectors v;
    if (!tshi_check(r, tshi_vectors_read(TSHARD_TEST_DATA "/functions/frequency.txt", &v, error, sizeof error), "%s",
                    error))
        return;
    for (int d = 0; d < 2; d++)
        for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) check_variant(r, &variants[i], dtypes[d], &v);
    tshi_vectors_free(&v);
}

Test(frequency, gradients_are_pytorchs_at_any_number_of_ranks, .timeout = 120) {
    for (int ranks = 1; ranks <= 4; ranks++) cr_assert_str_empty(tshi_test_run(ranks, as_pytorch, NULL));
}
