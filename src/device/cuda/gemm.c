/* Matrix products by cuBLASLt.
 *
 * cuBLASLt is column-major: a row-major C = A B is C^T = B^T A^T there, so the operands are swapped, and an output
 * feature (a column of y = x w^T + b) is a row, to which the epilogue adds the bias.
 *
 * A plan caches a product's descriptors and the first algorithm that cuBLASLt's heuristic names; a plan without an
 * algorithm records that cuBLASLt has none for the product. */
#include "device/cuda/cuda.h"
#include "device/cuda/kernels/kernels.h"

#include <cublasLt.h>
#include <stdio.h>
#include <string.h>

#define WORKSPACE_BYTES        ((size_t)32 << 20)
#define WORKSPACE_BYTES_HOPPER ((size_t)64 << 20) /* and later */
#define BUCKETS                1024               /* a power of two */
#define MAX_PLANS              4096               /* beyond this, shapes do not repeat: all plans are dropped */
#define MAX_ALIGNMENT          256

#define STRINGIFY_(x)          #x
#define STRINGIFY(x)           STRINGIFY_(x)
#define LIBRARY_NAME           "libcublasLt.so." STRINGIFY(CUBLAS_VER_MAJOR)
#ifndef TSHARD_CUBLASLT_FOLDER
#define TSHARD_CUBLASLT_FOLDER "/usr/local/cuda/lib64"
#endif

/* The library's functions. */
typedef struct cublaslt {
    void *library;
    __typeof__(&cublasLtCreate) create;
    __typeof__(&cublasLtDestroy) destroy;
    __typeof__(&cublasLtGetVersion) version;
    __typeof__(&cublasLtGetStatusString) status_string;
    __typeof__(&cublasLtMatmul) matmul;
    __typeof__(&cublasLtMatmulDescCreate) desc_create;
    __typeof__(&cublasLtMatmulDescDestroy) desc_destroy;
    __typeof__(&cublasLtMatmulDescSetAttribute) desc_set;
    __typeof__(&cublasLtMatrixLayoutCreate) layout_create;
    __typeof__(&cublasLtMatrixLayoutDestroy) layout_destroy;
    __typeof__(&cublasLtMatrixLayoutSetAttribute) layout_set;
    __typeof__(&cublasLtMatmulPreferenceCreate) preference_create;
    __typeof__(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    __typeof__(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    __typeof__(&cublasLtMatmulAlgoGetHeuristic) heuristic;
} cublaslt;

typedef enum operand { LEFT, RIGHT, OUT, EXTRA, OPERANDS } operand; /* EXTRA: GELU's argument */

/* The key of a plan: a product in cuBLASLt's terms, as far as the choice of algorithm depends on it. Compared as bytes,
 * so always zeroed first. */
typedef struct product {
    int64_t rows, cols, k;    /* of OUT */
    int64_t ld[3], stride[3]; /* stride: from a matrix of a batch to the next */
    int64_t count;            /* of products */
    int32_t dtype, to, epilogue;
    uint8_t transposed[2];
    uint8_t adds; /* beta is not 0 */
    uint8_t extra;
    uint16_t alignment[OPERANDS + 1]; /* the last: the bias's */
    uint8_t padding[2];
} product;

/* The descriptors are allocated by the library: the one loaded at run time may have larger ones than the header. */
typedef struct plan {
    product key;
    struct plan *next; /* in the bucket */
    bool works;        /* there is an algorithm */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t layout[3];
    cublasLtMatmulAlgo_t algorithm;
} plan;

typedef struct tshi_cuda_blas {
    cublaslt lt;
    cublasLtHandle_t handle;
    void *workspace;
    size_t workspace_bytes;
    plan *buckets[BUCKETS];
    int plans;
    int fused, refused; /* plans with an epilogue: with an algorithm, and without one */
    tshi_pool structs;
} tshi_cuda_blas;

/* The operands of an epilogue. */
typedef struct epilogue_operands {
    cublasLtEpilogue_t epilogue;
    const void *bias;
    void *argument; /* GELU's argument, which forward stores and backward reads */
    int64_t argument_ld;
} epilogue_operands;

/* --- opening ------------------------------------------------------------------------------------------------------ */

static tsh_status open_library(cublaslt *lt) {
    const tshi_cuda_symbol symbols[] = {
        {"cublasLtCreate", &lt->create, false},
        {"cublasLtDestroy", &lt->destroy, false},
        {"cublasLtGetVersion", &lt->version, false},
        {"cublasLtGetStatusString", &lt->status_string, false},
        {"cublasLtMatmul", &lt->matmul, false},
        {"cublasLtMatmulDescCreate", &lt->desc_create, false},
        {"cublasLtMatmulDescDestroy", &lt->desc_destroy, false},
        {"cublasLtMatmulDescSetAttribute", &lt->desc_set, false},
        {"cublasLtMatrixLayoutCreate", &lt->layout_create, false},
        {"cublasLtMatrixLayoutDestroy", &lt->layout_destroy, false},
        {"cublasLtMatrixLayoutSetAttribute", &lt->layout_set, false},
        {"cublasLtMatmulPreferenceCreate", &lt->preference_create, false},
        {"cublasLtMatmulPreferenceDestroy", &lt->preference_destroy, false},
        {"cublasLtMatmulPreferenceSetAttribute", &lt->preference_set, false},
        {"cublasLtMatmulAlgoGetHeuristic", &lt->heuristic, false},
    };
    return tshi_cuda_library_open(LIBRARY_NAME, TSHARD_CUBLASLT_FOLDER, symbols,
                                  (int)(sizeof symbols / sizeof *symbols), &lt->library);
}

static tsh_status blas_fail(const cublaslt *lt, cublasStatus_t status, const char *what) {
    if (status == CUBLAS_STATUS_SUCCESS) return TSH_OK;
    tsh_status kind = status == CUBLAS_STATUS_ALLOC_FAILED ? TSH_ERR_MEMORY : TSH_ERR_SYSTEM;
    return tshi_fail(kind, "%s: %s (%d)", what, lt->status_string(status), (int)status);
}

void tshi_cuda_blas_describe(const tshi_cuda_device *device, char *text, size_t size) {
    size_t version = device->blas->lt.version();
    int fused = device->blas->fused, refused = device->blas->refused;
    int length = snprintf(text, size, "cuBLASLt %zu.%zu", version / 10000, version / 100 % 100);
    if (fused + refused && length > 0 && (size_t)length < size)
        snprintf(text + length, size - (size_t)length, " (epilogues: %d fused, %d refused)", fused, refused);
}

tsh_status tshi_cuda_blas_create(tshi_cuda_device *device) {
    tshi_cuda_blas *blas = tshi_calloc(&device->base.allocator, 1, sizeof *blas);
    int major = 0;
    if (!blas) return TSH_ERR_MEMORY;
    device->blas = blas;
    tsh_status status = open_library(&blas->lt);
    if (status == TSH_OK) status = blas_fail(&blas->lt, blas->lt.create(&blas->handle), "cublasLtCreate");
    if (status == TSH_OK) {
        status = tshi_cuda_fail(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device->ordinal),
                                "cudaDeviceGetAttribute");
    }
    if (status == TSH_OK) {
        blas->workspace_bytes = major >= 9 ? WORKSPACE_BYTES_HOPPER : WORKSPACE_BYTES;
        status =
            tshi_cuda_fail(cudaMalloc(&blas->workspace, blas->workspace_bytes), "cudaMalloc of cuBLASLt's workspace");
    }
    return status;
}

static void plan_free(tshi_cuda_blas *blas, plan *p) {
    for (int i = 0; i < 3; i++)
        if (p->layout[i]) blas->lt.layout_destroy(p->layout[i]);
    if (p->desc) blas->lt.desc_destroy(p->desc);
    tshi_pool_give(&blas->structs, p);
}

static void forget_plans(tshi_cuda_blas *blas) {
    for (int i = 0; i < BUCKETS; i++) {
        for (plan *p = blas->buckets[i], *next; p; p = next) {
            next = p->next;
            plan_free(blas, p);
        }
        blas->buckets[i] = NULL;
    }
    blas->plans = 0;
}

void tshi_cuda_blas_destroy(tshi_cuda_device *device) {
    tshi_cuda_blas *blas = device->blas;
    if (!blas) return;
    if (blas->workspace) cudaFree(blas->workspace);
    forget_plans(blas);
    if (blas->handle) blas->lt.destroy(blas->handle);
    tshi_cuda_library_close(blas->lt.library);
    tshi_pool_clear(&blas->structs, &device->base.allocator);
    tshi_free(&device->base.allocator, blas);
    device->blas = NULL;
}

/* --- plans -------------------------------------------------------------------------------------------------------- */

static cudaDataType data_type(int32_t dtype) {
    switch (dtype) {
    case TSH_FLOAT64: return CUDA_R_64F;
    case TSH_BFLOAT16: return CUDA_R_16BF;
    case TSH_FLOAT16: return CUDA_R_16F;
    default: return CUDA_R_32F;
    }
}

/* A layout of a batch has the number of its matrices and their distance. */
static cublasStatus_t set_batch(const cublaslt *lt, const product *key, plan *p) {
    const int32_t count = (int32_t)key->count;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < 3 && count > 1 && status == CUBLAS_STATUS_SUCCESS; i++) {
        status = lt->layout_set(p->layout[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
        if (status == CUBLAS_STATUS_SUCCESS)
            status = lt->layout_set(p->layout[i], CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &key->stride[i],
                                    sizeof key->stride[i]);
    }
    return status;
}

static cublasStatus_t describe(const tshi_cuda_device *device, const product *key, plan *p) {
    const cublaslt *lt = &device->blas->lt;
    bool is_double = key->dtype == TSH_FLOAT64;
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    if (is_double) compute = CUBLAS_COMPUTE_64F;
    if (key->dtype == TSH_FLOAT32 && device->tf32) compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    cublasStatus_t status = lt->desc_create(&p->desc, compute, is_double ? CUDA_R_64F : CUDA_R_32F);
    cublasLtMatmulDescAttributes_t sides[] = {CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB};
    for (int i = 0; i < 2 && status == CUBLAS_STATUS_SUCCESS; i++) {
        int32_t op = key->transposed[i] ? CUBLAS_OP_T : CUBLAS_OP_N;
        status = lt->desc_set(p->desc, sides[i], &op, sizeof op);
    }
    int64_t shape[3][2] = {{key->rows, key->k}, {key->k, key->cols}, {key->rows, key->cols}};
    for (int i = 0; i < 3 && status == CUBLAS_STATUS_SUCCESS; i++) {
        bool swap = i < 2 && key->transposed[i];
        status = lt->layout_create(&p->layout[i], data_type(i == OUT ? key->to : key->dtype), (uint64_t)shape[i][swap],
                                   (uint64_t)shape[i][!swap], key->ld[i]);
    }
    return status == CUBLAS_STATUS_SUCCESS ? set_batch(lt, key, p) : status;
}

static cublasStatus_t set_operands(const cublaslt *lt, plan *p, const epilogue_operands *e) {
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (e->bias) status = lt->desc_set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &e->bias, sizeof e->bias);
    if (e->argument && status == CUBLAS_STATUS_SUCCESS) {
        status = lt->desc_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &e->argument, sizeof e->argument);
    }
    return status;
}

static cublasStatus_t set_epilogue(const cublaslt *lt, plan *p, const epilogue_operands *e) {
    uint32_t epilogue = e->epilogue;
    int32_t bias_type = (int32_t)data_type(p->key.to);
    cublasStatus_t status = lt->desc_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (e->bias && status == CUBLAS_STATUS_SUCCESS) {
        status = lt->desc_set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type);
    }
    if (e->argument && status == CUBLAS_STATUS_SUCCESS) {
        status = lt->desc_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &e->argument_ld, sizeof e->argument_ld);
    }
    return status == CUBLAS_STATUS_SUCCESS ? set_operands(lt, p, e) : status;
}

/* Sets the preferences of the heuristic: workspace, alignments and reduction schemes. */
static cublasStatus_t prefer(const tshi_cuda_blas *blas, const product *key, cublasLtMatmulPreference_t preference) {
    const cublaslt *lt = &blas->lt;
    static const cublasLtMatmulPreferenceAttributes_t wants[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    uint64_t bytes = blas->workspace_bytes;
    /* Split-k in a 16-bit output would round each partial sum: partial sums must be of the compute type. */
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    if (tsh_dtype_size((tsh_dtype)key->to) == 2) reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasStatus_t status =
        lt->preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    if (status == CUBLAS_STATUS_SUCCESS) {
        status =
            lt->preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
    }
    for (int i = 0; i < 4 && status == CUBLAS_STATUS_SUCCESS; i++) {
        uint32_t alignment = key->alignment[i < OUT ? i : OUT];
        status = lt->preference_set(preference, wants[i], &alignment, sizeof alignment);
    }
    return status;
}

/* Not a failure: the library has no algorithm, or cannot run this one. */
static bool cannot(cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
}

/* Asks the heuristic for its first algorithm. If it has none, p->works stays false, with success. */
static cublasStatus_t choose(const tshi_cuda_blas *blas, plan *p) {
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    cublasStatus_t status = blas->lt.preference_create(&preference);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    status = prefer(blas, &p->key, preference);
    bool preferred = status == CUBLAS_STATUS_SUCCESS;
    if (preferred) {
        status = blas->lt.heuristic(blas->handle, p->desc, p->layout[LEFT], p->layout[RIGHT], p->layout[OUT],
                                    p->layout[OUT], preference, 1, &result, &found);
    }
    blas->lt.preference_destroy(preference);
    if (preferred && cannot(status)) return CUBLAS_STATUS_SUCCESS;
    p->works = status == CUBLAS_STATUS_SUCCESS && found > 0 && result.state == CUBLAS_STATUS_SUCCESS;
    if (p->works) p->algorithm = result.algo;
    return status;
}

/* Counts a plan with an epilogue, and warns of the first without an algorithm: separate kernels replace the epilogue,
 * so only time is lost. cuBLASLt may have no epilogues in float64, so these are not counted. */
static void count_epilogue(tshi_cuda_device *device, const product *key, bool works) {
    tshi_cuda_blas *blas = device->blas;
    if (key->epilogue == CUBLASLT_EPILOGUE_DEFAULT || key->dtype == TSH_FLOAT64) return;
    if (works)
        blas->fused++;
    else
        blas->refused++;
    if (works || blas->refused > 1) return;
    tshi_log(
        device->base.log, TSH_LOG_WARNING,
        "cuBLASLt has no algorithm for a %s product of %lld x %lld x %lld with epilogue %d: kernels replace it. The "
        "device's description counts such products",
        tsh_dtype_name((tsh_dtype)key->dtype), (long long)key->cols, (long long)key->rows, (long long)key->k,
        (int)key->epilogue);
}

static uint32_t hash(const product *key) {
    const unsigned char *bytes = (const unsigned char *)key;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < sizeof *key; i++) h = (h ^ bytes[i]) * 16777619u;
    return (h ^ h >> 16) & (BUCKETS - 1);
}

/* The plan of a product, made by its first call. */
static tsh_status plan_of(tshi_cuda_device *device, const product *key, const epilogue_operands *e, plan **out) {
    tshi_cuda_blas *blas = device->blas;
    uint32_t bucket = hash(key);
    for (*out = blas->buckets[bucket]; *out; *out = (*out)->next)
        if (memcmp(&(*out)->key, key, sizeof *key) == 0) return TSH_OK;
    /* The heuristic may load kernels, and the first run, which follows, does. */
    if (!device->loads_at_once) tshi_cuda_wait_idle(device, "waiting for the GPU before a matrix product is planned");
    if (blas->plans == MAX_PLANS) forget_plans(blas);
    plan *p = tshi_pool_take(&blas->structs, &device->base.allocator, sizeof *p);
    if (!p) return TSH_ERR_MEMORY;
    p->key = *key;
    cublasStatus_t status = describe(device, key, p);
    if (status == CUBLAS_STATUS_SUCCESS) status = set_epilogue(&blas->lt, p, e);
    if (status == CUBLAS_STATUS_SUCCESS) status = choose(blas, p);
    if (status != CUBLAS_STATUS_SUCCESS) {
        plan_free(blas, p);
        return blas_fail(&blas->lt, status, "cuBLASLt, describing a matrix product");
    }
    p->next = blas->buckets[bucket];
    blas->buckets[bucket] = p;
    blas->plans++;
    count_epilogue(device, key, p->works);
    *out = p;
    return TSH_OK;
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* What all matrices of a batch at `pointer` are aligned to, which are `stride` bytes apart. */
static uint16_t alignment_of(const void *pointer, size_t stride) {
    uintptr_t bits = (uintptr_t)pointer | stride | MAX_ALIGNMENT;
    return (uint16_t)(bits & (~bits + 1));
}

/* The arguments of tshi_gemm_fn, in order. */
typedef struct gemm_call {
    tsh_dtype dtype;
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    double alpha;
    const void *a;
    int64_t lda;
    const void *b;
    int64_t ldb;
    double beta;
    void *c;
    int64_t ldc;
    tsh_dtype to;                                /* C's */
    int64_t count, stride_a, stride_b, stride_c; /* products of a batch, and the distances of their matrices */
} gemm_call;

static tsh_status check_sizes(const gemm_call *g) {
    if (g->count > INT32_MAX)
        return tshi_fail(TSH_ERR_OVERFLOW, "a batch of %lld products; cuBLASLt takes 2147483647", (long long)g->count);
    return tshi_check_product("cuBLASLt", g->m, g->n, g->k, g->lda, g->ldb, g->ldc);
}

static product product_of(const gemm_call *g, const epilogue_operands *e) {
    product key;
    memset(&key, 0, sizeof key);
    key.rows = g->n;
    key.cols = g->m;
    key.k = g->k;
    key.ld[LEFT] = g->ldb;
    key.ld[RIGHT] = g->lda;
    key.ld[OUT] = g->ldc;
    key.stride[LEFT] = g->stride_b;
    key.stride[RIGHT] = g->stride_a;
    key.stride[OUT] = g->stride_c;
    key.count = g->count;
    key.dtype = (int32_t)g->dtype;
    key.to = (int32_t)g->to;
    key.epilogue = (int32_t)e->epilogue;
    key.transposed[LEFT] = g->transpose_b;
    key.transposed[RIGHT] = g->transpose_a;
    key.adds = g->beta != 0;
    key.extra = (uint8_t)((e->bias != NULL) | (e->argument != NULL) << 1);
    const size_t size = tsh_dtype_size(g->dtype);
    key.alignment[LEFT] = alignment_of(g->b, (size_t)g->stride_b * size);
    key.alignment[RIGHT] = alignment_of(g->a, (size_t)g->stride_a * size);
    key.alignment[OUT] = alignment_of(g->c, (size_t)g->stride_c * tsh_dtype_size(g->to));
    key.alignment[EXTRA] = alignment_of(e->argument, 0);
    key.alignment[OPERANDS] = alignment_of(e->bias, 0);
    return key;
}

static cublasStatus_t launch(tshi_cuda_device *device, const gemm_call *g, plan *p) {
    const tshi_cuda_blas *blas = device->blas;
    const float single[2] = {(float)g->alpha, (float)g->beta};
    bool is_double = g->dtype == TSH_FLOAT64;
    const void *alpha = is_double ? (const void *)&g->alpha : &single[0];
    const void *beta = is_double ? (const void *)&g->beta : &single[1];
    return blas->lt.matmul(blas->handle, p->desc, alpha, g->b, p->layout[LEFT], g->a, p->layout[RIGHT], beta, g->c,
                           p->layout[OUT], g->c, p->layout[OUT], &p->algorithm, blas->workspace, blas->workspace_bytes,
                           device->compute);
}

/* For dims of at least 1. *done is false, with TSH_OK, if cuBLASLt has no algorithm. */
static tsh_status multiply(tsh_device *device, const gemm_call *g, const epilogue_operands *e, bool *done) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    const cublaslt *lt = &cuda->blas->lt;
    *done = false;
    product key = product_of(g, e);
    plan *p = NULL;
    tshi_cuda_use(cuda); /* cuBLASLt's handle and events belong to this GPU */
    tsh_status status = plan_of(cuda, &key, e, &p);
    if (status != TSH_OK || !p->works) return status;
    status = blas_fail(lt, set_operands(lt, p, e), "cublasLtMatmulDescSetAttribute");
    if (status == TSH_OK) status = blas_fail(lt, launch(cuda, g, p), "cublasLtMatmul");
    if (status != TSH_OK) return status;
    *done = true;
    if (cuda->managed) tshi_cuda_wait(device, "cublasLtMatmul");
    return TSH_OK;
}

/* C = beta C. */
static void scale_one(tsh_device *device, const gemm_call *g, void *c) {
    size_t size = tsh_dtype_size(g->to);
    bool whole = g->ldc == g->n;
    int64_t rows = whole ? 1 : g->m, cols = whole ? g->m * g->n : g->n;
    if (g->beta == 1) return;
    for (int64_t i = 0; i < rows; i++) {
        char *row = (char *)c + (size_t)i * (size_t)g->ldc * size;
        if (g->beta == 0)
            tshi_cuda_zero(device, (size_t)cols * size, row);
        else
            tshi_cuda_elementwise[g->to].axpby(device, cols, g->beta, row, 0, NULL, row);
    }
}

static void scale(tsh_device *device, const gemm_call *g) {
    const size_t bytes = (size_t)g->stride_c * tsh_dtype_size(g->to);
    for (int64_t i = 0; i < g->count; i++) scale_one(device, g, (char *)g->c + (size_t)i * bytes);
}

static tsh_status run(tsh_device *device, const gemm_call *g) {
    static const epilogue_operands none = {.epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    bool done = false;
    tsh_status status = check_sizes(g);
    if (status != TSH_OK || g->m == 0 || g->n == 0) return status;
    if (g->k == 0 || g->alpha == 0) {
        scale(device, g);
        return TSH_OK;
    }
    status = multiply(device, g, &none, &done);
    if (status != TSH_OK || done) return status;
    return tshi_fail(TSH_ERR_UNSUPPORTED, "cuBLASLt has no algorithm for a %s product of %lld x %lld x %lld",
                     tsh_dtype_name(g->dtype), (long long)g->m, (long long)g->n, (long long)g->k);
}

tsh_status tshi_cuda_gemm(tsh_device *device, tsh_dtype dtype, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                          int64_t k, double alpha, const void *a, int64_t lda, const void *b, int64_t ldb, double beta,
                          void *c, int64_t ldc) {
    gemm_call g = {dtype, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, dtype, 1, 0, 0, 0};
    return run(device, &g);
}

tsh_status tshi_cuda_gemm_batch(tsh_device *device, tsh_dtype dtype, int64_t count, bool transpose_a, bool transpose_b,
                                int64_t m, int64_t n, int64_t k, double alpha, const void *a, int64_t lda,
                                int64_t stride_a, const void *b, int64_t ldb, int64_t stride_b, double beta, void *c,
                                int64_t ldc, int64_t stride_c) {
    gemm_call g = {dtype, transpose_a, transpose_b, m,   n,     k,     alpha,    a,        lda,     b,
                   ldb,   beta,        c,           ldc, dtype, count, stride_a, stride_b, stride_c};
    return count == 0 ? check_sizes(&g) : run(device, &g);
}

/* --- affine ------------------------------------------------------------------------------------------------------- */

/* cuBLASLt has GELU and its backward as epilogues. If GELU's argument is stored or read, its rows must be multiples of
 * 8 elements. The epilogue's tanh is approximate: exact enough for 16-bit types and TF32, not for float32. */
static bool takes_gelu(tsh_device *device, const gemm_call *g, tshi_unary f, const void *argument) {
    bool coarse = tsh_dtype_size(g->dtype) == 2 || (g->dtype == TSH_FLOAT32 && tshi_cuda(device)->tf32);
    return f == TSHI_GELU_TANH && coarse && (!argument || g->n % 8 == 0);
}

/* The product with bias and GELU fused as its epilogue, if cuBLASLt has it. */
static tsh_status affine_at_once(tsh_device *device, gemm_call *g, const void *b, tshi_unary f, void *pre, void *y,
                                 bool *done) {
    bool gelu = takes_gelu(device, g, f, pre);
    *done = false;
    if (f != TSHI_IDENTITY && !gelu) return TSH_OK;
    if (!b && !gelu) return TSH_OK;
    epilogue_operands e = {.epilogue = CUBLASLT_EPILOGUE_BIAS, .bias = b};
    if (gelu && !pre) e.epilogue = b ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    if (gelu && pre) {
        e.epilogue = b ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
        e.argument = pre;
        e.argument_ld = g->n;
    }
    g->c = y;
    return multiply(device, g, &e, done);
}

/* The product, with the bias fused if cuBLASLt can, then f in a kernel. */
static tsh_status affine_in_steps(tsh_device *device, gemm_call *g, const void *b, tshi_unary f, void *pre, void *y) {
    bool done = false, applies = f != TSHI_IDENTITY;
    tsh_status status = TSH_OK;
    g->c = pre ? pre : y;
    if (b && applies && g->k > 0) {
        epilogue_operands e = {.epilogue = CUBLASLT_EPILOGUE_BIAS, .bias = b};
        status = multiply(device, g, &e, &done);
    }
    if (status == TSH_OK && !done) {
        status = run(device, g);
        if (status == TSH_OK && b) tshi_cuda_elementwise[g->dtype].bias(device, g->m, g->n, g->c, b, g->c);
    }
    if (status == TSH_OK && applies) tshi_cuda_elementwise[g->dtype].unary(device, f, NULL, g->m * g->n, g->c, y);
    return status;
}

tsh_status tshi_cuda_affine(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, const void *x,
                            const void *w, const void *b, tshi_unary f, void *pre, void *y) {
    gemm_call g = {dtype, false, true, m, n, k, 1, x, k, w, k, 0, NULL, n, dtype, 1, 0, 0, 0};
    bool done = false;
    tsh_status status = check_sizes(&g);
    if (status != TSH_OK || m == 0 || n == 0) return status;
    if (k > 0) status = affine_at_once(device, &g, b, f, pre, y, &done);
    return status == TSH_OK && !done ? affine_in_steps(device, &g, b, f, pre, y) : status;
}

tsh_status tshi_cuda_affine_backward(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k,
                                     const void *x, const void *dy, tsh_dtype to, double beta, void *dw, double beta_b,
                                     void *db) {
    gemm_call g = {dtype, true, false, n, k, m, 1, dy, n, x, k, beta, dw, k, to, 1, 0, 0, 0};
    bool wide = to != dtype;
    tsh_status status = run(device, &g);
    if (status != TSH_OK || !db) return status;
    if (beta_b == 0 && wide) tshi_cuda_zero(device, (size_t)n * tsh_dtype_size(to), db);
    if (wide)
        tshi_cuda_sum[dtype].bias_backward_wide(device, m, n, dy, db);
    else if (beta_b == 0)
        tshi_cuda_sum[dtype].over_dim(device, 1, m, n, 1, dy, db);
    else
        tshi_cuda_sum[dtype].bias_backward(device, m, n, dy, db);
    return TSH_OK;
}

tsh_status tshi_cuda_gemm_unary_backward(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k,
                                         const void *a, const void *b, tshi_unary f, const void *z, void *c) {
    const gemm_call g = {dtype, false, false, m, n, k, 1, a, k, b, n, 0, c, n, dtype, 1, 0, 0, 0};
    const epilogue_operands e = {
        .epilogue = CUBLASLT_EPILOGUE_DGELU, .argument = (void *)(uintptr_t)z, .argument_ld = n};
    bool done = false;
    tsh_status status = check_sizes(&g);
    if (status != TSH_OK || m == 0 || n == 0) return status;
    if (k > 0 && takes_gelu(device, &g, f, z)) status = multiply(device, &g, &e, &done);
    if (status != TSH_OK || done) return status;
    status = run(device, &g);
    if (status == TSH_OK) tshi_cuda_elementwise[dtype].unary_backward(device, f, NULL, m * n, z, c, 0, c);
    return status;
}
