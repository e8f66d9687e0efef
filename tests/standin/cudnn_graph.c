/* A graph of cuDNN's operations: how they may be wired, and what they compute, in double, rounded where a tensor's type
 * says so. */
#include "standin/cudnn.h"

#include "device/cpu/isa/kernels.h"
#include "device/cuda/cudnn/api.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t standin_cudnn_elements(const standin_cudnn_tensor *t) {
    return t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
}

/* --- checks ------------------------------------------------------------------------------------------------------- */

static bool is_16_bits(int type) {
    return type == TSHI_CUDNN_HALF || type == TSHI_CUDNN_BFLOAT16;
}

/* x is repeated along dims where it has one element. */
static bool spreads(const standin_cudnn_tensor *x, const standin_cudnn_tensor *y) {
    for (int d = 0; d < 4; d++)
        if (x->dims[d] != y->dims[d] && x->dims[d] != 1) return false;
    return true;
}

static int inputs_of(int mode) {
    switch (mode) {
    case TSHI_CUDNN_EXP:
    case TSHI_CUDNN_LOG:
    case TSHI_CUDNN_IDENTITY:
    case TSHI_CUDNN_GEN_INDEX: return 1;
    case TSHI_CUDNN_BINARY_SELECT: return 3;
    default: return 2;
    }
}

static const char *check_pointwise(const standin_cudnn_graph *g, const standin_cudnn_operation *op) {
    const standin_cudnn_tensor *t = g->tensors, *y = &t[op->y];
    int wanted = inputs_of(op->mode);
    if ((op->b >= 0) != (wanted >= 2) || (op->t >= 0) != (wanted == 3)) return "a pointwise operation of other inputs";
    if (!spreads(&t[op->x], y) || (op->b >= 0 && !spreads(&t[op->b], y))) return "shapes that do not fit";
    if (op->t >= 0 && (t[op->t].type != TSHI_CUDNN_BOOLEAN || !spreads(&t[op->t], y))) return "a choice by no truth";
    if (op->mode == TSHI_CUDNN_GEN_INDEX && (op->axis < 0 || op->axis > 3 || y->type != TSHI_CUDNN_INT32))
        return "indices of no axis, or that are no integers";
    if (op->mode == TSHI_CUDNN_CMP_GE && (y->type != TSHI_CUDNN_BOOLEAN || op->type != TSHI_CUDNN_BOOLEAN))
        return "a comparison that is no truth";
    if (y->type == TSHI_CUDNN_INT32 && op->mode != TSHI_CUDNN_GEN_INDEX && op->type != TSHI_CUDNN_INT32)
        return "integers that are computed as other numbers";
    return NULL;
}

/* Heads of a product are those of its left side; several of them share one of its right side. */
static const char *check_matmul(const standin_cudnn_graph *g, const standin_cudnn_operation *op) {
    const standin_cudnn_tensor *a = &g->tensors[op->x], *b = &g->tensors[op->b], *c = &g->tensors[op->y];
    if (a->dims[3] != b->dims[2] || c->dims[2] != a->dims[2] || c->dims[3] != b->dims[3]) return "matrices do not fit";
    if (a->dims[0] != b->dims[0] || c->dims[0] != a->dims[0] || c->dims[1] != a->dims[1]) return "batches do not fit";
    if (a->dims[1] % b->dims[1] != 0) return "heads that do not fit";
    if (!is_16_bits(b->type) || (a->type != b->type && a->type != TSHI_CUDNN_FLOAT)) return "a product of other types";
    return NULL;
}

const char *standin_cudnn_check_operation(const standin_cudnn_graph *g, const standin_cudnn_operation *op) {
    if (op->x < 0 || op->y < 0) return "an operation without an input or an output";
    const standin_cudnn_tensor *x = &g->tensors[op->x], *y = &g->tensors[op->y];
    switch (op->kind) {
    case TSHI_CUDNN_POINTWISE_OPERATION: return check_pointwise(g, op);
    case TSHI_CUDNN_MATMUL_OPERATION: return op->b < 0 ? "a product of one matrix" : check_matmul(g, op);
    case TSHI_CUDNN_REDUCTION_OPERATION:
        for (int d = 0; d < 4; d++)
            if (x->dims[d] % y->dims[d] != 0) return "a reduction to another shape";
        return NULL;
    default:
        if (x->dims[0] != y->dims[0] || x->dims[1] != y->dims[1] || x->dims[2] != y->dims[3] ||
            x->dims[3] != y->dims[2])
            return "a view that is not the transposed";
        if (x->strides[2] != y->strides[3] || x->strides[3] != y->strides[2]) return "a view of other elements";
        return y->is_virtual ? NULL : "a view in memory of its own";
    }
}

/* Every tensor is written once at most and before it is read; a virtual one is written and read. */
const char *standin_cudnn_check_graph(const standin_cudnn_graph *g) {
    bool written[STANDIN_CUDNN_MOST] = {false}, read[STANDIN_CUDNN_MOST] = {false};
    for (int i = 0; i < g->operation_count; i++) {
        const standin_cudnn_operation *op = &g->operations[i];
        int in[] = {op->x, op->b, op->t};
        for (int k = 0; k < 3; k++) {
            if (in[k] < 0) continue;
            if (g->tensors[in[k]].is_virtual && !written[in[k]]) return "a virtual tensor is read before it is written";
            read[in[k]] = true;
        }
        if (written[op->y] || g->tensors[op->y].by_value) return "a tensor that is written twice, or a number that is";
        if (read[op->y] && !g->tensors[op->y].is_virtual) return "a tensor that is read before it is written";
        written[op->y] = true;
    }
    for (int i = 0; i < g->tensor_count; i++)
        if (g->tensors[i].is_virtual && !(written[i] && read[i])) return "a virtual tensor that nothing reads";
    return NULL;
}

standin_cudnn_kind standin_cudnn_kind_of(const standin_cudnn_graph *g) {
    int products = 0;
    for (int i = 0; i < g->operation_count; i++) products += g->operations[i].kind == TSHI_CUDNN_MATMUL_OPERATION;
    if (products == 2) return STANDIN_FORWARD;
    bool sums = g->operations[g->operation_count - 1].mode == TSHI_CUDNN_IDENTITY;
    return sums ? STANDIN_BACKWARD : STANDIN_BACKWARD_REPEATS;
}

/* --- values ------------------------------------------------------------------------------------------------------- */

typedef struct position {
    int64_t at[4];
} position;

/* Where an element lies among `t`'s, in order, with one element repeated and heads shared. */
static int64_t place(const standin_cudnn_tensor *t, position i, const standin_cudnn_tensor *of) {
    int64_t at = 0;
    for (int d = 0; d < 4; d++) at = at * t->dims[d] + i.at[d] / (of->dims[d] / t->dims[d]);
    return at;
}

static bool next(const standin_cudnn_tensor *t, position *i) {
    for (int d = 3; d >= 0; d--) {
        if (++i->at[d] < t->dims[d]) return true;
        i->at[d] = 0;
    }
    return false;
}

static tsh_dtype dtype_of(int type) {
    if (type == TSHI_CUDNN_HALF) return TSH_FLOAT16;
    return type == TSHI_CUDNN_BFLOAT16 ? TSH_BFLOAT16 : TSH_FLOAT32;
}

static void *in_memory(const standin_cudnn_tensor *t, position i) {
    int64_t at = 0;
    for (int d = 0; d < 4; d++) at += i.at[d] * t->strides[d];
    return (char *)t->pointer + (size_t)at * tsh_dtype_size(dtype_of(t->type));
}

/* Numbers of a type that has less than double's bits. */
static double rounded(int type, double value) {
    uint32_t bits;
    if (type == TSHI_CUDNN_INT32 || type == TSHI_CUDNN_BOOLEAN) return value;
    tshi_cpu_convert_base(NULL, 1, TSH_FLOAT64, &value, dtype_of(type), &bits);
    tshi_cpu_convert_base(NULL, 1, dtype_of(type), &bits, TSH_FLOAT64, &value);
    return value;
}

static void load(const standin_cudnn_tensor *t, double *values) {
    position i = {{0, 0, 0, 0}};
    int64_t at = 0;
    if (t->by_value) {
        values[0] = t->number;
        return;
    }
    if (t->is_virtual) return;
    do tshi_cpu_convert_base(NULL, 1, dtype_of(t->type), in_memory(t, i), TSH_FLOAT64, &values[at++]);
    while (next(t, &i));
}

static void save(const standin_cudnn_tensor *t, double *values) {
    position i = {{0, 0, 0, 0}};
    int64_t at = 0;
    do {
        values[at] = rounded(t->type, values[at]);
        if (!t->is_virtual)
            tshi_cpu_convert_base(NULL, 1, TSH_FLOAT64, &values[at], dtype_of(t->type), in_memory(t, i));
        at++;
    } while (next(t, &i));
}

/* --- operations --------------------------------------------------------------------------------------------------- */

static double apply(const standin_cudnn_operation *op, position i, double x, double b, double t) {
    switch (op->mode) {
    case TSHI_CUDNN_ADD: return x + b;
    case TSHI_CUDNN_SUB: return x - b;
    case TSHI_CUDNN_MUL: return x * b;
    case TSHI_CUDNN_DIV: return x / b;
    case TSHI_CUDNN_EXP: return exp(x);
    case TSHI_CUDNN_LOG: return log(x);
    case TSHI_CUDNN_IDENTITY: return x;
    case TSHI_CUDNN_GEN_INDEX: return (double)i.at[op->axis];
    case TSHI_CUDNN_CMP_GE: return x >= b;
    case TSHI_CUDNN_BINARY_SELECT: return t != 0 ? x : b;
    default: standin_cudnn_die("a mode that it does not know");
    }
}

static void pointwise(const standin_cudnn_graph *g, const standin_cudnn_operation *op, double **v) {
    const standin_cudnn_tensor *t = g->tensors, *y = &t[op->y];
    position i = {{0, 0, 0, 0}};
    int64_t at = 0;
    do {
        double x = v[op->x][place(&t[op->x], i, y)];
        double b = op->b >= 0 ? v[op->b][place(&t[op->b], i, y)] : 0;
        double choice = op->t >= 0 ? v[op->t][place(&t[op->t], i, y)] : 0;
        v[op->y][at++] = apply(op, i, x, b, choice);
    } while (next(y, &i));
}

static void reduce(const standin_cudnn_graph *g, const standin_cudnn_operation *op, double **v) {
    const standin_cudnn_tensor *x = &g->tensors[op->x], *y = &g->tensors[op->y];
    bool most = op->mode == TSHI_CUDNN_REDUCE_MAX;
    position i = {{0, 0, 0, 0}};
    int64_t at = 0, n = standin_cudnn_elements(y);
    for (int64_t k = 0; k < n; k++) v[op->y][k] = most ? -INFINITY : 0;
    do {
        double *to = &v[op->y][place(y, i, x)], value = v[op->x][at++];
        *to = most ? fmax(*to, value) : *to + value;
    } while (next(x, &i));
}

static void multiply(const standin_cudnn_graph *g, const standin_cudnn_operation *op, double **v) {
    const standin_cudnn_tensor *a = &g->tensors[op->x], *b = &g->tensors[op->b], *c = &g->tensors[op->y];
    position i = {{0, 0, 0, 0}};
    int64_t at = 0, k = a->dims[3], columns = b->dims[3], sharers = a->dims[1] / b->dims[1];
    do {
        const double *left = v[op->x] + ((i.at[0] * a->dims[1] + i.at[1]) * a->dims[2] + i.at[2]) * k;
        const double *right = v[op->b] + (i.at[0] * b->dims[1] + i.at[1] / sharers) * k * columns + i.at[3];
        double sum = 0;
        for (int64_t l = 0; l < k; l++) sum += left[l] * right[l * columns];
        v[op->y][at++] = sum;
    } while (next(c, &i));
}

static void transpose(const standin_cudnn_graph *g, const standin_cudnn_operation *op, double **v) {
    const standin_cudnn_tensor *x = &g->tensors[op->x], *y = &g->tensors[op->y];
    position i = {{0, 0, 0, 0}};
    int64_t at = 0;
    do {
        position from = {{i.at[0], i.at[1], i.at[3], i.at[2]}};
        v[op->y][at++] = v[op->x][place(x, from, x)];
    } while (next(y, &i));
}

void standin_cudnn_compute(const standin_cudnn_graph *g) {
    double *v[STANDIN_CUDNN_MOST];
    for (int t = 0; t < g->tensor_count; t++) {
        v[t] = malloc((size_t)standin_cudnn_elements(&g->tensors[t]) * sizeof **v);
        load(&g->tensors[t], v[t]);
    }
    for (int i = 0; i < g->operation_count; i++) {
        const standin_cudnn_operation *op = &g->operations[i];
        switch (op->kind) {
        case TSHI_CUDNN_POINTWISE_OPERATION: pointwise(g, op, v); break;
        case TSHI_CUDNN_REDUCTION_OPERATION: reduce(g, op, v); break;
        case TSHI_CUDNN_MATMUL_OPERATION: multiply(g, op, v); break;
        default: transpose(g, op, v);
        }
        save(&g->tensors[op->y], v[op->y]);
    }
    for (int t = 0; t < g->tensor_count; t++) free(v[t]);
}
