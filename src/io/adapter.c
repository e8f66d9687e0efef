/* Low-rank adapters in PEFT's folders: their factors, as tsh_load and tsh_save move them. */
#include "io/adapter.h"

#include "dist/world.h"
#include "io/file.h"
#include "io/step_folder.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* PEFT wraps the model, and its A of an embedding is [r, num_embeddings]. */
static const tsh_name_rule rules[] = {
    {.parameter = "*.lora_embedding_A", .tensor = "base_model.model.*.lora_embedding_A", .transpose = true},
    {.parameter = "*", .tensor = "base_model.model.*"}};

/* Makes a list of the adapters' factors among the parameters. TSH_ERR_ARGUMENT for a list without adapters. */
static tsh_status take_factors(const char *what, const tsh_parameters *list, tsh_parameters **out) {
    *out = NULL;
    if (!list) return tshi_fail(TSH_ERR_ARGUMENT, "%s: a list of parameters is required", what);
    tsh_status status = tsh_parameters_create(list->world, out);
    for (int i = 0; i < list->count && status == TSH_OK; i++) {
        const tshi_parameter *p = &list->items[i];
        if (tshi_adapter_part(p->name, 'A') || tshi_adapter_part(p->name, 'B'))
            status = tsh_parameters_add(*out, p->name, p->tensor);
    }
    if (status == TSH_OK && (*out)->count == 0)
        status = tshi_fail(TSH_ERR_ARGUMENT, "%s: none of %d parameters is an adapter's", what, list->count);
    if (status == TSH_OK) return TSH_OK;
    tsh_parameters_destroy(*out);
    *out = NULL;
    return status;
}

tsh_status tsh_adapter_load(tsh_parameters *list, const char *folder) {
    const tsh_load_options options = {.rules = rules, .rule_count = sizeof rules / sizeof *rules};
    char path[TSHI_PATH];
    tsh_parameters *factors;
    if (!folder) return tshi_fail(TSH_ERR_ARGUMENT, "adapter_load: a folder is required");
    tsh_status status = tshi_path_join(path, folder, TSHI_ADAPTER_WEIGHTS);
    if (status == TSH_OK) status = take_factors("adapter_load", list, &factors);
    if (status != TSH_OK) return status;
    status = tsh_load(factors, path, &options);
    tsh_parameters_destroy(factors);
    return status;
}

/* Rank 0: the folder and its configuration. */
static tsh_status begin_folder(const char *folder, const tsh_lora_config *config, const char *base,
                               const tsh_parameters *factors) {
    char path[TSHI_PATH];
    tsh_status status = tshi_path_join(path, folder, TSHI_ADAPTER_CONFIG);
    if (status == TSH_OK && mkdir(folder, 0777) != 0 && errno != EEXIST)
        status = tshi_file_fail(errno, folder, "cannot be created");
    return status == TSH_OK ? tshi_adapter_config_write(path, config, base, factors) : status;
}

tsh_status tsh_adapter_save(tsh_parameters *list, const char *folder, const tsh_lora_config *config, const char *base) {
    const tsh_save_options options = {.rules = rules, .rule_count = sizeof rules / sizeof *rules};
    char path[TSHI_PATH];
    tsh_parameters *factors;
    if (!folder || !config)
        return tshi_fail(TSH_ERR_ARGUMENT, "adapter_save: a folder and a configuration are required");
    tsh_status status = tshi_path_join(path, folder, TSHI_ADAPTER_WEIGHTS);
    if (status == TSH_OK) status = take_factors("adapter_save", list, &factors);
    if (status != TSH_OK) return status;
    if (list->world->rank == 0) status = begin_folder(folder, config, base, factors);
    status = tshi_group_agree(list->world->group, "adapter_save", status);
    if (status == TSH_OK) status = tsh_save(factors, path, &options);
    tsh_parameters_destroy(factors);
    return status;
}
