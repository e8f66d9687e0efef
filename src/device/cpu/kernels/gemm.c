/* Matrix products: float32 by oneDNN where it is built in, or by a CBLAS, the rest by the CBLAS. The OpenBLAS of a
 * distribution is often older than the CPU and then falls back to generic kernels; oneDNN generates code at run time
 * for the instructions that the CPU has. */
#include "base/settings.h"
#include "device/cpu/kernels/kernels.h"
#include "device/cpu/kernels/primitives.h"
#include "device/cpu/parallel.h"

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

/* The kernels for all threads, also under a trace. */
static const tshi_device_ops *ops_of(const tsh_device *device) {
    return &((const tshi_cpu_device *)device)->ops;
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
 * 512 rows of A and rows of B that are multiples of 512 elements long, and A^T B with 2^17 to 2^18 elements. oneDNN was
 * as fast or faster for most of the other sizes. */
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

static bool is_narrow(tsh_dtype dtype) {
    return dtype == TSH_BFLOAT16 || dtype == TSH_FLOAT16;
}

/* True for x W^T with few rows of x on one thread; with more threads a library reads the weights faster. */
static bool has_few_rows(int threads, bool transpose_a, bool transpose_b, int64_t m) {
    return threads == 1 && m <= TSHI_FEW_ROWS && !transpose_a && transpose_b;
}

static tsh_status float_gemm(const tsh_device *device, int threads, tsh_dtype dtype, bool transpose_a, bool transpose_b,
                             int64_t m, int64_t n, int64_t k, double alpha, const void *a, int64_t lda, const void *b,
                             int64_t ldb, double beta, void *c, int64_t ldc) {
    if (dtype == TSH_FLOAT32 && has_few_rows(threads, transpose_a, transpose_b, m)) {
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

/* Tiles of 16-bit factors are converted to float32, unless the CPU multiplies bfloat16; the conversion costs a few per
 * cent. Tiles of these sizes keep its cost and the memory low: 9 MB at most, or 18 MB with the second depth, at which
 * fewer factors have to be packed. */
#define TILE_ROWS    512
#define TILE_DEPTH   2048
#define NARROW_DEPTH 4096

typedef enum narrow_form { NOTHING, PACKED, WIDENED } narrow_form;

/* A 16-bit factor in memory, with rows `ld` elements apart, and the piece of it that `tile` holds. */
typedef struct narrow_factor {
    const uint16_t *data;
    int64_t ld;
    bool depth_first; /* a row of `data` runs along m or n; else along k */
    void *tile;       /* of float32, or packed 16-bit elements */
    narrow_form held;
    int64_t held_at, held_from;
} narrow_factor;

/* The epilogue of a tile: f(alpha product + beta c + bias) is stored in c. */
typedef struct narrow_finish {
    double beta;
    const uint16_t *bias; /* or NULL */
    tshi_unary f;
    uint16_t *pre; /* the pre-activation is saved here; or NULL */
    uint16_t *c;
    float *wide_c; /* or NULL; when it is set, there is no `c`, bias or f */
    int64_t ldc;
} narrow_finish;

/* Rows of a tile, which threads share. */
typedef struct narrow_rows {
    const tsh_device *device;
    tsh_dtype dtype;
    int64_t cols;
    const uint16_t *data; /* of widen_rows */
    int64_t ld;
    void *tile;
    const narrow_finish *finish; /* of finish_rows; the tile begins at (row, at) of the output */
    int64_t row, at;
} narrow_rows;

/* The piece [at, at + wide) along m or n by [from, from + depth) along k in memory, its rows and their length. */
static const uint16_t *piece_of(const narrow_factor *f, int64_t at, int64_t wide, int64_t from, int64_t depth,
                                int64_t *rows, int64_t *cols) {
    *rows = f->depth_first ? depth : wide;
    *cols = f->depth_first ? wide : depth;
    return f->data + (f->depth_first ? from * f->ld + at : at * f->ld + from);
}

/* The tile holds the piece already; from here on it does. */
static bool holds(narrow_factor *f, narrow_form form, int64_t at, int64_t from) {
    bool held = f->held == form && f->held_at == at && f->held_from == from;
    f->held = form;
    f->held_at = at;
    f->held_from = from;
    return held;
}

static void widen_rows(const void *call, int range, int64_t from, int64_t end) {
    const narrow_rows *c = call;
    for (int64_t r = from; r < end; r++)
        isa_of(c->device)->widen(c->dtype, c->cols, c->data + r * c->ld, (float *)c->tile + r * c->cols);
}

static const float *widen_piece(const tsh_device *device, tsh_dtype dtype, narrow_factor *f, int64_t at, int64_t wide,
                                int64_t from, int64_t depth) {
    int64_t rows, cols;
    const uint16_t *data = piece_of(f, at, wide, from, depth, &rows, &cols);
    const narrow_rows c = {.device = device, .dtype = dtype, .cols = cols, .data = data, .ld = f->ld, .tile = f->tile};
    if (!holds(f, WIDENED, at, from)) tshi_parallel(device, rows, 1, (double)cols, widen_rows, &c);
    return f->tile;
}

/* The piece in packed rows: in place, or a copy. */
static const uint16_t *pack_piece(narrow_factor *f, int64_t at, int64_t wide, int64_t from, int64_t depth) {
    int64_t rows, cols;
    const uint16_t *data = piece_of(f, at, wide, from, depth, &rows, &cols);
    uint16_t *tile = f->tile;
    if (cols == f->ld) return data;
    if (holds(f, PACKED, at, from)) return tile;
    for (int64_t r = 0; r < rows; r++) memcpy(tile + r * cols, data + r * f->ld, (size_t)cols * sizeof *tile);
    return tile;
}

/* Stores `cols` elements of `sum` to row `row` of the output, from column `at` on. */
static void finish_row(const tsh_device *device, tsh_dtype dtype, const narrow_finish *f, int64_t row, int64_t at,
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

static void finish_rows(const void *call, int range, int64_t from, int64_t end) {
    const narrow_rows *c = call;
    for (int64_t r = from; r < end; r++)
        finish_row(c->device, c->dtype, c->finish, c->row + r, c->at, c->cols, (float *)c->tile + r * c->cols);
}

/* The length of the largest equal pieces of n that are at most `most`. */
static int64_t even_pieces(int64_t n, int64_t most) {
    int64_t pieces = (n + most - 1) / most;
    return (n + pieces - 1) / pieces;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* A tile of the output, [at.i, at.i + high) by [at.j, at.j + wide), and a piece of k. */
typedef struct narrow_step {
    int64_t i, high, j, wide, from, depth;
} narrow_step;

/* sum = alpha A B of a piece, added to what it holds from the second piece on. */
static tsh_status narrow_multiply(const tsh_device *device, tsh_dtype dtype, const narrow_step *s, double alpha,
                                  narrow_factor *a, narrow_factor *b, float *sum) {
    if (alpha == 1 && tshi_cpu_multiplies_narrow(device, dtype)) {
        const uint16_t *x = pack_piece(a, s->i, s->high, s->from, s->depth);
        const uint16_t *y = pack_piece(b, s->j, s->wide, s->from, s->depth);
        if (tshi_cpu_primitive_narrow((tshi_cpu_device *)(uintptr_t)device, a->depth_first, !b->depth_first, s->high,
                                      s->wide, s->depth, x, y, s->from > 0, sum))
            return TSH_OK;
    }
    const float *x = widen_piece(device, dtype, a, s->i, s->high, s->from, s->depth);
    const float *y = widen_piece(device, dtype, b, s->j, s->wide, s->from, s->depth);
    return single(device, a->depth_first, !b->depth_first, s->high, s->wide, s->depth, (float)alpha, x,
                  a->depth_first ? s->high : s->depth, y, b->depth_first ? s->wide : s->depth, s->from > 0, sum,
                  s->wide);
}

/* Pieces of A are converted again for each column of tiles of B; those of B are converted once if k is one piece. */
static tsh_status narrow_tiles(const tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, int64_t rows,
                               int64_t cols, int64_t depth, double alpha, narrow_factor a, narrow_factor b, float *sum,
                               const narrow_finish *finish) {
    for (int64_t j = 0; j < n; j += cols) {
        int64_t wide = smaller(cols, n - j);
        for (int64_t i = 0; i < m; i += rows) {
            int64_t high = smaller(rows, m - i);
            for (int64_t l = 0; l < k; l += depth) {
                const narrow_step step = {i, high, j, wide, l, smaller(depth, k - l)};
                tsh_status status = narrow_multiply(device, dtype, &step, alpha, &a, &b, sum);
                if (status != TSH_OK) return status;
            }
            const narrow_rows done = {
                .device = device, .dtype = dtype, .cols = wide, .tile = sum, .finish = finish, .row = i, .at = j};
            tshi_parallel(device, high, 1, 2 * (double)wide, finish_rows, &done);
        }
    }
    return TSH_OK;
}

/* True where the few-rows kernel takes 16-bit rows of x without conversion. */
static bool takes_narrow(const tsh_device *device, tsh_dtype dtype) {
    return dtype == TSH_BFLOAT16 && isa_of(device)->multiplies_bfloat16;
}

static int64_t most_depth(const tsh_device *device, tsh_dtype dtype) {
    return tshi_cpu_multiplies_narrow(device, dtype) ? NARROW_DEPTH : TILE_DEPTH;
}

/* The scratch memory of narrow_gemm: x in float32 and the sums of a piece, or a tile of each factor and of their
 * product. */
static size_t narrow_scratch(const tsh_device *device, int threads, tsh_dtype dtype, bool transpose_a, bool transpose_b,
                             int64_t m, int64_t n, int64_t k) {
    if (has_few_rows(threads, transpose_a, transpose_b, m)) {
        return (size_t)(m * (TILE_ROWS + (takes_narrow(device, dtype) ? 0 : k))) * sizeof(float);
    }
    int64_t rows = even_pieces(m, TILE_ROWS), cols = even_pieces(n, TILE_ROWS),
            depth = even_pieces(k, most_depth(device, dtype));
    return (size_t)(rows * cols + (rows + cols) * depth) * sizeof(float);
}

/* y = x W^T of few rows, in pieces of W that are as long as finish_row takes. */
static tsh_status narrow_few_rows(const tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k,
                                  double alpha, const uint16_t *x, int64_t ldx, const uint16_t *w, int64_t ldw,
                                  float *sum, const narrow_finish *finish) {
    bool narrow = takes_narrow(device, dtype);
    int64_t wide = narrow ? 0 : k; /* float32 elements for a row of x */
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
    return TSH_OK;
}

/* m, n and k are at least 1. */
static tsh_status narrow_gemm(const tsh_device *device, int threads, tsh_dtype dtype, bool transpose_a,
                              bool transpose_b, int64_t m, int64_t n, int64_t k, double alpha, const void *a,
                              int64_t lda, const void *b, int64_t ldb, float *scratch, const narrow_finish *finish) {
    if (has_few_rows(threads, transpose_a, transpose_b, m))
        return narrow_few_rows(device, dtype, m, n, k, alpha, a, lda, b, ldb, scratch, finish);
    int64_t rows = even_pieces(m, TILE_ROWS), cols = even_pieces(n, TILE_ROWS),
            depth = even_pieces(k, most_depth(device, dtype));
    float *tile_a = scratch + rows * cols, *tile_b = tile_a + rows * depth;
    return narrow_tiles(device, dtype, m, n, k, rows, cols, depth, alpha,
                        (narrow_factor){a, lda, transpose_a, tile_a, NOTHING, 0, 0},
                        (narrow_factor){b, ldb, !transpose_b, tile_b, NOTHING, 0, 0}, scratch, finish);
}

/* narrow_gemm of one product, on all threads. */
static tsh_status narrow_product(tsh_device *device, tsh_dtype dtype, bool transpose_a, bool transpose_b, int64_t m,
                                 int64_t n, int64_t k, const void *a, int64_t lda, const void *b, int64_t ldb,
                                 const narrow_finish *finish) {
    const int threads = device->threads;
    const size_t bytes = narrow_scratch(device, threads, dtype, transpose_a, transpose_b, m, n, k);
    float *scratch = device->ops->memory.alloc(device, bytes);
    if (!scratch) return TSH_ERR_MEMORY;
    tsh_status status =
        narrow_gemm(device, threads, dtype, transpose_a, transpose_b, m, n, k, 1, a, lda, b, ldb, scratch, finish);
    device->ops->memory.release(device, scratch);
    return status;
}

/* --- products of a batch ------------------------------------------------------------------------------------------ */

typedef struct batch {
    const tsh_device *device;
    int threads; /* of each product */
    tsh_dtype dtype;
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    double alpha;
    const char *a;
    int64_t lda;
    const char *b;
    int64_t ldb;
    double beta;
    char *c;
    int64_t ldc;
    size_t bytes_a, bytes_b, bytes_c; /* from a matrix to the next */
    char *scratch;
    size_t scratch_bytes; /* of a range */
    _Atomic int failed;   /* the status of a product that failed */
} batch;

static tsh_status multiply_one(const batch *p, const void *a, const void *b, void *c, float *scratch) {
    if (p->k == 0 || p->alpha == 0.0) {
        scale(p->device, p->dtype, p->m, p->n, p->beta, c, p->ldc);
        return TSH_OK;
    }
    if (!is_narrow(p->dtype))
        return float_gemm(p->device, p->threads, p->dtype, p->transpose_a, p->transpose_b, p->m, p->n, p->k, p->alpha,
                          a, p->lda, b, p->ldb, p->beta, c, p->ldc);
    const narrow_finish finish = {.beta = p->beta, .f = TSHI_IDENTITY, .c = c, .ldc = p->ldc};
    return narrow_gemm(p->device, p->threads, p->dtype, p->transpose_a, p->transpose_b, p->m, p->n, p->k, p->alpha, a,
                       p->lda, b, p->ldb, scratch, &finish);
}

static void multiply_range(const void *call, int range, int64_t from, int64_t end) {
    batch *p = *(batch *const *)call;
    float *scratch = (float *)(p->scratch + (size_t)range * p->scratch_bytes);
    for (int64_t i = from; i < end && !p->failed; i++) {
        tsh_status status = multiply_one(p, p->a + (size_t)i * p->bytes_a, p->b + (size_t)i * p->bytes_b,
                                         p->c + (size_t)i * p->bytes_c, scratch);
        if (status != TSH_OK) p->failed = (int)status;
    }
}

/* Eight products of numbers take the time of an element. */
static double product_cost(int64_t m, int64_t n, int64_t k) {
    return (double)m * (double)n * (double)k / 8;
}

/* How many threads have products of their own: 1 where a product is for all threads, because there are fewer products
 * than threads, the BLAS has threads of its own, or products share the primitives that are kept. */
static int batch_ranges(const tsh_device *device, tsh_dtype dtype, int64_t count, int64_t m, int64_t n, int64_t k) {
    bool together = dtype == TSH_FLOAT64 || ((const tshi_cpu_device *)device)->products != TSHI_PRODUCTS_ONEDNN ||
                    tshi_cpu_multiplies_narrow(device, dtype) || count < device->threads;
    return together ? 1 : tshi_ranges(device, count, 1, product_cost(m, n, k));
}

/* Bytes of scratch memory of a range's products, one after another. */
static size_t batch_scratch(const tsh_device *device, int threads, tsh_dtype dtype, bool transpose_a, bool transpose_b,
                            int64_t m, int64_t n, int64_t k) {
    if (!is_narrow(dtype) || m == 0 || n == 0 || k == 0) return 0;
    size_t bytes = narrow_scratch(device, threads, dtype, transpose_a, transpose_b, m, n, k);
    return (bytes + TSHI_BLOCK_UNIT - 1) / TSHI_BLOCK_UNIT * TSHI_BLOCK_UNIT;
}

size_t tshi_cpu_product_scratch(const tsh_device *device, tsh_dtype dtype, int64_t count, bool transpose_a,
                                bool transpose_b, int64_t m, int64_t n, int64_t k) {
    int ranges = batch_ranges(device, dtype, count, m, n, k);
    return (size_t)ranges *
           batch_scratch(device, ranges > 1 ? 1 : device->threads, dtype, transpose_a, transpose_b, m, n, k);
}

/* --- kernels ------------------------------------------------------------------------------------------------------ */

tsh_status tshi_cpu_gemm_batch(tsh_device *device, tsh_dtype dtype, int64_t count, bool transpose_a, bool transpose_b,
                               int64_t m, int64_t n, int64_t k, double alpha, const void *a, int64_t lda,
                               int64_t stride_a, const void *b, int64_t ldb, int64_t stride_b, double beta, void *c,
                               int64_t ldc, int64_t stride_c) {
    const size_t size = tsh_dtype_size(dtype);
    tsh_status status = tshi_check_product("the BLAS", m, n, k, lda, ldb, ldc);
    if (status != TSH_OK || count == 0 || m == 0 || n == 0) return status;
    const bool packed = lda == (transpose_a ? m : k) && ldb == (transpose_b ? k : n) && ldc == n && stride_a == m * k &&
                        stride_b == k * n && stride_c == m * n;
    if (packed && dtype == TSH_FLOAT32 && alpha == 1 && (beta == 0 || beta == 1) && k > 0 &&
        tshi_cpu_primitive_batch((tshi_cpu_device *)device, count, transpose_a, transpose_b, m, n, k, a, b, beta != 0,
                                 c))
        return TSH_OK;
    const int ranges = batch_ranges(device, dtype, count, m, n, k), threads = ranges > 1 ? 1 : device->threads;
    batch p = {.device = device,
               .threads = threads,
               .dtype = dtype,
               .transpose_a = transpose_a,
               .transpose_b = transpose_b,
               .m = m,
               .n = n,
               .k = k,
               .alpha = alpha,
               .a = a,
               .lda = lda,
               .b = b,
               .ldb = ldb,
               .beta = beta,
               .c = c,
               .ldc = ldc,
               .bytes_a = (size_t)stride_a * size,
               .bytes_b = (size_t)stride_b * size,
               .bytes_c = (size_t)stride_c * size,
               .scratch_bytes = batch_scratch(device, threads, dtype, transpose_a, transpose_b, m, n, k)},
          *call = &p;
    if (p.scratch_bytes && !(p.scratch = device->ops->memory.alloc(device, (size_t)ranges * p.scratch_bytes)))
        return TSH_ERR_MEMORY;
    if (ranges > 1)
        tshi_parallel(device, count, 1, product_cost(m, n, k), multiply_range, &call);
    else
        multiply_range(&call, 0, 0, count);
    device->ops->memory.release(device, p.scratch);
    status = (tsh_status)p.failed;
    if (status == TSH_OK || ranges == 1) return status;
    return tshi_fail(status, "a product of a batch: %s",
                     tsh_status_name(status)); /* the thread that failed knows more */
}

tsh_status tshi_cpu_gemm(tsh_device *device, tsh_dtype dtype, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                         int64_t k, double alpha, const void *a, int64_t lda, const void *b, int64_t ldb, double beta,
                         void *c, int64_t ldc) {
    return tshi_cpu_gemm_batch(device, dtype, 1, transpose_a, transpose_b, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta,
                               c, ldc, 0);
}

/* float32 and float64 without a primitive: y is filled with the bias, then the product is added. */
tsh_status tshi_cpu_affine(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, const void *x,
                           const void *w, const void *b, tshi_unary f, void *pre, void *y) {
    if (is_narrow(dtype) && m > 0 && n > 0 && k > 0) {
        const narrow_finish finish = {.bias = b, .f = f, .pre = pre, .c = y, .ldc = n};
        tsh_status status = tshi_check_product("the BLAS", m, n, k, k, k, n);
        return status != TSH_OK ? status : narrow_product(device, dtype, false, true, m, n, k, x, k, w, k, &finish);
    }
    void *product = pre ? pre : y;
    bool done = dtype == TSH_FLOAT32 && tshi_cpu_primitive_affine((tshi_cpu_device *)device, m, n, k, x, w, b, product);
    if (b && !done) ops_of(device)->elementwise[dtype].bias(device, m, n, NULL, b, product);
    tsh_status status = TSH_OK;
    if (!done) status = tshi_cpu_gemm(device, dtype, false, true, m, n, k, 1, x, k, w, k, b ? 1 : 0, product, n);
    if (status == TSH_OK && f != TSHI_IDENTITY)
        ops_of(device)->elementwise[dtype].unary(device, f, NULL, m * n, product, y);
    return status;
}

/* dW of 16-bit factors, accumulated and stored in float32. */
static tsh_status wide_product(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, const void *x,
                               const void *dy, double beta, float *dw) {
    const narrow_finish finish = {.beta = beta, .wide_c = dw, .ldc = k};
    tsh_status status = tshi_check_product("the BLAS", n, k, m, n, k, k);
    if (status != TSH_OK || n == 0 || k == 0) return status;
    if (m > 0) return narrow_product(device, dtype, true, false, n, k, m, dy, n, x, k, &finish);
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
        ops_of(device)->sum[dtype].bias_backward_wide(device, m, n, dy, db);
    else if (beta_b == 0)
        ops_of(device)->sum[dtype].over_dim(device, 1, m, n, 1, dy, db);
    else
        ops_of(device)->sum[dtype].bias_backward(device, m, n, dy, db);
    return TSH_OK;
}

tsh_status tshi_cpu_gemm_unary_backward(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k,
                                        const void *a, const void *b, tshi_unary f, const void *z, void *c) {
    tsh_status status = tshi_cpu_gemm(device, dtype, false, false, m, n, k, 1, a, k, b, n, 0, c, n);
    if (status == TSH_OK) ops_of(device)->elementwise[dtype].unary_backward(device, f, NULL, m * n, z, c, 0, c);
    return status;
}
