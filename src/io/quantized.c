#include "io/quantized.h"

#include "device/kernels.h"
#include "tshard/autograd.h"

#include <string.h>

bool tshi_may_stay_quantized(const tsh_tensor *weight, const tshi_gguf_tensor *source) {
    if (!weight->may_quantize || !tshi_tensor_initial(weight) || !source || !source->format) return false;
    const tshi_quant_format *format = source->format;
    bool known = format == tshi_quant_format_of(TSHI_Q8_0) || format == tshi_quant_format_of(TSHI_Q4_0);
    int split = 0;
    for (int a = 0; a < weight->mesh->axes; a++) {
        split += weight->layout[a].kind != TSH_KIND_REPLICATED;
        known = known && !weight->layout[a].cuts;
    }
    return known && split <= 1;
}

/* The layout along an axis of the bytes of a weight with this layout. Units of heads stay the units where they consist
 * of whole groups. */
static tsh_layout groups_layout(const tsh_tensor *weight, tsh_layout l) {
    const int64_t rows = weight->shape.global[0], cols = weight->shape.global[1];
    if (l.kind != TSH_KIND_SHARD) return l;
    if (l.dim == 0) {
        bool moves = weight->rows_move && !l.units && rows % TSHI_GROUP == 0;
        return moves ? TSH_SHARD_UNITS(0, rows / TSHI_GROUP, 0) : l;
    }
    bool whole = l.units && cols / l.units % TSHI_GROUP == 0 && (!l.blocks || cols / l.blocks % TSHI_GROUP == 0);
    return whole ? l : TSH_SHARD_UNITS(1, tshi_groups(cols), 0);
}

tsh_status tshi_quantized_create(const tsh_tensor *weight, const tshi_quant_format *format, tsh_tensor **out) {
    tsh_tensor_config config = {.dtype = TSH_UINT8, .ndim = 2};
    tsh_layout layout[TSH_MAX_AXES];
    tsh_shape shape;
    config.shape[0] = weight->shape.global[0];
    config.shape[1] = tshi_groups(weight->shape.global[1]) * (int64_t)format->bytes;
    for (int a = 0; a < weight->mesh->axes; a++) config.layout[a] = groups_layout(weight, weight->layout[a]);
    tsh_status status = tshi_tensor_resolve(weight->mesh, &config, &shape, layout);
    /* Groups of any number of bytes may be cut at the same bytes without units, but the features of x at others. */
    for (int a = 0; a < weight->mesh->axes; a++)
        if (config.layout[a].kind == TSH_KIND_SHARD && config.layout[a].dim == 1)
            layout[a].units = config.layout[a].units;
    tsh_memory_purpose before = tshi_device_purpose(weight->mesh->device, TSH_MEMORY_PARAMETERS);
    if (status == TSH_OK) status = tshi_tensor_new(weight->mesh, TSH_UINT8, &shape, layout, out);
    weight->mesh->device->purpose = before;
    return status;
}

tsh_status tshi_quantized_take(tsh_tensor *weight, const tshi_quant_format *format, tsh_tensor *groups) {
    tsh_status status = tsh_tensor_require_grad(weight, false);
    if (status != TSH_OK) return status;
    tshi_tensor_become(weight, groups);
    weight->dtype = TSH_UINT8;
    weight->quant = format;
    return TSH_OK;
}

tshi_gguf_tensor tshi_gguf_as_bytes(const tshi_gguf_tensor *tensor) {
    tshi_gguf_tensor bytes = *tensor;
    int last = bytes.entry.ndim - 1;
    bytes.format = NULL;
    bytes.entry.dtype = TSH_UINT8;
    bytes.entry.shape[last] = bytes.entry.shape[last] / tensor->format->weights * (int64_t)tensor->format->bytes;
    return bytes;
}
