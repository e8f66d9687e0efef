/* Every collective against a plain loop, for a rank's function of support/ranks.h. Each checks itself on all ranks. */
#ifndef TSHI_TEST_COLLECTIVES_H
#define TSHI_TEST_COLLECTIVES_H

#include "support/ranks.h"

/* How n elements are spread over the ranks. */
typedef enum tshi_spread { TSHI_BALANCED, TSHI_UNEVEN, TSHI_LAST_ONLY, TSHI_SPREAD_COUNT } tshi_spread;

bool tshi_try_all_reduce(tshi_rank *r, tsh_group *group, tsh_dtype dtype, tsh_reduce_op reduce, int64_t n);
bool tshi_try_all_gather(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n, tshi_spread spread, bool in_place);
bool tshi_try_reduce_scatter(tshi_rank *r, tsh_group *group, tsh_dtype dtype, tsh_reduce_op reduce, int64_t n,
                             tshi_spread spread, bool in_place);
bool tshi_try_broadcast(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n, int root);
/* About n elements in all from each rank; uneven: every pair another number, some none. */
bool tshi_try_all_to_all(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n, bool uneven);

bool tshi_try_reduce(tshi_rank *r, tsh_group *group, tsh_dtype dtype, tsh_reduce_op reduce, int64_t n, int root);
bool tshi_try_gather(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n, tshi_spread spread, bool in_place,
                     int root);
bool tshi_try_scatter(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n, tshi_spread spread, bool in_place,
                      int root);

/* The calls with a tensor for each rank. */
bool tshi_try_lists(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n, tshi_spread spread);
/* Every rank sends to the next one. For groups of two and more. */
bool tshi_try_messages(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n);

/* From now on this rank starts the calls that can be started, asks whether they are done, and waits for them. */
void tshi_try_started(bool on);

/* All of the above for one dtype and size, with every reduction that it has. */
bool tshi_try_all(tshi_rank *r, tsh_group *group, tsh_dtype dtype, int64_t n);

#endif
