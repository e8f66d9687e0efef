/* Known values: what each rank puts in, as small whole numbers that every dtype holds and adds exactly. */
#ifndef VALUES_H
#define VALUES_H

#include "tshard/device.h"

/* Elements as real numbers: a complex one is two. */
tsh_dtype values_component(tsh_dtype dtype);
int values_components(tsh_dtype dtype);

/* What rank `rank` of `ranks` puts in at component i: neighbours differ, ranks differ, and moved blocks show. */
int values_at(int rank, int ranks, int64_t i);
/* The sum of all ranks' values at i. */
int values_sum(int ranks, int64_t i);

/* A component of a dtype that is no complex one. */
void values_store(tsh_dtype component, void *data, int64_t i, int value);
bool values_equal(tsh_dtype component, const void *data, int64_t i, int value);

#endif
