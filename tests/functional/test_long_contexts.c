/* Attention of sequences whose tokens are split over ranks, in order or permuted, packed or not, against plain loops
 * over all pairs; heads exchanged for tokens; the collectives; and what other libraries got wrong. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

TestSuite(long_contexts, .timeout = 600);

enum { B = 2, H = 4, KV = 2, D = 3, LONGEST = 40, MOST = B * LONGEST * H * D };
enum { Q, K, V, INPUTS };

typedef struct numbers {
    double in[INPUTS][MOST], dy[MOST], y[MOST], d[INPUTS][MOST];
} numbers;

/* Sequences of T tokens; token i of sequence b has a document, and a position in the sequence. */
typedef struct problem {
    int64_t tokens;
    bool packed;
    int64_t order[LONGEST]; /* the token that comes i-th */
    numbers whole;          /* in the order of the sequences */
} problem;

static int64_t at(const problem *p, int64_t b, int64_t i, int64_t h, int heads) {
    return ((b * p->tokens + i) * heads + h) * D;
}

/* Documents are of 1, 4, 9, ... tokens, in the second sequence in the reverse order. */
static int64_t document_of(const problem *p, int64_t b, int64_t i) {
    int64_t token = b ? p->tokens - 1 - i : i;
    return p->packed ? (int64_t)sqrt((double)token) : 0;
}

static double dot(const double *x, const double *y) {
    double sum = 0;
    for (int d = 0; d < D; d++) sum += x[d] * y[d];
    return sum;
}

static void attend(problem *p, int64_t b, int64_t i, int64_t h) {
    numbers *n = &p->whole;
    const int64_t q = at(p, b, i, h, H);
    double weight[LONGEST], sum = 0, delta = 0;
    for (int64_t j = 0; j <= i; j++) {
        bool sees = document_of(p, b, i) == document_of(p, b, j);
        weight[j] = sees ? exp(dot(n->in[Q] + q, n->in[K] + at(p, b, j, h / 2, KV)) / sqrt(D)) : 0;
        sum += weight[j];
    }
    for (int64_t j = 0; j <= i; j++) {
        weight[j] /= sum;
        for (int d = 0; d < D; d++) n->y[q + d] += weight[j] * n->in[V][at(p, b, j, h / 2, KV) + d];
    }
    delta = dot(n->dy + q, n->y + q);
    for (int64_t j = 0; j <= i; j++) {
        const int64_t k = at(p, b, j, h / 2, KV);
        double slope = weight[j] * (dot(n->dy + q, n->in[V] + k) - delta) / sqrt(D);
        for (int d = 0; d < D; d++) {
            n->d[Q][q + d] += slope * n->in[K][k + d];
            n->d[K][k + d] += slope * n->in[Q][q + d];
            n->d[V][k + d] += weight[j] * n->dy[q + d];
        }
    }
}

static void make_problem(int64_t tokens, bool packed, int parts, problem *p) {
    memset(p, 0, sizeof *p);
    p->tokens = tokens;
    p->packed = packed;
    for (int64_t i = 0; i < tokens; i++) p->order[i] = i;
    if (parts) tsh_zigzag(tokens, parts, p->order);
    for (int64_t e = 0; e < B * tokens * H * D; e++) {
        for (int i = 0; i < INPUTS; i++) p->whole.in[i][e] = tshi_test_integer(3 + i, e) / 8;
        p->whole.dy[e] = tshi_test_integer(9, e) / 4;
    }
    for (int64_t row = 0; row < B * tokens * H; row++) attend(p, row / H / tokens, row / H % tokens, row % H);
}

/* A tensor [B, T, heads, D] in the problem's order. */
static void in_order(const problem *p, const double *from, int heads, double *to) {
    for (int64_t e = 0; e < B * p->tokens * heads * D; e++) {
        int64_t inner = e % (heads * D), token = e / (heads * D), b = token / p->tokens;
        to[e] = from[(b * p->tokens + p->order[token % p->tokens]) * heads * D + inner];
    }
}

typedef struct kit {
    tshi_rank *r;
    tsh_mesh *mesh;
    tsh_tape *tape;
    bool ring;
    char what[160];
} kit;

static void layout_of(const kit *k, const tsh_layout *layout, tsh_tensor_config *c) {
    memcpy(c->layout, layout, sizeof *layout * (size_t)tsh_mesh_axes(k->mesh));
}

static tsh_tensor *make_input(kit *k, const problem *p, int i, const tsh_layout *layout) {
    double values[MOST];
    int heads = i == Q ? H : KV;
    tsh_tensor_config c = {.dtype = TSH_FLOAT64, .ndim = 4, .shape = {B, p->tokens, heads, D}};
    layout_of(k, layout, &c);
    in_order(p, p->whole.in[i], heads, values);
    return tshi_test_leaf(k->r, k->mesh, &c, values);
}

/* Positions [T] or [B, T], or documents [B, T], split over the axes that split tokens or batch. */
static tsh_tensor *make_ids(kit *k, const problem *p, bool documents, int ndim, const tsh_layout *layout) {
    int64_t ids[B * LONGEST], n = p->tokens;
    tsh_tensor_config c = {.dtype = TSH_INT64, .ndim = ndim, .shape = {ndim == 2 ? B : n, n}};
    tsh_tensor *t = NULL;
    for (int a = 0; a < tsh_mesh_axes(k->mesh); a++) {
        bool tokens = layout[a].kind == TSH_KIND_SHARD && layout[a].dim == 1;
        bool batch = layout[a].kind == TSH_KIND_SHARD && layout[a].dim == 0 && ndim == 2;
        c.layout[a] = tokens ? TSH_SHARD(ndim - 1) : batch ? TSH_SHARD(0) : TSH_REPLICATED;
    }
    for (int64_t i = 0; i < B * n; i++)
        ids[i] = documents ? 5 * document_of(p, i / n, p->order[i % n]) - 7 : p->order[i % n];
    if (tshi_check_ok(k->r, tsh_tensor_create(k->mesh, &c, &t))) tshi_check_ok(k->r, tsh_tensor_write_whole(t, ids));
    return t;
}

static void check_grad(kit *k, const problem *p, const char *name, const tsh_tensor *of, int i) {
    double wanted[MOST];
    char what[200];
    snprintf(what, sizeof what, "%s: %s", k->what, name);
    in_order(p, p->whole.d[i], i == Q ? H : KV, wanted);
    tshi_test_same_grad(k->r, what, of, wanted, 1e-12);
}

/* Forward and backward of the problem with q, k and v in `layout`; with `by_heads`, they are redistributed to that, and
 * y back. */
static void run_problem(kit *k, const problem *p, const tsh_layout *layout, int ndim, const tsh_layout *by_heads) {
    static const char *const names[] = {"dq", "dk", "dv"};
    double wanted[MOST], dy[MOST];
    tsh_tensor *in[INPUTS], *used[INPUTS], *ids[2] = {NULL, NULL}, *out = NULL;
    tsh_tensor_config c = {.dtype = TSH_FLOAT64, .ndim = 4, .shape = {B, p->tokens, H, D}};
    for (int i = 0; i < INPUTS; i++) in[i] = used[i] = make_input(k, p, i, layout);
    if (ndim) ids[0] = make_ids(k, p, false, ndim, layout);
    if (p->packed) ids[1] = make_ids(k, p, true, 2, layout);
    for (int i = 0; i < INPUTS && by_heads; i++) used[i] = tsh_redistribute(k->tape, in[i], NULL, by_heads);
    tsh_tensor *y = tsh_attention(k->tape, used[Q], used[K], used[V],
                                  &(tsh_attention_config){.causal = true,
                                                          .ring = k->ring,
                                                          .query_positions = ids[0],
                                                          .key_positions = ids[0],
                                                          .query_documents = ids[1],
                                                          .key_documents = ids[1]});
    if (by_heads) y = tsh_redistribute(k->tape, y, NULL, layout);
    if (tshi_check(k->r, y, "%s: %s", k->what, tsh_tape_message(k->tape))) {
        in_order(p, p->whole.y, H, wanted);
        in_order(p, p->whole.dy, H, dy);
        tshi_test_same(k->r, k->what, y, wanted, 1e-12);
        layout_of(k, y->layout, &c);
        out = tshi_test_tensor(k->r, k->mesh, &c, dy);
        tshi_check_ok(k->r, tsh_backward_with(k->tape, y, &(tsh_backward_config){.gradient = out}));
    }
    for (int i = 0; i < INPUTS; i++) check_grad(k, p, names[i], in[i], i);
    tshi_check_ok(k->r, tsh_tape_reset(k->tape));
    for (int i = 0; i < INPUTS; i++) tsh_tensor_release(in[i]);
    tsh_tensor_release(ids[0]);
    tsh_tensor_release(ids[1]);
    tsh_tensor_release(out);
}

static bool open_kit(kit *k, tshi_rank *r, const char *axes) {
    *k = (kit){.r = r};
    return tshi_check_ok(r, tsh_mesh_create(r->world, axes, &k->mesh)) &&
           tshi_check_ok(r, tsh_tape_create(r->world, &k->tape));
}

static void close_kit(kit *k) {
    tsh_tape_destroy(k->tape);
    tsh_mesh_destroy(k->mesh);
}

/* --- every length ------------------------------------------------------------------------------------------------- */

static void run_lengths(tshi_rank *r, const char *axes, int longest, const tsh_layout *layout,
                        const tsh_layout *by_heads) {
    static problem p;
    kit k;
    bool open = open_kit(&k, r, axes);
    for (int64_t tokens = 1; open && tokens <= longest && !r->failed; tokens++) {
        for (int way = 0; way < 6; way++) { /* in order, or permuted; and by indices, positions [T], positions [B, T] */
            bool packed = way & 1;
            int ndim = way / 2;
            make_problem(tokens, packed, ndim ? r->size : 0, &p);
            snprintf(k.what, sizeof k.what, "%s, %lld tokens%s, positions of %d dims", axes, (long long)tokens,
                     packed ? ", packed" : "", ndim);
            /* Documents are [B, T], and so are positions beside them. */
            if (packed && ndim == 1) continue;
            run_problem(&k, &p, layout, ndim, by_heads);
        }
    }
    close_kit(&k);
}

static const char *axis_of(int ranks, bool weights, char *text, size_t size) {
    static const char *const weighted[] = {"2", "3:1", "3:1:2", "1:0:4:2", "5:1:1:2:7"};
    if (weights)
        snprintf(text, size, "context=%s", weighted[ranks - 1]);
    else
        snprintf(text, size, "context=%d", ranks);
    return text;
}

static void every_length(tshi_rank *r, void *arg) {
    char axes[64];
    const bool *weights = arg;
    const tsh_layout tokens[] = {TSH_SHARD(1)};
    run_lengths(r, axis_of(r->size, *weights, axes, sizeof axes), *weights ? 17 : LONGEST, tokens, NULL);
}

Test(long_contexts, every_length_over_one_to_five_ranks) {
    bool weights = false;
    cr_assert_str_empty(tshi_test_run_each(1, 5, every_length, &weights));
}

Test(long_contexts, every_length_over_ranks_of_different_weights) {
    bool weights = true;
    cr_assert_str_empty(tshi_test_run_each(2, 5, every_length, &weights));
}

/* Lengths shorter and longer than the ranks, with each kind of positions, packed and not; by weights, with empty ranks.
 * Along two axes beside each other the keys go round one, or are gathered where both split the tokens. */
static void go_round(tshi_rank *r, void *arg) {
    static const int64_t lengths[] = {1, 3, 7, 16, 40};
    const tsh_layout layouts[][2] = {{TSH_SHARD(1)},
                                     {TSH_SHARD(0), TSH_SHARD(1)},
                                     {TSH_SHARD(1), TSH_SHARD_UNITS(2, KV, 0)},
                                     {TSH_SHARD(1), TSH_SHARD(1)}};
    static problem p;
    char axes[64];
    const bool *weights = arg;
    for (int i = 0; i < (r->size == 4 && !*weights ? 4 : 1) && !r->failed; i++) {
        kit k;
        if (!open_kit(&k, r, i ? "a=2,b=2" : axis_of(r->size, *weights, axes, sizeof axes))) return;
        k.ring = true;
        for (int way = 0; way < 5 * 3 && !r->failed; way++) {
            int ndim = way % 3 ? 2 : 1;
            make_problem(lengths[way / 3], way % 3 == 2, r->size, &p);
            snprintf(k.what, sizeof k.what, "ring %d, %d tokens, way %d", i, (int)p.tokens, way % 3);
            run_problem(&k, &p, layouts[i], ndim, NULL);
        }
        close_kit(&k);
    }
}

Test(long_contexts, keys_go_round_a_ring) {
    bool weights = false;
    cr_assert_str_empty(tshi_test_run_each(1, 5, go_round, &weights));
    weights = true;
    cr_assert_str_empty(tshi_test_run_each(2, 5, go_round, &weights));
}

/* The batch or the heads are split too, or tokens over both axes. */
static void several_axes(tshi_rank *r, void *arg) {
    const tsh_layout layouts[][2] = {{TSH_SHARD(0), TSH_SHARD(1)},
                                     {TSH_SHARD(1), TSH_SHARD_UNITS(2, KV, 0)},
                                     {TSH_SHARD(1), TSH_SHARD(1)},
                                     {TSH_REPLICATED, TSH_SHARD(1)}};
    (void)arg;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        run_lengths(r, r->size == 4 ? "a=2,b=2" : "a=2,b=3", 9, layouts[i], NULL);
    }
}

Test(long_contexts, several_axes) {
    cr_assert_str_empty(tshi_test_run(4, several_axes, NULL));
    cr_assert_str_empty(tshi_test_run(6, several_axes, NULL));
}

/* --- heads exchanged for tokens ----------------------------------------------------------------------------------- */

static void exchange_heads(tshi_rank *r, void *arg) {
    char axes[64];
    const bool *weights = arg;
    const tsh_layout tokens[] = {TSH_SHARD(1)}, heads[] = {TSH_SHARD(2)}, units[] = {TSH_SHARD_UNITS(2, KV, 0)};
    axis_of(r->size, *weights, axes, sizeof axes);
    run_lengths(r, axes, 12, tokens, heads);
    if (!*weights) run_lengths(r, axes, 12, tokens, units);
}

Test(long_contexts, heads_are_exchanged_for_tokens) {
    bool weights = false;
    cr_assert_str_empty(tshi_test_run_each(1, 5, exchange_heads, &weights));
    weights = true;
    cr_assert_str_empty(tshi_test_run_each(2, 5, exchange_heads, &weights));
}

/* --- collectives -------------------------------------------------------------------------------------------------- */

/* By tokens: k, v and their positions are gathered, dk and dv reduce-scattered. By heads: an all-to-all for each of q,
 * k, v and y, forward and backward. In a ring of two, k and v are sent once forward and once backward, and dk and dv
 * twice; only positions are gathered. */
static void count_collectives(tshi_rank *r, void *arg) {
    static problem p;
    kit k;
    const tsh_layout tokens[] = {TSH_SHARD(1)}, heads[] = {TSH_SHARD(2)};
    (void)arg;
    if (!open_kit(&k, r, "context=2")) return;
    tsh_group *group = tsh_mesh_group(k.mesh, "context");
    make_problem(8, false, 2, &p);
    tsh_group_reset_stats(group);
    run_problem(&k, &p, tokens, 1, NULL);
    tsh_communication_stats wanted = {{0}, {0}, 0};
    for (int i = 0; i < 2; i++) {
        tshi_test_expect(&wanted, group, TSH_COLLECTIVE_ALL_GATHER, B * 8 * KV * D, sizeof(double));
        tshi_test_expect(&wanted, group, TSH_COLLECTIVE_REDUCE_SCATTER, B * 8 * KV * D, sizeof(double));
    }
    tshi_test_expect(&wanted, group, TSH_COLLECTIVE_ALL_GATHER, 8, sizeof(int64_t));
    tshi_test_calls(r, "by tokens", group, &wanted);
    make_problem(8, false, 0, &p);
    run_problem(&k, &p, tokens, 0, heads);
    memset(&wanted, 0, sizeof wanted);
    for (int i = 0; i < 8; i++) /* of a rank's elements */
        tshi_test_expect(&wanted, group, TSH_COLLECTIVE_ALL_TO_ALL, B * 4 * (i < 4 ? H : KV) * D, sizeof(double));
    tshi_test_calls(r, "by heads", group, &wanted);
    make_problem(8, false, 2, &p);
    k.ring = true;
    run_problem(&k, &p, tokens, 1, NULL);
    tsh_communication_stats got = tsh_group_stats(group);
    bool alike = got.calls[TSH_COLLECTIVE_SEND] == 8 && got.calls[TSH_COLLECTIVE_ALL_GATHER] == 1 &&
                 got.calls[TSH_COLLECTIVE_REDUCE_SCATTER] == 0;
    tshi_check(r, alike, "in a ring: %d sends, %d all-gathers", (int)got.calls[TSH_COLLECTIVE_SEND],
               (int)got.calls[TSH_COLLECTIVE_ALL_GATHER]);
    close_kit(&k);
}

Test(long_contexts, collectives_of_each_way) {
    cr_assert_str_empty(tshi_test_run(2, count_collectives, NULL));
}

/* --- what other libraries got wrong ------------------------------------------------------------------------------- */

/* 7 tokens over 2 ranks are {0,1,6,2} and {3,4,5}, with 13 and 15 pairs; another library went on with 6 tokens. */
static void seven_tokens(tshi_rank *r, void *arg) {
    static problem p;
    static const int64_t wanted[2][4] = {{0, 1, 6, 2}, {3, 4, 5}}, pairs[2] = {13, 15};
    kit k;
    const tsh_layout tokens[] = {TSH_SHARD(1)};
    (void)arg;
    if (!open_kit(&k, r, "context=2")) return;
    make_problem(7, false, 2, &p);
    snprintf(k.what, sizeof k.what, "7 tokens over 2 ranks");
    tsh_tensor *ids = make_ids(&k, &p, false, 1, tokens);
    int64_t mine[4], seen = 0, count = tsh_tensor_local_numel(ids);
    tshi_check(r, count == (r->rank ? 3 : 4), "%d tokens here", (int)count);
    tshi_check_ok(r, tsh_tensor_read(ids, mine, count));
    for (int64_t i = 0; i < count && !r->failed; i++) {
        tshi_check(r, mine[i] == wanted[r->rank][i], "token %d is %d", (int)i, (int)mine[i]);
        seen += mine[i] + 1;
    }
    tshi_check(r, seen == pairs[r->rank], "%d pairs", (int)seen);
    run_problem(&k, &p, tokens, 1, NULL);
    tsh_tensor_release(ids);
    close_kit(&k);
}

Test(long_contexts, no_token_is_lost_at_length_7) {
    cr_assert_str_empty(tshi_test_run(2, seven_tokens, NULL));
}

/* 2,999 tokens over 4 ranks: another library hung, or took wrong pieces. The attention of a sequence whose values are
 * the positions, with all scores equal, is half the position. */
static void uneven_pieces(tshi_rank *r, void *arg) {
    enum { TOKENS = 2999 };
    static int64_t order[TOKENS];
    static double zeros[TOKENS], values[TOKENS], wanted[TOKENS];
    kit k;
    tsh_tensor *q, *v, *ids = NULL;
    const tsh_tensor_config c = {.dtype = TSH_FLOAT64, .ndim = 4, .shape = {1, TOKENS, 1, 1}, .layout = {TSH_SHARD(1)}};
    const tsh_tensor_config of_ids = {.dtype = TSH_INT64, .ndim = 1, .shape = {TOKENS}, .layout = {TSH_SHARD(0)}};
    (void)arg;
    if (!open_kit(&k, r, "context=4")) return;
    tsh_zigzag(TOKENS, 4, order);
    for (int i = 0; i < TOKENS; i++) values[i] = (double)order[i];
    for (int i = 0; i < TOKENS; i++) wanted[i] = values[i] / 2;
    q = tshi_test_tensor(r, k.mesh, &c, zeros);
    v = tshi_test_leaf(r, k.mesh, &c, values);
    tshi_check_ok(r, tsh_tensor_create(k.mesh, &of_ids, &ids));
    tshi_check_ok(r, tsh_tensor_write_whole(ids, order));
    tshi_check(r, tsh_tensor_local_numel(v) == (r->rank == 3 ? 749 : 750), "%d tokens", (int)tsh_tensor_local_numel(v));
    tsh_tensor *y = tsh_attention(k.tape, q, q, v,
                                  &(tsh_attention_config){.scale = 1, .query_positions = ids, .key_positions = ids});
    if (tshi_check(r, y, "%s", tsh_tape_message(k.tape))) tshi_test_same(r, "y", y, wanted, 1e-11);
    tshi_check_ok(r, tsh_backward(k.tape, tsh_sum(k.tape, y, TSH_ALL_DIMS)));
    for (int i = 0; i < TOKENS; i++) { /* the token at position t counts 1 / (u + 1) for each u from t on */
        wanted[i] = 0;
        for (int64_t u = order[i]; u < TOKENS; u++) wanted[i] += 1.0 / (double)(u + 1);
    }
    tshi_test_same_grad(r, "dv", v, wanted, 1e-11);
    tsh_tensor_release(q);
    tsh_tensor_release(v);
    tsh_tensor_release(ids);
    close_kit(&k);
}

Test(long_contexts, an_uneven_length_neither_hangs_nor_moves_pieces) {
    cr_assert_str_empty(tshi_test_run(4, uneven_pieces, NULL));
}

/* Blocks of keys are merged in float32, in whatever dtype they are stored: another library rounded each block's result
 * to bfloat16. Weights 1/4 and 3/4 of values 1 and 5, whose keys lie in different blocks, are exactly 4; and the mean
 * of many values, which repeated rounding would let drift, is right to one rounding. */
typedef struct merging {
    tsh_dtype dtype;
    bool ring; /* the queries are split, too */
} merging;

static void merged_blocks(tshi_rank *r, void *arg) {
    enum { KEYS = 1000 };
    static double key[KEYS], value[KEYS];
    static int64_t documents[KEYS];
    const merging *m = arg;
    const tsh_dtype *dtype = &m->dtype;
    const bool ring = m->ring;
    kit k;
    tsh_tensor *of_keys = NULL, *of_query = NULL;
    tsh_tensor_config one = {.dtype = *dtype, .ndim = 4, .shape = {1, 2, 1, 1}}, ids = {TSH_INT64, 1, {2}, {{0}}};
    tsh_tensor_config all = {.dtype = *dtype, .ndim = 4, .shape = {1, KEYS, 1, 1}, .layout = {TSH_SHARD(1)}};
    if (!open_kit(&k, r, "context=2")) return;
    if (ring) one.layout[0] = TSH_SHARD(1);
    if (ring) ids.layout[0] = TSH_SHARD(0);
    for (int j = 0; j < KEYS; j++) {
        documents[j] = j == 3 || j == 900 ? 1 : 2;
        key[j] = j == 900;
        value[j] = j == 3 ? 1 : j == 900 ? 5 : j % 3 ? 1 : 2;
    }
    const double score[] = {1, 0}, wanted[] = {4, 1.0 + 332.0 / (KEYS - 2)};
    tsh_tensor *q = tshi_test_tensor(r, k.mesh, &one, score), *keys = tshi_test_tensor(r, k.mesh, &all, key),
               *values = tshi_test_tensor(r, k.mesh, &all, value);
    all = (tsh_tensor_config){.dtype = TSH_INT64, .ndim = 1, .shape = {KEYS}, .layout = {TSH_SHARD(0)}};
    tshi_check_ok(r, tsh_tensor_create(k.mesh, &all, &of_keys));
    tshi_check_ok(r, tsh_tensor_write_whole(of_keys, documents));
    tshi_check_ok(r, tsh_tensor_create(k.mesh, &ids, &of_query));
    tshi_check_ok(r, tsh_tensor_write_whole(of_query, (const int64_t[]){1, 2}));
    tsh_tensor *y = tsh_attention(
        k.tape, q, keys, values,
        &(tsh_attention_config){.scale = log(3), .query_documents = of_query, .key_documents = of_keys, .ring = ring});
    if (tshi_check(r, y, "%s", tsh_tape_message(k.tape)))
        tshi_test_same(r, tsh_dtype_name(*dtype), y, wanted, *dtype == TSH_BFLOAT16 ? 0x1p-8 : 0x1p-11);
    tsh_tensor_release(q);
    tsh_tensor_release(keys);
    tsh_tensor_release(values);
    tsh_tensor_release(of_keys);
    tsh_tensor_release(of_query);
    close_kit(&k);
}

Test(long_contexts, blocks_are_merged_without_rounding_between) {
    tsh_dtype dtypes[] = {TSH_BFLOAT16, TSH_FLOAT16, TSH_FLOAT32};
    for (int i = 0; i < 6; i++) {
        merging m = {dtypes[i % 3], i / 3};
        cr_assert_str_empty(tshi_test_run(2, merged_blocks, &m), "case %d", i);
    }
}

/* Lengths, positions and documents are more inputs than a call has. */
Test(long_contexts, without_a_tape_the_call_fails) {
    char nothing[8] = {0};
    tsh_tensor *any = (void *)nothing; /* not looked at */
    const tsh_attention_config all = {
        .lengths = any, .query_positions = any, .key_positions = any, .query_documents = any, .key_documents = any};
    cr_assert_null(tsh_attention(NULL, NULL, NULL, NULL, &all));
}
