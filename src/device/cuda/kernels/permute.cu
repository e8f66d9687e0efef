// A tensor with its dims in another order: as tiled matrix transpositions if pieces are single words, else piece by
// piece.
#include "device/cuda/kernels/common.cuh"

namespace {
using namespace tshi;

constexpr int TILE = 32;     // words along each side
constexpr int THREADS = 256; // of a block

template <int BYTES> struct word_of;
template <> struct word_of<1> { using type = uint8_t; };
template <> struct word_of<2> { using type = uint16_t; };
template <> struct word_of<4> { using type = uint32_t; };
template <> struct word_of<8> { using type = uint2; };
template <> struct word_of<16> { using type = uint4; };

// The position in `from` of piece i of `to`, in pieces; with the strides of `to`, the position in `to`.
__device__ inline int64_t place(const tshi_permutation &p, int64_t i) {
    int64_t at = 0;
    for (int d = p.ndim - 1; d >= 0; d--) {
        const int64_t rest = quotient(i, p.size[d]);
        at += (i - rest * p.size[d]) * p.stride[d];
        i = rest;
    }
    return at;
}

template <typename W>
__global__ void __launch_bounds__(THREADS)
    permute_pieces(tshi_permutation p, int64_t words, int64_t total, const W *from, W *to) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
        const int64_t piece = quotient(i, words);
        to[i] = from[place(p, piece) * words + i - piece * words];
    }
}

// A permutation as a set of matrix transpositions. A matrix's rows run along the dim that is contiguous in `from`, and
// its columns along the last dim of `to`; the dims in `outer_from` and `outer_to` number the matrices.
struct tiles {
    int64_t rows, cols, from_row, from_col, to_row;
    int64_t down, across, total; // tiles along each side of a matrix, and in all
    tshi_permutation outer_from, outer_to;
};

template <typename W> __global__ void __launch_bounds__(THREADS) permute_tiles(tiles t, const W *from, W *to) {
    __shared__ W tile[TILE][TILE + 1];
    constexpr int step = THREADS / TILE; // a constant: the loop is unrolled, and its reads are in flight together
    const int lane = threadIdx.x % TILE, first = threadIdx.x / TILE;
    for (int64_t i = blockIdx.x; i < t.total; i += gridDim.x) {
        const int64_t row = quotient(i, t.across), matrix = quotient(row, t.down);
        const int64_t c0 = (i - row * t.across) * TILE, r0 = (row - matrix * t.down) * TILE;
        const W *source = from + place(t.outer_from, matrix) + r0 * t.from_row + c0 * t.from_col;
        W *target = to + place(t.outer_to, matrix) + r0 * t.to_row + c0;
#pragma unroll
        for (int c = first; c < TILE; c += step)
            if (c0 + c < t.cols && r0 + lane < t.rows) tile[c][lane] = source[lane * t.from_row + c * t.from_col];
        barrier();
#pragma unroll
        for (int r = first; r < TILE; r += step)
            if (c0 + lane < t.cols && r0 + r < t.rows) target[r * t.to_row + lane] = tile[lane][r];
        barrier();
    }
}

tiles tiles_of(const tshi_permutation &p, int row) {
    tiles t = {};
    int last = p.ndim - 1, n = 0;
    int64_t inner = 1, matrices = 1;
    t.rows = p.size[row];
    t.cols = p.size[last];
    t.from_row = p.stride[row];
    t.from_col = p.stride[last];
    for (int d = 0; d < p.ndim; d++) n += d != row && d != last;
    t.outer_from.ndim = t.outer_to.ndim = n;
    for (int d = last; d >= 0; d--) {
        if (d == row) {
            t.to_row = inner;
        } else if (d != last) {
            n--;
            t.outer_from.size[n] = t.outer_to.size[n] = p.size[d];
            t.outer_from.stride[n] = p.stride[d];
            t.outer_to.stride[n] = inner;
            matrices *= p.size[d];
        }
        inner *= p.size[d];
    }
    t.down = up(t.rows, TILE);
    t.across = up(t.cols, TILE);
    t.total = matrices * t.down * t.across;
    return t;
}

// The dim of stride 1, if it is not the last dim; else -1.
int row_of(const tshi_permutation &p) {
    for (int d = 0; d < p.ndim - 1; d++)
        if (p.stride[d] == 1) return d;
    return -1;
}

template <int BYTES> void permute_words(tsh_device *device, const tshi_permutation &p, const void *from, void *to) {
    using W = typename word_of<BYTES>::type;
    int64_t words = (int64_t)p.piece / BYTES, total = words;
    for (int d = 0; d < p.ndim; d++) total *= p.size[d];
    int row = words == 1 ? row_of(p) : -1;
    if (total == 0) return;
    if (row >= 0) {
        tiles t = tiles_of(p, row);
        unsigned blocks = blocks_for(device, t.total * THREADS, THREADS);
        launch(device, "permute", permute_tiles<W>, blocks, THREADS, t, (const W *)from, (W *)to);
    } else {
        launch(device, "permute", permute_pieces<W>, blocks_for(device, total, THREADS), THREADS, p, words, total,
               (const W *)from, (W *)to);
    }
}

} // namespace

void tshi_cuda_permute(tsh_device *device, const tshi_permutation *p, const void *from, void *to) {
    uintptr_t at = (uintptr_t)from | (uintptr_t)to | (uintptr_t)p->piece;
    if (at % 16 == 0)
        permute_words<16>(device, *p, from, to);
    else if (at % 8 == 0)
        permute_words<8>(device, *p, from, to);
    else if (at % 4 == 0)
        permute_words<4>(device, *p, from, to);
    else if (at % 2 == 0)
        permute_words<2>(device, *p, from, to);
    else
        permute_words<1>(device, *p, from, to);
}
