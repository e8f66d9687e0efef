/* Functions of an element and their gradients against the C library's, over their whole range, in every size. */
#include "kernel_test.h"

TestSuite(functions, .timeout = 600);

/* What a function takes, and how close it has to come: `units` of the rounding error of float32 and float64, relative
 * to the value itself, or, of an activation, to 1 + |x|. */
typedef struct function {
    const char *name;
    tshi_unary f;
    double p[2], low, high;
    double (*value)(double x, const double *p);
    double (*slope)(double x, const double *p); /* NULL: too steep to be compared */
    double units;
} function;

static double gelu_erf_value(double x, const double *p) {
    (void)p;
    return 0.5 * x * erfc(-x / sqrt(2.0));
}

static double gelu_erf_slope(double x, const double *p) {
    (void)p;
    return 0.5 * erfc(-x / sqrt(2.0)) + x * exp(-x * x / 2) / sqrt(2 * acos(-1.0));
}

static double gelu_tanh_value(double x, const double *p) {
    (void)p;
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

static double gelu_tanh_slope(double x, const double *p) {
    (void)p;
    double root = sqrt(2.0 / acos(-1.0)), at = root * (x + 0.044715 * x * x * x);
    return 0.5 * (1 + tanh(at)) + 0.5 * x / (cosh(at) * cosh(at)) * root * (1 + 3 * 0.044715 * x * x);
}

static double relu_value(double x, const double *p) {
    (void)p;
    return x > 0 ? x : 0;
}

static double relu_slope(double x, const double *p) {
    (void)p;
    return x > 0;
}

static double silu_value(double x, const double *p) {
    (void)p;
    return x / (1.0 + exp(-x));
}

static double silu_slope(double x, const double *p) {
    (void)p;
    double s = 1 / (1 + exp(-x));
    return s + x * s * (1 - s);
}

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

static double abs_value(double x, const double *p) {
    (void)p;
    return fabs(x);
}

static double abs_slope(double x, const double *p) {
    (void)p;
    return x > 0 ? 1 : x < 0 ? -1 : 0;
}

static double scale_shift_value(double x, const double *p) {
    return p[0] * x + p[1];
}

static double scale_shift_slope(double x, const double *p) {
    (void)x;
    return p[0];
}

static const function functions[] = {
    {"gelu_erf", TSHI_GELU_ERF, {0}, -12, 12, gelu_erf_value, gelu_erf_slope, 8},
    {"gelu_tanh", TSHI_GELU_TANH, {0}, -12, 12, gelu_tanh_value, gelu_tanh_slope, 32},
    {"relu", TSHI_RELU, {0}, -12, 12, relu_value, relu_slope, 0},
    {"silu", TSHI_SILU, {0}, -12, 12, silu_value, silu_slope, 16},
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
    {"pow", TSHI_POW, {-1.25}, 0.25, 6, pow_value, pow_slope, 8},
    {"pow", TSHI_POW, {-1.75}, 0, 9, pow_value, pow_slope, 8},
    {"pow", TSHI_POW, {5}, -9, 9, pow_value, pow_slope, 8},
    {"clamp", TSHI_CLAMP, {-1.5, 2.25}, -4, 4, clamp_value, clamp_slope, 0},
    {"clamp", TSHI_CLAMP, {-INFINITY, 0}, -4, 4, clamp_value, clamp_slope, 0},
    {"abs", TSHI_ABS, {0}, -4, 4, abs_value, abs_slope, 0},
    {"scale_shift", TSHI_SCALE_SHIFT, {1.5, 8}, -4, 4, scale_shift_value, scale_shift_slope, 8},
};
enum { FUNCTIONS = sizeof functions / sizeof functions[0] };

static void expect_near(const function *f, const buffer *b, int64_t i, double x, double wanted, double units) {
    double got = get(b, i), scale = f->f < TSHI_IDENTITY ? 1 + fabs(x) : fabs(wanted);
    double tolerance = scale * rounding_errors(b->dtype, units);
    tolerance += half_rounding(b->dtype, fabs(wanted) + tolerance);
    cr_assert(fabs(got - wanted) <= tolerance || got == rounded(b->dtype, wanted),
              "%s %s element %d of %d, of %.17g: %.17g, not %.17g", f->name, tsh_dtype_name(b->dtype), (int)i,
              (int)b->n, x, got, wanted);
}

static void check_function(const function *f, tsh_dtype dtype, int64_t n) {
    const tshi_elementwise_ops *ops = &kernels()->elementwise[dtype];
    buffer x = buffer_random(dtype, n, f->low, f->high), dy = buffer_random(dtype, n, 1, 2);
    buffer y = buffer_make(dtype, n), dx = buffer_nans(dtype, n), sum = buffer_random(dtype, n, -1, 1);
    buffer before = buffer_copy(&sum);
    if (n > 0 && f->f < TSHI_IDENTITY) set(&x, n / 2, 0.0);
    ops->unary(kernel_device(), f->f, f->p, n, x.data, y.data);
    ops->unary_backward(kernel_device(), f->f, f->p, n, x.data, dy.data, 0, dx.data);
    ops->unary_backward(kernel_device(), f->f, f->p, n, x.data, dy.data, 1, sum.data);
    for (int64_t i = 0; i < n; i++) {
        double at = get(&x, i);
        expect_near(f, &y, i, at, f->value(at, f->p), f->units);
        if (f->slope) expect_near(f, &dx, i, at, f->slope(at, f->p) * get(&dy, i), f->units + 2);
        double slack = tshi_dtype_sum(dtype) == dtype ? 2 : 0x1p16 / tested.half; /* dx has been rounded to 16 bits */
        expect_close(&sum, i, get(&before, i) + get(&dx, i), 1 + fabs(get(&dx, i)), slack);
    }
    buffer in_place = buffer_copy(&x);
    ops->unary(kernel_device(), f->f, f->p, n, in_place.data, in_place.data);
    expect_same_bits(&in_place, &y, "in place");
    free_buffers();
}

Test(functions, values_and_gradients) {
    for (int i = 0; i < FUNCTIONS; i++) {
        for (int t = 0; t < FLOAT_DTYPES; t++) {
            for (int s = 0; s < LAYOUTS * ODD_SIZES; s++) {
                lay_buffers(s % LAYOUTS);
                check_function(&functions[i], float_dtypes[t], odd_sizes[s / LAYOUTS]);
            }
            check_function(&functions[i], float_dtypes[t], tested.is_slow ? 5000 : 1 << 16);
        }
    }
}

/* A grid of a GPU goes round more than once. */
Test(functions, many_elements) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        lay_buffers(t % LAYOUTS);
        check_function(&functions[2], float_dtypes[t], 3 * 2048 * 8 * 2 + 5);
    }
}

/* The float32 functions that are written out for vectors, over their whole range. */
Test(functions, float32_gelu_and_silu_are_accurate_everywhere) {
    const int n = tested.is_slow ? 1 << 12 : 1 << 16;
    buffer x = buffer_make(TSH_FLOAT32, n), y = buffer_make(TSH_FLOAT32, n);
    for (int i = 0; i < n; i++) set(&x, i, -100.0 + 200.0 * i / n);
    kernels()->elementwise[TSH_FLOAT32].unary(kernel_device(), TSHI_SILU, NULL, n, x.data, y.data);
    for (int i = 0; i < n; i++) {
        double wanted = silu_value(get(&x, i), NULL);
        expect_close(&y, i, wanted, fabs(wanted) + 1e-30, 16);
    }
    for (int i = 0; i < n; i++) set(&x, i, -7.0 + 14.0 * i / n);
    kernels()->elementwise[TSH_FLOAT32].unary(kernel_device(), TSHI_GELU_ERF, NULL, n, x.data, y.data);
    for (int i = 0; i < n; i++) {
        double at = get(&x, i);
        expect_close(&y, i, gelu_erf_value(at, NULL), at > -1 ? fabs(at) : 1 + fabs(at), 10);
    }
    free_buffers();
}

Test(functions, activations_at_the_ends) {
    for (int bits = 0; bits < FLOAT_DTYPES * TSHI_IDENTITY; bits++) {
        tshi_unary f = (tshi_unary)(bits / FLOAT_DTYPES);
        buffer x = buffer_make(float_dtypes[bits % FLOAT_DTYPES], 64), y = buffer_make(x.dtype, 64);
        double most = x.dtype == TSH_FLOAT16 ? 6e4 : 1e30;
        const double ends[] = {most, -most, (double)NAN, 0,
                               100,  -100,  -0.0,        x.dtype == TSH_FLOAT16 ? 7e4 : (double)INFINITY};
        for (int i = 0; i < 64; i++) set(&x, i, ends[i % 8]);
        kernels()->elementwise[x.dtype].unary(kernel_device(), f, NULL, 64, x.data, y.data);
        for (int i = 0; i < 64; i++) {
            double at = get(&x, i), got = get(&y, i);
            if (at > 0) cr_assert_eq(got, at, "function %d: a large input passes: %g", (int)f, got);
            if (at <= 0) cr_assert(fabs(got) < 1e-30, "function %d of %g: %g", (int)f, at, got);
            cr_assert_eq(isnan(got) != 0, isnan(at) != 0, "NaN stays");
        }
        free_buffers();
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
    {TSHI_ABS, {0}, {INFINITY, 1, 0, 0, 0x1p-149, INFINITY, NAN}},
    {TSHI_SCALE_SHIFT, {2, 1}, {-INFINITY, -1, 1, 1, 1, INFINITY, NAN}},
};

Test(functions, limits) {
    const double at[7] = {-(double)INFINITY, -1, -0.0, 0, 0x1p-149, (double)INFINITY, (double)NAN};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        for (int t = 0; t < 2; t++) { /* 16 bits do not hold the smallest subnormal number */
            buffer x = buffer_of(float_dtypes[t], 7, at), y = buffer_make(x.dtype, 7);
            kernels()->elementwise[x.dtype].unary(kernel_device(), limits[i].f, limits[i].p, 7, x.data, y.data);
            for (int k = 0; k < 7; k++) expect_close(&y, k, limits[i].value[k], fabs(limits[i].value[k]), 4);
            free_buffers();
        }
    }
}
