/* The shardings of a linear layer, with the layouts of x and y in each: for the tests of linear layers and of their
 * adapters. */
#ifndef TSHI_TEST_LINEAR_VARIANTS_H
#define TSHI_TEST_LINEAR_VARIANTS_H

#include "support/layouts.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

typedef struct variant {
    const char *name;
    tsh_sharding shard;
    tsh_layout x, y;
    bool gather, sequence;
} variant;

enum { DENSE, DENSE_BATCH, COLUMN, COLUMN_GATHER, COLUMN_SEQUENCE, ROW_WHOLE, ROW, ROW_SEQUENCE, VARIANTS };

static const variant variants[VARIANTS] = {
    [DENSE] = {"dense", TSH_DENSE, R, R, false, false},
    [DENSE_BATCH] = {"dense, batch split", TSH_DENSE, S0, S0, false, false},
    [COLUMN] = {"column", TSH_COLUMN, R, S1, false, false},
    [COLUMN_GATHER] = {"column, gathered", TSH_COLUMN, R, R, true, false},
    [COLUMN_SEQUENCE] = {"column of a split sequence", TSH_COLUMN, S0, S1, false, false},
    [ROW_WHOLE] = {"row of a whole x", TSH_ROW, R, R, false, false},
    [ROW] = {"row", TSH_ROW, S1, R, false, false},
    [ROW_SEQUENCE] = {"row to a split sequence", TSH_ROW, S1, S0, false, true}};

/* A layer with a bias. */
static inline tsh_linear *make_linear(tshi_rank *r, const variant *v, int64_t in, int64_t out, tsh_dtype dtype) {
    tsh_linear *layer = NULL;
    const tsh_linear_config config = {.in_features = in,
                                      .out_features = out,
                                      .shard = v->shard,
                                      .bias = true,
                                      .gather_output = v->gather,
                                      .sequence_parallel = v->sequence,
                                      .dtype = dtype};
    tsh_linear_create(tsh_world_group(r->world), &config, &layer);
    tshi_check(r, layer, "%s: %s", v->name, tsh_error_message());
    return layer;
}

#endif
