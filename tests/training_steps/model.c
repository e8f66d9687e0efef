#include "training_steps/model.h"
#include "device/cpu/isa/kernels.h"

#include <stdlib.h>
#include <string.h>

static const char *const float32_layers[] = {"layers.*.norm", NULL};

static int64_t embed_of(const tshi_training_program *p) {
    return 2 + p->more_embed;
}

static int64_t words_of(const tshi_training_program *p) {
    return 3 + p->more_words;
}

static int64_t time_of(const tshi_training_program *p) {
    return 1 + p->more_time;
}

/* --- dtypes and values -------------------------------------------------------------------------------------------- */

tsh_precision tshi_model_precision(const tshi_model *m) {
    static const tsh_precision policies[PRECISIONS] = {
        [PRECISION_FLOAT64] = {.storage = TSH_FLOAT64, .reduction = TSH_FLOAT64},
        [PRECISION_FLOAT32] = {.storage = TSH_FLOAT32, .reduction = TSH_FLOAT32},
        [PRECISION_BFLOAT16] = {.storage = TSH_BFLOAT16, .reduction = TSH_FLOAT32},
        [PRECISION_BFLOAT16_SUMS] = {.storage = TSH_BFLOAT16, .reduction = TSH_BFLOAT16},
        [PRECISION_CASTS_BFLOAT16] = {TSH_FLOAT32, TSH_FLOAT32, NULL, TSH_ARITHMETIC_BFLOAT16},
        [PRECISION_CASTS_FLOAT32] = {TSH_BFLOAT16, TSH_FLOAT32, NULL, TSH_ARITHMETIC_FLOAT32},
        [PRECISION_FLOAT16] = {.storage = TSH_FLOAT16, .reduction = TSH_FLOAT32},
        [PRECISION_CASTS_FLOAT16] = {TSH_FLOAT32, TSH_FLOAT32, NULL, TSH_ARITHMETIC_FLOAT16},
    };
    tsh_precision precision = policies[m->exact ? PRECISION_FLOAT64 : m->p->precision];
    if (m->p->float32_norms && !m->exact) precision.float32_layers = float32_layers;
    return precision;
}

static tsh_dtype dtype_of(const tshi_model *m, const char *layer) {
    tsh_precision precision = tshi_model_precision(m);
    return tsh_precision_dtype(&precision, layer);
}

void *tshi_model_values(const tshi_training_program *p, uint64_t salt, tsh_dtype dtype, int64_t count, bool ones) {
    double *wide = malloc(sizeof *wide * (size_t)(count + 1));
    void *narrow = malloc(sizeof *wide * (size_t)(count + 1));
    if (!wide || !narrow) abort();
    for (int64_t i = 0; i < count; i++)
        wide[i] = (double)(tshi_program_draw(p, salt * 4099 + (uint64_t)i, 49) - 24) / 64 + ones;
    tshi_cpu_convert_base(NULL, count, TSH_FLOAT64, wide, dtype, narrow);
    free(wide);
    return narrow;
}

int64_t tshi_model_numel(const tsh_tensor *t) {
    int64_t n = 1;
    for (int d = 0; d < tsh_tensor_ndim(t); d++) n *= tsh_tensor_shape(t)[d];
    return n;
}

bool tshi_model_write(tshi_rank *r, const tshi_model *m, bool early) {
    bool wrong = early && m->phase->schedule && tsh_group_rank(m->data) > 0;
    for (int i = 0; i < tsh_parameters_count(m->list) && !r->failed; i++) {
        tsh_tensor *t = tsh_parameters_tensor(m->list, i);
        bool ones = tsh_tensor_ndim(t) == 1 && strstr(tsh_parameters_name(m->list, i), "norm.weight");
        uint64_t salt = (uint64_t)i + (wrong ? 1000 : 0);
        void *values = tshi_model_values(m->p, salt, tsh_tensor_dtype(t), tshi_model_numel(t), ones);
        tshi_check_ok(r, tsh_tensor_write_whole(t, values));
        free(values);
    }
    return !r->failed;
}

/* --- parts -------------------------------------------------------------------------------------------------------- */

static tsh_linear *make_linear(tshi_rank *r, const tshi_model *m, const char *name, int64_t in, int64_t out,
                               tsh_sharding shard, bool gather, const tshi_training_part *part) {
    tsh_linear *layer = NULL;
    const tsh_linear_config config = {.in_features = in,
                                      .out_features = out,
                                      .shard = shard,
                                      .bias = part->bias,
                                      .gather_output = shard == TSH_COLUMN && gather,
                                      .sequence_parallel = shard == TSH_ROW && m->phase->sequence,
                                      .activation = part->activation == TSH_ACTIVATION_RELU
                                                        ? TSH_ACTIVATION_SILU /* has no corner */
                                                        : (tsh_activation)part->activation,
                                      .dtype = dtype_of(m, name)};
    if (tshi_check_ok(r, tsh_linear_create(m->along, &config, &layer)))
        tshi_check_ok(r, tsh_linear_register(layer, m->list, name));
    return layer;
}

static tsh_tensor *make_leaf(tshi_rank *r, const tshi_model *m, const char *name, int ndim, const int64_t *shape) {
    char full[64];
    tsh_tensor *leaf = NULL;
    tsh_tensor_config config = {.dtype = dtype_of(m, name), .ndim = ndim};
    memcpy(config.shape, shape, sizeof *shape * (size_t)ndim);
    snprintf(full, sizeof full, "%s.weight", name);
    bool good = tshi_check_ok(r, tsh_tensor_create(m->mesh, &config, &leaf)) &&
                tshi_check_ok(r, tsh_tensor_require_grad(leaf, true)) &&
                tshi_check_ok(r, tsh_parameters_add(m->list, full, leaf));
    return good ? leaf : NULL;
}

static void make_block(tshi_rank *r, const tshi_model *m, const tshi_training_part *part, const char *name,
                       tshi_layers *out) {
    const tsh_self_attention_config attention = {.heads = (1 + part->kv_heads) * (1 + part->repeats),
                                                 .kv_heads = 1 + part->kv_heads,
                                                 .head_dim = 2,
                                                 .causal = part->causal,
                                                 .rotary = part->rotary,
                                                 .dropout = part->drops ? 0.25 : 0,
                                                 .bias = part->bias,
                                                 .out_bias = part->bias};
    const tsh_block_config config = {
        .embed = embed_of(m->p),
        .post_norm = part->shard == 2,
        .dropout = part->drops ? 0.25 : 0,
        .sequence_parallel = m->phase->sequence,
        .recompute = m->phase->recompute == 2,
        .offload = m->phase->recompute == 2,
        .dtype = dtype_of(m, name),
        .norm = {.kind = part->rms ? TSH_RMS_NORM : TSH_LAYER_NORM, .eps = 0.1, .bias = part->bias && !part->rms},
        .attention = attention,
        .mlp = {.hidden = 3 + part->wide,
                .gated = part->shard == 1,
                .activation = TSH_ACTIVATION_SILU,
                .bias = part->bias}};
    if (tshi_check_ok(r, tsh_block_create(m->along, &config, &out->block)))
        tshi_check_ok(r, tsh_block_register(out->block, m->list, name));
}

static void make_norm(tshi_rank *r, const tshi_model *m, const tshi_training_part *part, const char *name,
                      tshi_layers *out) {
    const tsh_norm_config config = {.features = embed_of(m->p),
                                    .kind = part->rms ? TSH_RMS_NORM : TSH_LAYER_NORM,
                                    .eps = 0.1,
                                    .bias = part->bias && !part->rms,
                                    .dtype = dtype_of(m, name)};
    if (tshi_check_ok(r, tsh_norm_create(m->along, &config, &out->norm)))
        tshi_check_ok(r, tsh_norm_register(out->norm, m->list, name));
}

static void make_gain(tshi_rank *r, const tshi_model *m, const tshi_training_part *part, const char *name,
                      tshi_layers *out) {
    const int64_t n = embed_of(m->p), shapes[3][2] = {{n}, {1, n}, {1}};
    out->leaf = make_leaf(r, m, name, part->shard == 1 ? 2 : 1, shapes[part->shard]);
}

static void make_part(tshi_rank *r, tshi_model *m, int i) {
    const tshi_training_part *part = &m->p->part[i];
    tshi_layers *out = &m->part[i];
    int64_t n = embed_of(m->p), hidden = 3 + part->wide;
    char name[64], second[64];
    snprintf(name, sizeof name, "layers.%d%s", i, part->kind == PART_NORM ? ".norm" : "");
    snprintf(second, sizeof second, "layers.%d.second", i);
    if (part->again) return;
    switch (part->kind) {
    case PART_LINEAR: out->first = make_linear(r, m, name, n, n, (tsh_sharding)part->shard, true, part); break;
    case PART_PAIR:
        out->first = make_linear(r, m, name, n, hidden, TSH_COLUMN, false, part);
        out->second = make_linear(r, m, second, hidden, n, TSH_ROW, false, part);
        break;
    case PART_TRANSPOSED: out->leaf = make_leaf(r, m, name, 2, (int64_t[]){n, n}); break;
    case PART_GAIN: make_gain(r, m, part, name, out); break;
    case PART_NORM: make_norm(r, m, part, name, out); break;
    case PART_BLOCK: make_block(r, m, part, name, out); break;
    default: break;
    }
}

static void close_part(tshi_layers *part) {
    tsh_linear_destroy(part->first);
    tsh_linear_destroy(part->second);
    tsh_norm_destroy(part->norm);
    tsh_block_destroy(part->block);
    tsh_tensor_release(part->leaf);
}

/* --- the model ---------------------------------------------------------------------------------------------------- */

static void make_table(tshi_rank *r, tshi_model *m, int i) {
    const char *name = i ? "beside" : "table";
    const tsh_embedding_config config = {.num_embeddings = words_of(m->p),
                                         .embedding_dim = embed_of(m->p),
                                         .shard = (tsh_sharding)m->p->table_shard,
                                         .has_padding = m->p->padding,
                                         .padding = 1,
                                         .scale_grad_by_freq = m->p->by_frequency,
                                         .max_norm = m->p->max_norm ? 0.5 : 0,
                                         .gather_output = m->p->table_shard == TSH_COLUMN,
                                         .sequence_parallel = m->p->table_shard == TSH_ROW && m->phase->sequence,
                                         .dtype = dtype_of(m, name)};
    if (!tshi_check_ok(r, tsh_embedding_create(m->along, &config, &m->table[i]))) return;
    if (m->p->sparse && !m->exact) tshi_check_ok(r, tsh_tensor_set_sparse_grad(tsh_embedding_weight(m->table[i])));
    tshi_check_ok(r, tsh_embedding_register(m->table[i], m->list, name));
}

/* `rows` rows for each of the piece's sequences, of `columns` numbers; 0: of one, without a dim. */
static tsh_tensor *make_input(tshi_rank *r, const tshi_model *m, const tshi_model_piece *piece, tsh_dtype dtype,
                              int64_t rows, int64_t columns, const void *whole) {
    tsh_tensor *t = NULL;
    tsh_tensor_config config = {.dtype = dtype, .ndim = columns ? 2 : 1, .shape = {piece->here * rows, columns}};
    bool own = m->phase->average;
    config.layout[m->phase->turned] = own ? TSH_LOCAL : TSH_SHARD_UNITS(0, piece->sequences, 0);
    if (m->phase->both) config.layout[!m->phase->turned] = TSH_SHARD_UNITS(0, piece->sequences, 0);
    if (!tshi_check_ok(r, tsh_tensor_create(m->mesh, &config, &t))) return NULL;
    size_t before = own ? (size_t)tsh_group_rank(m->data) * tsh_tensor_local_nbytes(t) : 0;
    const char *from = (const char *)whole + before;
    tshi_check_ok(r, own ? tsh_tensor_write(t, from, tsh_tensor_local_numel(t)) : tsh_tensor_write_whole(t, from));
    return t;
}

/* The sequences of a piece follow those of the pieces before it. */
static void make_piece(tshi_rank *r, tshi_model *m, int i, const int64_t *ids, const int64_t *classes,
                       const int64_t *lengths, const double *numbers) {
    int64_t first, n = embed_of(m->p), time = time_of(m->p);
    tshi_model_piece *piece = &m->piece[i];
    tsh_split(1 + m->p->more_batch, m->pieces, i, &first, &piece->sequences);
    piece->here = m->phase->average ? piece->sequences / tsh_group_size(m->data) : piece->sequences;
    piece->ids = make_input(r, m, piece, TSH_INT64, time, 0, ids + first * time);
    piece->classes = make_input(r, m, piece, TSH_INT64, time, 0, classes + first * time);
    piece->numbers = make_input(r, m, piece, TSH_FLOAT64, time, n, numbers + first * time * n);
    piece->lengths = make_input(r, m, piece, TSH_INT64, 1, 0, lengths + first);
}

static void make_batch(tshi_rank *r, tshi_model *m) {
    enum { MOST_TOKENS = 16, MOST_NUMBERS = MOST_TOKENS * 8 };
    const tshi_training_program *p = m->p;
    int64_t ids[MOST_TOKENS], classes[MOST_TOKENS], places[MOST_TOKENS], lengths[MOST_TOKENS];
    double numbers[MOST_NUMBERS];
    const tsh_tensor_config row = {.dtype = TSH_INT64, .ndim = 1, .shape = {time_of(p)}};
    for (int i = 0; i < MOST_TOKENS; i++) {
        ids[i] = tshi_program_draw(p, 1000003 + (uint64_t)i, (int)words_of(p));
        classes[i] = tshi_program_draw(p, 2000003 + (uint64_t)i, (int)words_of(p));
        lengths[i] = tshi_program_draw(p, 4000037 + (uint64_t)i, (int)time_of(p) + 1);
        places[i] = i;
    }
    for (int i = 0; i < MOST_NUMBERS; i++) numbers[i] = (double)tshi_program_draw(p, 3000017 + (uint64_t)i, 9) / 8;
    for (int i = 0; i < m->pieces && !r->failed; i++) make_piece(r, m, i, ids, classes, lengths, numbers);
    if (tshi_check_ok(r, tsh_tensor_create(m->mesh, &row, &m->positions)))
        tshi_check_ok(r, tsh_tensor_write_whole(m->positions, places));
}

static bool make_mesh(tshi_rank *r, tshi_model *m) {
    char data_axis[32] = "data=", model_axis[32] = "model=", axes[80];
    int data = tshi_phase_data(m->phase), rest = tshi_phase_ranks(m->phase) / data;
    tshi_phase_axis(data, m->phase->data_weights, data_axis, sizeof data_axis);
    tshi_phase_axis(rest, m->phase->model_weights, model_axis, sizeof model_axis);
    snprintf(axes, sizeof axes, "%s,%s", m->phase->turned ? model_axis : data_axis,
             m->phase->turned ? data_axis : model_axis);
    const int order[] = {4, 3, 2, 1, 0}, *ranks = order + 5 - r->size;
    if (!tshi_check_ok(r, m->phase->reversed ? tsh_mesh_create_on(r->world, ranks, r->size, axes, &m->mesh)
                                             : tsh_mesh_create(r->world, axes, &m->mesh)))
        return false;
    m->data = tsh_mesh_group(m->mesh, "data");
    m->along = tsh_mesh_group(m->mesh, "model");
    return tshi_check_ok(r, tsh_tape_create(r->world, &m->tape)) &&
           tshi_check_ok(r, tsh_parameters_create(r->world, &m->list));
}

/* Parameters of which ranks' own copies are looked at are not frozen. */
bool tshi_model_freezes(const tshi_training_program *p) {
    int kind = p->part[0].kind;
    return p->frozen && (kind == PART_LINEAR || kind == PART_PAIR || kind == PART_NORM || kind == PART_BLOCK);
}

bool tshi_model_open(tshi_rank *r, tshi_model *m, bool written) {
    const tshi_training_part plain = {0};
    if (!make_mesh(r, m)) return false;
    for (int i = 0; i <= m->p->tables && !r->failed; i++) make_table(r, m, i);
    for (int i = 0; i <= m->p->more_parts && !r->failed; i++) make_part(r, m, i);
    if (m->p->losses != 1 && !m->p->tied && !r->failed)
        m->head =
            make_linear(r, m, "head", embed_of(m->p), words_of(m->p), (tsh_sharding)m->p->head_shard, false, &plain);
    if (!r->failed) make_batch(r, m);
    tsh_precision precision = tshi_model_precision(m);
    if (!r->failed) tshi_check_ok(r, tsh_parameters_set_precision(m->list, &precision));
    if (!r->failed && tshi_model_freezes(m->p)) tshi_check_ok(r, tsh_parameters_freeze(m->list, "layers.0"));
    return !r->failed && (!written || tshi_model_write(r, m, true));
}

void tshi_model_close(tshi_model *m) {
    for (int i = 0; i < MOST_PIECES; i++) {
        tsh_tensor_release(m->piece[i].ids);
        tsh_tensor_release(m->piece[i].classes);
        tsh_tensor_release(m->piece[i].numbers);
        tsh_tensor_release(m->piece[i].lengths);
    }
    tsh_tensor_release(m->positions);
    tsh_parameters_destroy(m->list);
    tsh_tape_destroy(m->tape);
    tsh_linear_destroy(m->head);
    for (int i = 0; i < MOST_PARTS; i++) close_part(&m->part[i]);
    for (int i = 0; i < 2; i++) tsh_embedding_destroy(m->table[i]);
    tsh_mesh_destroy(m->mesh);
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* Keeps its gradient, which an evaluation refuses. */
static tsh_tensor *look_at(tshi_model *m, int place, tsh_tensor *t) {
    m->looked[place] = t;
    if (m->p->look) tsh_tensor_retain_grad(t);
    return t;
}

static void make_own(tshi_model *m, tsh_tape *tape) {
    for (int i = 0; i <= m->p->more_parts; i++) {
        bool copied = m->phase->average && m->p->look && m->part[i].leaf;
        m->own[i] = copied ? tsh_copy(tape, m->part[i].leaf, m->data) : NULL;
        if (m->own[i]) tsh_tensor_retain_grad(m->own[i]);
    }
}

static tsh_tensor *forward_part(tshi_model *m, tsh_tape *tape, int i, int piece, tsh_tensor *x) {
    int place = 1 + i;
    while (m->p->part[i].again) i--;
    const tshi_training_part *part = &m->p->part[i];
    const tshi_layers *layers = &m->part[i];
    tsh_tensor *leaf = m->own[i] ? m->own[i] : layers->leaf;
    const tsh_sequences sequences = {.batch = m->piece[piece].here,
                                     .positions = part->rotary ? m->positions : NULL,
                                     .lengths = part->lengths ? m->piece[piece].lengths : NULL};
    switch (part->kind) {
    case PART_LINEAR: return tsh_linear_forward(tape, layers->first, x);
    case PART_PAIR: return tsh_linear_forward(tape, layers->second, tsh_linear_forward(tape, layers->first, x));
    case PART_TRANSPOSED: return tsh_matmul(tape, x, look_at(m, place, tsh_transpose(tape, leaf, 0, 1)));
    case PART_GAIN: return part->causal ? tsh_mul(tape, x, leaf) : tsh_sub(tape, leaf, x);
    case PART_NORM: return tsh_norm_forward(tape, layers->norm, x);
    case PART_BLOCK: return tsh_block_forward(tape, layers->block, x, &sequences);
    default: return tsh_dropout(tape, x, 0.25);
    }
}

static tsh_tensor *forward_parts(tshi_model *m, tsh_tape *tape, int piece, tsh_tensor *x) {
    const tsh_recompute_config config = {.offload = m->phase->recompute == 2};
    tsh_mark around = tsh_tape_mark(tape);
    for (int i = 0; i <= m->p->more_parts && x; i++) {
        const tshi_training_part *part = &m->p->part[i];
        if (part->rests && m->step % 2) continue;
        tsh_mark start = tsh_tape_mark(tape);
        tsh_tensor *y = forward_part(m, tape, i, piece, x);
        if (y && part->residual) y = tsh_add(tape, x, tsh_cast(tape, y, tsh_tensor_dtype(x)));
        x = m->phase->recompute ? tsh_tape_recompute_since_with(tape, start, y, &config) : y;
    }
    return m->phase->recompute == 2 ? tsh_tape_recompute_since(tape, around, x) : x;
}

static tsh_tensor *embed(const tshi_model *m, tsh_tape *tape, int piece) {
    tsh_tensor *x = tsh_embedding_forward(tape, m->table[0], m->piece[piece].ids);
    if (m->p->tables) x = tsh_add(tape, x, tsh_embedding_forward(tape, m->table[1], m->piece[piece].ids));
    return m->phase->sequence ? tsh_redistribute_along(tape, x, m->along, TSH_SHARD(0)) : x;
}

int tshi_model_losses(tshi_model *m, tsh_tape *tape, int piece, tsh_tensor **losses) {
    const tshi_model_piece *now = &m->piece[piece];
    const tshi_training_program *p = m->p;
    tsh_reduction reduction = p->sums ? TSH_REDUCTION_SUM : TSH_REDUCTION_MEAN;
    double share = (double)(p->sums ? now->sequences / now->here : now->sequences) / (p->sums ? 32 : 1 + p->more_batch);
    int count = 0;
    memset(m->looked, 0, sizeof m->looked);
    make_own(m, tape);
    tsh_tensor *x = forward_parts(m, tape, piece, look_at(m, 0, embed(m, tape, piece)));
    if (!x) return 0;
    tsh_tensor *numbers = p->losses ? tsh_cast(tape, now->numbers, tsh_tensor_dtype(x)) : NULL;
    if (p->losses != 1) {
        const tsh_cross_entropy_config config = {.reduction = reduction, .label_smoothing = p->momentum ? 0.1 : 0};
        tsh_tensor *logits =
            p->tied ? tsh_embedding_project(tape, m->table[0], x) : tsh_linear_forward(tape, m->head, x);
        losses[count++] = tsh_cross_entropy(tape, logits, now->classes, &config);
    }
    if (p->losses >= 1) losses[count++] = tsh_mse_loss(tape, x, numbers, reduction);
    if (p->losses == 3)
        losses[count++] = tsh_bce_loss(tape, x, numbers, &(tsh_bce_loss_config){.reduction = reduction});
    for (int i = 0; i < count; i++) losses[i] = tsh_scale(tape, losses[i], share);
    return tsh_tape_status(tape) == TSH_OK ? count : 0;
}
