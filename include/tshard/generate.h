/* generate: KV caches and sampling, for text generation.
 *
 * Thread safety: everything here is for the world's thread. */
#ifndef TSHARD_GENERATE_H
#define TSHARD_GENERATE_H

#include "tshard/functional.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- the cache of keys and values --------------------------------------------------------------------------------- */

/* The keys and values of one attention layer for a batch of sequences, [batch, positions, kv_heads, head_dim], in
 * memory that is allocated once. Each rank holds those of its heads and sequences. */
typedef struct tsh_kv_cache tsh_kv_cache;

/* The shape, dtype and layouts of a cache. */
typedef struct tsh_kv_cache_config {
    int64_t batch, positions, kv_heads, head_dim; /* the dims of keys and values */
    tsh_dtype dtype;
    tsh_layout layout[TSH_MAX_AXES]; /* along each axis REPLICATED, SHARD(0) (sequences) or SHARD(2) (heads) */
} tsh_kv_cache_config;

/* An empty cache on the mesh. The caller destroys it. Not collective, but every rank of the mesh makes the same call.
 * TSH_ERR_ARGUMENT, _DTYPE, _LAYOUT, _OVERFLOW, _MEMORY; *out is then NULL. */
TSH_API tsh_status tsh_kv_cache_create(const tsh_mesh *mesh, const tsh_kv_cache_config *config, tsh_kv_cache **out);
TSH_API void tsh_kv_cache_destroy(tsh_kv_cache *cache);

/* Append k and v [batch, tokens, kv_heads, head_dim] in place, without allocation, after a redistribution to the
 * cache's layouts. Sequences of different lengths grow by one token at a time, else TSH_ERR_STATE. For evaluation:
 * TSH_ERR_STATE when k or v leads to a gradient. TSH_ERR_RANGE when the cache is full. A failure is recorded in the
 * tape, and the cache does not change. Returns the tape's status. */
TSH_API tsh_status tsh_kv_cache_append(tsh_tape *tape, tsh_kv_cache *cache, tsh_tensor *k, tsh_tensor *v);
/* The whole cache, [batch, positions, kv_heads, head_dim]; attention reads the first tsh_kv_cache_length positions
 * (tsh_attention_config.keys). Owned by the cache, in its memory. */
TSH_API tsh_tensor *tsh_kv_cache_keys(const tsh_kv_cache *cache);
TSH_API tsh_tensor *tsh_kv_cache_values(const tsh_kv_cache *cache);
/* The length of the longest sequence, of sequence b (0 outside the batch), and of all sequences as attention takes
 * them: int64 [batch], or NULL when all are equal. */
TSH_API int64_t tsh_kv_cache_length(const tsh_kv_cache *cache);
TSH_API int64_t tsh_kv_cache_length_of(const tsh_kv_cache *cache, int64_t b);
TSH_API tsh_tensor *tsh_kv_cache_lengths(const tsh_kv_cache *cache);
/* Drop the positions of this sequence (-1: of all) from `length` on. After a batch of prompts that were padded at the
 * end, it drops the padding. */
TSH_API tsh_status tsh_kv_cache_truncate(tsh_kv_cache *cache, int64_t sequence, int64_t length);

/* Appends k and v, then runs tsh_attention of q over the cache in place. The cache sets the configuration's keys and
 * lengths. cache NULL: tsh_attention. */
TSH_API tsh_tensor *tsh_attention_cached(tsh_tape *tape, tsh_kv_cache *cache, tsh_tensor *q, tsh_tensor *k,
                                         tsh_tensor *v, const tsh_attention_config *config);

/* --- sampling ----------------------------------------------------------------------------------------------------- */

/* Options of tsh_sample; zeros are greedy. */
typedef struct tsh_sample_config {
    double temperature;    /* 0: greedy, the class with the largest logit */
    int64_t top_k;         /* only the classes with the k largest logits; 0: all */
    double top_p;          /* only the most likely classes whose probabilities sum to top_p; 0: all */
    uint64_t seed, stream; /* of the random numbers */
    int64_t position;      /* of the token in its sequence, below 2^40; each has its own draw */
} tsh_sample_config;

/* Draws a class for each row of logits [sequences, classes]: ids int64 [sequences], owned by the tape. The
 * probabilities are softmax(logits / temperature), limited to the largest by top_k, then by top_p: a class stays while
 * the classes before it sum to less than top_p. Among equal logits the lower index comes first. Weights have a
 * precision of 2^-40 of the largest, or finer, and are summed exactly: equal logits give equal ids at any number of
 * ranks, in any batch.
 *   R -> R    S(0) -> S(0)    S(1) (by vocabulary) -> R    P -> R by an all-reduce
 * By vocabulary: one all-gather of a candidate, or of top_k, from each rank; without top_k two more small collectives
 * for each sequence, with top_p seven of 256 numbers. Waits. TSH_ERR_RANGE when a row has a NaN or its largest logit is
 * not finite. config NULL: greedy. Sources: Fan et al., "Hierarchical neural story generation", 2018 (top-k); Holtzman
 * et al., "The curious case of neural text degeneration", 2020 (top-p). */
TSH_API tsh_tensor *tsh_sample(tsh_tape *tape, tsh_tensor *logits, const tsh_sample_config *config);

#ifdef __cplusplus
}
#endif

#endif
