/* A program as one of its ranks runs it. */
#include "autograd/grad/state.h"
#include "differential/run.h"
#include "dist/world.h"
#include "layout/layout.h"
#include "support/failing_backward.h"
#include "support/tensors.h"
#include "support/values.h"

#include <stdlib.h>
#include <string.h>

tsh_status tshi_run_note(tshi_run *r, tsh_status status, const char *what) {
    tshi_trace *t = r->part->trace;
    if (status == TSH_OK || t->status != TSH_OK) return status;
    bool tape = r->bench.tape && tsh_tape_status(r->bench.tape) != TSH_OK;
    t->status = status;
    t->pass = r->pass;
    t->step = r->step;
    snprintf(t->words, sizeof t->words, "%s: %s", what, tape ? tsh_tape_message(r->bench.tape) : tsh_error_message());
    if (!tape) tsh_world_fail(r->part->world, t->words); /* a failed tape has reported the failure to the peers */
    return status;
}

/* Waits for all ranks; returns whether the program continues. */
static bool together(tshi_run *r) {
    bool failed = r->part->trace->status != TSH_OK;
    if (!r->part->careful) return !failed;
    return !tshi_gate_pass(r->part->gate, r->part->rank, failed);
}

static bool is_place_of_failure(const tshi_run *r, int at) {
    return r->fails && at == r->p->fail_at % (r->p->steps + r->p->objectives + 1);
}

/* The objective, counted on from the steps, has a call whose own backward fails. */
static bool fails_in_backward(const tshi_run *r, int at) {
    bool objective = at >= r->p->steps && at < r->p->steps + r->p->objectives;
    return objective && is_place_of_failure(r, at) && r->p->seed % 4 < 3;
}

/* Before a step or, counted on, an objective: whether the step is to fail here, and has failed. */
static tsh_status fail_here(tshi_run *r, int at) {
    const tshi_program *p = r->p;
    bool refused = p->fail_rank >= MAX_RANKS;
    if (!is_place_of_failure(r, at) || fails_in_backward(r, at)) return TSH_OK;
    if (!refused && p->fail_rank % tshi_program_ranks(p) != r->part->rank) return TSH_OK;
    if (refused || p->seed % 2) tsh_scale(r->bench.tape, NULL, 1);
    return tshi_run_note(r, TSH_ERR_STATE, "it was asked to fail");
}

/* --- leaves ------------------------------------------------------------------------------------------------------- */

static double element(const tshi_run *r, const tshi_step *s, int64_t i) {
    int copy = tshi_rank_number(r->p, s->layout, TSH_KIND_LOCAL, r->part->rank);
    int place = tshi_rank_number(r->p, s->layout, TSH_KIND_PARTIAL, r->part->rank);
    int terms = tshi_rank_count(r->p, s->layout, TSH_KIND_PARTIAL);
    if (place > 0) return tshi_leaf_term(r->p, s, copy, place, i);
    double value = tshi_leaf_value(r->p, s, copy, i);
    for (int j = 1; j < terms; j++) value -= tshi_leaf_term(r->p, s, copy, j, i);
    return value;
}

void tshi_run_put(tsh_tensor *t, int64_t i, double value) {
    tshi_put(tsh_tensor_dtype(t), tsh_tensor_data(t), i, (tshi_number){value, 0});
}

static void fill_leaf(const tshi_run *r, const tshi_step *s, tsh_tensor *t) {
    tshi_dims whole = tshi_leaf_dims(r->p, s, r->part->rank);
    tshi_held box = tshi_held_of(r->p, s->layout, r->part->rank, &whole);
    for (int64_t i = 0; i < tsh_tensor_local_numel(t); i++)
        tshi_run_put(t, i, element(r, s, tshi_held_index(&box, &whole, i)));
}

/* A step's layout; in a run on one rank without its cut points, which are those of more ranks. */
static tsh_layout layout_of_step(const tshi_run *r, const tsh_layout *layout, int axis) {
    tsh_layout here = *layout;
    const tshi_program_cuts *cuts = tshi_layout_cuts(r->p, here);
    if (cuts && cuts->parts != r->p->size[axis]) here.cuts = 0;
    return here;
}

static tsh_status make_leaf(tshi_run *r, int k) {
    const tshi_step *s = &r->p->step[k];
    bool integer = s->call == CALL_IDS, from_parts = !integer && s->n[LEAF_FLAGS] & FLAG_FROM_PARTS;
    tsh_tensor_config config = {.dtype = integer ? TSH_INT64 : tshi_bench_dtype(&r->bench, s->grad),
                                .ndim = s->shape.ndim};
    tshi_dims whole = tshi_leaf_dims(r->p, s, r->part->rank);
    tshi_held box = tshi_held_of(r->p, s->layout, r->part->rank, &whole);
    memcpy(config.shape, from_parts ? box.shape.dim : whole.dim, sizeof *config.shape * (size_t)config.ndim);
    for (int a = 0; a < r->p->axes; a++)
        config.layout[a] = from_parts ? TSH_LOCAL : layout_of_step(r, &s->layout[a], a);
    tsh_status status = tsh_tensor_create(r->part->mesh, &config, &r->leaf[k]);
    if (status != TSH_OK) return status;
    fill_leaf(r, s, r->leaf[k]);
    if (from_parts) {
        tsh_tensor *part = r->leaf[k];
        for (int a = 0; a < r->p->axes; a++) config.layout[a] = layout_of_step(r, &s->layout[a], a);
        status = tsh_from_local(part, config.layout, whole.dim, &r->leaf[k]);
        tsh_tensor_release(part);
    }
    if (status == TSH_OK && !integer && s->n[LEAF_FLAGS] & FLAG_INIT) {
        status = tsh_tensor_init(r->leaf[k], &(tsh_init){.kind = TSH_INIT_UNIFORM, .a = -1, .b = 1});
    }
    return status == TSH_OK && s->grad ? tsh_tensor_require_grad(r->leaf[k], true) : status;
}

/* --- set-up ------------------------------------------------------------------------------------------------------- */

/* The list has the parameters in the order of their steps. */
static tsh_status check_list(const tshi_run *r) {
    bool same = tsh_parameters_count(r->bench.all) == r->owned_count;
    for (int i = 0; i < r->owned_count && same; i++) {
        const char *name = tsh_parameters_name(r->bench.all, i);
        same = tsh_parameters_tensor(r->bench.all, i) == r->parameter[i] && atoi(name + 1) == r->owned[i].step &&
               tsh_parameters_find(r->bench.all, name) == r->parameter[i];
    }
    return same ? tsh_parameters_check_finite(r->bench.all) : TSH_ERR_STATE;
}

static bool is_table(const tshi_run *r, const tsh_tensor *t) {
    for (int a = 0; a < r->p->axes; a++) {
        if (tsh_tensor_layout(t, r->bench.group[a]).kind == TSH_KIND_PARTIAL) return false;
    }
    return tsh_tensor_ndim(t) == 2;
}

static tsh_status make_parameters(tshi_run *r) {
    tsh_status status = TSH_OK;
    for (int k = 0; k < r->p->steps && status == TSH_OK; k++) {
        tshi_verb call = r->p->step[k].call;
        status = call == CALL_LEAF || call == CALL_IDS ? make_leaf(r, k) : tshi_bench_layer(&r->bench, k);
    }
    r->owned_count = tshi_program_parameters(r->p, r->owned);
    for (int i = 0; i < r->owned_count && status == TSH_OK; i++) {
        const tshi_owned *o = &r->owned[i];
        r->parameter[i] = o->part == OWNED_LEAF ? r->leaf[o->step] : tshi_bench_parameter(&r->bench, o);
        status = tshi_bench_add(&r->bench, o, 0, r->parameter[i]);
    }
    for (int i = 0; i < r->owned_count && status == TSH_OK && r->p->sparse; i++) {
        if (is_table(r, r->parameter[i])) status = tsh_tensor_set_sparse_grad(r->parameter[i]);
    }
    return status == TSH_OK ? check_list(r) : status;
}

/* The schedule takes the values of the first rank over: those of others are wrong until then. */
static tsh_status make_schedule(tshi_run *r) {
    const tshi_program *p = r->p;
    if (p->dp_axis < 0) return TSH_OK;
    tsh_group *group = r->bench.group[p->dp_axis];
    for (int i = 0; i < tsh_parameters_count(r->bench.all); i++) {
        tsh_tensor *t = tsh_parameters_tensor(r->bench.all, i);
        bool taken = tsh_tensor_layout(t, group).kind == TSH_KIND_REPLICATED;
        if (!p->dp_keep && taken && tsh_group_rank(group) > 0) tsh_tensor_fill(t, -77);
    }
    int other = (p->dp_axis + 1) % p->axes; /* values are the same whatever else the buckets sum along it */
    const tsh_data_parallel_config config = {.model =
                                                 p->dp_bucket % 3 && other != p->dp_axis ? r->bench.group[other] : NULL,
                                             .sequence_parallel = p->dp_bucket % 3 == 1 && other != p->dp_axis,
                                             .average = p->dp_average,
                                             .keep_values = p->dp_keep,
                                             .bucket_bytes = (size_t)p->dp_bucket,
                                             .level = (tsh_zero_level)p->dp_level};
    tsh_status status = tsh_data_parallel_create(r->bench.tape, r->bench.all, group, &config, &r->dp);
    bool fits = status != TSH_OK || (tsh_data_parallel_buckets(r->dp) <= r->owned_count &&
                                     tsh_group_size(tsh_data_parallel_group(r->dp)) == p->size[p->dp_axis]);
    return fits ? status : TSH_ERR_STATE;
}

static tsh_status set_up(tshi_run *r) {
    tsh_status status = tshi_bench_open(&r->bench);
    bool able = tsh_function_supports(tsh_world_device(r->part->world), "attention", r->p->dtype);
    if (status == TSH_OK) status = able ? make_parameters(r) : TSH_ERR_STATE;
    if (status == TSH_OK) status = tshi_bench_precision(&r->bench);
    if (status == TSH_OK) status = make_schedule(r);
    if (status == TSH_OK) status = tshi_bench_optimizer(&r->bench);
    return tshi_run_note(r, status, "set-up");
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

tsh_layout tshi_run_layout(const tshi_run *r, const tsh_tensor *x, int axis) {
    return tsh_tensor_layout(x, r->bench.group[axis]);
}

/* As functions see it: of a parameter that a schedule has made a slice, that of the whole that is gathered for them. */
static tsh_layout seen_layout(const tshi_run *r, tsh_tensor *x, int axis) {
    return tshi_run_layout(r, tshi_gradient_whole(x), axis);
}

/* What tsh_linear_forward takes: features whole, or split along a row layer's own axis alone; no LOCAL there. */
static tsh_tensor *prepare_features(tshi_run *r, const tshi_step *s, tsh_tensor *x) {
    bool row = s->n[LAYER_SHARDING] == TSH_ROW, whole = s->n[LAYER_SHARDING] == PREPARE_WHOLE;
    int own = row || whole ? (int)s->n[LAYER_AXIS] : -1, splits = 0, last = tsh_tensor_ndim(x) - 1;
    for (int a = 0; a < r->p->axes; a++) {
        tsh_layout layout = seen_layout(r, x, a);
        if (layout.kind == TSH_KIND_SHARD && layout.dim == last) splits |= 1 << a;
    }
    if (row && splits == 1 << own) return x;
    for (int a = r->p->axes - 1; a >= 0 && x; a--) {
        if (splits >> a & 1) x = tsh_gather(r->bench.tape, x, r->bench.group[a], last);
    }
    bool local = x && own >= 0 && seen_layout(r, x, own).kind == TSH_KIND_LOCAL;
    return local ? tsh_reduce(r->bench.tape, x, r->bench.group[own]) : x;
}

/* tsh_embedding_forward takes no sums along its own axis. */
static tsh_tensor *prepare_ids(tshi_run *r, const tshi_step *s, tsh_tensor *ids) {
    int own = (int)s->n[LAYER_AXIS];
    bool sum = s->n[LAYER_SHARDING] != TSH_DENSE && seen_layout(r, ids, own).kind == TSH_KIND_PARTIAL;
    return sum ? tsh_reduce(r->bench.tape, ids, r->bench.group[own]) : ids;
}

static tsh_tensor *move_all(tshi_run *r, const tshi_step *s, tsh_tensor *x) {
    tsh_layout to[TSH_MAX_AXES];
    for (int a = 0; a < r->p->axes; a++) {
        tsh_layout from = seen_layout(r, x, a);
        to[a] = from.kind == TSH_KIND_LOCAL ? from : layout_of_step(r, &s->layout[a], a);
        if (to[a].kind == TSH_KIND_SHARD && s->salt % 3 == 0) to[a].dim -= tsh_tensor_ndim(x);
    }
    return tsh_redistribute(r->bench.tape, x, s->salt % 2 ? r->part->mesh : NULL, to);
}

/* No other axis of lower or, before this one, equal split order splits the dim. */
static bool splits_first(const tshi_run *r, tsh_tensor *x, int axis, tsh_layout to) {
    int d = to.dim < 0 ? to.dim + tsh_tensor_ndim(x) : to.dim;
    for (int a = 0; a < r->p->axes; a++) {
        tsh_layout other = seen_layout(r, x, a);
        bool before = other.order < to.order || (other.order == to.order && a < axis);
        if (a != axis && before && other.kind == TSH_KIND_SHARD && other.dim == d) return false;
    }
    return true;
}

static tsh_tensor *move(tshi_run *r, const tshi_step *s, tsh_tensor *x) {
    if (s->call == CALL_MOVE_ALL) return move_all(r, s, x);
    if (s->call == CALL_PREPARE) return s->integer ? prepare_ids(r, s, x) : prepare_features(r, s, x);
    tsh_tape *tape = r->bench.tape;
    tsh_group *group = r->bench.group[s->n[0]];
    tsh_layout from = seen_layout(r, x, (int)s->n[0]), to = layout_of_step(r, &s->layout[0], (int)s->n[0]);
    bool splits = to.kind == TSH_KIND_SHARD || to.kind == TSH_KIND_PARTIAL;
    int back = s->salt % 3 == 0 ? tsh_tensor_ndim(x) : 0; /* dims that count from the end now and then */
    if (to.kind == TSH_KIND_SHARD) to.dim -= back;
    if (to.cuts && !splits_first(r, x, (int)s->n[0], to)) to.cuts = 0;
    switch (s->call) {
    case CALL_SCATTER: return from.kind == TSH_KIND_REPLICATED ? tsh_scatter(tape, x, group, (int)s->n[1] - back) : x;
    case CALL_GATHER: return from.kind == TSH_KIND_SHARD ? tsh_gather(tape, x, group, from.dim - back) : x;
    case CALL_REDUCE:
        return from.kind == TSH_KIND_PARTIAL || from.kind == TSH_KIND_LOCAL ? tsh_reduce(tape, x, group) : x;
    case CALL_COPY: return from.kind == TSH_KIND_REPLICATED ? tsh_copy(tape, x, group) : x;
    default: return from.kind == TSH_KIND_LOCAL && splits ? x : tsh_redistribute_along(tape, x, group, to);
    }
}

static int alias_of(const tshi_run *r, int k) {
    for (int j = 0; j < k; j++) {
        if (r->value[j] == r->value[k]) return j;
    }
    return -1;
}

/* Beside a parameter with an arithmetic the others may be of another dtype: they are cast for the call. */
static void other_dtypes(tshi_run *r, const tshi_step *s, tsh_tensor *in[MAX_IN]) {
    tshi_policy policy = r->p->policy;
    tsh_dtype other = policy == POLICY_COMPUTED_WIDE ? r->p->narrow : TSH_FLOAT32;
    bool parameter = false, takes = (s->call >= CALL_MATMUL && s->call <= CALL_MUL) || s->call == CALL_BIAS;
    for (int i = 0; i < s->inputs; i++) parameter = parameter || r->p->step[s->in[i]].grad;
    if (policy < POLICY_COMPUTED_NARROW || !takes || !parameter) return;
    for (int i = 0; i < s->inputs; i++) {
        if (!r->p->step[s->in[i]].grad && s->salt >> 20 & 1u) in[i] = tsh_cast(r->bench.tape, in[i], other);
    }
}

static tsh_status forward_step(tshi_run *r, int k, bool recording) {
    const tshi_step *s = &r->p->step[k];
    tsh_tensor *in[MAX_IN] = {NULL};
    for (int i = 0; i < s->inputs; i++) in[i] = r->value[s->in[i]];
    r->step = k;
    tsh_tape_set_recording(r->bench.tape, recording && !s->detached);
    other_dtypes(r, s, in);
    if (s->call == CALL_LEAF || s->call == CALL_IDS) {
        r->value[k] = r->leaf[k];
    } else {
        r->value[k] = tshi_verb_moves(s->call) ? move(r, s, in[0]) : tshi_bench_call(&r->bench, k, in);
    }
    tsh_tape_set_recording(r->bench.tape, true);
    if (!r->value[k]) return tshi_run_note(r, tsh_tape_status(r->bench.tape), tshi_verbs[s->call].name);
    int alias = alias_of(r, k);
    tshi_trace_tensor(r->part->trace, &(tshi_entry){.kind = ENTRY_VALUE, .index = k, .pass = r->pass, .alias = alias},
                      r->value[k]);
    if (!recording || !s->retain || alias >= 0 || tshi_verb_moves(s->call)) return TSH_OK;
    return tshi_run_note(r, tsh_tensor_retain_grad(r->value[k]), "retain_grad");
}

/* Nothing that came later has changed a value that has memory still. */
static tsh_status check_values(tshi_run *r) {
    tshi_trace now = {0};
    tsh_status status = TSH_OK;
    for (int k = 0; k < r->p->steps && status == TSH_OK; k++) {
        if (!tsh_tensor_data(r->value[k])) continue;
        const tshi_entry *e = tshi_trace_value(r->part->trace, r->pass, k);
        tshi_entry *again = tshi_trace_tensor(&now, e, r->value[k]);
        size_t bytes = sizeof(double) * (size_t)e->count;
        if (bytes == 0 || !memcmp(now.numbers + again->at, r->part->trace->numbers + e->at, bytes)) continue;
        status = TSH_ERR_STATE;
        r->part->trace->status = status;
        r->part->trace->pass = r->pass;
        r->part->trace->step = k;
        snprintf(r->part->trace->words, sizeof r->part->trace->words, "value %d was changed by a later call", k);
        tsh_world_fail(r->part->world, r->part->trace->words);
    }
    tshi_trace_free(&now);
    return status;
}

static tsh_status forward(tshi_run *r, bool recording) {
    tsh_status status = TSH_OK;
    tshi_open_segments open = {0};
    for (int k = 0; k < r->p->steps && status == TSH_OK; k++) {
        if (recording) tshi_run_begin_segment(r, k, &open);
        status = fail_here(r, k);
        if (status == TSH_OK) status = forward_step(r, k, recording);
        if (status == TSH_OK) status = tshi_run_end_segments(r, k, &open);
        if (!together(r)) return TSH_ERR_STATE;
    }
    return status == TSH_OK ? check_values(r) : status;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* This rank's is the first of the copies that ranks share for their own use: the gradient counts once. */
static bool holds_first(const tshi_run *r, const tsh_layout *layout) {
    for (int a = 0; a < r->p->axes; a++) {
        int index = tshi_rank_index(r->p, r->part->rank, a), first = index;
        if (layout[a].sharing == TSH_SHARED_OWN)
            tshi_layout_sharers(&layout[a], tshi_program_parts(r->p, a), index, &first);
        if (first != index) return false;
    }
    return true;
}

static bool is_shared_for_own_use(const tshi_run *r, const tsh_tensor *x) {
    for (int a = 0; a < r->p->axes; a++) {
        if (tshi_run_layout(r, x, a).sharing == TSH_SHARED_OWN) return true;
    }
    return false;
}

/* Laid out as the objective's gradient, whole numbers or small ones. */
static tsh_status make_gradient(const tshi_run *r, const tshi_objective *o, tsh_tensor **out) {
    const tsh_tensor *x = r->value[o->value];
    tshi_dims whole = {.ndim = tsh_tensor_ndim(x)};
    memcpy(whole.dim, tsh_tensor_shape(x), sizeof *whole.dim * (size_t)whole.ndim);
    tsh_tensor_config config = {.dtype = tsh_tensor_dtype(x), .ndim = whole.ndim};
    memcpy(config.shape, whole.dim, sizeof config.shape);
    for (int a = 0; a < r->p->axes; a++) {
        tsh_layout layout = tshi_run_layout(r, x, a);
        config.layout[a] = layout.kind == TSH_KIND_PARTIAL ? TSH_REPLICATED : layout;
    }
    tsh_status status = tsh_tensor_create(r->part->mesh, &config, out);
    if (status != TSH_OK) return status;
    int copy = tshi_rank_number(r->p, config.layout, TSH_KIND_LOCAL, r->part->rank);
    tshi_held box = tshi_held_of(r->p, config.layout, r->part->rank, &whole);
    bool first = holds_first(r, config.layout);
    for (int64_t i = 0; i < tsh_tensor_local_numel(*out); i++) {
        double value = o->given ? tshi_salted_value(r->p, o->salt, copy, tshi_held_index(&box, &whole, i)) : 1;
        tshi_run_put(*out, i, first ? value : 0);
    }
    return TSH_OK;
}

static tsh_tensor *fail_later(const tshi_run *r, tsh_tensor *x) {
    int ranks[MAX_RANKS], rank = r->p->fail_rank;
    tshi_program_order(r->p, ranks);
    return tshi_test_fail_in_backward(r->bench.tape, x,
                                      rank >= MAX_RANKS ? -1 : ranks[rank % tshi_program_ranks(r->p)]);
}

static tsh_status backward(tshi_run *r, int i) {
    const tshi_objective *o = &r->p->objective[i];
    tsh_tensor *x = r->value[o->value], *gradient = NULL;
    r->step = r->p->steps + i;
    if (fails_in_backward(r, r->step)) x = fail_later(r, x);
    if (r->dp) tsh_data_parallel_set_sync(r->dp, o->sync);
    bool given = o->given || is_shared_for_own_use(r, x);
    tsh_status status = given ? make_gradient(r, o, &gradient) : TSH_OK;
    bool plain = !given && !o->retain_graph && tsh_tensor_ndim(x) == 0;
    const tsh_backward_config config = {.retain_graph = o->retain_graph, .gradient = gradient};
    const tsh_loss_scale one = {.scale = 1};
    /* An earlier backward may have freed the loss, which apply reads. */
    if (plain && i == 0 && o->salt % 4 == 0) x = tsh_loss_scale_apply(r->bench.tape, &one, x);
    if (status == TSH_OK)
        status = plain ? tsh_backward(r->bench.tape, x) : tsh_backward_with(r->bench.tape, x, &config);
    tsh_tensor_release(gradient);
    return tshi_run_note(r, status, "backward");
}

static void trace_gradients(tshi_run *r, int i) {
    for (int k = 0; k < r->owned_count; k++) {
        const tshi_entry what = {.kind = ENTRY_GRADIENT, .index = k, .pass = r->pass, .objective = i, .alias = -1};
        if (!tshi_parameter_shows_gradient(r->p, r->parameter[k])) continue;
        if (r->p->seed % 5 == 0) tsh_tensor_release(tsh_tensor_grad(r->parameter[k])); /* borrowed: it stays */
        tshi_trace_gradient(r->part->trace, &what, r->parameter[k]);
    }
    for (int k = 0; k < r->p->steps; k++) {
        bool traced = r->p->step[k].retain && !tshi_verb_moves(r->p->step[k].call) && alias_of(r, k) < 0;
        if (!traced) continue;
        tshi_trace_tensor(
            r->part->trace,
            &(tshi_entry){.kind = ENTRY_RETAINED, .index = k, .pass = r->pass, .objective = i, .alias = -1},
            tsh_tensor_grad(r->value[k]));
    }
}

static tsh_status backwards(tshi_run *r) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < r->p->objectives && status == TSH_OK; i++) {
        status = fail_here(r, r->p->steps + i);
        if (status == TSH_OK) status = backward(r, i);
        if (!together(r)) return TSH_ERR_STATE;
        if (r->dp && !r->p->objective[i].sync) continue;
        trace_gradients(r, i);
    }
    return status;
}

/* --- rounds ------------------------------------------------------------------------------------------------------- */

/* How far the trace and the world's random numbers are. */
typedef struct place {
    int count;
    size_t used;
    uint64_t stream;
} place;

static place place_of(const tshi_run *r) {
    const tshi_trace *t = r->part->trace;
    return (place){t->count, t->used, r->part->world->next_stream};
}

static void go_back_to(tshi_run *r, const place *to) {
    r->part->trace->count = to->count;
    r->part->trace->used = to->used;
    r->part->world->next_stream = to->stream;
}

/* The step of two evaluations, without the write between them: the next time values may be gathered ahead of it. */
static tsh_status rehearse(tshi_run *r) {
    const place before = place_of(r);
    tsh_status status = forward(r, false);
    if (status == TSH_OK) status = forward(r, false);
    if (status != TSH_OK) return status;
    go_back_to(r, &before);
    return tshi_run_note(r, tsh_tape_reset(r->bench.tape), "tape_reset");
}

static tsh_status evaluate(tshi_run *r) {
    if (!r->p->evaluate) return TSH_OK;
    tsh_status status = r->p->rewrite ? rehearse(r) : TSH_OK;
    if (status == TSH_OK) status = forward(r, false);
    if (status == TSH_OK && r->p->rewrite) {
        r->pass = -1;
        status = tshi_run_rewrite(r);
        if (status == TSH_OK) status = forward(r, false);
    }
    return status == TSH_OK ? tshi_run_note(r, tsh_tape_reset(r->bench.tape), "tape_reset") : status;
}

/* Around a backward that a write may spoil the ranks wait for each other: it may fail on some of them only, which have
 * read what was written, and a rank elsewhere would recover in another call than its peers. False when one has
 * failed. */
static bool gather_to_spoil(tshi_run *r, tsh_status *status) {
    bool failed = *status != TSH_OK;
    if (r->p->spoil >= 0 && tshi_gate_pass(r->part->gate, r->part->rank, failed) && !failed) *status = TSH_ERR_STATE;
    return *status == TSH_OK;
}

/* A step that fails, on each rank where it is when it hears of the failure, and leaves nothing. */
static tsh_status fail_a_step(tshi_run *r) {
    tsh_world *world = r->part->world;
    const place before = place_of(r);
    size_t live = tsh_device_memory(tsh_world_device(world)).live[TSH_MEMORY_ACTIVATIONS];
    if (r->p->fail_round != r->pass) return TSH_OK;
    r->fails = !tshi_gate_pass(r->part->gate, r->part->rank, false); /* no rank is in an earlier step */
    tsh_status status = forward(r, true);
    if (status == TSH_OK) status = backwards(r);
    if (status == TSH_OK) status = fail_here(r, r->p->steps + r->p->objectives);
    if (status == TSH_OK) status = tsh_barrier(tsh_world_group(world));
    bool failed = status != TSH_OK;
    r->fails = false;
    r->part->trace->status = TSH_OK;
    status = tshi_run_note(r, tsh_tape_reset(r->bench.tape), "tape_reset after a failure");
    go_back_to(r, &before);
    bool left = false;
    for (int k = 0; k < r->owned_count && tshi_program_ranks(r->p) > 1; k++) /* one rank has nobody to tell */
        left = left || (tshi_gradient_schedule_of(r->parameter[k]) && tsh_tensor_grad(r->parameter[k]));
    tsh_parameters_zero_grad(r->bench.all);
    left = left || tsh_device_memory(tsh_world_device(world)).live[TSH_MEMORY_ACTIVATIONS] != live;
    if (status == TSH_OK && (left || !failed))
        status =
            tshi_run_note(r, TSH_ERR_STATE,
                          left ? "a failed step leaves memory or gradients" : "a failure has not come to this rank");
    return status;
}

static tsh_status train(tshi_run *r) {
    double norm = 0;
    tsh_status status = fail_a_step(r);
    if (status == TSH_OK) status = forward(r, true);
    if (!gather_to_spoil(r, &status)) return status;
    status = tshi_run_spoil(r);
    if (status == TSH_OK) status = backwards(r);
    if (!gather_to_spoil(r, &status)) return status;
    r->step = -1;
    status = tshi_run_note(r, tshi_bench_step(&r->bench, &norm), "step");
    if (status == TSH_OK && r->p->clip > 0) {
        tshi_trace_number(r->part->trace, &(tshi_entry){.kind = ENTRY_NORM, .pass = r->pass, .alias = -1}, norm);
    }
    if (!together(r)) return TSH_ERR_STATE;
    return tshi_run_note(r, tsh_tape_reset(r->bench.tape), "tape_reset");
}

static void trace_parameters(tshi_run *r) {
    for (int k = 0; k < r->owned_count && r->p->spoil < SPOIL_VALUE; k++) { /* a value may be a view of one */
        tshi_trace_tensor(r->part->trace,
                          &(tshi_entry){.kind = ENTRY_PARAMETER, .index = k, .pass = r->pass, .alias = -1},
                          r->parameter[k]);
    }
}

/* After a failure all ranks make this call, and the world is usable again: the failure has reached each of them by
 * now. */
static bool recover(tshi_run *r) {
    return (r->bench.tape ? tsh_tape_reset(r->bench.tape) : tsh_world_recover(r->part->world)) == TSH_OK;
}

static void close_run(tshi_run *r) {
    tsh_data_parallel_destroy(r->dp);
    tshi_bench_close(&r->bench);
    for (int k = 0; k < r->p->steps; k++) tsh_tensor_release(r->leaf[k]);
}

bool tshi_part_run(const tshi_part *part) {
    tshi_run *r = calloc(1, sizeof *r);
    if (!r) abort();
    *r = (tshi_run){.part = part, .p = part->p, .step = -1};
    r->bench = (tshi_bench){.p = part->p, .world = part->world, .mesh = part->mesh};
    bool deterministic = part->world->deterministic;
    part->world->deterministic = deterministic || part->p->deterministic;
    tsh_status status = set_up(r);
    if (!together(r)) status = TSH_ERR_STATE;
    if (status == TSH_OK) status = evaluate(r);
    for (r->pass = 1; r->pass <= r->p->rounds && status == TSH_OK; r->pass++) status = train(r);
    if (status == TSH_OK) trace_parameters(r);
    bool failed = tshi_gate_pass(part->gate, part->rank, status != TSH_OK), usable = !failed || recover(r);
    close_run(r);
    part->world->deterministic = deterministic;
    free(r);
    return usable;
}
