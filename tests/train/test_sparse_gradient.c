/* Sparse gradients and sampled classes against plain loops in float64. */
#include "device/cpu/isa/kernels.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES = 13, FEATURES = 5, BATCH = 7, STEPS = 6 };

/* --- the plain loop ----------------------------------------------------------------------------------------------- */

typedef struct settings {
    bool adamw;
    double lr, momentum, weight_decay;
    int64_t count; /* classes to draw; 0: a dense step */
    tsh_dtype dtype;
    double tolerance; /* 0: 1e-12, with float64 as dtype */
    bool weights;     /* of the ranks */
} settings;

typedef struct table {
    double p[CLASSES][FEATURES], m[CLASSES][FEATURES], v[CLASSES][FEATURES];
} table;

static double start_value(int row, int col) {
    return sin(1.7 * row + 0.9 * col);
}

static double feature(int step, int sample, int col) {
    return cos(0.7 * sample + 1.3 * col + 0.4 * step);
}

/* Labels repeat, and most of them are in the first rank's part. */
static int64_t label(int step, int sample) {
    static const int64_t labels[BATCH] = {2, 0, 2, 11, 1, 2, 0};
    return step % 2 ? (labels[sample] + step) % CLASSES : labels[sample];
}

/* dL/dp of the mean cross entropy over the classes that are in `drawn`; returns the loss. */
static double gradient(const table *t, int step, const bool *drawn, double g[CLASSES][FEATURES]) {
    double loss = 0;
    memset(g, 0, CLASSES * sizeof *g);
    for (int b = 0; b < BATCH; b++) {
        double e[CLASSES] = {0}, sum = 0;
        for (int c = 0; c < CLASSES; c++) {
            double logit = 0;
            for (int f = 0; f < FEATURES; f++) logit += t->p[c][f] * feature(step, b, f);
            if (drawn[c]) sum += e[c] = exp(logit);
        }
        loss -= log(e[label(step, b)] / sum) / BATCH;
        for (int c = 0; c < CLASSES; c++) {
            double d = (e[c] / sum - (c == label(step, b))) / BATCH;
            for (int f = 0; drawn[c] && f < FEATURES; f++) g[c][f] += d * feature(step, b, f);
        }
    }
    return loss;
}

/* The rows that are drawn, their states, and nothing else. */
static void update(const settings *s, table *t, int step, const bool *drawn, double g[CLASSES][FEATURES]) {
    for (int c = 0; c < CLASSES; c++) {
        for (int f = 0; drawn[c] && f < FEATURES; f++) {
            double *p = &t->p[c][f], *m = &t->m[c][f], *v = &t->v[c][f];
            if (!s->adamw) {
                *m = s->momentum * *m + g[c][f] + s->weight_decay * *p;
                *p -= s->lr * *m;
                continue;
            }
            *m = 0.9 * *m + 0.1 * g[c][f];
            *v = 0.999 * *v + 0.001 * g[c][f] * g[c][f];
            double mean = *m / (1 - pow(0.9, step + 1)), square = *v / (1 - pow(0.999, step + 1));
            *p = *p * (1 - s->lr * s->weight_decay) - s->lr * mean / (sqrt(square) + 1e-8);
        }
    }
}

/* --- the same with tshard ----------------------------------------------------------------------------------------- */

typedef struct state {
    tsh_mesh *mesh;
    tsh_tape *tape;
    tsh_linear *layer;
    tsh_tensor *x, *target;
    tsh_parameters *list;
    tsh_optimizer *optimizer;
} state;

static void set_up(tshi_rank *r, const settings *s, state *m) {
    const tsh_linear_config layer = {
        .in_features = FEATURES, .out_features = CLASSES, .shard = TSH_COLUMN, .dtype = s->dtype};
    const tsh_tensor_config x = {.dtype = s->dtype, .ndim = 2, .shape = {BATCH, FEATURES}, .layout = {TSH_SHARD(0)}};
    const tsh_tensor_config target = {.dtype = TSH_INT64, .ndim = 1, .shape = {BATCH}, .layout = {TSH_SHARD(0)}};
    double weight[CLASSES][FEATURES], typed[CLASSES * FEATURES];
    for (int c = 0; c < CLASSES; c++)
        for (int f = 0; f < FEATURES; f++) weight[c][f] = start_value(c, f);
    static const char *const by_weight[] = {"ranks=1", "ranks=1:3", "ranks=2:0:1", "ranks=1:0:3:2"};
    tshi_check_ok(r, tsh_mesh_create(r->world, s->weights ? by_weight[r->size - 1] : "ranks=-1", &m->mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &m->tape));
    tshi_check_ok(r, tsh_linear_create(tsh_mesh_group(m->mesh, "ranks"), &layer, &m->layer));
    tshi_cpu_convert_base(NULL, CLASSES * FEATURES, TSH_FLOAT64, weight, s->dtype, typed);
    tshi_check_ok(r, tsh_linear_load(m->layer, typed, NULL));
    tshi_check_ok(r, tsh_tensor_create(m->mesh, &x, &m->x));
    tshi_check_ok(r, tsh_tensor_require_grad(m->x, true));
    tshi_check_ok(r, tsh_tensor_create(m->mesh, &target, &m->target));
    tshi_check_ok(r, tsh_parameters_create(r->world, &m->list));
    tshi_check_ok(r, tsh_linear_register(m->layer, m->list, "classifier"));
    if (s->count) tshi_check_ok(r, tsh_tensor_set_sparse_grad(tsh_linear_weight(m->layer)));
    if (s->adamw) {
        const tsh_adamw_config c = {.lr = s->lr, .weight_decay = s->weight_decay};
        tshi_check_ok(r, tsh_adamw_create(m->list, &c, &m->optimizer));
    } else {
        const tsh_sgd_config c = {.lr = s->lr, .momentum = s->momentum, .weight_decay = s->weight_decay};
        tshi_check_ok(r, tsh_sgd_create(m->list, &c, &m->optimizer));
    }
}

static void tear_down(state *m) {
    tsh_optimizer_destroy(m->optimizer);
    tsh_parameters_destroy(m->list);
    tsh_tensor_release(m->target);
    tsh_tensor_release(m->x);
    tsh_linear_destroy(m->layer);
    tsh_tape_destroy(m->tape);
    tsh_mesh_destroy(m->mesh);
}

static void write_batch(tshi_rank *r, state *m, int step) {
    double x[BATCH][FEATURES], typed[BATCH * FEATURES];
    int64_t target[BATCH];
    for (int b = 0; b < BATCH; b++) {
        target[b] = label(step, b);
        for (int f = 0; f < FEATURES; f++) x[b][f] = feature(step, b, f);
    }
    tshi_cpu_convert_base(NULL, BATCH * FEATURES, TSH_FLOAT64, x, tsh_tensor_dtype(m->x), typed);
    tshi_check_ok(r, tsh_tensor_write_whole(m->x, typed));
    tshi_check_ok(r, tsh_tensor_write_whole(m->target, target));
}

/* Which classes all ranks have drawn; checks each rank's: in its part, each once, all of the target, balanced. */
static void find_drawn(tshi_rank *r, state *m, const tsh_tensor *rows, int step, int64_t count, bool *drawn) {
    int64_t n = tsh_tensor_local_shape(rows)[0], own = tsh_tensor_local_shape(tsh_linear_weight(m->layer))[0];
    int64_t all = tsh_tensor_shape(rows)[0], start, mine[CLASSES] = {0};
    const int64_t *row = tsh_tensor_data(rows);
    tshi_check(r, all >= (count < CLASSES ? count : CLASSES) && all <= CLASSES, "%lld classes are drawn",
               (long long)all);
    const tsh_group *ranks = tsh_mesh_group(m->mesh, "ranks");
    int64_t share;
    tsh_group_part(ranks, all, r->rank, NULL, &share);
    tshi_check(r, n == share, "a rank has %lld of %lld", (long long)n, (long long)all);
    tsh_group_part(ranks, CLASSES, r->rank, &start, NULL);
    for (int64_t i = 0; i < n; i++) {
        bool good = row[i] >= 0 && row[i] < own && !mine[start + row[i]];
        tshi_check(r, good, "row %lld of %lld, or twice", (long long)row[i], (long long)own);
        if (good) mine[start + row[i]] = 1;
    }
    tsh_tensor *sum = NULL;
    const tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {CLASSES}, .layout = {TSH_LOCAL}};
    tshi_check_ok(r, tsh_tensor_create(m->mesh, &config, &sum));
    memcpy(tsh_tensor_data(sum), mine, sizeof mine);
    tshi_check_ok(r, tsh_all_reduce(tsh_mesh_group(m->mesh, "ranks"), sum, TSH_REDUCE_SUM));
    for (int c = 0; c < CLASSES; c++) drawn[c] = ((const int64_t *)tsh_tensor_data(sum))[c] > 0;
    tsh_tensor_release(sum);
    for (int b = 0; b < BATCH; b++) tshi_check(r, drawn[label(step, b)], "label %lld", (long long)label(step, b));
}

static void steps(tshi_rank *r, void *arg) {
    const settings *s = arg;
    static table t;
    state m = {0};
    set_up(r, s, &m);
    for (int c = 0; c < CLASSES; c++)
        for (int f = 0; f < FEATURES; f++) t.p[c][f] = start_value(c, f);
    for (int step = 0; step < STEPS && !r->failed; step++) {
        tsh_tensor *rows = NULL, *places = m.target, *logits;
        bool drawn[CLASSES];
        double g[CLASSES][FEATURES];
        write_batch(r, &m, step);
        memset(drawn, 1, sizeof drawn);
        if (s->count) {
            rows = tsh_sample_classes(m.tape, tsh_linear_weight(m.layer), m.target, s->count, &places);
            tshi_check_ok(r, tsh_tape_status(m.tape));
            if (rows) find_drawn(r, &m, rows, step, s->count, drawn);
            logits = tsh_linear_forward_rows(m.tape, m.layer, m.x, rows);
        } else {
            logits = tsh_linear_forward(m.tape, m.layer, m.x);
        }
        tsh_tensor *loss = tsh_cross_entropy(m.tape, logits, places, NULL);
        tshi_check_ok(r, tsh_backward(m.tape, loss));
        double want = gradient(&t, step, drawn, g);
        if (loss)
            tshi_check(r, fabs(tsh_tensor_item(loss) - want) <= s->tolerance, "loss %g, %g wanted",
                       tsh_tensor_item(loss), want);
        update(s, &t, step, drawn, g);
        tshi_check_ok(r, tsh_optimizer_step(m.optimizer));
        tsh_optimizer_zero_grad(m.optimizer);
        tshi_check_ok(r, tsh_tape_reset(m.tape));
        tshi_test_same(r, "the weight", tsh_linear_weight(m.layer), t.p[0], s->tolerance);
    }
    tear_down(&m);
}

static void run(settings s) {
    if (s.tolerance == 0) {
        s.dtype = TSH_FLOAT64;
        s.tolerance = 1e-12;
    }
    cr_assert_str_empty(tshi_test_run_each(1, 4, steps, &s));
}

Test(sparse_gradient, sampled_adamw_is_the_plain_loop, .timeout = 120) {
    run((settings){.adamw = true, .lr = 0.05, .weight_decay = 0.1, .count = 8});
}

Test(sparse_gradient, sampled_sgd_is_the_plain_loop, .timeout = 120) {
    run((settings){.lr = 0.5, .momentum = 0.9, .weight_decay = 0.01, .count = 6});
}

Test(sparse_gradient, sampled_sgd_of_other_types, .timeout = 120) {
    run((settings){.lr = 0.5, .count = 6, .dtype = TSH_FLOAT32, .tolerance = 1e-5});
    run((settings){.lr = 0.5, .count = 6, .dtype = TSH_FLOAT16, .tolerance = 0.01});
    run((settings){.lr = 0.5, .count = 6, .dtype = TSH_BFLOAT16, .tolerance = 0.05});
}

Test(sparse_gradient, a_count_below_what_the_batch_has_grows, .timeout = 120) {
    run((settings){.lr = 0.5, .momentum = 0.9, .count = 1});
}

Test(sparse_gradient, classes_are_drawn_by_weight, .timeout = 120) {
    run((settings){.lr = 0.5, .momentum = 0.9, .count = 1, .weights = true});
    run((settings){.adamw = true, .lr = 0.05, .weight_decay = 0.1, .count = 6, .weights = true});
    run((settings){.adamw = true, .lr = 0.05, .count = CLASSES, .weights = true});
}

Test(sparse_gradient, all_classes_drawn_are_the_dense_step, .timeout = 120) {
    run((settings){.adamw = true, .lr = 0.05, .weight_decay = 0.1, .count = CLASSES + 5});
    run((settings){.adamw = true, .lr = 0.05, .weight_decay = 0.1});
}

/* --- communication ------------------------------------------------------------------------------------------------ */

/* Features and labels are gathered, the loss reduces twice, the features' gradient is scattered: sampled or not. */
static void counts(tshi_rank *r, void *arg) {
    const settings *s = arg;
    state m = {0};
    set_up(r, s, &m);
    tsh_group *group = tsh_mesh_group(m.mesh, "ranks");
    write_batch(r, &m, 0);
    tsh_tensor *rows = NULL, *places = m.target;
    tsh_group_reset_stats(group);
    if (s->count) rows = tsh_sample_classes(m.tape, tsh_linear_weight(m.layer), m.target, s->count, &places);
    tsh_tensor *logits =
        s->count ? tsh_linear_forward_rows(m.tape, m.layer, m.x, rows) : tsh_linear_forward(m.tape, m.layer, m.x);
    tsh_tensor *loss = tsh_cross_entropy(m.tape, logits, places, NULL);
    tsh_communication_stats forward = tsh_group_stats(group);
    tshi_check_ok(r, tsh_backward(m.tape, loss));
    tsh_communication_stats both = tsh_group_stats(group);
    tshi_check(r, forward.calls[TSH_COLLECTIVE_ALL_GATHER] == 2 && forward.calls[TSH_COLLECTIVE_ALL_REDUCE] == 2,
               "%lld all-gathers, %lld all-reduces", (long long)forward.calls[TSH_COLLECTIVE_ALL_GATHER],
               (long long)forward.calls[TSH_COLLECTIVE_ALL_REDUCE]);
    int64_t calls = 0;
    for (int i = 0; i < TSH_COLLECTIVE_COUNT; i++) calls += (int64_t)both.calls[i];
    tshi_check(r, calls == 5 && both.calls[TSH_COLLECTIVE_REDUCE_SCATTER] == 1, "%lld calls", (long long)calls);
    tear_down(&m);
}

Test(sparse_gradient, sampling_adds_no_communication, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run_each(2, 4, counts, &(settings){.lr = 1}));
    cr_assert_str_empty(tshi_test_run_each(2, 4, counts, &(settings){.lr = 1, .count = 6}));
}

/* --- tables of an embedding --------------------------------------------------------------------------------------- */

typedef struct table_case {
    bool shard, dense_too, twice;
} table_case;

/* The gradient of sum(y w) for y = table[ids], which occur repeatedly, in two backwards, is what a dense one is; the
 * norm that clips it too. */
static void embeds(tshi_rank *r, void *arg) {
    const table_case *c = arg;
    static const int64_t ids[] = {3, 1, 3, 8, 0, 3, 1};
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    tsh_tensor *t[2] = {NULL, NULL}, *id = NULL;
    double norm[2] = {0, 0};
    tshi_check_ok(r, tsh_mesh_create(r->world, "ranks=-1", &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    const tsh_tensor_config rows_of_4 = {
        .dtype = TSH_FLOAT64, .ndim = 2, .shape = {9, 4}, .layout = {c->shard ? TSH_SHARD(0) : TSH_REPLICATED}};
    const tsh_tensor_config list = {.dtype = TSH_INT64, .ndim = 1, .shape = {7}};
    tshi_check_ok(r, tsh_tensor_create(mesh, &list, &id));
    tshi_check_ok(r, tsh_tensor_write_whole(id, ids));
    for (int i = 0; i < 2; i++) {
        tsh_parameters *parameters = NULL;
        tsh_optimizer *optimizer = NULL;
        tsh_world_seed(r->world, 5);
        tshi_check_ok(r, tsh_tensor_create(mesh, &rows_of_4, &t[i]));
        tshi_check_ok(r, tsh_tensor_init(t[i], &(tsh_init){.kind = TSH_INIT_NORMAL, .b = 1}));
        tshi_check_ok(r, tsh_tensor_require_grad(t[i], true));
        if (i == 1) tshi_check_ok(r, tsh_tensor_set_sparse_grad(t[i]));
        tshi_check_ok(r, tsh_parameters_create(r->world, &parameters));
        tshi_check_ok(r, tsh_parameters_add(parameters, "table", t[i]));
        tshi_check_ok(r, tsh_sgd_create(parameters, &(tsh_sgd_config){.lr = 0.1}, &optimizer));
        for (int b = 0; b <= c->twice; b++) {
            tsh_tensor *y = tsh_lookup(tape, t[i], id, 8);
            tsh_tensor *sum = tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS);
            if (c->dense_too) sum = tsh_add(tape, sum, tsh_sum(tape, tsh_mul(tape, t[i], t[i]), TSH_ALL_DIMS));
            tshi_check_ok(r, tsh_backward(tape, sum));
            tshi_check_ok(r, tsh_tape_reset(tape));
        }
        int64_t count = 0;
        const int64_t *rows = NULL;
        bool sparse = tsh_tensor_sparse_grad(t[i], &count, &rows);
        tshi_check(r, sparse == (i == 1 && !c->dense_too) && (!sparse || (count <= 3 && rows)), "sparse %d, %lld rows",
                   sparse, (long long)count);
        tshi_check(r, sparse == !tsh_tensor_grad(t[i]), "both forms, or none");
        tshi_check_ok(r, tsh_clip_grad_norm(parameters, 1, &norm[i]));
        tshi_check_ok(r, tsh_optimizer_step(optimizer));
        tsh_optimizer_zero_grad(optimizer);
        tshi_check(r, !tsh_tensor_sparse_grad(t[i], NULL, NULL), "cleared");
        tsh_optimizer_destroy(optimizer);
        tsh_parameters_destroy(parameters);
    }
    tshi_check(r, fabs(norm[0] - norm[1]) < 1e-12 && norm[0] > 1, "norms %.15g and %.15g", norm[0], norm[1]);
    const double *a = tsh_tensor_data(t[0]), *b = tsh_tensor_data(t[1]);
    for (int64_t i = 0; i < tsh_tensor_local_numel(t[0]); i++)
        tshi_check(r, fabs(a[i] - b[i]) < 1e-14, "element %lld: %g and %g", (long long)i, a[i], b[i]);
    for (int i = 0; i < 2; i++) tsh_tensor_release(t[i]);
    tsh_tensor_release(id);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(sparse_gradient, of_an_embedding_is_the_dense_one, .timeout = 120) {
    for (int i = 0; i < 8; i++) {
        table_case c = {.shard = i & 1, .dense_too = i & 2, .twice = i & 4};
        cr_assert_str_empty(tshi_test_run_each(1, 3, embeds, &c));
    }
}

/* --- a gradient that several tables and the caller have ----------------------------------------------------------- */

/* y = A[ids] + B[ids]: both tables' rows have the gradient of y, which the caller gives, and are clipped together. */
static void shared(tshi_rank *r, void *arg) {
    const bool apart = *(const bool *)arg; /* a scaled y: the gradient comes from the tape */
    static const int64_t ids[] = {2, 0};
    static const double dy[] = {3, 4, 0, 0, 12, 0};
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    tsh_parameters *parameters = NULL;
    tshi_check_ok(r, tsh_mesh_create(r->world, "ranks=-1", &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &parameters));
    const tsh_tensor_config four_rows = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {4, 3}};
    const tsh_tensor_config list = {.dtype = TSH_INT64, .ndim = 1, .shape = {2}};
    tsh_tensor *t[2] = {NULL, NULL}, *id = NULL;
    tshi_check_ok(r, tsh_tensor_create(mesh, &list, &id));
    tshi_check_ok(r, tsh_tensor_write_whole(id, ids));
    for (int i = 0; i < 2; i++) {
        tshi_check_ok(r, tsh_tensor_create(mesh, &four_rows, &t[i]));
        tshi_check_ok(r, tsh_tensor_require_grad(t[i], true));
        tshi_check_ok(r, tsh_tensor_set_sparse_grad(t[i]));
        tshi_check_ok(r, tsh_parameters_add(parameters, i ? "b" : "a", t[i]));
    }
    tsh_tensor *y = tsh_add(tape, tsh_lookup(tape, t[0], id, -1), tsh_lookup(tape, t[1], id, -1));
    if (apart) y = tsh_scale(tape, y, 1);
    tsh_tensor *given =
        tshi_test_tensor(r, mesh, &(tsh_tensor_config){.dtype = TSH_FLOAT64, .ndim = 2, .shape = {2, 3}}, dy);
    tshi_check_ok(r, tsh_backward_with(tape, y, &(tsh_backward_config){.gradient = given}));
    double norm = 0;
    tshi_check_ok(r, tsh_clip_grad_norm(parameters, 1, &norm));
    tshi_check(r, fabs(norm - 13 * sqrt(2)) < 1e-12, "the norm is %g", norm);
    for (int i = 0; i < 2; i++) {
        const tsh_tensor *rows = tsh_tensor_sparse_grad(t[i], NULL, NULL);
        for (int k = 0; tshi_check(r, rows != NULL, "table %d has no gradient", i) && k < 6; k++)
            tshi_check(r, fabs(tshi_test_element(rows, k) - dy[k] / norm) < 1e-6, "table %d: element %d is %g, not %g",
                       i, k, tshi_test_element(rows, k), dy[k] / norm);
    }
    tshi_test_same(r, "the caller's gradient", given, dy, 0);
    for (int i = 0; i < 2; i++) tsh_tensor_release(t[i]);
    tsh_tensor_release(id);
    tsh_tensor_release(given);
    tsh_parameters_destroy(parameters);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(sparse_gradient, tables_that_share_a_gradient_are_clipped_once, .timeout = 60) {
    for (int i = 0; i < 2; i++) cr_assert_str_empty(tshi_test_run(1, shared, &(bool){i}));
}

/* --- wrong use ---------------------------------------------------------------------------------------------------- */

static void misuse(tshi_rank *r, void *arg) {
    settings s = {.lr = 1, .count = 6};
    state m = {0};
    (void)arg;
    set_up(r, &s, &m);
    int64_t wrong[BATCH] = {0, 1, 2, CLASSES, 4, 5, 6};
    tshi_check_ok(r, tsh_tensor_write_whole(m.target, wrong));
    tshi_check(r, !tsh_sample_classes(m.tape, tsh_linear_weight(m.layer), m.target, 6, NULL), "no class %d", CLASSES);
    tshi_check(r, strstr(tsh_tape_message(m.tape), "target 13 at index 3 is outside [0, 13)"), "%s",
               tsh_tape_message(m.tape));
    tsh_tape_reset(m.tape);
    write_batch(r, &m, 0);
    tsh_tensor *rows = tsh_sample_classes(m.tape, tsh_linear_weight(m.layer), m.target, 6, NULL);
    for (int64_t i = 0; rows && i < tsh_tensor_local_numel(rows); i++) ((int64_t *)tsh_tensor_data(rows))[i] = CLASSES;
    tshi_check(r, !tsh_take_rows(m.tape, tsh_linear_weight(m.layer), rows), "no row %d", CLASSES);
    tshi_check(r, strstr(tsh_tape_message(m.tape), "this rank's part is [0, "), "%s", tsh_tape_message(m.tape));
    tsh_tape_reset(m.tape);
    tear_down(&m);
}

Test(sparse_gradient, says_what_is_wrong, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run(1, misuse, NULL));
    cr_assert_str_empty(tshi_test_run(2, misuse, NULL));
}
