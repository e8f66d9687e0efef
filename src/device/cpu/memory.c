/* Copies and fills. */
#include "device/cpu/kernels.h"

#include <string.h>

void tshi_cpu_copy(tsh_device *device, size_t bytes, const void *from, void *to) {
    if (bytes > 0 && from != to) memcpy(to, from, bytes);
}

void tshi_cpu_copy_strided(tsh_device *device, int64_t outer, size_t bytes, const void *from, size_t from_stride,
                           void *to, size_t to_stride) {
    if (bytes == 0) return;
    const char *source = from;
    char *target = to;
    for (int64_t o = 0; o < outer; o++) {
        memcpy(target + (size_t)o * to_stride, source + (size_t)o * from_stride, bytes);
    }
}

void tshi_cpu_zero(tsh_device *device, size_t bytes, void *to) {
    if (bytes > 0) memset(to, 0, bytes);
}

/* One element, then copies that double: as fast as memcpy for every size of element. */
static void repeat(size_t size, const void *element, int64_t n, void *to) {
    size_t bytes = (size_t)n * size;
    size_t done = size;
    memcpy(to, element, size);
    while (done < bytes) {
        size_t more = done < bytes - done ? done : bytes - done;
        if (more > 65536) more = 65536 / size * size;
        memcpy((char *)to + done, to, more);
        done += more;
    }
}

void tshi_cpu_fill(tsh_device *device, tsh_dtype dtype, int64_t n, double value, void *to) {
    char element[16] = {0};
    if (n <= 0) return;
    tsh_dtype real = dtype;
    if (dtype == TSH_COMPLEX64) real = TSH_FLOAT32;
    if (dtype == TSH_COMPLEX128) real = TSH_FLOAT64;
    tshi_cpu_convert(device, 1, TSH_FLOAT64, &value, real, element);
    repeat(tsh_dtype_size(dtype), element, n, to);
}
