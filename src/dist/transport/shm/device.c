/* GPU memory in calls between ranks of one machine. */
#include "dist/transport/shm/shm.h"

#include <stdio.h>
#include <string.h>

#define TRIAL_BYTES 64

/* A rank's GPU memory, as it reports it to its peers in world_init. */
typedef struct fact {
    tshi_share share;      /* of a trial allocation */
    char words[TSHI_LINE]; /* the first error in sharing or mapping; "": no error */
} fact;

static void excuse(fact *mine, tsh_status status) {
    if (status != TSH_OK && !mine->words[0]) snprintf(mine->words, sizeof mine->words, "%.200s", tsh_error_message());
}

static void offer(const tsh_world *world, const void *memory, fact *mine) {
    tsh_device *device = world->device;
    if (world->size > TSHI_REDUCE_MAX) {
        excuse(mine, tshi_fail(TSH_ERR_UNSUPPORTED, "%d ranks, of %d at most", world->size, TSHI_REDUCE_MAX));
    } else {
        excuse(mine, device->ops->sharing->share(device, memory, &mine->share));
    }
}

static void map_all(const tsh_world *world, const fact *facts, fact *mine) {
    tsh_device *device = world->device;
    tshi_shm_of(world)->maps = !world->machine.threads;
    for (int i = 0; i < world->size; i++) {
        void *there = NULL;
        excuse(mine, device->ops->sharing->map(device, &facts[i].share, &there));
    }
}

bool tshi_shm_stages(const tsh_group *group, const tshi_comm_call *call) {
    return tshi_is_message(call->op) || !tshi_shm_of(group->world)->direct;
}

/* Gathers the facts of all ranks; `why` becomes the first error, which rules out collectives on GPU memory, or "". */
static tsh_status gather(tsh_world *world, const fact *mine, tsh_status status, fact **out, char *why, size_t room) {
    *out = tshi_group_gather(world->group, "world_init: GPU memory", mine, sizeof *mine, &status);
    why[0] = '\0';
    for (int i = 0; *out && !why[0] && i < world->size; i++) {
        if ((*out)[i].words[0]) snprintf(why, room, "rank %d: %s", i, (*out)[i].words);
    }
    return status;
}

tsh_status tshi_shm_take_data(tsh_world *world, bool *takes) {
    tsh_device *host = world->host, *device = world->device;
    tshi_shm *local = tshi_shm_of(world);
    char why[TSHI_LINE + 32];
    fact mine = {0}, *offers, *maps = NULL;
    *takes = true;
    if (device == host) return TSH_OK;
    void *memory = device->ops->memory.alloc(device, TRIAL_BYTES);
    if (memory) offer(world, memory, &mine);
    tsh_status status = gather(world, &mine, memory ? TSH_OK : TSH_ERR_MEMORY, &offers, why, sizeof why);
    if (status == TSH_OK && !why[0]) {
        map_all(world, offers, &mine);
        status = gather(world, &mine, TSH_OK, &maps, why, sizeof why);
    }
    local->direct = status == TSH_OK && !why[0];
    if (status == TSH_OK && !local->direct) {
        device->ops->sharing->unmap(device);
        status = tshi_group_agree(world->group, "world_init: GPU memory", TSH_OK);
        if (status == TSH_OK) local->maps = false;
    }
    if (status == TSH_OK && world->rank == 0) {
        tshi_log(&world->log, TSH_LOG_INFO,
                 local->direct ? "collectives work on the GPUs' memory in place%s"
                               : "collectives go through the host's memory: %s",
                 why);
    }
    if (memory) device->ops->memory.release(device, memory);
    host->ops->memory.release(host, offers);
    host->ops->memory.release(host, maps);
    return status;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

void tshi_shm_share(const tsh_group *group, const void *data) {
    tshi_shm_group *lg = group->state;
    tsh_device *device = group->world->device;
    tshi_share share;
    lg->refused = device->ops->sharing->drain(device);
    if (lg->refused == TSH_OK) lg->refused = device->ops->sharing->share(device, data, &share);
    if (lg->refused != TSH_OK) {
        tshi_shm_refuse(group);
        return;
    }
    lg->draft.flags |= TSHI_SLOT_SHARED;
    memcpy(tshi_slot_share(tshi_slot_at(lg, group->rank, lg->sync + 1)), &share, sizeof share);
}

tsh_status tshi_shm_reach(const tsh_group *group) {
    const tshi_shm_group *lg = group->state;
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
