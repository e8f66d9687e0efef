/* The largest elements, against sorting. */
#include "kernel_test.h"

enum { MOST = 4096, LISTS = 3 };

typedef struct top_case {
    int64_t outer, n, inner, most;
} top_case;

static const top_case cases[] = {{1, 1, 1, 1}, {1, 1000, 1, 1}, {3, 700, 1, 50}, {2, 300, 3, 7},  {4, 0, 2, 3},
                                 {1, 5, 1, 9}, {0, 5, 1, 2},    {2, 17, 5, 17},  {1, 513, 2, 256}};

static int order(const void *left, const void *right) {
    const tshi_candidate *a = left, *b = right;
    double x = isnan(a->value) ? HUGE_VAL : a->value, y = isnan(b->value) ? HUGE_VAL : b->value;
    if (isnan(a->value) != isnan(b->value)) return isnan(a->value) ? -1 : 1;
    return x != y ? (x > y ? -1 : 1) : (a->index > b->index) - (a->index < b->index);
}

/* Few different values, so that many are equal; infinities, zeros of both signs and some NaNs among them. */
static double some_value(void) {
    static const double strange[] = {INFINITY, -INFINITY, 0.0, -0.0};
    uint32_t word = random_word();
    if (word % 97 == 0) return (double)NAN;
    return word % 13 == 0 ? strange[word / 13 % 4] : (double)(word % 41) - 20.0;
}

static void expect_sorted(const top_case *c, int64_t start, const double *x, const tshi_candidate *got) {
    static tshi_candidate all[MOST];
    for (int64_t column = 0; column < c->outer * c->inner; column++) {
        int64_t o = column / c->inner, k = column % c->inner;
        for (int64_t i = 0; i < c->n; i++) all[i] = (tshi_candidate){x[(o * c->n + i) * c->inner + k], start + i};
        qsort(all, (size_t)c->n, sizeof *all, order);
        for (int64_t j = 0; j < c->most; j++) {
            tshi_candidate wanted = j < c->n ? all[j] : TSHI_NO_CANDIDATE,
                           there = got[(o * c->most + j) * c->inner + k];
            bool same = there.value == wanted.value || (isnan(there.value) && isnan(wanted.value));
            cr_assert(same && there.index == wanted.index, "candidate %d of %d: %g at %lld, not %g at %lld", (int)j,
                      (int)c->n, there.value, (long long)there.index, wanted.value, (long long)wanted.index);
        }
    }
}

/* In three slices, whose lists are merged. */
static void check_top(const top_case *c, tsh_dtype dtype) {
    static double x[LISTS * MOST], slice[MOST];
    int64_t numel = c->outer * c->n * c->inner, count = c->outer * c->most * c->inner;
    top_case whole = {c->outer, LISTS * c->n, c->inner, c->most};
    buffer lists = buffer_of_ids(LISTS * count * 2, NULL), got = buffer_of_ids(count * 2, NULL);
    for (int64_t i = 0; i < LISTS * numel; i++) x[i] = some_value();
    for (int l = 0; l < LISTS; l++) {
        tshi_candidate *list = (tshi_candidate *)lists.data + l * count;
        for (int64_t i = 0; i < numel; i++) {
            int64_t o = i / (c->n * c->inner), rest = i % (c->n * c->inner);
            slice[i] = x[(o * LISTS + l) * c->n * c->inner + rest];
        }
        buffer typed = buffer_of(dtype, numel, slice);
        kernels()->top.find(kernel_device(), dtype, c->outer, c->n, c->inner, c->most, l * c->n, typed.data, list);
        expect_sorted(c, l * c->n, slice, list);
    }
    kernels()->top.merge(kernel_device(), LISTS, c->outer, c->most, c->inner, lists.data, got.data);
    expect_sorted(&whole, 0, x, got.data);
    free_buffers();
}

Test(top, as_by_sorting, .timeout = 600) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases * FLOAT_DTYPES; i++) {
        lay_buffers((int)(i % LAYOUTS));
        check_top(&cases[i / FLOAT_DTYPES], float_dtypes[i % FLOAT_DTYPES]);
    }
}

/* Gradients go to those of the indices that lie in the slice. */
Test(top, gradients_go_to_the_slice, .timeout = 600) {
    const int64_t index[] = {7, 3, 4, 5, 2, 9}; /* [1, 3, 2], the slice is [3, 6) */
    const double wanted[] = {10, 22, 33, 40, 50, 64};
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        buffer there = buffer_of_ids(6, index), dy = buffer_of(float_dtypes[t], 6, (double[]){1, 2, 3, 4, 5, 6});
        buffer dx = buffer_of(float_dtypes[t], 6, (double[]){10, 20, 30, 40, 50, 60});
        kernels()->top.backward(kernel_device(), dx.dtype, 1, 3, 2, 3, 3, there.data, dy.data, dx.data);
        for (int i = 0; i < 6; i++) expect_equal(&dx, i, wanted[i]);
        free_buffers();
    }
}
