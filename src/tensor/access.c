/* Reading and writing tensors, and what they say of themselves. */
#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

tsh_dtype tsh_tensor_dtype(const tsh_tensor *tensor) {
    return tensor ? tensor->dtype : TSH_DTYPE_COUNT;
}

int tsh_tensor_ndim(const tsh_tensor *tensor) {
    return tensor ? tensor->shape.ndim : 0;
}

const int64_t *tsh_tensor_local_shape(const tsh_tensor *tensor) {
    return tensor ? tensor->shape.local : NULL;
}

const int64_t *tsh_tensor_shape(const tsh_tensor *tensor) {
    return tensor ? tensor->shape.global : NULL;
}

int64_t tsh_tensor_local_numel(const tsh_tensor *tensor) {
    return tensor ? tensor->numel : 0;
}

size_t tsh_tensor_local_nbytes(const tsh_tensor *tensor) {
    return tensor ? (size_t)tensor->numel * tsh_dtype_size(tensor->dtype) : 0;
}

const tsh_mesh *tsh_tensor_mesh(const tsh_tensor *tensor) {
    return tensor ? tensor->mesh : NULL;
}

void *tsh_tensor_data(const tsh_tensor *tensor) {
    return tensor ? tshi_data(tensor) : NULL;
}

tsh_layout tsh_tensor_layout(const tsh_tensor *tensor, const tsh_group *group) {
    int axis = tensor ? tshi_mesh_axis(tensor->mesh, group) : -1;
    return axis < 0 ? TSH_REPLICATED : tensor->layout[axis];
}

char *tsh_tensor_describe(const tsh_tensor *tensor, char *text, size_t size) {
    char dims[128], name[24];
    if (size == 0) return text;
    if (!tensor) {
        snprintf(text, size, "NULL");
        return text;
    }
    tshi_dims_name(tensor->shape.ndim, tensor->shape.local, dims, sizeof dims);
    int used = snprintf(text, size, "%s %s", tsh_dtype_name(tensor->dtype), dims);
    for (int a = 0; a < tensor->mesh->axes && used > 0 && (size_t)used < size; a++) {
        used += snprintf(text + used, size - (size_t)used, " %s=%s", tensor->mesh->axis[a].name,
                         tshi_layout_name(tensor->layout[a], name, sizeof name));
    }
    return text;
}

static int64_t product(const int64_t *dims, int from, int to) {
    int64_t n = 1;
    for (int d = from; d < to; d++) n *= dims[d];
    return n;
}

int64_t tshi_outer(const tsh_tensor *tensor, int d) {
    return product(tensor->shape.local, 0, d);
}

int64_t tshi_inner(const tsh_tensor *tensor, int d) {
    return product(tensor->shape.local, d + 1, tensor->shape.ndim);
}

int64_t tshi_rows(const tsh_tensor *tensor) {
    return product(tensor->shape.local, 0, tensor->shape.ndim - 1);
}

int64_t tshi_cols(const tsh_tensor *tensor) {
    return tensor->shape.ndim ? tensor->shape.local[tensor->shape.ndim - 1] : 1;
}

void tshi_gradient_layout(const tsh_tensor *x, tsh_layout layout[TSH_MAX_AXES]) {
    memcpy(layout, x->layout, sizeof x->layout);
    for (int a = 0; a < x->mesh->axes; a++) {
        if (layout[a].kind == TSH_KIND_PARTIAL) layout[a] = TSH_REPLICATED;
    }
}

static bool is_sharded(const tsh_tensor *tensor, int d) {
    for (int a = 0; a < tensor->mesh->axes; a++) {
        if (tensor->layout[a].kind == TSH_KIND_SHARD && tensor->layout[a].dim == d) return true;
    }
    return false;
}

/* The last sharded dim before `end`, or -1. */
static int last_sharded(const tsh_tensor *tensor, int end) {
    int d = end - 1;
    while (d >= 0 && !is_sharded(tensor, d)) d--;
    return d;
}

/* A block is the last sharded dim with what is inside it, for the rows outside of it that are neighbours in the whole:
 * those of the sharded dim before it. Each index in the dims before that one has a block of its own. */
int64_t tshi_tensor_blocks(const tsh_tensor *tensor) {
    int middle = last_sharded(tensor, last_sharded(tensor, tensor->shape.ndim));
    return middle > 0 ? product(tensor->shape.local, 0, middle) : 1;
}

/* The row of the whole, counted over the dims before d, at which block `number` begins. */
static int64_t first_row(const tsh_tensor *tensor, int middle, int d, int64_t number) {
    const tshi_shape *s = &tensor->shape;
    int64_t row = 0, stride = 1;
    for (int e = d - 1; e >= 0; e--) {
        int64_t index = e < middle ? number % s->local[e] : 0;
        if (e < middle) number /= s->local[e];
        row += (index + tshi_shape_start(tensor->mesh, s, tensor->layout, e)) * stride;
        stride *= s->global[e];
    }
    return row;
}

tshi_block tshi_tensor_block(const tsh_tensor *tensor, int64_t number, int64_t *offset) {
    const tshi_shape *s = &tensor->shape;
    int last = last_sharded(tensor, s->ndim), middle = last_sharded(tensor, last);
    *offset = 0;
    if (s->ndim == 0) return (tshi_block){.outer = 1, .n = 1, .inner = 1, .global_n = 1};
    int d = last < 0 ? 0 : last, from = middle < 0 ? 0 : middle;
    *offset = number * product(s->local, from, s->ndim);
    return (tshi_block){.outer = product(s->local, from, d),
                        .n = s->local[d],
                        .inner = product(s->local, d + 1, s->ndim),
                        .outer_start = first_row(tensor, from, d, number),
                        .start = tshi_shape_start(tensor->mesh, s, tensor->layout, d),
                        .global_n = s->global[d]};
}

/* The length of dim d that is left for the other axes when axis a makes no claim: the axes before it split n items
 * first, of each part this rank's share along a counts, and the axes after it split that sum. `axis` is the first that
 * n items are still to be split along. */
static int64_t length_without(const tsh_tensor *tensor, int a, int d, int axis, int64_t n) {
    const tshi_axis *along = &tensor->mesh->axis[axis];
    int64_t length, sum = 0;
    if (axis == a) {
        tsh_split(n, along->size, along->index, NULL, &length);
        return length;
    }
    if (tensor->layout[axis].kind != TSH_KIND_SHARD || tensor->layout[axis].dim != d)
        return length_without(tensor, a, d, axis + 1, n);
    for (int i = 0; i < along->size; i++) {
        tsh_split(n, along->size, i, NULL, &length);
        sum += length_without(tensor, a, d, axis + 1, length);
    }
    return sum;
}

/* A claim along axis a sets the whole's size in that dim, of which the axes that shard it already hold their parts. */
static tsh_status claim_shard(tsh_tensor *tensor, int a, tsh_layout *layout, int64_t global) {
    char text[160];
    const tshi_axis *axis = &tensor->mesh->axis[a];
    int d = layout->dim < 0 ? layout->dim + tensor->shape.ndim : layout->dim;
    if (d < 0 || d >= tensor->shape.ndim) {
        return tshi_fail(TSH_ERR_SHAPE, "tensor_claim: no dim %d in %s", layout->dim,
                         tsh_tensor_describe(tensor, text, sizeof text));
    }
    int64_t have = tensor->shape.global[d], whole = global;
    if (global == 0 && __builtin_mul_overflow(have, (int64_t)axis->size, &whole)) {
        return tshi_fail(TSH_ERR_OVERFLOW, "tensor_claim: %d parts of dim %d of %s", axis->size, d,
                         tsh_tensor_describe(tensor, text, sizeof text));
    }
    if (whole < 0 || length_without(tensor, a, d, 0, whole) != have) {
        return tshi_fail(TSH_ERR_SHAPE, "tensor_claim: %s is not part %d of %d along %s of a dim %d that is %lld long",
                         tsh_tensor_describe(tensor, text, sizeof text), axis->index, axis->size, axis->name, d,
                         (long long)whole);
    }
    layout->dim = d;
    tensor->shape.global[d] = whole;
    return TSH_OK;
}

static tsh_status check_claim(const tsh_tensor *tensor, int a, tsh_layout layout) {
    char text[160];
    if (a < 0) return tshi_fail(TSH_ERR_ARGUMENT, "tensor_claim: the group is no axis of the tensor's mesh");
    if (!tshi_layout_exists(layout)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "tensor_claim: %d is no kind of layout", (int)layout.kind);
    }
    if (tensor->computed) {
        return tshi_fail(TSH_ERR_STATE, "tensor_claim: %s was made by a tape, whose layouts are not claims",
                         tsh_tensor_describe(tensor, text, sizeof text));
    }
    if (layout.kind != TSH_KIND_LOCAL && tensor->layout[a].kind != TSH_KIND_LOCAL) {
        return tshi_fail(TSH_ERR_LAYOUT, "tensor_claim: %s is not LOCAL along axis %s",
                         tsh_tensor_describe(tensor, text, sizeof text), tensor->mesh->axis[a].name);
    }
    return TSH_OK;
}

tsh_status tsh_tensor_claim(tsh_tensor *tensor, const tsh_group *group, tsh_layout layout, int64_t global) {
    int a = tensor && group ? tshi_mesh_axis(tensor->mesh, group) : -1;
    tsh_status status = check_claim(tensor, a, layout);
    if (status != TSH_OK) return status;
    if (layout.kind == TSH_KIND_LOCAL && tensor->layout[a].kind == TSH_KIND_SHARD) {
        int d = tensor->layout[a].dim;
        tensor->shape.global[d] = length_without(tensor, a, d, 0, tensor->shape.global[d]);
    }
    if (layout.kind == TSH_KIND_SHARD) status = claim_shard(tensor, a, &layout, global);
    if (status == TSH_OK) tensor->layout[a] = layout;
    return status;
}

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
    if (status == TSH_OK)
        tensor->mesh->device->ops->copy.from_host(tensor->mesh->device, tsh_tensor_local_nbytes(tensor), from,
                                                  tshi_data(tensor));
    return status;
}

tsh_status tsh_tensor_read(const tsh_tensor *tensor, void *to, int64_t count) {
    tsh_status status = check_transfer("tensor_read", tensor, to, count);
    if (status != TSH_OK) return status;
    tsh_device *device = tensor->mesh->device;
    device->ops->copy.to_host(device, tsh_tensor_local_nbytes(tensor), tshi_data(tensor), to);
    return device->ops->check(device);
}

/* Rows of the last dim, one by one, found by their index in all the dims before. */
static void write_rows(tsh_tensor *tensor, const char *whole, const int64_t *start) {
    const tshi_shape *s = &tensor->shape;
    size_t size = tsh_dtype_size(tensor->dtype);
    int last = s->ndim - 1;
    int64_t rows = product(s->local, 0, last);
    size_t bytes = (size_t)s->local[last] * size;
    char *to = tshi_data(tensor);
    for (int64_t row = 0; row < rows; row++, to += bytes) {
        int64_t at = 0, stride = 1, rest = row;
        for (int d = last; d >= 0; d--) {
            int64_t index = d == last ? 0 : rest % s->local[d];
            if (d != last) rest /= s->local[d];
            at += (start[d] + index) * stride;
            stride *= s->global[d];
        }
        tensor->mesh->device->ops->copy.from_host(tensor->mesh->device, bytes, whole + (size_t)at * size, to);
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
    tensor->mesh->device->ops->copy.fill(tensor->mesh->device, tensor->dtype, tensor->numel, value, tshi_data(tensor));
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
    tsh_device *device = tensor->mesh->device;
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
