/* Loads a CUDA library from the loader's paths, or from the folder where it was at compile time. */
#include "device/cuda/stream.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* CUDA libraries have threads and exit handlers, so they are never unloaded. */
#define MODE (RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)

tsh_status tshi_cuda_library_open(const char *name, const char *folder, const tshi_cuda_symbol *symbols, int count,
                                  void **out) {
    char path[512], why[256] = "";
    *out = dlopen(name, MODE);
    if (!*out) {
        snprintf(why, sizeof why, "%s", dlerror());
        snprintf(path, sizeof path, "%s/%s", folder, name);
        *out = dlopen(path, MODE);
    }
    if (!*out) return tshi_fail(TSH_ERR_UNSUPPORTED, "%s cannot be loaded: %s", name, why);
    for (int i = 0; i < count; i++) {
        void *found = dlsym(*out, symbols[i].name);
        if (!found && !symbols[i].optional) {
            tshi_cuda_library_close(*out);
            *out = NULL;
            return tshi_fail(TSH_ERR_UNSUPPORTED, "%s has no %s", name, symbols[i].name);
        }
        memcpy(symbols[i].function, &found, sizeof found);
    }
    return TSH_OK;
}

void tshi_cuda_library_close(void *library) {
    if (library) dlclose(library);
}
