// Shared by the kernels: element types, 16-byte packs, reductions over a block, launches.
//
// A kernel is a plain loop over the elements that its block or thread owns. It uses shuffles and barriers only through
// the functions of launch.cuh, which the tests' stand-in for a GPU also has.
#pragma once

#include "device/cuda/cuda.h"
#include "device/cuda/kernels/kernels.h"

#ifndef TSHARD_CUDA_STANDIN // the stand-in has the same names in its own launch.h, and runs blocks on the CPU
#include "device/cuda/kernels/launch.cuh"
#endif

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <string.h>
#include <type_traits>

namespace tshi {

constexpr int WARP = 32;

// The compute type of T.
template <typename T> struct sum_of { using type = float; };
template <> struct sum_of<double> { using type = double; };
template <typename T> using sum_t = typename sum_of<T>::type;

template <typename T> __device__ inline sum_t<T> load(T x) {
    return x;
}
template <> __device__ inline float load(__nv_bfloat16 x) {
    return __bfloat162float(x);
}
template <> __device__ inline float load(__half x) {
    return __half2float(x);
}

// Rounds once, to nearest even.
template <typename T> __device__ inline T store(sum_t<T> x) {
    return x;
}
template <> __device__ inline __nv_bfloat16 store<__nv_bfloat16>(float x) {
    return __float2bfloat16_rn(x);
}
template <> __device__ inline __half store<__half>(float x) {
    return __float2half_rn(x);
}

// exp(x), and 1 / (1 + exp(-x)), to the precision of T.
template <typename T> __device__ inline sum_t<T> exp_of(sum_t<T> x) {
    if constexpr (sizeof(T) == 2)
        return exp_fast(x);
    else
        return exp(x);
}

template <typename T> __device__ inline sum_t<T> sigmoid_of(sum_t<T> x) {
    return reciprocal(sum_t<T>(1) + exp_of<T>(-x));
}

// The elements of one 16-byte load.
template <typename T, int N = 16 / sizeof(T)> struct alignas(N * sizeof(T)) pack {
    static constexpr int size = N;
    T item[N];
};

// A pack as loaded: unpacked, 16-bit elements would take a register each. Copy it before get(): of one in memory, get()
// may load byte by byte.
template <typename P> struct unread {
    std::conditional_t<sizeof(P) == 16, uint4, P> bits;

    __device__ P get() const {
        P p;
        memcpy(&p, &bits, sizeof p);
        return p;
    }
};

template <typename P> __device__ inline unread<P> load_unread(const P *from) {
    return *(const unread<P> *)from;
}

// Loads a pack in one 16-byte load; through a reference the compiler may load element by element.
template <typename P> __device__ inline P load_pack(const P *from) {
    const unread<P> bits = load_unread(from);
    return bits.get();
}

// Stores a pack in one 16-byte store; otherwise the compiler may store element by element.
template <typename P> __device__ inline void store_pack(P *to, const P &from) {
    if constexpr (sizeof(P) == 16) {
        uint4 bits;
        memcpy(&bits, &from, sizeof bits);
        put_16(to, bits);
    } else {
        *to = from;
    }
}

template <typename T> inline bool packs(int64_t n, const void *a, const void *b = nullptr, const void *c = nullptr) {
    return n % pack<T>::size == 0 && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % 16 == 0;
}

static_assert(TSH_FLOAT32 == 0 && TSH_FLOAT64 == 1 && TSH_BFLOAT16 == 2 && TSH_FLOAT16 == 3,
              "tables are in this order");

// f(T()) with T the element type of a real dtype.
template <typename F> inline void with_real(tsh_dtype dtype, F f) {
    switch (dtype) {
    case TSH_FLOAT32: f(float()); break;
    case TSH_FLOAT64: f(double()); break;
    case TSH_BFLOAT16: f(__nv_bfloat16()); break;
    case TSH_FLOAT16: f(__half()); break;
    case TSH_INT32: f(int32_t()); break;
    case TSH_INT64: f(int64_t()); break;
    case TSH_UINT8: f(uint8_t()); break;
    default: break;
    }
}

// f(std::true_type()) or f(std::false_type()).
template <typename F> inline void with_bool(bool yes, F f) {
    if (yes)
        f(std::true_type());
    else
        f(std::false_type());
}

// --- elements --------------------------------------------------------------------------------------------------------

// The arrays that a walk reads and writes.
enum { READ_X = 1, READ_Y = 2, READ_Z = 4, WRITE_Z = 8 };

template <int USE, typename T, typename F>
__device__ inline void walk_one(int64_t i, const T *x, const T *y, T *z, F &f) {
    using S = sum_t<T>;
    S value =
        f(i, USE & READ_X ? load(x[i]) : S(0), USE & READ_Y ? load(y[i]) : S(0), USE & READ_Z ? load(z[i]) : S(0));
    if constexpr (USE & WRITE_Z) z[i] = store<T>(value);
}

// Packs of each array that a thread of a walk keeps in flight: several if it reads only one array.
template <int USE>
constexpr int walk_ahead = USE == READ_X || USE == READ_Y ? 4
                           : USE == (READ_X | READ_Y)     ? 2
                           : USE == (READ_X | WRITE_Z)    ? 2
                                                          : 1;

// Walks the packs at i, i + stride, ... before `end`.
template <int USE, typename T, typename F>
__device__ inline void walk_packs(int64_t i, int64_t stride, int64_t end, const T *x, const T *y, T *z, F &f) {
    using S = sum_t<T>;
    constexpr int AHEAD = walk_ahead<USE>;
    unread<pack<T>> of_x[AHEAD], of_y[AHEAD], of_z[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        const int64_t at = i + k * stride;
        if (at >= end) break;
        if constexpr (USE & READ_X) of_x[k] = load_unread((const pack<T> *)(x + at));
        if constexpr (USE & READ_Y) of_y[k] = load_unread((const pack<T> *)(y + at));
        if constexpr (USE & READ_Z) of_z[k] = load_unread((const pack<T> *)(z + at));
    }
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
        const int64_t at = i + k * stride;
        if (at >= end) break;
        pack<T> a, b, c;
        if constexpr (USE & READ_X) a = of_x[k].get();
        if constexpr (USE & READ_Y) b = of_y[k].get();
        if constexpr (USE & READ_Z) c = of_z[k].get();
        for (int j = 0; j < pack<T>::size; j++) {
            S value = f(at + j, USE & READ_X ? load(a.item[j]) : S(0), USE & READ_Y ? load(b.item[j]) : S(0),
                        USE & READ_Z ? load(c.item[j]) : S(0));
            if constexpr (USE & WRITE_Z) c.item[j] = store<T>(value);
        }
        if constexpr (USE & WRITE_Z) store_pack((pack<T> *)(z + at), c);
    }
}

// The range of whole aligned packs in n elements, by the address of the first.
template <typename T> struct packed_range {
    int64_t begin, end;

    __device__ packed_range(int64_t n, uintptr_t first) : begin((int64_t)(-first % 16 / sizeof(T))) {
        if (begin > n) begin = n;
        end = begin + (n - begin) / pack<T>::size * pack<T>::size;
    }
};

// z[i] = f(i, x[i], y[i], z[i]) for this thread's i of [0, n): it is thread `me` of `step`. Uses packs between the
// first and the last 16-byte boundary if all arrays have the same alignment modulo 16. Arrays not in USE may be NULL,
// and read as 0. A sum is a walk without WRITE_Z whose f adds to a captured variable.
template <int USE, typename T, typename F>
__device__ inline void walk(int64_t n, const T *x, const T *y, T *z, int64_t me, int64_t step, F f) {
    uintptr_t first = (uintptr_t)(USE & READ_X ? x : USE & READ_Y ? y : z), apart = 0;
    if constexpr (USE & READ_Y) apart |= first ^ (uintptr_t)y;
    if constexpr (USE & (READ_Z | WRITE_Z)) apart |= first ^ (uintptr_t)z;
    packed_range<T> packed(n, first);
    if (apart % 16 != 0) packed.begin = packed.end = n;
    const int64_t stride = step * pack<T>::size;
    for (int64_t i = me; i < packed.begin; i += step) walk_one<USE>(i, x, y, z, f);
    for (int64_t i = packed.begin + me * pack<T>::size; i < packed.end; i += walk_ahead<USE> * stride)
        walk_packs<USE>(i, stride, packed.end, x, y, z, f);
    for (int64_t i = packed.end + me; i < n; i += step) walk_one<USE>(i, x, y, z, f);
}

// --- threads that share a row ----------------------------------------------------------------------------------------

// A reduction over a warp in a fixed order; every thread gets the result.
template <typename S, typename Op> __device__ inline S warp_reduce(S value, Op op) {
    for (int step = WARP / 2; step > 0; step /= 2) value = op(value, shuffle_xor(value, step));
    return value;
}

// A reduction over all threads of a block, which all get the result. shared: one element a warp.
template <typename S, typename Op> __device__ inline S block_reduce(S value, S *shared, Op op, S none) {
    value = warp_reduce(value, op);
    int warp = threadIdx.x / WARP, warps = (blockDim.x + WARP - 1) / WARP;
    if (threadIdx.x % WARP == 0) shared[warp] = value;
    barrier();
    S total = none;
    for (int i = 0; i < warps; i++) total = op(total, shared[i]);
    barrier();
    return total;
}

struct plus {
    template <typename S> __device__ S operator()(S a, S b) const {
        return a + b;
    }
};

// Rows of n elements, each split into `parts` pieces of `chunk` elements, so that a few long rows also fill a GPU.
struct pieces {
    int64_t rows, n, chunk;
    unsigned parts;
};

// The threads that share a piece: a warp or a block. A team has one part of each of its rows.
template <bool WARPS> struct team {
    int me, size;
    unsigned part;
    int64_t first, step;   // of this team's rows
    int64_t begin, length; // of the team's part of a row

    __device__ team(const pieces &p) {
        size = WARPS ? WARP : (int)blockDim.x;
        me = (int)threadIdx.x % size;
        part = blockIdx.x % p.parts;
        int teams = (int)blockDim.x / size;
        first = (int64_t)(blockIdx.x / p.parts) * teams + (int)threadIdx.x / size;
        step = (int64_t)(gridDim.x / p.parts) * teams;
        begin = part * p.chunk;
        length = p.n - begin < p.chunk ? p.n - begin : p.chunk;
    }

    // shared: as block_reduce.
    template <typename S, typename Op> __device__ S reduce(S value, S *shared, Op op, S none) const {
        if constexpr (WARPS)
            return warp_reduce(value, op);
        else
            return block_reduce(value, shared, op, none);
    }
};

// Blocks for a grid-stride loop over n items: enough to fill the GPU, not more.
inline unsigned blocks_for(tsh_device *device, int64_t items, int threads) {
    int64_t most = (int64_t)tshi_cuda(device)->processors * (2048 / threads);
    int64_t wanted = (items + threads - 1) / threads;
    return (unsigned)(wanted < most ? (wanted > 0 ? wanted : 1) : most);
}

// a / b for non-negative numbers, in 32 bits if they fit: 64-bit divisions are slow.
__device__ inline int64_t quotient(int64_t a, int64_t b) {
    return (a | b) <= (int64_t)UINT32_MAX ? (int64_t)((uint32_t)a / (uint32_t)b) : a / b;
}

// The index k along `inner` of element begin + i of a row-major [n, inner], for i below 2^31, as in a piece.
struct cycle {
    int64_t from, inner;

    __device__ cycle(int64_t begin, int64_t inner) : from(begin % inner), inner(inner) {}
    __device__ int64_t at(int64_t i) const {
        if (inner <= INT32_MAX) return ((uint32_t)from + (uint32_t)i) % (uint32_t)inner;
        return from + i < inner ? from + i : from + i - inner;
    }
};

// The indices of the elements of x and y that broadcasting pairs with element i.
struct overlaid {
    int64_t x = 0, y = 0;

    __device__ overlaid(const tshi_broadcast &o, int64_t i) {
        for (int k = 0; k < o.runs; k++) {
            const int64_t rest = quotient(i, o.n[k]);
            x += (i - rest * o.n[k]) * o.x[k];
            y += (i - rest * o.n[k]) * o.y[k];
            i = rest;
        }
    }
};

inline int64_t up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// A piece has at least 4096 elements, and at most 2^30.
inline pieces split_rows(tsh_device *device, int64_t rows, int64_t n) {
    int64_t enough = 8 * (int64_t)tshi_cuda(device)->processors;
    int64_t parts = rows > 0 && rows < enough ? up(enough, rows) : 1;
    if (parts > up(n, 4096)) parts = up(n, 4096);
    if (parts < up(n, 1 << 30)) parts = up(n, 1 << 30);
    if (n <= 0) return {rows, 0, 0, 1};
    int64_t chunk = up(up(n, parts), 64) * 64;
    return {rows, n, chunk, (unsigned)up(n, chunk)};
}

// Calls f(warps, blocks, threads) for a launch of team<warps> over p: warps for short pieces, else blocks.
template <typename T, typename F> inline void with_team(tsh_device *device, const pieces &p, F f) {
    int64_t length = p.n < p.chunk ? p.n : p.chunk, most = (int64_t)tshi_cuda(device)->processors * 128;
    bool warps = length * (int64_t)sizeof(T) <= 2048;
    int64_t blocks = warps ? up(p.rows, 256 / WARP) : p.rows;
    with_bool(warps, [&](auto w) { f(w, (unsigned)(blocks < most ? blocks : most) * p.parts, 256u); });
}

// Scratch memory; once released it is reused by later launches only. NULL, with the failure kept, without memory.
inline void *scratch(tsh_device *device, int64_t bytes, const char *what) {
    void *memory = device->ops->memory.alloc(device, (size_t)bytes);
    if (!memory) tshi_cuda_record_error(device, cudaErrorMemoryAllocation, what);
    return memory;
}

} // namespace tshi
