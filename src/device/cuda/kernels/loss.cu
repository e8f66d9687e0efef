// Squared errors and binary cross entropies of elements.
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
    int64_t n, weights;
    const T *x, *target, *weight;

    explicit elements(const tshi_loss_inputs &in)
        : n(in.n), weights(in.weights), x((const T *)in.x), target((const T *)in.target), weight((const T *)in.weight) {
    }
    __device__ S weight_at(int64_t i) const {
        return weight ? S(load(weight[i % weights])) : S(1);
    }
};

template <typename T, bool SQUARED> __global__ void __launch_bounds__(THREADS) losses(elements<T> e, sum_t<T> *loss) {
    using S = sum_t<T>;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < e.n; i += step) {
        S x = load(e.x[i]), t = load(e.target[i]);
        if (SQUARED)
            loss[i] = (x - t) * (x - t);
        else
            loss[i] = (S(1) - t) * x + (S(1) + (e.weight_at(i) - S(1)) * t) * softplus(-x);
    }
}

template <typename T, bool SQUARED>
__global__ void __launch_bounds__(THREADS)
    gradients(elements<T> e, bool of_target, const sum_t<T> *dloss, int64_t stride, sum_t<T> scale, bool add, T *to) {
    using S = sum_t<T>;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < e.n; i += step) {
        S x = load(e.x[i]), t = load(e.target[i]), slope;
        if (SQUARED) {
            slope = S(2) * (of_target ? t - x : x - t);
        } else {
            S w = e.weight_at(i), s = S(1) / (S(1) + exp(-x));
            slope = of_target ? (w - S(1)) * softplus(-x) - x : (w * t + S(1) - t) * s - w * t;
        }
        slope *= scale * dloss[i * stride];
        to[i] = store<T>(add ? load(to[i]) + slope : slope);
    }
}

template <typename T> void forward(tsh_device *device, const tshi_loss_inputs *in, void *loss) {
    if (in->n <= 0) return;
    with_bool(in->f == TSHI_SQUARED_ERROR, [=](auto squared) {
        launch(device, "loss", losses<T, squared.value>, blocks_for(device, in->n, THREADS), THREADS, elements<T>(*in),
               (sum_t<T> *)loss);
    });
}

template <typename T>
void backward(tsh_device *device, const tshi_loss_inputs *in, bool of_target, const void *dloss, int64_t stride,
              double scale, double beta, void *to) {
    if (in->n <= 0) return;
    with_bool(in->f == TSHI_SQUARED_ERROR, [=](auto squared) {
        launch(device, "loss_backward", gradients<T, squared.value>, blocks_for(device, in->n, THREADS), THREADS,
               elements<T>(*in), of_target, (const sum_t<T> *)dloss, stride, (sum_t<T>)scale, beta != 0.0, (T *)to);
    });
}

template <typename T> constexpr tshi_loss_ops table = {forward<T>, backward<T>};

} // namespace

const tshi_loss_ops tshi_cuda_loss[TSH_DTYPE_COUNT] = {table<float>, table<double>, table<__nv_bfloat16>,
                                                       table<__half>};
