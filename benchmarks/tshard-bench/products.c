#include "products.h"

#include <cblas.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_LAYERS = 2, BUFFERS = 6 };
enum { X, WEIGHT, Y, DX, DWEIGHT, DY };

struct products {
    tsh_dtype dtype;
    int layers;
    products_layer layer[MAX_LAYERS];
    tsh_tensor *tensor[MAX_LAYERS][BUFFERS];
};

static tsh_status create_buffers(const tsh_mesh *mesh, products *p, int i) {
    const products_layer *l = &p->layer[i];
    const int64_t sizes[BUFFERS][2] = {
        [X] = {l->batch, l->in},     [DX] = {l->batch, l->in}, [WEIGHT] = {l->out, l->in},
        [DWEIGHT] = {l->out, l->in}, [Y] = {l->batch, l->out}, [DY] = {l->batch, l->out}};
    tsh_status status = TSH_OK;
    for (int j = 0; j < BUFFERS && status == TSH_OK; j++) {
        tsh_tensor_config config = {.dtype = p->dtype, .ndim = 2, .shape = {sizes[j][0], sizes[j][1]}};
        status = tsh_tensor_create(mesh, &config, &p->tensor[i][j]);
        if (status != TSH_OK) break;
        status = tsh_tensor_init(p->tensor[i][j], &(tsh_init){.kind = TSH_INIT_UNIFORM, .a = -0.5, .b = 0.5});
    }
    return status;
}

tsh_status products_create(const tsh_mesh *mesh, tsh_dtype dtype, const products_layer *layers, int n, products **out) {
    *out = NULL;
    if (n > MAX_LAYERS) return TSH_ERR_ARGUMENT;
    products *p = calloc(1, sizeof *p);
    if (!p) return TSH_ERR_MEMORY;
    p->dtype = dtype;
    p->layers = n;
    tsh_status status = TSH_OK;
    for (int i = 0; i < n && status == TSH_OK; i++) {
        p->layer[i] = layers[i];
        bool fits = layers[i].batch <= INT_MAX && layers[i].in <= INT_MAX && layers[i].out <= INT_MAX;
        status = fits ? create_buffers(mesh, p, i) : TSH_ERR_OVERFLOW;
    }
    if (status == TSH_OK)
        *out = p;
    else
        products_destroy(p);
    return status;
}

void products_destroy(products *p) {
    if (!p) return;
    for (int i = 0; i < p->layers; i++) {
        for (int j = 0; j < BUFFERS; j++) tsh_tensor_release(p->tensor[i][j]);
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
        tsh_tensor *const *t = p->tensor[i];
        multiply(p->dtype, CblasNoTrans, CblasTrans, l->batch, l->out, l->in, tsh_tensor_data(t[X]),
                 tsh_tensor_data(t[WEIGHT]), tsh_tensor_data(t[Y]));
    }
    for (int i = p->layers - 1; i >= 0; i--) {
        const products_layer *l = &p->layer[i];
        tsh_tensor *const *t = p->tensor[i];
        multiply(p->dtype, CblasNoTrans, CblasNoTrans, l->batch, l->in, l->out, tsh_tensor_data(t[DY]),
                 tsh_tensor_data(t[WEIGHT]), tsh_tensor_data(t[DX]));
        multiply(p->dtype, CblasTrans, CblasNoTrans, l->out, l->in, l->batch, tsh_tensor_data(t[DY]),
                 tsh_tensor_data(t[X]), tsh_tensor_data(t[DWEIGHT]));
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
