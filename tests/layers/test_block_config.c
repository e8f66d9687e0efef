/* What a transformer block's configuration says: names of its parameters, and what it refuses. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(block_config, .timeout = 60);

static void names(tshi_rank *r, void *arg) {
    static const char *const wanted[] = {
        "layer.0.attention.output.LayerNorm.weight", "layer.0.attention.self.query.weight",
        "layer.0.attention.self.key.weight",         "layer.0.attention.self.value.weight",
        "layer.0.attention.output.dense.weight",     "layer.0.output.LayerNorm.weight",
        "layer.0.intermediate.dense.weight",         "layer.0.output.dense.weight"};
    static const tsh_sharding_rule table[] = {{"layer.*.attention.self.*", "column"},
                                              {"layer.*.attention.output.dense", "row"},
                                              {"layer.*.intermediate.dense", "column"},
                                              {"layer.*.output.dense", "row"},
                                              {NULL, NULL}};
    tsh_block_config config = {
        .embed = 4,
        .attention = {.heads = 2, .names = {"self.query", "self.key", "self.value", "output.dense"}},
        .mlp = {.hidden = 3, .names = {NULL, "intermediate.dense", "output.dense"}},
        .names = {"attention.output.LayerNorm", "attention", "output.LayerNorm", ""},
        .table = table,
        .name = "layer.0"};
    tsh_block *block = NULL;
    tsh_parameters *list = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    if (!tshi_check_ok(r, tsh_block_create(tsh_world_group(r->world), &config, &block))) return;
    tshi_check_ok(r, tsh_block_register(block, list, "layer.0"));
    tshi_check_ok(r, tsh_sharding_check(table, list));
    tshi_check(r, tsh_parameters_count(list) == 8, "%d parameters", tsh_parameters_count(list));
    for (int i = 0; i < 8 && !r->failed; i++) {
        const char *name = tsh_parameters_name(list, i);
        tshi_check(r, !strcmp(name, wanted[i]), "parameter %d is '%s'", i, name);
    }
    tsh_layout down = tsh_tensor_layout(tsh_parameters_tensor(list, 7), tsh_world_group(r->world));
    tshi_check(r, down.kind == TSH_KIND_SHARD && down.dim == 1, "output.dense is no row layer");
    tsh_parameters_destroy(list);
    tsh_block_destroy(block);
}

/* BERT's, in which an MLP has no name of its own. */
Test(block_config, names_its_parts_as_the_caller_says) {
    cr_assert_str_empty(tshi_test_run(2, names, NULL));
}

static void wrong_configurations(tshi_rank *r, void *arg) {
    const struct {
        tsh_block_config config;
        const char *words;
    } wrong[] = {
        {{.embed = 6, .attention.heads = 4, .mlp.hidden = 2}, "heads=4 does not divide embed=6; head_dim is required"},
        {{.embed = 6, .attention = {.heads = 3, .kv_heads = 2}, .mlp.hidden = 2}, "kv_heads=2 does not divide heads=3"},
        {{.embed = 6, .attention.heads = -1, .mlp.hidden = 2}, "heads=-1"},
        {{.embed = 0, .attention.heads = 1, .mlp.hidden = 2}, "features=0"},
        {{.embed = 6, .attention.heads = 3, .mlp.hidden = 0}, "hidden=0"},
        {{.embed = 6, .attention.heads = 3, .mlp.hidden = 2, .dropout = 1}, "dropout=1"},
        {{.embed = 6, .attention = {.heads = 3, .dropout = -1}, .mlp.hidden = 2}, "dropout=-1"},
        {{.embed = 6, .attention.heads = 3, .mlp = {.hidden = 2, .embed = 6}}, "must not set features, embed, dtype"},
        {{.embed = 6, .attention.heads = 3, .mlp.hidden = 2, .norm.kind = (tsh_norm_kind)4}, "unknown kind 4"}};
    tsh_block *block = NULL;
    (void)arg;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        tsh_status status = tsh_block_create(tsh_world_group(r->world), &wrong[i].config, &block);
        tshi_check(r, status != TSH_OK && !block, "took configuration %zu", i);
        tshi_check(r, strstr(tsh_error_message(), wrong[i].words), "%zu: \"%s\"", i, tsh_error_message());
    }
}

Test(block_config, refuses_wrong_configurations) {
    cr_assert_str_empty(tshi_test_run(1, wrong_configurations, NULL));
}
