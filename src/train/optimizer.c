/* Creating and stepping optimizers: what all kinds share. */
#include "train/optimizer.h"

#include "autograd/grad/sparse.h"
#include "base/hash.h"
#include "device/record.h"
#include "device/trace.h"

#include <math.h>
#include <string.h>

/* A larger learning rate makes any parameter useless. */
#define LR_OUT_OF_RANGE 1e6

static tsh_status check_lr(const char *what, double lr) {
    if (lr >= 0 && isfinite(lr)) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s: lr %g is not in [0, inf)", what, lr);
}

static tsh_status check_groups(const char *what, const tsh_parameters *list, const tsh_parameter_group *groups) {
    for (const tsh_parameter_group *g = groups; g && g->pattern; g++) {
        int i = 0;
        if (!(g->lr_factor >= 0 && isfinite(g->lr_factor)) || !(g->weight_decay >= 0 && isfinite(g->weight_decay))) {
            return tshi_fail(TSH_ERR_ARGUMENT, "%s: lr_factor %g and weight_decay %g of '%.100s' must be in [0, inf)",
                             what, g->lr_factor, g->weight_decay, g->pattern);
        }
        while (i < list->count && !tshi_parameter_matches(g->pattern, list->items[i].name)) i++;
        if (i < list->count) continue;
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: the group '%.100s' matches none of %d parameters", what, g->pattern,
                         list->count);
    }
    return TSH_OK;
}

tsh_status tshi_optimizer_check(const char *what, const tsh_parameters *list, const void *config,
                                const tshi_optimizer_common *common, tsh_optimizer **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "%s: out is NULL", what);
    *out = NULL;
    if (!list || !config) return tshi_fail(TSH_ERR_ARGUMENT, "%s: parameters and a configuration are required", what);
    if (!(common->weight_decay >= 0 && isfinite(common->weight_decay)))
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: weight_decay %g is not in [0, inf)", what, common->weight_decay);
    tsh_status status = check_groups(what, list, common->groups);
    return status == TSH_OK ? check_lr(what, common->lr) : status;
}

/* A random stream for each name and step, distinct from those of tshi_world_stream. */
static uint64_t stream_of(const char *name) {
    uint64_t hash = TSHI_FINGERPRINT;
    for (const char *c = name; *c; c++) hash = tshi_fingerprint_add(hash, (unsigned char)*c);
    return (hash | UINT64_C(1) << 63) & ~(uint64_t)UINT32_MAX;
}

void tshi_optimizer_renew_master(tshi_optimizer_slot *slot) {
    const tsh_tensor *p = slot->parameter;
    if (!slot->master || (slot->steps > 0 && slot->version == tshi_tensor_version(p))) return;
    tsh_device *device = tshi_device_of(p);
    device->ops->copy.convert(device, p->numel, p->dtype, tshi_data(p), slot->master->dtype, tshi_data(slot->master));
    slot->version = tshi_tensor_version(p);
}

/* Called before the slot is stepped. */
static void begin_step(tshi_optimizer_slot *slot) {
    tshi_optimizer_renew_master(slot);
    slot->steps++;
    tshi_data_to_write(slot->parameter);
    slot->version = tshi_tensor_version(slot->parameter);
}

/* The target of a parameter that only tsh_optimizer_step steps. */
static const tshi_target_ops stepped_ops = {.steps = true};

static tsh_status fill_slot(tsh_optimizer *optimizer, tshi_optimizer_slot *slot, const tshi_parameter *item,
                            int states) {
    tsh_tensor *parameter = item->tensor;
    tsh_status status = tshi_check_computes(parameter->mesh->device, parameter->dtype, "an optimizer's parameter");
    if (status != TSH_OK) return status;
    if (optimizer->low_bits == TSH_STOCHASTIC_ROUNDING && parameter->dtype == TSH_FLOAT16) {
        return tshi_fail(TSH_ERR_DTYPE, "'%s' is float16: TSH_STOCHASTIC_ROUNDING is for bfloat16", item->name);
    }
    slot->parameter = tshi_tensor_retain(parameter);
    slot->target.ops = &stepped_ops;
    slot->optimizer = optimizer;
    if (parameter->gradient) tshi_gradient_attach(parameter, &slot->target);
    slot->stream = stream_of(item->name);
    slot->numel = parameter->numel;
    tshi_gradient_layout(parameter, slot->layout);
    if (optimizer->low_bits == TSH_MASTER_WEIGHTS && tshi_dtype_sum(parameter->dtype) != parameter->dtype) {
        const tsh_tensor *like = slot->parameter;
        status = tshi_tensor_materialize(like);
        if (status == TSH_OK)
            status =
                tshi_tensor_new(like->mesh, tshi_dtype_sum(like->dtype), &like->shape, like->layout, &slot->master);
        if (status == TSH_OK) tshi_optimizer_renew_master(slot);
    }
    for (int i = 0; i < states && status == TSH_OK; i++) {
        const tsh_tensor *like = slot->parameter;
        status = tshi_tensor_new(like->mesh, tshi_dtype_sum(like->dtype), &like->shape, like->layout, &slot->state[i]);
        if (status == TSH_OK) status = tsh_tensor_fill(slot->state[i], 0);
    }
    return status;
}

/* Gives the slot its rate, a new one unless another slot has the same. rates has room for one a slot. */
static void choose_rate(tsh_optimizer *optimizer, tshi_optimizer_slot *slot, const char *name,
                        const tshi_optimizer_common *common) {
    tshi_rate rate = {1, common->weight_decay, 0};
    const tsh_parameter_group *group = common->groups;
    while (group && group->pattern && !tshi_parameter_matches(group->pattern, name)) group++;
    if (group && group->pattern)
        rate = (tshi_rate){group->lr_factor > 0 ? group->lr_factor : 1, group->weight_decay, 0};
    if (common->decay_matrices && slot->parameter->shape.ndim < 2) rate.weight_decay = 0;
    if (optimizer->kind->scale) rate.scale = optimizer->kind->scale(common->config, slot->parameter, name);
    slot->rate = 0;
    while (slot->rate < optimizer->rate_count && memcmp(&optimizer->rates[slot->rate], &rate, sizeof rate) != 0)
        slot->rate++;
    if (slot->rate == optimizer->rate_count) optimizer->rates[optimizer->rate_count++] = rate;
}

static bool rounds_stochastically(const tsh_optimizer *optimizer, const tsh_tensor *parameter) {
    return optimizer->low_bits == TSH_STOCHASTIC_ROUNDING && parameter->dtype == TSH_BFLOAT16;
}

static tsh_status make_updates(tsh_optimizer *optimizer) {
    const tsh_allocator *allocator = &tsh_world_device(optimizer->world)->allocator;
    bool stochastic = false;
    for (int i = 0; i < optimizer->count; i++) {
        const tsh_tensor *parameter = optimizer->slots[i].parameter;
        bool here = rounds_stochastically(optimizer, parameter);
        optimizer->update_count += here ? tshi_tensor_blocks(parameter) : 1;
        stochastic = stochastic || here;
    }
    size_t count = (size_t)optimizer->update_count;
    optimizer->updates = tshi_calloc(allocator, count, sizeof *optimizer->updates);
    if (stochastic) optimizer->roundings = tshi_calloc(allocator, count, sizeof *optimizer->roundings);
    return optimizer->updates && (!stochastic || optimizer->roundings) ? TSH_OK : TSH_ERR_MEMORY;
}

static void warn_of_lost_bits(const tsh_optimizer *optimizer, const tsh_parameters *list) {
    for (int i = 0; i < list->count && optimizer->low_bits == TSH_LOSE_LOW_BITS && list->world->rank == 0; i++) {
        const tshi_parameter *p = &list->items[i];
        if (tshi_dtype_sum(p->tensor->dtype) == p->tensor->dtype) continue;
        tshi_log(&list->world->log, TSH_LOG_WARNING,
                 "%s: '%s' is %s: steps that are small relative to the parameter are lost (low_bits = "
                 "TSH_MASTER_WEIGHTS or TSH_STOCHASTIC_ROUNDING keeps them)",
                 optimizer->kind->name, p->name, tsh_dtype_name(p->tensor->dtype));
        return;
    }
}

tsh_status tshi_optimizer_create(const tshi_optimizer_kind *kind, const tsh_parameters *list, int states,
                                 const tshi_optimizer_common *common, tsh_optimizer **out) {
    if ((int)common->low_bits < TSH_LOSE_LOW_BITS || common->low_bits > TSH_STOCHASTIC_ROUNDING)
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: low_bits is %d", kind->name, (int)common->low_bits);
    tsh_optimizer *optimizer = tshi_calloc(&tsh_world_device(list->world)->allocator, 1, sizeof *optimizer);
    if (!optimizer) return TSH_ERR_MEMORY;
    optimizer->kind = kind;
    optimizer->world = list->world;
    optimizer->lr = common->lr;
    optimizer->low_bits = common->low_bits;
    tsh_status status = tshi_compare_lists(list);
    if (status == TSH_OK && list->count > 0) {
        const tsh_allocator *allocator = &tsh_world_device(list->world)->allocator;
        optimizer->slots = tshi_calloc(allocator, (size_t)list->count, sizeof *optimizer->slots);
        optimizer->rates = tshi_calloc(allocator, (size_t)list->count, sizeof *optimizer->rates);
        status = optimizer->slots && optimizer->rates ? TSH_OK : TSH_ERR_MEMORY;
    }
    tsh_memory_purpose before = tshi_device_purpose(tsh_world_device(list->world), TSH_MEMORY_OPTIMIZER);
    for (int i = 0; i < list->count && status == TSH_OK; i++) {
        tshi_optimizer_slot *slot = &optimizer->slots[optimizer->count];
        if (tshi_gradient_is_frozen(list->items[i].tensor)) continue;
        optimizer->count++;
        const tshi_parameter *item = &list->items[i];
        bool whole = optimizer->kind->scale && optimizer->kind->scale(common->config, item->tensor, item->name) > 0;
        status = fill_slot(optimizer, slot, item, whole ? 1 : states);
        if (status == TSH_OK) choose_rate(optimizer, slot, item->name, common);
    }
    tshi_device_purpose(tsh_world_device(list->world), before);
    if (status == TSH_OK && optimizer->count > 0) status = make_updates(optimizer);
    if (status == TSH_OK) {
        warn_of_lost_bits(optimizer, list);
        *out = optimizer;
    } else {
        tsh_optimizer_destroy(optimizer);
    }
    return status;
}

void tsh_optimizer_destroy(tsh_optimizer *optimizer) {
    if (!optimizer) return;
    const tsh_allocator *allocator = &tsh_world_device(optimizer->world)->allocator;
    for (int i = 0; i < optimizer->count; i++) {
        tshi_optimizer_slot *slot = &optimizer->slots[i];
        if (slot->parameter && slot->parameter->gradient) tshi_gradient_detach(slot->parameter, &slot->target);
        tshi_tensor_release(slot->parameter);
        tshi_tensor_release(slot->master);
        for (int s = 0; s < TSHI_MAX_STATES; s++) tshi_tensor_release(slot->state[s]);
    }
    tshi_free(allocator, optimizer->slots);
    tshi_free(allocator, optimizer->rates);
    tshi_free(allocator, optimizer->updates);
    tshi_free(allocator, optimizer->roundings);
    tshi_free(allocator, optimizer);
}

/* Elements from `offset` on, or NULL without a tensor. */
static void *elements(const tsh_tensor *t, int64_t offset) {
    return t ? (char *)tshi_data(t) + (size_t)offset * tsh_dtype_size(t->dtype) : NULL;
}

/* The update of n elements from `offset` on, with the gradient `grad` of this dtype. */
static tshi_update update_of(const tshi_optimizer_slot *slot, int64_t offset, int64_t n, const void *grad,
                             tsh_dtype dtype) {
    tshi_update u = {.n = n,
                     .grad = grad,
                     .p = elements(slot->parameter, offset),
                     .master = elements(slot->master, offset),
                     .wide_grad = dtype != slot->parameter->dtype};
    for (int i = 0; i < TSHI_MAX_STATES; i++) u.state[i] = elements(slot->state[i], offset);
    return u;
}

/* Adds a block, whose elements are rounded with random words by global index. */
static void add_block(tsh_optimizer *optimizer, const tshi_optimizer_slot *slot, int64_t number, int64_t at) {
    int64_t offset;
    tshi_block b = tshi_tensor_block(slot->parameter, number, &offset);
    const tsh_tensor *g = slot->gradient;
    optimizer->updates[at] = update_of(slot, offset, b.outer * b.n * b.inner, elements(g, offset), g->dtype);
    optimizer->roundings[at] = (tshi_rounding){.seed = optimizer->world->seed,
                                               .stream = slot->stream + (uint32_t)slot->steps,
                                               .first = (b.outer_start * b.global_n + b.start) * b.inner,
                                               .run = b.n * b.inner,
                                               .stride = b.global_n * b.inner};
    optimizer->updates[at].rounding = &optimizer->roundings[at];
}

/* Adds the slot's updates from index `count` on, and returns the new count. */
static int add_updates(tsh_optimizer *optimizer, const tshi_optimizer_slot *slot, int count) {
    if (!rounds_stochastically(optimizer, slot->parameter)) {
        const tsh_tensor *g = slot->gradient;
        optimizer->updates[count] = update_of(slot, 0, slot->parameter->numel, tshi_data(g), g->dtype);
        return count + 1;
    }
    int64_t blocks = tshi_tensor_blocks(slot->parameter);
    for (int64_t b = 0; b < blocks; b++) add_block(optimizer, slot, b, count + b);
    return count + (int)blocks;
}

/* Steps the parameters that have this rate. One call updates neighbours in the list that have the same dtype and number
 * of steps. */
static void step_parameters(tsh_optimizer *optimizer, int rate) {
    const tshi_optimizer_slot *first = NULL;
    int count = 0;
    for (int i = 0; i < optimizer->count; i++) {
        tshi_optimizer_slot *slot = &optimizer->slots[i];
        if (!slot->gradient || slot->rate != rate) continue;
        begin_step(slot);
        if (count > 0 && (slot->steps != first->steps || slot->parameter->dtype != first->parameter->dtype)) {
            optimizer->kind->step(optimizer, first->parameter->dtype, first->steps, &optimizer->rates[rate], count,
                                  optimizer->updates);
            count = 0;
        }
        if (count == 0) first = slot;
        count = add_updates(optimizer, slot, count);
    }
    if (count == 0) return;
    optimizer->kind->step(optimizer, first->parameter->dtype, first->steps, &optimizer->rates[rate], count,
                          optimizer->updates);
}

/* Takes the gradients of this step, and checks that their boxes are those at creation. */
static tsh_status take_gradients(tsh_optimizer *optimizer) {
    for (int i = 0; i < optimizer->count; i++) {
        tshi_optimizer_slot *slot = &optimizer->slots[i];
        bool sparse = tshi_gradient_is_sparse(slot->parameter);
        const tsh_tensor *g = slot->gradient = sparse ? NULL : tsh_tensor_grad(slot->parameter);
        if (!g || (g->numel == slot->numel && tshi_layouts_equal(g->mesh->axes, g->layout, slot->layout))) continue;
        return tshi_fail(TSH_ERR_STATE,
                         "optimizer_step: parameter %d has become the slice %s since the optimizer was created: create "
                         "a tsh_data_parallel with a level before the optimizer",
                         i, TSHI_TENSOR_TEXT(slot->parameter));
    }
    return TSH_OK;
}

static void step_rows_taken(tshi_gradient_target *target, int64_t first, int64_t count, const void *values);

/* The target of a parameter that is stepped in backward. */
static const tshi_target_ops fused_ops = {.take_rows = step_rows_taken, .steps = true};

/* True when some parameter has a gradient or a fused step, or this rank has no part of any. */
static bool has_gradients(const tsh_optimizer *optimizer) {
    bool any = false;
    for (int i = 0; i < optimizer->count; i++) {
        const tshi_optimizer_slot *slot = &optimizer->slots[i];
        if (slot->gradient || slot->target.ops == &fused_ops || tsh_tensor_sparse_grad(slot->parameter, NULL, NULL))
            return true;
        any = any || slot->parameter->numel > 0;
    }
    return !any;
}

/* Warns of steps that change nothing, probably by mistake. A learning-rate schedule may begin with one 0. */
static void warn_of_idle_steps(tsh_optimizer *optimizer) {
    const tsh_log_sink *log = &optimizer->world->log;
    const char *name = optimizer->kind->name;
    optimizer->still_steps = optimizer->lr == 0 ? optimizer->still_steps + 1 : 0;
    if (optimizer->still_steps == 2) {
        tshi_log(log, TSH_LOG_WARNING, "%s: the second step in a row with a learning rate of 0: no parameter changes",
                 name);
    }
    if (optimizer->lr > LR_OUT_OF_RANGE && !optimizer->told_lr) {
        optimizer->told_lr = true;
        tshi_log(log, TSH_LOG_WARNING, "%s: a step with the learning rate %g", name, optimizer->lr);
    }
    if (optimizer->told_empty || (has_gradients(optimizer) && optimizer->count > 0)) return;
    optimizer->told_empty = true;
    if (optimizer->count == 0) {
        tshi_log(log, TSH_LOG_WARNING,
                 "%s: a step of no parameters: the list was empty when the optimizer was created from it", name);
        return;
    }
    tshi_log(log, TSH_LOG_WARNING,
             "%s: a step, and none of %d parameters has a gradient: no parameter changes (is tsh_backward missing, or "
             "are these not the parameters of the model?)",
             name, optimizer->count);
}

/* Sets the update of parameter row `to` by row `from` of a sparse gradient, of `cols` elements. */
static void set_row(const tsh_optimizer *optimizer, const tshi_optimizer_slot *slot, const tsh_tensor *gradient,
                    int64_t from, int64_t to, int64_t cols, tshi_update *u, tshi_rounding *rounding) {
    const tsh_tensor *p = slot->parameter;
    *u = update_of(slot, to * cols, cols, elements(gradient, from * cols), gradient->dtype);
    if (!rounds_stochastically(optimizer, p)) return;
    int64_t row = tshi_shape_start(p->mesh, &p->shape, p->layout, 0) + to, all = p->shape.global[1];
    *rounding = (tshi_rounding){.seed = optimizer->world->seed,
                                .stream = slot->stream + (uint32_t)slot->steps,
                                .first = row * all + tshi_shape_start(p->mesh, &p->shape, p->layout, 1),
                                .run = cols,
                                .stride = all};
    u->rounding = rounding;
}

/* Steps the rows of a sparse gradient, each as a separate parameter with the slot's number of steps. */
static void step_rows(tsh_optimizer *optimizer, tshi_optimizer_slot *slot) {
    enum { MOST = 128 };
    tshi_update updates[MOST];
    tshi_rounding roundings[MOST];
    int64_t rows, cols = slot->parameter->shape.local[1];
    const int64_t *row;
    const tsh_tensor *gradient = tsh_tensor_sparse_grad(slot->parameter, &rows, &row);
    const tshi_rate *rate = &optimizer->rates[slot->rate];
    int count = 0;
    begin_step(slot);
    for (int64_t i = 0; i < rows; i++) {
        set_row(optimizer, slot, gradient, i, row[i], cols, &updates[count], &roundings[count]);
        count++;
        if (count < MOST && i < rows - 1) continue;
        optimizer->kind->step(optimizer, slot->parameter->dtype, slot->steps, rate, count, updates);
        count = 0;
    }
}

/* With TSHARD_CHECK=1: warns of a parameter that a step has made infinite or NaN. */
static void warn_of_lost_values(tsh_optimizer *optimizer) {
    for (int i = 0; i < optimizer->count && !optimizer->told_lost; i++) {
        const tsh_tensor *p = optimizer->slots[i].parameter;
        bool found = false;
        if (tshi_tensor_look_for(TSHI_NOT_FINITE, p, &found) != TSH_OK || !found) continue;
        optimizer->told_lost = true;
        tshi_log(&optimizer->world->log, TSH_LOG_WARNING,
                 "%s: step %lld has left parameter %d, '%s', with an infinity or a NaN (learning rate %g)",
                 optimizer->kind->name, (long long)optimizer->slots[i].steps, i, p->name ? p->name : "", optimizer->lr);
    }
}

static tsh_status step_all_slots(tsh_optimizer *optimizer) {
    tsh_status own = tshi_owner_check(&optimizer->world->owner, "optimizer_step");
    if (own != TSH_OK) return own;
    for (int i = 0; i < optimizer->count; i++) {
        tsh_status status = tshi_gradient_check(optimizer->slots[i].parameter);
        if (status != TSH_OK) return status;
    }
    tsh_status status = tshi_compare_values(optimizer);
    if (status == TSH_OK) status = take_gradients(optimizer);
    if (status != TSH_OK) return status;
    warn_of_idle_steps(optimizer);
    if (optimizer->kind->prepare) status = optimizer->kind->prepare(optimizer);
    for (int rate = 0; rate < optimizer->rate_count && status == TSH_OK; rate++) step_parameters(optimizer, rate);
    if (optimizer->kind->finish) optimizer->kind->finish(optimizer);
    if (status != TSH_OK) return status;
    for (int i = 0; i < optimizer->count; i++) {
        tshi_optimizer_slot *slot = &optimizer->slots[i];
        if (tsh_tensor_sparse_grad(slot->parameter, NULL, NULL)) step_rows(optimizer, slot);
    }
    tsh_device *device = tsh_world_device(optimizer->world);
    tshi_record_step(device->record);
    optimizer->world->optimizes = true;
    if (optimizer->world->checked) warn_of_lost_values(optimizer);
    return device->ops->check(device);
}

tsh_status tsh_optimizer_step(tsh_optimizer *optimizer) {
    if (!optimizer) return tshi_failure_hold(tshi_fail(TSH_ERR_ARGUMENT, "optimizer_step: an optimizer is required"));
    const tsh_device *device = tsh_world_device(optimizer->world);
    tshi_trace_event *event = device->trace ? tshi_trace_open(device->trace, TSHI_TRACE_STEP) : NULL;
    tsh_status status = optimizer->before_step.call ? optimizer->before_step.call(optimizer->before_step.user) : TSH_OK;
    if (status == TSH_OK) status = step_all_slots(optimizer);
    if (event) tshi_trace_close(event);
    return tshi_failure_hold(status);
}

/* --- steps within backward ---------------------------------------------------------------------------------------- */

static void step_rows_taken(tshi_gradient_target *target, int64_t first, int64_t count, const void *values) {
    tshi_optimizer_slot *slot = (tshi_optimizer_slot *)target;
    const tsh_optimizer *optimizer = slot->optimizer;
    const tshi_rate *rate = &optimizer->rates[slot->rate];
    int64_t cols = slot->parameter->shape.local[1];
    tsh_dtype dtype = slot->parameter->dtype;
    if (first == 0) begin_step(slot);
    tshi_update u = update_of(slot, first * cols, count * cols, values, dtype);
    if (count > 0) optimizer->kind->step(optimizer, dtype, slot->steps, rate, 1, &u);
}

static bool is_fused(const tsh_tensor *parameter) {
    const tshi_gradient_target *target = parameter->gradient->target;
    while (target && target->ops != &fused_ops) target = target->under;
    return target != NULL;
}

bool tshi_optimizer_steps_in_backward(const tsh_optimizer *optimizer) {
    bool any = false;
    for (int i = 0; i < optimizer->count && !any; i++) any = is_fused(optimizer->slots[i].parameter);
    return any;
}

tsh_status tsh_optimizer_step_in_backward(tsh_optimizer *optimizer, tsh_tensor *parameter) {
    int i = 0;
    while (optimizer && parameter && i < optimizer->count && optimizer->slots[i].parameter != parameter) i++;
    if (!optimizer || !parameter || i == optimizer->count || parameter->shape.ndim != 2) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "optimizer_step_in_backward: the tensor must be a parameter of the optimizer with two dims");
    }
    tshi_optimizer_slot *slot = &optimizer->slots[i];
    if (!tshi_gradient_of(parameter)) return TSH_ERR_MEMORY;
    if (slot->target.ops == &fused_ops) return TSH_OK;
    bool other = is_fused(parameter), sharded = tshi_gradient_whole(parameter) != parameter;
    bool whole = optimizer->rates[slot->rate].scale > 0;
    if (other || sharded || whole || rounds_stochastically(optimizer, parameter)) {
        return tshi_fail(TSH_ERR_STATE, "optimizer_step_in_backward: the parameter %s",
                         other     ? "is already stepped in backward by another optimizer"
                         : sharded ? "is sharded by a tsh_data_parallel"
                         : whole   ? "is stepped as a whole matrix by Muon"
                                   : "has TSH_STOCHASTIC_ROUNDING");
    }
    slot->target.ops = &fused_ops;
    tshi_gradient_detach(parameter, &slot->target); /* attached unless the tensor got its gradient state later */
    tshi_gradient_attach(parameter, &slot->target);
    return TSH_OK;
}

/* --- settings ----------------------------------------------------------------------------------------------------- */

void tsh_optimizer_zero_grad(tsh_optimizer *optimizer) {
    for (int i = 0; optimizer && i < optimizer->count; i++) tsh_tensor_zero_grad(optimizer->slots[i].parameter);
}

tsh_status tsh_optimizer_set_lr(tsh_optimizer *optimizer, double lr) {
    if (!optimizer) return tshi_fail(TSH_ERR_ARGUMENT, "optimizer_set_lr: an optimizer is required");
    tsh_status status = check_lr("optimizer_set_lr", lr);
    if (status == TSH_OK) optimizer->lr = lr;
    return status;
}

double tsh_optimizer_lr(const tsh_optimizer *optimizer) {
    return optimizer ? optimizer->lr : 0;
}
