/* The differentiable functions as cases: what they take and how they are called. */
#ifndef TSHI_TEST_FUNCTION_CASES_H
#define TSHI_TEST_FUNCTION_CASES_H

#include "tshard/functional.h"

typedef struct function_input {
    int64_t vocabulary; /* > 0: int64 ids below it; 0: float64 */
    int ndim;
    int64_t shape[4];
} function_input;

typedef struct function_case {
    const char *name;
    int inputs;
    function_input input[3];
    tsh_tensor *(*build)(tsh_tape *tape, tsh_tensor *const *in);
    bool not_derivative; /* the gradient is defined otherwise (padding) */
} function_case;

extern const function_case function_cases[];
extern const int function_case_count;

#endif
