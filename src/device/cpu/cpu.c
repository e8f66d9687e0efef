/* The CPU: a heap over borrowed memory, and the table of its kernels. */
#include "device/cpu/heap.h"
#include "device/cpu/kernels/kernels.h"

#include <stdio.h>

typedef struct cpu_device {
    tsh_device base;
    tshi_heap heap;
    int threads;
} cpu_device;

static void *cpu_alloc(tsh_device *device, size_t size) {
    tshi_heap *heap = &((cpu_device *)device)->heap;
    tsh_memory_stats *stats = &device->stats;
    if (!device->allocator.reserve(device->allocator.user, size)) {
        tshi_fail(TSH_ERR_MEMORY, "the allocator's reserve refused %zu bytes of tensor memory", size);
        return NULL;
    }
    size_t high_water = heap->high_water;
    void *pointer = tshi_heap_alloc(heap, size);
    if (!pointer) {
        tshi_fail(TSH_ERR_MEMORY,
                  "no room for a tensor of %zu bytes: %zu of %zu bytes are in use, the largest hole is %zu", size,
                  stats->bytes_in_use, heap->size, tshi_heap_largest(heap));
        return NULL;
    }
    stats->requests++;
    if (heap->high_water > high_water) stats->allocations++;
    stats->bytes_in_use += tshi_heap_size_of(pointer);
    if (stats->bytes_in_use > stats->bytes_peak) stats->bytes_peak = stats->bytes_in_use;
    return pointer;
}

static void cpu_release(tsh_device *device, void *pointer) {
    if (!pointer) return;
    device->stats.bytes_in_use -= tshi_heap_size_of(pointer);
    tshi_heap_release(&((cpu_device *)device)->heap, pointer);
}

static void cpu_destroy(tsh_device *device) {
    tsh_allocator allocator = device->allocator;
    tshi_free(&allocator, device);
}

static void cpu_describe(const tsh_device *device, char *text, size_t size) {
    int threads = ((const cpu_device *)device)->threads;
    char libraries[160];
    tshi_cpu_product_libraries(libraries, sizeof libraries);
    snprintf(text, size, "%d BLAS thread%s, %s", threads, threads == 1 ? "" : "s", libraries);
}

/* It depends on the model of the CPU, and on what else it does. */
static double cpu_matrix_rate(tsh_device *device, tsh_dtype dtype, double *clock) {
    *clock = 0;
    return 0;
}

/* Kernels here tell at once. */
static tsh_status cpu_check(tsh_device *device) {
    return TSH_OK;
}

static const tshi_device_ops tshi_cpu_ops = {
    .name = "cpu",
    .kind = TSH_CPU,
    .computes = 1u << TSH_FLOAT32 | 1u << TSH_FLOAT64,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .destroy = cpu_destroy,
    .describe = cpu_describe,
    .check = cpu_check,
    .copy = tshi_cpu_copy,
    .copy_to_host = tshi_cpu_copy,
    .copy_from_host = tshi_cpu_copy,
    .copy_strided = tshi_cpu_copy_strided,
    .zero = tshi_cpu_zero,
    .fill = tshi_cpu_fill,
    .convert = tshi_cpu_convert,
    .synchronize = tshi_cpu_synchronize,
    .event_create = tshi_cpu_event_create,
    .event_record = tshi_cpu_event_record,
    .event_elapsed = tshi_cpu_event_elapsed,
    .event_destroy = tshi_cpu_event_destroy,
    .matrix_rate = cpu_matrix_rate,
    .reduce = tshi_cpu_reduce,
    .gemm = tshi_cpu_gemm,
    .affine = tshi_cpu_affine,
    .affine_backward = tshi_cpu_affine_backward,
    .unary = tshi_cpu_unary,
    .unary_backward = tshi_cpu_unary_backward,
    .axpby = tshi_cpu_axpby,
    .mul = tshi_cpu_mul,
    .divide = tshi_cpu_divide,
    .bias = tshi_cpu_bias,
    .bias_backward = tshi_cpu_bias_backward,
    .sum = tshi_cpu_sum,
    .sum_backward = tshi_cpu_sum_backward,
    .softmax_max = tshi_cpu_softmax_max,
    .softmax_sum = tshi_cpu_softmax_sum,
    .softmax = tshi_cpu_softmax,
    .softmax_dot = tshi_cpu_softmax_dot,
    .softmax_backward = tshi_cpu_softmax_backward,
    .targets_check = tshi_cpu_targets_check,
    .cross_entropy_sums = tshi_cpu_cross_entropy_sums,
    .cross_entropy_shift = tshi_cpu_cross_entropy_shift,
    .cross_entropy_loss = tshi_cpu_cross_entropy_loss,
    .cross_entropy_backward = tshi_cpu_cross_entropy_backward,
    .ids_check = tshi_cpu_ids_check,
    .embedding = tshi_cpu_embedding,
    .embedding_backward = tshi_cpu_embedding_backward,
    .norm = tshi_cpu_norm,
    .norm_backward = tshi_cpu_norm_backward,
    .dropout = tshi_cpu_dropout,
    .random_uniform = tshi_cpu_random_uniform,
    .random_normal = tshi_cpu_random_normal,
    .sgd = tshi_cpu_sgd,
    .adamw = tshi_cpu_adamw,
    .sum_squares = tshi_cpu_sum_squares,
    .clip = tshi_cpu_clip,
};

tsh_status tshi_device_create_cpu(const tsh_allocator *allocator, void *heap, size_t size, int threads,
                                  tsh_device **out) {
    *out = NULL;
    if (!heap || (uintptr_t)heap % TSHI_HOLE_UNIT != 0) {
        return tshi_fail(TSH_ERR_ARGUMENT, "the tensor memory of a CPU has to be aligned to 64 bytes");
    }
    if (threads < 1) return tshi_fail(TSH_ERR_ARGUMENT, "a CPU needs at least 1 thread, not %d", threads);
    tsh_allocator hooks = tshi_allocator_resolve(allocator);
    cpu_device *device = tshi_calloc(&hooks, 1, sizeof *device);
    if (!device) return TSH_ERR_MEMORY;
    device->base.ops = &tshi_cpu_ops;
    device->base.allocator = hooks;
    tshi_heap_init(&device->heap, heap, size);
    device->threads = threads;
    tshi_cpu_product_threads(threads);
    *out = &device->base;
    return TSH_OK;
}
