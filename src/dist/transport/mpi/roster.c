/* The roster of a communicator's ranks. */
#include "dist/rendezvous/sockets.h"
#include "dist/transport/mpi/mpi.h"

#include <stdio.h>
#include <string.h>

static tsh_status mpi_fail(const char *call, int error) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(error, text, &length);
    return tshi_fail(TSH_ERR_SYSTEM, "world_init: %s: MPI error %d: %.300s", call, error, text);
}

/* If a rank has failed, all ranks return its message. Collective over comm. */
static tsh_status share_failure(MPI_Comm comm, const tshi_settings *s, tsh_status mine) {
    char own[TSHI_MESSAGE_SIZE] = "", words[TSHI_MESSAGE_SIZE] = "";
    int failed = mine == TSH_OK ? s->size : s->rank, first = s->size;
    if (mine != TSH_OK) snprintf(own, sizeof own, "%s", tsh_error_message());
    int error = MPI_Allreduce(&failed, &first, 1, MPI_INT, MPI_MIN, comm);
    if (error == MPI_SUCCESS && first == s->size) return TSH_OK;
    memcpy(words, own, sizeof words);
    if (error == MPI_SUCCESS) error = MPI_Bcast(words, sizeof words, MPI_CHAR, first, comm);
    if (mine != TSH_OK) return tshi_fail(mine, "%s", own);
    if (error != MPI_SUCCESS) return mpi_fail("MPI_Allreduce", error);
    return tshi_fail(TSH_ERR_PEER, "rank %d: %s", first, words);
}

static tsh_status gather(MPI_Comm comm, const tshi_settings *s, const tsh_allocator *allocator, tshi_roster *out) {
    size_t size = (size_t)s->size;
    tshi_process me, *all = tshi_calloc(allocator, size, sizeof *all);
    const tshi_process **by_rank = tshi_calloc(allocator, size, sizeof *by_rank);
    tsh_status status = share_failure(comm, s, all && by_rank ? tshi_process_self(&me) : TSH_ERR_MEMORY);
    int error = MPI_SUCCESS;
    if (status == TSH_OK) error = MPI_Allgather(&me, sizeof me, MPI_BYTE, all, sizeof me, MPI_BYTE, comm);
    for (size_t i = 0; status == TSH_OK && i < size; i++) by_rank[i] = &all[i];
    if (status == TSH_OK) status = share_failure(comm, s, tshi_roster_of(by_rank, s->size, allocator, out));
    if (status == TSH_OK) error = MPI_Bcast(out->key, sizeof out->key, MPI_BYTE, 0, comm);
    tshi_free(allocator, all);
    tshi_free(allocator, by_rank);
    return status == TSH_OK && error != MPI_SUCCESS ? mpi_fail("MPI_Allgather", error) : status;
}

/* Broadcasts the address at which rank 0 listens, in place of MASTER_ADDR and MASTER_PORT: the first ranks of the
 * machines connect over TCP. */
static tsh_status share_address(MPI_Comm comm, tshi_settings *s) {
    int32_t port = 0;
    if (s->rank == 0) {
        tshi_address_own(s->address, sizeof s->address);
        port = tshi_tcp_free_port();
    }
    int error = MPI_Bcast(s->address, sizeof s->address, MPI_CHAR, 0, comm);
    if (error == MPI_SUCCESS) error = MPI_Bcast(&port, 1, MPI_INT32_T, 0, comm);
    s->method = TSHI_INIT_ENV;
    s->address_known = true;
    s->port = port;
    return error == MPI_SUCCESS ? TSH_OK : mpi_fail("MPI_Bcast", error);
}

tsh_status tshi_mpi_roster(MPI_Comm comm, tshi_settings *s, const tsh_allocator *allocator, tsh_status mine,
                           tshi_roster *out) {
    tsh_status status = share_failure(comm, s, mine);
    if (status != TSH_OK || !out) return status;
    status = gather(comm, s, allocator, out);
    if (status != TSH_OK) return status;
    out->rank = s->rank;
    tshi_roster_settings(out, s);
    return out->nodes > 1 ? share_address(comm, s) : TSH_OK;
}
