/* Collectives with ranks as threads, for a build with ThreadSanitizer. */
#include "support/collectives.h"

static void everything(tshi_rank *r, void *arg) {
    (void)arg;
    static const tsh_dtype dtypes[] = {TSH_FLOAT32, TSH_BFLOAT16, TSH_INT64};
    static const int64_t sizes[] = {0, 1, 13, 250, 600, 1500, 6000};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            if (!tshi_try_all(r, tsh_world_group(r->world), dtypes[d], sizes[i])) return;
        }
    }
}

/* Contributing ranks are ahead of the root; roots change, and each call has a value of its own. */
static void early_return(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 200);
    float *data = tsh_tensor_data(x);
    for (int call = 0; call < 400 && !r->failed; call++) {
        int root = call / 25 % r->size;
        data[199] = (float)(r->rank == root ? call : -1);
        tshi_check_ok(r, tsh_broadcast(group, x, root));
        tshi_check(r, data[199] == (float)call, "broadcast %d returned %g", call, data[199]);
        if (call % 50 == 0) tshi_check_ok(r, tsh_reduce_to_root(group, x, TSH_REDUCE_MAX, (root + 1) % r->size));
    }
    tsh_tensor_release(x);
}

static void meshes(tshi_rank *r, void *arg) {
    (void)arg;
    for (int i = 0; i < 5; i++) {
        tsh_mesh *mesh = NULL;
        if (!tshi_check_ok(r, tsh_mesh_create(r->world, "data=2,model=2", &mesh))) return;
        tshi_try_all(r, tsh_mesh_group(mesh, "data"), TSH_FLOAT32, 1200);
        tshi_try_all(r, tsh_mesh_group(mesh, "model"), TSH_FLOAT64, 100);
        tsh_mesh_destroy(mesh);
    }
}

static void failures(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    for (int round = 0; round < 6; round++) {
        tsh_status status = TSH_OK;
        for (int i = 0; i < 20 && status == TSH_OK; i++) {
            if (r->rank == round % r->size && i == 3 * round) tsh_world_fail(r->world, "enough");
            status = tsh_barrier(group);
        }
        tshi_check(r, status == TSH_ERR_PEER || status == TSH_ERR_STATE, "%s", tsh_status_name(status));
        if (!tshi_check_ok(r, tsh_world_recover(r->world))) return;
        if (!tshi_try_all_reduce(r, group, TSH_FLOAT32, TSH_REDUCE_SUM, 3000)) return;
    }
    /* Calls that do not match; rank 0 returns early, and gets the error in its next call. */
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 10);
    tsh_status status = r->rank ? tsh_all_reduce(group, x, TSH_REDUCE_SUM) : tsh_broadcast(group, x, 0);
    tshi_check_status(r, status, r->rank ? TSH_ERR_MISMATCH : TSH_OK, r->rank ? "rank 0: broadcast" : "");
    status = tsh_barrier(group);
    tshi_check_status(r, status, r->rank ? TSH_ERR_PEER : TSH_ERR_MISMATCH, "rank 0: broadcast");
    tsh_tensor_release(x);
}

int main(void) {
    int failed =
        tshi_test_report_threads("everything", 2, everything) + tshi_test_report_threads("everything", 3, everything) +
        tshi_test_report_threads("early return", 2, early_return) +
        tshi_test_report_threads("early return", 3, early_return) + tshi_test_report_threads("meshes", 4, meshes);
    return failed + tshi_test_report_threads("failures", 2, failures) +
                   tshi_test_report_threads("failures", 4, failures)
               ? 1
               : 0;
}
