/* Range checks of indices: class targets and ids. */
#include "device/cpu/kernels/kernels.h"

int64_t tshi_cpu_targets_check(tsh_device *device, const tshi_classes *c, const int64_t *target) {
    for (int64_t r = 0; r < c->rows; r++) {
        if (target[r] != c->ignore_index && (target[r] < 0 || target[r] >= c->classes)) return r;
    }
    return -1;
}

int64_t tshi_cpu_ids_check(tsh_device *device, int64_t n, const int64_t *ids, int64_t vocabulary) {
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= vocabulary) return i;
    }
    return -1;
}
