/* Turns a graph into a cuDNN plan. The plan keeps its own copy of the descriptors. */
#include "device/cuda/cudnn/graph.h"

#include <stdio.h>
#include <string.h>

#define MAX_CONFIGS     8
#define MAX_DESCRIPTORS (TSHI_CUDNN_TENSORS + 2 * TSHI_CUDNN_OPERATIONS + 2 + MAX_CONFIGS)
#define ALIGNMENT       16

/* The descriptors of a plan under construction. After a failure no further call is made, and new descriptors are
 * NULL. */
typedef struct builder {
    const tshi_cudnn *lib;
    int status;
    void *made[MAX_DESCRIPTORS];
    int count;
    void *tensors[TSHI_CUDNN_TENSORS];
} builder;

static void *make(builder *b, int kind) {
    void *descriptor = NULL;
    if (b->status == TSHI_CUDNN_SUCCESS) b->status = b->lib->make(kind, &descriptor);
    if (descriptor) b->made[b->count++] = descriptor;
    return descriptor;
}

static void set(builder *b, void *descriptor, int attribute, int type, int64_t count, const void *values) {
    if (b->status == TSHI_CUDNN_SUCCESS) b->status = b->lib->set(descriptor, attribute, type, count, values);
}

static void set_type(builder *b, void *descriptor, int attribute, int type) {
    set(b, descriptor, attribute, TSHI_CUDNN_TYPE_DATA_TYPE, 1, &type);
}

static void set_descriptor(builder *b, void *descriptor, int attribute, void *value) {
    set(b, descriptor, attribute, TSHI_CUDNN_TYPE_DESCRIPTOR, 1, &value);
}

static void finalize(builder *b, void *descriptor) {
    if (b->status == TSHI_CUDNN_SUCCESS) b->status = b->lib->finalize(descriptor);
}

/* --- tensors and operations --------------------------------------------------------------------------------------- */

static void *make_tensor(builder *b, const tshi_cudnn_tensor *t, int number) {
    const int64_t id = number + 1, alignment = ALIGNMENT;
    const bool is_virtual = t->place == TSHI_CUDNN_VIRTUAL, by_value = t->place == TSHI_CUDNN_NUMBER;
    void *d = make(b, TSHI_CUDNN_TENSOR);
    set_type(b, d, TSHI_CUDNN_TENSOR_TYPE, t->type);
    set(b, d, TSHI_CUDNN_TENSOR_DIMS, TSHI_CUDNN_TYPE_INT64, 4, t->dims);
    set(b, d, TSHI_CUDNN_TENSOR_STRIDES, TSHI_CUDNN_TYPE_INT64, 4, t->strides);
    set(b, d, TSHI_CUDNN_TENSOR_ID, TSHI_CUDNN_TYPE_INT64, 1, &id);
    set(b, d, TSHI_CUDNN_TENSOR_ALIGNMENT, TSHI_CUDNN_TYPE_INT64, 1, &alignment);
    set(b, d, TSHI_CUDNN_TENSOR_VIRTUAL, TSHI_CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set(b, d, TSHI_CUDNN_TENSOR_BY_VALUE, TSHI_CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finalize(b, d);
    return d;
}

/* The descriptor of the math (-1: none) and the attributes of a kind of operation. */
typedef struct form {
    int kind, math_kind, mode, mode_type, type, math, x, b, t, y;
} form;

static const form forms[] = {
    {TSHI_CUDNN_POINTWISE_OPERATION, TSHI_CUDNN_POINTWISE, TSHI_CUDNN_POINTWISE_MODE, TSHI_CUDNN_TYPE_POINTWISE_MODE,
     TSHI_CUDNN_POINTWISE_TYPE, TSHI_CUDNN_POINTWISE_MATH, TSHI_CUDNN_POINTWISE_X, TSHI_CUDNN_POINTWISE_B,
     TSHI_CUDNN_POINTWISE_T, TSHI_CUDNN_POINTWISE_Y},
    {TSHI_CUDNN_REDUCTION_OPERATION, TSHI_CUDNN_REDUCTION, TSHI_CUDNN_REDUCTION_OPERATOR,
     TSHI_CUDNN_TYPE_REDUCTION_OPERATOR, TSHI_CUDNN_REDUCTION_TYPE, TSHI_CUDNN_REDUCTION_MATH, TSHI_CUDNN_REDUCTION_X,
     -1, -1, TSHI_CUDNN_REDUCTION_Y},
    {TSHI_CUDNN_MATMUL_OPERATION, TSHI_CUDNN_MATMUL, -1, -1, TSHI_CUDNN_MATMUL_TYPE, TSHI_CUDNN_MATMUL_MATH,
     TSHI_CUDNN_MATMUL_A, TSHI_CUDNN_MATMUL_B, -1, TSHI_CUDNN_MATMUL_C},
    {TSHI_CUDNN_RESHAPE_OPERATION, -1, -1, -1, -1, -1, TSHI_CUDNN_RESHAPE_X, -1, -1, TSHI_CUDNN_RESHAPE_Y},
};

static const form *form_of(int kind) {
    const form *f = forms;
    while (f->kind != kind) f++;
    return f;
}

static void *make_math(builder *b, const form *f, const tshi_cudnn_operation *op) {
    const int64_t axis = op->axis;
    void *d = make(b, f->math_kind);
    if (f->mode >= 0) set(b, d, f->mode, f->mode_type, 1, &op->mode);
    set_type(b, d, f->type, op->type);
    if (op->axis >= 0) set(b, d, TSHI_CUDNN_POINTWISE_AXIS, TSHI_CUDNN_TYPE_INT64, 1, &axis);
    finalize(b, d);
    return d;
}

static void *make_operation(builder *b, const tshi_cudnn_operation *op) {
    const form *f = form_of(op->kind);
    const int tensors[] = {op->x, op->b, op->t, op->y}, attributes[] = {f->x, f->b, f->t, f->y};
    void *math = f->math_kind >= 0 ? make_math(b, f, op) : NULL, *d = make(b, op->kind);
    if (math) set_descriptor(b, d, f->math, math);
    for (int i = 0; i < 4; i++)
        if (tensors[i] >= 0) set_descriptor(b, d, attributes[i], b->tensors[tensors[i]]);
    finalize(b, d);
    return d;
}

static void *make_graph(builder *b, void *handle, const tshi_cudnn_graph *graph) {
    void *operations[TSHI_CUDNN_OPERATIONS], *d;
    for (int i = 0; i < graph->tensor_count; i++)
        if (graph->used[i]) b->tensors[i] = make_tensor(b, &graph->tensors[i], i);
    for (int i = 0; i < graph->operation_count; i++) operations[i] = make_operation(b, &graph->operations[i]);
    d = make(b, TSHI_CUDNN_GRAPH);
    set(b, d, TSHI_CUDNN_GRAPH_OPERATIONS, TSHI_CUDNN_TYPE_DESCRIPTOR, graph->operation_count, operations);
    set(b, d, TSHI_CUDNN_GRAPH_HANDLE, TSHI_CUDNN_TYPE_HANDLE, 1, &handle);
    finalize(b, d);
    return d;
}

/* --- choosing ----------------------------------------------------------------------------------------------------- */

/* The engine configurations of cuDNN's heuristic, the best first. */
static int find_configs(builder *b, void *graph, void **configs) {
    const int mode = TSHI_CUDNN_MODE_A;
    int64_t count = 0;
    void *d = make(b, TSHI_CUDNN_HEURISTIC);
    set_descriptor(b, d, TSHI_CUDNN_HEURISTIC_GRAPH, graph);
    set(b, d, TSHI_CUDNN_HEURISTIC_MODE, TSHI_CUDNN_TYPE_HEURISTIC_MODE, 1, &mode);
    finalize(b, d);
    for (int i = 0; i < MAX_CONFIGS; i++) configs[i] = make(b, TSHI_CUDNN_ENGINE_CONFIG);
    if (b->status == TSHI_CUDNN_SUCCESS)
        b->status =
            b->lib->get(d, TSHI_CUDNN_HEURISTIC_RESULTS, TSHI_CUDNN_TYPE_DESCRIPTOR, MAX_CONFIGS, &count, configs);
    if (b->status != TSHI_CUDNN_SUCCESS) return 0;
    return count < MAX_CONFIGS ? (int)count : MAX_CONFIGS;
}

/* The plan of one configuration; NULL if cuDNN cannot run it. */
static void *try_config(builder *b, void *handle, void *config, int64_t *workspace) {
    int64_t count = 0;
    void *d = NULL;
    b->status = b->lib->make(TSHI_CUDNN_PLAN, &d);
    set_descriptor(b, d, TSHI_CUDNN_PLAN_CONFIG, config);
    set(b, d, TSHI_CUDNN_PLAN_HANDLE, TSHI_CUDNN_TYPE_HANDLE, 1, &handle);
    finalize(b, d);
    if (b->status == TSHI_CUDNN_SUCCESS)
        b->status = b->lib->get(d, TSHI_CUDNN_PLAN_WORKSPACE, TSHI_CUDNN_TYPE_INT64, 1, &count, workspace);
    if (b->status == TSHI_CUDNN_SUCCESS) return d;
    if (d) b->lib->drop(d);
    return NULL;
}

static void explain(const builder *b, char *why, size_t size) {
    char words[256] = "";
    if (b->status == TSHI_CUDNN_SUCCESS) {
        snprintf(why, size, "no engine");
        return;
    }
    b->lib->last_error(words, sizeof words);
    snprintf(why, size, "%s (%d)%s%s", b->lib->status_string(b->status), b->status, words[0] ? ": " : "", words);
}

void *tshi_cudnn_plan_new(const tshi_cudnn *lib, void *handle, const tshi_cudnn_graph *graph, int64_t *workspace,
                          char *why, size_t size) {
    builder b = {.lib = lib};
    void *configs[MAX_CONFIGS], *plan = NULL, *of_graph = make_graph(&b, handle, graph);
    int count = find_configs(&b, of_graph, configs);
    for (int i = 0; i < count && !plan; i++) plan = try_config(&b, handle, configs[i], workspace);
    if (!plan) explain(&b, why, size);
    while (b.count > 0) lib->drop(b.made[--b.count]);
    return plan;
}
