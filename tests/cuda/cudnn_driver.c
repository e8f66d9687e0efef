/* A driver without a GPU: the functions that cuDNN looks up in one while it makes plans for a GPU that is only
 * described. Kernels that it has compiled are loaded nowhere. */

static int something[1];

/* CUDA_ERROR_NO_DEVICE. */
int cuInit(void) {
    return 100;
}

int cuLibraryLoadData(void **out) {
    *out = something;
    return 0;
}

int cuLibraryGetKernel(void **out) {
    *out = something;
    return 0;
}

int cuKernelGetFunction(void **out) {
    *out = something;
    return 0;
}

/* Functions that cuDNN wants to find, and does not call. */
int cuGetErrorName(void) {
    return 0;
}
int cuGetErrorString(void) {
    return 0;
}
int cuCtxGetCurrent(void) {
    return 0;
}
int cuCtxGetLimit(void) {
    return 0;
}
int cuCtxPopCurrent(void) {
    return 0;
}
int cuCtxPushCurrent(void) {
    return 0;
}
int cuStreamGetCtx(void) {
    return 0;
}
int cuDriverGetVersion(void) {
    return 0;
}
int cuDeviceGetCount(void) {
    return 0;
}
int cuDeviceGet(void) {
    return 0;
}
int cuLinkCreate(void) {
    return 0;
}
int cuLinkAddData(void) {
    return 0;
}
int cuLinkComplete(void) {
    return 0;
}
int cuLinkDestroy(void) {
    return 0;
}
int cuLaunchKernel(void) {
    return 0;
}
int cuLaunchKernelEx(void) {
    return 0;
}
int cuLaunchCooperativeKernel(void) {
    return 0;
}
int cuLibraryLoadFromFile(void) {
    return 0;
}
int cuLibraryUnload(void) {
    return 0;
}
int cuLibraryGetModule(void) {
    return 0;
}
int cuKernelSetAttribute(void) {
    return 0;
}
int cuKernelGetAttribute(void) {
    return 0;
}
int cuOccupancyMaxPotentialClusterSize(void) {
    return 0;
}
