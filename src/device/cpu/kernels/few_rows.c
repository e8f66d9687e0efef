/* Products of so few rows that reading the weights is all their time, as when a model writes a text token by token:
 * y = x W^T, with each row of W read once, one after another, from the first to the last. A sum depends on its row of x
 * and its row of W alone, not on the rows beside them. */
#include "device/cpu/kernels/half.h"
#include "device/cpu/kernels/kernels.h"

/* Partial sums of two rows' product; how many bytes before its use a weight is asked for; rows of x at once. */
enum { PARTS = 2 * TSHI_LANES, AHEAD = 2048, GROUP = 4 };

TSHI_INLINE float weight(tsh_dtype dtype, const char *row, int64_t i) {
    if (dtype == TSH_FLOAT32) return ((const float *)row)[i];
    if (dtype == TSH_BFLOAT16) return tshi_widen_bf16(((const tshi_bfloat16 *)row)[i]);
    return tshi_widen_f16(((const tshi_float16 *)row)[i]);
}

TSHI_INLINE float total(const float *part) {
    float sum[TSHI_LANES];
    for (int l = 0; l < TSHI_LANES; l++) sum[l] = part[l] + part[l + TSHI_LANES];
    for (int half = TSHI_LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) sum[l] += sum[l + half];
    }
    return sum[0];
}

/* `rows` rows of x from `first` on, by row j of W. */
TSHI_INLINE void multiply_rows(tsh_dtype dtype, int rows, const tshi_few_rows *p, int64_t first, const char *w,
                               int64_t j) {
    const int64_t size = dtype == TSH_FLOAT32 ? 4 : 2;
    const float *x = p->x + first * p->ldx;
    float part[GROUP][PARTS];
    for (int r = 0; r < rows; r++) {
        for (int l = 0; l < PARTS; l++) part[r][l] = 0;
    }
    int64_t i = 0;
    for (; i + PARTS <= p->k; i += PARTS) {
        for (int l = 0; l < PARTS * (int)size; l += 64) __builtin_prefetch(w + i * size + l + AHEAD);
        for (int r = 0; r < rows; r++) {
            for (int l = 0; l < PARTS; l++) part[r][l] += x[r * p->ldx + i + l] * weight(dtype, w, i + l);
        }
    }
    for (int r = 0; r < rows; r++) {
        for (int l = 0; i + l < p->k; l++) part[r][l] += x[r * p->ldx + i + l] * weight(dtype, w, i + l);
        float *to = &p->y[(first + r) * p->ldy + j];
        *to = p->alpha * total(part[r]) + (p->beta != 0 ? p->beta * *to : 0);
    }
}

TSHI_INLINE void multiply(tsh_dtype dtype, const tshi_few_rows *p) {
    const int64_t size = dtype == TSH_FLOAT32 ? 4 : 2;
    for (int64_t j = 0; j < p->n; j++) {
        const char *w = (const char *)p->w + j * p->ldw * size;
        int64_t r = 0;
        for (; r + GROUP <= p->m; r += GROUP) multiply_rows(dtype, GROUP, p, r, w, j);
        for (; r + 2 <= p->m; r += 2) multiply_rows(dtype, 2, p, r, w, j);
        for (; r < p->m; r++) multiply_rows(dtype, 1, p, r, w, j);
    }
}

TSHI_CLONES static void multiply_float32(const tshi_few_rows *p) {
    multiply(TSH_FLOAT32, p);
}

TSHI_CLONES static void multiply_bfloat16(const tshi_few_rows *p) {
    multiply(TSH_BFLOAT16, p);
}

TSHI_CLONES static void multiply_float16(const tshi_few_rows *p) {
    multiply(TSH_FLOAT16, p);
}

void tshi_cpu_few_rows(tsh_dtype dtype, const tshi_few_rows *p) {
    if (dtype == TSH_FLOAT32)
        multiply_float32(p);
    else if (dtype == TSH_BFLOAT16)
        multiply_bfloat16(p);
    else
        multiply_float16(p);
}
