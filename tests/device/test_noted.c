/* Kernels of a traced device: a trace changes nothing of what runs. */
#pragma GCC diagnostic ignored "-Wunused-parameter" /* of kernels that stand in for others */
#include "device/plan/plan.h"
#include "device/trace.h"
#include "support/files.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(noted_kernels, .timeout = 60);

static _Alignas(4096) char noted_heap[1 << 16];

typedef void (*any_slot)(void);

/* A slot of `noted` is empty where the device's own is, and nowhere else; one that is not is another function. */
static void expect_slots(const char *of, const void *own, const void *noted, size_t bytes) {
    for (size_t at = 0; at < bytes; at += sizeof(any_slot)) {
        any_slot before, after;
        memcpy(&before, (const char *)own + at, sizeof before);
        memcpy(&after, (const char *)noted + at, sizeof after);
        cr_expect_eq(!before, !after, "byte %zu of %s: the slot is %s", at, of, after ? "new" : "lost");
        cr_expect(!before || before != after, "byte %zu of %s: the kernel is not noted", at, of);
    }
}

/* `own` has the tables `own_tables`. */
static void expect_noted(const tshi_device_ops *own, const tshi_plan_tables *own_tables) {
    static tshi_plan_tables tables;
    tshi_device_ops noted = *own;
    tshi_timed_kernels(&noted, &tables);
    const size_t first = offsetof(tshi_device_ops, copy), last = offsetof(tshi_device_ops, event);
    expect_slots("the device", (const char *)own + first, (const char *)&noted + first, last - first);
    for (int d = 0; d < TSH_DTYPE_COUNT; d++) {
        cr_expect(tables.attention[d].scratch == own_tables->attention[d].scratch);
        tables.attention[d].scratch = NULL; /* a number, and no kernel */
    }
    tshi_plan_tables kernels = *own_tables;
    for (int d = 0; d < TSH_DTYPE_COUNT; d++) kernels.attention[d].scratch = NULL;
    expect_slots("the tables", &kernels, &tables, sizeof tables);
}

static tsh_device *noted_device(void) {
    tsh_device *device = NULL;
    cr_assert_eq(tshi_device_create_cpu(NULL, noted_heap, sizeof noted_heap, 1, &device), TSH_OK);
    return device;
}

static void copy_tables(const tshi_device_ops *ops, tshi_plan_tables *t) {
    memcpy(t->elementwise, ops->elementwise, sizeof t->elementwise);
    memcpy(t->sum, ops->sum, sizeof t->sum);
    memcpy(t->softmax, ops->softmax, sizeof t->softmax);
    memcpy(t->loss, ops->loss, sizeof t->loss);
    memcpy(t->cross_entropy, ops->cross_entropy, sizeof t->cross_entropy);
    memcpy(t->embedding, ops->embedding, sizeof t->embedding);
    memcpy(t->norm, ops->norm, sizeof t->norm);
    memcpy(t->attention, ops->attention, sizeof t->attention);
    memcpy(t->random, ops->random, sizeof t->random);
    memcpy(t->optimizer, ops->optimizer, sizeof t->optimizer);
}

Test(noted_kernels, slots_of_the_cpu) {
    static tshi_plan_tables own;
    tsh_device *device = noted_device();
    copy_tables(device->ops, &own);
    expect_noted(device->ops, &own);
    tshi_device_destroy(device);
}

/* --- softmax of whole rows, which a device may have or not -------------------------------------------------------- */

static bool takes_rows;
static int whole_calls, back_calls;

static bool fake_whole(tsh_device *device, bool log, int64_t rows, int64_t n, const void *x, void *y) {
    whole_calls++;
    return takes_rows;
}

static bool fake_whole_backward(tsh_device *device, bool log, int64_t rows, int64_t n, const void *y, const void *dy,
                                void *dx) {
    back_calls++;
    return takes_rows;
}

Test(noted_kernels, slots_of_a_device_with_all_of_them) {
    static tshi_plan_tables own;
    tsh_device *device = noted_device();
    copy_tables(device->ops, &own);
    tshi_device_ops ops = *device->ops;
    ops.softmax = own.softmax;
    for (int d = 0; d < TSH_DTYPE_COUNT; d++) {
        if (!tshi_device_computes(device, (tsh_dtype)d)) continue;
        own.softmax[d].whole = fake_whole;
        own.softmax[d].whole_backward = fake_whole_backward;
    }
    const any_slot *slots = (const any_slot *)&own;
    for (size_t i = 0; i < sizeof own.softmax[0] / sizeof *slots; i++) cr_expect(slots[i] != NULL);
    expect_noted(&ops, &own);
    tshi_device_destroy(device);
}

static int64_t events_of(const tshi_trace_file *trace, tshi_trace_kind kind) {
    int64_t count = 0;
    for (int i = 1; i < trace->used; i++) {
        const tshi_trace_event *event = &trace->chunk[0][i];
        if (event->kind == TSHI_TRACE_TEXT) i += (int)((event->a + 63) / 64);
        count += event->kind == (uint32_t)kind && event->end >= event->begin;
    }
    return count;
}

Test(noted_kernels, whole_rows_are_events_where_the_device_takes_them) {
    static tshi_softmax_ops softmax[TSH_DTYPE_COUNT];
    tsh_device *device = noted_device();
    tshi_device_ops ops = *device->ops;
    memcpy(softmax, ops.softmax, sizeof softmax);
    softmax[TSH_FLOAT32].whole = fake_whole;
    softmax[TSH_FLOAT32].whole_backward = fake_whole_backward;
    ops.softmax = softmax;
    device->ops = &ops;
    const char *folder = tshi_test_folder(0);
    const tshi_trace_header header = {.size = 1};
    tshi_trace_file *trace = NULL;
    cr_assert_eq(tshi_trace_create(&device->allocator, NULL, folder, &header, &trace), TSH_OK);
    cr_assert_eq(tshi_trace_attach(device, trace), TSH_OK);
    const tshi_softmax_ops *noted = &device->ops->softmax[TSH_FLOAT32];
    cr_assert(noted->whole && noted->whole_backward);
    for (int taken = 0; taken <= 1; taken++) {
        takes_rows = taken;
        cr_expect_eq(noted->whole(device, false, 1, 1, NULL, NULL), taken);
        cr_expect_eq(noted->whole_backward(device, false, 1, 1, NULL, NULL, NULL), taken);
        cr_expect_eq(whole_calls, 1 + taken);
        cr_expect_eq(back_calls, 1 + taken);
        cr_expect_eq(events_of(trace, TSHI_TRACE_KERNEL), 2 * taken);
    }
    cr_expect_null(device->ops->softmax[TSH_FLOAT64].whole);
    tshi_trace_detach(device);
    tshi_trace_destroy(trace);
    tshi_test_remove(folder);
    tshi_device_destroy(device);
}
