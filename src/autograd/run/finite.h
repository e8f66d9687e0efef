/* Looks for functions whose results have a NaN or an infinity. */
#ifndef TSHI_FINITE_H
#define TSHI_FINITE_H

#include "autograd/tape.h"

/* With TSHARD_CHECK=nan, after a call's forward and backward: TSH_ERR_RANGE for a result, or a gradient of an input,
 * that has a NaN. They wait for a GPU. */
tsh_status tshi_call_check_result(const tsh_call *call);
tsh_status tshi_call_check_gradients(const tsh_call *call);

#endif
