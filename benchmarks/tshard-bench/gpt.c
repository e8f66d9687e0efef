/* tshard-bench gpt: the matrix products of train_gpt's linear layers, which its training step is compared with. */
#include "bench.h"
#include "products.h"

#include <stdlib.h>

typedef struct gpt {
    int64_t layers, heads, embed, block, batch, vocabulary;
} gpt;

enum { PER_LAYER = 6 };

/* What this rank's part of each linear layer multiplies: query, key, value, out, up, down of each block, and the head. */
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

static int run_products(void *context, int calls) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < calls && status == TSH_OK; i++) status = products_run(context);
    return (int)status;
}

static tsh_status measure(tsh_world *world, const bench_common *common, const gpt *g) {
    int count = (int)(g->layers * PER_LAYER + 1);
    products_layer *layers = calloc((size_t)count, sizeof *layers);
    products *p = NULL;
    bench_meter *meter = NULL;
    double seconds = 0;
    if (!layers) return TSH_ERR_MEMORY;
    list_layers(g, world, layers);
    tsh_status status = products_create(tsh_world_mesh(world), TSH_FLOAT32, layers, count, &p);
    if (status == TSH_OK) status = bench_meter_create(world, common->seconds, &meter);
    if (status == TSH_OK) status = bench_measure(meter, run_products, p, &seconds);
    if (status == TSH_OK) {
        const bench_field fields[] = {BENCH_TEXT_FIELD("bench", "gpt"),
                                      BENCH_COUNT_FIELD("ranks", tsh_world_size(world)),
                                      BENCH_REAL_FIELD("gemm_only_ms", 1e3 * seconds),
                                      BENCH_REAL_FIELD("gflops_a_rank", 1e-9 * products_flops(p) / seconds)};
        bench_report report = {.json = common->json, .silent = tsh_world_rank(world) != 0};
        bench_report_row(&report, fields, (int)(sizeof fields / sizeof *fields));
    }
    bench_meter_destroy(meter);
    products_destroy(p);
    free(layers);
    return status;
}

int bench_gpt(int argc, char **argv) {
    gpt g;
    bench_common common;
    const bench_option options[] = {{"layers", BENCH_COUNT, "4", "transformer blocks", &g.layers, NULL},
                                    {"heads", BENCH_COUNT, "4", "of attention, split over the ranks", &g.heads, NULL},
                                    {"embed", BENCH_COUNT, "128", "features of a token", &g.embed, NULL},
                                    {"block", BENCH_COUNT, "64", "tokens of a sequence", &g.block, NULL},
                                    {"batch", BENCH_COUNT, "12", "sequences of a step", &g.batch, NULL},
                                    {"vocabulary", BENCH_COUNT, "65", "classes", &g.vocabulary, NULL}};
    int code = bench_options_parse(
        "gpt",
        "Measures the matrix products of the linear layers in a training step of train_gpt, each rank with its part,\n"
        "through the libraries that tshard uses: what a step would take that did nothing else.",
        options, (int)(sizeof options / sizeof *options), &common, argc, argv);
    if (code >= 0) return code;
    tsh_world *world = NULL;
    if (tsh_world_init(NULL, &world) != TSH_OK) return bench_failed(NULL, "world_init");
    tsh_status status = measure(world, &common, &g);
    code = status == TSH_OK ? 0 : bench_failed(world, "gpt");
    tsh_world_destroy(world);
    return code;
}
