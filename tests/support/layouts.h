/* Layouts in as many letters as fit a table of cases: for a test's own file. */
#ifndef TSHI_TEST_LAYOUTS_H
#define TSHI_TEST_LAYOUTS_H

#include "tshard/tensor.h"

#define R                                                                                                              \
    { TSH_KIND_REPLICATED, 0 }
#define S0                                                                                                             \
    { TSH_KIND_SHARD, 0 }
#define S1                                                                                                             \
    { TSH_KIND_SHARD, 1 }
#define L                                                                                                              \
    { TSH_KIND_LOCAL, 0 }

#endif
