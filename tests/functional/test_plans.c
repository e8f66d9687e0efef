/* Layouts on meshes of two axes: every function takes every pair of layouts of its inputs, in any split order, with and
 * without recording, and has one rank's values and gradients; split tensors stay split, even where sizes are zero. */
#include "support/function_cases.h"
#include "support/tensors.h"
#include "tshard/layers.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST    128
#define RANKS   4
#define AXES    2
#define SAMPLES 256 /* combinations of a case that has more */
#define TOO_MUCH                                                                                                       \
    1.25 /* PARTIAL terms of the first rank of an axis hold so much less, those of the second so much more */

typedef struct kit {
    tsh_mesh *mesh;
    tsh_group *group[AXES];
    tsh_tape *tape;
    size_t bytes; /* in use at the beginning */
} kit;

static void make_kit(tshi_rank *r, kit *k) {
    tshi_check_ok(r, tsh_mesh_create(r->world, "a=2,b=2", &k->mesh));
    k->group[0] = tsh_mesh_group(k->mesh, "a");
    k->group[1] = tsh_mesh_group(k->mesh, "b");
    tshi_check_ok(r, tsh_tape_create(r->world, &k->tape));
    k->bytes = tsh_device_stats(tsh_world_device(r->world)).bytes_in_use;
}

static void free_kit(tshi_rank *r, kit *k) {
    size_t bytes = tsh_device_stats(tsh_world_device(r->world)).bytes_in_use;
    tshi_check(r, bytes == k->bytes, "%zu bytes in use, %zu at the beginning", bytes, k->bytes);
    tsh_tape_destroy(k->tape);
    tsh_mesh_destroy(k->mesh);
}

static int64_t numel_of(const function_input *in) {
    int64_t n = 1;
    for (int d = 0; d < in->ndim; d++) n *= in->shape[d];
    return n;
}

/* Along PARTIAL axes this rank holds a term that differs from those of its peers. */
static double share_of(const kit *k, const tsh_layout layout[AXES]) {
    double share = 1;
    for (int a = 0; a < AXES; a++) {
        if (layout[a].kind == TSH_KIND_PARTIAL) share *= tsh_group_rank(k->group[a]) ? TOO_MUCH : 1 - TOO_MUCH;
    }
    return share;
}

/* This rank's part of an input whose values are whole numbers and never zero, where relu has no gradient. */
static tsh_tensor *make_input(tshi_rank *r, const kit *k, const function_input *in, int number,
                              const tsh_layout layout[AXES]) {
    tsh_tensor_config config = {
        .dtype = in->vocabulary ? TSH_INT64 : TSH_FLOAT64, .ndim = in->ndim, .layout = {layout[0], layout[1]}};
    double share = share_of(k, layout), whole[MOST];
    tsh_tensor *t = NULL;
    for (int d = 0; d < in->ndim; d++) config.shape[d] = in->shape[d];
    if (!tshi_check_ok(r, tsh_tensor_create(k->mesh, &config, &t))) return NULL;
    for (int64_t i = 0; i < numel_of(in); i++) {
        double value = tshi_test_integer(number, i);
        whole[i] = in->vocabulary ? (double)((i * 5 + 1) % in->vocabulary) : share * (value == 0 ? 8 : value) / 8;
    }
    for (int64_t i = 0; i < tsh_tensor_local_numel(t); i++) {
        double value = whole[tshi_test_place(t, i)];
        if (in->vocabulary) {
            ((int64_t *)tsh_tensor_data(t))[i] = (int64_t)value;
        } else {
            ((double *)tsh_tensor_data(t))[i] = value;
        }
    }
    if (!in->vocabulary) tshi_check_ok(r, tsh_tensor_require_grad(t, true));
    return t;
}

/* REPLICATED along both axes. */
static tsh_tensor *whole_of(kit *k, tsh_tensor *t) {
    bool recording = tsh_tape_set_recording(k->tape, false);
    for (int a = AXES - 1; t && a >= 0; a--) t = tsh_redistribute_along(k->tape, t, k->group[a], TSH_REPLICATED);
    tsh_tape_set_recording(k->tape, recording);
    return t;
}

typedef struct answer {
    double y[MOST], grad[3][MOST];
    tsh_layout layout[AXES], plain_layout[AXES]; /* of y; with and without recording */
} answer;

static void keep_values(tshi_rank *r, kit *k, const char *what, tsh_tensor *t, double *to) {
    if (!tshi_check(r, t != NULL, "%s: no values: %s", what, tsh_tape_message(k->tape))) return;
    tsh_tensor *whole = whole_of(k, t);
    if (!tshi_check(r, whole != NULL, "%s: %s", what, tsh_tape_message(k->tape))) return;
    tshi_check_ok(r, tsh_tensor_read(whole, to, tsh_tensor_local_numel(whole)));
}

static void keep_layout(const kit *k, const tsh_tensor *y, tsh_layout *to) {
    for (int a = 0; y && a < AXES; a++) to[a] = tsh_tensor_layout(y, k->group[a]);
}

/* The sum of y times coefficients that differ. */
static tsh_tensor *objective_of(tshi_rank *r, kit *k, tsh_tensor *y) {
    function_input like = {0, tsh_tensor_ndim(y), {0}};
    for (int d = 0; d < like.ndim; d++) like.shape[d] = tsh_tensor_shape(y)[d];
    tsh_tensor *c = make_input(r, k, &like, 9, (tsh_layout[]){TSH_REPLICATED, TSH_REPLICATED});
    tsh_tensor *loss = tsh_sum(k->tape, tsh_mul(k->tape, y, c), TSH_ALL_DIMS);
    tsh_tensor_release(c);
    return loss;
}

static void run_case(tshi_rank *r, kit *k, const function_case *c, const tsh_layout layout[3][AXES], const char *what,
                     answer *out) {
    tsh_tensor *in[3] = {NULL, NULL, NULL};
    memset(out, 0, sizeof *out);
    for (int i = 0; i < c->inputs; i++) in[i] = make_input(r, k, &c->input[i], i, layout[i]);
    tsh_tape_set_recording(k->tape, false);
    tsh_world_seed(r->world, 7);
    keep_layout(k, c->build(k->tape, in), out->plain_layout);
    tsh_tape_set_recording(k->tape, true);
    tsh_world_seed(r->world, 7);
    tsh_tensor *y = c->build(k->tape, in);
    keep_layout(k, y, out->layout);
    keep_values(r, k, what, y, out->y);
    tsh_status status = y ? tsh_backward(k->tape, objective_of(r, k, y)) : tsh_tape_status(k->tape);
    tshi_check(r, status == TSH_OK, "%s: %s", what, tsh_tape_message(k->tape));
    for (int i = 0; i < c->inputs && status == TSH_OK; i++) {
        if (c->input[i].vocabulary) continue;
        keep_values(r, k, what, tsh_tensor_grad(in[i]), out->grad[i]);
    }
    for (int i = 0; i < c->inputs; i++) tsh_tensor_release(in[i]);
    tsh_tape_reset(k->tape);
}

/* --- every pair of layouts ---------------------------------------------------------------------------------------- */

static int layout_count(const function_input *in) {
    return in->ndim + (in->vocabulary ? 1 : 2);
}

static tsh_layout layout_number(const function_input *in, int n) {
    return n == 0 ? TSH_REPLICATED : n <= in->ndim ? TSH_SHARD(n - 1) : TSH_PARTIAL;
}

/* Each pair of layouts, and each dim split by both axes with the second one first. */
static int pair_count(const function_input *in) {
    return layout_count(in) * layout_count(in) + in->ndim;
}

static void pair_number(const function_input *in, int n, tsh_layout layout[AXES]) {
    int count = layout_count(in), turned = n - count * count;
    layout[0] = turned >= 0 ? TSH_SHARD_ORDER(turned, 1) : layout_number(in, n % count);
    layout[1] = turned >= 0 ? TSH_SHARD(turned) : layout_number(in, n / count);
}

static int combinations(const function_case *c) {
    int total = 1;
    for (int i = 0; i < c->inputs; i++) total *= pair_count(&c->input[i]);
    return total;
}

static void combination(const function_case *c, int n, tsh_layout layout[3][AXES], char *what, size_t size) {
    static const char kinds[] = "RSPL";
    int used = snprintf(what, size, "%s of", c->name);
    for (int i = 0; i < c->inputs; i++) {
        pair_number(&c->input[i], n % pair_count(&c->input[i]), layout[i]);
        n /= pair_count(&c->input[i]);
        for (int a = 0; a < AXES; a++) {
            used += snprintf(what + used, size - (size_t)used, "%s%c%d%s", a ? "," : " ", kinds[layout[i][a].kind],
                             layout[i][a].dim, layout[i][a].order ? "/1" : "");
        }
    }
}

static void compare(tshi_rank *r, const char *what, const char *part, const double *got, const double *wanted) {
    for (int i = 0; i < MOST; i++) {
        double error = got[i] > wanted[i] ? got[i] - wanted[i] : wanted[i] - got[i];
        if (!tshi_check(r, error < 1e-11, "%s: %s %d is %.17g, %.17g wanted", what, part, i, got[i], wanted[i])) return;
    }
}

static void every_pair(tshi_rank *r, void *arg) {
    kit k;
    (void)arg;
    make_kit(r, &k);
    for (int f = 0; f < function_case_count && !r->failed; f++) {
        const function_case *c = &function_cases[f];
        static answer wanted, got;
        const tsh_layout replicated[3][AXES] = {{{0}}};
        int total = combinations(c), step = total > 1000 ? total / SAMPLES | 1 : 1;
        run_case(r, &k, c, replicated, c->name, &wanted);
        for (int n = 0; n < total && !r->failed; n += step) {
            char what[160];
            tsh_layout layout[3][AXES];
            combination(c, n, layout, what, sizeof what);
            run_case(r, &k, c, layout, what, &got);
            compare(r, what, "value", got.y, wanted.y);
            for (int i = 0; i < c->inputs; i++) compare(r, what, "gradient", got.grad[i], wanted.grad[i]);
            tshi_check(r, memcmp(got.layout, got.plain_layout, sizeof got.layout) == 0,
                       "%s: the layout is another one without recording", what);
        }
    }
    free_kit(r, &k);
}

Test(plans, every_pair_of_layouts_on_two_axes, .timeout = 120) {
    tshi_test_options options = {.ranks = RANKS, .timeout = 110};
    cr_assert_str_empty(tshi_test_run_with(&options, every_pair, NULL, NULL, NULL));
}

/* --- what is split stays split ------------------------------------------------------------------------------------ */

static tsh_tensor *tensor(tshi_rank *r, const kit *k, int ndim, const int64_t *shape, tsh_layout a, tsh_layout b) {
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = ndim, .layout = {a, b}};
    tsh_tensor *t = NULL;
    memcpy(config.shape, shape, sizeof *shape * (size_t)ndim);
    if (tshi_check_ok(r, tsh_tensor_create(k->mesh, &config, &t))) tshi_check_ok(r, tsh_tensor_require_grad(t, true));
    return t;
}

/* y has these layouts, and its making has moved nothing. */
static void check_split(tshi_rank *r, kit *k, const char *what, const tsh_tensor *y, tsh_layout a, tsh_layout b) {
    char text[160];
    if (!tshi_check(r, y != NULL, "%s: %s", what, tsh_tape_message(k->tape))) return;
    bool right = tshi_layout_equal(y->layout[0], a) && tshi_layout_equal(y->layout[1], b);
    tshi_check(r, right, "%s: the result is %s", what, tsh_tensor_describe(y, text, sizeof text));
    for (int i = 0; i < AXES; i++) {
        tshi_test_calls(r, what, k->group[i], &(tsh_communication_stats){0});
    }
}

static void stays_split(tshi_rank *r, void *arg) {
    kit k;
    (void)arg;
    make_kit(r, &k);
    const tsh_layout none = TSH_REPLICATED;
    tsh_tensor *x = tensor(r, &k, 2, (int64_t[]){512, 16}, none, none);
    tsh_tensor *w = tensor(r, &k, 2, (int64_t[]){16, 16}, TSH_SHARD(0), none);
    check_split(r, &k, "affine of a large x and a weight split by row", tsh_affine(k.tape, x, w, NULL), TSH_SHARD(1),
                none);
    tsh_tensor *row = tensor(r, &k, 2, (int64_t[]){1, 16}, none, none);
    check_split(r, &k, "affine of a small x and a weight split by row", tsh_affine(k.tape, row, w, NULL), TSH_SHARD(1),
                none);
    tsh_tensor *few = tensor(r, &k, 2, (int64_t[]){4, 16}, none, TSH_SHARD(0));
    tsh_tensor *wide = tensor(r, &k, 2, (int64_t[]){16, 64}, none, none);
    check_split(r, &k, "matmul of a small batch and a large matrix", tsh_matmul(k.tape, few, wide), none, TSH_SHARD(0));
    tsh_tensor *term = tensor(r, &k, 2, (int64_t[]){4, 16}, TSH_PARTIAL, none);
    tsh_tensor *factor = tensor(r, &k, 2, (int64_t[]){4, 16}, none, none);
    check_split(r, &k, "a term times a factor", tsh_mul(k.tape, term, factor), TSH_PARTIAL, none);
    check_split(r, &k, "a factor times a term", tsh_mul(k.tape, factor, term), TSH_PARTIAL, none);
    check_split(r, &k, "a term over a divisor", tsh_div(k.tape, term, factor), TSH_PARTIAL, none);
    tsh_tensor *small = tensor(r, &k, 2, (int64_t[]){16, 3}, none, none);
    check_split(r, &k, "matmul of a term", tsh_matmul(k.tape, term, small), TSH_PARTIAL, none);
    tsh_tensor *uneven = tensor(r, &k, 3, (int64_t[]){5, 2, 3}, TSH_SHARD(0), TSH_SHARD(0));
    tsh_tensor *y = tsh_reshape(k.tape, uneven, 2, (int64_t[]){5, 6});
    check_split(r, &k, "a reshape behind an uneven dim of two axes", y, TSH_SHARD(0), TSH_SHARD(0));
    tsh_tensor *turned = tensor(r, &k, 2, (int64_t[]){6, 3}, TSH_SHARD_ORDER(0, 1), TSH_SHARD(0));
    check_split(r, &k, "the sum of tensors in one split order", tsh_add(k.tape, turned, turned), TSH_SHARD_ORDER(0, 1),
                TSH_SHARD(0));
    tsh_tape_reset(k.tape);
    tsh_tensor *all[] = {x, w, row, turned, few, wide, term, factor, small, uneven};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) tsh_tensor_release(all[i]);
    free_kit(r, &k);
}

Test(plans, what_is_split_is_used_as_it_is, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(RANKS, stays_split, NULL));
}

/* Each input is split in units of its own: the largest, which comes last, stays where it is. */
static void many_ways(tshi_rank *r, void *arg) {
    static const int64_t units[] = {3, 5, 7, 9, 15, 21, 27, 35, 45, 63};
    enum { WAYS = sizeof units / sizeof *units, COLS = 945 };
    kit k;
    tsh_tensor *in[WAYS];
    char text[160];
    (void)arg;
    make_kit(r, &k);
    for (int i = 0; i < WAYS; i++) {
        tsh_layout split = TSH_SHARD_UNITS(1, units[i], 0);
        in[i] = tensor(r, &k, 2, (int64_t[]){i == WAYS - 1 ? 100 : 1, COLS}, split, TSH_REPLICATED);
    }
    tsh_tensor *y = tsh_concat(k.tape, in, WAYS, 0);
    if (tshi_check(r, y != NULL, "%s", tsh_tape_message(k.tape)))
        tshi_check(r, tshi_layout_equal(y->layout[0], in[WAYS - 1]->layout[0]), "the result is %s",
                   tsh_tensor_describe(y, text, sizeof text));
    tsh_tape_reset(k.tape);
    for (int i = 0; i < WAYS; i++) tsh_tensor_release(in[i]);
    free_kit(r, &k);
}

Test(plans, every_way_of_splitting_is_considered, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run(RANKS, many_ways, NULL));
}

/* --- empty tensors ------------------------------------------------------------------------------------------------ */

/* The layouts of a function's result, the first dim of its first input being `rows` long. */
static void layouts_of(tshi_rank *r, kit *k, const function_case *c, const tsh_layout layout[3][AXES], int64_t rows,
                       tsh_layout out[AXES]) {
    tsh_tensor *in[3] = {NULL, NULL, NULL};
    for (int i = 0; i < c->inputs; i++) {
        function_input spec = c->input[i];
        bool first_dim = i == 0 || (spec.ndim == c->input[0].ndim && spec.shape[0] == c->input[0].shape[0]);
        if (first_dim) spec.shape[0] = rows;
        in[i] = make_input(r, k, &spec, i, layout[i]);
    }
    tsh_tensor *y = c->build(k->tape, in);
    tshi_check(r, y != NULL, "%s", tsh_tape_message(k->tape));
    keep_layout(k, y, out);
    for (int i = 0; i < c->inputs; i++) tsh_tensor_release(in[i]);
    tsh_tape_reset(k->tape);
}

static void empty_as_full(tshi_rank *r, void *arg) {
    static const char *const names[] = {"matmul", "affine",       "add",   "mul",       "bias",
                                        "gelu",   "softmax_last", "sum_0", "layer_norm"};
    kit k;
    (void)arg;
    make_kit(r, &k);
    for (int f = 0; f < function_case_count && !r->failed; f++) {
        const function_case *c = &function_cases[f];
        bool listed = false;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) listed = listed || !strcmp(names[i], c->name);
        int total = listed ? combinations(c) : 0, step = total > 100 ? total / 40 | 1 : 1;
        for (int n = 0; n < total && !r->failed; n += step) {
            char what[160];
            tsh_layout layout[3][AXES], full[AXES], empty[AXES];
            combination(c, n, layout, what, sizeof what);
            layouts_of(r, &k, c, layout, 1, full);
            layouts_of(r, &k, c, layout, 0, empty);
            tshi_check(r, memcmp(full, empty, sizeof full) == 0, "%s: an empty one is laid out otherwise", what);
        }
    }
    free_kit(r, &k);
}

Test(plans, an_empty_tensor_is_laid_out_as_any_other, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(RANKS, empty_as_full, NULL));
}

static void empty_column(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_linear_config config = {.in_features = 3,
                                .out_features = 5,
                                .shard = TSH_COLUMN,
                                .bias = true,
                                .dtype = TSH_FLOAT64,
                                .activation = TSH_ACTIVATION_GELU};
    tsh_linear *layer = NULL;
    tsh_linear_create(group, &config, &layer);
    tsh_tape *tape = NULL;
    tsh_tensor *x = NULL;
    tsh_tensor_config empty = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {0, 3}};
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &empty, &x));
    tshi_check_ok(r, tsh_tensor_require_grad(x, true));
    tsh_tensor *y = tsh_linear_forward(tape, layer, x);
    if (tshi_check(r, y != NULL, "%s", tsh_tape_message(tape))) {
        tshi_check(r, tshi_layout_equal(y->layout[0], TSH_SHARD(1)), "the activation gathered its argument");
        tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, y, TSH_ALL_DIMS)));
    }
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
    tsh_linear_destroy(layer);
}

Test(plans, a_column_layer_with_an_activation_takes_an_empty_batch, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, empty_column, NULL));
}

/* --- numbers by global index -------------------------------------------------------------------------------------- */

static void dropped(tshi_rank *r, void *arg) {
    static const int64_t shapes[][3] = {{8, 1, 1}, {4, 3, 5}};
    kit k;
    (void)arg;
    make_kit(r, &k);
    for (int s = 0; s < 2; s++) {
        double whole[64];
        function_input like = {0, 3, {shapes[s][0], shapes[s][1], shapes[s][2]}};
        tsh_tensor *x = make_input(r, &k, &like, 1, (tsh_layout[]){TSH_REPLICATED, TSH_REPLICATED});
        tsh_tensor *split = make_input(r, &k, &like, 1, (tsh_layout[]){TSH_SHARD(2), TSH_SHARD(1)});
        tsh_world_seed(r->world, 3);
        tshi_check_ok(r, tsh_tensor_read(tsh_dropout(k.tape, x, 0.5), whole, numel_of(&like)));
        tsh_world_seed(r->world, 3);
        tsh_tensor *y = tsh_dropout(k.tape, split, 0.5);
        if (tshi_check(r, y != NULL, "%s", tsh_tape_message(k.tape))) tshi_test_same(r, "dropout", y, whole, 0);
        tsh_tensor_release(x);
        tsh_tensor_release(split);
        tsh_tape_reset(k.tape);
    }
    free_kit(r, &k);
}

Test(plans, dropout_draws_the_same_numbers_where_two_inner_dims_are_split, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(RANKS, dropped, NULL));
}

/* --- LOCAL tensors of several sizes ------------------------------------------------------------------------------- */

/* By its bytes x would move along a where it has one row, and b where x has many. */
static void uneven(tshi_rank *r, void *arg) {
    kit k;
    (void)arg;
    make_kit(r, &k);
    int64_t rows = tsh_group_rank(k.group[1]) ? 50 : 1;
    tsh_tensor *x = NULL, *b = NULL;
    tsh_tensor_config batch = {
        .dtype = TSH_FLOAT64, .ndim = 2, .shape = {rows, 2}, .layout = {TSH_SHARD(0), TSH_LOCAL}};
    tsh_tensor_config vector = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {2}, .layout = {TSH_SHARD(0)}};
    tshi_check_ok(r, tsh_tensor_create(k.mesh, &batch, &x));
    tshi_check_ok(r, tsh_tensor_create(k.mesh, &vector, &b));
    tshi_check_ok(r, tsh_tensor_require_grad(b, true));
    tsh_tensor *y = tsh_bias(k.tape, x, b);
    if (tshi_check(r, y != NULL, "%s", tsh_tape_message(k.tape))) {
        tshi_check(r, tshi_layout_equal(y->layout[0], TSH_SHARD(0)), "x was moved");
        tshi_check_ok(r, tsh_backward(k.tape, tsh_sum(k.tape, y, TSH_ALL_DIMS)));
        tshi_test_same_grad(r, "b", b, (double[]){51, 51}, 0);
    }
    tsh_tape_reset(k.tape);
    tsh_tensor_release(x);
    tsh_tensor_release(b);
    free_kit(r, &k);
}

Test(plans, ranks_with_local_tensors_of_several_sizes_choose_the_same_layouts, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(RANKS, uneven, NULL));
}

/* One rank repeats y along the dim in which x is split, the other does not and gathers x. */
static void repeats_elsewhere(tshi_rank *r, void *arg) {
    const int64_t sizes[][3] = {{4, 1, 4}, {2, 2, 1}};
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    (void)arg;
    setenv("TSHARD_CHECK", "1", 1);
    if (!tshi_check_ok(r, tsh_world_init(&(tsh_world_config){.heap_bytes = (size_t)16 << 20}, &r->world))) return;
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=2", &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < 2; i++) {
        tsh_tensor *x = NULL, *y = NULL;
        tsh_tensor_config split = {.ndim = 1, .shape = {sizes[i][0]}, .layout = {TSH_SHARD(0)}};
        tsh_tensor_config local = {.ndim = 1, .shape = {sizes[i][1 + r->rank]}, .layout = {TSH_LOCAL}};
        tshi_check_ok(r, tsh_tensor_create(mesh, &split, &x));
        tshi_check_ok(r, tsh_tensor_create(mesh, &local, &y));
        tshi_check(r, !tsh_add(tape, x, y), "sizes %d: no error", i);
        tshi_check_status(r, tsh_tape_status(tape), TSH_ERR_MISMATCH, "add: ");
        tshi_check(r, strstr(tsh_tape_message(tape), "the same dims of LOCAL inputs repeat on all ranks: along data"),
                   "%s", tsh_tape_message(tape));
        tsh_tensor_release(x);
        tsh_tensor_release(y);
        tsh_tape_reset(tape);
        tshi_check_ok(r, tsh_world_recover(r->world));
    }
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
    tsh_world_destroy(r->world);
    r->world = NULL;
}

Test(plans, a_local_input_repeated_on_some_ranks_only_is_an_error_when_checked, .timeout = 60) {
    const tshi_test_options options = {.ranks = 2, .bare = true, .world_timeout = "30", .timeout = 40};
    cr_assert_str_empty(tshi_test_run_with(&options, repeats_elsewhere, NULL, NULL, NULL));
}
