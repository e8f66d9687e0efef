/* Comparing the signatures that members have published, and publishing the reason why a call cannot be made. */
#include "dist/transport/shm/shm.h"

#include <stdio.h>
#include <string.h>

tshi_slot *tshi_shm_open_slot(tsh_group *group, const tshi_comm_call *call) {
    tshi_shm_group *lg = group->state;
    tshi_slot *slot = &lg->draft;
    lg->name = tsh_collective_name(call->op);
    tshi_signature_of_call(&slot->signature, group, call, tshi_group_note(group, call));
    slot->flags = 0;
    return slot;
}

tsh_status tshi_shm_compare(const tsh_group *group, uint32_t sync, bool *far) {
    const tshi_shm_group *lg = group->state;
    /* Reads this rank's draft rather than its slot of the last sync, whose cache line peers have fetched. */
    const tshi_slot *mine = sync == lg->sync ? &lg->draft : tshi_slot_at(lg, group->rank, sync);
    uint32_t flags = mine->flags;
    bool same = mine->signature.kind != TSHI_KIND_FAILED;
    for (int i = 0; i < group->size; i++) {
        if (i == group->rank) continue;
        const tshi_slot *slot = tshi_slot_at(lg, i, sync);
        flags |= slot->flags;
        same = same && tshi_signatures_equal(&mine->signature, &slot->signature);
    }
    *far = (flags & TSHI_SLOT_FAR) != 0;
    if (same) return TSH_OK;
    return tshi_compare_signatures(group, &tshi_slot_at(lg, 0, sync)->signature, lg->member_bytes,
                                   sizeof(tshi_slot) - offsetof(tshi_slot, signature));
}

tsh_status tshi_shm_compare_late(tsh_group *group, uint32_t sync, tsh_status failed, const char *words) {
    tshi_shm_group *lg = group->state;
    static const char *const earlier = " (an earlier call)";
    char told[TSHI_MESSAGE_SIZE];
    tsh_status first = TSH_OK;
    while (lg->compared != sync) {
        bool far;
        tsh_status status = tshi_shm_compare(group, ++lg->compared, &far);
        if (status == TSH_OK || first != TSH_OK) continue;
        first = status;
        bool again = strstr(tsh_error_message(), earlier);
        snprintf(told, sizeof told, "%.480s%s", tsh_error_message(), again ? "" : earlier);
    }
    if (failed == TSH_OK) return first == TSH_OK ? TSH_OK : tshi_fail(first, "%s", told);
    if (first != TSH_OK) tshi_log(&group->world->log, TSH_LOG_WARNING, "rank %d: %s", group->world->rank, told);
    return tshi_fail(failed, "%s", words);
}

tsh_status tshi_shm_catch_up(tsh_group *group, uint32_t sync, tsh_status *failed) {
    char words[TSHI_MESSAGE_SIZE] = "";
    if (*failed != TSH_OK) snprintf(words, sizeof words, "%s", tsh_error_message());
    tsh_status status = tshi_shm_await(group, sync);
    if (status == TSH_OK) *failed = tshi_shm_compare_late(group, sync, *failed, words);
    return status;
}

/* --- calls that cannot be made ------------------------------------------------------------------------------------ */

void tshi_shm_refuse(const tsh_group *group) {
    tshi_slot *slot = &((tshi_shm_group *)group->state)->draft;
    const char *reason = tsh_error_message();
    slot->signature.kind = TSHI_KIND_FAILED;
    slot->flags = 0;
    memcpy(tshi_next_payload(group), reason, strlen(reason) + 1);
}

tsh_status tshi_shm_refused(const tsh_group *group, tsh_status failed) {
    const tshi_shm_group *lg = group->state;
    return tshi_fail(failed, "%s", (const char *)tshi_payload(tshi_slot_at(lg, group->rank, lg->sync)));
}

tsh_status tshi_shm_run_failed(tsh_group *group, tsh_status failed) {
    tshi_shm_refuse(group);
    tsh_status status = tshi_shm_sync(group, 0);
    return status == TSH_OK ? tshi_shm_refused(group, failed) : status;
}

/* --- calls that move nothing -------------------------------------------------------------------------------------- */

size_t tshi_shm_put_counts(const tsh_group *group, const tshi_comm_call *call) {
    size_t bytes = sizeof(int64_t) * (size_t)group->size;
    memcpy(tshi_next_payload(group), call->in_counts, bytes);
    memcpy(tshi_next_payload(group) + bytes, call->out_counts, bytes);
    return 2 * bytes;
}

tsh_status tshi_shm_compare_counts(const tsh_group *group) {
    return tshi_compare_counts(group, tshi_counts_of(group, 0), ((tshi_shm_group *)group->state)->member_bytes);
}
