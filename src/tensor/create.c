/* Tensors that a program creates: zeros, one value, a sequence. */
#include "tensor/tensor.h"

#include <math.h>

tsh_status tsh_tensor_create(const tsh_mesh *mesh, const tsh_tensor_config *config, tsh_tensor **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "tensor_create: out is NULL");
    tsh_status status = tshi_tensor_create(mesh, config, out);
    if (status == TSH_OK) (*out)->program_refs = 1;
    return status;
}

tsh_status tsh_tensor_create_full(const tsh_mesh *mesh, const tsh_tensor_config *config, double value,
                                  tsh_tensor **out) {
    tsh_status status = tsh_tensor_create(mesh, config, out);
    if (status == TSH_OK && tshi_tensor_is_first_term(*out)) status = tsh_tensor_fill(*out, value);
    return status;
}

/* --- arange ------------------------------------------------------------------------------------------------------- */

enum { CHUNK = 4096 };

/* A sequence in the order of the tensor's memory, computed on the host, a chunk at a time: in int64 for integer dtypes,
 * in double for all others. */
typedef struct sequence {
    tsh_tensor *tensor, *staging; /* staging: [2 * CHUNK] float64 */
    double start, step;
    bool whole; /* start and step are integers: first and stride */
    int64_t first, stride;
    union {
        double number;
        int64_t whole;
    } chunk[CHUNK];
    int used;     /* elements in the chunk */
    int64_t done; /* elements in the tensor */
} sequence;

static bool is_integer(tsh_dtype dtype) {
    return dtype == TSH_INT32 || dtype == TSH_INT64 || dtype == TSH_UINT8;
}

static bool fits_integer(tsh_dtype dtype, int64_t value) {
    if (dtype == TSH_INT32) return value >= INT32_MIN && value <= INT32_MAX;
    return dtype == TSH_INT64 || (value >= 0 && value <= UINT8_MAX);
}

/* The last element is start + (n - 1) step: if the first and the last one fit the dtype, all do. */
static tsh_status check_integers(sequence *s, tsh_dtype dtype, int64_t n) {
    int64_t last;
    if (!(fabs(s->start) < 0x1p63 && fabs(s->step) < 0x1p63) || trunc(s->start) != s->start ||
        trunc(s->step) != s->step) {
        return tshi_fail(TSH_ERR_ARGUMENT, "tensor_create_arange: start %g and step %g must be whole numbers for %s",
                         s->start, s->step, tsh_dtype_name(dtype));
    }
    s->first = (int64_t)s->start;
    s->stride = (int64_t)s->step;
    if (n == 0 || (!__builtin_mul_overflow(n - 1, s->stride, &last) && !__builtin_add_overflow(last, s->first, &last) &&
                   fits_integer(dtype, s->first) && fits_integer(dtype, last))) {
        return TSH_OK;
    }
    return tshi_fail(TSH_ERR_OVERFLOW, "tensor_create_arange: %lld elements from %g in steps of %g do not fit %s",
                     (long long)n, s->start, s->step, tsh_dtype_name(dtype));
}

/* Only the real part of a complex element is written: the tensor is zeroed. */
static void flush_sequence(sequence *s) {
    tsh_tensor *t = s->tensor;
    tsh_device *device = tshi_device_of(t);
    size_t size = tsh_dtype_size(t->dtype), used = (size_t)s->used;
    double *staging = tshi_data(s->staging);
    char *to = (char *)tshi_data(t) + (size_t)s->done * size;
    device->ops->copy.from_host(device, used * sizeof *s->chunk, s->chunk, staging);
    if (tshi_dtype_is_complex(t->dtype)) {
        tsh_dtype part = t->dtype == TSH_COMPLEX64 ? TSH_FLOAT32 : TSH_FLOAT64;
        device->ops->copy.convert(device, s->used, TSH_FLOAT64, staging, part, staging + CHUNK);
        device->ops->copy.strided(device, s->used, size / 2, staging + CHUNK, size / 2, to, size);
    } else {
        device->ops->copy.convert(device, s->used, s->whole ? TSH_INT64 : TSH_FLOAT64, staging, t->dtype, to);
    }
    s->done += s->used;
    s->used = 0;
}

/* Appends elements [index, index + n) of the global tensor. */
static void append_run(sequence *s, int64_t index, int64_t n) {
    for (int64_t i = index; i < index + n; i++) {
        if (s->whole)
            s->chunk[s->used++].whole = s->first + i * s->stride;
        else
            s->chunk[s->used++].number = s->start + (double)i * s->step;
        if (s->used == CHUNK) flush_sequence(s);
    }
}

static void fill_sequence(sequence *s) {
    for (int64_t i = 0; i < tshi_tensor_blocks(s->tensor); i++) {
        int64_t offset;
        tshi_block b = tshi_tensor_block(s->tensor, i, &offset);
        for (int64_t o = 0; o < b.outer; o++) {
            append_run(s, ((o + b.outer_start) * b.global_n + b.start) * b.inner, b.n * b.inner);
        }
    }
    if (s->used) flush_sequence(s);
}

tsh_status tsh_tensor_create_arange(const tsh_mesh *mesh, const tsh_tensor_config *config, double start, double step,
                                    tsh_tensor **out) {
    sequence s = {.start = start, .step = step};
    tsh_status status = tsh_tensor_create(mesh, config, out);
    if (status != TSH_OK) return status;
    s.tensor = *out;
    s.whole = is_integer(config->dtype);
    if (s.whole) status = check_integers(&s, config->dtype, tshi_shape_numel(&s.tensor->shape));
    if (status == TSH_OK && s.tensor->numel > 0 && tshi_tensor_is_first_term(s.tensor)) {
        status = tshi_tensor_scratch(mesh, TSH_FLOAT64, 2 * CHUNK, &s.staging);
        if (status == TSH_OK) fill_sequence(&s);
        tshi_tensor_release(s.staging);
    }
    if (status == TSH_OK) return TSH_OK;
    tshi_tensor_release(*out);
    *out = NULL;
    return status;
}
