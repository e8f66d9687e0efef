/* Statistics of rows that are sharded, such as maxima and sums. */
#include "functional/functional.h"

tsh_tensor *tshi_statistics_scratch(tsh_call *call, const tsh_tensor *x, int64_t n) {
    return tsh_call_scratch(call, tshi_dtype_sum(x->dtype), n);
}

tsh_tensor *tshi_statistics_save(tsh_call *call, int slot, const tsh_tensor *x, int64_t n) {
    return tsh_call_save(call, slot, tshi_dtype_sum(x->dtype), n);
}

unsigned tshi_axes_splitting(const tsh_tensor *x, int dim) {
    unsigned axes = 0;
    for (int a = 0; a < x->mesh->axes; a++) {
        bool sharded = x->layout[a].kind == TSH_KIND_SHARD && x->mesh->axis[a].size > 1;
        if (sharded && (dim < 0 || x->layout[a].dim == dim)) axes |= 1u << a;
    }
    return axes;
}

tsh_status tshi_statistics_reduce(unsigned axes, tsh_tensor *statistics, tsh_reduce_op op) {
    tsh_status status = TSH_OK;
    for (int a = 0; a < statistics->mesh->axes && status == TSH_OK; a++) {
        if (axes >> a & 1u) status = tsh_all_reduce(statistics->mesh->axis[a].group, statistics, op);
    }
    return status;
}

tsh_status tsh_call_reduce(const tsh_call *call, const tsh_tensor *x, int dim, tsh_tensor *statistics,
                           tsh_reduce_op op) {
    if (!call || !x || !statistics || dim < -1 || dim >= x->shape.ndim) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "call_reduce: a call, a tensor, one of its dims (-1: any) and statistics are required");
    }
    return tshi_statistics_reduce(tshi_axes_splitting(x, dim), statistics, op);
}
