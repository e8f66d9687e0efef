// Squared errors, smooth errors and binary cross entropies of elements.
#include "device/cuda/kernels/common.cuh"

using namespace tshi;

namespace {

constexpr int THREADS = 256;

// log(1 + exp(x))
template <typename S> __device__ S softplus(S x) {
    return log1p(exp(-fabs(x))) + (x > S(0) ? x : S(0));
}

template <typename T> struct elements {
    using S = sum_t<T>;
    S beta;
    int64_t n, weights;
    const T *x, *target, *weight;

    explicit elements(const tshi_loss_inputs &in)
        : beta((S)in.beta), n(in.n), weights(in.weights), x((const T *)in.x), target((const T *)in.target),
          weight((const T *)in.weight) {}
    __device__ S weight_at(int64_t i) const {
        return weight ? S(load(weight[i - quotient(i, weights) * weights])) : S(1);
    }
};

// The losses of W elements from i on. W: a pack of the compute type, or 1.
template <typename T, tshi_loss F, int W>
__device__ inline void losses_at(const elements<T> &e, int64_t i, sum_t<T> *loss) {
    using S = sum_t<T>;
    const pack<T, W> xs = *(const pack<T, W> *)(e.x + i), targets = *(const pack<T, W> *)(e.target + i);
    pack<S, W> out;
    for (int j = 0; j < W; j++) {
        const S x = load(xs.item[j]), t = load(targets.item[j]);
        const S d = fabs(x - t);
        if (F == TSHI_SQUARED_ERROR)
            out.item[j] = d * d;
        else if (F == TSHI_SMOOTH_ERROR)
            out.item[j] = d < e.beta ? S(0.5) * d * d / e.beta : d - S(0.5) * e.beta;
        else
            out.item[j] = (S(1) - t) * x + (S(1) + (e.weight_at(i + j) - S(1)) * t) * softplus(-x);
    }
    store_pack((pack<S, W> *)(loss + i), out);
}

template <typename T, tshi_loss F>
__global__ void __launch_bounds__(THREADS) losses(elements<T> e, int64_t packed, sum_t<T> *loss) {
    constexpr int W = pack<sum_t<T>>::size;
    const int64_t me = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = me * W; i < packed; i += step * W) losses_at<T, F, W>(e, i, loss);
    for (int64_t i = packed + me; i < e.n; i += step) losses_at<T, F, 1>(e, i, loss);
}

// The upstream gradient: one number, or one for each element.
template <typename S> struct upstream {
    const S *dloss;
    int64_t stride;
    S scale;
    template <int W> __device__ pack<S, W> at(int64_t i) const {
        pack<S, W> by;
        if (stride == 1) by = *(const pack<S, W> *)(dloss + i);
        for (int j = 0; j < W; j++) by.item[j] = scale * (stride == 1 ? by.item[j] : dloss[(i + j) * stride]);
        return by;
    }
};

template <typename T, tshi_loss F, int W>
__device__ inline void gradients_at(const elements<T> &e, int64_t i, bool of_target, const upstream<sum_t<T>> &up,
                                    bool add, T *to) {
    using S = sum_t<T>;
    const pack<T, W> xs = *(const pack<T, W> *)(e.x + i), targets = *(const pack<T, W> *)(e.target + i);
    const pack<S, W> by = up.template at<W>(i);
    pack<T, W> out = {};
    if (add) out = *(const pack<T, W> *)(to + i);
    for (int j = 0; j < W; j++) {
        const S x = load(xs.item[j]), t = load(targets.item[j]);
        S slope;
        const S d = of_target ? t - x : x - t;
        if (F == TSHI_SQUARED_ERROR) {
            slope = S(2) * d;
        } else if (F == TSHI_SMOOTH_ERROR) {
            slope = fabs(d) < e.beta ? d / e.beta : d > S(0) ? S(1) : d < S(0) ? S(-1) : d;
        } else {
            const S w = e.weight_at(i + j), s = S(1) / (S(1) + exp(-x));
            slope = of_target ? (w - S(1)) * softplus(-x) - x : (w * t + S(1) - t) * s - w * t;
        }
        slope *= by.item[j];
        out.item[j] = store<T>(add ? load(out.item[j]) + slope : slope);
    }
    *(pack<T, W> *)(to + i) = out;
}

template <typename T, tshi_loss F>
__global__ void __launch_bounds__(THREADS)
    gradients(elements<T> e, int64_t packed, bool of_target, upstream<sum_t<T>> up, bool add, T *to) {
    constexpr int W = pack<sum_t<T>>::size;
    const int64_t me = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = me * W; i < packed; i += step * W) gradients_at<T, F, W>(e, i, of_target, up, add, to);
    for (int64_t i = packed + me; i < e.n; i += step) gradients_at<T, F, 1>(e, i, of_target, up, add, to);
}

// The number of elements in whole aligned packs.
template <typename T> int64_t packed_of(const tshi_loss_inputs &in, const void *sums, const void *other) {
    constexpr int W = pack<sum_t<T>>::size;
    const uintptr_t at = (uintptr_t)in.x | (uintptr_t)in.target | (uintptr_t)sums | (uintptr_t)other;
    return at % 16 == 0 ? in.n / W * W : 0;
}

template <typename T> unsigned blocks_of(tsh_device *device, int64_t n) {
    return blocks_for(device, up(n, pack<sum_t<T>>::size), THREADS);
}

// g(std::integral_constant<tshi_loss, f>()).
template <typename G> void with_loss(tshi_loss f, G g) {
    switch (f) {
    case TSHI_SQUARED_ERROR: g(std::integral_constant<tshi_loss, TSHI_SQUARED_ERROR>()); break;
    case TSHI_BINARY_CROSS_ENTROPY: g(std::integral_constant<tshi_loss, TSHI_BINARY_CROSS_ENTROPY>()); break;
    case TSHI_SMOOTH_ERROR: g(std::integral_constant<tshi_loss, TSHI_SMOOTH_ERROR>()); break;
    default: break;
    }
}

template <typename T> void forward(tsh_device *device, const tshi_loss_inputs *in, void *loss) {
    if (in->n <= 0) return;
    with_loss(in->f, [=](auto f) {
        launch(device, "loss", losses<T, f.value>, blocks_of<T>(device, in->n), THREADS, elements<T>(*in),
               packed_of<T>(*in, loss, nullptr), (sum_t<T> *)loss);
    });
}

template <typename T>
void backward(tsh_device *device, const tshi_loss_inputs *in, bool of_target, const void *dloss, int64_t stride,
              double scale, double beta, void *to) {
    using S = sum_t<T>;
    if (in->n <= 0) return;
    const upstream<S> up = {(const S *)dloss, stride, (S)scale};
    with_loss(in->f, [=](auto f) {
        launch(device, "loss_backward", gradients<T, f.value>, blocks_of<T>(device, in->n), THREADS, elements<T>(*in),
               packed_of<T>(*in, stride == 1 ? dloss : nullptr, to), of_target, up, beta != 0.0, (T *)to);
    });
}

template <typename T> constexpr tshi_loss_ops table = {forward<T>, backward<T>};

} // namespace

const tshi_loss_ops tshi_cuda_loss[TSH_DTYPE_COUNT] = {table<float>, table<double>, table<__nv_bfloat16>,
                                                       table<__half>};
