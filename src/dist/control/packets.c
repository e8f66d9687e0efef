#include "dist/control/packets.h"

#include <string.h>

#define HEAD offsetof(tshi_packet, data)

/* The slot of the next packet, claimed for this rank; NULL: the queue is full. */
static tshi_packet_slot *claim(tshi_packet_queue *queue, uint32_t *turn) {
    uint64_t n = atomic_load_explicit(&queue->added, memory_order_relaxed);
    for (;;) {
        tshi_packet_slot *slot = &queue->slot[n % TSHI_PACKET_SLOTS];
        *turn = 2 * (uint32_t)(n / TSHI_PACKET_SLOTS);
        int32_t ahead = (int32_t)(atomic_load_explicit(&slot->turn, memory_order_acquire) - *turn);
        if (ahead < 0) return NULL;
        if (ahead == 0 && atomic_compare_exchange_weak(&queue->added, &n, n + 1)) return slot;
        if (ahead > 0) n = atomic_load_explicit(&queue->added, memory_order_relaxed);
    }
}

bool tshi_packet_add(tshi_packet_queue *queue, const tshi_packet *packet) {
    uint32_t turn;
    tshi_packet_slot *slot = claim(queue, &turn);
    if (!slot) return false;
    memcpy(&slot->packet, packet, HEAD + packet->length);
    atomic_store_explicit(&slot->turn, turn + 1, memory_order_release);
    /* Adds 0 rather than loads: either this rank sees the sleeper, or the sleeper sees the packet. */
    if (atomic_fetch_add_explicit(&queue->sleepers, 0, memory_order_acq_rel) != 0) tshi_wake(&slot->turn);
    return true;
}

bool tshi_packet_take(tshi_packet_queue *queue, tshi_packet *out) {
    tshi_packet_slot *slot = &queue->slot[queue->taken % TSHI_PACKET_SLOTS];
    uint32_t turn = 2 * (uint32_t)(queue->taken / TSHI_PACKET_SLOTS);
    if (!tshi_packet_is_there(queue)) return false;
    memcpy(out, &slot->packet, HEAD + slot->packet.length);
    queue->taken++;
    atomic_store_explicit(&slot->turn, turn + 2, memory_order_release);
    return true;
}

void tshi_packet_doze(tshi_packet_queue *queue, long nanoseconds) {
    uint32_t full = 2 * (uint32_t)(queue->taken / TSHI_PACKET_SLOTS) + 1;
    tshi_doze(&queue->slot[queue->taken % TSHI_PACKET_SLOTS].turn, full, &queue->sleepers, nanoseconds);
}
