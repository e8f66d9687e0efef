/* What the members show each other without waiting: a sync of the group whose slots hold no call.
 *
 * A member has two rooms, which take turns. Invariant: a room does not change while a member may read it. A member reads
 * what has been shown in a sync before it publishes the next one, and this rank writes into a room again only when all
 * members have published the sync after the one in which it showed that room. */
#include "dist/transport/shm/shm.h"

#include <string.h>

#define ROOMS 2

static_assert(!(TSHI_SHOW_BYTES % TSHI_LINE_BYTES), "rooms are aligned");

size_t tshi_shm_show_bytes(const tsh_group *group) {
    return group->shows ? (size_t)group->size * ROOMS * TSHI_SHOW_BYTES : 0;
}

static void *room_at(const tsh_group *group, int member, uint32_t sync) {
    const tshi_shm_group *lg = group->state;
    char *rooms = (char *)lg->block + tshi_shm_block_bytes(group->size);
    return rooms + ((size_t)member * ROOMS + sync % ROOMS) * TSHI_SHOW_BYTES;
}

/* Not before all members have published this rank's last sync, from which it may have returned early (shm.h). */
void *tshi_shm_show_room(const tsh_group *group) {
    const tshi_shm_group *lg = group->state;
    bool passed = lg->compared == lg->sync || tshi_shm_is_published(group, lg->sync);
    return passed ? room_at(group, group->rank, lg->sync + 1) : NULL;
}

void tshi_shm_show(tsh_group *group) {
    tshi_slot *slot = &((tshi_shm_group *)group->state)->draft;
    memset(&slot->signature, 0, sizeof slot->signature);
    slot->signature.kind = TSHI_KIND_TEXT;
    slot->flags = 0;
    tshi_shm_publish(group, 0);
}

/* No call is left to compare: the reader judges what has been shown. */
bool tshi_shm_all_shown(const tsh_group *group) {
    tshi_shm_group *lg = group->state;
    if (!tshi_shm_is_published(group, lg->sync)) return false;
    lg->compared = lg->sync;
    return true;
}

const void *tshi_shm_shown(const tsh_group *group, int member) {
    const tshi_shm_group *lg = group->state;
    return room_at(group, member, lg->sync);
}
