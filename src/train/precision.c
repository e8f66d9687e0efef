/* Mixed precision: the dtypes of a model's layers and gradients. */
#include "layers/layers.h"
#include "tshard/train.h"

#include <string.h>

static bool stays_float32(const tsh_precision *precision, const char *layer, size_t length) {
    for (const char *const *pattern = precision->float32_layers; pattern && *pattern; pattern++) {
        if (tshi_layer_matches(*pattern, layer, length)) return true;
    }
    return false;
}

tsh_dtype tsh_precision_dtype(const tsh_precision *precision, const char *layer) {
    if (!precision || !layer || stays_float32(precision, layer, strlen(layer))) return TSH_FLOAT32;
    return precision->storage;
}

/* The dtype of the arithmetic with parameters of `storage`; TSH_DTYPE_COUNT for an unknown arithmetic. */
static tsh_dtype computed_in(const tsh_precision *precision, tsh_dtype storage) {
    switch (precision->arithmetic) {
    case TSH_ARITHMETIC_AS_STORED: return storage;
    case TSH_ARITHMETIC_FLOAT32: return TSH_FLOAT32;
    case TSH_ARITHMETIC_BFLOAT16: return TSH_BFLOAT16;
    case TSH_ARITHMETIC_FLOAT16: return TSH_FLOAT16;
    }
    return TSH_DTYPE_COUNT;
}

/* tshi_gradient.arithmetic of a layer's parameters. */
static uint8_t chosen_arithmetic(const tsh_precision *precision, bool kept) {
    if (precision->arithmetic == TSH_ARITHMETIC_AS_STORED) return 0;
    return (uint8_t)(1 + (kept ? TSH_FLOAT32 : computed_in(precision, TSH_FLOAT32)));
}

static bool takes_gradients(tsh_dtype dtype, tsh_dtype reduction) {
    return reduction == dtype || reduction == tshi_dtype_sum(dtype);
}

static tsh_status check_precision(const tsh_parameters *list, const tsh_precision *precision) {
    const char *what = "parameters_set_precision";
    if (!list || !precision) return tshi_fail(TSH_ERR_ARGUMENT, "%s: a list and a precision are required", what);
    tsh_dtype storage = precision->storage, reduction = precision->reduction;
    tsh_device *device = tsh_world_device(list->world);
    tsh_dtype arithmetic = computed_in(precision, storage);
    tsh_status status = tshi_check_computes(device, storage, "parameters_set_precision: storage");
    if (status == TSH_OK) status = tshi_check_computes(device, arithmetic, "parameters_set_precision: arithmetic");
    if (status != TSH_OK) return status;
    tsh_dtype wrong = takes_gradients(storage, reduction) ? arithmetic : storage;
    if (takes_gradients(wrong, reduction)) return TSH_OK;
    return tshi_fail(TSH_ERR_DTYPE, "%s: gradients of %s must have that dtype or %s", what, tsh_dtype_name(wrong),
                     tsh_dtype_name(tshi_dtype_sum(wrong)));
}

/* True when the parameter's layer stays float32; the layer's name is the parameter's without the last part. */
static bool is_kept(const tshi_parameter *p, const tsh_precision *precision) {
    const char *end = strrchr(p->name, '.');
    return stays_float32(precision, p->name, end ? (size_t)(end - p->name) : strlen(p->name));
}

static tsh_status check_precision_of(const tshi_parameter *p, const tsh_precision *precision) {
    const tshi_gradient *g = p->tensor->gradient;
    bool kept = is_kept(p, precision);
    tsh_dtype wanted = kept ? TSH_FLOAT32 : precision->storage;
    bool other =
        g && (g->wide != (wanted != precision->reduction) || g->arithmetic != chosen_arithmetic(precision, kept));
    if (p->tensor->dtype != wanted)
        return tshi_fail(TSH_ERR_DTYPE, "parameters_set_precision: '%s' is %s, but the precision wants %s", p->name,
                         tsh_dtype_name(p->tensor->dtype), tsh_dtype_name(wanted));
    if (other && tshi_gradient_schedule_of(p->tensor))
        return tshi_fail(TSH_ERR_STATE, "parameters_set_precision: '%s' has a tsh_data_parallel already", p->name);
    return tshi_gradient_of(p->tensor) ? TSH_OK : TSH_ERR_MEMORY;
}

tsh_status tsh_parameters_set_precision(tsh_parameters *list, const tsh_precision *precision) {
    tsh_status status = check_precision(list, precision);
    for (int i = 0; status == TSH_OK && i < list->count; i++) status = check_precision_of(&list->items[i], precision);
    for (int i = 0; status == TSH_OK && i < list->count; i++) {
        tsh_tensor *p = list->items[i].tensor;
        status = tshi_gradient_set_wide(p, p->dtype != precision->reduction);
        p->gradient->arithmetic = chosen_arithmetic(precision, is_kept(&list->items[i], precision));
    }
    return status;
}
