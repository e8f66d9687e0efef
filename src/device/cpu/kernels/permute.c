/* Permutations of dims. */
#include "device/cpu/kernels/kernels.h"

#include <string.h>

/* A matrix of pieces: in `to` its rows are to_row bytes apart and the pieces of a row are contiguous. */
typedef struct matrix {
    int64_t rows, cols;
    size_t from_row, from_col, to_row;
} matrix;

/* Tiling: one side is contiguous along rows and the other along columns, and a tile's cache lines stay in L1 until
 * all their pieces have been used. */
enum { TILE = 16 };

static inline void copy_matrix(const matrix *m, size_t piece, const char *from, char *to) {
    for (int64_t r0 = 0; r0 < m->rows; r0 += TILE) {
        int64_t r1 = r0 + TILE < m->rows ? r0 + TILE : m->rows;
        for (int64_t c0 = 0; c0 < m->cols; c0 += TILE) {
            int64_t c1 = c0 + TILE < m->cols ? c0 + TILE : m->cols;
            for (int64_t r = r0; r < r1; r++) {
                const char *source = from + (size_t)r * m->from_row;
                char *target = to + (size_t)r * m->to_row;
                for (int64_t c = c0; c < c1; c++)
                    memcpy(target + (size_t)c * piece, source + (size_t)c * m->from_col, piece);
            }
        }
    }
}

/* Copies of small pieces are faster with a constant size. */
static void copy_pieces(const matrix *m, size_t piece, const char *from, char *to) {
    switch (piece) {
    case 1: copy_matrix(m, 1, from, to); break;
    case 2: copy_matrix(m, 2, from, to); break;
    case 4: copy_matrix(m, 4, from, to); break;
    case 8: copy_matrix(m, 8, from, to); break;
    case 16: copy_matrix(m, 16, from, to); break;
    case 64: copy_matrix(m, 64, from, to); break;
    case 128: copy_matrix(m, 128, from, to); break;
    case 256: copy_matrix(m, 256, from, to); break;
    default: copy_matrix(m, piece, from, to);
    }
}

/* The dim, other than the last, with the smallest stride in `from`; -1: there is no other dim. */
static int row_dim(const tshi_permutation *p) {
    int row = p->ndim - 2;
    for (int d = row - 1; d >= 0; d--) {
        if (p->stride[d] < p->stride[row]) row = d;
    }
    return row;
}

void tshi_cpu_permute(tsh_device *device, const tshi_permutation *p, const void *from, void *to) {
    int64_t index[TSHI_PERMUTED_DIMS] = {0};
    size_t from_stride[TSHI_PERMUTED_DIMS], to_stride[TSHI_PERMUTED_DIMS], inner = p->piece;
    const char *source = from;
    char *target = to;
    int row = row_dim(p), last = p->ndim - 1, d = last;
    for (int i = last; i >= 0; i--) {
        if (p->size[i] == 0) return;
        to_stride[i] = inner;
        from_stride[i] = (size_t)p->stride[i] * p->piece;
        inner *= (size_t)p->size[i];
    }
    if (p->ndim == 0) memcpy(to, from, p->piece);
    while (d >= 0) { /* each iteration copies a matrix and advances the indices of the other dims */
        matrix m = {row < 0 ? 1 : p->size[row], p->size[last], row < 0 ? 0 : from_stride[row], from_stride[last],
                    row < 0 ? 0 : to_stride[row]};
        copy_pieces(&m, p->piece, source, target);
        for (d = last - 1; d >= 0; d--) {
            if (d == row) continue;
            source += from_stride[d];
            target += to_stride[d];
            if (++index[d] < p->size[d]) break;
            source -= from_stride[d] * (size_t)p->size[d];
            target -= to_stride[d] * (size_t)p->size[d];
            index[d] = 0;
        }
    }
}
