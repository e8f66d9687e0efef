/* Groups over MPI: their numbers and their calls. */
#include "dist/transport/mpi/mpi.h"

#include <stdio.h>

/* --- messages of a call ------------------------------------------------------------------------------------------- */

static MPI_Request *handle_of(tshi_request *request) {
    _Static_assert(sizeof(MPI_Request) <= sizeof request->handle, "a handle holds a request of MPI");
    return (MPI_Request *)(void *)&request->handle;
}

static tsh_status check(tsh_group *group, int error) {
    return error == MPI_SUCCESS
               ? TSH_OK
               : tshi_mpi_error(group->world, tsh_collective_name(tshi_mpi_group_of(group)->call.call.op), error);
}

static tsh_status group_send(tsh_group *group, int member, uint64_t tag, const void *data, size_t bytes,
                             tshi_request *out) {
    return check(group,
                 MPI_Isend(data, (int)bytes, MPI_BYTE, group->ranks[member], tshi_mpi_tag(group, TSHI_FOR_CALL, tag),
                           tshi_mpi_of(group->world)->comm, handle_of(out)));
}

static tsh_status group_receive(tsh_group *group, int member, uint64_t tag, void *data, size_t room,
                                tshi_request *out) {
    return check(group,
                 MPI_Irecv(data, (int)room, MPI_BYTE, group->ranks[member], tshi_mpi_tag(group, TSHI_FOR_CALL, tag),
                           tshi_mpi_of(group->world)->comm, handle_of(out)));
}

static tsh_status group_test(tsh_group *group, tshi_request *request) {
    int done = 0;
    int error = MPI_Test(handle_of(request), &done, MPI_STATUS_IGNORE);
    request->active = error == MPI_SUCCESS && !done;
    return check(group, error);
}

static void group_cancel(tshi_request *request) {
    MPI_Cancel(handle_of(request));
}

static tsh_status group_fail(tsh_group *group, tsh_status status) {
    char words[TSHI_MESSAGE_SIZE];
    snprintf(words, sizeof words, "%s", tsh_error_message());
    return tshi_control_stick(group->world, status, words);
}

static const tshi_message_ops messages = {group_send, group_receive, group_test, group_cancel, group_fail};

/* --- opening and closing ------------------------------------------------------------------------------------------ */

static bool is_apart(const tsh_group *group) {
    const int *node = group->world->machine.node;
    for (int i = 1; i < group->size; i++) {
        if (node[group->ranks[i]] != node[group->ranks[0]]) return true;
    }
    return false;
}

static void group_free(const tsh_world *world, tshi_mpi_group *mg) {
    tshi_schedule_close(&mg->call);
    tshi_free(&world->allocator, mg->sent);
    tshi_free(&world->allocator, mg->claim);
    tshi_free(&world->allocator, mg);
}

tsh_status tshi_mpi_group_prepare(tsh_group *group, uint64_t *address) {
    const tsh_world *world = group->world;
    const tshi_mpi *mpi = tshi_mpi_of(world);
    size_t n = (size_t)group->size;
    tshi_mpi_group *mg = tshi_calloc(&world->allocator, 1, sizeof *mg);
    (void)address;
    if (!mg) return TSH_ERR_MEMORY;
    mg->call = (tshi_schedule){.ops = &messages, .apart = is_apart(group)};
    tsh_status status = tshi_schedule_open(&mg->call, group);
    mg->sent = tshi_calloc(&world->allocator, n, sizeof *mg->sent);
    if (group != world->group) mg->claim = tshi_calloc(&world->allocator, 1, tshi_mpi_claim_bytes(mpi));
    if (status == TSH_OK && mg->sent && (mg->claim || group == world->group)) {
        group->state = mg;
        return TSH_OK;
    }
    group_free(world, mg);
    return TSH_ERR_MEMORY;
}

tsh_status tshi_mpi_group_open(tsh_group *group, uint64_t address) {
    tshi_mpi_group *mg = group->state;
    (void)address;
    tsh_status status = tshi_mpi_number_take(group);
    tshi_free(&group->world->allocator, mg->claim);
    mg->claim = NULL;
    return status;
}

void tshi_mpi_group_close(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    tshi_mpi *mpi = tshi_mpi_of(group->world);
    int finalized = 1;
    if (!mg) return;
    if (mg->number) tshi_mpi_number_give(mpi, mg->number);
    MPI_Finalized(&finalized);
    /* With a call still in flight the memory is leaked, as MPI may still use it. */
    bool ended = mg->call.phase == TSHI_IDLE || (!finalized && tshi_schedule_stop(&mg->call));
    if (ended) group_free(group->world, mg);
    group->state = NULL;
}
