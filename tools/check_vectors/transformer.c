/* Layers of transformers, and a small GPT over some steps. */
#include "cases.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct variant {
    bool dense, sequence;
} variant;

static const variant dense = {true, false}, split = {false, false}, sequence = {false, true};

static const tsh_sharding_rule dense_table[] = {{"*", "dense"}, {NULL, NULL}};

static const tsh_sharding_rule *table_of(const variant *v) {
    return v->dense ? dense_table : NULL;
}

/* --- a gated MLP -------------------------------------------------------------------------------------------------- */

static bool load(cv_run *run, tsh_tensor *to, const char *name, int64_t start) {
    const tshi_vector *v = cv_vector(run, name, tsh_tensor_ndim(to));
    int64_t count = 1;
    for (int d = 0; d < tsh_tensor_ndim(to); d++) count *= tsh_tensor_shape(to)[d];
    if (!v || !tshi_check(run->rank, start + count <= v->count, "%s is too short", name)) return false;
    void *elements = cv_elements(run, v, start, count);
    bool good = elements && tshi_check_ok(run->rank, tsh_tensor_write_whole(to, elements));
    free(elements);
    return good;
}

static void run_gated_mlp(cv_run *run, const void *user) {
    static const char *const weights[] = {"Wg", "Wu", "Wd"}, *const gradients[] = {"dWg", "dWu", "dWd"};
    const variant *v = user;
    const tshi_vector *w = cv_vector(run, "Wg", 2);
    tsh_mlp *layer = NULL;
    if (!w) return;
    tsh_mlp_config config = {.embed = w->shape[1],
                             .hidden = w->shape[0],
                             .gated = true,
                             .activation = TSH_ACTIVATION_SILU,
                             .sequence_parallel = v->sequence,
                             .dtype = run->dtype,
                             .table = table_of(v)};
    tsh_tensor *x = cv_tensor(run, "x", 2, TSH_REPLICATED, v->sequence ? TSH_SHARD(0) : TSH_REPLICATED, true);
    if (!x || !tshi_check_ok(run->rank, tsh_mlp_create(run->model, &config, &layer))) return;
    bool good = true;
    for (int i = 0; i < TSH_MLP_PARTS && good; i++) {
        good = load(run, tsh_linear_weight(tsh_mlp_linear(layer, (tsh_mlp_part)i)), weights[i], 0);
    }
    if (good) {
        tsh_tensor *y = tsh_mlp_forward(run->tape, layer, x);
        cv_compare(run, "y", y);
        cv_backward(run, y, "dy");
        cv_compare_grad(run, "dx", x);
        for (int i = 0; i < TSH_MLP_PARTS; i++) {
            cv_compare_grad(run, gradients[i], tsh_linear_weight(tsh_mlp_linear(layer, (tsh_mlp_part)i)));
        }
    }
    tsh_tape_reset(run->tape);
    tsh_mlp_destroy(layer);
}

const cv_sharding cv_gated_mlp[] = {{"dense", run_gated_mlp, &dense, NULL, 1},
                                    {"column, row", run_gated_mlp, &split, NULL, 1},
                                    {"sequence parallel", run_gated_mlp, &sequence, NULL, 1},
                                    {0}};

/* --- a small GPT -------------------------------------------------------------------------------------------------- */

enum { BLOCKS = 2 };

typedef struct model {
    tsh_embedding *tokens, *positions;
    tsh_block *blocks[BLOCKS];
    tsh_norm *norm;
    tsh_tensor *ids, *places, *target;
    tsh_parameters *list;
    int64_t batch, length, vocabulary;
} model;

/* The parameters of a block in the order of the list, as parts of equal size of the file's tensors. */
static const struct {
    const char *name;
    int part;
} block_files[] = {{"ln1_g", 0}, {"ln1_b", 0}, {"qkv_w", 0},  {"qkv_b", 0},  {"qkv_w", 1}, {"qkv_b", 1},
                   {"qkv_w", 2}, {"qkv_b", 2}, {"proj_w", 0}, {"proj_b", 0}, {"ln2_g", 0}, {"ln2_b", 0},
                   {"fc_w", 0},  {"fc_b", 0},  {"out_w", 0},  {"out_b", 0}};

enum { OF_BLOCK = sizeof block_files / sizeof block_files[0] };

/* Parameter i of the list in the file, and which part of it. */
static int file_of(int i, const char *prefix, char name[TSHI_VECTOR_NAME]) {
    static const char *const ends[] = {"lnf_g", "lnf_b"};
    int of_blocks = i - 2, after = of_blocks - BLOCKS * OF_BLOCK;
    if (i < 2 || after >= 0) {
        snprintf(name, TSHI_VECTOR_NAME, "%s%s", prefix, i == 0 ? "wte" : i == 1 ? "wpe" : ends[after]);
        return 0;
    }
    int k = of_blocks % OF_BLOCK;
    snprintf(name, TSHI_VECTOR_NAME, "%sh%d_%s", prefix, of_blocks / OF_BLOCK, block_files[k].name);
    return block_files[k].part;
}

static int64_t elements_of(const tsh_tensor *t) {
    int64_t count = 1;
    for (int d = 0; d < tsh_tensor_ndim(t); d++) count *= tsh_tensor_shape(t)[d];
    return count;
}

static tsh_embedding *make_table(cv_run *run, const char *name, tsh_sharding shard, bool sequence_parallel) {
    const tshi_vector *v = cv_vector(run, name, 2);
    tsh_embedding *table = NULL;
    if (!v) return NULL;
    tsh_embedding_config config = {.num_embeddings = v->shape[0],
                                   .embedding_dim = v->shape[1],
                                   .shard = shard,
                                   .sequence_parallel = sequence_parallel,
                                   .dtype = run->dtype};
    tshi_check_ok(run->rank, tsh_embedding_create(run->model, &config, &table));
    return table;
}

static bool make_blocks(cv_run *run, const variant *v, model *m) {
    const tshi_vector *table = cv_vector(run, "wte", 2), *up = cv_vector(run, "h0_fc_w", 2);
    if (!table || !up) return false;
    m->vocabulary = table->shape[0];
    tsh_block_config config = {.embed = table->shape[1],
                               .sequence_parallel = v->sequence,
                               .dtype = run->dtype,
                               .norm = {.bias = true, .eps = cv_scalar(run, "ln_eps")},
                               .attention = {.causal = true, .bias = true, .out_bias = true},
                               .mlp = {.activation = TSH_ACTIVATION_GELU_TANH, .bias = true},
                               .table = table_of(v)};
    const tshi_vector *heads = cv_vector(run, "n_head", 0);
    if (!heads) return false;
    config.attention.heads = heads->integers[0];
    config.mlp.hidden = up->shape[0];
    tsh_norm_config norm = config.norm;
    norm.features = config.embed;
    norm.dtype = run->dtype;
    for (int i = 0; i < BLOCKS; i++) tshi_check_ok(run->rank, tsh_block_create(run->model, &config, &m->blocks[i]));
    return tshi_check_ok(run->rank, tsh_norm_create(run->model, &norm, &m->norm)) && !run->rank->failed;
}

static tsh_tensor *integers(cv_run *run, int64_t count, const int64_t *values, tsh_layout model_layout) {
    tsh_tensor *t = NULL;
    tsh_tensor_config config = {TSH_INT64, 1, {count}, {TSH_SHARD_INIT(0), model_layout}};
    if (!tshi_check_ok(run->rank, tsh_tensor_create(run->mesh, &config, &t))) return NULL;
    run->tensors[run->tensor_count++] = t;
    return tshi_check_ok(run->rank, tsh_tensor_write_whole(t, values)) ? t : NULL;
}

/* Tokens one after another; positions are laid out as the activations to which they are added. */
static bool make_ids(cv_run *run, const variant *v, model *m) {
    const tshi_vector *ids = cv_vector(run, "idx", 2), *target = cv_vector(run, "target", 2);
    int64_t places[64];
    if (!ids || !target || !tshi_check(run->rank, ids->count <= 64, "too many tokens")) return false;
    m->batch = ids->shape[0];
    m->length = ids->shape[1];
    for (int64_t i = 0; i < ids->count; i++) places[i] = i % m->length;
    m->ids = integers(run, ids->count, ids->integers, TSH_REPLICATED);
    m->target = integers(run, ids->count, target->integers, TSH_REPLICATED);
    m->places = integers(run, ids->count, places, v->sequence ? TSH_SHARD(0) : TSH_REPLICATED);
    return m->ids && m->target && m->places;
}

static bool make_model(cv_run *run, const variant *v, model *m) {
    char name[TSHI_VECTOR_NAME];
    m->tokens = make_table(run, "wte", v->dense ? TSH_DENSE : TSH_ROW, v->sequence);
    m->positions = make_table(run, "wpe", TSH_DENSE, false);
    if (!m->tokens || !m->positions || !make_blocks(run, v, m) || !make_ids(run, v, m)) return false;
    tshi_check_ok(run->rank, tsh_parameters_create(run->rank->world, &m->list));
    tshi_check_ok(run->rank, tsh_embedding_register(m->tokens, m->list, "wte"));
    tshi_check_ok(run->rank, tsh_embedding_register(m->positions, m->list, "wpe"));
    for (int i = 0; i < BLOCKS; i++) {
        snprintf(name, sizeof name, "h.%d", i);
        tshi_check_ok(run->rank, tsh_block_register(m->blocks[i], m->list, name));
    }
    tshi_check_ok(run->rank, tsh_norm_register(m->norm, m->list, "lnf"));
    for (int i = 0; i < tsh_parameters_count(m->list); i++) {
        tsh_tensor *p = tsh_parameters_tensor(m->list, i);
        int part = file_of(i, "", name);
        if (!load(run, p, name, part * elements_of(p))) return false;
    }
    return !run->rank->failed;
}

static void destroy_model(model *m) {
    tsh_parameters_destroy(m->list);
    tsh_embedding_destroy(m->tokens);
    tsh_embedding_destroy(m->positions);
    for (int i = 0; i < BLOCKS; i++) tsh_block_destroy(m->blocks[i]);
    tsh_norm_destroy(m->norm);
}

static tsh_tensor *logits_of(cv_run *run, const model *m) {
    tsh_sequences rows = {.batch = m->batch};
    tsh_tensor *x = tsh_embedding_forward(run->tape, m->tokens, m->ids);
    x = tsh_add(run->tape, x, tsh_embedding_forward(run->tape, m->positions, m->places));
    for (int i = 0; i < BLOCKS; i++) x = tsh_block_forward(run->tape, m->blocks[i], x, &rows);
    return tsh_embedding_project(run->tape, m->tokens, tsh_norm_forward(run->tape, m->norm, x));
}

static void compare_parameters(cv_run *run, const model *m, const char *prefix, bool gradients) {
    char name[TSHI_VECTOR_NAME];
    for (int i = 0; i < tsh_parameters_count(m->list); i++) {
        const tsh_tensor *p = tsh_parameters_tensor(m->list, i);
        int part = file_of(i, prefix, name);
        cv_compare_from(run, name, part * elements_of(p), gradients ? tsh_tensor_grad(p) : p);
    }
}

/* AdamW makes steps of rounding errors where a gradient is zero, as that of the keys' bias: parameters are compared in
 * float64 alone. */
static void train(cv_run *run, const model *m, tsh_optimizer *optimizer) {
    const tshi_vector *losses = cv_vector(run, "losses", 1);
    for (int64_t s = 0; losses && s < losses->count && !run->rank->failed; s++) {
        tsh_optimizer_zero_grad(optimizer);
        tsh_tensor *logits = logits_of(run, m);
        tsh_tensor *loss = tsh_cross_entropy(run->tape, logits, m->target, NULL);
        if (!tshi_check(run->rank, loss, "%s", tsh_tape_message(run->tape))) return;
        cv_compare_value(run, "losses", s, tsh_tensor_item(loss));
        if (s == 0) {
            int64_t shape[] = {m->batch, m->length, m->vocabulary};
            cv_compare(run, "logits0", tsh_reshape(run->tape, logits, 3, shape));
        }
        tshi_check_ok(run->rank, tsh_backward(run->tape, loss));
        if (s == 0) compare_parameters(run, m, "grad0_", true);
        tshi_check_ok(run->rank, tsh_optimizer_step(optimizer));
        tshi_check_ok(run->rank, tsh_tape_reset(run->tape));
    }
    if (run->dtype == TSH_FLOAT64) compare_parameters(run, m, "final_", false);
}

static void run_tiny_gpt(cv_run *run, const void *user) {
    model m = {0};
    tsh_optimizer *optimizer = NULL;
    if (make_model(run, user, &m)) {
        tsh_adamw_config config = {.lr = cv_scalar(run, "lr"),
                                   .beta1 = cv_scalar(run, "beta1"),
                                   .beta2 = cv_scalar(run, "beta2"),
                                   .eps = cv_scalar(run, "eps"),
                                   .weight_decay = cv_scalar(run, "weight_decay")};
        if (tshi_check_ok(run->rank, tsh_adamw_create(m.list, &config, &optimizer))) train(run, &m, optimizer);
    }
    tsh_tape_reset(run->tape);
    tsh_optimizer_destroy(optimizer);
    destroy_model(&m);
}

const cv_sharding cv_tiny_gpt[] = {{"dense", run_tiny_gpt, &dense, NULL, 1},
                                   {"heads, vocabulary", run_tiny_gpt, &split, NULL, 1},
                                   {"sequence parallel", run_tiny_gpt, &sequence, NULL, 1},
                                   {"2 x heads, batch split", run_tiny_gpt, &split, NULL, 2},
                                   {"2 x sequence, batch split", run_tiny_gpt, &sequence, NULL, 2},
                                   {0}};
