/* tshard-bench linear: one layer, split by column, by row, or not at all. */
#include "layers.h"

enum { SHARDINGS = 3 };

static const struct {
    const char *name;
    tsh_sharding shard;
} shardings[SHARDINGS] = {{"column", TSH_COLUMN}, {"row", TSH_ROW}, {"dense", TSH_DENSE}};

int bench_linear(int argc, char **argv) {
    static const char *const shard_names[] = {"column", "row", "dense", "all", NULL};
    static const char *const dtype_names[] = {"float32", "float64", "bfloat16", "float16", NULL};
    int64_t batch, in, out;
    int shard, dtype, n = 0;
    bool graph = false;
    bench_common common;
    const bench_option options[] = {
        {"batch", BENCH_COUNT, "1024", "rows of x", &batch, NULL},
        {"in", BENCH_COUNT, "1024", "features in", &in, NULL},
        {"out", BENCH_COUNT, "1024", "features out", &out, NULL},
        {"shard", BENCH_CHOICE, "all", "how the weight is split over the ranks", &shard, shard_names},
        {"dtype", BENCH_CHOICE, "float32", "dtype of the tensors", &dtype, dtype_names},
        {"graph", BENCH_FLAG, NULL, "on a GPU: capture a step and measure its replays", &graph, NULL},
    };
    int code = bench_options_parse(
        "linear",
        "Measures training steps of a linear layer, y = x W^T + b: forward, and backward to x, W and b. column\n"
        "splits W by outputs over the ranks, row by inputs, and a dense layer is whole on each rank.\n" LAYERS_HELP,
        options, (int)(sizeof options / sizeof *options), &common, argc, argv);
    if (code >= 0) return code;
    layers_model models[SHARDINGS];
    for (int i = 0; i < SHARDINGS; i++) {
        if (shard != SHARDINGS && shard != i) continue;
        models[n++] =
            (layers_model){shardings[i].name, batch, (tsh_dtype)dtype, graph, NULL, 1, {{in, out, shardings[i].shard}}};
    }
    char title[160];
    snprintf(title, sizeof title, "linear: y = x W^T + b, batch %lld, in %lld, out %lld", (long long)batch,
             (long long)in, (long long)out);
    const bench_field sizes[] = {
        BENCH_COUNT_FIELD("batch", batch),
        BENCH_COUNT_FIELD("in", in),
        BENCH_COUNT_FIELD("out", out),
    };
    const layers_command command = {"linear", title, sizes, (int)(sizeof sizes / sizeof *sizes), (tsh_dtype)dtype};
    return layers_run(&command, &common, models, n);
}
