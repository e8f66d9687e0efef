// Layer norm and RMS norm. A row belongs to a group of threads: to a warp if it is short, else to a block. A thread
// keeps its first packs of the row in registers (of most rows, all) and reads the others again.
#include "device/cuda/kernels/common.cuh"

namespace {
using namespace tshi;

constexpr int HELD = 4;          // packs of a row that a thread keeps
constexpr int SHORT_ROWS = 128;  // threads of a block in which each warp has a row
constexpr int MAX_THREADS = 512; // of a block: with more, a thread would have too few registers

// Chunks of a row that a thread keeps in the backward, besides as many sums.
template <int W> constexpr int held_backward = W > 4 ? 2 : W == 2 ? 3 : HELD;

// Sums a and b over a row's group, in a fixed order. The shared arrays have one element a warp. There is only one
// barrier, so the next call must use other arrays.
template <typename S> __device__ inline void group_sums(int group, S &a, S &b, S *shared_a, S *shared_b) {
    for (int step = WARP / 2; step > 0; step /= 2) {
        a += shuffle_xor(a, step);
        b += shuffle_xor(b, step);
    }
    if (group == WARP) return;
    if (threadIdx.x % WARP == 0) {
        shared_a[threadIdx.x / WARP] = a;
        shared_b[threadIdx.x / WARP] = b;
    }
    barrier();
    a = b = 0;
#pragma unroll 2
    for (int i = 0; i < group / WARP; i++) {
        a += shared_a[i];
        b += shared_b[i];
    }
}

template <typename S> __device__ inline S group_sum(int group, S value, S *shared) {
    value = warp_reduce(value, plus());
    if (group == WARP) return value;
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = value;
    barrier();
    value = 0;
    for (int i = 0; i < group / WARP; i++) value += shared[i];
    barrier();
    return value;
}

// Calls f(at, chunk) for this lane's chunks of the row, the held ones first.
template <typename C, typename F>
__device__ inline void each_chunk(const C *row, int64_t chunks, int lane, int group, const C *held, F f) {
#pragma unroll
    for (int k = 0; k < HELD; k++)
        if (lane + k * group < chunks) f(lane + k * group, held[k]);
    for (int64_t at = lane + HELD * group; at < chunks; at += group) {
        const C chunk = row[at];
        f(at, chunk);
    }
}

template <typename T, int W>
__global__ void __launch_bounds__(MAX_THREADS, W > 4 ? 1 : 2) // wide packs would spill registers
    normalise(int group, bool rms, int64_t rows, int64_t cols, sum_t<T> eps, const T *x, const T *gamma, const T *beta,
              T *y, sum_t<T> *mean, sum_t<T> *rstd) {
    using S = sum_t<T>;
    using C = pack<T, W>;
    __shared__ S shared[WARP];
    const int lane = threadIdx.x % group, groups = blockDim.x / group;
    const int64_t chunks = cols / W;
    const S n = (S)(cols > 0 ? cols : 1);
    for (int64_t r = (int64_t)blockIdx.x * groups + threadIdx.x / group; r < rows; r += (int64_t)gridDim.x * groups) {
        const C *row = (const C *)(x + r * cols);
        C held[HELD];
#pragma unroll
        for (int k = 0; k < HELD; k++)
            if (lane + k * group < chunks) held[k] = row[lane + k * group];
        S sum = 0, squares = 0;
        if (!rms) {
            each_chunk(row, chunks, lane, group, held, [&](int64_t, const C &c) {
                for (int j = 0; j < W; j++) sum += load(c.item[j]);
            });
            sum = group_sum(group, sum, shared);
        }
        const S center = sum / n;
        each_chunk(row, chunks, lane, group, held, [&](int64_t, const C &c) {
            for (int j = 0; j < W; j++) {
                S d = load(c.item[j]) - center;
                squares += d * d;
            }
        });
        const S scale = 1 / sqrt(group_sum(group, squares, shared) / n + eps);
        if (lane == 0) {
            rstd[r] = scale;
            if (!rms) mean[r] = center;
        }
        C *to = (C *)(y + r * cols);
        each_chunk(row, chunks, lane, group, held, [&](int64_t at, const C &c) {
            C out;
            C g = gamma ? ((const C *)gamma)[at] : C();
            C b = beta ? ((const C *)beta)[at] : C();
            for (int j = 0; j < W; j++) {
                S hat = (load(c.item[j]) - center) * scale;
                out.item[j] = store<T>(hat * (gamma ? load(g.item[j]) : S(1)) + (beta ? load(b.item[j]) : S(0)));
            }
            store_pack(to + at, out);
        });
    }
}

// An element's terms of the row's gradient: its normalised value, and dy times gamma.
template <typename T, int W> struct row_gradient {
    using S = sum_t<T>;
    using C = pack<T, W>;
    S center, scale;
    const C *gamma;

    __device__ S hat(const C &x, int j) const {
        return (load(x.item[j]) - center) * scale;
    }

    __device__ C gamma_at(int64_t at) const {
        return gamma ? load_pack(gamma + at) : C();
    }

    __device__ void add_sums(int64_t at, const C &x, const C &dy, S &sum, S &dot) const {
        const C g = gamma_at(at);
        for (int j = 0; j < W; j++) {
            S up = gamma ? load(dy.item[j]) * load(g.item[j]) : load(dy.item[j]);
            sum += up;
            dot += up * hat(x, j);
        }
    }

    __device__ C result(int64_t at, const C &x, const C &dy, const C &before, S mean_sum, S mean_dot) const {
        const C g = gamma_at(at);
        C out;
        for (int j = 0; j < W; j++) {
            S up = gamma ? load(dy.item[j]) * load(g.item[j]) : load(dy.item[j]);
            out.item[j] = store<T>(load(before.item[j]) + scale * (up - mean_sum - hat(x, j) * mean_dot));
        }
        return out;
    }
};

// A thread's chunks of a row: it is thread `lane` of `group`, and holds the first K of them.
struct lane_chunks {
    int lane, group;
    int64_t chunks;

    __device__ int at(int k) const {
        return lane + k * group;
    }
    __device__ bool has(int k) const {
        return at(k) < chunks;
    }
};

template <typename T, int W> struct held_row {
    static constexpr int K = held_backward<W>;
    using C = unread<pack<T, W>>;
    sum_t<T> center, scale;
    C x[K], dy[K];

    __device__ void load(const lane_chunks &my, int64_t r, const T *from_x, const T *from_dy, const sum_t<T> *mean,
                         const sum_t<T> *rstd) {
        const C *row = (const C *)from_x + r * my.chunks, *up = (const C *)from_dy + r * my.chunks;
        center = mean ? mean[r] : sum_t<T>(0);
        scale = rstd[r];
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (!my.has(k)) continue;
            x[k] = row[my.at(k)];
            dy[k] = up[my.at(k)];
        }
    }
};

// Writes a chunk's sums, or adds them.
template <typename S, int W> __device__ inline void store_sums(bool add, const S (&sums)[W], S *to) {
    constexpr int SIZE = W < pack<S>::size ? W : pack<S>::size;
    using P = pack<S, SIZE>;
#pragma unroll
    for (int j = 0; j < W; j += SIZE) {
        P out = add ? load_pack((const P *)(to + j)) : P();
        for (int i = 0; i < SIZE; i++) out.item[i] += sums[j + i];
        store_pack((P *)(to + j), out);
    }
}

// A thread's sums for dgamma and dbeta over the columns that it holds.
template <typename T, int W> struct held_sums {
    static constexpr int K = held_backward<W>;
    using S = sum_t<T>;
    S gammas[K][W] = {}, betas[K][W] = {};

    __device__ void add(const lane_chunks &my, const row_gradient<T, W> &gradient, const held_row<T, W> &row) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (!my.has(k)) continue;
            const pack<T, W> x = row.x[k].get(), up = row.dy[k].get();
            for (int j = 0; j < W; j++) {
                gammas[k][j] += load(up.item[j]) * gradient.hat(x, j);
                betas[k][j] += load(up.item[j]);
            }
        }
    }

    // Writes the block's sums into to[2, cols], its groups one after another.
    __device__ void put(const lane_chunks &my, int64_t cols, S *to) const {
        for (int g = 0; g < (int)blockDim.x / my.group; g++) {
            barrier();
            if ((int)threadIdx.x / my.group != g) continue;
#pragma unroll
            for (int k = 0; k < K; k++) {
                if (!my.has(k)) continue;
                store_sums(g > 0, gammas[k], to + my.at(k) * W);
                store_sums(g > 0, betas[k], to + cols + my.at(k) * W);
            }
        }
    }
};

// Writes or adds dx (unless NULL). SUMMED: also writes each block's sums for dgamma and dbeta to partial[block, 2,
// cols]; a thread then holds all its chunks of a row. The next row is prefetched if there are registers for both.
template <typename T, int W, bool SUMMED>
__global__ void __launch_bounds__(MAX_THREADS, 1)
    backward(int group, bool add, int64_t rows, int64_t cols, const T *x, const T *gamma, const sum_t<T> *mean,
             const sum_t<T> *rstd, const T *dy, T *dx, sum_t<T> *partial) {
    using S = sum_t<T>;
    using C = pack<T, W>;
    constexpr int K = held_backward<W>;
    constexpr bool AHEAD = W == 1 || W > 4;
    __shared__ S shared_sum[2][WARP], shared_dot[2][WARP];
    const int64_t step = (int64_t)gridDim.x * (blockDim.x / group);
    const lane_chunks my = {(int)(threadIdx.x % (unsigned)group), group, cols / W};
    int parity = 0;
    held_sums<T, W> sums;
    held_row<T, W> next;
    int64_t r = (int64_t)blockIdx.x * (blockDim.x / group) + threadIdx.x / group;
    if (AHEAD && r < rows) next.load(my, r, x, dy, mean, rstd);
    for (; r < rows; r += step) {
        if (!AHEAD) next.load(my, r, x, dy, mean, rstd);
        const held_row<T, W> held = next;
        const C *row = (const C *)(x + r * cols), *up = (const C *)(dy + r * cols);
        C *to = (C *)(dx + r * cols);
        unread<C> before[K] = {};
#pragma unroll
        for (int k = 0; k < K; k++)
            if (dx && add && my.has(k)) before[k] = ((const unread<C> *)to)[my.at(k)];
        if (AHEAD && r + step < rows) next.load(my, r + step, x, dy, mean, rstd);
        const row_gradient<T, W> gradient = {held.center, held.scale, (const C *)gamma};
        if (SUMMED) sums.add(my, gradient, held);
        if (!dx) continue;
        S sum = 0, dot = 0;
#pragma unroll
        for (int k = 0; k < K; k++)
            if (my.has(k)) gradient.add_sums(my.at(k), held.x[k].get(), held.dy[k].get(), sum, dot);
        for (int64_t at = my.at(K); at < my.chunks && !SUMMED; at += group)
            gradient.add_sums(at, load_pack(row + at), load_pack(up + at), sum, dot);
        group_sums(group, sum, dot, shared_sum[parity], shared_dot[parity]);
        parity ^= 1;
        const S mean_sum = mean ? sum / (S)cols : S(0), mean_dot = dot / (S)cols;
#pragma unroll
        for (int k = 0; k < K; k++)
            if (my.has(k))
                store_pack(to + my.at(k), gradient.result(my.at(k), held.x[k].get(), held.dy[k].get(), before[k].get(),
                                                          mean_sum, mean_dot));
        for (int64_t at = my.at(K); at < my.chunks && !SUMMED; at += group)
            store_pack(to + at, gradient.result(at, load_pack(row + at), load_pack(up + at),
                                                add ? load_pack(to + at) : C(), mean_sum, mean_dot));
    }
    if (SUMMED) sums.put(my, cols, partial + (int64_t)blockIdx.x * 2 * cols);
}

// The sums for dgamma and dbeta if rows are too long to be held: part p of the rows into partial[p, 2, cols]. A warp
// has one part of a tile of 32 chunks.
template <typename T, int W>
__global__ void __launch_bounds__(256)
    column_sums(bool rms, int64_t rows, int64_t cols, int64_t tiles, int64_t parts, const T *x, const sum_t<T> *mean,
                const sum_t<T> *rstd, const T *dy, sum_t<T> *partial) {
    using S = sum_t<T>;
    using C = pack<T, W>;
    const int64_t unit = (int64_t)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    const int64_t part = unit / tiles, at = unit % tiles * WARP + threadIdx.x % WARP, chunks = cols / W;
    if (part >= parts || at >= chunks) return;
    S gammas[W] = {}, betas[W] = {};
    for (int64_t r = part; r < rows; r += parts) {
        const row_gradient<T, W> gradient = {rms ? S(0) : mean[r], rstd[r], nullptr};
        const C row = ((const C *)x)[r * chunks + at], up = ((const C *)dy)[r * chunks + at];
        for (int j = 0; j < W; j++) {
            gammas[j] += load(up.item[j]) * gradient.hat(row, j);
            betas[j] += load(up.item[j]);
        }
    }
    store_sums(false, gammas, partial + part * 2 * cols + at * W);
    store_sums(false, betas, partial + (part * 2 + 1) * cols + at * W);
}

// to[c] += the sums of all parts. A block has 32 columns, and each of its 8 warps every eighth part.
template <typename T>
__global__ void __launch_bounds__(256)
    add_parts(int64_t parts, int64_t cols, const sum_t<T> *partial, T *dgamma, T *dbeta) {
    using S = sum_t<T>;
    __shared__ S shared[8][WARP];
    const int64_t tiles = (cols + WARP - 1) / WARP;
    const bool second = blockIdx.x >= tiles;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int64_t c = (blockIdx.x % tiles) * WARP + lane;
    T *to = second ? dbeta : dgamma;
    if (!to) return;
    S sum = 0;
    for (int64_t p = warp; p < parts && c < cols; p += 8) sum += partial[(p * 2 + second) * cols + c];
    shared[warp][lane] = sum;
    barrier();
    if (warp > 0 || c >= cols) return;
    for (int i = 1; i < 8; i++) sum += shared[i][lane];
    to[c] = store<T>(load(to[c]) + sum);
}

// The number of threads of a group for `chunks` chunks, `held` a thread.
int group_for(int64_t chunks, int held, int most) {
    int group = WARP;
    while (group < most && (int64_t)group * held < chunks) group *= 2;
    return group;
}

unsigned grid(int64_t blocks) {
    return (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX);
}

template <typename T, int W>
void norm(tsh_device *device, bool rms, int64_t rows, int64_t cols, double eps, const void *x, const void *gamma,
          const void *beta, void *y, void *mean, void *rstd) {
    using S = sum_t<T>;
    int group = group_for(cols / W, HELD, MAX_THREADS), threads = group == WARP ? SHORT_ROWS : group;
    int64_t groups = threads / group;
    launch(device, "norm", normalise<T, W>, grid(up(rows, groups)), threads, group, rms, rows, cols, (S)eps,
           (const T *)x, (const T *)gamma, (const T *)beta, (T *)y, (S *)mean, (S *)rstd);
}

struct norm_gradient {
    bool rms, add;
    int64_t rows, cols;
    const void *x, *gamma, *mean, *rstd, *dy;
    void *dx, *dgamma, *dbeta;
};

template <typename T, int W, bool SUMMED>
void launch_backward(tsh_device *device, const norm_gradient &g, int group, unsigned threads, unsigned blocks,
                     void *partial) {
    using S = sum_t<T>;
    launch(device, "norm_backward", backward<T, W, SUMMED>, blocks, threads, group, g.add, g.rows, g.cols,
           (const T *)g.x, (const T *)g.gamma, g.rms ? (const S *)nullptr : (const S *)g.mean, (const S *)g.rstd,
           (const T *)g.dy, (T *)g.dx, (S *)partial);
}

template <typename T, int W> void norm_backward(tsh_device *device, const norm_gradient &g) {
    using S = sum_t<T>;
    const int64_t chunks = g.cols / W, warps = 256 / WARP;
    const int held = held_backward<W>, group = group_for(chunks, held, MAX_THREADS);
    const int threads = group == WARP ? 256 : group;
    const int64_t all = up(g.rows, threads / group);
    const bool sums = g.dgamma || g.dbeta, fits = chunks <= (int64_t)held * group;
    if (!sums || !fits) {
        if (g.dx) launch_backward<T, W, false>(device, g, group, threads, grid(all), nullptr);
        if (!sums) return;
    }
    const int64_t fill = (int64_t)tshi_cuda(device)->processors * (MAX_THREADS / threads);
    const int64_t tiles = up(chunks, WARP), wanted = (int64_t)tshi_cuda(device)->processors * 32 / tiles;
    int64_t parts = fits ? (all < fill ? all : fill) : (wanted < g.rows ? wanted : g.rows);
    if (parts < 1) parts = 1;
    S *partial = (S *)scratch(device, parts * 2 * g.cols * (int64_t)sizeof(S), "norm_backward");
    if (!partial) return;
    if (fits)
        launch_backward<T, W, true>(device, g, group, threads, (unsigned)parts, partial);
    else
        launch(device, "norm_backward", column_sums<T, W>, grid(up(tiles * parts, warps)), 256, g.rms, g.rows, g.cols,
               tiles, parts, (const T *)g.x, (const S *)g.mean, (const S *)g.rstd, (const T *)g.dy, partial);
    launch(device, "norm_backward", add_parts<T>, (unsigned)(2 * up(g.cols, WARP)), 256, parts, g.cols,
           (const S *)partial, (T *)g.dgamma, (T *)g.dbeta);
    device->ops->memory.release(device, partial);
}

template <typename T>
void forward(tsh_device *device, bool rms, int64_t rows, int64_t cols, double eps, const void *x, const void *gamma,
             const void *beta, void *y, void *mean, void *rstd) {
    if (packs<T>(cols, x, gamma, beta) && packs<T>(cols, y))
        norm<T, pack<T>::size>(device, rms, rows, cols, eps, x, gamma, beta, y, mean, rstd);
    else
        norm<T, 1>(device, rms, rows, cols, eps, x, gamma, beta, y, mean, rstd);
}

template <typename T>
void any_backward(tsh_device *device, bool rms, int64_t rows, int64_t cols, const void *x, const void *gamma,
                  const void *mean, const void *rstd, const void *dy, double beta, void *dx, void *dgamma,
                  void *dbeta) {
    if (rows == 0 || cols == 0) return;
    const norm_gradient g = {rms, beta != 0.0, rows, cols, x, gamma, mean, rstd, dy, dx, dgamma, dbeta};
    if (packs<T>(cols, x, gamma, dy) && packs<T>(cols, dx))
        norm_backward<T, pack<T>::size>(device, g);
    else
        norm_backward<T, 1>(device, g);
}

template <typename T> constexpr tshi_norm_ops table = {.forward = forward<T>, .backward = any_backward<T>};

} // namespace

const tshi_norm_ops tshi_cuda_norm[TSH_DTYPE_COUNT] = {table<float>, table<double>, table<__nv_bfloat16>,
                                                       table<__half>};
