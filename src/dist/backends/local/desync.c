/* What the members say of a call, in words, whether they say the same, and why a call cannot be made. */
#include "base/hash.h"
#include "dist/backends/local/local.h"

#include <stdio.h>
#include <string.h>

char *tshi_slot_describe(tshi_slot *slot, char *text, size_t size) {
    tsh_collective op = (tsh_collective)(slot->kind & 0xff);
    if ((slot->kind & 0xff) == TSHI_KIND_AGREE) {
        snprintf(text, size, "%s #%u", (const char *)tshi_payload(slot), slot->number);
        return text;
    }
    const char *name = tsh_collective_name(op);
    const char *dtype = tsh_dtype_name((tsh_dtype)(slot->kind >> 8 & 0xff));
    const char *reduce = tshi_reduction_name((tsh_reduce_op)(slot->kind >> 16));
    long long count = slot->count, part = slot->part;
    switch (op) {
    case TSH_COLLECTIVE_ALL_REDUCE:
        snprintf(text, size, "%s %s [%lld] %s #%u", name, dtype, count, reduce, slot->number);
        break;
    case TSH_COLLECTIVE_ALL_GATHER:
        snprintf(text, size, "%s %s [%lld], %lld of them its own, #%u", name, dtype, count, part, slot->number);
        break;
    case TSH_COLLECTIVE_REDUCE_SCATTER:
        snprintf(text, size, "%s %s [%lld] %s, %lld of them its own, #%u", name, dtype, count, reduce, part,
                 slot->number);
        break;
    case TSH_COLLECTIVE_BROADCAST:
        snprintf(text, size, "%s %s [%lld] root %d #%u", name, dtype, count, slot->root, slot->number);
        break;
    case TSH_COLLECTIVE_REDUCE:
        snprintf(text, size, "%s %s [%lld] %s root %d #%u", name, dtype, count, reduce, slot->root, slot->number);
        break;
    case TSH_COLLECTIVE_GATHER:
    case TSH_COLLECTIVE_SCATTER:
        snprintf(text, size, "%s %s [%lld], %lld of them its own, root %d #%u", name, dtype, count, part, slot->root,
                 slot->number);
        break;
    case TSH_COLLECTIVE_ALL_TO_ALL: snprintf(text, size, "%s %s #%u", name, dtype, slot->number); break;
    default: snprintf(text, size, "%s #%u", name, slot->number); break;
    }
    return text;
}

static inline bool same_call(const tshi_slot *a, const tshi_slot *b) {
    return a->kind == b->kind && a->count == b->count && a->root == b->root && a->check == b->check;
}

/* The verdict when not all is well, from the slots alone: the same on every rank. */
static tsh_status disagree(const tsh_group *group, uint32_t sync) {
    const tshi_local_group *lg = group->state;
    tshi_slot *first = tshi_slot_at(lg, 0, sync);
    for (int i = 0; i < group->size; i++) {
        tshi_slot *slot = tshi_slot_at(lg, i, sync);
        if (!(slot->flags & TSHI_SLOT_FAILED)) continue;
        return tshi_fail(TSH_ERR_PEER, "rank %d: %s", group->ranks[i], (const char *)tshi_payload(slot));
    }
    for (int i = 1; i < group->size; i++) {
        tshi_slot *slot = tshi_slot_at(lg, i, sync);
        char mine[TSHI_LINE / 2 + 80], theirs[TSHI_LINE / 2 + 80];
        if (same_call(first, slot)) continue;
        bool lists = first->kind == slot->kind && first->count == slot->count && first->root == slot->root &&
                     (slot->kind & 0xff) != TSHI_KIND_AGREE;
        return tshi_fail(TSH_ERR_MISMATCH, "rank %d: %s, rank %d: %s%s", group->ranks[0],
                         tshi_slot_describe(first, mine, sizeof mine), group->ranks[i],
                         tshi_slot_describe(slot, theirs, sizeof theirs), lists ? " (their counts differ)" : "");
    }
    return TSH_OK;
}

tsh_status tshi_local_compare(const tsh_group *group, uint32_t sync, bool *far) {
    const tshi_local_group *lg = group->state;
    /* My slot's line has been fetched by others. */
    const tshi_slot *mine = sync == lg->sync ? &lg->draft : tshi_slot_at(lg, group->rank, sync);
    uint32_t flags = mine->flags;
    bool same = true;
    for (int i = 0; i < group->size; i++) {
        if (i == group->rank) continue;
        const tshi_slot *slot = tshi_slot_at(lg, i, sync);
        flags |= slot->flags;
        same = same && same_call(mine, slot);
    }
    *far = (flags & TSHI_SLOT_FAR) != 0;
    return same && !(flags & TSHI_SLOT_FAILED) ? TSH_OK : disagree(group, sync);
}

tsh_status tshi_local_compare_pairs(const tsh_group *group) {
    for (int i = 0; i < group->size; i++) {
        const int64_t *sends = tshi_counts_of(group, i);
        for (int j = 0; j < group->size; j++) {
            int64_t expected = tshi_counts_of(group, j)[group->size + i];
            if (sends[j] == expected) continue;
            return tshi_fail(TSH_ERR_MISMATCH, "all_to_all: rank %d sends %lld elements to rank %d, which expects %lld",
                             group->ranks[i], (long long)sends[j], group->ranks[j], (long long)expected);
        }
    }
    return TSH_OK;
}

tsh_status tshi_local_look_back(tsh_group *group, uint32_t sync, tsh_status failed, const char *words) {
    tshi_local_group *lg = group->state;
    static const char *const earlier = " (an earlier call)";
    char told[TSHI_MESSAGE_SIZE];
    tsh_status first = TSH_OK;
    while (lg->heard != sync) {
        bool far;
        tsh_status status = tshi_local_compare(group, ++lg->heard, &far);
        if (status == TSH_OK || first != TSH_OK) continue;
        first = status;
        bool again = strstr(tsh_error_message(), earlier);
        snprintf(told, sizeof told, "%.480s%s", tsh_error_message(), again ? "" : earlier);
    }
    if (failed == TSH_OK) return first == TSH_OK ? TSH_OK : tshi_fail(first, "%s", told);
    if (first != TSH_OK) tshi_log(&group->world->log, TSH_LOG_WARNING, "rank %d: %s", group->world->rank, told);
    return tshi_fail(failed, "%s", words);
}

/* --- saying ------------------------------------------------------------------------------------------------------- */

static void say(const tsh_group *group, const char *text) {
    const tshi_local_group *lg = group->state;
    unsigned char *payload = tshi_payload(tshi_slot_at(lg, group->rank, lg->sync + 1));
    size_t length = strlen(text);
    /* A list of ranks may be longer than the room for data, and has room of its own. */
    if (lg->draft.flags & TSHI_SLOT_FAILED && length >= TSHI_SLOT_PAYLOAD) length = TSHI_SLOT_PAYLOAD - 1;
    memcpy(payload, text, length);
    payload[length] = '\0';
}

/* A call that cannot be made here, so that the others hear why. */
void tshi_local_refuse(const tsh_group *group) {
    ((tshi_local_group *)group->state)->draft.flags = TSHI_SLOT_FAILED;
    say(group, tsh_error_message());
}

/* Other calls may have failed, in other words, since the slot was filled. */
tsh_status tshi_local_refused(const tsh_group *group, tsh_status failed) {
    const tshi_local_group *lg = group->state;
    return tshi_fail(failed, "%s", (const char *)tshi_payload(tshi_slot_at(lg, group->rank, lg->sync)));
}

tsh_status tshi_local_run_failed(tsh_group *group, tsh_status failed) {
    tshi_local_refuse(group);
    tsh_status status = tshi_local_sync(group, 0);
    return status == TSH_OK ? tshi_local_refused(group, failed) : status;
}

/* Wait for those whom I left behind up to that sync. *failed: of the call that comes now, to which it leads. */
tsh_status tshi_local_catch_up(tsh_group *group, uint32_t sync, tsh_status *failed) {
    char words[TSHI_MESSAGE_SIZE] = "";
    if (*failed != TSH_OK) snprintf(words, sizeof words, "%s", tsh_error_message());
    tsh_status status = tshi_local_await(group, sync);
    if (status == TSH_OK) *failed = tshi_local_look_back(group, sync, *failed, words);
    return status;
}

tsh_status tshi_local_agree(tsh_group *group, const char *text, tsh_status failed, uint64_t at) {
    tsh_world *world = group->world;
    tshi_local_group *lg = group->state;
    tsh_status status = TSH_OK;
    tshi_group_drain(group, failed);
    if (tshi_local_troubled(tshi_local_of(world))) status = tshi_local_trouble(world);
    if (status == TSH_OK && lg->heard != lg->sync) status = tshi_local_catch_up(group, lg->sync, &failed);
    if (status != TSH_OK) return status;
    tshi_slot *slot = &lg->draft;
    lg->name = text;
    slot->number = (uint32_t)++group->calls;
    slot->kind = TSHI_KIND_AGREE;
    slot->root = 0;
    slot->count = (int64_t)strlen(text);
    if (failed != TSH_OK) return tshi_local_run_failed(group, failed);
    slot->flags = 0;
    slot->check = TSHI_FINGERPRINT;
    for (const char *c = text; *c; c++) slot->check = tshi_fingerprint_add(slot->check, (unsigned char)*c);
    slot->at = at;
    say(group, text);
    bool far;
    status = tshi_local_sync(group, 0);
    return status == TSH_OK ? tshi_local_compare(group, lg->sync, &far) : status;
}
