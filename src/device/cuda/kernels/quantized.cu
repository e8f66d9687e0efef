// Products with quantized weights. A warp computes a column of y: its lanes take the groups of a row of w in turns, so
// that the warp reads the row from end to end, once for each row of x.
#include "device/cuda/kernels/common.cuh"

using namespace tshi;

namespace {

constexpr int THREADS = 256;
constexpr int SCALE = 2; // bytes of a group's float16 scale, before its quants

__device__ inline float scale_of(const unsigned char *group) {
    __half_raw bits;
    bits.x = (unsigned short)(group[0] | group[1] << 8);
    return __half2float(__half(bits));
}

// Quant i of a group. Q4_0 has the first half of a group in the low bits of its bytes.
template <tshi_quant FORMAT> __device__ inline int quant_of(const unsigned char *group, int i) {
    if constexpr (FORMAT == TSHI_Q8_0) return (int)(signed char)group[SCALE + i];
    const int both = group[SCALE + i % (TSHI_GROUP / 2)];
    return (i < TSHI_GROUP / 2 ? both & 15 : both >> 4) - 8;
}

template <tshi_quant FORMAT> constexpr int group_bytes = SCALE + TSHI_GROUP / (FORMAT == TSHI_Q8_0 ? 1 : 2);

// A warp has a group, a lane an element of it.
__global__ void __launch_bounds__(THREADS)
    quantize(int64_t total, int64_t groups, int64_t cols, const float *x, tshi_group *to) {
    const int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    for (int64_t i = (int64_t)blockIdx.x * warps + threadIdx.x / WARP; i < total; i += (int64_t)gridDim.x * warps) {
        const int64_t col = i % groups * TSHI_GROUP + lane;
        const float value = col < cols ? x[i / groups * cols + col] : 0.0f;
        float amax = fabsf(value), nonfinite = value - value;
        for (int step = WARP / 2; step > 0; step /= 2) {
            const float other = shuffle_xor(amax, step);
            amax = other > amax ? other : amax;
            nonfinite += shuffle_xor(nonfinite, step);
        }
        const bool is_zero = !(amax >= 0x1p-120f) || nonfinite != 0;
        const float d = is_zero ? nonfinite : amax / 127, inverse = is_zero ? 0.0f : 1 / d;
        to[i].q[lane] = (int8_t)(is_zero ? 0.0f : rintf(value * inverse));
        if (lane == 0) to[i].d = d >= 0x1p-14f && d <= 65504 ? __half2float(__float2half_rn(d)) : d;
    }
}

template <tshi_quant FORMAT>
__global__ void __launch_bounds__(THREADS)
    multiply(int64_t m, int64_t n, int64_t groups, const tshi_group *x, const unsigned char *w, float *y) {
    const int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
    for (int64_t i = (int64_t)blockIdx.x * warps + threadIdx.x / WARP; i < m * n; i += (int64_t)gridDim.x * warps) {
        const int64_t r = i % m, c = i / m;
        float sum = 0;
        for (int64_t g = lane; g < groups; g += WARP) {
            const unsigned char *from = w + (c * groups + g) * group_bytes<FORMAT>;
            const tshi_group *with = x + r * groups + g;
            int exact = 0;
#pragma unroll
            for (int k = 0; k < TSHI_GROUP; k++) exact += quant_of<FORMAT>(from, k) * with->q[k];
            sum += scale_of(from) * with->d * (float)exact;
        }
        for (int step = WARP / 2; step > 0; step /= 2) sum += shuffle_xor(sum, step);
        if (lane == 0) y[r * n + c] = sum;
    }
}

template <tshi_quant FORMAT>
__global__ void __launch_bounds__(THREADS)
    dequantize(int64_t total, int64_t groups, int64_t cols, const unsigned char *w, float *to) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = i / cols, col = i % cols;
        const unsigned char *from = w + (row * groups + col / TSHI_GROUP) * group_bytes<FORMAT>;
        to[i] = scale_of(from) * (float)quant_of<FORMAT>(from, (int)(col % TSHI_GROUP));
    }
}

} // namespace

void tshi_cuda_quantize_activations(tsh_device *device, int64_t rows, int64_t cols, const float *x, tshi_group *to) {
    const int64_t groups = tshi_groups(cols), total = rows * groups;
    if (total <= 0) return;
    launch(device, "quantize_activations", quantize, blocks_for(device, total * WARP, THREADS), THREADS, total, groups,
           cols, x, to);
}

void tshi_cuda_quantized_multiply(tsh_device *device, tshi_quant format, int64_t m, int64_t n, int64_t groups,
                                  const tshi_group *x, const void *w, float *y) {
    if (m * n <= 0) return;
    launch(device, "quantized_multiply", format == TSHI_Q8_0 ? multiply<TSHI_Q8_0> : multiply<TSHI_Q4_0>,
           blocks_for(device, m * n * WARP, THREADS), THREADS, m, n, groups, x, (const unsigned char *)w, y);
}

void tshi_cuda_dequantize(tsh_device *device, tshi_quant format, int64_t rows, int64_t cols, const void *w, float *to) {
    if (rows * cols <= 0) return;
    launch(device, "dequantize", format == TSHI_Q8_0 ? dequantize<TSHI_Q8_0> : dequantize<TSHI_Q4_0>,
           blocks_for(device, rows * cols, THREADS), THREADS, rows * cols, tshi_groups(cols), cols,
           (const unsigned char *)w, to);
}
