/* cuBLASLt's functions, found when a device is made. */
#ifndef TSHI_CUDA_LIBRARY_H
#define TSHI_CUDA_LIBRARY_H

#include "base/base.h"

#include <cublasLt.h>

typedef struct tshi_cublaslt {
    void *opened;
    __typeof__(cublasLtCreate) *create;
    __typeof__(cublasLtDestroy) *destroy;
    __typeof__(cublasLtGetVersion) *version;
    __typeof__(cublasLtMatmul) *matmul;
    __typeof__(cublasLtMatmulDescInit_internal) *desc_init;
    __typeof__(cublasLtMatmulDescSetAttribute) *desc_set;
    __typeof__(cublasLtMatrixLayoutInit_internal) *layout_init;
    __typeof__(cublasLtMatmulPreferenceInit_internal) *preference_init;
    __typeof__(cublasLtMatmulPreferenceSetAttribute) *preference_set;
    __typeof__(cublasLtMatmulAlgoGetHeuristic) *heuristic;
} tshi_cublaslt;

/* TSH_ERR_UNSUPPORTED, with the loader's words, where it is not there or lacks a function. */
tsh_status tshi_cublaslt_open(tshi_cublaslt *out);
void tshi_cublaslt_close(tshi_cublaslt *library);

#endif
