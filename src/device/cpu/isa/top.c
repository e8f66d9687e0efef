/* Top-k along a dim, and its gradient. */
#include "device/cpu/isa/kernels.h"

#include <math.h>

/* True when a comes before b in descending order. */
static inline bool before(tshi_candidate a, tshi_candidate b) {
    if (a.value > b.value || (isnan(a.value) && !isnan(b.value))) return true;
    bool equal = a.value == b.value || (isnan(a.value) && isnan(b.value));
    return equal && a.index < b.index;
}

/* The candidates of one column, `stride` apart: a heap whose root is the smallest candidate that is kept. */
typedef struct heap {
    int64_t most, stride;
    tshi_candidate *top;
} heap;

/* Sifts candidate c down from the free root to its place among `count`. */
static void sift(const heap *h, int64_t count, tshi_candidate c) {
    int64_t at = 0;
    for (int64_t child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && before(h->top[child * h->stride], h->top[(child + 1) * h->stride])) child++;
        if (!before(c, h->top[child * h->stride])) break;
        h->top[at * h->stride] = h->top[child * h->stride];
        at = child;
    }
    h->top[at * h->stride] = c;
}

/* The quick comparison leaves ties and NaN to the full one. */
#define TAKE(name, type)                                                                                               \
    static void name(const heap *h, int64_t n, int64_t step, int64_t start, const type *x) {                           \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            if (x[i * step] < (type)h->top->value) continue;                                                           \
            tshi_candidate c = {(double)x[i * step], start + i};                                                       \
            if (before(c, *h->top)) sift(h, h->most, c);                                                               \
        }                                                                                                              \
    }
TAKE(take_f32, float)
TAKE(take_f64, double)

enum { WIDENED = 256 };

static void take_narrow(const heap *h, tsh_dtype dtype, int64_t n, int64_t step, int64_t start, const uint16_t *x) {
    uint16_t narrow[WIDENED];
    float wide[WIDENED];
    for (int64_t i = 0; i < n; i += WIDENED) {
        int64_t count = n - i < WIDENED ? n - i : WIDENED;
        for (int64_t j = 0; j < count; j++) narrow[j] = x[(i + j) * step];
        TSHI_ISA(tshi_cpu_widen)(dtype, count, narrow, wide);
        take_f32(h, count, 1, start + i, wide);
    }
}

/* Heapsort: the heap becomes a list in descending order. */
static void sort(const heap *h) {
    for (int64_t count = h->most - 1; count > 0; count--) {
        tshi_candidate last = *h->top, c = h->top[count * h->stride];
        sift(h, count, c);
        h->top[count * h->stride] = last;
    }
}

static void top_find(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, int64_t most,
                     int64_t start, const void *x, tshi_candidate *top) {
    size_t size = tsh_dtype_size(dtype);
    for (int64_t i = 0; i < outer * most * inner; i++) top[i] = TSHI_NO_CANDIDATE;
    for (int64_t column = 0; column < outer * inner && most > 0; column++) {
        int64_t o = column / inner, k = column % inner;
        const void *from = (const char *)x + (size_t)(o * n * inner + k) * size;
        heap h = {most, inner, top + o * most * inner + k};
        if (dtype == TSH_FLOAT64)
            take_f64(&h, n, inner, start, from);
        else if (dtype == TSH_FLOAT32)
            take_f32(&h, n, inner, start, from);
        else
            take_narrow(&h, dtype, n, inner, start, from);
        sort(&h);
    }
}

/* Merges the lists one after another; a list ends at its first candidate that comes after the last one kept. */
static void merge_column(int64_t count, int64_t list, const heap *h, const tshi_candidate *from) {
    for (int64_t j = 0; j < h->most; j++) h->top[j * h->stride] = TSHI_NO_CANDIDATE;
    for (int64_t l = 0; l < count; l++) {
        for (int64_t j = 0; j < h->most; j++) {
            tshi_candidate c = from[l * list + j * h->stride];
            if (!before(c, *h->top)) break; /* later candidates of the list come after it too */
            sift(h, h->most, c);
        }
    }
    sort(h);
}

static void top_merge(tsh_device *device, int64_t count, int64_t outer, int64_t most, int64_t inner,
                      const tshi_candidate *lists, tshi_candidate *top) {
    for (int64_t column = 0; column < outer * inner && most > 0; column++) {
        int64_t at = column / inner * most * inner + column % inner;
        merge_column(count, outer * most * inner, &(heap){most, inner, top + at}, lists + at);
    }
}

static void add_narrow(tsh_dtype dtype, const uint16_t *dy, uint16_t *dx) {
    float a, b;
    TSHI_ISA(tshi_cpu_widen)(dtype, 1, dy, &a);
    TSHI_ISA(tshi_cpu_widen)(dtype, 1, dx, &b);
    b += a;
    TSHI_ISA(tshi_cpu_narrow)(dtype, 1, &b, dx);
}

static void top_backward(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, int64_t most,
                         int64_t start, const int64_t *index, const void *dy, void *dx) {
    for (int64_t i = 0; i < outer * most * inner; i++) {
        int64_t at = index[i] - start, to = (i / inner / most * n + at) * inner + i % inner;
        if (at < 0 || at >= n) continue;
        if (dtype == TSH_FLOAT64)
            ((double *)dx)[to] += ((const double *)dy)[i];
        else if (dtype == TSH_FLOAT32)
            ((float *)dx)[to] += ((const float *)dy)[i];
        else
            add_narrow(dtype, (const uint16_t *)dy + i, (uint16_t *)dx + to);
    }
}

const tshi_top_ops TSHI_ISA(tshi_cpu_top) = {.find = top_find, .merge = top_merge, .backward = top_backward};
