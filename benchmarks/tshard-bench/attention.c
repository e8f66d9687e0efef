/* tshard-bench attention: the function alone, forward and backward, on heads that each rank has for itself. */
#include "bench.h"

#include "tshard/functional.h"
#include "tshard/layers.h"

#include <math.h>
#include <stdlib.h>

typedef struct bed {
    int64_t batch, queries, keys, heads, kv_heads, dim;
    int dtype;
    bool full;    /* every query sees every key */
    bool compare; /* with the way that a call with lengths goes */
    int context;  /* how the ranks split the tokens of one call */
    tsh_device *device;
    tsh_tape *tape;
    tsh_tensor *q, *k, *v, *dy, *lengths, *positions;
} bed;

/* Each rank makes a call of its own, or the ranks split the tokens of one call, in order or zigzag, as layers do. */
enum { CONTEXT_NONE, CONTEXT_IN_ORDER, CONTEXT_GATHER, CONTEXT_EXCHANGE };

static tsh_tensor *attend(const bed *b) {
    const tsh_layout tokens[] = {TSH_SHARD(1)}, heads[] = {TSH_SHARD(2)};
    tsh_tensor *in[] = {b->q, b->k, b->v};
    for (int i = 0; b->context == CONTEXT_EXCHANGE && i < 3; i++) in[i] = tsh_redistribute(b->tape, in[i], NULL, heads);
    tsh_tensor *y = tsh_attention(
        b->tape, in[0], in[1], in[2],
        &(tsh_attention_config){.causal = !b->full, .query_positions = b->positions, .key_positions = b->positions});
    return b->context == CONTEXT_EXCHANGE ? tsh_redistribute(b->tape, y, NULL, tokens) : y;
}

static int forward(void *context, int calls) {
    const bed *b = context;
    tsh_status status = TSH_OK;
    bool recording = tsh_tape_set_recording(b->tape, false);
    for (int i = 0; i < calls && status == TSH_OK; i++) {
        status = attend(b) ? TSH_OK : tsh_tape_status(b->tape);
        if (status == TSH_OK) status = tsh_tape_reset(b->tape);
    }
    tsh_tape_set_recording(b->tape, recording);
    return (int)(status == TSH_OK ? tsh_device_synchronize(b->device) : status);
}

static int both(void *context, int calls) {
    const bed *b = context;
    tsh_status status = TSH_OK;
    for (int i = 0; i < calls && status == TSH_OK; i++) {
        tsh_tensor *const leaves[] = {b->q, b->k, b->v};
        status = tsh_backward_with(b->tape, attend(b), &(tsh_backward_config){.gradient = b->dy});
        for (int j = 0; j < 3; j++) tsh_tensor_zero_grad(leaves[j]);
        if (status == TSH_OK) status = tsh_tape_reset(b->tape);
    }
    return (int)(status == TSH_OK ? tsh_device_synchronize(b->device) : status);
}

/* --- comparing ---------------------------------------------------------------------------------------------------- */

enum { RESULTS = 4 }; /* y, dq, dk, dv */

/* |x - y| / |y| in the Euclidean norm. A largest difference would say little: the first rows of a causal call are far
 * larger than the last ones, and so are their rounding errors. */
static double differ(const double *x, const double *y, int64_t n) {
    double differences = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        differences += (x[i] - y[i]) * (x[i] - y[i]);
        squares += y[i] * y[i];
    }
    return sqrt(differences / (squares > 0 ? squares : 1));
}

static int64_t elements(const bed *b, int result) {
    bool of_keys = result >= 2;
    return b->batch * b->dim * (of_keys ? b->keys * b->kv_heads : b->queries * b->heads);
}

static tsh_status read_as_double(const bed *b, int result, tsh_tensor *t, double *to) {
    tsh_tensor *wide = tsh_cast(b->tape, t, TSH_FLOAT64);
    return wide ? tsh_tensor_read(wide, to, elements(b, result)) : tsh_tape_status(b->tape);
}

/* The results of one step, in memory of the host. */
static tsh_status results_of(const bed *b, tsh_tensor *lengths, double *const *to) {
    tsh_tensor *const leaves[] = {b->q, b->k, b->v};
    const tsh_attention_config config = {.causal = !b->full, .lengths = lengths};
    tsh_tensor *y = tsh_attention(b->tape, b->q, b->k, b->v, &config);
    tsh_status status = y ? read_as_double(b, 0, y, to[0]) : tsh_tape_status(b->tape);
    if (status == TSH_OK) status = tsh_backward_with(b->tape, y, &(tsh_backward_config){.gradient = b->dy});
    for (int i = 0; i < 3 && status == TSH_OK; i++)
        status = read_as_double(b, i + 1, tsh_tensor_grad(leaves[i]), to[i + 1]);
    for (int i = 0; i < 3; i++) tsh_tensor_zero_grad(leaves[i]);
    return status == TSH_OK ? tsh_tape_reset(b->tape) : status;
}

/* A library's attention takes no lengths: a call that names all keys goes another way to the same results. */
static tsh_status compare(const bed *b, double differences[RESULTS]) {
    double *both[2][RESULTS] = {{NULL}};
    tsh_status status = TSH_OK;
    for (int i = 0; i < 2 * RESULTS; i++) {
        double **to = &both[i / RESULTS][i % RESULTS];
        *to = calloc((size_t)elements(b, i % RESULTS), sizeof **to);
        if (!*to) status = TSH_ERR_MEMORY;
    }
    if (status == TSH_OK) status = results_of(b, NULL, both[0]);
    if (status == TSH_OK) status = results_of(b, b->lengths, both[1]);
    for (int i = 0; i < RESULTS && status == TSH_OK; i++)
        differences[i] = differ(both[0][i], both[1][i], elements(b, i));
    for (int i = 0; i < 2 * RESULTS; i++) free(both[i / RESULTS][i % RESULTS]);
    return status;
}

static tsh_status report_differences(const bed *b, const bench_common *common, tsh_world *world) {
    double d[RESULTS] = {0};
    tsh_status status = compare(b, d);
    if (status != TSH_OK) return status;
    const bench_field fields[] = {BENCH_TEXT_FIELD("bench", "attention_difference"), BENCH_REAL_FIELD("y", d[0]),
                                  BENCH_REAL_FIELD("dq", d[1]), BENCH_REAL_FIELD("dk", d[2]),
                                  BENCH_REAL_FIELD("dv", d[3])};
    bench_report report = {.json = common->json, .silent = tsh_world_rank(world) != 0};
    bench_report_row(&report, fields, (int)(sizeof fields / sizeof *fields));
    bool good = true;
    for (int i = 0; i < RESULTS; i++) good = good && d[i] < (tsh_dtype_size((tsh_dtype)b->dtype) == 2 ? 0.02 : 1e-5);
    if (good) return TSH_OK;
    fprintf(stderr, "attention with lengths and without differ\n");
    return TSH_ERR_SYSTEM;
}

/* --- measuring ---------------------------------------------------------------------------------------------------- */

/* Of the two products of the forward, where half of the scores are seen of a causal one; the backward has five. */
static double forward_flops(const bed *b) {
    double scores = (double)(b->batch * b->heads) * (double)b->queries * (double)b->keys;
    double unseen = (double)(b->batch * b->heads) * (double)b->queries * (double)b->queries / 2;
    return 4 * (double)b->dim * (b->full || b->queries == 1 ? scores : scores - unseen);
}

/* The largest memory of one step on this rank, without its inputs and their gradients. */
static tsh_status measure_memory(bed *b, double *bytes) {
    tsh_device_reset_peak(b->device);
    tsh_status status = (tsh_status)both(b, 1);
    *bytes = (double)tsh_device_memory(b->device).at_peak[TSH_MEMORY_ACTIVATIONS];
    return status;
}

static tsh_status measure(bed *b, tsh_world *world, const bench_common *common) {
    bench_meter *meter = NULL;
    double one_way = 0, two_ways = 0, memory = 0, flops = forward_flops(b);
    double cache =
        2 * (double)(b->batch * b->keys * b->kv_heads * b->dim) * (double)tsh_dtype_size((tsh_dtype)b->dtype);
    tsh_status status = bench_meter_create(world, common->seconds, &meter);
    if (status == TSH_OK) status = bench_measure(meter, forward, b, &one_way);
    if (status == TSH_OK) status = bench_measure(meter, both, b, &two_ways);
    if (status == TSH_OK) status = measure_memory(b, &memory);
    bench_meter_destroy(meter);
    if (status != TSH_OK) return status;
    const bench_field fields[] = {
        BENCH_TEXT_FIELD("bench", "attention"),
        BENCH_TEXT_FIELD("dtype", tsh_dtype_name((tsh_dtype)b->dtype)),
        BENCH_COUNT_FIELD("batch", b->batch),
        BENCH_COUNT_FIELD("heads", b->heads),
        BENCH_COUNT_FIELD("kv_heads", b->kv_heads),
        BENCH_COUNT_FIELD("queries", b->queries),
        BENCH_COUNT_FIELD("keys", b->keys),
        BENCH_COUNT_FIELD("dim", b->dim),
        BENCH_REAL_FIELD("forward_ms", 1e3 * one_way),
        BENCH_REAL_FIELD("step_ms", 1e3 * two_ways),
        BENCH_REAL_FIELD("gflop_per_s", 1e-9 * 3.5 * flops / two_ways),
        BENCH_REAL_FIELD("kv_gb_per_s", 1e-9 * cache / one_way),
        BENCH_REAL_FIELD("activation_mb", 1e-6 * memory),
    };
    bench_report report = {.json = common->json, .silent = tsh_world_rank(world) != 0};
    bench_report_row(&report, fields, (int)(sizeof fields / sizeof *fields));
    return TSH_OK;
}

static tsh_status make(const bed *b, tsh_world *world, int64_t tokens, int64_t heads, bool leaf, tsh_tensor **out) {
    tsh_tensor_config config = {.dtype = (tsh_dtype)b->dtype, .ndim = 4, .shape = {b->batch, tokens, heads, b->dim}};
    if (b->context != CONTEXT_NONE) config.layout[0] = TSH_SHARD(1);
    tsh_status status = tsh_tensor_create(tsh_world_mesh(world), &config, out);
    if (status == TSH_OK) status = tsh_tensor_init(*out, &(tsh_init){.kind = TSH_INIT_NORMAL, .b = 1});
    return status == TSH_OK && leaf ? tsh_tensor_require_grad(*out, true) : status;
}

/* All keys of every sequence. */
static tsh_status make_lengths(bed *b, tsh_world *world) {
    const tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {b->batch}};
    int64_t *lengths = calloc((size_t)b->batch, sizeof *lengths);
    tsh_status status = lengths ? tsh_tensor_create(tsh_world_mesh(world), &config, &b->lengths) : TSH_ERR_MEMORY;
    for (int64_t i = 0; lengths && i < b->batch; i++) lengths[i] = b->keys;
    if (status == TSH_OK) status = tsh_tensor_write(b->lengths, lengths, b->batch);
    free(lengths);
    return status;
}

/* The order in which the ranks have equal work. */
static tsh_status make_positions(bed *b, tsh_world *world) {
    const tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {b->queries}, .layout = {TSH_SHARD(0)}};
    int64_t *order = calloc((size_t)b->queries, sizeof *order);
    tsh_status status = order ? tsh_tensor_create(tsh_world_mesh(world), &config, &b->positions) : TSH_ERR_MEMORY;
    if (order) tsh_zigzag(b->queries, tsh_world_size(world), order);
    if (status == TSH_OK) status = tsh_tensor_write_whole(b->positions, order);
    free(order);
    return status;
}

static tsh_status run(bed *b, tsh_world *world, const bench_common *common) {
    b->device = tsh_world_device(world);
    tsh_status status = tsh_tape_create(world, &b->tape);
    if (status == TSH_OK) status = make(b, world, b->queries, b->heads, true, &b->q);
    if (status == TSH_OK) status = make(b, world, b->keys, b->kv_heads, true, &b->k);
    if (status == TSH_OK) status = make(b, world, b->keys, b->kv_heads, true, &b->v);
    if (status == TSH_OK) status = make(b, world, b->queries, b->heads, false, &b->dy);
    if (status == TSH_OK && b->context > CONTEXT_IN_ORDER) status = make_positions(b, world);
    if (status == TSH_OK && b->compare) status = make_lengths(b, world);
    if (status == TSH_OK && b->compare) status = report_differences(b, common, world);
    if (status == TSH_OK) status = measure(b, world, common);
    tsh_tensor *const tensors[] = {b->q, b->k, b->v, b->dy, b->lengths, b->positions};
    tsh_tape_destroy(b->tape);
    for (int i = 0; i < 6; i++) tsh_tensor_release(tensors[i]);
    return status;
}

int bench_attention(int argc, char **argv) {
    static const char *const dtype_names[] = {"float32", "float64", "bfloat16", "float16", NULL};
    static const char *const context_names[] = {"none", "in-order", "gather", "exchange", NULL};
    bed b = {0};
    bench_common common;
    const bench_option options[] = {
        {"batch", BENCH_COUNT, "4", "number of sequences", &b.batch, NULL},
        {"heads", BENCH_COUNT, "6", "query heads", &b.heads, NULL},
        {"kv-heads", BENCH_COUNT, NULL, "key and value heads (default: as many as query heads)", &b.kv_heads, NULL},
        {"queries", BENCH_COUNT, "1024", "tokens of a sequence", &b.queries, NULL},
        {"keys", BENCH_COUNT, NULL, "keys of a sequence (default: as many as queries)", &b.keys, NULL},
        {"dim", BENCH_COUNT, "64", "features of a head", &b.dim, NULL},
        {"full", BENCH_FLAG, NULL, "no causal mask: every query sees every key", &b.full, NULL},
        {"compare", BENCH_FLAG, NULL, "first compare with a call that has lengths, which cuDNN does not support",
         &b.compare, NULL},
        {"context", BENCH_CHOICE, "none", "how ranks split the tokens of a call; none: each rank has its own call",
         &b.context, context_names},
        {"dtype", BENCH_CHOICE, "float32", "dtype of the tensors", &b.dtype, dtype_names},
    };
    int code = bench_options_parse(
        "attention",
        "Measures attention: only forward, and forward and backward. FLOP/s count the products, and of a causal call\n"
        "only those that the mask leaves. kv_gb_per_s is the rate at which forward reads keys and values, which\n"
        "bounds the generation of tokens (--queries 1). Every rank makes a call of its own; with --context the ranks\n"
        "split the tokens of one call, and FLOP/s are those of all ranks together. activation_mb is the memory that\n"
        "a step needs besides its inputs.",
        options, (int)(sizeof options / sizeof *options), &common, argc, argv);
    if (code >= 0) return code;
    if (b.kv_heads == 0) b.kv_heads = b.heads;
    if (b.keys == 0) b.keys = b.queries;
    if (b.context != CONTEXT_NONE && (b.compare || b.full || b.keys != b.queries)) {
        fprintf(stderr, "tshard-bench attention: --context goes with none of --compare, --full and --keys\n");
        return 2;
    }
    tsh_world *world = NULL;
    if (tsh_world_init(NULL, &world) != TSH_OK) return bench_failed(NULL, "world_init");
    tsh_status status = run(&b, world, &common);
    code = status == TSH_OK ? 0 : bench_failed(world, "attention");
    tsh_world_destroy(world);
    return code;
}
