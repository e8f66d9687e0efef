/* Values that depend only on the global index, the same in any layouts. */
#include "tensor/tensor.h"

#include <math.h>

bool tshi_tensor_is_first_term(const tsh_tensor *tensor) {
    for (int a = 0; a < tensor->mesh->axes; a++) {
        if (tensor->layout[a].kind == TSH_KIND_PARTIAL && tensor->mesh->axis[a].index != 0) return false;
    }
    return true;
}

tsh_status tshi_check_distribution(const char *what, bool normal, double a, double b) {
    if (isfinite(a) && isfinite(b) && (normal ? b >= 0 : a <= b)) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s: %s %g, %g is not a distribution", what,
                     normal ? "mean and deviation" : "range", a, b);
}

void tshi_tensor_draw(tsh_tensor *tensor, bool normal, uint64_t seed, uint64_t stream, double a, double b) {
    tsh_device *device = tshi_device_of(tensor);
    if (tensor->numel == 0 || !tshi_tensor_is_first_term(tensor)) return;
    for (int64_t i = 0; i < tshi_tensor_blocks(tensor); i++) {
        int64_t offset;
        tshi_block block = tshi_tensor_block(tensor, i, &offset);
        void *to = (char *)tshi_data(tensor) + (size_t)offset * tsh_dtype_size(tensor->dtype);
        if (normal) {
            device->ops->random[tensor->dtype].normal(device, &block, seed, stream, a, b, to);
        } else {
            device->ops->random[tensor->dtype].uniform(device, &block, seed, stream, a, b, to);
        }
    }
}

static void clear_row(const tsh_tensor *t, int64_t row) {
    row -= tshi_shape_start(t->mesh, &t->shape, t->layout, 0);
    if (row < 0 || row >= t->shape.local[0] || t->numel == 0) return;
    size_t bytes = tsh_tensor_local_nbytes(t) / (size_t)t->shape.local[0];
    t->mesh->device->ops->copy.zero(t->mesh->device, bytes, (char *)tshi_data(t) + (size_t)row * bytes);
}

void tshi_tensor_start(tsh_tensor *tensor, const tshi_initial *initial) {
    void *to = tshi_data_to_write(tensor);
    if (initial->kind == TSHI_STARTS_CONSTANT) {
        tsh_device *device = tshi_device_of(tensor);
        device->ops->copy.fill(device, tensor->dtype, tensor->numel, initial->a, to);
    } else {
        tshi_tensor_draw(tensor, initial->kind == TSHI_STARTS_NORMAL, initial->seed, initial->stream, initial->a,
                         initial->b);
    }
    if (initial->has_zero_row) clear_row(tensor, initial->zero_row);
}
