#ifndef TSHI_TEST_SHRINK_H
#define TSHI_TEST_SHRINK_H

#include "differential/program.h"

/* True when a smaller program still fails as the first one did. */
typedef bool tshi_fails_fn(const tshi_program *p, void *user);

/* Take out of *p whatever can be taken out while it fails, with `tries` attempts at most. */
void tshi_program_shrink(tshi_program *p, int tries, tshi_fails_fn *fails, void *user);

#endif
