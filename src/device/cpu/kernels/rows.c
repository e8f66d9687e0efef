#include "device/cpu/kernels/rows.h"
#include "device/cpu/kernels/vector_math.h"

#include "device/cpu/kernels/float32.inc"

#include "device/cpu/kernels/rows.inc"

#include "device/cpu/kernels/float64.inc"

#include "device/cpu/kernels/rows.inc"
