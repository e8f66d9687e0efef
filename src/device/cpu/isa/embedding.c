/* Embedding: rows of a table by id, and their gradients. */
#include "device/cpu/isa/pieces.h"

#include <string.h>

#define MAX_INDICES 16384 /* indices whose rows are summed before one rounding */

/* Radix-sorts the indices below n whose ids lie in the slice and are not padding by id; indices of equal ids stay in
 * order. Returns their number. `other` is scratch as large as `place`. */
static int64_t sort_places(int64_t n, const int64_t *ids, int64_t start, int64_t rows, int64_t padding, uint16_t *place,
                           uint16_t *other) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] != padding && ids[i] >= start && ids[i] - start < rows) place[count++] = (uint16_t)i;
    }
    for (int shift = 0; shift < 63 && (rows - 1) >> shift > 0; shift += 8) {
        int64_t first[257] = {0};
        for (int64_t i = 0; i < count; i++) first[((ids[place[i]] - start) >> shift & 255) + 1]++;
        for (int d = 0; d < 256; d++) first[d + 1] += first[d];
        for (int64_t i = 0; i < count; i++) other[first[(ids[place[i]] - start) >> shift & 255]++] = place[i];
        memcpy(place, other, (size_t)count * sizeof *place);
    }
    return count;
}

#define KERNELS "device/cpu/isa/embedding_loops.inc"
#include "device/cpu/isa/each_real.inc"

#define KERNELS "device/cpu/isa/embedding.inc"
#include "device/cpu/isa/each_dtype.inc"

const tshi_isa_embedding TSHI_ISA(tshi_cpu_embedding)[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {forward_f32, backward_f32, bound_f32},
    [TSH_FLOAT64] = {forward_f64, backward_f64, bound_f64},
    [TSH_BFLOAT16] = {forward_bf16, backward_bf16, bound_bf16},
    [TSH_FLOAT16] = {forward_f16, backward_f16, bound_f16},
};
