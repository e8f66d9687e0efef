/* A transport: a const struct of functions that connects ranks, moves their data, or both.
 *
 * Each group has one. In a world of several machines the groups whose members are on one machine share its memory
 * (world->local), the others have the transport that connects all ranks (world->control). On GPUs NCCL may move the
 * data (world->data): such a group has a control group of the same ranks and of one of the two others, in which its
 * ranks agree; every other group is its own control group. registry.c lists the transports; no other file outside a
 * transport's folder names one. */
#ifndef TSHI_BACKEND_H
#define TSHI_BACKEND_H

#include "dist/collectives/work.h"
#include "dist/control/page.h"

#define TSHI_TRANSPORTS 7 /* places in world->state */

struct tshi_exchange_plan; /* collectives/redistribute.h */

/* The input of tshi_world_start. */
typedef struct tshi_start {
    const tsh_world_config *config;
    struct tshi_settings *settings;   /* a transport that finds the ranks itself sets rank and size */
    const struct tshi_roster *roster; /* the machine of each rank; NULL before the rendezvous, and for threads */
    struct tshi_roster *found;        /* set by a transport that finds the ranks itself */
    const tsh_allocator *allocator;
    double patience;          /* seconds for the rendezvous, and then for each wait of joining; 0: the settings' */
    double deadline;          /* of the rendezvous, seconds of tshi_clock */
    const void *communicator; /* of tsh_world_init_mpi, for the MPI transport; NULL in all other worlds */
} tshi_start;

typedef struct tshi_group_ops {
    const char *name; /* see tsh_group_backend */
    int place;        /* of its state in world->state; each transport has another one */

    /* --- capabilities --------------------------------------------------------------------------------------------- */

    /* Calls are queued on a GPU, which runs them in order, and take GPU memory only: all works of a group are started
     * at once, and another call need not wait until they are done. */
    bool in_order;
    /* After deaths, the processes that live can make another world of this transport: tsh_world_continue. */
    bool renews;
    /* The transport has the reduction `op` on `dtype`, a valid pair. NULL: it has all. */
    bool (*reduces)(tsh_dtype dtype, tsh_reduce_op op);
    /* A call on GPU memory must be staged through buffers of world->host. NULL: never. */
    bool (*stages)(const tsh_group *group, const tshi_comm_call *call);
    /* A collective of the group makes progress while the host computes; all ranks return the same. NULL: only with
     * in_order. */
    bool (*overlaps)(const tsh_group *group);

    /* --- worlds --------------------------------------------------------------------------------------------------- */

    /* *takes: this transport connects the ranks of that world, as its control transport. Called before the rendezvous,
     * and again after it if no transport has taken the world. Before the rendezvous a transport takes a world whose
     * ranks it finds itself: it waits for them, and fills start->found. With a communicator the ranks are known, and
     * probe is called once. NULL: a transport for data only. */
    tsh_status (*probe)(const tshi_start *start, bool *takes);
    /* Bytes of world->machine.area that the transport needs in a world of that size. NULL: 0. */
    size_t (*area_bytes)(int size);
    /* Makes world->state[place], and *heap if the transport has a heap of its own. Does not wait. NULL: it has
     * neither. */
    tsh_status (*world_open)(tsh_world *world, const tshi_start *start, void **heap);
    /* Connects the ranks, once world->group and the devices exist; sets the group's state. mine: this rank's status so
     * far. Collective over the world, waits. NULL: a world of one rank. */
    tsh_status (*world_join)(tsh_world *world, tsh_status mine);
    /* Called when the ranks are connected: for data transports and then, if none of them takes the data, for the
     * control transport. *takes: this transport moves the data of the world. A data transport sets world->data and its
     * state, and replaces world->group by a group of its own whose `control` is the former one. All ranks return the
     * same. Collective over the world, waits. NULL: a control transport with nothing to prepare. */
    tsh_status (*take_data)(tsh_world *world, bool *takes);
    /* Collectives between machines use RDMA, as far as the transport can tell. NULL: they do not. */
    bool (*rdma)(const tsh_world *world);
    /* tsh_world_recover, by the data transport, which calls tshi_recover_control, or else by the control transport.
     * Between the steps of the recovery it calls tshi_groups_stop and tshi_groups_restart. Collective over the world.
     * NULL: tshi_recover_groups. */
    tsh_status (*recover)(tsh_world *world);
    /* The first half of tsh_world_destroy, while the devices still exist: tells the peers that this rank leaves. Also
     * called for a world that has been opened only in part. Not collective. NULL: there are no peers to tell. */
    void (*leave)(tsh_world *world);
    /* The second half, when the devices are gone: frees world->state[place] and the heap. NULL: there is neither. */
    void (*world_close)(tsh_world *world);

    /* --- groups --------------------------------------------------------------------------------------------------- */

    /* Opening a group takes three steps: each member prepares, each fetches the addresses of its groups' first members
     * and learns whether a rank of the parent has failed, each member opens. `close` undoes either.
     * prepare: makes group->state. *address: what this member would tell the others as a group's first, 0 before. Does
     * not wait. NULL: there is nothing to prepare. */
    tsh_status (*prepare)(tsh_group *group, uint64_t *address);
    /* address: that of the group's first member. Collective over the group, waits. NULL: nothing is left to do. */
    tsh_status (*open)(tsh_group *group, uint64_t address);
    /* In place of both, for groups that are made from their parent's state: parent is of this transport. group is NULL
     * on members of parent that get none. Collective over parent, waits. */
    tsh_status (*split)(tsh_group *parent, tsh_group *group);
    /* Bytes of tensor memory that `prepare` allocates on the first rank of a group of n. NULL: 0. */
    size_t (*open_bytes)(int n);
    /* Bytes of tensor memory that a rank allocates for a group's first message of the size class of `send`, and keeps
     * for later ones. NULL: 0 for all. */
    size_t (*message_bytes)(const tshi_comm_call *send);
    /* Frees group->state. Not collective. NULL: groups have no state. */
    void (*close)(tsh_group *group);
    /* The error that calls of this group have to return, as far as this rank knows, or TSH_OK; never waits. look: poll
     * for deaths first. waits: the caller waits for members of the group, so a member that has left is a failure.
     * Control transports only; NULL: there are no peers. */
    tsh_status (*check_peers)(tsh_group *group, bool look, bool waits);
    /* This rank has failed: wakes the members that sleep until it makes a call. NULL: they wake by themselves. */
    void (*wake)(tsh_group *group);
    /* The steps of a recovery. stop: no rank is in a call any more; notes where the members are. restart: all ranks
     * have stopped; this rank's calls continue there. NULL: groups need neither. */
    void (*stop)(tsh_group *group);
    void (*restart)(tsh_group *group);
    /* After `check_peers` has returned an error: every failure in the world is in a later step of that tape than
     * `step`. NULL: never. */
    bool (*fails_later)(const tsh_world *world, tshi_tape_step step);

    /* --- calls ---------------------------------------------------------------------------------------------------- */

    /* Runs the call; returns when no peer touches this rank's buffers any more, or (in_order) when the call is queued.
     * A call marked `failed` returns that status and its message. Collective over the group, waits. NULL: the transport
     * only connects ranks, and a world that has it as its control transport needs a data transport. */
    tsh_status (*run)(tsh_group *group, const tshi_comm_call *call);
    /* Runs a box exchange without packing: call->in and call->out are this rank's parts of the source and the
     * destination (NULL for an empty part), call->count the elements of the whole tensor. The ranks compare dtypes and
     * plan->fingerprint. For tensors in host memory only. Collective over the group, waits. NULL: box exchanges are
     * packed, and run as an all_to_all. */
    tsh_status (*exchange)(tsh_group *group, const tshi_comm_call *call, const struct tshi_exchange_plan *plan);
    /* A call in steps that never wait. start: begins it. Only the first collective of a group's queue is started, so a
     * transport has one collective a group in flight (messages, and calls of an in_order transport: any number).
     * progress: advances it. Either calls tshi_work_end when the work is done. Both NULL: calls are done when run
     * returns, and there are no messages. */
    tsh_status (*start)(tsh_work *work);
    void (*progress)(tsh_work *work);
    /* Frees work->state of a work that a deadline or a recovery has ended, not `progress`. NULL: works have no
     * state. */
    void (*drop)(tsh_work *work);
    /* For a work in flight that needs the host no more: makes the GPU wait for it, so that kernels queued from here on
     * see its result; then tshi_work_end. NULL: the host waits. */
    void (*join)(tsh_work *work);
    /* Queues the messages that the transport holds back. Called before this rank waits for peers: for the work that the
     * program waits for or tests, or with NULL before an agreement. NULL: it holds none back. */
    void (*submit)(tsh_world *world, const tsh_work *work);
    /* A fast path for a blocking message while no other work is in flight: runs it outside the group's list if its peer
     * is ready. False: it has not run. NULL: there is no fast path. */
    bool (*quick)(tsh_work *work);
    /* Called while this rank waits and no work has progressed for a while: sleeps briefly, then polls for failures,
     * deaths and the deadline of a wait that began at `since` (seconds of tshi_clock). work: the message waited for;
     * NULL: the group's queue. Any work may have advanced or ended when nap returns. NULL: there are no peers. */
    tsh_status (*nap)(tsh_group *group, const tsh_work *work, double since);
    /* That wait has ended, whatever its outcome. NULL: there is nothing to undo. */
    void (*awake)(tsh_group *group);
} tshi_group_ops;

#endif
