/* The stand-in of cuDNN: the calls that the library makes, by the real names, and what tests ask of it. */
#ifndef STANDIN_CUDNN_H
#define STANDIN_CUDNN_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

size_t cudnnGetVersion(void);
const char *cudnnGetErrorString(int status);
void cudnnGetLastErrorString(char *message, size_t size);
int cudnnCreate(void **handle);
int cudnnDestroy(void *handle);
int cudnnSetStream(void *handle, cudaStream_t stream);
int cudnnBackendCreateDescriptor(int kind, void **out);
int cudnnBackendDestroyDescriptor(void *descriptor);
int cudnnBackendSetAttribute(void *descriptor, int name, int type, int64_t count, const void *values);
int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t room, int64_t *count, void *values);
int cudnnBackendFinalize(void *descriptor);
int cudnnBackendExecute(void *handle, void *plan, void *pack);

/* Graphs that have run in this process: attention's forward, and its backward, summing dQ in memory or not. */
typedef enum standin_cudnn_kind { STANDIN_FORWARD, STANDIN_BACKWARD, STANDIN_BACKWARD_REPEATS } standin_cudnn_kind;
uint64_t standin_cudnn_runs(standin_cudnn_kind kind);
/* The version from now on; 0: as before. */
void standin_cudnn_version(size_t version);
/* The workspace that plans want from now on; 0: as before. */
void standin_cudnn_workspace(int64_t bytes);

/* --- between its files -------------------------------------------------------------------------------------------- */

#define STANDIN_CUDNN_MOST 64

typedef struct standin_cudnn_tensor {
    int64_t dims[4], strides[4], id, alignment;
    int type;
    bool is_virtual, by_value;
    void *pointer; /* in a run */
    double number; /* of one that is passed by value, in a run */
} standin_cudnn_tensor;

/* Tensors by number, -1: none. */
typedef struct standin_cudnn_operation {
    int kind, mode, type, x, b, t, y;
    int64_t axis;
} standin_cudnn_operation;

typedef struct standin_cudnn_graph {
    standin_cudnn_tensor tensors[STANDIN_CUDNN_MOST];
    standin_cudnn_operation operations[STANDIN_CUDNN_MOST];
    int tensor_count, operation_count;
} standin_cudnn_graph;

_Noreturn void standin_cudnn_die(const char *message);
/* NULL, or what is wrong with an operation, or with the wiring of a graph. */
const char *standin_cudnn_check_operation(const standin_cudnn_graph *g, const standin_cudnn_operation *op);
const char *standin_cudnn_check_graph(const standin_cudnn_graph *g);
standin_cudnn_kind standin_cudnn_kind_of(const standin_cudnn_graph *g);
int64_t standin_cudnn_elements(const standin_cudnn_tensor *t);
/* Computes the graph's operations one after another. */
void standin_cudnn_compute(const standin_cudnn_graph *g);

#endif
