/* Element types. */
#include "device/kernels.h"

typedef struct dtype_info {
    const char *name;
    size_t size;
} dtype_info;

static const dtype_info dtypes[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {"float32", 4}, [TSH_FLOAT64] = {"float64", 8},     [TSH_BFLOAT16] = {"bfloat16", 2},
    [TSH_FLOAT16] = {"float16", 2}, [TSH_INT32] = {"int32", 4},         [TSH_INT64] = {"int64", 8},
    [TSH_UINT8] = {"uint8", 1},     [TSH_COMPLEX64] = {"complex64", 8}, [TSH_COMPLEX128] = {"complex128", 16},
};

static bool is_dtype(tsh_dtype dtype) {
    return (int)dtype >= 0 && dtype < TSH_DTYPE_COUNT;
}

size_t tsh_dtype_size(tsh_dtype dtype) {
    return is_dtype(dtype) ? dtypes[dtype].size : 0;
}

const char *tsh_dtype_name(tsh_dtype dtype) {
    return is_dtype(dtype) ? dtypes[dtype].name : "unknown dtype";
}

tsh_dtype tshi_dtype_sum(tsh_dtype dtype) {
    return dtype == TSH_BFLOAT16 || dtype == TSH_FLOAT16 ? TSH_FLOAT32 : dtype;
}

bool tshi_dtype_is_complex(tsh_dtype dtype) {
    return dtype == TSH_COMPLEX64 || dtype == TSH_COMPLEX128;
}
