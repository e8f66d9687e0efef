/* The cache of keys and values: attention over it is attention over all positions, at 1 to 4 ranks, by heads and by
 * sequences; lengths, truncation, and what is refused. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { BATCH = 3, HEADS = 5, DIM = 2, TOKENS = 6, ROW = HEADS * DIM, MOST = BATCH * TOKENS * ROW };

typedef struct bench {
    tsh_tape *tape;
    tsh_kv_cache *cache;
} bench;

static bench set_up(tshi_rank *r, int64_t positions, tsh_layout layout) {
    bench b = {NULL, NULL};
    tsh_kv_cache_config config = {.batch = BATCH,
                                  .positions = positions,
                                  .kv_heads = HEADS,
                                  .head_dim = DIM,
                                  .dtype = TSH_FLOAT64,
                                  .layout = {layout}};
    tshi_check_ok(r, tsh_tape_create(r->world, &b.tape));
    tshi_check_ok(r, tsh_kv_cache_create(tsh_world_mesh(r->world), &config, &b.cache));
    tsh_tape_set_recording(b.tape, false);
    return b;
}

static void destroy(const bench *b) {
    tsh_kv_cache_destroy(b->cache);
    tsh_tape_destroy(b->tape);
}

static void tear_down(tshi_rank *r, const bench *b) {
    destroy(b);
    size_t left = tsh_device_stats(tsh_world_device(r->world)).bytes_in_use;
    tshi_check(r, left == 0, "%zu bytes are left", left);
}

/* q, k or v (which) of tokens [from, to) in every sequence. */
static tsh_tensor *tokens(tshi_rank *r, int which, int from, int to, tsh_layout layout) {
    tsh_tensor_config config = {
        .dtype = TSH_FLOAT64, .ndim = 4, .shape = {BATCH, to - from, HEADS, DIM}, .layout = {layout}};
    double whole[MOST];
    tsh_tensor *t = NULL;
    for (int b = 0, n = 0; b < BATCH; b++) {
        for (int i = from * ROW; i < to * ROW; i++) whole[n++] = sin(1 + 7 * which + 0.37 * i + 1.9 * b);
    }
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &t));
    tshi_check_ok(r, tsh_tensor_write_whole(t, whole));
    return t;
}

/* Attention of tokens [from, to) over those before and themselves: with the cache, or over all k and v. */
static void attend(tshi_rank *r, const bench *b, bool cached, int from, int to, tsh_layout layout, double *y) {
    tsh_tensor *q = tokens(r, 0, from, to, layout);
    tsh_tensor *k = tokens(r, 1, cached ? from : 0, to, layout), *v = tokens(r, 2, cached ? from : 0, to, layout);
    tsh_attention_config config = {.causal = true};
    tsh_tensor *out = tsh_full(b->tape, tsh_attention_cached(b->tape, cached ? b->cache : NULL, q, k, v, &config));
    if (tshi_check(r, out != NULL, "%s", tsh_tape_message(b->tape)))
        tshi_check_ok(r, tsh_tensor_read(out, y, BATCH * (to - from) * ROW));
    tsh_tensor_release(q);
    tsh_tensor_release(k);
    tsh_tensor_release(v);
    tshi_check_ok(r, tsh_tape_reset(b->tape));
}

static void compare(tshi_rank *r, const double *got, const double *wanted, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++) {
        if (!tshi_check(r, fabs(got[i] - wanted[i]) < 1e-13, "%s: element %d is %.17g, not %.17g", what, (int)i, got[i],
                        wanted[i]))
            return;
    }
}

static void follows(tshi_rank *r, tsh_layout layout, tsh_layout of_tokens) {
    static const int ends[] = {0, 3, 4, 5, 6};
    double got[MOST], wanted[MOST];
    uint64_t allocations = 0;
    bench b = set_up(r, TOKENS + 1, layout);
    for (int round = 0; round < 2; round++) { /* the second after the cache was emptied, without new memory */
        for (int i = 1; i < 5; i++) {
            attend(r, &b, true, ends[i - 1], ends[i], of_tokens, got);
            attend(r, &b, false, ends[i - 1], ends[i], TSH_REPLICATED, wanted);
            compare(r, got, wanted, BATCH * (ends[i] - ends[i - 1]) * ROW, "cached");
            tshi_check(r, tsh_kv_cache_length(b.cache) == ends[i] && !tsh_kv_cache_lengths(b.cache), "the length");
        }
        uint64_t now = tsh_device_stats(tsh_world_device(r->world)).allocations;
        tshi_check(r, round == 0 || now == allocations, "memory was allocated");
        allocations = now;
        tshi_check_ok(r, tsh_kv_cache_truncate(b.cache, -1, 0));
    }
    tear_down(r, &b);
}

static void as_all_positions(tshi_rank *r, void *arg) {
    (void)arg;
    follows(r, TSH_REPLICATED, TSH_REPLICATED);
    follows(r, TSH_SHARD(2), TSH_SHARD(2));
    follows(r, TSH_SHARD(0), TSH_SHARD(0));
    follows(r, TSH_SHARD(2), TSH_REPLICATED);
    follows(r, TSH_SHARD_SHARED(2, HEADS), TSH_SHARD_SHARED(2, HEADS)); /* 7 ranks share heads */
}

Test(kv_cache, as_attention_over_all_positions, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, as_all_positions, NULL));
    cr_assert_str_empty(tshi_test_run(7, as_all_positions, NULL));
}

static void refused(tshi_rank *r, bench *b, tsh_tensor *k, tsh_tensor *v, tsh_status wanted, const char *words) {
    int64_t length = tsh_kv_cache_length(b->cache);
    tsh_status status = tsh_kv_cache_append(b->tape, b->cache, k, v);
    /* A rank may learn of a peer's failure before it comes to its own. */
    tshi_check(r, (status == wanted || status == TSH_ERR_PEER) && strstr(tsh_tape_message(b->tape), words),
               "\"%s\" is not in \"%s\"", words, tsh_tape_message(b->tape));
    tshi_check(r, tsh_kv_cache_length(b->cache) == length, "the cache has changed");
    tsh_tape_reset(b->tape);
}

/* Prompts of 3, 1 and 2 tokens in one batch, then two tokens each: what each sequence would be alone. */
static void different_lengths(tshi_rank *r, void *arg) {
    (void)arg;
    static const int prompt[BATCH] = {3, 1, 2};
    for (int by = 0; by < 2; by++) {
        double got[MOST], wanted[MOST];
        bench b = set_up(r, TOKENS, by ? TSH_SHARD(0) : TSH_SHARD(2));
        tsh_layout layout = by ? TSH_SHARD(0) : TSH_SHARD(2);
        attend(r, &b, true, 0, 3, layout, got);
        for (int s = 0; s < BATCH; s++) tshi_check_ok(r, tsh_kv_cache_truncate(b.cache, s, prompt[s]));
        tshi_check(r, tsh_kv_cache_length_of(b.cache, 1) == 1 && tsh_kv_cache_lengths(b.cache), "lengths");
        attend(r, &b, true, 4, 5, layout, got); /* token 4 stands at position 3, 1 and 2 */
        for (int s = 0; s < BATCH; s++) {       /* over the same keys, in one sequence */
            bench alone = set_up(r, TOKENS, TSH_REPLICATED);
            attend(r, &alone, true, 0, prompt[s], TSH_REPLICATED, wanted);
            attend(r, &alone, true, 4, 5, TSH_REPLICATED, wanted);
            compare(r, got + s * ROW, wanted + s * ROW, ROW, "a shorter sequence");
            destroy(&alone);
        }
        tear_down(r, &b);
    }
}

Test(kv_cache, sequences_of_different_lengths, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, different_lengths, NULL));
}

static void wrong_use(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r, 4, TSH_SHARD(2));
    tsh_tensor *k = tokens(r, 1, 0, 3, TSH_SHARD(2)), *one = tokens(r, 1, 0, 1, TSH_SHARD(2));
    tshi_check_ok(r, tsh_kv_cache_append(b.tape, b.cache, k, k));
    refused(r, &b, k, k, TSH_ERR_RANGE, "full: 3 of 4 positions are in use, 3 more");
    refused(r, &b, k, one, TSH_ERR_SHAPE, "same shape");
    tshi_check_ok(r, tsh_tensor_require_grad(k, true));
    tsh_tape_set_recording(b.tape, true);
    refused(r, &b, k, k, TSH_ERR_STATE, "leads to a gradient");
    tsh_tape_set_recording(b.tape, false);
    tshi_check_ok(r, tsh_kv_cache_truncate(b.cache, -1, 1));
    tshi_check_ok(r, tsh_kv_cache_append(b.tape, b.cache, k, k));
    tshi_check(r, tsh_kv_cache_length(b.cache) == 4, "the length");
    tshi_check_ok(r, tsh_kv_cache_truncate(b.cache, -1, 1));
    tshi_check_ok(r, tsh_kv_cache_truncate(b.cache, 1, 0));
    refused(r, &b, k, k, TSH_ERR_STATE, "3 tokens at once");
    tsh_tensor_release(k);
    tsh_tensor_release(one);
    tear_down(r, &b);
}

Test(kv_cache, wrong_use, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, wrong_use, NULL));
}

/* --- a layer's cache ---------------------------------------------------------------------------------------------- */

enum { EMBED = 4 };

/* A layer split over one axis whose parameters are split over another axis, too, between their uses. */
typedef struct layer {
    tsh_mesh *mesh;
    tsh_tape *tape;
    tsh_self_attention *attention;
    tsh_parameters *list;
    tsh_data_parallel *dp;
} layer;

static layer make_layer(tshi_rank *r, const char *axes, const tsh_precision *precision) {
    layer l = {0};
    const tsh_self_attention_config config = {.embed = EMBED, .heads = 4, .kv_heads = 2, .causal = true};
    const tsh_data_parallel_config split = {.level = TSH_ZERO_PARAMETERS};
    tsh_world_seed(r->world, 3);
    tshi_check_ok(r, tsh_mesh_create(r->world, axes, &l.mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &l.tape));
    tshi_check_ok(r, tsh_self_attention_create(tsh_mesh_group(l.mesh, "model"), &config, &l.attention));
    tshi_check_ok(r, tsh_parameters_create(r->world, &l.list));
    tshi_check_ok(r, tsh_self_attention_register(l.attention, l.list, "layers.0"));
    tshi_check_ok(r, tsh_parameters_set_precision(l.list, precision));
    tshi_check_ok(r, tsh_data_parallel_create(l.tape, l.list, tsh_mesh_group(l.mesh, "data"), &split, &l.dp));
    tsh_tape_set_recording(l.tape, false);
    return l;
}

static void free_layer(const layer *l) {
    tsh_data_parallel_destroy(l->dp);
    tsh_parameters_destroy(l->list);
    tsh_self_attention_destroy(l->attention);
    tsh_tape_destroy(l->tape);
    tsh_mesh_destroy(l->mesh);
}

/* The layer's output for tokens [from, to) of 2 sequences, which are split over data where `split` says so. */
static void attend_layer(tshi_rank *r, const layer *l, tsh_kv_cache *cache, bool split, int from, int to, double *y) {
    double whole[2 * TOKENS * EMBED];
    int n = 0;
    tsh_tensor_config config = {.ndim = 2, .shape = {2 * (to - from), EMBED}};
    if (split) config.layout[0] = TSH_SHARD(0);
    for (int b = 0; b < 2; b++)
        for (int i = from * EMBED; i < to * EMBED; i++) whole[n++] = sin(1 + 0.37 * i + 1.9 * b);
    tsh_tensor *x = tshi_test_tensor(r, l->mesh, &config, whole);
    const tsh_sequences sequences = {.batch = 2, .cache = cache};
    tsh_tensor *out = tsh_self_attention_forward(l->tape, l->attention, x, &sequences);
    out = tsh_cast(l->tape, tsh_full(l->tape, out), TSH_FLOAT64);
    if (tshi_check(r, out, "%s", tsh_tape_message(l->tape))) tshi_check_ok(r, tsh_tensor_read(out, y, n));
    tsh_tensor_release(x);
    tshi_check_ok(r, tsh_tape_reset(l->tape));
}

/* The prompt of 4 tokens, then the others one by one, as all tokens at once. */
static void layer_follows(tshi_rank *r, const char *axes, const tsh_precision *precision, tsh_dtype dtype,
                          double tolerance, bool split) {
    layer l = make_layer(r, axes, precision);
    tsh_kv_cache_config config = tsh_self_attention_cache(l.attention, 2, TOKENS);
    tsh_kv_cache *cache = NULL;
    tshi_check(r, config.dtype == dtype && config.layout[0].kind == TSH_KIND_REPLICATED, "the cache's configuration");
    if (split) config.layout[0] = TSH_SHARD(0);
    tshi_check_ok(r, tsh_kv_cache_create(l.mesh, &config, &cache));
    double all[2 * TOKENS * EMBED] = {0}, got[2 * TOKENS * EMBED] = {0};
    attend_layer(r, &l, NULL, split, 0, TOKENS, all);
    for (int from = 0, to = 4; to <= TOKENS && !r->failed; from = to++) {
        attend_layer(r, &l, cache, split, from, to, got);
        for (int b = 0, n = 0; b < 2; b++) {
            for (int i = (b * TOKENS + from) * EMBED; i < (b * TOKENS + to) * EMBED; i++, n++) {
                tshi_check(r, fabs(got[n] - all[i]) <= tolerance, "%d tokens, element %d: %g, not %g", to, n, got[n],
                           all[i]);
            }
        }
    }
    tsh_kv_cache_destroy(cache);
    free_layer(&l);
}

static void layers_follow(tshi_rank *r, void *arg) {
    static const char *const axes[] = {"data=2,model=2", "data=1:2,model=3:1", "data=3:1,model=0:1"};
    (void)arg;
    for (int i = 0; i < 6 && !r->failed; i++) {
        int split = i % 2;
        layer_follows(r, axes[i / 2], &(tsh_precision){0}, TSH_FLOAT32, 1e-5, split);
        layer_follows(r, axes[i / 2], &(tsh_precision){.arithmetic = TSH_ARITHMETIC_BFLOAT16}, TSH_BFLOAT16, 0.05,
                      split);
    }
}

Test(kv_cache, of_a_layer_whose_parameters_are_split_and_computed_in_bfloat16, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run(4, layers_follow, NULL));
}
