#include "products.h"
#include "device/device.h"

#include <cblas.h>
#ifdef TSHARD_HAVE_ONEDNN
#include <dnnl.h>
#endif
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUFFERS = 6 };
enum { X, WEIGHT, Y, DX, DWEIGHT, DY };

struct products {
    tsh_device *device;
    tsh_dtype dtype;
    int layers;
    products_layer *layer;          /* [layers] */
    tsh_tensor *(*tensor)[BUFFERS]; /* [layers] */
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
    products *p = calloc(1, sizeof *p);
    if (!p) return TSH_ERR_MEMORY;
    p->layer = calloc((size_t)n, sizeof *p->layer);
    p->tensor = calloc((size_t)n, sizeof *p->tensor);
    p->device = tsh_world_device(tsh_mesh_world(mesh));
    p->dtype = dtype;
    p->layers = p->layer && p->tensor ? n : 0;
    tsh_status status = p->layers == n ? TSH_OK : TSH_ERR_MEMORY;
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
    free(p->tensor);
    free(p->layer);
    free(p);
}

/* c [m, n] = op(a) op(b), rows packed, on a CPU: float32 through oneDNN where tshard has it. */
static void multiply_here(tsh_dtype dtype, bool ta, bool tb, int64_t m, int64_t n, int64_t k, const void *a,
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
    dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1.0f, a, lda, b, ldb, 0.0f, c, n);
#else
    cblas_sgemm(CblasRowMajor, cblas_a, cblas_b, (int)m, (int)n, (int)k, 1.0f, a, (int)lda, b, (int)ldb, 0.0f, c,
                (int)n);
#endif
}

/* A GPU's product is one call of its library, with the algorithm that it was chosen for these sizes: the slot makes it.
 * On a CPU that is done here, so that tshard's own way to the library counts as tshard's. */
static tsh_status multiply(const products *p, bool ta, bool tb, int64_t m, int64_t n, int64_t k, const tsh_tensor *a,
                           const tsh_tensor *b, tsh_tensor *c) {
    tsh_device *device = p->device;
    if (tsh_device_kind_of(device) == TSH_CPU) {
        multiply_here(p->dtype, ta, tb, m, n, k, tsh_tensor_data(a), tsh_tensor_data(b), tsh_tensor_data(c));
        return TSH_OK;
    }
    return device->ops->product.gemm(device, p->dtype, ta, tb, m, n, k, 1, tsh_tensor_data(a), ta ? m : k,
                                     tsh_tensor_data(b), tb ? k : n, 0, tsh_tensor_data(c), n);
}

tsh_status products_run(const products *p) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < p->layers && status == TSH_OK; i++) {
        const products_layer *l = &p->layer[i];
        tsh_tensor *const *t = p->tensor[i];
        status = multiply(p, false, true, l->batch, l->out, l->in, t[X], t[WEIGHT], t[Y]);
    }
    for (int i = p->layers - 1; i >= 0 && status == TSH_OK; i--) {
        const products_layer *l = &p->layer[i];
        tsh_tensor *const *t = p->tensor[i];
        status = multiply(p, false, false, l->batch, l->in, l->out, t[DY], t[WEIGHT], t[DX]);
        if (status == TSH_OK) status = multiply(p, true, false, l->out, l->in, l->batch, t[DY], t[X], t[DWEIGHT]);
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
