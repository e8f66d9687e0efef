/* A function whose backward fails in the middle. */
#ifndef TSHI_TEST_FAILING_BACKWARD_H
#define TSHI_TEST_FAILING_BACKWARD_H

#include "tshard/custom.h"

/* x; its backward fails on this rank of the world, or on each (-1), when it has put numbers in a gradient. */
tsh_tensor *tshi_test_fail_in_backward(tsh_tape *tape, tsh_tensor *x, int rank);

#endif
