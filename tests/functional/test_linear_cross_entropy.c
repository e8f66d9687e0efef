/* The loss without logits against PyTorch's numbers, in every layout, chunk and way of keeping gradients; against the
 * plain loss in 16 bits; its collectives and its memory. */
#include "support/layouts.h"
#include "support/tensors.h"
#include "support/vectors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(linear_cross_entropy, .timeout = 600);

#define VECTORS TSHARD_TEST_DATA "/vectors/linear_cross_entropy_"

/* Along the axes data and model. */
typedef struct layouts {
    const char *name;
    tsh_layout x[2], weight[2], target[2], classes[2];
} layouts;

static const layouts all_layouts[] = {
    {"replicated", {R, R}, {R, R}, {R, R}, {R, R}},
    {"vocabulary", {R, R}, {R, S0}, {R, R}, {R, R}},
    {"vocabulary, class weights split", {R, R}, {R, S0}, {R, R}, {R, S0}},
    {"vocabulary, tokens split", {R, S0}, {R, S0}, {R, R}, {R, S0}},
    {"batch", {S0, R}, {R, R}, {S0, R}, {R, R}},
    {"batch and vocabulary", {S0, R}, {R, S0}, {S0, R}, {R, S0}},
    {"vocabulary over both", {R, R}, {S0, S0}, {R, R}, {S0, S0}},
};

/* Reductions as PyTorch numbers them. */
static const tsh_reduction reductions[] = {TSH_REDUCTION_NONE, TSH_REDUCTION_MEAN, TSH_REDUCTION_SUM};

typedef struct problem {
    tshi_vectors vectors;
    int64_t rows, features, classes;
    const double *x, *w, *target, *weight, *loss, *dl, *dx, *dw;
    tsh_linear_cross_entropy_config config;
} problem;

static const double *values_of(const problem *p, const char *name) {
    const tshi_vector *v = tshi_vectors_find(&p->vectors, name);
    return v ? v->values : NULL;
}

static bool read_problem(tshi_rank *r, const char *name, problem *p) {
    char path[512], error[256];
    *p = (problem){0};
    snprintf(path, sizeof path, VECTORS "%s.txt", name);
    if (!tshi_check(r, tshi_vectors_read(path, &p->vectors, error, sizeof error), "%s", error)) return false;
    const tshi_vector *w = tshi_vectors_find(&p->vectors, "W");
    p->rows = tshi_vectors_find(&p->vectors, "x")->shape[0];
    p->classes = w->shape[0];
    p->features = w->shape[1];
    p->x = values_of(p, "x");
    p->w = w->values;
    p->target = values_of(p, "target");
    p->weight = values_of(p, "class_weight");
    p->loss = values_of(p, "loss");
    p->dl = values_of(p, "dl");
    p->dx = values_of(p, "dx");
    p->dw = values_of(p, "dW");
    p->config.loss.has_ignore_index = true;
    p->config.loss.ignore_index = (int64_t)*values_of(p, "ignore_index");
    p->config.loss.label_smoothing = *values_of(p, "label_smoothing");
    p->config.loss.reduction = reductions[(int)*values_of(p, "reduction")];
    p->config.z_loss = *values_of(p, "z_loss");
    return true;
}

/* The tensors of a problem in some layouts. */
typedef struct given {
    tsh_tensor *x, *w, *target, *weight, *dl;
} given;

static void make_given(tshi_rank *r, const tsh_mesh *mesh, const problem *p, const layouts *l, tsh_dtype dtype,
                       given *g) {
    bool rows = p->config.loss.reduction == TSH_REDUCTION_NONE;
    *g = (given){0};
    g->x = tshi_test_leaf(r, mesh, &(tsh_tensor_config){dtype, 2, {p->rows, p->features}, {l->x[0], l->x[1]}}, p->x);
    g->w = tshi_test_leaf(
        r, mesh, &(tsh_tensor_config){dtype, 2, {p->classes, p->features}, {l->weight[0], l->weight[1]}}, p->w);
    g->target = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_INT64, 1, {p->rows}, {l->target[0], l->target[1]}},
                                 p->target);
    if (p->weight)
        g->weight = tshi_test_tensor(
            r, mesh, &(tsh_tensor_config){dtype, 1, {p->classes}, {l->classes[0], l->classes[1]}}, p->weight);
    tsh_tensor_config loss = {tshi_dtype_sum(dtype), rows ? 1 : 0, {rows ? p->rows : 0}, {l->target[0], l->target[1]}};
    if (!rows) memset(loss.layout, 0, sizeof loss.layout);
    g->dl = tshi_test_tensor(r, mesh, &loss, p->dl);
}

static void release_given(given *g) {
    tsh_tensor_release(g->x);
    tsh_tensor_release(g->w);
    tsh_tensor_release(g->target);
    tsh_tensor_release(g->weight);
    tsh_tensor_release(g->dl);
}

static bool is_split(tsh_layout l) {
    return l.kind == TSH_KIND_SHARD;
}

/* Forward: five numbers a row gathered over each axis that splits the classes, four summed over the batch's. */
static void expect_forward(const problem *p, const layouts *l, const tsh_mesh *mesh, tsh_communication_stats out[2]) {
    tsh_group *axes[] = {tsh_mesh_group(mesh, "data"), tsh_mesh_group(mesh, "model")};
    int64_t rows = p->rows;
    memset(out, 0, 2 * sizeof *out);
    if (is_split(l->x[0])) tsh_group_part(axes[0], p->rows, tsh_group_rank(axes[0]), NULL, &rows);
    for (int a = 0; a < 2; a++) {
        bool batch = is_split(l->x[a]) && !is_split(l->weight[a]);
        if (is_split(l->weight[a]))
            tshi_test_expect(&out[a], axes[a], TSH_COLLECTIVE_ALL_GATHER, (5 * rows + 1) * tsh_group_size(axes[a]), 8);
        if (is_split(l->weight[a]) && is_split(l->x[a]))
            tshi_test_expect(&out[a], axes[a], TSH_COLLECTIVE_ALL_GATHER, rows * p->features, 8);
        if (batch && p->config.loss.reduction != TSH_REDUCTION_NONE)
            tshi_test_expect(&out[a], axes[a], TSH_COLLECTIVE_ALL_REDUCE, 4, 8);
    }
}

static void check_counts(tshi_rank *r, const char *what, const tsh_mesh *mesh,
                         const tsh_communication_stats wanted[2]) {
    tsh_group *axes[] = {tsh_mesh_group(mesh, "data"), tsh_mesh_group(mesh, "model")};
    for (int a = 0; a < 2; a++) {
        tsh_communication_stats got = tsh_group_stats(axes[a]);
        for (int c = 0; c < TSH_COLLECTIVE_COUNT && !r->failed; c++)
            tshi_check(r, got.calls[c] == wanted[a].calls[c], "%s: %llu calls of collective %d along axis %d", what,
                       (unsigned long long)got.calls[c], c, a);
        tsh_group_reset_stats(axes[a]);
    }
}

static void reset_counts(const tsh_mesh *mesh) {
    tsh_group_reset_stats(tsh_mesh_group(mesh, "data"));
    tsh_group_reset_stats(tsh_mesh_group(mesh, "model"));
}

static void check_way(tshi_rank *r, tsh_tape *tape, const tsh_mesh *mesh, const char *name, const problem *p,
                      const layouts *l, int64_t chunk, tsh_linear_loss_memory memory) {
    char what[200];
    given g;
    tsh_communication_stats wanted[2];
    snprintf(what, sizeof what, "%s, %s, chunk %lld, memory %d", name, l->name, (long long)chunk, (int)memory);
    make_given(r, mesh, p, l, TSH_FLOAT64, &g);
    tsh_linear_cross_entropy_config config = p->config;
    config.loss.weight = g.weight;
    config.chunk = chunk;
    config.memory = memory;
    reset_counts(mesh);
    tsh_tensor *loss = tsh_linear_cross_entropy(tape, g.x, g.w, g.target, &config);
    if (!tshi_check(r, loss, "%s: %s", what, tsh_tape_message(tape))) return;
    tshi_test_same(r, what, loss, p->loss, 1e-12);
    expect_forward(p, l, mesh, wanted);
    if (!r->world->deterministic) check_counts(r, what, mesh, wanted);
    tshi_check(r, tsh_backward_with(tape, loss, &(tsh_backward_config){.gradient = g.dl}) == TSH_OK, "%s: %s", what,
               tsh_tape_message(tape));
    tshi_test_same_grad(r, what, g.x, p->dx, 1e-12);
    tshi_test_same_grad(r, what, g.w, p->dw, 1e-12);
    tshi_check_ok(r, tsh_tape_reset(tape));
    release_given(&g);
}

static const char *const names[] = {
    "mean_ls0_z0_u",       "mean_ls0_z0_w",       "mean_ls0_z1_u",     "mean_ls0_z1_w",  "mean_ls10_z0_u",
    "mean_ls10_z0_w",      "mean_ls10_z1_u",      "mean_ls10_z1_w",    "none_ls0_z0_u",  "none_ls0_z0_w",
    "none_ls0_z1_u",       "none_ls0_z1_w",       "none_ls10_z0_u",    "none_ls10_z0_w", "none_ls10_z1_u",
    "none_ls10_z1_w",      "sum_ls0_z0_u",        "sum_ls0_z0_w",      "sum_ls0_z1_u",   "sum_ls0_z1_w",
    "sum_ls10_z0_u",       "sum_ls10_z0_w",       "sum_ls10_z1_u",     "sum_ls10_z1_w",  "wide_mean_ls0_z0_u",
    "wide_mean_ls10_z1_w", "wide_none_ls10_z1_w", "wide_sum_ls10_z1_w"};

static void check_all(tshi_rank *r, void *arg) {
    static const int64_t chunks[] = {0, 1, 3, 100};
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    tshi_check_ok(r, tsh_mesh_create(r->world, arg, &mesh));
    if (r->failed || !tshi_check_ok(r, tsh_tape_create(r->world, &tape))) return;
    for (size_t n = 0; n < sizeof names / sizeof *names && !r->failed; n++) {
        problem p;
        if (!read_problem(r, names[n], &p)) return;
        for (size_t i = 0; i < sizeof all_layouts / sizeof *all_layouts && !r->failed; i++) {
            for (int c = 0; c < 4 && !r->failed; c++)
                check_way(r, tape, mesh, names[n], &p, &all_layouts[i], chunks[c],
                          (tsh_linear_loss_memory)(((int)i + c) % 3));
        }
        tshi_vectors_free(&p.vectors);
    }
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

/* Uneven shards and ranks without classes, rows or both among them: others fall back to the logits there. */
Test(linear_cross_entropy, uneven_shards_are_no_exception_in_any_reduction_chunk_or_layout) {
    cr_assert_str_empty(tshi_test_run_meshes(check_all));
}

/* --- chunks ------------------------------------------------------------------------------------------------------- */

static void same_bits(tshi_rank *r, void *arg) {
    enum { ROWS = 70, FEATURES = 5, CLASSES = 19 };
    static const int64_t chunks[] = {0, 1, 7, 64, 1000};
    double x[ROWS * FEATURES], w[CLASSES * FEATURES], target[ROWS], first[1 + ROWS * FEATURES + CLASSES * FEATURES];
    problem p = {.rows = ROWS, .features = FEATURES, .classes = CLASSES, .x = x, .w = w, .target = target};
    const double one = 1;
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    p.dl = &one;
    for (int i = 0; i < ROWS * FEATURES; i++) x[i] = sin(i);
    for (int i = 0; i < CLASSES * FEATURES; i++) w[i] = cos(3 * i);
    for (int i = 0; i < ROWS; i++) target[i] = i * 7 % CLASSES;
    tshi_check_ok(r, tsh_mesh_create(r->world, arg, &mesh));
    if (r->failed || !tshi_check_ok(r, tsh_tape_create(r->world, &tape))) return;
    for (int c = 0; c < 15 && !r->failed; c++) {
        double got[sizeof first / sizeof *first];
        given g;
        make_given(r, mesh, &p, &all_layouts[5], TSH_FLOAT64, &g);
        const tsh_linear_cross_entropy_config config = {.chunk = chunks[c % 5],
                                                        .memory = (tsh_linear_loss_memory)(c / 5)};
        tsh_tensor *loss = tsh_linear_cross_entropy(tape, g.x, g.w, g.target, &config);
        if (!tshi_check(r, loss && tsh_backward(tape, loss) == TSH_OK, "%s", tsh_tape_message(tape))) return;
        got[0] = tsh_tensor_item(loss);
        tshi_check_ok(r, tsh_tensor_read_whole(tsh_tensor_grad(g.x), got + 1));
        tshi_check_ok(r, tsh_tensor_read_whole(tsh_tensor_grad(g.w), got + 1 + ROWS * FEATURES));
        if (c == 0) memcpy(first, got, sizeof first);
        tshi_check(r, !memcmp(first, got, sizeof first), "chunks of %lld rows, memory %d: other bits",
                   (long long)chunks[c % 5], c / 5);
        tshi_check_ok(r, tsh_tape_reset(tape));
        release_given(&g);
    }
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(linear_cross_entropy, chunks_change_no_bit_in_a_deterministic_world) {
    setenv("TSHARD_DETERMINISTIC", "1", 1);
    cr_assert_str_empty(tshi_test_run_meshes(same_bits));
    unsetenv("TSHARD_DETERMINISTIC");
}

/* --- against the plain loss --------------------------------------------------------------------------------------- */

enum { T = 48, D = 4, V = 31 };

/* A small problem, and a mesh and a tape for it. */
typedef struct small {
    double x[T * D], w[V * D], target[T], dl;
    problem p;
    tsh_mesh *mesh;
    tsh_tape *tape;
} small;

static bool open_small(tshi_rank *r, const char *axes, small *s) {
    *s = (small){.dl = 1};
    for (int i = 0; i < T * D; i++) s->x[i] = tshi_test_integer(1, i) / 4;
    for (int i = 0; i < V * D; i++) s->w[i] = tshi_test_integer(2, i) / 8;
    for (int i = 0; i < T; i++) s->target[i] = i % 5 == 4 ? -100 : i * 11 % V;
    s->p = (problem){.rows = T, .features = D, .classes = V, .x = s->x, .w = s->w, .target = s->target, .dl = &s->dl};
    return tshi_check_ok(r, tsh_mesh_create(r->world, axes, &s->mesh)) &&
           tshi_check_ok(r, tsh_tape_create(r->world, &s->tape));
}

static void close_small(small *s) {
    tsh_tape_destroy(s->tape);
    tsh_mesh_destroy(s->mesh);
}

/* Every gradient counts, however small: none is skipped. */
static void like_plain(tshi_rank *r, void *arg) {
    static const tsh_dtype dtypes[] = {TSH_FLOAT64, TSH_FLOAT32, TSH_BFLOAT16, TSH_FLOAT16};
    static const double tolerance[] = {1e-12, 2e-5, 4e-2, 5e-3};
    double dx[T * D], dw[V * D];
    small s;
    if (!open_small(r, arg, &s)) return;
    for (int i = 0; i < 4 * 7 * 2 && !r->failed; i++) {
        given plain, g;
        const layouts *l = &all_layouts[i / 4 % 7];
        make_given(r, s.mesh, &s.p, &all_layouts[0], TSH_FLOAT64, &plain);
        make_given(r, s.mesh, &s.p, l, dtypes[i % 4], &g);
        tsh_tensor *logits = tsh_affine(s.tape, plain.x, plain.w, NULL);
        tsh_tensor *loss = tsh_cross_entropy(s.tape, logits, plain.target, NULL);
        const tsh_linear_cross_entropy_config config = {.chunk = i / 28 ? 5 : 0};
        tsh_tensor *other = tsh_linear_cross_entropy(s.tape, g.x, g.w, g.target, &config);
        if (!tshi_check(r, loss && other, "%s: %s", l->name, tsh_tape_message(s.tape))) return;
        tshi_check(r, fabs(tsh_tensor_item(loss) - tsh_tensor_item(other)) < 5 * tolerance[i % 4], "%s: %g, %g wanted",
                   l->name, tsh_tensor_item(other), tsh_tensor_item(loss));
        tshi_check(r, tsh_backward(s.tape, loss) == TSH_OK && tsh_backward(s.tape, other) == TSH_OK, "%s",
                   tsh_tape_message(s.tape));
        tshi_check_ok(r, tsh_tensor_read_whole(tsh_tensor_grad(plain.x), dx));
        tshi_check_ok(r, tsh_tensor_read_whole(tsh_tensor_grad(plain.w), dw));
        tshi_test_same_grad(r, l->name, g.x, dx, tolerance[i % 4]);
        tshi_test_same_grad(r, l->name, g.w, dw, tolerance[i % 4]);
        tshi_check_ok(r, tsh_tape_reset(s.tape));
        release_given(&plain);
        release_given(&g);
    }
    close_small(&s);
}

Test(linear_cross_entropy, no_small_gradient_is_skipped_in_any_dtype) {
    cr_assert_str_empty(tshi_test_run_meshes(like_plain));
}

/* A tied table gets both gradients; frozen inputs get none; a segment runs the loss again; two backwards add up. */
static void in_company(tshi_rank *r, void *arg) {
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    int64_t ids[T], wanted[T];
    tsh_tensor *i64 = NULL, *target = NULL;
    tsh_embedding *table = NULL;
    double plain[V * D], got[V * D];
    for (int i = 0; i < T; i++) {
        ids[i] = i * 5 % V;
        wanted[i] = i * 3 % V;
    }
    const tsh_tensor_config numbers = {.dtype = TSH_INT64, .ndim = 1, .shape = {T}, .layout = {TSH_SHARD(0)}};
    tshi_check_ok(r, tsh_mesh_create(r->world, arg, &mesh));
    if (r->failed || !tshi_check_ok(r, tsh_tape_create(r->world, &tape))) return;
    tshi_check_ok(r, tsh_tensor_create(mesh, &numbers, &i64));
    tshi_check_ok(r, tsh_tensor_create(mesh, &numbers, &target));
    tshi_check_ok(r, tsh_tensor_write_whole(i64, ids));
    tshi_check_ok(r, tsh_tensor_write_whole(target, wanted));
    const tsh_embedding_config config = {
        .num_embeddings = V, .embedding_dim = D, .shard = TSH_ROW, .dtype = TSH_FLOAT64};
    if (!tshi_check_ok(r, tsh_embedding_create(tsh_mesh_group(mesh, "model"), &config, &table))) return;
    tsh_tensor *w = tsh_embedding_weight(table);
    for (int way = 0; way < 6 && !r->failed; way++) {
        const tsh_linear_cross_entropy_config how = {
            .memory = way % 2 ? TSH_LINEAR_LOSS_KEEP : TSH_LINEAR_LOSS_RECOMPUTE, .chunk = 7};
        tsh_mark start = tsh_tape_mark(tape);
        tsh_tensor *x = tsh_embedding_forward(tape, table, i64);
        tsh_tensor *loss = way < 1 ? tsh_cross_entropy(tape, tsh_embedding_project(tape, table, x), target, NULL)
                                   : tsh_linear_cross_entropy(tape, x, w, target, &how);
        if (way == 3) loss = tsh_tape_recompute_since(tape, start, loss);
        tsh_backward_config twice = {.retain_graph = true};
        if (way >= 4) tshi_check_ok(r, tsh_backward_with(tape, loss, &twice));
        tshi_check(r, tsh_backward(tape, loss) == TSH_OK, "way %d: %s", way, tsh_tape_message(tape));
        tshi_check_ok(r, tsh_tensor_read_whole(tsh_tensor_grad(w), got));
        if (way == 0) memcpy(plain, got, sizeof plain);
        for (int i = 0; i < V * D && !r->failed; i++) {
            double all = way >= 4 ? 2 * plain[i] : plain[i];
            tshi_check(r, fabs(got[i] - all) < 1e-12, "way %d: element %d is %g, %g wanted", way, i, got[i], all);
        }
        tsh_tensor_zero_grad(w);
        tshi_check_ok(r, tsh_tape_reset(tape));
    }
    tsh_embedding_destroy(table);
    tsh_tensor_release(i64);
    tsh_tensor_release(target);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(linear_cross_entropy, tied_tables_segments_and_second_backwards) {
    cr_assert_str_empty(tshi_test_run_meshes(in_company));
}

static void frozen(tshi_rank *r, void *arg) {
    small s;
    if (!open_small(r, arg, &s)) return;
    for (int i = 0; i < 4 && !r->failed; i++) {
        given g;
        make_given(r, s.mesh, &s.p, &all_layouts[5], TSH_FLOAT64, &g);
        tsh_tensor *still = i % 2 ? g.x : g.w, *moves = i % 2 ? g.w : g.x;
        tshi_check_ok(r, tsh_tensor_require_grad(still, false));
        const tsh_linear_cross_entropy_config config = {.memory = i / 2 ? TSH_LINEAR_LOSS_KEEP : 0};
        tsh_tensor *loss = tsh_linear_cross_entropy(s.tape, g.x, g.w, g.target, &config);
        tshi_check(r, tsh_backward(s.tape, loss) == TSH_OK, "%s", tsh_tape_message(s.tape));
        tshi_check(r, !tsh_tensor_grad(still) && tsh_tensor_grad(moves), "case %d: the wrong gradients", i);
        tshi_check_ok(r, tsh_tape_reset(s.tape));
        release_given(&g);
    }
    close_small(&s);
}

Test(linear_cross_entropy, what_is_frozen_gets_no_gradient) {
    cr_assert_str_empty(tshi_test_run_meshes(frozen));
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static size_t peak_of(tshi_rank *r, tsh_tape *tape, const tsh_mesh *mesh, int way) {
    enum { ROWS = 1024, WIDTH = 32, WORDS = 5003 };
    tsh_device *device = tsh_world_device(r->world);
    tsh_tensor *x = NULL, *w = NULL, *target = NULL;
    tsh_tensor_config config = {.ndim = 2, .shape = {ROWS, WIDTH}};
    tshi_check_ok(r, tsh_tensor_create_uniform(mesh, &config, -1, 1, &x));
    config.shape[0] = WORDS;
    config.layout[1] = TSH_SHARD(0);
    tshi_check_ok(r, tsh_tensor_create_uniform(mesh, &config, -1, 1, &w));
    config = (tsh_tensor_config){.dtype = TSH_INT64, .ndim = 1, .shape = {ROWS}};
    tshi_check_ok(r, tsh_tensor_create_full(mesh, &config, 3, &target));
    tshi_check_ok(r, tsh_tensor_require_grad(x, true));
    tshi_check_ok(r, tsh_tensor_require_grad(w, true));
    tsh_device_reset_peak(device);
    size_t before = tsh_device_stats(device).bytes_in_use;
    const tsh_linear_cross_entropy_config how = {.memory = (tsh_linear_loss_memory)way};
    tsh_tensor *loss = way < 0 ? tsh_cross_entropy(tape, tsh_affine(tape, x, w, NULL), target, NULL)
                               : tsh_linear_cross_entropy(tape, x, w, target, &how);
    tshi_check(r, tsh_backward(tape, loss) == TSH_OK, "%s", tsh_tape_message(tape));
    tshi_check_ok(r, tsh_tape_reset(tape));
    size_t peak = tsh_device_stats(device).bytes_peak - before;
    tsh_tensor_release(x);
    tsh_tensor_release(w);
    tsh_tensor_release(target);
    return peak;
}

static void compare_memory(tshi_rank *r, void *arg) {
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=1,model=-1", &mesh));
    if (r->failed || !tshi_check_ok(r, tsh_tape_create(r->world, &tape))) return;
    size_t plain = peak_of(r, tape, mesh, -1);
    for (int way = 0; way < 3; way++) {
        size_t peak = peak_of(r, tape, mesh, way);
        tshi_check(r, peak < plain / 4, "memory %d: %zu bytes of %zu with logits", way, peak, plain);
    }
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(linear_cross_entropy, takes_a_quarter_of_the_logits_memory_or_less) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, compare_memory, NULL));
}
