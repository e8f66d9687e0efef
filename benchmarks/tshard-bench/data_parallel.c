/* tshard-bench data_parallel: what gradient sums cost a step, by when they are made and in buckets of which size. */
#include "bench.h"
#include "timing.h"
#include "tshard/tshard.h"

enum { MOST_LAYERS = 64, MOST_WAYS = 8, WARM_UP_STEPS = 3, FEWEST_STEPS = 7 };

typedef enum when { NEVER, EACH, LAST, BESIDE } when;

/* When gradients are summed. Each variant has a model of its own, so that their steps can be measured by turns. */
typedef struct way {
    const char *name;
    when when;
    int64_t bucket_bytes; /* 0: the library's own */
    tsh_tape *tape;
    tsh_parameters *list;
    tsh_linear *layers[MOST_LAYERS];
    tsh_tensor *x, *dy;
    tsh_data_parallel *dp; /* NULL: a sum for each gradient, within backward */
    double step[BENCH_MAX_SAMPLES];
} way;

typedef struct setting {
    int64_t batch, width, layers, bucket;
    bench_common common;
    tsh_world *world;
    bench_meter *meter;
} setting;

/* --- a model ------------------------------------------------------------------------------------------------------ */

static tsh_status make_batch(const setting *s, tsh_tensor **out) {
    const tsh_tensor_config config = {.ndim = 2, .shape = {s->batch, s->width}, .layout = {TSH_SHARD_INIT(0)}};
    tsh_status status = tsh_tensor_create(tsh_world_mesh(s->world), &config, out);
    return status == TSH_OK ? tsh_tensor_init(*out, &(tsh_init){.kind = TSH_INIT_NORMAL, .b = 1}) : status;
}

static tsh_status make_layers(const setting *s, way *w) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < s->layers && status == TSH_OK; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        const tsh_linear_config config = {
            .in_features = s->width, .out_features = s->width, .bias = true, .activation = TSH_ACTIVATION_GELU};
        status = tsh_linear_create(tsh_world_group(s->world), &config, &w->layers[i]);
        if (status == TSH_OK) status = tsh_linear_register(w->layers[i], w->list, name);
    }
    return status;
}

/* A single bucket starts when the last gradient is complete, so that it overlaps with nothing. */
static tsh_status make_schedule(const setting *s, way *w) {
    if (w->when == EACH) return TSH_OK;
    size_t all = (size_t)(s->layers + 1) * (size_t)(s->width + 64) * (size_t)(s->width + 64) * sizeof(float);
    tsh_data_parallel_config config = {.bucket_bytes = (size_t)w->bucket_bytes};
    if (w->when != BESIDE) config.bucket_bytes = config.first_bucket_bytes = all;
    tsh_status status = tsh_data_parallel_create(w->tape, w->list, tsh_world_group(s->world), &config, &w->dp);
    if (status == TSH_OK) tsh_data_parallel_set_sync(w->dp, w->when != NEVER);
    return status;
}

static tsh_status way_open(const setting *s, way *w) {
    tsh_status status = tsh_tape_create(s->world, &w->tape);
    if (status == TSH_OK) status = tsh_parameters_create(s->world, &w->list);
    if (status == TSH_OK) status = make_layers(s, w);
    if (status == TSH_OK) status = make_batch(s, &w->x);
    if (status == TSH_OK) status = make_batch(s, &w->dy);
    return status == TSH_OK ? make_schedule(s, w) : status;
}

static void way_close(way *w) {
    tsh_data_parallel_destroy(w->dp);
    tsh_tensor_release(w->dy);
    tsh_tensor_release(w->x);
    tsh_parameters_destroy(w->list);
    tsh_tape_destroy(w->tape);
    for (int i = 0; i < MOST_LAYERS; i++) tsh_linear_destroy(w->layers[i]);
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

/* From zeroed gradients to the ones that an optimizer would take. */
static tsh_status step(const setting *s, way *w, int i) {
    tsh_status status = tsh_barrier(tsh_world_group(s->world));
    if (status != TSH_OK) return status;
    double begin = bench_now();
    tsh_parameters_zero_grad(w->list);
    tsh_tensor *y = w->x;
    for (int k = 0; k < s->layers; k++) y = tsh_linear_forward(w->tape, w->layers[k], y);
    status = tsh_backward_with(w->tape, y, &(tsh_backward_config){.gradient = w->dy});
    if (status == TSH_OK) status = tsh_tape_reset(w->tape);
    w->step[i] = bench_now() - begin;
    return status;
}

/* One step of each way, in turn. */
static tsh_status round_of(const setting *s, way *ways, int n, int i) {
    tsh_status status = TSH_OK;
    for (int k = 0; k < n && status == TSH_OK; k++) status = step(s, &ways[k], i);
    return status;
}

static tsh_status measure(const setting *s, way *ways, int n, int *steps) {
    tsh_status status = TSH_OK;
    double begin = 0, took = 0;
    for (int i = 0; i < WARM_UP_STEPS && status == TSH_OK; i++) {
        begin = bench_now();
        status = round_of(s, ways, n, 0);
        took = bench_now() - begin;
    }
    if (status == TSH_OK) status = bench_max(s->meter, took, &took);
    *steps = timing_clamp(s->common.seconds * n / took, FEWEST_STEPS, BENCH_MAX_SAMPLES);
    for (int i = 0; i < *steps && status == TSH_OK; i++) status = round_of(s, ways, n, i);
    return status;
}

/* --- telling ------------------------------------------------------------------------------------------------------ */

static bool draw(const setting *s, const way *ways, const double *steps, int n) {
    static const char *const bar[] = {"step"};
    char names[MOST_WAYS][64], title[200];
    const char *groups[MOST_WAYS];
    double values[MOST_WAYS];
    if (!s->common.plot || tsh_world_rank(s->world) != 0) return true;
    for (int k = 0; k < n; k++) {
        const way *w = &ways[k];
        snprintf(names[k], sizeof names[k], w->when == BESIDE ? "%s\n%.3g MiB" : "%s", w->name,
                 (double)w->bucket_bytes / (1 << 20));
        groups[k] = names[k];
        values[k] = 1e3 * steps[k];
    }
    snprintf(title, sizeof title, "data_parallel: %lld layers [%lld, %lld], batch %lld over %d ranks",
             (long long)s->layers, (long long)s->width, (long long)s->width, (long long)s->batch,
             tsh_world_size(s->world));
    return bench_bars_write(s->common.plot,
                            &(bench_bars){title, "ms", n, groups, 1, bar, (const bool[]){false}, values});
}

/* medians [n]: seconds of a step of each way. */
static tsh_status report(const setting *s, way *ways, int n, int steps, double *medians) {
    bench_report table = {.json = s->common.json, .silent = tsh_world_rank(s->world) != 0};
    tsh_status status = TSH_OK;
    for (int k = 0; k < n && status == TSH_OK; k++) {
        way *w = &ways[k];
        status = bench_slowest_median(s->meter, w->step, steps, &medians[k]);
        int sums = w->when == NEVER ? 0 : w->dp ? tsh_data_parallel_buckets(w->dp) : tsh_parameters_count(w->list);
        const bench_field row[] = {
            BENCH_TEXT_FIELD("sums", w->name),
            BENCH_COUNT_FIELD("bucket_bytes", w->when == BESIDE ? w->bucket_bytes : 0),
            BENCH_COUNT_FIELD("calls", sums),
            BENCH_REAL_FIELD("step_ms", 1e3 * medians[k]),
            BENCH_REAL_FIELD("over_none", medians[k] / medians[0]),
        };
        bench_report_row(&table, row, (int)(sizeof row / sizeof *row));
    }
    return status;
}

static int run(const setting *s, way *ways, int n) {
    int steps = 0;
    double medians[MOST_WAYS];
    tsh_status status = TSH_OK;
    if (tsh_world_rank(s->world) == 0 && !s->common.json) {
        printf("data_parallel: %lld layers [%lld, %lld], batch %lld over %d ranks (%s), float32\n"
               "step: ms from zeroed gradients to summed gradients, the median of the slowest rank.\n\n",
               (long long)s->layers, (long long)s->width, (long long)s->width, (long long)s->batch,
               tsh_world_size(s->world), tsh_group_backend(tsh_world_group(s->world)));
    }
    for (int k = 0; k < n && status == TSH_OK; k++) status = way_open(s, &ways[k]);
    if (status == TSH_OK) status = measure(s, ways, n, &steps);
    if (status == TSH_OK) status = report(s, ways, n, steps, medians);
    int code = status == TSH_OK ? 0 : bench_failed(s->world, "a step");
    if (code == 0 && !draw(s, ways, medians, n)) code = 1;
    for (int k = 0; k < n; k++) way_close(&ways[k]);
    return code;
}

/* The default sizes and smaller ones, or the one that was asked for. */
static int list_ways(const setting *s, way *ways) {
    static const int64_t sizes[] = {(int64_t)25 << 20, (int64_t)10 << 20, (int64_t)4 << 20};
    int n = 0;
    ways[n++] = (way){.name = "none", .when = NEVER};
    ways[n++] = (way){.name = "one by one in backward", .when = EACH};
    ways[n++] = (way){.name = "one, after backward", .when = LAST};
    for (int i = 0; i < (s->bucket ? 1 : 3); i++) {
        ways[n++] = (way){.name = "beside backward", .when = BESIDE, .bucket_bytes = s->bucket ? s->bucket : sizes[i]};
    }
    return n;
}

int bench_data_parallel(int argc, char **argv) {
    setting s = {0};
    const bench_option options[] = {
        {"batch", BENCH_COUNT, "256", "rows of the batch, all ranks together", &s.batch, NULL},
        {"width", BENCH_COUNT, "1024", "features of each layer", &s.width, NULL},
        {"layers", BENCH_COUNT, "8", "linear layers, each with GELU (at most 64)", &s.layers, NULL},
        {"bucket", BENCH_SIZE, NULL, "size of the buckets (default: several)", &s.bucket, NULL},
    };
    int code = bench_options_parse("data_parallel",
                                   "Measures training steps with a copy of the model on every rank: with no sums of\n"
                                   "gradients, with one sum for each parameter within backward, with one sum of all\n"
                                   "after backward (no overlap), and with buckets that are summed beside backward\n"
                                   "(overlap).",
                                   options, (int)(sizeof options / sizeof *options), &s.common, argc, argv);
    if (code >= 0) return code;
    if (s.layers > MOST_LAYERS) {
        bench_say("data_parallel: --layers wants at most %d", MOST_LAYERS);
        return 2;
    }
    way *ways = calloc(MOST_WAYS, sizeof *ways);
    if (!ways) {
        bench_say("data_parallel: no memory");
        return 1;
    }
    if (tsh_world_init(NULL, &s.world) != TSH_OK) {
        code = bench_failed(NULL, "world_init");
    } else {
        code = bench_meter_create(s.world, s.common.seconds, &s.meter) == TSH_OK ? run(&s, ways, list_ways(&s, ways))
                                                                                 : bench_failed(s.world, "meter");
    }
    bench_meter_destroy(s.meter);
    tsh_world_destroy(s.world);
    free(ways);
    return code;
}
