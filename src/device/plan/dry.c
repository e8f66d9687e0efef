/* The kernels of a dry run, made from device/kernels.def: each adds to the device's record what it would read, write
 * and multiply, and computes nothing. */
#include "device/cpu/kernels/kernels.h"
#include "device/plan/costs.h"
#include "device/plan/plan.h"

#include <stdio.h>
#include <string.h>

static void count_kernel(tsh_device *device, const char *family, tsh_dtype dtype, uint64_t bytes) {
    tshi_record_call call = {.kind = TSHI_RECORD_KERNEL, .dtype = dtype, .backward = device->place.backward};
    if (bytes == 0) return;
    snprintf(call.name, sizeof call.name, "%s", family);
    call.size[0] = (int64_t)bytes;
    tshi_record_add(device->record, &call, 0, bytes);
}

/* --- copies ------------------------------------------------------------------------------------------------------- */

/* True for tensor memory, which has no pages and is read as zeros. */
static bool is_tensor(const tsh_device *device, const void *pointer) {
    const tshi_record *r = device->record;
    return (uintptr_t)pointer - (uintptr_t)r->heap < r->heap_bytes;
}

static void record_read(tsh_device *device) {
    tshi_record *r = device->record;
    const char *function = device->place.last;
    if (!r->reads) snprintf(r->read_in, sizeof r->read_in, "%s", function ? function : "");
    r->reads = true;
}

/* False for a copy to host memory, which runs: the program reads zeros, so that the loss is finite and ids are in
 * range. One to a tensor is counted, unless it comes from the host. */
static bool count_copy(tsh_device *device, const char *family, tsh_dtype dtype, const void *from, const void *to,
                       uint64_t bytes) {
    const bool reads = is_tensor(device, from), writes = is_tensor(device, to);
    if (reads && !writes && bytes) record_read(device);
    if (writes && (reads || !from)) count_kernel(device, family, dtype, bytes);
    return writes;
}

static tsh_status offload_to_host(tsh_device *device, size_t bytes, void *from, tshi_host_buffer **host) {
    *host = NULL;
    count_kernel(device, "copy", TSH_UINT8, 2 * bytes);
    device->ops->memory.release(device, from);
    return TSH_OK;
}

static tsh_status offload_from_host(tsh_device *device, size_t bytes, const tshi_host_buffer *host, void *to) {
    count_kernel(device, "copy", TSH_UINT8, 2 * bytes);
    return TSH_OK;
}

static void offload_release(tsh_device *device, tshi_host_buffer *host) {}

const tshi_offload_ops tshi_dry_offload = {
    .to_host = offload_to_host, .from_host = offload_from_host, .release = offload_release};

/* --- products and attention --------------------------------------------------------------------------------------- */

/* The scratch memory of the CPU's products counts towards the peak; a GPU's is its device's own, once for all. */
static tsh_status count_product(tsh_device *device, tsh_dtype dtype, int64_t count, bool transpose_a, bool transpose_b,
                                int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc) {
    tshi_record_call call = {.kind = TSHI_RECORD_PRODUCT,
                             .dtype = dtype,
                             .backward = device->place.backward,
                             .name = "product",
                             .size = {m, n, k, transpose_a, transpose_b}};
    tsh_status status = tshi_check_product("the BLAS", m, n, k, lda, ldb, ldc);
    if (status != TSH_OK || count == 0 || m == 0 || n == 0 || k == 0) return status;
    const bool on_cpu = device->ops->kind == TSH_CPU;
    size_t scratch = on_cpu ? tshi_cpu_product_scratch(device, dtype, count, transpose_a, transpose_b, m, n, k) : 0;
    void *meanwhile = scratch ? device->ops->memory.alloc(device, scratch) : NULL;
    if (scratch && !meanwhile) return TSH_ERR_MEMORY;
    device->ops->memory.release(device, meanwhile);
    uint64_t bytes = (uint64_t)(m * n + n * k + m * k) * tsh_dtype_size(dtype);
    for (int64_t i = 0; i < count; i++)
        tshi_record_add(device->record, &call, 2.0 * (double)m * (double)n * (double)k, bytes);
    return TSH_OK;
}

/* The number of visible pairs of a query and a key: with a causal mask, query i sees the keys j <= i + keys - queries,
 * and with positions, which a dry run does not read, this rank's part of the pairs of a whole sequence. */
static double pairs_of(const tshi_attention *a) {
    double queries = (double)a->queries, keys = (double)a->keys, hidden = queries + (double)a->queries_after - keys;
    if (a->tokens.query_position) return queries * (keys + 1) / 2;
    if (!a->causal) return queries * keys;
    if (hidden >= queries) return 0;
    return hidden > 0 ? (queries - hidden) * (queries - hidden + 1) / 2
                      : queries * -hidden + queries * (queries + 1) / 2;
}

static bool is_causal(const tshi_attention *a) {
    return a->causal || a->tokens.query_position;
}

/* Two products over all pairs forward; five backward, one of which recomputes the probabilities. */
static void count_attention(tsh_device *device, tsh_dtype dtype, const tshi_attention *a, bool back) {
    double flops = (back ? 10 : 4) * (double)a->batch * (double)a->heads * (double)a->dim * pairs_of(a);
    tshi_record_call call = {.kind = TSHI_RECORD_ATTENTION,
                             .dtype = dtype,
                             .backward = back,
                             .size = {a->batch, a->heads, a->kv_heads, a->queries, a->keys, a->dim}};
    uint64_t rows = (uint64_t)(a->batch * a->heads * a->queries),
             columns = (uint64_t)(a->batch * a->kv_heads * a->keys);
    uint64_t bytes = (back ? 4u : 2u) * (rows + columns) * (uint64_t)a->dim * tsh_dtype_size(dtype);
    snprintf(call.name, sizeof call.name, "%s", is_causal(a) ? "attention_causal" : "attention");
    if (flops > 0) tshi_record_add(device->record, &call, flops, bytes);
}

/* --- the functions ------------------------------------------------------------------------------------------------ */

#define DRY_KERNEL(of, table, slot, name, parameters, bytes)                                                           \
    static void dry_##table##_##slot##_##of(tsh_device *device, LIST parameters) {                                     \
        const tsh_dtype dtype = of;                                                                                    \
        count_kernel(device, #name, dtype, bytes);                                                                     \
    }
#define KERNEL(table, slot, name, parameters, arguments, bytes)                                                        \
    EACH_FLOAT(DRY_KERNEL, table, slot, name, parameters, bytes)

/* A dry run takes every call. */
#define DRY_OPTIONAL(of, table, slot, name, parameters, bytes)                                                         \
    static bool dry_##table##_##slot##_##of(tsh_device *device, LIST parameters) {                                     \
        const tsh_dtype dtype = of;                                                                                    \
        count_kernel(device, #name, dtype, bytes);                                                                     \
        return true;                                                                                                   \
    }
#define OPTIONAL_KERNEL(table, slot, name, parameters, arguments, bytes)                                               \
    EACH_FLOAT(DRY_OPTIONAL, table, slot, name, parameters, bytes)

#define DRY_ATTENTION(of, slot, parameters, back)                                                                      \
    static void dry_attention_##slot##_##of(tsh_device *device, LIST parameters) {                                     \
        count_attention(device, of, a, back);                                                                          \
    }
#define ATTENTION(slot, name, parameters, arguments, back) EACH_FLOAT(DRY_ATTENTION, slot, parameters, back)

#define ALSO(when, family, bytes)                                                                                      \
    if (when) count_kernel(device, family, dtype, bytes);
#define PRODUCT(slot, parameters, arguments, shape, rows, also)                                                        \
    static tsh_status dry_product_##slot(tsh_device *device, LIST parameters) {                                        \
        tsh_status status = count_product(device, dtype, LIST shape, LIST rows);                                       \
        also;                                                                                                          \
        return status;                                                                                                 \
    }

#define MIXED(table, slot, name, parameters, arguments, of, bytes)                                                     \
    static void dry_##table##_##slot(tsh_device *device, LIST parameters) {                                            \
        count_kernel(device, #table, of, bytes);                                                                       \
    }

#define COPY(slot, name, family, parameters, arguments, of, source, bytes_moved)                                       \
    static void dry_copy_##slot(tsh_device *device, LIST parameters) {                                                 \
        if (!count_copy(device, #family, of, source, to, bytes_moved))                                                 \
            tshi_inner_ops(device)->copy.slot(device, LIST arguments);                                                 \
    }

#define LONE_KERNEL(name, parameters, arguments, of, bytes)                                                            \
    static void dry_##name(tsh_device *device, LIST parameters) {                                                      \
        count_kernel(device, #name, of, bytes);                                                                        \
    }

#define LONE_CHECK(name, parameters)                                                                                   \
    static int64_t dry_##name(tsh_device *device, LIST parameters) {                                                   \
        return -1;                                                                                                     \
    }

#include "device/kernels.def"

/* --- the tables --------------------------------------------------------------------------------------------------- */

#define SET(filled, place, function)      place = (filled) ? function : NULL;
#define SET_FLOAT(d, table, slot)         SET(own->table[d].slot, p->tables.table[d].slot, dry_##table##_##slot##_##d)
#define KERNEL(table, slot, ...)          EACH_FLOAT(SET_FLOAT, table, slot)
#define OPTIONAL_KERNEL(table, slot, ...) EACH_FLOAT(SET_FLOAT, table, slot)
#define ATTENTION(slot, ...)              EACH_FLOAT(SET_FLOAT, attention, slot)
#define SIZE(table, slot, ...)
#define SLOT(table, slot, ...) SET(own->table.slot, p->ops.table.slot, dry_##table##_##slot)
#define LONE(name, ...)        SET(own->name, p->ops.name, dry_##name)
#define FLOAT_TABLE(table)                                                                                             \
    memcpy(p->tables.table, own->table, sizeof p->tables.table);                                                       \
    p->ops.table = p->tables.table;

void tshi_dry_kernels(tshi_planned *p, const tshi_device_ops *host, const tshi_device_ops *own) {
    p->ops = *host;
    p->inner = host;
#include "device/kernels.def"
}
