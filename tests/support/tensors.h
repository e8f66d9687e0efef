/* Tensors with known values, and comparison of a rank's part with the whole. */
#ifndef TSHI_TEST_TENSORS_H
#define TSHI_TEST_TENSORS_H

#include "autograd/grad/accumulate.h"
#include "support/ranks.h"

/* A whole number in [-8, 8] that depends on seed and index: sums of products of them are exact in any order. */
double tshi_test_integer(int seed, int64_t i);
/* n of them. */
void tshi_test_integers(int seed, int64_t n, double *out);

/* A tensor of the whole's values, converted to its dtype; NULL with the failure noted. */
tsh_tensor *tshi_test_tensor(tshi_rank *r, const tsh_mesh *mesh, const tsh_tensor_config *config, const double *whole);
/* A leaf: such a tensor that requires a gradient. */
tsh_tensor *tshi_test_leaf(tshi_rank *r, const tsh_mesh *mesh, const tsh_tensor_config *config, const double *whole);

/* Gives leaf t the gradient, by a backward from sum(t gradient). */
void tshi_test_set_grad(tshi_rank *r, tsh_tape *tape, tsh_tensor *t, const double *whole);

/* Element i of this rank's part as a double, and its index in the whole tensor. */
double tshi_test_element(const tsh_tensor *t, int64_t i);
int64_t tshi_test_place(const tsh_tensor *t, int64_t i);
/* Note where this rank's part of got (REPLICATED and SHARD alone) is not the whole's: |a - b| <= tolerance max(1, |b|),
 * or equal infinities, or NaN as wanted. */
void tshi_test_same(tshi_rank *r, const char *what, const tsh_tensor *got, const double *whole, double tolerance);
/* The gradient of t. */
void tshi_test_same_grad(tshi_rank *r, const char *what, const tsh_tensor *t, const double *whole, double tolerance);

/* Note when the group's counters since the last reset are not these, and reset them. */
void tshi_test_calls(tshi_rank *r, const char *what, tsh_group *group, const tsh_communication_stats *wanted);
/* Add one call to `stats` that moves `elements` of `size` bytes, unless the group is one rank. */
void tshi_test_expect(tsh_communication_stats *stats, const tsh_group *group, tsh_collective op, int64_t elements,
                      size_t size);

#endif
