// Rows of a table by id, and their gradient, which is deterministic for any ids.
//
// The gradient sorts the indices of dy's rows by table row, and by index within a table row: a key contains both, so
// all keys differ. Then a block takes a stretch of STRETCH keys, sums dy's rows of each table row, and adds the sum to
// the table. If a table row continues in the next stretch, its sums go to scratch memory for a second launch. So all
// blocks have equal work, even if most ids are equal.
#include "device/cuda/kernels/common.cuh"

namespace {
using namespace tshi;

constexpr int SORTED = 4096;     // keys of a run that one launch sorts
constexpr int PLACED = 32;       // of them, those that a block places
constexpr int SORTERS = 512;     // threads of this block
constexpr int MERGED = 8;        // sorted runs that a launch merges into one
constexpr int MERGERS = 64;      // threads of its blocks: few, so that few keys keep all multiprocessors busy
constexpr int STRETCH = 32;      // keys of a block of the sum
constexpr int AHEAD = 4;         // keys whose rows are in flight at once
constexpr int MAX_COLUMNS = 128; // threads of a block of the sum

// --- rows ------------------------------------------------------------------------------------------------------------

// A row has `packs` packs and `group` threads.
template <typename P>
__global__ void __launch_bounds__(256) look_up(int group, int64_t n, const int64_t *ids, int64_t start, int64_t rows,
                                               int64_t packs, const P *table, P *y) {
    const int lane = threadIdx.x % group, groups = blockDim.x / group;
    for (int64_t i = (int64_t)blockIdx.x * groups + threadIdx.x / group; i < n; i += (int64_t)gridDim.x * groups) {
        const int64_t row = ids[i] - start;
        const bool inside = ids[i] >= start && row < rows;
        const P *from = table + (inside ? row : 0) * packs;
        P *to = y + i * packs;
#pragma unroll 4
        for (int64_t at = lane; at < packs; at += group) to[at] = inside ? from[at] : P();
    }
}

template <typename P>
void look_up_rows(tsh_device *device, int64_t n, const int64_t *ids, int64_t start, int64_t rows, int64_t packs,
                  const void *table, void *y) {
    int group = WARP;
    while (group < 256 && group * 4 < packs) group *= 2;
    int64_t blocks = up(n, 256 / group);
    launch(device, "embedding", look_up<P>, (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX), 256, group, n, ids,
           start, rows, packs, (const P *)table, (P *)y);
}

// --- rows of a bounded norm ------------------------------------------------------------------------------------------

// One block an id; blocks of equal ids write equal values.
template <typename T>
__global__ void __launch_bounds__(256)
    bound_rows(int64_t n, const int64_t *ids, int64_t start, int64_t rows, int64_t cols, const double *norms,
               double max_norm, const T *from, T *table) {
    for (int64_t i = blockIdx.x; i < n; i += gridDim.x) {
        const int64_t row = ids[i] - start;
        if (ids[i] < start || row >= rows || !(norms[i] > max_norm)) continue;
        const sum_t<T> factor = sum_t<T>(max_norm / (norms[i] + 1e-7));
        for (int64_t c = threadIdx.x; c < cols; c += blockDim.x)
            table[row * cols + c] = store<T>(load(from[i * cols + c]) * factor);
    }
}

// --- the gradient: sorting -------------------------------------------------------------------------------------------

// row << bits | place: the table row, and the index of dy's row. An index that adds nothing has the row past the last.
struct key_parts {
    int bits;
    __host__ __device__ int64_t row(uint64_t key) const {
        return (int64_t)(key >> bits);
    }
    __host__ __device__ int64_t place(uint64_t key) const {
        return (int64_t)(key & (((uint64_t)1 << bits) - 1));
    }
};

// The position of the key at `at` once RUNS runs of `run` keys, both powers of two, are merged. The binary searches in
// the other runs advance together.
template <int RUNS> __device__ inline int64_t merged_place(const uint64_t *keys, int64_t n, int64_t run, int64_t at) {
    const uint64_t key = keys[at];
    const int64_t first = at & ~(RUNS * run - 1);
    int64_t length[RUNS], below[RUNS], place = first;
#pragma unroll
    for (int w = 0; w < RUNS; w++) {
        const int64_t begin = first + w * run, left = n - begin < run ? n - begin : run;
        const bool own = at >= begin && at < begin + run;
        length[w] = own || left < 0 ? 0 : left;
        below[w] = 0;
        if (own) place += at - begin;
    }
    for (int64_t step = run; step > 0; step /= 2) {
#pragma unroll
        for (int w = 0; w < RUNS; w++) {
            const int64_t next = below[w] + step;
            if (next <= length[w] && keys[first + w * run + next - 1] < key) below[w] = next;
        }
    }
#pragma unroll
    for (int w = 0; w < RUNS; w++) place += below[w];
    return place;
}

// Makes the keys of all indices, and sorts each run of SORTED: a key's place is the number of smaller keys in its run.
__global__ void __launch_bounds__(SORTERS) sort_runs(int64_t n, const int64_t *ids, int64_t start, int64_t rows,
                                                     int64_t padding, key_parts parts, uint64_t *keys) {
    constexpr int GROUP = SORTERS / PLACED; // threads that count for a key
    __shared__ uint64_t run[SORTED];
    const int64_t first = (int64_t)blockIdx.x * PLACED, base = first & ~(int64_t)(SORTED - 1);
    const int length = n - base < SORTED ? (int)(n - base) : SORTED;
    for (int i = threadIdx.x; i < length; i += SORTERS) {
        const int64_t id = ids[base + i], row = id - start;
        const bool counts = id != padding && id >= start && row < rows;
        run[i] = (uint64_t)(counts ? row : rows) << parts.bits | (uint64_t)(base + i);
    }
    barrier();
    const int mine = (int)(first - base) + threadIdx.x / GROUP;
    const uint64_t key = mine < length ? run[mine] : 0;
    int smaller = 0;
#pragma unroll 8
    for (int i = threadIdx.x % GROUP; i < length; i += GROUP) smaller += run[i] < key;
    for (int step = GROUP / 2; step > 0; step /= 2) smaller += shuffle_xor(smaller, step);
    if (threadIdx.x % GROUP == 0 && mine < length) keys[base + smaller] = key;
}

__global__ void __launch_bounds__(MERGERS) merge_runs(int64_t n, int64_t run, const uint64_t *from, uint64_t *to) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        to[merged_place<MERGED>(from, n, run, i)] = from[i];
}

// Sorts the keys, with two buffers of n keys each, and returns the one with the result.
uint64_t *sort_places(tsh_device *device, int64_t n, const int64_t *ids, int64_t start, int64_t rows, int64_t padding,
                      key_parts parts, uint64_t *keys, uint64_t *spare) {
    const char *what = "embedding_backward";
    launch(device, what, sort_runs, (unsigned)up(n, PLACED), SORTERS, n, ids, start, rows, padding, parts, keys);
    for (int64_t run = SORTED; run < n; run *= MERGED) {
        launch(device, what, merge_runs, blocks_for(device, n, MERGERS), MERGERS, n, run, (const uint64_t *)keys,
               spare);
        uint64_t *sorted = spare;
        spare = keys;
        keys = sorted;
    }
    return keys;
}

// --- the gradient: sums ----------------------------------------------------------------------------------------------

template <typename T, int W> struct alignas(W > 1 ? 16 : sizeof(sum_t<T>)) row_sum {
    using S = sum_t<T>;
    S item[W];

    __device__ void clear() {
        for (int j = 0; j < W; j++) item[j] = 0;
    }
    __device__ void add(const pack<T, W> &x) {
        for (int j = 0; j < W; j++) item[j] += load(x.item[j]);
    }
    __device__ void add(const row_sum &other) {
        for (int j = 0; j < W; j++) item[j] += other.item[j];
    }
    __device__ pack<T, W> over(const pack<T, W> &before) const {
        pack<T, W> out;
        for (int j = 0; j < W; j++) out.item[j] = store<T>(load(before.item[j]) + item[j]);
        return out;
    }
};

// A block's stretch and columns: consecutive blocks have the column tiles of one stretch.
struct place_in_grid {
    int64_t stretch, column;
    __device__ place_in_grid(int64_t tiles) {
        stretch = blockIdx.x / tiles;
        column = blockIdx.x % tiles * blockDim.x + threadIdx.x;
    }
};

// The sum of a row within stretch s goes to the table if the row lies only in s; else to heads[s] if the row began
// before s, or to tails[s].
template <typename T, int W>
__global__ void __launch_bounds__(MAX_COLUMNS)
    add_stretch(int64_t n, int64_t rows, int64_t packs, int64_t tiles, key_parts parts, const uint64_t *keys,
                const pack<T, W> *dy, pack<T, W> *dtable, row_sum<T, W> *heads, row_sum<T, W> *tails) {
    const place_in_grid at(tiles);
    const int64_t first = at.stretch * STRETCH, last = first + STRETCH < n ? first + STRETCH : n;
    if (at.column >= packs || parts.row(keys[first]) >= rows) return;
    const int64_t before = first > 0 ? parts.row(keys[first - 1]) : -1;
    row_sum<T, W> sum;
    sum.clear();
    for (int64_t i = first; i < last; i += AHEAD) {
        int64_t row[AHEAD];
        bool ends[AHEAD], whole[AHEAD];
        pack<T, W> more[AHEAD], old[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const bool here = i + k < last;
            const uint64_t key = here ? keys[i + k] : 0;
            row[k] = here ? parts.row(key) : rows;
            int64_t next = i + k + 1 < n ? parts.row(keys[i + k + 1]) : rows;
            bool leaves = row[k] == next;
            ends[k] = row[k] < rows && (!leaves || i + k + 1 == last);
            whole[k] = row[k] != before && !leaves;
            if (row[k] < rows) more[k] = dy[parts.place(key) * packs + at.column];
            if (ends[k] && whole[k]) old[k] = dtable[row[k] * packs + at.column];
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            if (row[k] >= rows) return;
            sum.add(more[k]);
            if (!ends[k]) continue;
            if (whole[k])
                dtable[row[k] * packs + at.column] = sum.over(old[k]);
            else
                (row[k] == before ? heads : tails)[at.stretch * packs + at.column] = sum;
            sum.clear();
        }
    }
}

// Adds up tails[s] and the heads of its successors, for a row that begins in stretch s and continues in the next.
template <typename T, int W>
__global__ void __launch_bounds__(MAX_COLUMNS)
    add_across(int64_t n, int64_t rows, int64_t packs, int64_t tiles, key_parts parts, const uint64_t *keys,
               const row_sum<T, W> *heads, const row_sum<T, W> *tails, pack<T, W> *dtable) {
    const place_in_grid at(tiles);
    const int64_t first = at.stretch * STRETCH, next = first + STRETCH;
    if (at.column >= packs || next >= n) return;
    const int64_t row = parts.row(keys[next]);
    if (row >= rows || parts.row(keys[next - 1]) != row) return;
    if (first > 0 && parts.row(keys[first - 1]) == row) return;
    row_sum<T, W> sum = tails[at.stretch * packs + at.column];
    for (int64_t s = at.stretch + 1;; s += AHEAD) {
        bool goes_on[AHEAD];
        row_sum<T, W> more[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            goes_on[k] = (s + k) * STRETCH < n && parts.row(keys[(s + k) * STRETCH]) == row;
            if (goes_on[k]) more[k] = heads[(s + k) * packs + at.column];
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (goes_on[k]) sum.add(more[k]);
        if (!goes_on[AHEAD - 1]) break;
    }
    pack<T, W> *to = dtable + row * packs + at.column;
    store_pack(to, sum.over(load_pack(to)));
}

struct table_gradient {
    int64_t n, start, rows, cols, padding;
    const int64_t *ids;
    const void *dy;
    void *dtable;
};

template <typename T, int W>
void add_rows(tsh_device *device, const table_gradient &g, key_parts parts, const uint64_t *keys) {
    using P = pack<T, W>;
    using R = row_sum<T, W>;
    const char *what = "embedding_backward";
    const int64_t stretches = up(g.n, STRETCH), packs = g.cols / W;
    const int64_t threads = packs < MAX_COLUMNS ? up(packs, WARP) * WARP : MAX_COLUMNS, tiles = up(packs, threads);
    R *waiting = nullptr;
    if (stretches > 1) {
        waiting = (R *)scratch(device, 2 * stretches * packs * (int64_t)sizeof(R), what);
        if (!waiting) return;
    }
    R *heads = waiting, *tails = waiting ? waiting + stretches * packs : nullptr;
    launch(device, what, add_stretch<T, W>, (unsigned)(stretches * tiles), (unsigned)threads, g.n, g.rows, packs, tiles,
           parts, keys, (const P *)g.dy, (P *)g.dtable, heads, tails);
    if (waiting)
        launch(device, what, add_across<T, W>, (unsigned)((stretches - 1) * tiles), (unsigned)threads, g.n, g.rows,
               packs, tiles, parts, keys, (const R *)heads, (const R *)tails, (P *)g.dtable);
    device->ops->memory.release(device, waiting);
}

int bits_of(uint64_t most) {
    int bits = 0;
    while (bits < 64 && most >> bits) bits++;
    return bits;
}

template <typename T>
void embedding(tsh_device *device, int64_t n, const int64_t *ids, int64_t start, int64_t rows, int64_t cols,
               const void *table, void *y) {
    if (cols == 0) return;
    if (packs<T>(cols, table, y))
        look_up_rows<uint4>(device, n, ids, start, rows, cols / pack<T>::size, table, y);
    else
        look_up_rows<pack<T, 1>>(device, n, ids, start, rows, cols, table, y);
}

template <typename T>
void embedding_backward(tsh_device *device, int64_t n, const int64_t *ids, int64_t start, int64_t rows, int64_t cols,
                        int64_t padding, const void *dy, void *dtable) {
    if (n == 0 || rows == 0 || cols == 0) return;
    const char *what = "embedding_backward";
    const table_gradient g = {n, start, rows, cols, padding, ids, dy, dtable};
    const key_parts parts = {bits_of((uint64_t)n)};
    if (parts.bits + bits_of((uint64_t)rows) > 64) {
        tshi_cuda_record_error(device, cudaErrorInvalidValue, what);
        return;
    }
    uint64_t *keys = (uint64_t *)scratch(device, 2 * n * (int64_t)sizeof(uint64_t), what);
    if (!keys) return;
    const uint64_t *sorted = sort_places(device, n, ids, start, rows, padding, parts, keys, keys + n);
    if (packs<T>(cols, dy, dtable))
        add_rows<T, pack<T>::size>(device, g, parts, sorted);
    else
        add_rows<T, 1>(device, g, parts, sorted);
    device->ops->memory.release(device, keys);
}

template <typename T>
void embedding_bound(tsh_device *device, int64_t n, const int64_t *ids, int64_t start, int64_t rows, int64_t cols,
                     const double *norms, double max_norm, const void *from, void *table) {
    if (n == 0 || rows == 0 || cols == 0) return;
    launch(device, "embedding_bound", bound_rows<T>, (unsigned)(n < INT32_MAX ? n : INT32_MAX), 256, n, ids, start,
           rows, cols, norms, max_norm, (const T *)from, (T *)table);
}

template <typename T>
constexpr tshi_embedding_ops table = {
    .forward = embedding<T>, .backward = embedding_backward<T>, .bound = embedding_bound<T>};

} // namespace

const tshi_embedding_ops tshi_cuda_embedding[TSH_DTYPE_COUNT] = {table<float>, table<double>, table<__nv_bfloat16>,
                                                                 table<__half>};
