/* The KV cache: two tensors that are filled in place, and the length of each sequence. */
#include "layers/layers.h"
#include "tshard/generate.h"

#include <string.h>

struct tsh_kv_cache {
    tsh_world *world;
    tsh_tensor *k, *v;   /* [batch, positions, kv_heads, head_dim] */
    tsh_tensor *lengths; /* int64 [batch], split as the sequences; written when lengths differ */
    int64_t *length;     /* [batch], of all sequences */
};

/* --- lifetime ----------------------------------------------------------------------------------------------------- */

static tsh_status check_cache_config(const tsh_mesh *mesh, const tsh_kv_cache_config *config) {
    if (!mesh || !config)
        return tshi_fail(TSH_ERR_ARGUMENT, "kv_cache_create: a mesh and a configuration are required");
    if (config->batch < 1 || config->positions < 1 || config->kv_heads < 1 || config->head_dim < 1) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "kv_cache_create: batch=%lld, positions=%lld, kv_heads=%lld, head_dim=%lld: all must be at "
                         "least 1",
                         (long long)config->batch, (long long)config->positions, (long long)config->kv_heads,
                         (long long)config->head_dim);
    }
    for (int a = 0; a < mesh->axes; a++) {
        tsh_layout l = config->layout[a];
        if (l.kind == TSH_KIND_REPLICATED || (l.kind == TSH_KIND_SHARD && (l.dim == 0 || l.dim == 2))) continue;
        return tshi_fail(
            TSH_ERR_LAYOUT,
            "kv_cache_create: %s along axis %s; must be REPLICATED, SHARD(0) (sequences) or SHARD(2) (heads)",
            TSHI_LAYOUT_TEXT(l, &mesh->axis[a]), mesh->axis[a].name);
    }
    return tshi_check_computes(mesh->device, config->dtype, "kv_cache_create: the cache");
}

static tsh_status make_tensors(tsh_kv_cache *cache, const tsh_mesh *mesh, const tsh_kv_cache_config *config) {
    tsh_tensor_config c = {
        .dtype = config->dtype,
        .ndim = 4,
        .shape = {config->batch, config->positions, config->kv_heads, config->head_dim},
    };
    tsh_tensor_config lengths = {.dtype = TSH_INT64, .ndim = 1, .shape = {config->batch}};
    memcpy(c.layout, config->layout, sizeof c.layout);
    for (int a = 0; a < mesh->axes; a++) {
        if (config->layout[a].kind == TSH_KIND_SHARD && config->layout[a].dim == 0) lengths.layout[a] = c.layout[a];
    }
    tsh_status status = tshi_tensor_create(mesh, &c, &cache->k);
    if (status == TSH_OK) status = tshi_tensor_create(mesh, &c, &cache->v);
    if (status == TSH_OK) status = tshi_tensor_create(mesh, &lengths, &cache->lengths);
    return status;
}

tsh_status tsh_kv_cache_create(const tsh_mesh *mesh, const tsh_kv_cache_config *config, tsh_kv_cache **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "kv_cache_create: out is NULL");
    *out = NULL;
    tsh_status status = check_cache_config(mesh, config);
    if (status != TSH_OK) return status;
    const tsh_allocator *allocator = &mesh->world->allocator;
    tsh_kv_cache *cache = tshi_calloc(allocator, 1, sizeof *cache);
    if (!cache) return TSH_ERR_MEMORY;
    cache->world = mesh->world;
    status = make_tensors(cache, mesh, config);
    cache->length = status == TSH_OK ? tshi_calloc(allocator, (size_t)config->batch, sizeof(int64_t)) : NULL;
    if (cache->length) {
        *out = cache;
        return TSH_OK;
    }
    tsh_kv_cache_destroy(cache);
    return status == TSH_OK ? TSH_ERR_MEMORY : status;
}

void tsh_kv_cache_destroy(tsh_kv_cache *cache) {
    if (!cache) return;
    tshi_tensor_release(cache->k);
    tshi_tensor_release(cache->v);
    tshi_tensor_release(cache->lengths);
    tshi_free(&cache->world->allocator, cache->length);
    tshi_free(&cache->world->allocator, cache);
}

/* --- lengths ------------------------------------------------------------------------------------------------------ */

static int64_t batch_of(const tsh_kv_cache *cache) {
    return cache->k->shape.global[0];
}

static bool equal_lengths(const tsh_kv_cache *cache) {
    for (int64_t b = 1; b < batch_of(cache); b++) {
        if (cache->length[b] != cache->length[0]) return false;
    }
    return true;
}

int64_t tsh_kv_cache_length(const tsh_kv_cache *cache) {
    int64_t longest = 0;
    for (int64_t b = 0; cache && b < batch_of(cache); b++) {
        if (cache->length[b] > longest) longest = cache->length[b];
    }
    return longest;
}

int64_t tsh_kv_cache_length_of(const tsh_kv_cache *cache, int64_t b) {
    return cache && b >= 0 && b < batch_of(cache) ? cache->length[b] : 0;
}

tsh_tensor *tsh_kv_cache_lengths(const tsh_kv_cache *cache) {
    return cache && !equal_lengths(cache) ? cache->lengths : NULL;
}

tsh_tensor *tsh_kv_cache_keys(const tsh_kv_cache *cache) {
    return cache ? cache->k : NULL;
}

tsh_tensor *tsh_kv_cache_values(const tsh_kv_cache *cache) {
    return cache ? cache->v : NULL;
}

static tsh_status write_lengths(const tsh_kv_cache *cache) {
    int64_t first = tshi_shape_start(cache->k->mesh, &cache->k->shape, cache->k->layout, 0);
    if (equal_lengths(cache)) return TSH_OK;
    return tsh_tensor_write(cache->lengths, cache->length + first, tsh_tensor_local_numel(cache->lengths));
}

tsh_status tsh_kv_cache_truncate(tsh_kv_cache *cache, int64_t sequence, int64_t length) {
    if (!cache) return tshi_fail(TSH_ERR_ARGUMENT, "kv_cache_truncate: a cache is required");
    if (length < 0 || sequence < -1 || sequence >= batch_of(cache)) {
        return tshi_fail(
            TSH_ERR_RANGE,
            "kv_cache_truncate: length %lld of sequence %lld is out of range; the cache has %lld sequences",
            (long long)length, (long long)sequence, (long long)batch_of(cache));
    }
    for (int64_t b = 0; b < batch_of(cache); b++) {
        if ((sequence < 0 || b == sequence) && cache->length[b] > length) cache->length[b] = length;
    }
    return write_lengths(cache);
}

/* --- append ------------------------------------------------------------------------------------------------------- */

static tsh_status check_cached(const tsh_kv_cache *cache, const tsh_tensor *t) {
    const tsh_tensor *own = cache->k;
    bool fits = t->mesh == own->mesh && t->dtype == own->dtype && t->shape.ndim == 4;
    for (int d = 0; fits && d < 4; d++) fits = d == 1 || t->shape.global[d] == own->shape.global[d];
    if (!fits) {
        return tshi_fail(TSH_ERR_SHAPE,
                         "%s does not fit the cache, %s: mesh, dtype, batch, kv_heads and head_dim must be equal",
                         TSHI_TENSOR_TEXT(t), TSHI_TENSOR_TEXT(own));
    }
    return TSH_OK;
}

static tsh_status check_room(const tsh_kv_cache *cache, int64_t tokens) {
    int64_t room = cache->k->shape.global[1], length = tsh_kv_cache_length(cache);
    if (tokens > room - length) {
        return tshi_fail(TSH_ERR_RANGE,
                         "the cache is full: %lld of %lld positions are in use, %lld more do not fit "
                         "(tsh_kv_cache_truncate frees some)",
                         (long long)length, (long long)room, (long long)tokens);
    }
    if (tokens <= 1 || equal_lengths(cache)) return TSH_OK;
    return tshi_fail(TSH_ERR_STATE, "%lld tokens at once; sequences of different lengths grow by one token at a time",
                     (long long)tokens);
}

static tsh_status check_append(const tsh_tape *tape, const tsh_kv_cache *cache, const tsh_tensor *k,
                               const tsh_tensor *v) {
    tsh_status status = check_cached(cache, k);
    if (status == TSH_OK) status = check_cached(cache, v);
    if (status != TSH_OK) return status;
    if (k->shape.global[1] != v->shape.global[1]) return tshi_check_fails(k, v, "k and v must have the same shape");
    if (tape->recording && (tshi_requires_grad(k) || tshi_requires_grad(v))) {
        return tshi_fail(
            TSH_ERR_STATE,
            "k or v leads to a gradient, and a cache has none: turn recording off (tsh_tape_set_recording)");
    }
    return check_room(cache, k->shape.global[1]);
}

/* Appends this rank's part of the tokens to each sequence: with one kernel when all lengths are equal. */
static void append_rows(const tsh_kv_cache *cache, const tsh_tensor *from, const tsh_tensor *to) {
    tsh_device *device = tshi_device_of(to);
    int64_t first = tshi_shape_start(to->mesh, &to->shape, to->layout, 0), batch = to->shape.local[0];
    size_t row = (size_t)tshi_inner(to, 1) * tsh_dtype_size(to->dtype);
    size_t from_step = (size_t)from->shape.local[1] * row, to_step = (size_t)to->shape.local[1] * row;
    int64_t together = equal_lengths(cache) ? batch : 1;
    for (int64_t b = 0; b < batch && from_step > 0; b += together) {
        char *at = (char *)tshi_data_to_write(to) + (size_t)b * to_step + (size_t)cache->length[first + b] * row;
        device->ops->copy.strided(device, together, from_step, (const char *)tshi_data(from) + (size_t)b * from_step,
                                  from_step, at, to_step);
    }
}

tsh_status tsh_kv_cache_append(tsh_tape *tape, tsh_kv_cache *cache, tsh_tensor *k, tsh_tensor *v) {
    static const char what[] = "kv_cache_append";
    if (!tape) return tshi_tape_missing(what);
    if (!tshi_tape_ready(tape, what, 2, (tsh_tensor *[]){k, v})) return tape->status;
    tsh_status status = cache ? check_append(tape, cache, k, v) : tshi_fail(TSH_ERR_ARGUMENT, "a cache is required");
    if (status != TSH_OK) return tshi_tape_check(tape, status, what);
    int64_t tokens = k->shape.global[1];
    k = tshi_to_layouts(tape, what, k, cache->k->layout);
    v = k ? tshi_to_layouts(tape, what, v, cache->v->layout) : NULL;
    if (!v) return tape->status;
    append_rows(cache, k, cache->k);
    append_rows(cache, v, cache->v);
    for (int64_t b = 0; b < batch_of(cache); b++) cache->length[b] += tokens;
    return tshi_tape_check(tape, write_lengths(cache), what);
}

tsh_tensor *tsh_attention_cached(tsh_tape *tape, tsh_kv_cache *cache, tsh_tensor *q, tsh_tensor *k, tsh_tensor *v,
                                 const tsh_attention_config *config) {
    tsh_attention_config c = config ? *config : (tsh_attention_config){.causal = false};
    if (!cache) return tsh_attention(tape, q, k, v, config);
    if (!tshi_tape_ready(tape, "attention_cached", 3, (tsh_tensor *[]){q, k, v})) return NULL;
    if (tsh_kv_cache_append(tape, cache, k, v) != TSH_OK) return NULL;
    c.keys = tsh_kv_cache_length(cache);
    c.lengths = tsh_kv_cache_lengths(cache);
    return tsh_attention(tape, q, cache->k, cache->v, &c);
}
