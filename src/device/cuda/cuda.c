/* Creating, describing and destroying a GPU's device, and its table of functions. */
#include "device/cuda/cuda.h"
#include "base/settings.h"
#include "device/cuda/kernels/kernels.h"

#include <stdio.h>
#include <string.h>

static void cuda_describe(const tsh_device *device, char *text, size_t size) {
    const tshi_cuda_device *cuda = (const tshi_cuda_device *)device;
    struct cudaDeviceProp about;
    char blas[64], dnn[64];
    int version = 0;
    if (cudaGetDeviceProperties(&about, cuda->ordinal) != cudaSuccess ||
        cudaRuntimeGetVersion(&version) != cudaSuccess) {
        snprintf(text, size, "GPU %d, whose properties cannot be read", cuda->ordinal);
        return;
    }
    tshi_cuda_blas_describe(cuda, blas, sizeof blas);
    tshi_cuda_dnn_describe(cuda, dnn, sizeof dnn);
    snprintf(text, size, "%s, %d multiprocessors, %.0f GiB, CUDA %d.%d, %s%s%s%s", about.name,
             about.multiProcessorCount, (double)about.totalGlobalMem / (1 << 30), version / 1000, version % 1000 / 10,
             blas, dnn, cuda->tf32 ? ", TF32" : "", cuda->managed ? ", managed memory" : "");
}

static void cuda_destroy(tsh_device *device) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    tsh_allocator allocator = device->allocator;
    if (cuda->compute) tshi_cuda_use(cuda); /* cuBLASLt's handle belongs to this GPU */
    /* From here on failures are ignored: no caller is left to report them to. */
    if (cuda->compute) cudaStreamSynchronize(cuda->compute);
    tshi_cuda_communication_wait(cuda);
    tshi_cuda_dnn_destroy(cuda);
    tshi_cuda_blas_destroy(cuda);
    tshi_cuda_sharing_destroy(cuda);
    tshi_cuda_offload_destroy(cuda);
    tshi_cuda_memory_destroy(cuda);
    tshi_cuda_staging_destroy(cuda);
    if (cuda->report) cudaFreeHost(cuda->report);
    for (int i = 0; i < 2; i++)
        if (cuda->events[i]) cudaEventDestroy(cuda->events[i]);
    if (cuda->compute) cudaStreamDestroy(cuda->compute);
    for (int i = 0; i < TSHI_CUDA_COMMUNICATIONS; i++)
        if (cuda->communication[i]) cudaStreamDestroy(cuda->communication[i]);
    tshi_free(&allocator, cuda->loaded);
    tshi_free(&allocator, device);
}

static tsh_status choose_gpu(int local_rank, int *ordinal) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver) {
        return tshi_fail(TSH_ERR_UNSUPPORTED, "no NVIDIA driver, or one too old: %s (%d)", cudaGetErrorString(error),
                         (int)error);
    }
    if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
        return tshi_fail(TSH_ERR_UNSUPPORTED, "no GPU: %s (%d)", cudaGetErrorString(cudaErrorNoDevice),
                         (int)cudaErrorNoDevice);
    }
    if (error != cudaSuccess) {
        return tshi_fail(TSH_ERR_UNSUPPORTED, "no GPU can be used: %s (%d)", cudaGetErrorString(error), (int)error);
    }
    *ordinal = local_rank % count;
    return TSH_OK;
}

static tsh_status make_streams(tshi_cuda_device *cuda) {
    tsh_status status = tshi_cuda_stream_new(&cuda->compute, false);
    if (status == TSH_OK) status = tshi_cuda_communication_open(cuda, 0);
    for (int i = 0; i < 2 && status == TSH_OK; i++) status = tshi_cuda_event_new(&cuda->events[i]);
    return status;
}

static tsh_status make_report(tshi_cuda_device *cuda) {
    void *report = NULL;
    tsh_status status =
        tshi_cuda_fail(cudaHostAlloc(&report, sizeof *cuda->report, cudaHostAllocPortable), "cudaHostAlloc");
    if (status != TSH_OK) return status;
    cuda->report = report;
    memset(report, 0, sizeof *cuda->report);
    return TSH_OK;
}

static tsh_status open_gpu(tshi_cuda_device *cuda, int local_rank) {
    const char *loading = tshi_variable("CUDA_MODULE_LOADING");
    cuda->loads_at_once = loading && strcmp(loading, "EAGER") == 0;
    tsh_status status = tshi_setting_switch(TSHI_SETTING_CUDA_MANAGED, &cuda->managed);
    if (status == TSH_OK) status = tshi_setting_switch(TSHI_SETTING_CUDA_CACHE, &cuda->cached);
    if (status == TSH_OK) status = tshi_setting_switch(TSHI_SETTING_CUDA_IPC, &cuda->ipc);
    if (status == TSH_OK) status = tshi_setting_switch(TSHI_SETTING_TF32, &cuda->tf32);
    if (status == TSH_OK) status = choose_gpu(local_rank, &cuda->ordinal);
    if (status == TSH_OK) status = tshi_cuda_fail(cudaSetDevice(cuda->ordinal), "cudaSetDevice");
    if (status == TSH_OK) {
        status =
            tshi_cuda_fail(cudaDeviceGetAttribute(&cuda->processors, cudaDevAttrMultiProcessorCount, cuda->ordinal),
                           "cudaDeviceGetAttribute");
    }
    if (status == TSH_OK) status = make_streams(cuda);
    if (status == TSH_OK) status = make_report(cuda);
    if (status == TSH_OK) status = tshi_cuda_memory_create(cuda);
    if (status == TSH_OK) status = tshi_cuda_staging_create(cuda);
    if (status == TSH_OK) status = tshi_cuda_blas_create(cuda);
    if (status == TSH_OK) status = tshi_cuda_dnn_create(cuda);
    return status;
}

static void *cuda_stream(tsh_device *device) {
    return tshi_cuda_stream(device);
}

static const tshi_device_ops cuda_ops = {
    .name = "cuda",
    .kind = TSH_CUDA,
    .computes = 1u << TSH_FLOAT32 | 1u << TSH_FLOAT64 | 1u << TSH_BFLOAT16 | 1u << TSH_FLOAT16,
    .destroy = cuda_destroy,
    .describe = cuda_describe,
    .check = tshi_cuda_check,
    .synchronize = tshi_cuda_synchronize,
    .stream = cuda_stream,
    .matrix_rate = tshi_cuda_matrix_rate,
    .memory = {.alloc = tshi_cuda_alloc, .release = tshi_cuda_release, .find = tshi_cuda_find},
    .copy = {.within = tshi_cuda_copy,
             .to_host = tshi_cuda_copy_to_host,
             .from_host = tshi_cuda_copy_from_host,
             .strided = tshi_cuda_copy_strided,
             .permute = tshi_cuda_permute,
             .zero = tshi_cuda_zero,
             .fill = tshi_cuda_fill,
             .convert = tshi_cuda_convert},
    .product = {.gemm = tshi_cuda_gemm,
                .gemm_batch = tshi_cuda_gemm_batch,
                .affine = tshi_cuda_affine,
                .affine_backward = tshi_cuda_affine_backward,
                .gemm_unary_backward = tshi_cuda_gemm_unary_backward},
    .targets_check = tshi_cuda_targets_check,
    .ids_check = tshi_cuda_ids_check,
    .row_numbers = tshi_cuda_row_numbers,
    .reduce = tshi_cuda_reduce,
    .top = {.find = tshi_cuda_top, .merge = tshi_cuda_top_merge, .backward = tshi_cuda_top_backward},
    .quantized = {.activations = tshi_cuda_quantize_activations,
                  .multiply = tshi_cuda_quantized_multiply,
                  .dequantize = tshi_cuda_dequantize},
    .elementwise = tshi_cuda_elementwise,
    .sum = tshi_cuda_sum,
    .softmax = tshi_cuda_softmax,
    .loss = tshi_cuda_loss,
    .cross_entropy = tshi_cuda_cross_entropy,
    .embedding = tshi_cuda_embedding,
    .norm = tshi_cuda_norm,
    .attention = tshi_cuda_attention,
    .random = tshi_cuda_random,
    .optimizer = tshi_cuda_optimizer,
    .event = &tshi_cuda_event_ops,
    .offload = &tshi_cuda_offload_ops,
    .sharing = &tshi_cuda_sharing_ops,
    .graph = &tshi_cuda_graph_ops,
    .range = &tshi_cuda_range_ops,
};

const tshi_device_ops *tshi_cuda_table(void) {
    return &cuda_ops;
}

tsh_status tshi_device_create_cuda(const tsh_allocator *allocator, int local_rank, tsh_device **out) {
    *out = NULL;
    tsh_allocator hooks = tshi_allocator_resolve(allocator);
    tshi_cuda_device *cuda = tshi_calloc(&hooks, 1, sizeof *cuda);
    if (!cuda) return TSH_ERR_MEMORY;
    cuda->base.ops = &cuda_ops;
    cuda->base.allocator = hooks;
    tsh_status status = open_gpu(cuda, local_rank);
    if (status != TSH_OK) {
        cuda_destroy(&cuda->base);
        return status;
    }
    *out = &cuda->base;
    return TSH_OK;
}
