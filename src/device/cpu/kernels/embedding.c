/* Rows of a table by id. */
#include "device/cpu/kernels/clones.h"
#include "device/cpu/kernels/kernels.h"

#include <string.h>

int64_t tshi_cpu_ids_check(tsh_device *device, int64_t n, const int64_t *ids, int64_t vocabulary) {
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocabulary) return i;
    }
    return -1;
}

void tshi_cpu_embedding(tsh_device *device, tsh_dtype dtype, int64_t n, const int64_t *ids, int64_t start, int64_t rows,
                        int64_t cols, const void *table, void *y) {
    size_t bytes = (size_t)cols * tsh_dtype_size(dtype);
    if (bytes == 0) return;
    for (int64_t i = 0; i < n; i++) {
        char *to = (char *)y + (size_t)i * bytes;
        if (ids[i] >= start && ids[i] - start < rows)
            memcpy(to, (const char *)table + (size_t)(ids[i] - start) * bytes, bytes);
        else
            memset(to, 0, bytes);
    }
}

TSHI_CLONES static void add_row_f32(int64_t n, const float *restrict from, float *restrict to) {
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}

TSHI_CLONES static void add_row_f64(int64_t n, const double *restrict from, double *restrict to) {
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}

void tshi_cpu_embedding_backward(tsh_device *device, tsh_dtype dtype, int64_t n, const int64_t *ids, int64_t start,
                                 int64_t rows, int64_t cols, int64_t padding, const void *dy, void *dtable) {
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] == padding || ids[i] < start || ids[i] - start >= rows) continue;
        int64_t row = ids[i] - start;
        if (dtype == TSH_FLOAT64)
            add_row_f64(cols, (const double *)dy + i * cols, (double *)dtable + row * cols);
        else
            add_row_f32(cols, (const float *)dy + i * cols, (float *)dtable + row * cols);
    }
}
