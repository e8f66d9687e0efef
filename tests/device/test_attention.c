/* Attention's kernels: values and gradients, the same bits for a head however many a rank holds, large scores. */
#include "attention_cases.h"

TestSuite(attention_kernels, .timeout = 120);

Test(attention_kernels, agree_with_plain_loops) {
    check_all_cases(NULL, kernels()->attention, INT64_MAX);
}

/* A head alone, and as one of three, with the same values. */
static void head_alone(tsh_dtype dtype, int64_t queries, int64_t keys) {
    enum { HEADS = 3, DIM = 24 };
    const tshi_attention_ops *ops = &kernels()->attention[dtype];
    tshi_attention all = {.batch = 1,
                          .queries = queries,
                          .keys = keys,
                          .room = keys,
                          .heads = HEADS,
                          .kv_heads = HEADS,
                          .dim = DIM,
                          .sharers = 1,
                          .causal = true,
                          .scale = 1,
                          .heads_whole = HEADS},
                   one = all;
    one.heads = one.kv_heads = 1;
    size_t size = tsh_dtype_size(dtype);
    buffer q = buffer_random(dtype, queries * HEADS * DIM, -2, 2), k = buffer_random(dtype, keys * HEADS * DIM, -2, 2);
    buffer y = buffer_make(dtype, q.n), q1 = buffer_make(dtype, q.n / HEADS), k1 = buffer_make(dtype, k.n / HEADS);
    buffer y1 = buffer_make(dtype, q1.n), room = buffer_make(dtype, ops->scratch(&all, false));
    for (int64_t i = 0; i < queries; i++)
        memcpy((char *)q1.data + (size_t)(i * DIM) * size, (char *)q.data + (size_t)((i * HEADS + 1) * DIM) * size,
               DIM * size);
    for (int64_t j = 0; j < keys; j++)
        memcpy((char *)k1.data + (size_t)(j * DIM) * size, (char *)k.data + (size_t)((j * HEADS + 1) * DIM) * size,
               DIM * size);
    ops->forward(NULL, &all, q.data, k.data, k.data, y.data, NULL, room.data);
    ops->forward(NULL, &one, q1.data, k1.data, k1.data, y1.data, NULL, room.data);
    for (int64_t i = 0; i < y1.n; i++)
        cr_assert_eq(get(&y1, i), get(&y, (i / DIM * HEADS + 1) * DIM + i % DIM), "element %d", (int)i);
    buffer *buffers[] = {&q, &k, &y, &q1, &k1, &y1, &room};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) buffer_free(buffers[i]);
}

Test(attention_kernels, give_a_head_the_same_bits_whatever_else_a_rank_holds) {
    for (int d = 0; d < 2; d++) {
        head_alone(float_dtypes[d], 70, 90);
        head_alone(float_dtypes[d], 1, 200);
    }
}

/* Scores of 1e4 and -1e4: the largest alone counts. */
Test(attention_kernels, do_not_overflow) {
    float q[2] = {100, 100}, k[6] = {-50, -50, 50, 50, 49, 50}, y[2], log_sum;
    const tshi_attention_ops *ops = &kernels()->attention[TSH_FLOAT32];
    tshi_attention a = {.batch = 1,
                        .queries = 1,
                        .keys = 3,
                        .room = 3,
                        .heads = 1,
                        .kv_heads = 1,
                        .dim = 2,
                        .sharers = 1,
                        .scale = 1,
                        .heads_whole = 1};
    buffer room = buffer_make(TSH_FLOAT32, ops->scratch(&a, false));
    ops->forward(NULL, &a, q, k, k, y, &log_sum, room.data);
    cr_assert(y[0] == 50 && y[1] == 50, "%g %g", y[0], y[1]);
    k[0] = NAN;
    ops->forward(NULL, &a, q, k, k, y, &log_sum, room.data);
    cr_assert(isnan(y[0]) && isnan(y[1]), "a score that is no number has to be seen");
    buffer_free(&room);
}

Test(attention_kernels, round_once_to_16_bits) {
    for (int i = 0; i < ATTENTION_CASES; i++) {
        check_half(NULL, kernels()->attention, TSH_BFLOAT16, 0, &attention_cases[i]);
        check_half(NULL, kernels()->attention, TSH_FLOAT16, 0, &attention_cases[i]);
    }
}
