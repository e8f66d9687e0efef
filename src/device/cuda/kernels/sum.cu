// Sums and their gradients.
#include "device/cuda/kernels/reduce.cuh"

using namespace tshi;

namespace {

// y = scale * sum, or y += scale * sum.
template <typename T, bool ADD, typename Y = T> struct sum_op : adding<sum_t<T>> {
    using S = sum_t<T>;
    static constexpr int USE = READ_X;
    Y *y;
    S scale;
    __device__ S take(S so_far, S x, S, S) const {
        return so_far + x;
    }
    __device__ void put(int64_t j, S total) const {
        y[j] = store<Y>(ADD ? load(y[j]) + scale * total : scale * total);
    }
};

// The gradient of a sum: each of its terms gets scale * dy. A row of `pieces` is the n * inner elements of one o.
template <typename T, bool WARPS>
__global__ void __launch_bounds__(256, 2)
    spread(pieces p, int64_t inner, sum_t<T> scale, const T *__restrict__ dy, T *__restrict__ dx) {
    using S = sum_t<T>;
    team<WARPS> t(p);
    cycle k(t.begin, inner);
    for (int64_t o = t.first; o < p.rows; o += t.step) {
        T *to = dx + o * p.n + t.begin;
        const T *from = dy + o * inner;
        S term = scale * load(from[0]);
        if (inner == 1)
            walk<READ_Z | WRITE_Z>(t.length, from, from, to, t.me, t.size,
                                   [=](int64_t, S, S, S d) { return d + term; });
        else
            walk<READ_Z | WRITE_Z>(t.length, from, from, to, t.me, t.size,
                                   [=](int64_t i, S, S, S d) { return d + scale * load(from[k.at(i)]); });
    }
}

template <typename T>
void sum(tsh_device *device, int64_t outer, int64_t n, int64_t inner, double scale, const void *x, void *y) {
    sum_op<T, false> op = {{}, (T *)y, (sum_t<T>)scale};
    reduce(device, "sum", outer, n, inner, (const T *)x, (const T *)nullptr, op);
}

template <typename T>
void sum_backward(tsh_device *device, int64_t outer, int64_t n, int64_t inner, double scale, const void *dy, void *dx) {
    if (outer <= 0 || n <= 0 || inner <= 0) return;
    pieces p = split_rows(device, outer, n * inner);
    with_team<T>(device, p, [&](auto warps, unsigned blocks, unsigned threads) {
        launch(device, "sum_backward", spread<T, warps.value>, blocks, threads, p, inner, (sum_t<T>)scale,
               (const T *)dy, (T *)dx);
    });
}

// Y: the dtype of db.
template <typename T, typename Y>
void bias_backward(tsh_device *device, int64_t rows, int64_t cols, const void *dy, void *db) {
    sum_op<T, true, Y> op = {{}, (Y *)db, 1};
    reduce(device, "bias_backward", 1, rows, cols, (const T *)dy, (const T *)nullptr, op);
}

// --- cumulative sums -------------------------------------------------------------------------------------------------

// A line is n elements, `inner` apart. With reverse, its first element is the last one in memory.
template <typename T> struct line {
    using S = sum_t<T>;
    const T *x;
    T *y;
    int64_t step;

    __device__ line(int64_t index, int64_t n, int64_t inner, bool reverse, const T *x, T *y) {
        int64_t first = (index / inner * n + (reverse ? n - 1 : 0)) * inner + index % inner;
        this->x = x + first;
        this->y = y + first;
        step = reverse ? -inner : inner;
    }
    __device__ void put(int64_t i, S total, S beta) const {
        T *to = y + i * step;
        *to = store<T>(beta == S(0) ? total : beta * load(*to) + total);
    }
};

constexpr int LINE_THREADS = 256;

// A block a line: the block scans LINE_THREADS elements at a time.
template <typename T>
__global__ void __launch_bounds__(LINE_THREADS)
    scan_lines(int64_t lines, int64_t n, int64_t inner, bool reverse, const T *x, sum_t<T> beta, T *y) {
    using S = sum_t<T>;
    __shared__ S totals[LINE_THREADS / WARP];
    const int me = threadIdx.x, lane = me % WARP, warp = me / WARP;
    for (int64_t index = blockIdx.x; index < lines; index += gridDim.x) {
        const line<T> l(index, n, inner, reverse, x, y);
        S carry = S(0);
        for (int64_t begin = 0; begin < n; begin += LINE_THREADS) {
            const int64_t i = begin + me;
            S value = i < n ? S(load(l.x[i * l.step])) : S(0);
            for (int lanes = 1; lanes < WARP; lanes *= 2) {
                const S below = shuffle_up(value, lanes);
                if (lane >= lanes) value += below;
            }
            if (lane == WARP - 1) totals[warp] = value;
            barrier();
            S before = carry;
            for (int w = 0; w < LINE_THREADS / WARP; w++) {
                if (w == warp) before = carry;
                carry += totals[w];
            }
            barrier();
            if (i < n) l.put(i, before + value, beta);
        }
    }
}

// A thread a line, for neighbouring lines that lie next to each other.
template <typename T>
__global__ void __launch_bounds__(LINE_THREADS)
    add_up_lines(int64_t lines, int64_t n, int64_t inner, bool reverse, const T *x, sum_t<T> beta, T *y) {
    using S = sum_t<T>;
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t index = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; index < lines; index += step) {
        const line<T> l(index, n, inner, reverse, x, y);
        S total = S(0);
        for (int64_t i = 0; i < n; i++) {
            total += load(l.x[i * l.step]);
            l.put(i, total, beta);
        }
    }
}

template <typename T>
void cumulative(tsh_device *device, bool reverse, int64_t outer, int64_t n, int64_t inner, const void *x, double beta,
                void *y) {
    if (outer <= 0 || n <= 0 || inner <= 0) return;
    const bool wide = inner >= WARP;
    unsigned blocks = blocks_for(device, outer * inner * (wide ? 1 : LINE_THREADS), LINE_THREADS);
    launch(device, "cumsum", wide ? add_up_lines<T> : scan_lines<T>, blocks, (unsigned)LINE_THREADS, outer * inner, n,
           inner, reverse, (const T *)x, (sum_t<T>)beta, (T *)y);
}

// --- squares ---------------------------------------------------------------------------------------------------------

constexpr int THREADS = 256;

template <typename T>
__global__ void __launch_bounds__(THREADS, 2)
    squares(int64_t n, const T *__restrict__ x, double *__restrict__ partial) {
    using S = sum_t<T>;
    __shared__ double shared[WARP];
    int64_t me = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    double total = 0.0;
    walk<READ_X>(n, x, x, (T *)nullptr, me, step, [&](int64_t, S a, S, S) {
        total += (double)a * (double)a;
        return a;
    });
    total = block_reduce(total, shared, plus(), 0.0);
    if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

__global__ void __launch_bounds__(THREADS, 2) add_squares(int n, const double *__restrict__ partial, double *sum) {
    __shared__ double shared[WARP];
    double total = 0.0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) total += partial[i];
    total = block_reduce(total, shared, plus(), 0.0);
    if (threadIdx.x == 0) *sum += total;
}

template <typename T> void sum_squares(tsh_device *device, int64_t n, const void *x, double *sum) {
    if (n <= 0) return;
    unsigned blocks = blocks_for(device, up(n, pack<T>::size), THREADS);
    double *partial = (double *)scratch(device, (int64_t)(blocks * sizeof(double)), "sum_squares");
    if (!partial) return;
    launch(device, "sum_squares", squares<T>, blocks, THREADS, n, (const T *)x, partial);
    launch(device, "sum_squares", add_squares, 1, THREADS, (int)blocks, partial, sum);
    device->ops->memory.release(device, partial);
}

template <typename T>
constexpr tshi_sum_ops table = {.over_dim = sum<T>,
                                .over_dim_backward = sum_backward<T>,
                                .cumulative = cumulative<T>,
                                .bias_backward = bias_backward<T, T>,
                                .bias_backward_wide = bias_backward<T, sum_t<T>>,
                                .squares = sum_squares<T>};

} // namespace

const tshi_sum_ops tshi_cuda_sum[TSH_DTYPE_COUNT] = {table<float>, table<double>, table<__nv_bfloat16>, table<__half>};
