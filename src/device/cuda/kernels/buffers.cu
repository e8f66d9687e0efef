// Reductions across buffers: collectives on memory that ranks share.
#include "device/cuda/kernels/common.cuh"

using namespace tshi;

namespace {

constexpr int THREADS = 256;

struct buffers {
    const void *in[TSHI_REDUCE_MAX];
    void *out[TSHI_REDUCE_MAX];
    int count, outs;
};

template <typename S> struct alignas(2 * sizeof(S)) complex_of { S re, im; };

// The compute type of T: unsigned for integers, whose sums may wrap.
template <typename T> struct wide_of { using type = sum_t<T>; };
template <> struct wide_of<int32_t> { using type = uint32_t; };
template <> struct wide_of<int64_t> { using type = uint64_t; };
template <> struct wide_of<uint8_t> { using type = uint32_t; };

template <typename T> constexpr bool is_integer = std::is_integral_v<T>;

// A NaN on either side propagates. T tells whether `a` and `b` are signed.
template <typename T, typename S> __device__ inline bool first_of(bool least, S a, S b) {
    if constexpr (is_integer<T>)
        return least ? (T)a < (T)b : (T)a > (T)b;
    else
        return (least ? a < b : a > b) || a != a;
}

template <typename T, typename S> __device__ inline S join(tshi_reduction op, S a, S b) {
    if constexpr (is_integer<T>) {
        if (op == TSHI_BAND) return a & b;
        if (op == TSHI_BOR) return a | b;
        if (op == TSHI_BXOR) return a ^ b;
    }
    if (op == TSHI_PROD) return a * b;
    if (op == TSHI_MIN || op == TSHI_MAX) return first_of<T>(op == TSHI_MIN, a, b) ? a : b;
    return a + b;
}

// Divides: a product with 1 / count would round twice.
template <typename T, typename S> __device__ inline S finish(tshi_reduction op, S sum, int count) {
    if constexpr (!is_integer<T>) {
        if (op == TSHI_AVG) return sum / (S)count;
    }
    return sum;
}

// A pack of N elements at i.
template <typename T, int N> struct items {
    using S = typename wide_of<T>::type;
    S item[N];

    __device__ items(const void *from, int64_t i) {
        pack<T, N> p = *(const pack<T, N> *)((const T *)from + i);
        for (int j = 0; j < N; j++) {
            if constexpr (is_integer<T>)
                item[j] = (S)p.item[j];
            else
                item[j] = load(p.item[j]);
        }
    }

    __device__ void join_with(tshi_reduction op, const items &other) {
        for (int j = 0; j < N; j++) item[j] = join<T>(op, item[j], other.item[j]);
    }

    __device__ pack<T, N> rounded(tshi_reduction op, int count) const {
        pack<T, N> p;
        for (int j = 0; j < N; j++) {
            if constexpr (is_integer<T>)
                p.item[j] = (T)item[j];
            else
                p.item[j] = store<T>(finish<T>(op, item[j], count));
        }
        return p;
    }
};

// Complex elements.
template <typename S, int N> struct items<complex_of<S>, N> {
    complex_of<S> item[N];

    __device__ items(const void *from, int64_t i) {
        for (int j = 0; j < N; j++) item[j] = ((const complex_of<S> *)from)[i + j];
    }

    __device__ void join_with(tshi_reduction, const items &other) {
        for (int j = 0; j < N; j++) {
            complex_of<S> a = item[j], b = other.item[j];
            item[j].re = a.re * b.re - a.im * b.im;
            item[j].im = a.re * b.im + a.im * b.re;
        }
    }

    __device__ pack<complex_of<S>, N> rounded(tshi_reduction, int) const {
        pack<complex_of<S>, N> p;
        for (int j = 0; j < N; j++) p.item[j] = item[j];
        return p;
    }
};

template <typename T, int N> __device__ inline void reduce_at(int64_t i, tshi_reduction op, const buffers &b) {
    items<T, N> sum(b.in[0], i);
    for (int k = 1; k < b.count; k++) sum.join_with(op, items<T, N>(b.in[k], i));
    pack<T, N> result = sum.rounded(op, b.count);
    for (int k = 0; k < b.outs; k++) store_pack((pack<T, N> *)((T *)b.out[k] + i), result);
}

// Packs of 16 bytes between the first and the last boundary, if all buffers have the same alignment modulo 16.
template <typename T>
__global__ void __launch_bounds__(THREADS, 2) reduce(int64_t n, int64_t head, tshi_reduction op, buffers b) {
    constexpr int size = pack<T>::size;
    int64_t me = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    int64_t packed = head + (n - head) / size * size;
    for (int64_t i = me; i < head; i += step) reduce_at<T, 1>(i, op, b);
    for (int64_t i = head + me * size; i < packed; i += step * size) reduce_at<T, size>(i, op, b);
    for (int64_t i = packed + me; i < n; i += step) reduce_at<T, 1>(i, op, b);
}

template <typename T> void reduce_all(tsh_device *device, tshi_reduction op, int64_t n, const buffers &b) {
    uintptr_t first = (uintptr_t)b.in[0], apart = 0;
    for (int k = 0; k < b.count; k++) apart |= first ^ (uintptr_t)b.in[k];
    for (int k = 0; k < b.outs; k++) apart |= first ^ (uintptr_t)b.out[k];
    int64_t head = apart % 16 == 0 ? (int64_t)(-first % 16 / sizeof(T)) : n;
    if (head > n) head = n;
    launch(device, "reduce", reduce<T>, blocks_for(device, up(n, pack<T>::size), THREADS), THREADS, n, head, op, b);
}

// f(T()) with T the element type.
template <typename F> void with_element(tsh_dtype dtype, F f) {
    switch (dtype) {
    case TSH_COMPLEX64: f(complex_of<float>()); break;
    case TSH_COMPLEX128: f(complex_of<double>()); break;
    default: with_real(dtype, f); break;
    }
}

} // namespace

void tshi_cuda_reduce(tsh_device *device, tsh_dtype dtype, tshi_reduction op, int64_t n, int count,
                      const void *const *in, int outs, void *const *out) {
    if (n <= 0 || count < 1 || outs < 1 || count > TSHI_REDUCE_MAX || outs > TSHI_REDUCE_MAX) return;
    buffers b = {};
    b.count = count;
    b.outs = outs;
    for (int k = 0; k < count; k++) b.in[k] = in[k];
    for (int k = 0; k < outs; k++) b.out[k] = out[k];
    if (op != TSHI_PROD && (dtype == TSH_COMPLEX64 || dtype == TSH_COMPLEX128)) {
        dtype = dtype == TSH_COMPLEX64 ? TSH_FLOAT32 : TSH_FLOAT64;
        n *= 2;
    }
    with_element(dtype, [&](auto element) { reduce_all<decltype(element)>(device, op, n, b); });
}
