/* All-reduce by a function of the program's: products of matrices, which do not commute, against a plain loop. */
#include "support/ranks.h"
#include "tshard/dist.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(own_reduction, .timeout = 120);

enum { ITEM = 4, MOST = 9 };

/* Of 2 x 2 matrices, whole numbers: exact. */
static void product(void *user, tsh_dtype dtype, int64_t count, const void *from, void *into) {
    int *wrong = user;
    double *a = into;
    const double *b = from;
    *wrong += dtype != TSH_FLOAT64 || count % ITEM != 0 || count == 0;
    for (int64_t i = 0; i < count; i += ITEM, a += ITEM, b += ITEM) {
        const double c[ITEM] = {a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3], a[2] * b[0] + a[3] * b[2],
                                a[2] * b[1] + a[3] * b[3]};
        memcpy(a, c, sizeof c);
    }
}

static void fill(int rank, int64_t n, double *out) {
    for (int64_t i = 0; i < n; i++) out[i] = (double)((7 * i + 3 * rank + i * rank) % 5 - 2);
}

static void products(tshi_rank *r, void *arg) {
    (void)arg;
    for (int items = 0; items <= MOST; items++) {
        double wanted[MOST * ITEM], one[MOST * ITEM];
        int wrong = 0;
        int64_t n = items * ITEM;
        tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT64, n);
        fill(0, n, wanted);
        for (int rank = 1; rank < r->size; rank++) {
            fill(rank, n, one);
            if (n) product(&wrong, TSH_FLOAT64, n, one, wanted);
        }
        fill(r->rank, n, one);
        tshi_check_ok(r, tsh_tensor_write(x, one, n));
        tshi_check_ok(r, tsh_all_reduce_with(tsh_world_group(r->world), x, ITEM, product, &wrong));
        tshi_check_ok(r, tsh_tensor_read(x, one, n));
        tshi_check(r, memcmp(one, wanted, (size_t)n * sizeof *one) == 0, "%d matrices: other products", items);
        tshi_check(r, wrong == 0, "%d calls with half a matrix", wrong);
        tsh_tensor_release(x);
    }
}

Test(own_reduction, joins_in_the_order_of_the_ranks) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, products, NULL));
    cr_assert_str_empty(tshi_test_run_threads(3, products, NULL));
}

static void sends_as_much_as_a_ring(tshi_rank *r, void *arg) {
    int wrong = 0;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT64, 3 * ITEM);
    (void)arg;
    tsh_group_reset_stats(tsh_world_group(r->world));
    tshi_check_ok(r, tsh_all_reduce_with(tsh_world_group(r->world), x, ITEM, product, &wrong));
    tsh_communication_stats stats = tsh_group_stats(tsh_world_group(r->world));
    uint64_t sent = stats.bytes[TSH_COLLECTIVE_ALL_TO_ALL] + stats.bytes[TSH_COLLECTIVE_ALL_GATHER];
    tshi_check(r, sent == 2 * 2 * ITEM * 8, "%llu bytes", (unsigned long long)sent);
    tsh_tensor_release(x);
}

Test(own_reduction, sends_as_much_as_a_ring) {
    cr_assert_str_empty(tshi_test_run(3, sends_as_much_as_a_ring, NULL));
}

/* What is wrong on one rank reaches the others, and the next call is well. */
static void wrong_on_one(tshi_rank *r, void *which) {
    int wrong = 0, what = *(const int *)which;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT64, 3 * ITEM);
    bool mine = r->rank == 1;
    tsh_status status = tsh_all_reduce_with(group, mine && what == 2 ? NULL : x, mine && what == 1 ? 5 : ITEM,
                                            mine && what == 0 ? NULL : product, &wrong);
    const char *words[] = {"join is NULL", "items of 5 elements in 12", "tensor is NULL"};
    tshi_check(r, status == (mine ? TSH_ERR_ARGUMENT : TSH_ERR_PEER), "%s", tsh_status_name(status));
    tshi_check(r, strstr(tsh_error_message(), words[what]), "'%s'", tsh_error_message());
    tshi_check_ok(r, tsh_all_reduce_with(group, x, ITEM, product, &wrong));
    tsh_tensor_release(x);
}

Test(own_reduction, an_argument_that_is_wrong_on_one_rank_is_known_on_all) {
    for (int what = 0; what < 3; what++) cr_assert_str_empty(tshi_test_run(3, wrong_on_one, &what));
}
