/* GPU memory in the calls of one machine's ranks. */
#include "dist/backends/local/local.h"

#include <stdio.h>
#include <string.h>

#define TRIAL_BYTES 64

/* One rank, as the others see it. */
typedef struct fact {
    tshi_share share;      /* of some of its memory */
    char words[TSHI_LINE]; /* why it cannot be shared, or what cannot be reached; "" for neither */
} fact;

static void excuse(fact *mine, tsh_status status) {
    if (status != TSH_OK && !mine->words[0]) snprintf(mine->words, sizeof mine->words, "%.200s", tsh_error_message());
}

/* Everybody's facts. They lie in the host's heap, where every rank may read them. */
static tsh_status tell(tsh_world *world, const fact *mine, fact *facts) {
    int64_t *counts = world->group->counts;
    facts[world->rank] = *mine;
    for (int i = 0; i < world->size; i++) counts[i] = sizeof *mine;
    const tshi_call call = {.op = TSH_COLLECTIVE_ALL_GATHER,
                            .dtype = TSH_UINT8,
                            .in = &facts[world->rank],
                            .out = facts,
                            .count = (int64_t)((size_t)world->size * sizeof *mine),
                            .counts = counts};
    return world->control->run(world->group, &call);
}

/* The first rank that cannot, or -1. */
static int first_refusal(const tsh_world *world, const fact *facts) {
    for (int i = 0; i < world->size; i++) {
        if (facts[i].words[0]) return i;
    }
    return -1;
}

/* Every rank shares some memory, then every rank maps everybody's. *refuser: -1, or the first that cannot. */
static tsh_status try_all(tsh_world *world, const void *memory, fact *facts, int *refuser) {
    tsh_device *device = world->device;
    fact mine = {0};
    if (world->size > TSHI_REDUCE_MOST) {
        excuse(&mine, tshi_fail(TSH_ERR_UNSUPPORTED, "%d ranks, of %d at most", world->size, TSHI_REDUCE_MOST));
    } else {
        excuse(&mine, device->ops->sharing->share(device, memory, &mine.share));
    }
    tsh_status status = tell(world, &mine, facts);
    if (status != TSH_OK) return status;
    *refuser = first_refusal(world, facts);
    if (*refuser >= 0) return TSH_OK;
    tshi_local_of(world)->maps = !tshi_local_of(world)->threads;
    for (int i = 0; i < world->size; i++) {
        void *there = NULL;
        excuse(&mine, device->ops->sharing->map(device, &facts[i].share, &there));
    }
    status = tell(world, &mine, facts);
    *refuser = first_refusal(world, facts);
    return status;
}

bool tshi_local_stages(const tsh_group *group, const tshi_call *call) {
    return tshi_is_message(call->op) || !tshi_local_of(group->world)->direct;
}

tsh_status tshi_local_take_data(tsh_world *world, bool *takes) {
    tsh_device *host = world->host, *device = world->device;
    bool *direct = &tshi_local_of(world)->direct;
    *takes = true;
    if (device == host) return TSH_OK;
    int refuser = -1;
    fact *facts = host->ops->memory.alloc(host, (size_t)world->size * sizeof *facts);
    void *memory = facts ? device->ops->memory.alloc(device, TRIAL_BYTES) : NULL;
    tsh_status status = tshi_group_agree(world->group, "world_init: GPU memory", memory ? TSH_OK : TSH_ERR_MEMORY);
    if (status == TSH_OK) status = try_all(world, memory, facts, &refuser);
    *direct = status == TSH_OK && refuser < 0;
    if (status == TSH_OK && refuser >= 0) {
        device->ops->sharing->unmap(device);
        status = tshi_group_agree(world->group, "world_init: GPU memory", TSH_OK);
        if (status == TSH_OK) tshi_local_of(world)->maps = false;
    }
    if (status == TSH_OK && world->rank == 0 && *direct) {
        tshi_log(&world->log, TSH_LOG_INFO, "collectives work on the GPUs' memory in place");
    } else if (status == TSH_OK && world->rank == 0) {
        tshi_log(&world->log, TSH_LOG_INFO, "collectives go through the host's memory: rank %d: %s", refuser,
                 facts[refuser].words);
    }
    if (memory) device->ops->memory.release(device, memory);
    host->ops->memory.release(host, facts);
    return status;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

void tshi_local_share(const tsh_group *group, const void *data) {
    tshi_local_group *lg = group->state;
    tsh_device *device = group->world->device;
    tshi_share share;
    lg->refused = device->ops->sharing->drain(device);
    if (lg->refused == TSH_OK) lg->refused = device->ops->sharing->share(device, data, &share);
    if (lg->refused != TSH_OK) {
        tshi_local_refuse(group);
        return;
    }
    lg->draft.flags |= TSHI_SLOT_SHARED;
    memcpy(tshi_slot_share(tshi_slot_at(lg, group->rank, lg->sync + 1)), &share, sizeof share);
}

tsh_status tshi_local_reach(const tsh_group *group) {
    const tshi_local_group *lg = group->state;
    tsh_device *device = group->world->device;
    for (int i = 0; i < group->size; i++) {
        tshi_slot *slot = tshi_slot_at(lg, i, lg->sync);
        tshi_share share;
        void *there = NULL;
        if (!(slot->flags & TSHI_SLOT_SHARED)) continue;
        memcpy(&share, tshi_slot_share(slot), sizeof share);
        tsh_status status = device->ops->sharing->map(device, &share, &there);
        if (status != TSH_OK) return status;
        lg->there[i] = there;
    }
    return TSH_OK;
}
