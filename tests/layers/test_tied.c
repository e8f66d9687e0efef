/* Tied embeddings: one table that is looked up and that projects to logits, whole and split. */
#include "support/layouts.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(tied, .timeout = 240);

enum { VOCABULARY = 11, FEATURES = 3, TOKENS = 5 };

typedef struct variant {
    const char *name;
    tsh_sharding shard;
    bool sequence, gather;
    tsh_layout logits;
} variant;

static const variant variants[] = {{"dense", TSH_DENSE, false, false, R},
                                   {"by vocabulary", TSH_ROW, false, false, S1},
                                   {"by vocabulary, sequence parallel", TSH_ROW, true, false, S1},
                                   {"by features", TSH_COLUMN, false, false, R},
                                   {"by features, gathered", TSH_COLUMN, false, true, R}};

enum { VARIANTS = sizeof variants / sizeof variants[0] };

typedef struct network {
    tsh_embedding *layer;
    tsh_tensor *ids, *target, *logits;
} network;

static bool make(tshi_rank *r, const variant *v, network *n) {
    static const double ids[TOKENS] = {3, 0, 10, 3, 7}, targets[TOKENS] = {0, 10, 3, 7, 2};
    tsh_tensor_config config = {TSH_INT64, 1, {TOKENS}, {R}};
    double table[VOCABULARY * FEATURES];
    tsh_embedding_create(tsh_world_group(r->world),
                         &(tsh_embedding_config){.num_embeddings = VOCABULARY,
                                                 .embedding_dim = FEATURES,
                                                 .shard = v->shard,
                                                 .sequence_parallel = v->sequence,
                                                 .gather_output = v->gather,
                                                 .dtype = TSH_FLOAT64},
                         &n->layer);
    if (!tshi_check(r, n->layer, "%s: %s", v->name, tsh_error_message())) return false;
    tshi_test_integers(1, VOCABULARY * FEATURES, table);
    for (int i = 0; i < VOCABULARY * FEATURES; i++) table[i] /= 8;
    n->ids = tshi_test_tensor(r, tsh_world_mesh(r->world), &config, ids);
    n->target = tshi_test_tensor(r, tsh_world_mesh(r->world), &config, targets);
    return tshi_check_ok(r, tsh_embedding_load(n->layer, table));
}

static void destroy(network *n) {
    tsh_tensor_release(n->ids);
    tsh_tensor_release(n->target);
    tsh_embedding_destroy(n->layer);
}

static tsh_tensor *loss_of(tsh_tape *tape, network *n) {
    tsh_tensor *h = tsh_gelu(tape, tsh_embedding_forward(tape, n->layer, n->ids));
    n->logits = tsh_embedding_project(tape, n->layer, h);
    return tsh_cross_entropy(tape, n->logits, n->target, NULL);
}

static void check_one(tshi_rank *r, tsh_tape *tape, const variant *v, network *whole) {
    network n = {0};
    if (!make(r, v, &n)) return;
    tsh_tensor *loss = loss_of(tape, whole), *got = loss_of(tape, &n);
    if (tshi_check(r, loss && got, "%s: %s", v->name, tsh_tape_message(tape))) {
        tsh_layout layout = tsh_tensor_layout(n.logits, tsh_world_group(r->world));
        tshi_check(r, layout.kind == v->logits.kind && layout.dim == v->logits.dim, "%s: other layout", v->name);
        tshi_test_same(r, v->name, n.logits, tsh_tensor_data(whole->logits), 1e-13);
        tshi_check_ok(r, tsh_backward(tape, loss));
        tshi_check_ok(r, tsh_backward(tape, got));
        tshi_test_same_grad(r, v->name, tsh_embedding_weight(n.layer),
                            tsh_tensor_data(tsh_tensor_grad(tsh_embedding_weight(whole->layer))), 1e-13);
    }
    tsh_tensor_zero_grad(tsh_embedding_weight(whole->layer));
    tsh_tape_reset(tape);
    destroy(&n);
}

static void all_variants(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    network whole = {0};
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    if (make(r, &variants[0], &whole)) {
        for (int i = 0; i < VARIANTS && !r->failed; i++) check_one(r, tape, &variants[i], &whole);
    }
    destroy(&whole);
    tsh_tape_destroy(tape);
}

Test(tied, logits_and_the_sum_of_both_gradients_equal_those_of_a_whole_table) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, all_variants, NULL));
    cr_assert_str_empty(tshi_test_run(7, all_variants, NULL));
}

/* --- gradient check ----------------------------------------------------------------------------------------------- */

static tsh_tensor *objective(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    (void)inputs;
    return loss_of(tape, user);
}

static void check_gradients(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    double worst = 1;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < VARIANTS && !r->failed; i++) {
        network n = {0};
        if (!make(r, &variants[i], &n)) break;
        tsh_tensor *table = tsh_embedding_weight(n.layer);
        tshi_check_ok(r, tsh_gradient_check(tape, objective, &table, 1, 0, &n, &worst));
        tshi_check(r, worst < 1e-7, "%s: worst %g", variants[i].name, worst);
        destroy(&n);
    }
    tsh_tape_destroy(tape);
}

Test(tied, passes_the_gradient_check) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, check_gradients, NULL));
}
