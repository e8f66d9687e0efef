// Random fills and dropout, keyed by global element, with the generator of device/kernels.h: every device draws the
// same words for an element.
//
// A thread draws the words of SIZE neighbouring elements, a unit, at once. Units begin at multiples of SIZE, so a slice
// that begins elsewhere wastes a few words.
#include "device/cuda/kernels/random.cuh"

namespace {
using namespace tshi;

constexpr int THREADS = 256;

// A tshi_block as `outer` runs of `run` elements with consecutive global numbers. Run o begins at global element
// first + o * stride, and `units` units cover it; its first and its last unit may reach beyond it.
struct runs {
    int64_t outer, run, first, stride, units;
};

runs runs_of(const tshi_block &b, int size) {
    runs r = {b.outer, b.n * b.inner, (b.outer_start * b.global_n + b.start) * b.inner, b.global_n * b.inner, 0};
    if (r.run == r.stride) { // no gaps between the runs: one run
        r.run *= r.outer;
        r.outer = r.run > 0;
    }
    if (r.run == 0) r.outer = 0;
    if (r.outer == 1) r.stride = 0;
    bool even = r.stride % size == 0;
    r.units = even ? up(r.first % size + r.run, size) : up(r.run - 1, size) + 1;
    return r;
}

// This thread's next unit: the global elements [element, element + SIZE). The first of them has index `at` in the local
// block and `begin` in its run; both may be out of range.
template <int SIZE> struct unit {
    int64_t element, begin, at;
    __device__ unit(const runs &r, int64_t number) {
        int64_t o = quotient(number, r.units), first = r.first + o * r.stride;
        element = first / SIZE * SIZE + (number - o * r.units) * SIZE;
        begin = element - first;
        at = o * r.run + begin;
    }
};

// --- dropout ---------------------------------------------------------------------------------------------------------

// A multiple of a pack and of the four words of a draw.
template <typename T> constexpr int dropout_size = pack<T>::size < 4 ? 4 : pack<T>::size;

template <typename T> struct alignas(16) dropout_pack { T item[dropout_size<T>]; };

template <typename T> struct dropping {
    int32_t threshold; // words below it drop
    sum_t<T> scale;
    bool add;
    __device__ T operator()(uint32_t word, T x, T y) const {
        sum_t<T> kept = (int32_t)(word >> 8) >= threshold ? load(x) * scale : sum_t<T>(0);
        return store<T>(add ? load(y) + kept : kept);
    }
};

// PACKED: every unit lies within its run and is aligned.
template <typename T, bool PACKED>
__global__ void __launch_bounds__(THREADS) drop(runs r, word_source source, dropping<T> dropping, const T *x, T *y) {
    source = now(source);
    constexpr int SIZE = dropout_size<T>;
    using P = dropout_pack<T>;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < r.outer * r.units;
         i += (int64_t)gridDim.x * blockDim.x) {
        const unit<SIZE> u(r, i);
        uint32_t word[SIZE];
        P in, out = {};
        if (PACKED) {
            in = *(const P *)(x + u.at);
            if (dropping.add) out = *(const P *)(y + u.at);
        }
#pragma unroll
        for (int j = 0; j < SIZE; j += 4) make_words(source, (uint64_t)(u.element + j) / 4, word + j);
#pragma unroll
        for (int j = 0; j < SIZE; j++) {
            if (PACKED)
                out.item[j] = dropping(word[j], in.item[j], out.item[j]);
            else if (u.begin + j >= 0 && u.begin + j < r.run)
                y[u.at + j] = dropping(word[j], x[u.at + j], dropping.add ? y[u.at + j] : T());
        }
        if (PACKED) store_pack((P *)(y + u.at), out);
    }
}

// --- fills -----------------------------------------------------------------------------------------------------------

// In double, as on the CPU, for equal values; speed does not matter, as fills are not part of a step.
struct uniform {
    static constexpr int words = 1;
    double low, range;
    __device__ double operator()(const uint32_t *word) const {
        return fma(range, (double)(int32_t)(word[0] >> 8) * 0x1p-24, low);
    }
};

struct normal {
    static constexpr int words = 2;
    double mean, std;
    __device__ double operator()(const uint32_t *word) const {
        constexpr double two_pi = 6.283185307179586476925286766559;
        double a = ((double)(int32_t)(word[0] >> 8) + 1.0) * 0x1p-24, b = (double)(int32_t)(word[1] >> 8) * 0x1p-24;
        return fma(std, sqrt(-2.0 * log(a)) * cos(two_pi * b), mean);
    }
};

template <typename T, typename F>
__global__ void __launch_bounds__(THREADS) fill(runs r, word_source source, F value, T *to) {
    source = now(source);
    constexpr int SIZE = 4 / F::words;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < r.outer * r.units;
         i += (int64_t)gridDim.x * blockDim.x) {
        const unit<SIZE> u(r, i);
        uint32_t word[4];
        make_words(source, (uint64_t)u.element / SIZE, word);
#pragma unroll
        for (int j = 0; j < SIZE; j++)
            if (u.begin + j >= 0 && u.begin + j < r.run) to[u.at + j] = store<T>((sum_t<T>)value(word + j * F::words));
    }
}

template <typename T, typename F>
void launch_fill(tsh_device *device, const char *what, const tshi_block *block, uint64_t seed, uint64_t stream, F value,
                 void *to) {
    const runs r = runs_of(*block, 4 / F::words);
    if (r.outer == 0) return;
    launch(device, what, fill<T, F>, blocks_for(device, r.outer * r.units, THREADS), THREADS, r,
           source_of(device, seed, stream), value, (T *)to);
}

template <typename T>
void dropout(tsh_device *device, const tshi_block *block, uint64_t seed, uint64_t stream, double p, const void *x,
             double beta, void *y) {
    constexpr int SIZE = dropout_size<T>;
    const runs r = runs_of(*block, SIZE);
    if (r.outer == 0) return;
    const dropping<T> how = {(int32_t)ceil(p * 0x1p24), (sum_t<T>)(p < 1.0 ? 1.0 / (1.0 - p) : 0.0), beta != 0.0};
    const bool packed = r.first % SIZE == 0 && r.stride % SIZE == 0 && r.run % SIZE == 0 && packs<T>(r.run, x, y);
    with_bool(packed, [&](auto yes) {
        launch(device, "dropout", drop<T, yes.value>, blocks_for(device, r.outer * r.units, THREADS), THREADS, r,
               source_of(device, seed, stream), how, (const T *)x, (T *)y);
    });
}

template <typename T>
void random_uniform(tsh_device *device, const tshi_block *block, uint64_t seed, uint64_t stream, double low,
                    double high, void *to) {
    launch_fill<T>(device, "random_uniform", block, seed, stream, uniform{low, high - low}, to);
}

template <typename T>
void random_normal(tsh_device *device, const tshi_block *block, uint64_t seed, uint64_t stream, double mean, double std,
                   void *to) {
    launch_fill<T>(device, "random_normal", block, seed, stream, normal{mean, std}, to);
}

template <typename T>
constexpr tshi_random_ops table = {.dropout = dropout<T>, .uniform = random_uniform<T>, .normal = random_normal<T>};

} // namespace

const tshi_random_ops tshi_cuda_random[TSH_DTYPE_COUNT] = {table<float>, table<double>, table<__nv_bfloat16>,
                                                           table<__half>};
