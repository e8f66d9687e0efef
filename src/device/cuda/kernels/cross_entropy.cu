// Cross entropy of a vocabulary slice.
#include "device/cuda/kernels/common.cuh"

#include <limits>

using namespace tshi;

namespace {

// The element at `from`, in device memory, or `otherwise` if it is NULL.
template <typename S> __device__ inline S read(const void *from, S otherwise) {
    return from ? *(const S *)from : otherwise;
}

template <typename S> struct larger {
    __device__ S operator()(S a, S b) const {
        return b > a ? b : a;
    }
};

// The running sums of a row, relative to the maximum so far, which starts at the lowest finite number so that a logit
// of -inf adds 0.
template <typename S> struct alignas(16) row_sums { S max, total, weighted, weights; };

template <typename T, bool SMOOTH> struct running {
    using S = sum_t<T>;
    row_sums<S> so_far = {std::numeric_limits<S>::lowest(), 0, 0, 0};

    __device__ void shift(S to) {
        const S change = so_far.max - to;
        so_far.total *= exp_of<T>(change);
        if (SMOOTH && so_far.weights != S(0)) so_far.weighted += so_far.weights * change;
        so_far.max = to;
    }

    // Compares the maximum of all N with the one so far, which seldom grows.
    template <int N> __device__ void take(const S (&x)[N], S weight) {
        S top = so_far.max;
        for (int j = 0; j < N; j++) top = x[j] > top ? x[j] : top;
        if (top > so_far.max) shift(top);
        for (int j = 0; j < N; j++) {
            so_far.total += exp_of<T>(x[j] - so_far.max);
            if (SMOOTH) so_far.weighted += weight * (x[j] - so_far.max);
            if (SMOOTH) so_far.weights += weight;
        }
    }

    __device__ void take_one(S x, S weight) {
        const S one[1] = {x};
        take(one, weight);
    }

    // Takes the packs at i, i + stride, ... before `end`.
    __device__ void take_packs(const T *x, int64_t i, int64_t stride, int64_t end) {
        constexpr int AHEAD = walk_ahead<READ_X>;
        pack<T> more[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (i + k * stride < end) more[k] = *(const pack<T> *)(x + i + k * stride);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            if (i + k * stride >= end) break;
            S value[pack<T>::size];
            for (int j = 0; j < pack<T>::size; j++) value[j] = load(more[k].item[j]);
            take(value, S(1));
        }
    }

    // Takes this thread's part of n logits and their weights (NULL: ones): it is thread `me` of `step`.
    __device__ void take_row(int64_t n, const T *x, const T *w, int64_t me, int64_t step) {
        if (SMOOTH && w) {
            walk<READ_X | READ_Y>(n, x, w, (T *)nullptr, me, step, [&](int64_t, S value, S weight, S) {
                take_one(value, weight);
                return value;
            });
            return;
        }
        const packed_range<T> packed(n, (uintptr_t)x);
        const int64_t stride = step * pack<T>::size;
        for (int64_t i = me; i < packed.begin; i += step) take_one(load(x[i]), S(1));
        for (int64_t i = packed.begin + me * pack<T>::size; i < packed.end; i += walk_ahead<READ_X> * stride)
            take_packs(x, i, stride, packed.end);
        for (int64_t i = packed.end + me; i < n; i += step) take_one(load(x[i]), S(1));
    }
};

// Writes the sums of a row.
template <typename T>
__device__ inline void store_sums(const tshi_classes &c, int64_t r, const T *logits, const int64_t *target,
                                  const row_sums<sum_t<T>> &row, sum_t<T> *max, sum_t<T> *sums) {
    using S = sum_t<T>;
    const T *w = (const T *)c.weight;
    int64_t at = target[r] - c.start;
    bool mine = target[r] != c.ignore_index && at >= 0 && at < c.n;
    max[r] = row.max;
    sums[4 * r] = row.total;
    sums[4 * r + 1] = mine ? load(logits[r * c.n + at]) - row.max : S(0);
    sums[4 * r + 2] = !mine ? S(0) : w ? load(w[at]) : S(1);
    sums[4 * r + 3] = row.weighted;
}

// Reads each logit once. partial: the sums of the pieces, those of a row next to each other; NULL if a piece is a row.
template <typename T, bool WARPS, bool SMOOTH>
__global__ void __launch_bounds__(256, 2)
    sums_kernel(tshi_classes c, pieces p, const T *__restrict__ logits, const int64_t *__restrict__ target,
                sum_t<T> *max, sum_t<T> *sums, row_sums<sum_t<T>> *partial) {
    using S = sum_t<T>;
    __shared__ S shared[WARP];
    const T *w = (const T *)c.weight;
    team<WARPS> t(p);
    for (int64_t r = t.first; r < p.rows; r += t.step) {
        running<T, SMOOTH> mine;
        mine.take_row(t.length, logits + r * c.n + t.begin, w ? w + t.begin : w, t.me, t.size);
        row_sums<S> &all = mine.so_far;
        mine.shift(t.reduce(all.max, shared, larger<S>(), std::numeric_limits<S>::lowest()));
        all.total = t.reduce(all.total, shared, plus(), S(0));
        if (SMOOTH) all.weighted = t.reduce(all.weighted, shared, plus(), S(0));
        if (SMOOTH) all.weights = t.reduce(all.weights, shared, plus(), S(0));
        if (t.me != 0) continue;
        if (partial)
            partial[r * p.parts + t.part] = all;
        else
            store_sums(c, r, logits, target, all, max, sums);
    }
}

// Combines the sums of a row's pieces, one thread a row: the pieces are few.
template <typename T>
__global__ void __launch_bounds__(256, 2)
    join_pieces(tshi_classes c, unsigned parts, const row_sums<sum_t<T>> *__restrict__ partial,
                const T *__restrict__ logits, const int64_t *__restrict__ target, sum_t<T> *max, sum_t<T> *sums) {
    using S = sum_t<T>;
    const int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= c.rows) return;
    const row_sums<S> *piece = partial + r * parts;
    row_sums<S> all = {piece[0].max, 0, 0, 0};
    for (unsigned i = 1; i < parts; i++) all.max = larger<S>()(all.max, piece[i].max);
    for (unsigned i = 0; i < parts; i++) {
        running<T, true> one = {piece[i]};
        one.shift(all.max);
        all.total += one.so_far.total;
        all.weighted += one.so_far.weighted;
    }
    store_sums(c, r, logits, target, all, max, sums);
}

template <typename S>
__global__ void __launch_bounds__(256, 2)
    shift_kernel(tshi_classes c, const S *__restrict__ own, const S *__restrict__ max, S *sums) {
    const int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= c.rows) return;
    const S change = own[r] - max[r], weights = read(c.weight_sum, (S)c.n);
    S *s = sums + 4 * r;
    s[0] *= exp(change);
    if (s[2] != S(0)) s[1] += change;
    if (c.smoothing != 0.0 && weights != S(0)) s[3] += weights * change;
}

// The loss of each row from its sums; in double, whose cost is negligible for a few numbers a row.
template <typename S>
__global__ void __launch_bounds__(256, 2)
    loss_kernel(tshi_classes c, const int64_t *__restrict__ target, const S *__restrict__ sums, S *__restrict__ loss) {
    int64_t me = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    double a = c.smoothing;
    for (int64_t r = me; r < c.rows; r += step) {
        const S *s = sums + 4 * r;
        double log_sum = log((double)s[0]), total = (1.0 - a) * (double)s[2] * (log_sum - (double)s[1]);
        if (a != 0.0) {
            double weight_sum = (double)read(c.weight_sum, (S)c.classes);
            total += a / (double)c.classes * (weight_sum * log_sum - (double)s[3]);
        }
        double lse = c.z_loss != 0.0 ? (double)((const S *)c.max)[r] + log_sum : 0.0, z = c.z_loss * lse * lse;
        double wanted = c.part == TSHI_LOSS_COUNT ? 1.0 : c.part == TSHI_LOSS_OF_Z ? z : total + z;
        loss[r] = target[r] == c.ignore_index ? S(0) : (S)wanted;
    }
}

// The factors of a row's gradient.
template <typename S> struct row_factors {
    S exponential, target, weight; // of exp(l - max), of [j = t], of w_j

    // g, h: the upstream gradients of the cross entropy and of the z-loss.
    __device__ row_factors(const tshi_classes &c, S g, S h, S max, const S *sums) {
        S a = (S)c.smoothing;
        target = g * (S(1) - a) * sums[2];
        weight = g * (S)(c.smoothing / (double)c.classes);
        S on_all = a != S(0) ? target + weight * read(c.weight_sum, (S)c.classes) : target;
        if (c.z_loss != 0.0) on_all += (S)(2.0 * c.z_loss) * h * (max + log(sums[0]));
        exponential = on_all * reciprocal(sums[0]);
    }
};

// ADD: adds to dlogits; else overwrites it without reading it.
template <typename T, bool WARPS, bool ADD>
__global__ void __launch_bounds__(256, 2)
    backward_kernel(tshi_classes c, pieces p, const T *__restrict__ logits, const int64_t *__restrict__ target,
                    const sum_t<T> *__restrict__ max, const sum_t<T> *__restrict__ sums,
                    const sum_t<T> *__restrict__ dloss, int64_t dloss_stride, const sum_t<T> *__restrict__ divisor,
                    T *__restrict__ dlogits) {
    using S = sum_t<T>;
    constexpr int TO = ADD ? READ_Z | WRITE_Z : WRITE_Z;
    const T *w = (const T *)c.weight;
    S inverse = divisor ? S(1) / *divisor : S(1), z_inverse = c.z_divisor ? S(1) / *(const S *)c.z_divisor : S(1);
    team<WARPS> t(p);
    for (int64_t r = t.first; r < p.rows; r += t.step) {
        int64_t at = r * p.n + t.begin,
                hit = target[r] - c.start - t.begin; // out of range if in another slice or piece
        const T *x = logits + at;
        T *dx = dlogits + at;
        if (target[r] == c.ignore_index) {
            if (!ADD) walk<TO>(t.length, x, x, dx, t.me, t.size, [](int64_t, S, S, S) { return S(0); });
            continue;
        }
        S top = max[r], upstream = dloss[r * dloss_stride];
        row_factors<S> f(c, inverse * upstream, z_inverse * upstream, top, sums + 4 * r);
        if (f.weight != S(0) && w)
            walk<READ_X | READ_Y | TO>(t.length, x, w + t.begin, dx, t.me, t.size, [=](int64_t i, S l, S weight, S d) {
                S change = f.exponential * exp_of<T>(l - top) - f.weight * weight;
                return d + (i == hit ? change - f.target : change);
            });
        else
            walk<READ_X | TO>(t.length, x, x, dx, t.me, t.size, [=](int64_t i, S l, S, S d) {
                S change = f.exponential * exp_of<T>(l - top) - f.weight;
                return d + (i == hit ? change - f.target : change);
            });
    }
}

template <typename T>
void sums(tsh_device *device, const tshi_classes *c, const void *logits, const int64_t *target, void *max, void *sums) {
    using S = sum_t<T>;
    const char *what = "cross_entropy_sums";
    if (c->rows <= 0) return;
    pieces p = split_rows(device, c->rows, c->n);
    row_sums<S> *partial = nullptr;
    if (p.parts > 1) {
        partial = (row_sums<S> *)scratch(device, p.rows * p.parts * (int64_t)sizeof *partial, what);
        if (!partial) return;
    }
    with_team<T>(device, p, [&](auto warps, unsigned blocks, unsigned threads) {
        with_bool(c->smoothing != 0.0, [&](auto smooth) {
            launch(device, what, sums_kernel<T, warps.value, smooth.value>, blocks, threads, *c, p, (const T *)logits,
                   target, (S *)max, (S *)sums, partial);
        });
    });
    if (partial)
        launch(device, what, join_pieces<T>, (unsigned)up(p.rows, 256), 256, *c, p.parts, (const row_sums<S> *)partial,
               (const T *)logits, target, (S *)max, (S *)sums);
    device->ops->memory.release(device, partial);
}

template <typename T>
void shift(tsh_device *device, const tshi_classes *c, const void *own, const void *max, void *sums) {
    using S = sum_t<T>;
    if (c->rows <= 0) return;
    launch(device, "cross_entropy_shift", shift_kernel<S>, (unsigned)up(c->rows, 256), 256, *c, (const S *)own,
           (const S *)max, (S *)sums);
}

template <typename T>
void loss(tsh_device *device, const tshi_classes *c, const int64_t *target, const void *sums, void *loss) {
    using S = sum_t<T>;
    if (c->rows <= 0) return;
    launch(device, "cross_entropy_loss", loss_kernel<S>, blocks_for(device, c->rows, 256), 256, *c, target,
           (const S *)sums, (S *)loss);
}

template <typename T>
void backward(tsh_device *device, const tshi_classes *c, const void *logits, const int64_t *target, const void *max,
              const void *sums, const void *dloss, int64_t dloss_stride, const void *divisor, double beta,
              void *dlogits) {
    using S = sum_t<T>;
    if (c->rows <= 0 || c->n <= 0) return;
    pieces p = split_rows(device, c->rows, c->n);
    with_team<T>(device, p, [&](auto warps, unsigned blocks, unsigned threads) {
        with_bool(beta != 0.0, [&](auto add) {
            launch(device, "cross_entropy_backward", backward_kernel<T, warps.value, add.value>, blocks, threads, *c, p,
                   (const T *)logits, target, (const S *)max, (const S *)sums, (const S *)dloss, dloss_stride,
                   (const S *)divisor, (T *)dlogits);
        });
    });
}

template <typename T>
constexpr tshi_cross_entropy_ops table = {.sums = sums<T>, .shift = shift<T>, .loss = loss<T>, .backward = backward<T>};

} // namespace

const tshi_cross_entropy_ops tshi_cuda_cross_entropy[TSH_DTYPE_COUNT] = {table<float>, table<double>,
                                                                         table<__nv_bfloat16>, table<__half>};
