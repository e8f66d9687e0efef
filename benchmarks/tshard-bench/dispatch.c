/* tshard-bench dispatch: what the tape costs beside the arithmetic, measured on a chain of small sums. */
#include "bench.h"

#include "tshard/functional.h"

typedef struct chain {
    tsh_tape *tape;
    tsh_tensor *x, *y;
    int64_t nodes;
} chain;

static tsh_status step(const chain *c) {
    tsh_tensor *z = c->x;
    for (int64_t i = 0; i < c->nodes; i++) z = tsh_add(c->tape, z, c->y);
    tsh_status status = tsh_backward(c->tape, tsh_sum(c->tape, z, TSH_ALL_DIMS));
    tsh_tensor_zero_grad(c->x);
    return status == TSH_OK ? tsh_tape_reset(c->tape) : status;
}

static int steps(void *context, int calls) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < calls && status == TSH_OK; i++) status = step(context);
    return (int)status;
}

tsh_status bench_node_seconds(tsh_world *world, double seconds, int64_t nodes, int64_t elements, double *node) {
    const tsh_tensor_config config = {.dtype = TSH_FLOAT32, .ndim = 1, .shape = {elements}};
    chain c = {.nodes = nodes};
    bench_meter *meter = NULL;
    tsh_status status = tsh_tape_create(world, &c.tape);
    if (status == TSH_OK) status = tsh_tensor_create_full(tsh_world_mesh(world), &config, 1, &c.x);
    if (status == TSH_OK) status = tsh_tensor_create_full(tsh_world_mesh(world), &config, 1, &c.y);
    if (status == TSH_OK) status = tsh_tensor_require_grad(c.x, true);
    if (status == TSH_OK) status = bench_meter_create(world, seconds, &meter);
    if (status == TSH_OK) status = bench_measure(meter, steps, &c, node);
    *node /= (double)nodes;
    bench_meter_destroy(meter);
    tsh_tensor_release(c.y);
    tsh_tensor_release(c.x);
    tsh_tape_destroy(c.tape);
    return status;
}

static tsh_status run_chain(tsh_world *world, const bench_common *common, int64_t nodes, int64_t elements) {
    double seconds = 0;
    tsh_status status = bench_node_seconds(world, common->seconds, nodes, elements, &seconds);
    if (status != TSH_OK) return status;
    const bench_field fields[] = {BENCH_TEXT_FIELD("bench", "dispatch"), BENCH_COUNT_FIELD("nodes", nodes),
                                  BENCH_COUNT_FIELD("elements", elements), BENCH_REAL_FIELD("node_us", 1e6 * seconds)};
    bench_report report = {.json = common->json, .silent = tsh_world_rank(world) != 0};
    bench_report_row(&report, fields, (int)(sizeof fields / sizeof *fields));
    return TSH_OK;
}

int bench_dispatch(int argc, char **argv) {
    int64_t nodes, elements;
    bench_common common;
    const bench_option options[] = {{"nodes", BENCH_COUNT, "1000", "sums in the chain", &nodes, NULL},
                                    {"elements", BENCH_COUNT, "8", "elements of each tensor", &elements, NULL}};
    int code = bench_options_parse(
        "dispatch",
        "Measures a chain of sums of small float32 tensors, forward and backward: the time of a node is the cost of\n"
        "the tape. Every rank runs a chain of its own.",
        options, 2, &common, argc, argv);
    if (code >= 0) return code;
    tsh_world *world = NULL;
    if (tsh_world_init(NULL, &world) != TSH_OK) return bench_failed(NULL, "world_init");
    tsh_status status = run_chain(world, &common, nodes, elements);
    code = status == TSH_OK ? 0 : bench_failed(world, "dispatch");
    tsh_world_destroy(world);
    return code;
}
