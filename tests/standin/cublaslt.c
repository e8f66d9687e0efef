/* cuBLASLt on the host: plain loops in double, rounded once, but for an algorithm that splits k in the output's type.
 * It refuses what the real one refuses (or may), and an algorithm works only for what it was chosen for. */
#include "standin/cublaslt.h"
#include "standin/standin.h"

#include "device/cpu/isa/kernels.h"

#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct desc {
    int32_t compute, scale, transpose[2];
    uint32_t epilogue;
    int32_t bias_type; /* -1: the output's */
    void *bias, *aux;
    int64_t aux_ld;
} desc;

typedef struct layout {
    int64_t rows, cols, ld, stride;
    int32_t type, count; /* count: matrices of a batch, `stride` elements apart */
} layout;

typedef struct preference {
    uint64_t workspace;
    uint32_t alignment[4];
    uint32_t reductions; /* a mask */
} preference;

/* What an algorithm was chosen for. */
typedef struct algorithm {
    uint64_t workspace;
    uint16_t alignment[6]; /* of the matrices, bias and auxiliary matrix */
    uint32_t sum;          /* of the description */
    uint32_t number, reduction;
} algorithm;

/* Under the runtime's lock. */
static uint64_t runs[STANDIN_ALGORITHMS];

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
    int *gpu = malloc(sizeof *gpu);
    *gpu = standin_current();
    *out = (cublasLtHandle_t)gpu;
    standin_count("cuBLASLt handle", 1);
    return status;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    if (*(const int *)handle != standin_current()) die("a handle is destroyed while another GPU is current");
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

/* Larger than the header has them, as a later version of the library may make them; the bytes outside are not its
 * user's. */
static void *descriptor_new(const void *value, size_t size, size_t of_header) {
    char *at = calloc(1, size + of_header);
    memcpy(at, value, size);
    standin_count("cuBLASLt descriptor", 1);
    return at;
}

static cublasStatus_t descriptor_free(void *descriptor) {
    free(descriptor);
    standin_count("cuBLASLt descriptor", -1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale) {
    cublasStatus_t status;
    if (fails("cublasLtMatmulDescCreate", &status)) return status;
    const desc d = {
        .compute = (int32_t)compute, .scale = (int32_t)scale, .epilogue = CUBLASLT_EPILOGUE_DEFAULT, .bias_type = -1};
    *out = descriptor_new(&d, sizeof d, sizeof **out);
    return status;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t descriptor) {
    return descriptor_free(descriptor);
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
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: set(&d->bias_type, sizeof d->bias_type, value, size); break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: set(&d->bias, sizeof d->bias, value, size); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: set(&d->aux, sizeof d->aux, value, size); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: set(&d->aux_ld, sizeof d->aux_ld, value, size); break;
    default: die("an attribute that it does not know");
    }
    return status;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld) {
    cublasStatus_t status;
    if (fails("cublasLtMatrixLayoutCreate", &status)) return status;
    if (ld < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
    const layout l = {.rows = (int64_t)rows, .cols = (int64_t)cols, .ld = ld, .type = (int32_t)type, .count = 1};
    *out = descriptor_new(&l, sizeof l, sizeof **out);
    return status;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t opaque,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                size_t size) {
    cublasStatus_t status;
    layout *l = (layout *)opaque;
    if (fails("cublasLtMatrixLayoutSetAttribute", &status)) return status;
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: set(&l->count, sizeof l->count, value, size); break;
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: set(&l->stride, sizeof l->stride, value, size); break;
    default: die("an attribute of a layout that it does not know");
    }
    return status;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t descriptor) {
    return descriptor_free(descriptor);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out) {
    cublasStatus_t status;
    if (fails("cublasLtMatmulPreferenceCreate", &status)) return status;
    const preference p = {.alignment = {256, 256, 256, 256}, .reductions = CUBLASLT_REDUCTION_SCHEME_MASK};
    *out = descriptor_new(&p, sizeof p, sizeof **out);
    return status;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t descriptor) {
    return descriptor_free(descriptor);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t opaque,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t size) {
    cublasStatus_t status;
    preference *p = (preference *)opaque;
    if (fails("cublasLtMatmulPreferenceSetAttribute", &status)) return status;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: set(&p->workspace, sizeof p->workspace, value, size); break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: set(&p->reductions, sizeof p->reductions, value, size); break;
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
        sum = sum * 31 + (uint32_t)(layouts[l]->rows * 7 + layouts[l]->cols * 5 + layouts[l]->ld * 3 +
                                    layouts[l]->type + layouts[l]->stride * 11 + layouts[l]->count * 13);
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

static bool takes_gelu_back(uint32_t epilogue) {
    return epilogue == CUBLASLT_EPILOGUE_DGELU;
}

static bool is_16_bits(int32_t type) {
    return type == CUDA_R_16BF || type == CUDA_R_16F;
}

/* The rows of NVIDIA's table that the library uses: what is computed in which type, from and to which. */
static bool types_go(const desc *d, const layout *a, const layout *b, const layout *c) {
    if (a->type != b->type) return false;
    if (d->compute == CUBLAS_COMPUTE_64F) {
        return d->scale == CUDA_R_64F && a->type == CUDA_R_64F && c->type == CUDA_R_64F;
    }
    if (d->scale != CUDA_R_32F) return false;
    if (d->compute == CUBLAS_COMPUTE_32F_FAST_TF32) return a->type == CUDA_R_32F && c->type == CUDA_R_32F;
    if (d->compute != CUBLAS_COMPUTE_32F) return false;
    return a->type == c->type ? is_16_bits(a->type) || a->type == CUDA_R_32F
                              : is_16_bits(a->type) && c->type == CUDA_R_32F;
}

/* None of float64. The auxiliary matrix has rows of whole packs. Vectors are read and written by packs. */
static bool epilogue_goes(const desc *d, const layout *c) {
    uint32_t e = d->epilogue;
    bool aux = keeps_argument(e) || takes_gelu_back(e), bias = adds_bias(e);
    if (e == CUBLASLT_EPILOGUE_DEFAULT) return true;
    if (!bias && !aux && !is_gelu(e)) return false;
    if (c->type == CUDA_R_64F) return false;
    if (aux && (!d->aux || (uintptr_t)d->aux % 16 != 0 || d->aux_ld < c->rows || d->aux_ld % 8 != 0)) return false;
    if (bias && (!d->bias || (uintptr_t)d->bias % 16 != 0)) return false;
    if (bias && d->bias_type != -1 && d->bias_type != c->type) return false;
    return true;
}

static uint16_t alignment_of(const void *pointer) {
    for (uint16_t most = 256;; most /= 2)
        if ((uintptr_t)pointer % most == 0) return most;
}

/* The algorithms, the one first that the real library may find the fastest: number 0 sums parts of k in the type of a
 * 16-bit output, number 1 does not split k, number 2 sums parts in the type that is computed in, number 3 is one that
 * the library has thought of and cannot run, and number 4 is like number 1. */
static bool offer(uint32_t number, const preference *p, const desc *d, const layout *c, algorithm *out) {
    static const uint32_t reductions[STANDIN_ALGORITHMS] = {CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, 0,
                                                            CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 0, 0};
    uint32_t wanted = reductions[number];
    bool rounds = wanted == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    if ((p->reductions & wanted) != wanted || (rounds && !is_16_bits(c->type))) return false;
    if (wanted != 0 && d->epilogue != CUBLASLT_EPILOGUE_DEFAULT) return false;
    *out = (algorithm){.workspace = p->workspace, .number = number, .reduction = wanted};
    for (int i = 0; i < 4; i++) out->alignment[i] = (uint16_t)p->alignment[i];
    out->alignment[4] = alignment_of(d->bias);
    out->alignment[5] = alignment_of(d->aux);
    return true;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t opaque,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t wants, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results, int *found) {
    cublasStatus_t status;
    const desc *d = (const desc *)opaque;
    const layout *from[] = {(const layout *)a, (const layout *)b, (const layout *)c};
    *found = 0;
    if (fails("cublasLtMatmulAlgoGetHeuristic", &status)) return status;
    if (!handle || wanted < 1 || c != out) die("a question of another kind");
    if (!types_go(d, from[0], from[1], from[2]) || !epilogue_goes(d, from[2])) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (uint32_t number = 0; number < STANDIN_ALGORITHMS && *found < wanted; number++) {
        algorithm chosen;
        if (!offer(number, (const preference *)wants, d, from[2], &chosen)) continue;
        cublasLtMatmulHeuristicResult_t *result = &results[(*found)++];
        memset(result, 0, sizeof *result);
        chosen.sum = sum_of(d, from[0], from[1], from[2]);
        memcpy(&result->algo, &chosen, sizeof chosen);
        result->state = number == 3 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    }
    return status;
}

uint64_t standin_cublaslt_runs(int number) {
    return runs[number];
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
    algorithm how;
    int gpu;
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
    tshi_cpu_convert_base(NULL, 1, dtype, (const char *)from + (size_t)i * tsh_dtype_size(dtype), TSH_FLOAT64, &value);
    return value;
}

static void put(tsh_dtype dtype, double value, void *to, int64_t i) {
    tshi_cpu_convert_base(NULL, 1, TSH_FLOAT64, &value, dtype, (char *)to + (size_t)i * tsh_dtype_size(dtype));
}

/* op(X)[i, j], by columns. */
static double element(const product *p, int side, int64_t i, int64_t j) {
    const layout *l = side ? &p->b : &p->a;
    bool transposed = p->d.transpose[side] != CUBLAS_OP_N;
    return get(dtype_of(l->type), p->from[side], transposed ? j + i * l->ld : i + j * l->ld);
}

static double gelu(double x) {
    return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x) {
    double t = tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
}

static double rounded(tsh_dtype dtype, double value) {
    double memory;
    put(dtype, value, &memory, 0);
    return get(dtype, &memory, 0);
}

/* An element of the product: in two parts, each of them rounded, where the algorithm does so. */
static double sum_over(const product *p, int64_t i, int64_t j, int64_t k) {
    bool rounds = p->how.reduction == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    double parts[2] = {0, 0};
    for (int64_t l = 0; l < k; l++) parts[rounds && l >= k / 2] += element(p, 0, i, l) * element(p, 1, l, j);
    if (!rounds) return parts[0];
    return rounded(dtype_of(p->c.type), parts[0]) + rounded(dtype_of(p->c.type), parts[1]);
}

static void one(const product *p, int64_t i, int64_t j, int64_t k) {
    tsh_dtype dtype = dtype_of(p->c.type);
    uint32_t epilogue = p->d.epilogue;
    double sum = p->alpha * sum_over(p, i, j, k);
    if (p->beta != 0) sum += p->beta * get(dtype, p->to, i + j * p->c.ld);
    if (adds_bias(epilogue)) sum += get(dtype, p->d.bias, i);
    if (keeps_argument(epilogue)) put(dtype, sum, p->d.aux, i + j * p->d.aux_ld);
    if (is_gelu(epilogue)) sum = gelu(sum);
    if (takes_gelu_back(epilogue)) sum *= gelu_slope(get(dtype, p->d.aux, i + j * p->d.aux_ld));
    put(dtype, sum, p->to, i + j * p->c.ld);
}

static product matrix_of_batch(const product *p, int32_t b) {
    product matrix = *p;
    const layout *from[] = {&p->a, &p->b};
    for (int i = 0; i < 2; i++) {
        int64_t elements = b * from[i]->stride;
        matrix.from[i] = (const char *)p->from[i] + (size_t)elements * tsh_dtype_size(dtype_of(from[i]->type));
    }
    matrix.to = (char *)p->to + (size_t)(b * p->c.stride) * tsh_dtype_size(dtype_of(p->c.type));
    return matrix;
}

static void run(void *data) {
    const product *p = data;
    standin_reach(p->gpu);
    int64_t k = p->d.transpose[0] != CUBLAS_OP_N ? p->a.rows : p->a.cols;
    memset(p->workspace, 0x5a, 64);
    memset(p->workspace + p->workspace_bytes - 64, 0x5a, 64);
    for (int32_t b = 0; b < p->c.count; b++) {
        const product matrix = matrix_of_batch(p, b);
        for (int64_t j = 0; j < p->c.cols; j++)
            for (int64_t i = 0; i < p->c.rows; i++) one(&matrix, i, j, k);
    }
    standin_reach(-1);
    runs[p->how.number]++;
}

static void check_alignment(const product *p) {
    const void *operands[] = {p->from[0], p->from[1], p->to, p->to, p->d.bias, p->d.aux};
    const layout *batches[] = {&p->a, &p->b, &p->c, &p->c};
    for (int i = 0; i < 4; i++) {
        size_t stride = (size_t)batches[i]->stride * tsh_dtype_size(dtype_of(batches[i]->type));
        if (stride % p->how.alignment[i] != 0) die("an algorithm that was chosen for better aligned batches");
    }
    for (int i = 0; i < 6; i++)
        if ((uintptr_t)operands[i] % p->how.alignment[i] != 0)
            die("an algorithm that was chosen for better aligned operands");
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
                   .workspace_bytes = workspace_bytes,
                   .how = *chosen,
                   .gpu = handle ? *(const int *)handle : -1};
    if (!handle || c != to || c_layout != to_layout) die("a product of another kind");
    if (p->a.count != p->c.count || p->b.count != p->c.count) die("batches of different lengths");
    if (chosen->sum != sum_of(d, &p->a, &p->b, &p->c)) die("an algorithm that was chosen for another product");
    if (p->gpu != standin_current() || !standin_stream_is_of(stream, p->gpu)) die("a handle of another GPU");
    if (workspace_bytes < chosen->workspace) die("too small a workspace");
    if ((uintptr_t)workspace % 256 != 0) die("a workspace that is not aligned");
    if (chosen->number == 3) die("an algorithm that cannot run");
    check_alignment(p);
    char kernel[32];
    snprintf(kernel, sizeof kernel, "cuBLASLt %d of %d", chosen->number, (int)d->scale);
    standin_load(kernel);
    if (!standin_queue(stream, NULL, run, p, free)) die("a stream that is none");
    return status;
}
