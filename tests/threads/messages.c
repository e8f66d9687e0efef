/* Messages and calls that do not wait, with ranks as threads, for a build with ThreadSanitizer. */
#include "support/collectives.h"
#include "tensor/tensor.h"

static void started(tshi_rank *r, void *arg) {
    (void)arg;
    const int64_t sizes[] = {0, 13, 600, 6000};
    tshi_try_started(true);
    for (int i = 0; i < 4; i++) {
        if (!tshi_try_all(r, tsh_world_group(r->world), TSH_FLOAT32, sizes[i])) return;
    }
}

/* Messages from every rank to every rank, by letter, by cell and through the heap, beside a sum. */
static void crossing(tshi_rank *r, void *arg) {
    (void)arg;
    enum { MOST = 2 * 4 * 4 };
    tsh_group *group = tsh_world_group(r->world);
    const int64_t sizes[] = {1, 100, 900, 5};
    for (int round = 0; round < 60 && !r->failed; round++) {
        tsh_work *works[MOST], *sum;
        tsh_tensor *tensors[MOST], *x = tshi_test_vector(r, TSH_INT64, 1000);
        int n = 0;
        tshi_check_ok(r, tsh_all_reduce_async(group, x, TSH_REDUCE_SUM, &sum));
        for (int i = 0; i < 4; i++) {
            for (int peer = 0; peer < r->size; peer++) {
                if (peer == r->rank) continue;
                tensors[n] = tshi_test_vector(r, TSH_INT64, sizes[i]);
                tshi_check_ok(r, tsh_recv_async(group, tensors[n], peer, &works[n]));
                n++;
                tensors[n] = tshi_test_vector(r, TSH_INT64, sizes[i]);
                tsh_tensor_fill(tensors[n], 10 * round + i);
                tshi_check_ok(r, tsh_send_async(group, tensors[n], peer, &works[n]));
                n++;
            }
        }
        tshi_check_ok(r, tsh_barrier(group));
        for (int k = n - 1, each = 2 * (r->size - 1); k >= 0; k--) {
            tshi_check_ok(r, tsh_work_wait(works[k]));
            const int64_t *data = tsh_tensor_data(tensors[k]);
            int64_t last = tsh_tensor_local_numel(tensors[k]) - 1, wanted = 10 * round + k / each;
            tshi_check(r, data[last] == wanted, "%lld, not %lld", (long long)data[last], (long long)wanted);
            tsh_work_release(works[k]);
            tsh_tensor_release(tensors[k]);
        }
        tsh_work_release(sum);
        tsh_tensor_release(x);
    }
}

int main(void) {
    int failed = tshi_test_report_threads("started", 2, started) + tshi_test_report_threads("started", 3, started);
    return failed + tshi_test_report_threads("crossing", 2, crossing) +
                   tshi_test_report_threads("crossing", 4, crossing)
               ? 1
               : 0;
}
