/* Messages between two ranks. A tag names, from the highest bit on:
 *
 *   2    the purpose (tagged.h)
 *   4    the epoch: the number of recoveries, after which no message of before may match
 *   16   the sender's rank in the world
 *   16   the rank of the group's first member
 *   12   how many groups that rank was the first member of before; with the bits above, the number of the group
 *   14   the number of the call or message
 *
 * Invariant: no two groups have the same number, unless one of them was made 4095 groups of its first member later. A
 * group therefore costs no messages: its first member's number comes with the agreement on the group. */
#include "dist/transport/ucx/ucx.h"

#include <string.h>

#define NUMBER_BITS 14
#define GROUP_BITS  28
#define SENDER_BITS 16
#define EPOCH_BITS  4
#define SENDER_AT   (NUMBER_BITS + GROUP_BITS)
#define EPOCH_AT    (SENDER_AT + SENDER_BITS)

_Static_assert(EPOCH_AT + EPOCH_BITS == TSHI_PURPOSE_SHIFT, "a tag is full");

static const ucp_tag_t whole_tag = UINT64_MAX, any_sender = ~((((uint64_t)1 << SENDER_BITS) - 1) << SENDER_AT);

uint32_t tshi_ucx_number(tsh_world *world) {
    tshi_ucx *ucx = tshi_ucx_of(world);
    if (++ucx->groups % TSHI_UCX_GROUPS == 0) ucx->groups++; /* 0: the world's group */
    return (uint32_t)world->rank << (GROUP_BITS - SENDER_BITS) | ucx->groups % TSHI_UCX_GROUPS;
}

static ucp_tag_t tag_of(const tsh_group *group, int sender, uint64_t packed) {
    const tshi_ucx_group *ug = group->state;
    uint64_t purpose = packed >> TSHI_PURPOSE_SHIFT, epoch = group->world->recoveries % (1u << EPOCH_BITS);
    return purpose << TSHI_PURPOSE_SHIFT | epoch << EPOCH_AT | (uint64_t)sender << SENDER_AT |
           (uint64_t)ug->number << NUMBER_BITS | packed % (1u << NUMBER_BITS);
}

static void progress(tshi_ucx *ucx) {
    if (!ucx->lost && ucx->call->worker_progress(ucx->worker)) ucx->tagged.moved = true;
}

/* A request that has failed stays active until the control channel has said why (worker.c), then ends. */
static void set_request(tshi_request *request, ucs_status_ptr_t handle) {
    request->active = handle != NULL;
    request->handle = UCS_PTR_IS_PTR(handle) ? (uintptr_t)handle : 0;
}

static tsh_status send_message(tsh_group *group, int member, uint64_t tag, const void *data, size_t bytes,
                               tshi_request *out) {
    static const ucp_request_param_t plain;
    tsh_world *world = group->world;
    ucp_ep_h endpoint = tshi_ucx_endpoint(world, group->ranks[member]);
    ucs_status_ptr_t handle = UCS_STATUS_PTR(UCS_ERR_CONNECTION_RESET);
    if (endpoint)
        handle = tshi_ucx_of(world)->call->tag_send_nbx(endpoint, data, bytes, tag_of(group, world->rank, tag), &plain);
    set_request(out, handle);
    return endpoint || world->machine.broken == TSH_OK ? TSH_OK : tshi_control_failure(world);
}

static tsh_status receive(tsh_group *group, int member, uint64_t tag, void *data, size_t room, tshi_request *out) {
    static const ucp_request_param_t plain, later = {.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL};
    const tshi_ucx *ucx = tshi_ucx_of(group->world);
    bool any = member == TSH_ANY_RANK;
    if (ucx->lost) return tshi_control_failure(group->world);
    ucp_tag_t wanted = tag_of(group, any ? 0 : group->ranks[member], tag);
    set_request(out, ucx->call->tag_recv_nbx(ucx->worker, data, room, wanted, any ? any_sender : whole_tag,
                                             any ? &later : &plain));
    return TSH_OK;
}

/* Ends a request that is done; `failed` ones are kept until the world's failure is known. */
static void finish(const tshi_ucx *ucx, tshi_request *request, ucs_status_t status) {
    ucx->call->request_free((void *)(uintptr_t)request->handle);
    request->handle = 0;
    request->active = status != UCS_OK && status != UCS_ERR_CANCELED;
}

static tsh_status test(tsh_world *world, tshi_request *request) {
    tshi_ucx *ucx = tshi_ucx_of(world);
    void *handle = (void *)(uintptr_t)request->handle;
    ucp_tag_recv_info_t info;
    if (ucx->lost) {
        request->active = false;
        return TSH_OK;
    }
    if (!handle) {
        request->active = !tshi_control_has_failed(world);
        progress(ucx);
        return TSH_OK;
    }
    ucs_status_t status = ucx->call->request_check_status(handle);
    if (status == UCS_INPROGRESS) {
        progress(ucx);
        status = ucx->call->request_check_status(handle);
    }
    if (status == UCS_INPROGRESS) return TSH_OK;
    if (status == UCS_OK && request->receives && request->member == TSH_ANY_RANK) {
        ucx->call->tag_recv_request_test(handle, &info);
        request->sender = (int)(info.sender_tag >> SENDER_AT & (TSHI_UCX_RANKS - 1));
    }
    finish(ucx, request, status);
    return TSH_OK;
}

static void cancel(tsh_world *world, tshi_request *request) {
    const tshi_ucx *ucx = tshi_ucx_of(world);
    if (request->handle && !ucx->lost) ucx->call->request_cancel(ucx->worker, (void *)(uintptr_t)request->handle);
}

/* One message at a time. */
static tsh_status discard(tsh_world *world) {
    static const ucp_request_param_t plain;
    tshi_ucx *ucx = tshi_ucx_of(world);
    const tshi_ucx_library *call = ucx->call;
    while (!ucx->lost) {
        ucp_tag_recv_info_t info;
        call->worker_progress(ucx->worker);
        if (ucx->discarding) {
            if (call->request_check_status(ucx->discarding) == UCS_INPROGRESS) return TSH_OK;
            call->request_free(ucx->discarding);
        }
        ucx->discarding = NULL;
        tshi_free(&world->allocator, ucx->discarded);
        ucx->discarded = NULL;
        ucp_tag_message_h message = call->tag_probe_nb(ucx->worker, 0, 0, 1, &info);
        if (!message) return TSH_OK;
        ucx->discarded = tshi_calloc(&world->allocator, 1, info.length + 1);
        if (!ucx->discarded) return tshi_control_stick(world, TSH_ERR_MEMORY, "world_recover: no memory");
        ucs_status_ptr_t handle = call->tag_msg_recv_nbx(ucx->worker, ucx->discarded, info.length, message, &plain);
        ucx->discarding = UCS_PTR_IS_PTR(handle) ? handle : NULL;
    }
    return TSH_OK;
}

const tshi_message_ops tshi_ucx_messages = {.send = send_message,
                                            .receive = receive,
                                            .test = test,
                                            .cancel = cancel,
                                            .discard = discard,
                                            .look = tshi_ucx_look,
                                            .lose = tshi_ucx_lose,
                                            .fail = tshi_tagged_fail};
