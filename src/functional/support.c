/* Which functions a device computes in a dtype, by its tables of kernels. */
#include "device/slots.h"
#include "functional/functional.h"

#include <stdio.h>
#include <string.h>

/* Functions whose kernels are in one table of a device. */
typedef struct function_family {
    enum {
        KERNELS_BY_DTYPE, /* a table for each dtype */
        KERNELS_FLOATS,   /* products and similar, for every float dtype of the device */
        KERNELS_CONVERT,  /* conversions between real dtypes */
        KERNELS_COPY      /* copies of elements of any dtype */
    } kind;
    const char *table; /* by dtype */
    const char *names; /* a space before and after each */
} function_family;

static const function_family families[] = {
    {KERNELS_FLOATS, NULL, " matmul affine topk argmax max min one_hot route expert_mlp "},
    {KERNELS_CONVERT, NULL, " cast "},
    /* sample_classes does not read its weight. */
    {KERNELS_COPY, NULL, " reshape permute transpose slice split_parts concat sample_classes "},
    {KERNELS_BY_DTYPE, "elementwise",
     " add sub mul div maximum minimum compare compare_scalar scale scale_shift bias gelu gelu_tanh relu silu exp log "
     "tanh sqrt sigmoid pow clamp abs swiglu masked_fill where "},
    {KERNELS_BY_DTYPE, "random", " dropout "},
    {KERNELS_BY_DTYPE, "sum", " sum mean cumsum "},
    {KERNELS_BY_DTYPE, "embedding", " lookup take_rows index_select take_along index_add add_along "},
    {KERNELS_BY_DTYPE, "norm", " layer_norm rms_norm "},
    {KERNELS_BY_DTYPE, "attention", " attention rotary "},
    {KERNELS_BY_DTYPE, "cross_entropy", " cross_entropy linear_cross_entropy "},
    {KERNELS_BY_DTYPE, "loss", " mse_loss l1_loss smooth_l1_loss bce_loss "},
    {KERNELS_BY_DTYPE, "softmax", " softmax log_softmax route_loss "},
};

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
               (family->kind == KERNELS_FLOATS || tshi_table_is_filled(device->ops, family->table, dtype));
    }
    return false;
}
