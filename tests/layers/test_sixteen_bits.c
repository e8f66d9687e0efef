/* Every layer in bfloat16 and float16, sharded in its ways over 1 to 4 ranks, against the whole layer in float64 with
 * the same parameters. */
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(sixteen_bits, .timeout = 300);

enum { BATCH = 2, TIME = 5, TOKENS = BATCH * TIME, EMBED = 12, ROWS = 9 };

typedef enum kind { LINEAR, EMBEDDING, NORM, MLP, ATTENTION, BLOCK } kind;

/* A layer, and how far off a value may be, in half units in the last place of the largest value: twice the square root
 * of the results, each of them rounded to 16 bits, that lie behind one another from x to a gradient, for their errors
 * are independent. */
typedef struct layer_case {
    const char *name;
    kind kind;
    int half_units;
    tsh_sharding shard;
    bool sequence; /* sequence parallel, x SHARD(0) where the layer is not a row layer alone */
    tsh_linear_config linear;
    tsh_norm_config norm;
    tsh_mlp_config mlp;
    tsh_self_attention_config attention;
    bool post_norm;
} layer_case;

#define GELU .activation = TSH_ACTIVATION_GELU
static const layer_case cases[] = {
    {"linear", LINEAR, 3, TSH_DENSE, .linear = {.bias = true}},
    {"column linear", LINEAR, 3, TSH_COLUMN, .linear = {.bias = true, .activation = TSH_ACTIVATION_SILU}},
    {"column linear, gathered", LINEAR, 3, TSH_COLUMN, .linear = {.bias = true, .gather_output = true}},
    {"row linear", LINEAR, 3, TSH_ROW, .linear = {.bias = true}},
    {"row linear, sequence parallel", LINEAR, 3, TSH_ROW, true, .linear = {.bias = true, GELU}},
    {"row embedding", EMBEDDING, 2, .shard = TSH_ROW},
    {"column embedding", EMBEDDING, 2, .shard = TSH_COLUMN},
    {"layer norm", NORM, 3, .norm = {.bias = true}},
    {"RMS norm, sequence parallel", NORM, 3, .sequence = true, .norm = {.kind = TSH_RMS_NORM}},
    {"MLP", MLP, 4, .mlp = {.bias = true, GELU}},
    {"gated MLP, sequence parallel", MLP, 4, .sequence = true,
     .mlp = {.gated = true, .activation = TSH_ACTIVATION_SILU}},
    {"attention", ATTENTION, 5, .attention = {.heads = 3, .causal = true, .bias = true, .out_bias = true}},
    {"attention, 4 heads of 2 KV heads", ATTENTION, 5, .sequence = true,
     .attention = {.heads = 4, .kv_heads = 2, .rotary = true}},
    {"attention, 2 heads of 1 KV head", ATTENTION, 5, .attention = {.heads = 2, .kv_heads = 1, .causal = true}},
    {"block", BLOCK, 7, .norm = {.bias = true}, .mlp = {.bias = true, GELU}, .attention = {.heads = 3, .causal = true}},
    {"block with norms behind, sequence parallel", BLOCK, 7, .sequence = true, .post_norm = true,
     .norm = {.bias = true}, .mlp = {GELU}, .attention = {.heads = 6, .kv_heads = 3}},
};

static const tsh_sharding_rule dense[] = {{"*", "dense"}, {NULL, NULL}};

/* A layer with its input and what came of it. */
typedef struct run {
    tsh_linear *linear;
    tsh_embedding *embedding;
    tsh_norm *norm;
    tsh_mlp *mlp;
    tsh_self_attention *attention;
    tsh_block *block;
    tsh_parameters *list;
    tsh_tensor *x, *dy, *positions, *y;
} run;

/* --- making ------------------------------------------------------------------------------------------------------- */

static tsh_status open_layer(const layer_case *c, tsh_group *g, tsh_dtype dtype, bool whole, run *w) {
    const tsh_sharding_rule *table = whole ? dense : NULL;
    tsh_sharding shard = whole ? TSH_DENSE : c->shard;
    bool sequence = !whole && c->sequence;
    if (c->kind == LINEAR) {
        tsh_linear_config config = c->linear;
        config.in_features = EMBED;
        config.out_features = 7;
        config.shard = shard;
        config.gather_output = config.gather_output && !whole;
        config.sequence_parallel = sequence;
        config.dtype = dtype;
        return tsh_linear_create(g, &config, &w->linear);
    }
    if (c->kind == EMBEDDING) {
        const tsh_embedding_config config = {
            .num_embeddings = ROWS, .embedding_dim = EMBED, .shard = shard, .dtype = dtype};
        return tsh_embedding_create(g, &config, &w->embedding);
    }
    tsh_norm_config norm = c->norm;
    norm.features = EMBED;
    norm.dtype = dtype;
    if (c->kind == NORM) return tsh_norm_create(g, &norm, &w->norm);
    tsh_mlp_config mlp = c->mlp;
    mlp.embed = EMBED;
    mlp.hidden = 10;
    mlp.dtype = dtype;
    mlp.sequence_parallel = sequence;
    mlp.table = table;
    if (c->kind == MLP) return tsh_mlp_create(g, &mlp, &w->mlp);
    tsh_self_attention_config attention = c->attention;
    attention.embed = EMBED;
    attention.head_dim = 4;
    attention.dtype = dtype;
    attention.sequence_parallel = sequence;
    attention.table = table;
    if (c->kind == ATTENTION) return tsh_self_attention_create(g, &attention, &w->attention);
    tsh_block_config block = {.embed = EMBED,
                              .post_norm = c->post_norm,
                              .sequence_parallel = sequence,
                              .dtype = dtype,
                              .norm = c->norm,
                              .attention = c->attention,
                              .mlp = c->mlp,
                              .table = table};
    block.attention.head_dim = 4;
    block.mlp.hidden = 10;
    return tsh_block_create(g, &block, &w->block);
}

static tsh_status list_parameters(const run *w) {
    if (w->linear) return tsh_linear_register(w->linear, w->list, "w");
    if (w->embedding) return tsh_embedding_register(w->embedding, w->list, "w");
    if (w->norm) return tsh_norm_register(w->norm, w->list, "w");
    if (w->mlp) return tsh_mlp_register(w->mlp, w->list, "w");
    if (w->attention) return tsh_self_attention_register(w->attention, w->list, "w");
    return tsh_block_register(w->block, w->list, "w");
}

/* The values of x are exact in 16 bits. */
static void make(tshi_rank *r, const layer_case *c, tsh_dtype dtype, bool whole, run *w) {
    tsh_group *g = tsh_world_group(r->world);
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    double x[TOKENS * EMBED], ids[TOKENS], places[TIME];
    bool by_tokens = !whole && c->sequence && c->kind != LINEAR;
    tsh_tensor_config config = {dtype, 2, {TOKENS, EMBED}, {by_tokens ? TSH_SHARD(0) : TSH_REPLICATED}};
    *w = (run){.linear = NULL};
    tshi_test_integers(1, TOKENS * EMBED, x);
    for (int i = 0; i < TOKENS * EMBED; i++) x[i] /= 4;
    for (int i = 0; i < TOKENS; i++) ids[i] = i * 4 % ROWS;
    for (int i = 0; i < TIME; i++) places[i] = 2 + i;
    tsh_world_seed(r->world, 3);
    tshi_check_ok(r, open_layer(c, g, dtype, whole, w));
    tshi_check_ok(r, tsh_parameters_create(r->world, &w->list));
    if (!r->failed) tshi_check_ok(r, list_parameters(w));
    if (c->kind == EMBEDDING)
        w->x = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_INT64, 1, {TOKENS}, {TSH_REPLICATED}}, ids);
    else
        w->x = tshi_test_leaf(r, mesh, &config, x);
    w->positions = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_INT64, 1, {TIME}, {TSH_REPLICATED}}, places);
}

static void destroy(run *w) {
    tsh_parameters_destroy(w->list);
    tsh_linear_destroy(w->linear);
    tsh_embedding_destroy(w->embedding);
    tsh_norm_destroy(w->norm);
    tsh_mlp_destroy(w->mlp);
    tsh_self_attention_destroy(w->attention);
    tsh_block_destroy(w->block);
    tsh_tensor_release(w->x);
    tsh_tensor_release(w->dy);
    tsh_tensor_release(w->positions);
}

/* The whole layer gets the parameters of the one in 16 bits. */
static void share_parameters(tshi_rank *r, tsh_tape *tape, const run *from, const run *to) {
    bool recording = tsh_tape_set_recording(tape, false);
    for (int i = 0; i < tsh_parameters_count(from->list) && !r->failed; i++) {
        tsh_tensor *wide = tsh_full(tape, tsh_cast(tape, tsh_parameters_tensor(from->list, i), TSH_FLOAT64));
        if (!tshi_check(r, wide, "%s", tsh_tape_message(tape))) return;
        tshi_check_ok(r, tsh_tensor_write_whole(tsh_parameters_tensor(to->list, i), tsh_tensor_data(wide)));
    }
    tsh_tape_set_recording(tape, recording);
    tshi_check_ok(r, tsh_tape_reset(tape));
}

/* --- running ------------------------------------------------------------------------------------------------------ */

static tsh_tensor *forward(tsh_tape *tape, const run *w) {
    const tsh_sequences rows = {.batch = BATCH, .positions = w->positions};
    if (w->linear) return tsh_linear_forward(tape, w->linear, w->x);
    if (w->embedding) return tsh_embedding_forward(tape, w->embedding, w->x);
    if (w->norm) return tsh_norm_forward(tape, w->norm, w->x);
    if (w->mlp) return tsh_mlp_forward(tape, w->mlp, w->x);
    if (w->attention) return tsh_self_attention_forward(tape, w->attention, w->x, &rows);
    return tsh_block_forward(tape, w->block, w->x, &rows);
}

static void step(tshi_rank *r, tsh_tape *tape, run *w) {
    double dy[TOKENS * EMBED];
    w->y = forward(tape, w);
    if (!tshi_check(r, w->y, "%s", tsh_tape_message(tape))) return;
    tsh_tensor_config like = {tsh_tensor_dtype(w->y), 2, {TOKENS, tsh_tensor_shape(w->y)[1]}, {{0}}};
    like.layout[0] = tsh_tensor_layout(w->y, tsh_world_group(r->world));
    tshi_test_integers(2, TOKENS * EMBED, dy);
    for (int i = 0; i < TOKENS * EMBED; i++) dy[i] /= 8;
    w->dy = tshi_test_tensor(r, tsh_world_mesh(r->world), &like, dy);
    tshi_check_ok(r, tsh_backward_with(tape, w->y, &(tsh_backward_config){.gradient = w->dy, .retain_graph = true}));
}

/* The part of a whole that this rank has. Returns the largest value of the whole. */
static double compare(tshi_rank *r, const layer_case *c, const char *what, const tsh_tensor *got,
                      const tsh_tensor *wanted, double unit, double largest) {
    if (r->failed || !tshi_check(r, got && wanted, "%s: no %s", c->name, what)) return 0;
    for (int64_t i = 0; i < wanted->numel; i++) largest = fmax(largest, fabs(tshi_test_element(wanted, i)));
    for (int64_t i = 0; i < got->numel; i++) {
        double a = tshi_test_element(got, i), b = tshi_test_element(wanted, tshi_test_place(got, i));
        double off = fabs(a - b) / (unit * largest);
        if (!tshi_check(r, off <= c->half_units,
                        "%s in %s: element %lld of %s is %.9g, wanted %.9g of at most %.9g: off "
                        "by %.3g half units, %d are allowed",
                        c->name, tsh_dtype_name(got->dtype), (long long)i, what, a, b, largest, off, c->half_units))
            return 0;
    }
    return largest;
}

static void check_case(tshi_rank *r, tsh_tape *tape, const layer_case *c, tsh_dtype dtype) {
    double unit = dtype == TSH_BFLOAT16 ? 0x1p-8 : 0x1p-11;
    run whole, w;
    make(r, c, dtype, false, &w);
    make(r, c, TSH_FLOAT64, true, &whole);
    if (!r->failed) share_parameters(r, tape, &w, &whole);
    if (!r->failed) step(r, tape, &whole);
    if (!r->failed) step(r, tape, &w);
    if (!r->failed) tshi_check(r, tsh_tensor_dtype(w.y) == dtype, "%s: y is %s", c->name, tsh_dtype_name(w.y->dtype));
    compare(r, c, "y", w.y, whole.y, unit, 0);
    if (c->kind != EMBEDDING) compare(r, c, "dx", tsh_tensor_grad(w.x), tsh_tensor_grad(whole.x), unit, 0);
    double weight = 0; /* A bias adds up what the weight before it multiplies: that of keys is 0 in sum. */
    for (int i = 0; i < tsh_parameters_count(w.list); i++) {
        const char *name = tsh_parameters_name(w.list, i);
        weight =
            compare(r, c, name, tsh_tensor_grad(tsh_parameters_tensor(w.list, i)),
                    tsh_tensor_grad(tsh_parameters_tensor(whole.list, i)), unit, strstr(name, ".bias") ? weight : 0);
    }
    tsh_tape_reset(tape);
    destroy(&whole);
    destroy(&w);
}

static void all_layers(tshi_rank *r, void *arg) {
    tsh_tape *tape = NULL;
    const tsh_dtype *dtype = arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (size_t i = 0; i < sizeof cases / sizeof *cases && !r->failed; i++) check_case(r, tape, &cases[i], *dtype);
    tsh_tape_destroy(tape);
}

Test(sixteen_bits, bfloat16_layers_are_float64_ones_but_for_their_roundings) {
    tsh_dtype dtype = TSH_BFLOAT16;
    cr_assert_str_empty(tshi_test_run_each(1, 4, all_layers, &dtype));
}

Test(sixteen_bits, float16_layers_are_float64_ones_but_for_their_roundings) {
    tsh_dtype dtype = TSH_FLOAT16;
    cr_assert_str_empty(tshi_test_run_each(1, 4, all_layers, &dtype));
}
