#include "support/tensors.h"
#include "device/cpu/isa/kernels.h"
#include "support/values.h"
#include "tshard/functional.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double tshi_test_integer(int seed, int64_t i) {
    return (double)(tshi_mix(tshi_mix((uint64_t)seed) + (uint64_t)i) % 17) - 8;
}

void tshi_test_integers(int seed, int64_t n, double *out) {
    for (int64_t i = 0; i < n; i++) out[i] = tshi_test_integer(seed, i);
}

tsh_tensor *tshi_test_tensor(tshi_rank *r, const tsh_mesh *mesh, const tsh_tensor_config *config, const double *whole) {
    tsh_tensor *t = NULL;
    int64_t n = 1;
    for (int d = 0; d < config->ndim; d++) n *= config->shape[d];
    void *elements = malloc((size_t)n * 8 + 8);
    if (elements) tshi_cpu_convert_base(NULL, n, TSH_FLOAT64, whole, config->dtype, elements);
    if (tshi_check(r, elements, "no memory") && tshi_check_ok(r, tsh_tensor_create(mesh, config, &t))) {
        tshi_check_ok(r, tsh_tensor_write_whole(t, elements));
    }
    free(elements);
    return t;
}

tsh_tensor *tshi_test_leaf(tshi_rank *r, const tsh_mesh *mesh, const tsh_tensor_config *config, const double *whole) {
    tsh_tensor *t = tshi_test_tensor(r, mesh, config, whole);
    if (t) tshi_check_ok(r, tsh_tensor_require_grad(t, true));
    return t;
}

void tshi_test_set_grad(tshi_rank *r, tsh_tape *tape, tsh_tensor *t, const double *whole) {
    tsh_tensor_config config = {.dtype = t->dtype, .ndim = t->shape.ndim};
    memcpy(config.shape, t->shape.global, sizeof config.shape);
    memcpy(config.layout, t->layout, sizeof config.layout);
    tsh_tensor *g = tshi_test_tensor(r, t->mesh, &config, whole);
    tshi_check_ok(r, tsh_backward_with(tape, tsh_mul(tape, t, g), NULL));
    tshi_check_ok(r, tsh_tape_reset(tape));
    tsh_tensor_release(g);
}

double tshi_test_element(const tsh_tensor *t, int64_t i) {
    double value;
    const char *data = tsh_tensor_data(t);
    tshi_cpu_convert_base(NULL, 1, t->dtype, data + (size_t)i * tsh_dtype_size(t->dtype), TSH_FLOAT64, &value);
    return value;
}

int64_t tshi_test_place(const tsh_tensor *t, int64_t i) {
    int64_t at = 0, stride = 1;
    for (int d = t->shape.ndim - 1; d >= 0; d--) {
        at += (tshi_shape_start(t->mesh, &t->shape, t->layout, d) + i % t->shape.local[d]) * stride;
        i /= t->shape.local[d];
        stride *= t->shape.global[d];
    }
    return at;
}

void tshi_test_same(tshi_rank *r, const char *what, const tsh_tensor *got, const double *whole, double tolerance) {
    char text[160];
    if (!tshi_check(r, got, "%s: no tensor", what)) return;
    for (int a = 0; a < got->mesh->axes; a++) {
        bool part = got->layout[a].kind == TSH_KIND_REPLICATED || got->layout[a].kind == TSH_KIND_SHARD;
        if (!tshi_check(r, part, "%s is %s", what, tsh_tensor_describe(got, text, sizeof text))) return;
    }
    for (int64_t i = 0; i < got->numel; i++) {
        double a = tshi_test_element(got, i), b = whole[tshi_test_place(got, i)];
        bool close = a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= tolerance * fmax(1, fabs(b));
        if (!tshi_check(r, close, "%s, %s: element %lld is %.17g, wanted %.17g", what,
                        tsh_tensor_describe(got, text, sizeof text), (long long)i, a, b)) {
            return;
        }
    }
}

void tshi_test_same_grad(tshi_rank *r, const char *what, const tsh_tensor *t, const double *whole, double tolerance) {
    if (tshi_check(r, t && tsh_tensor_grad(t), "%s: no gradient", what)) {
        tshi_test_same(r, what, tsh_tensor_grad(t), whole, tolerance);
    }
}

void tshi_test_calls(tshi_rank *r, const char *what, tsh_group *group, const tsh_communication_stats *wanted) {
    tsh_communication_stats got = tsh_group_stats(group);
    for (int op = 0; op < TSH_COLLECTIVE_COUNT; op++) {
        tshi_check(r, got.calls[op] == wanted->calls[op] && got.bytes[op] == wanted->bytes[op],
                   "%s: %llu %s of %llu bytes, wanted %llu of %llu", what, (unsigned long long)got.calls[op],
                   tsh_collective_name((tsh_collective)op), (unsigned long long)got.bytes[op],
                   (unsigned long long)wanted->calls[op], (unsigned long long)wanted->bytes[op]);
    }
    tsh_group_reset_stats(group);
}

void tshi_test_expect(tsh_communication_stats *stats, const tsh_group *group, tsh_collective op, int64_t elements,
                      size_t size) {
    uint64_t p = (uint64_t)tsh_group_size(group), bytes = (uint64_t)elements * size * (p - 1) / p;
    if (p == 1) return;
    stats->calls[op]++;
    stats->bytes[op] += op == TSH_COLLECTIVE_ALL_REDUCE ? 2 * bytes : bytes;
}
