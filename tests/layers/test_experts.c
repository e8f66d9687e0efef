/* Mixtures of experts at any mesh against the same functions on whole tensors, and mistakes that other systems make. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

TestSuite(experts, .timeout = 240);

enum { TOKENS = 7, EMBED = 5, HIDDEN = 3, WIDEST = 5, MOST = 6 * WIDEST * EMBED, STACKS = 3 };

/* A layer on a mesh of data x experts x model, and how tokens are split. */
typedef struct setting {
    const char *mesh;
    int64_t experts, tokens, hidden;    /* hidden 0: HIDDEN */
    bool by_data, by_experts, by_model; /* tokens are SHARD(0) along these axes */
    bool by_model_only;                 /* no axis of its own for experts: "model" splits them */
    bool recompute, frozen;             /* frozen: the router gets no gradient */
    double capacity;
    tsh_zero_level level; /* of what the ranks of "data" shard */
    int64_t one;          /* above 0: a bias makes all tokens choose expert one - 1 first */
} setting;

typedef struct setup {
    tsh_mesh *mesh;
    tsh_tape *tape;
    tsh_experts *layer;
    tsh_tensor *x, *dy;                 /* as the setting splits them */
    tsh_tensor *whole_x, *whole_dy;     /* REPLICATED */
    tsh_tensor *router, *stack[STACKS]; /* leaves, REPLICATED, with the layer's values */
    tsh_router_config config;
} setup;

static tsh_tensor *tokens_tensor(tshi_rank *r, const setup *s, const setting *t, int seed, bool whole) {
    double values[TOKENS * EMBED];
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {t->tokens, EMBED}};
    tshi_test_integers(seed, TOKENS * EMBED, values);
    for (int i = 0; i < TOKENS * EMBED; i++) values[i] = values[i] / 8 + 0.01 * i;
    if (t->by_data && !whole) config.layout[0] = TSH_SHARD(0);
    if (t->by_experts && !whole) config.layout[1] = TSH_SHARD(0);
    if (t->by_model && !whole) config.layout[2] = TSH_SHARD(0);
    return tshi_test_leaf(r, s->mesh, &config, values);
}

static tsh_tensor *whole_copy(tshi_rank *r, const setup *s, const tsh_tensor *of) {
    double values[MOST];
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = of->shape.ndim};
    memcpy(config.shape, of->shape.global, sizeof config.shape);
    tshi_check_ok(r, tsh_tensor_read_whole(of, values));
    return r->failed ? NULL : tshi_test_leaf(r, s->mesh, &config, values);
}

static void make_leaves(tshi_rank *r, const setting *t, setup *s) {
    double bias[8] = {0};
    s->x = tokens_tensor(r, s, t, 1, false);
    s->dy = tokens_tensor(r, s, t, 2, false);
    s->whole_x = tokens_tensor(r, s, t, 1, true);
    s->whole_dy = tokens_tensor(r, s, t, 2, true);
    s->router = whole_copy(r, s, tsh_experts_weight(s->layer, TSH_EXPERTS_ROUTER));
    for (int i = 0; i < STACKS; i++)
        s->stack[i] = whole_copy(r, s, tsh_experts_weight(s->layer, (tsh_experts_part)(TSH_EXPERTS_GATE + i)));
    if (t->one) bias[t->one - 1] = 100;
    tshi_check_ok(r, tsh_tensor_write_whole(tsh_experts_weight(s->layer, TSH_EXPERTS_BIAS), bias));
    s->config.bias = tsh_experts_weight(s->layer, TSH_EXPERTS_BIAS);
    if (!t->frozen) return;
    tshi_check_ok(r, tsh_tensor_require_grad(s->router, false));
    tshi_check_ok(r, tsh_tensor_require_grad(tsh_experts_weight(s->layer, TSH_EXPERTS_ROUTER), false));
}

static bool open_setup(tshi_rank *r, const setting *t, setup *s) {
    *s = (setup){.config = {.top_k = t->one ? 1 : 2,
                            .score = TSH_ROUTER_SOFTMAX,
                            .renormalize = true,
                            .aux_loss = 0.5,
                            .z_loss = 0.25}};
    tshi_check_ok(r, tsh_tape_create(r->world, &s->tape));
    tsh_world_seed(r->world, 3);
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, t->mesh, &s->mesh))) return false;
    tsh_experts_config config = {.embed = EMBED,
                                 .hidden = t->hidden ? t->hidden : HIDDEN,
                                 .experts = t->experts,
                                 .router = s->config,
                                 .choice_bias = true,
                                 .capacity = t->capacity,
                                 .expert_group = t->by_model_only ? NULL : tsh_mesh_group(s->mesh, "experts"),
                                 .dtype = TSH_FLOAT64};
    if (!tshi_check_ok(r, tsh_experts_create(tsh_mesh_group(s->mesh, "model"), &config, &s->layer))) return false;
    make_leaves(r, t, s);
    return !r->failed;
}

static void close_setup(setup *s) {
    tsh_tensor *const tensors[] = {s->x,      s->dy,       s->whole_x,  s->whole_dy,
                                   s->router, s->stack[0], s->stack[1], s->stack[2]};
    tsh_tape_destroy(s->tape);
    tsh_experts_destroy(s->layer);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) tsh_tensor_release(tensors[i]);
    tsh_mesh_destroy(s->mesh);
}

/* Backward from sum(y dy) and the router's losses. */
static void backward(tshi_rank *r, const setup *s, tsh_tensor *y, tsh_tensor *dy, tsh_tensor *losses) {
    tsh_tensor *loss = tsh_sum(s->tape, tsh_mul(s->tape, y, dy), TSH_ALL_DIMS);
    loss = tsh_add(s->tape, loss, losses);
    if (tshi_check(r, loss, "%s", tsh_tape_message(s->tape))) tshi_check_ok(r, tsh_backward(s->tape, loss));
}

/* 1 for a choice that its expert has room for, else 0. */
static tsh_tensor *room_for(tshi_rank *r, const setup *s, const setting *t, const tsh_tensor *experts) {
    int top_k = (int)s->config.top_k, tokens = (int)t->tokens;
    int64_t ids[TOKENS * 2];
    double mask[TOKENS * 2] = {0};
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {tokens, top_k}};
    if (!tshi_check(r, experts, "%s", tsh_tape_message(s->tape))) return NULL;
    tshi_check_ok(r, tsh_tensor_read_whole(experts, ids));
    for (int j = 0; j < top_k; j++)
        for (int i = 0; i < tokens; i++) {
            int before = 0;
            for (int k = 0; k <= j; k++)
                for (int m = 0; m < (k == j ? i : tokens); m++) before += ids[m * top_k + k] == ids[i * top_k + j];
            mask[i * top_k + j] = before < ceil((double)(tokens * top_k) / (double)t->experts * t->capacity);
        }
    return tshi_test_tensor(r, s->mesh, &config, mask);
}

/* y of the functions, before backward frees it. */
static void run_functions(tshi_rank *r, const setup *s, const setting *t, double *wanted) {
    tsh_tensor *experts;
    tsh_tensor *logits = tsh_affine(s->tape, s->whole_x, s->router, NULL);
    tsh_tensor *weights = tsh_route(s->tape, logits, &s->config, &experts);
    tsh_tensor *mask = t->capacity > 0 ? room_for(r, s, t, experts) : NULL;
    if (mask) weights = tsh_mul(s->tape, weights, mask);
    tsh_tensor *y =
        tsh_expert_mlp(s->tape, s->whole_x, weights, experts, s->stack[0], s->stack[1], s->stack[2], t->experts);
    tsh_tensor *losses = tsh_route_loss(s->tape, logits, &s->config, experts);
    if (!tshi_check(r, y && losses, "%s", tsh_tape_message(s->tape))) return;
    tshi_check_ok(r, tsh_tensor_read_whole(y, wanted));
    backward(r, s, y, s->whole_dy, losses);
    tshi_check_ok(r, tsh_tape_reset(s->tape));
    tsh_tensor_release(mask);
}

static void compare_gradients(tshi_rank *r, const setup *s, bool frozen) {
    static const char *const names[] = {"dgate", "dup", "ddown"};
    tshi_test_same_grad(r, "dx", s->x, tsh_tensor_data(tsh_tensor_grad(s->whole_x)), 1e-11);
    tsh_tensor *router = tsh_experts_weight(s->layer, TSH_EXPERTS_ROUTER);
    if (frozen)
        tshi_check(r, !tsh_tensor_grad(router), "a frozen router has a gradient");
    else
        tshi_test_same_grad(r, "drouter", router, tsh_tensor_data(tsh_tensor_grad(s->router)), 1e-11);
    for (int i = 0; i < STACKS; i++)
        tshi_test_same_grad(r, names[i], tsh_experts_weight(s->layer, (tsh_experts_part)(TSH_EXPERTS_GATE + i)),
                            tsh_tensor_data(tsh_tensor_grad(s->stack[i])), 1e-11);
}

/* The layer's parameters become slices over "data". */
static void shard(tshi_rank *r, const setup *s, tsh_zero_level level, tsh_data_parallel **out) {
    const tsh_data_parallel_config config = {.level = level, .keep_values = true};
    tsh_parameters *list = NULL;
    *out = NULL;
    if (level == TSH_ZERO_NOTHING) return;
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_experts_register(s->layer, list, "experts"));
    tshi_check_ok(r, tsh_data_parallel_create(s->tape, list, tsh_mesh_group(s->mesh, "data"), &config, out));
    tsh_parameters_destroy(list);
}

static void equals_whole(tshi_rank *r, void *arg) {
    const setting *t = arg;
    setup s;
    tsh_data_parallel *slices;
    double wanted[TOKENS * EMBED];
    if (open_setup(r, t, &s)) {
        run_functions(r, &s, t, wanted);
        shard(r, &s, t->level, &slices);
        tsh_mark start = tsh_tape_mark(s.tape);
        tsh_tensor *got = tsh_experts_forward(s.tape, s.layer, s.x);
        if (t->recompute) got = tsh_tape_recompute_since(s.tape, start, got);
        if (tshi_check(r, got, "%s", tsh_tape_message(s.tape))) {
            tshi_test_same(r, "y", got, wanted, 1e-11);
            tshi_check(r, got->layout[0].kind == s.x->layout[0].kind, "y is split over data otherwise than x");
            backward(r, &s, got, s.dy, tsh_experts_loss(s.layer));
            if (!r->failed) compare_gradients(r, &s, t->frozen);
        }
        tsh_data_parallel_destroy(slices);
    }
    close_setup(&s);
}

static void run_setting(int ranks, setting t) {
    const char *words = tshi_test_run(ranks, equals_whole, &t);
    cr_assert_str_empty(words, "%s: %s", t.mesh, words);
}

/* 5 experts over 3 ranks are 2, 2 and 1; 2 over 4 are halves; 7 ranks share 2 experts' features. */
Test(experts, equal_whole_ones_on_any_number_of_ranks) {
    for (int ranks = 1; ranks <= 7; ranks += ranks == 5 ? 2 : 1) {
        char mesh[64];
        snprintf(mesh, sizeof mesh, "data=1,experts=%d,model=1", ranks);
        run_setting(ranks, (setting){.mesh = mesh, .experts = 5, .tokens = TOKENS});
        run_setting(ranks, (setting){.mesh = mesh, .experts = 2, .tokens = TOKENS});
        snprintf(mesh, sizeof mesh, "data=1,experts=1,model=%d", ranks);
        run_setting(ranks, (setting){.mesh = mesh, .experts = 3, .tokens = TOKENS, .by_model_only = true});
    }
}

Test(experts, are_split_by_the_weights_of_ranks_some_of_which_hold_none) {
    run_setting(3, (setting){.mesh = "data=1,experts=3:1:0,model=1", .experts = 5, .tokens = TOKENS});
    run_setting(4, (setting){.mesh = "data=1,experts=3:1,model=1:2", .experts = 5, .tokens = TOKENS});
}

/* --- hidden features split along a second axis -------------------------------------------------------------------- */

/* 5 and 1 features over 1 to 3 ranks, so that some hold none; tokens are REPLICATED, or go to their experts. */
Test(experts, have_features_along_an_axis_and_go_along_another) {
    static const int sizes[][2] = {{1, 1}, {2, 2}, {2, 3}, {3, 2}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int64_t hidden = 1; hidden <= WIDEST; hidden += 4) {
            char mesh[64];
            snprintf(mesh, sizeof mesh, "data=1,experts=%d,model=%d", sizes[i][0], sizes[i][1]);
            setting t = {.mesh = mesh, .experts = 3, .tokens = TOKENS, .hidden = hidden};
            run_setting(sizes[i][0] * sizes[i][1], t);
            t.by_experts = true;
            run_setting(sizes[i][0] * sizes[i][1], t);
        }
}

/* Weights, ranks that share an expert or hold none, tokens that all choose one expert, capacity, recomputation. */
Test(experts, have_uneven_features_along_an_axis) {
    setting t = {.mesh = "data=1,experts=2:1,model=2:1", .experts = 3, .tokens = TOKENS, .hidden = 5};
    run_setting(4, t);
    t.by_experts = t.by_model = true;
    run_setting(4, t);
    t.capacity = 0.5;
    run_setting(4, t);
    t.recompute = true;
    t.one = 3;
    run_setting(4, t);
    t = (setting){.mesh = "data=1,experts=3,model=2", .experts = 2, .tokens = TOKENS, .hidden = 5, .by_experts = true};
    run_setting(6, t);
    t.mesh = "data=1,experts=1:0:1,model=0:1";
    run_setting(6, t);
}

Test(experts, have_features_along_an_axis_beside_ranks_that_shard_parameters) {
    setting t = {.mesh = "data=2,experts=1,model=2", .experts = 1, .tokens = 7, .hidden = 5, .by_data = true, .one = 1};
    for (t.level = TSH_ZERO_OPTIMIZER; t.level <= TSH_ZERO_PARAMETERS; t.level++) run_setting(4, t);
    t.mesh = "data=2,experts=3,model=1";
    t.experts = 2;
    t.one = 0;
    t.by_experts = true;
    for (t.level = TSH_ZERO_OPTIMIZER; t.level <= TSH_ZERO_PARAMETERS; t.level++) run_setting(6, t);
    t.level = TSH_ZERO_PARAMETERS;
    t.mesh = "data=3:1,experts=2,model=2";
    t.experts = 3;
    run_setting(8, t);
}

/* Along the second axis, as for an MLP: one all-reduce forward, two backward (dx and the routing weights'); no token
 * moves. */
static void reduces_once(tshi_rank *r, void *arg) {
    setting t = {.mesh = "data=1,experts=2,model=2", .experts = 4, .tokens = TOKENS, .hidden = 5, .by_experts = true};
    setup s;
    (void)arg;
    if (open_setup(r, &t, &s)) {
        tsh_group *group = tsh_mesh_group(s.mesh, "model");
        tsh_group_reset_stats(group);
        tsh_tensor *y = tsh_experts_forward(s.tape, s.layer, s.x);
        tsh_communication_stats stats = tsh_group_stats(group);
        tshi_check(r, stats.calls[TSH_COLLECTIVE_ALL_REDUCE] == 1, "%d all-reduces forward",
                   (int)stats.calls[TSH_COLLECTIVE_ALL_REDUCE]);
        tsh_tensor *loss = tsh_sum(s.tape, tsh_mul(s.tape, y, s.dy), TSH_ALL_DIMS);
        tsh_group_reset_stats(group);
        tshi_check_ok(r, tsh_backward(s.tape, loss));
        stats = tsh_group_stats(group);
        tshi_check(r, stats.calls[TSH_COLLECTIVE_ALL_REDUCE] == 2, "%d all-reduces backward",
                   (int)stats.calls[TSH_COLLECTIVE_ALL_REDUCE]);
        tshi_check(r, stats.calls[TSH_COLLECTIVE_ALL_TO_ALL] == 0 && stats.calls[TSH_COLLECTIVE_ALL_GATHER] == 0,
                   "tokens move along the axis of the features");
    }
    close_setup(&s);
}

Test(experts, sum_once_along_the_axis_of_their_features) {
    cr_assert_str_empty(tshi_test_run(4, reduces_once, NULL));
}

/* Two groups of ranks that each hold all experts: gradients of experts are sums over tokens, not twice as large. */
Test(experts, gradients_do_not_grow_with_the_number_of_expert_groups) {
    run_setting(2, (setting){.mesh = "data=2,experts=1,model=1", .experts = 4, .tokens = TOKENS, .by_data = true});
    run_setting(4, (setting){.mesh = "data=2,experts=2,model=1", .experts = 4, .tokens = TOKENS, .by_data = true});
    run_setting(4, (setting){.mesh = "data=2,experts=2,model=1", .experts = 4, .tokens = TOKENS});
}

/* The experts' second axis is not the one along which other layers are split. */
Test(experts, gradients_are_not_mixed_where_two_axes_split_the_experts) {
    run_setting(4, (setting){.mesh = "data=1,experts=2,model=2", .experts = 4, .tokens = TOKENS});
    run_setting(6, (setting){.mesh = "data=1,experts=2,model=3", .experts = 2, .tokens = TOKENS});
    run_setting(6, (setting){.mesh = "data=1,experts=3,model=2", .experts = 2, .tokens = TOKENS});
    run_setting(8, (setting){.mesh = "data=2,experts=2,model=2", .experts = 3, .tokens = TOKENS, .by_data = true});
}

/* All tokens choose one expert; or there are fewer tokens than ranks. */
Test(experts, a_rank_without_tokens_takes_part) {
    run_setting(3, (setting){.mesh = "data=1,experts=3,model=1", .experts = 5, .tokens = TOKENS, .one = 5});
    run_setting(3, (setting){.mesh = "data=3,experts=1,model=1", .experts = 5, .tokens = 2, .by_data = true});
    run_setting(4,
                (setting){.mesh = "data=1,experts=4,model=1", .experts = 5, .tokens = 1, .by_experts = true, .one = 1});
}

/* The balance loss is a mean over all tokens, of which ranks hold different numbers. */
Test(experts, tokens_may_be_split_unevenly) {
    run_setting(3, (setting){.mesh = "data=3,experts=1,model=1", .experts = 4, .tokens = TOKENS, .by_data = true});
    run_setting(2, (setting){.mesh = "data=5:1,experts=1,model=1", .experts = 4, .tokens = TOKENS, .by_data = true});
    run_setting(3, (setting){.mesh = "data=1,experts=3,model=1", .experts = 4, .tokens = TOKENS, .by_experts = true});
    run_setting(
        6,
        (setting){
            .mesh = "data=2,experts=3,model=1", .experts = 4, .tokens = TOKENS, .by_data = true, .by_experts = true});
}

Test(experts, have_the_same_gradients_and_losses_when_recomputed) {
    run_setting(3, (setting){.mesh = "data=1,experts=3,model=1", .experts = 4, .tokens = TOKENS, .recompute = true});
    run_setting(
        2, (setting){
               .mesh = "data=2,experts=1,model=1", .experts = 4, .tokens = TOKENS, .by_data = true, .recompute = true});
}

/* --- tokens that go to their experts ------------------------------------------------------------------------------ */

/* 7 tokens over more, as many and fewer ranks than experts; ranks without experts, tokens, or both. */
Test(experts, get_tokens_that_are_split_over_their_ranks) {
    for (int ranks = 2; ranks <= 5; ranks++) {
        char mesh[64];
        snprintf(mesh, sizeof mesh, "data=1,experts=%d,model=1", ranks);
        for (int64_t experts = 2; experts <= 5; experts += 3)
            run_setting(ranks, (setting){.mesh = mesh, .experts = experts, .tokens = TOKENS, .by_experts = true});
        run_setting(ranks, (setting){.mesh = mesh, .experts = 5, .tokens = TOKENS, .by_experts = true, .one = 4});
        run_setting(ranks, (setting){.mesh = mesh, .experts = 2, .tokens = 1, .by_experts = true});
    }
    run_setting(3, (setting){.mesh = "data=1,experts=3:1:0,model=1", .experts = 5, .tokens = 7, .by_experts = true});
    run_setting(3, (setting){.mesh = "data=1,experts=0:2:1,model=1", .experts = 2, .tokens = 2, .by_experts = true});
}

/* Beside axes that split the tokens further, or the rows of each rank's experts. */
Test(experts, get_tokens_beside_other_axes) {
    setting t = {.mesh = "data=1,experts=2,model=2", .experts = 5, .tokens = TOKENS, .by_experts = true};
    run_setting(4, t);
    t.by_model = true;
    run_setting(4, t);
    t.by_experts = false;
    run_setting(4, t);
    t = (setting){.mesh = "data=1,experts=1,model=3", .experts = 4, .tokens = 7, .by_model = true};
    run_setting(3, t);
    t.by_model_only = true;
    run_setting(3, t);
    t = (setting){.mesh = "data=2,experts=2:1,model=2", .experts = 3, .tokens = 7, .by_data = true, .by_experts = true};
    run_setting(8, t);
}

/* A slice of a parameter is no split of its experts. */
Test(experts, get_tokens_beside_ranks_that_shard_parameters) {
    setting t = {.mesh = "data=2,experts=2,model=1", .experts = 5, .tokens = 7, .by_data = true, .by_experts = true};
    for (t.level = TSH_ZERO_OPTIMIZER; t.level <= TSH_ZERO_PARAMETERS; t.level++) run_setting(4, t);
}

/* Weights in other splits than gate's are brought to it. */
static void splits_differ(tshi_rank *r, void *arg) {
    enum { EXPERTS = 5 };
    setting t = {.mesh = "data=1,experts=2,model=1", .experts = EXPERTS, .tokens = TOKENS, .by_experts = true};
    setup s;
    (void)arg;
    if (open_setup(r, &t, &s)) {
        double wanted[TOKENS * EMBED];
        tsh_tensor *weight[STACKS], *experts, *y = NULL;
        run_functions(r, &s, &t, wanted);
        for (int i = 0; i < STACKS; i++) {
            tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {EXPERTS * HIDDEN, EMBED}};
            config.layout[1] = i == 0 ? TSH_SHARD_UNITS(0, EXPERTS, 0) : TSH_SHARD(0);
            weight[i] = tshi_test_leaf(r, s.mesh, &config, tsh_tensor_data(s.stack[i]));
        }
        tsh_tensor *logits = tsh_affine(s.tape, s.x, s.router, NULL);
        tsh_tensor *chosen = tsh_route(s.tape, logits, &s.config, &experts);
        if (!r->failed) y = tsh_expert_mlp(s.tape, s.x, chosen, experts, weight[0], weight[1], weight[2], EXPERTS);
        if (tshi_check(r, y, "%s", tsh_tape_message(s.tape))) {
            tshi_test_same(r, "y", y, wanted, 1e-11);
            backward(r, &s, y, s.dy, tsh_route_loss(s.tape, logits, &s.config, experts));
            for (int i = 0; i < STACKS && !r->failed; i++)
                tshi_test_same_grad(r, "dweight", weight[i], tsh_tensor_data(tsh_tensor_grad(s.stack[i])), 1e-11);
        }
        tshi_check_ok(r, tsh_tape_reset(s.tape));
        for (int i = 0; i < STACKS; i++) tsh_tensor_release(weight[i]);
    }
    close_setup(&s);
}

Test(experts, get_tokens_where_their_weights_are_split_differently) {
    cr_assert_str_empty(tshi_test_run(2, splits_differ, NULL));
}

Test(experts, get_tokens_again_when_recomputed_beside_a_frozen_router) {
    setting t = {.mesh = "data=1,experts=3,model=1", .experts = 4, .tokens = 7, .by_experts = true, .recompute = true};
    run_setting(3, t);
    t.frozen = true;
    run_setting(3, t);
    t.recompute = false;
    run_setting(3, t);
}

/* How many of this rank's tokens go to other ranks: each once to a rank with rows of its experts. */
static int64_t tokens_to_others(tshi_rank *r, const setup *s) {
    int64_t ids[TOKENS * 2], tokens = s->x->shape.local[0], count = 0;
    int64_t start = tsh_tensor_box(s->x).start[0];
    tshi_check_ok(r, tsh_tensor_read_whole(tsh_experts_chosen(s->layer), ids));
    for (int64_t t = start; t < start + tokens; t++)
        for (int rank = 0; rank < r->size; rank++) {
            int64_t first, length;
            tsh_split(5, r->size, rank, &first, &length);
            bool wanted = false;
            for (int k = 0; k < 2; k++) wanted |= ids[2 * t + k] >= first && ids[2 * t + k] < first + length;
            count += wanted && rank != r->rank;
        }
    return count;
}

/* Bytes and calls of all-to-alls; other collectives move none. */
static int64_t bytes_sent(tshi_rank *r, const setup *s, uint64_t calls) {
    tsh_communication_stats stats = tsh_group_stats(tsh_mesh_group(s->mesh, "experts"));
    tshi_check(r, stats.calls[TSH_COLLECTIVE_ALL_TO_ALL] == calls, "%d all-to-alls, not %d",
               (int)stats.calls[TSH_COLLECTIVE_ALL_TO_ALL], (int)calls);
    tshi_check(r, stats.bytes[TSH_COLLECTIVE_ALL_GATHER] == 0 && stats.bytes[TSH_COLLECTIVE_REDUCE_SCATTER] == 0,
               "tokens are gathered");
    tsh_group_reset_stats(tsh_mesh_group(s->mesh, "experts"));
    return (int64_t)stats.bytes[TSH_COLLECTIVE_ALL_TO_ALL];
}

/* Forward sends each token's row with its two experts and their weights, and backward the gradient of its output; what
 * comes back is counted by the peers, so the ranks' sums are compared. */
static void moves_only_rows(tshi_rank *r, void *arg) {
    setting t = {.mesh = arg, .experts = 5, .tokens = TOKENS, .by_experts = true};
    setup s;
    if (open_setup(r, &t, &s)) {
        tsh_group *group = tsh_mesh_group(s.mesh, "experts");
        tsh_group_reset_stats(group);
        tsh_tensor *y = tsh_experts_forward(s.tape, s.layer, s.x);
        int64_t sums[3] = {bytes_sent(r, &s, 5)};
        sums[2] = y ? tokens_to_others(r, &s) : 0;
        tsh_tensor *loss = tsh_sum(s.tape, tsh_mul(s.tape, y, s.dy), TSH_ALL_DIMS);
        tsh_group_reset_stats(group);
        tshi_check_ok(r, tsh_backward(s.tape, loss));
        sums[1] = bytes_sent(r, &s, 3);
        tsh_tensor_config config = {TSH_INT64, 1, {3}, {TSH_LOCAL, TSH_LOCAL, TSH_LOCAL}};
        tsh_tensor *all = NULL;
        tshi_check_ok(r, tsh_tensor_create(s.mesh, &config, &all));
        memcpy(tsh_tensor_data(all), sums, sizeof sums);
        tshi_check_ok(r, tsh_all_reduce(group, all, TSH_REDUCE_SUM));
        memcpy(sums, tsh_tensor_data(all), sizeof sums);
        int64_t counts = 8 * r->size * (r->size - 1), forward = 8 * (2 * EMBED + 2 * 2), backward = 8 * (2 * EMBED + 2);
        tshi_check(r, sums[0] == counts + forward * sums[2] && sums[1] == backward * sums[2],
                   "%d bytes forward and %d backward for %d tokens", (int)sums[0], (int)sums[1], (int)sums[2]);
        tsh_tensor_release(all);
    }
    close_setup(&s);
}

Test(experts, get_each_token_once) {
    cr_assert_str_empty(tshi_test_run(2, moves_only_rows, "data=1,experts=2,model=1"));
    cr_assert_str_empty(tshi_test_run(4, moves_only_rows, "data=1,experts=4,model=1"));
}

/* --- capacity ----------------------------------------------------------------------------------------------------- */

/* Of 7 tokens with two choices among 4 experts, an expert takes 1, 2 or 4; where all choose one first, it takes 2 of 7.
 * The dropped choices are those that have no room before the tokens are split. */
Test(experts, drop_the_same_tokens_on_any_number_of_ranks) {
    for (int ranks = 1; ranks <= 3; ranks++) {
        char mesh[64];
        snprintf(mesh, sizeof mesh, "data=1,experts=%d,model=1", ranks);
        setting t = {.mesh = mesh, .experts = 4, .tokens = TOKENS, .by_experts = true};
        for (t.capacity = 0.25; t.capacity <= 1; t.capacity *= 2) run_setting(ranks, t);
        t.by_experts = false;
        t.one = 3;
        run_setting(ranks, t);
    }
    setting t = {.mesh = "data=2,experts=2,model=1", .experts = 4, .tokens = 7, .by_data = true, .capacity = 0.5};
    run_setting(4, t);
    t.by_experts = t.recompute = true;
    run_setting(4, t);
}

/* --- the gradient's norm ------------------------------------------------------------------------------------------ */

/* Squared norms of 20 and 100, whatever ranks hold the two experts. */
static void norm_of_two(tshi_rank *r, void *arg) {
    setting t = {.mesh = arg, .experts = 2, .tokens = TOKENS};
    setup s;
    tsh_parameters *list = NULL;
    double norm = 0, gradient[2 * HIDDEN * EMBED];
    for (int i = 0; i < 2 * HIDDEN * EMBED; i++)
        gradient[i] = sqrt((i < HIDDEN * EMBED ? 20.0 : 100.0) / (HIDDEN * EMBED));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    if (open_setup(r, &t, &s)) {
        tsh_tensor *gate = tsh_experts_weight(s.layer, TSH_EXPERTS_GATE);
        tshi_test_set_grad(r, s.tape, gate, gradient);
        tshi_check_ok(r, tsh_parameters_add(list, "gate", gate));
        tshi_check_ok(r, tsh_clip_grad_norm(list, 1, &norm));
        tshi_check(r, fabs(norm - 10.954452) < 1e-6, "the norm is %.9g", norm);
    }
    tsh_parameters_destroy(list);
    close_setup(&s);
}

Test(experts, count_each_element_once_in_a_norm) {
    static const struct {
        int ranks;
        char *mesh;
    } meshes[] = {{1, "data=1,experts=1,model=1"}, {2, "data=1,experts=2,model=1"}, {3, "data=1,experts=3,model=1"},
                  {4, "data=1,experts=2,model=2"}, {4, "data=2,experts=2,model=1"}, {4, "data=2,experts=1,model=2"},
                  {6, "data=1,experts=3,model=2"}};
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++)
        cr_assert_str_empty(tshi_test_run(meshes[i].ranks, norm_of_two, meshes[i].mesh), "%s", meshes[i].mesh);
}

/* --- balance without a loss --------------------------------------------------------------------------------------- */

/* All 7 tokens, split over ranks, choose expert 2 of 3: its bias falls, and the others rise. */
static void moves_bias(tshi_rank *r, void *arg) {
    setting t = {.mesh = arg, .experts = 3, .tokens = TOKENS, .by_data = true, .one = 2};
    setup s;
    if (open_setup(r, &t, &s)) {
        double bias[3] = {0};
        tshi_check_status(r, tsh_experts_update_bias(s.tape, s.layer, 0.5), TSH_ERR_STATE, "no forward");
        tsh_experts_forward(s.tape, s.layer, s.x);
        tshi_check_ok(r, tsh_experts_update_bias(s.tape, s.layer, 0.5));
        tshi_check_ok(r, tsh_tensor_read_whole(tsh_experts_weight(s.layer, TSH_EXPERTS_BIAS), bias));
        tshi_check(r, bias[0] == 0.5 && bias[1] == 99.5 && bias[2] == 0.5, "%g %g %g", bias[0], bias[1], bias[2]);
    }
    close_setup(&s);
}

Test(experts, bias_moves_by_the_tokens_of_all_ranks) {
    cr_assert_str_empty(tshi_test_run(1, moves_bias, "data=1,experts=1,model=1"));
    cr_assert_str_empty(tshi_test_run(3, moves_bias, "data=3,experts=1,model=1"));
    cr_assert_str_empty(tshi_test_run(4, moves_bias, "data=2,experts=2,model=1"));
}

/* --- gradient check ----------------------------------------------------------------------------------------------- */

static tsh_tensor *objective(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    tsh_tensor *y = tsh_experts_forward(tape, user, inputs[0]);
    return tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS);
}

static void check_gradients(tshi_rank *r, void *arg) {
    char mesh[64];
    setting t = {.mesh = mesh, .experts = 3, .tokens = 4, .by_experts = arg != NULL};
    setup s;
    double worst = 1;
    snprintf(mesh, sizeof mesh, "data=1,experts=%d,model=1", r->size);
    if (open_setup(r, &t, &s)) {
        tsh_tensor *inputs[] = {
            s.x, tsh_experts_weight(s.layer, TSH_EXPERTS_ROUTER), tsh_experts_weight(s.layer, TSH_EXPERTS_GATE),
            tsh_experts_weight(s.layer, TSH_EXPERTS_UP), tsh_experts_weight(s.layer, TSH_EXPERTS_DOWN)};
        tshi_check_ok(r, tsh_gradient_check(s.tape, objective, inputs, 5, 0, s.layer, &worst));
        tshi_check(r, worst < 1e-6, "worst %g", worst);
    }
    close_setup(&s);
}

Test(experts, passes_the_gradient_check) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, check_gradients, NULL));
    cr_assert_str_empty(tshi_test_run(3, check_gradients, "tokens are split"));
}
