/* Weights quantized in groups, as ggml's files hold them: a group is a scale, or several, and a few bits for each of
 * its weights. Groups lie along the last dim, and are self-contained. Pure functions of memory. */
#ifndef TSHI_QUANT_H
#define TSHI_QUANT_H

#include "base/base.h"

#include <stdbool.h>

typedef enum tshi_quant { TSHI_Q4_0, TSHI_Q8_0, TSHI_Q4_K, TSHI_Q5_K, TSHI_Q6_K, TSHI_QUANTS } tshi_quant;

/* The most weights in a group. */
#define TSHI_QUANT_MAX_WEIGHTS 256

typedef struct tshi_quant_format {
    tshi_quant quant;
    const char *name; /* "Q8_0" */
    int weights;      /* in a group */
    size_t bytes;     /* of a group */
    /* The weights of `groups` groups, which need no alignment. */
    void (*dequantize)(int64_t groups, const void *from, float *to);
    /* The nearest groups, as ggml's reference rounds; NULL: only read. Finite weights. */
    void (*quantize)(int64_t groups, const float *from, void *to);
} tshi_quant_format;

TSHI_TOOLS const tshi_quant_format *tshi_quant_format_of(tshi_quant quant);

#endif
