/* Fine-tuning of a Hugging Face folder's model: logits, gradients and a step of AdamW as PyTorch computes them in
 * float64, at any number of ranks. */
#include "support/tensors.h"
#include "transformer/model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(adapters, .timeout = 300);

#define MODEL TSHARD_TEST_DATA "/models/llama"
#define LORA  TSHARD_TEST_DATA "/adapters/llama-lora"
#define NORMS TSHARD_TEST_DATA "/adapters/llama-norms/expected.safetensors"

enum { BATCH = 2, TOKENS = 9, VOCABULARY = 103 };

static const tsh_adamw_config adamw = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

typedef struct tuning {
    tshi_rank *r;
    tsh_mesh *mesh;
    tsh_tape *tape;
    model *m;
    model_input in;
    tsh_tensor *target;
} tuning;

/* Loads the file's tensor NAME into `out`, a new tensor like the configuration. */
static tsh_tensor *expected(tuning *t, const char *path, const char *name, const tsh_tensor_config *config) {
    tsh_tensor *out = NULL;
    tsh_parameters *list = NULL;
    const tsh_load_options options = {.allow_unexpected = true};
    tshi_check_ok(t->r, tsh_tensor_create(t->mesh, config, &out));
    tshi_check_ok(t->r, tsh_parameters_create(t->r->world, &list));
    tshi_check_ok(t->r, tsh_parameters_add(list, name, out));
    tshi_check_ok(t->r, tsh_load(list, path, &options));
    tsh_parameters_destroy(list);
    return out;
}

static tsh_tensor_config config_like(const tsh_tensor *x) {
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = tsh_tensor_ndim(x)};
    for (int d = 0; d < config.ndim; d++) config.shape[d] = tsh_tensor_shape(x)[d];
    memcpy(config.layout, x->layout, sizeof config.layout);
    return config;
}

/* This rank's part of `got` is that of the file's tensor PREFIX + NAME, relative to its largest element. */
static void compare(tuning *t, const char *path, const char *prefix, const char *name, const tsh_tensor *got) {
    char full[256];
    double most = 0;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    if (t->r->failed || !tshi_check(t->r, got, "there is no %s", full)) return;
    const tsh_tensor_config config = config_like(got);
    tsh_tensor *wanted = expected(t, path, full, &config);
    int64_t count = 1, n = tsh_tensor_local_numel(got);
    for (int d = 0; d < config.ndim; d++) count *= config.shape[d];
    double *whole = calloc((size_t)count, sizeof *whole);
    if (!t->r->failed && whole) tshi_check_ok(t->r, tsh_tensor_read_whole(wanted, whole));
    for (int64_t i = 0; i < count && whole; i++) most = fmax(most, fabs(whole[i]));
    const double *a = tsh_tensor_data(got), *b = tsh_tensor_data(wanted);
    for (int64_t i = 0; i < n && !t->r->failed; i++)
        tshi_check(t->r, fabs(a[i] - b[i]) <= 1e-9 * most, "%s: element %lld is %.17g, %.17g wanted", full,
                   (long long)i, a[i], b[i]);
    free(whole);
    tsh_tensor_release(wanted);
}

static bool begin(tshi_rank *r, const char *axes, const char *path, bool sequence, tuning *t) {
    model_config config;
    char words[MODEL_WORDS];
    int64_t ids[BATCH * TOKENS];
    *t = (tuning){.r = r};
    const model_options options = {.dtype = TSH_FLOAT64, .sequence_parallel = sequence};
    if (!tshi_check(r, model_config_read(MODEL, &config, words), "%s", words)) return false;
    tshi_check_ok(r, tsh_mesh_create(r->world, axes, &t->mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &t->tape));
    tshi_check_ok(r, model_create(tsh_mesh_group(t->mesh, "model"), &config, &options, &t->m));
    if (r->failed || !tshi_check_ok(r, model_load(t->m, MODEL))) return false;
    const tsh_tensor_config whole = {.dtype = TSH_INT64, .ndim = 2, .shape = {BATCH, TOKENS}};
    tsh_tensor *numbers = expected(t, path, "ids", &whole), *target = expected(t, path, "target", &whole);
    tshi_check_ok(r, tsh_tensor_read_whole(numbers, ids));
    tshi_check_ok(r, model_input_create(t->m, BATCH, TOKENS, false, &t->in));
    tshi_check_ok(r, model_input_write(&t->in, ids, NULL, NULL));
    tshi_check_ok(r, tsh_tensor_read_whole(target, ids));
    tshi_check_ok(r, tsh_tensor_create(t->mesh,
                                       &(tsh_tensor_config){.dtype = TSH_INT64, .ndim = 1, .shape = {BATCH * TOKENS}},
                                       &t->target));
    tshi_check_ok(r, tsh_tensor_write_whole(t->target, ids));
    tsh_tensor_release(numbers);
    tsh_tensor_release(target);
    return !r->failed;
}

static void end(tuning *t) {
    tsh_tensor_release(t->target);
    model_input_release(&t->in);
    model_destroy(t->m);
    tsh_tape_destroy(t->tape);
    tsh_mesh_destroy(t->mesh);
}

/* Logits, loss and the gradients of the parameters that are not frozen. */
static void forward_and_backward(tuning *t, const char *path) {
    const int64_t shape[] = {BATCH, TOKENS, VOCABULARY};
    tsh_tensor *logits = model_forward(t->m, t->tape, &t->in);
    tsh_tensor *loss = tsh_cross_entropy(t->tape, logits, t->target, NULL);
    compare(t, path, "", "logits", tsh_reshape(t->tape, logits, 3, shape));
    compare(t, path, "", "loss", loss);
    tshi_check(t->r, tsh_backward(t->tape, loss) == TSH_OK, "%s", tsh_tape_message(t->tape));
}

/* --- only norms are trained --------------------------------------------------------------------------------------- */

static bool is_norm(const char *name) {
    return strstr(name, "norm") != NULL;
}

static void tune_norms(tshi_rank *r, void *arg) {
    tuning t;
    tsh_optimizer *optimizer = NULL;
    for (int sequence = 0; sequence < 2 && !r->failed; sequence++) {
        if (!begin(r, arg, NORMS, sequence, &t)) return;
        tsh_parameters *list = t.m->parameters;
        tshi_check_ok(r, tsh_parameters_freeze(list, "*"));
        tshi_check_ok(r, tsh_parameters_unfreeze(list, "model.norm"));
        tshi_check_ok(r, tsh_parameters_unfreeze(list, "model.layers.*.*norm"));
        forward_and_backward(&t, NORMS);
        for (int i = 0; i < tsh_parameters_count(list) && !r->failed; i++) {
            const char *name = tsh_parameters_name(list, i);
            const tsh_tensor *grad = tsh_tensor_grad(tsh_parameters_tensor(list, i));
            if (is_norm(name)) compare(&t, NORMS, "grad.", name, grad);
            tshi_check(r, is_norm(name) || !grad, "%s has a gradient", name);
        }
        tshi_check_ok(r, tsh_adamw_create(list, &adamw, &optimizer));
        tshi_check_ok(r, tsh_optimizer_step(optimizer));
        for (int i = 0; i < tsh_parameters_count(list) && !r->failed; i++)
            compare(&t, NORMS, "after.", tsh_parameters_name(list, i), tsh_parameters_tensor(list, i));
        tsh_optimizer_destroy(optimizer);
        end(&t);
    }
}

Test(adapters, only_norms_are_trained_as_pytorch_does) {
    cr_assert_str_empty(tshi_test_run_meshes(tune_norms));
}

/* --- low-rank adapters, as PEFT does ------------------------------------------------------------------------------ */

#define LORA_EXPECTED LORA "/expected.safetensors"

static bool is_factor(const char *name) {
    return strstr(name, ".lora_") != NULL;
}

static void compare_factors(tuning *t, const char *prefix, bool gradients) {
    const tsh_parameters *list = t->m->parameters;
    int count = 0;
    for (int i = 0; i < tsh_parameters_count(list) && !t->r->failed; i++) {
        const char *name = tsh_parameters_name(list, i);
        const tsh_tensor *p = tsh_parameters_tensor(list, i), *grad = tsh_tensor_grad(p);
        if (is_factor(name)) compare(t, LORA_EXPECTED, prefix, name, gradients ? grad : p);
        tshi_check(t->r, is_factor(name) || !grad, "%s has a gradient", name);
        count += is_factor(name);
    }
    tshi_check(t->r, count == 16, "%d factors", count);
}

static void compare_logits(tuning *t, const char *name) {
    const int64_t shape[] = {BATCH, TOKENS, VOCABULARY};
    tsh_tensor *logits = tsh_reshape(t->tape, model_forward(t->m, t->tape, &t->in), 3, shape);
    compare(t, LORA_EXPECTED, "", name, logits);
    tshi_check_ok(t->r, tsh_tape_reset(t->tape));
}

/* The layers with adapters have the merged weights. */
static void compare_merged(tuning *t) {
    static const char *const names[] = {"self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj"};
    char name[128];
    int found = 0;
    for (int i = 0; i < 2 * 4 && !t->r->failed; i++) {
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", i / 4, names[i % 4]);
        for (int k = 0; k < tsh_parameters_count(t->m->parameters); k++) {
            if (strcmp(tsh_parameters_name(t->m->parameters, k), name) != 0) continue;
            compare(t, LORA_EXPECTED, "merged.", name, tsh_parameters_tensor(t->m->parameters, k));
            found++;
        }
    }
    tshi_check(t->r, found == 8, "%d merged weights", found);
}

static void tune_lora(tshi_rank *r, void *arg) {
    tuning t;
    tsh_optimizer *optimizer = NULL;
    for (int sequence = 0; sequence < 2 && !r->failed; sequence++) {
        if (!begin(r, arg, LORA_EXPECTED, sequence, &t)) return;
        compare_logits(&t, "base_logits");
        tshi_check_ok(r, model_load_adapter(t.m, LORA));
        tshi_check_ok(r, model_merge(t.m, true));
        compare_merged(&t);
        compare_logits(&t, "merged_logits");
        tshi_check_ok(r, model_merge(t.m, false));
        forward_and_backward(&t, LORA_EXPECTED);
        compare_factors(&t, "grad.base_model.model.", true);
        tshi_check_ok(r, tsh_adamw_create(t.m->parameters, &adamw, &optimizer));
        tshi_check_ok(r, tsh_optimizer_step(optimizer));
        tshi_check_ok(r, tsh_tape_reset(t.tape));
        tsh_optimizer_zero_grad(optimizer);
        compare_factors(&t, "after.base_model.model.", false);
        compare_logits(&t, "logits_after");
        tsh_optimizer_destroy(optimizer);
        end(&t);
    }
}

Test(adapters, low_rank_adapters_are_trained_as_peft_does) {
    cr_assert_str_empty(tshi_test_run_meshes(tune_lora));
}
