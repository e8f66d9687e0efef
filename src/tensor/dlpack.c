/* A tensor's elements as a DLPack array, and a DLPack array's elements in a tensor. */
#include "tensor/dlpack.h"
#include "tensor/tensor.h"

#include <string.h>

static const tshi_dl_type types[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {TSHI_DL_FLOAT, 32, 1},      [TSH_FLOAT64] = {TSHI_DL_FLOAT, 64, 1},
    [TSH_BFLOAT16] = {TSHI_DL_BFLOAT, 16, 1},    [TSH_FLOAT16] = {TSHI_DL_FLOAT, 16, 1},
    [TSH_INT32] = {TSHI_DL_INT, 32, 1},          [TSH_INT64] = {TSHI_DL_INT, 64, 1},
    [TSH_UINT8] = {TSHI_DL_UINT, 8, 1},          [TSH_COMPLEX64] = {TSHI_DL_COMPLEX, 64, 1},
    [TSH_COMPLEX128] = {TSHI_DL_COMPLEX, 128, 1}};

/* --- out ---------------------------------------------------------------------------------------------------------- */

typedef struct exported {
    struct DLManagedTensor managed;
    tsh_tensor *tensor;
    tsh_tensor *memory;             /* of a leaf, a view: data parallelism may give the leaf other memory. NULL: none */
    const tsh_allocator *allocator; /* of the world */
    int64_t shape[TSH_MAX_DIMS], strides[TSH_MAX_DIMS];
} exported;

static void exported_free(struct DLManagedTensor *managed) {
    exported *e = (exported *)(void *)managed;
    tshi_tensor_release(e->memory);
    tshi_tensor_release(e->tensor);
    tshi_free(e->allocator, e);
}

static tsh_status check_export(const tsh_tensor *tensor) {
    tsh_status status = tshi_tensor_check(tensor, "tensor_to_dlpack", "the tensor");
    if (status != TSH_OK) return status;
    if (tsh_device_kind_of(tensor->mesh->device) != TSH_CPU)
        return tshi_fail(TSH_ERR_UNSUPPORTED, "tensor_to_dlpack: a tensor on a GPU; tsh_tensor_read copies its values");
    if (tensor->taped)
        return tshi_fail(TSH_ERR_STATE, "tensor_to_dlpack: a tape owns the tensor, and uses its memory again after the "
                                        "step; tsh_tensor_clone makes a copy");
    return tshi_tensor_materialize_to_write(tensor);
}

tsh_status tsh_tensor_to_dlpack(tsh_tensor *tensor, struct DLManagedTensor **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "tensor_to_dlpack: out is NULL");
    *out = NULL;
    tsh_status status = check_export(tensor);
    if (status != TSH_OK) return status;
    const tsh_allocator *allocator = &tensor->mesh->device->allocator;
    exported *e = tshi_calloc(allocator, 1, sizeof *e);
    if (!e) return TSH_ERR_MEMORY;
    if (tensor->gradient) status = tshi_tensor_view(tensor, &tensor->shape, tensor->layout, 0, &e->memory);
    if (status != TSH_OK) {
        tshi_free(allocator, e);
        return status;
    }
    int64_t stride = 1;
    for (int d = tensor->shape.ndim - 1; d >= 0; d--) {
        e->shape[d] = tensor->shape.local[d];
        e->strides[d] = stride;
        stride *= e->shape[d];
    }
    e->tensor = tshi_tensor_retain(tensor);
    e->allocator = allocator;
    e->managed.deleter = exported_free;
    e->managed.tensor = (tshi_dl_tensor){.data = tshi_data_to_write(tensor),
                                         .device = {TSHI_DL_CPU, 0},
                                         .ndim = tensor->shape.ndim,
                                         .dtype = types[tensor->dtype],
                                         .shape = e->shape,
                                         .strides = e->strides};
    *out = &e->managed;
    return TSH_OK;
}

/* --- in ----------------------------------------------------------------------------------------------------------- */

static tsh_status check_import(const tsh_tensor *tensor, const tshi_dl_tensor *from) {
    tsh_status status = tshi_tensor_check(tensor, "tensor_write_dlpack", "the tensor");
    if (status != TSH_OK) return status;
    if (from->device.type != TSHI_DL_CPU && from->device.type != TSHI_DL_CUDA_HOST)
        return tshi_fail(TSH_ERR_UNSUPPORTED,
                         "tensor_write_dlpack: an array of DLPack's device type %d; host memory is "
                         "required",
                         from->device.type);
    const tshi_dl_type *type = &types[tensor->dtype];
    if (from->dtype.code != type->code || from->dtype.bits != type->bits || from->dtype.lanes != type->lanes)
        return tshi_fail(TSH_ERR_DTYPE,
                         "tensor_write_dlpack: an array of DLPack's type code %d with %d bits and %d "
                         "lanes; the tensor is %s",
                         from->dtype.code, from->dtype.bits, from->dtype.lanes, tsh_dtype_name(tensor->dtype));
    if (from->ndim != tensor->shape.ndim || from->ndim < 0 || (from->ndim && !from->shape) ||
        (from->ndim && memcmp(from->shape, tensor->shape.local, (size_t)from->ndim * sizeof *from->shape)))
        return tshi_fail(TSH_ERR_SHAPE, "tensor_write_dlpack: an array of another shape than this rank's part of %s",
                         TSHI_TENSOR_TEXT(tensor));
    if (!from->data && tensor->numel) return tshi_fail(TSH_ERR_ARGUMENT, "tensor_write_dlpack: the array has no data");
    return TSH_OK;
}

static bool is_compact(const tshi_dl_tensor *from) {
    int64_t stride = 1;
    for (int d = from->ndim - 1; from->strides && d >= 0; d--) {
        if (from->shape[d] != 1 && from->strides[d] != stride) return false;
        stride *= from->shape[d];
    }
    return true;
}

/* The elements in row-major order. */
static void pack(const tshi_dl_tensor *from, const char *data, size_t size, int64_t numel, char *to) {
    int64_t index[TSH_MAX_DIMS] = {0}, at = 0;
    for (int64_t i = 0; i < numel; i++, to += size) {
        memcpy(to, data + at * (int64_t)size, size);
        for (int d = from->ndim - 1; d >= 0; d--) {
            at += from->strides[d];
            if (++index[d] < from->shape[d]) break;
            at -= from->strides[d] * from->shape[d];
            index[d] = 0;
        }
    }
}

tsh_status tsh_tensor_write_dlpack(tsh_tensor *tensor, const struct DLManagedTensor *from) {
    if (!tensor || !from) return tshi_fail(TSH_ERR_ARGUMENT, "tensor_write_dlpack: a tensor and an array are required");
    tsh_status status = check_import(tensor, &from->tensor);
    if (status != TSH_OK || tensor->numel == 0) return status;
    const char *data = (const char *)from->tensor.data + from->tensor.byte_offset;
    if (is_compact(&from->tensor)) return tsh_tensor_write(tensor, data, tensor->numel);
    const tsh_allocator *allocator = &tensor->mesh->device->allocator;
    char *packed = tshi_calloc(allocator, tsh_tensor_local_nbytes(tensor), 1);
    if (!packed) return TSH_ERR_MEMORY;
    pack(&from->tensor, data, tsh_dtype_size(tensor->dtype), tensor->numel, packed);
    status = tsh_tensor_write(tensor, packed, tensor->numel);
    tshi_free(allocator, packed);
    return status;
}
