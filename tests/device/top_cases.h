/* The largest elements by sorting everything, for the suites of the kernels of both devices. */
#ifndef TSHARD_TOP_CASES_H
#define TSHARD_TOP_CASES_H

#include "kernel_test.h"

enum { TOP_MOST = 4096, TOP_LISTS = 3 };

typedef struct top_case {
    int64_t outer, n, inner, most;
} top_case;

static const top_case top_cases[] = {{1, 1, 1, 1}, {1, 1000, 1, 1}, {3, 700, 1, 50}, {2, 300, 3, 7},  {4, 0, 2, 3},
                                     {1, 5, 1, 9}, {0, 5, 1, 2},    {2, 17, 5, 17},  {1, 513, 2, 256}};
enum { TOP_CASES = sizeof top_cases / sizeof top_cases[0] };

static inline int top_order(const void *left, const void *right) {
    const tshi_candidate *a = left, *b = right;
    double x = isnan(a->value) ? HUGE_VAL : a->value, y = isnan(b->value) ? HUGE_VAL : b->value;
    if (isnan(a->value) != isnan(b->value)) return isnan(a->value) ? -1 : 1;
    return x != y ? (x > y ? -1 : 1) : (a->index > b->index) - (a->index < b->index);
}

/* Few different values, so that many are equal; infinities, zeros of both signs and some NaNs among them. */
static inline double top_value(void) {
    static const double strange[] = {INFINITY, -INFINITY, 0.0, -0.0};
    uint32_t word = random_word();
    if (word % 97 == 0) return NAN;
    return word % 13 == 0 ? strange[word / 13 % 4] : (double)(word % 41) - 20.0;
}

static inline void top_by_sorting(const top_case *c, int64_t start, const double *x, tshi_candidate *top) {
    static tshi_candidate all[TOP_MOST];
    for (int64_t column = 0; column < c->outer * c->inner; column++) {
        int64_t o = column / c->inner, k = column % c->inner;
        for (int64_t i = 0; i < c->n; i++) all[i] = (tshi_candidate){x[(o * c->n + i) * c->inner + k], start + i};
        qsort(all, (size_t)c->n, sizeof *all, top_order);
        for (int64_t j = 0; j < c->most; j++)
            top[(o * c->most + j) * c->inner + k] = j < c->n ? all[j] : TSHI_NO_CANDIDATE;
    }
}

static inline void top_compare(const tshi_candidate *got, const tshi_candidate *wanted, int64_t n, int number,
                               tsh_dtype dtype) {
    for (int64_t i = 0; i < n; i++) {
        bool same = got[i].value == wanted[i].value || (isnan(got[i].value) && isnan(wanted[i].value));
        cr_assert(same && got[i].index == wanted[i].index, "%s, case %d, candidate %d: %g at %lld, not %g at %lld",
                  tsh_dtype_name(dtype), number, (int)i, got[i].value, (long long)got[i].index, wanted[i].value,
                  (long long)wanted[i].index);
    }
}

/* Each case in three slices, whose lists are merged. */
static inline void check_top(const tshi_top_ops *ops, tsh_device *device, tsh_dtype dtype) {
    static double x[TOP_LISTS * TOP_MOST], slice[TOP_MOST];
    static char typed[TOP_MOST * sizeof(double)];
    static tshi_candidate lists[TOP_LISTS * TOP_MOST], got[TOP_MOST], wanted[TOP_MOST];
    for (int number = 0; number < TOP_CASES; number++) {
        const top_case *c = &top_cases[number];
        int64_t numel = c->outer * c->n * c->inner, count = c->outer * c->most * c->inner;
        top_case whole = {c->outer, TOP_LISTS * c->n, c->inner, c->most};
        for (int64_t i = 0; i < TOP_LISTS * numel; i++) x[i] = top_value();
        for (int l = 0; l < TOP_LISTS; l++) {
            for (int64_t i = 0; i < numel; i++) {
                int64_t o = i / (c->n * c->inner), rest = i % (c->n * c->inner);
                slice[i] = x[(o * TOP_LISTS + l) * c->n * c->inner + rest];
            }
            kernels()->copy.convert(kernel_device(), numel, TSH_FLOAT64, slice, dtype, typed);
            ops->find(device, dtype, c->outer, c->n, c->inner, c->most, l * c->n, typed, lists + l * count);
            top_by_sorting(c, l * c->n, slice, wanted);
            top_compare(lists + l * count, wanted, count, number, dtype);
        }
        ops->merge(device, TOP_LISTS, c->outer, c->most, c->inner, lists, got);
        top_by_sorting(&whole, 0, x, wanted);
        top_compare(got, wanted, count, number, dtype);
    }
}

/* Gradients go to those of the indices that lie in the slice. */
static inline void check_top_backward(const tshi_top_ops *ops, tsh_device *device, tsh_dtype dtype) {
    const int64_t index[] = {7, 3, 4, 5, 2, 9}; /* [1, 3, 2], the slice is [3, 6) */
    double dy[] = {1, 2, 3, 4, 5, 6}, dx[] = {10, 20, 30, 40, 50, 60};
    static const double wanted[] = {10, 22, 33, 40, 50, 64};
    char y[sizeof dy], x[sizeof dx];
    kernels()->copy.convert(kernel_device(), 6, TSH_FLOAT64, dy, dtype, y);
    kernels()->copy.convert(kernel_device(), 6, TSH_FLOAT64, dx, dtype, x);
    ops->backward(device, dtype, 1, 3, 2, 3, 3, index, y, x);
    kernels()->copy.convert(kernel_device(), 6, dtype, x, TSH_FLOAT64, dx);
    for (int i = 0; i < 6; i++)
        cr_assert_eq(dx[i], wanted[i], "%s: gradient %d is %g", tsh_dtype_name(dtype), i, dx[i]);
}

#endif
