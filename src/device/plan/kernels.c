/* The kernels that have one function for all dtypes, as the dry run and the trace see them; kernels.inc has those
 * with a function for each dtype. In a dry run a kernel is counted and computes nothing; in a traced run it is an
 * event around the device's own kernel. */
#include "device/plan/kernels.h"
#include "device/cpu/isa/kernels.h"
#include "device/record.h"
#include "device/trace.h"

#include <stdio.h>
#include <string.h>

static tshi_trace_event *open_event(tsh_device *device, tshi_trace_kind kind, const char *name) {
    uint32_t number = tshi_trace_name(device->trace, name);
    tshi_trace_event *event = tshi_trace_open(device->trace, kind);
    event->name = number;
    event->flags = device->place.backward ? TSHI_TRACE_BACKWARD : 0;
    return event;
}

static void count_kernel(tsh_device *device, const char *family, tsh_dtype dtype, uint64_t bytes) {
    tshi_record_call call = {.kind = TSHI_RECORD_KERNEL, .dtype = dtype, .backward = device->place.backward};
    if (bytes == 0) return;
    snprintf(call.name, sizeof call.name, "%s", family);
    call.size[0] = (int64_t)bytes;
    tshi_record_add(device->record, &call, 0, bytes);
}

/* Opens the event of a kernel. NULL in a dry run, which only counts it. */
static tshi_trace_event *begin_kernel(tsh_device *device, const char *family, tsh_dtype dtype, uint64_t bytes) {
    if (!device->trace) {
        count_kernel(device, family, dtype, bytes);
        return NULL;
    }
    tshi_trace_event *event = open_event(device, TSHI_TRACE_KERNEL, family);
    event->a = (int64_t)bytes;
    return event;
}

/* Ends the event of a kernel that began at `begin`, before the event was opened. */
static void end_kernel(tshi_trace_event *event, uint64_t begin) {
    if (!event) return;
    event->begin = begin;
    tshi_trace_close(event);
}

/* --- host memory -------------------------------------------------------------------------------------------------- */

/* True for tensor memory, which does not exist in a dry run. In a traced run all memory exists and counts as tensor
 * memory. */
static bool is_tensor(const tsh_device *device, const void *pointer) {
    const tshi_record *r = device->record;
    return device->trace || (uintptr_t)pointer - (uintptr_t)r->heap < r->heap_bytes;
}

/* The program reads zeros: the loss is finite, and ids are in range. */
static void give_zeros(tsh_device *device, size_t bytes, void *to) {
    tshi_record *r = device->record;
    const char *function = device->place.last;
    if (bytes) memset(to, 0, bytes);
    if (bytes && !r->reads) snprintf(r->read_in, sizeof r->read_in, "%s", function ? function : "");
    r->reads = r->reads || bytes;
}

/* --- copies ------------------------------------------------------------------------------------------------------- */

static void timed_copy(tsh_device *device, tshi_copy_fn *copy, size_t bytes, const void *from, void *to) {
    tshi_trace_event *event = begin_kernel(device, "copy", TSH_UINT8, 2 * bytes);
    copy(device, bytes, from, to);
    tshi_trace_close(event);
}

static void timed_copy_within(tsh_device *device, size_t bytes, const void *from, void *to) {
    timed_copy(device, device->trace->behind->copy.within, bytes, from, to);
}

static void timed_copy_to_host(tsh_device *device, size_t bytes, const void *from, void *to) {
    timed_copy(device, device->trace->behind->copy.to_host, bytes, from, to);
}

static void timed_copy_from_host(tsh_device *device, size_t bytes, const void *from, void *to) {
    timed_copy(device, device->trace->behind->copy.from_host, bytes, from, to);
}

static void plan_copy(tsh_device *device, size_t bytes, const void *from, void *to) {
    bool tensor_from = is_tensor(device, from), tensor_to = is_tensor(device, to);
    if (tensor_from && tensor_to)
        count_kernel(device, "copy", TSH_UINT8, 2 * bytes);
    else if (tensor_from)
        give_zeros(device, bytes, to);
    else if (!tensor_to && bytes)
        memmove(to, from, bytes);
}

/* In a dry run values take no host memory. */
static tsh_status plan_to_host(tsh_device *device, size_t bytes, void *from, tshi_host_buffer **host) {
    *host = NULL;
    count_kernel(device, "copy", TSH_UINT8, 2 * bytes);
    device->ops->memory.release(device, from);
    return TSH_OK;
}

static tsh_status plan_from_host(tsh_device *device, size_t bytes, const tshi_host_buffer *host, void *to) {
    count_kernel(device, "copy", TSH_UINT8, 2 * bytes);
    return TSH_OK;
}

static void plan_release(tsh_device *device, tshi_host_buffer *host) {}

const tshi_offload_ops tshi_plan_offload = {
    .to_host = plan_to_host, .from_host = plan_from_host, .release = plan_release};

static void plan_strided(tsh_device *device, int64_t outer, size_t bytes, const void *from, size_t from_stride,
                         void *to, size_t to_stride) {
    if (!is_tensor(device, to)) {
        for (int64_t o = 0; o < outer; o++)
            plan_copy(device, bytes, (const char *)from + (size_t)o * from_stride, (char *)to + (size_t)o * to_stride);
        return;
    }
    tshi_trace_event *event = begin_kernel(device, "copy", TSH_UINT8, 2 * (uint64_t)outer * bytes);
    if (!event) return;
    device->trace->behind->copy.strided(device, outer, bytes, from, from_stride, to, to_stride);
    tshi_trace_close(event);
}

static void plan_permute(tsh_device *device, const tshi_permutation *p, const void *from, void *to) {
    uint64_t bytes = p->piece;
    for (int d = 0; d < p->ndim; d++) bytes *= (uint64_t)p->size[d];
    tshi_trace_event *event = NULL;
    if (is_tensor(device, to))
        event = begin_kernel(device, "permute", TSH_UINT8, 2 * bytes);
    else
        give_zeros(device, bytes, to);
    if (!event) return;
    device->trace->behind->copy.permute(device, p, from, to);
    tshi_trace_close(event);
}

static void plan_zero(tsh_device *device, size_t bytes, void *to) {
    tshi_trace_event *event = NULL;
    if (is_tensor(device, to))
        event = begin_kernel(device, "fill", TSH_UINT8, bytes);
    else if (bytes)
        memset(to, 0, bytes);
    if (!event) return;
    device->trace->behind->copy.zero(device, bytes, to);
    tshi_trace_close(event);
}

static void plan_fill(tsh_device *device, tsh_dtype dtype, int64_t n, double value, void *to) {
    tshi_trace_event *event = NULL;
    if (is_tensor(device, to))
        event = begin_kernel(device, "fill", dtype, (uint64_t)n * tsh_dtype_size(dtype));
    else
        tshi_cpu_fill_base(device, dtype, n, value, to);
    if (!event) return;
    device->trace->behind->copy.fill(device, dtype, n, value, to);
    tshi_trace_close(event);
}

static void plan_convert(tsh_device *device, int64_t n, tsh_dtype from_dtype, const void *from, tsh_dtype to_dtype,
                         void *to) {
    size_t from_size = tsh_dtype_size(from_dtype), to_size = tsh_dtype_size(to_dtype);
    tshi_trace_event *event = NULL;
    if (is_tensor(device, to))
        event = begin_kernel(device, "convert", to_dtype, (uint64_t)n * (from_size + to_size));
    else if (is_tensor(device, from))
        give_zeros(device, (size_t)n * to_size, to);
    else
        tshi_cpu_convert_base(device, n, from_dtype, from, to_dtype, to);
    if (!event) return;
    device->trace->behind->copy.convert(device, n, from_dtype, from, to_dtype, to);
    tshi_trace_close(event);
}

/* --- products and attention --------------------------------------------------------------------------------------- */

/* The scratch memory of the CPU's products counts towards the peak. */
static tsh_status plan_product(tsh_device *device, tsh_dtype dtype, bool transpose_a, bool transpose_b, int64_t m,
                               int64_t n, int64_t k) {
    tshi_record_call call = {.kind = TSHI_RECORD_PRODUCT,
                             .dtype = dtype,
                             .backward = device->place.backward,
                             .name = "product",
                             .size = {m, n, k, transpose_a, transpose_b}};
    if (m == 0 || n == 0 || k == 0) return TSH_OK;
    size_t scratch = tshi_cpu_product_scratch(device, dtype, transpose_a, transpose_b, m, n, k);
    void *meanwhile = scratch ? device->ops->memory.alloc(device, scratch) : NULL;
    if (scratch && !meanwhile) return TSH_ERR_MEMORY;
    device->ops->memory.release(device, meanwhile);
    uint64_t bytes = (uint64_t)(m * n + n * k + m * k) * tsh_dtype_size(dtype);
    tshi_record_add(device->record, &call, 2.0 * (double)m * (double)n * (double)k, bytes);
    return TSH_OK;
}

/* Opens the event of a product; NULL in a dry run. */
static tshi_trace_event *begin_product(tsh_device *device, int64_t m, int64_t n, int64_t k) {
    if (!device->trace) return NULL;
    tshi_trace_event *event = open_event(device, TSHI_TRACE_PRODUCT, "product");
    event->a = m;
    event->b = n;
    event->c = k;
    return event;
}

static tsh_status plan_gemm(tsh_device *device, tsh_dtype dtype, bool transpose_a, bool transpose_b, int64_t m,
                            int64_t n, int64_t k, double alpha, const void *a, int64_t lda, const void *b, int64_t ldb,
                            double beta, void *c, int64_t ldc) {
    tshi_trace_event *event = begin_product(device, m, n, k);
    if (event) {
        tsh_status ran = device->trace->behind->product.gemm(device, dtype, transpose_a, transpose_b, m, n, k, alpha, a,
                                                             lda, b, ldb, beta, c, ldc);
        tshi_trace_close(event);
        return ran;
    }
    tsh_status status = tshi_check_product("the BLAS", m, n, k, lda, ldb, ldc);
    return status == TSH_OK ? plan_product(device, dtype, transpose_a, transpose_b, m, n, k) : status;
}

static tsh_status plan_affine(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, const void *x,
                              const void *w, const void *b, tshi_unary f, void *pre, void *y) {
    tshi_trace_event *event = begin_product(device, m, n, k);
    if (event) {
        tsh_status ran = device->trace->behind->product.affine(device, dtype, m, n, k, x, w, b, f, pre, y);
        tshi_trace_close(event);
        return ran;
    }
    tsh_status status = tshi_check_product("the BLAS", m, n, k, k, k, n);
    if (status == TSH_OK) status = plan_product(device, dtype, false, true, m, n, k);
    uint64_t bytes = (uint64_t)m * (uint64_t)n * tsh_dtype_size(dtype);
    if (b) count_kernel(device, "bias", dtype, bytes);
    if (f != TSHI_IDENTITY) count_kernel(device, "unary", dtype, 2 * bytes);
    return status;
}

static tsh_status plan_affine_backward(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k,
                                       const void *x, const void *dy, tsh_dtype to, double beta, void *dw,
                                       double beta_b, void *db) {
    tshi_trace_event *event = begin_product(device, n, k, m);
    if (event) {
        tsh_status ran =
            device->trace->behind->product.affine_backward(device, dtype, m, n, k, x, dy, to, beta, dw, beta_b, db);
        tshi_trace_close(event);
        return ran;
    }
    tsh_status status = plan_gemm(device, dtype, true, false, n, k, m, 1, dy, n, x, k, beta, dw, k);
    if (db) count_kernel(device, "bias_backward", dtype, (uint64_t)m * (uint64_t)n * tsh_dtype_size(dtype));
    return status;
}

static tsh_status plan_gemm_unary_backward(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k,
                                           const void *a, const void *b, tshi_unary f, const void *z, void *c) {
    tshi_trace_event *event = begin_product(device, m, n, k);
    if (event) {
        tsh_status ran = device->trace->behind->product.gemm_unary_backward(device, dtype, m, n, k, a, b, f, z, c);
        tshi_trace_close(event);
        return ran;
    }
    tsh_status status = plan_gemm(device, dtype, false, false, m, n, k, 1, a, k, b, n, 0, c, n);
    count_kernel(device, "unary_backward", dtype, 3 * (uint64_t)m * (uint64_t)n * tsh_dtype_size(dtype));
    return status;
}

/* The number of visible pairs of a query and a key: with a causal mask, query i sees the keys j <= i + keys -
 * queries. */
static double pairs_of(const tshi_attention *a) {
    double queries = (double)a->queries, keys = (double)a->keys, hidden = queries - keys;
    if (!a->causal) return queries * keys;
    return hidden > 0 ? keys * (keys + 1) / 2 : queries * -hidden + queries * (queries + 1) / 2;
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
    snprintf(call.name, sizeof call.name, "%s", a->causal ? "attention_causal" : "attention");
    if (flops > 0) tshi_record_add(device->record, &call, flops, bytes);
}

/* Opens the event of an attention; NULL in a dry run. */
static tshi_trace_event *begin_attention(tsh_device *device, tsh_dtype dtype, const tshi_attention *a, bool back) {
    if (device->trace) return open_event(device, TSHI_TRACE_KERNEL, back ? "attention_backward" : "attention");
    count_attention(device, dtype, a, back);
    return NULL;
}

/* --- others ------------------------------------------------------------------------------------------------------- */

static int64_t plan_targets_check(tsh_device *device, const tshi_classes *c, const int64_t *target) {
    return device->trace ? device->trace->behind->targets_check(device, c, target) : -1;
}

static int64_t plan_ids_check(tsh_device *device, int64_t n, const int64_t *ids, int64_t vocabulary) {
    return device->trace ? device->trace->behind->ids_check(device, n, ids, vocabulary) : -1;
}

static void plan_reduce(tsh_device *device, tsh_dtype dtype, tshi_reduction op, int64_t n, int count,
                        const void *const *in, int outs, void *const *out) {
    tshi_trace_event *event =
        begin_kernel(device, "reduce", dtype, (uint64_t)n * (uint64_t)(count + outs) * tsh_dtype_size(dtype));
    if (!event) return;
    device->trace->behind->reduce(device, dtype, op, n, count, in, outs, out);
    tshi_trace_close(event);
}

static void plan_top(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, int64_t most,
                     int64_t start, const void *x, tshi_candidate *top) {
    tshi_trace_event *event = begin_kernel(device, "top", dtype, (uint64_t)(outer * n * inner) * tsh_dtype_size(dtype));
    if (!event) return;
    device->trace->behind->top.find(device, dtype, outer, n, inner, most, start, x, top);
    tshi_trace_close(event);
}

static void plan_top_merge(tsh_device *device, int64_t count, int64_t outer, int64_t most, int64_t inner,
                           const tshi_candidate *lists, tshi_candidate *top) {
    tshi_trace_event *event =
        begin_kernel(device, "top", TSH_FLOAT64, (uint64_t)(count * outer * most * inner) * sizeof *lists);
    if (!event) return;
    device->trace->behind->top.merge(device, count, outer, most, inner, lists, top);
    tshi_trace_close(event);
}

static void plan_top_backward(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                              int64_t most, int64_t start, const int64_t *index, const void *dy, void *dx) {
    tshi_trace_event *event =
        begin_kernel(device, "top", dtype, 3 * (uint64_t)(outer * most * inner) * tsh_dtype_size(dtype));
    if (!event) return;
    device->trace->behind->top.backward(device, dtype, outer, n, inner, most, start, index, dy, dx);
    tshi_trace_close(event);
}

static int64_t overlay_size(const tshi_overlay *o) {
    int64_t n = 1;
    for (int i = 0; i < o->runs; i++) n *= o->n[i];
    return n;
}

static int64_t updated(int count, const tshi_update *updates) {
    int64_t n = 0;
    for (int i = 0; i < count; i++) n += updates[i].n;
    return n;
}

/* --- by dtype ----------------------------------------------------------------------------------------------------- */

#define KERNELS "device/plan/kernels.inc"
#include "device/cpu/isa/each_dtype.inc"

void tshi_plan_kernels(tshi_device_ops *ops, tshi_plan_tables *t) {
    ops->copy = (tshi_copy_ops){.within = plan_copy,
                                .to_host = plan_copy,
                                .from_host = plan_copy,
                                .strided = plan_strided,
                                .permute = plan_permute,
                                .zero = plan_zero,
                                .fill = plan_fill,
                                .convert = plan_convert};
    ops->product = (tshi_product_ops){.gemm = plan_gemm,
                                      .affine = plan_affine,
                                      .affine_backward = plan_affine_backward,
                                      .gemm_unary_backward = plan_gemm_unary_backward};
    ops->targets_check = plan_targets_check;
    ops->ids_check = plan_ids_check;
    ops->reduce = plan_reduce;
    ops->top = (tshi_top_ops){.find = plan_top, .merge = plan_top_merge, .backward = plan_top_backward};
    memcpy(t->attention, ops->attention,
           sizeof t->attention); /* keeps the slot that gives the size of scratch memory */
    set_f32(ops, t);
    set_f64(ops, t);
    set_bf16(ops, t);
    set_f16(ops, t);
    ops->elementwise = t->elementwise;
    ops->sum = t->sum;
    ops->softmax = t->softmax;
    ops->loss = t->loss;
    ops->cross_entropy = t->cross_entropy;
    ops->embedding = t->embedding;
    ops->norm = t->norm;
    ops->attention = t->attention;
    ops->random = t->random;
    ops->optimizer = t->optimizer;
}

void tshi_timed_kernels(tshi_device_ops *ops, tshi_plan_tables *tables) {
    tshi_plan_kernels(ops, tables);
    ops->copy.within = timed_copy_within;
    ops->copy.to_host = timed_copy_to_host;
    ops->copy.from_host = timed_copy_from_host;
}
