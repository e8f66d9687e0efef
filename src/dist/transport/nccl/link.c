/* The links of messages: a communicator of two and a stream for each direction between two ranks of a group. */
#include "base/number.h"
#include "dist/transport/nccl/nccl.h"

#include <assert.h>
#include <string.h>

static_assert(sizeof(tshi_nccl_ticket) <= TSHI_TICKET, "it travels as a ticket");

/* Why links share nothing. A set of messages in which each send has its receive completes whatever the order of the
 * calls (tshard/dist.h). A GPU runs what is on one stream, and NCCL what is in one communicator, in the order in which
 * a rank has queued it; a rank queues a message when both sides have matched it, and its peers may see another order.
 * Ranks in a ring that send to the next one and receive from the one before could each queue the send first: rank 0's
 * send waits for rank 1's receive, which is behind rank 1's send, and so on around the ring. The two directions between
 * two ranks are such a ring; so may two groups be. Calls in one group of NCCL's are one kernel, whose messages the host
 * has to know before it queues the first.
 *
 * Fewer streams than links are safe for messages that run at once: both GPUs have come to the message, and both ranks
 * have a free stream for it. Both hosts have to find this out for each message before they queue it, so that no host
 * can be ahead of its GPU (shared.c). Links have their own while the queues of both GPUs last. */

#define QUEUES 8 /* of a GPU, if CUDA_DEVICE_MAX_CONNECTIONS does not say how many */
#define EACH   3 /* streams of a link: its own, and two that each communicator makes for itself */
#define SPARE  6 /* streams of the communicators of three groups, which a program makes after the world's */

int tshi_nccl_queues(void) {
    const char *set = tshi_variable("CUDA_DEVICE_MAX_CONNECTIONS");
    uint64_t queues = QUEUES;
    if (set) tshi_parse_uint64(set, 1, 32, &queues);
    return (int)queues;
}

/* The compute stream, those of groups, and those that their communicators make. */
static int streams_of_groups(const tsh_world *world) {
    int comms = 0;
    for (const tsh_group *g = world->groups; g; g = g->next) comms += g->ops == world->data && g->state;
    return 1 + tshi_nccl_of(world)->streams + (EACH - 1) * comms;
}

int tshi_nccl_streams_to_all(const tsh_world *world) {
    return streams_of_groups(world) + 2 * (world->size - 1) * EACH + SPARE;
}

static int count_streams(const tsh_world *world) {
    const tshi_nccl *nccl = tshi_nccl_of(world);
    int streams = streams_of_groups(world) + (nccl->shared.group ? 1 : 0);
    for (const tshi_nccl_link *link = nccl->links; link; link = link->next) {
        if (link->way != TSHI_SHARED && link != nccl->shared.link) streams += EACH;
    }
    return streams;
}

void tshi_nccl_warn_of_streams(tsh_world *world) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    int streams = count_streams(world);
    if (nccl->oversubscribed || streams <= nccl->queues) return;
    nccl->oversubscribed = true;
    tshi_log(&world->log, TSH_LOG_WARNING,
             "rank %d has so many groups, and ranks in them that it sends to and receives from, that its GPU has %d "
             "streams, but %d queues (CUDA_DEVICE_MAX_CONNECTIONS, at most 32): calls of streams that share a queue "
             "wait for each other, and may do so until the deadline",
             world->rank, streams, nccl->queues);
}

static tsh_status link_make(tshi_nccl_link *link) {
    tshi_cuda_use(tshi_nccl_device(link->group->world));
    tsh_status status = tshi_cuda_stream_new(&link->stream, true);
    if (status == TSH_OK) status = tshi_cuda_event_new(&link->last.before);
    return status == TSH_OK ? tshi_cuda_event_new(&link->last.after) : status;
}

static tsh_status make_id(tshi_nccl_link *link) {
    bool done;
    tsh_world *world = link->group->world;
    ncclResult_t result = tshi_nccl_of(world)->library->get_unique_id(&link->id);
    return tshi_nccl_poll(world, NULL, result, "ncclGetUniqueId", &done);
}

static void link_empty(tshi_nccl_link *link) {
    if (link->last.before) cudaEventDestroy(link->last.before);
    if (link->last.after) cudaEventDestroy(link->last.after);
    if (link->stream) cudaStreamDestroy(link->stream);
    link->last.before = link->last.after = NULL;
    link->stream = NULL;
}

static tsh_status link_new(const tshi_nccl_link *what, tshi_nccl_link **out) {
    tsh_world *world = what->group->world;
    tshi_nccl *nccl = tshi_nccl_of(world);
    tshi_nccl_link *link = tshi_calloc(&world->allocator, 1, sizeof *link);
    tsh_status status = TSH_OK;
    *out = NULL;
    if (!link) return TSH_ERR_MEMORY;
    *link = *what;
    if (link->way != TSHI_SHARED) status = link_make(link);
    if (status == TSH_OK && link->way != TSHI_SHARED && link->sends) status = make_id(link);
    if (status != TSH_OK) {
        link_empty(link);
        tshi_free(&world->allocator, link);
        return status;
    }
    link->next = nccl->links;
    nccl->links = link;
    *out = link;
    tshi_nccl_warn_of_streams(world);
    return TSH_OK;
}

/* Both ranks have to choose the same: the sender offers what it has room for, and the receiver decides. */
static tshi_nccl_way choose(const tsh_world *world, bool sends, bool offered) {
    const tshi_nccl *nccl = tshi_nccl_of(world);
    if (!nccl->shared.group) return TSHI_OWN;
    if (!offered || count_streams(world) + EACH + SPARE > nccl->queues) return TSHI_SHARED;
    return sends ? TSHI_OFFERED : TSHI_OWN;
}

tsh_status tshi_nccl_link_get(tsh_group *group, int peer, bool sends, bool offered, tshi_nccl_link **out) {
    for (tshi_nccl_link *link = tshi_nccl_of(group->world)->links; link; link = link->next) {
        *out = link;
        if (link->group == group && link->peer == peer && link->sends == sends) return TSH_OK;
    }
    const tshi_nccl_link what = {
        .group = group, .peer = peer, .sends = sends, .way = choose(group->world, sends, offered)};
    return link_new(&what, out);
}

void tshi_nccl_link_decide(tsh_world *world, tshi_nccl_link *link, bool accepted) {
    link->way = accepted ? TSHI_OWN : TSHI_SHARED;
    if (accepted) return;
    tshi_cuda_use(tshi_nccl_device(world));
    link_empty(link);
}

/* Its peer is not a rank, so that no message of a group finds it by its peer. */
tsh_status tshi_nccl_link_shared(tsh_world *world, tshi_nccl_link **out) {
    tshi_nccl_shared *shared = &tshi_nccl_of(world)->shared;
    const tshi_nccl_link what = {.group = shared->group, .peer = TSH_ANY_RANK};
    tsh_status status = shared->link ? TSH_OK : link_new(&what, &shared->link);
    *out = shared->link;
    return status;
}

ncclComm_t tshi_nccl_link_comm(const tshi_nccl_link *link) {
    return link == tshi_nccl_of(link->group->world)->shared.link ? link->group->state : link->comm;
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
        if (!link->sends) memcpy(&link->id, &((const tshi_nccl_ticket *)ticket)->id, sizeof link->id);
        link->result =
            tshi_nccl_of(world)->library->comm_init_rank_config(&link->comm, 2, link->id, link->sends ? 0 : 1, &config);
    }
    *ready = link->ready;
    if (link->ready) return TSH_OK;
    tsh_status status = tshi_nccl_poll(world, link->comm, link->result, "ncclCommInitRankConfig", ready);
    link->ready = *ready;
    return status;
}

static bool is_of(const tshi_nccl_link *link, const tsh_group *group) {
    return !group || link->group == group;
}

/* Closes the links: all are flushed before this rank waits for one, because peers close theirs in another order; the
 * shared link, too, which may have messages of the group. */
void tshi_nccl_links_close(tsh_world *world, const tsh_group *group) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    for (tshi_nccl_link *link = nccl->links; link; link = link->next) {
        if (is_of(link, group) || link == nccl->shared.link) tshi_nccl_flush(world, &link->last);
    }
    bool idle = tshi_nccl_idle(nccl);
    for (tshi_nccl_link *link = nccl->links; link; link = link->next) {
        if (!is_of(link, group) || !link->comm) continue;
        if (idle) {
            link->result = nccl->library->comm_finalize(link->comm);
        } else {
            tshi_nccl_comm_keep(world, link->comm);
            link->comm = NULL;
        }
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
        if (link == nccl->shared.link) nccl->shared.link = NULL;
        if (link->comm) tshi_nccl_comm_end(nccl, link->comm, link->result, until);
        link_empty(link);
        tshi_free(&world->allocator, link);
    }
}
