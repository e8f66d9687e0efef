/* The control page: what the ranks of one machine know of all ranks of the world, in memory that they all map.
 *
 * A record is written by its rank, and by ranks of the same machine that find it dead. The records of ranks on other
 * machines are written by this machine's relay, from what the relays there send. Invariant: the words and the step of a
 * failure are written before the state that they belong to, and a rank's state before its next step of recovering. So
 * a rank that sees a step of recovering sees the states that it stands for. */
#ifndef TSHI_PAGE_H
#define TSHI_PAGE_H

#include "base/base.h"

#include <stdalign.h>
#include <stdatomic.h>

#define TSHI_LINE_BYTES 128 /* two cache lines: the hardware fetches them in pairs */
#define TSHI_CORE_BYTES 128

/* A step of a tape, both numbered from 1; zeros: none in particular. */
typedef struct tshi_tape_step {
    uint64_t tape, number;
} tshi_tape_step;

static inline bool tshi_step_is_later(tshi_tape_step step, tshi_tape_step than) {
    return step.tape && step.tape == than.tape && step.number > than.number;
}

/* FAILED ranks may recover. STUCK (its deadline has passed) and DEAD stay. */
typedef enum tshi_rank_state { TSHI_ALIVE = 0, TSHI_FAILED, TSHI_STUCK, TSHI_DEAD } tshi_rank_state;

/* The words of a rank whose machine cannot be reached any more begin so. */
#define TSHI_MACHINE "machine "

typedef struct tshi_rank_record {
    alignas(TSHI_LINE_BYTES) _Atomic uint32_t state; /* a tshi_rank_state */
    _Atomic uint32_t left;                           /* it has destroyed its world */
    _Atomic uint32_t recover;                        /* its last step of recovering */
    _Atomic uint32_t sleepers;                       /* ranks that sleep on `recover` */
    tshi_tape_step step;                             /* of FAILED */
    char reason[TSHI_MESSAGE_SIZE]; /* of FAILED and STUCK, and of DEAD where it is more than the end of a process */
    /* Used by ranks of its own machine only. */
    _Atomic uint32_t unmapped_peers; /* it has unmapped the GPU memory of its peers */
    int32_t process;                 /* its number in ... */
    uint64_t namespace;              /* ... this process namespace; both are set before any rank goes on */
    uint64_t heap_at,
        heap_bytes; /* in the memory that all map; set by the machine's first rank before any reads them */
    unsigned char cores[TSHI_CORE_BYTES]; /* it may run on, a bit each; written before it joins */
} tshi_rank_record;

typedef struct tshi_page {
    alignas(TSHI_LINE_BYTES) _Atomic uint32_t failures; /* ranks whose state is not ALIVE: all that a fast path reads */
    _Atomic uint32_t cause;                             /* 1 + the first of them, 0 for none */
    _Atomic uint32_t changed;                           /* goes up after every change that a relay passes on */
    int32_t size;
    tshi_rank_record record[]; /* [size] */
} tshi_page;

/* What one machine tells another of a rank. */
typedef struct tshi_rank_news {
    int32_t rank;
    uint32_t state, left, recover;
    tshi_tape_step step;
    char reason[TSHI_MESSAGE_SIZE];
} tshi_rank_news;

/* A multiple of TSHI_LINE_BYTES. A page begins as zeros, but for its size. */
size_t tshi_page_bytes(int size);

static inline uint32_t tshi_page_state(const tshi_page *page, int rank) {
    return atomic_load_explicit(&page->record[rank].state, memory_order_acquire);
}

/* A word that only goes up has come to `target`, or past it. */
static inline bool tshi_reached(_Atomic uint32_t *word, uint32_t target) {
    return (int32_t)(atomic_load_explicit(word, memory_order_acquire) - target) >= 0;
}

/* Nothing happens where the rank's state is not `from` any more. */
void tshi_page_set_state(tshi_page *page, int rank, uint32_t from, uint32_t to);
/* Wakes who waits for this rank to recover. */
void tshi_page_leave(tshi_page *page, int rank);
void tshi_page_recover_step(tshi_page *page, int rank, uint32_t step);

void tshi_page_read(const tshi_page *page, int rank, tshi_rank_news *out);
/* Takes over the news of a rank of another machine. What is STUCK, DEAD or has left stays so. */
void tshi_page_apply(tshi_page *page, const tshi_rank_news *news);

/* Wakes all that sleep in tshi_doze on that word, in any process. */
void tshi_wake(_Atomic uint32_t *word);
/* Sleeps until *word has reached `target`, but no longer than so many nanoseconds. */
void tshi_doze(_Atomic uint32_t *word, uint32_t target, _Atomic uint32_t *sleepers, long nanoseconds);

#endif
