/* Checked sizes. */
#include "base/base.h"

void tshi_size_overflow(size_t a, const char *operation, size_t b) {
    tshi_fail(TSH_ERR_OVERFLOW, "%zu %s %zu does not fit a size", a, operation, b);
}

tsh_status tshi_dims_product(int n, const int64_t *dims, int64_t *out) {
    int64_t product = 1;
    bool empty = false;
    bool overflow = false;
    for (int i = 0; i < n; i++) {
        if (dims[i] < 0) {
            return tshi_fail(TSH_ERR_ARGUMENT, "dim %d is negative: %lld", i, (long long)dims[i]);
        }
        empty = empty || dims[i] == 0;
        overflow = __builtin_mul_overflow(product, dims[i], &product) || overflow;
    }
    /* An empty tensor has no elements, whatever its other dims. */
    if (overflow && !empty) return tshi_fail(TSH_ERR_OVERFLOW, "the product of %d dims passes 2^63 - 1", n);
    *out = empty ? 0 : product;
    return TSH_OK;
}
