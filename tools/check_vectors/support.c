#include "cases.h"
#include "device/cpu/isa/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const tshi_vector *cv_vector(cv_run *run, const char *name, int ndim) {
    const tshi_vector *v = tshi_vectors_find(run->vectors, name);
    if (!tshi_check(run->rank, v, "the file has no tensor %s", name)) return NULL;
    if (!tshi_check(run->rank, v->ndim == ndim, "tensor %s has %d dims, %d wanted", name, v->ndim, ndim)) return NULL;
    return v;
}

double cv_scalar(cv_run *run, const char *name) {
    const tshi_vector *v = cv_vector(run, name, 0);
    return v ? v->values[0] : 0;
}

void *cv_elements(cv_run *run, const tshi_vector *v, int64_t start, int64_t count) {
    void *buffer = calloc((size_t)count + 1, 8);
    if (!tshi_check(run->rank, buffer, "no memory")) return NULL;
    if (v->integer) {
        memcpy(buffer, v->integers + start, (size_t)count * sizeof *v->integers);
    } else {
        tshi_cpu_convert_base(NULL, count, TSH_FLOAT64, v->values + start, run->dtype, buffer);
    }
    return buffer;
}

/* A tensor that the run owns, from values of the whole. */
static tsh_tensor *make(cv_run *run, const tsh_tensor_config *config, const tshi_vector *v, int64_t start) {
    tsh_tensor *t = NULL;
    int64_t count = 1;
    for (int d = 0; d < config->ndim; d++) count *= config->shape[d];
    if (!tshi_check(run->rank, start >= 0 && start + count <= v->count, "tensor %s is too small", v->name)) return NULL;
    bool room = run->tensor_count < (int)(sizeof run->tensors / sizeof run->tensors[0]);
    if (!tshi_check(run->rank, room, "a case with too many tensors")) return NULL;
    void *elements = cv_elements(run, v, start, count);
    if (elements && tshi_check_ok(run->rank, tsh_tensor_create(run->mesh, config, &t))) {
        run->tensors[run->tensor_count++] = t;
        if (!tshi_check_ok(run->rank, tsh_tensor_write_whole(t, elements))) t = NULL;
    }
    free(elements);
    return t;
}

tsh_tensor *cv_tensor(cv_run *run, const char *name, int ndim, tsh_layout data, tsh_layout model, bool gradient) {
    const tshi_vector *v = cv_vector(run, name, ndim);
    if (!v) return NULL;
    tsh_tensor_config config = {.dtype = v->integer ? TSH_INT64 : run->dtype, .ndim = ndim, .layout = {data, model}};
    memcpy(config.shape, v->shape, sizeof *v->shape * (size_t)ndim);
    tsh_tensor *t = make(run, &config, v, 0);
    if (t && gradient) tshi_check_ok(run->rank, tsh_tensor_require_grad(t, true));
    return t;
}

tsh_tensor *cv_stacked(cv_run *run, const char *name, int64_t index, const tsh_tensor *like) {
    const tshi_vector *v = like ? cv_vector(run, name, like->shape.ndim + 1) : NULL;
    if (!v) return NULL;
    tsh_tensor_config config = {.dtype = like->dtype, .ndim = like->shape.ndim};
    memcpy(config.layout, like->layout, sizeof config.layout);
    int64_t count = 1;
    for (int d = 0; d < config.ndim; d++) count *= config.shape[d] = like->shape.global[d];
    return make(run, &config, v, index * count);
}

bool cv_load_linear(cv_run *run, tsh_linear *layer, const char *weight, const char *bias) {
    const tshi_vector *w = cv_vector(run, weight, 2), *b = cv_vector(run, bias, 1);
    if (!tshi_check(run->rank, layer, "%s", tsh_error_message()) || !w || !b) return false;
    void *we = cv_elements(run, w, 0, w->count), *be = cv_elements(run, b, 0, b->count);
    bool good = we && be && tshi_check_ok(run->rank, tsh_linear_load(layer, we, be));
    free(we);
    free(be);
    return good;
}

bool cv_load_embedding(cv_run *run, tsh_embedding *layer, const char *table) {
    const tshi_vector *v = cv_vector(run, table, 2);
    if (!tshi_check(run->rank, layer, "%s", tsh_error_message()) || !v) return false;
    void *elements = cv_elements(run, v, 0, v->count);
    bool good = elements && tshi_check_ok(run->rank, tsh_embedding_load(layer, elements));
    free(elements);
    return good;
}

void cv_backward(cv_run *run, tsh_tensor *y, const char *dy) {
    if (!tshi_check(run->rank, y, "%s", tsh_tape_message(run->tape))) return;
    int axes = y->mesh->axes;
    cv_run as_y = *run; /* a loss of bfloat16 logits is float32 */
    as_y.dtype = y->dtype;
    tsh_tensor *gradient =
        cv_tensor(&as_y, dy, y->shape.ndim, y->layout[0], axes > 1 ? y->layout[1] : TSH_REPLICATED, false);
    if (gradient) run->tensors[run->tensor_count++] = gradient;
    if (!gradient) return;
    tsh_backward_config config = {.gradient = gradient};
    tshi_check_ok(run->rank, tsh_backward_with(run->tape, y, &config));
}

/* --- comparing ---------------------------------------------------------------------------------------------------- */

double *cv_read(cv_run *run, const tsh_tensor *t) {
    int64_t n = tsh_tensor_local_numel(t);
    void *raw = calloc((size_t)n + 1, 8);
    double *values = calloc((size_t)n + 1, sizeof *values);
    if (tshi_check(run->rank, raw && values, "no memory") && tshi_check_ok(run->rank, tsh_tensor_read(t, raw, n))) {
        tshi_cpu_convert_base(NULL, n, t->dtype, raw, TSH_FLOAT64, values);
    } else {
        free(values);
        values = NULL;
    }
    free(raw);
    return values;
}

/* Where element `index` of this rank's part stands in the whole. */
static int64_t global_index(const tsh_tensor *t, int64_t index) {
    int64_t at = 0, stride = 1;
    for (int d = t->shape.ndim - 1; d >= 0; d--) {
        int64_t start = tshi_shape_start(t->mesh, &t->shape, t->layout, d);
        at += (start + index % t->shape.local[d]) * stride;
        index /= t->shape.local[d];
        stride *= t->shape.global[d];
    }
    return at;
}

void cv_note_error(cv_run *run, double error) {
    error = isnan(error) ? INFINITY : fabs(error);
    if (error > run->worst) run->worst = error;
}

static double largest(const double *values, int64_t count) {
    double most = 0;
    for (int64_t i = 0; i < count; i++) most = fmax(most, fabs(values[i]));
    return most > 0 ? most : 1;
}

static bool comparable(cv_run *run, const char *name, const tsh_tensor *got) {
    char text[160];
    if (!tshi_check(run->rank, got, "nothing to compare with %s: %s", name, tsh_tape_message(run->tape))) return false;
    bool whole = true;
    for (int a = 0; a < got->mesh->axes; a++) {
        whole = whole && (got->layout[a].kind == TSH_KIND_REPLICATED || got->layout[a].kind == TSH_KIND_SHARD);
    }
    return tshi_check(run->rank, whole, "%s came as %s", name, tsh_tensor_describe(got, text, sizeof text));
}

static void compare(cv_run *run, const tshi_vector *v, int64_t start, int64_t count, double scale,
                    const tsh_tensor *got) {
    int64_t whole = 1;
    char text[160];
    for (int d = 0; d < got->shape.ndim; d++) whole *= got->shape.global[d];
    if (!tshi_check(run->rank, whole == count && start + count <= v->count, "%s has other sizes than %s", v->name,
                    tsh_tensor_describe(got, text, sizeof text))) {
        return;
    }
    double *values = cv_read(run, got);
    for (int64_t i = 0; values && i < tsh_tensor_local_numel(got); i++) {
        cv_note_error(run, fabs(values[i] - v->values[start + global_index(got, i)]) / scale);
    }
    free(values);
}

void cv_compare(cv_run *run, const char *name, const tsh_tensor *got) {
    if (!comparable(run, name, got)) return;
    const tshi_vector *v = cv_vector(run, name, got->shape.ndim);
    if (v) compare(run, v, 0, v->count, largest(v->values, v->count), got);
}

void cv_compare_from(cv_run *run, const char *name, int64_t start, const tsh_tensor *got) {
    if (!comparable(run, name, got)) return;
    const tshi_vector *v = cv_vector(run, name, got->shape.ndim);
    int64_t count = 1;
    for (int d = 0; d < got->shape.ndim; d++) count *= got->shape.global[d];
    if (v) compare(run, v, start, count, largest(v->values, v->count), got);
}

void cv_compare_grad(cv_run *run, const char *name, const tsh_tensor *of) {
    if (tshi_check(run->rank, of && tsh_tensor_grad(of), "%s: there is no gradient", name)) {
        cv_compare(run, name, tsh_tensor_grad(of));
    }
}

void cv_compare_stacked(cv_run *run, const char *name, int64_t index, const tsh_tensor *got) {
    if (!comparable(run, name, got)) return;
    const tshi_vector *v = cv_vector(run, name, got->shape.ndim + 1);
    if (!v || !tshi_check(run->rank, index < v->shape[0], "%s holds %lld", name, (long long)v->shape[0])) return;
    int64_t count = v->count / v->shape[0];
    compare(run, v, index * count, count, largest(v->values + index * count, count), got);
}

void cv_compare_value(cv_run *run, const char *name, int64_t index, double got) {
    const tshi_vector *v = cv_vector(run, name, 1);
    if (!v || !tshi_check(run->rank, index < v->count, "%s holds %lld", name, (long long)v->count)) return;
    cv_note_error(run, fabs(got - v->values[index]) / largest(v->values, v->count));
}
