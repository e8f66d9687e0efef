/* Layers of transformers. Each lives for one call: the tape keeps what a step has made of it. */
#include "fuzz.h"

static const tsh_sharding_rule tables[][3] = {
    {{"*_proj", "column_gather"}, {"*.*", "dense"}, {NULL, NULL}},
    {{"layer.*.k_proj", "dense"}, {"layer.*.*", "row_sequence"}, {NULL, NULL}},
    {{"*", "diagonal"}, {NULL, NULL}}};

static const tsh_sharding_rule *table(fuzz *f) {
    return fuzz_chance(f, 80) ? NULL : tables[fuzz_chance(f, 10) ? 2 : fuzz_below(f, 2)];
}

static tsh_group *group(fuzz *f) {
    return tsh_mesh_axis_group(fuzz_mesh(f), fuzz_below(f, 2));
}

static int64_t size(fuzz *f, int usual) {
    return fuzz_chance(f, 90) ? usual : fuzz_index(f, 9);
}

static const char *name(fuzz *f) {
    static const char *const names[] = {"layer.1", "layer.2", "layer.3", "", NULL};
    return names[fuzz_below(f, fuzz_chance(f, 90) ? 3 : 5)];
}

static tsh_parameters *list(const fuzz *f) {
    return f->deviates ? NULL : f->slots[FUZZ_LIST][0].object;
}

/* What a create has given: a layer, or words. */
static void check(fuzz *f, const char *what, tsh_status status, const void *layer) {
    if ((status == TSH_OK) != (layer != NULL)) fuzz_wrong(f, "%s: a status and a layer that do not fit", what);
    if (!layer && !tsh_error_message()[0]) fuzz_wrong(f, "%s: NULL without words", what);
}

static tsh_lora_config lora(fuzz *f) {
    static const char *const targets[] = {"q_proj", "*_proj", "mlp.up_proj", "none", NULL};
    return (tsh_lora_config){.rank = fuzz_chance(f, 90) ? 1 + fuzz_below(f, 3) : fuzz_index(f, 9),
                             .alpha = fuzz_chance(f, 80) ? 0 : fuzz_number(f),
                             .rank_stabilized = fuzz_chance(f, 30),
                             .dropout = fuzz_chance(f, 70)   ? 0
                                        : fuzz_chance(f, 90) ? 0.5
                                                             : fuzz_number(f),
                             .targets = fuzz_chance(f, 50) ? NULL : targets + fuzz_below(f, 5)};
}

/* The parameters of adapters seldom come into the list: registering the layer appends them, too. */
static tsh_parameters *list_of_adapters(fuzz *f) {
    return fuzz_chance(f, 20) ? list(f) : NULL;
}

static void adapt_linear(fuzz *f, tsh_linear *layer) {
    const tsh_lora_config config = lora(f);
    tsh_status status = tsh_linear_adapt(layer, fuzz_chance(f, 3) ? NULL : &config, list_of_adapters(f), name(f));
    if (!tsh_linear_lora_a(layer) != !tsh_linear_lora_b(layer)) fuzz_wrong(f, "linear_adapt: half an adapter");
    if (status == TSH_OK && !tsh_linear_lora_a(layer)) fuzz_wrong(f, "linear_adapt: no adapter");
    if (fuzz_chance(f, 30)) tsh_linear_merge(layer, fuzz_chance(f, 70));
}

static void norm(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_norm *layer = NULL;
    tsh_norm_config config = {.features = size(f, 4),
                              .kind = (tsh_norm_kind)fuzz_index(f, 2),
                              .eps = fuzz_chance(f, 90) ? 0 : fuzz_number(f),
                              .no_weight = fuzz_chance(f, 20),
                              .dtype = fuzz_dtype(f)};
    (void)function;
    config.bias = fuzz_chance(f, config.kind == TSH_LAYER_NORM && !config.no_weight ? 50 : 2);
    tsh_status status = tsh_norm_create(group(f), fuzz_chance(f, 3) ? NULL : &config, &layer);
    check(f, "norm_create", status, layer);
    tsh_tensor *x = tsh_norm_weight(layer) ? fuzz_tensor(f) : fuzz_tensor_like(f, tsh_norm_bias(layer));
    fuzz_value(f, tape, tsh_norm_forward(tape, layer, x));
    tsh_norm_register(layer, list(f), name(f));
    tsh_norm_destroy(layer);
}

static void mlp(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_mlp *layer = NULL;
    tsh_mlp_config config = {.embed = size(f, 4),
                             .hidden = size(f, 5),
                             .gated = fuzz_chance(f, 50),
                             .activation = (tsh_activation)fuzz_index(f, 5),
                             .bias = fuzz_chance(f, 50),
                             .sequence_parallel = fuzz_chance(f, 30),
                             .dtype = fuzz_dtype(f),
                             .table = table(f),
                             .name = fuzz_chance(f, 50) ? NULL : "layer.1"};
    (void)function;
    tsh_status status = tsh_mlp_create(group(f), fuzz_chance(f, 3) ? NULL : &config, &layer);
    check(f, "mlp_create", status, layer);
    const tsh_lora_config adapters = lora(f);
    if (fuzz_chance(f, 30)) adapt_linear(f, tsh_mlp_linear(layer, (tsh_mlp_part)fuzz_index(f, 3)));
    if (fuzz_chance(f, 30)) tsh_mlp_adapt(layer, &adapters, list_of_adapters(f), name(f));
    tsh_tensor *x = fuzz_tensor_like(f, tsh_linear_weight(tsh_mlp_linear(layer, (tsh_mlp_part)fuzz_index(f, 3))));
    fuzz_value(f, tape, tsh_mlp_forward(tape, layer, x));
    tsh_mlp_register(layer, list(f), name(f));
    tsh_mlp_destroy(layer);
}

static void experts(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_experts *layer = NULL;
    tsh_experts_config config = {.embed = size(f, 4),
                                 .hidden = size(f, 3),
                                 .experts = size(f, 3),
                                 .router = {.top_k = size(f, 2),
                                            .score = (tsh_router_score)fuzz_index(f, 3),
                                            .renormalize = fuzz_chance(f, 50),
                                            .aux_loss = fuzz_chance(f, 50)},
                                 .choice_bias = fuzz_chance(f, 30),
                                 .capacity = fuzz_chance(f, 70) ? 0 : fuzz_index(f, 4) - 0.5,
                                 .expert_group = fuzz_chance(f, 60) ? NULL : group(f),
                                 .dtype = fuzz_dtype(f)};
    (void)function;
    tsh_status status = tsh_experts_create(group(f), fuzz_chance(f, 3) ? NULL : &config, &layer);
    check(f, "experts_create", status, layer);
    tsh_tensor *x = fuzz_tensor_like(f, tsh_experts_weight(layer, (tsh_experts_part)fuzz_index(f, 5)));
    fuzz_value(f, tape, tsh_experts_forward(tape, layer, x));
    if (fuzz_chance(f, 30)) tsh_experts_update_bias(tape, layer, 0.5);
    if (tsh_experts_loss(layer) && !tsh_experts_chosen(layer)) fuzz_wrong(f, "experts: a loss without experts");
    tsh_experts_register(layer, list(f), name(f));
    tsh_experts_destroy(layer);
}

static tsh_self_attention_config attention_config(fuzz *f) {
    return (tsh_self_attention_config){.heads = size(f, 2),
                                       .kv_heads = fuzz_chance(f, 60) ? 0 : fuzz_index(f, 3),
                                       .head_dim = fuzz_chance(f, 60) ? 0 : 2 * (int64_t)fuzz_index(f, 3),
                                       .causal = fuzz_chance(f, 50),
                                       .context = (tsh_context)(fuzz_chance(f, 60) ? 0 : fuzz_index(f, 5)),
                                       .dropout = fuzz_chance(f, 90) ? 0 : fuzz_number(f),
                                       .rotary = fuzz_chance(f, 30),
                                       .bias = fuzz_chance(f, 50),
                                       .out_bias = fuzz_chance(f, 50)};
}

static tsh_sequences sequences(fuzz *f) {
    return (tsh_sequences){.batch = fuzz_chance(f, 70) ? 1 : fuzz_index(f, 4),
                           .positions = fuzz_chance(f, 40) ? fuzz_ids(f) : NULL,
                           .lengths = fuzz_chance(f, 10) ? fuzz_ids(f) : NULL,
                           .documents = fuzz_chance(f, 10) ? fuzz_ids(f) : NULL};
}

static void attention(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_self_attention *layer = NULL;
    tsh_self_attention_config config = attention_config(f);
    tsh_sequences rows = sequences(f);
    (void)function;
    config.embed = size(f, 4);
    config.dtype = fuzz_dtype(f);
    config.sequence_parallel = fuzz_chance(f, 30);
    config.table = table(f);
    config.name = fuzz_chance(f, 50) ? NULL : "layer.1";
    tsh_status status = tsh_self_attention_create(group(f), fuzz_chance(f, 3) ? NULL : &config, &layer);
    check(f, "self_attention_create", status, layer);
    const tsh_lora_config adapters = lora(f);
    if (fuzz_chance(f, 30)) tsh_self_attention_adapt(layer, &adapters, list_of_adapters(f), name(f));
    tsh_kv_cache_config cached = tsh_self_attention_cache(layer, rows.batch, 4);
    bool with_cache = fuzz_chance(f, 20) && tsh_kv_cache_create(fuzz_mesh(f), &cached, &rows.cache) == TSH_OK;
    tsh_tensor *x =
        fuzz_tensor_like(f, tsh_linear_weight(tsh_self_attention_linear(layer, (tsh_attention_part)fuzz_index(f, 4))));
    fuzz_value(f, tape, tsh_self_attention_forward(tape, layer, x, fuzz_chance(f, 3) ? NULL : &rows));
    if (with_cache) tsh_kv_cache_destroy(rows.cache);
    tsh_self_attention_register(layer, list(f), name(f));
    tsh_self_attention_destroy(layer);
}

static void block(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_block *layer = NULL;
    tsh_sequences rows = sequences(f);
    tsh_block_config config = {.embed = size(f, 4),
                               .post_norm = fuzz_chance(f, 50),
                               .dropout = fuzz_chance(f, 80) ? 0 : fuzz_number(f),
                               .sequence_parallel = fuzz_chance(f, 30),
                               .recompute = fuzz_chance(f, 50),
                               .dtype = fuzz_dtype(f),
                               .norm = {.kind = (tsh_norm_kind)fuzz_below(f, 2)},
                               .attention = attention_config(f),
                               .mlp = {.hidden = size(f, 5), .gated = fuzz_chance(f, 50)},
                               .table = table(f)};
    (void)function;
    tsh_status status = tsh_block_create(group(f), fuzz_chance(f, 3) ? NULL : &config, &layer);
    check(f, "block_create", status, layer);
    const tsh_lora_config adapters = lora(f);
    if (fuzz_chance(f, 30)) tsh_block_adapt(layer, &adapters, list_of_adapters(f), name(f));
    if (fuzz_chance(f, 30)) tsh_block_merge(layer, fuzz_chance(f, 70));
    tsh_linear *query = tsh_self_attention_linear(tsh_block_attention(layer), TSH_ATTENTION_QUERY);
    bool parts =
        tsh_block_mlp(layer) && !tsh_block_experts(layer) && tsh_block_norm(layer, TSH_BLOCK_MLP_NORM) && query;
    if (parts != (layer != NULL)) fuzz_wrong(f, "a block without its parts");
    fuzz_value(f, tape, tsh_block_forward(tape, layer, fuzz_tensor_like(f, tsh_linear_weight(query)), &rows));
    tsh_block_register(layer, list(f), name(f));
    tsh_block_destroy(layer);
}

static void cache(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *k = fuzz_tensor(f), *v = fuzz_tensor_like(f, k), *q = fuzz_tensor_like(f, k);
    tsh_kv_cache *made = NULL;
    tsh_kv_cache_config config = {.batch = size(f, 2), .positions = size(f, 3), .kv_heads = size(f, 4)};
    const int64_t *shape = tsh_tensor_shape(k);
    (void)function;
    config.dtype = fuzz_dtype(f);
    config.head_dim = size(f, 2);
    if (tsh_tensor_ndim(k) == 4 && fuzz_chance(f, 80)) {
        config.batch = shape[0], config.kv_heads = shape[2], config.head_dim = shape[3];
        config.dtype = tsh_tensor_dtype(k);
    }
    config.layout[0] = fuzz_layout(f);
    tsh_status status = tsh_kv_cache_create(k ? tsh_tensor_mesh(k) : fuzz_mesh(f), &config, &made);
    check(f, "kv_cache_create", status, made);
    bool appended = tsh_kv_cache_append(tape, made, k, v) == TSH_OK;
    if (!appended && tape && tsh_tape_status(tape) == TSH_OK) fuzz_wrong(f, "kv_cache_append: no failure of the tape");
    if (!tsh_kv_cache_keys(made) != !made || !tsh_kv_cache_values(made) != !made) fuzz_wrong(f, "kv_cache_keys");
    if (fuzz_chance(f, 30)) tsh_kv_cache_truncate(made, fuzz_index(f, 3) - 1, fuzz_index(f, 3));
    int64_t longest = tsh_kv_cache_length(made);
    if (tsh_kv_cache_length_of(made, 0) > longest) fuzz_wrong(f, "kv_cache_length");
    if (tsh_kv_cache_lengths(made) && config.batch < 2) fuzz_wrong(f, "kv_cache_lengths of one sequence");
    fuzz_value(f, tape, tsh_attention_cached(tape, made, q, k, v, NULL));
    tsh_kv_cache_destroy(made);
}

static void sample(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *logits = fuzz_tensor(f);
    tsh_sample_config config = {.temperature = fuzz_number(f), .top_k = fuzz_index(f, 4), .position = size(f, 9)};
    (void)function;
    if (fuzz_chance(f, 50)) config.temperature = 1;
    config.top_p = fuzz_chance(f, 50) ? 0.7 : 0;
    tsh_tensor *ids = tsh_sample(tape, logits, fuzz_chance(f, 10) ? NULL : &config);
    if (ids && tsh_tensor_dtype(ids) != TSH_INT64) fuzz_wrong(f, "sample: ids are no int64");
    fuzz_value(f, tape, ids);
}

static void project(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_embedding *layer = fuzz_pick(f, FUZZ_EMBEDDING);
    const tsh_embedding_use use = (tsh_embedding_use)fuzz_below(f, 3);
    const tsh_lora_config config = lora(f);
    (void)function;
    if (fuzz_chance(f, 10)) {
        tsh_status status = tsh_embedding_adapt(layer, use, &config, list_of_adapters(f), name(f));
        bool made = tsh_embedding_lora_a(layer, use) != NULL;
        if (made != (tsh_embedding_lora_b(layer, use) != NULL)) fuzz_wrong(f, "embedding_adapt: half an adapter");
        if (status == TSH_OK && !made) fuzz_wrong(f, "embedding_adapt: no adapter");
    }
    fuzz_value(f, tape, tsh_embedding_project(tape, layer, fuzz_tensor_like(f, tsh_embedding_weight(layer))));
}

static void sharding(fuzz *f, void (*function)(void)) {
    tsh_sharding_choice choice;
    (void)function;
    bool wrong = tsh_sharding_find(table(f), "layer.1.k_proj", fuzz_chance(f, 3) ? NULL : &choice) != TSH_OK;
    wrong = tsh_sharding_check(table(f), fuzz_pick(f, FUZZ_LIST)) != TSH_OK || wrong;
    if (wrong && !tsh_error_message()[0]) fuzz_wrong(f, "sharding: a failure without words");
}

const fuzz_call fuzz_layer_calls[] = {
    {"tsh_norm_create tsh_norm_destroy tsh_norm_forward tsh_norm_weight tsh_norm_bias tsh_norm_register", norm, NULL,
     4},
    {"tsh_mlp_create tsh_mlp_destroy tsh_mlp_forward tsh_mlp_linear tsh_mlp_register tsh_mlp_adapt "
     "tsh_linear_adapt tsh_linear_merge tsh_linear_lora_a tsh_linear_lora_b",
     mlp, NULL, 4},
    {"tsh_experts_create tsh_experts_destroy tsh_experts_forward tsh_experts_loss tsh_experts_chosen "
     "tsh_experts_weight tsh_experts_register tsh_experts_update_bias",
     experts, NULL, 4},
    {"tsh_self_attention_create tsh_self_attention_destroy tsh_self_attention_forward tsh_self_attention_linear "
     "tsh_self_attention_cache tsh_self_attention_register tsh_self_attention_adapt",
     attention, NULL, 4},
    {"tsh_block_create tsh_block_destroy tsh_block_forward tsh_block_attention tsh_block_mlp tsh_block_norm "
     "tsh_block_experts "
     "tsh_block_register tsh_block_adapt tsh_block_merge",
     block, NULL, 4},
    {"tsh_kv_cache_create tsh_kv_cache_destroy tsh_kv_cache_append tsh_kv_cache_keys tsh_kv_cache_values "
     "tsh_kv_cache_length tsh_kv_cache_length_of tsh_kv_cache_lengths tsh_kv_cache_truncate tsh_attention_cached",
     cache, NULL, 3},
    {"tsh_sample", sample, NULL, 3},
    {"tsh_embedding_project tsh_embedding_adapt tsh_embedding_lora_a tsh_embedding_lora_b", project, NULL, 4},
    {"tsh_sharding_find tsh_sharding_check", sharding, NULL, 1},
    {NULL, NULL, NULL, 0},
};
