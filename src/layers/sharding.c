/* Sharding by names: tables like Hugging Face's base_model_tp_plan. */
#include "layers/layers.h"

#include <string.h>

static const struct {
    const char *word;
    tsh_sharding_choice choice;
} words[] = {
    {"dense", {TSH_DENSE, false, false}},       {"replicated", {TSH_DENSE, false, false}},
    {"column", {TSH_COLUMN, false, false}},     {"colwise", {TSH_COLUMN, false, false}},
    {"features", {TSH_COLUMN, false, false}},   {"column_gather", {TSH_COLUMN, true, false}},
    {"colwise_rep", {TSH_COLUMN, true, false}}, {"colwise_gather_output", {TSH_COLUMN, true, false}},
    {"row", {TSH_ROW, false, false}},           {"rowwise", {TSH_ROW, false, false}},
    {"vocabulary", {TSH_ROW, false, false}},    {"embedding_rowwise", {TSH_ROW, false, false}},
    {"row_sequence", {TSH_ROW, false, true}},
};

static const tsh_sharding_choice *choice_of(const char *word) {
    for (size_t i = 0; word && i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(words[i].word, word) == 0) return &words[i].choice;
    }
    return NULL;
}

bool tshi_layer_matches(const char *pattern, const char *name, size_t length) {
    while (*pattern && *pattern != '*') {
        if (length == 0 || *pattern != *name) return false;
        pattern++, name++, length--;
    }
    if (!*pattern) return length == 0;
    for (size_t n = 1; n <= length && name[n - 1] != '.'; n++) {
        if (tshi_layer_matches(pattern + 1, name + n, length - n)) return true;
    }
    return false;
}

static tsh_status check_table(const char *what, const tsh_sharding_rule *table) {
    if (!table) return tshi_fail(TSH_ERR_ARGUMENT, "%s: a table is required", what);
    for (const tsh_sharding_rule *row = table; row->layers || row->sharding; row++) {
        if (!row->layers || !row->layers[0]) {
            return tshi_fail(TSH_ERR_ARGUMENT, "%s: row %d of the table has no layers", what, (int)(row - table));
        }
        if (choice_of(row->sharding)) continue;
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "%s: '%s' of '%s' is not a sharding; use column, row, dense, column_gather, row_sequence, "
                         "vocabulary or features",
                         what, row->sharding ? row->sharding : "NULL", row->layers);
    }
    return TSH_OK;
}

/* The first row that matches the layer's name, which has this length, or NULL. */
static const tsh_sharding_rule *row_of(const tsh_sharding_rule *table, const char *name, size_t length) {
    for (const tsh_sharding_rule *row = table; row->layers; row++) {
        if (tshi_layer_matches(row->layers, name, length)) return row;
    }
    return NULL;
}

tsh_status tsh_sharding_find(const tsh_sharding_rule *table, const char *name, tsh_sharding_choice *out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "sharding_find: out is NULL");
    *out = (tsh_sharding_choice){.shard = TSH_DENSE};
    if (!name || !name[0]) return tshi_fail(TSH_ERR_ARGUMENT, "sharding_find: a layer's name is required");
    tsh_status status = check_table("sharding_find", table);
    if (status != TSH_OK) return status;
    const tsh_sharding_rule *row = row_of(table, name, strlen(name));
    if (row) *out = *choice_of(row->sharding);
    return TSH_OK;
}

/* True when the row is the first match of some layer, whose name is a parameter's without the last part. */
static bool is_used(const tsh_sharding_rule *table, const tsh_sharding_rule *row, const tsh_parameters *list) {
    for (int i = 0; i < list->count; i++) {
        const char *name = list->items[i].name, *end = strrchr(name, '.');
        if (end && row_of(table, name, (size_t)(end - name)) == row) return true;
    }
    return false;
}

tsh_status tsh_sharding_check(const tsh_sharding_rule *table, const tsh_parameters *list) {
    if (!list) return tshi_fail(TSH_ERR_ARGUMENT, "sharding_check: a list of parameters is required");
    tsh_status status = check_table("sharding_check", table);
    for (const tsh_sharding_rule *row = table; status == TSH_OK && row->layers; row++) {
        if (is_used(table, row, list)) continue;
        status = tshi_fail(TSH_ERR_ARGUMENT,
                           "sharding_check: no layer is sharded by '%s'; the %d parameters are named '%s' and so on",
                           row->layers, list->count, list->count ? list->items[0].name : "");
    }
    return status;
}
