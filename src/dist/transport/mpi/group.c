/* Groups over MPI: each has a communicator, and on one machine a block of shared memory for its entry barriers. */
#include "dist/control/agree.h"
#include "dist/transport/mpi/mpi.h"

#include <string.h>

#define TAG_GROUP     7
#define MOST_AT_ENTRY 512 /* members: each reads the words of all others */

tshi_mpi_group *tshi_mpi_group_new(tsh_world *world, int size) {
    const tsh_allocator *allocator = &world->allocator;
    size_t n = (size_t)size;
    tshi_mpi_group *mg = tshi_calloc(allocator, 1, sizeof *mg);
    if (!mg) return NULL;
    mg->comm = MPI_COMM_NULL;
    mg->counts = tshi_calloc(allocator, 2 * n, sizeof *mg->counts);
    mg->kept = tshi_calloc(allocator, 2 * n, sizeof *mg->kept);
    mg->detail = tshi_calloc(allocator, 1 + n, sizeof *mg->detail);
    mg->sent = tshi_calloc(allocator, n, sizeof *mg->sent);
    mg->all = tshi_calloc(allocator, 3 * n, sizeof *mg->all);
    if (mg->all && mg->counts && mg->kept && mg->detail && mg->sent) return mg;
    tshi_mpi_group_free(world, mg);
    return NULL;
}

void tshi_mpi_group_free(tsh_world *world, tshi_mpi_group *mg) {
    const tsh_allocator *allocator = &world->allocator;
    if (!mg) return;
    tshi_free(allocator, mg->counts);
    tshi_free(allocator, mg->kept);
    tshi_free(allocator, mg->all);
    tshi_free(allocator, mg->matrix);
    tshi_free(allocator, mg->request);
    tshi_free(allocator, mg->terms);
    tshi_free(allocator, mg->fold);
    tshi_free(allocator, mg->detail);
    tshi_free(allocator, mg->sent);
    tshi_free(allocator, mg);
}

/* --- shared memory ------------------------------------------------------------------------------------------------ */

static bool share_machine(const tsh_group *group) {
    const int *node = group->world->machine.node;
    if (!tshi_mpi_of(group->world)->shared) return false;
    for (int i = 1; i < group->size; i++) {
        if (node[group->ranks[i]] != node[group->ranks[0]]) return false;
    }
    return group->size <= MOST_AT_ENTRY;
}

/* Broadcast by the first member. */
typedef struct place {
    uint64_t id;    /* the group's number */
    uint64_t block; /* its offset in that rank's heap, plus 1; 0: there is no block */
} place;

static tshi_entry_block *block_new(const tsh_group *group) {
    size_t bytes = (size_t)group->size * sizeof(tshi_entry_member);
    tshi_heap_block *block = tshi_heap_block_new(group->world, sizeof(tshi_entry_block) + bytes, group->size);
    tshi_entry_block *entry = (tshi_entry_block *)(void *)block;
    if (entry) memset(entry->member, 0, bytes);
    return entry;
}

/* Gives all members the group's number and its block; a group without a block has none on any member. */
static int share_block(tsh_group *group, tshi_mpi_group *mg) {
    tsh_world *world = group->world;
    bool here = share_machine(group);
    place p = {0};
    tshi_heap_blocks_sweep(world, false);
    if (group->rank == 0) {
        p.id = (uint64_t)world->rank << 32 | ++tshi_mpi_of(world)->next_group;
        if (here) mg->block = block_new(group);
        if (mg->block) p.block = tshi_heap_block_offset(world, &mg->block->head) + 1;
    }
    int error = MPI_Bcast(&p, (int)sizeof p, MPI_BYTE, 0, mg->comm);
    mg->id = p.id;
    if (error == MPI_SUCCESS && here && p.block) {
        mg->block = (tshi_entry_block *)(void *)tshi_heap_block_at(world, group->ranks[0], p.block - 1);
    }
    return error;
}

/* --- opening and closing ------------------------------------------------------------------------------------------ */

tsh_status tshi_mpi_group_attach(tsh_group *group, tshi_mpi_group *mg, MPI_Comm comm) {
    mg->comm = comm;
    group->state = mg;
    int error = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    if (error == MPI_SUCCESS) error = share_block(group, mg);
    return error == MPI_SUCCESS ? TSH_OK : tshi_mpi_error(group->world, "group_create", error);
}

/* Out of the world's communicator, whose ranks are the world's. */
static int create_comm(const tsh_group *group, MPI_Comm *out) {
    MPI_Group all, members;
    MPI_Comm comm = tshi_mpi_group_of(group->world->group->control)->comm;
    int error = MPI_Comm_group(comm, &all);
    if (error != MPI_SUCCESS) return error;
    error = MPI_Group_incl(all, group->size, group->ranks, &members);
    if (error == MPI_SUCCESS) {
        error = MPI_Comm_create_group(comm, members, TAG_GROUP, out);
        MPI_Group_free(&members);
    }
    MPI_Group_free(&all);
    return error;
}

tsh_status tshi_mpi_group_prepare(tsh_group *group, uint64_t *address) {
    (void)address;
    group->state = tshi_mpi_group_new(group->world, group->size);
    return group->state ? TSH_OK : TSH_ERR_MEMORY;
}

tsh_status tshi_mpi_group_open(tsh_group *group, uint64_t address) {
    MPI_Comm comm = MPI_COMM_NULL;
    (void)address;
    int error = create_comm(group, &comm);
    return error == MPI_SUCCESS ? tshi_mpi_group_attach(group, group->state, comm)
                                : tshi_mpi_error(group->world, "group_create", error);
}

void tshi_mpi_group_close(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    int finalized = 1;
    group->state = NULL;
    if (!mg) return;
    MPI_Finalized(&finalized);
    /* The watcher thread no longer reads this group. */
    tshi_watcher_pass(&tshi_mpi_of(group->world)->watch.thread);
    /* With a call still in flight the communicator and its buffers are leaked, as MPI may still use them. */
    if (mg->op.phase > TSHI_AT_ENTRY || (mg->op.phase == TSHI_AT_ENTRY && !mg->block)) return;
    if (mg->comm != MPI_COMM_NULL && !finalized && group->world->machine.broken == TSH_OK) {
        MPI_Comm_free(&mg->comm);
    }
    if (mg->block) tshi_heap_block_release(group->world, &mg->block->head, group->ranks[0]);
    tshi_mpi_group_free(group->world, mg);
}
