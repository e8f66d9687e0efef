/* Values that wait in host memory, on a stand-in of a GPU whose work runs late and whose memory is closed to the
 * host: copies in their order beside the compute stream, and a training step whose segments are offloaded. */
#include "cuda/standin_device.h"
#include "tshard/tshard.h"

TestSuite(cuda_offload, .timeout = 120);

/* --- copies ------------------------------------------------------------------------------------------------------- */

enum { N = 1000 };

static const size_t bytes = N * sizeof(double);

/* Memory that has left is allocated again only after `join`, and what is queued then runs after the copy. */
Test(cuda_offload, a_buffer_keeps_what_was_there_when_it_left) {
    double numbers[N], back[N];
    tsh_device *device = open_device();
    const tshi_offload_ops *ops = device->ops->offload;
    for (int i = 0; i < N; i++) numbers[i] = i + 0.5;
    for (int round = 0; round < 2; round++) {
        tshi_host_buffer *host = NULL;
        void *from = put_numbers(device, TSH_FLOAT64, N, numbers, 0);
        size_t before = device->stats.bytes_in_use;
        cr_assert_eq(ops->to_host(device, bytes, from, &host), TSH_OK, "%s", tsh_error_message());
        cr_assert_eq(device->stats.bytes_in_use, before, "the memory is free before it is read");
        ops->join(device);
        cr_assert_eq(device->stats.bytes_in_use, before - 8000);
        void *next = get(device, bytes);
        cr_assert_eq(next, from);
        device->ops->copy.zero(device, bytes, next);
        void *to = get(device, bytes);
        device->ops->copy.zero(device, bytes, to); /* queued before the copy */
        cr_assert_eq(ops->from_host(device, bytes, host, to), TSH_OK, "%s", tsh_error_message());
        ops->join(device);
        ops->release(device, host);
        get_numbers(device, TSH_FLOAT64, N, to, back);
        cr_assert_arr_eq(back, numbers, sizeof numbers);
        device->ops->memory.release(device, next);
        device->ops->memory.release(device, to);
    }
    cr_assert_eq(standin_calls("cudaHostAlloc"), 3, "staging, the report, and one buffer for both rounds");
    close_device(device);
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

enum { ROWS = 8, COLS = 32, PARTS = 5 };

typedef struct model {
    tsh_world *world;
    tsh_tape *tape;
    tsh_tensor *x, *weight;
} model;

static void open_model(tsh_device_kind kind, model *m) {
    const tsh_world_config config = {.world_size = 1, .device = kind, .heap_bytes = (size_t)1 << 26};
    const tsh_tensor_config x = {.ndim = 2, .shape = {ROWS, COLS}}, weight = {.ndim = 2, .shape = {COLS, COLS}};
    standin_reset();
    standin_lazy(true);
    standin_protect(true);
    cr_assert_eq(tsh_world_init(&config, &m->world), TSH_OK, "%s", tsh_error_message());
    const tsh_mesh *mesh = tsh_world_mesh(m->world);
    cr_assert_eq(tsh_tensor_create_uniform(mesh, &x, -1, 1, &m->x), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tsh_tensor_create_uniform(mesh, &weight, -0.25, 0.25, &m->weight), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tsh_tensor_require_grad(m->weight), TSH_OK);
    cr_assert_eq(tsh_tape_create(m->world, &m->tape), TSH_OK);
}

static void close_model(model *m) {
    tsh_tape_destroy(m->tape);
    tsh_tensor_release(m->x);
    tsh_tensor_release(m->weight);
    cr_assert_eq(tsh_device_stats(tsh_world_device(m->world)).bytes_in_use, 0);
    tsh_world_destroy(m->world);
    expect_nothing_left("a world");
}

static void queue_step(const model *m, bool offload) {
    const tsh_recompute_config config = {.offload = offload};
    tsh_tensor *x = tsh_scale(m->tape, m->x, 2);
    tsh_tensor_zero_grad(m->weight);
    for (int i = 0; i < PARTS; i++) {
        tsh_mark start = tsh_tape_mark(m->tape);
        x = tsh_add(m->tape, x, tsh_tanh(m->tape, tsh_matmul(m->tape, x, m->weight)));
        x = tsh_tape_recompute_since_with(m->tape, start, x, &config);
    }
    tsh_tensor *loss = tsh_sum(m->tape, tsh_mul(m->tape, x, x), TSH_ALL_DIMS);
    cr_assert_eq(tsh_backward(m->tape, loss), TSH_OK, "%s", tsh_tape_message(m->tape));
    cr_assert_eq(tsh_tape_reset(m->tape), TSH_OK, "%s", tsh_error_message());
}

static void read_gradient(const model *m, float *out) {
    cr_assert_eq(tsh_tensor_read(tsh_tensor_grad(m->weight), out, COLS * COLS), TSH_OK, "%s", tsh_error_message());
}

Test(cuda_offload, gradients_have_the_bits_of_those_that_stay_on_the_gpu) {
    float cpu[COLS * COLS], want[COLS * COLS], got[COLS * COLS];
    model m;
    open_model(TSH_CPU, &m);
    queue_step(&m, true);
    read_gradient(&m, cpu);
    close_model(&m);
    open_model(TSH_CUDA, &m);
    queue_step(&m, false);
    read_gradient(&m, want);
    for (int i = 0; i < 3; i++) {
        queue_step(&m, true);
        read_gradient(&m, got);
        cr_assert_arr_eq(got, want, sizeof got, "step %d", i);
    }
    for (int i = 0; i < COLS * COLS; i++) cr_assert_float_eq(got[i], cpu[i], 1e-3 * (1 + fabs((double)cpu[i])));
    close_model(&m);
}

Test(cuda_offload, a_steady_step_takes_no_memory_and_never_waits) {
    model m;
    open_model(TSH_CUDA, &m);
    for (int i = 0; i < 2; i++) queue_step(&m, true);
    const char *const names[] = {"cudaMalloc", "cudaHostAlloc", "cudaStreamSynchronize"};
    uint64_t before[3], waits = tshi_cuda(tsh_world_device(m.world))->waits;
    for (int i = 0; i < 3; i++) before[i] = standin_calls(names[i]);
    queue_step(&m, true);
    for (int i = 0; i < 3; i++) cr_expect_eq(standin_calls(names[i]), before[i], "%s", names[i]);
    cr_expect_eq(tshi_cuda(tsh_world_device(m.world))->waits, waits);
    close_model(&m);
}

/* --- what is refused ---------------------------------------------------------------------------------------------- */

Test(cuda_offload, a_captured_graph_holds_no_copies_to_the_host) {
    model m;
    tsh_graph *graph = NULL;
    open_model(TSH_CUDA, &m);
    tsh_device *device = tsh_world_device(m.world);
    for (int i = 0; i < 2; i++) queue_step(&m, false);
    cr_assert_eq(tsh_graph_capture_begin(device), TSH_OK, "%s", tsh_error_message());
    tsh_tensor *x = tsh_scale(m.tape, m.weight, 2);
    tsh_mark start = tsh_tape_mark(m.tape);
    x = tsh_tape_recompute_since_with(m.tape, start, tsh_tanh(m.tape, x), &(tsh_recompute_config){.offload = true});
    cr_expect_null(x);
    cr_expect_eq(tsh_tape_status(m.tape), TSH_ERR_STATE);
    cr_expect_not_null(strstr(tsh_tape_message(m.tape), "not while a graph is captured"), "%s",
                       tsh_tape_message(m.tape));
    cr_assert_eq(tsh_graph_capture_end(device, &graph), TSH_OK, "%s", tsh_error_message());
    tsh_graph_destroy(graph);
    tsh_tape_reset(m.tape);
    close_model(&m);
}

/* Without pinned memory the step fails, and the next one succeeds. */
Test(cuda_offload, a_step_without_host_memory_says_so) {
    model m;
    open_model(TSH_CUDA, &m);
    standin_fail("cudaHostAlloc", 1, 0);
    tsh_tensor *x = tsh_scale(m.tape, m.weight, 2);
    tsh_mark start = tsh_tape_mark(m.tape);
    x = tsh_tape_recompute_since_with(m.tape, start, tsh_tanh(m.tape, x), &(tsh_recompute_config){.offload = true});
    cr_expect_null(x);
    cr_expect_not_null(strstr(tsh_tape_message(m.tape), "offloading a segment's inputs: cudaHostAlloc"), "%s",
                       tsh_tape_message(m.tape));
    tsh_tape_reset(m.tape);
    queue_step(&m, true);
    close_model(&m);
}
