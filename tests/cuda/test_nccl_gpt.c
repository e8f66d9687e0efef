/* Steady training steps of a GPT like train_gpt's, on the stand-in of a GPU and of NCCL: they take no memory, the host
 * waits for the loss alone, and the losses are those of the CPU. */
#include "cuda/nccl_ranks.h"
#include "device/cuda/cuda.h"
#include "tshard/tshard.h"

#include <math.h>

TestSuite(nccl_gpt, .timeout = 120);

enum { LAYERS = 2, BATCH = 4, BLOCK = 8, EMBED = 32, HEADS = 2, VOCABULARY = 24, WARM = 3, STEADY = 3 };

typedef struct variant {
    tsh_dtype dtype;
    bool recompute;
    tsh_activation activation;
    tsh_zero_level level;
    double losses[WARM + STEADY];
} variant;

typedef struct gpt {
    tsh_mesh *mesh;
    tsh_embedding *tokens, *positions;
    tsh_block *blocks[LAYERS];
    tsh_norm *norm;
    tsh_tape *tape;
    tsh_parameters *parameters;
    tsh_data_parallel *sums;
    tsh_optimizer *optimizer;
    tsh_tensor *inputs, *targets, *places;
} gpt;

static void make_layers(tshi_rank *r, const variant *v, gpt *g) {
    tsh_group *model = tsh_mesh_group(g->mesh, "model");
    const tsh_block_config block = {.embed = EMBED,
                                    .dtype = v->dtype,
                                    .recompute = v->recompute,
                                    .attention = {.heads = HEADS, .causal = true, .bias = true, .out_bias = true},
                                    .mlp = {.hidden = 4 * EMBED, .activation = v->activation, .bias = true}};
    tsh_embedding_config table = {
        .num_embeddings = VOCABULARY, .embedding_dim = EMBED, .shard = TSH_ROW, .dtype = v->dtype};
    tshi_check_ok(r, tsh_embedding_create(model, &table, &g->tokens));
    table.num_embeddings = BLOCK;
    table.shard = TSH_DENSE;
    tshi_check_ok(r, tsh_embedding_create(model, &table, &g->positions));
    for (int i = 0; i < LAYERS; i++) tshi_check_ok(r, tsh_block_create(model, &block, &g->blocks[i]));
    tshi_check_ok(r, tsh_norm_create(model, &(tsh_norm_config){.features = EMBED, .dtype = v->dtype}, &g->norm));
}

static void make_optimizer(tshi_rank *r, const variant *v, gpt *g) {
    const tsh_precision precision = {.storage = v->dtype, .reduction = TSH_FLOAT32};
    const tsh_data_parallel_config sums = {.level = v->level, .bucket_bytes = 1 << 14, .first_bucket_bytes = 1 << 12};
    const tsh_adamw_config adamw = {.lr = 0.01,
                                    .low_bits = v->dtype == TSH_FLOAT32 ? TSH_LOSE_LOW_BITS : TSH_MASTER_WEIGHTS};
    tshi_check_ok(r, tsh_parameters_create(r->world, &g->parameters));
    tshi_check_ok(r, tsh_embedding_register(g->tokens, g->parameters, "tokens"));
    tshi_check_ok(r, tsh_embedding_register(g->positions, g->parameters, "positions"));
    for (int i = 0; i < LAYERS; i++)
        tshi_check_ok(r, tsh_block_register(g->blocks[i], g->parameters, i ? "layers.1" : "layers.0"));
    tshi_check_ok(r, tsh_norm_register(g->norm, g->parameters, "norm"));
    if (v->dtype != TSH_FLOAT32) tshi_check_ok(r, tsh_parameters_set_precision(g->parameters, &precision));
    tshi_check_ok(r, tsh_tape_create(r->world, &g->tape));
    tshi_check_ok(r,
                  tsh_data_parallel_create(g->tape, g->parameters, tsh_mesh_group(g->mesh, "data"), &sums, &g->sums));
    tshi_check_ok(r, tsh_adamw_create(g->parameters, &adamw, &g->optimizer));
}

static bool open_gpt(tshi_rank *r, const variant *v, gpt *g) {
    const tsh_tensor_config ids = {
        .dtype = TSH_INT64, .ndim = 2, .shape = {BATCH, BLOCK}, .layout = {TSH_SHARD(0), TSH_REPLICATED}};
    *g = (gpt){0};
    tsh_world_seed(r->world, 7);
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=-1,model=1", &g->mesh));
    make_layers(r, v, g);
    make_optimizer(r, v, g);
    tsh_tensor **tensors[] = {&g->inputs, &g->targets, &g->places};
    for (int i = 0; i < 3; i++) tshi_check_ok(r, tsh_tensor_create(g->mesh, &ids, tensors[i]));
    return !r->failed;
}

static void close_gpt(gpt *g) {
    tsh_tensor_release(g->inputs);
    tsh_tensor_release(g->targets);
    tsh_tensor_release(g->places);
    tsh_optimizer_destroy(g->optimizer);
    tsh_data_parallel_destroy(g->sums);
    tsh_parameters_destroy(g->parameters);
    tsh_norm_destroy(g->norm);
    for (int i = 0; i < LAYERS; i++) tsh_block_destroy(g->blocks[i]);
    tsh_embedding_destroy(g->tokens);
    tsh_embedding_destroy(g->positions);
    tsh_tape_destroy(g->tape);
    tsh_mesh_destroy(g->mesh);
}

static void write_batch(tshi_rank *r, gpt *g, int step) {
    int64_t inputs[BATCH * BLOCK], targets[BATCH * BLOCK], places[BATCH * BLOCK];
    for (int i = 0; i < BATCH * BLOCK; i++) {
        inputs[i] = (i * 5 + step) % VOCABULARY;
        targets[i] = (i * 5 + 5 + step) % VOCABULARY;
        places[i] = i % BLOCK;
    }
    tshi_check_ok(r, tsh_tensor_write_whole(g->inputs, inputs));
    tshi_check_ok(r, tsh_tensor_write_whole(g->targets, targets));
    tshi_check_ok(r, tsh_tensor_write_whole(g->places, places));
}

static tsh_tensor *loss_of(gpt *g) {
    const int64_t flat[] = {-1};
    const tsh_sequences sequences = {.batch = BATCH};
    tsh_tape *t = g->tape;
    tsh_tensor *x = tsh_embedding_forward(t, g->tokens, tsh_reshape(t, g->inputs, 1, flat));
    x = tsh_add(t, x, tsh_embedding_forward(t, g->positions, tsh_reshape(t, g->places, 1, flat)));
    for (int i = 0; i < LAYERS; i++) x = tsh_block_forward(t, g->blocks[i], x, &sequences);
    tsh_tensor *logits = tsh_embedding_project(t, g->tokens, tsh_norm_forward(t, g->norm, x));
    return tsh_cross_entropy(t, logits, tsh_reshape(t, g->targets, 1, flat), NULL);
}

static double step(tshi_rank *r, gpt *g, int number) {
    write_batch(r, g, number);
    tsh_tensor *loss = tsh_tensor_retain(loss_of(g));
    if (!tshi_check(r, loss, "%s", tsh_tape_message(g->tape))) return NAN;
    tshi_check(r, tsh_backward(g->tape, loss) == TSH_OK, "%s", tsh_tape_message(g->tape));
    tshi_check_ok(r, tsh_clip_grad_norm(g->parameters, 1, NULL));
    tshi_check_ok(r, tsh_optimizer_step(g->optimizer));
    tsh_optimizer_zero_grad(g->optimizer);
    double value = tsh_tensor_item(loss);
    tsh_tensor_release(loss);
    tshi_check_ok(r, tsh_tape_reset(g->tape));
    return value;
}

/* What a steady step must not call, in any rank. Of several ranks the last is left out: sums that are under way at once
 * have an event each, and how many these are is a matter of time. */
static const char *const names[] = {
    "cudaMalloc",     "cudaFree", "cudaHostAlloc", "cudaStreamSynchronize", "cudaStreamCreate", "cudaDeviceSynchronize",
    "cudaEventCreate"};
enum { NAMES = sizeof names / sizeof *names };

/* Calls of all ranks, none of which is between the two agreements. */
static void count(tshi_rank *r, uint64_t calls[NAMES]) {
    tsh_group *world = tsh_world_group(r->world);
    tshi_check_ok(r, tshi_group_agree(world, "all are here", TSH_OK));
    for (int n = 0; n < NAMES; n++) calls[n] = standin_calls(names[n]);
    tshi_check_ok(r, tshi_group_agree(world, "all have counted", TSH_OK));
}

static void trains(tshi_rank *r, void *arg) {
    variant *v = arg;
    uint64_t before[NAMES] = {0}, after[NAMES] = {0}, waits = 0;
    bool gpu = tsh_device_kind_of(tsh_world_device(r->world)) == TSH_CUDA;
    gpt g;
    if (open_gpt(r, v, &g)) {
        for (int i = 0; i < WARM + STEADY && !r->failed; i++) {
            if (i == WARM) {
                count(r, before);
                if (gpu) waits = tshi_cuda(tsh_world_device(r->world))->waits;
            }
            double loss = step(r, &g, i);
            if (r->rank == 0) v->losses[i] = loss;
        }
        if (gpu) waits = tshi_cuda(tsh_world_device(r->world))->waits - waits;
        count(r, after);
        for (int n = 0; n < NAMES - (r->size > 1) && gpu; n++) {
            int calls = (int)(after[n] - before[n]);
            tshi_check(r, calls == 0, "%d steps call %s %d times", STEADY, names[n], calls);
        }
        tshi_check(r, !gpu || waits == STEADY, "the host waits %d times in %d steps", (int)waits, STEADY);
    }
    close_gpt(&g);
}

static void compare(const char *what, const variant *got, const variant *wanted, double tolerance) {
    for (int i = 0; i < WARM + STEADY; i++)
        cr_assert_float_eq(got->losses[i], wanted->losses[i], tolerance, "%s, step %d: loss %g, on the CPU %g", what, i,
                           got->losses[i], wanted->losses[i]);
    cr_assert_lt(got->losses[WARM + STEADY - 1], got->losses[0]);
}

/* The CPU's losses of the same steps by one rank. */
static void run_on_cpu(variant *v) {
    setenv("TSHARD_TEST_DEVICE", "cpu", 1);
    cr_assert_str_empty(tshi_test_run_threads(1, trains, v));
}

static const variant variants[] = {{.dtype = TSH_FLOAT32, .activation = TSH_ACTIVATION_GELU},
                                   {.dtype = TSH_BFLOAT16, .activation = TSH_ACTIVATION_GELU_TANH},
                                   {.dtype = TSH_BFLOAT16, .activation = TSH_ACTIVATION_GELU, .recompute = true}};

Test(nccl_gpt, steps_of_one_rank_take_no_memory_and_wait_for_the_loss_alone) {
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        variant cpu = variants[i], gpu = variants[i];
        run_on_cpu(&cpu);
        run_ranks(1, false, trains, &gpu);
        compare("one rank", &gpu, &cpu, cpu.dtype == TSH_FLOAT32 ? 1e-4 : 0.03);
    }
}

Test(nccl_gpt, steps_of_several_ranks_take_no_memory_and_wait_for_the_loss_alone) {
    for (tsh_zero_level level = TSH_ZERO_NOTHING; level <= TSH_ZERO_PARAMETERS; level++) {
        variant cpu = variants[1], gpu = variants[1];
        run_on_cpu(&cpu);
        gpu.level = level;
        run_ranks(2, false, trains, &gpu);
        compare("two ranks", &gpu, &cpu, 0.03);
    }
}
