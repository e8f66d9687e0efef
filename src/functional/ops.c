#include "functional/ops.h"

static tsh_device *device(const tsh_tensor *t) {
    return t->mesh->device;
}

static const tshi_device_ops *kernels(const tsh_tensor *t) {
    return t->mesh->device->ops;
}

static int64_t last(const tsh_tensor *t) {
    return t->shape.ndim ? t->shape.local[t->shape.ndim - 1] : 1;
}

/* All dims but the last. */
static int64_t rows(const tsh_tensor *t) {
    return t->shape.ndim ? tshi_outer(t, t->shape.ndim - 1) : 1;
}

static tsh_status mismatch(const char *what, const tsh_tensor *a, const tsh_tensor *b) {
    char x[160], y[160];
    return tshi_fail(TSH_ERR_SHAPE, "%s: %s does not fit %s", what, tsh_tensor_describe(a, x, sizeof x),
                     tsh_tensor_describe(b, y, sizeof y));
}

/* The same number of elements of the same float dtype; NULL tensors pass. */
static tsh_status same(const char *what, const tsh_tensor *a, const tsh_tensor *b) {
    if (!a || !b) return TSH_OK;
    if (a->dtype != b->dtype) {
        return tshi_fail(TSH_ERR_DTYPE, "%s: %s and %s: one dtype wanted", what, tsh_dtype_name(a->dtype),
                         tsh_dtype_name(b->dtype));
    }
    tsh_status status = tshi_check_computes(device(a), a->dtype, what);
    if (status != TSH_OK) return status;
    return a->numel == b->numel ? TSH_OK : mismatch(what, a, b);
}

/* --- matrix products and bias ------------------------------------------------------------------------------------- */

tsh_status tshi_op_matmul(const tsh_tensor *a, bool transpose_a, const tsh_tensor *b, bool transpose_b, double beta,
                          tsh_tensor *c) {
    int64_t m = transpose_a ? last(a) : rows(a), k = transpose_a ? rows(a) : last(a);
    int64_t n = transpose_b ? rows(b) : last(b), k2 = transpose_b ? last(b) : rows(b);
    if (a->dtype != b->dtype || a->dtype != c->dtype) return tshi_fail(TSH_ERR_DTYPE, "matmul: dtypes differ");
    if (k != k2) return mismatch("matmul", a, b);
    if (m != rows(c) || n != last(c)) return mismatch("matmul", a, c);
    return kernels(a)->gemm(device(a), a->dtype, transpose_a, transpose_b, m, n, k, 1, tshi_data(a), last(a),
                            tshi_data(b), last(b), beta, tshi_data(c), n);
}

/* x, w and y of an affine map, or dy in y's place. */
static tsh_status check_affine(const tsh_tensor *x, const tsh_tensor *w, const tsh_tensor *b, const tsh_tensor *y) {
    if (x->dtype != w->dtype || x->dtype != y->dtype || (b && b->dtype != x->dtype)) {
        return tshi_fail(TSH_ERR_DTYPE, "affine: dtypes differ");
    }
    if (last(x) != last(w)) return mismatch("affine", x, w);
    if (rows(x) != rows(y) || last(y) != rows(w)) return mismatch("affine", w, y);
    return b && b->numel != last(y) ? mismatch("affine", b, y) : TSH_OK;
}

tsh_status tshi_op_affine(const tsh_tensor *x, const tsh_tensor *w, const tsh_tensor *b, tshi_unary f, tsh_tensor *pre,
                          tsh_tensor *y) {
    tsh_status status = check_affine(x, w, b, y);
    if (status == TSH_OK) status = same("affine", y, pre);
    if (status != TSH_OK) return status;
    return kernels(x)->affine(device(x), x->dtype, rows(x), last(y), last(x), tshi_data(x), tshi_data(w),
                              b ? tshi_data(b) : NULL, f, pre ? tshi_data(pre) : NULL, tshi_data(y));
}

tsh_status tshi_op_affine_backward(const tsh_tensor *x, const tsh_tensor *dy, double beta, tsh_tensor *dw,
                                   double beta_b, tsh_tensor *db) {
    tsh_status status = check_affine(x, dw, db, dy);
    if (status != TSH_OK) return status;
    return kernels(x)->affine_backward(device(x), x->dtype, rows(x), last(dy), last(x), tshi_data(x), tshi_data(dy),
                                       beta, tshi_data(dw), beta_b, db ? tshi_data(db) : NULL);
}

tsh_status tshi_op_bias(const tsh_tensor *x, const tsh_tensor *b, tsh_tensor *y) {
    tsh_status status = same("bias", x, y);
    if (status != TSH_OK) return status;
    if (b->numel != last(y) || b->dtype != y->dtype) return mismatch("bias", b, y);
    kernels(y)->bias(device(y), y->dtype, rows(y), last(y), x ? tshi_data(x) : NULL, tshi_data(b), tshi_data(y));
    return TSH_OK;
}

tsh_status tshi_op_bias_backward(const tsh_tensor *dy, tsh_tensor *db) {
    if (db->numel != last(dy) || db->dtype != dy->dtype) return mismatch("bias", db, dy);
    kernels(dy)->bias_backward(device(dy), dy->dtype, rows(dy), last(dy), tshi_data(dy), tshi_data(db));
    return TSH_OK;
}

/* --- elementwise -------------------------------------------------------------------------------------------------- */

tsh_status tshi_op_unary(tshi_unary f, const tsh_tensor *x, tsh_tensor *y) {
    tsh_status status = same("unary", x, y);
    if (status == TSH_OK) kernels(x)->unary(device(x), f, x->dtype, x->numel, tshi_data(x), tshi_data(y));
    return status;
}

tsh_status tshi_op_unary_backward(tshi_unary f, const tsh_tensor *x, const tsh_tensor *dy, double beta,
                                  tsh_tensor *dx) {
    tsh_status status = same("unary", x, dy);
    if (status == TSH_OK) status = same("unary", x, dx);
    if (status == TSH_OK) {
        kernels(x)->unary_backward(device(x), f, x->dtype, x->numel, tshi_data(x), tshi_data(dy), beta, tshi_data(dx));
    }
    return status;
}

tsh_status tshi_op_axpby(double a, const tsh_tensor *x, double b, const tsh_tensor *y, tsh_tensor *z) {
    tsh_status status = same("add", x, z);
    if (status == TSH_OK) status = same("add", x, y);
    if (status == TSH_OK) {
        kernels(x)->axpby(device(x), x->dtype, x->numel, a, tshi_data(x), b, y ? tshi_data(y) : NULL, tshi_data(z));
    }
    return status;
}

tsh_status tshi_op_mul(const tsh_tensor *x, const tsh_tensor *y, double beta, tsh_tensor *z) {
    tsh_status status = same("mul", x, y);
    if (status == TSH_OK) status = same("mul", x, z);
    if (status == TSH_OK)
        kernels(x)->mul(device(x), x->dtype, x->numel, tshi_data(x), tshi_data(y), beta, tshi_data(z));
    return status;
}

tsh_status tshi_op_dropout(const tsh_tensor *x, uint64_t seed, uint64_t stream, double p, double beta, tsh_tensor *y) {
    tsh_status status = same("dropout", x, y);
    size_t size = tsh_dtype_size(x->dtype);
    if (status != TSH_OK || x->numel == 0) return status;
    for (int64_t i = 0; i < tshi_tensor_blocks(x); i++) {
        int64_t offset;
        tshi_block block = tshi_tensor_block(x, i, &offset);
        size_t at = (size_t)offset * size;
        kernels(x)->dropout(device(x), x->dtype, &block, seed, stream, p, (char *)tshi_data(x) + at, beta,
                            (char *)tshi_data(y) + at);
    }
    return TSH_OK;
}

/* --- sums and slices ---------------------------------------------------------------------------------------------- */

/* A tensor around dim; dim < 0: all of it in one run. */
typedef struct around {
    int64_t outer, n, inner;
} around;

static around around_dim(const tsh_tensor *x, int dim) {
    if (dim < 0) return (around){1, x->numel, 1};
    return (around){tshi_outer(x, dim), x->shape.local[dim], tshi_inner(x, dim)};
}

tsh_status tshi_op_sum(const tsh_tensor *x, int dim, double scale, tsh_tensor *y) {
    around a = around_dim(x, dim);
    if (y->numel != a.outer * a.inner || x->dtype != y->dtype) return mismatch("sum", x, y);
    kernels(x)->sum(device(x), x->dtype, a.outer, a.n, a.inner, scale, tshi_data(x), tshi_data(y));
    return TSH_OK;
}

tsh_status tshi_op_sum_backward(const tsh_tensor *dy, int dim, double scale, tsh_tensor *dx) {
    around a = around_dim(dx, dim);
    if (dy->numel != a.outer * a.inner || dx->dtype != dy->dtype) return mismatch("sum", dy, dx);
    kernels(dx)->sum_backward(device(dx), dx->dtype, a.outer, a.n, a.inner, scale, tshi_data(dy), tshi_data(dx));
    return TSH_OK;
}

/* Bytes of the runs that `part` is of `whole`. */
typedef struct window {
    int64_t outer;
    size_t bytes, stride, offset;
} window;

static tsh_status find_window(const tsh_tensor *whole, int dim, int64_t start, const tsh_tensor *part, window *out) {
    around w = around_dim(whole, dim), p = around_dim(part, dim);
    if (w.outer != p.outer || w.inner != p.inner || start < 0 || start + p.n > w.n || whole->dtype != part->dtype) {
        return mismatch("slice", part, whole);
    }
    size_t piece = (size_t)w.inner * tsh_dtype_size(whole->dtype);
    *out = (window){w.outer, (size_t)p.n * piece, (size_t)w.n * piece, (size_t)start * piece};
    return TSH_OK;
}

tsh_status tshi_op_slice(const tsh_tensor *whole, int dim, int64_t start, tsh_tensor *part) {
    window w = {0};
    tsh_status status = find_window(whole, dim, start, part, &w);
    if (status != TSH_OK) return status;
    kernels(whole)->copy_strided(device(whole), w.outer, w.bytes, (char *)tshi_data(whole) + w.offset, w.stride,
                                 tshi_data(part), w.bytes);
    return TSH_OK;
}

tsh_status tshi_op_insert(const tsh_tensor *part, int dim, int64_t start, tsh_tensor *whole) {
    window w = {0};
    tsh_status status = find_window(whole, dim, start, part, &w);
    if (status != TSH_OK) return status;
    kernels(whole)->copy_strided(device(whole), w.outer, w.bytes, tshi_data(part), w.bytes,
                                 (char *)tshi_data(whole) + w.offset, w.stride);
    return TSH_OK;
}

tsh_status tshi_op_insert_add(const tsh_tensor *part, int dim, int64_t start, tsh_tensor *whole) {
    window w = {0};
    tsh_status status = find_window(whole, dim, start, part, &w);
    if (status != TSH_OK) return status;
    size_t size = tsh_dtype_size(whole->dtype);
    for (int64_t o = 0; o < w.outer; o++) {
        char *to = (char *)tshi_data(whole) + (size_t)o * w.stride + w.offset;
        const char *from = (const char *)tshi_data(part) + (size_t)o * w.bytes;
        kernels(whole)->axpby(device(whole), whole->dtype, (int64_t)(w.bytes / size), 1, from, 1, to, to);
    }
    return TSH_OK;
}

/* --- softmax ------------------------------------------------------------------------------------------------------ */

static tsh_status check_rows(const char *what, const tsh_tensor *x, around a, const tsh_tensor *stat) {
    return stat->numel == a.outer * a.inner && stat->dtype == tshi_dtype_sum(x->dtype) ? TSH_OK
                                                                                       : mismatch(what, x, stat);
}

tsh_status tshi_op_softmax_max(const tsh_tensor *x, int dim, tsh_tensor *max) {
    around a = around_dim(x, dim);
    tsh_status status = check_rows("softmax", x, a, max);
    if (status == TSH_OK)
        kernels(x)->softmax_max(device(x), x->dtype, a.outer, a.n, a.inner, tshi_data(x), tshi_data(max));
    return status;
}

tsh_status tshi_op_softmax_sum(const tsh_tensor *x, int dim, const tsh_tensor *max, tsh_tensor *sum) {
    around a = around_dim(x, dim);
    tsh_status status = check_rows("softmax", x, a, max);
    if (status == TSH_OK) status = check_rows("softmax", x, a, sum);
    if (status == TSH_OK) {
        kernels(x)->softmax_sum(device(x), x->dtype, a.outer, a.n, a.inner, tshi_data(x), tshi_data(max),
                                tshi_data(sum));
    }
    return status;
}

tsh_status tshi_op_softmax(bool log, const tsh_tensor *x, int dim, const tsh_tensor *max, const tsh_tensor *sum,
                           tsh_tensor *y) {
    around a = around_dim(x, dim);
    tsh_status status = same("softmax", x, y);
    if (status == TSH_OK) {
        kernels(x)->softmax(device(x), log, x->dtype, a.outer, a.n, a.inner, tshi_data(x), tshi_data(max),
                            tshi_data(sum), tshi_data(y));
    }
    return status;
}

tsh_status tshi_op_softmax_dot(bool log, const tsh_tensor *y, int dim, const tsh_tensor *dy, tsh_tensor *dot) {
    around a = around_dim(y, dim);
    tsh_status status = same("softmax", y, dy);
    if (status == TSH_OK) status = check_rows("softmax", y, a, dot);
    if (status == TSH_OK) {
        kernels(y)->softmax_dot(device(y), log, y->dtype, a.outer, a.n, a.inner, tshi_data(y), tshi_data(dy),
                                tshi_data(dot));
    }
    return status;
}

tsh_status tshi_op_softmax_backward(bool log, const tsh_tensor *y, int dim, const tsh_tensor *dy, const tsh_tensor *dot,
                                    tsh_tensor *dx) {
    around a = around_dim(y, dim);
    tsh_status status = same("softmax", y, dy);
    if (status == TSH_OK) status = same("softmax", y, dx);
    if (status == TSH_OK) {
        kernels(y)->softmax_backward(device(y), log, y->dtype, a.outer, a.n, a.inner, tshi_data(y), tshi_data(dy),
                                     tshi_data(dot), tshi_data(dx));
    }
    return status;
}

/* --- lookup and norms --------------------------------------------------------------------------------------------- */

static tsh_status check_lookup(const tsh_tensor *table, const tsh_tensor *ids, const tsh_tensor *y) {
    if (ids->dtype != TSH_INT64 || table->dtype != y->dtype) {
        return tshi_fail(TSH_ERR_DTYPE, "lookup: int64 ids and one float dtype wanted");
    }
    bool fits = table->shape.ndim == 2 && y->numel == ids->numel * table->shape.local[1];
    return fits ? TSH_OK : mismatch("lookup", table, y);
}

tsh_status tshi_op_lookup(const tsh_tensor *table, const tsh_tensor *ids, int64_t start, int64_t vocabulary,
                          tsh_tensor *y) {
    tsh_status status = check_lookup(table, ids, y);
    if (status != TSH_OK) return status;
    const int64_t *id = tshi_data(ids);
    int64_t bad = kernels(table)->ids_check(device(table), ids->numel, id, vocabulary);
    if (bad >= 0) {
        return tshi_fail(TSH_ERR_RANGE, "id %lld at place %lld, the vocabulary is [0, %lld)", (long long)id[bad],
                         (long long)bad, (long long)vocabulary);
    }
    kernels(table)->embedding(device(table), table->dtype, ids->numel, id, start, table->shape.local[0],
                              table->shape.local[1], tshi_data(table), tshi_data(y));
    return TSH_OK;
}

tsh_status tshi_op_lookup_backward(const tsh_tensor *dy, const tsh_tensor *ids, int64_t start, int64_t padding,
                                   tsh_tensor *dtable) {
    tsh_status status = check_lookup(dtable, ids, dy);
    if (status != TSH_OK) return status;
    kernels(dy)->embedding_backward(device(dy), dy->dtype, ids->numel, tshi_data(ids), start, dtable->shape.local[0],
                                    dtable->shape.local[1], padding, tshi_data(dy), tshi_data(dtable));
    return TSH_OK;
}

static void *data_or_null(const tsh_tensor *t) {
    return t ? tshi_data(t) : NULL;
}

tsh_status tshi_op_norm(bool rms, const tsh_tensor *x, const tsh_tensor *gamma, const tsh_tensor *beta, double eps,
                        tsh_tensor *y, tsh_tensor *mean, tsh_tensor *rstd) {
    tsh_status status = same("norm", x, y);
    if (status != TSH_OK) return status;
    if (rstd->numel != rows(x) || (gamma && gamma->numel != last(x)) || (beta && beta->numel != last(x))) {
        return mismatch("norm", x, gamma ? gamma : rstd);
    }
    kernels(x)->norm(device(x), rms, x->dtype, rows(x), last(x), eps, tshi_data(x), data_or_null(gamma),
                     data_or_null(beta), tshi_data(y), data_or_null(mean), tshi_data(rstd));
    return TSH_OK;
}

tsh_status tshi_op_norm_backward(bool rms, const tsh_tensor *x, const tsh_tensor *gamma, const tsh_tensor *mean,
                                 const tsh_tensor *rstd, const tsh_tensor *dy, double before, tsh_tensor *dx,
                                 tsh_tensor *dgamma, tsh_tensor *dbeta) {
    tsh_status status = same("norm", x, dy);
    if (status == TSH_OK) status = same("norm", x, dx);
    if (status != TSH_OK) return status;
    kernels(x)->norm_backward(device(x), rms, x->dtype, rows(x), last(x), tshi_data(x), data_or_null(gamma),
                              data_or_null(mean), tshi_data(rstd), tshi_data(dy), before, data_or_null(dx),
                              data_or_null(dgamma), data_or_null(dbeta));
    return TSH_OK;
}
