/* Data parallelism where ranks do not all do the same, and where it goes wrong. */
#include "support/layouts.h"
#include "support/tensors.h"
#include "train/bucket.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <string.h>

enum { WEIGHTS = 4, N = 3 };

/* Vectors [3] of ones, REPLICATED over the world, and a tape with a schedule for them. The last is float32. */
typedef struct kit {
    tsh_group *group;
    const tsh_mesh *mesh;
    tsh_tape *tape;
    tsh_parameters *list;
    tsh_tensor *w[WEIGHTS];
    tsh_optimizer *optimizer;
    tsh_data_parallel *dp;
} kit;

static const tsh_data_parallel_config one_each = {.bucket_bytes = 1, .first_bucket_bytes = 1};

static void make_kit(tshi_rank *r, const tsh_data_parallel_config *config, kit *k) {
    static const char *const names[WEIGHTS] = {"a", "b", "c", "d"};
    const double ones[N] = {1, 1, 1};
    *k = (kit){.group = tsh_world_group(r->world), .mesh = tsh_world_mesh(r->world)};
    tshi_check_ok(r, tsh_tape_create(r->world, &k->tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &k->list));
    for (int i = 0; i < WEIGHTS; i++) {
        tsh_tensor_config c = {.dtype = i == 3 ? TSH_FLOAT32 : TSH_FLOAT64, .ndim = 1, .shape = {N}};
        k->w[i] = tshi_test_leaf(r, k->mesh, &c, ones);
        tshi_check_ok(r, tsh_parameters_add(k->list, names[i], k->w[i]));
    }
    tshi_check_ok(r, tsh_sgd_create(k->list, &(tsh_sgd_config){.lr = 1}, &k->optimizer));
    if (config) tshi_check_ok(r, tsh_data_parallel_create(k->tape, k->list, k->group, config, &k->dp));
}

static void free_kit(kit *k) {
    tsh_data_parallel_destroy(k->dp);
    tsh_optimizer_destroy(k->optimizer);
    tsh_parameters_destroy(k->list);
    tsh_tape_destroy(k->tape);
    for (int i = 0; i < WEIGHTS; i++) tsh_tensor_release(k->w[i]);
}

/* The sum of w times a LOCAL [n, n, n]: the rank's term of the gradient is n everywhere. */
static tsh_tensor *product(tshi_rank *r, kit *k, tsh_tensor *w, double n) {
    tsh_tensor *x = NULL;
    tsh_tensor_config config = {tsh_tensor_dtype(w), 1, {N}, {L}};
    tshi_check_ok(r, tsh_tensor_create(k->mesh, &config, &x));
    tshi_check_ok(r, tsh_tensor_fill(x, n));
    tsh_tensor *loss = tsh_sum(k->tape, tsh_mul(k->tape, w, x), TSH_ALL_DIMS);
    tsh_tensor_release(x);
    return loss;
}

static tsh_tensor *term(tshi_rank *r, kit *k, int i, double n) {
    return product(r, k, k->w[i], n);
}

static void backward(tshi_rank *r, kit *k, tsh_tensor *loss) {
    tshi_check(r, tsh_backward(k->tape, loss) == TSH_OK, "%s", tsh_tape_message(k->tape));
    tshi_check_ok(r, tsh_tape_reset(k->tape));
}

/* Every element is `value`; 0: there is no gradient. */
static void check(tshi_rank *r, const kit *k, int i, double value) {
    const double whole[N] = {value, value, value};
    if (value != 0) {
        tshi_test_same_grad(r, tsh_parameters_name(k->list, i), k->w[i], whole, 0);
    } else {
        tshi_check(r, !tsh_tensor_grad(k->w[i]), "%s has a gradient", tsh_parameters_name(k->list, i));
    }
}

static double sum_of_ranks(const tshi_rank *r) {
    return r->size * (r->size - 1) / 2.0;
}

/* --- what a bucket launches --------------------------------------------------------------------------------------- */

static tshi_fill_fn *fill;
static int fills;

static void count_fill(tsh_device *device, tsh_dtype dtype, int64_t n, double value, void *to) {
    fills++;
    fill(device, dtype, n, value, to);
}

/* The fills of a backward in which every rank has a gradient of all four weights. */
static int fills_of_backward(tshi_rank *r, kit *k) {
    tsh_device *device = tsh_world_device(r->world);
    const tshi_device_ops *before = device->ops;
    tshi_device_ops counted = *before;
    tsh_tensor *loss = term(r, k, 0, 1);
    for (int i = 1; i < 3; i++) loss = tsh_add(k->tape, loss, term(r, k, i, 1));
    fill = before->copy.fill;
    counted.copy.fill = count_fill;
    fills = 0;
    device->ops = &counted;
    backward(r, k, loss);
    device->ops = before;
    return fills;
}

static void few_fills(tshi_rank *r, void *arg) {
    const tsh_data_parallel_config whole = {0}, sharded = {.level = TSH_ZERO_OPTIMIZER};
    kit k;
    (void)arg;
    make_kit(r, &whole, &k);
    int buckets = tsh_data_parallel_buckets(k.dp), count = fills_of_backward(r, &k);
    tshi_check(r, buckets == 2, "%d buckets", buckets);
    tshi_check(r, count == buckets + 1, "%d fills with the loss's, of %d buckets", count, buckets);
    for (int i = 0; i < 3; i++) check(r, &k, i, r->size);
    free_kit(&k);
    make_kit(r, &sharded, &k);
    buckets = tsh_data_parallel_buckets(k.dp), count = fills_of_backward(r, &k);
    /* One for each run of ranks whose slices are of one length; this rank is a run of its own. */
    tshi_check(r, count <= 1 + buckets * r->size, "%d fills with the loss's, of %d sharded buckets", count, buckets);
    for (int i = 0; i < 3; i++) check(r, &k, i, r->size);
    free_kit(&k);
}

Test(data_parallel_cases, sets_the_flags_of_a_bucket_at_once, .timeout = 120) {
    for (int p = 1; p <= 3; p++) cr_assert_str_empty(tshi_test_run(p, few_fills, NULL));
}

/* --- unused parameters -------------------------------------------------------------------------------------------- */

static void unused(tshi_rank *r, void *config) {
    const double before = 1;
    double after;
    kit k;
    make_kit(r, config, &k);
    /* a on all ranks, b on the last alone, which comes to it first; c and d on none */
    tsh_tensor *loss = term(r, &k, 0, 2);
    if (r->rank == r->size - 1) loss = tsh_add(k.tape, loss, term(r, &k, 1, 5));
    backward(r, &k, loss);
    tshi_check_ok(r, tsh_optimizer_step(k.optimizer));
    check(r, &k, 0, 2 * r->size);
    check(r, &k, 1, 5);
    check(r, &k, 2, 0);
    check(r, &k, 3, 0);
    tshi_check(r, tshi_test_element(k.w[2], 0) == before, "an unused parameter has moved");
    /* beside what is there: a on rank 0 alone, c on all */
    loss = term(r, &k, 2, r->rank + 1);
    if (r->rank == 0) loss = tsh_add(k.tape, loss, term(r, &k, 0, 1));
    backward(r, &k, loss);
    check(r, &k, 0, 2 * r->size + 1);
    check(r, &k, 1, 5);
    check(r, &k, 2, sum_of_ranks(r) + r->size);
    check(r, &k, 3, 0);
    after = tshi_test_element(k.w[0], 0);
    tshi_check(r, after == 1 - 2 * r->size, "a is %g", after);
    free_kit(&k);
}

Test(data_parallel_cases, leaves_out_what_ranks_do_not_use, .timeout = 120) {
    tsh_data_parallel_config several = one_each, one = {0};
    for (int p = 1; p <= 4; p++) {
        cr_assert_str_empty(tshi_test_run(p, unused, &several));
        cr_assert_str_empty(tshi_test_run(p, unused, &one));
    }
}

/* A leaf without schedule is summed in the middle of backward: on the last rank before b's bucket is started, on the
 * others, which have no b, after it. */
static void between(tshi_rank *r, void *arg) {
    const double ones[N] = {1, 1, 1}, wanted[N] = {r->size, r->size, r->size};
    kit k;
    (void)arg;
    make_kit(r, &one_each, &k);
    tsh_tensor *free_leaf = tshi_test_leaf(r, k.mesh, &(tsh_tensor_config){TSH_FLOAT64, 1, {N}, {{0}}}, ones);
    tsh_tensor *first = r->rank == r->size - 1 ? term(r, &k, 1, 5) : NULL;
    tsh_tensor *loss = product(r, &k, free_leaf, 1);
    backward(r, &k, first ? tsh_add(k.tape, loss, first) : loss);
    check(r, &k, 0, 0);
    check(r, &k, 1, 5);
    tshi_test_same_grad(r, "without schedule", free_leaf, wanted, 0);
    tsh_tensor_release(free_leaf);
    free_kit(&k);
}

Test(data_parallel_cases, keeps_its_sums_apart_from_other_calls, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(2, 4, between, NULL));
}

/* --- gradients that are the same on all ranks already ------------------------------------------------------------- */

/* Sum of w^2, REPLICATED: its gradient 2 w is no sum over ranks. */
static tsh_tensor *square(kit *k, int i) {
    return tsh_sum(k->tape, tsh_mul(k->tape, k->w[i], k->w[i]), TSH_ALL_DIMS);
}

static void mixed(tshi_rank *r, void *arg) {
    kit k;
    (void)arg;
    make_kit(r, &one_each, &k);
    for (int i = 1; i <= 2; i++) {
        tsh_tensor *loss = tsh_add(k.tape, tsh_reduce(k.tape, term(r, &k, 0, r->rank + 1), k.group), square(&k, 0));
        backward(r, &k, tsh_add(k.tape, loss, square(&k, 1)));
        check(r, &k, 0, i * (sum_of_ranks(r) + r->size + 2));
        check(r, &k, 1, i * 2);
    }
    tsh_data_parallel_set_sync(k.dp, false);
    backward(r, &k, square(&k, 0));
    backward(r, &k, tsh_reduce(k.tape, term(r, &k, 1, 3), k.group));
    tsh_data_parallel_set_sync(k.dp, true);
    backward(r, &k, square(&k, 1));
    check(r, &k, 0, 2 * (sum_of_ranks(r) + r->size + 2) + 2);
    check(r, &k, 1, 6 + 3 * r->size);
    free_kit(&k);
}

Test(data_parallel_cases, counts_what_all_ranks_have_once, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, mixed, NULL));
}

/* The gradient of a parameter's copy is kept for the caller as it is, this rank's. */
static void kept_copy(tshi_rank *r, void *arg) {
    const double mine[N] = {r->rank + 1, r->rank + 1, r->rank + 1};
    kit k;
    (void)arg;
    make_kit(r, &one_each, &k);
    tsh_tensor *copy = tsh_copy(k.tape, k.w[0], k.group);
    tshi_check_ok(r, tsh_tensor_retain_grad(copy));
    tsh_tensor *loss = term(r, &k, 0, r->rank + 1);
    tshi_check(r, tsh_backward(k.tape, loss) == TSH_OK, "%s", tsh_tape_message(k.tape));
    check(r, &k, 0, sum_of_ranks(r) + r->size);
    const tsh_tensor *grad = tsh_tensor_grad(copy);
    for (int i = 0; grad && i < N; i++) tshi_check(r, tshi_test_element(grad, i) == mine[i], "element %d", i);
    tshi_check(r, grad, "the copy has no gradient");
    tshi_check_ok(r, tsh_tape_reset(k.tape));
    free_kit(&k);
}

Test(data_parallel_cases, leaves_a_retained_gradient_alone, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(3, kept_copy, NULL));
}

/* Also where a call makes the copy this rank's own along the model axis, along which the schedule sums, too. */
static void kept_copy_along_both(tshi_rank *r, void *arg) {
    const double sums[N] = {8, 8, 8};
    (void)arg;
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    tsh_parameters *list = NULL;
    tsh_data_parallel *dp = NULL;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=2,model=2", &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tsh_group *data = tsh_mesh_group(mesh, "data");
    const tsh_data_parallel_config both = {.model = tsh_mesh_group(mesh, "model"), .sequence_parallel = true};
    tsh_tensor_config c = {TSH_FLOAT64, 2, {1, N}, {R, R}}, rows = {TSH_FLOAT64, 2, {4, N}, {L, TSH_SHARD(0)}};
    tsh_tensor *w = NULL, *x = NULL;
    tshi_check_ok(r, tsh_tensor_create(mesh, &c, &w));
    tshi_check_ok(r, tsh_tensor_create(mesh, &rows, &x));
    tshi_check_ok(r, tsh_tensor_fill(x, 1));
    tshi_check_ok(r, tsh_tensor_require_grad(w, true));
    tshi_check_ok(r, tsh_parameters_add(list, "w", w));
    tshi_check_ok(r, tsh_data_parallel_create(tape, list, data, &both, &dp));
    tsh_tensor *copy = tsh_copy(tape, w, data);
    tshi_check_ok(r, tsh_tensor_retain_grad(copy));
    tsh_tensor *loss = tsh_sum(tape, tsh_sub(tape, copy, x), TSH_ALL_DIMS);
    tshi_check(r, tsh_backward(tape, loss) == TSH_OK, "%s", tsh_tape_message(tape));
    const tsh_tensor *grad = tsh_tensor_grad(copy);
    for (int i = 0; grad && i < N; i++) tshi_check(r, tshi_test_element(grad, i) == 4, "element %d", i);
    tshi_check(r, grad, "the copy has no gradient");
    tshi_test_same_grad(r, "w", w, sums, 0);
    tsh_tape_reset(tape);
    tsh_tensor_release(w);
    tsh_tensor_release(x);
    tsh_data_parallel_destroy(dp);
    tsh_parameters_destroy(list);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(data_parallel_cases, keeps_a_gradient_that_a_call_would_take_to_the_schedule, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, kept_copy_along_both, NULL));
}

/* All terms of a PARTIAL leaf have one gradient, in a bucket as anywhere. */
static void partial_leaf(tshi_rank *r, void *arg) {
    const double twos[N] = {2, 2, 2};
    (void)arg;
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    tsh_parameters *list = NULL;
    tsh_data_parallel *dp = NULL;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=2,model=2", &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tsh_group *data = tsh_mesh_group(mesh, "data"), *model = tsh_mesh_group(mesh, "model");
    tsh_tensor_config c = {TSH_FLOAT64, 1, {N}, {R, TSH_PARTIAL_INIT}}, local = {TSH_FLOAT64, 1, {N}, {L}};
    tsh_tensor *w = NULL, *x = NULL;
    tshi_check_ok(r, tsh_tensor_create(mesh, &c, &w));
    tshi_check_ok(r, tsh_tensor_create(mesh, &local, &x));
    tshi_check_ok(r, tsh_tensor_fill(w, 1));
    tshi_check_ok(r, tsh_tensor_fill(x, 1));
    tshi_check_ok(r, tsh_tensor_require_grad(w, true));
    tshi_check_ok(r, tsh_parameters_add(list, "w", w));
    tshi_check_ok(r, tsh_data_parallel_create(tape, list, data, NULL, &dp));
    tsh_tensor *loss = tsh_sum(tape, tsh_mul(tape, w, x), TSH_ALL_DIMS);
    tshi_check(r, tsh_backward(tape, loss) == TSH_OK, "%s", tsh_tape_message(tape));
    tsh_layout layout = tsh_tensor_layout(tsh_tensor_grad(w), model);
    tshi_check(r, layout.kind == TSH_KIND_REPLICATED, "the gradient's layout is %d", layout.kind);
    tshi_test_same_grad(r, "w", w, twos, 0);
    tsh_tape_reset(tape);
    tsh_tensor_release(w);
    tsh_tensor_release(x);
    tsh_data_parallel_destroy(dp);
    tsh_parameters_destroy(list);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(data_parallel_cases, has_a_replicated_gradient_of_a_partial_leaf, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, partial_leaf, NULL));
}

/* --- dtypes, buckets ---------------------------------------------------------------------------------------------- */

static void dtypes(tshi_rank *r, void *arg) {
    kit k;
    (void)arg;
    make_kit(r, &(tsh_data_parallel_config){0}, &k);
    tshi_check(r, tsh_data_parallel_buckets(k.dp) == 2, "%d buckets", tsh_data_parallel_buckets(k.dp));
    backward(r, &k, term(r, &k, 3, 2));
    backward(r, &k, tsh_add(k.tape, term(r, &k, 0, 1), term(r, &k, 2, 3)));
    check(r, &k, 0, r->size);
    check(r, &k, 1, 0);
    check(r, &k, 2, 3 * r->size);
    check(r, &k, 3, 2 * r->size);
    const char *a = tsh_tensor_data(tsh_tensor_grad(k.w[0])), *c = tsh_tensor_data(tsh_tensor_grad(k.w[2]));
    tshi_check(r, a - c == 128, "gradients are %lld bytes apart", (long long)(a - c)); /* one bucket, the last first */
    free_kit(&k);
}

Test(data_parallel_cases, keeps_dtypes_in_buckets_of_their_own, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, dtypes, NULL));
}

/* Three vectors of 64 bytes: the first bucket takes one, the second two; the float32 one is in its own. */
static void sizes(tshi_rank *r, void *arg) {
    kit k;
    (void)arg;
    make_kit(r, &(tsh_data_parallel_config){.bucket_bytes = 128, .first_bucket_bytes = 64}, &k);
    tshi_check(r, tsh_data_parallel_buckets(k.dp) == 3, "%d buckets", tsh_data_parallel_buckets(k.dp));
    free_kit(&k);
    make_kit(r, &(tsh_data_parallel_config){.bucket_bytes = 64}, &k);
    tshi_check(r, tsh_data_parallel_buckets(k.dp) == 4, "%d buckets", tsh_data_parallel_buckets(k.dp));
    free_kit(&k);
}

Test(data_parallel_cases, fills_buckets_to_their_sizes, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, sizes, NULL));
}

/* Default sizes: 1 MiB for the first bucket, 25 MiB for the rest; a larger gradient has a bucket of its own. */
static void usual_sizes(tshi_rank *r, void *arg) {
    const int64_t lengths[] = {6600000, 200000, 200000, 200000}; /* 26.4 MB, 0.8 MB, ..., from the last on */
    tsh_parameters *list = NULL;
    tsh_tape *tape = NULL;
    tsh_data_parallel *dp = NULL;
    tsh_tensor *w[4];
    (void)arg;
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < 4; i++) {
        char name[2] = {(char)('a' + i), '\0'};
        w[i] = tshi_test_vector(r, TSH_FLOAT32, lengths[i]);
        tshi_check_ok(r, tsh_tensor_require_grad(w[i], true));
        tshi_check_ok(r, tsh_parameters_add(list, name, w[i]));
    }
    tshi_check_ok(r, tsh_data_parallel_create(tape, list, tsh_world_group(r->world), NULL, &dp));
    tshi_check(r, tsh_data_parallel_buckets(dp) == 3, "%d buckets", tsh_data_parallel_buckets(dp));
    const int counts[] = {1, 2, 1}; /* d; c and b; a */
    for (int b = 0; b < 3; b++) tshi_check(r, dp->buckets[b].count == counts[b], "bucket %d", b);
    tsh_data_parallel_destroy(dp);
    tsh_tape_destroy(tape);
    tsh_parameters_destroy(list);
    for (int i = 0; i < 4; i++) tsh_tensor_release(w[i]);
}

Test(data_parallel_cases, has_a_small_bucket_first, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, usual_sizes, NULL));
}

/* --- values at the start ------------------------------------------------------------------------------------------ */

static void values(tshi_rank *r, void *arg) {
    kit k;
    (void)arg;
    for (int keep = 0; keep <= 1; keep++) {
        make_kit(r, NULL, &k);
        for (int i = 0; i < WEIGHTS; i++) tshi_check_ok(r, tsh_tensor_fill(k.w[i], 10 * r->rank + i));
        tsh_data_parallel_config config = {.keep_values = keep};
        tshi_check_ok(r, tsh_data_parallel_create(k.tape, k.list, k.group, &config, &k.dp));
        for (int i = 0; i < WEIGHTS; i++) {
            double got = tshi_test_element(k.w[i], N - 1), wanted = keep ? 10 * r->rank + i : i;
            tshi_check(r, got == wanted, "keep %d: value %d is %g, wanted %g", keep, i, got, wanted);
        }
        free_kit(&k);
    }
}

Test(data_parallel_cases, takes_values_from_the_first_rank, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(3, values, NULL));
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* Rank 1 finds in the middle of backward, when the sums of the last parameters are under way, that it has no way on. */
static void fails_midway(tshi_rank *r, void *arg) {
    kit k;
    (void)arg;
    make_kit(r, &one_each, &k);
    tsh_tensor *h = tsh_mul(k.tape, k.w[0], k.w[1]);
    tsh_tensor_retain(h);
    if (r->rank == 1) {
        tsh_data_parallel_set_sync(k.dp, false);
        tshi_check_ok(r, tsh_backward(k.tape, tsh_sum(k.tape, h, TSH_ALL_DIMS))); /* frees what h stands on */
        tsh_data_parallel_set_sync(k.dp, true);
    }
    tsh_tensor *never = tsh_reduce(k.tape, term(r, &k, 0, 1), k.group); /* so that a's sum is never started */
    tsh_tensor *no_way = tsh_sum(k.tape, tsh_relu(k.tape, h), TSH_ALL_DIMS);
    tsh_tensor *loss = tsh_add(k.tape, never, no_way);
    loss = tsh_add(k.tape, loss, tsh_reduce(k.tape, term(r, &k, 2, 3), k.group));
    tsh_status status = tsh_backward(k.tape, loss);
    if (r->rank == 1) tshi_check(r, k.dp->started == 3, "%d sums were under way", k.dp->started);
    tshi_check(r, status == (r->rank == 1 ? TSH_ERR_STATE : TSH_ERR_PEER), "%s", tsh_status_name(status));
    const char *words = tsh_tape_message(k.tape);
    tshi_check(r, strstr(words, "rank 1: backward") && strstr(words, "freed"), "%s", words);
    tshi_check_status(r, tsh_optimizer_step(k.optimizer), TSH_ERR_STATE, "failed");
    tshi_check(r, !tsh_tensor_grad(k.w[2]), "there is a gradient of a step that failed");
    tsh_tensor_release(h);
    tshi_check_ok(r, tsh_tape_reset(k.tape));

    loss = tsh_add(k.tape, term(r, &k, 0, r->rank), term(r, &k, 2, 1));
    backward(r, &k, loss);
    check(r, &k, 0, sum_of_ranks(r));
    check(r, &k, 1, 0);
    check(r, &k, 2, r->size);
    tshi_check_ok(r, tsh_optimizer_step(k.optimizer));
    free_kit(&k);
}

Test(data_parallel_cases, goes_on_after_a_backward_that_failed_midway, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(2, 4, fails_midway, NULL));
    cr_assert_str_empty(tshi_test_run_threads(3, fails_midway, NULL));
}

static void misuse(tshi_rank *r, void *arg) {
    const tsh_data_parallel_config none = {0};
    kit k;
    tsh_tape *other = NULL;
    tsh_mesh *mesh = NULL;
    tsh_data_parallel *dp = (tsh_data_parallel *)&k;
    (void)arg;
    make_kit(r, &none, &k);
    tshi_check_ok(r, tsh_tape_create(r->world, &other));
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=-1", &mesh));
    tshi_check_status(r, tsh_data_parallel_create(NULL, k.list, k.group, &none, &dp), TSH_ERR_ARGUMENT, "required");
    tshi_check(r, dp == NULL, "out is not NULL");
    tshi_check_status(r, tsh_data_parallel_create(k.tape, k.list, k.group, &none, &dp), TSH_ERR_STATE, "the tape");
    tshi_check_status(r, tsh_data_parallel_create(other, k.list, k.group, &none, &dp), TSH_ERR_STATE, "'a' has");
    tshi_check_status(r, tsh_data_parallel_create(other, k.list, tsh_mesh_group(mesh, "data"), &none, &dp),
                      TSH_ERR_ARGUMENT, "mesh of 'a'");
    tshi_check_status(r, tsh_data_parallel_create(other, k.list, k.group, &none, NULL), TSH_ERR_ARGUMENT, "out");
    tshi_check_status(r, tsh_sgd_create(k.list, &(tsh_sgd_config){.lr = 1}, NULL), TSH_ERR_ARGUMENT, "out");
    tshi_check_status(r, tsh_adamw_create(k.list, &(tsh_adamw_config){.lr = 1}, NULL), TSH_ERR_ARGUMENT, "out");
    tsh_tensor *loss = tsh_sum(other, k.w[0], TSH_ALL_DIMS);
    tshi_check(r, tsh_backward(other, loss) == TSH_ERR_STATE, "%s", tsh_tape_message(other));
    tshi_check(r, strstr(tsh_tape_message(other), "another tape"), "%s", tsh_tape_message(other));
    tshi_check_ok(r, tsh_tape_reset(other));
    tsh_tape_destroy(other);
    tsh_mesh_destroy(mesh);
    backward(r, &k, term(r, &k, 1, 1));
    check(r, &k, 1, r->size);
    free_kit(&k);
}

Test(data_parallel_cases, refuses_misuse, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, misuse, NULL));
    cr_assert_str_empty(tshi_test_run(2, misuse, NULL));
}

/* A mistake of one rank is an error on all ranks. */
static void wrong_on_one(tshi_rank *r, void *arg) {
    kit k;
    tsh_data_parallel *dp = NULL;
    (void)arg;
    make_kit(r, NULL, &k);
    tsh_parameters *list = r->rank == 1 ? NULL : k.list;
    tshi_check_status(r, tsh_data_parallel_create(k.tape, list, k.group, NULL, &dp),
                      r->rank == 1 ? TSH_ERR_ARGUMENT : TSH_ERR_PEER, "a tape and parameters are required");
    tshi_check_ok(r, tsh_data_parallel_create(k.tape, k.list, k.group, NULL, &k.dp));
    backward(r, &k, term(r, &k, 0, 1));
    check(r, &k, 0, r->size);
    free_kit(&k);
}

Test(data_parallel_cases, tells_all_of_misuse_on_one_rank, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, wrong_on_one, NULL));
    cr_assert_str_empty(tshi_test_run(3, wrong_on_one, NULL));
}

static void other_lists(tshi_rank *r, void *arg) {
    kit k;
    tsh_tensor *more = NULL;
    (void)arg;
    make_kit(r, NULL, &k);
    if (r->rank == 1) {
        more = tshi_test_leaf(r, k.mesh, &(tsh_tensor_config){TSH_FLOAT64, 1, {1}, {{0}}}, (const double[]){1});
        tshi_check_ok(r, tsh_parameters_add(k.list, "more", more));
    }
    tshi_check_status(r, tsh_data_parallel_create(k.tape, k.list, k.group, NULL, &k.dp), TSH_ERR_MISMATCH,
                      "of 5 parameters");
    backward(r, &k, term(r, &k, 0, 1)); /* as without a failure */
    check(r, &k, 0, r->size);
    tsh_tensor_release(more);
    free_kit(&k);
}

Test(data_parallel_cases, wants_the_same_parameters_on_all_ranks, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, other_lists, NULL));
    cr_assert_str_empty(tshi_test_run(3, other_lists, NULL));
}

/* A schedule that goes leaves its gradients, and the next step, even one that is half done, is made without. */
static void goes(tshi_rank *r, void *arg) {
    kit k;
    (void)arg;
    make_kit(r, &one_each, &k);
    backward(r, &k, term(r, &k, 0, 2));
    tsh_tensor *loss = term(r, &k, 0, 3);
    tsh_data_parallel_destroy(k.dp);
    k.dp = NULL;
    check(r, &k, 0, 2 * r->size);
    backward(r, &k, loss);
    backward(r, &k, term(r, &k, 1, 1));
    check(r, &k, 0, 5 * r->size);
    check(r, &k, 1, r->size);
    loss = term(r, &k, 1, 1); /* and one that comes takes them over; values that it wrote would be others than loss's */
    const tsh_data_parallel_config keep = {.keep_values = true};
    tshi_check_ok(r, tsh_data_parallel_create(k.tape, k.list, k.group, &keep, &k.dp));
    check(r, &k, 0, 5 * r->size);
    backward(r, &k, loss);
    check(r, &k, 1, 2 * r->size);
    backward(r, &k, term(r, &k, 0, 1));
    check(r, &k, 0, 6 * r->size);
    free_kit(&k);
}

Test(data_parallel_cases, comes_and_goes_between_steps, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, goes, NULL));
}
