/* The CPU device itself: its table, its memory, what it counts and what it refuses. */
#include "device/device.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

TestSuite(cpu, .timeout = 120);

#define HEAP_SIZE ((size_t)1 << 20)

static _Alignas(4096) char heap[HEAP_SIZE];

static tsh_device *make(const tsh_allocator *allocator) {
    tsh_device *device = NULL;
    cr_assert_eq(tshi_device_create_cpu(allocator, heap, HEAP_SIZE, 1, &device), TSH_OK);
    return device;
}

Test(cpu, no_kernel_is_missing) {
    tsh_device *device = make(NULL);
    const tshi_device_ops *ops = device->ops;
    cr_assert_str_eq(ops->name, "cpu");
    cr_assert_eq(tsh_device_kind_of(device), TSH_CPU);
    /* From destroy on, the table is pointers alone. */
    const char *slot = (const char *)ops + offsetof(tshi_device_ops, destroy);
    const char *end = (const char *)ops + sizeof *ops;
    int missing = 0;
    for (; slot < end; slot += sizeof(void (*)(void))) {
        static const char zeros[sizeof(void (*)(void))];
        missing += memcmp(slot, zeros, sizeof zeros) == 0;
    }
    /* Ranks share a heap: other ranks' memory needs no functions. Nothing is captured, there are no streams, and no
     * tools that show ranges. */
    int unneeded = !ops->sharing + !ops->graph + !ops->stream + !ops->range;
    cr_assert_eq(unneeded, 4);
    cr_assert_eq(missing, unneeded);
    tshi_device_destroy(device);
    tshi_device_destroy(NULL);
}

Test(cpu, dtypes) {
    const size_t sizes[TSH_DTYPE_COUNT] = {4, 8, 2, 2, 4, 8, 1, 8, 16};
    for (int i = 0; i < TSH_DTYPE_COUNT; i++) {
        cr_assert_eq(tsh_dtype_size((tsh_dtype)i), sizes[i]);
        for (int j = 0; j < i; j++) cr_assert_str_neq(tsh_dtype_name((tsh_dtype)i), tsh_dtype_name((tsh_dtype)j));
    }
    cr_assert_str_eq(tsh_dtype_name(TSH_BFLOAT16), "bfloat16");
    cr_assert_eq(tsh_dtype_size(TSH_DTYPE_COUNT), 0u);
    cr_assert_eq(tsh_dtype_size((tsh_dtype)-1), 0u);
    cr_assert_str_eq(tsh_dtype_name(TSH_DTYPE_COUNT), "unknown dtype");
    cr_assert(tshi_dtype_sum(TSH_FLOAT16) == TSH_FLOAT32 && tshi_dtype_sum(TSH_FLOAT64) == TSH_FLOAT64);
    cr_assert(tshi_dtype_is_complex(TSH_COMPLEX64) && !tshi_dtype_is_complex(TSH_FLOAT32));
}

/* Around the size from which copies go another way, and far from any boundary. */
Test(cpu, copies_of_every_size_and_alignment) {
    tsh_device *device = make(NULL);
    const size_t sizes[] = {0, 1, 63, 4096, ((size_t)2 << 20) - 1, (size_t)2 << 20, ((size_t)2 << 20) + 1, 5000003};
    const size_t shifts[][2] = {{0, 0}, {1, 0}, {0, 1}, {64, 17}, {4095, 33}};
    size_t room = 5000003 + 8192;
    unsigned char *from = malloc(room), *to = malloc(room);
    cr_assert(from && to);
    for (size_t i = 0; i < room; i++) from[i] = (unsigned char)((i * 2654435761u) >> 13);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        for (size_t j = 0; j < sizeof shifts / sizeof *shifts; j++) {
            unsigned char *source = from + shifts[j][0], *target = to + 64 + shifts[j][1];
            memset(to, 0x5A, room);
            device->ops->copy.within(device, sizes[k], source, target);
            cr_assert(memcmp(source, target, sizes[k]) == 0, "%zu bytes", sizes[k]);
            for (size_t i = 0; i < 64; i++)
                cr_assert(target[-1 - (ptrdiff_t)i] == 0x5A && target[sizes[k] + i] == 0x5A);
        }
    }
    free(from);
    free(to);
    tshi_device_destroy(device);
}

Test(cpu, statistics_count_requests_bytes_and_new_memory) {
    tsh_device *device = make(NULL);
    void *a = device->ops->memory.alloc(device, 100), *b = device->ops->memory.alloc(device, 0);
    tsh_memory_stats s = tsh_device_stats(device);
    cr_assert_eq(s.requests, 2u);
    cr_assert_eq(s.allocations, 2u);
    cr_assert_eq(s.bytes_in_use, 128u + 64u);
    cr_assert_eq(s.bytes_peak, 192u);
    cr_assert_neq(a, b);
    device->ops->memory.release(device, b);
    device->ops->memory.release(device, NULL);
    cr_assert_eq(tsh_device_stats(device).bytes_in_use, 128u);
    cr_assert_eq(tsh_device_stats(device).bytes_peak, 192u);
    tsh_device_reset_peak(device);
    cr_assert_eq(tsh_device_stats(device).bytes_peak, 128u);
    b = device->ops->memory.alloc(device, 64);
    cr_assert_eq(tsh_device_stats(device).allocations, 2u, "memory that was used before");
    cr_assert_eq(tsh_device_stats(device).requests, 3u);
    device->ops->memory.release(device, a);
    device->ops->memory.release(device, b);
    cr_assert_eq(tsh_device_stats(device).bytes_in_use, 0u);
    tshi_device_destroy(device);
}

/* A step like a training step: some tensors live on, others go in another order than they came, and the sizes vary. */
static void step(tsh_device *device, void **parameters, int count, int round) {
    enum { TEMPORARIES = 40 };
    void *t[TEMPORARIES];
    for (int i = 0; i < TEMPORARIES; i++) {
        t[i] = device->ops->memory.alloc(device, (size_t)(64 + i * 37 % 11 * 500 + i));
        cr_assert_not_null(t[i]);
        if (i % 3 == 2) {
            device->ops->memory.release(device, t[i - 1]);
            t[i - 1] = NULL;
        }
        if (round == 0 && i < count) parameters[i] = device->ops->memory.alloc(device, (size_t)(100 * i));
    }
    for (int i = 0; i < TEMPORARIES; i++) device->ops->memory.release(device, t[round % 2 ? i : TEMPORARIES - 1 - i]);
}

Test(cpu, a_steady_state_takes_no_new_memory) {
    tsh_device *device = make(NULL);
    void *parameters[10];
    step(device, parameters, 10, 0);
    step(device, parameters, 10, 1);
    uint64_t allocations = tsh_device_stats(device).allocations;
    size_t in_use = tsh_device_stats(device).bytes_in_use;
    for (int round = 2; round < 30; round++) step(device, parameters, 10, round);
    cr_assert_eq(tsh_device_stats(device).allocations, allocations);
    cr_assert_eq(tsh_device_stats(device).bytes_in_use, in_use);
    for (int i = 0; i < 10; i++) device->ops->memory.release(device, parameters[i]);
    cr_assert_eq(tsh_device_stats(device).bytes_in_use, 0u);
    tshi_device_destroy(device);
}

Test(cpu, exhaustion_has_a_message_and_leaves_the_device_usable) {
    tsh_device *device = make(NULL);
    cr_assert_null(device->ops->memory.alloc(device, HEAP_SIZE));
    cr_assert_not_null(strstr(tsh_error_message(), "1048576 bytes"), "%s", tsh_error_message());
    cr_assert_null(device->ops->memory.alloc(device, SIZE_MAX));
    cr_assert_eq(tsh_device_stats(device).requests, 0u);
    void *p = device->ops->memory.alloc(device, HEAP_SIZE / 2);
    cr_assert_not_null(p);
    device->ops->memory.release(device, p);
    tshi_device_destroy(device);
}

typedef struct budget {
    size_t left;
    int given, taken;
} budget;

static void *budget_alloc(void *user, size_t size) {
    ((budget *)user)->given++;
    return malloc(size);
}

static void budget_release(void *user, void *pointer) {
    ((budget *)user)->taken++;
    free(pointer);
}

static bool budget_reserve(void *user, size_t size) {
    return size <= ((budget *)user)->left;
}

Test(cpu, the_allocator_is_asked_before_each_tensor) {
    budget b = {.left = 1000};
    tsh_allocator hooks = {budget_alloc, budget_release, budget_reserve, &b};
    tsh_device *device = make(&hooks);
    void *p = device->ops->memory.alloc(device, 1000);
    cr_assert_not_null(p);
    cr_assert_null(device->ops->memory.alloc(device, 1001));
    cr_assert_not_null(strstr(tsh_error_message(), "1001"), "%s", tsh_error_message());
    cr_assert_eq(tsh_device_stats(device).requests, 1u);
    device->ops->memory.release(device, p);
    tshi_device_destroy(device);
    cr_assert_gt(b.given, 0);
    cr_assert_geq(b.taken, b.given, "all memory is given back; a NULL may be among it");
}

static void *no_alloc(void *user, size_t size) {
    (void)user;
    (void)size;
    return NULL;
}

Test(cpu, a_device_that_cannot_be_made) {
    tsh_device *device = (tsh_device *)heap;
    cr_assert_eq(tshi_device_create_cpu(NULL, heap + 8, 4096, 1, &device), TSH_ERR_ARGUMENT);
    cr_assert_null(device);
    cr_assert_eq(tshi_device_create_cpu(NULL, NULL, 0, 1, &device), TSH_ERR_ARGUMENT);
    cr_assert_eq(tshi_device_create_cpu(NULL, heap, HEAP_SIZE, 0, &device), TSH_ERR_ARGUMENT);
    cr_assert_not_null(strstr(tsh_error_message(), "thread"));
    tsh_allocator hooks = {.alloc = no_alloc};
    cr_assert_eq(tshi_device_create_cpu(&hooks, heap, HEAP_SIZE, 1, &device), TSH_ERR_MEMORY);
    cr_assert_null(device);
}

Test(cpu, events_tell_the_time_between_them) {
    tsh_event *begin = NULL, *end = NULL;
    double seconds = -1;
    tsh_device *device = make(NULL);
    cr_assert_eq(tsh_event_create(device, &begin), TSH_OK);
    cr_assert_eq(tsh_event_create(device, &end), TSH_OK);
    cr_assert_eq(tsh_event_record(begin), TSH_OK);
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    cr_assert_eq(tsh_event_record(end), TSH_OK);
    cr_assert_eq(tsh_event_elapsed(begin, end, &seconds), TSH_OK);
    cr_assert(seconds >= 0.002 && seconds < 10, "%g", seconds);
    cr_assert_eq(tsh_event_elapsed(begin, NULL, &seconds), TSH_ERR_ARGUMENT);
    cr_assert_eq(tsh_device_synchronize(device), TSH_OK);
    tsh_event_destroy(begin);
    tsh_event_destroy(end);
    tsh_event_destroy(NULL);
    tshi_device_destroy(device);
}

/* --- instruction sets --------------------------------------------------------------------------------------------- */

enum { QUANTIZED_ROWS = 7, QUANTIZED_COLS = 37, QUANTIZED_GROUPS = 9 };

/* The device at that level; NULL where this CPU lacks it. */
static tsh_device *make_at(const char *level) {
    tsh_device *device = NULL;
    setenv("TSHARD_CPU_ISA", level, 1);
    tsh_status status = tshi_device_create_cpu(NULL, heap, HEAP_SIZE, 1, &device);
    cr_assert(status == TSH_OK || status == TSH_ERR_UNSUPPORTED || status == TSH_ERR_ARGUMENT);
    return device;
}

/* Groups of random quants, whose scales are any finite float16. */
static void draw_quantized(unsigned char *w, int64_t groups, int64_t bytes) {
    uint32_t state = 1;
    for (int64_t i = 0; i < groups * bytes; i++) {
        state = state * 1664525u + 1013904223u;
        w[i] = (unsigned char)(state >> 24);
        if (i % bytes == 1) w[i] &= 0xbb;
    }
}

static void multiply_at(const char *level, tshi_quant format, int64_t rows, int64_t groups, const unsigned char *w,
                        float *y, bool *there) {
    static float x[QUANTIZED_ROWS * QUANTIZED_GROUPS * TSHI_GROUP];
    static tshi_group quants[QUANTIZED_ROWS * QUANTIZED_GROUPS];
    tsh_device *device = make_at(level);
    *there = device != NULL;
    if (!device) return;
    for (int64_t i = 0; i < rows * groups * TSHI_GROUP; i++) x[i] = (float)(i * 7919 % 1013) - 506;
    device->ops->quantized.activations(device, rows, groups * TSHI_GROUP, x, quants);
    device->ops->quantized.multiply(device, format, rows, QUANTIZED_COLS, groups, quants, w, y);
    tshi_device_destroy(device);
}

/* Sums of products of bytes are exact, and those of groups are added in one order at all levels with vectors. */
Test(cpu, instruction_sets_for_bytes_change_no_bit) {
    static const char *const levels[] = {"avx512", "avx512vnni", "avx512bf16"};
    static unsigned char w[QUANTIZED_COLS * QUANTIZED_GROUPS * 34];
    static float wanted[QUANTIZED_ROWS * QUANTIZED_COLS], y[QUANTIZED_ROWS * QUANTIZED_COLS];
    int compared = 0;
    for (int f = 0; f < 2; f++) {
        const tshi_quant format = f ? TSHI_Q4_0 : TSHI_Q8_0;
        draw_quantized(w, QUANTIZED_COLS * QUANTIZED_GROUPS, (int64_t)tshi_quant_format_of(format)->bytes);
        for (int64_t rows = 1; rows <= QUANTIZED_ROWS; rows++) {
            for (int64_t groups = QUANTIZED_GROUPS - 1; groups <= QUANTIZED_GROUPS; groups++) {
                bool there;
                multiply_at("avx2", format, rows, groups, w, wanted, &there);
                if (!there) cr_skip("this CPU or this build has no such vectors");
                for (int i = 0; i < 3; i++) {
                    multiply_at(levels[i], format, rows, groups, w, y, &there);
                    if (there)
                        cr_assert_eq(memcmp(y, wanted, (size_t)(rows * QUANTIZED_COLS) * sizeof *y), 0, "%s",
                                     levels[i]);
                    compared += there;
                }
            }
        }
    }
    if (compared == 0) cr_skip("this CPU has none of them");
}
