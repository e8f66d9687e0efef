/* Layers from the inside. */
#ifndef TSHI_LAYERS_H
#define TSHI_LAYERS_H

#include "functional/functional.h"
#include "tshard/layers.h"

typedef struct tshi_parameter {
    char *name;
    tsh_tensor *tensor;
} tshi_parameter;

struct tsh_parameters {
    tsh_world *world;
    tshi_parameter *items;
    int count, capacity;
    tsh_tensor
        *scalar; /* one float64: the gradient norm's all-reduce, which must not fail on one rank for want of memory
                  */
};

/* tsh_parameters_add under the name "PREFIX.PART". */
tsh_status tshi_parameters_add_part(tsh_parameters *list, const char *prefix, const char *part, tsh_tensor *tensor);

/* A layer's parameter, initialised (`init` by `fallback` where it is zero) and wanting a gradient, with `layout` along
 * the group's axis and REPLICATED along the others. */
tsh_status tshi_parameter_create(tsh_group *group, tsh_dtype dtype, int ndim, const int64_t *shape, tsh_layout layout,
                                 const tsh_init *init, const tsh_init *fallback, tsh_tensor **out);

/* What linear and embedding have in common in a configuration. */
tsh_status tshi_sharding_check(const char *what, const tsh_group *group, tsh_sharding shard, bool gather_output,
                               bool sequence_parallel, tsh_dtype dtype);
/* What the flags ask of the output: along the group's axis a row layer's sum is made, and a column layer's output is
 * gathered. */
tshi_want tshi_layer_want(const tsh_group *group, tsh_sharding shard, bool gather_output, bool sequence_parallel);

#endif
