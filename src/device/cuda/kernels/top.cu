// The largest elements along a dim, and their gradient.
#include "device/cuda/kernels/common.cuh"

namespace {
using namespace tshi;

constexpr int THREADS = 256;

// a comes before b in descending order.
__device__ inline bool before(const tshi_candidate &a, const tshi_candidate &b) {
    const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
    if (a.value > b.value || (nan_a && !nan_b)) return true;
    return (a.value == b.value || (nan_a && nan_b)) && a.index < b.index;
}

// One block a column. Each round finds the largest element that comes after the one of the round before, so the column
// is read once for each candidate.
template <typename T>
__global__ void __launch_bounds__(THREADS)
    find_top(int64_t columns, int64_t n, int64_t inner, int64_t most, int64_t start, const T *x, tshi_candidate *top) {
    __shared__ tshi_candidate best[THREADS];
    const int me = threadIdx.x;
    for (int64_t column = blockIdx.x; column < columns; column += gridDim.x) {
        const T *from = x + column / inner * n * inner + column % inner;
        tshi_candidate *to = top + column / inner * most * inner + column % inner;
        tshi_candidate last = {0, -1};
        for (int64_t j = 0; j < most; j++) {
            tshi_candidate mine = TSHI_NO_CANDIDATE;
            for (int64_t i = me; i < n; i += blockDim.x) {
                const tshi_candidate c = {(double)load(from[i * inner]), start + i};
                if ((j == 0 || before(last, c)) && before(c, mine)) mine = c;
            }
            best[me] = mine;
            barrier();
            for (int half = THREADS / 2; half > 0; half /= 2) {
                if (me < half && before(best[me + half], best[me])) best[me] = best[me + half];
                barrier();
            }
            last = best[0];
            if (me == 0) to[j * inner] = last;
            barrier();
        }
    }
}

// One thread a column: it repeatedly takes the first candidate of all lists. A list's position is searched again each
// time: its candidates up to the last one taken are used up.
__global__ void __launch_bounds__(THREADS, 4)
    merge_top(int64_t count, int64_t columns, int64_t most, int64_t inner, int64_t list, const tshi_candidate *lists,
              tshi_candidate *top) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t column = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; column < columns; column += step) {
        const int64_t at = column / inner * most * inner + column % inner;
        tshi_candidate last = {0, -1};
        for (int64_t j = 0; j < most; j++) {
            tshi_candidate best = TSHI_NO_CANDIDATE;
            for (int64_t l = 0; l < count; l++) {
                int64_t low = 0, high = j; // at most j candidates of this list are used up
                while (j > 0 && low < high) {
                    const int64_t middle = (low + high) / 2;
                    if (before(last, lists[l * list + at + middle * inner]))
                        high = middle;
                    else
                        low = middle + 1;
                }
                const tshi_candidate c = lists[l * list + at + low * inner];
                if (before(c, best)) best = c;
            }
            top[at + j * inner] = last = best;
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS) spread(int64_t total, int64_t n, int64_t inner, int64_t most, int64_t start,
                                                  const int64_t *index, const T *dy, T *dx) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
        const int64_t at = index[i] - start, to = (i / inner / most * n + at) * inner + i % inner;
        if (at >= 0 && at < n) dx[to] = store<T>(load(dx[to]) + load(dy[i]));
    }
}

// f(T()) with T the element type of a float dtype.
template <typename F> void with_float(tsh_dtype dtype, F f) {
    with_real(dtype, [&](auto t) {
        if constexpr (!std::is_integral_v<decltype(t)>) f(t);
    });
}

} // namespace

void tshi_cuda_top(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, int64_t most,
                   int64_t start, const void *x, tshi_candidate *top) {
    if (outer * inner * most <= 0) return;
    with_float(dtype, [=](auto t) {
        using T = decltype(t);
        launch(device, "top", find_top<T>, blocks_for(device, outer * inner * THREADS, THREADS), THREADS, outer * inner,
               n, inner, most, start, (const T *)x, top);
    });
}

void tshi_cuda_top_merge(tsh_device *device, int64_t count, int64_t outer, int64_t most, int64_t inner,
                         const tshi_candidate *lists, tshi_candidate *top) {
    if (outer * inner * most <= 0) return;
    launch(device, "top_merge", merge_top, blocks_for(device, outer * inner, THREADS), THREADS, count, outer * inner,
           most, inner, outer * most * inner, lists, top);
}

void tshi_cuda_top_backward(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, int64_t most,
                            int64_t start, const int64_t *index, const void *dy, void *dx) {
    int64_t total = outer * most * inner;
    if (total <= 0) return;
    with_float(dtype, [=](auto t) {
        using T = decltype(t);
        launch(device, "top_backward", spread<T>, blocks_for(device, total, THREADS), THREADS, total, n, inner, most,
               start, index, (const T *)dy, (T *)dx);
    });
}
