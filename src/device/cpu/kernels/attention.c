/* Attention with streaming softmax, and rotary positions. */
#include "device/cpu/kernels/kernels.h"
#include "device/cpu/kernels/vector_math.h"

#define PAIRS 64  /* of a rotary tile */
#define WORDS 256 /* made at a time for dropout */

/* The keys that query i of batch b sees are the first of them. */
static int64_t seen(const tshi_attention *a, int64_t b, int64_t i) {
    int64_t n = a->lengths ? a->lengths[b] : a->keys, reach = i + a->keys - a->queries + 1;
    if (a->causal && reach < n) n = reach;
    return n > 0 ? n : 0;
}

/* The index in the whole of the probability of key 0. */
static int64_t row_element(const tshi_attention *a, int64_t b, int64_t h, int64_t i) {
    return (((b + a->batch_start) * a->heads_whole + h + a->head_start) * a->queries + i) * a->keys;
}

static int64_t scratch(const tshi_attention *a, bool backward) {
    return (backward ? 2 : 1) * a->keys;
}

/* Cosines and sines of the angles of pairs [first, first + n) at a position. */
TSHI_CLONES static void turns(const tshi_rotary *r, int64_t position, int64_t first, int n, double *cosine,
                              double *sine) {
    const double step = -2.0 / (double)r->dims, log_theta = log(r->theta), at = (double)position;
    double angle[PAIRS];
    for (int i = 0; i < n; i++) angle[i] = at * exp((double)(first + i) * step * log_theta);
    for (int i = 0; i < n; i++) cosine[i] = cos(angle[i]);
    for (int i = 0; i < n; i++) sine[i] = sin(angle[i]);
}

#include "device/cpu/kernels/float32.inc"

#include "device/cpu/kernels/attention.inc"

#include "device/cpu/kernels/float64.inc"

#include "device/cpu/kernels/attention.inc"

const tshi_attention_ops tshi_cpu_attention[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {.rotary = rotary_f32, .scratch = scratch, .forward = forward_f32, .backward = backward_f32},
    [TSH_FLOAT64] = {.rotary = rotary_f64, .scratch = scratch, .forward = forward_f64, .backward = backward_f64},
};
