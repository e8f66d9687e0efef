/* tshard-bench mlp: a layer split by column, GELU, and a layer split by row: the block of a transformer. */
#include "layers.h"

int bench_mlp(int argc, char **argv) {
    static const char *const dtype_names[] = {"float32", "float64", "bfloat16", "float16", NULL};
    int64_t batch, hidden, ffn;
    int dtype;
    bool graph = false;
    const char *weights = NULL;
    bench_common common;
    const bench_option options[] = {
        {"batch", BENCH_COUNT, "1024", "rows of x", &batch, NULL},
        {"hidden", BENCH_COUNT, "1024", "features in and out", &hidden, NULL},
        {"ffn", BENCH_COUNT, "4096", "features between the layers", &ffn, NULL},
        {"dtype", BENCH_CHOICE, "float32", "dtype of the tensors", &dtype, dtype_names},
        {"graph", BENCH_FLAG, NULL, "on a GPU: capture a step and measure its replays", &graph, NULL},
        {"weights", BENCH_TEXT, NULL, "weights of the ranks, like 3:1, or auto, which measures them", &weights, NULL},
    };
    int code = bench_options_parse(
        "mlp",
        "Measures training steps of y = gelu(x W1^T + b1) W2^T + b2: forward, and backward to x and all parameters.\n"
        "W1 is split over the ranks by column, W2 by row.\n" LAYERS_HELP,
        options, (int)(sizeof options / sizeof *options), &common, argc, argv);
    if (code >= 0) return code;
    const layers_model model = {.shard = "column, row",
                                .batch = batch,
                                .dtype = (tsh_dtype)dtype,
                                .graph = graph,
                                .weights = weights,
                                .count = 2,
                                .layer = {{hidden, ffn, TSH_COLUMN}, {ffn, hidden, TSH_ROW}}};
    char title[200];
    snprintf(title, sizeof title, "mlp: y = gelu(x W1^T + b1) W2^T + b2, batch %lld, hidden %lld, ffn %lld",
             (long long)batch, (long long)hidden, (long long)ffn);
    const bench_field sizes[] = {
        BENCH_COUNT_FIELD("batch", batch),   BENCH_COUNT_FIELD("in", hidden), BENCH_COUNT_FIELD("out", hidden),
        BENCH_COUNT_FIELD("hidden", hidden), BENCH_COUNT_FIELD("ffn", ffn),
    };
    const layers_command command = {"mlp", title, sizes, (int)(sizeof sizes / sizeof *sizes), (tsh_dtype)dtype};
    return layers_run(&command, &common, &model, 1);
}
