/* Data-parallel steps as captured graphs, over NCCL's stand-in: their edges leave the sums of gradients beside
 * backward, and launches train as usual steps do. */
#include "cuda/nccl_ranks.h"
#include "device/cuda/cuda.h"
#include "tshard/tshard.h"

TestSuite(nccl_overlap, .timeout = 60);

enum { LAYERS = 3, ROWS = 4, WIDTH = 6 };

typedef struct model {
    tsh_mesh *mesh;
    tsh_tape *tape;
    tsh_parameters *list;
    tsh_linear *layer[LAYERS];
    tsh_optimizer *optimizer;
    tsh_data_parallel *dp;
    tsh_tensor *x;
} model;

static bool add_layer(tshi_rank *r, model *m, int i) {
    static const char *const names[LAYERS] = {"0", "1", "2"};
    const tsh_linear_config config = {
        .in_features = WIDTH, .out_features = WIDTH, .shard = i % 2 ? TSH_ROW : TSH_COLUMN, .bias = true};
    float weight[WIDTH * WIDTH], bias[WIDTH];
    for (int j = 0; j < WIDTH * WIDTH; j++) weight[j] = (float)((j * 7 + i) % 5 - 2) / 8;
    for (int j = 0; j < WIDTH; j++) bias[j] = (float)(j % 3 - 1) / 8;
    tsh_linear_create(tsh_mesh_group(m->mesh, "model"), &config, &m->layer[i]);
    return tshi_check(r, m->layer[i], "%s", tsh_error_message()) &&
           tshi_check_ok(r, tsh_linear_load(m->layer[i], weight, bias)) &&
           tshi_check_ok(r, tsh_linear_register(m->layer[i], m->list, names[i]));
}

/* A layer's gradients are a bucket. */
static bool open_model(tshi_rank *r, tsh_zero_level level, model *m) {
    const tsh_tensor_config rows = {.ndim = 2, .shape = {ROWS, WIDTH}, .layout = {TSH_SHARD(0)}};
    const tsh_data_parallel_config config = {.bucket_bytes = 256, .first_bucket_bytes = 256, .level = level};
    float x[ROWS * WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++) x[i] = (float)(i % 7 - 3) / 4;
    *m = (model){0};
    tshi_check_ok(r, tsh_mesh_create(r->world, "data=-1,model=1", &m->mesh));
    tshi_check_ok(r, tsh_parameters_create(r->world, &m->list));
    for (int i = 0; i < LAYERS; i++)
        if (!add_layer(r, m, i)) return false;
    tshi_check_ok(r, tsh_tensor_create(m->mesh, &rows, &m->x));
    tshi_check_ok(r, tsh_tensor_write_whole(m->x, x));
    tshi_check_ok(r, tsh_tape_create(r->world, &m->tape));
    tshi_check_ok(r, tsh_data_parallel_create(m->tape, m->list, tsh_mesh_group(m->mesh, "data"), &config, &m->dp));
    tshi_check_ok(r, tsh_sgd_create(m->list, &(tsh_sgd_config){.lr = 0.01}, &m->optimizer));
    return !r->failed &&
           tshi_check(r, tsh_data_parallel_buckets(m->dp) == LAYERS, "%d buckets", tsh_data_parallel_buckets(m->dp));
}

static void close_model(model *m) {
    tsh_optimizer_destroy(m->optimizer);
    tsh_data_parallel_destroy(m->dp);
    tsh_parameters_destroy(m->list);
    tsh_tape_destroy(m->tape);
    for (int i = 0; i < LAYERS; i++) tsh_linear_destroy(m->layer[i]);
    tsh_tensor_release(m->x);
    tsh_mesh_destroy(m->mesh);
    *m = (model){0};
}

static bool queue_step(tshi_rank *r, model *m) {
    tsh_optimizer_zero_grad(m->optimizer);
    tsh_tensor *h = m->x;
    for (int i = 0; i < LAYERS; i++) h = tsh_silu(m->tape, tsh_linear_forward(m->tape, m->layer[i], h));
    tsh_tensor *loss = tsh_sum(m->tape, h, TSH_ALL_DIMS);
    return tshi_check(r, loss, "%s", tsh_tape_message(m->tape)) && tshi_check_ok(r, tsh_backward(m->tape, loss)) &&
           tshi_check_ok(r, tsh_optimizer_step(m->optimizer)) && tshi_check_ok(r, tsh_tape_reset(m->tape));
}

static bool read_values(tshi_rank *r, const model *m, float *values) {
    for (int i = 0; i < LAYERS; i++) {
        tsh_tensor *whole = tsh_linear_weight(m->layer[i]);
        if (!tshi_check_ok(r, tsh_tensor_read_whole(whole, values + i * WIDTH * WIDTH))) return false;
    }
    return true;
}

/* Backward comes to the last layer first: its sum runs beside all that the layers before it have to do. Where
 * parameters are slices, forward has gathered the values of each layer. */
static void expect_overlap(tshi_rank *r, const tsh_graph *graph, tsh_zero_level level) {
    cudaGraphExec_t exec = ((const tshi_cuda_graph *)graph)->exec;
    int first = level == TSH_ZERO_NOTHING ? 0 : LAYERS;
    int last = standin_graph_beside(exec, first), middle = standin_graph_beside(exec, first + 1);
    tshi_check(r, last >= 4 && middle >= 2, "%d and %d operations run beside the first two sums", last, middle);
}

static void captured(tshi_rank *r, void *arg) {
    const tsh_zero_level level = *(const tsh_zero_level *)arg;
    float wanted[LAYERS * WIDTH * WIDTH], values[LAYERS * WIDTH * WIDTH];
    tsh_graph *graph = NULL;
    tsh_device *device = tsh_world_device(r->world);
    model m;
    if (open_model(r, level, &m)) {
        for (int i = 0; i < 4; i++) queue_step(r, &m);
        read_values(r, &m, wanted);
    }
    close_model(&m);
    if (!r->failed && open_model(r, level, &m)) {
        queue_step(r, &m);
        tshi_check_ok(r, tsh_graph_capture_begin(device));
        queue_step(r, &m);
        tshi_check_ok(r, tsh_graph_capture_end(device, &graph));
        if (graph) expect_overlap(r, graph, level);
        for (int i = 0; i < 3 && graph; i++) tshi_check_ok(r, tsh_graph_launch(graph));
        read_values(r, &m, values);
        tshi_check(r, memcmp(values, wanted, sizeof values) == 0, "launches train to other values");
    }
    tsh_graph_destroy(graph);
    close_model(&m);
}

Test(nccl_overlap, sums_run_beside_a_captured_backward) {
    for (tsh_zero_level level = TSH_ZERO_NOTHING; level <= TSH_ZERO_GRADIENTS; level++)
        for (int ranks = 2; ranks <= 3; ranks++) run_ranks(ranks, false, captured, &level);
}
