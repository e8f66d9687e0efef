/* Messages between ranks of an MPI. */
#include "dist/transport/mpi/mpi.h"

tsh_status tshi_mpi_error(tsh_world *world, const char *what, int error) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(error, text, &length);
    tshi_mpi_skip_finalize();
    return tshi_control_stick(world, TSH_ERR_SYSTEM, "%.40s: MPI error %d: %.400s", what, error, text);
}

static MPI_Request *handle_of(tshi_request *request) {
    _Static_assert(sizeof(MPI_Request) <= sizeof request->handle, "a handle holds a request of MPI");
    return (MPI_Request *)(void *)&request->handle;
}

static tsh_status check(tsh_world *world, int error) {
    return error == MPI_SUCCESS ? TSH_OK : tshi_mpi_error(world, "a message", error);
}

static tsh_status send(tsh_group *group, int member, uint64_t tag, const void *data, size_t bytes, tshi_request *out) {
    return check(group->world, MPI_Isend(data, (int)bytes, MPI_BYTE, group->ranks[member], tshi_mpi_tag(group, tag),
                                         tshi_mpi_of(group->world)->comm, handle_of(out)));
}

static tsh_status receive(tsh_group *group, int member, uint64_t tag, void *data, size_t room, tshi_request *out) {
    int from = member == TSH_ANY_RANK ? MPI_ANY_SOURCE : group->ranks[member];
    return check(group->world, MPI_Irecv(data, (int)room, MPI_BYTE, from, tshi_mpi_tag(group, tag),
                                         tshi_mpi_of(group->world)->comm, handle_of(out)));
}

static tsh_status test(tsh_world *world, tshi_request *request) {
    MPI_Status from;
    int done = 0, error = MPI_Test(handle_of(request), &done, &from);
    request->active = error == MPI_SUCCESS && !done;
    if (error == MPI_SUCCESS && done && request->receives) request->sender = from.MPI_SOURCE;
    return check(world, error);
}

static void cancel(tsh_world *world, tshi_request *request) {
    (void)world;
    MPI_Cancel(handle_of(request));
}

/* One message at a time: the one after it can match only when this one has come. */
static tsh_status discard(tsh_world *world) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    MPI_Status status;
    int there = 1, bytes = 0, error = MPI_SUCCESS;
    while (error == MPI_SUCCESS && there) {
        error = MPI_Test(&mpi->discarding, &there, MPI_STATUS_IGNORE); /* a null request is done */
        if (error != MPI_SUCCESS || !there) break;
        tshi_free(&world->allocator, mpi->discarded);
        mpi->discarded = NULL;
        error = MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, mpi->comm, &there, &status);
        if (error != MPI_SUCCESS || !there) break;
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        mpi->discarded = tshi_calloc(&world->allocator, 1, (size_t)bytes + 1);
        if (!mpi->discarded) return tshi_control_stick(world, TSH_ERR_MEMORY, "world_recover: no memory");
        error =
            MPI_Irecv(mpi->discarded, bytes, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, mpi->comm, &mpi->discarding);
    }
    return error == MPI_SUCCESS ? TSH_OK : tshi_mpi_error(world, "world_recover", error);
}

static void lose(tsh_world *world) {
    (void)world;
    tshi_mpi_skip_finalize();
}

const tshi_message_ops tshi_mpi_messages = {.send = send,
                                            .receive = receive,
                                            .test = test,
                                            .cancel = cancel,
                                            .discard = discard,
                                            .lose = lose,
                                            .fail = tshi_tagged_fail};
