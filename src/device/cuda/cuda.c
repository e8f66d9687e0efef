/* The GPU: its streams, what is told of failures, and the table of its kernels. */
#include "device/cuda/kernels/kernels.h"

#include "base/clock.h"
#include "base/settings.h"
#include "device/cuda/cuda.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- failures ----------------------------------------------------------------------------------------------------- */

tsh_status tshi_cuda_fail(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return TSH_OK;
    return tshi_fail(error == cudaErrorMemoryAllocation ? TSH_ERR_MEMORY : TSH_ERR_SYSTEM, "%s: %s (%d)", what,
                     cudaGetErrorString(error), (int)error);
}

static void note(tshi_cuda_device *device, tsh_status status) {
    tsh_graph *graph = device->capturing;
    if (graph && graph->broken == TSH_OK) {
        graph->broken = status;
        snprintf(graph->words, sizeof graph->words, "%s", tsh_error_message());
    }
    if (device->failed != TSH_OK) return;
    device->failed = status;
    snprintf(device->words, sizeof device->words, "%s", tsh_error_message());
}

void tshi_cuda_note(tsh_device *device, cudaError_t error, const char *what) {
    if (error != cudaSuccess) note(tshi_cuda(device), tshi_cuda_fail(error, what));
}

void tshi_cuda_no_capture(tsh_device *device, const char *what) {
    note(tshi_cuda(device), tshi_fail(TSH_ERR_STATE, "%s: not while a graph is captured", what));
}

static void doze(int looks) {
    if (looks < 1000) return;
    if (looks < 2000) {
        sched_yield();
        return;
    }
    tshi_sleep(looks < 4000 ? 20e-6 : 200e-6);
}

/* A collective whose peers do not come would never let the queue end: whoever looks after it is asked. */
cudaError_t tshi_cuda_wait_event(tshi_cuda_device *cuda, cudaEvent_t event) {
    if (!cuda->watch) return cudaEventSynchronize(event);
    cudaError_t error;
    for (int looks = 0; (error = cudaEventQuery(event)) == cudaErrorNotReady; looks++) {
        doze(looks);
        if (looks >= 1000) cuda->watch(cuda->watcher);
    }
    return error;
}

static cudaError_t wait_compute(tshi_cuda_device *cuda) {
    if (!cuda->watch) return cudaStreamSynchronize(cuda->compute);
    cudaError_t error = cudaEventRecord(cuda->events[0], cuda->compute);
    if (error == cudaSuccess) error = tshi_cuda_wait_event(cuda, cuda->events[0]);
    /* Copies that are queued write to the caller's memory. */
    if (error != cudaSuccess) cudaStreamSynchronize(cuda->compute);
    return error;
}

bool tshi_cuda_wait(tsh_device *device, const char *what) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    if (cuda->capturing) {
        tshi_cuda_no_capture(device, what);
        return false;
    }
    cuda->waits++;
    cudaError_t error = wait_compute(cuda);
    tshi_cuda_note(device, error, what);
    return error == cudaSuccess;
}

void tshi_cuda_launched(tsh_device *device, const char *what) {
    tshi_cuda_note(device, cudaGetLastError(), what);
    if (tshi_cuda(device)->managed) tshi_cuda_wait(device, what);
}

/* The GPU sets `found` last and never again before the host has cleared it, so the rest is whole. */
static tsh_status tell_report(tshi_cuda_report *report) {
    if (!__atomic_load_n(&report->found, __ATOMIC_ACQUIRE)) return TSH_OK;
    tshi_cuda_report r = *report;
    __atomic_store_n(&report->found, 0, __ATOMIC_RELEASE);
    if (r.is_target) {
        return tshi_fail(TSH_ERR_RANGE, "target %lld at place %lld is outside [0, %lld) and not ignore_index %lld",
                         (long long)r.value, (long long)r.place, (long long)r.limit, (long long)r.ignore_index);
    }
    return tshi_fail(TSH_ERR_RANGE, "id %lld at place %lld, the vocabulary is [0, %lld)", (long long)r.value,
                     (long long)r.place, (long long)r.limit);
}

static tsh_status cuda_check(tsh_device *device) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    if (!cuda->capturing) { /* a stream that is captured may not be asked */
        cudaError_t error = cudaStreamQuery(cuda->compute);
        if (error != cudaErrorNotReady) tshi_cuda_note(device, error, "a kernel");
    }
    tsh_status status = tell_report(cuda->report);
    if (cuda->failed == TSH_OK) return status;
    status = tshi_fail(cuda->failed, "%s", cuda->words);
    cuda->failed = TSH_OK;
    return status;
}

/* --- one GPU ------------------------------------------------------------------------------------------------------ */

static void cuda_describe(const tsh_device *device, char *text, size_t size) {
    const tshi_cuda_device *cuda = (const tshi_cuda_device *)device;
    struct cudaDeviceProp about;
    char blas[64];
    int version = 0;
    if (cudaGetDeviceProperties(&about, cuda->ordinal) != cudaSuccess ||
        cudaRuntimeGetVersion(&version) != cudaSuccess) {
        snprintf(text, size, "GPU %d, of which nothing can be learned", cuda->ordinal);
        return;
    }
    tshi_cuda_blas_describe(cuda, blas, sizeof blas);
    snprintf(text, size, "%s, %d multiprocessors, %.0f GiB, CUDA %d.%d, %s%s%s", about.name, about.multiProcessorCount,
             (double)about.totalGlobalMem / (1 << 30), version / 1000, version % 1000 / 10, blas,
             cuda->tf32 ? ", TF32" : "", cuda->managed ? ", managed memory" : "");
}

static void cuda_destroy(tsh_device *device) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    tsh_allocator allocator = device->allocator;
    /* What goes wrong from here on has nobody to be told. */
    if (cuda->compute) cudaStreamSynchronize(cuda->compute);
    if (cuda->communication) cudaStreamSynchronize(cuda->communication);
    if (cuda->copies) cudaStreamSynchronize(cuda->copies);
    tshi_cuda_blas_destroy(cuda);
    tshi_cuda_sharing_destroy(cuda);
    tshi_cuda_memory_destroy(cuda);
    if (cuda->report) cudaFreeHost(cuda->report);
    for (int i = 0; i < 2; i++)
        if (cuda->events[i]) cudaEventDestroy(cuda->events[i]);
    if (cuda->compute) cudaStreamDestroy(cuda->compute);
    if (cuda->communication) cudaStreamDestroy(cuda->communication);
    if (cuda->copies) cudaStreamDestroy(cuda->copies);
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
    int low = 0, high = 0;
    tsh_status status =
        tshi_cuda_fail(cudaDeviceGetStreamPriorityRange(&low, &high), "cudaDeviceGetStreamPriorityRange");
    cudaStream_t *streams[] = {&cuda->compute, &cuda->communication, &cuda->copies};
    for (int i = 0; i < 3 && status == TSH_OK; i++) {
        /* Communication goes first where both have work: others wait for it. */
        int priority = i == 1 ? high : low;
        status = tshi_cuda_fail(cudaStreamCreateWithPriority(streams[i], cudaStreamNonBlocking, priority),
                                "cudaStreamCreateWithPriority");
    }
    for (int i = 0; i < 2 && status == TSH_OK; i++) {
        status = tshi_cuda_fail(cudaEventCreateWithFlags(&cuda->events[i], cudaEventDisableTiming),
                                "cudaEventCreateWithFlags");
    }
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
    cuda->ipc = true;
    tsh_status status = tshi_variable_switch("TSHARD_CUDA_MANAGED", &cuda->managed);
    if (status == TSH_OK) status = tshi_variable_switch("TSHARD_CUDA_IPC", &cuda->ipc);
    if (status == TSH_OK) status = tshi_variable_switch("TSHARD_TF32", &cuda->tf32);
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
    if (status == TSH_OK) status = tshi_cuda_blas_create(cuda);
    return status;
}

static const tshi_device_ops cuda_ops = {
    .name = "cuda",
    .kind = TSH_CUDA,
    .computes = 1u << TSH_FLOAT32 | 1u << TSH_FLOAT64 | 1u << TSH_BFLOAT16 | 1u << TSH_FLOAT16,
    .alloc = tshi_cuda_alloc,
    .alloc_symmetric = tshi_cuda_alloc_symmetric,
    .release = tshi_cuda_release,
    .destroy = cuda_destroy,
    .describe = cuda_describe,
    .check = cuda_check,
    .copy = tshi_cuda_copy,
    .copy_to_host = tshi_cuda_copy_to_host,
    .copy_from_host = tshi_cuda_copy_from_host,
    .copy_strided = tshi_cuda_copy_strided,
    .zero = tshi_cuda_zero,
    .fill = tshi_cuda_fill,
    .convert = tshi_cuda_convert,
    .synchronize = tshi_cuda_synchronize,
    .event_create = tshi_cuda_event_create,
    .event_record = tshi_cuda_event_record,
    .event_elapsed = tshi_cuda_event_elapsed,
    .event_destroy = tshi_cuda_event_destroy,
    .matrix_rate = tshi_cuda_matrix_rate,
    .share = tshi_cuda_share,
    .reach = tshi_cuda_reach,
    .unreach = tshi_cuda_unreach,
    .abandon = tshi_cuda_abandon,
    .settle = tshi_cuda_settle,
    .reduce = tshi_cuda_reduce,
    .gemm = tshi_cuda_gemm,
    .affine = tshi_cuda_affine,
    .affine_backward = tshi_cuda_affine_backward,
    .unary = tshi_cuda_unary,
    .unary_backward = tshi_cuda_unary_backward,
    .axpby = tshi_cuda_axpby,
    .mul = tshi_cuda_mul,
    .divide = tshi_cuda_divide,
    .bias = tshi_cuda_bias,
    .bias_backward = tshi_cuda_bias_backward,
    .sum = tshi_cuda_sum,
    .sum_backward = tshi_cuda_sum_backward,
    .softmax_max = tshi_cuda_softmax_max,
    .softmax_sum = tshi_cuda_softmax_sum,
    .softmax = tshi_cuda_softmax,
    .softmax_dot = tshi_cuda_softmax_dot,
    .softmax_backward = tshi_cuda_softmax_backward,
    .targets_check = tshi_cuda_targets_check,
    .cross_entropy_sums = tshi_cuda_cross_entropy_sums,
    .cross_entropy_shift = tshi_cuda_cross_entropy_shift,
    .cross_entropy_loss = tshi_cuda_cross_entropy_loss,
    .cross_entropy_backward = tshi_cuda_cross_entropy_backward,
    .ids_check = tshi_cuda_ids_check,
    .embedding = tshi_cuda_embedding,
    .embedding_backward = tshi_cuda_embedding_backward,
    .norm = tshi_cuda_norm,
    .norm_backward = tshi_cuda_norm_backward,
    .dropout = tshi_cuda_dropout,
    .random_uniform = tshi_cuda_random_uniform,
    .random_normal = tshi_cuda_random_normal,
    .sgd = tshi_cuda_sgd,
    .adamw = tshi_cuda_adamw,
    .sum_squares = tshi_cuda_sum_squares,
    .clip = tshi_cuda_clip,
};

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
