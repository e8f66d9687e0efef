/* Attention as a graph of cuDNN operations, and cuDNN's plan of a graph. */
#ifndef TSHI_CUDNN_GRAPH_H
#define TSHI_CUDNN_GRAPH_H

#include "device/cuda/cudnn/api.h"
#include "device/kernels.h"

/* A tensor [batch, heads, rows, columns] is stored in memory, virtual (between operations only), or one number that the
 * host passes. */
typedef enum tshi_cudnn_place { TSHI_CUDNN_STORED, TSHI_CUDNN_VIRTUAL, TSHI_CUDNN_NUMBER } tshi_cudnn_place;

typedef struct tshi_cudnn_tensor {
    int64_t dims[4], strides[4];
    int type;
    tshi_cudnn_place place;
} tshi_cudnn_tensor;

/* y = op(x, b, t). kind: of the operation's descriptor. x, b, t, y: tensor numbers in the graph; -1: no such
 * operand. */
typedef struct tshi_cudnn_operation {
    int kind, mode, type; /* type: the compute type */
    int x, b, t, y;
    int axis; /* of generated indices */
} tshi_cudnn_operation;

/* The tensors that are passed to a run; they come first in the graph, in this order. */
enum {
    TSHI_CUDNN_Q,
    TSHI_CUDNN_K,
    TSHI_CUDNN_V,
    TSHI_CUDNN_O,
    TSHI_CUDNN_STATS, /* [batch, heads, queries, 1], the log-sum-exp of each row */
    TSHI_CUDNN_SCALE,
    TSHI_CUDNN_MINUS_INFINITY,
    TSHI_CUDNN_KEYS, /* the number of keys; below, of queries */
    TSHI_CUDNN_QUERIES,
    TSHI_CUDNN_ONE,
    TSHI_CUDNN_DO,
    TSHI_CUDNN_DQ,
    TSHI_CUDNN_DK,
    TSHI_CUDNN_DV,
    TSHI_CUDNN_DELTA,  /* [batch, heads, queries, 1], float32: the row sums of O * dO */
    TSHI_CUDNN_DQ_SUM, /* dQ in float32 */
    TSHI_CUDNN_PASSED
};

#define TSHI_CUDNN_TENSORS    48
#define TSHI_CUDNN_OPERATIONS 32

typedef struct tshi_cudnn_graph {
    tshi_cudnn_tensor tensors[TSHI_CUDNN_TENSORS];
    tshi_cudnn_operation operations[TSHI_CUDNN_OPERATIONS];
    bool used[TSHI_CUDNN_TENSORS]; /* some operation uses the tensor */
    int tensor_count, operation_count;
} tshi_cudnn_graph;

/* The key of a graph. Compared as bytes, so always zeroed first. */
typedef struct tshi_cudnn_attention {
    int64_t batch, queries, keys, heads, kv_heads, dim;
    int32_t dtype;
    uint8_t causal, backward;
    uint8_t repeats; /* backward: deterministic */
    uint8_t padding;
} tshi_cudnn_attention;

void tshi_cudnn_attention_graph(const tshi_cudnn_attention *a, tshi_cudnn_graph *out);

/* cuDNN's plan of a graph, and the bytes of its workspace. NULL, with cuDNN's message in `why`, if cuDNN has no
 * plan. */
void *tshi_cudnn_plan_new(const tshi_cudnn *lib, void *handle, const tshi_cudnn_graph *graph, int64_t *workspace,
                          char *why, size_t size);

#endif
