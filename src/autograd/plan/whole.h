/* Determinism: calls that every rank makes on whole tensors, so that results have one rank's bits. Between layouts,
 * sums have at most one term that is not zero: a whole result is sliced, or is the first rank's term. */
#ifndef TSHI_WHOLE_H
#define TSHI_WHOLE_H

#include "autograd/plan/rules.h"

/* True when a call on parts of the inputs would not have the bits of a call on whole inputs. `local`: bits of axes
 * along which some input is LOCAL, so that there is no whole. */
bool tshi_whole_wanted(const tsh_call *call, const tshi_rule_rows *rows, unsigned local, bool recording);
/* Makes the layouts REPLICATED along all axes not in `local`. */
void tshi_whole_apply(const tsh_mesh *mesh, unsigned local, tsh_layout layout[TSH_MAX_AXES]);

#endif
