/* tshard-plan --search: plans a program with every combination of values of some of its options, and lists the best. */
#ifndef SEARCH_H
#define SEARCH_H

#include "plan.h"

#include <stdbool.h>
#include <stdint.h>

enum { SEARCH_OPTIONS = 16, SEARCH_VALUES = 64, SEARCH_MOST = 4096 };

typedef struct search_option {
    const char *name; /* of the program's option, without the dashes */
    const char *value[SEARCH_VALUES];
    int values;
} search_option;

typedef struct search {
    search_option option[SEARCH_OPTIONS];
    int options;
    int64_t memory_limit; /* bytes of a rank; 0: none */
} search;

/* "NAME=A,B,...", which is split where it stands. NULL, or what is wrong with it. */
const char *search_add(search *s, char *text);
/* Plans the command, which ends with NULL, on `ranks` with each combination; machine may be NULL. Returns the exit
 * code: 0 when a combination fits. */
int search_run(const search *s, int ranks, const machine *m, bool json, char *const *command);

#endif
