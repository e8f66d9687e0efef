/* Mixed precision: which dtypes the layers of a model and the gradients of their parameters have. */
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

static tsh_status check_precision(const tsh_parameters *list, const tsh_precision *precision) {
    const char *what = "parameters_set_precision";
    if (!list || !precision) return tshi_fail(TSH_ERR_ARGUMENT, "%s: a list and a precision are required", what);
    tsh_dtype storage = precision->storage, reduction = precision->reduction;
    tsh_status status =
        tshi_check_computes(tsh_world_device(list->world), storage, "parameters_set_precision: storage");
    if (status != TSH_OK || reduction == storage || reduction == tshi_dtype_sum(storage)) return status;
    return tshi_fail(TSH_ERR_DTYPE, "%s: gradients of %s are of that dtype or %s", what, tsh_dtype_name(storage),
                     tsh_dtype_name(tshi_dtype_sum(storage)));
}

/* A parameter's name is its layer's with one more part. */
static tsh_status check_parameter(const tshi_parameter *p, const tsh_precision *precision) {
    const char *end = strrchr(p->name, '.');
    const tshi_gradient *g = p->tensor->gradient;
    size_t length = end ? (size_t)(end - p->name) : strlen(p->name);
    tsh_dtype wanted = stays_float32(precision, p->name, length) ? TSH_FLOAT32 : precision->storage;
    if (p->tensor->dtype != wanted)
        return tshi_fail(TSH_ERR_DTYPE, "parameters_set_precision: '%s' is %s, the policy says %s", p->name,
                         tsh_dtype_name(p->tensor->dtype), tsh_dtype_name(wanted));
    if (g && g->sink && g->wide != (wanted != precision->reduction))
        return tshi_fail(TSH_ERR_STATE, "parameters_set_precision: '%s' has a tsh_data_parallel already", p->name);
    return tshi_gradient_of(p->tensor) ? TSH_OK : TSH_ERR_MEMORY;
}

tsh_status tsh_parameters_set_precision(tsh_parameters *list, const tsh_precision *precision) {
    tsh_status status = check_precision(list, precision);
    for (int i = 0; status == TSH_OK && i < list->count; i++) status = check_parameter(&list->items[i], precision);
    for (int i = 0; status == TSH_OK && i < list->count; i++) {
        tsh_tensor *p = list->items[i].tensor;
        status = tshi_gradient_set_wide(p, p->dtype != precision->reduction);
    }
    return status;
}
