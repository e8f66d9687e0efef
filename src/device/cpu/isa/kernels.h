/* The kernels of one instruction set: TSHI_ISA_NAME is its name, which ends the names that the files of this folder
 * export. device/kernels.h says what each kernel does. None of them uses the device, which may be NULL.
 * TSHI_TABLE_NAME is the name of the table, its products of few rows and those with quantized weights: an instruction
 * set that adds only products of bfloat16 or of 8-bit integers takes its other kernels from TSHI_ISA_NAME. */
#ifndef TSHI_ISA_KERNELS_H
#define TSHI_ISA_KERNELS_H

#include "device/cpu/isa.h"
#include "device/cpu/kernels/kernels.h"

/* Code outside this folder that names a kernel, not a table, gets that of the build's own flags. */
#ifndef TSHI_ISA_NAME
#define TSHI_ISA_NAME base
#endif
#ifndef TSHI_TABLE_NAME
#define TSHI_TABLE_NAME TSHI_ISA_NAME
#endif
#define TSHI_ISA_JOIN(f, isa)  f##_##isa
#define TSHI_ISA_NAMED(f, isa) TSHI_ISA_JOIN(f, isa)
#define TSHI_ISA(f)            TSHI_ISA_NAMED(f, TSHI_ISA_NAME)
#define TSHI_TABLE(f)          TSHI_ISA_NAMED(f, TSHI_TABLE_NAME)

/* convert.c */
tshi_fill_fn TSHI_ISA(tshi_cpu_fill);
tshi_convert_fn TSHI_ISA(tshi_cpu_convert);
tshi_widen_fn TSHI_ISA(tshi_cpu_widen);
tshi_narrow_fn TSHI_ISA(tshi_cpu_narrow);

/* reduce.c */
tshi_reduce_fn TSHI_ISA(tshi_cpu_reduce);

/* top.c */
extern const tshi_top_ops TSHI_ISA(tshi_cpu_top);

/* quantized.c */
extern const tshi_isa_quantized TSHI_TABLE(tshi_cpu_quantized);

/* few_rows.c */
tshi_few_rows_fn TSHI_TABLE(tshi_cpu_few_rows);

/* random.c */
/* Writes the random words of elements [element, element + n) of a stream. */
void TSHI_ISA(tshi_cpu_words)(uint64_t seed, uint64_t stream, int64_t element, int64_t n, uint32_t *words);

/* Tables by dtype, each in the source file of its name. */
extern const tshi_elementwise_ops TSHI_ISA(tshi_cpu_elementwise)[TSH_DTYPE_COUNT];
extern const tshi_isa_sum TSHI_ISA(tshi_cpu_sum)[TSH_DTYPE_COUNT];
extern const tshi_loss_ops TSHI_ISA(tshi_cpu_loss)[TSH_DTYPE_COUNT];
extern const tshi_softmax_ops TSHI_ISA(tshi_cpu_softmax)[TSH_DTYPE_COUNT];
extern const tshi_cross_entropy_ops TSHI_ISA(tshi_cpu_cross_entropy)[TSH_DTYPE_COUNT];
extern const tshi_isa_embedding TSHI_ISA(tshi_cpu_embedding)[TSH_DTYPE_COUNT];
extern const tshi_isa_norm TSHI_ISA(tshi_cpu_norm)[TSH_DTYPE_COUNT];
extern const tshi_isa_attention TSHI_ISA(tshi_cpu_attention)[TSH_DTYPE_COUNT];
extern const tshi_random_ops TSHI_ISA(tshi_cpu_random)[TSH_DTYPE_COUNT];
extern const tshi_optimizer_ops TSHI_ISA(tshi_cpu_optimizer)[TSH_DTYPE_COUNT];

#endif
