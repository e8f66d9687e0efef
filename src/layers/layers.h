/* Private functions of layers. */
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

/* Creates a layer's parameter, initialised by `init`, or by `fallback` if that is zero, and requiring a gradient, with
 * `layout` along the group's axis and REPLICATED along the others. */
tsh_status tshi_parameter_create(tsh_group *group, tsh_dtype dtype, int ndim, const int64_t *shape, tsh_layout layout,
                                 const tsh_init *init, const tsh_init *fallback, tsh_tensor **out);

/* The initialiser with the range or the deviation that follows from these fans, in place of a kind that has fans. */
tsh_init tshi_init_with_fans(const tsh_init *init, double fan_in, double fan_out);

/* tshi_parameter_create with layouts along all axes. */
tsh_status tshi_parameter_create_as(const tsh_mesh *mesh, const tsh_tensor_config *config, const tsh_init *init,
                                    const tsh_init *fallback, tsh_tensor **out);

/* True when a forward call may begin: the tape has not failed, and layer and x are not NULL. */
bool tshi_layer_ready(tsh_tape *tape, const char *what, const void *layer, tsh_tensor *x);

/* The dtype that a linear layer computes in. */
tsh_dtype tshi_linear_dtype(const tsh_linear *layer);

/* --- adapters ----------------------------------------------------------------------------------------------------- */

/* The low-rank adapter of a layer's weight W: W + scale B A, of a table that is looked up W + scale A B^T; zeros:
 * none. */
typedef struct tshi_adapter {
    tsh_tensor *a, *b; /* [r, in] and [out, r], of a table [rows, r] and [cols, r]; split as W's dims are */
    double scale, dropout;
    bool merged; /* W contains scale B A */
    bool lookup; /* of a table that is looked up */
} tshi_adapter;

/* What an adapter is for: a weight, with the bias (NULL: none) that is frozen with it. */
typedef struct tshi_adapted {
    tsh_tensor *weight, *bias;
    bool lookup;
} tshi_adapted;

/* The config applies to the layer with this full name. */
bool tshi_lora_targets(const tsh_lora_config *config, const char *name);
/* Freezes the weight and the bias, creates the adapter, and appends its parameters to the list (NULL: none). On failure
 * there is no adapter. */
tsh_status tshi_adapter_create(const char *what, tshi_adapted adapted, const tsh_lora_config *config,
                               tsh_parameters *list, const char *name, tshi_adapter *out);
void tshi_adapter_release(tshi_adapter *adapter);
/* tsh_parameters_add under "NAME.lora_A.weight" and so on, of a lookup "NAME.lora_embedding_A". */
tsh_status tshi_adapter_register(const tshi_adapter *adapter, tsh_parameters *list, const char *name);
/* TSH_ERR_UNSUPPORTED, before anything changes, if the targets name a part of this mixture of experts: experts and
 * their router have no adapters. */
tsh_status tshi_experts_check_targets(const tsh_experts *layer, const tsh_lora_config *config, const char *name);
/* Adds scale B A to the weight, or subtracts it. */
tsh_status tshi_adapter_merge(const char *what, tshi_adapter *adapter, const tsh_tensor *weight, bool merged);

/* --- layers made of layers ------------------------------------------------------------------------------- */

#define TSHI_LAYER_NAME 256

/* Writes "NAME.PART", only PART if `name` is NULL or empty, only NAME if `part` is empty. TSH_ERR_ARGUMENT when it does
 * not fit. */
tsh_status tshi_layer_name(const char *name, const char *part, char text[TSHI_LAYER_NAME]);

/* A linear layer that is part of another layer, with its name there. */
typedef struct tshi_linear_part {
    char name[TSHI_LAYER_NAME];
    tsh_linear *linear;
} tshi_linear_part;

/* The sharding of a layer's parts: by the table and the layer's name, or by each part's fallback. */
typedef struct tshi_parts_sharding {
    const tsh_sharding_rule *table;
    const char *layer;
    bool sequence_parallel;
} tshi_parts_sharding;

/* Creates a part; the configuration's shard, with its units and blocks, is the fallback. */
tsh_status tshi_linear_part_create(tsh_group *group, const tshi_parts_sharding *sharding, const char *name,
                                   const tsh_linear_config *config, tshi_linear_part *out);
/* Appends the parameters of the parts, in order. */
tsh_status tshi_linear_parts_register(const tshi_linear_part *parts, int count, tsh_parameters *list, const char *name);
/* Adapts those of the parts that the config names. */
tsh_status tshi_linear_parts_adapt(const tshi_linear_part *parts, int count, const tsh_lora_config *config,
                                   tsh_parameters *list, const char *name);

/* True when the name of this length matches the pattern, in which a `*` stands for one or more characters other than
 * '.'. */
bool tshi_layer_matches(const char *pattern, const char *name, size_t length);
/* True when the pattern matches the parameter's name, or that of a layer that contains it. */
bool tshi_parameter_matches(const char *pattern, const char *name);

/* --- sharding ----------------------------------------------------------------------------------------------------- */

/* Checks the fields that the configurations of linear and embedding share. */
tsh_status tshi_sharding_check(const char *what, const tsh_group *group, tsh_sharding shard, bool gather_output,
                               bool sequence_parallel, tsh_dtype dtype);
/* The layouts that a layer wants of its output: along the group's axis, a row layer's terms are summed, and a column
 * layer's output is gathered if the flag says so. */
tshi_want tshi_layer_want(const tsh_group *group, tsh_sharding shard, bool gather_output, bool sequence_parallel);

#endif
