/* The structs of DLPack 0.6 to 0.8, which have a fixed binary layout:
 * https://dmlc.github.io/dlpack/latest/c_api.html */
#ifndef TSHI_DLPACK_H
#define TSHI_DLPACK_H

#include <stdint.h>

enum { TSHI_DL_CPU = 1, TSHI_DL_CUDA_HOST = 3 };
enum { TSHI_DL_INT = 0, TSHI_DL_UINT = 1, TSHI_DL_FLOAT = 2, TSHI_DL_BFLOAT = 4, TSHI_DL_COMPLEX = 5 };

typedef struct tshi_dl_type {
    uint8_t code, bits;
    uint16_t lanes;
} tshi_dl_type;

typedef struct tshi_dl_tensor {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    tshi_dl_type dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: row-major without gaps */
    uint64_t byte_offset;
} tshi_dl_tensor;

struct DLManagedTensor {
    tshi_dl_tensor tensor;
    void *manager;
    void (*deleter)(struct DLManagedTensor *self); /* or NULL */
};

#endif
