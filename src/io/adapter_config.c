/* adapter_config.json of PEFT's LoRA adapters. */
#include "base/hash.h"
#include "dist/world.h"
#include "io/adapter.h"
#include "io/file.h"
#include "io/step_folder.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A larger file is no adapter_config.json. */
#define MOST_BYTES (1 << 20)

/* What tsh_adapter_config_read returns: the configuration is first, and its targets are text of the JSON. */
typedef struct read_config {
    tsh_lora_config lora;
    tsh_allocator allocator;
    json_t *json;
    const char *targets[];
} read_config;

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* null, false, 0, "", [] and {} leave a feature out. */
static bool is_off(const json_t *value) {
    if (json_is_string(value)) return json_string_length(value) == 0;
    if (json_is_number(value)) return json_number_value(value) == 0;
    return !value || json_is_null(value) || json_is_false(value) || (json_is_array(value) && !json_array_size(value)) ||
           (json_is_object(value) && !json_object_size(value));
}

/* NULL, or the key of a feature that changes what an adapter computes, or which layers have one. */
static const char *foreign_feature(const json_t *json) {
    static const char *const keys[] = {"use_dora",          "use_qalora",        "use_bdlora",
                                       "rank_pattern",      "alpha_pattern",     "modules_to_save",
                                       "lora_bias",         "exclude_modules",   "layers_to_transform",
                                       "layers_pattern",    "layer_replication", "trainable_token_indices",
                                       "target_parameters", "arrow_config",      "alora_invocation_tokens",
                                       "monteclora_config", "kasa_config",       "velora_config"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (!is_off(json_object_get(json, keys[i]))) return keys[i];
    }
    const char *bias = json_string_value(json_object_get(json, "bias"));
    if (bias && strcmp(bias, "none") != 0) return "bias";
    const char *start = json_string_value(json_object_get(json, "init_lora_weights"));
    return start && strcmp(start, "gaussian") != 0 ? "init_lora_weights" : NULL; /* others change the base's weights */
}

/* True for a list of strings and for "all-linear", which PEFT makes a list of when it saves. */
static bool are_targets(const json_t *targets) {
    bool good = json_is_array(targets) && json_array_size(targets) > 0;
    for (size_t i = 0; good && i < json_array_size(targets); i++) good = json_is_string(json_array_get(targets, i));
    return good || (json_is_string(targets) && !strcmp(json_string_value(targets), "all-linear"));
}

/* NULL, or what is wrong. */
static const char *check_json(const json_t *json) {
    const char *type = json_string_value(json_object_get(json, "peft_type"));
    const json_t *r = json_object_get(json, "r"), *alpha = json_object_get(json, "lora_alpha");
    double dropout = json_number_value(json_object_get(json, "lora_dropout"));
    if (!json_is_object(json)) return "is not a JSON object";
    if (!type || strcmp(type, "LORA") != 0) return "\"peft_type\" is not \"LORA\"";
    if (!json_is_integer(r) || json_integer_value(r) < 1) return "\"r\" is not an integer of at least 1";
    if (!json_is_number(alpha)) return "\"lora_alpha\" is not a number";
    if (!(dropout >= 0 && dropout < 1)) return "\"lora_dropout\" is not in [0, 1)";
    if (are_targets(json_object_get(json, "target_modules"))) return NULL;
    return "\"target_modules\" is neither a list of names nor \"all-linear\"; patterns are not supported";
}

static tsh_status read_file(const tsh_allocator *allocator, const char *path, json_t **out) {
    char *text;
    size_t bytes;
    json_error_t error;
    tsh_status status = tshi_file_load(allocator, path, "an adapter's configuration", MOST_BYTES, &text, &bytes);
    if (status != TSH_OK) return status;
    json_t *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    tshi_free(allocator, text);
    if (!json) return tshi_fail(TSH_ERR_IO, "%.220s: line %d: %.150s", path, error.line, error.text);
    const char *wrong = check_json(json), *foreign = wrong ? NULL : foreign_feature(json);
    if (!wrong && !foreign) {
        *out = json;
        return TSH_OK;
    }
    json_decref(json);
    if (wrong) return tshi_fail(TSH_ERR_IO, "%.220s: %s", path, wrong);
    return tshi_fail(TSH_ERR_UNSUPPORTED, "%.220s: \"%s\" is set, which is not supported", path, foreign);
}

static tsh_status read_config_file(const tsh_allocator *allocator, const char *folder, read_config **out) {
    char path[TSHI_PATH];
    json_t *json = NULL;
    tsh_status status = tshi_path_join(path, folder, TSHI_ADAPTER_CONFIG);
    if (status == TSH_OK) status = read_file(allocator, path, &json);
    if (status != TSH_OK) return status;
    const json_t *targets = json_object_get(json, "target_modules");
    size_t count = json_array_size(targets);
    read_config *read = tshi_calloc(allocator, 1, sizeof *read + (count + 1) * sizeof *read->targets);
    if (!read) {
        json_decref(json);
        return TSH_ERR_MEMORY;
    }
    for (size_t i = 0; i < count; i++) read->targets[i] = json_string_value(json_array_get(targets, i));
    read->allocator = *allocator;
    read->json = json;
    read->lora = (tsh_lora_config){.rank = json_integer_value(json_object_get(json, "r")),
                                   .alpha = json_number_value(json_object_get(json, "lora_alpha")),
                                   .rank_stabilized = json_is_true(json_object_get(json, "use_rslora")),
                                   .dropout = json_number_value(json_object_get(json, "lora_dropout")),
                                   .targets = count ? read->targets : NULL};
    *out = read;
    return TSH_OK;
}

tsh_status tsh_adapter_config_read(tsh_world *world, const char *folder, tsh_lora_config **out) {
    char text[TSHI_LINE];
    read_config *read = NULL;
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "adapter_config_read: out is NULL");
    *out = NULL;
    if (!world) return tshi_fail(TSH_ERR_ARGUMENT, "adapter_config_read: a world is required");
    tsh_status status = folder ? read_config_file(&world->allocator, folder, &read)
                               : tshi_fail(TSH_ERR_ARGUMENT, "adapter_config_read: a folder is required");
    uint64_t names = TSHI_FINGERPRINT;
    for (const char *const *t = read ? read->lora.targets : NULL; t && *t; t++)
        names = tshi_fingerprint_text(names, *t);
    snprintf(text, sizeof text, "adapter_config_read: r=%lld, alpha=%g%s, dropout=%g, %08x",
             read ? (long long)read->lora.rank : 0, read ? read->lora.alpha : 0,
             read && read->lora.rank_stabilized ? " / sqrt(r)" : "", read ? read->lora.dropout : 0, (unsigned)names);
    status = tshi_group_agree(world->group, text, status);
    if (status == TSH_OK)
        *out = &read->lora;
    else if (read)
        tsh_adapter_config_destroy(&read->lora);
    return status;
}

void tsh_adapter_config_destroy(tsh_lora_config *config) {
    if (!config) return;
    read_config *read = (read_config *)config;
    const tsh_allocator allocator = read->allocator;
    json_decref(read->json);
    tshi_free(&allocator, read);
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

const char *tshi_adapter_part(const char *name, char factor) {
    static const char *const ends[2][2] = {{".lora_A.weight", ".lora_B.weight"},
                                           {".lora_embedding_A", ".lora_embedding_B"}};
    for (int i = 0; i < 2; i++) {
        const char *end = ends[i][factor != 'A'];
        size_t length = strlen(name), most = strlen(end);
        if (length > most && !strcmp(name + length - most, end)) return name + length - most;
    }
    return NULL;
}

/* The configuration's targets, or, where these say nothing to PEFT, the full names of all layers of the list. */
static json_t *target_names(const tsh_lora_config *config, const tsh_parameters *list) {
    bool plain = config->targets != NULL;
    for (const char *const *t = config->targets; plain && *t; t++) plain = !strchr(*t, '*');
    json_t *names = json_array();
    for (const char *const *t = config->targets; plain && *t; t++) json_array_append_new(names, json_string(*t));
    for (int i = 0; !plain && i < list->count; i++) {
        const char *name = list->items[i].name, *end = tshi_adapter_part(name, 'A');
        if (end) json_array_append_new(names, json_stringn(name, (size_t)(end - name)));
    }
    return names;
}

tsh_status tshi_adapter_config_write(const char *path, const tsh_lora_config *config, const char *base,
                                     const tsh_parameters *list) {
    double alpha = config->alpha == 0 ? (double)config->rank : config->alpha;
    bool whole = alpha == floor(alpha) && fabs(alpha) < 1e15;
    json_t *json = json_pack("{s:s, s:s, s:s?, s:I, s:o, s:b, s:o, s:s, s:f, s:b, s:b, s:b, s:n}", "peft_type", "LORA",
                             "task_type", "CAUSAL_LM", "base_model_name_or_path", base, "r", (json_int_t)config->rank,
                             "lora_alpha", whole ? json_integer((json_int_t)alpha) : json_real(alpha), "use_rslora",
                             (int)config->rank_stabilized, "target_modules", target_names(config, list), "bias", "none",
                             "lora_dropout", config->dropout, "fan_in_fan_out", 0, "init_lora_weights", 1,
                             "inference_mode", 1, "modules_to_save");
    char *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
    json_decref(json);
    if (!text) return tshi_fail(TSH_ERR_MEMORY, "adapter_save: no memory for %.200s", path);
    tsh_status status = tshi_file_save(path, text, strlen(text));
    free(text);
    return status;
}
