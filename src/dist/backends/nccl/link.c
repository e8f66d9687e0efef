/* The links of messages: a communicator of two and a stream for each direction between two ranks of a group. */
#include "dist/backends/nccl/nccl.h"

#include <assert.h>
#include <string.h>

static_assert(sizeof(ncclUniqueId) <= TSHI_TICKET, "an id travels as a ticket");

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
