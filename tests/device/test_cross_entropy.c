/* Cross entropy of vocabulary slices: the sums of the slices, added, must give the loss and the gradients that the
 * formula has on whole rows. */
#include "kernel_test.h"

TestSuite(cross_entropy, .timeout = 120);

#define MAX_SLICES 4

typedef struct problem {
    tsh_dtype dtype;
    int64_t rows, classes;
    double smoothing;
    bool weighted;
    buffer logits, weight, dloss;
    int64_t target[16];
    double weight_sum;
} problem;

static void problem_make(problem *p) {
    p->logits = buffer_random(p->dtype, p->rows * p->classes, -10, 10);
    p->weight = buffer_random(p->dtype, p->classes, 0.1, 2);
    p->dloss = buffer_random(tshi_dtype_sum(p->dtype), p->rows, -1, 1);
    p->weight_sum = 0;
    for (int64_t j = 0; j < p->classes; j++) {
        if (!p->weighted) set(&p->weight, j, 1.0);
        p->weight_sum += get(&p->weight, j);
    }
    for (int64_t r = 0; r < p->rows; r++) p->target[r] = r % 5 == 3 ? -100 : random_word() % p->classes;
}

static void problem_free(problem *p) {
    buffer_free(&p->logits);
    buffer_free(&p->weight);
    buffer_free(&p->dloss);
}

/* The loss of a row, and its gradient to each logit, from the definition, in double. */
static double reference(const problem *p, int64_t r, double *dlogits) {
    double max = -INFINITY, sum = 0, loss = 0;
    for (int64_t j = 0; j < p->classes; j++) dlogits[j] = 0;
    if (p->target[r] == -100) return 0;
    for (int64_t j = 0; j < p->classes; j++) max = fmax(max, get(&p->logits, r * p->classes + j));
    for (int64_t j = 0; j < p->classes; j++) sum += exp(get(&p->logits, r * p->classes + j) - max);
    for (int64_t j = 0; j < p->classes; j++) {
        double log_p = get(&p->logits, r * p->classes + j) - max - log(sum);
        double share = p->smoothing / (double)p->classes + (j == p->target[r] ? 1 - p->smoothing : 0);
        double q = share * get(&p->weight, j);
        loss -= q * log_p;
        dlogits[j] -= q;
        for (int64_t i = 0; i < p->classes; i++) {
            dlogits[i] += q * exp(get(&p->logits, r * p->classes + i) - max - log(sum));
        }
    }
    return loss;
}

/* Columns [start, start + n) of the rows, as a rank of a vocabulary-parallel group holds them. */
static buffer slice_of(const problem *p, const buffer *whole, int64_t start, int64_t n) {
    buffer b = buffer_make(p->dtype, p->rows * n);
    for (int64_t r = 0; r < p->rows; r++) {
        for (int64_t j = 0; j < n; j++) set(&b, r * n + j, get(whole, r * p->classes + start + j));
    }
    return b;
}

static void *weight_at(problem *p, int64_t start) {
    return p->weighted ? (char *)p->weight.data + (size_t)start * tsh_dtype_size(p->dtype) : NULL;
}

/* A slice's sums, relative to max, added to sums. */
static void add_sums(const problem *p, const tshi_classes *c, const buffer *own, const buffer *max, buffer *term,
                     buffer *sums) {
    buffer weight_sum = buffer_make(tshi_dtype_sum(p->dtype), 1);
    tshi_classes slice = *c;
    double total = 0;
    for (int64_t j = 0; j < c->n; j++) total += get(&p->weight, c->start + j);
    set(&weight_sum, 0, total);
    slice.weight_sum = p->weighted ? weight_sum.data : NULL;
    kernels()->cross_entropy[p->dtype].shift(kernel_device(), &slice, own->data, max->data, term->data);
    for (int64_t i = 0; i < sums->n; i++) set(sums, i, get(sums, i) + get(term, i));
    buffer_free(&weight_sum);
}

static void check(problem *p, int slices, const int64_t *bounds) {
    tshi_classes c[MAX_SLICES];
    const tsh_dtype sum = tshi_dtype_sum(p->dtype);
    buffer logits[MAX_SLICES], max = buffer_make(sum, p->rows), sums = buffer_make(sum, 4 * p->rows);
    buffer own[MAX_SLICES], term[MAX_SLICES];
    buffer divisor = buffer_make(sum, 1), weight_sum = buffer_make(sum, 1);
    set(&divisor, 0, 0.75);
    set(&weight_sum, 0, p->weight_sum);
    for (int64_t r = 0; r < p->rows; r++) set(&max, r, -INFINITY);
    for (int s = 0; s < slices; s++) {
        c[s] = (tshi_classes){.rows = p->rows,
                              .n = bounds[s + 1] - bounds[s],
                              .start = bounds[s],
                              .classes = p->classes,
                              .ignore_index = -100,
                              .smoothing = p->smoothing,
                              .weight = weight_at(p, bounds[s]),
                              .weight_sum = p->weighted ? weight_sum.data : NULL};
        logits[s] = slice_of(p, &p->logits, c[s].start, c[s].n);
        own[s] = buffer_make(sum, p->rows);
        term[s] = buffer_make(sum, 4 * p->rows);
        kernels()->cross_entropy[p->dtype].sums(kernel_device(), &c[s], logits[s].data, p->target, own[s].data,
                                                term[s].data);
        for (int64_t r = 0; r < p->rows; r++) set(&max, r, fmax(get(&max, r), get(&own[s], r)));
    }
    for (int s = 0; s < slices; s++) add_sums(p, &c[s], &own[s], &max, &term[s], &sums);
    buffer loss = buffer_make(sum, p->rows);
    kernels()->cross_entropy[p->dtype].loss(kernel_device(), &c[0], p->target, sums.data, loss.data);
    double wanted[128];
    for (int s = 0; s < slices; s++) {
        for (int bits = 0; bits < 4; bits++) {
            int stride = bits & 1, beta = bits >> 1;
            buffer dlogits = buffer_random(p->dtype, logits[s].n, -1, 1), before = buffer_copy(&dlogits);
            for (int64_t i = 0; i < dlogits.n && !beta; i++) set(&dlogits, i, NAN), set(&before, i, 0);
            kernels()->cross_entropy[p->dtype].backward(kernel_device(), &c[s], logits[s].data, p->target, max.data,
                                                        sums.data, p->dloss.data, stride, divisor.data, beta,
                                                        dlogits.data);
            for (int64_t r = 0; r < p->rows; r++) {
                expect_close(&loss, r, reference(p, r, wanted), 60, 16);
                for (int64_t j = 0; j < c[s].n; j++) {
                    double g = get(&p->dloss, r * stride) / 0.75 * wanted[c[s].start + j];
                    expect_close(&dlogits, r * c[s].n + j, get(&before, r * c[s].n + j) + g, 4, 32);
                }
            }
            buffer_free(&dlogits);
            buffer_free(&before);
        }
        buffer_free(&logits[s]);
        buffer_free(&own[s]);
        buffer_free(&term[s]);
    }
    buffer_free(&max);
    buffer_free(&sums);
    buffer_free(&loss);
    buffer_free(&divisor);
    buffer_free(&weight_sum);
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
        problem_make(&p);
        check(&p, 1, (int64_t[]){0, v});
        check(&p, 2, (int64_t[]){0, (v + 1) / 2, v});
        check(&p, 3, (int64_t[]){0, 0, v / 3, v});
        check(&p, 4, (int64_t[]){0, v / 4, v / 4, v, v});
        problem_free(&p);
    }
}

Test(cross_entropy, no_rows) {
    problem p = {.dtype = TSH_FLOAT32, .rows = 0, .classes = 5, .smoothing = 0.1, .weighted = true};
    problem_make(&p);
    check(&p, 2, (int64_t[]){0, 3, 5});
    problem_free(&p);
}

/* The published example: [1,2,3,4], target 2. */
Test(cross_entropy, a_known_answer) {
    const double logits[4] = {1, 2, 3, 4}, dloss[1] = {1};
    const double gradient[4] = {.0320586, .0871443, -.7631172, .6439143};
    const int64_t target[1] = {2};
    double max[1], sums[4], loss[1], dlogits[4];
    tshi_classes c = {.rows = 1, .n = 4, .classes = 4, .ignore_index = -100};
    kernels()->cross_entropy[TSH_FLOAT64].sums(kernel_device(), &c, logits, target, max, sums);
    kernels()->cross_entropy[TSH_FLOAT64].loss(kernel_device(), &c, target, sums, loss);
    kernels()->cross_entropy[TSH_FLOAT64].backward(kernel_device(), &c, logits, target, max, sums, dloss, 0, NULL, 0,
                                                   dlogits);
    cr_assert_eq(max[0], 4);
    cr_assert_float_eq(loss[0], 1.4401897, 1e-7);
    for (int i = 0; i < 4; i++) cr_assert_float_eq(dlogits[i], gradient[i], 1e-7);
}

/* Classes that a mask takes out count for nothing, also where a slice has no others. */
Test(cross_entropy, masked_classes) {
    const double logits[6] = {-INFINITY, 1, 2, -INFINITY, 3, 4};
    const int64_t target[1] = {4};
    double max[1], sums[4];
    tshi_classes c = {.rows = 1, .n = 6, .classes = 7, .ignore_index = -100};
    kernels()->cross_entropy[TSH_FLOAT64].sums(kernel_device(), &c, logits, target, max, sums);
    cr_assert_float_eq(sums[0], 1 + exp(-1) + exp(-2) + exp(-3), 1e-12);
    cr_assert_eq(sums[1], -1);
    c.n = 1;
    kernels()->cross_entropy[TSH_FLOAT64].sums(kernel_device(), &c, logits, target, max, sums);
    cr_assert(isfinite(max[0]) && sums[0] == 0, "max %g, sum %g", max[0], sums[0]);
    kernels()->cross_entropy[TSH_FLOAT64].shift(kernel_device(), &c, max, (double[]){4}, sums);
    cr_assert(sums[0] == 0 && sums[1] == 0 && sums[2] == 0);
}

Test(cross_entropy, targets_outside_are_found) {
    tshi_classes c = {.rows = 4, .n = 2, .start = 2, .classes = 5, .ignore_index = -100};
    cr_assert_eq(kernels()->targets_check(kernel_device(), &c, (int64_t[]){0, 4, -100, 3}), -1);
    cr_assert_eq(kernels()->targets_check(kernel_device(), &c, (int64_t[]){0, 5, -1, 3}), 1);
    cr_assert_eq(kernels()->targets_check(kernel_device(), &c, (int64_t[]){0, 4, -100, -1}), 3);
    c.ignore_index = 7;
    cr_assert_eq(kernels()->targets_check(kernel_device(), &c, (int64_t[]){7, 7, -100, 3}), 2);
    c.rows = 0;
    cr_assert_eq(kernels()->targets_check(kernel_device(), &c, NULL), -1);
}
