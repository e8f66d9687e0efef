/* tshard-bench calibrate: the machine file of tshard-plan, measured here. */
#include "calibrate.h"
#include "timing.h"

#include <errno.h>
#include <string.h>

enum { FEWEST_REPETITIONS = 5, MOST_REPETITIONS = 64, MOST_CALLS = 1000 };

static const double repetition_seconds = 200e-6;

const int calibrate_dtypes[] = {TSH_FLOAT32, TSH_BFLOAT16, -1};

/* A page and some lines lie between operands: arrays at a distance of a power of two share sets of the caches and banks
 * of the memory, and are read and written at half the rate. */
static size_t room_of(size_t bytes) {
    const size_t line = 64, gap = 4096 + 13 * line;
    return (bytes + line - 1) / line * line + gap;
}

void calibrate_place(calibration *c, int n, const size_t *bytes, void **out) {
    size_t need = 0;
    for (int i = 0; i < n; i++) need += room_of(bytes[i]);
    if (c->cursor + need > c->working_set) c->cursor = 0;
    char *from = (char *)tsh_tensor_data(c->pool) + c->cursor;
    for (int i = 0; i < n; i++) {
        out[i] = from;
        from += room_of(bytes[i]);
    }
    c->cursor += need;
    if (c->cursor > c->used) c->used = c->cursor;
}

/* What earlier calls have left may be infinite, or so small that it is slow. 3f003f00 is about 0.5 as a float32 and as
 * two elements of bfloat16, 1.75 as two of float16. */
static void refill(calibration *c) {
    c->device->ops->copy.fill(c->device, TSH_FLOAT32, (int64_t)(c->used / sizeof(float)), 0.500961303710938,
                              tsh_tensor_data(c->pool));
    c->used = 0;
}

/* A CPU that works for other programs too takes the core away now and then: what a rank computes is timed by its own
 * thread's clock. */
static double clock_of(const calibration *c) {
    struct timespec time;
    bool waits = c->waits || tsh_device_kind_of(c->device) != TSH_CPU;
    if (waits || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0) return bench_now();
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static tsh_status repeat(calibration *c, bench_work *work, void *context, int calls, double *seconds) {
    tsh_status status = tsh_barrier(tsh_world_group(c->world));
    double begin = clock_of(c);
    if (status == TSH_OK) status = (tsh_status)work(context, calls);
    if (status == TSH_OK) status = tsh_device_synchronize(c->device);
    *seconds = (clock_of(c) - begin) / calls;
    return status;
}

tsh_status calibrate_measure(calibration *c, bench_work *work, void *context, double *seconds) {
    double one = 0, samples[MOST_REPETITIONS];
    refill(c);
    tsh_status status = repeat(c, work, context, 1, &one);
    if (status == TSH_OK) status = repeat(c, work, context, 1, &one);
    if (status == TSH_OK) status = bench_max(c->meter, one, &one);
    int calls = timing_clamp(repetition_seconds / one + 1, 1, MOST_CALLS);
    int repetitions = timing_clamp(c->seconds / (calls * one), FEWEST_REPETITIONS, MOST_REPETITIONS);
    for (int i = 0; i < repetitions && status == TSH_OK; i++) status = repeat(c, work, context, calls, &samples[i]);
    if (status != TSH_OK) return status;
    qsort(samples, (size_t)repetitions, sizeof *samples, timing_compare);
    return bench_max(c->meter, samples[repetitions / 4], seconds);
}

int calibrate_points(const calibration *c, const int64_t *sizes, int n) {
    while (n > 1 && sizes[n - 1] > c->largest) n--;
    return n;
}

/* The chain of sums calls each function forward and backward. */
static tsh_status measure_calls(calibration *c) {
    double node = 0;
    tsh_status status = bench_node_seconds(c->world, 8 * c->seconds, 500, 8, &node);
    c->m->call_us = 1e6 * node / 2;
    return status;
}

/* A call finds its operands where a training step leaves them: those of a small model in a large cache, those of a
 * large one in memory. */
static tsh_status measure_all(calibration *c) {
    static const size_t near = (size_t)16 << 20, far = CALIBRATE_POOL;
    static const struct {
        const char *name;
        tsh_status (*measure)(calibration *c);
        size_t working_set;
    } parts[] = {{"calls of functions", measure_calls, near},
                 {"matrix products in a cache", calibrate_products, near},
                 {"matrix products in memory", calibrate_products, far},
                 {"attention in a cache", calibrate_attention, near},
                 {"attention in memory", calibrate_attention, far},
                 {"other kernels in a cache", calibrate_kernels, near},
                 {"other kernels in memory", calibrate_kernels, far},
                 {"collectives", calibrate_networks, near}};
    tsh_status status = TSH_OK;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && status == TSH_OK; i++) {
        double begin = bench_now();
        c->working_set = parts[i].working_set;
        status = parts[i].measure(c);
        if (status == TSH_OK) bench_say("%s: %.1f s", parts[i].name, bench_now() - begin);
    }
    return status;
}

static int write_file(const calibration *c, const char *path) {
    FILE *to = path ? fopen(path, "we") : stdout;
    if (!to) {
        bench_say("calibrate: cannot write '%s': %s", path, strerror(errno));
        return 1;
    }
    machine_write(to, c->m);
    bool good = fflush(to) == 0 && !ferror(to);
    if (path && fclose(to) != 0) good = false;
    if (!good) bench_say("calibrate: cannot write all of '%s': %s", path ? path : "stdout", strerror(errno));
    return good ? 0 : 1;
}

static tsh_status open_pool(calibration *c) {
    const tsh_tensor_config config = {.dtype = TSH_FLOAT32, .ndim = 1, .shape = {CALIBRATE_POOL / 4}};
    tsh_status status = tsh_tensor_create(tsh_world_mesh(c->world), &config, &c->pool);
    c->used = CALIBRATE_POOL;
    return status;
}

static int run(calibration *c, const char *path) {
    char words[200];
    machine m = {.ranks = tsh_world_size(c->world)};
    c->m = &m;
    c->device = tsh_world_device(c->world);
    snprintf(m.name, sizeof m.name, "%s, ranks: %d", tsh_device_describe(c->device, words, sizeof words), m.ranks);
    tsh_status status = bench_meter_create(c->world, c->seconds, &c->meter);
    if (status == TSH_OK) status = open_pool(c);
    if (status == TSH_OK) status = measure_all(c);
    int code = status == TSH_OK ? 0 : bench_failed(c->world, "calibrate");
    if (code == 0 && tsh_world_rank(c->world) == 0) code = write_file(c, path);
    machine_free(&m);
    tsh_tensor_release(c->pool);
    bench_meter_destroy(c->meter);
    return code;
}

int bench_calibrate(int argc, char **argv) {
    calibration c = {.seconds = 0};
    const char *path = NULL;
    bench_common common;
    const bench_option options[] = {
        {"out", BENCH_TEXT, NULL, "the machine file (default: stdout)", (void *)&path, NULL},
        {"largest", BENCH_COUNT, "2048", "the most rows and features that are measured", &c.largest, NULL}};
    int code = bench_options_parse("calibrate",
                                   "Measures the rates from which tshard-plan predicts the time of a step: matrix\n"
                                   "products, attention and other kernels by shape, functions of the tape, and the\n"
                                   "collectives over the ranks. Start it with as many ranks as a run will have on a\n"
                                   "machine, because all of them work at once. Each of some hundred shapes gets a\n"
                                   "tenth of --seconds. The result is a machine file, which docs/planning.md\n"
                                   "describes.",
                                   options, (int)(sizeof options / sizeof *options), &common, argc, argv);
    if (code >= 0) return code;
    c.seconds = common.seconds / 10;
    if (tsh_world_init(NULL, &c.world) != TSH_OK) return bench_failed(NULL, "world_init");
    code = run(&c, path);
    tsh_world_destroy(c.world);
    return code;
}
