/* Low-rank adapters of weights: parameters, names, merging. */
#include "layers/layers.h"

#include <math.h>
#include <string.h>

bool tshi_lora_targets(const tsh_lora_config *config, const char *name) {
    if (!config->targets) return true;
    for (const char *const *target = config->targets; *target; target++) {
        for (const char *end = name; end; end = strchr(end, '.')) {
            if (*end == '.') end++;
            if (tshi_layer_matches(*target, end, strlen(end))) return true;
        }
    }
    return false;
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

static tsh_status check_lora_config(const char *what, const tsh_lora_config *config, const tshi_adapter *adapter) {
    if (!config) return tshi_fail(TSH_ERR_ARGUMENT, "%s: a configuration is required", what);
    if (config->rank < 1 || !isfinite(config->alpha)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: rank=%lld, alpha=%g: the rank must be at least 1, alpha finite", what,
                         (long long)config->rank, config->alpha);
    }
    if (!(config->dropout >= 0 && config->dropout < 1))
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: dropout=%g, must be in [0, 1)", what, config->dropout);
    return adapter->b ? tshi_fail(TSH_ERR_STATE, "%s: the layer has an adapter already", what) : TSH_OK;
}

/* A factor of an adapter, as long in its dim `dim` as the weight in its dim `of`, and split alike. */
typedef struct factor {
    int64_t shape[2];
    int dim, of;
    bool terms; /* along an axis that splits the weight's other dim, each rank uses the factor in a term of a sum */
    tsh_init init;
} factor;

static tsh_status make_factor(const tsh_tensor *weight, const factor *f, tsh_tensor **out) {
    tsh_tensor_config config = {.dtype = weight->dtype, .ndim = 2, .shape = {f->shape[0], f->shape[1]}};
    unsigned term_axes = 0;
    for (int a = 0; a < weight->mesh->axes; a++) {
        if (f->terms && tshi_layout_splits(weight->layout[a], 1 - f->of)) term_axes |= 1u << a;
        if (!tshi_layout_splits(weight->layout[a], f->of)) continue;
        config.layout[a] = weight->layout[a];
        config.layout[a].dim = f->dim;
    }
    tsh_status status = tshi_tensor_defer(weight->mesh, &config, out);
    if (status == TSH_OK) status = tsh_tensor_init(*out, &f->init);
    if (status == TSH_OK) status = tsh_tensor_require_grad(*out, true);
    if (status != TSH_OK) return status;
    (*out)->parameter = true;
    (*out)->term_axes = term_axes;
    return TSH_OK;
}

/* A lookup's A has a row for each row of the table, and gets a gradient only there: backward sums the gradients of the
 * rows of A that were looked up, so that A itself is never used in a term of a sum. */
static tsh_status make_factors(const tsh_tensor *weight, const tsh_lora_config *config, bool lookup,
                               tshi_adapter *out) {
    int64_t rows = weight->shape.global[0], cols = weight->shape.global[1], r = config->rank;
    double bound = 1 / sqrt((double)cols);
    const tsh_init uniform = {.kind = TSH_INIT_UNIFORM, .a = -bound, .b = bound}, zeros = {.kind = TSH_INIT_CONSTANT},
                   normal = {.kind = TSH_INIT_NORMAL, .b = 1};
    factor a = {{r, cols}, .dim = 1, .of = 1, .terms = true, .init = uniform},
           b = {{rows, r}, .dim = 0, .of = 0, .terms = true, .init = zeros};
    if (lookup) {
        a = (factor){{rows, r}, .dim = 0, .of = 0, .init = zeros};
        b = (factor){{cols, r}, .dim = 0, .of = 1, .terms = true, .init = normal};
    }
    if (config->a_init.kind != TSH_INIT_DEFAULT) a.init = config->a_init;
    if (config->b_init.kind != TSH_INIT_DEFAULT) b.init = config->b_init;
    tsh_status status = make_factor(weight, &a, &out->a);
    return status == TSH_OK ? make_factor(weight, &b, &out->b) : status;
}

static tsh_status freeze_base(tsh_tensor *weight, tsh_tensor *bias) {
    tsh_status status = tsh_tensor_require_grad(weight, false);
    return status == TSH_OK && bias ? tsh_tensor_require_grad(bias, false) : status;
}

tsh_status tshi_adapter_create(const char *what, tshi_adapted adapted, const tsh_lora_config *config,
                               tsh_parameters *list, const char *name, tshi_adapter *out) {
    tsh_status status = check_lora_config(what, config, out);
    if (status != TSH_OK) return status;
    tshi_adapter made = {.dropout = config->dropout, .lookup = adapted.lookup};
    double alpha = config->alpha == 0 ? (double)config->rank : config->alpha, r = (double)config->rank;
    made.scale = alpha / (config->rank_stabilized ? sqrt(r) : r);
    status = make_factors(adapted.weight, config, adapted.lookup, &made);
    if (status == TSH_OK) status = freeze_base(adapted.weight, adapted.bias);
    if (status == TSH_OK && list) status = tshi_adapter_register(&made, list, name);
    if (status == TSH_OK) adapted.weight->may_quantize = false;
    if (status == TSH_OK)
        *out = made;
    else
        tshi_adapter_release(&made);
    return status;
}

void tshi_adapter_release(tshi_adapter *adapter) {
    tshi_tensor_release(adapter->a);
    tshi_tensor_release(adapter->b);
    *adapter = (tshi_adapter){0};
}

tsh_status tshi_adapter_register(const tshi_adapter *adapter, tsh_parameters *list, const char *name) {
    const char *a = adapter->lookup ? "lora_embedding_A" : "lora_A.weight",
               *b = adapter->lookup ? "lora_embedding_B" : "lora_B.weight";
    tsh_status status = tshi_parameters_add_part(list, name, a, adapter->a);
    return status == TSH_OK ? tshi_parameters_add_part(list, name, b, adapter->b) : status;
}

/* --- merging ------------------------------------------------------------------------------------------------------ */

/* Checks that this rank holds the rows and columns of the factors that its part of the weight needs. */
static tsh_status check_parts(const char *what, const tshi_adapter *adapter, const tsh_tensor *weight) {
    const int64_t *a = adapter->a->shape.local, *b = adapter->b->shape.local, *w = weight->shape.local;
    bool fits = a[0] == b[1] && a[1] == w[1] && b[0] == w[0];
    bool alike = adapter->a->dtype == weight->dtype && adapter->b->dtype == weight->dtype;
    if (fits && alike) return TSH_OK;
    return tshi_fail(TSH_ERR_STATE,
                     "%s: the weight is %s, the factors %s and %s: they must have one dtype and no further split by a "
                     "tsh_data_parallel",
                     what, TSHI_TENSOR_TEXT(weight), TSHI_TENSOR_TEXT(adapter->a), TSHI_TENSOR_TEXT(adapter->b));
}

tsh_status tshi_adapter_merge(const char *what, tshi_adapter *adapter, const tsh_tensor *weight, bool merged) {
    const tsh_tensor *a = adapter->a, *b = adapter->b;
    if (!b || adapter->merged == merged) return TSH_OK;
    tsh_status status = check_parts(what, adapter, weight);
    if (status == TSH_OK) status = tshi_tensor_materialize(a);
    if (status == TSH_OK) status = tshi_tensor_materialize(b);
    if (status == TSH_OK) status = tshi_tensor_materialize_to_write(weight);
    if (status != TSH_OK) return status;
    tsh_device *device = tshi_device_of(weight);
    status =
        device->ops->product.gemm(device, weight->dtype, false, false, tshi_rows(weight), tshi_cols(weight),
                                  tshi_cols(b), merged ? adapter->scale : -adapter->scale, tshi_data(b), tshi_cols(b),
                                  tshi_data(a), tshi_cols(a), 1, tshi_data_to_write(weight), tshi_cols(weight));
    if (status == TSH_OK) adapter->merged = merged;
    return status;
}
