/* The slots of a device, and the kernels that take their places in a dry run and in a trace, which changes nothing of
 * what runs. */
#pragma GCC diagnostic ignored "-Wunused-parameter" /* of kernels that stand in for others */
#include "device/plan/plan.h"
#include "device/trace.h"
#include "support/files.h"
#include "support/slots.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(noted_kernels, .timeout = 60);

static _Alignas(4096) char noted_heap[1 << 16];

static tsh_device *noted_device(void) {
    tsh_device *device = NULL;
    cr_assert_eq(tshi_device_create_cpu(NULL, noted_heap, sizeof noted_heap, 1, &device), TSH_OK);
    return device;
}

/* The kernels of a dry run and of a trace take the places of the device's own. */
static void expect_replaced(const tshi_device_ops *own) {
    static tshi_planned dry, timed;
    tshi_dry_kernels(&dry, own, own);
    expect_replaced_slots(own, &dry.ops, false);
    tshi_timed_kernels(&timed, own);
    expect_replaced_slots(own, &timed.ops, true);
}

Test(noted_kernels, slots_of_the_cpu) {
    tsh_device *device = noted_device();
    expect_filled_slots(device->ops);
    expect_replaced(device->ops);
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
    static tshi_softmax_ops softmax[TSH_DTYPE_COUNT];
    tsh_device *device = noted_device();
    tshi_device_ops ops = *device->ops;
    memcpy(softmax, ops.softmax, sizeof softmax);
    for (int d = 0; d < TSH_DTYPE_COUNT; d++) {
        if (!tshi_device_computes(device, (tsh_dtype)d)) continue;
        softmax[d].whole = fake_whole;
        softmax[d].whole_backward = fake_whole_backward;
    }
    ops.softmax = softmax;
    expect_filled_slots(&ops);
    expect_replaced(&ops);
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
