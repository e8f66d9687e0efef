/* The part of cuDNN's backend API that is used: graphs of operations on tensors, and execution plans. The library is
 * loaded at run time, and its headers are not needed: the numbers are those of cuDNN 9's cudnn_graph.h, and a test
 * compares them if that header is installed. */
#ifndef TSHI_CUDNN_API_H
#define TSHI_CUDNN_API_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#define TSHI_CUDNN_MAJOR 9

/* Statuses. */
enum { TSHI_CUDNN_SUCCESS = 0, TSHI_CUDNN_EXECUTION_FAILED = 5000 };

/* Data types. */
enum {
    TSHI_CUDNN_FLOAT = 0,
    TSHI_CUDNN_HALF = 2,
    TSHI_CUDNN_INT32 = 4,
    TSHI_CUDNN_BFLOAT16 = 9,
    TSHI_CUDNN_BOOLEAN = 11
};

/* Modes of a pointwise operation. */
enum {
    TSHI_CUDNN_ADD = 0,
    TSHI_CUDNN_MUL = 1,
    TSHI_CUDNN_DIV = 6,
    TSHI_CUDNN_SUB = 9,
    TSHI_CUDNN_EXP = 13,
    TSHI_CUDNN_LOG = 15,
    TSHI_CUDNN_IDENTITY = 21,
    TSHI_CUDNN_CMP_GE = 303,
    TSHI_CUDNN_GEN_INDEX = 501,
    TSHI_CUDNN_BINARY_SELECT = 601
};

/* Operators of a reduction. */
enum { TSHI_CUDNN_REDUCE_ADD = 0, TSHI_CUDNN_REDUCE_MAX = 3 };

/* Kinds of descriptors. */
enum {
    TSHI_CUDNN_POINTWISE = 0,
    TSHI_CUDNN_ENGINE_CONFIG = 3,
    TSHI_CUDNN_HEURISTIC = 4,
    TSHI_CUDNN_PLAN = 5,
    TSHI_CUDNN_POINTWISE_OPERATION = 13,
    TSHI_CUDNN_GRAPH = 15,
    TSHI_CUDNN_VARIANT_PACK = 16,
    TSHI_CUDNN_TENSOR = 17,
    TSHI_CUDNN_MATMUL = 18,
    TSHI_CUDNN_MATMUL_OPERATION = 19,
    TSHI_CUDNN_REDUCTION = 21,
    TSHI_CUDNN_REDUCTION_OPERATION = 22,
    TSHI_CUDNN_RESHAPE_OPERATION = 31
};

/* Types of attributes. */
enum {
    TSHI_CUDNN_TYPE_HANDLE = 0,
    TSHI_CUDNN_TYPE_DATA_TYPE = 1,
    TSHI_CUDNN_TYPE_BOOLEAN = 2,
    TSHI_CUDNN_TYPE_INT64 = 3,
    TSHI_CUDNN_TYPE_POINTER = 6,
    TSHI_CUDNN_TYPE_HEURISTIC_MODE = 8,
    TSHI_CUDNN_TYPE_POINTWISE_MODE = 14,
    TSHI_CUDNN_TYPE_DESCRIPTOR = 15,
    TSHI_CUDNN_TYPE_REDUCTION_OPERATOR = 18
};

/* Attributes. */
enum {
    TSHI_CUDNN_POINTWISE_MODE = 0,
    TSHI_CUDNN_POINTWISE_TYPE = 1,
    TSHI_CUDNN_POINTWISE_AXIS = 9,
    TSHI_CUDNN_HEURISTIC_MODE = 200,
    TSHI_CUDNN_HEURISTIC_GRAPH = 201,
    TSHI_CUDNN_HEURISTIC_RESULTS = 202,
    TSHI_CUDNN_PLAN_HANDLE = 400,
    TSHI_CUDNN_PLAN_CONFIG = 401,
    TSHI_CUDNN_PLAN_WORKSPACE = 402,
    TSHI_CUDNN_POINTWISE_MATH = 750,
    TSHI_CUDNN_POINTWISE_X = 751,
    TSHI_CUDNN_POINTWISE_B = 752,
    TSHI_CUDNN_POINTWISE_Y = 753,
    TSHI_CUDNN_POINTWISE_T = 758,
    TSHI_CUDNN_GRAPH_HANDLE = 800,
    TSHI_CUDNN_GRAPH_OPERATIONS = 801,
    TSHI_CUDNN_TENSOR_ALIGNMENT = 900,
    TSHI_CUDNN_TENSOR_TYPE = 901,
    TSHI_CUDNN_TENSOR_DIMS = 902,
    TSHI_CUDNN_TENSOR_STRIDES = 903,
    TSHI_CUDNN_TENSOR_ID = 906,
    TSHI_CUDNN_TENSOR_VIRTUAL = 907,
    TSHI_CUDNN_TENSOR_BY_VALUE = 908,
    TSHI_CUDNN_PACK_IDS = 1000,
    TSHI_CUDNN_PACK_POINTERS = 1001,
    TSHI_CUDNN_PACK_WORKSPACE = 1003,
    TSHI_CUDNN_MATMUL_TYPE = 1500,
    TSHI_CUDNN_MATMUL_A = 1520,
    TSHI_CUDNN_MATMUL_B = 1521,
    TSHI_CUDNN_MATMUL_C = 1522,
    TSHI_CUDNN_MATMUL_MATH = 1523,
    TSHI_CUDNN_REDUCTION_OPERATOR = 1600,
    TSHI_CUDNN_REDUCTION_TYPE = 1601,
    TSHI_CUDNN_REDUCTION_X = 1610,
    TSHI_CUDNN_REDUCTION_Y = 1611,
    TSHI_CUDNN_REDUCTION_MATH = 1612,
    TSHI_CUDNN_RESHAPE_X = 2200,
    TSHI_CUDNN_RESHAPE_Y = 2201
};

enum { TSHI_CUDNN_MODE_A = 3 }; /* a heuristic mode */

/* The library's functions; each int is a status. */
typedef struct tshi_cudnn {
    void *library;
    size_t (*version)(void);
    const char *(*status_string)(int status);
    void (*last_error)(char *message, size_t size);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, cudaStream_t stream);
    int (*make)(int kind, void **descriptor);
    int (*drop)(void *descriptor);
    int (*set)(void *descriptor, int attribute, int type, int64_t count, const void *values);
    int (*get)(void *descriptor, int attribute, int type, int64_t capacity, int64_t *count, void *values);
    int (*finalize)(void *descriptor);
    int (*execute)(void *handle, void *plan, void *pack);
} tshi_cudnn;

#endif
