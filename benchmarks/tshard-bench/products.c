#include "products.h"

#include <cblas.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 2, BUFFERS = 6 };
enum { X, WEIGHT, Y, DX, DWEIGHT, DY };

struct products {
    tsh_dtype dtype;
    int layers;
    products_layer layer[MAX_LAYERS];
    void *buffer[MAX_LAYERS][BUFFERS];
};

/* Values in [-0.5, 0.5], and every page touched. */
static void fill(tsh_dtype dtype, int64_t n, void *to) {
    uint32_t state = 1;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        double value = (double)(state >> 8) / (double)(1u << 24) - 0.5;
        if (dtype == TSH_FLOAT64)
            ((double *)to)[i] = value;
        else
            ((float *)to)[i] = (float)value;
    }
}

static void *create_buffer(tsh_dtype dtype, int64_t rows, int64_t cols) {
    int64_t n;
    if (__builtin_mul_overflow(rows, cols, &n) || n > INT64_MAX / 16) return NULL;
    size_t bytes = (size_t)n * tsh_dtype_size(dtype);
    void *buffer = aligned_alloc(64, bytes / 64 * 64 + 64);
    if (buffer) fill(dtype, n, buffer);
    return buffer;
}

tsh_status products_create(tsh_dtype dtype, const products_layer *layers, int n, products **out) {
    *out = NULL;
    if (n > MAX_LAYERS) return TSH_ERR_ARGUMENT;
    products *p = calloc(1, sizeof *p);
    if (!p) return TSH_ERR_MEMORY;
    p->dtype = dtype;
    p->layers = n;
    for (int i = 0; i < n; i++) {
        const products_layer *l = &layers[i];
        const int64_t sizes[BUFFERS][2] = {{l->batch, l->in}, {l->out, l->in}, {l->batch, l->out},
                                           {l->batch, l->in}, {l->out, l->in}, {l->batch, l->out}};
        p->layer[i] = *l;
        bool fits = l->batch <= INT_MAX && l->in <= INT_MAX && l->out <= INT_MAX;
        for (int j = 0; j < BUFFERS; j++) {
            p->buffer[i][j] = fits ? create_buffer(dtype, sizes[j][0], sizes[j][1]) : NULL;
            if (p->buffer[i][j]) continue;
            products_destroy(p);
            return TSH_ERR_MEMORY;
        }
    }
    *out = p;
    return TSH_OK;
}

void products_destroy(products *p) {
    if (!p) return;
    for (int i = 0; i < p->layers; i++) {
        for (int j = 0; j < BUFFERS; j++) free(p->buffer[i][j]);
    }
    free(p);
}

/* c [m, n] = op(a) op(b), rows packed. */
static void multiply(tsh_dtype dtype, CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k,
                     const void *a, const void *b, void *c) {
    if (m == 0 || n == 0 || k == 0) return;
    int lda = (int)(ta == CblasTrans ? m : k), ldb = (int)(tb == CblasTrans ? k : n);
    if (dtype == TSH_FLOAT64)
        cblas_dgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, 1.0, a, lda, b, ldb, 0.0, c, (int)n);
    else
        cblas_sgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, 1.0f, a, lda, b, ldb, 0.0f, c, (int)n);
}

void products_run(const products *p) {
    for (int i = 0; i < p->layers; i++) {
        const products_layer *l = &p->layer[i];
        void *const *b = p->buffer[i];
        multiply(p->dtype, CblasNoTrans, CblasTrans, l->batch, l->out, l->in, b[X], b[WEIGHT], b[Y]);
    }
    for (int i = p->layers - 1; i >= 0; i--) {
        const products_layer *l = &p->layer[i];
        void *const *b = p->buffer[i];
        multiply(p->dtype, CblasNoTrans, CblasNoTrans, l->batch, l->in, l->out, b[DY], b[WEIGHT], b[DX]);
        multiply(p->dtype, CblasTrans, CblasNoTrans, l->out, l->in, l->batch, b[DY], b[X], b[DWEIGHT]);
    }
}

double products_flops(const products *p) {
    double flops = 0.0;
    for (int i = 0; i < p->layers; i++) {
        const products_layer *l = &p->layer[i];
        flops += 6.0 * (double)l->batch * (double)l->in * (double)l->out;
    }
    return flops;
}

/* --- the library ------------------------------------------------------------------------------------------------ */

#if defined(TSHARD_HAVE_OPENBLAS) && defined(__GNUC__)

/* Weak: the CBLAS that is found when the program runs may be another one. */
extern char *openblas_get_config(void) __attribute__((weak));
extern char *openblas_get_corename(void) __attribute__((weak));
extern int openblas_get_num_threads(void) __attribute__((weak));

const char *products_library(void) {
    static char text[128];
    char version[64] = "";
    if (!openblas_get_config || !openblas_get_corename) return "an unknown CBLAS";
    sscanf(openblas_get_config(), "OpenBLAS %63s", version);
    snprintf(text, sizeof text, "OpenBLAS %s, %s kernels", version, openblas_get_corename());
    return text;
}

int products_threads(void) {
    return openblas_get_num_threads ? openblas_get_num_threads() : 0;
}

#else

const char *products_library(void) {
    return "an unknown CBLAS";
}

int products_threads(void) {
    return 0;
}

#endif
