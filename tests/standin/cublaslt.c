/* cuBLASLt on the host: plain loops in double, rounded once. It refuses what the real one refuses (or may), and an
 * algorithm works only for what it was chosen for. */
#include "standin/standin.h"

#include "device/cpu/kernels/kernels.h"

#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct desc {
    int32_t compute, scale, transpose[2];
    uint32_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
} desc;

typedef struct layout {
    int64_t rows, cols, ld;
    int32_t type;
} layout;

typedef struct preference {
    uint64_t workspace;
    uint32_t alignment[4];
} preference;

/* What an algorithm was chosen for. */
typedef struct algorithm {
    uint64_t workspace;
    uint32_t alignment[4];
    uint32_t sum; /* of the description */
} algorithm;

_Static_assert(sizeof(desc) <= sizeof(cublasLtMatmulDescOpaque_t), "room");
_Static_assert(sizeof(layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "room");
_Static_assert(sizeof(preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "room");
_Static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "room");

static bool fails(const char *name, cublasStatus_t *status) {
    int code = CUBLAS_STATUS_INTERNAL_ERROR;
    bool f = standin_call(name, &code);
    *status = f ? (cublasStatus_t)code : CUBLAS_STATUS_SUCCESS;
    return f;
}

static void die(const char *message) {
    fprintf(stderr, "cuBLASLt stand-in: %s\n", message);
    abort();
}

/* --- handles and descriptors -------------------------------------------------------------------------------------- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out) {
    cublasStatus_t status;
    *out = NULL;
    if (fails("cublasLtCreate", &status)) return status;
    *out = malloc(1);
    standin_count("cuBLASLt handle", 1);
    return status;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    free(handle);
    standin_count("cuBLASLt handle", -1);
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_ARCH_MISMATCH ? "CUBLAS_STATUS_ARCH_MISMATCH" : "another status of cuBLASLt";
}

size_t cublasLtGetVersion(void) {
    return CUBLAS_VERSION;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t opaque, size_t size, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
    cublasStatus_t status;
    if (fails("cublasLtMatmulDescInit", &status)) return status;
    memset(opaque, 0, size);
    *(desc *)opaque = (desc){.compute = compute, .scale = scale, .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    return status;
}

static void set(void *member, size_t size, const void *value, size_t given) {
    if (size != given) die("an attribute of another size");
    memcpy(member, value, size);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t opaque, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size) {
    cublasStatus_t status;
    desc *d = (desc *)opaque;
    if (fails("cublasLtMatmulDescSetAttribute", &status)) return status;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: set(&d->transpose[0], sizeof(int32_t), value, size); break;
    case CUBLASLT_MATMUL_DESC_TRANSB: set(&d->transpose[1], sizeof(int32_t), value, size); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: set(&d->epilogue, sizeof d->epilogue, value, size); break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: set(&d->bias, sizeof d->bias, value, size); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: set(&d->aux, sizeof d->aux, value, size); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: set(&d->aux_ld, sizeof d->aux_ld, value, size); break;
    default: die("an attribute that it does not know");
    }
    return status;
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t opaque, size_t size, cudaDataType type,
                                                 uint64_t rows, uint64_t cols, int64_t ld) {
    cublasStatus_t status;
    if (fails("cublasLtMatrixLayoutInit", &status)) return status;
    memset(opaque, 0, size);
    *(layout *)opaque = (layout){.rows = (int64_t)rows, .cols = (int64_t)cols, .ld = ld, .type = type};
    return ld < (int64_t)rows ? CUBLAS_STATUS_INVALID_VALUE : status;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t opaque, size_t size) {
    cublasStatus_t status;
    if (fails("cublasLtMatmulPreferenceInit", &status)) return status;
    memset(opaque, 0, size);
    *(preference *)opaque = (preference){.alignment = {256, 256, 256, 256}};
    return status;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t opaque,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t size) {
    cublasStatus_t status;
    preference *p = (preference *)opaque;
    if (fails("cublasLtMatmulPreferenceSetAttribute", &status)) return status;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: set(&p->workspace, sizeof p->workspace, value, size); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: set(&p->alignment[0], sizeof(uint32_t), value, size); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: set(&p->alignment[1], sizeof(uint32_t), value, size); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: set(&p->alignment[2], sizeof(uint32_t), value, size); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: set(&p->alignment[3], sizeof(uint32_t), value, size); break;
    default: die("a preference that it does not know");
    }
    return status;
}

/* --- choosing ----------------------------------------------------------------------------------------------------- */

/* The attributes but the pointers. */
static uint32_t sum_of(const desc *d, const layout *a, const layout *b, const layout *c) {
    desc plain = *d;
    const layout *layouts[] = {a, b, c};
    uint32_t sum = 17;
    plain.bias = plain.aux = NULL;
    for (size_t i = 0; i < sizeof plain; i++) sum = sum * 31 + ((unsigned char *)&plain)[i];
    for (int l = 0; l < 3; l++)
        sum =
            sum * 31 + (uint32_t)(layouts[l]->rows * 7 + layouts[l]->cols * 5 + layouts[l]->ld * 3 + layouts[l]->type);
    return sum;
}

static bool keeps_argument(uint32_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

static bool is_gelu(uint32_t epilogue) {
    return keeps_argument(epilogue) || epilogue == CUBLASLT_EPILOGUE_GELU || epilogue == CUBLASLT_EPILOGUE_GELU_BIAS;
}

static bool adds_bias(uint32_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_GELU_BIAS;
}

static bool supported(const desc *d, const layout *c) {
    bool plain = d->epilogue == CUBLASLT_EPILOGUE_DEFAULT;
    if (!plain && c->type == CUDA_R_64F) return false;
    if (keeps_argument(d->epilogue) && (!d->aux || d->aux_ld < c->rows || d->aux_ld % 8 != 0)) return false;
    if ((adds_bias(d->epilogue) || d->epilogue == CUBLASLT_EPILOGUE_BGRADB) && !d->bias) return false;
    return plain || is_gelu(d->epilogue) || adds_bias(d->epilogue) || d->epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t opaque,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t wants, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results, int *found) {
    cublasStatus_t status;
    const desc *d = (const desc *)opaque;
    const preference *p = (const preference *)wants;
    *found = 0;
    if (fails("cublasLtMatmulAlgoGetHeuristic", &status)) return status;
    if (!handle || wanted < 1 || c != out) die("a question of another kind");
    if (!supported(d, (const layout *)c)) return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(results, 0, sizeof *results);
    algorithm *chosen = (algorithm *)&results->algo;
    *chosen = (algorithm){.workspace = p->workspace, .sum = sum_of(d, (layout *)a, (layout *)b, (layout *)c)};
    memcpy(chosen->alignment, p->alignment, sizeof p->alignment);
    *found = 1;
    return status;
}

/* --- multiplying -------------------------------------------------------------------------------------------------- */

typedef struct product {
    desc d;
    layout a, b, c;
    double alpha, beta;
    const void *from[2];
    void *to;
    char *workspace;
    size_t workspace_bytes;
} product;

static tsh_dtype dtype_of(int32_t type) {
    switch (type) {
    case CUDA_R_64F: return TSH_FLOAT64;
    case CUDA_R_16BF: return TSH_BFLOAT16;
    case CUDA_R_16F: return TSH_FLOAT16;
    default: return TSH_FLOAT32;
    }
}

static double get(tsh_dtype dtype, const void *from, int64_t i) {
    double value;
    tshi_cpu_convert(NULL, 1, dtype, (const char *)from + (size_t)i * tsh_dtype_size(dtype), TSH_FLOAT64, &value);
    return value;
}

static void put(tsh_dtype dtype, double value, void *to, int64_t i) {
    tshi_cpu_convert(NULL, 1, TSH_FLOAT64, &value, dtype, (char *)to + (size_t)i * tsh_dtype_size(dtype));
}

/* op(X)[i, j], by columns. */
static double element(const product *p, int side, int64_t i, int64_t j) {
    const layout *l = side ? &p->b : &p->a;
    bool transposed = p->d.transpose[side] != CUBLAS_OP_N;
    return get(dtype_of(l->type), p->from[side], transposed ? j + i * l->ld : i + j * l->ld);
}

static void one(const product *p, int64_t i, int64_t j, int64_t k) {
    tsh_dtype dtype = dtype_of(p->c.type);
    double sum = 0;
    for (int64_t l = 0; l < k; l++) sum += element(p, 0, i, l) * element(p, 1, l, j);
    sum *= p->alpha;
    if (p->beta != 0) sum += p->beta * get(dtype, p->to, i + j * p->c.ld);
    if (adds_bias(p->d.epilogue)) sum += get(dtype, p->d.bias, i);
    if (is_gelu(p->d.epilogue)) {
        if (keeps_argument(p->d.epilogue)) put(dtype, sum, p->d.aux, i + j * p->d.aux_ld);
        sum = 0.5 * sum * (1 + tanh(0.79788456080286535588 * (sum + 0.044715 * sum * sum * sum)));
    }
    put(dtype, sum, p->to, i + j * p->c.ld);
}

static void run(void *data) {
    const product *p = data;
    int64_t k = p->d.transpose[0] != CUBLAS_OP_N ? p->a.rows : p->a.cols;
    memset(p->workspace, 0x5a, 64);
    memset(p->workspace + p->workspace_bytes - 64, 0x5a, 64);
    for (int64_t j = 0; j < p->c.cols; j++)
        for (int64_t i = 0; i < p->c.rows; i++) one(p, i, j, k);
    if (p->d.epilogue != CUBLASLT_EPILOGUE_BGRADB) return;
    for (int64_t j = 0; j < p->c.cols; j++) {
        double sum = 0;
        for (int64_t l = 0; l < k; l++) sum += element(p, 1, l, j);
        put(dtype_of(p->c.type), sum, p->d.bias, j);
    }
}

static bool aligned(const void *pointer, uint32_t alignment) {
    return (uintptr_t)pointer % alignment == 0;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t opaque, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *to,
                              cublasLtMatrixLayout_t to_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    cublasStatus_t status;
    if (fails("cublasLtMatmul", &status)) return status;
    const desc *d = (const desc *)opaque;
    const algorithm *chosen = (const algorithm *)algo;
    product *p = malloc(sizeof *p);
    bool is_double = d->scale == CUDA_R_64F;
    *p = (product){.d = *d,
                   .a = *(layout *)a_layout,
                   .b = *(layout *)b_layout,
                   .c = *(layout *)c_layout,
                   .alpha = is_double ? *(const double *)alpha : *(const float *)alpha,
                   .beta = is_double ? *(const double *)beta : *(const float *)beta,
                   .from = {a, b},
                   .to = to,
                   .workspace = workspace,
                   .workspace_bytes = workspace_bytes};
    if (!handle || c != to || c_layout != to_layout) die("a product of another kind");
    if (chosen->sum != sum_of(d, &p->a, &p->b, &p->c)) die("an algorithm that was chosen for another product");
    if (workspace_bytes < chosen->workspace) die("too small a workspace");
    if (!aligned(a, chosen->alignment[0]) || !aligned(b, chosen->alignment[1]) || !aligned(c, chosen->alignment[2])) {
        die("an algorithm that was chosen for better aligned operands");
    }
    if (!standin_queue(stream, NULL, run, p, free)) die("a stream that is none");
    return status;
}
