// Functions of each element, and element-wise arithmetic.
#include "device/cuda/kernels/functions.cuh"

using namespace tshi;

namespace {

constexpr int THREADS = 256;

// z[i] = F(...)(x[i], y[i], z[i]). Arrays may be the same.
template <int USE, typename T, typename F>
__global__ void __launch_bounds__(THREADS, 2) map(int64_t n, const T *x, const T *y, T *z, F f) {
    using S = sum_t<T>;
    int64_t me = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    walk<USE>(n, x, y, z, me, step, [=](int64_t, S a, S b, S c) { return f(a, b, c); });
}

template <int USE, typename T, typename F>
void map_all(tsh_device *device, const char *what, int64_t n, const void *x, const void *y, void *z, F f) {
    if (n <= 0) return;
    unsigned blocks = blocks_for(device, up(n, pack<T>::size), THREADS);
    launch(device, what, map<USE, T, F>, blocks, THREADS, n, (const T *)x, (const T *)y, (T *)z, f);
}

// --- functions -------------------------------------------------------------------------------------------------------

template <typename F, typename S> struct unary_value {
    F f;
    __device__ S operator()(S x, S, S) const {
        return f.value(x);
    }
};

template <typename F, typename S, bool ADD> struct unary_gradient {
    F f;
    __device__ S operator()(S x, S dy, S dx) const {
        return ADD ? dx + f.gradient(x, dy) : f.gradient(x, dy);
    }
};

template <typename T> void unary(tsh_device *device, tshi_unary f, const double *p, int64_t n, const void *x, void *y) {
    with_unary<T>(f, p, [=](auto function) {
        unary_value<decltype(function), sum_t<T>> value{function};
        map_all<READ_X | WRITE_Z, T>(device, "unary", n, x, nullptr, y, value);
    });
}

template <typename T>
void unary_backward(tsh_device *device, tshi_unary f, const double *p, int64_t n, const void *x, const void *dy,
                    double beta, void *dx) {
    using S = sum_t<T>;
    with_unary<T>(f, p, [=](auto function) {
        using F = decltype(function);
        if (beta != 0.0)
            map_all<READ_X | READ_Y | READ_Z | WRITE_Z, T>(device, "unary_backward", n, x, dy, dx,
                                                           unary_gradient<F, S, true>{function});
        else
            map_all<READ_X | READ_Y | WRITE_Z, T>(device, "unary_backward", n, x, dy, dx,
                                                  unary_gradient<F, S, false>{function});
    });
}

// --- silu(g) u -------------------------------------------------------------------------------------------------------

template <typename T> struct gated_value {
    using S = sum_t<T>;
    __device__ S operator()(S g, S u, S) const {
        return silu<T>::value(g) * u;
    }
};

template <typename T> void swiglu(tsh_device *device, int64_t n, const void *g, const void *u, void *y) {
    map_all<READ_X | READ_Y | WRITE_Z, T>(device, "swiglu", n, g, u, y, gated_value<T>());
}

// Adds to the gradients of an element, or replaces them.
template <typename T> __device__ inline void gated_gradients(T g, T u, T dy, bool add_g, T &dg, bool add_u, T &du) {
    using S = sum_t<T>;
    const S to_g = silu<T>::gradient(load(g), load(dy) * load(u)), to_u = silu<T>::value(load(g)) * load(dy);
    dg = store<T>(add_g ? load(dg) + to_g : to_g);
    du = store<T>(add_u ? load(du) + to_u : to_u);
}

// Arrays may be the same. In packs, n is a multiple of their size.
template <typename T, bool PACKS>
__global__ void __launch_bounds__(THREADS, 2)
    gate_gradients(int64_t n, const T *g, const T *u, const T *dy, bool add_g, T *dg, bool add_u, T *du) {
    constexpr int W = PACKS ? pack<T>::size : 1;
    int64_t step = (int64_t)gridDim.x * blockDim.x * W;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W; i < n; i += step) {
        if constexpr (PACKS) {
            const pack<T> a = load_pack((const pack<T> *)(g + i)), b = load_pack((const pack<T> *)(u + i));
            const pack<T> c = load_pack((const pack<T> *)(dy + i));
            pack<T> to_g, to_u;
            if (add_g) to_g = load_pack((const pack<T> *)(dg + i));
            if (add_u) to_u = load_pack((const pack<T> *)(du + i));
            for (int j = 0; j < W; j++)
                gated_gradients(a.item[j], b.item[j], c.item[j], add_g, to_g.item[j], add_u, to_u.item[j]);
            store_pack((pack<T> *)(dg + i), to_g);
            store_pack((pack<T> *)(du + i), to_u);
        } else {
            gated_gradients(g[i], u[i], dy[i], add_g, dg[i], add_u, du[i]);
        }
    }
}

template <typename T>
void swiglu_backward(tsh_device *device, int64_t n, const void *g, const void *u, const void *dy, double beta_g,
                     void *dg, double beta_u, void *du) {
    if (n <= 0) return;
    const bool in_packs = packs<T>(n, g, u, dy) && packs<T>(n, dg, du);
    auto *kernel = in_packs ? gate_gradients<T, true> : gate_gradients<T, false>;
    launch(device, "swiglu_backward", kernel, blocks_for(device, in_packs ? up(n, pack<T>::size) : n, THREADS), THREADS,
           n, (const T *)g, (const T *)u, (const T *)dy, beta_g != 0.0, (T *)dg, beta_u != 0.0, (T *)du);
}

// --- arithmetic ------------------------------------------------------------------------------------------------------

template <typename S> struct scale {
    S a;
    __device__ S operator()(S x, S, S) const {
        return a * x;
    }
};

template <typename S> struct two_terms {
    S a, b;
    __device__ S operator()(S x, S y, S) const {
        return a * x + b * y;
    }
};

template <typename S, bool ADD> struct multiply {
    __device__ S operator()(S x, S y, S z) const {
        return ADD ? z + x * y : x * y;
    }
};

#define PAIR(name, value)                                                                                              \
    template <typename S> struct name {                                                                                \
        __device__ S operator()(S a, S b, S) const {                                                                   \
            return value;                                                                                              \
        }                                                                                                              \
    };
PAIR(add, a + b)
PAIR(subtract, a - b)
PAIR(divide, a / b)
PAIR(maximum, a > b || a != a ? a : b)
PAIR(minimum, a < b || a != a ? a : b)
PAIR(half_step, a > b ? S(1) : a == b ? S(0.5) : S(0))
PAIR(equal, S(a == b))
PAIR(not_equal, S(a != b))
PAIR(less, S(a < b))
PAIR(less_or_equal, S(a <= b))
PAIR(greater, S(a > b))
PAIR(greater_or_equal, S(a >= b))
#undef PAIR

template <typename T>
void axpby(tsh_device *device, int64_t n, double a, const void *x, double b, const void *y, void *z) {
    using S = sum_t<T>;
    if (b == 0.0)
        map_all<READ_X | WRITE_Z, T>(device, "axpby", n, x, nullptr, z, scale<S>{(S)a});
    else
        map_all<READ_X | READ_Y | WRITE_Z, T>(device, "axpby", n, x, y, z, two_terms<S>{(S)a, (S)b});
}

template <typename T> void mul(tsh_device *device, int64_t n, const void *x, const void *y, double beta, void *z) {
    using S = sum_t<T>;
    if (beta != 0.0)
        map_all<READ_X | READ_Y | READ_Z | WRITE_Z, T>(device, "mul", n, x, y, z, multiply<S, true>());
    else
        map_all<READ_X | READ_Y | WRITE_Z, T>(device, "mul", n, x, y, z, multiply<S, false>());
}

template <typename T, typename F>
__global__ void __launch_bounds__(THREADS, 2)
    map_overlaid(tshi_broadcast o, int64_t n, const T *x, const T *y, T *z, F f) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        overlaid at(o, i);
        z[i] = store<T>(f(load(x[at.x]), load(y[at.y]), sum_t<T>(0)));
    }
}

// The pack at `from`, or with stride 0 its first element repeated.
template <typename T> __device__ inline pack<T> spread_pack(const T *from, int64_t stride) {
    pack<T> p;
    if (stride == 1) return load_pack((const pack<T> *)from);
    for (int j = 0; j < pack<T>::size; j++) p.item[j] = *from;
    return p;
}

// Broadcast arithmetic by packs, none of which reaches past the end of run 0.
template <typename T, typename F>
__global__ void __launch_bounds__(THREADS, 2)
    map_overlaid_packs(tshi_broadcast o, int64_t n, const T *x, const T *y, T *z, F f) {
    constexpr int W = pack<T>::size;
    int64_t step = (int64_t)gridDim.x * blockDim.x * W;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * W; i < n; i += step) {
        overlaid at(o, i);
        const pack<T> a = spread_pack(x + at.x, o.x[0]), b = spread_pack(y + at.y, o.y[0]);
        pack<T> c;
        for (int j = 0; j < W; j++) c.item[j] = store<T>(f(load(a.item[j]), load(b.item[j]), sum_t<T>(0)));
        store_pack((pack<T> *)(z + i), c);
    }
}

// All packs of an array are 16-byte aligned, or one element is repeated (stride 0).
template <typename T> bool in_packs(const tshi_broadcast &o, const int64_t *strides, const void *array) {
    if (strides[0] == 0) return true;
    bool even = (uintptr_t)array % 16 == 0;
    for (int k = 1; k < o.runs; k++) even = even && strides[k] % pack<T>::size == 0;
    return even;
}

template <typename T, typename F>
void map_broadcast(tsh_device *device, const tshi_broadcast &o, const void *x, const void *y, void *z, F f) {
    int64_t n = 1;
    for (int k = 0; k < o.runs; k++) n *= o.n[k];
    if (n <= 0) return;
    if (o.runs == 1 && o.x[0] == 1 && o.y[0] == 1)
        map_all<READ_X | READ_Y | WRITE_Z, T>(device, "binary", n, x, y, z, f);
    else if (packs<T>(o.n[0], z) && in_packs<T>(o, o.x, x) && in_packs<T>(o, o.y, y))
        launch(device, "binary", map_overlaid_packs<T, F>, blocks_for(device, up(n, pack<T>::size), THREADS), THREADS,
               o, n, (const T *)x, (const T *)y, (T *)z, f);
    else
        launch(device, "binary", map_overlaid<T, F>, blocks_for(device, n, THREADS), THREADS, o, n, (const T *)x,
               (const T *)y, (T *)z, f);
}

template <typename T>
void binary(tsh_device *device, tshi_binary f, const tshi_broadcast *o, const void *x, const void *y, void *z) {
    using S = sum_t<T>;
    switch (f) {
    case TSHI_ADD: map_broadcast<T>(device, *o, x, y, z, add<S>()); break;
    case TSHI_SUB: map_broadcast<T>(device, *o, x, y, z, subtract<S>()); break;
    case TSHI_MUL: map_broadcast<T>(device, *o, x, y, z, multiply<S, false>()); break;
    case TSHI_DIV: map_broadcast<T>(device, *o, x, y, z, divide<S>()); break;
    case TSHI_MAXIMUM: map_broadcast<T>(device, *o, x, y, z, maximum<S>()); break;
    case TSHI_MINIMUM: map_broadcast<T>(device, *o, x, y, z, minimum<S>()); break;
    case TSHI_STEP: map_broadcast<T>(device, *o, x, y, z, half_step<S>()); break;
    case TSHI_EQ: map_broadcast<T>(device, *o, x, y, z, equal<S>()); break;
    case TSHI_NE: map_broadcast<T>(device, *o, x, y, z, not_equal<S>()); break;
    case TSHI_LT: map_broadcast<T>(device, *o, x, y, z, less<S>()); break;
    case TSHI_LE: map_broadcast<T>(device, *o, x, y, z, less_or_equal<S>()); break;
    case TSHI_GT: map_broadcast<T>(device, *o, x, y, z, greater<S>()); break;
    case TSHI_GE: map_broadcast<T>(device, *o, x, y, z, greater_or_equal<S>()); break;
    default: break;
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 2) fill_masked(tshi_broadcast o, int64_t n, const T *x, const uint8_t *mask,
                                                          bool kept, sum_t<T> value, bool add, T *z) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        overlaid at(o, i);
        sum_t<T> v = (mask[at.y] != 0) == kept ? load(x[at.x]) : value;
        z[i] = store<T>(add ? load(z[i]) + v : v);
    }
}

template <typename T>
void mask(tsh_device *device, const tshi_broadcast *o, const void *x, const uint8_t *mask, bool kept, double value,
          double beta, void *z) {
    int64_t n = 1;
    for (int k = 0; k < o->runs; k++) n *= o->n[k];
    if (n > 0)
        launch(device, "mask", fill_masked<T>, blocks_for(device, n, THREADS), THREADS, *o, n, (const T *)x, mask, kept,
               (sum_t<T>)value, beta != 0.0, (T *)z);
}

// --- bias ------------------------------------------------------------------------------------------------------------

template <typename T, bool WARPS>
__global__ void __launch_bounds__(256, 2) add_bias(pieces p, const T *x, const T *__restrict__ b, T *y) {
    using S = sum_t<T>;
    team<WARPS> t(p);
    for (int64_t row = t.first; row < p.rows; row += t.step) {
        int64_t at = row * p.n + t.begin;
        if (x)
            walk<READ_X | READ_Y | WRITE_Z>(t.length, x + at, b + t.begin, y + at, t.me, t.size,
                                            [](int64_t, S v, S c, S) { return v + c; });
        else
            walk<READ_Y | WRITE_Z>(t.length, x, b + t.begin, y + at, t.me, t.size,
                                   [](int64_t, S, S c, S) { return c; });
    }
}

template <typename T> void bias(tsh_device *device, int64_t rows, int64_t cols, const void *x, const void *b, void *y) {
    if (rows <= 0 || cols <= 0) return;
    pieces p = split_rows(device, rows, cols);
    with_team<T>(device, p, [&](auto warps, unsigned blocks, unsigned threads) {
        launch(device, "bias", add_bias<T, warps.value>, blocks, threads, p, (const T *)x, (const T *)b, (T *)y);
    });
}

template <typename T>
constexpr tshi_elementwise_ops table = {unary<T>,  unary_backward<T>, swiglu<T>, swiglu_backward<T>, axpby<T>, mul<T>,
                                        binary<T>, mask<T>,           bias<T>};

} // namespace

const tshi_elementwise_ops tshi_cuda_elementwise[TSH_DTYPE_COUNT] = {table<float>, table<double>, table<__nv_bfloat16>,
                                                                     table<__half>};
