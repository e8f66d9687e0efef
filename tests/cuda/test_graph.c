/* Captured graphs: what runs when, whose memory it is, and what cannot be captured. */
#include "cuda/standin_device.h"

TestSuite(cuda_graph, .timeout = 120);

static tsh_device *opened(void) {
    tsh_device *device = open_device();
    standin_lazy(false); /* what would run too early is seen at once */
    return device;
}

/* y += x, through memory that the function allocates and releases. */
static void step(tsh_device *device, int64_t n, const float *x, float *y) {
    float *copy = get(device, (size_t)n * sizeof *copy);
    device->ops->copy.within(device, (size_t)n * sizeof *copy, x, copy);
    device->ops->elementwise[TSH_FLOAT32].axpby(device, n, 1, copy, 1, y, y);
    device->ops->memory.release(device, copy);
}

static tsh_graph *capture(tsh_device *device, int64_t n, const float *x, float *y) {
    tsh_graph *graph = NULL;
    cr_assert_eq(tsh_graph_capture_begin(device), TSH_OK, "%s", tsh_error_message());
    step(device, n, x, y);
    cr_assert_eq(device->ops->check(device), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tsh_graph_capture_end(device, &graph), TSH_OK, "%s", tsh_error_message());
    cr_assert_not_null(graph);
    return graph;
}

Test(cuda_graph, runs_when_launched_as_often_as_launched) {
    double numbers[3] = {1, 2, 3}, out[3];
    tsh_device *device = opened();
    float *x = put_numbers(device, TSH_FLOAT32, 3, numbers, 0), *y = put_numbers(device, TSH_FLOAT32, 3, numbers, 0);
    tsh_graph *graph = capture(device, 3, x, y);
    get_numbers(device, TSH_FLOAT32, 3, y, out);
    cr_assert_eq(out[2], 3, "a capture runs nothing");
    uint64_t waits = tshi_cuda(device)->waits, calls = standin_calls(NULL);
    for (int i = 0; i < 4; i++) cr_assert_eq(tsh_graph_launch(graph), TSH_OK);
    cr_assert_eq(standin_calls(NULL) - calls, 4, "one call each");
    cr_assert_eq(tshi_cuda(device)->waits, waits);
    get_numbers(device, TSH_FLOAT32, 3, y, out);
    for (int i = 0; i < 3; i++) cr_assert_eq(out[i], 5 * (i + 1));
    /* New input in the tensors of the capture. */
    device->ops->copy.fill(device, TSH_FLOAT32, 3, 10, x);
    cr_assert_eq(tsh_graph_launch(graph), TSH_OK);
    get_numbers(device, TSH_FLOAT32, 3, y, out);
    for (int i = 0; i < 3; i++) cr_assert_eq(out[i], 5 * (i + 1) + 10);
    tsh_graph_destroy(graph);
    tsh_graph_destroy(NULL);
    device->ops->memory.release(device, x);
    device->ops->memory.release(device, y);
    close_device(device);
}

/* Between launches the program takes memory and writes all of it: none of that is the graph's. */
Test(cuda_graph, its_memory_is_its_own_until_it_is_destroyed) {
    enum { N = 1 << 19 };
    double one = 1, out;
    tsh_device *device = opened();
    float *x = get(device, N * sizeof *x), *y = get(device, N * sizeof *y), *others[40], *early = NULL;
    device->ops->copy.fill(device, TSH_FLOAT32, N, one, x);
    device->ops->copy.fill(device, TSH_FLOAT32, N, 0, y);
    tsh_graph *graph = NULL;
    cr_assert_eq(tsh_graph_capture_begin(device), TSH_OK);
    step(device, N, x, y);
    device->ops->memory.release(device, x); /* the graph still reads it */
    step(device, N, y, y);
    early = get(device, 300); /* outlives the graph */
    cr_assert_eq(tsh_graph_capture_end(device, &graph), TSH_OK, "%s", tsh_error_message());
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 40; i++) {
            others[i] = get(device, N * sizeof *x >> i % 20);
            device->ops->copy.fill(device, TSH_FLOAT32, N >> i % 20, -5, others[i]);
        }
        cr_assert_eq(tsh_graph_launch(graph), TSH_OK);
        for (int i = 0; i < 40; i++) {
            get_numbers(device, TSH_FLOAT32, 1, others[i], &out);
            cr_assert_eq(out, -5);
            device->ops->memory.release(device, others[i]);
        }
    }
    get_numbers(device, TSH_FLOAT32, 1, y, &out);
    cr_assert_eq(out, 6, "(0 + 1) * 2 = 2, (2 + 1) * 2 = 6, not %g", out);
    tsh_graph_destroy(graph);
    /* Now it is everyone's. */
    uint64_t mallocs = standin_calls("cudaMalloc");
    x = get(device, N * sizeof *x);
    device->ops->memory.release(device, x);
    cr_assert_eq(standin_calls("cudaMalloc"), mallocs);
    device->ops->memory.release(device, y);
    device->ops->memory.release(device, early);
    close_device(device);
}

/* Graphs that share blocks, dropped in either order. */
Test(cuda_graph, two_graphs) {
    double numbers[3] = {1, 2, 3}, out[3];
    for (int order = 0; order < 2; order++) {
        tsh_device *device = opened();
        float *x = put_numbers(device, TSH_FLOAT32, 3, numbers, 0),
              *y = put_numbers(device, TSH_FLOAT32, 3, numbers, 0);
        tsh_graph *graphs[2] = {capture(device, 3, x, y), NULL};
        cr_assert_eq(tsh_graph_capture_begin(device), TSH_OK);
        step(device, 3, x, y);
        device->ops->memory.release(device, x);
        cr_assert_eq(tsh_graph_capture_end(device, &graphs[1]), TSH_OK);
        for (int i = 0; i < 4; i++) cr_assert_eq(tsh_graph_launch(graphs[i % 2]), TSH_OK);
        get_numbers(device, TSH_FLOAT32, 3, y, out);
        cr_assert_eq(out[2], 15);
        tsh_graph_destroy(graphs[order]);
        tsh_graph_destroy(graphs[!order]);
        device->ops->memory.release(device, y);
        close_device(device);
    }
}

/* --- numbers that change from launch to launch -------------------------------------------------------------------- */

static void adamw(tsh_device *device, int64_t number, float *p, float *g, float *m, float *v) {
    tshi_adamw settings = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.01, .step = number};
    tshi_update update = {.n = 3, .grad = g, .state = {m, v}, .p = p};
    device->ops->optimizer[TSH_FLOAT32].adamw(device, &settings, 1, &update);
}

Test(cuda_graph, adamw_counts_its_steps) {
    enum { EAGER = 2, STEPS = 6 };
    double numbers[3] = {1, -2, 3}, zero[3] = {0}, want[3], out[3];
    tsh_device *device = opened();
    float *t[2][4];
    for (int i = 0; i < 8; i++) t[i / 4][i % 4] = put_numbers(device, TSH_FLOAT32, 3, i % 4 < 2 ? numbers : zero, 0);
    for (int i = 1; i <= STEPS; i++) adamw(device, i, t[0][0], t[0][1], t[0][2], t[0][3]);
    for (int i = 1; i <= EAGER; i++) adamw(device, i, t[1][0], t[1][1], t[1][2], t[1][3]);
    tsh_graph *graph = NULL;
    cr_assert_eq(tsh_graph_capture_begin(device), TSH_OK);
    adamw(device, EAGER + 1, t[1][0], t[1][1], t[1][2], t[1][3]);
    cr_assert_eq(tsh_graph_capture_end(device, &graph), TSH_OK);
    for (int i = EAGER; i < STEPS; i++) cr_assert_eq(tsh_graph_launch(graph), TSH_OK);
    get_numbers(device, TSH_FLOAT32, 3, t[0][0], want);
    get_numbers(device, TSH_FLOAT32, 3, t[1][0], out);
    for (int i = 0; i < 3; i++) cr_assert_float_eq(out[i], want[i], 1e-6, "%g, not %g", out[i], want[i]);
    tsh_graph_destroy(graph);
    for (int i = 0; i < 8; i++) device->ops->memory.release(device, t[i / 4][i % 4]);
    close_device(device);
}

Test(cuda_graph, dropout_draws_new_numbers_equal_in_both_directions) {
    enum { N = 64 };
    double ones[N], out[3][N];
    tshi_block block = {.outer = 1, .n = N, .inner = 1, .global_n = N};
    tsh_device *device = opened();
    for (int i = 0; i < N; i++) ones[i] = 1;
    float *x = put_numbers(device, TSH_FLOAT32, N, ones, 0), *y = get(device, N * sizeof *y),
          *dx = get(device, N * sizeof *y);
    device->ops->random[TSH_FLOAT32].dropout(device, &block, 7, 3, 0.5, x, 0, y);
    get_numbers(device, TSH_FLOAT32, N, y, out[0]);
    tsh_graph *graph = NULL;
    cr_assert_eq(tsh_graph_capture_begin(device), TSH_OK);
    device->ops->random[TSH_FLOAT32].dropout(device, &block, 7, 3, 0.5, x, 0, y);
    device->ops->random[TSH_FLOAT32].dropout(device, &block, 7, 3, 0.5, x, 0, dx);
    cr_assert_eq(tsh_graph_capture_end(device, &graph), TSH_OK);
    for (int launch = 1; launch <= 2; launch++) {
        cr_assert_eq(tsh_graph_launch(graph), TSH_OK);
        get_numbers(device, TSH_FLOAT32, N, y, out[launch]);
        double back[N];
        get_numbers(device, TSH_FLOAT32, N, dx, back);
        cr_assert_arr_eq(back, out[launch], sizeof back);
    }
    cr_assert_arr_eq(out[1], out[0], sizeof out[0], "the first launch is the captured step");
    cr_assert_arr_neq(out[2], out[1], sizeof out[0]);
    /* The second is stream 3 + 2^32. */
    device->ops->random[TSH_FLOAT32].dropout(device, &block, 7, 3 + ((uint64_t)1 << 32), 0.5, x, 0, y);
    get_numbers(device, TSH_FLOAT32, N, y, out[0]);
    cr_assert_arr_eq(out[2], out[0], sizeof out[0]);
    tsh_graph_destroy(graph);
    device->ops->memory.release(device, x);
    device->ops->memory.release(device, y);
    device->ops->memory.release(device, dx);
    close_device(device);
}

/* --- two streams -------------------------------------------------------------------------------------------------- */

Test(cuda_graph, the_communication_stream_comes_along) {
    double numbers[3] = {1, 2, 3}, out[3];
    tsh_device *device = opened();
    tshi_cuda_device *cuda = tshi_cuda(device);
    float *x = put_numbers(device, TSH_FLOAT32, 3, numbers, 0), *y = get(device, 12);
    tsh_graph *graph = NULL;
    cr_assert_eq(tsh_graph_capture_begin(device), TSH_OK);
    cr_assert_eq(cudaEventRecord(cuda->events[0], cuda->compute), cudaSuccess);
    cr_assert_eq(cudaStreamWaitEvent(cuda->communication[0], cuda->events[0], 0), cudaSuccess);
    cr_assert_eq(cudaMemcpyAsync(y, x, 12, cudaMemcpyDeviceToDevice, cuda->communication[0]), cudaSuccess);
    cr_assert_eq(tsh_graph_capture_end(device, &graph), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(tsh_graph_launch(graph), TSH_OK);
    get_numbers(device, TSH_FLOAT32, 3, y, out);
    cr_assert_eq(out[2], 3);
    /* And is free again. */
    cr_assert_eq(cudaMemsetAsync(y, 0, 12, cuda->communication[0]), cudaSuccess);
    cr_assert_eq(cudaStreamSynchronize(cuda->communication[0]), cudaSuccess);
    tsh_graph_destroy(graph);
    device->ops->memory.release(device, x);
    device->ops->memory.release(device, y);
    close_device(device);
}

/* --- another GPU is current --------------------------------------------------------------------------------------- */

Test(cuda_graph, work_goes_to_the_gpu_of_its_device) {
    double numbers[3] = {1, 2, 3}, out[3];
    tsh_device *device = NULL;
    standin_reset();
    standin_gpus(2);
    cr_assert_eq(tshi_device_create_cuda(NULL, 1, &device), TSH_OK, "%s", tsh_error_message());
    cudaSetDevice(0);
    float *x = put_numbers(device, TSH_FLOAT32, 3, numbers, 0), *y = put_numbers(device, TSH_FLOAT32, 3, numbers, 0);
    cr_assert_eq(standin_gpu_of(x), 1);
    cudaSetDevice(0);
    step(device, 3, x, y);
    cudaSetDevice(0);
    tsh_event *begin = NULL;
    cr_assert_eq(tsh_event_create(device, &begin), TSH_OK);
    cudaSetDevice(0);
    cr_assert_eq(tsh_event_record(begin), TSH_OK, "%s", tsh_error_message());
    tsh_event_destroy(begin);
    cudaSetDevice(0);
    cr_assert_eq(device->ops->product.gemm(device, TSH_FLOAT32, false, false, 1, 1, 3, 1, x, 3, x, 1, 0, y, 1), TSH_OK,
                 "%s", tsh_error_message());
    cudaSetDevice(0);
    tsh_graph *graph = capture(device, 3, x, y);
    cudaSetDevice(0);
    cr_assert_eq(tsh_graph_launch(graph), TSH_OK, "%s", tsh_error_message());
    get_numbers(device, TSH_FLOAT32, 3, y, out);
    cr_assert_eq(out[2], 9, "%g", out[2]);
    tsh_graph_destroy(graph);
    device->ops->memory.release(device, x);
    device->ops->memory.release(device, y);
    cudaSetDevice(0);
    close_device(device);
}

/* --- what is none of a graph's ------------------------------------------------------------------------------------ */

static void expect_words(tsh_status status, tsh_status wanted, const char *words) {
    cr_assert_eq(status, wanted, "%s", tsh_error_message());
    cr_assert_not_null(strstr(tsh_error_message(), words), "'%s' is not in '%s'", words, tsh_error_message());
}

Test(cuda_graph, the_host_in_the_middle_is_refused) {
    float x = 7;
    for (int way = 0; way < 2; way++) {
        tsh_device *device = opened();
        tsh_graph *graph = (tsh_graph *)&graph;
        float *there = get(device, sizeof x);
        cr_assert_eq(tsh_graph_capture_begin(device), TSH_OK);
        if (way == 0) {
            device->ops->copy.to_host(device, sizeof x, there, &x);
            cr_assert_eq(x, 0);
            expect_words(device->ops->check(device), TSH_ERR_STATE,
                         "a copy to the host: not while a graph is captured");
        } else {
            device->ops->copy.from_host(device, sizeof x, &x, there);
        }
        /* Even when the failure has been reported before. */
        expect_words(tsh_graph_capture_end(device, &graph), TSH_ERR_STATE, "the host: not while a graph is captured");
        cr_assert_null(graph);
        device->ops->copy.fill(device, TSH_FLOAT32, 1, 3, there);
        device->ops->copy.to_host(device, sizeof x, there, &x);
        cr_assert_eq(x, 3, "the device works as before");
        device->ops->memory.release(device, there);
        close_device(device);
    }
}

Test(cuda_graph, calls_at_the_wrong_time) {
    tsh_graph *graph = NULL, *second = NULL;
    tsh_device *device = opened();
    float *x = get(device, 12);
    device->ops->copy.fill(device, TSH_FLOAT32, 3, 3, x);
    expect_words(tsh_graph_capture_end(device, &graph), TSH_ERR_STATE, "no graph is captured");
    graph = capture(device, 3, x, x);
    cr_assert_eq(tsh_graph_capture_begin(device), TSH_OK);
    expect_words(tsh_graph_capture_begin(device), TSH_ERR_STATE, "captured already");
    expect_words(tsh_graph_launch(graph), TSH_ERR_STATE, "not while a graph is captured");
    cr_assert_eq(tsh_graph_capture_end(device, &second), TSH_OK, "%s", tsh_error_message());
    expect_words(tsh_graph_launch(NULL), TSH_ERR_ARGUMENT, "a graph is required");
    expect_words(tsh_graph_capture_begin(NULL), TSH_ERR_ARGUMENT, "a device is required");
    cr_assert_eq(tsh_graph_capture_begin(device), TSH_OK);
    expect_words(tsh_graph_capture_end(device, NULL), TSH_ERR_ARGUMENT, "out is NULL");
    tsh_graph_destroy(second);
    tsh_graph_destroy(graph);
    device->ops->memory.release(device, x);
    close_device(device);
}

Test(cuda_graph, only_a_gpu_captures) {
    static char heap[1 << 16] __attribute__((aligned(4096)));
    tsh_device *cpu = NULL;
    cr_assert_eq(tshi_device_create_cpu(NULL, heap, sizeof heap, 1, &cpu), TSH_OK);
    expect_words(tsh_graph_capture_begin(cpu), TSH_ERR_UNSUPPORTED, "a cpu cannot capture graphs");
    tshi_device_destroy(cpu);
    setenv("TSHARD_CUDA_MANAGED", "1", 1);
    tsh_device *device = open_device();
    expect_words(tsh_graph_capture_begin(device), TSH_ERR_STATE, "TSHARD_CUDA_MANAGED=1");
    close_device(device);
}

static bool capture_and_launch(void) {
    tsh_device *device = NULL;
    tsh_graph *graph = NULL;
    if (tshi_device_create_cuda(NULL, 0, &device) != TSH_OK) return true;
    float *x = device->ops->memory.alloc(device, 12), *y = device->ops->memory.alloc(device, 12);
    bool good = x && y;
    if (good) device->ops->copy.zero(device, 12, x);
    good = good && tsh_graph_capture_begin(device) == TSH_OK;
    if (good) {
        float *large = device->ops->memory.alloc(device, 2 << 20);
        if (large) device->ops->copy.zero(device, 2 << 20, large);
        device->ops->memory.release(device, large);
        device->ops->elementwise[TSH_FLOAT32].axpby(device, 3, 1, x, 0, NULL, y);
        good = tsh_graph_capture_end(device, &graph) == TSH_OK && large;
    }
    good = good && tsh_graph_launch(graph) == TSH_OK;
    good = device->ops->check(device) == TSH_OK && good;
    begin_to_clean_up();
    tsh_graph_destroy(graph);
    device->ops->memory.release(device, x);
    device->ops->memory.release(device, y);
    cr_assert_eq(device->stats.bytes_in_use, 0);
    tshi_device_destroy(device);
    return !good;
}

Test(cuda_graph, each_call_may_fail) {
    cr_assert_gt(fail_each_call("a graph", capture_and_launch), 60);
}
