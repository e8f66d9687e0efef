/* Products with quantized weights, for inference. */
#include "functional/functional.h"

/* Up to so many rows of x, activations are quantized, and products are of 8-bit integers: reading the weights takes the
 * time. For more rows, blocks of weights are dequantized for the device's library, and activations stay floats. */
#define FEW_ROWS 8
/* Memory for a block of dequantized weights. */
#define DEQUANTIZED_BYTES ((int64_t)1 << 20)

static const tsh_rule quantized_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},      {{TSH_AS_BATCH, TSH_AS_L, TSH_AS_L}, TSH_AS_BATCH},
    {{TSH_AS_L, TSH_AS_S0, TSH_AS_S0}, TSH_AS_LAST}, /* column */
    {{TSH_AS_LAST, TSH_AS_S1, TSH_AS_P}, TSH_AS_P},  /* row: the weight is split by whole groups, and x alike */
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},      {{TSH_ROW_END}, TSH_ROW_END},
};

static tsh_status quantized_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tshi_quantized *p = call->params;
    const tsh_tensor *x = call->in[0], *weight = call->in[1], *bias = call->inputs == 3 ? call->in[2] : NULL;
    int last = x->shape.ndim - 1;
    if (last < 0 || x->shape.global[last] != p->in_features)
        return tshi_fail(TSH_ERR_SHAPE, "x is %s, layer wants in_features=%lld",
                         TSHI_DIMS_TEXT(x->shape.ndim, x->shape.global), (long long)p->in_features);
    if (bias && bias->dtype != x->dtype)
        return tshi_fail(TSH_ERR_DTYPE, "x is %s, the layer %s", TSHI_TENSOR_TEXT(x), tsh_dtype_name(bias->dtype));
    tsh_status status = tshi_check_computes(x->mesh->device, x->dtype, "x");
    if (status == TSH_OK) status = tshi_linear_check_features(x, weight, p->in_features);
    *dtype = x->dtype;
    *out = x->shape;
    out->global[last] = weight->shape.global[0];
    return status;
}

/* The sizes of a rank's product, and where it is: x and y as float32. */
typedef struct quantized_call {
    tsh_device *device;
    tshi_quant format;
    int64_t m, n, k;
    const float *x;
    const char *w;
    float *y;
} quantized_call;

static tsh_status multiply_few(tsh_call *call, const quantized_call *c) {
    const tshi_quantized_ops *ops = &c->device->ops->quantized;
    const int64_t groups = tshi_groups(c->k);
    tsh_tensor *memory = tsh_call_scratch(call, TSH_UINT8, c->m * groups * (int64_t)sizeof(tshi_group));
    if (!memory) return TSH_ERR_MEMORY;
    ops->activations(c->device, c->m, c->k, c->x, tshi_data(memory));
    ops->multiply(c->device, c->format, c->m, c->n, groups, tshi_data(memory), c->w, c->y);
    return TSH_OK;
}

static tsh_status multiply_many(tsh_call *call, const quantized_call *c) {
    const int64_t row_bytes = tshi_groups(c->k) * (int64_t)tshi_quant_format_of(c->format)->bytes;
    int64_t most = DEQUANTIZED_BYTES / 4 / (c->k > 0 ? c->k : 1) / 16 * 16 + 16, rows = most < c->n ? most : c->n;
    tsh_tensor *memory = tsh_call_scratch(call, TSH_FLOAT32, rows * c->k);
    tsh_status status = memory ? TSH_OK : TSH_ERR_MEMORY;
    for (int64_t j = 0; status == TSH_OK && j < c->n; j += rows) {
        int64_t count = c->n - j < rows ? c->n - j : rows;
        c->device->ops->quantized.dequantize(c->device, c->format, count, c->k, c->w + j * row_bytes,
                                             tshi_data(memory));
        status = c->device->ops->product.gemm(c->device, TSH_FLOAT32, false, true, c->m, count, c->k, 1, c->x, c->k,
                                              tshi_data(memory), c->k, 0, c->y + j, c->n);
    }
    return status;
}

/* Products in float32; the bias and f are in x's dtype. */
static tsh_status quantized_forward(tsh_call *call) {
    const tshi_quantized *p = call->params;
    const tsh_tensor *x = call->in[0], *bias = call->inputs == 3 ? call->in[2] : NULL, *y = call->out;
    tsh_device *device = tshi_device_of(x);
    const bool wide = x->dtype == TSH_FLOAT32;
    tsh_tensor *in = wide ? NULL : tsh_call_scratch(call, TSH_FLOAT32, x->numel);
    tsh_tensor *sums = wide ? NULL : tsh_call_scratch(call, TSH_FLOAT32, y->numel);
    if (!wide && (!in || !sums)) return TSH_ERR_MEMORY;
    if (!wide) device->ops->copy.convert(device, x->numel, x->dtype, tshi_data(x), TSH_FLOAT32, tshi_data(in));
    const quantized_call c = {device,
                              p->format,
                              tshi_rows(x),
                              tshi_cols(y),
                              tshi_cols(x),
                              tshi_data(wide ? x : in),
                              tshi_data(call->in[1]),
                              tshi_data(wide ? y : sums)};
    if (tshi_groups(c.k) * (int64_t)tshi_quant_format_of(p->format)->bytes != tshi_cols(call->in[1]))
        return tshi_fail(TSH_ERR_LAYOUT, "x has %lld features here, the quantized weight %lld groups: wanted are alike",
                         (long long)c.k,
                         (long long)(tshi_cols(call->in[1]) / (int64_t)tshi_quant_format_of(p->format)->bytes));
    tsh_status status = c.m <= FEW_ROWS ? multiply_few(call, &c) : multiply_many(call, &c);
    if (status != TSH_OK) return status;
    if (!wide) device->ops->copy.convert(device, y->numel, TSH_FLOAT32, tshi_data(sums), y->dtype, tshi_data(y));
    const tshi_elementwise_ops *ops = &device->ops->elementwise[y->dtype];
    if (bias) ops->bias(device, c.m, c.n, tshi_data(y), tshi_data(bias), tshi_data(y));
    if (p->f != TSHI_IDENTITY) ops->unary(device, p->f, NULL, y->numel, tshi_data(y), tshi_data(y));
    return TSH_OK;
}

static const tsh_op quantized_op = {"linear_quantized", quantized_rules, quantized_shape, quantized_forward,
                                    .params_size = sizeof(tshi_quantized)};

tsh_tensor *tshi_linear_quantized(tsh_tape *tape, int inputs, tsh_tensor **in, const tshi_quantized *params,
                                  const tshi_want *want) {
    tshi_quantized p = *params;
    if (!tshi_tape_ready(tape, quantized_op.name, inputs, in)) return NULL;
    const tsh_call call = {.tape = tape, .op = &quantized_op, .inputs = inputs, .in = in};
    if (tshi_call_records(&call))
        return tshi_tape_fail(tape, TSH_ERR_STATE,
                              "a quantized weight has no backward, and an input wants a gradient: turn recording off "
                              "(tsh_tape_set_recording)");
    return tshi_apply_as(tape, &quantized_op, inputs, in, &p, want);
}
