/* Attention as a graph of cuDNN's operations, and the plan that cuDNN makes of a graph. */
#ifndef TSHI_CUDNN_GRAPH_H
#define TSHI_CUDNN_GRAPH_H

#include "device/cuda/cudnn/api.h"
#include "device/kernels.h"

/* A tensor [batch, heads, rows, columns] is in memory, exists only between operations, or is one number that the host
 * passes. */
typedef enum tshi_cudnn_place { TSHI_CUDNN_STORED, TSHI_CUDNN_VIRTUAL, TSHI_CUDNN_NUMBER } tshi_cudnn_place;

typedef struct tshi_cudnn_tensor {
    int64_t dims[4], strides[4];
    int type;
    tshi_cudnn_place place;
} tshi_cudnn_tensor;

/* y = op(x, b, t): the kind is that of an operation's descriptor; tensors are numbers in the graph, -1 for none. */
typedef struct tshi_cudnn_operation {
    int kind, mode, type; /* type: what it is computed in */
    int x, b, t, y;
    int axis; /* whose indices are generated */
} tshi_cudnn_operation;

/* The tensors of attention that are passed when it runs, in this order at the beginning of a graph's. */
enum {
    TSHI_CUDNN_Q,
    TSHI_CUDNN_K,
    TSHI_CUDNN_V,
    TSHI_CUDNN_O,
    TSHI_CUDNN_STATS, /* [batch, heads, queries, 1], the natural logarithms of the rows' sums of exponentials */
    TSHI_CUDNN_SCALE,
    TSHI_CUDNN_MINUS_INFINITY,
    TSHI_CUDNN_KEYS, /* the number of keys, and of queries */
    TSHI_CUDNN_QUERIES,
    TSHI_CUDNN_ONE,
    TSHI_CUDNN_DO,
    TSHI_CUDNN_DQ,
    TSHI_CUDNN_DK,
    TSHI_CUDNN_DV,
    TSHI_CUDNN_DELTA,  /* [batch, heads, queries, 1], float32: what the rows' products of O and dO sum up to */
    TSHI_CUDNN_DQ_SUM, /* dQ in float32 */
    TSHI_CUDNN_PASSED
};

#define TSHI_CUDNN_TENSORS    48
#define TSHI_CUDNN_OPERATIONS 32

typedef struct tshi_cudnn_graph {
    tshi_cudnn_tensor tensors[TSHI_CUDNN_TENSORS];
    tshi_cudnn_operation operations[TSHI_CUDNN_OPERATIONS];
    bool used[TSHI_CUDNN_TENSORS]; /* by an operation */
    int tensor_count, operation_count;
} tshi_cudnn_graph;

/* A graph depends on these. Compared as bytes: always zeroed first. */
typedef struct tshi_cudnn_attention {
    int64_t batch, queries, keys, heads, kv_heads, dim;
    int32_t dtype;
    uint8_t causal, backward;
    uint8_t repeats; /* backward: the same bits in every run */
    uint8_t padding;
} tshi_cudnn_attention;

void tshi_cudnn_attention_graph(const tshi_cudnn_attention *a, tshi_cudnn_graph *out);

/* The plan of a graph, and the bytes that it needs as its workspace. NULL, with cuDNN's words in `why`, where it has
 * none. */
void *tshi_cudnn_plan_new(const tshi_cudnn *lib, void *handle, const tshi_cudnn_graph *graph, int64_t *workspace,
                          char *why, size_t size);

#endif
