/* exp, log, tanh, sqrt, sigmoid, pow and clamp against the C library's, over their whole range, in every size. */
#include "kernel_test.h"

TestSuite(functions, .timeout = 120);

/* What a function takes, and how close it has to come: `units` of the rounding error of float32 and float64. */
typedef struct function {
    const char *name;
    tshi_unary f;
    double p[2], low, high;
    double (*value)(double x, const double *p);
    double (*slope)(double x, const double *p);
    double units;
} function;

static double exp_value(double x, const double *p) {
    (void)p;
    return exp(x);
}

static double log_value(double x, const double *p) {
    (void)p;
    return log(x);
}

static double log_slope(double x, const double *p) {
    (void)p;
    return 1 / x;
}

static double tanh_value(double x, const double *p) {
    (void)p;
    return tanh(x);
}

static double tanh_slope(double x, const double *p) {
    (void)p;
    return 1 / (cosh(x) * cosh(x));
}

static double sqrt_value(double x, const double *p) {
    (void)p;
    return sqrt(x);
}

static double sqrt_slope(double x, const double *p) {
    (void)p;
    return 0.5 / sqrt(x);
}

static double sigmoid_value(double x, const double *p) {
    (void)p;
    return 1 / (1 + exp(-x));
}

static double sigmoid_slope(double x, const double *p) {
    (void)p;
    return 1 / (2 + exp(-x) + exp(x));
}

static double pow_value(double x, const double *p) {
    return pow(x, p[0]);
}

static double pow_slope(double x, const double *p) {
    return p[0] * pow(x, p[0] - 1);
}

static double clamp_value(double x, const double *p) {
    return fmin(fmax(x, p[0]), p[1]);
}

static double clamp_slope(double x, const double *p) {
    return x > p[0] && x < p[1];
}

static const function functions[] = {
    {"exp", TSHI_EXP, {0}, -80, 88, exp_value, exp_value, 4},
    {"exp", TSHI_EXP, {0}, -1, 1, exp_value, exp_value, 4},
    {"log", TSHI_LOG, {0}, 0, 4, log_value, log_slope, 4},
    {"log", TSHI_LOG, {0}, 0, 1e30, log_value, log_slope, 4},
    {"tanh", TSHI_TANH, {0}, -10, 10, tanh_value, NULL, 5},
    {"tanh", TSHI_TANH, {0}, -0.7, 0.7, tanh_value, tanh_slope, 6},
    {"sqrt", TSHI_SQRT, {0}, 0, 100, sqrt_value, sqrt_slope, 4},
    {"sigmoid", TSHI_SIGMOID, {0}, -80, 10, sigmoid_value, NULL, 6},
    {"sigmoid", TSHI_SIGMOID, {0}, -80, 1, sigmoid_value, sigmoid_slope, 8},
    {"pow", TSHI_POW, {2}, -9, 9, pow_value, pow_slope, 4},
    {"pow", TSHI_POW, {3}, -9, 9, pow_value, pow_slope, 4},
    {"pow", TSHI_POW, {-1}, 0, 9, pow_value, pow_slope, 4},
    {"pow", TSHI_POW, {0.5}, 0, 9, pow_value, pow_slope, 4},
    {"pow", TSHI_POW, {-1.75}, 0, 9, pow_value, pow_slope, 8},
    {"pow", TSHI_POW, {5}, -9, 9, pow_value, pow_slope, 8},
    {"clamp", TSHI_CLAMP, {-1.5, 2.25}, -4, 4, clamp_value, clamp_slope, 0},
    {"clamp", TSHI_CLAMP, {-INFINITY, 0}, -4, 4, clamp_value, clamp_slope, 0},
};
enum { FUNCTIONS = sizeof functions / sizeof functions[0] };

/* Relative to the value itself. */
static void expect_relative(const function *f, const buffer *b, int64_t i, double wanted, double units) {
    double got = get(b, i), tolerance = units * fabs(wanted) * (b->dtype == TSH_FLOAT64 ? 0x1p-53 : 0x1p-24);
    tolerance += half_rounding(b->dtype, fabs(wanted) + tolerance);
    cr_assert(fabs(got - wanted) <= tolerance || got == rounded(b->dtype, wanted),
              "%s %s element %d of %d: %.17g, not %.17g", f->name, tsh_dtype_name(b->dtype), (int)i, (int)b->n, got,
              wanted);
}

static void check_function(const function *f, tsh_dtype dtype, int64_t n) {
    const tshi_elementwise_ops *ops = &kernels()->elementwise[dtype];
    buffer x = buffer_random(dtype, n, f->low, f->high), dy = buffer_random(dtype, n, 1, 2);
    buffer y = buffer_make(dtype, n), dx = buffer_make(dtype, n), sum = buffer_random(dtype, n, -1, 1);
    buffer before = buffer_copy(&sum);
    for (int64_t i = 0; i < n; i++) set(&dx, i, (double)NAN);
    ops->unary(kernel_device(), f->f, f->p, n, x.data, y.data);
    ops->unary_backward(kernel_device(), f->f, f->p, n, x.data, dy.data, 0, dx.data);
    ops->unary_backward(kernel_device(), f->f, f->p, n, x.data, dy.data, 1, sum.data);
    for (int64_t i = 0; i < n; i++) {
        expect_relative(f, &y, i, f->value(get(&x, i), f->p), f->units);
        if (f->slope) expect_relative(f, &dx, i, f->slope(get(&x, i), f->p) * get(&dy, i), f->units + 2);
        double slack = tshi_dtype_sum(dtype) == dtype ? 2 : 0x1p16; /* dx has been rounded to 16 bits */
        expect_close(&sum, i, get(&before, i) + get(&dx, i), 1 + fabs(get(&dx, i)), slack);
    }
    ops->unary(kernel_device(), f->f, f->p, n, x.data, x.data);
    cr_assert_arr_eq(x.data, y.data, (size_t)n * tsh_dtype_size(dtype), "in place the result is the same");
    buffer *all[] = {&x, &y, &dy, &dx, &sum, &before};
    for (int i = 0; i < 6; i++) buffer_free(all[i]);
}

Test(functions, values_and_gradients) {
    for (int i = 0; i < FUNCTIONS; i++) {
        for (int t = 0; t < FLOAT_DTYPES; t++) {
            for (int s = 0; s < ODD_SIZES; s++) check_function(&functions[i], float_dtypes[t], odd_sizes[s]);
            check_function(&functions[i], float_dtypes[t], 1 << 16);
        }
    }
}

/* A row for each function: the values of -inf, -1, -0, 0, the smallest subnormal number, inf, NaN. */
static const struct limits {
    tshi_unary f;
    double p[2], value[7];
} limits[] = {
    {TSHI_EXP, {0}, {0, 0.367879441171442322, 1, 1, 1, INFINITY, NAN}},
    {TSHI_LOG, {0}, {NAN, NAN, -INFINITY, -INFINITY, -103.278929903431851, INFINITY, NAN}},
    {TSHI_TANH, {0}, {-1, -0.761594155955764888, 0, 0, 0x1p-149, 1, NAN}},
    {TSHI_SQRT, {0}, {NAN, NAN, 0, 0, 3.7433921305746439e-23, INFINITY, NAN}},
    {TSHI_SIGMOID, {0}, {0, 0.268941421369995121, 0.5, 0.5, 0.5, 1, NAN}},
    {TSHI_POW, {0}, {1, 1, 1, 1, 1, 1, 1}},
    {TSHI_CLAMP, {-1, 0}, {-1, -1, 0, 0, 0, 0, NAN}},
};

Test(functions, limits) {
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        for (int t = 0; t < 2; t++) { /* 16 bits do not hold the smallest subnormal number */
            buffer x = buffer_make(float_dtypes[t], 7), y = buffer_make(float_dtypes[t], 7);
            const double at[7] = {-INFINITY, -1, -0.0, 0, 0x1p-149, INFINITY, NAN};
            for (int k = 0; k < 7; k++) set(&x, k, at[k]);
            kernels()->elementwise[x.dtype].unary(kernel_device(), limits[i].f, limits[i].p, 7, x.data, y.data);
            for (int k = 0; k < 7; k++) expect_close(&y, k, limits[i].value[k], fabs(limits[i].value[k]), 4);
            buffer_free(&x);
            buffer_free(&y);
        }
    }
}
