/* Collectives on memory that all ranks map.
 *
 *   step        near: all data is in the slots            far: some data is in a heap, or on a GPU
 *   publish     the signature and the data                the signature and the data's address
 *   sync 1      until all members have published; then every rank compares all signatures
 *   move        from the slots to `out`                   between the members' heaps
 *   sync 2      none                                      until no peer touches this rank's heap
 *
 * Invariant: no data moves unless all signatures agree, and all ranks return the same verdict. It holds because each
 * rank compares the same slots after sync 1, and no slot changes before sync + slots (shm.h). A rank that receives
 * nothing, and whose data fits its slot, returns once it has published; it waits and compares in its next call. */
#include "dist/registry.h"
#include "dist/transport/shm/shm.h"

#include <string.h>

/* --- publishing --------------------------------------------------------------------------------------------------- */

/* Measured: where a copy into the slot costs as much as a second sync. */
static const size_t measured[TSH_COLLECTIVE_COUNT] = {
    [TSH_COLLECTIVE_ALL_REDUCE] = 1024, [TSH_COLLECTIVE_ALL_GATHER] = 1024, [TSH_COLLECTIVE_REDUCE_SCATTER] = 1024,
    [TSH_COLLECTIVE_BROADCAST] = 2048,  [TSH_COLLECTIVE_ALL_TO_ALL] = 1024, [TSH_COLLECTIVE_REDUCE] = 4096,
    [TSH_COLLECTIVE_GATHER] = 4096,     [TSH_COLLECTIVE_SCATTER] = 4096,
};

/* Bytes up to which data goes into the slot. Data on a GPU never does: the host cannot read it. On an oversubscribed
 * machine a second sync costs a context switch, more than any copy that fits the slot. */
static inline size_t near_bytes(const tsh_group *group, const tshi_comm_call *call) {
    if (call->on_device) return 0;
    return tshi_shm_of(group->world)->oversubscribed ? TSHI_SLOT_PAYLOAD : measured[call->op];
}

static inline bool is_near(const tsh_group *group, const tshi_comm_call *call, int64_t count) {
    return (size_t)count * tsh_dtype_size(call->dtype) <= near_bytes(group, call);
}

static size_t bytes_before(const tsh_group *group, const tshi_comm_call *call) {
    return (size_t)tshi_sum(call->counts, group->rank) * tsh_dtype_size(call->dtype);
}

static inline void publish_far(const tsh_group *group, const tshi_comm_call *call, tshi_slot *slot, const void *data) {
    slot->flags = TSHI_SLOT_FAR;
    if (call->on_device)
        tshi_shm_share(group, data);
    else
        slot->at = tshi_shm_heap_offset(group->world, data);
}

/* Publishes `count` elements of call->in: near, behind the `before` bytes already in the payload; far, as their
 * address. Returns the bytes in the payload. */
static inline size_t publish_data(const tsh_group *group, const tshi_comm_call *call, tshi_slot *slot, int64_t count,
                                  size_t before) {
    const tsh_world *world = group->world;
    size_t bytes = (size_t)count * tsh_dtype_size(call->dtype);
    if (bytes <= near_bytes(group, call) && bytes + before <= TSHI_SLOT_PAYLOAD) {
        world->host->ops->copy.within(world->host, bytes, call->in, tshi_next_payload(group) + before);
        return before + bytes;
    }
    publish_far(group, call, slot, call->in);
    return before;
}

static size_t publish_whole(const tsh_group *group, const tshi_comm_call *call, tshi_slot *slot) {
    return publish_data(group, call, slot, call->count, 0);
}

/* The root of a near reduction reads its own data from call->in. */
static size_t publish_reduce(const tsh_group *group, const tshi_comm_call *call, tshi_slot *slot) {
    if (group->rank == call->root && is_near(group, call, call->count)) return 0;
    return publish_data(group, call, slot, call->count, 0);
}

/* From this many bytes on, each rank writes its part into all ranks' `out` instead of reading its peers' parts: a part
 * is read once, and only one part has to fit the core's cache. Below, reading is faster, and leaves the result in the
 * reader's cache. */
#define PUSH_BYTES 524288
/* A tile stays in cache for all copies after the first, and is large enough for non-temporal stores. */
#define PUSH_TILE ((size_t)2 << 20)

static inline bool pushes(const tshi_comm_call *call) {
    return (uint64_t)call->count * tsh_dtype_size(call->dtype) >= PUSH_BYTES;
}

static size_t publish_all_gather(const tsh_group *group, const tshi_comm_call *call, tshi_slot *slot) {
    if (!pushes(call)) return publish_data(group, call, slot, call->counts[group->rank], 0);
    publish_far(group, call, slot, call->out);
    return 0;
}

/* Far, every rank publishes the address of its buffer, since the root writes a share of the data into it. */
static size_t publish_broadcast(const tsh_group *group, const tshi_comm_call *call, tshi_slot *slot) {
    size_t whole = (size_t)call->count * tsh_dtype_size(call->dtype);
    if (group->rank != call->root && whole <= near_bytes(group, call)) return whole;
    return publish_data(group, call, slot, call->count, 0);
}

static int64_t largest(const int64_t *counts, int n) {
    int64_t most = 0;
    for (int i = 0; i < n; i++) {
        if (counts[i] > most) most = counts[i];
    }
    return most;
}

/* Near: each rank publishes its part in its slot. Far: each rank writes its part into the root's `out`. */
static size_t publish_gather(const tsh_group *group, const tshi_comm_call *call, tshi_slot *slot) {
    bool root = group->rank == call->root;
    if (is_near(group, call, largest(call->counts, group->size))) {
        return root ? 0 : publish_data(group, call, slot, call->counts[group->rank], 0);
    }
    slot->flags = TSHI_SLOT_FAR;
    if (root) publish_far(group, call, slot, call->out);
    return 0;
}

/* Near: the root publishes all parts except its own. */
static size_t publish_scatter(const tsh_group *group, const tshi_comm_call *call, tshi_slot *slot) {
    if (group->rank != call->root) return 0;
    if (!is_near(group, call, call->count)) return publish_data(group, call, slot, call->count, 0);
    size_t size = tsh_dtype_size(call->dtype), whole = (size_t)call->count * size;
    size_t before = bytes_before(group, call), after = before + (size_t)call->counts[group->rank] * size;
    tsh_device *host = group->world->host;
    host->ops->copy.within(host, before, call->in, tshi_next_payload(group));
    host->ops->copy.within(host, whole - after, (const char *)call->in + after, tshi_next_payload(group) + after);
    return whole;
}

static size_t publish_all_to_all(const tsh_group *group, const tshi_comm_call *call, tshi_slot *slot) {
    size_t counts = tshi_shm_put_counts(group, call);
    return publish_data(group, call, slot, tshi_sum(call->in_counts, group->size), counts);
}

/* --- moving ------------------------------------------------------------------------------------------------------- */

static inline tsh_device *device_of(const tsh_group *group, const tshi_comm_call *call) {
    return call->on_device ? group->world->device : group->world->host;
}

/* The data that member i has published, from `before` bytes on. */
static inline char *data_of(const tsh_group *group, int i, size_t before) {
    const tshi_shm_group *lg = group->state;
    tshi_slot *slot = tshi_slot_at(lg, i, lg->sync);
    if (!(slot->flags & TSHI_SLOT_FAR)) return (char *)tshi_payload(slot) + before;
    if (slot->flags & TSHI_SLOT_SHARED) return lg->there[i] + before;
    return tshi_shm_heap_at(group, i, slot->at + before);
}

/* Part i of n elements, cut at multiples of 64 bytes so that no two ranks write one cache line. */
static void cut(int64_t n, size_t size, int parts, int i, int64_t *start, int64_t *length) {
    int64_t per_line = (int64_t)(64 / size), lines = (n + per_line - 1) / per_line, first, count;
    tsh_split(lines, parts, i, &first, &count);
    *start = first * per_line;
    int64_t end = (first + count) * per_line;
    if (*start > n) *start = n;
    if (end > n) end = n;
    *length = end - *start;
}

static void reduce_from(const tsh_group *group, const tshi_comm_call *call, int64_t start, int64_t n, int outs,
                        void *const *out) {
    tshi_shm_group *lg = group->state;
    size_t before = (size_t)start * tsh_dtype_size(call->dtype);
    for (int i = 0; i < group->size; i++) lg->in[i] = data_of(group, i, before);
    if (call->op == TSH_COLLECTIVE_REDUCE && group->rank == call->root)
        lg->in[group->rank] = (const char *)call->in + before;
    tsh_device *device = device_of(group, call);
    device->ops->reduce(device, call->dtype, (tshi_reduction)call->reduce, n, group->size, lg->in, outs, out);
}

/* Near: each receiving rank reduces all elements. Far: each rank reduces 1/p of them, into the buffers of all receiving
 * ranks. */
static void move_reduce(const tsh_group *group, const tshi_comm_call *call, bool far) {
    tshi_shm_group *lg = group->state;
    bool all = call->op == TSH_COLLECTIVE_ALL_REDUCE;
    if (!far) {
        if (all || group->rank == call->root) reduce_from(group, call, 0, call->count, 1, &call->out);
        return;
    }
    size_t size = tsh_dtype_size(call->dtype);
    int64_t start, length;
    int outs = 0;
    cut(call->count, size, group->size, group->rank, &start, &length);
    for (int i = 0; i < group->size; i++) {
        if (all || i == call->root) lg->out[outs++] = data_of(group, i, (size_t)start * size);
    }
    reduce_from(group, call, start, length, outs, lg->out);
}

static void move_reduce_scatter(const tsh_group *group, const tshi_comm_call *call, bool far) {
    (void)far;
    reduce_from(group, call, tshi_sum(call->counts, group->rank), call->counts[group->rank], 1, &call->out);
}

static void copy_part(const tsh_group *group, const tshi_comm_call *call, size_t bytes, const void *from, void *to) {
    tsh_device *device = device_of(group, call);
    if (bytes && from != to) device->ops->copy.within(device, bytes, from, to);
}

static void push_part(const tsh_group *group, const tshi_comm_call *call) {
    size_t size = tsh_dtype_size(call->dtype), bytes = (size_t)call->counts[group->rank] * size;
    size_t before = bytes_before(group, call), tile = call->on_device ? bytes : PUSH_TILE;
    for (size_t at = 0; at < bytes; at += tile) {
        size_t some = bytes - at < tile ? bytes - at : tile;
        for (int i = 0; i < group->size; i++) {
            int to = (group->rank + i) % group->size; /* staggered: at any time each rank writes to another peer */
            copy_part(group, call, some, (const char *)call->in + at, data_of(group, to, before + at));
        }
    }
}

static void move_all_gather(const tsh_group *group, const tshi_comm_call *call, bool far) {
    (void)far;
    size_t size = tsh_dtype_size(call->dtype);
    if (pushes(call)) {
        push_part(group, call);
        return;
    }
    char *to = call->out;
    for (int i = 0; i < group->size; i++) {
        size_t bytes = (size_t)call->counts[i] * size;
        const void *from = i == group->rank ? call->in : data_of(group, i, 0);
        copy_part(group, call, bytes, from, to);
        to += bytes;
    }
}

static void prefetch(const char *from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
}

/* Prefetches the next slot of member i, which may be one call ahead. */
static void prefetch_next(const tsh_group *group, int i) {
    const tshi_shm_group *lg = group->state;
    __builtin_prefetch(tshi_slot_at(lg, i, lg->sync + 1));
}

/* Bytes up to which it is faster if the root of a far broadcast writes nothing itself. */
#define SHARED_BYTES 8192

/* Far: the root, which would be idle, writes the last 1/p into the memory of each peer. */
static void move_broadcast(const tsh_group *group, const tshi_comm_call *call, bool far) {
    size_t size = tsh_dtype_size(call->dtype), whole = (size_t)call->count * size;
    if (!far) {
        if (group->rank != call->root) copy_part(group, call, whole, data_of(group, call->root, 0), call->out);
        return;
    }
    int64_t start = call->count, length = 0;
    if (whole > SHARED_BYTES) cut(call->count, size, group->size, group->size - 1, &start, &length);
    size_t before = (size_t)start * size, rest = (size_t)length * size;
    if (group->rank != call->root) {
        copy_part(group, call, before, data_of(group, call->root, 0), call->out);
        return;
    }
    for (int i = 0; i < group->size; i++) {
        if (i == call->root) continue;
        copy_part(group, call, rest, (const char *)call->in + before, data_of(group, i, before));
    }
}

static void gather_near(const tsh_group *group, const tshi_comm_call *call) {
    size_t size = tsh_dtype_size(call->dtype), mine = (size_t)call->counts[group->rank] * size;
    for (int i = 0; i < group->size; i++) {
        if (i != group->rank) prefetch(data_of(group, i, 0), (size_t)call->counts[i] * size);
    }
    copy_part(group, call, mine, call->in, (char *)call->out + bytes_before(group, call));
    for (int i = 0; i < group->size; i++) prefetch_next(group, i);
    char *to = call->out;
    for (int i = 0; i < group->size; i++) {
        size_t bytes = (size_t)call->counts[i] * size;
        if (i != group->rank) copy_part(group, call, bytes, data_of(group, i, 0), to);
        to += bytes;
    }
}

static void move_gather(const tsh_group *group, const tshi_comm_call *call, bool far) {
    size_t mine = (size_t)call->counts[group->rank] * tsh_dtype_size(call->dtype);
    if (far)
        copy_part(group, call, mine, call->in, data_of(group, call->root, bytes_before(group, call)));
    else if (group->rank == call->root)
        gather_near(group, call);
}

static void move_scatter(const tsh_group *group, const tshi_comm_call *call, bool far) {
    (void)far;
    size_t before = bytes_before(group, call), mine = (size_t)call->counts[group->rank] * tsh_dtype_size(call->dtype);
    const char *from = group->rank == call->root ? (const char *)call->in + before : data_of(group, call->root, before);
    copy_part(group, call, mine, from, call->out);
}

static void fetch_part(const tsh_group *group, const tshi_comm_call *call, int i, char *to) {
    const tshi_shm_group *lg = group->state;
    size_t size = tsh_dtype_size(call->dtype), counts = 2 * sizeof(int64_t) * (size_t)group->size, before = 0;
    const int64_t *sends = tshi_counts_of(group, i);
    for (int j = 0; j < group->rank; j++) before += (size_t)sends[j] * size;
    if (!(tshi_slot_at(lg, i, lg->sync)->flags & TSHI_SLOT_FAR)) before += counts;
    copy_part(group, call, (size_t)sends[group->rank] * size, data_of(group, i, before), to);
}

/* Every other call visits the parts in reverse: it begins with those that the call before has left in the cache. */
static void move_all_to_all(const tsh_group *group, const tshi_comm_call *call, bool far) {
    (void)far;
    int p = group->size, back = (int)(group->calls & 1);
    size_t size = tsh_dtype_size(call->dtype);
    char *to = call->out;
    for (int i = 0; back && i < p; i++) to += (size_t)call->out_counts[i] * size;
    for (int k = 0; k < p; k++) {
        int i = back ? p - 1 - k : k;
        size_t bytes = (size_t)call->out_counts[i] * size;
        if (back) to -= bytes;
        fetch_part(group, call, i, to);
        if (!back) to += bytes;
    }
}

/* The publish and move functions of a collective. */
typedef struct transport {
    /* Fills the slot, and returns the bytes in its payload. */
    size_t (*publish)(const tsh_group *group, const tshi_comm_call *call, tshi_slot *slot);
    /* Called when all have published. far: some rank's data is not in its slot. */
    void (*move)(const tsh_group *group, const tshi_comm_call *call, bool far);
} transport;

static const transport transports[TSH_COLLECTIVE_COUNT] = {
    [TSH_COLLECTIVE_ALL_REDUCE] = {publish_whole, move_reduce},
    [TSH_COLLECTIVE_ALL_GATHER] = {publish_all_gather, move_all_gather},
    [TSH_COLLECTIVE_REDUCE_SCATTER] = {publish_whole, move_reduce_scatter},
    [TSH_COLLECTIVE_BROADCAST] = {publish_broadcast, move_broadcast},
    [TSH_COLLECTIVE_ALL_TO_ALL] = {publish_all_to_all, move_all_to_all},
    [TSH_COLLECTIVE_BARRIER] = {publish_broadcast, move_broadcast}, /* of no elements */
    [TSH_COLLECTIVE_REDUCE] = {publish_reduce, move_reduce},
    [TSH_COLLECTIVE_GATHER] = {publish_gather, move_gather},
    [TSH_COLLECTIVE_SCATTER] = {publish_scatter, move_scatter},
};

/* --- running ------------------------------------------------------------------------------------------------------ */

/* This rank may return when it has published: it receives nothing, and its data fits the slot. */
static bool only_contributes(const tsh_group *group, const tshi_comm_call *call) {
    const tshi_collective *c = &tshi_collectives[call->op];
    bool root = group->rank == call->root;
    if (root ? c->contributes != TSHI_ROOT : c->receives != TSHI_ROOT) return false;
    return is_near(group, call, c->in == TSHI_PART ? largest(call->counts, group->size) : call->count);
}

/* This rank may return when it has moved the data: no peer touches its memory, and a move in host memory cannot
 * fail. */
static bool only_moves(const tsh_group *group, const tshi_comm_call *call) {
    if (group->rank == call->root || call->on_device) return false;
    if (call->op == TSH_COLLECTIVE_BROADCAST) return (size_t)call->count * tsh_dtype_size(call->dtype) <= SHARED_BYTES;
    return call->op == TSH_COLLECTIVE_GATHER || call->op == TSH_COLLECTIVE_SCATTER;
}

static tsh_status publish_and_return(tsh_group *group, const tshi_comm_call *call) {
    tshi_shm_group *lg = group->state;
    tsh_status status = TSH_OK, failed = TSH_OK;
    uint32_t ahead = lg->sync - lg->compared, most = lg->slots / 2 - 1;
    /* Compares more calls than it must, so that the peers' cache lines are fetched several at a time. */
    if (ahead > most) status = tshi_shm_catch_up(group, lg->sync - most / 2, &failed);
    if (status != TSH_OK) return status;
    tshi_slot *slot = tshi_shm_open_slot(group, call);
    if (failed != TSH_OK) return tshi_shm_run_failed(group, failed);
    size_t payload = transports[call->op].publish(group, call, slot);
    tshi_shm_publish(group, payload);
    transports[call->op].move(group, call, false);
    return TSH_OK;
}

/* Maps the peers' memory and moves the data. A failure goes into the slot of the second sync. */
static void move_on_device(const tsh_group *group, const tshi_comm_call *call) {
    tshi_shm_group *lg = group->state;
    tsh_device *device = group->world->device;
    lg->refused = tshi_shm_reach(group);
    if (lg->refused == TSH_OK) {
        transports[call->op].move(group, call, true);
        lg->refused = device->ops->sharing->drain(device);
    }
    if (lg->refused != TSH_OK) tshi_shm_refuse(group);
}

/* Called when all have published. *far: a second sync is needed. */
static tsh_status compare_and_move(const tsh_group *group, const tshi_comm_call *call, bool *far) {
    const tshi_shm_group *lg = group->state;
    tsh_status status = tshi_shm_compare(group, lg->sync, far);
    if (status == TSH_OK && call->op == TSH_COLLECTIVE_ALL_TO_ALL) status = tshi_shm_compare_counts(group);
    if (status == TSH_OK && *far) status = tshi_shm_move(group);
    if (status != TSH_OK) return status;
    if (call->on_device && *far)
        move_on_device(group, call);
    else
        transports[call->op].move(group, call, *far);
    if (*far) tshi_shm_moved(group);
    return TSH_OK;
}

/* The verdict after the second sync: since the first, only a move on a GPU can have failed. */
static tsh_status last_verdict(const tsh_group *group, const tshi_comm_call *call) {
    const tshi_shm_group *lg = group->state;
    bool far;
    if (!call->on_device) return TSH_OK;
    if (lg->refused != TSH_OK) return tshi_shm_refused(group, lg->refused);
    return tshi_shm_compare(group, lg->sync, &far);
}

static tsh_status finish(tsh_group *group, const tshi_comm_call *call) {
    bool far = false;
    tsh_status status = compare_and_move(group, call, &far);
    if (status != TSH_OK || !far) return status;
    if (only_moves(group, call)) {
        tshi_shm_publish(group, 0);
        return TSH_OK;
    }
    status = tshi_shm_sync(group, 0);
    return status == TSH_OK ? last_verdict(group, call) : status;
}

static tsh_status local_run(tsh_group *group, const tshi_comm_call *call) {
    tshi_shm_group *lg = group->state;
    tsh_status status = TSH_OK, failed = call->failed;
    if (tshi_control_has_failed(group->world)) status = tshi_control_failure(group->world);
    if (status == TSH_OK && failed == TSH_OK && only_contributes(group, call)) return publish_and_return(group, call);
    if (status == TSH_OK && lg->compared != lg->sync) status = tshi_shm_catch_up(group, lg->sync, &failed);
    if (status != TSH_OK) return status;
    tshi_slot *slot = tshi_shm_open_slot(group, call);
    if (failed != TSH_OK) return tshi_shm_run_failed(group, failed);
    size_t payload = transports[call->op].publish(group, call, slot);
    status = tshi_shm_sync(group, payload);
    if (slot->signature.kind == TSHI_KIND_FAILED)
        return status == TSH_OK ? tshi_shm_refused(group, lg->refused) : status;
    if (status == TSH_OK) status = finish(group, call);
    return status == TSH_OK ? TSH_OK : tshi_shm_depart(group, call, NULL, status);
}

/* --- in steps ----------------------------------------------------------------------------------------------------- */

static tsh_status local_start(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_shm_group *lg = group->state;
    if (tshi_control_has_failed(group->world)) {
        tsh_status status = tshi_control_failure(group->world);
        if (status != TSH_OK) return status;
    }
    if (tshi_is_message(work->call.op)) return tshi_message_start(work);
    lg->step = TSHI_TO_POST;
    return TSH_OK;
}

/* Publishes the slot of a started call, when all members have published this rank's last sync. */
static void begin(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_shm_group *lg = group->state;
    tshi_comm_call *call = &work->call;
    if (lg->compared != lg->sync)
        call->failed = tshi_shm_compare_late(group, lg->sync, call->failed, work->message);
    else if (call->failed != TSH_OK)
        tshi_fail(call->failed, "%s", work->message);
    tshi_slot *slot = tshi_shm_open_slot(group, call);
    if (call->failed != TSH_OK)
        tshi_shm_refuse(group);
    else
        transports[call->op].publish(group, call, slot);
    if (call->failed == TSH_OK && slot->signature.kind == TSHI_KIND_FAILED) call->failed = lg->refused;
    lg->step = TSHI_TO_MOVE;
    tshi_shm_publish(group, 0);
}

static void end(tsh_work *work, tsh_status status) {
    if (status != TSH_OK) status = tshi_shm_depart(work->group, &work->call, NULL, status);
    tshi_work_end(work, status);
}

/* Takes the next step of a started call, when all members have published this rank's last sync. */
static void advance(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_shm_group *lg = group->state;
    bool far = false;
    tsh_status status = TSH_OK;
    if (lg->step == TSHI_TO_POST) {
        begin(work);
        return;
    }
    lg->compared = lg->sync;
    if (lg->step == TSHI_MOVED) {
        tshi_work_end(work, last_verdict(group, &work->call));
        return;
    }
    if (work->call.failed != TSH_OK)
        status = tshi_shm_refused(group, work->call.failed);
    else
        status = compare_and_move(group, &work->call, &far);
    if (status != TSH_OK || !far) {
        end(work, status);
        return;
    }
    lg->step = TSHI_MOVED;
    tshi_shm_publish(group, 0);
}

static void local_progress(tsh_work *work) {
    tsh_group *group = work->group;
    const tshi_shm_group *lg = group->state;
    if (tshi_is_message(work->call.op)) {
        tshi_message_progress(work);
        return;
    }
    while (!work->done && tshi_shm_is_published(group, lg->sync)) advance(work);
    if (work->done || !tshi_control_has_failed(group->world)) return;
    tsh_status status = tshi_control_failure(group->world);
    /* If all members published before the failure, the call goes on. */
    if (status != TSH_OK && !tshi_shm_is_published(group, lg->sync)) end(work, status);
}

const tshi_group_ops tshi_shm_ops = {
    .name = "local",
    .renews = true,
    .place = TSHI_SHM_PLACE,
    .stages = tshi_shm_stages,
    .probe = tshi_shm_probe,
    .area_bytes = tshi_shm_block_bytes,
    .world_open = tshi_shm_world_open,
    .world_join = tshi_shm_world_join,
    .take_data = tshi_shm_take_data,
    .leave = tshi_shm_leave,
    .world_close = tshi_shm_world_close,
    .prepare = tshi_shm_prepare,
    .open = tshi_shm_open,
    .open_bytes = tshi_shm_open_bytes,
    .message_bytes = tshi_shm_message_bytes,
    .close = tshi_shm_close,
    .check_peers = tshi_control_check_peers,
    .wake = tshi_shm_wake,
    .stop = tshi_shm_stop,
    .restart = tshi_shm_restart,
    .fails_later = tshi_control_fails_later,
    .run = local_run,
    .exchange = tshi_shm_exchange,
    .start = local_start,
    .progress = local_progress,
    .quick = tshi_message_quick,
    .nap = tshi_shm_nap,
    .awake = tshi_shm_awake,
};
