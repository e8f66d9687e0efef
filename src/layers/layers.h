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

/* A forward call may begin: the tape has not failed, and there are a layer and an x. */
bool tshi_layer_ready(tsh_tape *tape, const char *what, const void *layer, tsh_tensor *x);

/* --- layers that are made of layers ------------------------------------------------------------------------------- */

#define TSHI_LAYER_NAME 256

/* Writes "NAME.PART", or PART where `name` is NULL or empty, NAME where `part` is empty. TSH_ERR_ARGUMENT for a name
 * without an end within TSHI_LAYER_NAME characters. */
tsh_status tshi_layer_name(const char *name, const char *part, char text[TSHI_LAYER_NAME]);

/* A linear layer as a part of another layer, by its name there. */
typedef struct tshi_linear_part {
    char name[TSHI_LAYER_NAME];
    tsh_linear *linear;
} tshi_linear_part;

/* How the parts of one layer are sharded: by the table with the layer's name, or each by its own fallback. */
typedef struct tshi_parts_sharding {
    const tsh_sharding_rule *table;
    const char *layer;
    bool sequence_parallel;
} tshi_parts_sharding;

/* Makes a part; the configuration's shard is the fallback, for which its units and blocks are. */
tsh_status tshi_linear_part_create(tsh_group *group, const tshi_parts_sharding *sharding, const char *name,
                                   const tsh_linear_config *config, tshi_linear_part *out);
/* Appends the parameters of the parts, in order. */
tsh_status tshi_linear_parts_register(const tshi_linear_part *parts, int count, tsh_parameters *list, const char *name);

/* A name of this length is one that the pattern stands for: a `*` takes as many characters as lead to a match, one at
 * least, and no dot. */
bool tshi_layer_matches(const char *pattern, const char *name, size_t length);

/* --- sharding ----------------------------------------------------------------------------------------------------- */

/* What linear and embedding have in common in a configuration. */
tsh_status tshi_sharding_check(const char *what, const tsh_group *group, tsh_sharding shard, bool gather_output,
                               bool sequence_parallel, tsh_dtype dtype);
/* What the flags ask of the output: along the group's axis a row layer's sum is made, and a column layer's output is
 * gathered. */
tshi_want tshi_layer_want(const tsh_group *group, tsh_sharding shard, bool gather_output, bool sequence_parallel);

#endif
