/* The order of data: a permutation in each epoch, the same at any number of ranks. */
#include "tshard/train.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void is_permutation(int64_t n, uint64_t seed, int64_t epoch) {
    const tsh_batches b = {.items = n, .batch = 1, .seed = seed};
    char *seen = calloc((size_t)n, 1);
    for (int64_t i = 0; i < n; i++) {
        int64_t item = tsh_batches_item(&b, epoch * n + i);
        cr_assert(item >= 0 && item < n && !seen[item], "%lld of %lld, epoch %lld: item %lld", (long long)i,
                  (long long)n, (long long)epoch, (long long)item);
        seen[item] = 1;
    }
    free(seen);
}

Test(batches, each_epoch_has_each_item_once, .timeout = 60) {
    for (int64_t n = 1; n < 70; n++) is_permutation(n, (uint64_t)n, n % 3);
    is_permutation(1000, 1, 0);
    is_permutation(65536, 2, 5);
    is_permutation(65537, 3, 1);
}

Test(batches, epochs_and_seeds_differ, .timeout = 60) {
    const tsh_batches a = {.items = 1000, .batch = 10, .seed = 1}, b = {.items = 1000, .batch = 10, .seed = 2};
    int same_epoch = 0, same_seed = 0, fixed = 0;
    for (int64_t i = 0; i < 1000; i++) {
        same_epoch += tsh_batches_item(&a, i) == tsh_batches_item(&a, 1000 + i);
        same_seed += tsh_batches_item(&a, i) == tsh_batches_item(&b, i);
        fixed += tsh_batches_item(&a, i) == i;
    }
    cr_assert(same_epoch < 10 && same_seed < 10 && fixed < 10, "%d %d %d are alike", same_epoch, same_seed, fixed);
}

/* The mean distance of neighbours in a random order is a third of the items; and no residue of positions prefers an
 * item. */
Test(batches, looks_random, .timeout = 60) {
    enum { N = 30000 };
    const tsh_batches b = {.items = N, .batch = 1, .seed = 7};
    double distance = 0, halves[2] = {0};
    for (int64_t i = 0; i < N; i++) {
        int64_t here = tsh_batches_item(&b, i);
        distance += fabs((double)(here - tsh_batches_item(&b, (i + 1) % N))) / N;
        halves[i % 2] += (double)here / (N / 2);
    }
    cr_assert(fabs(distance / (N / 3.0) - 1) < 0.02, "distance %g", distance);
    cr_assert(fabs(halves[0] / halves[1] - 1) < 0.02, "%g %g", halves[0], halves[1]);
}

Test(batches, rows_of_boxes_are_those_of_the_whole, .timeout = 60) {
    const tsh_batches b = {.items = 37, .batch = 8, .seed = 3};
    int64_t whole[8], part[8];
    for (int64_t number = 0; number < 20; number++) {
        cr_assert(tsh_batches_rows(&b, number, &(tsh_box){.length = {8}}, whole) == TSH_OK);
        for (int64_t start = 0; start < 8; start++) {
            tsh_box box = {.start = {start}, .length = {8 - start}};
            cr_assert(tsh_batches_rows(&b, number, &box, part) == TSH_OK);
            cr_assert(memcmp(part, whole + start, (size_t)(8 - start) * sizeof *part) == 0);
        }
    }
}

Test(batches, wrong_use, .timeout = 60) {
    const tsh_batches b = {.items = 37, .batch = 8};
    int64_t items[8];
    tsh_box box = {.start = {1}, .length = {8}};
    cr_assert(tsh_batches_rows(&b, 0, &box, items) == TSH_ERR_ARGUMENT);
    cr_assert(tsh_batches_rows(NULL, 0, &box, items) == TSH_ERR_ARGUMENT);
    box.start[0] = 0;
    cr_assert(tsh_batches_rows(&b, INT64_MAX / 8, &box, items) == TSH_ERR_OVERFLOW);
    cr_assert(tsh_batches_rows(&b, -1, &box, items) == TSH_ERR_ARGUMENT);
    cr_assert(tsh_batches_item(&b, -1) == -1 && tsh_batches_item(&(tsh_batches){0}, 0) == -1);
    cr_assert(tsh_batches_item(&(tsh_batches){.items = 5, .in_order = true}, 7) == 2);
}
