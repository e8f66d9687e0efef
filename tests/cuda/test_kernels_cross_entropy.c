/* The GPU's cross entropy of a vocabulary slice against the CPU's. */
#include "kernel_pair.h"

TestSuite(cuda_cross_entropy, .timeout = 600);

enum { IGNORED = -7 };

typedef struct slice {
    tsh_dtype dtype;
    int64_t rows, n, start, classes;
    double smoothing;
    bool weights, mean; /* mean: one upstream gradient for all, over a divisor */
    int skew;
} slice;

static int64_t *targets(const slice *s) {
    int64_t *t = malloc((size_t)(s->rows + 1) * sizeof *t);
    cr_assert_not_null(t);
    for (int64_t r = 0; r < s->rows; r++) t[r] = r % 4 == 2 ? IGNORED : (int64_t)(random_word() % s->classes);
    return t;
}

/* Another slice's maxima may be larger. */
static void shift(const slice *s, tshi_classes c, tshi_classes g, pair *max, pair *sums) {
    pair all = pair_make(max->cpu.dtype, s->rows, 0), weight_sum = pair_random(max->cpu.dtype, 1, 0, 5, 9);
    for (int64_t r = 0; r < s->rows; r++) set(&all.cpu, r, fmax(get(&max->cpu, r), 4.5));
    pair_round(&all);
    c.weight_sum = s->weights ? weight_sum.cpu.data : NULL;
    g.weight_sum = s->weights ? weight_sum.gpu : NULL;
    tshi_cuda_cross_entropy[s->dtype].shift(gpu(), &g, max->gpu, all.gpu, sums->gpu);
    kernels()->cross_entropy[max->cpu.dtype].shift(kernel_device(), &c, max->cpu.data, all.cpu.data, sums->cpu.data);
    expect_pair(sums, "cross_entropy_shift", 10 * (double)(s->n + 1), 6);
    for (int64_t r = 0; r < s->rows; r++) set(&max->cpu, r, get(&all.cpu, r));
    pair_round(max);
    pair_free(&all);
    pair_free(&weight_sum);
}

static void check(slice s) {
    int64_t *target = targets(&s);
    pair logits = pair_random(s.dtype, s.rows * s.n, s.skew, -5, 5),
         dlogits = pair_random(s.dtype, logits.n, s.skew, -1, 1);
    pair weight = pair_random(s.dtype, s.n, s.skew, 0.5, 2);
    tsh_dtype wide = logits.cpu.dtype;
    pair max = pair_make(wide, s.rows, 0), sums = pair_make(wide, 4 * s.rows, 0), loss = pair_make(wide, s.rows, 0);
    pair weight_sum = pair_random(wide, 1, 0, 20, 30), divisor = pair_random(wide, 1, 0, 2, 3);
    pair dloss = pair_random(wide, s.mean ? 1 : s.rows, 0, -2, 2);
    tshi_classes c = {s.rows, s.n, s.start, s.classes, IGNORED, s.smoothing, NULL, NULL}, g = c;
    if (s.weights) {
        c.weight = weight.cpu.data, c.weight_sum = weight_sum.cpu.data;
        g.weight = weight.gpu, g.weight_sum = weight_sum.gpu;
    }
    tshi_cuda_cross_entropy[s.dtype].sums(gpu(), &g, logits.gpu, target, max.gpu, sums.gpu);
    kernels()->cross_entropy[wide].sums(kernel_device(), &c, logits.cpu.data, target, max.cpu.data, sums.cpu.data);
    expect_same(&max, "cross_entropy_sums, max");
    expect_pair(&sums, "cross_entropy_sums", 10 * (double)(s.n + 1), 4);
    shift(&s, c, g, &max, &sums);
    for (int64_t r = 0; r < s.rows; r++) set(&sums.cpu, 4 * r, get(&sums.cpu, 4 * r) + 1); /* no empty sum */
    pair_round(&sums);
    tshi_cuda_cross_entropy[s.dtype].loss(gpu(), &g, target, sums.gpu, loss.gpu);
    kernels()->cross_entropy[wide].loss(kernel_device(), &c, target, sums.cpu.data, loss.cpu.data);
    expect_pair(&loss, "cross_entropy_loss", 20, 4);
    for (int beta = 1; beta >= 0; beta--) {
        tshi_cuda_cross_entropy[s.dtype].backward(gpu(), &g, logits.gpu, target, max.gpu, sums.gpu, dloss.gpu, !s.mean,
                                                  s.mean ? divisor.gpu : NULL, beta, dlogits.gpu);
        kernels()->cross_entropy[wide].backward(kernel_device(), &c, logits.cpu.data, target, max.cpu.data,
                                                sums.cpu.data, dloss.cpu.data, !s.mean,
                                                s.mean ? divisor.cpu.data : NULL, beta, dlogits.cpu.data);
        expect_pair(&dlogits, "cross_entropy_backward", 4, 16);
        for (int64_t i = 0; i < dlogits.n; i++) set(&dlogits.cpu, i, NAN); /* not read with beta 0 */
        pair_round(&dlogits);
    }
    pair *all[] = {&logits, &dlogits, &weight, &max, &sums, &loss, &weight_sum, &divisor, &dloss};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) pair_free(all[i]);
    free(target);
}

Test(cuda_cross_entropy, slices) {
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < ODD_SIZES; s++)
            for (int bits = 0; bits < 8; bits++)
                check((slice){.dtype = gpu_dtypes[t],
                              .rows = 9,
                              .n = odd_sizes[s],
                              .start = s % 3 * 5,
                              .classes = odd_sizes[s] + s % 3 * 10 + 1,
                              .smoothing = bits & 1 ? 0.1 : 0,
                              .weights = bits & 2,
                              .mean = bits & 4,
                              .skew = s % 2});
}

/* Few rows, in pieces; many rows, round the grid more than once. */
Test(cuda_cross_entropy, shapes) {
    for (int t = 0; t < 4; t++) {
        check((slice){.dtype = gpu_dtypes[t], .rows = 2, .n = 20001, .classes = 20001, .smoothing = 0.1});
        check((slice){.dtype = gpu_dtypes[t], .rows = 2000, .n = 24, .classes = 24, .mean = true});
        check((slice){.dtype = gpu_dtypes[t], .rows = 0, .n = 24, .classes = 24});
    }
}

/* Masked classes, at every position of a pack and of a thread's first read, and in growing numbers. */
Test(cuda_cross_entropy, masked_classes) {
    enum { N = 3000 };
    const int64_t target[1] = {N - 1};
    float max, logits[N], sums[4];
    for (int masked = 0; masked < N; masked += masked < 20 ? 1 : 700) {
        for (int i = 0; i < N; i++) logits[i] = i < masked ? -INFINITY : 1.0f;
        tshi_classes c = {.rows = 1, .n = N, .classes = N, .ignore_index = IGNORED};
        tshi_cuda_cross_entropy[TSH_FLOAT32].sums(gpu(), &c, logits, target, &max, sums);
        cr_assert(max == 1 && sums[0] == (float)(N - masked) && sums[1] == 0 && sums[2] == 1, "%d: max %g, sum %g",
                  masked, (double)max, (double)sums[0]);
    }
}

static tshi_cuda_report checked(const int64_t *target, int64_t rows) {
    tshi_cuda_report *report = tshi_cuda(gpu())->report;
    tshi_classes c = {.rows = rows, .n = 10, .classes = 40, .ignore_index = IGNORED};
    *report = (tshi_cuda_report){0};
    gpu_waits(false);
    cr_assert_eq(tshi_cuda_targets_check(gpu(), &c, target), -1);
    gpu_waits(true);
    return *report;
}

Test(cuda_cross_entropy, the_first_wrong_target_is_reported) {
    static int64_t target[3000];
    for (int i = 0; i < 3000; i++) target[i] = i % 3 == 0 ? IGNORED : i % 40;
    cr_assert_eq(checked(target, 3000).found, 0);
    cr_assert_eq(checked(target, 0).found, 0);
    target[2999] = -1;
    target[1311] = 40;
    target[1312] = 41;
    tshi_cuda_report r = checked(target, 3000);
    cr_assert(r.found == 1 && r.is_target && r.index == 1311 && r.value == 40 && r.limit == 40 &&
              r.ignore_index == IGNORED);
    r = checked(target + 1500, 1500);
    cr_assert(r.found == 1 && r.index == 1499 && r.value == -1);
}

/* An error that no check has reported yet is kept. */
Test(cuda_cross_entropy, the_first_report_stands) {
    int64_t target[2] = {50, 60};
    cr_assert_eq(checked(target, 2).value, 50);
    tshi_classes c = {.rows = 1, .n = 10, .classes = 40};
    gpu_waits(false);
    tshi_cuda_targets_check(gpu(), &c, target + 1);
    gpu_waits(true);
    cr_assert_eq(tshi_cuda(gpu())->report->value, 50);
}
