/* Models whose every byte is known, to be saved and loaded. */
#ifndef TSHI_TEST_CHECKPOINTS_H
#define TSHI_TEST_CHECKPOINTS_H

#include "support/files.h"
#include "support/ranks.h"
#include "tshard/checkpoint.h"

#define TSHI_TEST_LAYOUTS 5
#define TSHI_TEST_MODEL   8

/* Tensors of several dtypes and shapes, empty ones and a scalar among them, in one of five ways: 0: one axis, the
 * first dim sharded; 1: two axes, replicas of shards of the last dim; 2: two axes that shard one dim or two, in an
 * order, and on a mesh of the ranks backwards that lacks one of them; 3: one axis, units that ranks share, or parts of
 * them; 4: two axes, the first with cut points, within which the second may split too. */
typedef struct tshi_test_model {
    tsh_mesh *mesh;
    tsh_parameters *list;
} tshi_test_model;
void tshi_test_model_make(tshi_rank *r, int way, tshi_test_model *m);
void tshi_test_model_free(tshi_test_model *m);
/* Every element's bits follow from the seed, its tensor's number and its index in the whole tensor. */
void tshi_test_model_fill(tshi_rank *r, const tshi_test_model *m, uint64_t seed);
/* Notes the first element that has other bits. */
bool tshi_test_model_is(tshi_rank *r, const tshi_test_model *m, uint64_t seed, const char *what);

#endif
