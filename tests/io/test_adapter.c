/* Adapters in PEFT's folders: configurations, what they may not ask for, saving and loading at any number of ranks. */
#include "support/files.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_TEST(name) Test(adapter, name, .timeout = 120, .init = tshi_test_enter, .fini = tshi_test_leave)

#define PUBLISHED       TSHARD_TEST_DATA "/adapters/llama-lora"

/* --- the configuration -------------------------------------------------------------------------------------------- */

static void read_published(tshi_rank *r, void *arg) {
    static const char *const names[] = {"down_proj", "o_proj", "q_proj", "v_proj"};
    tsh_lora_config *config = NULL;
    (void)arg;
    if (!tshi_check_ok(r, tsh_adapter_config_read(r->world, PUBLISHED, &config))) return;
    tshi_check(r, config->rank == 3 && config->alpha == 6 && !config->rank_stabilized, "rank %lld, alpha %g",
               (long long)config->rank, config->alpha);
    for (int i = 0; i < 4; i++) tshi_check(r, !strcmp(config->targets[i], names[i]), "%s", config->targets[i]);
    tshi_check(r, !config->targets[4], "%s", config->targets[4]);
    tsh_adapter_config_destroy(config);
    tsh_adapter_config_destroy(NULL);
}

Test(adapter, reads_the_configuration_that_peft_has_written, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, read_published, NULL));
}

typedef struct refusal {
    const char *text;
    tsh_status status;
    const char *words;
} refusal;

static void refuse(tshi_rank *r, void *arg) {
    const refusal *wanted = arg;
    tsh_lora_config *config = (tsh_lora_config *)(uintptr_t)1;
    tshi_check_status(r, tsh_adapter_config_read(r->world, tshi_test_path("."), &config), wanted->status,
                      wanted->words);
    tshi_check(r, !config, "a configuration of '%s'", wanted->text);
    tsh_adapter_config_destroy(config);
}

#define BASE "\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 4.5, \"target_modules\": "

FILE_TEST(refuses_what_it_cannot_compute) {
    static const refusal refusals[] = {
        {"[", TSH_ERR_IO, "line 1"},
        {"[]", TSH_ERR_IO, "is not a JSON object"},
        {"{\"peft_type\": \"IA3\"}", TSH_ERR_IO, "peft_type"},
        {"{\"peft_type\": \"LORA\", \"r\": 0}", TSH_ERR_IO, "\"r\" is not"},
        {"{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": null}", TSH_ERR_IO, "lora_alpha"},
        {"{" BASE "\".*_proj\"}", TSH_ERR_IO, "patterns are not supported"},
        {"{" BASE "[]}", TSH_ERR_IO, "target_modules"},
        {"{" BASE "[\"q_proj\"], \"lora_dropout\": 1.5}", TSH_ERR_IO, "lora_dropout"},
        {"{" BASE "[\"q_proj\", 3]}", TSH_ERR_IO, "target_modules"},
        {"{" BASE "[\"q_proj\"], \"use_dora\": true}", TSH_ERR_UNSUPPORTED, "\"use_dora\" is set"},
        {"{" BASE "[\"q_proj\"], \"rank_pattern\": {\"q_proj\": 4}}", TSH_ERR_UNSUPPORTED, "rank_pattern"},
        {"{" BASE "[\"q_proj\"], \"modules_to_save\": [\"lm_head\"]}", TSH_ERR_UNSUPPORTED, "modules_to_save"},
        {"{" BASE "[\"q_proj\"], \"bias\": \"all\"}", TSH_ERR_UNSUPPORTED, "\"bias\""},
        {"{" BASE "[\"q_proj\"], \"init_lora_weights\": \"pissa\"}", TSH_ERR_UNSUPPORTED, "init_lora_weights"}};
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        refusal wanted = refusals[i];
        tshi_test_write_text("adapter_config.json", wanted.text);
        cr_expect_str_empty(tshi_test_run(1, refuse, &wanted), "%s", wanted.text);
    }
    cr_expect_str_empty(tshi_test_run(2, refuse, &(refusal){"", TSH_ERR_UNSUPPORTED, "init_lora_weights"}));
}

FILE_TEST(needs_a_configuration) {
    cr_expect_str_empty(tshi_test_run(1, refuse, &(refusal){"", TSH_ERR_IO, "adapter_config.json"}));
}

static void read_variants(tshi_rank *r, void *arg) {
    tsh_lora_config *config = NULL;
    (void)arg;
    if (!tshi_check_ok(r, tsh_adapter_config_read(r->world, tshi_test_path("."), &config))) return;
    tshi_check(r, config->rank == 2 && config->alpha == 4.5 && config->rank_stabilized && !config->targets,
               "rank %lld, alpha %g", (long long)config->rank, config->alpha);
    tsh_adapter_config_destroy(config);
}

FILE_TEST(reads_all_linear_layers_with_a_stabilized_rank) {
    tshi_test_write_text("adapter_config.json",
                         "{" BASE
                         "\"all-linear\", \"use_rslora\": true, \"modules_to_save\": null, \"use_dora\": false,"
                         " \"rank_pattern\": {}, \"bias\": \"none\", \"init_lora_weights\": \"gaussian\"}");
    cr_assert_str_empty(tshi_test_run(1, read_variants, NULL));
}

/* --- saving and loading ------------------------------------------------------------------------------------------- */

enum { EMBED = 10, HIDDEN = 7, MOST = 64 };

typedef struct pair {
    tsh_mlp *mlp;
    tsh_parameters *list;
} pair;

static const char *const targets[] = {"up_proj", "down_proj", NULL}, *const patterns[] = {"*_proj", NULL};

/* An MLP with adapters, all in one list. */
static void make_pair(tshi_rank *r, const tsh_lora_config *config, uint64_t seed, tsh_dtype dtype, pair *p) {
    tsh_world_seed(r->world, seed);
    const tsh_mlp_config mlp = {.embed = EMBED, .hidden = HIDDEN, .dtype = dtype};
    tshi_check_ok(r, tsh_parameters_create(r->world, &p->list));
    tshi_check_ok(r, tsh_mlp_create(tsh_world_group(r->world), &mlp, &p->mlp));
    tshi_check_ok(r, tsh_mlp_register(p->mlp, p->list, "model.layers.0.mlp"));
    tshi_check_ok(r, tsh_mlp_adapt(p->mlp, config, p->list, "model.layers.0.mlp"));
}

static void free_pair(pair *p) {
    tsh_parameters_destroy(p->list);
    tsh_mlp_destroy(p->mlp);
}

static tsh_lora_config config_of(const char *const *names) {
    return (tsh_lora_config){.rank = 3, .alpha = 2, .targets = names, .b_init = {.kind = TSH_INIT_NORMAL, .b = 1}};
}

static void save_pair(tshi_rank *r, void *arg) {
    pair p;
    const tsh_lora_config config = config_of(arg);
    make_pair(r, &config, 3, TSH_FLOAT32, &p);
    tshi_check_ok(r, tsh_adapter_save(p.list, tshi_test_path("adapter"), &config, "models/base"));
    free_pair(&p);
}

/* What was saved, by any number of ranks, is what the seed gives. */
static void load_pair(tshi_rank *r, void *arg) {
    pair p, wanted;
    tsh_lora_config *config = NULL;
    (void)arg;
    if (!tshi_check_ok(r, tsh_adapter_config_read(r->world, tshi_test_path("adapter"), &config))) return;
    make_pair(r, config, 8, TSH_FLOAT64, &p);
    const tsh_lora_config same = config_of(targets);
    make_pair(r, &same, 3, TSH_FLOAT32, &wanted);
    tshi_check_ok(r, tsh_adapter_load(p.list, tshi_test_path("adapter")));
    tshi_check(r, tsh_parameters_count(p.list) == 6, "%d parameters", tsh_parameters_count(p.list));
    for (int i = 2; i < 6 && !r->failed; i++) {
        const tsh_tensor *a = tsh_parameters_tensor(p.list, i), *b = tsh_parameters_tensor(wanted.list, i);
        for (int64_t k = 0; k < tsh_tensor_local_numel(a); k++)
            tshi_check(r, tshi_test_element(a, k) == tshi_test_element(b, k), "%s[%lld]",
                       tsh_parameters_name(p.list, i), (long long)k);
    }
    tsh_adapter_config_destroy(config);
    free_pair(&p);
    free_pair(&wanted);
}

FILE_TEST(loads_what_any_number_of_ranks_has_saved) {
    for (int ranks = 1; ranks <= 3; ranks++) {
        for (int way = 0; way < 2; way++) {
            cr_assert_str_empty(tshi_test_run(ranks, save_pair, (void *)(uintptr_t)(way ? patterns : targets)));
            cr_assert_str_empty(tshi_test_run_each(1, 4, load_pair, NULL), "saved by %d", ranks);
        }
    }
}

/* The whole contents of a file of the adapter's folder; the caller frees it. */
static char *text_of(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", tshi_test_path("adapter"), name);
    FILE *f = fopen(path, "rb");
    cr_assert(f, "%s", path);
    char *text = calloc(1, 65536);
    cr_assert(text && fread(text, 1, 65535, f) > 8);
    fclose(f);
    return text;
}

FILE_TEST(writes_what_peft_reads) {
    static const char *const config[] = {"\"peft_type\": \"LORA\"", "\"r\": 3,",
                                         "\"lora_alpha\": 2,",      "\"base_model_name_or_path\": \"models/base\"",
                                         "\"use_rslora\": false",   "\"bias\": \"none\""};
    static const char *const names[2][2] = {{"\"up_proj\"", "\"down_proj\""},
                                            {"\"model.layers.0.mlp.up_proj\"", "\"model.layers.0.mlp.down_proj\""}};
    static const char *const tensors[] = {
        "\"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[3,10]",
        "\"base_model.model.model.layers.0.mlp.up_proj.lora_B.weight\":{\"dtype\":\"F32\",\"shape\":[7,3]",
        "\"base_model.model.model.layers.0.mlp.down_proj.lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[3,7]",
        "\"base_model.model.model.layers.0.mlp.down_proj.lora_B.weight\":{\"dtype\":\"F32\",\"shape\":[10,3]"};
    for (int way = 0; way < 2; way++) {
        cr_assert_str_empty(tshi_test_run(2, save_pair, (void *)(uintptr_t)(way ? patterns : targets)));
        char *text = text_of("adapter_config.json"), *header = text_of("adapter_model.safetensors");
        for (size_t i = 0; i < sizeof config / sizeof *config; i++)
            cr_expect(strstr(text, config[i]), "%s: %s", config[i], text);
        for (int i = 0; i < 2; i++) cr_expect(strstr(text, names[way][i]), "%s: %s", names[way][i], text);
        for (int i = 0; i < 4; i++) cr_expect(strstr(header + 8, tensors[i]), "%s: %s", tensors[i], header + 8);
        cr_expect(!strstr(header + 8, "up_proj.weight"), "the base is in the file");
        free(text);
        free(header);
    }
}

/* --- embeddings --------------------------------------------------------------------------------------------------- */

enum { WORDS = 11 };

typedef struct table {
    tsh_embedding *layer;
    tsh_parameters *list;
} table;

/* A table whose lookup and head have adapters; by row. */
static void make_table(tshi_rank *r, uint64_t seed, tsh_sharding shard, table *t) {
    const tsh_embedding_config config = {.num_embeddings = WORDS, .embedding_dim = EMBED, .shard = shard};
    const tsh_lora_config lora = {
        .rank = 3, .a_init = {.kind = TSH_INIT_NORMAL, .b = 1}, .b_init = {.kind = TSH_INIT_NORMAL, .b = 1}};
    tsh_world_seed(r->world, seed);
    tshi_check_ok(r, tsh_parameters_create(r->world, &t->list));
    tshi_check_ok(r, tsh_embedding_create(tsh_world_group(r->world), &config, &t->layer));
    tshi_check_ok(r, tsh_embedding_adapt(t->layer, TSH_EMBEDDING_LOOKUP, &lora, t->list, "model.embed_tokens"));
    tshi_check_ok(r, tsh_embedding_adapt(t->layer, TSH_EMBEDDING_HEAD, &lora, t->list, "lm_head"));
}

static void save_table(tshi_rank *r, void *arg) {
    table t;
    const tsh_lora_config config = {.rank = 3, .dropout = 0.25};
    (void)arg;
    make_table(r, 3, TSH_ROW, &t);
    tshi_check_ok(r, tsh_adapter_save(t.list, tshi_test_path("adapter"), &config, NULL));
    tsh_parameters_destroy(t.list);
    tsh_embedding_destroy(t.layer);
}

static void load_table(tshi_rank *r, void *arg) {
    table t, wanted;
    (void)arg;
    make_table(r, 8, TSH_COLUMN, &t);
    make_table(r, 3, TSH_COLUMN, &wanted);
    tshi_check_ok(r, tsh_adapter_load(t.list, tshi_test_path("adapter")));
    for (int i = 0; i < 4 && !r->failed; i++) {
        const tsh_tensor *a = tsh_parameters_tensor(t.list, i), *b = tsh_parameters_tensor(wanted.list, i);
        for (int64_t k = 0; k < tsh_tensor_local_numel(a); k++)
            tshi_check(r, tshi_test_element(a, k) == tshi_test_element(b, k), "%s[%lld]",
                       tsh_parameters_name(t.list, i), (long long)k);
    }
    tsh_parameters_destroy(t.list);
    tsh_parameters_destroy(wanted.list);
    tsh_embedding_destroy(t.layer);
    tsh_embedding_destroy(wanted.layer);
}

/* PEFT's A of an embedding is [r, num_embeddings], and its names have no ".weight". */
FILE_TEST(moves_the_adapters_of_embeddings) {
    static const char *const tensors[] = {
        "\"base_model.model.model.embed_tokens.lora_embedding_A\":{\"dtype\":\"F32\",\"shape\":[3,11]",
        "\"base_model.model.model.embed_tokens.lora_embedding_B\":{\"dtype\":\"F32\",\"shape\":[10,3]",
        "\"base_model.model.lm_head.lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[3,10]",
        "\"base_model.model.lm_head.lora_B.weight\":{\"dtype\":\"F32\",\"shape\":[11,3]"};
    cr_assert_str_empty(tshi_test_run(2, save_table, NULL));
    cr_assert_str_empty(tshi_test_run_each(1, 3, load_table, NULL));
    char *text = text_of("adapter_config.json"), *header = text_of("adapter_model.safetensors");
    for (int i = 0; i < 4; i++) cr_expect(strstr(header + 8, tensors[i]), "%s: %s", tensors[i], header + 8);
    cr_expect(strstr(text, "\"model.embed_tokens\"") && strstr(text, "\"lm_head\""), "%s", text);
    cr_expect(strstr(text, "\"lora_dropout\": 0.25"), "%s", text);
    free(text);
    free(header);
}

static void wrong_use(tshi_rank *r, void *arg) {
    pair p;
    const tsh_lora_config config = config_of(targets), fewer = config_of((const char *const[]){"up_proj", NULL}),
                          wider = {.rank = 4, .targets = targets};
    const char *folder = tshi_test_path("adapter");
    tsh_parameters *none = NULL;
    (void)arg;
    make_pair(r, &config, 3, TSH_FLOAT32, &p);
    tshi_check_ok(r, tsh_parameters_create(r->world, &none));
    tshi_check_status(r, tsh_adapter_save(none, folder, &config, NULL), TSH_ERR_ARGUMENT, "none of 0 parameters");
    tshi_check_status(r, tsh_adapter_save(p.list, folder, NULL, NULL), TSH_ERR_ARGUMENT, "a configuration");
    tshi_check_status(r, tsh_adapter_save(p.list, NULL, &config, NULL), TSH_ERR_ARGUMENT, "a folder");
    tshi_check_status(r, tsh_adapter_load(p.list, folder), TSH_ERR_IO, "adapter_model.safetensors");
    tshi_check_ok(r, tsh_adapter_save(p.list, folder, &config, NULL));
    tshi_check_status(r, tsh_adapter_load(none, folder), TSH_ERR_ARGUMENT, "none of 0 parameters");
    tshi_check_status(r, tsh_adapter_load(NULL, folder), TSH_ERR_ARGUMENT, "a list");
    free_pair(&p);
    make_pair(r, &fewer, 3, TSH_FLOAT32, &p);
    tshi_check_status(r, tsh_adapter_load(p.list, folder), TSH_ERR_IO, "down_proj.lora_A.weight' is unexpected");
    free_pair(&p);
    make_pair(r, &wider, 3, TSH_FLOAT32, &p);
    tshi_check_status(r, tsh_adapter_load(p.list, folder), TSH_ERR_IO, "[4,10] here");
    free_pair(&p);
    tsh_parameters_destroy(none);
}

FILE_TEST(names_what_is_wrong) {
    cr_assert_str_empty(tshi_test_run(1, wrong_use, NULL));
}
