/* Gradients clipped by value within backward, against a clamp by hand after it. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = 11, EMBED = 6, HIDDEN = 10, BATCH = 7 };
static const double MOST = 0x1p-8; /* exact in every dtype */

typedef struct plan {
    const char *axes; /* NULL: "data=-1,model=1" */
    tsh_dtype dtype;
    bool wide, deterministic, sparse, schedule, twice;
    int level;
    size_t bucket_bytes;
} plan;

/* A sparse or dense table, a column layer and a row layer. */
typedef struct kit {
    const plan *p;
    tsh_tape *tape;
    tsh_embedding *table;
    tsh_linear *up, *down;
    tsh_parameters *list;
    tsh_data_parallel *dp;
    tsh_tensor *ids, *targets;
} kit;

static void make_layers(tshi_rank *r, tsh_group *model, kit *k) {
    tsh_dtype dtype = k->p->dtype;
    const tsh_embedding_config table = {.num_embeddings = VOCABULARY,
                                        .embedding_dim = EMBED,
                                        .shard = TSH_ROW,
                                        .dtype = dtype,
                                        .init = {.kind = TSH_INIT_NORMAL, .b = 1}};
    const tsh_linear_config up = {
        .in_features = EMBED, .out_features = HIDDEN, .shard = TSH_COLUMN, .bias = true, .dtype = dtype};
    const tsh_linear_config down = {
        .in_features = HIDDEN, .out_features = VOCABULARY, .shard = TSH_ROW, .bias = true, .dtype = dtype};
    tshi_check_ok(r, tsh_embedding_create(model, &table, &k->table));
    tshi_check_ok(r, tsh_linear_create(model, &up, &k->up));
    tshi_check_ok(r, tsh_linear_create(model, &down, &k->down));
    tshi_check_ok(r, tsh_parameters_create(r->world, &k->list));
    tshi_check_ok(r, tsh_embedding_register(k->table, k->list, "table"));
    tshi_check_ok(r, tsh_linear_register(k->up, k->list, "layers.0"));
    tshi_check_ok(r, tsh_linear_register(k->down, k->list, "layers.1"));
}

static void make_batch(tshi_rank *r, const tsh_mesh *mesh, kit *k) {
    double ids[BATCH], targets[BATCH];
    for (int i = 0; i < BATCH; i++) {
        ids[i] = i * 4 % 5;
        targets[i] = (i * 5 + 2) % VOCABULARY;
    }
    const tsh_tensor_config rows = {TSH_INT64, 1, {BATCH}, {TSH_SHARD(0)}};
    k->ids = tshi_test_tensor(r, mesh, &rows, ids);
    k->targets = tshi_test_tensor(r, mesh, &rows, targets);
}

static void make_kit(tshi_rank *r, const plan *p, tsh_mesh *mesh, kit *k) {
    const tsh_precision precision = {.storage = p->dtype, .reduction = p->wide ? TSH_FLOAT32 : p->dtype};
    const tsh_data_parallel_config config = {
        .level = (tsh_zero_level)p->level, .bucket_bytes = p->bucket_bytes, .first_bucket_bytes = p->bucket_bytes};
    *k = (kit){.p = p};
    tsh_world_seed(r->world, 5);
    tshi_check_ok(r, tsh_tape_create(r->world, &k->tape));
    make_layers(r, tsh_mesh_group(mesh, "model"), k);
    make_batch(r, mesh, k);
    if (r->failed) return;
    tshi_check_ok(r, tsh_parameters_set_precision(k->list, &precision));
    if (p->sparse) tshi_check_ok(r, tsh_tensor_set_sparse_grad(tsh_embedding_weight(k->table)));
    if (p->schedule)
        tshi_check_ok(r, tsh_data_parallel_create(k->tape, k->list, tsh_mesh_group(mesh, "data"), &config, &k->dp));
}

static void free_kit(kit *k) {
    tsh_data_parallel_destroy(k->dp);
    tsh_parameters_destroy(k->list);
    tsh_tape_destroy(k->tape);
    tsh_tensor_release(k->ids);
    tsh_tensor_release(k->targets);
    tsh_linear_destroy(k->down);
    tsh_linear_destroy(k->up);
    tsh_embedding_destroy(k->table);
}

static void backward(tshi_rank *r, kit *k, double weight) {
    tsh_tensor *x = tsh_embedding_forward(k->tape, k->table, k->ids);
    x = tsh_linear_forward(k->tape, k->down, tsh_gelu(k->tape, tsh_linear_forward(k->tape, k->up, x)));
    tsh_tensor *loss = tsh_scale(k->tape, tsh_cross_entropy(k->tape, x, k->targets, NULL), weight);
    tshi_check(r, tsh_backward(k->tape, loss) == TSH_OK, "%s", tsh_tape_message(k->tape));
    tshi_check_ok(r, tsh_tape_reset(k->tape));
}

/* The second of two backwards is clipped, on what both have added. */
static void all_backwards(tshi_rank *r, kit *k, double most) {
    if (k->p->twice) {
        if (k->dp)
            tsh_data_parallel_set_sync(k->dp, false);
        else
            tshi_check_ok(r, tsh_clip_grad_value_in_backward(k->list, INFINITY));
        if (k->dp) tshi_check_ok(r, tsh_clip_grad_value_in_backward(k->list, most));
        backward(r, k, -0.75);
        if (k->dp) tsh_data_parallel_set_sync(k->dp, true);
    }
    tshi_check_ok(r, tsh_clip_grad_value_in_backward(k->list, most));
    backward(r, k, 1);
}

/* The elements that there are, with the rows of a sparse gradient in their order. */
static const tsh_tensor *elements_of(const tsh_tensor *parameter) {
    const tsh_tensor *sparse = tsh_tensor_sparse_grad(parameter, NULL, NULL);
    return sparse ? sparse : tsh_tensor_grad(parameter);
}

static double clamped(double x) {
    return fmin(fmax(x, -MOST), MOST);
}

/* Bit for bit; *inside and *outside count elements by whether the clamp leaves them alone. */
static void compare(tshi_rank *r, const kit *plain, const kit *clipped, int *inside, int *outside) {
    for (int i = 0; i < tsh_parameters_count(plain->list) && !r->failed; i++) {
        const tsh_tensor *a = elements_of(tsh_parameters_tensor(plain->list, i));
        const tsh_tensor *b = elements_of(tsh_parameters_tensor(clipped->list, i));
        const char *name = tsh_parameters_name(plain->list, i);
        if (!tshi_check(r, a && b && tsh_tensor_local_numel(a) == tsh_tensor_local_numel(b), "%s: no gradient", name))
            return;
        for (int64_t e = 0; e < tsh_tensor_local_numel(a); e++) {
            double before = tshi_test_element(a, e), wanted = clamped(before), got = tshi_test_element(b, e);
            ++*(wanted == before ? inside : outside);
            tshi_check(r, got == wanted, "level %d: %s[%lld] is %g, %g wanted, of %g", plain->p->level, name,
                       (long long)e, got, wanted, before);
        }
    }
}

static void clips(tshi_rank *r, void *arg) {
    const plan *p = arg;
    int inside = 0, outside = 0;
    kit plain, clipped;
    tsh_mesh *mesh = NULL;
    r->world->deterministic = p->deterministic;
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, p->axes ? p->axes : "data=-1,model=1", &mesh))) return;
    make_kit(r, p, mesh, &plain);
    make_kit(r, p, mesh, &clipped);
    if (!r->failed) {
        all_backwards(r, &plain, INFINITY);
        all_backwards(r, &clipped, MOST);
        compare(r, &plain, &clipped, &inside, &outside);
    }
    tshi_check(r, r->failed || (inside && outside), "%d elements inside, %d outside", inside, outside);
    free_kit(&plain);
    free_kit(&clipped);
    tsh_mesh_destroy(mesh);
}

Test(clip_value, is_a_clamp_after_backward, .timeout = 120) {
    for (int i = 0; i < 4; i++) {
        plan p = {.dtype = TSH_FLOAT32, .sparse = i & 1, .twice = i & 2};
        cr_assert_str_empty(tshi_test_run_each(1, 4, clips, &p));
    }
}

Test(clip_value, of_sums_in_buckets_at_every_level, .timeout = 240) {
    for (int level = 0; level <= TSH_ZERO_PARAMETERS; level++) {
        for (int i = 0; i < 4; i++) {
            plan p = {.dtype = TSH_FLOAT32,
                      .level = level,
                      .schedule = true,
                      .sparse = i == 1,
                      .twice = i & 2,
                      .bucket_bytes = i & 1 ? 100 : 0};
            cr_assert_str_empty(tshi_test_run_each(1, 4, clips, &p));
        }
    }
}

Test(clip_value, in_16_bits_and_deterministic_worlds, .timeout = 240) {
    for (int i = 0; i < 16; i++) {
        plan p = {.axes = "data=2,model=2",
                  .dtype = i & 1 ? TSH_BFLOAT16 : TSH_FLOAT32,
                  .wide = (i & 3) == 3,
                  .deterministic = i & 4,
                  .schedule = i & 8,
                  .level = i & 8 ? (i & 3) : 0,
                  .bucket_bytes = 200};
        cr_assert_str_empty(tshi_test_run(4, clips, &p));
    }
}

/* --- a step in backward ------------------------------------------------------------------------------------------- */

/* Of so many features 32 rows are a piece of the gradient. */
enum { FEATURES = 4096, CLASSES = 67 };
static const double STEP_MOST = 0x1p-12;

/* Each element's gradient after the step of a layer without or with a step in backward is what SGD without momentum
 * takes from the weight. */
static void steps(tshi_rank *r, bool in_backward, const tsh_mesh *mesh, tsh_group *group, double *weight,
                  int *outside) {
    const tsh_linear_config config = {
        .in_features = FEATURES, .out_features = CLASSES, .shard = TSH_COLUMN, .dtype = TSH_FLOAT64};
    const tsh_tensor_config data = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {3, FEATURES}};
    const tsh_tensor_config labels = {.dtype = TSH_INT64, .ndim = 1, .shape = {3}};
    static const double label[] = {0, 66, 12};
    tsh_linear *layer = NULL;
    tsh_tape *tape = NULL;
    tsh_parameters *list = NULL;
    tsh_optimizer *optimizer = NULL;
    tsh_tensor *x = NULL, *target = tshi_test_tensor(r, mesh, &labels, label);
    tsh_world_seed(r->world, 3);
    tshi_check_ok(r, tsh_tensor_create(mesh, &data, &x));
    tshi_check_ok(r, tsh_tensor_init(x, &(tsh_init){.kind = TSH_INIT_NORMAL, .b = 0.1}));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_linear_create(group, &config, &layer));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_linear_register(layer, list, "classifier"));
    tshi_check_ok(r, tsh_sgd_create(list, &(tsh_sgd_config){.lr = 1}, &optimizer));
    if (r->failed) return;
    tsh_tensor *w = tsh_linear_weight(layer);
    if (in_backward) tshi_check_ok(r, tsh_optimizer_step_in_backward(optimizer, w));
    if (in_backward) tshi_check_ok(r, tsh_clip_grad_value_in_backward(list, STEP_MOST));
    tshi_check_ok(r, tsh_backward(tape, tsh_cross_entropy(tape, tsh_linear_forward(tape, layer, x), target, NULL)));
    tsh_tensor *grad = tsh_tensor_grad(w);
    tshi_check(r, !grad == in_backward, "a gradient, or none");
    double *elements = grad ? tsh_tensor_data(grad) : NULL;
    for (int64_t i = 0; grad && i < tsh_tensor_local_numel(grad); i++) {
        *outside += fabs(elements[i]) > STEP_MOST;
        elements[i] = fmin(fmax(elements[i], -STEP_MOST), STEP_MOST);
    }
    tshi_check_ok(r, tsh_optimizer_step(optimizer));
    memcpy(weight, tsh_tensor_data(w), tsh_tensor_local_nbytes(w));
    tsh_optimizer_destroy(optimizer);
    tsh_parameters_destroy(list);
    tsh_linear_destroy(layer);
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
    tsh_tensor_release(target);
}

static void clips_steps(tshi_rank *r, void *arg) {
    static double weight[2][CLASSES * FEATURES];
    int outside = 0;
    (void)arg;
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    for (int i = 0; i < 2; i++) steps(r, i == 1, mesh, tsh_world_group(r->world), weight[i], &outside);
    double largest = 0;
    for (int i = 0; i < CLASSES * FEATURES; i++) largest = fmax(largest, fabs(weight[0][i] - weight[1][i]));
    tshi_check(r, r->failed || (largest < 1e-12 && outside > 0), "the weights differ by %g, %d elements were clamped",
               largest, outside);
}

Test(clip_value, before_a_step_in_backward, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, clips_steps, NULL));
}

/* --- its arguments ------------------------------------------------------------------------------------------------ */

static void arguments(tshi_rank *r, void *arg) {
    const plan p = {.dtype = TSH_FLOAT32};
    kit k;
    tsh_mesh *mesh = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=1,model=1", &mesh));
    make_kit(r, &p, mesh, &k);
    tshi_check_status(r, tsh_clip_grad_value_in_backward(NULL, 1), TSH_ERR_ARGUMENT, "a list and value > 0");
    tshi_check_status(r, tsh_clip_grad_value_in_backward(k.list, 0), TSH_ERR_ARGUMENT, "value is 0");
    tshi_check_status(r, tsh_clip_grad_value_in_backward(k.list, NAN), TSH_ERR_ARGUMENT, "value is nan");
    tsh_tensor *frozen = tshi_test_vector(r, TSH_FLOAT32, 3);
    tshi_check_ok(r, tsh_parameters_add(k.list, "frozen", frozen));
    tshi_check_ok(r, tsh_clip_grad_value_in_backward(k.list, 1));
    tsh_tensor_release(frozen);
    free_kit(&k);
    tsh_mesh_destroy(mesh);
}

Test(clip_value, arguments, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run(1, arguments, NULL));
}
