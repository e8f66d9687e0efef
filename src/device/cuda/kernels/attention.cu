// Attention with streaming softmax, and rotary positions. Sums have a fixed order: one warp owns a row of y or of a
// gradient, and adds all terms to it.
//
// A block owns ROWS rows, OWN of them a warp, and loops over the other rows 32 at a time, one a lane. In forward and
// for dq, the block's own rows are queries and the other rows are keys; for dk and dv, its own rows are keys and the
// other rows are queries. All rows are staged through shared memory in chunks of dim.
#include "device/cuda/kernels/random.cuh"

namespace {
using namespace tshi;

constexpr int OWN = 4, WARPS = 4, ROWS = OWN * WARPS, THREADS = WARPS * WARP;
constexpr int CHUNK = 64;        // of dim
constexpr int SUMS = 128 / WARP; // columns of a row that a lane sums at once; a wider dim takes several blocks
constexpr double LOG2_E = 1.44269504088896340736, LN_2 = 0.69314718055994530942;

template <typename S> struct stage { S own[ROWS][CHUNK], other[WARP][CHUNK + 1], factor[ROWS][WARP]; };

// `count` rows: row i begins at at[i * step].
template <typename T> struct row_list {
    const T *at;
    int64_t step, count;
};

template <typename T>
__device__ inline void fill(row_list<T> from, int64_t column, int64_t dim, int rows, sum_t<T> *to, int ld) {
    for (int i = (int)threadIdx.x; i < rows * CHUNK; i += THREADS) {
        int row = i / CHUNK, d = i % CHUNK;
        bool there = row < from.count && column + d < dim;
        to[row * ld + d] = there ? load(from.at[row * from.step + column + d]) : sum_t<T>(0);
    }
}

// product[r] = the dot product of this warp's row r and this lane's other row.
template <typename T>
__device__ inline void multiply(stage<sum_t<T>> &shared, row_list<T> own, row_list<T> other, int64_t dim,
                                sum_t<T> (&product)[OWN]) {
    const int lane = threadIdx.x % WARP, first = threadIdx.x / WARP * OWN;
    for (int r = 0; r < OWN; r++) product[r] = 0;
    for (int64_t column = 0; column < dim; column += CHUNK) {
        barrier();
        fill(own, column, dim, ROWS, &shared.own[0][0], CHUNK);
        fill(other, column, dim, WARP, &shared.other[0][0], CHUNK + 1);
        barrier();
        const int width = dim - column < CHUNK ? (int)(dim - column) : CHUNK;
        for (int d = 0; d < width; d++) {
            const sum_t<T> x = shared.other[lane][d];
#pragma unroll
            for (int r = 0; r < OWN; r++) product[r] += shared.own[first + r][d] * x;
        }
    }
}

// sum[r] += the other rows, each times its lane's factor; a lane has the columns column + lane, 32 apart.
template <typename T>
__device__ inline void gather(stage<sum_t<T>> &shared, row_list<T> other, int64_t column, int64_t dim,
                              const sum_t<T> (&factor)[OWN], sum_t<T> (&sum)[OWN][SUMS]) {
    const int lane = threadIdx.x % WARP, first = threadIdx.x / WARP * OWN;
#pragma unroll
    for (int part = 0; part < SUMS; part += CHUNK / WARP) {
        if (column + part * WARP >= dim) continue;
        barrier();
        fill(other, column + part * WARP, dim, WARP, &shared.other[0][0], CHUNK + 1);
        for (int r = 0; r < OWN; r++) shared.factor[first + r][lane] = factor[r];
        barrier();
        for (int j = 0; j < WARP; j++) {
#pragma unroll
            for (int r = 0; r < OWN; r++) {
                const sum_t<T> f = shared.factor[first + r][j];
#pragma unroll
                for (int c = 0; c < CHUNK / WARP; c++) sum[r][part + c] += f * shared.other[j][lane + c * WARP];
            }
        }
    }
}

// z[row * step + ...] = beta z + sum[r], for this warp's rows.
template <typename T>
__device__ inline void put(T *z, int64_t step, int64_t rows, int64_t column, int64_t dim, bool add,
                           const sum_t<T> (&sum)[OWN][SUMS], const sum_t<T> (&factor)[OWN]) {
    const int lane = threadIdx.x % WARP, first = threadIdx.x / WARP * OWN;
#pragma unroll
    for (int r = 0; r < OWN; r++) {
#pragma unroll
        for (int c = 0; c < SUMS; c++) {
            int64_t d = column + c * WARP + lane, at = (first + r) * step + d;
            if (first + r < rows && d < dim)
                z[at] = store<T>((add ? load(z[at]) : sum_t<T>(0)) + sum[r][c] * factor[r]);
        }
    }
}

// --- the problem of a call -------------------------------------------------------------------------------------------

struct problem {
    tshi_attention a;
    word_source source;
};

// A block's part: a tile of rows of one head, and the columns from `column` on.
struct part {
    int64_t batch, head, first, column;

    __device__ part(int64_t number, int64_t heads, int64_t rows, int64_t dim) {
        int64_t tiles = (rows + ROWS - 1) / ROWS,
                columns = dim > SUMS * WARP ? (dim + SUMS * WARP - 1) / (SUMS * WARP) : 1;
        column = number % columns * SUMS * WARP;
        first = number / columns % tiles * ROWS;
        head = number / columns / tiles % heads;
        batch = number / columns / tiles / heads;
    }
};

int64_t parts_of(const tshi_attention &a, int64_t heads, int64_t rows) {
    return a.batch * heads * up(rows, ROWS) * (a.dim > SUMS * WARP ? up(a.dim, SUMS * WARP) : 1);
}

// The number of keys that a query sees: the first ones.
__device__ inline int64_t seen(const tshi_attention &a, int64_t batch, int64_t query) {
    int64_t n = a.lengths ? a.lengths[batch] : a.keys, reach = query + a.keys - a.queries - a.queries_after + 1;
    if (a.causal && reach < n) n = reach;
    return query < a.queries && n > 0 ? n : 0;
}

bool has_tokens(const tshi_attention &a) {
    return a.tokens.query_position || a.tokens.query_document;
}

// A token's position and document.
struct token {
    int64_t position, document;
};

// What lies between the least and the most of some tokens' positions and documents.
struct span {
    int64_t first, last, first_document, last_document;

    // A span that no token is in.
    __device__ span() : first(INT64_MAX), last(INT64_MIN), first_document(INT64_MAX), last_document(INT64_MIN) {}

    __device__ void add(const token &t) {
        first = t.position < first ? t.position : first;
        last = t.position > last ? t.position : last;
        first_document = t.document < first_document ? t.document : first_document;
        last_document = t.document > last_document ? t.document : last_document;
    }
};

__device__ inline token query_token(const tshi_attention &a, int64_t batch, int64_t query) {
    const tshi_tokens &t = a.tokens;
    const int64_t at = t.batched ? batch * a.queries + query : query,
                  last = a.causal ? query + a.keys - a.queries - a.queries_after : INT64_MAX;
    return {t.query_position ? t.query_position[at] : last, t.query_document ? t.query_document[at] : 0};
}

__device__ inline token key_token(const tshi_attention &a, int64_t batch, int64_t key) {
    const tshi_tokens &t = a.tokens;
    const int64_t at = t.batched ? batch * a.keys + key : key;
    return {t.key_position ? t.key_position[at] : key, t.key_document ? t.key_document[at] : 0};
}

// The spans of `count` queries, or keys, from `from` on, as far as there are any.
__device__ inline span span_of_queries(const tshi_attention &a, int64_t batch, int64_t from, int count) {
    span s;
    for (int64_t i = from; i < from + count && i < a.queries; i++) s.add(query_token(a, batch, i));
    return s;
}

__device__ inline span span_of_keys(const tshi_attention &a, int64_t batch, int64_t from, int count) {
    span s;
    for (int64_t j = from; j < from + count && j < a.keys; j++) s.add(key_token(a, batch, j));
    return s;
}

// False if no query of the one span attends to a key of the other.
__device__ inline bool may_attend(const span &queries, const span &keys) {
    return keys.first <= queries.last && keys.first_document <= queries.last_document &&
           keys.last_document >= queries.first_document;
}

// What a query sees: the keys before `end`, with tokens those of its document that are not after it.
template <bool TOKENS> struct sight {
    int64_t end;
    token self;

    __device__ sight(const tshi_attention &a, int64_t batch, int64_t query)
        : end(TOKENS ? (query < a.queries ? a.keys : 0) : seen(a, batch, query)), self{0, 0} {
        if (TOKENS && query < a.queries) self = query_token(a, batch, query);
    }

    __device__ bool sees(const tshi_attention &a, int64_t batch, int64_t key) const {
        if (key >= end) return false;
        if (!TOKENS) return true;
        const token other = key_token(a, batch, key);
        return other.position <= self.position && other.document == self.document;
    }
};

__device__ inline int64_t last_of(int64_t first, int64_t count, int64_t all) {
    return first + count < all ? first + count - 1 : all - 1;
}

// The offset of row `query` of a head in q; below, its index in the statistics.
__device__ inline int64_t query_at(const tshi_attention &a, int64_t batch, int64_t head, int64_t query) {
    return ((batch * a.queries + query) * a.heads + head) * a.dim;
}

__device__ inline int64_t row_of(const tshi_attention &a, int64_t batch, int64_t head, int64_t query) {
    return (batch * a.heads + head) * a.queries + query;
}

__device__ inline int64_t key_at(const tshi_attention &a, int64_t batch, int64_t kv_head, int64_t key) {
    return ((batch * a.capacity + key) * a.kv_heads + kv_head) * a.dim;
}

// The dropout factor of a probability: 0 if it is dropped.
__device__ inline double kept(const problem &p, const word_source &source, int64_t batch, int64_t head, int64_t query,
                              int64_t key) {
    const tshi_attention &a = p.a;
    if (a.dropout == 0) return 1;
    int64_t queries = a.queries_before + a.queries + a.queries_after;
    int64_t row = ((batch + a.batch_start) * a.heads_whole + head + a.head_start) * queries + a.queries_before + query;
    uint64_t element = (uint64_t)(row * a.keys + key);
    uint32_t word[4];
    make_words(source, element / 4, word);
    return (int32_t)(pick_word(word, element % 4) >> 8) >= (int32_t)ceil(a.dropout * 0x1p24) ? 1 / (1 - a.dropout) : 0;
}

template <typename T>
__device__ inline row_list<T> queries_from(const tshi_attention &a, const T *q, const part &t, int64_t first,
                                           int64_t head) {
    return {q + query_at(a, t.batch, head, first), a.heads * a.dim, a.queries - first};
}

template <typename T>
__device__ inline row_list<T> keys_from(const tshi_attention &a, const T *k, const part &t, int64_t first,
                                        int64_t kv_head) {
    return {k + key_at(a, t.batch, kv_head, first), a.kv_heads * a.dim, a.keys - first};
}

// How many of the first keys a tile of queries is to go through.
template <bool TOKENS> __device__ inline int64_t end_of_tile(const tshi_attention &a, int64_t batch, int64_t first) {
    return TOKENS ? a.keys : seen(a, batch, last_of(first, ROWS, a.queries));
}

struct larger {
    template <typename S> __device__ S operator()(S a, S b) const {
        return b > a ? b : a;
    }
};

// --- forward ---------------------------------------------------------------------------------------------------------

template <typename T, bool TOKENS>
__global__ void __launch_bounds__(THREADS)
    attend(problem p, int64_t parts, const T *q, const T *k, const T *v, T *y, sum_t<T> *log_sums) {
    using S = sum_t<T>;
    __shared__ stage<S> shared;
    const tshi_attention &a = p.a;
    const word_source source = now(p.source);
    const int lane = threadIdx.x % WARP, mine = threadIdx.x / WARP * OWN;
    const S scale = S(a.scale * LOG2_E);
    for (int64_t number = blockIdx.x; number < parts; number += gridDim.x) {
        const part t(number, a.heads, a.queries, a.dim);
        const int64_t kv_head = (t.head + a.shift) / a.sharers, end = end_of_tile<TOKENS>(a, t.batch, t.first);
        const span tile = TOKENS ? span_of_queries(a, t.batch, t.first, ROWS) : span();
        S sum[OWN][SUMS] = {}, most[OWN], total[OWN] = {}, score[OWN];
        for (int r = 0; r < OWN; r++) most[r] = S(-INFINITY);
        for (int64_t key = 0; key < end; key += WARP) {
            if (TOKENS && !may_attend(tile, span_of_keys(a, t.batch, key, WARP))) continue;
            multiply(shared, queries_from(a, q, t, t.first, t.head), keys_from(a, k, t, key, kv_head), a.dim, score);
            for (int r = 0; r < OWN; r++) {
                const int64_t query = t.first + mine + r;
                if (query >= a.queries) break;
                const bool sees = sight<TOKENS>(a, t.batch, query).sees(a, t.batch, key + lane);
                const S x = sees ? score[r] * scale : S(-INFINITY);
                const S top = larger()(most[r], warp_reduce(x, larger()));
                const S shrink = most[r] == top ? S(1) : exp2(most[r] - top), power = sees ? exp2(x - top) : S(0);
                total[r] = total[r] * shrink + warp_reduce(power, plus());
                most[r] = top;
                for (int c = 0; c < SUMS; c++) sum[r][c] *= shrink;
                score[r] = power * S(sees ? kept(p, source, t.batch, t.head, query, key + lane) : 0);
            }
            gather(shared, keys_from(a, v, t, key, kv_head), t.column, a.dim, score, sum);
        }
        S factor[OWN];
        for (int r = 0; r < OWN; r++) {
            const int64_t query = t.first + mine + r;
            factor[r] = total[r] == 0 ? S(0) : S(1) / total[r];
            if (log_sums && lane == 0 && t.column == 0 && query < a.queries)
                log_sums[row_of(a, t.batch, t.head, query)] =
                    total[r] == 0 ? S(INFINITY) : (most[r] + log2(total[r])) * S(LN_2);
        }
        put(y + query_at(a, t.batch, t.head, t.first), a.heads * a.dim, a.queries - t.first, t.column, a.dim, false,
            sum, factor);
    }
}

// --- backward --------------------------------------------------------------------------------------------------------

// delta[row] = dot(dy, y), one warp a row.
template <typename T>
__global__ void __launch_bounds__(THREADS) find_delta(tshi_attention a, const T *y, const T *dy, sum_t<T> *delta) {
    using S = sum_t<T>;
    const int lane = threadIdx.x % WARP;
    const int64_t rows = a.batch * a.heads * a.queries, step = (int64_t)gridDim.x * WARPS;
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP; row < rows; row += step) {
        const int64_t query = row % a.queries, head = row / a.queries % a.heads, batch = row / a.queries / a.heads;
        const int64_t at = query_at(a, batch, head, query);
        S sum = 0;
        for (int64_t d = lane; d < a.dim; d += WARP) sum += load(y[at + d]) * load(dy[at + d]);
        sum = warp_reduce(sum, plus());
        if (lane == 0) delta[row] = sum;
    }
}

template <typename T, bool TOKENS>
__global__ void __launch_bounds__(THREADS)
    query_gradients(problem p, int64_t parts, const T *q, const T *k, const T *v, const T *dy, const sum_t<T> *log_sums,
                    const sum_t<T> *delta, bool add, T *dq) {
    using S = sum_t<T>;
    __shared__ stage<S> shared;
    const tshi_attention &a = p.a;
    const word_source source = now(p.source);
    const int lane = threadIdx.x % WARP, mine = threadIdx.x / WARP * OWN;
    for (int64_t number = blockIdx.x; number < parts; number += gridDim.x) {
        const part t(number, a.heads, a.queries, a.dim);
        const int64_t kv_head = (t.head + a.shift) / a.sharers, end = end_of_tile<TOKENS>(a, t.batch, t.first);
        const span tile = TOKENS ? span_of_queries(a, t.batch, t.first, ROWS) : span();
        S sum[OWN][SUMS] = {}, score[OWN], slope[OWN], factor[OWN];
        for (int64_t key = 0; key < end; key += WARP) {
            if (TOKENS && !may_attend(tile, span_of_keys(a, t.batch, key, WARP))) continue;
            multiply(shared, queries_from(a, q, t, t.first, t.head), keys_from(a, k, t, key, kv_head), a.dim, score);
            multiply(shared, queries_from(a, dy, t, t.first, t.head), keys_from(a, v, t, key, kv_head), a.dim, slope);
            for (int r = 0; r < OWN; r++) {
                const int64_t query = t.first + mine + r, row = row_of(a, t.batch, t.head, query);
                const bool sees = sight<TOKENS>(a, t.batch, query).sees(a, t.batch, key + lane);
                S power = sees ? exp2((score[r] * S(a.scale) - log_sums[row]) * S(LOG2_E)) : S(0);
                S factor = S(sees ? kept(p, source, t.batch, t.head, query, key + lane) : 0);
                slope[r] = sees ? power * (factor * slope[r] - delta[row]) : S(0);
            }
            gather(shared, keys_from(a, k, t, key, kv_head), t.column, a.dim, slope, sum);
        }
        for (int r = 0; r < OWN; r++) factor[r] = S(a.scale);
        put(dq + query_at(a, t.batch, t.head, t.first), a.heads * a.dim, a.queries - t.first, t.column, a.dim, add, sum,
            factor);
    }
}

template <typename T, bool TOKENS>
__global__ void __launch_bounds__(THREADS)
    key_gradients(problem p, int64_t parts, const T *q, const T *k, const T *v, const T *dy, const sum_t<T> *log_sums,
                  const sum_t<T> *delta, bool add_k, T *dk, bool add_v, T *dv) {
    using S = sum_t<T>;
    __shared__ stage<S> shared;
    const tshi_attention &a = p.a;
    const word_source source = now(p.source);
    const int lane = threadIdx.x % WARP, mine = threadIdx.x / WARP * OWN;
    for (int64_t number = blockIdx.x; number < parts; number += gridDim.x) {
        const part t(number, a.kv_heads, a.keys, a.dim);
        int64_t head = t.head * a.sharers - a.shift, end = head + a.sharers;
        const span tile = TOKENS ? span_of_keys(a, t.batch, t.first, ROWS) : span();
        S sum_k[OWN][SUMS] = {}, sum_v[OWN][SUMS] = {}, score[OWN], slope[OWN], factor[OWN];
        for (head = head < 0 ? 0 : head; head < end && head < a.heads; head++) {
            for (int64_t first = 0; first < a.queries; first += WARP) {
                if (TOKENS ? !may_attend(span_of_queries(a, t.batch, first, WARP), tile)
                           : seen(a, t.batch, last_of(first, WARP, a.queries)) <= t.first)
                    continue;
                multiply(shared, keys_from(a, k, t, t.first, t.head), queries_from(a, q, t, first, head), a.dim, score);
                multiply(shared, keys_from(a, v, t, t.first, t.head), queries_from(a, dy, t, first, head), a.dim,
                         slope);
                const int64_t query = first + lane, row = row_of(a, t.batch, head, query);
                const sight<TOKENS> look(a, t.batch, query);
                for (int r = 0; r < OWN; r++) {
                    const int64_t key = t.first + mine + r;
                    const bool sees = look.sees(a, t.batch, key);
                    S power = sees ? exp2((score[r] * S(a.scale) - log_sums[row]) * S(LOG2_E)) : S(0);
                    S factor = S(sees ? kept(p, source, t.batch, head, query, key) : 0);
                    slope[r] = sees ? power * (factor * slope[r] - delta[row]) : S(0);
                    score[r] = power * factor;
                }
                if (dv) gather(shared, queries_from(a, dy, t, first, head), t.column, a.dim, score, sum_v);
                if (dk) gather(shared, queries_from(a, q, t, first, head), t.column, a.dim, slope, sum_k);
            }
        }
        const int64_t at = key_at(a, t.batch, t.head, t.first), step = a.kv_heads * a.dim, rows = a.keys - t.first;
        for (int r = 0; r < OWN; r++) factor[r] = S(1);
        if (dv) put(dv + at, step, rows, t.column, a.dim, add_v, sum_v, factor);
        for (int r = 0; r < OWN; r++) factor[r] = S(a.scale);
        if (dk) put(dk + at, step, rows, t.column, a.dim, add_k, sum_k, factor);
    }
}

// --- launches --------------------------------------------------------------------------------------------------------

template <typename T> constexpr tsh_dtype dtype_of_16 = TSH_BFLOAT16;
template <> constexpr tsh_dtype dtype_of_16<__half> = TSH_FLOAT16;

int64_t scratch_size(tsh_device *, const tshi_attention *a, bool backward) {
    return backward ? a->batch * a->heads * a->queries : 0;
}

template <typename T>
void forward(tsh_device *device, const tshi_attention *a, const void *q, const void *k, const void *v, void *y,
             void *log_sums, void *) {
    if (sizeof(T) == 2 && tshi_cuda_dnn_forward(device, dtype_of_16<T>, a, q, k, v, y, log_sums)) return;
    const problem p = {*a, source_of(device, a->seed, a->stream)};
    const int64_t parts = parts_of(*a, a->heads, a->queries);
    if (parts == 0) return;
    launch(device, "attention", has_tokens(*a) ? attend<T, true> : attend<T, false>,
           blocks_for(device, parts * THREADS, THREADS), THREADS, p, parts, (const T *)q, (const T *)k, (const T *)v,
           (T *)y, (sum_t<T> *)log_sums);
}

template <typename T>
void backward(tsh_device *device, const tshi_attention *a, const void *q, const void *k, const void *v, const void *y,
              const void *log_sums, const void *dy, const tshi_attention_grads *g, void *delta) {
    using S = sum_t<T>;
    if (sizeof(T) == 2 && tshi_cuda_dnn_backward(device, dtype_of_16<T>, a, q, k, v, y, log_sums, dy, g, delta)) return;
    const problem p = {*a, source_of(device, a->seed, a->stream)};
    const int64_t of_queries = parts_of(*a, a->heads, a->queries), of_keys = parts_of(*a, a->kv_heads, a->keys);
    const int64_t rows = a->batch * a->heads * a->queries;
    const bool tokens = has_tokens(*a);
    if (rows > 0)
        launch(device, "attention_backward", find_delta<T>, blocks_for(device, rows * WARP, THREADS), THREADS, *a,
               (const T *)y, (const T *)dy, (S *)delta);
    if (g->dq && of_queries > 0)
        launch(device, "attention_backward", tokens ? query_gradients<T, true> : query_gradients<T, false>,
               blocks_for(device, of_queries * THREADS, THREADS), THREADS, p, of_queries, (const T *)q, (const T *)k,
               (const T *)v, (const T *)dy, (const S *)log_sums, (const S *)delta, g->beta_q != 0, (T *)g->dq);
    if ((g->dk || g->dv) && of_keys > 0)
        launch(device, "attention_backward", tokens ? key_gradients<T, true> : key_gradients<T, false>,
               blocks_for(device, of_keys * THREADS, THREADS), THREADS, p, of_keys, (const T *)q, (const T *)k,
               (const T *)v, (const T *)dy, (const S *)log_sums, (const S *)delta, g->beta_k != 0, (T *)g->dk,
               g->beta_v != 0, (T *)g->dv);
}

// --- rotary positions ------------------------------------------------------------------------------------------------

// A thread rotates one pair of a token in all heads, or copies an element that is not rotated.
template <typename T>
__global__ void __launch_bounds__(256, 4) rotate(tshi_rotary r, double sign, const T *x, bool add, T *y) {
    using S = sum_t<T>;
    const int64_t half = r.dims / 2, work = half + r.dim - r.dims, apart = r.pairs ? 1 : half;
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < r.batch * r.tokens * work; i += step) {
        const int64_t token = i / work, d = i % work, base = token * r.heads * r.dim;
        const bool rotates = d < half;
        const int64_t at = base + (!rotates ? d + half : r.pairs ? 2 * d : d);
        double cosine = 1, sine = 0;
        if (rotates) {
            const int64_t position = r.positions[r.batched ? token : token % r.tokens];
            const double frequency = exp(-2.0 * (double)d / (double)r.dims * log(r.theta));
            const double often = r.original / 6.283185307179586, range = 1 / (r.high - r.low);
            const double stays = fmin(fmax((often * frequency - r.low) * range, 0.0), 1.0);
            const double angle = frequency * ((double)position * ((1 - stays) / r.factor + stays));
            cosine = cos(angle);
            sine = sign * sin(angle);
        }
        for (int64_t h = 0; h < r.heads; h++) {
            const int64_t first = at + h * r.dim, second = rotates ? first + apart : first;
            const S a = load(x[first]), b = load(x[second]);
            const S one = a * S(cosine) - (rotates ? b * S(sine) : S(0)), two = b * S(cosine) + a * S(sine);
            y[first] = store<T>((add ? load(y[first]) : S(0)) + one);
            if (rotates) y[second] = store<T>((add ? load(y[second]) : S(0)) + two);
        }
    }
}

template <typename T>
void rotary(tsh_device *device, const tshi_rotary *r, bool back, const void *x, double beta, void *y) {
    const int64_t work = r->batch * r->tokens * (r->dim - r->dims / 2);
    if (work == 0 || r->heads == 0) return;
    launch(device, "rotary", rotate<T>, blocks_for(device, work, 256), 256, *r, back ? -1.0 : 1.0, (const T *)x,
           beta != 0, (T *)y);
}

template <typename T>
constexpr tshi_attention_ops table = {
    .rotary = rotary<T>, .scratch = scratch_size, .forward = forward<T>, .backward = backward<T>};

} // namespace

const tshi_attention_ops tshi_cuda_attention[TSH_DTYPE_COUNT] = {table<float>, table<double>, table<__nv_bfloat16>,
                                                                 table<__half>};
