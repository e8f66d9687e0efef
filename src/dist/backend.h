/* A backend: a const struct of functions that connects ranks, moves their data, or both.
 *
 * A world has a control backend, which finds failures, compares what ranks are about to do and carries the library's
 * own messages through host memory, and a data backend, which runs the calls on tensors. They are one and the same,
 * except on GPUs, where NCCL may move the data of ranks that another backend connects. Each group likewise has a
 * control group of the same ranks: itself, or one of the control backend beneath it. registry.c lists the backends;
 * no other file outside a backend's folder names one. */
#ifndef TSHI_BACKEND_H
#define TSHI_BACKEND_H

#include "dist/collectives/work.h"
#include "dist/control/page.h"

struct tshi_exchange_plan; /* collectives/redistribute.h */

/* What a world is made from. */
typedef struct tshi_start {
    const tsh_world_config *config;
    struct tshi_settings *settings;   /* a backend that finds the ranks by its own means sets rank and size */
    const struct tshi_roster *roster; /* where the ranks are; NULL before the rendezvous, and for threads */
    struct tshi_roster *found;        /* gets the roster of a backend that finds the ranks by its own means */
    const tsh_allocator *allocator;
    double deadline; /* of the rendezvous, seconds of tshi_clock */
    const void
        *communicator; /* of tsh_world_init_mpi, which the mpi backend reads; NULL: the world is made otherwise */
} tshi_start;

typedef struct tshi_group_ops {
    const char *name; /* see tsh_group_backend */

    /* --- what it supports ----------------------------------------------------------------------------------------- */

    /* Calls are queued on a GPU, which runs them in their order, and take memory of a GPU alone: all works of a group
     * are started at once, and none has to be done before another call. */
    bool in_order;
    /* The backend has the reduction `op` on `dtype`, one that makes sense. NULL: it has all of them. */
    bool (*reduces)(tsh_dtype dtype, tsh_reduce_op op);
    /* A call on memory of a GPU has to go through buffers of world->host. NULL: none has to. */
    bool (*stages)(const tsh_group *group, const tshi_comm_call *call);
    /* A collective of the group goes on while the host computes; every rank returns the same. NULL: none does, unless
     * the calls are in_order. */
    bool (*overlaps)(const tsh_group *group);
    /* The group's collectives gain from memory of the device's alloc_symmetric at one offset on all ranks; every rank
     * returns the same. NULL: no group's do. */
    bool (*symmetric)(const tsh_group *group);

    /* --- worlds --------------------------------------------------------------------------------------------------- */

    /* *takes: this backend connects the ranks of that world, as its control backend. Called before the rendezvous and,
     * where no backend has taken the world by then, after it. Before it a backend takes a world whose ranks it finds by
     * its own means: it waits for them, and fills start->found. With a communicator the ranks are known, and
     * it is called once. NULL: a data backend alone. */
    tsh_status (*probe)(const tshi_start *start, bool *takes);
    /* Bytes of the memory of a machine that the backend wants in a world of that size: world->machine.area. NULL:
     * none. */
    size_t (*area_bytes)(int size);
    /* Makes world->state, and *heap where the backend has one of its own. Does not wait. NULL: there is nothing to
     * make. */
    tsh_status (*world_open)(tsh_world *world, const tshi_start *start, void **heap);
    /* Connects the ranks, once world->group and the devices exist; sets the group's state. `mine` is how this rank has
     * fared so far. Collective over the world, waits. NULL: a world of one rank. */
    tsh_status (*world_join)(tsh_world *world, tsh_status mine);
    /* Called when the ranks are connected, for data backends and then, where none of them takes the data, for the
     * control backend. *takes: this backend moves the data of the world. A data backend sets world->data and its state,
     * and puts a new world->group above the one there was. Every rank comes to the same end. Collective over the world,
     * waits. NULL: a control backend that has nothing to prepare. */
    tsh_status (*take_data)(tsh_world *world, bool *takes);
    /* Collectives between machines go over RDMA, as far as the backend can tell. NULL: they do not. */
    bool (*rdma)(const tsh_world *world);
    /* tsh_world_fail in that step. A control backend's alone; does not wait. */
    void (*fail)(tsh_world *world, const char *reason, tshi_tape_step step);
    /* tsh_world_recover. The data backend's is called, which calls the control backend's. Collective over the world. */
    tsh_status (*recover)(tsh_world *world);
    /* The first half of tsh_world_destroy, while the devices still exist: tells the peers. Not collective; for a world
     * that has been opened, if only in part. NULL: there is nothing to tell. */
    void (*leave)(tsh_world *world);
    /* The second half: frees world->state and the heap, when the devices are gone. NULL: there is neither. */
    void (*world_close)(tsh_world *world);

    /* --- groups --------------------------------------------------------------------------------------------------- */

    /* Sets up group->state for the n world ranks in `ranks`, which all of parent agree on. group is NULL on ranks
     * outside. Collective over parent, waits. NULL: groups of one rank, which have no state. */
    tsh_status (*open)(tsh_group *parent, const int *ranks, int n, tsh_group *group);
    /* Bytes of tensor memory that the first rank of a group of n takes for `open`. NULL: none. */
    size_t (*open_bytes)(int n);
    /* Bytes of tensor memory that a rank takes when a group sends its first message that is like this one, and keeps
     * for the next ones; messages of different kinds have different ones. 0: none. NULL: none for any. */
    size_t (*message_bytes)(const tshi_comm_call *send);
    /* Frees group->state. Not collective. NULL: there is none. */
    void (*close)(tsh_group *group);
    /* Every rank of the group passes the same `text`, or a status `failed`. TSH_ERR_MISMATCH with both texts
     * printed, or TSH_ERR_PEER with the message of the rank that failed. A control backend's alone. Collective over
     * the group, waits. */
    tsh_status (*agree)(tsh_group *group, const char *text, tsh_status failed);
    /* The ranks compare the call, as `run` does before it moves data, and nothing moves. A control backend's alone.
     * Collective over the group, waits. */
    tsh_status (*compare)(tsh_group *group, const tshi_comm_call *call);
    /* The error that calls of this group have to return, as far as is known, or TSH_OK; never waits. look: look for
     * deaths first. waits: the caller waits for members of the group, so one that has left counts as lost. A control
     * backend's alone; NULL: there are no peers. */
    tsh_status (*check_peers)(tsh_group *group, bool look, bool waits);
    /* After `check_peers` has found some: all of it is known to come from later steps of that tape than this one. NULL:
     * it never is. */
    bool (*fails_later)(const tsh_world *world, tshi_tape_step step);

    /* --- calls ---------------------------------------------------------------------------------------------------- */

    /* Runs the call; returns when this rank's buffers are free again, or (in_order) when it has been queued. A call
     * marked `failed` returns that status and its message. Collective over the group, waits. */
    tsh_status (*run)(tsh_group *group, const tshi_comm_call *call);
    /* Runs the exchange of boxes in place: `in` and `out` of each rank's call are all that it holds of it, NULL where
     * that is nothing, and call->count the elements of the whole. The ranks compare dtypes and plan->fingerprint. For
     * tensors of the host alone. Collective over the group, waits. NULL: exchanges are packed and run as an
     * all_to_all. */
    tsh_status (*exchange)(tsh_group *group, const tshi_comm_call *call, const struct tshi_exchange_plan *plan);
    /* A call in steps that never wait. start: post it; only the first of a group's queue is started, so that a backend
     * sees one collective a group at a time (messages, and with in_order: any number). progress: advance it; they call
     * tshi_work_end when it is done. Both NULL: calls are done when run returns, and there are no messages. */
    tsh_status (*start)(tsh_work *work);
    void (*progress)(tsh_work *work);
    /* Frees work->state of a work that has ended otherwise than in progress: by a deadline or a recovery. NULL: works
     * have no state. */
    void (*drop)(tsh_work *work);
    /* A work under way for which the host has nothing more to do: has the GPU wait for it, so that what this rank
     * queues from here on finds its result; then tshi_work_end. NULL: the host waits. */
    void (*join)(tsh_work *work);
    /* Runs a blocking message while no other work is under way, if that takes no long wait, outside the group's list.
     * False: nothing has happened. NULL: it never does. */
    bool (*quick)(tsh_work *work);
    /* Called while this rank waits and no work has progressed for a while: sleeps a little, looks for failures, deaths
     * and the deadline (started at `since`, seconds of tshi_clock). work: what is waited for; NULL: the group's queue.
     * Any work may have advanced or ended when it returns. NULL: there is nothing to wait for. */
    tsh_status (*nap)(tsh_group *group, const tsh_work *work, double since);
    /* That wait is over, however it ended. NULL: nothing is to be done then. */
    void (*awake)(tsh_group *group);
} tshi_group_ops;

#endif
