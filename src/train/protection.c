/* Protecting values: which step they belong to, and their copies (protection.h). */
#include "train/protection.h"
#include "base/hash.h"

#include <stdio.h>
#include <string.h>

#define ALIGNMENT 64

/* --- what is protected -------------------------------------------------------------------------------------------- */

/* Adds "NAME", or "NAME.PART". */
static tsh_status add_item(const tsh_allocator *allocator, tshi_protected *items, int *count, const char *name,
                           const char *part, tsh_tensor *tensor) {
    size_t size = strlen(name) + (part ? strlen(part) : 0) + 2;
    for (int a = 0; a < tensor->mesh->axes; a++) {
        if (tshi_layout_is_own(tensor->layout[a]))
            return tshi_fail(TSH_ERR_LAYOUT, "protection: '%s' is %s", name, TSHI_TENSOR_TEXT(tensor));
    }
    tshi_protected *item = &items[*count];
    item->name = tshi_calloc(allocator, size, 1);
    if (!item->name) return TSH_ERR_MEMORY;
    snprintf(item->name, size, "%s%s%s", name, part ? "." : "", part ? part : "");
    item->tensor = tshi_tensor_retain(tensor);
    ++*count;
    return tshi_tensor_materialize(tensor);
}

static const char *name_of(const tsh_parameters *list, const tsh_tensor *parameter) {
    for (int i = 0; i < list->count; i++) {
        if (list->items[i].tensor == parameter) return list->items[i].name;
    }
    return NULL;
}

static tsh_status add_slot(const tsh_allocator *allocator, const tsh_parameters *list, const tsh_optimizer *optimizer,
                           int i, tshi_protected *items, int *count) {
    tshi_optimizer_slot *slot = &optimizer->slots[i];
    const char *name = i < list->count && list->items[i].tensor == slot->parameter ? list->items[i].name
                                                                                   : name_of(list, slot->parameter);
    if (!name) return tshi_fail(TSH_ERR_ARGUMENT, "protection: a parameter of the optimizer is not in the list");
    tshi_optimizer_renew_master(slot);
    tsh_status status = TSH_OK;
    for (int s = 0; s < TSHI_MAX_STATES && status == TSH_OK; s++) {
        if (slot->state[s]) status = add_item(allocator, items, count, name, optimizer->kind->state[s], slot->state[s]);
    }
    if (status == TSH_OK && slot->master) status = add_item(allocator, items, count, name, "master", slot->master);
    return status;
}

tsh_status tshi_protected_list(const tsh_parameters *list, const tsh_optimizer *optimizer, tshi_protected **out,
                               int *count) {
    const tsh_allocator *allocator = &list->world->allocator;
    int slots = optimizer ? optimizer->count : 0;
    size_t most = (size_t)list->count + (size_t)slots * (TSHI_MAX_STATES + 1);
    tsh_status status = TSH_OK;
    *count = 0;
    *out = tshi_calloc(allocator, most + 1, sizeof **out);
    if (!*out) return TSH_ERR_MEMORY;
    for (int i = 0; i < list->count && status == TSH_OK; i++)
        status = add_item(allocator, *out, count, list->items[i].name, NULL, list->items[i].tensor);
    for (int i = 0; i < slots && status == TSH_OK; i++) status = add_slot(allocator, list, optimizer, i, *out, count);
    if (status == TSH_OK) return TSH_OK;
    tshi_protected_free(allocator, *out, *count);
    *out = NULL;
    *count = 0;
    return status;
}

void tshi_protected_free(const tsh_allocator *allocator, tshi_protected *items, int count) {
    for (int i = 0; items && i < count; i++) {
        tshi_free(allocator, items[i].name);
        tshi_tensor_release(items[i].tensor);
    }
    tshi_free(allocator, items);
}

tsh_box tshi_protected_box(const tsh_tensor *tensor, int rank) {
    tshi_placement placement = tshi_tensor_placement(tensor);
    int member = tshi_placement_member(&placement, rank);
    if (member >= 0) return tshi_placement_box(&placement, tensor->shape.ndim, tensor->shape.global, member);
    return (tsh_box){0};
}

/* Elements of the box that a rank has. */
static int64_t numel_at(const tsh_tensor *tensor, int rank) {
    tshi_placement placement = tshi_tensor_placement(tensor);
    if (tshi_placement_member(&placement, rank) < 0) return 0;
    tsh_box box = tshi_protected_box(tensor, rank);
    return tshi_box_numel(tensor->shape.ndim, &box);
}

/* --- the present step --------------------------------------------------------------------------------------------- */

static uint64_t fingerprint_of(const tsh_protection *p) {
    uint64_t fingerprint = TSHI_FINGERPRINT;
    for (int i = 0; i < p->count; i++)
        fingerprint = tshi_fingerprint_add(fingerprint, tshi_tensor_version(p->items[i].tensor));
    for (int i = 0; i < p->slots; i++)
        fingerprint = tshi_fingerprint_add(fingerprint, (uint64_t)p->optimizer->slots[i].steps);
    return fingerprint;
}

bool tshi_protection_is_current(const tsh_protection *p) {
    return p->now.step >= 0 && p->fingerprint == fingerprint_of(p);
}

static void note_progress(tsh_protection *p, int64_t step) {
    p->now.step = step;
    p->now.seed = p->world->seed;
    p->now.next_stream = p->world->next_stream;
    p->now.lr = p->optimizer ? p->optimizer->lr : 0;
    for (int i = 0; i < p->slots; i++) p->now.steps[i] = p->optimizer->slots[i].steps;
    p->fingerprint = fingerprint_of(p);
}

static void copy_progress(const tshi_progress *from, int slots, tshi_progress *to) {
    int64_t *steps = to->steps;
    *to = *from;
    to->steps = steps;
    if (slots) memcpy(steps, from->steps, (size_t)slots * sizeof *steps);
}

/* --- copies ------------------------------------------------------------------------------------------------------- */

/* Works are in flight. */
static bool is_in_flight(const tsh_protection *p) {
    return p->works_count > 0;
}

/* Waits for the copy in flight, on this rank. */
static tsh_status end_works(tsh_protection *p) {
    tsh_status first = TSH_OK;
    bool arrived = true;
    for (int i = 0; i < p->works_count; i++) {
        tsh_status status = tsh_work_wait(p->works[i]);
        arrived = arrived && (i >= p->receives || status == TSH_OK);
        if (first == TSH_OK) first = status;
        tsh_work_release(p->works[i]);
    }
    if (is_in_flight(p)) p->copy[(p->copies_made - 1) % TSHI_COPIES].arrived = arrived;
    p->works_count = p->receives = 0;
    return first;
}

static void keep_own(tsh_protection *p) {
    char *to = tshi_data_to_write(p->own);
    for (int i = 0; i < p->count; i++) {
        const tsh_tensor *t = p->items[i].tensor;
        size_t bytes = (size_t)t->numel * tsh_dtype_size(t->dtype);
        if (bytes) memcpy(to + p->items[i].own_at, tshi_data(t), bytes);
    }
    copy_progress(&p->now, p->slots, &p->kept);
}

/* After this call the tensors may change. */
static tsh_status finish_copy(tsh_protection *p) {
    if (!is_in_flight(p)) return TSH_OK;
    tsh_status status = end_works(p);
    if (status == TSH_OK && !tshi_protection_is_current(p))
        status =
            tshi_fail(TSH_ERR_STATE, "protection_step: the values have changed after tsh_protection_step, while their "
                                     "copy was in flight, by a call other than tsh_optimizer_step");
    status = tshi_group_agree(p->group, "protection_step: all parts of a copy have arrived", status);
    if (status == TSH_OK) keep_own(p);
    return status;
}

/* tsh_optimizer.before_step */
static tsh_status finish_before_step(void *protection) {
    return finish_copy(protection);
}

static tsh_status receive_boxes(tsh_protection *p, int which) {
    tsh_status status = TSH_OK;
    for (int w = 0; w < p->ward_count; w++) {
        for (int i = 0; i < p->count && status == TSH_OK; i++) {
            tsh_tensor *to = p->wards[w].boxes[which][i];
            if (to) status = tsh_recv_async(p->group, to, p->wards[w].rank, &p->works[p->works_count]);
            p->works_count += to && status == TSH_OK;
        }
    }
    p->receives = p->works_count;
    return status;
}

static tsh_status send_boxes(tsh_protection *p) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < p->count && status == TSH_OK; i++) {
        const tsh_tensor *t = p->items[i].tensor;
        if (t->numel == 0) continue;
        status = tsh_send_async(p->group, t, p->holder, &p->works[p->works_count]);
        p->works_count += status == TSH_OK;
    }
    return status;
}

/* The first copy is complete when the call returns: from then on any one rank may die. */
static tsh_status begin_copy(tsh_protection *p) {
    int which = (int)(p->copies_made % TSHI_COPIES);
    if (p->world->size == 1) return TSH_OK;
    p->copy[which].arrived = false;
    p->copy[which].step = p->now.step;
    p->copies_made++;
    tsh_status status = receive_boxes(p, which);
    if (status == TSH_OK) status = send_boxes(p);
    bool waits = p->copies_made == 1 || !p->optimizer || tshi_optimizer_steps_in_backward(p->optimizer);
    return status == TSH_OK && waits ? finish_copy(p) : status;
}

tsh_status tsh_protection_step(tsh_protection *p, int64_t step) {
    if (!p || step < 0) return tshi_fail(TSH_ERR_ARGUMENT, "protection_step: a protection and a step are required");
    bool first = p->now.step < 0;
    tsh_status status = finish_copy(p); /* no step came after it */
    if (status != TSH_OK) return status;
    note_progress(p, step);
    return p->every > 0 && (first || step % p->every == 0) ? begin_copy(p) : TSH_OK;
}

/* --- creating ----------------------------------------------------------------------------------------------------- */

static int count_on(const tshi_machine *m, int size, int node) {
    int count = 0;
    for (int i = 0; i < size; i++) count += m->node[i] == node;
    return count;
}

/* The rank with that index on the machine. */
static int rank_on(const tshi_machine *m, int node, int index) {
    int rank = 0;
    while (m->node[rank] != node || index-- > 0) rank++;
    return rank;
}

int tshi_protection_holder(const tsh_world *world, int rank) {
    const tshi_machine *m = &world->machine;
    if (m->nodes < 2) return (rank + 1) % world->size;
    int next = (m->node[rank] + 1) % m->nodes, index = count_on(m, rank, m->node[rank]);
    return rank_on(m, next, index % count_on(m, world->size, next));
}

/* Memory for the ward's boxes in both copies. */
static tsh_status open_boxes(tsh_protection *p, tshi_ward *ward) {
    const tsh_mesh *mesh = tsh_world_mesh(p->world);
    tsh_status status = TSH_OK;
    for (int k = 0; k < TSHI_COPIES && status == TSH_OK; k++) {
        ward->boxes[k] = tshi_calloc(&p->world->allocator, (size_t)p->count + 1, sizeof *ward->boxes[k]);
        if (!ward->boxes[k]) return TSH_ERR_MEMORY;
        for (int i = 0; i < p->count && status == TSH_OK; i++) {
            const tsh_tensor *t = p->items[i].tensor;
            int64_t numel = numel_at(t, ward->rank);
            if (numel > 0) status = tshi_tensor_buffer(mesh, t->dtype, numel, &ward->boxes[k][i]);
        }
    }
    return status;
}

static tsh_status open_copies(tsh_protection *p) {
    const tsh_allocator *allocator = &p->world->allocator;
    int size = p->world->size;
    size_t own = 0;
    for (int i = 0; i < p->count; i++) {
        const tsh_tensor *t = p->items[i].tensor;
        size_t bytes = (size_t)t->numel * tsh_dtype_size(t->dtype);
        p->items[i].own_at = own;
        own += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    if (p->every == 0 || size == 1) return TSH_OK;
    p->holder = tshi_protection_holder(p->world, p->world->rank);
    p->wards = tshi_calloc(allocator, (size_t)size, sizeof *p->wards);
    p->works = tshi_calloc(allocator, (size_t)size * ((size_t)p->count + 1), sizeof(tsh_work *));
    if (!p->wards || !p->works) return TSH_ERR_MEMORY;
    tsh_status status = tshi_tensor_buffer(tsh_world_mesh(p->world), TSH_UINT8, (int64_t)own, &p->own);
    for (int i = 0; i < size && status == TSH_OK; i++) {
        if (tshi_protection_holder(p->world, i) != p->world->rank) continue;
        tshi_ward *ward = &p->wards[p->ward_count++];
        ward->rank = i;
        status = open_boxes(p, ward);
    }
    return status;
}

static tsh_status open_progress(tsh_protection *p) {
    size_t slots = (size_t)p->slots + 1;
    p->now.step = p->kept.step = -1;
    for (int k = 0; k < TSHI_COPIES; k++) p->copy[k].step = -1;
    p->now.steps = tshi_calloc(&p->world->allocator, slots, sizeof *p->now.steps);
    p->kept.steps = tshi_calloc(&p->world->allocator, slots, sizeof *p->kept.steps);
    return p->now.steps && p->kept.steps ? TSH_OK : TSH_ERR_MEMORY;
}

static tsh_status open_group(tsh_protection *p, tsh_status status) {
    int size = p->world->size, *ranks = tshi_calloc(&p->world->allocator, (size_t)size, sizeof *ranks);
    for (int i = 0; ranks && i < size; i++) ranks[i] = i;
    status = tshi_group_agree(p->world->group, "protection_create", ranks ? status : TSH_ERR_MEMORY);
    if (status == TSH_OK) status = tsh_group_create(p->world, ranks, size, &p->group);
    tshi_free(&p->world->allocator, ranks);
    return status;
}

tsh_status tsh_protection_create(tsh_parameters *list, tsh_optimizer *optimizer, int every, tsh_protection **out) {
    if (out) *out = NULL;
    if (!list || !out || every < 0 || (optimizer && optimizer->world != list->world))
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "protection_create: parameters, their optimizer and every >= 0 are required");
    tsh_world *world = list->world;
    if (world->device != world->host) return tshi_fail(TSH_ERR_UNSUPPORTED, "protection_create: tensors on GPUs");
    tsh_protection *p = tshi_calloc(&world->allocator, 1, sizeof *p);
    if (!p) return TSH_ERR_MEMORY;
    *p = (tsh_protection){.world = world, .optimizer = optimizer, .every = every};
    p->slots = optimizer ? optimizer->count : 0;
    tsh_status status = tshi_protected_list(list, optimizer, &p->items, &p->count);
    if (status == TSH_OK) status = open_copies(p);
    if (status == TSH_OK) status = open_progress(p);
    status = open_group(p, status);
    if (status != TSH_OK) {
        tsh_protection_destroy(p);
        return status;
    }
    if (optimizer) optimizer->before_step = (tshi_before_step){finish_before_step, p};
    *out = p;
    return TSH_OK;
}

static void close_ward(const tsh_protection *p, tshi_ward *ward) {
    for (int k = 0; k < TSHI_COPIES; k++) {
        for (int i = 0; ward->boxes[k] && i < p->count; i++) tshi_tensor_release(ward->boxes[k][i]);
        tshi_free(&p->world->allocator, ward->boxes[k]);
    }
}

void tsh_protection_destroy(tsh_protection *p) {
    if (!p) return;
    const tsh_allocator *allocator = &p->world->allocator;
    end_works(p);
    if (p->optimizer && p->optimizer->before_step.user == p) p->optimizer->before_step = (tshi_before_step){NULL, NULL};
    for (int w = 0; w < p->ward_count; w++) close_ward(p, &p->wards[w]);
    tshi_tensor_release(p->own);
    tshi_free(allocator, p->wards);
    tshi_free(allocator, (void *)p->works);
    tshi_free(allocator, p->kept.steps);
    tshi_free(allocator, p->now.steps);
    tshi_protected_free(allocator, p->items, p->count);
    tsh_group_destroy(p->group);
    tshi_free(allocator, p);
}
