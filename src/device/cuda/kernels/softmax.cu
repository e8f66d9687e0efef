// Softmax and log-softmax in their passes.
#include "device/cuda/kernels/reduce.cuh"

using namespace tshi;

namespace {

// --- statistics ------------------------------------------------------------------------------------------------------

// A NaN is no maximum: it returns in the exponentials.
template <typename S> struct max_op : adding<S> {
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
    __device__ void put(int64_t j, S total) const {
        to[j] = total;
    }
};

template <typename T> struct exp_sum_op : adding<sum_t<T>> {
    using S = sum_t<T>;
    static constexpr int USE = READ_X;
    const S *max;
    S *to;
    __device__ S take(S so_far, S x, S, S max) const {
        return so_far + exp_of<T>(x - max);
    }
    __device__ S given(int64_t j) const {
        return max[j];
    }
    __device__ void put(int64_t j, S total) const {
        to[j] = total;
    }
};

template <typename S, bool LOG> struct dot_op : adding<S> {
    static constexpr int USE = LOG ? READ_Y : READ_X | READ_Y;
    S *to;
    __device__ S take(S so_far, S y, S dy, S) const {
        return so_far + (LOG ? dy : y * dy);
    }
    __device__ void put(int64_t j, S total) const {
        to[j] = total;
    }
};

template <typename T>
void softmax_max(tsh_device *device, int64_t outer, int64_t n, int64_t inner, const void *x, void *max) {
    using S = sum_t<T>;
    reduce(device, "softmax_max", outer, n, inner, (const T *)x, (const T *)nullptr, max_op<S>{{}, (S *)max});
}

template <typename T>
void softmax_sum(tsh_device *device, int64_t outer, int64_t n, int64_t inner, const void *x, const void *max,
                 void *sum) {
    using S = sum_t<T>;
    exp_sum_op<T> op = {{}, (const S *)max, (S *)sum};
    reduce(device, "softmax_sum", outer, n, inner, (const T *)x, (const T *)nullptr, op);
}

template <typename T>
void softmax_dot(tsh_device *device, bool log, int64_t outer, int64_t n, int64_t inner, const void *y, const void *dy,
                 void *dot) {
    using S = sum_t<T>;
    with_bool(log, [=](auto l) {
        dot_op<S, l.value> op = {{}, (S *)dot};
        reduce(device, "softmax_dot", outer, n, inner, (const T *)y, (const T *)dy, op);
    });
}

// --- values ----------------------------------------------------------------------------------------------------------

// The elements of a softmax, by the maxima and sums.
template <typename T, bool LOG> struct forward_op {
    using S = sum_t<T>;
    struct row {
        S max, last; // 1 / sum, or log(sum)
        __device__ S operator()(S x, S, S) const {
            return LOG ? (x - max) - last : exp_of<T>(x - max) * last;
        }
    };
    const S *max, *sum;
    __device__ row operator()(int64_t j) const {
        return {max[j], LOG ? log(sum[j]) : reciprocal(sum[j])};
    }
};

template <typename T, bool LOG> struct backward_op {
    using S = sum_t<T>;
    struct row {
        S dot;
        __device__ S operator()(S y, S dy, S dx) const {
            return dx + (LOG ? dy - exp_of<T>(y) * dot : y * (dy - dot));
        }
    };
    const S *dot;
    __device__ row operator()(int64_t j) const {
        return {dot[j]};
    }
};

// z[o, i, k] = f(o * inner + k)(x[o, i, k], y[o, i, k], z[o, i, k]); arrays not in USE may be any. Rows of n * inner
// elements, one for each o.
template <int USE, typename T, bool WARPS, typename F>
__global__ void __launch_bounds__(256, 2) map_rows(pieces p, int64_t inner, const T *x, const T *y, T *z, F f) {
    using S = sum_t<T>;
    team<WARPS> t(p);
    cycle k(t.begin, inner);
    for (int64_t o = t.first; o < p.rows; o += t.step) {
        const int64_t at = o * p.n + t.begin;
        if (inner == 1) {
            const auto g = f(o);
            walk<USE>(t.length, x + at, y + at, z + at, t.me, t.size,
                      [=](int64_t, S a, S b, S c) { return g(a, b, c); });
        } else {
            walk<USE>(t.length, x + at, y + at, z + at, t.me, t.size,
                      [=](int64_t i, S a, S b, S c) { return f(o * inner + k.at(i))(a, b, c); });
        }
    }
}

template <int USE, typename T, typename F>
void map_by_row(tsh_device *device, const char *what, int64_t outer, int64_t n, int64_t inner, const void *x,
                const void *y, void *z, F f) {
    if (outer <= 0 || n <= 0 || inner <= 0) return;
    pieces p = split_rows(device, outer, n * inner);
    with_team<T>(device, p, [&](auto warps, unsigned blocks, unsigned threads) {
        launch(device, what, map_rows<USE, T, warps.value, F>, blocks, threads, p, inner, (const T *)x, (const T *)y,
               (T *)z, f);
    });
}

template <typename T>
void softmax(tsh_device *device, bool log, int64_t outer, int64_t n, int64_t inner, const void *x, const void *max,
             const void *sum, void *y) {
    using S = sum_t<T>;
    with_bool(log, [=](auto l) {
        forward_op<T, l.value> op = {(const S *)max, (const S *)sum};
        map_by_row<READ_X | WRITE_Z, T>(device, "softmax", outer, n, inner, x, x, y, op);
    });
}

template <typename T>
void softmax_backward(tsh_device *device, bool log, int64_t outer, int64_t n, int64_t inner, const void *y,
                      const void *dy, const void *dot, void *dx) {
    constexpr int USE = READ_X | READ_Y | READ_Z | WRITE_Z;
    with_bool(log, [=](auto l) {
        backward_op<T, l.value> op = {(const sum_t<T> *)dot};
        map_by_row<USE, T>(device, "softmax_backward", outer, n, inner, y, dy, dx, op);
    });
}

template <typename T>
constexpr tshi_softmax_ops table = {.max = softmax_max<T>,
                                    .sum = softmax_sum<T>,
                                    .forward = softmax<T>,
                                    .dot = softmax_dot<T>,
                                    .backward = softmax_backward<T>};

} // namespace

const tshi_softmax_ops tshi_cuda_softmax[TSH_DTYPE_COUNT] = {table<float>, table<double>, table<__nv_bfloat16>,
                                                             table<__half>};
