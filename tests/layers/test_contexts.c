/* Blocks whose tokens ranks split, in order or zigzag, packed or not, by each way of attention, beside split heads and
 * batches, against the same block whole on every rank with its tokens in order. */
#include "block_runs.h"

#include <criterion/criterion.h>

TestSuite(contexts, .timeout = 600);

enum { LONGEST = 13, SEQUENCES = 2, MOST = SEQUENCES * LONGEST * EMBED, CAUSAL_FAMILIES = 3 };

typedef struct trial {
    const char *axes;
    tsh_layout x[TSH_MAX_AXES];
    tsh_context context;
    int64_t tokens;
    bool packed, recompute, batched; /* positions [batch, T] */
} trial;

typedef struct kit {
    tshi_rank *r;
    tsh_mesh *mesh;
    tsh_group *group;
    tsh_tape *tape;
} kit;

/* x [batch, T, embed] in an order of tokens. */
static void in_order(int64_t tokens, const int64_t *order, const double *from, double *to) {
    for (int64_t e = 0; e < SEQUENCES * tokens * EMBED; e++) {
        int64_t row = e / EMBED;
        to[e] = from[(row / tokens * tokens + order[row % tokens]) * EMBED + e % EMBED];
    }
}

static tsh_tensor *token_numbers(const kit *k, const trial *t, const int64_t *order, bool documents) {
    double values[SEQUENCES * LONGEST];
    bool batched = t->batched || t->packed;
    tsh_tensor_config c = {
        .dtype = TSH_INT64, .ndim = batched ? 2 : 1, .shape = {batched ? SEQUENCES : t->tokens, t->tokens}};
    for (int a = 0; a < tsh_mesh_axes(k->mesh); a++) {
        bool split = t->x[a].kind == TSH_KIND_SHARD && (batched || t->x[a].dim == 1);
        if (split) c.layout[a] = TSH_SHARD(batched ? t->x[a].dim : 0);
    }
    for (int64_t i = 0; i < SEQUENCES * t->tokens; i++) {
        int64_t token = order[i % t->tokens];
        values[i] = documents ? (double)((token + 2 * (i / t->tokens)) / 4) : (double)token;
    }
    return tshi_test_tensor(k->r, k->mesh, &c, values);
}

/* The block, and its input in this order. */
static bool make_run(const kit *k, const family *f, const trial *t, bool whole, const int64_t *order, run *out) {
    static double x[MOST], dy[MOST], values[MOST];
    tsh_block_config config = f->config;
    trial here = *t;
    tsh_tensor_config shape = {TSH_FLOAT64, 3, {SEQUENCES, t->tokens, EMBED}, {R}};
    if (whole) memset(here.x, 0, sizeof here.x);
    config.embed = EMBED;
    config.dtype = TSH_FLOAT64;
    config.table = whole ? dense : NULL;
    config.recompute = !whole && t->recompute;
    config.attention.context = whole ? TSH_CONTEXT_IN_ORDER : t->context;
    config.attention.weight_init = config.attention.out_init = (tsh_init)VALUES;
    memcpy(shape.layout, here.x, sizeof shape.layout);
    tsh_world_seed(k->r->world, 3);
    tshi_test_integers(1, MOST, x);
    tshi_test_integers(2, MOST, dy);
    for (int64_t i = 0; i < MOST; i++) x[i] /= 4;
    in_order(t->tokens, order, x, values);
    *out = (run){.x = tshi_test_leaf(k->r, k->mesh, &shape, values)};
    in_order(t->tokens, order, dy, values);
    out->dy = tshi_test_tensor(k->r, k->mesh, &shape, values);
    out->positions = token_numbers(k, &here, order, false);
    if (t->packed) out->lengths = token_numbers(k, &here, order, true); /* held there to be released */
    out->rows = (tsh_sequences){.batch = SEQUENCES, .positions = out->positions, .documents = out->lengths};
    tshi_check_ok(k->r, tsh_block_create(k->group, &config, &out->block));
    tshi_check_ok(k->r, tsh_parameters_create(k->r->world, &out->list));
    tshi_check_ok(k->r, tsh_block_register(out->block, out->list, "h"));
    return !k->r->failed && forward(k->r, k->tape, out);
}

static void compare_runs(const kit *k, const char *what, const run *w, const run *whole, const int64_t *order,
                         int64_t tokens) {
    double wanted[MOST];
    char name[300];
    in_order(tokens, order, tsh_tensor_data(whole->y), wanted);
    tshi_test_same(k->r, what, w->y, wanted, 1e-10);
    in_order(tokens, order, tsh_tensor_data(tsh_tensor_grad(whole->x)), wanted);
    snprintf(name, sizeof name, "%s: dx", what);
    tshi_test_same_grad(k->r, name, w->x, wanted, 1e-10);
    for (int i = 0; i < tsh_parameters_count(w->list) && !k->r->failed; i++) {
        tsh_tensor *p = tsh_parameters_tensor(w->list, i), *q = tsh_parameters_tensor(whole->list, i);
        snprintf(name, sizeof name, "%s: %s", what, tsh_parameters_name(w->list, i));
        tshi_test_same_grad(k->r, name, p, tsh_tensor_data(tsh_tensor_grad(q)), 1e-9);
    }
}

static void run_trial(tshi_rank *r, const family *f, const trial *t) {
    static const char *const contexts[] = {"in order", "gather", "exchange", "ring"};
    int64_t order[LONGEST], natural[LONGEST];
    char what[200];
    kit k = {.r = r};
    run w = {0}, whole = {0};
    snprintf(what, sizeof what, "%s, %s, %s, %d tokens%s%s", f->name, t->axes, contexts[t->context], (int)t->tokens,
             t->packed ? ", packed" : "", t->recompute ? ", recomputed" : "");
    for (int i = 0; i < t->tokens; i++) order[i] = natural[i] = i;
    if (t->context != TSH_CONTEXT_IN_ORDER) tsh_zigzag(t->tokens, r->size, order);
    tshi_check_ok(r, tsh_mesh_create(r->world, t->axes, &k.mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &k.tape));
    k.group = tsh_mesh_group(k.mesh, "model");
    if (!r->failed && make_run(&k, f, t, false, order, &w) && make_run(&k, f, t, true, natural, &whole)) {
        backward(r, k.tape, &w);
        backward(r, k.tape, &whole);
        compare_runs(&k, what, &w, &whole, order, t->tokens);
    } else if (!r->failed) {
        tshi_check(r, false, "%s: %s", what, tsh_tape_message(k.tape));
    }
    tshi_check_ok(r, tsh_tape_reset(k.tape));
    destroy(&w);
    destroy(&whole);
    tsh_tape_destroy(k.tape);
    tsh_mesh_destroy(k.mesh);
}

/* Every way on one mesh; `data`: the batch is split over another axis. */
static void every_way(tshi_rank *r, const char *axes, bool data) {
    static const int64_t lengths[] = {1, 2, 7, 13};
    trial t = {.axes = axes, .x = {data ? TSH_SHARD(0) : TSH_SHARD(1), data ? TSH_SHARD(1) : TSH_REPLICATED}};
    for (int i = 0; i < 3 * 4 * CAUSAL_FAMILIES && !r->failed; i++) {
        t.context = (tsh_context)(i % 3);
        t.tokens = lengths[i / 3 % 4];
        for (int way = 0; way < 4 && !r->failed; way++) {
            t.packed = way & 1;
            t.batched = t.recompute = way & 2;
            run_trial(r, &families[i / 12], &t);
        }
    }
    t.context = TSH_CONTEXT_RING;
    for (int i = 0; i < 2 * CAUSAL_FAMILIES && !r->failed; i++) {
        t.tokens = lengths[i % 2 ? 3 : 1 + i / 2 % 2];
        t.packed = t.batched = t.recompute = i % 2;
        run_trial(r, &families[i / 2], &t);
    }
}

static void tokens_alone(tshi_rank *r, void *arg) {
    char axes[64];
    (void)arg;
    snprintf(axes, sizeof axes, "context=%d,model=1", r->size);
    every_way(r, axes, false);
}

Test(contexts, tokens_over_one_to_four_ranks) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, tokens_alone, NULL));
}

static void on_mesh(tshi_rank *r, void *arg) {
    every_way(r, arg, strncmp(arg, "data", 4) == 0);
}

Test(contexts, tokens_by_weight) {
    cr_assert_str_empty(tshi_test_run(3, on_mesh, "context=3:1:2,model=1"));
}

Test(contexts, tokens_and_heads) {
    cr_assert_str_empty(tshi_test_run(4, on_mesh, "context=2,model=2"));
    cr_assert_str_empty(tshi_test_run(6, on_mesh, "context=2,model=3"));
}

Test(contexts, tokens_and_batch) {
    cr_assert_str_empty(tshi_test_run(4, on_mesh, "data=2,context=2,model=1"));
}
