/* Scaled dot-product attention as the graph that cuDNN's fused engines recognise, which fixes the operations and their
 * order. Tensors that are not passed are virtual. The last two dims are a matrix's rows and columns; K, and in the
 * backward V, are passed transposed. */
#include "device/cuda/cudnn/graph.h"

#include <string.h>

static int type_of(int32_t dtype) {
    return dtype == TSH_BFLOAT16 ? TSHI_CUDNN_BFLOAT16 : TSHI_CUDNN_HALF;
}

/* --- building ----------------------------------------------------------------------------------------------------- */

typedef struct shape {
    int64_t dims[4];
} shape;

static tshi_cudnn_tensor packed(shape s, int type, tshi_cudnn_place place) {
    tshi_cudnn_tensor t = {.type = type, .place = place, .strides = {0, 0, 0, 1}};
    memcpy(t.dims, s.dims, sizeof t.dims);
    for (int d = 2; d >= 0; d--) t.strides[d] = t.strides[d + 1] * s.dims[d + 1];
    return t;
}

/* A tensor [batch, rows, heads, columns] in memory, with heads before rows. */
static tshi_cudnn_tensor by_heads(int64_t batch, int64_t rows, int64_t heads, int64_t columns, int type) {
    return (tshi_cudnn_tensor){.dims = {batch, heads, rows, columns},
                               .strides = {rows * heads * columns, columns, heads * columns, 1},
                               .type = type,
                               .place = TSHI_CUDNN_STORED};
}

static tshi_cudnn_tensor transposed(tshi_cudnn_tensor t) {
    int64_t rows = t.dims[2], step = t.strides[2];
    t.dims[2] = t.dims[3];
    t.strides[2] = t.strides[3];
    t.dims[3] = rows;
    t.strides[3] = step;
    return t;
}

static int add(tshi_cudnn_graph *g, tshi_cudnn_tensor t) {
    g->tensors[g->tensor_count] = t;
    return g->tensor_count++;
}

static int virtual_of(tshi_cudnn_graph *g, shape s, int type) {
    return add(g, packed(s, type, TSHI_CUDNN_VIRTUAL));
}

static shape shape_of(const tshi_cudnn_graph *g, int tensor) {
    shape s;
    memcpy(s.dims, g->tensors[tensor].dims, sizeof s.dims);
    return s;
}

static void operate(tshi_cudnn_graph *g, tshi_cudnn_operation op) {
    int tensors[] = {op.x, op.b, op.t, op.y};
    for (int i = 0; i < 4; i++)
        if (tensors[i] >= 0) g->used[tensors[i]] = true;
    g->operations[g->operation_count++] = op;
}

static void pointwise_to(tshi_cudnn_graph *g, int mode, int x, int b, int y) {
    operate(g, (tshi_cudnn_operation){TSHI_CUDNN_POINTWISE_OPERATION, mode, TSHI_CUDNN_FLOAT, x, b, -1, y, -1});
}

/* A virtual tensor of x's shape. */
static int pointwise(tshi_cudnn_graph *g, int mode, int x, int b) {
    int y = virtual_of(g, shape_of(g, x), TSHI_CUDNN_FLOAT);
    pointwise_to(g, mode, x, b, y);
    return y;
}

static void reduce_to(tshi_cudnn_graph *g, int operator, int x, int y) {
    operate(g, (tshi_cudnn_operation){TSHI_CUDNN_REDUCTION_OPERATION, operator, TSHI_CUDNN_FLOAT, x, -1, -1, y, -1});
}

/* A reduction to one number for each row. */
static int reduce_rows(tshi_cudnn_graph *g, int operator, int x) {
    shape s = shape_of(g, x);
    s.dims[3] = 1;
    int y = virtual_of(g, s, TSHI_CUDNN_FLOAT);
    reduce_to(g, operator, x, y);
    return y;
}

static void multiply_to(tshi_cudnn_graph *g, int a, int b, int c) {
    operate(g, (tshi_cudnn_operation){TSHI_CUDNN_MATMUL_OPERATION, 0, TSHI_CUDNN_FLOAT, a, b, -1, c, -1});
}

/* The matrix product a b, with a's batch and heads. */
static int multiply(tshi_cudnn_graph *g, int a, int b, int type) {
    shape s = shape_of(g, a);
    s.dims[3] = g->tensors[b].dims[3];
    int c = virtual_of(g, s, type);
    multiply_to(g, a, b, c);
    return c;
}

/* x transposed: a view, of a virtual or a stored tensor. */
static int transpose(tshi_cudnn_graph *g, int x, int type) {
    tshi_cudnn_tensor t = transposed(g->tensors[x]);
    t.type = type;
    t.place = TSHI_CUDNN_VIRTUAL;
    int y = add(g, t);
    operate(g, (tshi_cudnn_operation){TSHI_CUDNN_RESHAPE_OPERATION, 0, TSHI_CUDNN_FLOAT, x, -1, -1, y, -1});
    return y;
}

/* An integer tensor of the scores' shape: an index along `axis`, or such a tensor plus or minus a number. */
static int integers(tshi_cudnn_graph *g, int mode, int x, int b, int axis) {
    int y = virtual_of(g, shape_of(g, x), TSHI_CUDNN_INT32);
    int type = mode == TSHI_CUDNN_GEN_INDEX ? TSHI_CUDNN_FLOAT : TSHI_CUDNN_INT32;
    operate(g, (tshi_cudnn_operation){TSHI_CUDNN_POINTWISE_OPERATION, mode, type, x, b, -1, y, axis});
    return y;
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

static void describe_passed(const tshi_cudnn_attention *a, tshi_cudnn_graph *g) {
    const int type = type_of(a->dtype);
    const tshi_cudnn_tensor of_queries = by_heads(a->batch, a->queries, a->heads, a->dim, type);
    const tshi_cudnn_tensor of_keys = by_heads(a->batch, a->keys, a->kv_heads, a->dim, type);
    const shape rows = {{a->batch, a->heads, a->queries, 1}}, one = {{1, 1, 1, 1}};
    const shape whole = {{a->batch, a->heads, a->queries, a->dim}};
    const tshi_cudnn_tensor number = packed(one, TSHI_CUDNN_FLOAT, TSHI_CUDNN_NUMBER);
    const tshi_cudnn_tensor count = packed(one, TSHI_CUDNN_INT32, TSHI_CUDNN_NUMBER);
    const tshi_cudnn_tensor sums = packed(rows, TSHI_CUDNN_FLOAT, TSHI_CUDNN_STORED);
    const tshi_cudnn_tensor passed[TSHI_CUDNN_PASSED] = {
        [TSHI_CUDNN_Q] = of_queries,
        [TSHI_CUDNN_K] = transposed(of_keys),
        [TSHI_CUDNN_V] = a->backward ? transposed(of_keys) : of_keys,
        [TSHI_CUDNN_O] = of_queries,
        [TSHI_CUDNN_STATS] = sums,
        [TSHI_CUDNN_SCALE] = number,
        [TSHI_CUDNN_MINUS_INFINITY] = number,
        [TSHI_CUDNN_KEYS] = count,
        [TSHI_CUDNN_QUERIES] = count,
        [TSHI_CUDNN_ONE] = number,
        [TSHI_CUDNN_DO] = of_queries,
        [TSHI_CUDNN_DQ] = of_queries,
        [TSHI_CUDNN_DK] = of_keys,
        [TSHI_CUDNN_DV] = of_keys,
        [TSHI_CUDNN_DELTA] = sums,
        [TSHI_CUDNN_DQ_SUM] = packed(whole, TSHI_CUDNN_FLOAT, TSHI_CUDNN_STORED),
    };
    memcpy(g->tensors, passed, sizeof passed);
    g->tensor_count = TSHI_CUDNN_PASSED;
}

/* Query i sees key j where i + keys - queries >= j. */
static int mask(const tshi_cudnn_attention *a, tshi_cudnn_graph *g, int scores) {
    if (!a->causal) return scores;
    int row = integers(g, TSHI_CUDNN_GEN_INDEX, scores, -1, 2);
    int column = integers(g, TSHI_CUDNN_GEN_INDEX, scores, -1, 3);
    if (a->queries != a->keys) {
        row = integers(g, TSHI_CUDNN_ADD, row, TSHI_CUDNN_KEYS, -1);
        row = integers(g, TSHI_CUDNN_SUB, row, TSHI_CUDNN_QUERIES, -1);
    }
    int sees = virtual_of(g, shape_of(g, scores), TSHI_CUDNN_BOOLEAN);
    int masked = virtual_of(g, shape_of(g, scores), TSHI_CUDNN_FLOAT);
    operate(g, (tshi_cudnn_operation){TSHI_CUDNN_POINTWISE_OPERATION, TSHI_CUDNN_CMP_GE, TSHI_CUDNN_BOOLEAN, row,
                                      column, -1, sees, -1});
    operate(g, (tshi_cudnn_operation){TSHI_CUDNN_POINTWISE_OPERATION, TSHI_CUDNN_BINARY_SELECT, TSHI_CUDNN_FLOAT,
                                      scores, TSHI_CUDNN_MINUS_INFINITY, sees, masked, -1});
    return masked;
}

static void forward(const tshi_cudnn_attention *a, tshi_cudnn_graph *g) {
    int scores = multiply(g, TSHI_CUDNN_Q, TSHI_CUDNN_K, TSHI_CUDNN_FLOAT);
    scores = mask(a, g, pointwise(g, TSHI_CUDNN_MUL, scores, TSHI_CUDNN_SCALE));
    int most = reduce_rows(g, TSHI_CUDNN_REDUCE_MAX, scores);
    int power = pointwise(g, TSHI_CUDNN_EXP, pointwise(g, TSHI_CUDNN_SUB, scores, most), -1);
    int sum = reduce_rows(g, TSHI_CUDNN_REDUCE_ADD, power);
    pointwise_to(g, TSHI_CUDNN_ADD, most, pointwise(g, TSHI_CUDNN_LOG, sum, -1), TSHI_CUDNN_STATS);
    int part = virtual_of(g, shape_of(g, power), type_of(a->dtype));
    pointwise_to(g, TSHI_CUDNN_DIV, power, sum, part);
    multiply_to(g, part, TSHI_CUDNN_V, TSHI_CUDNN_O);
}

/* z = x^T y. If z has fewer heads than x, each of its heads is the sum over a group of x's heads. */
static void multiply_by_heads(const tshi_cudnn_attention *a, tshi_cudnn_graph *g, int x, int y, int z) {
    const int type = type_of(a->dtype), transposed = transpose(g, x, type);
    if (a->heads == a->kv_heads)
        multiply_to(g, transposed, y, z);
    else
        reduce_to(g, TSHI_CUDNN_REDUCE_ADD, multiply(g, transposed, y, type), z);
}

static void backward(const tshi_cudnn_attention *a, tshi_cudnn_graph *g) {
    int delta = reduce_rows(g, TSHI_CUDNN_REDUCE_ADD, pointwise(g, TSHI_CUDNN_MUL, TSHI_CUDNN_DO, TSHI_CUDNN_O));
    pointwise_to(g, TSHI_CUDNN_MUL, delta, TSHI_CUDNN_ONE, TSHI_CUDNN_DELTA);
    int scores = multiply(g, TSHI_CUDNN_Q, TSHI_CUDNN_K, TSHI_CUDNN_FLOAT);
    scores = pointwise(g, TSHI_CUDNN_MUL, scores, TSHI_CUDNN_SCALE);
    scores = mask(a, g, pointwise(g, TSHI_CUDNN_SUB, scores, TSHI_CUDNN_STATS));
    int part = pointwise(g, TSHI_CUDNN_EXP, scores, -1);
    multiply_by_heads(a, g, part, TSHI_CUDNN_DO, TSHI_CUDNN_DV);
    int slope = multiply(g, TSHI_CUDNN_DO, TSHI_CUDNN_V, TSHI_CUDNN_FLOAT);
    slope = pointwise(g, TSHI_CUDNN_SUB, slope, TSHI_CUDNN_DELTA);
    slope = pointwise(g, TSHI_CUDNN_MUL, slope, part);
    slope = pointwise(g, TSHI_CUDNN_MUL, slope, TSHI_CUDNN_SCALE);
    multiply_by_heads(a, g, slope, TSHI_CUDNN_Q, TSHI_CUDNN_DK);
    int keys = transpose(g, TSHI_CUDNN_K, type_of(a->dtype));
    multiply_to(g, slope, keys, a->repeats ? TSHI_CUDNN_DQ : TSHI_CUDNN_DQ_SUM);
    if (!a->repeats) pointwise_to(g, TSHI_CUDNN_IDENTITY, TSHI_CUDNN_DQ_SUM, -1, TSHI_CUDNN_DQ);
}

void tshi_cudnn_attention_graph(const tshi_cudnn_attention *a, tshi_cudnn_graph *out) {
    memset(out, 0, sizeof *out);
    describe_passed(a, out);
    if (a->backward)
        backward(a, out);
    else
        forward(a, out);
}
