/* Linear layers as parts of other layers: names and sharding. */
#include "layers/layers.h"

#include <stdio.h>

tsh_status tshi_layer_name(const char *name, const char *part, char text[TSHI_LAYER_NAME]) {
    const char *first = name ? name : "";
    int n = snprintf(text, TSHI_LAYER_NAME, "%s%s%s", first, first[0] && part[0] ? "." : "", part);
    if (n >= 0 && n < TSHI_LAYER_NAME) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "the name '%.40s...' has more than %d characters", text, TSHI_LAYER_NAME - 1);
}

tsh_status tshi_linear_part_create(tsh_group *group, const tshi_parts_sharding *sharding, const char *name,
                                   const tsh_linear_config *config, tshi_linear_part *out) {
    char full[TSHI_LAYER_NAME];
    tsh_linear_config c = *config;
    tsh_sharding_choice choice = {.shard = config->shard};
    tsh_status status = tshi_layer_name(NULL, name, out->name);
    if (status == TSH_OK) status = tshi_layer_name(sharding->layer, name, full);
    if (status == TSH_OK && sharding->table) status = tsh_sharding_find(sharding->table, full, &choice);
    if (status != TSH_OK) return status;
    if (choice.shard != config->shard) {
        c.units = c.blocks = 0;
        c.shared = false;
    }
    c.shard = choice.shard;
    c.gather_output = choice.gather_output;
    c.sequence_parallel = choice.shard == TSH_ROW && (choice.sequence_parallel || sharding->sequence_parallel);
    return tsh_linear_create(group, &c, &out->linear);
}

tsh_status tshi_linear_parts_register(const tshi_linear_part *parts, int count, tsh_parameters *list,
                                      const char *name) {
    char full[TSHI_LAYER_NAME];
    tsh_status status = TSH_OK;
    if (!list || !name) return tshi_fail(TSH_ERR_ARGUMENT, "parameters_add: a list and a name are required");
    for (int i = 0; i < count && status == TSH_OK; i++) {
        if (!parts[i].linear) continue;
        status = tshi_layer_name(name, parts[i].name, full);
        if (status == TSH_OK) status = tsh_linear_register(parts[i].linear, list, full);
    }
    return status;
}

tsh_status tshi_linear_parts_adapt(const tshi_linear_part *parts, int count, const tsh_lora_config *config,
                                   tsh_parameters *list, const char *name) {
    char full[TSHI_LAYER_NAME];
    tsh_status status = TSH_OK;
    if (!config) return tshi_fail(TSH_ERR_ARGUMENT, "linear_adapt: a configuration is required");
    for (int i = 0; i < count && status == TSH_OK; i++) {
        if (!parts[i].linear) continue;
        status = tshi_layer_name(name, parts[i].name, full);
        if (status == TSH_OK && tshi_lora_targets(config, full))
            status = tsh_linear_adapt(parts[i].linear, config, list, full);
    }
    return status;
}
