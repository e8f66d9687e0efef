/* Values of messages over NCCL's stand-in. */
#ifndef TSHARD_NCCL_VALUES_H
#define TSHARD_NCCL_VALUES_H

#include "cuda/nccl_ranks.h"
#include "support/values.h"

#define MOST 4000

static inline void put(tsh_tensor *x, int64_t salt) {
    char data[MOST * 16];
    for (int64_t i = 0; i < x->numel; i++) {
        tshi_put(x->dtype, data, i, tshi_value(x->dtype, TSH_REDUCE_SUM, (int)(salt % 60), i + salt));
    }
    tsh_tensor_write(x, data, x->numel);
}

static inline bool holds(tshi_rank *r, const tsh_tensor *x, int64_t salt) {
    char data[MOST * 16];
    if (!tshi_check_ok(r, tsh_tensor_read(x, data, x->numel))) return false;
    for (int64_t i = 0; i < x->numel; i++) {
        if (tshi_is(x->dtype, data, i, tshi_value(x->dtype, TSH_REDUCE_SUM, (int)(salt % 60), i + salt))) continue;
        return tshi_check(r, false, "%s [%lld]: element %lld is wrong", tsh_dtype_name(x->dtype), (long long)x->numel,
                          (long long)i);
    }
    return true;
}

#endif
