/* Permutations of arrays larger than a tile, for the suites of the kernels of both devices. */
#ifndef TSHARD_PERMUTATIONS_H
#define TSHARD_PERMUTATIONS_H

#include "kernel_test.h"

enum { PERMUTED_MOST = 40000 };

/* The order of the dims of `from`, with the sizes of `to`. */
typedef struct permuted {
    int ndim;
    int64_t size[4];
    int order[4];
} permuted;

static const permuted permuted_cases[] = {
    {0, {1}, {0}},
    {1, {37}, {0}},
    {2, {5, 7}, {1, 0}},
    {2, {33, 70}, {1, 0}},
    {2, {0, 3}, {1, 0}},
    {3, {17, 3, 40}, {2, 0, 1}},
    {3, {3, 5, 4}, {1, 0, 2}},
    {4, {2, 19, 3, 35}, {0, 3, 1, 2}},
    {4, {3, 34, 2, 33}, {2, 3, 0, 1}},
    {4, {4, 3, 2, 5}, {3, 2, 1, 0}},
};
enum { PERMUTED_CASES = sizeof permuted_cases / sizeof permuted_cases[0] };

static inline tshi_permutation permutation_of(const permuted *c, size_t piece) {
    tshi_permutation p = {.piece = piece, .ndim = c->ndim};
    for (int d = 0; d < c->ndim; d++) {
        p.size[d] = c->size[d];
        p.stride[d] = 1;
        for (int e = 0; e < c->ndim; e++) {
            if (c->order[e] > c->order[d]) p.stride[d] *= c->size[e];
        }
    }
    return p;
}

/* Element by element: index after index of `to`. Returns the number of pieces. */
static inline int64_t permute_slowly(const tshi_permutation *p, const char *from, char *to) {
    int64_t count = 1;
    for (int d = 0; d < p->ndim; d++) count *= p->size[d];
    for (int64_t i = 0; i < count; i++) {
        int64_t at = 0, rest = i;
        for (int d = p->ndim - 1; d >= 0; d--) {
            at += rest % p->size[d] * p->stride[d];
            rest /= p->size[d];
        }
        memcpy(to + (size_t)i * p->piece, from + (size_t)at * p->piece, p->piece);
    }
    return count;
}

/* All cases for pieces of these sizes, `skew` bytes behind a boundary of 64. */
static inline void check_permutations(tshi_permute_fn *permute, tsh_device *device, size_t skew) {
    static const size_t pieces[] = {1, 2, 4, 8, 16, 12, 5, 64};
    static _Alignas(64) char from[PERMUTED_MOST * 64 + 64], to[PERMUTED_MOST * 64 + 64], wanted[PERMUTED_MOST * 64];
    for (size_t i = 0; i < sizeof from; i++) from[i] = (char)(random_word() >> 7);
    for (int c = 0; c < PERMUTED_CASES; c++) {
        for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++) {
            tshi_permutation p = permutation_of(&permuted_cases[c], pieces[k]);
            size_t bytes = (size_t)permute_slowly(&p, from + skew, wanted) * p.piece;
            cr_assert_leq(bytes, sizeof wanted);
            memset(to, 0x5A, sizeof to);
            permute(device, &p, from + skew, to + skew);
            cr_assert_eq(memcmp(to + skew, wanted, bytes), 0, "case %d, pieces of %zu", c, p.piece);
            cr_assert_eq(to[skew + bytes], 0x5A, "written past the end");
        }
    }
}

#endif
