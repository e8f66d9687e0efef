// Functions of one element: value(x), and gradient(x, dy), the gradient of x from that of the value. Limits and NaNs as
// in PyTorch.
#pragma once

#include "device/cuda/kernels/common.cuh"

namespace tshi {

template <typename T> struct gelu_erf {
    using S = sum_t<T>;
    // exp(-x^2 / 2): the normal density times sqrt(2 pi).
    static __device__ S density(S x) {
        return exp_of<T>(S(-0.5) * x * x);
    }
    // The normal distribution function, by erfc, which has no cancellation in the negative tail. 16-bit types have
    // erfc(z) = exp(-z^2) t P(t), t = 1 / (1 + 0.38 z): a minimax fit over [0, 14] with a relative error of 1.3e-6. The
    // exact erfc takes longer than reading and writing the element.
    static __device__ S cdf(S x, S density) {
        if (sizeof(T) > 2) return S(0.5) * erfc(x * S(-0.70710678118654752440));
        const S t = reciprocal(S(1) + S(0.38 * 0.70710678118654752440) * fabs(x));
        S p = S(-0.1254173855);
        p = p * t + S(0.3360351567);
        p = p * t + S(-0.0699108626);
        p = p * t + S(0.2478322111);
        p = p * t + S(0.1805953160);
        p = p * t + S(0.2165771990);
        p = p * t + S(0.2142873295);
        const S tail = S(0.5) * density * t * p;
        return x < S(0) ? tail : S(1) - tail;
    }
    static __device__ S value(S x) {
        return x * cdf(x, density(x));
    }
    static __device__ S gradient(S x, S dy) {
        const S d = density(x);
        return (cdf(x, d) + x * S(0.39894228040143267794) * d) * dy;
    }
};

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)): cheaper than tanh, and exact in the negative tail.
template <typename T> struct gelu_tanh {
    using S = sum_t<T>;
    static __device__ S gate(S x) {
        return sigmoid_of<T>(S(1.59576912160573071176) * (x + S(0.044715) * x * x * x));
    }
    static __device__ S value(S x) {
        return x * gate(x);
    }
    static __device__ S gradient(S x, S dy) {
        S s = gate(x);
        return (s + x * s * (S(1) - s) * S(1.59576912160573071176) * (S(1) + S(3 * 0.044715) * x * x)) * dy;
    }
};

// A NaN propagates: it is not <= 0.
template <typename T> struct relu {
    using S = sum_t<T>;
    static __device__ S value(S x) {
        return x <= S(0) ? S(0) : x;
    }
    static __device__ S gradient(S x, S dy) {
        return x <= S(0) ? S(0) : dy;
    }
};

template <typename T> struct silu {
    using S = sum_t<T>;
    static __device__ S value(S x) {
        return x * sigmoid_of<T>(x);
    }
    static __device__ S gradient(S x, S dy) {
        S s = sigmoid_of<T>(x);
        return s * (S(1) + x * (S(1) - s)) * dy;
    }
};

template <typename T> struct exponential {
    using S = sum_t<T>;
    static __device__ S value(S x) {
        return exp_of<T>(x);
    }
    static __device__ S gradient(S x, S dy) {
        return exp_of<T>(x) * dy;
    }
};

template <typename T> struct logarithm {
    using S = sum_t<T>;
    static __device__ S value(S x) {
        return log(x);
    }
    static __device__ S gradient(S x, S dy) {
        return dy / x;
    }
};

template <typename T> struct hyperbolic_tangent {
    using S = sum_t<T>;
    static __device__ S value(S x) {
        return tanh(x);
    }
    static __device__ S gradient(S x, S dy) {
        S y = tanh(x);
        return (S(1) - y * y) * dy;
    }
};

template <typename T> struct square_root {
    using S = sum_t<T>;
    static __device__ S value(S x) {
        return sqrt(x);
    }
    static __device__ S gradient(S x, S dy) {
        return dy / (S(2) * sqrt(x));
    }
};

template <typename T> struct sigmoid {
    using S = sum_t<T>;
    static __device__ S value(S x) {
        return sigmoid_of<T>(x);
    }
    static __device__ S gradient(S x, S dy) {
        S s = sigmoid_of<T>(x);
        return s * (S(1) - s) * dy;
    }
};

template <typename T> struct power {
    using S = sum_t<T>;
    S a;
    static __device__ S of(S x, S a) {
        if (a == S(2)) return x * x;
        if (a == S(0.5)) return sqrt(x);
        if (a == S(-0.5)) return S(1) / sqrt(x);
        if (a == S(-1)) return S(1) / x;
        if (a == S(-2)) return S(1) / (x * x);
        if (a == S(3)) return x * x * x;
        return pow(x, a);
    }
    __device__ S value(S x) const {
        return of(x, a);
    }
    __device__ S gradient(S x, S dy) const {
        return a == S(0) ? S(0) : a * of(x, a - S(1)) * dy;
    }
};

template <typename T> struct clamp {
    using S = sum_t<T>;
    S a, b;
    __device__ S value(S x) const {
        S above = x < a ? a : x;
        return above > b ? b : above;
    }
    __device__ S gradient(S x, S dy) const {
        return x > a && x < b ? dy : S(0);
    }
};

template <typename T> struct absolute {
    using S = sum_t<T>;
    static __device__ S value(S x) {
        return fabs(x);
    }
    static __device__ S gradient(S x, S dy) {
        return x > S(0) ? dy : x < S(0) ? -dy : S(0);
    }
};

template <typename T> struct scale_shift {
    using S = sum_t<T>;
    S a, b;
    __device__ S value(S x) const {
        return a * x + b;
    }
    __device__ S gradient(S, S dy) const {
        return a * dy;
    }
};

// Calls g with the function of a unary and its parameters.
template <typename T, typename G> void with_unary(tshi_unary f, const double *p, G g) {
    using S = sum_t<T>;
    switch (f) {
    case TSHI_GELU_ERF: g(gelu_erf<T>()); break;
    case TSHI_GELU_TANH: g(gelu_tanh<T>()); break;
    case TSHI_RELU: g(relu<T>()); break;
    case TSHI_SILU: g(silu<T>()); break;
    case TSHI_EXP: g(exponential<T>()); break;
    case TSHI_LOG: g(logarithm<T>()); break;
    case TSHI_TANH: g(hyperbolic_tangent<T>()); break;
    case TSHI_SQRT: g(square_root<T>()); break;
    case TSHI_SIGMOID: g(sigmoid<T>()); break;
    case TSHI_POW: g(power<T>{(S)p[0]}); break;
    case TSHI_CLAMP: g(clamp<T>{(S)p[0], (S)p[1]}); break;
    case TSHI_ABS: g(absolute<T>()); break;
    case TSHI_SCALE_SHIFT: g(scale_shift<T>{(S)p[0], (S)p[1]}); break;
    default: break;
    }
}

} // namespace tshi
