#include "device/cpu/kernels/rows.h"
#include "device/cpu/kernels/vector_math.h"

#define KERNELS "device/cpu/kernels/rows.inc"
#include "device/cpu/kernels/each_dtype.inc"
