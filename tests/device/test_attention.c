/* Attention against plain loops in double, rotary positions, the same bits for a head however many a rank holds, large
 * scores. */
#include "kernel_test.h"

#include "support/philox.h"

TestSuite(attention_kernels, .timeout = 600);

typedef struct attention_case {
    int64_t batch, queries, keys, heads, kv_heads, dim, sharers, shift;
    bool causal;
    int64_t lengths[3]; /* -1: none */
    double dropout;
    int tokens;            /* a set of the following */
    int64_t before, after; /* queries of other ranks */
} attention_case;

enum { POSITIONS = 1, DOCUMENTS = 2, BATCHED = 4, FAR = 8, SORTED = 16 };

/* Sizes below, at and past those of vectors, tiles and blocks. */
static const attention_case cases[] = {
    {1, 1, 1, 1, 1, 1, 1, 0, true, {-1}, 0, 0, 0, 0},
    {2, 7, 7, 3, 3, 5, 1, 0, true, {-1}, 0, 0, 0, 0},
    {1, 70, 70, 2, 2, 64, 1, 0, true, {-1}, 0, 0, 0, 0},
    {1, 130, 130, 1, 1, 16, 1, 0, true, {-1}, 0, 0, 0, 0},
    {2, 65, 140, 2, 1, 20, 2, 0, true, {-1}, 0, 0, 0, 0},
    {1, 140, 65, 2, 2, 32, 1, 0, true, {-1}, 0, 0, 0, 0},
    {3, 5, 90, 6, 2, 33, 3, 0, false, {90, 0, 17}, 0, 0, 0, 0},
    {1, 1, 300, 8, 2, 64, 4, 0, true, {-1}, 0, 0, 0, 0},
    {1, 9, 40, 4, 2, 12, 3, 2, true, {-1}, 0, 0, 0, 0},
    {2, 9, 40, 1, 2, 12, 3, 1, false, {-1}, 0, 0, 0, 0},
    {1, 33, 33, 2, 2, 130, 1, 0, false, {-1}, 0, 0, 0, 0},
    {2, 66, 150, 3, 3, 24, 1, 0, true, {100, 150}, 0.3, 0, 0, 0},
    {1, 600, 600, 2, 1, 8, 2, 0, true, {-1}, 0, 0, 0, 0},
    {2, 0, 5, 2, 2, 4, 1, 0, false, {-1}, 0, 0, 0, 0},
    {2, 5, 0, 2, 2, 4, 1, 0, true, {-1}, 0, 0, 0, 0},
    {1, 3, 4, 0, 2, 4, 2, 1, true, {-1}, 0, 0, 0, 0},
    {1, 20, 200, 6, 2, 40, 3, 0, true, {-1}, 0.5, 0, 0, 0},
    {1, 3, 4, 2, 2, 0, 1, 0, true, {-1}, 0, 0, 0, 0},
    /* Queries that ranks split: the middle, the end, of fewer keys than queries. */
    {1, 70, 200, 2, 1, 16, 2, 0, true, {-1}, 0.3, 0, 60, 70},
    {2, 3, 10, 2, 2, 8, 1, 0, true, {10, 4}, 0, 0, 7, 0},
    {1, 20, 30, 1, 1, 8, 1, 0, true, {-1}, 0, 0, 5, 40},
    /* Masks by positions and documents. */
    {2, 7, 7, 4, 2, 3, 2, 0, false, {-1}, 0, POSITIONS | BATCHED, 0, 0},
    {2, 130, 140, 2, 2, 16, 1, 0, true, {-1}, 0, POSITIONS, 0, 0},
    {1, 150, 300, 4, 2, 64, 2, 0, false, {-1}, 0, POSITIONS | DOCUMENTS, 0, 0},
    {2, 70, 300, 3, 1, 12, 3, 0, false, {-1}, 0.3, POSITIONS | DOCUMENTS | BATCHED, 3, 4},
    {2, 66, 200, 2, 2, 24, 1, 0, false, {-1}, 0, DOCUMENTS | BATCHED, 0, 0},
    {2, 90, 200, 2, 2, 8, 1, 0, true, {-1}, 0, DOCUMENTS, 50, 60},
    {2, 9, 70, 2, 1, 12, 2, 0, false, {-1}, 0.3, POSITIONS | DOCUMENTS | BATCHED, 3, 4},
    {2, 20, 40, 2, 2, 8, 1, 0, true, {-1}, 0, DOCUMENTS | BATCHED, 5, 6},
    {1, 9, 400, 8, 2, 20, 4, 0, false, {-1}, 0, POSITIONS | DOCUMENTS, 0, 0},
    {2, 5, 90, 2, 1, 33, 2, 0, false, {-1}, 0, POSITIONS | FAR, 0, 0},
    {1, 600, 600, 1, 1, 64, 1, 0, false, {-1}, 0, POSITIONS | DOCUMENTS | SORTED, 0, 0},
    {1, 1, 5, 2, 1, 4, 2, 0, false, {-1}, 0.5, POSITIONS | DOCUMENTS, 0, 0},
    {2, 4, 0, 2, 1, 4, 2, 0, false, {-1}, 0, POSITIONS, 0, 0},
    {2, 0, 4, 2, 1, 4, 2, 0, false, {-1}, 0, POSITIONS | DOCUMENTS | BATCHED, 0, 0},
};
enum { CASES = sizeof cases / sizeof cases[0] };

/* The tensors of a call; those of doubles are what is wanted. */
typedef struct tensors {
    buffer q, k, v, dy, y, log_sums, dq, dk, dv, lengths, tokens[2][2]; /* [documents][keys] */
    double *y_wanted, *dq_wanted, *dk_wanted, *dv_wanted;
} tensors;

static tshi_attention attention_of(const attention_case *c, const buffer *lengths) {
    return (tshi_attention){.batch = c->batch,
                            .queries = c->queries,
                            .queries_before = c->before,
                            .queries_after = c->after,
                            .keys = c->keys,
                            .capacity = c->keys,
                            .heads = c->heads,
                            .kv_heads = c->kv_heads,
                            .dim = c->dim,
                            .sharers = c->sharers,
                            .shift = c->shift,
                            .causal = c->causal,
                            .scale = 0.4,
                            .lengths = c->lengths[0] < 0 ? NULL : lengths->data,
                            .dropout = c->dropout,
                            .seed = 5,
                            .stream = 9,
                            .batch_start = 2,
                            .head_start = 3,
                            .heads_whole = 20};
}

/* Positions of a sequence and documents of it, permuted or not; a query of FAR has a position before all keys'. */
static buffer numbers_of(const attention_case *c, bool documents, bool keys) {
    int64_t n = keys ? c->keys : c->queries, rows = c->tokens & BATCHED ? c->batch : 1;
    int64_t *ids = calloc((size_t)(n * rows) + 1, sizeof *ids);
    cr_assert_not_null(ids);
    for (int64_t i = 0; i < n * rows; i++) {
        int64_t at = c->tokens & SORTED ? i % n : (i % n * 37 + i / n * 5 + 3) % (n % 37 ? n : n + 1);
        ids[i] = documents ? (c->tokens & SORTED ? at / 100 : (at * 7 + i / n) % 4 - 2) : at;
        if (c->tokens & FAR && !keys && !documents && i % 2) ids[i] = INT64_MIN;
        if (c->tokens & FAR && keys && i % 3 == 1) ids[i] = INT64_MAX;
    }
    buffer b = buffer_of_ids(n * rows, ids);
    free(ids);
    return b;
}

static void set_tokens(const attention_case *c, tshi_attention *a, tensors *t) {
    const int64_t **to[2][2] = {{&a->tokens.query_position, &a->tokens.key_position},
                                {&a->tokens.query_document, &a->tokens.key_document}};
    a->tokens.batched = c->tokens & BATCHED;
    for (int i = 0; i < 4; i++) {
        if (!(c->tokens & (i / 2 ? DOCUMENTS : POSITIONS))) continue;
        t->tokens[i / 2][i % 2] = numbers_of(c, i / 2, i % 2);
        *to[i / 2][i % 2] = t->tokens[i / 2][i % 2].data;
    }
}

static bool attends(const tshi_attention *a, int64_t b, int64_t i, int64_t j) {
    const tshi_tokens *t = &a->tokens;
    int64_t self = t->batched ? b * a->queries + i : i, other = t->batched ? b * a->keys + j : j;
    bool index = j <= a->keys - (a->queries_before + a->queries + a->queries_after) + a->queries_before + i;
    if (a->lengths && j >= a->lengths[b]) return false;
    if (t->query_document && t->query_document[self] != t->key_document[other]) return false;
    return t->query_position ? t->key_position[other] <= t->query_position[self] : !a->causal || index;
}

static double dot_of(const buffer *x, int64_t at, const buffer *y, int64_t from, int64_t n) {
    double sum = 0;
    for (int64_t d = 0; d < n; d++) sum += get(x, at + d) * get(y, from + d);
    return sum;
}

static double kept(const tshi_attention *a, int64_t element) {
    uint32_t words[4];
    if (a->dropout == 0) return 1;
    tshi_philox_block(a->seed, a->stream, (uint64_t)element / 4, words);
    return tshi_uniform(words[element % 4]) >= a->dropout ? 1 / (1 - a->dropout) : 0;
}

/* One query of one head: its row of y, and what it adds to the gradients, for which the kernel reads its own y. */
static void attend(const tshi_attention *a, tensors *t, int64_t b, int64_t h, int64_t i) {
    int64_t at = ((b * a->queries + i) * a->heads + h) * a->dim, queries = a->queries_before + a->queries;
    int64_t first = (b * a->keys * a->kv_heads + (h + a->shift) / a->sharers) * a->dim, step = a->kv_heads * a->dim;
    int64_t row = ((b + a->batch_start) * a->heads_whole + h + a->head_start) * (queries + a->queries_after);
    int64_t element = (row + a->queries_before + i) * a->keys;
    double p[1024], keep[1024], most = -(double)INFINITY, sum = 0, delta = dot_of(&t->dy, at, &t->y, at, a->dim);
    for (int64_t j = 0; j < a->keys; j++) {
        if (!attends(a, b, i, j)) continue;
        keep[j] = kept(a, element + j);
        p[j] = a->scale * dot_of(&t->q, at, &t->k, first + j * step, a->dim);
        most = fmax(most, p[j]);
    }
    for (int64_t j = 0; j < a->keys; j++) sum += attends(a, b, i, j) ? p[j] = exp(p[j] - most) : 0;
    for (int64_t j = 0; j < a->keys; j++) {
        if (!attends(a, b, i, j)) continue;
        p[j] /= sum;
        double dp = keep[j] * dot_of(&t->dy, at, &t->v, first + j * step, a->dim);
        double ds = a->scale * p[j] * (dp - delta);
        for (int64_t d = 0; d < a->dim; d++) {
            int64_t key = first + j * step + d;
            t->y_wanted[at + d] += p[j] * keep[j] * get(&t->v, key);
            t->dq_wanted[at + d] += ds * get(&t->k, key);
            t->dk_wanted[key] += ds * get(&t->q, at + d);
            t->dv_wanted[key] += p[j] * keep[j] * get(&t->dy, at + d);
        }
    }
}

static double *wanted_of(const buffer *before, double beta) {
    double *wanted = calloc((size_t)before->n + 1, sizeof *wanted);
    cr_assert_not_null(wanted);
    for (int64_t i = 0; i < before->n && beta != 0; i++) wanted[i] = beta * get(before, i);
    return wanted;
}

static tensors tensors_make(const tshi_attention *a, tsh_dtype dtype, double beta) {
    int64_t queries = a->batch * a->queries * a->heads * a->dim, keys = a->batch * a->keys * a->kv_heads * a->dim;
    tensors t = {.q = buffer_random(dtype, queries, -2, 2),
                 .k = buffer_random(dtype, keys, -2, 2),
                 .v = buffer_random(dtype, keys, -2, 2),
                 .dy = buffer_random(dtype, queries, -2, 2),
                 .y = buffer_nans(dtype, queries),
                 .dq = beta != 0 ? buffer_random(dtype, queries, -2, 2) : buffer_nans(dtype, queries),
                 .dk = beta != 0 ? buffer_random(dtype, keys, -2, 2) : buffer_nans(dtype, keys),
                 .dv = beta != 0 ? buffer_random(dtype, keys, -2, 2) : buffer_nans(dtype, keys)};
    t.log_sums = statistics_make(dtype, a->batch * a->heads * a->queries);
    t.y_wanted = wanted_of(&t.y, 0);
    t.dq_wanted = wanted_of(&t.dq, beta);
    t.dk_wanted = wanted_of(&t.dk, beta);
    t.dv_wanted = wanted_of(&t.dv, beta);
    return t;
}

static void expect_all(const buffer *got, double *wanted) {
    for (int64_t i = 0; i < got->n; i++) {
        double size = 4 + fabs(wanted[i]), error = tsh_dtype_size(got->dtype) == 2 ? tested.attention : 0;
        if (fabs(get(got, i) - wanted[i]) > error + half_rounding(got->dtype, wanted[i]))
            expect_close(got, i, wanted[i], size, 200 / (tsh_dtype_size(got->dtype) == 2 ? tested.half : 1));
    }
    free(wanted);
}

static buffer scratch_of(const tshi_attention *a, tsh_dtype dtype, bool backward) {
    buffer b = statistics_make(dtype, kernels()->attention[dtype].scratch(kernel_device(), a, backward));
    memset(b.data, 0xFF, bytes_of(&b));
    return b;
}

static void check(const attention_case *c, tsh_dtype dtype, double beta) {
    const tshi_attention_ops *ops = &kernels()->attention[dtype];
    buffer lengths = buffer_of_ids(3, c->lengths);
    tshi_attention a = attention_of(c, &lengths);
    tensors t = tensors_make(&a, dtype, beta);
    set_tokens(c, &a, &t);
    buffer room = scratch_of(&a, dtype, false), more = scratch_of(&a, dtype, true);
    tshi_attention_grads g = {t.dq.data, t.dk.data, t.dv.data, beta, beta, beta};
    ops->forward(kernel_device(), &a, t.q.data, t.k.data, t.v.data, t.y.data, t.log_sums.data, room.data);
    ops->backward(kernel_device(), &a, t.q.data, t.k.data, t.v.data, t.y.data, t.log_sums.data, t.dy.data, &g,
                  more.data);
    settle();
    for (int64_t row = 0; row < a.batch * a.heads * a.queries; row++)
        attend(&a, &t, row / a.queries / a.heads, row / a.queries % a.heads, row % a.queries);
    expect_all(&t.y, t.y_wanted);
    expect_all(&t.dq, t.dq_wanted);
    expect_all(&t.dk, t.dk_wanted);
    expect_all(&t.dv, t.dv_wanted);
    free_buffers();
}

Test(attention_kernels, agree_with_plain_loops) {
    const int64_t most = !tested.is_slow ? INT64_MAX : getenv("TSHARD_TEST_SEED") ? 400000 : 1000000;
    for (int i = 0; i < CASES * FLOAT_DTYPES; i++) {
        const attention_case *c = &cases[i / FLOAT_DTYPES];
        if (c->queries * c->keys * c->heads * c->dim > most / c->batch) continue;
        check(c, float_dtypes[i % FLOAT_DTYPES], i / FLOAT_DTYPES % 2);
    }
}

/* A head alone, and as one of three, with the same values. */
static void head_alone(tsh_dtype dtype, int64_t queries, int64_t keys) {
    enum { HEADS = 3, DIM = 24 };
    const tshi_attention_ops *ops = &kernels()->attention[dtype];
    tshi_attention all = {.batch = 1,
                          .queries = queries,
                          .keys = keys,
                          .capacity = keys,
                          .heads = HEADS,
                          .kv_heads = HEADS,
                          .dim = DIM,
                          .sharers = 1,
                          .causal = true,
                          .scale = 1,
                          .heads_whole = HEADS},
                   one = all;
    one.heads = one.kv_heads = 1;
    buffer q = buffer_random(dtype, queries * HEADS * DIM, -2, 2), k = buffer_random(dtype, keys * HEADS * DIM, -2, 2);
    buffer y = buffer_make(dtype, q.n), q1 = buffer_make(dtype, q.n / HEADS), k1 = buffer_make(dtype, k.n / HEADS);
    buffer y1 = buffer_make(dtype, q1.n), room = scratch_of(&all, dtype, false);
    for (int64_t i = 0; i < q1.n; i++) set(&q1, i, get(&q, (i / DIM * HEADS + 1) * DIM + i % DIM));
    for (int64_t i = 0; i < k1.n; i++) set(&k1, i, get(&k, (i / DIM * HEADS + 1) * DIM + i % DIM));
    ops->forward(kernel_device(), &all, q.data, k.data, k.data, y.data, NULL, room.data);
    ops->forward(kernel_device(), &one, q1.data, k1.data, k1.data, y1.data, NULL, room.data);
    settle();
    for (int64_t i = 0; i < y1.n; i++)
        cr_assert_eq(get(&y1, i), get(&y, (i / DIM * HEADS + 1) * DIM + i % DIM), "element %d", (int)i);
    free_buffers();
}

Test(attention_kernels, give_a_head_the_same_bits_whatever_else_a_rank_holds) {
    for (int d = 0; d < 2; d++) {
        head_alone(float_dtypes[d], 70, 90);
        head_alone(float_dtypes[d], 1, 200);
    }
}

/* Scores of 1e4 and -1e4: the largest alone counts. */
Test(attention_kernels, do_not_overflow) {
    const tshi_attention_ops *ops = &kernels()->attention[TSH_FLOAT32];
    tshi_attention a = {
        .batch = 1, .queries = 1, .keys = 3, .capacity = 3, .heads = 1, .kv_heads = 1, .dim = 2, .sharers = 1};
    a.heads_whole = 1, a.scale = 1;
    buffer q = buffer_of(TSH_FLOAT32, 2, (double[]){100, 100}), y = buffer_make(TSH_FLOAT32, 2);
    buffer k = buffer_of(TSH_FLOAT32, 6, (double[]){-50, -50, 50, 50, 49, 50}), log_sum = buffer_make(TSH_FLOAT32, 1);
    buffer room = scratch_of(&a, TSH_FLOAT32, false);
    for (int round = 0; round < 2; round++) {
        ops->forward(kernel_device(), &a, q.data, k.data, k.data, y.data, log_sum.data, room.data);
        settle();
        for (int i = 0; i < 2; i++) expect_equal(&y, i, round ? (double)NAN : 50); /* a NaN is seen */
        cr_expect(round || fabs(get(&log_sum, 0) - 1e4) < 0.01, "a natural logarithm of %g", get(&log_sum, 0));
        set(&k, 0, (double)NAN);
    }
    free_buffers();
}

/* --- rotary positions --------------------------------------------------------------------------------------------- */

/* By what element i of the rotated ones, of `dims`, turns at a position. */
static double angle_of(const tshi_rotary *r, int64_t i, int64_t position) {
    double f = pow(r->theta, -2.0 * (double)(r->pairs ? i / 2 : i % (r->dims / 2)) / (double)r->dims);
    double s = (r->original * f / (2 * acos(-1.0)) - r->low) / (r->high - r->low);
    s = fmin(fmax(s, 0), 1);
    return (double)position * f * ((1 - s) / r->factor + s);
}

static void check_rotary(tsh_dtype dtype, bool pairs, bool batched, bool back, double beta) {
    const int64_t far[6] = {0, 1, 1000, 7, 131071, -3}, near[6] = {0, 1, 40, 7, 90, -3};
    bool scaled = pairs && batched;
    buffer positions = buffer_of_ids(6, scaled ? near : far);
    const tshi_rotary r = {.batch = 2,
                           .tokens = 3,
                           .heads = 3,
                           .dim = 11,
                           .dims = 8,
                           .pairs = pairs,
                           .batched = batched,
                           .theta = 10000,
                           .factor = scaled ? 8 : 1,
                           .low = 1,
                           .high = 4,
                           .original = scaled ? 64 : 0,
                           .positions = positions.data};
    buffer x = buffer_random(dtype, 2 * 3 * 3 * 11, -2, 2),
           y = beta != 0 ? buffer_random(dtype, x.n, -2, 2) : buffer_nans(dtype, x.n);
    buffer before = buffer_copy(&y);
    kernels()->attention[dtype].rotary(kernel_device(), &r, back, x.data, beta, y.data);
    for (int64_t n = 0; n < x.n; n++) {
        int64_t i = n % 11, token = n / 33, partner = pairs ? i ^ 1 : (i + 4) % 8;
        double wanted = get(&x, n), position = (double)(scaled ? near : far)[batched ? token : token % 3];
        if (i < 8) {
            double angle = angle_of(&r, i, (int64_t)position) * (back ? -1 : 1);
            bool is_first = pairs ? i % 2 == 0 : i < 4;
            wanted = wanted * cos(angle) + (is_first ? -1 : 1) * get(&x, n - i + partner) * sin(angle);
        }
        /* The rounding of a frequency counts as often as it turns; of float32's in double, nothing of it is left. */
        double turns = scaled || dtype == TSH_FLOAT64 ? 4 * fabs(position) : 0;
        expect_close(&y, n, (beta != 0 ? get(&before, n) : 0) + wanted, 4, 4 + turns);
    }
    if (beta == 0) {
        kernels()->attention[dtype].rotary(kernel_device(), &r, back, x.data, 0, x.data);
        expect_same_bits(&x, &y, "in place");
    }
    free_buffers();
}

Test(attention_kernels, turn_by_rotary_positions) {
    for (int bits = 0; bits < 16 * FLOAT_DTYPES * LAYOUTS; bits++) {
        lay_buffers(bits / 64);
        check_rotary(float_dtypes[bits >> 4 & 3], bits & 1, bits & 2, bits & 4, bits & 8 ? 1 : 0);
    }
}
