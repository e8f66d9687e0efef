/* The control page: what the ranks of one machine know of all ranks of the world, in memory that they all map.
 *
 *   field, in the order of the writes    written by the rank itself, and by
 *   reason, step                         for a rank of another machine, the relay
 *   state                                a peer that finds the rank DEAD; the relay
 *   recover                              the relay
 *   left                                 the relay
 *   agreement, wait, call                the relay, at any time
 *
 * Invariant: a rank that sees a state sees its reason and step or those of a later state, and a rank that sees a step
 * of a recovery sees the state that the rank had then, or a later one. It holds because every writer, the relay too,
 * stores in this order with release, and tshi_page_read loads in the opposite order. `failures` counts a rank before
 * its state changes: what is seen of a failure is counted, and the count may come first. */
#ifndef TSHI_PAGE_H
#define TSHI_PAGE_H

#include "base/base.h"

#include <stdalign.h>
#include <stdatomic.h>

#define TSHI_LINE_BYTES    128 /* two cache lines: the hardware fetches them in pairs */
#define TSHI_CORE_BYTES    128
#define TSHI_RELAY_ADDRESS 16
#define TSHI_MOST_JOINERS  16
#define TSHI_JOINER_HOST   64
#define TSHI_CALL_BYTES    32 /* of the name of a call that waits, with its end */

static inline size_t tshi_round_up(size_t n, size_t to) {
    return (n + to - 1) / to * to;
}

/* A step of a tape, both numbered from 1; zeros: no particular step. */
typedef struct tshi_tape_step {
    uint64_t tape, number;
} tshi_tape_step;

static inline bool tshi_step_is_later(tshi_tape_step step, tshi_tape_step than) {
    return step.tape && step.tape == than.tape && step.number > than.number;
}

/* FAILED ranks may recover. STUCK (a deadline has passed, or MPI has failed) and DEAD are final. */
typedef enum tshi_rank_state { TSHI_ALIVE = 0, TSHI_FAILED, TSHI_STUCK, TSHI_DEAD } tshi_rank_state;

/* The reason of a rank on an unreachable machine begins with this. */
#define TSHI_MACHINE "machine "

typedef struct tshi_rank_record {
    alignas(TSHI_LINE_BYTES) _Atomic uint32_t state; /* a tshi_rank_state */
    _Atomic uint32_t left;                           /* the rank has destroyed its world */
    _Atomic uint32_t recover;                        /* the last step of a recovery that it has made */
    _Atomic uint32_t sleepers;                       /* ranks that sleep on `recover` */
    _Atomic uint64_t agreement;                      /* see tshi_agreement */
    _Atomic uint64_t wait; /* identifies the last call in which it has waited for long (tshi_deadline); 0: none */
    _Atomic uint64_t call[TSHI_CALL_BYTES / 8]; /* its name; changes only while `wait` is 0 */
    tshi_tape_step step;                        /* of FAILED */
    char reason[TSHI_MESSAGE_SIZE];             /* of FAILED and STUCK; of DEAD, "" unless its machine was lost */
    /* Only ranks of its own machine use the rest. */
    /* tsh_world_continue; see standings.h. */
    _Atomic uint32_t standing;
    _Atomic uint32_t heard;          /* the last turn that the other machine's rank knows */
    _Atomic int64_t completed;       /* steps; written before `standing` */
    _Atomic uint32_t unreachable;    /* the relays towards it have ended: no packet comes from it any more */
    _Atomic uint32_t unmapped_peers; /* it has unmapped the GPU memory of its peers */
    _Atomic uint32_t undelivered;    /* packets that the relay keeps for it until its queue has room */
    int32_t process;                 /* its PID in ... */
    uint64_t namespace;              /* ... this PID namespace; both are set before any rank has joined */
    uint64_t heap_at;                /* in the mapped file; the machine's first rank sets it before any rank maps it */
    unsigned char cores[TSHI_CORE_BYTES]; /* its affinity mask, a bit a core; written before it joins */
} tshi_rank_record;

/* A rank that is about to join. Its machine is given by its number in the former world or, if it is none of these
 * machines, as -1 - i: the machine of joiner i. */
typedef struct tshi_newcomer {
    int32_t node;
    char host[TSHI_JOINER_HOST];
} tshi_newcomer;

/* Those of a round of tsh_world_continue. */
typedef struct tshi_newcomers {
    int32_t count, unused;
    tshi_newcomer rank[TSHI_MOST_JOINERS];
} tshi_newcomers;

typedef struct tshi_page {
    alignas(
        TSHI_LINE_BYTES) _Atomic uint32_t failures; /* ranks whose state is not ALIVE; a fast path reads only this */
    _Atomic uint32_t cause;                         /* 1 + the first rank that was not ALIVE; 0: no rank */
    _Atomic uint32_t changed;                       /* incremented after every change that a relay passes on */
    _Atomic uint32_t turn;                          /* of tsh_world_continue, see standings.h */
    _Atomic uint64_t port;                          /* 1 + the round, and below it the port at which its world meets */
    _Atomic uint32_t newcomers_round;               /* 1 + the round of the newcomers; see standings.h */
    tshi_newcomers newcomers;
    _Atomic uint32_t relay_sleeps; /* in poll(), until a datagram comes to relay_address */
    int32_t relay_address_bytes;   /* of an abstract Unix socket */
    char relay_address[TSHI_RELAY_ADDRESS];
    int32_t size;
    tshi_rank_record record[]; /* [size] */
} tshi_page;

/* What one machine sends another about a rank. */
typedef struct tshi_rank_news {
    int32_t rank;
    uint32_t state, left, recover;
    uint64_t agreement, wait;
    char call[TSHI_CALL_BYTES];
    tshi_tape_step step;
    char reason[TSHI_MESSAGE_SIZE];
} tshi_rank_news;

/* The agreement that a rank takes part in: the lower half of its number, and above it 1 + the steps of recoveries that
 * the rank has made. number 0: none. */
static inline uint64_t tshi_agreement(uint32_t steps, uint64_t number) {
    return ((uint64_t)steps + 1) << 32 | (number ? (uint32_t)number | 1 : 0);
}

/* A multiple of TSHI_LINE_BYTES. A new page is zeroed, except for its size. */
size_t tshi_page_bytes(int size);

static inline uint32_t tshi_page_state(const tshi_page *page, int rank) {
    return atomic_load(&page->record[rank].state);
}

/* The counter *word, which only increases, is at `target` or past it. */
static inline bool tshi_reached(_Atomic uint32_t *word, uint32_t target) {
    return (int32_t)(atomic_load_explicit(word, memory_order_acquire) - target) >= 0;
}

/* Does nothing if the rank's state is no longer `from`. */
void tshi_page_set_state(tshi_page *page, int rank, uint32_t from, uint32_t to);
/* Both wake the ranks that sleep until this rank recovers. */
void tshi_page_leave(tshi_page *page, int rank);
void tshi_page_recover_step(tshi_page *page, int rank, uint32_t step);
/* Sets that of this rank. After a failure the relay passes it on. */
void tshi_page_set_agreement(tshi_page *page, int rank, uint64_t agreement);
/* Sets those of this rank; the relay passes them on. */
void tshi_page_set_wait(tshi_page *page, int rank, uint64_t wait, const char *call);
/* Reads those of a rank. `call` is "" while they change. */
uint64_t tshi_page_wait(const tshi_page *page, int rank, char call[TSHI_CALL_BYTES]);
/* What the relay sends of record[rank].agreement, for a rank of this machine: 0 (not known) until a failure is known
 * here that no recovery has ended. */
uint64_t tshi_page_told_agreement(const tshi_page *page, int rank);

/* All but the agreement. */
void tshi_page_read(const tshi_page *page, int rank, tshi_rank_news *out);
/* Applies the news of a rank on another machine. A rank that is STUCK or DEAD, or has left, stays so. */
void tshi_page_apply(tshi_page *page, const tshi_rank_news *news);

/* Wakes the machine's relay, if there is one and it sleeps. */
void tshi_page_wake_relay(tshi_page *page);

/* Wakes all threads of any process that sleep on `word` in tshi_doze. */
void tshi_wake(_Atomic uint32_t *word);
/* Wakes those that sleep on `word`, which has been written. Adds 0 rather than loads: read-modify-writes of `sleepers`
 * have one order, so either this rank sees the sleeper, or the sleeper sees the word. */
static inline void tshi_wake_sleepers(_Atomic uint32_t *sleepers, _Atomic uint32_t *word) {
    if (atomic_fetch_add_explicit(sleepers, 0, memory_order_acq_rel) != 0) tshi_wake(word);
}
/* Sleeps until *word has reached `target`, but no longer than `nanoseconds`. May wake early. */
void tshi_doze(_Atomic uint32_t *word, uint32_t target, _Atomic uint32_t *sleepers, long nanoseconds);

#endif
