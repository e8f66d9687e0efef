/* Matrix products: float32 through oneDNN where it is built in, the rest through a CBLAS. Distributions' OpenBLAS is
 * often older than the CPU it runs on and then falls back to kernels for one of twenty years ago; oneDNN makes its code
 * at run time for the instructions that are there. */
#include "device/cpu/kernels/kernels.h"

#include <cblas.h>
#include <stdio.h>
#include <string.h>
#ifdef TSHARD_HAVE_ONEDNN
#include <dnnl.h>
#endif

/* Weak: the program may run with other libraries than it was linked with. */
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
    if (omp_set_num_threads) omp_set_num_threads(threads); /* of the calling thread, the rank's */
#endif
    (void)threads;
}

void tshi_cpu_product_libraries(char *text, size_t size) {
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
    snprintf(text, size, "oneDNN %d.%d.%d for float32, %s for float64", v->major, v->minor, v->patch, blas);
#else
    snprintf(text, size, "%s", blas);
#endif
}

static void scale(tsh_dtype dtype, int64_t m, int64_t n, double beta, void *c, int64_t ldc) {
    size_t size = tsh_dtype_size(dtype);
    for (int64_t i = 0; i < m; i++) {
        void *row = (char *)c + (size_t)i * (size_t)ldc * size;
        if (beta == 0.0)
            memset(row, 0, (size_t)n * size);
        else
            tshi_cpu_elementwise[dtype].axpby(NULL, n, beta, row, 0.0, NULL, row);
    }
}

static tsh_status single(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                         const void *a, int64_t lda, const void *b, int64_t ldb, float beta, void *c, int64_t ldc) {
#ifdef TSHARD_HAVE_ONEDNN
    dnnl_status_t status =
        dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    if (status == dnnl_out_of_memory) return tshi_fail(TSH_ERR_MEMORY, "dnnl_sgemm: out of memory");
    return status == dnnl_success ? TSH_OK : tshi_fail(TSH_ERR_SYSTEM, "dnnl_sgemm: status %d", (int)status);
#else
    cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans, (int)m,
                (int)n, (int)k, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
    return TSH_OK;
#endif
}

tsh_status tshi_cpu_gemm(tsh_device *device, tsh_dtype dtype, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                         int64_t k, double alpha, const void *a, int64_t lda, const void *b, int64_t ldb, double beta,
                         void *c, int64_t ldc) {
    tsh_status status = tshi_check_product("the BLAS", m, n, k, lda, ldb, ldc);
    if (status != TSH_OK || m == 0 || n == 0) return status;
    if (k == 0 || alpha == 0.0) {
        scale(dtype, m, n, beta, c, ldc);
        return TSH_OK;
    }
    if (dtype == TSH_FLOAT64) {
        cblas_dgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans,
                    (int)m, (int)n, (int)k, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
        return TSH_OK;
    }
    return single(transpose_a, transpose_b, m, n, k, (float)alpha, a, lda, b, ldb, (float)beta, c, ldc);
}

/* The bias is written first, and the product added to it. */
tsh_status tshi_cpu_affine(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, const void *x,
                           const void *w, const void *b, tshi_unary f, void *pre, void *y) {
    void *product = pre ? pre : y;
    if (b) tshi_cpu_elementwise[dtype].bias(device, m, n, NULL, b, product);
    tsh_status status = tshi_cpu_gemm(device, dtype, false, true, m, n, k, 1, x, k, w, k, b ? 1 : 0, product, n);
    if (status == TSH_OK && f != TSHI_IDENTITY) tshi_cpu_elementwise[dtype].unary(device, f, NULL, m * n, product, y);
    return status;
}

tsh_status tshi_cpu_affine_backward(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, const void *x,
                                    const void *dy, double beta, void *dw, double beta_b, void *db) {
    tsh_status status = tshi_cpu_gemm(device, dtype, true, false, n, k, m, 1, dy, n, x, k, beta, dw, k);
    if (status != TSH_OK || !db) return status;
    if (beta_b == 0)
        tshi_cpu_sum[dtype].over_dim(device, 1, m, n, 1, dy, db);
    else
        tshi_cpu_sum[dtype].bias_backward(device, m, n, dy, db);
    return TSH_OK;
}
