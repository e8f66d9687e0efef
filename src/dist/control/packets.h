/* Packets between ranks, and the queues that carry them in the memory of a machine: one for each rank, and one for
 * packets to other machines, which the relay empties.
 *
 * A queue is bounded. Any rank adds packets, and only the owner takes them. Packet n lies in slot n % TSHI_PACKET_SLOTS
 * in round n / TSHI_PACKET_SLOTS.
 *
 *   slot.turn        the slot is                          changed by
 *   2 * round        free for the packet of that round    the rank that adds it, which has claimed n
 *   2 * round + 1    full                                 the owner
 *
 * Invariant: a slot has one writer. It holds because n is claimed by one compare-and-swap of `added`, after its slot
 * was found free. A queue of zeros is empty. */
#ifndef TSHI_PACKETS_H
#define TSHI_PACKETS_H

#include "dist/control/page.h"

#define TSHI_PACKET_SLOTS 32
#define TSHI_PACKET_BYTES 464
#define TSHI_PACKET_MOST  (1u << 30) /* bytes of a message */

/* The turn at which slot n % slots of such a ring may be written; written, it has the next turn. */
static inline uint32_t tshi_ring_turn(uint64_t n, unsigned slots) {
    return 2 * (uint32_t)(n / slots);
}

/* Claims the next slot of a ring whose slots, of `bytes` bytes, begin with their turn; false: the ring is full. */
static inline bool tshi_ring_claim(_Atomic uint64_t *added, void *ring, unsigned slots, size_t bytes, uint64_t *out) {
    uint64_t n = atomic_load_explicit(added, memory_order_relaxed);
    for (;;) {
        _Atomic uint32_t *turn = (_Atomic uint32_t *)(void *)((char *)ring + n % slots * bytes);
        int32_t ahead = (int32_t)(atomic_load_explicit(turn, memory_order_acquire) - tshi_ring_turn(n, slots));
        *out = n;
        if (ahead < 0) return false;
        if (ahead > 0)
            n = atomic_load_explicit(added, memory_order_relaxed);
        else if (atomic_compare_exchange_weak_explicit(added, &n, n + 1, memory_order_relaxed, memory_order_relaxed))
            return true;
    }
}

/* A part of a message from one rank to another. */
typedef struct tshi_packet {
    int32_t from, to;    /* world ranks */
    uint64_t group;      /* tsh_group.id */
    uint32_t epoch;      /* the steps of recoveries that the sender has made; packets of others are discarded */
    uint32_t number;     /* of the message in the group's epoch */
    uint32_t total;      /* bytes of the message */
    uint32_t at, length; /* the bytes of the message that are in `data` */
    unsigned char data[TSHI_PACKET_BYTES];
} tshi_packet;

typedef struct tshi_packet_slot {
    alignas(TSHI_LINE_BYTES) _Atomic uint32_t turn;
    tshi_packet packet;
} tshi_packet_slot;

typedef struct tshi_packet_queue {
    alignas(TSHI_LINE_BYTES) _Atomic uint64_t added;
    alignas(TSHI_LINE_BYTES) uint64_t taken; /* only the owner uses it */
    _Atomic uint32_t sleepers;
    tshi_packet_slot slot[TSHI_PACKET_SLOTS];
} tshi_packet_queue;

/* Queue r of a machine is rank r's, the last one the relay's. Ranks of other machines have queues that stay zero, and
 * take no memory. */
static inline size_t tshi_packet_queues_bytes(int size) {
    return ((size_t)size + 1) * sizeof(tshi_packet_queue);
}

/* False: the queue is full. Wakes the owner. */
bool tshi_packet_add(tshi_packet_queue *queue, const tshi_packet *packet);
/* False: the queue is empty. Only the owner calls it. */
bool tshi_packet_take(tshi_packet_queue *queue, tshi_packet *out);
/* Sleeps until the queue is not empty, but no longer than `nanoseconds`. Only the owner calls it. */
void tshi_packet_doze(tshi_packet_queue *queue, long nanoseconds);

/* The next packet can be taken: one load. */
static inline bool tshi_packet_is_there(const tshi_packet_queue *queue) {
    uint32_t full = tshi_ring_turn(queue->taken, TSHI_PACKET_SLOTS) + 1;
    return atomic_load_explicit(&queue->slot[queue->taken % TSHI_PACKET_SLOTS].turn, memory_order_acquire) == full;
}

#endif
