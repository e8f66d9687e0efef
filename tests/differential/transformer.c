#include "differential/transformer.h"

#include <string.h>

static const tsh_sharding_rule dense[] = {{"*", "dense"}, {NULL, NULL}};
static const tsh_sharding_rule by_name[] = {
    {"*.gate_proj", "colwise"}, {"*.up_proj", "column"}, {"*.down_proj", "row"}, {NULL, NULL}};

/* --- configurations ----------------------------------------------------------------------------------------------- */

static tsh_norm_config norm_config(const tshi_step *s) {
    int64_t flags = s->n[LAYER_FLAGS];
    bool rms = flags & FLAG_RMS, weight = s->call == CALL_BLOCK || flags & FLAG_WEIGHT;
    return (tsh_norm_config){.kind = rms ? TSH_RMS_NORM : TSH_LAYER_NORM,
                             .eps = 1e-2,
                             .bias = weight && !rms && flags & FLAG_BIAS,
                             .no_weight = !weight};
}

static tsh_mlp_config mlp_config(const tshi_step *s) {
    static const tsh_activation activations[] = {TSH_ACTIVATION_NONE, TSH_ACTIVATION_GELU, TSH_ACTIVATION_GELU_TANH,
                                                 TSH_ACTIVATION_SILU};
    return (tsh_mlp_config){.hidden = s->n[LAYER_OUT],
                            .gated = s->n[LAYER_FLAGS] & FLAG_GATED,
                            .bias = s->n[LAYER_FLAGS] & FLAG_BIAS,
                            .activation = activations[s->n[LAYER_ACTIVATION] % 4]};
}

static tsh_self_attention_config attention_config(const tshi_step *s) {
    int64_t flags = s->n[LAYER_FLAGS];
    return (tsh_self_attention_config){.heads = s->n[ATTENTION_HEADS],
                                       .kv_heads = s->n[ATTENTION_KV_HEADS],
                                       .head_dim = s->n[ATTENTION_HEAD_DIM],
                                       .causal = flags & FLAG_CAUSAL,
                                       .rotary = flags & FLAG_ROTARY,
                                       .dropout = s->f,
                                       .bias = flags & FLAG_BIAS,
                                       .out_bias = flags & FLAG_BIAS};
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static tsh_status open_norm(const tshi_program *p, const tshi_step *s, int64_t embed, tsh_group *group,
                            tshi_transformer *out) {
    tsh_norm_config config = norm_config(s);
    config.features = embed;
    config.dtype = p->dtype;
    tsh_status status = tsh_norm_create(group, &config, &out->norm);
    if (status != TSH_OK) return status;
    bool fits = !tsh_norm_weight(out->norm) == config.no_weight && !tsh_norm_bias(out->norm) == !config.bias;
    return fits ? TSH_OK : TSH_ERR_STATE;
}

static tsh_status open_mlp(const tshi_program *p, int k, int64_t embed, tsh_group *group, bool whole,
                           tshi_transformer *out) {
    const tshi_step *s = &p->step[k];
    char name[32];
    snprintf(name, sizeof name, "v%d", k);
    tsh_mlp_config config = mlp_config(s);
    config.embed = embed;
    config.dtype = p->dtype;
    config.sequence_parallel = !whole && s->n[LAYER_FLAGS] & FLAG_SEQUENCE;
    config.table = whole ? dense : s->salt % 2 ? by_name : NULL;
    config.name = name;
    tsh_status status = tsh_mlp_create(group, &config, &out->mlp);
    if (status != TSH_OK) return status;
    return !tsh_mlp_linear(out->mlp, TSH_MLP_GATE) == !config.gated ? TSH_OK : TSH_ERR_STATE;
}

static tsh_status open_attention(const tshi_program *p, const tshi_step *s, int64_t embed, tsh_group *group, bool whole,
                                 tshi_transformer *out) {
    tsh_self_attention_config config = attention_config(s);
    config.embed = embed;
    config.dtype = p->dtype;
    config.sequence_parallel = !whole && s->n[LAYER_FLAGS] & FLAG_SEQUENCE;
    config.table = whole ? dense : NULL;
    tsh_status status = tsh_self_attention_create(group, &config, &out->attention);
    if (status != TSH_OK) return status;
    tsh_kv_cache_config cache = tsh_self_attention_cache(out->attention, 2, 3);
    bool fits = cache.kv_heads == config.kv_heads && cache.head_dim == config.head_dim &&
                tsh_self_attention_linear(out->attention, TSH_ATTENTION_OUT);
    return fits ? TSH_OK : TSH_ERR_STATE;
}

static tsh_status open_block(const tshi_program *p, const tshi_step *s, int64_t embed, tsh_group *group, bool whole,
                             tshi_transformer *out) {
    tsh_block_config config = {.embed = embed,
                               .post_norm = s->n[LAYER_FLAGS] & FLAG_POST,
                               .dropout = s->f,
                               .sequence_parallel = !whole && s->n[LAYER_FLAGS] & FLAG_SEQUENCE,
                               .recompute = !whole && embed % 2,
                               .dtype = p->dtype,
                               .norm = norm_config(s),
                               .attention = attention_config(s),
                               .mlp = mlp_config(s),
                               .table = whole ? dense : NULL};
    tsh_status status = tsh_block_create(group, &config, &out->block);
    if (status != TSH_OK) return status;
    bool fits = tsh_block_attention(out->block) && tsh_block_mlp(out->block) &&
                tsh_block_norm(out->block, TSH_BLOCK_MLP_NORM) && !tsh_block_norm(out->block, TSH_BLOCK_MLP);
    return fits ? TSH_OK : TSH_ERR_STATE;
}

/* Every row of the table is for a layer of a gated MLP; one is for none of another. */
static tsh_status check_table(const tshi_step *s, int k, const tsh_parameters *list) {
    char name[32];
    tsh_sharding_choice choice;
    snprintf(name, sizeof name, "v%d.up_proj", k);
    tsh_status status = tsh_sharding_find(by_name, name, &choice);
    if (status != TSH_OK || choice.shard != TSH_COLUMN) return TSH_ERR_STATE;
    tsh_status wanted = s->n[LAYER_FLAGS] & FLAG_GATED ? TSH_OK : TSH_ERR_ARGUMENT;
    return tsh_sharding_check(by_name, list) == wanted ? TSH_OK : TSH_ERR_STATE;
}

tsh_status tshi_transformer_open(const tshi_program *p, int k, tsh_group *group, bool whole, tshi_transformer *out) {
    const tshi_step *s = &p->step[k];
    const tshi_dims *x = &p->step[s->in[0]].shape;
    int64_t embed = x->dim[x->ndim - 1];
    char name[32];
    tsh_status status;
    switch (s->call) {
    case CALL_NORM: status = open_norm(p, s, embed, group, out); break;
    case CALL_MLP: status = open_mlp(p, k, embed, group, whole, out); break;
    case CALL_SELF_ATTENTION: status = open_attention(p, s, embed, group, whole, out); break;
    case CALL_BLOCK: status = open_block(p, s, embed, group, whole, out); break;
    default: return TSH_OK;
    }
    snprintf(name, sizeof name, "v%d", k);
    if (status == TSH_OK) status = tsh_parameters_create(tsh_group_world(group), &out->own);
    if (status == TSH_OK) status = tshi_transformer_register(out, out->own, name);
    if (status == TSH_OK && tsh_parameters_count(out->own) != tshi_transformer_parameters(s)) status = TSH_ERR_STATE;
    return status == TSH_OK && s->call == CALL_MLP ? check_table(s, k, out->own) : status;
}

void tshi_transformer_close(tshi_transformer *t) {
    tsh_norm_destroy(t->norm);
    tsh_mlp_destroy(t->mlp);
    tsh_self_attention_destroy(t->attention);
    tsh_block_destroy(t->block);
    tsh_parameters_destroy(t->own);
}

tsh_status tshi_transformer_register(const tshi_transformer *t, tsh_parameters *list, const char *name) {
    if (t->norm) return tsh_norm_register(t->norm, list, name);
    if (t->mlp) return tsh_mlp_register(t->mlp, list, name);
    if (t->attention) return tsh_self_attention_register(t->attention, list, name);
    return tsh_block_register(t->block, list, name);
}

tsh_tensor *tshi_transformer_forward(const tshi_transformer *t, tsh_tape *tape, const tshi_step *s,
                                     tsh_tensor *const *in) {
    int64_t flags = s->n[LAYER_FLAGS];
    int lengths = flags & FLAG_ROTARY ? 2 : 1;
    tsh_sequences rows = {.batch = s->n[ATTENTION_BATCH],
                          .positions = flags & FLAG_ROTARY ? in[1] : NULL,
                          .lengths = flags & FLAG_LENGTHS ? in[lengths] : NULL};
    if (t->norm) return tsh_norm_forward(tape, t->norm, in[0]);
    if (t->mlp) return tsh_mlp_forward(tape, t->mlp, in[0]);
    if (t->attention) return tsh_self_attention_forward(tape, t->attention, in[0], &rows);
    return tsh_block_forward(tape, t->block, in[0], &rows);
}
