/* What was measured, for people, programs, and the eye. */
#include "layers.h"
#include "products.h"

static double efficiency(const layers_result *r) {
    return r->products / (r->forward + r->backward);
}

static double gflops(const layers_result *r) {
    return r->flops / (r->forward + r->backward) * 1e-9;
}

/* --- for programs ----------------------------------------------------------------------------------------------- */

void layers_print_json(const layers_command *command, tsh_world *world, const layers_result *r) {
    char libraries[256];
    bench_field fields[32] = {
        BENCH_TEXT_FIELD("bench", command->bench),
        BENCH_TEXT_FIELD("shard", r->shard),
        BENCH_COUNT_FIELD("ranks", tsh_world_size(world)),
    };
    const bench_field rest[] = {
        BENCH_REAL_FIELD("forward_ms", 1e3 * r->forward),
        BENCH_REAL_FIELD("backward_ms", 1e3 * r->backward),
        BENCH_REAL_FIELD("step_ms", 1e3 * r->step),
        BENCH_REAL_FIELD("host_ms", 1e3 * r->host),
        BENCH_REAL_FIELD("comm_ms", 1e3 * r->communication),
        BENCH_COUNT_FIELD("comm_bytes", r->sent_bytes),
        BENCH_REAL_FIELD("gemm_only_ms", 1e3 * r->products),
        BENCH_REAL_FIELD("efficiency", efficiency(r)),
        BENCH_COUNT_FIELD("weight_bytes_per_rank", r->weight_bytes),
        BENCH_COUNT_FIELD("weight_bytes_total", r->weight_bytes_total),
        BENCH_COUNT_FIELD("peak_bytes_per_rank", r->peak_bytes),
        BENCH_REAL_FIELD("gflops_per_rank", gflops(r)),
        BENCH_REAL_FIELD("clock_mhz", 1e-6 * r->clock),
        BENCH_REAL_FIELD("fraction_of_matrix_rate", r->rate > 0 ? 1e9 * gflops(r) / r->rate : 0),
        BENCH_COUNT_FIELD("allocations", r->allocations),
        BENCH_COUNT_FIELD("steps", r->steps),
        BENCH_TEXT_FIELD("dtype", tsh_dtype_name(command->dtype)),
        BENCH_TEXT_FIELD("backend", tsh_group_backend(tsh_world_group(world))),
        BENCH_TEXT_FIELD("products", tsh_device_describe(tsh_world_device(world), libraries, sizeof libraries)),
    };
    int n = 3;
    for (int i = 0; i < command->size_count; i++) fields[n++] = command->sizes[i];
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) fields[n++] = rest[i];
    bench_report_row(&(bench_report){.json = true}, fields, n);
}

/* --- for people ------------------------------------------------------------------------------------------------- */

static const char *plural(int64_t n) {
    return n == 1 ? "" : "s";
}

/* "2 ranks (local), each with 1 thread, oneDNN ..." */
static void describe_place(tsh_world *world, char *text, size_t size) {
    int ranks = tsh_world_size(world);
    char libraries[256];
    snprintf(text, size, "%d rank%s (%s), %s%s", ranks, plural(ranks), tsh_group_backend(tsh_world_group(world)),
             ranks > 1 ? "each with " : "", tsh_device_describe(tsh_world_device(world), libraries, sizeof libraries));
}

void layers_print_heading(const layers_command *command, tsh_world *world) {
    char place[320];
    describe_place(world, place, sizeof place);
    printf("%s, %s\n%s\n", command->title, tsh_dtype_name(command->dtype), place);
    puts("Times: ms, median over steps of the slowest rank. MB: 10^6 bytes, of the rank with the most.\n");
    const char *const heads[2][12] = {
        {"", "forward", "backward", "step", "products", "effi-", "", "communication", "GFLOP/s", "weights", "peak",
         "alloca-"},
        {"sharding", "ms", "ms", "ms", "alone", "ciency", "ms", "sent MB", "per rank", "MB", "MB", "tions"},
    };
    for (int i = 0; i < 2; i++) {
        const char *const *h = heads[i];
        printf("%-12s%8s%10s%10s%10s%8s%*s%*s%10s%10s%10s%9s\n", h[0], h[1], h[2], h[3], h[4], h[5], i ? 8 : 0, h[6],
               i ? 10 : 18, h[7], h[8], h[9], h[10], h[11]);
    }
    fflush(stdout);
}

/* What the libraries of a GPU have come to. */
void layers_print_end(tsh_world *world) {
    char words[256];
    const tsh_device *device = tsh_world_device(world);
    if (tsh_device_kind_of(device) != TSH_CUDA) return;
    printf("%12sat the end: %s\n", "", tsh_device_describe(device, words, sizeof words));
}

void layers_print_row(const layers_result *r) {
    const double mega = 1e-6;
    printf("%-11s ", r->shard);
    bench_print_real(8, 1e3 * r->forward);
    bench_print_real(10, 1e3 * r->backward);
    bench_print_real(10, 1e3 * r->step);
    bench_print_real(10, 1e3 * r->products);
    printf("%8.3f", efficiency(r));
    bench_print_real(8, 1e3 * r->communication);
    bench_print_real(10, mega * (double)r->sent_bytes);
    bench_print_real(10, gflops(r));
    bench_print_real(10, mega * (double)r->weight_bytes);
    bench_print_real(10, mega * (double)r->peak_bytes);
    printf("%9lld\n", (long long)r->allocations);
    if (r->host > 0)
        printf("%12sthe host queues a step in %.4f ms, %.3f of the step's time\n", "", 1e3 * r->host,
               r->host / r->step);
    if (r->rate <= 0) return;
    printf("%12s%.3f of the matrix units' %.0f GFLOP/s at the %.0f MHz that they run at\n", "",
           1e9 * gflops(r) / r->rate, 1e-9 * r->rate, 1e-6 * r->clock);
}

/* --- for the eye ------------------------------------------------------------------------------------------------ */

bool layers_draw(const char *path, const layers_command *command, tsh_world *world, const layers_result *results,
                 int n) {
    static const char *const names[] = {"forward", "backward", "matrix products alone",
                                        "communication (part of forward and backward)"};
    static const bool stacked[] = {false, true, false, false};
    enum { BARS = sizeof names / sizeof *names };
    double values[LAYERS_MOST_RESULTS * BARS];
    const char *groups[LAYERS_MOST_RESULTS];
    char place[256], title[512], labels[LAYERS_MOST_RESULTS][64];
    for (int i = 0; i < n; i++) {
        const layers_result *r = &results[i];
        const double bars[BARS] = {r->forward, r->backward, r->products, r->communication};
        for (int j = 0; j < BARS; j++) values[i * BARS + j] = 1e3 * bars[j];
        snprintf(labels[i], sizeof labels[i], "%s (efficiency %.2f)", r->shard, efficiency(r));
        groups[i] = labels[i];
    }
    describe_place(world, place, sizeof place);
    snprintf(title, sizeof title, "%s, %s\n%s", command->title, tsh_dtype_name(command->dtype), place);
    return bench_bars_write(path, &(bench_bars){.title = title,
                                                .y_label = "ms, median of the slowest rank",
                                                .groups = n,
                                                .group = groups,
                                                .bars = BARS,
                                                .bar = names,
                                                .stacked = stacked,
                                                .value = values});
}
