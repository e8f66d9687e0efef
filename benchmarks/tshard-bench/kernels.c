/* tshard-bench kernels: those that move memory, beside a plain copy in the same run. The bytes are those that a kernel
 * has to read and write once by its contract; what it moves beyond them shows as a lower fraction. */
#include "bench.h"
#include "timing.h"
#include "tshard/layers.h"

#include "device/device.h"

enum { BUFFERS = 3, MOST_SAMPLES = 200, FEWEST_SAMPLES = 5, WARM_UP = 2 };

typedef struct bed {
    tsh_world *world;
    tsh_device *device;
    tsh_dtype dtype, sum; /* of the elements, of statistics */
    int64_t rows, cols, classes, tokens, vocabulary;
    tsh_tensor *buffer[BUFFERS]; /* dtype, as large as the largest case wants */
    tsh_tensor *state[2];        /* sum dtype, rows x cols */
    tsh_tensor *rows_of[3];      /* sum dtype, 4 a row or token */
    tsh_tensor *vector[3];       /* dtype, cols */
    tsh_tensor *ids, *targets;
    int64_t touched; /* different ids */
} bed;

typedef struct kernel {
    const char *name;
    void (*run)(const bed *b);
    double (*bytes)(const bed *b);
} kernel;

static void *at(const tsh_tensor *t) {
    return tsh_tensor_data(t);
}

static double size_of(const bed *b) {
    return (double)tsh_dtype_size(b->dtype);
}

static double plane(const bed *b) {
    return (double)b->rows * (double)b->cols;
}

static double logits(const bed *b) {
    return (double)b->tokens * (double)b->classes;
}

/* --- the kernels -------------------------------------------------------------------------------------------------- */

static void run_copy(const bed *b) {
    b->device->ops->copy.within(b->device, (size_t)(plane(b) * size_of(b)), at(b->buffer[0]), at(b->buffer[1]));
}

static double copy_bytes(const bed *b) {
    return 2 * plane(b) * size_of(b);
}

static void run_gelu(const bed *b) {
    b->device->ops->elementwise[b->dtype].unary(b->device, TSHI_GELU_TANH, NULL, b->rows * b->cols, at(b->buffer[0]),
                                                at(b->buffer[1]));
}

static void run_bias_backward(const bed *b) {
    b->device->ops->sum[b->dtype].bias_backward(b->device, b->rows, b->cols, at(b->buffer[0]), at(b->vector[0]));
}

static double one_read(const bed *b) {
    return plane(b) * size_of(b);
}

static void run_norm(const bed *b) {
    b->device->ops->norm[b->dtype].forward(b->device, false, b->rows, b->cols, 1e-5, at(b->buffer[0]), at(b->vector[0]),
                                           at(b->vector[1]), at(b->buffer[1]), at(b->rows_of[0]), at(b->rows_of[1]));
}

static void run_norm_backward(const bed *b) {
    b->device->ops->norm[b->dtype].backward(b->device, false, b->rows, b->cols, at(b->buffer[0]), at(b->vector[0]),
                                            at(b->rows_of[0]), at(b->rows_of[1]), at(b->buffer[1]), 0, at(b->buffer[2]),
                                            at(b->vector[1]), at(b->vector[2]));
}

/* x and dy are read, dx is written. */
static double norm_backward_bytes(const bed *b) {
    return 3 * plane(b) * size_of(b);
}

static tshi_classes classes_of(const bed *b) {
    return (tshi_classes){.rows = b->tokens, .n = b->classes, .classes = b->classes, .ignore_index = -100};
}

static void run_loss(const bed *b) {
    const tshi_classes c = classes_of(b);
    const tshi_device_ops *ops = b->device->ops;
    ops->cross_entropy[b->dtype].sums(b->device, &c, at(b->buffer[0]), at(b->targets), at(b->rows_of[0]),
                                      at(b->rows_of[1]));
    ops->cross_entropy[b->dtype].loss(b->device, &c, at(b->targets), at(b->rows_of[1]), at(b->rows_of[2]));
}

static double loss_bytes(const bed *b) {
    return logits(b) * size_of(b);
}

static void run_loss_backward(const bed *b) {
    const tshi_classes c = classes_of(b);
    b->device->ops->cross_entropy[b->dtype].backward(b->device, &c, at(b->buffer[0]), at(b->targets), at(b->rows_of[0]),
                                                     at(b->rows_of[1]), at(b->rows_of[2]), 1, NULL, 0,
                                                     at(b->buffer[1]));
}

static double loss_backward_bytes(const bed *b) {
    return 2 * logits(b) * size_of(b);
}

/* In eight parts, as a model has several parameters. */
static void run_adamw(const bed *b) {
    const tshi_adamw settings = {1e-3, 0.9, 0.999, 1e-8, 0.01, 3};
    tshi_update updates[8];
    size_t size = tsh_dtype_size(b->dtype), sum = tsh_dtype_size(b->sum);
    int64_t part = b->rows * b->cols / 8;
    for (int i = 0; i < 8; i++) {
        size_t start = (size_t)i * (size_t)part;
        updates[i] =
            (tshi_update){.n = part,
                          .grad = (char *)at(b->buffer[0]) + start * size,
                          .state = {(char *)at(b->state[0]) + start * sum, (char *)at(b->state[1]) + start * sum},
                          .p = (char *)at(b->buffer[1]) + start * size};
    }
    b->device->ops->optimizer[b->dtype].adamw(b->device, &settings, 8, updates);
}

static double adamw_bytes(const bed *b) {
    return plane(b) * (3 * size_of(b) + 4 * (double)tsh_dtype_size(b->sum));
}

static void run_embedding(const bed *b) {
    b->device->ops->embedding[b->dtype].forward(b->device, b->tokens, at(b->ids), 0, b->vocabulary, b->cols,
                                                at(b->buffer[0]), at(b->buffer[1]));
}

static double embedding_bytes(const bed *b) {
    return 2 * (double)b->tokens * (double)b->cols * size_of(b);
}

static void run_embedding_backward(const bed *b) {
    b->device->ops->embedding[b->dtype].backward(b->device, b->tokens, at(b->ids), 0, b->vocabulary, b->cols, -1,
                                                 at(b->buffer[1]), at(b->buffer[0]));
}

/* Each dy is read, each row that is touched read and written. */
static double embedding_backward_bytes(const bed *b) {
    return ((double)b->tokens + 2 * (double)b->touched) * (double)b->cols * size_of(b);
}

static const kernel kernels[] = {{"copy", run_copy, copy_bytes},
                                 {"gelu", run_gelu, copy_bytes},
                                 {"bias_grad", run_bias_backward, one_read},
                                 {"layer_norm", run_norm, copy_bytes},
                                 {"layer_norm_bwd", run_norm_backward, norm_backward_bytes},
                                 {"cross_entropy", run_loss, loss_bytes},
                                 {"cross_ent_bwd", run_loss_backward, loss_backward_bytes},
                                 {"adamw", run_adamw, adamw_bytes},
                                 {"embedding", run_embedding, embedding_bytes},
                                 {"embedding_grad", run_embedding_backward, embedding_backward_bytes}};
enum { KERNELS = sizeof kernels / sizeof *kernels };

/* --- the bed ------------------------------------------------------------------------------------------------------ */

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static tsh_status make(const bed *b, tsh_dtype dtype, int64_t n, bool random, tsh_tensor **out) {
    tsh_tensor_config config = {.dtype = dtype, .ndim = 1, .shape = {n}};
    tsh_status status = tsh_tensor_create(tsh_world_mesh(b->world), &config, out);
    if (status != TSH_OK || !random) return status;
    return tsh_tensor_init(*out, &(tsh_init){.kind = TSH_INIT_NORMAL, .b = 1});
}

static int compare_ids(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* Numbers below `below`, scattered; how many differ. */
static tsh_status make_ids(const bed *b, int64_t below, tsh_tensor **out, int64_t *differ) {
    tsh_status status = make(b, TSH_INT64, b->tokens, false, out);
    int64_t *ids = calloc((size_t)b->tokens, sizeof *ids);
    if (!ids) return TSH_ERR_MEMORY;
    uint64_t state = 88172645463325252u;
    for (int64_t i = 0; i < b->tokens; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ids[i] = (int64_t)(state % (uint64_t)below);
    }
    if (status == TSH_OK) status = tsh_tensor_write(*out, ids, b->tokens);
    qsort(ids, (size_t)b->tokens, sizeof *ids, compare_ids);
    *differ = 0;
    for (int64_t i = 0; i < b->tokens; i++) *differ += i == 0 || ids[i] != ids[i - 1];
    free(ids);
    return status;
}

static tsh_status open_bed(bed *b) {
    int64_t most = larger(b->rows * b->cols, b->tokens * b->classes), ignored;
    most = larger(most, larger(b->vocabulary, b->tokens) * b->cols);
    tsh_status status = TSH_OK;
    for (int i = 0; i < BUFFERS && status == TSH_OK; i++) status = make(b, b->dtype, most, true, &b->buffer[i]);
    for (int i = 0; i < 2 && status == TSH_OK; i++) status = make(b, b->sum, b->rows * b->cols, false, &b->state[i]);
    for (int i = 0; i < 3 && status == TSH_OK; i++) {
        status = make(b, b->sum, 4 * larger(b->rows, b->tokens), true, &b->rows_of[i]);
    }
    for (int i = 0; i < 3 && status == TSH_OK; i++) status = make(b, b->dtype, b->cols, true, &b->vector[i]);
    if (status == TSH_OK) status = make_ids(b, b->vocabulary, &b->ids, &b->touched);
    return status == TSH_OK ? make_ids(b, b->classes, &b->targets, &ignored) : status;
}

static void close_bed(bed *b) {
    for (int i = 0; i < BUFFERS; i++) tsh_tensor_release(b->buffer[i]);
    for (int i = 0; i < 2; i++) tsh_tensor_release(b->state[i]);
    for (int i = 0; i < 3; i++) tsh_tensor_release(b->rows_of[i]);
    for (int i = 0; i < 3; i++) tsh_tensor_release(b->vector[i]);
    tsh_tensor_release(b->ids);
    tsh_tensor_release(b->targets);
}

/* --- measuring ---------------------------------------------------------------------------------------------------- */

typedef struct clock_pair {
    tsh_event *begin, *end;
} clock_pair;

static tsh_status once(const bed *b, const clock_pair *c, const kernel *k, double *seconds) {
    tsh_status status = tsh_event_record(c->begin);
    k->run(b);
    if (status == TSH_OK) status = tsh_event_record(c->end);
    if (status == TSH_OK) status = tsh_event_elapsed(c->begin, c->end, seconds);
    return status == TSH_OK ? b->device->ops->check(b->device) : status;
}

static tsh_status measure(const bed *b, const clock_pair *c, const kernel *k, double budget, double *median) {
    double samples[MOST_SAMPLES], took = 0, spent = 0;
    tsh_status status = TSH_OK;
    for (int i = 0; i < WARM_UP && status == TSH_OK; i++) status = once(b, c, k, &took);
    int n = 0;
    for (; status == TSH_OK && n < MOST_SAMPLES && (n < FEWEST_SAMPLES || spent < budget); n++) {
        status = once(b, c, k, &samples[n]);
        spent += samples[n];
    }
    *median = n ? timing_median(samples, n) : 0;
    return status;
}

static bool draw(const bed *b, const char *path, const double *rates) {
    static const char *const bars[] = {"GB/s"};
    static const bool stacked[] = {false};
    const char *names[KERNELS];
    char words[256], title[320];
    char lines[KERNELS][32];
    for (int i = 0; i < KERNELS; i++) {
        snprintf(lines[i], sizeof lines[i], "%s", kernels[i].name);
        for (char *c = lines[i]; *c; c++) *c = *c == '_' ? '\n' : *c;
        names[i] = lines[i];
    }
    snprintf(title, sizeof title, "kernels, %s\n%s", tsh_dtype_name(b->dtype),
             tsh_device_describe(b->device, words, sizeof words));
    return bench_bars_write(path, &(bench_bars){.title = title,
                                                .y_label = "GB/s that have to be moved",
                                                .groups = KERNELS,
                                                .group = names,
                                                .bars = 1,
                                                .bar = bars,
                                                .stacked = stacked,
                                                .value = rates});
}

static tsh_status measure_all(const bed *b, const bench_common *common, double *rates) {
    clock_pair c = {NULL, NULL};
    bench_report report = {.json = common->json, .silent = tsh_world_rank(b->world) != 0};
    tsh_status status = tsh_event_create(b->device, &c.begin);
    if (status == TSH_OK) status = tsh_event_create(b->device, &c.end);
    for (int i = 0; i < KERNELS && status == TSH_OK; i++) {
        double seconds = 0, bytes = kernels[i].bytes(b);
        status = measure(b, &c, &kernels[i], common->seconds, &seconds);
        if (status != TSH_OK) break;
        rates[i] = 1e-9 * bytes / seconds;
        const bench_field fields[] = {
            BENCH_TEXT_FIELD("kernel", kernels[i].name), BENCH_TEXT_FIELD("dtype", tsh_dtype_name(b->dtype)),
            BENCH_REAL_FIELD("ms", 1e3 * seconds),       BENCH_COUNT_FIELD("bytes", (int64_t)bytes),
            BENCH_REAL_FIELD("gb_per_s", rates[i]),      BENCH_REAL_FIELD("of_copy", rates[i] / rates[0]),
        };
        bench_report_row(&report, fields, (int)(sizeof fields / sizeof *fields));
    }
    tsh_event_destroy(c.begin);
    tsh_event_destroy(c.end);
    return status;
}

int bench_kernels(int argc, char **argv) {
    static const char *const dtype_names[] = {"float32", "float64", "bfloat16", "float16", NULL};
    bed b = {0};
    bench_common common;
    int dtype, code;
    const bench_option options[] = {
        {"rows", BENCH_COUNT, "4096", "rows of the matrix that is normalized, copied or updated", &b.rows, NULL},
        {"cols", BENCH_COUNT, "1024", "its columns, and features of the embedding", &b.cols, NULL},
        {"tokens", BENCH_COUNT, "512", "rows of logits, and ids", &b.tokens, NULL},
        {"classes", BENCH_COUNT, "32768", "classes of the cross entropy", &b.classes, NULL},
        {"vocabulary", BENCH_COUNT, "16384", "rows of the embedding's table", &b.vocabulary, NULL},
        {"dtype", BENCH_CHOICE, "float32", "dtype of the tensors", &dtype, dtype_names},
    };
    code = bench_options_parse("kernels",
                               "Measures the kernels whose cost is memory, beside a plain copy in the same run. Only\n"
                               "the bytes that a kernel must read and write are counted, so that any other traffic\n"
                               "shows as a lower rate. Every rank runs the kernels; the first one prints its\n"
                               "figures.",
                               options, (int)(sizeof options / sizeof *options), &common, argc, argv);
    if (code >= 0) return code;
    if (tsh_world_init(NULL, &b.world) != TSH_OK) return bench_failed(NULL, "world_init");
    b.device = tsh_world_device(b.world);
    b.dtype = (tsh_dtype)dtype;
    b.sum = tshi_dtype_sum(b.dtype);
    tsh_status status = open_bed(&b);
    if (status == TSH_OK && tsh_world_rank(b.world) == 0 && !common.json) {
        char words[256];
        printf("%s\n\n", tsh_device_describe(b.device, words, sizeof words));
    }
    double rates[KERNELS] = {0};
    if (status == TSH_OK) status = measure_all(&b, &common, rates);
    code = status == TSH_OK ? 0 : bench_failed(b.world, "kernels");
    bool draws = code == 0 && common.plot && tsh_world_rank(b.world) == 0;
    if (draws && !draw(&b, common.plot, rates)) code = 1;
    close_bed(&b);
    tsh_world_destroy(b.world);
    return code;
}
