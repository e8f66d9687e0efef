/* Optimizer steps, in place. Elements of 16 bits are stepped in float32, in chunks that fit the cache. */
#include "device/cpu/isa/elements.h"
#include "device/cpu/isa/kernels.h"

#include <tgmath.h>

#define CHUNK 1024

/* Steps n elements; the arguments are those of the optimizer's kernel. */
typedef void step_fn(const void *settings, int64_t n, const void *grad, void *first, void *second, void *p);

typedef struct adamw_factors {
    double shrink, beta1, beta2, step, inverse_root2, eps;
} adamw_factors;

static adamw_factors factors_of(const tshi_adamw *a) {
    double correction1 = 1.0 - pow(a->beta1, (double)a->step);
    double correction2 = 1.0 - pow(a->beta2, (double)a->step);
    return (adamw_factors){.shrink = 1.0 - a->lr * a->weight_decay,
                           .beta1 = a->beta1,
                           .beta2 = a->beta2,
                           .step = a->lr / correction1,
                           .inverse_root2 = 1.0 / sqrt(correction2),
                           .eps = a->eps};
}

/* --- rounding to 16 bits ------------------------------------------------------------------------------------------ */

/* Stochastic rounding: adding random low bits carries into the bits that stay with a probability equal to the
 * fraction cut off. Infinities and NaN are truncated. */
static void round_by_words(int64_t n, const float *restrict from, const uint32_t *restrict word,
                           tshi_bfloat16 *restrict to) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = tshi_bits_of_float(from[i]);
        uint32_t finite = (bits & 0x7f800000u) != 0x7f800000u;
        uint32_t quiet_nan = (bits & 0x7fffffffu) > 0x7f800000u ? 0x40u : 0u;
        to[i].bits = (uint16_t)((bits + (finite ? word[i] >> 16 : 0u)) >> 16 | quiet_nan);
    }
}

/* Rounds elements [at, at + n) of an update, run by run of consecutive global elements. */
static void round_randomly(const tshi_rounding *r, int64_t at, int64_t n, const float *from, tshi_bfloat16 *to) {
    uint32_t word[CHUNK];
    for (int64_t i = 0; i < n;) {
        int64_t outer = (at + i) / r->run, inner = (at + i) % r->run;
        int64_t some = n - i < r->run - inner ? n - i : r->run - inner;
        TSHI_ISA(tshi_cpu_words)(r->seed, r->stream, r->first + outer * r->stride + inner, some, word + i);
        i += some;
    }
    round_by_words(n, from, word, to);
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

static void update_narrow(tsh_dtype dtype, const void *settings, step_fn *step, const tshi_update *u) {
    float wide_p[CHUNK], wide_g[CHUNK], *first = u->state[0], *second = u->state[1];
    for (int64_t at = 0; at < u->n; at += CHUNK) {
        int64_t n = u->n - at < CHUNK ? u->n - at : CHUNK;
        uint16_t *to = (uint16_t *)u->p + at;
        const float *g = u->wide_grad ? (const float *)u->grad + at : wide_g;
        float *p = u->master ? (float *)u->master + at : wide_p;
        if (!u->wide_grad) TSHI_ISA(tshi_cpu_widen)(dtype, n, (const uint16_t *)u->grad + at, wide_g);
        if (!u->master) TSHI_ISA(tshi_cpu_widen)(dtype, n, to, wide_p);
        step(settings, n, g, first ? first + at : NULL, second ? second + at : NULL, p);
        if (u->rounding)
            round_randomly(u->rounding, at, n, p, (tshi_bfloat16 *)to);
        else
            TSHI_ISA(tshi_cpu_narrow)(dtype, n, p, to);
    }
}

static void update_all(tsh_dtype dtype, const void *settings, step_fn *step, int count, const tshi_update *updates) {
    for (int i = 0; i < count; i++) {
        const tshi_update *u = &updates[i];
        if (tshi_dtype_sum(dtype) == dtype)
            step(settings, u->n, u->grad, u->state[0], u->state[1], u->p);
        else
            update_narrow(dtype, settings, step, u);
    }
}

#include "device/cpu/isa/float32.inc"
#include "device/cpu/isa/optimizer_steps.inc"

#include "device/cpu/isa/float64.inc"
#include "device/cpu/isa/optimizer_steps.inc"

#define KERNELS "device/cpu/isa/optimizer.inc"
#include "device/cpu/isa/each_dtype.inc"

const tshi_optimizer_ops TSHI_ISA(tshi_cpu_optimizer)[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {.sgd = sgd_f32, .adamw = adamw_f32, .lion = lion_f32, .clip = clip_f32},
    [TSH_FLOAT64] = {.sgd = sgd_f64, .adamw = adamw_f64, .lion = lion_f64, .clip = clip_f64},
    [TSH_BFLOAT16] = {.sgd = sgd_bf16, .adamw = adamw_bf16, .lion = lion_bf16, .clip = clip_bf16},
    [TSH_FLOAT16] = {.sgd = sgd_f16, .adamw = adamw_f16, .lion = lion_f16, .clip = clip_f16},
};
