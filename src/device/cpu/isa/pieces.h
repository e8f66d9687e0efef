/* How typed kernels reach their elements: piece by piece as REAL, on which the loops of a kernel then work. Elements of
 * 16 bits are converted into pieces that stay in L1, so that there are loops only for float and double, and one place
 * converts; other elements are used where they are. */
#ifndef TSHI_CPU_PIECES_H
#define TSHI_CPU_PIECES_H

#include "device/cpu/isa/elements.h"
#include "device/cpu/isa/kernels.h"

#define TSHI_PIECE_LENGTH 1024

#define KERNELS           "device/cpu/isa/pieces.inc"
#include "device/cpu/isa/each_dtype.inc"

#endif
