/* SGD and AdamW against their formulas, in plain loops in double. */
#include "kernel_test.h"

TestSuite(optimizer, .timeout = 120);

#define STEPS 4

static void check_sgd(tsh_dtype dtype, int64_t n, tshi_sgd s) {
    buffer p = buffer_random(dtype, n, -1, 1), grad = buffer_make(dtype, n);
    buffer momentum = buffer_make(tshi_dtype_sum(dtype), n);
    double *p_wanted = calloc((size_t)n + 1, sizeof(double)), *m_wanted = calloc((size_t)n + 1, sizeof(double));
    for (int64_t i = 0; i < n; i++) {
        p_wanted[i] = get(&p, i);
        set(&momentum, i, NAN); /* the first step does not read it */
    }
    for (int step = 0; step < STEPS; step++) {
        buffer_fill_random(&grad, -1, 1);
        s.first = step == 0;
        tshi_update u = {.n = n, .grad = grad.data, .state = {s.momentum == 0.0 ? NULL : momentum.data}, .p = p.data};
        kernels()->optimizer[dtype].sgd(kernel_device(), &s, 1, &u);
        for (int64_t i = 0; i < n; i++) {
            double g = get(&grad, i) + s.weight_decay * p_wanted[i];
            m_wanted[i] = step == 0 ? g : s.momentum * m_wanted[i] + (1 - s.dampening) * g;
            double direction = g;
            if (s.momentum != 0.0) direction = s.nesterov ? g + s.momentum * m_wanted[i] : m_wanted[i];
            p_wanted[i] -= s.lr * direction;
            expect_close(&p, i, p_wanted[i], 4, 16);
            if (tshi_dtype_sum(dtype) != dtype)
                p_wanted[i] = get(&p, i); /* the next step begins at what is left of it */
            if (s.momentum != 0.0) expect_close(&momentum, i, m_wanted[i], 8, 16);
        }
    }
    free(p_wanted);
    free(m_wanted);
    buffer_free(&p);
    buffer_free(&grad);
    buffer_free(&momentum);
}

Test(optimizer, sgd) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int s = 0; s < ODD_SIZES; s++) {
            check_sgd(float_dtypes[t], odd_sizes[s], (tshi_sgd){.lr = 0.1});
            check_sgd(float_dtypes[t], odd_sizes[s], (tshi_sgd){.lr = 0.1, .weight_decay = 0.3});
            check_sgd(float_dtypes[t], odd_sizes[s], (tshi_sgd){.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1});
            check_sgd(float_dtypes[t], odd_sizes[s], (tshi_sgd){.lr = 0.1, .momentum = 0.9, .dampening = 0.5});
            check_sgd(float_dtypes[t], odd_sizes[s],
                      (tshi_sgd){.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
        }
    }
}

static void check_adamw(tsh_dtype dtype, int64_t n) {
    tshi_adamw a = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
    buffer p = buffer_random(dtype, n, -1, 1), grad = buffer_make(dtype, n);
    buffer m = buffer_make(tshi_dtype_sum(dtype), n), v = buffer_make(tshi_dtype_sum(dtype), n);
    double *want = calloc(3 * (size_t)n + 1, sizeof(double));
    for (int64_t i = 0; i < n; i++) want[3 * i] = get(&p, i);
    for (a.step = 1; a.step <= STEPS; a.step++) {
        buffer_fill_random(&grad, 0.1, 1);
        tshi_update u = {.n = n, .grad = grad.data, .state = {m.data, v.data}, .p = p.data};
        kernels()->optimizer[dtype].adamw(kernel_device(), &a, 1, &u);
        for (int64_t i = 0; i < n; i++) {
            double *w = want + 3 * i, g = get(&grad, i);
            w[1] = a.beta1 * w[1] + (1 - a.beta1) * g;
            w[2] = a.beta2 * w[2] + (1 - a.beta2) * g * g;
            double m_hat = w[1] / (1 - pow(a.beta1, (double)a.step));
            double v_hat = w[2] / (1 - pow(a.beta2, (double)a.step));
            w[0] = w[0] - a.lr * a.weight_decay * w[0] - a.lr * m_hat / (sqrt(v_hat) + a.eps);
            expect_close(&p, i, w[0], 2, 8);
            if (tshi_dtype_sum(dtype) != dtype) w[0] = get(&p, i);
            expect_close(&m, i, w[1], 1, 8);
            expect_close(&v, i, w[2], 1, 8);
        }
    }
    free(want);
    buffer_free(&p);
    buffer_free(&grad);
    buffer_free(&m);
    buffer_free(&v);
}

Test(optimizer, adamw) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int s = 0; s < ODD_SIZES; s++) check_adamw(float_dtypes[t], odd_sizes[s]);
    }
}

Test(optimizer, adamw_of_a_zero_gradient_only_decays) {
    tshi_adamw a = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.5, .step = 1};
    double p[1] = {2}, g[1] = {0}, m[1] = {0}, v[1] = {0};
    tshi_update u = {.n = 1, .grad = g, .state = {m, v}, .p = p};
    kernels()->optimizer[TSH_FLOAT64].adamw(kernel_device(), &a, 1, &u);
    cr_assert_float_eq(p[0], 1.9, 1e-15);
}
