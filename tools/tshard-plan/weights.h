/* tshard-plan --search weights: weights of a mesh axis from the ranks' speeds and memory limits. */
#ifndef WEIGHTS_H
#define WEIGHTS_H

#include "base/number.h"
#include "plan.h"

#include <stdbool.h>
#include <stdint.h>

enum { WEIGHTS_MOST = 256 };

typedef struct weights_search {
    const char *option; /* of the program, without the dashes, that takes the weights; NULL: no search */
    int speed[WEIGHTS_MOST], speeds;
    int64_t limit[WEIGHTS_MOST]; /* bytes of each rank along the axis, or of all of them */
    int limits;
} weights_search;

/* "3,1" or "3:1", and "8G,4G", which are split where they stand. NULL, or what is wrong with them. */
const char *weights_add_speeds(weights_search *s, char *text);
const char *weights_add_limits(weights_search *s, char *text);
/* Plans the command, which ends with NULL, until every rank's peak is within its limit. Returns the exit code: 0 when
 * there are such weights. */
int weights_run(const weights_search *s, int ranks, bool json, char *const *command);

#endif
