/* Matrix products: float32 by oneDNN where it is built in, or by a CBLAS, the rest by the CBLAS. The OpenBLAS of a
 * distribution is often older than the CPU and then falls back to generic kernels; oneDNN generates code at run time for
 * the instructions that the CPU has. */
#include "base/settings.h"
#include "device/cpu/kernels/kernels.h"
#include "device/cpu/kernels/primitives.h"

#include <cblas.h>
#include <stdio.h>
#include <string.h>
#ifdef TSHARD_HAVE_ONEDNN
#include <dnnl.h>
#endif

/* Weak, because the program may run with another BLAS than it was linked with. */
#if defined(TSHARD_HAVE_OPENBLAS) && defined(__GNUC__)
extern void openblas_set_num_threads(int) __attribute__((weak));
extern char *openblas_get_config(void) __attribute__((weak));
extern char *openblas_get_corename(void) __attribute__((weak));
#endif
#if defined(TSHARD_HAVE_ONEDNN) && defined(__GNUC__)
extern void omp_set_num_threads(int) __attribute__((weak));
#endif

void tshi_cpu_product_threads(int threads) {
#if defined(TSHARD_HAVE_OPENBLAS) && defined(__GNUC__)
    if (openblas_set_num_threads) openblas_set_num_threads(threads);
#endif
#if defined(TSHARD_HAVE_ONEDNN) && defined(__GNUC__)
    if (omp_set_num_threads) omp_set_num_threads(threads); /* for the calling thread, which is the rank's */
#endif
    (void)threads;
}

void tshi_cpu_product_libraries(const tsh_device *device, char *text, size_t size) {
    char blas[128] = "a CBLAS";
#if defined(TSHARD_HAVE_OPENBLAS) && defined(__GNUC__)
    char version[32] = "";
    if (openblas_get_config && openblas_get_corename) {
        sscanf(openblas_get_config(), "OpenBLAS %31s", version);
        snprintf(blas, sizeof blas, "OpenBLAS %s (%s kernels)", version, openblas_get_corename());
    }
#endif
#ifdef TSHARD_HAVE_ONEDNN
    const dnnl_version_t *v = dnnl_version();
    char onednn[32];
    snprintf(onednn, sizeof onednn, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    tshi_products products = ((const tshi_cpu_device *)device)->products;
    if (products == TSHI_PRODUCTS_BLAS)
        snprintf(text, size, "%s", blas);
    else
        snprintf(text, size, "%s%s%s%s", onednn, products == TSHI_PRODUCTS_BY_SIZES ? " and " : " for float32, ", blas,
                 products == TSHI_PRODUCTS_BY_SIZES ? "" : " for float64");
#else
    snprintf(text, size, "%s", blas);
#endif
}

static const tshi_isa *isa_of(const tsh_device *device) {
    return ((const tshi_cpu_device *)device)->isa;
}

static void scale(const tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, double beta, void *c, int64_t ldc) {
    size_t size = tsh_dtype_size(dtype);
    for (int64_t i = 0; i < m; i++) {
        void *row = (char *)c + (size_t)i * (size_t)ldc * size;
        if (beta == 0.0)
            memset(row, 0, (size_t)n * size);
        else
            isa_of(device)->elementwise[dtype].axpby(NULL, n, beta, row, 0.0, NULL, row);
    }
}

/* --- which library multiplies float32 ----------------------------------------------------------------------------- */

#ifdef TSHARD_HAVE_ONEDNN
/* OpenBLAS, with kernels for AVX2 or more. */
static bool has_fast_blas(void) {
#if defined(TSHARD_HAVE_OPENBLAS) && defined(__GNUC__)
    static const char *const cores[] = {"Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids"};
    const char *core = openblas_get_corename ? openblas_get_corename() : "";
    for (size_t i = 0; i < sizeof cores / sizeof *cores; i++) {
        if (!strcmp(core, cores[i])) return true;
    }
#endif
    return false;
}
#endif

tsh_status tshi_cpu_products_choose(tshi_cpu_device *cpu) {
    enum { ONEDNN, BLAS, BY_SIZES };
    int choice = BY_SIZES;
    tsh_status status = tshi_setting_choice(TSHI_SETTING_PRODUCTS, &choice);
    if (status != TSH_OK) return status;
#ifdef TSHARD_HAVE_ONEDNN
    cpu->products = choice == BLAS                                    ? TSHI_PRODUCTS_BLAS
                    : choice == ONEDNN                                ? TSHI_PRODUCTS_ONEDNN
                    : cpu->isa->vector_bytes == 32 && has_fast_blas() ? TSHI_PRODUCTS_BY_SIZES
                                                                      : TSHI_PRODUCTS_ONEDNN;
#else
    cpu->products = TSHI_PRODUCTS_BLAS;
    if (choice == ONEDNN)
        return tshi_fail(TSH_ERR_UNSUPPORTED, "TSHARD_PRODUCTS is onednn, but this build has no oneDNN");
#endif
    return TSH_OK;
}

#ifdef TSHARD_HAVE_ONEDNN
/* Products for which oneDNN 2.6 with AVX2 takes up to twice OpenBLAS's time, measured on a Zen 3: A B with fewer than
 * 512 rows of A and rows of B that are multiples of 512 elements long, and A^T B with 2^17 to 2^18 elements. oneDNN was as
 * fast or faster for most of the other sizes. */
static bool blas_is_faster(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, int64_t ldb) {
    if (transpose_b) return false;
    if (!transpose_a) return ldb % 512 == 0 && m < 512;
    return k >= 48 && m * n > 1 << 17 && m * n <= 1 << 18;
}
#endif

/* A float32 product. The choice depends only on the sizes, the machine and the settings. */
static tsh_status single(const tsh_device *device, bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                         float alpha, const void *a, int64_t lda, const void *b, int64_t ldb, float beta, void *c,
                         int64_t ldc) {
#ifdef TSHARD_HAVE_ONEDNN
    tshi_products products = ((const tshi_cpu_device *)device)->products;
    bool blas = products == TSHI_PRODUCTS_BLAS ||
                (products == TSHI_PRODUCTS_BY_SIZES && blas_is_faster(transpose_a, transpose_b, m, n, k, ldb));
    if (!blas) {
        dnnl_status_t status =
            dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        if (status == dnnl_out_of_memory) return tshi_fail(TSH_ERR_MEMORY, "dnnl_sgemm: out of memory");
        return status == dnnl_success ? TSH_OK : tshi_fail(TSH_ERR_SYSTEM, "dnnl_sgemm: status %d", (int)status);
    }
#endif
    cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans, (int)m,
                (int)n, (int)k, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
    return TSH_OK;
}

static bool is_half(tsh_dtype dtype) {
    return dtype == TSH_BFLOAT16 || dtype == TSH_FLOAT16;
}

/* True for x W^T with few rows of x on one thread; with more threads a library reads the weights faster. */
static bool has_few_rows(const tsh_device *device, bool transpose_a, bool transpose_b, int64_t m) {
    return device->threads == 1 && m <= TSHI_FEW_ROWS && !transpose_a && transpose_b;
}

static tsh_status float_gemm(const tsh_device *device, tsh_dtype dtype, bool transpose_a, bool transpose_b, int64_t m,
                             int64_t n, int64_t k, double alpha, const void *a, int64_t lda, const void *b, int64_t ldb,
                             double beta, void *c, int64_t ldc) {
    if (dtype == TSH_FLOAT32 && has_few_rows(device, transpose_a, transpose_b, m)) {
        const tshi_few_rows p = {m, n, k, (float)alpha, a, lda, b, ldb, (float)beta, c, ldc, false};
        isa_of(device)->few_rows(dtype, &p);
        return TSH_OK;
    }
    if (dtype == TSH_FLOAT32)
        return single(device, transpose_a, transpose_b, m, n, k, (float)alpha, a, lda, b, ldb, (float)beta, c, ldc);
    cblas_dgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans, (int)m,
                (int)n, (int)k, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
    return TSH_OK;
}

/* --- 16-bit floats: widened tile by tile, multiplied and finished in float32 -------------------------------------- */

/* Tiles of 16-bit factors are converted to float32: without matrix units, products of bfloat16 are no faster than
 * those of float32, and the conversion costs a few per cent. Tiles of these sizes keep both costs low, and take 9 MB
 * at most. */
#define TILE_ROWS  512
#define TILE_DEPTH 2048

/* A 16-bit factor in memory, with rows `ld` elements apart, and the tile of it that is held as float32. */
typedef struct half_factor {
    const uint16_t *data;
    int64_t ld;
    bool depth_first; /* a row of `data` runs along m or n; else along k */
    float *tile;
} half_factor;

/* The epilogue of a tile: f(alpha product + beta c + bias) is stored in c. */
typedef struct half_finish {
    double beta;
    const uint16_t *bias; /* or NULL */
    tshi_unary f;
    uint16_t *pre; /* the pre-activation is saved here; or NULL */
    uint16_t *c;
    float *wide_c; /* or NULL; when it is set, there is no `c`, bias or f */
    int64_t ldc;
} half_finish;

/* Converts the tile [at, at + wide) along m or n by [from, from + depth) along k to float32. */
static void widen_tile(const tsh_device *device, tsh_dtype dtype, const half_factor *f, int64_t at, int64_t wide,
                       int64_t from, int64_t depth) {
    int64_t rows = f->depth_first ? depth : wide, cols = f->depth_first ? wide : depth;
    const uint16_t *data = f->data + (f->depth_first ? from * f->ld + at : at * f->ld + from);
    for (int64_t r = 0; r < rows; r++) isa_of(device)->widen(dtype, cols, data + r * f->ld, f->tile + r * cols);
}

/* Stores `cols` elements of `sum` to row `row` of the output, from column `at` on. */
static void finish_row(const tsh_device *device, tsh_dtype dtype, const half_finish *f, int64_t row, int64_t at,
                       int64_t cols, float *sum) {
    const tshi_elementwise_ops *ops = &isa_of(device)->elementwise[TSH_FLOAT32];
    float more[TILE_ROWS];
    int64_t to = row * f->ldc + at;
    if (f->wide_c) {
        ops->axpby(NULL, cols, 1, sum, f->beta, f->wide_c + to, f->wide_c + to);
        return;
    }
    if (f->beta != 0.0) {
        isa_of(device)->widen(dtype, cols, f->c + to, more);
        ops->axpby(NULL, cols, 1, sum, f->beta, more, sum);
    }
    if (f->bias) {
        isa_of(device)->widen(dtype, cols, f->bias + at, more);
        ops->axpby(NULL, cols, 1, sum, 1, more, sum);
    }
    if (f->pre) isa_of(device)->narrow(dtype, cols, sum, f->pre + to);
    if (f->f != TSHI_IDENTITY) ops->unary(NULL, f->f, NULL, cols, sum, sum);
    isa_of(device)->narrow(dtype, cols, sum, f->c + to);
}

/* The length of the largest equal pieces of n that are at most `most`. */
static int64_t even_pieces(int64_t n, int64_t most) {
    int64_t pieces = (n + most - 1) / most;
    return (n + pieces - 1) / pieces;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Tiles of A are converted again for each column of tiles of B; those of B are converted once if k fits in a tile. */
static tsh_status half_tiles(const tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, int64_t rows,
                             int64_t cols, int64_t depth, double alpha, half_factor a, half_factor b, float *sum,
                             const half_finish *finish) {
    tsh_status status = TSH_OK;
    for (int64_t j = 0; j < n; j += cols) {
        int64_t wide = smaller(cols, n - j);
        for (int64_t i = 0; i < m; i += rows) {
            int64_t high = smaller(rows, m - i);
            for (int64_t l = 0; l < k && status == TSH_OK; l += depth) {
                int64_t deep = smaller(depth, k - l);
                widen_tile(device, dtype, &a, i, high, l, deep);
                if (i == 0 || depth < k) widen_tile(device, dtype, &b, j, wide, l, deep);
                status = single(device, a.depth_first, !b.depth_first, high, wide, deep, (float)alpha, a.tile,
                                a.depth_first ? high : deep, b.tile, b.depth_first ? wide : deep, l > 0, sum, wide);
            }
            if (status != TSH_OK) return status;
            for (int64_t r = 0; r < high; r++) finish_row(device, dtype, finish, i + r, j, wide, sum + r * wide);
        }
    }
    return TSH_OK;
}

/* True where the few-rows kernel takes 16-bit rows of x without conversion. */
static bool takes_narrow(const tsh_device *device, tsh_dtype dtype) {
    return dtype == TSH_BFLOAT16 && isa_of(device)->multiplies_bfloat16;
}

/* The scratch memory of half_gemm: x in float32 and the sums of a piece, or a tile of each factor and of their
 * product. */
size_t tshi_cpu_product_scratch(const tsh_device *device, tsh_dtype dtype, bool transpose_a, bool transpose_b,
                                int64_t m, int64_t n, int64_t k) {
    if (!is_half(dtype)) return 0;
    if (has_few_rows(device, transpose_a, transpose_b, m)) {
        return (size_t)(m * (TILE_ROWS + (takes_narrow(device, dtype) ? 0 : k))) * sizeof(float);
    }
    int64_t rows = even_pieces(m, TILE_ROWS), cols = even_pieces(n, TILE_ROWS), depth = even_pieces(k, TILE_DEPTH);
    return (size_t)(rows * cols + (rows + cols) * depth) * sizeof(float);
}

/* y = x W^T of few rows, in pieces of W that are as long as finish_row takes. */
static tsh_status half_few_rows(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, double alpha,
                                const uint16_t *x, int64_t ldx, const uint16_t *w, int64_t ldw,
                                const half_finish *finish) {
    bool narrow = takes_narrow(device, dtype);
    int64_t wide = narrow ? 0 : k; /* float32 elements for a row of x */
    float *sum = device->ops->memory.alloc(device, tshi_cpu_product_scratch(device, dtype, false, true, m, n, k));
    if (!sum) return TSH_ERR_MEMORY;
    float *wide_x = sum + m * TILE_ROWS;
    for (int64_t i = 0; i < m; i++) isa_of(device)->widen(dtype, wide, x + i * ldx, wide_x + i * k);
    for (int64_t j = 0; j < n; j += TILE_ROWS) {
        int64_t cols = smaller(TILE_ROWS, n - j);
        const tshi_few_rows p = {.m = m,
                                 .n = cols,
                                 .k = k,
                                 .alpha = (float)alpha,
                                 .narrow_x = narrow,
                                 .x = narrow ? (const void *)x : wide_x,
                                 .ldx = narrow ? ldx : k,
                                 .w = w + j * ldw,
                                 .ldw = ldw,
                                 .y = sum,
                                 .ldy = TILE_ROWS};
        isa_of(device)->few_rows(dtype, &p);
        for (int64_t i = 0; i < m; i++) finish_row(device, dtype, finish, i, j, cols, sum + i * TILE_ROWS);
    }
    device->ops->memory.release(device, sum);
    return TSH_OK;
}

/* m, n and k are at least 1. */
static tsh_status half_gemm(tsh_device *device, tsh_dtype dtype, bool transpose_a, bool transpose_b, int64_t m,
                            int64_t n, int64_t k, double alpha, const void *a, int64_t lda, const void *b, int64_t ldb,
                            const half_finish *finish) {
    if (has_few_rows(device, transpose_a, transpose_b, m))
        return half_few_rows(device, dtype, m, n, k, alpha, a, lda, b, ldb, finish);
    int64_t rows = even_pieces(m, TILE_ROWS), cols = even_pieces(n, TILE_ROWS), depth = even_pieces(k, TILE_DEPTH);
    float *tiles =
        device->ops->memory.alloc(device, tshi_cpu_product_scratch(device, dtype, transpose_a, transpose_b, m, n, k));
    if (!tiles) return TSH_ERR_MEMORY;
    float *tile_a = tiles + rows * cols, *tile_b = tile_a + rows * depth;
    tsh_status status =
        half_tiles(device, dtype, m, n, k, rows, cols, depth, alpha, (half_factor){a, lda, transpose_a, tile_a},
                   (half_factor){b, ldb, !transpose_b, tile_b}, tiles, finish);
    device->ops->memory.release(device, tiles);
    return status;
}

/* --- kernels ------------------------------------------------------------------------------------------------------ */

tsh_status tshi_cpu_gemm(tsh_device *device, tsh_dtype dtype, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                         int64_t k, double alpha, const void *a, int64_t lda, const void *b, int64_t ldb, double beta,
                         void *c, int64_t ldc) {
    tsh_status status = tshi_check_product("the BLAS", m, n, k, lda, ldb, ldc);
    if (status != TSH_OK || m == 0 || n == 0) return status;
    if (k == 0 || alpha == 0.0) {
        scale(device, dtype, m, n, beta, c, ldc);
        return TSH_OK;
    }
    if (!is_half(dtype))
        return float_gemm(device, dtype, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    const half_finish finish = {.beta = beta, .f = TSHI_IDENTITY, .c = c, .ldc = ldc};
    return half_gemm(device, dtype, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, &finish);
}

/* float32 and float64 without a primitive: y is filled with the bias, then the product is added. */
tsh_status tshi_cpu_affine(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, const void *x,
                           const void *w, const void *b, tshi_unary f, void *pre, void *y) {
    if (is_half(dtype) && m > 0 && n > 0 && k > 0) {
        const half_finish finish = {.bias = b, .f = f, .pre = pre, .c = y, .ldc = n};
        tsh_status status = tshi_check_product("the BLAS", m, n, k, k, k, n);
        return status != TSH_OK ? status : half_gemm(device, dtype, false, true, m, n, k, 1, x, k, w, k, &finish);
    }
    void *product = pre ? pre : y;
    bool done = dtype == TSH_FLOAT32 && tshi_cpu_primitive_affine((tshi_cpu_device *)device, m, n, k, x, w, b, product);
    if (b && !done) isa_of(device)->elementwise[dtype].bias(device, m, n, NULL, b, product);
    tsh_status status = TSH_OK;
    if (!done) status = tshi_cpu_gemm(device, dtype, false, true, m, n, k, 1, x, k, w, k, b ? 1 : 0, product, n);
    if (status == TSH_OK && f != TSHI_IDENTITY)
        isa_of(device)->elementwise[dtype].unary(device, f, NULL, m * n, product, y);
    return status;
}

/* dW of 16-bit factors, accumulated and stored in float32. */
static tsh_status wide_product(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, const void *x,
                               const void *dy, double beta, float *dw) {
    const half_finish finish = {.beta = beta, .wide_c = dw, .ldc = k};
    tsh_status status = tshi_check_product("the BLAS", n, k, m, n, k, k);
    if (status != TSH_OK || n == 0 || k == 0) return status;
    if (m > 0) return half_gemm(device, dtype, true, false, n, k, m, 1, dy, n, x, k, &finish);
    scale(device, TSH_FLOAT32, n, k, beta, dw, k);
    return TSH_OK;
}

tsh_status tshi_cpu_affine_backward(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, const void *x,
                                    const void *dy, tsh_dtype to, double beta, void *dw, double beta_b, void *db) {
    bool wide = to != dtype;
    tsh_status status = wide ? wide_product(device, dtype, m, n, k, x, dy, beta, dw)
                             : tshi_cpu_gemm(device, dtype, true, false, n, k, m, 1, dy, n, x, k, beta, dw, k);
    if (status != TSH_OK || !db) return status;
    if (beta_b == 0 && wide) memset(db, 0, (size_t)n * tsh_dtype_size(to));
    if (wide)
        isa_of(device)->sum[dtype].bias_backward_wide(device, m, n, dy, db);
    else if (beta_b == 0)
        isa_of(device)->sum[dtype].over_dim(device, 1, m, n, 1, dy, db);
    else
        isa_of(device)->sum[dtype].bias_backward(device, m, n, dy, db);
    return TSH_OK;
}

tsh_status tshi_cpu_gemm_unary_backward(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k,
                                        const void *a, const void *b, tshi_unary f, const void *z, void *c) {
    tsh_status status = tshi_cpu_gemm(device, dtype, false, false, m, n, k, 1, a, k, b, n, 0, c, n);
    if (status == TSH_OK) isa_of(device)->elementwise[dtype].unary_backward(device, f, NULL, m * n, z, c, 0, c);
    return status;
}
