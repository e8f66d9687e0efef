// Optimizer steps over all parameters: a launch updates as many parameters as fit its kernel's arguments.
#include "device/cuda/kernels/random.cuh"

namespace {
using namespace tshi;

constexpr int THREADS = 256;
constexpr int PIECE = 4096;     // elements that a block updates at a time, of one parameter
constexpr int MAX_UPDATES = 64; // of a launch: kernels take 4 KiB of arguments

// A tshi_update without its rounding.
struct update {
    int64_t n;
    const void *grad;
    void *state[2];
    void *p, *master;
    bool wide_grad;
};

// first[i]: the first piece of update i; first[count]: the number of pieces.
struct update_list {
    int count;
    int32_t first[MAX_UPDATES + 1];
    update of[MAX_UPDATES];
};

static_assert(sizeof(update_list) + 128 <= 4096, "a launch's arguments");

// The update that a piece belongs to.
__device__ inline int find_update(const update_list &list, int32_t piece) {
    int low = 0, high = list.count;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (list.first[middle] <= piece)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// Rounding to nearest.
struct nearest {
    static constexpr int together = MAX_UPDATES; // updates in one launch
    __device__ void begin() {}
    template <typename T, int W> __device__ void round(const sum_t<T> (&values)[W], int64_t, T (&to)[W]) const {
        for (int j = 0; j < W; j++) to[j] = store<T>(values[j]);
    }
};

// Stochastic rounding by the words of a stream: see tshi_rounding. Each replay of a graph is a further step.
struct stochastic {
    static constexpr int together = 1;
    word_source source;
    int64_t first, run, stride;
    __device__ void begin() {
        if (source.replays) source.stream[0] += (uint32_t)*source.replays;
    }
    // The global number of element i of the parameter.
    __device__ uint64_t number(int64_t i) const {
        if (i < run) return (uint64_t)(first + i);
        const int64_t o = quotient(i, run);
        return (uint64_t)(first + o * stride + i - o * run);
    }
    template <typename T> __device__ static T round_by(float value, uint32_t word) {
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if ((bits & 0x7f800000u) == 0x7f800000u) return store<T>(value);
        bits = (bits + (word >> 16)) & 0xffff0000u;
        memcpy(&value, &bits, sizeof value);
        return store<T>(value); // exact
    }
    // Neighbouring elements with the same draw share it.
    template <typename T, int W> __device__ void round(const float (&values)[W], int64_t i, T (&to)[W]) const {
        uint64_t drawn = ~UINT64_C(0);
        uint32_t word[4];
#pragma unroll
        for (int j = 0; j < W; j++) {
            const uint64_t element = number(i + j);
            if (element / 4 != drawn) make_words(source, element / 4, word);
            drawn = element / 4;
            to[j] = round_by<T>(values[j], pick_word(word, element % 4));
        }
    }
};

// W elements of the gradient.
template <typename T, int W> __device__ inline pack<sum_t<T>, W> load_grad(const update &u, int64_t at) {
    using S = sum_t<T>;
    pack<S, W> wide;
    if (u.wide_grad) return *(const pack<S, W> *)((const S *)u.grad + at);
    const pack<T, W> grad = *(const pack<T, W> *)((const T *)u.grad + at);
    for (int j = 0; j < W; j++) wide.item[j] = load(grad.item[j]);
    return wide;
}

template <typename T, int W, typename F, typename R>
__device__ inline void update_part(const update &u, int64_t at, F f, R r) {
    using S = sum_t<T>;
    using few = pack<T, W>;
    using sums = pack<S, W>;
    few p;
    sums state[2] = {}, value;
    const sums grad = load_grad<T, W>(u, at);
    if (u.master)
        value = *(const sums *)((const S *)u.master + at);
    else
        p = *(const few *)((const T *)u.p + at);
    for (int s = 0; s < F::states; s++)
        if (f.reads()) state[s] = *(const sums *)((const S *)u.state[s] + at);
    for (int j = 0; j < W; j++) {
        if (!u.master) value.item[j] = load(p.item[j]);
        f(grad.item[j], value.item[j], state[0].item[j], state[1].item[j]);
    }
    r.round(value.item, at, p.item);
    if (u.master) *(sums *)((S *)u.master + at) = value;
    *(few *)((T *)u.p + at) = p;
    for (int s = 0; s < F::states; s++) *(sums *)((S *)u.state[s] + at) = state[s];
}

template <typename F> __device__ inline bool aligned(const update &u) {
    uintptr_t all = (uintptr_t)u.p | (uintptr_t)u.grad | (uintptr_t)u.master;
    for (int s = 0; s < F::states; s++) all |= (uintptr_t)u.state[s];
    return all % 16 == 0;
}

template <typename T, typename F, typename R>
__global__ void __launch_bounds__(THREADS, sizeof(T) == 8 ? 2 : 0) update_all(const update_list list, F f, R r) {
    constexpr int W = 16 / sizeof(sum_t<T>); // elements of 16 bytes of the widest type, the states'
    f.begin();
    r.begin();
    for (int32_t piece = (int32_t)blockIdx.x; piece < list.first[list.count]; piece += (int32_t)gridDim.x) {
        const int i = find_update(list, piece);
        const update &u = list.of[i];
        const int64_t begin = (int64_t)(piece - list.first[i]) * PIECE;
        const int n = (int)(u.n - begin < PIECE ? u.n - begin : PIECE), packed = aligned<F>(u) ? n / W * W : 0;
        for (int at = (int)threadIdx.x * W; at < packed; at += THREADS * W) update_part<T, W>(u, begin + at, f, r);
        for (int at = packed + (int)threadIdx.x; at < n; at += THREADS) update_part<T, 1>(u, begin + at, f, r);
    }
}

// Launches over the updates that are not empty.
template <typename T, typename F, typename R>
void launch_rounded(tsh_device *device, const char *what, int count, const tshi_update *updates, F f, R r) {
    for (int i = 0; i < count;) {
        update_list list;
        list.count = 0;
        list.first[0] = 0;
        for (; i < count && list.count < R::together; i++) {
            const int64_t end = list.first[list.count] + up(updates[i].n, PIECE);
            if (updates[i].n == 0) continue;
            if (end > INT32_MAX) break;
            const tshi_update &u = updates[i];
            list.of[list.count++] = {u.n, u.grad, {u.state[0], u.state[1]}, u.p, u.master, u.wide_grad};
            list.first[list.count] = (int32_t)end;
        }
        launch(device, what, update_all<T, F, R>, (unsigned)list.first[list.count], THREADS, list, f, r);
    }
}

// Updates with stochastic rounding (bfloat16) are launched one by one, as each has its own stream.
template <typename T, typename F>
void launch_updates(tsh_device *device, const char *what, int count, const tshi_update *updates, F f) {
    if constexpr (sizeof(T) != 2) {
        launch_rounded<T>(device, what, count, updates, f, nearest());
    } else {
        for (int i = 0, end; i < count; i = end) {
            const tshi_rounding *r = updates[i].rounding;
            for (end = i + 1; !r && end < count && !updates[end].rounding;) end++;
            if (r)
                launch_rounded<T>(device, what, 1, updates + i, f,
                                  stochastic{source_of(device, r->seed, r->stream), r->first, r->run, r->stride});
            else
                launch_rounded<T>(device, what, end - i, updates + i, f, nearest());
        }
    }
}

template <typename S> struct sgd_plain {
    static constexpr int states = 0;
    S lr, decay;
    __device__ void begin() {}
    __device__ bool reads() const {
        return false;
    }
    __device__ void operator()(S grad, S &p, S &, S &) const {
        p -= lr * (grad + decay * p);
    }
};

// momentum, scale: the factors of the momentum buffer and of the gradient; look: Nesterov's momentum, or 0.
template <typename S> struct sgd_momentum {
    static constexpr int states = 1;
    S lr, decay, momentum, scale, look;
    bool first;
    __device__ void begin() {}
    __device__ bool reads() const {
        return !first;
    }
    __device__ void operator()(S grad, S &p, S &buffer, S &) const {
        const S g = grad + decay * p;
        buffer = first ? g : momentum * buffer + scale * g;
        p -= lr * (look != S(0) ? g + look * buffer : buffer);
    }
};

template <typename S> struct adamw_step {
    static constexpr int states = 2;
    S shrink, beta1, beta2, take1, take2, step, inverse_root2, eps;
    // In a graph, which may be launched many times from step t on: its launches before this one; else NULL.
    const int64_t *replays;
    S t, lr, log1, log2; // logarithms of the betas
    __device__ void begin() {
        if (!replays) return;
        const S now = t + (S)*replays;
        step = lr / -expm1(now * log1);
        inverse_root2 = S(1) / sqrt(-expm1(now * log2));
    }
    __device__ bool reads() const {
        return true;
    }
    __device__ void operator()(S g, S &p, S &m, S &v) const {
        m = beta1 * m + take1 * g;
        v = beta2 * v + take2 * g * g;
        p = p * shrink - step * m / (sqrt(v) * inverse_root2 + eps);
    }
};

template <typename S> struct lion_step {
    static constexpr int states = 1;
    S shrink, lr, beta1, beta2, take1, take2;
    __device__ void begin() {}
    __device__ bool reads() const {
        return true;
    }
    __device__ void operator()(S g, S &p, S &m, S &) const {
        const S c = beta1 * m + take1 * g;
        m = beta2 * m + take2 * g;
        p = p * shrink - (c > S(0) ? lr : c < S(0) ? -lr : c);
    }
};

template <typename T> void sgd(tsh_device *device, const tshi_sgd *s, int count, const tshi_update *updates) {
    using S = sum_t<T>;
    const S lr = (S)s->lr, decay = (S)s->weight_decay, momentum = (S)s->momentum;
    if (s->momentum == 0.0)
        launch_updates<T>(device, "sgd", count, updates, sgd_plain<S>{lr, decay});
    else
        launch_updates<T>(
            device, "sgd", count, updates,
            sgd_momentum<S>{lr, decay, momentum, (S)(1.0 - s->dampening), s->nesterov ? momentum : S(0), s->first});
}

template <typename T> void adamw(tsh_device *device, const tshi_adamw *a, int count, const tshi_update *updates) {
    using S = sum_t<T>;
    const double correction1 = 1.0 - pow(a->beta1, (double)a->step);
    const double correction2 = 1.0 - pow(a->beta2, (double)a->step);
    launch_updates<T>(device, "adamw", count, updates,
                      adamw_step<S>{(S)(1.0 - a->lr * a->weight_decay), (S)a->beta1, (S)a->beta2, (S)(1.0 - a->beta1),
                                    (S)(1.0 - a->beta2), (S)(a->lr / correction1), (S)(1.0 / sqrt(correction2)),
                                    (S)a->eps, tshi_cuda(device)->replays, (S)a->step, (S)a->lr, (S)log(a->beta1),
                                    (S)log(a->beta2)});
}

template <typename T> void lion(tsh_device *device, const tshi_lion *l, int count, const tshi_update *updates) {
    using S = sum_t<T>;
    launch_updates<T>(device, "lion", count, updates,
                      lion_step<S>{(S)(1.0 - l->lr * l->weight_decay), (S)l->lr, (S)l->beta1, (S)l->beta2,
                                   (S)(1.0 - l->beta1), (S)(1.0 - l->beta2)});
}

template <typename T>
__global__ void __launch_bounds__(THREADS, 2)
    clip_all(int64_t n, const double *__restrict__ square, double scale, double max_norm, T *x) {
    using S = sum_t<T>;
    double norm = sqrt(*square) * scale, factor = scale;
    if (max_norm < norm + 1e-6) factor *= max_norm / (norm + 1e-6);
    if (!isfinite(norm) || factor == 1.0) return;
    int64_t me = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    S by = (S)factor;
    walk<READ_Z | WRITE_Z>(n, x, x, x, me, step, [=](int64_t, S, S, S a) { return by * a; });
}

template <typename T>
void clip(tsh_device *device, int64_t n, const double *squares, double scale, double max_norm, void *x) {
    if (n <= 0) return;
    unsigned blocks = blocks_for(device, up(n, pack<T>::size), THREADS);
    launch(device, "clip", clip_all<T>, blocks, THREADS, n, squares, scale, max_norm, (T *)x);
}

template <typename T>
constexpr tshi_optimizer_ops table = {.sgd = sgd<T>, .adamw = adamw<T>, .lion = lion<T>, .clip = clip<T>};

} // namespace

const tshi_optimizer_ops tshi_cuda_optimizer[TSH_DTYPE_COUNT] = {table<float>, table<double>, table<__nv_bfloat16>,
                                                                 table<__half>};
