/* Models saved under other names, as they are published: GPT-2's without the prefix of its names, BERT's with one. */
#include "support/files.h"
#include "support/ranks.h"
#include "transformer/model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODELS TSHARD_TEST_DATA "/models/"

typedef struct published {
    const char *folder; /* the model's */
    const char *prefix; /* that the published names lack, or NULL */
    char path[256];     /* where it is published */
} published;

static model *open_model(tshi_rank *r, tsh_mesh *mesh, const char *folder) {
    model_config config;
    model *m = NULL;
    char words[MODEL_WORDS];
    model_options options = {.dtype = TSH_FLOAT32};
    if (!tshi_check(r, model_config_read(folder, &config, words), "%s", words)) return NULL;
    tshi_check_ok(r, model_create(tsh_mesh_group(mesh, "model"), &config, &options, &m));
    return m;
}

static void same_values(tshi_rank *r, const model *a, const model *b) {
    for (int i = 0; i < tsh_parameters_count(a->parameters); i++) {
        const tsh_tensor *x = tsh_parameters_tensor(a->parameters, i), *y = tsh_parameters_tensor(b->parameters, i);
        const char *name = tsh_parameters_name(a->parameters, i);
        tshi_check(r, memcmp(tsh_tensor_data(x), tsh_tensor_data(y), tsh_tensor_local_nbytes(x)) == 0, "%s differs",
                   name);
    }
}

static void load_published(tshi_rank *r, void *arg) {
    published *p = arg;
    tsh_mesh *mesh = NULL;
    tshi_check_ok(r, tsh_mesh_create(r->world, "model=-1", &mesh));
    model *whole = open_model(r, mesh, p->folder), *loaded = open_model(r, mesh, p->folder);
    if (whole && loaded && tshi_check_ok(r, model_load(whole, p->folder))) {
        tsh_name_rule rules[MODEL_RULES];
        int count = whole->rule_count;
        memcpy(rules, whole->rules, sizeof rules);
        for (int i = 0; i < count; i++) rules[i].tensor += strlen(p->prefix);
        rules[count++] = p->prefix ? (tsh_name_rule){.parameter = "transformer.*", .tensor = "*"}
                                   : (tsh_name_rule){.parameter = "*", .tensor = "bert.*"};
        tsh_save_options options = {.rules = rules, .rule_count = count};
        tshi_check_ok(r, tsh_save(whole->parameters, p->path, &options));
        tshi_check_ok(r, model_load(loaded, p->path));
        same_values(r, whole, loaded);
    }
    model_destroy(loaded);
    model_destroy(whole);
    tsh_mesh_destroy(mesh);
}

Test(models, are_loaded_with_the_names_that_are_published, .timeout = 120) {
    published gpt2 = {MODELS "gpt2-uneven", "transformer.", ""}, bert = {MODELS "bert", NULL, ""};
    tshi_test_enter();
    snprintf(gpt2.path, sizeof gpt2.path, "%s", tshi_test_path("."));
    cr_assert_str_empty(tshi_test_run_each(1, 3, load_published, &gpt2));
    snprintf(bert.path, sizeof bert.path, "%s", tshi_test_path("."));
    cr_assert_str_empty(tshi_test_run_each(1, 3, load_published, &bert));
    tshi_test_leave();
}
