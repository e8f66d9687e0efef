/* Which functions a device computes in a dtype, by its tables of kernels. */
#include "functional/functional.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Functions whose kernels are in one table of a device. */
typedef struct function_family {
    enum {
        KERNELS_BY_DTYPE, /* a table with an entry for each dtype */
        KERNELS_FLOATS,   /* products and similar, for every float dtype of the device */
        KERNELS_CONVERT,  /* conversions between real dtypes */
        KERNELS_COPY      /* copies of elements of any dtype */
    } kind;
    const char *names;   /* a space before and after each */
    size_t table, entry; /* by dtype: the offset of the table's pointer, the size of an entry */
    size_t filled;       /* bytes of an entry that a device must fill; later functions may be NULL */
} function_family;

#define ENTRY(field) sizeof *((tshi_device_ops *)0)->field
#define PARTLY(field, filled, names)                                                                                   \
    { KERNELS_BY_DTYPE, names, offsetof(tshi_device_ops, field), ENTRY(field), filled }
#define BY_DTYPE(field, names) PARTLY(field, ENTRY(field), names)

static const function_family families[] = {
    {KERNELS_FLOATS, " matmul affine topk argmax ", 0, 0, 0},
    {KERNELS_CONVERT, " cast ", 0, 0, 0},
    /* sample_classes does not read its weight. */
    {KERNELS_COPY, " reshape permute transpose slice split_parts concat sample_classes ", 0, 0, 0},
    BY_DTYPE(elementwise, " add sub mul div scale bias gelu gelu_tanh relu silu exp log tanh sqrt sigmoid pow clamp "
                          "masked_fill "),
    BY_DTYPE(random, " dropout "),
    BY_DTYPE(sum, " sum mean "),
    BY_DTYPE(embedding, " lookup take_rows "),
    BY_DTYPE(norm, " layer_norm rms_norm "),
    BY_DTYPE(attention, " attention rotary "),
    BY_DTYPE(cross_entropy, " cross_entropy "),
    BY_DTYPE(loss, " mse_loss bce_loss "),
    PARTLY(softmax, offsetof(tshi_softmax_ops, whole), " softmax log_softmax "),
};

/* True when the dtype's entry has every required kernel. */
static bool is_filled(const tshi_device_ops *ops, const function_family *family, tsh_dtype dtype) {
    typedef void kernel(void);
    static kernel *const none = NULL;
    const char *table;
    memcpy(&table, (const char *)ops + family->table, sizeof table);
    for (size_t at = 0; table && at < family->filled; at += sizeof none) {
        if (memcmp(table + (size_t)dtype * family->entry + at, &none, sizeof none) == 0) return false;
    }
    return table != NULL;
}

bool tsh_function_supports(const tsh_device *device, const char *function, tsh_dtype dtype) {
    char word[32];
    if (!device || !function || (unsigned)dtype >= TSH_DTYPE_COUNT || strchr(function, ' ')) return false;
    if (snprintf(word, sizeof word, " %s ", function) >= (int)sizeof word) return false;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const function_family *family = &families[i];
        if (!strstr(family->names, word)) continue;
        if (family->kind == KERNELS_COPY) return true;
        if (family->kind == KERNELS_CONVERT) return !tshi_dtype_is_complex(dtype);
        return tshi_device_computes(device, dtype) &&
               (family->kind == KERNELS_FLOATS || is_filled(device->ops, family, dtype));
    }
    return false;
}
