/* The life and the step of an optimizer: what all of them share. */
#include "train/optimizer.h"
#include "device/record.h"
#include "train/data_parallel.h"

#include <math.h>

static tsh_status check_lr(const char *what, double lr) {
    if (lr >= 0 && isfinite(lr)) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s: lr %g is not in [0, inf)", what, lr);
}

tsh_status tshi_optimizer_check(const char *what, const tsh_parameters *list, const void *config, double lr,
                                double weight_decay) {
    if (!list || !config) return tshi_fail(TSH_ERR_ARGUMENT, "%s: parameters and a configuration are required", what);
    if (!(weight_decay >= 0 && isfinite(weight_decay)))
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: weight_decay %g is not in [0, inf)", what, weight_decay);
    return check_lr(what, lr);
}

static tsh_status fill_slot(tshi_optimizer_slot *slot, tsh_tensor *parameter, int states) {
    tsh_status status = tshi_check_computes(parameter->mesh->device, parameter->dtype, "an optimizer's parameter");
    if (status != TSH_OK) return status;
    slot->parameter = tsh_tensor_retain(parameter);
    slot->stepped = tsh_tensor_retain(tshi_shards_values(parameter));
    tshi_gradient_layout(slot->stepped, slot->layout);
    for (int i = 0; i < states && status == TSH_OK; i++) {
        const tsh_tensor *like = slot->stepped;
        status = tshi_tensor_new(like->mesh, tshi_dtype_sum(like->dtype), &like->shape, like->layout, &slot->state[i]);
        if (status == TSH_OK) status = tsh_tensor_fill(slot->state[i], 0);
    }
    return status;
}

tsh_status tshi_optimizer_create(const tshi_optimizer_kind *kind, const tsh_parameters *list, int states, double lr,
                                 tsh_optimizer **out) {
    *out = NULL;
    tsh_optimizer *optimizer = tshi_calloc(&tsh_world_device(list->world)->allocator, 1, sizeof *optimizer);
    if (!optimizer) return TSH_ERR_MEMORY;
    optimizer->kind = kind;
    optimizer->world = list->world;
    optimizer->lr = lr;
    tsh_status status = TSH_OK;
    if (list->count > 0) {
        optimizer->slots =
            tshi_calloc(&tsh_world_device(list->world)->allocator, (size_t)list->count, sizeof *optimizer->slots);
        optimizer->updates =
            tshi_calloc(&tsh_world_device(list->world)->allocator, (size_t)list->count, sizeof *optimizer->updates);
        status = optimizer->slots && optimizer->updates ? TSH_OK : TSH_ERR_MEMORY;
    }
    tsh_memory_purpose before = tshi_device_purpose(tsh_world_device(list->world), TSH_MEMORY_OPTIMIZER);
    for (int i = 0; i < list->count && status == TSH_OK; i++) {
        optimizer->count = i + 1;
        status = fill_slot(&optimizer->slots[i], list->items[i].tensor, states);
    }
    tshi_device_purpose(tsh_world_device(list->world), before);
    if (status == TSH_OK) {
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
        tsh_tensor_release(optimizer->slots[i].parameter);
        tsh_tensor_release(optimizer->slots[i].stepped);
        for (int s = 0; s < TSHI_MAX_STATES; s++) tsh_tensor_release(optimizer->slots[i].state[s]);
    }
    tshi_free(allocator, optimizer->slots);
    tshi_free(allocator, optimizer->updates);
    tshi_free(allocator, optimizer);
}

static tshi_update update_of(const tshi_optimizer_slot *slot) {
    tshi_update u = {.n = slot->stepped->numel, .grad = tshi_data(slot->gradient), .p = tshi_data(slot->stepped)};
    for (int i = 0; i < TSHI_MAX_STATES; i++) u.state[i] = slot->state[i] ? tshi_data(slot->state[i]) : NULL;
    return u;
}

static bool decays(const tsh_optimizer *optimizer, const tshi_optimizer_slot *slot) {
    return optimizer->weight_decay > 0 && !(optimizer->decay_matrices && slot->parameter->shape.ndim < 2);
}

/* Steps the parameters that decay, or those that do not. Neighbours in the list that have one dtype and have taken
 * equally many steps are updated by one call. */
static void step_parameters(tsh_optimizer *optimizer, bool decaying) {
    double weight_decay = decaying ? optimizer->weight_decay : 0;
    const tshi_optimizer_slot *first = NULL;
    int count = 0;
    for (int i = 0; i < optimizer->count; i++) {
        tshi_optimizer_slot *slot = &optimizer->slots[i];
        if (!slot->gradient || decays(optimizer, slot) != decaying) continue;
        slot->steps++;
        if (count > 0 && (slot->steps != first->steps || slot->stepped->dtype != first->stepped->dtype)) {
            optimizer->kind->step(optimizer, first->stepped->dtype, first->steps, weight_decay, count,
                                  optimizer->updates);
            count = 0;
        }
        if (count == 0) first = slot;
        optimizer->updates[count++] = update_of(slot);
    }
    if (count == 0) return;
    optimizer->kind->step(optimizer, first->stepped->dtype, first->steps, weight_decay, count, optimizer->updates);
}

/* The gradients of this step, of the boxes that the optimizer was made for. */
static tsh_status take_gradients(tsh_optimizer *optimizer) {
    char a[160], b[160];
    for (int i = 0; i < optimizer->count; i++) {
        tshi_optimizer_slot *slot = &optimizer->slots[i];
        const tsh_tensor *g = slot->gradient = tsh_tensor_grad(slot->parameter);
        if (!g || (g->numel == slot->stepped->numel && tshi_layouts_equal(g->mesh->axes, g->layout, slot->layout)))
            continue;
        return tshi_fail(
            TSH_ERR_STATE,
            "optimizer_step: the gradient is %s, and the optimizer was made for %s: a tsh_data_parallel with "
            "a level is created before it, and outlives it",
            tsh_tensor_describe(g, a, sizeof a), tsh_tensor_describe(slot->stepped, b, sizeof b));
    }
    return TSH_OK;
}

/* Sharded parameters change: every rank has the memory for gathering them, or none goes on. */
static tsh_status reserve(const tsh_optimizer *optimizer) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < optimizer->count; i++) {
        if (optimizer->slots[i].gradient) tshi_shards_mark(optimizer->slots[i].parameter);
    }
    for (int i = 0; i < optimizer->count && status == TSH_OK; i++) {
        tsh_data_parallel *dp = tshi_data_parallel_of(optimizer->slots[i].parameter);
        if (dp) status = tshi_shards_reserve(dp);
    }
    return status;
}

static tsh_status gather(const tsh_optimizer *optimizer) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < optimizer->count && status == TSH_OK; i++) {
        tsh_data_parallel *dp = tshi_data_parallel_of(optimizer->slots[i].parameter);
        if (dp) status = tshi_shards_gather(dp);
    }
    return status;
}

tsh_status tsh_optimizer_step(tsh_optimizer *optimizer) {
    if (!optimizer) return tshi_fail(TSH_ERR_ARGUMENT, "optimizer_step: an optimizer is required");
    for (int i = 0; i < optimizer->count; i++) {
        tsh_status status = tshi_gradient_wait(optimizer->slots[i].parameter);
        if (status != TSH_OK) return status;
    }
    tsh_status status = take_gradients(optimizer);
    if (status == TSH_OK) status = reserve(optimizer);
    if (status != TSH_OK) return status;
    step_parameters(optimizer, true);
    step_parameters(optimizer, false);
    status = gather(optimizer);
    if (status != TSH_OK) return status;
    tsh_device *device = tsh_world_device(optimizer->world);
    tshi_record_step(device->record);
    return device->ops->check(device);
}

void tsh_optimizer_zero_grad(tsh_optimizer *optimizer) {
    for (int i = 0; optimizer && i < optimizer->count; i++) tsh_tensor_zero_grad(optimizer->slots[i].parameter);
}

tsh_status tsh_optimizer_set_lr(tsh_optimizer *optimizer, double lr) {
    if (!optimizer) return tshi_fail(TSH_ERR_ARGUMENT, "optimizer_set_lr: an optimizer is required");
    tsh_status status = check_lr("optimizer_set_lr", lr);
    if (status == TSH_OK) optimizer->lr = lr;
    return status;
}
