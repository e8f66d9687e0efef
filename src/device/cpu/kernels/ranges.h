/* The vector kernels on the threads of a rank: each call is split into ranges of rows or elements, and each range is a
 * call of the instruction set's kernel. Sums across rows are split by columns, or into blocks that are added in order,
 * so that no result depends on the number of threads. */
#ifndef TSHI_CPU_RANGES_H
#define TSHI_CPU_RANGES_H

#include "device/cpu/cpu.h"
#include "device/cpu/parallel.h"

/* Ranges of elements begin at multiples of so many, which are whole vectors and whole tiles of the kernels. */
#define STEP 1024
/* Ranges of columns: the tile of sums over rows. */
#define COLUMNS 64
/* An exponential or a logarithm takes the time of so many elements that are only read and written. */
#define COST_EXP 4

/* Element i of a call's argument, which may be NULL. */
static inline const void *at(const void *data, int64_t i, size_t size) {
    return data ? (const char *)data + (size_t)i * size : NULL;
}

static inline void *into(void *data, int64_t i, size_t size) {
    return data ? (char *)data + (size_t)i * size : NULL;
}

static inline const tshi_isa *isa_of(const tsh_device *device) {
    return ((const tshi_cpu_device *)device)->isa;
}

static inline size_t sum_size(tsh_dtype dtype) {
    return tsh_dtype_size(tshi_dtype_sum(dtype));
}

/* The kernels, tshi_cpu_TABLE_SLOT, with the dtype as an argument. */
#define KERNEL(table, slot, name, parameters, ...)                                                                     \
    void tshi_cpu_##table##_##slot(tsh_device *device, tsh_dtype dtype, LIST parameters);
#define ATTENTION(slot, name, parameters, ...) KERNEL(attention, slot, name, parameters)
#define WHOLE_KERNEL(...)
#include "device/kernels.def"

/* Sets the slots of the tables to kernels in ranges. Whole and optional kernels are those of the
 * instruction set. */
void tshi_cpu_ranges(const tshi_isa *isa, tshi_float_tables *tables);

/* Kernels that get their dtypes as arguments. */
tshi_convert_fn tshi_cpu_convert_all;
tshi_top_fn tshi_cpu_top_find;
/* Products with quantized weights (quantized.c). */
tshi_quantize_activations_fn tshi_cpu_quantize_activations;
tshi_quantized_multiply_fn tshi_cpu_quantized_multiply;
tshi_dequantize_fn tshi_cpu_dequantize;
/* The scratch memory of all threads. */
tshi_attention_scratch_fn tshi_cpu_attention_scratch;

#endif
