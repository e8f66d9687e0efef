/* Parameters, linear and embedding layers, and training. */
#include "fuzz.h"

/* --- parameters and layers ---------------------------------------------------------------------------------------- */

static void parameters_create(fuzz *f, void (*function)(void)) {
    tsh_parameters *list = NULL;
    (void)function;
    tsh_status status = tsh_parameters_create(fuzz_chance(f, 3) ? NULL : f->world, fuzz_chance(f, 3) ? NULL : &list);
    fuzz_made(f, FUZZ_LIST, "parameters_create", status, list, NULL);
}

static void parameters_destroy(fuzz *f, void (*function)(void)) {
    (void)function;
    tsh_parameters_destroy(NULL);
    fuzz_empty(f, FUZZ_LIST, fuzz_below(f, 2));
}

static const char *name(fuzz *f) {
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "", NULL};
    return names[fuzz_below(f, fuzz_chance(f, 90) ? 6 : 8)];
}

static void parameters_add(fuzz *f, void (*function)(void)) {
    tsh_parameters *list = fuzz_pick(f, FUZZ_LIST);
    (void)function;
    tsh_tensor *t = fuzz_pick(f, FUZZ_TENSOR);
    fuzz_said(f, "parameters_add", tsh_parameters_add(list, name(f), t), NULL);
}

static void parameters_questions(fuzz *f, void (*function)(void)) {
    tsh_parameters *list = fuzz_pick(f, FUZZ_LIST);
    int count = tsh_parameters_count(list), index = fuzz_index(f, count + 1);
    (void)function;
    if (!tsh_parameters_tensor(list, index) != !tsh_parameters_name(list, index)) fuzz_wrong(f, "parameters_get");
    if (!tsh_parameters_tensor(list, index) == (index >= 0 && index < count)) fuzz_wrong(f, "parameters_count");
    if (fuzz_chance(f, 30)) tsh_parameters_zero_grad(list);
    const char *wanted = fuzz_chance(f, 50) ? tsh_parameters_name(list, index) : name(f);
    if (wanted && tsh_parameters_name(list, index) == wanted && !tsh_parameters_find(list, wanted))
        fuzz_wrong(f, "parameters_find");
    fuzz_said(f, "parameters_check_finite", tsh_parameters_check_finite(list), NULL);
}

static void parameters_freeze(fuzz *f, void (*function)(void)) {
    static const char *const patterns[] = {"*", "a", "b.*", "c.weight", "", NULL};
    tsh_parameters *list = fuzz_pick(f, FUZZ_LIST);
    (void)function;
    const char *first = patterns[fuzz_below(f, 6)], *second = patterns[fuzz_below(f, 6)];
    fuzz_said(f, "parameters_freeze", tsh_parameters_freeze(list, first), NULL);
    fuzz_said(f, "parameters_unfreeze", tsh_parameters_unfreeze(list, second), NULL);
}

static tsh_init some_init(fuzz *f) {
    return fuzz_chance(f, 85)
               ? (tsh_init){0}
               : (tsh_init){(tsh_init_kind)fuzz_index(f, 8), fuzz_number(f), fuzz_number(f), fuzz_number(f)};
}

static void linear_create(fuzz *f, void (*function)(void)) {
    tsh_group *group = tsh_mesh_axis_group(fuzz_mesh(f), fuzz_below(f, 2));
    tsh_linear_config config = {.in_features = fuzz_chance(f, 95) ? 4 : fuzz_index(f, 9),
                                .out_features = fuzz_chance(f, 80) ? 4 : fuzz_index(f, 9),
                                .shard = (tsh_sharding)fuzz_index(f, 3),
                                .bias = fuzz_chance(f, 50),
                                .activation = (tsh_activation)fuzz_index(f, 5),
                                .dtype = fuzz_dtype(f),
                                .weight_init = some_init(f),
                                .bias_init = some_init(f)};
    config.gather_output = fuzz_chance(f, config.shard == TSH_COLUMN ? 40 : 2);
    config.sequence_parallel = fuzz_chance(f, config.shard == TSH_ROW ? 40 : 2);
    (void)function;
    tsh_linear *layer = NULL;
    tsh_linear_create(group, fuzz_chance(f, 3) ? NULL : &config, &layer);
    if (!layer && !tsh_error_message()[0]) fuzz_wrong(f, "linear_create: NULL without words");
    if (layer && !f->deviates) tsh_linear_register(layer, f->slots[FUZZ_LIST][0].object, name(f));
    fuzz_put(f, FUZZ_LINEAR, layer, NULL);
}

static void linear_destroy(fuzz *f, void (*function)(void)) {
    (void)function;
    tsh_linear_destroy(NULL);
    fuzz_empty(f, FUZZ_LINEAR, fuzz_below(f, 3));
}

static void linear_forward(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_linear *layer = fuzz_pick(f, FUZZ_LINEAR);
    tsh_tensor *x = fuzz_tensor_like(f, tsh_linear_weight(layer));
    (void)function;
    fuzz_value(f, tape, tsh_linear_forward(tape, layer, x));
}

static void linear_forward_rows(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_linear *layer = fuzz_pick(f, FUZZ_LINEAR);
    tsh_tensor *x = fuzz_tensor_like(f, tsh_linear_weight(layer));
    (void)function;
    fuzz_value(f, tape, tsh_linear_forward_rows(tape, layer, x, fuzz_ids(f)));
}

static void linear_use(fuzz *f, void (*function)(void)) {
    static const double zeros[1 << 20];
    tsh_linear *layer = fuzz_pick(f, FUZZ_LINEAR);
    const void *bias = tsh_linear_bias(layer) || fuzz_chance(f, 10) ? zeros : NULL;
    (void)function;
    fuzz_said(f, "linear_register", tsh_linear_register(layer, fuzz_pick(f, FUZZ_LIST), name(f)), NULL);
    fuzz_said(f, "linear_load", tsh_linear_load(layer, fuzz_chance(f, 5) ? NULL : zeros, bias), NULL);
}

static void embedding_create(fuzz *f, void (*function)(void)) {
    tsh_group *group = tsh_mesh_axis_group(fuzz_mesh(f), fuzz_below(f, 2));
    tsh_embedding_config config = {.num_embeddings = fuzz_chance(f, 80) ? 4 : fuzz_index(f, 9),
                                   .embedding_dim = fuzz_chance(f, 80) ? 4 : fuzz_index(f, 9),
                                   .shard = (tsh_sharding)fuzz_index(f, 3),
                                   .has_padding = fuzz_chance(f, 30),
                                   .padding = fuzz_index(f, 4),
                                   .scale_grad_by_freq = fuzz_chance(f, 30),
                                   .dtype = fuzz_dtype(f),
                                   .init = some_init(f)};
    if (fuzz_chance(f, 30)) config.max_norm = fuzz_chance(f, 80) ? 0.5 : fuzz_number(f);
    if (fuzz_chance(f, 20)) config.norm_type = fuzz_chance(f, 50) ? 1.5 : fuzz_number(f);
    config.gather_output = fuzz_chance(f, config.shard == TSH_COLUMN ? 40 : 2);
    config.sequence_parallel = fuzz_chance(f, config.shard == TSH_ROW ? 40 : 2);
    (void)function;
    tsh_embedding *layer = NULL;
    tsh_embedding_create(group, fuzz_chance(f, 3) ? NULL : &config, &layer);
    if (!layer && !tsh_error_message()[0]) fuzz_wrong(f, "embedding_create: NULL without words");
    if (layer && !f->deviates) tsh_embedding_register(layer, f->slots[FUZZ_LIST][0].object, name(f));
    fuzz_put(f, FUZZ_EMBEDDING, layer, NULL);
}

static void embedding_destroy(fuzz *f, void (*function)(void)) {
    (void)function;
    tsh_embedding_destroy(NULL);
    fuzz_empty(f, FUZZ_EMBEDDING, fuzz_below(f, 2));
}

static void embedding_forward(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_embedding *layer = fuzz_pick(f, FUZZ_EMBEDDING);
    (void)function;
    fuzz_value(f, tape, tsh_embedding_forward(tape, layer, fuzz_ids(f)));
}

static void embedding_use(fuzz *f, void (*function)(void)) {
    static const double zeros[1 << 20];
    tsh_embedding *layer = fuzz_pick(f, FUZZ_EMBEDDING);
    (void)function;
    fuzz_said(f, "embedding_register", tsh_embedding_register(layer, fuzz_pick(f, FUZZ_LIST), name(f)), NULL);
    fuzz_said(f, "embedding_load", tsh_embedding_load(layer, fuzz_chance(f, 5) ? NULL : zeros), NULL);
}

/* --- optimizers and data parallelism ------------------------------------------------------------------------------ */

static void optimizer_create(fuzz *f, void (*function)(void)) {
    tsh_parameters *list = fuzz_pick(f, FUZZ_LIST);
    tsh_optimizer *optimizer = NULL, **out = fuzz_chance(f, 3) ? NULL : &optimizer;
    tsh_status status;
    (void)function;
    if (fuzz_chance(f, 50)) {
        tsh_sgd_config c = {
            .lr = 0.1, .momentum = fuzz_chance(f, 80) ? 0.9 : fuzz_number(f), .nesterov = fuzz_chance(f, 20)};
        status = tsh_sgd_create(list, fuzz_chance(f, 3) ? NULL : &c, out);
    } else if (fuzz_chance(f, 30)) {
        tsh_lion_config c = {.lr = 0.1, .beta2 = fuzz_chance(f, 80) ? 0 : fuzz_number(f)};
        status = tsh_lion_create(list, fuzz_chance(f, 3) ? NULL : &c, out);
    } else if (fuzz_chance(f, 30)) {
        static const char *const others[] = {"a*", NULL};
        tsh_muon_config c = {.lr = 0.1,
                             .momentum = fuzz_chance(f, 80) ? 0 : fuzz_number(f),
                             .adamw = fuzz_chance(f, 50) ? others : NULL};
        status = tsh_muon_create(list, fuzz_chance(f, 3) ? NULL : &c, out);
    } else {
        tsh_adamw_config c = {.lr = fuzz_chance(f, 80) ? 0.1 : fuzz_number(f),
                              .beta1 = fuzz_chance(f, 80) ? 0 : fuzz_number(f)};
        status = tsh_adamw_create(list, fuzz_chance(f, 3) ? NULL : &c, out);
    }
    fuzz_made(f, FUZZ_OPTIMIZER, "optimizer_create", status, optimizer, NULL);
}

static void optimizer_destroy(fuzz *f, void (*function)(void)) {
    (void)function;
    tsh_optimizer_destroy(NULL);
    fuzz_empty(f, FUZZ_OPTIMIZER, fuzz_below(f, 2));
}

static void optimizer_use(fuzz *f, void (*function)(void)) {
    tsh_optimizer *optimizer = fuzz_pick(f, FUZZ_OPTIMIZER);
    (void)function;
    if (fuzz_chance(f, 20)) fuzz_said(f, "optimizer_set_lr", tsh_optimizer_set_lr(optimizer, fuzz_number(f)), NULL);
    if (fuzz_chance(f, 10))
        fuzz_said(f, "optimizer_step_in_backward", tsh_optimizer_step_in_backward(optimizer, fuzz_tensor(f)), NULL);
    const tsh_lr_schedule schedule = {
        (tsh_lr_kind)fuzz_index(f, 4), fuzz_number(f), 0, fuzz_index(f, 9), fuzz_index(f, 9), fuzz_index(f, 9)};
    if (fuzz_chance(f, 20)) tsh_lr_at(&schedule, fuzz_index(f, 20));
    if (tsh_optimizer_lr(optimizer) < 0) fuzz_wrong(f, "optimizer_lr");
    fuzz_said(f, "optimizer_step", tsh_optimizer_step(optimizer), NULL);
    if (fuzz_chance(f, 50)) tsh_optimizer_zero_grad(optimizer);
}

static void set_precision(fuzz *f, void (*function)(void)) {
    static const char *const kept[] = {"a*", NULL};
    const tsh_precision p = {(tsh_dtype)fuzz_below(f, TSH_DTYPE_COUNT), (tsh_dtype)fuzz_below(f, TSH_DTYPE_COUNT),
                             fuzz_chance(f, 50) ? kept : NULL, (tsh_arithmetic)fuzz_below(f, TSH_DTYPE_COUNT + 2)};
    tsh_parameters *list = fuzz_pick(f, FUZZ_LIST);
    (void)function;
    if (tsh_precision_dtype(&p, "b") != p.storage) fuzz_wrong(f, "precision_dtype");
    fuzz_said(f, "parameters_set_precision", tsh_parameters_set_precision(list, fuzz_chance(f, 3) ? NULL : &p), NULL);
}

static void memory_report(fuzz *f, void (*function)(void)) {
    const char *path = fuzz_chance(f, 90) ? "/dev/null" : NULL;
    tsh_parameters *list = fuzz_pick(f, FUZZ_LIST);
    tsh_optimizer *optimizer = fuzz_pick(f, FUZZ_OPTIMIZER);
    (void)function;
    fuzz_said(f, "memory_report", tsh_memory_report(path, list, optimizer, fuzz_pick(f, FUZZ_TAPE)), NULL);
}

static void clip_grad_norm(fuzz *f, void (*function)(void)) {
    tsh_parameters *list = fuzz_pick(f, FUZZ_LIST);
    double norm_before, most = fuzz_chance(f, 90) ? 1 : fuzz_number(f);
    (void)function;
    fuzz_said(f, "clip_grad_norm", tsh_clip_grad_norm(list, most, fuzz_chance(f, 20) ? NULL : &norm_before), NULL);
}

static void clip_grad_value(fuzz *f, void (*function)(void)) {
    tsh_parameters *list = fuzz_pick(f, FUZZ_LIST);
    double most = fuzz_chance(f, 90) ? 1 : fuzz_number(f);
    (void)function;
    fuzz_said(f, "clip_grad_value_in_backward", tsh_clip_grad_value_in_backward(list, most), NULL);
}

static void loss_scale(fuzz *f, void (*function)(void)) {
    tsh_loss_scale scale = {.scale = fuzz_chance(f, 90) ? 4 : fuzz_number(f),
                            .growth = fuzz_chance(f, 90) ? 0 : fuzz_number(f),
                            .interval = fuzz_chance(f, 90) ? 1 : -1};
    tsh_parameters *list = fuzz_pick(f, FUZZ_LIST);
    double norm_before, most = fuzz_chance(f, 90) ? 1 : fuzz_number(f);
    bool finite;
    (void)function;
    tsh_status status = tsh_loss_scale_unscale(&scale, list, most, fuzz_chance(f, 20) ? NULL : &norm_before, &finite);
    fuzz_said(f, "loss_scale_unscale", status, NULL);
    fuzz_said(f, "loss_scale_update", tsh_loss_scale_update(&scale, fuzz_chance(f, 50)), NULL);
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    fuzz_value(f, tape, tsh_loss_scale_apply(tape, &scale, fuzz_pick(f, FUZZ_VALUE)));
}

static void data_parallel_create(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_parameters *list = fuzz_pick(f, FUZZ_LIST);
    tsh_tensor *first = tsh_parameters_tensor(list, 0);
    tsh_group *group = first ? fuzz_group_of(f, first) : fuzz_group(f);
    tsh_data_parallel *dp = NULL;
    tsh_data_parallel_config config = {.average = fuzz_chance(f, 50),
                                       .keep_values = fuzz_chance(f, 50),
                                       .bucket_bytes = (size_t)fuzz_below(f, 200),
                                       .first_bucket_bytes = fuzz_chance(f, 90) ? (size_t)fuzz_below(f, 90) : SIZE_MAX,
                                       .level = (tsh_zero_level)(fuzz_chance(f, 60) ? 0 : fuzz_below(f, 4)),
                                       .model = !fuzz_chance(f, 30) ? NULL
                                                : first             ? fuzz_group_of(f, first)
                                                                    : fuzz_group(f),
                                       .sequence_parallel = fuzz_chance(f, 20)};
    (void)function;
    bool bare = fuzz_chance(f, 20), no_out = fuzz_chance(f, 3);
    tsh_status status = tsh_data_parallel_create(tape, list, group, bare ? NULL : &config, no_out ? NULL : &dp);
    fuzz_made(f, FUZZ_DATA_PARALLEL, "data_parallel_create", status, dp, NULL);
}

static void data_parallel_destroy(fuzz *f, void (*function)(void)) {
    (void)function;
    tsh_data_parallel_destroy(NULL);
    fuzz_empty(f, FUZZ_DATA_PARALLEL, 0);
}

static void data_parallel_use(fuzz *f, void (*function)(void)) {
    tsh_data_parallel *dp = fuzz_pick(f, FUZZ_DATA_PARALLEL);
    (void)function;
    if (fuzz_chance(f, 20)) tsh_data_parallel_set_sync(dp, fuzz_chance(f, 80));
    if (tsh_data_parallel_buckets(dp) < 0 || !tsh_data_parallel_group(dp) != !dp) fuzz_wrong(f, "data_parallel_group");
}

static void batches(fuzz *f, void (*function)(void)) {
    tsh_batches b = {.items = fuzz_below(f, 20), .batch = fuzz_below(f, 9), .seed = (uint64_t)fuzz_below(f, 3)};
    tsh_box box = {{fuzz_below(f, 5)}, {fuzz_below(f, 5)}};
    int64_t items[4], position = (int64_t)fuzz_below(f, 100) - 5;
    (void)function;
    b.in_order = fuzz_chance(f, 20);
    int64_t item = tsh_batches_item(fuzz_chance(f, 3) ? NULL : &b, position);
    if (item < -1 || (item >= 0 && item >= b.items)) fuzz_wrong(f, "batches_item");
    fuzz_said(f, "batches_rows", tsh_batches_rows(&b, position, &box, fuzz_chance(f, 3) ? NULL : items), NULL);
}

/* Ranks here do not die: only what is refused. */
static void protection(fuzz *f, void (*function)(void)) {
    tsh_protection *made = NULL;
    int64_t step;
    (void)function;
    fuzz_said(f, "protection_create", tsh_protection_create(NULL, NULL, 1, &made), NULL);
    fuzz_said(f, "protection_step", tsh_protection_step(made, 1), NULL);
    fuzz_said(f, "protection_move", tsh_protection_move(made, fuzz_pick(f, FUZZ_LIST), NULL, &step), NULL);
    tsh_protection_destroy(made);
}

const fuzz_call fuzz_train_calls[] = {
    {"tsh_parameters_create", parameters_create, NULL, 3},
    {"tsh_parameters_destroy", parameters_destroy, NULL, 1},
    {"tsh_parameters_add", parameters_add, NULL, 6},
    {"tsh_parameters_count tsh_parameters_tensor tsh_parameters_name tsh_parameters_find tsh_parameters_zero_grad "
     "tsh_parameters_check_finite",
     parameters_questions, NULL, 3},
    {"tsh_parameters_freeze tsh_parameters_unfreeze", parameters_freeze, NULL, 1},
    {"tsh_linear_create tsh_linear_weight", linear_create, NULL, 8},
    {"tsh_linear_destroy", linear_destroy, NULL, 1},
    {"tsh_linear_forward", linear_forward, NULL, 10},
    {"tsh_linear_forward_rows", linear_forward_rows, NULL, 3},
    {"tsh_linear_register tsh_linear_load tsh_linear_bias", linear_use, NULL, 4},
    {"tsh_embedding_create tsh_embedding_weight", embedding_create, NULL, 6},
    {"tsh_embedding_destroy", embedding_destroy, NULL, 1},
    {"tsh_embedding_forward", embedding_forward, NULL, 6},
    {"tsh_embedding_register tsh_embedding_load", embedding_use, NULL, 3},
    {"tsh_sgd_create tsh_adamw_create tsh_lion_create tsh_muon_create", optimizer_create, NULL, 5},
    {"tsh_precision_dtype tsh_parameters_set_precision", set_precision, NULL, 2},
    {"tsh_loss_scale_unscale tsh_loss_scale_update tsh_loss_scale_apply", loss_scale, NULL, 2},
    {"tsh_optimizer_destroy", optimizer_destroy, NULL, 1},
    {"tsh_optimizer_step tsh_optimizer_step_in_backward tsh_optimizer_zero_grad tsh_optimizer_set_lr tsh_optimizer_lr "
     "tsh_lr_at",
     optimizer_use, NULL, 8},
    {"tsh_clip_grad_norm", clip_grad_norm, NULL, 4},
    {"tsh_clip_grad_value_in_backward", clip_grad_value, NULL, 2},
    {"tsh_memory_report", memory_report, NULL, 2},
    {"tsh_data_parallel_create", data_parallel_create, NULL, 6},
    {"tsh_data_parallel_destroy", data_parallel_destroy, NULL, 1},
    {"tsh_data_parallel_set_sync tsh_data_parallel_buckets tsh_data_parallel_group", data_parallel_use, NULL, 4},
    {"tsh_batches_item tsh_batches_rows", batches, NULL, 1},
    {"tsh_protection_create tsh_protection_step tsh_protection_move tsh_protection_destroy", protection, NULL, 1},
    {NULL, NULL, NULL, 0},
};

const fuzz_call fuzz_makers[] = {
    {"mesh", fuzz_make_mesh, NULL, FUZZ_MESH},
    {"tape", fuzz_make_tape, NULL, FUZZ_TAPE},
    {"list", parameters_create, NULL, FUZZ_LIST},
    {"linear", linear_create, NULL, FUZZ_LINEAR},
    {"embedding", embedding_create, NULL, FUZZ_EMBEDDING},
    {"tensor", fuzz_make_tensor, NULL, FUZZ_TENSOR},
    {"optimizer", optimizer_create, NULL, FUZZ_OPTIMIZER},
    {NULL, NULL, NULL, 0},
};
