/* Collectives on memory that all ranks map. Each call: post where my data is, wait for all to have posted, compare what
 * they say, move the data, and when peers have read or written my heap wait once more. Nothing has moved before the
 * comparison, and all ranks compare the same slots, so that all come to the same verdict. A rank that has given all it
 * has to give with its post leaves at once; it waits and compares when it comes with its next call. */
#include "base/hash.h"
#include "dist/backends/local/local.h"

#include <string.h>

static inline uint32_t pack_kind(const tshi_call *call) {
    return (uint32_t)call->op | (uint32_t)call->dtype << 8 | (uint32_t)call->reduce << 16;
}

static uint64_t hash_counts(const int64_t *counts, int n) {
    uint64_t h = TSHI_FINGERPRINT;
    for (int i = 0; i < n; i++) h = tshi_fingerprint_add(h, (uint64_t)counts[i]);
    return h;
}

/* --- posting ------------------------------------------------------------------------------------------------------ */

/* What lies on a GPU is never near: the host does not see it. */
static inline size_t near_bytes(const tsh_group *group, const tshi_call *call) {
    if (call->on_device) return 0;
    return ((const tshi_local_group *)group->state)->near_bytes[call->op];
}

/* Whether that many elements fit the slot. */
static inline bool is_near(const tsh_group *group, const tshi_call *call, int64_t count) {
    return (size_t)count * tsh_dtype_size(call->dtype) <= near_bytes(group, call);
}

static size_t bytes_before(const tsh_group *group, const tshi_call *call) {
    int64_t before = 0;
    for (int i = 0; i < group->rank; i++) before += call->counts[i];
    return (size_t)before * tsh_dtype_size(call->dtype);
}

/* The payload of my next sync. */
static inline unsigned char *payload_of(const tsh_group *group) {
    const tshi_local_group *lg = group->state;
    return tshi_payload(tshi_slot_at(lg, group->rank, lg->sync + 1));
}

static uint64_t heap_offset(const tsh_world *world, const void *data) {
    return (uint64_t)((const char *)data - tshi_local_of(world)->heap[world->rank]);
}

/* Say where my data is. */
static inline void post_far(const tsh_group *group, const tshi_call *call, tshi_slot *slot, const void *data) {
    slot->flags = TSHI_SLOT_FAR;
    if (call->on_device)
        tshi_local_share(group, data);
    else
        slot->at = heap_offset(group->world, data);
}

/* Put my data into the slot, after `before` bytes that are there already, or say where it is. Returns the bytes that
 * are then in the slot. */
static inline size_t post_data(const tsh_group *group, const tshi_call *call, tshi_slot *slot, size_t bytes,
                               size_t before) {
    const tsh_world *world = group->world;
    if (bytes <= near_bytes(group, call) && bytes + before <= TSHI_SLOT_PAYLOAD) {
        world->host->ops->copy.within(world->host, bytes, call->in, payload_of(group) + before);
        return before + bytes;
    }
    post_far(group, call, slot, call->in);
    return before;
}

static size_t post_part(const tsh_group *group, const tshi_call *call, tshi_slot *slot, int64_t count) {
    slot->part = call->counts[group->rank];
    slot->check = hash_counts(call->counts, group->size);
    return post_data(group, call, slot, (size_t)count * tsh_dtype_size(call->dtype), 0);
}

/* From here on everybody writes its part into all ranks' `out`, rather than fetch the others': it reads that part once,
 * and less has to fit the core's own cache. Below, what is fetched is in the reader's cache afterwards. */
#define PUSH_BYTES 524288
/* Read from cache for all but the first of its copies, each of which is large enough to go around the cache. */
#define PUSH_TILE ((size_t)2 << 20)

static inline bool pushes(const tshi_call *call) {
    return (uint64_t)call->count * tsh_dtype_size(call->dtype) >= PUSH_BYTES;
}

static size_t post_all_gather(const tsh_group *group, const tshi_call *call, tshi_slot *slot) {
    if (!pushes(call)) return post_part(group, call, slot, call->counts[group->rank]);
    slot->part = call->counts[group->rank];
    slot->check = hash_counts(call->counts, group->size);
    post_far(group, call, slot, call->out);
    return 0;
}

/* The others post as well where they are: the root writes a share of what is far. */
static size_t post_broadcast(const tsh_group *group, const tshi_call *call, tshi_slot *slot) {
    size_t whole = (size_t)call->count * tsh_dtype_size(call->dtype);
    if (group->rank != call->root && whole <= near_bytes(group, call)) return whole;
    return post_data(group, call, slot, whole, 0);
}

static int64_t largest(const int64_t *counts, int n) {
    int64_t most = 0;
    for (int i = 0; i < n; i++) {
        if (counts[i] > most) most = counts[i];
    }
    return most;
}

/* Near: every part in the slot of its rank. Far: each writes its part into the root's `out`, which the root posts. */
static size_t post_gather(const tsh_group *group, const tshi_call *call, tshi_slot *slot) {
    size_t mine = (size_t)call->counts[group->rank] * tsh_dtype_size(call->dtype);
    bool near = is_near(group, call, largest(call->counts, group->size));
    slot->part = call->counts[group->rank];
    slot->check = hash_counts(call->counts, group->size);
    if (near) return group->rank == call->root ? 0 : post_data(group, call, slot, mine, 0);
    slot->flags = TSHI_SLOT_FAR;
    if (group->rank == call->root) post_far(group, call, slot, call->out);
    return 0;
}

/* The root has the data; the others only their counts. Near: it keeps its own part. */
static size_t post_scatter(const tsh_group *group, const tshi_call *call, tshi_slot *slot) {
    slot->part = call->counts[group->rank];
    slot->check = hash_counts(call->counts, group->size);
    if (group->rank != call->root) return 0;
    size_t size = tsh_dtype_size(call->dtype), whole = (size_t)call->count * size;
    if (!is_near(group, call, call->count)) return post_data(group, call, slot, whole, 0);
    size_t before = bytes_before(group, call), after = before + (size_t)slot->part * size;
    tsh_device *host = group->world->host;
    host->ops->copy.within(host, before, call->in, payload_of(group));
    host->ops->copy.within(host, whole - after, (const char *)call->in + after, payload_of(group) + after);
    return whole;
}

static size_t post_counts(const tsh_group *group, const tshi_call *call, tshi_slot *slot) {
    size_t counts = sizeof(int64_t) * (size_t)group->size;
    int64_t sum = 0;
    for (int i = 0; i < group->size; i++) sum += call->in_counts[i];
    memcpy(payload_of(group), call->in_counts, counts);
    memcpy(payload_of(group) + counts, call->out_counts, counts);
    return post_data(group, call, slot, (size_t)sum * tsh_dtype_size(call->dtype), 2 * counts);
}

/* Returns the bytes in the payload. */
static size_t post(const tsh_group *group, const tshi_call *call, tshi_slot *slot) {
    slot->flags = 0;
    slot->check = 0;
    switch (call->op) {
    case TSH_COLLECTIVE_REDUCE:
        if (group->rank == call->root && is_near(group, call, call->count)) return 0;
        return post_data(group, call, slot, (size_t)call->count * tsh_dtype_size(call->dtype), 0);
    case TSH_COLLECTIVE_ALL_REDUCE:
        return post_data(group, call, slot, (size_t)call->count * tsh_dtype_size(call->dtype), 0);
    case TSH_COLLECTIVE_REDUCE_SCATTER: return post_part(group, call, slot, call->count);
    case TSH_COLLECTIVE_ALL_GATHER: return post_all_gather(group, call, slot);
    case TSH_COLLECTIVE_BROADCAST: return post_broadcast(group, call, slot);
    case TSH_COLLECTIVE_ALL_TO_ALL: return post_counts(group, call, slot);
    case TSH_COLLECTIVE_GATHER: return post_gather(group, call, slot);
    case TSH_COLLECTIVE_SCATTER: return post_scatter(group, call, slot);
    default: return 0;
    }
}

/* --- moving ------------------------------------------------------------------------------------------------------- */

/* Whose memory the call's data is. */
static inline tsh_device *device_of(const tsh_group *group, const tshi_call *call) {
    return call->on_device ? group->world->device : group->world->host;
}

/* What member i has posted, `before` bytes into it. */
static inline char *data_of(const tsh_group *group, int i, size_t before) {
    const tshi_local_group *lg = group->state;
    tshi_slot *slot = tshi_slot_at(lg, i, lg->sync);
    if (!(slot->flags & TSHI_SLOT_FAR)) return (char *)tshi_payload(slot) + before;
    if (slot->flags & TSHI_SLOT_SHARED) return lg->there[i] + before;
    return tshi_local_of(group->world)->heap[group->ranks[i]] + slot->at + before;
}

/* Part i of n elements, cut at cache lines so that no two ranks write to one. */
static void cut(int64_t n, size_t size, int parts, int i, int64_t *start, int64_t *length) {
    int64_t per_line = (int64_t)(64 / size), lines = (n + per_line - 1) / per_line, first, count;
    tsh_split(lines, parts, i, &first, &count);
    *start = first * per_line;
    int64_t end = (first + count) * per_line;
    if (*start > n) *start = n;
    if (end > n) end = n;
    *length = end - *start;
}

static void reduce_from(const tsh_group *group, const tshi_call *call, int64_t start, int64_t n, int outs,
                        void *const *out) {
    tshi_local_group *lg = group->state;
    size_t before = (size_t)start * tsh_dtype_size(call->dtype);
    for (int i = 0; i < group->size; i++) lg->in[i] = data_of(group, i, before);
    if (call->op == TSH_COLLECTIVE_REDUCE && group->rank == call->root)
        lg->in[group->rank] = (const char *)call->in + before;
    tsh_device *device = device_of(group, call);
    device->ops->reduce(device, call->dtype, (tshi_reduction)call->reduce, n, group->size, lg->in, outs, out);
}

/* Near: everybody reduces everything for itself. Far: each its cut, into all ranks' buffers. */
static void move_all_reduce(const tsh_group *group, const tshi_call *call, bool far) {
    tshi_local_group *lg = group->state;
    size_t size = tsh_dtype_size(call->dtype);
    if (!far) {
        reduce_from(group, call, 0, call->count, 1, &call->out);
        return;
    }
    int64_t start, length;
    cut(call->count, size, group->size, group->rank, &start, &length);
    for (int i = 0; i < group->size; i++) lg->out[i] = data_of(group, i, (size_t)start * size);
    reduce_from(group, call, start, length, group->size, lg->out);
}

/* Far: each its cut, into the root's buffer. */
static void move_reduce(const tsh_group *group, const tshi_call *call, bool far) {
    size_t size = tsh_dtype_size(call->dtype);
    if (!far) {
        if (group->rank == call->root) reduce_from(group, call, 0, call->count, 1, &call->out);
        return;
    }
    int64_t start, length;
    cut(call->count, size, group->size, group->rank, &start, &length);
    void *out = data_of(group, call->root, (size_t)start * size);
    reduce_from(group, call, start, length, 1, &out);
}

static void move_reduce_scatter(const tsh_group *group, const tshi_call *call) {
    int64_t start = 0;
    for (int i = 0; i < group->rank; i++) start += call->counts[i];
    reduce_from(group, call, start, call->counts[group->rank], 1, &call->out);
}

static void copy_part(const tsh_group *group, const tshi_call *call, size_t bytes, const void *from, void *to) {
    tsh_device *device = device_of(group, call);
    if (bytes && from != to) device->ops->copy.within(device, bytes, from, to);
}

static void push_part(const tsh_group *group, const tshi_call *call) {
    size_t size = tsh_dtype_size(call->dtype), bytes = (size_t)call->counts[group->rank] * size;
    size_t before = bytes_before(group, call), tile = call->on_device ? bytes : PUSH_TILE;
    for (size_t at = 0; at < bytes; at += tile) {
        size_t some = bytes - at < tile ? bytes - at : tile;
        for (int i = 0; i < group->size; i++) {
            int to = (group->rank + i) % group->size; /* not all to the same one */
            copy_part(group, call, some, (const char *)call->in + at, data_of(group, to, before + at));
        }
    }
}

static void move_all_gather(const tsh_group *group, const tshi_call *call) {
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

/* Lines that another rank has written, on their way while I do something else. */
static void prefetch(const char *from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
}

/* The next slot of one that may be ahead. */
static void prefetch_next(const tsh_group *group, int i) {
    const tshi_local_group *lg = group->state;
    __builtin_prefetch(tshi_slot_at(lg, i, lg->sync + 1));
}

/* Up to here a root that writes as well costs more than it saves. */
#define SHARED_BYTES 8192

/* Far: the root would stand idle, so it writes the last 1/p into all the others. */
static void move_broadcast(const tsh_group *group, const tshi_call *call, bool far) {
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

static void gather_near(const tsh_group *group, const tshi_call *call) {
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

static void move_gather(const tsh_group *group, const tshi_call *call, bool far) {
    size_t mine = (size_t)call->counts[group->rank] * tsh_dtype_size(call->dtype);
    if (far)
        copy_part(group, call, mine, call->in, data_of(group, call->root, bytes_before(group, call)));
    else if (group->rank == call->root)
        gather_near(group, call);
}

static void move_scatter(const tsh_group *group, const tshi_call *call) {
    size_t before = bytes_before(group, call), mine = (size_t)call->counts[group->rank] * tsh_dtype_size(call->dtype);
    const char *from = group->rank == call->root ? (const char *)call->in + before : data_of(group, call->root, before);
    copy_part(group, call, mine, from, call->out);
}

/* What member i has for me. */
static void fetch_part(const tsh_group *group, const tshi_call *call, int i, char *to) {
    const tshi_local_group *lg = group->state;
    size_t size = tsh_dtype_size(call->dtype), counts = 2 * sizeof(int64_t) * (size_t)group->size, before = 0;
    const int64_t *sends = tshi_counts_of(group, i);
    for (int j = 0; j < group->rank; j++) before += (size_t)sends[j] * size;
    if (!(tshi_slot_at(lg, i, lg->sync)->flags & TSHI_SLOT_FAR)) before += counts;
    copy_part(group, call, (size_t)sends[group->rank] * size, data_of(group, i, before), to);
}

/* Every other call goes backwards: it begins with what the one before has left in the cache. */
static void move_all_to_all(const tsh_group *group, const tshi_call *call) {
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

static void move(const tsh_group *group, const tshi_call *call, bool far) {
    switch (call->op) {
    case TSH_COLLECTIVE_ALL_REDUCE: move_all_reduce(group, call, far); break;
    case TSH_COLLECTIVE_REDUCE_SCATTER: move_reduce_scatter(group, call); break;
    case TSH_COLLECTIVE_ALL_GATHER: move_all_gather(group, call); break;
    case TSH_COLLECTIVE_BROADCAST: move_broadcast(group, call, far); break;
    case TSH_COLLECTIVE_ALL_TO_ALL: move_all_to_all(group, call); break;
    case TSH_COLLECTIVE_REDUCE: move_reduce(group, call, far); break;
    case TSH_COLLECTIVE_GATHER: move_gather(group, call, far); break;
    case TSH_COLLECTIVE_SCATTER: move_scatter(group, call); break;
    default: break;
    }
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* The draft of my next slot, with what is known of the call. */
static tshi_slot *open_slot(tsh_group *group, const tshi_call *call) {
    tshi_local_group *lg = group->state;
    tshi_slot *slot = &lg->draft;
    lg->name = tsh_collective_name(call->op);
    slot->number = (uint32_t)tshi_group_note(group, call);
    slot->kind = pack_kind(call);
    slot->root = (uint16_t)call->root;
    slot->count = call->count;
    return slot;
}

/* Whether I am done when I have posted: what I have fits the slot, and I get nothing. */
static bool only_gives(const tsh_group *group, const tshi_call *call) {
    bool root = group->rank == call->root;
    switch (call->op) {
    case TSH_COLLECTIVE_GATHER: return !root && is_near(group, call, largest(call->counts, group->size));
    case TSH_COLLECTIVE_REDUCE: return !root && is_near(group, call, call->count);
    case TSH_COLLECTIVE_BROADCAST:
    case TSH_COLLECTIVE_SCATTER: return root && is_near(group, call, call->count);
    default: return false;
    }
}

/* Far: whether nobody touches my data any more when I have moved it, and nothing can have gone wrong meanwhile. */
static bool only_moves(const tsh_group *group, const tshi_call *call) {
    if (group->rank == call->root || call->on_device) return false;
    if (call->op == TSH_COLLECTIVE_BROADCAST) return (size_t)call->count * tsh_dtype_size(call->dtype) <= SHARED_BYTES;
    return call->op == TSH_COLLECTIVE_GATHER || call->op == TSH_COLLECTIVE_SCATTER;
}

static tsh_status give(tsh_group *group, const tshi_call *call) {
    tshi_local_group *lg = group->state;
    tsh_status status = TSH_OK, failed = TSH_OK;
    uint32_t ahead = lg->sync - lg->heard, most = lg->slots / 2 - 1;
    /* Further than it must, so that the others' lines are fetched several at a time. */
    if (ahead > most) status = tshi_local_catch_up(group, lg->sync - most / 2, &failed);
    if (status != TSH_OK) return status;
    tshi_slot *slot = open_slot(group, call);
    if (failed != TSH_OK) return tshi_local_run_failed(group, failed);
    size_t payload = post(group, call, slot);
    tshi_local_post(group, payload);
    move(group, call, false);
    return TSH_OK;
}

/* Mapped, moved and done, or the next slot says why not. */
static void move_on_device(const tsh_group *group, const tshi_call *call) {
    tshi_local_group *lg = group->state;
    tsh_device *device = group->world->device;
    lg->refused = tshi_local_reach(group);
    if (lg->refused == TSH_OK) {
        move(group, call, true);
        lg->refused = device->ops->sharing->drain(device);
    }
    if (lg->refused != TSH_OK) tshi_local_refuse(group);
}

/* All have posted. *far: there is a second sync to come. */
static tsh_status compare_and_move(const tsh_group *group, const tshi_call *call, bool *far) {
    const tshi_local_group *lg = group->state;
    tsh_status status = tshi_local_compare(group, lg->sync, far);
    if (status == TSH_OK && call->op == TSH_COLLECTIVE_ALL_TO_ALL) status = tshi_local_compare_pairs(group);
    if (status != TSH_OK) return status;
    if (call->on_device && *far)
        move_on_device(group, call);
    else
        move(group, call, *far);
    return TSH_OK;
}

/* After that one. Only GPUs can have failed before it. */
static tsh_status last_verdict(const tsh_group *group, const tshi_call *call) {
    const tshi_local_group *lg = group->state;
    bool far;
    if (!call->on_device) return TSH_OK;
    if (lg->refused != TSH_OK) return tshi_local_refused(group, lg->refused);
    return tshi_local_compare(group, lg->sync, &far);
}

static tsh_status local_run(tsh_group *group, const tshi_call *call) {
    tshi_local_group *lg = group->state;
    tsh_status status = TSH_OK, failed = call->failed;
    if (tshi_local_troubled(tshi_local_of(group->world))) status = tshi_local_trouble(group->world);
    if (status == TSH_OK && failed == TSH_OK && only_gives(group, call)) return give(group, call);
    if (status == TSH_OK && lg->heard != lg->sync) status = tshi_local_catch_up(group, lg->sync, &failed);
    if (status != TSH_OK) return status;
    tshi_slot *slot = open_slot(group, call);
    if (failed != TSH_OK) return tshi_local_run_failed(group, failed);
    size_t payload = post(group, call, slot);
    bool far = false;
    status = tshi_local_sync(group, payload);
    if (slot->flags & TSHI_SLOT_FAILED) return status == TSH_OK ? tshi_local_refused(group, lg->refused) : status;
    if (status == TSH_OK) status = compare_and_move(group, call, &far);
    if (status != TSH_OK || !far) return status;
    if (only_moves(group, call)) {
        tshi_local_post(group, 0);
        return TSH_OK;
    }
    status = tshi_local_sync(group, 0);
    return status == TSH_OK ? last_verdict(group, call) : status;
}

/* --- in steps ----------------------------------------------------------------------------------------------------- */

static tsh_status local_start(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_local_group *lg = group->state;
    if (tshi_local_troubled(tshi_local_of(group->world))) {
        tsh_status status = tshi_local_trouble(group->world);
        if (status != TSH_OK) return status;
    }
    if (tshi_is_message(&work->call)) return tshi_message_start(work);
    lg->stage = TSHI_TO_POST;
    return TSH_OK;
}

/* All have posted what I have. */
static void begin(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_local_group *lg = group->state;
    tshi_call *call = &work->call;
    if (lg->heard != lg->sync)
        call->failed = tshi_local_look_back(group, lg->sync, call->failed, work->words);
    else if (call->failed != TSH_OK)
        tshi_fail(call->failed, "%s", work->words);
    tshi_slot *slot = open_slot(group, call);
    if (call->failed != TSH_OK)
        tshi_local_refuse(group);
    else
        post(group, call, slot);
    if (call->failed == TSH_OK && slot->flags & TSHI_SLOT_FAILED) call->failed = lg->refused;
    lg->stage = TSHI_TO_MOVE;
    tshi_local_post(group, 0);
}

static void finish(tsh_work *work, tsh_status status) {
    work->status = status;
    work->done = true;
}

/* All have posted: the next step. */
static void advance(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_local_group *lg = group->state;
    bool far = false;
    tsh_status status = TSH_OK;
    if (lg->stage == TSHI_TO_POST) {
        begin(work);
        return;
    }
    lg->heard = lg->sync;
    if (lg->stage == TSHI_MOVED) {
        finish(work, last_verdict(group, &work->call));
        return;
    }
    if (work->call.failed != TSH_OK)
        status = tshi_local_refused(group, work->call.failed);
    else
        status = compare_and_move(group, &work->call, &far);
    if (status != TSH_OK || !far) {
        finish(work, status);
        return;
    }
    lg->stage = TSHI_MOVED;
    tshi_local_post(group, 0);
}

static void local_progress(tsh_work *work) {
    tsh_group *group = work->group;
    const tshi_local *local = tshi_local_of(group->world);
    const tshi_local_group *lg = group->state;
    if (tshi_is_message(&work->call)) {
        tshi_message_progress(work);
        return;
    }
    while (!work->done && tshi_local_posted(group, lg->sync)) advance(work);
    if (work->done || !tshi_local_troubled(local)) return;
    tsh_status status = tshi_local_trouble(group->world);
    /* They may have posted before the trouble. */
    if (status != TSH_OK && !tshi_local_posted(group, lg->sync)) finish(work, status);
}

static tsh_status local_agree(tsh_group *parent, const char *text, tsh_status failed) {
    return tshi_local_agree(parent, text, failed, 0);
}

const tshi_group_ops tshi_local_ops = {
    .name = "local",
    .on_host = true,
    .run = local_run,
    .start = local_start,
    .progress = local_progress,
    .quick = tshi_message_quick,
    .nap = tshi_local_nap,
    .awake = tshi_local_awake,
    .close = tshi_local_close,
    .agree = local_agree,
    .open = tshi_local_open,
    .fail = tshi_local_fail,
    .recover = tshi_local_recover,
    .leave = tshi_local_leave,
    .trouble = tshi_local_heard,
    .fails_later = tshi_local_fails_later,
};
