// Reductions of x [outer, n, inner] over n, along rows (inner 1) or down columns, deterministic and without atomics.
// If many elements give few results, parts of n are first reduced into scratch memory, and then the parts.
//
// An Op defines the reduction. S is the type of sums:
//     static S none();                                   the result for no elements
//     S take(S so_far, S x, S y, S given) const;         adds an element; `given` is given(j)
//     static S merge(S a, S b);
//     S given(int64_t j) const;                          a number that result j depends on (a row's maximum)
//     void put(int64_t j, S total) const;                stores result j, of outer * inner results
//     static constexpr int USE;                          READ_X, READ_Y or both
#pragma once

#include "device/cuda/kernels/common.cuh"

namespace tshi {

constexpr int COLUMN_LANES = 8; // threads of a block that share a column

// The base of Ops that sum.
template <typename S> struct adding {
    static __device__ S none() {
        return S(0);
    }
    static __device__ S merge(S a, S b) {
        return a + b;
    }
    static __device__ S given(int64_t) {
        return S(0);
    }
};

template <typename Op, typename S> struct merging {
    __device__ S operator()(S a, S b) const {
        return Op::merge(a, b);
    }
};

// The Op of the second reduction, over partial results.
template <typename S, typename Op> struct second_op {
    static constexpr int USE = READ_X;
    Op op;
    static __device__ S none() {
        return Op::none();
    }
    __device__ S take(S so_far, S x, S, S) const {
        return Op::merge(so_far, x);
    }
    static __device__ S merge(S a, S b) {
        return Op::merge(a, b);
    }
    static __device__ S given(int64_t) {
        return S(0);
    }
    __device__ void put(int64_t j, S total) const {
        op.put(j, total);
    }
};

// partial: one element a piece, those of a row next to each other; NULL if a piece is a row.
template <typename T, bool WARPS, typename Op>
__global__ void __launch_bounds__(256, 2)
    reduce_rows(pieces p, const T *x, const T *y, Op op, sum_t<T> *__restrict__ partial) {
    using S = sum_t<T>;
    __shared__ S shared[WARP];
    team<WARPS> t(p);
    for (int64_t row = t.first; row < p.rows; row += t.step) {
        int64_t at = row * p.n + t.begin;
        S given = op.given(row), total = Op::none();
        walk<Op::USE>(t.length, x + at, Op::USE & READ_Y ? y + at : nullptr, (T *)nullptr, t.me, t.size,
                      [&](int64_t, S a, S b, S) { return total = op.take(total, a, b, given); });
        total = t.reduce(total, shared, merging<Op, S>(), Op::none());
        if (t.me != 0) continue;
        if (partial)
            partial[row * p.parts + t.part] = total;
        else
            op.put(row, total);
    }
}

// Columns j = o * inner + k; a thread has W neighbouring columns of one o, aligned to packs. A tile is WARP such groups
// and one part of n. The parts' results follow each other in `partial`.
struct columns {
    int64_t count, n, inner; // count: outer * inner
    int64_t parts, chunk, tiles;
};

template <typename T, int W, typename Op>
__global__ void __launch_bounds__(WARP *COLUMN_LANES, 2)
    reduce_columns(columns c, const T *x, const T *y, Op op, sum_t<T> *__restrict__ partial) {
    using S = sum_t<T>;
    __shared__ S shared[COLUMN_LANES][WARP * W];
    int lane = threadIdx.x / WARP, group = threadIdx.x % WARP;
    for (int64_t tile = blockIdx.x; tile < c.tiles * c.parts; tile += gridDim.x) {
        int64_t part = tile / c.tiles, j = ((tile % c.tiles) * WARP + group) * W;
        int64_t end = (part + 1) * c.chunk < c.n ? (part + 1) * c.chunk : c.n;
        S total[W], given[W];
        for (int w = 0; w < W; w++) total[w] = Op::none();
        if (j < c.count) {
            int64_t base = j / c.inner * c.n * c.inner + j % c.inner;
            for (int w = 0; w < W; w++) given[w] = op.given(j + w);
#pragma unroll 4
            for (int64_t i = part * c.chunk + lane; i < end; i += COLUMN_LANES) {
                pack<T, W> a, b;
                if constexpr (Op::USE & READ_X) a = *(const pack<T, W> *)(x + base + i * c.inner);
                if constexpr (Op::USE & READ_Y) b = *(const pack<T, W> *)(y + base + i * c.inner);
                for (int w = 0; w < W; w++)
                    total[w] = op.take(total[w], Op::USE & READ_X ? load(a.item[w]) : S(0),
                                       Op::USE & READ_Y ? load(b.item[w]) : S(0), given[w]);
            }
        }
        for (int w = 0; w < W; w++) shared[lane][w * WARP + group] = total[w];
        barrier();
        for (int w = lane; w < W && j < c.count; w += COLUMN_LANES) {
            S sum = Op::none();
            for (int l = 0; l < COLUMN_LANES; l++) sum = Op::merge(sum, shared[l][w * WARP + group]);
            if (partial)
                partial[part * c.count + j + w] = sum;
            else
                op.put(j + w, sum);
        }
        barrier();
    }
}

template <typename T, typename Op>
void launch_rows(tsh_device *device, const char *what, const pieces &p, const T *x, const T *y, Op op,
                 sum_t<T> *partial) {
    with_team<T>(device, p, [&](auto warps, unsigned blocks, unsigned threads) {
        launch(device, what, reduce_rows<T, decltype(warps)::value, Op>, blocks, threads, p, x, y, op, partial);
    });
}

template <typename T, int W, typename Op>
void launch_columns(tsh_device *device, const char *what, columns c, const T *x, const T *y, Op op, sum_t<T> *partial) {
    c.tiles = up(up(c.count, W), WARP);
    unsigned blocks = blocks_for(device, c.tiles * c.parts * WARP * COLUMN_LANES, WARP * COLUMN_LANES);
    launch(device, what, reduce_columns<T, W, Op>, blocks, (unsigned)(WARP * COLUMN_LANES), c, x, y, op, partial);
}

// Splits n into parts of at least 64 rows, enough for a few tiles on each multiprocessor.
inline columns split_columns(tsh_device *device, int64_t count, int64_t n, int64_t inner, int width) {
    int64_t enough = 4 * (int64_t)tshi_cuda(device)->processors, tiles = up(up(count, width), WARP);
    int64_t parts = tiles < enough ? up(enough, tiles > 0 ? tiles : 1) : 1;
    if (parts > n / 64) parts = n / 64;
    if (parts < 1) parts = 1;
    int64_t chunk = up(n, parts);
    parts = n > 0 ? up(n, chunk) : 1;
    return {count, n, inner, parts, chunk, 0};
}

template <typename T, typename Op>
void reduce_along_rows(tsh_device *device, const char *what, int64_t rows, int64_t n, const T *x, const T *y, Op op) {
    using S = sum_t<T>;
    pieces p = split_rows(device, rows, n);
    if (p.parts == 1) {
        launch_rows<T>(device, what, p, x, y, op, nullptr);
        return;
    }
    S *partial = (S *)scratch(device, p.rows * p.parts * (int64_t)sizeof(S), what);
    if (!partial) return;
    pieces whole = {rows, p.parts, p.parts, 1};
    launch_rows<T>(device, what, p, x, y, op, partial);
    launch_rows<S>(device, what, whole, partial, nullptr, second_op<S, Op>{op}, nullptr);
    device->ops->memory.release(device, partial);
}

template <typename T, int W, typename Op>
void reduce_down_columns(tsh_device *device, const char *what, int64_t count, int64_t n, int64_t inner, const T *x,
                         const T *y, Op op) {
    using S = sum_t<T>;
    columns c = split_columns(device, count, n, inner, W);
    if (c.parts == 1) {
        launch_columns<T, W>(device, what, c, x, y, op, nullptr);
        return;
    }
    S *partial = (S *)scratch(device, c.parts * count * (int64_t)sizeof(S), what);
    if (!partial) return;
    columns whole = {count, c.parts, count, 1, c.parts, 0};
    launch_columns<T, W>(device, what, c, x, y, op, partial);
    launch_columns<S, 1>(device, what, whole, partial, nullptr, second_op<S, Op>{op}, nullptr);
    device->ops->memory.release(device, partial);
}

template <typename T, typename Op>
void reduce(tsh_device *device, const char *what, int64_t outer, int64_t n, int64_t inner, const T *x, const T *y,
            Op op) {
    if (outer * inner <= 0) return;
    bool packed = inner % pack<T>::size == 0 && packs<T>(0, x, y);
    if (inner == 1)
        reduce_along_rows(device, what, outer, n, x, y, op);
    else if (packed)
        reduce_down_columns<T, pack<T>::size>(device, what, outer * inner, n, inner, x, y, op);
    else
        reduce_down_columns<T, 1>(device, what, outer * inner, n, inner, x, y, op);
}

} // namespace tshi
