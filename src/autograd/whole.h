/* Determinism: calls that every rank makes on whole tensors, so that their results have the bits of one rank's. */
#ifndef TSHI_WHOLE_H
#define TSHI_WHOLE_H

#include "autograd/rules.h"
#include "autograd/tape.h"

/* Parts of the call's inputs would not give the bits of a call on the wholes, which a deterministic world wants. */
bool tshi_whole_wanted(const tsh_call *call, const tshi_rule_rows *rows);
/* The call on whole inputs along every axis along which no input is LOCAL, and its output in the layouts `out`. Each call
 * has copies of its own of inputs that have gradients, so that gradients are added up one call after another, as on one
 * rank. call->in is overwritten. NULL on failure. */
tsh_tensor *tshi_whole_run(tsh_call *call, tsh_dtype dtype, const tsh_shape *shape, const tshi_rule_rows *rows,
                           const tsh_layout out[TSH_MAX_AXES]);

#endif
