/* Memory of models: weights and activations of 16 bits take half of what those of float32 take, and nothing grows with
 * the square of the tokens. */
#include "support/ranks.h"
#include "transformer/model.h"

#include <criterion/criterion.h>
#include <string.h>

#define MODELS TSHARD_TEST_DATA "/models/"

typedef struct use {
    size_t weights, activations;
} use;

static size_t in_use(tsh_world *world, bool peak) {
    tsh_memory_stats stats = tsh_device_stats(tsh_world_device(world));
    return peak ? stats.bytes_peak : stats.bytes_in_use;
}

/* One forward and backward of two sequences. */
static size_t activations(tshi_rank *r, model *m, int64_t tokens) {
    int64_t ids[2 * 1024] = {0};
    model_input in;
    tsh_tape *tape = NULL;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, model_input_create(m, 2, tokens, false, &in));
    tshi_check_ok(r, model_input_write(&in, ids, NULL, NULL));
    size_t before = in_use(r->world, false);
    tsh_device_reset_peak(tsh_world_device(r->world));
    tsh_tensor *hidden = model_forward(m, tape, &in);
    tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, hidden, TSH_ALL_DIMS)));
    size_t peak = in_use(r->world, true) - before;
    tshi_check_ok(r, tsh_tape_reset(tape));
    model_input_release(&in);
    tsh_tape_destroy(tape);
    return peak;
}

static model *open_model(tshi_rank *r, tsh_mesh *mesh, const char *folder, tsh_dtype dtype, int64_t positions) {
    model_config config;
    model *m = NULL;
    char words[MODEL_WORDS];
    model_options options = {.dtype = dtype, .random_weights = true};
    if (!tshi_check(r, model_config_read(folder, &config, words), "%s", words)) return NULL;
    config.positions = positions;
    tshi_check_ok(r, model_create(tsh_mesh_group(mesh, "model"), &config, &options, &m));
    return m;
}

static use measure(tshi_rank *r, tsh_mesh *mesh, const char *folder, tsh_dtype dtype) {
    use u = {0, 0};
    model *m = open_model(r, mesh, folder, dtype, 512);
    if (!m) return u;
    activations(r, m, 512); /* from here on the memory of weights and gradients is there */
    u.weights = tsh_device_memory(tsh_world_device(r->world)).live[TSH_MEMORY_PARAMETERS];
    u.activations = activations(r, m, 512);
    model_destroy(m);
    return u;
}

static void halves(tshi_rank *r, void *arg) {
    static const tsh_dtype narrow[] = {TSH_BFLOAT16, TSH_FLOAT16};
    const char *folder = arg;
    tsh_mesh *mesh = NULL;
    tshi_check_ok(r, tsh_mesh_create(r->world, "model=-1", &mesh));
    use wide = measure(r, mesh, folder, TSH_FLOAT32);
    for (int i = 0; i < 2 && !r->failed; i++) {
        use u = measure(r, mesh, folder, narrow[i]);
        const char *name = tsh_dtype_name(narrow[i]);
        tshi_check(r, (double)u.weights < 0.55 * (double)wide.weights, "%s: %zu bytes of weights, float32 %zu", name,
                   u.weights, wide.weights);
        tshi_check(r, (double)u.activations < 0.6 * (double)wide.activations,
                   "%s: %zu bytes of activations, float32 %zu", name, u.activations, wide.activations);
    }
    tsh_mesh_destroy(mesh);
}

Test(model_memory, of_16_bits_is_half_of_float32s, .timeout = 120) {
    static char *const folders[] = {MODELS "gpt2", MODELS "llama", MODELS "bert"};
    for (int i = 0; i < 3; i++) cr_assert_str_empty(tshi_test_run_each(1, 3, halves, folders[i]));
}

static void grows(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_mesh *mesh = NULL;
    tshi_check_ok(r, tsh_mesh_create(r->world, "model=-1", &mesh));
    model *m = open_model(r, mesh, MODELS "llama", TSH_FLOAT32, 1024);
    if (m) {
        activations(r, m, 64);
        size_t few = activations(r, m, 256), many = activations(r, m, 1024);
        tshi_check(r, (double)many < 4.2 * (double)few, "256 tokens take %zu bytes, 1,024 take %zu", few, many);
        model_destroy(m);
    }
    tsh_mesh_destroy(mesh);
}

Test(model_memory, grows_with_the_tokens_not_with_their_square, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, grows, NULL));
}
