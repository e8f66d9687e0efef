// Fills, and conversions between element types.
#include "device/cuda/kernels/common.cuh"

#include <string.h>

using namespace tshi;

namespace {

constexpr int THREADS = 256;

// --- one element -----------------------------------------------------------------------------------------------------

// Rounds to odd in a double without its last 10 bits: exact, or the neighbour whose last bit is 1. A second rounding,
// to at most 42 bits, then equals a single rounding of x.
__host__ __device__ inline double int64_to_odd(int64_t x) {
    if (x >= -((int64_t)1 << 53) && x <= (int64_t)1 << 53) return (double)x;
    uint64_t sticky = ((uint64_t)x & 0x3ffu) != 0 ? 0x400u : 0u;
    return (double)(int64_t)(((uint64_t)x & ~(uint64_t)0x3ff) | sticky);
}

// A double whose conversion to any dtype rounds as that of x would.
template <typename A> __host__ __device__ inline double widen(A x) {
    if constexpr (std::is_same_v<A, __nv_bfloat16>)
        return (double)__bfloat162float(x);
    else if constexpr (std::is_same_v<A, __half>)
        return (double)__half2float(x);
    else if constexpr (std::is_same_v<A, int64_t>)
        return int64_to_odd(x);
    else
        return (double)x;
}

// Truncated and saturated; NaN becomes 0. `high` may round up to a power of two.
__host__ __device__ inline int64_t to_integer(double x, int64_t low, int64_t high) {
    if (x != x) return 0;
    if (x <= (double)low) return low;
    if (x >= (double)high) return high;
    return (int64_t)x;
}

template <typename B> __host__ __device__ inline B narrow(double x) {
    if constexpr (std::is_same_v<B, __nv_bfloat16>)
        return __double2bfloat16(x);
    else if constexpr (std::is_same_v<B, __half>)
        return __double2half(x);
    else if constexpr (std::is_same_v<B, int32_t>)
        return (int32_t)to_integer(x, INT32_MIN, INT32_MAX);
    else if constexpr (std::is_same_v<B, int64_t>)
        return to_integer(x, INT64_MIN, INT64_MAX);
    else if constexpr (std::is_same_v<B, uint8_t>)
        return (uint8_t)to_integer(x, 0, UINT8_MAX);
    else
        return (B)x;
}

// The common conversions avoid double, which is slow on some GPUs.
template <typename B, typename A> __device__ inline B cast(A x) {
    constexpr bool narrow_a = std::is_same_v<A, __nv_bfloat16> || std::is_same_v<A, __half>;
    constexpr bool narrow_b = std::is_same_v<B, __nv_bfloat16> || std::is_same_v<B, __half>;
    constexpr bool float_a = narrow_a || std::is_same_v<A, float>;
    if constexpr (float_a && (narrow_b || std::is_same_v<B, float>))
        return store<B>((float)load(x));
    else if constexpr (std::is_same_v<A, int64_t> && std::is_same_v<B, double>)
        return (double)x; // the double is the result, so it rounds to nearest
    else
        return narrow<B>(widen(x));
}

// --- all elements ----------------------------------------------------------------------------------------------------

// A pack has as many elements as fit 16 bytes of the wider type. The first `packed` elements are converted by packs,
// which are aligned on both sides.
template <typename A, typename B>
__global__ void __launch_bounds__(THREADS, 2) convert(int64_t n, int64_t packed, const A *from, B *to) {
    constexpr int size = 16 / (sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));
    int64_t me = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = me * size; i < packed; i += step * size) {
        pack<A, size> a = *(const pack<A, size> *)(from + i);
        pack<B, size> b;
        for (int j = 0; j < size; j++) b.item[j] = cast<B>(a.item[j]);
        *(pack<B, size> *)(to + i) = b;
    }
    for (int64_t i = packed + me; i < n; i += step) to[i] = cast<B>(from[i]);
}

template <typename A, typename B> void convert_all(tsh_device *device, int64_t n, const A *from, B *to) {
    constexpr int size = 16 / (sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));
    bool aligned = (uintptr_t)from % (size * sizeof(A)) == 0 && (uintptr_t)to % (size * sizeof(B)) == 0;
    int64_t packed = aligned ? n / size * size : 0;
    launch(device, "convert", convert<A, B>, blocks_for(device, up(n, size), THREADS), THREADS, n, packed, from, to);
}

// An element as bits.
template <int BYTES> struct bits {
    using word = std::conditional_t<BYTES == 1, uint8_t, std::conditional_t<BYTES == 2, uint16_t, uint32_t>>;
    word part[BYTES / sizeof(word)];
};

template <typename U> __global__ void __launch_bounds__(THREADS, 2) fill(int64_t n, int64_t head, U value, U *to) {
    constexpr int size = 16 / sizeof(U);
    int64_t me = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    int64_t packed = head + (n - head) / size * size;
    pack<U> many;
    for (int j = 0; j < size; j++) many.item[j] = value;
    for (int64_t i = me; i < head; i += step) to[i] = value;
    for (int64_t i = head + me * size; i < packed; i += step * size) store_pack((pack<U> *)(to + i), many);
    for (int64_t i = packed + me; i < n; i += step) to[i] = value;
}

template <int BYTES> void fill_bits(tsh_device *device, int64_t n, const void *element, void *to) {
    bits<BYTES> value;
    memcpy(&value, element, BYTES);
    uintptr_t before = -(uintptr_t)to % 16; // bytes before the first 16-byte boundary
    int64_t head = before % BYTES == 0 && (int64_t)(before / BYTES) < n ? (int64_t)(before / BYTES) : n;
    unsigned blocks = blocks_for(device, up(n, 16 / BYTES), THREADS);
    launch(device, "fill", fill<bits<BYTES>>, blocks, THREADS, n, head, value, (bits<BYTES> *)to);
}

} // namespace

void tshi_cuda_convert(tsh_device *device, int64_t n, tsh_dtype from_dtype, const void *from, tsh_dtype to_dtype,
                       void *to) {
    if (n <= 0) return;
    if (from_dtype == to_dtype) {
        device->ops->copy.within(device, (size_t)n * tsh_dtype_size(from_dtype), from, to);
        return;
    }
    with_real(from_dtype, [=](auto a) {
        with_real(to_dtype, [=](auto b) { convert_all(device, n, (const decltype(a) *)from, (decltype(b) *)to); });
    });
}

void tshi_cuda_fill(tsh_device *device, tsh_dtype dtype, int64_t n, double value, void *to) {
    if (n <= 0) return;
    alignas(16) char element[16] = {0}; // the imaginary part stays 0
    tsh_dtype real = dtype == TSH_COMPLEX64 ? TSH_FLOAT32 : dtype == TSH_COMPLEX128 ? TSH_FLOAT64 : dtype;
    with_real(real, [&](auto b) {
        b = narrow<decltype(b)>(value);
        memcpy(element, &b, sizeof b);
    });
    switch (tsh_dtype_size(dtype)) {
    case 1: fill_bits<1>(device, n, element, to); break;
    case 2: fill_bits<2>(device, n, element, to); break;
    case 4: fill_bits<4>(device, n, element, to); break;
    case 8: fill_bits<8>(device, n, element, to); break;
    case 16: fill_bits<16>(device, n, element, to); break;
    default: break;
    }
}
