/* The CPU device: a heap over borrowed memory, events, and the table of kernels. */
#include "base/clock.h"
#include "device/cpu/kernels/kernels.h"
#include "device/cpu/kernels/primitives.h"
#include "device/cpu/kernels/ranges.h"

#include <stdio.h>

/* A gap between blocks avoids 4K aliasing: tensors whose sizes are powers of two would start at the same page
 * offset, and a CPU takes a load for one that depends on an earlier store at that offset. */
#define GAP TSHI_BLOCK_UNIT

static void *cpu_alloc(tsh_device *device, size_t size) {
    tshi_cpu_device *cpu = (tshi_cpu_device *)device;
    const tshi_slab *slab = cpu->heap.first;
    tshi_slab_block *block = NULL;
    bool failed = false;
    if (!tshi_device_reserve(device, size)) return NULL;
    size_t wanted = tshi_units(size, TSHI_BLOCK_UNIT);
    if (size <= slab->size) block = tshi_slabs_alloc(&cpu->heap, &cpu->index, wanted + GAP, &failed);
    if (failed) return NULL;
    if (!block) {
        size_t largest = tshi_slabs_largest(&cpu->heap);
        tshi_fail(TSH_ERR_MEMORY,
                  "no room for a tensor of %zu bytes: %zu of %zu bytes are in use, the largest free block is %zu", size,
                  device->stats.bytes_in_use, slab->size, largest > GAP ? largest - GAP : 0);
        return NULL;
    }
    size_t end = (size_t)(block->data - slab->base) + wanted + GAP;
    if (end > cpu->high_water) {
        cpu->high_water = end;
        device->stats.allocations++;
    }
    tshi_device_count(device, block, wanted);
    return block->data;
}

static void cpu_release(tsh_device *device, void *pointer) {
    tshi_slab_index *index = &((tshi_cpu_device *)device)->index;
    tshi_slab_block *block = tshi_slab_index_take(index, pointer);
    if (!block) return;
    tshi_device_uncount(device, block);
    tshi_slabs_release(index, block);
}

static tshi_slab_block *cpu_find(tsh_device *device, const void *pointer) {
    return tshi_slab_index_find(&((tshi_cpu_device *)device)->index, pointer);
}

static void cpu_destroy(tsh_device *device) {
    tshi_cpu_device *cpu = (tshi_cpu_device *)device;
    tsh_allocator allocator = device->allocator;
    tshi_cpu_primitives_free(cpu);
    tshi_slabs_clear(&cpu->heap, &cpu->index);
    tshi_slab_index_clear(&cpu->index);
    for (tshi_host_buffer *buffer; (buffer = tshi_host_buffer_take(&cpu->host, 0));) tshi_free(&allocator, buffer);
    tshi_free(&allocator, device);
}

static void cpu_describe(const tsh_device *device, char *text, size_t size) {
    int threads = device->threads;
    char libraries[160];
    tshi_cpu_product_libraries(device, libraries, sizeof libraries);
    snprintf(text, size, "%s kernels, %d thread%s, %s", ((const tshi_cpu_device *)device)->isa->name, threads,
             threads == 1 ? "" : "s", libraries);
}

/* Unknown: it depends on the CPU's model and clock, and on other processes. */
static double cpu_matrix_rate(tsh_device *device, tsh_dtype dtype, double *clock) {
    *clock = 0;
    return 0;
}

/* Kernels of the CPU return their failures, so none is ever pending. */
static tsh_status cpu_check(tsh_device *device) {
    return TSH_OK;
}

/* --- events: work here is done when its call returns -------------------------------------------------------------- */

typedef struct cpu_event {
    tsh_event base;
    double seconds;
} cpu_event;

static tsh_event *event_create(tsh_device *device) {
    cpu_event *event = tshi_calloc(&device->allocator, 1, sizeof *event);
    if (!event) return NULL;
    event->base.device = device;
    return &event->base;
}

static tsh_status event_record(tsh_event *event) {
    ((cpu_event *)event)->seconds = tshi_clock();
    return TSH_OK;
}

static tsh_status event_elapsed(tsh_event *begin, tsh_event *end, double *seconds) {
    *seconds = ((cpu_event *)end)->seconds - ((cpu_event *)begin)->seconds;
    return TSH_OK;
}

static void event_destroy(tsh_event *event) {
    tshi_free(&event->device->allocator, event);
}

static const tshi_event_ops event_ops = {
    .create = event_create, .record = event_record, .elapsed = event_elapsed, .destroy = event_destroy};

/* --- values in host memory, outside the heap ---------------------------------------------------------------------- */

static tsh_status offload_to_host(tsh_device *device, size_t bytes, void *from, tshi_host_buffer **host) {
    tshi_host_buffer *buffer = tshi_host_buffer_take(&((tshi_cpu_device *)device)->host, bytes);
    if (!buffer) {
        buffer = tshi_calloc(&device->allocator, 1, sizeof *buffer + bytes);
        if (!buffer) return TSH_ERR_MEMORY;
        buffer->data = buffer + 1;
        buffer->size = bytes;
    }
    device->ops->copy.to_host(device, bytes, from, buffer->data);
    device->ops->memory.release(device, from);
    *host = buffer;
    return TSH_OK;
}

static tsh_status offload_from_host(tsh_device *device, size_t bytes, const tshi_host_buffer *host, void *to) {
    device->ops->copy.from_host(device, bytes, host->data, to);
    return TSH_OK;
}

static void offload_release(tsh_device *device, tshi_host_buffer *host) {
    host->next = ((tshi_cpu_device *)device)->host;
    ((tshi_cpu_device *)device)->host = host;
}

static const tshi_offload_ops offload_ops = {
    .to_host = offload_to_host, .from_host = offload_from_host, .release = offload_release};

/* --- the device --------------------------------------------------------------------------------------------------- */

/* Without the vector kernels. */
static const tshi_device_ops cpu_ops = {
    .name = "cpu",
    .kind = TSH_CPU,
    .computes = 1u << TSH_FLOAT32 | 1u << TSH_FLOAT64 | 1u << TSH_BFLOAT16 | 1u << TSH_FLOAT16,
    .destroy = cpu_destroy,
    .describe = cpu_describe,
    .check = cpu_check,
    .synchronize = cpu_check,
    .matrix_rate = cpu_matrix_rate,
    .memory = {.alloc = cpu_alloc, .release = cpu_release, .find = cpu_find},
    .copy = {.within = tshi_cpu_copy,
             .to_host = tshi_cpu_copy,
             .from_host = tshi_cpu_copy,
             .strided = tshi_cpu_copy_strided,
             .permute = tshi_cpu_permute,
             .convert = tshi_cpu_convert_all,
             .zero = tshi_cpu_zero},
    .product = {.gemm = tshi_cpu_gemm,
                .gemm_batch = tshi_cpu_gemm_batch,
                .affine = tshi_cpu_affine,
                .affine_backward = tshi_cpu_affine_backward,
                .gemm_unary_backward = tshi_cpu_gemm_unary_backward},
    .targets_check = tshi_cpu_targets_check,
    .ids_check = tshi_cpu_ids_check,
    .row_numbers = tshi_cpu_row_numbers,
    .event = &event_ops,
    .offload = &offload_ops,
};

static void set_ops(tshi_cpu_device *cpu) {
    const tshi_isa *isa = cpu->isa;
    cpu->ops = cpu_ops;
    cpu->ops.copy.fill = isa->fill;
    cpu->ops.reduce = isa->reduce;
    cpu->ops.top = *isa->top;
    cpu->ops.top.find = tshi_cpu_top_find;
    cpu->ops.quantized = (tshi_quantized_ops){.activations = tshi_cpu_quantize_activations,
                                              .multiply = tshi_cpu_quantized_multiply,
                                              .dequantize = tshi_cpu_dequantize};
    tshi_cpu_ranges(isa, &cpu->tables);
#define FLOAT_TABLE(table) cpu->ops.table = cpu->tables.table;
#include "device/kernels.def"
    cpu->base.ops = &cpu->ops;
}

tsh_status tshi_device_create_cpu(const tsh_allocator *allocator, void *heap, size_t size, int threads,
                                  tsh_device **out) {
    *out = NULL;
    if (!heap || (uintptr_t)heap % TSHI_BLOCK_UNIT != 0) {
        return tshi_fail(TSH_ERR_ARGUMENT, "the tensor memory of a CPU has to be aligned to 64 bytes");
    }
    if (threads < 1) return tshi_fail(TSH_ERR_ARGUMENT, "a CPU needs at least 1 thread, not %d", threads);
    const tshi_isa *isa = NULL;
    tsh_status status = tshi_isa_choose(&isa);
    if (status != TSH_OK) return status;
    tsh_allocator hooks = tshi_allocator_resolve(allocator);
    tshi_cpu_device *device = tshi_calloc(&hooks, 1, sizeof *device);
    if (!device) return TSH_ERR_MEMORY;
    device->isa = isa;
    set_ops(device);
    device->base.allocator = hooks;
    device->index.allocator = &device->base.allocator;
    device->base.threads = threads;
    status = tshi_cpu_products_choose(device);
    if (status == TSH_OK) status = tshi_slabs_add(&device->heap, &device->index, heap, size & ~(TSHI_BLOCK_UNIT - 1));
    if (status != TSH_OK) {
        cpu_destroy(&device->base);
        return status;
    }
    tshi_cpu_product_threads(threads);
    *out = &device->base;
    return TSH_OK;
}
