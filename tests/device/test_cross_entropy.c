/* Cross entropy of vocabulary slices: the sums of the slices, added, must give the loss and the gradients that the
 * formula has on whole rows. */
#include "kernel_test.h"

TestSuite(cross_entropy, .timeout = 600);

#define MAX_SLICES 4
#define IGNORED    (-100)

typedef struct problem {
    tsh_dtype dtype;
    int64_t rows, classes;
    double smoothing;
    bool weighted;
    buffer logits, weight, dloss, target;
    double weight_sum;
    double *loss, *slopes; /* what is wanted: [rows], [rows, classes] */
} problem;

static int64_t target_of(const problem *p, int64_t r) {
    return ((const int64_t *)p->target.data)[r];
}

/* The loss of a row, and its gradient to each logit, from the definition. */
static double reference(const problem *p, int64_t r, double *slopes) {
    double max = -(double)INFINITY, sum = 0, loss = 0, shares = 0;
    for (int64_t j = 0; j < p->classes; j++) slopes[j] = 0;
    if (target_of(p, r) == IGNORED) return 0;
    for (int64_t j = 0; j < p->classes; j++) max = fmax(max, get(&p->logits, r * p->classes + j));
    for (int64_t j = 0; j < p->classes; j++) sum += exp(get(&p->logits, r * p->classes + j) - max);
    for (int64_t j = 0; j < p->classes; j++) {
        double share = p->smoothing / (double)p->classes + (j == target_of(p, r) ? 1 - p->smoothing : 0);
        share *= get(&p->weight, j);
        shares += share;
        loss -= share * (get(&p->logits, r * p->classes + j) - max - log(sum));
        slopes[j] = -share;
    }
    for (int64_t j = 0; j < p->classes; j++)
        slopes[j] += shares * exp(get(&p->logits, r * p->classes + j) - max - log(sum));
    return loss;
}

static void problem_make(problem *p) {
    p->logits = buffer_random(p->dtype, p->rows * p->classes, -10, 10);
    p->weight = buffer_random(p->dtype, p->classes, 0.1, 2);
    p->dloss = statistics_random(p->dtype, p->rows, -1, 1);
    p->target = buffer_of_ids(p->rows, NULL);
    p->weight_sum = 0;
    for (int64_t j = 0; j < p->classes; j++) {
        if (!p->weighted) set(&p->weight, j, 1.0);
        p->weight_sum += get(&p->weight, j);
    }
    p->loss = calloc((size_t)p->rows + 1, sizeof(double));
    p->slopes = calloc((size_t)(p->rows * p->classes) + 1, sizeof(double));
    for (int64_t r = 0; r < p->rows; r++) {
        ((int64_t *)p->target.data)[r] = r % 5 == 3 ? IGNORED : random_word() % p->classes;
        p->loss[r] = reference(p, r, p->slopes + r * p->classes);
    }
}

/* Columns [start, start + n) of the rows, as a rank of a vocabulary-parallel group holds them. */
static buffer slice_of(const problem *p, int64_t start, int64_t n) {
    buffer b = buffer_make(p->dtype, p->rows * n);
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t j = 0; j < n; j++) set(&b, r * n + j, get(&p->logits, r * p->classes + start + j));
    return b;
}

/* A slice's sums, relative to max, added to sums. */
static void add_sums(const problem *p, const tshi_classes *c, const buffer *own, const buffer *max, buffer *term,
                     buffer *sums) {
    buffer weight_sum = statistics_make(p->dtype, 1);
    tshi_classes slice = *c;
    double total = 0;
    for (int64_t j = 0; j < c->n; j++) total += get(&p->weight, c->start + j);
    set(&weight_sum, 0, total);
    slice.weight_sum = data_if(&weight_sum, p->weighted);
    kernels()->cross_entropy[p->dtype].shift(kernel_device(), &slice, own->data, max->data, term->data);
    for (int64_t i = 0; i < sums->n; i++) set(sums, i, get(sums, i) + get(term, i));
}

/* One upstream gradient or one for each row, over a divisor or not, with and without a gradient before. */
static void check_gradients(const problem *p, const tshi_classes *c, const buffer *logits, const buffer *max,
                            const buffer *sums) {
    buffer divisor = statistics_make(p->dtype, 1);
    set(&divisor, 0, 0.75);
    for (int bits = 0; bits < 6; bits++) {
        int stride = bits & 1, beta = bits >> 1 & 1;
        bool divided = bits < 4;
        buffer before = beta ? buffer_random(p->dtype, logits->n, -1, 1) : buffer_make(p->dtype, logits->n);
        buffer dlogits = beta ? buffer_copy(&before) : buffer_nans(p->dtype, logits->n);
        kernels()->cross_entropy[p->dtype].backward(kernel_device(), c, logits->data, p->target.data, max->data,
                                                    sums->data, p->dloss.data, stride, data_if(&divisor, divided), beta,
                                                    dlogits.data);
        for (int64_t i = 0; i < dlogits.n; i++) {
            int64_t r = i / c->n, j = i % c->n + c->start;
            double g = get(&p->dloss, r * stride) / (divided ? 0.75 : 1) * p->slopes[r * p->classes + j];
            expect_close(&dlogits, i, get(&before, i) + g, 4, 32);
        }
    }
}

static void check_slices(problem *p, int slices, const int64_t *bounds) {
    const tshi_cross_entropy_ops *ops = &kernels()->cross_entropy[p->dtype];
    tshi_classes c[MAX_SLICES];
    buffer logits[MAX_SLICES], own[MAX_SLICES], term[MAX_SLICES], loss = statistics_make(p->dtype, p->rows);
    buffer max = statistics_make(p->dtype, p->rows), sums = statistics_make(p->dtype, 4 * p->rows);
    buffer weight_sum = statistics_make(p->dtype, 1);
    set(&weight_sum, 0, p->weight_sum);
    for (int64_t r = 0; r < p->rows; r++) set(&max, r, -(double)INFINITY);
    for (int s = 0; s < slices; s++) {
        c[s] = (tshi_classes){
            .rows = p->rows,
            .n = bounds[s + 1] - bounds[s],
            .start = bounds[s],
            .classes = p->classes,
            .ignore_index = IGNORED,
            .smoothing = p->smoothing,
            .weight = p->weighted ? (char *)p->weight.data + (size_t)bounds[s] * tsh_dtype_size(p->dtype) : NULL,
            .weight_sum = data_if(&weight_sum, p->weighted)};
        logits[s] = slice_of(p, c[s].start, c[s].n);
        own[s] = statistics_make(p->dtype, p->rows);
        term[s] = statistics_make(p->dtype, 4 * p->rows);
        ops->sums(kernel_device(), &c[s], logits[s].data, p->target.data, own[s].data, term[s].data);
        for (int64_t r = 0; r < p->rows; r++) set(&max, r, fmax(get(&max, r), get(&own[s], r)));
    }
    for (int s = 0; s < slices; s++) add_sums(p, &c[s], &own[s], &max, &term[s], &sums);
    ops->loss(kernel_device(), &c[0], p->target.data, sums.data, loss.data);
    for (int64_t r = 0; r < p->rows; r++) expect_close(&loss, r, p->loss[r], 60, 16);
    for (int s = 0; s < slices; s++) check_gradients(p, &c[s], &logits[s], &max, &sums);
}

/* The problem in slices between these bounds. */
static void check(problem p, int slices, const int64_t *bounds) {
    problem_make(&p);
    check_slices(&p, slices, bounds);
    free(p.loss);
    free(p.slopes);
    free_buffers();
}

Test(cross_entropy, slices_equal_the_whole) {
    const int64_t classes[] = {1, 2, 13, 100};
    for (int setting = 0; setting < 16 * FLOAT_DTYPES; setting++) {
        problem p = {.dtype = float_dtypes[setting >> 4],
                     .rows = 9,
                     .weighted = setting & 1,
                     .smoothing = setting & 2 ? 0.1 : 0.0,
                     .classes = classes[setting >> 2 & 3]};
        int64_t v = p.classes;
        lay_buffers((setting + (setting >> 4)) % LAYOUTS);
        check(p, 1, (int64_t[]){0, v});
        check(p, 2, (int64_t[]){0, (v + 1) / 2, v});
        check(p, 3, (int64_t[]){0, 0, v / 3, v});
        check(p, 4, (int64_t[]){0, v / 4, v / 4, v, v});
    }
}

/* Of odd sizes, in the middle of the vocabulary or not. */
Test(cross_entropy, odd_sizes) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int i = 0; i < 4 * ODD_SIZES; i++) {
            int64_t n = odd_sizes[i / 4], start = i / 4 % 3 * 5, classes = n + i / 4 % 3 * 10 + 1;
            problem p = {.dtype = float_dtypes[t], .rows = 9, .classes = classes, .weighted = i & 1};
            p.smoothing = i & 2 ? 0.1 : 0;
            lay_buffers((i / 4) % 2);
            check(p, 3, (int64_t[]){0, start, start + n, classes});
        }
    }
}

/* Few rows, which a GPU takes in pieces; many rows, round the grid more than once; none. */
Test(cross_entropy, shapes) {
    lay_buffers(ALIGNED);
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        problem p = {.dtype = float_dtypes[t], .rows = 2, .classes = 20001, .smoothing = 0.1};
        check(p, 1, (int64_t[]){0, 20001});
        check((problem){.dtype = float_dtypes[t], .rows = 2000, .classes = 24}, 1, (int64_t[]){0, 24});
        p.rows = 0, p.classes = 5, p.weighted = true;
        check(p, 2, (int64_t[]){0, 3, 5});
    }
}

/* The published example: [1,2,3,4], target 2. */
Test(cross_entropy, a_known_answer) {
    const tshi_cross_entropy_ops *ops = &kernels()->cross_entropy[TSH_FLOAT64];
    const double gradient[4] = {.0320586, .0871443, -.7631172, .6439143};
    buffer logits = buffer_of(TSH_FLOAT64, 4, (double[]){1, 2, 3, 4}), dloss = buffer_of(TSH_FLOAT64, 1, (double[]){1});
    buffer max = buffer_make(TSH_FLOAT64, 1), sums = buffer_make(TSH_FLOAT64, 4), loss = buffer_make(TSH_FLOAT64, 1);
    buffer target = buffer_of_ids(1, (int64_t[]){2}), dlogits = buffer_make(TSH_FLOAT64, 4);
    tshi_classes c = {.rows = 1, .n = 4, .classes = 4, .ignore_index = IGNORED};
    ops->sums(kernel_device(), &c, logits.data, target.data, max.data, sums.data);
    ops->loss(kernel_device(), &c, target.data, sums.data, loss.data);
    ops->backward(kernel_device(), &c, logits.data, target.data, max.data, sums.data, dloss.data, 0, NULL, 0,
                  dlogits.data);
    cr_assert_eq(get(&max, 0), 4);
    cr_assert_float_eq(get(&loss, 0), 1.4401897, 1e-7);
    for (int i = 0; i < 4; i++) cr_assert_float_eq(get(&dlogits, i), gradient[i], 1e-7);
    free_buffers();
}

/* Classes that a mask takes out count for nothing, also where a slice has no others. */
Test(cross_entropy, masked_classes) {
    const tshi_cross_entropy_ops *ops = &kernels()->cross_entropy[TSH_FLOAT64];
    const double masked = -(double)INFINITY;
    buffer logits = buffer_of(TSH_FLOAT64, 6, (double[]){masked, 1, 2, masked, 3, 4}),
           target = buffer_of_ids(1, (int64_t[]){4});
    buffer max = buffer_make(TSH_FLOAT64, 1), sums = buffer_make(TSH_FLOAT64, 4);
    tshi_classes c = {.rows = 1, .n = 6, .classes = 7, .ignore_index = IGNORED};
    ops->sums(kernel_device(), &c, logits.data, target.data, max.data, sums.data);
    cr_assert_float_eq(get(&sums, 0), 1 + exp(-1) + exp(-2) + exp(-3), 1e-12);
    cr_assert_eq(get(&sums, 1), -1);
    c.n = 1;
    ops->sums(kernel_device(), &c, logits.data, target.data, max.data, sums.data);
    cr_assert(isfinite(get(&max, 0)) && get(&sums, 0) == 0, "max %g, sum %g", get(&max, 0), get(&sums, 0));
    buffer four = buffer_of(TSH_FLOAT64, 1, (double[]){4});
    ops->shift(kernel_device(), &c, max.data, four.data, sums.data);
    for (int i = 0; i < 3; i++) cr_assert_eq(get(&sums, i), 0);
    free_buffers();
}

/* At every position of a pack and of a thread's first read, and in growing numbers. */
Test(cross_entropy, masked_classes_at_the_begin) {
    enum { N = 3000 };
    buffer logits = buffer_make(TSH_FLOAT32, N), target = buffer_of_ids(1, (int64_t[]){N - 1});
    buffer max = buffer_make(TSH_FLOAT32, 1), sums = buffer_make(TSH_FLOAT32, 4);
    tshi_classes c = {.rows = 1, .n = N, .classes = N, .ignore_index = IGNORED};
    for (int masked = 0; masked < N; masked += masked < 20 ? 1 : 700) {
        const double wanted[3] = {N - masked, 0, 1};
        for (int i = 0; i < N; i++) set(&logits, i, i < masked ? -(double)INFINITY : 1);
        kernels()->cross_entropy[TSH_FLOAT32].sums(kernel_device(), &c, logits.data, target.data, max.data, sums.data);
        cr_assert_eq(get(&max, 0), 1);
        for (int k = 0; k < 3; k++) cr_assert_eq(get(&sums, k), wanted[k], "%d masked: %g", masked, get(&sums, k));
    }
    free_buffers();
}

Test(cross_entropy, the_first_target_outside_is_found) {
    enum { N = 3000 };
    tshi_classes c = {.rows = N, .n = 10, .start = 2, .classes = 40, .ignore_index = IGNORED}, none = c, other = c;
    buffer target = buffer_of_ids(N, NULL);
    int64_t *there = target.data;
    none.rows = 0, other.ignore_index = -1;
    for (int i = 0; i < N; i++) there[i] = i % 3 == 0 ? IGNORED : i % 40;
    cr_assert_eq(kernels()->targets_check(kernel_device(), &c, there), -1);
    cr_assert_eq(kernels()->targets_check(kernel_device(), &none, NULL), -1);
    cr_assert_eq(kernels()->targets_check(kernel_device(), &other, there), 0, "it is another that is ignored");
    there[N - 1] = -1;
    cr_assert_eq(kernels()->targets_check(kernel_device(), &c, there), N - 1);
    there[1312] = 41;
    cr_assert_eq(kernels()->targets_check(kernel_device(), &c, there), 1312);
    there[1311] = 40;
    cr_assert_eq(kernels()->targets_check(kernel_device(), &c, there), 1311);
    c.rows = N - 1500;
    cr_assert_eq(kernels()->targets_check(kernel_device(), &c, there + 1500), N - 1501);
    free_buffers();
}
