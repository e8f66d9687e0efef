/* Exchanges of boxes: random ones against the plain definition, calls and bytes, failures, plans. */
#include "support/exchanges.h"

#include <criterion/criterion.h>

TestSuite(redistribute, .timeout = 120);

typedef struct series {
    uint32_t first, count;
    bool messages;
} series;

static void random_exchanges(tshi_rank *r, void *arg) {
    const series *s = arg;
    for (uint32_t i = 0; i < s->count && tshi_try_exchange(r, s->first + i, s->messages); i++) continue;
    tshi_check_ok(r, tshi_exchange_flush(r->world));
}

Test(redistribute, random_exchanges_in_a_group) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, random_exchanges, &(series){0, 1500, false}));
    cr_assert_str_empty(tshi_test_run(8, random_exchanges, &(series){5000, 600, false}));
    cr_assert_str_empty(tshi_test_run_threads(5, random_exchanges, &(series){9000, 300, false}));
}

Test(redistribute, random_exchanges_as_messages) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, random_exchanges, &(series){20000, 800, true}));
    cr_assert_str_empty(tshi_test_run(8, random_exchanges, &(series){25000, 400, true}));
    cr_assert_str_empty(tshi_test_run_threads(3, random_exchanges, &(series){29000, 300, true}));
}
