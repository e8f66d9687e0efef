// Cross entropy of a vocabulary slice.
#include "device/cuda/check.cuh"

using namespace tshi;

namespace {

template <typename S> struct plus {
    __device__ S operator()(S a, S b) const {
        return a + b;
    }
};

// One element of device memory, or `otherwise`. Read by the GPU alone.
template <typename S> __device__ inline S read(const void *from, S otherwise) {
    return from ? *(const S *)from : otherwise;
}

// Each logit is read once.
template <typename T, bool WARPS>
__global__ void __launch_bounds__(256, 2)
    sums_kernel(tshi_classes c, pieces p, const T *__restrict__ logits, const int64_t *__restrict__ target,
                const sum_t<T> *__restrict__ max, sum_t<T> *__restrict__ sums) {
    using S = sum_t<T>;
    __shared__ S shared[WARP];
    const T *w = (const T *)c.weight;
    bool smooth = c.smoothing != 0.0;
    team<WARPS> t(p);
    for (int64_t r = t.first; r < p.rows; r += t.step) {
        const T *row = logits + r * c.n;
        S top = max[r], total = 0, weighted = 0;
        if (!smooth || !w)
            walk<READ_X>(c.n, row, w, (T *)nullptr, t.me, t.size, [&](int64_t, S x, S, S) {
                weighted += x - top;
                return total += exp_of<T>(x - top);
            });
        else
            walk<READ_X | READ_Y>(c.n, row, w, (T *)nullptr, t.me, t.size, [&](int64_t, S x, S weight, S) {
                weighted += weight * (x - top);
                return total += exp_of<T>(x - top);
            });
        total = t.reduce(total, shared, plus<S>(), S(0));
        if (smooth) weighted = t.reduce(weighted, shared, plus<S>(), S(0));
        if (t.me != 0) continue;
        int64_t at = target[r] - c.start;
        bool mine = target[r] != c.ignore_index && at >= 0 && at < c.n;
        sums[4 * r] = total;
        sums[4 * r + 1] = mine ? load(row[at]) - top : S(0);
        sums[4 * r + 2] = !mine ? S(0) : w ? load(w[at]) : S(1);
        sums[4 * r + 3] = smooth ? weighted : S(0);
    }
}

// A few numbers a row: double costs nothing here.
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
        loss[r] = target[r] == c.ignore_index ? S(0) : (S)total;
    }
}

// What the backward needs of a row.
template <typename S> struct row_factors {
    S exponential, target, weight; // of exp(l - max), of [j = t], of w_j

    __device__ row_factors(const tshi_classes &c, S g, const S *sums) {
        S a = (S)c.smoothing;
        target = g * (S(1) - a) * sums[2];
        weight = g * (S)(c.smoothing / (double)c.classes);
        S on_all = a != S(0) ? target + weight * read(c.weight_sum, (S)c.classes) : target;
        exponential = on_all * reciprocal(sums[0]);
    }
};

template <typename T, bool WARPS>
__global__ void __launch_bounds__(256, 2)
    backward_kernel(tshi_classes c, pieces p, const T *__restrict__ logits, const int64_t *__restrict__ target,
                    const sum_t<T> *__restrict__ max, const sum_t<T> *__restrict__ sums,
                    const sum_t<T> *__restrict__ dloss, int64_t dloss_stride, const sum_t<T> *__restrict__ divisor,
                    T *__restrict__ dlogits) {
    using S = sum_t<T>;
    const T *w = (const T *)c.weight;
    S inverse = divisor ? S(1) / *divisor : S(1);
    team<WARPS> t(p);
    for (int64_t r = t.first; r < p.rows; r += t.step) {
        if (target[r] == c.ignore_index) continue;
        row_factors<S> f(c, inverse * dloss[r * dloss_stride], sums + 4 * r);
        S top = max[r];
        int64_t at = r * p.n + t.begin, hit = target[r] - c.start - t.begin; // no place here, in another slice or piece
        const T *x = logits + at;
        T *dx = dlogits + at;
        if (f.weight != S(0) && w)
            walk<READ_X | READ_Y | READ_Z | WRITE_Z>(
                t.length, x, w + t.begin, dx, t.me, t.size, [=](int64_t i, S l, S weight, S d) {
                    S change = f.exponential * exp_of<T>(l - top) - f.weight * weight;
                    return d + (i == hit ? change - f.target : change);
                });
        else
            walk<READ_X | READ_Z | WRITE_Z>(t.length, x, x, dx, t.me, t.size, [=](int64_t i, S l, S, S d) {
                S change = f.exponential * exp_of<T>(l - top) - f.weight;
                return d + (i == hit ? change - f.target : change);
            });
    }
}

} // namespace

int64_t tshi_cuda_targets_check(tsh_device *device, const tshi_classes *c, const int64_t *target) {
    return check_indices(device, true, c->rows, target, c->classes, c->ignore_index);
}

void tshi_cuda_cross_entropy_sums(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const void *logits,
                                  const int64_t *target, const void *max, void *sums) {
    if (c->rows <= 0) return;
    pieces whole = {c->rows, c->n, c->n, 1};
    with_float(dtype, [&](auto element) {
        using T = decltype(element);
        using S = sum_t<T>;
        with_team<T>(device, whole, [&](auto warps, unsigned blocks, unsigned threads) {
            constexpr bool WARPS = decltype(warps)::value;
            launch(device, "cross_entropy_sums", sums_kernel<T, WARPS>, blocks, threads, *c, whole, (const T *)logits,
                   target, (const S *)max, (S *)sums);
        });
    });
}

void tshi_cuda_cross_entropy_loss(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const int64_t *target,
                                  const void *sums, void *loss) {
    if (c->rows <= 0) return;
    unsigned blocks = blocks_for(device, c->rows, 256);
    if (dtype == TSH_FLOAT64)
        launch(device, "cross_entropy_loss", loss_kernel<double>, blocks, 256, *c, target, (const double *)sums,
               (double *)loss);
    else
        launch(device, "cross_entropy_loss", loss_kernel<float>, blocks, 256, *c, target, (const float *)sums,
               (float *)loss);
}

void tshi_cuda_cross_entropy_backward(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const void *logits,
                                      const int64_t *target, const void *max, const void *sums, const void *dloss,
                                      int64_t dloss_stride, const void *divisor, void *dlogits) {
    if (c->rows <= 0 || c->n <= 0) return;
    pieces p = split_rows(device, c->rows, c->n);
    with_float(dtype, [&](auto element) {
        using T = decltype(element);
        using S = sum_t<T>;
        with_team<T>(device, p, [&](auto warps, unsigned blocks, unsigned threads) {
            launch(device, "cross_entropy_backward", backward_kernel<T, decltype(warps)::value>, blocks, threads, *c, p,
                   (const T *)logits, target, (const S *)max, (const S *)sums, (const S *)dloss, dloss_stride,
                   (const S *)divisor, (T *)dlogits);
        });
    });
}
