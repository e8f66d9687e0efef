/* Known values for checking collectives, with no help from the library that is checked. */
#include "values.h"

#include <string.h>

tsh_dtype values_component(tsh_dtype dtype) {
    return dtype == TSH_COMPLEX64 ? TSH_FLOAT32 : dtype == TSH_COMPLEX128 ? TSH_FLOAT64 : dtype;
}

int values_components(tsh_dtype dtype) {
    return dtype == TSH_COMPLEX64 || dtype == TSH_COMPLEX128 ? 2 : 1;
}

/* 0 to 15, fewer where many ranks would add up to more than 256, the last whole number before bfloat16 has gaps. uint8
 * wraps, and the comparison wraps with it. */
int values_at(int rank, int ranks, int64_t i) {
    int bits = 4;
    while (bits > 1 && ranks << bits > 256) bits--;
    uint32_t mixed = ((uint32_t)i + 1) * 2654435761u + (uint32_t)rank * 1640531527u;
    return (int)(mixed >> (32 - bits));
}

int values_sum(int ranks, int64_t i) {
    int sum = 0;
    for (int rank = 0; rank < ranks; rank++) sum += values_at(rank, ranks, i);
    return sum;
}

/* float16 of a whole number from 0 to 2048. */
static uint16_t half_bits(int value) {
    if (value == 0) return 0;
    int exponent = 0;
    while (value >> (exponent + 1)) exponent++;
    return (uint16_t)((exponent + 15) << 10 | ((value << 10 >> exponent) & 0x3ff));
}

static uint16_t bfloat_bits(int value) {
    float wide = (float)value;
    uint32_t bits;
    memcpy(&bits, &wide, sizeof bits);
    return (uint16_t)(bits >> 16);
}

void values_store(tsh_dtype component, void *data, int64_t i, int value) {
    switch (component) {
    case TSH_FLOAT32: ((float *)data)[i] = (float)value; break;
    case TSH_FLOAT64: ((double *)data)[i] = value; break;
    case TSH_BFLOAT16: ((uint16_t *)data)[i] = bfloat_bits(value); break;
    case TSH_FLOAT16: ((uint16_t *)data)[i] = half_bits(value); break;
    case TSH_INT32: ((int32_t *)data)[i] = value; break;
    case TSH_INT64: ((int64_t *)data)[i] = value; break;
    default: ((uint8_t *)data)[i] = (uint8_t)value; break;
    }
}

bool values_equal(tsh_dtype component, const void *data, int64_t i, int value) {
    unsigned char expected[8] = {0};
    size_t size = tsh_dtype_size(component);
    values_store(component, expected, 0, value);
    return memcmp((const char *)data + (size_t)i * size, expected, size) == 0;
}
