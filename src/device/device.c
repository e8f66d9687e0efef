/* The public functions of devices, events and graphs: each checks its arguments and calls the slot of the device's
 * table. */
#include "device/device.h"

#include <stdio.h>
#include <string.h>

void tshi_device_destroy(tsh_device *device) {
    if (!device) return;
    tshi_pool_clear(&device->tensors, &device->allocator);
    tshi_cuts_clear(&device->cuts, &device->allocator);
    tshi_pool_clear(&device->storages, &device->allocator);
    tshi_pool_clear(&device->gradients, &device->allocator);
    tshi_pool_clear(&device->offloads, &device->allocator);
    device->ops->destroy(device);
}

tshi_host_buffer *tshi_host_buffer_take(tshi_host_buffer **list, size_t bytes) {
    tshi_host_buffer **best = NULL;
    for (tshi_host_buffer **at = list; *at; at = &(*at)->next) {
        if ((*at)->size >= bytes && (!best || (*at)->size < (*best)->size)) best = at;
    }
    tshi_host_buffer *buffer = best ? *best : NULL;
    if (buffer) *best = buffer->next;
    return buffer;
}

bool tshi_device_reserve(const tsh_device *device, size_t size) {
    if (device->allocator.reserve(device->allocator.user, size)) return true;
    tshi_fail(TSH_ERR_MEMORY, "the allocator's reserve refused %zu bytes of tensor memory", size);
    return false;
}

static void copy_text(char *to, size_t size, const char *from) {
    size_t length = from ? strnlen(from, size - 1) : 0;
    memcpy(to, from ? from : "", length);
    to[length] = '\0';
}

/* The memory in use has a new peak: the report gets its purposes and where the program is. */
static void update_peak(tsh_device *device) {
    tsh_memory_use *report = &device->report;
    device->stats.bytes_peak = device->stats.bytes_in_use;
    memcpy(report->at_peak, report->live, sizeof report->at_peak);
    copy_text(report->function, sizeof report->function, device->place.function);
    copy_text(report->layer, sizeof report->layer, device->place.layer);
    report->backward = device->place.backward;
}

void tshi_device_count(tsh_device *device, tshi_slab_block *block, size_t bytes) {
    block->wanted = bytes;
    block->purpose = device->purpose;
    device->report.live[block->purpose] += bytes;
    device->stats.requests++;
    device->stats.bytes_in_use += bytes;
    if (device->stats.bytes_in_use > device->stats.bytes_peak) update_peak(device);
}

void tshi_device_uncount(tsh_device *device, const tshi_slab_block *block) {
    device->report.live[block->purpose] -= block->wanted;
    device->stats.bytes_in_use -= block->wanted;
}

void tshi_device_repurpose(tsh_device *device, const void *pointer, tsh_memory_purpose purpose) {
    tshi_slab_block *block = device->ops->memory.find(device, pointer);
    tsh_memory_use *report = &device->report;
    if (!block || block->purpose == purpose) return;
    report->live[block->purpose] -= block->wanted;
    report->live[purpose] += block->wanted;
    if (device->stats.bytes_peak == device->stats.bytes_in_use) {
        memcpy(report->at_peak, report->live, sizeof report->at_peak);
    }
    block->purpose = purpose;
}

tsh_device_kind tsh_device_kind_of(const tsh_device *device) {
    return device ? device->ops->kind : TSH_DEVICE_DEFAULT;
}

tsh_memory_stats tsh_device_stats(const tsh_device *device) {
    return device ? device->stats : (tsh_memory_stats){0};
}

const char *tsh_memory_purpose_name(tsh_memory_purpose purpose) {
    static const char *const names[TSH_MEMORY_PURPOSE_COUNT] = {"other",     "parameters",  "gradients",
                                                                "optimizer", "activations", "communication"};
    return (unsigned)purpose < TSH_MEMORY_PURPOSE_COUNT ? names[purpose] : "unknown purpose";
}

tsh_memory_use tsh_device_memory(const tsh_device *device) {
    return device ? device->report : (tsh_memory_use){0};
}

void tsh_device_reset_peak(tsh_device *device) {
    if (device) update_peak(device);
}

tsh_status tshi_check_computes(const tsh_device *device, tsh_dtype dtype, const char *what) {
    if (tshi_device_computes(device, dtype)) return TSH_OK;
    char names[128] = "";
    for (int i = 0; i < TSH_DTYPE_COUNT; i++) {
        if (!tshi_device_computes(device, (tsh_dtype)i)) continue;
        const char *before = device->ops->computes >> i == 1 ? " and " : ", ";
        tshi_append(names, sizeof names, "%s%s", names[0] ? before : "", tsh_dtype_name((tsh_dtype)i));
    }
    return tshi_fail(TSH_ERR_DTYPE, "%s is %s; the %s computes with %s", what, tsh_dtype_name(dtype),
                     device->ops->kind == TSH_CPU ? "CPU" : "GPU", names);
}

tsh_status tshi_check_product(const char *library, int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb,
                              int64_t ldc) {
    if ((m | n | k | lda | ldb | ldc) <= INT32_MAX) return TSH_OK;
    return tshi_fail(
        TSH_ERR_OVERFLOW,
        "a matrix product of %lld x %lld x %lld (row lengths %lld, %lld, %lld) exceeds the limit of %s, 2^31 - 1",
        (long long)m, (long long)n, (long long)k, (long long)lda, (long long)ldb, (long long)ldc, library);
}

char *tsh_device_describe(const tsh_device *device, char *text, size_t size) {
    if (size == 0) return text;
    if (device) {
        device->ops->describe(device, text, size);
    } else {
        snprintf(text, size, "NULL");
    }
    return text;
}

void *tsh_device_stream(tsh_device *device) {
    return device && device->ops->stream ? device->ops->stream(device) : NULL;
}

tsh_status tsh_device_synchronize(tsh_device *device) {
    if (!device) return tshi_fail(TSH_ERR_ARGUMENT, "device_synchronize: device is NULL");
    return device->ops->synchronize(device);
}

tsh_status tsh_event_create(tsh_device *device, tsh_event **out) {
    if (out) *out = NULL;
    if (!device || !out) return tshi_fail(TSH_ERR_ARGUMENT, "event_create: device and out are required");
    *out = device->ops->event->create(device);
    return *out ? TSH_OK : TSH_ERR_MEMORY;
}

tsh_status tsh_event_record(tsh_event *event) {
    if (!event) return tshi_fail(TSH_ERR_ARGUMENT, "event_record: event is NULL");
    return event->device->ops->event->record(event);
}

tsh_status tsh_event_elapsed(tsh_event *begin, tsh_event *end, double *seconds) {
    if (!begin || !end || !seconds || begin->device != end->device) {
        return tshi_fail(TSH_ERR_ARGUMENT, "event_elapsed: two events of one device and seconds are required");
    }
    return begin->device->ops->event->elapsed(begin, end, seconds);
}

void tsh_event_destroy(tsh_event *event) {
    if (event) event->device->ops->event->destroy(event);
}

static tsh_status check_graphs(const char *what, const tsh_device *device) {
    if (!device) return tshi_fail(TSH_ERR_ARGUMENT, "%s: a device is required", what);
    if (device->ops->graph) return TSH_OK;
    return tshi_fail(TSH_ERR_UNSUPPORTED, "%s: a %s cannot capture graphs, only a GPU can", what, device->ops->name);
}

tsh_status tsh_graph_capture_begin(tsh_device *device) {
    tsh_status status = check_graphs("graph_capture_begin", device);
    if (status == TSH_OK) status = device->ops->graph->capture_begin(device);
    if (status == TSH_OK) device->captures = true;
    return status;
}

tsh_status tsh_graph_capture_end(tsh_device *device, tsh_graph **out) {
    tsh_graph *graph = NULL;
    tsh_status status = check_graphs("graph_capture_end", device);
    if (out) *out = NULL;
    if (status != TSH_OK) return status;
    status = device->ops->graph->capture_end(device, &graph);
    device->captures = false;
    if (status != TSH_OK) return status;
    if (!out) {
        tsh_graph_destroy(graph);
        return tshi_fail(TSH_ERR_ARGUMENT, "graph_capture_end: out is NULL");
    }
    *out = graph;
    return TSH_OK;
}

tsh_status tsh_graph_launch(tsh_graph *graph) {
    if (!graph) return tshi_fail(TSH_ERR_ARGUMENT, "graph_launch: a graph is required");
    return graph->device->ops->graph->launch(graph);
}

void tsh_graph_destroy(tsh_graph *graph) {
    if (graph) graph->device->ops->graph->destroy(graph);
}
