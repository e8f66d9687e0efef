/* Elementary functions that loops can be vectorised around.
 *
 * float: plain arithmetic, so that every compiler vectorises it on every CPU. double: the C library's functions,
 * which GCC maps to glibc's vector library (libmvec) where the build found it. */
#ifndef TSHI_CPU_VECTOR_MATH_H
#define TSHI_CPU_VECTOR_MATH_H

#include "device/cpu/isa/elements.h"

#include <math.h>

/* glibc declares these vector variants only under -ffast-math; erf exists since 2.35. */
#if defined(TSHARD_HAVE_MVEC) && defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__)
#if __GLIBC_PREREQ(2, 35)
#define TSHI_SIMD __attribute__((simd("notinbranch")))
TSHI_SIMD double exp(double);
TSHI_SIMD double erf(double);
TSHI_SIMD double log(double);
TSHI_SIMD double cos(double);
TSHI_SIMD double sin(double);
TSHI_SIMD double tanh(double);
TSHI_SIMD double pow(double, double);
#endif
#endif

/* exp(x) = 2^k exp(r), |r| <= ln(2)/2: returns exp(r) = 1 + r + r^2 P(r) with a minimax P (relative error 4e-9 before
 * rounding), whose terms are paired to shorten the chain of dependent operations. The low bits of *shifted are k. */
TSHI_INLINE float tshi_exp_reduced(float x, uint32_t *shifted) {
    const float round_to_int = 0x1.8p23f;
    const float log2_e = 1.44269504f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    float sum = x * log2_e + round_to_int;
    float k = sum - round_to_int;
    float r = (x - k * ln2_high) - k * ln2_low, s = r * r;
    float p = (0.49999994f + r * 0.166665196f) + s * ((0.0416684002f + r * 0.00836885069f) + s * 0.00138143206f);
    *shifted = tshi_bits_of_float(sum);
    return 1.0f + (r + s * p);
}

/* The power of two goes in as two factors, so that subnormal results come out right. */
TSHI_INLINE float tshi_exp_f32(float x) {
    uint32_t shifted;
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float e = tshi_exp_reduced(x, &shifted);
    int32_t power = (int32_t)(shifted - 0x4B400000u);
    int32_t half = power >> 1;
    float low = tshi_float_of_bits((uint32_t)(half + 127) << 23);
    float high = tshi_float_of_bits((uint32_t)(power - half + 127) << 23);
    return e * low * high;
}

/* exp(x) for x <= 0, where results below 2^-126.5 are 0: k of smaller ones has no bits in an exponent. */
TSHI_INLINE float tshi_exp_below_f32(float x) {
    uint32_t shifted;
    float e = tshi_exp_reduced(x, &shifted);
    float power = tshi_float_of_bits((shifted << 23) + 0x3f800000u);
    return x < -87.68f ? 0.0f : e * power;
}

/* The standard normal CDF, 1/2 + x P(x^2) / Q(x^2) with a minimax quotient (relative error 4e-8 of the odd part
 * before rounding); beyond +-5.3 it rounds to 0 or 1. */
TSHI_INLINE float tshi_normal_cdf_f32(float x) {
    float s = x * x;
    float p = 2.92377649e-06f + s * (-2.23609113e-08f + s * 1.22382693e-10f);
    p = 0.398942262f + s * (0.0327917039f + s * (0.004305162f + s * (0.000138552685f + s * p)));
    float q = 1.0f + s * (0.248862773f + s * (0.0272699688f + s * (0.00164540939f + s * 5.19802779e-05f)));
    float cdf = 0.5f + x * p / q;
    cdf = x > 5.3f ? 1.0f : cdf;
    return x < -5.3f ? 0.0f : cdf;
}

/* The derivative of x Phi(x), 1/2 + x P(x^2) / Q(x^2) with a minimax quotient (absolute error 4e-9 before rounding);
 * beyond +-6 it rounds to 0 or 1 within 4e-8. */
TSHI_INLINE float tshi_gelu_slope_f32(float x) {
    float s = x * x;
    float p = 3.40919833e-05f + s * (9.22379115e-07f + s * 1.70445169e-08f);
    p = 0.797884524f + s * (-0.0223739855f + s * (0.0138574475f + s * (0.000202680327f + s * p)));
    float q = 1.03071188e-05f + s * (3.389288e-07f + s * 1.31466538e-09f);
    q = 1.0f + s * (0.305291325f + s * (0.0441325866f + s * (0.00397136668f + s * (0.000245310919f + s * q))));
    float slope = 0.5f + x * p / q;
    slope = x > 6.0f ? 1.0f : slope;
    return x < -6.0f ? 0.0f : slope;
}

/* x = 2^k m, sqrt(1/2) <= m < sqrt(2); log(x) = k ln(2) + log(m), log(1 + r) = r - r^2/2 + r^3 P(r) with a minimax P
 * (coefficients: Cephes, logf; relative error 1e-7). A subnormal x is scaled up first. */
TSHI_INLINE float tshi_log_f32(float x) {
    const float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    float scaled = x < 0x1p-126f ? x * 0x1p23f : x;
    uint32_t bits = tshi_bits_of_float(scaled) - 0x3F3504F3u; /* exponent relative to sqrt(1/2) */
    float k = (float)((int32_t)bits >> 23) - (x < 0x1p-126f ? 23.0f : 0.0f);
    float r = tshi_float_of_bits((bits & 0x7FFFFFu) + 0x3F3504F3u) - 1.0f;
    float p = 1.1676998740e-1f + r * (-1.1514610310e-1f + r * 7.0376836292e-2f);
    p = 1.4249322787e-1f + r * (-1.2420140846e-1f + r * p);
    p = 3.3333331174e-1f + r * (-2.4999993993e-1f + r * (2.0000714765e-1f + r * (-1.6668057665e-1f + r * p)));
    float s = r * r;
    float y = ((r * s * p + k * ln2_low) - 0.5f * s) + r + k * ln2_high;
    y = x == 0.0f ? -INFINITY : y;
    y = x < 0.0f ? NAN : y;
    return x < INFINITY ? y : x; /* infinity and NaN propagate */
}

/* An odd polynomial near 0 (coefficients: Cephes, tanhf), else from exp: relative error 2e-7. */
TSHI_INLINE float tshi_tanh_f32(float x) {
    float s = x * x;
    float p = 1.33314422036e-1f + s * (-5.37397155531e-2f + s * (2.06390887954e-2f - s * 5.70498872745e-3f));
    float near = x + x * s * (-3.33332819422e-1f + s * p);
    float far = 1.0f - 2.0f / (tshi_exp_f32(2.0f * x) + 1.0f);
    return s < 0.390625f ? near : far;
}

TSHI_INLINE float tshi_sqrt_f32(float x) {
    return sqrtf(x);
}

TSHI_INLINE float tshi_fabs_f32(float x) {
    return fabsf(x);
}

TSHI_INLINE double tshi_fabs_f64(double x) {
    return fabs(x);
}

TSHI_INLINE double tshi_log_f64(double x) {
    return log(x);
}

TSHI_INLINE double tshi_tanh_f64(double x) {
    return tanh(x);
}

TSHI_INLINE double tshi_sqrt_f64(double x) {
    return sqrt(x);
}

TSHI_INLINE double tshi_exp_f64(double x) {
    return exp(x);
}

TSHI_INLINE double tshi_exp_below_f64(double x) {
    return exp(x);
}

TSHI_INLINE double tshi_normal_cdf_f64(double x) {
    return 0.5 + 0.5 * erf(x * 0.70710678118654752440);
}

TSHI_INLINE double tshi_gelu_slope_f64(double x) {
    const double inverse_root_two_pi = 0.39894228040143267794;
    return tshi_normal_cdf_f64(x) + x * inverse_root_two_pi * exp(-0.5 * x * x);
}

#endif
