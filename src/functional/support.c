/* Which functions a device computes in a dtype: its tables say so. */
#include "functional/functional.h"

#include <stddef.h>
#include <string.h>

typedef enum kernels {
    KERNELS_BY_DTYPE, /* a table with an entry for each dtype */
    KERNELS_FLOATS,   /* products and the like, which take every dtype that the device computes with */
    KERNELS_CONVERT,  /* conversions, between real dtypes */
    KERNELS_COPY      /* copies, of elements of any dtype */
} kernels;

/* A function, and where its kernels are in a device's table. */
typedef struct function_row {
    const char *name;
    kernels kind;
    size_t table, entry; /* by dtype: the offset of the table's pointer, the size of an entry */
    size_t filled;       /* bytes of an entry that a device has to fill; what follows may be NULL */
} function_row;

#define ENTRY(field)    sizeof *((tshi_device_ops *)0)->field
#define BY_DTYPE(field) KERNELS_BY_DTYPE, offsetof(tshi_device_ops, field), ENTRY(field), ENTRY(field)
#define SOFTMAX         KERNELS_BY_DTYPE, offsetof(tshi_device_ops, softmax), ENTRY(softmax), offsetof(tshi_softmax_ops, whole)

static const function_row functions[] = {
    {"matmul", KERNELS_FLOATS, 0, 0, 0},
    {"affine", KERNELS_FLOATS, 0, 0, 0},
    {"add", BY_DTYPE(elementwise)},
    {"sub", BY_DTYPE(elementwise)},
    {"mul", BY_DTYPE(elementwise)},
    {"div", BY_DTYPE(elementwise)},
    {"scale", BY_DTYPE(elementwise)},
    {"bias", BY_DTYPE(elementwise)},
    {"gelu", BY_DTYPE(elementwise)},
    {"gelu_tanh", BY_DTYPE(elementwise)},
    {"relu", BY_DTYPE(elementwise)},
    {"silu", BY_DTYPE(elementwise)},
    {"exp", BY_DTYPE(elementwise)},
    {"log", BY_DTYPE(elementwise)},
    {"tanh", BY_DTYPE(elementwise)},
    {"sqrt", BY_DTYPE(elementwise)},
    {"sigmoid", BY_DTYPE(elementwise)},
    {"pow", BY_DTYPE(elementwise)},
    {"clamp", BY_DTYPE(elementwise)},
    {"masked_fill", BY_DTYPE(elementwise)},
    {"cast", KERNELS_CONVERT, 0, 0, 0},
    {"dropout", BY_DTYPE(random)},
    {"reshape", KERNELS_COPY, 0, 0, 0},
    {"permute", KERNELS_COPY, 0, 0, 0},
    {"transpose", KERNELS_COPY, 0, 0, 0},
    {"slice", KERNELS_COPY, 0, 0, 0},
    {"split_parts", KERNELS_COPY, 0, 0, 0},
    {"concat", KERNELS_COPY, 0, 0, 0},
    {"sum", BY_DTYPE(sum)},
    {"mean", BY_DTYPE(sum)},
    {"topk", KERNELS_FLOATS, 0, 0, 0},
    {"argmax", KERNELS_FLOATS, 0, 0, 0},
    {"softmax", SOFTMAX},
    {"log_softmax", SOFTMAX},
    {"lookup", BY_DTYPE(embedding)},
    {"take_rows", BY_DTYPE(embedding)},
    {"sample_classes", KERNELS_COPY, 0, 0, 0}, /* of a weight of any dtype, which it does not read */
    {"layer_norm", BY_DTYPE(norm)},
    {"rms_norm", BY_DTYPE(norm)},
    {"attention", BY_DTYPE(attention)},
    {"rotary", BY_DTYPE(attention)},
    {"cross_entropy", BY_DTYPE(cross_entropy)},
    {"mse_loss", BY_DTYPE(loss)},
    {"bce_loss", BY_DTYPE(loss)},
};

/* Every kernel of the dtype's entry is there. */
static bool is_filled(const tshi_device_ops *ops, const function_row *row, tsh_dtype dtype) {
    typedef void kernel(void);
    static kernel *const none = NULL;
    const char *table;
    memcpy(&table, (const char *)ops + row->table, sizeof table);
    for (size_t at = 0; table && at < row->filled; at += sizeof none) {
        if (memcmp(table + (size_t)dtype * row->entry + at, &none, sizeof none) == 0) return false;
    }
    return table != NULL;
}

bool tsh_function_supports(const tsh_device *device, const char *function, tsh_dtype dtype) {
    if (!device || !function || (unsigned)dtype >= TSH_DTYPE_COUNT) return false;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        const function_row *row = &functions[i];
        if (strcmp(row->name, function) != 0) continue;
        if (row->kind == KERNELS_COPY) return true;
        if (row->kind == KERNELS_CONVERT) return !tshi_dtype_is_complex(dtype);
        return tshi_device_computes(device, dtype) &&
               (row->kind == KERNELS_FLOATS || is_filled(device->ops, row, dtype));
    }
    return false;
}
