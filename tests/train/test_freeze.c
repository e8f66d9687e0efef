/* Frozen parameters and detached tensors: no gradient, no bucket, no optimizer state and no collective; groups of
 * parameters in one optimizer; learning rates as functions of the step; checkpoints of other sets of parameters. */
#include "support/files.h"
#include "support/language.h"
#include "support/lines.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

TestSuite(freeze, .timeout = 300);

enum { BLOCKS = 7, WEIGHTS = 3, FEATURES = 6, HIDDEN = 5, ROWS = 4 };

/* A chain of gated MLPs of three weights each. */
typedef struct chain {
    tsh_mesh *mesh;
    tsh_tape *tape;
    tsh_mlp *mlp[BLOCKS];
    tsh_parameters *list;
    tsh_tensor *x;
    tsh_data_parallel *dp;
    tsh_optimizer *optimizer;
} chain;

/* Registers the MLPs from `first` on. */
static bool make_chain(tshi_rank *r, const char *axes, int first, chain *c) {
    double x[ROWS * FEATURES];
    char name[32];
    const tsh_mlp_config config = {
        .embed = FEATURES, .hidden = HIDDEN, .gated = true, .activation = TSH_ACTIVATION_SILU, .dtype = TSH_FLOAT64};
    tsh_tensor_config rows = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {ROWS, FEATURES}, .layout = {TSH_SHARD(0)}};
    *c = (chain){0};
    tsh_world_seed(r->world, 11);
    for (int i = 0; i < ROWS * FEATURES; i++) x[i] = tshi_test_integer(3, i) / 4;
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, axes, &c->mesh))) return false;
    tshi_check_ok(r, tsh_tape_create(r->world, &c->tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &c->list));
    for (int i = 0; i < BLOCKS; i++) {
        tshi_check_ok(r, tsh_mlp_create(tsh_mesh_group(c->mesh, "model"), &config, &c->mlp[i]));
        snprintf(name, sizeof name, "mlp.%d", i);
        if (i >= first) tshi_check_ok(r, tsh_mlp_register(c->mlp[i], c->list, name));
    }
    c->x = tshi_test_tensor(r, c->mesh, &rows, x);
    return !r->failed;
}

static void destroy_chain(chain *c) {
    tsh_optimizer_destroy(c->optimizer);
    tsh_data_parallel_destroy(c->dp);
    tsh_tensor_release(c->x);
    tsh_parameters_destroy(c->list);
    for (int i = 0; i < BLOCKS; i++) tsh_mlp_destroy(c->mlp[i]);
    tsh_tape_destroy(c->tape);
    tsh_mesh_destroy(c->mesh);
}

static void chain_backward(tshi_rank *r, chain *c) {
    tsh_tensor *x = c->x;
    for (int i = 0; i < BLOCKS; i++) x = tsh_mlp_forward(c->tape, c->mlp[i], x);
    tsh_tensor *loss = tsh_sum(c->tape, tsh_mul(c->tape, x, x), TSH_ALL_DIMS);
    loss = tsh_reduce(c->tape, loss, tsh_mesh_group(c->mesh, "data"));
    tshi_check(r, tsh_backward(c->tape, loss) == TSH_OK, "%s", tsh_tape_message(c->tape));
    tshi_check_ok(r, tsh_tape_reset(c->tape));
}

static void freeze_all_but_the_last(tshi_rank *r, chain *c) {
    tshi_check_ok(r, tsh_parameters_freeze(c->list, "*"));
    tshi_check_ok(r, tsh_parameters_unfreeze(c->list, "mlp.6"));
}

static unsigned long long sums_on(const tsh_group *group) {
    return tsh_group_stats(group).calls[TSH_COLLECTIVE_ALL_REDUCE];
}

/* --- counting ----------------------------------------------------------------------------------------------------- */

static void count_without_schedule(tshi_rank *r, void *arg) {
    for (int frozen = 0; frozen < 2 && !r->failed; frozen++) {
        chain c;
        if (!make_chain(r, arg, 0, &c)) return;
        tsh_group *data = tsh_mesh_group(c.mesh, "data"), *model = tsh_mesh_group(c.mesh, "model");
        if (frozen) freeze_all_but_the_last(r, &c);
        tsh_group_reset_stats(data);
        tsh_group_reset_stats(model);
        chain_backward(r, &c);
        /* forward sums the loss over `data`, and the output of each MLP over `model` */
        unsigned long long wanted = 1 + (frozen ? WEIGHTS : BLOCKS * WEIGHTS), along = frozen ? 0 : BLOCKS - 1;
        tshi_check(r, sums_on(data) == (tsh_group_size(data) > 1 ? wanted : 0), "frozen %d: %llu sums on data", frozen,
                   sums_on(data));
        tshi_check(r, sums_on(model) == (tsh_group_size(model) > 1 ? BLOCKS + along : 0), "frozen %d: %llu on model",
                   frozen, sums_on(model));
        destroy_chain(&c);
    }
}

/* As many all-reduces on `data` as the last block's parameters need: 3, not 21. */
Test(freeze, fine_tuning_the_last_block_sums_three_gradients_not_twenty_one) {
    static const char *const axes[] = {"data=2,model=1", "data=2,model=2", "data=1,model=2", "data=3,model=1"};
    static const int ranks[] = {2, 4, 2, 3};
    for (int i = 0; i < 4; i++)
        cr_assert_str_empty(tshi_test_run(ranks[i], count_without_schedule, (void *)(uintptr_t)axes[i]), "%s", axes[i]);
}

typedef struct measured {
    unsigned long long sums, bytes;
    size_t gradients, states;
    int buckets;
} measured;

/* A step with a schedule, buckets of one parameter each, at this level. */
static measured measure_step(tshi_rank *r, chain *c, tsh_zero_level level) {
    const tsh_data_parallel_config config = {.bucket_bytes = 1, .first_bucket_bytes = 1, .level = level};
    const tsh_device *device = tsh_world_device(r->world);
    tsh_group *data = tsh_mesh_group(c->mesh, "data");
    tshi_check_ok(r, tsh_data_parallel_create(c->tape, c->list, data, &config, &c->dp));
    tshi_check_ok(r, tsh_adamw_create(c->list, &(tsh_adamw_config){.lr = 0.01}, &c->optimizer));
    chain_backward(r, c);
    tsh_group *sums = tsh_data_parallel_group(c->dp);
    tsh_group_reset_stats(sums);
    tsh_group_reset_stats(data);
    chain_backward(r, c);
    tshi_check_ok(r, tsh_optimizer_step(c->optimizer));
    const tsh_communication_stats s = tsh_group_stats(sums);
    tsh_memory_use use = tsh_device_memory(device);
    tshi_check(r, sums_on(data) == (tsh_group_size(data) > 1), "%llu sums beside the buckets", sums_on(data));
    return (measured){s.calls[TSH_COLLECTIVE_ALL_REDUCE] + s.calls[TSH_COLLECTIVE_REDUCE_SCATTER], 0,
                      use.live[TSH_MEMORY_GRADIENTS], use.live[TSH_MEMORY_OPTIMIZER], tsh_data_parallel_buckets(c->dp)};
}

static void count_with_schedule(tshi_rank *r, void *arg) {
    const tsh_zero_level level = *(const tsh_zero_level *)arg;
    measured m[3];
    for (int way = 0; way < 3 && !r->failed; way++) { /* all; the last one's list alone; the others frozen */
        chain c;
        if (!make_chain(r, "data=2,model=1", way == 1 ? BLOCKS - 1 : 0, &c)) return;
        if (way == 2) freeze_all_but_the_last(r, &c);
        m[way] = measure_step(r, &c, level);
        for (int i = 0; way && i < BLOCKS - 1; i++) {
            const tsh_tensor *w = tsh_linear_weight(tsh_mlp_linear(c.mlp[i], TSH_MLP_UP));
            tshi_check(r, !tsh_tensor_grad(w), "way %d: MLP %d has a gradient", way, i);
        }
        destroy_chain(&c);
    }
    for (int way = 1; way < 3 && !r->failed; way++) {
        tshi_check(r, m[way].buckets <= WEIGHTS && m[0].buckets > m[way].buckets, "way %d: %d buckets of %d", way,
                   m[way].buckets, m[0].buckets);
        tshi_check(r, m[way].sums == (unsigned)m[way].buckets, "way %d: %llu sums", way, m[way].sums);
        tshi_check(r, m[way].states * BLOCKS <= m[0].states + 4096, "way %d: %zu bytes of states of %zu", way,
                   m[way].states, m[0].states);
        tshi_check(r, m[way].gradients * BLOCKS <= m[0].gradients + 8192, "way %d: %zu bytes of gradients of %zu", way,
                   m[way].gradients, m[0].gradients);
    }
}

Test(freeze, frozen_and_unlisted_parameters_have_no_bucket_state_gradient_or_sum) {
    for (tsh_zero_level level = TSH_ZERO_NOTHING; level <= TSH_ZERO_PARAMETERS; level++)
        cr_assert_str_empty(tshi_test_run(2, count_with_schedule, &level), "level %d", (int)level);
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static void same_gradients(tshi_rank *r, void *arg) {
    chain all, last;
    if (!make_chain(r, arg, 0, &all) || !make_chain(r, arg, 0, &last)) return;
    freeze_all_but_the_last(r, &last);
    chain_backward(r, &all);
    chain_backward(r, &last);
    for (int i = 0; i < BLOCKS * WEIGHTS && !r->failed; i++) {
        const tsh_tensor *a = tsh_tensor_grad(tsh_parameters_tensor(all.list, i));
        const tsh_tensor *b = tsh_tensor_grad(tsh_parameters_tensor(last.list, i));
        bool trained = i >= (BLOCKS - 1) * WEIGHTS;
        if (!tshi_check(r, (b != NULL) == trained, "%s", tsh_parameters_name(last.list, i)) || !trained) continue;
        tshi_check(r, !memcmp(tsh_tensor_data(a), tsh_tensor_data(b), tsh_tensor_local_nbytes(a)), "%s differs",
                   tsh_parameters_name(all.list, i));
    }
    destroy_chain(&all);
    destroy_chain(&last);
}

Test(freeze, what_is_trained_gets_the_same_bits_as_without_freezing) {
    cr_assert_str_empty(tshi_test_run_meshes(same_gradients));
}

/* d/dx of x detach(x) is x, of x x it is 2 x: in every layout, and inside a segment that runs again. */
static void detached(tshi_rank *r, void *arg) {
    static const tsh_layout layouts[] = {TSH_REPLICATED, TSH_SHARD(0), TSH_SHARD(1)};
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    double whole[ROWS * FEATURES];
    (void)arg;
    tshi_test_integers(5, ROWS * FEATURES, whole);
    tshi_check_ok(r, tsh_mesh_create(r->world, "model=-1", &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_group *model = tsh_mesh_group(mesh, "model");
    for (int i = 0; i < 6 && !r->failed; i++) {
        const tsh_tensor_config config = {
            .dtype = TSH_FLOAT64, .ndim = 2, .shape = {ROWS, FEATURES}, .layout = {layouts[i / 2]}};
        tsh_tensor *x = tshi_test_leaf(r, mesh, &config, whole);
        tsh_mark start = tsh_tape_mark(tape);
        tsh_tensor *z = tsh_scale(tape, x, 1);
        tsh_group_reset_stats(model);
        tsh_tensor *d = tsh_detach(tape, z);
        if (!tshi_check(r, d && tsh_tensor_data(d) == tsh_tensor_data(z), "it is not x's memory")) return;
        tshi_check(r, tshi_layouts_equal(1, d->layout, z->layout), "other layouts");
        tshi_check(r, sums_on(model) == 0, "it has communicated");
        tsh_tensor *y = tsh_mul(tape, z, d);
        if (i % 2) y = tsh_tape_recompute_since(tape, start, y);
        tsh_tensor *loss = tsh_redistribute(tape, tsh_sum(tape, y, TSH_ALL_DIMS), NULL, NULL);
        tshi_check(r, tsh_backward(tape, loss) == TSH_OK, "%s", tsh_tape_message(tape));
        tshi_test_same_grad(r, "x detach(x)", x, whole, 0);
        tshi_check_ok(r, tsh_tape_reset(tape));
        tsh_tensor_release(x);
    }
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(freeze, a_detached_tensor_is_a_constant) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, detached, NULL));
}

/* --- groups ------------------------------------------------------------------------------------------------------- */

/* One optimizer with groups steps as one optimizer a group. */
static void compare_groups(tshi_rank *r, void *arg) {
    static const tsh_parameter_group groups[] = {{"embedding", 0.25, 0.5}, {"*.bias", 0, 0}, {NULL, 0, 0}};
    static const double lr[] = {0.25 * 0.01, 0.01, 0.01}, decay[] = {0.5, 0, 0.1};
    tshi_language one, several;
    tsh_parameters *lists[3];
    tsh_optimizer *optimizer = NULL, *separate[3];
    tsh_adamw_config config = {.lr = 0.01, .weight_decay = 0.1, .groups = groups};
    if (!tshi_check_ok(r, tshi_language_create_bare(r->world, arg, TSH_ZERO_NOTHING, &one))) return;
    if (!tshi_check_ok(r, tshi_language_create_bare(r->world, arg, TSH_ZERO_NOTHING, &several))) return;
    tshi_check_ok(r, tsh_adamw_create(one.parameters, &config, &optimizer));
    for (int k = 0; k < 3; k++) {
        tshi_check_ok(r, tsh_parameters_create(r->world, &lists[k]));
        for (int i = 0; i < tsh_parameters_count(several.parameters); i++) {
            const char *name = tsh_parameters_name(several.parameters, i);
            int group = strncmp(name, "embedding", 9) == 0 ? 0 : strstr(name, ".bias") ? 1 : 2;
            if (group == k)
                tshi_check_ok(r, tsh_parameters_add(lists[k], name, tsh_parameters_tensor(several.parameters, i)));
        }
        config = (tsh_adamw_config){.lr = lr[k], .weight_decay = decay[k]};
        tshi_check_ok(r, tsh_adamw_create(lists[k], &config, &separate[k]));
    }
    for (int step = 0; step < 3 && !r->failed; step++) {
        tshi_check_ok(r, tsh_backward(one.tape, tshi_language_loss(&one)));
        tshi_check_ok(r, tsh_backward(several.tape, tshi_language_loss(&several)));
        tshi_check_ok(r, tsh_optimizer_step(optimizer));
        for (int k = 0; k < 3; k++) tshi_check_ok(r, tsh_optimizer_step(separate[k]));
        tsh_parameters_zero_grad(one.parameters);
        tsh_parameters_zero_grad(several.parameters);
        tshi_check_ok(r, tsh_tape_reset(one.tape));
        tshi_check_ok(r, tsh_tape_reset(several.tape));
    }
    for (int i = 0; i < tsh_parameters_count(one.parameters) && !r->failed; i++) {
        const tsh_tensor *a = tsh_parameters_tensor(one.parameters, i),
                         *b = tsh_parameters_tensor(several.parameters, i);
        tshi_check(r, !memcmp(tsh_tensor_data(a), tsh_tensor_data(b), tsh_tensor_local_nbytes(a)), "%s differs",
                   tsh_parameters_name(one.parameters, i));
    }
    tsh_optimizer_destroy(optimizer);
    for (int k = 0; k < 3; k++) {
        tsh_optimizer_destroy(separate[k]);
        tsh_parameters_destroy(lists[k]);
    }
    tshi_language_destroy(&one);
    tshi_language_destroy(&several);
}

Test(freeze, groups_of_one_optimizer_step_as_optimizers_of_their_own) {
    cr_assert_str_empty(tshi_test_run_meshes(compare_groups));
}

/* --- learning rates ----------------------------------------------------------------------------------------------- */

Test(freeze, learning_rates_are_functions_of_the_step) {
    const tsh_lr_schedule cosine = {.kind = TSH_LR_COSINE, .lr = 1, .min_lr = 0.2, .warmup = 3, .steps = 11};
    const tsh_lr_schedule line = {.kind = TSH_LR_LINEAR, .lr = 1, .min_lr = 0.2, .steps = 8};
    const tsh_lr_schedule flat = {.lr = 0.5, .warmup = 1};
    const tsh_lr_schedule stable = {.kind = TSH_LR_STABLE_DECAY, .lr = 1, .warmup = 2, .steps = 10, .decay = 4};
    const struct {
        const tsh_lr_schedule *schedule;
        int64_t step;
        double rate;
    } cases[] = {{&cosine, 0, 0.25},    {&cosine, 2, 0.75},   {&cosine, 3, 1},  {&cosine, 7, 0.6},
                 {&cosine, 11, 0.2},    {&cosine, 99, 0.2},   {&line, 0, 1},    {&line, 2, 0.8},
                 {&line, 7, 0.3},       {&line, 8, 0.2},      {&flat, 0, 0.25}, {&flat, 1, 0.5},
                 {&flat, 1000000, 0.5}, {&stable, 0, 1. / 3}, {&stable, 2, 1},  {&stable, 6, 1},
                 {&stable, 8, 0.5},     {&stable, 10, 0},     {&stable, 11, 0}, {&flat, -1, 0},
                 {NULL, 3, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double rate = tsh_lr_at(cases[i].schedule, cases[i].step);
        cr_expect(fabs(rate - cases[i].rate) < 1e-15, "case %zu: %.17g, %.17g wanted", i, rate, cases[i].rate);
    }
}

static void read_lr(tshi_rank *r, void *arg) {
    tshi_language l;
    (void)arg;
    if (!tshi_check_ok(r, tshi_language_create(r->world, "data=1,model=1", &l))) return;
    tshi_check(r, fabs(tsh_optimizer_lr(l.optimizer) - 0.01) < 1e-15, "%g", tsh_optimizer_lr(l.optimizer));
    tshi_check_ok(r, tsh_optimizer_set_lr(l.optimizer, 0.5));
    tshi_check(r, fabs(tsh_optimizer_lr(l.optimizer) - 0.5) < 1e-15, "%g", tsh_optimizer_lr(l.optimizer));
    tshi_language_destroy(&l);
}

Test(freeze, an_optimizer_tells_its_learning_rate) {
    cr_assert_str_empty(tshi_test_run(1, read_lr, NULL));
}

/* --- checkpoints -------------------------------------------------------------------------------------------------- */

static bool train_language(tshi_rank *r, tshi_language *l, int steps) {
    double loss, norm;
    char words[TSHI_TEST_WORDS] = "";
    for (int i = 0; i < steps && !r->failed; i++) {
        tshi_check(r, tshi_language_gradients(l, &loss, &norm, words) == TSH_OK, "%s", words);
        tshi_check_ok(r, tshi_language_update(l));
    }
    return !r->failed;
}

static bool make_partly_frozen(tshi_rank *r, const char *axes, const char *frozen, tshi_language *l) {
    if (!tshi_check_ok(r, tshi_language_create_bare(r->world, axes, TSH_ZERO_NOTHING, l))) return false;
    if (frozen) tshi_check_ok(r, tsh_parameters_freeze(l->parameters, frozen));
    tshi_check_ok(r, tshi_language_share(l));
    return tshi_check_ok(r, tshi_language_optimize(l));
}

/* `embedding` is frozen after a checkpoint of everything; a checkpoint without it is gone on with by training all. */
static void resume(tshi_rank *r, void *arg) {
    const char *axes = r->size > 2 ? "data=2,model=2" : r->size > 1 ? "data=2,model=1" : "data=1,model=1", *path = arg;
    tshi_language all, some, back;
    if (!make_partly_frozen(r, axes, NULL, &all) || !train_language(r, &all, 2)) return;
    tsh_checkpoint state = {.parameters = all.parameters, .optimizer = all.optimizer, .step = 2};
    tshi_check_ok(r, tsh_checkpoint_save(path, &state));
    if (!make_partly_frozen(r, axes, "embedding", &some)) return;
    state = (tsh_checkpoint){.parameters = some.parameters, .optimizer = some.optimizer};
    tshi_check_status(r, tsh_checkpoint_load(path, &state), TSH_ERR_IO,
                      "'optimizer.embedding.weight.exp_avg' is unexp");
    state.other_states = true;
    tshi_check_ok(r, tsh_checkpoint_load(path, &state));
    tshi_check(r, state.ignored_states == 1 && state.new_states == 0 && state.step == 2, "%d ignored, %d new",
               state.ignored_states, state.new_states);
    double before[64], after[64];
    tsh_tensor *table = tsh_embedding_weight(some.embedding);
    memcpy(before, tsh_tensor_data(table), tsh_tensor_local_nbytes(table));
    train_language(r, &some, 2);
    memcpy(after, tsh_tensor_data(table), tsh_tensor_local_nbytes(table));
    tshi_check(r, !memcmp(before, after, tsh_tensor_local_nbytes(table)), "a frozen parameter has changed");
    state.step = 4;
    tshi_check_ok(r, tsh_checkpoint_save(path, &state));
    if (!make_partly_frozen(r, axes, NULL, &back)) return;
    state = (tsh_checkpoint){.parameters = back.parameters, .optimizer = back.optimizer};
    tshi_check_status(r, tsh_checkpoint_load(path, &state), TSH_ERR_IO,
                      "'optimizer.embedding.weight.exp_avg' is missing");
    train_language(r, &back, 1); /* states that are not zero */
    state.other_states = true;
    tshi_check_ok(r, tsh_checkpoint_load(path, &state));
    tshi_check(r, state.new_states == 1 && state.ignored_states == 0 && state.step == 4, "%d new, %d ignored",
               state.new_states, state.ignored_states);
    train_language(r, &back, 1);
    tshi_language_destroy(&all);
    tshi_language_destroy(&some);
    tshi_language_destroy(&back);
}

static void keep_line(void *user, tsh_log_level level, const char *message) {
    if (level == TSH_LOG_INFO) tshi_keep_line(user, level, message);
}

Test(freeze, a_checkpoint_is_resumed_partly_frozen_and_says_what_is_new_and_ignored) {
    for (int ranks = 1; ranks <= 4; ranks += ranks) {
        tshi_lines *lines = tshi_test_shared(sizeof *lines);
        const tshi_test_options options = {.ranks = ranks, .log = {keep_line, lines}};
        tshi_test_enter();
        cr_assert_str_empty(tshi_test_run_with(&options, resume, (void *)(uintptr_t)tshi_test_path("run"), NULL, NULL));
        tshi_test_leave();
        cr_expect(strstr(lines->text, "states of 1 parameters are ignored: embedding.weight"), "%s", lines->text);
        cr_expect(strstr(lines->text, "states of 1 parameters start at zero: embedding.weight"), "%s", lines->text);
    }
}

/* --- wrong use ---------------------------------------------------------------------------------------------------- */

static void refuse(tshi_rank *r, void *arg) {
    static const tsh_parameter_group unknown[] = {{"nothing", 1, 0}, {NULL, 0, 0}},
                                     negative[] = {{"up", -1, 0}, {NULL, 0, 0}};
    tshi_language l;
    tsh_optimizer *optimizer = NULL;
    (void)arg;
    if (!tshi_check_ok(r, tshi_language_create(r->world, "data=2,model=1", &l))) return;
    tshi_check_status(r, tsh_parameters_freeze(l.parameters, "layers.*"), TSH_ERR_ARGUMENT,
                      "'layers.*' matches none of");
    tshi_check_status(r, tsh_parameters_freeze(l.parameters, "up"), TSH_ERR_STATE, "'up.weight': freeze it before");
    tshi_check_status(r, tsh_tensor_require_grad(tsh_linear_weight(l.up), false), TSH_ERR_STATE, "freeze it before");
    tsh_adamw_config config = {.lr = 0.1, .groups = unknown};
    tshi_check_status(r, tsh_adamw_create(l.parameters, &config, &optimizer), TSH_ERR_ARGUMENT,
                      "'nothing' matches none");
    config.groups = negative;
    tshi_check_status(r, tsh_adamw_create(l.parameters, &config, &optimizer), TSH_ERR_ARGUMENT, "lr_factor -1");
    tshi_check(r, tshi_requires_grad(tsh_linear_weight(l.up)), "a refused call has changed something");
    tshi_language_destroy(&l);
}

Test(freeze, wrong_use_is_refused_and_changes_nothing) {
    cr_assert_str_empty(tshi_test_run(2, refuse, NULL));
}
