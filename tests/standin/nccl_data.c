/* NCCL on the host: what collectives make of the ranks' data. */
#include "standin/nccl_state.h"

#include <stdlib.h>
#include <string.h>

/* --- numbers ------------------------------------------------------------------------------------------------------ */

size_t standin_nccl_size(ncclDataType_t type) {
    switch (type) {
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt64:
    case ncclFloat64: return 8;
    default: return 4;
    }
}

static double half_value(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = exponent == 0 ? fraction / 1024.0 : 1 + fraction / 1024.0;
    for (int i = exponent == 0 ? 1 : exponent; i < 15; i++) value /= 2;
    for (int i = 15; i < exponent; i++) value *= 2;
    return bits & 0x8000 ? -value : value;
}

/* To nearest even. Positive halves are in the order of their bits. */
static uint16_t half_bits(double value) {
    uint16_t sign = value < 0 ? 0x8000 : 0;
    uint32_t low = 0, high = 0x7c00;
    if (value < 0) value = -value;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (half_value((uint16_t)middle) <= value)
            low = middle;
        else
            high = middle;
    }
    double below = value - half_value((uint16_t)low), above = half_value((uint16_t)high) - value;
    bool up = above < below || (above == below && low % 2 == 1);
    return (uint16_t)(sign | (up ? high : low));
}

static uint16_t bfloat_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double load(ncclDataType_t type, const void *from, size_t i) {
    const char *at = (const char *)from + i * standin_nccl_size(type);
    union {
        uint8_t u8;
        int32_t i32;
        int64_t i64;
        float f32;
        double f64;
        uint16_t u16;
        uint32_t u32;
    } v = {0};
    memcpy(&v, at, standin_nccl_size(type));
    switch (type) {
    case ncclUint8: return v.u8;
    case ncclInt32: return v.i32;
    case ncclInt64: return (double)v.i64;
    case ncclFloat32: return v.f32;
    case ncclFloat64: return v.f64;
    case ncclFloat16: return half_value(v.u16);
    default: v.u32 = (uint32_t)v.u16 << 16; return v.f32;
    }
}

static void store(ncclDataType_t type, void *to, size_t i, double value) {
    char *at = (char *)to + i * standin_nccl_size(type);
    union {
        uint8_t u8;
        int32_t i32;
        int64_t i64;
        float f32;
        double f64;
        uint16_t u16;
        uint32_t u32;
    } v = {0};
    switch (type) {
    case ncclUint8: v.u8 = (uint8_t)(int64_t)value; break;
    case ncclInt32: v.i32 = (int32_t)value; break;
    case ncclInt64: v.i64 = (int64_t)value; break;
    case ncclFloat32: v.f32 = (float)value; break;
    case ncclFloat64: v.f64 = value; break;
    case ncclFloat16: v.u16 = half_bits((double)(float)value); break;
    default: v.u16 = bfloat_bits((float)value); break;
    }
    memcpy(at, &v, standin_nccl_size(type));
}

static double combine(ncclRedOp_t op, double a, double b) {
    switch (op) {
    case ncclProd: return a * b;
    case ncclMin: return b < a ? b : a;
    case ncclMax: return b > a ? b : a;
    default: return a + b;
    }
}

/* Copies elements [start, start + n) into new memory. */
static void *reduced(part *const *all, int ranks, size_t start, size_t n) {
    const part *p = all[0];
    void *out = malloc(n * standin_nccl_size(p->type) + 1);
    for (size_t i = 0; i < n; i++) {
        double sum = load(p->type, all[0]->in, start + i);
        for (int r = 1; r < ranks; r++) sum = combine(p->op, sum, load(p->type, all[r]->in, start + i));
        store(p->type, out, i, p->op == ncclAvg ? sum / ranks : sum);
    }
    return out;
}

/* --- data, under both locks --------------------------------------------------------------------------------------- */

void standin_nccl_move(part *const *all, int ranks) {
    const part *p = all[0];
    size_t size = standin_nccl_size(p->type), bytes = p->count * size;
    bool scatters = p->kind == REDUCE_SCATTER;
    char *whole = NULL;
    if (p->kind == ALL_REDUCE || p->kind == REDUCE || scatters) {
        whole = reduced(all, ranks, 0, scatters ? p->count * (size_t)ranks : p->count);
    } else if (p->kind == BROADCAST) {
        whole = malloc(bytes + 1);
        memcpy(whole, all[p->root]->in, bytes);
    } else {
        whole = malloc(bytes * (size_t)ranks + 1);
        for (int r = 0; r < ranks; r++) memcpy(whole + (size_t)r * bytes, all[r]->in, bytes);
    }
    for (int r = 0; r < ranks; r++) {
        if (p->kind == REDUCE && r != p->root) continue;
        memcpy(all[r]->out, whole + (scatters ? (size_t)r * bytes : 0),
               p->kind == ALL_GATHER ? bytes * (size_t)ranks : bytes);
    }
    free(whole);
}
