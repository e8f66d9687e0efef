/* The assignment of gradients to buckets of data parallelism; metadata only. */
#include "train/bucket.h"

#include <string.h>

/* Bytes: each gradient starts at a multiple of this, for vector loads. */
#define ALIGNMENT            64

#define BUCKET_BYTES         ((size_t)25 << 20)
#define FIRST_BUCKET_BYTES   ((size_t)1 << 20)
#define SHARDED_BUCKET_BYTES ((size_t)64 << 10) /* the least: the latency of smaller sums exceeds their transfer */
#define SHARDED_BUCKETS      8

static int64_t padded(const tsh_tensor *parameter) {
    int64_t multiple = ALIGNMENT / (int64_t)tsh_dtype_size(tshi_gradient_dtype(parameter));
    return (parameter->numel + multiple - 1) / multiple * multiple;
}

/* The length of the layer's name in a parameter's name. */
static size_t layer_length(const char *name) {
    size_t end = strlen(name);
    const char *last = strrchr(name, '.');
    for (const char *at = name; *at;) {
        size_t length = strcspn(at, ".");
        if (length > 0 && strspn(at, "0123456789") == length) return (size_t)(at - name) + length;
        at += length + (at[length] == '.');
    }
    return last ? (size_t)(last - name) : end;
}

static bool same_layer(const char *a, const char *b) {
    size_t length = layer_length(a);
    return length == layer_length(b) && !strncmp(a, b, length);
}

/* True when the slot's gradient, and in a sharded bucket its values, can be sent with the bucket's. */
static bool fits_in(const tshi_bucket *bucket, const tshi_bucket_slot *slot, const tshi_bucket_kind *kind) {
    const tsh_tensor *first = bucket->first->parameter, *p = slot->parameter;
    bool fits = bucket->dtype == tshi_gradient_dtype(p) && bucket->kind == kind && bucket->scope == slot->scope;
    if (!fits || kind == &tshi_dense_bucket) return fits;
    return first->dtype == p->dtype && tshi_gradient_computed_in(first) == tshi_gradient_computed_in(p);
}

/* The last bucket that the slot fits in, if there is room; its layer's bucket if values are freed after each use; else
 * a new one. The very first bucket is the small one. */
static int bucket_for(tsh_data_parallel *dp, const tshi_bucket_slot *slot) {
    const tshi_bucket_kind *kind = tshi_bucket_slot_shards(dp, slot) ? &tshi_sharded_bucket : &tshi_dense_bucket;
    bool by_layer = kind == &tshi_sharded_bucket && dp->level == TSH_ZERO_PARAMETERS;
    tsh_dtype dtype = tshi_gradient_dtype(slot->parameter);
    size_t bytes = (size_t)padded(slot->parameter) * tsh_dtype_size(dtype);
    for (int b = dp->bucket_count - 1; b >= 0; b--) {
        const tshi_bucket *bucket = &dp->buckets[b];
        if (!fits_in(bucket, slot, kind)) continue;
        if (by_layer && same_layer(bucket->first->name, slot->name)) return b;
        if (by_layer) continue;
        size_t limit = b == 0 ? dp->first_bucket_bytes : dp->bucket_bytes;
        size_t used = (size_t)bucket->gradients * tsh_dtype_size(bucket->dtype);
        if (used <= limit && bytes <= limit - used) return b;
        break;
    }
    tshi_bucket *bucket = &dp->buckets[dp->bucket_count];
    bucket->dtype = dtype;
    bucket->kind = kind;
    bucket->scope = slot->scope;
    return dp->bucket_count++;
}

static void add_slot(tsh_data_parallel *dp, tshi_bucket_slot *slot) {
    slot->bucket = bucket_for(dp, slot);
    tshi_bucket *bucket = &dp->buckets[slot->bucket];
    slot->start = bucket->gradients;
    bucket->gradients += padded(slot->parameter);
    bucket->count++;
    if (bucket->last) bucket->last->next = slot;
    if (!bucket->first) bucket->first = slot;
    bucket->last = slot;
}

/* Sets sizes that are 0. A sharded bucket takes its memory twice while it is summed, and values are gathered bucket by
 * bucket: too large a bucket would use up what sharding saves. */
static void choose_sizes(tsh_data_parallel *dp) {
    size_t all = 0, most = BUCKET_BYTES;
    for (int i = 0; i < dp->count; i++) {
        const tsh_tensor *p = dp->slots[i].parameter;
        all += (size_t)padded(p) * tsh_dtype_size(tshi_gradient_dtype(p));
    }
    if (dp->level && all / SHARDED_BUCKETS < most) most = all / SHARDED_BUCKETS;
    if (most < SHARDED_BUCKET_BYTES) most = SHARDED_BUCKET_BYTES;
    if (!dp->bucket_bytes) dp->bucket_bytes = most;
    if (dp->first_bucket_bytes) return;
    dp->first_bucket_bytes = dp->bucket_bytes < FIRST_BUCKET_BYTES ? dp->bucket_bytes : FIRST_BUCKET_BYTES;
}

void tshi_buckets_assign(tsh_data_parallel *dp) {
    choose_sizes(dp);
    for (tshi_reduce_scope scope = 0; scope < TSHI_REDUCE_SCOPES; scope++) {
        for (int i = 0; i < dp->count; i++) {
            if (dp->slots[i].scope == scope) add_slot(dp, &dp->slots[i]);
        }
    }
}
