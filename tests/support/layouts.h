/* Layouts in as many letters as fit a table of cases: for a test's own file. */
#ifndef TSHI_TEST_LAYOUTS_H
#define TSHI_TEST_LAYOUTS_H

#include "tshard/tensor.h"

#define R  TSH_REPLICATED_INIT
#define S0 TSH_SHARD_INIT(0)
#define S1 TSH_SHARD_INIT(1)
#define L  TSH_LOCAL_INIT

#endif
