/* The order of a data set: a permutation for each epoch, computed for one position at a time. */
#include "base/base.h"
#include "tshard/train.h"

/* Rounds of the Feistel network: 6 are enough for an order that looks random, and an odd one more mixes both halves. */
#define ROUNDS 7

/* One word of Philox 4x32-10 (device/kernels.h). */
static uint32_t philox(uint64_t seed, uint64_t stream, uint32_t a, uint32_t b) {
    uint32_t c[4] = {a, b, (uint32_t)stream, (uint32_t)(stream >> 32)}, k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int round = 0; round < 10; round++) {
        uint64_t p = (uint64_t)c[0] * 0xD2511F53u, q = (uint64_t)c[2] * 0xCD9E8D57u;
        c[0] = (uint32_t)(q >> 32) ^ c[1] ^ k[0];
        c[1] = (uint32_t)q;
        c[2] = (uint32_t)(p >> 32) ^ c[3] ^ k[1];
        c[3] = (uint32_t)p;
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    return c[0];
}

/* A permutation of [0, 4^half), which the seed and the epoch choose. */
static uint64_t permute(uint64_t seed, uint64_t epoch, int half, uint64_t x) {
    uint32_t mask = (uint32_t)((UINT64_C(1) << half) - 1), left = (uint32_t)(x >> half), right = (uint32_t)x & mask;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t next = left ^ (philox(seed, epoch, right, round) & mask);
        left = right;
        right = next;
    }
    return (uint64_t)left << half | right;
}

/* Cycle walking: a position outside the data set is permuted again, until one within comes. The range has fewer than
 * four times as many numbers as the data set. */
int64_t tsh_batches_item(const tsh_batches *batches, int64_t position) {
    if (!batches || batches->items < 1 || position < 0) return -1;
    uint64_t n = (uint64_t)batches->items, epoch = (uint64_t)position / n, x = (uint64_t)position % n;
    int half = 1;
    if (batches->in_order) return (int64_t)x;
    while (half < 31 && UINT64_C(1) << 2 * half < n) half++;
    do x = permute(batches->seed, epoch, half, x);
    while (x >= n);
    return (int64_t)x;
}

tsh_status tsh_batches_rows(const tsh_batches *batches, int64_t number, const tsh_box *box, int64_t *items) {
    if (!batches || !box || !items || number < 0 || batches->batch < 1 || batches->items < 1)
        return tshi_fail(TSH_ERR_ARGUMENT, "batches_rows: a data set, a batch of at least one item and its number");
    if (batches->items > INT64_C(1) << 62 || box->start[0] < 0 || box->start[0] + box->length[0] > batches->batch)
        return tshi_fail(TSH_ERR_ARGUMENT, "batches_rows: rows %lld to %lld of a batch of %lld",
                         (long long)box->start[0], (long long)(box->start[0] + box->length[0]),
                         (long long)batches->batch);
    if (number > INT64_MAX / batches->batch - 1)
        return tshi_fail(TSH_ERR_OVERFLOW, "batches_rows: the number is too large");
    for (int64_t i = 0; i < box->length[0]; i++)
        items[i] = tsh_batches_item(batches, number * batches->batch + box->start[0] + i);
    return TSH_OK;
}
