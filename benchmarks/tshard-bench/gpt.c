/* tshard-bench gpt: the matrix products of train_gpt's training step, which the step is compared with. */
#include "bench.h"
#include "products.h"

#include <stdlib.h>

typedef struct gpt {
    int64_t layers, heads, embed, block, batch, vocabulary;
} gpt;

enum { PER_LAYER = 6, PER_HEAD = 2 };

/* What this rank's part of each linear layer multiplies: query, key, value, out, up, down of each block, and the
 * head. */
static void list_layers(const gpt *g, const tsh_world *world, products_layer *out) {
    int ranks = tsh_world_size(world), rank = tsh_world_rank(world);
    int64_t tokens = g->batch * g->block, heads, hidden, vocabulary;
    tsh_split(g->heads, ranks, rank, NULL, &heads);
    tsh_split(4 * g->embed, ranks, rank, NULL, &hidden);
    tsh_split(g->vocabulary, ranks, rank, NULL, &vocabulary);
    int64_t features = heads * (g->embed / g->heads);
    for (int64_t i = 0; i < g->layers; i++, out += PER_LAYER) {
        for (int part = 0; part < 3; part++) out[part] = (products_layer){tokens, g->embed, features};
        out[3] = (products_layer){tokens, features, g->embed};
        out[4] = (products_layer){tokens, g->embed, hidden};
        out[5] = (products_layer){tokens, hidden, g->embed};
    }
    *out = (products_layer){tokens, g->embed, vocabulary};
}

/* What attention multiplies on this rank, for each head of each sequence: scores = q k^T and y = scores v. A causal
 * query sees half of the keys on the mean, so each product has half of them. */
static void list_heads(const gpt *g, int64_t count, products_layer *out) {
    int64_t dim = g->embed / g->heads, keys = (g->block + 1) / 2;
    for (int64_t i = 0; i < count; i++, out += PER_HEAD) {
        out[0] = (products_layer){g->block, dim, keys};
        out[1] = (products_layer){g->block, keys, dim};
    }
}

static int run_products(void *context, int calls) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < calls && status == TSH_OK; i++) status = products_run(context);
    return (int)status;
}

/* Seconds and floating-point operations of the products of `count` layers, forward and backward. */
static tsh_status measure(tsh_world *world, const bench_common *common, const products_layer *layers, int count,
                          double *seconds, double *flops) {
    products *p = NULL;
    bench_meter *meter = NULL;
    tsh_status status = products_create(tsh_world_mesh(world), TSH_FLOAT32, layers, count, &p);
    if (status == TSH_OK) status = bench_meter_create(world, common->seconds, &meter);
    if (status == TSH_OK) status = bench_measure(meter, run_products, p, seconds);
    if (status == TSH_OK) *flops = products_flops(p);
    bench_meter_destroy(meter);
    products_destroy(p);
    return status;
}

static void report(const tsh_world *world, const bench_common *common, double linear, double attention, double flops) {
    const bench_field fields[] = {BENCH_TEXT_FIELD("bench", "gpt"),
                                  BENCH_COUNT_FIELD("ranks", tsh_world_size(world)),
                                  BENCH_REAL_FIELD("linear_ms", 1e3 * linear),
                                  BENCH_REAL_FIELD("attention_ms", 1e3 * attention),
                                  BENCH_REAL_FIELD("gemm_only_ms", 1e3 * (linear + attention)),
                                  BENCH_REAL_FIELD("gflops_a_rank", 1e-9 * flops / (linear + attention))};
    bench_report out = {.json = common->json, .silent = tsh_world_rank(world) != 0};
    bench_report_row(&out, fields, (int)(sizeof fields / sizeof *fields));
}

static tsh_status measure_step(tsh_world *world, const bench_common *common, const gpt *g) {
    int64_t heads, linears = g->layers * PER_LAYER + 1;
    tsh_split(g->heads, tsh_world_size(world), tsh_world_rank(world), NULL, &heads);
    heads *= g->layers * g->batch;
    int64_t most = linears > heads * PER_HEAD ? linears : heads * PER_HEAD;
    double seconds[2] = {0, 0}, flops[2] = {0, 0};
    products_layer *layers = calloc((size_t)most, sizeof *layers);
    if (!layers) return TSH_ERR_MEMORY;
    list_layers(g, world, layers);
    tsh_status status = measure(world, common, layers, (int)linears, &seconds[0], &flops[0]);
    list_heads(g, heads, layers);
    if (status == TSH_OK) status = measure(world, common, layers, (int)(heads * PER_HEAD), &seconds[1], &flops[1]);
    if (status == TSH_OK) report(world, common, seconds[0], seconds[1], flops[0] + flops[1]);
    free(layers);
    return status;
}

int bench_gpt(int argc, char **argv) {
    gpt g;
    bench_common common;
    const bench_option options[] = {
        {"layers", BENCH_COUNT, "4", "transformer blocks", &g.layers, NULL},
        {"heads", BENCH_COUNT, "4", "attention heads, split over the ranks", &g.heads, NULL},
        {"embed", BENCH_COUNT, "128", "features of a token", &g.embed, NULL},
        {"block", BENCH_COUNT, "64", "tokens of a sequence", &g.block, NULL},
        {"batch", BENCH_COUNT, "12", "sequences of a step", &g.batch, NULL},
        {"vocabulary", BENCH_COUNT, "65", "classes", &g.vocabulary, NULL}};
    int code = bench_options_parse(
        "gpt",
        "Measures the matrix products in a training step of train_gpt, those of its linear layers and of its\n"
        "attention, with the libraries that tshard uses and each rank's part of the sizes: the time of a step that\n"
        "did nothing else.",
        options, (int)(sizeof options / sizeof *options), &common, argc, argv);
    if (code >= 0) return code;
    tsh_world *world = NULL;
    if (tsh_world_init(NULL, &world) != TSH_OK) return bench_failed(NULL, "world_init");
    tsh_status status = measure_step(world, &common, &g);
    code = status == TSH_OK ? 0 : bench_failed(world, "gpt");
    tsh_world_destroy(world);
    return code;
}
