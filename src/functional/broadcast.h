/* Elementwise functions of two tensors of different shapes. */
#ifndef TSHI_BROADCAST_H
#define TSHI_BROADCAST_H

#include "functional/functional.h"

typedef enum tshi_binary { TSHI_ADD, TSHI_SUB, TSHI_MUL } tshi_binary;

/* Two tensors of different shapes. */
bool tshi_broadcasts(const tsh_tensor *x, const tsh_tensor *y);
/* f(x, y) with sizes of 1 repeated; y of one shape with x takes less time elsewhere. */
tsh_tensor *tshi_broadcast(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y, tshi_binary f);

#endif
