/* Mixtures of experts: what each rank holds of them, and sequences whose tokens are split over ranks. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(expert_parts, .timeout = 120);

enum { EMBED = 5, HIDDEN = 3 };

/* The experts, and hidden features of each, that the ranks of a mesh hold. */
typedef struct held {
    int ranks;
    const char *mesh;
    int64_t experts, hidden, parts[6][2];
} held;

static void holds_parts(tshi_rank *r, void *arg) {
    const held *h = arg;
    const int64_t *wanted = h->parts[r->rank];
    tsh_mesh *mesh = NULL;
    tsh_experts *layer = NULL;
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, h->mesh, &mesh))) return;
    const tsh_experts_config config = {.embed = EMBED,
                                       .hidden = h->hidden,
                                       .experts = h->experts,
                                       .router = {.top_k = 1},
                                       .expert_group = tsh_mesh_group(mesh, "experts"),
                                       .dtype = TSH_FLOAT64};
    tshi_check_ok(r, tsh_experts_create(tsh_mesh_group(mesh, "model"), &config, &layer));
    for (tsh_experts_part i = TSH_EXPERTS_GATE; i <= TSH_EXPERTS_DOWN && !r->failed; i++) {
        const int64_t *have = tsh_tensor_local_shape(tsh_experts_weight(layer, i));
        tshi_check(r, have[0] == wanted[0] && have[1] == wanted[1] && have[2] == EMBED, "[%d, %d, %d], [%d, %d] wanted",
                   (int)have[0], (int)have[1], (int)have[2], (int)wanted[0], (int)wanted[1]);
    }
    tsh_experts_destroy(layer);
    tsh_mesh_destroy(mesh);
}

/* Whole experts, parts of one on ranks that outnumber them, and along a second axis parts of each. */
Test(expert_parts, are_units_of_the_split_and_their_features_its_blocks) {
    static const held cases[] = {
        {3, "experts=3,model=1", 5, 3, {{2, 3}, {2, 3}, {1, 3}}},
        {4, "experts=4,model=1", 2, 3, {{1, 2}, {1, 1}, {1, 2}, {1, 1}}},
        {4, "experts=2,model=2", 5, 5, {{3, 3}, {3, 2}, {2, 3}, {2, 2}}},
        {4, "experts=2,model=2:1", 4, 5, {{2, 3}, {2, 2}, {2, 3}, {2, 2}}},
        {6, "experts=3,model=2", 2, 4, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, {1, 2}, {1, 2}}},
        {6, "experts=2,model=3", 3, 2, {{2, 1}, {2, 1}, {2, 0}, {1, 1}, {1, 1}, {1, 0}}},
        {3, "experts=3:0:1,model=1", 2, 3, {{2, 3}, {0, 3}, {0, 3}}},
        {4, "experts=3:0:1:1,model=1", 2, 3, {{1, 3}, {0, 3}, {1, 2}, {1, 1}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *words = tshi_test_run(cases[i].ranks, holds_parts, (void *)&cases[i]);
        cr_assert_str_empty(words, "%s: %s", cases[i].mesh, words);
    }
}

/* Tokens of two sequences, whose positions are split over ranks or not. */
static void drops_by_sequence(tshi_rank *r, void *arg) {
    enum { BATCH = 2, LENGTH = 5 };
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    const tsh_experts_config config = {
        .embed = EMBED, .hidden = HIDDEN, .experts = 3, .router = {.top_k = 2}, .capacity = 0.6, .dtype = TSH_FLOAT64};
    double values[BATCH * LENGTH * EMBED], rows[BATCH * LENGTH * EMBED];
    tsh_experts *layer = NULL;
    tsh_tape *tape = NULL;
    (void)arg;
    for (int i = 0; i < BATCH * LENGTH * EMBED; i++) values[i] = sin(i * i);
    tsh_world_seed(r->world, 5);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_experts_create(tsh_world_group(r->world), &config, &layer));
    for (int split = 0; split < 3 && !r->failed; split++) {
        tsh_tensor_config c = {.dtype = TSH_FLOAT64, .ndim = split ? 3 : 2, .shape = {BATCH * LENGTH, EMBED}};
        if (split) memcpy(c.shape, (int64_t[]){BATCH, LENGTH, EMBED}, 3 * sizeof *c.shape);
        if (split == 2) c.layout[0] = TSH_SHARD(1);
        tsh_tensor *x = tshi_test_tensor(r, mesh, &c, values), *y = tsh_experts_forward(tape, layer, x);
        if (tshi_check(r, y, "%s", tsh_tape_message(tape)) && split == 0)
            tshi_check_ok(r, tsh_tensor_read_whole(y, rows));
        if (y) tshi_test_same(r, split == 2 ? "split" : "whole", y, rows, 1e-12);
        tsh_tensor_release(x);
        tshi_check_ok(r, tsh_tape_reset(tape));
    }
    tsh_tape_destroy(tape);
    tsh_experts_destroy(layer);
}

Test(expert_parts, drop_the_same_tokens_of_split_sequences) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, drops_by_sequence, NULL));
}
