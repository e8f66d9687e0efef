#include "device/cpu/rows.h"
#include "device/cpu/vector_math.h"

#include "device/cpu/float32.inc"

#include "device/cpu/rows.inc"

#include "device/cpu/float64.inc"

#include "device/cpu/rows.inc"
