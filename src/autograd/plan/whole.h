/* Determinism: calls that every rank makes on whole tensors, so that their results have the bits of one rank's. Values
 * move between layouts without sums of more than one term that is not zero: what has been computed whole is sliced, or
 * is the first rank's term of a sum. */
#ifndef TSHI_WHOLE_H
#define TSHI_WHOLE_H

#include "autograd/plan/rules.h"

/* Parts of the call's inputs would not give the bits of a call on the wholes. Some input is LOCAL along the axes
 * `local`, a bit each, along which there is no whole. */
bool tshi_whole_wanted(const tsh_call *call, const tshi_rule_rows *rows, unsigned local, bool recording);
/* Makes the layouts REPLICATED along all other axes. */
void tshi_whole_apply(const tsh_mesh *mesh, unsigned local, tsh_layout layout[TSH_MAX_AXES]);

#endif
