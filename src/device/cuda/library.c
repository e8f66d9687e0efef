/* Opens cuBLASLt: by the loader's own paths, then where it lay when this was compiled. */
#include "device/cuda/library.h"

#include <dlfcn.h>
#include <stdio.h>

#define STRINGIFY_(x) #x
#define STRINGIFY(x)  STRINGIFY_(x)
#define FILE_NAME     "libcublasLt.so." STRINGIFY(CUBLAS_VER_MAJOR)

/* A CUDA library leaves exit handlers behind: once loaded it stays. */
static void *open_one(const char *path) {
    return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

static void *open_any(char *words, size_t size) {
    void *opened = open_one(FILE_NAME);
    if (opened) return opened;
    snprintf(words, size, "%s", dlerror());
#ifdef TSHARD_CUBLASLT_FOLDER
    opened = open_one(TSHARD_CUBLASLT_FOLDER "/" FILE_NAME);
#endif
    return opened;
}

/* A data pointer of dlsym's becomes one to a function. */
typedef union symbol {
    void *data;
    void (*function)(void);
} symbol;

typedef struct wanted {
    const char *name;
    size_t offset;
} wanted;

#define WANTED(member, name)                                                                                           \
    { name, offsetof(tshi_cublaslt, member) }

static const wanted functions[] = {
    WANTED(create, "cublasLtCreate"),
    WANTED(destroy, "cublasLtDestroy"),
    WANTED(version, "cublasLtGetVersion"),
    WANTED(matmul, "cublasLtMatmul"),
    WANTED(desc_init, "cublasLtMatmulDescInit_internal"),
    WANTED(desc_set, "cublasLtMatmulDescSetAttribute"),
    WANTED(layout_init, "cublasLtMatrixLayoutInit_internal"),
    WANTED(preference_init, "cublasLtMatmulPreferenceInit_internal"),
    WANTED(preference_set, "cublasLtMatmulPreferenceSetAttribute"),
    WANTED(heuristic, "cublasLtMatmulAlgoGetHeuristic"),
};

tsh_status tshi_cublaslt_open(tshi_cublaslt *out) {
    char words[256] = "";
    *out = (tshi_cublaslt){0};
    out->opened = open_any(words, sizeof words);
    if (!out->opened) return tshi_fail(TSH_ERR_UNSUPPORTED, "cuBLASLt cannot be loaded: %s", words);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        symbol s = {.data = dlsym(out->opened, functions[i].name)};
        if (!s.data) {
            tshi_cublaslt_close(out);
            return tshi_fail(TSH_ERR_UNSUPPORTED, FILE_NAME " has no %s", functions[i].name);
        }
        *(void (**)(void))(void *)((char *)out + functions[i].offset) = s.function;
    }
    return TSH_OK;
}

void tshi_cublaslt_close(tshi_cublaslt *library) {
    if (library->opened) dlclose(library->opened);
    *library = (tshi_cublaslt){0};
}
