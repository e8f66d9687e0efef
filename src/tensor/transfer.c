/* Reading and writing a tensor's elements. */
#include "tensor/tensor.h"

#include <math.h>

static tsh_status check_transfer(const char *what, const tsh_tensor *tensor, const void *host, int64_t count) {
    if (!tensor || !host || !tensor->storage) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: a tensor with memory and a buffer are required", what);
    }
    if (count == tensor->numel) return TSH_OK;
    return tshi_fail(TSH_ERR_SHAPE, "%s: %lld elements given, this rank holds %lld", what, (long long)count,
                     (long long)tensor->numel);
}

tsh_status tsh_tensor_write(tsh_tensor *tensor, const void *from, int64_t count) {
    tsh_status status = check_transfer("tensor_write", tensor, from, count);
    if (status != TSH_OK) return status;
    tsh_device *device = tshi_device_of(tensor);
    device->ops->copy.from_host(device, tsh_tensor_local_nbytes(tensor), from, tshi_data(tensor));
    return TSH_OK;
}

tsh_status tsh_tensor_read(const tsh_tensor *tensor, void *to, int64_t count) {
    tsh_status status = check_transfer("tensor_read", tensor, to, count);
    if (status != TSH_OK) return status;
    tsh_device *device = tshi_device_of(tensor);
    device->ops->copy.to_host(device, tsh_tensor_local_nbytes(tensor), tshi_data(tensor), to);
    return device->ops->check(device);
}

/* Copies the local part row by row of the last dim; an index in all dims before it says where the row begins in
 * `whole`. */
static void write_rows(tsh_tensor *tensor, const char *whole, const int64_t *start) {
    const tshi_shape *s = &tensor->shape;
    size_t size = tsh_dtype_size(tensor->dtype);
    int last = s->ndim - 1;
    size_t bytes = (size_t)s->local[last] * size;
    tsh_device *device = tshi_device_of(tensor);
    char *to = tshi_data(tensor);
    for (int64_t row = 0, rows = tshi_rows(tensor); row < rows; row++, to += bytes) {
        int64_t at = 0, stride = 1, rest = row;
        for (int d = last; d >= 0; d--) {
            int64_t index = d == last ? 0 : rest % s->local[d];
            if (d != last) rest /= s->local[d];
            at += (start[d] + index) * stride;
            stride *= s->global[d];
        }
        device->ops->copy.from_host(device, bytes, whole + (size_t)at * size, to);
    }
}

tsh_status tsh_tensor_write_whole(tsh_tensor *tensor, const void *whole) {
    char text[160];
    if (!tensor || !whole || !tensor->storage) {
        return tshi_fail(TSH_ERR_ARGUMENT, "tensor_write_whole: a tensor with memory and a buffer are required");
    }
    for (int a = 0; a < tensor->mesh->axes; a++) {
        if (tensor->layout[a].kind == TSH_KIND_REPLICATED || tensor->layout[a].kind == TSH_KIND_SHARD) continue;
        return tshi_fail(TSH_ERR_LAYOUT, "tensor_write_whole: %s is no part of a whole",
                         tsh_tensor_describe(tensor, text, sizeof text));
    }
    if (tensor->shape.ndim == 0) return tsh_tensor_write(tensor, whole, 1);
    int64_t start[TSH_MAX_DIMS];
    for (int d = 0; d < tensor->shape.ndim; d++)
        start[d] = tshi_shape_start(tensor->mesh, &tensor->shape, tensor->layout, d);
    if (tensor->numel > 0) write_rows(tensor, whole, start);
    return TSH_OK;
}

tsh_status tsh_tensor_fill(tsh_tensor *tensor, double value) {
    if (!tensor || !tensor->storage)
        return tshi_fail(TSH_ERR_ARGUMENT, "tensor_fill: a tensor with memory is required");
    tsh_device *device = tshi_device_of(tensor);
    device->ops->copy.fill(device, tensor->dtype, tensor->numel, value, tshi_data(tensor));
    return TSH_OK;
}

double tsh_tensor_item(const tsh_tensor *tensor) {
    char text[160];
    double value = NAN;
    if (!tensor || !tensor->storage || tensor->numel != 1 || tshi_dtype_is_complex(tensor->dtype)) {
        tshi_fail(TSH_ERR_SHAPE, "tensor_item: one real element wanted, %s given",
                  tsh_tensor_describe(tensor, text, sizeof text));
        return value;
    }
    tsh_device *device = tshi_device_of(tensor);
    if (device->ops->kind == TSH_CPU) {
        device->ops->copy.convert(device, 1, tensor->dtype, tshi_data(tensor), TSH_FLOAT64, &value);
        return value;
    }
    double *there = device->ops->memory.alloc(device, sizeof value);
    if (!there) return value;
    device->ops->copy.convert(device, 1, tensor->dtype, tshi_data(tensor), TSH_FLOAT64, there);
    device->ops->copy.to_host(device, sizeof value, there, &value);
    device->ops->memory.release(device, there);
    return device->ops->check(device) == TSH_OK ? value : NAN;
}
