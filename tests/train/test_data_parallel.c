/* Data parallelism: buckets of gradients have the values of one rank on the whole batch, with one all-reduce a
 * bucket. */
#include "dist/world.h"
#include "support/layouts.h"
#include "support/lines.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 5, IN = 3, HIDDEN = 7, OUT = 2, PARAMETERS = 4, MOST = HIDDEN * IN };

/* Parameters' gradients as wholes. */
typedef struct gradients {
    double of[PARAMETERS][MOST];
} gradients;

typedef struct plan {
    const char *axes;
    size_t bucket_bytes; /* 0: as it is by default */
    const gradients *wanted;
} plan;

/* y = down(relu(up(x))), of whole numbers, and the sum of y t. */
typedef struct kit {
    tsh_mesh *mesh;
    tsh_group *data;
    tsh_tape *tape;
    tsh_parameters *list;
    tsh_linear *up, *down;
    tsh_tensor *x, *t;
    tsh_optimizer *optimizer;
    tsh_data_parallel *dp;
} kit;

static tsh_linear *make_layer(tshi_rank *r, tsh_group *g, int64_t in, int64_t out, tsh_sharding shard, int seed) {
    double weight[MOST], bias[HIDDEN];
    tshi_test_integers(seed, in * out, weight);
    tshi_test_integers(seed + 1, out, bias);
    tsh_linear *layer = NULL;
    tsh_linear_create(g,
                      &(tsh_linear_config){
                          .in_features = in, .out_features = out, .shard = shard, .bias = true, .dtype = TSH_FLOAT64},
                      &layer);
    if (tshi_check(r, layer, "%s", tsh_error_message())) tshi_check_ok(r, tsh_linear_load(layer, weight, bias));
    return layer;
}

static bool make_kit(tshi_rank *r, const char *axes, const tsh_data_parallel_config *config, kit *k) {
    double x[BATCH * IN], t[BATCH * OUT];
    tshi_test_integers(5, BATCH * IN, x);
    tshi_test_integers(6, BATCH * OUT, t);
    tshi_check_ok(r, tsh_mesh_create(r->world, axes, &k->mesh));
    tsh_group *model = tsh_mesh_group(k->mesh, "model");
    k->data = tsh_mesh_group(k->mesh, "data");
    tsh_layout s[TSH_MAX_AXES] = {{0}};
    s[tshi_mesh_axis(k->mesh, k->data)] = TSH_SHARD(0);
    tsh_tensor_config rows = {TSH_FLOAT64, 2, {BATCH, IN}, {s[0], s[1]}};
    k->x = tshi_test_tensor(r, k->mesh, &rows, x);
    rows.shape[1] = OUT;
    k->t = tshi_test_tensor(r, k->mesh, &rows, t);
    k->up = make_layer(r, model, IN, HIDDEN, TSH_COLUMN, 1);
    k->down = make_layer(r, model, HIDDEN, OUT, TSH_ROW, 3);
    tshi_check_ok(r, tsh_tape_create(r->world, &k->tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &k->list));
    tshi_check_ok(r, tsh_linear_register(k->up, k->list, "up"));
    tshi_check_ok(r, tsh_linear_register(k->down, k->list, "down"));
    tshi_check_ok(r, tsh_sgd_create(k->list, &(tsh_sgd_config){.lr = 1}, &k->optimizer));
    tshi_check_ok(r, tsh_data_parallel_create(k->tape, k->list, k->data, config, &k->dp));
    return !r->failed;
}

static void free_kit(kit *k) {
    tsh_data_parallel_destroy(k->dp);
    tsh_optimizer_destroy(k->optimizer);
    tsh_parameters_destroy(k->list);
    tsh_tape_destroy(k->tape);
    tsh_linear_destroy(k->up);
    tsh_linear_destroy(k->down);
    tsh_tensor_release(k->x);
    tsh_tensor_release(k->t);
    tsh_mesh_destroy(k->mesh);
}

static tsh_tensor *objective(kit *k, tsh_tensor *h) {
    tsh_tensor *y = tsh_linear_forward(k->tape, k->down, tsh_relu(k->tape, h));
    return tsh_sum(k->tape, tsh_mul(k->tape, y, k->t), TSH_ALL_DIMS);
}

static void step(tshi_rank *r, kit *k) {
    tsh_tensor *loss = objective(k, tsh_linear_forward(k->tape, k->up, k->x));
    tshi_check(r, tsh_backward(k->tape, loss) == TSH_OK, "%s", tsh_tape_message(k->tape));
    tshi_check_ok(r, tsh_tape_reset(k->tape));
}

/* Gradients are `times` the wanted ones. */
static void compare(tshi_rank *r, const char *what, const kit *k, const gradients *wanted, double times) {
    for (int i = 0; i < PARAMETERS; i++) {
        double whole[MOST];
        for (int j = 0; j < MOST; j++) whole[j] = times * wanted->of[i][j];
        tshi_test_same_grad(r, what, tsh_parameters_tensor(k->list, i), whole, 0);
    }
}

/* `times` all-reduces a bucket since the last look, and none besides. */
static void check_calls(tshi_rank *r, const char *what, const kit *k, int times) {
    tsh_group *own = tsh_data_parallel_group(k->dp);
    uint64_t wanted = tsh_group_size(k->data) > 1 ? (uint64_t)(times * tsh_data_parallel_buckets(k->dp)) : 0;
    uint64_t calls = tsh_group_stats(own).calls[TSH_COLLECTIVE_ALL_REDUCE];
    if (own != k->data) calls += tsh_group_stats(k->data).calls[TSH_COLLECTIVE_ALL_REDUCE];
    tshi_check(r, calls == wanted, "%s: %llu all-reduces, wanted %llu", what, (unsigned long long)calls,
               (unsigned long long)wanted);
    tsh_group_reset_stats(own);
    tsh_group_reset_stats(k->data);
}

/* --- against one rank --------------------------------------------------------------------------------------------- */

static void alone(tshi_rank *r, void *arg) {
    gradients *out = r->result;
    kit k = {0};
    (void)arg;
    if (!make_kit(r, "data=1,model=1", NULL, &k)) return;
    tsh_data_parallel_destroy(k.dp); /* this one goes without */
    k.dp = NULL;
    step(r, &k);
    for (int i = 0; i < PARAMETERS && !r->failed; i++) {
        const tsh_tensor *g = tsh_tensor_grad(tsh_parameters_tensor(k.list, i));
        for (int64_t j = 0; j < tsh_tensor_local_numel(g); j++) out->of[i][j] = tshi_test_element(g, j);
    }
    free_kit(&k);
}

/* What one rank without a schedule gets. */
static const gradients *one_rank(void) {
    static gradients one;
    tshi_test_options options = {.ranks = 1, .result_bytes = sizeof one};
    cr_assert_str_empty(tshi_test_run_with(&options, alone, NULL, NULL, &one));
    for (int i = 0; i < PARAMETERS; i++) cr_assert(one.of[i][0] != 0 || one.of[i][1] != 0);
    return &one;
}

static void accumulate(tshi_rank *r, kit *k, const gradients *wanted) {
    step(r, k);
    check_calls(r, "one backward", k, 1);
    compare(r, "one backward", k, wanted, 1);
    step(r, k);
    step(r, k);
    check_calls(r, "three backwards", k, 2);
    compare(r, "three backwards", k, wanted, 3);
    tsh_parameters_zero_grad(k->list);
    tshi_check(r, !tsh_tensor_grad(tsh_parameters_tensor(k->list, 0)), "zeroed gradients are to be had");
    step(r, k);
    tsh_parameters_zero_grad(k->list);
    step(r, k);
    compare(r, "zeroed", k, wanted, 1);
    check_calls(r, "zeroed", k, 2);
}

static void gather(tshi_rank *r, kit *k, const gradients *wanted) {
    const tsh_tensor *p = tsh_parameters_tensor(k->list, 0);
    double norm;
    tshi_check(r, tsh_data_parallel_set_sync(k->dp, false), "sync was off");
    step(r, k); /* beside what is there */
    step(r, k);
    check_calls(r, "no sync", k, 0);
    tshi_check(r, !tsh_tensor_grad(p) && strstr(tsh_error_message(), "not summed"), "%s", tsh_error_message());
    tshi_check_status(r, tsh_optimizer_step(k->optimizer), TSH_ERR_STATE, "not summed");
    tshi_check_status(r, tsh_clip_grad_norm(k->list, 1, &norm), TSH_ERR_STATE, "not summed");
    tshi_check(r, !tsh_data_parallel_set_sync(k->dp, true), "sync was on");
    step(r, k);
    check_calls(r, "sync again", k, 1);
    compare(r, "gathered", k, wanted, 4);
    tsh_data_parallel_set_sync(k->dp, false);
    step(r, k);
    tsh_parameters_zero_grad(k->list);
    tsh_data_parallel_set_sync(k->dp, true);
    step(r, k);
    compare(r, "gathered and zeroed", k, wanted, 1);
}

static void matches(tshi_rank *r, void *arg) {
    const plan *p = arg;
    kit k = {0};
    tsh_data_parallel_config config = {.bucket_bytes = p->bucket_bytes, .first_bucket_bytes = p->bucket_bytes};
    if (!make_kit(r, p->axes, &config, &k)) return;
    int buckets = p->bucket_bytes ? PARAMETERS : 1;
    tshi_check(r, tsh_data_parallel_buckets(k.dp) == buckets, "%d buckets", tsh_data_parallel_buckets(k.dp));
    tsh_group_reset_stats(k.data); /* the values' broadcasts */
    accumulate(r, &k, p->wanted);
    gather(r, &k, p->wanted);
    tshi_check_ok(r, tsh_optimizer_step(k.optimizer));
    free_kit(&k);
}

Test(data_parallel, has_the_gradients_of_one_rank, .timeout = 120) {
    const gradients *one = one_rank();
    static const struct {
        int ranks;
        const char *axes;
    } meshes[] = {{1, "data=1,model=1"}, {2, "data=2,model=1"}, {3, "data=3,model=1"}, {4, "data=4,model=1"},
                  {2, "data=1,model=2"}, {4, "data=2,model=2"}, {4, "model=2,data=2"}, {3, "model=1,data=3"}};
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        for (size_t bytes = 0; bytes <= 1; bytes++) {
            plan p = {meshes[i].axes, bytes, one};
            const char *words = tshi_test_run(meshes[i].ranks, matches, &p);
            cr_assert_str_empty(words, "%s, buckets of %zu: %s", p.axes, bytes, words);
        }
    }
}

Test(data_parallel, works_between_threads, .timeout = 120) {
    plan p = {"data=2,model=1", 1, one_rank()};
    cr_assert_str_empty(tshi_test_run_threads(2, matches, &p));
}

/* --- averages of LOCAL losses ------------------------------------------------------------------------------------- */

/* One layer without bias, w [1, 2], on a tape with a schedule that averages. */
typedef struct small {
    tsh_tape *tape;
    tsh_parameters *list;
    tsh_linear *layer;
    tsh_optimizer *optimizer;
    tsh_data_parallel *dp;
} small;

static void make_small(tshi_rank *r, double w, bool average, tsh_zero_level level, small *s) {
    tsh_group *world = tsh_world_group(r->world);
    tsh_linear_create(world,
                      &(tsh_linear_config){.in_features = 2,
                                           .out_features = 1,
                                           .dtype = TSH_FLOAT64,
                                           .weight_init = {.kind = TSH_INIT_CONSTANT, .a = w}},
                      &s->layer);
    tshi_check_ok(r, tsh_tape_create(r->world, &s->tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &s->list));
    tshi_check_ok(r, tsh_linear_register(s->layer, s->list, "w"));
    tsh_data_parallel_config config = {.average = average, .level = level};
    tshi_check_ok(r, tsh_data_parallel_create(s->tape, s->list, world, &config, &s->dp));
    tshi_check_ok(r, tsh_sgd_create(s->list, &(tsh_sgd_config){.lr = .01}, &s->optimizer));
}

static void free_small(small *s) {
    tsh_tape_destroy(s->tape); /* the schedule notices */
    tsh_optimizer_destroy(s->optimizer);
    tsh_data_parallel_destroy(s->dp);
    tsh_parameters_destroy(s->list);
    tsh_linear_destroy(s->layer);
}

static tsh_tensor *local(tshi_rank *r, int64_t rows, int64_t cols, const double *values) {
    tsh_tensor *t = NULL;
    tshi_check_ok(
        r, tsh_tensor_create(tsh_world_mesh(r->world), &(tsh_tensor_config){TSH_FLOAT64, 2, {rows, cols}, {L}}, &t));
    tshi_check_ok(r, tsh_tensor_write(t, values, rows * cols));
    return t;
}

static void mirrored(tshi_rank *r, void *arg) {
    const double x[][2] = {{1, 1}, {2, 2}}, once[] = {1.5, 1.5}, twice[] = {3, 3};
    const double *const wanted[] = {once, twice};
    small s = {0};
    make_small(r, 1, true, *(tsh_zero_level *)arg, &s);
    tsh_tensor *t = local(r, 1, 2, x[r->rank % 2]);
    for (int i = 0; i < 2; i++) {
        tsh_tensor *loss = tsh_sum(s.tape, tsh_linear_forward(s.tape, s.layer, t), TSH_ALL_DIMS);
        tshi_check(r, tsh_tensor_item(loss) == 2 * x[r->rank % 2][0], "loss %g", tsh_tensor_item(loss));
        tshi_check_ok(r, tsh_backward(s.tape, loss));
        tshi_check_ok(r, tsh_tape_reset(s.tape));
        tshi_test_same_grad(r, "average", tsh_linear_weight(s.layer), wanted[i], 0);
    }
    tsh_tensor_release(t);
    free_small(&s);
}

Test(data_parallel, averages_and_accumulates_local_losses, .timeout = 120) {
    for (tsh_zero_level level = TSH_ZERO_NOTHING; level <= TSH_ZERO_PARAMETERS; level++) {
        cr_assert_str_empty(tshi_test_run(2, mirrored, &level));
        cr_assert_str_empty(tshi_test_run(4, mirrored, &level));
    }
}

/* --- a batch that is left REPLICATED ------------------------------------------------------------------------------ */

/* Two steps on a batch of its own on every rank, whose layout nobody has set. */
static void replicated_batch(tshi_rank *r, void *arg) {
    const double x[][2] = {{1, 1}, {2, 2}};
    tsh_layout layout = *(bool *)arg ? TSH_LOCAL : TSH_REPLICATED;
    small s = {0};
    make_small(r, 1, false, TSH_ZERO_NOTHING, &s);
    tsh_tensor *t = NULL;
    tshi_check_ok(
        r, tsh_tensor_create(tsh_world_mesh(r->world), &(tsh_tensor_config){TSH_FLOAT64, 2, {1, 2}, {layout}}, &t));
    tshi_check_ok(r, tsh_tensor_write(t, x[r->rank], 2));
    for (int i = 0; i < 2; i++) {
        tsh_tensor *loss = tsh_sum(s.tape, tsh_linear_forward(s.tape, s.layer, t), TSH_ALL_DIMS);
        bool checked = r->world->checked && !*(bool *)arg;
        tsh_status status = tsh_backward(s.tape, loss), wanted = checked ? TSH_ERR_MISMATCH : TSH_OK;
        tshi_check(r, status == wanted, "%s", tsh_tape_message(s.tape));
        tshi_check(r, !checked || strstr(tsh_tape_message(s.tape), "input of linear"), "%s", tsh_tape_message(s.tape));
        tshi_check_ok(r, tsh_tape_reset(s.tape));
    }
    tsh_tensor_release(t);
    free_small(&s);
}

/* The log of both ranks. */
static const char *log_of_batch(bool local) {
    static tshi_lines *lines;
    lines = tshi_test_shared(sizeof *lines);
    cr_assert_str_empty(tshi_test_run_with(&(tshi_test_options){.ranks = 2, .log = {tshi_keep_warning, lines}},
                                           replicated_batch, &local, NULL, NULL));
    return lines->text;
}

Test(data_parallel, a_batch_that_all_ranks_have_in_common_is_warned_of, .timeout = 120) {
    const char *words = "no gradient is a sum over axis world", *log = log_of_batch(false);
    cr_assert(strstr(log, words), "%s", log);
    cr_expect_not(strstr(strstr(log, words) + 1, words), "once: %s", log);
    cr_expect_str_empty(log_of_batch(true));
}

Test(data_parallel, inputs_that_are_not_what_they_are_said_to_be_are_found_under_check, .timeout = 120) {
    setenv("TSHARD_CHECK", "1", 1);
    log_of_batch(false);
    log_of_batch(true);
}

static void least_squares(tshi_rank *r, void *arg) {
    const double x[][4] = {{1, 2, 2, 3}, {4, 6, 3, 1}}, y[][2] = {{8, 13}, {26, 9}};
    const double first[] = {-165, -220}, last[] = {2, 3};
    small s = {0};
    make_small(r, 0, true, *(tsh_zero_level *)arg, &s);
    tsh_tensor *input = local(r, 2, 2, x[r->rank % 2]), *wanted = local(r, 2, 1, y[r->rank % 2]);
    for (int i = 0; i < 500 && !r->failed; i++) {
        tsh_tensor *d = tsh_sub(s.tape, tsh_linear_forward(s.tape, s.layer, input), wanted);
        tshi_check_ok(r, tsh_backward(s.tape, tsh_sum(s.tape, tsh_mul(s.tape, d, d), TSH_ALL_DIMS)));
        if (i == 0) tshi_test_same_grad(r, "first gradient", tsh_linear_weight(s.layer), first, 0);
        tshi_check_ok(r, tsh_optimizer_step(s.optimizer)); /* waits */
        tsh_optimizer_zero_grad(s.optimizer);
        tshi_check_ok(r, tsh_tape_reset(s.tape));
    }
    tshi_test_same(r, "w", tsh_linear_weight(s.layer), last, 1e-6);
    tsh_tensor_release(input);
    tsh_tensor_release(wanted);
    free_small(&s);
}

Test(data_parallel, solves_least_squares_by_averages, .timeout = 120) {
    for (tsh_zero_level level = TSH_ZERO_NOTHING; level <= TSH_ZERO_PARAMETERS; level++) {
        cr_assert_str_empty(tshi_test_run(2, least_squares, &level));
        cr_assert_str_empty(tshi_test_run(4, least_squares, &level));
    }
}

/* A loss of the whole batch is no average's: its gradients would be a p-th of what they should be. */
static void wrong_loss(tshi_rank *r, void *arg) {
    const double x[] = {1, 2};
    small s = {0};
    (void)arg;
    make_small(r, 1, true, TSH_ZERO_NOTHING, &s);
    tsh_tensor *t = local(r, 1, 2, x), *y = tsh_linear_forward(s.tape, s.layer, t);
    tsh_tensor *loss = tsh_reduce(s.tape, y, tsh_world_group(r->world));
    tshi_check(r, tsh_backward(s.tape, loss) == TSH_ERR_LAYOUT, "%s", tsh_tape_message(s.tape));
    tshi_check(r, strstr(tsh_tape_message(s.tape), "the loss must be LOCAL"), "%s", tsh_tape_message(s.tape));
    tshi_check_ok(r, tsh_tape_reset(s.tape));
    tshi_check_ok(r, tsh_backward(s.tape, tsh_linear_forward(s.tape, s.layer, t)));
    tshi_test_same_grad(r, "after it", tsh_linear_weight(s.layer), x, 1e-15);
    tsh_tensor_release(t);
    free_small(&s);
}

Test(data_parallel, averages_want_a_local_loss, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, wrong_loss, NULL));
}
