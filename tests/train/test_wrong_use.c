/* Wrong use of the tape, in a model that trains: the message says what is wrong, the peer gets it too, and after
 * tsh_tape_reset both continue as without the mistake. */
#include "dist/world.h"
#include "support/language.h"
#include "support/lines.h"
#include "support/ranks.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a mistake is made with. */
typedef struct kit {
    tsh_tape *tape;
    tshi_language *l;
    tsh_group *group;
    tsh_tensor *x, *wide, *half, *local, *ids; /* float32 [2,3], [2,4], float64 [2,3], float32 [2,3] LOCAL, int64 [2] */
} kit;

typedef struct mistake {
    const char *name;
    void (*make)(kit *k);
    tsh_status status;
    const char *words[2];
} mistake;

static void matmul_of_misfits(kit *k) {
    tsh_matmul(k->tape, k->x, k->wide);
}

static void sum_of_misfits(kit *k) {
    tsh_add(k->tape, k->x, k->wide);
}

static void activation_of_complex_numbers(kit *k) {
    tsh_tensor *x = NULL;
    tsh_tensor_create(tsh_tensor_mesh(k->x), &(tsh_tensor_config){.dtype = TSH_COMPLEX64, .ndim = 1, .shape = {3}}, &x);
    tsh_gelu(k->tape, x);
    tsh_tensor_release(x);
}

static void sum_of_dtypes(kit *k) {
    tsh_add(k->tape, k->x, k->half);
}

static void linear_of_a_wrong_width(kit *k) {
    tsh_linear_forward(k->tape, k->l->up, k->wide);
}

static void linear_of_a_wrong_dtype(kit *k) {
    tsh_tensor *x = tsh_concat(k->tape, (tsh_tensor *[]){k->half, k->half, k->half, k->half, k->half, k->half}, 6, 1);
    tsh_linear_forward(k->tape, k->l->up, x);
}

static void column_of_split_features(kit *k) {
    tsh_tensor *x = tsh_concat(k->tape, (tsh_tensor *[]){k->x, k->x, k->x, k->x, k->x, k->x}, 6, 1);
    tsh_linear_forward(k->tape, k->l->up, tsh_scatter(k->tape, x, k->group, -1));
}

static void row_of_local_features(kit *k) {
    tsh_tensor *x = tsh_concat(k->tape, (tsh_tensor *[]){k->local, k->local, k->local}, 3, 1);
    tsh_linear_forward(k->tape, k->l->down,
                       tsh_concat(k->tape, (tsh_tensor *[]){x, tsh_slice(k->tape, x, 1, 0, 1)}, 2, 1));
}

static void gather_of_a_whole(kit *k) {
    tsh_gather(k->tape, k->x, k->group, 0);
}

static void reduce_of_a_whole(kit *k) {
    tsh_reduce(k->tape, k->x, k->group);
}

static void redistribute_over_no_axis(kit *k) {
    tsh_redistribute_along(k->tape, k->x, tsh_world_group(k->l->world), TSH_PARTIAL);
}

static void lookup_by_floats(kit *k) {
    tsh_lookup(k->tape, k->x, k->x, -1);
}

static void embedding_past_the_end(kit *k) {
    tsh_tensor_write(k->ids, (int64_t[]){12, 13}, 2);
    tsh_embedding_forward(k->tape, k->l->embedding, k->ids);
}

static void embedding_before_the_start(kit *k) {
    tsh_tensor_write(k->ids, (int64_t[]){-1, 0}, 2);
    tsh_embedding_forward(k->tape, k->l->embedding, k->ids);
}

static void target_past_the_end(kit *k) {
    tsh_tensor_write(k->ids, (int64_t[]){2, 3}, 2);
    tsh_cross_entropy(k->tape, k->x, k->ids, NULL);
}

static void targets_too_few(kit *k) {
    tsh_cross_entropy(k->tape, tsh_reshape(k->tape, k->x, 2, (int64_t[]){3, 2}), k->ids, NULL);
}

static void smoothing_too_much(kit *k) {
    tsh_cross_entropy(k->tape, k->x, k->ids, &(tsh_cross_entropy_config){.label_smoothing = 2});
}

static void nothing_added(kit *k) {
    tsh_add(k->tape, k->x, NULL);
}

static void nothing_to_add_to(kit *k) {
    tsh_add(k->tape, NULL, k->x);
}

static void nothing_through_a_layer(kit *k) {
    tsh_linear_forward(k->tape, k->l->up, NULL);
}

static void nothing_looked_up(kit *k) {
    tsh_embedding_forward(k->tape, k->l->embedding, NULL);
}

static void loss_of_nothing(kit *k) {
    tsh_cross_entropy(k->tape, NULL, k->ids, NULL);
}

static void loss_without_target(kit *k) {
    tsh_cross_entropy(k->tape, k->x, NULL, NULL);
}

static void product_without_weight(kit *k) {
    tsh_affine(k->tape, k->x, NULL, k->wide);
}

static void norm_of_nothing(kit *k) {
    tsh_layer_norm(k->tape, NULL, k->wide, k->wide, 1e-5);
}

static void nothing_in_a_row(kit *k) {
    tsh_concat(k->tape, (tsh_tensor *[]){k->x, NULL, k->x}, 3, 0);
}

static void nothing_moved(kit *k) {
    tsh_redistribute_along(k->tape, NULL, k->group, TSH_PARTIAL);
}

static void no_layer(kit *k) {
    tsh_linear_forward(k->tape, NULL, k->x);
}

static void reshape_to_other_elements(kit *k) {
    tsh_reshape(k->tape, k->x, 1, (int64_t[]){7});
}

static void reshape_to_two_unknowns(kit *k) {
    tsh_reshape(k->tape, k->x, 2, (int64_t[]){-1, -1});
}

static void slice_past_the_end(kit *k) {
    tsh_slice(k->tape, k->x, 1, 2, 2);
}

static void concat_of_nothing(kit *k) {
    tsh_concat(k->tape, NULL, 0, 0);
}

static void softmax_of_no_dim(kit *k) {
    tsh_softmax(k->tape, k->x, 2);
}

static void dropout_of_all(kit *k) {
    tsh_dropout(k->tape, k->x, 1);
}

static void tensor_of_another_mesh(kit *k) {
    tsh_tensor *other;
    tsh_tensor_create(tsh_world_mesh(k->l->world), &(tsh_tensor_config){.ndim = 2, .shape = {2, 3}}, &other);
    tsh_add(k->tape, k->x, other);
    tsh_tensor_release(other);
}

static void backward_of_nothing(kit *k) {
    tsh_backward(k->tape, NULL);
}

static void backward_unrecorded(kit *k) {
    tsh_tape_set_recording(k->tape, false);
    tsh_backward(k->tape, tsh_sum(k->tape, tsh_linear_weight(k->l->up), TSH_ALL_DIMS));
    tsh_tape_set_recording(k->tape, true);
}

static void recording_too_late(kit *k) {
    tsh_tape_set_recording(k->tape, false);
    tsh_tensor *loss = tsh_sum(k->tape, tsh_linear_weight(k->l->up), TSH_ALL_DIMS);
    tsh_tape_set_recording(k->tape, true);
    tsh_backward(k->tape, loss);
}

static void backward_of_a_leaf(kit *k) {
    tsh_backward_with(k->tape, k->x, NULL);
}

static void backward_without_parameters(kit *k) {
    tsh_backward(k->tape, tsh_sum(k->tape, k->x, TSH_ALL_DIMS));
}

static void backward_of_many(kit *k) {
    tsh_backward(k->tape, tsh_gelu(k->tape, tsh_linear_weight(k->l->up)));
}

static void backward_with_a_misfit(kit *k) {
    tsh_tensor *loss = tsh_gelu(k->tape, tsh_linear_weight(k->l->up));
    tsh_backward_with(k->tape, loss, &(tsh_backward_config){.gradient = k->x});
}

static void backward_twice(kit *k) {
    tsh_tensor *loss = tshi_language_loss(k->l);
    tsh_backward(k->tape, loss);
    tsh_backward(k->tape, loss);
}

static void use_after_backward(kit *k) {
    tsh_tensor *w = tsh_gelu(k->tape, tsh_linear_weight(k->l->up));
    tsh_backward(k->tape, tsh_sum(k->tape, w, TSH_ALL_DIMS));
    tsh_gelu(k->tape, w);
}

/* The first failure of a step is what the step says, whatever comes after. */
static void two_mistakes(kit *k) {
    sum_of_misfits(k);
    softmax_of_no_dim(k);
    tsh_backward(k->tape, NULL);
}

static const mistake mistakes[] = {
    {"matmul_of_misfits", matmul_of_misfits, TSH_ERR_SHAPE, {"matmul: float32 [2,3]", "[..., k] and [k, n] wanted"}},
    {"sum_of_misfits", sum_of_misfits, TSH_ERR_SHAPE, {"add: float32 [2,3]", "sizes must be equal or 1"}},
    {"sum_of_dtypes", sum_of_dtypes, TSH_ERR_DTYPE, {"add: ", "float64"}},
    {"activation_of_complex_numbers",
     activation_of_complex_numbers,
     TSH_ERR_DTYPE,
     {"gelu: input 0 is complex64", "PU computes with float32"}},
    {"linear_of_a_wrong_width",
     linear_of_a_wrong_width,
     TSH_ERR_SHAPE,
     {"linear_forward: x is [2,4]", "in_features=18"}},
    {"linear_of_a_wrong_dtype", linear_of_a_wrong_dtype, TSH_ERR_DTYPE, {"linear_forward: x is float64", "float32"}},
    {"column_of_split_features",
     column_of_split_features,
     TSH_ERR_LAYOUT,
     {"model=SHARD(1)", "column layer wants all"}},
    {"row_of_local_features", row_of_local_features, TSH_ERR_LAYOUT, {"model=LOCAL", "SHARD(1)"}},
    {"gather_of_a_whole", gather_of_a_whole, TSH_ERR_LAYOUT, {"gather: x is float32 [2,3]", "model=REPLICATED"}},
    {"reduce_of_a_whole", reduce_of_a_whole, TSH_ERR_LAYOUT, {"reduce: x is float32 [2,3]", "model=REPLICATED"}},
    {"redistribute_over_no_axis", redistribute_over_no_axis, TSH_ERR_ARGUMENT, {"redistribute_along: ", "not an axis"}},
    {"lookup_by_floats", lookup_by_floats, TSH_ERR_DTYPE, {"ids float32", "int64 wanted"}},
    {"embedding_past_the_end", embedding_past_the_end, TSH_ERR_RANGE, {"id 13 at index 1", "[0, 13)"}},
    {"embedding_before_the_start", embedding_before_the_start, TSH_ERR_RANGE, {"id -1 at index 0", "[0, 13)"}},
    {"target_past_the_end", target_past_the_end, TSH_ERR_RANGE, {"target 3 at index 1", "[0, 3)"}},
    {"targets_too_few", targets_too_few, TSH_ERR_SHAPE, {"cross_entropy: float32 [3,2]", "int64 [2]"}},
    {"smoothing_too_much", smoothing_too_much, TSH_ERR_ARGUMENT, {"cross_entropy: ", "label_smoothing 2"}},
    {"nothing_added", nothing_added, TSH_ERR_ARGUMENT, {"add: ", "input 1 is NULL"}},
    {"nothing_to_add_to", nothing_to_add_to, TSH_ERR_ARGUMENT, {"add: ", "input 0 is NULL"}},
    {"nothing_through_a_layer", nothing_through_a_layer, TSH_ERR_ARGUMENT, {"linear_forward: ", "is NULL"}},
    {"nothing_looked_up", nothing_looked_up, TSH_ERR_ARGUMENT, {"embedding_forward: ", "is NULL"}},
    {"loss_of_nothing", loss_of_nothing, TSH_ERR_ARGUMENT, {"cross_entropy: ", "is NULL"}},
    {"loss_without_target", loss_without_target, TSH_ERR_ARGUMENT, {"cross_entropy: ", "is NULL"}},
    {"product_without_weight", product_without_weight, TSH_ERR_ARGUMENT, {"affine: ", "input 1 is NULL"}},
    {"norm_of_nothing", norm_of_nothing, TSH_ERR_ARGUMENT, {"layer_norm: ", "is NULL"}},
    {"nothing_in_a_row", nothing_in_a_row, TSH_ERR_ARGUMENT, {"concat: ", "input 1 is NULL"}},
    {"nothing_moved", nothing_moved, TSH_ERR_ARGUMENT, {"redistribute_along: ", "is NULL"}},
    {"no_layer", no_layer, TSH_ERR_ARGUMENT, {"linear_forward: ", "is NULL"}},
    {"reshape_to_other_elements", reshape_to_other_elements, TSH_ERR_SHAPE, {"reshape: ", "cannot become [7]"}},
    {"reshape_to_two_unknowns", reshape_to_two_unknowns, TSH_ERR_SHAPE, {"reshape: ", "two sizes of -1"}},
    {"slice_past_the_end", slice_past_the_end, TSH_ERR_SHAPE, {"slice: [2, 2 + 2) of dim 1", "float32 [2,3]"}},
    {"concat_of_nothing", concat_of_nothing, TSH_ERR_ARGUMENT, {"concat: 0 tensors", "at least one"}},
    {"softmax_of_no_dim", softmax_of_no_dim, TSH_ERR_SHAPE, {"softmax: dim 2", "does not exist"}},
    {"dropout_of_all", dropout_of_all, TSH_ERR_ARGUMENT, {"dropout: p is 1", "[0, 1)"}},
    {"tensor_of_another_mesh",
     tensor_of_another_mesh,
     TSH_ERR_ARGUMENT,
     {"add: input 0 is on mesh model=", "input 1 on mesh world="}},
    {"backward_of_nothing", backward_of_nothing, TSH_ERR_STATE, {"backward: the loss is NULL", ""}},
    {"backward_unrecorded", backward_unrecorded, TSH_ERR_STATE, {"backward: recording is off", ""}},
    {"recording_too_late", recording_too_late, TSH_ERR_STATE, {"requires a gradient", "recording was off"}},
    {"backward_of_a_leaf", backward_of_a_leaf, TSH_ERR_STATE, {"backward: ", "float32 [2,3]"}},
    {"backward_without_parameters", backward_without_parameters, TSH_ERR_STATE, {"backward: ", "requires a gradient"}},
    {"backward_of_many", backward_of_many, TSH_ERR_SHAPE, {"backward: the loss is float32", "one element is wanted"}},
    {"backward_with_a_misfit", backward_with_a_misfit, TSH_ERR_SHAPE, {"backward: the gradient is float32 [2,3]", ""}},
    {"backward_twice", backward_twice, TSH_ERR_STATE, {"backward: a second time", "retain_graph"}},
    {"use_after_backward",
     use_after_backward,
     TSH_ERR_STATE,
     {"gelu: the memory of input 0 was freed", "tsh_tensor_retain"}},
    {"two_mistakes", two_mistakes, TSH_ERR_SHAPE, {"add: float32 [2,3]", "sizes must be equal or 1"}},
};

enum { MISTAKES = sizeof mistakes / sizeof *mistakes };

static bool make_kit(tshi_rank *r, tshi_language *l, kit *k) {
    tsh_tensor_config config = {.ndim = 2, .shape = {2, 3}};
    *k = (kit){.tape = l->tape, .l = l, .group = tsh_mesh_group(l->mesh, "model")};
    bool good = tshi_check_ok(r, tsh_tensor_create(l->mesh, &config, &k->x));
    config.layout[0] = TSH_LOCAL;
    good = good && tshi_check_ok(r, tsh_tensor_create(l->mesh, &config, &k->local));
    config = (tsh_tensor_config){.dtype = TSH_FLOAT64, .ndim = 2, .shape = {2, 3}};
    good = good && tshi_check_ok(r, tsh_tensor_create(l->mesh, &config, &k->half));
    config = (tsh_tensor_config){.ndim = 2, .shape = {2, 4}};
    good = good && tshi_check_ok(r, tsh_tensor_create(l->mesh, &config, &k->wide));
    config = (tsh_tensor_config){.dtype = TSH_INT64, .ndim = 1, .shape = {2}};
    return good && tshi_check_ok(r, tsh_tensor_create(l->mesh, &config, &k->ids));
}

static void free_kit(kit *k) {
    tsh_tensor_release(k->x);
    tsh_tensor_release(k->local);
    tsh_tensor_release(k->half);
    tsh_tensor_release(k->wide);
    tsh_tensor_release(k->ids);
}

static void check_words(tshi_rank *r, const mistake *m, tsh_status status, tsh_status wanted, const char *words) {
    tshi_check(r, status == wanted, "%s: %s \"%s\"", m->name, tsh_status_name(status), words);
    for (int i = 0; i < 2; i++) tshi_check(r, strstr(words, m->words[i]), "%s: \"%s\"", m->name, words);
    tshi_check(r, strstr(words, "rank 0: "), "%s: \"%s\"", m->name, words);
}

/* Rank 0 makes the mistake, its peers a step, in which they get the error. Then all ranks make a step. */
static void make_one(tshi_rank *r, const mistake *m, kit *k, double loss, double norm) {
    double got_loss = 0, got_norm = 0;
    char words[TSHI_TEST_WORDS] = "";
    if (r->rank == 0) {
        m->make(k);
        check_words(r, m, tsh_tape_status(k->tape), m->status, tsh_tape_message(k->tape));
        tshi_check_ok(r, tsh_tape_reset(k->tape));
    } else {
        tsh_status status = tshi_language_gradients(k->l, &got_loss, &got_norm, words);
        check_words(r, m, status, TSH_ERR_PEER, words);
    }
    tsh_status status = tshi_language_gradients(k->l, &got_loss, &got_norm, words);
    tshi_check(r, status == TSH_OK, "after %s: %s", m->name, words);
    tshi_check(r, got_loss == loss && got_norm == norm,
               "after %s the loss is %.17g, the norm %.17g; before %.17g, %.17g", m->name, got_loss, got_norm, loss,
               norm);
}

static void every_mistake(tshi_rank *r, void *unused) {
    (void)unused;
    double loss, norm;
    char axes[32], words[TSHI_TEST_WORDS] = "";
    tshi_language l;
    kit k;
    snprintf(axes, sizeof axes, "model=%d", r->size);
    if (!tshi_check_ok(r, tshi_language_create(r->world, axes, &l))) return;
    tsh_status status = tshi_language_gradients(&l, &loss, &norm, words);
    if (tshi_check(r, status == TSH_OK, "%s", words) && make_kit(r, &l, &k)) {
        size_t in_use = tsh_device_stats(tsh_world_device(r->world)).bytes_in_use;
        for (int i = 0; i < MISTAKES && !r->failed; i++) make_one(r, &mistakes[i], &k, loss, norm);
        size_t after = tsh_device_stats(tsh_world_device(r->world)).bytes_in_use;
        tshi_check(r, after == in_use, "%zu bytes in use became %zu", in_use, after);
        free_kit(&k);
    }
    tshi_language_destroy(&l);
}

Test(wrong_use, alone, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, every_mistake, NULL));
}

Test(wrong_use, two_ranks, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, every_mistake, NULL));
}

Test(wrong_use, three_ranks_as_threads, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_threads(3, every_mistake, NULL));
}

/* --- a status that the program drops ------------------------------------------------------------------------------ */

/* The optimizer is older than the schedule, so that its steps fail, and the loop looks at no status but backward's. */
static void dropped_step(tshi_rank *r, void *looks) {
    const tsh_data_parallel_config sharded = {.level = TSH_ZERO_OPTIMIZER};
    tsh_data_parallel *dp = NULL;
    tshi_language l;
    if (!tshi_check_ok(r, tshi_language_create_bare(r->world, "data=2,model=1", TSH_ZERO_NOTHING, &l))) return;
    tshi_check_ok(r, tshi_language_optimize(&l));
    tsh_group *data = tsh_mesh_group(l.mesh, "data");
    tshi_check_ok(r, tsh_data_parallel_create(l.tape, l.parameters, data, &sharded, &dp));
    tshi_check(r, tsh_backward(l.tape, tshi_language_loss(&l)) == TSH_OK, "%s", tsh_tape_message(l.tape));
    tsh_optimizer_step(l.optimizer);
    if (*(bool *)looks) tshi_check(r, strstr(tsh_error_message(), "optimizer_step"), "%s", tsh_error_message());
    tsh_optimizer_zero_grad(l.optimizer);
    tsh_tape_reset(l.tape);
    tsh_status status = tsh_backward(l.tape, tshi_language_loss(&l));
    const char *words = tsh_tape_message(l.tape);
    if (*(bool *)looks)
        tshi_check(r, status == TSH_OK, "%s", words);
    else
        tshi_check(r, status == TSH_ERR_STATE && strstr(words, "its status was dropped: optimizer_step: "), "%s",
                   words);
    tshi_check_ok(r, tsh_tape_reset(l.tape));
    tshi_check(r, tsh_backward(l.tape, tshi_language_loss(&l)) == TSH_OK, "%s", tsh_tape_message(l.tape));
    tsh_data_parallel_destroy(dp);
    tshi_language_destroy(&l);
}

Test(wrong_use, a_dropped_failure_is_logged_and_the_next_backward_returns_it, .timeout = 120) {
    for (int looks = 0; looks < 2; looks++) {
        tshi_lines *lines = tshi_test_shared(sizeof *lines);
        const tshi_test_options options = {.ranks = 2, .log = {tshi_keep_warning, lines}};
        cr_assert_str_empty(tshi_test_run_with(&options, dropped_step, &(bool){looks}, NULL, NULL));
        cr_expect_eq(strstr(lines->text, "has not looked at: optimizer_step: ") != NULL, !looks, "%s", lines->text);
    }
}

/* --- a world that is destroyed too early ------------------------------------------------------------------------- */

/* In the midst of training, as the garbage collector of another language does. */
static void world_first(tshi_rank *r, void *level) {
    float value;
    double loss, norm;
    tsh_tensor *kept = NULL;
    tshi_language l;
    tsh_zero_level shared = (tsh_zero_level) * (int *)level;
    if (!tshi_check_ok(r, tshi_language_create_sharded(r->world, "data=2,model=1", shared, &l))) return;
    if (!tshi_check_ok(r, tsh_tensor_create(l.mesh, &(tsh_tensor_config){.ndim = 1, .shape = {1}}, &kept))) return;
    tshi_check_ok(r, tshi_language_gradients(&l, &loss, &norm, NULL));
    tshi_check_ok(r, tshi_language_update(&l));
    tshi_check(r, tsh_backward(l.tape, tshi_language_loss(&l)) == TSH_OK, "%s", tsh_tape_message(l.tape));
    tsh_world_destroy(r->world);
    r->world = NULL;
    tshi_check_status(r, tsh_tensor_read(kept, &value, 1), TSH_ERR_STATE, "its world has been destroyed");
    tshi_check_status(r, tsh_tensor_create(l.mesh, &(tsh_tensor_config){.ndim = 0}, &(tsh_tensor *){NULL}),
                      TSH_ERR_STATE, "world has been destroyed");
    tshi_check_status(r, tsh_tape_reset(l.tape), TSH_ERR_STATE, "world has been destroyed");
    tsh_tensor_release(kept);
    tshi_language_destroy(&l);
}

static void check_world_first(int level) {
    tshi_lines *lines = tshi_test_shared(sizeof *lines);
    const tshi_test_options options = {.ranks = 2, .log = {tshi_keep_warning, lines}};
    cr_assert_str_empty(tshi_test_run_with(&options, world_first, &level, NULL, NULL));
    cr_expect(strstr(lines->text, "world_destroy: rank "), "%s", lines->text);
    cr_expect(strstr(lines->text, ".weight'"), "%s", lines->text);
    cr_expect(strstr(lines->text, "1 tape, 1 mesh: they are destroyed before their world"), "%s", lines->text);
}

Test(wrong_use, a_world_destroyed_first_names_what_is_alive_and_releases_are_safe, .timeout = 120) {
    for (int level = TSH_ZERO_NOTHING; level <= TSH_ZERO_PARAMETERS; level++) check_world_first(level);
    setenv("TSHARD_CHECK", "1", 1);
    check_world_first(TSH_ZERO_PARAMETERS);
}

/* --- without a tape ----------------------------------------------------------------------------------------------- */

static void arguments(tshi_rank *r, void *unused) {
    (void)unused;
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *t = NULL;
    tsh_parameters *list = NULL;
    tsh_optimizer *optimizer = NULL;
    tshi_check_status(r, tsh_tape_create(NULL, &(tsh_tape *){NULL}), TSH_ERR_ARGUMENT, "world is required");
    tshi_check_status(r, tsh_tensor_create(mesh, NULL, &t), TSH_ERR_ARGUMENT, "config");
    tshi_check_status(r, tsh_tensor_create(mesh, &(tsh_tensor_config){.ndim = 9}, &t), TSH_ERR_SHAPE, "9 dims");
    tshi_check_status(r, tsh_tensor_create(mesh, &(tsh_tensor_config){.ndim = 1, .shape = {-1}}, &t), TSH_ERR_ARGUMENT,
                      "-1");
    tsh_tensor_config huge = {.ndim = 2, .shape = {INT64_MAX / 2, 4}};
    tshi_check_status(r, tsh_tensor_create(mesh, &huge, &t), TSH_ERR_OVERFLOW, "");
    huge.shape[1] = 1;
    tsh_status status = tsh_tensor_create(mesh, &huge, &t);
    tshi_check(r, status == TSH_ERR_OVERFLOW || status == TSH_ERR_MEMORY, "%s", tsh_status_name(status));
    tshi_check(r, t == NULL, "a failed call has left a tensor");
    tsh_linear *layer = NULL;
    tsh_linear_create(group, &(tsh_linear_config){.in_features = 0, .out_features = 4}, &layer);
    tshi_check(r, !layer && strstr(tsh_error_message(), "in_features=0"), "%s", tsh_error_message());
    tsh_linear_create(NULL, &(tsh_linear_config){.in_features = 4, .out_features = 4}, &layer);
    tshi_check(r, !layer && strstr(tsh_error_message(), "group"), "%s", tsh_error_message());
    if (!tshi_check_ok(r, tsh_parameters_create(r->world, &list))) return;
    tshi_check_status(r, tsh_adamw_create(list, &(tsh_adamw_config){.lr = -1}, &optimizer), TSH_ERR_ARGUMENT, "lr -1");
    tshi_check_status(r, tsh_clip_grad_norm(list, 0, NULL), TSH_ERR_ARGUMENT, "max_norm");
    tsh_parameters_destroy(list);
}

Test(wrong_use, arguments, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, arguments, NULL));
}
