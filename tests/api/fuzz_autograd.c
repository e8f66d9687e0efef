/* Tapes and functions. */
#include "fuzz.h"

#include <string.h>

/* --- tapes -------------------------------------------------------------------------------------------------------- */

void fuzz_make_tape(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = NULL;
    (void)function;
    tsh_status status = tsh_tape_create(fuzz_chance(f, 3) ? NULL : f->world, fuzz_chance(f, 3) ? NULL : &tape);
    fuzz_made(f, FUZZ_TAPE, "tape_create", status, tape, NULL);
}

static void tape_destroy(fuzz *f, void (*function)(void)) {
    (void)function;
    tsh_tape_destroy(NULL);
    fuzz_empty(f, FUZZ_TAPE, fuzz_below(f, 2));
}

static void tape_questions(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    (void)function;
    if (tsh_tape_world(tape) != (tape ? f->world : NULL)) fuzz_wrong(f, "tape_world");
    if (tape && tsh_tape_status(tape) == TSH_OK && tsh_tape_message(tape)[0]) fuzz_wrong(f, "words without a failure");
    tsh_dump_format format = (tsh_dump_format)fuzz_index(f, 3);
    fuzz_said(f, "tape_check_finite", tsh_tape_check_finite(tape), NULL);
    fuzz_said(f, "tape_dump", tsh_tape_dump(tape, fuzz_chance(f, 90) ? "/dev/null" : NULL, format), NULL);
    if (fuzz_chance(f, 40)) tsh_tape_set_recording(tape, fuzz_chance(f, 90));
}

/* Here no rank's tape has failed. */
static void tape_reset(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    (void)function;
    for (int i = 0; tape && i < FUZZ_SLOTS; i++) {
        fuzz_slot *value = &f->slots[FUZZ_VALUE][i];
        if (value->parent == tape) *value = (fuzz_slot){0};
    }
    fuzz_said(f, "tape_reset", tsh_tape_reset(tape), NULL);
}

static void after(fuzz *f, tsh_tape *tape, const char *name, tsh_status status) {
    fuzz_said(f, name, status, NULL);
    if (tsh_tape_status(tape) != TSH_OK && tape) f->failed = true;
}

/* Backward from a layer's output, from a function of a leaf, or from any value, which may not have been recorded. */
static tsh_tensor *some_loss(fuzz *f, tsh_tape *tape) {
    tsh_linear *layer = fuzz_pick(f, FUZZ_LINEAR);
    tsh_tensor *x = fuzz_tensor_like(f, tsh_linear_weight(layer)), *value = fuzz_pick(f, FUZZ_VALUE);
    int draw = fuzz_below(f, 10);
    if (draw < 3) return tsh_linear_forward(tape, layer, x);
    return draw < 6 ? tsh_mul(tape, x, x) : value;
}

static void backward(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *loss = some_loss(f, tape);
    (void)function;
    if (loss && tsh_tensor_dtype(loss) == TSH_FLOAT32 && fuzz_chance(f, 80)) loss = tsh_sum(tape, loss, TSH_ALL_DIMS);
    after(f, tape, "backward", tsh_backward(tape, loss));
}

static void backward_with(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *loss = some_loss(f, tape);
    tsh_backward_config config = {.retain_graph = fuzz_chance(f, 60)};
    if (fuzz_chance(f, 20)) config.gradient = fuzz_tensor_like(f, loss);
    (void)function;
    after(f, tape, "backward_with", tsh_backward_with(tape, loss, fuzz_chance(f, 10) ? NULL : &config));
}

static tsh_tensor *objective(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    return user ? NULL : tsh_sum(tape, tsh_mul(tape, inputs[0], inputs[0]), TSH_ALL_DIMS);
}

/* It resets the tape, whose values go. */
static void gradient_check(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *inputs[1] = {fuzz_pick(f, FUZZ_TENSOR)};
    double worst, h = fuzz_chance(f, 90) ? 0 : fuzz_number(f);
    bool none = fuzz_chance(f, 5);
    (void)function;
    if (tsh_tensor_local_numel(inputs[0]) > 40) return;
    for (int i = 0; tape && i < FUZZ_SLOTS; i++) {
        fuzz_slot *value = &f->slots[FUZZ_VALUE][i];
        if (value->parent == tape) *value = (fuzz_slot){0};
    }
    tsh_objective_fn *fn = fuzz_chance(f, 3) ? NULL : objective;
    after(f, tape, "gradient_check",
          tsh_gradient_check(tape, fn, inputs, fuzz_chance(f, 97), h, none ? &none : NULL, &worst));
}

/* --- functions, by the arguments that they take ------------------------------------------------------------------- */

static void one(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    fuzz_value(f, tape, ((tsh_tensor * (*)(tsh_tape *, tsh_tensor *)) function)(tape, fuzz_tensor(f)));
}

static void two(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f), *y = fuzz_tensor_like(f, x);
    fuzz_value(f, tape, ((tsh_tensor * (*)(tsh_tape *, tsh_tensor *, tsh_tensor *)) function)(tape, x, y));
}

static void with_dim(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f);
    int dim = fuzz_chance(f, 20) ? TSH_ALL_DIMS : fuzz_dim(f);
    fuzz_value(f, tape, ((tsh_tensor * (*)(tsh_tape *, tsh_tensor *, int)) function)(tape, x, dim));
}

static void with_number(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f);
    double number = fuzz_chance(f, 80) ? 0.5 : fuzz_number(f);
    fuzz_value(f, tape, ((tsh_tensor * (*)(tsh_tape *, tsh_tensor *, double)) function)(tape, x, number));
}

static void with_bounds(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f);
    double low = fuzz_chance(f, 80) ? -1 : fuzz_number(f), high = fuzz_chance(f, 80) ? 1 : fuzz_number(f);
    fuzz_value(f, tape, ((tsh_tensor * (*)(tsh_tape *, tsh_tensor *, double, double)) function)(tape, x, low, high));
}

static void masked_fill(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f), *mask = fuzz_chance(f, 90) ? tsh_cast(tape, x, TSH_UINT8) : fuzz_tensor_like(f, x);
    (void)function;
    fuzz_value(f, tape, tsh_masked_fill(tape, x, mask, fuzz_number(f)));
}

static void where(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f), *y = fuzz_tensor_like(f, x);
    tsh_comparison comparison = (tsh_comparison)fuzz_index(f, 7);
    tsh_tensor *mask = fuzz_chance(f, 50) ? tsh_compare(tape, x, comparison, y)
                                          : tsh_compare_scalar(tape, x, comparison, fuzz_number(f));
    (void)function;
    fuzz_value(f, tape, tsh_where(tape, fuzz_chance(f, 90) ? mask : y, x, y));
}

static void extremum(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f), *indices = NULL;
    int dim = fuzz_chance(f, 20) ? TSH_ALL_DIMS : fuzz_dim(f);
    tsh_tensor *y = ((tsh_tensor * (*)(tsh_tape *, tsh_tensor *, int, tsh_tensor **))
                         function)(tape, x, dim, fuzz_chance(f, 50) ? NULL : &indices);
    if (!y && indices) fuzz_wrong(f, "indices without values");
    fuzz_value(f, tape, y);
}

static void indexed(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f), *y = fuzz_tensor_like(f, x), *ids = tsh_cast(tape, fuzz_tensor(f), TSH_INT64);
    int dim = fuzz_dim(f);
    (void)function;
    switch (fuzz_below(f, 5)) {
    case 0: fuzz_value(f, tape, tsh_index_select(tape, x, dim, ids)); break;
    case 1: fuzz_value(f, tape, tsh_take_along(tape, x, dim, ids)); break;
    case 2: fuzz_value(f, tape, tsh_index_add(tape, x, dim, ids, y)); break;
    case 3: fuzz_value(f, tape, tsh_add_along(tape, x, dim, ids, y)); break;
    default: fuzz_value(f, tape, tsh_one_hot(tape, ids, fuzz_index(f, 4), TSH_FLOAT32));
    }
}

static void cast(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_dtype dtype = (tsh_dtype)(fuzz_index(f, TSH_DTYPE_COUNT + 1));
    (void)function;
    fuzz_value(f, tape, tsh_cast(tape, fuzz_tensor(f), dtype));
}

static void element_loss(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f), *target = fuzz_tensor_like(f, x);
    tsh_bce_loss_config config = {.reduction = (tsh_reduction)fuzz_index(f, 4),
                                  .pos_weight = fuzz_chance(f, 50) ? NULL : fuzz_tensor(f)};
    (void)function;
    if (fuzz_chance(f, 25)) {
        fuzz_value(f, tape, tsh_mse_loss(tape, x, target, config.reduction));
    } else if (fuzz_chance(f, 30)) {
        fuzz_value(f, tape, tsh_l1_loss(tape, x, target, config.reduction));
    } else if (fuzz_chance(f, 40)) {
        fuzz_value(f, tape, tsh_smooth_l1_loss(tape, x, target, fuzz_number(f), config.reduction));
    } else {
        fuzz_value(f, tape, tsh_bce_loss(tape, x, target, fuzz_chance(f, 30) ? NULL : &config));
    }
}

tsh_group *fuzz_group_of(fuzz *f, const tsh_tensor *x) {
    const tsh_mesh *mesh = tsh_tensor_mesh(x);
    int axis = fuzz_below(f, tsh_mesh_axes(mesh));
    return fuzz_chance(f, 97) ? tsh_mesh_axis_group(mesh, axis) : fuzz_group(f);
}

static void to_mesh(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f);
    const tsh_mesh *mesh = fuzz_chance(f, 50) ? NULL : fuzz_mesh(f);
    tsh_layout layouts[TSH_MAX_AXES];
    (void)function;
    for (int a = 0; a < TSH_MAX_AXES; a++) layouts[a] = fuzz_layout(f);
    fuzz_value(f, tape, tsh_redistribute(tape, x, mesh, fuzz_chance(f, 10) ? NULL : layouts));
}

static void to_local(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f);
    tsh_layout layouts[TSH_MAX_AXES];
    (void)function;
    for (int a = 0; a < TSH_MAX_AXES; a++) layouts[a] = fuzz_layout(f);
    fuzz_value(f, tape, tsh_to_local(tape, x, fuzz_chance(f, 70) ? NULL : layouts));
}

static void detach(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    (void)function;
    fuzz_value(f, tape, tsh_detach(tape, fuzz_tensor(f)));
}

static void full(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    (void)function;
    fuzz_value(f, tape, tsh_full(tape, fuzz_tensor(f)));
}

static void redistribute(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f);
    const tsh_group *group = fuzz_group_of(f, x);
    (void)function;
    fuzz_value(f, tape, tsh_redistribute_along(tape, x, group, fuzz_layout(f)));
}

static void scatter_or_gather(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f);
    const tsh_group *group = fuzz_group_of(f, x);
    int dim = fuzz_dim(f);
    fuzz_value(f, tape,
               ((tsh_tensor * (*)(tsh_tape *, tsh_tensor *, const tsh_group *, int)) function)(tape, x, group, dim));
}

static void reduce_or_copy(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f);
    const tsh_group *group = fuzz_group_of(f, x);
    fuzz_value(f, tape, ((tsh_tensor * (*)(tsh_tape *, tsh_tensor *, const tsh_group *)) function)(tape, x, group));
}

static void affine(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f), *w = fuzz_tensor_like(f, x), *b = fuzz_chance(f, 60) ? NULL : fuzz_tensor(f);
    (void)function;
    fuzz_value(f, tape, tsh_affine(tape, x, w, b));
}

static void reshape(fuzz *f, void (*function)(void)) {
    static const int64_t shapes[][3] = {{16},      {4, 4},  {2, 8},   {8, 2}, {-1},
                                        {2, 2, 4}, {4, -1}, {-1, -1}, {0},    {INT64_MAX, 2}};
    static const int dims[] = {1, 2, 2, 2, 1, 3, 2, 2, 1, 2};
    int shape = fuzz_below(f, 10), ndim = fuzz_chance(f, 96) ? dims[shape] : fuzz_index(f, 3);
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f);
    (void)function;
    if (ndim > 3 && ndim <= TSH_MAX_DIMS) ndim = 3;
    fuzz_value(f, tape, tsh_reshape(tape, x, ndim, fuzz_chance(f, 2) ? NULL : shapes[shape]));
}

static void slice(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f);
    int dim = fuzz_dim(f);
    int64_t start = fuzz_index(f, 3), length = fuzz_index(f, 3);
    (void)function;
    fuzz_value(f, tape, tsh_slice(tape, x, dim, start, length));
}

static void concat(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x[12];
    int dim = fuzz_dim(f), count = fuzz_index(f, 13);
    (void)function;
    if (count > 12) count = 12;
    x[0] = fuzz_tensor(f);
    for (int i = 1; i < 12; i++) x[i] = fuzz_tensor_like(f, x[0]);
    fuzz_value(f, tape, tsh_concat(tape, fuzz_chance(f, 3) ? NULL : x, count, dim));
}

static void topk(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f), *indices = NULL;
    int dim = fuzz_dim(f), k = fuzz_index(f, 3);
    (void)function;
    tsh_tensor *y = tsh_topk(tape, x, k, dim, fuzz_chance(f, 30) ? NULL : &indices);
    if (!y && indices) fuzz_wrong(f, "topk: indices without values");
    fuzz_value(f, tape, y);
}

static void split_parts(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f), *parts[4] = {NULL};
    int dim = fuzz_dim(f), count = fuzz_index(f, 5);
    int64_t sizes[4];
    (void)function;
    for (int i = 0; i < 4; i++) sizes[i] = fuzz_index(f, 4);
    if (count > 4) count = 4;
    bool balanced = fuzz_chance(f, 80), none = fuzz_chance(f, 3);
    tsh_status status = tsh_split_parts(tape, x, dim, count, balanced ? NULL : sizes, none ? NULL : parts);
    if (status != TSH_OK && parts[0]) fuzz_wrong(f, "split_parts: parts after a failure");
    fuzz_value(f, tape, status == TSH_OK ? parts[count - 1] : NULL);
}

static void permute(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f);
    int order[TSH_MAX_DIMS], n = tsh_tensor_ndim(x);
    (void)function;
    for (int d = 0; d < TSH_MAX_DIMS; d++) order[d] = fuzz_chance(f, 95) ? (n ? (d + 1) % n : 0) : fuzz_dim(f);
    if (fuzz_chance(f, 50)) {
        fuzz_value(f, tape, tsh_permute(tape, x, fuzz_chance(f, 3) ? NULL : order));
    } else {
        fuzz_value(f, tape, tsh_transpose(tape, x, fuzz_dim(f), fuzz_dim(f)));
    }
}

/* What a sum of squares makes on its way is freed, and made again by a backward where the tape records. */
static void free_since(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f);
    (void)function;
    tsh_mark mark = tsh_tape_mark(tape);
    tsh_tensor *y = tsh_sum(tape, tsh_mul(tape, x, x), TSH_ALL_DIMS);
    if (fuzz_chance(f, 3)) mark.step++;
    if (fuzz_chance(f, 3)) mark.calls += (int)fuzz_index(f, 3);
    const tsh_recompute_config config = {.offload = fuzz_chance(f, 50)};
    int way = (int)fuzz_index(f, 3);
    fuzz_value(f, tape,
               way == 0   ? tsh_tape_free_since(tape, mark, y)
               : way == 1 ? tsh_tape_recompute_since(tape, mark, y)
                          : tsh_tape_recompute_since_with(tape, mark, y, &config));
}

static void lookup(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *table = fuzz_tensor(f);
    int64_t padding = fuzz_chance(f, 70) ? -1 : fuzz_index(f, 4);
    (void)function;
    fuzz_value(f, tape, tsh_lookup(tape, table, fuzz_ids(f), padding));
}

static void take_rows(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *table = fuzz_tensor(f);
    (void)function;
    fuzz_value(f, tape, tsh_take_rows(tape, table, fuzz_ids(f)));
}

static void sample_classes(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *weight = fuzz_tensor(f), *places = NULL;
    (void)function;
    fuzz_value(f, tape,
               tsh_sample_classes(tape, weight, fuzz_ids(f), fuzz_index(f, 9), fuzz_chance(f, 50) ? &places : NULL));
}

static void route(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *logits = fuzz_tensor(f), *experts = NULL;
    tsh_router_config config = {.top_k = fuzz_index(f, 3),
                                .score = (tsh_router_score)fuzz_index(f, 3),
                                .renormalize = fuzz_chance(f, 50),
                                .scaling = fuzz_chance(f, 80) ? 0 : fuzz_number(f),
                                .groups = fuzz_chance(f, 80) ? 0 : fuzz_index(f, 4),
                                .groups_kept = fuzz_index(f, 3),
                                .bias = fuzz_chance(f, 80) ? NULL : fuzz_tensor(f),
                                .aux_loss = 1,
                                .z_loss = fuzz_chance(f, 50) ? 0 : fuzz_number(f)};
    (void)function;
    tsh_tensor *weights = tsh_route(tape, logits, &config, &experts);
    if (!weights && experts) fuzz_wrong(f, "route: experts without weights");
    fuzz_value(f, tape, weights);
    fuzz_value(f, tape, tsh_route_loss(tape, logits, &config, fuzz_chance(f, 80) ? experts : fuzz_ids(f)));
    tsh_tensor *x = fuzz_tensor(f), *gate = fuzz_tensor_like(f, x), *up = fuzz_tensor_like(f, gate);
    tsh_tensor *ids = fuzz_chance(f, 70) ? experts : fuzz_ids(f);
    fuzz_value(f, tape, tsh_expert_mlp(tape, x, weights, ids, gate, up, fuzz_tensor_like(f, gate), fuzz_index(f, 4)));
}

static void norm(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f), *gamma = fuzz_chance(f, 50) ? NULL : fuzz_tensor(f);
    tsh_tensor *beta = fuzz_chance(f, 70) ? NULL : fuzz_tensor(f);
    double eps = fuzz_chance(f, 90) ? 1e-5 : fuzz_number(f);
    bool rms = fuzz_chance(f, 50);
    (void)function;
    fuzz_value(f, tape, rms ? tsh_rms_norm(tape, x, gamma, eps) : tsh_layer_norm(tape, x, gamma, beta, eps));
}

/* Most tensors have fewer dims than these functions want. */
static tsh_tensor *heads(fuzz *f, tsh_tape *tape, tsh_tensor *x, int64_t count) {
    return fuzz_chance(f, 5) ? x : tsh_reshape(tape, x, 4, (int64_t[]){1, -1, count, 1});
}

static void attention(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *q = fuzz_tensor(f), *k = fuzz_tensor_like(f, q), *v = fuzz_tensor_like(f, k);
    tsh_attention_config config = {.causal = fuzz_chance(f, 50),
                                   .scale = fuzz_chance(f, 80) ? 0 : fuzz_number(f),
                                   .dropout = fuzz_chance(f, 80) ? 0 : fuzz_number(f)};
    if (fuzz_chance(f, 10)) config.lengths = fuzz_ids(f);
    if (fuzz_chance(f, 10)) config.query_positions = config.key_positions = fuzz_ids(f);
    if (fuzz_chance(f, 10)) config.query_documents = config.key_documents = fuzz_ids(f);
    if (fuzz_chance(f, 3)) config.key_documents = NULL;
    (void)function;
    q = heads(f, tape, q, fuzz_index(f, 3));
    k = heads(f, tape, k, 1);
    v = heads(f, tape, v, 1);
    fuzz_value(f, tape, tsh_attention(tape, q, k, v, fuzz_chance(f, 10) ? NULL : &config));
}

static void rotary(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = heads(f, tape, fuzz_tensor(f), 1);
    tsh_rotary_config config = {.theta = fuzz_chance(f, 80) ? 100 : fuzz_number(f),
                                .order = (tsh_rotary_order)fuzz_index(f, 2),
                                .dims = fuzz_index(f, 3)};
    (void)function;
    fuzz_value(f, tape, tsh_rotary(tape, x, fuzz_ids(f), fuzz_chance(f, 10) ? NULL : &config));
}

static void cross_entropy(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *logits = fuzz_tensor(f), *target = fuzz_ids(f);
    tsh_cross_entropy_config config = {.has_ignore_index = fuzz_chance(f, 20),
                                       .ignore_index = fuzz_index(f, 4),
                                       .label_smoothing = fuzz_chance(f, 80) ? 0.1 : fuzz_number(f),
                                       .reduction = (tsh_reduction)fuzz_index(f, 3)};
    if (fuzz_chance(f, 10)) config.weight = fuzz_tensor(f);
    (void)function;
    fuzz_value(f, tape, tsh_cross_entropy(tape, logits, target, fuzz_chance(f, 30) ? NULL : &config));
}

static void linear_cross_entropy(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f), *w = fuzz_tensor_like(f, x), *target = fuzz_ids(f);
    tsh_linear_cross_entropy_config config = {.loss = {.label_smoothing = fuzz_chance(f, 80) ? 0.1 : fuzz_number(f),
                                                       .reduction = (tsh_reduction)fuzz_index(f, 3)},
                                              .z_loss = fuzz_chance(f, 80) ? 0.01 : fuzz_number(f),
                                              .chunk = fuzz_index(f, 4),
                                              .memory = (tsh_linear_loss_memory)fuzz_index(f, 3)};
    if (fuzz_chance(f, 10)) config.loss.weight = fuzz_tensor(f);
    (void)function;
    fuzz_value(f, tape, tsh_linear_cross_entropy(tape, x, w, target, fuzz_chance(f, 30) ? NULL : &config));
}

/* --- operations of the program's own ------------------------------------------------------------------------------ */

static const tsh_rule own_rules[] = {{{TSH_AS_R, TSH_AS_R}, TSH_AS_R},
                                     {{TSH_AS_ANY, TSH_AS_ANY}, TSH_AS_ANY},
                                     {{TSH_AS_L, TSH_AS_L}, TSH_AS_L},
                                     {{TSH_ROW_END}, TSH_ROW_END}};

static tsh_status own_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_tensor *x = tsh_call_input(call, 0);
    *dtype = tsh_tensor_dtype(x);
    out->ndim = tsh_tensor_ndim(x);
    for (int i = 1; i < tsh_call_inputs(call); i++) {
        if (tsh_tensor_ndim(tsh_call_input(call, i)) != out->ndim) return TSH_ERR_SHAPE;
    }
    for (int d = 0; d < out->ndim; d++) {
        out->global[d] = tsh_tensor_shape(x)[d];
        for (int i = 1; i < tsh_call_inputs(call); i++) {
            if (tsh_tensor_shape(tsh_call_input(call, i))[d] != out->global[d])
                return tsh_call_fail(call, TSH_ERR_SHAPE, "input %d has another shape", i);
        }
    }
    return TSH_OK;
}

/* The first input, and what else a function may ask for. params: what goes wrong. */
static tsh_status own_forward(tsh_call *call) {
    const int *wrong = tsh_call_params(call);
    tsh_tensor *x = tsh_call_input(call, 0), *y = tsh_call_output(call);
    tsh_tensor *room = tsh_call_scratch(call, tsh_tensor_dtype(x), 7), *kept = tsh_call_save(call, 1, TSH_FLOAT64, 1);
    if (!room || !kept) return TSH_ERR_MEMORY;
    if (*wrong == 1) return TSH_ERR_RANGE; /* without words */
    if (tsh_call_records(call) || kept) *(double *)tsh_tensor_data(kept) = 1;
    if (tsh_call_computes(call, 1, 1)) memcpy(tsh_tensor_data(y), tsh_tensor_data(x), tsh_tensor_local_nbytes(y));
    if (tsh_tensor_dtype(x) != TSH_FLOAT64 && tsh_tensor_dtype(x) != TSH_FLOAT32) return TSH_OK;
    return tsh_call_reduce(call, x, -1, kept, TSH_REDUCE_MAX);
}

static tsh_status own_backward(tsh_call *call) {
    const int *wrong = tsh_call_params(call);
    if (!tsh_call_saved(call, *wrong == 2 ? 0 : 1)) return TSH_ERR_STATE;
    if (*wrong == 3) return tsh_call_grad(call, 9) ? TSH_OK : TSH_ERR_MEMORY;
    return tsh_call_wants_grad(call, 0) ? tsh_call_grad_adopt(call, 0, tsh_call_grad_out(call)) : TSH_OK;
}

static void apply_own(fuzz *f, void (*function)(void)) {
    tsh_tape *tape = fuzz_pick(f, FUZZ_TAPE);
    tsh_tensor *x = fuzz_tensor(f), *in[2] = {x, fuzz_tensor_like(f, x)};
    tsh_op op = {"own", own_rules, own_shape, own_forward, own_backward, .params_size = sizeof(int)}; /* goes */
    int wrong = fuzz_chance(f, 95) ? 0 : fuzz_index(f, 4);
    (void)function;
    op.by_element = fuzz_chance(f, 50);
    op.reads_no_input = fuzz_chance(f, 50);
    op.views = fuzz_chance(f, 10);
    if (fuzz_chance(f, 3)) op.backward = NULL;
    if (fuzz_chance(f, 3)) op.dtypes = 1u << TSH_FLOAT32;
    fuzz_value(f, tape, tsh_apply(tape, fuzz_chance(f, 2) ? NULL : &op, fuzz_below(f, 3), in, &wrong));
}

#define FUNCTION(name) (void (*)(void))(name)

const fuzz_call fuzz_autograd_calls[] = {
    {"tsh_tape_create", fuzz_make_tape, NULL, 4},
    {"tsh_tape_destroy", tape_destroy, NULL, 1},
    {"tsh_tape_status tsh_tape_message tsh_tape_check_finite tsh_tape_dump tsh_tape_set_recording tsh_tape_world",
     tape_questions, NULL, 3},
    {"tsh_tape_reset", tape_reset, NULL, 4},
    {"tsh_apply tsh_call_inputs tsh_call_input tsh_call_output tsh_call_params tsh_call_records tsh_call_scratch "
     "tsh_call_save tsh_call_saved tsh_call_reduce tsh_call_fail tsh_call_computes tsh_call_wants_grad "
     "tsh_call_grad_out tsh_call_grad tsh_call_grad_adopt",
     apply_own, NULL, 6},
    {"tsh_backward", backward, NULL, 12},
    {"tsh_backward_with", backward_with, NULL, 8},
    {"tsh_gradient_check", gradient_check, NULL, 2},
    {"tsh_redistribute_along", redistribute, NULL, 10},
    {"tsh_redistribute", to_mesh, NULL, 10},
    {"tsh_to_local", to_local, NULL, 3},
    {"tsh_detach", detach, NULL, 2},
    {"tsh_full", full, NULL, 3},
    {"tsh_scatter", scatter_or_gather, FUNCTION(tsh_scatter), 3},
    {"tsh_gather", scatter_or_gather, FUNCTION(tsh_gather), 3},
    {"tsh_reduce", reduce_or_copy, FUNCTION(tsh_reduce), 3},
    {"tsh_copy", reduce_or_copy, FUNCTION(tsh_copy), 3},
    {"tsh_matmul", two, FUNCTION(tsh_matmul), 6},
    {"tsh_affine", affine, NULL, 5},
    {"tsh_add", two, FUNCTION(tsh_add), 5},
    {"tsh_sub", two, FUNCTION(tsh_sub), 3},
    {"tsh_mul", two, FUNCTION(tsh_mul), 5},
    {"tsh_div", two, FUNCTION(tsh_div), 3},
    {"tsh_scale", with_number, FUNCTION(tsh_scale), 4},
    {"tsh_bias", two, FUNCTION(tsh_bias), 3},
    {"tsh_maximum", two, FUNCTION(tsh_maximum), 2},
    {"tsh_minimum", two, FUNCTION(tsh_minimum), 2},
    {"tsh_scale_shift", with_bounds, FUNCTION(tsh_scale_shift), 2},
    {"tsh_compare tsh_compare_scalar tsh_where", where, NULL, 3},
    {"tsh_abs", one, FUNCTION(tsh_abs), 1},
    {"tsh_max", extremum, FUNCTION(tsh_max), 1},
    {"tsh_index_select tsh_take_along tsh_index_add tsh_add_along tsh_one_hot", indexed, NULL, 3},
    {"tsh_min", extremum, FUNCTION(tsh_min), 1},
    {"tsh_gelu", one, FUNCTION(tsh_gelu), 4},
    {"tsh_gelu_tanh", one, FUNCTION(tsh_gelu_tanh), 2},
    {"tsh_relu", one, FUNCTION(tsh_relu), 2},
    {"tsh_silu", one, FUNCTION(tsh_silu), 2},
    {"tsh_swiglu", two, FUNCTION(tsh_swiglu), 2},
    {"tsh_exp", one, FUNCTION(tsh_exp), 1},
    {"tsh_log", one, FUNCTION(tsh_log), 1},
    {"tsh_tanh", one, FUNCTION(tsh_tanh), 1},
    {"tsh_sqrt", one, FUNCTION(tsh_sqrt), 1},
    {"tsh_sigmoid", one, FUNCTION(tsh_sigmoid), 1},
    {"tsh_pow", with_number, FUNCTION(tsh_pow), 2},
    {"tsh_clamp", with_bounds, FUNCTION(tsh_clamp), 2},
    {"tsh_dropout", with_number, FUNCTION(tsh_dropout), 4},
    {"tsh_reshape", reshape, NULL, 5},
    {"tsh_slice", slice, NULL, 4},
    {"tsh_concat", concat, NULL, 4},
    {"tsh_split_parts", split_parts, NULL, 3},
    {"tsh_permute tsh_transpose", permute, NULL, 4},
    {"tsh_tape_mark tsh_tape_free_since tsh_tape_recompute_since tsh_tape_recompute_since_with", free_since, NULL, 3},
    {"tsh_sum", with_dim, FUNCTION(tsh_sum), 4},
    {"tsh_mean", with_dim, FUNCTION(tsh_mean), 3},
    {"tsh_cumsum", with_dim, FUNCTION(tsh_cumsum), 3},
    {"tsh_topk", topk, NULL, 3},
    {"tsh_argmax", with_dim, FUNCTION(tsh_argmax), 2},
    {"tsh_softmax", with_dim, FUNCTION(tsh_softmax), 4},
    {"tsh_log_softmax", with_dim, FUNCTION(tsh_log_softmax), 3},
    {"tsh_lookup", lookup, NULL, 5},
    {"tsh_take_rows", take_rows, NULL, 3},
    {"tsh_sample_classes", sample_classes, NULL, 3},
    {"tsh_route tsh_route_loss tsh_expert_mlp", route, NULL, 4},
    {"tsh_layer_norm tsh_rms_norm", norm, NULL, 5},
    {"tsh_attention", attention, NULL, 5},
    {"tsh_rotary", rotary, NULL, 3},
    {"tsh_masked_fill", masked_fill, NULL, 2},
    {"tsh_cast", cast, NULL, 2},
    {"tsh_mse_loss tsh_l1_loss tsh_smooth_l1_loss tsh_bce_loss", element_loss, NULL, 4},
    {"tsh_cross_entropy", cross_entropy, NULL, 6},
    {"tsh_linear_cross_entropy", linear_cross_entropy, NULL, 4},
    {NULL, NULL, NULL, 0},
};
