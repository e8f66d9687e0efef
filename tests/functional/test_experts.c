/* tsh_expert_mlp and the router's losses by themselves; tests/layers has the layer that they make. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>

TestSuite(expert_functions, .timeout = 240);

enum { EMBED = 5, HIDDEN = 3 };

/* --- weights of several uses -------------------------------------------------------------------------------------- */

/* One tensor is two of the three weights: inputs[2] those whose bits are set in `shared`, inputs[3] the other one. */
static tsh_tensor *twice(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    static const int64_t ids[4] = {0, 2, 0, 0};
    const int shared = *(const int *)user;
    tsh_tensor *w[3], *experts = NULL;
    tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 2, .shape = {4, 1}};
    for (int i = 0; i < 3; i++) w[i] = inputs[shared >> i & 1 ? 2 : 3];
    if (tsh_tensor_create(tsh_tensor_mesh(inputs[0]), &config, &experts) != TSH_OK) return NULL;
    tsh_tensor_write_whole(experts, ids);
    tsh_tensor *y = tsh_expert_mlp(tape, inputs[0], inputs[1], experts, w[0], w[1], w[2], 3);
    tsh_tensor_release(experts);
    return tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS);
}

static void check_twice(tshi_rank *r, void *arg) {
    static const int64_t shapes[4][2] = {{4, EMBED}, {4, 1}, {3 * HIDDEN, EMBED}, {3 * HIDDEN, EMBED}};
    double values[3 * HIDDEN * EMBED], worst = 1;
    tsh_tensor *inputs[4];
    tsh_tape *tape = NULL;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < 4; i++) {
        tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {shapes[i][0], shapes[i][1]}};
        tshi_test_integers(i + 1, 3 * HIDDEN * EMBED, values);
        for (int k = 0; k < 3 * HIDDEN * EMBED; k++) values[k] = values[k] / 8 + 0.01 * k;
        inputs[i] = tshi_test_leaf(r, tsh_world_mesh(r->world), &config, values);
    }
    for (int shared = 3; shared < 7 && !r->failed; shared += shared == 3 ? 2 : 1) {
        tshi_check_ok(r, tsh_gradient_check(tape, twice, inputs, 4, 0, &shared, &worst));
        tshi_check(r, worst < 1e-6, "weights %d: worst %g", shared, worst);
    }
    (void)arg;
    tsh_tape_destroy(tape);
    for (int i = 0; i < 4; i++) tsh_tensor_release(inputs[i]);
}

Test(expert_functions, one_tensor_may_be_several_weights) {
    cr_assert_str_empty(tshi_test_run(1, check_twice, NULL));
}

/* --- stacks ------------------------------------------------------------------------------------------------------- */

static tsh_tensor *of_stacks(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    tsh_tensor *y =
        tsh_expert_mlp(tape, inputs[0], inputs[1], *(tsh_tensor **)user, inputs[2], inputs[3], inputs[4], 3);
    return tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS);
}

/* Experts along the first axis, or parts of one on ranks that outnumber them; hidden features along the second, beside
 * matrices that the call brings to gate's split. Tokens are split along the first axis. */
static void check_stacks(tshi_rank *r, void *arg) {
    static const int64_t ids[4] = {0, 2, -1, 0};
    double values[3 * HIDDEN * EMBED], worst = 1;
    tsh_mesh *mesh = NULL;
    tsh_tensor *inputs[5] = {NULL}, *experts = NULL;
    tsh_tape *tape = NULL;
    tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 2, .shape = {4, 1}, .layout = {TSH_SHARD(0)}};
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, arg, &mesh))) return;
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, &experts));
    tshi_check_ok(r, tsh_tensor_write_whole(experts, ids));
    for (int i = 0; i < 5; i++) {
        config = (tsh_tensor_config){.dtype = TSH_FLOAT64, .ndim = 2, .shape = {4, i ? 1 : EMBED}};
        config.layout[0] = TSH_SHARD(0);
        if (i > 1) config = (tsh_tensor_config){.dtype = TSH_FLOAT64, .ndim = 3, .shape = {3, HIDDEN, EMBED}};
        if (i > 1) config.layout[0] = i == 3 ? TSH_SHARD_SHARED(0, 3) : TSH_SHARD_NEXT(0);
        if (i > 1) config.layout[1] = i == 4 ? TSH_REPLICATED : TSH_SHARD(1);
        tshi_test_integers(i + 1, 3 * HIDDEN * EMBED, values);
        for (int k = 0; k < 3 * HIDDEN * EMBED; k++) values[k] = values[k] / 8 + 0.01 * k;
        inputs[i] = tshi_test_leaf(r, mesh, &config, values);
    }
    if (!r->failed) tshi_check_ok(r, tsh_gradient_check(tape, of_stacks, inputs, 5, 0, &experts, &worst));
    tshi_check(r, worst < 1e-6, "worst %g", worst);
    tsh_tape_destroy(tape);
    for (int i = 0; i < 5; i++) tsh_tensor_release(inputs[i]);
    tsh_tensor_release(experts);
    tsh_mesh_destroy(mesh);
}

Test(expert_functions, experts_of_stacks_and_their_features_are_split) {
    static const char *const meshes[] = {"experts=1,model=1", "experts=2,model=2", "experts=4,model=1"};
    for (int i = 0; i < 3; i++) {
        const char *words = tshi_test_run(i ? 4 : 1, check_stacks, (void *)(uintptr_t)meshes[i]);
        cr_assert_str_empty(words, "%s: %s", meshes[i], words);
    }
}

/* --- many tokens in 16 bits --------------------------------------------------------------------------------------- */

/* Equal logits: all tokens choose the first two of four experts, and the loss is 1 + log(4)^2. In float16 neither a
 * sum of products of sums over tokens is finite, nor one of squares. */
static void balance_in_16_bits(tshi_rank *r, void *arg) {
    static const tsh_dtype dtypes[] = {TSH_FLOAT32, TSH_FLOAT16, TSH_BFLOAT16};
    static const tsh_router_config config = {.top_k = 2, .aux_loss = 1, .z_loss = 1};
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < 3 && !r->failed; i++) {
        const tsh_tensor_config c = {dtypes[i], 2, {1 << 16, 4}, {TSH_SHARD(0)}};
        tsh_tensor *logits = NULL, *experts = NULL;
        tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &c, &logits));
        tshi_check_ok(r, tsh_tensor_fill(logits, 0));
        tsh_route(tape, logits, &config, &experts);
        tsh_tensor *loss = tsh_cast(tape, tsh_full(tape, tsh_route_loss(tape, logits, &config, experts)), TSH_FLOAT64);
        double got = loss ? tsh_tensor_item(loss) : 0, wanted = 1 + log(4) * log(4);
        tshi_check(r, fabs(got - wanted) < (i ? 0.02 : 1e-5), "%s: %g, not %g: %s", tsh_dtype_name(dtypes[i]), got,
                   wanted, tsh_tape_message(tape));
        tsh_tensor_release(logits);
        tshi_check_ok(r, tsh_tape_reset(tape));
    }
    tsh_tape_destroy(tape);
}

Test(expert_functions, losses_of_many_tokens_fit_16_bits) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, balance_in_16_bits, NULL));
}
