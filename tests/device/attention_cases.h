/* Attention's kernels against plain loops in double, for the table that a suite gives. */
#ifndef TSHARD_ATTENTION_CASES_H
#define TSHARD_ATTENTION_CASES_H

#include "device/cpu/isa/kernels.h"
#include "kernel_test.h"

typedef struct attention_case {
    int64_t batch, queries, keys, heads, kv_heads, dim, sharers, shift;
    bool causal;
    int64_t lengths[3]; /* -1: none */
    double dropout;
} attention_case;

/* Sizes below, at and past those of vectors, tiles and blocks. Not constants, whose memory no GPU reads. */
static attention_case attention_cases[] = {
    {1, 1, 1, 1, 1, 1, 1, 0, true, {-1}, 0},           {2, 7, 7, 3, 3, 5, 1, 0, true, {-1}, 0},
    {1, 70, 70, 2, 2, 64, 1, 0, true, {-1}, 0},        {1, 130, 130, 1, 1, 16, 1, 0, true, {-1}, 0},
    {2, 65, 140, 2, 1, 20, 2, 0, true, {-1}, 0},       {1, 140, 65, 2, 2, 32, 1, 0, true, {-1}, 0},
    {3, 5, 90, 6, 2, 33, 3, 0, false, {90, 0, 17}, 0}, {1, 1, 300, 8, 2, 64, 4, 0, true, {-1}, 0},
    {1, 9, 40, 4, 2, 12, 3, 2, true, {-1}, 0},         {2, 9, 40, 1, 2, 12, 3, 1, false, {-1}, 0},
    {1, 33, 33, 2, 2, 130, 1, 0, false, {-1}, 0},      {2, 66, 150, 3, 3, 24, 1, 0, true, {100, 150}, 0.3},
    {1, 600, 600, 2, 1, 8, 2, 0, true, {-1}, 0},       {2, 0, 5, 2, 2, 4, 1, 0, false, {-1}, 0},
    {2, 5, 0, 2, 2, 4, 1, 0, true, {-1}, 0},           {1, 3, 4, 0, 2, 4, 2, 1, true, {-1}, 0},
    {1, 20, 200, 6, 2, 40, 3, 0, true, {-1}, 0.5},     {1, 3, 4, 2, 2, 0, 1, 0, true, {-1}, 0},
};
#define ATTENTION_CASES ((int)(sizeof attention_cases / sizeof attention_cases[0]))

static inline tshi_attention attention_of_case(const attention_case *c) {
    return (tshi_attention){.batch = c->batch,
                            .queries = c->queries,
                            .keys = c->keys,
                            .room = c->keys,
                            .heads = c->heads,
                            .kv_heads = c->kv_heads,
                            .dim = c->dim,
                            .sharers = c->sharers,
                            .shift = c->shift,
                            .causal = c->causal,
                            .scale = 0.4,
                            .lengths = c->lengths[0] < 0 ? NULL : c->lengths,
                            .dropout = c->dropout,
                            .seed = 5,
                            .stream = 9,
                            .batch_start = 2,
                            .head_start = 3,
                            .heads_whole = 20};
}

/* The tensors of a call; those of doubles are what is wanted. */
typedef struct attention_tensors {
    buffer q, k, v, dy, y, log_sums, dq, dk, dv;
    double *wanted_y, *wanted_dq, *wanted_dk, *wanted_dv;
} attention_tensors;

static inline double dot_of(const buffer *x, int64_t at, const buffer *y, int64_t from, int64_t n) {
    double sum = 0;
    for (int64_t d = 0; d < n; d++) sum += get(x, at + d) * get(y, from + d);
    return sum;
}

/* One query of one head: its row of y, and what it adds to the gradients. */
static inline void attend(const tshi_attention *a, attention_tensors *t, int64_t b, int64_t h, int64_t i) {
    int64_t at = ((b * a->queries + i) * a->heads + h) * a->dim, n = a->lengths ? a->lengths[b] : a->keys;
    int64_t first = (b * a->keys * a->kv_heads + (h + a->shift) / a->sharers) * a->dim, step = a->kv_heads * a->dim;
    int64_t element = (((b + a->batch_start) * a->heads_whole + h + a->head_start) * a->queries + i) * a->keys;
    double p[1024], dp[1024], keep[1024], most = -INFINITY, sum = 0, delta = 0;
    if (a->causal && i + a->keys - a->queries + 1 < n) n = i + a->keys - a->queries + 1;
    for (int64_t j = 0; j < n; j++) {
        uint32_t word;
        tshi_cpu_words_base(a->seed, a->stream, element + j, 1, &word);
        keep[j] = (word >> 8) * 0x1p-24 >= a->dropout ? 1 / (1 - a->dropout) : 0;
        p[j] = a->scale * dot_of(&t->q, at, &t->k, first + j * step, a->dim);
        most = fmax(most, p[j]);
    }
    for (int64_t j = 0; j < n; j++) sum += p[j] = exp(p[j] - most);
    for (int64_t j = 0; j < n; j++) {
        p[j] /= sum;
        dp[j] = keep[j] * dot_of(&t->dy, at, &t->v, first + j * step, a->dim);
        delta += p[j] * dp[j];
    }
    for (int64_t j = 0; j < n; j++) {
        double ds = a->scale * p[j] * (dp[j] - delta);
        for (int64_t d = 0; d < a->dim; d++) {
            int64_t key = first + j * step + d;
            t->wanted_y[at + d] += p[j] * keep[j] * get(&t->v, key);
            t->wanted_dq[at + d] += ds * get(&t->k, key);
            t->wanted_dk[key] += ds * get(&t->q, at + d);
            t->wanted_dv[key] += p[j] * keep[j] * get(&t->dy, at + d);
        }
    }
}

static inline double *wanted_of(const buffer *before, double beta) {
    double *wanted = calloc((size_t)before->n + 1, sizeof *wanted);
    cr_assert_not_null(wanted);
    for (int64_t i = 0; i < before->n; i++) wanted[i] = beta * get(before, i);
    return wanted;
}

static inline attention_tensors attention_tensors_make(const tshi_attention *a, tsh_dtype dtype, double beta) {
    int64_t queries = a->batch * a->queries * a->heads * a->dim, keys = a->batch * a->keys * a->kv_heads * a->dim;
    attention_tensors t = {.q = buffer_random(dtype, queries, -2, 2),
                           .k = buffer_random(dtype, keys, -2, 2),
                           .v = buffer_random(dtype, keys, -2, 2),
                           .dy = buffer_random(dtype, queries, -2, 2),
                           .y = buffer_random(dtype, queries, -2, 2),
                           .dq = buffer_random(dtype, queries, -2, 2),
                           .dk = buffer_random(dtype, keys, -2, 2),
                           .dv = buffer_random(dtype, keys, -2, 2)};
    t.log_sums = buffer_make(dtype, a->batch * a->heads * a->queries);
    t.wanted_y = wanted_of(&t.y, 0);
    t.wanted_dq = wanted_of(&t.dq, beta);
    t.wanted_dk = wanted_of(&t.dk, beta);
    t.wanted_dv = wanted_of(&t.dv, beta);
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->heads; h++)
            for (int64_t i = 0; i < a->queries; i++) attend(a, &t, b, h, i);
    return t;
}

static inline void expect_all(buffer *got, double *wanted) {
    for (int64_t i = 0; i < got->n; i++) expect_close(got, i, wanted[i], 4 + fabs(wanted[i]), 200);
    buffer_free(got);
    free(wanted);
}

static inline void check_attention(tsh_device *device, const tshi_attention_ops *ops, const attention_case *c,
                                   tsh_dtype dtype, double beta) {
    tshi_attention a = attention_of_case(c);
    attention_tensors t = attention_tensors_make(&a, dtype, beta);
    buffer room = buffer_make(dtype, ops->scratch(&a, false)), more = buffer_make(dtype, ops->scratch(&a, true));
    tshi_attention_grads g = {t.dq.data, t.dk.data, t.dv.data, beta, beta, beta};
    memset(room.data, 0xFF, (size_t)room.n * tsh_dtype_size(dtype)); /* NaNs */
    memset(more.data, 0xFF, (size_t)more.n * tsh_dtype_size(dtype));
    ops->forward(device, &a, t.q.data, t.k.data, t.v.data, t.y.data, t.log_sums.data, room.data);
    ops->backward(device, &a, t.q.data, t.k.data, t.v.data, t.y.data, t.log_sums.data, t.dy.data, &g, more.data);
    buffer_free(&room);
    buffer_free(&more);
    expect_all(&t.y, t.wanted_y);
    expect_all(&t.dq, t.wanted_dq);
    expect_all(&t.dk, t.wanted_dk);
    expect_all(&t.dv, t.wanted_dv);
    buffer *rest[] = {&t.q, &t.k, &t.v, &t.dy, &t.log_sums};
    for (int i = 0; i < 5; i++) buffer_free(rest[i]);
}

/* 16 bits are the CPU's float32 results on the same values, but for `slack`, rounded once; the backward reads the
 * rounded y. */
static inline void check_half(tsh_device *device, const tshi_attention_ops *table, tsh_dtype dtype, double slack,
                              const attention_case *c) {
    const tshi_attention_ops *half = &table[dtype], *single = &kernels()->attention[TSH_FLOAT32];
    tshi_convert_fn *const convert = kernels()->copy.convert;
    const double unit = dtype == TSH_BFLOAT16 ? 0x1p-8 : 0x1p-11;
    tshi_attention a = attention_of_case(c);
    int64_t queries = a.batch * a.queries * a.heads * a.dim, keys = a.batch * a.keys * a.kv_heads * a.dim;
    int64_t size[8] = {queries, keys, keys, queries, queries, queries, keys, keys}; /* q k v dy y dq dk dv */
    buffer f[8], h[8], room = buffer_make(TSH_FLOAT32, single->scratch(&a, true));
    buffer log_sums = buffer_make(TSH_FLOAT32, a.batch * a.heads * a.queries), back;
    for (int i = 0; i < 8; i++) {
        f[i] = buffer_random(TSH_FLOAT32, size[i], -2, 2);
        h[i] = buffer_make(dtype, size[i]);
        convert(NULL, size[i], TSH_FLOAT32, f[i].data, dtype, h[i].data);
        convert(NULL, size[i], dtype, h[i].data, TSH_FLOAT32, f[i].data);
    }
    buffer other = buffer_make(TSH_FLOAT32, half->scratch(&a, true) + half->scratch(&a, false));
    tshi_attention_grads of_half = {h[5].data, h[6].data, h[7].data, 1, 1, 1},
                         of_single = {f[5].data, f[6].data, f[7].data, 1, 1, 1};
    half->forward(device, &a, h[0].data, h[1].data, h[2].data, h[4].data, log_sums.data, other.data);
    half->backward(device, &a, h[0].data, h[1].data, h[2].data, h[4].data, log_sums.data, h[3].data, &of_half,
                   other.data);
    single->forward(NULL, &a, f[0].data, f[1].data, f[2].data, f[4].data, log_sums.data, room.data);
    buffer y = buffer_copy(&f[4]);
    convert(NULL, queries, dtype, h[4].data, TSH_FLOAT32, f[4].data);
    single->backward(NULL, &a, f[0].data, f[1].data, f[2].data, f[4].data, log_sums.data, f[3].data, &of_single,
                     room.data);
    memcpy(f[4].data, y.data, (size_t)queries * sizeof(float));
    buffer_free(&y);
    for (int i = 4; i < 8; i++) {
        back = buffer_make(TSH_FLOAT32, size[i]);
        convert(NULL, size[i], dtype, h[i].data, TSH_FLOAT32, back.data);
        for (int64_t j = 0; j < size[i]; j++) {
            double wanted = get(&f[i], j), got = get(&back, j);
            cr_assert_leq(fabs(got - wanted), unit * fabs(wanted) + 1e-7 + slack, "%s tensor %d element %d: %g, not %g",
                          tsh_dtype_name(dtype), i, (int)j, got, wanted);
        }
        buffer_free(&back);
    }
    for (int i = 0; i < 8; i++) {
        buffer_free(&f[i]);
        buffer_free(&h[i]);
    }
    buffer_free(&room);
    buffer_free(&other);
    buffer_free(&log_sums);
}

/* Those with `most` scores at most. */
static inline void check_all_cases(tsh_device *device, const tshi_attention_ops *table, int64_t most) {
    for (int d = 0; d < 2; d++) {
        for (int i = 0; i < ATTENTION_CASES; i++) {
            const attention_case *c = &attention_cases[i];
            if (c->queries * c->keys > most) continue;
            check_attention(device, &table[float_dtypes[d]], c, float_dtypes[d], i % 2);
        }
    }
}

#endif
