/* The backend of one machine: the memory that its ranks share, and how they wait for each other.
 *
 * All ranks map each rank's heap, which holds its tensors (or map its GPU memory); a call publishes the address of its
 * buffer, and peers read and write it there. A group has a block of shared memory with a ring of slots for each member,
 * one for each sync. Most calls wait until all members have published the sync, and compare the slots.
 *
 * A rank that has nothing to fetch, and whose data lies in its slot or has been copied, returns early: when it has
 * published. It waits for the sync, and compares it, before its next call that waits and before it is half the ring
 * ahead: so when it publishes sync s, all ranks have read sync s - slots, whose slot it writes. Until then a slot does
 * not change. */
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

/* Bytes in the slot itself, for data that needs one sync only. */
#define TSHI_SLOT_PAYLOAD 4160
/* Slots of a member; fewer in a large group, whose block would be too large. Powers of two. */
#define TSHI_SLOTS       16
#define TSHI_FEW_SLOTS   2
#define TSHI_LARGE_GROUP 32

/* --- shared memory ------------------------------------------------------------------------------------------------ */

enum { TSHI_SLOT_FAR = 1, TSHI_SLOT_SHARED = 2 }; /* flags */

/* What a member publishes in one call. */
typedef struct tshi_slot {
    alignas(64) _Atomic uint32_t sync; /* number of the sync that published it; written last */
    uint32_t
        flags; /* FAR: the data is in the heap, not in the payload; with SHARED too it is on a GPU, and a tshi_share
                     * in the payload says where */
    tshi_signature signature; /* the payload is its message */
    uint64_t at;              /* where the sender's data starts in its heap */
} tshi_slot;

/* Written by ranks that are about to sleep until this member publishes. */
typedef struct tshi_member {
    alignas(TSHI_LINE_BYTES) _Atomic uint32_t sleepers;
    _Atomic uint32_t moving; /* it reads and writes its peers' memory for a call */
    /* The first small message of this rank that did not fit its receive; 0: none, 1: being written, 2: to be read. */
    _Atomic uint32_t complaint;
    int complainer;
    tshi_signature sent, wanted; /* the message, and the receive that it did not fit */
} tshi_member;

#define TSHI_ENVELOPES    32
#define TSHI_INLINE_BYTES 104 /* bytes of data in an envelope */

/* A message, or its address. */
typedef struct tshi_envelope {
    _Atomic uint32_t turn; /* twice the rounds of the ring, one more while it is full */
    uint32_t kind;         /* dtype, and whether it is a description */
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
    _Atomic uint32_t congested; /* its owner stores too many envelopes */
    alignas(TSHI_LINE_BYTES) tshi_envelope envelope[TSHI_ENVELOPES];
} tshi_inbox;

static_assert(sizeof(tshi_envelope) == TSHI_LINE_BYTES, "envelopes lie on lines of their own");

/* --- this rank's side --------------------------------------------------------------------------------------------- */

typedef struct tshi_shm {
    bool maps;           /* GPU memory of peers; ranks that have some wait for each other when they leave */
    bool direct;         /* every rank reaches the GPU memory of every other: collectives run on it */
    bool oversubscribed; /* more ranks than cores that they may run on together; the same on all ranks */
    int spins;           /* polls of a peer before the first yield, ... */
    int yields;          /* ... and yields before sleeping */
    /* The state of the wait under way. */
    double waiting_since, next_warning, next_look;
    int naps;
    struct tshi_mailbox *mailboxes; /* of closed groups, with messages that are still to be fetched */
} tshi_shm;

typedef struct tshi_mailbox tshi_mailbox; /* point_to_point.c */

/* What a started call does next, when all members have published this rank's last sync. */
typedef enum tshi_shm_step { TSHI_TO_POST, TSHI_TO_MOVE, TSHI_MOVED } tshi_shm_step;

typedef struct tshi_shm_group {
    tshi_heap_block *block; /* then the members */
    size_t slot_bytes, inbox_at, member_bytes;
    tshi_mailbox *mailbox; /* NULL before the first message */
    uint32_t slots;        /* of each member */
    uint32_t sync;         /* my last */
    uint32_t compared;     /* the last sync that all members have published and this rank has compared */
    uint32_t agreed;       /* while recovering */
    tshi_slot draft;       /* this rank's next slot until it is published, then the last one */
    const char *name;      /* of the call under way */
    int spins;
    tshi_shm_step step; /* of the started call */
    tsh_status refused; /* the failure of GPU memory in the call under way; its message is in this rank's slot */
    size_t near_bytes[TSH_COLLECTIVE_COUNT]; /* largest data that goes into the slot, the same on all ranks */
    const void **in;                         /* [size], scratch */
    void **out;
    char **there; /* [size] where this rank has mapped what the members have shared in a call on GPUs */
} tshi_shm_group;

static inline tshi_shm *tshi_shm_of(const tsh_world *world) {
    return world->state;
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

/* At the end of the payload: calls on GPUs have nothing else there but counts, of at most TSHI_REDUCE_MOST ranks. */
static inline unsigned char *tshi_slot_share(tshi_slot *slot) {
    return tshi_payload(slot) + TSHI_SLOT_PAYLOAD - sizeof(tshi_share);
}
static_assert(16 * TSHI_REDUCE_MOST + sizeof(tshi_share) <= TSHI_SLOT_PAYLOAD,
              "counts and a share have room in a slot");

/* Where memory of this rank's heap is in it; NULL for no memory is somewhere. */
static inline uint64_t tshi_shm_heap_offset(const tsh_world *world, const void *data) {
    return (uint64_t)((const char *)data - world->machine.heap[world->rank]);
}

/* --- collective.c, exchange.c ------------------------------------------------------------------------------------- */

/* The draft of this rank's next slot, with what the members compare. */
tshi_slot *tshi_shm_open_slot(tsh_group *group, const tshi_comm_call *call);
/* See tshi_group_ops.exchange. */
tsh_status tshi_shm_exchange(tsh_group *group, const tshi_comm_call *call, const struct tshi_exchange_plan *plan);

/* --- world.c, device.c: see tshi_group_ops ------------------------------------------------------------------------ */

tsh_status tshi_shm_probe(const tshi_start *start, bool *takes);
tsh_status tshi_shm_world_open(tsh_world *world, const tshi_start *start, void **heap);
tsh_status tshi_shm_world_join(tsh_world *world, tsh_status mine);
void tshi_shm_world_close(tsh_world *world);
/* Sets local->direct where tensors live on GPUs and every rank can reach the memory of every other's, which is tried.
 * The log says which. */
tsh_status tshi_shm_take_data(tsh_world *world, bool *takes);
bool tshi_shm_stages(const tsh_group *group, const tshi_comm_call *call);

/* --- group.c: blocks ---------------------------------------------------------------------------------------------- */

size_t tshi_shm_block_bytes(int size);
/* What the first rank of a group allocates for it. */
size_t tshi_shm_open_bytes(int size);
size_t tshi_shm_message_bytes(const tshi_comm_call *send);
/* The private side of a group of `size`; the block comes later. NULL with the message set. */
tshi_shm_group *tshi_shm_group_new(tsh_world *world, int size);
/* Sets the lengths of waits and the sizes that go into a slot, when the number of cores is known. */
void tshi_shm_tune(tshi_shm_group *lg, const tshi_shm *local);
void tshi_shm_group_free(tsh_world *world, tshi_shm_group *lg);
tsh_status tshi_shm_open(tsh_group *parent, const int *ranks, int n, tsh_group *group);
void tshi_shm_close(tsh_group *group);

/* --- wait.c: waiting ---------------------------------------------------------------------------------------------- */

/* Publish my slot of the next sync (already filled) and wait until every member has published its own. `payload`: bytes
 * of it that the members are likely to have in their slots, a hint. */
tsh_status tshi_shm_sync(tsh_group *group, size_t payload);

/* Publish the slot of this rank's next sync, already filled, without waiting; `next`: bytes likely in the one after. */
void tshi_shm_publish(tsh_group *group, size_t next);
/* True when all members have published that sync; wait until they have. */
bool tshi_shm_is_published(const tsh_group *group, uint32_t sync);
tsh_status tshi_shm_await(tsh_group *group, uint32_t sync);
/* See tshi_group_ops.nap and .awake. */
tsh_status tshi_shm_nap(tsh_group *group, const tsh_work *work, double since);
void tshi_shm_awake(tsh_group *group);

/* Polls without a pause: a pause costs the reply of a peer that is just as fast. */
#define TSHI_EAGER_POLLS 64

/* Fetch a cache line for writing before this rank needs it. */
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
    double since, next_warning;
    const tsh_work *message; /* the message that is waited for, NULL: a collective */
} tshi_wait;

/* Publish the ranks that this wait is for and that have not made the call. */
void tshi_shm_publish_wait(const tshi_wait *wait);
/* Wait until *word has reached `target`, sleeping where it takes long; `rank` is the world rank waited for. */
tsh_status tshi_wait_for(tshi_wait *wait, _Atomic uint32_t *word, uint32_t target, _Atomic uint32_t *sleepers,
                         int rank);

/* --- failure.c: what stops a call -------------------------------------------------------------------------------- */

/* This rank is about to touch its peers' memory for a call that all have published. The error of a world that has
 * failed by now: peers may have left the call, and this rank must not go on. moved: it is done. */
tsh_status tshi_shm_move(const tsh_group *group);
void tshi_shm_moved(const tsh_group *group);
/* A call that this rank has published fails with `status`, after a failure in the world: returns it, with its message,
 * once no peer touches the call's memory any more. plan: of an exchange, else NULL. */
tsh_status tshi_shm_depart(tsh_group *group, const tshi_comm_call *call, const struct tshi_exchange_plan *plan,
                           tsh_status status);
/* Waits until the peer that has set *word to `held` for as long as it reads `bytes` at `data` is done. */
void tshi_shm_await_reader(tsh_world *world, int rank, _Atomic uint32_t *word, uint32_t held, const void *data,
                           size_t bytes);
/* Checks for deaths, failures and the deadline while this rank waits for world rank `rank`. */
tsh_status tshi_shm_poll(tshi_wait *wait, int rank);
void tshi_shm_fail(tsh_world *world, const char *reason, tshi_tape_step step);
tsh_status tshi_shm_recover(tsh_world *world);
void tshi_shm_leave(tsh_world *world);

/* --- point_to_point.c: point to point ----------------------------------------------------------------------------- */

/* What to sleep on until *word has reached target; no word: nothing in particular. rank: in the world, or -1. */
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
/* See tshi_shm_depart: of a message that has started. */
tsh_status tshi_message_depart(const tsh_work *work, tsh_status status);
/* Drop all messages; called while every rank recovers. */
void tshi_messages_reset(tsh_group *group);
void tshi_messages_close(tsh_group *group);
/* Free data of closed groups that its receivers have fetched since; `all`: the rest too. */
void tshi_messages_sweep(tsh_world *world, bool all);

/* --- desync.c: whether all say the same --------------------------------------------------------------------------- */

/* The published slots of all members; *far: the data of some member is in the heap. */
tsh_status tshi_shm_compare(const tsh_group *group, uint32_t sync, bool *far);
/* all_to_all: what member i sends to each, then what it expects of each; whether each expects what it is sent. */
static inline const int64_t *tshi_counts_of(const tsh_group *group, int i) {
    const tshi_shm_group *lg = group->state;
    return (const int64_t *)(const void *)tshi_payload(tshi_slot_at(lg, i, lg->sync));
}
tsh_status tshi_shm_compare_counts(const tsh_group *group);
/* Write the counts of an all_to_all into the payload of this rank's next slot. Returns their bytes. */
size_t tshi_shm_put_counts(const tsh_group *group, const tshi_comm_call *call);
/* See tshi_group_ops.compare. */
tsh_status tshi_shm_compare_call(tsh_group *group, const tshi_comm_call *call);
/* Compares the calls from which this rank has returned early, up to that sync; its next call returns the result. When
 * that call fails for a reason of its own (`failed`, `words`), an earlier mismatch is logged instead. */
tsh_status tshi_shm_compare_late(tsh_group *group, uint32_t sync, tsh_status failed, const char *words);
/* "all_reduce float32 [8] sum #3" of a slot. */
char *tshi_slot_describe(tshi_slot *slot, char *text, size_t size);
/* The words of tsh_error_message() into my next slot: a call cannot be made here. refused: it has been published; the
 * status with those words again, for other calls may have failed since. run_failed: all of that. */
void tshi_shm_refuse(const tsh_group *group);
tsh_status tshi_shm_refused(const tsh_group *group, tsh_status failed);
tsh_status tshi_shm_run_failed(tsh_group *group, tsh_status failed);
/* Wait for the members of calls from which this rank has returned early, up to that sync. *failed: the status of the
 * next call. */
tsh_status tshi_shm_catch_up(tsh_group *group, uint32_t sync, tsh_status *failed);
/* Every rank publishes the text (and, for the others to read, `at`); see tshi_group_ops.agree. */
tsh_status tshi_shm_agree(tsh_group *group, const char *text, tsh_status failed, uint64_t at);

/* --- device.c: memory of GPUs ------------------------------------------------------------------------------------- */

/* Into my next slot: where `data`, on the GPU, is, or why that cannot be said (lg->refused). Waits for what is queued
 * there: peers may touch it then. */
void tshi_shm_share(const tsh_group *group, const void *data);
/* What the members have shared in this sync, into lg->there. */
tsh_status tshi_shm_reach(const tsh_group *group);

#endif
