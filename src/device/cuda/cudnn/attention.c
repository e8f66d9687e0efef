/* Attention by cuDNN: the calls that it takes, and the cache of its plans. A call that it does not take runs on the
 * device's own kernels.
 *
 * The library is loaded by the first call that it could take. A plan is compiled for one shape, which takes tenths of a
 * second, and kept until the device is destroyed, because captured graphs launch its kernels. */
#include "base/settings.h"
#include "device/cuda/cuda.h"
#include "device/cuda/cudnn/graph.h"
#include "device/cuda/kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define OLDEST         91501 /* the oldest version: earlier ones need padded keys in the backward */
#define MAX_PLANS      256   /* further shapes run on the kernels */
#define MAX_WORKSPACE  ((int64_t)1 << 30)
#define ALIGNMENT      16
#define MAX_DIM        128 /* the largest dim of a head, ... */
#define MAX_DIM_HOPPER 256 /* ... and on a GPU of compute capability 9 */
#define SCRATCH_UNIT   256

#define STRINGIFY_(x)  #x
#define STRINGIFY(x)   STRINGIFY_(x)
#define LIBRARY_NAME   "libcudnn.so." STRINGIFY(TSHI_CUDNN_MAJOR)
#ifndef TSHARD_CUDNN_FOLDER
#define TSHARD_CUDNN_FOLDER "/usr/local/cuda/lib64"
#endif

typedef struct plan {
    tshi_cudnn_attention key;
    void *plan; /* NULL: cuDNN has no plan, or has not been tried */
    bool tried;
    bool refused; /* by a run: later calls use the kernels; captured graphs may still launch the plan's */
    int64_t workspace;
    uint32_t passed; /* bit i: tensor i is passed to a run */
} plan;

/* Reasons why a call that cuDNN could take runs on the kernels; each is logged once. */
typedef enum refusal { NO_LIBRARY, NO_GPU, NO_FORWARD, NO_BACKWARD, NO_ROOM, NO_PLACE, NO_RUN } refusal;

typedef struct tshi_cuda_dnn {
    tshi_cudnn lib;
    void *handle;
    bool tried;      /* to load the library */
    uint32_t logged; /* a bit for each refusal already logged */
    int major;       /* the GPU's compute capability, major */
    plan plans[MAX_PLANS];
    int count;
} tshi_cuda_dnn;

/* --- refusals ----------------------------------------------------------------------------------------------------- */

/* True once for each refusal: only the first is logged. */
static bool is_first(tshi_cuda_dnn *dnn, refusal why) {
    uint32_t bit = UINT32_C(1) << why;
    bool first = !(dnn->logged & bit);
    dnn->logged |= bit;
    return first;
}

/* From now on no call uses cuDNN. */
static void refuse_all(tshi_cuda_device *device, refusal why, const char *words) {
    if (is_first(device->dnn, why))
        tshi_log(device->base.log, TSH_LOG_INFO, "attention does not go to cuDNN: %.300s", words);
}

/* Logs that calls of this shape do not use cuDNN. */
static void refuse(tshi_cuda_device *device, refusal why, const tshi_cudnn_attention *a, const char *words) {
    if (!is_first(device->dnn, why)) return;
    tshi_log(
        device->base.log, TSH_LOG_INFO,
        "attention's %s of %lld x %lld queries, %lld keys, %lld heads (%lld of keys) of %lld, %s%s%s, and of other "
        "shapes refused for the same reason, does not go to cuDNN: %.300s",
        a->backward ? "backward" : "forward", (long long)a->batch, (long long)a->queries, (long long)a->keys,
        (long long)a->heads, (long long)a->kv_heads, (long long)a->dim, tsh_dtype_name((tsh_dtype)a->dtype),
        a->causal ? ", causal" : "", a->repeats ? ", deterministic" : "", words);
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static tsh_status dnn_fail(const tshi_cudnn *lib, int status, const char *what) {
    if (status == TSHI_CUDNN_SUCCESS) return TSH_OK;
    return tshi_fail(TSH_ERR_SYSTEM, "%s: %s (%d)", what, lib->status_string(status), status);
}

static tsh_status open_library(tshi_cudnn *lib) {
    const tshi_cuda_symbol symbols[] = {
        {"cudnnGetVersion", &lib->version, false},
        {"cudnnGetErrorString", &lib->status_string, false},
        {"cudnnGetLastErrorString", &lib->last_error, false},
        {"cudnnCreate", &lib->create, false},
        {"cudnnDestroy", &lib->destroy, false},
        {"cudnnSetStream", &lib->set_stream, false},
        {"cudnnBackendCreateDescriptor", &lib->make, false},
        {"cudnnBackendDestroyDescriptor", &lib->drop, false},
        {"cudnnBackendSetAttribute", &lib->set, false},
        {"cudnnBackendGetAttribute", &lib->get, false},
        {"cudnnBackendFinalize", &lib->finalize, false},
        {"cudnnBackendExecute", &lib->execute, false},
    };
    tsh_status status = tshi_cuda_library_open(LIBRARY_NAME, TSHARD_CUDNN_FOLDER, symbols,
                                               (int)(sizeof symbols / sizeof *symbols), &lib->library);
    if (status != TSH_OK || lib->version() >= OLDEST) return status;
    return tshi_fail(TSH_ERR_UNSUPPORTED, "cuDNN %zu is older than %d", lib->version(), OLDEST);
}

static tsh_status open_handle(tshi_cuda_device *device) {
    tshi_cuda_dnn *dnn = device->dnn;
    tsh_status status = open_library(&dnn->lib);
    if (status == TSH_OK) {
        status = tshi_cuda_fail(cudaDeviceGetAttribute(&dnn->major, cudaDevAttrComputeCapabilityMajor, device->ordinal),
                                "cudaDeviceGetAttribute");
    }
    if (status == TSH_OK) status = dnn_fail(&dnn->lib, dnn->lib.create(&dnn->handle), "cudnnCreate");
    if (status != TSH_OK) return status;
    status = dnn_fail(&dnn->lib, dnn->lib.set_stream(dnn->handle, device->compute), "cudnnSetStream");
    if (status == TSH_OK) return TSH_OK;
    dnn->lib.destroy(dnn->handle);
    dnn->handle = NULL;
    return status;
}

/* Loads the library at the first call. False: it cannot be used; it is tried only once. */
static bool opened(tshi_cuda_device *device) {
    tshi_cuda_dnn *dnn = device->dnn;
    if (dnn->tried) return dnn->handle != NULL;
    dnn->tried = true;
    tshi_cuda_wait_idle(device, "waiting for the GPU before cuDNN is loaded");
    if (open_handle(device) == TSH_OK) return true;
    refuse_all(device, NO_LIBRARY, tsh_error_message());
    return false;
}

tsh_status tshi_cuda_dnn_create(tshi_cuda_device *device) {
    bool wanted = false;
    tsh_status status = tshi_setting_switch(TSHI_SETTING_CUDNN, &wanted);
    if (status != TSH_OK || !wanted) return status;
    device->dnn = tshi_calloc(&device->base.allocator, 1, sizeof *device->dnn);
    return device->dnn ? TSH_OK : TSH_ERR_MEMORY;
}

void tshi_cuda_dnn_destroy(tshi_cuda_device *device) {
    tshi_cuda_dnn *dnn = device->dnn;
    if (!dnn) return;
    for (int i = 0; i < dnn->count; i++)
        if (dnn->plans[i].plan) dnn->lib.drop(dnn->plans[i].plan);
    if (dnn->handle) dnn->lib.destroy(dnn->handle);
    tshi_cuda_library_close(dnn->lib.library);
    tshi_free(&device->base.allocator, dnn);
    device->dnn = NULL;
}

void tshi_cuda_dnn_describe(const tshi_cuda_device *device, char *text, size_t size) {
    const tshi_cuda_dnn *dnn = device->dnn;
    size_t version = dnn && dnn->handle ? dnn->lib.version() : 0;
    text[0] = '\0';
    if (version) snprintf(text, size, ", cuDNN %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
}

/* --- plans -------------------------------------------------------------------------------------------------------- */

/* The calls that cuDNN's engines support. The kernels run the others: masks by positions and documents, queries that
 * ranks split, lengths, a key-value cache, dropout keyed by global element, and generation, where each token would need
 * a plan of its own. */
static bool takes(tsh_dtype dtype, const tshi_attention *a) {
    if (tsh_dtype_size(dtype) != 2 || a->lengths || a->dropout != 0 || a->capacity != a->keys) return false;
    if (a->tokens.query_position || a->tokens.query_document || a->queries_before || a->queries_after) return false;
    if (a->batch < 1 || a->heads < 1 || a->kv_heads < 1 || a->queries < 2 || a->keys < 2) return false;
    if (a->queries > INT32_MAX || a->keys > INT32_MAX || (a->causal && a->queries > a->keys)) return false;
    if (a->dim < 8 || a->dim % 8 != 0 || a->dim > MAX_DIM_HOPPER) return false;
    return a->kv_heads == 1 || (a->shift == 0 && a->heads == a->kv_heads * a->sharers);
}

/* After compute capability 9 the heuristic does not return the deterministic backward engines. */
static bool gpu_takes(tshi_cuda_device *device, const tshi_attention *a, bool backward) {
    int major = device->dnn->major;
    if (major < 8) refuse_all(device, NO_GPU, "the GPU's compute capability is below 8");
    if (major < 8 || (major > 9 && backward && a->repeats)) return false;
    return a->dim <= (major == 9 ? MAX_DIM_HOPPER : MAX_DIM);
}

static tshi_cudnn_attention key_of(tsh_dtype dtype, const tshi_attention *a, bool backward) {
    tshi_cudnn_attention key;
    memset(&key, 0, sizeof key);
    key.batch = a->batch;
    key.queries = a->queries;
    key.keys = a->keys;
    key.heads = a->heads;
    key.kv_heads = a->kv_heads;
    key.dim = a->dim;
    key.dtype = (int32_t)dtype;
    key.causal = a->causal;
    key.backward = backward;
    key.repeats = backward && a->repeats;
    return key;
}

/* Makes the plan: cuDNN compiles and loads kernels, here and in the first run, which follows. */
static void make_plan_of(tshi_cuda_device *device, plan *p) {
    tshi_cuda_dnn *dnn = device->dnn;
    tshi_cudnn_graph graph;
    char why[256];
    p->tried = true;
    tshi_cuda_wait_idle(device, "waiting for the GPU before cuDNN makes a plan");
    tshi_cudnn_attention_graph(&p->key, &graph);
    for (int i = 0; i < TSHI_CUDNN_PASSED; i++) p->passed |= (uint32_t)graph.used[i] << i;
    p->plan = tshi_cudnn_plan_new(&dnn->lib, dnn->handle, &graph, &p->workspace, why, sizeof why);
    if (!p->plan) refuse(device, p->key.backward ? NO_BACKWARD : NO_FORWARD, &p->key, why);
    if (!p->plan || p->workspace <= MAX_WORKSPACE) return;
    snprintf(why, sizeof why, "its plan wants a workspace of %lld bytes", (long long)p->workspace);
    refuse(device, NO_ROOM, &p->key, why);
    dnn->lib.drop(p->plan);
    p->plan = NULL;
}

/* The plan of a call, or NULL. An evaluation (no statistics) is planned at the second call of its shape, because the
 * shape of a prompt does not repeat. */
static plan *plan_of(tshi_cuda_device *device, const tshi_cudnn_attention *key, bool evaluates) {
    tshi_cuda_dnn *dnn = device->dnn;
    plan *p = dnn->plans, *end = p + dnn->count;
    while (p < end && memcmp(&p->key, key, sizeof *key) != 0) p++;
    bool returns = p < end;
    if (!returns && dnn->count == MAX_PLANS) {
        refuse(device, NO_PLACE, key, "its cache of plans is full");
        return NULL;
    }
    if (!returns) {
        *p = (plan){.key = *key};
        dnn->count++;
    }
    if (!p->tried && (returns || !evaluates)) make_plan_of(device, p);
    return p->plan && !p->refused ? p : NULL;
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* The tensors and numbers passed to a run, in the graph's order. */
typedef struct values {
    void *tensors[TSHI_CUDNN_PASSED];
    float scale, minus_infinity, one;
    int32_t keys, queries;
} values;

static void set_numbers(const tshi_attention *a, values *v) {
    v->scale = (float)a->scale;
    v->minus_infinity = -INFINITY;
    v->one = 1;
    v->keys = (int32_t)a->keys;
    v->queries = (int32_t)a->queries;
    v->tensors[TSHI_CUDNN_SCALE] = &v->scale;
    v->tensors[TSHI_CUDNN_MINUS_INFINITY] = &v->minus_infinity;
    v->tensors[TSHI_CUDNN_ONE] = &v->one;
    v->tensors[TSHI_CUDNN_KEYS] = &v->keys;
    v->tensors[TSHI_CUDNN_QUERIES] = &v->queries;
}

static int make_pack(const tshi_cudnn *lib, const plan *p, const values *v, void *workspace, void **pack) {
    int64_t ids[TSHI_CUDNN_PASSED], count = 0;
    void *pointers[TSHI_CUDNN_PASSED];
    for (int i = 0; i < TSHI_CUDNN_PASSED; i++) {
        if (!(p->passed >> i & 1)) continue;
        ids[count] = i + 1;
        pointers[count++] = v->tensors[i];
    }
    int status = lib->make(TSHI_CUDNN_VARIANT_PACK, pack);
    if (status == TSHI_CUDNN_SUCCESS) status = lib->set(*pack, TSHI_CUDNN_PACK_IDS, TSHI_CUDNN_TYPE_INT64, count, ids);
    if (status == TSHI_CUDNN_SUCCESS)
        status = lib->set(*pack, TSHI_CUDNN_PACK_POINTERS, TSHI_CUDNN_TYPE_POINTER, count, pointers);
    if (status == TSHI_CUDNN_SUCCESS)
        status = lib->set(*pack, TSHI_CUDNN_PACK_WORKSPACE, TSHI_CUDNN_TYPE_POINTER, 1, &workspace);
    return status == TSHI_CUDNN_SUCCESS ? lib->finalize(*pack) : status;
}

/* False if cuDNN refuses the run, as it will refuse later ones: nothing is queued. A failure of the GPU is kept for
 * check. */
static bool run(tshi_cuda_device *device, plan *p, const values *v, void *workspace) {
    const tshi_cudnn *lib = &device->dnn->lib;
    void *pack = NULL;
    int status = make_pack(lib, p, v, workspace, &pack);
    if (status == TSHI_CUDNN_SUCCESS) status = lib->execute(device->dnn->handle, p->plan, pack);
    if (pack) lib->drop(pack);
    if (status != TSHI_CUDNN_SUCCESS && status < TSHI_CUDNN_EXECUTION_FAILED) {
        refuse(device, NO_RUN, &p->key, lib->status_string(status));
        p->refused = true;
        return false;
    }
    if (status != TSHI_CUDNN_SUCCESS) tshi_cuda_record_status(device, dnn_fail(lib, status, "cudnnBackendExecute"));
    tshi_cuda_launched(&device->base, "cudnnBackendExecute");
    return true;
}

static bool aligned(const values *v, const int *tensors, int count) {
    for (int i = 0; i < count; i++)
        if ((uintptr_t)v->tensors[tensors[i]] % ALIGNMENT != 0) return false;
    return true;
}

/* The plan of the call, with its numbers in `v`; NULL: the kernels run the call. */
static plan *find(tsh_device *device, tsh_dtype dtype, const tshi_attention *a, bool backward, values *v) {
    static const int tensors[] = {TSHI_CUDNN_Q,  TSHI_CUDNN_K,  TSHI_CUDNN_V,  TSHI_CUDNN_O,  TSHI_CUDNN_STATS,
                                  TSHI_CUDNN_DO, TSHI_CUDNN_DQ, TSHI_CUDNN_DK, TSHI_CUDNN_DV, TSHI_CUDNN_DELTA};
    tshi_cuda_device *cuda = tshi_cuda(device);
    if (!cuda->dnn || !takes(dtype, a) || !aligned(v, tensors, (int)(sizeof tensors / sizeof *tensors))) return NULL;
    tshi_cuda_use(cuda); /* a handle belongs to the current GPU */
    if (!opened(cuda) || !gpu_takes(cuda, a, backward)) return NULL;
    set_numbers(a, v);
    tshi_cudnn_attention key = key_of(dtype, a, backward);
    return plan_of(cuda, &key, !v->tensors[TSHI_CUDNN_STATS]);
}

static size_t rounded(int64_t bytes) {
    return ((size_t)bytes + SCRATCH_UNIT - 1) / SCRATCH_UNIT * SCRATCH_UNIT;
}

bool tshi_cuda_dnn_forward(tsh_device *device, tsh_dtype dtype, const tshi_attention *a, const void *q, const void *k,
                           const void *v, void *y, void *log_sums) {
    values all = {.tensors = {[TSHI_CUDNN_Q] = (void *)q,
                              [TSHI_CUDNN_K] = (void *)k,
                              [TSHI_CUDNN_V] = (void *)v,
                              [TSHI_CUDNN_O] = y,
                              [TSHI_CUDNN_STATS] = log_sums}};
    plan *p = find(device, dtype, a, false, &all);
    if (!p) return false;
    size_t workspace = rounded(p->workspace), bytes = workspace;
    if (!log_sums) bytes += (size_t)(a->batch * a->heads * a->queries) * sizeof(float);
    char *scratch = bytes > 0 ? tshi_cuda_alloc(device, bytes) : NULL;
    if (bytes > 0 && !scratch) return false;
    if (!log_sums) all.tensors[TSHI_CUDNN_STATS] = scratch + workspace; /* passed even so: few engines work without */
    bool done = run(tshi_cuda(device), p, &all, scratch);
    tshi_cuda_release(device, scratch);
    return done;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* cuDNN computes all three gradients and overwrites its outputs: a gradient that is not wanted, or is added to, goes to
 * scratch memory. */
typedef struct target {
    int tensor;
    int64_t n;
    void *to;
    double beta;
    bool aside;
} target;

/* Places the workspace and the scratch tensors of a run at `base` (NULL: only counts). Returns their bytes. */
static size_t place(const plan *p, const target *targets, values *v, char *base) {
    size_t size = tsh_dtype_size((tsh_dtype)p->key.dtype), at = rounded(p->workspace);
    for (int i = 0; i < 3; i++) {
        v->tensors[targets[i].tensor] = !targets[i].aside ? targets[i].to : base ? base + at : NULL;
        if (targets[i].aside) at += rounded(targets[i].n * (int64_t)size);
    }
    if (!(p->passed >> TSHI_CUDNN_DQ_SUM & 1)) return at;
    v->tensors[TSHI_CUDNN_DQ_SUM] = base ? base + at : NULL;
    return at + rounded(targets[0].n * (int64_t)sizeof(float));
}

bool tshi_cuda_dnn_backward(tsh_device *device, tsh_dtype dtype, const tshi_attention *a, const void *q, const void *k,
                            const void *v, const void *y, const void *log_sums, const void *dy,
                            const tshi_attention_grads *g, void *delta) {
    const int64_t queries = a->batch * a->queries * a->heads * a->dim, keys = a->batch * a->keys * a->kv_heads * a->dim;
    const target targets[3] = {{TSHI_CUDNN_DQ, queries, g->dq, g->beta_q, !g->dq || g->beta_q != 0},
                               {TSHI_CUDNN_DK, keys, g->dk, g->beta_k, !g->dk || g->beta_k != 0},
                               {TSHI_CUDNN_DV, keys, g->dv, g->beta_v, !g->dv || g->beta_v != 0}};
    values all = {.tensors = {[TSHI_CUDNN_Q] = (void *)q,
                              [TSHI_CUDNN_K] = (void *)k,
                              [TSHI_CUDNN_V] = (void *)v,
                              [TSHI_CUDNN_O] = (void *)y,
                              [TSHI_CUDNN_STATS] = (void *)log_sums,
                              [TSHI_CUDNN_DO] = (void *)dy,
                              [TSHI_CUDNN_DQ] = g->dq,
                              [TSHI_CUDNN_DK] = g->dk,
                              [TSHI_CUDNN_DV] = g->dv,
                              [TSHI_CUDNN_DELTA] = delta}};
    plan *p = find(device, dtype, a, true, &all);
    if (!p) return false;
    size_t bytes = place(p, targets, &all, NULL);
    char *scratch = bytes > 0 ? tshi_cuda_alloc(device, bytes) : NULL;
    if (bytes > 0 && !scratch) return false;
    place(p, targets, &all, scratch);
    bool done = run(tshi_cuda(device), p, &all, scratch);
    for (int i = 0; i < 3 && done; i++) {
        const target *t = &targets[i];
        if (t->to && t->aside)
            tshi_cuda_elementwise[dtype].axpby(device, t->n, 1, all.tensors[t->tensor], t->beta, t->to, t->to);
    }
    tshi_cuda_release(device, scratch);
    return done;
}
