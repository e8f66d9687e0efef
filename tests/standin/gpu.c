/* The stand-in of the CUDA runtime: GPUs, and which of them reach each other's memory. */
#include "standin/runtime.h"

#include <cuda.h>
#include <stdio.h>
#include <string.h>

static int gpus = 1;
static bool peers = true;
static bool enabled[STANDIN_GPUS][STANDIN_GPUS];
static size_t total_memory = (size_t)4 << 30;
static _Thread_local int current;

void standin_gpus(int count) {
    if (count > STANDIN_GPUS) standin_die("too many GPUs");
    gpus = count;
}

void standin_peers(bool on) {
    standin_enter();
    peers = on;
    memset(enabled, 0, sizeof enabled);
    standin_leave();
}

void standin_memory(size_t bytes) {
    total_memory = bytes;
}

size_t standin_total_memory(void) {
    return total_memory;
}

int standin_current(void) {
    return current;
}

static bool is_gpu(int device) {
    return device >= 0 && device < gpus;
}

bool standin_can_reach(int from, int to) {
    return from == to || peers;
}

bool standin_has_access(int from, int to) {
    return from == to || enabled[from][to];
}

cudaError_t cudaGetDeviceCount(int *count) {
    cudaError_t error;
    if (standin_fails("cudaGetDeviceCount", cudaErrorUnknown, &error)) return error;
    if (gpus < 0) return standin_note(cudaErrorInsufficientDriver);
    if (gpus == 0) return standin_note(cudaErrorNoDevice);
    *count = gpus;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    cudaError_t error;
    if (standin_fails("cudaSetDevice", cudaErrorUnknown, &error)) return error;
    if (!is_gpu(device)) return standin_note(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = current;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    cudaError_t error;
    (void)device;
    if (standin_fails("cudaDeviceGetAttribute", cudaErrorUnknown, &error)) return error;
    *value = attribute == cudaDevAttrMultiProcessorCount ? 4 : attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *about, int device) {
    cudaError_t error;
    if (standin_fails("cudaGetDeviceProperties", cudaErrorUnknown, &error)) return error;
    memset(about, 0, sizeof *about);
    snprintf(about->name, sizeof about->name, "GPU stand-in %d", device);
    about->multiProcessorCount = 4;
    about->totalGlobalMem = total_memory;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    cudaError_t error;
    if (standin_fails("cudaRuntimeGetVersion", cudaErrorUnknown, &error)) return error;
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* --- the driver --------------------------------------------------------------------------------------------------- */

CUresult cuDeviceGetCount(int *count) {
    *count = gpus;
    return standin_has_begun() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

/* All GPUs begin together. */
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = standin_has_begun();
    return is_gpu(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* --- kernels ------------------------------------------------------------------------------------------------------ */

#define MOST_KERNELS 512

static struct {
    char name[64];
    bool on[STANDIN_GPUS];
} kernels[MOST_KERNELS];

static bool is_new(const char *name) {
    int at = 0;
    while (at < MOST_KERNELS && kernels[at].name[0] && strncmp(kernels[at].name, name, sizeof kernels[at].name - 1))
        at++;
    if (at == MOST_KERNELS) standin_die("too many kernels");
    snprintf(kernels[at].name, sizeof kernels[at].name, "%s", name);
    bool before = kernels[at].on[current];
    kernels[at].on[current] = true;
    return !before;
}

void standin_load(const char *kernel) {
    if (standin_loads_at_once()) return;
    standin_enter();
    bool new = is_new(kernel);
    standin_leave();
    if (new && !standin_wait_idle(current)) standin_die("a kernel's first launch waits for calls that nothing ends");
}

/* --- peers -------------------------------------------------------------------------------------------------------- */

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
    cudaError_t error;
    if (standin_fails("cudaDeviceGetPCIBusId", cudaErrorInvalidDevice, &error)) return error;
    snprintf(text, (size_t)size, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text) {
    cudaError_t error;
    unsigned bus = 0;
    if (standin_fails("cudaDeviceGetByPCIBusId", cudaErrorInvalidDevice, &error)) return error;
    if (sscanf(text, "0000:%x:00.0", &bus) != 1 || !is_gpu((int)bus - 1)) return standin_note(cudaErrorInvalidDevice);
    *device = (int)bus - 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    cudaError_t error;
    if (standin_fails("cudaDeviceCanAccessPeer", cudaErrorInvalidDevice, &error)) return error;
    if (!is_gpu(device) || !is_gpu(peer)) return standin_note(cudaErrorInvalidDevice);
    *can = device != peer && peers;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    cudaError_t error;
    (void)flags;
    if (standin_fails("cudaDeviceEnablePeerAccess", cudaErrorPeerAccessUnsupported, &error)) return error;
    if (!is_gpu(peer) || peer == current || !peers) return standin_note(cudaErrorPeerAccessUnsupported);
    standin_enter();
    bool already = enabled[current][peer];
    enabled[current][peer] = true;
    standin_leave();
    return already ? standin_note(cudaErrorPeerAccessAlreadyEnabled) : cudaSuccess;
}
