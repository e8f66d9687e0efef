/* Worlds whose data NCCL moves: every rank decides from the same facts about all ranks, so all decide alike. */
#include "dist/registry.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/transport/nccl/nccl.h"
#include "tshard/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first versions that take several ranks on one GPU, and that order the launches of several communicators. */
#define SHARES 23000
#define ORDERS 22600

typedef enum wish { NO_WISH, WANTED, UNWANTED } wish;

/* What a rank tells its peers about itself. */
typedef struct fact {
    unsigned char host[TSHI_GROUP_SIZE];
    char gpu[32]; /* its address on the bus */
    int32_t version;
    int32_t shares; /* NCCL takes several ranks on one GPU: since 2.30, where every rank asks for it */
    int32_t wish;
    int32_t orders; /* NCCL keeps the order of calls on several streams: since 2.26, where a rank asks for it */
    char message[TSHI_LINE]; /* why there is no NCCL */
} fact;

/* As NCCL reads its variables. */
static bool is_set(const char *variable) {
    const char *value = tshi_variable(variable);
    return value && strtoll(value, NULL, 0) != 0;
}

static tsh_status find_out(const tsh_world *world, fact *mine) {
    const tshi_nccl_library *library;
    tshi_process self;
    *mine = (fact){.wish = NO_WISH};
    if (tshi_setting_value(TSHI_SETTING_BACKEND)) mine->wish = tshi_backend_is("nccl") ? WANTED : UNWANTED;
    tsh_status status = tshi_process_self(&self);
    if (status != TSH_OK) return status;
    memcpy(mine->host, self.machine, sizeof mine->host);
    if (mine->wish == UNWANTED) return TSH_OK;
    if (tshi_nccl_library_open(&library) == TSH_OK)
        mine->version = library->version;
    else
        snprintf(mine->message, sizeof mine->message, "%.200s", tsh_error_message());
    mine->orders = mine->version >= ORDERS && is_set("NCCL_LAUNCH_ORDER_IMPLICIT");
    mine->shares = mine->version >= SHARES && is_set("NCCL_MULTI_RANK_GPU_ENABLE");
    cudaError_t error = cudaDeviceGetPCIBusId(mine->gpu, sizeof mine->gpu, tshi_nccl_device(world)->ordinal);
    return tshi_cuda_fail(error, "world_init: cudaDeviceGetPCIBusId");
}

static const fact *sharer(const fact *facts, int rank) {
    for (int i = 0; i < rank; i++) {
        if (!memcmp(facts[i].host, facts[rank].host, sizeof facts[i].host) && !strcmp(facts[i].gpu, facts[rank].gpu)) {
            return &facts[i];
        }
    }
    return NULL;
}

/* Every rank can use NCCL; else `why` says which cannot. *wanted: a rank's TSHARD_BACKEND asks for it. */
static bool verdict(const fact *facts, int size, bool *wanted, char *why, size_t room) {
    why[0] = '\0';
    *wanted = false;
    bool shares = true;
    for (int i = 0; i < size; i++) {
        *wanted = *wanted || facts[i].wish == WANTED;
        shares = shares && facts[i].shares;
    }
    for (int i = 0; i < size && !why[0]; i++) {
        const fact *other = sharer(facts, i);
        if (facts[i].wish == UNWANTED)
            snprintf(why, room, "rank %d has another TSHARD_BACKEND", i);
        else if (!facts[i].version)
            snprintf(why, room, "rank %d: %s", i, facts[i].message);
        else if (facts[i].version != facts[0].version)
            snprintf(why, room, "rank 0 has NCCL %d, rank %d NCCL %d", (int)facts[0].version, i, (int)facts[i].version);
        else if (other && !shares)
            snprintf(why, room,
                     "ranks %d and %d share the GPU %s (NCCL takes this from 2.30 on, where "
                     "NCCL_MULTI_RANK_GPU_ENABLE=1 is set for every rank)",
                     (int)(other - facts), i, facts[i].gpu);
    }
    return !why[0];
}

static void log_choice(const tsh_world *world, int version, const char *why) {
    if (world->rank != 0) return;
    if (version)
        tshi_log(&world->log, TSH_LOG_INFO, "collectives go to NCCL %d.%d.%d", version / 10000, version / 100 % 100,
                 version % 100);
    else
        tshi_log(&world->log, TSH_LOG_INFO, "collectives do not go to NCCL but over %s: %s", world->control->name, why);
}

/* Kernels of two communicators that run at the same time could wait for each other's room on the GPU, each on another
 * rank: NCCL wants one order for all, that of one stream, or keeps that of the calls. */
static int streams_of(const fact *facts, int size) {
    for (int i = 0; i < size; i++) {
        if (!facts[i].orders) return 1;
    }
    return TSHI_CUDA_COMMUNICATIONS;
}

tsh_status tshi_nccl_refuse_cpu(void) {
    return tshi_fail(TSH_ERR_ARGUMENT, "world_init: TSHARD_BACKEND is nccl, which is for GPUs, but device is TSH_CPU");
}

static tsh_status decide(tsh_world *world, bool *use, int *streams) {
    char why[TSHI_LINE + 32];
    bool wanted = false;
    fact mine;
    tsh_status status = find_out(world, &mine);
    fact *facts = tshi_group_gather(world->group, "world_init: nccl", &mine, sizeof mine, &status);
    if (status != TSH_OK) return status;
    *use = verdict(facts, world->size, &wanted, why, sizeof why);
    int version = *use ? (int)facts[0].version : 0;
    *streams = streams_of(facts, world->size);
    world->host->ops->memory.release(world->host, facts);
    if (!*use && wanted) return tshi_fail(TSH_ERR_UNSUPPORTED, "world_init: NCCL is required, but %s", why);
    if (!*use && !world->control->run) {
        return tshi_fail(TSH_ERR_UNSUPPORTED,
                         "world_init: GPUs on several machines need NCCL, or TSHARD_BACKEND=mpi, but %s", why);
    }
    log_choice(world, version, why);
    return TSH_OK;
}

static tsh_status make_events(tshi_nccl *nccl) {
    tsh_status status = tshi_cuda_event_new(&nccl->behind);
    for (int i = 0; i <= TSHI_NCCL_AHEAD && status == TSH_OK; i++) {
        status = tshi_cuda_event_new(&nccl->calls[i].before);
        if (status == TSH_OK) status = tshi_cuda_event_new(&nccl->calls[i].after);
    }
    return status;
}

static tsh_status state_new(tsh_world *world, int streams) {
    tshi_nccl *nccl = tshi_calloc(&world->allocator, 1, sizeof *nccl);
    if (!nccl) return TSH_ERR_MEMORY;
    world->state[TSHI_NCCL_PLACE] = nccl;
    nccl->streams = streams;
    int checks = 0;
    tsh_status status = tshi_setting_choice(TSHI_SETTING_CHECK, &checks);
    nccl->checked = checks > 0;
    if (status == TSH_OK) status = tshi_nccl_library_open(&nccl->library);
    if (status == TSH_OK) status = make_events(nccl);
    if (status != TSH_OK) return status;
    nccl->barrier_buffer = world->device->ops->memory.alloc(world->device, sizeof(float));
    return nccl->barrier_buffer ? TSH_OK : TSH_ERR_MEMORY;
}

/* The world's group above the one that connects the ranks. */
static tsh_status raise_group(tsh_world *world) {
    tsh_group *control = world->group;
    tsh_group *group = tshi_group_new(world, world->data, control->ranks, control->size);
    if (!group) return TSH_ERR_MEMORY;
    group->control = control;
    group->messages_made = control->messages_made; /* a rank that has no such group agrees in the former one */
    world->group = group;
    tshi_group_own_mesh(group, "world");
    return tshi_nccl_stream_take(group);
}

static tsh_status take_data(tsh_world *world, bool *takes) {
    if (world->device == world->host) return tshi_backend_is("nccl") ? tshi_nccl_refuse_cpu() : TSH_OK;
    int streams;
    tsh_status status = decide(world, takes, &streams);
    if (status != TSH_OK || !*takes) return status;
    world->data = &tshi_nccl_ops;
    status = state_new(world, streams);
    if (status == TSH_OK) status = raise_group(world);
    if (world->group->ops != world->data) {
        /* There is no group to make a communicator for: the peers, which are about to make theirs, get the error. */
        status = tshi_group_agree(world->group, "nccl: id", status);
        return status == TSH_OK ? TSH_ERR_STATE : status;
    }
    tshi_nccl_device(world)->watch = tshi_nccl_watcher;
    tshi_nccl_device(world)->launch = tshi_nccl_launch;
    tshi_nccl_device(world)->drain = tshi_nccl_drain;
    tshi_nccl_device(world)->submit = tshi_nccl_submit_all;
    tshi_nccl_device(world)->watcher = world;
    return tshi_nccl_comm_create(world->group, status);
}

/* A capture that the program has not ended holds calls of groups that are gone. */
static void end_capture(tsh_device *device) {
    tsh_graph *graph = NULL;
    if (tshi_cuda(device)->capturing && tsh_graph_capture_end(device, &graph) == TSH_OK) tsh_graph_destroy(graph);
}

static void leave(tsh_world *world) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    if (!nccl) return;
    end_capture(world->device);
    tshi_nccl_kept_end(world);
    tshi_nccl_device(world)->watch = NULL;
    tshi_nccl_device(world)->launch = NULL;
    tshi_nccl_device(world)->drain = NULL;
    tshi_nccl_device(world)->submit = NULL;
    if (nccl->barrier_buffer) world->device->ops->memory.release(world->device, nccl->barrier_buffer);
    for (int i = 0; i <= TSHI_NCCL_AHEAD; i++) {
        if (nccl->calls[i].before) cudaEventDestroy(nccl->calls[i].before);
        if (nccl->calls[i].after) cudaEventDestroy(nccl->calls[i].after);
    }
    if (nccl->behind) cudaEventDestroy(nccl->behind);
    while (nccl->events) {
        tshi_nccl_event *e = nccl->events;
        nccl->events = e->next;
        cudaEventDestroy(e->event);
        tshi_free(&world->allocator, e);
    }
    tshi_free(&world->allocator, nccl);
    world->state[TSHI_NCCL_PLACE] = NULL;
}

const tshi_group_ops tshi_nccl_ops = {
    .name = "nccl",
    .place = TSHI_NCCL_PLACE,
    .in_order = true,
    .reduces = tshi_nccl_reduces,
    .take_data = take_data,
    .recover = tshi_nccl_recover,
    .leave = leave,
    .split = tshi_nccl_group_split,
    .close = tshi_nccl_group_close,
    .run = tshi_nccl_run,
    .start = tshi_nccl_start,
    .progress = tshi_nccl_progress,
    .drop = tshi_nccl_drop,
    .join = tshi_nccl_join,
    .nap = tshi_nccl_nap,
    .submit = tshi_nccl_submit,
};
