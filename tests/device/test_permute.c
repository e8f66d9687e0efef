/* Permutations of dims against one element by element, of arrays larger than a tile. */
#include "kernel_test.h"

/* The order of the dims of `from`, with the sizes of `to`. */
typedef struct permuted {
    int ndim;
    int64_t size[4];
    int order[4];
} permuted;

static const permuted cases[] = {
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

static tshi_permutation permutation_of(const permuted *c, size_t piece) {
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

/* `skew` bytes behind a boundary of 64. */
static void check(const permuted *c, size_t piece, int64_t skew) {
    tshi_permutation p = permutation_of(c, piece);
    int64_t count = 1;
    for (int d = 0; d < p.ndim; d++) count *= p.size[d];
    buffer from = buffer_make(TSH_UINT8, count * (int64_t)piece + skew), to = buffer_make(TSH_UINT8, from.n);
    for (int64_t i = 0; i < from.n; i++) ((char *)from.data)[i] = (char)(random_word() >> 7);
    memset(to.data, 0x5A, (size_t)skew);
    kernels()->copy.permute(kernel_device(), &p, (char *)from.data + skew, (char *)to.data + skew);
    settle();
    for (int64_t i = 0; i < count; i++) {
        int64_t at = 0, rest = i;
        for (int d = p.ndim - 1; d >= 0; rest /= p.size[d--]) at += rest % p.size[d] * p.stride[d];
        cr_assert_eq(
            memcmp((char *)to.data + skew + (size_t)i * piece, (char *)from.data + skew + (size_t)at * piece, piece), 0,
            "case %d, piece %d of %d bytes", (int)(c - cases), (int)i, (int)piece);
    }
    free_buffers();
}

Test(permute, as_element_by_element, .timeout = 600) {
    static const size_t pieces[] = {1, 2, 4, 8, 16, 12, 5, 64};
    static const int64_t skews[] = {0, 4, 1};
    for (size_t i = 0; i < sizeof cases / sizeof *cases * 8 * 3; i++)
        check(&cases[i / 24], pieces[i / 3 % 8], skews[i % 3]);
}
