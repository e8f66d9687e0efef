/* Matrix products through a CBLAS. */
#include "device/cpu/kernels.h"

#include <cblas.h>
#include <limits.h>
#include <string.h>

#if defined(TSHARD_HAVE_OPENBLAS) && defined(__GNUC__)
/* Weak: the CBLAS that is found when the program runs may be another one. */
extern void openblas_set_num_threads(int) __attribute__((weak));
#endif

void tshi_cpu_blas_threads(int threads) {
#if defined(TSHARD_HAVE_OPENBLAS) && defined(__GNUC__)
    if (openblas_set_num_threads) openblas_set_num_threads(threads);
#else
    (void)threads;
#endif
}

static void scale(tsh_dtype dtype, int64_t m, int64_t n, double beta, void *c, int64_t ldc) {
    size_t size = tsh_dtype_size(dtype);
    for (int64_t i = 0; i < m; i++) {
        void *row = (char *)c + (size_t)i * (size_t)ldc * size;
        if (beta == 0.0)
            memset(row, 0, (size_t)n * size);
        else
            tshi_cpu_axpby(dtype, n, beta, row, 0.0, NULL, row);
    }
}

static bool fits_int(int64_t value) {
    return value <= INT_MAX;
}

tsh_status tshi_cpu_gemm(tsh_dtype dtype, bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                         double alpha, const void *a, int64_t lda, const void *b, int64_t ldb, double beta, void *c,
                         int64_t ldc) {
    if (!fits_int(m) || !fits_int(n) || !fits_int(k) || !fits_int(lda) || !fits_int(ldb) || !fits_int(ldc)) {
        return tshi_fail(TSH_ERR_OVERFLOW,
                         "a matrix product of %lld x %lld x %lld (row lengths %lld, %lld, %lld) passes the 2^31 - 1 "
                         "of the BLAS",
                         (long long)m, (long long)n, (long long)k, (long long)lda, (long long)ldb, (long long)ldc);
    }
    if (m == 0 || n == 0) return TSH_OK;
    if (k == 0 || alpha == 0.0) {
        scale(dtype, m, n, beta, c, ldc);
        return TSH_OK;
    }
    CBLAS_TRANSPOSE ta = transpose_a ? CblasTrans : CblasNoTrans;
    CBLAS_TRANSPOSE tb = transpose_b ? CblasTrans : CblasNoTrans;
    if (dtype == TSH_FLOAT64)
        cblas_dgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
    else
        cblas_sgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, (float)alpha, a, (int)lda, b, (int)ldb, (float)beta,
                    c, (int)ldc);
    return TSH_OK;
}
