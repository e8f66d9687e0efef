/* What follows from linearity, on meshes of one axis and of two: a linear function of terms of a sum is a term of the
 * result, so that it moves nothing, and the sum over ranks of values and gradients is that of one rank. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum { INPUTS = 3, MOST = 64 };

typedef struct linear_case {
    const char *name;
    int inputs;
    struct {
        int ndim;
        int64_t shape[2];
    } input[INPUTS];
    tsh_tensor *(*build)(tsh_tape *tape, tsh_tensor *const *in);
    const char *entry[3]; /* the inputs' layouts along an axis that make a PARTIAL result, a letter each */
} linear_case;

#define CASE(name, expression)                                                                                         \
    static tsh_tensor *build_##name(tsh_tape *t, tsh_tensor *const *in) {                                              \
        return expression;                                                                                             \
    }
CASE(matmul, tsh_matmul(t, in[0], in[1]))
CASE(affine, tsh_affine(t, in[0], in[1], NULL))
CASE(affine_bias, tsh_affine(t, in[0], in[1], in[2]))
CASE(add, tsh_add(t, in[0], in[1]))
CASE(sub, tsh_sub(t, in[0], in[1]))
CASE(mul, tsh_mul(t, in[0], in[1]))
CASE(scale, tsh_scale(t, in[0], -3))
CASE(bias, tsh_bias(t, in[0], in[1]))
CASE(dropout, tsh_dropout(t, in[0], 0.5))
CASE(reshape, tsh_reshape(t, in[0], 1, (int64_t[]){-1}))
CASE(permute, tsh_transpose(t, in[0], 0, 1))
CASE(slice, tsh_slice(t, in[0], 1, 1, 2))
CASE(concat, tsh_concat(t, in, 2, 0))
CASE(sum, tsh_sum(t, in[0], 0))
CASE(sum_all, tsh_sum(t, in[0], TSH_ALL_DIMS))
CASE(mean, tsh_mean(t, in[0], 0))
CASE(cumsum, tsh_cumsum(t, in[0], 0))
#undef CASE

#define A                                                                                                              \
    {                                                                                                                  \
        2, {                                                                                                           \
            4, 5                                                                                                       \
        }                                                                                                              \
    }
#define V                                                                                                              \
    {                                                                                                                  \
        1, {                                                                                                           \
            5                                                                                                          \
        }                                                                                                              \
    }
#define M                                                                                                              \
    {                                                                                                                  \
        2, {                                                                                                           \
            4, 4                                                                                                       \
        }                                                                                                              \
    } /* both factors of a product are as large: it costs no less to reduce one of them first */
#define N                                                                                                              \
    {                                                                                                                  \
        1, {                                                                                                           \
            4                                                                                                          \
        }                                                                                                              \
    }
static const linear_case cases[] = {
    {"matmul", 2, {M, M}, build_matmul, {"PR", "RP"}},
    {"affine", 2, {M, M}, build_affine, {"PR", "RP"}},
    {"affine with a bias", 3, {M, M, N}, build_affine_bias, {"PRP", "RPP"}},
    {"add", 2, {A, A}, build_add, {"PP"}},
    {"sub", 2, {A, A}, build_sub, {"PP"}},
    {"mul", 2, {A, A}, build_mul, {"PR", "RP"}},
    {"scale", 1, {A}, build_scale, {"P"}},
    {"bias", 2, {A, V}, build_bias, {"PP"}},
    {"dropout", 1, {A}, build_dropout, {"P"}},
    {"reshape", 1, {A}, build_reshape, {"P"}},
    {"permute", 1, {A}, build_permute, {"P"}},
    {"slice", 1, {A}, build_slice, {"P"}},
    {"concat", 2, {A, A}, build_concat, {"PP"}},
    {"sum", 1, {A}, build_sum, {"P"}},
    {"sum of all", 1, {A}, build_sum_all, {"P"}},
    {"mean", 1, {A}, build_mean, {"P"}},
    {"cumsum", 1, {A}, build_cumsum, {"P"}},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* Values and gradients. */
typedef struct answer {
    int64_t numel[1 + INPUTS];
    double values[1 + INPUTS][MOST];
} answer;

static void keep(tshi_rank *r, answer *a, int which, const tsh_tensor *t) {
    if (!tshi_check(r, t != NULL, "no tensor %d", which)) return;
    a->numel[which] = tshi_shape_numel(&t->shape);
    tshi_check_ok(r, tsh_tensor_read_whole(t, a->values[which]));
}

/* Whole numbers, as terms that differ by rank and add up to those of one rank. */
static tsh_tensor *make_input(tshi_rank *r, const tsh_mesh *mesh, const linear_case *c, int k,
                              const tsh_layout *layout) {
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = c->input[k].ndim};
    double whole[MOST];
    int64_t numel = 1;
    double share = 1;
    memcpy(config.layout, layout, sizeof *layout * (size_t)mesh->axes);
    for (int d = 0; d < config.ndim; d++) numel *= config.shape[d] = c->input[k].shape[d];
    for (int a = 0; a < mesh->axes; a++) {
        const tshi_axis *axis = &mesh->axis[a];
        if (layout[a].kind == TSH_KIND_PARTIAL) share *= axis->index ? 2 : 1 - 2 * (axis->size - 1);
    }
    for (int64_t i = 0; i < numel; i++) whole[i] = share * tshi_test_integer(k, i);
    tsh_tensor *t = NULL;
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, &t));
    if (t) tshi_check_ok(r, tsh_tensor_write(t, whole, numel));
    if (t) tshi_check_ok(r, tsh_tensor_require_grad(t, true));
    return t;
}

/* Values, and the gradients of the sum of the squares of the result, which differ by element. */
static void run_case(tshi_rank *r, const tsh_mesh *mesh, const linear_case *c, const tsh_layout layout[INPUTS][2],
                     const tsh_layout *wanted, answer *out) {
    const tsh_communication_stats none = {0};
    char text[160];
    tsh_tape *tape = NULL;
    tsh_tensor *in[INPUTS] = {NULL};
    tsh_world_seed(r->world, 3);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int k = 0; k < c->inputs; k++) in[k] = make_input(r, mesh, c, k, layout[k]);
    for (int a = 0; a < mesh->axes; a++) tsh_group_reset_stats(mesh->axis[a].group);
    tsh_tensor *y = c->build(tape, in);
    if (tshi_check(r, y != NULL, "%s: %s", c->name, tsh_tape_message(tape))) {
        tshi_check(r, tshi_layouts_equal(mesh->axes, y->layout, wanted), "%s makes %s", c->name,
                   tsh_tensor_describe(y, text, sizeof text));
        for (int a = 0; a < mesh->axes; a++) tshi_test_calls(r, c->name, mesh->axis[a].group, &none);
        keep(r, out, 0, y);
        tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS)));
        for (int k = 0; k < c->inputs; k++) keep(r, out, 1 + k, tsh_tensor_grad(in[k]));
    }
    for (int k = 0; k < c->inputs; k++) tsh_tensor_release(in[k]);
    tsh_tape_destroy(tape);
}

static tsh_layout letter(const char *entry, int k) {
    return entry && entry[k] == 'P' ? TSH_PARTIAL : TSH_REPLICATED;
}

/* Every pair of entries along the two axes, or of an entry and nothing but R. */
static void check_case(tshi_rank *r, const tsh_mesh *mesh, const linear_case *c) {
    static const tsh_layout replicated[INPUTS][2];
    answer truth = {.numel = {0}}, got;
    run_case(r, mesh, c, replicated, replicated[0], &truth);
    for (int pair = 1; pair < 9 && !r->failed; pair++) {
        const char *first = c->entry[pair % 3], *second = c->entry[pair / 3];
        tsh_layout layout[INPUTS][2], wanted[2] = {letter(first ? "P" : NULL, 0), letter(second ? "P" : NULL, 0)};
        for (int k = 0; k < c->inputs; k++) {
            layout[k][0] = letter(first, k);
            layout[k][1] = letter(second, k);
        }
        got = (answer){.numel = {0}};
        run_case(r, mesh, c, layout, wanted, &got);
        for (int i = 0; i <= c->inputs; i++) {
            tshi_check(r, got.numel[i] == truth.numel[i], "%s: number of elements", c->name);
            for (int64_t j = 0; j < truth.numel[i]; j++) { /* equal also where a zero has another sign */
                tshi_check(r, got.values[i][j] == truth.values[i][j], "%s of %s and %s: element %d of %s %d", c->name,
                           first ? first : "R", second ? second : "R", (int)j, i ? "gradient" : "value", i);
            }
        }
    }
}

static void check_cases(tshi_rank *r, tsh_mesh *mesh, void *arg) {
    (void)arg;
    for (int i = 0; i < CASES && !r->failed; i++) check_case(r, mesh, &cases[i]);
}

static void linear(tshi_rank *r, void *arg) {
    tshi_test_each_mesh(r, check_cases, arg);
}

Test(linearity, terms_stay_terms, .timeout = 300) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, linear, NULL));
    cr_assert_str_empty(tshi_test_run(6, linear, NULL));
}
