/* The table of this instruction set. */
#include "device/cpu/isa/kernels.h"
#include "device/cpu/isa/loops.h"

#define TEXT_OF(name) #name
#define TEXT(name)    TEXT_OF(name)

const tshi_isa TSHI_TABLE(tshi_isa_table) = {
    .name = TEXT(TSHI_TABLE_NAME),
    .vector_bytes = TSHI_VECTOR_BYTES,
#ifdef TSHI_MULTIPLIES_BFLOAT16
    .multiplies_bfloat16 = true,
#endif
    .widen = TSHI_ISA(tshi_cpu_widen),
    .narrow = TSHI_ISA(tshi_cpu_narrow),
    .few_rows = TSHI_TABLE(tshi_cpu_few_rows),
    .fill = TSHI_ISA(tshi_cpu_fill),
    .convert = TSHI_ISA(tshi_cpu_convert),
    .reduce = TSHI_ISA(tshi_cpu_reduce),
    .top = &TSHI_ISA(tshi_cpu_top),
    .quantized = &TSHI_TABLE(tshi_cpu_quantized),
    .elementwise = TSHI_ISA(tshi_cpu_elementwise),
    .sum = TSHI_ISA(tshi_cpu_sum),
    .loss = TSHI_ISA(tshi_cpu_loss),
    .softmax = TSHI_ISA(tshi_cpu_softmax),
    .cross_entropy = TSHI_ISA(tshi_cpu_cross_entropy),
    .embedding = TSHI_ISA(tshi_cpu_embedding),
    .norm = TSHI_ISA(tshi_cpu_norm),
    .attention = TSHI_ISA(tshi_cpu_attention),
    .random = TSHI_ISA(tshi_cpu_random),
    .optimizer = TSHI_ISA(tshi_cpu_optimizer),
};
