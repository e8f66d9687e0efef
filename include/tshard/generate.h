/* generate: what text generation needs beside a model: the cache of keys and values, and sampling.
 *
 * Thread safety: everything here is for the world's thread. */
#ifndef TSHARD_GENERATE_H
#define TSHARD_GENERATE_H

#include "tshard/functional.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- the cache of keys and values --------------------------------------------------------------------------------- */

/* Keys and values of one attention layer for the positions so far of a batch of sequences, in memory for `positions` of
 * them from the start. They are laid out as k and v are, [batch, positions, kv_heads, head_dim]: each rank holds those
 * of its own heads and sequences. */
typedef struct tsh_kv_cache tsh_kv_cache;

/* The shape, dtype and layouts of a cache. */
typedef struct tsh_kv_cache_config {
    int64_t batch, positions, kv_heads, head_dim; /* the four dims of keys and of values */
    tsh_dtype dtype;
    tsh_layout layout[TSH_MAX_AXES]; /* REPLICATED, SHARD(0) by sequences or SHARD(2) by heads along each axis */
} tsh_kv_cache_config;

/* An empty cache on this mesh. The caller destroys it. Not collective, but every rank of the mesh makes the same call.
 * TSH_ERR_ARGUMENT, _DTYPE, _LAYOUT, _OVERFLOW, _MEMORY; *out is then NULL. */
TSH_API tsh_status tsh_kv_cache_create(const tsh_mesh *mesh, const tsh_kv_cache_config *config, tsh_kv_cache **out);
TSH_API void tsh_kv_cache_destroy(tsh_kv_cache *cache);

/* Append k and v [batch, tokens, kv_heads, head_dim] in place, without an allocation; they are redistributed to the
 * cache's layouts where they have others. Sequences of different lengths grow by one token at a time (TSH_ERR_STATE).
 * For evaluation: TSH_ERR_STATE where k or v leads to a gradient. TSH_ERR_RANGE, with what the cache has and what is
 * asked, where it is full. A failure is one of the tape, and does not change the cache. Returns the tape's status. */
TSH_API tsh_status tsh_kv_cache_append(tsh_tape *tape, tsh_kv_cache *cache, tsh_tensor *k, tsh_tensor *v);
/* All of the cache, [batch, positions, kv_heads, head_dim], of which attention reads the first tsh_kv_cache_length
 * positions (tsh_attention_config.keys). Owned by the cache, in its memory. */
TSH_API tsh_tensor *tsh_kv_cache_keys(const tsh_kv_cache *cache);
TSH_API tsh_tensor *tsh_kv_cache_values(const tsh_kv_cache *cache);
/* Positions of the longest sequence; of sequence b (0 outside the batch); and of all sequences as attention takes them,
 * int64 [batch], or NULL where all are equal. */
TSH_API int64_t tsh_kv_cache_length(const tsh_kv_cache *cache);
TSH_API int64_t tsh_kv_cache_length_of(const tsh_kv_cache *cache, int64_t b);
TSH_API tsh_tensor *tsh_kv_cache_lengths(const tsh_kv_cache *cache);
/* Forget the positions of this sequence (-1: of all) from `length` on; 0 empties it. After prompts of different
 * lengths, each filled up behind its end to the longest, this leaves each sequence as it is. */
TSH_API tsh_status tsh_kv_cache_truncate(tsh_kv_cache *cache, int64_t sequence, int64_t length);

/* Appends k and v, then tsh_attention of q over all positions so far, which it reads where they lie. The keys and
 * lengths of the configuration are the cache's. cache NULL: tsh_attention. */
TSH_API tsh_tensor *tsh_attention_cached(tsh_tape *tape, tsh_kv_cache *cache, tsh_tensor *q, tsh_tensor *k,
                                         tsh_tensor *v, const tsh_attention_config *config);

/* --- sampling ----------------------------------------------------------------------------------------------------- */

/* How tsh_sample draws; zeros are greedy. */
typedef struct tsh_sample_config {
    double temperature;    /* 0: greedy, the class with the largest logit */
    int64_t top_k;         /* only the classes with the k largest logits; 0: all */
    double top_p;          /* only the most likely classes that together have the probability top_p; 0: all */
    uint64_t seed, stream; /* of the random numbers */
    int64_t position;      /* of the token in its sequence: another draw for each, below 2^40 */
} tsh_sample_config;

/* A class for each row of logits [sequences, classes]: ids int64 [sequences], owned by the tape. One is drawn with the
 * probabilities softmax(logits / temperature), of which top_k, then top_p leave the largest; a class stays as long as
 * those before it have less than top_p. Of equal logits those with the lower index come first. Weights are kept to
 * 2^-40 of the largest, or finer, and summed exactly: equal logits give equal ids at any number of ranks, in any batch.
 *   R -> R    S(0) -> S(0)    S(1), by vocabulary -> R    P -> R by an all-reduce
 * By vocabulary: one all-gather of a candidate from each rank, or of top_k; without top_k two more collectives of a
 * few numbers for each sequence, with top_p seven of 256. Waits. TSH_ERR_RANGE where the largest logit of a
 * row is not finite, as with a NaN. config NULL: greedy. Sources: Fan et al., "Hierarchical neural story generation",
 * 2018 (top-k); Holtzman et al., "The curious case of neural text degeneration", 2020 (top-p). */
TSH_API tsh_tensor *tsh_sample(tsh_tape *tape, tsh_tensor *logits, const tsh_sample_config *config);

#ifdef __cplusplus
}
#endif

#endif
