/* What the members show each other without waiting: a sync of the group whose slots hold bytes, not a call. */
#include "dist/transport/shm/shm.h"

#include <string.h>

static_assert(TSHI_SHOW_BYTES <= TSHI_SLOT_PAYLOAD, "what a member shows has room in a slot");

/* Not before all members have published this rank's last sync, from which it may have returned early (shm.h). */
void *tshi_shm_show_room(const tsh_group *group) {
    const tshi_shm_group *lg = group->state;
    bool passed = lg->compared == lg->sync || tshi_shm_is_published(group, lg->sync);
    return passed ? tshi_next_payload(group) : NULL;
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
    return tshi_payload(tshi_slot_at(lg, member, lg->sync));
}
