#include "support/checkpoints.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- models ------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    tsh_dtype dtype;
    int ndim;
    int64_t shape[4];
} tensors[TSHI_TEST_MODEL] = {
    {"weight", TSH_FLOAT32, 2, {13, 10}},    {"bias", TSH_FLOAT32, 1, {7}},
    {"scale", TSH_FLOAT64, 0, {0}},          {"empty", TSH_INT64, 3, {3, 0, 2}},
    {"cube", TSH_BFLOAT16, 4, {5, 4, 3, 6}}, {"few.rows", TSH_COMPLEX64, 2, {2, 33}},
    {"bytes", TSH_UINT8, 2, {3, 1001}},      {"large", TSH_FLOAT64, 2, {700, 601}},
};

static int largest_divisor(int n) {
    int d = 1;
    for (int i = 1; i * i <= n; i++) {
        if (n % i == 0) d = i;
    }
    return d;
}

static void make_mesh(tshi_rank *r, int way, tshi_test_model *m) {
    char axes[64];
    int ranks[64], n = r->size > 1 && way == 2 ? r->size - 1 : r->size, d = largest_divisor(n);
    if (way == 0 || way == 3) {
        snprintf(axes, sizeof axes, "model=%d", n);
    } else {
        snprintf(axes, sizeof axes, "data=%d,model=%d", d, n / d);
    }
    for (int i = 0; i < n; i++) ranks[i] = way == 2 ? r->size - 1 - i : i;
    tshi_check_ok(r, tsh_mesh_create_on(r->world, ranks, n, axes, &m->mesh));
}

/* Of units that are as few as can be. */
static tsh_layout by_units(int number, int d, int64_t n) {
    int64_t units = 2;
    while (units < n && n % units) units++;
    if (n < 2) return TSH_SHARD(d);
    return number % 3 == 1 ? TSH_SHARD_UNITS(d, units, n) : TSH_SHARD_SHARED(d, units);
}

/* Cut along dim d so that the first rank of an axis has one item, or none, and the last one most. */
static tsh_layout by_cuts(tshi_rank *r, const tsh_mesh *mesh, int axis, int number, int d, int64_t n) {
    int64_t at[65] = {0};
    uint64_t cuts = 0;
    int ranks = tsh_group_size(tsh_mesh_axis_group(mesh, axis));
    for (int i = 1; i < ranks; i++) at[i] = number % 2 ? 0 : i < n ? i : n;
    at[ranks] = n;
    tshi_check_ok(r, tsh_cuts_create(mesh, ranks, at, &cuts));
    return TSH_SHARD_CUTS(d, cuts);
}

static void choose_layout(int way, int number, int ndim, const int64_t *shape, tsh_layout layout[TSH_MAX_AXES]) {
    if (ndim == 0) return;
    if (way == 3) layout[0] = by_units(number, number ? 0 : 1, shape[number ? 0 : 1]);
    if (way == 0) layout[0] = TSH_SHARD(0);
    if (way == 1) layout[1] = TSH_SHARD(ndim - 1);
    if (way == 2 && number % 2 == 0) layout[0] = TSH_SHARD_ORDER(0, 1), layout[1] = TSH_SHARD_ORDER(0, 0);
    if (way == 2 && number % 2 == 1) layout[0] = TSH_SHARD(ndim - 1), layout[1] = TSH_SHARD(0);
}

void tshi_test_model_make(tshi_rank *r, int way, tshi_test_model *m) {
    *m = (tshi_test_model){.mesh = NULL};
    make_mesh(r, way, m);
    tshi_check_ok(r, tsh_parameters_create(r->world, &m->list));
    for (int i = 0; i < TSHI_TEST_MODEL && !r->failed; i++) {
        tsh_tensor *t = NULL;
        tsh_tensor_config config = {.dtype = tensors[i].dtype, .ndim = tensors[i].ndim};
        memcpy(config.shape, tensors[i].shape, sizeof tensors[i].shape);
        choose_layout(way, i, config.ndim, config.shape, config.layout);
        int d = i % 2 ? config.ndim - 1 : 0;
        if (way == 4 && config.ndim) config.layout[0] = by_cuts(r, m->mesh, 0, i, d, config.shape[d]);
        if (way == 4 && config.ndim) config.layout[1] = TSH_SHARD(0); /* of the same dim, or another */
        tshi_check_ok(r, tsh_tensor_create(m->mesh, &config, &t));
        tsh_cuts_release(m->mesh, config.layout[0].cuts);
        tshi_check_ok(r, tsh_parameters_add(m->list, tensors[i].name, t));
        tsh_tensor_release(t);
    }
}

void tshi_test_model_free(tshi_test_model *m) {
    tsh_parameters_destroy(m->list);
    tsh_mesh_destroy(m->mesh);
    *m = (tshi_test_model){.mesh = NULL};
}

static uint64_t bits_of(uint64_t seed, int number, int64_t index) {
    uint64_t x = (seed * 31 + (uint64_t)number) * 0x9e3779b97f4a7c15u + (uint64_t)index;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 29;
}

/* The index in the whole tensor of element i of this rank's part. */
static int64_t place(const tsh_tensor *t, const tsh_box *box, int64_t i) {
    int64_t at = 0, stride = 1;
    for (int d = t->shape.ndim - 1; d >= 0; d--) {
        at += (box->start[d] + i % box->length[d]) * stride;
        i /= box->length[d];
        stride *= t->shape.global[d];
    }
    return at;
}

/* This rank's part as it has to be, in memory for free(). */
static char *wanted(const tsh_tensor *t, int number, uint64_t seed) {
    size_t size = tsh_dtype_size(t->dtype);
    tsh_box box = tsh_tensor_box(t);
    char *part = calloc((size_t)t->numel + 1, size);
    if (!part) abort();
    for (int64_t i = 0; i < t->numel; i++) {
        uint64_t bits = bits_of(seed, number, place(t, &box, i));
        memcpy(part + (size_t)i * size, &bits, size);
    }
    return part;
}

void tshi_test_model_fill(tshi_rank *r, const tshi_test_model *m, uint64_t seed) {
    for (int i = 0; i < tsh_parameters_count(m->list); i++) {
        tsh_tensor *t = tsh_parameters_tensor(m->list, i);
        char *part = wanted(t, i, seed);
        if (t->numel > 0) tshi_check_ok(r, tsh_tensor_write(t, part, t->numel));
        free(part);
    }
}

bool tshi_test_model_is(tshi_rank *r, const tshi_test_model *m, uint64_t seed, const char *what) {
    for (int i = 0; i < tsh_parameters_count(m->list); i++) {
        tsh_tensor *t = tsh_parameters_tensor(m->list, i);
        size_t size = tsh_dtype_size(t->dtype);
        char *part = wanted(t, i, seed), *got = calloc((size_t)t->numel + 1, size);
        if (!got) abort();
        if (t->numel > 0) tshi_check_ok(r, tsh_tensor_read(t, got, t->numel));
        int64_t k = 0;
        while (k < t->numel && !memcmp(part + (size_t)k * size, got + (size_t)k * size, size)) k++;
        tshi_check(r, k == t->numel, "%s: '%s' differs at element %lld of %lld", what, tsh_parameters_name(m->list, i),
                   (long long)k, (long long)t->numel);
        free(part);
        free(got);
    }
    return !r->failed;
}
