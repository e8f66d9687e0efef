/* Products with quantized weights, whose rows the threads of a rank share. */
#include "device/cpu/kernels/ranges.h"

/* A call of activations or dequantize, whose rows have `cols` elements. */
typedef struct quantized_rows {
    const tshi_isa_quantized *isa;
    tshi_quant format;
    int64_t cols;
    const void *from;
    void *to;
} quantized_rows;

typedef struct quantized_call {
    const tshi_isa_quantized *isa;
    tshi_quantized_product product;
} quantized_call;

static void quantize_range(const void *call, int range, int64_t from, int64_t end) {
    const quantized_rows *c = call;
    c->isa->activations(c->cols, from, end, c->from, c->to);
}

static void dequantize_range(const void *call, int range, int64_t from, int64_t end) {
    const quantized_rows *c = call;
    c->isa->dequantize(c->format, c->cols, from, end, c->from, c->to);
}

static void multiply_columns(const void *call, int range, int64_t from, int64_t end) {
    const quantized_call *c = call;
    c->isa->multiply(&c->product, from, end);
}

void tshi_cpu_quantize_activations(tsh_device *device, int64_t rows, int64_t cols, const float *x, tshi_group *to) {
    const quantized_rows c = {isa_of(device)->quantized, TSHI_Q8_0, cols, x, to};
    tshi_parallel(device, rows, 1, (double)cols, quantize_range, &c);
}

void tshi_cpu_quantized_multiply(tsh_device *device, tshi_quant format, int64_t m, int64_t n, int64_t groups,
                                 const tshi_group *x, const void *w, float *y) {
    const quantized_call c = {isa_of(device)->quantized, {format, m, n, groups, x, w, y}};
    /* A range begins at a cache line of y. */
    tshi_parallel(device, n, 16, (double)m * (double)groups * 8, multiply_columns, &c);
}

void tshi_cpu_dequantize(tsh_device *device, tshi_quant format, int64_t rows, int64_t cols, const void *w, float *to) {
    const quantized_rows c = {isa_of(device)->quantized, format, cols, w, to};
    tshi_parallel(device, rows, 1, (double)cols, dequantize_range, &c);
}
