/* The transport of one machine: the memory that its ranks share, and how they wait for each other.
 *
 * All ranks map each rank's heap, which holds its tensors (or map its GPU memory); a call publishes the address of its
 * buffer, and peers read and write it there. A group has a block of shared memory with a ring of slots for each member,
 * and a sync takes the next slot of each ring. Most calls wait until all members have published the sync, and compare
 * the slots.
 *
 * Invariant: a slot does not change while a member may read it. A rank that receives nothing may return early, when it
 * has published; but it waits for that sync, and compares it, before its next call that waits and before it is half the
 * ring ahead. So when a rank publishes sync s, all members have read sync s - slots, the one that it overwrites. */
#ifndef TSHI_SHM_H
#define TSHI_SHM_H

#include "base/cpu.h"
#include "dist/collectives/collectives.h"
#include "dist/control/control.h"
#include "dist/control/heap_block.h"
#include "dist/rendezvous/environment.h"
#include "dist/world.h"

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <sys/types.h>

#define TSHI_FEW_SPINS 8
/* Bytes of data in a slot: a call whose data fits needs one sync only. */
#define TSHI_SLOT_PAYLOAD 4160
/* Slots of a member: a power of two; fewer in groups of TSHI_LARGE_GROUP or more, to keep their blocks small. */
#define TSHI_SLOTS       16
#define TSHI_FEW_SLOTS   2
#define TSHI_LARGE_GROUP 32
#define TSHI_SHM_PLACE   2 /* in world->state */

/* --- shared memory ------------------------------------------------------------------------------------------------ */

enum { TSHI_SLOT_FAR = 1, TSHI_SLOT_SHARED = 2 }; /* flags */

/* What a member publishes in one call. */
typedef struct tshi_slot {
    alignas(64) _Atomic uint32_t sync; /* number of the sync that published it; written last */
    /* FAR: the data is in the heap, at `at`, not in the payload. FAR and SHARED: it is on a GPU, at the tshi_share in
     * the payload. */
    uint32_t flags;
    tshi_signature signature; /* its message, if any, is the payload */
    uint64_t at;              /* offset of the data in the heap of the rank that publishes */
} tshi_slot;

typedef struct tshi_member {
    alignas(TSHI_LINE_BYTES) _Atomic uint32_t sleepers; /* ranks that sleep until this member publishes */
    _Atomic uint32_t moving;                            /* it reads and writes its peers' memory for a call */
    /* The first small message of this member that did not match its receive: 0: none, 1: being written, 2: readable. */
    _Atomic uint32_t complaint;
    int complainer;              /* the receiver */
    tshi_signature sent, wanted; /* the message, and the receive that it did not match */
} tshi_member;

#define TSHI_ENVELOPES    32
#define TSHI_INLINE_BYTES 104 /* bytes of data in an envelope */

/* A message: small data itself, or the address of larger data; see point_to_point.c. */
typedef struct tshi_envelope {
    _Atomic uint32_t turn; /* twice the rounds of the ring, plus 1 while the envelope is full */
    uint32_t kind;         /* see tshi_kind_of */
    uint16_t from, way;
    int64_t count;
    union {
        struct {
            uint64_t completion, at; /* in the sender's heap */
        };
        unsigned char data[TSHI_INLINE_BYTES];
    };
} tshi_envelope;

typedef struct tshi_inbox {
    alignas(TSHI_LINE_BYTES) _Atomic uint64_t tail; /* number of the next envelope to be written */
    _Atomic uint32_t sleepers;
    _Atomic uint32_t congested; /* its owner keeps too many unexpected messages */
    alignas(TSHI_LINE_BYTES) tshi_envelope envelope[TSHI_ENVELOPES];
} tshi_inbox;

static_assert(sizeof(tshi_envelope) == TSHI_LINE_BYTES, "envelopes lie on lines of their own");

/* --- private memory ----------------------------------------------------------------------------------------------- */

typedef struct tshi_shm {
    bool maps;           /* ranks map GPU memory of their peers, and wait for each other when they leave */
    bool direct;         /* every rank can map the GPU memory of every other: collectives run on it in place */
    bool oversubscribed; /* see tshi_machine_oversubscribed */
    int spins;           /* polls of a peer before the first yield: TSHI_SPINS, or TSHI_FEW_SPINS if oversubscribed */
    /* The wait in progress. */
    double waiting_since, next_warning, next_look;
    int naps;
    struct tshi_mailbox *mailboxes; /* of closed groups, until receivers have read their eager buffers */
} tshi_shm;

typedef struct tshi_mailbox tshi_mailbox; /* point_to_point.c */

/* The next step of a started call, due when all members have published this rank's last sync. */
typedef enum tshi_shm_step { TSHI_TO_POST, TSHI_TO_MOVE, TSHI_MOVED } tshi_shm_step;

typedef struct tshi_shm_group {
    tshi_heap_block *block; /* the tshi_heap_block, then the tshi_members */
    bool open;              /* every member knows the block */
    size_t slot_bytes, inbox_at, member_bytes;
    tshi_mailbox *mailbox; /* NULL before the first message */
    uint32_t slots;        /* of each member */
    uint32_t sync;         /* this rank's last */
    uint32_t compared;     /* the last sync that all members have published and this rank has compared */
    uint32_t agreed;       /* in a recovery: the sync from which all members continue */
    tshi_slot draft;       /* this rank's next slot until it is published, then a copy of the last */
    const char *name;      /* of the current call */
    tshi_shm_step step;    /* of the started call */
    tsh_status refused;    /* a failure to share or map GPU memory in this call; its message is in this rank's slot */
    const void **in;       /* [size], scratch */
    void **out;
    char **there; /* [size] in a call on GPUs: where this rank has mapped each member's buffer */
} tshi_shm_group;

static inline tshi_shm *tshi_shm_of(const tsh_world *world) {
    return world->state[TSHI_SHM_PLACE];
}

static inline tshi_member *tshi_member_at(const tshi_shm_group *lg, int member) {
    return (tshi_member *)(void *)((char *)lg->block + sizeof(tshi_heap_block) + (size_t)member * lg->member_bytes);
}

static inline tshi_slot *tshi_slot_at(const tshi_shm_group *lg, int member, uint32_t sync) {
    char *m = (char *)tshi_member_at(lg, member);
    return (tshi_slot *)(void *)(m + sizeof(tshi_member) + (sync & (lg->slots - 1)) * lg->slot_bytes);
}

static inline unsigned char *tshi_payload(tshi_slot *slot) {
    return (unsigned char *)slot + sizeof *slot;
}

/* The payload of this rank's slot in the next sync. */
static inline unsigned char *tshi_next_payload(const tsh_group *group) {
    const tshi_shm_group *lg = group->state;
    return tshi_payload(tshi_slot_at(lg, group->rank, lg->sync + 1));
}

/* "all_reduce float32 [8] sum #3". */
static inline char *tshi_slot_describe(tshi_slot *slot, char *text, size_t size) {
    return tshi_signature_describe(&slot->signature, (const char *)tshi_payload(slot), text, size);
}

/* The end of the payload, behind the counts of at most TSHI_REDUCE_MAX ranks; a call on GPUs has no other data
 * there. */
static inline unsigned char *tshi_slot_share(tshi_slot *slot) {
    return tshi_payload(slot) + TSHI_SLOT_PAYLOAD - sizeof(tshi_share);
}
static_assert(16 * TSHI_REDUCE_MAX + sizeof(tshi_share) <= TSHI_SLOT_PAYLOAD, "counts and a share have room in a slot");

/* The offset of `data` in this rank's heap. For NULL (no elements) the result is never used. */
static inline uint64_t tshi_shm_heap_offset(const tsh_world *world, const void *data) {
    return (uint64_t)((const char *)data - world->machine.heap[world->rank]);
}

/* What lies at that offset in a member's heap. */
static inline void *tshi_shm_heap_at(const tsh_group *group, int member, uint64_t offset) {
    return group->world->machine.heap[group->ranks[member]] + offset;
}

/* --- exchange.c --------------------------------------------------------------------------------------------------- */

/* See tshi_group_ops.exchange. */
tsh_status tshi_shm_exchange(tsh_group *group, const tshi_comm_call *call, const struct tshi_exchange_plan *plan);

/* --- world.c, device.c: see tshi_group_ops ------------------------------------------------------------------------ */

tsh_status tshi_shm_probe(const tshi_start *start, bool *takes);
tsh_status tshi_shm_world_open(tsh_world *world, const tshi_start *start, void **heap);
tsh_status tshi_shm_world_join(tsh_world *world, tsh_status mine);
void tshi_shm_world_close(tsh_world *world);
/* Sets local->direct if tensors live on GPUs and a trial shows that every rank can map every other's GPU memory. Logs
 * the result. */
tsh_status tshi_shm_take_data(tsh_world *world, bool *takes);
bool tshi_shm_stages(const tsh_group *group, const tshi_comm_call *call);

/* --- group.c: blocks ---------------------------------------------------------------------------------------------- */

size_t tshi_shm_block_bytes(int size);
/* Bytes of heap that the first rank of a group allocates for its block. */
size_t tshi_shm_open_bytes(int size);
size_t tshi_shm_message_bytes(const tshi_comm_call *send);
/* The private state of a group of `size`, without the block. NULL with the message set. */
tshi_shm_group *tshi_shm_group_new(tsh_world *world, int size);
/* Sets the world's oversubscribed and spins, once all ranks of this machine have joined. */
void tshi_shm_count_cores(tsh_world *world);
void tshi_shm_group_free(tsh_world *world, tshi_shm_group *lg);
tsh_status tshi_shm_prepare(tsh_group *group, uint64_t *address);
tsh_status tshi_shm_open(tsh_group *group, uint64_t address);
void tshi_shm_close(tsh_group *group);

/* --- wait.c: waiting ---------------------------------------------------------------------------------------------- */

/* Publishes the draft as this rank's slot of the next sync, and waits until every member has published its own.
 * payload: the bytes that slots are likely to hold, a hint for prefetching. */
tsh_status tshi_shm_sync(tsh_group *group, size_t payload);

/* Publishes the draft without waiting. next: as `payload` above, for the slot after it; 0: no hint. */
void tshi_shm_publish(tsh_group *group, size_t next);
/* All members have published that sync. await: waits until they have. */
bool tshi_shm_is_published(const tsh_group *group, uint32_t sync);
tsh_status tshi_shm_await(tsh_group *group, uint32_t sync);
/* See tshi_group_ops.nap and .awake. */
tsh_status tshi_shm_nap(tsh_group *group, const tsh_work *work, double since);
void tshi_shm_awake(tsh_group *group);

/* Polls without a pause instruction, which would delay the answer to a peer that is just as fast. */
#define TSHI_EAGER_POLLS 64

/* Prefetches a cache line for writing. */
static inline void tshi_claim(const void *at) {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)at));
#else
    __builtin_prefetch(at, 1);
#endif
}

typedef struct tshi_wait {
    tsh_world *world;
    tsh_group *group;
    uint32_t sync;
    tshi_deadline deadline;
    const tsh_work *message; /* the message waited for; NULL: a collective */
} tshi_wait;

/* Publishes in the wait graph the ranks that this wait is for and that have not made the call. */
void tshi_shm_publish_wait(const tshi_wait *wait);

/* --- failure.c: what stops a call -------------------------------------------------------------------------------- */

/* Polls for deaths, failures, cycles of waits and the deadline, while this rank waits for world rank `rank` (-1:
 * any). */
tsh_status tshi_shm_poll(tshi_wait *wait, int rank);
void tshi_shm_wake(tsh_group *group);

/* --- settle.c: memory that peers touch --------------------------------------------------------------------------- */

/* Before and after this rank touches its peers' memory for a call that all have published. move returns the error of a
 * world that has failed since: peers may have left the call, and this rank must not touch their memory. */
tsh_status tshi_shm_move(const tsh_group *group);
void tshi_shm_moved(const tsh_group *group);
/* Returns `status`, with its message, from a call that this rank has published and a failure has ended, once no peer
 * touches the call's memory any more. plan: of a box exchange, else NULL. */
tsh_status tshi_shm_depart(tsh_group *group, const tshi_comm_call *call, const struct tshi_exchange_plan *plan,
                           tsh_status status);
/* Waits while *word is `held`, which a peer sets for as long as it reads `bytes` at `data`. */
void tshi_shm_await_reader(tsh_world *world, int rank, _Atomic uint32_t *word, uint32_t held, const void *data,
                           size_t bytes);

/* --- recover.c: see tshi_group_ops ------------------------------------------------------------------------------- */

void tshi_shm_stop(tsh_group *group);
void tshi_shm_restart(tsh_group *group);
void tshi_shm_leave(tsh_world *world);

/* --- point_to_point.c: point to point ----------------------------------------------------------------------------- */

/* A wait for a message: sleep until *word has reached target; word NULL: no single event. rank: in the world, or -1. */
typedef struct tshi_awaited {
    _Atomic uint32_t *word;
    uint32_t target;
    _Atomic uint32_t *sleepers;
    int rank;
} tshi_awaited;
tshi_awaited tshi_message_watch(const tsh_work *work);
tsh_status tshi_message_start(tsh_work *work);
bool tshi_message_quick(tsh_work *work);
void tshi_message_progress(tsh_work *work);
/* tshi_shm_depart for a message that has started. */
tsh_status tshi_message_depart(const tsh_work *work, tsh_status status);
/* Drops all messages; called while every rank recovers. */
void tshi_messages_reset(tsh_group *group);
void tshi_messages_close(tsh_group *group);
/* Frees the mailboxes of closed groups whose receivers have read their data; `all`: the others too. */
void tshi_messages_sweep(tsh_world *world, bool all);

/* --- desync.c: comparing calls ------------------------------------------------------------------------------------ */

/* The draft of this rank's next slot, with the call's signature. */
tshi_slot *tshi_shm_open_slot(tsh_group *group, const tshi_comm_call *call);
/* Compares the signatures that all members have published in that sync; TSH_ERR_MISMATCH with both calls, or
 * TSH_ERR_PEER. *far: some member's data is not in its slot. */
tsh_status tshi_shm_compare(const tsh_group *group, uint32_t sync, bool *far);
/* all_to_all: the counts that member i sends to each member, then those that it expects from each. compare: each member
 * expects the count that it is sent. */
static inline const int64_t *tshi_counts_of(const tsh_group *group, int i) {
    const tshi_shm_group *lg = group->state;
    return (const int64_t *)(const void *)tshi_payload(tshi_slot_at(lg, i, lg->sync));
}
tsh_status tshi_shm_compare_counts(const tsh_group *group);
/* Writes the counts of an all_to_all into the payload of this rank's next slot. Returns their bytes. */
size_t tshi_shm_put_counts(const tsh_group *group, const tshi_comm_call *call);
/* Compares the calls from which this rank has returned early, up to that sync. Returns the first mismatch, for the next
 * call to report; if that call has failed itself (`failed`, `words`), logs the mismatch and returns `failed`. */
tsh_status tshi_shm_compare_late(tsh_group *group, uint32_t sync, tsh_status failed, const char *words);
/* A call that cannot be made on this rank. refuse: writes tsh_error_message() into this rank's next slot. refused:
 * after it is published, returns `failed` with that message, which another failure may have replaced. run_failed: both,
 * with the sync between them. */
void tshi_shm_refuse(const tsh_group *group);
tsh_status tshi_shm_refused(const tsh_group *group, tsh_status failed);
tsh_status tshi_shm_run_failed(tsh_group *group, tsh_status failed);
/* Waits for the calls from which this rank has returned early, up to that sync, and compares them. *failed: the status
 * of the next call, and on return also a mismatch of an earlier call. */
tsh_status tshi_shm_catch_up(tsh_group *group, uint32_t sync, tsh_status *failed);

/* --- device.c: memory of GPUs ------------------------------------------------------------------------------------- */

/* Writes a handle of `data`, on the GPU, into this rank's next slot, or the error (lg->refused). First waits for the
 * work queued on the GPU, so that peers may touch the memory. */
void tshi_shm_share(const tsh_group *group, const void *data);
/* Maps the memory that the members have shared in this sync, into lg->there. */
tsh_status tshi_shm_reach(const tsh_group *group);

#endif
