/* cudnn_plans DRIVER: cuDNN itself, where it is installed, makes plans of attention's graphs for GPUs that are
 * described to it and need not be there. The exit code is 77 where it cannot be asked. DRIVER is the file of a driver
 * without a GPU. */
#include "device/cuda/cudnn/graph.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The numbers of the library's own header. */
#if __has_include(<cudnn.h>)
#include <cudnn.h>
#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
SAME(TSHI_CUDNN_MAJOR, CUDNN_MAJOR);
SAME(TSHI_CUDNN_EXECUTION_FAILED, CUDNN_STATUS_EXECUTION_FAILED);
SAME(TSHI_CUDNN_FLOAT, CUDNN_DATA_FLOAT);
SAME(TSHI_CUDNN_HALF, CUDNN_DATA_HALF);
SAME(TSHI_CUDNN_INT32, CUDNN_DATA_INT32);
SAME(TSHI_CUDNN_BFLOAT16, CUDNN_DATA_BFLOAT16);
SAME(TSHI_CUDNN_BOOLEAN, CUDNN_DATA_BOOLEAN);
SAME(TSHI_CUDNN_ADD, CUDNN_POINTWISE_ADD);
SAME(TSHI_CUDNN_MUL, CUDNN_POINTWISE_MUL);
SAME(TSHI_CUDNN_DIV, CUDNN_POINTWISE_DIV);
SAME(TSHI_CUDNN_SUB, CUDNN_POINTWISE_SUB);
SAME(TSHI_CUDNN_EXP, CUDNN_POINTWISE_EXP);
SAME(TSHI_CUDNN_LOG, CUDNN_POINTWISE_LOG);
SAME(TSHI_CUDNN_IDENTITY, CUDNN_POINTWISE_IDENTITY);
SAME(TSHI_CUDNN_CMP_GE, CUDNN_POINTWISE_CMP_GE);
SAME(TSHI_CUDNN_GEN_INDEX, CUDNN_POINTWISE_GEN_INDEX);
SAME(TSHI_CUDNN_BINARY_SELECT, CUDNN_POINTWISE_BINARY_SELECT);
SAME(TSHI_CUDNN_REDUCE_ADD, CUDNN_REDUCE_TENSOR_ADD);
SAME(TSHI_CUDNN_REDUCE_MAX, CUDNN_REDUCE_TENSOR_MAX);
SAME(TSHI_CUDNN_MODE_A, CUDNN_HEUR_MODE_A);
SAME(TSHI_CUDNN_VARIANT_PACK, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
SAME(TSHI_CUDNN_TYPE_POINTER, CUDNN_TYPE_VOID_PTR);
SAME(TSHI_CUDNN_PACK_IDS, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
SAME(TSHI_CUDNN_PACK_POINTERS, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
SAME(TSHI_CUDNN_PACK_WORKSPACE, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
SAME(TSHI_CUDNN_GRAPH_HANDLE, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
SAME(TSHI_CUDNN_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
#endif

enum { SKIPPED = 77, DEVICE = 38, DEVICE_JSON = 2702, HEURISTIC_DEVICE = 204, PLAN_DEVICE = 407, TYPE_CHAR = 24 };

static tshi_cudnn real; /* the library's functions */
static void *described; /* a GPU */

/* A graph names no handle here; heuristics and plans name the GPU that is described in its place. */
static int set(void *descriptor, int attribute, int type, int64_t count, const void *values) {
    if (attribute == TSHI_CUDNN_GRAPH_HANDLE) return TSHI_CUDNN_SUCCESS;
    if (attribute == TSHI_CUDNN_PLAN_HANDLE)
        return real.set(descriptor, PLAN_DEVICE, TSHI_CUDNN_TYPE_DESCRIPTOR, 1, &described);
    int status = real.set(descriptor, attribute, type, count, values);
    if (attribute != TSHI_CUDNN_HEURISTIC_MODE || status != TSHI_CUDNN_SUCCESS) return status;
    return real.set(descriptor, HEURISTIC_DEVICE, TSHI_CUDNN_TYPE_DESCRIPTOR, 1, &described);
}

static int skip(const char *why, const char *detail) {
    printf("skipped: %s%s\n", why, detail ? detail : "");
    return SKIPPED;
}

static bool find(const char *name, void *function) {
    void *found = dlsym(real.library, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

static bool open_library(void) {
    real.library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!real.library)
        real.library = dlopen(TSHARD_CUDNN_FOLDER "/libcudnn.so.9", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return real.library && find("cudnnGetVersion", &real.version) && find("cudnnGetErrorString", &real.status_string) &&
           find("cudnnGetLastErrorString", &real.last_error) && find("cudnnBackendCreateDescriptor", &real.make) &&
           find("cudnnBackendDestroyDescriptor", &real.drop) && find("cudnnBackendSetAttribute", &real.set) &&
           find("cudnnBackendGetAttribute", &real.get) && find("cudnnBackendFinalize", &real.finalize);
}

/* --- GPUs --------------------------------------------------------------------------------------------------------- */

static const struct gpu {
    const char *name;
    int version, processors, shared;
} gpus[] = {{"A100", 800, 108, 166912}, {"H100", 900, 132, 232448}, {"B200", 1000, 148, 232448}};

static bool describe(const struct gpu *gpu) {
    char text[1024];
    int n = snprintf(
        text, sizeof text,
        "{\"deviceVer\":%d,\"smVersion\":%d,\"deviceName\":\"%s\",\"multiProcessorCount\":%d,"
        "\"maxSharedMemoryPerBlockOptin\":%d,\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
        "\"regsPerBlock\":65536,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,\"reservedSharedMemoryPerBlock\":"
        "1024,"
        "\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,"
        "\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,\"smClockRateKHz\":1500000,"
        "\"memClockRateKHz\":1500000,\"l2CacheSize\":41943040,\"totalGlobalMem\":80000000000,\"driverVer\":13000,"
        "\"cudaDeviceId\":0,\"oversizedSharedMemoryPerBlock\":0,\"memoryBusWidth\":5120}",
        gpu->version, gpu->version, gpu->name, gpu->processors, gpu->shared);
    int status = real.make(DEVICE, &described);
    if (status == TSHI_CUDNN_SUCCESS) status = real.set(described, DEVICE_JSON, TYPE_CHAR, n, text);
    return status == TSHI_CUDNN_SUCCESS && real.finalize(described) == TSHI_CUDNN_SUCCESS;
}

/* --- plans -------------------------------------------------------------------------------------------------------- */

static const struct wanted {
    tshi_cudnn_attention attention;
    bool planned;
} wanted[] = {
    {{2, 128, 128, 4, 4, 64, TSH_BFLOAT16, .causal = 0}, true},
    {{2, 100, 180, 4, 2, 72, TSH_FLOAT16, .causal = 1}, true},
    {{2, 128, 128, 4, 4, 64, TSH_BFLOAT16, .causal = 1}, true},
    {{1, 2, 2, 1, 1, 8, TSH_FLOAT16, .causal = 1}, true},
    {{1, 1000, 1000, 8, 1, 128, TSH_BFLOAT16, .causal = 1, .backward = 1}, true},
    {{2, 128, 128, 4, 4, 64, TSH_BFLOAT16, .backward = 1}, true},
    {{2, 100, 180, 4, 2, 72, TSH_FLOAT16, .causal = 1, .backward = 1}, true},
    {{2, 128, 128, 4, 4, 64, TSH_BFLOAT16, .causal = 1, .backward = 1, .repeats = 1}, true},
    {{2, 100, 180, 4, 2, 72, TSH_FLOAT16, .backward = 1, .repeats = 1}, true},
    {{2, 128, 128, 4, 4, 36, TSH_BFLOAT16, .causal = 0}, false},
};

/* Whether the graph gets a plan is as it should be. */
static bool check(const struct gpu *gpu, const struct wanted *w) {
    const tshi_cudnn_attention *a = &w->attention;
    tshi_cudnn lib = real;
    tshi_cudnn_graph graph;
    char why[512] = "";
    int64_t workspace = 0;
    lib.set = set;
    tshi_cudnn_attention_graph(a, &graph);
    void *plan = tshi_cudnn_plan_new(&lib, NULL, &graph, &workspace, why, sizeof why);
    printf("%s, %s of %lld queries, %lld keys, %lld and %lld heads of %lld%s%s: %s, workspace %lld\n", gpu->name,
           a->backward ? "backward" : "forward", (long long)a->queries, (long long)a->keys, (long long)a->heads,
           (long long)a->kv_heads, (long long)a->dim, a->causal ? ", causal" : "", a->repeats ? ", repeats" : "",
           plan ? "a plan" : why, (long long)workspace);
    if (plan) lib.drop(plan);
    return (plan != NULL) == w->planned;
}

int main(int argc, char **argv) {
    int wrong = 0;
    if (argc != 2) return 2;
    if (!dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL)) return skip("", dlerror());
    if (!open_library()) return skip("no libcudnn.so.9", NULL);
    if (!describe(&gpus[0])) return skip("this cuDNN takes no description of a GPU, or misses a library", NULL);
    printf("cuDNN %zu\n", real.version());
    real.drop(described);
    for (size_t g = 0; g < sizeof gpus / sizeof *gpus; g++) {
        if (!describe(&gpus[g])) return 1;
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) wrong += !check(&gpus[g], &wanted[i]);
        real.drop(described);
    }
    if (wrong) printf("%d of them are not as they should be\n", wrong);
    return wrong != 0;
}
