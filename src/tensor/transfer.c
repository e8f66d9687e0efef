/* Reading and writing a tensor's elements. */
#include "base/owner.h"
#include "device/record.h"
#include "tensor/runs.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

static tsh_status check_transfer(const char *what, const tsh_tensor *tensor, const void *host, int64_t count,
                                 bool writes) {
    if (!tensor || !host) return tshi_fail(TSH_ERR_ARGUMENT, "%s: a tensor and a buffer are required", what);
    if (!tensor->storage) return tshi_tensor_check(tensor, what, "the tensor");
    if (count == tensor->numel)
        return writes ? tshi_tensor_materialize_to_write(tensor) : tshi_tensor_materialize(tensor);
    return tshi_fail(TSH_ERR_SHAPE, "%s: %lld elements given, this rank holds %lld", what, (long long)count,
                     (long long)tensor->numel);
}

tsh_status tsh_tensor_write(tsh_tensor *tensor, const void *from, int64_t count) {
    tsh_status status = check_transfer("tensor_write", tensor, from, count, true);
    if (status == TSH_OK) status = tshi_owner_check(tshi_device_of(tensor)->owner, "tensor_write");
    if (status != TSH_OK) return status;
    tsh_device *device = tshi_device_of(tensor);
    device->ops->copy.from_host(device, tsh_tensor_local_nbytes(tensor), from, tshi_data_to_write(tensor));
    return TSH_OK;
}

tsh_status tsh_tensor_read(const tsh_tensor *tensor, void *to, int64_t count) {
    tsh_status status = check_transfer("tensor_read", tensor, to, count, false);
    if (status != TSH_OK) return status;
    tsh_device *device = tshi_device_of(tensor);
    device->ops->copy.to_host(device, tsh_tensor_local_nbytes(tensor), tshi_data(tensor), to);
    return device->ops->check(device);
}

void *tsh_tensor_data(const tsh_tensor *tensor) {
    if (tensor && !tensor->storage) tshi_tensor_check(tensor, "tensor_data", "the tensor");
    return tensor && tshi_tensor_materialize(tensor) == TSH_OK ? tshi_data(tensor) : NULL;
}

tsh_status tsh_tensor_clone(const tsh_tensor *tensor, tsh_tensor **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "tensor_clone: out is NULL");
    *out = NULL;
    tsh_status status = tshi_tensor_check(tensor, "tensor_clone", "the tensor");
    if (status == TSH_OK) status = tshi_owner_check(tensor->mesh->device->owner, "tensor_clone");
    if (status == TSH_OK) status = tshi_tensor_materialize(tensor);
    if (status == TSH_OK) status = tshi_tensor_new(tensor->mesh, tensor->dtype, &tensor->shape, tensor->layout, out);
    if (status != TSH_OK) return status;
    (*out)->program_refs = 1;
    tensor->mesh->device->ops->copy.within(tensor->mesh->device, tsh_tensor_local_nbytes(tensor), tshi_data(tensor),
                                           tshi_data(*out));
    return TSH_OK;
}

/* --- global tensors ----------------------------------------------------------------------------------------------- */

void tshi_copy_box(int ndim, size_t size, const tsh_box *box, const void *from, const tsh_box *from_box, void *to,
                   const tsh_box *to_box) {
    tshi_runs r = tshi_runs_of(ndim, box, from_box, to_box);
    size_t bytes = (size_t)r.count[0] * size;
    int64_t rows = r.levels > 1 ? r.count[1] : 1, slabs = r.numel ? r.numel / (r.count[0] * rows) : 0;
    for (int64_t i = 0; i < slabs; i++) {
        int64_t a, b;
        tshi_runs_at(&r, 2, i, &a, &b);
        for (int64_t row = 0; row < rows; row++, a += r.from[1], b += r.to[1]) {
            memcpy((char *)to + (size_t)b * size, (const char *)from + (size_t)a * size, bytes);
        }
    }
}

char *tshi_box_place(int ndim, size_t size, const tsh_box *box, void *memory, const tsh_box *memory_box) {
    tshi_runs r = tshi_runs_of(ndim, box, memory_box, box);
    return r.count[0] == r.numel ? (char *)memory + (size_t)r.from_start * size : NULL;
}

const void *tshi_gather_box(int ndim, size_t size, const tsh_box *box, const void *memory, const tsh_box *memory_box,
                            void *buffer) {
    const void *place = tshi_box_place(ndim, size, box, (void *)(uintptr_t)memory, memory_box);
    if (place) return place;
    tshi_copy_box(ndim, size, box, memory, memory_box, buffer, box);
    return buffer;
}

/* --- piece by piece ----------------------------------------------------------------------------------------------- */

static tshi_pieces pieces_of(const tsh_tensor *tensor, bool writes, const tsh_box *within) {
    tsh_device *device = tshi_device_of(tensor);
    size_t bytes = tsh_tensor_local_nbytes(tensor);
    tshi_pieces p = {.tensor = tensor, .writes = writes, .within = within, .own = tsh_tensor_box(tensor)};
    p.memory = writes ? tshi_data_to_write(tensor) : tshi_data(tensor);
    if (device->ops->kind == TSH_CPU) return p;
    p.staging = tshi_calloc(&device->allocator, 1, bytes < TSHI_PIECE ? bytes : TSHI_PIECE);
    if (!p.staging) p.status = TSH_ERR_MEMORY;
    return p;
}

tshi_pieces tshi_pieces_to_write(tsh_tensor *tensor) {
    return pieces_of(tensor, true, NULL);
}

tshi_pieces tshi_pieces_to_read(const tsh_tensor *tensor, const tsh_box *within) {
    return pieces_of(tensor, false, within);
}

bool tshi_pieces_next(tshi_pieces *p) {
    const tsh_tensor *t = p->tensor;
    tsh_box common;
    if (!t) return false;
    tsh_device *device = tshi_device_of(t);
    size_t size = tsh_dtype_size(t->dtype);
    if (p->staging && p->writes && p->count > 0 && p->status == TSH_OK)
        device->ops->copy.from_host(device, (size_t)p->count * size, p->staging, p->memory);
    while (p->status == TSH_OK && p->done + p->count < t->numel) {
        p->done += p->count;
        p->memory += (size_t)p->count * size;
        p->box = tshi_box_cut(t->shape.ndim, &p->own, p->done, (int64_t)(TSHI_PIECE / size));
        p->count = tshi_box_numel(t->shape.ndim, &p->box);
        if (p->within && !tshi_box_intersect(t->shape.ndim, &p->box, p->within, &common)) continue;
        p->values = p->staging ? p->staging : p->memory;
        if (!p->staging || p->writes) return true;
        device->ops->copy.to_host(device, (size_t)p->count * size, p->memory, p->staging);
        p->status = device->ops->check(device);
        if (p->status == TSH_OK) return true;
    }
    tshi_free(&device->allocator, p->staging);
    p->staging = NULL;
    return false;
}

tsh_status tshi_tensor_check_global(const tsh_tensor *tensor, const char *what) {
    for (int a = 0; a < tensor->mesh->axes; a++) {
        if (!tshi_layout_is_own(tensor->layout[a])) continue;
        return tshi_fail(TSH_ERR_LAYOUT, "%s: %s is not part of a global tensor", what, TSHI_TENSOR_TEXT(tensor));
    }
    return TSH_OK;
}

static tsh_status check_value_boxes(const char *what, const tsh_tensor *tensor, bool source) {
    if (!tensor || !source) return tshi_fail(TSH_ERR_ARGUMENT, "%s: a tensor and values are required", what);
    if (!tensor->storage) return tshi_tensor_check(tensor, what, "the tensor");
    tsh_status status = tshi_tensor_check_global(tensor, what);
    return status == TSH_OK ? tshi_tensor_materialize_to_write(tensor) : status;
}

/* Checks a call that writes values by boxes, and begins with the first piece. A rank without values has none. */
static tshi_pieces begin_values(const char *what, tsh_tensor *tensor, bool source) {
    tsh_status status = check_value_boxes(what, tensor, source);
    if (status == TSH_OK) status = tshi_owner_check(tshi_device_of(tensor)->owner, what);
    bool first = status == TSH_OK && tshi_tensor_is_first_term(tensor);
    if (status == TSH_OK && !first) status = tsh_tensor_fill(tensor, 0);
    if (!first) return (tshi_pieces){.status = status};
    const tsh_device *device = tshi_device_of(tensor);
    if (!device->record || !device->record->planned) return tshi_pieces_to_write(tensor);
    tshi_data_to_write(tensor); /* a dry run keeps no values */
    return (tshi_pieces){.status = TSH_OK};
}

tsh_status tsh_tensor_write_boxes(tsh_tensor *tensor, tsh_values_fn *fn, void *user) {
    tshi_pieces p = begin_values("tensor_write_boxes", tensor, fn != NULL);
    while (tshi_pieces_next(&p)) {
        p.status = fn(user, &p.box, p.values);
        if (p.status == TSH_OK) continue;
        tshi_fail(p.status, "tensor_write_boxes: %s from the caller's function for the box %s at %s",
                  tsh_status_name(p.status), TSHI_DIMS_TEXT(tensor->shape.ndim, p.box.length),
                  TSHI_DIMS_TEXT(tensor->shape.ndim, p.box.start));
    }
    return p.status;
}

tsh_status tsh_tensor_write_whole(tsh_tensor *tensor, const void *whole) {
    tshi_pieces p = begin_values("tensor_write_whole", tensor, whole != NULL);
    tsh_box all = {{0}, {0}};
    if (p.tensor) memcpy(all.length, tensor->shape.global, sizeof all.length);
    while (tshi_pieces_next(&p)) {
        tshi_copy_box(tensor->shape.ndim, tsh_dtype_size(tensor->dtype), &p.box, whole, &all, p.values, &p.box);
    }
    return p.status;
}

tsh_status tsh_tensor_fill(tsh_tensor *tensor, double value) {
    tsh_status status = tshi_tensor_check(tensor, "tensor_fill", "the tensor");
    if (status == TSH_OK) status = tshi_owner_check(tshi_device_of(tensor)->owner, "tensor_fill");
    if (status == TSH_OK) status = tshi_tensor_materialize_to_write(tensor);
    if (status != TSH_OK) return status;
    tsh_device *device = tshi_device_of(tensor);
    device->ops->copy.fill(device, tensor->dtype, tensor->numel, value, tshi_data_to_write(tensor));
    return TSH_OK;
}

/* The tensor has one element, and this rank has its value rather than a term of it. */
static tsh_status check_item(const tsh_tensor *tensor) {
    if (tensor && !tensor->storage) return tshi_tensor_check(tensor, "tensor_item", "the tensor");
    bool one = tensor && tensor->numel == 1 && tshi_shape_numel(&tensor->shape) == 1;
    if (!one || tshi_dtype_is_complex(tensor->dtype)) {
        return tshi_fail(TSH_ERR_SHAPE, "tensor_item: one real element wanted, %s given", TSHI_TENSOR_TEXT(tensor));
    }
    for (int a = 0; a < tensor->mesh->axes; a++) {
        if (tensor->layout[a].kind != TSH_KIND_PARTIAL || tensor->mesh->axis[a].size == 1) continue;
        return tshi_fail(TSH_ERR_LAYOUT,
                         "tensor_item: this rank has a term of the value, which is a sum over the ranks of axis %s: "
                         "tsh_full or tsh_reduce, called by all of them, adds the terms; %s given",
                         tensor->mesh->axis[a].name, TSHI_TENSOR_TEXT(tensor));
    }
    return tshi_tensor_materialize(tensor);
}

double tshi_tensor_element(const tsh_tensor *tensor) {
    double value = NAN;
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

double tsh_tensor_item(const tsh_tensor *tensor) {
    return check_item(tensor) == TSH_OK ? tshi_tensor_element(tensor) : NAN;
}
