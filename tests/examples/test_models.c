/* Models saved under other names, as they are published: GPT-2's without the prefix of its names, BERT's with one; and
 * models in GGUF files, against float64 logits of their weights. */
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

/* --- tensors that a model does not use ---------------------------------------------------------------------------- */

typedef struct extra {
    const char *folder;
    const char *name;      /* of the tensor in the folder's file */
    const char *complaint; /* NULL: none */
    char path[256];        /* the folder with the tensor */
} extra;

/* Saves the model with the extra tensor, under the names of its own files. */
static void save_with(tshi_rank *r, const model *m, tsh_mesh *mesh, const extra *e) {
    tsh_tensor_config config = {.dtype = TSH_FLOAT32, .ndim = 1, .shape = {3}};
    tsh_tensor *t = NULL;
    tsh_save_options options = {.rules = m->rules, .rule_count = m->rule_count};
    tshi_check_ok(r, tsh_tensor_create(mesh, &config, &t));
    tshi_check_ok(r, tsh_parameters_add(m->parameters, e->name, t));
    tshi_check_ok(r, tsh_save(m->parameters, e->path, &options));
    tsh_tensor_release(t);
}

static void load_with_extra(tshi_rank *r, void *arg) {
    const extra *e = arg;
    tsh_mesh *mesh = NULL;
    tshi_check_ok(r, tsh_mesh_create(r->world, "model=-1", &mesh));
    model *whole = open_model(r, mesh, e->folder), *loaded = open_model(r, mesh, e->folder);
    if (whole && loaded && tshi_check_ok(r, model_load(whole, e->folder))) {
        save_with(r, whole, mesh, e);
        tsh_status status = model_load(loaded, e->path);
        if (e->complaint)
            tshi_check_status(r, status, TSH_ERR_IO, e->complaint);
        else if (tshi_check_ok(r, status))
            same_values(r, loaded, whole);
    }
    model_destroy(loaded);
    model_destroy(whole);
    tsh_mesh_destroy(mesh);
}

Test(models, files_may_have_what_follows_from_the_configuration, .timeout = 120) {
    extra extras[] = {
        {MODELS "llama", "model.layers.1.self_attn.rotary_emb.inv_freq", NULL, ""},
        {MODELS "llama-tied", "lm_head.weight", NULL, ""},
        {MODELS "gpt2-uneven", "transformer.h.0.attn.bias", NULL, ""},
        {MODELS "gpt2-uneven", "transformer.h.1.attn.masked_bias", NULL, ""},
        {MODELS "gpt2-uneven", "lm_head.weight", NULL, ""},
        {MODELS "llama", "model.layers.1.self_attn.other", "'model.layers.1.self_attn.other' is unexpected", ""},
    };
    for (size_t i = 0; i < sizeof extras / sizeof *extras; i++) {
        tshi_test_enter();
        snprintf(extras[i].path, sizeof extras[i].path, "%s", tshi_test_path("."));
        cr_assert_str_empty(tshi_test_run_each(1, 2, load_with_extra, &extras[i]), "%s", extras[i].name);
        tshi_test_leave();
    }
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

/* --- GGUF files --------------------------------------------------------------------------------------------------- */

typedef struct quantized {
    const char *model, *type;
} quantized;

/* A tensor of the model's expected.safetensors; numbers of 8 bytes each, which the caller frees. */
static void *read_expected(const char *folder, const char *name, int64_t shape[TSH_MAX_DIMS]) {
    char path[512];
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_safetensors *file = NULL;
    tsh_box box = {0};
    snprintf(path, sizeof path, TSHARD_TEST_DATA "/gguf/%s/expected.safetensors", folder);
    if (tshi_safetensors_open(&allocator, path, &file) != TSH_OK) return NULL;
    const tshi_safetensors_entry *e = tshi_safetensors_find(file, name);
    memcpy(shape, e->shape, sizeof e->shape);
    memcpy(box.length, e->shape, sizeof box.length);
    void *all = malloc((size_t)e->bytes);
    if (tshi_safetensors_read_box(file, e, &box, all) != TSH_OK) abort();
    tshi_safetensors_close(file);
    return all;
}

static void check_logits(tshi_rank *r, model *m, const quantized *q) {
    int64_t shape[TSH_MAX_DIMS];
    char name[64];
    model_input in = {0};
    tsh_tape *tape = NULL;
    snprintf(name, sizeof name, "logits.%s", q->type);
    int64_t *ids = read_expected(q->model, "ids", shape);
    double *logits = read_expected(q->model, name, shape);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, model_input_create(m, shape[0], shape[1], false, &in));
    tshi_check_ok(r, model_input_write(&in, ids, NULL, NULL));
    tsh_tensor *made = model_forward(m, tape, &in);
    /* A file's divisors of rotary frequencies are float32; the formula that the configuration names gives them
     * exactly. */
    double tolerance = strcmp(q->model, "llama3") == 0 ? 1e-6 : 1e-9;
    if (tshi_check(r, made != NULL, "%s", tsh_tape_message(tape))) tshi_test_same(r, name, made, logits, tolerance);
    model_input_release(&in);
    tsh_tape_destroy(tape);
    free(ids);
    free(logits);
}

static void load_quantized(tshi_rank *r, void *arg) {
    const quantized *q = arg;
    char path[512], words[MODEL_WORDS];
    model_options options = {.dtype = TSH_FLOAT64};
    model_config config;
    tsh_mesh *mesh = NULL;
    model *m = NULL;
    snprintf(path, sizeof path, TSHARD_TEST_DATA "/gguf/%s/%s-%s.gguf", q->model, q->model, q->type);
    tshi_check_ok(r, tsh_mesh_create(r->world, "model=-1", &mesh));
    if (tshi_check(r, model_config_read(path, &config, words), "%s", words) &&
        tshi_check_ok(r, model_create(tsh_mesh_group(mesh, "model"), &config, &options, &m)) &&
        tshi_check_ok(r, model_load(m, path)))
        check_logits(r, m, q);
    model_destroy(m);
    tsh_mesh_destroy(mesh);
}

Test(models, gguf_files_have_the_logits_of_their_weights, .timeout = 300) {
    quantized files[] = {{"llama", "f32"},      {"llama", "f16"},  {"llama", "q8_0"}, {"llama", "q4_0"},
                         {"llama-k", "q4_k_m"}, {"llama3", "f32"}, {"llama3", "q8_0"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const char *words = tshi_test_run_each(1, 4, load_quantized, &files[i]);
        cr_assert_str_empty(words, "%s-%s: %s", files[i].model, files[i].type, words);
    }
}
