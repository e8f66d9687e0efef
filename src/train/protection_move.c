/* Moving protected values to the world that follows. What each rank of the new world has is gathered; from it every
 * rank makes the same choice of a step, and of a source for each box. Ranks that have joined have nothing to give; they
 * learn from the first rank that has which boxes there were. */
#include "base/hash.h"
#include "train/protection.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What a rank of the new world can give. */
typedef struct offer {
    int32_t rank, size;         /* in the former world, and that of it; size 0: the rank has joined */
    int32_t every, tensors;     /* of the protection */
    int64_t now;                /* the step of its tensors; -1: none */
    int64_t own;                /* the step of the copy of its own boxes */
    int64_t wards[TSHI_COPIES]; /* and of those that have come from its wards */
} offer;

/* A former rank's box of the tensor that is moved. */
typedef struct former_box {
    int64_t first; /* the first rank with the same box; -1: this rank has no elements */
    tsh_box box;
} former_box;

typedef struct moving {
    const tsh_protection *p; /* NULL on a rank that has joined */
    tsh_world *world;        /* the new one */
    tshi_protected *items;   /* of the new lists, in the order of p->items */
    int count;
    int slots;         /* of the optimizer */
    offer *offers;     /* [world->size] */
    int first_old;     /* the first rank that has a protection */
    bool some_joined;  /* a rank has none */
    int former;        /* size of the former world */
    int64_t step;      /* the one to which all go */
    int *holder;       /* [former] the rank that holds the copies of that one */
    former_box *boxes; /* [former] scratch */
    int64_t *counts;   /* [2 * size] */
    char lost[TSHI_LINE];
} moving;

/* --- what there is ------------------------------------------------------------------------------------------------ */

/* All parts of the copy in flight have arrived, or, of an earlier one, had. */
static bool has_arrived(const tsh_protection *p, int which) {
    bool all = p->copy[which].arrived, in_flight = p->works_count > 0 && (p->copies_made - 1) % TSHI_COPIES == which;
    if (!in_flight) return all;
    all = true;
    for (int i = 0; i < p->receives && all; i++) all = tsh_work_test(p->works[i], &all) == TSH_OK && all;
    return all;
}

static offer offer_of(const tsh_protection *p) {
    offer o = {.rank = -1, .now = -1, .own = -1};
    for (int k = 0; k < TSHI_COPIES; k++) o.wards[k] = -1;
    if (!p) return o;
    o = (offer){.rank = p->world->rank, .size = p->world->size, .every = p->every, .tensors = p->count};
    o.now = tshi_protection_is_current(p) ? p->now.step : -1;
    o.own = p->kept.step;
    for (int k = 0; k < TSHI_COPIES; k++) o.wards[k] = has_arrived(p, k) ? p->copy[k].step : -1;
    return o;
}

static bool has_of_wards(const offer *o, int64_t step) {
    for (int k = 0; k < TSHI_COPIES; k++) {
        if (o->wards[k] == step) return true;
    }
    return false;
}

/* The rank has the boxes of that former rank, as they were after the step. */
static bool gives(const moving *m, const offer *o, int former, int64_t step) {
    if (o->rank == former && (o->now == step || o->own == step)) return true;
    return o->every > 0 && m->holder[former] == o->rank && has_of_wards(o, step);
}

/* Fills m->boxes for a tensor of the former world. */
static void group_boxes(const moving *m, const tsh_tensor *t) {
    tshi_placement placement = tshi_tensor_placement(t);
    int ndim = t->shape.ndim;
    for (int i = 0; i < m->former; i++) {
        former_box *b = &m->boxes[i];
        *b = (former_box){.first = -1};
        if (tshi_placement_member(&placement, i) < 0) continue;
        b->box = tshi_protected_box(t, i);
        if (tshi_box_numel(ndim, &b->box) == 0) continue;
        b->first = i;
        for (int j = 0; j < i && b->first == i; j++) {
            const former_box *other = &m->boxes[j];
            if (other->first == j && !memcmp(&b->box, &other->box, sizeof b->box)) b->first = j;
        }
    }
}

/* A rank of the new world that gives the boxes of former rank `first` or of a replica of it, and of which of these: the
 * receiver itself if it can, else one that depends on the receiver, so that several share the work. -1: no rank. */
static int source_of(const moving *m, int first, int64_t step, int receiver, int *former) {
    int size = m->world->size;
    for (int k = 0; k < size; k++) {
        int rank = (receiver + k) % size;
        for (int i = first; i < m->former; i++) {
            if (m->boxes[i].first != first || !gives(m, &m->offers[rank], i, step)) continue;
            *former = i;
            return rank;
        }
    }
    return -1;
}

/* Every box of every tensor is there. Otherwise `lost` names the first that is not. */
static bool is_whole(moving *m, int64_t step) {
    int former;
    for (int t = 0; t < m->p->count; t++) {
        group_boxes(m, m->p->items[t].tensor);
        for (int i = 0; i < m->former; i++) {
            if (m->boxes[i].first != i || source_of(m, i, step, 0, &former) >= 0) continue;
            snprintf(m->lost, sizeof m->lost,
                     "after step %" PRId64 " no rank has the part of '%.160s' that rank %d had", step,
                     m->p->items[t].name, i);
            return false;
        }
    }
    return true;
}

/* The largest step before `below` that some rank offers, or -1. */
static int64_t next_step(const moving *m, int64_t below) {
    int64_t found = -1;
    for (int r = 0; r < m->world->size; r++) {
        const offer *o = &m->offers[r];
        if (o->now < below && o->now > found) found = o->now;
        if (o->own < below && o->own > found) found = o->own;
    }
    return found;
}

static tsh_status choose_step(moving *m) {
    char newest[TSHI_LINE] = "no rank has completed a step";
    for (m->step = next_step(m, INT64_MAX); m->step >= 0; m->step = next_step(m, m->step)) {
        if (is_whole(m, m->step)) return TSH_OK;
        if (!strncmp(newest, "no rank has c", 13)) memcpy(newest, m->lost, sizeof newest);
    }
    return tshi_fail(TSH_ERR_STATE, "protection_move: %s, and no earlier step is whole", newest);
}

/* Every rank gets what the first rank with a protection has. */
static tsh_status share(const moving *m, const char *what, void *data, size_t bytes, tsh_status status) {
    const int32_t from = m->first_old;
    if (!m->some_joined) return status;
    return tshi_group_fetch(m->world->group, what, &from, 1, data, bytes, status);
}

static tsh_status agree_on_step(moving *m) {
    tsh_status status = m->p ? choose_step(m) : TSH_OK;
    return share(m, "protection_move: the step", &m->step, sizeof m->step, status);
}

/* --- one tensor --------------------------------------------------------------------------------------------------- */

/* Where this rank has the former rank's box of item t, as it was after the step. */
static const char *memory_of(const moving *m, int t, int former) {
    const tsh_protection *p = m->p;
    if (!p) return NULL;
    bool own = former == p->world->rank;
    if (own && m->offers[m->world->rank].now == m->step) return tshi_data(p->items[t].tensor);
    if (own) return p->kept.step == m->step ? (const char *)tshi_data(p->own) + p->items[t].own_at : NULL;
    for (int w = 0; w < p->ward_count; w++) {
        for (int k = 0; k < TSHI_COPIES && p->wards[w].rank == former; k++) {
            if (m->offers[m->world->rank].wards[k] == m->step) return tshi_data(p->wards[w].boxes[k][t]);
        }
    }
    return NULL;
}

/* The parts of item t that go from one rank of the new world to another, one after another. */
typedef struct parts {
    int first, former;
    tsh_box from, part; /* the former rank's box, and what the receiver wants of it */
} parts;

static bool next_part(const moving *m, int t, int from, int to, parts *q) {
    const tsh_tensor *wanted = m->items[t].tensor;
    tsh_box box = tshi_protected_box(wanted, to);
    if (tshi_box_numel(wanted->shape.ndim, &box) == 0) return false;
    while (++q->first < m->former) {
        if (m->boxes[q->first].first != q->first || source_of(m, q->first, m->step, to, &q->former) != from) continue;
        q->from = m->boxes[q->former].box;
        if (tshi_box_intersect(wanted->shape.ndim, &q->from, &box, &q->part)) return true;
    }
    return false;
}

static int64_t count_parts(const moving *m, int t, int from, int to) {
    int64_t n = 0;
    for (parts q = {.first = -1}; next_part(m, t, from, to, &q);)
        n += tshi_box_numel(m->items[t].tensor->shape.ndim, &q.part);
    return n;
}

static void pack_parts(const moving *m, int t, int to, char **at) {
    const tsh_tensor *wanted = m->items[t].tensor;
    int ndim = wanted->shape.ndim;
    size_t size = tsh_dtype_size(wanted->dtype);
    for (parts q = {.first = -1}; next_part(m, t, m->world->rank, to, &q);) {
        tshi_copy_box(ndim, size, &q.part, memory_of(m, t, q.former), &q.from, *at, &q.part);
        *at += (size_t)tshi_box_numel(ndim, &q.part) * size;
    }
}

static void unpack_parts(const moving *m, int t, int from, const char **at) {
    const tsh_tensor *wanted = m->items[t].tensor;
    int ndim = wanted->shape.ndim;
    size_t size = tsh_dtype_size(wanted->dtype);
    tsh_box own = tsh_tensor_box(wanted);
    for (parts q = {.first = -1}; next_part(m, t, from, m->world->rank, &q);) {
        tshi_copy_box(ndim, size, &q.part, *at, &q.part, tshi_data(wanted), &own);
        *at += (size_t)tshi_box_numel(ndim, &q.part) * size;
    }
}

static tsh_status move_tensor(moving *m, int t) {
    tsh_tensor *wanted = m->items[t].tensor, *in = NULL, *out = NULL;
    int size = m->world->size, me = m->world->rank;
    int64_t sent = 0, received = 0, *outs = m->counts + size;
    if (m->p) group_boxes(m, m->p->items[t].tensor);
    tsh_status status = share(m, "protection_move: boxes", m->boxes, (size_t)m->former * sizeof *m->boxes, TSH_OK);
    if (status != TSH_OK) return status;
    for (int r = 0; r < size; r++) {
        sent += m->counts[r] = count_parts(m, t, me, r);
        received += outs[r] = count_parts(m, t, r, me);
    }
    status = tshi_tensor_buffer(tsh_world_mesh(m->world), wanted->dtype, sent, &in);
    if (status == TSH_OK) status = tshi_tensor_buffer(tsh_world_mesh(m->world), wanted->dtype, received, &out);
    char *to = tshi_data(in);
    for (int r = 0; r < size && status == TSH_OK && sent; r++) pack_parts(m, t, r, &to);
    status = tshi_group_agree(m->world->group, "protection_move: memory", status);
    if (status == TSH_OK) status = tsh_all_to_all(m->world->group, in, m->counts, out, outs);
    const char *from = tshi_data(out);
    if (status == TSH_OK) tshi_data_to_write(wanted);
    for (int r = 0; r < size && status == TSH_OK && received; r++) unpack_parts(m, t, r, &from);
    tshi_tensor_release(in);
    tshi_tensor_release(out);
    return status;
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

/* The numbers of the step, where this rank has them. */
static const tshi_progress *progress_of(const moving *m) {
    const tsh_protection *p = m->p;
    if (!p) return NULL;
    if (m->offers[m->world->rank].now == m->step) return &p->now;
    return p->kept.step == m->step ? &p->kept : NULL;
}

/* Every rank gets the numbers of the first one that has them. */
static tsh_status fetch_progress(const moving *m, tshi_progress *out, int64_t *steps) {
    const tshi_progress *mine = progress_of(m);
    int32_t from = 0;
    int slots = m->slots;
    while (m->offers[from].now != m->step && m->offers[from].own != m->step) from++;
    if (mine) {
        *out = *mine;
        if (slots) memcpy(steps, mine->steps, (size_t)slots * sizeof *steps);
    }
    tsh_status status =
        tshi_group_fetch(m->world->group, "protection_move: numbers", &from, 1, out, sizeof *out, TSH_OK);
    if (status == TSH_OK && slots)
        status = tshi_group_fetch(m->world->group, "protection_move: steps", &from, 1, steps,
                                  (size_t)slots * sizeof *steps, TSH_OK);
    return status;
}

static tsh_status set_numbers(const moving *m, tsh_optimizer *optimizer) {
    const tsh_allocator *allocator = &m->world->allocator;
    tshi_progress found = {0};
    int64_t *steps = tshi_calloc(allocator, (size_t)m->slots + 1, sizeof *steps);
    tsh_status status = tshi_group_agree(m->world->group, "protection_move: numbers", steps ? TSH_OK : TSH_ERR_MEMORY);
    if (status == TSH_OK) status = fetch_progress(m, &found, steps);
    if (status == TSH_OK) {
        m->world->seed = found.seed;
        m->world->next_stream = found.next_stream;
        if (optimizer) optimizer->lr = found.lr;
    }
    for (int i = 0; status == TSH_OK && optimizer && i < optimizer->count; i++) {
        tshi_optimizer_slot *slot = &optimizer->slots[i];
        slot->steps = steps[i];
        slot->version = tshi_tensor_version(slot->parameter); /* the master weights have moved as well */
    }
    tshi_free(allocator, steps);
    return status;
}

/* --- the call ----------------------------------------------------------------------------------------------------- */

static tsh_status compare_lists(const moving *m) {
    for (int i = 0; i < m->p->count || i < m->count; i++) {
        const tshi_protected *old = i < m->p->count ? &m->p->items[i] : NULL, *new = i < m->count ? &m->items[i] : NULL;
        if (!old || !new || strcmp(old->name, new->name) != 0)
            return tshi_fail(TSH_ERR_MISMATCH, "protection_move: tensor %d is '%.160s', and was '%.160s'", i,
                             new ? new->name : "", old ? old->name : "");
        const tsh_tensor *a = old->tensor, *b = new->tensor;
        if (a->dtype == b->dtype && a->shape.ndim == b->shape.ndim &&
            !memcmp(a->shape.global, b->shape.global, sizeof *a->shape.global * (size_t)a->shape.ndim))
            continue;
        return tshi_fail(TSH_ERR_MISMATCH, "protection_move: '%.120s' is %.120s, and was %.120s", old->name,
                         TSHI_WHOLE_TEXT(b), TSHI_WHOLE_TEXT(a));
    }
    return TSH_OK;
}

/* What ranks say of their new lists, where some have no old ones. */
static uint64_t fingerprint_of(const moving *m) {
    uint64_t fingerprint = TSHI_FINGERPRINT;
    for (int i = 0; i < m->count; i++) {
        const tsh_tensor *t = m->items[i].tensor;
        for (const char *c = m->items[i].name; *c; c++) fingerprint = tshi_fingerprint_add(fingerprint, (uint64_t)*c);
        fingerprint = tshi_fingerprint_add(fingerprint, (uint64_t)t->dtype);
        for (int d = 0; d < t->shape.ndim; d++)
            fingerprint = tshi_fingerprint_add(fingerprint, (uint64_t)t->shape.global[d]);
    }
    return fingerprint;
}

static tsh_status open_moving(moving *m, const tsh_parameters *list, const tsh_optimizer *optimizer) {
    m->counts = tshi_calloc(&m->world->allocator, 2 * (size_t)m->world->size, sizeof *m->counts);
    if (!m->counts) return TSH_ERR_MEMORY;
    m->slots = optimizer ? optimizer->count : 0;
    tsh_status status = tshi_protected_list(list, optimizer, &m->items, &m->count);
    return status == TSH_OK && m->p ? compare_lists(m) : status;
}

/* Compares the former worlds that the offers are of. */
static tsh_status find_old(moving *m) {
    const offer *first = NULL;
    for (int r = m->world->size - 1; r >= 0; r--) {
        if (m->offers[r].size == 0) continue;
        first = &m->offers[r];
        m->first_old = r;
    }
    for (int r = 0; r < m->world->size; r++) {
        const offer *o = &m->offers[r];
        m->some_joined = m->some_joined || o->size == 0;
        if (o->size == 0 || (first && o->size == first->size && o->tensors == first->tensors)) continue;
        return tshi_fail(TSH_ERR_MISMATCH, "protection_move: the protections are of different worlds");
    }
    if (first) m->former = first->size;
    return first ? TSH_OK : tshi_fail(TSH_ERR_ARGUMENT, "protection_move: no rank has a protection");
}

static tsh_status open_former(moving *m) {
    const tsh_allocator *allocator = &m->world->allocator;
    tsh_status status = find_old(m);
    if (status != TSH_OK) return status;
    m->boxes = tshi_calloc(allocator, (size_t)m->former, sizeof *m->boxes);
    m->holder = tshi_calloc(allocator, (size_t)m->former, sizeof *m->holder);
    status = m->boxes && m->holder ? TSH_OK : TSH_ERR_MEMORY;
    for (int i = 0; status == TSH_OK && m->p && i < m->former; i++)
        m->holder[i] = tshi_protection_holder(m->p->world, i);
    status = tshi_group_agree(m->world->group, "protection_move: memory", status);
    if (status != TSH_OK) return status;
    return share(m, "protection_move: holders", m->holder, (size_t)m->former * sizeof *m->holder, TSH_OK);
}

tsh_status tsh_protection_move(const tsh_protection *p, tsh_parameters *list, tsh_optimizer *optimizer, int64_t *step) {
    if (!list || !step || (p && p->world == list->world) || (optimizer && optimizer->world != list->world))
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "protection_move: parameters of the world that follows, and step are required");
    moving m = {.p = p, .world = list->world};
    offer mine = offer_of(p);
    char text[TSHI_LINE];
    tsh_status status = open_moving(&m, list, optimizer);
    snprintf(text, sizeof text, "protection_move: %d tensors, %016" PRIx64, m.count, fingerprint_of(&m));
    m.offers = tshi_group_gather(m.world->group, text, &mine, sizeof mine, &status);
    if (status == TSH_OK) status = open_former(&m);
    if (status == TSH_OK) status = agree_on_step(&m);
    for (int t = 0; t < m.count && status == TSH_OK; t++) status = move_tensor(&m, t);
    if (status == TSH_OK) status = set_numbers(&m, optimizer);
    if (status == TSH_OK) *step = m.step;
    m.world->host->ops->memory.release(m.world->host, m.offers);
    tshi_protected_free(&m.world->allocator, m.items, m.count);
    tshi_free(&m.world->allocator, m.holder);
    tshi_free(&m.world->allocator, m.boxes);
    tshi_free(&m.world->allocator, m.counts);
    return status;
}
