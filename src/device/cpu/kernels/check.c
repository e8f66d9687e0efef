/* Indices: range checks of class targets and ids, and rows of ids. */
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

void tshi_cpu_row_numbers(tsh_device *device, bool each, int64_t outer, int64_t kept, int64_t inner, int64_t n,
                          int64_t start, const int64_t *ids, int64_t *rows) {
    for (int64_t at = 0; at < outer * kept * inner; at++) {
        int64_t o = at / (kept * inner), i = ids[each ? at : at / inner % kept] - start;
        rows[at] = i >= 0 && i < n ? (o * n + i) * inner + at % inner : -1;
    }
}
