/* cuDNN's descriptors on the host: what the real library refuses or leaves undefined in them ends the program with a
 * message, and what it has no engine for is refused by its status. */
#include "standin/cudnn.h"
#include "standin/runtime.h"

#include "device/cuda/cudnn/api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BAD_PARAM     2000
#define NOT_SUPPORTED 3000
#define VALUES        64 /* of an attribute */

typedef struct attribute {
    int name, type;
    int64_t count;
    char values[VALUES * 8];
    struct attribute *next;
} attribute;

typedef struct descriptor {
    int kind;
    bool final;
    attribute *attributes;
    standin_cudnn_graph *graph; /* of a graph, a configuration, a plan */
    int config;                 /* its number */
} descriptor;

typedef struct handle {
    cudaStream_t stream;
    int gpu;
} handle;

/* A run that is queued: the graph with its pointers, and its workspace. */
typedef struct run {
    standin_cudnn_graph graph;
    char *workspace;
    int64_t bytes;
    int gpu;
} run;

static uint64_t runs[3];
static size_t version;
static int64_t workspace;

_Noreturn void standin_cudnn_die(const char *message) {
    fprintf(stderr, "cuDNN stand-in: %s\n", message);
    abort();
}

static bool fails(const char *name, int *status) {
    int code = 4000;
    bool f = standin_call(name, &code);
    *status = f ? code : 0;
    return f;
}

uint64_t standin_cudnn_runs(standin_cudnn_kind kind) {
    return runs[kind];
}

void standin_cudnn_version(size_t number) {
    version = number;
}

void standin_cudnn_workspace(int64_t bytes) {
    workspace = bytes;
}

size_t cudnnGetVersion(void) {
    return version ? version : 91900;
}

const char *cudnnGetErrorString(int status) {
    return status == NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "another status of cuDNN";
}

void cudnnGetLastErrorString(char *message, size_t size) {
    snprintf(message, size, "the stand-in says no");
}

int cudnnCreate(void **out) {
    int status;
    *out = NULL;
    if (fails("cudnnCreate", &status)) return status;
    if (!standin_wait_idle(standin_current())) standin_cudnn_die("its start waits for calls that nothing ends");
    handle *made = calloc(1, sizeof *made);
    made->gpu = standin_current();
    *out = made;
    standin_count("cuDNN handle", 1);
    return 0;
}

int cudnnDestroy(void *h) {
    if (((handle *)h)->gpu != standin_current())
        standin_cudnn_die("a handle is destroyed while another GPU is current");
    free(h);
    standin_count("cuDNN handle", -1);
    return 0;
}

int cudnnSetStream(void *h, cudaStream_t stream) {
    int status;
    if (fails("cudnnSetStream", &status)) return status;
    ((handle *)h)->stream = stream;
    return 0;
}

/* --- descriptors -------------------------------------------------------------------------------------------------- */

int cudnnBackendCreateDescriptor(int kind, void **out) {
    int status;
    *out = NULL;
    if (fails("cudnnBackendCreateDescriptor", &status)) return status;
    descriptor *d = calloc(1, sizeof *d);
    d->kind = kind;
    *out = d;
    standin_count("cuDNN descriptor", 1);
    return 0;
}

int cudnnBackendDestroyDescriptor(void *p) {
    descriptor *d = p;
    if (!d) standin_cudnn_die("no descriptor is destroyed");
    for (attribute *a = d->attributes, *next; a; a = next) {
        next = a->next;
        free(a);
    }
    free(d->graph);
    free(d);
    standin_count("cuDNN descriptor", -1);
    return 0;
}

/* The attributes by the kind of descriptor that has them, each with its type and the most values. */
static const struct {
    int kind, name, type, most;
} known[] = {
    {TSHI_CUDNN_TENSOR, TSHI_CUDNN_TENSOR_TYPE, TSHI_CUDNN_TYPE_DATA_TYPE, 1},
    {TSHI_CUDNN_TENSOR, TSHI_CUDNN_TENSOR_DIMS, TSHI_CUDNN_TYPE_INT64, 4},
    {TSHI_CUDNN_TENSOR, TSHI_CUDNN_TENSOR_STRIDES, TSHI_CUDNN_TYPE_INT64, 4},
    {TSHI_CUDNN_TENSOR, TSHI_CUDNN_TENSOR_ID, TSHI_CUDNN_TYPE_INT64, 1},
    {TSHI_CUDNN_TENSOR, TSHI_CUDNN_TENSOR_ALIGNMENT, TSHI_CUDNN_TYPE_INT64, 1},
    {TSHI_CUDNN_TENSOR, TSHI_CUDNN_TENSOR_VIRTUAL, TSHI_CUDNN_TYPE_BOOLEAN, 1},
    {TSHI_CUDNN_TENSOR, TSHI_CUDNN_TENSOR_BY_VALUE, TSHI_CUDNN_TYPE_BOOLEAN, 1},
    {TSHI_CUDNN_POINTWISE, TSHI_CUDNN_POINTWISE_MODE, TSHI_CUDNN_TYPE_POINTWISE_MODE, 1},
    {TSHI_CUDNN_POINTWISE, TSHI_CUDNN_POINTWISE_TYPE, TSHI_CUDNN_TYPE_DATA_TYPE, 1},
    {TSHI_CUDNN_POINTWISE, TSHI_CUDNN_POINTWISE_AXIS, TSHI_CUDNN_TYPE_INT64, 1},
    {TSHI_CUDNN_REDUCTION, TSHI_CUDNN_REDUCTION_OPERATOR, TSHI_CUDNN_TYPE_REDUCTION_OPERATOR, 1},
    {TSHI_CUDNN_REDUCTION, TSHI_CUDNN_REDUCTION_TYPE, TSHI_CUDNN_TYPE_DATA_TYPE, 1},
    {TSHI_CUDNN_MATMUL, TSHI_CUDNN_MATMUL_TYPE, TSHI_CUDNN_TYPE_DATA_TYPE, 1},
    {TSHI_CUDNN_POINTWISE_OPERATION, TSHI_CUDNN_POINTWISE_MATH, TSHI_CUDNN_TYPE_DESCRIPTOR, 1},
    {TSHI_CUDNN_POINTWISE_OPERATION, TSHI_CUDNN_POINTWISE_X, TSHI_CUDNN_TYPE_DESCRIPTOR, 1},
    {TSHI_CUDNN_POINTWISE_OPERATION, TSHI_CUDNN_POINTWISE_B, TSHI_CUDNN_TYPE_DESCRIPTOR, 1},
    {TSHI_CUDNN_POINTWISE_OPERATION, TSHI_CUDNN_POINTWISE_T, TSHI_CUDNN_TYPE_DESCRIPTOR, 1},
    {TSHI_CUDNN_POINTWISE_OPERATION, TSHI_CUDNN_POINTWISE_Y, TSHI_CUDNN_TYPE_DESCRIPTOR, 1},
    {TSHI_CUDNN_REDUCTION_OPERATION, TSHI_CUDNN_REDUCTION_MATH, TSHI_CUDNN_TYPE_DESCRIPTOR, 1},
    {TSHI_CUDNN_REDUCTION_OPERATION, TSHI_CUDNN_REDUCTION_X, TSHI_CUDNN_TYPE_DESCRIPTOR, 1},
    {TSHI_CUDNN_REDUCTION_OPERATION, TSHI_CUDNN_REDUCTION_Y, TSHI_CUDNN_TYPE_DESCRIPTOR, 1},
    {TSHI_CUDNN_MATMUL_OPERATION, TSHI_CUDNN_MATMUL_MATH, TSHI_CUDNN_TYPE_DESCRIPTOR, 1},
    {TSHI_CUDNN_MATMUL_OPERATION, TSHI_CUDNN_MATMUL_A, TSHI_CUDNN_TYPE_DESCRIPTOR, 1},
    {TSHI_CUDNN_MATMUL_OPERATION, TSHI_CUDNN_MATMUL_B, TSHI_CUDNN_TYPE_DESCRIPTOR, 1},
    {TSHI_CUDNN_MATMUL_OPERATION, TSHI_CUDNN_MATMUL_C, TSHI_CUDNN_TYPE_DESCRIPTOR, 1},
    {TSHI_CUDNN_RESHAPE_OPERATION, TSHI_CUDNN_RESHAPE_X, TSHI_CUDNN_TYPE_DESCRIPTOR, 1},
    {TSHI_CUDNN_RESHAPE_OPERATION, TSHI_CUDNN_RESHAPE_Y, TSHI_CUDNN_TYPE_DESCRIPTOR, 1},
    {TSHI_CUDNN_GRAPH, TSHI_CUDNN_GRAPH_OPERATIONS, TSHI_CUDNN_TYPE_DESCRIPTOR, VALUES},
    {TSHI_CUDNN_GRAPH, TSHI_CUDNN_GRAPH_HANDLE, TSHI_CUDNN_TYPE_HANDLE, 1},
    {TSHI_CUDNN_HEURISTIC, TSHI_CUDNN_HEURISTIC_GRAPH, TSHI_CUDNN_TYPE_DESCRIPTOR, 1},
    {TSHI_CUDNN_HEURISTIC, TSHI_CUDNN_HEURISTIC_MODE, TSHI_CUDNN_TYPE_HEURISTIC_MODE, 1},
    {TSHI_CUDNN_PLAN, TSHI_CUDNN_PLAN_CONFIG, TSHI_CUDNN_TYPE_DESCRIPTOR, 1},
    {TSHI_CUDNN_PLAN, TSHI_CUDNN_PLAN_HANDLE, TSHI_CUDNN_TYPE_HANDLE, 1},
    {TSHI_CUDNN_VARIANT_PACK, TSHI_CUDNN_PACK_IDS, TSHI_CUDNN_TYPE_INT64, VALUES},
    {TSHI_CUDNN_VARIANT_PACK, TSHI_CUDNN_PACK_POINTERS, TSHI_CUDNN_TYPE_POINTER, VALUES},
    {TSHI_CUDNN_VARIANT_PACK, TSHI_CUDNN_PACK_WORKSPACE, TSHI_CUDNN_TYPE_POINTER, 1},
};

static size_t size_of(int type) {
    switch (type) {
    case TSHI_CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case TSHI_CUDNN_TYPE_INT64: return sizeof(int64_t);
    case TSHI_CUDNN_TYPE_HANDLE:
    case TSHI_CUDNN_TYPE_POINTER:
    case TSHI_CUDNN_TYPE_DESCRIPTOR: return sizeof(void *);
    default: return sizeof(int);
    }
}

int cudnnBackendSetAttribute(void *p, int name, int type, int64_t count, const void *values) {
    descriptor *d = p;
    size_t i = 0, all = sizeof known / sizeof *known;
    int status;
    if (fails("cudnnBackendSetAttribute", &status)) return status;
    if (!d || d->final) standin_cudnn_die("an attribute of no descriptor, or of one that is final");
    while (i < all && (known[i].kind != d->kind || known[i].name != name)) i++;
    if (i == all) standin_cudnn_die("an attribute that this kind of descriptor does not have");
    if (known[i].type != type) standin_cudnn_die("an attribute of another type");
    if (count < 1 || count > known[i].most) standin_cudnn_die("too many values of an attribute, or none");
    attribute *a = calloc(1, sizeof *a);
    *a = (attribute){.name = name, .type = type, .count = count, .next = d->attributes};
    memcpy(a->values, values, (size_t)count * size_of(type));
    d->attributes = a;
    return 0;
}

static const attribute *find(const descriptor *d, int name) {
    const attribute *a = d->attributes;
    while (a && a->name != name) a = a->next;
    return a;
}

static const void *wanted(const descriptor *d, int name, int64_t *count) {
    const attribute *a = find(d, name);
    if (!a) standin_cudnn_die("a descriptor without an attribute that it wants");
    if (count) *count = a->count;
    return a->values;
}

static int wanted_int(const descriptor *d, int name) {
    return *(const int *)wanted(d, name, NULL);
}

static int64_t wanted_int64(const descriptor *d, int name) {
    return *(const int64_t *)wanted(d, name, NULL);
}

/* A final descriptor of this kind. */
static descriptor *as_final(void *p, int kind) {
    descriptor *d = p;
    if (!d || d->kind != kind || !d->final) standin_cudnn_die("a descriptor of another kind, or one that is not final");
    return d;
}

static descriptor *wanted_descriptor(const descriptor *d, int name, int kind) {
    return as_final(*(void *const *)wanted(d, name, NULL), kind);
}

/* --- finalizing --------------------------------------------------------------------------------------------------- */

static void read_tensor(const descriptor *d, standin_cudnn_tensor *t) {
    int64_t dims, strides;
    memset(t, 0, sizeof *t);
    memcpy(t->dims, wanted(d, TSHI_CUDNN_TENSOR_DIMS, &dims), sizeof t->dims);
    memcpy(t->strides, wanted(d, TSHI_CUDNN_TENSOR_STRIDES, &strides), sizeof t->strides);
    t->type = wanted_int(d, TSHI_CUDNN_TENSOR_TYPE);
    t->id = wanted_int64(d, TSHI_CUDNN_TENSOR_ID);
    t->alignment = wanted_int64(d, TSHI_CUDNN_TENSOR_ALIGNMENT);
    if (find(d, TSHI_CUDNN_TENSOR_VIRTUAL)) t->is_virtual = *(const bool *)find(d, TSHI_CUDNN_TENSOR_VIRTUAL)->values;
    if (find(d, TSHI_CUDNN_TENSOR_BY_VALUE)) t->by_value = *(const bool *)find(d, TSHI_CUDNN_TENSOR_BY_VALUE)->values;
    if (dims != 4 || strides != 4) standin_cudnn_die("a tensor of another number of dims");
    for (int i = 0; i < 4; i++)
        if (t->dims[i] < 1 || t->strides[i] < 1) standin_cudnn_die("a tensor with an empty dim, or without a stride");
    if (t->is_virtual && t->by_value) standin_cudnn_die("a virtual tensor that is passed by value");
    if (t->by_value && standin_cudnn_elements(t) != 1) standin_cudnn_die("several numbers that are passed by value");
}

/* The number of the tensor in the graph, which has each id once. */
static int number_of(standin_cudnn_graph *g, const descriptor *d, int name) {
    standin_cudnn_tensor t;
    int i = 0;
    if (!find(d, name)) return -1;
    read_tensor(wanted_descriptor(d, name, TSHI_CUDNN_TENSOR), &t);
    while (i < g->tensor_count && g->tensors[i].id != t.id) i++;
    if (i < g->tensor_count && memcmp(&g->tensors[i], &t, sizeof t) != 0) standin_cudnn_die("two tensors of one id");
    if (i == g->tensor_count) g->tensors[g->tensor_count++] = t;
    return i;
}

static void read_operation(const descriptor *d, standin_cudnn_graph *g) {
    standin_cudnn_operation op = {.kind = d->kind, .x = -1, .b = -1, .t = -1, .y = -1, .axis = -1};
    const descriptor *math;
    switch (d->kind) {
    case TSHI_CUDNN_POINTWISE_OPERATION:
        math = wanted_descriptor(d, TSHI_CUDNN_POINTWISE_MATH, TSHI_CUDNN_POINTWISE);
        op.mode = wanted_int(math, TSHI_CUDNN_POINTWISE_MODE);
        op.type = wanted_int(math, TSHI_CUDNN_POINTWISE_TYPE);
        if (find(math, TSHI_CUDNN_POINTWISE_AXIS)) op.axis = wanted_int64(math, TSHI_CUDNN_POINTWISE_AXIS);
        op.x = number_of(g, d, TSHI_CUDNN_POINTWISE_X);
        op.b = number_of(g, d, TSHI_CUDNN_POINTWISE_B);
        op.t = number_of(g, d, TSHI_CUDNN_POINTWISE_T);
        op.y = number_of(g, d, TSHI_CUDNN_POINTWISE_Y);
        break;
    case TSHI_CUDNN_REDUCTION_OPERATION:
        math = wanted_descriptor(d, TSHI_CUDNN_REDUCTION_MATH, TSHI_CUDNN_REDUCTION);
        op.mode = wanted_int(math, TSHI_CUDNN_REDUCTION_OPERATOR);
        op.type = wanted_int(math, TSHI_CUDNN_REDUCTION_TYPE);
        op.x = number_of(g, d, TSHI_CUDNN_REDUCTION_X);
        op.y = number_of(g, d, TSHI_CUDNN_REDUCTION_Y);
        break;
    case TSHI_CUDNN_MATMUL_OPERATION:
        math = wanted_descriptor(d, TSHI_CUDNN_MATMUL_MATH, TSHI_CUDNN_MATMUL);
        op.type = wanted_int(math, TSHI_CUDNN_MATMUL_TYPE);
        op.x = number_of(g, d, TSHI_CUDNN_MATMUL_A);
        op.b = number_of(g, d, TSHI_CUDNN_MATMUL_B);
        op.y = number_of(g, d, TSHI_CUDNN_MATMUL_C);
        break;
    case TSHI_CUDNN_RESHAPE_OPERATION:
        op.x = number_of(g, d, TSHI_CUDNN_RESHAPE_X);
        op.y = number_of(g, d, TSHI_CUDNN_RESHAPE_Y);
        break;
    default: standin_cudnn_die("an operation of another kind");
    }
    const char *wrong = standin_cudnn_check_operation(g, &op);
    if (wrong) standin_cudnn_die(wrong);
    g->operations[g->operation_count++] = op;
}

static void read_graph(descriptor *d) {
    int64_t count;
    void *const *operations = wanted(d, TSHI_CUDNN_GRAPH_OPERATIONS, &count);
    wanted(d, TSHI_CUDNN_GRAPH_HANDLE, NULL);
    d->graph = calloc(1, sizeof *d->graph);
    for (int64_t i = 0; i < count; i++) {
        const descriptor *op = operations[i];
        if (!op || !op->final) standin_cudnn_die("an operation that is not final");
        read_operation(op, d->graph);
    }
    const char *wrong = standin_cudnn_check_graph(d->graph);
    if (wrong) standin_cudnn_die(wrong);
}

static standin_cudnn_graph *copy(const standin_cudnn_graph *g) {
    standin_cudnn_graph *to = malloc(sizeof *to);
    *to = *g;
    return to;
}

/* The first configuration is one that turns out not to run. */
static int finalize_plan(descriptor *d) {
    const descriptor *config = wanted_descriptor(d, TSHI_CUDNN_PLAN_CONFIG, TSHI_CUDNN_ENGINE_CONFIG);
    wanted(d, TSHI_CUDNN_PLAN_HANDLE, NULL);
    if (config->config == 0) return NOT_SUPPORTED;
    if (!standin_wait_idle(standin_current())) standin_cudnn_die("a plan's kernels wait for calls that nothing ends");
    d->graph = copy(config->graph);
    return 0;
}

int cudnnBackendFinalize(void *p) {
    descriptor *d = p;
    int status;
    if (fails("cudnnBackendFinalize", &status)) return status;
    if (!d || d->final) standin_cudnn_die("no descriptor, or one that is final, is finalized");
    standin_cudnn_tensor t;
    if (d->kind == TSHI_CUDNN_TENSOR) read_tensor(d, &t);
    if (d->kind == TSHI_CUDNN_GRAPH) read_graph(d);
    if (d->kind == TSHI_CUDNN_HEURISTIC) {
        d->graph = copy(wanted_descriptor(d, TSHI_CUDNN_HEURISTIC_GRAPH, TSHI_CUDNN_GRAPH)->graph);
        wanted(d, TSHI_CUDNN_HEURISTIC_MODE, NULL);
    }
    if (d->kind == TSHI_CUDNN_PLAN) status = finalize_plan(d);
    d->final = status == 0;
    return status;
}

/* --- asking ------------------------------------------------------------------------------------------------------- */

/* Heads of more than 256 columns, or of columns that are no multiple of 8, have no engine. */
static bool has_engine(const standin_cudnn_graph *g) {
    int64_t columns = g->tensors[g->operations[0].x].dims[3];
    return columns <= 256 && columns % 8 == 0;
}

static int get_configs(const descriptor *d, int64_t room, int64_t *count, void *values) {
    *count = has_engine(d->graph) ? 2 : 0;
    for (int i = 0; i < *count && i < room; i++) {
        descriptor *config = ((void **)values)[i];
        if (!config || config->kind != TSHI_CUDNN_ENGINE_CONFIG || config->final)
            standin_cudnn_die("configurations without descriptors for them");
        config->graph = copy(d->graph);
        config->config = i;
        config->final = true;
    }
    return 0;
}

/* That of a backward which repeats its results holds a matrix of scores, as the real one's. */
static int64_t workspace_of(const standin_cudnn_graph *g) {
    int64_t most = 0;
    if (workspace) return workspace;
    if (standin_cudnn_kind_of(g) != STANDIN_BACKWARD_REPEATS) return 256;
    for (int i = 0; i < g->tensor_count; i++)
        if (standin_cudnn_elements(&g->tensors[i]) > most) most = standin_cudnn_elements(&g->tensors[i]);
    return 2 * most + 256;
}

int cudnnBackendGetAttribute(void *p, int name, int type, int64_t room, int64_t *count, void *values) {
    int status;
    if (fails("cudnnBackendGetAttribute", &status)) return status;
    if (name == TSHI_CUDNN_HEURISTIC_RESULTS && type == TSHI_CUDNN_TYPE_DESCRIPTOR)
        return get_configs(as_final(p, TSHI_CUDNN_HEURISTIC), room, count, values);
    if (name != TSHI_CUDNN_PLAN_WORKSPACE || type != TSHI_CUDNN_TYPE_INT64)
        standin_cudnn_die("a question of another kind");
    *(int64_t *)values = workspace_of(as_final(p, TSHI_CUDNN_PLAN)->graph);
    *count = 1;
    return 0;
}

/* --- running ------------------------------------------------------------------------------------------------------ */

static void pass(standin_cudnn_tensor *t, void *pointer) {
    int64_t last = 0, size = t->type == TSHI_CUDNN_FLOAT || t->type == TSHI_CUDNN_INT32 ? 4 : 2;
    if (!pointer) standin_cudnn_die("no pointer for a tensor");
    if (t->is_virtual || t->pointer) standin_cudnn_die("a pointer for a virtual tensor, or two for one");
    t->pointer = pointer;
    if (t->by_value) {
        t->number = t->type == TSHI_CUDNN_INT32 ? (double)*(int32_t *)pointer : (double)*(float *)pointer;
        return;
    }
    for (int i = 0; i < 4; i++) last += (t->dims[i] - 1) * t->strides[i];
    if ((uintptr_t)pointer % (uintptr_t)t->alignment != 0) standin_cudnn_die("a pointer that is less aligned");
    standin_check_memory(pointer, (size_t)((last + 1) * size));
}

static void compute(void *data) {
    const run *r = data;
    standin_reach(r->gpu);
    memset(r->workspace, 0x5a, (size_t)r->bytes);
    standin_cudnn_compute(&r->graph);
    standin_reach(-1);
    runs[standin_cudnn_kind_of(&r->graph)]++;
}

int cudnnBackendExecute(void *h, void *p, void *pack) {
    const descriptor *d = as_final(p, TSHI_CUDNN_PLAN), *v = as_final(pack, TSHI_CUDNN_VARIANT_PACK);
    int64_t ids, pointers;
    int status;
    if (fails("cudnnBackendExecute", &status)) return status;
    const int64_t *id = wanted(v, TSHI_CUDNN_PACK_IDS, &ids);
    void *const *pointer = wanted(v, TSHI_CUDNN_PACK_POINTERS, &pointers);
    const handle *of = h;
    if (ids != pointers) standin_cudnn_die("as many pointers as ids are wanted");
    if (of->gpu != standin_current() || !standin_stream_is_of(of->stream, of->gpu))
        standin_cudnn_die("a handle of another GPU");
    run *r = malloc(sizeof *r);
    *r = (run){.graph = *d->graph,
               .workspace = *(void *const *)wanted(v, TSHI_CUDNN_PACK_WORKSPACE, NULL),
               .bytes = workspace_of(d->graph),
               .gpu = of->gpu};
    for (int64_t i = 0; i < ids; i++) {
        int t = 0;
        while (t < r->graph.tensor_count && r->graph.tensors[t].id != id[i]) t++;
        if (t == r->graph.tensor_count) standin_cudnn_die("an id that the graph does not have");
        pass(&r->graph.tensors[t], pointer[i]);
    }
    for (int t = 0; t < r->graph.tensor_count; t++)
        if (!r->graph.tensors[t].is_virtual && !r->graph.tensors[t].pointer)
            standin_cudnn_die("a tensor without a pointer");
    standin_check_memory(r->workspace, (size_t)r->bytes);
    if (!standin_queue(of->stream, NULL, compute, r, free)) standin_cudnn_die("a stream that is none");
    return 0;
}
