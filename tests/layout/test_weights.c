/* Splits by weight: known answers, plain counting, and units. */
#include "layout/layout.h"
#include "support/values.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(weights, .timeout = 120);

enum { RANKS = 64 };

static int read_numbers(char *text, int64_t *out) {
    int n = 0;
    for (char *word, *rest = text; (word = strtok_r(rest, ",", &rest));) out[n++] = strtoll(word, NULL, 10);
    return n;
}

static void check_parts(int64_t n, int ranks, const int64_t *weights, const int64_t *wanted) {
    int64_t at = 0;
    for (int i = 0; i < ranks; i++) {
        int64_t start, length;
        tsh_split_by_weight(n, ranks, weights, i, &start, &length);
        cr_assert(start == at && length == wanted[i], "part %d of %lld has [%lld, +%lld), wanted [%lld, +%lld)", i,
                  (long long)n, (long long)start, (long long)length, (long long)at, (long long)wanted[i]);
        at += length;
    }
    cr_assert_eq(at, n);
}

Test(weights, known_splits) {
    FILE *file = fopen(TSHARD_TEST_DATA "/splits/weighted_split.txt", "r");
    char line[1024], weights[512], counts[512];
    int cases = 0;
    cr_assert(file);
    while (fgets(line, sizeof line, file)) {
        int64_t w[RANKS], c[RANKS];
        long long n;
        if (line[0] == '#') continue;
        cr_assert_eq(sscanf(line, "%lld %511s -> %511s", &n, weights, counts), 3, "%s", line);
        int ranks = read_numbers(weights, w);
        cr_assert_eq(read_numbers(counts, c), ranks);
        check_parts(n, ranks, w, c);
        cases++;
    }
    fclose(file);
    cr_assert_eq(cases, 60);
}

/* The definition, in 128 bits: each part in turn that has the largest remainder gets one of the units that are left. */
static void count_plainly(int64_t n, int ranks, const int64_t *w, int64_t *out) {
    __int128 sum = 0, remainder[RANKS];
    int64_t left = n;
    for (int i = 0; i < ranks; i++) sum += w[i];
    for (int i = 0; i < ranks; i++) {
        out[i] = (int64_t)((__int128)n * w[i] / sum);
        remainder[i] = (__int128)n * w[i] % sum;
        left -= out[i];
    }
    for (; left > 0; left--) {
        int most = 0;
        for (int i = 1; i < ranks; i++) {
            if (remainder[i] > remainder[most]) most = i;
        }
        out[most]++;
        remainder[most] = -1;
    }
}

Test(weights, random_splits_up_to_2_to_the_62) {
    uint64_t next = 5;
    for (int k = 0; k < 20000; k++) {
        int64_t w[RANKS], wanted[RANKS], n = (int64_t)(tshi_mix(next++) >> (2 + k % 62));
        int ranks = 1 + (int)(tshi_mix(next++) % 9), bits = 1 + (int)(tshi_mix(next++) % 31);
        for (int i = 0; i < ranks; i++) w[i] = (int64_t)(tshi_mix(next++) & ((UINT64_C(1) << bits) - 1));
        w[tshi_mix(next++) % (unsigned)ranks] |= 1;
        count_plainly(n, ranks, w, wanted);
        check_parts(n, ranks, w, wanted);
    }
}

Test(weights, equal_weights_are_the_balanced_split) {
    for (int ranks = 1; ranks <= 9; ranks++) {
        for (int64_t n = 0; n < 40; n++) {
            int64_t w[RANKS], wanted[RANKS];
            for (int i = 0; i < ranks; i++) {
                w[i] = 7;
                tsh_split(n, ranks, i, NULL, &wanted[i]);
            }
            check_parts(n, ranks, w, wanted);
        }
    }
}

Test(weights, wrong_arguments_hold_nothing) {
    static const int64_t wrong[][2] = {{0, 0}, {-1, 2}, {INT64_MAX, INT64_MAX}};
    int64_t start = 1, length = 1;
    for (size_t i = 0; i < 3; i++) {
        tsh_split_by_weight(10, 2, wrong[i], 0, &start, &length);
        cr_assert(start == 0 && length == 0);
    }
    tsh_split_by_weight(10, 2, (int64_t[]){1, 2}, 2, &start, &length);
    cr_assert(start == 0 && length == 0);
    tsh_split_by_weight(-1, 2, (int64_t[]){1, 2}, 0, &start, &length);
    cr_assert(start == 0 && length == 0);
    tsh_split_by_weight(10, 3, NULL, 1, &start, &length);
    cr_assert(start == 4 && length == 3);
}

Test(weights, simplified) {
    int64_t equal[] = {7, 7, 7}, common[] = {6, 0, 9}, single[] = {5};
    cr_assert_null(tshi_weights_simplify(equal, 3));
    cr_assert_null(tshi_weights_simplify(single, 1));
    cr_assert_eq(tshi_weights_simplify(common, 3), common);
    cr_assert(common[0] == 2 && common[1] == 0 && common[2] == 3);
}

/* A number of units that is enough is, and one less is not, or the part would hold them by a remainder. */
Test(weights, enough_units) {
    static const int64_t w[] = {3, 0, 1};
    tshi_parts parts = {.count = 3, .weights = w}, equal = {.count = 3};
    for (int64_t wanted = 0; wanted < 50; wanted++) {
        for (int i = 0; i < 3; i += 2) {
            int64_t length, n = tshi_parts_enough(parts, i, wanted);
            tshi_parts_split(parts, n, i, NULL, &length);
            cr_assert_geq(length, wanted);
            tshi_parts_split(parts, n - 2, i, NULL, &length);
            cr_assert(wanted == 0 || i == 0 || length < wanted);
        }
        cr_assert_eq(tshi_parts_enough(equal, 2, wanted), 3 * wanted);
    }
    cr_assert_eq(tshi_parts_enough(parts, 2, INT64_MAX), INT64_MAX);
}

/* --- units -------------------------------------------------------------------------------------------------------- */

typedef struct unit_case {
    int64_t units, blocks, weights[5];
    int ranks;
    int64_t start[5], length[5]; /* blocks of each rank */
    int64_t unit[5];             /* the unit that a rank has, shared */
    int first[5], sharers[5];
} unit_case;

/* Query heads are blocks, KV heads units. A unit's ranks are neighbours; ranks of weight 0 have none. */
Test(weights, heads) {
    static const unit_case cases[] = {
        {8, 32, {8, 3}, 2, {0, 24}, {24, 8}, {-1, -1}, {0, 1}, {1, 1}},
        {2, 8, {3, 1, 1, 1}, 4, {0, 4, 6, 7}, {4, 2, 1, 1}, {0, 1, 1, 1}, {0, 1, 1, 1}, {1, 3, 3, 3}},
        {2,
         8,
         {2, 0, 1, 0, 3},
         5,
         {0, 0, 3, 0, 4},
         {3, 0, 1, 0, 4},
         {0, -1, 0, -1, 1},
         {0, 1, 0, 3, 4},
         {2, 1, 2, 1, 1}},
        {2,
         8,
         {0, 1, 1, 0, 1},
         5,
         {0, 0, 2, 0, 4},
         {0, 2, 2, 0, 4},
         {-1, 0, 0, -1, 1},
         {0, 1, 1, 3, 4},
         {1, 2, 2, 1, 1}},
        {1, 6, {1, 2, 3}, 3, {0, 1, 3}, {1, 2, 3}, {0, 0, 0}, {0, 0, 0}, {3, 3, 3}},
        {2, 4, {1, 1, 0}, 3, {0, 2, 0}, {2, 2, 0}, {0, 1, -1}, {0, 1, 2}, {1, 1, 1}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const unit_case *c = &cases[k];
        tsh_layout query = TSH_SHARD_UNITS(0, c->units, c->blocks), key = TSH_SHARD_SHARED(0, c->units);
        tshi_parts parts = {.count = c->ranks, .weights = c->weights};
        for (int i = 0; i < c->ranks; i++) {
            int64_t start = 0, length = c->blocks;
            int first;
            tshi_layout_split(&query, c->blocks, parts, i, &start, &length);
            cr_assert(length == c->length[i] && (!length || start == c->start[i]),
                      "case %zu: rank %d has [%lld, +%lld)", k, i, (long long)start, (long long)length);
            cr_assert_eq(tshi_layout_sharers(&key, parts, i, &first), c->sharers[i], "case %zu: rank %d", k, i);
            cr_assert_eq(first, c->first[i], "case %zu: rank %d", k, i);
            start = 0, length = c->units;
            tshi_layout_split(&key, c->units, parts, i, &start, &length);
            if (k > 0)
                cr_assert(c->unit[i] < 0 ? length == 0 : length == 1 && start == c->unit[i], "case %zu: %d", k, i);
        }
    }
}
