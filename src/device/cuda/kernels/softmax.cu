// Softmax and log-softmax in their passes.
#include "device/cuda/kernels/reduce.cuh"

using namespace tshi;

namespace {

// --- statistics ------------------------------------------------------------------------------------------------------

// A NaN is no maximum: it returns in the exponentials.
template <typename S> struct max_op {
    static constexpr int USE = READ_X;
    S *to;
    static __device__ S none() {
        return S(-INFINITY);
    }
    __device__ S take(S so_far, S x, S, S) const {
        return x > so_far ? x : so_far;
    }
    static __device__ S merge(S a, S b) {
        return b > a ? b : a;
    }
    __device__ S given(int64_t) const {
        return S(0);
    }
    __device__ void put(int64_t j, S total) const {
        to[j] = total;
    }
};

template <typename T> struct exp_sum_op {
    using S = sum_t<T>;
    static constexpr int USE = READ_X;
    const S *max;
    S *to;
    static __device__ S none() {
        return S(0);
    }
    __device__ S take(S so_far, S x, S, S max) const {
        return so_far + exp_of<T>(x - max);
    }
    static __device__ S merge(S a, S b) {
        return a + b;
    }
    __device__ S given(int64_t j) const {
        return max[j];
    }
    __device__ void put(int64_t j, S total) const {
        to[j] = total;
    }
};

template <typename S, bool LOG> struct dot_op {
    static constexpr int USE = LOG ? READ_Y : READ_X | READ_Y;
    S *to;
    static __device__ S none() {
        return S(0);
    }
    __device__ S take(S so_far, S y, S dy, S) const {
        return so_far + (LOG ? dy : y * dy);
    }
    static __device__ S merge(S a, S b) {
        return a + b;
    }
    __device__ S given(int64_t) const {
        return S(0);
    }
    __device__ void put(int64_t j, S total) const {
        to[j] = total;
    }
};

// --- values ----------------------------------------------------------------------------------------------------------

// The elements of a softmax, by its maximum and sum.
template <typename T, bool LOG> struct forward {
    using S = sum_t<T>;
    S max, last; // 1 / sum, or log(sum)
    __device__ forward(S max, S sum) : max(max), last(LOG ? log(sum) : reciprocal(sum)) {}
    __device__ S operator()(S x) const {
        return LOG ? (x - max) - last : exp_of<T>(x - max) * last;
    }
};

template <typename T, bool LOG> struct backward {
    using S = sum_t<T>;
    S dot;
    __device__ S operator()(S y, S dy, S dx) const {
        return dx + (LOG ? dy - exp_of<T>(y) * dot : y * (dy - dot));
    }
};

// Rows of n * inner elements, one for each o.
template <typename T, bool LOG, bool WARPS>
__global__ void __launch_bounds__(256, 2)
    softmax(pieces p, int64_t inner, const T *x, const sum_t<T> *max, const sum_t<T> *sum, T *y) {
    using S = sum_t<T>;
    team<WARPS> t(p);
    cycle k(t.begin, inner);
    for (int64_t o = t.first; o < p.rows; o += t.step) {
        int64_t at = o * p.n + t.begin;
        if (inner == 1) {
            forward<T, LOG> f(max[o], sum[o]);
            walk<READ_X | WRITE_Z>(t.length, x + at, x, y + at, t.me, t.size, [=](int64_t, S v, S, S) { return f(v); });
        } else {
            walk<READ_X | WRITE_Z>(t.length, x + at, x, y + at, t.me, t.size, [=](int64_t i, S v, S, S) {
                int64_t j = o * inner + k.at(i);
                return forward<T, LOG>(max[j], sum[j])(v);
            });
        }
    }
}

template <typename T, bool LOG, bool WARPS>
__global__ void __launch_bounds__(256, 2)
    softmax_backward(pieces p, int64_t inner, const T *y, const T *dy, const sum_t<T> *dot, T *dx) {
    using S = sum_t<T>;
    constexpr int USE = READ_X | READ_Y | READ_Z | WRITE_Z;
    team<WARPS> t(p);
    cycle k(t.begin, inner);
    for (int64_t o = t.first; o < p.rows; o += t.step) {
        int64_t at = o * p.n + t.begin;
        if (inner == 1) {
            backward<T, LOG> f = {dot[o]};
            walk<USE>(t.length, y + at, dy + at, dx + at, t.me, t.size,
                      [=](int64_t, S a, S b, S c) { return f(a, b, c); });
        } else {
            walk<USE>(t.length, y + at, dy + at, dx + at, t.me, t.size,
                      [=](int64_t i, S a, S b, S c) { return backward<T, LOG>{dot[o * inner + k.at(i)]}(a, b, c); });
        }
    }
}

} // namespace

void tshi_cuda_softmax_max(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, const void *x,
                           void *max) {
    with_float(dtype, [=](auto element) {
        using T = decltype(element);
        using S = sum_t<T>;
        reduce(device, "softmax_max", outer, n, inner, (const T *)x, (const T *)nullptr, max_op<S>{(S *)max});
    });
}

void tshi_cuda_softmax_sum(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, const void *x,
                           const void *max, void *sum) {
    with_float(dtype, [=](auto element) {
        using T = decltype(element);
        using S = sum_t<T>;
        exp_sum_op<T> op = {(const S *)max, (S *)sum};
        reduce(device, "softmax_sum", outer, n, inner, (const T *)x, (const T *)nullptr, op);
    });
}

void tshi_cuda_softmax_dot(tsh_device *device, bool log, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                           const void *y, const void *dy, void *dot) {
    with_float(dtype, [=](auto element) {
        using T = decltype(element);
        using S = sum_t<T>;
        with_bool(log, [=](auto l) {
            dot_op<S, decltype(l)::value> op = {(S *)dot};
            reduce(device, "softmax_dot", outer, n, inner, (const T *)y, (const T *)dy, op);
        });
    });
}

void tshi_cuda_softmax(tsh_device *device, bool log, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                       const void *x, const void *max, const void *sum, void *y) {
    if (outer <= 0 || n <= 0 || inner <= 0) return;
    pieces p = split_rows(device, outer, n * inner);
    with_float(dtype, [&](auto element) {
        using T = decltype(element);
        using S = sum_t<T>;
        with_team<T>(device, p, [&](auto warps, unsigned blocks, unsigned threads) {
            with_bool(log, [&](auto l) {
                launch(device, "softmax", softmax<T, decltype(l)::value, decltype(warps)::value>, blocks, threads, p,
                       inner, (const T *)x, (const S *)max, (const S *)sum, (T *)y);
            });
        });
    });
}

void tshi_cuda_softmax_backward(tsh_device *device, bool log, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                                const void *y, const void *dy, const void *dot, void *dx) {
    if (outer <= 0 || n <= 0 || inner <= 0) return;
    pieces p = split_rows(device, outer, n * inner);
    with_float(dtype, [&](auto element) {
        using T = decltype(element);
        using S = sum_t<T>;
        with_team<T>(device, p, [&](auto warps, unsigned blocks, unsigned threads) {
            with_bool(log, [&](auto l) {
                launch(device, "softmax_backward", softmax_backward<T, decltype(l)::value, decltype(warps)::value>,
                       blocks, threads, p, inner, (const T *)y, (const T *)dy, (const S *)dot, (T *)dx);
            });
        });
    });
}
