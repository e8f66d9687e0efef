#include "dist/control/packets.h"

#include <string.h>

#define HEAD offsetof(tshi_packet, data)

bool tshi_packet_add(tshi_packet_queue *queue, const tshi_packet *packet) {
    uint64_t n;
    if (!tshi_ring_claim(&queue->added, queue->slot, TSHI_PACKET_SLOTS, sizeof *queue->slot, &n)) return false;
    tshi_packet_slot *slot = &queue->slot[n % TSHI_PACKET_SLOTS];
    memcpy(&slot->packet, packet, HEAD + packet->length);
    atomic_store_explicit(&slot->turn, tshi_ring_turn(n, TSHI_PACKET_SLOTS) + 1, memory_order_release);
    tshi_wake_sleepers(&queue->sleepers, &slot->turn);
    return true;
}

bool tshi_packet_take(tshi_packet_queue *queue, tshi_packet *out) {
    tshi_packet_slot *slot = &queue->slot[queue->taken % TSHI_PACKET_SLOTS];
    if (!tshi_packet_is_there(queue)) return false;
    memcpy(out, &slot->packet, HEAD + slot->packet.length);
    atomic_store_explicit(&slot->turn, tshi_ring_turn(queue->taken++, TSHI_PACKET_SLOTS) + 2, memory_order_release);
    return true;
}

void tshi_packet_doze(tshi_packet_queue *queue, long nanoseconds) {
    uint32_t full = tshi_ring_turn(queue->taken, TSHI_PACKET_SLOTS) + 1;
    tshi_doze(&queue->slot[queue->taken % TSHI_PACKET_SLOTS].turn, full, &queue->sleepers, nanoseconds);
}
