#include "differential/functions.h"
#include "dist/world.h"
#include "support/values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- life --------------------------------------------------------------------------------------------------------- */

tsh_dtype tshi_bench_dtype(const tshi_bench *b, bool parameter) {
    const tshi_program *p = b->p;
    if (b->whole || p->policy == POLICY_NONE) return p->dtype;
    bool narrow = parameter ? p->policy != POLICY_COMPUTED_NARROW : p->policy != POLICY_COMPUTED_WIDE;
    return narrow ? p->narrow : TSH_FLOAT32;
}

static tsh_precision precision_of(const tshi_bench *b) {
    const tshi_program *p = b->p;
    tsh_precision precision = {.storage = tshi_bench_dtype(b, true), .reduction = tshi_bench_dtype(b, true)};
    if (b->whole || p->policy == POLICY_NONE) return precision;
    precision.reduction = TSH_FLOAT32;
    if (p->policy == POLICY_COMPUTED_NARROW)
        precision.arithmetic = p->narrow == TSH_FLOAT16 ? TSH_ARITHMETIC_FLOAT16 : TSH_ARITHMETIC_BFLOAT16;
    if (p->policy == POLICY_COMPUTED_WIDE) precision.arithmetic = TSH_ARITHMETIC_FLOAT32;
    return precision;
}

tsh_status tshi_bench_precision(tshi_bench *b) {
    const tsh_precision precision = precision_of(b);
    if (tsh_precision_dtype(&precision, "v0") != precision.storage) return TSH_ERR_DTYPE;
    return tsh_parameters_set_precision(b->all, &precision);
}

/* A tape with a step: a sum over the ranks of an axis. */
static tsh_status open_beside(const tshi_bench *b, tsh_tape **out) {
    const tsh_tensor_config config = {.dtype = TSH_FLOAT64, .layout = {TSH_PARTIAL}};
    tsh_tensor *x = NULL;
    tsh_status status = tsh_tape_create(b->world, out);
    if (status == TSH_OK) status = tsh_tensor_create_full(b->mesh, &config, 1, &x);
    double ranks = status == TSH_OK ? tsh_tensor_item(tsh_full(*out, x)) : 0;
    tsh_tensor_release(x);
    if (status == TSH_OK) status = tsh_tape_status(*out);
    return status == TSH_OK && ranks != 1 ? TSH_ERR_STATE : status;
}

tsh_status tshi_bench_open(tshi_bench *b) {
    tsh_world_seed(b->world, b->p->seed);
    for (int a = 0; a < b->p->axes; a++) b->group[a] = tsh_mesh_axis_group(b->mesh, a);
    tsh_status status = TSH_OK;
    for (int i = 0; i < b->p->cuts && status == TSH_OK; i++) {
        uint64_t number;
        status = tsh_cuts_create(b->mesh, b->p->cut[i].parts, b->p->cut[i].at, &number);
        if (status == TSH_OK && number != b->p->cut[i].number) status = TSH_ERR_MISMATCH;
    }
    for (int i = 0; i < b->p->tapes && status == TSH_OK; i++) status = open_beside(b, &b->beside[i]);
    if (status == TSH_OK) status = tsh_tape_create(b->world, &b->tape);
    if (status == TSH_OK) status = tsh_parameters_create(b->world, &b->all);
    return status == TSH_OK ? tsh_parameters_create(b->world, &b->stepped) : status;
}

void tshi_bench_close(tshi_bench *b) {
    tsh_optimizer_destroy(b->optimizer);
    tsh_parameters_destroy(b->all);
    tsh_parameters_destroy(b->stepped);
    tsh_tape_destroy(b->tape);
    for (int i = 0; i < b->p->cuts; i++) tsh_cuts_release(b->mesh, b->p->cut[i].number);
    for (int i = 0; i < MAX_TAPES; i++) tsh_tape_destroy(b->beside[i]);
    for (int k = 0; k < MAX_STEPS; k++) {
        tsh_linear_destroy(b->linear[k]);
        tsh_embedding_destroy(b->embedding[k]);
        tshi_transformer_close(&b->transformer[k]);
    }
}

/* --- layers ------------------------------------------------------------------------------------------------------- */

/* The whole of a dense parameter, elements of the program's dtype. */
static void *dense_values(const tshi_bench *b, uint64_t salt, int64_t count) {
    tsh_dtype dtype = tshi_bench_dtype(b, true);
    void *values = malloc(tsh_dtype_size(dtype) * (size_t)(count + 1));
    if (!values) abort();
    for (int64_t i = 0; i < count; i++)
        tshi_put(dtype, values, i, (tshi_number){tshi_salted_value(b->p, salt, 0, i), 0});
    return values;
}

static tsh_init init_of(const tshi_step *s) {
    tsh_init_kind kind = (tsh_init_kind)(s->n[LAYER_INIT] % (TSH_INIT_CONSTANT + 1));
    return (tsh_init){.kind = kind, .a = kind == TSH_INIT_CONSTANT ? 0.5 : -0.5, .b = 0.5};
}

static tsh_status open_linear(tshi_bench *b, int k) {
    const tshi_step *s = &b->p->step[k];
    const tshi_dims *x = &b->p->step[s->in[0]].shape;
    int64_t in = x->dim[x->ndim - 1], flags = s->n[LAYER_FLAGS];
    tsh_linear_config config = {.in_features = in,
                                .out_features = s->n[LAYER_OUT],
                                .shard = b->whole ? TSH_DENSE : (tsh_sharding)s->n[LAYER_SHARDING],
                                .bias = flags & FLAG_BIAS,
                                .gather_output = !b->whole && flags & FLAG_GATHER,
                                .sequence_parallel = !b->whole && flags & FLAG_SEQUENCE,
                                .activation = (tsh_activation)s->n[LAYER_ACTIVATION],
                                .dtype = tshi_bench_dtype(b, true),
                                .weight_init = init_of(s)};
    tsh_status status = tsh_linear_create(b->group[s->n[LAYER_AXIS]], &config, &b->linear[k]);
    if (status != TSH_OK || !(flags & FLAG_LOAD)) return status;
    void *weight = dense_values(b, s->salt, in * config.out_features), *bias = NULL;
    if (config.bias) bias = dense_values(b, s->salt + 1, config.out_features);
    status = tsh_linear_load(b->linear[k], weight, bias);
    free(weight);
    free(bias);
    return status;
}

static tsh_status open_embedding(tshi_bench *b, int k) {
    const tshi_step *s = &b->p->step[k];
    int64_t flags = s->n[LAYER_FLAGS];
    tsh_embedding_config config = {.num_embeddings = s->n[EMBEDDING_ROWS],
                                   .embedding_dim = s->n[LAYER_OUT],
                                   .shard = b->whole ? TSH_DENSE : (tsh_sharding)s->n[LAYER_SHARDING],
                                   .has_padding = flags & FLAG_PADDING,
                                   .padding = s->n[EMBEDDING_PADDING],
                                   .gather_output = !b->whole && flags & FLAG_GATHER,
                                   .sequence_parallel = !b->whole && flags & FLAG_SEQUENCE,
                                   .dtype = tshi_bench_dtype(b, true)};
    tsh_status status = tsh_embedding_create(b->group[s->n[LAYER_AXIS]], &config, &b->embedding[k]);
    if (status != TSH_OK || !(flags & FLAG_LOAD)) return status;
    void *table = dense_values(b, s->salt, config.num_embeddings * config.embedding_dim);
    status = tsh_embedding_load(b->embedding[k], table);
    free(table);
    return status;
}

tsh_status tshi_bench_layer(tshi_bench *b, int k) {
    const tshi_step *s = &b->p->step[k];
    if (tshi_verb_has_layer(s->call) && s->call >= CALL_NORM)
        return tshi_transformer_open(b->p, k, b->group[s->n[LAYER_AXIS]], b->whole, &b->transformer[k]);
    if (s->inputs != 1) return TSH_OK;
    if (s->call == CALL_LINEAR) return open_linear(b, k);
    return s->call == CALL_EMBEDDING ? open_embedding(b, k) : TSH_OK;
}

tsh_tensor *tshi_bench_parameter(const tshi_bench *b, const tshi_owned *o) {
    if (o->part == OWNED_NTH) return tsh_parameters_tensor(b->transformer[o->step].own, o->nth);
    if (b->embedding[o->step]) return tsh_embedding_weight(b->embedding[o->step]);
    return o->part == OWNED_BIAS ? tsh_linear_bias(b->linear[o->step]) : tsh_linear_weight(b->linear[o->step]);
}

/* --- optimizers --------------------------------------------------------------------------------------------------- */

/* A layer brings its parameters itself, when the first of them comes. */
static tsh_status add_to(const tshi_bench *b, tsh_parameters *list, const tshi_owned *o, int copy, tsh_tensor *tensor) {
    char name[32];
    snprintf(name, sizeof name, o->part == OWNED_LEAF && copy ? "v%d.%d" : "v%d", o->step, copy);
    if (o->part == OWNED_LEAF) return tsh_parameters_add(list, name, tensor);
    if (o->part == OWNED_BIAS || o->nth > 0) return TSH_OK;
    if (o->part == OWNED_NTH) return tshi_transformer_register(&b->transformer[o->step], list, name);
    return b->linear[o->step] ? tsh_linear_register(b->linear[o->step], list, name)
                              : tsh_embedding_register(b->embedding[o->step], list, name);
}

tsh_status tshi_bench_add(tshi_bench *b, const tshi_owned *o, int copy, tsh_tensor *tensor) {
    tsh_status status = add_to(b, b->all, o, copy, tensor);
    if (status != TSH_OK || !tshi_parameter_steps(b->p, o)) return status;
    return add_to(b, b->stepped, o, copy, tensor);
}

tsh_status tshi_bench_optimizer(tshi_bench *b) {
    const tshi_program *p = b->p;
    const tsh_sgd_config sgd = {
        .lr = p->lr / 2, .momentum = p->momentum, .weight_decay = p->weight_decay, .nesterov = p->nesterov};
    const tsh_adamw_config adamw = {.lr = p->lr, .eps = 1e-3, .weight_decay = p->weight_decay};
    if (p->stepper == STEPPER_NONE) return TSH_OK;
    /* Frozen and thawed again, parameters are as they were; those of a schedule cannot be frozen. */
    if (tsh_parameters_freeze(b->stepped, "*") == TSH_OK && tsh_parameters_unfreeze(b->stepped, "*") != TSH_OK)
        return TSH_ERR_STATE;
    tsh_status status = p->stepper == STEPPER_SGD ? tsh_sgd_create(b->stepped, &sgd, &b->optimizer)
                                                  : tsh_adamw_create(b->stepped, &adamw, &b->optimizer);
    /* Lion's signs have no tolerance: it is made for the same tensors, and does not step. */
    tsh_optimizer *lion = NULL;
    if (status == TSH_OK) status = tsh_lion_create(b->stepped, &(tsh_lion_config){.lr = p->lr}, &lion);
    tsh_optimizer_destroy(lion);
    if (status == TSH_OK && p->stepper == STEPPER_SGD) status = tsh_optimizer_set_lr(b->optimizer, p->lr);
    if (status != TSH_OK) return status;
    for (int i = 0; p->fused && !b->whole && i < tsh_parameters_count(b->stepped) && status == TSH_OK; i++) {
        tsh_tensor *t = tsh_parameters_tensor(b->stepped, i);
        if (tsh_tensor_ndim(t) == 2) status = tsh_optimizer_step_in_backward(b->optimizer, t);
    }
    bool refused = tsh_optimizer_step_in_backward(b->optimizer, NULL) == TSH_ERR_ARGUMENT;
    return refused ? status : TSH_ERR_STATE;
}

tsh_status tshi_bench_step(tshi_bench *b, double *norm) {
    tsh_loss_scale one = {.scale = 1};
    bool clipped = false;
    tsh_status status = TSH_OK;
    if (b->p->clip > 0 && b->p->stepper == STEPPER_SGD) {
        status = tsh_loss_scale_unscale(&one, b->stepped, b->p->clip, norm, &clipped);
        if (status == TSH_OK) status = tsh_loss_scale_update(&one, clipped);
    }
    if (b->p->clip > 0 && !clipped && status == TSH_OK) status = tsh_clip_grad_norm(b->stepped, b->p->clip, norm);
    if (status == TSH_OK && b->optimizer) status = tsh_optimizer_step(b->optimizer);
    if (status == TSH_OK && b->optimizer) status = tsh_memory_report("/dev/null", b->stepped, b->optimizer, NULL);
    if (status != TSH_OK || b->p->zero == ZERO_NOT) return status;
    if (b->p->zero == ZERO_OPTIMIZER && b->optimizer) {
        tsh_optimizer_zero_grad(b->optimizer);
    } else {
        tsh_parameters_zero_grad(b->all);
    }
    return status;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static tsh_tensor *reshape(const tshi_bench *b, int k, tsh_tensor *x) {
    const tshi_step *s = &b->p->step[k];
    tshi_dims from = {.ndim = tsh_tensor_ndim(x)};
    memcpy(from.dim, tsh_tensor_shape(x), sizeof *from.dim * (size_t)from.ndim);
    tshi_dims to = tshi_reshape_dims(s, &from);
    int at = to.ndim > 0 ? (int)(s->salt % (uint64_t)to.ndim) : 0;
    if (s->n[3] && to.ndim > 0 && tshi_dims_numel(&to) > 0) to.dim[at] = -1;
    return tsh_reshape(b->tape, x, to.ndim, to.dim);
}

/* x times the identity are the logits x. */
static tsh_tensor *through_identity(const tshi_bench *b, tsh_tensor *x, tsh_tensor *target,
                                    const tsh_linear_cross_entropy_config *config) {
    const int64_t n = tsh_tensor_shape(x)[tsh_tensor_ndim(x) - 1];
    const tsh_tensor_config square = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {n, n}};
    double *whole = calloc((size_t)(n * n), sizeof *whole);
    tsh_tensor *identity = NULL;
    tsh_status status = whole ? tsh_tensor_create(tsh_tensor_mesh(x), &square, &identity) : TSH_ERR_MEMORY;
    for (int64_t i = 0; whole && i < n; i++) whole[i * (n + 1)] = 1;
    if (status == TSH_OK) status = tsh_tensor_write_whole(identity, whole);
    free(whole);
    tsh_tensor *w = status == TSH_OK ? tsh_cast(b->tape, identity, tsh_tensor_dtype(x)) : NULL;
    tsh_tensor *loss = tsh_linear_cross_entropy(b->tape, x, w, target, config);
    tsh_tensor_release(identity);
    return loss;
}

static tsh_tensor *cross_entropy(const tshi_bench *b, const tshi_step *s, tsh_tensor *const *in) {
    const tshi_step *target = &b->p->step[s->in[1]];
    bool own = target->call == CALL_IDS && target->n[IDS_IGNORE] != -100;
    tsh_cross_entropy_config config = {.weight = s->inputs == 3 ? in[2] : NULL,
                                       .has_ignore_index = own,
                                       .ignore_index = own ? target->n[IDS_IGNORE] : 0,
                                       .label_smoothing = s->f,
                                       .reduction = (tsh_reduction)s->n[0]};
    bool plain = s->inputs == 2 && !own && s->f == 0 && s->n[0] == TSH_REDUCTION_MEAN;
    const tsh_linear_cross_entropy_config chunks = {.loss = config, .chunk = 1 + (int64_t)(s->salt % 3)};
    bool small = tsh_tensor_ndim(in[0]) > 0 && tsh_tensor_shape(in[0])[tsh_tensor_ndim(in[0]) - 1] < 32;
    if (s->salt % 2 && small) return through_identity(b, in[0], in[1], &chunks);
    return tsh_cross_entropy(b->tape, in[0], in[1], plain ? NULL : &config);
}

static tsh_tensor *attention(const tshi_bench *b, const tshi_step *s, tsh_tensor *const *in) {
    tsh_attention_config config = {
        .causal = s->n[0], .scale = s->n[1] ? 0.5 : 0, .lengths = s->inputs == 4 ? in[3] : NULL, .dropout = s->f};
    if (s->n[2] == 1) {
        config.query_positions = in[3];
        config.key_positions = in[4];
    } else if (s->n[2] == 2) {
        config.query_documents = in[3];
        config.key_documents = in[4];
    }
    bool plain = !s->n[0] && !s->n[1] && s->inputs == 3 && s->f == 0;
    return tsh_attention(b->tape, in[0], in[1], in[2], plain ? NULL : &config);
}

static tsh_tensor *rotary(const tshi_bench *b, const tshi_step *s, tsh_tensor *const *in) {
    tsh_rotary_config config = {.theta = s->n[2] ? 100 : 0, .order = (tsh_rotary_order)s->n[0], .dims = s->n[1]};
    bool plain = !s->n[0] && !s->n[1] && !s->n[2];
    return tsh_rotary(b->tape, in[0], in[1], plain ? NULL : &config);
}

/* A dim that counts from the end now and then. */
static int dim_of(const tshi_step *s, int ndim) {
    int dim = (int)s->n[0];
    return dim != TSH_ALL_DIMS && s->salt % 3 == 0 ? dim - ndim : dim;
}

static int owner(const tshi_step *s, int k) {
    return s->inputs == 2 ? s->in[1] : k;
}

/* Of a layer that has the rows of its weight itself now and then by all of them: of a target without classes, all
 * others are sampled, in order. The program's other random numbers do not move on. */
static tsh_tensor *linear(const tshi_bench *b, const tshi_step *s, tsh_linear *layer, tsh_tensor *x) {
    bool plain = s->n[LAYER_SHARDING] != TSH_ROW && !(s->n[LAYER_FLAGS] & FLAG_BIAS);
    tsh_tensor *none = NULL;
    if (!plain || s->salt % 3 != 0 || b->world->deterministic) return tsh_linear_forward(b->tape, layer, x);
    const tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {1}};
    if (tsh_tensor_create(b->mesh, &config, &none) != TSH_OK || tsh_tensor_fill(none, -1) != TSH_OK) return NULL;
    uint64_t stream = b->world->next_stream;
    tsh_tensor *rows = tsh_sample_classes(b->tape, tsh_linear_weight(layer), none, s->n[LAYER_OUT], NULL);
    b->world->next_stream = stream;
    tsh_tensor_release(none);
    if (s->salt % 2 == 0) return tsh_linear_forward_rows(b->tape, layer, x, rows);
    return rows && tsh_take_rows(b->tape, tsh_linear_weight(layer), rows) ? tsh_linear_forward(b->tape, layer, x)
                                                                          : NULL;
}

tsh_tensor *tshi_bench_call(const tshi_bench *b, int k, tsh_tensor *const *in) {
    const tshi_step *s = &b->p->step[k];
    tsh_tape *tape = b->tape;
    int dim = dim_of(s, tsh_tensor_ndim(in[0]));
    switch (s->call) {
    case CALL_MATMUL: return tsh_matmul(tape, in[0], in[1]);
    case CALL_AFFINE: return tsh_affine(tape, in[0], in[1], s->inputs == 3 ? in[2] : NULL);
    case CALL_ADD: return tsh_add(tape, in[0], in[1]);
    case CALL_SUB: return tsh_sub(tape, in[0], in[1]);
    case CALL_MUL: return tsh_mul(tape, in[0], in[1]);
    case CALL_SCALE: return tsh_scale(tape, in[0], s->f);
    case CALL_BIAS: return tsh_bias(tape, in[0], in[1]);
    case CALL_GELU: return tsh_gelu(tape, in[0]);
    case CALL_GELU_TANH: return tsh_gelu_tanh(tape, in[0]);
    case CALL_RELU: return tsh_relu(tape, in[0]);
    case CALL_SILU: return tsh_silu(tape, in[0]);
    case CALL_DROPOUT: return tsh_dropout(tape, in[0], s->f);
    case CALL_RESHAPE: return reshape(b, k, in[0]);
    case CALL_SLICE: return tsh_slice(tape, in[0], dim, s->n[1], s->n[2]);
    case CALL_CONCAT: return tsh_concat(tape, in, s->inputs, dim);
    case CALL_SUM: return tsh_sum(tape, in[0], dim);
    case CALL_MEAN: return tsh_mean(tape, in[0], dim);
    case CALL_SOFTMAX: return tsh_softmax(tape, in[0], dim);
    case CALL_LOG_SOFTMAX: return tsh_log_softmax(tape, in[0], dim);
    case CALL_LOOKUP: return tsh_lookup(tape, in[0], in[1], s->n[0]);
    case CALL_LAYER_NORM:
        return tsh_layer_norm(tape, in[0], s->inputs > 1 ? in[1] : NULL, s->inputs > 2 ? in[2] : NULL, s->f);
    case CALL_RMS_NORM: return tsh_rms_norm(tape, in[0], s->inputs > 1 ? in[1] : NULL, s->f);
    case CALL_ATTENTION: return attention(b, s, in);
    case CALL_ROTARY: return rotary(b, s, in);
    case CALL_LINEAR: return linear(b, &b->p->step[owner(s, k)], b->linear[owner(s, k)], in[0]);
    case CALL_EMBEDDING: return tsh_embedding_forward(tape, b->embedding[owner(s, k)], in[0]);
    case CALL_PROJECT: return tsh_embedding_project(tape, b->embedding[s->in[1]], in[0]);
    case CALL_NORM:
    case CALL_MLP:
    case CALL_SELF_ATTENTION:
    case CALL_BLOCK: return tshi_transformer_forward(&b->transformer[k], tape, s, in);
    case CALL_CROSS_ENTROPY: return cross_entropy(b, s, in);
    default: return tshi_function_call(b, k, in);
    }
}
