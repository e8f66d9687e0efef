/* What the ways of attention share: attention_call.c. */
#ifndef TSHI_FUNCTIONAL_ATTENTION_H
#define TSHI_FUNCTIONAL_ATTENTION_H

#include "functional/functional.h"

typedef struct tshi_attention_params {
    int64_t causal;               /* or 0 */
    int64_t positions, documents; /* the input with the queries', before the keys'; 0: none */
    int64_t keys;                 /* the number of keys in use of those that k and v have room for; 0: all */
    double scale, dropout;
    uint64_t seed, stream;
} tshi_attention_params;

/* Inputs after q, k and v: none; positions, documents or both, [B, T] or [T]. */
enum { TSHI_ATTENTION_PLAIN, TSHI_ATTENTION_TOKENS, TSHI_ATTENTION_SHARED, TSHI_ATTENTION_KINDS };

tsh_status tshi_attention_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out);
/* The call's queries on this rank, with all keys. */
tshi_attention tshi_attention_of(const tsh_call *call);

/* Attention whose keys and values go round the ranks of the axis that splits the tokens. The mask compares no indices,
 * and there is no dropout. */
extern const tsh_op tshi_ring_attention_ops[TSHI_ATTENTION_KINDS];

#endif
