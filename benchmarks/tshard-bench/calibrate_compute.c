/* What ranks compute: matrix products and attention, by the kernels that functions call. */
#include "calibrate.h"

#include <string.h>

/* --- matrix products ---------------------------------------------------------------------------------------------- */

typedef struct product {
    calibration *c;
    tsh_dtype dtype;
    int form;
    int64_t m, n, k;
} product;

enum { FORWARD, DX, DW, FORMS };

static const char *const forms[FORMS] = {"forward", "dx", "dw"};

/* x [m, k], w [n, k], y [m, n] or their gradients. */
static int multiply(void *context, int calls) {
    const product *p = context;
    tsh_device *device = p->c->device;
    const tshi_product_ops *ops = &device->ops->product;
    size_t size = tsh_dtype_size(p->dtype);
    const size_t bytes[] = {(size_t)(p->m * p->k) * size, (size_t)(p->n * p->k) * size, (size_t)(p->m * p->n) * size};
    tsh_status status = TSH_OK;
    for (int i = 0; i < calls && status == TSH_OK; i++) {
        void *at[3];
        calibrate_place(p->c, 3, bytes, at);
        if (p->form == FORWARD)
            status = ops->affine(device, p->dtype, p->m, p->n, p->k, at[0], at[1], NULL, TSHI_IDENTITY, NULL, at[2]);
        else if (p->form == DX)
            status = ops->gemm(device, p->dtype, false, false, p->m, p->k, p->n, 1, at[2], p->n, at[1], p->k, 0, at[0],
                               p->k);
        else
            status =
                ops->affine_backward(device, p->dtype, p->m, p->n, p->k, at[0], at[2], p->dtype, 0, at[1], 0, NULL);
    }
    return (int)status;
}

static tsh_status measure_form(calibration *c, int form, tsh_dtype dtype) {
    static const int64_t rows[] = {1, 16, 64, 256, 1024}, features[] = {32, 128, 512, 2048};
    const int row_count = calibrate_points(c, rows, 5), count = calibrate_points(c, features, 4);
    machine_table *t = machine_add_table(c->m, MACHINE_PRODUCTS, (const int[]){row_count, count, count});
    tsh_status status = t ? TSH_OK : TSH_ERR_MEMORY;
    if (!t) return status;
    snprintf(t->what, sizeof t->what, "%s", forms[form]);
    snprintf(t->dtype, sizeof t->dtype, "%s", tsh_dtype_name(dtype));
    t->working_set = (double)c->working_set;
    for (int i = 0; i < row_count; i++) t->at[0][i] = (double)rows[i];
    for (int i = 0; i < count; i++) t->at[1][i] = t->at[2][i] = (double)features[i];
    for (int i = 0; i < row_count * count * count && status == TSH_OK; i++) {
        product p = {c, dtype, form, rows[i / count / count], features[i / count % count], features[i % count]};
        double seconds = 0;
        status = calibrate_measure(c, multiply, &p, &seconds);
        t->rate[i] = 2e-9 * (double)p.m * (double)p.n * (double)p.k / seconds;
    }
    return status;
}

tsh_status calibrate_products(calibration *c) {
    tsh_status status = TSH_OK;
    for (const int *d = calibrate_dtypes; *d >= 0; d++) {
        if (!tshi_device_computes(c->device, (tsh_dtype)*d)) continue;
        for (int form = 0; form < FORMS && status == TSH_OK; form++) {
            status = measure_form(c, form, (tsh_dtype)*d);
        }
    }
    return status;
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

typedef struct attention {
    calibration *c;
    tsh_dtype dtype;
    tshi_attention a;
    bool backward;
} attention;

enum { Q, K, V, Y, DY, DQ, DK, DV, SUMS, SCRATCH, BUFFERS };

static int attend(void *context, int calls) {
    const attention *w = context;
    tsh_device *device = w->c->device;
    const tshi_attention_ops *ops = &device->ops->attention[w->dtype];
    const tshi_attention *a = &w->a;
    size_t sum = tsh_dtype_size(tshi_dtype_sum(w->dtype)), bytes[BUFFERS];
    for (int i = 0; i < SUMS; i++) {
        bytes[i] = (size_t)(a->batch * a->queries * a->heads * a->dim) * tsh_dtype_size(w->dtype);
    }
    bytes[SUMS] = (size_t)(a->batch * a->heads * a->queries) * sum;
    bytes[SCRATCH] = (size_t)ops->scratch(device, a, w->backward) * sum;
    for (int i = 0; i < calls; i++) {
        void *at[BUFFERS];
        calibrate_place(w->c, BUFFERS, bytes, at);
        const tshi_attention_grads grads = {at[DQ], at[DK], at[DV], 0, 0, 0};
        if (w->backward)
            ops->backward(device, a, at[Q], at[K], at[V], at[Y], at[SUMS], at[DY], &grads, at[SCRATCH]);
        else
            ops->forward(device, a, at[Q], at[K], at[V], at[Y], at[SUMS], at[SCRATCH]);
    }
    return (int)TSH_OK;
}

/* Of the products: two forward, five backward, of the scores that are seen. */
static double attention_flops(const attention *w) {
    double n = (double)w->a.queries, seen = n * (n + 1) / 2;
    return (w->backward ? 10 : 4) * (double)(w->a.batch * w->a.heads) * seen * (double)w->a.dim;
}

static tsh_status measure_attention(calibration *c, bool backward, tsh_dtype dtype) {
    static const int64_t queries[] = {16, 64, 256, 1024}, dims[] = {32, 64, 128};
    enum { DIMS = 3, HEADS = 4 };
    const int count = calibrate_points(c, queries, 4);
    machine_table *t = machine_add_table(c->m, MACHINE_ATTENTION, (const int[]){count, DIMS, 1});
    tsh_status status = t ? TSH_OK : TSH_ERR_MEMORY;
    if (!t) return status;
    snprintf(t->what, sizeof t->what, backward ? "backward" : "forward");
    snprintf(t->dtype, sizeof t->dtype, "%s", tsh_dtype_name(dtype));
    t->working_set = (double)c->working_set;
    for (int i = 0; i < count; i++) t->at[0][i] = (double)queries[i];
    for (int i = 0; i < DIMS; i++) t->at[1][i] = (double)dims[i];
    for (int i = 0; i < count * DIMS && status == TSH_OK; i++) {
        int64_t n = queries[i / DIMS], dim = dims[i % DIMS];
        attention w = {.c = c, .dtype = dtype, .backward = backward};
        w.a = (tshi_attention){.batch = 1,
                               .queries = n,
                               .keys = n,
                               .capacity = n,
                               .heads = HEADS,
                               .kv_heads = HEADS,
                               .dim = dim,
                               .sharers = 1,
                               .causal = true,
                               .scale = 0.125,
                               .heads_whole = HEADS};
        double seconds = 0;
        status = calibrate_measure(c, attend, &w, &seconds);
        t->rate[i] = 1e-9 * attention_flops(&w) / seconds;
    }
    return status;
}

tsh_status calibrate_attention(calibration *c) {
    tsh_status status = TSH_OK;
    for (const int *d = calibrate_dtypes; *d >= 0; d++) {
        if (!tshi_device_computes(c->device, (tsh_dtype)*d)) continue;
        if (status == TSH_OK) status = measure_attention(c, false, (tsh_dtype)*d);
        if (status == TSH_OK) status = measure_attention(c, true, (tsh_dtype)*d);
    }
    return status;
}
