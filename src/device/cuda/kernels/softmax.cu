// Softmax and log-softmax: pass by pass, and of whole rows in one kernel.
#include "device/cuda/kernels/reduce.cuh"

using namespace tshi;

namespace {

// --- statistics ------------------------------------------------------------------------------------------------------

// The maximum ignores NaNs: the exponentials propagate them.
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

// The values of a softmax from the rows' maxima and sums.
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

// z[o, i, k] = f(o * inner + k)(x[o, i, k], y[o, i, k], z[o, i, k]). Arrays not in USE are not read. A row of `pieces`
// is the n * inner elements of one o.
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

// --- rows that are read once -----------------------------------------------------------------------------------------

constexpr int HELD = 4;          // packs of a row that a thread keeps
constexpr int SHORT_ROWS = 128;  // threads of a block in which each warp has a row
constexpr int MAX_THREADS = 512; // of a block
constexpr int LONG_ROW = 2048;   // elements of a row from which a block of MAX_THREADS reads it twice

struct larger {
    template <typename S> __device__ S operator()(S a, S b) const {
        return b > a ? b : a;
    }
};

// A thread's packs of a row, as loaded: unpacked, 16-bit elements would take a register each.
template <typename T> struct row_part {
    using S = sum_t<T>;
    using C = pack<T>;
    uint4 bits[HELD];

    __device__ void read(const T *row, int64_t chunks, int lane, int group) {
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (lane + k * group < chunks) bits[k] = ((const uint4 *)row)[lane + k * group];
    }

    __device__ C get(int k) const {
        C c;
        memcpy(&c, &bits[k], sizeof c);
        return c;
    }
};

// Reduces over a row's group. `shared` has one element a warp. The next call must use another array; the one after it
// may use this one again.
template <typename S, typename Op> __device__ inline S group_reduce(int group, S value, S *shared, Op op) {
    value = warp_reduce(value, op);
    if (group == WARP) return value;
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = value;
    barrier();
    value = shared[0];
    for (int i = 1; i < group / WARP; i++) value = op(value, shared[i]);
    return value;
}

template <typename T, bool LOG>
__global__ void __launch_bounds__(MAX_THREADS, sizeof(T) == 8 ? 1 : 2)
    whole_rows(int group, int64_t rows, int64_t chunks, const T *x, T *y) {
    using S = sum_t<T>;
    constexpr int W = pack<T>::size;
    __shared__ S maxima[WARP], sums[WARP];
    const int lane = threadIdx.x % group, groups = blockDim.x / group;
    for (int64_t r = (int64_t)blockIdx.x * groups + threadIdx.x / group; r < rows; r += (int64_t)gridDim.x * groups) {
        row_part<T> part;
        part.read(x + r * chunks * W, chunks, lane, group);
        S max = S(-INFINITY), sum = 0;
#pragma unroll
        for (int k = 0; k < HELD; k++)
            for (int j = 0; j < W && lane + k * group < chunks; j++) max = larger()(max, load(part.get(k).item[j]));
        max = group_reduce(group, max, maxima, larger());
#pragma unroll
        for (int k = 0; k < HELD; k++)
            for (int j = 0; j < W && lane + k * group < chunks; j++) sum += exp_of<T>(load(part.get(k).item[j]) - max);
        sum = group_reduce(group, sum, sums, plus());
        const typename forward_op<T, LOG>::row f = {max, LOG ? log(sum) : reciprocal(sum)};
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            if (lane + k * group >= chunks) continue;
            pack<T> out = part.get(k);
            for (int j = 0; j < W; j++) out.item[j] = store<T>(f(load(out.item[j]), 0, 0));
            store_pack((pack<T> *)(y + r * chunks * W) + lane + k * group, out);
        }
    }
}

template <typename T, bool LOG>
__global__ void __launch_bounds__(MAX_THREADS, sizeof(T) == 8 ? 1 : 2)
    whole_rows_backward(int group, int64_t rows, int64_t chunks, const T *y, const T *dy, T *dx) {
    using S = sum_t<T>;
    constexpr int W = pack<T>::size;
    __shared__ S dots[2][WARP];
    const int lane = threadIdx.x % group, groups = blockDim.x / group;
    int parity = 0;
    for (int64_t r = (int64_t)blockIdx.x * groups + threadIdx.x / group; r < rows; r += (int64_t)gridDim.x * groups) {
        row_part<T> of_y, of_dy;
        of_y.read(y + r * chunks * W, chunks, lane, group);
        of_dy.read(dy + r * chunks * W, chunks, lane, group);
        S dot = 0;
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            for (int j = 0; j < W && lane + k * group < chunks; j++) {
                const S up = load(of_dy.get(k).item[j]);
                dot += LOG ? up : load(of_y.get(k).item[j]) * up;
            }
        }
        dot = group_reduce(group, dot, dots[parity], plus());
        parity ^= 1;
        const typename backward_op<T, LOG>::row f = {dot};
        pack<T> *to = (pack<T> *)(dx + r * chunks * W);
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            if (lane + k * group >= chunks) continue;
            pack<T> a = of_y.get(k), b = of_dy.get(k), out = to[lane + k * group];
            for (int j = 0; j < W; j++) out.item[j] = store<T>(f(load(a.item[j]), load(b.item[j]), load(out.item[j])));
            store_pack(to + lane + k * group, out);
        }
    }
}

// --- longer rows ----------------------------------------------------------------------------------------------------

// A block reads its row twice, the second time from cache if the rows of all blocks fit it. The first pass finds the
// maximum together with the sum of the exponentials, which is rescaled when the maximum grows.
template <typename T, bool LOG>
__global__ void __launch_bounds__(MAX_THREADS, sizeof(T) == 8 ? 1 : 2)
    long_rows(int64_t rows, int64_t n, const T *x, T *y) {
    using S = sum_t<T>;
    __shared__ S maxima[WARP], sums[WARP];
    const int me = (int)threadIdx.x, step = (int)blockDim.x;
    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
        S largest = S(-INFINITY), sum = 0;
        walk<READ_X>(n, x + r * n, (const T *)nullptr, (T *)nullptr, me, step, [&](int64_t, S a, S, S) {
            if (a > largest) {
                sum *= exp_of<T>(largest - a);
                largest = a;
            }
            return sum += a == S(-INFINITY) ? S(0) : exp_of<T>(a - largest);
        });
        const S max = group_reduce(step, largest, maxima, larger());
        // A thread without a finite element has a sum of 0 and does not scale it; a NaN stays.
        if (largest != max && sum != S(0)) sum *= exp_of<T>(largest - max);
        sum = group_reduce(step, sum, sums, plus());
        const typename forward_op<T, LOG>::row f = {max, LOG ? log(sum) : reciprocal(sum)};
        walk<READ_X | WRITE_Z>(n, x + r * n, (const T *)nullptr, y + r * n, me, step,
                               [=](int64_t, S a, S, S) { return f(a, 0, 0); });
    }
}

template <typename T, bool LOG>
__global__ void __launch_bounds__(MAX_THREADS, sizeof(T) == 8 ? 1 : 2)
    long_rows_backward(int64_t rows, int64_t n, const T *y, const T *dy, T *dx) {
    using S = sum_t<T>;
    __shared__ S dots[2][WARP];
    const int me = (int)threadIdx.x, step = (int)blockDim.x;
    int parity = 0;
    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
        const dot_op<S, LOG> op = {};
        S dot = 0;
        walk<dot_op<S, LOG>::USE>(n, y + r * n, dy + r * n, (T *)nullptr, me, step,
                                  [&](int64_t, S a, S b, S) { return dot = op.take(dot, a, b, 0); });
        dot = group_reduce(step, dot, dots[parity], plus());
        parity ^= 1;
        const typename backward_op<T, LOG>::row f = {dot};
        walk<READ_X | READ_Y | READ_Z | WRITE_Z>(n, y + r * n, dy + r * n, dx + r * n, me, step,
                                                 [=](int64_t, S a, S b, S c) { return f(a, b, c); });
    }
}

// --- choosing a kernel ----------------------------------------------------------------------------------------------

// Long rows get one block each if there is a row for every multiprocessor; fewer rows are faster in pieces.
bool takes_long(tsh_device *device, int64_t rows, int64_t n) {
    return n >= LONG_ROW && rows >= tshi_cuda(device)->processors;
}

unsigned long_blocks(int64_t rows) {
    return (unsigned)(rows < INT32_MAX ? rows : INT32_MAX);
}

// Calls f(group, blocks, threads) for rows of `chunks` packs; false if a block cannot hold a row.
template <typename F> bool with_groups(int64_t rows, int64_t chunks, F f) {
    int group = WARP;
    while (group < MAX_THREADS && (int64_t)group * HELD < chunks) group *= 2;
    if ((int64_t)group * HELD < chunks) return false;
    const int threads = group == WARP ? SHORT_ROWS : group;
    const int64_t blocks = up(rows, threads / group);
    if (rows > 0 && chunks > 0) f(group, (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX), (unsigned)threads);
    return true;
}

template <typename T>
bool softmax_whole(tsh_device *device, bool log, int64_t rows, int64_t n, const void *x, void *y) {
    const bool held =
        packs<T>(n, x, y) && with_groups(rows, n / pack<T>::size, [=](int group, unsigned blocks, unsigned threads) {
            with_bool(log, [=](auto l) {
                launch(device, "softmax", whole_rows<T, l.value>, blocks, threads, group, rows, n / pack<T>::size,
                       (const T *)x, (T *)y);
            });
        });
    if (held || !takes_long(device, rows, n)) return held;
    with_bool(log, [=](auto l) {
        launch(device, "softmax", long_rows<T, l.value>, long_blocks(rows), (unsigned)MAX_THREADS, rows, n,
               (const T *)x, (T *)y);
    });
    return true;
}

template <typename T>
bool softmax_whole_backward(tsh_device *device, bool log, int64_t rows, int64_t n, const void *y, const void *dy,
                            void *dx) {
    const bool held = packs<T>(n, y, dy, dx) &&
                      with_groups(rows, n / pack<T>::size, [=](int group, unsigned blocks, unsigned threads) {
                          with_bool(log, [=](auto l) {
                              launch(device, "softmax_backward", whole_rows_backward<T, l.value>, blocks, threads,
                                     group, rows, n / pack<T>::size, (const T *)y, (const T *)dy, (T *)dx);
                          });
                      });
    if (held || !takes_long(device, rows, n)) return held;
    with_bool(log, [=](auto l) {
        launch(device, "softmax_backward", long_rows_backward<T, l.value>, long_blocks(rows), (unsigned)MAX_THREADS,
               rows, n, (const T *)y, (const T *)dy, (T *)dx);
    });
    return true;
}

template <typename T>
constexpr tshi_softmax_ops table = {.max = softmax_max<T>,
                                    .sum = softmax_sum<T>,
                                    .forward = softmax<T>,
                                    .dot = softmax_dot<T>,
                                    .backward = softmax_backward<T>,
                                    .whole = softmax_whole<T>,
                                    .whole_backward = softmax_whole_backward<T>};

} // namespace

const tshi_softmax_ops tshi_cuda_softmax[TSH_DTYPE_COUNT] = {table<float>, table<double>, table<__nv_bfloat16>,
                                                             table<__half>};
