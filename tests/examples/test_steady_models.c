/* A step of a whole model, training or generating, that has run before allocates nothing: neither by malloc nor for
 * tensors. */
#include "support/mallocs.h"

#include "support/ranks.h"
#include "transformer/model.h"

#include <criterion/criterion.h>
#include <string.h>

#define MODELS TSHARD_TEST_DATA "/models/"

enum { BATCH = 2, TOKENS = 8, WARM_UP = 4, STEPS = 6 };

typedef struct setting {
    const char *folder;
    tsh_dtype dtype;
    bool sequence_parallel;
} setting;

typedef struct counts {
    int64_t mallocs;
    tsh_memory_stats device;
} counts;

static counts count(tshi_rank *r) {
    return (counts){mallocs, tsh_device_stats(tsh_world_device(r->world))};
}

static void nothing_new(tshi_rank *r, const setting *s, const char *what, const counts *before) {
    counts now = count(r);
    tshi_check(r, now.mallocs == before->mallocs, "%s, %s: %lld calls of malloc", s->folder, what,
               (long long)(now.mallocs - before->mallocs));
    tshi_check(r, now.device.allocations == before->device.allocations, "%s, %s: new tensor memory, %llu times",
               s->folder, what, (unsigned long long)(now.device.allocations - before->device.allocations));
    tshi_check(r, now.device.requests > before->device.requests, "%s, %s: no tensor was made", s->folder, what);
}

static model *open_model(tshi_rank *r, tsh_mesh *mesh, const setting *s) {
    model_config config;
    model *m = NULL;
    char words[MODEL_WORDS];
    model_options options = {.dtype = s->dtype, .sequence_parallel = s->sequence_parallel, .random_weights = true};
    if (!tshi_check(r, model_config_read(s->folder, &config, words), "%s", words)) return NULL;
    tshi_check_ok(r, model_create(tsh_mesh_group(mesh, "model"), &config, &options, &m));
    return m;
}

/* --- training ----------------------------------------------------------------------------------------------------- */

static tsh_status train_step(tsh_tape *tape, model *m, const model_input *in, tsh_optimizer *optimizer) {
    tsh_tensor *loss = tsh_cross_entropy(tape, model_forward(m, tape, in), in->ids, NULL);
    tsh_status status = tsh_backward(tape, loss);
    if (status == TSH_OK) status = tsh_optimizer_step(optimizer);
    if (status == TSH_OK) status = tsh_tape_reset(tape);
    tsh_optimizer_zero_grad(optimizer);
    return status;
}

static void train(tshi_rank *r, const setting *s, tsh_tape *tape, model *m) {
    int64_t ids[BATCH * TOKENS];
    model_input in;
    tsh_optimizer *optimizer = NULL;
    counts before = {0};
    for (int i = 0; i < BATCH * TOKENS; i++) ids[i] = i % 7;
    tshi_check_ok(r, model_input_create(m, BATCH, TOKENS, false, &in));
    tshi_check_ok(r, model_input_write(&in, ids, NULL, NULL));
    tsh_adamw_config adamw = {.lr = 1e-3, .low_bits = s->dtype == TSH_FLOAT32 ? TSH_LOSE_LOW_BITS : TSH_MASTER_WEIGHTS};
    tshi_check_ok(r, tsh_adamw_create(m->parameters, &adamw, &optimizer));
    int64_t begin = mallocs;
    for (int step = 0; step < WARM_UP + STEPS && !r->failed; step++) {
        if (step == WARM_UP) before = count(r);
        tshi_check(r, train_step(tape, m, &in, optimizer) == TSH_OK, "%s: %s", s->folder, tsh_error_message());
    }
    tshi_check(r, before.mallocs > begin, "the counter does not count: the first step takes memory for its tape");
    nothing_new(r, s, "training", &before);
    tsh_optimizer_destroy(optimizer);
    model_input_release(&in);
}

/* --- generating --------------------------------------------------------------------------------------------------- */

static tsh_status next_token(tsh_tape *tape, model *m, model_input *in, int64_t number, int64_t *token) {
    tsh_sample_config config = {.temperature = 0.8, .top_k = 20, .top_p = 0.9, .seed = 3, .position = number};
    tsh_tensor *id = tsh_sample(tape, model_forward(m, tape, in), &config);
    if (!id) return tsh_tape_status(tape);
    tsh_status status = tsh_tensor_read(id, token, BATCH);
    return status == TSH_OK ? tsh_tape_reset(tape) : status;
}

static void generate(tshi_rank *r, const setting *s, tsh_tape *tape, model *m) {
    int64_t token[BATCH] = {1, 2}, places[BATCH];
    model_input in;
    model_cache *cache = NULL;
    counts before = {0};
    tsh_tape_set_recording(tape, false);
    tshi_check_ok(r, model_input_create(m, BATCH, 1, false, &in));
    tshi_check_ok(r, model_cache_create(m, BATCH, WARM_UP + STEPS, &cache));
    in.cache = cache;
    in.last = true;
    for (int step = 0; step < WARM_UP + STEPS && !r->failed; step++) {
        if (step == WARM_UP) before = count(r);
        for (int b = 0; b < BATCH; b++) places[b] = step;
        tsh_status status = model_input_write(&in, token, places, NULL);
        if (status == TSH_OK) status = next_token(tape, m, &in, step, token);
        tshi_check(r, status == TSH_OK, "%s: %s", s->folder, tsh_error_message());
    }
    nothing_new(r, s, "generating", &before);
    model_cache_destroy(cache);
    model_input_release(&in);
    tsh_tape_set_recording(tape, true);
}

static void steps(tshi_rank *r, void *arg) {
    const setting *s = arg;
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    tshi_check_ok(r, tsh_mesh_create(r->world, "model=-1", &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    model *m = open_model(r, mesh, s);
    if (m) {
        train(r, s, tape, m);
        if (!s->sequence_parallel) generate(r, s, tape, m);
    }
    tsh_tape_destroy(tape);
    model_destroy(m);
    tsh_mesh_destroy(mesh);
}

Test(steady_models, take_no_memory, .timeout = 300) {
    static const char *const folders[] = {MODELS "gpt2-uneven", MODELS "llama", MODELS "qwen2"};
    static const tsh_dtype dtypes[] = {TSH_FLOAT32, TSH_BFLOAT16};
    for (int i = 0; i < 12; i++) {
        setting s = {folders[i % 3], dtypes[i / 3 % 2], i >= 6};
        cr_assert_str_empty(tshi_test_run_each(1, 3, steps, &s));
    }
}
