/* The links of messages: a communicator of two and a stream for each direction between two ranks of a group. */
#include "base/number.h"
#include "dist/backends/nccl/nccl.h"

#include <assert.h>
#include <string.h>

static_assert(sizeof(ncclUniqueId) <= TSHI_TICKET, "an id travels as a ticket");

/* Why links share nothing. A set of messages in which each send has its receive completes whatever the order of the
 * calls (tshard/dist.h). A GPU runs what is on one stream, and NCCL what is in one communicator, in the order in which
 * a rank has queued it; a rank queues a message when both sides have matched it, and its peers may see another order.
 * Ranks in a ring that send to the next one and receive from the one before could each queue the send first: rank 0's
 * send waits for rank 1's receive, which is behind rank 1's send, and so on around the ring. The two directions between
 * two ranks are such a ring; so may two groups be. Calls in one group of NCCL's are one kernel, whose messages the host
 * has to know before it queues the first.
 *
 * Fewer streams than links are safe for messages that run at once: both GPUs have come to the message, and both ranks
 * have a free stream for it, one for sends and another one for receives. Both hosts would have to find this out for
 * each message before they queue it, so that no host could be ahead of its GPU. */

#define QUEUES 8 /* of a GPU, if CUDA_DEVICE_MAX_CONNECTIONS does not say how many */

/* Streams that share a queue of the GPU wait for each other as if they were one. */
static void count_streams(tsh_world *world) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    const char *set = tshi_variable("CUDA_DEVICE_MAX_CONNECTIONS");
    uint64_t queues = QUEUES;
    int links = 0, comms = 0;
    if (set) tshi_parse_uint64(set, 1, 32, &queues);
    for (const tshi_nccl_link *link = nccl->links; link; link = link->next) links++;
    for (const tsh_group *g = world->groups; g; g = g->next) comms += g->ops == world->data && g->state;
    /* The compute stream, those of groups and of links, and two that each communicator makes for itself. */
    int streams = 1 + nccl->streams + links + 2 * (comms + links);
    if (nccl->crowded || streams <= (int)queues) return;
    nccl->crowded = true;
    tshi_log(&world->log, TSH_LOG_WARNING,
             "rank %d sends to and receives from so many ranks that its GPU has %d streams, but %d queues "
             "(CUDA_DEVICE_MAX_CONNECTIONS, at most 32): calls of streams that share a queue wait for each other, and "
             "may do so until the deadline",
             world->rank, streams, (int)queues);
}

static tsh_status link_make(tshi_nccl_link *link) {
    tshi_cuda_use(tshi_nccl_device(link->group->world));
    tsh_status status = tshi_cuda_stream_new(&link->stream, true);
    if (status == TSH_OK) status = tshi_cuda_event_new(&link->tail.before);
    if (status == TSH_OK) status = tshi_cuda_event_new(&link->tail.after);
    if (status != TSH_OK || !link->sends) return status;
    bool done;
    tsh_world *world = link->group->world;
    ncclResult_t result = tshi_nccl_of(world)->library->get_unique_id(&link->id);
    return tshi_nccl_look(world, NULL, result, "ncclGetUniqueId", &done);
}

static void link_free(tsh_world *world, tshi_nccl_link *link) {
    if (link->tail.before) cudaEventDestroy(link->tail.before);
    if (link->tail.after) cudaEventDestroy(link->tail.after);
    if (link->stream) cudaStreamDestroy(link->stream);
    tshi_free(&world->allocator, link);
}

tsh_status tshi_nccl_link_get(tsh_group *group, int peer, bool sends, tshi_nccl_link **out) {
    tsh_world *world = group->world;
    tshi_nccl *nccl = tshi_nccl_of(world);
    for (tshi_nccl_link *link = nccl->links; link; link = link->next) {
        *out = link;
        if (link->group == group && link->peer == peer && link->sends == sends) return TSH_OK;
    }
    *out = NULL;
    tshi_nccl_link *link = tshi_calloc(&world->allocator, 1, sizeof *link);
    if (!link) return TSH_ERR_MEMORY;
    link->group = group;
    link->peer = peer;
    link->sends = sends;
    tsh_status status = link_make(link);
    if (status != TSH_OK) {
        link_free(world, link);
        return status;
    }
    link->next = nccl->links;
    nccl->links = link;
    *out = link;
    count_streams(world);
    return TSH_OK;
}

/* Kernels that wait for each other have to run at the same time: all links of a group together use at most half of the
 * multiprocessors. */
static int most_blocks(const tshi_nccl_link *link) {
    int share = tshi_nccl_device(link->group->world)->processors / 4 / (link->group->size - 1);
    return share < 1 ? 1 : share > 32 ? 32 : share;
}

tsh_status tshi_nccl_link_open(tshi_nccl_link *link, const void *ticket, bool *ready) {
    tsh_world *world = link->group->world;
    tshi_cuda_use(tshi_nccl_device(world));
    if (!link->comm) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        config.maxCTAs = most_blocks(link);
        if (!link->sends) memcpy(&link->id, ticket, sizeof link->id);
        link->result =
            tshi_nccl_of(world)->library->comm_init_rank_config(&link->comm, 2, link->id, link->sends ? 0 : 1, &config);
    }
    *ready = link->ready;
    if (link->ready) return TSH_OK;
    tsh_status status = tshi_nccl_look(world, link->comm, link->result, "ncclCommInitRankConfig", ready);
    link->ready = *ready;
    return status;
}

static bool is_of(const tshi_nccl_link *link, const tsh_group *group) {
    return !group || link->group == group;
}

/* Closes the links: all are flushed before this rank waits for one, because peers close theirs in another order. */
void tshi_nccl_links_close(tsh_world *world, const tsh_group *group) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    for (tshi_nccl_link *link = nccl->links; link; link = link->next) {
        if (is_of(link, group)) tshi_nccl_flush(world, &link->tail);
    }
    for (tshi_nccl_link *link = nccl->links; link; link = link->next) {
        if (is_of(link, group) && link->comm) link->result = nccl->library->comm_finalize(link->comm);
    }
    double until = tshi_clock() + tshi_nccl_patience(world);
    tshi_nccl_link **at = &nccl->links;
    while (*at) {
        tshi_nccl_link *link = *at;
        if (!is_of(link, group)) {
            at = &link->next;
            continue;
        }
        *at = link->next;
        if (link->comm) tshi_nccl_comm_end(nccl, link->comm, link->result, until);
        link_free(world, link);
    }
}
