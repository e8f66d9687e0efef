/* NaNs and infinities among this rank's elements. */
#include "tensor/tensor.h"

#include <math.h>

/* *sum = the sum of the squares of `data`, of x's size and dtype: NaN only where an element is. */
static tsh_status sum_squares(const tsh_tensor *x, const void *data, double *sum) {
    tsh_device *device = tshi_device_of(x);
    double *there = device->ops->memory.alloc(device, sizeof *there);
    if (!there) return TSH_ERR_MEMORY;
    device->ops->copy.zero(device, sizeof *there, there);
    device->ops->sum[x->dtype].squares(device, x->numel, data, there);
    device->ops->copy.to_host(device, sizeof *there, there, sum);
    device->ops->memory.release(device, there);
    return device->ops->check(device);
}

tsh_status tshi_tensor_look_for(tshi_strange strange, const tsh_tensor *x, bool *found) {
    tsh_device *device = tshi_device_of(x);
    const void *data = tshi_data(x);
    tsh_tensor *products = NULL;
    double sum = 0;
    *found = false;
    if (!data || x->numel == 0 || device->captures || !tshi_device_computes(device, x->dtype)) return TSH_OK;
    tsh_status status = TSH_OK;
    if (strange == TSHI_NOT_FINITE) { /* 0 times an infinity is NaN */
        status = tshi_tensor_scratch(x->mesh, x->dtype, x->numel, &products);
        if (status == TSH_OK)
            device->ops->elementwise[x->dtype].axpby(device, x->numel, 0, data, 0, NULL, tshi_data(products));
        data = tshi_data(products);
    }
    if (status == TSH_OK) status = sum_squares(x, data, &sum);
    tshi_tensor_release(products);
    *found = isnan(sum);
    return status;
}
