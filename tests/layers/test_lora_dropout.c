/* Dropout of the input of an adapter, in every sharding: the masks are those of tsh_dropout of the whole x. */
#include "linear_variants.h"

#include <criterion/criterion.h>

TestSuite(lora_dropout, .timeout = 120);

/* Of the second, ranks are empty at 3 and 4. */
typedef struct sizes {
    int64_t n, in, out, rank;
} sizes;

static const sizes all_sizes[] = {{5, 7, 9, 2}, {1, 2, 2, 3}};

#define MOST 81

/* The adapter's scale: whole numbers stay exact, also doubled by the dropout. */
static const double scale = 2;

typedef struct numbers {
    double x[MOST], w[MOST], bias[MOST], a[MOST], b[MOST], dy[MOST];
} numbers;

static void find_numbers(sizes s, numbers *t) {
    tshi_test_integers(1, s.n * s.in, t->x);
    tshi_test_integers(2, s.out * s.in, t->w);
    tshi_test_integers(3, s.out, t->bias);
    tshi_test_integers(4, s.n * s.out, t->dy);
    tshi_test_integers(5, s.rank * s.in, t->a);
    tshi_test_integers(6, s.out * s.rank, t->b);
}

static void write_all(tshi_rank *r, const tsh_linear *layer, const numbers *t) {
    tshi_check_ok(r, tsh_tensor_write_whole(tsh_linear_weight(layer), t->w));
    tshi_check_ok(r, tsh_tensor_write_whole(tsh_linear_bias(layer), t->bias));
    tshi_check_ok(r, tsh_tensor_write_whole(tsh_linear_lora_a(layer), t->a));
    tshi_check_ok(r, tsh_tensor_write_whole(tsh_linear_lora_b(layer), t->b));
}

/* The adapter by functions of whole tensors, with the dropout of the same stream. */
typedef struct reference {
    tsh_tensor *x, *a, *b, *y;
} reference;

static void make_reference(tshi_rank *r, tsh_tape *tape, sizes s, const numbers *t, reference *out) {
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    const tsh_dtype dtype = TSH_FLOAT64;
    out->x = tshi_test_leaf(r, mesh, &(tsh_tensor_config){dtype, 2, {s.n, s.in}, {R}}, t->x);
    out->a = tshi_test_leaf(r, mesh, &(tsh_tensor_config){dtype, 2, {s.rank, s.in}, {R}}, t->a);
    out->b = tshi_test_leaf(r, mesh, &(tsh_tensor_config){dtype, 2, {s.out, s.rank}, {R}}, t->b);
    tsh_tensor *w = tshi_test_tensor(r, mesh, &(tsh_tensor_config){dtype, 2, {s.out, s.in}, {R}}, t->w);
    tsh_tensor *bias = tshi_test_tensor(r, mesh, &(tsh_tensor_config){dtype, 1, {s.out}, {R}}, t->bias);
    tsh_tensor *seed = tshi_test_tensor(r, mesh, &(tsh_tensor_config){dtype, 2, {s.n, s.out}, {R}}, t->dy);
    tsh_world_seed(r->world, 5);
    tsh_tensor *down = tsh_matmul(tape, tsh_dropout(tape, out->x, 0.5), tsh_transpose(tape, out->a, 0, 1));
    tsh_tensor *up = tsh_scale(tape, tsh_matmul(tape, down, tsh_transpose(tape, out->b, 0, 1)), scale);
    tsh_tensor *base = tsh_bias(tape, tsh_matmul(tape, out->x, tsh_transpose(tape, w, 0, 1)), bias);
    out->y = tsh_add(tape, base, up);
    tshi_check(r, tsh_backward_with(tape, out->y, &(tsh_backward_config){.gradient = seed}) == TSH_OK, "%s",
               tsh_tape_message(tape));
    tsh_tensor_release(w);
    tsh_tensor_release(bias);
    tsh_tensor_release(seed);
}

/* While nothing is recorded, the layer is the same as merged, without dropout. */
static void check_evaluation(tshi_rank *r, tsh_tape *tape, tsh_linear *layer, const variant *v, tsh_tensor *x) {
    double whole[MOST];
    tsh_tape_set_recording(tape, false);
    tsh_tensor *y = tsh_linear_forward(tape, layer, x);
    tshi_check_ok(r, tsh_tensor_read_whole(y, whole));
    tshi_check_ok(r, tsh_linear_merge(layer, true));
    tshi_test_same(r, v->name, tsh_linear_forward(tape, layer, x), whole, 0);
    tsh_tape_set_recording(tape, true);
}

static void check_dropout(tshi_rank *r, tsh_tape *tape, const variant *v, sizes s, const numbers *t) {
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    const tsh_lora_config lora = {.rank = s.rank, .alpha = scale * (double)s.rank, .dropout = 0.5};
    reference wanted = {NULL};
    tsh_linear *layer = make_linear(r, v, s.in, s.out, TSH_FLOAT64);
    tshi_check_ok(r, tsh_linear_adapt(layer, &lora, NULL, NULL));
    write_all(r, layer, t);
    tsh_tensor *x = tshi_test_leaf(r, mesh, &(tsh_tensor_config){TSH_FLOAT64, 2, {s.n, s.in}, {v->x}}, t->x);
    tsh_tensor *dy = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_FLOAT64, 2, {s.n, s.out}, {v->y}}, t->dy);
    make_reference(r, tape, s, t, &wanted);
    tsh_world_seed(r->world, 5);
    tsh_tensor *y = r->failed ? NULL : tsh_linear_forward(tape, layer, x);
    if (tshi_check(r, y, "%s: %s", v->name, tsh_tape_message(tape))) {
        tshi_test_same(r, v->name, y, tsh_tensor_data(wanted.y), 0);
        tshi_check_ok(r, tsh_backward_with(tape, y, &(tsh_backward_config){.gradient = dy}));
        tshi_test_same_grad(r, v->name, x, tsh_tensor_data(tsh_tensor_grad(wanted.x)), 0);
        tshi_test_same_grad(r, v->name, tsh_linear_lora_a(layer), tsh_tensor_data(tsh_tensor_grad(wanted.a)), 0);
        tshi_test_same_grad(r, v->name, tsh_linear_lora_b(layer), tsh_tensor_data(tsh_tensor_grad(wanted.b)), 0);
        check_evaluation(r, tape, layer, v, x);
    }
    tsh_tape_reset(tape);
    tsh_tensor_release(wanted.x);
    tsh_tensor_release(wanted.a);
    tsh_tensor_release(wanted.b);
    tsh_tensor_release(x);
    tsh_tensor_release(dy);
    tsh_linear_destroy(layer);
}

static void dropout_variants(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    numbers t;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (size_t s = 0; s < sizeof all_sizes / sizeof all_sizes[0] && !r->failed; s++) {
        find_numbers(all_sizes[s], &t);
        for (int v = 0; v < VARIANTS && !r->failed; v++) check_dropout(r, tape, &variants[v], all_sizes[s], &t);
    }
    tsh_tape_destroy(tape);
}

/* In every sharding the masks are those of tsh_dropout of the whole x, and there are none without recording. */
Test(lora_dropout, drops_out_what_one_rank_drops_out) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, dropout_variants, NULL));
}
