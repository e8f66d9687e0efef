#include "products.h"
#include "base/clock.h"
#include "device/device.h"

#include <cblas.h>
#ifdef TSHARD_HAVE_ONEDNN
#include <dnnl.h>
enum { HAS_ONEDNN = 1 };
#else
enum { HAS_ONEDNN = 0 };
#endif
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUFFERS = 6 };
enum { X, WEIGHT, Y, DX, DWEIGHT, DY };
enum { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, KINDS };

struct products {
    tsh_device *device;
    tsh_dtype dtype;
    int layers;
    products_layer *layer;          /* [layers] */
    tsh_tensor *(*tensor)[BUFFERS]; /* [layers] */
    bool (*by_blas)[KINDS];         /* [layers]; float32 on a CPU: the CBLAS was faster than oneDNN */
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

void products_destroy(products *p) {
    if (!p) return;
    for (int i = 0; i < p->layers; i++) {
        for (int j = 0; j < BUFFERS; j++) tsh_tensor_release(p->tensor[i][j]);
    }
    free(p->tensor);
    free(p->layer);
    free(p->by_blas);
    free(p);
}

/* c [m, n] = op(a) op(b), rows packed, on a CPU: float32 through oneDNN where tshard has it, unless `blas`. */
static void multiply_here(tsh_dtype dtype, bool blas, bool ta, bool tb, int64_t m, int64_t n, int64_t k, const void *a,
                          const void *b, void *c) {
    if (m == 0 || n == 0 || k == 0) return;
    int64_t lda = ta ? m : k, ldb = tb ? k : n;
    CBLAS_TRANSPOSE cblas_a = ta ? CblasTrans : CblasNoTrans, cblas_b = tb ? CblasTrans : CblasNoTrans;
    if (dtype == TSH_FLOAT64) {
        cblas_dgemm(CblasRowMajor, cblas_a, cblas_b, (int)m, (int)n, (int)k, 1.0, a, (int)lda, b, (int)ldb, 0.0, c,
                    (int)n);
        return;
    }
#ifdef TSHARD_HAVE_ONEDNN
    if (!blas) {
        dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb, 0.0f, c, n);
        return;
    }
#else
    (void)blas;
#endif
    cblas_sgemm(CblasRowMajor, cblas_a, cblas_b, (int)m, (int)n, (int)k, 1.0f, a, (int)lda, b, (int)ldb, 0.0f, c,
                (int)n);
}

/* A GPU's product is one call of its library, with the algorithm that it was chosen for these sizes: the slot makes it.
 * On a CPU that is done here, so that tshard's own way to the library counts as tshard's. */
static tsh_status multiply(const products *p, int layer, int kind) {
    static const struct {
        int a, b, c;
    } factors[KINDS] = {
        [FORWARD] = {X, WEIGHT, Y}, [INPUT_GRADIENT] = {DY, WEIGHT, DX}, [WEIGHT_GRADIENT] = {DY, X, DWEIGHT}};
    const products_layer *l = &p->layer[layer];
    const bool ta = kind == WEIGHT_GRADIENT, tb = kind == FORWARD;
    const int64_t m = ta ? l->out : l->batch, n = tb ? l->out : l->in;
    const int64_t k = kind == FORWARD ? l->in : kind == INPUT_GRADIENT ? l->out : l->batch;
    tsh_tensor *const *t = p->tensor[layer];
    const void *a = tsh_tensor_data(t[factors[kind].a]), *b = tsh_tensor_data(t[factors[kind].b]);
    void *c = tsh_tensor_data(t[factors[kind].c]);
    if (tsh_device_kind_of(p->device) == TSH_CPU) {
        multiply_here(p->dtype, p->by_blas[layer][kind], ta, tb, m, n, k, a, b, c);
        return TSH_OK;
    }
    return p->device->ops->product.gemm(p->device, p->dtype, ta, tb, m, n, k, 1, a, ta ? m : k, b, tb ? k : n, 0, c, n);
}

/* The shortest of three runs. */
static double seconds_of(products *p, int layer, int kind, bool blas) {
    double shortest = INFINITY;
    p->by_blas[layer][kind] = blas;
    for (int i = 0; i < 3; i++) {
        double begin = tshi_clock();
        multiply(p, layer, kind);
        shortest = fmin(shortest, tshi_clock() - begin);
    }
    return shortest;
}

/* The library that takes less time for each product, where there are two. */
static void choose_libraries(products *p) {
    for (int i = 0; HAS_ONEDNN && i < p->layers; i++) {
        for (int kind = 0; kind < KINDS; kind++) {
            double onednn = seconds_of(p, i, kind, false), blas = seconds_of(p, i, kind, true);
            p->by_blas[i][kind] = blas < onednn;
        }
    }
}

tsh_status products_create(const tsh_mesh *mesh, tsh_dtype dtype, const products_layer *layers, int n, products **out) {
    *out = NULL;
    products *p = calloc(1, sizeof *p);
    if (!p) return TSH_ERR_MEMORY;
    p->layer = calloc((size_t)n, sizeof *p->layer);
    p->tensor = calloc((size_t)n, sizeof *p->tensor);
    p->by_blas = calloc((size_t)n, sizeof *p->by_blas);
    p->device = tsh_world_device(tsh_mesh_world(mesh));
    p->dtype = dtype;
    p->layers = p->layer && p->tensor && p->by_blas ? n : 0;
    tsh_status status = p->layers == n ? TSH_OK : TSH_ERR_MEMORY;
    for (int i = 0; i < n && status == TSH_OK; i++) {
        p->layer[i] = layers[i];
        bool fits = layers[i].batch <= INT_MAX && layers[i].in <= INT_MAX && layers[i].out <= INT_MAX;
        status = fits ? create_buffers(mesh, p, i) : TSH_ERR_OVERFLOW;
    }
    if (status == TSH_OK && dtype == TSH_FLOAT32 && tsh_device_kind_of(p->device) == TSH_CPU) choose_libraries(p);
    if (status == TSH_OK)
        *out = p;
    else
        products_destroy(p);
    return status;
}

tsh_status products_run(const products *p) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < p->layers && status == TSH_OK; i++) status = multiply(p, i, FORWARD);
    for (int i = p->layers - 1; i >= 0 && status == TSH_OK; i--) {
        status = multiply(p, i, INPUT_GRADIENT);
        if (status == TSH_OK) status = multiply(p, i, WEIGHT_GRADIENT);
    }
    return status;
}

double products_flops(const products *p) {
    double flops = 0.0;
    for (int i = 0; i < p->layers; i++) {
        const products_layer *l = &p->layer[i];
        flops += 6.0 * (double)l->batch * (double)l->in * (double)l->out;
    }
    return flops;
}
