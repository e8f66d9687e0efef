/* Exchanges of boxes with ranks as threads, for a build with ThreadSanitizer. */
#include "support/exchanges.h"

static void exchanges(tshi_rank *r, void *arg) {
    (void)arg;
    for (uint32_t seed = 0; seed < 150 && tshi_try_exchange(r, seed, seed % 3 == 0); seed++) continue;
    tshi_check_ok(r, tshi_exchange_flush(r->world));
}

int main(void) {
    int failed = tshi_test_report_threads("exchanges", 2, exchanges);
    return failed + tshi_test_report_threads("exchanges", 4, exchanges) ? 1 : 0;
}
