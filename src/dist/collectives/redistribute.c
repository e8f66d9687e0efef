/* Exchanges of boxes: packed for an all_to_all, in place where the backend can, or packed for messages. */
#include "dist/collectives/redistribute.h"
#include "dist/collectives/instrument.h"

/* --- filling ------------------------------------------------------------------------------------------------------ */

/* The sum of n elements in each piece, in their order. Pieces beyond the number that the
 * device takes at once are added to the sum of those before. */
static void add_up(tsh_device *device, tsh_dtype dtype, int64_t n, const tshi_piece *piece, int count, size_t offset,
                   void *out) {
    const void *in[TSHI_REDUCE_MAX];
    for (int done = 0; done < count;) {
        int some = 0;
        if (done) in[some++] = out;
        while (some < TSHI_REDUCE_MAX && done < count) in[some++] = (const char *)piece[done++].data + offset;
        device->ops->reduce(device, dtype, TSHI_SUM, n, some, in, 1, &out);
    }
}

/* The sum of pieces of one box. Where the pieces are packed it is made in the first of them, unless `out` has room for
 * it in one run. */
static void fill_sum(tsh_device *device, tsh_dtype dtype, const tshi_runs *r, const tshi_piece *piece, int count,
                     bool packed, char *out) {
    size_t size = tsh_dtype_size(dtype);
    if (packed && r->levels > 1) {
        add_up(device, dtype, r->numel, piece, count, 0, piece->data);
        tshi_runs_copy(device, size, r, piece->data, out);
        return;
    }
    for (int64_t i = 0, n = r->numel / r->count[0]; i < n; i++) {
        int64_t from, to;
        tshi_runs_at(r, 1, i, &from, &to);
        add_up(device, dtype, r->count[0], piece, count, (size_t)from * size, out + (size_t)to * size);
    }
}

void tshi_exchange_fill(const tshi_exchange_plan *plan, tsh_device *device, tsh_dtype dtype, void *out) {
    const tshi_transfer *t = plan->receive;
    size_t size = tsh_dtype_size(dtype);
    int ndim = plan->e.ndim;
    if (plan->zeros) device->ops->copy.zero(device, (size_t)tshi_box_numel(ndim, &plan->wanted) * size, out);
    for (int i = 0, terms; i < plan->receives; i += terms) {
        const tshi_piece *piece = &plan->piece[i];
        terms = 1;
        if (!piece->data) continue; /* the message was received into `out` */
        tshi_runs r = tshi_runs_of(ndim, &t[i].box, piece->box, &plan->wanted);
        for (; i + terms < plan->receives && tshi_transfers_alike(&t[i], &t[i + terms]); terms++) continue;
        if (terms == 1)
            tshi_runs_copy(device, size, &r, piece->data, out);
        else
            fill_sum(device, dtype, &r, piece, terms, piece->box == &t[i].box, out);
    }
}

/* --- packing ------------------------------------------------------------------------------------------------------ */

static int64_t elements(const tshi_exchange_plan *plan, const tshi_transfer *t) {
    return tshi_box_numel(plan->e.ndim, &t->box);
}

/* The memory of `in` that the transfer sends becomes one run at `to`. */
static void pack(const tshi_exchange_plan *plan, const tsh_tensor *in, const tshi_transfer *t, void *to) {
    tshi_runs r = tshi_runs_of(plan->e.ndim, &t->box, &plan->held, &t->box);
    tshi_runs_copy(tshi_device_of(in), tsh_dtype_size(in->dtype), &r, tshi_data(in), to);
}

/* The values stay in `in`. */
static tshi_piece own_piece(const tshi_exchange_plan *plan, const tsh_tensor *in) {
    return (tshi_piece){tshi_data(in), &plan->held};
}

static void fill_own(const tshi_exchange_plan *plan, const tsh_tensor *in, tsh_tensor *out) {
    for (int i = 0; i < plan->receives; i++) plan->piece[i] = own_piece(plan, in);
    if (out && out->numel) tshi_exchange_fill(plan, tshi_device_of(out), out->dtype, tshi_data(out));
}

/* --- as one collective -------------------------------------------------------------------------------------------- */

/* A transfer from this rank to itself is packed too where its values are terms of a sum: all terms lie alike then. */
static bool travels(const tshi_exchange_plan *plan, const tshi_transfer *t) {
    return t->from != t->to || plan->sums;
}

typedef struct packing {
    tsh_tensor *in, *out;
    int64_t *ins, *outs; /* counts of each member */
} packing;

static void count(const tsh_group *group, const tshi_exchange_plan *plan, packing *p) {
    p->ins = group->counts;
    p->outs = group->counts + group->size;
    for (int i = 0; i < 2 * group->size; i++) group->counts[i] = 0;
    for (int i = 0; i < plan->sends; i++) {
        const tshi_transfer *t = &plan->send[i];
        if (travels(plan, t)) p->ins[tshi_group_member(group, t->to)] = elements(plan, t);
    }
    for (int i = 0; i < plan->receives; i++) {
        const tshi_transfer *t = &plan->receive[i];
        if (travels(plan, t)) p->outs[tshi_group_member(group, t->from)] = elements(plan, t);
    }
}

static char *data_of(const tsh_tensor *packed, const int64_t *counts, int member) {
    return (char *)tshi_data(packed) + (size_t)tshi_sum(counts, member) * tsh_dtype_size(packed->dtype);
}

static tsh_status packed_open(const tsh_group *group, const tshi_exchange_plan *plan, const tsh_tensor *in,
                              tsh_dtype dtype, packing *p) {
    count(group, plan, p);
    tsh_status status = tshi_tensor_buffer(group->mesh, dtype, tshi_sum(p->ins, group->size), &p->in);
    if (status == TSH_OK) {
        status = tshi_tensor_buffer(group->mesh, dtype, tshi_sum(p->outs, group->size), &p->out);
    }
    for (int i = 0; status == TSH_OK && i < plan->sends; i++) {
        const tshi_transfer *t = &plan->send[i];
        if (travels(plan, t)) pack(plan, in, t, data_of(p->in, p->ins, tshi_group_member(group, t->to)));
    }
    return status;
}

static tsh_status run_packed(tsh_group *group, const tshi_exchange_plan *plan, const tsh_tensor *in, tsh_tensor *out,
                             tsh_status early) {
    packing p = {0};
    tshi_arguments a = {.op = TSH_COLLECTIVE_ALL_TO_ALL};
    if (early == TSH_OK) early = packed_open(group, plan, in, (out ? out : in)->dtype, &p);
    if (early == TSH_OK) {
        a.in = p.in;
        a.out = p.out;
        a.in_counts = p.ins;
        a.counts = p.outs;
    }
    tsh_status status = tshi_collective_run(group, &a, early);
    for (int i = 0; status == TSH_OK && i < plan->receives; i++) {
        const tshi_transfer *t = &plan->receive[i];
        plan->piece[i] = own_piece(plan, in);
        if (travels(plan, t)) {
            plan->piece[i] = (tshi_piece){data_of(p.out, p.outs, tshi_group_member(group, t->from)), &t->box};
        }
    }
    if (status == TSH_OK && out && out->numel) {
        tshi_exchange_fill(plan, tshi_device_of(out), out->dtype, tshi_data(out));
    }
    tshi_tensor_release(p.in);
    tshi_tensor_release(p.out);
    return status;
}

static tsh_status run_in_place(tsh_group *group, const tshi_exchange_plan *plan, const tsh_tensor *in,
                               tsh_tensor *out) {
    uint64_t start = tshi_ticks();
    const tshi_comm_call call = {.op = TSH_COLLECTIVE_ALL_TO_ALL,
                                 .dtype = (out ? out : in)->dtype,
                                 .in = in && in->numel ? tshi_data(in) : NULL,
                                 .out = out && out->numel ? tshi_data(out) : NULL,
                                 .count = plan->numel};
    tshi_trace_event *event = NULL;
    if (group->world->device->trace) event = tshi_traced_call(group, &call, tshi_traced_number(group, &call), true);
    tshi_group_drain(group, TSH_OK);
    tsh_status status = group->ops->exchange(group, &call, plan);
    if (event) tshi_trace_close(event);
    if (status == TSH_OK) {
        tshi_group_count_bytes(group, &call, (uint64_t)plan->sent * tsh_dtype_size(call.dtype), false);
    }
    group->ticks += tshi_ticks() - start;
    return status;
}

/* --- as messages -------------------------------------------------------------------------------------------------- */

/* Releases the sends that have ended, or for `wait` all of them; the failure of one. A recovery of the world
 * has ended those of before, which no longer matter. */
static tsh_status end_sends(tsh_world *world, bool wait) {
    tshi_sends_in_flight *g = &world->in_flight;
    tsh_status status = TSH_OK;
    bool recovered = g->recoveries != world->recoveries;
    int left = 0;
    if (!wait) tshi_world_progress(world); /* a test would queue what the transport holds back */
    for (int i = 0; i < g->count; i++) {
        if (!wait && g->work[i]->linked) {
            g->work[left++] = g->work[i];
            continue;
        }
        tsh_status one = wait ? tsh_work_wait(g->work[i]) : tshi_work_finish(g->work[i]);
        if (one != TSH_OK && !recovered) status = one;
        tsh_work_release(g->work[i]);
    }
    g->count = left;
    g->recoveries = world->recoveries;
    return status;
}

tsh_status tshi_exchange_flush(tsh_world *world) {
    return end_sends(world, true);
}

void tshi_exchanges_free(tsh_world *world) {
    tshi_exchange_flush(world);
    tshi_free(&world->allocator, world->in_flight.work);
    tshi_exchange_plans_free(world);
}

static tsh_status start_send(tsh_world *world, const tshi_exchange_plan *plan, const tsh_tensor *in,
                             const tshi_transfer *t) {
    tshi_sends_in_flight *g = &world->in_flight;
    tsh_tensor *packed = NULL;
    tsh_status status = tshi_grow(&world->allocator, (void **)&g->work, &g->room, g->count + 1, sizeof(tsh_work *));
    /* The message may outlive the mesh of `in`. */
    if (status == TSH_OK) status = tshi_tensor_buffer(tsh_world_mesh(world), in->dtype, elements(plan, t), &packed);
    if (status != TSH_OK) return status;
    pack(plan, in, t, tshi_data(packed));
    status = tsh_send_async(world->group, packed, t->to, &g->work[g->count]);
    if (status == TSH_OK) g->count++;
    tshi_tensor_release(packed); /* the message has a reference */
    return status;
}

static tsh_status fetch(tsh_world *world, const tsh_tensor *to, int64_t at, int64_t n, int from, tsh_work **work) {
    const tsh_shape shape = {.ndim = 1, .local = {n}, .global = {n}};
    tsh_tensor *part;
    tsh_status status = tshi_tensor_view(to, &shape, tshi_all_local, (size_t)at * tsh_dtype_size(to->dtype), &part);
    if (status != TSH_OK) return status;
    status = tsh_recv_async(world->group, part, from, work);
    tshi_tensor_release(part);
    return status;
}

/* The box is one run of `out`, *at elements into it, and nothing else is written there: its message needs no copy. */
static bool is_run_of_out(const tshi_exchange_plan *plan, const tshi_transfer *t, int64_t *at) {
    tshi_runs r = tshi_runs_of(plan->e.ndim, &t->box, &t->box, &plan->wanted);
    *at = r.to_start;
    return r.levels == 1 && !plan->sums && !plan->zeros && t->from != t->to;
}

/* Elements of the transfer that are received into scratch before they are copied to `out`. */
static int64_t packed_elements(const tshi_exchange_plan *plan, const tshi_transfer *t) {
    int64_t at;
    return travels(plan, t) && !is_run_of_out(plan, t, &at) ? elements(plan, t) : 0;
}

/* Starts the receives of plan->receive into `packed`, or into `out` where they can go there, and waits for them. */
static tsh_status fetch_all(tsh_world *world, const tshi_exchange_plan *plan, const tsh_tensor *in,
                            const tsh_tensor *packed, const tsh_tensor *out) {
    tsh_status status = TSH_OK;
    int64_t at = 0, in_out;
    int started = 0;
    for (; status == TSH_OK && started < plan->receives; started++) {
        const tshi_transfer *t = &plan->receive[started];
        int64_t n = elements(plan, t);
        bool lands = is_run_of_out(plan, t, &in_out);
        char *data = (char *)tshi_data(packed) + (size_t)at * tsh_dtype_size(out->dtype);
        plan->piece[started] = (tshi_piece){lands ? NULL : data, &t->box};
        plan->work[started] = NULL;
        if (!travels(plan, t))
            plan->piece[started] = own_piece(plan, in);
        else if (t->from == t->to)
            pack(plan, in, t, data);
        else
            status = fetch(world, lands ? out : packed, lands ? in_out : at, n, t->from, &plan->work[started]);
        at += packed_elements(plan, t);
    }
    for (int i = 0; i < started; i++) {
        if (status == TSH_OK && plan->work[i]) status = tshi_work_wait_queued(plan->work[i]);
        if (status == TSH_OK)
            tsh_work_release(plan->work[i]);
        else
            tshi_message_cancel(plan->work[i], "another message of the exchange has failed");
    }
    return status;
}

static bool only_sends(const tshi_exchange_plan *plan) {
    bool sends = false;
    for (int i = 0; i < plan->sends; i++) sends = sends || plan->send[i].to != plan->send[i].from;
    for (int i = 0; i < plan->receives; i++) sends = sends && plan->receive[i].to == plan->receive[i].from;
    return sends;
}

/* Two neighbours in a pipeline each send, activations or gradients, and then receive what the other one has sent. On a
 * GPU that runs one call after another they would wait for each other, unless the transport queues a send and the
 * receive after it together. So sends are not waited for, and are queued with the next receive; where a rank only sends
 * again, those of before go first. */
static tsh_status run_messages(tsh_world *world, const tshi_exchange_plan *plan, const tsh_tensor *in,
                               tsh_tensor *out) {
    tsh_tensor *packed = NULL;
    int64_t n = 0;
    tsh_status status = end_sends(world, false);
    if (only_sends(plan)) tshi_world_submit(world);
    for (int i = 0; status == TSH_OK && i < plan->sends; i++) {
        if (plan->send[i].to != world->rank) status = start_send(world, plan, in, &plan->send[i]);
    }
    for (int i = 0; i < plan->receives; i++) n += packed_elements(plan, &plan->receive[i]);
    if (status == TSH_OK && out) status = tshi_tensor_buffer(out->mesh, out->dtype, n, &packed);
    if (status == TSH_OK) status = fetch_all(world, plan, in, packed, out);
    if (status == TSH_OK && out && out->numel) {
        tshi_exchange_fill(plan, tshi_device_of(out), out->dtype, tshi_data(out));
    }
    tshi_tensor_release(packed);
    return status;
}

/* --- running ------------------------------------------------------------------------------------------------------ */

static tsh_status check_part(const tshi_exchange *e, const tsh_tensor *tensor, const tsh_box *box, bool member,
                             const char *what) {
    int64_t n = tensor ? tensor->numel : 0, wanted = member ? tshi_box_numel(e->ndim, box) : 0;
    if (n != wanted) {
        return tshi_fail(TSH_ERR_SHAPE, "redistribute: %s has %lld elements, the rank's box has %lld", what,
                         (long long)n, (long long)wanted);
    }
    if (n && !tensor->storage) return tshi_tensor_check(tensor, "redistribute", what);
    return n ? tshi_tensor_materialize(tensor) : TSH_OK;
}

static tsh_status check(const tshi_exchange_plan *plan, int rank, const tsh_tensor *in, const tsh_tensor *out) {
    const tshi_exchange *e = &plan->e;
    tsh_status status = check_part(e, in, &plan->held, tshi_placement_member(&e->from, rank) >= 0, "in");
    if (status == TSH_OK) status = check_part(e, out, &plan->wanted, tshi_placement_member(&e->to, rank) >= 0, "out");
    if (status != TSH_OK || !in || !out || in->dtype == out->dtype) return status;
    return tshi_fail(TSH_ERR_DTYPE, "redistribute: out is %s, in is %s", tsh_dtype_name(out->dtype),
                     tsh_dtype_name(in->dtype));
}

/* The sum is reduced in a tensor of its own, which then moves as values. */
static tsh_status run_both(tsh_group *group, tsh_world *world, const tshi_exchange *e, const tshi_placement *middle,
                           const tsh_tensor *in, tsh_tensor *out) {
    tshi_exchange first = *e, second = *e;
    tsh_tensor *between = NULL;
    first.to = *middle;
    first.to.ranks = e->from.ranks; /* the plan, with its arrays, may be dropped before they are used */
    memcpy(first.to.weights, e->from.weights, sizeof first.to.weights);
    second.from = first.to;
    const tsh_tensor *any = in ? in : out; /* a rank that holds terms is a member of the mesh of `in` */
    int member = tshi_placement_member(middle, world->rank);
    tsh_box box = {0};
    if (member >= 0) box = tshi_placement_box(middle, e->ndim, e->shape, member);
    tsh_status status =
        tshi_tensor_buffer(any->mesh, any->dtype, member < 0 ? 0 : tshi_box_numel(e->ndim, &box), &between);
    if (status != TSH_OK) {
        bool awaited = group && tshi_exchange_moves(&first);
        return awaited ? tshi_call_failed(group, TSH_COLLECTIVE_ALL_TO_ALL, status) : status;
    }
    status = tshi_exchange_run(group, &first, in, between);
    if (status == TSH_OK) status = tshi_exchange_run(group, &second, between, out);
    tshi_tensor_release(between);
    return status;
}

tsh_status tshi_exchange_run(tsh_group *group, const tshi_exchange *e, const tsh_tensor *in, tsh_tensor *out) {
    tsh_world *world = (out ? out : in)->mesh->world;
    if (group && group->rank < 0) return TSH_OK;
    tshi_data_to_write(out); /* also where this rank's part is empty */
    tshi_exchange_plan *plan = tshi_exchange_plan_find(world, e);
    if (plan && plan->reduces_first) return run_both(group, world, e, &plan->middle, in, out);
    tsh_status status = plan ? check(plan, world->rank, in, out) : TSH_ERR_MEMORY;
    if (!group) return status == TSH_OK ? run_messages(world, plan, in, out) : status;
    if (plan ? plan->moves : tshi_exchange_moves(e)) {
        bool in_place = status == TSH_OK && group->ops->exchange && world->device == world->host;
        return in_place ? run_in_place(group, plan, in, out) : run_packed(group, plan, in, out, status);
    }
    if (status == TSH_OK) fill_own(plan, in, out);
    return status;
}

tsh_status tshi_exchange_tensor(tsh_group *group, const tsh_tensor *tensor, const tshi_placement *other,
                                tsh_tensor *held, bool writes) {
    const tshi_placement own = tshi_tensor_placement(tensor);
    tshi_exchange e = {.ndim = tensor->shape.ndim, .from = writes ? *other : own, .to = writes ? own : *other};
    memcpy(e.shape, tensor->shape.global, sizeof e.shape);
    if (writes) return tshi_exchange_run(group, &e, held, (tsh_tensor *)(uintptr_t)tensor);
    return tshi_exchange_run(group, &e, tensor, held);
}
