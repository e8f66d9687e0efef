/* Losses of elements and their gradients against the formulas in double. */
#include "kernel_test.h"

TestSuite(loss, .timeout = 600);

typedef struct loss_case {
    tshi_loss f;
    tsh_dtype dtype;
    int64_t n, weights; /* 0: none */
    bool each;          /* one upstream gradient for each loss */
    double beta;
    double smooth; /* the beta of smooth errors */
} loss_case;

static double softplus(double x) {
    return log1p(exp(-fabs(x))) + fmax(x, 0);
}

static double value_of(const loss_case *c, double x, double t, double w) {
    double d = fabs(x - t);
    if (c->f == TSHI_SMOOTH_ERROR) return d < c->smooth ? d * d / (2 * c->smooth) : d - c->smooth / 2;
    return c->f == TSHI_SQUARED_ERROR ? (x - t) * (x - t) : (1 - t) * x + (1 + (w - 1) * t) * softplus(-x);
}

static double slope_of(const loss_case *c, bool of_target, double x, double t, double w) {
    double d = of_target ? t - x : x - t;
    if (c->f == TSHI_SMOOTH_ERROR) return fabs(d) < c->smooth ? d / c->smooth : (d > 0) - (d < 0);
    if (c->f == TSHI_SQUARED_ERROR) return 2 * d;
    double s = 1 / (1 + exp(-x));
    return of_target ? (w - 1) * softplus(-x) - x : 1 - t - (1 + (w - 1) * t) * (1 - s);
}

static void check(loss_case c) {
    const tshi_loss_ops *ops = &kernels()->loss[c.dtype];
    buffer x = buffer_random(c.dtype, c.n, -6, 6), t = buffer_random(c.dtype, c.n, 0, 1);
    buffer w = buffer_random(c.dtype, c.weights, 1, 3), loss = statistics_make(c.dtype, c.n);
    buffer dloss = statistics_random(c.dtype, c.each ? c.n : 1, -1, 1);
    tshi_loss_inputs in = {c.f, c.smooth, c.n, c.weights ? c.weights : 1, x.data, t.data, data_if(&w, c.weights)};
    ops->forward(kernel_device(), &in, loss.data);
    for (int of_target = 0; of_target < 2; of_target++) {
        buffer before = c.beta != 0 ? buffer_random(c.dtype, c.n, -1, 1) : buffer_make(c.dtype, c.n);
        buffer to = c.beta != 0 ? buffer_copy(&before) : buffer_nans(c.dtype, c.n);
        ops->backward(kernel_device(), &in, of_target, dloss.data, c.each, 0.5, c.beta, to.data);
        for (int64_t i = 0; i < c.n; i++) {
            double weight = c.weights ? get(&w, i % c.weights) : 1, a = get(&x, i), b = get(&t, i);
            double slope = 0.5 * get(&dloss, c.each ? i : 0) * slope_of(&c, of_target, a, b, weight);
            expect_close(&loss, i, value_of(&c, a, b, weight), 50, 2);
            expect_close(&to, i, get(&before, i) + slope, 16, 2);
        }
    }
    free_buffers();
}

Test(loss, values_and_gradients) {
    for (int bits = 0; bits < 4 * FLOAT_DTYPES * ODD_SIZES; bits++) {
        int s = bits >> 4, kind = bits >> 2 & 3;
        loss_case c = {kind == 3 ? TSHI_SMOOTH_ERROR : (tshi_loss)kind,
                       float_dtypes[bits & 3],
                       odd_sizes[s],
                       0,
                       s % 2,
                       s % 3 == 0,
                       kind == 3 ? 0 : 1.5};
        for (int layout = 0; layout < LAYOUTS; layout++) {
            lay_buffers(layout);
            c.weights = 0;
            check(c);
            c.weights = 5, c.each = !c.each;
            check(c);
        }
    }
}
