/* A transformer block: self-attention and an MLP, each with a norm and a residual connection. */
#include "layers/layers.h"

struct tsh_block {
    tsh_world *world;
    bool post_norm, recompute, offload;
    double dropout;
    tsh_norm *norm[TSH_BLOCK_PARTS]; /* at the indices of norms */
    tsh_self_attention *attention;
    tsh_mlp *mlp; /* or experts */
    tsh_experts *experts;
    char names[TSH_BLOCK_PARTS][TSHI_LAYER_NAME];
};

static const char *const part_names[TSH_BLOCK_PARTS] = {"input_layernorm", "self_attn", "post_attention_layernorm",
                                                        "mlp"};

/* The parts' configurations must not set the fields that the block sets for all. */
static tsh_status check_block_config(const tsh_block_config *c) {
    if (!c) return tshi_fail(TSH_ERR_ARGUMENT, "block_create: a configuration is required");
    bool sizes = c->norm.features || c->attention.embed || c->mlp.embed || c->experts.embed;
    bool dtypes = c->norm.dtype || c->attention.dtype || c->mlp.dtype || c->experts.dtype;
    bool sharding = c->attention.sequence_parallel || c->mlp.sequence_parallel || c->attention.table || c->mlp.table ||
                    c->attention.name || c->mlp.name;
    if (sizes || dtypes || sharding) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "block_create: norm, attention, mlp and experts must not set features, embed, dtype, "
                         "sequence_parallel, table or name; the block's fields apply");
    }
    if (c->offload && !c->recompute)
        return tshi_fail(TSH_ERR_ARGUMENT, "block_create: offload is set, which goes with recompute");
    if (c->dropout >= 0 && c->dropout < 1) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "block_create: dropout=%g, must be in [0, 1)", c->dropout);
}

static tsh_status make_norms(tsh_group *group, const tsh_block_config *c, tsh_block *block) {
    tsh_norm_config norm = c->norm;
    norm.features = c->embed;
    norm.dtype = c->dtype;
    tsh_status status = tsh_norm_create(group, &norm, &block->norm[TSH_BLOCK_ATTENTION_NORM]);
    return status == TSH_OK ? tsh_norm_create(group, &norm, &block->norm[TSH_BLOCK_MLP_NORM]) : status;
}

/* The second half. */
static tsh_status make_features(tsh_group *group, const tsh_block_config *c, const tsh_mlp_config *mlp,
                                tsh_block *block) {
    tsh_experts_config experts = c->experts;
    if (experts.experts == 0) return tsh_mlp_create(group, mlp, &block->mlp);
    experts.embed = c->embed;
    experts.dtype = c->dtype;
    return tsh_experts_create(group, &experts, &block->experts);
}

static tsh_status make_halves(tsh_group *group, const tsh_block_config *c, tsh_block *block) {
    char name[TSHI_LAYER_NAME];
    tsh_self_attention_config attention = c->attention;
    tsh_mlp_config mlp = c->mlp;
    attention.embed = mlp.embed = c->embed;
    attention.dtype = mlp.dtype = c->dtype;
    attention.sequence_parallel = mlp.sequence_parallel = c->sequence_parallel;
    attention.table = mlp.table = c->table;
    attention.name = mlp.name = name;
    tsh_status status = tshi_layer_name(c->name, block->names[TSH_BLOCK_ATTENTION], name);
    if (status == TSH_OK) status = tsh_self_attention_create(group, &attention, &block->attention);
    if (status == TSH_OK) status = tshi_layer_name(c->name, block->names[TSH_BLOCK_MLP], name);
    return status == TSH_OK ? make_features(group, c, &mlp, block) : status;
}

tsh_status tsh_block_create(tsh_group *group, const tsh_block_config *config, tsh_block **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "block_create: out is NULL");
    *out = NULL;
    if (!group) return tshi_group_missing("block_create");
    tsh_status status = check_block_config(config);
    if (status != TSH_OK) return status;
    tsh_world *world = tsh_group_world(group);
    tsh_block *block = tshi_calloc(&world->allocator, 1, sizeof *block);
    if (!block) return TSH_ERR_MEMORY;
    block->world = world;
    block->post_norm = config->post_norm;
    block->recompute = config->recompute;
    block->offload = config->offload;
    block->dropout = config->dropout;
    for (int i = 0; i < TSH_BLOCK_PARTS && status == TSH_OK; i++) {
        status = tshi_layer_name(NULL, config->names[i] ? config->names[i] : part_names[i], block->names[i]);
    }
    if (status == TSH_OK) status = make_norms(group, config, block);
    if (status == TSH_OK) status = make_halves(group, config, block);
    if (status == TSH_OK)
        *out = block;
    else
        tsh_block_destroy(block);
    return status;
}

void tsh_block_destroy(tsh_block *block) {
    if (!block) return;
    for (int i = 0; i < TSH_BLOCK_PARTS; i++) tsh_norm_destroy(block->norm[i]);
    tsh_self_attention_destroy(block->attention);
    tsh_mlp_destroy(block->mlp);
    tsh_experts_destroy(block->experts);
    tshi_free(&block->world->allocator, block);
}

/* One half, with its norm and residual connection. */
static tsh_tensor *half_forward(tsh_tape *tape, const tsh_block *block, tsh_block_part part, tsh_tensor *x,
                                const tsh_sequences *s) {
    tsh_norm *norm = block->norm[part == TSH_BLOCK_ATTENTION ? TSH_BLOCK_ATTENTION_NORM : TSH_BLOCK_MLP_NORM];
    tsh_tensor *h = block->post_norm ? x : tsh_norm_forward(tape, norm, x);
    if (part == TSH_BLOCK_ATTENTION)
        h = tsh_self_attention_forward(tape, block->attention, h, s);
    else
        h = block->experts ? tsh_experts_forward(tape, block->experts, h) : tsh_mlp_forward(tape, block->mlp, h);
    if (block->dropout > 0) h = tsh_dropout(tape, h, block->dropout);
    h = tsh_add(tape, x, h);
    return block->post_norm ? tsh_norm_forward(tape, norm, h) : h;
}

tsh_tensor *tsh_block_forward(tsh_tape *tape, tsh_block *block, tsh_tensor *x, const tsh_sequences *sequences) {
    if (!tshi_layer_ready(tape, "block_forward", block, x)) return NULL;
    tsh_mark start = tsh_tape_mark(tape);
    tsh_tensor *h = half_forward(tape, block, TSH_BLOCK_ATTENTION, x, sequences);
    h = tsh_tape_free_since(tape, start, h);
    h = half_forward(tape, block, TSH_BLOCK_MLP, h, sequences);
    if (!block->recompute) return tsh_tape_free_since(tape, start, h);
    return tsh_tape_recompute_since_with(tape, start, h, &(tsh_recompute_config){.offload = block->offload});
}

tsh_self_attention *tsh_block_attention(const tsh_block *block) {
    return block ? block->attention : NULL;
}

tsh_mlp *tsh_block_mlp(const tsh_block *block) {
    return block ? block->mlp : NULL;
}

tsh_experts *tsh_block_experts(const tsh_block *block) {
    return block ? block->experts : NULL;
}

tsh_norm *tsh_block_norm(const tsh_block *block, tsh_block_part part) {
    return block && (unsigned)part < TSH_BLOCK_PARTS ? block->norm[part] : NULL;
}

tsh_status tsh_block_register(const tsh_block *block, tsh_parameters *list, const char *name) {
    char full[TSH_BLOCK_PARTS][TSHI_LAYER_NAME];
    tsh_status status = TSH_OK;
    if (!block || !name) return tshi_fail(TSH_ERR_ARGUMENT, "block_register: a block and a name are required");
    for (int i = 0; i < TSH_BLOCK_PARTS && status == TSH_OK; i++) {
        status = tshi_layer_name(name, block->names[i], full[i]);
    }
    if (status == TSH_OK)
        status = tsh_norm_register(block->norm[TSH_BLOCK_ATTENTION_NORM], list, full[TSH_BLOCK_ATTENTION_NORM]);
    if (status == TSH_OK) status = tsh_self_attention_register(block->attention, list, full[TSH_BLOCK_ATTENTION]);
    if (status == TSH_OK) status = tsh_norm_register(block->norm[TSH_BLOCK_MLP_NORM], list, full[TSH_BLOCK_MLP_NORM]);
    if (status != TSH_OK) return status;
    return block->experts ? tsh_experts_register(block->experts, list, full[TSH_BLOCK_MLP])
                          : tsh_mlp_register(block->mlp, list, full[TSH_BLOCK_MLP]);
}

tsh_status tsh_block_adapt(tsh_block *block, const tsh_lora_config *config, tsh_parameters *list, const char *name) {
    char attention[TSHI_LAYER_NAME], mlp[TSHI_LAYER_NAME];
    if (!block) return tshi_fail(TSH_ERR_ARGUMENT, "block_adapt: a block is required");
    tsh_status status = tshi_layer_name(name, block->names[TSH_BLOCK_ATTENTION], attention);
    if (status == TSH_OK) status = tshi_layer_name(name, block->names[TSH_BLOCK_MLP], mlp);
    if (status == TSH_OK && block->experts) status = tshi_experts_check_targets(block->experts, config, mlp);
    if (status == TSH_OK) status = tsh_self_attention_adapt(block->attention, config, list, attention);
    return status == TSH_OK && block->mlp ? tsh_mlp_adapt(block->mlp, config, list, mlp) : status;
}

/* Parts that do not exist are skipped. */
static tsh_status merge_part(tsh_linear *part, bool merged) {
    return part ? tsh_linear_merge(part, merged) : TSH_OK;
}

tsh_status tsh_block_merge(tsh_block *block, bool merged) {
    tsh_status status = TSH_OK;
    if (!block) return tshi_fail(TSH_ERR_ARGUMENT, "block_merge: a block is required");
    for (tsh_attention_part i = TSH_ATTENTION_QUERY; i < TSH_ATTENTION_PARTS && status == TSH_OK; i++)
        status = merge_part(tsh_self_attention_linear(block->attention, i), merged);
    for (tsh_mlp_part i = TSH_MLP_GATE; i < TSH_MLP_PARTS && status == TSH_OK; i++)
        status = merge_part(tsh_mlp_linear(block->mlp, i), merged);
    return status;
}
