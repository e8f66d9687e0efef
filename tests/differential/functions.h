/* Steps that call one function of functional.h each: quotients, functions of elements, extrema, comparisons, masks,
 * casts, permutations, parts, largest elements and losses of elements. */
#ifndef TSHI_TEST_PROGRAM_FUNCTIONS_H
#define TSHI_TEST_PROGRAM_FUNCTIONS_H

#include "differential/bench.h"

/* A quotient, logarithm, root or power that is not whole is taken of elements that are this large at least. */
static const double least_divisor = 0.05;

/* Limits that clamp steps choose from: the first ones are exact in programs of whole numbers. */
enum { EXACT_CLAMPS = 5, CLAMPS = 9, POSITIVE_CLAMP = 8 };
extern const double tshi_clamps[CLAMPS][2];

/* The order of dims of a permute step. */
void tshi_permute_order(const tshi_step *s, int ndim, int order[TSH_MAX_DIMS]);

/* What a step makes of its first input's shape and bounds, which it has been given. */
bool tshi_function_infer(const tshi_program *p, tshi_step *s);
/* True of steps whose result has no gradient, and of those whose result is not a smooth function of x. */
bool tshi_function_is_constant(const tshi_step *s);
bool tshi_function_is_rough(const tshi_step *s);
/* How far elements of x are from where the step's gradient changes at once; infinite where there is no such place. */
double tshi_function_margin(const tshi_step *s, const tsh_tensor *x);
tsh_tensor *tshi_function_call(const tshi_bench *b, int k, tsh_tensor *const *in);
void tshi_function_print(const tshi_step *s, FILE *to);

#endif
