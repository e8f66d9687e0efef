/* Memory is counted by what it is for, and the report says where most of it was in use. */
#include "support/ranks.h"
#include "tshard/functional.h"
#include "tshard/train.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 64, WIDTH = 96 };

typedef struct model {
    tsh_linear *up, *down;
    tsh_parameters *list;
    tsh_optimizer *optimizer;
    tsh_tape *tape;
    tsh_tensor *x;
} model;

static void make(tshi_rank *r, model *m) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_linear_config up = {.in_features = WIDTH, .out_features = 4 * WIDTH, .shard = TSH_COLUMN, .bias = true};
    tsh_linear_config down = {.in_features = 4 * WIDTH, .out_features = WIDTH, .shard = TSH_ROW, .bias = true};
    const tsh_tensor_config x = {.ndim = 2, .shape = {ROWS, WIDTH}};
    tsh_status status = tsh_linear_create(group, &up, &m->up);
    if (status == TSH_OK) status = tsh_linear_create(group, &down, &m->down);
    if (status == TSH_OK) status = tsh_parameters_create(r->world, &m->list);
    if (status == TSH_OK) status = tsh_linear_register(m->up, m->list, "up");
    if (status == TSH_OK) status = tsh_linear_register(m->down, m->list, "down");
    if (status == TSH_OK) status = tsh_adamw_create(m->list, &(tsh_adamw_config){.lr = 1e-3}, &m->optimizer);
    if (status == TSH_OK) status = tsh_tape_create(r->world, &m->tape);
    if (status == TSH_OK) status = tsh_tensor_create(tsh_world_mesh(r->world), &x, &m->x);
    tshi_check(r, status == TSH_OK, "%s", tsh_error_message());
}

static void drop(model *m) {
    tsh_tape_destroy(m->tape);
    tsh_tensor_release(m->x);
    tsh_optimizer_destroy(m->optimizer);
    tsh_parameters_destroy(m->list);
    tsh_linear_destroy(m->up);
    tsh_linear_destroy(m->down);
}

static void step(tshi_rank *r, model *m) {
    tsh_tensor *h = tsh_gelu(m->tape, tsh_linear_forward(m->tape, m->up, m->x));
    tsh_tensor *y = tsh_linear_forward(m->tape, m->down, h);
    tsh_tensor *loss = tsh_mean(m->tape, tsh_mean(m->tape, y, 1), 0);
    tsh_status status = tsh_backward(m->tape, loss);
    if (status == TSH_OK) status = tsh_optimizer_step(m->optimizer);
    tshi_check(r, status == TSH_OK, "%s", tsh_error_message());
    tsh_tape_reset(m->tape);
}

/* The report adds up to what the device counts. */
static void check_sums(tshi_rank *r, const char *when) {
    tsh_memory_stats stats = tsh_device_stats(tsh_world_device(r->world));
    tsh_memory_use report = tsh_device_memory(tsh_world_device(r->world));
    size_t live = 0, peak = 0;
    for (int p = 0; p < TSH_MEMORY_PURPOSE_COUNT; p++) {
        live += report.live[p];
        peak += report.at_peak[p];
    }
    tshi_check(r, live == stats.bytes_in_use, "%s: %zu bytes by purpose, %zu in use", when, live, stats.bytes_in_use);
    tshi_check(r, peak == stats.bytes_peak, "%s: %zu bytes by purpose, the peak is %zu", when, peak, stats.bytes_peak);
}

static size_t parameter_bytes(const model *m) {
    size_t bytes = 0;
    for (int i = 0; i < tsh_parameters_count(m->list); i++) {
        bytes += (tsh_tensor_local_nbytes(tsh_parameters_tensor(m->list, i)) + 63) / 64 * 64;
    }
    return bytes;
}

static void counts_by_purpose(tshi_rank *r, void *arg) {
    model m = {0};
    tsh_device *device = tsh_world_device(r->world);
    (void)arg;
    make(r, &m);
    check_sums(r, "a model");
    size_t bytes = parameter_bytes(&m), batch = ROWS * WIDTH * sizeof(float);
    for (int i = 0; i < 2; i++) step(r, &m);
    check_sums(r, "two steps");
    tsh_memory_use report = tsh_device_memory(device);
    tshi_check(r, report.live[TSH_MEMORY_PARAMETERS] == bytes, "%zu bytes of parameters",
               report.live[TSH_MEMORY_PARAMETERS]);
    tshi_check(r, report.live[TSH_MEMORY_GRADIENTS] == bytes, "%zu bytes of gradients",
               report.live[TSH_MEMORY_GRADIENTS]);
    tshi_check(r, report.live[TSH_MEMORY_OPTIMIZER] == 2 * bytes, "%zu bytes of the optimizer",
               report.live[TSH_MEMORY_OPTIMIZER]);
    tshi_check(r, report.live[TSH_MEMORY_OTHER] == batch + 64, "%zu other bytes", report.live[TSH_MEMORY_OTHER]);
    tshi_check(r, report.live[TSH_MEMORY_ACTIVATIONS] == 0, "activations are left");
    tshi_check(r, report.at_peak[TSH_MEMORY_ACTIVATIONS] > batch, "%zu bytes of activations at the peak",
               report.at_peak[TSH_MEMORY_ACTIVATIONS]);
    tshi_check(r, report.backward && !strcmp(report.function, "linear_forward"), "the peak is in %s, backward: %d",
               report.function, report.backward);
    tshi_check(r, !strncmp(report.layer, "up.", 3) || !strncmp(report.layer, "down.", 5), "the layer is '%s'",
               report.layer);
    drop(&m);
    check_sums(r, "the end");
    tsh_device_reset_peak(device);
    check_sums(r, "a peak that is reset");
    report = tsh_device_memory(device);
    tshi_check(r, !report.function[0] && !report.layer[0], "no function runs, but '%s' of '%s'", report.function,
               report.layer);
}

/* Bytes of the line that ends with these words, or -1. */
static long long bytes_of(const char *text, const char *words) {
    const char *at = strstr(text, words);
    while (at && at > text && at[-1] != '\n') at--;
    return at ? strtoll(at, NULL, 10) : -1;
}

static void check_report(tshi_rank *r, const model *m, const tsh_tape *tape) {
    static const char *const states[] = {"parameter", "gradient of", "exp_avg of", "exp_avg_sq of"};
    char path[64], text[8192], line[160];
    snprintf(path, sizeof path, "/tmp/tshard-report-%d", (int)getpid());
    if (!tshi_check_ok(r, tsh_memory_report(path, m->list, m->optimizer, tape))) return;
    FILE *file = fopen(path, "r");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[n] = '\0';
    if (file) fclose(file);
    unlink(path);
    for (int i = 0; i < tsh_parameters_count(m->list); i++) {
        for (int s = 0; s < 4; s++) {
            snprintf(line, sizeof line, "  %s %s\n", states[s], tsh_parameters_name(m->list, i));
            long long bytes = (long long)tsh_tensor_local_nbytes(tsh_parameters_tensor(m->list, i));
            tshi_check(r, bytes_of(text, line) == bytes, "%lld bytes, not %lld, in the line%s", bytes_of(text, line),
                       bytes, line);
        }
    }
    long long live = (long long)tsh_device_memory(tsh_world_device(r->world)).live[TSH_MEMORY_OPTIMIZER];
    tshi_check(r, bytes_of(text, "  optimizer\n") == live, "%.2000s", text);
    tshi_check(r, (bytes_of(text, "  results of gelu\n") > 0) == (tape != NULL), "%.2000s", text);
}

/* After a step with its gradients, and in the middle of the next one. */
static void report_by_name(tshi_rank *r, void *arg) {
    model m = {0};
    (void)arg;
    make(r, &m);
    step(r, &m);
    check_report(r, &m, NULL);
    tsh_gelu(m.tape, tsh_linear_forward(m.tape, m.up, m.x));
    check_report(r, &m, m.tape);
    tsh_tape_reset(m.tape);
    drop(&m);
}

Test(memory, is_reported_by_name, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, report_by_name, NULL));
}

Test(memory, is_counted_by_purpose, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, counts_by_purpose, NULL));
}

Test(memory, purposes_have_names) {
    cr_assert_str_eq(tsh_memory_purpose_name(TSH_MEMORY_OTHER), "other");
    cr_assert_str_eq(tsh_memory_purpose_name(TSH_MEMORY_COMMUNICATION), "communication");
    cr_assert_str_eq(tsh_memory_purpose_name(TSH_MEMORY_PURPOSE_COUNT), "unknown purpose");
}
