#include "training_steps/run.h"
#include "device/cpu/isa/kernels.h"
#include "support/clock.h"
#include "support/failing_backward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OTHERS = 32, MOST_OWN = 64 };
static const double RATE = 0.03125, MOST_VALUE = 0.015625;

typedef struct run {
    tshi_rank *r;
    tshi_training_course *c;
    const tshi_training_program *p;
    tshi_training_trace *trace;
    tshi_model model;
    tsh_data_parallel *dp;
    tsh_optimizer *optimizer;
    tsh_loss_scale scale;
    bool failed_once;
    double own[MOST_PARTS][MOST_OWN]; /* this step's gradients of parameters that are this rank's own */
    int others;                       /* tapes on which a step was evaluated */
    tsh_tape *other[MOST_OTHERS];
} run;

/* --- what it sees ------------------------------------------------------------------------------------------------- */

static double *add_entry(run *u, tshi_training_entry_kind kind, int index, const char *name, int count) {
    tshi_training_trace *t = u->trace;
    if (!tshi_check(u->r, t->entries < MOST_ENTRIES && t->numbers + count <= MOST_NUMBERS, "the trace is full"))
        return NULL;
    tshi_training_entry *e = &t->entry[t->entries++];
    *e = (tshi_training_entry){.kind = kind, .step = u->model.step, .index = index, .count = count, .at = t->numbers};
    snprintf(e->name, sizeof e->name, "%s", name);
    t->numbers += count;
    return t->number + e->at;
}

static void add_number(run *u, tshi_training_entry_kind kind, double value) {
    double *to = add_entry(u, kind, 0, "", 1);
    if (to) *to = value;
}

static void add_whole(run *u, tshi_training_entry_kind kind, int index, const char *name, const tsh_tensor *t) {
    int count = (int)tshi_model_numel(t);
    double *to = add_entry(u, kind, index, name, count);
    void *whole = malloc(sizeof *to * (size_t)(count + 1));
    if (!whole) abort();
    if (to && tshi_check_ok(u->r, tsh_tensor_read_whole(t, whole)))
        tshi_cpu_convert_base(NULL, count, tsh_tensor_dtype(t), whole, TSH_FLOAT64, to);
    free(whole);
}

/* All parameters, or the gradients that there are. */
static void add_wholes(run *u, tshi_training_entry_kind kind) {
    for (int i = 0; i < tsh_parameters_count(u->model.list) && !u->r->failed; i++) {
        const tsh_tensor *t = tsh_parameters_tensor(u->model.list, i);
        if (kind == ENTRY_GRADIENT) t = tsh_tensor_grad(t);
        if (t) add_whole(u, kind, i, tsh_parameters_name(u->model.list, i), t);
    }
}

/* The gradients of what the tables give and of transposes, where one rank's are the same. */
static void add_retained(run *u, int piece) {
    const tshi_training_program *p = u->p;
    bool alike = p->deterministic || (!p->micro && !p->scaled);
    for (int i = 0; i <= MOST_PARTS && p->look && alike; i++) {
        const tsh_tensor *gradient = u->model.looked[i] ? tsh_tensor_grad(u->model.looked[i]) : NULL;
        if (gradient && !u->c->phase->average && u->model.step != p->fail_step)
            add_whole(u, ENTRY_RETAINED, piece * (1 + MOST_PARTS) + i, i ? "a transpose" : "what the tables give",
                      gradient);
    }
}

/* Where they are float64, and are there when a step's backwards are done. */
static bool looks_at_own(const run *u) {
    return u->p->precision == PRECISION_FLOAT64 && !u->p->in_backward && u->c->phase->schedule;
}

static void add_own(run *u) {
    for (int i = 0; i < MOST_PARTS && looks_at_own(u); i++) {
        const tsh_tensor *gradient = u->model.own[i] ? tsh_tensor_grad(u->model.own[i]) : NULL;
        const double *numbers = gradient ? tsh_tensor_data(gradient) : NULL;
        for (int64_t k = 0; gradient && k < tsh_tensor_local_numel(gradient); k++) u->own[i][k] += numbers[k];
    }
}

/* Their sum over the ranks is the parameter's. */
static bool check_own(run *u, int i) {
    double whole[MOST_OWN];
    tsh_tensor *sum = NULL;
    const tsh_tensor *leaf = u->model.part[i].leaf, *gradient = tsh_tensor_grad(leaf);
    int64_t count = tshi_model_numel(leaf);
    const tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {count}};
    if (!gradient) return true;
    bool good = tshi_check_ok(u->r, tsh_tensor_read_whole(gradient, whole)) &&
                tshi_check_ok(u->r, tsh_tensor_create(u->model.mesh, &config, &sum)) &&
                tshi_check_ok(u->r, tsh_tensor_write(sum, u->own[i], count)) &&
                tshi_check_ok(u->r, tsh_all_reduce(u->model.data, sum, TSH_REDUCE_SUM));
    for (int64_t k = 0; k < count && good; k++) {
        double got = ((const double *)tsh_tensor_data(sum))[k];
        if (u->p->clip_value) got = fmin(fmax(got, -MOST_VALUE), MOST_VALUE);
        good = tshi_check(u->r, fabs(got - whole[k]) <= 1e-9 * fmax(1, fabs(whole[k])),
                          "step %d: element %d of the gradient of part %d is %.17g, and %.17g in ranks' own copies",
                          u->model.step, (int)k, i, whole[k], got);
    }
    tsh_tensor_release(sum);
    return good;
}

static bool check_all_own(run *u) {
    bool good = true;
    for (int i = 0; i < MOST_PARTS && good && looks_at_own(u); i++) good = !u->model.own[i] || check_own(u, i);
    return good;
}

/* --- set-up ------------------------------------------------------------------------------------------------------- */

static bool make_schedule(run *u) {
    const tshi_training_phase *phase = u->c->phase;
    const tsh_data_parallel_config config = {.bucket_bytes = (size_t)phase->buckets * 100,
                                             .first_bucket_bytes = (size_t)phase->buckets * 100,
                                             .level = (tsh_zero_level)phase->level,
                                             .average = phase->average,
                                             .model = phase->model_group ? u->model.along : NULL,
                                             .sequence_parallel = phase->model_group && phase->sequence};
    return !phase->schedule ||
           tshi_check_ok(u->r, tsh_data_parallel_create(u->model.tape, u->model.list, u->model.data, &config, &u->dp));
}

static tsh_status create_optimizer(run *u) {
    static const tsh_low_bits kinds[] = {TSH_MASTER_WEIGHTS, TSH_STOCHASTIC_ROUNDING, TSH_LOSE_LOW_BITS};
    const tshi_training_program *p = u->p;
    tsh_precision precision = tshi_model_precision(&u->model);
    bool narrow = precision.storage == TSH_BFLOAT16 || precision.storage == TSH_FLOAT16;
    tsh_low_bits low_bits = narrow ? kinds[p->low_bits] : TSH_LOSE_LOW_BITS;
    static const tsh_parameter_group tables[] = {{"table", 0.5, 0.25}, {NULL, 0, 0}};
    const char *const tables_of_adamw[] = {"table", p->tables ? "beside" : NULL, NULL};
    const tsh_parameter_group *groups = p->groups ? tables : NULL;
    double decay = p->decay ? 0.125 : 0;
    const tsh_adamw_config adamw = {
        .lr = RATE, .eps = 0.0625, .weight_decay = decay, .low_bits = low_bits, .groups = groups};
    const tsh_lion_config lion = {.lr = RATE, .weight_decay = decay, .low_bits = low_bits, .groups = groups};
    const tsh_sgd_config sgd = {
        .lr = RATE, .momentum = p->momentum ? 0.5 : 0, .weight_decay = decay, .low_bits = low_bits, .groups = groups};
    /* The tables may have sparse gradients, which Muon refuses. */
    const tsh_muon_config muon = {.lr = RATE,
                                  .momentum = p->momentum ? 0.5 : 0,
                                  .weight_decay = decay,
                                  .adamw = tables_of_adamw,
                                  .eps = 0.0625,
                                  .low_bits = low_bits,
                                  .groups = groups};
    switch (p->optimizer) {
    case OPTIMIZER_SGD: return tsh_sgd_create(u->model.list, &sgd, &u->optimizer);
    case OPTIMIZER_ADAMW: return tsh_adamw_create(u->model.list, &adamw, &u->optimizer);
    case OPTIMIZER_LION: return tsh_lion_create(u->model.list, &lion, &u->optimizer);
    default: return tsh_muon_create(u->model.list, &muon, &u->optimizer);
    }
}

static bool make_optimizer(run *u) {
    const tshi_training_program *p = u->p;
    if (!tshi_check_ok(u->r, create_optimizer(u))) return false;
    bool by_hand = p->clip_value && u->c->plain, in_backward = p->in_backward && !u->c->exact && !by_hand;
    for (int i = 0; i < tsh_parameters_count(u->model.list) && in_backward; i++) {
        tsh_tensor *t = tsh_parameters_tensor(u->model.list, i);
        bool frozen = tshi_model_freezes(p) && strncmp(tsh_parameters_name(u->model.list, i), "layers.0", 8) == 0;
        bool matrix = !frozen && tsh_tensor_ndim(t) == 2 && tshi_program_draw(p, 77 + (uint64_t)i, 3);
        if (matrix && !tshi_check_ok(u->r, tsh_optimizer_step_in_backward(u->optimizer, t))) return false;
    }
    return true;
}

static tsh_checkpoint checkpoint_of(run *u, tsh_value *values) {
    values[0] = (tsh_value){"scale", TSH_VALUE_DOUBLE, &u->scale.scale, 0};
    values[1] = (tsh_value){"good steps", TSH_VALUE_INT64, &u->scale.good_steps, 0};
    return (tsh_checkpoint){.parameters = u->model.list,
                            .optimizer = u->optimizer,
                            .step = u->model.step,
                            .values = values,
                            .value_count = 2,
                            .keep = 1,
                            .background = u->c->phase->background};
}

static bool save(run *u) {
    tsh_value values[2];
    const tsh_checkpoint what = checkpoint_of(u, values);
    return tshi_check_ok(u->r, tsh_checkpoint_save(u->c->folder, &what));
}

static bool load(run *u) {
    tsh_value values[2];
    tsh_checkpoint what = checkpoint_of(u, values);
    return tshi_check_ok(u->r, tsh_checkpoint_load(u->c->folder, &what)) &&
           tshi_check(u->r, what.step == u->c->first - 1, "step %lld was loaded", (long long)what.step);
}

static bool set_up(run *u) {
    const tshi_training_phase *phase = u->c->phase;
    bool late = phase->written_late, resumed = u->c->first > 1;
    u->scale = (tsh_loss_scale){.scale = u->p->scaled == 2 ? 0x1p30 : 64, .backoff = 0.0625, .interval = 2};
    u->model = (tshi_model){.p = u->p,
                            .phase = phase,
                            .exact = u->c->exact,
                            .pieces = u->c->exact && !tshi_program_keeps_pieces(u->p) ? 1 : 1 + u->p->micro};
    return tshi_model_open(u->r, &u->model, !late && !resumed) && make_schedule(u) &&
           (!late || resumed || tshi_model_write(u->r, &u->model, false)) && make_optimizer(u) && (!resumed || load(u));
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

static bool is_moment(const run *u, int piece, int moment) {
    const tshi_training_program *p = u->p;
    bool now = !u->c->plain && u->model.step == p->fail_step && !u->failed_once && p->fail_moment == moment;
    return now && piece == tshi_program_draw(p, 99, u->model.pieces);
}

/* True where this rank fails: it says so, or makes a mistake. */
static bool maybe_fail(run *u, int piece, int moment) {
    if (!is_moment(u, piece, moment) || u->r->rank != u->p->fail_rank % u->r->size) return false;
    u->failed_once = true;
    if (moment == 1) tsh_reshape(u->model.tape, u->model.piece[piece].numbers, 1, (int64_t[]){1 << 20});
    if (moment != 1) tsh_world_fail(u->r->world, "it was asked to");
    return true;
}

/* Without a record, on the step's tape or on others, which live until the end. */
static bool evaluate(run *u, bool may_fail) {
    enum { AT_ONCE = 3 };
    tsh_tensor *losses[MOST_LOSSES];
    for (int i = 0; i < (u->p->peek == 2 ? AT_ONCE : 1); i++) {
        tsh_tape *tape = u->model.tape;
        if (u->p->peek == 2 && u->others < MOST_OTHERS) {
            if (!tshi_check_ok(u->r, tsh_tape_create(u->r->world, &tape))) return false;
            u->other[u->others++] = tape;
        }
        tsh_tape_set_recording(tape, false);
        int count = tshi_model_losses(&u->model, tape, 0, losses);
        tsh_tape_set_recording(tape, true);
        if (!tshi_check(u->r, count || may_fail, "an evaluation: %s", tsh_tape_message(tape))) return false;
    }
    return true;
}

/* The loss, with a call on each rank whose own backward fails on one. */
static tsh_tensor *fail_later(run *u, tsh_tensor *loss) {
    u->failed_once = true;
    return tshi_test_fail_in_backward(u->model.tape, loss, u->p->fail_rank % u->r->size);
}

static bool backward(run *u, int piece, tsh_tensor **losses, int count) {
    tsh_tape *tape = u->model.tape;
    bool apart = u->p->apart, clips = u->p->clip_value && !u->c->plain;
    for (int i = 0; i < count; i++) {
        tsh_tensor *loss = losses[i];
        for (; !apart && i + 1 < count; i++) loss = tsh_add(tape, loss, losses[i + 1]);
        if (is_moment(u, piece, 4)) loss = fail_later(u, loss);
        if (u->p->scaled && !u->c->exact) loss = tsh_loss_scale_apply(tape, &u->scale, loss);
        if (u->dp)
            tsh_data_parallel_set_sync(u->dp,
                                       i == count - 1 && (u->c->phase->sync_each || piece == u->model.pieces - 1));
        bool last = i == count - 1 && piece == u->model.pieces - 1;
        tsh_status status =
            clips ? tsh_clip_grad_value_in_backward(u->model.list, last ? MOST_VALUE : INFINITY) : TSH_OK;
        if (!tshi_check_ok(u->r, status)) return false;
        const tsh_backward_config config = {.retain_graph = i < count - 1};
        if (tsh_backward_with(tape, loss, &config) != TSH_OK) return false;
    }
    return true;
}

/* Whether it succeeded; its losses are added to *total. */
static bool one_piece(run *u, int piece, double *total) {
    tsh_tensor *losses[MOST_LOSSES];
    if (maybe_fail(u, piece, 0)) return false;
    int count = tshi_model_losses(&u->model, u->model.tape, piece, losses);
    if (maybe_fail(u, piece, 1) || count == 0) return false;
    for (int i = 0; i < count; i++) tsh_tensor_retain(losses[i]);
    bool good = !maybe_fail(u, piece, 2) && backward(u, piece, losses, count) && !maybe_fail(u, piece, 3);
    if (good) add_retained(u, piece);
    if (good) add_own(u);
    for (int i = 0; i < count; i++) {
        if (good && !u->c->phase->average) *total += tsh_tensor_item(losses[i]);
        tsh_tensor_release(losses[i]);
    }
    return good;
}

static bool write_one(run *u) {
    const tshi_training_program *p = u->p;
    int index = p->write_index % tsh_parameters_count(u->model.list);
    tsh_tensor *t = tsh_parameters_tensor(u->model.list, index);
    void *values = tshi_model_values(p, 5000011, tsh_tensor_dtype(t), tshi_model_numel(t), false);
    tsh_status status = TSH_OK;
    switch (p->write_way) {
    case 0: status = tsh_tensor_write_whole(t, values); break;
    case 1: status = tsh_tensor_fill(t, 0.25); break;
    case 2: status = tsh_tensor_scatter_whole(t, 0, values); break;
    default: status = tsh_tensor_init(t, &(tsh_init){.kind = TSH_INIT_UNIFORM, .a = -0.25, .b = 0.25}); break;
    }
    free(values);
    return tshi_check_ok(u->r, status);
}

static bool begin_step(run *u, bool may_fail) {
    static const tsh_lr_schedule falls = {.kind = TSH_LR_LINEAR, .lr = RATE, .steps = 64};
    double rate = u->p->rates ? tsh_lr_at(&falls, u->model.step) : RATE;
    if (!tshi_check_ok(u->r, tsh_optimizer_set_lr(u->optimizer, rate))) return false;
    if (!tshi_check(u->r, fabs(tsh_optimizer_lr(u->optimizer) - rate) <= 0, "another rate")) return false;
    tsh_world_seed(u->r->world, u->p->seed + (uint64_t)u->model.step);
    tsh_parameters_zero_grad(u->model.list);
    if (u->p->peek && !u->c->plain && !evaluate(u, may_fail)) return false;
    if (u->model.step == u->p->write_step && !write_one(u)) return false;
    tsh_world_seed(u->r->world, u->p->seed * 3 + (uint64_t)u->model.step);
    return true;
}

/* All micro-batches. `may_fail`: ranks agree on each of them before they go on. */
static bool try_step(run *u, bool may_fail, double *total) {
    *total = 0;
    memset(u->own, 0, sizeof u->own);
    if (!begin_step(u, may_fail)) return false;
    for (int piece = 0; piece < u->model.pieces; piece++) {
        bool good = one_piece(u, piece, total);
        tshi_check(u->r, good || may_fail, "step %d: %s", u->model.step, tsh_tape_message(u->model.tape));
        if (good && may_fail) good = tsh_barrier(tsh_world_group(u->r->world)) == TSH_OK;
        if (!tshi_check_ok(u->r, tsh_tape_reset(u->model.tape)) || !good) return false;
    }
    return true;
}

/* What backward does on several ranks. */
static void clip_by_hand(const tsh_tensor *parameter) {
    tsh_tensor *sparse = tsh_tensor_sparse_grad(parameter, NULL, NULL);
    const tsh_tensor *t = sparse ? sparse : tsh_tensor_grad(parameter);
    tsh_dtype dtype = t ? tsh_tensor_dtype(t) : TSH_FLOAT32;
    char *at = t ? tsh_tensor_data(t) : NULL;
    for (int64_t i = 0; t && i < tsh_tensor_local_numel(t); i++, at += tsh_dtype_size(dtype)) {
        double x;
        tshi_cpu_convert_base(NULL, 1, dtype, at, TSH_FLOAT64, &x);
        if (fabs(x) <= MOST_VALUE) continue;
        x = x > 0 ? MOST_VALUE : -MOST_VALUE;
        tshi_cpu_convert_base(NULL, 1, TSH_FLOAT64, &x, dtype, at);
    }
}

static bool update(run *u) {
    const tshi_training_program *p = u->p;
    bool finite = true;
    double norm = 0, most = p->clip ? 0.25 : 0;
    tsh_parameters *list = u->model.list;
    for (int i = 0; p->clip_value && u->c->plain && i < tsh_parameters_count(list); i++)
        clip_by_hand(tsh_parameters_tensor(list, i));
    if (p->scaled && !u->c->exact) {
        if (!tshi_check_ok(u->r, tsh_loss_scale_unscale(&u->scale, list, most, p->clip ? &norm : NULL, &finite)) ||
            !tshi_check_ok(u->r, tsh_loss_scale_update(&u->scale, finite)))
            return false;
    } else if (p->clip && !tshi_check_ok(u->r, tsh_clip_grad_norm(list, most, &norm))) {
        return false;
    }
    add_number(u, ENTRY_FINITE, finite);
    if (!finite) return true;
    if (p->clip) add_number(u, ENTRY_NORM, norm);
    if (p->look) add_wholes(u, ENTRY_GRADIENT);
    return !u->r->failed && tshi_check_ok(u->r, tsh_optimizer_step(u->optimizer));
}

/* No rank is in an earlier step when one fails. */
static bool gather(run *u) {
    atomic_fetch_add(&u->c->arrived, 1);
    while (atomic_load(&u->c->arrived) < u->r->size && !atomic_load(&u->c->gone)) tshi_nap(0.0001);
    return !atomic_load(&u->c->gone);
}

static bool step(run *u) {
    enum { MOST_TRIES = 8 };
    bool may_fail = !u->c->plain && u->model.step == u->p->fail_step, good = false;
    double total = 0;
    if (may_fail && !gather(u)) return false;
    for (int i = 0; i < (may_fail ? MOST_TRIES : 1) && !good && !u->r->failed; i++)
        good = try_step(u, may_fail, &total);
    if (!tshi_check(u->r, good, "step %d: it fails again and again: %s", u->model.step, tsh_error_message()))
        return false;
    if (!u->c->phase->average) add_number(u, ENTRY_LOSS, total);
    if (!check_all_own(u) || !update(u)) return false;
    if (u->p->look || u->model.step == tshi_program_steps(u->p)) add_wholes(u, ENTRY_PARAMETER);
    return !u->r->failed;
}

void tshi_course_run(tshi_rank *r, void *arg) {
    tshi_training_course *c = arg;
    run *u = calloc(1, sizeof *u);
    if (!u) abort();
    *u = (run){.r = r, .c = c, .p = c->p, .trace = &c->traces[r->rank]};
    bool good = set_up(u), more = c->last < tshi_program_steps(c->p);
    for (int i = c->first; i <= c->last && good; i++) {
        u->model.step = i;
        good = step(u) && (!more || (i < c->last && !c->phase->background) || save(u));
    }
    if (good && more) tshi_check_ok(r, tsh_checkpoint_wait(r->world));
    if (r->failed) atomic_store(&c->gone, true);
    for (int i = 0; i < u->others; i++) tsh_tape_destroy(u->other[i]);
    tsh_optimizer_destroy(u->optimizer);
    tsh_data_parallel_destroy(u->dp);
    tshi_model_close(&u->model);
    free(u);
}
