/* A whole training step through the public interface, on the CPU and on a stand-in of a GPU whose work runs late and
 * whose memory is closed to the host: the same numbers; nothing that waits and no memory taken in the steady state; and
 * the same again from a captured graph. */
#include "cuda/standin_device.h"
#include "support/language.h"

TestSuite(cuda_training, .timeout = 120);

enum { STEPS = 5 };

static tsh_world *open_world(tsh_device_kind kind) {
    tsh_world *world = NULL;
    tsh_world_config config = {.world_size = 1, .device = kind, .heap_bytes = (size_t)1 << 26};
    cr_assert_eq(tsh_world_init(&config, &world), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tsh_device_kind_of(tsh_world_device(world)), kind);
    return world;
}

static tsh_world *open_late_world(void) {
    standin_reset();
    standin_lazy(true);
    standin_protect(true);
    return open_world(TSH_CUDA);
}

static void close_world(tsh_world *world) {
    tsh_world_destroy(world);
    expect_nothing_left("a world");
}

/* All that a step has, and nothing that waits. *loss is a tensor that lives on. */
static void queue_step(tshi_language *l, tsh_tensor *loss) {
    tsh_optimizer_zero_grad(l->optimizer);
    tsh_tensor *e = tsh_embedding_forward(l->tape, l->embedding, l->inputs);
    tsh_tensor *x = tsh_reshape(l->tape, e, 2, (int64_t[]){-1, 18});
    tsh_tensor *h = tsh_gelu_tanh(l->tape, tsh_linear_forward(l->tape, l->up, x));
    tsh_tensor *d = tsh_dropout(l->tape, tsh_layer_norm(l->tape, h, NULL, NULL, 1e-5), 0.25);
    tsh_tensor *y = tsh_silu(l->tape, tsh_linear_forward(l->tape, l->down, d));
    tsh_tensor *mean = tsh_cross_entropy(l->tape, tsh_linear_forward(l->tape, l->head, y), l->targets, NULL);
    cr_assert_eq(tsh_backward(l->tape, mean), TSH_OK, "%s", tsh_tape_message(l->tape));
    cr_assert_eq(tsh_clip_grad_norm(l->parameters, 0.5, NULL), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tsh_optimizer_step(l->optimizer), TSH_OK, "%s", tsh_error_message());
    tsh_device *device = tsh_world_device(l->world);
    if (mean) device->ops->copy.within(device, sizeof(float), tsh_tensor_data(mean), tsh_tensor_data(loss));
    cr_assert_eq(tsh_tape_reset(l->tape), TSH_OK, "%s", tsh_error_message());
}

static void open_model(tsh_world *world, tshi_language *l, tsh_tensor **loss) {
    cr_assert_eq(tshi_language_create(world, "model=1", l), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tsh_tensor_create(l->mesh, &(tsh_tensor_config){.ndim = 0}, loss), TSH_OK, "%s", tsh_error_message());
}

static void close_model(tshi_language *l, tsh_tensor *loss) {
    tsh_world *world = l->world;
    tsh_tensor_release(loss);
    tshi_language_destroy(l);
    close_world(world);
}

static void expect_same(const char *what, const double *x, const double *want, int n) {
    for (int i = 0; i < n; i++) {
        cr_assert_float_eq(x[i], want[i], 2e-5 * (1 + fabs(want[i])), "%s %d: %.9g, not %.9g", what, i, x[i], want[i]);
    }
}

static int read_parameters(const tshi_language *l, double *out) {
    int n = 0;
    for (int i = 0; i < tsh_parameters_count(l->parameters); i++) {
        tsh_tensor *p = tsh_parameters_tensor(l->parameters, i);
        float values[1024];
        cr_assert_eq(tsh_tensor_read(p, values, tsh_tensor_local_numel(p)), TSH_OK, "%s", tsh_error_message());
        for (int64_t j = 0; j < tsh_tensor_local_numel(p); j++) out[n++] = (double)values[j];
    }
    return n;
}

/* The losses of all steps, and the parameters after them. */
static int train(tsh_world *world, double *losses, double *parameters) {
    tshi_language l;
    tsh_tensor *loss = NULL;
    open_model(world, &l, &loss);
    for (int i = 0; i < STEPS; i++) {
        queue_step(&l, loss);
        losses[i] = tsh_tensor_item(loss);
    }
    int n = read_parameters(&l, parameters);
    close_model(&l, loss);
    return n;
}

Test(cuda_training, has_the_numbers_of_the_cpu) {
    double want[STEPS], losses[STEPS], cpu[2048], gpu[2048];
    int n = train(open_world(TSH_CPU), want, cpu);
    cr_assert_lt(want[STEPS - 1], want[0]);
    cr_assert_eq(train(open_late_world(), losses, gpu), n);
    expect_same("loss", losses, want, STEPS);
    expect_same("parameter", gpu, cpu, n);
}

Test(cuda_training, a_steady_step_takes_no_memory_and_never_waits) {
    tshi_language l;
    tsh_tensor *loss = NULL;
    tsh_world *world = open_late_world();
    open_model(world, &l, &loss);
    for (int i = 0; i < 2; i++) queue_step(&l, loss);
    uint64_t mallocs = standin_calls("cudaMalloc"), waits = tshi_cuda(tsh_world_device(world))->waits;
    uint64_t reads = standin_calls("cudaStreamSynchronize"), pinned = standin_calls("cudaHostAlloc");
    for (int i = 0; i < 3; i++) queue_step(&l, loss);
    cr_assert_eq(standin_calls("cudaMalloc"), mallocs);
    cr_assert_eq(standin_calls("cudaHostAlloc"), pinned);
    cr_assert_eq(standin_calls("cudaStreamSynchronize"), reads);
    cr_assert_eq(tshi_cuda(tsh_world_device(world))->waits, waits);
    cr_assert(isfinite(tsh_tensor_item(loss)));
    close_model(&l, loss);
}

/* Two usual steps, then the third captured: launches are steps 3, 4, ... The first of them has the masks of dropout
 * that the third usual step has. */
Test(cuda_training, a_captured_step_goes_on_where_the_last_ended) {
    double want[STEPS], losses[STEPS], parameters[2048];
    tshi_language l;
    tsh_tensor *loss = NULL;
    tsh_graph *graph = NULL;
    train(open_world(TSH_CPU), want, parameters);
    tsh_world *world = open_late_world();
    tsh_device *device = tsh_world_device(world);
    open_model(world, &l, &loss);
    for (int i = 0; i < 2; i++) {
        queue_step(&l, loss);
        losses[i] = tsh_tensor_item(loss);
    }
    cr_assert_eq(tsh_graph_capture_begin(device), TSH_OK, "%s", tsh_error_message());
    queue_step(&l, loss);
    cr_assert_eq(tsh_graph_capture_end(device, &graph), TSH_OK, "%s", tsh_error_message());
    for (int i = 2; i < STEPS; i++) {
        uint64_t calls = standin_calls(NULL);
        cr_assert_eq(tsh_graph_launch(graph), TSH_OK, "%s", tsh_error_message());
        cr_assert_eq(standin_calls(NULL), calls + 1);
        losses[i] = tsh_tensor_item(loss);
    }
    expect_same("loss", losses, want, 3);
    cr_assert_lt(losses[STEPS - 1], losses[0]);
    tsh_graph_destroy(graph);
    close_model(&l, loss);
}

Test(cuda_training, the_step_reports_wrong_ids) {
    tshi_language l;
    tsh_tensor *loss = NULL;
    int64_t ids[15] = {0, 1, 13};
    tsh_world *world = open_late_world();
    open_model(world, &l, &loss);
    cr_assert_eq(tsh_tensor_write(l.inputs, ids, 15), TSH_OK);
    tsh_tensor *e = tsh_embedding_forward(l.tape, l.embedding, l.inputs);
    cr_assert_not_null(e, "nothing has run yet: %s", tsh_tape_message(l.tape));
    float values[90];
    cr_assert_eq(tsh_tensor_read(e, values, 90), TSH_ERR_RANGE, "%s", tsh_error_message());
    cr_assert_not_null(strstr(tsh_error_message(), "id 13 at index 2, the vocabulary is [0, 13)"), "%s",
                       tsh_error_message());
    close_model(&l, loss);
}

/* --- launches ----------------------------------------------------------------------------------------------------- */

typedef struct mlp {
    tsh_tape *tape;
    tsh_parameters *parameters;
    tsh_optimizer *optimizer;
    tsh_linear *up, *down;
    tsh_tensor *x, *dy;
} mlp;

static tsh_linear *make_layer(tsh_world *world, mlp *m, const char *name, int64_t in, int64_t out, tsh_activation f) {
    const tsh_linear_config config = {.in_features = in,
                                      .out_features = out,
                                      .bias = true,
                                      .dtype = TSH_BFLOAT16,
                                      .activation = f,
                                      .shard = TSH_DENSE};
    tsh_linear *layer = NULL;
    tsh_linear_create(tsh_world_group(world), &config, &layer);
    cr_assert_not_null(layer, "%s", tsh_error_message());
    cr_assert_eq(tsh_linear_register(layer, m->parameters, name), TSH_OK);
    return layer;
}

static void open_mlp(tsh_world *world, mlp *m) {
    const tsh_tensor_config config = {.dtype = TSH_BFLOAT16, .ndim = 2, .shape = {4, 8}};
    cr_assert_eq(tsh_parameters_create(world, &m->parameters), TSH_OK);
    m->up = make_layer(world, m, "up", 8, 16, TSH_ACTIVATION_GELU_TANH);
    m->down = make_layer(world, m, "down", 16, 8, TSH_ACTIVATION_NONE);
    cr_assert_eq(tsh_tensor_create(tsh_world_mesh(world), &config, &m->x), TSH_OK);
    cr_assert_eq(tsh_tensor_create(tsh_world_mesh(world), &config, &m->dy), TSH_OK);
    cr_assert_eq(tsh_tensor_require_grad(m->x, true), TSH_OK);
    cr_assert_eq(tsh_tape_create(world, &m->tape), TSH_OK);
    cr_assert_eq(tsh_adamw_create(m->parameters, &(tsh_adamw_config){.lr = 0.01}, &m->optimizer), TSH_OK, "%s",
                 tsh_error_message());
}

static void close_mlp(mlp *m) {
    tsh_optimizer_destroy(m->optimizer);
    tsh_tape_destroy(m->tape);
    tsh_parameters_destroy(m->parameters);
    tsh_tensor_release(m->x);
    tsh_tensor_release(m->dy);
    tsh_linear_destroy(m->up);
    tsh_linear_destroy(m->down);
}

static void queue_mlp(mlp *m) {
    tsh_tensor *y = tsh_linear_forward(m->tape, m->down, tsh_linear_forward(m->tape, m->up, m->x));
    cr_assert_eq(tsh_backward_with(m->tape, y, &(tsh_backward_config){.gradient = m->dy}), TSH_OK, "%s",
                 tsh_tape_message(m->tape));
    cr_assert_eq(tsh_optimizer_step(m->optimizer), TSH_OK, "%s", tsh_error_message());
    tsh_optimizer_zero_grad(m->optimizer);
    tsh_tensor_zero_grad(m->x);
    cr_assert_eq(tsh_tape_reset(m->tape), TSH_OK, "%s", tsh_error_message());
}

/* Six products, with biases, activation and its backward in them; the gradients of two biases; one update of all
 * parameters. Nothing is zeroed or copied. */
Test(cuda_training, what_a_small_step_launches) {
    mlp m = {0};
    tsh_world *world = open_late_world();
    open_mlp(world, &m);
    for (int i = 0; i < 2; i++) queue_mlp(&m);
    const char *const names[] = {"cublasLtMatmul", "cudaGetLastError", "cudaMemsetAsync", "cudaMemcpyAsync"};
    const uint64_t most[] = {6, 3, 0, 0};
    uint64_t before[4];
    for (int i = 0; i < 4; i++) before[i] = standin_calls(names[i]);
    queue_mlp(&m);
    for (int i = 0; i < 4; i++) {
        uint64_t calls = standin_calls(names[i]) - before[i];
        cr_expect_eq(calls, most[i], "%s: %d", names[i], (int)calls);
    }
    close_mlp(&m);
    close_world(world);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* Two steps and their losses; returns whether a failure was reported. */
static bool try_training(void) {
    tsh_world *world = NULL;
    tshi_language l;
    double loss = 0, norm = 0;
    tsh_world_config config = {.world_size = 1, .device = TSH_CUDA, .heap_bytes = (size_t)1 << 26};
    if (tsh_world_init(&config, &world) != TSH_OK) return true;
    tsh_status status = tshi_language_create(world, "model=1", &l);
    for (int i = 0; i < 2 && status == TSH_OK; i++) {
        status = tshi_language_gradients(&l, &loss, &norm, NULL);
        if (status == TSH_OK && isnan(loss)) status = TSH_ERR_SYSTEM; /* a failure of tsh_tensor_item */
        if (status == TSH_OK) status = tshi_language_update(&l);
    }
    float values[256];
    tsh_tensor *p = status == TSH_OK ? tsh_parameters_tensor(l.parameters, 0) : NULL;
    if (p) status = tsh_tensor_read(p, values, tsh_tensor_local_numel(p));
    begin_to_clean_up();
    if (l.world) tshi_language_destroy(&l);
    tsh_world_destroy(world);
    return status != TSH_OK;
}

Test(cuda_training, each_call_may_fail) {
    cr_assert_gt(fail_each_call("training", try_training), 200);
}

/* --- values from the host ----------------------------------------------------------------------------------------- */

static size_t largest;

static void *note_largest(void *user, size_t bytes) {
    (void)user;
    if (bytes > largest) largest = bytes;
    return malloc(bytes);
}

static void give_back(void *user, void *pointer) {
    (void)user;
    free(pointer);
}

/* A step's tokens are few: what holds them on their way to the GPU is no larger. */
Test(cuda_training, values_on_their_way_take_as_much_memory_as_they_have) {
    tsh_world *world = NULL;
    tsh_tensor *t = NULL;
    const tsh_world_config config = {.world_size = 1,
                                     .device = TSH_CUDA,
                                     .heap_bytes = (size_t)1 << 26,
                                     .allocator = {.alloc = note_largest, .release = give_back}};
    const tsh_tensor_config shape = {.dtype = TSH_INT64, .ndim = 1, .shape = {1000}};
    int64_t whole[1000], back[1000];
    for (int i = 0; i < 1000; i++) whole[i] = i;
    standin_reset();
    cr_assert_eq(tsh_world_init(&config, &world), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tsh_tensor_create(tsh_world_mesh(world), &shape, &t), TSH_OK);
    largest = 0;
    cr_assert_eq(tsh_tensor_write_whole(t, whole), TSH_OK);
    cr_assert_leq(largest, sizeof whole, "%zu bytes", largest);
    cr_assert_eq(tsh_tensor_read(t, back, 1000), TSH_OK);
    cr_assert_arr_eq(back, whole, sizeof whole);
    tsh_tensor_release(t);
    tsh_world_destroy(world);
}
